//! The lock engine: no sockets, no clock, no threads. Requests and `now` go in,
//! replies come out through an [`Outbox`], and [`Engine::poll_timeout`] says when
//! to call again. The same code runs under every driver and under the simulator.
//!
//! | file | story |
//! |---|---|
//! | `requests` | the native requests, each against the state of its key |
//! | `dlm` | the same keys for DLM holders, and their data |
//! | `records` | what a restart has to know: keys that may be held from before, leases recorded one by one |
//! | `grants` | how a lease starts and ends, and how a key passes on |
//! | `timeouts` | what happens by itself: timers, closed sessions, a drain |
//! | `lock_table`, `waiters`, `sessions`, `data_table` | what is kept, per key, queued acquire, session, data slot |
//! | `timer_wheel`, `paged_slab`, `list`, `key`, `key_index` | what that is built from |
//!
//! Two rules carry the rest. *A key is free exactly if it has no entry in the lock
//! table*, and queues hang on entries, so a free key never has waiters. *Time is
//! decided at the event*: whatever touches a key first settles it, ending a lease
//! that is over and granting the queue's head; timers only make sure that this
//! happens when nobody asks.

mod data_table;
mod dlm;
mod grants;
mod invariants;
mod key;
mod key_index;
mod list;
mod lock_table;
mod paged_slab;
mod records;
mod requests;
mod sessions;
pub mod time;
mod timeouts;
mod timer_wheel;
mod waiters;

pub use dlm::{DlmErase, DlmGet, DlmHolder, DlmLock, DlmOutcome, DlmPut, DlmTest, DlmUnlock};

use crate::durability::{Durable, Needs};
use crate::ids::{GrantRef, SessionId};
use crate::limits::TOKEN_END;
use crate::protocol::{Reply, Request};
use crate::stats::Counters;
use data_table::DataTable;
use key_index::KeyHash;
use lock_table::LockTable;
use paged_slab::{MAX_INDICES, NONE, PagedSlab};
use records::Recorder;
use sessions::Sessions;
use time::Time;
use timeouts::Drain;
use timer_wheel::{TimerId, TimerKind, TimerLinks, TimerStore, TimerWheel};
use waiters::Waiter;

/// Where the engine puts what it owes to sessions.
pub trait Outbox {
    /// A reply owed to `session`; it may have ended, then the reply is dropped.
    fn reply(&mut self, session: SessionId, reply: Reply);

    /// A native grant: an `A` reply, and the handle with which the grant is given
    /// back ([`Engine::handle_lost_grant`]) if no byte of the reply could be
    /// submitted to the kernel before the session ended. To be sent when `needs` is
    /// met; if that fails, the grant is given up ([`Engine::handle_failed_grant`]).
    fn granted(
        &mut self,
        session: SessionId,
        owner: u64,
        grant: GrantRef,
        waited_ms: u32,
        needs: Needs,
    );

    /// An extend's `X`, to be sent when `needs` is met. The lease ends at `deadline`.
    fn extended(
        &mut self,
        session: SessionId,
        owner: u64,
        now: Time,
        deadline: Time,
        needs: Needs,
    ) {
        let _ = needs;
        self.reply(session, extended_reply(owner, now, deadline));
    }
}

/// The `X` of an extend, told at `now`, of a lease that ends at `deadline`.
pub fn extended_reply(owner: u64, now: Time, deadline: Time) -> Reply {
    let remaining_ms = deadline.millis_since_floor(now);
    Reply::Extended {
        owner,
        remaining_ms: u32::try_from(remaining_ms).unwrap_or(u32::MAX),
    }
}

/// Bounds of one loop's engine; each comes from a flag.
#[derive(Clone, Copy, Debug)]
pub struct EngineLimits {
    /// `--max-keys`: entries in the lock table; 2^30 − 1 at most count.
    pub max_keys: u32,
    /// `--max-memory`, in bytes, over all of the engine's structures.
    pub max_memory_bytes: u64,
    /// `--max-waiters-per-key`.
    pub max_waiters_per_key: u32,
    /// `--max-waiters`: over all keys; 2^30 − 1 at most count.
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
    /// Whether it set `RELEASE_ON_CLOSE`; the same in every request of the session.
    pub release_on_close: bool,
}

