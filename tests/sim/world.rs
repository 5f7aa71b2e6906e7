//! The whole: loops, wires, clients and the clock, moved one small step at a time by
//! chance from one seed.

use fastrand::Rng;
use leasehold::engine::time::Time;
use leasehold::mesh;
use leasehold::worker::Worker;

use crate::env::Env;
use crate::host::{Arrival, Host};
use crate::ledger::Ledger;
use crate::link::{Conversation, Link, Server};
use crate::options::{Options, pick};
use crate::talk::Talk;
use crate::traffic::Client;

/// Steps after which loops that have nothing new to do must have come to rest.
const MOST_STEPS_TO_REST: u64 = 300_000;

/// What an engine may come to take for one request: a page of each of its structures.
const MOST_GROWTH_BYTES: u64 = 1_500_000;

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) env: Env,
    pub(crate) hosts: Vec<Host>,
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) clients: Vec<Client>,
    pub(crate) next_owner: u64,
    /// Steps for which a loop is not run.
    stopped: Vec<u64>,
    pub(crate) steps: u64,
    /// Small steps of loops.
    runs: u64,
}

impl World {
    pub(crate) fn new(options: Options) -> World {
        let keys = options.key_names();
        let mut rng = Rng::with_seed(options.seed);
        let hosts: Vec<Host> = mesh::build(options.loops, options.ring_capacity)
            .into_iter()
            .zip(0..)
            .map(|(port, index)| Worker::new(options.worker(index), port))
            .map(|worker| {
                let number = u64::from(worker.loop_index()) + 1;
                let rng = Rng::with_seed(options.seed ^ number << 56);
                Host::new(worker, options.style, rng)
            })
            .collect();
        let slowness_nanos = pick(&mut rng, &[200, 50_000, 3_000_000]);
        World {
            env: Env {
                now: Time::from_millis(5_000),
                rng,
                links: Vec::new(),
                ledger: Ledger::new(keys.len(), options.loops, options.expiry_grace_ms),
                wakes: Vec::new(),
                transit: Vec::new(),
                is_closing: false,
                moves: 0,
                slowness_nanos,
            },
            stopped: vec![0; hosts.len()],
            hosts,
            keys,
            clients: (0..options.clients)
                .map(|who| {
                    let rng = Rng::with_seed(options.seed ^ (who as u64 + 1) << 48);
                    Client::new(rng, options.rates, options.left_out.clients.contains(&who))
                })
                .collect(),
            next_owner: 1,
            options,
            steps: 0,
            runs: 0,
        }
    }

    /// Anything happens.
    pub(crate) fn step(&mut self) {
        self.steps += 1;
        match self.env.rng.u32(..1_000) {
            0..300 => self.act(),
            300..330 => {
                self.deliver();
            }
            330..370 => {
                self.complete_something();
            }
            370..372 => self.stop_a_loop(),
            372..376 => self.pass(60),
            376 => self.pass(4_000),
            377 if self.env.rng.u8(..16) == 0 => self.pass(40_000),
            378 => {
                let index = self.env.rng.usize(..self.hosts.len());
                self.hosts[index].woken = true;
            }
            _ => {
                self.run_a_loop(true);
            }
        }
    }

    /// All loops begin to drain, one after the other, while clients go on.
    pub(crate) fn drain(&mut self) {
        self.env.ledger.drains = true;
        for index in 0..self.hosts.len() {
            for _ in 0..self.env.rng.u32(..200) {
                self.step();
            }
            self.hosts[index].worker.handle_drain();
            self.hosts[index].woken = true;
        }
        self.env.ledger.drained_since = Some(self.env.now);
        if self.options.closes_early {
            self.send_away();
            for index in 0..self.hosts.len() {
                for _ in 0..self.env.rng.u32(..200) {
                    self.step();
                }
                self.hosts[index].worker.close_all(self.env.now);
                self.hosts[index].woken = true;
            }
        }
        for _ in 0..self.env.rng.u32(..600) {
            self.step();
        }
    }

    /// All loops close all sessions.
    pub(crate) fn close_all(&mut self) {
        self.send_away();
        for host in &mut self.hosts {
            host.worker.close_all(self.env.now);
            host.woken = true;
        }
    }

    /// From now on the server may close any connection.
    fn send_away(&mut self) {
        self.env.is_closing = true;
        for link in &mut self.env.links {
            link.is_sent_away = true;
            link.ended_at.get_or_insert(self.env.now);
        }
    }

    /// Lets up to so many milliseconds pass.
    fn pass(&mut self, most_ms: u64) {
        let nanos = self.env.rng.u64(..most_ms * 1_000_000);
        self.env.now = Time::from_nanos(self.env.now.as_nanos() + nanos);
    }

    fn stop_a_loop(&mut self) {
        let index = self.env.rng.usize(..self.hosts.len());
        self.stopped[index] = self.env.rng.u64(..600);
    }

    /// One small step of a loop that has a reason to run. Returns whether there was one.
    fn run_a_loop(&mut self, with_stops: bool) -> bool {
        let mut can = Vec::with_capacity(self.hosts.len());
        for (index, host) in self.hosts.iter().enumerate() {
            let stopped = &mut self.stopped[index];
            *stopped = stopped.saturating_sub(1);
            if (!with_stops || *stopped == 0) && host.is_runnable(&self.env) {
                can.push(index);
            }
        }
        if can.is_empty() {
            return false;
        }
        let index = can[self.env.rng.usize(..can.len())];
        self.run(index);
        true
    }

