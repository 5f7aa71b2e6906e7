//! What is believed of each key.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Until when the client that sent an acquire at `sent_ns` may believe in its lease:
/// the grant came no earlier than the send time plus what the acquire waited, and the
/// margin is for clocks that run at different rates.
pub(crate) fn bound_ns(sent_ns: u64, waited_ms: u32, lease_ms: u32) -> u64 {
    const NANOS_PER_MS: u64 = 1_000_000;
    let span_ns = (u64::from(waited_ms) + u64::from(lease_ms)) * NANOS_PER_MS;
    let margin_ns = (span_ns / 1_000).max(NANOS_PER_MS);
    (sent_ns + span_ns).saturating_sub(margin_ns)
}

/// A grant as its client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grant {
    /// Fencing token; 0 where the protocol has none.
    pub(crate) token: u64,
    /// Before the acquire's first byte was given to the kernel.
    pub(crate) sent_ns: u64,
    /// After the grant's last byte was taken from it.
    pub(crate) received_ns: u64,
    /// How long the acquire was queued.
    pub(crate) waited_ms: u32,
    /// The lease that was asked for.
    pub(crate) lease_ms: u32,
    /// Number of the client.
    pub(crate) client: u32,
}

/// What no server may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// A key was granted while its holder could believe in its lease.
    #[error(
        "two holders: granted to client {client} while client {holder} may hold it for another {left_us} us"
    )]
    TwoHolders {
        /// Whom it was granted to.
        client: u32,
        /// Who held it.
        holder: u32,
        /// How long the holder's bound went on, in microseconds.
        left_us: u64,
    },
    /// A later grant's token is not larger.
    #[error("token {token} after token {before}")]
    TokenNotGrown {
        /// The later grant's.
        token: u64,
        /// The earlier one's.
        before: u64,
    },
}

/// One key that all clients share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct KeyState {
    token: u64,
    client: u32,
    received_ns: u64,
    /// Until when the holder may believe; its release ends that.
    until_ns: u64,
    /// When the key became free for the next in line, as far as clients know: the
    /// release was sent, or the lease began as early as it may have and is over.
    freed_ns: u64,
    is_released: bool,
    /// An answer was lost: the key may be held by nobody known.
    is_unsure: bool,
}

impl KeyState {
    /// A grant was received. `Some`: nanoseconds since the key became free, if this
    /// acquire was in line then.
    ///
    /// # Errors
    /// The server was wrong to give it.
    pub(crate) fn granted(&mut self, grant: &Grant) -> Result<Option<u64>, Fault> {
        let until_ns = bound_ns(grant.sent_ns, grant.waited_ms, grant.lease_ms);
        let two_holders = |left_ns: u64| Fault::TwoHolders {
            client: grant.client,
            holder: self.client,
            left_us: left_ns / 1_000,
        };
        if grant.token != 0 && grant.token <= self.token {
            // An older grant may be seen after a younger one, if it was sent for before
            // that one was seen, and if its lease was over when that one was given.
            if grant.token == self.token || grant.sent_ns >= self.received_ns {
                return Err(Fault::TokenNotGrown {
                    token: grant.token,
                    before: self.token,
                });
            }
            if until_ns > self.received_ns {
                return Err(two_holders(until_ns - self.received_ns));
            }
            return Ok(None);
        }
        if self.until_ns > grant.received_ns {
            return Err(two_holders(self.until_ns - grant.received_ns));
        }
        let was_in_line = self.freed_ns != 0
            && grant.sent_ns <= self.freed_ns
            && self.freed_ns <= grant.received_ns;
        let hand_over_ns = was_in_line.then(|| grant.received_ns - self.freed_ns);
        let lease_ms = u64::from(grant.waited_ms) + u64::from(grant.lease_ms);
        *self = KeyState {
            token: grant.token,
            client: grant.client,
            received_ns: grant.received_ns,
            until_ns,
            freed_ns: grant.sent_ns + lease_ms * 1_000_000,
            is_released: false,
            is_unsure: self.is_unsure,
        };
        Ok(hand_over_ns)
    }

