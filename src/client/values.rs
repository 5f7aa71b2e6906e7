//! What a caller hands in, checked before anything is sent.

use crate::limits::{MAX_CREDENTIAL_BYTES, MAX_KEY_BYTES};
use std::fmt;

/// The name of a lock: 1 byte or more of text without a newline.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Key(Box<str>);

/// A text that names no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// No byte.
    #[error("a key cannot be empty")]
    Empty,
    /// A newline would end the frame within the key.
    #[error("a key cannot hold a newline")]
    Newline,
    /// Longer than the server takes.
    #[error("the key has {given_bytes} bytes, the server takes at most {max_bytes}")]
    TooLong {
        /// The key's length.
        given_bytes: usize,
        /// What the server, or any server, takes.
        max_bytes: usize,
    },
}

impl Key {
    /// Checks the name.
    ///
    /// # Errors
    /// It is empty, holds a newline, or is longer than any server takes.
    pub fn new(name: &str) -> Result<Key, KeyError> {
        if name.is_empty() {
            return Err(KeyError::Empty);
        }
        if name.contains('\n') {
            return Err(KeyError::Newline);
        }
        let key = Key(name.into());
        key.check_length(MAX_KEY_BYTES)?;
        Ok(key)
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether a server that takes `max_bytes` takes this key.
    pub(super) fn check_length(&self, max_bytes: usize) -> Result<(), KeyError> {
        let given_bytes = self.0.len();
        if given_bytes > max_bytes {
            return Err(KeyError::TooLong {
                given_bytes,
                max_bytes,
            });
        }
        Ok(())
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a client shows to be let in: `name:secret`.
#[derive(Clone)]
pub struct Credential(Box<str>);

/// A text that is no credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a credential is NAME:SECRET, in one line of at most {MAX_CREDENTIAL_BYTES} bytes")]
pub struct CredentialError;

impl Credential {
    /// Checks the form.
    ///
    /// # Errors
    /// There is no colon, no name, a newline, or too much of it.
    pub fn new(text: &str) -> Result<Credential, CredentialError> {
        let has_name = text.find(':').is_some_and(|at| at > 0);
        if !has_name || text.contains('\n') || text.len() > MAX_CREDENTIAL_BYTES {
            return Err(CredentialError);
        }
        Ok(Credential(text.into()))
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

/// The name only: secrets do not belong in logs.
impl fmt::Debug for Credential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.0.split(':').next().unwrap_or_default();
        write!(f, "Credential({name}:…)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let longest = "k".repeat(MAX_KEY_BYTES);
        let too_long = "k".repeat(MAX_KEY_BYTES + 1);
        for (name, error) in [
            ("k", None),
            ("é \r\0", None),
            (longest.as_str(), None),
            ("", Some(KeyError::Empty)),
            ("a\nb", Some(KeyError::Newline)),
            ("\n", Some(KeyError::Newline)),
            (
                too_long.as_str(),
                Some(KeyError::TooLong {
                    given_bytes: MAX_KEY_BYTES + 1,
                    max_bytes: MAX_KEY_BYTES,
                }),
            ),
        ] {
            assert_eq!(Key::new(name).err(), error, "{name:?}");
        }
    }

    #[test]
    fn credentials() {
        let longest = format!("n:{}", "s".repeat(MAX_CREDENTIAL_BYTES - 2));
        for (text, good) in [
            ("n:s", true),
            ("n:", true),
            ("n:s:t", true),
            (longest.as_str(), true),
            (&format!("{longest}s"), false),
            ("", false),
            ("n", false),
            (":s", false),
            ("n:s\n", false),
        ] {
            assert_eq!(Credential::new(text).is_ok(), good, "{text:?}");
        }
    }

    #[test]
    fn debug_output_has_no_secret() {
        let shown = format!("{:?}", Credential::new("worker:hunter2").expect("good"));
        assert_eq!(shown, "Credential(worker:…)");
    }
}
