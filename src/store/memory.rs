//! A database's file in memory.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redb::StorageBackend;

/// What checking takes besides what is there.
const CHECK_BYTES: usize = 4 << 20;

/// Shared between its clones: one for the database, one to see what it has written.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    bytes: Arc<Mutex<Vec<u8>>>,
    max_bytes: usize,
}

impl Memory {
    /// No file yet.
    pub(super) fn empty() -> Memory {
        Memory {
            bytes: Arc::default(),
            max_bytes: usize::MAX,
        }
    }

    /// What was read from a file. It grows no further than checking it may need: a
    /// corrupted one may say that it is longer than any memory.
    pub(super) fn of_file(bytes: Vec<u8>) -> Memory {
        Memory {
            max_bytes: bytes.len().saturating_mul(2).saturating_add(CHECK_BYTES),
            bytes: Arc::new(Mutex::new(bytes)),
        }
    }

    pub(super) fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The `length` bytes at `offset`, if so many are there.
fn range(offset: u64, length: usize) -> io::Result<std::ops::Range<usize>> {
    let start = usize::try_from(offset).map_err(io::Error::other)?;
    let end = start.checked_add(length);
    Ok(start..end.ok_or(io::ErrorKind::UnexpectedEof)?)
}

impl StorageBackend for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.lock().len() as u64)
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let bytes = self.lock();
        let read = bytes.get(range(offset, out.len())?);
        out.copy_from_slice(read.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        let length = usize::try_from(length).map_err(io::Error::other)?;
        if length > self.max_bytes {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.lock().resize(length, 0);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let mut bytes = self.lock();
        let written = bytes.get_mut(range(offset, data.len())?);
        written
            .ok_or(io::ErrorKind::UnexpectedEof)?
            .copy_from_slice(data);
        Ok(())
    }
}
