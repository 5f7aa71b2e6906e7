//! One connection as its loop sees it: a receive cursor, a send cursor, where it
//! stands between its first frame and its close. No descriptor, no clock.
//!
//! ```text
//! Open ── client's FIN, all frames judged ──────────► Finishing ── output sent ──► Gone
//!   │ └── error close, server's drain ──► Closing ── output sent ──► Lingering ──► Gone
//!   ├──── reset, stall, output over its hard limit ──────────────────────────────► Gone
//!   └──── Hello wants another loop ──► Moving ── taken by the driver ──► Open, there
//! ```
//!
//! A session that ends has sent everything only when each loop that requests of it
//! went to has said that no more replies come ([`Session::ends_awaited`]).
//!
//! `Gone` is left when the driver has let go of the socket; only then may the
//! slot name another session.

use slab::Slab;

use crate::dlm::Decoder;
use crate::engine::time::Time;
use crate::ids::{GrantRef, SessionId};
use crate::protocol::Reply;

/// How far a session has come towards its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Requests are judged.
    Open,
    /// Hello, not judged yet, wants this loop: the driver is to carry the session
    /// there, with all its input.
    Moving(u16),
    /// The client's side has ended: what is owed is sent, then the socket is closed.
    Finishing,
    /// The server ends it: what is owed is sent, then its sending side is shut down.
    Closing,
    /// The sending side is shut down; input is read and dropped, within bounds, so
    /// that unread bytes cannot turn the close into a reset that destroys replies.
    Lingering,
    /// Nothing more is sent or read; the driver is to let go of the socket.
    Gone,
}

/// What the first frame settled.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Greeting {
    /// A complete frame has been judged: Hello comes too late now.
    pub(crate) over: bool,
    /// Hello carried a credential that was accepted.
    pub(crate) authenticated: bool,
    /// `RELEASE_ON_CLOSE` is in force.
    pub(crate) release_on_close: bool,
}

/// Which protocol a connection speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// The native protocol.
    Native,
    /// JackrabbitDLM's.
    Dlm,
}

/// A DLM connection's one request on its way in.
#[derive(Debug)]
pub(crate) struct DlmExchange {
    pub(crate) decoder: Decoder,
    pub(crate) stage: DlmStage,
}

/// How far a DLM request has come.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum DlmStage {
    /// Bytes of it may be missing.
    Receiving,
    /// Complete, and large enough to wait for a turn of its own.
    Queued,
    /// Complete; the file of this identity is being read for it.
    AwaitsIdentity(Box<str>),
    /// Judged; the answer comes from another loop, or waits until it is durable.
    AwaitsAnswer {
        /// Memory that the request takes at another loop.
        call_bytes: usize,
    },
}

impl DlmExchange {
    /// Memory that the request takes until it is answered, wherever it is.
    pub(crate) fn held_bytes(&self) -> usize {
        let call_bytes = match &self.stage {
            DlmStage::AwaitsAnswer { call_bytes } => *call_bytes,
            DlmStage::Receiving | DlmStage::Queued | DlmStage::AwaitsIdentity(_) => 0,
        };
        self.decoder.buffer_bytes() + call_bytes
    }
}

/// Loops, a bit for each. Of more than 64 loops some share a bit: a set holds at
/// least the loops that were put in, which does where a needless message is harmless.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LoopSet(u64);

impl LoopSet {
    #[inline]
    pub(crate) fn insert(&mut self, loop_index: u16) {
        self.0 |= 1 << (loop_index % 64);
    }

    /// Those of `loops` loops that are in the set.
    pub(crate) fn iter(self, loops: u16) -> impl Iterator<Item = u16> {
        (0..loops).filter(move |index| self.0 & 1 << (index % 64) != 0)
    }
}

/// What a session that has waited for room may send while others wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Share {
    pub(crate) target: u16,
    pub(crate) requests_left: u16,
    /// Something was sent already.
    pub(crate) is_used: bool,
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) id: SessionId,
    pub(crate) protocol: Protocol,
    pub(crate) phase: Phase,
    /// Until the request is answered; never for a native session.
    pub(crate) dlm: Option<Box<DlmExchange>>,
    pub(crate) greeting: Greeting,
    /// Received and not yet judged: an unfinished frame, or the rest of a batch
    /// that was over its turn's budget.
    pub(crate) input: Vec<u8>,
    /// Complete frames may wait in `input`.
    pub(crate) backlogged: bool,
    /// Listed among the sessions whose frames are judged without new bytes.
    pub(crate) in_backlog: bool,
    /// Its next request waits, listed, for room on the way to another loop.
    pub(crate) waits_for_room: bool,
    /// It has waited for room, and its turn is not over.
    pub(crate) share: Option<Share>,
    /// The loops that requests of it went to.
    pub(crate) forwarded_to: LoopSet,
    /// How many loops have been told of the session's end and may still have replies
    /// for it under way.
    pub(crate) ends_awaited: u16,
    /// The error that ended the session, to be sent when all other replies have come.
    pub(crate) last_error: Option<Reply>,
    /// The client's side has ended, to take effect once `input` is judged.
    pub(crate) fin_seen: bool,
    pub(crate) output: Output,
    /// Listed among the sessions that the driver must look at.
    pub(crate) dirty: bool,
    /// Bytes that may still be read and dropped while lingering.
    pub(crate) linger_bytes_left: u64,
    /// When the peer is given up on: set while its output is stuck and while lingering.
    pub(crate) give_up_at: Option<Time>,
    /// The driver knows that it is to let go of the socket; that may take it a while.
    pub(crate) close_told: bool,
}

