//! The native requests, each against the state of its key.

use super::lock_table::Holder;
use super::paged_slab::NONE;
use super::time::Time;
use super::timer_wheel::{TimerId, TimerKind, TimerLinks};
use super::waiters::{self, Waiter};
use super::{Caller, Engine, Outbox};
use super::{grants::WaitEnd, key_index::KeyHash, list::Links};
use crate::ids::{GrantRef, SessionId};
use crate::protocol::{ErrorCode, Reply};

/// Steps of timer work done to make room before a request is refused for lack of it.
pub(super) const ROOM_STEPS: u64 = 256;

/// What an acquire asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Acquire {
    pub(super) owner: u64,
    pub(super) wait_ms: u32,
    pub(super) lease_ms: u32,
}

/// What an extend asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extend {
    pub(super) owner: u64,
    pub(super) lease_ms: u32,
    pub(super) token: u64,
}

impl Engine {
    pub(super) fn acquire(
        &mut self,
        now: Time,
        caller: Caller,
        acquire: Acquire,
        key: &[u8],
        out: &mut impl Outbox,
    ) {
        self.counters.accepted += 1;
        if self.drain.has_begun() {
            self.refuse(caller, acquire, ErrorCode::ShuttingDown, out);
            return;
        }
        let hash = self.tables.locks.hash(key);
        match self.find_settled(now, hash, key, out) {
            None if !self.is_in_grace(now) => {
                self.acquire_free(now, caller, acquire, (hash, key), out);
            }
            _ if acquire.wait_ms == 0 => {
                self.counters.timed_out += 1;
                let owner = acquire.owner;
                out.reply(caller.session, Reply::TimedOut { owner });
            }
            None => self.enqueue_unknown(now, caller, acquire, (hash, key), out),
            Some(entry) => self.enqueue(now, caller, acquire, entry, (hash, key), out),
        }
    }

    pub(super) fn release(
        &mut self,
        now: Time,
        session: SessionId,
        owner: u64,
        token: u64,
        key: &[u8],
        out: &mut impl Outbox,
    ) {
        let Some(entry) = self.find_held_by(now, token, key, out) else {
            self.counters.not_held += 1;
            out.reply(session, Reply::NotHeld { owner });
            return;
        };
        self.counters.released += 1;
        out.reply(session, Reply::Released { owner });
        self.hand_over(now, entry, out);
    }

    pub(super) fn extend(
        &mut self,
        now: Time,
        session: SessionId,
        extend: Extend,
        key: &[u8],
        out: &mut impl Outbox,
    ) {
        let Extend {
            owner,
            lease_ms,
            token,
        } = extend;
        let Some(entry) = self.find_held_by(now, token, key, out) else {
            self.counters.not_held += 1;
            out.reply(session, Reply::NotHeld { owner });
            return;
        };
        self.counters.extended += 1;
        let lease_ms = u64::from(lease_ms);
        let moves = self.lengthen(now, entry, lease_ms);
        let group = self.tables.locks.side(entry).map_or(NONE, |s| s.group);
        if group != NONE && self.sessions.groups[group].session != session {
            self.leave_group(entry);
        }
        let deadline = self.tables.locks.entries[entry].deadline;
        // The reply tells of all that is left, whatever was asked for.
        let told_ms = if moves {
            lease_ms
        } else {
            deadline.millis_since_ceil(now)
        };
        out.extended(session, owner, now, deadline, self.needs(entry, told_ms));
    }

    pub(super) fn cancel(
        &mut self,
        now: Time,
        session: SessionId,
        owner: u64,
        target: u64,
        key: &[u8],
        out: &mut impl Outbox,
    ) {
        let hash = self.tables.locks.hash(key);
        let cancelled = match self.find_settled(now, hash, key, out) {
            Some(entry) => {
                let cancelled = self.cancel_oldest(now, session, entry, target, out);
                self.drop_unknown(entry);
                cancelled
            }
            None => false,
        };
        out.reply(session, Reply::CancelDone { owner, cancelled });
    }

