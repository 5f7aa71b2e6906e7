//! Tests of the engine as a whole: a rig that speaks in short words, then the
//! matrix cell by cell, the named scenarios, the limits, the DLM's slots, what a restart
//! has to know, and random histories against a model.

mod dlm;
mod grace;
mod histories;
mod limits;
mod matrix;
mod model;
mod records;
mod scenarios;

use super::time::Time;
use super::{Caller, DlmHolder, DlmLock, Engine, EngineLimits, Outbox, SessionEnd, extended_reply};
use crate::durability::{Durable, Needs, TOKEN_BLOCK};
use crate::ids::{GrantRef, SessionId};
use crate::protocol::{ErrorCode, Reply, Request};

/// One thing that came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
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

#[derive(Default)]
struct Recorder {
    events: Vec<Event>,
    grants: Vec<GrantRef>,
    /// What each grant needs before it is told.
    needs: Vec<Needs>,
    /// What the latest extend needs.
    extend_needs: Option<Needs>,
}

impl Outbox for Recorder {
    fn reply(&mut self, to: SessionId, reply: Reply) {
        self.events.push(Event::Told { to, reply });
    }

    fn granted(
        &mut self,
        to: SessionId,
        owner: u64,
        grant: GrantRef,
        waited_ms: u32,
        needs: Needs,
    ) {
        self.needs.push(needs);
        let token = grant.token;
        self.grants.push(grant);
        self.events.push(Event::Granted {
            to,
            owner,
            token,
            waited_ms,
        });
    }

    fn extended(&mut self, to: SessionId, owner: u64, now: Time, deadline: Time, needs: Needs) {
        self.extend_needs = Some(needs);
        self.reply(to, extended_reply(owner, now, deadline));
    }
}

/// Drops everything, for tests that look at states and counters only.
struct Nowhere;

impl Outbox for Nowhere {
    fn reply(&mut self, _: SessionId, _: Reply) {}
    fn granted(&mut self, _: SessionId, _: u64, _: GrantRef, _: u32, _: Needs) {}
}

/// The first token of every engine under test.
const T0: u64 = 100;

const S1: SessionId = SessionId::new(0, 0, 1);
const S2: SessionId = SessionId::new(0, 0, 2);
const S3: SessionId = SessionId::new(0, 0, 3);
const S4: SessionId = SessionId::new(0, 0, 4);

const UNLIMITED: EngineLimits = EngineLimits {
    max_keys: u32::MAX,
    max_memory_bytes: u64::MAX,
    max_waiters_per_key: u32::MAX,
    max_waiters: u32::MAX,
    max_session_waiters: u32::MAX,
    expiry_grace_ms: 0,
};

/// Wait and lease of an acquire that does not queue.
const LEASE: (u32, u32) = (0, 10_000);

/// A small generator, so that millions of steps cost little.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % end
    }
}

fn session(number: u32) -> SessionId {
    SessionId::new(0, 0, number)
}

/// An engine, its virtual clock, and what came out of it. Checks the engine's
/// invariants after every call.
struct Rig {
    engine: Engine,
    now: Time,
    recorder: Recorder,
    /// Sessions that set RELEASE_ON_CLOSE.
    closers: Vec<SessionId>,
}

impl Rig {
    fn new(limits: EngineLimits) -> Rig {
        Rig {
            engine: Engine::new(limits, T0, 0x5eed),
            now: Time::from_millis(1_000_000),
            recorder: Recorder::default(),
            closers: Vec::new(),
        }
    }

    /// An engine just started again: keys of which nothing is known may be held for
    /// `grace_nanos` yet, and DLM leases longer than `record_cap_ms` are recorded.
    fn restarted(limits: EngineLimits, grace_nanos: u64, record_cap_ms: u64) -> Rig {
        let rig = Rig::new(limits);
        let durable = Durable {
            d_ms: 0,
            cap_ms: record_cap_ms,
            mark: T0 + TOKEN_BLOCK,
            token_block: TOKEN_BLOCK,
            started_at: rig.now,
            grace_end: Time::from_nanos(rig.now.as_nanos() + grace_nanos),
        };
        Rig {
            engine: rig.engine.with_durability(&durable, usize::MAX),
            ..rig
        }
    }

