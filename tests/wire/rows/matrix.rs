//! Request × key state, each cell but those of the grace column.

use super::{Row, row};
use crate::common::client::{Client, KeyState};
use crate::common::server::Server;
use crate::common::wire::{Reply, acquire, acquire_ms, cancel, extend, extend_ms, query, release};

/// What happens to a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    AcquireNow,
    AcquireWaiting,
    ReleaseMatching,
    ReleaseOther,
    ExtendMatching,
    ExtendOther,
    CancelQueued,
    CancelNone,
    Query,
    LeaseExpires,
    WaitEnds,
}

/// How the key, or the server, then is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum State {
    Free,
    Held,
    Full,
    Draining,
}

/// One cell of the matrix.
pub type Cell = (Event, State);

use Event::{
    AcquireNow, AcquireWaiting, CancelNone, CancelQueued, ExtendMatching, ExtendOther,
    LeaseExpires, Query, ReleaseMatching, ReleaseOther, WaitEnds,
};
use State::{Draining, Free, Full, Held};

/// Every cell that can occur.
pub fn cells() -> impl Iterator<Item = Cell> {
    const EVENTS: [Event; 11] = [
        AcquireNow,
        AcquireWaiting,
        ReleaseMatching,
        ReleaseOther,
        ExtendMatching,
        ExtendOther,
        CancelQueued,
        CancelNone,
        Query,
        LeaseExpires,
        WaitEnds,
    ];
    // A free key has no token that matches, no queue and no lease; a draining
    // server has no queue.
    const IMPOSSIBLE: [Cell; 7] = [
        (ReleaseMatching, Free),
        (ExtendMatching, Free),
        (CancelQueued, Free),
        (LeaseExpires, Free),
        (WaitEnds, Free),
        (CancelQueued, Draining),
        (WaitEnds, Draining),
    ];
    EVENTS
        .into_iter()
        .flat_map(|event| [Free, Held, Full, Draining].map(|state| (event, state)))
        .filter(|cell| !IMPOSSIBLE.contains(cell))
}

const ONE_WAITER: &[&str] = &["--max-waiters-per-key", "1"];
const LONG_DRAIN: &[&str] = &["--drain-seconds", "60"];

/// Far from any lease or wait that a row waits for.
const LONG_S: u8 = 250;
const LONG_MS: u32 = 250_000;

/// Holds "k" for long with owner 100.
fn holder(server: &Server) -> (Client, u64) {
    let mut client = server.connect();
    client.send(&acquire(100, 0, LONG_S, "k"));
    let token = client.granted(100).token;
    (client, token)
}

/// Queues on "k" for long with owner 200, and waits until it is queued.
fn waiter(server: &Server) -> Client {
    let mut client = server.connect();
    client.send(&acquire(200, LONG_S, LONG_S, "k"));
    client.await_state("k", |state| state.waiters == 1);
    client
}

/// "k" is held and its queue, of one, is full.
fn full(server: &Server) -> (Client, u64, Client) {
    let (client, token) = holder(server);
    (client, token, waiter(server))
}

fn assert_held(client: &mut Client, waiters: u32) {
    let state = client.state("k");
    assert!(state.held);
    assert_eq!(state.waiters, waiters);
}

fn assert_free(client: &mut Client) {
    let free = KeyState {
        held: false,
        remaining_ms: 0,
        waiters: 0,
    };
    assert_eq!(client.state("k"), free);
}

pub fn rows() -> Vec<Row> {
    [
        acquires(),
        releases(),
        extends(),
        cancels(),
        queries(),
        ends(),
    ]
    .into_iter()
    .flatten()
    .map(Row::placed)
    .collect()
}

