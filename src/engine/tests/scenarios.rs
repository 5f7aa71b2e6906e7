//! Faults met in the field, each under the name of what it protects. Those that
//! need sockets or several loops are tested where those are.

use super::*;
use crate::engine::time::NANOS_PER_MS;
use std::collections::BTreeMap;

fn rig_with_holder() -> Rig {
    let mut rig = Rig::new(UNLIMITED);
    rig.acquire(S1, 1, "k", LEASE);
    rig
}

#[test]
fn scenario_01_a_grant_whose_reply_never_left_is_taken_back() {
    let mut rig = rig_with_holder();
    rig.acquire(S2, 2, "k", (5_000, 10_000));
    rig.release(S1, 9, "k", T0);
    rig.acquire(S3, 3, "k", (5_000, 10_000));
    let grants = rig.recorder.grants.clone();
    rig.end(S2, SessionEnd::Broken);
    assert_eq!(rig.lost(grants[1]), [granted(S3, 3, T0 + 2, 0)]);
    assert_eq!(rig.lost(grants[1]), [], "it is taken back once");
    assert_eq!(
        rig.lost(grants[0]),
        [],
        "a grant that has ended is nobody's"
    );
    assert_eq!(rig.engine.counters().lost_grants, 1);
}

#[test]
fn scenario_02_a_cancelled_wait_never_comes_back_as_success() {
    let mut rig = rig_with_holder();
    rig.acquire(S2, 2, "k", (5_000, 10_000));
    assert_eq!(
        rig.cancel(S2, 9, "k", 2),
        [timed_out(S2, 2), cancel_done(S2, 9, true)]
    );
    assert_eq!(rig.release(S1, 9, "k", T0), [released(S1, 9)]);
    rig.pass_ms(100_000);
    assert_eq!(rig.timeouts(), []);
}

#[test]
fn scenario_02_a_cancel_that_meets_the_grant_leaves_the_grant() {
    let mut rig = rig_with_holder();
    rig.acquire(S2, 2, "k", (5_000, 10_000));
    assert_eq!(
        rig.release(S1, 9, "k", T0),
        [released(S1, 9), granted(S2, 2, T0 + 1, 0)]
    );
    assert_eq!(rig.cancel(S2, 9, "k", 2), [cancel_done(S2, 9, false)]);
    assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 10_000, 0)]);
}

/// The holder's release comes some nanoseconds around the end of the wait, which
/// the timer may or may not have seen: told and held agree every time.
#[test]
fn scenario_04_at_the_end_of_the_wait_client_and_server_agree() {
    let mut random = Random(4);
    for _ in 0..20_000 {
        let mut rig = Rig::new(UNLIMITED);
        rig.pass_nanos(random.below(NANOS_PER_MS));
        rig.acquire(S1, 1, "k", LEASE);
        let wait_ms = 1 + random.below(3) as u32;
        rig.acquire(S2, 2, "k", (wait_ms, 10_000));
        let wait_end = rig.now.plus_millis(wait_ms.into()).as_nanos();
        let offset = random.below(5) as i64 - 2;
        rig.now = Time::from_nanos(wait_end.saturating_add_signed(offset));
        let mut came_out = Vec::new();
        if random.below(2) == 0 {
            came_out.extend(rig.timeouts());
        }
        came_out.extend(rig.release(S1, 9, "k", T0));
        came_out.extend(rig.timeouts());
        let state = rig.query(S3, 8, "k");
        if offset < 0 {
            let grant = granted(S2, 2, T0 + 1, wait_ms - 1);
            assert_eq!(came_out, [released(S1, 9), grant], "{offset} ns");
            assert_eq!(state, [held(S3, 8, 10_000, 0)]);
        } else {
            assert_eq!(came_out.len(), 2, "{offset} ns");
            assert!(came_out.contains(&timed_out(S2, 2)), "{offset} ns");
            assert_eq!(state, [free(S3, 8)]);
        }
    }
}

