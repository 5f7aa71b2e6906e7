//! What a restart has to know, beside grace: which leases are recorded one by one, what
//! replies wait for, what becomes of a grant whose reply could not be sent, and how far
//! tokens go.

use super::*;
use crate::durability::{LeaseRecord, RecordChange};
use crate::engine::{DlmOutcome, DlmPut, DlmTest, DlmUnlock};

/// DLM leases longer than this are recorded.
const CAP_MS: u64 = 300_000;
const LONG_MS: u64 = CAP_MS + 1;
const SHORT_MS: u64 = 1_000;

const NOTHING: Needs = Needs {
    lease_ms: 0,
    change: 0,
};

fn needs(lease_ms: u64, change: u64) -> Needs {
    Needs { lease_ms, change }
}

fn durable(now: Time, mark: u64) -> Durable {
    Durable {
        d_ms: 0,
        cap_ms: CAP_MS,
        mark,
        token_block: TOKEN_BLOCK,
        started_at: now,
        grace_end: Time::ZERO,
    }
}

/// At most `max_pending` changes of records may be under way.
fn rig_with(max_pending: usize) -> Rig {
    let rig = Rig::new(UNLIMITED);
    let durable = durable(rig.now, T0 + TOKEN_BLOCK);
    Rig {
        engine: rig.engine.with_durability(&durable, max_pending),
        ..rig
    }
}

fn rig() -> Rig {
    rig_with(usize::MAX)
}

impl Rig {
    fn lock_of(&mut self, key: &str, id: &str, lease_ms: u64) -> DlmOutcome<DlmLock> {
        let holder = DlmHolder { id, name: None };
        let (now, out) = (self.now, &mut self.recorder);
        let key = key.as_bytes();
        let outcome = self.engine.handle_dlm_lock(now, key, holder, lease_ms, out);
        self.engine.invariants();
        outcome
    }

    fn unlock_of(&mut self, key: &str, id: &str) -> (DlmUnlock, Needs) {
        let holder = DlmHolder { id, name: None };
        let (now, out) = (self.now, &mut self.recorder);
        let outcome = self
            .engine
            .handle_dlm_unlock(now, key.as_bytes(), holder, out);
        assert_eq!(outcome.granted, None);
        self.engine.invariants();
        (outcome.came_to, outcome.needs)
    }

    fn put_of(&mut self, key: &str, id: &str, lease_ms: u64) -> (DlmPut, Needs) {
        let holder = DlmHolder { id, name: None };
        let (now, out) = (self.now, &mut self.recorder);
        let (key, value) = (key.as_bytes(), "value".into());
        let outcome = self
            .engine
            .handle_dlm_put(now, key, holder, lease_ms, value, out);
        assert_eq!(outcome.granted, None);
        self.engine.invariants();
        (outcome.came_to, outcome.needs)
    }

    fn test_of(&mut self, key: &str, id: &str) -> DlmTest {
        let holder = DlmHolder { id, name: None };
        let (now, out) = (self.now, &mut self.recorder);
        self.engine
            .handle_dlm_test(now, key.as_bytes(), holder, out)
    }

    fn give_up(&mut self, grant: GrantRef) -> Vec<Event> {
        self.engine
            .handle_failed_grant(self.now, grant, &mut self.recorder);
        self.came_out()
    }

    fn changes(&mut self) -> Vec<(u64, RecordChange)> {
        std::iter::from_fn(|| self.engine.poll_record_change()).collect()
    }

    /// The change that says that `id` holds `key` for `left_ms` from now.
    fn set(&self, number: u64, key: &str, id: &str, left_ms: u64) -> (u64, RecordChange) {
        let record = LeaseRecord {
            key: key.as_bytes().into(),
            id: id.into(),
            name: None,
            deadline: self.now.plus_millis(left_ms),
            length_ms: left_ms,
        };
        (number, RecordChange::Set(record))
    }
}

fn remove(number: u64, key: &str) -> (u64, RecordChange) {
    let key = key.as_bytes().into();
    (number, RecordChange::Remove { key })
}

mod which_leases {
    use super::*;

