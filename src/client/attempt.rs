//! One acquire, from the caller's call to its outcome, without I/O: times and
//! replies go in, requests and the outcome come out.

use super::{Key, Outcome, Ticket, fresh_owner, ticket};
use crate::clock::{self, Time};
use crate::protocol::{Reply, Request};
use std::time::Duration;

/// How long an immediate attempt (`wait` = 0) may take on its way, in milliseconds.
pub const IMMEDIATE_DEADLINE_MS: u64 = 5_000;
/// How long after its deadline an acquire still reads for its reply, in milliseconds.
pub const REPLY_GRACE_MS: u64 = 1_000;

/// What is asked for, and until when: made once, at the start of the operation,
/// so that connecting and retrying while nothing was sent cost of the same wait.
#[derive(Clone, Debug)]
pub struct Attempt {
    key: Key,
    owner: u64,
    lease_ms: u32,
    deadline: Time,
    immediate: bool,
}

/// A wait or a lease that no request can carry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimeError {
    /// The lease is 0.
    #[error("a lease of 0 would be over when it starts")]
    NoLease,
    /// More milliseconds than 32 bits hold.
    #[error("a wait or lease is at most {} ms", u32::MAX)]
    TooLong,
}

impl Attempt {
    /// Starts the operation now, with a fresh owner.
    ///
    /// # Errors
    /// As [`Attempt::start`].
    pub fn new(key: Key, wait: Duration, lease: Duration) -> Result<Attempt, TimeError> {
        Attempt::start(clock::now(), fresh_owner(), key, wait, lease)
    }

    /// Starts the operation at `now`. Wait and lease count in milliseconds, parts
    /// of one rounded up. `owner` must be fresh and not 0.
    ///
    /// # Errors
    /// The lease is 0, or one of the times is longer than a request can carry.
    pub fn start(
        now: Time,
        owner: u64,
        key: Key,
        wait: Duration,
        lease: Duration,
    ) -> Result<Attempt, TimeError> {
        let wait_ms = whole_ms(wait)?;
        let lease_ms = lease_ms(lease)?;
        let deadline = match wait_ms {
            0 => now.plus_millis(IMMEDIATE_DEADLINE_MS),
            _ => now.plus_millis(u64::from(wait_ms)),
        };
        Ok(Attempt {
            key,
            owner,
            lease_ms,
            deadline,
            immediate: wait_ms == 0,
        })
    }

    /// The lock's name.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The value that the reply echoes.
    pub fn owner(&self) -> u64 {
        self.owner
    }

    /// The end of the whole operation, connecting included.
    pub fn deadline(&self) -> Time {
        self.deadline
    }

    /// The request as it must be sent now: its wait is what is left, rounded up.
    /// `None` once the deadline has passed: then it must not be sent any more, and
    /// the attempt has timed out.
    pub fn request(&self, now: Time) -> Option<Request<'_>> {
        if now >= self.deadline {
            return None;
        }
        let wait_ms = match self.immediate {
            true => 0,
            false => u32::try_from(self.deadline.millis_since_ceil(now)).unwrap_or(u32::MAX),
        };
        Some(Request::Acquire {
            owner: self.owner,
            wait_ms,
            lease_ms: self.lease_ms,
            key: self.key.as_bytes(),
        })
    }

    /// The request's first byte was handed to the kernel after `sent_at`: from now
    /// on it must never be sent again.
    pub fn handle_sent(&self, sent_at: Time) -> InFlight<'_> {
        InFlight {
            attempt: self,
            sent_at,
            cancelled: false,
        }
    }
}

/// An acquire of which at least one byte was sent.
#[derive(Debug)]
pub struct InFlight<'a> {
    attempt: &'a Attempt,
    sent_at: Time,
    cancelled: bool,
}

/// What a reply means.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The operation is over.
    Done(Outcome),
    /// Granted too late for the caller: release exactly this token, then the
    /// operation is over as indeterminate.
    TooLate(u64),
    /// No reply that an acquire can have.
    Nonsense,
}

/// What to do at [`InFlight::poll_timeout`].
#[derive(Debug, PartialEq, Eq)]
pub enum Overdue<'a> {
    /// Send this, and go on reading.
    Cancel(Request<'a>),
    /// Close the session: the operation is over as indeterminate.
    GiveUp,
}

