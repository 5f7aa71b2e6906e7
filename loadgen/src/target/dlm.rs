//! The JackrabbitDLM protocol: one coded JSON line each way, a connection each. Lines
//! are made once; of each request only identifier, name and data are written in.

use super::{Answer, Call, Codec, Tag};
use crate::outcome::Outcome;
use crate::workload::{DISTINCT_BYTES, KeyId, KeyText};
use leasehold::dlm::{Claim, DlmReply, DlmRequest, Operation, Status, decode, encode};
use std::borrow::Cow;
use std::sync::Arc;

/// Name and secret of an identity.
#[derive(Clone, Debug)]
pub(crate) struct DlmIdentity {
    /// `Name`.
    pub(crate) name: String,
    /// `Identity`.
    pub(crate) secret: String,
}

/// The lines of a run.
#[derive(Debug)]
pub(crate) struct DlmTemplates {
    lock: Template,
    unlock: Template,
    put: Template,
    get: Template,
    /// What Put stores, but for its first bytes, which are the name's.
    data: String,
    checks_data: bool,
    statuses: Vec<(Vec<u8>, Status)>,
}

#[derive(Debug)]
struct Template {
    line: Vec<u8>,
    id_at: usize,
    key_at: usize,
    data_at: Option<usize>,
}

/// Eight hexadecimal digits: who asks.
const ID_BYTES: usize = 8;
/// Stand in a template where something is to be written in. Their code is found
/// nowhere else in it.
const ID_MARK: &str = "<the-id>";
const DATA_MARK: &str = "<data-of-the-put";

impl DlmTemplates {
    /// Lines for keys of this length, with these leases, data of this size.
    pub(crate) fn new(
        key_bytes: usize,
        ttl_ms: u32,
        data_bytes: usize,
        identity: Option<&DlmIdentity>,
        checks_data: bool,
    ) -> DlmTemplates {
        let name = KeyText::new(key_bytes).shown(KeyId::default());
        let data: String = DATA_MARK
            .chars()
            .chain("0123456789abcdef".chars().cycle())
            .take(data_bytes)
            .collect();
        let template = |operation: Operation<'_>| {
            let request = DlmRequest {
                id: Cow::Borrowed(ID_MARK),
                file_name: Cow::Borrowed(&name),
                claim: identity.map(|identity| Claim {
                    name: Cow::Borrowed(&identity.name),
                    identity: Cow::Borrowed(&identity.secret),
                }),
                operation,
            };
            let mut line = Vec::new();
            request.encode(&mut line);
            let mark_at = |mark: &str| {
                let mut coded = Vec::new();
                encode(mark.as_bytes(), &mut coded);
                line.windows(coded.len()).position(|window| window == coded)
            };
            Template {
                id_at: mark_at(ID_MARK).unwrap_or(0),
                key_at: mark_at(&name).unwrap_or(0),
                data_at: mark_at(DATA_MARK),
                line,
            }
        };
        let ttl_ms = ttl_ms.into();
        DlmTemplates {
            lock: template(Operation::Lock { ttl_ms }),
            unlock: template(Operation::Unlock),
            put: template(Operation::Put {
                ttl_ms,
                data_store: Cow::Borrowed(&data),
            }),
            get: template(Operation::Get),
            data,
            checks_data,
            statuses: Status::ALL
                .into_iter()
                .map(|status| {
                    let mut coded = Vec::new();
                    let start = format!("{{\"Status\":\"{}\"", status.as_str());
                    encode(start.as_bytes(), &mut coded);
                    (coded, status)
                })
                .collect(),
        }
    }

    /// The data that is stored under the name that starts with these bytes.
    fn data_of(&self, name: &[u8; DISTINCT_BYTES]) -> String {
        match self.data.strip_prefix(DATA_MARK) {
            Some(rest) => String::from_utf8_lossy(name).into_owned() + rest,
            None => self.data.clone(),
        }
    }

    fn status(&self, line: &[u8]) -> Result<Status, String> {
        let known = self
            .statuses
            .iter()
            .find(|(start, _)| line.starts_with(start));
        match known {
            Some((_, status)) => Ok(*status),
            None => full_reply(line, |reply| reply.status),
        }
    }
}

