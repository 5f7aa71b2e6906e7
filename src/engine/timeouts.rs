//! What happens by itself: due timers, the grants of closed sessions, a drain.
//! All of it in steps, so that no turn of the loop gets long.

use super::grants::WaitEnd;
use super::lock_table::Holder;
use super::paged_slab::NONE;
use super::time::Time;
use super::timer_wheel::{TimerId, TimerKind};
use super::waiters::Waiter;
use super::{Engine, Outbox, SessionEnd};
use crate::ids::{GrantRef, SessionId};
use crate::protocol::Reply;

/// How far a drain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    /// Nobody asked for one.
    No,
    /// Waiters with a lower index have been answered.
    AnsweringWaiters { next_waiter: u32 },
    /// No acquire is queued, nor will one be.
    WaitersAnswered,
}

impl Drain {
    pub(super) fn start(&mut self) {
        if *self == Drain::No {
            *self = Drain::AnsweringWaiters { next_waiter: 0 };
        }
    }

    pub(super) fn has_begun(self) -> bool {
        self != Drain::No
    }
}

impl Engine {
    pub(super) fn run_timeouts(&mut self, now: Time, budget: u32, out: &mut impl Outbox) -> bool {
        let start = self.work_done;
        // Closed sessions leave half of the steps to the timers.
        self.release_closed_grants(now, start + u64::from(budget.div_ceil(2)), out);
        self.run_due_timers(now, start + u64::from(budget), out);
        self.answer_drained_waiters(now, start + u64::from(budget), out);
        let is_due = |tick| tick <= now.tick_floor();
        self.has_backlog() || self.wheel.next_tick().is_some_and(is_due)
    }

    /// Whether something is left to do that waits for no time.
    pub(super) fn has_backlog(&self) -> bool {
        self.sessions.next_closing_grant().is_some()
            || matches!(self.drain, Drain::AnsweringWaiters { .. })
    }

    /// Fires timers that are due until `work_done` reaches `work_end`.
    pub(super) fn run_due_timers(&mut self, now: Time, work_end: u64, out: &mut impl Outbox) {
        while self.work_done < work_end {
            let steps = u32::try_from(work_end - self.work_done).unwrap_or(u32::MAX);
            let mut steps_left = steps;
            let due = self
                .wheel
                .poll(&mut self.tables, now.tick_floor(), &mut steps_left);
            self.work_done += u64::from(steps - steps_left);
            match due {
                Some(timer) => self.fire(now, timer, out),
                None => return,
            }
        }
    }

    pub(super) fn end_session(
        &mut self,
        now: Time,
        session: SessionId,
        end: SessionEnd,
        out: &mut impl Outbox,
    ) {
        let Some(client) = self.sessions.get(session) else {
            return;
        };
        let mut next = client.waiters.head;
        while next != NONE {
            self.work_done += 1;
            let waiter = next;
            next = self.tables.waiters[waiter].session_links.next;
            let Waiter { owner, entry, .. } = self.take_waiter(waiter);
            self.drop_unknown(entry);
            self.counters.gone += 1;
            if end == SessionEnd::Orderly {
                out.reply(session, Reply::TimedOut { owner });
            }
        }
        let release_at = (end == SessionEnd::Orderly).then_some(now);
        self.sessions.end(session, release_at);
    }

    pub(super) fn take_back(&mut self, now: Time, grant: GrantRef, out: &mut impl Outbox) {
        let is_held = |engine: &Engine| {
            engine.tables.locks.entries.get(grant.entry).is_some()
                && engine.is_held_by(grant.entry, grant.token)
        };
        if is_held(self) && self.settle(now, grant.entry, out) && is_held(self) {
            self.counters.lost_grants += 1;
            self.hand_over(now, grant.entry, out);
        }
    }

    pub(super) fn give_up(&mut self, now: Time, grant: GrantRef, out: &mut impl Outbox) {
        let is_held = |engine: &Engine| {
            engine
                .tables
                .locks
                .entries
                .get(grant.entry)
                .is_some_and(|entry| {
                    entry.token == grant.token
                        && entry.holder != Holder::Nobody
                        && !entry.is_renewed
                })
        };
        if is_held(self) && self.settle(now, grant.entry, out) && is_held(self) {
            self.counters.given_up += 1;
            self.hand_over(now, grant.entry, out);
        }
    }

    /// Answers everything queued at a key that a drain is about to reach anyway.
    pub(super) fn end_waits_of_drained_key(
        &mut self,
        now: Time,
        entry: u32,
        out: &mut impl Outbox,
    ) {
        let mut next = match self.tables.locks.side(entry) {
            Some(side) => side.queue.list.head,
            None => NONE,
        };
        while next != NONE {
            self.work_done += 1;
            let waiter = next;
            next = self.tables.waiters[waiter].queue_links.next;
            self.end_drained_wait(now, waiter, out);
        }
    }

    fn fire(&mut self, now: Time, timer: TimerId, out: &mut impl Outbox) {
        match timer.kind() {
            TimerKind::Lease => {
                self.settle(now, timer.index(), out);
            }
            TimerKind::Wait => {
                let entry = self.tables.waiters[timer.index()].entry;
                self.end_wait(timer.index(), WaitEnd::TimedOut, out);
                self.drop_unknown(entry);
            }
            TimerKind::Data => self.remove_data(timer.index()),
        }
    }

    fn release_closed_grants(&mut self, now: Time, work_end: u64, out: &mut impl Outbox) {
        while self.work_done < work_end
            && let Some(side) = self.sessions.next_closing_grant()
        {
            self.work_done += 1;
            let entry = self.tables.locks.sides[side].entry;
            self.settle(now, entry, out);
        }
    }

    fn answer_drained_waiters(&mut self, now: Time, work_end: u64, out: &mut impl Outbox) {
        while self.work_done < work_end
            && let Drain::AnsweringWaiters { next_waiter } = self.drain
        {
            if next_waiter >= self.tables.waiters.index_end() {
                self.drain = Drain::WaitersAnswered;
                return;
            }
            self.work_done += 1;
            self.drain = Drain::AnsweringWaiters {
                next_waiter: next_waiter + 1,
            };
            if let Some(waiter) = self.tables.waiters.get(next_waiter) {
                let entry = waiter.entry;
                self.end_drained_wait(now, next_waiter, out);
                self.drop_unknown(entry);
            }
        }
    }

    fn end_drained_wait(&mut self, now: Time, waiter: u32, out: &mut impl Outbox) {
        if let Some(end) = self.end_without_grant(now, waiter) {
            self.end_wait(waiter, end, out);
        }
    }
}