#[test]
fn scenario_05_a_lease_counts_from_its_grant() {
    let mut rig = Rig::new(UNLIMITED);
    rig.acquire(S1, 1, "k", (0, 60_000));
    rig.acquire(S2, 2, "k", (60_000, 1_000));
    rig.pass_ms(20_000);
    assert_eq!(
        rig.release(S1, 9, "k", T0),
        [released(S1, 9), granted(S2, 2, T0 + 1, 20_000)]
    );
    rig.pass_nanos(1_000 * NANOS_PER_MS - 1);
    assert_eq!(rig.timeouts(), []);
    assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 1, 0)]);
    rig.pass_nanos(1);
    assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
}

#[test]
fn scenario_07_the_head_is_granted_within_a_tick_of_a_silent_holders_lease_end() {
    for nanos_into_tick in [0, 1, 500_000, 999_999] {
        let mut rig = Rig::new(UNLIMITED);
        rig.pass_nanos(nanos_into_tick);
        rig.acquire(S1, 1, "k", (0, 1_000));
        rig.acquire(S2, 2, "k", (60_000, 1_000));
        let lease_end = rig.now.plus_millis(1_000);
        // Nothing happens but what poll_timeout asks for.
        let granted_at = loop {
            let next = rig.engine.poll_timeout().expect("a lease is timed");
            rig.now = rig.now.max(next);
            if !rig.timeouts().is_empty() {
                break rig.now;
            }
        };
        assert!(granted_at >= lease_end, "never early");
        assert!(granted_at.as_nanos() < lease_end.as_nanos() + NANOS_PER_MS);
    }
}

#[test]
fn scenario_08_killed_waiters_do_not_delay_the_living_one() {
    let mut rig = rig_with_holder();
    for number in 100..1_100 {
        rig.acquire(session(number), 2, "k", (60_000, 10_000));
    }
    for number in 100..1_100 {
        assert_eq!(rig.end(session(number), SessionEnd::Broken), []);
    }
    assert_eq!(rig.engine.waiting(), 0);
    rig.acquire(S2, 2, "k", (60_000, 10_000));
    assert_eq!(
        rig.release(S1, 9, "k", T0),
        [released(S1, 9), granted(S2, 2, T0 + 1, 0)]
    );
}

#[test]
fn scenario_09_one_release_grants_one_of_ten_thousand_and_wakes_nobody_else() {
    let mut engine = Engine::new(UNLIMITED, T0, 9);
    let mut recorder = Recorder::default();
    let now = Time::from_millis(1);
    for number in 0..10_001 {
        let caller = Caller {
            session: session(number),
            release_on_close: false,
        };
        let request = Request::Acquire {
            owner: 1,
            wait_ms: 60_000,
            lease_ms: 10_000,
            key: b"k",
        };
        engine.handle_request(now, caller, &request, &mut recorder);
    }
    recorder.events.clear();
    engine.take_work();
    let caller = Caller {
        session: session(0),
        release_on_close: false,
    };
    let request = Request::Release {
        owner: 2,
        token: T0,
        key: b"k",
    };
    engine.handle_request(now, caller, &request, &mut recorder);
    assert_eq!(
        recorder.events,
        [released(session(0), 2), granted(session(1), 1, T0 + 1, 0)]
    );
    assert_eq!(engine.take_work(), 1, "the other waiters are not looked at");
    engine.invariants();
}

#[test]
fn scenario_10_whoever_leaves_the_middle_leaves_the_order_of_the_rest() {
    let mut rig = rig_with_holder();
    for number in 10..20 {
        let wait_ms = if number == 13 { 1_000 } else { 60_000 };
        rig.acquire(session(number), 2, "k", (wait_ms, 10_000));
    }
    rig.end(session(11), SessionEnd::Broken);
    assert_eq!(
        rig.end(session(12), SessionEnd::Orderly),
        [timed_out(session(12), 2)]
    );
    rig.pass_ms(1_000);
    assert_eq!(rig.timeouts(), [timed_out(session(13), 2)]);
    rig.cancel(session(15), 9, "k", 2);
    let mut order = Vec::new();
    for token in T0..T0 + 6 {
        for event in rig.release(S1, 9, "k", token) {
            if let Event::Granted { to, .. } = event {
                order.push(to.slot());
            }
        }
    }
    assert_eq!(order, [10, 14, 16, 17, 18, 19]);
}

