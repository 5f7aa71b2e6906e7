//! Leases too long for the restart's grace: each has a record of its own on disk,
//! whose changes are numbered here and written elsewhere.

use std::collections::{HashMap, VecDeque};

use super::dlm::DlmHolder;
use super::lock_table::Holder;
use super::time::Time;
use super::{Engine, KeyHash, NONE};
use crate::durability::{LeaseRecord, Needs, RecordChange};

/// The changes of records that are not durable yet.
#[derive(Debug)]
pub(super) struct Recorder {
    /// Longer leases are recorded, in milliseconds.
    cap_ms: u64,
    max_pending: usize,
    last_number: u64,
    /// Changes up to this number have been tried.
    tried: u64,
    /// Keys whose record changes, each with its latest change.
    pending: HashMap<Box<[u8]>, u64>,
    to_write: VecDeque<(u64, RecordChange)>,
}

impl Recorder {
    /// Records nothing.
    pub(super) fn off() -> Recorder {
        Recorder::new(u64::MAX, 0)
    }

    pub(super) fn new(cap_ms: u64, max_pending: usize) -> Recorder {
        Recorder {
            cap_ms,
            max_pending,
            last_number: 0,
            tried: 0,
            pending: HashMap::new(),
            to_write: VecDeque::new(),
        }
    }

    pub(super) fn records(&self, lease_ms: u64) -> bool {
        lease_ms > self.cap_ms
    }

    /// Whether as many changes are under way as may be.
    pub(super) fn is_full(&self) -> bool {
        let under_way = usize::try_from(self.last_number - self.tried).unwrap_or(usize::MAX);
        under_way.max(self.pending.len()) >= self.max_pending
    }

    /// The change that must be written before anything is told of the key, 0 for none.
    #[inline]
    fn pending_of(&self, key: &[u8]) -> u64 {
        if self.pending.is_empty() {
            return 0;
        }
        self.pending.get(key).copied().unwrap_or(0)
    }

    fn change(&mut self, change: RecordChange) {
        self.last_number += 1;
        self.pending.insert(change.key().into(), self.last_number);
        self.to_write.push_back((self.last_number, change));
    }

    fn forget(&mut self, up_to: u64) {
        self.tried = self.tried.max(up_to);
        self.pending.retain(|_, number| *number > up_to);
    }
}

impl Engine {
    /// The next change of a record that is to be written, with its number.
    pub fn poll_record_change(&mut self) -> Option<(u64, RecordChange)> {
        self.recorder.to_write.pop_front()
    }

    /// All changes up to this number are durable.
    pub fn handle_recorded(&mut self, up_to: u64) {
        self.recorder.forget(up_to);
    }

    /// Changes up to this number could not be written, and are tried again.
    pub fn handle_not_recorded(&mut self, up_to: u64) {
        self.recorder.tried = self.recorder.tried.max(up_to);
    }

    /// Holds a key again for whom a record says had it before a restart, whatever the
    /// limits are now. Before the first request; each key once.
    pub fn restore(&mut self, record: &LeaseRecord) {
        let key = &record.key;
        let Some(token) = self.take_token() else {
            unreachable!("a start reserves more tokens than there are records");
        };
        let hash = self.tables.locks.hash(key);
        let entry = self.tables.locks.insert(hash, key);
        let holder = DlmHolder {
            id: &record.id,
            name: record.name.as_deref(),
        };
        self.tables.locks.set_dlm_owner(entry, holder.into());
        let fields = &mut self.tables.locks.entries[entry];
        fields.token = token;
        fields.holder = Holder::Dlm;
        fields.is_recorded = true;
        self.held += 1;
        self.restored += 1;
        self.set_deadline(entry, record.deadline);
    }

    /// What has to be durable before a reply tells that `entry` is held for `lease_ms`.
    #[inline]
    pub(super) fn needs(&self, entry: u32, lease_ms: u64) -> Needs {
        let fields = &self.tables.locks.entries[entry];
        Needs {
            lease_ms: if fields.is_recorded { 0 } else { lease_ms },
            change: self.recorder.pending_of(fields.key.as_bytes()),
        }
    }

