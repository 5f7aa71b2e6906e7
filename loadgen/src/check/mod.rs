//! Whether the server is right: what may be believed of a key, and what its answers say.

mod history;
mod ledger;
mod verify;

pub(crate) use history::{Event, EventKind, History, shown_history};
pub(crate) use ledger::{Fault, Grant, Ledger, SharedLedger, TokenTable, bound_ns};
pub(crate) use verify::{Expected, verify};
