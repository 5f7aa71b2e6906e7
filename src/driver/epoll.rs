//! The readiness driver: one loop on epoll, through mio.
//!
//! Edge-triggered. A socket is read until a read comes up short, one chunk per
//! turn; a flag remembers readiness that was not used up, because a later edge
//! would not tell it again.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::sync::Arc;
use std::time::Duration;

use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};

use super::connections::Connections;
use super::control::Control;
use super::drain::{Drain, Step};
use super::identity_files::IdentityPort;
use super::listener::{Accepted, Acceptor, Listener, Stream};
use crate::clock;
use crate::engine::time::Time;
use crate::ids::SessionId;
use crate::worker::{Action, PeerEnd, Protocol, Worker};

/// Most bytes read from one session per turn; with [`crate::worker`]'s step budget
/// this bounds how long one session can keep the others waiting.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// Events taken from the kernel per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Connections accepted per turn, so that a storm of them does not keep sessions waiting.
const ACCEPTS_PER_TURN: usize = 64;
/// Longest sleep while anything is timed: epoll_wait does not count suspend, the
/// deadlines do.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// Tokens of what is not a session lie above every [`SessionId`] of loops in use.
const WAKER: Token = Token(usize::MAX);
const FIRST_LISTENER: usize = usize::MAX - 1024;

/// One connection's socket and what is known of its readiness.
#[derive(Debug)]
struct Connection {
    stream: Stream,
    /// A read may find bytes; stays set until a read comes up short.
    readable: bool,
    /// The kernel reported an end or an error: read until it shows.
    read_to_end: bool,
    /// A write may succeed; cleared when one would block.
    writable: bool,
    /// Listed in [`EpollLoop::ready`].
    listed: bool,
}

#[derive(Debug)]
struct Listening {
    protocol: Protocol,
    acceptor: Acceptor,
    ready: bool,
    rest_until: Time,
}

/// One event loop.
pub(super) struct EpollLoop {
    poll: Poll,
    worker: Worker,
    identities: IdentityPort,
    listeners: Vec<Listening>,
    connections: Connections<Connection>,
    /// Connections to read in the next turn, each once.
    ready: Vec<SessionId>,
    /// Those being read in this turn; kept for its allocation.
    reading: Vec<SessionId>,
    chunk: Box<[u8]>,
    drain: Drain,
}

impl EpollLoop {
    /// A loop that serves `listeners` and obeys `control`.
    ///
    /// # Errors
    /// The kernel refused an epoll instance or an eventfd.
    pub(super) fn new(
        worker: Worker,
        listeners: Vec<(Protocol, Listener)>,
        identities: IdentityPort,
        control: Arc<Control>,
    ) -> io::Result<EpollLoop> {
        let poll = Poll::new()?;
        let waker = control.waker().as_fd().as_raw_fd();
        poll.registry()
            .register(&mut SourceFd(&waker), WAKER, Interest::READABLE)?;
        let mut listening = Vec::new();
        for (index, (protocol, listener)) in listeners.into_iter().enumerate() {
            let mut acceptor = Acceptor::new(listener);
            if let Some(source) = acceptor.source() {
                let token = Token(FIRST_LISTENER + index);
                poll.registry()
                    .register(source, token, Interest::READABLE)?;
            }
            listening.push(Listening {
                protocol,
                acceptor,
                ready: true,
                rest_until: Time::ZERO,
            });
        }
        Ok(EpollLoop {
            poll,
            worker,
            identities,
            listeners: listening,
            connections: Connections::default(),
            ready: Vec::new(),
            reading: Vec::new(),
            chunk: vec![0; READ_CHUNK_BYTES].into_boxed_slice(),
            drain: Drain::new(control),
        })
    }

