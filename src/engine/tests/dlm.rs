//! The DLM's actions against the states of the two slots, cell by cell, and how
//! DLM and native clients share the lock slot.

use super::*;
use crate::engine::{DlmErase, DlmGet, DlmPut, DlmTest, DlmUnlock};

const A: DlmHolder<'_> = DlmHolder {
    id: "A",
    name: None,
};
const B: DlmHolder<'_> = DlmHolder {
    id: "B",
    name: None,
};
/// The same ID as A's, with an identity.
const A_NAMED: DlmHolder<'_> = DlmHolder {
    id: "A",
    name: Some("name"),
};

const LEASE_MS: u64 = 30_000;

impl Rig {
    fn lock(&mut self, holder: DlmHolder<'_>, lease_ms: u64) -> DlmLock {
        let (now, out) = (self.now, &mut self.recorder);
        let answer = self
            .engine
            .handle_dlm_lock(now, b"k", holder, lease_ms, out)
            .came_to;
        self.engine.invariants();
        answer
    }

    fn unlock(&mut self, holder: DlmHolder<'_>) -> DlmUnlock {
        let (now, out) = (self.now, &mut self.recorder);
        let answer = self
            .engine
            .handle_dlm_unlock(now, b"k", holder, out)
            .came_to;
        self.engine.invariants();
        answer
    }

    fn test(&mut self, holder: DlmHolder<'_>) -> DlmTest {
        let (now, out) = (self.now, &mut self.recorder);
        let answer = self.engine.handle_dlm_test(now, b"k", holder, out);
        self.engine.invariants();
        answer
    }

    fn put(&mut self, holder: DlmHolder<'_>, lease_ms: u64, value: &str) -> DlmPut {
        let (now, out) = (self.now, &mut self.recorder);
        let value = value.into();
        let answer = self
            .engine
            .handle_dlm_put(now, b"k", holder, lease_ms, value, out)
            .came_to;
        self.engine.invariants();
        answer
    }

    fn get(&mut self, holder: DlmHolder<'_>) -> DlmGet<'_> {
        self.engine.invariants();
        let (now, out) = (self.now, &mut self.recorder);
        self.engine.handle_dlm_get(now, b"k", holder, out)
    }

    fn erase(&mut self, holder: DlmHolder<'_>) -> DlmErase {
        let answer = self.engine.handle_dlm_erase(self.now, b"k", holder);
        self.engine.invariants();
        answer
    }

    fn lock_left_ms(&mut self) -> u32 {
        let state = self.query(S4, 8, "k");
        match state[..] {
            [
                Event::Told {
                    reply: Reply::State { remaining_ms, .. },
                    ..
                },
            ] => remaining_ms,
            _ => panic!("{state:?}"),
        }
    }
}

fn rig() -> Rig {
    Rig::new(UNLIMITED)
}

fn rig_locked_by_a() -> Rig {
    let mut rig = rig();
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::Locked);
    rig
}

fn rig_with_data_of_a() -> Rig {
    let mut rig = rig();
    assert_eq!(rig.put(A, LEASE_MS, "data"), DlmPut::Done);
    rig
}

#[test]
fn lock_on_an_empty_slot_is_granted_and_ends() {
    let mut rig = rig_locked_by_a();
    assert_eq!(rig.lock_left_ms(), 30_000);
    rig.pass_ms(LEASE_MS);
    assert_eq!(rig.lock(B, LEASE_MS), DlmLock::Locked);
}

#[test]
fn lock_by_the_holder_renews_and_never_shortens() {
    let mut rig = rig_locked_by_a();
    rig.pass_ms(10_000);
    assert_eq!(rig.lock(A, 1), DlmLock::Locked);
    assert_eq!(rig.lock_left_ms(), 20_000);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::Locked);
    assert_eq!(rig.lock_left_ms(), 30_000);
}

#[test]
fn lock_by_another_is_not_owner() {
    let mut rig = rig_locked_by_a();
    for other in [B, A_NAMED] {
        assert_eq!(rig.lock(other, LEASE_MS), DlmLock::NotOwner);
    }
}