    #[test]
    fn longer_than_the_cap_are_recorded_and_no_others() {
        let mut rig = rig();
        rig.lock_of("k", "A", CAP_MS);
        rig.acquire(S1, 1, "n", (0, u32::MAX));
        assert_eq!(rig.changes(), []);
        rig.lock_of("l", "A", LONG_MS);
        assert_eq!(rig.changes(), [rig.set(1, "l", "A", LONG_MS)]);
        assert_eq!(rig.changes(), [], "each once");
    }

    #[test]
    fn nothing_is_recorded_where_nothing_survives_a_restart() {
        let mut rig = Rig::new(UNLIMITED);
        let outcome = rig.lock_of("k", "A", u64::MAX);
        assert_eq!(outcome.needs.change, 0);
        assert_eq!(rig.changes(), []);
    }

    #[test]
    fn an_identity_is_recorded_with_its_id() {
        let mut rig = rig();
        let holder = DlmHolder {
            id: "A",
            name: Some("name"),
        };
        let (now, out) = (rig.now, &mut rig.recorder);
        rig.engine.handle_dlm_lock(now, b"k", holder, LONG_MS, out);
        let (_, change) = rig.engine.poll_record_change().expect("it is recorded");
        let RecordChange::Set(record) = change else {
            panic!("{change:?}");
        };
        assert_eq!((&*record.id, record.name.as_deref()), ("A", Some("name")));
    }

    #[test]
    fn a_lock_is_recorded_when_it_becomes_that_long() {
        for by_put in [false, true] {
            let mut rig = rig();
            rig.lock_of("k", "A", SHORT_MS);
            rig.pass_ms(500);
            if by_put {
                rig.put_of("k", "A", LONG_MS);
            } else {
                rig.lock_of("k", "A", LONG_MS);
            }
            assert_eq!(rig.changes(), [rig.set(1, "k", "A", LONG_MS)]);
        }
    }

    /// However little more it is: the record must not end before the lease does.
    #[test]
    fn a_recorded_lock_is_recorded_again_whenever_it_becomes_longer() {
        let mut rig = rig();
        rig.lock_of("k", "A", LONG_MS);
        rig.changes();
        rig.pass_ms(2);
        rig.lock_of("k", "A", CAP_MS - 1);
        rig.put_of("k", "A", SHORT_MS);
        assert_eq!(rig.changes(), [], "it is as long already");
        rig.lock_of("k", "A", CAP_MS);
        assert_eq!(rig.changes(), [rig.set(2, "k", "A", CAP_MS)]);
        rig.pass_ms(CAP_MS - 10);
        rig.put_of("k", "A", SHORT_MS);
        assert_eq!(rig.changes(), [rig.set(3, "k", "A", SHORT_MS)]);
    }

    #[test]
    fn data_is_not_recorded() {
        let mut rig = rig();
        rig.put_of("k", "A", LONG_MS);
        rig.lock_of("l", "B", SHORT_MS);
        rig.put_of("l", "A", LONG_MS);
        assert_eq!(rig.changes(), []);
    }

    #[test]
    fn a_record_ends_with_its_lease() {
        type End = fn(&mut Rig);
        let ends: [(&str, End); 4] = [
            ("unlock", |rig| {
                rig.unlock_of("k", "A");
            }),
            ("timer", |rig| {
                rig.pass_ms(LONG_MS);
                rig.timeouts();
            }),
            ("touch", |rig| {
                rig.pass_ms(LONG_MS);
                rig.query(S1, 8, "k");
            }),
            ("hand over", |rig| {
                rig.acquire(S2, 2, "k", (u32::MAX, 1_000));
                rig.unlock_of("k", "A");
            }),
        ];
        for (name, end) in ends {
            let mut rig = rig();
            rig.lock_of("k", "A", LONG_MS);
            rig.changes();
            end(&mut rig);
            assert_eq!(rig.changes(), [remove(2, "k")], "{name}");
            rig.pass_ms(10_000);
            rig.timeouts();
            assert_eq!(rig.changes(), [], "{name}");
        }
    }

