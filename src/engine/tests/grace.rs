//! The grace column of the request × key-state matrix of docs/protocol.md, cell by cell:
//! after an unclean restart a key of which nothing is known counts as held by nobody
//! known until grace ends. And the keys of which something is known: their records say
//! who held them.

use super::*;
use crate::durability::LeaseRecord;
use crate::engine::time::NANOS_PER_MS;
use crate::engine::{DlmErase, DlmGet, DlmPut, DlmTest, DlmUnlock};

const GRACE_MS: u32 = 8_000;
const LEASE_MS: u32 = 10_000;
const WAIT_MS: u32 = 5_000;

/// Waits that outlast the grace.
const PATIENT: (u32, u32) = (20_000, LEASE_MS);

/// DLM leases longer than this are recorded.
const CAP_MS: u64 = 300_000;

/// Code 6.
const OVERLOADED: ErrorCode = ErrorCode::Overloaded;

fn rig_with(limits: EngineLimits) -> Rig {
    Rig::restarted(limits, u64::from(GRACE_MS) * NANOS_PER_MS, CAP_MS)
}

/// Nothing is known of "k", whose queue takes two.
fn in_grace() -> Rig {
    rig_with(EngineLimits {
        max_waiters_per_key: 2,
        ..UNLIMITED
    })
}

/// The same with S2 and S3 queued: all it takes.
fn full_in_grace() -> Rig {
    let mut rig = in_grace();
    assert_eq!(rig.acquire(S2, 2, "k", (WAIT_MS, LEASE_MS)), []);
    assert_eq!(rig.acquire(S3, 3, "k", (WAIT_MS, LEASE_MS)), []);
    rig
}

/// What keys take: with none, it has to be what it was in the beginning.
fn assert_nothing_is_kept(rig: &Rig) {
    let engine = &rig.engine;
    assert_eq!((engine.keys(), engine.waiting(), engine.held()), (0, 0, 0));
}

mod acquire {
    use super::*;