#[test]
fn unlock_on_an_empty_slot_finds_it_absent() {
    let mut rig = rig_locked_by_a();
    rig.pass_ms(LEASE_MS);
    assert_eq!(rig.unlock(A), DlmUnlock::Absent);
}

#[test]
fn unlock_by_the_holder_frees_the_key() {
    let mut rig = rig_locked_by_a();
    assert_eq!(rig.unlock(A), DlmUnlock::Unlocked);
    assert_eq!(rig.unlock(A), DlmUnlock::Absent);
    assert_eq!(rig.lock(B, LEASE_MS), DlmLock::Locked);
}

#[test]
fn unlock_by_another_is_not_owner() {
    let mut rig = rig_locked_by_a();
    for other in [B, A_NAMED] {
        assert_eq!(rig.unlock(other), DlmUnlock::NotOwner);
    }
    assert_eq!(rig.test(A), DlmTest::Own);
}

#[test]
fn test_tells_whose_it_is_and_changes_nothing() {
    let mut rig = rig();
    assert_eq!(rig.test(A), DlmTest::Free);
    rig.lock(A, LEASE_MS);
    rig.pass_ms(10_000);
    assert_eq!(rig.test(A), DlmTest::Own);
    assert_eq!(rig.test(B), DlmTest::NotOwner);
    assert_eq!(rig.test(A_NAMED), DlmTest::NotOwner);
    assert_eq!(rig.lock_left_ms(), 20_000);
}

#[test]
fn put_and_get_by_the_owner() {
    let mut rig = rig_with_data_of_a();
    assert_eq!(rig.get(A), DlmGet::Done("data"));
    rig.pass_ms(LEASE_MS);
    assert_eq!(rig.get(A), DlmGet::NotFound);
}

#[test]
fn put_by_the_owner_replaces_value_and_life() {
    let mut rig = rig_with_data_of_a();
    assert_eq!(rig.put(A, 1_000, "newer"), DlmPut::Done);
    assert_eq!(rig.get(A), DlmGet::Done("newer"));
    rig.pass_ms(1_000);
    assert_eq!(rig.get(A), DlmGet::NotFound);
}

#[test]
fn put_get_and_erase_by_another_are_not_owner() {
    let mut rig = rig_with_data_of_a();
    for other in [B, A_NAMED] {
        assert_eq!(rig.put(other, LEASE_MS, "x"), DlmPut::NotOwner);
        assert_eq!(rig.get(other), DlmGet::NotOwner);
        assert_eq!(rig.erase(other), DlmErase::NotOwner);
    }
    assert_eq!(rig.get(A), DlmGet::Done("data"));
}

#[test]
fn get_without_data_tells_the_lock_holder_so() {
    let mut rig = rig_locked_by_a();
    assert_eq!(rig.get(A), DlmGet::NoData);
    assert_eq!(rig.get(B), DlmGet::NotFound);
    assert_eq!(rig.get(A_NAMED), DlmGet::NotFound);
}

#[test]
fn erase_empties_the_data_and_leaves_the_lock() {
    let mut rig = rig_with_data_of_a();
    rig.lock(A, LEASE_MS);
    assert_eq!(rig.erase(A), DlmErase::Done);
    assert_eq!(rig.erase(A), DlmErase::NotFound);
    assert_eq!(rig.test(A), DlmTest::Own);
}

#[test]
fn data_of_another_does_not_refuse_a_lock() {
    let mut rig = rig_with_data_of_a();
    assert_eq!(rig.lock(B, LEASE_MS), DlmLock::Locked);
    assert_eq!(rig.get(B), DlmGet::NotOwner);
}

#[test]
fn a_put_by_the_locks_holder_lengthens_the_lock_and_never_shortens_it() {
    let mut rig = rig_locked_by_a();
    rig.put(A, 40_000, "data");
    assert_eq!(rig.lock_left_ms(), 40_000);
    rig.put(A, 1_000, "data");
    assert_eq!(rig.lock_left_ms(), 40_000);
}

#[test]
fn a_put_by_another_leaves_the_lock() {
    for other in [B, A_NAMED] {
        let mut rig = rig_locked_by_a();
        assert_eq!(rig.put(other, 40_000, "data"), DlmPut::Done);
        assert_eq!(rig.lock_left_ms(), 30_000);
    }
}

