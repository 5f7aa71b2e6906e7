//! Results, and the forms in which they are shown.

mod compare;
mod hgrm;
mod plot;
mod table;

pub(crate) use compare::compare;
pub(crate) use hgrm::write_hgrm;
pub(crate) use plot::{check_path, plot_run};
pub(crate) use table::{run_table, sweep_table};

use crate::outcome::{Op, Outcome};
use crate::record::{OpRecord, empty_records};
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The result of a run, as `--json` prints it. Times are in microseconds.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    /// The protocol.
    pub(crate) target: String,
    /// The server's address.
    pub(crate) server: String,
    /// What clients did.
    pub(crate) workload: String,
    /// Connections.
    pub(crate) connections: u32,
    /// Clients on each.
    pub(crate) depth: u32,
    /// Threads.
    pub(crate) threads: u32,
    /// Requests per second asked for, in the open loop.
    pub(crate) rate: Option<f64>,
    /// Keys, of all activities.
    pub(crate) keys: u64,
    /// Other keys that were held.
    pub(crate) held: u64,
    /// Seed of the streams.
    pub(crate) seed: u64,
    /// Whether answers were watched.
    pub(crate) check: bool,
    /// Time measured.
    pub(crate) seconds: f64,
    /// Whether it was ended before its time.
    pub(crate) interrupted: bool,
    /// Requests that ended as they may.
    pub(crate) requests: u64,
    /// All requests together.
    #[serde(flatten)]
    pub(crate) all: Figures,
    /// Requests that ended as they should not, by how; also those that were refused as
    /// was to be expected.
    pub(crate) outcomes: BTreeMap<String, u64>,
    /// The first violation.
    pub(crate) violation: Option<String>,
    /// Arrivals that were due and never sent.
    pub(crate) unsent: u64,
    /// Connections that were made again.
    pub(crate) reconnections: u64,
    /// Keys whose state the server was asked for at the end, and told rightly.
    pub(crate) verified_keys: u64,
    /// CPU time of this program.
    pub(crate) generator_cpu_ns_per_request: f64,
    /// By operation.
    pub(crate) operations: BTreeMap<String, Figures>,
    /// By second.
    pub(crate) timeline: Vec<SecondReport>,
    /// The latency that this share of requests (in percent) does not pass, both in pairs.
    pub(crate) percentiles: Vec<(f64, f64)>,
}

/// What is told of all requests and of each operation alike.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figures {
    /// Those that ended as they may.
    pub(crate) requests_per_second: f64,
    /// Latency that half of them do not pass.
    pub(crate) p50_us: f64,
    /// And so on.
    pub(crate) p90_us: f64,
    /// And so on.
    pub(crate) p99_us: f64,
    /// And so on.
    pub(crate) p999_us: f64,
    /// And so on.
    pub(crate) p9999_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
    /// Those that ended otherwise.
    pub(crate) errors: u64,
    /// Violations: they end a run, so at most one.
    pub(crate) violations: u64,
    /// CPU time of the server, where it is on this machine; not told by operation.
    pub(crate) server_cpu_ns_per_request: Option<f64>,
}

/// One second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct SecondReport {
    /// Its number.
    pub(crate) second: u64,
    /// Requests that ended in it as they may.
    pub(crate) requests: u64,
    /// Requests that ended otherwise.
    pub(crate) errors: u64,
    /// Latencies.
    pub(crate) p50_us: f64,
    /// And so on.
    pub(crate) p99_us: f64,
    /// The longest.
    pub(crate) max_us: f64,
}

/// What was recorded, over all threads.
#[derive(Clone, Debug)]
pub(crate) struct Totals {
    /// By operation, in the order of [`Op::ALL`].
    pub(crate) records: Vec<OpRecord>,
    /// Latencies of all requests.
    pub(crate) all: Histogram<u64>,
    /// Requests answered while it was measured, rightly or not.
    pub(crate) completed: u64,
    is_dlm: bool,
}

