//! What survives a restart: where it is, what is said of it, and the loops' lines to
//! the thread that keeps it.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use log::{error, info, warn};
use rustix::process::geteuid;

use super::ServeError;
use super::loops::Loops;
use crate::clock;
use crate::config::{Config, Grace, Listen, StateDirectory};
use crate::durability::{self, Durable, LeaseRecord};
use crate::engine::time::Time;
use crate::store::directory::{Environment, Listens, default_directory};
use crate::store::{Opened, PreviousEnd, Store, StoreConfig, StoreHandle, StorePort};

/// What a server starts with.
#[derive(Debug)]
pub(super) struct StartState {
    /// `None`: nothing survives a restart.
    pub(super) durable: Option<Durable>,
    pub(super) first_token: u64,
    /// Leases from before the start that go on.
    pub(super) records: Vec<LeaseRecord>,
    store: Option<Store>,
}

/// The state of a server that runs, or is about to.
#[derive(Debug)]
pub(super) struct RunningState {
    grace_end: Time,
    handle: Option<StoreHandle>,
}

impl StartState {
    /// Takes the state directory and makes durable that a server runs on it.
    ///
    /// # Errors
    /// There is none where it should be, it is another server's, or what is there cannot
    /// be read or written.
    pub(super) fn open(config: &Config) -> Result<StartState, ServeError> {
        let Some(directory) = directory(config)? else {
            let first_token = clock::wall_nanos();
            if first_token >= crate::limits::TOKEN_END {
                return Err(ServeError::NoTokenLeft);
            }
            return Ok(StartState {
                durable: None,
                first_token,
                records: Vec::new(),
                store: None,
            });
        };
        let cap_ms = durability::MIN_D_CAP_MS.max(config.limits.max_lease_ms.into());
        let store_config = StoreConfig {
            directory,
            loops: config.loops.shards,
            cap_ms,
            expiry_grace_ms: config.limits.expiry_grace_ms.into(),
            skip_grace: config.state.grace == Grace::Skip,
        };
        let (opened, store) = Store::open(&store_config)?;
        tell(&store_config, &opened);
        Ok(StartState {
            durable: Some(opened.durable),
            first_token: opened.first_token,
            records: opened.records,
            store: Some(store),
        })
    }

    /// Starts the thread that keeps the state. Returns each loop's line to it.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        self,
        loops: &Arc<Loops>,
        shards: u16,
    ) -> io::Result<(Vec<Option<StorePort>>, RunningState)> {
        let grace_end = self.durable.map_or(Time::ZERO, |durable| durable.grace_end);
        let Some(store) = self.store else {
            let handle = None;
            let ports = (0..shards).map(|_| None).collect();
            return Ok((ports, RunningState { grace_end, handle }));
        };
        let loops = Arc::clone(loops);
        let (ports, handle) = store.start(move |loop_index| loops.wake(loop_index))?;
        let handle = Some(handle);
        Ok((
            ports.into_iter().map(Some).collect(),
            RunningState { grace_end, handle },
        ))
    }
}

impl RunningState {
    /// No loop judges anything any more. The next start waits for the leases that end by
    /// `last_deadline`, and for what is left of this start's grace.
    pub(super) fn finish(self, last_deadline: Time) {
        let Some(handle) = self.handle else {
            return;
        };
        let left_ms = last_deadline
            .max(self.grace_end)
            .millis_since_ceil(clock::now());
        match handle.finish(left_ms) {
            Ok(()) if left_ms == 0 => info!("the next start waits for no lease"),
            Ok(()) => info!("the next start waits for leases that have {left_ms} ms left"),
            Err(error) => error!(
                "the end could not be written down, so the next start waits as after a crash: {error}"
            ),
        }
    }
}

/// The directory to use, `None` for none.
fn directory(config: &Config) -> Result<Option<PathBuf>, ServeError> {
    match &config.state.directory {
        Some(StateDirectory::At(directory)) => return Ok(Some(directory.clone())),
        Some(StateDirectory::Off) => {
            warn!("--state-dir none: after a restart locks may be granted that somebody holds");
            return Ok(None);
        }
        None => {}
    }
    let Some(name) = config.state_name() else {
        warn!(
            "no --state-dir, and none is chosen for a port that may be another one next time: \
             after a restart locks may be granted that somebody holds"
        );
        return Ok(None);
    };
    let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
    let (systemd, xdg, home) = (
        variable("STATE_DIRECTORY"),
        variable("XDG_STATE_HOME"),
        variable("HOME"),
    );
    let environment = Environment {
        state_directory: systemd.as_deref(),
        is_root: geteuid().is_root(),
        xdg_state_home: xdg.as_deref(),
        home: home.as_deref(),
    };
    let listens = match &name {
        Listen::Tcp(address) => Listens {
            tcp: Some(*address),
            ..Listens::default()
        },
        Listen::Unix(path) => Listens {
            unix: Some(path),
            ..Listens::default()
        },
    };
    let directory = default_directory(&environment, &listens);
    directory.map(Some).ok_or(ServeError::NoStateDirectory)
}

/// Says what the start has found.
fn tell(config: &StoreConfig, opened: &Opened) {
    let directory = config.directory.display();
    let wait_ms = opened.wait_ms;
    match opened.previous {
        PreviousEnd::None => info!("state in {directory}, which is new"),
        PreviousEnd::Clean { left_ms: 0 } => {
            info!("state in {directory}: nothing was held at the end");
        }
        PreviousEnd::Clean { left_ms } => {
            info!("state in {directory}: leases had {left_ms} ms left at the end");
        }
        PreviousEnd::Unclean { d_ms } => {
            warn!(
                "state in {directory}: the last end was none in order; no lease was longer than {d_ms} ms"
            );
        }
    }
    if !opened.records.is_empty() {
        info!(
            "{} leases go on from before the start",
            opened.records.len()
        );
    }
    let may_be_held = match opened.previous {
        PreviousEnd::None => false,
        PreviousEnd::Clean { left_ms } => left_ms > 0,
        PreviousEnd::Unclean { d_ms } => d_ms > 0,
    };
    if config.skip_grace && may_be_held {
        error!(
            "--grace skip: no lease from before the start is waited for: until they are over a \
             lock may come to have two holders"
        );
    }
    if wait_ms > 0 {
        warn!("grace: for {wait_ms} ms no lock is granted that may be held from before the start");
    }
}
