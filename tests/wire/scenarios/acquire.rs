//! Acquires against cancels, closes, and the end of their waits.

use std::time::Duration;

use super::LONG_S;
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;
use crate::common::wire::{Reply, acquire, acquire_ms, cancel, extend, release};

/// "k" of this round held by one session and queued for by another.
struct Contended {
    key: String,
    holder: Client,
    token: u64,
    waiting: Client,
}

impl Contended {
    fn new(server: &Server, key: String, waiter_lease_ms: u32) -> Contended {
        let (mut holder, mut waiting) = (server.connect(), server.connect());
        holder.send(&acquire(1, 0, LONG_S, &key));
        let token = holder.granted(1).token;
        waiting.send(&acquire_ms(2, 250_000, waiter_lease_ms, &key));
        waiting.await_state(&key, |state| state.waiters == 1);
        Contended {
            key,
            holder,
            token,
            waiting,
        }
    }

    /// The holder releases while the waiter does something else.
    fn release_against(&mut self, other: impl FnOnce(&mut Client, &str) + Send) {
        let Contended {
            key,
            holder,
            token,
            waiting,
        } = self;
        std::thread::scope(|scope| {
            scope.spawn(|| other(waiting, key));
            holder.send(&release(3, *token, &*key));
        });
        holder.expect(Reply::Released(3));
    }
}

#[test]
fn s01_s02_a_cancel_that_races_the_grant_is_told_what_is_true() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut cancelled_rounds = 0;
        const ROUNDS: u32 = 500;
        for round in 0..ROUNDS {
            let mut race = Contended::new(&server, format!("k{round}"), 250_000);
            race.release_against(|waiting, key| {
                waiting.send(&cancel(4, 2, key));
            });
            let (first, second) = (race.waiting.reply(), race.waiting.reply());
            let cancelled = match first {
                Reply::TimedOut(2) => true,
                Reply::Acquired { owner: 2, .. } => false,
                other => panic!("{other:?}"),
            };
            assert_eq!(
                second,
                Reply::CancelDone {
                    owner: 4,
                    cancelled
                }
            );
            assert_eq!(race.holder.state(&race.key).held, !cancelled);
            // Nothing comes after it, a late success least of all.
            race.waiting.expect_quiet();
            cancelled_rounds += u32::from(cancelled);
        }
        println!("cancelled {cancelled_rounds} of {ROUNDS}");
    });
}

#[test]
fn s01_an_orderly_close_that_races_the_grant_leaves_what_was_told() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        for round in 0..300 {
            let mut race = Contended::new(&server, format!("k{round}"), 250_000);
            race.release_against(|waiting, _| waiting.finish());
            match race.waiting.reply() {
                Reply::TimedOut(2) => assert!(!race.holder.state(&race.key).held),
                Reply::Acquired {
                    owner: 2, token, ..
                } => {
                    race.holder.send(&release(5, token, &race.key));
                    race.holder.expect(Reply::Released(5));
                }
                other => panic!("{other:?}"),
            }
            race.waiting.expect_end();
        }
    });
}

#[test]
fn s01_a_reset_that_races_the_grant_leaves_no_holder_beyond_its_lease() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        for round in 0..300 {
            let Contended {
                key,
                mut holder,
                token,
                waiting,
            } = Contended::new(&server, format!("k{round}"), 30);
            std::thread::scope(|scope| {
                scope.spawn(|| waiting.reset());
                holder.send(&release(3, token, &key));
            });
            holder.expect(Reply::Released(3));
            holder.send(&acquire(4, LONG_S, LONG_S, &key));
            holder.granted(4);
        }
    });
}

/// Keys whose races run side by side in one round.
const KEYS: u64 = 64;

/// Reads the fate of an acquire of every key, checks it against what the server
/// holds, and leaves every key free. Returns how many were granted.
fn assert_agreement(
    waiting: &mut Client,
    keys: &[String],
    wait_ms: impl Fn(u64) -> u32,
    sent: std::time::Instant,
) -> usize {
    let mut tokens = vec![None; keys.len()];
    for _ in keys {
        match waiting.reply() {
            Reply::Acquired {
                owner,
                token,
                waited_ms,
            } => {
                // A waiter is granted only while now is before its deadline.
                assert!(waited_ms < wait_ms(owner));
                tokens[owner as usize - 1] = Some(token);
            }
            Reply::TimedOut(owner) => {
                let waited = waiting.received_at() - sent;
                let wait = Duration::from_millis(wait_ms(owner).into());
                assert!(waited >= wait, "a wait of {wait:?} ended after {waited:?}");
            }
            other => panic!("{other:?}"),
        }
    }
    for (key, token) in keys.iter().zip(&tokens) {
        match token {
            // Its lease is so long that only a release frees it.
            Some(token) => {
                assert!(waiting.state(key).held);
                waiting.send(&release(9, *token, key));
                waiting.expect(Reply::Released(9));
            }
            // The holder's short lease ends; were the waiter granted in secret,
            // the key would stay held.
            None => waiting.await_state(key, |state| !state.held),
        }
    }
    tokens.iter().flatten().count()
}

