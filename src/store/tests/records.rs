//! Records on a disk that loses, tears and refuses, and in files that are damaged.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fastrand::Rng;
use redb::StorageBackend;

use crate::durability::{LeaseRecord, RecordChange};
use crate::engine::time::Time;
use crate::store::boot::Boot;
use crate::store::records::{Place, Records, RecordsError};

const NOW: Time = Time::from_millis(1000);

/// A file of a disk, which outlives those who use it.
#[derive(Clone, Debug)]
struct Disk(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    on_disk: Option<Vec<u8>>,
    cached: Option<Vec<u8>>,
    /// Where what is cached may not be on the disk; of a replaced file everywhere.
    unsynced: Vec<(usize, usize)>,
    is_renamed: bool,
    rng: Rng,
    steps: u32,
    stop_at: Option<u32>,
    fail_at: Option<u32>,
}

impl Disk {
    fn new(seed: u64) -> Disk {
        Disk(Arc::new(Mutex::new(Inner {
            on_disk: None,
            cached: None,
            unsynced: Vec::new(),
            is_renamed: false,
            rng: Rng::with_seed(seed),
            steps: 0,
            stop_at: None,
            fail_at: None,
        })))
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose_power(&self) {
        let mut inner = self.lock();
        inner.settle();
        inner.cached = inner.on_disk.clone();
    }
}

impl Inner {
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        let is_stopped = self.stop_at.is_some_and(|at| self.steps >= at);
        if is_stopped || self.fail_at == Some(self.steps) {
            return Err(io::Error::other("the disk has failed"));
        }
        Ok(())
    }

    /// Decides what is left of what is not synced: any of the 512-byte sectors, and of
    /// a file that was replaced, all of it or nothing.
    fn settle(&mut self) {
        let mut rng = self.rng.fork();
        self.keep(|| rng.bool());
    }

    fn keep(&mut self, mut is_kept: impl FnMut() -> bool) {
        let unsynced = std::mem::take(&mut self.unsynced);
        if std::mem::take(&mut self.is_renamed) {
            if is_kept() {
                self.on_disk = self.cached.clone();
            }
            return;
        }
        let (Some(on_disk), Some(cached)) = (&mut self.on_disk, &self.cached) else {
            return;
        };
        on_disk.resize(cached.len(), 0);
        for (start, end) in unsynced {
            let mut at = start;
            while at < end {
                let sector_end = (at / 512 + 1) * 512;
                let end = sector_end.min(end);
                if is_kept() {
                    on_disk[at..end].copy_from_slice(&cached[at..end]);
                }
                at = end;
            }
        }
    }
}

impl Place for Disk {
    type Backend = Disk;

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(self.lock().cached.clone())
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        inner.step()?;
        inner.settle();
        inner.cached = Some(bytes.to_vec());
        inner.is_renamed = true;
        inner.step()?;
        inner.on_disk = inner.cached.clone();
        inner.is_renamed = false;
        Ok(())
    }

    fn open(&mut self) -> io::Result<Disk> {
        let mut inner = self.lock();
        assert!(!inner.is_renamed, "the file may not be there");
        inner.step()?;
        Ok(self.clone())
    }

    fn remove(&mut self) -> io::Result<()> {
        let mut inner = self.lock();
        inner.step()?;
        inner.settle();
        inner.cached = None;
        inner.is_renamed = true;
        Ok(())
    }

    fn path(&self) -> PathBuf {
        "a-file".into()
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().cached.as_ref().map_or(0, Vec::len) as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let inner = self.lock();
        let cached = inner.cached.as_deref().unwrap_or(&[]);
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let read = cached.get(start..start + out.len());
        out.copy_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let mut inner = self.lock();
        inner.step()?;
        let length = usize::try_from(length).map_err(io::Error::other)?;
        inner.unsynced.retain(|(_, end)| *end <= length);
        if let Some(cached) = &mut inner.cached {
            cached.resize(length, 0);
        }
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut inner = self.lock();
        let outcome = inner.step();
        // Reads still see what could not be written, and no later sync tries again.
        match outcome {
            Ok(()) => inner.keep(|| true),
            Err(_) => inner.settle(),
        }
        outcome
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut inner = self.lock();
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start + data.len();
        if let Some(cached) = &mut inner.cached {
            cached[start..end].copy_from_slice(data);
        }
        inner.unsynced.push((start, end));
        inner.step()
    }
}

