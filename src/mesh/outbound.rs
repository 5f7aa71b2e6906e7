//! The sending half of a port.

use std::collections::VecDeque;
use std::sync::Arc;

use rtrb::Producer;

use super::atomic::{AtomicBool, Ordering};
use super::message::{DlmAnswer, DlmCall, Message, Slot};
use super::sleep::{News, Published, SleepState};
use crate::ids::{GrantRef, SessionId};
use crate::protocol::{Reply, Request};

/// What this loop sends to others.
#[derive(Debug)]
pub struct Outbound {
    loop_index: u16,
    /// All other loops, by number.
    targets: Vec<Target>,
    /// Positions of targets with news, each once.
    touched: Vec<usize>,
    /// How many targets refused a request.
    refusing: usize,
    pub(super) requests: u64,
    pub(super) refused: u64,
    pub(super) spilled: u64,
    pub(super) wakes: u64,
}

/// The target has no room for a request now; [`Outbound::poll_room`] tells when it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom;

/// The way to one other loop.
#[derive(Debug)]
pub(super) struct Target {
    loop_index: u16,
    sleep: Arc<SleepState>,
    ring: Producer<Slot>,
    /// What the ring had no room for, to follow what is in it.
    spill: VecDeque<Slot>,
    /// Tells the target that there is a spill for it.
    spills: Arc<Spills>,
    /// Tells that the target has a spill for this loop.
    target_spills: Arc<Spills>,
    /// A request was refused, and room not told of since.
    refused: bool,
    /// What this loop did for the target since it last looked whether that one sleeps.
    news: Option<News>,
}

/// Whether one loop has a spill for another. The other sends it no more requests
/// then, since each would make a reply and the spill grow without bound. It may be
/// seen late; no data hangs on it. On a line of its own: it is read for each request.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(super) struct Spills(AtomicBool);

impl Outbound {
    pub(super) fn new(loop_index: u16) -> Outbound {
        Outbound {
            loop_index,
            targets: Vec::new(),
            touched: Vec::new(),
            refusing: 0,
            requests: 0,
            refused: 0,
            spilled: 0,
            wakes: 0,
        }
    }

    pub(super) fn push_target(&mut self, target: Target) {
        self.targets.push(target);
    }

    pub(super) fn target_count(&self) -> usize {
        self.targets.len()
    }

    /// The loop whose half this is.
    pub fn loop_index(&self) -> u16 {
        self.loop_index
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
        self.send(position, |slot| {
            Message::write_request(slot, session, release_on_close, request);
        });
        Ok(())
    }

    /// Sends a JackrabbitDLM request for a name that `target` owns.
    ///
    /// # Errors
    /// No room, as for [`Outbound::try_request`]: the request comes back.
    pub fn try_dlm_request(&mut self, target: u16, call: Box<DlmCall>) -> Result<(), Box<DlmCall>> {
        let position = self.position(target);
        if self.admit(position).is_err() {
            return Err(call);
        }
        self.send(position, |slot| *slot = Some(Message::DlmRequest(call)));
        Ok(())
    }

    /// Answers a session of another loop.
    #[inline]
    pub fn reply(&mut self, session: SessionId, reply: Reply) {
        let position = self.position(session.loop_index());
        self.send(position, |slot| {
            *slot = Some(Message::Reply { session, reply });
        });
    }

    /// Tells a session of another loop of a grant made here.
    #[inline]
    pub fn granted(&mut self, session: SessionId, owner: u64, grant: GrantRef, waited_ms: u32) {
        let position = self.position(session.loop_index());
        let granted_by = self.loop_index;
        self.send(position, |slot| {
            *slot = Some(Message::Granted {
                session,
                owner,
                grant,
                granted_by,
                waited_ms,
            });
        });
    }

    /// Answers a JackrabbitDLM connection of another loop.
    pub fn dlm_reply(&mut self, answer: Box<DlmAnswer>) {
        let position = self.position(answer.session.loop_index());
        self.send(position, |slot| *slot = Some(Message::DlmReply(answer)));
    }

    /// Tells `target` that a session of this loop is over.
    pub fn session_end(&mut self, target: u16, session: SessionId, orderly: bool) {
        let position = self.position(target);
        self.send(position, |slot| {
            *slot = Some(Message::SessionEnd { session, orderly });
        });
    }

    /// Tells the loop of a session that its end, which it told of, is done here.
    pub fn session_ended(&mut self, session: SessionId) {
        let position = self.position(session.loop_index());
        self.send(position, |slot| {
            *slot = Some(Message::SessionEnded { session });
        });
    }

    /// Gives a native grant back to the loop that made it.
    pub fn lost_grant(&mut self, granted_by: u16, grant: GrantRef) {
        let position = self.position(granted_by);
        self.send(position, |slot| *slot = Some(Message::LostGrant(grant)));
    }

    /// A loop that refused a request and has room for one now, each once. One of its
    /// requests may be refused again; then it is told of anew.
    pub fn poll_room(&mut self) -> Option<u16> {
        if self.refusing == 0 {
            return None;
        }
        let target = self
            .targets
            .iter_mut()
            .find(|target| target.refused && target.takes_requests())?;
        target.refused = false;
        self.refusing -= 1;
        Some(target.loop_index)
    }

    /// How many requests `target` takes now.
    pub fn room_for_requests(&self, target: u16) -> usize {
        let target = &self.targets[self.position(target)];
        if target.takes_requests() {
            target.ring.slots()
        } else {
            0
        }
    }

