//! Faults met in the field with lock servers, lock clients and event loops, each
//! test named by its number and by what it protects.

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

/// The same numbers on every run, well mixed.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    *state >> 33
}
