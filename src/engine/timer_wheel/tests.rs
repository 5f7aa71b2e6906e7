#[path = "../../../fuzz/src/plain.rs"]
mod plain;

use super::fuzz::Rig;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// The longest time the wire, the DLM flags and more can ask for: 10 years.
const LONG_TICKS: u64 = 10 * 366 * 24 * 60 * 60 * 1000;

#[test]
fn ids_carry_kind_and_index() {
    for kind in TimerKind::ALL {
        for index in [0, 1, MAX_INDICES - 2] {
            let timer = TimerId::new(kind, index);
            assert_eq!((timer.kind(), timer.index()), (kind, index));
        }
    }
}

#[test]
fn scenario_17_edges_of_every_level_fire_on_their_tick() {
    let mut delays = vec![0, LONG_TICKS, 30 * 24 * 60 * 60 * 1000];
    for level in 1..LEVELS as u32 {
        let span = 1 << (SLOT_BITS * level);
        delays.extend([span - 1, span, span + 1]);
    }
    let starts = [0, 1, 62, 63, 64, 4095, 4096, 999_999, (1 << 36) - 1];
    for start in starts {
        for &delay in &delays {
            let mut rig = Rig::new();
            assert!(rig.poll_all(start).is_empty());
            let due = start + delay;
            let timer = rig.arm(due);
            let bystander = rig.arm(due + 1);
            rig.check();
            if delay > 0 {
                assert!(rig.poll_all(due - 1).is_empty(), "{start} + {delay}: early");
                rig.check();
            }
            assert_eq!(rig.poll_all(due), [timer], "{start} + {delay}: on time");
            rig.check();
            assert_eq!(rig.poll_all(due + 1), [bystander]);
            assert_eq!(rig.wheel.next_tick(), None);
        }
    }
}

#[test]
fn scenario_17_edges_hold_when_time_comes_in_small_moves() {
    let mut delays = vec![1];
    for level in 1..4 {
        let span = 1 << (SLOT_BITS * level);
        delays.extend([span - 1, span, span + 1]);
    }
    let mut rig = Rig::new();
    let start = 12_345;
    rig.poll_all(start);
    let mut expected: Vec<(u64, u32)> = delays
        .iter()
        .map(|&delay| (start + delay, rig.arm(start + delay)))
        .collect();
    expected.sort();
    let mut fired = Vec::new();
    for tick in start..=start + delays[delays.len() - 1] {
        fired.extend(rig.poll_all(tick).into_iter().map(|timer| (tick, timer)));
    }
    assert_eq!(fired, expected);
}

#[test]
fn the_very_last_tick_has_a_place() {
    let mut rig = Rig::new();
    let last = Time::MAX.tick_ceil();
    let timer = rig.arm(last);
    rig.check();
    assert!(rig.poll_all(last - 1).is_empty());
    assert_eq!(rig.poll_all(last), [timer]);
}

#[test]
fn next_tick_is_never_late_and_leads_to_the_timer() {
    let mut rig = Rig::new();
    let due = 987_654_321;
    let timer = rig.arm(due);
    let mut wakes = 0;
    loop {
        let tick = rig.wheel.next_tick().expect("the timer is armed");
        assert!(tick <= due);
        wakes += 1;
        if let [fired] = rig.poll_all(tick)[..] {
            assert_eq!((fired, tick), (timer, due));
            break;
        }
    }
    assert!(wakes <= LEVELS, "one wake per level at most");
}

#[test]
fn timers_of_one_tick_fire_in_the_order_they_were_armed() {
    let mut rig = Rig::new();
    let early: Vec<u32> = (0..5).map(|_| rig.arm(70_000)).collect();
    rig.poll_all(69_990);
    let late: Vec<u32> = (0..5).map(|_| rig.arm(70_000)).collect();
    assert_eq!(rig.poll_all(80_000), [early, late].concat());
}

#[test]
fn a_timer_armed_during_catch_up_comes_in_its_turn() {
    let mut rig = Rig::new();
    let first = rig.arm(100);
    let second = rig.arm(200);
    let third = rig.arm(300);
    // The wheel lags at tick 100 when the loop has come to tick 250.
    let mut fired = Vec::new();
    while fired.is_empty() {
        fired = rig.poll(250, 1).0;
        rig.check();
    }
    assert_eq!(fired, [first]);
    let overdue = rig.arm(150);
    let long_overdue = rig.arm(3);
    let ahead = rig.arm(251);
    rig.check();
    assert_eq!(rig.poll_all(250), [long_overdue, overdue, second]);
    rig.check();
    assert_eq!(rig.poll_all(300), [ahead, third]);
}

#[test]
fn a_slot_cancelled_in_the_middle_of_its_cascade_leaves_nothing_behind() {
    let mut rig = Rig::new();
    let timers: Vec<u32> = (0..10).map(|n| rig.arm(4096 + n)).collect();
    assert_eq!(rig.poll(5000, 4), (vec![], 4));
    rig.check();
    for &timer in &timers {
        rig.cancel(timer);
        rig.check();
    }
    assert_eq!(rig.wheel.next_tick(), None);
    // The same slot one turn of its level later is far ahead again.
    let again = rig.arm(4096 + 64 * 4096);
    assert!(rig.poll_all(4096 + 64 * 4096 - 1).is_empty());
    assert_eq!(rig.poll_all(4096 + 64 * 4096), [again]);
}