fn acquires() -> Vec<Row> {
    vec![
        row("acquire without wait, free: granted", |server| {
            let mut client = server.connect();
            client.send(&acquire(1, 0, LONG_S, "k"));
            client.granted(1);
            assert_held(&mut client, 0);
        })
        .covers(&[(AcquireNow, Free)]),
        row(
            "acquire without wait, held: T at once, never queued",
            |server| {
                let (mut client, _) = holder(server);
                client.send(&acquire(1, 0, LONG_S, "k"));
                client.expect(Reply::TimedOut(1));
                assert_held(&mut client, 0);
            },
        )
        .covers(&[(AcquireNow, Held)]),
        row("acquire without wait, queue full: T at once", |server| {
            let (mut client, _, _waiter) = full(server);
            client.send(&acquire(1, 0, LONG_S, "k"));
            client.expect(Reply::TimedOut(1));
            assert_held(&mut client, 1);
        })
        .flags(ONE_WAITER)
        .covers(&[(AcquireNow, Full)]),
        row("acquire without wait, draining: E 8", |server| {
            let mut control = server.drain();
            control.send(&acquire(2, 0, LONG_S, "k"));
            control.expect_error(2, 8);
            assert_free(&mut control);
        })
        .flags(LONG_DRAIN)
        .covers(&[(AcquireNow, Draining)]),
        row("waiting acquire, free: granted", |server| {
            let mut client = server.connect();
            client.send(&acquire(1, LONG_S, LONG_S, "k"));
            client.granted(1);
            assert_held(&mut client, 0);
        })
        .covers(&[(AcquireWaiting, Free)]),
        row("waiting acquire, held: queued, then granted", |server| {
            let (mut client, token) = holder(server);
            let mut waiting = waiter(server);
            client.send(&release(1, token, "k"));
            client.expect(Reply::Released(1));
            let grant = waiting.granted(200);
            assert!(grant.token > token, "a later grant has a larger token");
        })
        .covers(&[(AcquireWaiting, Held)]),
        row("waiting acquire, queue full: B", |server| {
            let (mut client, _, _waiter) = full(server);
            client.send(&acquire(1, LONG_S, LONG_S, "k"));
            client.expect(Reply::Busy(1));
            assert_held(&mut client, 1);
        })
        .flags(ONE_WAITER)
        .covers(&[(AcquireWaiting, Full)]),
        row(
            "waiting acquire, draining: E 8, and so are the queued ones",
            |server| {
                let (mut client, _) = holder(server);
                let mut queued = waiter(server);
                let _control = server.drain();
                queued.expect_error(200, 8);
                client.send(&acquire(1, LONG_S, LONG_S, "k"));
                client.expect_error(1, 8);
                client.send(&acquire(2, LONG_S, LONG_S, "another"));
                client.expect_error(2, 8);
                assert_held(&mut client, 0);
            },
        )
        .flags(LONG_DRAIN)
        .covers(&[(AcquireWaiting, Draining)]),
    ]
}

fn releases() -> Vec<Row> {
    vec![
        row("release, free: N", |server| {
            let mut client = server.connect();
            client.send(&release(1, 12345, "k"));
            client.expect(Reply::NotHeld(1));
            assert_free(&mut client);
        })
        .covers(&[(ReleaseOther, Free)]),
        row(
            "release with the token, held: R, free; again: N",
            |server| {
                let (mut client, token) = holder(server);
                client.send(&release(1, token, "k"));
                client.expect(Reply::Released(1));
                assert_free(&mut client);
                client.send(&release(2, token, "k"));
                client.expect(Reply::NotHeld(2));
            },
        )
        .covers(&[(ReleaseMatching, Held), (ReleaseOther, Free)]),
        row(
            "release with the token, queue full: R, the waiter is granted",
            |server| {
                let (mut client, token, mut waiting) = full(server);
                client.send(&[release(1, token, "k"), query(2, "k")].concat());
                client.expect(Reply::Released(1));
                // Granted in the same step: the next request already finds it held again.
                match client.reply() {
                    Reply::State {
                        owner: 2,
                        held: true,
                        waiters: 0,
                        ..
                    } => {}
                    other => panic!("{other:?}"),
                }
                waiting.granted(200);
            },
        )
        .flags(ONE_WAITER)
        .covers(&[(ReleaseMatching, Full)]),
        row(
            "release with the token, draining: R, nobody is granted",
            |server| {
                let (mut client, token) = holder(server);
                let mut queued = waiter(server);
                let mut control = server.drain();
                client.send(&release(1, token, "k"));
                client.expect(Reply::Released(1));
                assert_free(&mut control);
                queued.expect_error(200, 8);
                queued.expect_quiet();
            },
        )
        .flags(LONG_DRAIN)
        .covers(&[(ReleaseMatching, Draining)]),
        row(
            "release with another token, held: N, nothing changes",
            |server| {
                let (mut client, token) = holder(server);
                for other in [token - 1, token + 1, 0, u64::MAX] {
                    client.send(&release(1, other, "k"));
                    client.expect(Reply::NotHeld(1));
                }
                assert_held(&mut client, 0);
                client.send(&release(2, token, "k"));
                client.expect(Reply::Released(2));
            },
        )
        .covers(&[(ReleaseOther, Held)]),
        row(
            "release with another token, queue full: N, nothing changes",
            |server| {
                let (mut client, token, mut waiting) = full(server);
                client.send(&release(1, token + 1, "k"));
                client.expect(Reply::NotHeld(1));
                assert_held(&mut client, 1);
                waiting.expect_quiet();
            },
        )
        .flags(ONE_WAITER)
        .covers(&[(ReleaseOther, Full)]),
        row("release with another token, draining: N", |server| {
            let (mut client, token) = holder(server);
            let _control = server.drain();
            client.send(&release(1, token + 1, "k"));
            client.expect(Reply::NotHeld(1));
            assert_held(&mut client, 0);
        })
        .flags(LONG_DRAIN)
        .covers(&[(ReleaseOther, Draining)]),
        row("any session may release with the token", |server| {
            let (_client, token) = holder(server);
            let mut other = server.connect();
            other.send(&release(1, token, "k"));
            other.expect(Reply::Released(1));
            assert_free(&mut other);
        }),
        row("a token is good for its own key only", |server| {
            let (mut client, token) = holder(server);
            let routing = server.routing();
            // Loops do not ask each other before they make a token.
            for loop_index in 0..routing.loops {
                let other = routing.key(loop_index, "other");
                client.send(&acquire(1, 0, LONG_S, &other));
                client.granted(1);
                client.send(&release(2, token, &other));
                client.expect(Reply::NotHeld(2));
            }
        }),
    ]
}

