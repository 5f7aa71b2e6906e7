#![allow(clippy::unwrap_used)]

mod document;
mod property;

use super::*;
use crate::limits::MAX_CREDENTIAL_BYTES;

const KEY: &[u8] = b"jobs/7";
const MAX_KEY_BYTES: usize = 32;
const LIMITS: RequestLimits = RequestLimits {
    max_key_bytes: MAX_KEY_BYTES,
    max_lease_ms: 255_000,
    max_wait_ms: 60_000,
};

const OWNER: u64 = 0x1112_1314_1516_1718;
const OWNER_BYTES: [u8; 8] = [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18];
const OTHER: u64 = 0x2122_2324_2526_2728;
const OTHER_BYTES: [u8; 8] = [0x21, 0x22, 0x23, 0x24, 0x25, 0x26, 0x27, 0x28];

/// One row of the protocol's tables, written out here a second time: the op, the
/// length of its fixed fields, where among them the owner starts, and which of
/// them are no free choice.
struct Shape {
    op: u8,
    fields_bytes: usize,
    owner_at: usize,
    restricted: Option<usize>,
}

const fn shape(op: u8, fields_bytes: usize, owner_at: usize) -> Shape {
    Shape {
        op,
        fields_bytes,
        owner_at,
        restricted: None,
    }
}

const fn restricted_shape(op: u8, fields_bytes: usize, restricted: usize) -> Shape {
    Shape {
        op,
        fields_bytes,
        owner_at: 0,
        restricted: Some(restricted),
    }
}

const REQUEST_SHAPES: [Shape; 9] = [
    shape(b'A', 10, 2),
    shape(b'a', 16, 8),
    shape(b'R', 16, 0),
    shape(b'X', 17, 1),
    shape(b'x', 20, 4),
    shape(b'C', 16, 0),
    shape(b'Q', 8, 0),
    shape(b'P', 8, 0),
    shape(b'H', 12, 4),
];

const REPLY_SHAPES: [Shape; 11] = [
    shape(b'A', 20, 0),
    shape(b'T', 8, 0),
    shape(b'B', 8, 0),
    shape(b'R', 8, 0),
    shape(b'X', 12, 0),
    shape(b'N', 8, 0),
    restricted_shape(b'Q', 17, 8),
    restricted_shape(b'C', 9, 8),
    shape(b'P', 8, 0),
    shape(b'H', 28, 0),
    restricted_shape(b'E', 9, 8),
];

/// Every request form with its bytes, put together from the protocol's table.
fn request_samples() -> Vec<(Vec<u8>, Request<'static>)> {
    vec![
        (
            [b"A\x0a\x1e", &OWNER_BYTES[..], KEY, b"\n"].concat(),
            Request::Acquire {
                owner: OWNER,
                wait_ms: 10_000,
                lease_ms: 30_000,
                key: KEY,
            },
        ),
        (
            [b"a\0\0\x0a\x0a\0\x01\0\x02", &OWNER_BYTES[..], KEY, b"\n"].concat(),
            Request::Acquire {
                owner: OWNER,
                wait_ms: 0x0a0a,
                lease_ms: 0x0001_0002,
                key: KEY,
            },
        ),
        (
            [b"R", &OWNER_BYTES[..], &OTHER_BYTES, KEY, b"\n"].concat(),
            Request::Release {
                owner: OWNER,
                token: OTHER,
                key: KEY,
            },
        ),
        (
            [b"X\x0a", &OWNER_BYTES[..], &OTHER_BYTES, KEY, b"\n"].concat(),
            Request::Extend {
                owner: OWNER,
                lease_ms: 10_000,
                token: OTHER,
                key: KEY,
            },
        ),
        (
            [b"x\0\x01\0\x0a", &OWNER_BYTES[..], &OTHER_BYTES, KEY, b"\n"].concat(),
            Request::Extend {
                owner: OWNER,
                lease_ms: 0x0001_000a,
                token: OTHER,
                key: KEY,
            },
        ),
        (
            [b"C", &OWNER_BYTES[..], &OTHER_BYTES, KEY, b"\n"].concat(),
            Request::Cancel {
                owner: OWNER,
                target: OTHER,
                key: KEY,
            },
        ),
        (
            [b"Q", &OWNER_BYTES[..], KEY, b"\n"].concat(),
            Request::Query {
                owner: OWNER,
                key: KEY,
            },
        ),
        (
            [b"P", &OWNER_BYTES[..], b"\n"].concat(),
            Request::Ping {
                owner: OWNER,
                key: b"",
            },
        ),
        (
            [b"H\x01\x81\x0a\x02", &OWNER_BYTES[..], b"ci:s\0\xff\n"].concat(),
            Request::Hello {
                owner: OWNER,
                version: 1,
                flags: 0x81,
                wanted_loop: 0x0a02,
                credential: b"ci:s\0\xff",
            },
        ),
    ]
}

