//! The mesh between real threads: each asks the others and answers them, sleeps
//! whenever it may, and is woken only by those whom the mesh tells to. A lost wake
//! or message leaves the run without an end.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Barrier, OnceLock};
use std::thread::{self, Thread};

use leasehold::ids::SessionId;
use leasehold::mesh::{self, MeshPort, Message};
use leasehold::protocol::{Reply, Request};

/// What the threads of one run share besides the mesh.
struct Run {
    threads: Vec<OnceLock<Thread>>,
    all_here: Barrier,
    /// Loops that have every answer and answered every request.
    finished: AtomicUsize,
    requests_each: u64,
}

/// One loop: a session that asks the other loops in turn.
struct Asker<'a> {
    run: &'a Run,
    port: MeshPort,
    session: SessionId,
    targets: Vec<u16>,
    next_owner: u64,
    /// The target of the next request had no room for it.
    paused: bool,
    /// Owners of what was asked and not answered yet, by loop, in order.
    unanswered: Vec<VecDeque<u64>>,
    /// The last owner that each loop has asked with.
    asked_by: Vec<u64>,
    ended: usize,
    looks: u64,
}

#[test]
fn two_loops_with_the_smallest_rings() {
    exchange(2, 1, 5_000);
}

#[test]
fn three_loops_with_small_rings() {
    exchange(3, 3, 5_000);
}

#[test]
fn four_loops_with_small_rings() {
    exchange(4, 2, 2_000);
}

#[test]
fn two_loops_with_ample_rings() {
    exchange(2, 1024, 50_000);
}

fn exchange(loops: u16, ring_capacity: usize, requests_each: u64) {
    let run = Run {
        threads: (0..loops).map(|_| OnceLock::new()).collect(),
        all_here: Barrier::new(usize::from(loops)),
        finished: AtomicUsize::new(0),
        requests_each,
    };
    let (wakes, looks) = thread::scope(|scope| {
        let loops: Vec<_> = mesh::build(loops, ring_capacity)
            .into_iter()
            .map(|port| scope.spawn(|| Asker::new(&run, port).play()))
            .collect();
        loops
            .into_iter()
            .map(|it| it.join().expect("it ends"))
            .fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    });
    assert!(wakes <= looks, "{wakes} wakes for {looks} times asleep");
}

impl<'a> Asker<'a> {
    fn new(run: &'a Run, port: MeshPort) -> Asker<'a> {
        let own = port.outbound.loop_index();
        let loops = run.threads.len();
        Asker {
            run,
            session: SessionId::new(own, 0, 0),
            targets: (0..loops as u16).filter(|target| *target != own).collect(),
            port,
            next_owner: 1,
            paused: false,
            unanswered: vec![VecDeque::new(); loops],
            asked_by: vec![0; loops],
            ended: 0,
            looks: 0,
        }
    }

    /// Returns the wakes it asked for, and how often it would have slept.
    fn play(mut self) -> (u64, u64) {
        let own = usize::from(self.port.outbound.loop_index());
        self.run.threads[own]
            .set(thread::current())
            .expect("each loop is played once");
        self.run.all_here.wait();
        let mut finished = false;
        while self.run.finished.load(Ordering::SeqCst) < self.run.threads.len() {
            self.port.handle_awake();
            self.ask();
            self.receive();
            if let Some(target) = self.port.outbound.poll_room() {
                assert_eq!(
                    target,
                    self.target_of(self.next_owner),
                    "it was refused nowhere else"
                );
                self.paused = false;
            }
            for target in self.port.poll_wakes() {
                self.run.wake(target.into());
            }
            if !finished && self.has_everything() {
                finished = true;
                let before = self.run.finished.fetch_add(1, Ordering::SeqCst);
                if before + 1 == self.run.threads.len() {
                    (0..self.run.threads.len()).for_each(|index| self.run.wake(index));
                    break;
                }
            }
            if self.paused || self.next_owner > self.run.requests_each {
                self.looks += 1;
                if self.port.try_sleep() {
                    thread::park();
                }
            }
        }
        self.port.invariants();
        (self.port.counters().wakes, self.looks)
    }

    /// Who is asked with this owner.
    fn target_of(&self, owner: u64) -> u16 {
        self.targets[owner as usize % self.targets.len()]
    }

    fn ask(&mut self) {
        for _step in 0..5 {
            let owner = self.next_owner;
            if self.paused || owner > self.run.requests_each {
                return;
            }
            let target = self.target_of(owner);
            let request = Request::Query { owner, key: b"k" };
            self.paused = self
                .port
                .outbound
                .try_request(target, self.session, false, &request)
                .is_err();
            if self.paused {
                return;
            }
            self.unanswered[usize::from(target)].push_back(owner);
            self.next_owner += 1;
            if owner == self.run.requests_each {
                for target in &self.targets {
                    self.port.outbound.session_end(*target, self.session, true);
                }
            }
        }
    }

    fn receive(&mut self) {
        self.port.gather(7);
        let mut inbound = std::mem::take(&mut self.port.inbound);
        inbound.drain(|message| self.handle_message(message));
        self.port.inbound = inbound;
    }

    fn handle_message(&mut self, message: &mut Message) {
        match message {
            Message::Request {
                session, request, ..
            } => {
                let owner = request.as_request().owner();
                let last = &mut self.asked_by[usize::from(session.loop_index())];
                assert!(owner > *last, "in the order asked");
                *last = owner;
                self.port
                    .outbound
                    .reply(*session, Reply::TimedOut { owner });
            }
            Message::Reply {
                session,
                reply: Reply::TimedOut { owner },
            } => {
                assert_eq!(*session, self.session);
                let asked = usize::from(self.target_of(*owner));
                let oldest = self.unanswered[asked].pop_front();
                assert_eq!(oldest, Some(*owner), "in the order asked");
            }
            Message::SessionEnd { session, orderly } => {
                assert!(*orderly);
                let asked = self.asked_by[usize::from(session.loop_index())];
                assert!(asked + self.targets.len() as u64 > self.run.requests_each);
                self.ended += 1;
            }
            other => panic!("not sent here: {other:?}"),
        }
    }

    fn has_everything(&self) -> bool {
        self.next_owner > self.run.requests_each
            && self.unanswered.iter().all(VecDeque::is_empty)
            && self.ended == self.targets.len()
    }
}

impl Run {
    fn wake(&self, index: usize) {
        self.threads[index].get().expect("all are here").unpark();
    }
}