/// A lease that was short is now longer: the new one is told in full.
fn assert_extends(server: &Server, client: &mut Client, token: u64) {
    client.send(&extend(1, LONG_S + 1, token, "k"));
    let remaining_ms = (u32::from(LONG_S) + 1) * 1_000;
    client.expect(Reply::Extended {
        owner: 1,
        remaining_ms,
    });
    // The other form, by another session: the token is all it takes.
    let mut other = server.connect();
    other.send(&extend_ms(2, LONG_MS + 5_000, token, "k"));
    other.expect(Reply::Extended {
        owner: 2,
        remaining_ms: LONG_MS + 5_000,
    });
}

fn extends() -> Vec<Row> {
    vec![
        row("extend, free: N", |server| {
            let mut client = server.connect();
            client.send(&extend(1, 1, 12345, "k"));
            client.expect(Reply::NotHeld(1));
            client.send(&extend_ms(2, 1, 12345, "k"));
            client.expect(Reply::NotHeld(2));
            assert_free(&mut client);
        })
        .covers(&[(ExtendOther, Free)]),
        row(
            "extend with the token, held: X with the longer lease",
            |server| {
                let (mut client, token) = holder(server);
                assert_extends(server, &mut client, token);
                assert!(client.state("k").remaining_ms > LONG_MS - 20_000);
            },
        )
        .covers(&[(ExtendMatching, Held)]),
        row(
            "extend with the token, queue full: X, the queue stays",
            |server| {
                let (mut client, token, mut waiting) = full(server);
                assert_extends(server, &mut client, token);
                assert_held(&mut client, 1);
                waiting.expect_quiet();
            },
        )
        .flags(ONE_WAITER)
        .covers(&[(ExtendMatching, Full)]),
        row("extend with the token, draining: X", |server| {
            let (mut client, token) = holder(server);
            let mut observer = server.connect();
            let _control = server.drain();
            client.send(&extend(1, LONG_S + 1, token, "k"));
            client.expect(Reply::Extended {
                owner: 1,
                remaining_ms: LONG_MS + 1_000,
            });
            assert_held(&mut observer, 0);
        })
        .flags(LONG_DRAIN)
        .covers(&[(ExtendMatching, Draining)]),
        row("extend with another token, held: N", |server| {
            let (mut client, token) = holder(server);
            client.send(&extend(1, LONG_S + 1, token + 1, "k"));
            client.expect(Reply::NotHeld(1));
            assert!(client.state("k").remaining_ms <= LONG_MS);
        })
        .covers(&[(ExtendOther, Held)]),
        row("extend with another token, queue full: N", |server| {
            let (mut client, token, mut waiting) = full(server);
            client.send(&extend_ms(1, LONG_MS + 1_000, token + 1, "k"));
            client.expect(Reply::NotHeld(1));
            assert!(client.state("k").remaining_ms <= LONG_MS);
            waiting.expect_quiet();
        })
        .flags(ONE_WAITER)
        .covers(&[(ExtendOther, Full)]),
        row("extend with another token, draining: N", |server| {
            let (mut client, token) = holder(server);
            let _control = server.drain();
            client.send(&extend(1, LONG_S + 1, token + 1, "k"));
            client.expect(Reply::NotHeld(1));
            assert!(client.state("k").remaining_ms <= LONG_MS);
        })
        .flags(LONG_DRAIN)
        .covers(&[(ExtendOther, Draining)]),
        row(
            "extend with a shorter lease, held: X with what remains",
            |server| {
                let mut client = server.connect();
                let sent = client.send(&acquire(1, 0, LONG_S, "k"));
                let token = client.granted(1).token;
                client.send(&extend_ms(2, 1, token, "k"));
                match client.reply() {
                    Reply::Extended {
                        owner: 2,
                        remaining_ms,
                    } => {
                        let elapsed_ms = sent.elapsed().as_millis() as u32;
                        assert!((LONG_MS - elapsed_ms - 1..=LONG_MS).contains(&remaining_ms));
                    }
                    other => panic!("{other:?}"),
                }
            },
        )
        .covers(&[(ExtendMatching, Held)]),
    ]
}

