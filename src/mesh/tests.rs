#![allow(clippy::unwrap_used)]

mod model;

use super::*;
use crate::dlm::{DlmReply, Operation, Status};
use crate::ids::GrantRef;
use crate::ids::SessionId;
use crate::protocol::{ErrorCode, Reply, Request};
use proptest::prelude::*;

/// A session of the given loop; `number` tells them apart.
fn session(loop_index: u16, number: u32) -> SessionId {
    SessionId::new(loop_index, number, number)
}

const NOBODY: [u16; 0] = [];

fn query(owner: u64) -> Request<'static> {
    Request::Query { owner, key: b"k" }
}

/// Two joined loops.
fn pair(ring_capacity: usize) -> (MeshPort, MeshPort) {
    let mut ports = build(2, ring_capacity).into_iter();
    (ports.next().unwrap(), ports.next().unwrap())
}

fn ask(port: &mut MeshPort, target: u16, owner: u64) -> Result<(), NoRoom> {
    let session = session(port.outbound.loop_index(), 0);
    port.outbound
        .try_request(target, session, false, &query(owner))
}

/// The `T` that the session with number 0 gets for this owner.
fn answer(port: &mut MeshPort, target: u16, owner: u64) {
    port.outbound
        .reply(session(target, 0), Reply::TimedOut { owner });
}

/// What one batch brings, as `look` sees it.
fn take<T>(port: &mut MeshPort, budget: usize, mut look: impl FnMut(&mut Message) -> T) -> Vec<T> {
    let count = port.gather(budget);
    let mut seen = Vec::new();
    port.inbound.drain(|message| seen.push(look(message)));
    port.invariants();
    assert_eq!(seen.len(), count, "gather tells how many there are");
    seen
}

/// Owners of what one batch brings.
fn take_owners(port: &mut MeshPort, budget: usize) -> Vec<u64> {
    take(port, budget, |message| match message {
        Message::Request { request, .. } => request.as_request().owner(),
        Message::Reply {
            reply: Reply::TimedOut { owner },
            ..
        } => *owner,
        other => panic!("not sent here: {other:?}"),
    })
}

/// The loops that the requests of one batch come from.
fn take_askers(port: &mut MeshPort, budget: usize) -> Vec<u16> {
    take(port, budget, |message| match message {
        Message::Request { session, .. } => session.loop_index(),
        other => panic!("not sent here: {other:?}"),
    })
}

fn wakes(port: &mut MeshPort) -> Vec<u16> {
    let mut wakes: Vec<u16> = port.poll_wakes().collect();
    wakes.sort_unstable();
    port.invariants();
    wakes
}

#[test]
fn every_pair_is_joined_both_ways() {
    for loops in 1..=5 {
        let mut ports = build(loops, 1);
        assert_eq!(ports.len(), usize::from(loops));
        for from in 0..loops {
            for to in (0..loops).filter(|to| *to != from) {
                let owner = u64::from(from) << 16 | u64::from(to);
                ask(&mut ports[usize::from(from)], to, owner).unwrap();
            }
        }
        for (to, port) in (0..).zip(&mut ports) {
            assert_eq!(port.outbound.loop_index(), to);
            let mut seen = take(port, usize::MAX, |message| {
                let Message::Request {
                    session, request, ..
                } = message
                else {
                    panic!("not sent here: {message:?}");
                };
                let from = session.loop_index();
                let owner = u64::from(from) << 16 | u64::from(to);
                assert_eq!(request.as_request(), query(owner));
                from
            });
            seen.sort_unstable();
            assert!(seen.into_iter().eq((0..loops).filter(|from| *from != to)));
        }
    }
}

#[test]
fn rings_to_one_loop_stay_together_within_bounds() {
    assert_eq!([1, 2, 3, 5].map(ring_capacity), [4096, 4096, 2048, 1024]);
    assert_eq!(
        [9, 17, 65, MAX_LOOPS].map(ring_capacity),
        [512, 256, 64, 64]
    );
}

#[test]
#[should_panic(expected = "a loop sends itself nothing")]
fn a_loop_sends_itself_nothing() {
    let _ = ask(&mut build(2, 1)[1], 1, 1);
}

#[test]
fn a_lone_loop_may_always_sleep() {
    let mut port = build(1, 8).remove(0);
    assert!(take_owners(&mut port, 100).is_empty());
    assert_eq!(port.outbound.poll_room(), None);
    assert_eq!(wakes(&mut port), NOBODY);
    assert!(port.try_sleep());
}

