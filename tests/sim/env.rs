//! What all loops and clients share: the clock, chance, the wires, the ledger.

use fastrand::Rng;
use leasehold::engine::time::Time;

use crate::host::Arrival;
use crate::ledger::Ledger;
use crate::link::Link;

#[derive(Debug)]
pub(crate) struct Env {
    pub(crate) now: Time,
    pub(crate) rng: Rng,
    pub(crate) links: Vec<Link>,
    pub(crate) ledger: Ledger,
    /// Loops that a loop said to wake, not woken yet.
    pub(crate) wakes: Vec<u16>,
    /// Connections on their way to a loop.
    pub(crate) transit: Vec<(u16, Arrival)>,
    /// All sessions are being closed.
    pub(crate) is_closing: bool,
    /// Sessions that moved.
    pub(crate) moves: u64,
    /// Most nanoseconds that pass from one reading of the clock to the next.
    pub(crate) slowness_nanos: u64,
}

impl Env {
    /// A loop reads the clock, some time after it was last read.
    pub(crate) fn read_clock(&mut self) -> Time {
        let nanos = self.rng.u64(..=self.slowness_nanos);
        self.now = Time::from_nanos(self.now.as_nanos() + nanos);
        self.now
    }
}