/// Every reply with its bytes, put together from the protocol's table.
fn reply_samples() -> Vec<(Vec<u8>, Reply)> {
    let bare = |op: u8| [&[op][..], &OWNER_BYTES, b"\n"].concat();
    vec![
        (
            [b"A", &OWNER_BYTES[..], &OTHER_BYTES, b"\0\x01\x0a\x02\n"].concat(),
            Reply::Acquired {
                owner: OWNER,
                token: OTHER,
                waited_ms: 0x0001_0a02,
            },
        ),
        (bare(b'T'), Reply::TimedOut { owner: OWNER }),
        (bare(b'B'), Reply::Busy { owner: OWNER }),
        (bare(b'R'), Reply::Released { owner: OWNER }),
        (
            [b"X", &OWNER_BYTES[..], b"\0\x01\x0a\x02\n"].concat(),
            Reply::Extended {
                owner: OWNER,
                remaining_ms: 0x0001_0a02,
            },
        ),
        (bare(b'N'), Reply::NotHeld { owner: OWNER }),
        (
            [b"Q", &OWNER_BYTES[..], b"\x01\xff\xff\xff\xff\0\0\x0a\0\n"].concat(),
            Reply::State {
                owner: OWNER,
                held: true,
                remaining_ms: u32::MAX,
                waiters: 0x0a00,
            },
        ),
        (
            [b"C", &OWNER_BYTES[..], b"\x01\n"].concat(),
            Reply::CancelDone {
                owner: OWNER,
                cancelled: true,
            },
        ),
        (bare(b'P'), Reply::Pong { owner: OWNER }),
        (
            [
                b"H",
                &OWNER_BYTES[..],
                b"\x01\x03\0\x0a\0\x05",
                &OTHER_BYTES,
                b"\x0a\x01\0\x03\xe4\x18\n",
            ]
            .concat(),
            Reply::Welcome(Welcome {
                owner: OWNER,
                version: 1,
                flags: 3,
                loops: 10,
                loop_index: 5,
                routing_seed: OTHER,
                max_key_bytes: 0x0a01,
                max_lease_ms: 255_000,
            }),
        ),
        (
            [b"E", &OWNER_BYTES[..], b"\x09\n"].concat(),
            Reply::Error {
                owner: OWNER,
                code: ErrorCode::TooManyQueued,
            },
        ),
    ]
}

fn decode(bytes: &[u8]) -> Result<Option<(Request<'_>, usize)>, FrameError> {
    Request::decode(bytes, MAX_KEY_BYTES)
}

fn encoded(request: &Request<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    request.encode(&mut out);
    out
}

fn encoded_reply(reply: &Reply) -> Vec<u8> {
    let mut out = Vec::new();
    reply.encode(&mut out);
    out
}

fn bad_frame(owner: u64) -> FrameError {
    FrameError {
        owner,
        code: ErrorCode::BadFrame,
    }
}

#[test]
fn samples_and_shapes_cover_every_op() {
    let request_ops: Vec<u8> = request_ops::ROWS.iter().map(|row| row.0).collect();
    assert_eq!(request_ops, REQUEST_SHAPES.map(|shape| shape.op));
    let sampled: Vec<u8> = request_samples().iter().map(|(b, _)| b[0]).collect();
    assert_eq!(request_ops, sampled);

    let reply_ops: Vec<u8> = reply_ops::ROWS.iter().map(|row| row.0).collect();
    assert_eq!(reply_ops, REPLY_SHAPES.map(|shape| shape.op));
    let sampled: Vec<u8> = reply_samples().iter().map(|(b, _)| b[0]).collect();
    assert_eq!(reply_ops, sampled);
}

#[test]
fn every_request_decodes_and_encodes() {
    for (bytes, request) in request_samples() {
        assert_eq!(decode(&bytes), Ok(Some((request, bytes.len()))));
        assert_eq!(encoded(&request), bytes);
        assert_eq!(request.owner(), OWNER);
    }
}

