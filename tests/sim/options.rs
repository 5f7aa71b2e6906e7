//! What a history is made from: all of it follows from one number.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use fastrand::Rng;
use leasehold::credentials::Credentials;
use leasehold::dlm::DlmLimits;
use leasehold::engine::{Engine, EngineLimits};
use leasehold::partition;
use leasehold::protocol::RequestLimits;
use leasehold::worker::{DlmConfig, WorkerConfig};

use crate::clocks::Rates;

/// Longest key, in bytes: one of the keys is as long, and crosses in a box.
pub(crate) const MAX_KEY_BYTES: usize = 60;
/// Longest lease that the servers grant, in milliseconds.
pub(crate) const MAX_LEASE_MS: u32 = 60_000;
/// Longest wait that they take, in milliseconds.
pub(crate) const MAX_WAIT_MS: u32 = 60_000;
/// Longest DLM lock, in milliseconds.
pub(crate) const MAX_TTL_MS: u64 = 60_000;

/// How long output may be stuck, in milliseconds.
pub(crate) const PEER_TIMEOUT_MS: u64 = 4_000;
/// How long input is dropped before a close, in milliseconds.
pub(crate) const LINGER_MS: u64 = 500;
/// How long a DLM request may take to come, in milliseconds.
pub(crate) const REQUEST_TIMEOUT_MS: u64 = 5_000;

/// How a driver sends: see [`leasehold::worker::Action::Write`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Style {
    /// Readiness: it reads and copies when told that it may.
    Copying,
    /// Completion: what it sends and receives is under way meanwhile.
    Owning,
}

/// What the servers take where they ask for credentials.
const CREDENTIAL: &[u8] = b"sim:a secret";

/// One history's options.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    /// Everything else here follows from it, and all that happens.
    pub(crate) seed: u64,
    pub(crate) loops: u16,
    pub(crate) ring_capacity: usize,
    pub(crate) style: Style,
    pub(crate) clients: usize,
    pub(crate) keys: usize,
    pub(crate) steps: u64,
    /// Bytes that the kernel takes for a client that does not read.
    pub(crate) send_room: usize,
    /// Whether some clients never read.
    pub(crate) stalls: bool,
    pub(crate) expiry_grace_ms: u32,
    pub(crate) max_waiters_per_key: u32,
    pub(crate) max_session_waiters: u32,
    pub(crate) soft_limit_bytes: usize,
    pub(crate) hard_limit_bytes: usize,
    /// Whether the server drains in the end, and closes what is open then.
    pub(crate) drains: bool,
    /// All of a loop's structures are checked after every so many of its small steps.
    pub(crate) check_every: u64,
    /// Whether the server asks for credentials.
    pub(crate) asks_credentials: bool,
    /// How many of 16 connections speak DLM.
    pub(crate) dlm_share: u8,
    pub(crate) max_keys: u32,
    pub(crate) max_waiters: u32,
    /// Bytes that each engine may take beyond what it has when empty.
    pub(crate) memory_room: u64,
    /// Whether all sessions are closed while clients go on, if it drains.
    pub(crate) closes_early: bool,
    /// The clocks of its clients.
    pub(crate) rates: Rates,
    /// What is left out to find the shortest history that fails.
    pub(crate) left_out: LeftOut,
    routing_seed: u64,
    hash_seed: u64,
}

/// Parts of a history that are not played.
#[derive(Clone, Debug, Default)]
pub(crate) struct LeftOut {
    pub(crate) clients: BTreeSet<usize>,
    /// Clients' connections, by number.
    pub(crate) links: BTreeSet<(usize, u32)>,
}

impl Options {
    /// The options that belong to a seed.
    pub(crate) fn of_seed(seed: u64) -> Options {
        let mut rng = Rng::with_seed(seed ^ 0x5EED);
        let soft_limit_bytes = pick(&mut rng, &[60, 400, 4_000]);
        let memory_room = match rng.u8(..6) {
            // Pages of what is kept take about a quarter of a million each.
            0 => rng.u64(..1_600_000),
            _ => 1 << 30,
        };
        Options {
            seed,
            loops: pick(&mut rng, &[1, 2, 2, 2, 3, 4]),
            ring_capacity: pick(&mut rng, &[1, 2, 4, 64]),
            style: pick(&mut rng, &[Style::Copying, Style::Owning]),
            clients: rng.usize(2..12),
            keys: rng.usize(1..7),
            steps: pick(&mut rng, &[1_000, 3_000, 8_000]),
            send_room: pick(&mut rng, &[1, 30, 200, 10_000, 10_000]),
            stalls: rng.bool(),
            expiry_grace_ms: pick(&mut rng, &[0, 0, 0, 700]),
            max_waiters_per_key: pick(&mut rng, &[2, 100]),
            max_session_waiters: pick(&mut rng, &[2, 100, 100]),
            soft_limit_bytes,
            hard_limit_bytes: soft_limit_bytes * pick(&mut rng, &[3, 4]),
            drains: rng.u8(..4) == 0,
            check_every: pick(&mut rng, &[1, 16, 16, 16]),
            asks_credentials: rng.u8(..6) == 0,
            dlm_share: pick(&mut rng, &[4, 4, 4, 12]),
            max_keys: pick(&mut rng, &[1_000, 1_000, 1_000, 2]),
            max_waiters: pick(&mut rng, &[1_000, 1_000, 1_000, 3]),
            memory_room,
            closes_early: rng.bool(),
            rates: Rates::WITHIN_MARGIN,
            left_out: LeftOut::default(),
            routing_seed: rng.u64(..),
            hash_seed: rng.u64(..),
        }
    }

