//! The readiness driver: one loop on epoll, through mio.
//!
//! Edge-triggered. A socket is read until a read comes up short, one chunk per
//! turn; a flag remembers readiness that was not used up, because a later edge
//! would not tell it again.

use std::io::{self, ErrorKind};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::time::Duration;

use log::warn;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use super::connections::Connections;
use super::drain::Step;
use super::listener::{Accepted, Acceptor, Listener, Stream};
use super::loops::Arrival;
use super::turn::{Place, Turn};
use crate::clock;
use crate::engine::time::Time;
use crate::ids::SessionId;
use crate::worker::{Action, PeerEnd, Protocol};

/// Most bytes read from one session per turn; with [`crate::worker`]'s step budget
/// this bounds how long one session can keep the others waiting.
const READ_CHUNK_BYTES: usize = 64 * 1024;
/// Events taken from the kernel per turn.
const EVENTS_PER_TURN: usize = 1024;
/// Connections accepted per turn, so that a storm of them does not keep sessions waiting.
const ACCEPTS_PER_TURN: usize = 64;

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
    turn: Turn,
    listeners: Vec<Listening>,
    connections: Connections<Connection>,
    /// Connections to read in the next turn, each once.
    ready: Vec<SessionId>,
    /// Those being read in this turn; kept for its allocation.
    reading: Vec<SessionId>,
    chunk: Box<[u8]>,
}

