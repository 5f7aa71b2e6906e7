//! What a loop's turn is under every driver, between the bytes that come in and
//! those that go out.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use log::{debug, info, warn};

use super::drain::{Drain, Step};
use super::identity_files::IdentityPort;
use super::loops::{Arrival, Loops};
use super::waker::Waker;
use crate::clock;
use crate::engine::time::Time;
use crate::ids::SessionId;
use crate::store::StorePort;
use crate::worker::{BATCHES_PER_TURN, Protocol, Worker};

/// Longest sleep while anything is timed: neither epoll_wait nor a ring's wait counts
/// suspend, the deadlines do.
const MAX_SLEEP: Duration = Duration::from_millis(100);

/// What every loop has, whatever its driver.
pub(super) struct Turn {
    pub(super) worker: Worker,
    pub(super) loops: Arc<Loops>,
    identities: IdentityPort,
    /// `None`: nothing survives a restart.
    store: Option<StorePort>,
    /// The grace is over then, which this loop is to say in the log.
    grace_to_end: Option<Time>,
    /// When this turn looked at what is due.
    judged_at: Time,
    drain: Drain,
    /// `--spin-us`: how long a loop that has nothing to do looks for more before it sleeps.
    spin: Duration,
    /// Something happened since the loop last thought of sleeping.
    is_busy: bool,
    spin_until: Time,
}

impl Turn {
    pub(super) fn new(
        worker: Worker,
        loops: Arc<Loops>,
        identities: IdentityPort,
        store: Option<StorePort>,
        spin: Duration,
    ) -> Turn {
        let grace_end = worker.engine().grace_end();
        let is_first = worker.loop_index() == 0;
        Turn {
            store,
            grace_to_end: (is_first && grace_end > Time::ZERO).then_some(grace_end),
            worker,
            loops,
            identities,
            judged_at: Time::ZERO,
            drain: Drain::new(),
            spin,
            is_busy: true,
            spin_until: Time::ZERO,
        }
    }

    /// Says in the log how the loop has ended, and, where it is that talkative, what it
    /// has done. Returns when the last lease ends that is left.
    pub(super) fn end(&self) -> Time {
        let held = self.worker.engine().held();
        if held > 0 && self.store.is_none() {
            warn!(
                "loop {}: {held} locks are still held, and forgotten",
                self.worker.loop_index()
            );
        }
        debug!(
            "loop {}: {:?}, {:?}, {:?}",
            self.worker.loop_index(),
            self.worker.session_counters(),
            self.worker.engine().counters(),
            self.worker.mesh_counters(),
        );
        self.worker.last_deadline()
    }

    /// What the loop watches to be woken.
    pub(super) fn waker(&self) -> &Waker {
        self.loops.control(self.worker.loop_index()).waker()
    }

    /// Follows orders and moves a drain on.
    pub(super) fn obey(&mut self) -> Step {
        self.drain.step(&self.loops, &mut self.worker, clock::now())
    }

    /// The wait is over, with `events` events. Call it first of all in a turn.
    pub(super) fn begin(&mut self, events: usize) {
        self.worker.handle_awake();
        self.is_busy |= events > 0;
    }

    /// Judges what came otherwise than from this loop's sockets, what was left over,
    /// and time.
    pub(super) fn judge(&mut self) {
        self.identities.exchange(&mut self.worker);
        if let Some(store) = &self.store {
            for news in store.take_news() {
                self.is_busy = true;
                self.worker.handle_news(news, clock::now());
            }
        }
        for _ in 0..BATCHES_PER_TURN {
            if self.worker.gather_messages() == 0 {
                break;
            }
            self.is_busy = true;
            self.worker.handle_messages(clock::now());
        }
        self.worker.handle_room();
        for _ in 0..self.worker.backlog_len() {
            self.worker.handle_backlog(clock::now());
        }
        self.worker.handle_large_request(clock::now());
        self.judged_at = clock::now();
        self.worker.handle_timeouts(self.judged_at);
    }

