//! Sockets at their limits: descriptors, buffers, resets, slow and hostile senders.

use std::collections::HashSet;
use std::time::Instant;

use super::{LONG_S, random};
use crate::common::client::{Client, Polled};
use crate::common::configuration::in_every_configuration;
use crate::common::server::{HANG_GUARD, Server};
use crate::common::wire::{
    ANY_LOOP, RELEASE_ON_CLOSE, Reply, acquire, acquire_ms, extend_ms, hello, ping, query, release,
};

/// Returns once all threads of the process have been found asleep many times in a row:
/// one that spins never is.
fn await_sleeping(pid: u32) {
    let guard = Instant::now() + HANG_GUARD;
    let mut asleep = 0;
    while asleep < 200 {
        asleep = if all_threads_sleep(pid) {
            asleep + 1
        } else {
            0
        };
        assert!(Instant::now() < guard, "the server never rests");
        std::thread::yield_now();
    }
}

fn all_threads_sleep(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.into_iter().all(|thread| {
        let stat = std::fs::read_to_string(thread.unwrap().path().join("stat")).unwrap();
        // The command's name, in brackets, may hold anything; the state follows.
        let (_, fields) = stat.rsplit_once(") ").unwrap();
        fields.starts_with('S')
    })
}

#[test]
fn s22_at_the_descriptor_limit_the_served_stay_served_and_accepting_resumes() {
    in_every_configuration(|configuration| {
        let server = Server::start_with_descriptors(configuration, &[], 64);
        let mut clients: Vec<Client> = (0..200).map(|_| server.connect()).collect();
        for client in &mut clients {
            // Those the server turned away may fail here already.
            let _ = client.send_some(&ping(1));
        }
        let guard = Instant::now() + HANG_GUARD;
        let mut served = Vec::new();
        // 64 descriptors, less what the server needs for itself.
        while served.len() < 40 {
            assert!(Instant::now() < guard, "only {} are served", served.len());
            let mut index = 0;
            while index < clients.len() {
                match clients[index].poll() {
                    Polled::Reply(reply) => {
                        assert_eq!(reply, Reply::Pong(1));
                        served.push(clients.swap_remove(index));
                    }
                    Polled::Cut => drop(clients.swap_remove(index)),
                    Polled::Nothing => index += 1,
                }
            }
        }
        await_sleeping(server.pid());
        for _ in 0..3 {
            served.iter_mut().for_each(Client::expect_quiet);
        }
        served.truncate(20);
        // Those still waiting outside, if any, are let in one after the other.
        while !clients.is_empty() && served.len() < 30 {
            assert!(Instant::now() < guard, "accepting does not resume");
            let mut index = 0;
            while index < clients.len() {
                match clients[index].poll() {
                    Polled::Reply(_) => served.push(clients.swap_remove(index)),
                    Polled::Cut => drop(clients.swap_remove(index)),
                    Polled::Nothing => index += 1,
                }
            }
        }
        served.iter_mut().for_each(Client::expect_quiet);
        drop(clients);
        drop(served);
        while !server.connect().answers_ping() {
            assert!(Instant::now() < guard, "accepting does not resume");
        }
    });
}

/// Sends the requests again and again, reading none of their answers, until the server
/// reads no more while it serves others well: `others` has a session on each loop, so
/// that none of the loops has merely not had its turn. Returns how many bytes were sent;
/// the last request may be cut.
pub fn fill_until_input_stops(
    stuffed: &mut Client,
    others: &mut [Client],
    requests: &[u8],
) -> usize {
    let mut sent = 0;
    let mut stalls = 0;
    while stalls < 200 {
        let from = sent % requests.len();
        match stuffed.send_some(&requests[from..]) {
            Ok(0) => stalls += 1,
            Ok(count) => {
                sent += count;
                stalls = 0;
            }
            Err(error) => panic!("cut while it was only slow: {error}"),
        }
        // Far beyond all kernel buffers together.
        assert!(sent < 256 << 20, "the server reads without end");
        others.iter_mut().for_each(Client::expect_quiet);
    }
    sent
}

fn a_thousand_pings() -> Vec<u8> {
    (1..=1_000).flat_map(ping).collect()
}

#[test]
fn s23_a_client_that_never_reads_is_read_no_more_and_loses_nothing() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--peer-timeout", "600s"]);
        let mut others = server.connect_everywhere();
        let mut stuffed = Client::connect_small(server.address(), 4096).unwrap();
        let sent = fill_until_input_stops(&mut stuffed, &mut others, &a_thousand_pings());
        let owner = |number: usize| number as u64 % 1_000 + 1;
        let frame = ping(1).len();
        let whole = sent / frame;
        for number in 0..whole {
            stuffed.expect(Reply::Pong(owner(number)));
        }
        // The last may have been cut anywhere: its rest completes it.
        stuffed.send(&ping(owner(whole))[sent % frame..]);
        stuffed.expect(Reply::Pong(owner(whole)));
        stuffed.expect_quiet();
    });
}