    #[test]
    fn without_wait_times_out_at_once() {
        let mut rig = in_grace();
        assert_eq!(rig.acquire(S1, 1, "k", (0, LEASE_MS)), [timed_out(S1, 1)]);
        assert_nothing_is_kept(&rig);
        let mut rig = full_in_grace();
        assert_eq!(rig.acquire(S1, 1, "k", (0, LEASE_MS)), [timed_out(S1, 1)]);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, GRACE_MS, 2)]);
    }

    #[test]
    fn with_wait_joins_the_queue_s_end_and_is_granted_at_the_end_of_grace() {
        let mut rig = in_grace();
        assert_eq!(rig.acquire(S2, 2, "k", PATIENT), []);
        rig.pass_ms(500);
        assert_eq!(rig.acquire(S3, 3, "k", (20_000, 70)), []);
        rig.pass_ms(7_499);
        rig.pass_nanos(NANOS_PER_MS - 1);
        assert_eq!(rig.timeouts(), [], "one nanosecond before its end");
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, 1, 2)]);
        rig.pass_nanos(1);
        assert_eq!(rig.timeouts(), [granted(S2, 2, T0, GRACE_MS)]);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, LEASE_MS, 1)]);
        assert_eq!(
            rig.release(S2, 9, "k", T0),
            [released(S2, 9), granted(S3, 3, T0 + 1, 7_500)]
        );
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, 70, 0)]);
    }

    /// Rule 3: the request that finds grace over comes after those who have waited.
    #[test]
    fn at_the_very_end_is_behind_those_who_waited() {
        let mut rig = in_grace();
        assert_eq!(rig.acquire(S2, 2, "k", PATIENT), []);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(
            rig.acquire(S1, 1, "k", (0, LEASE_MS)),
            [granted(S2, 2, T0, GRACE_MS), timed_out(S1, 1)]
        );
    }

    #[test]
    fn is_granted_from_the_end_of_grace_on_where_nobody_waits() {
        let mut rig = in_grace();
        rig.pass_ms(u64::from(GRACE_MS) - 1);
        rig.pass_nanos(NANOS_PER_MS - 1);
        assert_eq!(rig.acquire(S1, 1, "k", (0, LEASE_MS)), [timed_out(S1, 1)]);
        rig.pass_nanos(1);
        assert_eq!(
            rig.acquire(S1, 2, "k", (0, LEASE_MS)),
            [granted(S1, 2, T0, 0)]
        );
    }

    /// The wait ends with the grace: a waiter is granted only before its own deadline.
    #[test]
    fn whose_wait_ends_with_the_grace_times_out() {
        let mut rig = in_grace();
        assert_eq!(rig.acquire(S2, 2, "k", (GRACE_MS, LEASE_MS)), []);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(rig.timeouts(), [timed_out(S2, 2)]);
        assert_nothing_is_kept(&rig);
    }

    #[test]
    fn with_wait_is_busy_where_the_queue_is_full() {
        let mut rig = full_in_grace();
        assert_eq!(rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)), [busy(S4, 4)]);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, GRACE_MS, 2)]);
    }

    #[test]
    fn with_wait_is_busy_where_the_server_s_total_of_waiters_is_full() {
        let mut rig = rig_with(EngineLimits {
            max_waiters: 1,
            ..UNLIMITED
        });
        assert_eq!(rig.acquire(S2, 2, "other", PATIENT), []);
        assert_eq!(rig.acquire(S3, 3, "k", PATIENT), [busy(S3, 3)]);
        assert_eq!(rig.engine.keys(), 1, "nobody waits for the key");
    }

    #[test]
    fn with_wait_is_refused_where_its_session_has_too_many() {
        let mut rig = rig_with(EngineLimits {
            max_session_waiters: 1,
            ..UNLIMITED
        });
        assert_eq!(rig.acquire(S2, 2, "other", PATIENT), []);
        let too_many = ErrorCode::TooManyQueued;
        assert_eq!(rig.acquire(S2, 3, "k", PATIENT), [refused(S2, 3, too_many)]);
        assert_eq!(rig.engine.keys(), 1, "nobody waits for the key");
        assert_eq!(rig.acquire(S3, 4, "k", PATIENT), []);
    }

    #[test]
    fn with_wait_is_refused_where_the_key_table_is_full() {
        let mut rig = rig_with(EngineLimits {
            max_keys: 1,
            ..UNLIMITED
        });
        assert_eq!(rig.acquire(S2, 2, "other", (1_000, LEASE_MS)), []);
        assert_eq!(
            rig.acquire(S3, 3, "k", PATIENT),
            [refused(S3, 3, OVERLOADED)]
        );
        // On a key that has its entry there is room.
        assert_eq!(rig.acquire(S3, 4, "other", PATIENT), []);
        assert_eq!(
            rig.cancel(S3, 5, "other", 4),
            [timed_out(S3, 4), cancel_done(S3, 5, true)]
        );
        // Nor does a wait that is over keep the room.
        rig.pass_ms(1_000);
        assert_eq!(rig.acquire(S3, 6, "k", PATIENT), [timed_out(S2, 2)]);
        assert_eq!(rig.engine.keys(), 1);
    }

    #[test]
    fn with_wait_is_refused_where_memory_is_used_up() {
        let full = |bytes| EngineLimits {
            max_memory_bytes: bytes,
            ..UNLIMITED
        };
        let mut rig = rig_with(full(rig_with(UNLIMITED).engine.memory_bytes()));
        assert_eq!(
            rig.acquire(S2, 2, "k", PATIENT),
            [refused(S2, 2, OVERLOADED)]
        );
        assert_nothing_is_kept(&rig);
        // Enough for the key's entry, not for its queue.
        let of_one_lock = {
            let mut rig = Rig::new(UNLIMITED);
            rig.acquire(S1, 1, "k", LEASE);
            rig.engine.memory_bytes()
        };
        let mut rig = rig_with(full(of_one_lock));
        assert_eq!(
            rig.acquire(S2, 2, "k", PATIENT),
            [refused(S2, 2, OVERLOADED)]
        );
        assert_nothing_is_kept(&rig);
    }

    /// 9 before `B` before 6, where all of them apply.
    #[test]
    fn refusals_come_in_their_order() {
        let limits = EngineLimits {
            max_keys: 1,
            max_waiters: 1,
            max_session_waiters: 1,
            ..UNLIMITED
        };
        let mut rig = rig_with(limits);
        assert_eq!(rig.acquire(S2, 2, "other", PATIENT), []);
        let too_many = ErrorCode::TooManyQueued;
        assert_eq!(rig.acquire(S2, 3, "k", PATIENT), [refused(S2, 3, too_many)]);
        assert_eq!(rig.acquire(S3, 4, "k", PATIENT), [busy(S3, 4)]);
        let mut rig = rig_with(EngineLimits {
            max_waiters: 2,
            ..limits
        });
        assert_eq!(rig.acquire(S2, 2, "other", PATIENT), []);
        assert_eq!(
            rig.acquire(S3, 4, "k", PATIENT),
            [refused(S3, 4, OVERLOADED)]
        );
    }

    #[test]
    fn keys_are_granted_in_the_order_of_each_queue_alone() {
        let mut rig = in_grace();
        assert_eq!(rig.acquire(S1, 1, "a", PATIENT), []);
        assert_eq!(rig.acquire(S2, 2, "b", PATIENT), []);
        assert_eq!(rig.acquire(S3, 3, "a", PATIENT), []);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(
            rig.timeouts(),
            [
                granted(S1, 1, T0, GRACE_MS),
                granted(S2, 2, T0 + 1, GRACE_MS)
            ]
        );
        assert_eq!(
            rig.release(S1, 9, "a", T0),
            [released(S1, 9), granted(S3, 3, T0 + 2, GRACE_MS)]
        );
    }
}

