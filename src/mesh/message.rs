//! What crosses from one loop to another: owned, and bounded in size.

use crate::dlm::{DlmReply, Operation};
use crate::ids::{GrantRef, SessionId};
use crate::protocol::{Reply, Request};

/// Longest key (Hello: credential) that crosses without an allocation, in bytes.
pub const INLINE_KEY_BYTES: usize = 54;

/// One message between two loops.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// A request for a key that the receiver owns. It passed [`Request::check`].
    Request {
        /// Who asks; its loop is the one the reply goes to.
        session: SessionId,
        /// Whether the session set `RELEASE_ON_CLOSE`.
        release_on_close: bool,
        /// What it asks.
        request: OwnedRequest,
    },
    /// A session of the sender's is over, and every request of it was sent before this.
    SessionEnd {
        /// The session.
        session: SessionId,
        /// Whether the client's side ended in order (FIN).
        orderly: bool,
    },
    /// The receiver's session is over here too: every reply to it was sent before this.
    SessionEnded {
        /// The session.
        session: SessionId,
    },
    /// A grant that the receiver made came to a session that was gone by then, or not
    /// one byte of its reply could be submitted to the kernel: release it.
    LostGrant(GrantRef),
    /// A reply to a session of the receiver's, which may be gone by now.
    Reply {
        /// The session.
        session: SessionId,
        /// What it is answered.
        reply: Reply,
    },
    /// A grant to a session of the receiver's: an `A` reply, and the handle with
    /// which the grant is given back if the session is gone by now.
    Granted {
        /// The session.
        session: SessionId,
        /// The acquire's owner.
        owner: u64,
        /// The grant, in the lock table of `granted_by`.
        grant: GrantRef,
        /// The loop that made the grant.
        granted_by: u16,
        /// Milliseconds between the sender seeing the acquire and granting it.
        waited_ms: u32,
    },
    /// A JackrabbitDLM request for a name that the receiver owns.
    DlmRequest(Box<DlmCall>),
    /// The answer to one.
    DlmReply(Box<DlmAnswer>),
}

// One and a half cache lines: what the inline key is cut to.
const _: () = assert!(size_of::<Message>() == 96);

/// Where a message lies. `None` only until it is written there.
pub(super) type Slot = Option<Message>;

/// A [`Request`] that owns its key.
#[derive(Debug, PartialEq, Eq)]
pub struct OwnedRequest {
    owner: u64,
    ask: Ask,
    tail: Tail,
}

/// A JackrabbitDLM request in order, its claim found to be true.
#[derive(Debug, PartialEq, Eq)]
pub struct DlmCall {
    /// The connection that is answered.
    pub session: SessionId,
    /// `FileName`: the key.
    pub file_name: Box<str>,
    /// `ID`.
    pub id: Box<str>,
    /// The identity that was proved; `None` for an anonymous request.
    pub name: Option<Box<str>>,
    /// `Action` and what belongs to it; not Version, which asks nothing of an owner.
    pub operation: Operation<'static>,
}

impl DlmCall {
    /// Memory that it takes.
    pub fn memory_bytes(&self) -> usize {
        let data_bytes = match &self.operation {
            Operation::Put { data_store, .. } => data_store.len(),
            _ => 0,
        };
        let name_bytes = self.name.as_ref().map_or(0, |name| name.len());
        size_of::<DlmCall>() + self.file_name.len() + self.id.len() + name_bytes + data_bytes
    }
}

/// What a JackrabbitDLM request is answered.
#[derive(Debug, PartialEq, Eq)]
pub struct DlmAnswer {
    /// The connection that asked; it may be gone by now.
    pub session: SessionId,
    /// What it is answered.
    pub reply: DlmReply<'static>,
}

