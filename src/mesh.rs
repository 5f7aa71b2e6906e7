//! How loops talk: bounded single-producer single-consumer rings, one for each
//! ordered pair of loops. It says whom to wake and wakes nobody; nobody ever blocks.
//!
//! Each loop owns one [`MeshPort`]. What a worker may count on:
//!
//! - **Order.** Messages from one loop to another arrive in the order sent, requests
//!   and all others together. Nothing is lost or doubled.
//! - **A full ring pushes back on requests only.** [`MeshPort::try_request`] refuses
//!   while the target's ring is full; the session's input then pauses until
//!   [`MeshPort::poll_room`] names that target. Everything else is always taken: what
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
//! # use leasehold::mesh::{Message, MeshPort};
//! # fn wake(_: u16) {} fn wait_for_the_kernel() {} fn read_clock() {}
//! # fn turn(port: &mut MeshPort, nothing_else_to_do: bool) {
//! // 1. First of all after a wait, whatever ended it: from here on nobody wakes us.
//! port.handle_awake();
//!
//! // 2. Bytes from the kernel; requests for keys of other loops: `try_request`.
//!
//! // 3. Arrivals, in bounded batches. The clock is read after the messages came and
//! //    before they are judged. They are taken whether or not outbound rings are full.
//! port.gather(256);
//! let now = read_clock();
//! while let Some((from, message)) = port.poll_inbound() {
//!     match message {
//!         // Judged like a local one; the engine's outbox sends what it owes to
//!         // sessions of other loops by `reply` and `granted`.
//!         Message::Request { .. } | Message::DlmRequest(_) => {}
//!         // To the session's output. A native grant for a session that is gone goes
//!         // back by `lost_grant(from, ..)`; with the session's output, keep `from`
//!         // beside each grant of which no byte was submitted yet.
//!         Message::Reply { .. } | Message::Granted { .. } | Message::DlmReply(_) => {}
//!         // To the engine.
//!         Message::SessionEnd { .. } | Message::LostGrant(_) => {}
//!     }
//! }
//!
//! // 4. Sessions that were refused: go on with each that waits for this target, in
//! //    the order they were refused, until one is refused again.
//! while let Some(target) = port.poll_room() {}
//!
//! // 5. Timers; then, when nothing more is sent in this turn:
//! for target in port.poll_wakes() {
//!     wake(target);
//! }
//!
//! // 6. Sleep, if the kernel, the backlog and the engine have nothing either. `false`:
//! //    something has arrived meanwhile, or a batch was over its budget. A loop that
//! //    spins before it sleeps asks only after it has spun: it counts as awake.
//! if nothing_else_to_do && port.try_sleep() {
//!     wait_for_the_kernel();
//! }
//! # }
//! ```
//!
//! A wake may come late, to a loop that has risen meanwhile, so it must be harmless
//! then: an event on a descriptor that the next wait takes.
//!
//! The end of a session is sent by [`MeshPort::session_end`] to each loop that a
//! request of it went to, once all its complete frames were sent: a session that
//! waits for room has not come to its end.

mod message;
mod peer;
mod sleep;
#[cfg(test)]
mod tests;

// By this name `sleep` finds it here, and other atomics where it is checked.
use std::sync::Arc;
use std::sync::atomic;

use crate::ids::{GrantRef, SessionId};
use crate::protocol::{Reply, Request};
pub use message::{DlmAnswer, DlmCall, DlmOperation, INLINE_KEY_BYTES, Message, OwnedRequest};
use peer::Peer;
use sleep::{News, Published, SleepState, Until};

/// The most loops that can be joined: session handles name no more.
pub const MAX_LOOPS: u16 = 1 << SessionId::LOOP_BITS;

/// One loop's end of the rings to and from all others.
#[derive(Debug)]
pub struct MeshPort {
    loop_index: u16,
    /// All other loops, by number.
    peers: Vec<Peer>,
    sleep: Arc<SleepState>,
    asleep: bool,
    /// Positions of peers with news, each once.
    touched: Vec<usize>,
    /// Peers that refused a request.
    refusing: usize,
    /// Messages of this batch that are not taken yet.
    gathered: usize,
    /// Position of the peer whose messages are taken next.
    cursor: usize,
    /// Position of the peer whose messages were the first of this batch.
    first: usize,
    counters: MeshCounters,
}

/// What a port has done since it was made.
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
    /// Wakes that [`MeshPort::poll_wakes`] asked for.
    pub wakes: u64,
}