impl Totals {
    /// The sum of what threads recorded.
    pub(crate) fn of<'a>(threads: impl Iterator<Item = &'a [OpRecord]>, is_dlm: bool) -> Totals {
        let mut records = empty_records();
        for thread in threads {
            for (sum, record) in records.iter_mut().zip(thread) {
                sum.add(record);
            }
        }
        let requests = || requests_of(&records);
        let mut all = Histogram::new_from(&records[0].latency_ns);
        for record in requests() {
            all.add(&record.latency_ns)
                .expect("the bounds are the same");
        }
        Totals {
            completed: requests().map(|record| record.completed).sum(),
            all,
            records,
            is_dlm,
        }
    }

    /// The operations that occurred, by name.
    pub(crate) fn operations(&self) -> impl Iterator<Item = (&'static str, &OpRecord)> {
        let named = Op::ALL.iter().zip(&self.records);
        named
            .filter(|(_, record)| record.completed > 0 || !record.latency_ns.is_empty())
            .map(|(op, record)| (op.name(self.is_dlm), record))
    }

    /// Errors of all requests.
    pub(crate) fn errors(&self) -> u64 {
        requests_of(&self.records).map(|record| record.errors).sum()
    }

    /// How many requests ended how, without those that ended well.
    pub(crate) fn outcomes(&self) -> BTreeMap<String, u64> {
        let mut outcomes = BTreeMap::new();
        for record in &self.records {
            for (index, count) in record.outcomes.iter().enumerate().skip(1) {
                if *count > 0 {
                    *outcomes.entry(Outcome::name_of(index).into()).or_default() += count;
                }
            }
        }
        outcomes
    }
}

fn requests_of(records: &[OpRecord]) -> impl Iterator<Item = &OpRecord> {
    let named = Op::ALL.iter().zip(records);
    named
        .filter(|(op, _)| op.is_request())
        .map(|(_, record)| record)
}

impl Figures {
    /// Figures of `completed` requests and these latencies, over so many seconds.
    pub(crate) fn of(
        latency_ns: &Histogram<u64>,
        completed: u64,
        errors: u64,
        seconds: f64,
    ) -> Figures {
        let at = |quantile| micros(latency_ns.value_at_quantile(quantile));
        Figures {
            requests_per_second: round(completed.saturating_sub(errors) as f64 / seconds),
            p50_us: at(0.5),
            p90_us: at(0.9),
            p99_us: at(0.99),
            p999_us: at(0.999),
            p9999_us: at(0.9999),
            max_us: micros(latency_ns.max()),
            errors,
            violations: 0,
            server_cpu_ns_per_request: None,
        }
    }
}

/// Nanoseconds in microseconds, to a digit that means something.
pub(crate) fn micros(ns: u64) -> f64 {
    round(ns as f64 / 1e3)
}

/// One digit after the point.
pub(crate) fn round(value: f64) -> f64 {
    (value * 10.0).round() / 10.0
}

/// The percentile curve: percent and microseconds, closer where it matters.
pub(crate) fn percentile_curve(latency_ns: &Histogram<u64>) -> Vec<(f64, f64)> {
    const STEPS_PER_HALVING: u32 = 8;
    if latency_ns.is_empty() {
        return Vec::new();
    }
    let steps = latency_ns.iter_quantiles(STEPS_PER_HALVING);
    steps
        .map(|step| {
            (
                step.quantile_iterated_to() * 100.0,
                micros(step.value_iterated_to()),
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Recorder;

    fn totals() -> Totals {
        let (sender, _seconds) = std::sync::mpsc::channel();
        let mut recorder = Recorder::new(false, sender);
        recorder.measure(0, 1_000_000_000);
        for latency_ns in 1..=1_000 {
            recorder.ended(
                Op::Acquire,
                1_000_000 - latency_ns * 100,
                1_000_000,
                Outcome::Ok,
                false,
            );
        }
        recorder.ended(Op::Release, 0, 500, Outcome::NotHeld, true);
        recorder.ended(Op::HandOver, 0, 900_000_000, Outcome::Ok, false);
        let records = recorder.finish();
        Totals::of([&records[..], &records[..]].into_iter(), true)
    }

    #[test]
    fn threads_add_up_and_pseudo_operations_stay_apart() {
        let totals = totals();
        assert_eq!((totals.completed, totals.errors()), (2_002, 2));
        assert_eq!(totals.all.len(), 2_000);
        assert!(totals.all.max() < 1_000_000);
        let names: Vec<&str> = totals.operations().map(|(name, _)| name).collect();
        assert_eq!(names, ["lock", "unlock", "hand_over"]);
        assert_eq!(totals.outcomes(), BTreeMap::from([("not_held".into(), 2)]));
        let figures = Figures::of(&totals.all, totals.completed, totals.errors(), 2.0);
        assert!((figures.requests_per_second - 1_000.0).abs() < 0.1);
        assert!((figures.p50_us - 50.0).abs() < 0.2 && (figures.p99_us - 99.0).abs() < 0.2);
    }

    #[test]
    fn the_curve_rises_to_the_maximum() {
        let curve = percentile_curve(&totals().all);
        assert!(
            curve
                .windows(2)
                .all(|pair| pair[0].0 <= pair[1].0 && pair[0].1 <= pair[1].1)
        );
        assert!(
            curve
                .last()
                .is_some_and(|(percent, us)| *percent == 100.0 && *us >= 99.9)
        );
    }
}
