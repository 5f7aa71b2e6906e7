//! The JackrabbitDLM protocol over a restart: in grace, and the long locks that go on.

use super::{expect_taken, kill, start, take};
use crate::common::configuration::{Configuration, in_every_configuration};
use crate::common::directory::Directory;
use crate::common::wire::{Reply, acquire, acquire_ms, release};
use crate::exchange::{bare, data, erase, expect, get, lock, own, put, test_lock, unlock};

#[test]
fn in_grace_nothing_of_an_unknown_key_is_the_asker_s() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        expect(&server, &lock("A", "k", "60"), &own("Locked", "A"));
        kill(server);
        let server = start(configuration, state.path(), &[]);
        for id in ["A", "B"] {
            expect(&server, &lock(id, "k", "60"), &bare("NotOwner"));
            expect(&server, &test_lock(id, "k"), &bare("NotOwner"));
            expect(&server, &unlock(id, "k"), &bare("Unlocked"));
        }
        expect(&server, &get("A", "k"), &bare("NotFound"));
        expect(&server, &erase("A", "k"), &bare("NotFound"));
        expect(&server, &put("A", "k", "60", "x"), &own("Done", "A"));
        expect(&server, &get("A", "k"), &data("A", "x"));
        expect(&server, &test_lock("A", "k"), &bare("NotOwner"));
        // Somebody who waits for it changes nothing.
        let mut native = server.connect();
        native.send(&acquire(1, 60, 1, "k"));
        native.await_state("k", |state| state.waiters == 1);
        expect(&server, &lock("A", "k", "60"), &bare("NotOwner"));
        expect(&server, &unlock("A", "k"), &bare("Unlocked"));
        assert_eq!(native.state("k").waiters, 1);
    });
}

#[test]
fn a_lock_longer_than_any_grace_goes_on_after_a_crash() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        expect(&server, &lock("A", "k", "3000"), &own("Locked", "A"));
        expect(&server, &lock("A", "released", "3000"), &own("Locked", "A"));
        expect(&server, &unlock("A", "released"), &own("Unlocked", "A"));
        kill(server);
        // On another number of loops, too.
        let loops = 5 - configuration.loops;
        let configuration = Configuration {
            loops,
            ..configuration
        };
        let server = start(configuration, state.path(), &[]);
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
        expect(&server, &lock("B", "k", "60"), &bare("NotOwner"));
        let mut native = server.connect();
        expect_taken(&mut native, "k");
        let remaining_ms = native.state("k").remaining_ms;
        assert!(
            (2_900_000..=3_000_000).contains(&remaining_ms),
            "{remaining_ms}"
        );
        // What was released is free at once: no short lease was told of.
        take(&mut native, "released", 1_000);
        native.send(&acquire(1, 200, 1, "k"));
        native.await_state("k", |state| state.waiters == 1);
        expect(&server, &unlock("A", "k"), &own("Unlocked", "A"));
        native.granted(1);
        kill(server);
        let server = start(configuration, state.path(), &["--grace", "skip"]);
        expect(&server, &test_lock("A", "k"), &bare("Unlocked"));
    });
}

#[test]
fn a_short_lock_that_was_made_long_goes_on_after_a_crash() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        expect(&server, &lock("A", "k", "1"), &own("Locked", "A"));
        expect(&server, &lock("A", "k", "2000"), &own("Locked", "A"));
        expect(&server, &lock("B", "l", "1"), &own("Locked", "B"));
        expect(&server, &put("B", "l", "2000", "x"), &own("Done", "B"));
        kill(server);
        let server = start(configuration, state.path(), &[]);
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
        expect(&server, &test_lock("B", "l"), &own("Locked", "B"));
        // What is stored does not go on.
        expect(&server, &get("B", "l"), &own("NoData", "B"));
    });
}

#[test]
fn a_long_lock_goes_on_after_a_drain_and_nothing_waits_for_it() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let mut server = start(configuration, state.path(), &["--drain-seconds", "0"]);
        expect(&server, &lock("A", "k", "3000"), &own("Locked", "A"));
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait().code, Some(0));
        let server = start(configuration, state.path(), &[]);
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
        let mut native = server.connect();
        let lease = take(&mut native, "other", 1_000);
        native.send(&release(1, lease.token, "other"));
        native.expect(Reply::Released(1));
        native.send(&acquire_ms(2, 0, 1_000, "k"));
        native.expect(Reply::TimedOut(2));
    });
}
