//! One loop as a driver plays it, one small step at a time, so that other loops,
//! clients and the clock may do anything between two steps.

use std::collections::{BTreeMap, VecDeque};

use fastrand::Rng;
use leasehold::engine::time::Time;
use leasehold::ids::SessionId;
use leasehold::worker::{Action, BATCHES_PER_TURN, PeerEnd, Protocol, Worker};

use crate::env::Env;
use crate::link::Server;
use crate::options::{LINGER_MS, PEER_TIMEOUT_MS, REQUEST_TIMEOUT_MS, Style};

/// Where in its turn a loop is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Begin,
    Completions,
    Arrivals,
    Read,
    Gather { batches_left: usize },
    Judge { batches_left: usize },
    Room,
    Backlog { left: usize },
    Large,
    Timeouts,
    Flush { now: Time },
    Wakes,
    Sleep,
}

/// What the kernel does meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Send(SessionId),
    ShutDown(SessionId),
    Close(SessionId),
    LetGo(SessionId, u16),
    Adopt(SessionId),
}

/// A connection that comes from another loop, or from a listener.
#[derive(Debug)]
pub(crate) struct Arrival {
    pub(crate) link: usize,
    /// What was received where it comes from.
    pub(crate) input: Option<Vec<u8>>,
}

/// Whether a completion driver receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Receiving {
    Idle,
    Armed,
    Stopping,
    Ended,
}

#[derive(Debug)]
struct Connection {
    link: usize,
    /// Copying: a read may find bytes.
    readable: bool,
    listed: bool,
    writable: bool,
    receiving: Receiving,
    /// Owning: what is sent, and how much of it the kernel has.
    sending: Option<(Vec<u8>, usize)>,
    blocked: bool,
    shutting_down: bool,
    closing: bool,
    moving: Option<u16>,
    /// A DLM request must have come by then.
    asks_until: Option<Time>,
    /// What came with it, until the kernel has adopted the socket.
    arriving: Option<Vec<u8>>,
}

/// One loop.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) worker: Worker,
    pub(crate) index: u16,
    /// What its engine takes before anything is asked of it.
    pub(crate) empty_bytes: u64,
    style: Style,
    stage: Stage,
    asleep: bool,
    due: Option<Time>,
    pub(crate) woken: bool,
    connections: BTreeMap<SessionId, Connection>,
    ready: VecDeque<SessionId>,
    reading: VecDeque<SessionId>,
    pub(crate) arrivals: VecDeque<Arrival>,
    /// What the kernel has not done yet, and what it has.
    ops: Vec<Op>,
    completed: VecDeque<Op>,
    pub(crate) sleeps: u64,
    /// Chance of its own, for what its kernel does.
    pub(crate) rng: Rng,
}

impl Host {
    pub(crate) fn new(worker: Worker, style: Style, rng: Rng) -> Host {
        Host {
            index: worker.loop_index(),
            empty_bytes: worker.engine().memory_bytes(),
            worker,
            style,
            stage: Stage::Begin,
            asleep: false,
            due: None,
            woken: false,
            connections: BTreeMap::new(),
            ready: VecDeque::new(),
            reading: VecDeque::new(),
            arrivals: VecDeque::new(),
            ops: Vec::new(),
            completed: VecDeque::new(),
            sleeps: 0,
            rng,
        }
    }

    /// When it wakes by itself, if it sleeps.
    pub(crate) fn sleeps_until(&self) -> Option<Time> {
        self.due.filter(|_| self.asleep)
    }

    pub(crate) fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// A loop that sleeps wakes in time for whatever its peers have only so long for.
    pub(crate) fn check_wakes_in_time(&self, env: &Env) {
        for (id, connection) in &self.connections {
            let link = &env.links[connection.link];
            let ends = [
                link.stuck_since
                    .filter(|_| link.room == 0 && link.server == Server::Open)
                    .map(|since| since.plus_millis(PEER_TIMEOUT_MS)),
                link.shut_down_at.map(|at| at.plus_millis(LINGER_MS)),
                connection
                    .asks_until
                    .filter(|_| link.is_asking() && link.server == Server::Open),
            ];
            for end in ends.into_iter().flatten() {
                assert!(
                    self.due.is_some_and(|due| due <= end),
                    "loop {} sleeps until {:?} and past the end of {id:?} at {end:?}: {link:?}",
                    self.index,
                    self.due
                );
            }
        }
    }

    /// Whether anything ends its sleep.
    pub(crate) fn is_runnable(&self, env: &Env) -> bool {
        !self.asleep
            || self.woken
            || self.due.is_some_and(|due| due <= env.now)
            || !self.completed.is_empty()
            || !self.arrivals.is_empty()
            || self.connections.values().any(|it| self.has_event(it, env))
    }