#[test]
fn a_lock_leaves_the_datas_life() {
    let mut rig = rig_with_data_of_a();
    rig.lock(A, 1_000);
    rig.pass_ms(LEASE_MS - 1);
    assert_eq!(rig.get(A), DlmGet::Done("data"));
}

#[test]
fn unlock_by_the_holder_of_both_slots_clears_both() {
    let mut rig = rig_with_data_of_a();
    rig.lock(A, LEASE_MS);
    assert_eq!(rig.unlock(A), DlmUnlock::Unlocked);
    assert_eq!(rig.get(A), DlmGet::NotFound);
}

#[test]
fn unlock_leaves_data_of_another() {
    let mut rig = rig_with_data_of_a();
    rig.lock(B, LEASE_MS);
    assert_eq!(rig.unlock(B), DlmUnlock::Unlocked);
    assert_eq!(rig.get(A), DlmGet::Done("data"));
}

#[test]
fn unlock_of_no_lock_leaves_the_data() {
    let mut rig = rig_with_data_of_a();
    assert_eq!(rig.unlock(A), DlmUnlock::Absent);
    assert_eq!(rig.get(A), DlmGet::Done("data"));
}

#[test]
fn native_and_dlm_holders_exclude_each_other() {
    let mut rig = rig();
    rig.acquire(S1, 1, "k", (0, 10_000));
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::NotOwner);
    assert_eq!(rig.test(A), DlmTest::NotOwner);
    assert_eq!(rig.unlock(A), DlmUnlock::NotOwner);
    rig.release(S1, 2, "k", T0);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::Locked);
    assert_eq!(rig.acquire(S1, 3, "k", (0, 10_000)), [timed_out(S1, 3)]);
}

#[test]
fn a_dlm_grant_takes_a_token_that_no_native_request_can_use() {
    let mut rig = rig_locked_by_a();
    assert_eq!(rig.release(S1, 2, "k", T0), [not_held(S1, 2)]);
    assert_eq!(rig.extend(S1, 3, "k", T0, 99_000), [not_held(S1, 3)]);
    rig.unlock(A);
    assert_eq!(rig.acquire(S1, 4, "k", (0, 1)), [granted(S1, 4, T0 + 1, 0)]);
}

#[test]
fn an_unlock_grants_the_oldest_native_waiter_and_a_lock_never_overtakes() {
    let mut rig = rig_locked_by_a();
    rig.acquire(S1, 1, "k", (60_000, 10_000));
    rig.acquire(S2, 2, "k", (60_000, 10_000));
    assert_eq!(rig.unlock(A), DlmUnlock::Unlocked);
    assert_eq!(rig.came_out(), [granted(S1, 1, T0 + 1, 0)]);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::NotOwner);
    rig.pass_ms(10_000);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::NotOwner);
    assert_eq!(rig.came_out(), [granted(S2, 2, T0 + 2, 10_000)]);
}

#[test]
fn in_expiry_grace_everything_is_not_owner() {
    let mut rig = Rig::new(EngineLimits {
        expiry_grace_ms: 500,
        ..UNLIMITED
    });
    rig.lock(A, 1_000);
    rig.pass_ms(1_000);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::NotOwner);
    assert_eq!(rig.unlock(A), DlmUnlock::NotOwner);
    assert_eq!(rig.test(A), DlmTest::NotOwner);
    rig.pass_ms(500);
    assert_eq!(rig.test(A), DlmTest::Free);
}

#[test]
fn a_drain_serves_the_holder_and_grants_nobody() {
    let mut rig = rig_locked_by_a();
    rig.engine.handle_drain();
    rig.timeouts();
    assert_eq!(rig.lock(A, 60_000), DlmLock::Locked);
    assert_eq!(rig.lock_left_ms(), 60_000);
    assert_eq!(rig.unlock(A), DlmUnlock::Unlocked);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::NotOwner);
    assert_eq!(rig.test(A), DlmTest::Free);
}