impl<'a> InFlight<'a> {
    /// The lock's name.
    pub fn key(&self) -> &'a Key {
        &self.attempt.key
    }

    /// When to call [`InFlight::handle_timeout`].
    pub fn poll_timeout(&self) -> Time {
        match self.cancelled {
            true => self.attempt.deadline.plus_millis(REPLY_GRACE_MS),
            false => self.attempt.deadline,
        }
    }

    /// No reply until [`InFlight::poll_timeout`]. `owner` must be fresh.
    ///
    /// An attempt that may have queued is cancelled first: its `T` comes a little
    /// after the deadline, because the wait on the wire was rounded up.
    pub fn handle_timeout(&mut self, owner: u64) -> Overdue<'a> {
        if self.cancelled || self.attempt.immediate {
            return Overdue::GiveUp;
        }
        self.cancelled = true;
        Overdue::Cancel(Request::Cancel {
            owner,
            target: self.attempt.owner,
            key: self.attempt.key.as_bytes(),
        })
    }

    /// The reply with this attempt's owner, read at `now`, after it arrived.
    pub fn handle_reply(&self, now: Time, reply: Reply) -> Verdict {
        match reply {
            Reply::Acquired {
                token, waited_ms, ..
            } => {
                let lease_ends = self.lease_ends(now, waited_ms);
                if now >= self.attempt.deadline || now >= lease_ends {
                    return Verdict::TooLate(token);
                }
                let key = self.attempt.key.clone();
                Verdict::Done(Outcome::Acquired(Ticket::new(
                    key, token, waited_ms, lease_ends,
                )))
            }
            Reply::TimedOut { .. } => Verdict::Done(Outcome::TimedOut),
            Reply::Busy { .. } => Verdict::Done(Outcome::Busy),
            Reply::Error { code, .. } => Verdict::Done(Outcome::Rejected(code)),
            _ => Verdict::Nonsense,
        }
    }

    /// The grant was made no earlier than `waited_ms` after sending, and of course
    /// before now, whatever the server says.
    fn lease_ends(&self, now: Time, waited_ms: u32) -> Time {
        let since_sent_ms = now.millis_since_floor(self.sent_at);
        let waited_ms = u64::from(waited_ms).min(since_sent_ms);
        ticket::lease_bound(self.sent_at, waited_ms + u64::from(self.attempt.lease_ms))
    }
}

/// A lease in milliseconds, parts of one rounded up.
pub(super) fn lease_ms(lease: Duration) -> Result<u32, TimeError> {
    match whole_ms(lease)? {
        0 => Err(TimeError::NoLease),
        lease_ms => Ok(lease_ms),
    }
}