    fn has_event(&self, connection: &Connection, env: &Env) -> bool {
        let link = &env.links[connection.link];
        match (self.style, connection.receiving) {
            (Style::Copying, _) => link.read_edge || link.room_edge,
            (Style::Owning, Receiving::Stopping) => true,
            (Style::Owning, Receiving::Armed) => link.has_input(),
            (Style::Owning, Receiving::Idle | Receiving::Ended) => false,
        }
    }

    /// Has the kernel finish something, if there is something that it can. Returns
    /// whether there was.
    pub(crate) fn complete(&mut self, env: &mut Env) -> bool {
        let can: Vec<usize> = (0..self.ops.len())
            .filter(|&index| self.can_complete(self.ops[index], env))
            .collect();
        if can.is_empty() {
            return false;
        }
        let op = self.ops.swap_remove(can[env.rng.usize(..can.len())]);
        self.completed.push_back(op);
        true
    }

    fn can_complete(&self, op: Op, env: &Env) -> bool {
        let Op::Send(id) = op else {
            return true;
        };
        let connection = &self.connections[&id];
        let link = &env.links[connection.link];
        // The first try ends at once, whatever the kernel takes.
        !connection.blocked || link.room > 0 || link.is_reset() || connection.closing
    }

    /// The next small step of its turn.
    pub(crate) fn step(&mut self, env: &mut Env) {
        match self.stage {
            Stage::Begin => self.begin(env),
            Stage::Completions => match self.completed.pop_front() {
                Some(op) => self.handle_completed(op, env),
                None => self.stage = Stage::Arrivals,
            },
            Stage::Arrivals => match self.arrivals.pop_front() {
                Some(arrival) => self.take_arrival(arrival, env),
                None => {
                    std::mem::swap(&mut self.ready, &mut self.reading);
                    self.stage = Stage::Read;
                }
            },
            Stage::Read => match self.reading.pop_front() {
                Some(id) => self.read(id, env),
                None => {
                    self.stage = Stage::Gather {
                        batches_left: BATCHES_PER_TURN,
                    }
                }
            },
            Stage::Gather { batches_left } => {
                self.stage = match batches_left {
                    0 => Stage::Room,
                    _ if self.worker.gather_messages() == 0 => Stage::Room,
                    _ => Stage::Judge {
                        batches_left: batches_left - 1,
                    },
                }
            }
            Stage::Judge { batches_left } => {
                let now = env.read_clock();
                self.worker.handle_messages(now);
                self.stage = Stage::Gather { batches_left };
            }
            Stage::Room => {
                self.worker.handle_room();
                self.stage = Stage::Backlog {
                    left: self.worker.backlog_len(),
                };
            }
            Stage::Backlog { left: 0 } => self.stage = Stage::Large,
            Stage::Backlog { left } => {
                let now = env.read_clock();
                self.worker.handle_backlog(now);
                self.stage = Stage::Backlog { left: left - 1 };
            }
            Stage::Large => {
                let now = env.read_clock();
                self.worker.handle_large_request(now);
                self.stage = Stage::Timeouts;
            }
            Stage::Timeouts => {
                let now = env.read_clock();
                self.handle_timeouts(now, env);
                self.stage = Stage::Flush {
                    now: env.read_clock(),
                };
            }
            Stage::Flush { now } => match self.worker.poll_dirty() {
                Some(id) => self.serve(id, now, env),
                None => self.stage = Stage::Wakes,
            },
            Stage::Wakes => {
                env.wakes.extend(self.worker.poll_wakes());
                self.stage = Stage::Sleep;
            }
            Stage::Sleep => self.sleep(env),
        }
    }

    fn begin(&mut self, env: &mut Env) {
        self.worker.handle_awake();
        self.asleep = false;
        self.woken = false;
        for (&id, connection) in &mut self.connections {
            let link = &mut env.links[connection.link];
            match self.style {
                Style::Copying => {
                    if std::mem::take(&mut link.room_edge) && !connection.writable {
                        connection.writable = true;
                        self.worker.mark_dirty(id);
                    }
                    connection.readable |= std::mem::take(&mut link.read_edge);
                    if connection.readable && !connection.listed {
                        connection.listed = true;
                        self.ready.push_back(id);
                    }
                }
                Style::Owning => {
                    let receives = match connection.receiving {
                        Receiving::Armed => link.has_input(),
                        Receiving::Stopping => true,
                        Receiving::Idle | Receiving::Ended => false,
                    };
                    if receives {
                        self.ready.push_back(id);
                    }
                }
            }
        }
        self.stage = Stage::Completions;
    }

