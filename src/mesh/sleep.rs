//! How a loop falls asleep without missing what another loop has for it.
//!
//! The sleeper announces its sleep and looks at its rings after that; a sender puts
//! its message into the ring and looks for sleepers after that. Each has a
//! sequentially consistent fence between its two steps, so at least one of the two
//! sees the other: the sleeper finds the message and stays awake, or the sender
//! finds the sleeper and wakes it. Whoever turns the state back from asleep to awake
//! owes the wake, so a sleep is ended by one wake however many have sent.
//!
//! An announcement that a sender read may be out of date when it turns it: then the
//! sleeper has risen since, and the look at its rings that belongs to its next
//! announcement comes after the sender's fence.
//!
//! `atomic` is the parent's choice because `tests/mesh_sleep.rs` compiles this file a
//! second time, against atomics whose every interleaving can be tried.

use super::atomic::{AtomicU8, Ordering, fence};

/// What a sleeping loop waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Until {
    /// A message to it.
    Message = 1,
    /// A message to it, or a message of its own being taken out of a ring.
    MessageOrRoom = 2,
}

/// What one loop has done for another since it last looked whether that one sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    /// It took messages of the other's out of their ring.
    Room,
    /// It sent the other a message.
    Message,
}

const AWAKE: u8 = 0;

/// Whether a loop is awake, and what wakes it if not. On a cache line of its own:
/// every loop that sends to it reads it each turn.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct SleepState(AtomicU8);

/// Shows that what a loop did up to now comes before any look at who sleeps.
#[derive(Debug)]
pub(super) struct Published(());

/// Call it after the last message, before [`SleepState::rouse`]; again after more messages.
pub(super) fn publish() -> Published {
    fence(Ordering::SeqCst);
    Published(())
}

impl SleepState {
    pub(super) fn awake() -> SleepState {
        SleepState(AtomicU8::new(AWAKE))
    }

    /// The loop means to sleep. Only if it finds nothing in its rings after this may
    /// it do so; else it must [`SleepState::rise`].
    pub(super) fn announce(&self, until: Until) {
        self.0.store(until as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// The loop is awake again, whatever woke it.
    pub(super) fn rise(&self) {
        self.0.store(AWAKE, Ordering::Relaxed);
    }

    /// Whether the caller, another loop with `news` for this one, must wake it now.
    pub(super) fn rouse(&self, news: News, _published: &Published) -> bool {
        let state = self.0.load(Ordering::Relaxed);
        let is_waited_for = match news {
            News::Message => state != AWAKE,
            News::Room => state == Until::MessageOrRoom as u8,
        };
        is_waited_for
            && self
                .0
                .compare_exchange(state, AWAKE, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}
