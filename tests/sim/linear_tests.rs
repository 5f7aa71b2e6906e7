//! The checker is checked: histories known bad must not be explained, and good ones
//! that look odd must.

#![expect(
    clippy::cloned_ref_to_slice_refs,
    reason = "a session of one request reads like one of more"
)]

use leasehold::dlm::Status;
use leasehold::engine::time::Time;

use crate::linear::{Answer, Call, History, Op, Session, Verdict, check};

/// Sessions, each a list of requests; times in milliseconds.
struct Told(History);

const NEVER: u64 = u64::MAX;

fn told(sessions: &[&[Op]]) -> Told {
    let session = |ops: &&[Op]| Session {
        ops: ops.to_vec(),
        ends_from: Time::MAX,
        releases_on_close: false,
    };
    Told(History {
        sessions: sessions.iter().map(session).collect(),
        expiry_grace_ms: 0,
    })
}

impl Told {
    fn ends(mut self, session: usize, at_ms: u64, releases_on_close: bool) -> Told {
        let session = &mut self.0.sessions[session];
        session.ends_from = Time::from_millis(at_ms);
        session.releases_on_close = releases_on_close;
        self
    }

    fn with_grace(mut self, expiry_grace_ms: u64) -> Told {
        self.0.expiry_grace_ms = expiry_grace_ms;
        self
    }

    #[track_caller]
    fn is_good(&self) {
        assert_eq!(check(&self.0, 100_000), Verdict::Explained);
    }

    #[track_caller]
    fn is_bad(&self) {
        let verdict = check(&self.0, 100_000);
        assert!(matches!(verdict, Verdict::Unexplained(_)), "{verdict:?}");
    }
}

fn op(call: Call, (from_ms, upto_ms): (u64, u64), answer: Option<Answer>) -> Op {
    Op {
        call,
        from: Time::from_millis(from_ms),
        answer,
        upto: match upto_ms {
            NEVER => Time::MAX,
            ms => Time::from_millis(ms),
        },
        twin: None,
    }
}

fn acquire(owner: u64, wait_ms: u32, lease_ms: u32) -> Call {
    Call::Acquire {
        owner,
        wait_ms,
        lease_ms,
    }
}

fn granted(token: u64, waited_ms: u32) -> Option<Answer> {
    Some(Answer::Granted { token, waited_ms })
}

/// An acquire without a wait, for a second, that was granted.
fn held(token: u64, at: (u64, u64)) -> Op {
    op(acquire(token, 0, 1_000), at, granted(token, 0))
}

fn release(token: u64, at: (u64, u64), answer: Option<Answer>) -> Op {
    op(Call::Release { token }, at, answer)
}

fn extend(token: u64, lease_ms: u32, at: (u64, u64), remaining_ms: u32) -> Op {
    let answer = Some(Answer::Extended { remaining_ms });
    op(Call::Extend { token, lease_ms }, at, answer)
}

fn state(is_held: bool, remaining_ms: u32, waiters: usize, at: (u64, u64)) -> Op {
    let answer = Answer::State {
        is_held,
        remaining_ms,
        waiters,
    };
    op(Call::Query, at, Some(answer))
}

fn dlm(call: Call, at: (u64, u64), status: Status) -> Op {
    op(
        call,
        at,
        Some(Answer::Dlm {
            status,
            value: None,
        }),
    )
}

fn lock(id: u32, ttl_ms: u64, at: (u64, u64), status: Status) -> Op {
    dlm(Call::Lock { id, ttl_ms }, at, status)
}

#[test]
fn a_double_grant_is_bad() {
    told(&[&[held(1, (100, 101))], &[held(2, (200, 201))]]).is_bad();
    // And at the same time, in either order.
    told(&[&[held(1, (100, 110))], &[held(2, (100, 110))]]).is_bad();
    // A lease later it is none.
    told(&[&[held(1, (100, 101))], &[held(2, (1_100, 1_101))]]).is_good();
}

#[test]
fn a_lost_release_is_bad() {
    let released = release(1, (200, 201), Some(Answer::Released));
    let queued = |at| {
        op(
            acquire(2, 5_000, 10),
            (150, at),
            granted(2, (at - 151) as u32),
        )
    };
    // The head is granted in the same step, not when the lease would have ended.
    told(&[&[held(1, (100, 101)), released.clone()], &[queued(1_101)]]).is_bad();
    told(&[&[held(1, (100, 101)), released.clone()], &[queued(201)]]).is_good();
    let still_held = state(true, 800, 0, (300, 301));
    told(&[&[held(1, (100, 101)), released.clone()], &[still_held]]).is_bad();
    let refused = op(acquire(3, 0, 10), (300, 301), Some(Answer::TimedOut));
    told(&[&[held(1, (100, 101)), released], &[refused]]).is_bad();
}