    fn sleep(&mut self, env: &mut Env) {
        self.stage = Stage::Begin;
        if !self.ready.is_empty() || env.rng.u8(..8) == 0 {
            return;
        }
        let now = env.read_clock();
        self.due = self.worker.poll_timeout();
        if self.due.is_some_and(|due| due <= now) {
            return;
        }
        if self.worker.try_sleep() {
            self.asleep = true;
            self.sleeps += 1;
        }
    }

    fn handle_timeouts(&mut self, now: Time, env: &mut Env) {
        let before = *self.worker.session_counters();
        self.worker.handle_timeouts(now);
        let after = *self.worker.session_counters();
        for connection in self.connections.values() {
            let link = &mut env.links[connection.link];
            link.may_be_ended |= match link.protocol() {
                _ if after.stalled > before.stalled && link.blocked_at.is_some() => true,
                Protocol::Dlm => after.requests_too_slow > before.requests_too_slow,
                Protocol::Native => false,
            };
        }
    }

    fn take_arrival(&mut self, arrival: Arrival, env: &mut Env) {
        let Arrival { link, input } = arrival;
        let is_new = input.is_none();
        let id = if is_new {
            let now = env.read_clock();
            let protocol = env.links[link].protocol();
            let opened = self.worker.handle_accepted(protocol, now);
            opened.expect("there is room for all")
        } else {
            self.worker.handle_moved()
        };
        let mut connection = Connection {
            link,
            readable: false,
            listed: false,
            writable: true,
            receiving: Receiving::Idle,
            sending: None,
            blocked: false,
            shutting_down: false,
            closing: false,
            moving: None,
            asks_until: None,
            arriving: None,
        };
        if env.links[link].protocol() == Protocol::Dlm {
            connection.asks_until = Some(env.now.plus_millis(REQUEST_TIMEOUT_MS));
        }
        let link = &mut env.links[link];
        match self.style {
            Style::Copying => {
                link.read_edge = link.has_input();
                link.room_edge = false;
                self.connections.insert(id, connection);
                if let Some(input) = input {
                    let now = env.read_clock();
                    self.worker.handle_received(id, &input, now);
                }
            }
            Style::Owning if is_new => {
                connection.receiving = Receiving::Armed;
                self.connections.insert(id, connection);
            }
            Style::Owning => {
                connection.arriving = input;
                self.connections.insert(id, connection);
                self.ops.push(Op::Adopt(id));
            }
        }
    }

