//! Requests: decode for the server, encode for clients.

use super::ErrorCode;
use super::layout::Header;
use super::request_ops as ops;
use crate::limits::MAX_CREDENTIAL_BYTES;
use memchr::memchr;

/// Milliseconds in a second, the unit of the `A` and `X` forms.
const MS_PER_S: u32 = 1000;

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
    /// The header is consumed by count, since it may hold `0A`; only after it is
    /// the newline looked for, in no more bytes than the longest key and a newline
    /// (Hello: the longest credential and a newline).
    ///
    /// # Errors
    /// Unknown op, or no newline within the limit: framing is lost.
    #[inline]
    pub fn decode(
        bytes: &'a [u8],
        max_key_bytes: usize,
    ) -> Result<Option<(Request<'a>, usize)>, FrameError> {
        let Some(&op) = bytes.first() else {
            return Ok(None);
        };
        match op {
            ops::Acquire::OP => decode_frame(bytes, max_key_bytes, |header: ops::Acquire, key| {
                Request::Acquire {
                    owner: header.owner,
                    wait_ms: u32::from(header.wait_s) * MS_PER_S,
                    lease_ms: u32::from(header.lease_s) * MS_PER_S,
                    key,
                }
            }),
            ops::AcquireFine::OP => {
                decode_frame(bytes, max_key_bytes, |header: ops::AcquireFine, key| {
                    Request::Acquire {
                        owner: header.owner,
                        wait_ms: header.wait_ms,
                        lease_ms: header.lease_ms,
                        key,
                    }
                })
            }
            ops::Release::OP => decode_frame(bytes, max_key_bytes, |header: ops::Release, key| {
                Request::Release {
                    owner: header.owner,
                    token: header.token,
                    key,
                }
            }),
            ops::Extend::OP => decode_frame(bytes, max_key_bytes, |header: ops::Extend, key| {
                Request::Extend {
                    owner: header.owner,
                    lease_ms: u32::from(header.lease_s) * MS_PER_S,
                    token: header.token,
                    key,
                }
            }),
            ops::ExtendFine::OP => {
                decode_frame(bytes, max_key_bytes, |header: ops::ExtendFine, key| {
                    Request::Extend {
                        owner: header.owner,
                        lease_ms: header.lease_ms,
                        token: header.token,
                        key,
                    }
                })
            }
            ops::Cancel::OP => decode_frame(bytes, max_key_bytes, |header: ops::Cancel, key| {
                Request::Cancel {
                    owner: header.owner,
                    target: header.target,
                    key,
                }
            }),
            ops::Query::OP => decode_frame(bytes, max_key_bytes, |header: ops::Query, key| {
                Request::Query {
                    owner: header.owner,
                    key,
                }
            }),
            ops::Ping::OP => decode_frame(bytes, max_key_bytes, |header: ops::Ping, key| {
                Request::Ping {
                    owner: header.owner,
                    key,
                }
            }),
            ops::Hello::OP => decode_frame(
                bytes,
                MAX_CREDENTIAL_BYTES,
                |header: ops::Hello, credential| Request::Hello {
                    owner: header.owner,
                    version: header.version,
                    flags: header.flags,
                    wanted_loop: header.wanted_loop,
                    credential,
                },
            ),
            _ => Err(FrameError {
                owner: 0,
                code: ErrorCode::UnknownOp,
            }),
        }
    }

    /// Checks key, then lease and wait, in the protocol's order of precedence.
    ///
    /// Hello always passes: what it may ask is for the session to judge.
    ///
    /// # Errors
    /// [`ErrorCode::BadKey`] or [`ErrorCode::BadTime`].
    #[inline]
    pub fn check(&self, limits: &RequestLimits) -> Result<(), ErrorCode> {
        let key_is_good = match *self {
            Request::Acquire { key, .. }
            | Request::Release { key, .. }
            | Request::Extend { key, .. }
            | Request::Cancel { key, .. }
            | Request::Query { key, .. } => !key.is_empty() && is_utf8(key),
            Request::Ping { key, .. } => key.is_empty(),
            Request::Hello { .. } => true,
        };
        if !key_is_good {
            return Err(ErrorCode::BadKey);
        }
        let times_are_good = match *self {
            Request::Acquire {
                wait_ms, lease_ms, ..
            } => wait_ms <= limits.max_wait_ms && is_lease(lease_ms, limits),
            Request::Extend { lease_ms, .. } => is_lease(lease_ms, limits),
            _ => true,
        };
        if !times_are_good {
            return Err(ErrorCode::BadTime);
        }
        Ok(())
    }

    /// The owner that the reply echoes.
    #[inline]
    pub fn owner(&self) -> u64 {
        match *self {
            Request::Acquire { owner, .. }
            | Request::Release { owner, .. }
            | Request::Extend { owner, .. }
            | Request::Cancel { owner, .. }
            | Request::Query { owner, .. }
            | Request::Ping { owner, .. }
            | Request::Hello { owner, .. } => owner,
        }
    }

    /// The key; Ping's, which is empty where it is in order; Hello's credential.
    #[inline]
    pub fn key(&self) -> &'a [u8] {
        match *self {
            Request::Acquire { key, .. }
            | Request::Release { key, .. }
            | Request::Extend { key, .. }
            | Request::Cancel { key, .. }
            | Request::Query { key, .. }
            | Request::Ping { key, .. }
            | Request::Hello {
                credential: key, ..
            } => key,
        }
    }

    /// Appends the frame to `out`, in the seconds form (`A`, `X`) where the times
    /// are whole seconds that fit, else in the fine form (`a`, `x`).
    ///
    /// Key or credential must hold no `0A`: the frame would end there.
    #[inline]
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Request::Acquire {
                owner,
                wait_ms,
                lease_ms,
                key,
            } => match (whole_seconds(wait_ms), whole_seconds(lease_ms)) {
                (Some(wait_s), Some(lease_s)) => {
                    let header = ops::Acquire {
                        wait_s,
                        lease_s,
                        owner,
                    };
                    encode_frame(header, key, out);
                }
                _ => {
                    let header = ops::AcquireFine {
                        wait_ms,
                        lease_ms,
                        owner,
                    };
                    encode_frame(header, key, out);
                }
            },
            Request::Release { owner, token, key } => {
                encode_frame(ops::Release { owner, token }, key, out);
            }
            Request::Extend {
                owner,
                lease_ms,
                token,
                key,
            } => match whole_seconds(lease_ms) {
                Some(lease_s) => {
                    let header = ops::Extend {
                        lease_s,
                        owner,
                        token,
                    };
                    encode_frame(header, key, out);
                }
                None => {
                    let header = ops::ExtendFine {
                        lease_ms,
                        owner,
                        token,
                    };
                    encode_frame(header, key, out);
                }
            },
            Request::Cancel { owner, target, key } => {
                encode_frame(ops::Cancel { owner, target }, key, out);
            }
            Request::Query { owner, key } => encode_frame(ops::Query { owner }, key, out),
            Request::Ping { owner, key } => encode_frame(ops::Ping { owner }, key, out),
            Request::Hello {
                owner,
                version,
                flags,
                wanted_loop,
                credential,
            } => {
                let header = ops::Hello {
                    version,
                    flags,
                    wanted_loop,
                    owner,
                };
                encode_frame(header, credential, out);
            }
        }
    }
}

