//! Every error code, what it does to the session, and which goes before which.

use super::{Row, row};
use crate::common::client::Client;
use crate::common::routing::Routing;
use crate::common::server::{DRAIN_KEEPER, Server};
use crate::common::wire::{
    ANY_LOOP, Reply, acquire, acquire_ms, cancel, extend, extend_ms, hello, hello_version, ping,
    ping_with_key, query, release,
};

const LONG_S: u8 = 250;
const SMALL_KEYS: &[&str] = &["--max-key-bytes", "16"];
const SHORT_TIMES: &[&str] = &["--max-lease", "5", "--max-wait", "3"];

/// Every request that takes a key, with owner 1 and lawful times.
fn with_key(key: &[u8]) -> [Vec<u8>; 7] {
    [
        acquire(1, 0, 1, key),
        acquire_ms(1, 0, 1, key),
        release(1, 2, key),
        extend(1, 1, 2, key),
        extend_ms(1, 1, 2, key),
        cancel(1, 2, key),
        query(1, key),
    ]
}

/// A frame of which the newline is missing.
fn cut(mut frame: Vec<u8>) -> Vec<u8> {
    frame.pop();
    frame
}

/// Sends one frame to a new session, which must answer with this error and close.
fn assert_closing(server: &Server, frame: &[u8], owner: u64, code: u8) {
    let mut client = server.connect();
    client.send(frame);
    client.expect_error(owner, code);
    client.expect_end();
}

/// Sends one frame, which must be answered with this error; the session stays open.
fn assert_open(client: &mut Client, frame: &[u8], owner: u64, code: u8) {
    client.send(frame);
    client.expect_error(owner, code);
    client.expect_quiet();
}

pub fn rows() -> Vec<Row> {
    [framing(), keys(), times(), limits(), precedence()]
        .into_iter()
        .flatten()
        .collect()
}

fn framing() -> Vec<Row> {
    vec![
        row("unknown op: E 1, closed", |server| {
            const KNOWN: &[u8] = b"AaRXxCQPH";
            for op in (0..=255).filter(|op| !KNOWN.contains(op)) {
                assert_closing(server, &[op], 0, 1);
            }
        }),
        row(
            "E 1 comes last, after what is owed; what follows it is dropped",
            |server| {
                let mut client = server.connect();
                client.send(
                    &[
                        acquire(1, 0, LONG_S, "k"),
                        ping(2),
                        b"?".to_vec(),
                        ping(3),
                        acquire(4, 0, LONG_S, "l"),
                    ]
                    .concat(),
                );
                let mut replies: Vec<Reply> =
                    std::iter::from_fn(|| client.reply_or_end()).collect();
                assert_eq!(replies.pop(), Some(Reply::Error { owner: 0, code: 1 }));
                replies.sort_by_key(Reply::owner);
                assert!(
                    matches!(
                        replies[..],
                        [Reply::Acquired { owner: 1, .. }, Reply::Pong(2)]
                    ),
                    "{replies:?}"
                );
                let mut other = server.connect();
                assert!(other.state("k").held, "what came before took effect");
                assert!(!other.state("l").held, "what came after did not");
            },
        ),
        row(
            "no newline within the key limit: E 2 with the owner, closed",
            |server| {
                for frame in with_key(&[b'x'; 17]) {
                    assert_closing(server, &cut(frame), 1, 2);
                }
                assert_closing(server, &cut(ping_with_key(1, [b'x'; 17])), 1, 2);
            },
        )
        .flags(SMALL_KEYS),
        row(
            "the limit counts key bytes whatever they are, also with a newline behind",
            |server| {
                for frame in with_key(&[0xFF; 17]) {
                    assert_closing(server, &frame, 1, 2);
                }
            },
        )
        .flags(SMALL_KEYS),
        row(
            "no newline within the credential limit: E 2, closed",
            |server| {
                assert_closing(server, &cut(hello(0, ANY_LOOP, 1, [b'x'; 1025])), 1, 2);
            },
        )
        .flags(SMALL_KEYS),
        row("a credential may be longer than a key may", |server| {
            let mut client = server.connect();
            client.send(&hello(0, ANY_LOOP, 1, [b'x'; 1024]));
            assert!(matches!(client.reply(), Reply::Welcome(_)));
        })
        .flags(SMALL_KEYS),
        row(
            "a key at the limit is taken, an incomplete one is waited for",
            |server| {
                let mut client = server.connect();
                let frame = acquire(1, 0, LONG_S, [b'x'; 16]);
                client.send(&cut(frame));
                // Whatever loop it is on has read it by then.
                for mut other in server.connect_everywhere() {
                    other.expect_quiet();
                    other.expect_quiet();
                }
                client.send(b"\n");
                client.granted(1);
            },
        )
        .flags(SMALL_KEYS),
        row("keys of the default limit, and one byte more", |server| {
            let mut client = server.connect();
            client.send(&acquire(1, 0, LONG_S, [b'x'; 1024]));
            client.granted(1);
            client.send(&acquire(2, 0, LONG_S, [b'x'; 1025]));
            client.expect_error(2, 2);
            client.expect_end();
        }),
        row("keys of the largest limit", |server| {
            let mut client = server.connect();
            client.send(&acquire(1, 0, LONG_S, [b'x'; 16384]));
            let token = client.granted(1).token;
            client.send(&release(2, token, [b'x'; 16384]));
            client.expect(Reply::Released(2));
            client.send(&acquire(3, 0, LONG_S, [b'x'; 16385]));
            client.expect_error(3, 2);
            client.expect_end();
        })
        .flags(&["--max-key-bytes", "16384"]),
    ]
}