#[test]
fn every_reply_decodes_and_encodes() {
    for (bytes, reply) in reply_samples() {
        assert_eq!(Reply::decode(&bytes), Ok(Some((reply, bytes.len()))));
        assert_eq!(encoded_reply(&reply), bytes);
        assert_eq!(reply.owner(), OWNER);
    }
}

#[test]
fn encode_appends() {
    for (bytes, request) in request_samples() {
        let mut out = b"before".to_vec();
        request.encode(&mut out);
        assert_eq!(out, [b"before", &bytes[..]].concat());
    }
    for (bytes, reply) in reply_samples() {
        let mut out = b"before".to_vec();
        reply.encode(&mut out);
        assert_eq!(out, [b"before", &bytes[..]].concat());
    }
}

#[test]
fn strict_prefixes_need_more_bytes() {
    for (bytes, _) in request_samples() {
        for end in 0..bytes.len() {
            assert_eq!(decode(&bytes[..end]), Ok(None), "{bytes:x?} to {end}");
        }
    }
    for (bytes, _) in reply_samples() {
        for end in 0..bytes.len() {
            assert_eq!(
                Reply::decode(&bytes[..end]),
                Ok(None),
                "{bytes:x?} to {end}"
            );
        }
    }
}

/// Takes every complete frame off the front of what has come in, as a receiver does.
fn drain_requests(received: &mut Vec<u8>, frames: &mut Vec<Vec<u8>>) {
    while let Some((request, taken)) = decode(received).unwrap() {
        frames.push(encoded(&request));
        received.drain(..taken);
    }
}

fn drain_replies(received: &mut Vec<u8>, frames: &mut Vec<Vec<u8>>) {
    while let Some((reply, taken)) = Reply::decode(received).unwrap() {
        frames.push(encoded_reply(&reply));
        received.drain(..taken);
    }
}

fn assert_segments_do_not_matter(
    frames: &[Vec<u8>],
    drain: impl Fn(&mut Vec<u8>, &mut Vec<Vec<u8>>),
) {
    let stream = frames.concat();
    let run = |segments: &[&[u8]]| {
        let (mut received, mut seen) = (Vec::new(), Vec::new());
        for segment in segments {
            received.extend_from_slice(segment);
            drain(&mut received, &mut seen);
        }
        assert!(received.is_empty());
        seen
    };
    assert_eq!(run(&[&stream]), frames);
    for at in 0..=stream.len() {
        let (first, second) = stream.split_at(at);
        assert_eq!(run(&[first, second]), frames, "split at {at}");
    }
    for size in 1..8 {
        assert_eq!(run(&stream.chunks(size).collect::<Vec<_>>()), frames);
    }
}

#[test]
fn segments_do_not_matter() {
    let requests: Vec<_> = request_samples().into_iter().map(|(b, _)| b).collect();
    assert_segments_do_not_matter(&requests, drain_requests);
    let replies: Vec<_> = reply_samples().into_iter().map(|(b, _)| b).collect();
    assert_segments_do_not_matter(&replies, drain_replies);
}

/// Fields of this shape: all 1 with a newline in each position in turn, then all
/// newlines, leaving alone what is no free choice.
fn fields_with_newlines(shape: &Shape) -> Vec<Vec<u8>> {
    let ones = vec![1; shape.fields_bytes];
    let free: Vec<usize> = (0..shape.fields_bytes)
        .filter(|at| shape.restricted != Some(*at))
        .collect();
    let mut all_newlines = ones.clone();
    let mut variants = Vec::new();
    for at in free {
        let mut one_newline = ones.clone();
        one_newline[at] = b'\n';
        all_newlines[at] = b'\n';
        variants.push(one_newline);
    }
    variants.push(all_newlines);
    variants
}

fn owner_in(fields: &[u8], shape: &Shape) -> u64 {
    let (owner, _) = fields[shape.owner_at..].split_first_chunk().unwrap();
    u64::from_be_bytes(*owner)
}

