//! Replies: encode for the server, decode for clients.

use super::ErrorCode;
use super::layout::Header;
use super::reply_ops as ops;

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
    #[inline]
    pub fn decode(bytes: &[u8]) -> Result<Option<(Reply, usize)>, ReplyError> {
        let Some(&op) = bytes.first() else {
            return Ok(None);
        };
        match op {
            ops::Acquired::OP => decode_frame(bytes, |header: ops::Acquired| {
                Some(Reply::Acquired {
                    owner: header.owner,
                    token: header.token,
                    waited_ms: header.waited_ms,
                })
            }),
            ops::TimedOut::OP => decode_frame(bytes, |header: ops::TimedOut| {
                Some(Reply::TimedOut {
                    owner: header.owner,
                })
            }),
            ops::Busy::OP => decode_frame(bytes, |header: ops::Busy| {
                Some(Reply::Busy {
                    owner: header.owner,
                })
            }),
            ops::Released::OP => decode_frame(bytes, |header: ops::Released| {
                Some(Reply::Released {
                    owner: header.owner,
                })
            }),
            ops::Extended::OP => decode_frame(bytes, |header: ops::Extended| {
                Some(Reply::Extended {
                    owner: header.owner,
                    remaining_ms: header.remaining_ms,
                })
            }),
            ops::NotHeld::OP => decode_frame(bytes, |header: ops::NotHeld| {
                Some(Reply::NotHeld {
                    owner: header.owner,
                })
            }),
            ops::State::OP => decode_frame(bytes, |header: ops::State| {
                Some(Reply::State {
                    owner: header.owner,
                    held: bool_of(header.held)?,
                    remaining_ms: header.remaining_ms,
                    waiters: header.waiters,
                })
            }),
            ops::CancelDone::OP => decode_frame(bytes, |header: ops::CancelDone| {
                Some(Reply::CancelDone {
                    owner: header.owner,
                    cancelled: bool_of(header.cancelled)?,
                })
            }),
            ops::Pong::OP => decode_frame(bytes, |header: ops::Pong| {
                Some(Reply::Pong {
                    owner: header.owner,
                })
            }),
            ops::Welcome::OP => decode_frame(bytes, |header: ops::Welcome| {
                Some(Reply::Welcome(Welcome {
                    owner: header.owner,
                    version: header.version,
                    flags: header.flags,
                    loops: header.loops,
                    loop_index: header.loop_index,
                    routing_seed: header.routing_seed,
                    max_key_bytes: header.max_key_bytes,
                    max_lease_ms: header.max_lease_ms,
                }))
            }),
            ops::Error::OP => decode_frame(bytes, |header: ops::Error| {
                Some(Reply::Error {
                    owner: header.owner,
                    code: ErrorCode::from_code(header.code)?,
                })
            }),
            _ => Err(ReplyError(op)),
        }
    }

    /// Appends the frame to `out`.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Reply::Acquired {
                owner,
                token,
                waited_ms,
            } => encode_frame(
                ops::Acquired {
                    owner,
                    token,
                    waited_ms,
                },
                out,
            ),
            Reply::TimedOut { owner } => encode_frame(ops::TimedOut { owner }, out),
            Reply::Busy { owner } => encode_frame(ops::Busy { owner }, out),
            Reply::Released { owner } => encode_frame(ops::Released { owner }, out),
            Reply::Extended {
                owner,
                remaining_ms,
            } => encode_frame(
                ops::Extended {
                    owner,
                    remaining_ms,
                },
                out,
            ),
            Reply::NotHeld { owner } => encode_frame(ops::NotHeld { owner }, out),
            Reply::State {
                owner,
                held,
                remaining_ms,
                waiters,
            } => encode_frame(
                ops::State {
                    owner,
                    held: u8::from(held),
                    remaining_ms,
                    waiters,
                },
                out,
            ),
            Reply::CancelDone { owner, cancelled } => encode_frame(
                ops::CancelDone {
                    owner,
                    cancelled: u8::from(cancelled),
                },
                out,
            ),
            Reply::Pong { owner } => encode_frame(ops::Pong { owner }, out),
            Reply::Welcome(Welcome {
                owner,
                version,
                flags,
                loops,
                loop_index,
                routing_seed,
                max_key_bytes,
                max_lease_ms,
            }) => encode_frame(
                ops::Welcome {
                    owner,
                    version,
                    flags,
                    loops,
                    loop_index,
                    routing_seed,
                    max_key_bytes,
                    max_lease_ms,
                },
                out,
            ),
            Reply::Error { owner, code } => encode_frame(
                ops::Error {
                    owner,
                    code: code as u8,
                },
                out,
            ),
        }
    }

    /// The owner this reply answers.
    #[inline]
    pub fn owner(&self) -> u64 {
        match *self {
            Reply::Acquired { owner, .. }
            | Reply::TimedOut { owner }
            | Reply::Busy { owner }
            | Reply::Released { owner }
            | Reply::Extended { owner, .. }
            | Reply::NotHeld { owner }
            | Reply::State { owner, .. }
            | Reply::CancelDone { owner, .. }
            | Reply::Pong { owner }
            | Reply::Welcome(Welcome { owner, .. })
            | Reply::Error { owner, .. } => owner,
        }
    }
}

/// Takes one frame with the fields `H` off the front of `bytes`; `build` gives
/// `None` where a field has an impossible value.
#[inline]
fn decode_frame<H: Header>(
    bytes: &[u8],
    build: impl FnOnce(H) -> Option<Reply>,
) -> Result<Option<(Reply, usize)>, ReplyError> {
    let Some((header, tail)) = H::unpack(bytes) else {
        return Ok(None);
    };
    match (tail.first(), build(header)) {
        (None, _) => Ok(None),
        (Some(b'\n'), Some(reply)) => Ok(Some((reply, H::BYTES + 1))),
        _ => Err(ReplyError(H::OP)),
    }
}

#[inline]
fn encode_frame<H: Header>(header: H, out: &mut Vec<u8>) {
    out.extend_from_slice(header.pack().as_ref());
}

#[inline]
fn bool_of(byte: u8) -> Option<bool> {
    match byte {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}
