//! What other threads tell one loop.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use super::loops::Arrival;
use super::waker::Waker;

/// An order to a loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Go on.
    Serve,
    /// Grant nobody any more; end when nothing is held, or after that long.
    Drain {
        /// `--drain-seconds`, in milliseconds.
        within_ms: u64,
    },
}

/// The line to one loop.
#[derive(Debug)]
pub(super) struct Control {
    /// 0: serve; otherwise the drain's milliseconds plus 1.
    order: AtomicU64,
    waker: Waker,
    /// Connections from other loops, each once in its life: bounded by their number.
    arrivals: Mutex<Vec<Arrival>>,
    /// Set after an arrival was put there.
    has_arrivals: AtomicBool,
}

impl Control {
    /// A line whose order is to serve.
    ///
    /// # Errors
    /// The kernel refused an eventfd.
    pub(super) fn new() -> std::io::Result<Control> {
        Ok(Control {
            order: AtomicU64::new(0),
            waker: Waker::new()?,
            arrivals: Mutex::new(Vec::new()),
            has_arrivals: AtomicBool::new(false),
        })
    }

    /// The order in force.
    pub(super) fn order(&self) -> Order {
        match self.order.load(Ordering::Acquire) {
            0 => Order::Serve,
            code => Order::Drain {
                within_ms: code - 1,
            },
        }
    }

    /// Orders a drain; wake the loop after it.
    pub(super) fn order_drain(&self, within_ms: u64) {
        self.order
            .store(within_ms.saturating_add(1), Ordering::Release);
    }

    /// Hands a connection over; wake the loop after it.
    pub(super) fn arrive(&self, arrival: Arrival) {
        self.lock_arrivals().push(arrival);
        self.has_arrivals.store(true, Ordering::Release);
    }

    /// The connections that were handed over since last asked. Costs a load while
    /// there is none.
    pub(super) fn take_arrivals(&self) -> Vec<Arrival> {
        let flag = &self.has_arrivals;
        if !flag.load(Ordering::Relaxed) || !flag.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut self.lock_arrivals())
    }

    /// Wakes the loop.
    ///
    /// # Errors
    /// As write(2) to an eventfd; the loop still takes its turns.
    pub(super) fn wake(&self) -> std::io::Result<()> {
        self.waker.wake()
    }

    /// What the loop watches to be woken.
    pub(super) fn waker(&self) -> &Waker {
        &self.waker
    }

    fn lock_arrivals(&self) -> std::sync::MutexGuard<'_, Vec<Arrival>> {
        self.arrivals.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
