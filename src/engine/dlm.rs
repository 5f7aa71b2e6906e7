//! The lock slots of DLM names: the same keys, held by an ID instead of a token.

use super::lock_table::Holder;
use super::time::Time;
use super::{Engine, Outbox};

/// Who asks: an ID, and the identity it proved, if any. Both have to be the same
/// for two requests to come from one holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlmHolder<'a> {
    /// The request's ID.
    pub id: &'a str,
    /// Name of the identity that was proved; `None` for an anonymous request.
    pub name: Option<&'a str>,
}

/// A holder as it is kept.
#[derive(Debug)]
pub(super) struct DlmOwner {
    id: Box<str>,
    name: Option<Box<str>>,
}

/// What a Lock comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlmLock {
    /// Granted or renewed.
    Locked,
    /// Somebody else, or nobody known, holds the key; or the server is draining.
    NotOwner,
    /// A limit of the lock table or of memory is reached.
    Overloaded,
}

/// What an Unlock comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlmUnlock {
    /// The holder's lock was released.
    Unlocked,
    /// The key is free.
    Absent,
    /// Somebody else, or nobody known, holds the key.
    NotOwner,
}

/// What a TestLock comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlmTest {
    /// The key is free.
    Free,
    /// The asker holds it.
    Own,
    /// Somebody else, or nobody known, holds it.
    NotOwner,
}

impl DlmOwner {
    pub(super) fn new(holder: DlmHolder<'_>) -> DlmOwner {
        DlmOwner {
            id: holder.id.into(),
            name: holder.name.map(Into::into),
        }
    }

    pub(super) fn is(&self, holder: DlmHolder<'_>) -> bool {
        *self.id == *holder.id && self.name.as_deref() == holder.name
    }

    /// Bytes of a boxed owner.
    pub(super) fn memory_bytes(&self) -> u64 {
        let name_bytes = self.name.as_ref().map_or(0, |name| name.len());
        (size_of::<DlmOwner>() + self.id.len() + name_bytes) as u64
    }
}

impl Engine {
    /// Locks a free key for `lease_ms`, or renews the holder's lock: its deadline
    /// becomes the later of what it is and now + lease. Never overtakes queued
    /// native acquires, since a key with a queue is held.
    pub fn handle_dlm_lock(
        &mut self,
        now: Time,
        key: &[u8],
        holder: DlmHolder<'_>,
        lease_ms: u64,
        out: &mut impl Outbox,
    ) -> DlmLock {
        let hash = self.tables.locks.hash(key);
        if let Some(entry) = self.find_settled(now, hash, key, out) {
            if !self.is_dlm_held_by(entry, holder) {
                return DlmLock::NotOwner;
            }
            self.counters.dlm_renewed += 1;
            self.lengthen(now, entry, lease_ms);
            return DlmLock::Locked;
        }
        if self.drain.has_begun() {
            return DlmLock::NotOwner;
        }
        let owner = Box::new(DlmOwner::new(holder));
        let owner_bytes = owner.memory_bytes();
        let side_bytes = |engine: &Engine| engine.tables.locks.sides.growth_bytes() + owner_bytes;
        if !self.make_room_for_grant(now, (hash, key), side_bytes, out) {
            return DlmLock::Overloaded;
        }
        let Some(token) = self.take_token() else {
            return DlmLock::Overloaded;
        };
        let entry = self.tables.locks.insert(hash, key);
        self.tables.locks.set_dlm_owner(entry, owner);
        self.start_grant(now, entry, Holder::Dlm, token, lease_ms);
        self.counters.dlm_granted += 1;
        DlmLock::Locked
    }

    /// Releases the holder's lock and grants the oldest native waiter.
    pub fn handle_dlm_unlock(
        &mut self,
        now: Time,
        key: &[u8],
        holder: DlmHolder<'_>,
        out: &mut impl Outbox,
    ) -> DlmUnlock {
        let hash = self.tables.locks.hash(key);
        match self.find_settled(now, hash, key, out) {
            None => DlmUnlock::Absent,
            Some(entry) if self.is_dlm_held_by(entry, holder) => {
                self.counters.dlm_released += 1;
                self.hand_over(now, entry, out);
                DlmUnlock::Unlocked
            }
            Some(_) => DlmUnlock::NotOwner,
        }
    }

    /// Whose the key is; changes nothing that time has not changed already.
    pub fn handle_dlm_test(
        &mut self,
        now: Time,
        key: &[u8],
        holder: DlmHolder<'_>,
        out: &mut impl Outbox,
    ) -> DlmTest {
        let hash = self.tables.locks.hash(key);
        match self.find_settled(now, hash, key, out) {
            None => DlmTest::Free,
            Some(entry) if self.is_dlm_held_by(entry, holder) => DlmTest::Own,
            Some(_) => DlmTest::NotOwner,
        }
    }

    fn is_dlm_held_by(&self, entry: u32, holder: DlmHolder<'_>) -> bool {
        self.tables
            .locks
            .side(entry)
            .and_then(|side| side.dlm_owner.as_ref())
            .is_some_and(|owner| owner.is(holder))
    }
}
