//! One thread of the load: its connections and the clients on them.
//!
//! A turn: wait for the kernel, read each connection that has something, let its clients
//! answer into its buffer, write that once. The clock is read after each read, and what
//! follows from an answer counts as sent at that reading.

use crate::check::{Event, History};
use crate::clients::{Clients, Line, Violation};
use crate::host;
use crate::net::{Address, Stream};
use crate::outcome::Outcome;
use crate::record::OpRecord;
use crate::target::Codec;
use crate::timer::Timer;
use crate::workload::{Close, KeyId, Schedule};
use leasehold::clock;
use mio::{Events, Poll, Token};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Ends all threads.
#[derive(Debug, Default)]
pub(crate) struct Control {
    stops: AtomicBool,
    violation: Mutex<Option<Violation>>,
}

impl Control {
    /// Every thread is to come to its end.
    pub(crate) fn stop(&self) {
        self.stops.store(true, Ordering::Relaxed);
    }

    /// Whether it is so.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stops.load(Ordering::Relaxed)
    }

    /// The server has done what it may not: the first one is kept.
    pub(crate) fn violated(&self, violation: Violation) {
        let mut first = self
            .violation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(violation);
        self.stop();
    }

    /// The first violation.
    pub(crate) fn violation(&self) -> Option<Violation> {
        let first = self
            .violation
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        first.clone()
    }
}

/// How a thread deals with its connections.
#[derive(Clone, Debug)]
pub(crate) struct Habits {
    /// The server.
    pub(crate) server: Address,
    /// Connect again when the server goes away.
    pub(crate) reconnects: bool,
    /// Connections come and go by themselves.
    pub(crate) churns: bool,
    /// How they go.
    pub(crate) close: Close,
    /// How long to wait for answers at the end.
    pub(crate) patience: Duration,
}

/// When to do what, in nanoseconds of the boottime clock.
#[derive(Clone, Debug)]
pub(crate) struct Go {
    /// The measurement's beginning.
    pub(crate) from_ns: u64,
    /// Its end.
    pub(crate) to_ns: u64,
    /// The open loop's arrivals.
    pub(crate) schedule: Option<Schedule>,
}

/// What a thread leaves behind.
#[derive(Debug)]
pub(crate) struct Summary {
    /// By operation.
    pub(crate) records: Vec<OpRecord>,
    /// Keys whose state is not known.
    pub(crate) unsure: Vec<KeyId>,
    /// Arrivals that were never sent.
    pub(crate) unsent: u64,
    /// Connections that were made again after they broke.
    pub(crate) reconnections: u64,
    /// CPU time that the thread used while it was measured, in nanoseconds.
    pub(crate) cpu_ns: u64,
    history: History,
}

impl Summary {
    /// What is remembered of a key.
    pub(crate) fn history_of(&self, key: KeyId) -> Vec<Event> {
        self.history.of(key)
    }
}

/// One thread's sockets, and its clients.
pub(crate) struct EventLoop<C> {
    habits: Habits,
    control: Arc<Control>,
    poll: Poll,
    timer: Timer,
    connections: Vec<Connection<C>>,
    clients: Clients,
    buffer: Vec<u8>,
    /// Connections to be tried again, and when.
    retries: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections in a row that came to nothing.
    failures: u32,
    reconnections: u64,
    cpu_ns: u64,
    is_stopping: bool,
    dirty: Vec<u32>,
}

struct Connection<C> {
    stream: Option<Stream>,
    line: Line<C>,
    /// How much of the line's output is sent.
    sent: usize,
    /// The beginning of a reply whose rest has not come.
    carry: Vec<u8>,
    lanes: Range<u32>,
    /// Bytes have gone over it.
    is_proven: bool,
    backoff_ms: u32,
}

const TIMER: Token = Token(usize::MAX);
const BUFFER_BYTES: usize = 256 * 1024;
/// Longest sleep: how soon a stop is noticed.
const NAP: Duration = Duration::from_millis(50);
/// The timer wakes that much early, and the rest is spun away: a sleep ends late.
const LEAD_NS: u64 = 60_000;
/// Longest time to wait for the first connections.
const CONNECT_PATIENCE: Duration = Duration::from_secs(5);
/// So many failures in a row, and the server is gone.
const MAX_FAILURES: u32 = 100;
const MIN_BACKOFF_MS: u32 = 10;
const MAX_BACKOFF_MS: u32 = 1_000;

fn now_ns() -> u64 {
    clock::now().as_nanos()
}

