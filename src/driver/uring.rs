//! The completion driver: one loop on an io_uring of its own.
//!
//! Accepting and receiving are asked for once and go on by themselves (multishot),
//! receives fill buffers of a pool that all sessions share, and everything asked
//! for in a turn is handed over by the one system call that the next sleep makes.
//! What the kernel still works on outlives nobody: a connection is closed when its
//! last operation is through.

mod buffers;
mod probe;
mod ring;
mod setup;
#[cfg(test)]
mod tests;
mod user_data;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::time::Duration;

use log::{debug, info};
use rustix::io::Errno;
use slab::Slab;

pub(super) use probe::probe;

use super::connections::Connections;
use super::drain::Step;
use super::listener::{ACCEPT_REST_MS, AcceptLog, Listener, is_of_one_connection};
use super::loops::Arrival;
use super::turn::{Place, Turn};
use crate::clock;
use crate::engine::time::Time;
use crate::ids::SessionId;
use crate::stats::RingCounters;
use crate::worker::{Action, PeerEnd, Protocol};
use ring::{Accepted, Completion, DirectFd, Received, Ring};
pub(super) use setup::RingOptions;

/// A listening socket and how far it accepts.
#[derive(Debug)]
struct Listening {
    protocol: Protocol,
    /// It is to accept nobody any more.
    stopping: bool,
    /// `None` once the kernel has let go of it.
    listener: Option<Listener>,
    armed: bool,
    rest_until: Time,
}

/// One connection's socket and what the kernel is doing for it.
#[derive(Debug)]
struct Connection {
    /// `None` once it is being closed.
    fd: Option<DirectFd>,
    receiving: Receiving,
    /// It was given a buffer since it was last armed.
    fed: bool,
    /// A send is under way.
    sending: bool,
    /// It waits for the peer to take something.
    blocked: bool,
    /// The sending side is being shut down.
    shutting_down: bool,
    /// The worker has let go of it.
    closing: bool,
    /// The loop it goes to once the kernel works on nothing of it.
    moving: Option<u16>,
    /// It comes from another loop: its socket is not in the ring's table yet, and
    /// these bytes of it are received already.
    arriving: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    /// Nothing is asked of the kernel.
    Idle,
    /// The kernel hands over whatever comes.
    Armed,
    /// The kernel was told to stop; its last completion is still to come.
    Stopping,
    /// Begins again when buffers are back and its turn has come.
    Starved,
    /// Nothing comes any more.
    Ended,
}

impl Connection {
    const IDLE: Connection = Connection {
        fd: None,
        receiving: Receiving::Idle,
        fed: false,
        sending: false,
        blocked: false,
        shutting_down: false,
        closing: false,
        moving: None,
        arriving: None,
    };

    /// The kernel may still hand over bytes.
    fn is_receiving(&self) -> bool {
        matches!(self.receiving, Receiving::Armed | Receiving::Stopping)
    }
}

/// A socket on its way out of the ring's table, to another loop.
struct Departure {
    to: u16,
    input: Option<Vec<u8>>,
}

/// One event loop.
pub(super) struct UringLoop {
    ring: Ring,
    turn: Turn,
    listeners: Vec<Listening>,
    accept_log: AcceptLog,
    connections: Connections<Connection>,
    /// What the kernel has done; kept for its allocation.
    completions: Vec<Completion>,
    /// Sessions whose receive found no buffer, in the order in which they begin again.
    starved: VecDeque<SessionId>,
    /// Those of this turn that were given none since they began; they go first.
    unfed: Vec<SessionId>,
    /// Sessions of which an operation could not be cancelled at the first try.
    uncancelled: Vec<SessionId>,
    departures: Slab<Departure>,
    counters: RingCounters,
}

