//! Identities: which names are taken, what an identity file holds, who is who.
//!
//! An identity `NAME` is the file `NAME.cfg`: `{"Identity": SECRET, "MaxSize": N}`.
//! Files are read and written elsewhere; only their contents come here.

use super::decimal::Decimal;
use super::json::{self, Value};
use crate::limits::{
    DEFAULT_DLM_DATA_CHARS, DLM_MAX_GENERATED_IDENTITY_CHARS, DLM_MAX_IDENTITY_FILE_BYTES,
    DLM_MAX_NAME_BYTES, DLM_MIN_IDENTITY_CHARS,
};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::fmt;
use subtle::{Choice, ConstantTimeEq};

/// Who a request says it comes from.
#[derive(Clone, PartialEq, Eq)]
pub struct Claim<'a> {
    /// `Name`.
    pub name: Cow<'a, str>,
    /// `Identity`, the secret.
    pub identity: Cow<'a, str>,
}

impl fmt::Debug for Claim<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Claim")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

/// What has become of a request's claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The request makes none.
    Anonymous,
    /// It is true.
    Accepted {
        /// The longest `DataStore` this identity may send, in characters.
        max_data_chars: u64,
    },
    /// It is not, whatever the reason.
    Refused,
}

/// What is kept of an identity file. The secret itself is not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    secret_digest: [u8; 32],
    max_data_chars: u64,
}

/// Why an identity file is not used. For the server's log, never for a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IdentityFileError {
    /// Over [`DLM_MAX_IDENTITY_FILE_BYTES`].
    #[error("longer than {DLM_MAX_IDENTITY_FILE_BYTES} bytes")]
    TooLong,
    /// Not one JSON object.
    #[error("not a JSON object")]
    NotAnObject,
    /// `Identity` is missing or no string.
    #[error("\"Identity\" is missing or no string")]
    NoIdentity,
    /// `Identity` is too short to be one.
    #[error("\"Identity\" has less than {DLM_MIN_IDENTITY_CHARS} characters")]
    TooShort,
}

impl Identity {
    /// Reads an identity file's contents. `MaxSize` is the default where it is
    /// missing or no number, and 0 where it is negative.
    ///
    /// # Errors
    /// See [`IdentityFileError`].
    pub fn parse(contents: &[u8]) -> Result<Identity, IdentityFileError> {
        if contents.len() > DLM_MAX_IDENTITY_FILE_BYTES {
            return Err(IdentityFileError::TooLong);
        }
        let [secret, max_size] = json::members(contents, &["Identity", "MaxSize"])
            .ok_or(IdentityFileError::NotAnObject)?;
        let secret = secret.into_string().ok_or(IdentityFileError::NoIdentity)?;
        if secret.chars().count() < DLM_MIN_IDENTITY_CHARS {
            return Err(IdentityFileError::TooShort);
        }
        let max_size = match max_size {
            Value::Number(text) => Decimal::parse(text),
            _ => None,
        };
        Ok(Identity {
            secret_digest: Sha256::digest(secret.as_bytes()).into(),
            max_data_chars: max_size.map_or(DEFAULT_DLM_DATA_CHARS, |size| size.floor()),
        })
    }

    /// Whether `claim` is true, `identity` being what the file of its name holds,
    /// `None` where there is none that can be used.
    ///
    /// Takes as long for a missing file as for a wrong secret, and as long for one
    /// wrong secret as for another of its length.
    pub fn verify(identity: Option<&Identity>, claim: &Claim<'_>) -> Verdict {
        const NOBODY: Identity = Identity {
            secret_digest: [0; 32],
            max_data_chars: 0,
        };
        let compared_with = identity.unwrap_or(&NOBODY);
        let claimed: [u8; 32] = Sha256::digest(claim.identity.as_bytes()).into();
        let exists = Choice::from(u8::from(identity.is_some()));
        if (claimed.ct_eq(&compared_with.secret_digest) & exists).into() {
            Verdict::Accepted {
                max_data_chars: compared_with.max_data_chars,
            }
        } else {
            Verdict::Refused
        }
    }
}

/// The name of the file of the identity `name`, to be looked up in the config
/// directory; `None` where `name` is no plain file name: empty, too long, with a
/// path separator, a leading dot or a NUL.
pub fn identity_file_name(name: &str) -> Option<String> {
    is_plain_name(name).then(|| format!("{name}.cfg"))
}

/// The contents of a new identity file with a random secret, which `fill` gives
/// the random bytes for. `max_data_chars` becomes `MaxSize`.
///
/// # Errors
/// Those of `fill`.
pub fn generate_identity_file<E>(
    max_data_chars: Option<u64>,
    mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
) -> Result<String, E> {
    const LENGTHS: usize = DLM_MAX_GENERATED_IDENTITY_CHARS - DLM_MIN_IDENTITY_CHARS + 1;
    let mut length = [0; 4];
    fill(&mut length)?;
    let length = DLM_MIN_IDENTITY_CHARS + u32::from_le_bytes(length) as usize % LENGTHS;

    let mut random = [0; DLM_MAX_GENERATED_IDENTITY_CHARS];
    let random = &mut random[..length];
    fill(random)?;
    let mut contents = String::from("{\"Identity\": \"");
    contents.extend(random.iter().map(|&byte| secret_char(byte)));
    contents.push('"');
    if let Some(max_data_chars) = max_data_chars {
        contents.push_str(&format!(", \"MaxSize\": {max_data_chars}"));
    }
    contents.push_str("}\n");
    Ok(contents)
}

pub(super) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= DLM_MAX_NAME_BYTES
        && !name.starts_with('.')
        && !name.contains(['/', '\0'])
}

