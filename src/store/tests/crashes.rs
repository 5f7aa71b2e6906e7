//! Loops that ask, a disk that fails, and a stop at every step of it: what a loop was
//! told is what the next server finds.

use fastrand::Rng;

use super::disk::Disk;
use crate::durability::{Ask, Durable, News, d_for, lower_d};
use crate::engine::time::Time;
use crate::store::PreviousEnd;
use crate::store::copies::Copies;
use crate::store::core::{Job, RETRY_MS, StoreCore};
use crate::store::format::State;
use crate::store::start::Start;

const CAP_MS: u64 = 300_000;
const ASKS_OF_A_RUN: usize = 12;

/// What the loops know, over all servers.
#[derive(Debug, Default)]
struct Told {
    mark: u64,
    /// At least so long may leases be that a loop has told of.
    d_ms: u64,
}

struct Loop {
    /// What was told, and what has been asked for.
    may_ms: u64,
    raising_to: Option<u64>,
    reserving: bool,
}

/// One server's life; `None` if the disk stopped.
fn live(disk: &Disk, rng: &mut Rng, told: &mut Told) -> Option<State> {
    let (mut copies, loaded) =
        Copies::load(disk.clone()).expect("of two copies one is always whole");
    if let Some(state) = loaded.state {
        assert!(state.d_ms >= told.d_ms, "{state:?} {told:?}");
        assert!(state.mark >= told.mark, "{state:?} {told:?}");
    } else {
        assert_eq!((told.d_ms, told.mark), (0, 0));
    }
    // The wall clock stands back further than ever.
    let start = Start::decide(loaded.state, 1, 0, false).expect("tokens are left");
    if let PreviousEnd::Unclean { d_ms } = start.previous {
        assert!(start.wait_ms >= told.d_ms && d_ms >= told.d_ms);
    }
    assert!(start.first_token >= told.mark);
    copies.write(&start.state).ok()?;
    let now = Time::from_millis(5);
    let durable = start.durable(CAP_MS, now);
    told.mark = durable.mark;
    told.d_ms = durable.d_ms;
    let loops = rng.u16(1..4);
    serve(&mut copies, rng, told, loops, &durable, now)
}

fn serve(
    copies: &mut Copies<Disk>,
    rng: &mut Rng,
    told: &mut Told,
    count: u16,
    durable: &Durable,
    mut now: Time,
) -> Option<State> {
    let mut core = StoreCore::new(count, durable);
    let new_loop = |_| Loop {
        may_ms: durable.d_ms,
        raising_to: None,
        reserving: false,
    };
    let mut loops: Vec<Loop> = (0..count).map(new_loop).collect();
    for _ in 0..ASKS_OF_A_RUN {
        for _ in 0..rng.u8(..4) {
            ask(&mut core, rng, &mut loops, told);
        }
        now = now.plus_millis(rng.u64(..RETRY_MS));
        if let Some(Job::State(state)) = core.poll_job(now) {
            // Some loops ask while it is written.
            ask(&mut core, rng, &mut loops, told);
            core.invariants();
            let is_durable = copies.write(&state).is_ok();
            core.handle_written(is_durable, now);
        }
        core.invariants();
        hear(&mut core, &mut loops, told);
        if copies.media().is_stopped() {
            return None;
        }
    }
    let last = core.into_last_writes(rng.u64(..9));
    copies.write(&last.state).ok()?;
    Some(last.state)
}

fn ask(core: &mut StoreCore, rng: &mut Rng, loops: &mut [Loop], told: &mut Told) {
    let index = rng.usize(..loops.len());
    let asking = &mut loops[index];
    let ask = match rng.u8(..3) {
        0 if asking.raising_to.is_none() => {
            let to_ms = d_for(rng.u64(1..CAP_MS), CAP_MS);
            if to_ms <= asking.may_ms {
                return;
            }
            asking.raising_to = Some(to_ms);
            Ask::Raise { to_ms }
        }
        1 if asking.raising_to.is_none() => {
            asking.may_ms = lower_d(asking.may_ms);
            Ask::Lower {
                to_ms: asking.may_ms,
            }
        }
        2 if !asking.reserving => {
            asking.reserving = true;
            Ask::Reserve {
                mark: told.mark + rng.u64(..5),
            }
        }
        _ => return,
    };
    core.handle_ask(u16::try_from(index).expect("few loops"), ask);
    hear(core, loops, told);
}

/// Passes the news on, and keeps what they promise.
fn hear(core: &mut StoreCore, loops: &mut [Loop], told: &mut Told) {
    while let Some((index, news)) = core.poll_news() {
        let hearing = &mut loops[usize::from(index)];
        match news {
            News::Raised => hearing.may_ms = hearing.raising_to.take().expect("it asked"),
            News::NotRaised => assert!(hearing.raising_to.take().is_some()),
            News::Reserved { mark } => {
                assert!(std::mem::take(&mut hearing.reserving));
                told.mark = told.mark.max(mark);
            }
            News::NotReserved => assert!(std::mem::take(&mut hearing.reserving)),
            News::Recorded { .. } | News::NotRecorded { .. } => panic!("nothing is recorded"),
        }
    }
    told.d_ms = loops.iter().map(|it| it.may_ms).max().unwrap_or(0);
}

/// Servers of one disk, one after the other; the one of this number is stopped at that
/// step. Returns how many steps it made.
fn history(seed: u64, failures: u32, stopped: usize, at_step: Option<u32>) -> u32 {
    let disk = Disk::new(seed);
    let mut rng = Rng::with_seed(seed);
    let mut told = Told::default();
    let mut steps = 0;
    for number in 0..3 {
        // So that the first write of all works in one history and fails in the next.
        disk.set_failures(failures);
        let before = disk.steps();
        if number == stopped {
            disk.stop_after(at_step);
        }
        let clean_end = live(&disk, &mut rng, &mut told);
        if number == stopped {
            steps = disk.steps() - before;
            disk.stop_after(None);
        }
        // Otherwise it was only killed, and the kernel still knows.
        if rng.bool() {
            disk.lose_power();
        }
        disk.set_failures(0);
        let (_, loaded) = Copies::load(disk.clone()).expect("one copy is whole");
        if clean_end.is_some() {
            assert_eq!(loaded.state, clean_end);
        }
    }
    steps
}

#[test]
fn what_a_loop_was_told_is_what_the_next_server_finds() {
    for seed in 0..150 {
        for failures in [0, 10] {
            for stopped in 0..2 {
                let steps = history(seed, failures, stopped, None);
                for at_step in 1..=steps {
                    history(seed, failures, stopped, Some(at_step));
                }
            }
        }
    }
}
