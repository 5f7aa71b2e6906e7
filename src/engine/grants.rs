//! How a lease starts and ends, and how a key passes on to the head of its queue.

use super::lock_table::{Entry, Holder};
use super::paged_slab::NONE;
use super::sessions::GroupState;
use super::time::Time;
use super::timer_wheel::{TimerId, TimerKind};
use super::waiters::{self, Waiter};
use super::{Engine, Outbox};
use crate::ids::GrantRef;
use crate::protocol::{ErrorCode, Reply};

/// How a queued acquire ends without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitEnd {
    /// Its wait is over.
    TimedOut,
    /// A Cancel named it.
    Cancelled,
    /// An error is all it gets.
    Refused(ErrorCode),
}

impl Engine {
    /// Brings a key up to `now` before anything else looks at it: a lease that is
    /// over ends, and the key passes on. Returns whether the key still has an
    /// entry; if it has, its deadline is later than `now`.
    pub(super) fn settle(&mut self, now: Time, entry: u32, out: &mut impl Outbox) -> bool {
        let &Entry { deadline, side, .. } = &self.tables.locks.entries[entry];
        if side != NONE {
            let group = self.tables.locks.sides[side].group;
            if self.drain.has_begun() {
                self.end_waits_of_drained_key(now, entry, out);
                if self.drop_unknown(entry) {
                    return false;
                }
            }
            if group != NONE
                && let GroupState::Closing(closed_at) = self.sessions.groups[group].state
                && closed_at < deadline
            {
                self.counters.released_on_close += 1;
                return self.hand_over(now, entry, out);
            }
        }
        now < deadline || self.end_lease(now, entry, out)
    }

    /// The lease, or the grace after it, is over. Returns what `settle` does.
    fn end_lease(&mut self, now: Time, entry: u32, out: &mut impl Outbox) -> bool {
        let &Entry {
            deadline, holder, ..
        } = &self.tables.locks.entries[entry];
        if holder != Holder::Nobody {
            self.counters.expired += 1;
            let grace_end = deadline.plus_millis(u64::from(self.limits.expiry_grace_ms));
            if now < grace_end {
                // A record stays for the grace, which a start takes up where this ends.
                self.end_grant(entry);
                self.set_deadline(entry, grace_end);
                return true;
            }
        }
        self.hand_over(now, entry, out)
    }

    /// Ends the key's grant and grants the oldest waiter whose wait is not over.
    /// Returns whether there was one; if not, the key is free and its entry gone.
    pub(super) fn hand_over(&mut self, now: Time, entry: u32, out: &mut impl Outbox) -> bool {
        self.end_grant(entry);
        self.end_record(entry);
        while let Some(waiter) = self.oldest_waiter(entry) {
            self.work_done += 1;
            if let Some(end) = self.end_without_grant(now, waiter) {
                self.end_wait(waiter, end, out);
                continue;
            }
            match self.take_token() {
                Some(token) => {
                    self.grant_waiter(now, waiter, token, out);
                    return true;
                }
                None => {
                    let end = WaitEnd::Refused(ErrorCode::Overloaded);
                    self.end_wait(waiter, end, out);
                }
            }
        }
        self.tables.locks.remove(entry);
        false
    }

    /// The next fencing token; `None` when all that are reserved have been used.
    pub(super) fn take_token(&mut self) -> Option<u64> {
        let token = self.next_token;
        if token >= self.token_mark {
            return None;
        }
        self.next_token += self.token_step;
        Some(token)
    }

    /// Starts a lease on an entry that nobody holds and whose timer is not armed.
    pub(super) fn start_grant(
        &mut self,
        now: Time,
        entry: u32,
        holder: Holder,
        token: u64,
        lease_ms: u64,
    ) {
        let fields = &mut self.tables.locks.entries[entry];
        fields.token = token;
        fields.holder = holder;
        fields.is_renewed = false;
        self.held += 1;
        self.set_deadline(entry, now.plus_millis(lease_ms));
    }

    /// Sets when the lease, or the grace after it, is over, and arms the timer,
    /// which is not armed.
    pub(super) fn set_deadline(&mut self, entry: u32, deadline: Time) {
        self.tables.locks.entries[entry].deadline = deadline;
        let timer = TimerId::new(TimerKind::Lease, entry);
        self.wheel
            .arm(&mut self.tables, timer, deadline.tick_ceil());
    }