    /// The holder is about to send its release: from now on it believes nothing.
    pub(crate) fn release_sent(&mut self, client: u32, token: u64, now_ns: u64) {
        if self.is_held_by(client, token) {
            self.until_ns = self.until_ns.min(now_ns);
            self.freed_ns = self.freed_ns.min(now_ns);
        }
    }

    /// The release was answered as it should be.
    pub(crate) fn released(&mut self, client: u32, token: u64) {
        if self.is_held_by(client, token) {
            self.is_released = true;
        }
    }

    /// An answer to a request for the key was lost.
    pub(crate) fn lost(&mut self) {
        self.is_unsure = true;
    }

    /// Whether nobody can hold the key now: it was never granted, or given back.
    pub(crate) fn is_surely_free(&self) -> bool {
        !self.is_unsure && (self.received_ns == 0 || self.is_released)
    }

    fn is_held_by(&self, client: u32, token: u64) -> bool {
        self.received_ns != 0 && self.client == client && self.token == token
    }
}

/// The keys of an activity that all clients of all threads share.
#[derive(Debug)]
pub(crate) struct SharedLedger {
    keys: Vec<Mutex<KeyState>>,
}

impl SharedLedger {
    /// A ledger of `count` keys.
    pub(crate) fn new(count: u64) -> SharedLedger {
        SharedLedger {
            keys: (0..count).map(|_| Mutex::default()).collect(),
        }
    }

    /// The key with this number.
    pub(crate) fn key(&self, number: u64) -> MutexGuard<'_, KeyState> {
        let key = &self.keys[number as usize];
        key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many keys there are.
    pub(crate) fn len(&self) -> u64 {
        self.keys.len() as u64
    }
}

/// The latest tokens of keys that one thread alone asks for.
#[derive(Debug, Default)]
pub(crate) struct TokenTable(Vec<u64>);

impl TokenTable {
    /// A table of `count` keys.
    pub(crate) fn new(count: u64) -> TokenTable {
        TokenTable(vec![0; count as usize])
    }

    /// The latest token of the key in this place.
    #[inline]
    pub(crate) fn latest(&self, place: usize) -> u64 {
        self.0[place]
    }

    /// A grant of the key in this place, whose latest token was `before`.
    ///
    /// # Errors
    /// Its token is not larger.
    #[inline]
    pub(crate) fn granted(&mut self, place: usize, before: u64, token: u64) -> Result<(), Fault> {
        self.0[place] = token;
        match token > before {
            true => Ok(()),
            false => Err(Fault::TokenNotGrown { token, before }),
        }
    }
}

/// What is kept of an activity's keys.
#[derive(Debug)]
pub(crate) enum Ledger {
    /// Nothing is watched.
    Off,
    /// Keys of this thread's clients.
    Private(TokenTable),
    /// Keys of all.
    Shared(Arc<SharedLedger>),
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn grant(client: u32, token: u64, sent_ms: u64, received_ms: u64, lease_ms: u32) -> Grant {
        Grant {
            token,
            sent_ns: sent_ms * MS,
            received_ns: received_ms * MS,
            waited_ms: 0,
            lease_ms,
            client,
        }
    }

    #[test]
    fn the_bound_has_its_margin() {
        // The margin is at least a millisecond, and a thousandth of wait and lease.
        assert_eq!(bound_ns(5 * MS, 0, 100), (5 + 100 - 1) * MS);
        assert_eq!(bound_ns(5 * MS, 2_000, 8_000), (5 + 10_000 - 10) * MS);
        assert_eq!(bound_ns(0, 0, 1), 0);
    }

    #[test]
    fn a_grant_within_the_holder_s_bound_is_two_holders() {
        let mut key = KeyState::default();
        assert_eq!(key.granted(&grant(1, 10, 1_000, 1_001, 100)), Ok(None));
        let fault = Fault::TwoHolders {
            client: 2,
            holder: 1,
            left_us: 1_000,
        };
        assert_eq!(key.granted(&grant(2, 11, 1_050, 1_098, 100)), Err(fault));
    }

