//! What loops ask, what is written for it, and what they are told.

use std::sync::Arc;

use crate::durability::{Ask, Durable, LeaseRecord, News, RecordChange, TOKEN_BLOCK};
use crate::engine::time::Time;
use crate::limits::TOKEN_END;
use crate::store::core::{Job, RETRY_MS, StoreCore};
use crate::store::format::{End, State};

const NOW: Time = Time::from_millis(1000);

/// For three loops, with D at 8192 ms and the mark at 100.
fn core() -> StoreCore {
    let durable = Durable {
        token_block: TOKEN_BLOCK,
        d_ms: 8192,
        cap_ms: 300_000,
        mark: 100,
        started_at: NOW,
        grace_end: Time::ZERO,
    };
    StoreCore::new(3, &durable)
}

fn state(d_ms: u64, mark: u64) -> Job {
    Job::State(State {
        mark,
        d_ms,
        end: End::Unclean,
    })
}

fn raise(to_ms: u64) -> Ask {
    Ask::Raise { to_ms }
}

fn lower(to_ms: u64) -> Ask {
    Ask::Lower { to_ms }
}

fn set(number: u64, key: &str, length_ms: u64) -> Ask {
    let change = RecordChange::Set(LeaseRecord {
        key: key.as_bytes().into(),
        id: "id".into(),
        name: None,
        deadline: NOW.plus_millis(length_ms),
        length_ms,
    });
    Ask::Record { number, change }
}

fn remove(number: u64, key: &str) -> Ask {
    let key = key.as_bytes().into();
    let change = RecordChange::Remove { key };
    Ask::Record { number, change }
}

/// A job with the changes of these asks.
fn records(asks: &[Ask]) -> Job {
    let changes = asks.iter().map(|ask| match ask {
        Ask::Record { change, .. } => change.clone(),
        _ => unreachable!("records are asked for"),
    });
    Job::Records(changes.collect::<Vec<_>>().into())
}

fn news(core: &mut StoreCore) -> Vec<(u16, News)> {
    core.invariants();
    std::iter::from_fn(|| core.poll_news()).collect()
}

/// The job there has to be, written or not, and what is told then.
fn written(core: &mut StoreCore, job: &Job, is_durable: bool) -> Vec<(u16, News)> {
    assert_eq!(core.poll_job(NOW).as_ref(), Some(job));
    assert_eq!(core.poll_job(NOW), None, "one at a time");
    core.handle_written(is_durable, NOW);
    news(core)
}

#[test]
fn a_raise_is_told_once_it_is_durable() {
    let mut core = core();
    core.handle_ask(1, raise(16_384));
    assert_eq!(news(&mut core), []);
    let told = written(&mut core, &state(16_384, 100), true);
    assert_eq!(told, [(1, News::Raised)]);
    assert_eq!(core.poll_job(NOW), None);
}

#[test]
fn a_raise_that_d_covers_already_is_told_at_once() {
    let mut core = core();
    core.handle_ask(0, lower(1024));
    core.handle_ask(0, raise(8192));
    assert_eq!(news(&mut core), [(0, News::Raised)]);
    assert_eq!(core.poll_job(NOW), None, "nothing has changed");
}

#[test]
fn a_raise_while_d_is_lowered_waits_for_it_to_be_raised_again() {
    for lowering_works in [true, false] {
        let mut core = core();
        for index in 0..3 {
            core.handle_ask(index, lower(1024));
        }
        assert_eq!(core.poll_job(NOW), Some(state(1024, 100)));
        core.handle_ask(2, raise(8192));
        assert_eq!(news(&mut core), [], "1024 may be durable by now");
        core.handle_written(lowering_works, NOW);
        assert_eq!(news(&mut core), [], "or one copy may say so");
        let told = written(&mut core, &state(8192, 100), true);
        assert_eq!(told, [(2, News::Raised)]);
    }
}