    /// A crash in the grace must not cut it short: nothing else than the record tells the
    /// next start of it.
    #[test]
    fn the_record_of_a_lease_that_is_over_stays_for_the_grace_after_it() {
        const GRACE_MS: u64 = 3_000;
        let over = || {
            let mut rig = rig();
            rig.engine.limits.expiry_grace_ms = 3_000;
            rig.lock_of("k", "A", LONG_MS);
            rig.changes();
            rig.pass_ms(LONG_MS);
            rig
        };
        for by_timer in [false, true] {
            let mut rig = over();
            match by_timer {
                true => rig.timeouts(),
                false => rig.query(S1, 8, "k"),
            };
            assert_eq!(rig.engine.held(), 0);
            rig.pass_ms(GRACE_MS - 1);
            rig.query(S1, 8, "k");
            rig.engine.invariants();
            assert_eq!(rig.changes(), []);
            rig.pass_ms(1);
            rig.timeouts();
            assert_eq!(rig.changes(), [remove(2, "k")]);
        }
        // Who is granted then waits until the record is gone.
        let mut rig = over();
        rig.acquire(S2, 2, "k", (u32::MAX, 1_000));
        rig.pass_ms(GRACE_MS);
        rig.timeouts();
        assert_eq!(rig.recorder.needs, [needs(1_000, 2)]);
        // An Unlock ends both at once.
        let mut rig = self::rig();
        rig.engine.limits.expiry_grace_ms = 3_000;
        rig.lock_of("k", "A", LONG_MS);
        rig.changes();
        rig.unlock_of("k", "A");
        assert_eq!(rig.changes(), [remove(2, "k")]);
    }

    #[test]
    fn what_is_not_recorded_ends_without_a_change() {
        let mut rig = rig();
        rig.lock_of("k", "A", CAP_MS);
        rig.unlock_of("k", "A");
        rig.lock_of("l", "A", SHORT_MS);
        rig.acquire(S1, 1, "m", (0, 1_000));
        rig.pass_ms(SHORT_MS);
        rig.timeouts();
        assert_eq!(rig.changes(), []);
    }

    #[test]
    fn a_restored_lease_has_its_record_already() {
        let mut rig = rig();
        for key in ["k", "l", "m"] {
            let (_, change) = rig.set(0, key, "A", 10_000);
            let RecordChange::Set(record) = change else {
                unreachable!("that is what it makes");
            };
            rig.engine.restore(&record);
        }
        assert_eq!(rig.changes(), []);
        rig.unlock_of("k", "A");
        rig.lock_of("l", "A", 20_000);
        assert_eq!(
            rig.changes(),
            [remove(1, "k"), rig.set(2, "l", "A", 20_000)]
        );
        rig.pass_ms(10_000);
        rig.timeouts();
        assert_eq!(rig.changes(), [remove(3, "m")]);
    }
}

mod replies_wait_for {
    use super::*;

    #[test]
    fn d_where_a_lease_is_not_recorded() {
        let mut rig = rig();
        assert_eq!(rig.lock_of("k", "A", CAP_MS).needs, needs(CAP_MS, 0));
        assert_eq!(rig.lock_of("k", "A", SHORT_MS).needs, needs(SHORT_MS, 0));
        assert_eq!(
            rig.put_of("k", "A", SHORT_MS),
            (DlmPut::Done, needs(SHORT_MS, 0))
        );
        rig.acquire(S1, 1, "n", (0, 5_000));
        assert_eq!(rig.recorder.needs, [needs(5_000, 0)]);
        rig.acquire(S2, 2, "n", (10_000, 7_000));
        rig.release(S1, 9, "n", T0 + 1);
        assert_eq!(rig.recorder.needs[1..], [needs(7_000, 0)]);
    }

