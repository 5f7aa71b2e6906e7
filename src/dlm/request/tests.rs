use super::super::{Decoder, DlmReply, Identity, Progress, Status};
use super::*;
use proptest::prelude::*;

const LIMITS: DlmLimits = DlmLimits {
    max_key_bytes: 1024,
    max_ttl_ms: 30 * 24 * 60 * 60 * 1000,
    anonymous_allowed: true,
    anonymous_max_ttl_ms: 3_543_000,
    anonymous_max_data_chars: 16 * 1024,
};

const ACCEPTED: Verdict = Verdict::Accepted {
    max_data_chars: 70_000,
};

fn judge(text: &str, verdict: Verdict) -> Result<DlmRequest<'_>, Fault> {
    ParsedRequest::parse(text.as_bytes(), &LIMITS)?.judge(verdict)
}

fn anonymous(text: &str) -> Result<DlmRequest<'_>, Fault> {
    judge(text, Verdict::Anonymous)
}

/// A request whose members are `members`, JSON as it stands, over good ones.
fn with(members: &[(&str, &str)]) -> String {
    let mut all = vec![
        ("ID", "\"A\""),
        ("FileName", "\"k\""),
        ("Action", "\"Lock\""),
        ("Expire", "\"30\""),
    ];
    for (name, value) in members {
        all.retain(|(other, _)| other != name);
        all.push((name, value));
    }
    let members: Vec<_> = all
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| format!("\"{name}\":{value}"))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn string(text: &str) -> String {
    format!("\"{text}\"")
}

fn lock(ttl_ms: u64) -> Result<DlmRequest<'static>, Fault> {
    Ok(DlmRequest {
        id: "A".into(),
        file_name: "k".into(),
        claim: None,
        operation: Operation::Lock { ttl_ms },
    })
}

#[test]
fn the_reference_examples_are_understood() {
    let request = |operation| DlmRequest {
        id: "DEADBEEF".into(),
        file_name: "myResource".into(),
        claim: None,
        operation,
    };
    for (text, expected) in [
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "Lock", "Expire": "30" }"#,
            request(Operation::Lock { ttl_ms: 30_000 }),
        ),
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "Unlock", "Expire": "0" }"#,
            request(Operation::Unlock),
        ),
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "Put", "Expire": "300", "DataStore": "step 2 complete" }"#,
            request(Operation::Put {
                ttl_ms: 300_000,
                data_store: "step 2 complete".into(),
            }),
        ),
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "Get", "Expire": "0" }"#,
            request(Operation::Get),
        ),
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "Erase", "Expire": "0" }"#,
            request(Operation::Erase),
        ),
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "TestLock", "Expire": "0" }"#,
            request(Operation::TestLock),
        ),
        (
            r#"{ "ID": "DEADBEEF", "FileName": "myResource", "Action": "Version", "Expire": "0" }"#,
            request(Operation::Version),
        ),
    ] {
        assert_eq!(anonymous(text), Ok(expected), "{text}");
    }
}

#[test]
fn actions_are_matched_without_regard_to_case() {
    for (action, operation) in [
        ("LOCK", Operation::Lock { ttl_ms: 30_000 }),
        ("unlock", Operation::Unlock),
        ("testLOCK", Operation::TestLock),
        ("gEt", Operation::Get),
        ("ERASE", Operation::Erase),
        ("version", Operation::Version),
    ] {
        let text = with(&[("Action", &string(action))]);
        assert_eq!(
            anonymous(&text).map(|request| request.operation),
            Ok(operation),
            "{action}"
        );
    }
    for action in [
        "Frob",
        "",
        " Lock",
        "Lock ",
        "Lock\\u0000",
        "Loc\u{212a}",
        "Relock",
    ] {
        let text = with(&[("Action", &string(action))]);
        assert_eq!(anonymous(&text), Err(Fault::BadAction), "{action}");
    }
}

