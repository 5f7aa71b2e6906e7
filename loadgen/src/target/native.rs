//! leasehold's own protocol.

use super::{Answer, Call, Codec, Tag};
use crate::outcome::Outcome;
use leasehold::protocol::{Reply, Request, VERSION};

/// A session with a leasehold server.
#[derive(Debug)]
pub(crate) struct NativeCodec {
    greeting: Option<Greeting>,
    awaits_welcome: bool,
}

/// What a session says first.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    frame: Vec<u8>,
    wanted_loop: u16,
}

/// Owner of the Hello; tags stay below.
const HELLO_OWNER: u64 = u64::MAX;

/// A Hello.
pub(crate) fn hello(wanted_loop: u16, credential: &[u8]) -> Vec<u8> {
    let mut frame = Vec::new();
    let request = Request::Hello {
        owner: HELLO_OWNER,
        version: VERSION,
        flags: 0,
        wanted_loop,
        credential,
    };
    request.encode(&mut frame);
    frame
}

impl NativeCodec {
    /// A session that says nothing first.
    pub(crate) fn silent() -> NativeCodec {
        NativeCodec {
            greeting: None,
            awaits_welcome: false,
        }
    }

    /// A session that wants to be on a loop, or to be let in.
    pub(crate) fn greeting(wanted_loop: u16, credential: &[u8]) -> NativeCodec {
        NativeCodec {
            greeting: Some(Greeting {
                frame: hello(wanted_loop, credential),
                wanted_loop,
            }),
            awaits_welcome: false,
        }
    }

    #[cold]
    fn welcomed(&mut self, reply: &Reply) -> Result<(), String> {
        let wanted = self.greeting.as_ref().map(|greeting| greeting.wanted_loop);
        match reply {
            Reply::Welcome(welcome) if self.awaits_welcome => {
                let is_any = wanted == Some(leasehold::protocol::ANY_LOOP);
                if !is_any && wanted != Some(welcome.loop_index) {
                    return Err(format!(
                        "the session was put on loop {} instead of {wanted:?}",
                        welcome.loop_index
                    ));
                }
                self.awaits_welcome = false;
                Ok(())
            }
            other => Err(format!("{other:?} answers no request")),
        }
    }
}

impl Codec for NativeCodec {
    const ONE_SHOT: bool = false;
    const HAS_TOKENS: bool = true;

    fn begin(&mut self, out: &mut Vec<u8>) {
        if let Some(greeting) = &self.greeting {
            out.extend_from_slice(&greeting.frame);
            self.awaits_welcome = true;
        }
    }

    #[inline]
    fn encode(&mut self, tag: Tag, _activity: usize, call: &Call<'_>, out: &mut Vec<u8>) {
        match *call {
            Call::Acquire {
                key,
                wait_ms,
                lease_ms,
            } => Request::Acquire {
                owner: tag,
                wait_ms,
                lease_ms,
                key,
            }
            .encode(out),
            Call::Release { key, token } => Request::Release {
                owner: tag,
                token,
                key,
            }
            .encode(out),
            // Plans are checked: this protocol is not asked for data.
            Call::Put { key } | Call::Get { key } | Call::Frame { key } => {
                Request::Query { owner: tag, key }.encode(out);
            }
        }
    }

    #[inline]
    fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Tag, Answer, usize)>, String> {
        let mut at = 0;
        loop {
            let decoded = Reply::decode(&bytes[at..]).map_err(|error| error.to_string())?;
            let Some((reply, length)) = decoded else {
                // A Welcome that stands alone is seen again with the reply after it.
                return Ok(None);
            };
            at += length;
            let (owner, answer) = match reply {
                Reply::Acquired {
                    owner,
                    token,
                    waited_ms,
                } => (owner, Answer::Granted { token, waited_ms }),
                Reply::Released { owner } => (owner, Answer::Released),
                Reply::TimedOut { owner } => (owner, Answer::Refused(Outcome::TimedOut)),
                Reply::Busy { owner } => (owner, Answer::Refused(Outcome::Busy)),
                Reply::NotHeld { owner } => (owner, Answer::Refused(Outcome::NotHeld)),
                Reply::Error { owner, code } if owner != HELLO_OWNER => {
                    (owner, Answer::Refused(Outcome::of_error(code)))
                }
                other => {
                    if !self.awaits_welcome && at == length && is_welcome(&other) {
                        // Seen before, when it stood alone.
                        continue;
                    }
                    self.welcomed(&other)?;
                    continue;
                }
            };
            return Ok(Some((owner, answer, at)));
        }
    }
}