impl<C: Codec> EventLoop<C> {
    /// A loop without connections.
    ///
    /// # Errors
    /// As epoll_create(2) and timerfd_create(2).
    pub(crate) fn new(
        habits: Habits,
        control: Arc<Control>,
        clients: Clients,
    ) -> io::Result<EventLoop<C>> {
        let poll = Poll::new()?;
        Ok(EventLoop {
            timer: Timer::new(poll.registry(), TIMER)?,
            poll,
            habits,
            control,
            connections: Vec::new(),
            clients,
            buffer: vec![0; BUFFER_BYTES],
            retries: BinaryHeap::new(),
            failures: 0,
            reconnections: 0,
            cpu_ns: 0,
            is_stopping: false,
            dirty: Vec::new(),
        })
    }

    /// Adds a connection for these clients.
    pub(crate) fn add(&mut self, codec: C, lanes: Range<u32>) {
        self.connections.push(Connection {
            stream: None,
            line: Line {
                codec,
                out: Vec::new(),
                is_up: false,
                is_down: false,
                renew: false,
            },
            sent: 0,
            carry: Vec::new(),
            lanes,
            is_proven: false,
            backoff_ms: MIN_BACKOFF_MS,
        });
    }

    /// Connects, takes the keys to hold, says that it is ready, and runs when told to.
    ///
    /// # Errors
    /// One line: the server cannot be reached, or has gone away.
    pub(crate) fn run(
        mut self,
        to_hold: Range<u64>,
        ready: &Sender<Result<(), String>>,
        go: &Receiver<Go>,
    ) -> Result<Summary, String> {
        let prepared = self.connect_all().and_then(|()| self.hold(to_hold));
        let is_ready = prepared.is_ok();
        // Whoever waits for it has seen another thread fail, and does not mind.
        let _ = ready.send(prepared);
        let Ok(go) = go.recv() else {
            return self.finish();
        };
        if is_ready {
            self.drive(go)?;
        }
        self.finish()
    }

    fn finish(self) -> Result<Summary, String> {
        let mut clients = self.clients;
        Ok(Summary {
            unsure: std::mem::take(&mut clients.unsure),
            unsent: clients.unsent,
            reconnections: self.reconnections,
            cpu_ns: self.cpu_ns,
            records: clients.recorder.finish(),
            history: clients.history,
        })
    }

    fn connect_all(&mut self) -> Result<(), String> {
        if C::ONE_SHOT {
            return Ok(());
        }
        for index in 0..self.connections.len() {
            self.renew(index)?;
        }
        let end_ns = now_ns() + CONNECT_PATIENCE.as_nanos() as u64;
        let mut events = Events::with_capacity(1024);
        while self
            .connections
            .iter()
            .any(|connection| !connection.line.is_up)
        {
            if now_ns() > end_ns {
                return Err(format!(
                    "--server {}: not all connections were accepted within five seconds",
                    self.habits.server
                ));
            }
            self.turn(&mut events)?;
        }
        Ok(())
    }

    fn hold(&mut self, numbers: Range<u64>) -> Result<(), String> {
        if numbers.is_empty() {
            return Ok(());
        }
        self.clients.hold_keys(numbers);
        self.begin_all()?;
        let mut events = Events::with_capacity(1024);
        while !self.clients.are_settled() && !self.control.is_stopped() {
            self.turn(&mut events)?;
        }
        self.clients.held_all();
        match self.control.violation() {
            Some(violation) => Err(violation.what),
            None => Ok(()),
        }
    }

    fn begin_all(&mut self) -> Result<(), String> {
        for index in 0..self.connections.len() {
            let now_ns = now_ns();
            let connection = &mut self.connections[index];
            for lane in connection.lanes.clone() {
                self.clients.begin(lane, now_ns, &mut connection.line);
            }
            self.settle(index)?;
        }
        Ok(())
    }

    fn drive(&mut self, go: Go) -> Result<(), String> {
        self.clients.recorder.measure(go.from_ns, go.to_ns);
        match go.schedule {
            Some(schedule) => self.clients.follow(schedule),
            None => self.begin_all()?,
        }
        let mut events = Events::with_capacity(1024);
        self.turn_until(go.from_ns, &mut events)?;
        let cpu_ns = host::thread_cpu_time_ns();
        self.turn_until(go.to_ns, &mut events)?;
        self.cpu_ns = host::thread_cpu_time_ns() - cpu_ns;
        let now = now_ns();
        self.clients.recorder.tick(now);
        self.clients.stop(now);
        self.is_stopping = true;
        self.drain(&mut events)
    }

    fn turn_until(&mut self, end_ns: u64, events: &mut Events) -> Result<(), String> {
        while now_ns() < end_ns && !self.control.is_stopped() {
            self.turn(events)?;
        }
        Ok(())
    }

