//! Whatever bytes arrive: what is served, what is refused and how, and which of
//! several faults is answered.

use serde_json::{Value, json};

use super::exchange::{
    Connection, ask, ask_line, bare, encode, erase, expect, get, line, lock, own, put, request,
    start, test_lock, unlock, with, without,
};
use crate::common::configuration::in_every_configuration;

const REFUSED: &str = "BadPayload";

/// Asks each request on one server, which must serve a lock afterwards.
fn all_are_answered(requests: &[Value], status: &str) {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for request in requests {
            assert_eq!(ask(&server, request), bare(status), "to {request}");
        }
        expect(&server, &lock("A", "alive", "30"), &own("Locked", "A"));
    });
}

#[test]
fn a_missing_field_is_refused_whatever_the_action() {
    let mut requests = vec![without(put("A", "k", "30", "x"), "DataStore")];
    for action in [
        "Lock", "Unlock", "TestLock", "Put", "Get", "Erase", "Version",
    ] {
        let whole = with(request(action, "A", "k", "30"), "DataStore", "x");
        for field in ["ID", "FileName", "Action", "Expire"] {
            requests.push(without(whole.clone(), field));
        }
    }
    all_are_answered(&requests, REFUSED);
}

#[test]
fn a_field_of_another_type_is_refused() {
    let mut requests = Vec::new();
    let put = put("A", "k", "30", "x");
    for wrong in [
        json!(null),
        json!(true),
        json!([]),
        json!(["A"]),
        json!({}),
        json!(5),
        json!(1.5),
    ] {
        for field in ["ID", "FileName", "Action", "DataStore", "Name", "Identity"] {
            requests.push(with(put.clone(), field, wrong.clone()));
        }
        requests.push(with(
            with(put.clone(), "Name", wrong.clone()),
            "Identity",
            wrong.clone(),
        ));
        if !wrong.is_number() {
            requests.push(with(put.clone(), "Expire", wrong));
        }
    }
    for field in ["ID", "FileName"] {
        requests.push(with(put.clone(), field, ""));
    }
    // Half an authentication is a failed one.
    requests.push(with(put.clone(), "Name", "worker"));
    requests.push(with(put.clone(), "Identity", "x".repeat(1023)));
    all_are_answered(&requests, REFUSED);
}

#[test]
fn data_store_matters_to_put_alone() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let null = |request| with(request, "DataStore", Value::Null);
        expect(&server, &null(get("A", "k")), &bare("NotFound"));
        expect(&server, &null(erase("A", "k")), &bare("NotFound"));
        let version = ask(&server, &null(request("Version", "A", "k", "0")));
        assert_eq!(version["Status"], "Version");
        expect(&server, &null(lock("A", "k", "30")), &own("Locked", "A"));
        expect(&server, &null(test_lock("A", "k")), &own("Locked", "A"));
        expect(&server, &null(unlock("A", "k")), &own("Unlocked", "A"));
    });
}

#[test]
fn expire_is_a_finite_decimal_number_and_nothing_else() {
    let mut refused = Vec::new();
    for expire in [
        "", " ", "nan", "NaN", "inf", "-inf", "Infinity", "0x10", "1,5", "1 2", "--1", "1e", "e1",
        ".", "1_0", "abc", "30s",
    ] {
        for action in ["Lock", "Unlock", "TestLock", "Get", "Erase", "Version"] {
            refused.push(request(action, "A", "k", expire));
        }
        refused.push(put("A", "k", expire, "x"));
    }
    // A lock or data that would be over at once.
    for expire in [
        json!("0"),
        json!("-1"),
        json!("0.0"),
        json!("-0.5"),
        json!("-0"),
        json!("0e9"),
        json!(0),
        json!(-3),
    ] {
        refused.push(with(lock("A", "k", ""), "Expire", expire.clone()));
        refused.push(with(put("A", "k", "", "x"), "Expire", expire));
    }
    all_are_answered(&refused, REFUSED);
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for expire in [
            json!("30"),
            json!(" 30\t"),
            json!("+30"),
            json!("30.5"),
            json!("30."),
            json!(".5"),
            json!("3e1"),
            json!("3000E-2"),
            json!("3E+1"),
            json!("0.0001"),
            json!("1e-300"),
            json!("3543"),
            json!(30),
            json!(30.25),
            json!(3e1),
        ] {
            let request = with(lock("A", "k", ""), "Expire", expire);
            expect(&server, &request, &own("Locked", "A"));
        }
        for expire in ["0", "-1", "-1e9", "3543"] {
            let look = with(test_lock("A", "k"), "Expire", expire);
            expect(&server, &look, &own("Locked", "A"));
        }
        // Rounded up to a millisecond, never to nothing.
        let before = server.connect().state("k").remaining_ms;
        assert!(before > 3_500_000, "the longest of them: {before} ms");
    });
}

