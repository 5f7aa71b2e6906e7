//! The other loops' side of a worker: what they send is judged, what waits for room
//! on the way to them goes on when there is some, sessions move there.

use super::dlm::carry_out;
use super::outbox::mark_dirty;
use super::rooms::Waiting;
use super::{Worker, list_backlogged};
use crate::engine::time::Time;
use crate::engine::{Caller, DlmHolder, Outbox as _, SessionEnd};
use crate::ids::SessionId;
use crate::mesh::{DlmCall, MeshCounters, Message};
use crate::partition;
use crate::protocol::Request;
use crate::session::{Phase, Protocol, Share};

/// Messages judged by one reading of the clock.
const MESSAGES_PER_BATCH: usize = 256;

/// Batches judged in one turn, if others keep sending; the rest comes next turn.
pub const BATCHES_PER_TURN: usize = 4;

impl Worker {
    /// The loop's sleep is over. Call it first of all in a turn: until
    /// [`Worker::try_sleep`] nobody wakes this loop any more.
    #[inline]
    pub fn handle_awake(&mut self) {
        self.mesh.handle_awake();
    }

    /// Begins a batch of messages from other loops and says how many there are. Read
    /// the clock after this and judge them by [`Worker::handle_messages`]; up to
    /// [`BATCHES_PER_TURN`] batches a turn.
    pub fn gather_messages(&mut self) -> usize {
        self.mesh.gather(MESSAGES_PER_BATCH)
    }

    /// Judges the batch that [`Worker::gather_messages`] began.
    pub fn handle_messages(&mut self, now: Time) {
        let now = self.advance_clock(now);
        // Judged where they lie, while answers go out.
        let mut inbound = std::mem::take(&mut self.mesh.inbound);
        inbound.drain(|message| self.handle_message(message, now));
        self.mesh.inbound = inbound;
    }

    /// Lets sessions go on whose requests found no room on the way to another loop,
    /// where there is room now.
    pub fn handle_room(&mut self) {
        while let Some(target) = self.mesh.outbound.poll_room() {
            self.rooms.open(target);
        }
        if !self.rooms.any_open() {
            return;
        }
        let mut resumed = std::mem::take(&mut self.resumed);
        for target in 0..self.config.loops {
            if !self.rooms.is_open(target) {
                continue;
            }
            let room_for = self.mesh.outbound.room_for_requests(target);
            if room_for == 0 {
                self.rooms.shut(target);
                self.mesh.outbound.want_room(target);
                continue;
            }
            let requests = self.rooms.take_resumable(target, room_for, &mut resumed);
            for waiting in resumed.drain(..) {
                self.resume(target, waiting, requests);
            }
        }
        self.resumed = resumed;
    }

    fn resume(&mut self, target: u16, waiting: Waiting, requests: u16) {
        let Some(session) = self.sessions.get_mut(waiting.session()) else {
            return;
        };
        if !std::mem::take(&mut session.waits_for_room) {
            return;
        }
        match waiting {
            Waiting::Native(_) => {
                session.share = Some(Share {
                    target,
                    requests_left: requests,
                    is_used: false,
                });
                self.rooms.begin_turn(target);
                list_backlogged(session, &mut self.backlog);
            }
            Waiting::Dlm(call) => self.send_dlm(target, call, true),
        }
    }

