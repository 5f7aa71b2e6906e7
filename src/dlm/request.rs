//! Requests: parse and judge for the server, encode for clients.

use super::decimal::Decimal;
use super::identity::{Claim, Verdict, is_plain_name};
use super::json::{self, Value};
use super::reply::Fault;
use super::wire;
use crate::limits::DLM_MAX_ID_BYTES;
use sha2::{Digest, Sha256};
use std::borrow::Cow;

/// One request, every rule kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DlmRequest<'a> {
    /// `ID`: who asks. Not empty.
    pub id: Cow<'a, str>,
    /// `FileName`: the key. Not empty.
    pub file_name: Cow<'a, str>,
    /// `Name` and `Identity`; at the server, found to be true.
    pub claim: Option<Claim<'a>>,
    /// `Action` and what belongs to it.
    pub operation: Operation<'a>,
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation<'a> {
    /// Take or renew the lock slot.
    Lock {
        /// `Expire` in milliseconds, rounded up; at least 1.
        ttl_ms: u64,
    },
    /// Release the lock slot.
    Unlock,
    /// Ask for the lock slot's state.
    TestLock,
    /// Store in the data slot.
    Put {
        /// `Expire` in milliseconds, rounded up; at least 1.
        ttl_ms: u64,
        /// `DataStore`.
        data_store: Cow<'a, str>,
    },
    /// Read the data slot.
    Get,
    /// Clear the data slot.
    Erase,
    /// Ask which server this is.
    Version,
}

impl Operation<'_> {
    /// The same, borrowing nothing.
    pub fn into_owned(self) -> Operation<'static> {
        match self {
            Operation::Lock { ttl_ms } => Operation::Lock { ttl_ms },
            Operation::Unlock => Operation::Unlock,
            Operation::TestLock => Operation::TestLock,
            Operation::Put { ttl_ms, data_store } => Operation::Put {
                ttl_ms,
                data_store: Cow::Owned(data_store.into_owned()),
            },
            Operation::Get => Operation::Get,
            Operation::Erase => Operation::Erase,
            Operation::Version => Operation::Version,
        }
    }
}

/// What a server's flags allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DlmLimits {
    /// `--max-key-bytes`, for `FileName`.
    pub max_key_bytes: usize,
    /// `--max-dlm-ttl` in milliseconds, whatever the action.
    pub max_ttl_ms: u64,
    /// Whether a request without `Name` and `Identity` is served at all.
    pub anonymous_allowed: bool,
    /// Longest `Expire` of an anonymous request in milliseconds, whatever the action.
    pub anonymous_max_ttl_ms: u64,
    /// Longest `DataStore` of an anonymous request in characters, whatever the action.
    pub anonymous_max_data_chars: u64,
}

/// A request that is in order except that its claim is not judged yet, and its
/// action may be unknown.
#[derive(Clone, Debug)]
pub struct ParsedRequest<'a> {
    id: Cow<'a, str>,
    file_name: Cow<'a, str>,
    action: Option<Action>,
    ttl_ms: u64,
    data_store: Option<Cow<'a, str>>,
    claim: Option<Claim<'a>>,
}

impl<'a> ParsedRequest<'a> {
    /// Reads a request's decoded text ([`super::Decoder::text`]) and holds it
    /// against the rules of its fields and, where it is anonymous, the limits.
    ///
    /// # Errors
    /// [`Fault::BadPayload`]; an unknown action comes out only when the claim is judged.
    pub fn parse(text: &'a [u8], limits: &DlmLimits) -> Result<ParsedRequest<'a>, Fault> {
        Self::read(text, limits).ok_or(Fault::BadPayload)
    }

    /// What must be verified before [`ParsedRequest::judge`]; `None` for an
    /// anonymous request.
    pub fn claim(&self) -> Option<&Claim<'a>> {
        self.claim.as_ref()
    }

    /// The request, if `verdict` on its claim lets it pass. A claim without
    /// [`Verdict::Accepted`] never passes, and no verdict gives an anonymous
    /// request more than it is allowed.
    ///
    /// # Errors
    /// [`Fault::BadPayload`] for a refused claim, or data over an identity's limit;
    /// then [`Fault::BadAction`].
    pub fn judge(self, verdict: Verdict) -> Result<DlmRequest<'a>, Fault> {
        if self.claim.is_some() {
            let Verdict::Accepted { max_data_chars } = verdict else {
                return Err(Fault::BadPayload);
            };
            if self.data_is_longer_than(max_data_chars) {
                return Err(Fault::BadPayload);
            }
        }
        let operation = match self.action.ok_or(Fault::BadAction)? {
            Action::Lock => Operation::Lock {
                ttl_ms: self.ttl_ms,
            },
            Action::Unlock => Operation::Unlock,
            Action::TestLock => Operation::TestLock,
            Action::Put => Operation::Put {
                ttl_ms: self.ttl_ms,
                data_store: self.data_store.ok_or(Fault::BadPayload)?,
            },
            Action::Get => Operation::Get,
            Action::Erase => Operation::Erase,
            Action::Version => Operation::Version,
        };
        Ok(DlmRequest {
            id: self.id,
            file_name: self.file_name,
            claim: self.claim,
            operation,
        })
    }

    fn read(text: &'a [u8], limits: &DlmLimits) -> Option<ParsedRequest<'a>> {
        let [id, file_name, action, expire, data_store, name, identity] = json::members(
            text,
            &[
                "ID",
                "FileName",
                "Action",
                "Expire",
                "DataStore",
                "Name",
                "Identity",
            ],
        )?;
        let id = bounded_string(id, DLM_MAX_ID_BYTES)?;
        let file_name = bounded_string(file_name, limits.max_key_bytes)?;
        let action = Action::from_name(&action.into_string()?);
        let expire = number_text(&expire)?;
        let expire = Decimal::parse(expire)?;
        let data_store = data_store.into_string();
        match action {
            Some(Action::Lock) if !expire.is_positive() => return None,
            Some(Action::Put) if !expire.is_positive() || data_store.is_none() => return None,
            _ => {}
        }
        let request = ParsedRequest {
            id,
            file_name,
            action,
            ttl_ms: expire.ceil_times_ten_to(3),
            data_store,
            claim: claim(name, identity)?,
        };
        request.is_within(limits).then_some(request)
    }

    fn is_within(&self, limits: &DlmLimits) -> bool {
        let anonymous_is_within = || {
            limits.anonymous_allowed
                && self.ttl_ms <= limits.anonymous_max_ttl_ms
                && !self.data_is_longer_than(limits.anonymous_max_data_chars)
        };
        self.ttl_ms <= limits.max_ttl_ms && (self.claim.is_some() || anonymous_is_within())
    }

    fn data_is_longer_than(&self, max_chars: u64) -> bool {
        self.data_store.as_ref().is_some_and(|data| {
            // Characters are counted only where bytes do not decide.
            data.len() as u64 > max_chars && data.chars().count() as u64 > max_chars
        })
    }
}

