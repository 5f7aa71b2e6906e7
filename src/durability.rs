//! What loops and the store tell each other, so that no restart grants twice.
//!
//! The store keeps on disk, for the whole server:
//!
//! - **D**, in milliseconds: at least as long as every lease that a sent reply told of
//!   and that is not recorded one by one. After a crash nothing is granted for D.
//! - **The token mark**: no token at or above it was sent.
//! - **Records**: the leases longer than the cap on D, which only JackrabbitDLM asks
//!   for, one by one.
//!
//! Each loop asks for what its next replies rely on ([`Ask`]) and holds back those
//! replies, and no others, until the store's [`News`] say that it is durable. Asks of a
//! loop reach the store in order, and so do its news the loop.

use crate::engine::time::Time;

/// The least D, once there was a lease, in milliseconds.
pub const MIN_D_MS: u64 = 1024;

/// The least that the cap on D is, in milliseconds, whatever `--max-lease` is.
pub const MIN_D_CAP_MS: u64 = 300_000;

/// Tokens that are reserved at a time: hours of the busiest server's, and no more
/// than a minute and a bit of the wall clock, from which tokens start.
pub const TOKEN_BLOCK: u64 = 1 << 36;

/// What D has to be for leases of `lease_ms` at most: a power of two, within the cap.
pub const fn d_for(lease_ms: u64, cap_ms: u64) -> u64 {
    if lease_ms >= cap_ms {
        return cap_ms;
    }
    let power = lease_ms.next_power_of_two();
    let power = if power < MIN_D_MS { MIN_D_MS } else { power };
    if power < cap_ms { power } else { cap_ms }
}

/// The next lower D that there is: the largest power of two below `d_ms`, but not below
/// [`MIN_D_MS`], unless `d_ms` is.
pub const fn lower_d(d_ms: u64) -> u64 {
    if d_ms <= MIN_D_MS {
        return d_ms;
    }
    1 << (d_ms - 1).ilog2()
}

/// What a loop asks of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// This loop's leases that are not recorded become as long as `to_ms`, a value of
    /// [`d_for`]. It replies to none longer than it may so far before
    /// [`News::Raised`]; [`News::NotRaised`] if D could not be written. One raise is
    /// under way at a time.
    Raise {
        /// In milliseconds.
        to_ms: u64,
    },
    /// No lease of this loop that is not recorded, alive or to come, is longer than
    /// `to_ms` until it asks for a raise. Not answered, and not asked while a raise is
    /// under way.
    Lower {
        /// In milliseconds.
        to_ms: u64,
    },
    /// The mark is to be `mark` at least: [`News::Reserved`] or [`News::NotReserved`]
    /// answers. One is under way at a time.
    Reserve {
        /// The first token that stays unreserved.
        mark: u64,
    },
    /// A record changes. Numbers of a loop count up from 1 without gaps.
    Record {
        /// The change's number.
        number: u64,
        /// What changes.
        change: RecordChange,
    },
}

/// What the store tells a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// D is durable and covers what this loop asked for last.
    Raised,
    /// D could not be written: what it was before is in force. Ask again when another
    /// lease needs it.
    NotRaised,
    /// The mark is durable and at least this.
    Reserved {
        /// The first token that may not be given out.
        mark: u64,
    },
    /// The mark could not be written.
    NotReserved,
    /// All changes up to this number are durable.
    Recorded {
        /// The last of them.
        up_to: u64,
    },
    /// Changes up to this number could not be written, some of them; the store tries
    /// again by itself, and says this again if that fails.
    NotRecorded {
        /// The last of them.
        up_to: u64,
    },
}

/// A change of the record of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RecordChange {
    /// The key is held like this; replaces what was recorded of it.
    Set(LeaseRecord),
    /// The key is not held any more by a recorded lease.
    Remove {
        /// The key.
        key: Box<[u8]>,
    },
}

impl RecordChange {
    /// The key whose record changes.
    pub fn key(&self) -> &[u8] {
        match self {
            RecordChange::Set(record) => &record.key,
            RecordChange::Remove { key } => key,
        }
    }
}

/// A JackrabbitDLM lease that is recorded by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// The key.
    pub key: Box<[u8]>,
    /// The holder's ID.
    pub id: Box<str>,
    /// The identity that the holder has proved, if any.
    pub name: Option<Box<str>>,
    /// When the lease is over, on the clock of the boot in which it was recorded; from
    /// the store, on that of this boot.
    pub deadline: Time,
    /// How long it was to last when it was recorded, in milliseconds: on another boot
    /// all of it counts again.
    pub length_ms: u64,
}

/// What has to be durable before a reply that tells of a lease is sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// D covers a lease of this length, in milliseconds; 0 where no lease is told of, or
    /// one that is recorded.
    pub lease_ms: u64,
    /// All changes of records up to this number are written; 0: whichever.
    pub change: u64,
}

/// What a loop starts with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Durable {
    /// D as it is durable: leases up to this are told of at once, in milliseconds.
    pub d_ms: u64,
    /// The cap on D: leases longer than this are recorded one by one, in milliseconds.
    pub cap_ms: u64,
    /// The first token that is not reserved.
    pub mark: u64,
    /// How many tokens are reserved at a time: [`TOKEN_BLOCK`], if not in a simulation.
    pub token_block: u64,
    /// When this was so: a start counts as a use of the longest leases.
    pub started_at: Time,
    /// Until when keys of which nothing is known may still be held from before the
    /// start; [`Time::ZERO`] if none can be.
    pub grace_end: Time,
}

#[cfg(test)]
mod tests {
    use super::*;

    const CAP_MS: u64 = 300_000;

    #[test]
    fn d_is_a_power_of_two_that_covers_the_lease_within_the_cap() {
        for (lease_ms, d_ms) in [
            (1, 1024),
            (1024, 1024),
            (1025, 2048),
            (5_000, 8_192),
            (255_000, 262_144),
            (262_144, 262_144),
            (262_145, CAP_MS),
            (CAP_MS, CAP_MS),
            (CAP_MS + 1, CAP_MS),
        ] {
            assert_eq!(d_for(lease_ms, CAP_MS), d_ms, "for {lease_ms} ms");
        }
    }

    #[test]
    fn d_falls_by_powers_of_two_to_the_least() {
        let mut levels = vec![2 * CAP_MS];
        while let Some(&last) = levels.last()
            && lower_d(last) < last
        {
            levels.push(lower_d(last));
        }
        let powers = (10..=19).rev().map(|power| 1 << power);
        assert_eq!(levels[1..], powers.collect::<Vec<u64>>());
        assert_eq!(lower_d(0), 0, "nothing was told of yet");
    }
}