impl Session {
    fn new(id: SessionId, protocol: Protocol, dlm: Option<Box<DlmExchange>>) -> Session {
        Session {
            id,
            protocol,
            phase: Phase::Open,
            dlm,
            greeting: Greeting::default(),
            input: Vec::new(),
            backlogged: false,
            in_backlog: false,
            waits_for_room: false,
            share: None,
            forwarded_to: LoopSet::default(),
            ends_awaited: 0,
            last_error: None,
            fin_seen: false,
            output: Output::default(),
            dirty: false,
            linger_bytes_left: 0,
            give_up_at: None,
            close_told: false,
        }
    }

    /// Whether a DLM connection's request has come to its end and is not answered yet.
    pub(crate) fn is_owed_dlm_answer(&self) -> bool {
        let exchange = self.dlm.as_ref();
        exchange.is_some_and(|it| it.stage != DlmStage::Receiving)
    }

    /// Whether a DLM connection's request is judged, and its answer still to come.
    pub(crate) fn awaits_answer(&self) -> bool {
        let exchange = self.dlm.as_ref();
        exchange.is_some_and(|it| matches!(it.stage, DlmStage::AwaitsAnswer { .. }))
    }

    pub(crate) fn is_moving(&self) -> bool {
        matches!(self.phase, Phase::Moving(_))
    }

    /// Checks what must hold between any two calls.
    pub(crate) fn invariants(&self) {
        self.output.invariants();
        if self.backlogged {
            assert_eq!(self.phase, Phase::Open, "only an open session has requests");
        }
        if self.waits_for_room {
            let has_request = self.backlogged || self.dlm.is_some();
            assert!(has_request && !self.in_backlog, "what waits is a request");
        }
        if self.ends_awaited > 0 {
            let is_ending = matches!(self.phase, Phase::Finishing | Phase::Closing | Phase::Gone);
            assert!(is_ending, "only an end is awaited");
        }
        assert!(self.last_error.is_none() || self.ends_awaited > 0);
        if self.fin_seen && self.phase == Phase::Open {
            let is_dlm_complete = self
                .dlm
                .as_ref()
                .is_some_and(|exchange| exchange.stage != DlmStage::Receiving);
            assert!(
                self.backlogged || is_dlm_complete,
                "a FIN waits only for what came before it to be judged"
            );
        }
        assert!(
            self.dlm.is_none() || self.protocol == Protocol::Dlm && self.phase == Phase::Open,
            "a request is kept until it is answered"
        );
        if self.phase == Phase::Gone {
            assert_eq!(self.output.len(), 0, "nothing is owed after the end");
        }
    }
}

/// A grant whose reply the kernel has not one byte of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnseenGrant {
    /// Where its reply begins in the output.
    start: usize,
    /// The loop that made it.
    pub(crate) granted_by: u16,
    /// The grant, in that loop's lock table.
    pub(crate) grant: GrantRef,
}

/// What a session is owed: bytes in order, a cursor of what the kernel has taken,
/// and the grants among them that could still be taken back.
///
/// A driver either copies from [`Output::pending`] or owns what it sends: then
/// [`Output::take`] gives it all, and what it has not sent yet is still owed.
#[derive(Debug, Default)]
pub(crate) struct Output {
    bytes: Vec<u8>,
    submitted: usize,
    /// Bytes that the driver has taken and not yet reported as sent.
    in_flight: usize,
    unsubmitted_grants: Vec<UnseenGrant>,
}

impl Output {
    /// Bytes owed and not yet taken by the kernel.
    pub(crate) fn len(&self) -> usize {
        self.pending().len() + self.in_flight
    }