#[test]
fn a_stale_token_accepted_is_bad() {
    let late = release(1, (1_500, 1_501), Some(Answer::Released));
    told(&[&[held(1, (100, 101)), late.clone()]]).is_bad();
    told(&[&[held(1, (100, 101)), late], &[held(2, (1_200, 1_201))]]).is_bad();
    let twice = release(1, (300, 301), Some(Answer::Released));
    told(&[&[held(1, (100, 101)), twice.clone(), twice]]).is_bad();
    let late = extend(1, 1_000, (1_200, 1_201), 1_000);
    told(&[&[held(1, (100, 101)), late]]).is_bad();
    let refused = release(1, (1_500, 1_501), Some(Answer::NotHeld));
    told(&[&[held(1, (100, 101)), refused]]).is_good();
}

#[test]
fn tokens_that_do_not_grow_are_bad() {
    told(&[&[held(2, (100, 101))], &[held(1, (1_200, 1_201))]]).is_bad();
    told(&[&[held(1, (100, 101))], &[held(1, (1_200, 1_201))]]).is_bad();
}

/// An acquire that nobody saw answered may have been granted.
#[test]
fn indeterminate_is_no_failure() {
    let unseen = op(acquire(1, 0, 1_000), (100, NEVER), None);
    let refused = |at| op(acquire(2, 0, 10), at, Some(Answer::TimedOut));
    told(&[&[unseen.clone()], &[refused((200, 201))]]).is_good();
    told(&[&[unseen.clone()], &[held(2, (200, 201))]]).is_good();
    // But not to be held after the longest lease that it can have begun.
    let settled = op(acquire(1, 0, 1_000), (100, 150), None);
    told(&[&[settled], &[refused((1_200, 1_201))]]).is_bad();
    // Had it been a failure, nobody would hold the key.
    told(&[&[], &[refused((200, 201))]]).is_bad();
    // An unseen release may have come to pass, at once or later, or not.
    let unseen = release(1, (200, NEVER), None);
    for next in [
        held(2, (200, 201)),
        held(2, (900, 901)),
        refused((900, 901)),
    ] {
        told(&[&[held(1, (100, 101)), unseen.clone()], &[next]]).is_good();
    }
}

#[test]
fn a_lease_shortened_by_a_late_extend_is_bad() {
    let shorter = extend(1, 100, (200, 201), 100);
    told(&[&[held(1, (100, 101)), shorter.clone()]]).is_bad();
    let told_right = extend(1, 100, (200, 201), 899);
    told(&[&[held(1, (100, 101)), told_right.clone()]]).is_good();
    let early = held(2, (400, 401));
    told(&[&[held(1, (100, 101)), told_right.clone()], &[early]]).is_bad();
    let late = held(2, (1_101, 1_102));
    told(&[&[held(1, (100, 101)), told_right], &[late]]).is_good();
    // A repeated one does no harm either.
    let long = extend(1, 5_000, (200, 201), 5_000);
    let repeated = extend(1, 5_000, (200, 701), 5_000);
    let early = held(2, (5_199, 5_199));
    told(&[&[held(1, (100, 101)), long, repeated], &[early]]).is_bad();
}

#[test]
fn a_dlm_grant_taken_back_is_bad() {
    let locked = lock(7, 1_000, (100, 101), Status::Locked);
    told(&[&[locked.clone()], &[held(2, (200, 201))]]).is_bad();
    // Its connection's end is no reason.
    told(&[&[locked.clone()], &[held(2, (200, 201))]])
        .ends(0, 102, true)
        .is_bad();
    let unlocked = dlm(Call::Unlock { id: 7 }, (150, 151), Status::Unlocked);
    told(&[
        &[locked.clone()],
        &[unlocked.clone()],
        &[held(2, (200, 201))],
    ])
    .is_good();
    let other = lock(8, 1_000, (200, 201), Status::Locked);
    told(&[&[locked.clone()], &[other.clone()]]).is_bad();
    told(&[&[locked.clone()], &[unlocked], &[other]]).is_good();
    // Its retry on another connection renews, and a shorter one does not shorten.
    let retried = lock(7, 10, (100, 130), Status::Locked);
    told(&[&[locked.clone()], &[retried.clone()]]).is_good();
    told(&[&[locked], &[retried], &[held(2, (300, 301))]]).is_bad();
}