    /// Has [`Outbound::poll_room`] tell when `target` takes requests, as after a refusal.
    pub fn want_room(&mut self, target: u16) {
        let position = self.position(target);
        let target = &mut self.targets[position];
        if !target.refused {
            target.refused = true;
            self.refusing += 1;
        }
    }

    /// Moves what was spilled to where it has room now.
    pub(super) fn flush(&mut self) {
        for position in 0..self.targets.len() {
            let target = &mut self.targets[position];
            if !target.spill.is_empty() && target.flush() {
                self.touch(position, News::Message);
            }
        }
    }

    /// Notes what the target must be woken for, if it sleeps when this turn ends.
    #[inline]
    pub(super) fn touch(&mut self, position: usize, news: News) {
        let target = &mut self.targets[position];
        if target.news.is_none() {
            self.touched.push(position);
        }
        target.news = target.news.max(Some(news));
    }

    pub(super) fn has_touched(&self) -> bool {
        !self.touched.is_empty()
    }

    /// The next target that is asleep and has news; each is looked at once.
    pub(super) fn rouse_next(&mut self, published: &Published) -> Option<u16> {
        while let Some(position) = self.touched.pop() {
            let target = &mut self.targets[position];
            if let Some(news) = target.news.take()
                && target.sleep.rouse(news, published)
            {
                self.wakes += 1;
                return Some(target.loop_index);
            }
        }
        None
    }

    /// Whether something here waits for another loop to make room.
    pub(super) fn wants_room(&self) -> bool {
        self.targets
            .iter()
            .any(|target| target.refused || !target.spill.is_empty())
    }

    /// How much waits for room now.
    pub(super) fn spilling(&self) -> u64 {
        let spills = self.targets.iter().map(|target| target.spill.len());
        spills.sum::<usize>() as u64
    }

    /// Whether some of what waited for room has it now.
    pub(super) fn has_room(&self) -> bool {
        self.targets.iter().any(|target| {
            (!target.spill.is_empty() && !target.ring.is_full())
                || (target.refused && target.takes_requests())
        })
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        for (position, target) in self.targets.iter().enumerate() {
            assert_eq!(target.spills.get(), !target.spill.is_empty());
            // A request that finds no room is refused.
            let is_request =
                |it: &Message| matches!(it, Message::Request { .. } | Message::DlmRequest(_));
            assert!(!target.spill.iter().flatten().any(is_request));
            let touches = self.touched.iter().filter(|&&it| it == position).count();
            assert_eq!(touches, usize::from(target.news.is_some()));
        }
        let refusing = self.targets.iter().filter(|target| target.refused).count();
        assert_eq!(self.refusing, refusing);
    }

    /// Where `target` is among all targets.
    #[inline]
    fn position(&self, target: u16) -> usize {
        assert_ne!(target, self.loop_index, "a loop sends itself nothing");
        usize::from(target) - usize::from(target > self.loop_index)
    }

    #[inline]
    fn admit(&mut self, position: usize) -> Result<(), NoRoom> {
        let target = &mut self.targets[position];
        if target.takes_requests() {
            self.requests += 1;
            return Ok(());
        }
        self.refused += 1;
        if !target.refused {
            target.refused = true;
            self.refusing += 1;
        }
        Err(NoRoom)
    }

    #[inline]
    fn send(&mut self, position: usize, write: impl FnOnce(&mut Slot)) {
        if !self.targets[position].send(write) {
            self.spilled += 1;
        }
        self.touch(position, News::Message);
    }
}

impl Target {
    pub(super) fn new(
        loop_index: u16,
        sleep: Arc<SleepState>,
        ring: Producer<Slot>,
        spills: Arc<Spills>,
        target_spills: Arc<Spills>,
    ) -> Target {
        Target {
            loop_index,
            sleep,
            ring,
            spill: VecDeque::new(),
            spills,
            target_spills,
            refused: false,
            news: None,
        }
    }

    /// Puts the message that `write` writes behind all that were sent before. Returns
    /// whether it fitted the ring.
    #[inline]
    fn send(&mut self, write: impl FnOnce(&mut Slot)) -> bool {
        if self.spill.is_empty()
            && let Ok(mut chunk) = self.ring.write_chunk(1)
        {
            let (slots, _) = chunk.as_mut_slices();
            write(&mut slots[0]);
            chunk.commit_all();
            return true;
        }
        let mut slot = None;
        write(&mut slot);
        self.spill(slot);
        false
    }

    #[cold]
    fn spill(&mut self, slot: Slot) {
        self.spills.set(true);
        self.spill.push_back(slot);
    }

    /// Whether a request can be sent now.
    #[inline]
    fn takes_requests(&self) -> bool {
        self.spill.is_empty() && !self.ring.is_full() && !self.target_spills.get()
    }

    /// Moves what has room now from the spill to the ring. Returns whether anything moved.
    fn flush(&mut self) -> bool {
        let mut moved = false;
        while !self.ring.is_full()
            && let Some(slot) = self.spill.pop_front()
        {
            let pushed = self.ring.push(slot);
            debug_assert!(pushed.is_ok(), "only this loop fills the ring");
            moved = true;
        }
        if self.spill.is_empty() {
            // A burst's memory is given back, an ordinary spill's kept.
            self.spill.shrink_to(self.ring.buffer().capacity());
            self.spills.set(false);
        }
        moved
    }
}

impl Spills {
    fn set(&self, spills: bool) {
        self.0.store(spills, Ordering::Relaxed);
    }

    #[inline]
    fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
