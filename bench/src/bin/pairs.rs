//! Load client: uncontended acquire + release pairs from one thread, and what
//! they cost. Cheaper per request than any server it measures.

use std::error::Error;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use clap::Parser;
use leasehold_bench::hold::hold_locks;
use leasehold_bench::host;
use leasehold_bench::load::{self, Measured, Session, Timing};
use leasehold_bench::targets::{
    EchoSession, LaneKeys, NativeSession, RedisSession, Route, Target, load_redis_release,
};
use leasehold_bench::wire::{self, Routing};

/// Acquire + release pairs over random 16-byte keys, never contended.
#[derive(Debug, Parser)]
struct Flags {
    /// Address of the server.
    #[arg(long)]
    server: SocketAddr,
    /// What listens there.
    #[arg(long, value_enum, default_value_t = Target::Native)]
    target: Target,
    /// Connections.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Pairs under way on each connection.
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..))]
    depth: u32,
    /// Seconds to measure.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds of load before that.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Number of different keys, shared out over the pairs under way.
    #[arg(long, default_value_t = 1_000_000)]
    keys: u64,
    /// Seed of the keys' order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Which keys each session asks for; with local or remote, sessions are spread over
    /// the server's loops in turn. Native servers of several loops only.
    #[arg(long, value_enum, default_value_t = Keys::Any)]
    route: Keys,
    /// Core to run on.
    #[arg(long)]
    pin: Option<usize>,
    /// The server's process, to measure its CPU time.
    #[arg(long)]
    server_pid: Option<u32>,
    /// Take this many other locks first and keep them.
    #[arg(long, default_value_t = 0)]
    hold: u64,
    /// Print one JSON object instead of `name=value` words.
    #[arg(long)]
    json: bool,
}

/// Where the keys of a session belong.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Keys {
    /// To any loop; the server chooses the sessions' loops.
    Any,
    /// To the session's own loop.
    Local,
    /// To any loop but the session's own.
    Remote,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if let Some(core) = flags.pin {
        host::pin_to_core(core)?;
    }
    let held = match flags.hold {
        0 => None,
        count => Some(hold_locks(flags.server, flags.target, count)?),
    };
    let measured = match flags.target {
        Target::Native => run(&flags, NativeSession::new)?,
        _ if flags.route != Keys::Any => return Err("--route is for native servers".into()),
        Target::Echo => run(&flags, |lanes, _| EchoSession::new(lanes))?,
        Target::Redis => {
            let hash = load_redis_release(flags.server)?;
            run(&flags, |lanes, _| RedisSession::new(lanes, hash.clone()))?
        }
    };
    drop(held);
    println!("{}", report(&measured, flags.json));
    let errors = &measured.tally.errors;
    if errors.is_empty() {
        return Ok(());
    }
    let kinds: Vec<String> = errors
        .iter()
        .map(|(kind, count)| format!("{kind}: {count}"))
        .collect();
    Err(format!("unexpected replies ({})", kinds.join(", ")).into())
}

fn run<S: Session>(
    flags: &Flags,
    session: impl Fn(Vec<LaneKeys>, Option<u16>) -> S,
) -> Result<Measured, Box<dyn Error>> {
    let routing = match flags.route {
        Keys::Any => None,
        Keys::Local | Keys::Remote => Some(ask_routing(flags.server)?),
    };
    if routing.is_some_and(|routing| routing.loops == 1) && flags.route == Keys::Remote {
        return Err("--route remote: the server has one loop".into());
    }
    let depth = u64::from(flags.depth);
    let lanes = u64::from(flags.connections) * depth;
    let sessions = (0..u64::from(flags.connections))
        .map(|connection| {
            let first = connection * depth;
            let route = routing.map(|routing| Route {
                routing: Routing {
                    loop_index: (connection % u64::from(routing.loops)) as u16,
                    ..routing
                },
                local: flags.route == Keys::Local,
            });
            let keys = |lane| LaneKeys::new(flags.seed, lane, lanes, flags.keys, route);
            let wanted_loop = route.map(|route| route.routing.loop_index);
            session((first..first + depth).map(keys).collect(), wanted_loop)
        })
        .collect();
    let timing = Timing {
        warmup: Duration::try_from_secs_f64(flags.warmup)?,
        measured: Duration::try_from_secs_f64(flags.seconds)?,
        server_pid: flags.server_pid,
    };
    Ok(load::run(flags.server, sessions, timing)?)
}

/// Where the server's keys belong.
fn ask_routing(server: SocketAddr) -> Result<Routing, Box<dyn Error>> {
    let mut stream = TcpStream::connect(server)?;
    let mut hello = Vec::new();
    wire::push_hello(&mut hello, 1, wire::ANY_LOOP);
    stream.write_all(&hello)?;
    let mut welcome = [0; wire::WELCOME_BYTES];
    stream.read_exact(&mut welcome)?;
    Ok(Routing::read(&welcome)?)
}

/// `name=value` words or one JSON object.
fn report(measured: &Measured, json: bool) -> String {
    let latency = &measured.tally.latency_ns;
    let micros = |ns: u64| format!("{:.1}", ns as f64 / 1_000.0);
    let quantile = |q| micros(latency.value_at_quantile(q));
    let requests = latency.len();
    let rate = requests as f64 / measured.elapsed.as_secs_f64();
    let errors: u64 = measured.tally.errors.values().sum();
    let mut fields = vec![
        ("requests_per_s", format!("{rate:.0}")),
        ("p50_us", quantile(0.5)),
        ("p99_us", quantile(0.99)),
        ("p99.9_us", quantile(0.999)),
        ("max_us", micros(latency.max())),
        ("errors", errors.to_string()),
    ];
    if let Some(cpu_ns) = measured.server_cpu_ns {
        let per_request = cpu_ns as f64 / requests.max(1) as f64;
        fields.push(("server_cpu_ns_per_request", format!("{per_request:.1}")));
    }
    if json {
        let members: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("\"{name}\":{value}"))
            .collect();
        format!("{{{}}}", members.join(","))
    } else {
        let words: Vec<String> = fields
            .iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect();
        words.join(" ")
    }
}