/// A request without owner and key.
#[derive(Debug, PartialEq, Eq)]
enum Ask {
    Acquire {
        wait_ms: u32,
        lease_ms: u32,
    },
    Release {
        token: u64,
    },
    Extend {
        lease_ms: u32,
        token: u64,
    },
    Cancel {
        target: u64,
    },
    Query,
    Ping,
    Hello {
        version: u8,
        flags: u8,
        wanted_loop: u16,
    },
}

/// Key or credential.
#[derive(Debug, PartialEq, Eq)]
enum Tail {
    Inline {
        len: u8,
        bytes: [u8; INLINE_KEY_BYTES],
    },
    Boxed(Box<[u8]>),
}

impl Message {
    /// Writes a request to where it is to lie. Allocates only for a key over
    /// [`INLINE_KEY_BYTES`].
    ///
    /// Made elsewhere and moved there, it would be read back in wider pieces than it
    /// was written in, and stall for each: that is half of what a hop costs.
    #[inline]
    pub(super) fn write_request(
        slot: &mut Slot,
        session: SessionId,
        release_on_close: bool,
        request: &Request<'_>,
    ) {
        let (keyless, key) = OwnedRequest::split(request);
        let written = slot.insert(Message::Request {
            session,
            release_on_close,
            request: keyless,
        });
        if let Message::Request { request, .. } = written {
            request.tail.set(key);
        }
    }
}

impl OwnedRequest {
    /// The request without its key, and the key.
    #[inline]
    fn split<'a>(request: &Request<'a>) -> (OwnedRequest, &'a [u8]) {
        let (ask, tail) = match *request {
            Request::Acquire {
                owner: _,
                wait_ms,
                lease_ms,
                key,
            } => (Ask::Acquire { wait_ms, lease_ms }, key),
            Request::Release {
                owner: _,
                token,
                key,
            } => (Ask::Release { token }, key),
            Request::Extend {
                owner: _,
                lease_ms,
                token,
                key,
            } => (Ask::Extend { lease_ms, token }, key),
            Request::Cancel {
                owner: _,
                target,
                key,
            } => (Ask::Cancel { target }, key),
            Request::Query { owner: _, key } => (Ask::Query, key),
            Request::Ping { owner: _, key } => (Ask::Ping, key),
            Request::Hello {
                owner: _,
                version,
                flags,
                wanted_loop,
                credential,
            } => (
                Ask::Hello {
                    version,
                    flags,
                    wanted_loop,
                },
                credential,
            ),
        };
        let keyless = OwnedRequest {
            owner: request.owner(),
            ask,
            tail: Tail::EMPTY,
        };
        (keyless, tail)
    }

    /// The request, its key borrowed from here.
    #[inline]
    pub fn as_request(&self) -> Request<'_> {
        let owner = self.owner;
        let key = self.tail.as_bytes();
        match self.ask {
            Ask::Acquire { wait_ms, lease_ms } => Request::Acquire {
                owner,
                wait_ms,
                lease_ms,
                key,
            },
            Ask::Release { token } => Request::Release { owner, token, key },
            Ask::Extend { lease_ms, token } => Request::Extend {
                owner,
                lease_ms,
                token,
                key,
            },
            Ask::Cancel { target } => Request::Cancel { owner, target, key },
            Ask::Query => Request::Query { owner, key },
            Ask::Ping => Request::Ping { owner, key },
            Ask::Hello {
                version,
                flags,
                wanted_loop,
            } => Request::Hello {
                owner,
                version,
                flags,
                wanted_loop,
                credential: key,
            },
        }
    }
}

impl Tail {
    const EMPTY: Tail = Tail::Inline {
        len: 0,
        bytes: [0; INLINE_KEY_BYTES],
    };

    #[inline]
    fn set(&mut self, tail: &[u8]) {
        match self {
            Tail::Inline { len, bytes } if tail.len() <= INLINE_KEY_BYTES => {
                *len = tail.len() as u8;
                bytes[..tail.len()].copy_from_slice(tail);
            }
            _ => *self = Tail::Boxed(tail.into()),
        }
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            Tail::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Tail::Boxed(bytes) => bytes,
        }
    }
}
