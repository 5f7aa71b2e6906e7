//! From a key's hash to the slab index of what is kept under that key.
//!
//! Many small tables, chosen by hash bits, each growing by itself: one growth
//! touches a thousandth of the keys, and none of the items, since the hash is
//! kept in the bucket. *One table of 10 million keys would stall the loop for
//! hundreds of milliseconds when it grows.*
//!
//! A table is probed linearly, and a removal shifts back what comes after it: no
//! marks of removed buckets pile up that a pause would have to clean away, and a
//! lookup touches one cache line as a rule. *With a table whose tags lie apart from
//! its buckets it is two, and a lookup is hardly more than these misses.*

use super::paged_slab::NONE;
use foldhash::{SharedSeed, quality::FoldHasher};
use std::hash::Hasher;

const TABLE_BITS: u32 = 10;
const TABLES: usize = 1 << TABLE_BITS;

/// The index of one slab, of items that know their own keys.
#[derive(Debug)]
pub(super) struct KeyIndex {
    tables: Box<[Table]>,
    /// Buckets that a table never gives back.
    min_buckets: usize,
    buckets: u64,
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

#[derive(Debug)]
struct Table {
    /// None, or a power of two of them, at most three quarters in use.
    buckets: Box<[Bucket]>,
    len: usize,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    hash: u32,
    /// [`NONE`] in an empty bucket.
    item: u32,
}

impl KeyIndex {
    /// An empty index whose every table has `min_buckets`, 0 or a power of two,
    /// from the start.
    pub(super) fn new(hash_seed: u64, min_buckets: usize) -> KeyIndex {
        KeyIndex {
            tables: (0..TABLES).map(|_| Table::new(min_buckets)).collect(),
            min_buckets,
            buckets: (TABLES * min_buckets) as u64,
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
        let table = &self.tables[usize::from(hash.table)];
        let place = table.find(hash.bits, is_it)?;
        Some(table.buckets[place].item)
    }

    /// Reads the bucket where a search for this hash begins, so that the search
    /// finds it in the cache. *Nothing waits for what is read: the misses of several
    /// such reads in a row overlap.*
    pub(super) fn prefetch(&self, hash: KeyHash) {
        let table = &self.tables[usize::from(hash.table)];
        let home = table.wrap(hash.bits as usize);
        std::hint::black_box(table.buckets.get(home).map(|bucket| bucket.item));
    }

    /// Adds `item`, whose key is not in the index.
    pub(super) fn insert(&mut self, hash: KeyHash, item: u32) {
        let table = &mut self.tables[usize::from(hash.table)];
        if table.is_full() {
            let buckets = table.buckets_when_grown();
            self.buckets += (buckets - table.buckets.len()) as u64;
            table.resize(buckets);
        }
        table.insert(Bucket {
            hash: hash.bits,
            item,
        });
    }

    /// Takes `item`, which is in the index under this hash, out of it.
    pub(super) fn remove(&mut self, hash: KeyHash, item: u32) {
        let table = &mut self.tables[usize::from(hash.table)];
        let place = table
            .find(hash.bits, |found| found == item)
            .expect("an item leaves the index under the hash it entered with");
        table.remove(place);
        // Down to a quarter full when a tenth is used: both the next growth and the
        // next shrinking are then many insertions or removals away.
        let buckets = table.buckets.len();
        if table.len * 10 <= buckets && buckets > self.min_buckets {
            let wanted = match table.len {
                0 => self.min_buckets,
                len => (len * 4).next_power_of_two().max(self.min_buckets),
            };
            if wanted < buckets {
                self.buckets -= (buckets - wanted) as u64;
                table.resize(wanted);
            }
        }
    }

    /// Bytes that inserting a key of this hash will allocate.
    pub(super) fn growth_bytes(&self, hash: KeyHash) -> u64 {
        let table = &self.tables[usize::from(hash.table)];
        if table.is_full() {
            (table.buckets_when_grown() * size_of::<Bucket>()) as u64
        } else {
            0
        }
    }

    /// Bytes allocated.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.buckets * size_of::<Bucket>() as u64 + (TABLES * size_of::<Table>()) as u64
    }

    /// Number of keys. Walks all tables.
    pub(super) fn count(&self) -> usize {
        self.tables.iter().map(|table| table.len).sum()
    }

    /// Panics if the bookkeeping contradicts itself. Walks everything.
    pub(super) fn invariants(&self) {
        let buckets: usize = self.tables.iter().map(|table| table.buckets.len()).sum();
        assert_eq!(self.buckets, buckets as u64);
        for table in self.tables.iter().filter(|table| table.len > 0) {
            table.invariants();
        }
    }
}

impl Bucket {
    const EMPTY: Bucket = Bucket {
        hash: 0,
        item: NONE,
    };

    fn is_empty(self) -> bool {
        self.item == NONE
    }
}

impl Table {
    fn new(buckets: usize) -> Table {
        Table {
            buckets: vec![Bucket::EMPTY; buckets].into(),
            len: 0,
        }
    }

    fn is_full(&self) -> bool {
        (self.len + 1) * 4 > self.buckets.len() * 3
    }

    fn buckets_when_grown(&self) -> usize {
        (self.buckets.len() * 2).max(8)
    }

    /// The bucket after `place`, or the home of a hash.
    fn wrap(&self, place: usize) -> usize {
        place & self.buckets.len().wrapping_sub(1)
    }

    fn find(&self, hash: u32, is_it: impl Fn(u32) -> bool) -> Option<usize> {
        let mut place = self.wrap(hash as usize);
        // In a table without buckets every place is past the end.
        while let Some(&bucket) = self.buckets.get(place) {
            if bucket.is_empty() {
                return None;
            }
            if bucket.hash == hash && is_it(bucket.item) {
                return Some(place);
            }
            place = self.wrap(place + 1);
        }
        None
    }

