//! What the measuring programs share.
//!
//! Nothing here uses the server's own code: frames are written and read by hand,
//! so that a fault of its codec shows up instead of cancelling out.
//!
//! - [`wire`]: the two native requests that are measured, and how replies are told apart
//! - [`keys`]: a cheap random number generator and the key texts
//! - [`load`]: the load loop, the same for every kind of server
//! - [`targets`]: how acquire + release pairs are spoken to leasehold, the echo server and Redis
//! - [`hold`]: taking very many locks and keeping them
//! - [`host`]: a core to run on, CPU time and memory of another process

pub mod hold;
pub mod host;
pub mod keys;
pub mod load;
pub mod targets;
pub mod wire;
