//! The command line.

use crate::plan::Target;
use crate::times;
use crate::workload::{Close, Kind};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

/// Load generator for leasehold: how fast a server is, how late, and whether it is right.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
pub(crate) struct Options {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Drive one load and report.
    #[command(after_long_help = ABOUT_RUNS)]
    Run(RunOptions),
    /// Raise the rate until a latency bound breaks, and report the knee.
    #[command(after_long_help = ABOUT_RUNS)]
    Sweep(SweepOptions),
    /// Put two results of `run --json` side by side.
    Compare(CompareOptions),
}

const ABOUT_RUNS: &str = "\
Latency counts from the time a request was to be sent: in the open loop (--rate) the time on \
the schedule, in the closed loop the moment its client became free (its last answer, plus the \
hold time before a release). A request that follows from an answer, such as a release, is due \
at that answer. What was due and not sent when the run ends is recorded with the time that it \
has waited.

--check watches, for every key and over all threads: a holder may believe in its lease until
    send time + waited + lease - max(1 ms, (waited + lease) / 1000),
the send time read before the request's first byte is given to the kernel; until then, or until \
it sends its release, nobody else may be granted the key. Tokens of a key must grow. Every request \
must be answered once, by an answer of its kind. A release within the bound may not be answered \
`not held` (unless a connection has broken since the grant). At the end the server must tell \
of each key, of up to 65,536, what the answers said. Keys are told apart by number only, so one \
generator at a time can check a server. A violation stops the run: exit status 1, and the \
key's history.

Exit status: 0 measured, 1 violation or a server that went away, 2 nothing could be measured.";

/// What a run takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct RunOptions {
    /// Load and server.
    #[command(flatten)]
    pub(crate) load: LoadOptions,
    /// Requests per second, on a schedule (open loop), instead of as fast as answers come.
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the latencies in HdrHistogram's percentile format: FILE for all requests, and
    /// FILE with the operation's name before its extension for each.
    #[arg(long, value_name = "FILE")]
    pub(crate) hgrm: Option<PathBuf>,
    /// Draw percentile curves, rate and latency over time, into FILE.svg or FILE.html.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// Load and server.