#[test]
#[should_panic(expected = "the inbound half is elsewhere")]
fn a_loop_does_not_sleep_without_its_inbound_half() {
    let (mut a, _b) = pair(1);
    let _elsewhere = std::mem::take(&mut a.inbound);
    a.try_sleep();
}

#[test]
fn a_full_ring_refuses_requests_and_takes_everything_else() {
    let (mut a, mut b) = pair(4);
    for owner in 0..4 {
        assert_eq!(ask(&mut a, 1, owner), Ok(()));
    }
    assert_eq!(ask(&mut a, 1, 99), Err(NoRoom));
    for owner in 4..10 {
        answer(&mut a, 1, owner);
    }
    assert_eq!(a.outbound.poll_room(), None);
    assert_eq!(take_owners(&mut b, 100), [0, 1, 2, 3]);
    // The ring is empty, but six replies go first.
    assert_eq!(ask(&mut a, 1, 99), Err(NoRoom));
    assert_eq!(a.outbound.poll_room(), None);
    a.gather(0);
    assert_eq!(ask(&mut a, 1, 99), Err(NoRoom));
    assert_eq!(take_owners(&mut b, 100), [4, 5, 6, 7]);
    a.gather(0);
    assert_eq!(a.outbound.poll_room(), Some(1));
    assert_eq!(a.outbound.poll_room(), None, "it is told once");
    assert_eq!(ask(&mut a, 1, 10), Ok(()));
    assert_eq!(take_owners(&mut b, 100), [8, 9, 10]);
    assert_eq!(
        a.counters(),
        MeshCounters {
            requests: 5,
            refused: 3,
            received: 0,
            spilled: 6,
            spilling: 0,
            wakes: 0
        }
    );
    assert_eq!(b.counters().received, 11);
}

#[test]
fn two_full_rings_still_move() {
    let (mut a, mut b) = pair(2);
    for owner in 0..20 {
        answer(&mut a, 1, owner);
        answer(&mut b, 0, owner);
    }
    assert_eq!(ask(&mut a, 1, 99), Err(NoRoom));
    assert_eq!(ask(&mut b, 0, 99), Err(NoRoom));
    let (mut at_a, mut at_b) = (Vec::new(), Vec::new());
    for _turn in 0..10 {
        at_a.extend(take_owners(&mut a, 2));
        at_b.extend(take_owners(&mut b, 2));
    }
    at_a.extend(take_owners(&mut a, 2));
    assert!(at_a.into_iter().eq(0..20));
    assert!(at_b.into_iter().eq(0..20));
    a.gather(0);
    assert_eq!(
        (a.outbound.poll_room(), b.outbound.poll_room()),
        (Some(1), Some(0))
    );
}

/// One side asks as much as it is let and never looks at its replies.
#[test]
fn a_spill_holds_no_more_replies_than_the_other_ring_held_requests() {
    const CAPACITY: usize = 8;
    let (mut a, mut b) = pair(CAPACITY);
    let mut asked = 0;
    for _turn in 0..100 {
        while ask(&mut a, 1, asked).is_ok() {
            asked += 1;
        }
        for owner in take_owners(&mut b, 3) {
            answer(&mut b, 0, owner);
        }
    }
    let in_ring = CAPACITY as u64;
    assert_eq!(
        b.counters().received,
        asked,
        "all that was let in was judged"
    );
    assert!((1..=in_ring).contains(&b.counters().spilled));

    let mut answered = Vec::new();
    while answered.len() < asked as usize {
        let owners = take_owners(&mut a, 3);
        assert!(!owners.is_empty());
        answered.extend(owners);
        b.gather(0);
    }
    assert!(answered.into_iter().eq(0..asked));
    assert_eq!(a.outbound.poll_room(), Some(1));
}

#[test]
fn a_batch_keeps_to_its_budget_and_serves_everybody_in_turn() {
    let mut ports = build(4, 64);
    let (quiet, others) = ports.split_at_mut(1);
    for other in others.iter_mut() {
        for owner in 0..64 {
            ask(other, 0, owner).unwrap();
        }
    }
    let mut taken = [0; 4];
    for budget in [1, 2, 3, 5, 9, 30] {
        // Nobody waits longer than it takes each of the three to be first once.
        let before = taken;
        for _turn in 0..3 {
            let askers = take_askers(&mut quiet[0], budget);
            assert_eq!(askers.len(), budget);
            for from in 1..4 {
                let share = askers.iter().filter(|&&asker| asker == from).count();
                assert!((budget / 3..=budget.div_ceil(3)).contains(&share));
                taken[usize::from(from)] += share;
            }
        }
        for from in 1..4 {
            assert_eq!(taken[from] - before[from], budget, "of loop {from}");
        }
    }
    // What one does not use is left to those after it.
    let (mut a, mut b) = pair(64);
    for owner in 0..64 {
        ask(&mut b, 0, owner).unwrap();
    }
    assert_eq!(take_owners(&mut a, 40).len(), 40);
    assert_eq!(take_owners(&mut a, 40).len(), 24);
}