mod release_and_extend {
    use super::*;

    #[test]
    fn are_not_held_by_any_token() {
        for mut rig in [in_grace(), full_in_grace()] {
            let queued = rig.engine.waiting();
            for token in [0, 1, T0 - 1, T0, u64::MAX] {
                assert_eq!(rig.release(S1, 9, "k", token), [not_held(S1, 9)]);
                assert_eq!(rig.extend(S1, 9, "k", token, 20_000), [not_held(S1, 9)]);
            }
            assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS, queued)]);
        }
    }
}

mod cancel {
    use super::*;

    #[test]
    fn times_the_queued_acquire_out_and_then_confirms() {
        let mut rig = full_in_grace();
        assert_eq!(
            rig.cancel(S2, 9, "k", 2),
            [timed_out(S2, 2), cancel_done(S2, 9, true)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS, 1)]);
        assert_eq!(rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)), []);
    }

    #[test]
    fn of_the_last_waiter_leaves_nothing() {
        const KEY: &str = "a key too long to lie in its entry";
        let mut rig = in_grace();
        // The first leaves the pages that it needed, for the next.
        let bytes = [(); 2].map(|()| {
            assert_eq!(rig.acquire(S2, 2, KEY, PATIENT), []);
            let bytes = rig.engine.memory_bytes();
            assert_eq!(
                rig.cancel(S2, 9, KEY, 2),
                [timed_out(S2, 2), cancel_done(S2, 9, true)]
            );
            assert_nothing_is_kept(&rig);
            (bytes, rig.engine.memory_bytes())
        });
        assert_eq!(bytes[0], bytes[1]);
        assert!(bytes[0].0 > bytes[0].1, "the key itself is gone");
    }

    #[test]
    fn of_no_such_acquire_confirms_nothing() {
        let mut rig = in_grace();
        assert_eq!(rig.cancel(S2, 9, "k", 2), [cancel_done(S2, 9, false)]);
        assert_nothing_is_kept(&rig);
        let mut rig = full_in_grace();
        assert_eq!(rig.cancel(S3, 9, "k", 2), [cancel_done(S3, 9, false)]);
        assert_eq!(rig.cancel(S2, 9, "k", 3), [cancel_done(S2, 9, false)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS, 2)]);
    }
}

mod query {
    use super::*;

