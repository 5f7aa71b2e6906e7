//! `serve`'s settings: command-line flags over `LEASEHOLD_*` environment over
//! defaults, checked once, here. Behind [`Config`] no value is looked at twice.
//!
//! The documentation of a setting is the help text of its flag.

pub mod cores;
mod memory;
pub mod parse;
mod state;
#[cfg(test)]
mod tests;

use crate::engine::EngineLimits;
use crate::limits::{self, MAX_LEASE_MS, MAX_LOOPS};
use crate::protocol::RequestLimits;
use parse::BareUnit::{Milliseconds, Seconds};
pub use state::{Grace, StateConfig, StateDirectory};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

const DAY_MS: u32 = 24 * 60 * 60 * 1000;
const GIB: usize = 1 << 30;

/// Everything `serve` needs to know: every value possible, in its final unit,
/// and possible together with the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Where the native protocol is served; empty when off.
    pub listen: Vec<Listen>,
    /// How the loops are run.
    pub loops: LoopConfig,
    /// What the whole server, a key and a session may take.
    pub limits: LimitConfig,
    /// What survives a restart.
    pub state: StateConfig,
    /// Who may connect.
    pub access: AccessConfig,
    /// Bounds of every connection.
    pub connection: ConnectionConfig,
    /// The JackrabbitDLM protocol.
    pub dlm: DlmConfig,
}

/// Where to listen; shows itself as on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A TCP address; port 0 is any free one.
    Tcp(SocketAddr),
    /// The path of a Unix stream socket.
    Unix(PathBuf),
}

/// `serve`'s flags as given, before they are checked against each other.
#[derive(Clone, Debug, clap::Args)]
pub struct ServeArgs {
    /// Address of the native protocol: IP:PORT (port 0: any free one), unix:PATH
    /// or off; may be repeated, or given as a list with commas
    #[arg(
        long,
        env = "LEASEHOLD_LISTEN",
        value_name = "ADDRESS",
        value_delimiter = ',',
        default_value = "127.0.0.1:5327",
        value_parser = parse::listen
    )]
    listen: Vec<MaybeListen>,

    #[command(flatten)]
    loops: LoopConfig,
    #[command(flatten, next_help_heading = "Limits")]
    limits: LimitConfig,
    #[command(flatten, next_help_heading = "Restarts")]
    state: StateConfig,
    #[command(flatten, next_help_heading = "Access")]
    access: AccessConfig,
    #[command(flatten, next_help_heading = "Connections")]
    connection: ConnectionConfig,
    #[command(flatten, next_help_heading = "JackrabbitDLM protocol")]
    dlm: DlmConfig,
}

/// An address, or `None` for `off`. Aliases, because a literal `Option` would
/// tell clap that the flag has no default.
type MaybeListen = Option<Listen>;
type MaybeAddress = Option<SocketAddr>;

/// How the loops are run.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct LoopConfig {
    /// How the loops talk to the kernel
    #[arg(
        long,
        env = "LEASEHOLD_IO",
        value_name = "DRIVER",
        default_value = "auto"
    )]
    pub io: Io,

    /// How many loops, each with a thread, listeners and a share of the keys of its own
    /// [default: the cores that this process may use]
    #[arg(
        long,
        env = "LEASEHOLD_SHARDS",
        value_name = "COUNT",
        default_value_t = cores::default_shards(),
        hide_default_value = true,
        value_parser = |text: &str| parse::count(text, 1..=MAX_LOOPS)
    )]
    pub shards: u16,

    /// Keep each loop on a core of its own: off, auto (the cores that this process may
    /// use, in order), or their numbers, such as 2,3 or 4-7, one for each loop
    #[arg(
        long,
        env = "LEASEHOLD_PIN",
        value_name = "CORES",
        default_value = "off",
        value_parser = cores::Pin::parse
    )]
    pub pin: cores::Pin,

    /// How long a loop without work looks for more before it sleeps, in microseconds:
    /// no wake-up to wait for, at the price of the core
    #[arg(
        long = "spin-us",
        env = "LEASEHOLD_SPIN_US",
        value_name = "MICROSECONDS",
        default_value = "0",
        value_parser = |text: &str| parse::count(text, 0..=1_000_000_u32)
    )]
    pub spin_us: u32,

    /// How long the kernel asks the network card itself when a socket has nothing, in
    /// microseconds (SO_BUSY_POLL); 0: as the host has it. Some kernels want CAP_NET_ADMIN
    #[arg(
        long = "busy-poll-us",
        env = "LEASEHOLD_BUSY_POLL_US",
        value_name = "MICROSECONDS",
        default_value = "0",
        value_parser = |text: &str| parse::count(text, 0..=1_000_000_u32)
    )]
    pub busy_poll_us: u32,

    /// Address of metrics and health; this version serves none, so only off is possible
    #[arg(
        long = "admin-listen",
        env = "LEASEHOLD_ADMIN_LISTEN",
        value_name = "ADDRESS",
        default_value = "off",
        value_parser = |text: &str| only(text, "off", Unserved::Admin)
    )]
    pub admin: Unserved,

    /// How long a drain waits until nothing is held any more, in seconds
    #[arg(
        long = "drain-seconds",
        env = "LEASEHOLD_DRAIN_SECONDS",
        value_name = "TIME",
        default_value = "5",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 0..=DAY_MS)
    )]
    pub drain_ms: u32,
}

