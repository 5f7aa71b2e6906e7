//! One loop's turn without IO: bytes come in, bytes to send come out, time is
//! passed in. A driver (or the simulator) owns the sockets and the clock.
//!
//! A turn, as the driver plays it:
//!
//! 1. [`Worker::handle_received`] / [`Worker::handle_end`] for what the kernel has,
//!    each with a `now` read after those bytes were taken;
//! 2. [`Worker::gather_messages`] and [`Worker::handle_messages`] for what other loops
//!    sent, with a `now` read between the two; [`Worker::handle_room`];
//! 3. [`Worker::handle_backlog`] for sessions whose last batch was over budget, and
//!    [`Worker::handle_large_request`];
//! 4. [`Worker::handle_timeouts`];
//! 5. [`Worker::poll_dirty`], and for each session [`Worker::poll_action`] until it
//!    says [`Action::Wait`];
//! 6. wake the loops of [`Worker::poll_wakes`];
//! 7. ask the store for all that [`Worker::poll_ask`] says, and tell
//!    [`Worker::handle_news`] what it has to tell at the start of a turn;
//! 8. sleep until [`Worker::poll_timeout`] if [`Worker::try_sleep`] allows it, and say
//!    [`Worker::handle_awake`] when that is over.

mod deadlines;
mod dlm;
mod held;
mod mesh;
mod native;
mod outbox;
mod rooms;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use crate::credentials::Credentials;
use crate::durability::Durable;
use crate::engine::time::Time;
use crate::engine::{Engine, EngineLimits, Outbox as _, SessionEnd};
use crate::ids::SessionId;
use crate::mesh::MeshPort;
use crate::protocol::{ErrorCode, Reply, RequestLimits};
pub use crate::session::Protocol;
use crate::session::{DlmStage, Phase, Session, Sessions, UnseenGrant};
use crate::stats::SessionCounters;
use deadlines::Deadlines;
pub use dlm::DlmConfig;
use dlm::DlmSide;
use held::HeldReplies;
pub use mesh::BATCHES_PER_TURN;
use outbox::{BufferPool, SessionOutbox, mark_dirty};
use rooms::{Rooms, Waiting};

/// Steps of work after which a session's turn is over; a request is one, and the
/// engine adds what a request made it walk through. About a tenth of a millisecond.
const SESSION_STEPS_PER_TURN: u32 = 1024;

/// Timers, cascades and drained waiters handled per turn at the least; more where
/// requests took more.
const TIMEOUT_STEPS_PER_TURN: u32 = 1024;

/// Stuck and lingering sessions given up on in one turn.
const SESSION_ENDS_PER_TURN: u32 = 64;

/// What one loop may do and must keep to; each limit comes from a flag.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    /// What requests may ask.
    pub requests: RequestLimits,
    /// Bounds of the engine.
    pub engine: EngineLimits,
    /// Who may say Hello; `None`: everybody, Hello or not.
    pub credentials: Option<Credentials>,
    /// `--max-connections`, of the whole server: a loop may come to have them all.
    pub max_connections: usize,
    /// `--output-soft-limit`: owing more than this, a session's input is not read.
    pub output_soft_limit_bytes: usize,
    /// `--output-hard-limit`: owing more than this, a session is closed.
    pub output_hard_limit_bytes: usize,
    /// `--peer-timeout`: how long output may be stuck, in milliseconds.
    pub peer_timeout_ms: u64,
    /// `--linger-ms`: how long input is read and dropped before a close.
    pub linger_ms: u64,
    /// `--linger-bytes`: how much input is read and dropped before a close.
    pub linger_bytes: u64,
    /// The DLM protocol.
    pub dlm: DlmConfig,
    /// How many loops the server has.
    pub loops: u16,
    /// Which of them this is.
    pub loop_index: u16,
    /// Seed of the routing hash, told in Welcome.
    pub routing_seed: u64,
    /// Seed of the tables' hash; never leaves the process.
    pub hash_seed: u64,
    /// The first token to give out, the same for all loops: they share the numbers from
    /// there on between them.
    pub first_token: u64,
    /// What survives a restart; `None`: nothing does.
    pub durable: Option<Durable>,
}

