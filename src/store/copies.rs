//! Two copies of the state file, of which one is whole at every moment.
//!
//! A change is written and synced to one copy, then to the other; the copy that may be
//! damaged comes first, and the other is not touched before that is whole again. What a
//! process has not written itself may be in the kernel's memory only, whatever reading
//! it says, and what a sync has failed for may be lost although the next sync succeeds
//! (fsync(2)). So such a copy is not written over but replaced as a whole, and one that
//! is written over is known to have the other behind it.

use std::io;

use super::format::{self, State, Unreadable};

/// How many copies there are.
pub const COPIES: usize = 2;

/// Where the copies are. All but `read` may fail at any point and leave what they say.
pub trait Media {
    /// What a copy holds; `None` if it is missing.
    ///
    /// # Errors
    /// It cannot be read.
    fn read(&mut self, copy: usize) -> io::Result<Option<Vec<u8>>>;

    /// Makes a copy, or replaces it, as a whole: when this returns it is durable, and at
    /// any moment before, a failure's too, a crash leaves what was there or what is new.
    ///
    /// # Errors
    /// It may not be durable.
    fn replace(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()>;

    /// Writes over a copy that was replaced before. Until it is synced, a crash may leave
    /// anything.
    ///
    /// # Errors
    /// It may hold anything.
    fn write(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()>;

    /// Makes what was written durable.
    ///
    /// # Errors
    /// It may hold anything after a crash.
    fn sync(&mut self, copy: usize) -> io::Result<()>;

    /// What a copy is called in messages.
    fn name(&self, copy: usize) -> String;
}

/// The copies, and what is known of each.
#[derive(Debug)]
pub struct Copies<M> {
    media: M,
    known: [Known; COPIES],
    /// Of the last write that was begun.
    sequence: u64,
}

/// What is known of a copy. In the order in which they are to be written: so that the
/// copy that is worst, or oldest, comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// Anything may be there after a crash. If it was read in whole: the sequence number.
    Doubtful(Option<u64>),
    /// A whole state is there after a crash, of this sequence number.
    Durable(u64),
}

/// Why no state can be had from the copies.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoadError {
    /// A server of another version wrote one of them.
    #[error(
        "{name} has format version {version}, which this version of leasehold does not know: \
         start the version that wrote it"
    )]
    UnknownVersion {
        /// The copy.
        name: String,
        /// Its version.
        version: u32,
    },
    /// Neither is whole.
    #[error(
        "{} and {}: neither copy of the state is whole, so it is not known what is still held; \
         docs/operations.md says how to go on", .0[0], .0[1]
    )]
    NoneWhole([String; COPIES]),
}

/// Why a state could not be written to both copies.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {name}: {error}")]
pub struct WriteError {
    /// The copy that failed.
    pub name: String,
    /// Why.
    pub error: io::Error,
}

/// What was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loaded {
    /// The newest whole state; `None` if there never was one.
    pub state: Option<State>,
    /// The copy that is not whole, and how; the next write mends it.
    pub damaged: Option<String>,
}

impl<M: Media> Copies<M> {
    /// Reads the newest whole state.
    ///
    /// # Errors
    /// See [`LoadError`]: nothing is known then, and nothing was changed.
    pub fn load(mut media: M) -> Result<(Copies<M>, Loaded), LoadError> {
        let mut whole: [Option<(u64, State)>; COPIES] = [None; COPIES];
        let mut faults: [Option<String>; COPIES] = [const { None }; COPIES];
        let mut missing = 0;
        for copy in 0..COPIES {
            let name = media.name(copy);
            let fault = match media.read(copy) {
                Ok(None) => {
                    missing += 1;
                    "is missing".to_owned()
                }
                Err(error) => format!("cannot be read: {error}"),
                Ok(Some(bytes)) => match format::decode(&bytes) {
                    Ok(read) => {
                        whole[copy] = Some(read);
                        continue;
                    }
                    Err(Unreadable::UnknownVersion(version)) => {
                        return Err(LoadError::UnknownVersion { name, version });
                    }
                    Err(Unreadable::Corrupted) => "is corrupted".to_owned(),
                },
            };
            faults[copy] = Some(format!("{name} {fault}"));
        }
        let newest = whole.into_iter().flatten().max_by_key(|read| read.0);
        let damaged = match (newest, faults) {
            (None, _) if missing == COPIES => None,
            (None, [Some(first), Some(second)]) => {
                return Err(LoadError::NoneWhole([first, second]));
            }
            (_, [first, second]) => first.or(second),
        };
        let copies = Copies {
            media,
            known: whole.map(|read| Known::Doubtful(read.map(|(sequence, _)| sequence))),
            sequence: newest.map_or(0, |(sequence, _)| sequence),
        };
        let state = newest.map(|(_, state)| state);
        Ok((copies, Loaded { state, damaged }))
    }

    /// Makes `state` durable in both copies.
    ///
    /// # Errors
    /// A copy could not be written. After a crash either the state of the last success
    /// is loaded, or one that was tried to be written since.
    pub fn write(&mut self, state: &State) -> Result<(), WriteError> {
        self.sequence += 1;
        let bytes = format::encode(self.sequence, state);
        let mut order = [0, 1];
        order.sort_by_key(|&copy| self.known[copy]);
        for copy in order {
            self.write_copy(copy, &bytes).map_err(|error| WriteError {
                name: self.media.name(copy),
                error,
            })?;
        }
        Ok(())
    }

    fn write_copy(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()> {
        let known = std::mem::replace(&mut self.known[copy], Known::Doubtful(None));
        match known {
            Known::Doubtful(_) => self.media.replace(copy, bytes)?,
            Known::Durable(_) => {
                self.media.write(copy, bytes)?;
                self.media.sync(copy)?;
            }
        }
        self.known[copy] = Known::Durable(self.sequence);
        Ok(())
    }

    /// Where the copies are.
    pub fn media(&self) -> &M {
        &self.media
    }

    /// Lets go of where the copies are.
    pub fn into_media(self) -> M {
        self.media
    }
}
