//! What the virtual clients do: activities, their keys, and when.

mod keys;
mod mix_file;
mod random;
mod schedule;
mod stream;
mod zipf;

pub(crate) use keys::{DISTINCT_BYTES, HELD_SPACE, KeyId, KeyText, hex};
pub(crate) use mix_file::{Settings, read_mix};
pub(crate) use random::Random;
pub(crate) use schedule::Schedule;
pub(crate) use stream::{Draw, Place, Stream, Streams};

/// The kinds of activity.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum, serde::Deserialize, serde::Serialize,
)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Kind {
    /// Acquire and release, on keys of each client's own: never contended.
    Pairs,
    /// Acquire with a wait, hold, release, on keys that all share.
    Contended,
    /// Attempts without a wait on keys that all share; most find them held.
    Try,
    /// Acquire with a wait on keys that all share, never released: leases end.
    Expiry,
    /// A new connection for each acquire and release.
    Churn,
    /// JackrabbitDLM's Put, then Get of what was put.
    Data,
    /// One line, answered by one line, a connection each: for `echo --close`.
    Line,
}

impl Kind {
    /// Whether each client has keys that nobody else asks for.
    pub(crate) fn has_private_keys(self) -> bool {
        match self {
            Kind::Pairs | Kind::Churn | Kind::Data | Kind::Line => true,
            Kind::Contended | Kind::Try | Kind::Expiry => false,
        }
    }

    /// Whether an acquire that is not granted is nothing to complain about.
    pub(crate) fn expects_refusals(self) -> bool {
        !self.has_private_keys()
    }

    /// Whether a granted key is released.
    pub(crate) fn releases(self) -> bool {
        self != Kind::Expiry
    }

    /// Whether acquires wait in the server's queue.
    pub(crate) fn waits(self) -> bool {
        matches!(self, Kind::Contended | Kind::Expiry)
    }

    /// Requests that one round of it takes when all goes well; a connection is none.
    pub(crate) fn requests_per_round(self) -> u32 {
        match self {
            Kind::Pairs | Kind::Contended | Kind::Churn | Kind::Data => 2,
            Kind::Try | Kind::Expiry | Kind::Line => 1,
        }
    }

    /// How many keys there are unless it is said.
    pub(crate) fn default_keys(self) -> u64 {
        match self {
            Kind::Pairs | Kind::Churn | Kind::Line => 1_000_000,
            Kind::Contended | Kind::Try => 16,
            Kind::Expiry | Kind::Data => 10_000,
        }
    }

    /// Milliseconds of lease unless it is said.
    pub(crate) fn default_lease_ms(self) -> u32 {
        match self {
            Kind::Expiry => 100,
            _ => 10_000,
        }
    }
}

/// How long a granted key is held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Hold {
    /// Mean, in nanoseconds; 0 releases at once.
    pub(crate) mean_ns: u64,
    /// Exponentially distributed instead of always the same.
    pub(crate) is_random: bool,
}

/// How a churning client ends its connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Close {
    /// In order.
    #[default]
    Fin,
    /// With a reset.
    Reset,
}

/// One thing that clients do, again and again.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Activity {
    /// What.
    pub(crate) kind: Kind,
    /// How often it is chosen, against the others.
    pub(crate) weight: u32,
    /// Number of keys, over all clients.
    pub(crate) keys: u64,
    /// Exponent of the key's frequencies; `None`: all alike.
    pub(crate) zipf: Option<f64>,
    /// Longest wait for a grant, in milliseconds.
    pub(crate) wait_ms: u32,
    /// Lease in milliseconds.
    pub(crate) lease_ms: u32,
    /// Between grant and release.
    pub(crate) hold: Hold,
    /// Size of what Put stores.
    pub(crate) data_bytes: usize,
    /// How connections of `churn` end.
    pub(crate) close: Close,
}
