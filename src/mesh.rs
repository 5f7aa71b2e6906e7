//! How loops talk: bounded single-producer single-consumer rings, one for each
//! ordered pair of loops. It says whom to wake and wakes nobody; nobody ever blocks.
//!
//! Each loop owns one [`MeshPort`]. What a worker may count on:
//!
//! - **Order.** Messages from one loop to another arrive in the order sent, requests
//!   and all others together. Nothing is lost or doubled.
//! - **A full ring pushes back on requests only.** [`Outbound::try_request`] refuses
//!   while the target's ring is full; the session's input then pauses until
//!   [`Outbound::poll_room`] names that target. Everything else is always taken: what
//!   has no room goes to a spill queue, ahead of whatever is sent later.
//! - **The spill is bounded.** While a loop spills to another, that one's requests to
//!   it are refused. So a spill holds no more than the replies to what one ring held,
//!   one reply for each queued acquire of the other loop's sessions, and the other
//!   messages about sessions and grants, a few for each.
//! - **No deadlock.** Arrivals are taken whether or not there is room to answer, so
//!   two full rings always move.
//! - **A request allocates nothing** if its key has at most [`INLINE_KEY_BYTES`] bytes
//!   and its reply finds room.
//!
//! # A turn
//!
//! ```no_run
//! # use leasehold::mesh::{Inbound, Message, MeshPort};
//! # fn wake(_: u16) {} fn wait_for_the_kernel() {} fn read_clock() {}
//! # struct Worker { port: MeshPort }
//! # impl Worker { fn handle_message(&mut self, message: &mut Message, _: ()) {
//! match message {
//!     // Judged like a local one; the engine's outbox sends what it owes to sessions
//!     // of other loops by `reply` and `granted`.
//!     Message::Request { .. } | Message::DlmRequest(_) => {}
//!     // To the session's output. A native grant for a session that is gone goes back
//!     // by `lost_grant`; until a byte of it was submitted, keep `granted_by` with it.
//!     Message::Reply { .. } | Message::Granted { .. } | Message::DlmReply(_) => {}
//!     // To the engine; a session's end is answered by `session_ended`.
//!     Message::SessionEnd { .. } | Message::LostGrant(_) => {}
//!     // The session's last reply from there has come: one end less to wait for.
//!     Message::SessionEnded { .. } => {}
//! }
//! # }
//! # fn turn(&mut self, nothing_else_to_do: bool) {
//! // 1. First of all after a wait, whatever ended it: from here on nobody wakes us.
//! self.port.handle_awake();
//!
//! // 2. Bytes from the kernel; requests for keys of other loops: `try_request`.
//!
//! // 3. Arrivals, in bounded batches, whether or not outbound rings are full. The
//! //    clock is read when they have come and before they are judged. What is judged
//! //    lies in `inbound`, so that goes out of the way of everything else.
//! self.port.gather(256);
//! let now = read_clock();
//! let mut inbound = std::mem::take(&mut self.port.inbound);
//! inbound.drain(|message| self.handle_message(message, now));
//! self.port.inbound = inbound;
//!
//! // 4. Sessions that were refused: go on with each that waits for this target, in
//! //    the order they were refused, until one is refused again.
//! while let Some(target) = self.port.outbound.poll_room() {}
//!
//! // 5. Timers; then, when nothing more is sent in this turn:
//! for target in self.port.poll_wakes() {
//!     wake(target);
//! }
//!
//! // 6. Sleep, if the kernel, the backlog and the engine have nothing either. `false`:
//! //    something has arrived meanwhile, or a batch was over its budget. A loop that
//! //    spins before it sleeps asks only after it has spun: it counts as awake.
//! if nothing_else_to_do && self.port.try_sleep() {
//!     wait_for_the_kernel();
//! }
//! # }}
//! ```
//!
//! A wake may come late, to a loop that has risen meanwhile, so it must be harmless
//! then: an event on a descriptor that the next wait takes.
//!
//! The end of a session is sent by [`Outbound::session_end`] to each loop that a
//! request of it went to, once all its complete frames were sent: a session that
//! waits for room has not come to its end.

mod inbound;
mod message;
mod outbound;
mod sleep;
#[cfg(test)]
mod tests;

use std::sync::Arc;
// By this name `sleep` finds it here, and other atomics where it is checked.
use std::sync::atomic;

use rtrb::RingBuffer;

use crate::limits::MAX_LOOPS;
pub use inbound::Inbound;
pub use message::{DlmAnswer, DlmCall, INLINE_KEY_BYTES, Message, OwnedRequest};
pub use outbound::{NoRoom, Outbound};
use outbound::{Spills, Target};
use sleep::{News, SleepState, Until};

/// One loop's end of the rings to and from all others.
#[derive(Debug)]
pub struct MeshPort {
    /// What others send to this loop.
    pub inbound: Inbound,
    /// What this loop sends to others.
    pub outbound: Outbound,
    sleep: Arc<SleepState>,
    asleep: bool,
}

/// What a port has done since it was made, and what it has not done yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MeshCounters {
    /// Requests sent, of both protocols.
    pub requests: u64,
    /// Requests refused for want of room; each try counts.
    pub refused: u64,
    /// Messages received.
    pub received: u64,
    /// Messages that found their ring full and had to wait in the spill.
    pub spilled: u64,
    /// Messages that wait there now.
    pub spilling: u64,
    /// Wakes that [`MeshPort::poll_wakes`] asked for.
    pub wakes: u64,
}

