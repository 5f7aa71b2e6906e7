//! Points in time as the engine sees them: numbers passed in, never read.

/// Nanoseconds of the kernel's boottime clock (in the simulator: of its own).
///
/// Only [`crate::clock`] makes one from a real clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(u64);

/// Nanoseconds in a millisecond, the unit of the wire and of the timer wheel.
pub const NANOS_PER_MS: u64 = 1_000_000;

impl Time {
    /// The clock's zero.
    pub const ZERO: Time = Time(0);
    /// Later than any time that occurs.
    pub const MAX: Time = Time(u64::MAX);

    /// A time from nanoseconds since the clock's zero.
    pub const fn from_nanos(nanos: u64) -> Time {
        Time(nanos)
    }

    /// A time from milliseconds since the clock's zero.
    pub const fn from_millis(millis: u64) -> Time {
        Time(millis * NANOS_PER_MS)
    }

    /// Nanoseconds since the clock's zero.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// `millis` later; saturates at [`Time::MAX`].
    #[must_use]
    pub const fn plus_millis(self, millis: u64) -> Time {
        Time(self.0.saturating_add(millis.saturating_mul(NANOS_PER_MS)))
    }

    /// `duration` later; saturates at [`Time::MAX`].
    #[must_use]
    pub const fn plus(self, duration: core::time::Duration) -> Time {
        let nanos = duration.as_nanos();
        // A duration of more than 584 years is none that is ever asked for.
        let nanos = if nanos > u64::MAX as u128 {
            u64::MAX
        } else {
            nanos as u64
        };
        Time(self.0.saturating_add(nanos))
    }

    /// Milliseconds from `earlier` to `self`, rounded down; 0 if `earlier` is later.
    pub const fn millis_since_floor(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0) / NANOS_PER_MS
    }

    /// Milliseconds from `earlier` to `self`, rounded up; 0 if `earlier` is later.
    pub const fn millis_since_ceil(self, earlier: Time) -> u64 {
        self.0.saturating_sub(earlier.0).div_ceil(NANOS_PER_MS)
    }

    /// The last whole millisecond tick that is not after this time.
    pub const fn tick_floor(self) -> u64 {
        self.0 / NANOS_PER_MS
    }

    /// The first whole millisecond tick that is not before this time: a timer
    /// set for it never fires early.
    pub const fn tick_ceil(self) -> u64 {
        self.0.div_ceil(NANOS_PER_MS)
    }
}