/// What a flag can only turn off, because this version does not have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unserved {
    /// Metrics and health.
    Admin,
}

/// How the loops talk to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Io {
    /// The best that this kernel offers
    Auto,
    /// Readiness, through epoll
    Epoll,
    /// Completions, through io_uring (Linux 6.8)
    Uring,
}

/// What the whole server, a key and a session may take.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct LimitConfig {
    /// Longest key, in bytes
    #[arg(
        long,
        env = "LEASEHOLD_MAX_KEY_BYTES",
        value_name = "BYTES",
        default_value = "1024",
        value_parser = |text: &str| parse::bytes(text, 1..=limits::MAX_KEY_BYTES)
    )]
    pub max_key_bytes: usize,

    /// Most keys that are held at a time
    #[arg(
        long,
        env = "LEASEHOLD_MAX_KEYS",
        value_name = "COUNT",
        default_value = "16777216",
        value_parser = |text: &str| parse::count(text, 1..=limits::MAX_KEYS)
    )]
    pub max_keys: u32,

    /// Most memory of the lock table, queues, timers and stored values: bytes, KiB, MiB, GiB or TiB
    /// [default: 80 % of the cgroup's limit or the machine's memory, whichever is less]
    #[arg(
        long = "max-memory",
        env = "LEASEHOLD_MAX_MEMORY",
        value_name = "BYTES",
        default_value_t = memory::default_max_memory_bytes(),
        hide_default_value = true,
        value_parser = |text: &str| parse::bytes(text, limits::MIN_MEMORY_BYTES..=1 << 60)
    )]
    pub max_memory_bytes: u64,

    /// Most acquires queued on one key
    #[arg(
        long,
        env = "LEASEHOLD_MAX_WAITERS_PER_KEY",
        value_name = "COUNT",
        default_value = "1024",
        value_parser = |text: &str| parse::count(text, 1..=limits::MAX_WAITERS)
    )]
    pub max_waiters_per_key: u32,

    /// Most acquires queued in the whole server
    #[arg(
        long,
        env = "LEASEHOLD_MAX_WAITERS",
        value_name = "COUNT",
        default_value = "1000000",
        value_parser = |text: &str| parse::count(text, 1..=limits::MAX_WAITERS)
    )]
    pub max_waiters: u32,

    /// Most acquires queued by one session; each loop counts those on its keys
    #[arg(
        long,
        env = "LEASEHOLD_MAX_SESSION_WAITERS",
        value_name = "COUNT",
        default_value = "1024",
        value_parser = |text: &str| parse::count(text, 1..=limits::MAX_WAITERS)
    )]
    pub max_session_waiters: u32,

    /// Most native connections at a time
    #[arg(
        long,
        env = "LEASEHOLD_MAX_CONNECTIONS",
        value_name = "COUNT",
        default_value = "65536",
        value_parser = |text: &str| parse::count(text, 1..=limits::MAX_CONNECTIONS)
    )]
    pub max_connections: u32,

    /// Longest lease a client may ask for
    #[arg(
        long = "max-lease",
        env = "LEASEHOLD_MAX_LEASE",
        value_name = "TIME",
        default_value = "255s",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 1..=MAX_LEASE_MS)
    )]
    pub max_lease_ms: u32,

    /// Longest wait a client may ask for; 0: no acquire ever queues
    #[arg(
        long = "max-wait",
        env = "LEASEHOLD_MAX_WAIT",
        value_name = "TIME",
        default_value = "255s",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 0..=MAX_LEASE_MS)
    )]
    pub max_wait_ms: u32,

    /// How long an expired lease still blocks its key, against clients whose
    /// clock runs slower than their margin allows; in milliseconds
    #[arg(
        long,
        env = "LEASEHOLD_EXPIRY_GRACE_MS",
        value_name = "TIME",
        default_value = "0",
        value_parser = |text: &str| parse::time_ms(text, Milliseconds, 0..=MAX_LEASE_MS)
    )]
    pub expiry_grace_ms: u32,
}

