//! Which identities are known, so that no loop ever waits for a file.
//!
//! A loop asks [`IdentityCache::lookup`]. Where the answer is not known or no
//! longer fresh, the loop has a thread of its choice read the file whole and parse
//! it ([`Identity::parse`]), and hands the outcome to [`IdentityCache::handle_read`];
//! until then only the sessions that asked for that name wait.
//!
//! **How long a removed or changed file still counts.** What was read counts for
//! [`FRESH_MS`] from the moment the reading was asked for, which is before the file
//! was opened, and for those who waited for it. So a secret that is no longer in
//! its file is refused at the latest one second later, or, where reading one file
//! takes longer than that, when that reading is done. The same holds for a file
//! that is new. A name in use is read ahead, so that its sessions do not wait.
//!
//! The file's contents are its only stamp: times and sizes of a file can stay the
//! same while it changes, and reading 2 KB a second costs less than being wrong.

use super::identity::{Claim, Identity, Verdict};
use crate::engine::time::Time;
use hashbrown::HashMap;
use std::collections::hash_map::RandomState;

/// How long what was read of a file counts, in milliseconds.
const FRESH_MS: u64 = 1000;

/// From what age on a name in use is read again, in milliseconds.
const READ_AHEAD_MS: u64 = FRESH_MS / 2;

/// What a loop knows of identities. `W` names a session that waits.
#[derive(Debug)]
pub struct IdentityCache<W> {
    /// Names come from anybody: the hasher must withstand chosen ones.
    entries: HashMap<String, Entry<W>, RandomState>,
    max_entries: usize,
    /// Counts lookups: who was asked for last is known without a clock's ties.
    lookups: u64,
}

/// What comes of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// The verdict; `None` while it is not known: [`IdentityCache::handle_read`]
    /// will name the waiter.
    pub verdict: Option<Verdict>,
    /// Whether the caller must have the file of the claim's name read now. Exactly
    /// one [`IdentityCache::handle_read`] must follow.
    pub read: bool,
}

#[derive(Debug)]
struct Entry<W> {
    /// What the file held, and when reading it was asked for.
    known: Option<(Option<Identity>, Time)>,
    /// When the reading under way was asked for.
    reading_since: Option<Time>,
    waiters: Vec<W>,
    last_lookup: u64,
}

impl<W: PartialEq> IdentityCache<W> {
    /// An empty cache of at most `max_entries` names, those being read included.
    pub fn new(max_entries: usize) -> IdentityCache<W> {
        IdentityCache {
            entries: HashMap::with_hasher(RandomState::new()),
            max_entries,
            lookups: 0,
        }
    }

    /// Judges `claim`, or lets `waiter` wait for its file. Where every entry is
    /// being read and there is room for no other, the claim is refused.
    pub fn lookup(&mut self, now: Time, claim: &Claim<'_>, waiter: W) -> Lookup {
        self.lookups += 1;
        if !self.entries.contains_key(&*claim.name) && !self.make_room() {
            return Lookup {
                verdict: Some(Verdict::Refused),
                read: false,
            };
        }
        let entry = self
            .entries
            .entry_ref(&*claim.name)
            .or_insert_with(Entry::new);
        entry.last_lookup = self.lookups;
        let age_ms = entry.age_ms(now);
        let read = age_ms >= READ_AHEAD_MS && entry.reading_since.is_none();
        if read {
            entry.reading_since = Some(now);
        }
        let verdict = match &entry.known {
            Some((identity, _)) if age_ms < FRESH_MS => {
                Some(Identity::verify(identity.as_ref(), claim))
            }
            _ => {
                entry.waiters.push(waiter);
                None
            }
        };
        Lookup { verdict, read }
    }

    /// The file of `name` was read: `identity` is what it holds, `None` where it is
    /// missing or no identity file. Returns who waited for it: judge their claims
    /// with [`Identity::verify`] and this same `identity`.
    pub fn handle_read(&mut self, name: &str, identity: Option<Identity>) -> Vec<W> {
        let Some(entry) = self.entries.get_mut(name) else {
            return Vec::new();
        };
        let Some(since) = entry.reading_since.take() else {
            return Vec::new();
        };
        entry.known = Some((identity, since));
        std::mem::take(&mut entry.waiters)
    }

    /// `waiter` no longer waits for `name`: it will not be named.
    pub fn handle_waiter_gone(&mut self, name: &str, waiter: &W) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.waiters.retain(|other| other != waiter);
        }
    }

    /// Makes room for one entry more, at the cost of the one that was not asked for
    /// the longest and is not being read. Whether there is room.
    fn make_room(&mut self) -> bool {
        if self.entries.len() < self.max_entries {
            return true;
        }
        let oldest = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.reading_since.is_none())
            .min_by_key(|(_, entry)| entry.last_lookup)
            .map(|(name, _)| name.clone());
        oldest.is_some_and(|name| self.entries.remove(&name).is_some())
    }
}

impl<W> Entry<W> {
    fn new() -> Entry<W> {
        Entry {
            known: None,
            reading_since: None,
            waiters: Vec::new(),
            last_lookup: 0,
        }
    }