fn keys() -> Vec<Row> {
    vec![
        row("empty key: E 3, open", |server| {
            let mut client = server.connect();
            for frame in with_key(b"") {
                assert_open(&mut client, &frame, 1, 3);
            }
        }),
        row("key that is not UTF-8: E 3, open", |server| {
            let mut client = server.connect();
            let bad: [&[u8]; 6] = [
                b"\xFF",
                b"a\x80",
                b"\xC3",
                b"\xC0\x80",
                b"\xED\xA0\x80",
                b"\xF4\x90\x80\x80",
            ];
            for key in bad {
                for frame in with_key(key) {
                    assert_open(&mut client, &frame, 1, 3);
                }
            }
        }),
        row("key that only looks bad: taken", |server| {
            let mut client = server.connect();
            let good = ["\u{10FFFF}", "\u{FFFD}", "\u{D7FF}\u{E000}", "\0\r\t"];
            for (owner, key) in (1..).zip(good) {
                client.send(&acquire(owner, 0, LONG_S, key));
                client.granted(owner);
            }
        }),
        row("ping with a key: E 3, open", |server| {
            let mut client = server.connect();
            assert_open(&mut client, &ping_with_key(1, "k"), 1, 3);
        }),
    ]
}

fn times() -> Vec<Row> {
    vec![
        row("lease 0: E 4, open, nothing held", |server| {
            let mut client = server.connect();
            for frame in [
                acquire(1, 0, 0, "k"),
                acquire(1, 1, 0, "k"),
                acquire_ms(1, 0, 0, "k"),
                extend(1, 0, 2, "k"),
                extend_ms(1, 0, 2, "k"),
            ] {
                assert_open(&mut client, &frame, 1, 4);
            }
            assert!(!client.state("k").held);
        }),
        row("lease over --max-lease: E 4, open", |server| {
            let mut client = server.connect();
            for frame in [
                acquire(1, 0, 6, "k"),
                acquire_ms(1, 0, 5_001, "k"),
                acquire_ms(1, 0, u32::MAX, "k"),
                extend(1, 6, 2, "k"),
                extend_ms(1, 5_001, 2, "k"),
            ] {
                assert_open(&mut client, &frame, 1, 4);
            }
            assert!(!client.state("k").held);
        })
        .flags(SHORT_TIMES),
        row("wait over --max-wait: E 4, open", |server| {
            let mut client = server.connect();
            for frame in [
                acquire(1, 4, 1, "k"),
                acquire_ms(1, 3_001, 1, "k"),
                acquire_ms(1, u32::MAX, 1, "k"),
            ] {
                assert_open(&mut client, &frame, 1, 4);
            }
            assert!(!client.state("k").held);
        })
        .flags(SHORT_TIMES),
        row("a bad lease does not touch the grant", |server| {
            let mut client = server.connect();
            client.send(&acquire(1, 0, 5, "k"));
            let token = client.granted(1).token;
            assert_open(&mut client, &extend(2, 6, token, "k"), 2, 4);
            assert!(client.state("k").remaining_ms <= 5_000);
        })
        .flags(SHORT_TIMES),
    ]
}