fn is_welcome(reply: &Reply) -> bool {
    matches!(reply, Reply::Welcome(welcome) if welcome.owner == HELLO_OWNER)
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::protocol::{ErrorCode, Welcome};

    fn bytes(replies: &[Reply]) -> Vec<u8> {
        let mut out = Vec::new();
        for reply in replies {
            reply.encode(&mut out);
        }
        out
    }

    #[test]
    fn requests_have_the_documented_bytes() {
        let mut codec = NativeCodec::silent();
        let mut out = Vec::new();
        let key = b"0123456789abcdef";
        let acquire = Call::Acquire {
            key,
            wait_ms: 0,
            lease_ms: 10_000,
        };
        codec.encode(0x0102_0304_0506_070a, 0, &acquire, &mut out);
        codec.encode(2, 0, &Call::Release { key, token: 1 }, &mut out);
        assert_eq!(
            out,
            b"A\x00\x0a\x01\x02\x03\x04\x05\x06\x07\x0a0123456789abcdef\n\
              R\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x010123456789abcdef\n"
        );
    }

    #[test]
    fn answers_carry_their_tag_and_wait_for_their_last_byte() {
        let mut codec = NativeCodec::silent();
        let granted = bytes(&[Reply::Acquired {
            owner: 5,
            token: 9,
            waited_ms: 3,
        }]);
        for end in 0..granted.len() {
            assert_eq!(codec.decode(&granted[..end]), Ok(None));
        }
        let answer = Answer::Granted {
            token: 9,
            waited_ms: 3,
        };
        assert_eq!(codec.decode(&granted), Ok(Some((5, answer, 22))));
        for (reply, outcome) in [
            (Reply::TimedOut { owner: 5 }, Outcome::TimedOut),
            (Reply::Busy { owner: 5 }, Outcome::Busy),
            (Reply::NotHeld { owner: 5 }, Outcome::NotHeld),
            (
                Reply::Error {
                    owner: 5,
                    code: ErrorCode::ShuttingDown,
                },
                Outcome::of_error(ErrorCode::ShuttingDown),
            ),
        ] {
            let (tag, answer, _) = codec
                .decode(&bytes(&[reply]))
                .expect("a reply")
                .expect("complete");
            assert_eq!((tag, answer), (5, Answer::Refused(outcome)));
        }
        assert!(codec.decode(b"+PONG\r\n").is_err());
        assert!(codec.decode(&bytes(&[Reply::Pong { owner: 5 }])).is_err());
    }

    #[test]
    fn a_welcome_is_taken_with_what_follows_it_and_its_loop_is_checked() {
        let welcome = |loop_index| {
            Reply::Welcome(Welcome {
                owner: HELLO_OWNER,
                version: VERSION,
                flags: 0,
                loops: 2,
                loop_index,
                routing_seed: 1,
                max_key_bytes: 1_024,
                max_lease_ms: 255_000,
            })
        };
        let mut codec = NativeCodec::greeting(1, b"");
        let mut out = Vec::new();
        codec.begin(&mut out);
        assert_eq!(out[0], b'H');
        assert_eq!(codec.decode(&bytes(&[welcome(1)])), Ok(None));
        let both = bytes(&[welcome(1), Reply::Released { owner: 7 }]);
        let expected = Ok(Some((7, Answer::Released, both.len())));
        assert_eq!(codec.decode(&both), expected);

        codec.begin(&mut out);
        assert!(codec.decode(&bytes(&[welcome(0)])).is_err());
        let refused = Reply::Error {
            owner: HELLO_OWNER,
            code: ErrorCode::Unauthenticated,
        };
        assert!(codec.decode(&bytes(&[refused])).is_err());
    }
}