    /// How long ago the reading of what is known was asked for; `u64::MAX` where
    /// nothing is known.
    fn age_ms(&self, now: Time) -> u64 {
        match self.known {
            Some((_, since)) => now.millis_since_floor(since),
            None => u64::MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Time {
        Time::from_millis(millis)
    }

    fn secret(seed: char) -> String {
        seed.to_string().repeat(1023)
    }

    fn identity(seed: char) -> Option<Identity> {
        let file = format!("{{\"Identity\":\"{}\"}}", secret(seed));
        Some(Identity::parse(file.as_bytes()).expect("a good file"))
    }

    fn claim(name: &str, seed: char) -> Claim<'_> {
        Claim {
            name: name.into(),
            identity: secret(seed).into(),
        }
    }

    const READ_AND_WAIT: Lookup = Lookup {
        verdict: None,
        read: true,
    };
    const WAIT: Lookup = Lookup {
        verdict: None,
        read: false,
    };
    const REFUSED: Lookup = Lookup {
        verdict: Some(Verdict::Refused),
        read: false,
    };
    const ACCEPTED: Lookup = Lookup {
        verdict: Some(Verdict::Accepted {
            max_data_chars: 16_384,
        }),
        read: false,
    };

    #[test]
    fn a_file_is_read_once_for_all_who_wait_and_then_known() {
        let mut cache = IdentityCache::new(8);
        let good = claim("worker", 's');
        assert_eq!(cache.lookup(ms(0), &good, 1), READ_AND_WAIT);
        assert_eq!(cache.lookup(ms(1), &good, 2), WAIT);
        assert_eq!(cache.lookup(ms(2), &claim("worker", 't'), 3), WAIT);
        cache.handle_waiter_gone("worker", &2);
        cache.handle_waiter_gone("other", &1);
        assert_eq!(cache.handle_read("worker", identity('s')), [1, 3]);

        assert_eq!(cache.lookup(ms(3), &good, 4), ACCEPTED);
        assert_eq!(cache.lookup(ms(3), &claim("worker", 't'), 5), REFUSED);
    }

    #[test]
    fn a_missing_file_is_known_too() {
        let mut cache = IdentityCache::new(8);
        assert_eq!(cache.lookup(ms(0), &claim("nope", 's'), 1), READ_AND_WAIT);
        assert_eq!(cache.handle_read("nope", None), [1]);
        assert_eq!(cache.lookup(ms(1), &claim("nope", 's'), 2), REFUSED);
    }

    #[test]
    fn what_was_read_counts_for_a_second_from_when_it_was_asked_for() {
        let mut cache = IdentityCache::new(8);
        let good = claim("worker", 's');
        assert_eq!(cache.lookup(ms(0), &good, 1), READ_AND_WAIT);
        // The reading took 400 ms: they do not prolong the second.
        cache.handle_read("worker", identity('s'));
        assert_eq!(cache.lookup(ms(499), &good, 2), ACCEPTED);
        // Read ahead, once, without anybody waiting.
        assert_eq!(
            cache.lookup(ms(500), &good, 3),
            Lookup {
                read: true,
                ..ACCEPTED
            }
        );
        assert_eq!(cache.lookup(ms(999), &good, 4), ACCEPTED);
        assert_eq!(cache.lookup(ms(1000), &good, 5), WAIT);
        // The file has gone meanwhile.
        assert_eq!(cache.handle_read("worker", None), [5]);
        assert_eq!(
            cache.lookup(ms(1001), &good, 6),
            Lookup {
                read: true,
                ..REFUSED
            }
        );
        cache.handle_read("worker", identity('s'));
        assert_eq!(cache.lookup(ms(1002), &good, 7), ACCEPTED);
    }

    #[test]
    fn an_idle_name_is_read_again_before_it_is_believed() {
        let mut cache = IdentityCache::new(8);
        let good = claim("worker", 's');
        cache.lookup(ms(0), &good, 1);
        cache.handle_read("worker", identity('s'));
        assert_eq!(cache.lookup(ms(3_600_000), &good, 2), READ_AND_WAIT);
        assert_eq!(cache.handle_read("worker", identity('t')), [2]);
        assert_eq!(cache.lookup(ms(3_600_001), &good, 3), REFUSED);
    }

    #[test]
    fn names_are_bounded_and_the_longest_unasked_one_goes() {
        let mut cache = IdentityCache::new(2);
        for (at, name) in [(0, "a"), (1, "b")] {
            assert_eq!(cache.lookup(ms(at), &claim(name, 's'), 1), READ_AND_WAIT);
            cache.handle_read(name, identity('s'));
        }
        assert_eq!(cache.lookup(ms(2), &claim("a", 's'), 1), ACCEPTED);
        assert_eq!(cache.lookup(ms(3), &claim("c", 's'), 1), READ_AND_WAIT);
        // "b" went; "a" and "c" are there, and "c", being read, cannot go.
        assert_eq!(cache.lookup(ms(4), &claim("a", 's'), 1), ACCEPTED);
        assert_eq!(cache.lookup(ms(5), &claim("b", 's'), 2), READ_AND_WAIT);
        // Both are being read: no room, and nothing is left behind.
        assert_eq!(cache.lookup(ms(6), &claim("a", 's'), 3), REFUSED);
        assert_eq!(cache.handle_read("b", None), [2]);
        assert_eq!(cache.handle_read("c", None), [1]);
        assert_eq!(cache.lookup(ms(7), &claim("a", 's'), 4), READ_AND_WAIT);
    }

    #[test]
    fn an_answer_nobody_asked_for_changes_nothing() {
        let mut cache = IdentityCache::new(8);
        assert_eq!(cache.handle_read("worker", identity('s')), [0; 0]);
        assert_eq!(cache.lookup(ms(0), &claim("worker", 's'), 1), READ_AND_WAIT);
        cache.handle_read("worker", None);
        assert_eq!(cache.handle_read("worker", identity('s')), [0; 0]);
        assert_eq!(cache.lookup(ms(1), &claim("worker", 's'), 2), REFUSED);
    }
}
