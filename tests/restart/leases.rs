//! Leases from before an end, whatever end it was.

use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::process::Signal;

use super::{expect_taken, kill, start, take, take_after};
use crate::common::configuration::in_every_configuration;
use crate::common::directory::Directory;
use crate::common::wire::{Reply, acquire_ms, extend_ms, query, release};

#[test]
fn s32_after_a_crash_no_key_is_granted_while_a_lease_from_before_may_be_alive() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        let mut client = server.connect();
        let lease = take(&mut client, "k", 900);
        kill(server);
        let server = start(configuration, state.path(), &[]);
        let mut client = server.connect();
        expect_taken(&mut client, "k");
        expect_taken(&mut client, "a key that nobody ever held");
        let known = client.state("k");
        assert!(known.held && known.waiters == 0, "{known:?}");
        assert!((1..=1_024).contains(&known.remaining_ms), "{known:?}");
        // The former holder's token is not known: it is told so.
        client.send(&release(1, lease.token, "k"));
        client.expect(Reply::NotHeld(1));
        take_after(&mut client, "k", &lease);
        // Now everything is as ever.
        take(&mut client, "another", 1_000);
    });
}

#[test]
fn s32_waiters_queue_in_grace_and_are_granted_in_order_at_its_end() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        let lease = take(&mut server.connect(), "k", 1_000);
        kill(server);
        let server = start(configuration, state.path(), &[]);
        let (mut first, mut second) = (server.connect(), server.connect());
        first.send(&acquire_ms(1, 60_000, 60_000, "k"));
        first.await_state("k", |state| state.waiters == 1);
        second.send(&acquire_ms(2, 60_000, 60_000, "k"));
        let token = first.granted(1).token;
        assert!(first.received_at() >= lease.until && token > lease.token);
        second.expect_quiet();
        first.send(&release(3, token, "k"));
        first.expect(Reply::Released(3));
        assert!(second.granted(2).token > token);
    });
}

#[test]
fn s48_leases_alive_at_the_end_of_a_drain_are_honoured_by_the_next_start() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let mut server = start(configuration, state.path(), &["--drain-seconds", "0"]);
        let lease = take(&mut server.connect(), "k", 2_500);
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code, Some(0));
        let server = start(configuration, state.path(), &[]);
        let mut client = server.connect();
        expect_taken(&mut client, "k");
        // No longer than that lease: its D would be 4,096.
        assert!(client.state("k").remaining_ms <= 2_500);
        take_after(&mut client, "k", &lease);
    });
}

#[test]
fn after_a_drain_with_nothing_held_a_start_waits_for_nothing() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let mut server = start(configuration, state.path(), &[]);
        let mut client = server.connect();
        let lease = take(&mut client, "k", 60_000);
        client.send(&release(1, lease.token, "k"));
        client.expect(Reply::Released(1));
        drop(client);
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code, Some(0));
        let server = start(configuration, state.path(), &[]);
        assert!(take(&mut server.connect(), "k", 1_000).token > lease.token);
    });
}

#[test]
fn a_second_signal_is_a_crash() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let mut server = start(configuration, state.path(), &[]);
        let mut client = server.connect();
        let lease = take(&mut client, "k", 1_000);
        server.signal(Signal::TERM);
        client.send(&acquire_ms(1, 0, 1_000, "other"));
        while client.reply() != (Reply::Error { owner: 1, code: 8 }) {
            client.send(&acquire_ms(1, 0, 1, "other"));
        }
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code, Some(128 + 15));
        let server = start(configuration, state.path(), &[]);
        take_after(&mut server.connect(), "k", &lease);
    });
}

#[test]
fn s55_a_drain_during_grace_leaves_the_rest_of_it_to_the_next_start() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        let lease = take(&mut server.connect(), "k", 2_000);
        kill(server);
        for _ in 0..2 {
            let mut server = start(configuration, state.path(), &[]);
            expect_taken(&mut server.connect(), "k");
            server.signal(Signal::TERM);
            assert_eq!(server.wait().code, Some(0));
        }
        let server = start(configuration, state.path(), &[]);
        take_after(&mut server.connect(), "k", &lease);
    });
}

