//! What holds for any request, any reply and any bytes.

use super::*;
use proptest::prelude::*;

/// How long the first frame is, by the protocol's words alone.
fn framing_of(bytes: &[u8], max_key_bytes: usize) -> Result<Option<usize>, FrameError> {
    let Some(shape) = REQUEST_SHAPES.iter().find(|shape| shape.op == bytes[0]) else {
        return Err(FrameError {
            owner: 0,
            code: ErrorCode::UnknownOp,
        });
    };
    let header_bytes = 1 + shape.fields_bytes;
    if bytes.len() < header_bytes {
        return Ok(None);
    }
    let limit = match shape.op {
        b'H' => MAX_CREDENTIAL_BYTES,
        _ => max_key_bytes,
    };
    let tail = &bytes[header_bytes..];
    match tail.iter().position(|byte| *byte == b'\n') {
        Some(key_bytes) if key_bytes <= limit => Ok(Some(header_bytes + key_bytes + 1)),
        None if tail.len() <= limit => Ok(None),
        _ => Err(bad_frame(owner_in(&bytes[1..], shape))),
    }
}

fn any_key() -> impl Strategy<Value = Vec<u8>> {
    let byte = any::<u8>().prop_filter("the newline ends a key", |byte| *byte != b'\n');
    proptest::collection::vec(byte, 0..=MAX_KEY_BYTES)
}

/// Times that are whole seconds as often as not.
fn any_time_ms() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), (0..300_u32).prop_map(|s| s * 1000)]
}

fn any_reply() -> impl Strategy<Value = Reply> {
    let fields = any::<(u64, u64, u32, u32, bool, u16, u16, u16, u8)>();
    (0..11, 1..=9_u8, fields).prop_map(
        |(kind, code, (owner, wide, ms, waiters, yes, loops, loop_index, max_key_bytes, flags))| {
            match kind {
                0 => Reply::Acquired {
                    owner,
                    token: wide,
                    waited_ms: ms,
                },
                1 => Reply::TimedOut { owner },
                2 => Reply::Busy { owner },
                3 => Reply::Released { owner },
                4 => Reply::Extended {
                    owner,
                    remaining_ms: ms,
                },
                5 => Reply::NotHeld { owner },
                6 => Reply::State {
                    owner,
                    held: yes,
                    remaining_ms: ms,
                    waiters,
                },
                7 => Reply::CancelDone {
                    owner,
                    cancelled: yes,
                },
                8 => Reply::Pong { owner },
                9 => Reply::Welcome(Welcome {
                    owner,
                    version: code,
                    flags,
                    loops,
                    loop_index,
                    routing_seed: wide,
                    max_key_bytes,
                    max_lease_ms: ms,
                }),
                _ => Reply::Error {
                    owner,
                    code: ErrorCode::from_code(code).unwrap(),
                },
            }
        },
    )
}

/// Bytes that look like frames more often than chance would have it.
fn any_stream(ops: &'static [u8]) -> impl Strategy<Value = Vec<u8>> {
    let rest = proptest::collection::vec(
        prop_oneof![4 => any::<u8>(), 1 => Just(b'\n'), 1 => 0..3_u8],
        0..80,
    );
    let op = prop_oneof![1 => any::<u8>(), 8 => proptest::sample::select(ops)];
    (op, rest).prop_map(|(op, rest)| [&[op], &rest[..]].concat())
}

proptest! {
    #[test]
    fn any_request_comes_back(
        kind in 0..7,
        owner: u64,
        other: u64,
        wait_ms in any_time_ms(),
        lease_ms in any_time_ms(),
        hello in any::<(u8, u8, u16)>(),
        key in any_key(),
        after: Vec<u8>,
    ) {
        let key = &key[..];
        let request = match kind {
            0 => Request::Acquire { owner, wait_ms, lease_ms, key },
            1 => Request::Release { owner, token: other, key },
            2 => Request::Extend { owner, lease_ms, token: other, key },
            3 => Request::Cancel { owner, target: other, key },
            4 => Request::Query { owner, key },
            5 => Request::Ping { owner, key },
            _ => {
                let (version, flags, wanted_loop) = hello;
                Request::Hello { owner, version, flags, wanted_loop, credential: key }
            }
        };
        let mut bytes = encoded(&request);
        let frame_bytes = bytes.len();
        bytes.extend(after);
        prop_assert_eq!(decode(&bytes), Ok(Some((request, frame_bytes))));
        for end in 0..frame_bytes {
            prop_assert_eq!(decode(&bytes[..end]), Ok(None));
        }
    }

    #[test]
    fn any_reply_comes_back(reply in any_reply(), after: Vec<u8>) {
        let mut bytes = encoded_reply(&reply);
        let frame_bytes = bytes.len();
        bytes.extend(after);
        prop_assert_eq!(Reply::decode(&bytes), Ok(Some((reply, frame_bytes))));
    }

    #[test]
    fn no_bytes_confuse_the_server(bytes in any_stream(b"AaRXxCQPH"), max_key_bytes in 0..60_usize) {
        let decoded = Request::decode(&bytes, max_key_bytes);
        let framing = decoded.map(|frame| frame.map(|(_, taken)| taken));
        prop_assert_eq!(framing, framing_of(&bytes, max_key_bytes));
        if let Ok(Some((request, _))) = decoded {
            let again = encoded(&request);
            prop_assert_eq!(
                Request::decode(&again, max_key_bytes),
                Ok(Some((request, again.len())))
            );
            // Whatever it says, it says so without a panic.
            let _ = request.check(&LIMITS);
        }
    }

    #[test]
    fn no_bytes_confuse_a_client(bytes in any_stream(b"ATBRXNQCPHE")) {
        let shape = REPLY_SHAPES.iter().find(|shape| shape.op == bytes[0]);
        match Reply::decode(&bytes) {
            Ok(Some((reply, taken))) => {
                prop_assert_eq!(Some(taken), shape.map(|shape| 1 + shape.fields_bytes + 1));
                prop_assert_eq!(encoded_reply(&reply), &bytes[..taken]);
            }
            Ok(None) => prop_assert!(shape.is_some_and(|s| bytes.len() < 1 + s.fields_bytes + 1)),
            Err(error) => prop_assert_eq!(error, ReplyError(bytes[0])),
        }
    }

    #[test]
    fn keys_pass_where_they_are_utf8(key in prop_oneof![any_key(), "[^\n]{1,12}".prop_map(String::into_bytes)]) {
        let is_good = !key.is_empty() && String::from_utf8(key.clone()).is_ok();
        let expected = if is_good { Ok(()) } else { Err(ErrorCode::BadKey) };
        for request in requests_on(&key) {
            prop_assert_eq!(request.check(&LIMITS), expected);
        }
    }
}
