//! What must hold between any two calls, checked by tests and the simulator.

use super::Engine;
use super::lock_table::Holder;
use std::collections::HashMap;

impl Engine {
    /// Panics if the engine's structures contradict each other, or the counters
    /// do. Walks everything: for tests, after every step.
    pub fn invariants(&self) {
        self.tables.locks.invariants();
        self.tables.waiters.invariants();
        self.tables.data.invariants();
        self.sessions.invariants(&self.tables.locks.sides);
        self.wheel.invariants(&self.tables);
        self.check_grants();
        self.check_waiters();
        self.check_counters();
    }

    fn check_grants(&self) {
        let mut held = 0;
        for (_, entry) in self.tables.locks.entries.iter() {
            if entry.is_unknown() {
                assert_eq!(entry.deadline, self.grace_end);
                let queue = self
                    .tables
                    .locks
                    .sides
                    .get(entry.side)
                    .map(|side| &side.queue);
                assert!(
                    queue.is_some_and(|queue| queue.count > 0),
                    "a key of which nothing is known is kept for those who wait for it"
                );
            } else if entry.holder == Holder::Nobody {
                assert!(
                    self.limits.expiry_grace_ms > 0,
                    "only a grace holds a key for nobody"
                );
            } else {
                held += 1;
                assert!(0 < entry.token && entry.token < self.next_token);
            }
        }
        assert_eq!(self.held, held);
        assert!(self.keys() <= self.limits.max_keys.max(self.restored));
        assert_eq!(
            self.wheel.len(),
            self.keys() + self.waiting() + self.data_slots(),
            "every lease, grace, wait and data slot has its timer armed"
        );
    }

    /// Each waiter is in the queue of an entry and in the list of its session.
    fn check_waiters(&self) {
        let waiters = &self.tables.waiters;
        let mut queued = 0;
        for (_, side) in self.tables.locks.sides.iter() {
            let queue = &side.queue;
            let members = queue.list.check(|waiter| waiters[waiter].queue_links);
            assert_eq!(members.len(), queue.count as usize);
            assert!(queue.count <= self.limits.max_waiters_per_key);
            for &waiter in &members {
                assert_eq!(waiters[waiter].entry, side.entry);
                assert!(queue.earliest_deadline <= waiters[waiter].deadline());
            }
            let arrivals = members.iter().map(|&waiter| waiters[waiter].arrival);
            assert!(arrivals.is_sorted(), "first in, first out");
            queued += queue.count;
        }
        assert_eq!(self.waiting(), queued);
        assert!(queued <= self.limits.max_waiters);
        let mut listed = HashMap::new();
        for (session, client) in self.sessions.iter() {
            let members = client.waiters.check(|waiter| waiters[waiter].session_links);
            assert_eq!(members.len(), client.waiter_count as usize);
            assert!(client.waiter_count <= self.limits.max_session_waiters);
            listed.extend(members.into_iter().map(|waiter| (waiter, session)));
        }
        assert_eq!(listed.len(), queued as usize);
        for (index, waiter) in waiters.iter() {
            assert_eq!(listed[&index], waiter.session);
        }
    }

    fn check_counters(&self) {
        let counters = &self.counters;
        assert_eq!(
            counters.accepted,
            counters.granted
                + counters.timed_out
                + counters.busy
                + counters.cancelled
                + counters.gone
                + counters.refused
                + u64::from(self.waiting())
        );
    }
}