#[test]
fn dlm_data_is_a_register_of_its_holder() {
    let put = |id, value, at| {
        let call = Call::Put {
            id,
            ttl_ms: 1_000,
            value,
        };
        dlm(call, at, Status::Done)
    };
    let got = |value, at| {
        let answer = Answer::Dlm {
            status: Status::Done,
            value: Some(value),
        };
        op(Call::Get { id: 7 }, at, Some(answer))
    };
    let nothing = |at| dlm(Call::Get { id: 7 }, at, Status::NotFound);
    let erased = dlm(Call::Erase { id: 7 }, (300, 301), Status::Done);
    told(&[&[put(7, 5, (100, 101))], &[got(5, (200, 201))]]).is_good();
    told(&[&[put(7, 5, (100, 101))], &[got(6, (200, 201))]]).is_bad();
    told(&[&[put(7, 5, (100, 101))], &[got(5, (1_200, 1_201))]]).is_bad();
    told(&[&[put(7, 5, (100, 101))], &[nothing((200, 201))]]).is_bad();
    told(&[&[put(7, 5, (100, 101))], &[nothing((1_200, 1_201))]]).is_good();
    told(&[&[put(7, 5, (100, 101))], &[put(8, 5, (200, 201))]]).is_bad();
    told(&[
        &[put(7, 5, (100, 101))],
        &[erased],
        &[put(8, 5, (400, 401))],
    ])
    .is_good();
}

/// A lease counted from a clock that was read before the acquire came is too short.
#[test]
fn a_stale_turn_clock_is_bad() {
    told(&[&[held(1, (100, 101))], &[held(2, (1_080, 1_090))]]).is_bad();
    told(&[&[held(1, (100, 101))], &[state(true, 950, 0, (110, 111))]]).is_bad();
    told(&[&[held(1, (100, 101))], &[state(true, 990, 0, (110, 111))]]).is_good();
    told(&[
        &[held(1, (100, 101))],
        &[state(false, 0, 0, (1_050, 1_060))],
    ])
    .is_bad();
}

#[test]
fn who_overtakes_is_bad() {
    let holder = [
        held(1, (100, 101)),
        release(1, (500, 501), Some(Answer::Released)),
    ];
    let early = op(acquire(2, 5_000, 10), (200, 501), granted(2, 298));
    let late = |token, at, waited| op(acquire(3, 5_000, 10), (300, at), granted(token, waited));
    told(&[&holder, &[early.clone()], &[late(3, 520, 219)]]).is_good();
    let early_second = op(acquire(2, 5_000, 10), (200, 520), granted(3, 319));
    told(&[&holder, &[early_second], &[late(2, 501, 199)]]).is_bad();
    // Nor does an attempt without a wait.
    let jumped = op(acquire(3, 0, 10), (502, 503), granted(3, 0));
    let waits = op(acquire(2, 5_000, 10), (200, 520), granted(4, 310));
    told(&[&holder, &[waits], &[jumped]]).is_bad();
}

#[test]
fn a_waiter_that_times_out_early_is_bad() {
    let waits = |at| op(acquire(2, 300, 10), (200, at), Some(Answer::TimedOut));
    let then = state(true, 750, 0, (350, 351));
    told(&[&[held(1, (100, 101))], &[waits(400)]]).is_bad();
    told(&[&[held(1, (100, 101))], &[waits(501)]]).is_good();
    told(&[&[held(1, (100, 101))], &[waits(340)], &[then.clone()]])
        .ends(1, 330, false)
        .is_good();
    told(&[&[held(1, (100, 101))], &[waits(501)], &[then]]).is_bad();
    // A free key has no waiters.
    told(&[&[waits(501)]]).is_bad();
}

#[test]
fn a_cancelled_acquire_comes_back_only_once() {
    let cancel = |answer| op(Call::Cancel { target: 2 }, (300, 310), Some(answer));
    let waits = |answer, at| op(acquire(2, 5_000, 10), (200, at), answer);
    let timed_out = waits(Some(Answer::TimedOut), 310);
    let holder = [held(1, (100, 101))];
    told(&[
        &holder,
        &[timed_out.clone(), cancel(Answer::Cancelled(true))],
    ])
    .is_good();
    told(&[&holder, &[timed_out, cancel(Answer::Cancelled(false))]]).is_bad();
    let granted = waits(granted(2, 900), 1_105);
    told(&[&holder, &[granted, cancel(Answer::Cancelled(true))]]).is_bad();
}

