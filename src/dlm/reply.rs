//! Replies: encode for the server, decode for clients.

use super::json::{self, Value};
use super::wire;
use std::borrow::Cow;

/// The `ID` of a Version reply: what clients look for, then this server's own name
/// and version.
pub const VERSION_ID: &str = concat!(
    "JackrabbitDLM/0.0.0.2.855 leasehold/",
    env!("CARGO_PKG_VERSION")
);

/// Why a request is not carried out. No reason beyond this is ever told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// Not decodable, no JSON object, a field missing or wrong, over a limit, or
    /// not authenticated.
    BadPayload,
    /// All of that is in order, but the action is unknown.
    BadAction,
}

/// What a request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// The lock is granted, renewed or, to TestLock, held by the asker.
    Locked,
    /// The lock is released, or nobody holds it.
    Unlocked,
    /// Put, Get or Erase succeeded.
    Done,
    /// Somebody else holds the slot.
    NotOwner,
    /// There is no such data.
    NotFound,
    /// The asker holds the lock of that name, and there is no data.
    NoData,
    /// [`Fault::BadPayload`].
    BadPayload,
    /// [`Fault::BadAction`].
    BadAction,
    /// `NO`: out of memory, or the state directory cannot be written.
    No,
    /// The stored value fails its checksum.
    Corruption,
    /// The answer to Version.
    Version,
}

/// One reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DlmReply<'a> {
    /// `Status`.
    pub status: Status,
    /// `ID`: the slot's holder, or [`VERSION_ID`].
    pub id: Option<Cow<'a, str>>,
    /// `DataStore`.
    pub data_store: Option<Cow<'a, str>>,
}

/// The text is no reply of this protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a reply of the JackrabbitDLM protocol")]
pub struct BadReply;

impl<'a> DlmReply<'a> {
    /// A reply that only tells its status.
    pub const fn bare(status: Status) -> DlmReply<'a> {
        DlmReply {
            status,
            id: None,
            data_store: None,
        }
    }

    /// A reply that tells status and ID.
    pub fn with_id(status: Status, id: impl Into<Cow<'a, str>>) -> DlmReply<'a> {
        DlmReply {
            status,
            id: Some(id.into()),
            data_store: None,
        }
    }

    /// The reply to a Get that found data.
    pub fn with_data(
        id: impl Into<Cow<'a, str>>,
        data_store: impl Into<Cow<'a, str>>,
    ) -> DlmReply<'a> {
        DlmReply {
            status: Status::Done,
            id: Some(id.into()),
            data_store: Some(data_store.into()),
        }
    }

    /// The reply to Version.
    pub const fn version() -> DlmReply<'a> {
        DlmReply {
            status: Status::Version,
            id: Some(Cow::Borrowed(VERSION_ID)),
            data_store: None,
        }
    }

    /// The same, borrowing nothing.
    pub fn into_owned(self) -> DlmReply<'static> {
        let owned = |text: Cow<'a, str>| Cow::Owned(text.into_owned());
        DlmReply {
            status: self.status,
            id: self.id.map(owned),
            data_store: self.data_store.map(owned),
        }
    }

    /// Appends the coded line to `out`, its newline included.
    pub fn encode(&self, out: &mut Vec<u8>) {
        wire::encode(b"{\"Status\":\"", out);
        wire::encode(self.status.as_str().as_bytes(), out);
        wire::encode(b"\"", out);
        if let Some(id) = &self.id {
            wire::encode(b",\"ID\":", out);
            json::encode_string(id, out);
        }
        if let Some(data_store) = &self.data_store {
            wire::encode(b",\"DataStore\":", out);
            json::encode_string(data_store, out);
        }
        wire::encode(b"}", out);
        out.push(b'\n');
    }

    /// Reads a reply's decoded text. Members that replies do not have are ignored.
    ///
    /// # Errors
    /// No JSON object, no status of the protocol, or an ID or data that is no string.
    pub fn decode(text: &'a [u8]) -> Result<DlmReply<'a>, BadReply> {
        let [status, id, data_store] =
            json::members(text, &["Status", "ID", "DataStore"]).ok_or(BadReply)?;
        let status = status.into_string().ok_or(BadReply)?;
        Ok(DlmReply {
            status: Status::from_name(&status).ok_or(BadReply)?,
            id: optional_string(id)?,
            data_store: optional_string(data_store)?,
        })
    }
}

impl From<Fault> for DlmReply<'_> {
    fn from(fault: Fault) -> Self {
        DlmReply::bare(fault.into())
    }
}

impl From<Fault> for Status {
    fn from(fault: Fault) -> Status {
        match fault {
            Fault::BadPayload => Status::BadPayload,
            Fault::BadAction => Status::BadAction,
        }
    }
}