    #[test]
    fn a_grant_after_release_or_bound_is_in_order() {
        let mut key = KeyState::default();
        assert_eq!(key.granted(&grant(1, 10, 1_000, 1_001, 100)), Ok(None));
        key.release_sent(1, 10, 1_010 * MS);
        // Asked before the release was sent: handed over, in 5 ms.
        assert_eq!(
            key.granted(&grant(2, 11, 1_005, 1_015, 100)),
            Ok(Some(5 * MS))
        );
        // Its lease began at 1005 at the earliest; nobody releases it.
        assert_eq!(
            key.granted(&grant(3, 12, 1_020, 1_107, 100)),
            Ok(Some(2 * MS))
        );
        // Asked when it was free: no hand-over.
        key.release_sent(3, 12, 1_110 * MS);
        assert_eq!(key.granted(&grant(1, 13, 1_111, 1_112, 100)), Ok(None));
    }

    #[test]
    fn only_the_holder_s_own_release_ends_its_belief() {
        let mut key = KeyState::default();
        assert_eq!(key.granted(&grant(1, 10, 1_000, 1_001, 100)), Ok(None));
        key.release_sent(2, 9, 1_010 * MS);
        key.release_sent(1, 9, 1_010 * MS);
        assert!(key.granted(&grant(2, 11, 1_005, 1_015, 100)).is_err());
    }

    #[test]
    fn tokens_must_grow() {
        for token in [10, 9, 1] {
            let mut key = KeyState::default();
            assert_eq!(key.granted(&grant(1, 10, 1_000, 1_001, 100)), Ok(None));
            key.release_sent(1, 10, 1_002 * MS);
            let fault = Fault::TokenNotGrown { token, before: 10 };
            assert_eq!(key.granted(&grant(2, token, 1_003, 1_004, 100)), Err(fault));
        }
    }

    #[test]
    fn an_older_grant_seen_late_is_no_fault_if_its_lease_was_over() {
        let mut key = KeyState::default();
        assert_eq!(key.granted(&grant(2, 11, 1_100, 1_201, 100)), Ok(None));
        // Sent for at 1000, so over at 1100: the younger was given after that.
        assert_eq!(key.granted(&grant(1, 10, 1_000, 1_202, 100)), Ok(None));
        // Sent for at 1150: its lease was not over when the younger was seen.
        let late = key.granted(&grant(3, 9, 1_150, 1_202, 100));
        assert!(matches!(late, Err(Fault::TwoHolders { .. })), "{late:?}");
        // The same token twice is never in order.
        let again = key.granted(&grant(3, 11, 1_000, 1_202, 100));
        assert!(
            matches!(again, Err(Fault::TokenNotGrown { .. })),
            "{again:?}"
        );
    }

    #[test]
    fn what_waited_is_not_counted_against_the_lease() {
        let mut key = KeyState::default();
        let waited = Grant {
            waited_ms: 500,
            ..grant(1, 10, 1_000, 1_501, 100)
        };
        assert_eq!(key.granted(&waited), Ok(None));
        assert!(key.granted(&grant(2, 11, 1_550, 1_590, 100)).is_err());
    }

    #[test]
    fn protocols_without_tokens_are_watched_for_two_holders_alone() {
        let mut key = KeyState::default();
        assert_eq!(key.granted(&grant(1, 0, 1_000, 1_001, 100)), Ok(None));
        assert!(key.granted(&grant(2, 0, 1_002, 1_003, 100)).is_err());
        key.release_sent(1, 0, 1_004 * MS);
        assert!(key.granted(&grant(2, 0, 1_002, 1_005, 100)).is_ok());
    }

    #[test]
    fn a_key_is_surely_free_when_it_was_given_back_and_nothing_was_lost() {
        let mut key = KeyState::default();
        assert!(key.is_surely_free());
        assert_eq!(key.granted(&grant(1, 10, 1_000, 1_001, 100)), Ok(None));
        key.release_sent(1, 10, 1_002 * MS);
        assert!(!key.is_surely_free());
        key.released(1, 10);
        assert!(key.is_surely_free());
        key.lost();
        assert!(!key.is_surely_free());
    }

    #[test]
    fn private_tokens_must_grow_too() {
        let mut table = TokenTable::new(2);
        let mut grant = |place, token| {
            let before = table.latest(place);
            table.granted(place, before, token).is_ok()
        };
        assert!(grant(0, 5) && grant(1, 5) && grant(0, 6));
        assert!(!grant(0, 6) && !grant(1, 4));
    }
}