impl UringLoop {
    /// A loop that serves `listeners`. Any thread may then run it.
    ///
    /// # Errors
    /// The kernel refused the ring; [`probe`] says why.
    pub(super) fn new(
        turn: Turn,
        listeners: Vec<(Protocol, Listener)>,
        options: RingOptions,
    ) -> io::Result<UringLoop> {
        let listening = |(protocol, listener)| Listening {
            protocol,
            stopping: false,
            listener: Some(listener),
            armed: false,
            rest_until: Time::ZERO,
        };
        let ring = Ring::new(options, turn.worker.loop_index())?;
        info!("{ring}");
        Ok(UringLoop {
            ring,
            turn,
            listeners: listeners.into_iter().map(listening).collect(),
            accept_log: AcceptLog::default(),
            connections: Connections::default(),
            completions: Vec::new(),
            starved: VecDeque::new(),
            unfed: Vec::new(),
            uncancelled: Vec::new(),
            departures: Slab::new(),
            counters: RingCounters::default(),
        })
    }

    /// Serves until a drain is over. Returns when the last lease ends that is left.
    ///
    /// # Errors
    /// The ring itself failed; nothing a peer does leads there.
    pub(super) fn run(&mut self) -> io::Result<Time> {
        self.start()?;
        while !self.obey() {
            let sleep = self.sleep_for();
            self.turn(sleep)?;
        }
        let last_deadline = self.turn.end();
        debug!(
            "loop {}: {:?}",
            self.turn.worker.loop_index(),
            self.counters()
        );
        Ok(last_deadline)
    }

    /// Makes the calling thread the loop's.
    fn start(&mut self) -> io::Result<()> {
        self.ring.enable()?;
        self.ring.watch(self.turn.waker().as_fd());
        self.resume_accepting();
        Ok(())
    }

    fn turn(&mut self, sleep: Option<Duration>) -> io::Result<()> {
        self.ring.submit_and_wait(sleep)?;
        self.gather();
        self.take_arrivals();
        self.resume_starved();
        self.cancel_again();
        self.turn.judge();
        self.flush();
        self.turn.tell_others();
        self.resume_accepting();
        Ok(())
    }

    /// What happened to the ring since the start.
    pub(super) fn counters(&self) -> RingCounters {
        self.ring.count(self.counters)
    }

    /// Follows orders and moves a drain on. Returns whether the loop is over.
    fn obey(&mut self) -> bool {
        match self.turn.obey() {
            Step::Serve => false,
            Step::StopNative => {
                self.stop_accepting(|protocol| protocol == Protocol::Native);
                false
            }
            Step::StopAll => {
                self.stop_accepting(|_| true);
                false
            }
            Step::End => true,
        }
    }

    /// Takes what the kernel has done.
    fn gather(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.reap(&mut completions);
        self.counters.completions += completions.len() as u64;
        self.turn.begin(completions.len());
        for completion in completions.drain(..) {
            self.handle(completion);
        }
        self.completions = completions;
    }

    fn sleep_for(&mut self) -> Option<Duration> {
        if !self.starved.is_empty() || self.awaits_quick_send() {
            return Some(Duration::ZERO);
        }
        let resting = self
            .listeners
            .iter()
            .filter(|listening| listening.listener.is_some() && !listening.armed)
            .map(|listening| listening.rest_until);
        self.turn.sleep_for(resting)
    }

    /// A session closes, or reads on, once a send is done that may say nothing when
    /// it is: nobody would end the sleep for it.
    fn awaits_quick_send(&self) -> bool {
        self.ring
            .quick_sends()
            .any(|id| !self.turn.worker.wants_input(id))
    }

