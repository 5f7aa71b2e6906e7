//! A lock server for latency-critical Linux hosts.
//!
//! The map comes with the modules.

pub mod client;
pub mod clock;
pub mod config;
pub mod credentials;
pub mod dlm;
pub mod driver;
pub mod engine;
pub mod ids;
pub mod limits;
pub mod protocol;
mod session;
pub mod stats;
pub mod worker;

/// The example that README shows compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