    fn drain(&mut self, events: &mut Events) -> Result<(), String> {
        // Told to stop early, nobody wants to wait for what queues.
        let was_stopped = self.control.is_stopped();
        let patience = match was_stopped {
            true => self.habits.patience.min(Duration::from_secs(1)),
            false => self.habits.patience,
        };
        let end_ns = now_ns() + patience.as_nanos() as u64;
        while !self.clients.are_settled() && now_ns() < end_ns {
            if self.control.is_stopped() && !was_stopped {
                break;
            }
            self.turn(events)?;
        }
        if !self.control.is_stopped()
            && let Err(violation) = self.clients.check_all_answered()
        {
            self.control.violated(violation);
        }
        Ok(())
    }

    fn turn(&mut self, events: &mut Events) -> Result<(), String> {
        let nap = self.nap()?;
        match self.poll.poll(events, Some(nap)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            other => other.map_err(|error| format!("epoll: {error}"))?,
        }
        for event in events.iter() {
            if event.token() != TIMER {
                self.handle_event(event.token().0)?;
            }
        }
        let now = now_ns();
        self.clients.recorder.tick(now);
        self.do_what_is_due(now)
    }

    /// How long to wait for the kernel at most; sets the timer for what comes sooner.
    fn nap(&mut self) -> Result<Duration, String> {
        let retry = self.retries.peek().map(|Reverse((at_ns, _))| *at_ns);
        let next = match (self.clients.poll_timeout(), retry) {
            (Some(due), Some(retry)) => due.min(retry),
            (Some(at), None) | (None, Some(at)) => at,
            (None, None) => return Ok(NAP),
        };
        if next.saturating_sub(now_ns()) <= LEAD_NS {
            return Ok(Duration::ZERO);
        }
        let armed = self.timer.arm(next - LEAD_NS);
        armed.map_err(|error| format!("timerfd: {error}"))?;
        Ok(NAP)
    }

    fn do_what_is_due(&mut self, now_ns: u64) -> Result<(), String> {
        while let Some(due) = self.clients.poll_due(now_ns) {
            let index = self.clients.connection_of(due.lane);
            let line = &mut self.connections[index as usize].line;
            self.clients.handle_due(due, now_ns, line);
            self.dirty.push(index);
        }
        while let Some(index) = self.dirty.pop() {
            self.settle(index as usize)?;
        }
        while let Some(&Reverse((at_ns, index))) = self.retries.peek()
            && at_ns <= now_ns
        {
            self.retries.pop();
            self.connections[index as usize].line.is_down = false;
            self.renew(index as usize)?;
        }
        Ok(())
    }

    fn handle_event(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        let Some(stream) = &connection.stream else {
            return Ok(());
        };
        if !C::ONE_SHOT && !connection.line.is_up {
            match stream.is_connected() {
                Ok(true) => self.established(index)?,
                Ok(false) => return Ok(()),
                Err(error) => return self.broke(index, &error),
            }
        }
        self.receive(index)?;
        self.settle(index)
    }

    /// A connection has come about: its clients' requests can be sent.
    fn established(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        if let Some(stream) = &connection.stream {
            let set = stream.set_nodelay();
            set.map_err(|error| format!("a connection's TCP_NODELAY: {error}"))?;
        }
        let line = &mut connection.line;
        line.is_up = true;
        line.codec.begin(&mut line.out);
        self.clients
            .connected(connection.lanes.clone(), now_ns(), line);
        Ok(())
    }

    /// Reads what there is and lets clients answer.
    fn receive(&mut self, index: usize) -> Result<(), String> {
        loop {
            let connection = &mut self.connections[index];
            let Some(stream) = &mut connection.stream else {
                return Ok(());
            };
            let count = match stream.read(&mut self.buffer) {
                Ok(0) => return self.broke(index, &ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    ErrorKind::Interrupted => continue,
                    _ => return self.broke(index, &error),
                },
            };
            let now_ns = now_ns();
            connection.is_proven = true;
            let result = if connection.carry.is_empty() {
                let received = &self.buffer[..count];
                let taken = take(&mut self.clients, connection, index, received, now_ns);
                taken.map(|taken| connection.carry.extend_from_slice(&received[taken..]))
            } else {
                let mut carry = std::mem::take(&mut connection.carry);
                carry.extend_from_slice(&self.buffer[..count]);
                let taken = take(&mut self.clients, connection, index, &carry, now_ns);
                taken.map(|taken| {
                    carry.drain(..taken);
                    connection.carry = carry;
                })
            };
            match result {
                Ok(()) => {}
                Err(violation) => {
                    self.control.violated(violation);
                    return Ok(());
                }
            }
            self.failures = 0;
            if C::ONE_SHOT && connection.is_answered() {
                connection.stream = None;
                return Ok(());
            }
            // A short read has emptied the socket (epoll(7)); the next edge will tell.
            if count < self.buffer.len() {
                return Ok(());
            }
        }
    }

