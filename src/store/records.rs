//! The leases that are recorded one by one, in a small database file. Where none is
//! recorded, there is no file.
//!
//! After a failure the file's state is not known: what the kernel holds in memory may
//! differ from the disk, and a later sync would not mend that (fsync(2)). So whatever a
//! process finds, or has failed to write, is read as a whole, and a new file takes its
//! place before it is written to.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend};
use redb::{TableDefinition, TableHandle as _};

use super::StoreError;
use super::boot::Boot;
use super::memory::Memory;
use crate::durability::{LeaseRecord, RecordChange};
use crate::engine::time::Time;

/// Deadline in nanoseconds, length in milliseconds, name, ID; by the key.
type Row<'a> = (u64, u64, Option<&'a str>, &'a str);
const LEASES: TableDefinition<'_, &[u8], Row<'static>> = TableDefinition::new("leases");

/// What the file says of itself.
const ABOUT: TableDefinition<'_, &str, &str> = TableDefinition::new("about");
const VERSION_FIELD: &str = "version";
const BOOT_FIELD: &str = "boot";
const VERSION: &str = "1";

/// The pages that are read again and again are few.
const CACHE_BYTES: usize = 4 << 20;

/// Where the file is.
pub trait Place {
    /// The file, to be written to in place.
    type Backend: StorageBackend;

    /// All that the file holds; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&mut self) -> io::Result<Option<Vec<u8>>>;

    /// Makes the file, or replaces it, as a whole: when this returns it is durable, and
    /// at any moment before, a failure's too, a crash leaves what was there or what is
    /// new.
    ///
    /// # Errors
    /// It may not be durable.
    fn replace(&mut self, bytes: &[u8]) -> io::Result<()>;

    /// Opens the file that was replaced.
    ///
    /// # Errors
    /// It cannot be opened.
    fn open(&mut self) -> io::Result<Self::Backend>;

    /// Removes the file; after a crash it may be back.
    ///
    /// # Errors
    /// It may still be there.
    fn remove(&mut self) -> io::Result<()>;

    /// What the file is called in messages.
    fn path(&self) -> PathBuf;
}

/// The records, open for changes.
#[derive(Debug)]
pub struct Records<P> {
    place: P,
    boot: Boot,
    file: RecordsFile,
}

#[derive(Debug)]
enum RecordsFile {
    /// There is none.
    Absent,
    /// It was replaced and has not been opened.
    Replaced,
    /// Nothing failed since it was replaced.
    Open(Database),
    /// It was found, or something failed: it has to be replaced.
    Doubtful,
}

/// Why records cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum RecordsError {
    /// Another version wrote them.
    #[error("has a format that this version of leasehold does not know ({0})")]
    UnknownVersion(String),
    /// They are not as they were written.
    #[error(
        "is corrupted ({0}), so it is not known what is still held; docs/operations.md says how to go on"
    )]
    Corrupted(String),
    /// The disk failed.
    #[error("cannot be used: {0}")]
    Io(String),
}

impl<P: Place> Records<P> {
    /// Reads what is recorded and changes nothing. Leases that were over before `now` for
    /// longer than `expiry_grace_ms` are left out. What another boot recorded gets its
    /// full length from `now` on, since nobody knows how long the machine was off.
    ///
    /// # Errors
    /// See [`RecordsError`].
    pub fn open(
        mut place: P,
        boot: Boot,
        now: Time,
        expiry_grace_ms: u64,
    ) -> Result<(Records<P>, Vec<LeaseRecord>), RecordsError> {
        let (file, mut records) = match read(&mut place)? {
            None => (RecordsFile::Absent, Vec::new()),
            Some((recorded_in, mut records)) => {
                if recorded_in != boot {
                    for record in &mut records {
                        record.deadline = now.plus_millis(record.length_ms);
                    }
                }
                (RecordsFile::Doubtful, records)
            }
        };
        records.retain(|record| record.deadline.plus_millis(expiry_grace_ms) > now);
        Ok((Records { place, boot, file }, records))
    }

