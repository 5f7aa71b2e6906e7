//! The rules that hold everywhere: order, repetition, time, limits of lease and wait.

use super::{Row, row};
use crate::common::wire::{Reply, acquire, acquire_ms, cancel, extend_ms, query, release};

const LONG_S: u8 = 250;

pub fn rows() -> Vec<Row> {
    [order(), time(), grace_after_expiry()]
        .into_iter()
        .flatten()
        .map(Row::placed)
        .collect()
}

fn order() -> Vec<Row> {
    vec![
        row(
            "grants are first in, first out, across sessions",
            |server| {
                let mut holder = server.connect();
                holder.send(&acquire(1, 0, LONG_S, "k"));
                let mut token = holder.granted(1).token;
                let mut waiting = Vec::new();
                for position in 0..10 {
                    let mut client = server.connect();
                    client.send(&acquire(10 + position, LONG_S, LONG_S, "k"));
                    client.await_state("k", |state| u64::from(state.waiters) == position + 1);
                    waiting.push(client);
                }
                for (position, client) in waiting.iter_mut().enumerate() {
                    holder.send(&release(2, token, "k"));
                    holder.expect(Reply::Released(2));
                    let grant = client.granted(10 + position as u64);
                    assert!(grant.token > token, "tokens of a key grow");
                    token = grant.token;
                }
            },
        ),
        row("a new acquire never overtakes a queued one", |server| {
            let mut holder = server.connect();
            holder.send(&acquire(1, 0, LONG_S, "k"));
            let token = holder.granted(1).token;
            let mut waiting = server.connect();
            waiting.send(&acquire(2, LONG_S, LONG_S, "k"));
            waiting.await_state("k", |state| state.waiters == 1);
            holder.send(
                &[
                    release(3, token, "k"),
                    acquire(4, 0, LONG_S, "k"),
                    acquire(5, LONG_S, LONG_S, "k"),
                ]
                .concat(),
            );
            holder.expect(Reply::Released(3));
            holder.expect(Reply::TimedOut(4));
            let token = waiting.granted(2).token;
            waiting.send(&release(6, token, "k"));
            waiting.expect(Reply::Released(6));
            holder.granted(5);
        }),
        row(
            "requests of one session on one key take effect in the order sent",
            |server| {
                let mut client = server.connect();
                client.send(
                    &[
                        query(1, "k"),
                        acquire(2, 0, LONG_S, "k"),
                        query(3, "k"),
                        acquire(4, LONG_S, LONG_S, "k"),
                        query(5, "k"),
                        cancel(6, 4, "k"),
                        query(7, "k"),
                    ]
                    .concat(),
                );
                let states = |reply| match reply {
                    Reply::State {
                        owner,
                        held,
                        waiters,
                        ..
                    } => (owner, held, waiters),
                    other => panic!("{other:?}"),
                };
                assert_eq!(states(client.reply()), (1, false, 0));
                client.granted(2);
                assert_eq!(states(client.reply()), (3, true, 0));
                assert_eq!(states(client.reply()), (5, true, 1));
                client.expect(Reply::TimedOut(4));
                client.expect(Reply::CancelDone {
                    owner: 6,
                    cancelled: true,
                });
                assert_eq!(states(client.reply()), (7, true, 0));
            },
        ),
        row(
            "the same key and owner again is a new attempt and renews nothing",
            |server| {
                let mut client = server.connect();
                let sent = client.send(&acquire_ms(7, 0, 300, "k"));
                client.granted(7);
                client.send(&acquire(7, 0, LONG_S, "k"));
                client.expect(Reply::TimedOut(7));
                client.send(&acquire(7, LONG_S, LONG_S, "k"));
                let grant = client.granted(7);
                // Granted when the first lease ended: not early, and not 250 s later.
                assert!((client.received_at() - sent).as_millis() >= 300);
                assert!(grant.waited_ms < 250_000);
            },
        ),
        row(
            "cancel takes the oldest of several with its target",
            |server| {
                let mut client = server.connect();
                client.send(
                    &[
                        acquire(1, 0, LONG_S, "k"),
                        acquire(5, LONG_S, LONG_S, "k"),
                        acquire(6, LONG_S, LONG_S, "k"),
                        acquire(5, LONG_S, LONG_S, "k"),
                        cancel(9, 5, "k"),
                    ]
                    .concat(),
                );
                let mut token = client.granted(1).token;
                client.expect(Reply::TimedOut(5));
                client.expect(Reply::CancelDone {
                    owner: 9,
                    cancelled: true,
                });
                for owner in [6, 5] {
                    client.send(&release(2, token, "k"));
                    client.expect(Reply::Released(2));
                    token = client.granted(owner).token;
                }
            },
        ),
        row("keys are exact bytes", |server| {
            let mut client = server.connect();
            let keys: [&[u8]; 9] = [
                b"k",
                b"K",
                b"k ",
                b" k",
                b"k\0",
                b"k\r",
                b"\0",
                "\u{e9}".as_bytes(),
                "e\u{301}".as_bytes(),
            ];
            for (owner, key) in (1..).zip(keys) {
                client.send(&acquire(owner, 0, LONG_S, key));
                client.granted(owner);
            }
        }),
        row("tokens grow from grant to grant of a key", |server| {
            let mut client = server.connect();
            let mut last = 0;
            for owner in 1..=200 {
                client.send(&acquire(owner, 0, LONG_S, "k"));
                let token = client.granted(owner).token;
                assert!(token > last, "{token} after {last}");
                last = token;
                client.send(&release(owner, token, "k"));
                client.expect(Reply::Released(owner));
            }
        }),
    ]
}

