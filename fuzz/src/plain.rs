//! A fuzz target without a fuzzer: its seeds, and what chance makes of them. Always
//! the same inputs, so that whoever sees a failure sees it again.

use std::io::Write as _;
use std::path::Path;

/// Longest input that is made.
const MAX_BYTES: usize = 2_048;

/// Runs the target on its seeds and `executions` inputs more, times what
/// `LEASEHOLD_FUZZ_TIMES` says, and tells how many executions it were.
pub(crate) fn run(name: &str, target: fn(&[u8]), executions: u64) {
    let times: u64 =
        std::env::var("LEASEHOLD_FUZZ_TIMES").map_or(1, |text| text.parse().expect("a number"));
    let executions = executions * times;
    let seeds = seeds(name);
    for seed in &seeds {
        execute(name, target, seed);
    }
    let mut random = fastrand::Rng::with_seed(0x5eed);
    for _ in 0..executions {
        let input = mutate(&mut random, &seeds);
        execute(name, target, &input);
    }
    let executed = executions + seeds.len() as u64;
    // Not by `println!`, of which nothing is seen when a test passes.
    let told = writeln!(
        std::io::stdout(),
        "{name}: {executed} executions, {} of them seeds",
        seeds.len()
    );
    told.expect("standard output is open");
}

fn seeds(name: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds");
    let files = std::fs::read_dir(directory.join(name)).expect("the target has seeds");
    let mut paths: Vec<_> = files.map(|it| it.expect("an entry").path()).collect();
    paths.sort();
    let seeds: Vec<_> = paths
        .iter()
        .map(|path| std::fs::read(path).expect("a seed"))
        .collect();
    assert!(!seeds.is_empty(), "{name} has no seeds");
    seeds
}

fn execute(name: &str, target: fn(&[u8]), input: &[u8]) {
    let _shown = ShownOnPanic { name, input };
    target(input);
}

/// The input that made the target panic is all that is needed to look into it.
struct ShownOnPanic<'a> {
    name: &'a str,
    input: &'a [u8],
}

impl Drop for ShownOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!(
                "{} failed for b\"{}\"",
                self.name,
                self.input.escape_ascii()
            );
        }
    }
}

fn mutate(random: &mut fastrand::Rng, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut input = seeds[random.usize(..seeds.len())].clone();
    for _ in 0..random.usize(1..8) {
        let at = random.usize(..=input.len());
        let end = random.usize(at..=input.len().min(at + 64));
        match random.u8(..8) {
            0 if at < input.len() => input[at] ^= 1 << random.u8(..8),
            1 if at < input.len() => input[at] = interesting(random),
            2 => input.insert(at, interesting(random)),
            3 => drop(input.drain(at..end)),
            4 => {
                let piece = input[at..end].to_vec();
                let to = random.usize(..=input.len());
                input.splice(to..to, piece);
            }
            5 => {
                let other = &seeds[random.usize(..seeds.len())];
                let from = random.usize(..=other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            6 => input.extend((0..random.usize(1..32)).map(|_| random.u8(..))),
            _ => input[at..end].fill_with(|| random.u8(..)),
        }
    }
    input.truncate(MAX_BYTES);
    input
}

fn interesting(random: &mut fastrand::Rng) -> u8 {
    let fixed = b"\x00\x01\x0A\x0D\x7F\x80\xFF\"{}\\AaRXxCQPH";
    match random.bool() {
        true => fixed[random.usize(..fixed.len())],
        false => random.u8(..),
    }
}
