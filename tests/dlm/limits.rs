//! What one peer, or a thousand, can make the server take.

use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use serde_json::Value;

use super::exchange::{
    Connection, ask, ask_line, bare, data, encode, erase, expect, get, line, lock, own, put,
    request, start, test_lock, unlock, with,
};
use crate::common::configuration::in_every_configuration;
use crate::common::server::{HANG_GUARD, Server};

const KIB: usize = 1024;
const MIB: usize = 1024 * KIB;
/// Default of `--dlm-max-payload`.
const MAX_PAYLOAD: usize = 10 * MIB;

/// The request with a member that nobody looks at, so that its code has `bytes` bytes.
fn padded(request: &Value, bytes: usize) -> Vec<u8> {
    let bare_length = with(request.clone(), "Pad", "").to_string().len();
    let padding = "x".repeat(bytes / 2 - bare_length);
    let code = encode(with(request.clone(), "Pad", padding).to_string().as_bytes());
    assert_eq!(code.len(), bytes);
    code
}

/// The most memory that the server has ever had resident.
fn peak_resident_bytes(server: &Server) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:"));
    let kib = line.unwrap().split_ascii_whitespace().nth(1).unwrap();
    kib.parse::<usize>().unwrap() * KIB
}

#[test]
fn a_payload_may_have_10_mib_and_not_a_byte_more() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let longest = padded(&lock("A", "k", "30"), MAX_PAYLOAD);
        let whole = [&longest[..], b"\n"].concat();
        assert_eq!(ask_line(&server, &whole), own("Locked", "A"));
        // White space counts, and the answer comes before the line's end does.
        for (end, finish) in [(&b" \n"[..], false), (b" ", true), (b" ", false)] {
            let mut connection = Connection::open(&server);
            connection.send(&[&longest[..], end].concat());
            if finish {
                connection.finish();
            }
            assert_eq!(connection.answer(), bare("BadPayload"));
        }
        // Far more is cut off; the answer is there.
        let mut connection = Connection::open(&server);
        let megabyte = vec![b'1'; MIB];
        let mut sent = 0;
        while connection.try_send(&megabyte).is_ok() {
            sent += MIB;
            assert!(sent < 1024 * MIB, "the server reads on for ever");
        }
        assert_eq!(connection.answer_before_any_end(), bare("BadPayload"));
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
    });
}

/// Sends 160 MiB in requests of 8 MiB that are all under way at a time.
#[test]
fn what_is_known_to_be_refused_is_not_kept() {
    const LINES: usize = 20;
    const LINE_BYTES: usize = 8 * MIB;
    let beginnings: [(&str, Vec<u8>); 4] = [
        ("no code", b"\"no code\"".to_vec()),
        ("no object", encode(b"[{\"ID\":\"A\"")),
        ("white space", Vec::new()),
        ("a fault after the first block", {
            [
                encode(&[&b"{\"x\":\""[..], &[b'x'; 5_000]].concat()),
                b"??".to_vec(),
            ]
            .concat()
        }),
    ];
    in_every_configuration(|configuration| {
        for (name, beginning) in &beginnings {
            let server = start(configuration, &[]);
            expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
            let before = peak_resident_bytes(&server);
            let filling = match *name {
                "white space" => encode(b" "),
                _ => encode(b"x"),
            };
            let filling = filling.repeat((LINE_BYTES - beginning.len()) / filling.len());
            let mut connections: Vec<Connection> = (0..LINES)
                .map(|_| {
                    let mut connection = Connection::open(&server);
                    connection.send(beginning);
                    connection.send(&filling);
                    connection
                })
                .collect();
            for connection in &mut connections {
                connection.send(b"\n");
                assert_eq!(connection.answer(), bare("BadPayload"), "{name}");
            }
            let growth = peak_resident_bytes(&server).saturating_sub(before);
            assert!(growth < 32 * MIB, "{name}: grown by {growth} bytes");
        }
    });
}

/// Each of them is decoded up to 5 MiB before it is refused; one after the other
/// they leave nothing behind.
#[test]
fn what_was_refused_is_given_back() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let over = padded(&lock("A", "k", "30"), MAX_PAYLOAD + 2);
        let mut after_first = 0;
        for round in 0..20 {
            assert_eq!(ask_line(&server, &over), bare("BadPayload"));
            let mut cut_short = Connection::open(&server);
            cut_short.send(&over[..MAX_PAYLOAD - 2]);
            cut_short.finish();
            cut_short.expect_silent_end();
            if round == 0 {
                after_first = peak_resident_bytes(&server);
            }
        }
        let growth = peak_resident_bytes(&server) - after_first;
        assert!(growth < 32 * MIB, "grown by {growth} bytes");
    });
}

