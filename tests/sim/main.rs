//! A whole server in one thread: real workers joined by the real mesh, played by
//! stand-ins for drivers, kernels, clients and the clock. One number makes a history:
//!
//! - `SIM_SEED=123 cargo test --test sim random_histories` plays that one again;
//! - `SIM_RUNS=1000` plays so many;
//! - `SIM_FIRST=5000` begins with another seed;
//! - `SIM_SHRINK_SECONDS=300` looks longer for the shortest history that fails.

#![allow(clippy::unwrap_used)]

mod clocks;
mod covered;
mod dlm_talk;
mod env;
mod history;
mod host;
mod ledger;
mod linear;
mod linear_state;
mod linear_tests;
mod link;
mod options;
mod quiet;
mod scenarios;
mod shrink;
mod talk;
mod traffic;
mod world;

use covered::Covered;
use options::Options;
use world::World;

/// Histories that the gate plays.
const RUNS: u64 = 300;

#[test]
fn random_histories() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    if let Some(seed) = number("SIM_SEED") {
        return println!("{}", play(seed));
    }
    let first = number("SIM_FIRST").unwrap_or(1);
    let mut covered = Covered::default();
    let runs = number("SIM_RUNS").unwrap_or(RUNS);
    for seed in first..first + runs {
        covered.add(&play(seed));
    }
    println!("{covered}");
    if runs >= RUNS {
        covered.check();
    }
}

/// Else a seed would be of no use to whoever looks for a fault.
#[test]
fn a_seed_makes_one_history() {
    for seed in 1..10 {
        assert_eq!(play(seed), play(seed), "seed {seed}");
    }
}

/// Plays one history, and looks for a shorter one if it fails.
fn play(seed: u64) -> Covered {
    let options = Options::of_seed(seed);
    match shrink::try_play(&options, play_in) {
        Ok(covered) => covered,
        Err(failed) => panic!("{}", shrink::report(&options, failed, play_in)),
    }
}

fn play_in(world: &mut World) -> Covered {
    let next_check = |world: &mut World| world.steps + world.env.rng.u64(100..1_500);
    let mut check_at = next_check(world);
    while world.steps < world.options.steps {
        world.step();
        if world.steps >= check_at {
            world.check_quiet();
            check_at = next_check(world);
        }
    }
    let explained = if world.options.drains {
        let explained = world.check_linear();
        world.drain();
        world.check_end();
        explained
    } else {
        world.check_end();
        world.check_linear()
    };
    Covered::by(world, explained)
}
