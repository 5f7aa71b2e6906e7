//! JackrabbitDLM payloads: the wire code, the JSON, and a connection that gets them.

use crate::source::Source;
use crate::talk::{DLM_LIMITS, talk};
use leasehold::dlm::{
    self, Decoder, DlmReply, DlmRequest, Fault, ParsedRequest, Progress, Status, Verdict,
};
use leasehold::worker::Protocol;

/// Longest line of the decoders here, in bytes.
const MAX_PAYLOAD_BYTES: usize = 4_000;

/// The first byte says how many of the next ones decide the cuts; what is left is
/// once a line as it comes, and once the text that a line is the code of.
pub(crate) fn run(data: &[u8]) {
    let Some((&cuts, rest)) = data.split_first() else {
        return;
    };
    let (cuts, text) = rest.split_at(usize::from(cuts).min(rest.len()));
    let mut line = Vec::new();
    dlm::encode(text, &mut line);
    assert_eq!(dlm::decode(&line).as_deref(), Some(text));
    line.push(b'\n');
    check_decoder(text, cuts);
    check_decoder(&line, cuts);
    check_request(text);
    check_reply(text);
    check_connection(text, cuts);
    check_connection(&line, cuts);
}

/// Every way to cut the received bytes ends the same.
fn check_decoder(received: &[u8], cuts: &[u8]) {
    let mut whole = Decoder::new(MAX_PAYLOAD_BYTES);
    let progress = whole.push(received);
    let mut pieces = Decoder::new(MAX_PAYLOAD_BYTES);
    let (mut rest, mut cuts) = (received, Source::new(cuts));
    while !rest.is_empty() {
        let length = usize::from(cuts.byte().max(1)).min(rest.len());
        pieces.push(&rest[..length]);
        rest = &rest[length..];
    }
    assert_eq!(pieces.push(&[]), progress);
    assert_eq!(pieces.text(), whole.text());
    if let Some(end) = received.iter().position(|&byte| byte == b'\n') {
        let expected = object_of(&received[..end]);
        assert_eq!(progress == Progress::Complete, expected.is_some());
        assert_eq!(whole.text(), expected.unwrap_or_default());
    } else {
        assert_ne!(progress, Progress::Complete);
    }
}

/// The text of a line that may be a JSON object.
fn object_of(line: &[u8]) -> Option<Vec<u8>> {
    if line.len() > MAX_PAYLOAD_BYTES {
        return None;
    }
    let text = dlm::decode(line.trim_ascii())?;
    let is_space = |byte: &u8| b" \t\n\r".contains(byte);
    let start = text.iter().position(|byte| !is_space(byte))?;
    (text[start] == b'{').then(|| text[start..].to_vec())
}

/// A request that is understood is understood the same after it was written anew.
fn check_request(text: &[u8]) {
    let Ok(request) = understand(text) else {
        return;
    };
    let mut line = Vec::new();
    request.encode(&mut line);
    let again = dlm::decode(line.strip_suffix(b"\n").expect("a line")).expect("its code");
    assert_eq!(understand(&again), Ok(request.clone()));
    assert!(!request.id.is_empty() && !request.file_name.is_empty());
    assert!(request.file_name.len() <= DLM_LIMITS.max_key_bytes);
}

fn understand(text: &[u8]) -> Result<DlmRequest<'_>, Fault> {
    let parsed = ParsedRequest::parse(text, &DLM_LIMITS)?;
    if parsed.claim().is_some() {
        let refused = parsed.clone().judge(Verdict::Refused);
        assert_eq!(refused, Err(Fault::BadPayload));
    }
    parsed.judge(Verdict::Accepted {
        max_data_chars: 100,
    })
}

fn check_reply(text: &[u8]) {
    let Ok(reply) = DlmReply::decode(text) else {
        return;
    };
    let mut line = Vec::new();
    reply.encode(&mut line);
    let again = dlm::decode(line.strip_suffix(b"\n").expect("a line")).expect("its code");
    assert_eq!(DlmReply::decode(&again), Ok(reply));
}

/// One line gets one answer, however it is cut, and one without an end gets none
/// unless it is too long.
fn check_connection(received: &[u8], cuts: &[u8]) {
    let whole = talk(Protocol::Dlm, 1 << 16, received, Source::new(&[]));
    let cut = talk(Protocol::Dlm, 1 << 16, received, Source::new(cuts));
    assert_eq!(cut, whole);
    let end = received.iter().position(|&byte| byte == b'\n');
    let is_too_long = end.unwrap_or(received.len()) > MAX_PAYLOAD_BYTES;
    if end.is_none() && !is_too_long {
        assert_eq!(whole.sent, b"");
        return;
    }
    let text = whole.sent.strip_suffix(b"\n").and_then(dlm::decode);
    let text = text.expect("one coded line");
    let status = DlmReply::decode(&text).expect("a reply").status;
    let object = object_of(&received[..end.unwrap_or_default()]);
    let is_understood = object.is_some_and(|object| {
        let parsed = ParsedRequest::parse(&object, &DLM_LIMITS);
        // Whether a claim is true, the connection alone knows.
        parsed.is_ok_and(|it| it.claim().is_some() || it.judge(Verdict::Refused).is_ok())
    });
    if !is_understood {
        assert!(matches!(status, Status::BadPayload | Status::BadAction));
    }
}
