//! Keys of other loops than the session's: its end, its limits, and rings that are full.

use std::sync::atomic::{AtomicBool, Ordering};

use super::LONG_S;
use super::sockets::fill_until_input_stops;
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;
use crate::common::wire::{RELEASE_ON_CLOSE, Reply, acquire, cancel, hello, query, release};

#[test]
fn an_error_close_tells_the_error_behind_every_reply_of_other_loops() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let endings: [(Vec<u8>, Reply); 3] = [
            (b"?".to_vec(), Reply::Error { owner: 0, code: 1 }),
            (hello(0, 0, 7, ""), Reply::Error { owner: 7, code: 7 }),
            (query(8, [b'x'; 1025]), Reply::Error { owner: 8, code: 2 }),
        ];
        for round in 0..30_u64 {
            let (ending, error) = &endings[round as usize % endings.len()];
            let mut bytes = Vec::new();
            // Some more than a turn judges.
            for number in 0..1_500 {
                bytes.extend(acquire(
                    1_000 + number,
                    0,
                    LONG_S,
                    format!("{round}-{number}"),
                ));
            }
            bytes.extend(ending);
            bytes.extend(acquire(9, 0, LONG_S, format!("{round}-behind")));
            let mut client = server.connect();
            client.send(&bytes);
            let mut replies: Vec<Reply> = std::iter::from_fn(|| client.reply_or_end()).collect();
            assert_eq!(replies.pop(), Some(*error), "the error is last");
            replies.sort_by_key(Reply::owner);
            assert_eq!(replies.len(), 1_500);
            for (owner, reply) in (1_000..).zip(replies) {
                let is_grant = matches!(reply, Reply::Acquired { owner: it, .. } if it == owner);
                assert!(is_grant, "{reply:?}");
            }
        }
    });
}

#[test]
fn s46_a_sessions_end_reaches_every_loop_it_has_keys_of_and_tells_it_how() {
    /// Of 100 keys some are on every loop.
    const KEYS: usize = 100;
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--max-session-waiters", "100"]);
        let mut observer = server.connect();
        let reset = |client: Client| client.reset();
        let finish = |mut client: Client| {
            client.finish();
            let replies = client.rest_by_owner();
            let timed_out: Vec<Reply> = (1..=KEYS as u64).map(Reply::TimedOut).collect();
            assert_eq!(replies, timed_out);
        };
        let fail = |mut client: Client| {
            client.send(b"?");
            client.expect_error(0, 1);
            client.expect_end();
        };
        type End<'a> = &'a dyn Fn(Client);
        let ends: [(&str, End<'_>, bool); 3] = [
            ("reset", &reset, false),
            ("finished", &finish, true),
            ("failed", &fail, false),
        ];
        for (name, end, is_orderly) in ends {
            for (flags, with_flag) in [(0, false), (RELEASE_ON_CLOSE, true)] {
                let keys = |what: &str| -> Vec<String> {
                    let key = |number| format!("{name}-{flags}-{what}-{number}");
                    (0..KEYS).map(key).collect()
                };
                let (own, others) = (keys("own"), keys("others"));
                observer.hold_all(&others, LONG_S);
                let mut client = server.greet(flags);
                client.hold_all(&own, LONG_S);
                for (owner, key) in (1..).zip(&others) {
                    client.send(&acquire(owner, LONG_S, LONG_S, key));
                }
                for key in &others {
                    observer.await_state(key, |state| state.waiters == 1);
                }
                end(client);
                for key in &others {
                    observer.await_state(key, |state| state.waiters == 0);
                    assert!(observer.state(key).held);
                }
                for key in &own {
                    let held = observer.state(key).held;
                    assert_eq!(held, !(is_orderly && with_flag), "{key}");
                }
            }
        }
    });
}

#[test]
fn s23_a_client_that_never_reads_answers_of_other_loops_is_read_no_more_and_loses_nothing() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--peer-timeout", "600s"]);
        let routing = server.routing();
        let mut others = server.connect_everywhere();
        for loop_index in 0..routing.loops {
            // One loop's key at a time, so that all answers come in order.
            let key = routing.key(loop_index, "k");
            let frames: Vec<u8> = (1..=1_000).flat_map(|owner| query(owner, &key)).collect();
            let mut stuffed = Client::connect_small(server.address(), 4096).unwrap();
            let sent = fill_until_input_stops(&mut stuffed, &mut others, &frames);
            let frame = query(1, &key).len();
            let owner = |number: usize| number as u64 % 1_000 + 1;
            let whole = sent / frame;
            // The last may have been cut anywhere: its rest completes it.
            let rest = query(owner(whole), &key)[sent % frame..].to_vec();
            for number in 0..whole {
                assert_eq!(stuffed.reply().owner(), owner(number));
            }
            stuffed.send(&rest);
            assert_eq!(stuffed.reply().owner(), owner(whole));
            stuffed.expect_quiet();
        }
    });
}