#[test]
fn newlines_in_the_header_are_no_end() {
    for shape in &REQUEST_SHAPES {
        let key = if shape.op == b'P' { b"" } else { KEY };
        for fields in fields_with_newlines(shape) {
            let bytes = [&[shape.op][..], &fields, key, b"\n"].concat();
            for end in 0..bytes.len() {
                assert_eq!(decode(&bytes[..end]), Ok(None), "{bytes:x?} to {end}");
            }
            let followed = [&bytes[..], b"P\n\n"].concat();
            let (request, taken) = decode(&followed).unwrap().unwrap();
            assert_eq!(taken, bytes.len(), "{bytes:x?}");
            assert_eq!(request.owner(), owner_in(&fields, shape), "{bytes:x?}");
            assert_eq!(encoded(&request), bytes);
        }
    }
    for shape in &REPLY_SHAPES {
        for fields in fields_with_newlines(shape) {
            let bytes = [&[shape.op][..], &fields, b"\n"].concat();
            for end in 0..bytes.len() {
                assert_eq!(
                    Reply::decode(&bytes[..end]),
                    Ok(None),
                    "{bytes:x?} to {end}"
                );
            }
            let followed = [&bytes[..], b"T\n\n"].concat();
            let (reply, taken) = Reply::decode(&followed).unwrap().unwrap();
            assert_eq!(taken, bytes.len(), "{bytes:x?}");
            assert_eq!(reply.owner(), owner_in(&fields, shape), "{bytes:x?}");
            assert_eq!(encoded_reply(&reply), bytes);
        }
    }
}

#[test]
fn unknown_ops_are_answered_at_their_first_byte() {
    for op in 0..=u8::MAX {
        let is_known = REQUEST_SHAPES.iter().any(|shape| shape.op == op);
        let expected = if is_known {
            Ok(None)
        } else {
            Err(FrameError {
                owner: 0,
                code: ErrorCode::UnknownOp,
            })
        };
        assert_eq!(decode(&[op]), expected, "op {op:#04x}");
        if !is_known {
            // Before a missing newline, and with no owner: there is no header.
            assert_eq!(decode(&[op; 100]), expected, "op {op:#04x}");
        }
    }
}

/// The longest key part that a shape may carry.
fn tail_limit(shape: &Shape) -> usize {
    if shape.op == b'H' {
        MAX_CREDENTIAL_BYTES
    } else {
        MAX_KEY_BYTES
    }
}

#[test]
fn the_newline_is_looked_for_within_the_limit_and_no_further() {
    for shape in &REQUEST_SHAPES {
        let limit = tail_limit(shape);
        let fields = vec![7; shape.fields_bytes];
        let owner = owner_in(&fields, shape);
        let frame = |tail: &[u8]| [&[shape.op][..], &fields, tail].concat();
        let longest = vec![b'k'; limit];

        assert_eq!(decode(&frame(&longest)), Ok(None));
        let ended = frame(&[&longest[..], b"\n"].concat());
        let (request, taken) = decode(&ended).unwrap().unwrap();
        assert_eq!(taken, ended.len());
        assert_eq!(encoded(&request), ended);

        let too_long = [&longest[..], b"k"].concat();
        assert_eq!(decode(&frame(&too_long)), Err(bad_frame(owner)));
        let too_long_ended = frame(&[&too_long[..], b"\n"].concat());
        assert_eq!(decode(&too_long_ended), Err(bad_frame(owner)));
    }
}

#[test]
fn the_credential_limit_does_not_depend_on_the_key_limit() {
    let hello = |tail: &[u8]| [b"H\x01\0\xff\xff", &OWNER_BYTES[..], tail].concat();
    let longest = vec![b'c'; MAX_CREDENTIAL_BYTES];
    let too_long = vec![b'c'; MAX_CREDENTIAL_BYTES + 1];
    for max_key_bytes in [1, MAX_CREDENTIAL_BYTES, 16 * 1024] {
        let ended = hello(&[&longest[..], b"\n"].concat());
        let decoded = Request::decode(&ended, max_key_bytes);
        assert_eq!(decoded.unwrap().unwrap().1, ended.len());
        assert_eq!(Request::decode(&hello(&longest), max_key_bytes), Ok(None));
        assert_eq!(
            Request::decode(&hello(&too_long), max_key_bytes),
            Err(bad_frame(OWNER))
        );
    }
}

#[test]
fn any_key_limit_is_taken() {
    let query = [b"Q", &OWNER_BYTES[..], KEY, b"\n"].concat();
    for max_key_bytes in [KEY.len(), usize::MAX] {
        assert!(matches!(
            Request::decode(&query, max_key_bytes),
            Ok(Some(_))
        ));
    }
    assert_eq!(
        Request::decode(&query, KEY.len() - 1),
        Err(bad_frame(OWNER))
    );
}

