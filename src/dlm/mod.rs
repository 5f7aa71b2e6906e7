//! The JackrabbitDLM format: coded JSON lines in, coded JSON lines out, nothing else.
//!
//! No socket, clock, file or thread is used here. A request's way:
//!
//! 1. [`Decoder`] takes the received bytes, undoes the wire code, enforces the
//!    payload limit and finds the end of the line.
//! 2. [`ParsedRequest::parse`] reads the JSON, checks every field and, where the
//!    request is anonymous, the limits.
//! 3. A request with a `Name` carries a [`Claim`]: [`IdentityCache`] gives the
//!    [`Verdict`], now or once the identity file was read off the loop.
//! 4. [`ParsedRequest::judge`] makes a [`DlmRequest`] of both.
//! 5. [`DlmReply::encode`] writes the answer.
//!
//! Whatever arrives ends in a request or in one of two [`Fault`]s. Clients use
//! [`DlmRequest::encode`], [`Decoder`] and [`DlmReply::decode`].

mod decimal;
mod identity;
mod identity_cache;
mod json;
mod reply;
mod request;
mod wire;

pub use identity::{
    Claim, Identity, IdentityFileError, Verdict, generate_identity_file, identity_file_name,
};
pub use identity_cache::{IdentityCache, Lookup};
pub use reply::{BadReply, DlmReply, Fault, Status, VERSION_ID};
pub use request::{DlmLimits, DlmRequest, Operation, ParsedRequest};
pub use wire::{Decoder, Progress, decode, encode};