#[test]
fn d_is_what_the_loop_with_the_longest_leases_needs() {
    let mut core = core();
    core.handle_ask(0, lower(1024));
    core.handle_ask(1, lower(2048));
    assert_eq!(
        core.poll_job(NOW),
        None,
        "the third may still hold for 8192"
    );
    core.handle_ask(2, lower(1024));
    assert_eq!(written(&mut core, &state(2048, 100), true), []);
    core.handle_ask(1, lower(1024));
    core.handle_ask(0, raise(4096));
    let told = written(&mut core, &state(4096, 100), true);
    assert_eq!(told, [(0, News::Raised)]);
}

#[test]
fn what_is_asked_meanwhile_goes_into_the_next_write() {
    let mut core = core();
    core.handle_ask(0, raise(16_384));
    assert_eq!(core.poll_job(NOW), Some(state(16_384, 100)));
    core.handle_ask(1, raise(32_768));
    core.handle_ask(2, raise(65_536));
    core.handle_ask(0, Ask::Reserve { mark: 200 });
    core.handle_written(true, NOW);
    assert_eq!(news(&mut core), [(0, News::Raised)]);
    let told = written(&mut core, &state(65_536, 200), true);
    let reserved = News::Reserved { mark: 200 };
    assert_eq!(told, [(0, reserved), (1, News::Raised), (2, News::Raised)]);
}

#[test]
fn a_failure_is_told_those_whose_write_it_was() {
    let mut core = core();
    core.handle_ask(0, raise(16_384));
    core.handle_ask(0, Ask::Reserve { mark: 200 });
    assert_eq!(core.poll_job(NOW), Some(state(16_384, 200)));
    core.handle_ask(1, raise(32_768));
    core.handle_ask(1, Ask::Reserve { mark: 150 });
    core.handle_written(false, NOW);
    assert_eq!(
        news(&mut core),
        [(0, News::NotRaised), (0, News::NotReserved)]
    );
    let told = written(&mut core, &state(32_768, 150), true);
    let reserved = News::Reserved { mark: 150 };
    assert_eq!(told, [(1, News::Raised), (1, reserved)]);
}

#[test]
fn after_a_failed_raise_what_was_before_is_in_force() {
    let mut core = core();
    core.handle_ask(0, raise(16_384));
    let told = written(&mut core, &state(16_384, 100), false);
    assert_eq!(told, [(0, News::NotRaised)]);
    assert_eq!(core.poll_job(NOW), None);
    for index in 0..3 {
        core.handle_ask(index, lower(4096));
    }
    assert_eq!(written(&mut core, &state(4096, 100), true), []);
}

#[test]
fn a_copy_that_may_be_damaged_is_written_again_by_itself() {
    let mut core = core();
    core.handle_ask(0, raise(16_384));
    written(&mut core, &state(16_384, 100), false);
    let later = NOW.plus_millis(RETRY_MS);
    assert_eq!(core.poll_timeout(), Some(later));
    assert_eq!(core.poll_job(later), Some(state(8192, 100)));
    core.handle_written(false, later);
    assert_eq!(core.poll_timeout(), Some(later.plus_millis(RETRY_MS)));
    let later = later.plus_millis(RETRY_MS);
    assert_eq!(core.poll_job(later), Some(state(8192, 100)));
    core.handle_written(true, later);
    assert_eq!(core.poll_timeout(), None);
    assert_eq!(news(&mut core), []);
}

#[test]
fn marks_are_reserved_up_to_the_last_token_and_never_given_back() {
    let mut core = core();
    core.handle_ask(0, Ask::Reserve { mark: 100 });
    assert_eq!(news(&mut core), [(0, News::Reserved { mark: 100 })]);
    core.handle_ask(
        0,
        Ask::Reserve {
            mark: TOKEN_END + 1,
        },
    );
    assert_eq!(news(&mut core), [(0, News::NotReserved)]);
    core.handle_ask(0, Ask::Reserve { mark: TOKEN_END });
    let told = written(&mut core, &state(8192, TOKEN_END), true);
    assert_eq!(told, [(0, News::Reserved { mark: TOKEN_END })]);
    core.handle_ask(1, Ask::Reserve { mark: 5 });
    assert_eq!(news(&mut core), [(1, News::Reserved { mark: TOKEN_END })]);
}