/// The capacity of a ring that suits `loops` loops: ample for few, and for many such
/// that the rings to one loop together hold no more than those of few.
pub const fn ring_capacity(loops: u16) -> usize {
    // Requests under way beyond it wait for their turns, which makes batches small:
    // 50 sessions with 64 under way each cost twice the CPU with a quarter of it.
    const TO_ONE_LOOP: usize = 4096;
    const LEAST: usize = 64;
    let others = match loops as usize {
        0 | 1 => 1,
        loops => loops - 1,
    };
    match TO_ONE_LOOP / others {
        0..LEAST => LEAST,
        share => share,
    }
}

/// Ports for `loops` loops, by number, every two of them joined by rings of
/// `ring_capacity` messages each way.
///
/// # Panics
/// If there are no loops or more than [`MAX_LOOPS`], or the capacity is 0.
pub fn build(loops: u16, ring_capacity: usize) -> Vec<MeshPort> {
    assert!((1..=MAX_LOOPS).contains(&loops), "{loops} loops");
    assert!(ring_capacity > 0, "rings without room");
    let mut ports: Vec<MeshPort> = (0..loops).map(MeshPort::alone).collect();
    // In this order every port gets the others by number.
    for upper in 1..ports.len() {
        let (lower_ports, upper_ports) = ports.split_at_mut(upper);
        for lower in lower_ports {
            MeshPort::join(lower, &mut upper_ports[0], ring_capacity);
        }
    }
    ports
}

impl MeshPort {
    fn alone(loop_index: u16) -> MeshPort {
        MeshPort {
            inbound: Inbound::default(),
            outbound: Outbound::new(loop_index),
            sleep: Arc::new(SleepState::awake()),
            asleep: false,
        }
    }

    fn join(one: &mut MeshPort, other: &mut MeshPort, ring_capacity: usize) {
        let (one_spills, other_spills) = Default::default();
        one.connect_to(other, ring_capacity, &one_spills, &other_spills);
        other.connect_to(one, ring_capacity, &other_spills, &one_spills);
    }

    /// Makes the way from here to the other.
    fn connect_to(
        &mut self,
        other: &mut MeshPort,
        ring_capacity: usize,
        spills: &Arc<Spills>,
        other_spills: &Arc<Spills>,
    ) {
        let (producer, consumer) = RingBuffer::new(ring_capacity);
        other.inbound.push_source(consumer);
        self.outbound.push_target(Target::new(
            other.outbound.loop_index(),
            Arc::clone(&other.sleep),
            producer,
            Arc::clone(spills),
            Arc::clone(other_spills),
        ));
    }

    /// The loop's wait has ended. Call it before anything else of the turn; it costs
    /// next to nothing if the loop had not slept.
    #[inline]
    pub fn handle_awake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.sleep.rise();
        }
    }

    /// Sends what was spilled and has room now, then begins a batch of at most
    /// `budget` arrivals, shared out fairly over the other loops. Returns how many
    /// there are. Read the clock after this, before [`Inbound::drain`].
    pub fn gather(&mut self, budget: usize) -> usize {
        self.outbound.flush();
        self.inbound.gather(budget)
    }

    /// Ends the turn: the loops to wake now because this one sent them something, or
    /// made the room they sleep for. Each at most once, none that is awake. A later
    /// message needs another call.
    pub fn poll_wakes(&mut self) -> impl Iterator<Item = u16> {
        self.outbound.flush();
        while let Some(position) = self.inbound.take_relieved() {
            self.outbound.touch(position, News::Room);
        }
        let published = self.outbound.has_touched().then(sleep::publish);
        let outbound = &mut self.outbound;
        std::iter::from_fn(move || outbound.rouse_next(published.as_ref()?))
    }

    /// Whether the loop may sleep until it is woken; others know by then that it does.
    /// `false`: there is something to do, or a wake is owed: start the next turn.
    ///
    /// # Panics
    /// If another [`Inbound`] still stands in for this port's own.
    pub fn try_sleep(&mut self) -> bool {
        assert_eq!(
            self.inbound.source_count(),
            self.outbound.target_count(),
            "the inbound half is elsewhere"
        );
        if self.outbound.target_count() == 0 {
            return true;
        }
        if self.outbound.has_touched() || self.inbound.has_relieved() {
            return false;
        }
        self.sleep.announce(if self.outbound.wants_room() {
            Until::MessageOrRoom
        } else {
            Until::Message
        });
        self.asleep = true;
        if !self.inbound.is_empty() || self.outbound.has_room() {
            self.handle_awake();
        }
        self.asleep
    }

    /// What this port has done.
    pub fn counters(&self) -> MeshCounters {
        MeshCounters {
            requests: self.outbound.requests,
            refused: self.outbound.refused,
            received: self.inbound.received,
            spilled: self.outbound.spilled,
            spilling: self.outbound.spilling(),
            wakes: self.outbound.wakes,
        }
    }

    /// Checks what must hold between any two calls.
    pub fn invariants(&self) {
        self.inbound.invariants();
        self.outbound.invariants();
    }
}
