//! Holds `docs/protocol.md` to the code: every op has a worked example there, and
//! each decodes to the fields it names and encodes to the bytes it shows.

use crate::limits::DEFAULT_MAX_KEY_BYTES;
use crate::protocol::{ErrorCode, Reply, Request, Welcome, reply_ops, request_ops};
use std::collections::{BTreeMap, BTreeSet};

const DOCUMENT: &str = include_str!("../../../docs/protocol.md");

/// What a field is, whatever form it has on the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Value {
    Number(u64),
    Millis(u64),
    Text(Vec<u8>),
}

type Fields = BTreeMap<String, Value>;

/// One fenced block: `frame request A`, then lines of bytes, field and value.
struct Example {
    op: u8,
    bytes: Vec<u8>,
    fields: Fields,
}

fn examples(direction: &str) -> Vec<Example> {
    let opening = format!("```frame {direction} ");
    let mut lines = DOCUMENT.lines();
    let mut found = Vec::new();
    while let Some(line) = lines.next() {
        if let Some(op) = line.strip_prefix(&opening) {
            assert_eq!(op.len(), 1, "{line}");
            let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
            found.push(parse_example(op, &body));
        }
    }
    found
}

fn parse_example(op: &str, body: &[&str]) -> Example {
    let mut example = Example {
        op: op.as_bytes()[0],
        bytes: Vec::new(),
        fields: Fields::new(),
    };
    for (index, line) in body.iter().enumerate() {
        let columns: Vec<&str> = line
            .split("  ")
            .map(str::trim)
            .filter(|column| !column.is_empty())
            .collect();
        let bytes: Vec<u8> = columns[0]
            .split(' ')
            .map(|byte| u8::from_str_radix(byte, 16).unwrap())
            .collect();
        match columns[1..] {
            ["op", value] => {
                assert_eq!(index, 0, "{line}");
                assert_eq!((value, &bytes[..]), (op, op.as_bytes()), "{line}");
            }
            ["newline"] => {
                assert_eq!(index, body.len() - 1, "{line}");
                assert_eq!(bytes, b"\n", "{line}");
            }
            [name, value] => {
                let (value, on_wire) = parse_value(value, bytes.len());
                assert_eq!(bytes, on_wire, "{line}");
                assert_eq!(example.fields.insert(name.to_owned(), value), None);
            }
            _ => panic!("not an example's line: {line}"),
        }
        example.bytes.extend(bytes);
    }
    example
}

/// A value as the document writes it, and its form in `width` bytes of the wire.
fn parse_value(text: &str, width: usize) -> (Value, Vec<u8>) {
    if let Some(text) = text.strip_prefix('"') {
        let text = text.strip_suffix('"').unwrap().as_bytes();
        return (Value::Text(text.to_vec()), text.to_vec());
    }
    let (number, unit) = text.split_once(' ').unwrap_or((text, ""));
    let number: u64 = number.parse().unwrap();
    let wide = number.to_be_bytes();
    let (leading, on_wire) = wide.split_at(wide.len() - width);
    assert!(leading.iter().all(|byte| *byte == 0), "{text} is too wide");
    let value = match unit {
        "" => Value::Number(number),
        "s" => Value::Millis(number * 1000),
        "ms" => Value::Millis(number),
        _ => panic!("no unit: {unit}"),
    };
    (value, on_wire.to_vec())
}

fn fields<const N: usize>(fields: [(&str, Value); N]) -> Fields {
    fields.map(|(name, value)| (name.to_owned(), value)).into()
}

fn request_fields(request: &Request<'_>) -> Fields {
    use Value::{Millis, Number, Text};
    let mut all = fields([("owner", Number(request.owner()))]);
    all.extend(match *request {
        Request::Acquire {
            wait_ms,
            lease_ms,
            key,
            ..
        } => fields([
            ("wait", Millis(wait_ms.into())),
            ("lease", Millis(lease_ms.into())),
            ("key", Text(key.to_vec())),
        ]),
        Request::Release { token, key, .. } => {
            fields([("token", Number(token)), ("key", Text(key.to_vec()))])
        }
        Request::Extend {
            lease_ms,
            token,
            key,
            ..
        } => fields([
            ("lease", Millis(lease_ms.into())),
            ("token", Number(token)),
            ("key", Text(key.to_vec())),
        ]),
        Request::Cancel { target, key, .. } => {
            fields([("target", Number(target)), ("key", Text(key.to_vec()))])
        }
        Request::Query { key, .. } => fields([("key", Text(key.to_vec()))]),
        Request::Ping { key, .. } => {
            assert_eq!(key, b"");
            Fields::new()
        }
        Request::Hello {
            version,
            flags,
            wanted_loop,
            credential,
            ..
        } => fields([
            ("version", Number(version.into())),
            ("flags", Number(flags.into())),
            ("wanted loop", Number(wanted_loop.into())),
            ("credential", Text(credential.to_vec())),
        ]),
    });
    all
}