#[test]
fn a_thousand_silent_connections_cost_only_themselves_and_end() {
    const COUNT: usize = 1000;
    const TIMEOUT: Duration = Duration::from_secs(3);
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, raised).unwrap();
    in_every_configuration(|configuration| {
        let flags = ["--dlm-request-timeout", "3s"];
        let server = start(configuration, &flags);
        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        let before = peak_resident_bytes(&server);
        let mut silent: Vec<(Instant, Connection)> = (0..COUNT)
            .map(|number| {
                let opened_at = Instant::now();
                let mut connection = Connection::open(&server);
                // Some of them begin, one says everything but the end.
                let whole = line(&lock("B", "k2", "300"));
                connection.send(&whole[..number.min(whole.len() - 1)]);
                (opened_at, connection)
            })
            .collect();
        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        let growth = peak_resident_bytes(&server) - before;
        assert!(growth < 16 * MIB, "grown by {growth} bytes");
        for (opened_at, connection) in &mut silent {
            connection.expect_silent_end();
            assert!(opened_at.elapsed() >= TIMEOUT);
        }
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
        expect(&server, &test_lock("B", "k2"), &bare("Unlocked"));
    });
}

#[test]
fn a_slow_sender_has_only_the_request_timeout() {
    const TIMEOUT: Duration = Duration::from_millis(500);
    in_every_configuration(|configuration| {
        let flags = ["--dlm-request-timeout", "500ms"];
        let server = start(configuration, &flags);
        let opened_at = Instant::now();
        let mut slow = Connection::open(&server);
        slow.send(&encode(b"{"));
        // A byte now and then keeps no connection open.
        while !slow.has_news() {
            let _ = slow.try_send(&encode(b" "));
            std::thread::yield_now();
            assert!(opened_at.elapsed() < HANG_GUARD, "it is never given up");
        }
        assert!(opened_at.elapsed() >= TIMEOUT);
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
    });
}

#[test]
fn over_max_dlm_connections_a_new_one_is_closed_at_once() {
    const PER_LOOP: usize = 3;
    in_every_configuration(|configuration| {
        let loops = usize::from(configuration.loops);
        let limit = (PER_LOOP * loops).to_string();
        let server = start(configuration, &["--max-dlm-connections", &limit]);
        // The kernel chooses the loop: so many that each gets more than its share.
        let mut open: Vec<Connection> =
            (0..40 * loops).map(|_| Connection::open(&server)).collect();
        let guard = Instant::now() + HANG_GUARD;
        while open.len() > PER_LOOP * loops {
            assert!(Instant::now() < guard, "{} are open", open.len());
            let (ended, others) = open.into_iter().partition(Connection::has_news);
            open = others;
            let ended: Vec<Connection> = ended;
            for mut connection in ended {
                connection.expect_silent_end();
            }
        }
        // Native clients have connections of their own.
        server.connect().expect_quiet();
        for connection in &mut open {
            connection.send(&line(&lock("A", "k", "30")));
            assert_eq!(connection.answer(), own("Locked", "A"));
        }
        drop(open);
        // As soon as those are gone, others are served, again and again.
        let guard = Instant::now() + HANG_GUARD;
        let mut served = 0;
        while served < 10 * loops {
            let mut connection = Connection::open(&server);
            let sent = connection.try_send(&line(&lock("A", "k", "30")));
            let received = connection.read_to_end().unwrap_or_default();
            served += usize::from(sent.is_ok() && !received.is_empty());
            assert!(Instant::now() < guard, "nobody is served any more");
        }
    });
}

