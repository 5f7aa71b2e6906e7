//! Hello: what it asks for, what Welcome says, and credentials.

use super::{Row, row};
use crate::common::server::Server;
use crate::common::wire::{
    ANY_LOOP, RELEASE_ON_CLOSE, Reply, Welcome, acquire, acquire_ms, cancel, extend, hello,
    hello_version, ping, query, release,
};

/// Two names: `web` with the secret `s3cret`, `batch` with `a:b:c`.
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/credentials.txt");
const CREDENTIALS: &[&str] = &["--credentials-file", FILE];
const CREDENTIALS_AND_SMALL_KEYS: &[&str] = &["--credentials-file", FILE, "--max-key-bytes", "16"];

/// Greets from a new session, which must be welcomed.
fn welcome(server: &Server, frame: &[u8]) -> Welcome {
    let mut client = server.connect();
    client.send(frame);
    let welcome = match client.reply() {
        Reply::Welcome(welcome) => welcome,
        other => panic!("{other:?} to {frame:02x?}"),
    };
    client.expect_quiet();
    welcome
}

/// Sends one first frame from a new session, which must be refused and closed.
fn assert_refused(server: &Server, frame: &[u8], owner: u64, code: u8) {
    let mut client = server.connect();
    client.send(frame);
    client.expect_error(owner, code);
    client.expect_end();
}

pub fn rows() -> Vec<Row> {
    [greetings(), credentials()].into_iter().flatten().collect()
}

fn greetings() -> Vec<Row> {
    vec![
        row("Welcome says what is in force", |server| {
            let first = welcome(server, &hello(0, ANY_LOOP, 1, ""));
            let expected = Welcome {
                owner: 1,
                version: 1,
                flags: 0,
                loops: server.loops(),
                loop_index: first.loop_index,
                routing_seed: first.routing_seed,
                max_key_bytes: 1024,
                max_lease_ms: 255_000,
            };
            assert_eq!(first, expected);
            assert!(first.loop_index < first.loops);
            let second = welcome(server, &hello(0, ANY_LOOP, 2, ""));
            assert_eq!(
                second.routing_seed, first.routing_seed,
                "one seed per server"
            );
        }),
        row("Welcome says what flags have set", |server| {
            let welcome = welcome(server, &hello(0, ANY_LOOP, 1, ""));
            assert_eq!((welcome.max_key_bytes, welcome.max_lease_ms), (7, 1_500));
        })
        .flags(&["--max-key-bytes", "7", "--max-lease", "1500ms"]),
        row("each loop can be wanted", |server| {
            for wanted in 0..server.loops() {
                let welcome = welcome(server, &hello(0, wanted, 1, ""));
                assert_eq!(welcome.loop_index, wanted);
            }
        }),
        row("a loop out of range: E 7, closed", |server| {
            for wanted in [server.loops(), 0x0A0A, ANY_LOOP - 1] {
                assert_refused(server, &hello(0, wanted, 1, ""), 1, 7);
            }
        }),
        row("optional flags that are unknown come back as 0", |server| {
            for (asked, in_force) in [(0x00, 0), (0x01, 1), (0x0E, 0), (0x0F, 1), (0x0A, 0)] {
                let welcome = welcome(server, &hello(asked, ANY_LOOP, 1, ""));
                assert_eq!(welcome.flags, in_force, "asked {asked:#04x}");
            }
        }),
        row("required flags that are unknown: E 7, closed", |server| {
            for flag in [0x10, 0x20, 0x40, 0x80, 0x81, 0xFF] {
                assert_refused(server, &hello(flag, ANY_LOOP, 1, ""), 1, 7);
            }
        }),
        row("another version: E 7, closed", |server| {
            for version in [0, 2, 10, 255] {
                assert_refused(server, &hello_version(version, 0, ANY_LOOP, 1, ""), 1, 7);
            }
        }),
        row(
            "Hello that is not first: E 7, closed, what is owed comes first",
            |server| {
                let mut client = server.connect();
                client.send(&[acquire(1, 0, 1, "k"), hello(0, ANY_LOOP, 2, "")].concat());
                client.granted(1);
                client.expect_error(2, 7);
                client.expect_end();
            },
        ),
        row("a second Hello: E 7, closed", |server| {
            let mut client = server.connect();
            let greeting = hello(RELEASE_ON_CLOSE, ANY_LOOP, 1, "");
            client.send(&[greeting.clone(), ping(2), greeting].concat());
            assert!(matches!(client.reply(), Reply::Welcome(_)));
            client.expect(Reply::Pong(2));
            client.expect_error(1, 7);
            client.expect_end();
        }),
        row(
            "requests right behind Hello are served in order",
            |server| {
                let mut client = server.connect();
                let wanted = server.loops() - 1;
                let requests = (10..60).map(|owner| acquire(owner, 0, 100, owner.to_string()));
                let mut bytes = hello(0, wanted, 1, "");
                requests.for_each(|request| bytes.extend(request));
                bytes.extend([query(2, "10"), acquire(3, 0, 1, "10")].concat());
                client.send(&bytes);
                assert!(matches!(client.reply(), Reply::Welcome(_)));
                let (mut granted, mut rest) = (Vec::new(), Vec::new());
                for _ in 0..52 {
                    match client.reply() {
                        Reply::Acquired { owner, .. } => granted.push(owner),
                        other => rest.push(other),
                    }
                }
                granted.sort_unstable();
                assert_eq!(granted, (10..60).collect::<Vec<_>>());
                assert!(matches!(
                    rest[..],
                    [
                        Reply::State {
                            owner: 2,
                            held: true,
                            ..
                        },
                        Reply::TimedOut(3)
                    ]
                ));
            },
        ),
        row(
            "without credentials configured, any credential is ignored",
            |server| {
                for text in [&b"web:wrong"[..], b"\xFF\xFE", b":", b"\0", b"\r"] {
                    welcome(server, &hello(0, ANY_LOOP, 1, text));
                }
            },
        ),
    ]
}