fn time() -> Vec<Row> {
    vec![
        row(
            "waited counts from the acquire, not from anything else",
            |server| {
                let mut holder = server.connect();
                holder.send(&acquire(1, 0, LONG_S, "k"));
                let token = holder.granted(1).token;
                let mut waiting = server.connect();
                let sent = waiting.send(&acquire(2, LONG_S, LONG_S, "k"));
                waiting.await_state("k", |state| state.waiters == 1);
                let queued_at = waiting.received_at();
                // Something of a known length: a wait on another key.
                holder.send(&[acquire(3, 0, LONG_S, "z"), acquire_ms(4, 80, 1, "z")].concat());
                holder.granted(3);
                holder.expect(Reply::TimedOut(4));
                let released = holder.send(&release(5, token, "k"));
                let waited_ms = u128::from(waiting.granted(2).waited_ms);
                assert!(waited_ms >= (released - queued_at).as_millis());
                assert!(waited_ms <= (waiting.received_at() - sent).as_millis());
            },
        ),
        row(
            "an acquire that is granted at once has waited 0 ms",
            |server| {
                let mut client = server.connect();
                client.send(&acquire(1, LONG_S, LONG_S, "k"));
                assert_eq!(client.granted(1).waited_ms, 0);
            },
        ),
        row("the longest lease and wait that flags allow", |server| {
            let mut client = server.connect();
            client.send(&acquire_ms(1, 3_000, 5_000, "k"));
            let token = client.granted(1).token;
            client.send(&acquire(2, 3, 5, "l"));
            client.granted(2);
            client.send(&extend_ms(3, 5_000, token, "k"));
            client.expect(Reply::Extended {
                owner: 3,
                remaining_ms: 5_000,
            });
        })
        .flags(&["--max-lease", "5", "--max-wait", "3s"]),
        row(
            "leases of days are possible where a flag allows them",
            |server| {
                let mut client = server.connect();
                client.send(&acquire_ms(1, 0, 86_400_000, "k"));
                client.granted(1);
                let remaining_ms = client.state("k").remaining_ms;
                assert!((86_300_000..=86_400_000).contains(&remaining_ms));
            },
        )
        .flags(&["--max-lease", "1440m"]),
    ]
}

/// `--expiry-grace-ms`: an expired lease leaves the key held by nobody known.
fn grace_after_expiry() -> Vec<Row> {
    vec![
        row(
            "an expired lease in its grace is nobody's and blocks the key",
            |server| {
                let mut client = server.connect();
                client.send(&acquire_ms(1, 0, 50, "k"));
                let token = client.granted(1).token;
                // A wait that outlasts the lease, judged by the same clock.
                client.send(&[acquire(2, 0, LONG_S, "z"), acquire_ms(3, 60, 1, "z")].concat());
                client.granted(2);
                client.expect(Reply::TimedOut(3));
                client.send(&release(4, token, "k"));
                client.expect(Reply::NotHeld(4));
                client.send(&extend_ms(5, 1_000, token, "k"));
                client.expect(Reply::NotHeld(5));
                client.send(&acquire(6, 0, LONG_S, "k"));
                client.expect(Reply::TimedOut(6));
                let state = client.state("k");
                assert!(state.held);
                assert!(state.remaining_ms <= 200_000, "what is left of the grace");
                client.send(&acquire(7, LONG_S, LONG_S, "k"));
                assert_eq!(client.state("k").waiters, 1);
            },
        )
        .flags(&["--expiry-grace-ms", "200000"]),
        row(
            "after the grace the head is granted, not earlier",
            |server| {
                let mut client = server.connect();
                let sent = client.send(&acquire_ms(1, 0, 50, "k"));
                client.granted(1);
                client.send(&acquire(2, LONG_S, LONG_S, "k"));
                client.granted(2);
                let elapsed = client.received_at() - sent;
                assert!(elapsed.as_millis() >= 250, "granted after {elapsed:?}");
            },
        )
        .flags(&["--expiry-grace-ms", "200"]),
        row(
            "a release in time frees at once, whatever the grace",
            |server| {
                let mut client = server.connect();
                client.send(&acquire(1, 0, LONG_S, "k"));
                let token = client.granted(1).token;
                client.send(&[release(2, token, "k"), acquire(3, 0, 1, "k")].concat());
                client.expect(Reply::Released(2));
                client.granted(3);
            },
        )
        .flags(&["--expiry-grace-ms", "200000"]),
    ]
}
