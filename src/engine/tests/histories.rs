//! Random histories: against the model, reply for reply; and with a wheel that
//! lags, against what must hold whatever the timing.

use super::super::paged_slab::NONE;
use super::model::{self, Model};
use super::*;
use crate::durability::{LeaseRecord, RecordChange};
use crate::engine::time::NANOS_PER_MS;
use crate::engine::{DlmPut, DlmUnlock};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::BTreeMap;

const KEYS: [&str; 4] = ["a", "b", "c", "a key too long to lie in its entry"];
const SESSIONS: u8 = 4;
const VALUES: [&str; 3] = ["", "value", "a longer value"];
const HOLDERS: [(&str, Option<&str>); 3] = [("x", None), ("y", None), ("x", Some("name"))];

/// Something that happens, `after` what came before it.
#[derive(Clone, Debug)]
struct Step {
    after: After,
    what: What,
}

/// How much time passes first.
#[derive(Clone, Copy, Debug)]
enum After {
    Nanos(u64),
    /// To some deadline that is ahead, and this many nanoseconds beyond it.
    SomeDeadline(Index, i64),
}

#[derive(Clone, Debug)]
enum What {
    Acquire {
        session: u8,
        owner: u64,
        key: usize,
        wait_ms: u32,
        lease_ms: u32,
    },
    Release {
        session: u8,
        key: usize,
        token: Token,
    },
    Extend {
        session: u8,
        key: usize,
        token: Token,
        lease_ms: u32,
    },
    Cancel {
        session: u8,
        target: u64,
        key: usize,
    },
    Query {
        session: u8,
        key: usize,
    },
    End {
        session: u8,
        end: SessionEnd,
    },
    LoseGrant {
        which: Index,
    },
    Timeouts,
    Drain,
    /// All changes of records so far have become durable.
    Recorded,
    DlmLock {
        holder: usize,
        key: usize,
        lease_ms: u64,
    },
    DlmUnlock {
        holder: usize,
        key: usize,
    },
    DlmTest {
        holder: usize,
        key: usize,
    },
    DlmPut {
        holder: usize,
        key: usize,
        lease_ms: u64,
        value: usize,
    },
    DlmGet {
        holder: usize,
        key: usize,
    },
    DlmErase {
        holder: usize,
        key: usize,
    },
}

#[derive(Clone, Copy, Debug)]
enum Token {
    /// The one that holds the key, if one does.
    Right,
    /// One that was granted, on whatever key.
    Granted(Index),
    Number(u64),
}

fn after() -> impl Strategy<Value = After> {
    prop_oneof![
        3 => Just(After::Nanos(0)),
        1 => Just(After::Nanos(1)),
        2 => (0..3 * NANOS_PER_MS).prop_map(After::Nanos),
        1 => (0..200 * NANOS_PER_MS).prop_map(After::Nanos),
        3 => (any::<Index>(), -1..=1_i64).prop_map(|(which, beyond)| After::SomeDeadline(which, beyond)),
        1 => (any::<Index>(), 0..2_000_000_i64).prop_map(|(which, beyond)| After::SomeDeadline(which, beyond)),
    ]
}

fn token() -> impl Strategy<Value = Token> {
    prop_oneof![
        6 => Just(Token::Right),
        2 => any::<Index>().prop_map(Token::Granted),
        1 => (T0 - 1..T0 + 20).prop_map(Token::Number),
    ]
}

