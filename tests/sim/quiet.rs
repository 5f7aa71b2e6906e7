//! What must be so when loops and clients rest: nothing lies where nobody looks, every
//! answer that is due was given, and each key is as the answers told.

use leasehold::engine::time::Time;
use leasehold::protocol::ANY_LOOP;
use leasehold::worker::PeerEnd;

use crate::host::Host;
use crate::link::{Conversation, Server};
use crate::talk::Ask;
use crate::world::World;

/// How far past the last lease and wait the end of a history looks, in milliseconds.
const WELL_AFTER_MS: u64 = 1_000;

/// What an engine that has nothing in it may keep for what comes next: a page of each
/// slab, one of sessions for each loop, the smallest tables.
const MOST_KEPT_BYTES: u64 = 1_500_000;

impl World {
    /// Lets everything under way come to its end, without more time than that takes,
    /// and checks the state that it comes to.
    pub(crate) fn check_quiet(&mut self) {
        self.rest();
        self.check_loops_rest();
        self.check_links();
        let now = self.env.now;
        for (key, token, lease_ms) in self.open_extensions() {
            self.env.ledger.may_be_kept_for(key, token, lease_ms, now);
        }
        self.env.ledger.settle(now);
        for link in &mut self.env.links {
            if link.server == Server::Closed {
                link.settled_at.get_or_insert(now);
            }
        }
        self.probe();
    }

    /// Frees the clients of their tempers, lets all leases and waits end, ends all
    /// sessions, and checks that nothing is left.
    pub(crate) fn check_end(&mut self) {
        for link in &mut self.env.links {
            link.make_room(1 << 40);
        }
        self.check_quiet();
        let all_over = self.env.ledger.all_over_at().max(self.last_wait());
        self.pass_until(all_over.plus_millis(WELL_AFTER_MS));
        self.check_quiet();
        for host in &self.hosts {
            assert_eq!(host.worker.engine().waiting(), 0, "somebody waits on");
            assert_eq!(host.worker.engine().keys(), 0, "a key is held on");
        }
        if self.options.drains {
            for host in &self.hosts {
                assert!(host.worker.is_drained(), "loop {} holds on", host.index);
            }
            self.close_all();
            self.rest();
        }
        let alive: Vec<usize> = self.live_links().map(|(index, _)| index).collect();
        for link in alive {
            let in_order = self.env.rng.u8(..4) != 0;
            self.end(link, in_order);
        }
        self.rest();
        let patience = self.env.now.plus_millis(60_000);
        self.pass_until(patience);
        self.check_loops_rest();
        assert_eq!(self.live_links().count(), 0, "a connection is not closed");
        for host in &self.hosts {
            assert_eq!(host.worker.session_count(), 0, "a session is left");
            assert_eq!(host.worker.engine().keys(), 0, "a key is left");
            assert_eq!(host.worker.engine().held(), 0, "a lease is left");
            assert_eq!(host.worker.engine().waiting(), 0, "a waiter is left");
            assert_eq!(host.worker.engine().data_slots(), 0, "data is left");
            assert_eq!(host.worker.poll_timeout(), None, "a timer is left");
            let kept = host.worker.engine().memory_bytes() - host.empty_bytes;
            assert!(kept <= MOST_KEPT_BYTES, "{kept} bytes are kept");
        }
    }

    /// Moves the clock from one deadline to the next.
    pub(crate) fn pass_until(&mut self, end: Time) {
        loop {
            self.rest();
            let due = self.hosts.iter().filter_map(Host::sleeps_until).min();
            match due {
                Some(due) if due < end => self.env.now = self.env.now.max(due),
                _ => break,
            }
        }
        self.env.now = self.env.now.max(end);
        self.rest();
    }

    fn check_loops_rest(&mut self) {
        for host in &self.hosts {
            assert!(host.is_asleep(), "loop {} has no rest", host.index);
            assert!(
                !host.worker.has_work(),
                "loop {} sleeps on work",
                host.index
            );
            host.check_wakes_in_time(&self.env);
        }
        // The second time it would find what the first has moved out of a spill.
        for _ in 0..2 {
            for host in &mut self.hosts {
                assert_eq!(
                    host.worker.gather_messages(),
                    0,
                    "loop {} sleeps on messages",
                    host.index
                );
            }
        }
    }

