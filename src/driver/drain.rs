//! A loop's end, the same for every driver: an order comes, no native connection is
//! accepted any more, leases run out, no connection at all is accepted any more,
//! sessions are closed.

use std::sync::Arc;

use super::control::{Control, Order};
use crate::engine::time::Time;
use crate::worker::Worker;

/// Follows the orders of a [`Control`].
#[derive(Debug)]
pub(super) struct Drain {
    control: Arc<Control>,
    phase: Phase,
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
    pub(super) fn new(control: Arc<Control>) -> Drain {
        Drain {
            control,
            phase: Phase::Serving,
        }
    }

    /// Takes new orders and moves a drain on; ask once per turn.
    pub(super) fn step(&mut self, worker: &mut Worker, now: Time) -> Step {
        match self.phase {
            Phase::Serving => {
                if let Order::Drain { within_ms } = self.control.order() {
                    worker.handle_drain();
                    self.phase = Phase::Draining(now.plus_millis(within_ms));
                    return Step::StopNative;
                }
                Step::Serve
            }
            Phase::Draining(until) => {
                if worker.is_drained() || now >= until {
                    worker.close_all(now);
                    let patience_ms = worker.close_patience_ms();
                    self.phase = Phase::Closing(now.plus_millis(patience_ms));
                    return Step::StopAll;
                }
                Step::Serve
            }
            Phase::Closing(until) if worker.session_count() == 0 || now >= until => Step::End,
            Phase::Closing(_) => Step::Serve,
        }
    }

    /// When the next step is due at the latest.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Serving => None,
            Phase::Draining(until) | Phase::Closing(until) => Some(until),
        }
    }
}