    /// Whether a DLM holder's lease cannot become `lease_ms` now, because its record would
    /// change and as many are under way as may be.
    pub(super) fn is_record_refused(&self, now: Time, entry: u32, lease_ms: u64) -> bool {
        let fields = &self.tables.locks.entries[entry];
        (fields.is_recorded || self.recorder.records(lease_ms))
            && now.plus_millis(lease_ms) > fields.deadline
            && self.recorder.is_full()
    }

    /// What has to be durable before a reply tells its holder that a key, which has an
    /// entry at `now`, is held for what is left of its lease.
    pub fn needs_of_held_key(&self, now: Time, key: &[u8]) -> Needs {
        let hash = self.tables.locks.hash(key);
        let entry = self.tables.locks.find(hash, key);
        entry.map_or_else(Needs::default, |entry| {
            let deadline = self.tables.locks.entries[entry].deadline;
            self.needs(entry, deadline.millis_since_ceil(now))
        })
    }

    /// What has to be durable before a reply tells that a key is free.
    pub(super) fn needs_of_free_key(&self, key: &[u8]) -> Needs {
        Needs {
            lease_ms: 0,
            change: self.recorder.pending_of(key),
        }
    }

    /// A DLM lease began or became longer, by a request for `lease_ms`: records it if
    /// that takes a record.
    pub(super) fn record(&mut self, now: Time, entry: u32, lease_ms: u64) {
        let fields = &self.tables.locks.entries[entry];
        if !fields.is_recorded && !self.recorder.records(lease_ms) {
            return;
        }
        let Some(owner) = self
            .tables
            .locks
            .side(entry)
            .and_then(|side| side.dlm_owner.as_ref())
        else {
            unreachable!("only leases of DLM holders are as long as that");
        };
        let (id, name) = owner.parts();
        let record = LeaseRecord {
            key: fields.key.as_bytes().into(),
            id: id.into(),
            name: name.map(Into::into),
            deadline: fields.deadline,
            length_ms: fields.deadline.millis_since_ceil(now),
        };
        self.recorder.change(RecordChange::Set(record));
        self.tables.locks.entries[entry].is_recorded = true;
    }

    /// The lease of `entry` has ended, and the grace after it: so does its record.
    pub(super) fn end_record(&mut self, entry: u32) {
        let fields = &mut self.tables.locks.entries[entry];
        if std::mem::take(&mut fields.is_recorded) {
            let key = fields.key.as_bytes().into();
            self.recorder.change(RecordChange::Remove { key });
        }
    }

    /// Whether nothing is known of a key that has no entry: it may still be held from
    /// before the start.
    #[inline]
    pub(super) fn is_in_grace(&self, now: Time) -> bool {
        now < self.grace_end
    }

    /// Whether the key of `entry` has one only because somebody waits for what is not known.
    pub(super) fn is_unknown(&self, entry: u32) -> bool {
        self.tables.locks.entries[entry].is_unknown()
    }

    /// An entry for a key of which nothing is known, so that somebody can wait for it.
    pub(super) fn insert_unknown(&mut self, (hash, key): (KeyHash, &[u8])) -> u32 {
        let entry = self.tables.locks.insert(hash, key);
        self.set_deadline(entry, self.grace_end);
        entry
    }

    /// Removes the entry of an unknown key for which nobody waits any more. Returns
    /// whether it was one.
    pub(super) fn drop_unknown(&mut self, entry: u32) -> bool {
        let is_idle = self.is_unknown(entry) && self.tables.locks.entries[entry].side == NONE;
        if is_idle {
            self.disarm_lease(entry);
            self.tables.locks.remove(entry);
        }
        is_idle
    }

    /// Until when the next start has to wait, whatever is recorded: the end of the longest
    /// lease that is not, or of this start's own grace. Walks all keys.
    pub fn last_deadline(&self) -> Time {
        self.tables
            .locks
            .entries
            .iter()
            .filter(|(_, entry)| !entry.is_recorded)
            .map(|(_, entry)| entry.deadline)
            .fold(self.grace_end, Time::max)
    }
}