fn full_reply<T>(line: &[u8], take: impl FnOnce(DlmReply<'_>) -> T) -> Result<T, String> {
    let text = decode(line.trim_ascii()).ok_or("an answer that is not of this protocol")?;
    let reply = DlmReply::decode(&text).map_err(|error| error.to_string())?;
    Ok(take(reply))
}

/// A client that locks, unlocks, puts and gets.
#[derive(Debug)]
pub(crate) struct DlmCodec {
    /// One for each activity, then the one of `--held`.
    templates: Arc<[DlmTemplates]>,
    /// Coded.
    id: Vec<u8>,
    coded_key: Vec<u8>,
    under_way: Option<UnderWay>,
}

#[derive(Clone, Copy, Debug)]
struct UnderWay {
    tag: Tag,
    activity: usize,
    name: [u8; DISTINCT_BYTES],
    asks: Asks,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asks {
    Lock,
    Unlock,
    Put,
    Get,
}

impl DlmCodec {
    /// Client number `client`.
    pub(crate) fn new(templates: Arc<[DlmTemplates]>, client: u32) -> DlmCodec {
        let mut id = Vec::new();
        let text = format!("{client:0width$x}", width = ID_BYTES);
        encode(text.as_bytes(), &mut id);
        DlmCodec {
            templates,
            id,
            coded_key: Vec::new(),
            under_way: None,
        }
    }

    fn answer(&self, line: &[u8], asked: UnderWay) -> Result<Answer, String> {
        let templates = &self.templates[asked.activity];
        let status = templates.status(line)?;
        Ok(match (asked.asks, status) {
            (Asks::Lock, Status::Locked) => Answer::Granted {
                token: 0,
                waited_ms: 0,
            },
            (Asks::Unlock, Status::Unlocked) => Answer::Released,
            (Asks::Get, Status::Done) if templates.checks_data => {
                let expected = templates.data_of(&asked.name);
                let is_right =
                    full_reply(line, |reply| reply.data_store.as_deref() == Some(&expected))?;
                match is_right {
                    true => Answer::Done,
                    false => Answer::Refused(Outcome::WrongData),
                }
            }
            (Asks::Put | Asks::Get, Status::Done) => Answer::Done,
            (_, Status::NotOwner) => Answer::Refused(Outcome::NotOwner),
            (_, Status::NotFound | Status::NoData) => Answer::Refused(Outcome::NotFound),
            (_, Status::BadPayload | Status::BadAction) => Answer::Refused(Outcome::BadPayload),
            (_, Status::No) => Answer::Refused(Outcome::No),
            (_, Status::Corruption) => Answer::Refused(Outcome::Corruption),
            (asks, status) => return Err(format!("{status:?} answers no {asks:?}")),
        })
    }
}

impl Codec for DlmCodec {
    const ONE_SHOT: bool = true;
    const HAS_TOKENS: bool = false;

    fn begin(&mut self, _out: &mut Vec<u8>) {
        self.under_way = None;
    }

    fn encode(&mut self, tag: Tag, activity: usize, call: &Call<'_>, out: &mut Vec<u8>) {
        let (asks, key) = match *call {
            Call::Acquire { key, .. } | Call::Frame { key } => (Asks::Lock, key),
            Call::Release { key, .. } => (Asks::Unlock, key),
            Call::Put { key } => (Asks::Put, key),
            Call::Get { key } => (Asks::Get, key),
        };
        let activity = activity.min(self.templates.len() - 1);
        let templates = &self.templates[activity];
        let template = match asks {
            Asks::Lock => &templates.lock,
            Asks::Unlock => &templates.unlock,
            Asks::Put => &templates.put,
            Asks::Get => &templates.get,
        };
        self.coded_key.clear();
        encode(key, &mut self.coded_key);
        let line = out.len();
        out.extend_from_slice(&template.line);
        let mut write = |at: usize, coded: &[u8]| {
            out[line + at..line + at + coded.len()].copy_from_slice(coded);
        };
        write(template.id_at, &self.id);
        write(template.key_at, &self.coded_key);
        if let Some(at) = template.data_at {
            write(at, &self.coded_key[..2 * DISTINCT_BYTES]);
        }
        let mut name = [0; DISTINCT_BYTES];
        name.copy_from_slice(&key[..DISTINCT_BYTES]);
        self.under_way = Some(UnderWay {
            tag,
            activity,
            name,
            asks,
        });
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Tag, Answer, usize)>, String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let asked = self.under_way.take().ok_or("an answer to no request")?;
        let answer = self.answer(&bytes[..end], asked)?;
        Ok(Some((asked.tag, answer, end + 1)))
    }
}

/// A client of a server that answers any line with any line.
#[derive(Debug)]
pub(crate) struct LineCodec(pub(crate) DlmCodec);

impl Codec for LineCodec {
    const ONE_SHOT: bool = true;
    const HAS_TOKENS: bool = false;

    fn begin(&mut self, out: &mut Vec<u8>) {
        self.0.begin(out);
    }

    fn encode(&mut self, tag: Tag, activity: usize, call: &Call<'_>, out: &mut Vec<u8>) {
        self.0.encode(tag, activity, call, out);
    }

    fn decode(&mut self, bytes: &[u8]) -> Result<Option<(Tag, Answer, usize)>, String> {
        let Some(end) = bytes.iter().position(|&byte| byte == b'\n') else {
            return Ok(None);
        };
        let asked = self.0.under_way.take().ok_or("an answer to no request")?;
        Ok(Some((asked.tag, Answer::Done, end + 1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use leasehold::dlm::{DlmLimits, ParsedRequest, Verdict};

    const KEY: &[u8] = b"0123456789abcdefkkkk";

    fn codec(data_bytes: usize) -> DlmCodec {
        let templates = DlmTemplates::new(KEY.len(), 2_500, data_bytes, None, true);
        DlmCodec::new(Arc::new([templates]), 0x2a)
    }

    fn request(codec: &mut DlmCodec, call: &Call<'_>) -> DlmRequest<'static> {
        let mut out = Vec::new();
        codec.encode(1, 0, call, &mut out);
        assert_eq!(out.pop(), Some(b'\n'));
        let text = decode(&out).expect("the code");
        let limits = DlmLimits {
            max_key_bytes: 1_024,
            max_ttl_ms: 100_000,
            anonymous_allowed: true,
            anonymous_max_ttl_ms: 100_000,
            anonymous_max_data_chars: 16_384,
        };
        let parsed = ParsedRequest::parse(&text, &limits).expect("a request");
        let request = parsed.judge(Verdict::Anonymous);
        let request = request.expect("anonymous requests need no identity");
        DlmRequest {
            id: Cow::Owned(request.id.into_owned()),
            file_name: Cow::Owned(request.file_name.into_owned()),
            claim: None,
            operation: request.operation.into_owned(),
        }
    }

    fn reply(reply: &DlmReply<'_>) -> Vec<u8> {
        let mut line = Vec::new();
        reply.encode(&mut line);
        line
    }

    #[test]
    fn lines_say_who_and_what() {
        let mut codec = codec(40);
        let key = KEY;
        let lock = Call::Acquire {
            key,
            wait_ms: 0,
            lease_ms: 2_500,
        };
        let locked = request(&mut codec, &lock);
        assert_eq!(
            (&*locked.id, locked.file_name.as_bytes()),
            ("0000002a", KEY)
        );
        assert_eq!(locked.operation, Operation::Lock { ttl_ms: 2_500 });
        let put = request(&mut codec, &Call::Put { key });
        let Operation::Put { data_store, .. } = &put.operation else {
            panic!("{put:?}");
        };
        assert_eq!(data_store, "0123456789abcdef0123456789abcdef01234567");
        assert_eq!(
            request(&mut codec, &Call::Get { key }).operation,
            Operation::Get
        );
        let unlock = Call::Release { key, token: 0 };
        assert_eq!(request(&mut codec, &unlock).operation, Operation::Unlock);
    }

    #[test]
    fn data_of_any_size_comes_back_or_is_wrong() {
        for size in [0, 1, 15, 16, 17, 5_000] {
            let mut codec = codec(size);
            let put = request(&mut codec, &Call::Put { key: KEY });
            let Operation::Put { data_store, .. } = put.operation else {
                panic!("no Put");
            };
            assert_eq!(data_store.len(), size);
            request(&mut codec, &Call::Get { key: KEY });
            let line = reply(&DlmReply::with_data("0000002a", data_store));
            let answer = codec.decode(&line).expect("a reply");
            assert_eq!(answer, Some((1, Answer::Done, line.len())));
            request(&mut codec, &Call::Get { key: KEY });
            let (_, answer, _) = codec
                .decode(&reply(&DlmReply::with_data("0000002a", "other")))
                .expect("a reply")
                .expect("complete");
            assert_eq!(answer, Answer::Refused(Outcome::WrongData));
        }
    }

    #[test]
    fn answers_are_told_apart_and_strangers_refused() {
        let mut codec = codec(1);
        let lock = Call::Acquire {
            key: KEY,
            wait_ms: 0,
            lease_ms: 1,
        };
        request(&mut codec, &lock);
        let locked = reply(&DlmReply::with_id(Status::Locked, "0000002a"));
        assert_eq!(codec.decode(&locked[..20]), Ok(None));
        let granted = Answer::Granted {
            token: 0,
            waited_ms: 0,
        };
        assert_eq!(codec.decode(&locked), Ok(Some((1, granted, locked.len()))));
        assert!(codec.decode(&locked).is_err(), "a second answer");
        request(&mut codec, &lock);
        let not_owner = reply(&DlmReply::bare(Status::NotOwner));
        let (_, answer, _) = codec
            .decode(&not_owner)
            .expect("a reply")
            .expect("complete");
        assert_eq!(answer, Answer::Refused(Outcome::NotOwner));
        for line in [&b"+OK\r\n"[..], &reply(&DlmReply::bare(Status::Done))] {
            request(&mut codec, &lock);
            assert!(codec.decode(line).is_err());
        }
    }
}
