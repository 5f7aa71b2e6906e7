//! What is measured, counted and sent on once a second by each thread.

use crate::outcome::{Op, Outcome};
use hdrhistogram::Histogram;
use std::sync::mpsc::Sender;

/// Longest latency that is told from longer ones, in nanoseconds: an hour.
const MAX_LATENCY_NS: u64 = 3_600_000_000_000;
const NANOS_PER_S: u64 = 1_000_000_000;

/// One second of one thread.
#[derive(Debug)]
pub(crate) struct Second {
    /// Number of the second since the measurement began.
    pub(crate) index: u64,
    /// Latencies of the requests that ended in it, in nanoseconds.
    pub(crate) latency_ns: Histogram<u32>,
    /// Requests that ended in it as they may.
    pub(crate) requests: u64,
    /// Requests that ended otherwise.
    pub(crate) errors: u64,
}

/// What is known of one operation.
#[derive(Clone, Debug)]
pub(crate) struct OpRecord {
    /// Latencies of requests that ended as they may, in nanoseconds.
    pub(crate) latency_ns: Histogram<u64>,
    /// How many ended how, by [`Outcome::index`].
    pub(crate) outcomes: [u64; Outcome::COUNT],
    /// How many of them are errors.
    pub(crate) errors: u64,
    /// How many were answered within the time measured.
    pub(crate) completed: u64,
    /// The latest latency and how often in a row it came: the requests of a batch
    /// mostly share one, which then costs one look into the histogram.
    latest: (u64, u64),
}

/// What one thread records. Only what lies in the window counts: in the open loop
/// requests that were intended in it, else those that ended in it.
#[derive(Debug)]
pub(crate) struct Recorder {
    is_open: bool,
    from_ns: u64,
    to_ns: u64,
    ops: Vec<OpRecord>,
    second: Second,
    seconds: Sender<Second>,
}

impl OpRecord {
    fn new() -> OpRecord {
        OpRecord {
            latency_ns: Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3)
                .expect("the bounds are constant and valid"),
            outcomes: [0; Outcome::COUNT],
            errors: 0,
            completed: 0,
            latest: (0, 0),
        }
    }

    /// Adds what another thread has recorded.
    pub(crate) fn add(&mut self, other: &OpRecord) {
        self.latency_ns
            .add(&other.latency_ns)
            .expect("the bounds are the same");
        for (mine, others) in self.outcomes.iter_mut().zip(&other.outcomes) {
            *mine += others;
        }
        self.errors += other.errors;
        self.completed += other.completed;
    }

    fn flush(&mut self, second: Option<&mut Second>) {
        let (value, count) = std::mem::take(&mut self.latest);
        if count > 0 {
            self.latency_ns.saturating_record_n(value, count);
            if let Some(second) = second {
                second.latency_ns.saturating_record_n(value, count as u32);
            }
        }
    }
}

/// Empty records, one for each operation.
pub(crate) fn empty_records() -> Vec<OpRecord> {
    Op::ALL.iter().map(|_| OpRecord::new()).collect()
}

impl Second {
    fn new(index: u64) -> Second {
        Second {
            index,
            latency_ns: Second::histogram(),
            requests: 0,
            errors: 0,
        }
    }

    /// An empty histogram of the kind that seconds have: two digits are enough for a curve.
    pub(crate) fn histogram() -> Histogram<u32> {
        Histogram::new_with_bounds(1, MAX_LATENCY_NS, 2).expect("the bounds are constant and valid")
    }
}

impl Recorder {
    /// Records nothing until there is a window.
    pub(crate) fn new(is_open: bool, seconds: Sender<Second>) -> Recorder {
        Recorder {
            is_open,
            from_ns: u64::MAX,
            to_ns: u64::MAX,
            ops: empty_records(),
            second: Second::new(0),
            seconds,
        }
    }

    /// Sets the window.
    pub(crate) fn measure(&mut self, from_ns: u64, to_ns: u64) {
        (self.from_ns, self.to_ns) = (from_ns, to_ns);
    }

    /// Ends the window now, if it has not ended.
    pub(crate) fn stop(&mut self, now_ns: u64) {
        self.to_ns = self.to_ns.min(now_ns);
    }

    /// A request ended; `is_error`: not as it may.
    #[inline]
    pub(crate) fn ended(
        &mut self,
        op: Op,
        intended_ns: u64,
        now_ns: u64,
        outcome: Outcome,
        is_error: bool,
    ) {
        let is_in_time = now_ns >= self.from_ns && now_ns < self.to_ns;
        let counts = match self.is_open && op != Op::HandOver {
            true => intended_ns >= self.from_ns && intended_ns < self.to_ns,
            false => is_in_time,
        };
        let record = &mut self.ops[op as usize];
        record.completed += u64::from(is_in_time);
        if !counts {
            return;
        }
        record.outcomes[outcome.index()] += 1;
        if is_error {
            record.errors += 1;
            self.second.errors += 1;
            return;
        }
        self.second.requests += u64::from(op.is_request() && is_in_time);
        let latency_ns = now_ns.saturating_sub(intended_ns).max(1);
        if record.latest.0 == latency_ns {
            record.latest.1 += 1;
            return;
        }
        record.flush(op.is_request().then_some(&mut self.second));
        record.latest = (latency_ns, 1);
    }

