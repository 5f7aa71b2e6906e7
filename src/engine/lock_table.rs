//! Every key that somebody holds, or that nobody may have yet: one cache line
//! per key, and a side record where that is not enough.

use super::dlm::DlmOwner;
use super::key::Key;
use super::key_index::{KeyHash, KeyIndex};
use super::list::{Links, List};
use super::paged_slab::{NONE, PagedSlab};
use super::time::Time;
use super::timer_wheel::TimerLinks;

/// The lock table: a key that has no entry is free, so a free key has no waiters.
#[derive(Debug)]
pub(super) struct LockTable {
    pub(super) entries: PagedSlab<Entry>,
    pub(super) sides: PagedSlab<Side>,
    index: KeyIndex,
    /// What entries and sides own outside the slabs.
    boxed_bytes: u64,
}

/// One key that is not free.
///
/// Exactly a cache line; three bytes of it are unused.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Entry {
    pub(super) key: Key,
    /// The fencing token of the latest grant.
    pub(super) token: u64,
    /// When the lease is over; with [`Holder::Nobody`], when the grace after it is.
    pub(super) deadline: Time,
    pub(super) timer: TimerLinks,
    /// Index of the side record, [`NONE`] while the key needs none.
    pub(super) side: u32,
    pub(super) holder: Holder,
    /// Its lease, or the one that is over, has a record of its own on disk, or is about to.
    pub(super) is_recorded: bool,
    /// A request has asked for more of the grant since it began: its holder may have
    /// been told of it by another reply than the grant's.
    pub(super) is_renewed: bool,
}

const _: () = assert!(PagedSlab::<Entry>::SLOT_BYTES == 64);

impl Entry {
    /// Whether nothing is known of its key but that it may be held from before the start:
    /// no grant of this server's has been on it.
    pub(super) fn is_unknown(&self) -> bool {
        self.holder == Holder::Nobody && self.token == 0
    }
}

/// Who holds a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Nobody known: a lease that has expired, or one from before the start, blocks the
    /// key for a while yet.
    Nobody,
    /// Whoever knows the token.
    Native,
    /// The DLM owner named in the side record.
    Dlm,
}

/// What only some held keys need: a queue, a place in a session's list of grants
/// to release on close, a DLM owner.
#[derive(Debug)]
pub(super) struct Side {
    pub(super) entry: u32,
    pub(super) queue: WaitQueue,
    /// The grant group that the grant is in, or [`NONE`].
    pub(super) group: u32,
    pub(super) group_links: Links,
    pub(super) dlm_owner: Option<Box<DlmOwner>>,
}

const _: () = assert!(PagedSlab::<Side>::SLOT_BYTES <= 64);

/// The waiters of one key, oldest first.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitQueue {
    pub(super) list: List,
    pub(super) count: u32,
    /// No wait in the queue ends before this; so that a full queue is walked for
    /// waits that are over only when there may be some.
    pub(super) earliest_deadline: Time,
}

impl WaitQueue {
    pub(super) const EMPTY: WaitQueue = WaitQueue {
        list: List::EMPTY,
        count: 0,
        earliest_deadline: Time::MAX,
    };
}

impl Side {
    fn is_idle(&self) -> bool {
        self.queue.count == 0 && self.group == NONE && self.dlm_owner.is_none()
    }
}

impl LockTable {
    /// Buckets each small table keeps, so that a key that comes and goes alone does
    /// not allocate every time.
    const MIN_TABLE_BUCKETS: usize = 8;