/// The target has no room for a request now; [`MeshPort::poll_room`] tells when it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// Ports for `loops` loops, by number, every two of them joined by rings of
/// `ring_capacity` messages each way.
///
/// # Panics
/// If there are no loops or more than [`MAX_LOOPS`], or the capacity is 0.
pub fn build(loops: u16, ring_capacity: usize) -> Vec<MeshPort> {
    assert!((1..=MAX_LOOPS).contains(&loops), "{loops} loops");
    assert!(ring_capacity > 0, "rings without room");
    let mut ports: Vec<MeshPort> = (0..loops).map(MeshPort::alone).collect();
    for second in 1..ports.len() {
        for first in 0..second {
            let (lower, upper) = ports.split_at_mut(second);
            let (first, second) = (&mut lower[first], &mut upper[0]);
            let (of_first, of_second) = Peer::join(
                (first.loop_index, &first.sleep),
                (second.loop_index, &second.sleep),
                ring_capacity,
            );
            first.peers.push(of_first);
            second.peers.push(of_second);
        }
    }
    ports
}

impl MeshPort {
    fn alone(loop_index: u16) -> MeshPort {
        MeshPort {
            loop_index,
            peers: Vec::new(),
            sleep: Arc::new(SleepState::awake()),
            asleep: false,
            touched: Vec::new(),
            refusing: 0,
            gathered: 0,
            cursor: 0,
            first: 0,
            counters: MeshCounters::default(),
        }
    }