#[test]
fn of_one_key_only_the_last_change_is_written() {
    let mut core = core();
    for ask in [set(1, "b", 5), set(2, "a", 5), set(3, "a", 6)] {
        core.handle_ask(0, ask);
    }
    core.handle_ask(2, remove(1, "c"));
    let changes = [set(3, "a", 6), set(1, "b", 5), remove(1, "c")];
    let told = written(&mut core, &records(&changes), true);
    let recorded = |up_to| News::Recorded { up_to };
    assert_eq!(told, [(0, recorded(3)), (2, recorded(1))]);
    assert_eq!(core.poll_job(NOW), None);
}

#[test]
fn failed_changes_are_tried_again_with_all_that_came_since() {
    let mut core = core();
    core.handle_ask(0, set(1, "a", 5));
    core.handle_ask(0, set(2, "b", 5));
    assert_eq!(
        core.poll_job(NOW),
        Some(records(&[set(1, "a", 5), set(2, "b", 5)]))
    );
    core.handle_ask(0, remove(3, "a"));
    core.handle_ask(1, set(1, "c", 5));
    core.handle_written(false, NOW);
    let failed = |up_to| News::NotRecorded { up_to };
    assert_eq!(news(&mut core), [(0, failed(2))]);

    let all = records(&[remove(3, "a"), set(2, "b", 5), set(1, "c", 5)]);
    let mut now = NOW;
    assert_eq!(core.poll_job(now), None, "not before its time");
    for _ in 0..2 {
        now = now.plus_millis(RETRY_MS);
        assert_eq!(core.poll_timeout(), Some(now));
        assert_eq!(core.poll_job(now), Some(all.clone()));
        core.handle_written(false, now);
        assert_eq!(news(&mut core), [(0, failed(3)), (1, failed(1))]);
    }
    now = now.plus_millis(RETRY_MS);
    assert_eq!(core.poll_job(now), Some(all));
    core.handle_written(true, now);
    let recorded = |up_to| News::Recorded { up_to };
    assert_eq!(news(&mut core), [(0, recorded(3)), (1, recorded(1))]);
    assert_eq!(core.poll_timeout(), None);
}

#[test]
fn state_and_records_fail_each_by_itself_and_take_turns() {
    let mut core = core();
    core.handle_ask(0, raise(16_384));
    core.handle_ask(0, set(1, "a", 5));
    let told = written(&mut core, &state(16_384, 100), false);
    assert_eq!(told, [(0, News::NotRaised)]);
    core.handle_ask(0, raise(16_384));
    let told = written(&mut core, &records(&[set(1, "a", 5)]), true);
    assert_eq!(told, [(0, News::Recorded { up_to: 1 })]);
    let told = written(&mut core, &state(16_384, 100), true);
    assert_eq!(told, [(0, News::Raised)]);
}

/// A lease that has become a record must not be forgotten between the two.
#[test]
fn d_does_not_fall_while_a_record_is_not_durable() {
    let mut core = core();
    for index in 0..3 {
        core.handle_ask(index, lower(1024));
    }
    core.handle_ask(0, set(1, "a", 5));
    written(&mut core, &records(&[set(1, "a", 5)]), false);
    assert_eq!(core.poll_job(NOW), None);
    core.handle_ask(1, Ask::Reserve { mark: 200 });
    written(&mut core, &state(8192, 200), true);
    let later = NOW.plus_millis(RETRY_MS);
    assert!(matches!(core.poll_job(later), Some(Job::Records(_))));
    core.handle_written(true, later);
    written(&mut core, &state(1024, 200), true);
}

#[test]
fn the_last_writes_are_all_that_is_left_and_a_clean_end() {
    let mut core = core();
    core.handle_ask(0, set(1, "a", 5));
    assert!(matches!(core.poll_job(NOW), Some(Job::Records(_))));
    core.handle_written(false, NOW);
    core.handle_ask(0, set(2, "b", 5));
    let last = core.into_last_writes(77);
    let changes: Arc<[RecordChange]> = last.records.into();
    assert_eq!(
        Job::Records(changes),
        records(&[set(1, "a", 5), set(2, "b", 5)])
    );
    let clean = State {
        mark: 100,
        d_ms: 8192,
        end: End::Clean { left_ms: 77 },
    };
    assert_eq!(last.state, clean);
}