    #[test]
    fn the_record_where_there_is_one() {
        let mut rig = rig();
        assert_eq!(rig.lock_of("k", "A", LONG_MS).needs, needs(0, 1));
        rig.pass_ms(10);
        assert_eq!(rig.lock_of("k", "A", SHORT_MS).needs, needs(0, 1));
        assert_eq!(rig.put_of("k", "A", SHORT_MS), (DlmPut::Done, needs(0, 1)));
        assert_eq!(rig.lock_of("k", "A", LONG_MS).needs, needs(0, 2));
        rig.engine.handle_recorded(1);
        assert_eq!(rig.lock_of("k", "A", SHORT_MS).needs, needs(0, 2));
        // It is tried again.
        rig.engine.handle_not_recorded(2);
        assert_eq!(rig.lock_of("k", "A", SHORT_MS).needs, needs(0, 2));
        rig.engine.handle_recorded(2);
        assert_eq!(rig.lock_of("k", "A", SHORT_MS).needs, NOTHING);
    }

    #[test]
    fn nothing_where_no_lease_is_told_of() {
        let mut rig = rig();
        rig.lock_of("k", "A", LONG_MS);
        assert_eq!(rig.lock_of("k", "B", LONG_MS), DlmLock::NotOwner.into());
        assert_eq!(rig.unlock_of("k", "B"), (DlmUnlock::NotOwner, NOTHING));
        assert_eq!(rig.put_of("k", "B", LONG_MS), (DlmPut::Done, NOTHING));
        assert_eq!(rig.put_of("k", "A", LONG_MS), (DlmPut::NotOwner, NOTHING));
        assert_eq!(rig.unlock_of("l", "A"), (DlmUnlock::Absent, NOTHING));
    }

    /// An Unlock, its repetition, and every later grant of the key: else a restart would
    /// find the old record and hold the key for its holder.
    #[test]
    fn the_end_of_a_record_where_there_was_one() {
        let mut rig = rig();
        rig.lock_of("k", "A", LONG_MS);
        rig.engine.handle_recorded(1);
        assert_eq!(rig.unlock_of("k", "A"), (DlmUnlock::Unlocked, needs(0, 2)));
        assert_eq!(rig.unlock_of("k", "A"), (DlmUnlock::Absent, needs(0, 2)));
        assert_eq!(rig.unlock_of("k", "B"), (DlmUnlock::Absent, needs(0, 2)));
        assert_eq!(rig.lock_of("k", "B", SHORT_MS).needs, needs(SHORT_MS, 2));
        assert_eq!(rig.unlock_of("k", "B"), (DlmUnlock::Unlocked, needs(0, 2)));
        rig.engine.handle_not_recorded(2);
        rig.acquire(S1, 1, "k", (0, 5_000));
        assert_eq!(rig.recorder.needs, [needs(5_000, 2)]);
        rig.extend(S1, 2, "k", T0 + 2, 6_000);
        assert_eq!(rig.recorder.extend_needs, Some(needs(6_000, 2)));
        rig.engine.handle_recorded(2);
        rig.extend(S1, 3, "k", T0 + 2, 6_000);
        assert_eq!(rig.recorder.extend_needs, Some(needs(6_000, 0)));
        rig.release(S1, 9, "k", T0 + 2);
        assert_eq!(rig.unlock_of("k", "A"), (DlmUnlock::Absent, NOTHING));
    }

    #[test]
    fn the_end_of_a_record_where_the_key_is_handed_on() {
        let mut rig = rig();
        rig.lock_of("k", "A", LONG_MS);
        rig.acquire(S2, 2, "k", (u32::MAX, 5_000));
        assert_eq!(rig.unlock_of("k", "A"), (DlmUnlock::Unlocked, needs(0, 2)));
        assert_eq!(rig.recorder.needs, [needs(5_000, 2)]);
        // Another key's record is none of its business.
        rig.acquire(S1, 1, "other", (0, 5_000));
        assert_eq!(rig.recorder.needs[1..], [needs(5_000, 0)]);
    }

    #[test]
    fn the_end_of_a_record_whose_lease_expired() {
        let mut rig = rig();
        rig.lock_of("k", "A", LONG_MS);
        rig.engine.handle_recorded(1);
        rig.pass_ms(LONG_MS);
        assert_eq!(rig.unlock_of("k", "A"), (DlmUnlock::Absent, needs(0, 2)));
        rig.acquire(S1, 1, "k", (0, 5_000));
        assert_eq!(rig.recorder.needs, [needs(5_000, 2)]);
    }