    /// The loop whose port this is.
    pub fn loop_index(&self) -> u16 {
        self.loop_index
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

    /// Sends a request for a key that `target` owns. It must have passed
    /// [`Request::check`].
    ///
    /// # Errors
    /// [`NoRoom`]: nothing was sent; the session's input is to pause.
    ///
    /// # Panics
    /// If `target` is this loop or does not exist, as all that send do.
    #[inline]
    pub fn try_request(
        &mut self,
        target: u16,
        session: SessionId,
        release_on_close: bool,
        request: &Request<'_>,
    ) -> Result<(), NoRoom> {
        let position = self.position(target);
        self.admit(position)?;
        self.send(
            position,
            Message::Request {
                session,
                release_on_close,
                request: OwnedRequest::new(request),
            },
        );
        Ok(())
    }

    /// Sends a JackrabbitDLM request for a name that `target` owns.
    ///
    /// # Errors
    /// No room, as for [`MeshPort::try_request`]: the request comes back.
    pub fn try_dlm_request(&mut self, target: u16, call: Box<DlmCall>) -> Result<(), Box<DlmCall>> {
        let position = self.position(target);
        if self.admit(position).is_err() {
            return Err(call);
        }
        self.send(position, Message::DlmRequest(call));
        Ok(())
    }

    /// Answers a session of another loop.
    #[inline]
    pub fn reply(&mut self, session: SessionId, reply: Reply) {
        let position = self.position(session.loop_index());
        self.send(position, Message::Reply { session, reply });
    }

    /// Tells a session of another loop of a grant made here.
    #[inline]
    pub fn granted(&mut self, session: SessionId, owner: u64, grant: GrantRef, waited_ms: u32) {
        let position = self.position(session.loop_index());
        self.send(
            position,
            Message::Granted {
                session,
                owner,
                grant,
                waited_ms,
            },
        );
    }

    /// Answers a JackrabbitDLM connection of another loop.
    pub fn dlm_reply(&mut self, answer: Box<DlmAnswer>) {
        let position = self.position(answer.session.loop_index());
        self.send(position, Message::DlmReply(answer));
    }

    /// Tells `target` that a session of this loop is over.
    pub fn session_end(&mut self, target: u16, session: SessionId, orderly: bool) {
        let position = self.position(target);
        self.send(position, Message::SessionEnd { session, orderly });
    }

    /// Gives a native grant back to the loop that made it.
    pub fn lost_grant(&mut self, target: u16, grant: GrantRef) {
        let position = self.position(target);
        self.send(position, Message::LostGrant(grant));
    }

    /// Sends what was spilled and has room now, then begins a batch of at most
    /// `budget` arrivals, shared out fairly over the other loops. Returns how many
    /// there are. Read the clock after this, before [`MeshPort::poll_inbound`].
    pub fn gather(&mut self, budget: usize) -> usize {
        self.flush();
        let count = self.peers.len();
        let mut left = budget;
        self.first = next_position(self.first, count);
        let mut position = self.first;
        for still_to_come in (1..=count).rev() {
            left -= self.peers[position].gather(left.div_ceil(still_to_come));
            position = next_position(position, count);
        }
        self.cursor = self.first;
        self.gathered = budget - left;
        self.gathered
    }

    /// The next arrival of this batch, and the loop it comes from.
    #[inline]
    pub fn poll_inbound(&mut self) -> Option<(u16, Message)> {
        self.gathered = self.gathered.checked_sub(1)?;
        loop {
            let peer = &mut self.peers[self.cursor];
            if let Some(message) = peer.take() {
                let from = peer.loop_index;
                self.counters.received += 1;
                self.touch(self.cursor, News::Room);
                return Some((from, message));
            }
            self.cursor = next_position(self.cursor, self.peers.len());
        }
    }

    /// A loop that refused a request and has room for one now, each once. One of its
    /// requests may be refused again; then it is told of anew.
    pub fn poll_room(&mut self) -> Option<u16> {
        if self.refusing == 0 {
            return None;
        }
        let peer = self
            .peers
            .iter_mut()
            .find(|peer| peer.refused && peer.takes_requests())?;
        peer.refused = false;
        self.refusing -= 1;
        Some(peer.loop_index)
    }

    /// Ends the turn: the loops to wake now because this one sent them something, or
    /// made the room they sleep for. Each at most once, none that is awake.
    pub fn poll_wakes(&mut self) -> impl Iterator<Item = u16> {
        self.flush();
        Wakes {
            published: (!self.touched.is_empty()).then(sleep::publish),
            port: self,
        }
    }

    /// Whether the loop may sleep until it is woken; others know by then that it does.
    /// `false`: there is something to do, start the next turn.
    pub fn try_sleep(&mut self) -> bool {
        if self.peers.is_empty() {
            return true;
        }
        if !self.touched.is_empty() {
            return false;
        }
        let wants_room = self.peers.iter().any(Peer::wants_room);
        self.sleep.announce(if wants_room {
            Until::MessageOrRoom
        } else {
            Until::Message
        });
        self.asleep = true;
        if self.peers.iter().any(Peer::has_work) {
            self.handle_awake();
        }
        self.asleep
    }

    /// What this port has done.
    pub fn counters(&self) -> &MeshCounters {
        &self.counters
    }

    /// Checks what must hold between any two calls.
    pub fn invariants(&self) {
        for (position, peer) in self.peers.iter().enumerate() {
            peer.invariants();
            let touches = self.touched.iter().filter(|&&it| it == position).count();
            assert_eq!(touches, usize::from(peer.news.is_some()));
        }
        let refusing = self.peers.iter().filter(|peer| peer.refused).count();
        assert_eq!(self.refusing, refusing);
    }

    /// Where `target` is among the peers.
    #[inline]
    fn position(&self, target: u16) -> usize {
        assert_ne!(target, self.loop_index, "a loop sends itself nothing");
        usize::from(target) - usize::from(target > self.loop_index)
    }

    #[inline]
    fn admit(&mut self, position: usize) -> Result<(), NoRoom> {
        let peer = &mut self.peers[position];
        if peer.takes_requests() {
            self.counters.requests += 1;
            return Ok(());
        }
        self.counters.refused += 1;
        if !peer.refused {
            peer.refused = true;
            self.refusing += 1;
        }
        Err(NoRoom)
    }

    #[inline]
    fn send(&mut self, position: usize, message: Message) {
        if !self.peers[position].send(message) {
            self.counters.spilled += 1;
        }
        self.touch(position, News::Message);
    }

    fn flush(&mut self) {
        for position in 0..self.peers.len() {
            if self.peers[position].flush() {
                self.touch(position, News::Message);
            }
        }
    }

    /// Notes what the peer must be woken for, if it sleeps when this turn ends.
    #[inline]
    fn touch(&mut self, position: usize, news: News) {
        let peer = &mut self.peers[position];
        if peer.news.is_none() {
            self.touched.push(position);
        }
        peer.news = peer.news.max(Some(news));
    }
}

/// Looks at each touched loop once.
struct Wakes<'a> {
    port: &'a mut MeshPort,
    published: Option<Published>,
}

impl Iterator for Wakes<'_> {
    type Item = u16;

    fn next(&mut self) -> Option<u16> {
        let published = self.published.as_ref()?;
        while let Some(position) = self.port.touched.pop() {
            let peer = &mut self.port.peers[position];
            if let Some(news) = peer.news.take()
                && peer.sleep.rouse(news, published)
            {
                self.port.counters.wakes += 1;
                return Some(peer.loop_index);
            }
        }
        None
    }
}

/// The position after this one, round and round.
#[inline]
fn next_position(position: usize, count: usize) -> usize {
    if position + 1 < count {
        position + 1
    } else {
        0
    }
}