impl DlmRequest<'_> {
    /// Appends the coded line to `out`, its newline included.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let (action, ttl_ms, data_store) = match &self.operation {
            Operation::Lock { ttl_ms } => (Action::Lock, *ttl_ms, None),
            Operation::Unlock => (Action::Unlock, 0, None),
            Operation::TestLock => (Action::TestLock, 0, None),
            Operation::Put { ttl_ms, data_store } => (Action::Put, *ttl_ms, Some(data_store)),
            Operation::Get => (Action::Get, 0, None),
            Operation::Erase => (Action::Erase, 0, None),
            Operation::Version => (Action::Version, 0, None),
        };
        wire::encode(b"{\"ID\":", out);
        json::encode_string(&self.id, out);
        wire::encode(b",\"FileName\":", out);
        json::encode_string(&self.file_name, out);
        wire::encode(b",\"Action\":", out);
        json::encode_string(action.as_str(), out);
        wire::encode(b",\"Expire\":", out);
        json::encode_string(&seconds_text(ttl_ms), out);
        if let Some(data_store) = data_store {
            wire::encode(b",\"DataStore\":", out);
            json::encode_string(data_store, out);
        }
        if let Some(claim) = &self.claim {
            wire::encode(b",\"Name\":", out);
            json::encode_string(&claim.name, out);
            wire::encode(b",\"Identity\":", out);
            json::encode_string(&claim.identity, out);
        }
        wire::encode(b"}", out);
        out.push(b'\n');
    }

    /// Stands for `ID`, `Name` and `Identity` together: whoever holds a slot is
    /// recognised by it, and it can be kept in place of the three.
    pub fn holder_digest(&self) -> [u8; 32] {
        let parts = match &self.claim {
            None => [Some(&self.id), None, None],
            Some(claim) => [Some(&self.id), Some(&claim.name), Some(&claim.identity)],
        };
        let mut hash = Sha256::new();
        for part in parts.into_iter().flatten() {
            // With its length before it, no part can pass for the end of another.
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().into()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Lock,
    Unlock,
    TestLock,
    Put,
    Get,
    Erase,
    Version,
}

impl Action {
    const ALL: [Action; 7] = [
        Action::Lock,
        Action::Unlock,
        Action::TestLock,
        Action::Put,
        Action::Get,
        Action::Erase,
        Action::Version,
    ];

    const fn as_str(self) -> &'static str {
        match self {
            Action::Lock => "Lock",
            Action::Unlock => "Unlock",
            Action::TestLock => "TestLock",
            Action::Put => "Put",
            Action::Get => "Get",
            Action::Erase => "Erase",
            Action::Version => "Version",
        }
    }

    fn from_name(name: &str) -> Option<Action> {
        Action::ALL
            .into_iter()
            .find(|action| action.as_str().eq_ignore_ascii_case(name))
    }
}

fn bounded_string(value: Value<'_>, max_bytes: usize) -> Option<Cow<'_, str>> {
    let text = value.into_string()?;
    (!text.is_empty() && text.len() <= max_bytes).then_some(text)
}

/// A number's digits, be it bare or in a string with spaces around it.
fn number_text<'v>(value: &'v Value<'_>) -> Option<&'v str> {
    match value {
        Value::Number(text) => Some(text),
        Value::String(text) => Some(text.trim_ascii()),
        Value::Missing | Value::Null | Value::Other => None,
    }
}

/// `Some(None)` where neither member is there. Everything but two strings, the
/// first a plain file name, is a failed authentication, also null in both: the one
/// who sent it meant to say who it is, and never asked to be served as nobody.
fn claim<'a>(name: Value<'a>, identity: Value<'a>) -> Option<Option<Claim<'a>>> {
    if (&name, &identity) == (&Value::Missing, &Value::Missing) {
        return Some(None);
    }
    let (name, identity) = (name.into_string()?, identity.into_string()?);
    is_plain_name(&name).then_some(Some(Claim { name, identity }))
}

/// `ttl_ms` as decimal seconds.
fn seconds_text(ttl_ms: u64) -> String {
    match (ttl_ms / 1000, ttl_ms % 1000) {
        (seconds, 0) => seconds.to_string(),
        (seconds, ms) => format!("{seconds}.{ms:03}"),
    }
}

#[cfg(test)]
mod tests;