#[test]
fn over_dlm_max_buffered_large_requests_are_refused_and_small_ones_served() {
    // Decoded, each is half of that: two of them may be on their way at a time, on each
    // loop.
    const LINE_BYTES: usize = 600 * KIB;
    in_every_configuration(|configuration| {
        let loops = usize::from(configuration.loops);
        // The kernel chooses the loop: so many that each gets some.
        let connections = 12 * loops;
        let limit = (600 * KIB * loops).to_string();
        let server = start(configuration, &["--dlm-max-buffered", &limit]);
        let mut large: Vec<Connection> = (0..connections)
            .map(|number| {
                let mut connection = Connection::open(&server);
                let name = format!("large {number}");
                connection.send(&padded(&lock("A", &name, "30"), LINE_BYTES));
                connection
            })
            .collect();
        let guard = Instant::now() + HANG_GUARD;
        let refused = |large: &[Connection]| large.iter().filter(|it| it.has_news()).count();
        while refused(&large) < connections - 2 * loops {
            assert!(Instant::now() < guard, "{} refused", refused(&large));
            std::thread::yield_now();
        }
        // Small requests are served all the while.
        expect(&server, &lock("A", "small", "30"), &own("Locked", "A"));
        let content = "x".repeat(7 * KIB);
        expect(
            &server,
            &put("A", "small", "30", &content),
            &own("Done", "A"),
        );
        expect(&server, &get("A", "small"), &data("A", &content));
        let answers: Vec<Value> = large
            .iter_mut()
            .map(|connection| {
                connection.send(b"\n");
                connection.answer()
            })
            .collect();
        let locked = answers.iter().filter(|it| **it == own("Locked", "A"));
        let locked = locked.count();
        assert!((loops..=2 * loops).contains(&locked), "{answers:?}");
        let refused = answers.iter().filter(|it| **it == bare("NO")).count();
        assert_eq!(locked + refused, connections, "{answers:?}");
        // All of it is given back.
        let again = [&padded(&lock("A", "again", "30"), LINE_BYTES)[..], b"\n"].concat();
        assert_eq!(ask_line(&server, &again), own("Locked", "A"));
        // One that is too large by itself is refused long before its end.
        let over = [&padded(&lock("A", "over", "30"), MAX_PAYLOAD)[..], b"\n"].concat();
        assert_eq!(ask_line(&server, &over), bare("NO"));
        expect(&server, &test_lock("A", "over"), &bare("Unlocked"));
    });
}

#[test]
fn over_max_memory_lock_and_put_are_no_and_the_rest_is_served() {
    in_every_configuration(|configuration| {
        // Each loop has its share: all of this is about one loop's names.
        let limit = (MIB * usize::from(configuration.loops)).to_string();
        let server = start(configuration, &["--max-memory", &limit]);
        let content = "x".repeat(1000);
        let names: Vec<String> = server.routing().keys(0, "k").take(20_001).collect();
        let name = |number: usize| names[number].clone();
        for number in 0..10 {
            expect(
                &server,
                &lock("A", &name(number), "300"),
                &own("Locked", "A"),
            );
        }
        // Until neither a value nor a lock more is taken.
        let mut values = 0;
        while ask(&server, &put("A", &name(values), "300", &content)) == own("Done", "A") {
            values += 1;
            assert!(values < 1_000, "1 MiB holds no {values} values of 1 KB");
        }
        assert!(values > 10, "only {values} values");
        let mut locks = 10;
        while ask(&server, &lock("A", &name(locks), "300")) == own("Locked", "A") {
            locks += 1;
            assert!(locks < 20_000, "1 MiB holds no {locks} locks");
        }
        let (free_value, free_lock) = (name(values), name(locks));
        expect(
            &server,
            &put("A", &free_value, "300", &content),
            &bare("NO"),
        );
        expect(&server, &lock("A", &free_lock, "300"), &bare("NO"));
        expect(&server, &put("B", &name(0), "300", "x"), &bare("NotOwner"));
        expect(&server, &lock("B", &name(0), "300"), &bare("NotOwner"));
        // What takes no memory is done.
        expect(&server, &lock("A", &name(0), "300"), &own("Locked", "A"));
        let other = "y".repeat(1000);
        expect(
            &server,
            &put("A", &name(0), "300", &other),
            &own("Done", "A"),
        );
        expect(&server, &get("A", &name(0)), &data("A", &other));
        expect(&server, &test_lock("A", &name(0)), &own("Locked", "A"));
        expect(&server, &test_lock("A", &free_lock), &bare("Unlocked"));
        expect(&server, &get("A", &free_value), &bare("NotFound"));
        expect(&server, &erase("A", &free_value), &bare("NotFound"));
        expect(&server, &unlock("A", &free_lock), &bare("Unlocked"));
        let version = ask(&server, &request("Version", "A", "k", "0"));
        assert_eq!(version["Status"], "Version");
        // What is given back can be had again, the tables' rounding aside.
        for number in 1..5 {
            let name = name(number);
            expect(&server, &erase("A", &name), &own("Done", "A"));
            expect(&server, &unlock("A", &name), &own("Unlocked", "A"));
        }
        expect(
            &server,
            &put("A", &name(1), "300", &content),
            &own("Done", "A"),
        );
        expect(&server, &lock("A", &name(2), "300"), &own("Locked", "A"));
    });
}
