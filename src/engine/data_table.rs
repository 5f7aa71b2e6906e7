//! The data slots of DLM names: a value, whose it is, and when it ends.

use super::dlm::{DlmHolder, DlmOwner};
use super::key::Key;
use super::key_index::{KeyHash, KeyIndex};
use super::paged_slab::PagedSlab;
use super::time::Time;
use super::timer_wheel::TimerLinks;

/// All data slots that hold something.
#[derive(Debug)]
pub(super) struct DataTable {
    pub(super) records: PagedSlab<DataRecord>,
    index: KeyIndex,
    /// What the records own outside the slab.
    boxed_bytes: u64,
}

/// One data slot.
#[derive(Debug)]
pub(super) struct DataRecord {
    key: Key,
    pub(super) owner: Box<DlmOwner>,
    pub(super) value: Box<str>,
    /// When the value's life is over.
    pub(super) deadline: Time,
    pub(super) timer: TimerLinks,
}

impl DataRecord {
    fn boxed_bytes(&self) -> u64 {
        Key::boxed_bytes(self.key.as_bytes().len())
            + self.owner.memory_bytes()
            + self.value.len() as u64
    }
}

impl DataTable {
    pub(super) fn new(hash_seed: u64) -> DataTable {
        DataTable {
            records: PagedSlab::new(),
            index: KeyIndex::new(hash_seed, 0),
            boxed_bytes: 0,
        }
    }

    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        self.index.hash(key)
    }

    pub(super) fn find(&self, hash: KeyHash, key: &[u8]) -> Option<u32> {
        self.index
            .find(hash, |record| self.records[record].key.as_bytes() == key)
    }

    /// Fills the empty slot of `key`; its timer is not armed.
    pub(super) fn insert(
        &mut self,
        (hash, key): (KeyHash, &[u8]),
        holder: DlmHolder<'_>,
        value: Box<str>,
    ) -> u32 {
        let record = DataRecord {
            key: Key::new(key),
            owner: holder.into(),
            value,
            deadline: Time::ZERO,
            timer: TimerLinks::UNARMED,
        };
        self.boxed_bytes += record.boxed_bytes();
        let record = self.records.insert(record);
        self.index.insert(hash, record);
        record
    }

    pub(super) fn replace(&mut self, record: u32, value: Box<str>) {
        self.boxed_bytes += value.len() as u64;
        let replaced = std::mem::replace(&mut self.records[record].value, value);
        self.boxed_bytes -= replaced.len() as u64;
    }

    /// Empties the slot of `record`, whose timer is not armed.
    pub(super) fn remove(&mut self, record: u32) {
        let removed = self.records.remove(record);
        self.index
            .remove(self.index.hash(removed.key.as_bytes()), record);
        self.boxed_bytes -= removed.boxed_bytes();
    }

    /// Bytes that a record of this key, owner and value would add.
    pub(super) fn growth_bytes(
        &self,
        (hash, key): (KeyHash, &[u8]),
        holder: DlmHolder<'_>,
        value: &str,
    ) -> u64 {
        self.records.growth_bytes()
            + self.index.growth_bytes(hash)
            + Key::boxed_bytes(key.len())
            + holder.owner_bytes()
            + value.len() as u64
    }

    pub(super) fn memory_bytes(&self) -> u64 {
        self.records.memory_bytes() + self.index.memory_bytes() + self.boxed_bytes
    }

    /// Panics if the bookkeeping contradicts itself. Walks everything.
    pub(super) fn invariants(&self) {
        self.records.invariants();
        self.index.invariants();
        assert_eq!(self.index.count(), self.records.len() as usize);
        let mut boxed_bytes = 0;
        for (index, record) in self.records.iter() {
            let key = record.key.as_bytes();
            assert_eq!(self.find(self.hash(key), key), Some(index));
            boxed_bytes += record.boxed_bytes();
        }
        assert_eq!(self.boxed_bytes, boxed_bytes);
    }
}
