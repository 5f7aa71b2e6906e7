//! A loop's end, the same for every driver: an order comes, no native connection is
//! accepted any more, leases run out, no connection at all is accepted any more,
//! sessions are closed. Loops wait for each other: a session is served by every loop
//! that owns a key of its.

use super::control::Order;
use super::loops::Loops;
use crate::engine::time::Time;
use crate::worker::Worker;

/// Follows the orders to one loop.
#[derive(Debug)]
pub(super) struct Drain {
    phase: Phase,
    /// The barrier of the phase was reached.
    reached: bool,
}

/// How far a drain has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Serving,
    /// Leases still run; over at the latest at that time.
    Draining(Time),
    /// Sessions are being closed; over at the latest at that time.
    Closing(Time),
}

/// What a loop is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Take the next turn.
    Serve,
    /// Let go of the native listeners, then take the next turn. DLM clients need a
    /// new connection to unlock: theirs stay open.
    StopNative,
    /// Let go of all listeners, then take the next turn.
    StopAll,
    /// End.
    End,
}

impl Drain {
    pub(super) fn new() -> Drain {
        Drain {
            phase: Phase::Serving,
            reached: false,
        }
    }

    /// Takes new orders and moves a drain on; ask once per turn.
    pub(super) fn step(&mut self, loops: &Loops, worker: &mut Worker, now: Time) -> Step {
        match self.phase {
            Phase::Serving => {
                if let Order::Drain { within_ms } = loops.control(worker.loop_index()).order() {
                    worker.handle_drain();
                    self.phase = Phase::Draining(now.plus_millis(within_ms));
                    return Step::StopNative;
                }
                Step::Serve
            }
            Phase::Draining(until) => {
                // Nothing is granted any more: a loop that has come so far stays there.
                if worker.is_drained() && !self.reached {
                    self.reached = true;
                    loops.reach(&loops.drained);
                }
                if loops.drained.is_complete() || now >= until {
                    self.reached = false;
                    worker.close_all(now);
                    let patience_ms = worker.close_patience_ms();
                    self.phase = Phase::Closing(now.plus_millis(patience_ms));
                    return Step::StopAll;
                }
                Step::Serve
            }
            Phase::Closing(until) => {
                if (worker.session_count() == 0 || now >= until) && !self.reached {
                    self.reached = true;
                    loops.reach(&loops.closed);
                }
                if loops.closed.is_complete() {
                    Step::End
                } else {
                    Step::Serve
                }
            }
        }
    }

    /// Whether new native connections are taken in.
    pub(super) fn takes_new(&self) -> bool {
        self.phase == Phase::Serving
    }

    /// Whether sessions are taken in that move here.
    pub(super) fn takes_moved(&self) -> bool {
        !matches!(self.phase, Phase::Closing(_))
    }

    /// When the next step is due at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Serving => None,
            // What is due was done: now the others are waited for, and they wake us.
            Phase::Closing(_) if self.reached => None,
            Phase::Draining(until) | Phase::Closing(until) => Some(until),
        }
    }
}