fn what() -> impl Strategy<Value = What> {
    // Most of it on one key and two sessions, so that queues get long and the same
    // owner queues twice.
    let session = || prop_oneof![2 => 0..2_u8, 1 => 0..SESSIONS];
    let key = || prop_oneof![2 => Just(0), 1 => 0..KEYS.len()];
    let holder = || 0..HOLDERS.len();
    let lease_ms = || prop_oneof![1..8_u32, 1..300_u32];
    let wait_ms = prop_oneof![2 => Just(0), 6 => 1..8_u32, 3 => 1..300_u32];
    prop_oneof![
        12 => (session(), 1..3_u64, key(), wait_ms, lease_ms()).prop_map(
            |(session, owner, key, wait_ms, lease_ms)| What::Acquire { session, owner, key, wait_ms, lease_ms }),
        6 => (session(), key(), token()).prop_map(|(session, key, token)| What::Release { session, key, token }),
        3 => (session(), key(), token(), lease_ms()).prop_map(
            |(session, key, token, lease_ms)| What::Extend { session, key, token, lease_ms }),
        3 => (session(), 1..3_u64, key()).prop_map(|(session, target, key)| What::Cancel { session, target, key }),
        2 => (session(), key()).prop_map(|(session, key)| What::Query { session, key }),
        2 => (session(), prop_oneof![Just(SessionEnd::Orderly), Just(SessionEnd::Broken)]).prop_map(
            |(session, end)| What::End { session, end }),
        1 => any::<Index>().prop_map(|which| What::LoseGrant { which }),
        4 => Just(What::Timeouts),
        1 => Just(What::Recorded),
        2 => (holder(), key(), lease_ms()).prop_map(
            |(holder, key, lease_ms)| What::DlmLock { holder, key, lease_ms: lease_ms.into() }),
        1 => (holder(), key()).prop_map(|(holder, key)| What::DlmUnlock { holder, key }),
        1 => (holder(), key()).prop_map(|(holder, key)| What::DlmTest { holder, key }),
        2 => (holder(), key(), lease_ms(), 0..VALUES.len()).prop_map(
            |(holder, key, lease_ms, value)| What::DlmPut { holder, key, lease_ms: lease_ms.into(), value }),
        1 => (holder(), key()).prop_map(|(holder, key)| What::DlmGet { holder, key }),
        1 => (holder(), key()).prop_map(|(holder, key)| What::DlmErase { holder, key }),
    ]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (after(), what()).prop_map(|(after, what)| Step { after, what });
    prop::collection::vec(step, 1..60)
}

/// The same with a drain somewhere, in one history of four.
fn steps_with_drain() -> impl Strategy<Value = Vec<Step>> {
    (steps(), prop::option::weighted(0.25, any::<Index>())).prop_map(|(mut steps, drain)| {
        if let Some(place) = drain {
            let drain = Step {
                after: After::Nanos(0),
                what: What::Drain,
            };
            steps.insert(place.index(steps.len()), drain);
        }
        steps
    })
}

fn limits() -> impl Strategy<Value = EngineLimits> {
    let small_or_none = |range: std::ops::Range<u32>| prop_oneof![range, Just(u32::MAX)];
    (
        small_or_none(1..4),
        small_or_none(0..3),
        small_or_none(0..5),
        small_or_none(0..3),
        prop_oneof![2 => Just(0), 1 => 1..20_u32],
    )
        .prop_map(
            |(max_keys, max_waiters_per_key, max_waiters, max_session_waiters, expiry_grace_ms)| {
                EngineLimits {
                    max_keys,
                    max_waiters_per_key,
                    max_waiters,
                    max_session_waiters,
                    expiry_grace_ms,
                    ..UNLIMITED
                }
            },
        )
}

/// What a restart before the history has left.
#[derive(Clone, Debug)]
struct Start {
    grace_nanos: u64,
    /// DLM leases longer than this are recorded.
    record_cap_ms: u64,
    /// For some keys: the holder recorded and what is left of the lease.
    records: [Option<(usize, u64)>; KEYS.len()],
}

impl Start {
    /// Nothing: it is the first.
    const FIRST: Start = Start {
        grace_nanos: 0,
        record_cap_ms: u64::MAX,
        records: [None; KEYS.len()],
    };
}

fn grace_nanos() -> impl Strategy<Value = u64> {
    prop_oneof![
        2 => Just(0),
        1 => 0..100 * NANOS_PER_MS,
        1 => (0..100_u64).prop_map(|ms| ms * NANOS_PER_MS),
    ]
}

