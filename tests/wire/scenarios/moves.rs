//! Sessions that move to the loop their Hello wants, with requests already behind it.

use super::{LONG_S, random};
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::routing::Routing;
use crate::common::server::{HANG_GUARD, Server};
use crate::common::wire::{
    ANY_LOOP, RELEASE_ON_CLOSE, Reply, acquire, hello, ping, query, release,
};
use std::time::Instant;

/// A key of each loop.
fn a_key_of_each_loop(routing: &Routing, prefix: &str) -> Vec<String> {
    let loops = 0..routing.loops;
    loops.map(|index| routing.key(index, prefix)).collect()
}

/// Requests on every key, interleaved: the owner says which key and which step.
fn requests(keys: &[String]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for step in 0..5 {
        for (index, key) in (0..).zip(keys) {
            let owner = 10 * index + step;
            bytes.extend(match step {
                0 | 2 | 4 => query(owner, key),
                _ => acquire(owner, 0, LONG_S, key),
            });
        }
    }
    bytes.extend(ping(9_999));
    bytes
}

/// Reads what [`requests`] must be answered on keys that were free: on each key in the
/// order asked, nothing twice. Returns the tokens.
#[track_caller]
fn assert_in_order(client: &mut Client, keys: &[String]) -> Vec<u64> {
    let (mut steps, mut tokens) = (vec![0; keys.len()], vec![0; keys.len()]);
    let mut pongs = 0;
    for _ in 0..5 * keys.len() + 1 {
        let reply = client.reply();
        if reply == Reply::Pong(9_999) {
            pongs += 1;
            continue;
        }
        let (index, step) = (reply.owner() as usize / 10, reply.owner() % 10);
        match (step, reply) {
            (0, Reply::State { held: false, .. })
            | (2 | 4, Reply::State { held: true, .. })
            | (3, Reply::TimedOut(_)) => {}
            (1, Reply::Acquired { token, .. }) => tokens[index] = token,
            (_, other) => panic!("{other:?}"),
        }
        assert_eq!(steps[index], step, "out of order on {}", keys[index]);
        steps[index] += 1;
    }
    assert_eq!((pongs, steps), (1, vec![5; keys.len()]));
    tokens
}

/// Gives the keys back.
#[track_caller]
fn release_all(client: &mut Client, keys: &[String], tokens: &[u64]) {
    for (key, token) in keys.iter().zip(tokens) {
        client.send(&release(1, *token, key));
        client.expect(Reply::Released(1));
    }
}

#[test]
fn s50_a_session_that_moves_loses_nothing_and_keeps_its_order_wherever_it_is_split() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let keys = a_key_of_each_loop(&server.routing(), "k");
        let mut witnesses = server.connect_everywhere();
        let length = hello(0, 0, 1, "").len() + requests(&keys).len();
        for split in 1..length {
            let wanted = split as u16 % configuration.loops;
            let bytes = [hello(0, wanted, 1, ""), requests(&keys)].concat();
            // The second part comes when the first was read, or while it is.
            for apart in [true, false] {
                let mut client = server.connect();
                client.send(&bytes[..split]);
                if apart {
                    for witness in &mut witnesses {
                        witness.expect_quiet();
                        witness.expect_quiet();
                    }
                }
                client.send(&bytes[split..]);
                assert_eq!(client.welcome().loop_index, wanted);
                let tokens = assert_in_order(&mut client, &keys);
                release_all(&mut client, &keys, &tokens);
                client.finish();
                client.expect_end();
            }
        }
    });
}

#[test]
fn s50_more_requests_than_any_buffer_or_ring_holds_move_with_their_session() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let keys = a_key_of_each_loop(&server.routing(), "k");
        const COUNT: u64 = 20_000;
        for wanted in 0..configuration.loops {
            let mut bytes = hello(0, wanted, 1, "");
            for number in 0..COUNT {
                bytes.extend(query(number, &keys[number as usize % keys.len()]));
            }
            let mut client = server.connect();
            let mut sender = client.another_handle();
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    sender.send(&bytes);
                    sender.finish();
                });
                assert_eq!(client.welcome().loop_index, wanted);
                let mut next: Vec<u64> = (0..).take(keys.len()).collect();
                for _ in 0..COUNT {
                    let owner = client.reply().owner();
                    let next = &mut next[owner as usize % keys.len()];
                    assert_eq!(owner, *next);
                    *next += keys.len() as u64;
                }
                client.expect_end();
            });
        }
    });
}

#[test]
fn s50_a_fin_right_behind_waits_for_the_replies_of_all_loops() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let routing = server.routing();
        let keys = a_key_of_each_loop(&routing, "k");
        let held = a_key_of_each_loop(&routing, "held");
        let mut other = server.connect();
        other.hold_all(&held, LONG_S);
        for round in 0..100 {
            let wanted = round % configuration.loops;
            let mut client = server.connect();
            let mut bytes = hello(RELEASE_ON_CLOSE, wanted, 0, "");
            for (index, (key, held)) in (0..).zip(keys.iter().zip(&held)) {
                bytes.extend(acquire(100 + index, 0, LONG_S, key));
                bytes.extend(acquire(200 + index, LONG_S, LONG_S, held));
            }
            client.send(&bytes);
            client.finish();
            assert_eq!(client.welcome().loop_index, wanted);
            let replies = client.rest_by_owner();
            assert_eq!(replies.len(), 2 * keys.len(), "{replies:?}");
            for (index, reply) in (0..).zip(&replies[..keys.len()]) {
                let is_grant =
                    matches!(reply, Reply::Acquired { owner, .. } if *owner == 100 + index);
                assert!(is_grant, "{reply:?}");
            }
            for (index, reply) in (0..).zip(&replies[keys.len()..]) {
                assert_eq!(*reply, Reply::TimedOut(200 + index));
            }
            // RELEASE_ON_CLOSE came with it: the next round finds its keys free again.
            for (key, held) in keys.iter().zip(&held) {
                assert!(!other.state(key).held);
                assert_eq!(other.state(held).waiters, 0);
            }
        }
    });
}

