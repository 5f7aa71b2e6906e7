//! A drain: this port stays open, so that holders can unlock.

use std::time::Instant;

use rustix::process::Signal;

use super::exchange::{
    Connection, ask, bare, data, erase, expect, get, line, lock, own, put, start, test_lock, unlock,
};
use crate::common::configuration::in_every_configuration;
use crate::common::server::{HANG_GUARD, Server};

const FLAGS: [&str; 2] = ["--drain-seconds", "600"];

/// Begins a drain and waits until it is in force: nobody is granted a free name.
fn begin_drain(server: &Server) {
    server.signal(Signal::TERM);
    let guard = Instant::now() + HANG_GUARD;
    let is_granted = |number: u32| {
        let probe = lock("probe", &format!("probe {number}"), "0.001");
        ask(server, &probe) != bare("NotOwner")
    };
    for number in 0.. {
        if !is_granted(number) {
            return;
        }
        assert!(Instant::now() < guard, "the drain does not begin");
    }
}

#[test]
fn holders_renew_and_unlock_while_the_server_drains() {
    in_every_configuration(|configuration| {
        let mut server = start(configuration, &FLAGS);
        expect(&server, &lock("A", "k", "100"), &own("Locked", "A"));
        expect(&server, &put("A", "k", "100", "x"), &own("Done", "A"));
        expect(&server, &lock("B", "l", "100"), &own("Locked", "B"));
        let mut native = server.connect();
        // It is served: a drain turns away those that are not yet.
        native.expect_quiet();
        let mut early = Connection::open(&server);
        begin_drain(&server);

        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        assert!(native.state("k").remaining_ms > 200_000);
        expect(&server, &lock("A", "new", "30"), &bare("NotOwner"));
        expect(&server, &lock("B", "k", "30"), &bare("NotOwner"));
        expect(&server, &test_lock("A", "k"), &own("Locked", "A"));
        expect(&server, &test_lock("A", "new"), &bare("Unlocked"));
        expect(&server, &get("A", "k"), &data("A", "x"));
        expect(&server, &unlock("A", "new"), &bare("Unlocked"));
        expect(&server, &erase("A", "k"), &own("Done", "A"));
        // Connections from before are served as well.
        early.send(&line(&unlock("A", "k")));
        assert_eq!(early.answer(), own("Unlocked", "A"));
        expect(&server, &lock("A", "k", "30"), &bare("NotOwner"));
        expect(&server, &unlock("B", "l"), &own("Unlocked", "B"));
        drop(native);
        assert_eq!(server.wait().code, Some(0));
    });
}

#[test]
fn a_drain_is_over_when_the_last_lock_is() {
    in_every_configuration(|configuration| {
        let mut server = start(configuration, &FLAGS);
        expect(&server, &lock("A", "k", "300"), &own("Locked", "A"));
        // Data keeps no drain waiting, and neither does a silent connection.
        expect(&server, &put("B", "k", "300", "x"), &own("Done", "B"));
        let mut silent = Connection::open(&server);
        begin_drain(&server);
        expect(&server, &unlock("A", "k"), &own("Unlocked", "A"));
        silent.expect_silent_end();
        drop(silent);
        assert_eq!(server.wait().code, Some(0));
    });
}