#[derive(Clone, Debug, Args)]
pub(crate) struct LoadOptions {
    /// The protocol to speak.
    #[arg(long, value_enum, default_value_t = Target::Native)]
    pub(crate) target: Target,
    /// HOST:PORT or unix:PATH [default: 127.0.0.1 and the protocol's port].
    #[arg(long, value_name = "A")]
    pub(crate) server: Option<String>,
    /// Connections.
    #[arg(long, value_name = "C", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) connections: u32,
    /// Clients on each connection, each with one request under way.
    #[arg(long, value_name = "D", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) depth: u32,
    /// Threads, each with its share of the connections and of the rate.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) threads: u32,
    /// How long to measure.
    #[arg(long, value_name = "S", default_value = "10", value_parser = times::parse)]
    pub(crate) seconds: Duration,
    /// How long to load the server before that.
    #[arg(long, default_value = "1", value_parser = times::parse)]
    pub(crate) warmup: Duration,
    /// How arrivals of the open loop are spaced.
    #[arg(long, value_enum, default_value_t = Arrivals::Uniform)]
    pub(crate) arrivals: Arrivals,
    /// What clients do.
    #[arg(long, value_enum, default_value_t = Kind::Pairs)]
    pub(crate) workload: Kind,
    /// Several activities, from a TOML file, instead of --workload and the flags that shape it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["workload", "keys", "zipf", "wait", "lease", "hold", "data_bytes", "close"])]
    pub(crate) mix: Option<PathBuf>,
    /// Number of keys [default: 1000000 for pairs, churn and line, 16 for contended and try,
    /// 10000 for expiry and data].
    #[arg(long, value_name = "N")]
    pub(crate) keys: Option<u64>,
    /// Choose keys by a Zipf distribution with this exponent instead of all alike.
    #[arg(long, value_name = "EXPONENT")]
    pub(crate) zipf: Option<f64>,
    /// Length of keys, the first 16 bytes of which differ.
    #[arg(long, default_value_t = 16)]
    pub(crate) key_bytes: usize,
    /// Take this many other keys first, and keep them.
    #[arg(long, value_name = "M", default_value_t = 0)]
    pub(crate) held: u64,
    /// Longest wait of an acquire [default: 10s for contended and expiry, else 0].
    #[arg(long)]
    pub(crate) wait: Option<String>,
    /// Lease [default: 100ms for expiry, else 10s].
    #[arg(long)]
    pub(crate) lease: Option<String>,
    /// How long a grant is held before its release: 5ms, or exp:5ms on average.
    #[arg(long)]
    pub(crate) hold: Option<String>,
    /// Size of what Put stores.
    #[arg(long)]
    pub(crate) data_bytes: Option<usize>,
    /// How churned connections end.
    #[arg(long, value_enum)]
    pub(crate) close: Option<Close>,
    /// Seed of each client's stream of activities and keys.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Spread the sessions over the server's loops, and ask each for keys of its own loop
    /// (on), or of the others (remote).
    #[arg(long, value_enum, default_value_t = RouteOption::Off)]
    pub(crate) route: RouteOption,
    /// Watch the answers for violations [default: on, up to 16777216 keys].
    #[arg(long, value_enum)]
    pub(crate) check: Option<Switch>,
    /// Connect again when the server goes away, and watch across its restart.
    #[arg(long)]
    pub(crate) reconnect: bool,
    /// Cores of the threads, such as 1 or 2,3 or 4-7.
    #[arg(long, value_name = "CORES")]
    pub(crate) pin: Option<String>,
    /// The server's process, for its CPU time [default: who listens there, if that is here].
    #[arg(long, value_name = "PID")]
    pub(crate) server_pid: Option<u32>,
    /// A file with NAME:SECRET, for servers that want one [default: LEASEHOLD_CREDENTIAL's content].
    #[arg(long, value_name = "FILE")]
    pub(crate) credential_file: Option<PathBuf>,
    /// NAME of a JackrabbitDLM identity, for more than 16 KiB or 3543 s.
    #[arg(long, value_name = "NAME", requires = "dlm_identity_file")]
    pub(crate) dlm_name: Option<String>,
    /// Its JSON file.
    #[arg(long, value_name = "FILE", requires = "dlm_name")]
    pub(crate) dlm_identity_file: Option<PathBuf>,
}

/// What a sweep takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct SweepOptions {
    /// Load and server; --seconds and --warmup are those of each step.
    #[command(flatten)]
    pub(crate) load: LoadOptions,
    /// Requests per second of the first step.
    #[arg(long, default_value_t = 1_000.0)]
    pub(crate) from: f64,
    /// Rate not to go beyond.
    #[arg(long, default_value_t = 10_000_000.0)]
    pub(crate) to: f64,
    /// How much faster each step is than the last.
    #[arg(long, default_value_t = 1.5)]
    pub(crate) factor: f64,
    /// Steps between the last good rate and the first bad one, each halving the distance.
    #[arg(long, default_value_t = 3)]
    pub(crate) refine: u32,
    /// The latency bound.
    #[arg(long, default_value = "1ms", value_parser = times::parse)]
    pub(crate) bound: Duration,
    /// The share of requests that must keep it, in percent.
    #[arg(long, default_value_t = 99.0)]
    pub(crate) percentile: f64,
    /// Print one JSON object instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What a comparison takes.
#[derive(Clone, Debug, Args)]
pub(crate) struct CompareOptions {
    /// A result of `run --json`.
    pub(crate) before: PathBuf,
    /// Another one.
    pub(crate) after: PathBuf,
    /// Draw both percentile curves into FILE.svg or FILE.html.
    #[arg(long, value_name = "FILE")]
    pub(crate) plot: Option<PathBuf>,
}

/// How arrivals of the open loop are spaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arrivals {
    /// Equally.
    Uniform,
    /// Independently of each other.
    Poisson,
}

/// Which keys a session asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RouteOption {
    /// Any; the server chooses the sessions' loops.
    Off,
    /// Those of the session's own loop.
    On,
    /// Those of all other loops.
    Remote,
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    /// On.
    On,
    /// Off.
    Off,
}
