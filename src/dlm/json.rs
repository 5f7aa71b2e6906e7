//! The part of JSON that the protocol uses: the named members of one object, and
//! strings written in wire code.

use super::wire;
use memchr::memchr;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;

/// A member's value, in as much detail as the protocol looks at it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Missing,
    Null,
    String(Cow<'a, str>),
    /// A number, as it is written.
    Number(&'a str),
    /// `true`, `false`, an array or an object.
    Other,
}

impl<'a> Value<'a> {
    pub(super) fn into_string(self) -> Option<Cow<'a, str>> {
        match self {
            Value::String(text) => Some(text),
            _ => None,
        }
    }
}

/// The values of the members `names` of the one object that `text` is; of a name
/// that stands twice the last counts, other members are skipped whatever their
/// type. `None` where `text` is no JSON object in UTF-8.
pub(super) fn members<'a, const N: usize>(
    text: &'a [u8],
    names: &[&str; N],
) -> Option<[Value<'a>; N]> {
    // All of it, because skipped values are not checked by the JSON reader.
    let text = std::str::from_utf8(text).ok()?;
    let mut reader = serde_json::Deserializer::from_str(text);
    let found = reader.deserialize_map(Members { names }).ok()?;
    reader.end().ok()?;

    let mut values = [const { Value::Missing }; N];
    for (value, raw) in values.iter_mut().zip(found) {
        if let Some(raw) = raw {
            *value = self::value(raw.get())?;
        }
    }
    Some(values)
}

/// Appends `text` to `out` as a JSON string in wire code.
pub(super) fn encode_string(text: &str, out: &mut Vec<u8>) {
    wire::encode(b"\"", out);
    let mut rest = text.as_bytes();
    loop {
        let (plain, escaped) = rest.split_at(plain_prefix_bytes(rest));
        wire::encode(plain, out);
        let [byte, after @ ..] = escaped else {
            break;
        };
        encode_escaped(*byte, out);
        rest = after;
    }
    wire::encode(b"\"", out);
}

/// Values as text, so that only the last one of a name is looked into, and numbers
/// keep their digits. Skipping nested values takes no stack, a byte of heap a level.
struct Members<'n, const N: usize> {
    names: &'n [&'n str; N],
}

impl<'a, const N: usize> Visitor<'a> for Members<'_, N> {
    type Value = [Option<&'a RawValue>; N];

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = [None; N];
        while let Some(index) = map.next_key_seed(Name { names: self.names })? {
            match index {
                Some(index) => found[index] = Some(map.next_value()?),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(found)
    }
}

struct Name<'n, const N: usize> {
    names: &'n [&'n str; N],
}

impl<'a, const N: usize> DeserializeSeed<'a> for Name<'_, N> {
    type Value = Option<usize>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_str(self)
    }
}

impl<const N: usize> Visitor<'_> for Name<'_, N> {
    type Value = Option<usize>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_str<E>(self, name: &str) -> Result<Self::Value, E> {
        Ok(self.names.iter().position(|known| *known == name))
    }
}

/// Looks into one syntactically valid value; `None` for a string that is no Unicode text.
fn value(raw: &str) -> Option<Value<'_>> {
    Some(match raw.as_bytes() {
        [b'"', inner @ .., b'"'] => Value::String(match memchr(b'\\', inner) {
            None => Cow::Borrowed(&raw[1..raw.len() - 1]),
            Some(_) => Cow::Owned(serde_json::from_str(raw).ok()?),
        }),
        [b'n', ..] => Value::Null,
        [b'-' | b'0'..=b'9', ..] => Value::Number(raw),
        _ => Value::Other,
    })
}

/// How many bytes `text` starts with that stand for themselves in a JSON string.
fn plain_prefix_bytes(text: &[u8]) -> usize {
    // Without an early exit within a block the compiler looks at many bytes at once.
    let has_escape = |block: &[u8; 32]| {
        block
            .iter()
            .fold(false, |any, &byte| any | must_be_escaped(byte))
    };
    let (blocks, _) = text.as_chunks::<32>();
    let plain_blocks = blocks.iter().take_while(|block| !has_escape(block)).count();
    let plain = plain_blocks * 32;
    let rest = text[plain..].iter().position(|&byte| must_be_escaped(byte));
    rest.map_or(text.len(), |at| plain + at)
}

