//! The load loop: one thread, every connection kept at its depth, one read and
//! one write per connection per turn, one clock reading per read.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use crate::host;

/// One connection's conversation: what it sends, and what it makes of the replies.
pub trait Session {
    /// Appends the first requests.
    fn start(&mut self, now_ns: u64, out: &mut Vec<u8>);

    /// Takes the complete replies at the front of `bytes`, appends the requests
    /// that follow from them, and returns how many bytes it took.
    ///
    /// # Errors
    /// The bytes are no replies.
    fn handle_replies(
        &mut self,
        bytes: &[u8],
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Result<usize, String>;

    /// Requests sent and not answered.
    fn outstanding(&self) -> usize;
}

/// What holds while one read's replies are looked at.
#[derive(Debug)]
pub struct Turn<'a> {
    /// When they were read, and when what follows from them counts as sent.
    pub now_ns: u64,
    /// Begin nothing new; finish what is held.
    pub stopping: bool,
    /// Where results go.
    pub tally: &'a mut Tally,
}

/// Results of one phase.
#[derive(Debug)]
pub struct Tally {
    /// Latency of each request that was answered as it should be, in nanoseconds.
    pub latency_ns: Histogram<u64>,
    /// Every other reply, by its kind.
    pub errors: BTreeMap<String, u64>,
}

impl Tally {
    fn new() -> Tally {
        Tally {
            // One minute is more than any run; three digits are 0.1 %.
            latency_ns: Histogram::new_with_bounds(1, 60_000_000_000, 3)
                .expect("the bounds are constant and valid"),
            errors: BTreeMap::new(),
        }
    }

    /// Counts a request that was answered as it should be.
    pub fn answered(&mut self, latency_ns: u64) {
        self.latency_ns.saturating_record(latency_ns.max(1));
    }

    /// Counts a reply that should not have come.
    pub fn failed(&mut self, kind: String) {
        *self.errors.entry(kind).or_default() += 1;
    }
}

/// One measurement.
#[derive(Debug)]
pub struct Measured {
    /// How long it really took.
    pub elapsed: Duration,
    /// Latencies and errors.
    pub tally: Tally,
    /// CPU time the server used meanwhile, in nanoseconds.
    pub server_cpu_ns: Option<u64>,
}

/// How long to run, and on whom to keep an eye.
#[derive(Clone, Copy, Debug)]
pub struct Timing {
    /// Load before the measurement.
    pub warmup: Duration,
    /// The measurement.
    pub measured: Duration,
    /// Process whose CPU time is measured.
    pub server_pid: Option<u32>,
}

/// Runs the sessions against `server`, one connection each.
///
/// # Errors
/// A connection failed, the server answered what is no reply, or its pid cannot be read.
pub fn run<S: Session>(
    server: SocketAddr,
    sessions: Vec<S>,
    timing: Timing,
) -> io::Result<Measured> {
    let mut load = Load::connect(server, sessions)?;
    load.run_for(timing.warmup, &mut Tally::new())?;

    let cpu_at_start = timing.server_pid.map(host::cpu_time_ns).transpose()?;
    let started = Instant::now();
    let mut tally = Tally::new();
    load.run_for(timing.measured, &mut tally)?;
    let elapsed = started.elapsed();
    let cpu_at_end = timing.server_pid.map(host::cpu_time_ns).transpose()?;

    load.finish(Duration::from_secs(10))?;
    Ok(Measured {
        elapsed,
        tally,
        server_cpu_ns: cpu_at_end.zip(cpu_at_start).map(|(end, start)| end - start),
    })
}

const READ_BUFFER_BYTES: usize = 256 * 1024;

struct Load<S> {
    poll: Poll,
    events: Events,
    connections: Vec<Connection<S>>,
    buffer: Vec<u8>,
    clock: Instant,
    stopping: bool,
}

struct Connection<S> {
    stream: TcpStream,
    session: S,
    /// The beginning of a reply whose rest has not come.
    carry: Vec<u8>,
    /// Requests the kernel has not taken.
    unsent: Vec<u8>,
}

impl<S: Session> Load<S> {
    fn connect(server: SocketAddr, sessions: Vec<S>) -> io::Result<Load<S>> {
        let poll = Poll::new()?;
        let clock = Instant::now();
        let mut connections = Vec::with_capacity(sessions.len());
        for (index, session) in sessions.into_iter().enumerate() {
            // Connected blockingly: set-up is not what is measured.
            let stream = std::net::TcpStream::connect(server)?;
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut stream = TcpStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry()
                .register(&mut stream, Token(index), interest)?;
            connections.push(Connection {
                stream,
                session,
                carry: Vec::new(),
                unsent: Vec::new(),
            });
        }
        for connection in &mut connections {
            let now_ns = clock.elapsed().as_nanos() as u64;
            connection.session.start(now_ns, &mut connection.unsent);
            connection.flush()?;
        }
        Ok(Load {
            poll,
            events: Events::with_capacity(connections.len().clamp(16, 1024)),
            connections,
            buffer: vec![0; READ_BUFFER_BYTES],
            clock,
            stopping: false,
        })
    }

    fn run_for(&mut self, duration: Duration, tally: &mut Tally) -> io::Result<()> {
        let end = Instant::now() + duration;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.turn(left, tally)?;
        }
    }

    /// Lets what is under way end, so that no lock stays behind for the next run.
    fn finish(&mut self, patience: Duration) -> io::Result<()> {
        self.stopping = true;
        let end = Instant::now() + patience;
        let mut tally = Tally::new();
        while self
            .connections
            .iter()
            .any(|connection| connection.session.outstanding() > 0)
        {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::other("the server owes replies at the end"));
            }
            self.turn(left, &mut tally)?;
        }
        Ok(())
    }

    fn turn(&mut self, timeout: Duration, tally: &mut Tally) -> io::Result<()> {
        match self.poll.poll(&mut self.events, Some(timeout)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            other => other?,
        }
        for event in &self.events {
            let connection = &mut self.connections[event.token().0];
            if event.is_readable() {
                let buffer = &mut self.buffer;
                connection.read_and_answer(buffer, self.clock, self.stopping, tally)?;
            }
            connection.flush()?;
        }
        Ok(())
    }
}

impl<S: Session> Connection<S> {
    fn read_and_answer(
        &mut self,
        buffer: &mut [u8],
        clock: Instant,
        stopping: bool,
        tally: &mut Tally,
    ) -> io::Result<()> {
        loop {
            let carried = self.carry.len();
            buffer[..carried].copy_from_slice(&self.carry);
            let count = match self.stream.read(&mut buffer[carried..]) {
                Ok(0) => return Err(io::Error::other("the server closed a connection")),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            let mut turn = Turn {
                now_ns: clock.elapsed().as_nanos() as u64,
                stopping,
                tally,
            };
            let filled = carried + count;
            let taken = self
                .session
                .handle_replies(&buffer[..filled], &mut turn, &mut self.unsent)
                .map_err(io::Error::other)?;
            self.carry.clear();
            self.carry.extend_from_slice(&buffer[taken..filled]);
            // A short read has emptied the socket (epoll(7)); the next edge will tell.
            if filled < buffer.len() {
                return Ok(());
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.stream.write(&self.unsent[sent..]) {
                Ok(count) => sent += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        self.unsent.drain(..sent);
        Ok(())
    }
}