    /// The same, for so many steps.
    pub(crate) fn with_steps(mut self, steps: u64) -> Options {
        self.steps = steps;
        self
    }

    /// The same, with such clocks.
    pub(crate) fn with_rates(mut self, rates: Rates) -> Options {
        self.rates = rates;
        self
    }

    /// Options without chance: every loop owns one key, and kernels take all at once.
    pub(crate) fn plain(loops: u16, ring_capacity: usize, style: Style) -> Options {
        Options {
            loops,
            ring_capacity,
            style,
            clients: 0,
            keys: usize::from(loops),
            send_room: 1 << 40,
            stalls: false,
            expiry_grace_ms: 0,
            max_waiters_per_key: 100,
            max_session_waiters: 100,
            soft_limit_bytes: 4_000,
            hard_limit_bytes: 16_000,
            drains: false,
            check_every: 16,
            asks_credentials: false,
            max_keys: 1_000,
            max_waiters: 1_000,
            memory_room: 1 << 30,
            ..Options::of_seed(1)
        }
    }

    /// The keys in play: with enough of them, each loop owns some.
    pub(crate) fn key_names(&self) -> Vec<Vec<u8>> {
        let mut names: Vec<Vec<u8>> = Vec::new();
        for index in 0..self.keys {
            let wanted = index as u16 % self.loops;
            let name = (0_u32..)
                .map(|salt| format!("key {index}.{salt}").into_bytes())
                .map(|mut name| {
                    if index == 1 {
                        name.resize(MAX_KEY_BYTES, b'x');
                    }
                    name
                })
                .find(|name| partition::loop_of(name, self.routing_seed, self.loops) == wanted);
            names.extend(name);
        }
        names
    }

    /// What a Hello carries that is not to be refused.
    pub(crate) fn credential(&self) -> &'static [u8] {
        if self.asks_credentials {
            CREDENTIAL
        } else {
            b""
        }
    }

    /// One loop's configuration.
    pub(crate) fn worker(&self, loop_index: u16) -> WorkerConfig {
        let engine = EngineLimits {
            max_keys: self.max_keys,
            max_memory_bytes: u64::MAX,
            max_waiters_per_key: self.max_waiters_per_key,
            max_waiters: self.max_waiters,
            max_session_waiters: self.max_session_waiters,
            expiry_grace_ms: self.expiry_grace_ms,
        };
        let empty_bytes = Engine::new(engine, 1, self.hash_seed).memory_bytes();
        WorkerConfig {
            requests: RequestLimits {
                max_key_bytes: MAX_KEY_BYTES,
                max_lease_ms: MAX_LEASE_MS,
                max_wait_ms: MAX_WAIT_MS,
            },
            engine: EngineLimits {
                max_memory_bytes: empty_bytes + self.memory_room,
                ..engine
            },
            credentials: self.asks_credentials.then(|| {
                let file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sim/credentials");
                Credentials::read(Path::new(file)).expect("it lies beside this file")
            }),
            max_connections: 1_000,
            output_soft_limit_bytes: self.soft_limit_bytes,
            output_hard_limit_bytes: self.hard_limit_bytes,
            peer_timeout_ms: PEER_TIMEOUT_MS,
            linger_ms: LINGER_MS,
            linger_bytes: 200,
            dlm: DlmConfig {
                requests: DlmLimits {
                    max_key_bytes: MAX_KEY_BYTES,
                    max_ttl_ms: MAX_TTL_MS,
                    anonymous_allowed: true,
                    anonymous_max_ttl_ms: MAX_TTL_MS,
                    anonymous_max_data_chars: 100_000,
                },
                max_connections: 500,
                max_payload_bytes: 1 << 20,
                max_buffered_bytes: 1 << 20,
                request_timeout_ms: REQUEST_TIMEOUT_MS,
            },
            loops: self.loops,
            loop_index,
            routing_seed: self.routing_seed,
            hash_seed: self.hash_seed,
            first_token: 1_000,
        }
    }
}

impl fmt::Display for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{self:?}\nreplay: SIM_SEED={} cargo test --test sim random_histories",
            self.seed
        )
    }
}

/// One of these.
pub(crate) fn pick<T: Copy>(rng: &mut Rng, among: &[T]) -> T {
    among[rng.usize(..among.len())]
}