/// One request of each kind that needs a key, with this one, and times that pass.
fn requests_on(key: &[u8]) -> [Request<'_>; 5] {
    let (owner, lease_ms, token) = (OWNER, 1, OTHER);
    [
        Request::Acquire {
            owner,
            wait_ms: 0,
            lease_ms,
            key,
        },
        Request::Release { owner, token, key },
        Request::Extend {
            owner,
            lease_ms,
            token,
            key,
        },
        Request::Cancel {
            owner,
            target: OTHER,
            key,
        },
        Request::Query { owner, key },
    ]
}

#[test]
fn good_keys_pass() {
    let good: [&[u8]; 10] = [
        b"k",
        b"\0",
        b"\r",
        b"a\r\0b",
        b" ",
        "größe".as_bytes(),
        "\u{7f}\u{80}\u{7ff}\u{800}\u{ffff}".as_bytes(),
        "🔒".as_bytes(),
        "0123456789abcdef🔒".as_bytes(),
        "\u{10ffff}".as_bytes(),
    ];
    for key in good {
        for request in requests_on(key) {
            assert_eq!(request.check(&LIMITS), Ok(()), "{request:?}");
            let bytes = encoded(&request);
            assert_eq!(decode(&bytes), Ok(Some((request, bytes.len()))));
        }
    }
}

#[test]
fn bad_keys_are_refused() {
    let bad_parts: [&[u8]; 11] = [
        b"\x80",             // a continuation with no lead
        b"\xff",             // never in UTF-8
        b"\xc0\x80",         // overlong NUL
        b"\xe0\x80\xaf",     // overlong '/'
        b"\xf0\x80\x80\xaf", // overlong '/'
        b"\xed\xa0\x80",     // a surrogate
        b"\xed\xbf\xbf",     // a surrogate
        b"\xf4\x90\x80\x80", // above U+10FFFF
        b"\xc3",             // cut short
        b"\xe2\x82",         // cut short
        b"\xf0\x9f\x94",     // cut short
    ];
    for request in requests_on(b"") {
        assert_eq!(request.check(&LIMITS), Err(ErrorCode::BadKey));
    }
    for part in bad_parts {
        // Wherever it stands: short keys are looked at in other steps than long ones.
        for before in 0..24 {
            for after in 0..4 {
                let key = [&vec![b'k'; before][..], part, &vec![b'k'; after]].concat();
                for request in requests_on(&key) {
                    assert_eq!(request.check(&LIMITS), Err(ErrorCode::BadKey), "{key:x?}");
                    let bytes = encoded(&request);
                    assert_eq!(decode(&bytes), Ok(Some((request, bytes.len()))));
                }
            }
        }
    }
}

#[test]
fn ping_has_no_key() {
    let (owner, max) = (OWNER, [b'k'; MAX_KEY_BYTES]);
    assert_eq!(Request::Ping { owner, key: b"" }.check(&LIMITS), Ok(()));
    for key in [&b"k"[..], b"\xff", &max] {
        let ping = Request::Ping { owner, key };
        assert_eq!(ping.check(&LIMITS), Err(ErrorCode::BadKey));
    }
}

#[test]
fn hello_passes_whatever_it_asks() {
    for credential in [&b""[..], b"\xff\0", &[b'c'; MAX_CREDENTIAL_BYTES]] {
        let hello = Request::Hello {
            owner: OWNER,
            version: 99,
            flags: 0xff,
            wanted_loop: 12_345,
            credential,
        };
        assert_eq!(hello.check(&LIMITS), Ok(()));
    }
}

#[test]
fn leases_and_waits_are_held_to_the_limits() {
    let acquire = |wait_ms, lease_ms| Request::Acquire {
        owner: OWNER,
        wait_ms,
        lease_ms,
        key: KEY,
    };
    let extend = |lease_ms| Request::Extend {
        owner: OWNER,
        lease_ms,
        token: OTHER,
        key: KEY,
    };
    let (max_wait, max_lease) = (LIMITS.max_wait_ms, LIMITS.max_lease_ms);
    for (lease_ms, expected) in [
        (0, Err(ErrorCode::BadTime)),
        (1, Ok(())),
        (max_lease, Ok(())),
        (max_lease + 1, Err(ErrorCode::BadTime)),
        (u32::MAX, Err(ErrorCode::BadTime)),
    ] {
        assert_eq!(acquire(0, lease_ms).check(&LIMITS), expected);
        assert_eq!(acquire(max_wait, lease_ms).check(&LIMITS), expected);
        assert_eq!(extend(lease_ms).check(&LIMITS), expected);
    }
    for wait_ms in [max_wait + 1, u32::MAX] {
        assert_eq!(acquire(wait_ms, 1).check(&LIMITS), Err(ErrorCode::BadTime));
    }
}

