//! The only reader of clocks.
//!
//! Every deadline, of the server and of its clients, is counted on the kernel's
//! boottime clock: it never jumps, and it goes on while the machine is suspended
//! (clock_gettime(2)). The wall clock is read for one purpose only, the floor of
//! the first token.

pub use crate::engine::time::Time;
use rustix::time::{ClockId, Timespec, clock_gettime};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Now, on the boottime clock.
pub fn now() -> Time {
    Time::from_nanos(nanos(clock_gettime(ClockId::Boottime)))
}

/// Nanoseconds of the wall clock since 1970; 0 if it stands before that.
pub fn wall_nanos() -> u64 {
    nanos(clock_gettime(ClockId::Realtime))
}

/// What a clock showed, in nanoseconds, held between 0 and `u64::MAX`.
fn nanos(shown: Timespec) -> u64 {
    let seconds = u64::try_from(shown.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(shown.tv_nsec).unwrap_or(0);
    seconds
        .saturating_mul(NANOS_PER_SECOND)
        .saturating_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_s_seconds_and_nanoseconds_become_one_number() {
        for (tv_sec, tv_nsec, expected) in [
            (0, 0, 0),
            (1, 2, 1_000_000_002),
            (1_700_000_000, 999_999_999, 1_700_000_000_999_999_999),
            (-1, 5, 5),
            (i64::MAX, 0, u64::MAX),
        ] {
            assert_eq!(nanos(Timespec { tv_sec, tv_nsec }), expected);
        }
    }

    #[test]
    fn boottime_does_not_go_back_and_is_no_wall_clock() {
        let first = now();
        let second = now();
        assert!(first > Time::ZERO);
        assert!(second >= first);
        // A machine that has run since 1970 would be needed for the two to meet.
        assert!(wall_nanos() > second.as_nanos());
    }
}