    /// Sends a native request to the loop that owns its key. `false`: it has to wait.
    #[inline]
    pub(super) fn try_forward(
        &mut self,
        id: SessionId,
        target: u16,
        release_on_close: bool,
        request: &Request<'_>,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(id) else {
            return false;
        };
        let share = session.share.as_mut().filter(|it| it.target == target);
        if self.rooms.is_waited_for(target)
            && share.as_ref().is_none_or(|share| share.requests_left == 0)
        {
            return false;
        }
        let outbound = &mut self.mesh.outbound;
        let sent = outbound.try_request(target, id, release_on_close, request);
        if sent.is_err() {
            return false;
        }
        if let Some(share) = share {
            share.requests_left = share.requests_left.saturating_sub(1);
            share.is_used = true;
        }
        session.forwarded_to.insert(target);
        true
    }

    /// The turn of a session that had waited for room is over.
    pub(super) fn end_share(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id)
            && let Some(share) = session.share.take()
        {
            self.rooms.end_turn(share.target);
        }
    }

    /// The loops to wake at the end of a turn, because this one has something for them.
    pub fn poll_wakes(&mut self) -> impl Iterator<Item = u16> {
        self.mesh.poll_wakes()
    }

    /// Whether the loop may sleep: nothing is left to do here, and others will wake it
    /// for what they send from now on. `false`: take the next turn at once.
    pub fn try_sleep(&mut self) -> bool {
        !self.has_work() && self.mesh.try_sleep()
    }

    /// What crossed between this loop and the others.
    pub fn mesh_counters(&self) -> MeshCounters {
        self.mesh.counters()
    }

    /// A session that another loop gave up by [`Worker::take_moving`] arrives; the
    /// bytes that came with it are received next, by [`Worker::handle_received`]. The
    /// server's limits were kept when it was accepted.
    pub fn handle_moved(&mut self) -> SessionId {
        self.native_connections += 1;
        self.counters.moved_here += 1;
        self.sessions.open(Protocol::Native, None)
    }

    /// Gives a session up that [`super::Action::Move`] was said of, once the driver has
    /// its socket free: what it had received comes back. The session is no more;
    /// `None` if it has ended meanwhile.
    pub fn take_moving(&mut self, id: SessionId) -> Option<Vec<u8>> {
        let session = self.sessions.get_mut(id)?;
        if !matches!(session.phase, Phase::Moving(_)) {
            return None;
        }
        let input = std::mem::take(&mut session.input);
        self.sessions.close(id);
        self.native_connections -= 1;
        Some(input)
    }

    /// The loop that owns a key.
    #[inline]
    pub(super) fn owner_of(&self, key: &[u8]) -> u16 {
        partition::loop_of(key, self.config.routing_seed, self.config.loops)
    }

    /// Sends a DLM request to the loop that owns its name, or has it wait for room.
    pub(super) fn forward_dlm(&mut self, call: Box<DlmCall>) {
        let target = self.owner_of(call.file_name.as_bytes());
        debug_assert_ne!(target, self.config.loop_index, "own names are judged here");
        self.send_dlm(target, call, false);
    }

    fn send_dlm(&mut self, target: u16, call: Box<DlmCall>, is_its_turn: bool) {
        let call = if is_its_turn || !self.rooms.is_waited_for(target) {
            match self.mesh.outbound.try_dlm_request(target, call) {
                Ok(()) => return,
                Err(call) => call,
            }
        } else {
            call
        };
        let id = call.session;
        self.wait_for_room(target, Waiting::Dlm(call), id, is_its_turn);
    }

    /// A native session's next request waits for room on the way to `target`.
    pub(super) fn wait_with_input(&mut self, target: u16, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.backlogged = true;
        let share = session.share.filter(|share| share.target == target);
        let was_its_turn = share.is_some_and(|share| !share.is_used);
        self.wait_for_room(target, Waiting::Native(id), id, was_its_turn);
    }

    fn wait_for_room(&mut self, target: u16, waiting: Waiting, id: SessionId, was_its_turn: bool) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.waits_for_room = true;
        }
        let sessions = &self.sessions;
        let is_live = |id| sessions.get(id).is_some_and(|it| it.waits_for_room);
        self.rooms
            .wait(target, waiting, was_its_turn, sessions.len(), is_live);
        // Also where it is the others that it waits for, and not the ring.
        self.mesh.outbound.want_room(target);
    }

    fn handle_message(&mut self, message: &mut Message, now: Time) {
        match message {
            Message::Request {
                session,
                release_on_close,
                request,
            } => {
                let caller = Caller {
                    session: *session,
                    release_on_close: *release_on_close,
                };
                let (engine, mut out) = self.engine_and_outbox();
                engine.handle_request(now, caller, &request.as_request(), &mut out);
                self.note_work();
            }
            Message::Reply { session, reply } => self.reply(*session, *reply),
            Message::Granted {
                session,
                owner,
                grant,
                granted_by,
                waited_ms,
            } => {
                let (_, mut out) = self.engine_and_outbox();
                if !out.append_grant(*session, *owner, (*granted_by, *grant), *waited_ms) {
                    self.mesh.outbound.lost_grant(*granted_by, *grant);
                }
            }
            Message::SessionEnd { session, orderly } => {
                let end = match orderly {
                    true => SessionEnd::Orderly,
                    false => SessionEnd::Broken,
                };
                let (engine, mut out) = self.engine_and_outbox();
                engine.handle_session_end(now, *session, end, &mut out);
                self.note_work();
                if self.held.holds_for(*session) {
                    self.hold_end(*session);
                } else {
                    self.mesh.outbound.session_ended(*session);
                }
            }
            Message::SessionEnded { session } => self.end_told(*session),
            Message::LostGrant(grant) => {
                let (engine, mut out) = self.engine_and_outbox();
                engine.handle_lost_grant(now, *grant, &mut out);
                self.note_work();
            }
            Message::DlmRequest(call) => {
                let DlmCall {
                    session,
                    file_name,
                    id,
                    name,
                    operation,
                } = &mut **call;
                let holder = DlmHolder {
                    id,
                    name: name.as_deref(),
                };
                let operation = std::mem::replace(operation, crate::dlm::Operation::Version);
                let (engine, mut out) = self.engine_and_outbox();
                let key = file_name.as_bytes();
                let carried = carry_out(engine, &mut out, key, holder, operation, now).into_owned();
                self.note_work();
                if self.are_met(&carried, now) {
                    self.tell_dlm(*session, carried.reply);
                } else {
                    self.hold_dlm(*session, carried);
                }
            }
            Message::DlmReply(answer) => {
                if self.awaits_answer(answer.session) {
                    self.answer(answer.session, &answer.reply);
                }
            }
        }
    }

    /// One of the loops that requests of a session went to has nothing more for it.
    pub(super) fn end_told(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.ends_awaited -= 1;
        if session.ends_awaited > 0 {
            return;
        }
        let last_error = session.last_error.take();
        mark_dirty(session, &mut self.dirty);
        if let Some(error) = last_error {
            self.engine_and_outbox().1.reply(id, error);
        }
    }
}