#[test]
fn the_first_error_in_order_is_the_answer() {
    // A bad frame before a bad key and a bad lease.
    let too_long = [
        b"A\0\0",
        &OWNER_BYTES[..],
        &[0xff; MAX_KEY_BYTES + 1],
        b"\n",
    ]
    .concat();
    assert_eq!(decode(&too_long), Err(bad_frame(OWNER)));
    // A bad key before a bad lease.
    for key in [&b""[..], b"\xff"] {
        let bytes = [b"A\xff\0", &OWNER_BYTES[..], key, b"\n"].concat();
        let (request, _) = decode(&bytes).unwrap().unwrap();
        assert_eq!(request.check(&LIMITS), Err(ErrorCode::BadKey));
    }
    // An error later in the stream does not touch the frame before it.
    let (mut stream, request) = request_samples().swap_remove(0);
    let taken = stream.len();
    stream.extend_from_slice(b"?");
    assert_eq!(decode(&stream), Ok(Some((request, taken))));
}

#[test]
fn the_seconds_form_is_used_where_whole_seconds_fit() {
    let whole = [0, 1000, 10_000, 255_000];
    let fine = [1, 999, 1001, 254_999, 255_001, 256_000, 0xffff_ffff];
    let times = || whole.iter().map(|ms| (*ms, true));
    let times = || times().chain(fine.iter().map(|ms| (*ms, false)));
    for (lease_ms, lease_is_whole) in times() {
        let extend = Request::Extend {
            owner: OWNER,
            lease_ms,
            token: OTHER,
            key: KEY,
        };
        let bytes = encoded(&extend);
        assert_eq!(bytes[0], if lease_is_whole { b'X' } else { b'x' });
        assert_eq!(decode(&bytes), Ok(Some((extend, bytes.len()))));
        for (wait_ms, wait_is_whole) in times() {
            let acquire = Request::Acquire {
                owner: OWNER,
                wait_ms,
                lease_ms,
                key: KEY,
            };
            let bytes = encoded(&acquire);
            let is_whole = lease_is_whole && wait_is_whole;
            assert_eq!(bytes[0], if is_whole { b'A' } else { b'a' });
            assert_eq!(decode(&bytes), Ok(Some((acquire, bytes.len()))));
        }
    }
}

#[test]
fn replies_are_read_strictly() {
    for op in 0..=u8::MAX {
        let is_known = REPLY_SHAPES.iter().any(|shape| shape.op == op);
        let expected = if is_known {
            Ok(None)
        } else {
            Err(ReplyError(op))
        };
        assert_eq!(Reply::decode(&[op]), expected, "op {op:#04x}");
    }
    for (bytes, _) in reply_samples() {
        let op = bytes[0];
        for end in (0..=u8::MAX).filter(|byte| *byte != b'\n') {
            let mut bytes = bytes.clone();
            *bytes.last_mut().unwrap() = end;
            assert_eq!(Reply::decode(&bytes), Err(ReplyError(op)));
            // A newline further on does not mend it.
            bytes.push(b'\n');
            assert_eq!(Reply::decode(&bytes), Err(ReplyError(op)));
        }
    }
    for (op, after, good) in [
        (b'Q', &[0; 8][..], 0..=1),
        (b'C', &[], 0..=1),
        (b'E', &[], 1..=9),
    ] {
        for value in 0..=u8::MAX {
            let bytes = [&[op][..], &OWNER_BYTES, &[value], after, b"\n"].concat();
            let decoded = Reply::decode(&bytes);
            if good.contains(&value) {
                let (reply, taken) = decoded.unwrap().unwrap();
                assert_eq!(taken, bytes.len());
                assert_eq!(encoded_reply(&reply), bytes);
            } else {
                assert_eq!(decoded, Err(ReplyError(op)), "{bytes:x?}");
            }
        }
    }
}