#[test]
fn s23_s46_a_client_over_the_hard_limit_is_closed_and_only_unsent_grants_are_undone() {
    in_every_configuration(|configuration| {
        const FLAGS: &[&str] = &[
            "--output-soft-limit",
            "4KiB",
            "--output-hard-limit",
            "32KiB",
            "--max-session-waiters",
            "5001",
            "--peer-timeout",
            "600s",
        ];
        /// Above the owners of the pings that stuff it.
        const FIRST_OWNER: u64 = 10_000;
        let server = Server::start(configuration, FLAGS);
        let (mut holder, mut other) = (server.connect(), server.connect());
        let keys: Vec<String> = (0..5_000).map(|key| format!("k{key}")).collect();
        let tokens = holder.hold_all(&keys, LONG_S);
        let mut stuffed = Client::connect_small(server.address(), 4096).unwrap();
        stuffed.send(&hello(RELEASE_ON_CLOSE, ANY_LOOP, 1, ""));
        assert!(matches!(stuffed.reply(), Reply::Welcome(_)));
        stuffed.send(&acquire(1, 0, LONG_S, "told"));
        stuffed.granted(1);
        holder.send(&acquire(1, 0, LONG_S, "kept"));
        holder.granted(1);
        let mut requests = acquire(2, LONG_S, LONG_S, "kept");
        for (owner, key) in (FIRST_OWNER..).zip(&keys) {
            requests.extend(acquire(owner, LONG_S, LONG_S, key));
        }
        stuffed.send(&requests);
        other.await_state(&keys[4_999], |state| state.waiters == 1);
        fill_until_input_stops(
            &mut stuffed,
            &mut server.connect_everywhere(),
            &a_thousand_pings(),
        );
        // Five thousand grants at once are more than its output may hold.
        let releases = keys.iter().zip(&tokens);
        let releases = releases.map(|(key, token)| release(3, *token, key));
        let releases: Vec<u8> = releases.flatten().collect();
        holder.send(&releases);
        for _ in &keys {
            holder.expect(Reply::Released(3));
        }
        other.await_state("kept", |state| state.waiters == 0);
        // Not one byte of the last grants was on its way.
        other.await_state(&keys[4_999], |state| !state.held);
        assert!(other.state("told").held, "its end was not orderly");
        let told: HashSet<u64> = stuffed
            .replies_until_cut()
            .into_iter()
            .filter_map(|reply| match reply {
                Reply::Acquired { owner, .. } => Some(owner),
                _ => None,
            })
            .collect();
        let mut cut = 0;
        for (owner, key) in (FIRST_OWNER..).zip(&keys) {
            let held = other.state(key).held;
            assert!(
                held || !told.contains(&owner),
                "a grant that was told was undone"
            );
            cut += usize::from(held && !told.contains(&owner));
        }
        assert!(
            cut <= 1,
            "{cut} grants can have been cut short, one at most"
        );
    });
}

#[test]
fn s23_a_client_that_takes_no_output_is_closed_after_the_peer_time_out() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &["--peer-timeout", "300ms"]);
        let (mut holder, mut other) = (server.connect(), server.connect());
        holder.send(&acquire(1, 0, LONG_S, "k"));
        holder.granted(1);
        let mut stuffed = Client::connect_small(server.address(), 4096).unwrap();
        stuffed.send(&acquire(2, LONG_S, LONG_S, "k"));
        other.await_state("k", |state| state.waiters == 1);
        let pings: Vec<u8> = (1..=1_000).flat_map(ping).collect();
        let guard = Instant::now() + HANG_GUARD;
        while other.state("k").waiters == 1 {
            // Fails once it is closed.
            let _ = stuffed.send_some(&pings);
            assert!(Instant::now() < guard, "it is kept for ever");
        }
        stuffed.replies_until_cut();
        other.expect_quiet();
    });
}

#[test]
fn s24_a_reset_at_any_byte_of_a_reply_harms_nobody_else() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut steady, mut seed) = (server.connect(), 24);
        steady.send(&acquire(1, 0, LONG_S, "k"));
        let token = steady.granted(1).token;
        for round in 0..400 {
            let mut client = server.connect();
            let key = format!("r{round}");
            let requests = [
                acquire(2, LONG_S, 1, "k"),
                acquire(3, 0, 1, &key),
                query(4, &key),
                extend_ms(5, 1, 6, &key),
                acquire(7, LONG_S, 1, &key),
                ping(8),
            ]
            .concat();
            // Cut anywhere: the requests, or the 22 + 19 + 10 + 10 bytes of replies.
            if random(&mut seed).is_multiple_of(3) {
                client.send(&requests[..random(&mut seed) as usize % requests.len()]);
            } else {
                client.send(&requests);
                client.read_bytes(random(&mut seed) as usize % 62);
            }
            client.reset();
            steady.expect_quiet();
        }
        steady.await_state("k", |state| state.waiters == 0);
        steady.send(&release(9, token, "k"));
        steady.expect(Reply::Released(9));
        server.connect().expect_quiet();
    });
}