/// Who may connect.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct AccessConfig {
    /// File with a line NAME SHA256-HEX-OF-SECRET for each client that may
    /// connect [default: anybody may]
    #[arg(long, env = "LEASEHOLD_CREDENTIALS_FILE", value_name = "FILE")]
    pub credentials_file: Option<PathBuf>,
}

/// Bounds of every connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::Args)]
pub struct ConnectionConfig {
    /// Unsent replies over which a session's requests are not read, in bytes
    #[arg(
        long = "output-soft-limit",
        env = "LEASEHOLD_OUTPUT_SOFT_LIMIT",
        value_name = "BYTES",
        default_value = "64KiB",
        value_parser = |text: &str| parse::bytes(text, limits::MAX_REPLY_BYTES..=GIB)
    )]
    pub output_soft_limit_bytes: usize,

    /// Unsent replies over which a session is closed, in bytes. Only grants of queued
    /// acquires, 22 bytes each, and replies under way from other loops can pile up
    /// beyond the soft limit
    #[arg(
        long = "output-hard-limit",
        env = "LEASEHOLD_OUTPUT_HARD_LIMIT",
        value_name = "BYTES",
        default_value = "1MiB",
        value_parser = |text: &str| parse::bytes(text, limits::MAX_REPLY_BYTES..=1024 * GIB)
    )]
    pub output_hard_limit_bytes: usize,

    /// How long a peer may acknowledge nothing, or take no output, before its
    /// session is closed
    #[arg(
        long = "peer-timeout",
        env = "LEASEHOLD_PEER_TIMEOUT",
        value_name = "TIME",
        default_value = "20s",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 1..=DAY_MS)
    )]
    pub peer_timeout_ms: u32,

    /// Silence after which a peer is probed, in seconds
    // Maxima of the three: MAX_TCP_KEEPIDLE and its like, linux/net/tcp.h.
    #[arg(
        long = "keepalive-idle",
        env = "LEASEHOLD_KEEPALIVE_IDLE",
        value_name = "TIME",
        default_value = "15s",
        value_parser = |text: &str| parse::time_s(text, 1..=32_767)
    )]
    pub keepalive_idle_s: u32,

    /// Time between probes that are not answered, in seconds
    #[arg(
        long = "keepalive-interval",
        env = "LEASEHOLD_KEEPALIVE_INTERVAL",
        value_name = "TIME",
        default_value = "5s",
        value_parser = |text: &str| parse::time_s(text, 1..=32_767)
    )]
    pub keepalive_interval_s: u32,

    /// Probes without answer after which the peer is gone
    #[arg(
        long,
        env = "LEASEHOLD_KEEPALIVE_COUNT",
        value_name = "COUNT",
        default_value = "3",
        value_parser = |text: &str| parse::count(text, 1..=127u32)
    )]
    pub keepalive_count: u32,

    /// How long input is read and dropped before a close, so that the last reply
    /// is not lost to a reset; in milliseconds
    #[arg(
        long,
        env = "LEASEHOLD_LINGER_MS",
        value_name = "TIME",
        default_value = "1000",
        value_parser = |text: &str| parse::time_ms(text, Milliseconds, 1..=DAY_MS)
    )]
    pub linger_ms: u32,

    /// How much input is read and dropped before a close, in bytes
    #[arg(
        long,
        env = "LEASEHOLD_LINGER_BYTES",
        value_name = "BYTES",
        default_value = "1MiB",
        value_parser = |text: &str| parse::bytes(text, 1..=1024 * GIB)
    )]
    pub linger_bytes: usize,

    /// Permissions of the file of a unix: listener, in octal
    #[arg(
        long,
        env = "LEASEHOLD_UNIX_MODE",
        value_name = "OCTAL",
        default_value = "660",
        value_parser = parse::mode
    )]
    pub unix_mode: u32,

    /// Connections that the kernel keeps for a listener until they are accepted
    #[arg(
        long,
        env = "LEASEHOLD_BACKLOG",
        value_name = "COUNT",
        default_value = "1024",
        value_parser = |text: &str| parse::count(text, 1..=65_535u32)
    )]
    pub backlog: u32,
}

