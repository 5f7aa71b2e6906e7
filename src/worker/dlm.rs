//! The JackrabbitDLM protocol's side of a worker: one request per connection,
//! answered, then closed by the closing rules.

use super::{Worker, mark_dirty};
use crate::dlm::{
    Decoder, DlmLimits, DlmReply, DlmRequest, Identity, IdentityCache, Operation, ParsedRequest,
    Progress, Status, Verdict,
};
use crate::durability::Needs;
use crate::engine::time::Time;
use crate::engine::{
    DlmErase, DlmGet, DlmHolder, DlmLock, DlmOutcome, DlmPut, DlmTest, DlmUnlock, Engine, Outbox,
};
use crate::ids::{GrantRef, SessionId};
use crate::mesh::DlmCall;
use crate::session::{DlmExchange, DlmStage, Phase, Protocol, Session, Sessions};
use std::collections::VecDeque;

/// Most identities known to a loop, those being read included.
const MAX_IDENTITIES: usize = 1024;

/// A complete request that has taken more than this is judged in a turn of its own:
/// reading the JSON of megabytes takes milliseconds.
const LARGE_REQUEST_BYTES: usize = 64 * 1024;

/// A request that has taken no more than this is never refused for memory, so that
/// large requests cannot shut out small ones.
const SMALL_REQUEST_BYTES: usize = 16 * 1024;

/// What a loop's DLM side may do; each limit comes from a flag.
#[derive(Clone, Copy, Debug)]
pub struct DlmConfig {
    /// What requests may ask.
    pub requests: DlmLimits,
    /// `--max-dlm-connections`, this loop's share.
    pub max_connections: usize,
    /// `--dlm-max-payload`: longest encoded request, in bytes.
    pub max_payload_bytes: usize,
    /// `--dlm-max-buffered`, this loop's share: bytes of requests that are not
    /// judged yet, and as many of answers not taken yet, over all connections.
    pub max_buffered_bytes: usize,
    /// `--dlm-request-timeout`, in milliseconds.
    pub request_timeout_ms: u64,
}

/// What a loop keeps for all DLM connections together.
#[derive(Debug)]
pub(super) struct DlmSide {
    config: DlmConfig,
    identities: IdentityCache<SessionId>,
    /// Names whose files the driver is to have read.
    to_read: VecDeque<String>,
    /// Complete requests that are too large for the turn they came in.
    large: VecDeque<SessionId>,
    connections: usize,
    receiving_bytes: usize,
    /// Bytes of answers that the kernel has not taken.
    answering_bytes: usize,
}

impl DlmSide {
    pub(super) fn new(config: DlmConfig) -> DlmSide {
        DlmSide {
            config,
            identities: IdentityCache::new(MAX_IDENTITIES),
            to_read: VecDeque::new(),
            large: VecDeque::new(),
            connections: 0,
            receiving_bytes: 0,
            answering_bytes: 0,
        }
    }

    /// A connection's exchange, unless there are too many already.
    pub(super) fn open(&mut self) -> Option<Box<DlmExchange>> {
        if self.connections >= self.config.max_connections {
            return None;
        }
        self.connections += 1;
        Some(Box::new(DlmExchange {
            decoder: Decoder::new(self.config.max_payload_bytes),
            stage: DlmStage::Receiving,
        }))
    }

    /// The connection is closed.
    pub(super) fn close(&mut self) {
        self.connections -= 1;
    }

    /// `count` bytes of answers were taken by the kernel, or given up.
    pub(super) fn answered(&mut self, count: usize) {
        self.answering_bytes -= count;
    }

    /// Whether answers that their peers do not take are too many to keep.
    pub(super) fn answers_are_over(&self) -> bool {
        self.answering_bytes > self.config.max_buffered_bytes
    }

    /// Whether a large request waits for its turn.
    pub(super) fn has_large_request(&self) -> bool {
        !self.large.is_empty()
    }

    /// How much input is read and dropped after an answer: the rest of a request
    /// that was answered before its end is on its way already.
    pub(super) fn linger_bytes(&self, linger_bytes: u64) -> u64 {
        linger_bytes.max(self.config.max_payload_bytes as u64)
    }