    /// One small step of this loop, and what must hold after it.
    pub(crate) fn run(&mut self, index: usize) {
        let host = &mut self.hosts[index];
        let before = Load::of(host);
        let requests = host.worker.mesh_counters().requests;
        std::mem::swap(&mut self.env.rng, &mut host.rng);
        host.step(&mut self.env);
        std::mem::swap(&mut self.env.rng, &mut host.rng);
        self.runs += 1;
        if before.may_reach_limit(&Load::of(host), &self.options) {
            self.env.ledger.note_tight(host.index, self.env.now);
        }
        if self.runs.is_multiple_of(self.options.check_every) {
            host.worker.invariants();
        }
        check_counters(host);
        let asks_more = host.worker.mesh_counters().requests > requests;
        if let [one, other] = &self.hosts[..] {
            let asked = if index == 0 { other } else { one };
            assert!(
                !asks_more || asked.worker.mesh_counters().spilling == 0,
                "loop {index} asks for more, and what it was answered finds no room already"
            );
        }
        for target in std::mem::take(&mut self.env.wakes) {
            let target = &mut self.hosts[usize::from(target)];
            assert!(target.is_asleep(), "only who sleeps is woken");
            target.woken = true;
        }
    }

    /// One small step of anything but clients. Returns whether there was one to take.
    pub(crate) fn small_step(&mut self) -> bool {
        self.deliver() || self.complete_something() || self.run_a_loop(true)
    }

    /// Does not run a loop for so many small steps of others.
    pub(crate) fn stop(&mut self, index: usize, steps: u64) {
        self.stopped[index] = steps;
    }

    /// A connection on its way to a loop arrives. Returns whether there was one.
    fn deliver(&mut self) -> bool {
        if self.env.transit.is_empty() {
            return false;
        }
        let index = self.env.rng.usize(..self.env.transit.len());
        let (to, arrival) = self.env.transit.swap_remove(index);
        self.hosts[usize::from(to)].arrivals.push_back(arrival);
        true
    }

    /// A kernel finishes something. Returns whether there was anything.
    fn complete_something(&mut self) -> bool {
        let first = self.env.rng.usize(..self.hosts.len());
        let count = self.hosts.len();
        (0..count).any(|index| self.hosts[(first + index) % count].complete(&mut self.env))
    }

    /// Runs all loops, and nothing else, until they rest.
    pub(crate) fn rest(&mut self) {
        for _ in 0..MOST_STEPS_TO_REST {
            self.steps += 1;
            let is_moved = match self.env.rng.u8(..8) {
                0 => self.deliver(),
                1 => self.complete_something(),
                _ => self.run_a_loop(false),
            };
            if !is_moved && !self.run_a_loop(false) && !self.deliver() && !self.complete_something()
            {
                return;
            }
        }
        panic!("the loops do not come to rest");
    }

    /// A client connects to a loop.
    pub(crate) fn connect(&mut self, conversation: Conversation, to: u16) -> usize {
        let link = self.env.links.len();
        let room = self.options.send_room;
        let mut made = Link::new(conversation, room);
        made.is_sent_away = self.env.is_closing;
        self.env.links.push(made);
        self.env.transit.push((to, Arrival { link, input: None }));
        link
    }

    /// A native client connects to a loop.
    pub(crate) fn connect_native(&mut self, to: u16) -> usize {
        let link = self.env.links.len();
        let credential = self.options.credential();
        let talk = Talk::new(link, self.options.loops, self.keys.len(), credential);
        self.connect(Conversation::Native(Box::new(talk)), to)
    }

    /// An owner that no request had.
    pub(crate) fn fresh_owner(&mut self) -> u64 {
        self.next_owner += 1;
        self.next_owner
    }

    /// The connection's conversation, a native one.
    pub(crate) fn talk(&mut self, link: usize) -> &mut Talk {
        match &mut self.env.links[link].conversation {
            Conversation::Native(talk) => talk,
            Conversation::Dlm(_) => panic!("connection {link} is no native session"),
        }
    }

    /// Connections that are not over.
    pub(crate) fn live_links(&self) -> impl Iterator<Item = (usize, &Link)> {
        let links = self.env.links.iter().enumerate();
        links.filter(|(_, link)| link.server != Server::Closed)
    }
}

/// What an engine holds, and how many keys it has given out.
struct Load {
    keys: u64,
    bytes: u64,
    granted: u64,
}

impl Load {
    fn of(host: &Host) -> Load {
        let engine = host.worker.engine();
        let counters = engine.counters();
        Load {
            keys: engine.keys().into(),
            bytes: engine.memory_bytes() - host.empty_bytes,
            granted: counters.granted + counters.dlm_granted,
        }
    }

    /// Whether something may have been refused for a limit between this and `after`.
    fn may_reach_limit(&self, after: &Load, options: &Options) -> bool {
        let most_keys = self.keys + (after.granted - self.granted);
        let most_bytes = self.bytes.max(after.bytes) + MOST_GROWTH_BYTES;
        most_keys >= options.max_keys.into() || most_bytes > options.memory_room
    }
}

/// Scenario 12: no acquire is counted twice or not at all.
fn check_counters(host: &Host) {
    let engine = host.worker.engine();
    let counters = engine.counters();
    let ends = counters.granted
        + counters.timed_out
        + counters.busy
        + counters.cancelled
        + counters.gone
        + counters.refused
        + u64::from(engine.waiting());
    assert_eq!(counters.accepted, ends, "{counters:?}");
}
