//! DLM clients that come and go: Lock, then Unlock, each on a connection of its
//! own, a fixed number of clients at a time.

use std::borrow::Cow;
use std::error::Error;
use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Parser;
use hdrhistogram::Histogram;
use leasehold::dlm::{DlmRequest, Operation, encode};
use leasehold_bench::host;
use leasehold_bench::keys::Random;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

/// Lock + Unlock pairs over random names, one request per connection
#[derive(Debug, Parser)]
struct Flags {
    /// Address of the server.
    #[arg(long)]
    server: SocketAddr,
    /// Clients at a time.
    #[arg(long, default_value_t = 50)]
    clients: usize,
    /// Seconds to measure.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Seconds of load before that.
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Take any answer: the server is the bare one.
    #[arg(long)]
    bare: bool,
    /// Only lock this many names, for an hour less a minute, and leave them locked.
    #[arg(long)]
    hold: Option<u64>,
    /// Seed of the names.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Core to run on.
    #[arg(long)]
    pin: Option<usize>,
    /// The server's process, for its CPU time per request.
    #[arg(long)]
    server_pid: Option<u32>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if let Some(core) = flags.pin {
        host::pin_to_core(core)?;
    }
    let mut load = Load::new(&flags)?;
    if let Some(count) = flags.hold {
        load.run_until(|load| load.answered >= count)?;
        println!("locked={} errors={}", load.answered, load.errors);
        return Ok(());
    }
    load.run_for(flags.warmup)?;
    load.begin_measuring();
    let cpu_before = flags.server_pid.map(host::cpu_time_ns).transpose()?;
    let started = Instant::now();
    load.run_for(flags.seconds)?;
    let elapsed = started.elapsed();
    let cpu_after = flags.server_pid.map(host::cpu_time_ns).transpose()?;
    let at = |quantile| load.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
    print!(
        "requests_per_s={:.0} p50_us={:.1} p99_us={:.1} p99.9_us={:.1} max_us={:.1} errors={}",
        load.answered as f64 / elapsed.as_secs_f64(),
        at(0.5),
        at(0.99),
        at(0.999),
        at(1.0),
        load.errors,
    );
    if let (Some(before), Some(after)) = (cpu_before, cpu_after) {
        let per_request = (after - before) as f64 / load.answered.max(1) as f64;
        print!(" server_cpu_ns_per_request={per_request:.0}");
    }
    println!();
    Ok(())
}

/// One client, between two of its connections or on one.
struct Client {
    stream: TcpStream,
    since: Instant,
    /// The coded line, and how much of it is written.
    line: Vec<u8>,
    written: usize,
    answer: Vec<u8>,
    name: u64,
    locking: bool,
}

struct Load {
    server: SocketAddr,
    poll: Poll,
    clients: Vec<Client>,
    random: Random,
    names: u64,
    holding: bool,
    bare: bool,
    answered: u64,
    errors: u64,
    latency_ns: Histogram<u64>,
    /// How good answers to Lock and Unlock begin.
    locked: Vec<u8>,
    unlocked: Vec<u8>,
}

impl Load {
    fn new(flags: &Flags) -> Result<Load, Box<dyn Error>> {
        let coded = |text: &str| {
            let mut out = Vec::new();
            encode(text.as_bytes(), &mut out);
            out
        };
        let mut load = Load {
            server: flags.server,
            poll: Poll::new()?,
            clients: Vec::new(),
            random: Random::new(flags.seed),
            names: 0,
            holding: flags.hold.is_some(),
            bare: flags.bare,
            answered: 0,
            errors: 0,
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
            locked: coded("{\"Status\":\"Locked\",\"ID\":"),
            unlocked: coded("{\"Status\":\"Unlocked\",\"ID\":"),
        };
        for index in 0..flags.clients {
            let name = load.next_name();
            let client = Client {
                stream: load.connect(index)?,
                since: Instant::now(),
                line: line(index, name, true, load.holding),
                written: 0,
                answer: Vec::new(),
                name,
                locking: true,
            };
            load.clients.push(client);
        }
        Ok(load)
    }

    /// Held names are counted up, so that each is another; passing ones are random.
    fn next_name(&mut self) -> u64 {
        self.names += 1;
        if self.holding {
            self.names
        } else {
            self.random.next_u64() | 1 << 63
        }
    }

    fn connect(&self, index: usize) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.server)?;
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll
            .registry()
            .register(&mut stream, Token(index), interest)?;
        Ok(stream)
    }

    fn begin_measuring(&mut self) {
        self.answered = 0;
        self.errors = 0;
        self.latency_ns.reset();
    }

    fn run_for(&mut self, seconds: f64) -> io::Result<()> {
        let end = Instant::now() + Duration::from_secs_f64(seconds);
        self.run_until(|_| Instant::now() >= end)
    }

    fn run_until(&mut self, is_over: impl Fn(&Load) -> bool) -> io::Result<()> {
        let mut events = Events::with_capacity(1024);
        while !is_over(self) {
            self.poll
                .poll(&mut events, Some(Duration::from_millis(100)))?;
            for event in &events {
                self.go_on(event.token().0)?;
            }
        }
        Ok(())
    }

    /// Writes and reads what the socket allows; a client whose connection is over
    /// goes on with its next request.
    fn go_on(&mut self, index: usize) -> io::Result<()> {
        let client = &mut self.clients[index];
        if client.written < client.line.len() {
            match client.stream.write(&client.line[client.written..]) {
                Ok(count) => client.written += count,
                Err(error) if is_early(&error) => return Ok(()),
                Err(_) => return self.next(index, false),
            }
        }
        let mut buffer = [0; 4096];
        loop {
            let client = &mut self.clients[index];
            match client.stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => client.answer.extend_from_slice(&buffer[..count]),
                Err(error) if is_early(&error) => return Ok(()),
                Err(_) => return self.next(index, false),
            }
        }
        let client = &self.clients[index];
        let expected = match client.locking {
            true => &self.locked,
            false => &self.unlocked,
        };
        let is_good =
            client.answer.ends_with(b"\n") && (self.bare || client.answer.starts_with(expected));
        self.next(index, is_good)
    }

    fn next(&mut self, index: usize, is_good: bool) -> io::Result<()> {
        let since = self.clients[index].since;
        if is_good {
            self.answered += 1;
            let nanos = u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX);
            self.latency_ns.saturating_record(nanos);
        } else {
            self.errors += 1;
        }
        let locks = self.holding || !self.clients[index].locking;
        let name = match locks {
            true => self.next_name(),
            false => self.clients[index].name,
        };
        let since = Instant::now();
        // The old connection is closed as the new one takes its place.
        let stream = self.connect(index)?;
        let line = line(index, name, locks, self.holding);
        let client = &mut self.clients[index];
        *client = Client {
            stream,
            since,
            line,
            written: 0,
            answer: std::mem::take(&mut client.answer),
            name,
            locking: locks,
        };
        client.answer.clear();
        Ok(())
    }
}

fn is_early(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::WouldBlock | ErrorKind::NotConnected
    )
}

fn line(index: usize, name: u64, locks: bool, holds: bool) -> Vec<u8> {
    const HELD_MS: u64 = 3_540_000;
    const PASSING_MS: u64 = 30_000;
    let request = DlmRequest {
        id: Cow::Owned(format!("client-{index}")),
        file_name: Cow::Owned(format!("{name:016x}")),
        claim: None,
        operation: match locks {
            true => Operation::Lock {
                ttl_ms: if holds { HELD_MS } else { PASSING_MS },
            },
            false => Operation::Unlock,
        },
    };
    let mut line = Vec::new();
    request.encode(&mut line);
    line
}
