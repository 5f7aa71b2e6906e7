//! Everything that touches the kernel: sockets, event loops, signals. The loops
//! drive [`crate::worker::Worker`]s, which know nothing of this.

mod connections;
mod control;
mod drain;
mod epoll;
mod identity_files;
mod listener;
mod uring;
mod waker;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use log::{info, warn};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

pub use identity_files::{CreateIdentityError, create_identity_file};
pub use listener::BindError;

use crate::clock;
use crate::config::{Config, Io, Listen};
use crate::credentials::Credentials;
use crate::dlm::DlmLimits;
use crate::limits;
use crate::worker::{Protocol, Worker, WorkerConfig};
use control::Control;
use epoll::EpollLoop;
use identity_files::IdentityPort;
use listener::{Listener, SocketFile, SocketOptions, StartLock};
use uring::{RingOptions, UringLoop};

/// Why a server could not start, or had to stop.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// An address cannot be listened on.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// Tokens start at the wall clock's nanoseconds, which are used up.
    #[error("the wall clock stands beyond the year 2262: no fencing token is left below 2^63")]
    NoTokenLeft,
    /// Seeds could not be drawn.
    #[error("cannot draw random seeds: {0}")]
    Random(getrandom::Error),
    /// io_uring was asked for, and this kernel does not offer what it takes.
    #[error("--io uring: {0}")]
    NoUring(String),
    /// A loop, the signals or standard output failed.
    #[error("cannot {0}: {1}")]
    Io(&'static str, io::Error),
}

/// Serves until a signal ends it: SIGTERM or SIGINT drains, a second one exits at
/// once with 128 + its number. Prints the ready line once everything listens.
///
/// # Errors
/// Something could not start; nothing was served then.
pub fn serve(config: &Config, credentials: Option<Credentials>) -> Result<(), ServeError> {
    let floor = clock::wall_nanos();
    if floor >= limits::TOKEN_END {
        return Err(ServeError::NoTokenLeft);
    }
    let driver = Driver::choose(config)?;
    warn_of_open_doors(config, credentials.is_some());
    let signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|e| ServeError::Io("watch for signals", e))?;

    let bound = bind(config)?;
    let worker = Worker::new(worker_config(config, credentials, floor)?);
    let control = Arc::new(Control::new().map_err(|e| ServeError::Io("make an eventfd", e))?);
    let identities = identity_files::start(
        config.dlm.identities.directory.clone(),
        Arc::clone(&control),
    )
    .map_err(|e| ServeError::Io("start the identity thread", e))?;
    let event_loop = EventLoop::new(
        driver,
        worker,
        bound.listeners,
        identities,
        Arc::clone(&control),
    )
    .map_err(|e| ServeError::Io("start an event loop", e))?;

    let io = driver.name();
    info!("serving on one {io} loop");
    let (listening, dlm) = (bound.native_addresses, bound.dlm_address);
    let ready = format!("ready listen={listening} dlm={dlm} admin=off io={io} shards=1\n");
    let mut stdout = io::stdout();
    stdout
        .write_all(ready.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| ServeError::Io("write the ready line", e))?;

    let drain_ms = u64::from(config.loops.drain_ms);
    let watch = signals.handle();
    let watcher = thread::Builder::new()
        .name("signals".into())
        .spawn(move || watch_signals(signals, &control, drain_ms))
        .map_err(|e| ServeError::Io("start the signal thread", e))?;
    let outcome = event_loop
        .run()
        .map_err(|e| ServeError::Io("wait for events", e));
    drop(bound.socket_files);
    watch.close();
    if watcher.join().is_err() {
        unreachable!("a panic ends the process");
    }
    outcome
}

/// How the loops talk to the kernel, decided once.
#[derive(Clone, Copy, Debug)]
enum Driver {
    Epoll,
    Uring(RingOptions),
}

impl Driver {
    fn choose(config: &Config) -> Result<Driver, ServeError> {
        let connections = config
            .limits
            .max_connections
            .saturating_add(config.dlm.max_connections);
        let uring = || Driver::Uring(RingOptions::new(connections));
        match config.loops.io {
            Io::Epoll => Ok(Driver::Epoll),
            Io::Uring => uring::probe()
                .map(|()| uring())
                .map_err(ServeError::NoUring),
            Io::Auto => match uring::probe() {
                Ok(()) => {
                    info!("--io auto: io_uring, this kernel offers all that it takes");
                    Ok(uring())
                }
                Err(why) => {
                    info!("--io auto: epoll, because {why}");
                    Ok(Driver::Epoll)
                }
            },
        }
    }

    /// The name in the ready line.
    fn name(self) -> &'static str {
        match self {
            Driver::Epoll => Io::Epoll.name(),
            Driver::Uring(_) => Io::Uring.name(),
        }
    }
}

/// A loop of either driver.
enum EventLoop {
    Epoll(Box<EpollLoop>),
    Uring(Box<UringLoop>),
}

impl EventLoop {
    fn new(
        driver: Driver,
        worker: Worker,
        listeners: Vec<(Protocol, Listener)>,
        identities: IdentityPort,
        control: Arc<Control>,
    ) -> io::Result<EventLoop> {
        match driver {
            Driver::Epoll => EpollLoop::new(worker, listeners, identities, control)
                .map(|event_loop| EventLoop::Epoll(Box::new(event_loop))),
            Driver::Uring(options) => {
                UringLoop::new(worker, listeners, identities, control, options)
                    .map(|event_loop| EventLoop::Uring(Box::new(event_loop)))
            }
        }
    }