#[test]
fn a_million_timers_of_one_tick_fire_in_bounded_calls() {
    const TIMERS: u32 = 1_000_000;
    const BUDGET: u32 = 1000;
    let mut rig = Rig::new();
    for _ in 0..TIMERS {
        rig.arm(30_000);
    }
    let mut fired = 0;
    let mut calls = 0;
    while fired < TIMERS {
        let (timers, steps) = rig.poll(30_000, BUDGET);
        assert!(steps <= BUDGET && timers.len() as u32 <= steps);
        assert_eq!(steps, BUDGET, "no call is idle while work is left");
        fired += timers.len() as u32;
        calls += 1;
        assert!(calls <= LEVELS as u32 * TIMERS / BUDGET, "it ends");
    }
    assert_eq!(rig.wheel.len(), 0);
}

#[test]
fn scenario_18_arm_rearm_and_cancel_by_the_million_keep_memory_flat() {
    let mut rig = Rig::new();
    let memory_bytes = rig.wheel.memory_bytes();
    let timers: Vec<u32> = (0..100).map(|n| rig.arm(1_000 + n)).collect();
    let mut random = 1u64;
    for round in 0..2_000_000_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let timer = timers[(random >> 33) as usize % timers.len()];
        if random >> 63 == 0 {
            rig.rearm(timer, round / 100 + 1 + (random >> 20) % 300_000);
        } else {
            rig.cancel(timer);
        }
        if round % 1000 == 0 {
            rig.poll_all(round / 100);
            rig.check();
        }
    }
    assert_eq!(rig.wheel.memory_bytes(), memory_bytes);
    for &timer in &timers {
        rig.cancel(timer);
    }
    rig.check();
    assert_eq!(rig.wheel.len(), 0);
}

#[derive(Clone, Debug)]
enum Move {
    Arm {
        delay: u64,
    },
    Rearm {
        which: prop::sample::Index,
        delay: u64,
    },
    Cancel {
        which: prop::sample::Index,
    },
    Advance {
        ticks: u64,
    },
    PollSome {
        budget: u32,
    },
}

fn delay() -> impl Strategy<Value = u64> {
    let span = (0..5_u32).prop_map(|level| 1 << (SLOT_BITS * level));
    prop_oneof![
        0..200_u64,
        (span, 0..3_u64).prop_map(|(span, edge): (u64, u64)| span + edge - 1),
        0..100_000_000_u64,
    ]
}

fn a_move() -> impl Strategy<Value = Move> {
    let which = any::<prop::sample::Index>;
    prop_oneof![
        4 => delay().prop_map(|delay| Move::Arm { delay }),
        1 => (which(), delay()).prop_map(|(which, delay)| Move::Rearm { which, delay }),
        1 => which().prop_map(|which| Move::Cancel { which }),
        2 => delay().prop_map(|ticks| Move::Advance { ticks }),
        2 => (0..6_u32).prop_map(|budget| Move::PollSome { budget }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    /// Against a sorted map, with polls that stop in the middle: nothing fires
    /// early or twice, nothing is forgotten, and between two moves that arm
    /// something, ticks fire in order.
    #[test]
    fn behaves_like_a_sorted_map(moves in prop::collection::vec(a_move(), 1..80)) {
        let mut rig = Rig::new();
        let mut model: BTreeMap<u32, u64> = BTreeMap::new();
        let mut now = 0;
        for a_move in moves {
            match a_move {
                Move::Arm { delay } => {
                    model.insert(rig.arm(now + delay), now + delay);
                }
                Move::Rearm { which, delay } if !model.is_empty() => {
                    let timer = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    rig.rearm(timer, now + delay);
                    model.insert(timer, now + delay);
                }
                Move::Cancel { which } if !model.is_empty() => {
                    let timer = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    rig.cancel(timer);
                    model.remove(&timer);
                }
                Move::Rearm { .. } | Move::Cancel { .. } => {}
                Move::Advance { ticks } => {
                    now += ticks;
                    fire(&mut rig, &mut model, now, u32::MAX)?;
                    prop_assert!(model.values().all(|&due| due > now), "all that is due has fired");
                }
                Move::PollSome { budget } => {
                    now += 50;
                    fire(&mut rig, &mut model, now, budget)?;
                }
            }
            rig.check();
            let earliest = model.values().min().copied();
            prop_assert_eq!(rig.wheel.next_tick().is_some(), earliest.is_some());
            if let (Some(tick), Some(earliest)) = (rig.wheel.next_tick(), earliest) {
                prop_assert!(tick <= earliest.max(now), "never late");
            }
        }
    }
}

fn fire(
    rig: &mut Rig,
    model: &mut BTreeMap<u32, u64>,
    now: u64,
    budget: u32,
) -> Result<(), TestCaseError> {
    let (fired, steps) = rig.poll(now, budget);
    prop_assert!(steps <= budget);
    let mut last = 0;
    for timer in fired {
        let due = model.remove(&timer);
        prop_assert!(due.is_some(), "fired twice or after its cancel");
        let due = due.unwrap_or(0);
        prop_assert!(due <= now, "early");
        prop_assert!(due >= last, "out of order");
        last = due;
    }
    Ok(())
}

/// What the fuzz target does, without a fuzzer.
#[test]
fn behaves_like_a_naive_wheel() {
    plain::run("timer_wheel", super::fuzz::run, 10_000);
}