    /// Serves until a drain is over.
    ///
    /// # Errors
    /// epoll itself failed; nothing a peer does leads there.
    pub(super) fn run(mut self) -> io::Result<()> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        while !self.obey() {
            self.gather(&mut events)?;
            self.accept();
            self.read_ready();
            self.identities.exchange(&mut self.worker);
            for _ in 0..self.worker.backlog_len() {
                self.worker.handle_backlog(clock::now());
            }
            self.worker.handle_large_request(clock::now());
            self.worker.handle_timeouts(clock::now());
            self.flush();
        }
        Ok(())
    }

    /// Follows orders and moves a drain on. Returns whether the loop is over.
    fn obey(&mut self) -> bool {
        match self.drain.step(&mut self.worker, clock::now()) {
            Step::Serve => false,
            Step::StopNative => {
                for listening in &mut self.listeners {
                    if listening.protocol == Protocol::Native {
                        listening.acceptor.close();
                    }
                }
                false
            }
            Step::StopAll => {
                self.listeners.clear();
                false
            }
            Step::End => true,
        }
    }

    /// Sleeps until something is due or ready, and notes what is ready.
    fn gather(&mut self, events: &mut Events) -> io::Result<()> {
        let timeout = self.sleep_for();
        match self.poll.poll(events, timeout) {
            Err(error) if error.kind() == ErrorKind::Interrupted => events.clear(),
            other => other?,
        }
        for event in events.iter() {
            let token = event.token();
            if token == WAKER {
                continue;
            }
            if let Some(index) = token.0.checked_sub(FIRST_LISTENER) {
                if let Some(listening) = self.listeners.get_mut(index) {
                    listening.ready = true;
                }
                continue;
            }
            let id = SessionId::from_bits(token.0 as u64);
            let Some(connection) = self.connections.get_mut(id) else {
                continue;
            };
            // An error is found out by writing where reading is held back.
            if (event.is_writable() || event.is_error()) && !connection.writable {
                connection.writable = true;
                self.worker.mark_dirty(id);
            }
            if event.is_read_closed() || event.is_error() || event.is_write_closed() {
                connection.read_to_end = true;
                connection.readable = true;
            }
            connection.readable |= event.is_readable();
            if connection.readable {
                list(id, connection, &mut self.ready);
            }
        }
        Ok(())
    }

    fn sleep_for(&self) -> Option<Duration> {
        let now = clock::now();
        let accepting = self
            .listeners
            .iter()
            .any(|listening| listening.ready && listening.rest_until <= now);
        if accepting || !self.ready.is_empty() || self.worker.has_work() {
            return Some(Duration::ZERO);
        }
        let resting = self
            .listeners
            .iter()
            .filter(|listening| listening.ready)
            .map(|listening| listening.rest_until);
        let due = resting
            .chain(self.drain.poll_timeout())
            .chain(self.worker.poll_timeout())
            .min()?;
        let nanos = due.as_nanos().saturating_sub(now.as_nanos());
        Some(Duration::from_nanos(nanos).min(MAX_SLEEP))
    }

    fn accept(&mut self) {
        let now = clock::now();
        for listening in &mut self.listeners {
            if !listening.ready || listening.rest_until > now {
                continue;
            }
            for _ in 0..ACCEPTS_PER_TURN {
                match listening.acceptor.accept(now) {
                    Accepted::Stream(mut stream) => {
                        let protocol = listening.protocol;
                        // Read anew: its time must not begin before it was there.
                        let since = clock::now();
                        let Some(id) = self.worker.handle_accepted(protocol, since) else {
                            continue;
                        };
                        let interest = Interest::READABLE | Interest::WRITABLE;
                        let registry = self.poll.registry();
                        if registry
                            .register(stream.source(), token_of(id), interest)
                            .is_err()
                        {
                            // No memory for the watch: turned away like one over the limit.
                            self.worker.handle_closed(id);
                            continue;
                        }
                        let connection = Connection {
                            stream,
                            readable: false,
                            read_to_end: false,
                            writable: true,
                            listed: false,
                        };
                        self.connections.insert(id, connection);
                    }
                    Accepted::Lost => {}
                    Accepted::Nobody => {
                        listening.ready = false;
                        break;
                    }
                    Accepted::RestUntil(time) => {
                        listening.rest_until = time;
                        break;
                    }
                }
            }
        }
    }

    /// Reads one chunk from every connection that has something.
    fn read_ready(&mut self) {
        std::mem::swap(&mut self.ready, &mut self.reading);
        for id in self.reading.drain(..) {
            let Some(connection) = self.connections.get_mut(id) else {
                continue;
            };
            connection.listed = false;
            // Pushed back, its readiness is kept until `flush` lists it again.
            if !self.worker.wants_input(id) {
                continue;
            }
            match connection.stream.read(&mut self.chunk) {
                Ok(0) => {
                    connection.readable = false;
                    self.worker.handle_end(id, PeerEnd::Fin, clock::now());
                }
                Ok(count) => {
                    // A short read has emptied the socket: what comes later makes an edge.
                    // An end that was announced already makes none.
                    connection.readable = count == self.chunk.len() || connection.read_to_end;
                    if connection.readable {
                        list(id, connection, &mut self.ready);
                    }
                    self.worker
                        .handle_received(id, &self.chunk[..count], clock::now());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => connection.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    list(id, connection, &mut self.ready);
                }
                Err(_) => {
                    connection.readable = false;
                    self.worker.handle_end(id, PeerEnd::Broken, clock::now());
                }
            }
        }
    }

    /// Writes every session that is owed something, and closes those at their end.
    fn flush(&mut self) {
        let now = clock::now();
        while let Some(id) = self.worker.poll_dirty() {
            let Some(connection) = self.connections.get_mut(id) else {
                continue;
            };
            let closed = loop {
                match self.worker.poll_action(id, now) {
                    Action::Write(_) if !connection.writable => {
                        self.worker.handle_blocked(id, now);
                        break false;
                    }
                    Action::Write(bytes) => match connection.stream.write(bytes) {
                        Ok(count) => {
                            // A short write has filled the socket; room makes an edge.
                            connection.writable = count == bytes.len();
                            self.worker.handle_submitted(id, count);
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            connection.writable = false;
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => self.worker.handle_end(id, PeerEnd::Broken, now),
                    },
                    Action::ShutdownWrite => {
                        if connection.stream.shutdown_write().is_err() {
                            self.worker.handle_end(id, PeerEnd::Broken, now);
                        }
                    }
                    Action::Close => break true,
                    Action::Wait => break false,
                }
            };
            if closed {
                self.connections.remove(id);
                self.worker.handle_closed(id);
            } else if connection.readable && self.worker.wants_input(id) {
                list(id, connection, &mut self.ready);
            }
        }
    }
}

fn token_of(id: SessionId) -> Token {
    Token(id.to_bits() as usize)
}

fn list(id: SessionId, connection: &mut Connection, ready: &mut Vec<SessionId>) {
    if !connection.listed {
        connection.listed = true;
        ready.push(id);
    }
}
