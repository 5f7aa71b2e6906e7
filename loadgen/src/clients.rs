//! The virtual clients of one thread: what each does next, what its answers mean. No
//! sockets and no clock: requests go into the line of the client's connection, answers
//! and the time are passed in.

use crate::check::{Event, EventKind, Fault, Grant, History, Ledger, bound_ns};
use crate::outcome::{Op, Outcome};
use crate::record::Recorder;
use crate::target::{Answer, Call, Codec, Tag};
use crate::workload::{
    Activity, Draw, HELD_SPACE, KeyId, KeyText, Kind, Place, Schedule, Stream, Streams,
};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;

/// A connection without its socket.
#[derive(Debug)]
pub(crate) struct Line<C> {
    /// What is spoken.
    pub(crate) codec: C,
    /// What is to be sent.
    pub(crate) out: Vec<u8>,
    /// Requests can be appended.
    pub(crate) is_up: bool,
    /// There is no connection, and it is known when one is tried again.
    pub(crate) is_down: bool,
    /// A client wants a new connection in place of this one.
    pub(crate) renew: bool,
}

/// What the server may not do, and with which key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// In words.
    pub(crate) what: String,
    /// The key.
    pub(crate) key: Option<KeyId>,
}

/// What the clients of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    /// What clients do; after the last one comes what `--held` does.
    pub(crate) activities: Vec<Activity>,
    /// Their streams.
    pub(crate) streams: Streams,
    /// Lease of the keys that `--held` takes, in milliseconds.
    pub(crate) held_lease_ms: u32,
    /// Length of keys.
    pub(crate) key_bytes: usize,
    /// Whether answers are watched.
    pub(crate) checks: bool,
    /// Requests are frames that nobody looks at.
    pub(crate) is_bare: bool,
}

/// The clients of one thread.
#[derive(Debug)]
pub(crate) struct Clients {
    rules: Rules,
    lanes: Vec<Lane>,
    /// Where the clients' sessions are, if that matters: one for each lane.
    places: Vec<Place>,
    ledgers: Vec<Ledger>,
    /// What is measured.
    pub(crate) recorder: Recorder,
    /// What has happened.
    pub(crate) history: History,
    /// Keys of which an answer was lost or out of the ordinary.
    pub(crate) unsure: Vec<KeyId>,
    text: KeyText,
    /// Holds and pauses that end: when, and whose.
    due: BinaryHeap<Reverse<(u64, u32)>>,
    /// Clients without anything to do, in the open loop.
    idle: VecDeque<u32>,
    schedule: Option<Schedule>,
    sequence: u64,
    /// Clients between the start and the end of a round.
    busy: u32,
    is_stopping: bool,
    /// Numbers of held keys that are still to be taken.
    to_hold: Range<u64>,
    /// Clients that have begun a round since [`Clients::look_up_tokens`].
    started: Vec<u32>,
    /// Connections that have broken.
    breaks: u64,
    /// Arrivals that were due and never sent.
    pub(crate) unsent: u64,
}

/// A virtual client: it has at most one request under way.
#[derive(Debug)]
struct Lane {
    connection: u32,
    client: u32,
    state: State,
    op: Op,
    activity: usize,
    tag: Tag,
    intended_ns: u64,
    sent_ns: u64,
    key: KeyId,
    /// The key's place in the thread's table of tokens, and what stands there.
    place_in_table: usize,
    token_before: u64,
    hold_ns: u64,
    token: u64,
    /// Until when the client may believe in its grant.
    until_ns: u64,
    /// How many connections had broken at the grant.
    breaks_then: u64,
    stream: Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Between two rounds.
    Idle,
    /// Its request waits for a connection.
    Wants,
    /// Its request was appended to the connection's output.
    UnderWay,
    /// It holds a key until its time in `due`.
    Holding,
    /// It does nothing until its time in `due`.
    Pausing,
}

/// Bits of a tag that name the client within its thread; the others count requests.
const LANE_BITS: u32 = 24;
const LANE_MASK: u64 = (1 << LANE_BITS) - 1;

/// Most clients of a thread.
pub(crate) const MAX_LANES: u64 = 1 << LANE_BITS;

/// How long a client leaves a server alone that refuses to serve.
const PAUSE_NS: u64 = 10_000_000;