    fn handle(&mut self, completion: Completion) {
        match completion {
            Completion::Accepted {
                listener,
                outcome,
                armed,
            } => self.handle_accepted(listener, outcome, armed),
            Completion::Received { id, outcome, armed } => self.handle_received(id, outcome, armed),
            Completion::Sent { id, outcome } => self.handle_sent(id, outcome),
            Completion::ShutDown { id, outcome } => {
                if let Some(connection) = self.connections.get_mut(id) {
                    connection.shutting_down = false;
                }
                if outcome.is_err() {
                    self.turn
                        .worker
                        .handle_end(id, PeerEnd::Broken, clock::now());
                }
                self.close_if_idle(id);
            }
            Completion::Installed { key, outcome } => self.handle_installed(key, outcome),
            Completion::Adopted { id, outcome } => self.handle_adopted(id, outcome),
            Completion::NotCancelled { id } => {
                self.counters.not_cancelled += 1;
                self.uncancelled.push(id);
            }
            Completion::Closed { id } => {
                self.connections.remove(id);
                self.turn.handle_closed(id);
            }
            Completion::Woken { armed: true } => {}
            Completion::Woken { armed: false } => self.ring.watch(self.turn.waker().as_fd()),
        }
    }

    fn handle_accepted(&mut self, index: usize, outcome: Accepted, armed: bool) {
        let now = clock::now();
        let listening = &mut self.listeners[index];
        listening.armed = armed;
        if listening.stopping {
            if armed {
                self.ring.cancel_accept(index);
            } else {
                listening.listener = None;
            }
            if let Accepted::Connection(fd) = outcome {
                self.ring.discard(fd);
            }
            return;
        }
        self.counters.accepts_rearmed += u64::from(!armed);
        match outcome {
            Accepted::Connection(fd) => {
                let protocol = listening.protocol;
                self.open(fd, protocol);
            }
            Accepted::NoSlot => {
                self.counters.turned_away += 1;
                let why = "every slot for a connection is taken";
                self.accept_log.turned_away(now, &why);
            }
            Accepted::Failed(error) if is_of_one_connection(error) => {}
            // No room, or what nobody foresaw: trying it without a pause would spin.
            Accepted::Failed(error) => {
                self.counters.accept_rests += 1;
                listening.rest_until = now.plus_millis(ACCEPT_REST_MS);
                self.accept_log.rested(now, &error);
            }
        }
    }

    fn open(&mut self, fd: DirectFd, protocol: Protocol) {
        match self.turn.place(protocol) {
            Some(Place::Here(id)) => {
                self.ring.receive(&fd, id);
                let connection = Connection {
                    fd: Some(fd),
                    receiving: Receiving::Armed,
                    ..Connection::IDLE
                };
                self.connections.insert(id, connection);
            }
            Some(Place::There(to)) => self.depart(fd, Departure { to, input: None }),
            None => self.ring.discard(fd),
        }
    }

    /// Sends a socket to another loop: first it becomes a descriptor of the process.
    fn depart(&mut self, fd: DirectFd, departure: Departure) {
        let key = self.departures.insert(departure);
        self.ring.install(fd, key);
    }

    fn handle_installed(&mut self, key: usize, outcome: Result<OwnedFd, Errno>) {
        let Departure { to, input } = self.departures.remove(key);
        match outcome {
            Ok(socket) => self.turn.loops.hand_over(to, Arrival { socket, input }),
            Err(error) => {
                self.accept_log.lost(clock::now(), &error);
                self.turn.loops.loads.leave(to);
            }
        }
    }

    /// Takes in what other loops have handed over.
    fn take_arrivals(&mut self) {
        for (id, Arrival { socket, input }) in self.turn.take_arrivals() {
            let connection = Connection {
                arriving: Some(input.unwrap_or_default()),
                ..Connection::IDLE
            };
            self.connections.insert(id, connection);
            self.ring.adopt(socket, id);
        }
    }

    fn handle_adopted(&mut self, id: SessionId, outcome: Result<DirectFd, Errno>) {
        let Some(connection) = self.connections.get_mut(id) else {
            unreachable!("a connection outlives its operations");
        };
        let input = connection.arriving.take().unwrap_or_default();
        match outcome {
            Ok(fd) => {
                connection.fd = Some(fd);
                if !connection.closing {
                    self.turn.worker.handle_received(id, &input, clock::now());
                    // What it was answered before it had a socket.
                    self.turn.worker.mark_dirty(id);
                    self.resume_receiving(id);
                }
                self.close_if_idle(id);
            }
            Err(error) => {
                let now = clock::now();
                self.accept_log.lost(now, &error);
                self.connections.remove(id);
                self.turn.worker.handle_end(id, PeerEnd::Broken, now);
                self.turn.handle_closed(id);
            }
        }
    }