fn cancels() -> Vec<Row> {
    vec![
        row("cancel, free: C 0", |server| {
            let mut client = server.connect();
            client.send(&cancel(1, 200, "k"));
            client.expect(Reply::CancelDone {
                owner: 1,
                cancelled: false,
            });
        })
        .covers(&[(CancelNone, Free)]),
        row(
            "cancel of a queued acquire, held: its T, then C 1",
            |server| {
                let (mut client, _) = holder(server);
                let mut waiting = waiter(server);
                waiting.send(&cancel(1, 200, "k"));
                waiting.expect(Reply::TimedOut(200));
                waiting.expect(Reply::CancelDone {
                    owner: 1,
                    cancelled: true,
                });
                assert_held(&mut client, 0);
            },
        )
        .covers(&[(CancelQueued, Held)]),
        row(
            "cancel of a queued acquire, queue full: T, C 1, and there is room",
            |server| {
                let (_client, _, mut waiting) = full(server);
                waiting.send(&[cancel(1, 200, "k"), acquire(2, LONG_S, 1, "k")].concat());
                waiting.expect(Reply::TimedOut(200));
                waiting.expect(Reply::CancelDone {
                    owner: 1,
                    cancelled: true,
                });
                assert_held(&mut waiting, 1);
            },
        )
        .flags(ONE_WAITER)
        .covers(&[(CancelQueued, Full)]),
        row("cancel of what is not queued, held: C 0", |server| {
            let (mut client, _) = holder(server);
            let mut waiting = waiter(server);
            let none = Reply::CancelDone {
                owner: 1,
                cancelled: false,
            };
            // Another session's, the grant itself, another target, another key.
            client.send(&cancel(1, 200, "k"));
            client.expect(none);
            client.send(&cancel(1, 100, "k"));
            client.expect(none);
            waiting.send(&cancel(1, 201, "k"));
            waiting.expect(none);
            waiting.send(&cancel(1, 200, "other"));
            waiting.expect(none);
            assert_held(&mut client, 1);
            waiting.expect_quiet();
        })
        .covers(&[(CancelNone, Held)]),
        row("cancel of what is not queued, queue full: C 0", |server| {
            let (mut client, _, mut waiting) = full(server);
            client.send(&cancel(1, 200, "k"));
            client.expect(Reply::CancelDone {
                owner: 1,
                cancelled: false,
            });
            assert_held(&mut client, 1);
            waiting.expect_quiet();
        })
        .flags(ONE_WAITER)
        .covers(&[(CancelNone, Full)]),
        row("cancel, draining: C 0, its target had E 8", |server| {
            let (_client, _) = holder(server);
            let mut waiting = waiter(server);
            let _control = server.drain();
            waiting.send(&cancel(1, 200, "k"));
            waiting.expect_error(200, 8);
            waiting.expect(Reply::CancelDone {
                owner: 1,
                cancelled: false,
            });
        })
        .flags(LONG_DRAIN)
        .covers(&[(CancelNone, Draining)]),
    ]
}