/// Interleavings of everything that frees or queues: whenever a key is free,
/// every acquire of it has been answered.
#[test]
fn scenario_11_never_a_free_key_with_a_waiter_in_a_million_races() {
    const KEYS: [&[u8]; 2] = [b"a", b"b"];
    let mut random = Random(11);
    let mut engine = Engine::new(UNLIMITED, T0, 11);
    let mut recorder = Recorder::default();
    let mut now = Time::from_millis(1);
    let mut waiting = [0_u32; 2];
    let mut tokens = [0; 2];
    for step in 0..1_000_000_u64 {
        let which = random.below(2) as usize;
        let (key, session) = (KEYS[which], session(random.below(8) as u32));
        let owner = which as u64 + 1;
        let caller = Caller {
            session,
            release_on_close: false,
        };
        let request = match random.below(10) {
            0..5 => {
                waiting[which] += 1;
                Request::Acquire {
                    owner,
                    wait_ms: random.below(4) as u32,
                    lease_ms: 1 + random.below(4) as u32,
                    key,
                }
            }
            5..9 => Request::Release {
                owner: 9,
                token: tokens[which],
                key,
            },
            _ => Request::Query { owner: 9, key },
        };
        now = Time::from_nanos(now.as_nanos() + random.below(300_000));
        engine.handle_request(now, caller, &request, &mut recorder);
        if random.below(4) == 0 {
            engine.handle_timeouts(now, 3, &mut recorder);
        }
        let query = Request::Query { owner: 9, key };
        engine.handle_request(now, caller, &query, &mut recorder);
        for event in recorder.events.drain(..) {
            match event {
                Event::Granted { owner, token, .. } => {
                    waiting[owner as usize - 1] -= 1;
                    tokens[owner as usize - 1] = token;
                }
                Event::Told {
                    reply: Reply::TimedOut { owner },
                    ..
                } => {
                    waiting[owner as usize - 1] -= 1;
                }
                Event::Told {
                    reply: Reply::State { held: false, .. },
                    ..
                } => {}
                Event::Told {
                    reply: Reply::State { waiters, .. },
                    ..
                } => {
                    assert!(waiters <= waiting[0] + waiting[1]);
                }
                _ => {}
            }
        }
        recorder.grants.clear();
        // The key was just touched: if it is not in the table, it is free.
        if engine.keys() == 0 {
            assert_eq!(waiting, [0, 0], "step {step}");
        }
        assert_eq!(engine.waiting(), waiting[0] + waiting[1], "step {step}");
        if step % 1_000 == 0 {
            engine.invariants();
        }
    }
}

#[test]
fn scenario_12_every_accepted_acquire_is_in_one_counter() {
    let mut rig = Rig::new(EngineLimits {
        max_keys: 1,
        max_waiters_per_key: 4,
        max_session_waiters: 3,
        ..UNLIMITED
    });
    rig.acquire(S1, 1, "k", LEASE);
    rig.acquire(S1, 2, "other", LEASE);
    rig.acquire(S2, 3, "k", (0, 1));
    for owner in 4..8 {
        rig.acquire(S2, owner, "k", (5_000, 1));
    }
    rig.acquire(S3, 8, "k", (1_000, 1));
    rig.acquire(S4, 9, "k", (5_000, 1));
    rig.cancel(S2, 10, "k", 4);
    rig.pass_ms(1_000);
    rig.timeouts();
    rig.end(S2, SessionEnd::Broken);
    rig.acquire(S4, 11, "k", (5_000, 1));
    let counters = *rig.engine.counters();
    assert_eq!(
        (
            counters.accepted,
            counters.granted,
            counters.timed_out,
            counters.busy,
            counters.cancelled,
            counters.gone,
            counters.refused,
            rig.engine.waiting()
        ),
        (10, 1, 2, 1, 1, 2, 2, 1)
    );
}

