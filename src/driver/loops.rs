//! What the loops of a server share besides the rings of the mesh: nothing of it is
//! touched per request.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use log::warn;

use super::control::Control;
use super::loads::Loads;

/// All loops of a server, as each of them and the main thread see them.
#[derive(Debug)]
pub(super) struct Loops {
    controls: Vec<Control>,
    /// Who has how many sessions.
    pub(super) loads: Loads,
    /// Loops on which nothing is held or queued since they drain.
    pub(super) drained: Barrier,
    /// Loops that have no session any more.
    pub(super) closed: Barrier,
}

/// A connection on its way to another loop.
#[derive(Debug)]
pub(super) struct Arrival {
    /// Its socket, non-blocking.
    pub(super) socket: OwnedFd,
    /// `None`: it was just accepted. Else it moves, with these bytes received.
    pub(super) input: Option<Vec<u8>>,
}

/// Counts the loops that have come to a point, each once.
#[derive(Debug)]
pub(super) struct Barrier {
    missing: AtomicUsize,
}

impl Loops {
    /// `loops` loops without sessions, at most `max_sessions` native ones in all.
    ///
    /// # Errors
    /// The kernel refused an eventfd.
    pub(super) fn new(loops: u16, max_sessions: u32) -> io::Result<Loops> {
        Ok(Loops {
            controls: (0..loops)
                .map(|_| Control::new())
                .collect::<io::Result<_>>()?,
            loads: Loads::new(loops, max_sessions),
            drained: Barrier::new(loops),
            closed: Barrier::new(loops),
        })
    }

    /// The line to one loop.
    pub(super) fn control(&self, loop_index: u16) -> &Control {
        &self.controls[usize::from(loop_index)]
    }

    /// Wakes a loop.
    pub(super) fn wake(&self, loop_index: u16) {
        if let Err(error) = self.control(loop_index).wake() {
            warn!("cannot wake loop {loop_index}: {error}");
        }
    }

    /// Wakes all loops.
    pub(super) fn wake_all(&self) {
        for index in (0..).take(self.controls.len()) {
            self.wake(index);
        }
    }

    /// Tells all loops to drain.
    pub(super) fn drain(&self, within_ms: u64) {
        for control in &self.controls {
            control.order_drain(within_ms);
        }
        self.wake_all();
    }

    /// Hands a connection, counted there already, to its loop.
    pub(super) fn hand_over(&self, to: u16, arrival: Arrival) {
        self.control(to).arrive(arrival);
        self.wake(to);
    }

    /// A loop has come to `barrier`; whoever waits for the last one is woken by it.
    pub(super) fn reach(&self, barrier: &Barrier) {
        if barrier.missing.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.wake_all();
        }
    }
}

impl Barrier {
    fn new(loops: u16) -> Barrier {
        Barrier {
            missing: AtomicUsize::new(loops.into()),
        }
    }

    /// Whether all loops have come.
    pub(super) fn is_complete(&self) -> bool {
        self.missing.load(Ordering::Acquire) == 0
    }
}
