//! Where the engine's replies land: in the sessions' output, the sessions listed
//! for the driver, or on the way to the loop of their session.

use std::collections::VecDeque;

use super::held::{HeldReplies, HeldReply};
use crate::durability::Needs;
use crate::engine::time::Time;
use crate::engine::{Outbox, extended_reply};
use crate::ids::{GrantRef, SessionId};
use crate::mesh::Outbound;
use crate::protocol::Reply;
use crate::session::{Output, Phase, Session, Sessions};

/// Appends replies to the sessions' output, and sends those to sessions of other loops.
pub(super) struct SessionOutbox<'a> {
    pub(super) loop_index: u16,
    pub(super) mesh: &'a mut Outbound,
    pub(super) sessions: &'a mut Sessions,
    pub(super) dirty: &'a mut VecDeque<SessionId>,
    pub(super) buffers: &'a mut BufferPool,
    pub(super) held: &'a mut HeldReplies,
    pub(super) now: Time,
}

impl SessionOutbox<'_> {
    /// The output of a session that can still be sent something.
    #[inline]
    pub(super) fn output(&mut self, id: SessionId) -> Option<&mut Output> {
        let session = self.sessions.get_mut(id)?;
        if session.phase == Phase::Gone {
            return None;
        }
        mark_dirty(session, self.dirty);
        let output = &mut session.output;
        if output.buffer().capacity() == 0 {
            *output.buffer() = self.buffers.take();
        }
        Some(output)
    }

    /// Appends a grant that `granted_by` made to its session's output. `false` if the
    /// session is gone: then nobody will hear of the grant.
    #[inline]
    pub(super) fn append_grant(
        &mut self,
        session: SessionId,
        owner: u64,
        (granted_by, grant): (u16, GrantRef),
        waited_ms: u32,
    ) -> bool {
        let Some(output) = self.output(session) else {
            return false;
        };
        output.note_grant(granted_by, grant);
        let token = grant.token;
        let reply = Reply::Acquired {
            owner,
            token,
            waited_ms,
        };
        reply.encode(output.buffer());
        true
    }
}

impl SessionOutbox<'_> {
    /// Tells of a grant of this loop's that may be told. `false`: nobody will hear of it.
    #[inline]
    pub(super) fn tell_grant(
        &mut self,
        session: SessionId,
        owner: u64,
        grant: GrantRef,
        waited_ms: u32,
    ) -> bool {
        if session.loop_index() == self.loop_index {
            self.append_grant(session, owner, (self.loop_index, grant), waited_ms)
        } else {
            self.mesh.granted(session, owner, grant, waited_ms);
            true
        }
    }
}

impl Outbox for SessionOutbox<'_> {
    #[inline]
    fn reply(&mut self, session: SessionId, reply: Reply) {
        if session.loop_index() != self.loop_index {
            self.mesh.reply(session, reply);
        } else if let Some(output) = self.output(session) {
            reply.encode(output.buffer());
        }
    }

    #[inline]
    fn granted(
        &mut self,
        session: SessionId,
        owner: u64,
        grant: GrantRef,
        waited_ms: u32,
        needs: Needs,
    ) {
        if self.held.are_met(needs, self.now) {
            // A session of this loop leaves the engine before it is gone.
            self.tell_grant(session, owner, grant, waited_ms);
        } else {
            let reply = HeldReply::Granted {
                session,
                owner,
                grant,
                waited_ms,
            };
            self.held.hold(needs, reply);
        }
    }

    #[inline]
    fn extended(
        &mut self,
        session: SessionId,
        owner: u64,
        now: Time,
        deadline: Time,
        needs: Needs,
    ) {
        if self.held.are_met(needs, now) {
            self.reply(session, extended_reply(owner, now, deadline));
        } else {
            let reply = HeldReply::Extended {
                session,
                owner,
                deadline,
            };
            self.held.hold(needs, reply);
        }
    }
}

/// Buffers that sessions hold only while they have something in them: an idle
/// session owns none, and a busy one allocates none.
#[derive(Debug, Default)]
pub(super) struct BufferPool {
    spare: Vec<Vec<u8>>,
}

impl BufferPool {
    /// Buffers kept for the next taker.
    const MAX_SPARE: usize = 256;
    /// A buffer that has grown beyond this is not kept.
    const MAX_SPARE_BYTES: usize = 128 * 1024;

    pub(super) fn take(&mut self) -> Vec<u8> {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn give(&mut self, mut buffer: Vec<u8>) {
        let keep = 1..=Self::MAX_SPARE_BYTES;
        if keep.contains(&buffer.capacity()) && self.spare.len() < Self::MAX_SPARE {
            buffer.clear();
            self.spare.push(buffer);
        }
    }
}

/// Lists the session for the driver, once.
pub(super) fn mark_dirty(session: &mut Session, dirty: &mut VecDeque<SessionId>) {
    if !session.dirty {
        session.dirty = true;
        dirty.push_back(session.id);
    }
}
