//! Every cell of the request × key-state matrix of docs/protocol.md, except the
//! grace column, under the cell's own name.
//!
//! In all of them S1 holds "k" with a lease of 10 s, granted at second 0 under
//! token T0; "full" has S2 and S3 queued for 5 s each, which is all the queue takes.

use super::*;
use ErrorCode::ShuttingDown;

const LEASE_MS: u32 = 10_000;
const WAIT_MS: u32 = 5_000;

/// Nobody holds "k".
fn key_free() -> Rig {
    Rig::new(EngineLimits {
        max_waiters_per_key: 2,
        ..UNLIMITED
    })
}

/// S1 holds "k", nobody waits.
fn key_held() -> Rig {
    let mut rig = key_free();
    assert_eq!(
        rig.acquire(S1, 1, "k", (0, LEASE_MS)),
        [granted(S1, 1, T0, 0)]
    );
    rig
}

/// S1 holds "k", the queue is full.
fn key_full() -> Rig {
    let mut rig = key_held();
    assert_eq!(rig.acquire(S2, 2, "k", (WAIT_MS, LEASE_MS)), []);
    assert_eq!(rig.acquire(S3, 3, "k", (WAIT_MS, LEASE_MS)), []);
    rig
}

fn draining(mut rig: Rig) -> Rig {
    rig.engine.handle_drain();
    rig.engine.invariants();
    rig
}

mod acquire_without_wait {
    use super::*;

    #[test]
    fn free_is_granted() {
        let mut rig = key_free();
        assert_eq!(rig.acquire(S1, 7, "k", (0, 1)), [granted(S1, 7, T0, 0)]);
        assert_eq!(rig.query(S2, 8, "k"), [held(S2, 8, 1, 0)]);
    }

    #[test]
    fn held_times_out_at_once() {
        let mut rig = key_held();
        assert_eq!(rig.acquire(S2, 2, "k", (0, LEASE_MS)), [timed_out(S2, 2)]);
        assert_eq!(rig.query(S2, 8, "k"), [held(S2, 8, LEASE_MS, 0)]);
    }

    #[test]
    fn full_times_out_at_once() {
        let mut rig = key_full();
        assert_eq!(rig.acquire(S4, 4, "k", (0, LEASE_MS)), [timed_out(S4, 4)]);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, LEASE_MS, 2)]);
    }

    #[test]
    fn draining_is_refused() {
        for mut rig in [key_free(), key_held(), key_full()].map(draining) {
            assert_eq!(
                rig.acquire(S4, 4, "k", (0, LEASE_MS)),
                [refused(S4, 4, ShuttingDown)]
            );
        }
    }
}

mod acquire_with_wait {
    use super::*;

    #[test]
    fn free_is_granted() {
        let mut rig = key_free();
        assert_eq!(
            rig.acquire(S1, 7, "k", (WAIT_MS, 1)),
            [granted(S1, 7, T0, 0)]
        );
        assert_eq!(rig.query(S2, 8, "k"), [held(S2, 8, 1, 0)]);
    }

    #[test]
    fn held_joins_the_end_of_the_queue_and_is_granted_later() {
        let mut rig = key_held();
        assert_eq!(rig.acquire(S2, 2, "k", (WAIT_MS, LEASE_MS)), []);
        assert_eq!(rig.acquire(S3, 3, "k", (WAIT_MS, LEASE_MS)), []);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, LEASE_MS, 2)]);
        rig.pass_ms(1500);
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [released(S1, 9), granted(S2, 2, T0 + 1, 1500)]
        );
        assert_eq!(
            rig.release(S2, 9, "k", T0 + 1),
            [released(S2, 9), granted(S3, 3, T0 + 2, 1500)]
        );
    }

    #[test]
    fn held_joins_the_queue_and_times_out_later() {
        let mut rig = key_held();
        assert_eq!(rig.acquire(S2, 2, "k", (WAIT_MS, LEASE_MS)), []);
        rig.pass_ms(u64::from(WAIT_MS));
        assert_eq!(rig.timeouts(), [timed_out(S2, 2)]);
    }

    #[test]
    fn full_is_busy() {
        let mut rig = key_full();
        assert_eq!(rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)), [busy(S4, 4)]);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, LEASE_MS, 2)]);
    }

    #[test]
    fn draining_is_refused() {
        for mut rig in [key_free(), key_held(), key_full()].map(draining) {
            assert_eq!(
                rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)),
                [refused(S4, 4, ShuttingDown)]
            );
        }
    }
}