    /// A request has never been sent. If it was due in the window (which is returned), it
    /// would have taken at least until now.
    pub(crate) fn never_sent(&mut self, op: Op, intended_ns: u64, now_ns: u64) -> bool {
        let was_due = intended_ns >= self.from_ns && intended_ns < self.to_ns;
        if was_due {
            let latency_ns = &mut self.ops[op as usize].latency_ns;
            latency_ns.saturating_record(now_ns.saturating_sub(intended_ns).max(1));
        }
        was_due
    }

    /// Sends a second on when it is over.
    #[inline]
    pub(crate) fn tick(&mut self, now_ns: u64) {
        let end_ns = self
            .from_ns
            .saturating_add((self.second.index + 1) * NANOS_PER_S);
        if now_ns >= end_ns && end_ns <= self.to_ns {
            self.send_second((now_ns.min(self.to_ns) - self.from_ns) / NANOS_PER_S);
        }
    }

    #[cold]
    fn send_second(&mut self, next: u64) {
        for (op, record) in Op::ALL.iter().zip(&mut self.ops) {
            record.flush(op.is_request().then_some(&mut self.second));
        }
        let second = std::mem::replace(&mut self.second, Second::new(next));
        // Nobody listens any more: then nobody misses it.
        let _ = self.seconds.send(second);
    }

    /// Everything recorded.
    pub(crate) fn finish(mut self) -> Vec<OpRecord> {
        for record in &mut self.ops {
            record.flush(None);
        }
        self.ops
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    const S: u64 = NANOS_PER_S;

    fn recorder(is_open: bool) -> (Recorder, std::sync::mpsc::Receiver<Second>) {
        let (sender, receiver) = channel();
        let mut recorder = Recorder::new(is_open, sender);
        recorder.measure(10 * S, 12 * S);
        (recorder, receiver)
    }

    #[test]
    fn the_closed_loop_counts_what_ends_in_the_window() {
        let (mut recorder, _seconds) = recorder(false);
        for now in [10 * S - 1, 10 * S, 12 * S - 1, 12 * S] {
            recorder.ended(Op::Acquire, now - 5, now, Outcome::Ok, false);
        }
        let ops = recorder.finish();
        let acquire = &ops[Op::Acquire as usize];
        assert_eq!((acquire.completed, acquire.latency_ns.len()), (2, 2));
        assert_eq!(acquire.outcomes[Outcome::Ok.index()], 2);
    }

    #[test]
    fn the_open_loop_counts_what_was_intended_in_the_window_however_late_it_ends() {
        let (mut recorder, _seconds) = recorder(true);
        recorder.ended(Op::Acquire, 10 * S - 1, 11 * S, Outcome::Ok, false);
        recorder.ended(Op::Acquire, 11 * S, 15 * S, Outcome::Ok, false);
        recorder.never_sent(Op::Acquire, 11 * S, 18 * S);
        recorder.never_sent(Op::Acquire, 12 * S, 18 * S);
        let ops = recorder.finish();
        let acquire = &ops[Op::Acquire as usize];
        assert_eq!((acquire.completed, acquire.latency_ns.len()), (1, 2));
        assert!(acquire.latency_ns.max() >= 7 * S);
        assert!(acquire.latency_ns.min() >= 4 * S - S / 100);
    }

    #[test]
    fn runs_of_one_latency_and_changes_of_it_are_all_recorded() {
        let (mut recorder, seconds) = recorder(false);
        let latencies = [7, 7, 7, 900, 7, 5_000_000, 5_000_000];
        for latency in latencies {
            let now = 10 * S + 5_000_000;
            recorder.ended(Op::Release, now - latency, now, Outcome::Ok, false);
        }
        recorder.ended(Op::Release, 10 * S, 10 * S + 1, Outcome::NotHeld, true);
        recorder.tick(11 * S - 1);
        assert!(seconds.try_recv().is_err());
        recorder.tick(11 * S);
        let second = seconds.try_recv().expect("it is over");
        assert_eq!((second.index, second.requests, second.errors), (0, 7, 1));
        assert_eq!(second.latency_ns.len(), 7);
        let ops = recorder.finish();
        let release = &ops[Op::Release as usize];
        assert_eq!(release.latency_ns.len(), 7);
        assert_eq!(release.latency_ns.count_at(7), 4);
        assert_eq!((release.errors, release.completed), (1, 8));
    }

    #[test]
    fn seconds_without_anything_are_skipped_by_their_index() {
        let (mut recorder, seconds) = recorder(false);
        recorder.measure(10 * S, 20 * S);
        recorder.tick(13 * S + 1);
        recorder.tick(14 * S);
        let indices: Vec<u64> = seconds.try_iter().map(|second| second.index).collect();
        assert_eq!(indices, [0, 3]);
    }
}
