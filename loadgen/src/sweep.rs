//! How fast it can go before latency breaks a bound.

use crate::options::SweepOptions;
use crate::plan::Plan;
use crate::report::Report;
use serde::Serialize;

/// What a sweep has found.
#[derive(Debug, Serialize)]
pub(crate) struct SweepReport {
    /// The bound, in microseconds.
    pub(crate) bound_us: f64,
    /// The share of requests that must keep it, in percent.
    pub(crate) percentile: f64,
    /// The highest rate that was tried and kept the bound.
    pub(crate) knee_requests_per_second: Option<f64>,
    /// All runs, in the order they were made.
    pub(crate) steps: Vec<Report>,
}

/// Which rate to try next: faster by a factor until the bound breaks, then halfway between
/// the fastest that held and the slowest that broke.
#[derive(Debug)]
struct Search {
    factor: f64,
    to: f64,
    refinements: u32,
    next: f64,
    held: Option<f64>,
    broke: Option<f64>,
}

impl Search {
    fn poll_rate(&self) -> Option<f64> {
        let is_over = match (self.held, self.broke) {
            (None, Some(_)) => true,
            (Some(_), Some(_)) => self.refinements == 0,
            (_, None) => self.next > self.to,
        };
        (!is_over).then_some(self.next)
    }

    fn handle_result(&mut self, keeps_bound: bool) {
        if self.broke.is_some() {
            self.refinements -= 1;
        }
        match keeps_bound {
            true => self.held = Some(self.next),
            false => self.broke = Some(self.next),
        }
        self.next = match (self.held, self.broke) {
            // The geometric mean: steps are factors.
            (Some(held), Some(broke)) => (held * broke).sqrt(),
            _ => self.next * self.factor,
        };
    }
}

/// Runs the steps; `run` makes one, `None` from it ends the sweep.
///
/// # Errors
/// One line: the options make no sense, or a run failed.
pub(crate) fn sweep<E>(
    options: &SweepOptions,
    plan: &Plan,
    mut run: impl FnMut(&Plan) -> Result<Option<(Report, u64)>, E>,
) -> Result<SweepReport, E>
where
    E: From<String>,
{
    check(options)?;
    let mut search = Search {
        factor: options.factor,
        to: options.to,
        refinements: options.refine,
        next: options.from,
        held: None,
        broke: None,
    };
    let bound_us = options.bound.as_secs_f64() * 1e6;
    let mut steps = Vec::new();
    while let Some(rate) = search.poll_rate() {
        let plan = Plan {
            rate: Some(rate),
            ..plan.clone()
        };
        let Some((report, at_percentile_ns)) = run(&plan)? else {
            break;
        };
        let is_fast = at_percentile_ns as f64 / 1e3 <= bound_us;
        // A schedule that is not kept breaks the bound, whatever the answers took.
        let is_kept = report.all.requests_per_second >= 0.95 * rate && report.all.errors == 0;
        search.handle_result(is_fast && is_kept);
        steps.push(report);
    }
    Ok(SweepReport {
        bound_us,
        percentile: options.percentile,
        knee_requests_per_second: search.held,
        steps,
    })
}

fn check(options: &SweepOptions) -> Result<(), String> {
    if !(options.from > 0.0 && options.from <= options.to && options.to <= 1e9) {
        return Err("--from: must be over 0 and at most --to, which is at most 1000000000".into());
    }
    if !(options.factor > 1.0 && options.factor <= 100.0) {
        return Err("--factor: must be over 1 and at most 100".into());
    }
    if !(options.percentile > 0.0 && options.percentile <= 100.0) {
        return Err("--percentile: must be over 0 and at most 100".into());
    }
    if options.bound.is_zero() {
        return Err("--bound: must be over 0".into());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rates tried on a server whose latency breaks above `capacity`, and the knee.
    fn tried(capacity: f64, to: f64) -> (Vec<f64>, Option<f64>) {
        let mut search = Search {
            factor: 2.0,
            to,
            refinements: 2,
            next: 100.0,
            held: None,
            broke: None,
        };
        let mut rates = Vec::new();
        while let Some(rate) = search.poll_rate() {
            rates.push(rate.round());
            search.handle_result(rate <= capacity);
        }
        (rates, search.held)
    }

    #[test]
    fn rates_rise_until_the_bound_breaks_and_close_in_on_the_knee() {
        let (rates, knee) = tried(1_000.0, 1e6);
        assert_eq!(rates, [100.0, 200.0, 400.0, 800.0, 1_600.0, 1_131.0, 951.0]);
        assert_eq!(knee.map(f64::round), Some(951.0));
    }

    #[test]
    fn a_server_that_is_never_or_always_fast_enough_ends_the_search() {
        assert_eq!(tried(1.0, 1e6), (vec![100.0], None));
        assert_eq!(tried(1e9, 500.0), (vec![100.0, 200.0, 400.0], Some(400.0)));
    }
}