/// The lock engine of one loop.
#[derive(Debug)]
pub struct Engine {
    limits: EngineLimits,
    tables: Tables,
    wheel: TimerWheel,
    sessions: Sessions,
    next_token: u64,
    token_step: u64,
    /// The first token that is not reserved on disk.
    token_mark: u64,
    /// Until when keys without an entry may still be held from before the start.
    grace_end: Time,
    recorder: Recorder,
    held: u32,
    /// Leases that a start found recorded; these alone may be more than the limits.
    restored: u32,
    drain: Drain,
    counters: Counters,
    /// Steps of work since the start, and how many of them were reported.
    work_done: u64,
    work_reported: u64,
}

/// Everything that has timers.
#[derive(Debug)]
struct Tables {
    locks: LockTable,
    waiters: PagedSlab<Waiter>,
    data: DataTable,
}

impl Engine {
    /// An empty engine whose first token is `first_token` (at least 1) and whose
    /// table hash is seeded with `hash_seed`, which has to stay secret.
    pub fn new(limits: EngineLimits, first_token: u64, hash_seed: u64) -> Engine {
        Engine {
            limits: EngineLimits {
                max_keys: limits.max_keys.min(MAX_INDICES - 1),
                max_waiters: limits.max_waiters.min(MAX_INDICES - 1),
                ..limits
            },
            tables: Tables {
                locks: LockTable::new(hash_seed),
                waiters: PagedSlab::new(),
                data: DataTable::new(hash_seed),
            },
            wheel: TimerWheel::new(),
            sessions: Sessions::new(),
            next_token: first_token.max(1),
            token_step: 1,
            token_mark: TOKEN_END,
            grace_end: Time::ZERO,
            recorder: Recorder::off(),
            held: 0,
            restored: 0,
            drain: Drain::No,
            counters: Counters::default(),
            work_done: 0,
            work_reported: 0,
        }
    }

    /// The same engine, whose tokens are `step` (at least 1) apart: several engines with
    /// first tokens that differ by less share the numbers between them.
    pub fn with_token_step(self, step: u64) -> Engine {
        Engine {
            token_step: step.max(1),
            ..self
        }
    }

    /// The same engine, whose state survives restarts: it starts with what is durable,
    /// and records leases over the cap. At most `max_pending_records` keys have a record
    /// that changes; JackrabbitDLM requests that would need more are refused.
    pub fn with_durability(self, durable: &Durable, max_pending_records: usize) -> Engine {
        Engine {
            token_mark: durable.mark,
            grace_end: durable.grace_end,
            recorder: Recorder::new(durable.cap_ms, max_pending_records),
            ..self
        }
    }

    /// Tokens below `mark` may be given out.
    pub fn handle_reserved(&mut self, mark: u64) {
        self.token_mark = self.token_mark.max(mark);
    }

    /// Until when keys of which nothing is known may be held from before the start;
    /// [`Time::ZERO`] if none can be.
    pub fn grace_end(&self) -> Time {
        self.grace_end
    }

    /// The next token to be given out.
    pub fn next_token(&self) -> u64 {
        self.next_token
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
        match *request {
            Request::Acquire {
                owner,
                wait_ms,
                lease_ms,
                key,
            } => {
                let acquire = requests::Acquire {
                    owner,
                    wait_ms,
                    lease_ms,
                };
                self.acquire(now, caller, acquire, key, out);
            }
            Request::Release { owner, token, key } => {
                self.release(now, caller.session, owner, token, key, out);
            }
            Request::Extend {
                owner,
                lease_ms,
                token,
                key,
            } => {
                let extend = requests::Extend {
                    owner,
                    lease_ms,
                    token,
                };
                self.extend(now, caller.session, extend, key, out);
            }
            Request::Cancel { owner, target, key } => {
                self.cancel(now, caller.session, owner, target, key, out);
            }
            Request::Query { owner, key } => self.query(now, caller.session, owner, key, out),
            Request::Ping { .. } | Request::Hello { .. } => {
                unreachable!("Ping and Hello are answered by the session's loop")
            }
        }
    }

    /// Begins to fetch what a request on `key` will need from memory; worth it
    /// where several requests are at hand, for all of them before the first is
    /// judged. Changes nothing.
    pub fn prefetch(&self, key: &[u8]) {
        self.tables.locks.prefetch(key);
    }

    /// The session is over: see [`SessionEnd`]. Call it after every complete frame
    /// of the session was judged, and before its slot is used again. Its queued
    /// acquires leave at once. Grants that are released leave in steps of
    /// [`Engine::handle_timeouts`], or sooner when their key is touched: to every
    /// request they are gone from now on.
    pub fn handle_session_end(
        &mut self,
        now: Time,
        session: SessionId,
        end: SessionEnd,
        out: &mut impl Outbox,
    ) {
        self.end_session(now, session, end, out);
    }