    /// Disarms the timer of [`Engine::set_deadline`].
    pub(super) fn disarm_lease(&mut self, entry: u32) {
        let timer = TimerId::new(TimerKind::Lease, entry);
        self.wheel.cancel(&mut self.tables, timer);
    }

    /// Adds the grant to the group whose grants end with their session.
    pub(super) fn join_group(&mut self, entry: u32, group: u32) {
        self.tables.locks.side_or_new(entry);
        let side = self.tables.locks.entries[entry].side;
        self.sessions
            .join_group(&mut self.tables.locks.sides, side, group);
    }

    /// Takes the grant out of its group, if it is in one.
    pub(super) fn leave_group(&mut self, entry: u32) {
        let side = self.tables.locks.entries[entry].side;
        if side != NONE {
            self.sessions
                .leave_group(&mut self.tables.locks.sides, side);
            self.tables.locks.drop_idle_side(entry);
        }
    }

    /// Answers a queued acquire and takes it out of every list.
    pub(super) fn end_wait(&mut self, waiter: u32, end: WaitEnd, out: &mut impl Outbox) {
        let Waiter { session, owner, .. } = self.take_waiter(waiter);
        self.sessions.drop_idle(session);
        let reply = match end {
            WaitEnd::TimedOut => {
                self.counters.timed_out += 1;
                Reply::TimedOut { owner }
            }
            WaitEnd::Cancelled => {
                self.counters.cancelled += 1;
                Reply::TimedOut { owner }
            }
            WaitEnd::Refused(code) => {
                self.counters.refused += 1;
                Reply::Error { owner, code }
            }
        };
        out.reply(session, reply);
    }

    /// How a queued acquire has to end now, `None` while it may still be granted.
    pub(super) fn end_without_grant(&self, now: Time, waiter: u32) -> Option<WaitEnd> {
        if now >= self.tables.waiters[waiter].deadline() {
            Some(WaitEnd::TimedOut)
        } else if self.drain.has_begun() {
            Some(WaitEnd::Refused(ErrorCode::ShuttingDown))
        } else {
            None
        }
    }

    /// Takes a queued acquire out of every list. Its session's record stays, even
    /// if it was the last thing in it.
    pub(super) fn take_waiter(&mut self, waiter: u32) -> Waiter {
        let timer = TimerId::new(TimerKind::Wait, waiter);
        self.wheel.cancel(&mut self.tables, timer);
        let tables = &mut self.tables;
        waiters::leave_queue(&mut tables.locks, &mut tables.waiters, waiter);
        let client = self.sessions.get_mut(tables.waiters[waiter].session);
        waiters::leave_session(client, &mut tables.waiters, waiter);
        tables.waiters.remove(waiter)
    }

    fn oldest_waiter(&self, entry: u32) -> Option<u32> {
        let head = self.tables.locks.side(entry)?.queue.list.head;
        (head != NONE).then_some(head)
    }

    fn grant_waiter(&mut self, now: Time, waiter: u32, token: u64, out: &mut impl Outbox) {
        let waiter = self.take_waiter(waiter);
        let group = self.sessions.get_mut(waiter.session).group;
        if group != NONE {
            self.join_group(waiter.entry, group);
        }
        self.sessions.drop_idle(waiter.session);
        let lease_ms = u64::from(waiter.lease_ms);
        self.start_grant(now, waiter.entry, Holder::Native, token, lease_ms);
        self.counters.granted += 1;
        let grant = GrantRef {
            entry: waiter.entry,
            token,
        };
        let waited_ms = now.millis_since_floor(waiter.arrival);
        let waited_ms = u32::try_from(waited_ms).unwrap_or(u32::MAX);
        let needs = self.needs(waiter.entry, lease_ms);
        out.granted(waiter.session, waiter.owner, grant, waited_ms, needs);
    }

    /// Whoever held the key holds it no more; its timer is disarmed.
    fn end_grant(&mut self, entry: u32) {
        self.disarm_lease(entry);
        let fields = &mut self.tables.locks.entries[entry];
        if fields.holder != Holder::Nobody {
            fields.holder = Holder::Nobody;
            self.held -= 1;
        }
        if fields.side != NONE {
            self.tables.locks.clear_dlm_owner(entry);
            self.leave_group(entry);
        }
    }
}