#[test]
fn scenario_13_a_holder_may_queue_on_its_own_key() {
    let mut rig = rig_with_holder();
    assert_eq!(rig.acquire(S1, 2, "k", (5_000, 10_000)), []);
    assert_eq!(rig.acquire(S1, 3, "k", (5_000, 10_000)), []);
    assert_eq!(
        rig.release(S1, 9, "k", T0),
        [released(S1, 9), granted(S1, 2, T0 + 1, 0)]
    );
    assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 10_000, 1)]);
}

#[test]
fn scenario_14_the_table_returns_to_its_empty_size() {
    const KEYS: u64 = 1_000_000;
    // The long run has a hundred times as many come and go.
    let rounds = std::env::var("LEASEHOLD_KEY_ROUNDS")
        .map_or(1, |text| text.parse().expect("a number of rounds"));
    let mut engine = Engine::new(UNLIMITED, 1, 14);
    let now = Time::from_millis(1);
    let caller = Caller {
        session: S1,
        release_on_close: false,
    };
    let visit = |engine: &mut Engine, number: u64| {
        let key = format!("key {number:12}");
        let request = Request::Acquire {
            owner: 1,
            wait_ms: 0,
            lease_ms: 10_000,
            key: key.as_bytes(),
        };
        engine.handle_request(now, caller, &request, &mut Nowhere);
    };
    let leave = |engine: &mut Engine, number: u64| {
        let key = format!("key {number:12}");
        let request = Request::Release {
            owner: 1,
            token: number + 1,
            key: key.as_bytes(),
        };
        engine.handle_request(now, caller, &request, &mut Nowhere);
    };
    visit(&mut engine, 0);
    leave(&mut engine, 0);
    let empty_bytes = engine.memory_bytes();
    for round in 0..rounds {
        let numbers = round * KEYS + 1..=(round + 1) * KEYS;
        for number in numbers.clone() {
            visit(&mut engine, number);
        }
        assert_eq!(u64::from(engine.held()), KEYS);
        let full_bytes = engine.memory_bytes();
        assert!(full_bytes - empty_bytes < 128 * KEYS, "{full_bytes} bytes");
        for number in numbers {
            leave(&mut engine, number);
        }
        engine.invariants();
        assert_eq!(engine.keys(), 0);
        assert_eq!(engine.memory_bytes(), empty_bytes);
    }
}

