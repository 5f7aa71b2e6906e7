//! Queued acquires. Each is in three lists at once, all of them intrusive: its
//! key's queue, its session's list, and the timer wheel.

use super::list::{Links, SlabLinks};
use super::lock_table::{LockTable, WaitQueue};
use super::paged_slab::PagedSlab;
use super::sessions::Client;
use super::time::Time;
use super::timer_wheel::TimerLinks;
use crate::ids::SessionId;

/// One queued acquire.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) session: SessionId,
    pub(super) owner: u64,
    /// When the acquire was seen: `waited` counts from here.
    pub(super) arrival: Time,
    /// How long it may wait, from `arrival`.
    pub(super) wait_ms: u32,
    /// The lease it asks for, from its grant.
    pub(super) lease_ms: u32,
    /// The lock entry it queues at.
    pub(super) entry: u32,
    pub(super) queue_links: Links,
    pub(super) session_links: Links,
    pub(super) timer: TimerLinks,
}

const _: () = assert!(PagedSlab::<Waiter>::SLOT_BYTES == 64);

impl Waiter {
    /// When the wait is over: it is granted only before this.
    pub(super) fn deadline(&self) -> Time {
        self.arrival.plus_millis(u64::from(self.wait_ms))
    }
}

/// Appends `waiter` to its key's queue.
pub(super) fn join_queue(locks: &mut LockTable, waiters: &mut PagedSlab<Waiter>, waiter: u32) {
    let Waiter { entry, .. } = waiters[waiter];
    let deadline = waiters[waiter].deadline();
    let queue = &mut locks.side_or_new(entry).queue;
    queue.list.push_back(&mut queue_links(waiters), waiter);
    queue.count += 1;
    queue.earliest_deadline = queue.earliest_deadline.min(deadline);
}

/// Takes `waiter` out of its key's queue, whose side record it may have been the last to need.
pub(super) fn leave_queue(locks: &mut LockTable, waiters: &mut PagedSlab<Waiter>, waiter: u32) {
    let Waiter { entry, .. } = waiters[waiter];
    let queue = &mut locks.side_or_new(entry).queue;
    queue.list.remove(&mut queue_links(waiters), waiter);
    queue.count -= 1;
    if queue.count == 0 {
        *queue = WaitQueue::EMPTY;
        locks.drop_idle_side(entry);
    }
}

/// Appends `waiter` to its session's list.
pub(super) fn join_session(client: &mut Client, waiters: &mut PagedSlab<Waiter>, waiter: u32) {
    client
        .waiters
        .push_back(&mut session_links(waiters), waiter);
    client.waiter_count += 1;
}

/// Takes `waiter` out of its session's list.
pub(super) fn leave_session(client: &mut Client, waiters: &mut PagedSlab<Waiter>, waiter: u32) {
    client.waiters.remove(&mut session_links(waiters), waiter);
    client.waiter_count -= 1;
}

fn queue_links(waiters: &mut PagedSlab<Waiter>) -> SlabLinks<'_, Waiter> {
    SlabLinks {
        slab: waiters,
        field: |waiter| &mut waiter.queue_links,
    }
}

fn session_links(waiters: &mut PagedSlab<Waiter>) -> SlabLinks<'_, Waiter> {
    SlabLinks {
        slab: waiters,
        field: |waiter| &mut waiter.session_links,
    }
}