#[test]
fn limits_are_met_exactly() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        // Characters for data; bytes for names and IDs.
        for letter in ["x", "é", "\u{1}", "🦀"] {
            let data = letter.repeat(16 * 1024);
            expect(&server, &put("A", "k", "30", &data), &own("Done", "A"));
            let over = put("A", "k", "30", &(data + "x"));
            expect(&server, &over, &bare(REFUSED));
            let bytes = letter.len();
            let name = letter.repeat(1024 / bytes);
            expect(&server, &lock("A", &name, "30"), &own("Locked", "A"));
            let over = lock("A", &(name.clone() + "x"), "30");
            expect(&server, &over, &bare(REFUSED));
            expect(&server, &unlock(&name, "free"), &bare("Unlocked"));
            let over = unlock(&(name + "x"), "free");
            expect(&server, &over, &bare(REFUSED));
        }
        for action in ["Lock", "Unlock", "TestLock", "Get", "Erase"] {
            for expire in ["3543.0001", "3543.001", "3544", "1e9", "1e999999999"] {
                let over = request(action, "A", "t", expire);
                expect(&server, &over, &bare(REFUSED));
            }
        }
        expect(&server, &lock("A", "t", "3543"), &own("Locked", "A"));
    });
}

#[test]
fn limits_are_those_of_the_flags() {
    in_every_configuration(|configuration| {
        let server = start(
            configuration,
            &[
                "--dlm-anonymous-ttl",
                "10",
                "--dlm-anonymous-data",
                "5",
                "--max-key-bytes",
                "3",
                "--dlm-max-payload",
                "400",
            ],
        );
        expect(&server, &put("A", "abc", "10", "ééééé"), &own("Done", "A"));
        for over in [
            put("A", "abc", "10.001", "ééééé"),
            put("A", "abc", "10", "éééééé"),
            put("A", "abcd", "10", "ééééé"),
        ] {
            expect(&server, &over, &bare(REFUSED));
        }
        let padded = |length: usize| {
            let request = lock("A", "k", "10");
            let padding = length / 2 - with(request.clone(), "Pad", "").to_string().len();
            with(request, "Pad", "x".repeat(padding))
        };
        let (fits, over) = (padded(400), padded(402));
        assert_eq!(line(&fits).len(), 401);
        expect(&server, &fits, &own("Locked", "A"));
        expect(&server, &over, &bare(REFUSED));

        let server = start(configuration, &["--max-dlm-ttl", "10"]);
        expect(&server, &lock("A", "k", "10"), &own("Locked", "A"));
        expect(&server, &lock("A", "k", "10.001"), &bare(REFUSED));
    });
}

#[test]
fn the_action_is_matched_without_regard_to_case() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let ask = |action: &str| ask(&server, &with(put("A", "k", "30", "x"), "Action", action));
        assert_eq!(ask("lOcK"), own("Locked", "A"));
        assert_eq!(ask("TESTLOCK"), own("Locked", "A"));
        assert_eq!(ask("put"), own("Done", "A"));
        assert_eq!(ask("GET")["Status"], "Done");
        assert_eq!(ask("eRASE"), own("Done", "A"));
        assert_eq!(ask("version")["Status"], "Version");
        assert_eq!(ask("UNLOCK"), own("Unlocked", "A"));
        for unknown in ["", "Frob", " Lock", "Lock ", "Lock\0", "Lоck", "Locked"] {
            assert_eq!(ask(unknown), bare("BadAction"), "{unknown:?}");
        }
    });
}