    /// Serves until a drain is over.
    fn run(self) -> io::Result<()> {
        match self {
            EventLoop::Epoll(event_loop) => event_loop.run(),
            EventLoop::Uring(mut event_loop) => event_loop.run(),
        }
    }
}

/// Turns signals into orders; ends when the loops are done.
fn watch_signals(mut signals: Signals, control: &Control, drain_ms: u64) {
    let mut draining = false;
    for signal in signals.forever() {
        if draining {
            warn!("second signal: exiting at once");
            std::process::exit(128 + signal);
        }
        draining = true;
        info!("draining for at most {drain_ms} ms");
        if let Err(error) = control.drain(drain_ms) {
            warn!("cannot wake a loop: {error}");
        }
    }
}

fn warn_of_open_doors(config: &Config, has_credentials: bool) {
    for flag in config.flags_that_listen_beyond_loopback() {
        if !has_credentials {
            warn!(
                "{flag} reaches beyond this host, and anybody may take locks: no --credentials-file"
            );
        } else if flag == "--dlm-listen" && config.dlm.anonymous {
            warn!("{flag} reaches beyond this host, and --dlm-anonymous lets anybody take locks");
        }
    }
}

/// Who asks for credentials on one port does not want locks taken without on the other.
fn anonymous_dlm_allowed(config: &Config, has_credentials: bool) -> bool {
    !has_credentials || config.dlm.anonymous
}

/// What a server listens on, and how the ready line tells it.
struct Bound {
    listeners: Vec<(Protocol, Listener)>,
    native_addresses: String,
    dlm_address: String,
    socket_files: Vec<SocketFile>,
}

fn bind(config: &Config) -> Result<Bound, ServeError> {
    let start = StartLock::take()?;
    let backlog = config.connection.backlog;
    let options = socket_options(config);
    let mut listeners = Vec::new();
    let mut native_addresses = Vec::new();
    let mut socket_files = Vec::new();
    for listen in &config.listen {
        match listen {
            Listen::Tcp(address) => {
                let (listener, local) = listen_tcp(&start, *address, backlog, &options)?;
                listeners.push((Protocol::Native, listener));
                native_addresses.push(local.to_string());
            }
            Listen::Unix(path) => {
                let mode = config.connection.unix_mode;
                let (listener, file) = start.listen_unix(path, mode, backlog)?;
                let listener = mio::net::UnixListener::from_std(listener);
                listeners.push((Protocol::Native, Listener::Unix(listener)));
                native_addresses.push(listen.to_string());
                socket_files.push(file);
            }
        }
    }
    let mut dlm_address = OFF.to_owned();
    if let Some(address) = config.dlm.listen {
        let (listener, local) = listen_tcp(&start, address, backlog, &options)?;
        listeners.push((Protocol::Dlm, listener));
        dlm_address = local.to_string();
    }
    Ok(Bound {
        listeners,
        native_addresses: match native_addresses.is_empty() {
            true => OFF.to_owned(),
            false => native_addresses.join(","),
        },
        dlm_address,
        socket_files,
    })
}

/// How the ready line tells that a protocol is not served.
const OFF: &str = "off";

fn listen_tcp(
    start: &StartLock,
    address: SocketAddr,
    backlog: u32,
    options: &SocketOptions,
) -> Result<(Listener, SocketAddr), BindError> {
    let listener = start.listen(address, backlog, options)?;
    let local = listener
        .local_addr()
        .map_err(|error| BindError::Io(address, error))?;
    let listener = mio::net::TcpListener::from_std(listener);
    Ok((Listener::Tcp(listener), local))
}

fn worker_config(
    config: &Config,
    credentials: Option<Credentials>,
    first_token: u64,
) -> Result<WorkerConfig, ServeError> {
    let anonymous_allowed = anonymous_dlm_allowed(config, credentials.is_some());
    Ok(WorkerConfig {
        requests: config.request_limits(),
        engine: config.engine_limits(),
        credentials,
        max_connections: config.limits.max_connections as usize,
        output_soft_limit_bytes: config.connection.output_soft_limit_bytes,
        output_hard_limit_bytes: config.connection.output_hard_limit_bytes,
        peer_timeout_ms: config.connection.peer_timeout_ms.into(),
        linger_ms: config.connection.linger_ms.into(),
        linger_bytes: config.connection.linger_bytes as u64,
        dlm: crate::worker::DlmConfig {
            requests: DlmLimits {
                max_key_bytes: config.limits.max_key_bytes,
                max_ttl_ms: config.dlm.max_ttl_ms,
                anonymous_allowed,
                anonymous_max_ttl_ms: config.dlm.anonymous_max_ttl_ms,
                anonymous_max_data_chars: config.dlm.anonymous_max_data_chars,
            },
            max_connections: config.dlm.max_connections as usize,
            max_payload_bytes: config.dlm.max_payload_bytes,
            max_buffered_bytes: config.dlm.max_buffered_bytes,
            request_timeout_ms: config.dlm.request_timeout_ms.into(),
        },
        loops: 1,
        loop_index: 0,
        routing_seed: random_seed()?,
        hash_seed: random_seed()?,
        first_token,
    })
}

fn random_seed() -> Result<u64, ServeError> {
    getrandom::u64().map_err(ServeError::Random)
}

fn socket_options(config: &Config) -> SocketOptions {
    let connection = &config.connection;
    SocketOptions {
        keepalive_idle: Duration::from_secs(connection.keepalive_idle_s.into()),
        keepalive_interval: Duration::from_secs(connection.keepalive_interval_s.into()),
        keepalive_count: connection.keepalive_count,
        peer_timeout: Duration::from_millis(connection.peer_timeout_ms.into()),
    }
}