/// How the driver saw a session's peer go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerEnd {
    /// The client's side ended in order (FIN).
    Fin,
    /// Reset, time-out, or any other fault of the connection.
    Broken,
}

/// What the driver is to do next for a session.
#[derive(Debug, PartialEq, Eq)]
pub enum Action<'a> {
    /// Hand these bytes to the kernel, then say [`Worker::handle_submitted`] or
    /// [`Worker::handle_blocked`]; or take them with [`Worker::take_output`].
    Write(&'a [u8]),
    /// Shut down the sending side, then ask again.
    ShutdownWrite,
    /// Let go of the socket, which may take its time, then say [`Worker::handle_closed`].
    Close,
    /// Hello wants that loop: have the kernel let go of the socket, then say
    /// [`Worker::take_moving`] and hand it over with what that gives.
    Move(u16),
    /// Nothing for now.
    Wait,
}

/// One loop's sessions and locks.
#[derive(Debug)]
pub struct Worker {
    config: WorkerConfig,
    engine: Engine,
    sessions: Sessions,
    dirty: VecDeque<SessionId>,
    /// Sessions with frames to judge that no new bytes will announce.
    backlog: VecDeque<SessionId>,
    stalls: Deadlines,
    lingers: Deadlines,
    dlm_requests: Deadlines,
    dlm: DlmSide,
    buffers: BufferPool,
    mesh: MeshPort,
    /// Replies that wait until what they tell of survives a restart.
    held: HeldReplies,
    rooms: Rooms,
    /// Those who found room in this turn; kept for its allocation.
    resumed: Vec<Waiting>,
    native_connections: usize,
    /// Steps of work that requests took since timers were looked at.
    steps_since_timeouts: u32,
    counters: SessionCounters,
    /// The latest `now` seen: time never goes back, whoever passes it in.
    latest: Time,
}

impl Worker {
    /// A loop without sessions and locks, joined to the others by its port of
    /// [`crate::mesh::build`].
    pub fn new(config: WorkerConfig, mesh: MeshPort) -> Worker {
        let max_held = config.engine.max_waiters as usize;
        // No two loops give out the same token: one that is shown for the wrong key
        // must not fit by chance.
        let first_token = config.first_token + u64::from(config.loop_index);
        let mut engine = Engine::new(config.engine, first_token, config.hash_seed)
            .with_token_step(config.loops.into());
        if let Some(durable) = &config.durable {
            engine = engine.with_durability(durable, max_held);
        }
        Worker {
            mesh,
            engine,
            held: HeldReplies::new(config.durable.as_ref(), max_held),
            rooms: Rooms::new(config.loops),
            resumed: Vec::new(),
            sessions: Sessions::new(config.loop_index),
            dirty: VecDeque::new(),
            backlog: VecDeque::new(),
            stalls: Deadlines::new(config.peer_timeout_ms),
            lingers: Deadlines::new(config.linger_ms),
            dlm_requests: Deadlines::new(config.dlm.request_timeout_ms),
            dlm: DlmSide::new(config.dlm),
            buffers: BufferPool::default(),
            native_connections: 0,
            steps_since_timeouts: 0,
            counters: SessionCounters::default(),
            latest: Time::ZERO,
            config,
        }
    }

    /// Which of the server's loops this is.
    pub fn loop_index(&self) -> u16 {
        self.config.loop_index
    }

