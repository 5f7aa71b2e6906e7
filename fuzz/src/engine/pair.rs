//! Engine and model, side by side.

#[path = "../../../src/engine/tests/model.rs"]
mod model;

use super::time::{NANOS_PER_MS, Time};
use super::{EngineLimits, SessionEnd};
use crate::source::Source;
use leasehold::durability::{Durable, LeaseRecord, Needs, RecordChange, TOKEN_BLOCK};
use leasehold::engine::{Caller, DlmHolder, Engine, Outbox};
use leasehold::ids::{GrantRef, SessionId};
use leasehold::protocol::{ErrorCode, Reply, Request};
use model::{DlmId, Model};
use std::collections::BTreeMap;

const KEYS: [&str; 4] = ["a", "b", "c", "a key too long to lie in its entry"];
const SESSIONS: usize = 4;
const VALUES: [&str; 3] = ["", "value", "a longer value"];
const HOLDERS: [DlmId; 3] = [("x", None), ("y", None), ("x", Some("name"))];
const FIRST_TOKEN: u64 = 100;
/// Owner of what is no acquire.
const OWNER: u64 = 9;

/// One thing that came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Granted {
        to: SessionId,
        owner: u64,
        token: u64,
        waited_ms: u32,
    },
    Told {
        to: SessionId,
        reply: Reply,
    },
}

fn granted(to: SessionId, owner: u64, token: u64, waited_ms: u32) -> Event {
    Event::Granted {
        to,
        owner,
        token,
        waited_ms,
    }
}

fn told(to: SessionId, reply: Reply) -> Event {
    Event::Told { to, reply }
}

fn refused(to: SessionId, owner: u64, code: ErrorCode) -> Event {
    told(to, Reply::Error { owner, code })
}

#[derive(Default)]
struct Recorder {
    events: Vec<Event>,
    grants: Vec<GrantRef>,
}

impl Outbox for Recorder {
    fn reply(&mut self, to: SessionId, reply: Reply) {
        self.events.push(told(to, reply));
    }

    fn granted(&mut self, to: SessionId, owner: u64, grant: GrantRef, waited_ms: u32, _: Needs) {
        self.grants.push(grant);
        self.events.push(granted(to, owner, grant.token, waited_ms));
    }
}

/// Engine and model, and the time that it is for both.
pub(super) struct Pair {
    engine: Engine,
    model: Model,
    recorder: Recorder,
    now: Time,
    generations: [u32; SESSIONS],
    /// What the records say after all changes so far.
    records: BTreeMap<Box<[u8]>, LeaseRecord>,
}

pub(super) fn limits(source: &mut Source<'_>) -> EngineLimits {
    let mut small_or_none = |least: u32| match source.below(5) as u32 {
        4 => u32::MAX,
        small => least + small,
    };
    EngineLimits {
        max_keys: small_or_none(1),
        max_memory_bytes: u64::MAX,
        max_waiters_per_key: small_or_none(0),
        max_waiters: small_or_none(0),
        max_session_waiters: small_or_none(0),
        expiry_grace_ms: small_or_none(0) % 20,
    }
}

impl Pair {
    /// After a restart: with a grace, longer DLM leases that are recorded, and some that
    /// were, each of them or not.
    pub(super) fn new(limits: EngineLimits, source: &mut Source<'_>) -> Pair {
        let now = Time::from_millis(1_000_000);
        let grace_nanos = source.below(2) as u64 * u64::from(source.byte()) * (NANOS_PER_MS / 2);
        let grace_end = Time::from_nanos(now.as_nanos() + grace_nanos);
        let cap_ms = match source.byte() {
            0 => u64::MAX,
            cap_ms => cap_ms.into(),
        };
        let durable = Durable {
            d_ms: 0,
            cap_ms,
            mark: FIRST_TOKEN + TOKEN_BLOCK,
            token_block: TOKEN_BLOCK,
            started_at: now,
            grace_end,
        };
        let mut pair = Pair {
            engine: Engine::new(limits, FIRST_TOKEN, 0x5eed).with_durability(&durable, usize::MAX),
            model: Model::new(limits, FIRST_TOKEN).restarted(grace_end, cap_ms),
            recorder: Recorder::default(),
            now,
            generations: [0; SESSIONS],
            records: BTreeMap::new(),
        };
        for key in KEYS {
            if source.below(4) == 1 {
                let holder = HOLDERS[source.below(HOLDERS.len())];
                pair.restore(key, holder, source.byte().into());
            }
        }
        pair
    }

    fn restore(&mut self, key: &'static str, holder: DlmId, left_ms: u64) {
        let (id, name) = holder;
        let record = LeaseRecord {
            key: key.as_bytes().into(),
            id: id.into(),
            name: name.map(Into::into),
            deadline: self.now.plus_millis(left_ms),
            length_ms: left_ms,
        };
        self.engine.restore(&record);
        self.model.restore(key, holder, record.deadline);
        self.records.insert(record.key.clone(), record);
    }

