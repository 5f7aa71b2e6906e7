//! Faults met in the field with lock servers, lock clients and event loops, each
//! test named by its number and by what it protects.

use rustix::process::{Resource, getrlimit, setrlimit};

mod acquire;
mod balance;
mod leases;
mod moves;
mod queues;
mod remote;
mod sockets;
mod vanishing;

/// Far longer than any test takes, in seconds.
const LONG_S: u8 = 250;

/// Lets this process open as many descriptors as it ever may.
fn raise_descriptor_limit(needed: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    let allowed = limit.maximum.unwrap_or(u64::MAX);
    assert!(allowed >= needed, "the hard descriptor limit is {allowed}");
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).expect("the soft limit may be raised");
}

/// The same numbers on every run, well mixed.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    *state >> 33
}