#[test]
fn the_end_of_a_session_frees_only_what_it_may() {
    let others = held(2, (300, 301));
    let told_of = told(&[&[held(1, (100, 101))], &[others.clone()]]);
    told_of.ends(0, 200, true).is_good();
    let told_of = told(&[&[held(1, (100, 101))], &[others.clone()]]);
    told_of.ends(0, 200, false).is_bad();
    // A grant that no byte was told of passes on.
    let unseen = op(acquire(1, 0, 1_000), (100, NEVER), None);
    let told_of = told(&[&[unseen], &[others.clone()]]);
    told_of.ends(0, 200, false).is_good();
    // Who else extended it keeps it.
    let kept = extend(1, 900, (150, 151), 949);
    told(&[&[held(1, (100, 101))], &[kept], &[others]])
        .ends(0, 200, true)
        .is_bad();
}

/// Odd and right: what is over may be seen late, but by nobody.
#[test]
fn good_histories_that_look_odd() {
    // Granted long after the lease's end, because the loop was stopped.
    let late = op(acquire(2, 60_000, 10), (200, 9_000), granted(2, 8_700));
    told(&[&[held(1, (100, 101))], &[late]]).is_good();
    // The later of two that overlap is the earlier.
    told(&[
        &[
            held(2, (100, 900)),
            release(2, (900, 901), Some(Answer::Released)),
        ],
        &[
            held(1, (150, 300)),
            release(1, (300, 301), Some(Answer::Released)),
        ],
    ])
    .is_good();
    // One of two that are the same was refused; which, nobody can tell.
    let mut refused = op(acquire(2, 5_000, 10), (200, 300), Some(Answer::Busy));
    refused.twin = Some(1);
    let queued = op(acquire(2, 5_000, 10), (200, 1_102), granted(2, 900));
    told(&[&[held(1, (100, 101))], &[refused, queued]]).is_good();
    // A Lock that nobody saw answered, and that could have been refused, was not.
    let unseen = lock(7, 4_000, (150, NEVER), Status::Locked);
    let unseen = Op {
        answer: None,
        ..unseen
    };
    let seen = state(true, 4_000, 0, (1_110, 1_111));
    told(&[&[held(1, (100, 101))], &[unseen], &[seen]]).is_good();
    // A Lock that would renew nothing while another one asks, and takes the key later.
    let first = lock(7, 1_000, (100, 101), Status::Locked);
    let again = lock(7, 100, (150, 3_000), Status::Locked);
    let refused = |at| dlm(Call::Unlock { id: 8 }, at, Status::NotOwner);
    let others = [refused((155, 158)), refused((160, 200))];
    let seen = state(true, 90, 0, (3_005, 3_010));
    told(&[&[first], &[again], &others, &[seen]]).is_good();
    // A release that finds its lease over, and the next already there.
    let not_held = release(1, (1_090, 1_120), Some(Answer::NotHeld));
    let next = op(acquire(2, 5_000, 10), (200, 1_110), granted(2, 900));
    told(&[&[held(1, (100, 101)), not_held], &[next]]).is_good();
}

#[test]
fn an_expiry_grace_blocks_for_nobody() {
    let refused = release(1, (1_150, 1_151), Some(Answer::NotHeld));
    let blocked = state(true, 55, 0, (1_145, 1_146));
    let sessions: &[&[Op]] = &[&[held(1, (100, 101)), refused], &[blocked]];
    told(sessions).with_grace(100).is_good();
    told(sessions).is_bad();
    let sessions: &[&[Op]] = &[&[held(1, (100, 101))], &[held(2, (1_150, 1_151))]];
    told(sessions).with_grace(100).is_bad();
    told(sessions).is_good();
}

#[test]
fn too_much_is_undecided() {
    let waits = |owner| op(acquire(owner, 60_000, 10), (200, NEVER), None);
    let sessions: Vec<Vec<Op>> = (0..20).map(|owner| vec![waits(owner)]).collect();
    let sessions: Vec<&[Op]> = sessions.iter().map(Vec::as_slice).collect();
    let late = [state(true, 10, 40, (500, 501))];
    let all: Vec<&[Op]> = sessions.into_iter().chain([&late[..]]).collect();
    assert_eq!(check(&told(&all).0, 100), Verdict::Undecided);
}
