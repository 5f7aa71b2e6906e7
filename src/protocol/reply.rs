//! Replies: encode for the server, decode for clients.

use super::ErrorCode;

/// One reply. Its frame's length is fixed by its op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// `A`: granted.
    Acquired {
        /// The request's owner.
        owner: u64,
        /// Authority to release and extend, and fencing token.
        token: u64,
        /// Milliseconds between the server seeing the acquire and granting it, rounded down.
        waited_ms: u32,
    },
    /// `T`: the wait is over without a grant.
    TimedOut {
        /// The request's owner.
        owner: u64,
    },
    /// `B`: the key's queue, or the server's total of waiters, is full.
    Busy {
        /// The request's owner.
        owner: u64,
    },
    /// `R`: released.
    Released {
        /// The request's owner.
        owner: u64,
    },
    /// `X`: extended.
    Extended {
        /// The request's owner.
        owner: u64,
        /// Milliseconds that remain at the server now, rounded down.
        remaining_ms: u32,
    },
    /// `N`: not held by that token.
    NotHeld {
        /// The request's owner.
        owner: u64,
    },
    /// `Q`: a key's state.
    State {
        /// The request's owner.
        owner: u64,
        /// Whether anybody holds the key.
        held: bool,
        /// Milliseconds left, rounded up, at least 1 while held, `u32::MAX` if more.
        remaining_ms: u32,
        /// Length of the key's queue.
        waiters: u32,
    },
    /// `C`: cancel done.
    CancelDone {
        /// The request's owner.
        owner: u64,
        /// Whether a queued acquire has just been answered `T` because of this.
        cancelled: bool,
    },
    /// `P`: pong.
    Pong {
        /// The request's owner.
        owner: u64,
    },
    /// `H`: welcome.
    Welcome(Welcome),
    /// `E`: refused.
    Error {
        /// The request's owner, 0 where its header was not complete.
        owner: u64,
        /// Why.
        code: ErrorCode,
    },
}

/// What Hello is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Welcome {
    /// The request's owner.
    pub owner: u64,
    /// Protocol version in force.
    pub version: u8,
    /// Flags in force.
    pub flags: u8,
    /// How many loops the server has.
    pub loops: u16,
    /// The loop this session lives on.
    pub loop_index: u16,
    /// Seed of the routing hash.
    pub routing_seed: u64,
    /// Longest key the server takes, in bytes.
    pub max_key_bytes: u16,
    /// Longest lease the server grants, in milliseconds.
    pub max_lease_ms: u32,
}

/// The bytes are no reply of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a reply of the leasehold protocol (starts with byte {0:#04x})")]
pub struct ReplyError(pub u8);

impl Reply {
    /// Decodes the first frame of `bytes`: the reply and how many bytes it took,
    /// `None` when more bytes are needed.
    ///
    /// # Errors
    /// The op is unknown, a field has an impossible value, or the newline is missing.
    pub fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ReplyError> {
        let _ = bytes;
        todo!()
    }

    /// Appends the frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let _ = out;
        todo!()
    }

    /// The owner this reply answers.
    pub fn owner(&self) -> u64 {
        todo!()
    }
}
