//! What survives a restart, so that none grants twice: D, the token mark, how the last
//! server ended, and the leases that are recorded one by one (see
//! [`crate::durability`] for what loops and the store tell each other).
//!
//! [`Store::open`] takes the directory, decides how long nothing may be granted, and
//! makes durable that the end is unclean from here on. [`Store::start`] then gives all
//! writing to one thread, and each loop a [`StorePort`] to it. [`StoreHandle::finish`]
//! makes the end a clean one.

pub mod boot;
pub mod copies;
pub mod core;
pub mod directory;
pub mod format;
mod memory;
pub mod records;
pub mod start;
mod thread;
mod writer;

pub use thread::{StoreHandle, StorePort};

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use log::warn;

use self::boot::Boot;
use self::copies::{Copies, LoadError, WriteError};
use self::core::StoreCore;
use self::directory::{Directory, LeasesFile, StateFiles};
use self::records::{Place as _, Records, RecordsError};
use self::start::Start;
use self::writer::Writer;
use crate::clock;
use crate::durability::{Durable, LeaseRecord};
use crate::engine::time::Time;

/// What a store is opened with.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Where everything is; made if it is missing.
    pub directory: PathBuf,
    /// How many loops there are.
    pub loops: u16,
    /// The cap on D: longer leases are recorded one by one, in milliseconds.
    pub cap_ms: u64,
    /// How long a lease that is over still counts, in milliseconds.
    pub expiry_grace_ms: u64,
    /// Nothing is waited for, whatever may still be held: the operator knows better.
    /// It is the caller's to log.
    pub skip_grace: bool,
}

/// What a server starts with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// What every loop starts with.
    pub durable: Durable,
    /// No token below it may be given out.
    pub first_token: u64,
    /// The leases that are recorded one by one and may still be held, with deadlines of
    /// this boot; some may be over, but not for longer than the expiry grace.
    pub records: Vec<LeaseRecord>,
    /// How long keys of which nothing is known may still be held, in milliseconds
    /// since the lock was taken; 0 if skipped.
    pub wait_ms: u64,
    /// How the server before this one ended.
    pub previous: PreviousEnd,
}

/// How the last server of a directory ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PreviousEnd {
    /// There was none.
    None,
    /// It drained.
    Clean {
        /// What its longest lease, of those that are not recorded, had left, in
        /// milliseconds.
        left_ms: u64,
    },
    /// It was killed, crashed, or could not write its end.
    Unclean {
        /// At least as long as any of its leases, in milliseconds.
        d_ms: u64,
    },
}

/// Why the store cannot be used, or did not end clean.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The operating system did not let a file or the directory be used.
    #[error("cannot {action} {path}: {error}", path = path.display())]
    Io {
        /// What was tried.
        action: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// Another server has the directory.
    #[error("{} is in use by another server", .0.display())]
    InUse(PathBuf),
    /// What the last server left cannot be told.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// Leases are recorded, and the state is not there.
    #[error(
        "{path} records leases, but both copies of the state are missing beside it, so it is not \
         known what is still held; docs/operations.md says how to go on", path = .0.display()
    )]
    StateMissing(PathBuf),
    /// The records cannot be read or written.
    #[error("{path} {error}", path = path.display())]
    Records {
        /// Their file.
        path: PathBuf,
        /// Why.
        error: RecordsError,
    },
    /// The state cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// Tokens start at the wall clock's nanoseconds or where the last server's ended,
    /// and no block of them is left.
    #[error("no fencing token is left below 2^63: the wall clock stands, or stood once, too late")]
    NoTokenLeft,
}

impl StoreError {
    fn io(action: &'static str, path: &Path, error: io::Error) -> StoreError {
        StoreError::Io {
            action,
            path: path.into(),
            error,
        }
    }
}

/// An open store that has not been started. Dropped before that, it leaves behind that
/// nothing was granted: the next start waits no longer than this one had to.
#[derive(Debug)]
pub struct Store {
    /// Taken when the store is started.
    writer: Option<Writer<StateFiles, LeasesFile>>,
    loops: u16,
    start: Start,
    durable: Durable,
}

impl Store {
    /// Takes the directory for this process and makes durable that its end is unclean
    /// from here on. Reads the clocks once the directory is taken: the server before
    /// this one may have granted until then.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing must be granted then.
    pub fn open(config: &StoreConfig) -> Result<(Opened, Store), StoreError> {
        Store::open_at(config, clock::now, clock::wall_nanos)
    }

    /// The same, by other clocks: boottime's, and the wall's in nanoseconds since 1970.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing must be granted then.
    pub fn open_at(
        config: &StoreConfig,
        now: impl FnOnce() -> Time,
        wall_nanos: impl FnOnce() -> u64,
    ) -> Result<(Opened, Store), StoreError> {
        let directory = Directory::take(&config.directory)?;
        let now = now();
        let grace_ms = config.expiry_grace_ms;
        let (mut copies, loaded) = Copies::load(StateFiles::new(Arc::clone(&directory)))?;
        if let Some(damaged) = loaded.damaged {
            warn!("{damaged}: going on with the other copy, and mending this one");
        }
        if loaded.state.is_none() {
            directory.sync_path()?;
        }
        let start = Start::decide(loaded.state, wall_nanos(), grace_ms, config.skip_grace)
            .ok_or(StoreError::NoTokenLeft)?;

        let boot = Boot::current().map_err(|(path, error)| StoreError::io("read", &path, error))?;
        let place = LeasesFile::new(directory);
        let path = place.path();
        let (mut records, recorded) =
            Records::open(place, boot, now, grace_ms).map_err(|error| StoreError::Records {
                path: path.clone(),
                error,
            })?;
        if loaded.state.is_none() && !recorded.is_empty() {
            return Err(StoreError::StateMissing(path));
        }
        let settled = records.settle(&recorded);
        settled.map_err(|error| records.store_error(error))?;
        copies.write(&start.state)?;
        let durable = start.durable(config.cap_ms, now);
        let opened = Opened {
            durable,
            first_token: start.first_token,
            records: recorded,
            wait_ms: start.wait_ms,
            previous: start.previous,
        };
        let core = StoreCore::new(config.loops, &durable);
        let store = Store {
            writer: Some(Writer::new(core, copies, records)),
            loops: config.loops,
            start,
            durable,
        };
        Ok((opened, store))
    }

    /// Starts the thread that writes. `wake` is called with a loop's index, on that
    /// thread, after there is news for that loop.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        mut self,
        wake: impl Fn(u16) + Send + 'static,
    ) -> io::Result<(Vec<StorePort>, StoreHandle)> {
        match self.writer.take() {
            Some(writer) => thread::start(writer, self.loops, wake),
            None => unreachable!("only this takes it"),
        }
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        let Some(mut writer) = self.writer.take() else {
            return;
        };
        let state = self.start.given_up(&self.durable, clock::now());
        if let Err(error) = writer.copies.write(&state) {
            warn!("{error}: the next start waits as after a crash");
        }
    }
}
#[cfg(test)]
mod tests;
