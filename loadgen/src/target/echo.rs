//! The bare server of bench/, which answers as many bytes as a lock server would and
//! looks at none: frames of the two lengths alternate, answers come in their order.

use super::{Answer, Call, Codec, Tag};
use leasehold::protocol::Request;
use std::collections::VecDeque;

/// A session with the echo server.
#[derive(Debug, Default)]
pub(crate) struct EchoCodec {
    under_way: VecDeque<Tag>,
    /// The next frame is as long as a release, not an acquire.
    sends_release: bool,
    /// The next answer is as long as Released, not Acquired.
    reads_released: bool,
}

/// Lengths of Acquired and Released.
const ANSWER_BYTES: [usize; 2] = [22, 10];
const ANSWER_OPS: [u8; 2] = *b"AR";

impl Codec for EchoCodec {
    const ONE_SHOT: bool = false;
    const HAS_TOKENS: bool = false;

    fn begin(&mut self, _out: &mut Vec<u8>) {
        *self = EchoCodec {
            under_way: std::mem::take(&mut self.under_way),
            ..EchoCodec::default()
        };
        self.under_way.clear();
    }

    #[inline]
    fn encode(&mut self, tag: Tag, _activity: usize, call: &Call<'_>, out: &mut Vec<u8>) {
        let (Call::Acquire { key, .. }
        | Call::Release { key, .. }
        | Call::Put { key }
        | Call::Get { key }
        | Call::Frame { key }) = *call;
        let request = match self.sends_release {
            false => Request::Acquire {
                owner: tag,
                wait_ms: 0,
                lease_ms: 10_000,
                key,
            },
            true => Request::Release {
                owner: tag,
                token: tag,
                key,
            },
        };
        request.encode(out);
        self.sends_release = !self.sends_release;
        self.under_way.push_back(tag);
    }

    #[inline]
    fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Tag, Answer, usize)>, String> {
        let kind = usize::from(self.reads_released);
        let length = ANSWER_BYTES[kind];
        let Some(frame) = bytes.get(..length) else {
            return Ok(None);
        };
        if frame[0] != ANSWER_OPS[kind] || frame[length - 1] != b'\n' {
            return Err("not what the echo server answers".into());
        }
        let Some(tag) = self.under_way.pop_front() else {
            return Err("an answer to no request".into());
        };
        self.reads_released = !self.reads_released;
        Ok(Some((tag, Answer::Done, length)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_alternate_both_ways() {
        let mut codec = EchoCodec::default();
        let mut out = Vec::new();
        let call = Call::Frame {
            key: b"0123456789abcdef",
        };
        let lengths: Vec<usize> = (1..=4)
            .map(|tag| {
                out.clear();
                codec.encode(tag, 0, &call, &mut out);
                out.len()
            })
            .collect();
        assert_eq!(lengths, [28, 34, 28, 34]);
        let mut pair = [0; 32];
        (pair[0], pair[21], pair[22], pair[31]) = (b'A', b'\n', b'R', b'\n');
        assert_eq!(codec.decode(&pair[..21]), Ok(None));
        assert_eq!(codec.decode(&pair), Ok(Some((1, Answer::Done, 22))));
        assert_eq!(codec.decode(&pair[22..]), Ok(Some((2, Answer::Done, 10))));
        assert!(codec.decode(&pair[22..]).is_ok_and(|none| none.is_none()));
        assert!(
            codec
                .decode(b"E\0\0\0\0\0\0\0\0\x06\n~~~~~~~~~~~~")
                .is_err()
        );
    }
}
