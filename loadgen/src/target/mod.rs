//! The protocols that are spoken: each a codec without I/O. Requests go in as bytes
//! appended to a buffer, replies come out of received bytes.

mod dlm;
mod echo;
mod native;
mod redis;

pub(crate) use dlm::{DlmCodec, DlmIdentity, DlmTemplates, LineCodec};
pub(crate) use echo::EchoCodec;
pub(crate) use native::{NativeCodec, hello};
pub(crate) use redis::{RELEASE_SCRIPT, RedisCodec};

use crate::outcome::Outcome;

/// What a client asks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Call<'a> {
    /// The key, or a place in its queue.
    Acquire {
        /// The key.
        key: &'a [u8],
        /// Longest wait, in milliseconds.
        wait_ms: u32,
        /// Lease, in milliseconds.
        lease_ms: u32,
    },
    /// To give the key back.
    Release {
        /// The key.
        key: &'a [u8],
        /// What its grant carried.
        token: u64,
    },
    /// To store data, for as long as the activity's leases.
    Put {
        /// The name.
        key: &'a [u8],
    },
    /// To read it.
    Get {
        /// The name.
        key: &'a [u8],
    },
    /// Bytes for a server that looks at none.
    Frame {
        /// A key, to have something to send.
        key: &'a [u8],
    },
}

/// What a request was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The key is the client's.
    Granted {
        /// What releases it, and the fencing token where the protocol has one.
        token: u64,
        /// How long the acquire was queued, in milliseconds, rounded down.
        waited_ms: u32,
    },
    /// The key was given back.
    Released,
    /// What else was asked is done.
    Done,
    /// Not so.
    Refused(Outcome),
}

/// Tells a request from all others of its thread; never 0.
pub(crate) type Tag = u64;

/// What a connection speaks.
pub(crate) trait Codec {
    /// A connection takes one request and ends with its answer.
    const ONE_SHOT: bool;
    /// Grants carry fencing tokens.
    const HAS_TOKENS: bool;

    /// Appends what a new connection has to say first, and forgets the old one.
    fn begin(&mut self, out: &mut Vec<u8>);

    /// Appends a request of this activity (by its index; beyond the last: of `--held`).
    fn encode(&mut self, tag: Tag, activity: usize, call: &Call<'_>, out: &mut Vec<u8>);

    /// Decodes the first reply of `bytes`: the tag of its request, the answer, and how
    /// many bytes it took; `None` while it is incomplete.
    ///
    /// # Errors
    /// What no server of this protocol says.
    fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Tag, Answer, usize)>, String>;
}
