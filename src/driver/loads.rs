//! How many native sessions each loop has: new ones go where the fewest are.

use std::sync::atomic::{AtomicU32, Ordering};

/// The native sessions of a server, by loop, those included that are on their way to
/// their loop. Relaxed throughout: each count stands for itself.
#[derive(Debug)]
pub(super) struct Loads {
    sessions: Vec<Load>,
    total: AtomicU32,
    max_sessions: u32,
}

/// On a cache line of its own: each is written by its loop above all.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Load(AtomicU32);

impl Loads {
    /// No sessions yet, and at most `max_sessions` at a time.
    pub(super) fn new(loops: u16, max_sessions: u32) -> Loads {
        Loads {
            sessions: (0..loops).map(|_| Load::default()).collect(),
            total: AtomicU32::new(0),
            max_sessions,
        }
    }

    /// Counts a new session in at a loop with the fewest, `accepted_by` if it is one
    /// of those, and says which it is. `None`: there are too many.
    ///
    /// While sessions only come, no two loops ever differ by more than one: a loop is
    /// taken only if its count is still the least that was seen, and the others have
    /// grown at most.
    pub(super) fn admit(&self, accepted_by: u16) -> Option<u16> {
        let admit = |total: u32| (total < self.max_sessions).then_some(total + 1);
        self.total
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit)
            .ok()?;
        loop {
            let mut best = accepted_by;
            let mut fewest = self.of(accepted_by).load(Ordering::Relaxed);
            for (index, load) in (0..).zip(&self.sessions) {
                let count = load.0.load(Ordering::Relaxed);
                if count < fewest {
                    (best, fewest) = (index, count);
                }
            }
            let taken = self.of(best).compare_exchange(
                fewest,
                fewest + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            if taken.is_ok() {
                return Some(best);
            }
        }
    }

    /// A session of `loop_index` is over.
    pub(super) fn leave(&self, loop_index: u16) {
        self.of(loop_index).fetch_sub(1, Ordering::Relaxed);
        self.total.fetch_sub(1, Ordering::Relaxed);
    }

    /// A session moves.
    pub(super) fn moved(&self, from: u16, to: u16) {
        self.of(to).fetch_add(1, Ordering::Relaxed);
        self.of(from).fetch_sub(1, Ordering::Relaxed);
    }

    fn of(&self, loop_index: u16) -> &AtomicU32 {
        &self.sessions[usize::from(loop_index)].0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn counts(loads: &Loads) -> Vec<u32> {
        let counts = loads.sessions.iter();
        counts.map(|load| load.0.load(Ordering::Relaxed)).collect()
    }

    #[test]
    fn sessions_are_shared_out_evenly_whoever_accepts_them() {
        let loads = Loads::new(4, 64);
        for _ in 0..64 {
            loads.admit(2).unwrap();
            let counts = counts(&loads);
            assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
        assert_eq!(counts(&loads), [16; 4]);
        assert_eq!(loads.admit(0), None, "the bound is the server's");
        loads.leave(3);
        assert_eq!(loads.admit(1), Some(3), "where the fewest are");
        loads.moved(0, 1);
        assert_eq!(counts(&loads), [15, 17, 16, 16]);
    }

    #[test]
    fn a_loop_keeps_what_it_accepts_while_nobody_has_fewer() {
        let loads = Loads::new(3, 100);
        assert_eq!(loads.admit(2), Some(2));
        assert_eq!(loads.admit(1), Some(1));
        assert_eq!(loads.admit(1), Some(0));
        assert_eq!(loads.admit(1), Some(1));
    }

    #[test]
    fn loops_that_accept_at_once_share_out_evenly_too() {
        let loads = Loads::new(4, 4_000);
        std::thread::scope(|scope| {
            for index in 0..4 {
                let loads = &loads;
                scope.spawn(move || {
                    for _ in 0..1_000 {
                        loads.admit(index).unwrap();
                    }
                });
            }
        });
        assert_eq!(counts(&loads), [1_000; 4]);
    }
}
