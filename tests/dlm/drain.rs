//! A drain: this port stays open, so that holders can unlock.

use std::time::Instant;

use rustix::process::Signal;

use super::exchange::{
    Connection, ask, bare, data, erase, expect, get, line, lock, own, put, start, test_lock, unlock,
};
use crate::common::configuration::in_every_configuration;
use crate::common::server::{HANG_GUARD, Server};

const FLAGS: [&str; 2] = ["--drain-seconds", "600"];

/// Begins a drain and waits until it is in force on every loop: nobody is granted a
/// free name.
fn begin_drain(server: &Server) {
    let routing = server.routing();
    server.signal(Signal::TERM);
    let guard = Instant::now() + HANG_GUARD;
    let is_granted = |name: String| {
        let probe = lock("probe", &name, "0.001");
        ask(server, &probe) != bare("NotOwner")
    };
    for loop_index in 0..routing.loops {
        let mut names = routing.keys(loop_index, "probe");
        while names.next().is_some_and(is_granted) {
            assert!(Instant::now() < guard, "the drain does not begin");
        }
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

/// The answer to the last unlock comes though the drain ends with it, on another loop
/// than the one that is asked: in some of the rounds, as the kernel chooses.
#[test]
fn a_drain_waits_for_the_locks_of_every_loop_and_answers_the_last() {
    in_every_configuration(|configuration| {
        for _ in 0..6 {
            let mut server = start(configuration, &FLAGS);
            let routing = server.routing();
            let names: Vec<String> = (0..routing.loops)
                .map(|loop_index| routing.key(loop_index, "k"))
                .collect();
            for name in &names {
                expect(&server, &lock("A", name, "100"), &own("Locked", "A"));
            }
            begin_drain(&server);
            for (index, name) in names.iter().enumerate() {
                // Whatever loop the requests come to, the locks that are left can be had.
                for later in &names[index..] {
                    expect(&server, &lock("A", later, "300"), &own("Locked", "A"));
                }
                expect(&server, &unlock("A", name), &own("Unlocked", "A"));
            }
            assert_eq!(server.wait().code, Some(0));
        }
    });
}
