//! What tests over real sockets share: the server as a process, clients that know
//! only bytes, and an encoder and decoder of their own, written from the
//! protocol's tables, so that a fault of the server's codec cannot cancel out.

pub mod client;
pub mod configuration;
pub mod directory;
pub mod routing;
pub mod server;
pub mod wire;
