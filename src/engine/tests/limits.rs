//! What the limits, the expiry grace and a drain do to acquires.

use super::*;
use crate::engine::time::NANOS_PER_MS;

#[test]
fn after_expiry_the_grace_holds_the_key_for_nobody() {
    let mut rig = Rig::new(EngineLimits {
        expiry_grace_ms: 500,
        ..UNLIMITED
    });
    rig.acquire(S1, 1, "k", (0, 1_000));
    rig.acquire(S2, 2, "k", (60_000, 1_000));
    rig.pass_ms(1_000);
    assert_eq!(rig.timeouts(), []);
    assert_eq!((rig.engine.keys(), rig.engine.held()), (1, 0));
    assert_eq!(rig.release(S1, 3, "k", T0), [not_held(S1, 3)]);
    assert_eq!(rig.extend(S1, 4, "k", T0, 1_000), [not_held(S1, 4)]);
    assert_eq!(rig.acquire(S3, 5, "k", (0, 1)), [timed_out(S3, 5)]);
    assert_eq!(rig.dlm_lock("k", "id", 1_000), DlmLock::NotOwner);
    rig.pass_ms(100);
    assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 400, 1)]);
    rig.pass_ms(400);
    assert_eq!(rig.timeouts(), [granted(S2, 2, T0 + 1, 1_500)]);
}

#[test]
fn a_lease_that_was_over_when_its_session_closed_has_its_grace() {
    let mut rig = Rig::new(EngineLimits {
        expiry_grace_ms: 500,
        ..UNLIMITED
    });
    rig.closers = vec![S1];
    rig.acquire(S1, 1, "over", (0, 1_000));
    rig.acquire(S1, 2, "alive", (0, 1_001));
    rig.pass_ms(1_000);
    rig.end(S1, SessionEnd::Orderly);
    rig.timeouts();
    assert_eq!(rig.query(S2, 8, "over"), [held(S2, 8, 500, 0)]);
    assert_eq!(rig.query(S2, 8, "alive"), [free(S2, 8)]);
}

#[test]
fn refusals_come_in_their_order_and_say_which_limit() {
    let limits = EngineLimits {
        max_waiters_per_key: 1,
        max_session_waiters: 1,
        ..UNLIMITED
    };
    let mut rig = Rig::new(limits);
    rig.acquire(S1, 1, "k", LEASE);
    rig.acquire(S2, 2, "k", (5_000, 1));
    let too_many = ErrorCode::TooManyQueued;
    assert_eq!(
        rig.acquire(S2, 3, "k", (5_000, 1)),
        [refused(S2, 3, too_many)]
    );
    assert_eq!(rig.acquire(S3, 4, "k", (5_000, 1)), [busy(S3, 4)]);
}

#[test]
fn waits_that_are_over_elsewhere_do_not_count_against_a_full_server() {
    let mut rig = Rig::new(EngineLimits {
        max_waiters: 1,
        ..UNLIMITED
    });
    rig.acquire(S1, 1, "k", LEASE);
    rig.acquire(S1, 2, "other", LEASE);
    rig.acquire(S2, 3, "other", (1_000, 1));
    assert_eq!(rig.acquire(S3, 4, "k", (5_000, 1)), [busy(S3, 4)]);
    rig.pass_ms(1_000);
    assert_eq!(rig.acquire(S3, 5, "k", (5_000, 1)), [timed_out(S2, 3)]);
}

/// Rule 3 for code 9: at the very end of a wait, long before a timer's tick shows it.
#[test]
fn waits_that_are_over_do_not_count_against_a_full_session() {
    let mut rig = Rig::new(EngineLimits {
        max_session_waiters: 2,
        ..UNLIMITED
    });
    rig.pass_nanos(1);
    rig.acquire(S1, 1, "k", LEASE);
    rig.acquire(S1, 2, "other", LEASE);
    rig.acquire(S2, 3, "other", (1, 1));
    rig.acquire(S2, 4, "other", (5_000, 1));
    rig.pass_nanos(NANOS_PER_MS - 1);
    let too_many = ErrorCode::TooManyQueued;
    let request = (5_000, 1);
    assert_eq!(rig.acquire(S2, 5, "k", request), [refused(S2, 5, too_many)]);
    rig.pass_nanos(1);
    assert_eq!(rig.acquire(S2, 6, "k", request), [timed_out(S2, 3)]);
    assert_eq!(rig.acquire(S2, 7, "k", request), [refused(S2, 7, too_many)]);
}