mod release_with_the_token {
    use super::*;

    #[test]
    fn held_is_released_and_free() {
        let mut rig = key_held();
        assert_eq!(rig.release(S1, 9, "k", T0), [released(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
    }

    #[test]
    fn held_is_released_by_whoever_knows_the_token() {
        let mut rig = key_held();
        assert_eq!(rig.release(S4, 9, "k", T0), [released(S4, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
    }

    #[test]
    fn full_is_released_and_the_next_waiter_is_granted() {
        let mut rig = key_full();
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [released(S1, 9), granted(S2, 2, T0 + 1, 0)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 1)]);
    }

    #[test]
    fn draining_is_released_and_nobody_is_granted() {
        let mut rig = draining(key_full());
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [
                refused(S2, 2, ShuttingDown),
                refused(S3, 3, ShuttingDown),
                released(S1, 9)
            ]
        );
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
    }
}

mod release_with_another_token {
    use super::*;

    #[test]
    fn free_is_not_held() {
        let mut rig = key_free();
        assert_eq!(rig.release(S1, 9, "k", T0), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
    }

    #[test]
    fn held_is_not_held_and_nothing_changes() {
        let mut rig = key_held();
        for token in [0, 1, T0 - 1, T0 + 1, u64::MAX] {
            assert_eq!(rig.release(S1, 9, "k", token), [not_held(S1, 9)]);
            assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
        }
    }

    #[test]
    fn full_is_not_held_and_nothing_changes() {
        let mut rig = key_full();
        assert_eq!(rig.release(S1, 9, "k", T0 + 1), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 2)]);
    }

    #[test]
    fn draining_is_not_held() {
        let mut rig = draining(key_held());
        assert_eq!(rig.release(S1, 9, "k", T0 + 1), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
    }
}

mod extend_with_the_token {
    use super::*;

    #[test]
    fn held_gets_the_later_deadline() {
        let mut rig = key_held();
        rig.pass_ms(4_000);
        assert_eq!(
            rig.extend(S1, 9, "k", T0, 20_000),
            [extended(S1, 9, 20_000)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 20_000, 0)]);
    }

    #[test]
    fn held_is_never_shortened() {
        let mut rig = key_held();
        rig.pass_ms(4_000);
        assert_eq!(rig.extend(S1, 9, "k", T0, 1), [extended(S1, 9, 6_000)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 6_000, 0)]);
    }

    #[test]
    fn full_gets_the_later_deadline_and_the_queue_stays() {
        let mut rig = key_full();
        rig.pass_ms(4_000);
        assert_eq!(
            rig.extend(S1, 9, "k", T0, 20_000),
            [extended(S1, 9, 20_000)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 20_000, 2)]);
    }

    #[test]
    fn draining_gets_the_later_deadline() {
        let mut rig = draining(key_held());
        rig.pass_ms(4_000);
        assert_eq!(
            rig.extend(S1, 9, "k", T0, 20_000),
            [extended(S1, 9, 20_000)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 20_000, 0)]);
    }
}

mod extend_with_another_token {
    use super::*;

    #[test]
    fn free_is_not_held() {
        let mut rig = key_free();
        assert_eq!(rig.extend(S1, 9, "k", T0, 20_000), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
    }

    #[test]
    fn held_is_not_held_and_nothing_changes() {
        let mut rig = key_held();
        assert_eq!(rig.extend(S1, 9, "k", T0 + 1, 20_000), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
    }

    #[test]
    fn full_is_not_held_and_nothing_changes() {
        let mut rig = key_full();
        assert_eq!(rig.extend(S1, 9, "k", T0 + 1, 20_000), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 2)]);
    }