/// Takes one frame with header `H` and at most `max_tail_bytes` of key off the
/// front of `bytes`, and lets `build` make the request of the two.
#[inline]
fn decode_frame<'a, H: Header>(
    bytes: &'a [u8],
    max_tail_bytes: usize,
    build: impl FnOnce(H, &'a [u8]) -> Request<'a>,
) -> Result<Option<(Request<'a>, usize)>, FrameError> {
    let Some((header, tail)) = H::unpack(bytes) else {
        return Ok(None);
    };
    let scanned = &tail[..tail.len().min(max_tail_bytes.saturating_add(1))];
    match memchr(b'\n', scanned) {
        Some(key_bytes) => {
            let frame_bytes = H::BYTES + key_bytes + 1;
            Ok(Some((build(header, &tail[..key_bytes]), frame_bytes)))
        }
        None if tail.len() > max_tail_bytes => Err(FrameError {
            owner: header.owner(),
            code: ErrorCode::BadFrame,
        }),
        None => Ok(None),
    }
}

#[inline]
fn encode_frame<H: Header>(header: H, key: &[u8], out: &mut Vec<u8>) {
    debug_assert!(memchr(b'\n', key).is_none(), "a key holds no newline");
    let frame = header.pack();
    out.reserve(H::BYTES + key.len() + 1);
    out.extend_from_slice(&frame.as_ref()[..H::BYTES]);
    out.extend_from_slice(key);
    out.push(b'\n');
}

/// The one-byte form of a time, where it is whole seconds that fit.
#[inline]
fn whole_seconds(time_ms: u32) -> Option<u8> {
    if time_ms.is_multiple_of(MS_PER_S) {
        u8::try_from(time_ms / MS_PER_S).ok()
    } else {
        None
    }
}

#[inline]
fn is_lease(lease_ms: u32, limits: &RequestLimits) -> bool {
    0 < lease_ms && lease_ms <= limits.max_lease_ms
}

/// Nearly all keys are short and ASCII, which is cheaper to see than to decode.
#[inline]
fn is_utf8(key: &[u8]) -> bool {
    key.is_ascii() || std::str::from_utf8(key).is_ok()
}