    fn insert(&mut self, bucket: Bucket) {
        let mut place = self.wrap(bucket.hash as usize);
        while !self.buckets[place].is_empty() {
            place = self.wrap(place + 1);
        }
        self.buckets[place] = bucket;
        self.len += 1;
    }

    /// Empties a bucket, and fills the hole with the next one that may lie there,
    /// until the hole is where no search passes.
    fn remove(&mut self, place: usize) {
        let mut hole = place;
        let mut next = place;
        loop {
            next = self.wrap(next + 1);
            let bucket = self.buckets[next];
            if bucket.is_empty() {
                break;
            }
            let from_home = self.wrap(next.wrapping_sub(bucket.hash as usize));
            let from_hole = self.wrap(next.wrapping_sub(hole));
            if from_home >= from_hole {
                self.buckets[hole] = bucket;
                hole = next;
            }
        }
        self.buckets[hole] = Bucket::EMPTY;
        self.len -= 1;
    }

    fn resize(&mut self, buckets: usize) {
        let old = std::mem::replace(self, Table::new(buckets));
        for &bucket in old.buckets.iter().filter(|bucket| !bucket.is_empty()) {
            self.insert(bucket);
        }
    }

    fn invariants(&self) {
        let used = self.buckets.iter().filter(|bucket| !bucket.is_empty());
        assert_eq!(self.len, used.count());
        assert!(self.len * 4 <= self.buckets.len() * 3);
        for (place, &bucket) in self.buckets.iter().enumerate() {
            if !bucket.is_empty() {
                let found = self.find(bucket.hash, |item| item == bucket.item);
                assert_eq!(found, Some(place), "a search reaches every bucket, once");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn bucket(hash: u32, item: u32) -> Bucket {
        Bucket { hash, item }
    }

    #[test]
    fn hashes_depend_on_the_seed_and_spread_over_the_tables() {
        let (one, other) = (KeyIndex::new(1, 0), KeyIndex::new(2, 0));
        let mut tables = [0; TABLES];
        let mut same = 0;
        for number in 0..100 * TABLES {
            let key = format!("key {number}");
            let hash = one.hash(key.as_bytes());
            tables[usize::from(hash.table)] += 1;
            same += usize::from(hash.table == other.hash(key.as_bytes()).table);
        }
        assert!(tables.iter().all(|&keys| (40..200).contains(&keys)));
        assert!(
            same < 400,
            "{same} of 102,400 keys share their table by chance"
        );
    }

    #[test]
    fn an_index_without_buckets_finds_nothing_and_grows_at_need() {
        let mut index = KeyIndex::new(1, 0);
        let hash = index.hash(b"k");
        let empty_bytes = index.memory_bytes();
        assert_eq!(index.find(hash, |_| true), None);
        assert_eq!(index.growth_bytes(hash), 64);
        index.insert(hash, 7);
        index.invariants();
        assert_eq!(index.memory_bytes(), empty_bytes + 64);
        assert_eq!(index.find(hash, |item| item == 7), Some(7));
        index.remove(hash, 7);
        index.invariants();
        assert_eq!(index.memory_bytes(), empty_bytes);
    }

    #[test]
    fn a_key_that_comes_and_goes_alone_never_resizes() {
        for others in 0..40 {
            let mut index = KeyIndex::new(1, 8);
            let hash = KeyHash { table: 3, bits: 5 };
            for item in 0..others {
                index.insert(
                    KeyHash {
                        table: 3,
                        bits: item,
                    },
                    item,
                );
            }
            index.insert(hash, others);
            let buckets = index.buckets;
            for _ in 0..3 {
                index.remove(hash, others);
                assert_eq!(index.buckets, buckets);
                index.insert(hash, others);
                assert_eq!(index.buckets, buckets);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// Hashes that crowd at the table's end and start, so that runs wrap around.
        #[test]
        fn behaves_like_a_map(moves in prop::collection::vec((any::<bool>(), 0..40_u32, any::<bool>()), 1..200)) {
            let mut index = KeyIndex::new(1, 8);
            let mut model = BTreeMap::new();
            for (number, (insert, key, crowd)) in moves.into_iter().enumerate() {
                let bits = if crowd { (key % 3).wrapping_sub(1) } else { key };
                let hash = KeyHash { table: 0, bits };
                let item = number as u32;
                match model.get(&key).copied() {
                    None if insert => {
                        index.insert(hash, item);
                        model.insert(key, (hash.bits, item));
                    }
                    Some((bits, item)) if !insert => {
                        index.remove(KeyHash { table: 0, bits }, item);
                        model.remove(&key);
                    }
                    _ => {}
                }
                index.tables[0].invariants();
                for &(bits, item) in model.values() {
                    let found = index.find(KeyHash { table: 0, bits }, |found| found == item);
                    prop_assert_eq!(found, Some(item));
                }
                prop_assert_eq!(index.count(), model.len());
            }
            index.invariants();
        }
    }

    #[test]
    fn removal_closes_the_gap_across_the_tables_end() {
        let mut table = Table::new(8);
        for (hash, item) in [(6, 0), (7, 1), (7, 2), (6, 3), (1, 4)] {
            table.insert(bucket(hash, item));
        }
        table.invariants();
        for item in [1, 0, 4, 2, 3] {
            let hashes = [6, 7, 7, 6, 1];
            let place = table.find(hashes[item as usize], |found| found == item);
            table.remove(place.expect("the item is there"));
            table.invariants();
        }
        assert_eq!(table.len, 0);
    }
}