impl Status {
    /// Every status there is: clients retry one that they do not know for ever.
    pub const ALL: [Status; 11] = [
        Status::Locked,
        Status::Unlocked,
        Status::Done,
        Status::NotOwner,
        Status::NotFound,
        Status::NoData,
        Status::BadPayload,
        Status::BadAction,
        Status::No,
        Status::Corruption,
        Status::Version,
    ];

    /// The spelling on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Status::Locked => "Locked",
            Status::Unlocked => "Unlocked",
            Status::Done => "Done",
            Status::NotOwner => "NotOwner",
            Status::NotFound => "NotFound",
            Status::NoData => "NoData",
            Status::BadPayload => "BadPayload",
            Status::BadAction => "BadAction",
            Status::No => "NO",
            Status::Corruption => "Corruption",
            Status::Version => "Version",
        }
    }

    fn from_name(name: &str) -> Option<Status> {
        Status::ALL
            .into_iter()
            .find(|status| status.as_str().eq_ignore_ascii_case(name))
    }
}

fn optional_string(value: Value<'_>) -> Result<Option<Cow<'_, str>>, BadReply> {
    match value {
        Value::Missing | Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        Value::Number(_) | Value::Other => Err(BadReply),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dlm::{Decoder, Progress};
    use std::collections::BTreeSet;

    /// The reference's response status codes.
    const REFERENCE_STATUSES: [&str; 11] = [
        "Locked",
        "Unlocked",
        "Done",
        "NotOwner",
        "NotFound",
        "NoData",
        "BadPayload",
        "BadAction",
        "NO",
        "Corruption",
        "Version",
    ];

    /// The JSON text of `reply`'s line.
    fn text(reply: &DlmReply<'_>) -> String {
        let mut line = Vec::new();
        reply.encode(&mut line);
        assert_eq!(line.iter().filter(|&&byte| byte == b'\n').count(), 1);
        assert_eq!(line.last(), Some(&b'\n'));
        let mut decoder = Decoder::new(line.len());
        assert_eq!(decoder.push(&line), Progress::Complete);
        String::from_utf8(decoder.text().to_vec()).expect("UTF-8")
    }

    /// Scenario 43: every reply decodes and carries a status that clients know.
    #[test]
    fn every_status_is_spelled_as_in_the_reference() {
        let ours: BTreeSet<_> = Status::ALL.map(Status::as_str).into();
        assert_eq!(ours, BTreeSet::from(REFERENCE_STATUSES));
        for status in Status::ALL {
            let reply = DlmReply::bare(status);
            assert_eq!(
                text(&reply),
                format!("{{\"Status\":\"{}\"}}", status.as_str())
            );
        }
    }

    #[test]
    fn replies_carry_what_the_reference_shows() {
        for (reply, expected) in [
            (
                DlmReply::with_id(Status::Locked, "DEADBEEF"),
                r#"{"Status":"Locked","ID":"DEADBEEF"}"#,
            ),
            (
                DlmReply::with_data("DEADBEEF", "step 2 complete"),
                r#"{"Status":"Done","ID":"DEADBEEF","DataStore":"step 2 complete"}"#,
            ),
            (
                DlmReply::with_data("a\"b\\c\n\u{1f}\u{7f}é", ""),
                "{\"Status\":\"Done\",\"ID\":\"a\\\"b\\\\c\\u000a\\u001f\u{7f}é\",\"DataStore\":\"\"}",
            ),
            (Fault::BadPayload.into(), r#"{"Status":"BadPayload"}"#),
            (Fault::BadAction.into(), r#"{"Status":"BadAction"}"#),
        ] {
            assert_eq!(text(&reply), expected);
            assert_eq!(DlmReply::decode(expected.as_bytes()), Ok(reply));
        }
    }

    #[test]
    fn version_names_the_original_and_then_this_server() {
        let text = text(&DlmReply::version());
        let expected = format!(
            r#"{{"Status":"Version","ID":"JackrabbitDLM/0.0.0.2.855 leasehold/{}"}}"#,
            env!("CARGO_PKG_VERSION")
        );
        assert_eq!(text, expected);
    }

    #[test]
    fn a_reply_is_read_without_regard_to_case_order_and_extras() {
        let text = br#"{"x":[],"ID":"A","Status":"nOtOwNeR","DataStore":null}"#;
        assert_eq!(
            DlmReply::decode(text),
            Ok(DlmReply::with_id(Status::NotOwner, "A"))
        );
        for text in [
            r"{}",
            r#"{"Status":"Maybe"}"#,
            r#"{"Status":5}"#,
            r#"{"Status":"Done","ID":5}"#,
            r#"{"Status":"Done","DataStore":[]}"#,
            r#"["Status"]"#,
            "",
        ] {
            assert_eq!(DlmReply::decode(text.as_bytes()), Err(BadReply), "{text}");
        }
    }
}