    pub(super) fn invariants<'a>(&self, sessions: impl Iterator<Item = &'a Session>) {
        let (mut connections, mut bytes, mut answers) = (0, 0, 0);
        for session in sessions.filter(|session| session.protocol == Protocol::Dlm) {
            connections += 1;
            bytes += session.dlm.as_ref().map_or(0, |d| d.held_bytes());
            answers += session.output.len();
        }
        assert_eq!(self.connections, connections);
        assert_eq!(self.receiving_bytes, bytes);
        assert_eq!(self.answering_bytes, answers);
    }
}

impl Worker {
    /// The name of an identity whose file is to be read now, off the loop; exactly
    /// one [`Worker::handle_identity_read`] must follow.
    pub fn poll_identity_read(&mut self) -> Option<String> {
        self.dlm.to_read.pop_front()
    }

    /// The file of the identity `name` was read: what it holds, `None` where it is
    /// missing or no identity file.
    pub fn handle_identity_read(&mut self, name: &str, identity: Option<Identity>, now: Time) {
        let now = self.advance_clock(now);
        for id in self.dlm.identities.handle_read(name, identity) {
            if let Some(exchange) = self.exchange(id) {
                exchange.stage = DlmStage::Receiving;
                self.answer_request(id, Some(identity), now);
            }
        }
    }

    pub(super) fn receive_dlm(&mut self, id: SessionId, bytes: &[u8], now: Time) {
        let Some(exchange) = self.exchange(id) else {
            return;
        };
        // What follows a complete request means nothing, whenever it comes.
        if exchange.stage != DlmStage::Receiving {
            return;
        }
        let before = exchange.decoder.buffer_bytes();
        let progress = exchange.decoder.push(bytes);
        let after = exchange.decoder.buffer_bytes();
        self.dlm.receiving_bytes = self.dlm.receiving_bytes - before + after;
        match progress {
            Progress::Complete if after > LARGE_REQUEST_BYTES => {
                if let Some(session) = self.sessions.get_mut(id) {
                    // It has come in time, whenever its turn is.
                    session.give_up_at = None;
                }
                exchange_stage(&mut self.sessions, id, DlmStage::Queued);
                self.dlm.large.push_back(id);
            }
            Progress::Complete => self.answer_request(id, None, now),
            Progress::Refused => self.answer(id, &DlmReply::bare(Status::BadPayload)),
            Progress::Pending => {
                let over = self.dlm.receiving_bytes > self.dlm.config.max_buffered_bytes;
                if over && after > SMALL_REQUEST_BYTES {
                    self.answer(id, &DlmReply::bare(Status::No));
                }
            }
        }
    }

    /// The client's side has ended.
    pub(super) fn finish_dlm(&mut self, id: SessionId) {
        // If its request is complete, the answer follows.
        if self.is_receiving(id) {
            self.end(id);
        }
    }

    /// Judges one of the large requests that wait: each gets a turn of its own.
    pub(super) fn judge_large_request(&mut self, now: Time) {
        if let Some(id) = self.dlm.large.pop_front() {
            exchange_stage(&mut self.sessions, id, DlmStage::Receiving);
            self.answer_request(id, None, now);
        }
    }

    /// The connection's time is over: nothing more is waited for.
    pub(super) fn give_up_request(&mut self, id: SessionId) {
        if self.is_receiving(id) {
            self.counters.requests_too_slow += 1;
            self.end(id);
        } else {
            // Delivered in time; its identity's file is what does not come.
            self.answer(id, &DlmReply::bare(Status::BadPayload));
        }
    }

    /// Gives back what a connection's request holds.
    pub(super) fn drop_exchange(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        if let Some(exchange) = session.dlm.take() {
            session.waits_for_room = false;
            self.dlm.receiving_bytes -= exchange.held_bytes();
            if let DlmStage::AwaitsIdentity(name) = &exchange.stage {
                self.dlm.identities.handle_waiter_gone(name, &id);
            }
        }
    }