    /// Asks the store for what replies wait for, and wakes the loops that this one has
    /// something for: once a turn, after all of it, whether the loop sleeps then or not.
    pub(super) fn tell_others(&mut self) {
        if let Some(store) = &self.store {
            while let Some(ask) = self.worker.poll_ask(self.judged_at) {
                store.ask(ask);
            }
        }
        if self.grace_to_end.is_some_and(|end| end <= self.judged_at) {
            self.grace_to_end = None;
            info!("grace is over: every lock is granted again");
        }
        for target in self.worker.poll_wakes() {
            self.loops.wake(target);
        }
    }

    /// How long the driver may wait for the kernel, `None`: until it has something.
    /// `more_due` is what the driver itself has to do, and when.
    pub(super) fn sleep_for(&mut self, more_due: impl Iterator<Item = Time>) -> Option<Duration> {
        let now = clock::now();
        let due = more_due
            .chain(self.grace_to_end)
            .chain(self.drain.poll_timeout())
            .chain(self.worker.poll_timeout())
            .min();
        if due.is_some_and(|due| due <= now) {
            return Some(Duration::ZERO);
        }
        if std::mem::take(&mut self.is_busy) {
            self.spin_until = now.plus(self.spin);
        }
        // Whoever spins counts as awake: others need not wake it.
        if now < self.spin_until || !self.worker.try_sleep() {
            return Some(Duration::ZERO);
        }
        let nanos = due?.as_nanos().saturating_sub(now.as_nanos());
        Some(Duration::from_nanos(nanos).min(MAX_SLEEP))
    }

    /// Which loop a connection that was just accepted here goes to. `None`: nowhere,
    /// it is to be closed without a byte. One that stays is open then.
    pub(super) fn place(&mut self, protocol: Protocol) -> Option<Place> {
        let here = self.worker.loop_index();
        if protocol == Protocol::Native {
            match self.loops.loads.admit(here) {
                None => {
                    self.worker.note_refused();
                    return None;
                }
                Some(there) if there != here => return Some(Place::There(there)),
                Some(_) => {}
            }
        }
        let session = self.worker.handle_accepted(protocol, clock::now());
        if session.is_none() && protocol == Protocol::Native {
            self.loops.loads.leave(here);
        }
        session.map(Place::Here)
    }

    /// The sessions of connections that other loops handed over, each with its socket
    /// and the bytes that came with it, to be received next.
    pub(super) fn take_arrivals(&mut self) -> Vec<(SessionId, Arrival)> {
        let here = self.worker.loop_index();
        let mut arrivals = self.loops.control(here).take_arrivals();
        arrivals
            .drain(..)
            .filter_map(|arrival| {
                self.is_busy = true;
                let session = match arrival.input {
                    Some(_) => self.drain.takes_moved().then(|| self.worker.handle_moved()),
                    None if !self.drain.takes_new() => None,
                    None => self.worker.handle_accepted(Protocol::Native, clock::now()),
                };
                if session.is_none() {
                    self.loops.loads.leave(here);
                }
                Some((session?, arrival))
            })
            .collect()
    }

    /// The driver has let go of a session's socket.
    pub(super) fn handle_closed(&mut self, id: SessionId) {
        if self.worker.handle_closed(id) == Some(Protocol::Native) {
            self.loops.loads.leave(self.worker.loop_index());
        }
    }

    /// Sends a session that moves, with its socket, to the loop it wants.
    pub(super) fn hand_over(&mut self, to: u16, socket: OwnedFd, input: Vec<u8>) {
        self.loops.loads.moved(self.worker.loop_index(), to);
        let input = Some(input);
        self.loops.hand_over(to, Arrival { socket, input });
    }
}

/// Where a connection goes.
#[derive(Debug)]
pub(super) enum Place {
    /// It is this loop's session.
    Here(SessionId),
    /// Another loop's.
    There(u16),
}