    pub(super) fn query(
        &mut self,
        now: Time,
        session: SessionId,
        owner: u64,
        key: &[u8],
        out: &mut impl Outbox,
    ) {
        let hash = self.tables.locks.hash(key);
        let reply = match self.find_settled(now, hash, key, out) {
            None => {
                let grace_left_ms = self.grace_end.millis_since_ceil(now);
                Reply::State {
                    owner,
                    held: grace_left_ms > 0,
                    remaining_ms: u32::try_from(grace_left_ms).unwrap_or(u32::MAX),
                    waiters: 0,
                }
            }
            Some(entry) => {
                self.end_overdue_waits(now, entry, out);
                let deadline = self.tables.locks.entries[entry].deadline;
                let remaining_ms = deadline.millis_since_ceil(now);
                let waiters = self.queue_count(entry);
                self.drop_unknown(entry);
                Reply::State {
                    owner,
                    held: true,
                    remaining_ms: u32::try_from(remaining_ms).unwrap_or(u32::MAX),
                    waiters,
                }
            }
        };
        out.reply(session, reply);
    }

    /// The key's entry as it is at `now`, `None` if the key is free.
    pub(super) fn find_settled(
        &mut self,
        now: Time,
        hash: KeyHash,
        key: &[u8],
        out: &mut impl Outbox,
    ) -> Option<u32> {
        let entry = self.tables.locks.find(hash, key)?;
        self.settle(now, entry, out).then_some(entry)
    }

    /// The deadline becomes the later of what it is and now + lease. Returns whether
    /// that moved it.
    pub(super) fn lengthen(&mut self, now: Time, entry: u32, lease_ms: u64) -> bool {
        let deadline = now.plus_millis(lease_ms);
        let fields = &mut self.tables.locks.entries[entry];
        fields.is_renewed = true;
        let moves = deadline > fields.deadline;
        if moves {
            self.disarm_lease(entry);
            self.set_deadline(entry, deadline);
        }
        moves
    }

    /// Whether a free key may be granted, after due timers made room if it came to that.
    pub(super) fn make_room_for_grant(
        &mut self,
        now: Time,
        (hash, key): (KeyHash, &[u8]),
        extra_bytes: impl Fn(&Engine) -> u64,
        out: &mut impl Outbox,
    ) -> bool {
        let has_room = |engine: &Engine| {
            let bytes = engine.tables.locks.growth_bytes(hash, key) + extra_bytes(engine);
            engine.keys() < engine.limits.max_keys && engine.has_memory(bytes)
        };
        has_room(self) || {
            self.run_due_timers(now, self.work_done + ROOM_STEPS, out);
            has_room(self)
        }
    }

    fn acquire_free(
        &mut self,
        now: Time,
        caller: Caller,
        acquire: Acquire,
        (hash, key): (KeyHash, &[u8]),
        out: &mut impl Outbox,
    ) {
        let group_bytes = |engine: &Engine| {
            if caller.release_on_close {
                engine.sessions.growth_bytes(caller.session, true)
                    + engine.tables.locks.sides.growth_bytes()
            } else {
                0
            }
        };
        if !self.make_room_for_grant(now, (hash, key), group_bytes, out) {
            self.refuse(caller, acquire, ErrorCode::Overloaded, out);
            return;
        }
        let Some(token) = self.take_token() else {
            self.refuse(caller, acquire, ErrorCode::Overloaded, out);
            return;
        };
        let entry = self.tables.locks.insert(hash, key);
        if caller.release_on_close {
            let group = self.sessions.get_or_new(caller.session, true).group;
            self.join_group(entry, group);
        }
        let lease_ms = u64::from(acquire.lease_ms);
        self.start_grant(now, entry, Holder::Native, token, lease_ms);
        self.counters.granted += 1;
        let grant = GrantRef { entry, token };
        let needs = self.needs(entry, lease_ms);
        out.granted(caller.session, acquire.owner, grant, 0, needs);
    }

