//! A loaded server is killed again and again while everybody who was ever granted
//! something compares notes.
//!
//! `LEASEHOLD_KILLS=100 cargo test --test restart kill` kills it more often.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use leasehold::client::{
    Connection, ExtendOutcome, Key, Outcome, ReleaseOutcome, ServerAddress, Ticket,
};
use leasehold::clock::{self, Time};

use super::{kill, start};
use crate::common::configuration::{CONFIGURATIONS, Configuration};
use crate::common::directory::Directory;
use crate::common::server::Server;
use crate::exchange::{bare, expect, lock, own, test_lock, unlock};

const CLIENTS: u64 = 6;
const KEYS: u64 = 4;

/// What all clients know together.
#[derive(Default)]
struct Notes {
    keys: Mutex<HashMap<String, Believed>>,
    grants: AtomicU64,
    granted: Condvar,
    /// Where the server is, and how often it was started.
    server: Mutex<(String, u64)>,
    moved: Condvar,
    is_over: AtomicBool,
}

/// The latest grant of a key.
struct Believed {
    token: u64,
    until: Time,
}

impl Notes {
    /// A client was granted a key: nobody else may believe in it, and its token is new.
    fn granted(&self, ticket: &Ticket) {
        let mut keys = self.keys.lock().unwrap();
        let now = clock::now();
        let key = ticket.key().as_str();
        if let Some(former) = keys.get(key) {
            assert!(
                ticket.token() > former.token,
                "{key}: token {} after {}",
                ticket.token(),
                former.token
            );
            assert!(
                now >= former.until,
                "{key}: granted under {} while {} is believed in for {} ns more",
                ticket.token(),
                former.token,
                former.until.as_nanos() - now.as_nanos()
            );
        }
        self.believe(&mut keys, ticket);
        self.grants.fetch_add(1, Ordering::Relaxed);
        self.granted.notify_all();
    }

    /// Waits for so many grants in all, or until one of the clients has seen a fault.
    fn await_grants(&self, enough: u64, clients: &[ScopedJoinHandle<'_, ()>]) {
        let mut keys = self.keys.lock().unwrap();
        while self.grants.load(Ordering::Relaxed) < enough {
            let pause = Duration::from_millis(100);
            keys = self.granted.wait_timeout(keys, pause).unwrap().0;
            let has_failed = clients.iter().any(ScopedJoinHandle::is_finished);
            assert!(!has_failed, "a client has ended");
        }
    }

    fn believe(&self, keys: &mut HashMap<String, Believed>, ticket: &Ticket) {
        let believed = Believed {
            token: ticket.token(),
            until: ticket.lease_ends(),
        };
        keys.insert(ticket.key().as_str().to_owned(), believed);
    }

    fn extended(&self, ticket: &Ticket) {
        let mut keys = self.keys.lock().unwrap();
        // Its time may have been over when the answer came, and another's begun.
        if keys[ticket.key().as_str()].token == ticket.token() {
            self.believe(&mut keys, ticket);
        }
    }

    /// Whoever is about to release believes no more.
    fn releasing(&self, ticket: &Ticket) {
        let mut keys = self.keys.lock().unwrap();
        let believed = keys.get_mut(ticket.key().as_str()).unwrap();
        if believed.token == ticket.token() {
            believed.until = Time::ZERO;
        }
    }

    fn server_is(&self, server: &Server) {
        let mut place = self.server.lock().unwrap();
        *place = (server.address().to_owned(), place.1 + 1);
        self.moved.notify_all();
    }

    /// The server's address, of a later start than that one.
    fn await_server(&self, after: u64) -> Option<(ServerAddress, u64)> {
        let mut place = self.server.lock().unwrap();
        while place.1 <= after {
            if self.is_over.load(Ordering::Relaxed) {
                return None;
            }
            place = self.moved.wait(place).unwrap();
        }
        Some((place.0.parse().unwrap(), place.1))
    }
}

struct End<'a>(&'a Notes);

impl Drop for End<'_> {
    fn drop(&mut self) {
        let _place = self.0.server.lock();
        self.0.is_over.store(true, Ordering::Relaxed);
        self.0.moved.notify_all();
    }
}