fn reply_fields(reply: &Reply) -> Fields {
    use Value::{Millis, Number};
    let mut all = fields([("owner", Number(reply.owner()))]);
    all.extend(match *reply {
        Reply::Acquired {
            token, waited_ms, ..
        } => fields([
            ("token", Number(token)),
            ("waited", Millis(waited_ms.into())),
        ]),
        Reply::TimedOut { .. }
        | Reply::Busy { .. }
        | Reply::Released { .. }
        | Reply::NotHeld { .. }
        | Reply::Pong { .. } => Fields::new(),
        Reply::Extended { remaining_ms, .. } => fields([("lease", Millis(remaining_ms.into()))]),
        Reply::State {
            held,
            remaining_ms,
            waiters,
            ..
        } => fields([
            ("held", Number(held.into())),
            ("remaining", Millis(remaining_ms.into())),
            ("waiters", Number(waiters.into())),
        ]),
        Reply::CancelDone { cancelled, .. } => fields([("cancelled", Number(cancelled.into()))]),
        Reply::Welcome(Welcome {
            owner: _,
            version,
            flags,
            loops,
            loop_index,
            routing_seed,
            max_key_bytes,
            max_lease_ms,
        }) => fields([
            ("version", Number(version.into())),
            ("flags", Number(flags.into())),
            ("loops", Number(loops.into())),
            ("loop", Number(loop_index.into())),
            ("routing seed", Number(routing_seed)),
            ("max key bytes", Number(max_key_bytes.into())),
            ("max lease", Millis(max_lease_ms.into())),
        ]),
        Reply::Error { code, .. } => fields([("code", Number(code as u64))]),
    });
    all
}

fn assert_every_op_has_an_example(rows: &[(u8, usize)], examples: &[Example]) {
    let shown: BTreeSet<char> = examples.iter().map(|example| example.op.into()).collect();
    let declared: BTreeSet<char> = rows.iter().map(|(op, _)| (*op).into()).collect();
    assert_eq!(shown, declared);
}

#[test]
fn every_request_of_the_document_is_what_it_says() {
    let examples = examples("request");
    assert_every_op_has_an_example(request_ops::ROWS, &examples);
    for example in examples {
        let decoded = Request::decode(&example.bytes, DEFAULT_MAX_KEY_BYTES);
        let (request, taken) = decoded.unwrap().unwrap();
        assert_eq!(taken, example.bytes.len());
        assert_eq!(request_fields(&request), example.fields);
        let mut encoded = Vec::new();
        request.encode(&mut encoded);
        assert_eq!(encoded, example.bytes);
    }
}

#[test]
fn every_reply_of_the_document_is_what_it_says() {
    let examples = examples("reply");
    assert_every_op_has_an_example(reply_ops::ROWS, &examples);
    for example in examples {
        let (reply, taken) = Reply::decode(&example.bytes).unwrap().unwrap();
        assert_eq!(taken, example.bytes.len());
        assert_eq!(reply_fields(&reply), example.fields);
        let mut encoded = Vec::new();
        reply.encode(&mut encoded);
        assert_eq!(encoded, example.bytes);
    }
}

#[test]
fn the_error_table_of_the_document_is_the_one_in_force() {
    let section = DOCUMENT.split_once("\n## Errors\n").unwrap().1;
    let section = section.split_once("\n## ").unwrap().0;
    let mut closes_by_code = BTreeMap::new();
    for line in section.lines() {
        let columns: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", code, _, after, ""] = columns[..]
            && let Ok(code) = code.parse::<u8>()
        {
            closes_by_code.insert(code, after.starts_with("closed"));
        }
    }
    for code in 0..=u8::MAX {
        assert_eq!(
            ErrorCode::from_code(code).map(ErrorCode::closes_session),
            closes_by_code.get(&code).copied(),
            "code {code}"
        );
    }
}
