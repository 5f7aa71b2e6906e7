//! The native wire format, version 1: frames in, frames out, nothing else.
//!
//! `docs/protocol.md` describes it for users. Decoding happens in place and
//! borrows the key, so it never allocates; encoding appends to a buffer the caller
//! owns, which grows if it has to. "More bytes needed" is `None`, never an error.

mod layout;
mod reply;
mod request;

#[cfg(test)]
mod tests;

pub use reply::{Reply, ReplyError, Welcome};
pub use request::{FrameError, Request, RequestLimits};

use crate::limits::{MAX_HEADER_BYTES, MAX_REPLY_BYTES};

/// The protocol version that Hello and Welcome carry.
pub const VERSION: u8 = 1;

/// Hello's wanted loop when any will do.
pub const ANY_LOOP: u16 = 0xFFFF;

/// Hello's flag bits.
pub mod flags {
    /// Bit 0: at the client's orderly end (FIN) the session's grants are released at once.
    pub const RELEASE_ON_CLOSE: u8 = 1 << 0;
    /// Bits whose unknown members are refused (`E 7`); the others are ignored and come back as 0.
    pub const REQUIRED: u8 = 0xF0;
    /// Bits this server knows.
    pub const KNOWN: u8 = RELEASE_ON_CLOSE;
}

/// Why a request was refused: the `code` of an `E` reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ErrorCode {
    /// Unknown op: framing is lost, the session is closed.
    UnknownOp = 1,
    /// No newline within the key or credential limit; the session is closed.
    BadFrame = 2,
    /// Key empty where one is needed, present where none is, or not UTF-8.
    BadKey = 3,
    /// Lease 0, lease over `--max-lease`, or wait over `--max-wait`.
    BadTime = 4,
    /// Authentication required or refused; the session is closed.
    Unauthenticated = 5,
    /// Key table or memory limit reached, or the state directory cannot be written.
    Overloaded = 6,
    /// Unsupported version or required flag, loop out of range, or Hello not
    /// first; the session is closed.
    Unsupported = 7,
    /// The server is draining.
    ShuttingDown = 8,
    /// Too many acquires of this session are queued.
    TooManyQueued = 9,
}

impl ErrorCode {
    /// The error with this code on the wire, if there is one.
    pub const fn from_code(code: u8) -> Option<ErrorCode> {
        Some(match code {
            1 => ErrorCode::UnknownOp,
            2 => ErrorCode::BadFrame,
            3 => ErrorCode::BadKey,
            4 => ErrorCode::BadTime,
            5 => ErrorCode::Unauthenticated,
            6 => ErrorCode::Overloaded,
            7 => ErrorCode::Unsupported,
            8 => ErrorCode::ShuttingDown,
            9 => ErrorCode::TooManyQueued,
            _ => return None,
        })
    }

    /// Whether the session is closed after this error.
    pub const fn closes_session(self) -> bool {
        matches!(
            self,
            ErrorCode::UnknownOp
                | ErrorCode::BadFrame
                | ErrorCode::Unauthenticated
                | ErrorCode::Unsupported
        )
    }
}

/// Requests: op, name, and the fields of the fixed header in the order of the
/// wire. The key (Hello: the credential) and the newline follow.
mod request_ops {
    super::layout::op_table! {
        b'A' Acquire { wait_s: u8, lease_s: u8, owner: u64 }
        b'a' AcquireFine { wait_ms: u32, lease_ms: u32, owner: u64 }
        b'R' Release { owner: u64, token: u64 }
        b'X' Extend { lease_s: u8, owner: u64, token: u64 }
        b'x' ExtendFine { lease_ms: u32, owner: u64, token: u64 }
        b'C' Cancel { owner: u64, target: u64 }
        b'Q' Query { owner: u64 }
        b'P' Ping { owner: u64 }
        b'H' Hello { version: u8, flags: u8, wanted_loop: u16, owner: u64 }
    }
}

/// Replies: op, name, and the fields in the order of the wire. The newline follows.
mod reply_ops {
    super::layout::op_table! {
        b'A' Acquired { owner: u64, token: u64, waited_ms: u32 }
        b'T' TimedOut { owner: u64 }
        b'B' Busy { owner: u64 }
        b'R' Released { owner: u64 }
        b'X' Extended { owner: u64, remaining_ms: u32 }
        b'N' NotHeld { owner: u64 }
        b'Q' State { owner: u64, held: u8, remaining_ms: u32, waiters: u32 }
        b'C' CancelDone { owner: u64, cancelled: u8 }
        b'P' Pong { owner: u64 }
        b'H' Welcome {
            owner: u64, version: u8, flags: u8, loops: u16, loop_index: u16,
            routing_seed: u64, max_key_bytes: u16, max_lease_ms: u32
        }
        b'E' Error { owner: u64, code: u8 }
    }
}

const _: () = assert!(longest(request_ops::ROWS) == MAX_HEADER_BYTES);
const _: () = assert!(longest(reply_ops::ROWS) + 1 == MAX_REPLY_BYTES);

/// Length in bytes of the longest fixed part in a table.
const fn longest(rows: &[(u8, usize)]) -> usize {
    let mut longest = 0;
    let mut index = 0;
    while index < rows.len() {
        if rows[index].1 > longest {
            longest = rows[index].1;
        }
        index += 1;
    }
    longest
}