    pub(super) fn new(hash_seed: u64) -> LockTable {
        LockTable {
            entries: PagedSlab::new(),
            sides: PagedSlab::new(),
            index: KeyIndex::new(hash_seed, Self::MIN_TABLE_BUCKETS),
            boxed_bytes: 0,
        }
    }

    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        self.index.hash(key)
    }

    pub(super) fn find(&self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.index
            .find(hash, |entry| self.entries[entry].key.as_bytes() == key)
    }

    /// Begins to fetch what finding `key` will need.
    pub(super) fn prefetch(&self, key: &[u8]) {
        self.index.prefetch(self.index.hash(key));
    }

    /// Makes an entry for a free key: held by nobody, its timer not armed.
    pub(super) fn insert(&mut self, hash: KeyHash, key: &[u8]) -> u32 {
        self.boxed_bytes += Key::boxed_bytes(key.len());
        let entry = self.entries.insert(Entry {
            key: Key::new(key),
            token: 0,
            deadline: Time::ZERO,
            timer: TimerLinks::UNARMED,
            side: NONE,
            holder: Holder::Nobody,
            is_recorded: false,
            is_renewed: false,
        });
        self.index.insert(hash, entry);
        entry
    }

    /// Frees the key of `entry`, whose timer is not armed and which has no side record.
    pub(super) fn remove(&mut self, entry: u32) {
        let removed = self.entries.remove(entry);
        debug_assert_eq!(removed.side, NONE);
        let key = removed.key.as_bytes();
        self.index.remove(self.index.hash(key), entry);
        self.boxed_bytes -= Key::boxed_bytes(key.len());
    }

    /// The side record of `entry`, `None` while it has none.
    pub(super) fn side(&self, entry: u32) -> Option<&Side> {
        match self.entries[entry].side {
            NONE => None,
            side => Some(&self.sides[side]),
        }
    }

    /// The side record of `entry`; makes one if it has none.
    pub(super) fn side_or_new(&mut self, entry: u32) -> &mut Side {
        let mut side = self.entries[entry].side;
        if side == NONE {
            side = self.sides.insert(Side {
                entry,
                queue: WaitQueue::EMPTY,
                group: NONE,
                group_links: Links::UNLINKED,
                dlm_owner: None,
            });
            self.entries[entry].side = side;
        }
        &mut self.sides[side]
    }

    /// Frees the side record of `entry` if nothing needs it any more.
    pub(super) fn drop_idle_side(&mut self, entry: u32) {
        let side = self.entries[entry].side;
        if side != NONE && self.sides[side].is_idle() {
            self.sides.remove(side);
            self.entries[entry].side = NONE;
        }
    }

    pub(super) fn set_dlm_owner(&mut self, entry: u32, owner: Box<DlmOwner>) {
        self.boxed_bytes += owner.memory_bytes();
        let replaced = self.side_or_new(entry).dlm_owner.replace(owner);
        debug_assert!(replaced.is_none());
    }

    pub(super) fn clear_dlm_owner(&mut self, entry: u32) {
        let side = self.entries[entry].side;
        if side != NONE
            && let Some(owner) = self.sides[side].dlm_owner.take()
        {
            self.boxed_bytes -= owner.memory_bytes();
        }
    }

    /// Bytes that an entry for this key would allocate.
    pub(super) fn growth_bytes(&self, hash: KeyHash, key: &[u8]) -> u64 {
        self.entries.growth_bytes() + self.index.growth_bytes(hash) + Key::boxed_bytes(key.len())
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.entries.memory_bytes()
            + self.sides.memory_bytes()
            + self.index.memory_bytes()
            + self.boxed_bytes
    }

    /// Panics if the bookkeeping contradicts itself. Walks everything.
    pub(super) fn invariants(&self) {
        self.entries.invariants();
        self.sides.invariants();
        self.index.invariants();
        assert_eq!(self.index.count(), self.entries.len() as usize);
        let mut sides = 0;
        let mut boxed_bytes = 0;
        for (index, entry) in self.entries.iter() {
            let key = entry.key.as_bytes();
            assert_eq!(self.find(self.hash(key), key), Some(index));
            boxed_bytes += Key::boxed_bytes(key.len());
            let side = self.side(index);
            if let Some(side) = side {
                sides += 1;
                assert_eq!(side.entry, index);
                assert!(!side.is_idle(), "a side record is there for a reason");
                boxed_bytes += side.dlm_owner.as_ref().map_or(0, |o| o.memory_bytes());
            }
            assert!(!entry.is_recorded || entry.holder != Holder::Native);
            assert_eq!(
                side.is_some_and(|side| side.dlm_owner.is_some()),
                entry.holder == Holder::Dlm,
                "a DLM holder has an owner, nobody else has"
            );
        }
        assert_eq!(self.sides.len(), sides);
        assert_eq!(self.boxed_bytes, boxed_bytes);
    }
}