    #[test]
    fn tells_held_and_what_is_left_of_grace_rounded_up() {
        let mut rig = in_grace();
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS, 0)]);
        rig.pass_nanos(1);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS, 0)]);
        rig.pass_nanos(NANOS_PER_MS - 1);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS - 1, 0)]);
        rig.pass_ms(u64::from(GRACE_MS) - 2);
        rig.pass_nanos(NANOS_PER_MS - 1);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 1, 0)]);
        rig.pass_nanos(1);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
        assert_nothing_is_kept(&rig);
    }

    #[test]
    fn tells_the_queue_s_length_without_waits_that_are_over() {
        let mut rig = full_in_grace();
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS, 2)]);
        rig.pass_ms(WAIT_MS.into());
        assert_eq!(
            rig.query(S1, 8, "k"),
            [
                timed_out(S2, 2),
                timed_out(S3, 3),
                held(S1, 8, GRACE_MS - WAIT_MS, 0)
            ]
        );
        assert_nothing_is_kept(&rig);
    }

    #[test]
    fn tells_at_most_what_the_field_takes() {
        let fifty_days_ms = 50 * 24 * 60 * 60 * 1_000;
        let mut rig = Rig::restarted(UNLIMITED, fifty_days_ms * NANOS_PER_MS, CAP_MS);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, u32::MAX, 0)]);
    }
}

mod wait_ends {
    use super::*;

    #[test]
    fn times_out_that_one_and_the_rest_keep_their_order() {
        let mut rig = rig_with(UNLIMITED);
        rig.acquire(S2, 2, "k", PATIENT);
        rig.acquire(S3, 3, "k", (3_000, 70));
        rig.acquire(S4, 4, "k", PATIENT);
        rig.pass_ms(3_000);
        assert_eq!(rig.timeouts(), [timed_out(S3, 3)]);
        rig.pass_ms(5_000);
        assert_eq!(rig.timeouts(), [granted(S2, 2, T0, GRACE_MS)]);
        assert_eq!(
            rig.release(S2, 9, "k", T0),
            [released(S2, 9), granted(S4, 4, T0 + 1, GRACE_MS)]
        );
    }

    #[test]
    fn of_the_last_waiter_leaves_nothing() {
        let mut rig = full_in_grace();
        rig.pass_ms(WAIT_MS.into());
        assert_eq!(rig.timeouts(), [timed_out(S2, 2), timed_out(S3, 3)]);
        assert_nothing_is_kept(&rig);
        assert_eq!(
            rig.engine.poll_timeout(),
            None,
            "grace itself has nothing due"
        );
    }

    /// A full session's waits on other keys are answered before it is refused; nothing
    /// stays of those keys.
    #[test]
    fn leaves_nothing_where_its_session_asks_elsewhere() {
        let mut rig = rig_with(EngineLimits {
            max_session_waiters: 1,
            ..UNLIMITED
        });
        // Over before a timer's tick shows it.
        rig.pass_nanos(1);
        rig.acquire(S2, 2, "k", (1, LEASE_MS));
        rig.pass_nanos(NANOS_PER_MS);
        assert_eq!(rig.acquire(S2, 3, "other", PATIENT), [timed_out(S2, 2)]);
        assert_eq!((rig.engine.keys(), rig.engine.waiting()), (1, 1));
        assert_eq!(
            rig.cancel(S2, 4, "other", 3),
            [timed_out(S2, 3), cancel_done(S2, 4, true)]
        );
        assert_nothing_is_kept(&rig);
    }
}

mod session_ends {
    use super::*;

    #[test]
    fn its_queued_acquires_leave_and_nothing_is_kept() {
        for end in [SessionEnd::Orderly, SessionEnd::Broken] {
            let mut rig = in_grace();
            rig.closers = vec![S2];
            rig.acquire(S2, 2, "k", PATIENT);
            rig.acquire(S2, 3, "other", PATIENT);
            let answers = match end {
                SessionEnd::Orderly => vec![timed_out(S2, 2), timed_out(S2, 3)],
                SessionEnd::Broken => vec![],
            };
            assert_eq!(rig.end(S2, end), answers);
            assert_nothing_is_kept(&rig);
            rig.pass_ms(GRACE_MS.into());
            assert_eq!(rig.timeouts(), []);
        }
    }