    /// A connection was accepted. `None`: there are too many, close it without a byte.
    pub fn handle_accepted(&mut self, protocol: Protocol, now: Time) -> Option<SessionId> {
        let now = self.advance_clock(now);
        let id = match protocol {
            Protocol::Native if self.native_connections < self.config.max_connections => {
                self.native_connections += 1;
                Some(self.sessions.open(protocol, None))
            }
            Protocol::Native => None,
            Protocol::Dlm => self.dlm.open().map(|exchange| {
                let id = self.sessions.open(protocol, Some(exchange));
                let at = self.dlm_requests.arm(id, now, &self.sessions);
                if let Some(session) = self.sessions.get_mut(id) {
                    session.give_up_at = Some(at);
                }
                id
            }),
        };
        match id {
            Some(_) => self.counters.opened += 1,
            None => self.counters.refused += 1,
        }
        id
    }

    /// Bytes of a session were taken from the kernel; `now` was read after that.
    pub fn handle_received(&mut self, id: SessionId, bytes: &[u8], now: Time) {
        let now = self.advance_clock(now);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match session.phase {
            Phase::Open if session.protocol == Protocol::Dlm => self.receive_dlm(id, bytes, now),
            Phase::Open if session.backlogged => session.input.extend_from_slice(bytes),
            Phase::Open if session.input.is_empty() => {
                let judged = self.judge_batch(id, bytes, now);
                self.keep_rest(id, &bytes[judged..]);
            }
            Phase::Open => {
                session.input.extend_from_slice(bytes);
                self.judge_input(id, now);
            }
            Phase::Lingering => {
                let count = bytes.len() as u64;
                if session.linger_bytes_left < count {
                    self.end(id);
                } else {
                    session.linger_bytes_left -= count;
                }
            }
            // Bytes that were under way when it was decided.
            Phase::Moving(_) => session.input.extend_from_slice(bytes),
            Phase::Finishing | Phase::Closing | Phase::Gone => {}
        }
    }

    /// The session's peer is gone. Call it after every byte received before it.
    pub fn handle_end(&mut self, id: SessionId, how: PeerEnd, now: Time) {
        let now = self.advance_clock(now);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        match (how, session.phase) {
            (_, Phase::Gone) => {}
            (PeerEnd::Broken, _) => {
                self.counters.broken += 1;
                self.break_off(id, now);
            }
            (PeerEnd::Fin, Phase::Open) if session.protocol == Protocol::Dlm => {
                session.fin_seen = true;
                self.finish_dlm(id);
            }
            (PeerEnd::Fin, Phase::Open) => {
                session.fin_seen = true;
                if !session.backlogged {
                    self.finish(id, now);
                }
            }
            // The other loop will see it too.
            (PeerEnd::Fin, Phase::Moving(_)) => {}
            (PeerEnd::Fin, Phase::Lingering) => self.end(id),
            (PeerEnd::Fin, Phase::Closing | Phase::Finishing) => session.fin_seen = true,
        }
    }

    /// Judges the next batch of one session whose input was left over. Returns
    /// whether there was one; the driver reads the clock before each call and bounds
    /// the calls per turn by [`Worker::backlog_len`].
    pub fn handle_backlog(&mut self, now: Time) -> bool {
        let now = self.advance_clock(now);
        let Some(id) = self.backlog.pop_front() else {
            return false;
        };
        if let Some(session) = self.sessions.get_mut(id) {
            session.in_backlog = false;
            if !session.backlogged {
                self.end_share(id);
                return true;
            }
            session.backlogged = false;
            // Its socket may be readable again, which only the driver can act on.
            mark_dirty(session, &mut self.dirty);
            self.judge_input(id, now);
            self.end_share(id);
            if let Some(session) = self.sessions.get(id)
                && session.phase == Phase::Open
                && session.fin_seen
                && !session.backlogged
            {
                self.finish(id, now);
            }
        }
        true
    }

    /// How many sessions wait for [`Worker::handle_backlog`].
    pub fn backlog_len(&self) -> usize {
        self.backlog.len()
    }

    /// Judges one of the DLM requests that are too large for the turn they came in.
    pub fn handle_large_request(&mut self, now: Time) {
        let now = self.advance_clock(now);
        self.judge_large_request(now);
    }

