//! The server over real sockets, as a black box.
//!
//! [`rows`] is one table of what is sent and what must come back, in every
//! configuration; [`scenarios`] are faults met in the field, each by its number;
//! [`process`] is the server as a program: ready line, drain, exit codes.
#![allow(
    clippy::unwrap_used,
    missing_docs,
    unreachable_pub,
    reason = "a failed step fails its test; nothing here is an interface"
)]

#[path = "../common/mod.rs"]
mod common;

mod process;
mod rows;
mod scenarios;