#[test]
fn memory_stays_below_its_limit_and_says_so() {
    let empty_bytes = Engine::new(UNLIMITED, 1, 1).memory_bytes();
    let max_memory_bytes = empty_bytes + 4_000_000;
    let mut engine = Engine::new(
        EngineLimits {
            max_memory_bytes,
            ..UNLIMITED
        },
        1,
        1,
    );
    let mut recorder = Recorder::default();
    let now = Time::from_millis(1);
    let mut random = Random(6);
    for _ in 0..200_000 {
        let session = session(random.below(2_000) as u32);
        let caller = Caller {
            session,
            release_on_close: session.slot().is_multiple_of(3),
        };
        let mut key = random.below(60_000).to_be_bytes().to_vec();
        key.resize(8 + random.below(3) as usize * 20, 0);
        let request = Request::Acquire {
            owner: 1,
            wait_ms: 5_000,
            lease_ms: 10_000,
            key: &key,
        };
        engine.handle_request(now, caller, &request, &mut recorder);
        assert!(engine.memory_bytes() <= max_memory_bytes);
    }
    engine.invariants();
    let overloaded = Reply::Error {
        owner: 1,
        code: ErrorCode::Overloaded,
    };
    let is_overloaded =
        |event: &Event| matches!(event, Event::Told { reply, .. } if *reply == overloaded);
    assert!(recorder.events.iter().any(is_overloaded));
    assert!(
        max_memory_bytes - engine.memory_bytes() < 400_000,
        "it was used up"
    );
}

#[test]
fn tokens_end_before_they_wrap() {
    let last = crate::limits::TOKEN_END - 1;
    let mut engine = Engine::new(UNLIMITED, last, 1);
    let mut recorder = Recorder::default();
    let now = Time::from_millis(1);
    let mut request = |engine: &mut Engine, request: Request<'_>| {
        let caller = Caller {
            session: S1,
            release_on_close: false,
        };
        engine.handle_request(now, caller, &request, &mut recorder);
        engine.invariants();
        std::mem::take(&mut recorder.events)
    };
    let acquire = |owner, wait_ms, key| Request::Acquire {
        owner,
        wait_ms,
        lease_ms: 10_000,
        key,
    };
    let overloaded = ErrorCode::Overloaded;
    assert_eq!(
        request(&mut engine, acquire(1, 0, b"k")),
        [granted(S1, 1, last, 0)]
    );
    assert_eq!(request(&mut engine, acquire(2, 5_000, b"k")), []);
    assert_eq!(
        request(&mut engine, acquire(3, 0, b"other")),
        [refused(S1, 3, overloaded)]
    );
    let release = Request::Release {
        owner: 4,
        token: last,
        key: b"k",
    };
    assert_eq!(
        request(&mut engine, release),
        [released(S1, 4), refused(S1, 2, overloaded)]
    );
    assert_eq!(engine.keys(), 0);
}

#[test]
fn a_drain_answers_every_queued_acquire_in_bounded_turns() {
    let mut rig = Rig::new(UNLIMITED);
    for number in 0..20 {
        let key = format!("key {number}");
        rig.acquire(S1, 1, &key, LEASE);
        for waiter in 0..50 {
            rig.acquire(session(waiter), 2, &key, (60_000, 1));
        }
    }
    rig.engine.handle_drain();
    assert_eq!(rig.engine.poll_timeout(), Some(Time::ZERO));
    let mut answered = 0;
    rig.engine.take_work();
    loop {
        let more = rig.engine.handle_timeouts(rig.now, 64, &mut rig.recorder);
        assert!(rig.engine.take_work() <= 64);
        for event in rig.came_out() {
            let Event::Told { to, reply } = event else {
                panic!("{event:?} in a drain");
            };
            assert_eq!(told(to, reply), refused(to, 2, ErrorCode::ShuttingDown));
            answered += 1;
        }
        if !more {
            break;
        }
    }
    assert_eq!(answered, 20 * 50);
    assert_eq!((rig.engine.waiting(), rig.engine.held()), (0, 20));
}