    fn read(&mut self, id: SessionId, env: &mut Env) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        connection.listed = false;
        if self.style == Style::Copying && !self.worker.wants_input(id) {
            return;
        }
        if self.style == Style::Owning
            && connection.receiving == Receiving::Stopping
            && env.rng.bool()
        {
            connection.receiving = Receiving::Idle;
            self.resume_receiving(id);
            return self.close_if_idle(id, env);
        }
        let now = env.read_clock();
        let link = &mut env.links[connection.link];
        if link.to_server.is_empty() {
            connection.readable = false;
            if let Some(how) = link.end
                && !link.end_seen
            {
                link.end_seen = true;
                connection.receiving = Receiving::Ended;
                self.worker.handle_end(id, how, now);
            } else if connection.receiving == Receiving::Stopping {
                connection.receiving = Receiving::Idle;
                self.resume_receiving(id);
            }
        } else {
            let most = link.to_server.len();
            let count = match env.rng.u8(..4) {
                0 => env.rng.usize(1..=most.min(5)),
                1 => env.rng.usize(1..=most),
                _ => most,
            };
            let bytes: Vec<u8> = link.to_server.drain(..count).collect();
            let is_more = link.has_input();
            if self.style == Style::Copying {
                connection.readable = is_more;
                if is_more {
                    connection.listed = true;
                    self.ready.push_back(id);
                }
            }
            self.worker.handle_received(id, &bytes, now);
            if self.style == Style::Owning {
                let connection = self.connections.get_mut(&id).expect("it was read");
                if !connection.closing
                    && connection.receiving == Receiving::Armed
                    && !self.worker.wants_input(id)
                {
                    connection.receiving = Receiving::Stopping;
                }
            }
        }
        self.close_if_idle(id, env);
    }

    fn resume_receiving(&mut self, id: SessionId) {
        if let Some(connection) = self.connections.get_mut(&id)
            && self.style == Style::Owning
            && connection.receiving == Receiving::Idle
            && connection.arriving.is_none()
            && !connection.closing
            && self.worker.wants_input(id)
        {
            connection.receiving = Receiving::Armed;
        }
    }

    /// Gives one session what it needs.
    fn serve(&mut self, id: SessionId, now: Time, env: &mut Env) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        if connection.closing || connection.arriving.is_some() {
            return;
        }
        if connection.blocked {
            self.tell_blocked(id, now, env);
        }
        loop {
            match self.worker.poll_action(id, now) {
                Action::Write(bytes) => {
                    let bytes = bytes.to_vec();
                    match self.style {
                        Style::Copying => {
                            if !self.write(id, &bytes, now, env) {
                                break;
                            }
                        }
                        Style::Owning => self.send(id, &bytes, env),
                    }
                }
                Action::ShutdownWrite => self.shut_down(id, now, env),
                Action::Close => {
                    self.close(id, env);
                    return;
                }
                Action::Move(to) => {
                    self.begin_move(id, to, env);
                    return;
                }
                Action::Wait => break,
            }
        }
        if self.style == Style::Owning {
            self.resume_receiving(id);
        } else if let Some(connection) = self.connections.get_mut(&id)
            && connection.readable
            && !connection.listed
            && self.worker.wants_input(id)
        {
            connection.listed = true;
            self.ready.push_back(id);
        }
    }

    /// Copies what the kernel takes. Returns whether to ask again.
    fn write(&mut self, id: SessionId, bytes: &[u8], now: Time, env: &mut Env) -> bool {
        let connection = self.connections.get_mut(&id).expect("it is served");
        if !connection.writable {
            self.tell_blocked(id, now, env);
            return false;
        }
        let link = &mut env.links[connection.link];
        if link.is_reset() && env.rng.bool() {
            link.end_seen = true;
            self.worker.handle_end(id, PeerEnd::Broken, now);
            return true;
        }
        let fits = bytes.len().min(link.room);
        let count = match env.rng.u8(..4) {
            0 => env.rng.usize(..=fits),
            _ => fits,
        };
        connection.writable = count == bytes.len();
        link.room -= count;
        link.room_edge |= link.room > 0 && !connection.writable;
        if count > 0 {
            link.stuck_since = None;
            link.hear(&bytes[..count], env.now, &mut env.ledger);
            self.worker.handle_submitted(id, count);
        }
        true
    }

    fn tell_blocked(&mut self, id: SessionId, now: Time, env: &mut Env) {
        let over = self.worker.session_counters().over_output_limit;
        self.worker.handle_blocked(id, now);
        let link = &mut env.links[self.connections[&id].link];
        link.blocked_at.get_or_insert(now);
        link.stuck_since.get_or_insert(env.now);
        link.may_be_ended |= self.worker.session_counters().over_output_limit > over;
    }

    /// Owns what is to be sent: the kernel will take it, all or in parts.
    fn send(&mut self, id: SessionId, offered: &[u8], env: &mut Env) {
        let bytes = self.worker.take_output(id);
        assert_eq!(bytes, offered, "what is taken is what was offered");
        let connection = self.connections.get_mut(&id).expect("it is served");
        assert!(connection.sending.is_none(), "offered while it sends");
        let link = &mut env.links[connection.link];
        link.in_flight = bytes.len();
        link.hear(&bytes, env.now, &mut env.ledger);
        connection.sending = Some((bytes, 0));
        self.ops.push(Op::Send(id));
    }

    fn shut_down(&mut self, id: SessionId, now: Time, env: &mut Env) {
        let connection = self.connections.get_mut(&id).expect("it is served");
        let link = &mut env.links[connection.link];
        assert_eq!(link.server, Server::Open, "shut down twice");
        link.server = Server::ShutDown;
        link.shut_down_at = Some(env.now);
        if self.style == Style::Owning {
            connection.shutting_down = true;
            self.ops.push(Op::ShutDown(id));
        } else if link.is_reset() && env.rng.bool() {
            link.end_seen = true;
            self.worker.handle_end(id, PeerEnd::Broken, now);
        }
    }

    fn close(&mut self, id: SessionId, env: &mut Env) {
        let connection = self.connections.get_mut(&id).expect("it is served");
        let link = &env.links[connection.link];
        assert!(
            link.in_flight == 0 || link.is_reset() || link.may_be_ended,
            "closed with bytes under way"
        );
        connection.closing = true;
        match self.style {
            Style::Copying if env.rng.bool() => self.finish_close(id, env),
            Style::Copying => self.ops.push(Op::Close(id)),
            Style::Owning => {
                if connection.receiving == Receiving::Armed {
                    connection.receiving = Receiving::Stopping;
                }
                self.close_if_idle(id, env);
            }
        }
    }

    fn begin_move(&mut self, id: SessionId, to: u16, env: &mut Env) {
        let connection = self.connections.get_mut(&id).expect("it is served");
        connection.closing = true;
        match self.style {
            Style::Copying if env.rng.bool() => self.let_go(id, to, env),
            Style::Copying => self.ops.push(Op::LetGo(id, to)),
            Style::Owning => {
                connection.moving = Some(to);
                if connection.receiving == Receiving::Armed {
                    connection.receiving = Receiving::Stopping;
                }
                self.close_if_idle(id, env);
            }
        }
    }

    fn close_if_idle(&mut self, id: SessionId, env: &mut Env) {
        let Some(connection) = self.connections.get_mut(&id) else {
            return;
        };
        let receives = matches!(connection.receiving, Receiving::Armed | Receiving::Stopping);
        let is_busy = receives
            || connection.sending.is_some()
            || connection.shutting_down
            || connection.arriving.is_some();
        if self.style != Style::Owning || !connection.closing || is_busy {
            return;
        }
        match connection.moving.take() {
            Some(to) => self.let_go(id, to, env),
            None if self.ops.contains(&Op::Close(id)) => {}
            None => self.ops.push(Op::Close(id)),
        }
    }

    /// The kernel is done with a socket that another loop gets.
    fn let_go(&mut self, id: SessionId, to: u16, env: &mut Env) {
        let Some(input) = self.worker.take_moving(id) else {
            // It has ended meanwhile.
            self.ops.push(Op::Close(id));
            return;
        };
        let connection = self.connections.remove(&id).expect("it moves");
        let link = &mut env.links[connection.link];
        // The socket says it again there.
        link.end_seen = false;
        let arrival = Arrival {
            link: connection.link,
            input: Some(input),
        };
        env.moves += 1;
        env.transit.push((to, arrival));
    }

    fn finish_close(&mut self, id: SessionId, env: &mut Env) {
        let connection = self.connections.remove(&id).expect("it is closed");
        let now = env.now;
        env.links[connection.link].closed(now, &mut env.ledger);
        assert!(self.worker.handle_closed(id).is_some(), "it was there");
    }

    fn handle_completed(&mut self, op: Op, env: &mut Env) {
        match op {
            Op::Send(id) => self.handle_sent(id, env),
            Op::ShutDown(id) => {
                let now = env.read_clock();
                let connection = self.connections.get_mut(&id).expect("it is open");
                connection.shutting_down = false;
                let link = &mut env.links[connection.link];
                if link.is_reset() && env.rng.bool() {
                    link.end_seen = true;
                    self.worker.handle_end(id, PeerEnd::Broken, now);
                }
                self.close_if_idle(id, env);
            }
            Op::Close(id) => self.finish_close(id, env),
            Op::LetGo(id, to) => self.let_go(id, to, env),
            Op::Adopt(id) => {
                let now = env.read_clock();
                let connection = self.connections.get_mut(&id).expect("it is open");
                let input = connection.arriving.take().unwrap_or_default();
                self.worker.handle_received(id, &input, now);
                self.worker.mark_dirty(id);
                self.resume_receiving(id);
                self.close_if_idle(id, env);
            }
        }
    }

    fn handle_sent(&mut self, id: SessionId, env: &mut Env) {
        let now = env.read_clock();
        let connection = self.connections.get_mut(&id).expect("it is open");
        let (bytes, mut sent) = connection.sending.take().expect("it sends");
        let link = &mut env.links[connection.link];
        let is_lost = link.is_reset() || (connection.closing && link.room == 0);
        if is_lost {
            link.in_flight = 0;
            link.end_seen |= link.is_reset();
            self.worker.handle_end(id, PeerEnd::Broken, now);
        } else {
            let fits = (bytes.len() - sent).min(link.room);
            let count = match env.rng.u8(..4) {
                0 if fits > 0 => env.rng.usize(1..=fits),
                _ => fits,
            };
            if count > 0 {
                link.stuck_since = None;
            }
            link.room -= count;
            link.in_flight -= count;
            sent += count;
            self.worker.handle_sent(id, count);
            if sent < bytes.len() && !connection.closing {
                connection.sending = Some((bytes, sent));
                connection.blocked = true;
                self.ops.push(Op::Send(id));
                return self.tell_blocked(id, now, env);
            }
        }
        connection.blocked = false;
        self.worker.return_buffer(bytes);
        self.resume_receiving(id);
        self.close_if_idle(id, env);
    }
}
