//! Locks as Redis and Valkey do them: `SET key token NX PX lease`, and a script that
//! deletes the key if it still holds the caller's token.

use super::{Answer, Call, Codec, Tag};
use crate::outcome::Outcome;
use crate::workload::hex;
use std::collections::VecDeque;
use std::io::Write as _;
use std::sync::Arc;

/// Deletes the key if it holds the caller's token.
pub(crate) const RELEASE_SCRIPT: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// A session with a Redis server; replies come in the order of the requests.
#[derive(Debug)]
pub(crate) struct RedisCodec {
    under_way: VecDeque<Tag>,
    /// Hash of the loaded release script.
    release_hash: Arc<str>,
}

impl RedisCodec {
    /// A session that releases with the script of this hash.
    pub(crate) fn new(release_hash: Arc<str>) -> RedisCodec {
        RedisCodec {
            under_way: VecDeque::new(),
            release_hash,
        }
    }
}

impl Codec for RedisCodec {
    const ONE_SHOT: bool = false;
    const HAS_TOKENS: bool = false;

    fn begin(&mut self, _out: &mut Vec<u8>) {
        self.under_way.clear();
    }

    fn encode(&mut self, tag: Tag, _activity: usize, call: &Call<'_>, out: &mut Vec<u8>) {
        self.under_way.push_back(tag);
        match *call {
            Call::Acquire { key, lease_ms, .. } => {
                out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n");
                push_bulk(out, key);
                push_bulk(out, &hex(tag));
                out.extend_from_slice(b"$2\r\nNX\r\n$2\r\nPX\r\n");
                push_number(out, lease_ms);
            }
            Call::Release { key, token } => {
                out.extend_from_slice(b"*5\r\n$7\r\nEVALSHA\r\n");
                push_bulk(out, self.release_hash.as_bytes());
                out.extend_from_slice(b"$1\r\n1\r\n");
                push_bulk(out, key);
                push_bulk(out, &hex(token));
            }
            // Plans are checked: Redis is asked for locks alone.
            Call::Put { .. } | Call::Get { .. } | Call::Frame { .. } => {
                out.extend_from_slice(b"*1\r\n$4\r\nPING\r\n");
            }
        }
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Tag, Answer, usize)>, String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let line = bytes[..end].trim_ascii_end();
        let Some(tag) = self.under_way.pop_front() else {
            return Err(format!("{:?} answers no request", lossy(line)));
        };
        let answer = match line {
            // The token that it holds is made of the request's tag.
            b"+OK" => Answer::Granted {
                token: tag,
                waited_ms: 0,
            },
            b"$-1" | b"_" => Answer::Refused(Outcome::TimedOut),
            b":1" => Answer::Released,
            b":0" => Answer::Refused(Outcome::NotHeld),
            [b'-', ..] => Answer::Refused(Outcome::Refused),
            other => return Err(format!("unexpected reply {:?}", lossy(other))),
        };
        Ok(Some((tag, answer, end + 1)))
    }
}

fn lossy(line: &[u8]) -> String {
    String::from_utf8_lossy(line).into_owned()
}

fn push_bulk(out: &mut Vec<u8>, bytes: &[u8]) {
    // Writing to a Vec cannot fail.
    let _ = write!(out, "${}\r\n", bytes.len());
    out.extend_from_slice(bytes);
    out.extend_from_slice(b"\r\n");
}

fn push_number(out: &mut Vec<u8>, number: u32) {
    let digits = number.checked_ilog10().unwrap_or(0) + 1;
    let _ = write!(out, "${digits}\r\n{number}\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_well_formed() {
        let mut codec = RedisCodec::new("h".repeat(40).into());
        let mut out = Vec::new();
        let key = b"0123456789abcdef";
        let acquire = Call::Acquire {
            key,
            wait_ms: 0,
            lease_ms: 10_000,
        };
        codec.encode(0x1f, 0, &acquire, &mut out);
        assert_eq!(
            lossy(&out),
            "*6\r\n$3\r\nSET\r\n$16\r\n0123456789abcdef\r\n$16\r\n000000000000001f\r\n\
             $2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
        );
        out.clear();
        codec.encode(2, 0, &Call::Release { key, token: 0x1f }, &mut out);
        assert_eq!(
            lossy(&out),
            format!(
                "*5\r\n$7\r\nEVALSHA\r\n$40\r\n{}\r\n$1\r\n1\r\n$16\r\n0123456789abcdef\r\n\
                 $16\r\n000000000000001f\r\n",
                "h".repeat(40)
            )
        );
    }

    #[test]
    fn replies_go_to_requests_in_order_and_one_too_many_is_noticed() {
        let mut codec = RedisCodec::new("".into());
        let mut out = Vec::new();
        for tag in 1..=4 {
            codec.encode(tag, 0, &Call::Get { key: b"k" }, &mut out);
        }
        let granted = Answer::Granted {
            token: 1,
            waited_ms: 0,
        };
        assert_eq!(codec.decode(b"+OK\r"), Ok(None));
        assert_eq!(codec.decode(b"+OK\r\n:1\r\n"), Ok(Some((1, granted, 5))));
        let timed_out = Answer::Refused(Outcome::TimedOut);
        assert_eq!(codec.decode(b"$-1\r\n"), Ok(Some((2, timed_out, 5))));
        assert_eq!(codec.decode(b":1\r\n"), Ok(Some((3, Answer::Released, 4))));
        let not_held = Answer::Refused(Outcome::NotHeld);
        assert_eq!(codec.decode(b":0\r\n"), Ok(Some((4, not_held, 4))));
        assert!(codec.decode(b":0\r\n").is_err());
    }
}