    #[test]
    fn others_stay_queued() {
        let mut rig = in_grace();
        rig.acquire(S2, 2, "k", PATIENT);
        rig.acquire(S3, 3, "k", PATIENT);
        rig.end(S2, SessionEnd::Broken);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, GRACE_MS, 1)]);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(rig.timeouts(), [granted(S3, 3, T0, GRACE_MS)]);
    }
}

mod drain {
    use super::*;
    use ErrorCode::ShuttingDown;

    #[test]
    fn refuses_acquires_and_answers_what_is_queued() {
        let mut rig = full_in_grace();
        rig.engine.handle_drain();
        assert_eq!(
            rig.timeouts(),
            [refused(S2, 2, ShuttingDown), refused(S3, 3, ShuttingDown)]
        );
        assert_nothing_is_kept(&rig);
        for wait_ms in [0, WAIT_MS] {
            assert_eq!(
                rig.acquire(S4, 4, "k", (wait_ms, LEASE_MS)),
                [refused(S4, 4, ShuttingDown)]
            );
        }
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, GRACE_MS, 0)]);
        assert_eq!(rig.cancel(S2, 9, "k", 2), [cancel_done(S2, 9, false)]);
    }

    /// Whatever touches the key first answers its queue.
    #[test]
    fn answers_the_queue_at_the_first_touch_and_nothing_is_kept() {
        type Touch = fn(&mut Rig) -> Vec<Event>;
        let touches: [(Touch, Event); 4] = [
            (|rig| rig.query(S4, 8, "k"), held(S4, 8, GRACE_MS, 0)),
            (|rig| rig.release(S4, 8, "k", T0), not_held(S4, 8)),
            (|rig| rig.extend(S4, 8, "k", T0, 1), not_held(S4, 8)),
            (|rig| rig.cancel(S2, 8, "k", 2), cancel_done(S2, 8, false)),
        ];
        for (touch, answer) in touches {
            let mut rig = full_in_grace();
            rig.engine.handle_drain();
            let refusals = [refused(S2, 2, ShuttingDown), refused(S3, 3, ShuttingDown)];
            assert_eq!(touch(&mut rig), [refusals[0], refusals[1], answer]);
            assert_nothing_is_kept(&rig);
        }
        let mut rig = full_in_grace();
        rig.engine.handle_drain();
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        assert_eq!(rig.came_out().len(), 2);
        assert_nothing_is_kept(&rig);
    }

    /// Scenario 55: the next start has to wait for what this one still waited for.
    #[test]
    fn leaves_the_rest_of_grace_to_the_next_start() {
        let mut rig = in_grace();
        let grace_end = rig.now.plus_millis(GRACE_MS.into());
        rig.pass_ms(1_000);
        rig.engine.handle_drain();
        assert_eq!(rig.engine.last_deadline(), grace_end);
    }

    #[test]
    fn leaves_the_longest_lease_that_is_not_recorded_to_the_next_start() {
        let mut rig = rig_with(UNLIMITED);
        rig.pass_ms(GRACE_MS.into());
        rig.acquire(S1, 1, "k", (0, LEASE_MS));
        rig.acquire(S1, 2, "l", (0, LEASE_MS - 1));
        rig.dlm_lock("m", "A", CAP_MS);
        rig.dlm_lock("n", "A", CAP_MS + 1);
        rig.engine.handle_drain();
        let (now, cap_end) = (rig.now, rig.now.plus_millis(CAP_MS));
        assert_eq!(rig.engine.last_deadline(), cap_end);
        // Leases are extended during a drain.
        rig.pass_ms(1_000);
        assert_eq!(
            rig.extend(S1, 9, "k", T0, 400_000),
            [extended(S1, 9, 400_000)]
        );
        assert_eq!(rig.engine.last_deadline(), now.plus_millis(401_000));
    }
}