#[test]
fn a_sleeper_is_woken_once_however_much_was_sent_by_however_many() {
    let mut ports = build(4, 64);
    assert!(ports[0].try_sleep());
    for (from, port) in (1..).zip(&mut ports[1..]) {
        let awake = from % 3 + 1;
        for owner in 0..10 {
            ask(port, 0, owner).unwrap();
            ask(port, awake, owner).unwrap();
        }
    }
    assert_eq!(wakes(&mut ports[1]), [0]);
    assert_eq!(wakes(&mut ports[1]), NOBODY, "nothing was sent since");
    assert_eq!(wakes(&mut ports[2]), NOBODY);
    ask(&mut ports[1], 0, 10).unwrap();
    assert_eq!(wakes(&mut ports[1]), NOBODY, "it is being woken already");
    ports[0].handle_awake();
    assert_eq!(wakes(&mut ports[3]), NOBODY);
    assert_eq!(ports[0].gather(100), 31);
    assert_eq!(ports[1].counters().wakes, 1);
}

#[test]
fn a_turn_wakes_every_sleeper_it_sent_to_and_no_other() {
    let mut ports = build(5, 8);
    for sleeper in [1, 2, 4] {
        assert!(ports[sleeper].try_sleep());
    }
    for target in [1, 3, 4] {
        ask(&mut ports[0], target, 1).unwrap();
    }
    assert_eq!(wakes(&mut ports[0]), [1, 4]);
}

#[test]
fn a_loop_does_not_sleep_on_what_it_could_do() {
    let (mut a, mut b) = pair(2);
    ask(&mut a, 1, 0).unwrap();
    assert!(!b.try_sleep(), "a message waits");
    assert!(!a.try_sleep(), "a wake is owed");
    assert_eq!(wakes(&mut a), NOBODY, "and was not needed: b is awake");
    assert!(a.try_sleep());
    a.handle_awake();

    ask(&mut a, 1, 1).unwrap();
    assert_eq!(ask(&mut a, 1, 2), Err(NoRoom));
    assert_eq!(wakes(&mut a), NOBODY);
    assert_eq!(take_owners(&mut b, 1), [0]);
    assert!(!a.try_sleep(), "a refused request would be taken now");
    assert_eq!(a.outbound.poll_room(), Some(1));

    answer(&mut a, 1, 3);
    answer(&mut a, 1, 4);
    assert_eq!(wakes(&mut a), NOBODY);
    assert_eq!(take_owners(&mut b, 1), [1]);
    assert!(!a.try_sleep(), "a spilled reply has room now");
    assert_eq!(wakes(&mut a), NOBODY);
    assert!(a.try_sleep());
    assert_eq!(take_owners(&mut b, 2), [3, 4]);
    assert!(!b.try_sleep(), "it has not said that it made room");
    assert_eq!(wakes(&mut b), NOBODY, "nothing of a's waited for room");
    assert!(b.try_sleep());
}

#[test]
fn room_wakes_exactly_those_that_wait_for_it() {
    let mut ports = build(3, 1);
    // Loop 0 sleeps because a request was refused, loop 1 because of a spill.
    ask(&mut ports[0], 2, 0).unwrap();
    assert_eq!(ask(&mut ports[0], 2, 1), Err(NoRoom));
    answer(&mut ports[1], 2, 2);
    answer(&mut ports[1], 2, 3);
    for from in [0, 1] {
        assert_eq!(wakes(&mut ports[from]), NOBODY);
        assert!(ports[from].try_sleep());
    }
    assert_eq!(wakes(&mut ports[2]), NOBODY, "no room was made yet");
    let mut owners = take_owners(&mut ports[2], 2);
    owners.sort_unstable();
    assert_eq!(owners, [0, 2]);
    assert_eq!(wakes(&mut ports[2]), [0, 1]);
    for from in [0, 1] {
        ports[from].handle_awake();
        ports[from].gather(1);
    }
    assert_eq!(ports[0].outbound.poll_room(), Some(2));
    assert_eq!(wakes(&mut ports[1]), NOBODY);
    // Now loop 1 sleeps with its message in the ring: taking that is no news to it.
    assert!(ports[1].try_sleep());
    assert_eq!(take_owners(&mut ports[2], 2), [3]);
    assert_eq!(wakes(&mut ports[2]), NOBODY);
}