    /// A reply to an extend tells of all that is left, which may be more than was asked
    /// for, and more than D covers yet.
    #[test]
    fn d_to_cover_all_that_an_extend_tells_of() {
        let mut rig = rig();
        rig.acquire(S1, 1, "k", (0, 1_000));
        rig.extend(S1, 2, "k", T0, 60_000);
        assert_eq!(rig.recorder.extend_needs, Some(needs(60_000, 0)));
        rig.pass_ms(10_000);
        rig.pass_nanos(1);
        let events = rig.extend(S1, 3, "k", T0, 1_000);
        assert_eq!(events, [extended(S1, 3, 49_999)]);
        assert_eq!(rig.recorder.extend_needs, Some(needs(50_000, 0)));
    }
}

mod too_many_changes {
    use super::*;

    /// Two of two changes are under way.
    fn full() -> Rig {
        let mut rig = rig_with(2);
        assert_eq!(rig.lock_of("k", "A", LONG_MS).came_to, DlmLock::Locked);
        assert_eq!(rig.lock_of("l", "A", LONG_MS).came_to, DlmLock::Locked);
        rig.pass_ms(10);
        rig
    }

    #[test]
    fn refuse_what_would_make_another() {
        let mut rig = full();
        let refused = DlmLock::Overloaded.into();
        assert_eq!(rig.lock_of("m", "A", LONG_MS), refused);
        assert_eq!(rig.test_of("m", "A"), DlmTest::Free);
        assert_eq!(rig.lock_of("k", "A", LONG_MS), refused);
        assert_eq!(rig.put_of("k", "A", LONG_MS), (DlmPut::Overloaded, NOTHING));
        assert_eq!(rig.engine.data_slots(), 0, "nothing was changed");
        let left_ms = u32::try_from(LONG_MS).expect("small") - 10;
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, left_ms, 0)]);
        assert_eq!(rig.changes().len(), 2);
    }

    /// A lease that is not over the cap changes the record, too, where there is one.
    #[test]
    fn refuse_to_renew_a_recorded_lease_by_little() {
        let mut rig = full();
        rig.pass_ms(LONG_MS - 20);
        let refused = DlmLock::Overloaded.into();
        assert_eq!(rig.lock_of("k", "A", SHORT_MS), refused);
        assert_eq!(
            rig.put_of("k", "A", SHORT_MS),
            (DlmPut::Overloaded, NOTHING)
        );
        assert_eq!(rig.query(S1, 8, "k"), [held(S1, 8, 10, 0)]);
    }

    #[test]
    fn refuse_nothing_else() {
        let mut rig = full();
        assert_eq!(rig.lock_of("k", "B", LONG_MS), DlmLock::NotOwner.into());
        assert_eq!(rig.lock_of("m", "A", CAP_MS).came_to, DlmLock::Locked);
        assert_eq!(rig.lock_of("k", "A", SHORT_MS).came_to, DlmLock::Locked);
        assert_eq!(rig.put_of("k", "A", SHORT_MS).0, DlmPut::Done);
        // No lock, no record.
        assert_eq!(rig.put_of("n", "A", LONG_MS), (DlmPut::Done, NOTHING));
        assert_eq!(rig.put_of("l", "B", LONG_MS), (DlmPut::Done, NOTHING));
        assert_eq!(rig.changes().len(), 2);
        assert_eq!(rig.unlock_of("k", "A").0, DlmUnlock::Unlocked);
        assert_eq!(rig.changes(), [remove(3, "k")], "an end is never refused");
    }

    #[test]
    fn are_fewer_when_some_are_durable() {
        let mut rig = full();
        rig.engine.handle_recorded(1);
        assert_eq!(rig.lock_of("m", "A", LONG_MS).came_to, DlmLock::Locked);
        assert_eq!(rig.lock_of("n", "A", LONG_MS).came_to, DlmLock::Overloaded);
    }

    /// The disk fails: what waits for it is not forgotten.
    #[test]
    fn are_no_fewer_when_they_could_not_be_written() {
        let mut rig = full();
        rig.engine.handle_not_recorded(2);
        assert_eq!(rig.lock_of("m", "A", LONG_MS).came_to, DlmLock::Overloaded);
        rig.engine.handle_recorded(2);
        assert_eq!(rig.lock_of("m", "A", LONG_MS).came_to, DlmLock::Locked);
    }

    #[test]
    fn are_counted_by_changes_not_by_keys() {
        let mut rig = rig_with(2);
        assert_eq!(rig.lock_of("k", "A", LONG_MS).came_to, DlmLock::Locked);
        rig.pass_ms(10);
        assert_eq!(rig.lock_of("k", "A", LONG_MS).came_to, DlmLock::Locked);
        rig.pass_ms(10);
        assert_eq!(rig.lock_of("k", "A", LONG_MS).came_to, DlmLock::Overloaded);
    }
}