mod dlm {
    use super::*;

    #[test]
    fn lock_and_test_are_not_the_owner_s() {
        for mut rig in [in_grace(), full_in_grace()] {
            let before = rig.engine.keys();
            assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
            assert_eq!(rig.test_as("A"), DlmTest::NotOwner);
            assert_eq!(rig.engine.keys(), before);
        }
    }

    /// Unlocked already, as far as anybody here knows: and nobody is granted by it.
    #[test]
    fn unlock_is_unlocked_and_changes_nothing() {
        let mut rig = in_grace();
        assert_eq!(rig.unlock_as("A"), DlmUnlock::Absent);
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        assert_nothing_is_kept(&rig);
        let mut rig = full_in_grace();
        assert_eq!(rig.unlock_as("A"), DlmUnlock::Absent);
        assert_eq!(rig.came_out(), []);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, GRACE_MS, 2)]);
    }

    #[test]
    fn data_is_another_slot() {
        let mut rig = in_grace();
        let holder = as_holder("A");
        let (now, out) = (rig.now, &mut rig.recorder);
        assert_eq!(
            rig.engine.handle_dlm_get(now, b"k", holder, out),
            DlmGet::NotFound
        );
        assert_eq!(
            rig.engine.handle_dlm_erase(now, b"k", holder),
            DlmErase::NotFound
        );
        let put = rig
            .engine
            .handle_dlm_put(now, b"k", holder, 1_000, "data".into(), out);
        // It tells of no lease.
        assert_eq!(put, DlmPut::Done.into());
        assert_eq!(
            rig.engine.handle_dlm_get(now, b"k", holder, out),
            DlmGet::Done("data")
        );
        assert_eq!(
            rig.engine.handle_dlm_get(now, b"k", as_holder("B"), out),
            DlmGet::NotOwner
        );
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        let (now, out) = (rig.now, &mut rig.recorder);
        assert_eq!(
            rig.engine.handle_dlm_erase(now, b"k", holder),
            DlmErase::Done
        );
        assert_eq!(
            rig.engine.handle_dlm_get(now, b"k", holder, out),
            DlmGet::NotFound
        );
    }

    #[test]
    fn lock_is_granted_at_the_end_of_grace_where_nobody_waits() {
        let mut rig = in_grace();
        rig.pass_ms(u64::from(GRACE_MS) - 1);
        rig.pass_nanos(NANOS_PER_MS - 1);
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        rig.pass_nanos(1);
        assert_eq!(rig.test_as("A"), DlmTest::Free);
        assert_eq!(rig.lock_as("A"), DlmLock::Locked);
        let mut rig = rig_with(UNLIMITED);
        rig.acquire(S2, 2, "k", PATIENT);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        assert_eq!(rig.came_out(), [granted(S2, 2, T0, GRACE_MS)]);
    }
}

/// `--expiry-grace-ms` is another grace: it begins when a lease of this server ends.
mod expiry_grace {
    use super::*;

    fn limits() -> EngineLimits {
        EngineLimits {
            expiry_grace_ms: 3_000,
            ..UNLIMITED
        }
    }

    #[test]
    fn does_not_follow_the_restart_s() {
        let mut rig = rig_with(limits());
        rig.acquire(S2, 2, "k", PATIENT);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(rig.timeouts(), [granted(S2, 2, T0, GRACE_MS)]);
        assert_eq!(rig.acquire(S1, 1, "l", LEASE), [granted(S1, 1, T0 + 1, 0)]);
    }

    /// It is known whose the key was: an Unlock is `NotOwner`, though it ends together
    /// with the restart's grace.
    #[test]
    fn follows_a_lease_that_was_recorded() {
        let mut rig = rig_with(limits());
        rig.restore("k", "A", 5_000);
        rig.pass_ms(5_000);
        assert_eq!(rig.unlock_as("A"), DlmUnlock::NotOwner);
        assert_eq!(rig.test_as("A"), DlmTest::NotOwner);
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        assert_eq!((rig.engine.keys(), rig.engine.held()), (1, 0));
        assert_eq!(rig.acquire(S2, 2, "k", (1_000, LEASE_MS)), []);
        assert_eq!(
            rig.cancel(S2, 9, "k", 2),
            [timed_out(S2, 2), cancel_done(S2, 9, true)]
        );
        assert_eq!(rig.unlock_as("A"), DlmUnlock::NotOwner);
        rig.pass_ms(3_000);
        assert_eq!(rig.timeouts(), []);
        assert_eq!(rig.unlock_as("A"), DlmUnlock::Absent);
        assert_nothing_is_kept(&rig);
    }
}