    fn check_links(&self) {
        for (index, link) in self.live_links() {
            assert!(!link.is_reset(), "link {index} is reset and not closed");
            if link.room == 0 {
                continue;
            }
            assert_eq!(link.in_flight, 0, "link {index} takes it and gets nothing");
            let is_open = link.server == Server::Open;
            if link.is_sent_away && !is_open {
                // What it had asked and was not judged is dropped.
                continue;
            }
            assert!(
                link.end != Some(PeerEnd::Fin),
                "link {index} has ended its side and is not closed: {link:?}"
            );
            assert!(
                !is_open || link.to_server.is_empty(),
                "link {index} is not read: {link:?}"
            );
            match &link.conversation {
                Conversation::Native(talk) => {
                    let due = talk.open_frames().find(|frame| !frame.is_queued_kind());
                    assert!(due.is_none(), "link {index} is owed a reply to {due:?}");
                    assert!(!talk.awaits_refusal(), "link {index} is owed its error");
                    assert!(!talk.is_refused || !is_open, "link {index} stays open");
                }
                Conversation::Dlm(talk) => {
                    let is_answered = talk.is_answered || !talk.is_complete();
                    assert!(is_answered, "link {index} is owed an answer: {talk:?}");
                    assert!(!talk.is_answered || !is_open, "link {index} stays open");
                }
            }
        }
    }

    /// Asks for the state of all keys and holds it against what clients were told.
    fn probe(&mut self) {
        let before = self.env.now;
        let most: Vec<usize> = self.waiters(|_| true, true);
        // A stalled session's replies, grants among them, may not be told yet.
        let mut may_be_untold: Vec<usize> = self.waiters(|room| room == 0, true);
        for (_, link) in self.live_links() {
            if let Conversation::Dlm(talk) = &link.conversation
                && !talk.is_answered
                && let Some(lease) = talk.may_hold()
            {
                may_be_untold[lease.key] += 1;
            }
        }
        let to = self.env.rng.u16(..self.options.loops);
        let link = self.connect_native(to);
        self.env.links[link].make_room(1 << 40);
        if self.options.asks_credentials {
            let owner = self.fresh_owner();
            let hello = Ask::Hello {
                flags: 0,
                wanted_loop: ANY_LOOP,
            };
            self.talk(link).ask(hello, owner, None);
        }
        for key in 0..self.keys.len() {
            let owner = self.fresh_owner();
            self.ask(link, Ask::Query, owner, key);
        }
        let (unsent, now) = (self.env.links[link].unsent(), self.env.now);
        self.env.links[link].send(unsent, now, &mut self.env.ledger);
        self.rest();
        let least: Vec<usize> = self.waiters(|room| room > 0, false);
        let states = std::mem::take(&mut self.talk(link).states);
        assert_eq!(states.len(), self.keys.len(), "the probe is answered");
        for state in states {
            let key = state.key;
            let waiters = state.waiters as usize;
            assert!(
                (least[key]..=most[key]).contains(&waiters),
                "{waiters} wait for key {key}, of {} to {}",
                least[key],
                most[key]
            );
            assert!(
                !state.is_held
                    || may_be_untold[key] > 0
                    // A lease that nobody was told of may have run out before it was
                    // taken back.
                    || state.remaining_ms <= self.options.expiry_grace_ms
                    || self.env.ledger.explains(key, before),
                "{state:?} at {before:?}, and nobody was told so: {:#?}",
                self.env.ledger.holds_of(key)
            );
        }
        self.end(link, true);
        self.rest();
        assert_eq!(self.env.links[link].server, Server::Closed);
    }

    /// By key, how many acquires of living sessions are not answered.
    fn waiters(&self, which: impl Fn(usize) -> bool, with_sent_away: bool) -> Vec<usize> {
        let mut count = vec![0; self.keys.len()];
        for (_, link) in self.live_links() {
            if let Conversation::Native(talk) = &link.conversation
                && which(link.room)
                && (with_sent_away || !link.is_sent_away)
                && !talk.is_refused
            {
                let keys = talk.open_frames().filter(|frame| frame.is_acquire());
                keys.filter_map(|frame| frame.key)
                    .for_each(|key| count[key] += 1);
            }
        }
        count
    }

    fn open_extensions(&self) -> Vec<(usize, u64, u32)> {
        let mut found = Vec::new();
        for (_, link) in self.live_links() {
            if let Conversation::Native(talk) = &link.conversation {
                found.extend(talk.open_frames().filter_map(|frame| match frame.ask {
                    Ask::Extend { lease_ms, token } => Some((frame.key?, token, lease_ms)),
                    _ => None,
                }));
            }
        }
        found
    }

    /// When no wait of a living session can last any longer.
    fn last_wait(&self) -> Time {
        self.env.now.plus_millis(crate::options::MAX_WAIT_MS.into())
    }
}