impl EpollLoop {
    /// A loop that serves `listeners`.
    ///
    /// # Errors
    /// The kernel refused an epoll instance or an eventfd.
    pub(super) fn new(turn: Turn, listeners: Vec<(Protocol, Listener)>) -> io::Result<EpollLoop> {
        let poll = Poll::new()?;
        let waker = turn.waker().as_fd().as_raw_fd();
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
            turn,
            listeners: listening,
            connections: Connections::default(),
            ready: Vec::new(),
            reading: Vec::new(),
            chunk: vec![0; READ_CHUNK_BYTES].into_boxed_slice(),
        })
    }

    /// Serves until a drain is over. Returns when the last lease ends that is left.
    ///
    /// # Errors
    /// epoll itself failed; nothing a peer does leads there.
    pub(super) fn run(mut self) -> io::Result<Time> {
        let mut events = Events::with_capacity(EVENTS_PER_TURN);
        while !self.obey() {
            self.gather(&mut events)?;
            self.accept();
            self.take_arrivals();
            self.read_ready();
            self.turn.judge();
            self.flush();
            self.turn.tell_others();
        }
        Ok(self.turn.end())
    }

    /// Follows orders and moves a drain on. Returns whether the loop is over.
    fn obey(&mut self) -> bool {
        match self.turn.obey() {
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
        self.turn.begin(events.iter().count());
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
                self.turn.worker.mark_dirty(id);
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

    fn sleep_for(&mut self) -> Option<Duration> {
        if !self.ready.is_empty() {
            return Some(Duration::ZERO);
        }
        let accepting = self
            .listeners
            .iter()
            .filter(|listening| listening.ready)
            .map(|listening| listening.rest_until);
        self.turn.sleep_for(accepting)
    }

    fn accept(&mut self) {
        let now = clock::now();
        for listening in &mut self.listeners {
            if !listening.ready || listening.rest_until > now {
                continue;
            }
            for _ in 0..ACCEPTS_PER_TURN {
                match listening.acceptor.accept(now) {
                    Accepted::Stream(stream) => match self.turn.place(listening.protocol) {
                        Some(Place::Here(id)) => {
                            let registry = self.poll.registry();
                            watch(registry, &mut self.connections, &mut self.turn, id, stream);
                        }
                        Some(Place::There(to)) => {
                            let socket = stream.into();
                            self.turn.loops.hand_over(
                                to,
                                Arrival {
                                    socket,
                                    input: None,
                                },
                            );
                        }
                        None => {}
                    },
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

    /// Takes in what other loops have handed over.
    fn take_arrivals(&mut self) {
        for (id, Arrival { socket, input }) in self.turn.take_arrivals() {
            let registry = self.poll.registry();
            watch(
                registry,
                &mut self.connections,
                &mut self.turn,
                id,
                socket.into(),
            );
            if let Some(input) = input {
                self.turn.worker.handle_received(id, &input, clock::now());
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
            if !self.turn.worker.wants_input(id) {
                continue;
            }
            match connection.stream.read(&mut self.chunk) {
                Ok(0) => {
                    connection.readable = false;
                    self.turn.worker.handle_end(id, PeerEnd::Fin, clock::now());
                }
                Ok(count) => {
                    // A short read has emptied the socket: what comes later makes an edge.
                    // An end that was announced already makes none.
                    connection.readable = count == self.chunk.len() || connection.read_to_end;
                    if connection.readable {
                        list(id, connection, &mut self.ready);
                    }
                    self.turn
                        .worker
                        .handle_received(id, &self.chunk[..count], clock::now());
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => connection.readable = false,
                Err(error) if error.kind() == ErrorKind::Interrupted => {
                    list(id, connection, &mut self.ready);
                }
                Err(_) => {
                    connection.readable = false;
                    self.turn
                        .worker
                        .handle_end(id, PeerEnd::Broken, clock::now());
                }
            }
        }
    }

    /// Sends a session to the loop it wants. Its socket says there again what it has
    /// said here: whatever is to be read, its end included.
    fn hand_over(&mut self, id: SessionId, to: u16) {
        let Some(input) = self.turn.worker.take_moving(id) else {
            return;
        };
        let Some(Connection { stream, .. }) = self.connections.remove(id) else {
            return self.turn.loops.loads.leave(id.loop_index());
        };
        let registry = self.poll.registry();
        match registry.deregister(&mut SourceFd(&stream.as_raw_fd())) {
            Ok(()) => self.turn.hand_over(to, stream.into(), input),
            Err(error) => {
                warn!("cannot move {id:?}: {error}");
                self.turn.loops.loads.leave(id.loop_index());
            }
        }
    }

    /// Writes every session that is owed something, and closes those at their end.
    fn flush(&mut self) {
        let now = clock::now();
        while let Some(id) = self.turn.worker.poll_dirty() {
            let Some(connection) = self.connections.get_mut(id) else {
                continue;
            };
            let end = loop {
                match self.turn.worker.poll_action(id, now) {
                    Action::Write(_) if !connection.writable => {
                        self.turn.worker.handle_blocked(id, now);
                        break End::None;
                    }
                    Action::Write(bytes) => match connection.stream.write(bytes) {
                        Ok(count) => {
                            // A short write has filled the socket; room makes an edge.
                            connection.writable = count == bytes.len();
                            self.turn.worker.handle_submitted(id, count);
                        }
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {
                            connection.writable = false;
                        }
                        Err(error) if error.kind() == ErrorKind::Interrupted => {}
                        Err(_) => self.turn.worker.handle_end(id, PeerEnd::Broken, now),
                    },
                    Action::ShutdownWrite => {
                        if connection.stream.shutdown_write().is_err() {
                            self.turn.worker.handle_end(id, PeerEnd::Broken, now);
                        }
                    }
                    Action::Close => break End::Close,
                    Action::Move(to) => break End::Move(to),
                    Action::Wait => break End::None,
                }
            };
            match end {
                End::None => {
                    if connection.readable && self.turn.worker.wants_input(id) {
                        list(id, connection, &mut self.ready);
                    }
                }
                End::Close => {
                    self.connections.remove(id);
                    self.turn.handle_closed(id);
                }
                End::Move(to) => self.hand_over(id, to),
            }
        }
    }
}

/// What becomes of a connection once its session was looked at.
enum End {
    None,
    Close,
    Move(u16),
}

/// Begins to watch a session's connection.
fn watch(
    registry: &Registry,
    connections: &mut Connections<Connection>,
    turn: &mut Turn,
    id: SessionId,
    stream: Stream,
) {
    let interest = Interest::READABLE | Interest::WRITABLE;
    let watched = registry.register(&mut SourceFd(&stream.as_raw_fd()), token_of(id), interest);
    if watched.is_err() {
        // No memory for the watch: turned away like one over the limit.
        turn.handle_closed(id);
        return;
    }
    let connection = Connection {
        stream,
        readable: false,
        read_to_end: false,
        writable: true,
        listed: false,
    };
    connections.insert(id, connection);
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