    /// Queues an acquire on a key without an entry that may be held from before the start.
    fn enqueue_unknown(
        &mut self,
        now: Time,
        caller: Caller,
        acquire: Acquire,
        (hash, key): (KeyHash, &[u8]),
        out: &mut impl Outbox,
    ) {
        if self.is_session_full(caller.session) || self.is_server_full() {
            self.run_due_timers(now, self.work_done + ROOM_STEPS, out);
        }
        if self.is_session_full(caller.session) {
            self.end_overdue_waits_of_session(now, caller.session, NONE, out);
        }
        // A queue that takes nobody says so first: that is worth no entry.
        let is_refused_anyway = self.is_session_full(caller.session)
            || self.is_server_full()
            || self.limits.max_waiters_per_key == 0;
        if is_refused_anyway || self.make_room_for_grant(now, (hash, key), |_| 0, out) {
            let entry = self.insert_unknown((hash, key));
            self.enqueue(now, caller, acquire, entry, (hash, key), out);
        } else {
            self.refuse(caller, acquire, ErrorCode::Overloaded, out);
        }
    }

    fn enqueue(
        &mut self,
        now: Time,
        caller: Caller,
        acquire: Acquire,
        entry: u32,
        (hash, key): (KeyHash, &[u8]),
        out: &mut impl Outbox,
    ) {
        let mut entry = entry;
        if self.is_session_full(caller.session)
            || self.is_server_full()
            || !self.has_memory_for_wait(caller, entry)
        {
            self.run_due_timers(now, self.work_done + ROOM_STEPS, out);
            // The entry has outlived this, since its deadline is later than now, unless
            // it was only there for a waiter whose time was over.
            entry = match self.tables.locks.find(hash, key) {
                Some(entry) => entry,
                None => self.insert_unknown((hash, key)),
            };
        }
        self.try_enqueue(now, caller, acquire, entry, out);
        self.drop_unknown(entry);
    }

    fn try_enqueue(
        &mut self,
        now: Time,
        caller: Caller,
        acquire: Acquire,
        entry: u32,
        out: &mut impl Outbox,
    ) {
        if self.is_session_full(caller.session) {
            self.end_overdue_waits_of_session(now, caller.session, entry, out);
        }
        if self.is_session_full(caller.session) {
            self.refuse(caller, acquire, ErrorCode::TooManyQueued, out);
            return;
        }
        if self.is_queue_full(entry) || self.is_server_full() {
            self.end_overdue_waits(now, entry, out);
        }
        if self.is_queue_full(entry) || self.is_server_full() {
            self.counters.busy += 1;
            let owner = acquire.owner;
            out.reply(caller.session, Reply::Busy { owner });
            return;
        }
        if !self.has_memory_for_wait(caller, entry) {
            self.refuse(caller, acquire, ErrorCode::Overloaded, out);
            return;
        }
        self.insert_waiter(now, caller, acquire, entry);
    }

    fn insert_waiter(&mut self, now: Time, caller: Caller, acquire: Acquire, entry: u32) {
        let tables = &mut self.tables;
        let deadline = now.plus_millis(u64::from(acquire.wait_ms));
        let waiter = tables.waiters.insert(Waiter {
            session: caller.session,
            owner: acquire.owner,
            arrival: now,
            wait_ms: acquire.wait_ms,
            lease_ms: acquire.lease_ms,
            entry,
            queue_links: Links::UNLINKED,
            session_links: Links::UNLINKED,
            timer: TimerLinks::UNARMED,
        });
        waiters::join_queue(&mut tables.locks, &mut tables.waiters, waiter);
        let client = self
            .sessions
            .get_or_new(caller.session, caller.release_on_close);
        waiters::join_session(client, &mut tables.waiters, waiter);
        let timer = TimerId::new(TimerKind::Wait, waiter);
        self.wheel.arm(tables, timer, deadline.tick_ceil());
    }

