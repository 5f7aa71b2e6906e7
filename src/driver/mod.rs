//! Everything that touches the kernel: sockets, event loops, signals. The loops
//! drive [`crate::worker::Worker`]s, which know nothing of this.

mod connections;
mod control;
mod drain;
mod epoll;
mod identity_files;
mod listener;
mod loads;
mod loops;
mod state;
mod turn;
mod uring;
mod waker;

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use log::{info, warn};
use rustix::thread::{CpuSet, sched_setaffinity};
use signal_hook::consts::{SIGINT, SIGTERM, SIGXFSZ};
use signal_hook::iterator::Signals;

pub use identity_files::{CreateIdentityError, create_identity_file};
pub use listener::BindError;

use crate::config::{Config, Io, Listen};
use crate::credentials::Credentials;
use crate::dlm::DlmLimits;
use crate::engine::time::Time;
use crate::mesh;
use crate::partition;
use crate::store::{StoreError, StorePort};
use crate::worker::{Protocol, Worker, WorkerConfig};
use epoll::EpollLoop;
use listener::{Listener, SocketFile, SocketOptions, StartLock};
use loops::Loops;
use state::StartState;
use turn::Turn;
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
    /// What survives a restart cannot be read or written.
    #[error("--state-dir: {0}")]
    Store(#[from] StoreError),
    /// There is no place for what survives a restart.
    #[error(
        "--state-dir: no directory is given, and there is none to choose: neither \
         STATE_DIRECTORY nor XDG_STATE_HOME nor HOME is set"
    )]
    NoStateDirectory,
    /// Seeds could not be drawn.
    #[error("cannot draw random seeds: {0}")]
    Random(getrandom::Error),
    /// io_uring was asked for, and this kernel does not offer what it takes.
    #[error("--io uring: {0}")]
    NoUring(String),
    /// The loops cannot be pinned as asked.
    #[error("--pin: {0}")]
    Pin(String),
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
    let shards = config.loops.shards;
    let cores = config.loops.pin.cores(shards).map_err(ServeError::Pin)?;
    let driver = Driver::choose(config)?;
    warn_of_open_doors(config, credentials.is_some());
    let signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|e| ServeError::Io("watch for signals", e))?;
    // A file that may not grow (RLIMIT_FSIZE) is a failed write, and not the server's end.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false)))
        .map_err(|e| ServeError::Io("watch for signals", e))?;

    abort_on_panic();
    let bound = bind(config)?;
    // Only now: where an address is taken, nothing becomes of the state that is there.
    let state = StartState::open(config)?;
    let workers = workers(config, credentials, &state)?;
    let loops = Loops::new(shards, config.limits.max_connections)
        .map_err(|e| ServeError::Io("make an eventfd", e))?;
    let loops = Arc::new(loops);
    let (ports, state) = state
        .start(&loops, shards)
        .map_err(|e| ServeError::Io("start the state thread", e))?;
    let parts = (workers, ports, bound.listeners);
    let event_loops = match event_loops(config, driver, &loops, parts) {
        Ok(event_loops) => event_loops,
        Err(error) => {
            // Nothing was served.
            state.finish(Time::ZERO);
            return Err(error);
        }
    };
    let ends = start(event_loops, &cores)?;

    let io = driver.name();
    info!(
        "serving on {shards} {io} {}",
        if shards == 1 { "loop" } else { "loops" }
    );
    let (listening, dlm) = (bound.native_addresses, bound.dlm_address);
    let ready = format!("ready listen={listening} dlm={dlm} admin=off io={io} shards={shards}\n");
    let mut stdout = io::stdout();
    stdout
        .write_all(ready.as_bytes())
        .and_then(|()| stdout.flush())
        .map_err(|e| ServeError::Io("write the ready line", e))?;

    let drain_ms = u64::from(config.loops.drain_ms);
    let watch = signals.handle();
    let watcher = thread::Builder::new()
        .name("signals".into())
        .spawn(move || watch_signals(signals, &loops, drain_ms))
        .map_err(|e| ServeError::Io("start the signal thread", e))?;
    // The first failure ends the server: without one of its loops, keys would be dark.
    let outcome: io::Result<Vec<Time>> = ends.iter().take(shards.into()).collect();
    let last_deadlines = outcome.map_err(|e| ServeError::Io("wait for events", e))?;
    state.finish(last_deadlines.into_iter().fold(Time::ZERO, Time::max));
    drop(bound.socket_files);
    watch.close();
    if watcher.join().is_err() {
        unreachable!("a panic ends the process");
    }
    Ok(())
}

