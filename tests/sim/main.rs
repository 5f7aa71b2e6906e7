//! A whole server in one thread: real workers joined by the real mesh, played by
//! stand-ins for drivers, kernels, clients and the clock. One number makes a history:
//!
//! - `SIM_SEED=123 cargo test --test sim random_histories` plays that one again;
//! - `SIM_RUNS=1000` plays so many;
//! - `SIM_FIRST=5000` begins with another seed;
//! - `SIM_SHRINK_SECONDS=300` looks longer for the shortest history that fails.

#![allow(clippy::unwrap_used)]

mod clocks;
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

use options::Options;
use world::World;

/// Histories that the gate plays.
const RUNS: u64 = 300;

/// What histories came through, to be sure that they come through all of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Covered {
    steps: u64,
    links: u64,
    moves: u64,
    sleeps: u64,
    granted: u64,
    timed_out: u64,
    busy: u64,
    cancelled: u64,
    gone: u64,
    refused: u64,
    extended: u64,
    expired: u64,
    released_on_close: u64,
    lost_grants: u64,
    dlm_granted: u64,
    dlm_renewed: u64,
    mesh_refused: u64,
    spilled: u64,
    wakes: u64,
    stalled: u64,
    over_output_limit: u64,
    closed_on_error: u64,
    explained: u64,
    undecided: u64,
}

#[test]
fn random_histories() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .map(|text| text.parse::<u64>().expect("a number"))
    };
    if let Some(seed) = number("SIM_SEED") {
        return println!("{:?}", play(seed));
    }
    let first = number("SIM_FIRST").unwrap_or(1);
    let mut covered = Covered::default();
    let runs = number("SIM_RUNS").unwrap_or(RUNS);
    for seed in first..first + runs {
        covered.add(&play(seed));
    }
    println!("{covered:?}");
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
    Covered {
        explained: explained.keys,
        undecided: explained.undecided,
        ..Covered::by(world)
    }
}

impl Covered {
    fn by(world: &World) -> Covered {
        let mut sum = Covered {
            steps: world.steps,
            links: world.env.links.len() as u64,
            moves: world.env.moves,
            ..Covered::default()
        };
        for host in &world.hosts {
            let engine = host.worker.engine().counters();
            let sessions = host.worker.session_counters();
            let mesh = host.worker.mesh_counters();
            sum.sleeps += host.sleeps;
            sum.granted += engine.granted;
            sum.timed_out += engine.timed_out;
            sum.busy += engine.busy;
            sum.cancelled += engine.cancelled;
            sum.gone += engine.gone;
            sum.refused += engine.refused;
            sum.extended += engine.extended;
            sum.expired += engine.expired;
            sum.released_on_close += engine.released_on_close;
            sum.lost_grants += engine.lost_grants;
            sum.dlm_granted += engine.dlm_granted;
            sum.dlm_renewed += engine.dlm_renewed;
            sum.mesh_refused += mesh.refused;
            sum.spilled += mesh.spilled;
            sum.wakes += mesh.wakes;
            sum.stalled += sessions.stalled;
            sum.over_output_limit += sessions.over_output_limit;
            sum.closed_on_error += sessions.closed_on_error;
        }
        sum
    }

    fn all(&mut self) -> [&mut u64; 24] {
        [
            &mut self.steps,
            &mut self.links,
            &mut self.moves,
            &mut self.sleeps,
            &mut self.granted,
            &mut self.timed_out,
            &mut self.busy,
            &mut self.cancelled,
            &mut self.gone,
            &mut self.refused,
            &mut self.extended,
            &mut self.expired,
            &mut self.released_on_close,
            &mut self.lost_grants,
            &mut self.dlm_granted,
            &mut self.dlm_renewed,
            &mut self.mesh_refused,
            &mut self.spilled,
            &mut self.wakes,
            &mut self.stalled,
            &mut self.over_output_limit,
            &mut self.closed_on_error,
            &mut self.explained,
            &mut self.undecided,
        ]
    }

    fn add(&mut self, other: &Covered) {
        let mut other = *other;
        for (sum, one) in self.all().into_iter().zip(other.all()) {
            *sum += *one;
        }
    }

    fn check(mut self) {
        let shown = format!("{self:?}");
        let is_complete = self.all().into_iter().all(|count| *count > 0);
        assert!(is_complete, "some of it was never tried: {shown}");
    }
}