/// Keys whose records say who held them.
mod restored {
    use super::*;

    #[test]
    fn is_held_by_its_holder_from_the_start() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 400_000);
        assert_eq!((rig.engine.keys(), rig.engine.held()), (1, 1));
        assert_eq!(rig.test_as("A"), DlmTest::Own);
        assert_eq!(rig.test_as("B"), DlmTest::NotOwner);
        assert_eq!(rig.lock_as("B"), DlmLock::NotOwner);
        assert_eq!(rig.unlock_as("B"), DlmUnlock::NotOwner);
        assert_eq!(rig.acquire(S1, 1, "k", (0, 1)), [timed_out(S1, 1)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 400_000, 0)]);
        // Restart's grace is not about this key.
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(rig.timeouts(), []);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 392_000, 0)]);
    }

    /// An identity that was proved is asked for again.
    #[test]
    fn is_held_by_the_identity_that_was_recorded() {
        let mut rig = rig_with(UNLIMITED);
        let record = LeaseRecord {
            name: Some("name".into()),
            ..record_of(&rig, "k", "A", 400_000)
        };
        rig.engine.restore(&record);
        assert_eq!(rig.test_as("A"), DlmTest::NotOwner);
        let named = DlmHolder {
            id: "A",
            name: Some("name"),
        };
        let (now, out) = (rig.now, &mut rig.recorder);
        assert_eq!(
            rig.engine.handle_dlm_test(now, b"k", named, out),
            DlmTest::Own
        );
    }

    #[test]
    fn is_renewed_in_grace_and_never_shortened() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 400_000);
        assert_eq!(rig.lock_as("A"), DlmLock::Locked);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 400_000, 0)]);
        assert_eq!(rig.dlm_lock("k", "A", 500_000), DlmLock::Locked);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 500_000, 0)]);
    }

    /// Unlocked in grace, the key has no entry: until grace ends it counts as unknown.
    #[test]
    fn is_unknown_once_it_is_unlocked_in_grace() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 400_000);
        rig.pass_ms(1_000);
        assert_eq!(rig.unlock_as("A"), DlmUnlock::Unlocked);
        assert_nothing_is_kept(&rig);
        assert_eq!(rig.lock_as("A"), DlmLock::NotOwner);
        assert_eq!(rig.acquire(S1, 1, "k", (0, 1)), [timed_out(S1, 1)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, GRACE_MS - 1_000, 0)]);
        rig.pass_ms(7_000);
        assert_eq!(rig.lock_as("A"), DlmLock::Locked);
    }

    /// Those who wait are granted as ever: the record said that nobody else had it.
    #[test]
    fn is_handed_on_in_grace() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 400_000);
        rig.restore("l", "A", 2_000);
        rig.acquire(S2, 2, "k", PATIENT);
        rig.acquire(S3, 3, "l", PATIENT);
        rig.pass_ms(1_000);
        assert_eq!(rig.unlock_as("A"), DlmUnlock::Unlocked);
        assert_eq!(rig.came_out(), [granted(S2, 2, T0 + 2, 1_000)]);
        rig.pass_ms(1_000);
        assert_eq!(rig.timeouts(), [granted(S3, 3, T0 + 3, 2_000)]);
        // Released again in grace, it has no entry.
        assert_eq!(rig.release(S3, 9, "l", T0 + 3), [released(S3, 9)]);
        assert_eq!(rig.acquire(S1, 1, "l", (0, 1)), [timed_out(S1, 1)]);
    }

    #[test]
    fn expires_in_grace_and_after_it() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 2_000);
        rig.restore("l", "A", 9_000);
        rig.pass_ms(2_000);
        assert_eq!(rig.timeouts(), []);
        assert_eq!(rig.test_as("A"), DlmTest::NotOwner);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 6_000, 0)]);
        assert_eq!(rig.query(S1, 8, "l"), [held(S1, 8, 7_000, 0)]);
        rig.pass_ms(7_000);
        assert_eq!(rig.timeouts(), []);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
        assert_eq!(rig.query(S1, 8, "l"), [free(S1, 8)]);
        assert_nothing_is_kept(&rig);
    }

    /// The lease was over before the start: the record's deadline is behind it.
    #[test]
    fn is_over_at_once_where_its_lease_is() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 0);
        assert_eq!(rig.test_as("A"), DlmTest::NotOwner);
        assert_nothing_is_kept(&rig);
    }

    #[test]
    fn may_be_more_than_the_limits_allow_now() {
        let mut rig = rig_with(EngineLimits {
            max_keys: 1,
            ..UNLIMITED
        });
        for key in ["k", "l", "m"] {
            rig.restore(key, "A", 400_000);
        }
        assert_eq!(rig.engine.held(), 3);
        rig.pass_ms(GRACE_MS.into());
        assert_eq!(rig.acquire(S1, 1, "n", LEASE), [refused(S1, 1, OVERLOADED)]);
        assert_eq!(rig.dlm_lock("n", "B", 1_000), DlmLock::Overloaded);
        // Its holder is served all the same.
        assert_eq!(rig.dlm_lock("k", "A", 500_000), DlmLock::Locked);
        assert_eq!(rig.unlock_as("A"), DlmUnlock::Unlocked);
        assert_eq!(rig.acquire(S1, 2, "n", LEASE), [refused(S1, 2, OVERLOADED)]);
        for key in ["l", "m"] {
            let (now, out) = (rig.now, &mut rig.recorder);
            rig.engine
                .handle_dlm_unlock(now, key.as_bytes(), as_holder("A"), out);
        }
        assert_eq!(rig.acquire(S1, 3, "n", LEASE), [granted(S1, 3, T0 + 3, 0)]);
    }

    /// A later grant's token is larger than the one that the restored lease took.
    #[test]
    fn takes_a_token_of_its_own() {
        let mut rig = rig_with(UNLIMITED);
        rig.restore("k", "A", 2_000);
        rig.acquire(S2, 2, "k", PATIENT);
        rig.pass_ms(2_000);
        assert_eq!(rig.timeouts(), [granted(S2, 2, T0 + 1, 2_000)]);
    }
}

