//! The lock semantics as a model, walked through all its states: every order in which
//! clients act, messages cross, timers fire, sessions end and the server dies. See
//! `docs/formal-model.md`.

mod server;
mod state;
mod steps;
mod world;

use std::collections::BTreeSet;
use std::io::Write as _;

use state::Tick;
use stateright::{Checker, HasDiscoveries, Model};
use steps::*;
use world::{Fault, LONG, SHORT, Setup, World};

/// How much one of two clients asks for: more, where larger instances are to be walked
/// through, for minutes.
fn second() -> u8 {
    1 + u8::from(std::env::var_os("LEASEHOLD_FORMAL_LONG").is_some())
}

/// Walks through all states, and says how many there are.
fn holds(name: &str, world: World) {
    let began = std::time::Instant::now();
    let checked = world.checker().threads(2).spawn_bfs().join();
    checked.assert_properties();
    tell(format_args!(
        "{name}: {} states, {} steps, at most {} deep, {:.1} s",
        checked.unique_state_count(),
        checked.state_count(),
        checked.max_depth(),
        began.elapsed().as_secs_f64()
    ));
}

/// The fault is seen by this property, and by the same world without it is not.
fn rejects(world: &World, fault: Fault, property: &'static str) {
    let checked = world
        .with(fault)
        .checker()
        .threads(2)
        .finish_when(HasDiscoveries::AllOf(BTreeSet::from([property])))
        .spawn_bfs()
        .join();
    let found = checked.discoveries();
    assert!(
        found.contains_key(property),
        "{fault:?} was not seen by `{property}` but by {:?}, in {} states",
        found.keys(),
        checked.unique_state_count()
    );
    tell(format_args!(
        "{fault:?}: rejected after {} states, in {} steps",
        checked.unique_state_count(),
        found[property].clone().into_actions().len()
    ));
}

/// Not by `println!`, of which nothing is seen when a test passes.
fn tell(what: std::fmt::Arguments<'_>) {
    writeln!(std::io::stdout(), "{what}").expect("standard output is open");
}

/// One key; one client is on its loop and one is not.
fn two_loops() -> World {
    World {
        acquires: vec![(2, 1), (0, 2)],
        ..World::new(vec![Setup::at(0, second()), Setup::at(1, 2)], vec![0])
    }
}

/// Cancels, and extends that ask for this much, early and late.
fn extends_and_cancels(lease: Tick) -> World {
    World {
        acquires: vec![(2, 2)],
        extend: Some(lease),
        cancels: true,
        ..two_loops()
    }
}

/// Three clients for one key, so that queues have an order.
fn queue_of_three() -> World {
    World::new(
        vec![Setup::at(0, 1), Setup::at(1, 1), Setup::at(1, 1)],
        vec![0],
    )
}

/// Two keys on two loops.
fn two_keys() -> World {
    World {
        acquires: vec![(1, 1)],
        ..World::new(vec![Setup::at(0, second()), Setup::at(1, 2)], vec![0, 1])
    }
}

/// Sessions that end in every way, at every moment.
fn endings(release_on_close: bool) -> World {
    let ends = |at| Setup {
        release_on_close,
        may_finish: true,
        may_reset: true,
        ..Setup::at(at, 1)
    };
    World {
        acquires: vec![(2, 2)],
        ..World::new(vec![ends(0), ends(1)], vec![0])
    }
}

/// A server that dies twice, leases that D covers at first, and leases that it does not.
fn crashes() -> World {
    World {
        acquires: vec![(1, SHORT), (0, LONG)],
        crashes: 2,
        ..World::new(vec![Setup::at(0, second()), Setup::at(0, 1)], vec![0])
    }
}

#[test]
fn locks_hold_across_two_loops() {
    holds("two loops", two_loops());
}

#[test]
fn locks_hold_while_leases_are_extended_and_waits_cancelled() {
    holds("short extends", extends_and_cancels(SHORT));
    holds("long extends", extends_and_cancels(LONG));
}

#[test]
fn a_queue_of_three_holds() {
    holds("queue of three", queue_of_three());
}

#[test]
fn two_keys_on_two_loops_hold() {
    holds("two keys", two_keys());
}

#[test]
fn sessions_may_end_at_any_moment() {
    holds("endings", endings(false));
    holds("endings, released on close", endings(true));
}

#[test]
fn the_server_may_die_at_any_moment() {
    holds("crashes", crashes());
}

#[test]
fn an_expired_lease_may_block_its_key() {
    let world = World {
        acquires: vec![(2, 1)],
        expiry_grace: 1,
        ..two_loops()
    };
    holds("expiry grace", world);
}

#[test]
fn every_fault_is_rejected() {
    let cases = [
        (crashes(), Fault::GrantDuringGrace, ONE_BELIEVES),
        (crashes(), Fault::TokensBeginAnew, STEPS_IN_ORDER),
        (crashes(), Fault::ReplyBeforeDurable, ONE_BELIEVES),
        (crashes(), Fault::DFallsAtOnce, ONE_BELIEVES),
        (endings(false), Fault::SkipLostGrant, LOST_GRANTS_RETURN),
        (endings(false), Fault::TakeBackToldGrant, ONE_BELIEVES),
        (endings(false), Fault::EndAnswersNobody, NOTHING_OWED),
        (endings(false), Fault::EndLeavesWaiters, NOTHING_OWED),
        (endings(true), Fault::ResetReleases, ONE_BELIEVES),
        (
            extends_and_cancels(SHORT),
            Fault::ExtendShortens,
            ONE_BELIEVES,
        ),
        (
            extends_and_cancels(LONG),
            Fault::ExtendLosesTimer,
            NOTHING_OWED,
        ),
        (
            extends_and_cancels(SHORT),
            Fault::CancelAnswersNobody,
            NOTHING_OWED,
        ),
        (
            extends_and_cancels(SHORT),
            Fault::CancelLeavesWaiter,
            STEPS_IN_ORDER,
        ),
        (two_loops(), Fault::AnyTokenReleases, ONE_BELIEVES),
        (two_loops(), Fault::GrantAfterWait, STEPS_IN_ORDER),
        (two_loops(), Fault::WaitingCostsLease, ONE_BELIEVES),
        (two_loops(), Fault::WaitedRoundedUp, ONE_BELIEVES),
        (two_loops(), Fault::StaleClock, ONE_BELIEVES),
        (two_loops(), Fault::FreeWithWaiters, FREE_IS_EMPTY),
        (queue_of_three(), Fault::LastInFirstOut, STEPS_IN_ORDER),
    ];
    for (world, fault, property) in &cases {
        rejects(world, *fault, property);
    }
}