fn must_be_escaped(byte: u8) -> bool {
    byte < b' ' || byte == b'"' || byte == b'\\'
}

fn encode_escaped(byte: u8, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match byte {
        b'"' | b'\\' => wire::encode(&[b'\\', byte], out),
        _ => {
            let digits = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]];
            wire::encode(b"\\u00", out);
            wire::encode(&digits, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ab(text: &str) -> Option<[Value<'_>; 2]> {
        members(text.as_bytes(), &["a", "b"])
    }

    #[test]
    fn members_are_found_by_name_and_the_last_one_counts() {
        let string = |text| Value::String(Cow::Borrowed(text));
        for (text, a, b) in [
            ("{}", Value::Missing, Value::Missing),
            (r#" { "b" : "x" } "#, Value::Missing, string("x")),
            (r#"{"a":null,"b":[1,{"a":2}]}"#, Value::Null, Value::Other),
            (r#"{"a":true,"b":{"a":"x"}}"#, Value::Other, Value::Other),
            (
                r#"{"a":1e400,"b":-0.50}"#,
                Value::Number("1e400"),
                Value::Number("-0.50"),
            ),
            (r#"{"a":"x","a":"y"}"#, string("y"), Value::Missing),
            (r#"{"a":"x","a":5}"#, Value::Number("5"), Value::Missing),
            (r#"{"a":"\ud800","a":"y"}"#, string("y"), Value::Missing),
            (
                r#"{"\u0061":"x","A":"y","":"z"}"#,
                string("x"),
                Value::Missing,
            ),
            (r#"{"a":"\u00e9\n\"","b":""}"#, string("é\n\""), string("")),
            (
                r#"{"c":1e999999,"d":[[]],"a":"x"}"#,
                string("x"),
                Value::Missing,
            ),
        ] {
            assert_eq!(ab(text), Some([a, b]), "{text}");
        }
    }

    #[test]
    fn what_is_no_object_is_refused() {
        for text in [
            "",
            " ",
            "5",
            "null",
            "[]",
            "\"a\"",
            "{",
            "{}}",
            "{} {}",
            "{\"a\"}",
            "{\"a\":}",
            "{\"a\":1,}",
            "{a:1}",
            "{'a':1}",
            "{\"a\":NaN}",
            "{\"c\":NaN}",
            "{\"a\":Infinity}",
            "{\"a\":-Infinity}",
            "{\"a\":01}",
            "{\"a\":1.}",
            "{\"a\":.5}",
            "{\"a\":+5}",
            "{\"a\":\"\\x\"}",
            "{\"a\":\"\\ud800\"}",
            "{\"a\":\"\n\"}",
            "{\"a\":tru}",
            "{\"c\":[1,2}",
            "\u{feff}{}",
            "{}\u{0}",
        ] {
            assert_eq!(ab(text), None, "{text:?}");
        }
        // Not UTF-8, also in a member that is skipped.
        assert_eq!(members(b"{\"c\":\"\xff\"}", &["a"]), None);
        assert_eq!(members(b"{\"a\":\"\xc3\"}", &["a"]), None);
    }

    #[test]
    fn depth_takes_no_stack() {
        let depth = 1_000_000;
        let text = format!(
            "{{\"c\":{}{},\"a\":{}{},\"b\":\"x\"}}",
            "[".repeat(depth),
            "]".repeat(depth),
            "{\"a\":".repeat(depth),
            "0".to_owned() + &"}".repeat(depth),
        );
        let found = ab(&text).expect("an object");
        assert_eq!(found, [Value::Other, Value::String("x".into())]);
    }

    proptest! {
        #[test]
        fn any_string_comes_back(text in any::<String>()) {
            let mut coded = Vec::new();
            wire::encode(b"{\"a\":", &mut coded);
            encode_string(&text, &mut coded);
            wire::encode(b"}", &mut coded);
            coded.push(b'\n');
            let mut decoder = wire::Decoder::new(coded.len());
            prop_assert_eq!(decoder.push(&coded), wire::Progress::Complete);
            let [value] = members(decoder.text(), &["a"]).expect("an object");
            prop_assert_eq!(value, Value::String(text.into()));
        }

        #[test]
        fn any_bytes_are_read_without_a_panic(text in any::<Vec<u8>>()) {
            let _ = members(&text, &["a", "b"]);
        }
    }
}