    /// Judges a complete request. `read` is what its identity's file was found to
    /// hold, if it has waited for that.
    fn answer_request(&mut self, id: SessionId, read: Option<Option<Identity>>, now: Time) {
        let Some(exchange) = self.exchange(id) else {
            return;
        };
        // Out of the session while it is judged: its text is borrowed throughout.
        let decoder = std::mem::replace(&mut exchange.decoder, Decoder::new(0));
        let held_bytes = decoder.buffer_bytes();
        let parsed = ParsedRequest::parse(decoder.text(), &self.dlm.config.requests);
        let parsed = match parsed {
            Ok(parsed) => parsed,
            Err(fault) => {
                self.dlm.receiving_bytes -= held_bytes;
                return self.answer(id, &fault.into());
            }
        };
        let verdict = match (parsed.claim(), read) {
            (None, _) => Verdict::Anonymous,
            (Some(claim), Some(identity)) => Identity::verify(identity.as_ref(), claim),
            (Some(claim), None) => {
                let lookup = self.dlm.identities.lookup(now, claim, id);
                if lookup.read {
                    self.dlm.to_read.push_back(claim.name.clone().into_owned());
                }
                let Some(verdict) = lookup.verdict else {
                    let name = claim.name.as_ref().into();
                    drop(parsed);
                    return self.await_identity(id, name, decoder, now);
                };
                verdict
            }
        };
        self.dlm.receiving_bytes -= held_bytes;
        match parsed.judge(verdict) {
            Ok(request) => self.execute(id, request, now),
            Err(fault) => self.answer(id, &fault.into()),
        }
    }

    /// Keeps a complete request until its identity's file was read, within the time
    /// that a request has to arrive.
    fn await_identity(&mut self, id: SessionId, name: Box<str>, decoder: Decoder, now: Time) {
        let at = self.dlm_requests.arm(id, now, &self.sessions);
        if let Some(session) = self.sessions.get_mut(id)
            && let Some(exchange) = &mut session.dlm
        {
            exchange.stage = DlmStage::AwaitsIdentity(name);
            exchange.decoder = decoder;
            session.give_up_at = Some(at);
        }
    }

    /// Does what the request asks and answers it, or has the loop that owns its name do so.
    fn execute(&mut self, id: SessionId, request: DlmRequest<'_>, now: Time) {
        if request.operation == Operation::Version {
            return self.answer(id, &DlmReply::version());
        }
        let name = request.claim.as_ref().map(|claim| claim.name.as_ref());
        if self.owner_of(request.file_name.as_bytes()) != self.config.loop_index {
            let call = DlmCall {
                session: id,
                file_name: request.file_name.as_ref().into(),
                id: request.id.as_ref().into(),
                name: name.map(Into::into),
                operation: request.operation.into_owned(),
            };
            return self.hand_to_owner(id, Box::new(call));
        }
        let holder = DlmHolder {
            id: &request.id,
            name,
        };
        let (engine, mut out) = self.engine_and_outbox();
        let key = request.file_name.as_bytes();
        let carried = carry_out(engine, &mut out, key, holder, request.operation, now);
        if self.are_met(&carried, now) {
            return self.answer(id, &carried.reply);
        }
        let carried = carried.into_owned();
        self.await_answer(id, 0);
        self.hold_dlm(id, carried);
    }

    fn hand_to_owner(&mut self, id: SessionId, call: Box<DlmCall>) {
        self.await_answer(id, call.memory_bytes());
        self.forward_dlm(call);
    }

    fn await_answer(&mut self, id: SessionId, call_bytes: usize) {
        if let Some(session) = self.sessions.get_mut(id) {
            // It has come in time, whenever its answer does.
            session.give_up_at = None;
        }
        exchange_stage(
            &mut self.sessions,
            id,
            DlmStage::AwaitsAnswer { call_bytes },
        );
        self.dlm.receiving_bytes += call_bytes;
    }

    /// Whether a connection's request is judged, and its answer still to come.
    pub(super) fn awaits_answer(&self, id: SessionId) -> bool {
        self.sessions.get(id).is_some_and(Session::awaits_answer)
    }

    /// Answers and begins to close.
    pub(super) fn answer(&mut self, id: SessionId, reply: &DlmReply<'_>) {
        self.drop_exchange(id);
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let output = session.output.buffer();
        if output.capacity() == 0 {
            *output = self.buffers.take();
        }
        reply.encode(output);
        self.dlm.answering_bytes += session.output.len();
        session.phase = Phase::Closing;
        session.give_up_at = None;
        mark_dirty(session, &mut self.dirty);
    }

    /// Whether the end of the connection's request has not come yet.
    fn is_receiving(&mut self, id: SessionId) -> bool {
        self.exchange(id)
            .is_none_or(|exchange| exchange.stage == DlmStage::Receiving)
    }

    fn exchange(&mut self, id: SessionId) -> Option<&mut DlmExchange> {
        self.sessions.get_mut(id)?.dlm.as_deref_mut()
    }
}