#[test]
fn each_field_is_required_and_typed() {
    for field in ["ID", "FileName", "Action", "Expire"] {
        for value in [
            "",
            "null",
            "true",
            "false",
            "[]",
            "{}",
            "[\"30\"]",
            "{\"a\":\"30\"}",
        ] {
            let text = with(&[(field, value)]);
            assert_eq!(anonymous(&text), Err(Fault::BadPayload), "{text}");
        }
    }
    for field in ["ID", "FileName", "Action"] {
        let text = with(&[(field, "5")]);
        assert_eq!(anonymous(&text), Err(Fault::BadPayload), "{text}");
    }
    for field in ["ID", "FileName"] {
        let text = with(&[(field, "\"\"")]);
        assert_eq!(anonymous(&text), Err(Fault::BadPayload), "{text}");
    }
    // Names of members are exact.
    let text = r#"{"id":"A","FileName":"k","Action":"Lock","Expire":"30"}"#;
    assert_eq!(anonymous(text), Err(Fault::BadPayload));
}

#[test]
fn lengths_are_counted_in_bytes() {
    for (field, limit) in [("ID", 1024), ("FileName", LIMITS.max_key_bytes)] {
        for (text, fits) in [
            ("x".repeat(limit), true),
            ("x".repeat(limit + 1), false),
            ("é".repeat(limit / 2), true),
            ("é".repeat(limit / 2) + "x", false),
            ("\\u00e9".repeat(limit / 2), true),
            ("\\u00e9".repeat(limit / 2) + "x", false),
        ] {
            let text = with(&[(field, &string(&text))]);
            assert_eq!(anonymous(&text).is_ok(), fits, "{field} {}", text.len());
        }
    }
}