    #[test]
    fn draining_is_not_held() {
        let mut rig = draining(key_held());
        assert_eq!(rig.extend(S1, 9, "k", T0 + 1, 20_000), [not_held(S1, 9)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
    }
}

mod cancel_of_a_queued_acquire {
    use super::*;

    #[test]
    fn held_times_it_out_and_then_confirms() {
        let mut rig = key_held();
        assert_eq!(rig.acquire(S2, 2, "k", (WAIT_MS, LEASE_MS)), []);
        assert_eq!(
            rig.cancel(S2, 9, "k", 2),
            [timed_out(S2, 2), cancel_done(S2, 9, true)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
    }

    #[test]
    fn held_takes_the_oldest_of_several() {
        let mut rig = Rig::new(UNLIMITED);
        rig.acquire(S1, 1, "k", (0, LEASE_MS));
        rig.acquire(S2, 5, "k", (WAIT_MS, 111));
        rig.acquire(S2, 6, "k", (WAIT_MS, 222));
        rig.acquire(S2, 5, "k", (WAIT_MS, 333));
        assert_eq!(
            rig.cancel(S2, 9, "k", 5),
            [timed_out(S2, 5), cancel_done(S2, 9, true)]
        );
        rig.release(S1, 9, "k", T0);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 222, 1)]);
        rig.release(S2, 9, "k", T0 + 1);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 333, 0)]);
    }

    #[test]
    fn full_times_it_out_and_makes_room() {
        let mut rig = key_full();
        assert_eq!(
            rig.cancel(S2, 9, "k", 2),
            [timed_out(S2, 2), cancel_done(S2, 9, true)]
        );
        assert_eq!(rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)), []);
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [released(S1, 9), granted(S3, 3, T0 + 1, 0)]
        );
    }
}

mod cancel_of_no_such_acquire {
    use super::*;

    #[test]
    fn free_confirms_nothing() {
        let mut rig = key_free();
        assert_eq!(rig.cancel(S2, 9, "k", 2), [cancel_done(S2, 9, false)]);
    }

    #[test]
    fn held_confirms_nothing_for_the_holders_own_acquire() {
        let mut rig = key_held();
        assert_eq!(rig.cancel(S1, 9, "k", 1), [cancel_done(S1, 9, false)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
    }

    #[test]
    fn held_confirms_nothing_for_another_key() {
        let mut rig = key_held();
        rig.acquire(S1, 1, "other", (0, LEASE_MS));
        rig.acquire(S2, 2, "other", (WAIT_MS, LEASE_MS));
        assert_eq!(rig.cancel(S2, 9, "k", 2), [cancel_done(S2, 9, false)]);
        assert_eq!(rig.query(S1, 8, "other"), [held(S1, 8, LEASE_MS, 1)]);
    }

    #[test]
    fn full_confirms_nothing_for_another_session_or_owner() {
        let mut rig = key_full();
        assert_eq!(rig.cancel(S3, 9, "k", 2), [cancel_done(S3, 9, false)]);
        assert_eq!(rig.cancel(S2, 9, "k", 3), [cancel_done(S2, 9, false)]);
        assert_eq!(rig.cancel(S4, 9, "k", 2), [cancel_done(S4, 9, false)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 2)]);
    }

    #[test]
    fn draining_confirms_nothing() {
        for mut rig in [key_free(), key_held()].map(draining) {
            assert_eq!(rig.cancel(S2, 9, "k", 2), [cancel_done(S2, 9, false)]);
        }
        let mut rig = draining(key_full());
        assert_eq!(
            rig.cancel(S2, 9, "k", 2),
            [
                refused(S2, 2, ShuttingDown),
                refused(S3, 3, ShuttingDown),
                cancel_done(S2, 9, false)
            ]
        );
    }
}

mod query {
    use super::*;

    #[test]
    fn free_tells_nothing_held() {
        assert_eq!(key_free().query(S1, 8, "k"), [free(S1, 8)]);
    }

    #[test]
    fn held_tells_what_remains_rounded_up() {
        let mut rig = key_held();
        rig.pass_nanos(1);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 0)]);
        rig.pass_nanos(999_999);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, LEASE_MS - 1, 0)]);
        rig.pass_ms(u64::from(LEASE_MS) - 2);
        rig.pass_nanos(999_999);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 1, 0)]);
    }

    #[test]
    fn held_tells_at_most_what_the_field_takes() {
        let mut rig = key_free();
        let fifty_days_ms = 50 * 24 * 60 * 60 * 1000;
        rig.dlm_lock("k", "id", fifty_days_ms);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, u32::MAX, 0)]);
    }

    #[test]
    fn full_tells_the_queue_length() {
        assert_eq!(key_full().query(S1, 8, "k"), [held(S1, 8, LEASE_MS, 2)]);
    }

    #[test]
    fn draining_tells_the_same() {
        assert_eq!(draining(key_free()).query(S1, 8, "k"), [free(S1, 8)]);
        assert_eq!(
            draining(key_held()).query(S1, 8, "k"),
            [held(S1, 8, LEASE_MS, 0)]
        );
    }
}

