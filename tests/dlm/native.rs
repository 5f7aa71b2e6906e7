//! One lock table: a DLM lock and a native lock of the same name are one lock.

use std::time::{Duration, Instant};

use super::exchange::{
    Connection, ask, await_answer, bare, data, expect, get, line, lock, own, put, start, test_lock,
    unlock,
};
use crate::common::configuration::in_every_configuration;
use crate::common::wire::{Reply, acquire, release};

const LONG_S: u8 = 250;

#[test]
fn what_a_native_client_holds_is_not_the_asker_s() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut native = server.connect();
        native.send(&acquire(1, 0, LONG_S, "k"));
        let token = native.granted(1).token;
        expect(&server, &lock("A", "k", "30"), &bare("NotOwner"));
        expect(&server, &test_lock("A", "k"), &bare("NotOwner"));
        expect(&server, &unlock("A", "k"), &bare("NotOwner"));
        assert!(native.state("k").held);
        // Data is another slot.
        expect(&server, &get("A", "k"), &bare("NotFound"));
        expect(&server, &put("A", "k", "30", "x"), &own("Done", "A"));
        expect(&server, &unlock("A", "k"), &bare("NotOwner"));
        expect(&server, &get("A", "k"), &data("A", "x"));

        native.send(&release(2, token, "k"));
        native.expect(Reply::Released(2));
        expect(&server, &test_lock("A", "k"), &bare("Unlocked"));
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
    });
}

#[test]
fn a_native_client_sees_what_a_dlm_client_holds() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut native = server.connect();
        assert!(!native.state("k").held);
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
        let state = native.state("k");
        assert!(state.held && state.remaining_ms <= 30_000);
        assert_eq!(state.waiters, 0);
        native.send(&acquire(1, 0, LONG_S, "k"));
        native.expect(Reply::TimedOut(1));
        // Data alone is no lock.
        expect(&server, &put("A", "l", "30", "x"), &own("Done", "A"));
        assert!(!native.state("l").held);
        expect(&server, &unlock("A", "k"), &own("Unlocked", "A"));
        assert!(!native.state("k").held);
    });
}

#[test]
fn an_unlock_grants_the_oldest_native_waiter() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        let mut first = server.connect();
        first.send(&acquire(1, LONG_S, LONG_S, "k"));
        first.await_state("k", |state| state.waiters == 1);
        let mut second = server.connect();
        second.send(&acquire(2, LONG_S, LONG_S, "k"));
        second.await_state("k", |state| state.waiters == 2);

        expect(&server, &unlock("B", "k"), &bare("NotOwner"));
        first.expect_quiet();
        expect(&server, &unlock("A", "k"), &own("Unlocked", "A"));
        let token = first.granted(1).token;
        second.expect_quiet();
        // It is the waiter's now, and nobody's to unlock.
        expect(&server, &unlock("A", "k"), &bare("NotOwner"));
        expect(&server, &lock("A", "k", "30"), &bare("NotOwner"));
        first.send(&release(3, token, "k"));
        first.expect(Reply::Released(3));
        assert!(second.granted(2).token > token);
    });
}

#[test]
fn a_lock_never_overtakes_native_waiters() {
    const TTL: Duration = Duration::from_millis(1_500);
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let locked_at = Instant::now();
        expect(&server, &lock("A", "k", "1.5"), &own("Locked", "A"));
        let mut waiting = server.connect();
        waiting.send(&acquire(1, LONG_S, LONG_S, "k"));
        waiting.await_state("k", |state| state.waiters == 1);
        let waiter = std::thread::spawn(move || {
            waiting.granted(1);
            assert!(locked_at.elapsed() >= TTL, "granted before the lock's end");
            waiting
        });
        // Before the lock's end and after it.
        loop {
            let is_granted = waiter.is_finished();
            expect(&server, &lock("B", "k", "30"), &bare("NotOwner"));
            if is_granted {
                break;
            }
        }
        expect(&server, &lock("A", "k", "30"), &bare("NotOwner"));
        let mut holder = waiter.join().unwrap();
        assert!(holder.state("k").held);
    });
}