    /// Ends what is due: leases, waits, stuck and lingering sessions. Bounded: what
    /// is left over shows in [`Worker::has_work`].
    pub fn handle_timeouts(&mut self, now: Time) {
        let now = self.advance_clock(now);
        // What is due gets as large a share of the turn as what was asked: else a busy
        // loop would grant and time out late.
        let steps = TIMEOUT_STEPS_PER_TURN.max(std::mem::take(&mut self.steps_since_timeouts));
        let (engine, mut out) = self.engine_and_outbox();
        engine.handle_timeouts(now, steps, &mut out);
        engine.take_work();
        self.settle_held(now, steps);
        for _ in 0..SESSION_ENDS_PER_TURN {
            if let Some(id) = self.stalls.pop_due(now, &self.sessions) {
                self.counters.stalled += 1;
                self.break_off(id, now);
            } else if let Some(id) = self.lingers.pop_due(now, &self.sessions) {
                self.end(id);
            } else if let Some(id) = self.dlm_requests.pop_due(now, &self.sessions) {
                self.give_up_request(id);
            } else {
                break;
            }
        }
    }

    /// The next session that needs the driver: output to send or a step of its end.
    pub fn poll_dirty(&mut self) -> Option<SessionId> {
        while let Some(id) = self.dirty.pop_front() {
            if let Some(session) = self.sessions.get_mut(id) {
                session.dirty = false;
                return Some(id);
            }
        }
        None
    }