#[test]
fn scenario_16_after_a_minutes_stop_everything_overdue_ends_in_order() {
    let mut rig = Rig::new(UNLIMITED);
    let mut due: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    rig.acquire(S1, 1, "held", (0, 200_000));
    let mut random = Random(16);
    for owner in 100..3_100 {
        let wait_ms = 1 + random.below(50_000) as u32;
        rig.engine.handle_request(
            rig.now,
            Caller {
                session: session((owner % 50) as u32),
                release_on_close: false,
            },
            &Request::Acquire {
                owner,
                wait_ms,
                lease_ms: 1,
                key: b"held",
            },
            &mut rig.recorder,
        );
        due.entry(wait_ms.into()).or_default().push(owner);
    }
    rig.engine.invariants();
    rig.pass_ms(60_000);
    let mut answered = Vec::new();
    let mut calls = 0;
    loop {
        rig.engine.take_work();
        let more = rig.engine.handle_timeouts(rig.now, 100, &mut rig.recorder);
        assert!(rig.engine.take_work() <= 100);
        answered.extend(rig.came_out());
        calls += 1;
        // Whoever asks in between is served at once.
        assert_eq!(rig.acquire(S2, 1, &format!("free {calls}"), LEASE).len(), 1);
        if !more {
            break;
        }
    }
    let in_order: Vec<u64> = due.into_values().flatten().collect();
    let answered: Vec<u64> = answered
        .into_iter()
        .map(|event| match event {
            Event::Told {
                reply: Reply::TimedOut { owner },
                ..
            } => owner,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(answered, in_order);
}

/// Leases at the edges of the wheel's levels, and the longest ones: they end on
/// their tick, and not a nanosecond early.
#[test]
fn scenario_17_leases_at_the_wheels_edges_end_on_time() {
    let mut leases = vec![1, 2, crate::limits::MAX_LEASE_MS];
    for level in 1..=5 {
        let span = 1_u32 << (6 * level);
        leases.extend([span - 1, span, span + 1]);
    }
    for nanos_into_tick in [0, 1, 999_999] {
        for &lease_ms in &leases {
            let mut rig = Rig::new(UNLIMITED);
            rig.pass_nanos(nanos_into_tick);
            rig.acquire(S1, 1, "k", (0, lease_ms));
            let lease_end = rig.now.plus_millis(lease_ms.into());
            rig.now = Time::from_nanos(lease_end.as_nanos() - 1);
            rig.timeouts();
            assert_eq!(rig.engine.held(), 1, "{lease_ms} ms: early");
            rig.now = Time::from_millis(lease_end.tick_ceil());
            rig.timeouts();
            assert_eq!(rig.engine.held(), 0, "{lease_ms} ms: late");
        }
    }
}

#[test]
fn scenario_18_extending_by_the_million_keeps_memory_flat() {
    let mut rig = rig_with_holder();
    rig.acquire(S2, 2, "k", (u32::MAX, 10_000));
    let memory_bytes = rig.engine.memory_bytes();
    let mut now = rig.now;
    for _ in 0..1_000_000 {
        now = Time::from_nanos(now.as_nanos() + 700_000);
        let caller = Caller {
            session: S1,
            release_on_close: false,
        };
        let request = Request::Extend {
            owner: 1,
            lease_ms: 10_000,
            token: T0,
            key: b"k",
        };
        rig.engine.handle_timeouts(now, 10, &mut rig.recorder);
        rig.engine
            .handle_request(now, caller, &request, &mut Nowhere);
    }
    assert_eq!(rig.came_out(), [], "neither lease nor wait has ended");
    assert_eq!(rig.engine.memory_bytes(), memory_bytes);
    assert_eq!(rig.engine.counters().extended, 1_000_000);
}

#[test]
fn scenario_19_a_million_leases_of_one_millisecond_end_in_bounded_turns() {
    const LEASES: u32 = 1_000_000;
    const BUDGET: u32 = 1_000;
    let mut engine = Engine::new(UNLIMITED, 1, 19);
    let mut now = Time::from_millis(5);
    let caller = Caller {
        session: S1,
        release_on_close: false,
    };
    let acquire = |engine: &mut Engine, now, key: &[u8], out: &mut Recorder| {
        let request = Request::Acquire {
            owner: 1,
            wait_ms: 0,
            lease_ms: 30_000,
            key,
        };
        engine.handle_request(now, caller, &request, out);
    };
    let mut recorder = Recorder::default();
    for number in 0..LEASES {
        acquire(&mut engine, now, &number.to_be_bytes(), &mut recorder);
    }
    recorder.events.clear();
    now = now.plus_millis(30_000);
    let mut turns = 0;
    engine.take_work();
    while engine.handle_timeouts(now, BUDGET, &mut recorder) {
        assert!(engine.take_work() <= BUDGET, "the turn is bounded");
        turns += 1;
        // Others work meanwhile, on new keys and on those that are overdue.
        acquire(&mut engine, now, b"new key", &mut recorder);
        let overdue = LEASES - 1 - turns;
        acquire(&mut engine, now, &overdue.to_be_bytes(), &mut recorder);
        engine.take_work();
    }
    assert!(
        turns <= 8 * LEASES / BUDGET,
        "a timer moves down 8 levels at most"
    );
    let grants = recorder
        .events
        .iter()
        .filter(|event| matches!(event, Event::Granted { .. }));
    assert_eq!(grants.count() as u32, turns + 1);
    assert_eq!(engine.counters().expired, u64::from(LEASES));
    assert_eq!(engine.held(), turns + 1);
    engine.invariants();
}

#[test]
fn scenario_20_a_wait_of_a_millisecond_is_one() {
    for nanos_into_tick in [0, 1, 999_999] {
        let mut rig = Rig::new(UNLIMITED);
        rig.pass_nanos(nanos_into_tick);
        rig.acquire(S1, 1, "k", LEASE);
        rig.acquire(S2, 2, "k", (1, 10_000));
        rig.pass_nanos(NANOS_PER_MS - 1);
        assert_eq!(rig.timeouts(), [], "not before it is over");
        rig.pass_nanos(NANOS_PER_MS);
        assert_eq!(rig.timeouts(), [timed_out(S2, 2)], "within a tick");
    }
}

#[test]
fn scenario_44_a_later_now_in_the_same_turn_judges_the_later_request() {
    let mut rig = rig_with_holder();
    rig.acquire(S2, 2, "k", (20_000, 10_000));
    rig.pass_ms(9_999);
    assert_eq!(rig.extend(S1, 3, "k", T0, 500), [extended(S1, 3, 500)]);
    rig.pass_ms(500);
    assert_eq!(
        rig.extend(S1, 4, "k", T0, 500),
        [granted(S2, 2, T0 + 1, 10_499), not_held(S1, 4)]
    );
}

#[test]
fn scenario_45_an_extend_late_or_repeated_shortens_nothing() {
    let mut rig = rig_with_holder();
    assert_eq!(
        rig.extend(S1, 2, "k", T0, 30_000),
        [extended(S1, 2, 30_000)]
    );
    rig.pass_ms(1_000);
    assert_eq!(rig.extend(S1, 3, "k", T0, 2_000), [extended(S1, 3, 29_000)]);
    assert_eq!(rig.extend(S1, 3, "k", T0, 2_000), [extended(S1, 3, 29_000)]);
    rig.pass_ms(28_999);
    rig.timeouts();
    assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 1, 0)]);
}

