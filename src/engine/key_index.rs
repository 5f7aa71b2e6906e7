//! From a key's hash to the slab index of what is kept under that key.
//!
//! Many small tables, chosen by hash bits, each growing by itself: one growth
//! touches a thousandth of the keys, and none of the items, since the hash is
//! kept in the bucket. *One table of 10 million keys would stall the loop for
//! hundreds of milliseconds when it grows.*

use foldhash::{SharedSeed, quality::FoldHasher};
use hashbrown::HashTable;
use std::hash::Hasher;

const TABLE_BITS: u32 = 10;
const TABLES: usize = 1 << TABLE_BITS;

/// The index of one slab, of items that know their own keys.
#[derive(Debug)]
pub(super) struct KeyIndex {
    tables: Box<[HashTable<Bucket>]>,
    /// Room that a table never gives back, in keys and in buckets.
    min_capacity: usize,
    min_buckets: usize,
    tables_bytes: u64,
    /// Everything the hash starts from is secret: with a known part, keys could
    /// be made that collide whatever the rest is.
    seed: u64,
    shared_seed: SharedSeed,
}

/// A key's hash under one index's seed.
#[derive(Clone, Copy, Debug)]
pub(super) struct KeyHash {
    table: u16,
    bits: u32,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    item: u32,
}

impl KeyIndex {
    /// An empty index whose every table has room for `min_capacity` keys from the start.
    pub(super) fn new(hash_seed: u64, min_capacity: usize) -> KeyIndex {
        let tables: Box<[HashTable<Bucket>]> = (0..TABLES)
            .map(|_| HashTable::with_capacity(min_capacity))
            .collect();
        KeyIndex {
            tables_bytes: tables.iter().map(table_bytes).sum(),
            min_buckets: tables[0].num_buckets(),
            tables,
            min_capacity,
            seed: hash_seed,
            shared_seed: SharedSeed::from_u64(hash_seed.rotate_left(32)),
        }
    }

    pub(super) fn hash(&self, key: &[u8]) -> KeyHash {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared_seed);
        hasher.write(key);
        let hash = hasher.finish();
        KeyHash {
            table: (hash >> (64 - TABLE_BITS)) as u16,
            bits: hash as u32,
        }
    }

    /// The item under the key with this hash that `is_it` recognises.
    pub(super) fn find(&self, hash: KeyHash, is_it: impl Fn(u32) -> bool) -> Option<u32> {
        self.tables[usize::from(hash.table)]
            .find(spread(hash.bits), |bucket| {
                bucket.hash == hash.bits && is_it(bucket.item)
            })
            .map(|bucket| bucket.item)
    }

    /// Adds `item`, whose key is not in the index.
    pub(super) fn insert(&mut self, hash: KeyHash, item: u32) {
        let table = &mut self.tables[usize::from(hash.table)];
        let bucket = Bucket {
            hash: hash.bits,
            item,
        };
        if table.len() < table.capacity() {
            table.insert_unique(spread(hash.bits), bucket, rehash);
            return;
        }
        let before_bytes = table_bytes(table);
        table.insert_unique(spread(hash.bits), bucket, rehash);
        self.tables_bytes += table_bytes(table) - before_bytes;
    }

    /// Takes `item`, which is in the index under this hash, out of it.
    pub(super) fn remove(&mut self, hash: KeyHash, item: u32) {
        let table = &mut self.tables[usize::from(hash.table)];
        match table.find_entry(spread(hash.bits), |bucket| bucket.item == item) {
            Ok(found) => found.remove(),
            Err(_) => panic!("an item leaves the index under the hash it entered with"),
        };
        // Shrinks when a tenth is used, to twice what is used: both the next growth
        // and the next shrinking are then many insertions or removals away.
        // (`capacity` would not do here, it leaves out places of removed buckets.)
        if table.len() * 10 <= table.num_buckets() && table.num_buckets() > self.min_buckets {
            let before_bytes = table_bytes(table);
            table.shrink_to(self.min_capacity.max(table.len() * 2), rehash);
            self.tables_bytes -= before_bytes - table_bytes(table);
        }
    }

    /// About the bytes that inserting a key of this hash will allocate.
    pub(super) fn growth_bytes(&self, hash: KeyHash) -> u64 {
        let table = &self.tables[usize::from(hash.table)];
        if table.len() < table.capacity() {
            return 0;
        }
        (table.allocation_size() as u64).max(SMALLEST_TABLE_BYTES)
    }

    /// Bytes allocated.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.tables_bytes
    }

    /// Number of keys. Walks all tables.
    pub(super) fn count(&self) -> usize {
        self.tables.iter().map(HashTable::len).sum()
    }

    /// Panics if the bookkeeping contradicts itself.
    pub(super) fn invariants(&self) {
        assert_eq!(
            self.tables_bytes,
            self.tables.iter().map(table_bytes).sum::<u64>()
        );
    }
}

/// At least what the first allocation of a table takes.
const SMALLEST_TABLE_BYTES: u64 = 64;

fn table_bytes(table: &HashTable<Bucket>) -> u64 {
    (table.allocation_size() + size_of::<HashTable<Bucket>>()) as u64
}

fn rehash(bucket: &Bucket) -> u64 {
    spread(bucket.hash)
}

/// A table takes the bucket from the low bits and a tag from the high ones.
fn spread(hash: u32) -> u64 {
    u64::from(hash) << 32 | u64::from(hash)
}