    fn handle_received(&mut self, id: SessionId, outcome: Received, armed: bool) {
        let Some(connection) = self.connections.get_mut(id) else {
            unreachable!("a connection outlives its operations");
        };
        if !armed {
            connection.receiving = match outcome {
                Received::Bytes(_) | Received::Cancelled => Receiving::Idle,
                Received::NoBuffer => Receiving::Starved,
                Received::End | Received::Failed(_) => Receiving::Ended,
            };
        }
        match outcome {
            Received::Bytes(chunk) => {
                self.counters.receives_rearmed += u64::from(!armed);
                connection.fed = true;
                let bytes = self.ring.bytes(&chunk);
                self.turn.worker.handle_received(id, bytes, clock::now());
                self.ring.give_back(chunk);
            }
            Received::End => self.turn.worker.handle_end(id, PeerEnd::Fin, clock::now()),
            Received::Failed(error) => {
                debug!("{id:?} is broken: {error}");
                self.turn
                    .worker
                    .handle_end(id, PeerEnd::Broken, clock::now());
            }
            Received::NoBuffer => {
                self.counters.buffers_exhausted += 1;
                if connection.fed {
                    self.starved.push_back(id);
                } else {
                    self.unfed.push(id);
                }
            }
            Received::Cancelled => {}
        }
        if connection.closing {
            self.close_if_idle(id);
        } else if connection.receiving == Receiving::Armed && !self.turn.worker.wants_input(id) {
            connection.receiving = Receiving::Stopping;
            self.counters.receives_paused += 1;
            self.ring.cancel_receive(id);
        } else {
            self.resume_receiving(id);
        }
    }

    fn handle_sent(&mut self, id: SessionId, outcome: Result<usize, Errno>) {
        let Some(connection) = self.connections.get_mut(id) else {
            unreachable!("a connection outlives its operations");
        };
        match outcome {
            Ok(count) => {
                self.turn.worker.handle_sent(id, count);
                if self.ring.unsent_bytes(id) > 0 {
                    self.counters.short_sends += 1;
                    if let Some(fd) = &connection.fd
                        && !connection.closing
                    {
                        connection.blocked = true;
                        self.ring.send_rest(fd, id);
                        self.turn.worker.handle_blocked(id, clock::now());
                        return;
                    }
                }
            }
            Err(error) => {
                debug!("{id:?} takes nothing: {error}");
                self.turn
                    .worker
                    .handle_end(id, PeerEnd::Broken, clock::now());
            }
        }
        connection.sending = false;
        connection.blocked = false;
        self.turn.worker.return_buffer(self.ring.take_back(id));
        self.resume_receiving(id);
        self.close_if_idle(id);
    }

    /// Writes every session that is owed something, and closes those at their end.
    fn flush(&mut self) {
        let now = clock::now();
        while let Some(id) = self.turn.worker.poll_dirty() {
            let Some(connection) = self.connections.get_mut(id) else {
                continue;
            };
            let Some(fd) = connection.fd.as_ref().filter(|_| !connection.closing) else {
                continue;
            };
            if connection.blocked {
                // What is owed has grown meanwhile.
                self.turn.worker.handle_blocked(id, now);
            }
            let closing = loop {
                match self.turn.worker.poll_action(id, now) {
                    Action::Write(_) => {
                        connection.sending = true;
                        let bytes = self.turn.worker.take_output(id);
                        self.ring.send(fd, id, bytes);
                    }
                    Action::ShutdownWrite => {
                        connection.shutting_down = true;
                        self.ring.shutdown_write(fd, id);
                    }
                    Action::Close => break true,
                    Action::Move(to) => {
                        connection.moving = Some(to);
                        break true;
                    }
                    Action::Wait => break false,
                }
            };
            if closing {
                self.close(id);
            } else {
                self.resume_receiving(id);
            }
        }
    }