mod lease_expires {
    use super::*;

    #[test]
    fn held_becomes_free_if_nobody_waits() {
        let mut rig = key_held();
        rig.pass_ms(u64::from(LEASE_MS));
        assert_eq!(rig.timeouts(), []);
        assert_eq!((rig.engine.keys(), rig.engine.held()), (0, 0));
        assert_eq!(rig.release(S1, 9, "k", T0), [not_held(S1, 9)]);
    }

    #[test]
    fn held_passes_to_the_next_waiter() {
        let mut rig = key_held();
        let wait_ms = LEASE_MS + 1;
        assert_eq!(rig.acquire(S2, 2, "k", (wait_ms, 70)), []);
        assert_eq!(rig.acquire(S3, 3, "k", (wait_ms, 70)), []);
        rig.pass_ms(u64::from(LEASE_MS));
        assert_eq!(rig.timeouts(), [granted(S2, 2, T0 + 1, LEASE_MS)]);
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 70, 1)]);
    }

    #[test]
    fn held_passes_on_before_a_request_is_looked_at() {
        let mut rig = key_held();
        assert_eq!(rig.acquire(S2, 2, "k", (LEASE_MS + 1, 70)), []);
        rig.pass_ms(u64::from(LEASE_MS));
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [granted(S2, 2, T0 + 1, LEASE_MS), not_held(S1, 9)]
        );
    }

    #[test]
    fn full_passes_to_the_next_waiter_and_has_room() {
        let mut rig = key_held();
        let wait_ms = LEASE_MS + 1;
        assert_eq!(rig.acquire(S2, 2, "k", (wait_ms, 70)), []);
        assert_eq!(rig.acquire(S3, 3, "k", (wait_ms, 70)), []);
        rig.pass_ms(u64::from(LEASE_MS));
        assert_eq!(
            rig.acquire(S4, 4, "k", (WAIT_MS, 70)),
            [granted(S2, 2, T0 + 1, LEASE_MS)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 70, 2)]);
    }

    #[test]
    fn draining_becomes_free() {
        let mut rig = key_held();
        let wait_ms = LEASE_MS + 1;
        assert_eq!(rig.acquire(S2, 2, "k", (wait_ms, 70)), []);
        let mut rig = draining(rig);
        rig.pass_ms(u64::from(LEASE_MS));
        assert_eq!(rig.timeouts(), [refused(S2, 2, ShuttingDown)]);
        assert_eq!(rig.engine.keys(), 0);
        assert_eq!(rig.query(S1, 8, "k"), [free(S1, 8)]);
    }
}

mod wait_ends {
    use super::*;

    #[test]
    fn held_times_out_that_one_and_the_rest_keep_their_order() {
        let mut rig = Rig::new(UNLIMITED);
        rig.acquire(S1, 1, "k", (0, LEASE_MS));
        rig.acquire(S2, 2, "k", (5_000, 70));
        rig.acquire(S3, 3, "k", (3_000, 70));
        rig.acquire(S4, 4, "k", (5_000, 70));
        rig.pass_ms(3_000);
        assert_eq!(rig.timeouts(), [timed_out(S3, 3)]);
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [released(S1, 9), granted(S2, 2, T0 + 1, 3_000)]
        );
        assert_eq!(
            rig.release(S2, 9, "k", T0 + 1),
            [released(S2, 9), granted(S4, 4, T0 + 2, 3_000)]
        );
    }

    #[test]
    fn full_times_out_that_one_and_has_room() {
        let mut rig = key_full();
        rig.pass_ms(u64::from(WAIT_MS));
        assert_eq!(rig.timeouts(), [timed_out(S2, 2), timed_out(S3, 3)]);
        assert_eq!(rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)), []);
    }

    #[test]
    fn full_drops_waits_that_are_over_before_it_counts_as_full() {
        let mut rig = key_full();
        rig.pass_ms(u64::from(WAIT_MS));
        assert_eq!(
            rig.acquire(S4, 4, "k", (WAIT_MS, LEASE_MS)),
            [timed_out(S2, 2), timed_out(S3, 3)]
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 5_000, 1)]);
    }
}