type Model = BTreeMap<Box<[u8]>, LeaseRecord>;

fn record(key: &str, length_ms: u64) -> LeaseRecord {
    LeaseRecord {
        key: key.as_bytes().into(),
        id: format!("id of {key}").into(),
        name: length_ms.is_multiple_of(2).then(|| "name".into()),
        deadline: NOW.plus_millis(length_ms),
        length_ms,
    }
}

fn random_changes(rng: &mut Rng) -> Vec<RecordChange> {
    let change = |_| {
        let key = format!("key {}", rng.u8(..5));
        match rng.u8(..3) {
            0 => RecordChange::Remove {
                key: key.into_bytes().into(),
            },
            _ => RecordChange::Set(record(&key, rng.u64(400_000..500_000))),
        }
    };
    (0..4).map(change).collect()
}

fn apply(model: &mut Model, change: &RecordChange) {
    match change {
        RecordChange::Set(record) => model.insert(record.key.clone(), record.clone()),
        RecordChange::Remove { key } => model.remove(key),
    };
}

fn open(disk: &Disk) -> Result<(Records<Disk>, Model), RecordsError> {
    let (records, found) = Records::open(disk.clone(), Boot::named("boot"), NOW, 0)?;
    let keyed = found.into_iter().map(|record| (record.key.clone(), record));
    Ok((records, keyed.collect()))
}

/// Servers that commit, and go on after failures; the disk stops for one of them at a
/// step, or fails at it once. Returns how many steps there were.
fn history(seed: u64, stop_at: Option<u32>, fail_at: Option<u32>) -> u32 {
    let disk = Disk::new(seed);
    let mut rng = Rng::with_seed(seed);
    // What is durable, and after that what may be.
    let mut possible = vec![Model::new()];
    disk.lock().stop_at = stop_at;
    disk.lock().fail_at = fail_at;
    for _ in 0..3 {
        let (mut records, found) = open(&disk).expect("crashes corrupt nothing");
        assert!(
            possible.contains(&found),
            "{seed} {stop_at:?} {fail_at:?}: {found:?} is none of {possible:?}"
        );
        possible = vec![found.clone()];
        let mut wanted = found;
        let recorded: Vec<LeaseRecord> = wanted.values().cloned().collect();
        if records.settle(&recorded).is_ok() {
            let mut changes = BTreeMap::new();
            for _ in 0..4 {
                // What has failed is in what is tried next, unless it has changed since.
                for change in random_changes(&mut rng) {
                    apply(&mut wanted, &change);
                    changes.insert(change.key().to_vec(), change);
                }
                possible.push(wanted.clone());
                let tried: Vec<RecordChange> = changes.values().cloned().collect();
                if records.commit(&tried).is_ok() {
                    possible = vec![wanted.clone()];
                    changes.clear();
                }
            }
        }
        drop(records);
        if rng.bool() {
            disk.lose_power();
        }
        let mut inner = disk.lock();
        if inner.stop_at.is_some_and(|at| inner.steps >= at) {
            inner.stop_at = None;
        }
    }
    disk.lock().steps
}

#[test]
fn what_was_committed_is_there_after_a_crash_and_no_half_of_what_was_not() {
    for seed in 0..2 {
        let steps = history(seed, None, None);
        for at in 1..=steps {
            history(seed, Some(at), None);
            history(seed, None, Some(at));
        }
    }
}

fn disk_with(records: &[LeaseRecord]) -> Disk {
    let disk = Disk::new(1);
    let (mut store, _) = open(&disk).expect("there is nothing yet");
    let set: Vec<RecordChange> = records.iter().cloned().map(RecordChange::Set).collect();
    store.commit(&set[..1]).expect("the disk works");
    store.commit(&set[1..]).expect("the disk works");
    // Not closed: what a crash leaves.
    let left = disk.lock().on_disk.clone();
    drop(store);
    disk.lock().cached = left;
    disk
}

fn reopened(disk: &Disk, boot: &str, now: Time, grace_ms: u64) -> Vec<LeaseRecord> {
    let opened = Records::open(disk.clone(), Boot::named(boot), now, grace_ms);
    opened.expect("the file is whole").1
}