/// The JackrabbitDLM protocol.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct DlmConfig {
    /// Address of the JackrabbitDLM protocol: IP:PORT (port 0: any free one) or off
    #[arg(
        id = "dlm_listen",
        long = "dlm-listen",
        env = "LEASEHOLD_DLM_LISTEN",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:37373",
        value_parser = parse::tcp_listen
    )]
    pub listen: MaybeAddress,

    /// Take requests without a name although a credentials file is given
    #[arg(
        id = "dlm_anonymous",
        long = "dlm-anonymous",
        env = "LEASEHOLD_DLM_ANONYMOUS",
        value_parser = clap::builder::BoolishValueParser::new()
    )]
    pub anonymous: bool,

    /// Longest Expire of a request without a name
    #[arg(
        id = "dlm_anonymous_ttl",
        long = "dlm-anonymous-ttl",
        env = "LEASEHOLD_DLM_ANONYMOUS_TTL",
        value_name = "TIME",
        default_value = "3543s",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 1..=limits::MAX_DLM_TTL_MS)
    )]
    pub anonymous_max_ttl_ms: u64,

    /// Longest DataStore of a request without a name, in characters
    #[arg(
        id = "dlm_anonymous_data",
        long = "dlm-anonymous-data",
        env = "LEASEHOLD_DLM_ANONYMOUS_DATA",
        value_name = "COUNT",
        default_value = "16384",
        value_parser = |text: &str| parse::count(text, 0..=GIB as u64)
    )]
    pub anonymous_max_data_chars: u64,

    /// Where its identities are.
    #[command(flatten)]
    pub identities: IdentityDirectory,

    /// Longest Expire of a lock or a stored value (43200m are 30 days)
    #[arg(
        id = "max_dlm_ttl",
        long = "max-dlm-ttl",
        env = "LEASEHOLD_MAX_DLM_TTL",
        value_name = "TIME",
        default_value = "43200m",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 1..=limits::MAX_DLM_TTL_MS)
    )]
    pub max_ttl_ms: u64,

    /// Most DLM connections at a time
    #[arg(
        id = "max_dlm_connections",
        long = "max-dlm-connections",
        env = "LEASEHOLD_MAX_DLM_CONNECTIONS",
        value_name = "COUNT",
        default_value = "16384",
        value_parser = |text: &str| parse::count(text, 1..=limits::MAX_CONNECTIONS)
    )]
    pub max_connections: u32,

    /// Most memory of DLM requests that are not judged yet, and as much of answers that
    /// are not taken yet, over all connections; beyond it a request of more than 16 KiB
    /// is answered NO, and a peer that does not take its answer is dropped
    #[arg(
        id = "dlm_max_buffered",
        long = "dlm-max-buffered",
        env = "LEASEHOLD_DLM_MAX_BUFFERED",
        value_name = "BYTES",
        default_value = "256MiB",
        value_parser = |text: &str| parse::bytes(text, 1..=1024 * GIB)
    )]
    pub max_buffered_bytes: usize,

    /// How long a connection may take to deliver its request
    #[arg(
        id = "dlm_request_timeout",
        long = "dlm-request-timeout",
        env = "LEASEHOLD_DLM_REQUEST_TIMEOUT",
        value_name = "TIME",
        default_value = "30s",
        value_parser = |text: &str| parse::time_ms(text, Seconds, 1..=DAY_MS)
    )]
    pub request_timeout_ms: u32,

    /// Longest request as encoded on the wire, in bytes
    #[arg(
        id = "dlm_max_payload",
        long = "dlm-max-payload",
        env = "LEASEHOLD_DLM_MAX_PAYLOAD",
        value_name = "BYTES",
        default_value = "10MiB",
        value_parser = |text: &str| parse::bytes(text, 1..=GIB)
    )]
    pub max_payload_bytes: usize,
}

/// Where identities are, for the server and for the command that makes them.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct IdentityDirectory {
    /// Directory of the NAME.cfg identity files
    #[arg(
        id = "dlm_config_dir",
        long = "dlm-config-dir",
        env = "LEASEHOLD_DLM_CONFIG_DIR",
        value_name = "DIRECTORY",
        default_value = "/home/JackrabbitDLM/Config"
    )]
    pub directory: PathBuf,
}

/// Settings that are possible each by itself, but not together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ServeArgs {
    /// The settings, checked against each other.
    ///
    /// # Errors
    /// Two settings contradict each other; the message names their flags.
    pub fn into_config(self) -> Result<Config, ConfigError> {
        let config = Config {
            listen: listen_addresses(self.listen)?,
            loops: self.loops,
            limits: self.limits,
            state: self.state,
            access: self.access,
            connection: self.connection,
            dlm: self.dlm,
        };
        check_something_is_served(&config)?;
        check_connections(&config)?;
        check_output_limits(&config)?;
        Ok(config)
    }
}

