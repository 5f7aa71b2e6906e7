//! Does the store's jobs, and tells the operator when the disk does not let it.

use log::{info, warn};

use super::StoreError;
use super::copies::{Copies, Media};
use super::core::{Job, StoreCore};
use super::records::{Place, Records};
use crate::clock;
use crate::engine::time::Time;

/// The same failure is logged at most once in this time.
const LOG_PAUSE_MS: u64 = 10_000;

/// The store with its disk.
#[derive(Debug)]
pub(super) struct Writer<M, P> {
    pub(super) core: StoreCore,
    pub(super) copies: Copies<M>,
    records: Records<P>,
    state_trouble: Trouble,
    records_trouble: Trouble,
}

impl<M: Media, P: Place> Writer<M, P> {
    pub(super) fn new(core: StoreCore, copies: Copies<M>, records: Records<P>) -> Writer<M, P> {
        Writer {
            core,
            copies,
            records,
            state_trouble: Trouble::default(),
            records_trouble: Trouble::default(),
        }
    }

    /// Writes what is to be written now, if anything is.
    pub(super) fn write(&mut self) -> bool {
        let Some(job) = self.core.poll_job(clock::now()) else {
            return false;
        };
        let (result, trouble) = match job {
            Job::State(state) => {
                let result = self.copies.write(&state).map_err(StoreError::from);
                (result, &mut self.state_trouble)
            }
            Job::Records(changes) => {
                let result = self.records.commit(&changes);
                let result = result.map_err(|error| self.records.store_error(error));
                (result, &mut self.records_trouble)
            }
        };
        let now = clock::now();
        trouble.log(&result, now);
        self.core.handle_written(result.is_ok(), now);
        true
    }

    /// Writes what is left to be written, then a clean end.
    ///
    /// # Errors
    /// The end stays an unclean one.
    pub(super) fn finish(mut self, left_ms: u64) -> Result<(), StoreError> {
        let last = self.core.into_last_writes(left_ms);
        if !last.records.is_empty() {
            let committed = self.records.commit(&last.records);
            committed.map_err(|error| self.records.store_error(error))?;
        }
        Ok(self.copies.write(&last.state)?)
    }
}

/// Whether something fails, and when that was logged.
#[derive(Debug, Default)]
struct Trouble {
    log_again_at: Option<Time>,
}

impl Trouble {
    fn log(&mut self, result: &Result<(), StoreError>, now: Time) {
        match (result, self.log_again_at) {
            (Err(error), at) if at.is_none_or(|at| at <= now) => {
                self.log_again_at = Some(now.plus_millis(LOG_PAUSE_MS));
                warn!("{error}: requests that need it are refused until it can be written");
            }
            (Ok(()), Some(_)) => {
                self.log_again_at = None;
                info!("the state can be written again");
            }
            _ => {}
        }
    }
}
