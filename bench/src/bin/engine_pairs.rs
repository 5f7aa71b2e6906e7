//! Uncontended acquire + release in the engine alone, while many other keys are held.
//!
//! `engine_pairs [--held N] [--pairs N] [--batch N]` prints nanoseconds and
//! allocations per pair, bytes per held lock, and the longest single acquire while
//! those were filled in (what else the machine does adds its own pauses). With a
//! batch of more than 1, the keys of so many pairs are prefetched together. For
//! instructions per pair, run it under callgrind twice with different numbers of
//! pairs and divide the difference by theirs times 1.1 (a tenth is run first, to
//! warm up).

use leasehold::durability::Needs;
use leasehold::engine::time::Time;
use leasehold::engine::{Caller, Engine, EngineLimits, Outbox};
use leasehold::ids::{GrantRef, SessionId};
use leasehold::protocol::{Reply, Request};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const USAGE: &str = "usage: engine_pairs [--held N] [--pairs N] [--batch N]";
/// What a loop's turn may hold: the wheel is polled once for so many pairs.
const PAIRS_PER_TURN: u64 = 64;
const NANOS_PER_PAIR: u64 = 250;

fn main() {
    let (held, pairs, batch) = parse_flags(std::env::args().skip(1)).unwrap_or_else(|bad| {
        eprintln!("{bad}\n{USAGE}");
        std::process::exit(2)
    });
    let mut load = Load::new(batch.max(1) as usize);
    let empty_bytes = (load.engine.memory_bytes(), resident_bytes());
    let mut keys = Keys(1);
    let mut longest_acquire = Duration::ZERO;
    for _ in 0..held {
        let lease_ms = 100_000 + (keys.0 % 155_000) as u32;
        let start = Instant::now();
        load.acquire(&keys.next(), lease_ms);
        longest_acquire = longest_acquire.max(start.elapsed());
    }
    let held_bytes = (load.engine.memory_bytes(), resident_bytes());
    assert_eq!(u64::from(load.engine.held()), held);

    let mut keys = Keys(2);
    load.run(&mut keys, pairs / 10);
    let allocations = Region::new(ALLOCATOR);
    let start = Instant::now();
    load.run(&mut keys, pairs);
    let elapsed = start.elapsed();
    let allocations = allocations.change();

    let per_lock = |bytes: u64| bytes as f64 / held.max(1) as f64;
    println!("held keys              {held}");
    println!(
        "bytes per held lock    {:.1} allocated, {:.1} resident",
        per_lock(held_bytes.0 - empty_bytes.0),
        per_lock(held_bytes.1 - empty_bytes.1)
    );
    println!(
        "longest acquire        {} µs, while the table grew",
        longest_acquire.as_micros()
    );
    println!("pairs                  {pairs}");
    println!(
        "ns per pair            {:.1}",
        elapsed.as_nanos() as f64 / pairs.max(1) as f64
    );
    println!(
        "allocations per pair   {}",
        (allocations.allocations + allocations.reallocations) as f64 / pairs.max(1) as f64
    );
}

fn parse_flags(mut flags: impl Iterator<Item = String>) -> Result<(u64, u64, u64), String> {
    let (mut held, mut pairs, mut batch) = (1_000_000, 1_000_000, 1);
    while let Some(flag) = flags.next() {
        let wanted = match flag.as_str() {
            "--held" => &mut held,
            "--pairs" => &mut pairs,
            "--batch" => &mut batch,
            _ => return Err(format!("{flag} is no flag of this program")),
        };
        let number = flags.next().ok_or(format!("{flag} needs a number"))?;
        *wanted = number
            .parse()
            .map_err(|_| format!("{flag} {number}: not a number"))?;
    }
    Ok((held, pairs, batch))
}

struct Load {
    engine: Engine,
    now: Time,
    answers: Answers,
    /// The keys that are prefetched together.
    batch: Vec<[u8; 16]>,
}

/// Keeps the latest token and counts what came out.
#[derive(Default)]
struct Answers {
    token: u64,
    granted: u64,
    released: u64,
}

impl Outbox for Answers {
    fn reply(&mut self, _: SessionId, reply: Reply) {
        assert!(matches!(reply, Reply::Released { .. }));
        self.released += 1;
    }

    fn granted(&mut self, _: SessionId, _: u64, grant: GrantRef, _: u32, _: Needs) {
        self.token = grant.token;
        self.granted += 1;
    }
}

const CALLER: Caller = Caller {
    session: SessionId::new(0, 0, 0),
    release_on_close: false,
};

impl Load {
    fn new(batch: usize) -> Load {
        let limits = EngineLimits {
            max_keys: u32::MAX,
            max_memory_bytes: u64::MAX,
            max_waiters_per_key: 1024,
            max_waiters: u32::MAX,
            max_session_waiters: 1024,
            expiry_grace_ms: 0,
        };
        Load {
            engine: Engine::new(limits, 1, 0x5eed),
            now: Time::from_millis(1_000_000),
            answers: Answers::default(),
            batch: vec![[0; 16]; batch],
        }
    }

    fn acquire(&mut self, key: &[u8; 16], lease_ms: u32) {
        let acquire = Request::Acquire {
            owner: 7,
            wait_ms: 0,
            lease_ms,
            key,
        };
        self.engine
            .handle_request(self.now, CALLER, &acquire, &mut self.answers);
    }

    fn release(&mut self, key: &[u8; 16]) {
        let release = Request::Release {
            owner: 8,
            token: self.answers.token,
            key,
        };
        self.engine
            .handle_request(self.now, CALLER, &release, &mut self.answers);
    }

    fn run(&mut self, keys: &mut Keys, pairs: u64) {
        let before = self.answers.released;
        let mut batch = std::mem::take(&mut self.batch);
        for pair in 0..pairs {
            let place = pair as usize % batch.len();
            if place == 0 {
                batch.fill_with(|| keys.next());
                if batch.len() > 1 {
                    batch.iter().for_each(|key| self.engine.prefetch(key));
                }
            }
            self.acquire(&batch[place], 30_000);
            self.release(&batch[place]);
            if pair % PAIRS_PER_TURN == 0 {
                let nanos = self.now.as_nanos() + PAIRS_PER_TURN * NANOS_PER_PAIR;
                self.now = Time::from_nanos(nanos);
                self.engine
                    .handle_timeouts(self.now, 1_000, &mut self.answers);
            }
        }
        self.batch = batch;
        assert_eq!(self.answers.released - before, pairs);
    }
}

/// Random keys of 16 bytes (SplitMix64).
struct Keys(u64);

impl Keys {
    fn next(&mut self) -> [u8; 16] {
        let mut key = [0; 16];
        for half in key.chunks_exact_mut(8) {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = self.0;
            mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            half.copy_from_slice(&(mixed ^ mixed >> 31).to_ne_bytes());
        }
        key
    }
}

/// Resident set of this process, from the second field of its statm, in pages of 4 KiB.
fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').nth(1).and_then(|n| n.parse().ok());
    pages.unwrap_or(0) * 4096
}