/// Runs a script for each loop, with the server's routing.
fn on_each_loop(server: &Server, mut script: impl FnMut(&Routing, u16)) {
    let routing = server.routing();
    (0..routing.loops).for_each(|loop_index| script(&routing, loop_index));
}

fn limits() -> Vec<Row> {
    vec![
        row("key table full: E 6 for a new key, open", |server| {
            on_each_loop(server, |routing, loop_index| {
                // What is held on one loop leaves the others their whole share.
                let [a, b, c] = routing.some_keys(loop_index, "k");
                let mut client = server.connect();
                client.send(&[acquire(1, 0, LONG_S, &a), acquire(2, 0, LONG_S, &b)].concat());
                let token = client.granted(1).token;
                client.granted(2);
                assert_open(&mut client, &acquire(3, 0, LONG_S, &c), 3, 6);
                assert_open(&mut client, &acquire(4, LONG_S, LONG_S, &c), 4, 6);
                // What takes no new key never sees it.
                client.send(&[acquire(5, 0, 1, &a), query(6, &c)].concat());
                client.expect(Reply::TimedOut(5));
                assert!(matches!(client.reply(), Reply::State { held: false, .. }));
                client.send(&acquire(7, LONG_S, LONG_S, &a));
                assert_eq!(client.state(&a).waiters, 1);
                client.send(&release(8, token, &a));
                client.expect(Reply::Released(8));
                let token = client.granted(7).token;
                client.send(&[release(9, token, &a), acquire(10, 0, LONG_S, &c)].concat());
                client.expect(Reply::Released(9));
                client.granted(10);
            });
        })
        .per_loop(&[("--max-keys", 2)]),
        row("the share of each loop is rounded up", |server| {
            on_each_loop(server, |routing, loop_index| {
                let share = 5_usize.div_ceil(routing.loops.into());
                let mut keys = routing.keys(loop_index, "k");
                let mut client = server.connect();
                let held: Vec<String> = keys.by_ref().take(share).collect();
                client.hold_all(&held, LONG_S);
                let over = keys.next().unwrap();
                assert_open(&mut client, &acquire(1, 0, LONG_S, over), 1, 6);
            });
        })
        .flags(&["--max-keys", "5"]),
        row(
            "too many of this session's acquires queued: E 9, open",
            |server| {
                let mut client = server.connect();
                // It counts by session and loop.
                on_each_loop(server, |routing, loop_index| {
                    let [a, b, c] = routing.some_keys(loop_index, "k");
                    let mut other = server.connect();
                    assert_e_9(&mut client, &mut other, [&a, &b, &c]);
                });
            },
        )
        .flags(&["--max-session-waiters", "2"]),
        row("the server's total of waiters reached: B", |server| {
            on_each_loop(server, |routing, loop_index| {
                let [a, b, c] = routing.some_keys(loop_index, "k");
                let mut client = server.connect();
                client.send(
                    &[
                        acquire(1, 0, LONG_S, &a),
                        acquire(2, 0, LONG_S, &b),
                        acquire(3, LONG_S, LONG_S, &a),
                        acquire(4, LONG_S, LONG_S, &b),
                    ]
                    .concat(),
                );
                client.granted(1);
                client.granted(2);
                client.expect(Reply::Busy(4));
                client.send(&[acquire(5, 0, 1, &a), acquire(6, LONG_S, 1, &c)].concat());
                client.expect(Reply::TimedOut(5));
                client.granted(6);
                client.send(&[cancel(7, 3, &a), acquire(8, LONG_S, LONG_S, &b)].concat());
                client.expect(Reply::TimedOut(3));
                client.expect(Reply::CancelDone {
                    owner: 7,
                    cancelled: true,
                });
                assert_eq!(client.state(&b).waiters, 1);
            });
        })
        .per_loop(&[("--max-waiters", 1)]),
    ]
}