/// One of 64 printable characters, each as likely as the others.
fn secret_char(random: u8) -> char {
    const CHARS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    char::from(CHARS[usize::from(random) % CHARS.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn file(secret: &str, rest: &str) -> String {
        format!("{{\"Identity\": \"{secret}\"{rest}}}\n")
    }

    fn claim(identity: &str) -> Claim<'_> {
        Claim {
            name: "worker".into(),
            identity: identity.into(),
        }
    }

    #[test]
    fn only_plain_file_names_are_names() {
        for name in ["myWorker", "a", "a.b", "with space", "naïve", "..."] {
            let expected = (!name.starts_with('.')).then(|| format!("{name}.cfg"));
            assert_eq!(identity_file_name(name), expected, "{name}");
        }
        let longest = "n".repeat(251);
        assert_eq!(
            identity_file_name(&longest).map(|file| file.len()),
            Some(255)
        );
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "../up",
            "/etc/passwd",
            "a/b",
            "a/",
            "nul\0",
            &"n".repeat(252),
        ] {
            assert_eq!(identity_file_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn a_secret_is_true_only_to_itself() {
        let secret = "s".repeat(1023);
        let identity = Identity::parse(file(&secret, "").as_bytes()).expect("a good file");
        assert_eq!(
            Identity::verify(Some(&identity), &claim(&secret)),
            Verdict::Accepted {
                max_data_chars: 16_384
            }
        );
        let last_differs = "s".repeat(1022) + "t";
        for wrong in [&"s".repeat(1022), &"s".repeat(1024), "", &last_differs] {
            assert_eq!(
                Identity::verify(Some(&identity), &claim(wrong)),
                Verdict::Refused
            );
        }
        assert_eq!(Identity::verify(None, &claim(&secret)), Verdict::Refused);
    }

    #[test]
    fn max_size_counts_where_it_is_a_number() {
        let secret = "s".repeat(1023);
        for (rest, max_data_chars) in [
            ("", 16_384),
            (", \"MaxSize\": 65536", 65_536),
            (", \"MaxSize\": 100", 100),
            (", \"MaxSize\": 1e6", 1_000_000),
            (", \"MaxSize\": 99.9", 99),
            (", \"MaxSize\": 1e400", u64::MAX),
            (", \"MaxSize\": 0", 0),
            (", \"MaxSize\": -1", 0),
            (", \"MaxSize\": \"65536\"", 16_384),
            (", \"MaxSize\": null", 16_384),
            (", \"MaxSize\": true", 16_384),
            (", \"MaxSize\": [65536]", 16_384),
        ] {
            let identity = Identity::parse(file(&secret, rest).as_bytes()).expect("a good file");
            assert_eq!(
                Identity::verify(Some(&identity), &claim(&secret)),
                Verdict::Accepted { max_data_chars },
                "{rest}"
            );
        }
    }

    #[test]
    fn a_file_that_is_none_is_told_apart_for_the_log() {
        for (contents, error) in [
            (String::new(), IdentityFileError::NotAnObject),
            ("secret".to_owned(), IdentityFileError::NotAnObject),
            ("[]".to_owned(), IdentityFileError::NotAnObject),
            (
                file(&"s".repeat(1023), ", \"MaxSize\": NaN"),
                IdentityFileError::NotAnObject,
            ),
            ("{}".to_owned(), IdentityFileError::NoIdentity),
            (
                "{\"Identity\": 5}".to_owned(),
                IdentityFileError::NoIdentity,
            ),
            (file(&"s".repeat(1022), ""), IdentityFileError::TooShort),
            // Characters are counted, not bytes.
            (file(&"é".repeat(1022), ""), IdentityFileError::TooShort),
            (
                file(&"s".repeat(1024 * 1024), ""),
                IdentityFileError::TooLong,
            ),
        ] {
            assert_eq!(
                Identity::parse(contents.as_bytes()),
                Err(error),
                "{contents:.60}"
            );
        }
    }

    #[test]
    fn a_generated_file_is_an_identity_of_the_promised_length() {
        for (length_word, chars) in [(0_u32, 1023), (1024, 2047), (1025, 1023)] {
            let mut calls = 0;
            let contents = generate_identity_file(Some(70_000), |bytes| {
                calls += 1;
                if calls == 1 {
                    bytes.copy_from_slice(&length_word.to_le_bytes());
                } else {
                    for (index, byte) in bytes.iter_mut().enumerate() {
                        *byte = index as u8;
                    }
                }
                Ok::<(), Infallible>(())
            })
            .unwrap_or_else(|never| match never {});
            let secret = contents.split('"').nth(3).expect("a string");
            assert_eq!(secret.len(), chars);
            assert!(secret.bytes().all(|byte| byte.is_ascii_graphic()));
            let used: std::collections::BTreeSet<_> = secret.bytes().collect();
            assert_eq!(used.len(), 64);
            let identity = Identity::parse(contents.as_bytes()).expect("a good file");
            assert_eq!(
                Identity::verify(Some(&identity), &claim(secret)),
                Verdict::Accepted {
                    max_data_chars: 70_000
                }
            );
        }
    }

    #[test]
    fn no_random_bytes_no_identity() {
        assert_eq!(
            generate_identity_file(None, |_| Err("no entropy")),
            Err("no entropy")
        );
    }

    #[test]
    fn a_claim_is_shown_without_its_secret() {
        let shown = format!("{:?}", claim("hush"));
        assert!(
            shown.contains("worker") && !shown.contains("hush"),
            "{shown}"
        );
    }
}