fn credentials() -> Vec<Row> {
    vec![
        row("the right credential: Welcome, then served", |server| {
            for text in ["web:s3cret", "batch:a:b:c"] {
                let mut client = server.connect();
                let requests = [hello(0, ANY_LOOP, 1, text), acquire(2, 0, 1, text)];
                client.send(&requests.concat());
                assert!(matches!(client.reply(), Reply::Welcome(_)));
                client.granted(2);
            }
        })
        .flags(CREDENTIALS),
        row("a wrong credential: E 5, closed", |server| {
            let wrong: [&[u8]; 14] = [
                b"",
                b":",
                b"web",
                b"web:",
                b"web:S3cret",
                b"web:s3cre",
                b"web:s3crett",
                b"web:s3cret ",
                b" web:s3cret",
                b"web:a:b:c",
                b"Web:s3cret",
                b"nobody:s3cret",
                b"web:\xFF",
                b"s3cret",
            ];
            for text in wrong {
                assert_refused(server, &hello(0, ANY_LOOP, 1, text), 1, 5);
            }
        })
        .flags(CREDENTIALS),
        row("the stored hash is no secret that opens", |server| {
            let file = std::fs::read_to_string(FILE).unwrap();
            let hash = file.split_whitespace().nth(1).unwrap();
            assert_refused(server, &hello(0, ANY_LOOP, 1, format!("web:{hash}")), 1, 5);
        })
        .flags(CREDENTIALS),
        row(
            "anything but Hello first: E 5 with its owner, closed, no effect",
            |server| {
                for frame in [
                    acquire(1, 0, 100, "k"),
                    acquire_ms(1, 9, 100_000, "k"),
                    release(1, 2, "k"),
                    extend(1, 3, 2, "k"),
                    cancel(1, 2, "k"),
                    query(1, "k"),
                    ping(1),
                ] {
                    assert_refused(server, &frame, 1, 5);
                }
                let mut client = server.connect();
                client.send(&hello(0, ANY_LOOP, 1, "web:s3cret"));
                assert!(matches!(client.reply(), Reply::Welcome(_)));
                assert!(!client.state("k").held);
            },
        )
        .flags(CREDENTIALS),
        row("E 1 and E 2 before E 5", |server| {
            assert_refused(server, b"?", 0, 1);
            let mut long = query(1, [b'x'; 17]);
            long.pop();
            assert_refused(server, &long, 1, 2);
            let mut long = hello(0, ANY_LOOP, 1, [b'x'; 1025]);
            long.pop();
            assert_refused(server, &long, 1, 2);
        })
        .flags(CREDENTIALS_AND_SMALL_KEYS),
        row("E 5 before E 7, E 3 and E 4", |server| {
            assert_refused(server, &hello_version(2, 0, ANY_LOOP, 1, "web:no"), 1, 5);
            assert_refused(server, &hello(0xF0, 0x0A0A, 1, ""), 1, 5);
            assert_refused(server, &acquire(1, 0, 1, ""), 1, 5);
            assert_refused(server, &acquire(1, 0, 0, "k"), 1, 5);
        })
        .flags(CREDENTIALS),
        row("E 7 behind the right credential", |server| {
            assert_refused(
                server,
                &hello_version(2, 0, ANY_LOOP, 1, "web:s3cret"),
                1,
                7,
            );
            assert_refused(server, &hello(0x10, ANY_LOOP, 1, "web:s3cret"), 1, 7);
            let mut client = server.connect();
            let greeting = hello(0, ANY_LOOP, 1, "web:s3cret");
            client.send(&[greeting.clone(), greeting].concat());
            assert!(matches!(client.reply(), Reply::Welcome(_)));
            client.expect_error(1, 7);
            client.expect_end();
        })
        .flags(CREDENTIALS),
    ]
}