    /// Answers `T` to the session's oldest acquire with owner `target` in the
    /// entry's queue. Returns whether one was there whose wait was not over.
    fn cancel_oldest(
        &mut self,
        now: Time,
        session: SessionId,
        entry: u32,
        target: u64,
        out: &mut impl Outbox,
    ) -> bool {
        let mut next = match self.sessions.get(session) {
            Some(client) => client.waiters.head,
            None => NONE,
        };
        while next != NONE {
            self.work_done += 1;
            let waiter = next;
            let found = &self.tables.waiters[waiter];
            next = found.session_links.next;
            if found.entry != entry || found.owner != target {
                continue;
            }
            if now >= found.deadline() {
                self.end_wait(waiter, WaitEnd::TimedOut, out);
                continue;
            }
            self.end_wait(waiter, WaitEnd::Cancelled, out);
            return true;
        }
        false
    }

    /// Answers the waits of a key that are over; walks the queue only if there may be some.
    fn end_overdue_waits(&mut self, now: Time, entry: u32, out: &mut impl Outbox) {
        let Some(side) = self.tables.locks.side(entry) else {
            return;
        };
        if now < side.queue.earliest_deadline {
            return;
        }
        let mut earliest_deadline = Time::MAX;
        let mut next = side.queue.list.head;
        while next != NONE {
            self.work_done += 1;
            let waiter = next;
            let found = &self.tables.waiters[waiter];
            next = found.queue_links.next;
            if now >= found.deadline() {
                self.end_wait(waiter, WaitEnd::TimedOut, out);
            } else {
                earliest_deadline = earliest_deadline.min(found.deadline());
            }
        }
        if self.tables.locks.side(entry).is_some() {
            let queue = &mut self.tables.locks.side_or_new(entry).queue;
            queue.earliest_deadline = earliest_deadline;
        }
    }

    /// Answers the waits of one session that are over, so that they do not count; a
    /// walk of all its waiters. The entry `kept` stays, if nobody else waits there.
    fn end_overdue_waits_of_session(
        &mut self,
        now: Time,
        session: SessionId,
        kept: u32,
        out: &mut impl Outbox,
    ) {
        let mut next = self.sessions.get(session).map_or(NONE, |c| c.waiters.head);
        while next != NONE {
            self.work_done += 1;
            let waiter = next;
            let found = &self.tables.waiters[waiter];
            let entry = found.entry;
            next = found.session_links.next;
            if now >= found.deadline() {
                self.end_wait(waiter, WaitEnd::TimedOut, out);
                if entry != kept {
                    self.drop_unknown(entry);
                }
            }
        }
    }

    /// The key's entry, if a native grant with this token holds it at `now`.
    fn find_held_by(
        &mut self,
        now: Time,
        token: u64,
        key: &[u8],
        out: &mut impl Outbox,
    ) -> Option<u32> {
        let hash = self.tables.locks.hash(key);
        let entry = self.find_settled(now, hash, key, out)?;
        self.is_held_by(entry, token).then_some(entry)
    }

    pub(super) fn is_held_by(&self, entry: u32, token: u64) -> bool {
        let fields = &self.tables.locks.entries[entry];
        fields.holder == Holder::Native && fields.token == token
    }

    fn refuse(&mut self, caller: Caller, acquire: Acquire, code: ErrorCode, out: &mut impl Outbox) {
        self.counters.refused += 1;
        let owner = acquire.owner;
        out.reply(caller.session, Reply::Error { owner, code });
    }

    fn queue_count(&self, entry: u32) -> u32 {
        self.tables.locks.side(entry).map_or(0, |s| s.queue.count)
    }

    fn is_queue_full(&self, entry: u32) -> bool {
        self.queue_count(entry) >= self.limits.max_waiters_per_key
    }

    fn is_server_full(&self) -> bool {
        self.waiting() >= self.limits.max_waiters
    }

    fn is_session_full(&self, session: SessionId) -> bool {
        let queued = self.sessions.get(session).map_or(0, |c| c.waiter_count);
        queued >= self.limits.max_session_waiters
    }

    fn has_memory_for_wait(&self, caller: Caller, entry: u32) -> bool {
        let side_bytes = match self.tables.locks.side(entry) {
            Some(_) => 0,
            None => self.tables.locks.sides.growth_bytes(),
        };
        self.has_memory(
            side_bytes
                + self.tables.waiters.growth_bytes()
                + self
                    .sessions
                    .growth_bytes(caller.session, caller.release_on_close),
        )
    }
}
