//! The JackrabbitDLM format: coded JSON lines in, coded JSON lines out, nothing else.

mod wire;

pub use wire::{Decoder, Progress, encode};