    /// Makes the file say, durably, that these are the records of this boot.
    ///
    /// # Errors
    /// See [`RecordsError`].
    pub fn settle(&mut self, records: &[LeaseRecord]) -> Result<(), RecordsError> {
        let found = std::mem::replace(&mut self.file, RecordsFile::Doubtful);
        self.file = if !records.is_empty() {
            self.replace(records)?
        } else {
            if !matches!(found, RecordsFile::Absent) {
                self.place.remove().map_err(io_error)?;
            }
            RecordsFile::Absent
        };
        Ok(())
    }

    /// Makes changes durable, all or none.
    ///
    /// # Errors
    /// See [`RecordsError`]; all or none of them may be there after a crash. Trying
    /// again is right.
    pub fn commit(&mut self, changes: &[RecordChange]) -> Result<(), RecordsError> {
        // Until nothing has failed.
        let file = std::mem::replace(&mut self.file, RecordsFile::Doubtful);
        self.file = match file {
            RecordsFile::Open(database) => apply(database, changes)?,
            RecordsFile::Replaced => {
                let backend = self.place.open().map_err(io_error)?;
                let database = builder().create_with_backend(backend).map_err(fault)?;
                apply(database, changes)?
            }
            RecordsFile::Absent => self.replace_changed(Vec::new(), changes)?,
            RecordsFile::Doubtful => {
                let found = read(&mut self.place)?;
                let records = found.map_or_else(Vec::new, |(_, records)| records);
                self.replace_changed(records, changes)?
            }
        };
        Ok(())
    }

    /// What is to be told of an error of these records.
    pub(super) fn store_error(&self, error: RecordsError) -> StoreError {
        let path = self.place.path();
        StoreError::Records { path, error }
    }

    fn replace_changed(
        &mut self,
        records: Vec<LeaseRecord>,
        changes: &[RecordChange],
    ) -> Result<RecordsFile, RecordsError> {
        let keyed = records
            .into_iter()
            .map(|record| (record.key.clone(), record));
        let mut keyed: BTreeMap<_, _> = keyed.collect();
        for change in changes {
            match change {
                RecordChange::Set(record) => keyed.insert(record.key.clone(), record.clone()),
                RecordChange::Remove { key } => keyed.remove(key),
            };
        }
        let records: Vec<LeaseRecord> = keyed.into_values().collect();
        self.replace(&records)
    }