fn start() -> impl Strategy<Value = Start> {
    let record = || prop::option::weighted(0.2, (0..HOLDERS.len(), 0..200_u64));
    (
        grace_nanos(),
        prop_oneof![Just(u64::MAX), 1..150_u64],
        [record(), record(), record(), record()],
    )
        .prop_map(|(grace_nanos, record_cap_ms, records)| Start {
            grace_nanos,
            record_cap_ms,
            records,
        })
}

/// Engine and model, side by side.
struct Pair {
    rig: Rig,
    model: Model,
    generations: [u32; SESSIONS as usize],
    /// What the records say after all changes so far.
    records: BTreeMap<Box<[u8]>, LeaseRecord>,
    last_change: u64,
    /// Per key, the last change that is not durable.
    changing: BTreeMap<Box<[u8]>, u64>,
}

impl Pair {
    fn new(limits: EngineLimits, start: &Start) -> Pair {
        let mut rig = Rig::restarted(limits, start.grace_nanos, start.record_cap_ms);
        let grace_end = Time::from_nanos(rig.now.as_nanos() + start.grace_nanos);
        let mut model = Model::new(limits, T0).restarted(grace_end, start.record_cap_ms);
        let mut records = BTreeMap::new();
        for (key, record) in KEYS.into_iter().zip(start.records) {
            let Some((holder, left_ms)) = record else {
                continue;
            };
            let (id, name) = HOLDERS[holder];
            let record = LeaseRecord {
                key: key.as_bytes().into(),
                id: id.into(),
                name: name.map(Into::into),
                deadline: rig.now.plus_millis(left_ms),
                length_ms: 1_000,
            };
            rig.engine.restore(&record);
            model.restore(key, (id, name), record.deadline);
            records.insert(record.key.clone(), record);
        }
        Pair {
            rig,
            model,
            generations: [0; SESSIONS as usize],
            records,
            last_change: 0,
            changing: BTreeMap::new(),
        }
    }

    fn session(&self, number: u8) -> SessionId {
        let generation = self.generations[usize::from(number)];
        // Two loops, two slots each.
        SessionId::new(u16::from(number / 2), generation, u32::from(number % 2))
    }

    fn releases_on_close(&self, number: u8) -> bool {
        (u32::from(number) + self.generations[usize::from(number)]) % 2 == 1
    }

    fn caller(&self, number: u8) -> Caller {
        Caller {
            session: self.session(number),
            release_on_close: self.releases_on_close(number),
        }
    }

    fn pass(&mut self, after: After) {
        let now = self.rig.now.as_nanos();
        let to = match after {
            After::Nanos(nanos) => now + nanos,
            After::SomeDeadline(which, beyond) => {
                let deadlines: Vec<u64> = self
                    .model
                    .keys
                    .values()
                    .flat_map(|key| key.queue.iter().map(|w| w.deadline).chain([key.deadline]))
                    .chain(self.model.data.values().map(|data| data.deadline))
                    .chain([self.model.grace_end])
                    .map(Time::as_nanos)
                    .collect();
                match deadlines.is_empty() {
                    true => now,
                    false => which.get(&deadlines).saturating_add_signed(beyond),
                }
            }
        };
        self.rig.now = Time::from_nanos(to.max(now));
    }

    fn token(&self, token: Token, key: &str) -> u64 {
        match token {
            Token::Right => self.model.token_of(key).unwrap_or(T0),
            Token::Granted(_) if self.rig.recorder.grants.is_empty() => T0,
            Token::Granted(which) => which.get(&self.rig.recorder.grants).token,
            Token::Number(number) => number,
        }
    }

    fn request(&mut self, number: u8, request: &Request<'_>) {
        let caller = self.caller(number);
        self.rig
            .engine
            .handle_request(self.rig.now, caller, request, &mut self.rig.recorder);
    }