    /// One step on both sides: what comes out and what is left are the same.
    pub(super) fn step(&mut self, source: &mut Source<'_>) {
        self.pass(source);
        let mut is_order_fixed = true;
        let key = KEYS[source.below(KEYS.len())];
        match source.below(24) {
            0..=6 => self.acquire(source, key),
            7..=9 => self.release(source, key),
            10..=11 => self.extend(source, key),
            12 => self.cancel(source, key),
            13 => self.query(source.below(SESSIONS), key),
            14 => self.end(source),
            15 => self.lose_grant(source),
            16..=17 => {
                self.model.timeouts(self.now);
                let more = self
                    .engine
                    .handle_timeouts(self.now, u32::MAX, &mut self.recorder);
                assert!(!more);
                // Replies of different keys come in any order.
                is_order_fixed = false;
            }
            // Once in a while: a drain ends most of what is worth trying.
            18 if source.below(8) == 0 => {
                self.model.drain();
                self.engine.handle_drain();
            }
            18 => {}
            what => self.dlm(source, key, what - 19),
        }
        self.compare(is_order_fixed);
    }

    pub(super) fn query_all(&mut self) {
        for key in KEYS {
            self.query(0, key);
            self.compare(true);
        }
    }

    /// Some nanoseconds, some milliseconds, or to about a deadline that is ahead.
    fn pass(&mut self, source: &mut Source<'_>) {
        let now = self.now.as_nanos();
        let to = match source.below(8) {
            0..=3 => now,
            4 => now + u64::from(source.byte()),
            5 => now + u64::from(source.byte()) * NANOS_PER_MS,
            _ => {
                let keys = self.model.keys.values();
                let of_keys =
                    keys.flat_map(|it| it.queue.iter().map(|w| w.deadline).chain([it.deadline]));
                let of_data = self.model.data.values().map(|data| data.deadline);
                let of_grace = [self.model.grace_end];
                let deadlines: Vec<Time> = of_keys.chain(of_data).chain(of_grace).collect();
                match deadlines.get(source.below(deadlines.len().clamp(1, 256))) {
                    Some(deadline) => deadline.as_nanos() + source.below(3) as u64 - 1,
                    None => now,
                }
            }
        };
        self.now = Time::from_nanos(to.max(now));
    }