/// The loops of a server, ready to be run.
fn event_loops(
    config: &Config,
    driver: Driver,
    loops: &Arc<Loops>,
    (workers, ports, listeners): (Vec<Worker>, Vec<Option<StorePort>>, Vec<Listeners>),
) -> Result<Vec<EventLoop>, ServeError> {
    let directory = config.dlm.identities.directory.clone();
    let identities = identity_files::start(directory, loops, config.loops.shards)
        .map_err(|e| ServeError::Io("start the identity thread", e))?;
    let spin = Duration::from_micros(config.loops.spin_us.into());
    let lines = identities.into_iter().zip(ports);
    workers
        .into_iter()
        .zip(lines)
        .zip(listeners)
        .map(|((worker, (identities, port)), listeners)| {
            let turn = Turn::new(worker, Arc::clone(loops), identities, port, spin);
            EventLoop::new(driver, turn, listeners)
                .map_err(|e| ServeError::Io("start an event loop", e))
        })
        .collect()
}

/// Makes a panic on any thread end the process, however the program was built: a dead
/// loop would leave its keys dark behind an open port.
fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// Runs each loop on a thread of its own, on the core it is given. The receiver gets
/// the end of each: when the last lease ends that it has left.
fn start(
    event_loops: Vec<EventLoop>,
    cores: &[Option<usize>],
) -> Result<mpsc::Receiver<io::Result<Time>>, ServeError> {
    let (ended, ends) = mpsc::channel();
    for (index, event_loop) in event_loops.into_iter().enumerate() {
        let ended = ended.clone();
        let core = cores.get(index).copied().flatten();
        thread::Builder::new()
            .name(format!("loop-{index}"))
            .spawn(move || {
                let outcome = core.map_or(Ok(()), pin_to).and_then(|()| event_loop.run());
                // Nobody listens any more where the server could not start.
                let _ = ended.send(outcome);
            })
            .map_err(|e| ServeError::Io("start a loop's thread", e))?;
    }
    Ok(ends)
}

/// Keeps the calling thread on one core.
fn pin_to(core: usize) -> io::Result<()> {
    let mut cores = CpuSet::new();
    cores.set(core);
    let pinned = sched_setaffinity(None, &cores);
    pinned.map_err(|e| io::Error::new(io::Error::from(e).kind(), format!("--pin {core}: {e}")))
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
        turn: Turn,
        listeners: Vec<(Protocol, Listener)>,
    ) -> io::Result<EventLoop> {
        match driver {
            Driver::Epoll => EpollLoop::new(turn, listeners)
                .map(|event_loop| EventLoop::Epoll(Box::new(event_loop))),
            Driver::Uring(options) => UringLoop::new(turn, listeners, options)
                .map(|event_loop| EventLoop::Uring(Box::new(event_loop))),
        }
    }

    /// Serves until a drain is over. Returns when the last lease ends that is left.
    fn run(self) -> io::Result<Time> {
        match self {
            EventLoop::Epoll(event_loop) => event_loop.run(),
            EventLoop::Uring(mut event_loop) => event_loop.run(),
        }
    }
}

