//! Seconds of all threads, put together as they come in.

use crate::record::Second;
use crate::report::{SecondReport, micros};
use std::collections::BTreeMap;

/// Seconds that are complete, and those that threads are still in.
#[derive(Debug)]
pub(crate) struct Timeline {
    threads: u32,
    open: BTreeMap<u64, (u32, Second)>,
    done: Vec<SecondReport>,
}

/// A thread that sleeps sends nothing; so many seconds later it is not waited for.
const LATE: u64 = 3;

impl Timeline {
    /// Nothing yet, of so many threads.
    pub(crate) fn new(threads: u32) -> Timeline {
        Timeline {
            threads,
            open: BTreeMap::new(),
            done: Vec::new(),
        }
    }

    /// Adds a thread's second.
    pub(crate) fn add(&mut self, second: Second) {
        let index = second.index;
        match self.open.get_mut(&index) {
            None => {
                self.open.insert(index, (1, second));
            }
            Some((count, sum)) => {
                *count += 1;
                sum.requests += second.requests;
                sum.errors += second.errors;
                sum.latency_ns
                    .add(&second.latency_ns)
                    .expect("the bounds are the same");
            }
        }
        while let Some(first) = self.open.first_entry()
            && (first.get().0 == self.threads || first.key() + LATE <= index)
        {
            let (_, second) = first.remove();
            self.done.push(told(&second));
        }
    }

    /// The latest second that is complete.
    pub(crate) fn latest(&self) -> Option<&SecondReport> {
        self.done.last()
    }

    /// All of them.
    pub(crate) fn finish(mut self) -> Vec<SecondReport> {
        self.done
            .extend(self.open.values().map(|(_, second)| told(second)));
        self.done
    }
}

fn told(second: &Second) -> SecondReport {
    let latency_ns = &second.latency_ns;
    SecondReport {
        second: second.index,
        requests: second.requests,
        errors: second.errors,
        p50_us: micros(latency_ns.value_at_quantile(0.5)),
        p99_us: micros(latency_ns.value_at_quantile(0.99)),
        max_us: micros(latency_ns.max()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn second(index: u64, requests: u64) -> Second {
        let mut latency_ns = Second::histogram();
        latency_ns.record_n(1_000 * requests, 1).expect("in range");
        Second {
            index,
            latency_ns,
            requests,
            errors: 1,
        }
    }

    #[test]
    fn threads_add_up_and_late_ones_are_not_waited_for() {
        let mut timeline = Timeline::new(2);
        timeline.add(second(0, 10));
        assert!(timeline.latest().is_none());
        timeline.add(second(0, 20));
        let first = timeline.latest().copied().expect("both are there");
        assert_eq!((first.second, first.requests, first.errors), (0, 30, 2));
        assert!(first.max_us >= 19.8);
        timeline.add(second(1, 5));
        timeline.add(second(4, 7));
        assert_eq!(timeline.latest().map(|it| it.second), Some(1));
        let all = timeline.finish();
        assert_eq!(
            all.iter().map(|it| it.second).collect::<Vec<_>>(),
            [0, 1, 4]
        );
    }
}