    /// What to do next for a session.
    pub fn poll_action(&mut self, id: SessionId, now: Time) -> Action<'_> {
        let now = self.advance_clock(now);
        let Some(session) = self.sessions.get(id) else {
            return Action::Wait;
        };
        let owes = session.output.len() > 0;
        match session.phase {
            Phase::Gone => self.tell_close(id),
            _ if session.output.in_flight() > 0 => Action::Wait,
            _ if owes => self
                .sessions
                .get(id)
                .map_or(Action::Wait, |s| Action::Write(s.output.pending())),
            // Replies of other loops are still to come.
            Phase::Closing | Phase::Finishing if session.ends_awaited > 0 => Action::Wait,
            Phase::Closing if !session.fin_seen => {
                let at = self.lingers.arm(id, now, &self.sessions);
                if let Some(session) = self.sessions.get_mut(id) {
                    session.phase = Phase::Lingering;
                    session.linger_bytes_left = match session.protocol {
                        Protocol::Native => self.config.linger_bytes,
                        Protocol::Dlm => self.dlm.linger_bytes(self.config.linger_bytes),
                    };
                    session.give_up_at = Some(at);
                }
                Action::ShutdownWrite
            }
            Phase::Closing | Phase::Finishing => self.tell_close(id),
            Phase::Moving(to) => {
                // Should it end meanwhile, the driver closes it without asking again.
                if let Some(session) = self.sessions.get_mut(id) {
                    session.close_told = true;
                }
                Action::Move(to)
            }
            Phase::Open | Phase::Lingering => Action::Wait,
        }
    }

    /// The kernel took `count` bytes of what [`Action::Write`] offered.
    pub fn handle_submitted(&mut self, id: SessionId, count: usize) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        session.output.submitted(count);
        if session.protocol == Protocol::Dlm {
            self.dlm.answered(count);
        }
        if session.output.len() == 0 {
            self.buffers.give(std::mem::take(session.output.buffer()));
        }
        self.output_moved(id);
    }

    /// Takes what [`Action::Write`] offered, for a driver whose sends own their
    /// bytes: it counts as handed to the kernel now, and as owed until
    /// [`Worker::handle_sent`]. Until all of it is sent, nothing more is offered.
    pub fn take_output(&mut self, id: SessionId) -> Vec<u8> {
        self.sessions
            .get_mut(id)
            .map_or_else(Vec::new, |session| session.output.take())
    }

    /// The kernel took `count` bytes of what [`Worker::take_output`] gave. The
    /// driver sends the rest itself, and says [`Worker::handle_blocked`] while it waits.
    pub fn handle_sent(&mut self, id: SessionId, count: usize) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.phase == Phase::Gone {
            return;
        }
        session.output.sent(count);
        if session.protocol == Protocol::Dlm {
            self.dlm.answered(count);
        }
        let at_its_end = matches!(session.phase, Phase::Finishing | Phase::Closing);
        if session.output.in_flight() == 0 && (session.output.len() > 0 || at_its_end) {
            mark_dirty(session, &mut self.dirty);
        }
        self.output_moved(id);
    }

    /// Gives back a buffer of [`Worker::take_output`] that the kernel is done with.
    pub fn return_buffer(&mut self, buffer: Vec<u8>) {
        self.buffers.give(buffer);
    }

    /// The kernel takes no more bytes for now; the driver will ask again
    /// ([`Worker::mark_dirty`]) when it does. Only now do the output limits count: what
    /// a peer takes at once was never kept for it.
    pub fn handle_blocked(&mut self, id: SessionId, now: Time) {
        let now = self.advance_clock(now);
        let Some(session) = self.sessions.get(id) else {
            return;
        };
        let owed_bytes = session.output.len();
        let is_over = match session.protocol {
            Protocol::Native => owed_bytes > self.config.output_hard_limit_bytes,
            // One answer, however long: it counts together with all the others.
            Protocol::Dlm => self.dlm.answers_are_over(),
        };
        if is_over {
            self.counters.over_output_limit += 1;
            self.break_off(id, now);
        } else if session.give_up_at.is_none() && owed_bytes > 0 {
            let at = self.stalls.arm(id, now, &self.sessions);
            if let Some(session) = self.sessions.get_mut(id) {
                session.give_up_at = Some(at);
            }
        }
    }

    /// Lists the session for [`Worker::poll_dirty`].
    pub fn mark_dirty(&mut self, id: SessionId) {
        if let Some(session) = self.sessions.get_mut(id) {
            mark_dirty(session, &mut self.dirty);
        }
    }

    /// The driver has let go of the socket; the slot may name another session now.
    /// Returns which protocol the session spoke, `None` where there is no such session.
    pub fn handle_closed(&mut self, id: SessionId) -> Option<Protocol> {
        self.drop_exchange(id);
        let protocol = self.sessions.close(id)?;
        match protocol {
            Protocol::Native => self.native_connections -= 1,
            Protocol::Dlm => self.dlm.close(),
        }
        Some(protocol)
    }

    /// A connection was closed without a byte, because the server has too many.
    pub fn note_refused(&mut self) {
        self.counters.refused += 1;
    }

    /// Whether the session's socket should be read now. While it should not, the
    /// driver leaves bytes in the kernel, so that the peer is pushed back.
    pub fn wants_input(&self, id: SessionId) -> bool {
        self.sessions
            .get(id)
            .is_some_and(|session| match session.phase {
                Phase::Open if session.protocol == Protocol::Dlm => session
                    .dlm
                    .as_ref()
                    .is_some_and(|exchange| exchange.stage == DlmStage::Receiving),
                Phase::Open => {
                    !session.backlogged
                        && session.output.len() <= self.config.output_soft_limit_bytes
                }
                Phase::Lingering => true,
                Phase::Finishing | Phase::Closing | Phase::Moving(_) | Phase::Gone => false,
            })
    }

    /// Work is left that no event will announce: take another turn without sleeping.
    pub fn has_work(&self) -> bool {
        let is_due = |due: Time| due <= self.latest;
        self.engine.poll_timeout().is_some_and(is_due)
            || self.held.has_settled()
            || self.dlm.has_large_request()
            || self.rooms.any_open()
            || !self.backlog.is_empty()
            || !self.dirty.is_empty()
    }

    /// When the next turn is due at the latest; `None`: when something arrives.
    pub fn poll_timeout(&self) -> Option<Time> {
        [
            self.engine.poll_timeout(),
            self.held.poll_timeout(),
            self.stalls.next(),
            self.lingers.next(),
            self.dlm_requests.next(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// From now on nobody is granted; acquires, queued ones included, are answered `E 8`.
    pub fn handle_drain(&mut self) {
        self.engine.handle_drain();
    }

    /// Whether a drain has nothing left to wait for: no key is held, no acquire queued, and
    /// no reply is held back.
    pub fn is_drained(&self) -> bool {
        self.engine.held() == 0 && self.engine.waiting() == 0 && !self.held.any_held()
    }

    /// Ends every session: what is owed is sent, then it is closed.
    pub fn close_all(&mut self, now: Time) {
        let now = self.advance_clock(now);
        let open: Vec<SessionId> = self
            .sessions
            .iter()
            .filter(|session| session.phase == Phase::Open)
            // Its answer is owed, and closes it.
            .filter(|session| !session.is_owed_dlm_answer())
            .map(|session| session.id)
            .collect();
        for id in open {
            self.close_orderly(id, now);
        }
    }

    /// How long closing everything may take, in milliseconds, before a peer that
    /// takes nothing is left behind.
    pub fn close_patience_ms(&self) -> u64 {
        self.config.linger_ms + self.config.peer_timeout_ms.min(1_000)
    }

    /// Sessions that are not closed yet.
    pub fn session_count(&self) -> usize {
        self.sessions.len()
    }

    /// What happened to sessions since the start.
    pub fn session_counters(&self) -> &SessionCounters {
        &self.counters
    }

    /// The lock engine, to look at.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Checks what must hold between any two calls.
    pub fn invariants(&self) {
        self.engine.invariants();
        self.mesh.invariants();
        self.rooms.invariants(self.sessions.iter());
        self.dlm.invariants(self.sessions.iter());
        self.held.invariants();
        for session in self.sessions.iter() {
            session.invariants();
            let offers = session.output.len() > 0
                && session.output.in_flight() == 0
                && session.give_up_at.is_none();
            let must_be_looked_at = offers || (session.phase == Phase::Gone && !session.close_told);
            assert!(
                !must_be_looked_at || session.dirty,
                "{:?} is owed bytes or an end that nobody will give it",
                session.id
            );
            let listed = self.backlog.iter().filter(|id| **id == session.id).count();
            assert_eq!(listed, usize::from(session.in_backlog), "listed once");
            let waits = self.rooms.count_of(session.id);
            assert!(waits <= 1, "waits once");
            assert!(
                waits == 1 || !session.waits_for_room,
                "nobody will resume it"
            );
            if session.backlogged {
                assert!(
                    session.in_backlog
                        || session.waits_for_room
                        || session.output.len() > self.config.output_soft_limit_bytes,
                    "{:?} has frames that nobody will judge",
                    session.id
                );
            }
        }
    }

    fn advance_clock(&mut self, now: Time) -> Time {
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Takes note of the steps that a request took. Returns how many.
    fn note_work(&mut self) -> u32 {
        let steps = 1 + self.engine.take_work();
        self.steps_since_timeouts = self.steps_since_timeouts.saturating_add(steps);
        steps
    }

    fn reply(&mut self, id: SessionId, reply: Reply) {
        self.engine_and_outbox().1.reply(id, reply);
    }

    /// The client's side has ended and all its frames are judged.
    fn finish(&mut self, id: SessionId, now: Time) {
        self.counters.ended_by_client += 1;
        self.leave(id, Phase::Finishing, SessionEnd::Orderly, now);
    }

    /// Answers the error last, sends what is owed, closes.
    fn close_on_error(&mut self, id: SessionId, owner: u64, code: ErrorCode, now: Time) {
        self.counters.closed_on_error += 1;
        self.close_orderly(id, now);
        let error = Reply::Error { owner, code };
        match self.sessions.get_mut(id) {
            // Behind the replies of other loops that are still to come.
            Some(session) if session.ends_awaited > 0 => session.last_error = Some(error),
            _ => self.reply(id, error),
        }
    }

    fn close_orderly(&mut self, id: SessionId, now: Time) {
        self.leave(id, Phase::Closing, SessionEnd::Broken, now);
    }

    /// Ends an open session's part in the engine; what it is owed is still sent.
    fn leave(&mut self, id: SessionId, to: Phase, end: SessionEnd, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        debug_assert_eq!(session.phase, Phase::Open);
        if let Some(share) = session.share.take() {
            self.rooms.end_turn(share.target);
        }
        session.phase = to;
        session.backlogged = false;
        session.waits_for_room = false;
        session.input = Vec::new();
        mark_dirty(session, &mut self.dirty);
        for target in session.forwarded_to.iter(self.config.loops) {
            if target != self.config.loop_index {
                let orderly = end == SessionEnd::Orderly;
                self.mesh.outbound.session_end(target, id, orderly);
                session.ends_awaited += 1;
            }
        }
        if session.protocol == Protocol::Native && self.held.holds_for(id) {
            // What is held for it may be of this loop.
            session.ends_awaited += 1;
            self.hold_end(id);
        }
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.protocol == Protocol::Dlm {
            // A DLM connection has no part in the engine: its lock outlives it.
            return self.drop_exchange(id);
        }
        let (engine, mut out) = self.engine_and_outbox();
        engine.handle_session_end(now, id, end, &mut out);
    }

    /// Ends a session of which nothing more can be sent: grants it cannot have seen
    /// are released, the others run to their lease's end.
    fn break_off(&mut self, id: SessionId, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if session.phase == Phase::Open {
            self.leave(id, Phase::Closing, SessionEnd::Broken, now);
        }
        self.end(id);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let abandoned_bytes = session.output.len();
        if session.protocol == Protocol::Dlm {
            self.dlm.answered(abandoned_bytes);
        }
        let unseen = session.output.abandon();
        let (engine, mut out) = self.engine_and_outbox();
        for UnseenGrant {
            granted_by, grant, ..
        } in unseen
        {
            if granted_by == out.loop_index {
                engine.handle_lost_grant(now, grant, &mut out);
            } else {
                out.mesh.lost_grant(granted_by, grant);
            }
        }
    }

    /// The driver is to let go of the socket.
    fn end(&mut self, id: SessionId) {
        self.drop_exchange(id);
        if let Some(session) = self.sessions.get_mut(id) {
            session.phase = Phase::Gone;
            session.give_up_at = None;
            mark_dirty(session, &mut self.dirty);
        }
    }

    fn tell_close(&mut self, id: SessionId) -> Action<'static> {
        self.drop_exchange(id);
        if let Some(session) = self.sessions.get_mut(id) {
            session.phase = Phase::Gone;
            session.give_up_at = None;
            session.close_told = true;
        }
        Action::Close
    }

    /// The kernel took some of a session's output.
    fn output_moved(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        // Whatever was stuck has moved; if the rest is stuck too, the driver says so.
        session.give_up_at = None;
        if session.output.len() <= self.config.output_soft_limit_bytes {
            list_backlogged(session, &mut self.backlog);
        }
    }

    fn engine_and_outbox(&mut self) -> (&mut Engine, SessionOutbox<'_>) {
        (
            &mut self.engine,
            SessionOutbox {
                loop_index: self.config.loop_index,
                mesh: &mut self.mesh.outbound,
                sessions: &mut self.sessions,
                dirty: &mut self.dirty,
                buffers: &mut self.buffers,
                held: &mut self.held,
                now: self.latest,
            },
        )
    }
}

/// Lists a session with frames left to judge for [`Worker::handle_backlog`], once.
fn list_backlogged(session: &mut Session, backlog: &mut VecDeque<SessionId>) {
    if session.backlogged && !session.in_backlog && !session.waits_for_room {
        session.in_backlog = true;
        backlog.push_back(session.id);
    }
}