#[test]
fn any_character_may_stand_in_a_name() {
    let text = with(&[
        ("FileName", r#""a\nb\u0000c\r\"\\ \u00e9\ud83d\ude00""#),
        ("ID", r#""\t""#),
    ]);
    let request = anonymous(&text).expect("a good request");
    assert_eq!(request.file_name, "a\nb\0c\r\"\\ é😀");
    assert_eq!(request.id, "\t");
    for half in [r#""\ud83d""#, r#""\ude00""#, r#""\ud83dx""#] {
        let text = with(&[("FileName", half)]);
        assert_eq!(anonymous(&text), Err(Fault::BadPayload), "{half}");
    }
}

#[test]
fn expire_is_a_decimal_number_rounded_up_to_the_millisecond() {
    for (value, ttl_ms) in [
        ("30", 30_000),
        ("\"30\"", 30_000),
        ("\" 30\\t\"", 30_000),
        ("\"+30\"", 30_000),
        ("\"\\u0033\\u0030\"", 30_000),
        ("0.5", 500),
        ("\"0.5\"", 500),
        ("\"0.0011\"", 2),
        ("\"0.0001\"", 1),
        ("1e-400", 1),
        ("\"1e-400\"", 1),
        ("3.543e3", 3_543_000),
        ("\"3543\"", 3_543_000),
        ("\"3542.9991\"", 3_543_000),
    ] {
        let text = with(&[("Expire", value)]);
        assert_eq!(anonymous(&text), lock(ttl_ms), "{value}");
    }
    for value in [
        "\"\"",
        "\" \"",
        "\"nan\"",
        "\"NaN\"",
        "\"inf\"",
        "\"Infinity\"",
        "\"-inf\"",
        "NaN",
        "Infinity",
        "-Infinity",
        "\"1_000\"",
        "\"30s\"",
        "\"3 0\"",
        "\"0x1e\"",
        "\"٣\"",
        "\"1e\"",
        "\".\"",
        "\"--1\"",
        "+30",
        ".5",
        "030",
    ] {
        for action in ["\"Lock\"", "\"Unlock\"", "\"Frob\""] {
            let text = with(&[("Expire", value), ("Action", action)]);
            assert_eq!(anonymous(&text), Err(Fault::BadPayload), "{text}");
        }
    }
}

#[test]
fn lock_and_put_need_a_time_and_the_others_do_not() {
    for value in [
        "0",
        "\"0\"",
        "\"-5\"",
        "-5",
        "\"-0\"",
        "\"0.000\"",
        "\"0e9\"",
        "\"-1e400\"",
    ] {
        for (action, needs_time) in [
            ("Lock", true),
            ("Put", true),
            ("Unlock", false),
            ("TestLock", false),
            ("Get", false),
            ("Erase", false),
            ("Version", false),
        ] {
            let text = with(&[
                ("Action", &string(action)),
                ("Expire", value),
                ("DataStore", "\"x\""),
            ]);
            assert_eq!(anonymous(&text).is_err(), needs_time, "{text}");
        }
    }
}

#[test]
fn time_limits_hold_whatever_the_action() {
    let secret = "s".repeat(1023);
    let named = [("Name", "\"w\""), ("Identity", &*string(&secret))];
    for action in [
        "Lock", "Unlock", "TestLock", "Put", "Get", "Erase", "Version",
    ] {
        let action = string(action);
        let put = [("Action", &*action), ("DataStore", "\"x\"")];
        for (expire, anonymous_fits, named_fits) in [
            ("\"3543\"", true, true),
            ("\"3543.0000001\"", false, true),
            ("3544", false, true),
            ("\"2592000\"", false, true),
            ("\"2592000.0001\"", false, false),
            ("1e400", false, false),
            ("\"1e9999999999999999999999999\"", false, false),
        ] {
            let mut members = put.to_vec();
            members.push(("Expire", expire));
            let text = with(&members);
            assert_eq!(anonymous(&text).is_ok(), anonymous_fits, "{text}");
            members.extend(named);
            let text = with(&members);
            assert_eq!(judge(&text, ACCEPTED).is_ok(), named_fits, "{text:.150}");
        }
    }
}

#[test]
fn put_needs_a_string_and_the_others_do_not() {
    for value in ["", "null", "5", "true", "[\"x\"]", "{\"x\":1}", "1e400"] {
        let put = with(&[("Action", "\"Put\""), ("DataStore", value)]);
        assert_eq!(anonymous(&put), Err(Fault::BadPayload), "{put}");
        for action in ["\"Get\"", "\"Erase\"", "\"Version\"", "\"Lock\""] {
            let text = with(&[("Action", action), ("DataStore", value)]);
            assert!(anonymous(&text).is_ok(), "{text}");
        }
    }
    let text = with(&[("Action", "\"Put\""), ("DataStore", "\"\"")]);
    let expected = Operation::Put {
        ttl_ms: 30_000,
        data_store: "".into(),
    };
    assert_eq!(
        anonymous(&text).map(|request| request.operation),
        Ok(expected)
    );
}

#[test]
fn data_is_counted_in_characters() {
    let secret = string(&"s".repeat(1023));
    for (data, anonymous_fits, named_fits) in [
        ("x".repeat(16_384), true, true),
        ("x".repeat(16_385), false, true),
        ("é".repeat(16_384), true, true),
        ("é".repeat(16_385), false, true),
        ("\\u00e9".repeat(16_384), true, true),
        ("\\n".repeat(16_385), false, true),
        ("😀".repeat(16_384), true, true),
        ("\\ud83d\\ude00".repeat(16_384), true, true),
        ("😀".repeat(16_385), false, true),
        ("x".repeat(70_000), false, true),
        ("é".repeat(70_000), false, true),
        ("x".repeat(70_001), false, false),
        ("é".repeat(70_001), false, false),
    ] {
        let data = string(&data);
        for action in ["\"Put\"", "\"Get\""] {
            let mut members = vec![("Action", action), ("DataStore", &*data)];
            let text = with(&members);
            assert_eq!(
                anonymous(&text).is_ok(),
                anonymous_fits,
                "{text:.80} {}",
                text.len()
            );
            members.extend([("Name", "\"w\""), ("Identity", &secret)]);
            let text = with(&members);
            assert_eq!(
                judge(&text, ACCEPTED).is_ok(),
                named_fits,
                "{text:.80} {}",
                text.len()
            );
        }
    }
}

#[test]
fn an_identity_may_also_allow_less_than_nobody_has() {
    let secret = string(&"s".repeat(1023));
    let text = with(&[
        ("Action", "\"Put\""),
        ("DataStore", "\"abc\""),
        ("Name", "\"w\""),
        ("Identity", &secret),
    ]);
    for (max_data_chars, fits) in [(3, true), (2, false), (0, false)] {
        let verdict = Verdict::Accepted { max_data_chars };
        assert_eq!(judge(&text, verdict).is_ok(), fits);
    }
}

#[test]
fn only_two_strings_are_a_claim_and_only_none_at_all_is_anonymous() {
    let secret = string(&"s".repeat(1023));
    let secret = secret.as_str();
    for (name, identity) in [
        ("null", "null"),
        ("\"w\"", "null"),
        ("null", secret),
        ("\"w\"", ""),
        ("", secret),
        ("", "null"),
        ("null", ""),
        ("5", secret),
        ("\"w\"", "5"),
        ("[\"w\"]", secret),
        ("false", "false"),
        // No plain file names.
        ("\"\"", secret),
        ("\"../w\"", secret),
        ("\"/w\"", secret),
        ("\".w\"", secret),
        ("\"..\"", secret),
        ("\"w\\u0000\"", secret),
        ("\"a/b\"", secret),
    ] {
        let text = with(&[("Name", name), ("Identity", identity)]);
        for verdict in [ACCEPTED, Verdict::Anonymous, Verdict::Refused] {
            assert_eq!(
                judge(&text, verdict),
                Err(Fault::BadPayload),
                "{name} {identity}"
            );
        }
    }
    let text = with(&[("Name", "\"w\""), ("Identity", secret)]);
    let parsed = ParsedRequest::parse(text.as_bytes(), &LIMITS).expect("a good request");
    let claim = parsed.claim().expect("a claim");
    assert_eq!((&*claim.name, &*string(&claim.identity)), ("w", secret));
    let request = parsed.judge(ACCEPTED).expect("accepted");
    assert!(request.claim.is_some());
    for verdict in [Verdict::Anonymous, Verdict::Refused] {
        assert_eq!(judge(&text, verdict), Err(Fault::BadPayload));
    }
}

#[test]
fn a_verdict_gives_an_anonymous_request_nothing() {
    for text in [
        with(&[("Expire", "3544")]),
        with(&[("DataStore", &string(&"x".repeat(16_385)))]),
    ] {
        assert_eq!(judge(&text, ACCEPTED), Err(Fault::BadPayload));
    }
    assert_eq!(judge(&with(&[]), ACCEPTED), lock(30_000));
}

#[test]
fn anonymous_requests_can_be_refused_altogether() {
    let limits = DlmLimits {
        anonymous_allowed: false,
        ..LIMITS
    };
    for action in ["\"Lock\"", "\"Version\"", "\"Frob\""] {
        let text = with(&[("Action", action)]);
        let outcome = ParsedRequest::parse(text.as_bytes(), &limits).map(|_| ());
        assert_eq!(outcome, Err(Fault::BadPayload));
    }
    let secret = string(&"s".repeat(1023));
    let text = with(&[("Name", "\"w\""), ("Identity", &secret)]);
    let parsed = ParsedRequest::parse(text.as_bytes(), &limits).expect("a good request");
    assert!(parsed.judge(ACCEPTED).is_ok());
}

/// Payload, fields, limits, identity, and only then the action.
#[test]
fn an_unknown_action_is_told_only_where_all_else_is_in_order() {
    let secret = string(&"s".repeat(1023));
    let frob = ("Action", "\"Frob\"");
    assert_eq!(anonymous(&with(&[frob])), Err(Fault::BadAction));
    // Not Lock and not Put: neither time nor data is needed.
    assert_eq!(
        anonymous(&with(&[frob, ("Expire", "0")])),
        Err(Fault::BadAction)
    );
    assert_eq!(
        anonymous(&with(&[frob, ("DataStore", "5")])),
        Err(Fault::BadAction)
    );
    let named = with(&[frob, ("Name", "\"w\""), ("Identity", &secret)]);
    assert_eq!(judge(&named, ACCEPTED), Err(Fault::BadAction));

    assert_eq!(judge(&named, Verdict::Refused), Err(Fault::BadPayload));
    for worse in [
        ("ID", "\"\""),
        ("FileName", "5"),
        ("Expire", "\"x\""),
        ("Expire", "3544"),
        ("Name", "null"),
    ] {
        assert_eq!(
            anonymous(&with(&[frob, worse])),
            Err(Fault::BadPayload),
            "{worse:?}"
        );
    }
    let data = string(&"x".repeat(16_385));
    assert_eq!(
        anonymous(&with(&[frob, ("DataStore", &data)])),
        Err(Fault::BadPayload)
    );
}

#[test]
fn of_a_key_that_stands_twice_the_last_counts() {
    for (text, expected) in [
        (
            r#"{"ID":"B","ID":"A","FileName":"k","Action":"Lock","Expire":"30"}"#,
            lock(30_000),
        ),
        (
            r#"{"ID":5,"ID":"A","FileName":"k","Action":"Lock","Expire":"30"}"#,
            lock(30_000),
        ),
        (
            r#"{"ID":"A","FileName":"k","Action":[],"Action":"Lock","Expire":30}"#,
            lock(30_000),
        ),
        (
            r#"{"ID":"A","FileName":"k","Action":"Lock","Expire":"x","\u0045xpire":7}"#,
            lock(7_000),
        ),
        (
            r#"{"ID":"A","ID":5,"FileName":"k","Action":"Lock","Expire":"30"}"#,
            Err(Fault::BadPayload),
        ),
        (
            r#"{"ID":"A","FileName":"k","Action":"Lock","Expire":"30","Action":"Frob"}"#,
            Err(Fault::BadAction),
        ),
    ] {
        assert_eq!(anonymous(text), expected, "{text}");
    }
}

#[test]
fn unknown_fields_are_ignored_whatever_they_are() {
    for value in [
        "null",
        "5",
        "1e999",
        "\"x\"",
        "[[[]]]",
        "{\"ID\":5,\"ID\":{}}",
        "true",
    ] {
        let text = with(&[("Extra", value)]);
        assert_eq!(anonymous(&text), lock(30_000), "{value}");
    }
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(anonymous(&with(&[("Extra", &deep)])), lock(30_000));
}

/// Scenario 41: none of these stops the server, each is `BadPayload`.
#[test]
fn what_is_no_request_is_bad_payload() {
    let bytes: [&[u8]; 16] = [
        b"",
        b"5",
        b"null",
        b"[]",
        b"\"x\"",
        b"{",
        b"{}",
        b"{}{}",
        b"\xff\xfe",
        b"{\"ID\":\"\xff\",\"FileName\":\"k\",\"Action\":\"Lock\",\"Expire\":\"30\"}",
        b"{\"x\":\"\xff\",\"ID\":\"A\",\"FileName\":\"k\",\"Action\":\"Lock\",\"Expire\":\"30\"}",
        b"{\"ID\":\"A\",\"FileName\":\"k\",\"Action\":\"Lock\",\"Expire\":NaN}",
        b"{\"x\":NaN,\"ID\":\"A\",\"FileName\":\"k\",\"Action\":\"Lock\",\"Expire\":30}",
        b"{\"ID\":\"A\",\"FileName\":\"k\",\"Action\":\"Lock\",\"Expire\":\"30\"} x",
        b"{\"ID\":\"A\",\"FileName\":\"k\",\"Action\":\"Lock\",\"Expire\":\"30\"",
        b"{'ID':'A','FileName':'k','Action':'Lock','Expire':'30'}",
    ];
    for text in bytes {
        let outcome = ParsedRequest::parse(text, &LIMITS).map(|_| ());
        assert_eq!(
            outcome,
            Err(Fault::BadPayload),
            "{:?}",
            String::from_utf8_lossy(text)
        );
    }
}

#[test]
fn what_needs_no_unescaping_is_borrowed() {
    let text = with(&[("Action", "\"Put\""), ("DataStore", "\"data\"")]);
    let request = anonymous(&text).expect("a good request");
    assert!(matches!(request.id, Cow::Borrowed("A")));
    assert!(matches!(request.file_name, Cow::Borrowed("k")));
    assert!(matches!(
        request.operation,
        Operation::Put {
            data_store: Cow::Borrowed("data"),
            ..
        }
    ));
}

#[test]
fn a_holder_is_id_name_and_identity_together() {
    let request = |id: &'static str, claim: Option<(&'static str, &'static str)>| DlmRequest {
        id: id.into(),
        file_name: "k".into(),
        claim: claim.map(|(name, identity)| Claim {
            name: name.into(),
            identity: identity.into(),
        }),
        operation: Operation::Get,
    };
    let holders = [
        request("A", None),
        request("B", None),
        request("A", Some(("w", "s"))),
        request("A", Some(("v", "s"))),
        request("A", Some(("w", "t"))),
        request("A", Some(("ws", ""))),
        request("Aw", Some(("s", ""))),
        request("Aws", None),
    ];
    for (index, one) in holders.iter().enumerate() {
        for (other_index, other) in holders.iter().enumerate() {
            let same = one.holder_digest() == other.holder_digest();
            assert_eq!(same, index == other_index, "{one:?} {other:?}");
        }
    }
    let mut elsewhere = request("A", Some(("w", "s")));
    elsewhere.file_name = "other".into();
    elsewhere.operation = Operation::Lock { ttl_ms: 1 };
    assert_eq!(elsewhere.holder_digest(), holders[2].holder_digest());
}

/// The right answers that do not depend on any slot's state.
#[test]
fn the_vectors_fault_and_pass_as_they_should() {
    let vectors = include_str!("../../../tests/vectors/dlm-basic.jsonl");
    let (mut faults, mut passes) = (0, 0);
    for line in vectors.lines() {
        let case: serde_json::Value = serde_json::from_str(line).expect("a vector");
        for step in case["steps"].as_array().expect("steps") {
            let text = step["send"].to_string();
            let outcome = ParsedRequest::parse(text.as_bytes(), &LIMITS).and_then(|parsed| {
                let verdict = match parsed.claim() {
                    None => Verdict::Anonymous,
                    Some(claim) => Identity::verify(None, claim),
                };
                parsed.judge(verdict)
            });
            let expected = step["expect"].to_string();
            let expected = DlmReply::decode(expected.as_bytes()).expect("a reply");
            match outcome {
                Ok(request) => {
                    let fault = [Status::BadPayload, Status::BadAction].contains(&expected.status);
                    assert!(!fault, "{}: {text:.100}", case["case"]);
                    assert_eq!(step["send"]["ID"], *request.id);
                    assert_eq!(step["send"]["FileName"], *request.file_name);
                    passes += 1;
                }
                Err(fault) => {
                    assert_eq!(Status::from(fault), expected.status, "{text:.100}");
                    faults += 1;
                }
            }
        }
    }
    assert!(
        faults >= 15 && passes >= 30,
        "{faults} faults, {passes} passes"
    );
}

fn any_operation() -> impl Strategy<Value = Operation<'static>> {
    let ttl_ms = 1..=LIMITS.anonymous_max_ttl_ms;
    prop_oneof![
        ttl_ms.clone().prop_map(|ttl_ms| Operation::Lock { ttl_ms }),
        Just(Operation::Unlock),
        Just(Operation::TestLock),
        (ttl_ms, any::<String>()).prop_map(|(ttl_ms, data)| Operation::Put {
            ttl_ms,
            data_store: data.into()
        }),
        Just(Operation::Get),
        Just(Operation::Erase),
        Just(Operation::Version),
    ]
}