    /// Does one step on both sides and compares what came out and what is left.
    fn step(&mut self, step: &Step) -> Result<(), TestCaseError> {
        self.pass(step.after);
        let now = self.rig.now;
        let mut is_order_fixed = true;
        let grants_before = self.rig.recorder.grants.len();
        // What a DLM answer needs, and of which key and how long a lease it tells.
        let mut answered = None;
        match step.what {
            What::Acquire {
                session: number,
                owner,
                key,
                wait_ms,
                lease_ms,
            } => {
                let Caller {
                    session,
                    release_on_close,
                } = self.caller(number);
                let acquire = model::Acquire {
                    session,
                    release_on_close,
                    owner,
                    wait_ms,
                    lease_ms,
                };
                self.model.acquire(now, KEYS[key], &acquire);
                let key = KEYS[key].as_bytes();
                self.request(
                    number,
                    &Request::Acquire {
                        owner,
                        wait_ms,
                        lease_ms,
                        key,
                    },
                );
            }
            What::Release {
                session,
                key,
                token,
            } => {
                let token = self.token(token, KEYS[key]);
                self.model
                    .release(now, self.session(session), 9, KEYS[key], token);
                let key = KEYS[key].as_bytes();
                self.request(
                    session,
                    &Request::Release {
                        owner: 9,
                        token,
                        key,
                    },
                );
            }
            What::Extend {
                session,
                key,
                token,
                lease_ms,
            } => {
                let token = self.token(token, KEYS[key]);
                self.model
                    .extend(now, self.session(session), 9, KEYS[key], token, lease_ms);
                let key = KEYS[key].as_bytes();
                self.request(
                    session,
                    &Request::Extend {
                        owner: 9,
                        lease_ms,
                        token,
                        key,
                    },
                );
            }
            What::Cancel {
                session,
                target,
                key,
            } => {
                self.model
                    .cancel(now, self.session(session), 9, KEYS[key], target);
                let key = KEYS[key].as_bytes();
                self.request(
                    session,
                    &Request::Cancel {
                        owner: 9,
                        target,
                        key,
                    },
                );
            }
            What::Query { session, key } => self.query(session, KEYS[key]),
            What::End {
                session: number,
                end,
            } => {
                let session = self.session(number);
                self.model.end_session(now, session, end);
                self.rig
                    .engine
                    .handle_session_end(now, session, end, &mut self.rig.recorder);
                self.generations[usize::from(number)] += 1;
            }
            What::LoseGrant { which } => {
                if !self.rig.recorder.grants.is_empty() {
                    let grant = *which.get(&self.rig.recorder.grants);
                    self.lose(grant);
                }
            }
            What::Timeouts => {
                self.model.timeouts(now);
                let more = self
                    .rig
                    .engine
                    .handle_timeouts(now, u32::MAX, &mut self.rig.recorder);
                prop_assert!(!more);
                // Replies of different keys come in any order: a drain walks the queues
                // its own way, and a key's grace may end before another's wait does.
                is_order_fixed = false;
            }
            What::Drain => {
                self.model.drain();
                self.rig.engine.handle_drain();
            }
            What::Recorded => {
                self.rig.engine.handle_recorded(self.last_change);
                self.changing.clear();
            }
            What::DlmLock {
                holder,
                key,
                lease_ms,
            } => {
                let (id, name) = HOLDERS[holder];
                let expected = self.model.dlm_lock(now, KEYS[key], (id, name), lease_ms);
                let holder = DlmHolder { id, name };
                let (engine, out) = (&mut self.rig.engine, &mut self.rig.recorder);
                let answer =
                    engine.handle_dlm_lock(now, KEYS[key].as_bytes(), holder, lease_ms, out);
                prop_assert_eq!(answer.came_to, expected);
                let told = (expected == DlmLock::Locked).then_some((KEYS[key], lease_ms));
                answered = Some((answer.needs, told));
            }
            What::DlmUnlock { holder, key } => {
                let (id, name) = HOLDERS[holder];
                let expected = self.model.dlm_unlock(now, KEYS[key], (id, name));
                let holder = DlmHolder { id, name };
                let (engine, out) = (&mut self.rig.engine, &mut self.rig.recorder);
                let answer = engine.handle_dlm_unlock(now, KEYS[key].as_bytes(), holder, out);
                prop_assert_eq!(answer.came_to, expected);
                let told = (expected != DlmUnlock::NotOwner).then_some((KEYS[key], 0));
                answered = Some((answer.needs, told));
            }
            What::DlmTest { holder, key } => {
                let (id, name) = HOLDERS[holder];
                let expected = self.model.dlm_test(now, KEYS[key], (id, name));
                let (key, holder) = (KEYS[key].as_bytes(), DlmHolder { id, name });
                let engine = &mut self.rig.engine;
                let answer = engine.handle_dlm_test(now, key, holder, &mut self.rig.recorder);
                prop_assert_eq!(answer, expected);
            }
            What::DlmPut {
                holder,
                key,
                lease_ms,
                value,
            } => {
                let (id, name) = HOLDERS[holder];
                let expected =
                    self.model
                        .dlm_put(now, KEYS[key], (id, name), lease_ms, VALUES[value]);
                let is_holder = self.model.is_dlm_holder(KEYS[key], (id, name));
                let holder = DlmHolder { id, name };
                let (engine, out) = (&mut self.rig.engine, &mut self.rig.recorder);
                let (bytes, value) = (KEYS[key].as_bytes(), VALUES[value].into());
                let answer = engine.handle_dlm_put(now, bytes, holder, lease_ms, value, out);
                prop_assert_eq!(answer.came_to, expected);
                let told = (expected == DlmPut::Done && is_holder).then_some((KEYS[key], lease_ms));
                answered = Some((answer.needs, told));
            }
            What::DlmGet { holder, key } => {
                let (id, name) = HOLDERS[holder];
                let expected = self.model.dlm_get(now, KEYS[key], (id, name));
                let (key, holder) = (KEYS[key].as_bytes(), DlmHolder { id, name });
                let engine = &mut self.rig.engine;
                let answer = engine.handle_dlm_get(now, key, holder, &mut self.rig.recorder);
                prop_assert_eq!(answer, expected);
            }
            What::DlmErase { holder, key } => {
                let (id, name) = HOLDERS[holder];
                let expected = self.model.dlm_erase(now, KEYS[key], (id, name));
                let (key, holder) = (KEYS[key].as_bytes(), DlmHolder { id, name });
                let answer = self.rig.engine.handle_dlm_erase(now, key, holder);
                prop_assert_eq!(answer, expected);
            }
        }
        self.compare(is_order_fixed)?;
        self.follow_records()?;
        if let Some((needs, told)) = answered {
            let expected = told.map_or(Needs::default(), |(key, lease_ms)| {
                let is_recorded = self.model.records().contains_key(key);
                Needs {
                    lease_ms: if is_recorded { 0 } else { lease_ms },
                    change: self.change_of(key),
                }
            });
            prop_assert_eq!(needs, expected);
        }
        // A grant that the step itself has extended is told of as it was before.
        let is_extend = matches!(step.what, What::Extend { .. });
        self.check_needs_of_grants(grants_before, is_extend)
    }