#[test]
fn s25_a_client_that_ends_its_side_gets_every_reply_it_is_owed() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let mut holder = server.connect();
        holder.send(&acquire(1, 0, LONG_S, "k"));
        holder.granted(1);
        let mut client = server.connect();
        // Far more than the server's output may hold before it stops reading.
        let rounds = 20_000;
        let mut bytes = Vec::new();
        for owner in 1..=rounds {
            bytes.extend(query(owner, "k"));
        }
        for owner in 1..=500 {
            bytes.extend(acquire(rounds + owner, LONG_S, LONG_S, "k"));
        }
        bytes.extend(acquire_ms(1, 1, 1, "cut")[..9].iter());
        let (mut states, mut timed_out) = (0, 0);
        std::thread::scope(|scope| {
            let mut sender = client.another_handle();
            scope.spawn(move || {
                sender.send(&bytes);
                sender.finish();
            });
            while let Some(reply) = client.reply_or_end() {
                match reply {
                    Reply::State { owner, .. } => {
                        states += 1;
                        assert_eq!(owner, states);
                    }
                    Reply::TimedOut(owner) => {
                        assert!((rounds + 1..=rounds + 500).contains(&owner));
                        timed_out += 1;
                    }
                    other => panic!("{other:?}"),
                }
            }
        });
        assert_eq!((states, timed_out), (rounds, 500));
        assert_eq!(holder.state("k").waiters, 0);
    });
}

/// Keys that `h * 31 + byte` hashes to one number: each block of two has a twin.
fn java_twins(count: usize) -> Vec<String> {
    let blocks = |number: usize| (0..16).map(move |bit| number >> bit & 1);
    let text = |bit| if bit == 1 { "Aa" } else { "BB" };
    (0..count)
        .map(|number| blocks(number).map(text).collect())
        .collect()
}

/// Keys of 16 bytes that the common multiply-rotate hash of 8-byte words sends
/// to one number: the second word undoes the first.
fn multiply_rotate_twins(count: usize) -> Vec<String> {
    const FACTOR: u64 = 0x517c_c1b7_2722_0a95;
    let target = u64::from_le_bytes(*b"collides");
    let mut seed = 29;
    let mut keys = std::collections::BTreeSet::new();
    while keys.len() < count {
        let first = random(&mut seed) << 31 ^ random(&mut seed);
        let first = first & 0x7f7f_7f7f_7f7f_7f7f;
        let second = first.wrapping_mul(FACTOR).rotate_left(5) ^ target;
        let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
        if bytes.iter().all(|byte| byte.is_ascii() && *byte != b'\n') {
            keys.extend(String::from_utf8(bytes));
        }
    }
    keys.into_iter().collect()
}

#[test]
fn s29_keys_that_collide_in_an_unkeyed_hash_are_keys_like_others() {
    in_every_configuration(|configuration| {
        for keys in [java_twins(20_000), multiply_rotate_twins(2_000)] {
            let server = Server::start(configuration, &[]);
            let (mut client, mut other) = (server.connect(), server.connect());
            for keys in keys.chunks(500) {
                client.hold_all(keys, LONG_S);
                other.expect_quiet();
            }
            for keys in keys.chunks(500) {
                let requests = keys.iter().map(|key| acquire(1, 0, 1, key));
                other.send(&requests.collect::<Vec<_>>().concat());
                for _ in keys {
                    other.expect(Reply::TimedOut(1));
                }
            }
        }
    });
}

#[test]
fn s30_a_client_that_sends_byte_by_byte_holds_nothing_but_its_session() {
    in_every_configuration(|configuration| {
        let server = Server::start(configuration, &[]);
        let (mut slow, mut other) = (server.connect(), server.connect());
        for byte in acquire(1, 0, LONG_S, "k") {
            // All of the others' work fits between two of its bytes.
            other.send(&acquire(2, 0, LONG_S, "k"));
            let token = other.granted(2).token;
            assert!(other.state("k").held);
            other.send(&release(3, token, "k"));
            other.expect(Reply::Released(3));
            await_sleeping(server.pid());
            slow.send(&[byte]);
        }
        slow.granted(1);
        assert!(other.state("k").held);
    });
}