mod a_failed_grant {
    use super::*;

    #[test]
    fn is_given_up() {
        let mut rig = rig();
        rig.acquire(S1, 1, "k", LEASE);
        let grant = rig.recorder.grants[0];
        assert_eq!(rig.give_up(grant), []);
        assert_eq!((rig.engine.keys(), rig.engine.counters().given_up), (0, 1));
        assert_eq!(rig.release(S1, 9, "k", grant.token), [not_held(S1, 9)]);
        let grant = rig.lock_of("k", "A", SHORT_MS).granted.expect("a grant");
        assert_eq!(rig.give_up(grant), []);
        assert_eq!((rig.engine.keys(), rig.engine.counters().given_up), (0, 2));
    }

    #[test]
    fn passes_to_the_next_waiter() {
        let mut rig = rig();
        rig.acquire(S1, 1, "k", LEASE);
        rig.acquire(S2, 2, "k", (60_000, 1_000));
        rig.acquire(S3, 3, "k", (60_000, 1_000));
        rig.pass_ms(5);
        let [first] = rig.recorder.grants[..] else {
            panic!("one grant");
        };
        assert_eq!(rig.give_up(first), [granted(S2, 2, T0 + 1, 5)]);
        // Once: it is another's now.
        assert_eq!(rig.give_up(first), []);
        let second = rig.recorder.grants[1];
        assert_eq!(rig.give_up(second), [granted(S3, 3, T0 + 2, 5)]);
    }

    #[test]
    fn ends_its_record() {
        let mut rig = rig();
        let grant = rig.lock_of("k", "A", LONG_MS).granted.expect("a grant");
        rig.changes();
        rig.give_up(grant);
        assert_eq!(rig.changes(), [remove(2, "k")]);
        assert_eq!(rig.test_of("k", "A"), DlmTest::Free);
        assert_eq!(rig.unlock_of("k", "A"), (DlmUnlock::Absent, needs(0, 2)));
    }

    /// Its holder may have been told of it by that renewal's reply.
    #[test]
    fn stays_where_it_was_renewed_since() {
        let mut rig = rig();
        let first = rig.lock_of("k", "A", SHORT_MS);
        let renewal = rig.lock_of("k", "A", 1);
        assert_eq!(renewal.granted, None, "a renewal is only not told of");
        let second = rig.lock_of("l", "A", SHORT_MS);
        rig.put_of("l", "A", 1);
        rig.acquire(S1, 1, "m", LEASE);
        rig.extend(S1, 2, "m", T0 + 2, 1);
        let native = rig.recorder.grants[0];
        for grant in [first.granted, second.granted, Some(native)] {
            assert_eq!(rig.give_up(grant.expect("a grant")), []);
        }
        assert_eq!((rig.engine.keys(), rig.engine.counters().given_up), (3, 0));
    }

    /// A later grant of the key starts anew: what happened to others before does not
    /// keep it.
    #[test]
    fn is_given_up_though_an_earlier_grant_was_renewed() {
        let mut rig = rig();
        rig.acquire(S1, 1, "k", LEASE);
        rig.extend(S1, 2, "k", T0, 20_000);
        rig.acquire(S2, 3, "k", (60_000, 1_000));
        rig.release(S1, 4, "k", T0);
        let grant = rig.recorder.grants[1];
        rig.give_up(grant);
        assert_eq!(rig.engine.keys(), 0);
    }