    /// Makes the changes of records that there are, and compares what they come to.
    fn follow_records(&mut self) -> Result<(), TestCaseError> {
        while let Some((number, change)) = self.rig.engine.poll_record_change() {
            self.last_change += 1;
            prop_assert_eq!(number, self.last_change, "without gaps");
            self.changing.insert(change.key().into(), number);
            match change {
                RecordChange::Set(record) => {
                    prop_assert_eq!(
                        record.length_ms,
                        record.deadline.millis_since_ceil(self.rig.now)
                    );
                    self.records.insert(record.key.clone(), record);
                }
                RecordChange::Remove { key } => {
                    prop_assert!(self.records.remove(&key).is_some(), "it was recorded");
                }
            }
        }
        let expected = self.model.records();
        prop_assert_eq!(self.records.len(), expected.len());
        for (key, ((id, name), deadline)) in expected {
            let record = &self.records[key.as_bytes()];
            prop_assert_eq!((&*record.id, record.name.as_deref()), (id, name));
            prop_assert_eq!(record.deadline, deadline);
        }
        Ok(())
    }

    /// Grants of this step wait for the key's record, and for D to cover their lease.
    fn check_needs_of_grants(&self, before: usize, is_extended: bool) -> Result<(), TestCaseError> {
        let recorder = &self.rig.recorder;
        for (grant, needs) in recorder.grants.iter().zip(&recorder.needs).skip(before) {
            let mut keys = self.model.keys.iter();
            // One that has ended in the same step is nobody's any more.
            if let Some((key, found)) =
                keys.find(|(key, _)| self.model.token_of(key) == Some(grant.token))
            {
                let lease_ms = found.deadline.millis_since_ceil(self.rig.now);
                prop_assert!(needs.lease_ms == lease_ms || is_extended);
                prop_assert_eq!(needs.change, self.change_of(key));
            }
        }
        Ok(())
    }

