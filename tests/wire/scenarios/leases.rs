//! Leases as their holders may believe them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::LONG_S;
use crate::common::client::Client;
use crate::common::configuration::in_every_configuration;
use crate::common::server::Server;
use crate::common::wire::{
    ANY_LOOP, RELEASE_ON_CLOSE, Reply, acquire, acquire_ms, extend_ms, hello, query, release,
};

use rustix::process::Signal;

/// Queues for `key` and asserts that it is granted, but not before `deadline`.
#[track_caller]
fn assert_granted_after(client: &mut Client, key: &str, deadline: Instant) {
    client.send(&acquire(90, LONG_S, LONG_S, key));
    client.granted(90);
    let early = deadline.saturating_duration_since(client.received_at());
    assert!(early.is_zero(), "granted {early:?} before the lease's end");
}

#[test]
fn s16_a_stopped_server_ends_what_is_overdue_in_order_when_it_goes_on() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        for key in 0.. {
            if stop_while_some_wait(&server, &key.to_string()) {
                break;
            }
        }
    });
}

/// Returns whether all could be queued before anything was over; else it shows nothing.
fn stop_while_some_wait(server: &Server, key: &str) -> bool {
    let [mut holder, mut second, mut third, mut brief] = [(); 4].map(|()| server.connect());
    let sent = holder.send(&acquire_ms(1, 0, 300, key));
    let token = holder.granted(1).token;
    let is_late = || sent.elapsed() >= Duration::from_millis(200);
    second.send(&acquire_ms(2, 100_000, 300, key));
    holder.await_state(key, |state| state.waiters == 1 || is_late());
    third.send(&acquire(3, LONG_S, LONG_S, key));
    brief.send(&acquire_ms(4, 300, 100_000, key));
    holder.await_state(key, |state| state.waiters == 3 || is_late());
    if is_late() {
        return false;
    }
    server.signal(Signal::STOP);
    // What is waited for is time itself: by then the lease and one wait are over.
    while sent.elapsed() < Duration::from_millis(700) {
        std::thread::yield_now();
    }
    holder.send(&release(5, token, key));
    server.signal(Signal::CONT);
    holder.expect(Reply::NotHeld(5));
    brief.expect(Reply::TimedOut(4));
    let after = second.granted(2);
    let last = third.granted(3);
    assert!(token < after.token && after.token < last.token);
    for client in [&mut holder, &mut second, &mut third, &mut brief] {
        client.expect_quiet();
    }
    true
}

#[test]
fn s44_no_lease_is_shorter_than_its_holder_may_believe_however_long_turns_take() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (address, stop) = (server.address(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            // Long turns: bursts of thousands of requests, again and again.
            for _ in 0..3 {
                scope.spawn(|| {
                    let mut flood = Client::connect(address).unwrap();
                    let burst = query(1, "flood").repeat(3_000);
                    while !stop.load(Ordering::Relaxed) {
                        flood.send(&burst);
                        for _ in 0..3_000 {
                            flood.reply();
                        }
                    }
                });
            }
            let (mut holder, mut waiting) = (server.connect(), server.connect());
            for number in 0..100 {
                let key = number.to_string();
                let sent = holder.send(&acquire_ms(1, 0, 20, &key));
                let waited_ms = u64::from(holder.granted(1).waited_ms);
                let believed_end = sent + Duration::from_millis(waited_ms + 20);
                assert_granted_after(&mut waiting, &key, believed_end);
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn s45_a_late_or_repeated_extend_shortens_no_lease() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut holder, mut waiting) = (server.connect(), server.connect());
        let granted_after = holder.send(&acquire_ms(1, 0, 400, "k"));
        let token = holder.granted(1).token;
        // As if they had been under way for long: their leases are nearly over.
        for _ in 0..3 {
            holder.send(&extend_ms(2, 1, token, "k"));
            match holder.reply() {
                Reply::Extended {
                    owner: 2,
                    remaining_ms,
                } => {
                    let elapsed_ms = granted_after.elapsed().as_millis() as u32;
                    assert!(remaining_ms + elapsed_ms + 1 >= 400);
                    assert!(remaining_ms <= 400);
                }
                other => panic!("{other:?}"),
            }
        }
        // One that lengthens, repeated, with a short one behind.
        let lengthened = holder.send(&extend_ms(3, 600, token, "k"));
        holder.send(&[extend_ms(3, 600, token, "k"), extend_ms(4, 1, token, "k")].concat());
        for owner in [3, 3, 4] {
            match holder.reply() {
                Reply::Extended {
                    owner: answered, ..
                } => assert_eq!(answered, owner),
                other => panic!("{other:?}"),
            }
        }
        let believed_end = lengthened + Duration::from_millis(600);
        assert_granted_after(&mut waiting, "k", believed_end);
    });
}

#[test]
fn s46_only_an_orderly_end_releases_a_sessions_grants_early() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut observer = server.connect();
        let end_with_error = |mut client: Client| {
            client.send(b"?");
            client.expect_error(0, 1);
            client.expect_end();
        };
        let ends: [(&str, &dyn Fn(Client)); 2] =
            [("reset", &Client::reset), ("error", &end_with_error)];
        for (key, end) in ends {
            let mut client = server.connect();
            client.send(&hello(RELEASE_ON_CLOSE, ANY_LOOP, 1, ""));
            assert!(matches!(client.reply(), Reply::Welcome(_)));
            let sent = client.send(&acquire_ms(2, 0, 400, key));
            client.granted(2);
            end(client);
            assert_granted_after(&mut observer, key, sent + Duration::from_millis(400));
        }
    });
}
