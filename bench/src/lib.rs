//! What the measuring programs share.
//!
//! Nothing here uses the server's own code: frames are written and read by hand,
//! so that a fault of its codec shows up instead of cancelling out.
//!
//! - [`wire`]: lengths of native frames, and one frame
//! - [`keys`]: the key texts
//! - [`hold`]: taking very many locks and keeping them
//! - [`host`]: a core to run on, CPU time and memory of another process

pub mod hold;
pub mod host;
pub mod keys;
pub mod wire;