    #[test]
    fn that_has_ended_meanwhile_changes_nothing() {
        let mut rig = rig();
        rig.acquire(S1, 1, "k", (0, 1_000));
        let grant = rig.recorder.grants[0];
        rig.acquire(S2, 2, "k", (60_000, 5_000));
        rig.pass_ms(1_000);
        assert_eq!(rig.give_up(grant), [granted(S2, 2, T0 + 1, 1_000)]);
        assert_eq!(rig.query(S4, 8, "k"), [held(S4, 8, 5_000, 0)]);
        rig.release(S2, 9, "k", T0 + 1);
        assert_eq!(rig.give_up(grant), []);
        // Its place in the table is another key's now.
        rig.lock_of("l", "A", SHORT_MS);
        assert_eq!(rig.give_up(grant), []);
        assert_eq!(rig.test_of("l", "A"), DlmTest::Own);
        assert_eq!(rig.engine.counters().given_up, 0);
    }

    #[test]
    fn of_a_session_that_closed_is_released_by_that() {
        let mut rig = rig();
        rig.closers = vec![S1];
        rig.acquire(S1, 1, "k", LEASE);
        let grant = rig.recorder.grants[0];
        rig.end(S1, SessionEnd::Orderly);
        assert_eq!(rig.give_up(grant), []);
        assert_eq!(rig.engine.keys(), 0);
        assert_eq!(rig.engine.counters().released_on_close, 1);
        assert_eq!(rig.engine.counters().given_up, 0);
    }
}

mod tokens {
    use super::*;

    /// Two tokens are reserved.
    fn rig() -> Rig {
        let rig = Rig::new(UNLIMITED);
        let durable = durable(rig.now, T0 + 2);
        Rig {
            engine: rig.engine.with_durability(&durable, usize::MAX),
            ..rig
        }
    }

    #[test]
    fn at_or_above_the_mark_are_not_given_out() {
        let mut rig = rig();
        assert_eq!(rig.acquire(S1, 1, "k", LEASE), [granted(S1, 1, T0, 0)]);
        assert_eq!(rig.lock_of("l", "A", SHORT_MS).came_to, DlmLock::Locked);
        let overloaded = ErrorCode::Overloaded;
        assert_eq!(rig.acquire(S1, 2, "m", LEASE), [refused(S1, 2, overloaded)]);
        assert_eq!(rig.lock_of("m", "A", SHORT_MS), DlmLock::Overloaded.into());
        // What takes no token goes on.
        assert_eq!(rig.lock_of("l", "A", SHORT_MS).came_to, DlmLock::Locked);
        assert_eq!(rig.acquire(S1, 3, "k", LEASE), [timed_out(S1, 3)]);
        assert_eq!(rig.engine.keys(), 2);
        rig.engine.handle_reserved(T0 + 3);
        assert_eq!(rig.acquire(S1, 4, "m", LEASE), [granted(S1, 4, T0 + 2, 0)]);
        // A mark never goes back.
        rig.engine.handle_reserved(T0 + 1);
        assert_eq!(rig.acquire(S1, 5, "n", LEASE), [refused(S1, 5, overloaded)]);
        rig.engine.handle_reserved(T0 + 4);
        assert_eq!(rig.acquire(S1, 6, "n", LEASE), [granted(S1, 6, T0 + 3, 0)]);
    }

    /// Nobody may wait for a token: the key is free, and a free key has no waiters.
    #[test]
    fn lack_to_those_who_wait() {
        let mut rig = rig();
        rig.acquire(S1, 1, "k", LEASE);
        rig.acquire(S1, 2, "l", LEASE);
        rig.acquire(S2, 3, "k", (60_000, 1_000));
        rig.acquire(S3, 4, "k", (60_000, 1_000));
        let overloaded = ErrorCode::Overloaded;
        assert_eq!(
            rig.release(S1, 9, "k", T0),
            [
                released(S1, 9),
                refused(S2, 3, overloaded),
                refused(S3, 4, overloaded)
            ]
        );
        assert_eq!((rig.engine.keys(), rig.engine.waiting()), (1, 0));
    }
}
