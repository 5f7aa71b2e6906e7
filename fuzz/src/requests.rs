//! Decoding requests and replies: against the protocol's table, and there and back.

use leasehold::protocol::{ErrorCode, FrameError, Reply, Request, RequestLimits};

/// Op, bytes of its header without it, and where in them the owner stands.
const TABLE: [(u8, usize, usize); 9] = [
    (b'A', 10, 2),
    (b'a', 16, 8),
    (b'R', 16, 0),
    (b'X', 17, 1),
    (b'x', 20, 4),
    (b'C', 16, 0),
    (b'Q', 8, 0),
    (b'P', 8, 0),
    (b'H', 12, 4),
];

const MAX_CREDENTIAL_BYTES: usize = 1024;

/// The first byte chooses the longest key; the others are a stream of requests, and
/// once more one of replies.
pub(crate) fn run(data: &[u8]) {
    let Some((&choice, stream)) = data.split_first() else {
        return;
    };
    let max_key_bytes = [1, 8, 64, 1024][usize::from(choice) % 4];
    let mut rest = stream;
    while let Ok(Some(length)) = judge(rest, max_key_bytes) {
        rest = &rest[length..];
    }
    let mut rest = stream;
    while let Ok(Some((reply, length))) = Reply::decode(rest) {
        assert!((1..=rest.len()).contains(&length));
        for cut in 0..length {
            assert_eq!(Reply::decode(&rest[..cut]), Ok(None), "cut at {cut}");
        }
        let mut again = Vec::new();
        reply.encode(&mut again);
        assert_eq!(again, rest[..length]);
        rest = &rest[length..];
    }
}

/// Decodes the first frame and compares with what the table says.
fn judge(bytes: &[u8], max_key_bytes: usize) -> Result<Option<usize>, FrameError> {
    let decoded = Request::decode(bytes, max_key_bytes);
    let length = decoded.map(|found| found.map(|(_, length)| length));
    assert_eq!(length, expected(bytes, max_key_bytes), "{bytes:?}");
    if let Ok(Some((request, length))) = decoded {
        check_frame(&request, &bytes[..length], max_key_bytes);
    }
    length
}

fn expected(bytes: &[u8], max_key_bytes: usize) -> Result<Option<usize>, FrameError> {
    let Some(&op) = bytes.first() else {
        return Ok(None);
    };
    let Some(&(_, header, owner_at)) = TABLE.iter().find(|row| row.0 == op) else {
        return Err(FrameError {
            owner: 0,
            code: ErrorCode::UnknownOp,
        });
    };
    if bytes.len() <= header {
        return Ok(None);
    }
    let limit = match op {
        b'H' => MAX_CREDENTIAL_BYTES,
        _ => max_key_bytes,
    };
    let after = &bytes[1 + header..];
    match after.iter().take(limit + 1).position(|&byte| byte == b'\n') {
        Some(at) => Ok(Some(1 + header + at + 1)),
        None if after.len() <= limit => Ok(None),
        None => Err(FrameError {
            owner: number(&bytes[1 + owner_at..][..8]),
            code: ErrorCode::BadFrame,
        }),
    }
}

fn check_frame(request: &Request<'_>, frame: &[u8], max_key_bytes: usize) {
    for cut in 0..frame.len() {
        let decoded = Request::decode(&frame[..cut], max_key_bytes);
        assert_eq!(decoded, Ok(None), "cut at {cut}");
    }
    let (_, header, owner_at) = TABLE
        .into_iter()
        .find(|row| row.0 == frame[0])
        .expect("a known op");
    assert_eq!(request.owner(), number(&frame[1 + owner_at..][..8]));
    let key = &frame[1 + header..frame.len() - 1];
    assert_eq!(request.key(), key);
    check_limits(request, frame, key);
    // The shorter form may be taken, and says the same.
    let mut again = Vec::new();
    request.encode(&mut again);
    assert!(again.len() <= frame.len());
    let length = again.len();
    let decoded = Request::decode(&again, max_key_bytes);
    assert_eq!(decoded, Ok(Some((*request, length))));
}

fn check_limits(request: &Request<'_>, frame: &[u8], key: &[u8]) {
    let limits = RequestLimits {
        max_key_bytes: 0,
        max_lease_ms: 60_000,
        max_wait_ms: 30_000,
    };
    let seconds = |at: usize| u64::from(frame[at]) * 1000;
    let (wait_ms, lease_ms) = match frame[0] {
        b'A' => (seconds(1), seconds(2)),
        b'a' => (number(&frame[1..5]), number(&frame[5..9])),
        b'X' => (0, seconds(1)),
        b'x' => (0, number(&frame[1..5])),
        _ => (0, 1),
    };
    let expected = match frame[0] {
        b'H' => Ok(()),
        b'P' if key.is_empty() => Ok(()),
        b'P' => Err(ErrorCode::BadKey),
        _ if key.is_empty() || str::from_utf8(key).is_err() => Err(ErrorCode::BadKey),
        _ if lease_ms == 0 || lease_ms > 60_000 || wait_ms > 30_000 => Err(ErrorCode::BadTime),
        _ => Ok(()),
    };
    assert_eq!(request.check(&limits), expected, "{request:?}");
}

fn number(bytes: &[u8]) -> u64 {
    let shift = |number: u64, &byte: &u8| number << 8 | u64::from(byte);
    bytes.iter().fold(0, shift)
}
