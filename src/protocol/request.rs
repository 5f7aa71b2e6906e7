//! Requests: decode for the server, encode for clients.

use super::ErrorCode;

/// One request, decoded in place: `key` and `credential` borrow the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// `A` or `a`: wait for the key at most `wait_ms`, hold it for `lease_ms` from the grant.
    Acquire {
        /// Echoed in the reply.
        owner: u64,
        /// Upper bound of the wait in milliseconds; 0 never queues.
        wait_ms: u32,
        /// Lease in milliseconds, counted from the grant.
        lease_ms: u32,
        /// The lock's name.
        key: &'a [u8],
    },
    /// `R`: give the grant with this token back.
    Release {
        /// Echoed in the reply.
        owner: u64,
        /// The grant's token.
        token: u64,
        /// The lock's name.
        key: &'a [u8],
    },
    /// `X` or `x`: the deadline becomes the later of what it is and now + lease.
    Extend {
        /// Echoed in the reply.
        owner: u64,
        /// Lease in milliseconds, counted from the moment the server judges it.
        lease_ms: u32,
        /// The grant's token.
        token: u64,
        /// The lock's name.
        key: &'a [u8],
    },
    /// `C`: take a queued acquire of this session out of the queue.
    Cancel {
        /// Echoed in the reply.
        owner: u64,
        /// Owner of the acquire to cancel.
        target: u64,
        /// The lock's name.
        key: &'a [u8],
    },
    /// `Q`: what is the key's state.
    Query {
        /// Echoed in the reply.
        owner: u64,
        /// The lock's name.
        key: &'a [u8],
    },
    /// `P`: are you there. `key` must be empty (`E 3` otherwise).
    Ping {
        /// Echoed in the reply.
        owner: u64,
        /// What stood where no key belongs.
        key: &'a [u8],
    },
    /// `H`: first frame only; credential, flags and wanted loop.
    Hello {
        /// Echoed in the reply.
        owner: u64,
        /// Protocol version the client speaks.
        version: u8,
        /// See [`super::flags`].
        flags: u8,
        /// Loop the session should live on, or [`super::ANY_LOOP`].
        wanted_loop: u16,
        /// `name:secret`, or empty.
        credential: &'a [u8],
    },
}

/// Framing is lost: the session is answered this error and closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError {
    /// The request's owner, 0 where its header was not complete.
    pub owner: u64,
    /// [`ErrorCode::UnknownOp`] or [`ErrorCode::BadFrame`].
    pub code: ErrorCode,
}

/// What a server's flags allow a request to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// `--max-key-bytes`.
    pub max_key_bytes: usize,
    /// `--max-lease` in milliseconds.
    pub max_lease_ms: u32,
    /// `--max-wait` in milliseconds.
    pub max_wait_ms: u32,
}

impl<'a> Request<'a> {
    /// Decodes the first frame of `bytes`: the request and how many bytes it took,
    /// `None` when more bytes are needed.
    ///
    /// # Errors
    /// Unknown op, or no newline within the limit: framing is lost.
    pub fn decode(
        bytes: &'a [u8],
        max_key_bytes: usize,
    ) -> Result<Option<(Request<'a>, usize)>, FrameError> {
        let _ = (bytes, max_key_bytes);
        todo!()
    }

    /// Checks key, then lease and wait, in the protocol's order of precedence.
    ///
    /// # Errors
    /// [`ErrorCode::BadKey`] or [`ErrorCode::BadTime`].
    pub fn check(&self, limits: &RequestLimits) -> Result<(), ErrorCode> {
        let _ = limits;
        todo!()
    }

    /// The owner that the reply echoes.
    pub fn owner(&self) -> u64 {
        todo!()
    }

    /// Appends the frame to `out`, in the seconds form (`A`, `X`) where the times
    /// are whole seconds that fit, else in the fine form (`a`, `x`).
    pub fn encode(&self, out: &mut Vec<u8>) {
        let _ = out;
        todo!()
    }
}