    fn acquire(&mut self, source: &mut Source<'_>, key: &'static str) {
        let number = source.below(SESSIONS);
        let owner = 1 + source.below(2) as u64;
        let wait_ms = u32::from(source.byte()).saturating_sub(50);
        let lease_ms = 1 + u32::from(source.byte());
        let caller = self.caller(number);
        let acquire = model::Acquire {
            session: caller.session,
            release_on_close: caller.release_on_close,
            owner,
            wait_ms,
            lease_ms,
        };
        self.model.acquire(self.now, key, &acquire);
        let key = key.as_bytes();
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

    fn release(&mut self, source: &mut Source<'_>, key: &'static str) {
        let number = source.below(SESSIONS);
        let token = self.token(source, key);
        let session = self.session(number);
        self.model.release(self.now, session, OWNER, key, token);
        let key = key.as_bytes();
        self.request(
            number,
            &Request::Release {
                owner: OWNER,
                token,
                key,
            },
        );
    }

    fn extend(&mut self, source: &mut Source<'_>, key: &'static str) {
        let number = source.below(SESSIONS);
        let token = self.token(source, key);
        let lease_ms = 1 + u32::from(source.byte());
        let session = self.session(number);
        self.model
            .extend(self.now, session, OWNER, key, token, lease_ms);
        let key = key.as_bytes();
        self.request(
            number,
            &Request::Extend {
                owner: OWNER,
                lease_ms,
                token,
                key,
            },
        );
    }

    fn cancel(&mut self, source: &mut Source<'_>, key: &'static str) {
        let number = source.below(SESSIONS);
        let target = 1 + source.below(2) as u64;
        let session = self.session(number);
        self.model.cancel(self.now, session, OWNER, key, target);
        let key = key.as_bytes();
        self.request(
            number,
            &Request::Cancel {
                owner: OWNER,
                target,
                key,
            },
        );
    }

    fn query(&mut self, number: usize, key: &'static str) {
        let session = self.session(number);
        self.model.query(self.now, session, OWNER, key);
        let key = key.as_bytes();
        self.request(number, &Request::Query { owner: OWNER, key });
    }

    fn end(&mut self, source: &mut Source<'_>) {
        let number = source.below(SESSIONS);
        let end = [SessionEnd::Orderly, SessionEnd::Broken][source.below(2)];
        let session = self.session(number);
        self.model.end_session(self.now, session, end);
        self.engine
            .handle_session_end(self.now, session, end, &mut self.recorder);
        self.generations[number] += 1;
    }

    fn lose_grant(&mut self, source: &mut Source<'_>) {
        let which = source.byte().into();
        let Some(&grant) = self.recorder.grants.iter().rev().nth(which) else {
            return;
        };
        for key in KEYS {
            self.model.lost_grant(self.now, key, grant.token);
        }
        self.engine
            .handle_lost_grant(self.now, grant, &mut self.recorder);
    }

    fn dlm(&mut self, source: &mut Source<'_>, key: &'static str, what: usize) {
        let of_model = HOLDERS[source.below(HOLDERS.len())];
        let (id, name) = of_model;
        let holder = DlmHolder { id, name };
        let lease_ms = 1 + u64::from(source.byte());
        let value = VALUES[source.below(VALUES.len())];
        let (now, bytes) = (self.now, key.as_bytes());
        let (engine, out, model) = (&mut self.engine, &mut self.recorder, &mut self.model);
        match what {
            0 => assert_eq!(
                engine
                    .handle_dlm_lock(now, bytes, holder, lease_ms, out)
                    .came_to,
                model.dlm_lock(now, key, of_model, lease_ms)
            ),
            1 => assert_eq!(
                engine.handle_dlm_unlock(now, bytes, holder, out).came_to,
                model.dlm_unlock(now, key, of_model)
            ),
            2 => assert_eq!(
                engine
                    .handle_dlm_put(now, bytes, holder, lease_ms, value.into(), out)
                    .came_to,
                model.dlm_put(now, key, of_model, lease_ms, value)
            ),
            3 => assert_eq!(
                engine.handle_dlm_get(now, bytes, holder, out),
                model.dlm_get(now, key, of_model)
            ),
            _ if lease_ms % 2 == 0 => assert_eq!(
                engine.handle_dlm_test(now, bytes, holder, out),
                model.dlm_test(now, key, of_model)
            ),
            _ => assert_eq!(
                engine.handle_dlm_erase(now, bytes, holder),
                model.dlm_erase(now, key, of_model)
            ),
        }
    }

    /// The one that holds the key, one that was granted, or any.
    fn token(&self, source: &mut Source<'_>, key: &str) -> u64 {
        let held = self.model.token_of(key);
        match source.below(4) {
            0 | 1 => held.unwrap_or(FIRST_TOKEN),
            2 => {
                let which = source.byte().into();
                let grant = self.recorder.grants.iter().rev().nth(which);
                grant.map_or(FIRST_TOKEN, |grant| grant.token)
            }
            _ => FIRST_TOKEN - 1 + u64::from(source.byte()),
        }
    }

    fn session(&self, number: usize) -> SessionId {
        // Two loops, two slots each.
        SessionId::new(
            (number / 2) as u16,
            self.generations[number],
            (number % 2) as u32,
        )
    }

    fn caller(&self, number: usize) -> Caller {
        Caller {
            session: self.session(number),
            release_on_close: (number as u32 + self.generations[number]) % 2 == 1,
        }
    }

    fn request(&mut self, number: usize, request: &Request<'_>) {
        let caller = self.caller(number);
        self.engine
            .handle_request(self.now, caller, request, &mut self.recorder);
    }

    fn compare(&mut self, is_order_fixed: bool) {
        self.engine.invariants();
        let mut came_out = std::mem::take(&mut self.recorder.events);
        let mut expected = std::mem::take(&mut self.model.events);
        if !is_order_fixed {
            came_out.sort_by_key(|event| format!("{event:?}"));
            expected.sort_by_key(|event| format!("{event:?}"));
        }
        assert_eq!(came_out, expected);
        let of_engine = [
            self.engine.keys(),
            self.engine.held(),
            self.engine.waiting(),
            self.engine.data_slots(),
        ];
        let of_model = [
            self.model.keys.len(),
            self.model.held(),
            self.model.waiting(),
            self.model.data.len(),
        ];
        assert_eq!(of_engine.map(|count| count as usize), of_model);
        self.compare_records();
    }

    fn compare_records(&mut self) {
        while let Some((_, change)) = self.engine.poll_record_change() {
            match change {
                RecordChange::Set(record) => {
                    self.records.insert(record.key.clone(), record);
                }
                RecordChange::Remove { key } => {
                    assert!(self.records.remove(&key).is_some(), "it was recorded");
                }
            }
        }
        let of_model = self.model.records();
        assert_eq!(self.records.len(), of_model.len());
        for (key, ((id, name), deadline)) in of_model {
            let record = &self.records[key.as_bytes()];
            assert_eq!((&*record.id, record.name.as_deref()), (id, name));
            assert_eq!(record.deadline, deadline);
        }
    }
}