    fn replace(&mut self, records: &[LeaseRecord]) -> Result<RecordsFile, RecordsError> {
        let bytes = build(&self.boot, records)?;
        self.place.replace(&bytes).map_err(io_error)?;
        Ok(RecordsFile::Replaced)
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// What the file holds, every page of it checked, and in which boot that was written.
fn read<P: Place>(place: &mut P) -> Result<Option<(Boot, Vec<LeaseRecord>)>, RecordsError> {
    let Some(bytes) = place.read().map_err(io_error)? else {
        return Ok(None);
    };
    // It would be taken for a new database.
    if bytes.is_empty() {
        return Err(RecordsError::Corrupted("it is empty".into()));
    }
    // In memory, so that checking and repairing leaves the file as it was.
    let database = builder()
        .set_check_integrity_on_open(true)
        .create_with_backend(Memory::of_file(bytes))
        .map_err(fault)?;
    let read = database.begin_read().map_err(fault)?;
    for table in read.list_tables().map_err(fault)? {
        if ![LEASES.name(), ABOUT.name()].contains(&table.name()) {
            let name = table.name();
            return Err(RecordsError::UnknownVersion(format!("table {name}")));
        }
    }
    let about = read.open_table(ABOUT).map_err(fault)?;
    let field = |name| {
        let value = about.get(name).map_err(fault)?;
        let missing = || RecordsError::UnknownVersion(format!("no {name}"));
        value.map(|it| it.value().to_owned()).ok_or_else(missing)
    };
    let version = field(VERSION_FIELD)?;
    if version != VERSION {
        return Err(RecordsError::UnknownVersion(format!("version {version}")));
    }
    let boot = Boot::named(&field(BOOT_FIELD)?);
    let leases = read.open_table(LEASES).map_err(fault)?;
    let rows = leases.iter().map_err(fault)?;
    let records = rows.map(|row| {
        let (key, row) = row.map_err(fault)?;
        let (deadline_ns, length_ms, name, id) = row.value();
        Ok(LeaseRecord {
            key: key.value().into(),
            id: id.into(),
            name: name.map(Into::into),
            deadline: Time::from_nanos(deadline_ns),
            length_ms,
        })
    });
    Ok(Some((boot, records.collect::<Result<_, RecordsError>>()?)))
}

/// A whole file with these records in it.
fn build(boot: &Boot, records: &[LeaseRecord]) -> Result<Vec<u8>, RecordsError> {
    let memory = Memory::empty();
    let database = builder()
        .create_with_backend(memory.clone())
        .map_err(fault)?;
    let write = database.begin_write().map_err(fault)?;
    {
        let mut about = write.open_table(ABOUT).map_err(fault)?;
        about.insert(BOOT_FIELD, boot.name()).map_err(fault)?;
        let mut leases = write.open_table(LEASES).map_err(fault)?;
        for record in records {
            leases.insert(&*record.key, row(record)).map_err(fault)?;
        }
    }
    write.commit().map_err(fault)?;
    seal(&database)?;
    drop(database);
    Ok(memory.take())
}

fn apply(database: Database, changes: &[RecordChange]) -> Result<RecordsFile, RecordsError> {
    let write = database.begin_write().map_err(fault)?;
    {
        let mut leases = write.open_table(LEASES).map_err(fault)?;
        for change in changes {
            match change {
                RecordChange::Set(record) => leases.insert(&*record.key, row(record)),
                RecordChange::Remove { key } => leases.remove(&**key),
            }
            .map_err(fault)?;
        }
    }
    write.commit().map_err(fault)?;
    seal(&database)?;
    Ok(RecordsFile::Open(database))
}

/// Commits what is there once more. The file keeps the last two commits, and a byte
/// under no checksum says which of them counts: now it may say either. And the commit is
/// one in two phases, after which damage to it is an error, and no reason to go back to
/// what was before.
fn seal(database: &Database) -> Result<(), RecordsError> {
    let mut write = database.begin_write().map_err(fault)?;
    write.set_two_phase_commit(true);
    {
        let mut about = write.open_table(ABOUT).map_err(fault)?;
        about.insert(VERSION_FIELD, VERSION).map_err(fault)?;
    }
    write.commit().map_err(fault)
}

fn row(record: &LeaseRecord) -> Row<'_> {
    let deadline_ns = record.deadline.as_nanos();
    (
        deadline_ns,
        record.length_ms,
        record.name.as_deref(),
        &record.id,
    )
}

fn io_error(error: io::Error) -> RecordsError {
    RecordsError::Io(error.to_string())
}

fn fault(error: impl Into<redb::Error>) -> RecordsError {
    match error.into() {
        // The database's word for a file that is none.
        redb::Error::Io(error) if error.kind() == io::ErrorKind::InvalidData => {
            RecordsError::Corrupted(error.to_string())
        }
        redb::Error::Io(error) => io_error(error),
        error @ (redb::Error::PreviousIo | redb::Error::DatabaseAlreadyOpen) => {
            RecordsError::Io(error.to_string())
        }
        error @ (redb::Error::UpgradeRequired(_) | redb::Error::TableTypeMismatch { .. }) => {
            RecordsError::UnknownVersion(error.to_string())
        }
        error => RecordsError::Corrupted(error.to_string()),
    }
}
