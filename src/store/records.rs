//! The leases that are recorded one by one, in a small database file.
//!
//! After a failure the file's state is not known: what the kernel holds in memory may
//! differ from the disk, and a later sync would not mend that (fsync(2)). So whatever a
//! process finds, or has failed to write, goes to a new file that then takes the old
//! one's place.

use std::io;
use std::path::PathBuf;

use redb::{Database, ReadableDatabase as _, ReadableTable as _, StorageBackend};
use redb::{TableDefinition, TableHandle as _};

use super::StoreError;
use super::boot::Boot;
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

/// Where the database is.
pub trait Place {
    /// A file with the database in it.
    type Backend: StorageBackend;

    /// The file that is there; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be opened.
    fn current(&mut self) -> io::Result<Option<Self::Backend>>;

    /// A new, empty file aside.
    ///
    /// # Errors
    /// It cannot be made.
    fn draft(&mut self) -> io::Result<Self::Backend>;

    /// Puts the draft, which is synced, in place of the file: when this returns that is
    /// durable, and before a crash leaves the one or the other.
    ///
    /// # Errors
    /// Either may be there.
    fn install(&mut self) -> io::Result<()>;

    /// What the file is called in messages.
    fn path(&self) -> PathBuf;
}

/// The records, open for changes.
#[derive(Debug)]
pub struct Records<P> {
    place: P,
    boot: Boot,
    /// `None` after a failure.
    database: Option<Database>,
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
    /// Reads what is recorded; leases that were over before `now` for longer than
    /// `expiry_grace_ms` are forgotten. What another boot recorded gets its full length
    /// from `now` on, since nobody knows how long the machine was off.
    ///
    /// # Errors
    /// See [`RecordsError`].
    pub fn open(
        mut place: P,
        boot: Boot,
        now: Time,
        expiry_grace_ms: u64,
    ) -> Result<(Records<P>, Vec<LeaseRecord>), RecordsError> {
        let mut records = Vec::new();
        if let Some((recorded_in, found)) = read_current(&mut place)? {
            records = found;
            if recorded_in == boot {
                let counts_until = |it: &LeaseRecord| it.deadline.plus_millis(expiry_grace_ms);
                records.retain(|record| counts_until(record) > now);
            } else {
                for record in &mut records {
                    record.deadline = now.plus_millis(record.length_ms);
                }
            }
        }
        let database = build(&mut place, &boot, &records)?;
        let opened = Records {
            place,
            boot,
            database: Some(database),
        };
        Ok((opened, records))
    }

    /// Makes changes durable, all or none.
    ///
    /// # Errors
    /// See [`RecordsError`]; all or none of them may be there after a crash. Trying
    /// again is right.
    pub fn commit(&mut self, changes: &[RecordChange]) -> Result<(), RecordsError> {
        // Put back only when nothing failed: this one may not know what the disk has.
        let database = match self.database.take() {
            Some(database) => database,
            None => self.rebuild()?,
        };
        apply(&database, changes)?;
        self.database = Some(database);
        Ok(())
    }

    /// What is to be told of an error of these records.
    pub(super) fn store_error(&self, error: RecordsError) -> StoreError {
        let path = self.place.path();
        StoreError::Records { path, error }
    }

    /// A new file with what the old one holds.
    fn rebuild(&mut self) -> Result<Database, RecordsError> {
        let found = read_current(&mut self.place)?;
        let (_, records) = found.ok_or(RecordsError::Io("it is gone".into()))?;
        build(&mut self.place, &self.boot, &records)
    }
}

fn builder() -> redb::Builder {
    let mut builder = Database::builder();
    builder.set_cache_size(CACHE_BYTES);
    builder
}

/// What the file holds, every page of it checked, and in which boot that was written.
fn read_current<P: Place>(place: &mut P) -> Result<Option<(Boot, Vec<LeaseRecord>)>, RecordsError> {
    let Some(backend) = place.current().map_err(io_error)? else {
        return Ok(None);
    };
    // An empty file would be taken for a new database.
    if backend.len().map_err(io_error)? == 0 {
        return Err(RecordsError::Corrupted("it is empty".into()));
    }
    let database = builder()
        .set_check_integrity_on_open(true)
        .create_with_backend(backend)
        .map_err(fault)?;
    let read = database.begin_read().map_err(fault)?;
    for table in read.list_tables().map_err(fault)? {
        if ![LEASES.name(), ABOUT.name()].contains(&table.name()) {
            return Err(RecordsError::UnknownVersion(format!(
                "table {}",
                table.name()
            )));
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

/// Puts a new file with these records in the place of the one that is there.
fn build<P: Place>(
    place: &mut P,
    boot: &Boot,
    records: &[LeaseRecord],
) -> Result<Database, RecordsError> {
    let backend = place.draft().map_err(io_error)?;
    let database = builder().create_with_backend(backend).map_err(fault)?;
    let mut write = database.begin_write().map_err(fault)?;
    // The records that were told of are never rolled back to older ones.
    write.set_two_phase_commit(true);
    {
        let mut about = write.open_table(ABOUT).map_err(fault)?;
        about.insert(VERSION_FIELD, VERSION).map_err(fault)?;
        about.insert(BOOT_FIELD, boot.name()).map_err(fault)?;
        let mut leases = write.open_table(LEASES).map_err(fault)?;
        for record in records {
            leases.insert(&*record.key, row(record)).map_err(fault)?;
        }
    }
    write.commit().map_err(fault)?;
    place.install().map_err(io_error)?;
    Ok(database)
}

fn apply(database: &Database, changes: &[RecordChange]) -> Result<(), RecordsError> {
    let mut write = database.begin_write().map_err(fault)?;
    write.set_two_phase_commit(true);
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
