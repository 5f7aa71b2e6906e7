//! What a holder has in hand, and for how long it may rely on it.

use super::Key;
use crate::clock::{self, Time};
use std::time::Duration;

const NANOS_PER_MS: u64 = 1_000_000;

/// A grant: proof for the resource (its token), and the time until which the
/// holder may rely on holding it.
///
/// A ticket is only a view of what the server decides; dropping it releases
/// nothing. In a forked child it is dead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticket {
    key: Key,
    token: u64,
    waited_ms: u32,
    lease_ends: Time,
    process: u32,
}

impl Ticket {
    pub(super) fn new(key: Key, token: u64, waited_ms: u32, lease_ends: Time) -> Ticket {
        Ticket {
            key,
            token,
            waited_ms,
            lease_ends,
            process: std::process::id(),
        }
    }

    /// The lock's name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The fencing token: larger than that of every earlier grant of this key.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// How long the server let the acquire wait.
    pub fn waited(&self) -> Duration {
        Duration::from_millis(u64::from(self.waited_ms))
    }

    /// Until when the lock is surely held, on this host's boottime clock.
    pub fn lease_ends(&self) -> Time {
        self.lease_ends
    }

    /// Whether the lock is surely held at this moment.
    pub fn is_valid(&self) -> bool {
        !self.remaining().is_zero()
    }

    /// How long the lock is surely held from now on.
    pub fn remaining(&self) -> Duration {
        if self.process != std::process::id() {
            return Duration::ZERO;
        }
        let left_nanos = self
            .lease_ends
            .as_nanos()
            .saturating_sub(clock::now().as_nanos());
        Duration::from_nanos(left_nanos)
    }

    /// An extend by `lease_ms`, sent at `sent_at`, was confirmed. It counts from
    /// its sending, and never shortens.
    pub(super) fn handle_extended(&mut self, sent_at: Time, lease_ms: u32) {
        let extended = lease_bound(sent_at, u64::from(lease_ms));
        self.lease_ends = self.lease_ends.max(extended);
    }
}

/// Until when a lease can be relied on that ends no earlier than `after_ms` after
/// `sent_at`, less a margin for a server whose clock runs faster: a thousandth of
/// the time from `sent_at` on, at least a millisecond.
pub(super) fn lease_bound(sent_at: Time, after_ms: u64) -> Time {
    let after_nanos = after_ms.saturating_mul(NANOS_PER_MS);
    let margin_nanos = after_nanos.div_ceil(1_000).max(NANOS_PER_MS);
    let sure_nanos = after_nanos.saturating_sub(margin_nanos);
    Time::from_nanos(sent_at.as_nanos().saturating_add(sure_nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticket(lease_ends: Time) -> Ticket {
        Ticket::new(Key::new("k").expect("a good key"), 1, 0, lease_ends)
    }

    #[test]
    fn the_margin_is_a_thousandth_and_at_least_a_millisecond() {
        let sent_at = Time::from_millis(10_000);
        for (after_ms, sure_ms) in [(0, 0), (1, 0), (2, 1), (1_000, 999), (2_000, 1_998)] {
            assert_eq!(
                lease_bound(sent_at, after_ms),
                sent_at.plus_millis(sure_ms),
                "{after_ms}"
            );
        }
        assert_eq!(lease_bound(Time::MAX, 1_000), Time::MAX);
    }

    #[test]
    fn an_extend_counts_from_its_sending_and_never_shortens() {
        let mut ticket = ticket(Time::from_millis(20_000));
        ticket.handle_extended(Time::from_millis(10_000), 5_000);
        assert_eq!(ticket.lease_ends(), Time::from_millis(20_000));
        ticket.handle_extended(Time::from_millis(17_000), 5_000);
        assert_eq!(ticket.lease_ends(), Time::from_millis(21_995));
    }

    #[test]
    fn validity_compares_the_clock_at_the_call() {
        assert!(!ticket(clock::now()).is_valid());
        let hour_ms = 3_600_000;
        let valid = ticket(clock::now().plus_millis(hour_ms));
        assert!(valid.is_valid());
        assert!(valid.remaining() <= Duration::from_millis(hour_ms));
    }

    #[test]
    fn in_another_process_it_is_dead() {
        let mut forked = ticket(clock::now().plus_millis(3_600_000));
        forked.process += 1;
        assert!(!forked.is_valid());
        assert_eq!(forked.remaining(), Duration::ZERO);
    }
}