fn as_holder(id: &str) -> DlmHolder<'_> {
    DlmHolder { id, name: None }
}

fn record_of(rig: &Rig, key: &str, id: &str, left_ms: u64) -> LeaseRecord {
    LeaseRecord {
        key: key.as_bytes().into(),
        id: id.into(),
        name: None,
        deadline: rig.now.plus_millis(left_ms),
        length_ms: 500_000,
    }
}

impl Rig {
    fn restore(&mut self, key: &str, id: &str, left_ms: u64) {
        let record = record_of(self, key, id, left_ms);
        self.engine.restore(&record);
        self.engine.invariants();
    }

    /// Lock of "k" for a lease that is not recorded.
    fn lock_as(&mut self, id: &str) -> DlmLock {
        let answer = self.dlm_lock("k", id, 1_000);
        self.engine.invariants();
        answer
    }

    fn unlock_as(&mut self, id: &str) -> DlmUnlock {
        let (now, out) = (self.now, &mut self.recorder);
        let answer = self.engine.handle_dlm_unlock(now, b"k", as_holder(id), out);
        self.engine.invariants();
        answer.came_to
    }

    fn test_as(&mut self, id: &str) -> DlmTest {
        let (now, out) = (self.now, &mut self.recorder);
        let answer = self.engine.handle_dlm_test(now, b"k", as_holder(id), out);
        self.engine.invariants();
        answer
    }
}