#[test]
fn without_records_there_is_no_file() {
    let disk = Disk::new(1);
    let (mut records, _) = open(&disk).expect("there is nothing yet");
    records.settle(&[]).expect("the disk works");
    assert_eq!(disk.lock().steps, 0);
    let change = RecordChange::Set(record("a", 400_000));
    records.commit(&[change]).expect("the disk works");
    drop(records);
    assert!(disk.lock().on_disk.is_some());
    let (mut records, _) = open(&disk).expect("the file is whole");
    records.settle(&[]).expect("the disk works");
    assert!(disk.lock().cached.is_none());
}

#[test]
fn leases_of_this_boot_are_back_until_they_are_over() {
    let leases = [record("a", 400_000), record("b", 500_000)];
    let disk = disk_with(&leases);
    for (now_ms, grace_ms, expected) in [
        (1_000, 0, &leases[..]),
        (400_999, 0, &leases[..]),
        (401_000, 0, &leases[1..]),
        (401_049, 50, &leases[..]),
        (401_050, 50, &leases[1..]),
        (501_000, 0, &[]),
    ] {
        let found = reopened(&disk, "boot", Time::from_millis(now_ms), grace_ms);
        assert_eq!(found, expected, "at {now_ms} ms");
    }
}

#[test]
fn on_another_boot_a_lease_counts_in_full() {
    let disk = disk_with(&[record("a", 400_000), record("b", 500_000)]);
    for now_ms in [1, 1_000_000_000] {
        let now = Time::from_millis(now_ms);
        let found = reopened(&disk, "another", now, 0);
        let deadlines: Vec<Time> = found.iter().map(|it| it.deadline).collect();
        let expected = [400_000, 500_000].map(|length_ms| now.plus_millis(length_ms));
        assert_eq!(deadlines, expected);
    }
}

#[test]
fn once_settled_they_are_of_this_boot() {
    let disk = disk_with(&[record("a", 400_000), record("b", 500_000)]);
    let now = Time::from_millis(7);
    let opened = Records::open(disk.clone(), Boot::named("another"), now, 0);
    let (mut records, found) = opened.expect("the file is whole");
    records.settle(&found).expect("the disk works");
    drop(records);
    disk.lose_power();
    assert_eq!(reopened(&disk, "another", Time::from_millis(99), 0), found);
}

#[test]
fn no_damage_to_the_file_makes_fewer_or_other_records_of_it() {
    let leases = [record("a", 400_000), record("b", 500_000)];
    let disk = disk_with(&leases);
    let whole = disk.lock().cached.clone().expect("there is a file");
    let mut rng = Rng::with_seed(1);
    let header = (0..320 * 8).step_by(5);
    let anywhere = (0..1_000).map(|_| rng.usize(..whole.len() * 8));
    let mut refused = 0;
    for bit in header.chain(anywhere.collect::<Vec<_>>()) {
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        disk.lock().cached = Some(bytes);
        match Records::open(disk.clone(), Boot::named("boot"), NOW, 0) {
            Ok((_, found)) => assert_eq!(found, leases, "bit {bit}"),
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 0, "some of them matter");
    for length in [0, 1, 100, whole.len() / 2, whole.len() - 1] {
        disk.lock().cached = Some(whole[..length].to_vec());
        let opened = Records::open(disk.clone(), Boot::named("boot"), NOW, 0);
        assert!(opened.is_err(), "{length} bytes are left");
    }
}

#[test]
fn what_another_version_wrote_is_left_alone() {
    use redb::{Database, TableDefinition};
    let about: TableDefinition<'_, &str, &str> = TableDefinition::new("about");
    let other: TableDefinition<'_, u64, u64> = TableDefinition::new("other");
    for case in ["version", "no version", "table"] {
        let mut disk = disk_with(&[record("a", 400_000), record("b", 500_000)]);
        let database = Database::builder()
            .create_with_backend(disk.open().expect("the disk works"))
            .expect("the file is whole");
        let write = database.begin_write().expect("the file is whole");
        match case {
            "table" => drop(write.open_table(other)),
            _ => {
                let mut table = write.open_table(about).expect("it is there");
                match case {
                    "version" => table.insert("version", "2"),
                    _ => table.remove("version"),
                }
                .expect("the file is whole");
            }
        }
        write.commit().expect("the disk works");
        drop(database);
        let opened = Records::open(disk.clone(), Boot::named("boot"), NOW, 0);
        let error = opened.map(|(_, found)| found).expect_err("it is unknown");
        assert!(matches!(error, RecordsError::UnknownVersion(_)), "{error}");
    }
}