#[test]
fn scenario_46_release_on_close_is_for_orderly_ends_only() {
    let mut rig = Rig::new(UNLIMITED);
    rig.closers = vec![S1, S2];
    rig.acquire(S1, 1, "broken", LEASE);
    rig.acquire(S2, 2, "orderly", LEASE);
    rig.acquire(S3, 3, "not asked for", LEASE);
    rig.end(S1, SessionEnd::Broken);
    rig.end(S2, SessionEnd::Orderly);
    rig.end(S3, SessionEnd::Orderly);
    rig.timeouts();
    assert_eq!(rig.query(S4, 8, "broken"), [held(S4, 8, 10_000, 0)]);
    assert_eq!(rig.query(S4, 8, "orderly"), [free(S4, 8)]);
    assert_eq!(rig.query(S4, 8, "not asked for"), [held(S4, 8, 10_000, 0)]);
    rig.pass_ms(10_000);
    rig.timeouts();
    assert_eq!(rig.engine.held(), 0);
}

#[test]
fn released_on_close_passes_on_but_not_to_the_session_itself() {
    let mut rig = Rig::new(UNLIMITED);
    rig.closers = vec![S1];
    rig.acquire(S1, 1, "k", LEASE);
    rig.acquire(S1, 2, "k", (5_000, 10_000));
    rig.acquire(S2, 3, "k", (5_000, 10_000));
    assert_eq!(rig.end(S1, SessionEnd::Orderly), [timed_out(S1, 2)]);
    assert_eq!(rig.engine.poll_timeout(), Some(Time::ZERO));
    assert_eq!(rig.timeouts(), [granted(S2, 3, T0 + 1, 0)]);
    assert_eq!(rig.engine.counters().released_on_close, 1);
}