    /// Lets `ms` pass; no timer runs by itself.
    fn pass_ms(&mut self, ms: u64) {
        self.pass_nanos(ms * super::time::NANOS_PER_MS);
    }

    fn pass_nanos(&mut self, nanos: u64) {
        self.now = Time::from_nanos(self.now.as_nanos() + nanos);
    }

    fn request(&mut self, session: SessionId, request: Request<'_>) -> Vec<Event> {
        let caller = Caller {
            session,
            release_on_close: self.closers.contains(&session),
        };
        self.engine
            .handle_request(self.now, caller, &request, &mut self.recorder);
        self.came_out()
    }

    fn acquire(
        &mut self,
        session: SessionId,
        owner: u64,
        key: &str,
        (wait_ms, lease_ms): (u32, u32),
    ) -> Vec<Event> {
        let key = key.as_bytes();
        self.request(
            session,
            Request::Acquire {
                owner,
                wait_ms,
                lease_ms,
                key,
            },
        )
    }

    fn release(&mut self, session: SessionId, owner: u64, key: &str, token: u64) -> Vec<Event> {
        let key = key.as_bytes();
        self.request(session, Request::Release { owner, token, key })
    }

    fn extend(
        &mut self,
        session: SessionId,
        owner: u64,
        key: &str,
        token: u64,
        lease_ms: u32,
    ) -> Vec<Event> {
        let key = key.as_bytes();
        self.request(
            session,
            Request::Extend {
                owner,
                lease_ms,
                token,
                key,
            },
        )
    }

    fn cancel(&mut self, session: SessionId, owner: u64, key: &str, target: u64) -> Vec<Event> {
        let key = key.as_bytes();
        self.request(session, Request::Cancel { owner, target, key })
    }

    fn query(&mut self, session: SessionId, owner: u64, key: &str) -> Vec<Event> {
        let key = key.as_bytes();
        self.request(session, Request::Query { owner, key })
    }

    fn end(&mut self, session: SessionId, end: SessionEnd) -> Vec<Event> {
        self.engine
            .handle_session_end(self.now, session, end, &mut self.recorder);
        self.came_out()
    }

    fn lost(&mut self, grant: GrantRef) -> Vec<Event> {
        self.engine
            .handle_lost_grant(self.now, grant, &mut self.recorder);
        self.came_out()
    }

    fn timeouts(&mut self) -> Vec<Event> {
        let more = self
            .engine
            .handle_timeouts(self.now, u32::MAX, &mut self.recorder);
        assert!(!more, "no work is left when the budget has no end");
        self.came_out()
    }

    fn dlm_lock(&mut self, key: &str, id: &str, lease_ms: u64) -> DlmLock {
        let holder = DlmHolder { id, name: None };
        self.engine
            .handle_dlm_lock(
                self.now,
                key.as_bytes(),
                holder,
                lease_ms,
                &mut self.recorder,
            )
            .came_to
    }

    fn came_out(&mut self) -> Vec<Event> {
        self.engine.invariants();
        std::mem::take(&mut self.recorder.events)
    }
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

fn timed_out(to: SessionId, owner: u64) -> Event {
    told(to, Reply::TimedOut { owner })
}

fn busy(to: SessionId, owner: u64) -> Event {
    told(to, Reply::Busy { owner })
}

fn released(to: SessionId, owner: u64) -> Event {
    told(to, Reply::Released { owner })
}

fn extended(to: SessionId, owner: u64, remaining_ms: u32) -> Event {
    told(
        to,
        Reply::Extended {
            owner,
            remaining_ms,
        },
    )
}

fn not_held(to: SessionId, owner: u64) -> Event {
    told(to, Reply::NotHeld { owner })
}

fn cancel_done(to: SessionId, owner: u64, cancelled: bool) -> Event {
    told(to, Reply::CancelDone { owner, cancelled })
}

fn refused(to: SessionId, owner: u64, code: ErrorCode) -> Event {
    told(to, Reply::Error { owner, code })
}

fn free(to: SessionId, owner: u64) -> Event {
    told(
        to,
        Reply::State {
            owner,
            held: false,
            remaining_ms: 0,
            waiters: 0,
        },
    )
}

fn held(to: SessionId, owner: u64, remaining_ms: u32, waiters: u32) -> Event {
    told(
        to,
        Reply::State {
            owner,
            held: true,
            remaining_ms,
            waiters,
        },
    )
}