/// Payload, fields, limits, identity, then the action.
#[test]
fn of_several_faults_the_first_kind_is_answered() {
    let unknown = request("Frob", "A", "k", "30");
    let identity = "x".repeat(1023);
    let claims = |request| {
        with(
            with(request, "Name", "nobody"),
            "Identity",
            identity.clone(),
        )
    };
    let refused = [
        without(unknown.clone(), "ID"),
        with(unknown.clone(), "FileName", 5),
        with(unknown.clone(), "Expire", "x"),
        with(unknown.clone(), "Expire", "3544"),
        with(unknown.clone(), "Expire", "2592001"),
        with(unknown.clone(), "FileName", "k".repeat(1025)),
        with(unknown.clone(), "DataStore", "x".repeat(16 * 1024 + 1)),
        claims(unknown.clone()),
        with(unknown.clone(), "Name", Value::Null),
    ];
    all_are_answered(&refused, REFUSED);
    // What only Lock and Put ask of the other fields is no fault here.
    let bad_action = [
        unknown.clone(),
        with(unknown.clone(), "Expire", "0"),
        with(unknown.clone(), "Expire", "-5"),
        with(unknown, "DataStore", Value::Null),
    ];
    all_are_answered(&bad_action, "BadAction");
}

/// Scenario 41, and other texts that are no request.
#[test]
fn s41_no_text_stops_the_server() {
    let lock = lock("A", "k", "30").to_string();
    let with_member = |member: &str| format!("{},{member}}}", &lock[..lock.len() - 1]);
    let deep = |open: &str, close: &str| {
        let levels = 200_000;
        with_member(&format!(
            "\"x\":{}{}",
            open.repeat(levels),
            close.repeat(levels)
        ))
    };
    let refused: Vec<Vec<u8>> = [
        "",
        "5",
        "-0",
        "null",
        "true",
        "[]",
        "[{}]",
        "\"ID\"",
        "{}",
        "{",
        "}",
        "{}{}",
        "NaN",
        "{\"ID\":NaN}",
        "{\"ID\":\"A\",}",
        "{'ID':'A'}",
        "{\"ID\"}",
        "{\"ID\":\"A",
        "\u{feff}{}",
        // NaN where a number may stand, a control character within a string, half a pair.
        &lock.replace("\"30\"", "NaN"),
        &lock.replace("\"30\"", "Infinity"),
        &lock.replace("\"30\"", "030"),
        &lock.replace("\"30\"", "+30"),
        &lock.replace("\"A\"", "\"A\n\""),
        &lock.replace("\"A\"", "\"\\ud800\""),
        &lock.replace("\"A\"", "\"\\udc00\\ud800\""),
        &lock.replace("\"A\"", "\"\\x41\""),
        &lock[..lock.len() - 1],
        &lock[1..],
        &format!("{lock}{lock}"),
        &format!("{lock} x"),
        &format!("[{lock}]"),
        &deep("[", ""),
        &deep("{\"x\":", "}"),
        &deep("{\"x\":", ""),
    ]
    .into_iter()
    .map(|text| text.as_bytes().to_vec())
    .chain([
        b"\xff\xfe".to_vec(),
        b"{\"ID\":\"\xff\"}".to_vec(),
        [
            &lock.as_bytes()[..1],
            b"\"x\":\"\xc3\",",
            &lock.as_bytes()[1..],
        ]
        .concat(),
        [
            &lock.as_bytes()[..1],
            b"\"\xed\xa0\x80\":1,",
            &lock.as_bytes()[1..],
        ]
        .concat(),
        [lock.as_bytes(), b"\0"].concat(),
        vec![0; 1000],
    ])
    .collect();
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for text in &refused {
            let line = [&encode(text)[..], b"\n"].concat();
            let shown = String::from_utf8_lossy(&text[..text.len().min(80)]);
            assert_eq!(ask_line(&server, &line), bare(REFUSED), "to {shown}");
        }
        expect(&server, &test_lock("A", "k"), &bare("Unlocked"));
        for text in [
            lock.clone(),
            format!(" \t\r\n{lock}\n\r\t "),
            with_member("\"unknown\":[1,{\"x\":null}],\"\":\"\""),
            deep("[", "]"),
            lock.replace("\"30\"", "30e-0"),
            lock.replace("\"A\"", "\"\\u0041\""),
            lock.replace("\"ID\"", "\"\\u0049D\""),
            // Of a field that stands twice the last one counts.
            lock.replacen('{', "{\"ID\":5,\"Action\":null,\"Expire\":\"x\",", 1),
        ] {
            let line = [&encode(text.as_bytes())[..], b"\n"].concat();
            let shown = &text[..text.len().min(80)];
            assert_eq!(ask_line(&server, &line), own("Locked", "A"), "to {shown}");
        }
        let last = with_member("\"Action\":\"Frob\"");
        let line = [&encode(last.as_bytes())[..], b"\n"].concat();
        assert_eq!(ask_line(&server, &line), bare("BadAction"));
    });
}