#[test]
fn s50_a_reset_right_behind_leaves_nothing_queued_and_no_place_taken() {
    in_every_configuration(|configuration| {
        // Room for the observer and one session at a time.
        let server = Server::start(configuration, &["--max-connections", "2"]);
        let routing = server.routing();
        let held = a_key_of_each_loop(&routing, "held");
        let guard = Instant::now() + HANG_GUARD;
        let mut observer = server.connect();
        while !observer.answers_ping() {
            // The session that asked for the routing may still be on its way out.
            assert!(Instant::now() < guard, "nobody is let in");
            observer = server.connect();
        }
        observer.hold_all(&held, LONG_S);
        let mut seed = 50;
        for round in 0..200_u16 {
            let mut bytes = hello(RELEASE_ON_CLOSE, round % configuration.loops, 0, "");
            for key in &held {
                bytes.extend(acquire(2, LONG_S, LONG_S, key));
            }
            // The one before is gone when this one is served.
            let guard = Instant::now() + HANG_GUARD;
            loop {
                assert!(Instant::now() < guard, "its place is never free again");
                let mut client = server.connect();
                if client.send_some(&bytes).is_err() {
                    continue;
                }
                // Sometimes the reset meets the session after its move, mostly before.
                if random(&mut seed).is_multiple_of(4) {
                    client.read_bytes(1);
                }
                client.reset();
                break;
            }
            if round % 10 == 0 {
                while !server.connect().answers_ping() {
                    assert!(Instant::now() < guard, "its place is never free again");
                }
                for key in &held {
                    observer.await_state(key, |state| state.waiters == 0);
                }
            }
        }
    });
}

#[test]
fn s50_what_hello_is_refused_for_it_is_refused_for_whatever_loop_it_wants() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut observer = server.connect();
        for wanted in [configuration.loops, ANY_LOOP - 1] {
            let mut client = server.connect();
            client.send(&[hello(0, wanted, 1, ""), acquire(2, 0, LONG_S, "k")].concat());
            client.expect_error(1, 7);
            client.expect_end();
        }
        for wanted in 0..configuration.loops {
            // Once moved, it is no first frame any more.
            let mut client = server.connect();
            let greeting = hello(0, wanted, 1, "");
            let bytes = [&greeting[..], &greeting, &acquire(2, 0, LONG_S, "k")].concat();
            client.send(&bytes);
            assert_eq!(client.welcome().loop_index, wanted);
            client.expect_error(1, 7);
            client.expect_end();
            // A required flag that nobody knows, and lost framing behind.
            let mut client = server.connect();
            client.send(&hello(0x10, wanted, 1, ""));
            client.expect_error(1, 7);
            client.expect_end();
            let mut client = server.connect();
            client.send(&[&greeting[..], b"?"].concat());
            assert_eq!(client.welcome().loop_index, wanted);
            client.expect_error(0, 1);
            client.expect_end();
        }
        assert!(!observer.state("k").held, "nothing behind took effect");
    });
}

#[test]
fn s50_credentials_are_checked_before_and_hold_after_a_move() {
    const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/wire/credentials.txt");
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--credentials-file", FILE]);
        for wanted in 0..configuration.loops {
            for wrong in ["", "web:wrong", "nobody:s3cret"] {
                let mut client = server.connect();
                let bytes = [hello(0, wanted, 1, wrong), acquire(2, 0, LONG_S, "k")];
                client.send(&bytes.concat());
                client.expect_error(1, 5);
                client.expect_end();
            }
            let mut client = server.connect();
            client.send(&[hello(0, wanted, 1, "web:s3cret"), query(2, "k")].concat());
            assert_eq!(client.welcome().loop_index, wanted);
            assert!(matches!(
                client.reply(),
                Reply::State {
                    owner: 2,
                    held: false,
                    ..
                }
            ));
        }
    });
}

#[test]
fn s50_s27_moves_of_many_clients_at_once_lose_nobody_and_no_count() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let routing = server.routing();
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (server, routing) = (&server, &routing);
                scope.spawn(move || {
                    let keys = a_key_of_each_loop(routing, &format!("k{thread}"));
                    let mut seed = 1_000 + thread;
                    for _ in 0..50 {
                        let wanted = random(&mut seed) as u16 % configuration.loops;
                        let mut client = server.connect();
                        client.send(&[hello(0, wanted, 1, ""), requests(&keys)].concat());
                        assert_eq!(client.welcome().loop_index, wanted);
                        let tokens = assert_in_order(&mut client, &keys);
                        release_all(&mut client, &keys, &tokens);
                        client.finish();
                        client.expect_end();
                    }
                });
            }
        });
        // With every loop's sessions counted right, new ones are spread exactly.
        let mut witnesses = server.connect_everywhere();
        for witness in &mut witnesses {
            witness.expect_quiet();
        }
        let mut counts = vec![1; configuration.loops.into()];
        let sessions: Vec<Client> = (0..4 * configuration.loops)
            .map(|_| {
                let mut client = server.connect();
                client.send(&hello(0, ANY_LOOP, 1, ""));
                counts[usize::from(client.welcome().loop_index)] += 1;
                client
            })
            .collect();
        assert_eq!(counts, vec![5; counts.len()]);
        drop(sessions);
    });
}