/// Turns signals into orders; ends when the loops are done.
fn watch_signals(mut signals: Signals, loops: &Loops, drain_ms: u64) {
    let mut draining = false;
    for signal in signals.forever() {
        if draining {
            warn!("second signal: exiting at once");
            std::process::exit(128 + signal);
        }
        draining = true;
        info!("draining for at most {drain_ms} ms");
        loops.drain(drain_ms);
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

/// One loop's listeners.
type Listeners = Vec<(Protocol, Listener)>;

/// What a server listens on, and how the ready line tells it.
struct Bound {
    /// Each loop's.
    listeners: Vec<Listeners>,
    native_addresses: String,
    dlm_address: String,
    socket_files: Vec<SocketFile>,
}

fn bind(config: &Config) -> Result<Bound, ServeError> {
    let start = StartLock::take()?;
    let connection = &config.connection;
    let options = socket_options(config);
    let shards = config.loops.shards;
    let mut listeners: Vec<Vec<_>> = (0..shards).map(|_| Vec::new()).collect();
    let mut listen_tcp = |protocol, address| -> Result<SocketAddr, BindError> {
        let sockets = start.listen(address, shards, connection.backlog, &options)?;
        let mut local = address;
        for (socket, listeners) in sockets.into_iter().zip(&mut listeners) {
            local = socket
                .local_addr()
                .map_err(|error| BindError::Io(address, error))?;
            let listener = mio::net::TcpListener::from_std(socket);
            listeners.push((protocol, Listener::Tcp(listener)));
        }
        Ok(local)
    };
    let mut native_addresses = Vec::new();
    let mut unix_listeners = Vec::new();
    let mut socket_files = Vec::new();
    for listen in &config.listen {
        match listen {
            Listen::Tcp(address) => {
                native_addresses.push(listen_tcp(Protocol::Native, *address)?.to_string());
            }
            Listen::Unix(path) => {
                let (listener, file) =
                    start.listen_unix(path, connection.unix_mode, connection.backlog)?;
                let listener = mio::net::UnixListener::from_std(listener);
                unix_listeners.push((Protocol::Native, Listener::Unix(listener)));
                native_addresses.push(listen.to_string());
                socket_files.push(file);
            }
        }
    }
    let dlm_address = match config.dlm.listen {
        None => OFF.to_owned(),
        Some(address) => listen_tcp(Protocol::Dlm, address)?.to_string(),
    };
    // The kernel shares nothing out here: one loop accepts, and hands over by count.
    listeners[0].append(&mut unix_listeners);
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

/// A worker for each loop.
fn workers(
    config: &Config,
    credentials: Option<Credentials>,
    state: &StartState,
) -> Result<Vec<Worker>, ServeError> {
    let shards = config.loops.shards;
    let routing_seed = random_seed()?;
    let ports = mesh::build(shards, mesh::ring_capacity(shards));
    let worker = |(loop_index, port)| {
        let config = WorkerConfig {
            loop_index,
            routing_seed,
            ..worker_config(config, credentials.clone(), state)?
        };
        Ok(Worker::new(config, port))
    };
    let mut workers: Vec<Worker> = (0..)
        .zip(ports)
        .map(worker)
        .collect::<Result<_, ServeError>>()?;
    for record in &state.records {
        let owner = partition::loop_of(&record.key, routing_seed, shards);
        workers[usize::from(owner)].restore(record);
    }
    Ok(workers)
}

fn worker_config(
    config: &Config,
    credentials: Option<Credentials>,
    state: &StartState,
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
            max_connections: config.share_of(config.dlm.max_connections as usize),
            max_payload_bytes: config.dlm.max_payload_bytes,
            max_buffered_bytes: config.share_of(config.dlm.max_buffered_bytes),
            request_timeout_ms: config.dlm.request_timeout_ms.into(),
        },
        loops: config.loops.shards,
        loop_index: 0,
        routing_seed: 0,
        hash_seed: random_seed()?,
        first_token: state.first_token,
        durable: state.durable,
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
        busy_poll_us: config.loops.busy_poll_us,
        peer_timeout: Duration::from_millis(connection.peer_timeout_ms.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::os::unix::process::ExitStatusExt as _;
    use std::process::Command;

    /// Set in the process that is to panic.
    const PANICS: &str = "LEASEHOLD_TEST_PANICS";

    /// Scenario 52. The test is its own victim, in a process of its own, and leaves its
    /// thread's panic to what `serve` has set up: Cargo builds tests so that a panic
    /// would end no more than the thread.
    #[test]
    fn a_panic_on_any_thread_ends_the_process_with_its_message() {
        if std::env::var_os(PANICS).is_some() {
            abort_on_panic();
            let panics = || panic!("the loop is broken");
            let thread = thread::Builder::new().name("loop-7".into()).spawn(panics);
            let _ = thread.unwrap().join();
            unreachable!("the process has outlived its thread");
        }
        let name = "driver::tests::a_panic_on_any_thread_ends_the_process_with_its_message";
        let outcome = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env(PANICS, "1")
            .output()
            .unwrap();
        assert_eq!(outcome.status.signal(), Some(libc::SIGABRT));
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert!(said.contains("the loop is broken"), "{said}");
        assert!(said.contains("loop-7"), "{said}");
        assert!(!said.contains("outlived"), "{said}");
    }
}