#[test]
fn a_relock_keeps_native_waiters_waiting() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        expect(&server, &lock("A", "k", "100"), &own("Locked", "A"));
        let mut waiting = server.connect();
        waiting.send(&acquire(1, LONG_S, LONG_S, "k"));
        waiting.await_state("k", |state| state.waiters == 1);
        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        assert!(waiting.state("k").remaining_ms > 200_000);
        expect(&server, &lock("B", "k", "300"), &bare("NotOwner"));
        waiting.expect_quiet();
    });
}

#[test]
fn every_dlm_grant_takes_a_token() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut native = server.connect();
        let mut token_of_next_grant = |owner| {
            native.send(&acquire(owner, 0, LONG_S, "k"));
            let token = native.granted(owner).token;
            native.send(&release(owner, token, "k"));
            native.expect(Reply::Released(owner));
            token
        };
        let before = token_of_next_grant(1);
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
        expect(&server, &unlock("A", "k"), &own("Unlocked", "A"));
        // The one between is the DLM client's.
        assert!(token_of_next_grant(2) >= before + 2);
    });
}

/// No native request has authority over a DLM client's lock, its own token or not.
#[test]
fn no_token_releases_or_extends_a_dlm_lock() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut native = server.connect();
        native.send(&acquire(1, 0, LONG_S, "k"));
        let token = native.granted(1).token;
        native.send(&release(2, token, "k"));
        native.expect(Reply::Released(2));
        expect(&server, &lock("A", "k", "30"), &own("Locked", "A"));
        native.send(&release(3, token, "k"));
        native.expect(Reply::NotHeld(3));
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
    });
}

/// The two protocols race for one key: at any time one holds it.
#[test]
fn racing_clients_exclude_each_other() {
    const ROUNDS: usize = 100;
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let inside = std::sync::atomic::AtomicBool::new(false);
        let enter = || {
            use std::sync::atomic::Ordering::SeqCst;
            assert!(!inside.swap(true, SeqCst), "two are inside");
            std::thread::yield_now();
            inside.store(false, SeqCst);
        };
        std::thread::scope(|scope| {
            for id in ["A", "B"] {
                let (server, enter) = (&server, &enter);
                scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        await_answer(server, &lock(id, "k", "300"), &own("Locked", id));
                        enter();
                        assert_eq!(ask(server, &unlock(id, "k")), own("Unlocked", id));
                    }
                });
            }
            for _ in 0..2 {
                let (server, enter) = (&server, &enter);
                scope.spawn(move || {
                    let mut native = server.connect();
                    for owner in (1..=2 * ROUNDS as u64).step_by(2) {
                        native.send(&acquire(owner, LONG_S, LONG_S, "k"));
                        let token = native.granted(owner).token;
                        enter();
                        native.send(&release(owner + 1, token, "k"));
                        native.expect(Reply::Released(owner + 1));
                    }
                });
            }
        });
        assert!(!server.connect().state("k").held);
    });
}

/// Scenario 47: an answer is lost with its connection, the Lock is asked again on
/// another one; nothing takes the grant away.
#[test]
fn s47_a_lock_whose_answer_was_lost_stays_and_is_renewed() {
    in_every_configuration(|configuration| {
        let server = start(configuration, &[]);
        let mut native = server.connect();
        type Loss = fn(Connection);
        let losses: [(&str, Loss); 2] = [("reset", Connection::reset), ("closed", drop)];
        let routing = server.routing();
        // Names of each loop: the connection is on that one or on another.
        let names = |prefix| -> Vec<String> {
            let on = |loop_index| routing.keys(loop_index, prefix).take(8);
            (0..routing.loops).flat_map(on).collect()
        };
        let cases =
            losses.map(|(prefix, lose)| names(prefix).into_iter().map(move |it| (it, lose)));
        for (name, lose) in cases.into_iter().flatten() {
            let name = name.as_str();
            let mut connection = Connection::open(&server);
            connection.send(&line(&lock("A", name, "300")));
            native.await_state(name, |state| state.held);
            lose(connection);
            expect(&server, &lock("B", name, "30"), &bare("NotOwner"));
            expect(&server, &lock("A", name, "30"), &own("Locked", "A"));
            expect(&server, &test_lock("A", name), &own("Locked", "A"));
            assert!(native.state(name).remaining_ms > 200_000);
            expect(&server, &unlock("A", name), &own("Unlocked", "A"));
        }
    });
}
