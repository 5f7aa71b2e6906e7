//! Faults met in the field with lock servers, lock clients and event loops, each
//! test named by its number and by what it protects.

mod acquire;
mod leases;
mod queues;
mod sockets;
mod vanishing;

/// Far longer than any test takes, in seconds.
const LONG_S: u8 = 250;