/// Takes keys, extends some, releases some, lets others run out, from start to start.
fn live(notes: &Notes, seed: u64) {
    let mut chance = fastrand::Rng::with_seed(seed);
    let mut starts = 0;
    while let Some((address, start)) = notes.await_server(starts) {
        starts = start;
        let Ok(mut connection) = Connection::connect(&address, None, Duration::from_secs(5)) else {
            continue;
        };
        while step(notes, &mut connection, &mut chance).is_some() {
            if notes.is_over.load(Ordering::Relaxed) {
                return;
            }
        }
    }
}

/// `None`: the session is over.
fn step(notes: &Notes, connection: &mut Connection, chance: &mut fastrand::Rng) -> Option<()> {
    let key = Key::new(&format!("k{}", chance.u64(..KEYS))).unwrap();
    let wait = Duration::from_millis(chance.u64(..2_000));
    let lease = Duration::from_millis(chance.u64(1..300));
    let mut ticket = match connection.acquire(key, wait, lease) {
        Ok(Outcome::Acquired(ticket)) => ticket,
        Ok(Outcome::TimedOut | Outcome::Busy) => return Some(()),
        Ok(Outcome::Indeterminate) | Err(_) => return None,
        Ok(Outcome::Rejected(code)) => panic!("an acquire was refused: {code:?}"),
    };
    notes.granted(&ticket);
    if chance.u8(..4) == 0 {
        match connection.extend(&mut ticket, Duration::from_millis(chance.u64(1..500))) {
            Ok(ExtendOutcome::Extended) => notes.extended(&ticket),
            Ok(ExtendOutcome::NotHeld) => {}
            Ok(ExtendOutcome::Indeterminate) | Err(_) => return None,
            Ok(ExtendOutcome::Rejected(code)) => panic!("an extend was refused: {code:?}"),
        }
    }
    if chance.u8(..4) > 0 {
        notes.releasing(&ticket);
        match connection.release(ticket.key(), ticket.token()) {
            Ok(ReleaseOutcome::Released | ReleaseOutcome::NotHeld) => {}
            Ok(ReleaseOutcome::Indeterminate) | Err(_) => return None,
            Ok(ReleaseOutcome::Rejected(code)) => panic!("a release was refused: {code:?}"),
        }
    }
    Some(())
}

fn kills() -> u64 {
    let given = std::env::var("LEASEHOLD_KILLS").ok();
    given.map_or(6, |text| text.parse().expect("a number of kills"))
}

#[test]
fn s31_s32_no_kill_grants_twice_or_counts_tokens_anew() {
    let usable: Vec<Configuration> = CONFIGURATIONS
        .iter()
        .copied()
        .filter(|&configuration| Server::try_start(configuration, &[]).is_ok())
        .collect();
    println!(
        "{} of {} configurations",
        usable.len(),
        CONFIGURATIONS.len()
    );
    let seed = fastrand::u64(..);
    println!("{} kills, seed {seed}", kills());
    let mut chance = fastrand::Rng::with_seed(seed);
    let state = Directory::new("kills");
    let notes = Notes::default();
    std::thread::scope(|scope| {
        let client = |number| {
            let (notes, seed) = (&notes, seed.wrapping_add(number));
            scope.spawn(move || live(notes, seed))
        };
        let clients: Vec<_> = (0..CLIENTS).map(client).collect();
        // However this ends, those who wait for another start must not.
        let _end = End(&notes);
        let mut is_locked = false;
        for _ in 0..kills() {
            let configuration: Configuration = usable[chance.usize(..usable.len())];
            let server = start(configuration, state.path(), &[]);
            notes.server_is(&server);
            // A lock of hours stays what it is, whoever is killed.
            let (seen, other) = match is_locked {
                true => (own("Locked", "A"), bare("NotOwner")),
                // In grace, or free.
                false => (bare("Unlocked"), bare("Unlocked")),
            };
            let enough = notes.grants.load(Ordering::Relaxed) + chance.u64(1..150);
            notes.await_grants(enough, &clients);
            expect(&server, &test_lock("A", "long"), &seen);
            expect(&server, &test_lock("B", "long"), &other);
            if chance.bool() {
                expect(
                    &server,
                    &unlock("A", "long"),
                    &if is_locked {
                        own("Unlocked", "A")
                    } else {
                        bare("Unlocked")
                    },
                );
                is_locked = false;
            } else {
                expect(&server, &lock("A", "long", "3000"), &own("Locked", "A"));
                is_locked = true;
            }
            kill(server);
        }
    });
    println!("{} grants", notes.grants.load(Ordering::Relaxed));
}