/// The other side's spill refuses requests; its end is what they wait for.
#[test]
fn the_end_of_the_other_sides_spill_wakes_a_loop_that_was_refused_for_it() {
    let (mut a, mut b) = pair(1);
    answer(&mut b, 0, 0);
    answer(&mut b, 0, 1);
    assert_eq!(ask(&mut a, 1, 9), Err(NoRoom));
    assert_eq!(wakes(&mut b), NOBODY);
    assert!(b.try_sleep(), "b waits for room");
    assert_eq!(take_owners(&mut a, 1), [0]);
    assert_eq!(wakes(&mut a), [1]);
    assert!(a.try_sleep(), "b has not moved its spill yet");
    b.handle_awake();
    assert_eq!(wakes(&mut b), [0]);
    a.handle_awake();
    assert_eq!(a.outbound.poll_room(), Some(1));
    assert_eq!(ask(&mut a, 1, 9), Ok(()));
    assert_eq!(take_owners(&mut a, 1), [1]);
}

#[test]
fn a_dlm_request_that_is_refused_comes_back() {
    let call = |owner: u32| {
        Box::new(DlmCall {
            session: session(0, owner),
            file_name: "jobs".into(),
            id: "worker".into(),
            name: None,
            operation: Operation::Lock { ttl_ms: 1 },
        })
    };
    let (mut a, mut b) = pair(1);
    assert_eq!(a.outbound.try_dlm_request(1, call(0)), Ok(()));
    assert_eq!(a.outbound.try_dlm_request(1, call(1)), Err(call(1)));
    take(&mut b, 9, |message| {
        assert_eq!(*message, Message::DlmRequest(call(0)), "as it was sent");
    });
    assert_eq!(b.counters().received, 1);
    assert_eq!(a.outbound.poll_room(), Some(1));
    assert_eq!(a.outbound.try_dlm_request(1, call(1)), Ok(()));
}

fn any_request(key: &[u8]) -> impl Strategy<Value = Request<'_>> {
    let fields = any::<(u64, u64, u32, u32, u8, u8, u16)>();
    (0..7, fields).prop_map(
        move |(kind, (owner, wide, wait_ms, lease_ms, version, flags, wanted_loop))| match kind {
            0 => Request::Acquire {
                owner,
                wait_ms,
                lease_ms,
                key,
            },
            1 => Request::Release {
                owner,
                token: wide,
                key,
            },
            2 => Request::Extend {
                owner,
                lease_ms,
                token: wide,
                key,
            },
            3 => Request::Cancel {
                owner,
                target: wide,
                key,
            },
            4 => Request::Query { owner, key },
            5 => Request::Ping { owner, key },
            _ => Request::Hello {
                owner,
                version,
                flags,
                wanted_loop,
                credential: key,
            },
        },
    )
}

/// Bytes of which no two neighbours are alike.
const KEY_BYTES: [u8; 300] = {
    let mut bytes = [0; 300];
    let mut index = 0;
    while index < bytes.len() {
        bytes[index] = index as u8;
        index += 1;
    }
    bytes
};

proptest! {
    #[test]
    fn a_request_comes_out_as_it_went_in(
        requests in proptest::collection::vec(
            (0..=KEY_BYTES.len()).prop_flat_map(|len| any_request(&KEY_BYTES[..len])),
            1..8,
        ),
        number: u32,
        release_on_close: bool,
    ) {
        let (mut a, mut b) = pair(8);
        let session = session(0, number);
        for request in &requests {
            prop_assert_eq!(a.outbound.try_request(1, session, release_on_close, request), Ok(()));
        }
        let mut sent = requests.iter();
        take(&mut b, 8, |message| {
            let Message::Request { session: from, release_on_close: release, request } = message
            else {
                panic!("no request: {message:?}");
            };
            assert_eq!((*from, *release), (session, release_on_close));
            assert_eq!(Some(&request.as_request()), sent.next());
        });
        prop_assert_eq!(sent.next(), None);
    }
}