    /// Receives again if it does not and the worker wants it to.
    fn resume_receiving(&mut self, id: SessionId) {
        if let Some(connection) = self.connections.get_mut(id)
            && connection.receiving == Receiving::Idle
            && self.turn.worker.wants_input(id)
            && let Some(fd) = &connection.fd
        {
            connection.receiving = Receiving::Armed;
            connection.fed = false;
            self.ring.receive(fd, id);
        }
    }

    /// All buffers of this turn are back: as many of those that found none go on. The
    /// first of them may take all that there are; the others keep their places.
    fn resume_starved(&mut self) {
        for id in self.unfed.drain(..).rev() {
            self.starved.push_front(id);
        }
        let count = self.starved.len().min(self.ring.buffer_count());
        for _ in 0..count {
            if let Some(id) = self.starved.pop_front()
                && let Some(connection) = self.connections.get_mut(id)
                && connection.receiving == Receiving::Starved
            {
                connection.receiving = Receiving::Idle;
                self.resume_receiving(id);
            }
        }
    }

    /// Ends what the kernel is doing for a session, then its connection.
    fn close(&mut self, id: SessionId) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        connection.closing = true;
        if connection.is_receiving() {
            self.counters.cancelled += 1;
        }
        if connection.receiving == Receiving::Armed {
            connection.receiving = Receiving::Stopping;
            self.ring.cancel_receive(id);
        }
        if connection.sending {
            self.counters.cancelled += 1;
            self.ring.cancel_send(id);
        }
        self.close_if_idle(id);
    }

    /// Closes a connection that is to be closed once the kernel works on nothing of it.
    fn close_if_idle(&mut self, id: SessionId) {
        let Some(connection) = self.connections.get_mut(id) else {
            return;
        };
        let busy = connection.is_receiving() || connection.sending || connection.shutting_down;
        if connection.closing
            && !busy
            && let Some(fd) = connection.fd.take()
        {
            let moving = connection.moving.take();
            if let Some(to) = moving
                && let Some(input) = self.turn.worker.take_moving(id)
            {
                self.connections.remove(id);
                self.turn.loops.loads.moved(id.loop_index(), to);
                let input = Some(input);
                self.depart(fd, Departure { to, input });
            } else {
                self.ring.close(fd, id);
            }
        }
    }

    /// Cancels what could not be: it was between two steps, or is over by now.
    fn cancel_again(&mut self) {
        for id in self.uncancelled.drain(..) {
            let Some(connection) = self.connections.get_mut(id) else {
                continue;
            };
            if connection.receiving == Receiving::Stopping {
                self.ring.cancel_receive(id);
            }
            if connection.closing && connection.sending {
                self.ring.cancel_send(id);
            }
        }
    }

    /// Accepts wherever it does not, unless it rests.
    fn resume_accepting(&mut self) {
        for (index, listening) in self.listeners.iter_mut().enumerate() {
            if let Some(listener) = &listening.listener
                && !listening.armed
                && (listening.rest_until == Time::ZERO || listening.rest_until <= clock::now())
            {
                listening.armed = true;
                listening.rest_until = Time::ZERO;
                self.ring.accept(listener.as_fd(), index);
            }
        }
    }

    fn stop_accepting(&mut self, which: fn(Protocol) -> bool) {
        for (index, listening) in self.listeners.iter_mut().enumerate() {
            if !which(listening.protocol) || listening.stopping {
                continue;
            }
            listening.stopping = true;
            if listening.armed {
                // Its last completion lets go of it: until then its number must not
                // name another file.
                self.ring.cancel_accept(index);
            } else {
                listening.listener = None;
            }
        }
    }
}
