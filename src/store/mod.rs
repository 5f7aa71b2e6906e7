//! What survives a restart, so that none grants twice: D, the token mark, how the last
//! server ended, and the leases that are recorded one by one (see
//! [`crate::durability`] for what loops and the store tell each other).
//!
//! [`Store::open`] takes the directory, decides how long nothing may be granted, and
//! makes durable that the end is unclean from here on. [`Store::start`] then gives all
//! writing to one thread, and each loop a [`StorePort`] to it. [`StoreHandle::finish`]
//! makes the end a clean one.

mod thread;

pub use thread::{StoreHandle, StorePort};

use std::io;
use std::path::PathBuf;

use crate::durability::{Durable, LeaseRecord};

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
}

/// An open store that has not been started. Dropped before that, it leaves behind that
/// nothing was granted.
#[derive(Debug)]
pub struct Store {}

impl Store {
    /// Takes the directory for this process and makes durable that its end is unclean
    /// from here on. Reads the clocks once the lock is taken: the server before this one
    /// may have granted until then.
    ///
    /// # Errors
    /// See [`StoreError`]; nothing must be granted then.
    pub fn open(_config: &StoreConfig) -> Result<(Opened, Store), StoreError> {
        unimplemented!()
    }

    /// Starts the thread that writes. `wake` is called with a loop's index, on that
    /// thread, after there is news for that loop.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        self,
        _wake: impl Fn(u16) + Send + Sync + 'static,
    ) -> io::Result<(Vec<StorePort>, StoreHandle)> {
        unimplemented!()
    }
}