    /// The bytes to hand to the kernel next.
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes[self.submitted..]
    }

    /// Bytes that the driver has taken and not yet reported as sent.
    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Hands everything pending to the driver for the kernel: none of the grants
    /// in it can be taken back any more.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.drain(..self.submitted);
        self.submitted = 0;
        self.in_flight += bytes.len();
        self.unsubmitted_grants.clear();
        bytes
    }

    /// The kernel took `count` bytes of what was in flight.
    pub(crate) fn sent(&mut self, count: usize) {
        assert!(count <= self.in_flight, "more sent than was taken");
        self.in_flight -= count;
    }

    /// The buffer to append a whole reply to.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Notes that the reply appended next is this grant's.
    pub(crate) fn note_grant(&mut self, granted_by: u16, grant: GrantRef) {
        self.unsubmitted_grants.push(UnseenGrant {
            start: self.bytes.len(),
            granted_by,
            grant,
        });
    }

    /// The kernel took `count` bytes: a grant of whose reply it has even one byte
    /// can no longer be taken back.
    pub(crate) fn submitted(&mut self, count: usize) {
        self.submitted += count;
        assert!(
            self.submitted <= self.bytes.len(),
            "more taken than was owed"
        );
        if self.submitted == self.bytes.len() {
            self.bytes.clear();
            self.submitted = 0;
            self.unsubmitted_grants.clear();
            return;
        }
        let taken = self
            .unsubmitted_grants
            .partition_point(|unseen| unseen.start < self.submitted);
        self.unsubmitted_grants.drain(..taken);
        // Move the rest to the front once that is cheaper than what it frees.
        if self.submitted >= self.bytes.len() / 2 {
            self.bytes.drain(..self.submitted);
            for unseen in &mut self.unsubmitted_grants {
                unseen.start -= self.submitted;
            }
            self.submitted = 0;
        }
    }

    /// Drops everything owed and returns the grants of which the kernel has not one byte.
    pub(crate) fn abandon(&mut self) -> Vec<UnseenGrant> {
        self.bytes = Vec::new();
        self.submitted = 0;
        self.in_flight = 0;
        std::mem::take(&mut self.unsubmitted_grants)
    }

    fn invariants(&self) {
        assert!(self.submitted <= self.bytes.len());
        assert!(self.submitted == 0 || self.submitted < self.bytes.len());
        let mut previous = self.submitted;
        for &UnseenGrant { start, .. } in &self.unsubmitted_grants {
            assert!(start >= previous, "grants in order, none partly taken");
            assert!(start < self.bytes.len());
            previous = start;
        }
    }
}

/// A loop's sessions by slot, each with a generation, so that a handle that
/// outlived its session finds nothing instead of the slot's next tenant.
#[derive(Debug)]
pub(crate) struct Sessions {
    loop_index: u16,
    slots: Slab<Session>,
    opened: u32,
}

impl Sessions {
    pub(crate) fn new(loop_index: u16) -> Sessions {
        Sessions {
            loop_index,
            slots: Slab::new(),
            opened: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Opens a session in a free slot.
    pub(crate) fn open(&mut self, protocol: Protocol, dlm: Option<Box<DlmExchange>>) -> SessionId {
        let entry = self.slots.vacant_entry();
        let slot = u32::try_from(entry.key()).expect("bounded by --max-connections");
        let id = SessionId::new(self.loop_index, self.opened, slot);
        self.opened = self.opened.wrapping_add(1);
        entry.insert(Session::new(id, protocol, dlm));
        id
    }

    #[inline]
    pub(crate) fn get(&self, id: SessionId) -> Option<&Session> {
        self.slots
            .get(id.slot() as usize)
            .filter(|session| session.id == id)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, id: SessionId) -> Option<&mut Session> {
        self.slots
            .get_mut(id.slot() as usize)
            .filter(|session| session.id == id)
    }

    /// Frees the slot; the driver has let go of the socket. Returns which protocol
    /// the session spoke, `None` where there is no such session.
    pub(crate) fn close(&mut self, id: SessionId) -> Option<Protocol> {
        let protocol = self.get(id)?.protocol;
        self.slots.remove(id.slot() as usize);
        Some(protocol)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Session> {
        self.slots.iter().map(|(_, session)| session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(token: u64) -> GrantRef {
        GrantRef { entry: 0, token }
    }

    fn output_of(replies: &[(usize, Option<u64>)]) -> Output {
        let mut output = Output::default();
        for &(len, token) in replies {
            if let Some(token) = token {
                output.note_grant(0, grant(token));
            }
            let end = output.buffer().len() + len;
            output.buffer().resize(end, b'x');
            output.invariants();
        }
        output
    }

    /// Rule 6 at every byte: a grant comes back exactly while not one byte of its
    /// reply was taken, however the bytes before it were taken.
    #[test]
    fn a_grant_is_given_back_exactly_while_no_byte_of_it_was_taken() {
        let replies = [(22, Some(1)), (10, None), (22, Some(2)), (22, Some(3))];
        let starts = [(0, 1), (32, 2), (54, 3)];
        let total = 76;
        for first in 0..total {
            for second in 0..=(total - first) {
                let mut output = output_of(&replies);
                output.submitted(first);
                output.invariants();
                output.submitted(second);
                output.invariants();
                let taken = first + second;
                assert_eq!(output.len(), total - taken);
                let left: Vec<u64> = output.abandon().iter().map(|it| it.grant.token).collect();
                let expected: Vec<u64> = starts
                    .iter()
                    .filter(|&&(start, _)| start >= taken)
                    .map(|&(_, token)| token)
                    .collect();
                assert_eq!(left, expected, "after {first} and {second} bytes");
            }
        }
    }

    #[test]
    fn a_stale_handle_finds_nothing() {
        let mut sessions = Sessions::new(3);
        let first = sessions.open(Protocol::Native, None);
        sessions.close(first);
        let second = sessions.open(Protocol::Native, None);
        assert_eq!(first.slot(), second.slot());
        assert!(sessions.get(first).is_none());
        sessions.close(first);
        assert!(sessions.get(second).is_some(), "closing a stale handle");
    }
}
