//! The thread that writes, and the lines between it and the loops.

use super::StoreError;
use crate::durability::{Ask, News};

/// One loop's line to the thread that writes.
#[derive(Debug)]
pub struct StorePort {}

impl StorePort {
    /// Asks; never blocks.
    pub fn ask(&self, _ask: Ask) {
        unimplemented!()
    }

    /// What there is to tell this loop, in order. Costs one load while there is
    /// nothing.
    pub fn take_news(&self) -> Vec<News> {
        unimplemented!()
    }
}

/// The thread that writes. Dropped without [`StoreHandle::finish`], it ends the thread
/// and leaves an unclean end.
#[derive(Debug)]
pub struct StoreHandle {}

impl StoreHandle {
    /// Makes the end a clean one, after all loops have stopped judging requests:
    /// `left_ms` is what the longest lease that is not recorded has left, or this
    /// start's own wait if that is longer. Lets go of the directory.
    ///
    /// # Errors
    /// Something could not be written: the end stays an unclean one.
    pub fn finish(self, _left_ms: u64) -> Result<(), StoreError> {
        unimplemented!()
    }
}
