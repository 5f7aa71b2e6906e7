//! The JackrabbitDLM protocol over real sockets, as a black box: with an encoder
//! and decoder of its own, written from the protocol's description, so that a fault
//! of the server's cannot cancel out.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a failed step fails its test; nothing here is an interface"
)]

#[expect(
    unused,
    reason = "the harness serves every test over sockets; this one leaves some of it to others"
)]
#[path = "../common/mod.rs"]
mod common;

mod closing;
mod drain;
mod exchange;
mod fields;
mod identities;
mod limits;
mod loops;
mod native;
mod slots;
mod vectors;
