//! When requests are to be sent in the open loop, whatever the server does.

use super::random::Random;

/// Intended times, one after the other. It never waits for anybody: a time that is
/// taken late is still the time that was intended.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    start_ns: u64,
    period_ns: f64,
    taken: u64,
    /// For Poisson arrivals: chance, and the offset of the next one from the start.
    poisson: Option<(Random, f64)>,
    offset_ns: f64,
}

impl Schedule {
    /// Equally spaced, `per_second` of them, the first `offset` periods after `start_ns`.
    pub(crate) fn uniform(start_ns: u64, per_second: f64, offset: f64) -> Schedule {
        let period_ns = 1e9 / per_second;
        Schedule {
            start_ns,
            period_ns,
            taken: 0,
            poisson: None,
            offset_ns: offset * period_ns,
        }
    }

    /// Independent of each other, `per_second` of them on average.
    pub(crate) fn poisson(start_ns: u64, per_second: f64, mut random: Random) -> Schedule {
        let period_ns = 1e9 / per_second;
        let first = random.exponential() * period_ns;
        Schedule {
            start_ns,
            period_ns,
            taken: 0,
            poisson: Some((random, first)),
            offset_ns: 0.0,
        }
    }

    /// The next intended time.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        let after_start = match &self.poisson {
            Some((_, next)) => *next,
            // A product, not a sum: no error builds up over a long run.
            None => self.offset_ns + self.taken as f64 * self.period_ns,
        };
        self.start_ns + after_start as u64
    }

    /// Takes it, if it has come.
    #[inline]
    pub(crate) fn take_due(&mut self, now_ns: u64) -> Option<u64> {
        let due_ns = self.due_ns();
        if due_ns > now_ns {
            return None;
        }
        self.taken += 1;
        if let Some((random, next)) = &mut self.poisson {
            *next += random.exponential() * self.period_ns;
        }
        Some(due_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_times_do_not_drift_and_threads_take_turns() {
        let mut one = Schedule::uniform(1_000, 3_000.0, 0.0);
        let mut other = Schedule::uniform(1_000, 3_000.0, 0.5);
        for index in 0..3_000_000_u64 {
            let expected = 1_000.0 + index as f64 * 1e9 / 3_000.0;
            let due = one.take_due(u64::MAX).expect("it is due");
            assert!((due as f64 - expected).abs() < 2.0, "{index}: {due}");
            let between = other.take_due(u64::MAX).expect("it is due");
            assert!((between as f64 - expected - 1e9 / 6_000.0).abs() < 2.0);
        }
    }

    #[test]
    fn nothing_is_due_early_and_lateness_changes_no_intended_time() {
        let mut schedule = Schedule::uniform(0, 1_000.0, 0.0);
        assert_eq!(schedule.take_due(0), Some(0));
        assert_eq!(schedule.take_due(999_999), None);
        assert_eq!(schedule.take_due(5_500_000), Some(1_000_000));
        assert_eq!(schedule.take_due(5_500_000), Some(2_000_000));
    }

    #[test]
    fn poisson_arrivals_have_the_rate_and_the_spread() {
        let mut schedule = Schedule::poisson(0, 1_000.0, Random::new(5, 0));
        let times: Vec<u64> = (0..100_000)
            .map_while(|_| schedule.take_due(u64::MAX))
            .collect();
        let gaps: Vec<f64> = times
            .windows(2)
            .map(|w| (w[1] - w[0]) as f64 / 1e6)
            .collect();
        let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.05, "{variance}");
    }
}