    /// Sends what clients have put in, or makes the connection anew if they want that.
    fn settle(&mut self, index: usize) -> Result<(), String> {
        self.clients.look_up_tokens();
        if self.connections[index].line.renew {
            return self.renew(index);
        }
        match self.connections[index].flush() {
            Ok(()) => Ok(()),
            Err(error) => self.broke(index, &error),
        }
    }

    /// Connects, in place of the connection that there may be.
    fn renew(&mut self, index: usize) -> Result<(), String> {
        let connection = &mut self.connections[index];
        connection.line.renew = false;
        if let Some(stream) = connection.stream.take() {
            stream.close(self.habits.close);
        }
        connection.clear();
        let connected = Stream::connect(&self.habits.server).and_then(|mut stream| {
            stream.register(self.poll.registry(), Token(index))?;
            Ok(stream)
        });
        match connected {
            Ok(stream) => connection.stream = Some(stream),
            Err(error) => return self.broke(index, &error),
        }
        if C::ONE_SHOT {
            let line = &mut connection.line;
            line.codec.begin(&mut line.out);
            self.clients
                .connected(connection.lanes.clone(), now_ns(), line);
            // On the same host it is connected already; else the next event will tell.
            return match connection.flush() {
                Ok(()) => Ok(()),
                Err(error) => self.broke(index, &error),
            };
        }
        Ok(())
    }

    /// A connection has failed or was closed by the server.
    fn broke(&mut self, index: usize, error: &io::Error) -> Result<(), String> {
        let connection = &mut self.connections[index];
        let was_idle = C::ONE_SHOT && connection.line.out.is_empty() && !connection.is_proven;
        connection.stream = None;
        let outcome = match connection.is_proven {
            true => Outcome::Indeterminate,
            false => Outcome::Unconnected,
        };
        connection.clear();
        connection.line.is_down = true;
        let now_ns = now_ns();
        let lanes = connection.lanes.clone();
        self.clients
            .lost(lanes, outcome, now_ns, &mut connection.line);
        connection.line.renew = false;
        let Habits {
            server,
            reconnects,
            churns,
            ..
        } = &self.habits;
        if !was_idle {
            self.failures += 1;
        }
        let may_go_on = *reconnects || ((C::ONE_SHOT || *churns) && self.failures < MAX_FAILURES);
        if !may_go_on {
            // At the end everything may be answered already.
            if self.is_stopping && self.clients.are_settled() {
                return Ok(());
            }
            return Err(match error.kind() {
                ErrorKind::UnexpectedEof => {
                    format!("{server} closed a connection (--reconnect goes on)")
                }
                _ => format!("--server {server}: {error}"),
            });
        }
        self.reconnections += 1;
        let at_ns = now_ns + u64::from(connection.backoff_ms) * 1_000_000;
        connection.backoff_ms = (connection.backoff_ms * 2).min(MAX_BACKOFF_MS);
        self.retries.push(Reverse((at_ns, index as u32)));
        Ok(())
    }
}

/// Hands the complete replies at the front of `bytes` to the clients; returns how many
/// bytes they took.
#[inline]
fn take<C: Codec>(
    clients: &mut Clients,
    connection: &mut Connection<C>,
    index: usize,
    bytes: &[u8],
    now_ns: u64,
) -> Result<usize, Violation> {
    let line = &mut connection.line;
    let mut taken = 0;
    loop {
        match line.codec.decode(&bytes[taken..]) {
            Ok(Some((tag, answer, length))) => {
                taken += length;
                clients.answered(index as u32, tag, answer, now_ns, line)?;
            }
            Ok(None) => return Ok(taken),
            Err(what) => return Err(Violation { what, key: None }),
        }
    }
}

impl<C> Connection<C> {
    /// Of a one-shot connection: its answer was taken.
    fn is_answered(&self) -> bool {
        self.carry.is_empty()
    }

    fn clear(&mut self) {
        self.line.out.clear();
        self.line.is_up = false;
        self.sent = 0;
        self.carry.clear();
        self.is_proven = false;
    }

    /// Writes as much as the kernel takes.
    fn flush(&mut self) -> io::Result<()> {
        let out = &mut self.line.out;
        if out.is_empty() {
            return Ok(());
        }
        let Some(stream) = &mut self.stream else {
            return Ok(());
        };
        while self.sent < out.len() {
            match stream.write(&out[self.sent..]) {
                Ok(count) => {
                    self.sent += count;
                    self.is_proven = true;
                    self.backoff_ms = MIN_BACKOFF_MS;
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::NotConnected => return Ok(()),
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        out.clear();
        self.sent = 0;
        Ok(())
    }
}