    /// The last change of a key's record, 0 if it is durable.
    fn change_of(&self, key: &str) -> u64 {
        self.changing.get(key.as_bytes()).copied().unwrap_or(0)
    }

    fn query(&mut self, session: u8, key: &'static str) {
        let now = self.rig.now;
        self.model.query(now, self.session(session), 9, key);
        let key = key.as_bytes();
        self.request(session, &Request::Query { owner: 9, key });
    }

    fn lose(&mut self, grant: GrantRef) {
        let now = self.rig.now;
        for key in KEYS {
            self.model.lost_grant(now, key, grant.token);
        }
        self.rig
            .engine
            .handle_lost_grant(now, grant, &mut self.rig.recorder);
    }

    fn compare(&mut self, is_order_fixed: bool) -> Result<(), TestCaseError> {
        let mut came_out = self.rig.came_out();
        let mut expected = std::mem::take(&mut self.model.events);
        if !is_order_fixed {
            came_out.sort_by_key(|event| format!("{event:?}"));
            expected.sort_by_key(|event| format!("{event:?}"));
        }
        prop_assert_eq!(came_out, expected);
        let engine = &self.rig.engine;
        prop_assert_eq!(engine.keys() as usize, self.model.keys.len());
        prop_assert_eq!(engine.held() as usize, self.model.held());
        prop_assert_eq!(engine.waiting() as usize, self.model.waiting());
        prop_assert_eq!(engine.data_slots() as usize, self.model.data.len());
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, max_shrink_iters: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn every_reply_is_the_models(limits in limits(), start in start(), steps in steps_with_drain()) {
        let mut pair = Pair::new(limits, &start);
        for step in &steps {
            pair.step(step)?;
        }
        for key in KEYS {
            pair.query(0, key);
            pair.compare(true)?;
        }
    }
}

/// What one acquire has come to, as its client sees it.
#[derive(Clone, Copy, Debug)]
struct Attempt {
    session: SessionId,
    key: usize,
    arrival: Time,
    wait_ms: u32,
    answered: bool,
    gone: bool,
}

/// Runs a history with polls of few steps, and checks each answer against the
/// attempts alone.
struct Lagging {
    pair: Pair,
    attempts: Vec<Attempt>,
    /// Per key, the grant that has not been seen to end, and its earliest end.
    leases: [Option<(u64, Time)>; KEYS.len()],
}

impl Lagging {
    fn step(&mut self, step: &Step, budget: u32) -> Result<(), TestCaseError> {
        self.pair.rig.pass_nanos(match step.after {
            After::Nanos(nanos) => nanos,
            After::SomeDeadline(which, _) => which.index(20) as u64 * NANOS_PER_MS,
        });
        let now = self.pair.rig.now;
        match step.what {
            What::Acquire {
                session,
                key,
                wait_ms,
                lease_ms,
                ..
            } => {
                let owner = self.attempts.len() as u64;
                self.attempts.push(Attempt {
                    session: self.pair.session(session),
                    key,
                    arrival: now,
                    wait_ms,
                    answered: false,
                    gone: false,
                });
                let key = KEYS[key].as_bytes();
                self.pair.request(
                    session,
                    &Request::Acquire {
                        owner,
                        wait_ms,
                        lease_ms,
                        key,
                    },
                );
            }
            What::Release { session, key, .. } => {
                if let Some((token, _)) = self.leases[key] {
                    let name = KEYS[key].as_bytes();
                    self.pair.request(
                        session,
                        &Request::Release {
                            owner: NO_ATTEMPT,
                            token,
                            key: name,
                        },
                    );
                }
            }
            What::End {
                session: number,
                end,
            } => {
                let session = self.pair.session(number);
                let rig = &mut self.pair.rig;
                rig.engine
                    .handle_session_end(now, session, end, &mut rig.recorder);
                self.pair.generations[usize::from(number)] += 1;
                for attempt in &mut self.attempts {
                    attempt.gone |= attempt.session == session;
                }
            }
            What::Timeouts => {
                let rig = &mut self.pair.rig;
                rig.engine.take_work();
                rig.engine.handle_timeouts(now, budget, &mut rig.recorder);
                let walk = self.attempts.len() as u32;
                prop_assert!(rig.engine.take_work() <= budget + walk, "the budget holds");
            }
            _ => {}
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), TestCaseError> {
        let now = self.pair.rig.now;
        for event in self.pair.rig.came_out() {
            let (to, owner, grant) = match event {
                Event::Granted {
                    to,
                    owner,
                    token,
                    waited_ms,
                } => (to, owner, Some((token, waited_ms))),
                Event::Told {
                    reply: Reply::Released { .. },
                    ..
                } => {
                    continue;
                }
                Event::Told {
                    reply: Reply::NotHeld { .. },
                    ..
                } => continue,
                Event::Told { to, reply } => (to, owner_of(reply), None),
            };
            let attempts = self.attempts.clone();
            let attempt = &mut self.attempts[owner as usize];
            prop_assert!(!attempt.answered, "answered twice");
            prop_assert_eq!(attempt.session, to);
            attempt.answered = true;
            let Some((token, waited_ms)) = grant else {
                continue;
            };
            prop_assert!(!attempt.gone, "granted to a session that is gone");
            prop_assert!(
                now >= self.pair.model.grace_end,
                "granted before grace has ended"
            );
            let wait_end = attempt.arrival.plus_millis(u64::from(attempt.wait_ms));
            prop_assert!(
                attempt.wait_ms == 0 || now < wait_end,
                "granted after its wait"
            );
            prop_assert_eq!(
                u64::from(waited_ms),
                now.millis_since_floor(attempt.arrival)
            );
            let overtaken = attempts[..owner as usize]
                .iter()
                .any(|earlier| earlier.key == attempt.key && !earlier.answered && !earlier.gone);
            prop_assert!(!overtaken, "an older acquire of the key still waits");
            self.leases[attempt.key] = Some((token, now));
        }
        Ok(())
    }
}

/// Owner of requests that are no acquire.
const NO_ATTEMPT: u64 = NONE as u64;

fn owner_of(reply: Reply) -> u64 {
    match reply {
        Reply::TimedOut { owner } | Reply::Busy { owner } | Reply::Error { owner, .. } => owner,
        other => panic!("{other:?} answers no acquire"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn a_lagging_wheel_breaks_no_rule(
        grace_nanos in grace_nanos(),
        steps in steps(),
        budgets in prop::collection::vec(0..5_u32, 60),
    ) {
        let start = Start { grace_nanos, ..Start::FIRST };
        let mut lagging = Lagging {
            pair: Pair::new(UNLIMITED, &start),
            attempts: Vec::new(),
            leases: [None; KEYS.len()],
        };
        for (step, budget) in steps.iter().zip(budgets) {
            lagging.step(step, budget)?;
        }
        // Everything due ends eventually, one step at a time.
        lagging.pair.rig.pass_ms(1_000_000);
        let rig = &mut lagging.pair.rig;
        let mut calls = 0;
        while rig.engine.handle_timeouts(rig.now, 1, &mut rig.recorder) {
            calls += 1;
            prop_assert!(calls < 10_000);
        }
        lagging.check()?;
        let engine = &lagging.pair.rig.engine;
        prop_assert!(lagging.attempts.iter().all(|attempt| attempt.answered || attempt.gone));
        prop_assert_eq!((engine.waiting(), engine.poll_timeout().is_some()), (0, engine.keys() > 0));
    }
}