prop_compose! {
    fn any_request()(
        id in any::<String>(),
        file_name in any::<String>(),
        operation in any_operation(),
        claim in prop::option::of(("[a-z]{1,9}", any::<String>())),
    ) -> DlmRequest<'static> {
        DlmRequest {
            id: ("i".to_owned() + &id).into(),
            file_name: ("f".to_owned() + &file_name).into(),
            claim: claim.map(|(name, identity)| Claim {
                name: name.into(),
                identity: identity.into(),
            }),
            operation,
        }
    }
}

proptest! {
    #[test]
    fn a_request_comes_back_from_its_line(request in any_request()) {
        let mut line = Vec::new();
        request.encode(&mut line);
        let mut decoder = Decoder::new(line.len());
        prop_assert_eq!(decoder.push(&line), Progress::Complete);
        let limits = DlmLimits { max_key_bytes: usize::MAX, ..LIMITS };
        let verdict = match request.claim {
            Some(_) => ACCEPTED,
            None => Verdict::Anonymous,
        };
        let read = ParsedRequest::parse(decoder.text(), &limits)
            .and_then(|parsed| parsed.judge(verdict));
        prop_assert_eq!(read, Ok(request));
    }

    #[test]
    fn any_bytes_are_parsed_without_a_panic(text in any::<Vec<u8>>()) {
        let _ = ParsedRequest::parse(&text, &LIMITS);
    }

    #[test]
    fn any_member_values_are_parsed_without_a_panic(
        values in prop::collection::vec(("ID|FileName|Action|Expire|DataStore|Name|Identity", ".{0,12}"), 0..8),
    ) {
        let members: Vec<_> = values.iter().map(|(name, value)| (&**name, &**value)).collect();
        let text = with(&members);
        if let Ok(parsed) = ParsedRequest::parse(text.as_bytes(), &LIMITS) {
            let _ = parsed.judge(ACCEPTED);
        }
    }
}