#[test]
fn a_closed_sessions_grant_is_gone_before_its_step_has_come() {
    let mut rig = Rig::new(UNLIMITED);
    rig.closers = vec![S1];
    rig.acquire(S1, 1, "k", LEASE);
    rig.end(S1, SessionEnd::Orderly);
    assert_eq!(rig.acquire(S2, 2, "k", LEASE), [granted(S2, 2, T0 + 1, 0)]);
    assert_eq!(rig.timeouts(), []);
    assert_eq!(rig.query(S2, 8, "k"), [held(S2, 8, 10_000, 0)]);
}

#[test]
fn a_million_grants_of_one_session_are_released_in_bounded_turns() {
    const GRANTS: u32 = 1_000_000;
    const BUDGET: u32 = 1_000;
    let mut engine = Engine::new(UNLIMITED, 1, 1);
    let now = Time::from_millis(1);
    let caller = Caller {
        session: S1,
        release_on_close: true,
    };
    for number in 0..GRANTS {
        let request = Request::Acquire {
            owner: 1,
            wait_ms: 0,
            lease_ms: 10_000,
            key: &number.to_be_bytes(),
        };
        engine.handle_request(now, caller, &request, &mut Nowhere);
    }
    engine.take_work();
    engine.handle_session_end(now, S1, SessionEnd::Orderly, &mut Nowhere);
    assert_eq!(engine.take_work(), 0);
    let mut turns = 1;
    while engine.handle_timeouts(now, BUDGET, &mut Nowhere) {
        assert!(engine.take_work() <= BUDGET);
        turns += 1;
    }
    assert_eq!(turns, GRANTS / BUDGET * 2, "timers keep half of each turn");
    assert_eq!((engine.keys(), engine.poll_timeout()), (0, None));
    engine.invariants();
}

#[test]
fn scenario_57_a_grant_that_another_session_extended_stays() {
    let mut rig = Rig::new(UNLIMITED);
    rig.closers = vec![S1];
    rig.acquire(S1, 1, "by another", LEASE);
    rig.acquire(S1, 2, "by itself", LEASE);
    rig.acquire(S1, 3, "by another, then itself", LEASE);
    rig.extend(S2, 4, "by another", T0, 10_000);
    rig.extend(S1, 5, "by itself", T0 + 1, 10_000);
    rig.extend(S2, 6, "by another, then itself", T0 + 2, 10_000);
    rig.extend(S1, 7, "by another, then itself", T0 + 2, 10_000);
    rig.extend(S2, 7, "by itself", T0, 10_000);
    rig.end(S1, SessionEnd::Orderly);
    rig.timeouts();
    assert_eq!(rig.query(S4, 8, "by another"), [held(S4, 8, 10_000, 0)]);
    assert_eq!(rig.query(S4, 8, "by itself"), [free(S4, 8)]);
    assert_eq!(
        rig.query(S4, 8, "by another, then itself"),
        [held(S4, 8, 10_000, 0)]
    );
}

#[test]
fn a_slot_that_is_used_again_inherits_nothing() {
    let mut rig = Rig::new(UNLIMITED);
    let (old, new) = (SessionId::new(0, 0, 7), SessionId::new(0, 1, 7));
    rig.closers = vec![old];
    rig.acquire(S1, 1, "k", LEASE);
    rig.acquire(old, 2, "mine", LEASE);
    rig.acquire(old, 3, "k", (5_000, 10_000));
    rig.end(old, SessionEnd::Broken);
    rig.acquire(new, 4, "k", (5_000, 10_000));
    assert_eq!(rig.end(old, SessionEnd::Orderly), [], "it had ended");
    assert_eq!(rig.cancel(new, 9, "k", 3), [cancel_done(new, 9, false)]);
    assert_eq!(rig.end(new, SessionEnd::Orderly), [timed_out(new, 4)]);
    assert_eq!(rig.query(S1, 8, "mine"), [held(S1, 8, 10_000, 0)]);
}