/// Scenario 41: data erased twice, and a Put with what no string is.
#[test]
fn s41_a_second_erase_and_data_of_no_type_change_nothing() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        expect(&server, &put("A", "k", "30", "x"), &own("Done", "A"));
        for wrong in [json!(null), json!(5), json!({})] {
            let bad = with(put("A", "k", "30", ""), "DataStore", wrong);
            expect(&server, &bad, &bare(REFUSED));
        }
        let kept = ask(&server, &get("A", "k"));
        assert_eq!(kept["DataStore"], "x");
        expect(&server, &erase("A", "k"), &own("Done", "A"));
        expect(&server, &erase("A", "k"), &bare("NotFound"));
        expect(&server, &erase("A", "k"), &bare("NotFound"));
        expect(&server, &lock("A", "l", "30"), &own("Locked", "A"));
        expect(&server, &erase("A", "l"), &bare("NotFound"));
        expect(&server, &test_lock("A", "l"), &own("Locked", "A"));
    });
}

#[test]
fn bytes_that_are_no_code_are_refused() {
    let lock = lock("A", "k", "30");
    let good = encode(lock.to_string().as_bytes());
    let mut all = Vec::new();
    for stray in [b'{', b'"', b'\\', b'-', b'_', 0, 7, 0x7f, 0x80, 0xff] {
        for at in [0, 1, good.len() / 2, good.len()] {
            all.push([&good[..at], &[stray, stray], &good[at..]].concat());
        }
    }
    // White space within, half a pair, a pair that stands for more than a byte.
    all.push([&good[..10], b" ", &good[10..]].concat());
    all.push([&good[..11], b"\r", &good[11..]].concat());
    all.push(good[..good.len() - 1].to_vec());
    all.push([&good[..], b"1"].concat());
    all.push([b"ZZ", &good[..]].concat());
    all.push([&good[..10], b"ZZ", &good[12..]].concat());
    all.push([&good[..10], b"3A", &good[12..]].concat());
    all.push(lock.to_string().into_bytes());
    all.push(Vec::new());
    all.push(b"  \r".to_vec());
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        for bytes in &all {
            let shown = String::from_utf8_lossy(bytes);
            let line = [bytes, &b"\n"[..]].concat();
            assert_eq!(ask_line(&server, &line), bare(REFUSED), "to {shown}");
        }
        expect(&server, &test_lock("A", "k"), &bare("Unlocked"));
        for (before, after) in [("", "\r"), (" \t", ""), ("\r", " \t \r\r")] {
            let line = [before.as_bytes(), &good, after.as_bytes(), b"\n"].concat();
            assert_eq!(ask_line(&server, &line), own("Locked", "A"));
        }
    });
}

/// Any bytes at all: an answer and an end in order, or, without a newline, none.
#[test]
fn random_bytes_get_an_answer_and_an_end() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        // A fixed sequence: xorshift, any start but 0.
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut random = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for round in 0..200 {
            let length = random() % 300;
            let bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
            let line = match round % 2 {
                0 => [&bytes[..], b"\n"].concat(),
                // Code of something that starts as an object does.
                _ => [&encode(b"{"), &encode(&bytes)[..], b"\n"].concat(),
            };
            assert_eq!(ask_line(&server, &line), bare(REFUSED), "{line:02x?}");
            let newline = line.iter().position(|byte| *byte == b'\n').unwrap();
            let mut cut_short = Connection::open(&server);
            cut_short.send(&line[..newline]);
            cut_short.finish();
            cut_short.expect_silent_end();
        }
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
    });
}