fn queries() -> Vec<Row> {
    vec![
        row("query, free: not held", |server| {
            assert_free(&mut server.connect());
        })
        .covers(&[(Query, Free)]),
        row(
            "query, held: what remains, rounded up, and the queue's length",
            |server| {
                let mut client = server.connect();
                let sent = client.send(&acquire(1, 0, LONG_S, "k"));
                client.granted(1);
                let state = client.state("k");
                let elapsed_ms = sent.elapsed().as_millis() as u32;
                assert!((LONG_MS - elapsed_ms..=LONG_MS).contains(&state.remaining_ms));
                assert_eq!(state.waiters, 0);
                let three = [2, 3, 4].map(|owner| acquire(owner, LONG_S, 1, "k"));
                client.send(&three.concat());
                assert_held(&mut client, 3);
            },
        )
        .covers(&[(Query, Held)]),
        row("query, queue full: the queue's length", |server| {
            let (mut client, _, _waiting) = full(server);
            assert_held(&mut client, 1);
        })
        .flags(ONE_WAITER)
        .covers(&[(Query, Full)]),
        row("query, draining: as ever", |server| {
            let (_client, _) = holder(server);
            let mut control = server.drain();
            assert_held(&mut control, 0);
            let free = control.state("other");
            assert!(!free.held);
        })
        .flags(LONG_DRAIN)
        .covers(&[(Query, Draining)]),
    ]
}

fn ends() -> Vec<Row> {
    vec![
        row(
            "lease expires, nobody waits: free, N for its token",
            |server| {
                let mut client = server.connect();
                let sent = client.send(&acquire_ms(1, 0, 100, "k"));
                let token = client.granted(1).token;
                client.await_state("k", |state| !state.held);
                let elapsed = client.received_at() - sent;
                assert!(elapsed.as_millis() >= 100, "free after {elapsed:?}");
                client.send(&release(2, token, "k"));
                client.expect(Reply::NotHeld(2));
                client.send(&extend(3, LONG_S, token, "k"));
                client.expect(Reply::NotHeld(3));
                client.send(&acquire(4, 0, LONG_S, "k"));
                assert!(client.granted(4).token > token);
            },
        )
        .covers(&[(LeaseExpires, Held)]),
        row(
            "lease expires, queue full: the waiter is granted, not earlier",
            |server| {
                let mut client = server.connect();
                let sent = client.send(&acquire_ms(1, 0, 100, "k"));
                let token = client.granted(1).token;
                let mut waiting = server.connect();
                waiting.send(&acquire(2, LONG_S, LONG_S, "k"));
                let grant = waiting.granted(2);
                let elapsed = waiting.received_at() - sent;
                assert!(elapsed.as_millis() >= 100, "granted after {elapsed:?}");
                assert!(grant.token > token);
                client.send(&release(3, token, "k"));
                client.expect(Reply::NotHeld(3));
            },
        )
        .flags(ONE_WAITER)
        .covers(&[(LeaseExpires, Full)]),
        row("lease expires, draining: free", |server| {
            let mut client = server.connect();
            // Long enough that the drain has begun when it ends, usually; the cell
            // holds either way.
            client.send(&acquire_ms(1, 0, 500, "k"));
            let token = client.granted(1).token;
            let mut control = server.drain();
            control.await_state("k", |state| !state.held);
            client.send(&release(2, token, "k"));
            client.expect(Reply::NotHeld(2));
        })
        .flags(LONG_DRAIN)
        .covers(&[(LeaseExpires, Draining)]),
        row(
            "a wait ends, held: T, not early; the rest keep their order",
            |server| {
                let (mut client, token) = holder(server);
                let mut waiting = server.connect();
                let sent = waiting.send(
                    &[
                        acquire(2, LONG_S, LONG_S, "k"),
                        acquire_ms(3, 100, 1_000, "k"),
                        acquire(4, LONG_S, LONG_S, "k"),
                    ]
                    .concat(),
                );
                waiting.expect(Reply::TimedOut(3));
                let elapsed = waiting.received_at() - sent;
                assert!(elapsed.as_millis() >= 100, "timed out after {elapsed:?}");
                assert_held(&mut client, 2);
                client.send(&release(1, token, "k"));
                client.expect(Reply::Released(1));
                let second = waiting.granted(2).token;
                waiting.send(&release(5, second, "k"));
                waiting.expect(Reply::Released(5));
                waiting.granted(4);
            },
        )
        .covers(&[(WaitEnds, Held)]),
        row(
            "a wait ends, queue full: T, and there is room again",
            |server| {
                let (mut client, _) = holder(server);
                client.send(&acquire_ms(2, 50, 1_000, "k"));
                client.expect(Reply::TimedOut(2));
                client.send(&[acquire(3, LONG_S, 1, "k"), acquire(4, LONG_S, 1, "k")].concat());
                client.expect(Reply::Busy(4));
                assert_held(&mut client, 1);
            },
        )
        .flags(ONE_WAITER)
        .covers(&[(WaitEnds, Full)]),
    ]
}