#[test]
fn s55_a_lease_extended_during_a_drain_is_waited_for() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let mut server = start(configuration, state.path(), &["--drain-seconds", "500ms"]);
        let mut client = server.connect();
        let mut lease = take(&mut client, "k", 900);
        server.signal(Signal::TERM);
        let sent_at = client.send(&extend_ms(1, 3_000, lease.token, "k"));
        assert!(matches!(client.reply(), Reply::Extended { owner: 1, .. }));
        lease.until = sent_at + std::time::Duration::from_millis(3_000);
        assert_eq!(server.wait().code, Some(0));
        let server = start(configuration, state.path(), &[]);
        take_after(&mut server.connect(), "k", &lease);
    });
}

#[test]
fn s56_a_short_lease_that_was_extended_is_waited_for_to_its_new_end() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        let mut client = server.connect();
        let mut lease = take(&mut client, "k", 500);
        let sent_at = client.send(&extend_ms(1, 3_000, lease.token, "k"));
        assert!(matches!(client.reply(), Reply::Extended { owner: 1, .. }));
        lease.until = sent_at + std::time::Duration::from_millis(3_000);
        kill(server);
        let server = start(configuration, state.path(), &[]);
        take_after(&mut server.connect(), "k", &lease);
    });
}

#[test]
fn a_crash_right_after_a_start_waits_anew() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        let lease = take(&mut server.connect(), "k", 2_000);
        kill(server);
        for _ in 0..3 {
            kill(start(configuration, state.path(), &[]));
        }
        let server = start(configuration, state.path(), &[]);
        take_after(&mut server.connect(), "k", &lease);
    });
}

#[test]
fn a_crash_before_any_grant_is_followed_by_no_wait() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        kill(start(configuration, state.path(), &[]));
        let server = start(configuration, state.path(), &[]);
        take(&mut server.connect(), "k", 1_000);
    });
}

#[test]
fn s31_tokens_grow_over_crashes() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let mut last = 0;
        for _ in 0..10 {
            let server = start(configuration, state.path(), &["--grace", "skip"]);
            let mut client = server.connect();
            for _ in 0..3 {
                let token = take(&mut client, "k", 60_000).token;
                assert!(token > last, "{token} after {last}");
                last = token;
                client.send(&release(1, token, "k"));
                client.expect(Reply::Released(1));
            }
            kill(server);
        }
    });
}

#[test]
fn a_long_query_in_grace_tells_what_is_left() {
    in_every_configuration(|configuration| {
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        take(&mut server.connect(), "k", 200_000);
        kill(server);
        let server = start(configuration, state.path(), &["--expiry-grace-ms", "50000"]);
        let mut client = server.connect();
        client.send(&query(1, "unknown"));
        match client.reply() {
            Reply::State {
                owner: 1,
                held: true,
                remaining_ms,
                waiters: 0,
            } => assert!(
                // D for that lease, and the time that was asked for on top.
                (262_144 + 50_000 - 20_000..=262_144 + 50_000).contains(&remaining_ms),
                "{remaining_ms}"
            ),
            other => panic!("{other:?}"),
        }
    });
}

/// Ends the flood when it goes out of scope, however the test ends.
struct EndsFlood<'a>(&'a AtomicBool);

impl Drop for EndsFlood<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends frames and drops what comes back until it is over.
fn flood(address: &str, frames: &[u8], is_over: &AtomicBool) {
    let stream = TcpStream::connect(address).unwrap();
    thread::scope(|scope| {
        // Whatever ends it, it is over.
        scope.spawn(|| io::copy(&mut &stream, &mut io::sink()));
        while !is_over.load(Ordering::Relaxed) {
            (&stream).write_all(frames).unwrap();
        }
        stream.shutdown(Shutdown::Both).unwrap();
    });
}

/// A loop that always has something to read never thinks of sleeping.
#[test]
fn a_reply_that_waits_for_the_disk_gets_out_of_a_loop_that_never_sleeps() {
    in_every_configuration(|configuration| {
        if configuration.loops > 1 {
            return;
        }
        let state = Directory::new("restart");
        let server = start(configuration, state.path(), &[]);
        // Long frames: few of them fill a read, and are judged by the next.
        let frames = query(1, "k".repeat(1_000)).repeat(1_000);
        let is_over = AtomicBool::new(false);
        thread::scope(|scope| {
            let _ends_it = EndsFlood(&is_over);
            for _ in 0..4 {
                scope.spawn(|| flood(server.address(), &frames, &is_over));
            }
            let mut client = server.connect();
            for lease_ms in [1_000, 10_000, 100_000] {
                take(&mut client, &format!("for {lease_ms}"), lease_ms);
            }
        });
    });
}
