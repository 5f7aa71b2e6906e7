//! The two slots of a DLM name. The lock slot is the native lock of that key, held
//! by an ID instead of a token; the data slot keeps a value of its own.

use super::key_index::KeyHash;
use super::lock_table::Holder;
use super::requests::ROOM_STEPS;
use super::time::Time;
use super::timer_wheel::{TimerId, TimerKind};
use super::{Engine, Outbox};
use crate::durability::Needs;
use crate::ids::GrantRef;

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

/// What a request came to, and what that relies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlmOutcome<T> {
    /// What it came to: it is so already.
    pub came_to: T,
    /// What has to be durable before that is told.
    pub needs: Needs,
    /// The grant to give up if that fails ([`Engine::handle_failed_grant`]). A renewal is
    /// only not told of then.
    pub granted: Option<GrantRef>,
}

impl<T> DlmOutcome<T> {
    fn new(came_to: T, needs: Needs) -> DlmOutcome<T> {
        DlmOutcome {
            came_to,
            needs,
            granted: None,
        }
    }
}

impl<T> From<T> for DlmOutcome<T> {
    /// What may be told at once.
    fn from(came_to: T) -> DlmOutcome<T> {
        DlmOutcome::new(came_to, Needs::default())
    }
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

/// What a Put comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlmPut {
    /// Stored.
    Done,
    /// The data is another's; nothing was changed.
    NotOwner,
    /// The memory limit is reached; nothing was changed.
    Overloaded,
}

/// What a Get comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlmGet<'a> {
    /// The asker's own value.
    Done(&'a str),
    /// No data, but the asker holds the lock slot.
    NoData,
    /// No data.
    NotFound,
    /// The data is another's.
    NotOwner,
}

/// What an Erase comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DlmErase {
    /// The asker's own value is gone.
    Done,
    /// No data.
    NotFound,
    /// The data is another's.
    NotOwner,
}

impl DlmHolder<'_> {
    /// Bytes of the boxed owner made from this.
    pub(super) fn owner_bytes(self) -> u64 {
        let name_bytes = self.name.map_or(0, str::len);
        (size_of::<DlmOwner>() + self.id.len() + name_bytes) as u64
    }
}

impl From<DlmHolder<'_>> for Box<DlmOwner> {
    fn from(holder: DlmHolder<'_>) -> Box<DlmOwner> {
        Box::new(DlmOwner {
            id: holder.id.into(),
            name: holder.name.map(Into::into),
        })
    }
}

impl DlmOwner {
    /// ID and proved identity.
    pub(super) fn parts(&self) -> (&str, Option<&str>) {
        (&self.id, self.name.as_deref())
    }

    pub(super) fn is(&self, holder: DlmHolder<'_>) -> bool {
        self.holder() == holder
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.holder().owner_bytes()
    }