/// Of one loop's keys, a session that may queue twice queues a third time.
fn assert_e_9(client: &mut Client, other: &mut Client, [a, b, c]: [&str; 3]) {
    client.send(
        &[
            acquire(1, 0, LONG_S, a),
            acquire(2, LONG_S, LONG_S, a),
            acquire(3, 0, LONG_S, b),
            acquire(4, LONG_S, LONG_S, b),
        ]
        .concat(),
    );
    client.granted(1);
    client.granted(3);
    assert_open(client, &acquire(5, LONG_S, LONG_S, a), 5, 9);
    // What need not queue never sees it.
    client.send(&[acquire(6, 0, 1, a), acquire(7, LONG_S, 1, c)].concat());
    client.expect(Reply::TimedOut(6));
    client.granted(7);
    // It counts by session.
    other.send(&acquire(8, LONG_S, LONG_S, a));
    assert_eq!(other.state(a).waiters, 2);
    // And what left the queue counts no more.
    client.send(&[cancel(9, 2, a), acquire(10, LONG_S, LONG_S, b)].concat());
    client.expect(Reply::TimedOut(2));
    client.expect(Reply::CancelDone {
        owner: 9,
        cancelled: true,
    });
    assert_eq!(client.state(b).waiters, 2);
}

fn precedence() -> Vec<Row> {
    vec![
        row("E 2 before E 3 and E 4", |server| {
            let mut client = server.connect();
            client.send(&cut(acquire(1, 0, 0, [0xFF; 17])));
            client.expect_error(1, 2);
            client.expect_end();
        })
        .flags(SMALL_KEYS),
        row(
            "E 7 before E 3: Hello not first, with a bad credential text",
            |server| {
                let mut client = server.connect();
                client.send(&[ping(1), hello(0, ANY_LOOP, 2, b"\xFF")].concat());
                client.expect(Reply::Pong(1));
                client.expect_error(2, 7);
                client.expect_end();
            },
        ),
        row("E 3 before E 4", |server| {
            let mut client = server.connect();
            assert_open(&mut client, &acquire(1, 0, 0, ""), 1, 3);
            assert_open(&mut client, &acquire_ms(2, u32::MAX, 1, b"\xFF"), 2, 3);
            assert_open(&mut client, &extend(3, 0, 4, ""), 3, 3);
        }),
        row("E 1, 2, 7, 3 and 4 before E 8", |server| {
            let mut client = server.connect();
            let mut greeted = server.connect();
            let mut lost = server.connect();
            let mut long = server.connect();
            // Sessions that the server has taken before it drains.
            for session in [&mut client, &mut greeted, &mut lost, &mut long] {
                session.expect_quiet();
            }
            let _control = server.drain();
            assert_open(&mut client, &acquire(1, 0, LONG_S, ""), 1, 3);
            assert_open(&mut client, &acquire(2, 0, 0, "k"), 2, 4);
            assert_open(&mut client, &acquire(3, 0, LONG_S, "k"), 3, 8);
            greeted.send(&hello_version(1, 0, ANY_LOOP, 4, ""));
            greeted.expect_error(4, 7);
            greeted.expect_end();
            lost.send(b"?");
            lost.expect_error(0, 1);
            lost.expect_end();
            long.send(&cut(acquire(5, 0, LONG_S, [b'x'; 17])));
            long.expect_error(5, 2);
            long.expect_end();
        })
        .flags(&["--drain-seconds", "60", "--max-key-bytes", "16"]),
        row("E 4 before the key's state", |server| {
            let mut client = server.connect();
            client.send(&acquire(1, 0, LONG_S, "k"));
            client.granted(1);
            assert_open(&mut client, &acquire(2, 0, 0, "k"), 2, 4);
            assert_open(&mut client, &acquire(3, 9, 0, "k"), 3, 4);
        }),
        row("E 8 before E 9, B and E 6", |server| {
            let routing = server.routing();
            // The control session's key and this one fill their loop's table.
            let keys_loop = routing.loop_of(DRAIN_KEEPER);
            let [a, new] = routing.some_keys(keys_loop, "k");
            let mut client = server.connect();
            client.send(&[acquire(1, 0, LONG_S, &a), acquire(2, LONG_S, 1, &a)].concat());
            client.granted(1);
            let _control = server.drain();
            client.expect_error(2, 8);
            client.send(&[acquire(3, LONG_S, 1, &a), acquire(4, 0, 1, &new)].concat());
            client.expect_error(3, 8);
            client.expect_error(4, 8);
        })
        .flags(&[
            "--drain-seconds",
            "60",
            "--max-session-waiters",
            "1",
            "--max-waiters-per-key",
            "1",
        ])
        .per_loop(&[("--max-keys", 2)]),
        row(
            "memory limit reached: E 9 before B before E 6, and the rest is served",
            |server| {
                let mut client = server.connect();
                client.send(&[acquire(1, 0, LONG_S, "a"), acquire(2, LONG_S, 1, "a")].concat());
                let token = client.granted(1).token;
                // Other sessions hold keys until its loop has no room for one more.
                let routing = server.routing();
                let mut other = server.connect();
                let fill = (0..)
                    .map(|number: u64| format!("{number:01000}"))
                    .filter(|key| routing.loop_of(key) == routing.loop_of("a"))
                    .position(|key| {
                        other.send(&acquire(3, 0, LONG_S, key));
                        match other.reply() {
                            Reply::Acquired { owner: 3, .. } => false,
                            Reply::Error { owner: 3, code: 6 } => true,
                            other => panic!("{other:?}"),
                        }
                    });
                assert!(fill.is_some_and(|held| held > 100), "{fill:?} keys fit");
                assert_open(&mut client, &acquire(4, LONG_S, 1, "a"), 4, 9);
                other.send(&acquire(5, LONG_S, 1, "a"));
                other.expect(Reply::Busy(5));
                // Leaving takes no memory, nor does what is answered at once.
                other.send(&acquire(6, 0, 1, "a"));
                other.expect(Reply::TimedOut(6));
                other.send(&release(7, token, "a"));
                other.expect(Reply::Released(7));
                client.granted(2);
            },
        )
        .flags(&["--max-session-waiters", "1", "--max-waiters-per-key", "1"])
        .per_loop(&[("--max-memory", 1 << 20)]),
        row("E 9 before B", |server| {
            let mut client = server.connect();
            client.send(&[acquire(1, 0, LONG_S, "a"), acquire(2, LONG_S, 1, "a")].concat());
            client.granted(1);
            assert_open(&mut client, &acquire(3, LONG_S, 1, "a"), 3, 9);
            let mut other = server.connect();
            other.send(&acquire(4, LONG_S, 1, "a"));
            other.expect(Reply::Busy(4));
        })
        .flags(&["--max-session-waiters", "1", "--max-waiters-per-key", "1"]),
    ]
}
