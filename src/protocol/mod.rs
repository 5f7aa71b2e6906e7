//! The native wire format, version 1: frames in, frames out, nothing else.
//!
//! `docs/protocol.md` describes it for users. Decoding happens in place and
//! borrows the key; encoding appends to a buffer the caller owns. Neither
//! allocates. "More bytes needed" is `None`, never an error.

mod reply;
mod request;

pub use reply::{Reply, ReplyError, Welcome};
pub use request::{FrameError, Request, RequestLimits};

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