/// What a request came to at the owner of its name.
#[derive(Debug)]
pub(super) struct Carried<'a> {
    pub(super) reply: DlmReply<'a>,
    /// What has to be durable before that is told.
    pub(super) needs: Needs,
    /// The grant to give up if that fails.
    pub(super) granted: Option<GrantRef>,
    /// What is told instead if it fails; `None`: it ends a lock, and waits for as long as
    /// that takes.
    pub(super) otherwise: Option<Status>,
}

impl<'a> Carried<'a> {
    /// To be told at once.
    fn now(reply: DlmReply<'a>) -> Carried<'a> {
        Carried::new(().into(), |()| reply)
    }

    fn new<T>(outcome: DlmOutcome<T>, reply: impl FnOnce(T) -> DlmReply<'a>) -> Carried<'a> {
        Carried {
            reply: reply(outcome.came_to),
            needs: outcome.needs,
            granted: outcome.granted,
            otherwise: Some(Status::No),
        }
    }

    /// It tells the holder that the lock is held.
    fn needing(self, needs: Needs, otherwise: Status) -> Carried<'a> {
        Carried {
            needs,
            otherwise: Some(otherwise),
            ..self
        }
    }

    pub(super) fn into_owned(self) -> Carried<'static> {
        Carried {
            reply: self.reply.into_owned(),
            needs: self.needs,
            granted: self.granted,
            otherwise: self.otherwise,
        }
    }
}

/// Does at the owner of `key` what a request asks there. Not for Version.
pub(super) fn carry_out<'a>(
    engine: &mut Engine,
    out: &mut impl Outbox,
    key: &[u8],
    holder: DlmHolder<'a>,
    operation: Operation<'_>,
    now: Time,
) -> Carried<'a> {
    let own = |status| DlmReply::with_id(status, holder.id);
    let bare = DlmReply::bare;
    match operation {
        Operation::Lock { ttl_ms } => {
            let outcome = engine.handle_dlm_lock(now, key, holder, ttl_ms, out);
            Carried::new(outcome, |lock| match lock {
                DlmLock::Locked => own(Status::Locked),
                DlmLock::NotOwner => bare(Status::NotOwner),
                DlmLock::Overloaded => bare(Status::No),
            })
        }
        Operation::Unlock => {
            let outcome = engine.handle_dlm_unlock(now, key, holder, out);
            Carried {
                otherwise: None,
                ..Carried::new(outcome, |unlock| match unlock {
                    DlmUnlock::Unlocked => own(Status::Unlocked),
                    DlmUnlock::Absent => bare(Status::Unlocked),
                    DlmUnlock::NotOwner => bare(Status::NotOwner),
                })
            }
        }
        Operation::Put { ttl_ms, data_store } => {
            let value = data_store.into_owned().into_boxed_str();
            let outcome = engine.handle_dlm_put(now, key, holder, ttl_ms, value, out);
            Carried::new(outcome, |put| match put {
                DlmPut::Done => own(Status::Done),
                DlmPut::NotOwner => bare(Status::NotOwner),
                DlmPut::Overloaded => bare(Status::No),
            })
        }
        Operation::TestLock => match engine.handle_dlm_test(now, key, holder, out) {
            DlmTest::Free => Carried::now(bare(Status::Unlocked)),
            DlmTest::Own => Carried::now(own(Status::Locked))
                .needing(engine.needs_of_held_key(now, key), Status::NotOwner),
            DlmTest::NotOwner => Carried::now(bare(Status::NotOwner)),
        },
        Operation::Get => match engine.handle_dlm_get(now, key, holder, out) {
            DlmGet::Done(data) => Carried::now(DlmReply::with_data(holder.id, data.to_owned())),
            DlmGet::NoData => Carried::now(own(Status::NoData))
                .needing(engine.needs_of_held_key(now, key), Status::NotFound),
            DlmGet::NotFound => Carried::now(bare(Status::NotFound)),
            DlmGet::NotOwner => Carried::now(bare(Status::NotOwner)),
        },
        Operation::Erase => match engine.handle_dlm_erase(now, key, holder) {
            DlmErase::Done => Carried::now(own(Status::Done)),
            DlmErase::NotFound => Carried::now(bare(Status::NotFound)),
            DlmErase::NotOwner => Carried::now(bare(Status::NotOwner)),
        },
        Operation::Version => Carried::now(DlmReply::version()),
    }
}

fn exchange_stage(sessions: &mut Sessions, id: SessionId, stage: DlmStage) {
    if let Some(exchange) = sessions.get_mut(id).and_then(|s| s.dlm.as_mut()) {
        exchange.stage = stage;
    }
}