    fn holder(&self) -> DlmHolder<'_> {
        DlmHolder {
            id: &self.id,
            name: self.name.as_deref(),
        }
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
    ) -> DlmOutcome<DlmLock> {
        let hash = self.tables.locks.hash(key);
        if let Some(entry) = self.find_settled(now, hash, key, out) {
            if !self.is_dlm_held_by(entry, holder) {
                return DlmLock::NotOwner.into();
            }
            if self.is_record_refused(now, entry, lease_ms) {
                return DlmLock::Overloaded.into();
            }
            self.counters.dlm_renewed += 1;
            return DlmOutcome::new(DlmLock::Locked, self.renew(now, entry, lease_ms));
        }
        if self.drain.has_begun() || self.is_in_grace(now) {
            return DlmLock::NotOwner.into();
        }
        if self.recorder.records(lease_ms) && self.recorder.is_full() {
            return DlmLock::Overloaded.into();
        }
        let side_bytes =
            |engine: &Engine| engine.tables.locks.sides.growth_bytes() + holder.owner_bytes();
        if !self.make_room_for_grant(now, (hash, key), side_bytes, out) {
            return DlmLock::Overloaded.into();
        }
        let Some(token) = self.take_token() else {
            return DlmLock::Overloaded.into();
        };
        let entry = self.tables.locks.insert(hash, key);
        self.tables.locks.set_dlm_owner(entry, holder.into());
        self.start_grant(now, entry, Holder::Dlm, token, lease_ms);
        self.counters.dlm_granted += 1;
        self.record(now, entry, lease_ms);
        DlmOutcome {
            granted: Some(GrantRef { entry, token }),
            ..DlmOutcome::new(DlmLock::Locked, self.needs(entry, lease_ms))
        }
    }

    /// The holder's lock becomes at least `lease_ms` from now. Returns what has to be
    /// durable before the holder is told.
    fn renew(&mut self, now: Time, entry: u32, lease_ms: u64) -> Needs {
        if self.lengthen(now, entry, lease_ms) {
            self.record(now, entry, lease_ms);
        }
        self.needs(entry, lease_ms)
    }

    /// Releases the holder's lock and grants the oldest native waiter. If the data
    /// slot is the holder's too, it is emptied.
    pub fn handle_dlm_unlock(
        &mut self,
        now: Time,
        key: &[u8],
        holder: DlmHolder<'_>,
        out: &mut impl Outbox,
    ) -> DlmOutcome<DlmUnlock> {
        let hash = self.tables.locks.hash(key);
        let unlock = match self.find_settled(now, hash, key, out) {
            None => DlmUnlock::Absent,
            Some(entry) if self.is_dlm_held_by(entry, holder) => {
                self.counters.dlm_released += 1;
                self.hand_over(now, entry, out);
                self.handle_dlm_erase(now, key, holder);
                DlmUnlock::Unlocked
            }
            // Whose it was before the start is not known; here nobody has it.
            Some(entry) if self.is_unknown(entry) => DlmUnlock::Absent,
            Some(_) => return DlmUnlock::NotOwner.into(),
        };
        DlmOutcome::new(unlock, self.needs_of_free_key(key))
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
            None if self.is_in_grace(now) => DlmTest::NotOwner,
            None => DlmTest::Free,
            Some(entry) if self.is_dlm_held_by(entry, holder) => DlmTest::Own,
            Some(_) => DlmTest::NotOwner,
        }
    }

    /// Stores `value` for `lease_ms` from now, over what the holder stored before.
    /// If the lock slot is the holder's too, its deadline becomes at least that.
    pub fn handle_dlm_put(
        &mut self,
        now: Time,
        key: &[u8],
        holder: DlmHolder<'_>,
        lease_ms: u64,
        value: Box<str>,
        out: &mut impl Outbox,
    ) -> DlmOutcome<DlmPut> {
        let hash = self.tables.data.hash(key);
        let found = self.find_live_data(now, (hash, key));
        if found.is_some_and(|record| !self.is_data_of(record, holder)) {
            return DlmPut::NotOwner.into();
        }
        let lock_hash = self.tables.locks.hash(key);
        let lock = self
            .find_settled(now, lock_hash, key, out)
            .filter(|&entry| self.is_dlm_held_by(entry, holder));
        if lock.is_some_and(|entry| self.is_record_refused(now, entry, lease_ms)) {
            return DlmPut::Overloaded.into();
        }
        let has_room = |engine: &Engine| {
            let bytes = match found {
                Some(record) => {
                    let replaced = &engine.tables.data.records[record].value;
                    value.len().saturating_sub(replaced.len()) as u64
                }
                None => engine.tables.data.growth_bytes((hash, key), holder, &value),
            };
            engine.has_memory(bytes)
        };
        if !has_room(self) {
            // What was found outlives this: its deadline is later than now.
            self.run_due_timers(now, self.work_done + ROOM_STEPS, out);
        }
        if !has_room(self) {
            return DlmPut::Overloaded.into();
        }
        let record = match found {
            Some(record) => {
                self.tables.data.replace(record, value);
                record
            }
            None => self.tables.data.insert((hash, key), holder, value),
        };
        let timer = TimerId::new(TimerKind::Data, record);
        self.wheel.cancel(&mut self.tables, timer);
        let deadline = now.plus_millis(lease_ms);
        self.tables.data.records[record].deadline = deadline;
        self.wheel
            .arm(&mut self.tables, timer, deadline.tick_ceil());
        match lock {
            Some(entry) => DlmOutcome::new(DlmPut::Done, self.renew(now, entry, lease_ms)),
            None => DlmPut::Done.into(),
        }
    }

    /// The holder's value.
    pub fn handle_dlm_get(
        &mut self,
        now: Time,
        key: &[u8],
        holder: DlmHolder<'_>,
        out: &mut impl Outbox,
    ) -> DlmGet<'_> {
        let hash = self.tables.data.hash(key);
        match self.find_live_data(now, (hash, key)) {
            Some(record) if self.is_data_of(record, holder) => {
                DlmGet::Done(&self.tables.data.records[record].value)
            }
            Some(_) => DlmGet::NotOwner,
            None => match self.handle_dlm_test(now, key, holder, out) {
                DlmTest::Own => DlmGet::NoData,
                DlmTest::Free | DlmTest::NotOwner => DlmGet::NotFound,
            },
        }
    }

    /// Empties the holder's data slot; the lock slot stays as it is.
    pub fn handle_dlm_erase(&mut self, now: Time, key: &[u8], holder: DlmHolder<'_>) -> DlmErase {
        let hash = self.tables.data.hash(key);
        match self.find_live_data(now, (hash, key)) {
            None => DlmErase::NotFound,
            Some(record) if self.is_data_of(record, holder) => {
                self.remove_data(record);
                DlmErase::Done
            }
            Some(_) => DlmErase::NotOwner,
        }
    }

    /// Empties a data slot; its memory is free at once.
    pub(super) fn remove_data(&mut self, record: u32) {
        let timer = TimerId::new(TimerKind::Data, record);
        self.wheel.cancel(&mut self.tables, timer);
        self.tables.data.remove(record);
    }

    /// The key's data as it is at `now`: what is over is gone first.
    fn find_live_data(&mut self, now: Time, (hash, key): (KeyHash, &[u8])) -> Option<u32> {
        let record = self.tables.data.find(hash, key)?;
        if now < self.tables.data.records[record].deadline {
            return Some(record);
        }
        self.remove_data(record);
        None
    }

    fn is_data_of(&self, record: u32, holder: DlmHolder<'_>) -> bool {
        self.tables.data.records[record].owner.is(holder)
    }

    fn is_dlm_held_by(&self, entry: u32, holder: DlmHolder<'_>) -> bool {
        self.tables
            .locks
            .side(entry)
            .and_then(|side| side.dlm_owner.as_ref())
            .is_some_and(|owner| owner.is(holder))
    }
}