impl Config {
    /// What a native request may ask.
    pub fn request_limits(&self) -> RequestLimits {
        RequestLimits {
            max_key_bytes: self.limits.max_key_bytes,
            max_lease_ms: self.limits.max_lease_ms,
            max_wait_ms: self.limits.max_wait_ms,
        }
    }

    /// One loop's share of a limit of the whole server, rounded up.
    pub fn share_of(&self, limit: usize) -> usize {
        limit.div_ceil(self.loops.shards.into())
    }

    /// What the engine of one loop may take.
    pub fn engine_limits(&self) -> EngineLimits {
        let shards = self.loops.shards;
        EngineLimits {
            max_keys: self.limits.max_keys.div_ceil(shards.into()),
            max_memory_bytes: self.limits.max_memory_bytes.div_ceil(shards.into()),
            max_waiters_per_key: self.limits.max_waiters_per_key,
            max_waiters: self.limits.max_waiters.div_ceil(shards.into()),
            max_session_waiters: self.limits.max_session_waiters,
            expiry_grace_ms: self.limits.expiry_grace_ms,
        }
    }

    /// The flags whose addresses anybody outside this host can reach.
    pub fn flags_that_listen_beyond_loopback(&self) -> Vec<&'static str> {
        let native = self.listen.iter().any(|listen| match listen {
            Listen::Tcp(address) => is_beyond_loopback(address),
            Listen::Unix(_) => false,
        });
        let dlm = self.dlm.listen.as_ref().is_some_and(is_beyond_loopback);
        [(native, "--listen"), (dlm, "--dlm-listen")]
            .into_iter()
            .filter_map(|(beyond, flag)| beyond.then_some(flag))
            .collect()
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Listen::Tcp(address) => address.fmt(f),
            Listen::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl Io {
    /// The name on the command line and in the ready line.
    pub const fn name(self) -> &'static str {
        match self {
            Io::Auto => "auto",
            Io::Epoll => "epoll",
            Io::Uring => "uring",
        }
    }
}

fn is_beyond_loopback(address: &SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

fn only(text: &str, word: &str, unserved: Unserved) -> Result<Unserved, String> {
    if text == word {
        Ok(unserved)
    } else {
        Err(format!(
            "this version does not have it, so only {word} is possible"
        ))
    }
}

/// The addresses of `--listen`; none if it is off.
fn listen_addresses(given: Vec<MaybeListen>) -> Result<Vec<Listen>, ConfigError> {
    if given.len() > 1 && given.contains(&None) {
        return Err(ConfigError(
            "--listen: off cannot stand beside an address".into(),
        ));
    }
    let mut addresses = Vec::new();
    for listen in given.into_iter().flatten() {
        let any_free_port = matches!(&listen, Listen::Tcp(address) if address.port() == 0);
        if !any_free_port && addresses.contains(&listen) {
            return Err(ConfigError(format!("--listen: {listen} is given twice")));
        }
        addresses.push(listen);
    }
    Ok(addresses)
}

fn check_something_is_served(config: &Config) -> Result<(), ConfigError> {
    if config.listen.is_empty() && config.dlm.listen.is_none() {
        return Err(ConfigError(
            "--listen and --dlm-listen are both off: nothing would be served".into(),
        ));
    }
    Ok(())
}

fn check_connections(config: &Config) -> Result<(), ConfigError> {
    let (native, dlm) = (config.limits.max_connections, config.dlm.max_connections);
    if native.saturating_add(dlm) > limits::MAX_CONNECTIONS {
        return Err(ConfigError(format!(
            "--max-connections {native} and --max-dlm-connections {dlm}: together they are more \
             than {}",
            limits::MAX_CONNECTIONS
        )));
    }
    Ok(())
}

fn check_output_limits(config: &Config) -> Result<(), ConfigError> {
    let soft_bytes = config.connection.output_soft_limit_bytes;
    let hard_bytes = config.connection.output_hard_limit_bytes;
    let least_bytes = limits::least_output_hard_limit_bytes(soft_bytes);
    if hard_bytes < least_bytes {
        return Err(ConfigError(format!(
            "--output-hard-limit: {} is too small: with --output-soft-limit {} it must be at \
             least {least_bytes}",
            parse::show_bytes(hard_bytes as u64),
            parse::show_bytes(soft_bytes as u64),
        )));
    }
    Ok(())
}