/// Milliseconds, parts of one rounded up.
pub(super) fn whole_ms(duration: Duration) -> Result<u32, TimeError> {
    let ms = duration.as_nanos().div_ceil(1_000_000);
    u32::try_from(ms).map_err(|_| TimeError::TooLong)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::ErrorCode;

    const OWNER: u64 = 77;

    fn ms(ms: u64) -> Time {
        Time::from_millis(ms)
    }

    fn attempt(wait: Duration) -> Attempt {
        let key = Key::new("k").expect("a good key");
        Attempt::start(ms(1_000), OWNER, key, wait, Duration::from_secs(2)).expect("good times")
    }

    fn waiting() -> Attempt {
        attempt(Duration::from_secs(10))
    }

    fn wire_wait_ms(attempt: &Attempt, now: Time) -> Option<u32> {
        match attempt.request(now)? {
            Request::Acquire {
                owner: OWNER,
                wait_ms,
                lease_ms: 2_000,
                key: b"k",
            } => Some(wait_ms),
            other => panic!("not the acquire: {other:?}"),
        }
    }

    fn acquired(waited_ms: u32) -> Reply {
        Reply::Acquired {
            owner: OWNER,
            token: 5,
            waited_ms,
        }
    }

    /// End of the lease that a reply at `now` gives, `None` if it is too late.
    fn lease_ends(sent_at: Time, now: Time, waited_ms: u32) -> Option<Time> {
        let attempt = waiting();
        match attempt
            .handle_sent(sent_at)
            .handle_reply(now, acquired(waited_ms))
        {
            Verdict::Done(Outcome::Acquired(ticket)) => Some(ticket.lease_ends()),
            Verdict::TooLate(5) => None,
            other => panic!("neither granted nor too late: {other:?}"),
        }
    }

    #[test]
    fn the_wire_wait_is_what_is_left_rounded_up_and_never_renewed() {
        let attempt = waiting();
        let almost_over = Time::from_nanos(ms(11_000).as_nanos() - 1);
        for (now, expected) in [
            (ms(1_000), Some(10_000)),
            (Time::from_nanos(1_000_000_001), Some(10_000)),
            (ms(1_001), Some(9_999)),
            (ms(10_999), Some(1)),
            (almost_over, Some(1)),
            (ms(11_000), None),
            (ms(99_000), None),
        ] {
            assert_eq!(wire_wait_ms(&attempt, now), expected, "at {now:?}");
        }
    }

    #[test]
    fn an_immediate_attempt_stays_immediate_for_five_seconds() {
        let attempt = attempt(Duration::ZERO);
        assert_eq!(wire_wait_ms(&attempt, ms(1_000)), Some(0));
        assert_eq!(wire_wait_ms(&attempt, ms(5_999)), Some(0));
        assert_eq!(wire_wait_ms(&attempt, ms(6_000)), None);
        let mut in_flight = attempt.handle_sent(ms(1_000));
        assert_eq!(in_flight.poll_timeout(), ms(6_000));
        assert_eq!(in_flight.handle_timeout(1), Overdue::GiveUp);
    }

    #[test]
    fn a_wait_shorter_than_a_millisecond_still_waits() {
        let attempt = attempt(Duration::from_nanos(1));
        assert_eq!(wire_wait_ms(&attempt, ms(1_000)), Some(1));
    }

    #[test]
    fn impossible_times_are_refused() {
        let too_long = Duration::from_millis(u64::from(u32::MAX) + 1);
        let second = Duration::from_secs(1);
        for (wait, lease, error) in [
            (second, Duration::ZERO, TimeError::NoLease),
            (too_long, second, TimeError::TooLong),
            (second, too_long, TimeError::TooLong),
            (Duration::MAX, second, TimeError::TooLong),
        ] {
            let key = Key::new("k").expect("a good key");
            let started = Attempt::start(ms(0), OWNER, key, wait, lease);
            assert_eq!(started.err(), Some(error), "{wait:?} {lease:?}");
        }
    }

    #[test]
    fn at_the_deadline_it_cancels_then_reads_on_for_a_second() {
        let attempt = waiting();
        let mut in_flight = attempt.handle_sent(ms(1_500));
        assert_eq!(in_flight.poll_timeout(), ms(11_000));
        assert_eq!(
            in_flight.handle_timeout(9),
            Overdue::Cancel(Request::Cancel {
                owner: 9,
                target: OWNER,
                key: b"k"
            })
        );
        assert_eq!(in_flight.poll_timeout(), ms(12_000));
        assert_eq!(in_flight.handle_timeout(10), Overdue::GiveUp);
    }

    #[test]
    fn the_lease_counts_from_send_time_and_waited_less_the_margin() {
        // sent + waited + lease, less a thousandth of waited + lease, at least 1 ms.
        assert_eq!(lease_ends(ms(1_000), ms(1_010), 0), Some(ms(2_998)));
        assert_eq!(lease_ends(ms(1_000), ms(5_000), 3_000), Some(ms(6_000 - 5)));
    }

    #[test]
    fn no_server_can_move_the_grant_past_its_reply() {
        assert_eq!(
            lease_ends(ms(1_000), ms(1_010), u32::MAX),
            lease_ends(ms(1_000), ms(1_010), 10)
        );
    }

    #[test]
    fn a_grant_read_at_the_deadline_or_after_its_lease_is_given_back() {
        let last = Time::from_nanos(ms(11_000).as_nanos() - 1);
        assert!(lease_ends(ms(10_000), last, 0).is_some());
        assert_eq!(lease_ends(ms(10_000), ms(11_000), 0), None);
        assert!(lease_ends(ms(1_000), ms(2_997), 0).is_some());
        assert_eq!(lease_ends(ms(1_000), ms(2_998), 0), None);
    }

    #[test]
    fn refusals_are_definitive_even_after_the_deadline() {
        let attempt = waiting();
        let owner = OWNER;
        let code = ErrorCode::ShuttingDown;
        for (reply, outcome) in [
            (Reply::TimedOut { owner }, Outcome::TimedOut),
            (Reply::Busy { owner }, Outcome::Busy),
            (Reply::Error { owner, code }, Outcome::Rejected(code)),
        ] {
            for now in [ms(2_000), ms(11_500)] {
                assert_eq!(
                    attempt.handle_sent(ms(1_000)).handle_reply(now, reply),
                    Verdict::Done(outcome.clone())
                );
            }
        }
        assert_eq!(
            attempt
                .handle_sent(ms(1_000))
                .handle_reply(ms(2_000), Reply::Pong { owner }),
            Verdict::Nonsense
        );
    }
}