    /// Releases a grant of which not one byte was submitted to the kernel before
    /// its session ended.
    pub fn handle_lost_grant(&mut self, now: Time, grant: GrantRef, out: &mut impl Outbox) {
        self.take_back(now, grant, out);
    }

    /// Gives a grant up whose reply will not be sent, because what it needs could not be
    /// made durable. Unless its holder may have been told of it otherwise.
    pub fn handle_failed_grant(&mut self, now: Time, grant: GrantRef, out: &mut impl Outbox) {
        self.give_up(now, grant, out);
    }

    /// Ends leases and waits that are due, and goes on with work left over (grants
    /// of closed sessions, a drain), at most `budget` steps of it, and the walk of
    /// one queue more. Returns whether work is left: then call it again next turn,
    /// without sleeping.
    pub fn handle_timeouts(&mut self, now: Time, budget: u32, out: &mut impl Outbox) -> bool {
        self.run_timeouts(now, budget, out)
    }

    /// When [`Engine::handle_timeouts`] is due next; `None` while nothing is timed.
    /// May be early (the wheel's upper levels), never late; [`Time::ZERO`] while
    /// work is left over.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.has_backlog() {
            return Some(Time::ZERO);
        }
        let tick = self.wheel.next_tick()?;
        Some(Time::ZERO.plus_millis(tick))
    }

    /// From now on acquires are answered `E 8` and nobody is granted; queued
    /// acquires are answered `E 8`, in steps, by [`Engine::handle_timeouts`], or
    /// sooner when their key is touched.
    pub fn handle_drain(&mut self) {
        self.drain.start();
    }

    /// Steps of work that grow with queues, lists or timers (not those every
    /// request takes) since this was last asked, so that a session's work in one
    /// turn can be bounded.
    pub fn take_work(&mut self) -> u32 {
        let steps = self.work_done - self.work_reported;
        self.work_reported = self.work_done;
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    /// What the engine has done since it started.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Acquires that are queued.
    pub fn waiting(&self) -> u32 {
        self.tables.waiters.len()
    }

    /// Keys with a live lease; one that is over counts until it is touched or its
    /// timer fires, within a tick.
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Keys in the lock table: held, or blocked by an expired lease's grace.
    pub fn keys(&self) -> u32 {
        self.tables.locks.entries.len()
    }

    /// DLM data slots that hold something; one whose life is over counts until it
    /// is touched or its timer fires, within a tick.
    pub fn data_slots(&self) -> u32 {
        self.tables.data.records.len()
    }

    /// Bytes that all structures have allocated.
    pub fn memory_bytes(&self) -> u64 {
        self.tables.locks.memory_bytes()
            + self.tables.waiters.memory_bytes()
            + self.tables.data.memory_bytes()
            + self.sessions.memory_bytes()
            + self.wheel.memory_bytes()
    }

    /// Whether `bytes` more may be allocated.
    fn has_memory(&self, bytes: u64) -> bool {
        bytes == 0 || self.memory_bytes() + bytes <= self.limits.max_memory_bytes
    }
}

impl TimerStore for Tables {
    fn timer(&self, timer: TimerId) -> &TimerLinks {
        match timer.kind() {
            TimerKind::Lease => &self.locks.entries[timer.index()].timer,
            TimerKind::Wait => &self.waiters[timer.index()].timer,
            TimerKind::Data => &self.data.records[timer.index()].timer,
        }
    }

    fn timer_mut(&mut self, timer: TimerId) -> &mut TimerLinks {
        match timer.kind() {
            TimerKind::Lease => &mut self.locks.entries[timer.index()].timer,
            TimerKind::Wait => &mut self.waiters[timer.index()].timer,
            TimerKind::Data => &mut self.data.records[timer.index()].timer,
        }
    }

    fn due_tick(&self, timer: TimerId) -> u64 {
        let deadline = match timer.kind() {
            TimerKind::Lease => self.locks.entries[timer.index()].deadline,
            TimerKind::Wait => self.waiters[timer.index()].deadline(),
            TimerKind::Data => self.data.records[timer.index()].deadline,
        };
        deadline.tick_ceil()
    }
}

/// The timer wheel, which is nobody else's business, against a naive one.
#[cfg(fuzzing)]
pub fn fuzz_timer_wheel(data: &[u8]) {
    timer_wheel::fuzz::run(data);
}

#[cfg(test)]
mod tests;
