//! What the main thread tells a loop.

use std::sync::atomic::{AtomicU64, Ordering};

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

/// The line from the main thread to one loop.
#[derive(Debug)]
pub(super) struct Control {
    /// 0: serve; otherwise the drain's milliseconds plus 1.
    order: AtomicU64,
    waker: Waker,
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

    /// Tells the loop to drain.
    ///
    /// # Errors
    /// The loop could not be woken; it will still see the order at its next turn.
    pub(super) fn drain(&self, within_ms: u64) -> std::io::Result<()> {
        self.order
            .store(within_ms.saturating_add(1), Ordering::Release);
        self.wake()
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
}