#[test]
fn leases_of_months_end_on_time() {
    let mut rig = rig();
    let sixty_days_ms = 60 * 24 * 60 * 60 * 1000;
    rig.lock(A, sixty_days_ms);
    rig.put(B, sixty_days_ms, "data");
    rig.pass_nanos(sixty_days_ms * crate::engine::time::NANOS_PER_MS - 1);
    rig.timeouts();
    assert_eq!((rig.engine.held(), rig.engine.data_slots()), (1, 1));
    rig.pass_nanos(1);
    rig.timeouts();
    assert_eq!((rig.engine.held(), rig.engine.data_slots()), (0, 0));
}

#[test]
fn a_full_lock_table_is_overloaded() {
    let mut rig = Rig::new(EngineLimits {
        max_keys: 1,
        ..UNLIMITED
    });
    rig.acquire(S1, 1, "other", (0, 1_000));
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::Overloaded);
    assert_eq!(rig.put(A, LEASE_MS, "data"), DlmPut::Done);
    rig.pass_ms(1_000);
    assert_eq!(rig.lock(A, LEASE_MS), DlmLock::Locked);
}

#[test]
fn data_is_counted_against_the_memory_limit_and_given_back() {
    let mut rig = rig_with_data_of_a();
    rig.erase(A);
    let empty_bytes = rig.engine.memory_bytes();
    let max_memory_bytes = empty_bytes + 100_000;
    let limits = EngineLimits {
        max_memory_bytes,
        ..UNLIMITED
    };
    let mut rig = Rig::new(limits);
    let half = "x".repeat(60_000);
    assert_eq!(rig.put(A, LEASE_MS, &half), DlmPut::Done);
    let whole = "x".repeat(110_000);
    assert_eq!(rig.put(A, LEASE_MS, &whole), DlmPut::Overloaded);
    assert_eq!(rig.get(A), DlmGet::Done(&half), "what was there stays");
    assert_eq!(put_on_another_key(&mut rig, &half), DlmPut::Overloaded);
    assert_eq!(rig.put(A, LEASE_MS, "short"), DlmPut::Done);
    assert_eq!(put_on_another_key(&mut rig, &half), DlmPut::Done);
    assert_eq!(rig.put(A, LEASE_MS, &half), DlmPut::Overloaded);
    // What is over elsewhere makes room.
    rig.pass_ms(LEASE_MS);
    assert_eq!(rig.put(A, LEASE_MS, &half), DlmPut::Done);
    assert_eq!(rig.engine.data_slots(), 1);
    rig.pass_ms(LEASE_MS);
    rig.timeouts();
    assert_eq!(rig.engine.data_slots(), 0);
    assert_eq!(rig.engine.memory_bytes(), empty_bytes);
}

fn put_on_another_key(rig: &mut Rig, value: &str) -> DlmPut {
    let (now, out) = (rig.now, &mut rig.recorder);
    let value = value.into();
    rig.engine
        .handle_dlm_put(now, b"other", B, LEASE_MS, value, out)
        .came_to
}

#[test]
fn memory_of_many_slots_returns_to_its_empty_size() {
    let mut engine = Engine::new(UNLIMITED, 1, 1);
    let now = Time::from_millis(1);
    let holder = DlmHolder {
        id: "a longer id",
        name: Some("a longer name"),
    };
    let mut empty_bytes = 0;
    for keys in [1, 50_000_u32] {
        for number in 0..keys {
            let key = format!("a name with a newline\n in it, {number}");
            let key = key.as_bytes();
            let value = "value".into();
            engine.handle_dlm_lock(now, key, holder, LEASE_MS, &mut Nowhere);
            engine.handle_dlm_put(now, key, holder, LEASE_MS, value, &mut Nowhere);
        }
        assert_eq!((engine.keys(), engine.data_slots()), (keys, keys));
        for number in 0..keys {
            let key = format!("a name with a newline\n in it, {number}");
            engine.handle_dlm_unlock(now, key.as_bytes(), holder, &mut Nowhere);
        }
        assert_eq!((engine.keys(), engine.data_slots()), (0, 0));
        engine.invariants();
        if empty_bytes == 0 {
            empty_bytes = engine.memory_bytes();
        }
    }
    assert_eq!(engine.memory_bytes(), empty_bytes);
}
