//! The lock engine: no sockets, no clock, no threads. Requests and `now` go in,
//! replies come out through an [`Outbox`], and [`Engine::poll_timeout`] says when
//! to call again. The same code runs under every driver and under the simulator.

pub mod time;

use crate::ids::{GrantRef, SessionId};
use crate::protocol::{Reply, Request};
use time::Time;

/// Where the engine puts what it owes to sessions.
pub trait Outbox {
    /// A reply owed to `session`; it may have ended, then the reply is dropped.
    fn reply(&mut self, session: SessionId, reply: Reply);

    /// A native grant: an `A` reply, and the handle with which the grant is given
    /// back ([`Engine::handle_lost_grant`]) if no byte of the reply could be
    /// submitted to the kernel before the session ended.
    fn granted(&mut self, session: SessionId, owner: u64, grant: GrantRef, waited_ms: u32);
}

/// Bounds of one loop's engine; each comes from a flag.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// `--max-keys`: entries in the lock table.
    pub max_keys: u32,
    /// `--max-memory`, in bytes, over all of the engine's structures.
    pub max_memory_bytes: u64,
    /// `--max-waiters-per-key`.
    pub max_waiters_per_key: u32,
    /// `--max-waiters`: over all keys.
    pub max_waiters: u32,
    /// `--max-session-waiters`: queued acquires of one session.
    pub max_session_waiters: u32,
    /// `--expiry-grace-ms`: how long an expired lease still blocks its key, in milliseconds.
    pub expiry_grace_ms: u32,
}

/// How a session came to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    /// The client's side ended in order (FIN): its queued acquires are answered
    /// `T`; if it set `RELEASE_ON_CLOSE` its grants are released.
    Orderly,
    /// Any other end: queued acquires leave unanswered, grants run to their lease's end.
    Broken,
}

/// What an acquire needs to know of its session.
#[derive(Clone, Copy, Debug)]
pub struct Caller {
    /// The session.
    pub session: SessionId,
    /// Whether it set `RELEASE_ON_CLOSE`.
    pub release_on_close: bool,
}

/// The lock engine of one loop.
#[derive(Debug)]
pub struct Engine {}

impl Engine {
    /// An empty engine whose first token is `first_token` and whose table hash is
    /// seeded with `hash_seed`.
    pub fn new(limits: EngineLimits, first_token: u64, hash_seed: u64) -> Engine {
        let _ = (limits, first_token, hash_seed);
        todo!()
    }

    /// Judges one request that passed [`Request::check`]. Every request is answered
    /// exactly once, now or (a queued acquire) later. Not for Ping and Hello.
    pub fn handle_request(
        &mut self,
        now: Time,
        caller: Caller,
        request: &Request<'_>,
        out: &mut impl Outbox,
    ) {
        let _ = (now, caller, request, out);
        todo!()
    }

    /// The session is over: see [`SessionEnd`]. Call it after every complete frame
    /// of the session was judged.
    pub fn handle_session_end(
        &mut self,
        now: Time,
        session: SessionId,
        end: SessionEnd,
        out: &mut impl Outbox,
    ) {
        let _ = (now, session, end, out);
        todo!()
    }

    /// Releases a grant of which not one byte was submitted to the kernel before
    /// its session ended.
    pub fn handle_lost_grant(&mut self, now: Time, grant: GrantRef, out: &mut impl Outbox) {
        let _ = (now, grant, out);
        todo!()
    }

    /// Ends leases and waits that are due, and goes on with work left over (grants
    /// of closed sessions, a drain), at most `budget` steps of it. Returns whether
    /// work is left: then call it again next turn, without sleeping.
    pub fn handle_timeouts(&mut self, now: Time, budget: u32, out: &mut impl Outbox) -> bool {
        let _ = (now, budget, out);
        todo!()
    }

    /// When [`Engine::handle_timeouts`] is due next; `None` while nothing is timed.
    /// May be early (the wheel's upper levels), never late.
    pub fn poll_timeout(&self) -> Option<Time> {
        todo!()
    }

    /// From now on acquires are answered `E 8` and nobody is granted; queued
    /// acquires are answered `E 8`, in steps, by [`Engine::handle_timeouts`].
    pub fn handle_drain(&mut self) {
        todo!()
    }

    /// Steps of more than constant work done since last asked.
    pub fn take_work(&mut self) -> u32 {
        todo!()
    }

    /// How many keys are held.
    pub fn held(&self) -> u32 {
        todo!()
    }

    /// Checks what must hold between any two calls.
    pub fn invariants(&self) {
        todo!()
    }
}