/// Asks for every key in turn and reads slowly: each answer exactly once, in the order
/// asked on each key.
fn flood(server: &Server, loop_index: u16, keys: &[String], count: u64) {
    let mut client = server.connect_on(loop_index, 0);
    let mut sender = client.another_handle();
    let mut next: Vec<u64> = (0..).take(keys.len()).collect();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let owners: Vec<u64> = (0..count).collect();
            for owners in owners.chunks(2_000) {
                let requests = owners.iter().flat_map(|&owner| {
                    let key = &keys[owner as usize % keys.len()];
                    match owner / keys.len() as u64 % 4 {
                        0 => query(owner, key),
                        1 => acquire(owner, 0, LONG_S, key),
                        2 => release(owner, 1, key),
                        _ => cancel(owner, 1, key),
                    }
                });
                sender.send(&requests.collect::<Vec<u8>>());
            }
            sender.finish();
        });
        for _ in 0..count {
            let reply = client.reply();
            let owner = reply.owner();
            let index = owner as usize % keys.len();
            assert_eq!(owner, next[index], "on {}", keys[index]);
            next[index] += keys.len() as u64;
            let step = owner / keys.len() as u64 % 4;
            let is_answer = match reply {
                Reply::State { held: true, .. } => step == 0,
                Reply::TimedOut(_) => step == 1,
                Reply::NotHeld(_) => step == 2,
                Reply::CancelDone {
                    cancelled: false, ..
                } => step == 3,
                _ => false,
            };
            assert!(is_answer, "{reply:?} to step {step}");
        }
        client.expect_end();
    });
}

#[test]
fn s51_full_rings_in_all_directions_answer_everything_once_ends_and_releases_included() {
    /// Many times what a ring holds.
    const COUNT: u64 = 60_000;
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let routing = server.routing();
        let loops = routing.loops;
        let mut holder = server.connect();
        let keys: Vec<String> = (0..loops).map(|index| routing.key(index, "k")).collect();
        holder.hold_all(&keys, LONG_S);
        let flooded = AtomicBool::new(true);
        let rounds = std::thread::scope(|scope| {
            let floods: Vec<_> = (0..loops)
                .flat_map(|loop_index| [loop_index; 2])
                .map(|loop_index| {
                    // All but its own; with one loop, that one.
                    let others: Vec<String> = (0..)
                        .zip(&keys)
                        .filter(|(index, _)| loops == 1 || *index != loop_index)
                        .map(|(_, key)| key.clone())
                        .collect();
                    let server = &server;
                    scope.spawn(move || flood(server, loop_index, &others, COUNT))
                })
                .collect();
            let beside = scope.spawn(|| {
                let mut rounds = 0;
                while flooded.load(Ordering::Relaxed) {
                    let here = rounds % loops;
                    let [key] = routing.some_keys(routing.next_loop(here), "beside");
                    pass_on(&server, here, &key);
                    rounds += 1;
                }
                rounds
            });
            // All of them, before one that failed is told: the other thread must end.
            let mut outcomes = Vec::new();
            for flood in floods {
                outcomes.push(flood.join());
            }
            flooded.store(false, Ordering::Relaxed);
            outcomes.into_iter().for_each(Result::unwrap);
            beside.join().unwrap()
        });
        println!("{rounds} times passed on beside the floods");
        assert!(rounds > 0);
        holder.expect_quiet();
    });
}

/// A key is held by a session of one loop, passed on at its end to one of another, and
/// released.
fn pass_on(server: &Server, here: u16, key: &str) {
    let mut first = server.connect_on(here, RELEASE_ON_CLOSE);
    first.send(&acquire(1, 0, LONG_S, key));
    first.granted(1);
    let mut second = server.connect_on(here, 0);
    second.send(&acquire(2, LONG_S, LONG_S, key));
    first.await_state(key, |state| state.waiters == 1);
    first.send(&acquire(3, LONG_S, LONG_S, key));
    first.finish();
    first.expect(Reply::TimedOut(3));
    first.expect_end();
    let token = second.granted(2).token;
    second.send(&release(4, token, key));
    second.expect(Reply::Released(4));
    assert!(!second.state(key).held);
    second.finish();
    second.expect_end();
}