impl Clients {
    /// Clients without lanes.
    pub(crate) fn new(rules: Rules, ledgers: Vec<Ledger>, recorder: Recorder) -> Clients {
        Clients {
            text: KeyText::new(rules.key_bytes),
            rules,
            lanes: Vec::new(),
            places: Vec::new(),
            ledgers,
            recorder,
            history: History::new(),
            unsure: Vec::new(),
            due: BinaryHeap::new(),
            idle: VecDeque::new(),
            schedule: None,
            sequence: 0,
            busy: 0,
            is_stopping: false,
            to_hold: 0..0,
            started: Vec::new(),
            breaks: 0,
            unsent: 0,
        }
    }

    /// Adds client number `client` (over all threads) on a connection of this thread.
    ///
    /// # Errors
    /// An activity has no key for a client of that place.
    pub(crate) fn add(
        &mut self,
        connection: u32,
        client: u32,
        place: Option<Place>,
    ) -> Result<(), String> {
        if let Some(place) = place {
            let Rules { streams, .. } = &self.rules;
            for activity in 0..self.rules.activities.len() {
                if !streams.has_key(activity, client.into(), place, &mut self.text) {
                    return Err("--keys: too few for every client to have one of its loop".into());
                }
            }
        }
        self.places.extend(place);
        self.lanes.push(Lane {
            connection,
            client,
            state: State::Idle,
            op: Op::Acquire,
            activity: 0,
            tag: 0,
            intended_ns: 0,
            sent_ns: 0,
            key: KeyId::default(),
            place_in_table: 0,
            token_before: 0,
            hold_ns: 0,
            token: 0,
            until_ns: 0,
            breaks_then: 0,
            stream: self.rules.streams.of(client.into()),
        });
        Ok(())
    }

    /// The connection of a client.
    pub(crate) fn connection_of(&self, lane: u32) -> u32 {
        self.lanes[lane as usize].connection
    }

    /// Nobody is between the start and the end of a round.
    pub(crate) fn are_settled(&self) -> bool {
        self.busy == 0
    }

    /// Takes the held keys with these numbers, once; then clients rest.
    pub(crate) fn hold_keys(&mut self, numbers: Range<u64>) {
        self.to_hold = numbers;
    }

    /// From now on arrivals come by this schedule, to whoever is idle.
    pub(crate) fn follow(&mut self, schedule: Schedule) {
        self.schedule = Some(schedule);
        self.idle = (0..self.lanes.len() as u32).collect();
    }