#[test]
fn s04_a_lease_that_ends_as_the_wait_does_leaves_no_doubt_who_holds() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut holder, mut waiting) = (server.connect(), server.connect());
        let (mut granted, mut races) = (0, 0);
        for round in 0..100 {
            let keys: Vec<String> = (0..KEYS).map(|key| format!("{round}-{key}")).collect();
            let wait_ms = |owner: u64| 6 + (owner % 4) as u32;
            let leases = keys.iter().map(|key| acquire_ms(1, 0, 8, key));
            let waits = (1..).zip(&keys);
            let waits = waits.map(|(owner, key)| acquire_ms(owner, wait_ms(owner), 250_000, key));
            let waits = waits.collect::<Vec<_>>().concat();
            holder.send(&leases.collect::<Vec<_>>().concat());
            let sent = waiting.send(&waits);
            for _ in &keys {
                // Either session may come first; the other then queues or times out.
                match holder.reply() {
                    Reply::Acquired { owner: 1, .. } | Reply::TimedOut(1) => {}
                    other => panic!("{other:?}"),
                }
            }
            granted += assert_agreement(&mut waiting, &keys, wait_ms, sent);
            races += keys.len();
        }
        println!("{granted} of {races} waits ended in a grant");
    });
}

#[test]
fn s04_a_release_that_comes_as_the_wait_ends_leaves_no_doubt_who_holds() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut holder, mut waiting) = (server.connect(), server.connect());
        let mut clock = server.connect();
        clock.send(&acquire(1, 0, LONG_S, "clock"));
        clock.granted(1);
        let (mut granted, mut races) = (0, 0);
        for round in 0..150 {
            let keys: Vec<String> = (0..KEYS).map(|key| format!("{round}-{key}")).collect();
            let tokens = holder.hold_all(&keys, LONG_S);
            let releases = keys.iter().zip(tokens);
            let releases = releases.map(|(key, token)| release(2, token, key));
            let releases = releases.collect::<Vec<_>>().concat();
            let wait_ms = |owner: u64| 3 + (owner % 3) as u32;
            let waits = (1..).zip(&keys);
            let waits = waits.map(|(owner, key)| acquire_ms(owner, wait_ms(owner), 250_000, key));
            let waits = waits.collect::<Vec<_>>().concat();
            // The end of a wait like theirs says when to release.
            clock.send(&acquire_ms(2, 4, 1, "clock"));
            let sent = waiting.send(&waits);
            clock.expect(Reply::TimedOut(2));
            holder.send(&releases);
            for _ in &keys {
                holder.expect(Reply::Released(2));
            }
            granted += assert_agreement(&mut waiting, &keys, wait_ms, sent);
            races += keys.len();
        }
        println!("{granted} of {races} waits ended in a grant");
    });
}

#[test]
fn s05_a_waiters_lease_counts_from_its_grant() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut first, mut second) = (server.connect(), server.connect());
        let mut third = server.connect();
        first.send(&acquire_ms(1, 0, 400, "k"));
        let before = first.granted(1).token;
        let sent = second.send(&acquire_ms(2, 20_000, 500, "k"));
        second.await_state("k", |state| state.waiters == 1);
        third.send(&acquire(3, LONG_S, LONG_S, "k"));
        let grant = second.granted(2);
        assert!(grant.token > before);
        third.granted(3);
        let lease_end = sent + Duration::from_millis(u64::from(grant.waited_ms) + 500);
        assert!(
            third.received_at() >= lease_end,
            "the waiting cost it lease"
        );
    });
}

#[test]
fn s06_an_acquire_without_usable_lease_makes_no_holder() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--max-lease", "10"]);
        let mut client = server.connect();
        for (wait_ms, lease_ms) in [(0, 0), (1_000, 0), (0, 10_001), (1_000, u32::MAX)] {
            client.send(&acquire_ms(1, wait_ms, lease_ms, "k"));
            client.expect_error(1, 4);
            client.send(&acquire(2, (wait_ms / 1_000) as u8, 0, "k"));
            client.expect_error(2, 4);
            assert!(!client.state("k").held);
        }
        // Nor does one make a waiter, or lengthen a holder's lease.
        client.send(&acquire(3, 0, 5, "k"));
        let token = client.granted(3).token;
        client.send(&acquire(4, 1, 0, "k"));
        client.expect_error(4, 4);
        client.send(&extend(5, 0, token, "k"));
        client.expect_error(5, 4);
        let state = client.state("k");
        assert_eq!(state.waiters, 0);
        assert!(state.remaining_ms <= 5_000);
    });
}
