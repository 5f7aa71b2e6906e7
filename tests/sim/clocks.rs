//! Clients' clocks, which run a little faster or slower than the server's, and how long
//! a client believes in a lease by its own.

use fastrand::Rng;
use leasehold::engine::time::{NANOS_PER_MS, Time};

use crate::options::pick;

/// How far off the server's rate a client's clock may be, in millionths: what the
/// protocol's margin is for.
pub(crate) const WITHIN_MARGIN_PPM: i64 = 1_000;

/// What the clocks of a history's clients are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rates {
    /// How far off they may be.
    pub(crate) most_ppm: i64,
    /// Whether clients subtract the margin.
    pub(crate) keeps_margin: bool,
}

/// One client's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Clock {
    /// How many millionths faster than the server's it runs.
    fast_ppm: i64,
    keeps_margin: bool,
}

/// A lease as one client knows it: good for so long from when it sent its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    sent_at: Time,
    ms: u64,
    clock: Clock,
}

impl Rates {
    pub(crate) const WITHIN_MARGIN: Rates = Rates {
        most_ppm: WITHIN_MARGIN_PPM,
        keeps_margin: true,
    };

    /// The clock of some client: the worst are the likeliest.
    pub(crate) fn clock(self, rng: &mut Rng) -> Clock {
        let most = self.most_ppm;
        let between = rng.i64(-most..=most);
        let fast_ppm = pick(rng, &[-most, -most, most, 0, between]);
        self.clock_of(fast_ppm)
    }

    pub(crate) fn clock_of(self, fast_ppm: i64) -> Clock {
        Clock {
            fast_ppm,
            keeps_margin: self.keeps_margin,
        }
    }
}

impl Clock {
    /// The server's own rate.
    pub(crate) const TRUE: Clock = Clock {
        fast_ppm: 0,
        keeps_margin: true,
    };

    /// What it counts while so many nanoseconds pass, in millionths of them.
    fn counts(self, nanos: u64) -> u128 {
        let rate = u64::try_from(1_000_000 + self.fast_ppm).expect("it does not run backwards");
        u128::from(nanos) * u128::from(rate)
    }
}

impl Span {
    pub(crate) fn new(sent_at: Time, ms: u64, clock: Clock) -> Span {
        Span { sent_at, ms, clock }
    }

    /// Whether a client that looks at its clock at `now` still relies on it.
    pub(crate) fn is_believed(&self, now: Time) -> bool {
        let nanos = self.ms * NANOS_PER_MS;
        let margin_nanos = if self.clock.keeps_margin {
            NANOS_PER_MS.max(nanos / 1_000)
        } else {
            0
        };
        let passed_nanos = now.as_nanos().saturating_sub(self.sent_at.as_nanos());
        let sure_nanos = nanos.saturating_sub(margin_nanos);
        self.clock.counts(passed_nanos) < u128::from(sure_nanos) * 1_000_000
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SENT_AT: Time = Time::from_millis(5_000);

    /// How long a lease of so many milliseconds is believed in, in true microseconds.
    fn believed_micros(ms: u64, clock: Clock) -> u64 {
        let span = Span::new(SENT_AT, ms, clock);
        let at = |micros: u64| Time::from_nanos(SENT_AT.as_nanos() + micros * 1_000);
        let mut upto = 2 * ms * 1_000;
        let mut from = 0;
        while from < upto {
            let middle = from.midpoint(upto);
            if span.is_believed(at(middle)) {
                from = middle + 1;
            } else {
                upto = middle;
            }
        }
        from
    }

    #[test]
    fn the_margin_is_a_thousandth_and_at_least_a_millisecond() {
        for (ms, micros) in [(1, 0), (2, 1_000), (1_000, 999_000), (20_000, 19_980_000)] {
            assert_eq!(believed_micros(ms, Clock::TRUE), micros, "{ms} ms");
        }
    }

    #[test]
    fn the_slowest_clock_within_the_margin_comes_just_to_the_end() {
        let slowest = Rates::WITHIN_MARGIN.clock_of(-WITHIN_MARGIN_PPM);
        assert_eq!(believed_micros(20_000, slowest), 20_000_000);
        let slower = Rates::WITHIN_MARGIN.clock_of(-WITHIN_MARGIN_PPM - 1);
        assert!(believed_micros(20_000, slower) > 20_000_000);
        let fastest = Rates::WITHIN_MARGIN.clock_of(WITHIN_MARGIN_PPM);
        assert!(believed_micros(20_000, fastest) < 19_980_000);
    }
}
