//! Another loop, as one loop sees it: a ring each way, and what did not fit.

use std::collections::VecDeque;
use std::sync::Arc;

use rtrb::{Consumer, Producer, PushError, RingBuffer};

use super::Message;
use super::atomic::{AtomicBool, Ordering};
use super::sleep::{News, SleepState};

/// One loop's end of what it shares with another.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) loop_index: u16,
    pub(super) sleep: Arc<SleepState>,
    outbound: Producer<Message>,
    /// What the outbound ring had no room for, to follow what is in it.
    spill: VecDeque<Message>,
    spills: Arc<Spills>,
    inbound: Consumer<Message>,
    peer_spills: Arc<Spills>,
    /// How many of the messages that have arrived belong to this batch.
    gathered: usize,
    /// A request was refused, and room not told of since.
    pub(super) refused: bool,
    /// What this loop did since it last looked whether the other sleeps.
    pub(super) news: Option<News>,
}

/// Whether one loop has a spill for another. The other sends it no more requests
/// then, since each would make a reply and the spill grow without bound. It may be
/// seen late; no data hangs on it. On a line of its own: it is read for each request.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Spills(AtomicBool);

impl Spills {
    fn set(&self, spills: bool) {
        self.0.store(spills, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Peer {
    /// Joins two loops: the first one's view of the second, and the other way round.
    pub(super) fn join(
        first: (u16, &Arc<SleepState>),
        second: (u16, &Arc<SleepState>),
        ring_capacity: usize,
    ) -> (Peer, Peer) {
        let (to_second, from_first) = RingBuffer::new(ring_capacity);
        let (to_first, from_second) = RingBuffer::new(ring_capacity);
        let first_spills = Arc::new(Spills::default());
        let second_spills = Arc::new(Spills::default());
        let view =
            |(loop_index, sleep): (u16, &Arc<SleepState>),
             (outbound, spills): (Producer<Message>, &Arc<Spills>),
             (inbound, peer_spills): (Consumer<Message>, &Arc<Spills>)| Peer {
                loop_index,
                sleep: Arc::clone(sleep),
                outbound,
                spill: VecDeque::new(),
                spills: Arc::clone(spills),
                inbound,
                peer_spills: Arc::clone(peer_spills),
                gathered: 0,
                refused: false,
                news: None,
            };
        let of_first = view(
            second,
            (to_second, &first_spills),
            (from_second, &second_spills),
        );
        let of_second = view(
            first,
            (to_first, &second_spills),
            (from_first, &first_spills),
        );
        (of_first, of_second)
    }

    /// Puts the message behind all that were sent before. Returns whether it fitted the ring.
    #[inline]
    pub(super) fn send(&mut self, message: Message) -> bool {
        if self.spill.is_empty() {
            let Err(PushError::Full(message)) = self.outbound.push(message) else {
                return true;
            };
            self.spills.set(true);
            self.spill.push_back(message);
        } else {
            self.spill.push_back(message);
        }
        false
    }

    /// Moves what has room now from the spill to the ring. Returns whether anything moved.
    #[inline]
    pub(super) fn flush(&mut self) -> bool {
        !self.spill.is_empty() && self.flush_spill()
    }

    #[cold]
    fn flush_spill(&mut self) -> bool {
        let mut moved = false;
        while !self.outbound.is_full()
            && let Some(message) = self.spill.pop_front()
        {
            let pushed = self.outbound.push(message);
            debug_assert!(pushed.is_ok(), "only this loop fills the ring");
            moved = true;
        }
        if self.spill.is_empty() {
            // A burst's memory is given back, an ordinary spill's kept.
            self.spill.shrink_to(self.outbound.buffer().capacity());
            self.spills.set(false);
        }
        moved
    }

    /// Whether a request can be sent now.
    #[inline]
    pub(super) fn takes_requests(&self) -> bool {
        self.spill.is_empty() && !self.outbound.is_full() && !self.peer_spills.get()
    }

    /// Whether this loop has something that waits for room on the other's side.
    pub(super) fn wants_room(&self) -> bool {
        self.refused || !self.spill.is_empty()
    }

    /// Whether there is something to do here without waiting for the other loop.
    pub(super) fn has_work(&self) -> bool {
        !self.inbound.is_empty()
            || (!self.spill.is_empty() && !self.outbound.is_full())
            || (self.refused && self.takes_requests())
    }

    /// Decides that at most `share` of the messages that have arrived belong to this
    /// batch. Returns how many do.
    #[inline]
    pub(super) fn gather(&mut self, share: usize) -> usize {
        self.gathered = self.inbound.slots().min(share);
        self.gathered
    }

    /// The next message of this batch.
    #[inline]
    pub(super) fn take(&mut self) -> Option<Message> {
        self.gathered = self.gathered.checked_sub(1)?;
        self.inbound.pop().ok()
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        assert_eq!(self.spills.get(), !self.spill.is_empty());
        assert!(self.gathered <= self.inbound.slots());
    }
}