    /// When something is to be done that no answer brings about; `None`: never.
    #[inline]
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        let due = self.due.peek().map(|Reverse((at_ns, _))| *at_ns);
        let arrival = match &self.schedule {
            Some(schedule) if !self.is_stopping && !self.idle.is_empty() => Some(schedule.due_ns()),
            _ => None,
        };
        match (due, arrival) {
            (Some(due), Some(arrival)) => Some(due.min(arrival)),
            (due, arrival) => due.or(arrival),
        }
    }

    /// The next client that has something to do by itself now.
    pub(crate) fn poll_due(&mut self, now_ns: u64) -> Option<Due> {
        if let Some(&Reverse((at_ns, lane))) = self.due.peek()
            && at_ns <= now_ns
        {
            self.due.pop();
            return Some(Due {
                lane,
                intended_ns: at_ns,
                is_arrival: false,
            });
        }
        if self.is_stopping || self.idle.is_empty() {
            return None;
        }
        let intended_ns = self.schedule.as_mut()?.take_due(now_ns)?;
        let lane = self.idle.pop_front()?;
        Some(Due {
            lane,
            intended_ns,
            is_arrival: true,
        })
    }

    /// Lets it do that.
    pub(crate) fn handle_due<C: Codec>(&mut self, due: Due, now_ns: u64, line: &mut Line<C>) {
        let lane = due.lane as usize;
        if due.is_arrival {
            return self.start(lane, due.intended_ns, now_ns, line);
        }
        match self.lanes[lane].state {
            State::Holding => self.want(lane, Op::Release, due.intended_ns, now_ns, line),
            State::Pausing => {
                self.busy -= 1;
                self.rest(lane, due.intended_ns, now_ns, line);
            }
            // It was told to stop meanwhile.
            State::Idle | State::Wants | State::UnderWay => {}
        }
    }

    /// Starts a client of the closed loop, or one that takes keys to hold.
    pub(crate) fn begin<C: Codec>(&mut self, lane: u32, now_ns: u64, line: &mut Line<C>) {
        self.rest(lane as usize, now_ns, now_ns, line);
    }

    /// A connection can be used now by its clients.
    pub(crate) fn connected<C: Codec>(
        &mut self,
        lanes: Range<u32>,
        now_ns: u64,
        line: &mut Line<C>,
    ) {
        for lane in lanes.start as usize..lanes.end as usize {
            if self.lanes[lane].state != State::Wants {
                continue;
            }
            if self.lanes[lane].op == Op::Connect {
                let intended_ns = self.lanes[lane].intended_ns;
                let recorder = &mut self.recorder;
                recorder.ended(Op::Connect, intended_ns, now_ns, Outcome::Ok, false);
                self.lanes[lane].op = Op::Acquire;
                self.lanes[lane].intended_ns = now_ns;
            }
            self.send(lane, now_ns, line);
        }
    }

    /// A connection is over; `outcome` is that of the requests under way on it.
    pub(crate) fn lost<C: Codec>(
        &mut self,
        lanes: Range<u32>,
        outcome: Outcome,
        now_ns: u64,
        line: &mut Line<C>,
    ) {
        self.breaks += 1;
        for lane in lanes.start as usize..lanes.end as usize {
            let Lane {
                state,
                op,
                intended_ns,
                key,
                client,
                activity,
                ..
            } = self.lanes[lane];
            if state != State::UnderWay {
                continue;
            }
            self.recorder.ended(op, intended_ns, now_ns, outcome, true);
            self.note(now_ns, EventKind::Lost, 0, key, client);
            // A request that was never sent leaves the key as it was: free, or held.
            if outcome != Outcome::Unconnected || op == Op::Release {
                self.is_unsure_of(activity, key);
            }
            self.finish(lane, now_ns, line);
        }
    }

    /// An answer has come, on this connection.
    ///
    /// # Errors
    /// There is no such request, or the answer is wrong.
    #[inline]
    pub(crate) fn answered<C: Codec>(
        &mut self,
        connection: u32,
        tag: Tag,
        answer: Answer,
        now_ns: u64,
        line: &mut Line<C>,
    ) -> Result<(), Violation> {
        let index = (tag & LANE_MASK) as usize;
        let Some(lane) = self.lanes.get_mut(index) else {
            return Err(answers_nothing(None));
        };
        if lane.tag != tag || lane.connection != connection || lane.state != State::UnderWay {
            return Err(answers_nothing(Some(lane.key)));
        }
        let (op, intended_ns) = (lane.op, lane.intended_ns);
        match (op, answer) {
            (Op::Acquire, Answer::Granted { token, waited_ms }) => {
                lane.token = token;
                self.recorder
                    .ended(op, intended_ns, now_ns, Outcome::Ok, false);
                self.granted::<C>(index, waited_ms, now_ns)?;
                self.go_on_holding(index, now_ns, line);
            }
            (Op::Release, Answer::Released) => {
                self.recorder
                    .ended(op, intended_ns, now_ns, Outcome::Ok, false);
                self.released(index, now_ns);
                self.finish(index, now_ns, line);
            }
            (Op::Put, Answer::Done) => {
                self.recorder
                    .ended(op, intended_ns, now_ns, Outcome::Ok, false);
                self.want(index, Op::Get, now_ns, now_ns, line);
            }
            (Op::Get | Op::Echo, Answer::Done) => {
                self.recorder
                    .ended(op, intended_ns, now_ns, Outcome::Ok, false);
                self.finish(index, now_ns, line);
            }
            (_, Answer::Refused(outcome)) => self.refused(index, outcome, now_ns, line)?,
            (op, answer) => {
                return Err(Violation {
                    what: format!("{} answered by {answer:?}", op.name(false)),
                    key: Some(lane.key),
                });
            }
        }
        Ok(())
    }

    /// Looks up the tokens that the rounds begun lately have to exceed; to be called before
    /// their answers can come. Of many keys most are not in the cache: one loop over all
    /// has the memory fetch them at once, where one by one each would be waited for.
    #[inline]
    pub(crate) fn look_up_tokens(&mut self) {
        for lane in self.started.drain(..) {
            let client = &mut self.lanes[lane as usize];
            if let Ledger::Private(tokens) = &self.ledgers[client.activity] {
                client.token_before = tokens.latest(client.place_in_table);
            }
        }
    }

    /// Nothing new begins. What waits for a connection is given up; holds and pauses end
    /// now, by [`Clients::poll_due`].
    pub(crate) fn stop(&mut self, now_ns: u64) {
        self.is_stopping = true;
        self.recorder.stop(now_ns);
        self.due.clear();
        for lane in 0..self.lanes.len() {
            let Lane {
                state,
                op,
                activity,
                key,
                intended_ns,
                ..
            } = self.lanes[lane];
            match state {
                State::Holding | State::Pausing => self.due.push(Reverse((now_ns, lane as u32))),
                State::Wants => {
                    let was_due = self.recorder.never_sent(op, intended_ns, now_ns);
                    self.unsent += u64::from(was_due);
                    if op == Op::Release {
                        self.is_unsure_of(activity, key);
                    }
                    self.lanes[lane].state = State::Idle;
                    self.busy -= 1;
                }
                State::Idle | State::UnderWay => {}
            }
        }
        let Some(mut schedule) = self.schedule.take() else {
            return;
        };
        let first = self.rules.activities.first().map(|activity| activity.kind);
        let op = first.map_or(Op::Acquire, |kind| self.first_op(kind));
        while let Some(intended_ns) = schedule.take_due(now_ns) {
            self.unsent += u64::from(self.recorder.never_sent(op, intended_ns, now_ns));
        }
    }

    /// A request that has not been answered, in words.
    ///
    /// # Errors
    /// There is one.
    pub(crate) fn check_all_answered(&self) -> Result<(), Violation> {
        let is_open = |lane: &&Lane| lane.state == State::UnderWay;
        match self.lanes.iter().find(is_open) {
            None => Ok(()),
            Some(lane) => Err(Violation {
                what: format!(
                    "no answer to {} of client {}",
                    lane.op.name(false),
                    lane.client
                ),
                key: Some(lane.key),
            }),
        }
    }

    /// A client is free: it begins its next round, or waits for one.
    fn rest<C: Codec>(&mut self, lane: usize, free_ns: u64, now_ns: u64, line: &mut Line<C>) {
        self.lanes[lane].state = State::Idle;
        if self.is_stopping {
            return;
        }
        if !self.to_hold.is_empty() {
            return self.hold_one(lane, now_ns, line);
        }
        if self.to_hold.end > 0 {
            // The others are still being taken.
            return;
        }
        match &mut self.schedule {
            Some(schedule) => match schedule.take_due(now_ns) {
                // Arrivals are served in their order: whoever waits longer goes first.
                Some(intended_ns) => self.start(lane, intended_ns, now_ns, line),
                None => self.idle.push_back(lane as u32),
            },
            None => self.start(lane, free_ns, now_ns, line),
        }
    }

    /// Held keys are all taken: rounds may begin.
    pub(crate) fn held_all(&mut self) {
        self.to_hold = 0..0;
    }

    fn hold_one<C: Codec>(&mut self, lane: usize, now_ns: u64, line: &mut Line<C>) {
        let Some(number) = self.to_hold.next() else {
            return;
        };
        let client = &mut self.lanes[lane];
        client.activity = self.rules.activities.len();
        client.key = KeyId::new(HELD_SPACE, number);
        client.hold_ns = 0;
        self.busy += 1;
        self.want(lane, Op::Acquire, now_ns, now_ns, line);
    }

    #[inline]
    fn start<C: Codec>(&mut self, lane: usize, intended_ns: u64, now_ns: u64, line: &mut Line<C>) {
        let client = &mut self.lanes[lane];
        let place = self.places.get(lane).copied();
        let Draw {
            activity,
            key,
            rank,
            hold_ns,
        } = self
            .rules
            .streams
            .draw(&mut client.stream, place, &mut self.text);
        client.activity = activity;
        client.key = key;
        client.hold_ns = hold_ns;
        if let Ledger::Private(_) = &self.ledgers[activity] {
            let span = self.rules.streams.span(activity);
            client.place_in_table = lane * span as usize + rank as usize;
            self.started.push(lane as u32);
        }
        self.busy += 1;
        let op = self.first_op(self.rules.activities[activity].kind);
        self.want(lane, op, intended_ns, now_ns, line);
    }

    #[inline]
    fn first_op(&self, kind: Kind) -> Op {
        match kind {
            _ if self.rules.is_bare => Op::Echo,
            Kind::Pairs | Kind::Contended | Kind::Try | Kind::Expiry => Op::Acquire,
            Kind::Churn => Op::Connect,
            Kind::Data => Op::Put,
            Kind::Line => Op::Echo,
        }
    }

    #[inline]
    fn want<C: Codec>(
        &mut self,
        lane: usize,
        op: Op,
        intended_ns: u64,
        now_ns: u64,
        line: &mut Line<C>,
    ) {
        let client = &mut self.lanes[lane];
        client.op = op;
        client.intended_ns = intended_ns;
        if C::ONE_SHOT || op == Op::Connect || !line.is_up {
            client.state = State::Wants;
            line.renew |= (C::ONE_SHOT || op == Op::Connect) && !line.is_down;
            return;
        }
        self.send(lane, now_ns, line);
    }

    #[inline]
    fn send<C: Codec>(&mut self, lane: usize, now_ns: u64, line: &mut Line<C>) {
        self.sequence += 1;
        let tag = self.sequence << LANE_BITS | lane as u64;
        let client = &mut self.lanes[lane];
        client.tag = tag;
        client.state = State::UnderWay;
        client.sent_ns = now_ns;
        let (key, activity) = (client.key, client.activity);
        let (number, token) = (client.client, client.token);
        let (wait_ms, lease_ms) = match self.rules.activities.get(activity) {
            Some(activity) => (activity.wait_ms, activity.lease_ms),
            None => (0, self.rules.held_lease_ms),
        };
        let op = client.op;
        if op == Op::Release {
            if let Some(Ledger::Shared(ledger)) = self.ledgers.get(activity) {
                // Before a byte is sent: the next holder may be told at once.
                ledger.key(key.number()).release_sent(number, token, now_ns);
            }
            self.note(now_ns, EventKind::ReleaseSent, token, key, number);
        } else if matches!(self.ledgers.get(activity), Some(Ledger::Shared(_))) {
            self.note(now_ns, EventKind::AcquireSent, 0, key, number);
        }
        let key = self.text.of(key);
        let call = match op {
            Op::Acquire | Op::Connect | Op::HandOver => Call::Acquire {
                key,
                wait_ms,
                lease_ms,
            },
            Op::Release => Call::Release { key, token },
            Op::Put => Call::Put { key },
            Op::Get => Call::Get { key },
            Op::Echo => Call::Frame { key },
        };
        line.codec.encode(tag, activity, &call, &mut line.out);
    }

    /// The client of `lane` was granted its key.
    #[inline]
    fn granted<C: Codec>(
        &mut self,
        lane: usize,
        waited_ms: u32,
        now_ns: u64,
    ) -> Result<(), Violation> {
        let client = &mut self.lanes[lane];
        let Some(activity) = self.rules.activities.get(client.activity) else {
            return Ok(());
        };
        let lease_ms = activity.lease_ms;
        client.until_ns = bound_ns(client.sent_ns, waited_ms, lease_ms);
        client.breaks_then = self.breaks;
        let Lane {
            key, token, client, ..
        } = *client;
        let result = match &mut self.ledgers[self.lanes[lane].activity] {
            Ledger::Off => return Ok(()),
            Ledger::Private(tokens) => {
                let Lane {
                    place_in_table,
                    token_before,
                    ..
                } = self.lanes[lane];
                let grown = tokens.granted(place_in_table, token_before, token);
                grown.map(|()| None)
            }
            Ledger::Shared(ledger) => {
                let token = if C::HAS_TOKENS { token } else { 0 };
                let sent_ns = self.lanes[lane].sent_ns;
                ledger.key(key.number()).granted(&Grant {
                    token,
                    sent_ns,
                    received_ns: now_ns,
                    waited_ms,
                    lease_ms,
                    client,
                })
            }
        };
        self.note(now_ns, EventKind::Granted, token, key, client);
        match result {
            Ok(None) => {}
            Ok(Some(hand_over_ns)) => {
                let until_ns = self.lanes[lane].until_ns;
                self.note(now_ns, EventKind::Believes, until_ns, key, client);
                let freed_ns = now_ns - hand_over_ns;
                let recorder = &mut self.recorder;
                recorder.ended(Op::HandOver, freed_ns, now_ns, Outcome::Ok, false);
            }
            Err(fault) => return self.violated(fault, key),
        }
        Ok(())
    }

    #[cold]
    fn violated(&self, fault: Fault, key: KeyId) -> Result<(), Violation> {
        match self.rules.checks {
            false => Ok(()),
            true => Err(Violation {
                what: fault.to_string(),
                key: Some(key),
            }),
        }
    }

    #[inline]
    fn go_on_holding<C: Codec>(&mut self, lane: usize, now_ns: u64, line: &mut Line<C>) {
        let client = &mut self.lanes[lane];
        let activity = self.rules.activities.get(client.activity);
        if !activity.is_some_and(|activity| activity.kind.releases()) {
            return self.finish(lane, now_ns, line);
        }
        if client.hold_ns > 0 && !self.is_stopping {
            client.state = State::Holding;
            self.due
                .push(Reverse((now_ns + client.hold_ns, lane as u32)));
            return;
        }
        self.want(lane, Op::Release, now_ns, now_ns, line);
    }

    #[inline]
    fn released(&mut self, lane: usize, now_ns: u64) {
        let Lane {
            activity,
            key,
            client,
            token,
            ..
        } = self.lanes[lane];
        if let Some(Ledger::Shared(ledger)) = self.ledgers.get(activity) {
            ledger.key(key.number()).released(client, token);
            self.note(now_ns, EventKind::Released, token, key, client);
        }
    }

    fn refused<C: Codec>(
        &mut self,
        lane: usize,
        outcome: Outcome,
        now_ns: u64,
        line: &mut Line<C>,
    ) -> Result<(), Violation> {
        let Lane {
            op,
            activity,
            key,
            client,
            until_ns,
            intended_ns,
            breaks_then,
            ..
        } = self.lanes[lane];
        let kind = self
            .rules
            .activities
            .get(activity)
            .map(|activity| activity.kind);
        let Some(kind) = kind else {
            return Err(Violation {
                what: format!(
                    "--held: a key was refused: {}",
                    Outcome::name_of(outcome.index())
                ),
                key: Some(key),
            });
        };
        let is_error = !(op == Op::Acquire && outcome.is_contention() && kind.expects_refusals());
        self.recorder
            .ended(op, intended_ns, now_ns, outcome, is_error);
        self.note(
            now_ns,
            EventKind::Refused,
            outcome.index() as u64,
            key,
            client,
        );
        let is_not_held = matches!(outcome, Outcome::NotHeld | Outcome::NotOwner);
        if op == Op::Release {
            self.is_unsure_of(activity, key);
        }
        if self.rules.checks {
            let what = match (op, outcome) {
                (Op::Release, _) if is_not_held => (now_ns < until_ns
                    && breaks_then == self.breaks)
                    .then_some("not held, and the lease was not over"),
                (Op::Release, Outcome::TimedOut | Outcome::Busy) => {
                    Some("a release answered like an acquire")
                }
                (Op::Acquire, Outcome::NotHeld) => Some("an acquire answered like a release"),
                (_, Outcome::WrongData) => Some("Get gave other data than Put stored"),
                _ => None,
            };
            if let Some(what) = what {
                return Err(Violation {
                    what: what.into(),
                    key: Some(key),
                });
            }
        }
        if matches!(outcome, Outcome::Error(_) | Outcome::Refused | Outcome::No)
            && !self.is_stopping
        {
            self.lanes[lane].state = State::Pausing;
            self.due.push(Reverse((now_ns + PAUSE_NS, lane as u32)));
            return Ok(());
        }
        self.finish(lane, now_ns, line);
        Ok(())
    }

    #[inline]
    fn finish<C: Codec>(&mut self, lane: usize, now_ns: u64, line: &mut Line<C>) {
        self.busy -= 1;
        self.rest(lane, now_ns, now_ns, line);
    }

    fn is_unsure_of(&mut self, activity: usize, key: KeyId) {
        match self.ledgers.get(activity) {
            Some(Ledger::Shared(ledger)) => ledger.key(key.number()).lost(),
            _ => self.unsure.push(key),
        }
    }

    #[inline]
    fn note(&mut self, at_ns: u64, kind: EventKind, value: u64, key: KeyId, client: u32) {
        if self.rules.checks {
            self.history.push(Event {
                at_ns,
                key,
                value,
                client,
                kind,
            });
        }
    }
}

/// A client that has something to do by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Which, within its thread.
    pub(crate) lane: u32,
    intended_ns: u64,
    is_arrival: bool,
}

#[cold]
fn answers_nothing(key: Option<KeyId>) -> Violation {
    Violation {
        what: "an answer to no request that is under way: answered twice, or never asked".into(),
        key,
    }
}

#[cfg(test)]
mod tests;
