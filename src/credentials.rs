//! Who may connect: names, each with the SHA-256 of its secret.
//!
//! The file has a line `NAME SHA256-HEX-OF-SECRET` for each name; blank lines and
//! lines that start with `#` are skipped. A name stands once: to change a secret,
//! replace its line. Secrets are random and 256 bits long, so a plain hash keeps
//! them; a guessable secret would not be safe here.

use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use subtle::{Choice, ConstantTimeEq};

/// Longest name, in bytes: with a colon and 64 hexadecimal digits of secret it
/// stays far below the protocol's bound of a credential.
pub const MAX_NAME_BYTES: usize = 255;

const HASH_BYTES: usize = 32;
const SECRET_BYTES: usize = 32;

const _: () = assert!(MAX_NAME_BYTES + 1 + 2 * SECRET_BYTES <= crate::limits::MAX_CREDENTIAL_BYTES);

/// The names that may connect, and how to know them.
#[derive(Clone, Default)]
pub struct Credentials {
    secret_hashes: HashMap<Box<str>, [u8; HASH_BYTES]>,
}

/// The credentials file cannot be used; the message is one line and names the
/// file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The file could not be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A line is not of the form that is asked for.
    #[error("{}:{line}: {problem}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// Number of the line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: LineProblem,
    },
    /// Nobody could connect.
    #[error("{}: no credential in it", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
}

/// What is wrong with a line of the credentials file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LineProblem {
    /// There are not two words.
    #[error("must be NAME SHA256-HEX-OF-SECRET")]
    Form,
    /// The name cannot stand in a credential.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The second word is no SHA-256.
    #[error("the hash must be 64 hexadecimal digits")]
    Hash,
    /// The name has a line already.
    #[error("{0} has a line already: a name has one secret")]
    Twice(Box<str>),
}

/// A name that cannot stand in a credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a name has 1 to {MAX_NAME_BYTES} bytes, no colon, no white space or control character, \
     and no # at its start"
)]
pub struct NameError;

impl Credentials {
    /// Reads the file.
    ///
    /// # Errors
    /// It cannot be read, has a bad line, or holds no credential.
    pub fn read(path: &Path) -> Result<Credentials, CredentialsError> {
        let text = std::fs::read_to_string(path).map_err(|source| CredentialsError::Read {
            path: path.into(),
            source,
        })?;
        let credentials = Self::parse(&text).map_err(|(line, problem)| CredentialsError::Line {
            path: path.into(),
            line,
            problem,
        })?;
        if credentials.secret_hashes.is_empty() {
            return Err(CredentialsError::Empty { path: path.into() });
        }
        Ok(credentials)
    }

    /// Whether `credential` is `name:secret` of a name and its secret. Takes the
    /// same work whether the name is known or not, and compares the secret in
    /// constant time.
    pub fn check(&self, credential: &[u8]) -> bool {
        // A name has no colon: the first one ends it, a secret may hold more.
        let colon = credential.iter().position(|byte| *byte == b':');
        let (name, secret) = match colon {
            Some(at) => (&credential[..at], &credential[at + 1..]),
            None => (credential, &b""[..]),
        };
        let known = std::str::from_utf8(name)
            .ok()
            .and_then(|name| self.secret_hashes.get(name));
        let is_known = Choice::from(u8::from(known.is_some() && colon.is_some()));
        let expected = known.unwrap_or(&[0; HASH_BYTES]);
        let given = Sha256::digest(secret);
        (given.as_slice().ct_eq(expected.as_slice()) & is_known).into()
    }

    /// The text's credentials, or its first bad line and what is wrong there.
    pub(crate) fn parse(text: &str) -> Result<Credentials, (usize, LineProblem)> {
        let mut credentials = Credentials::default();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (name, hash) = parse_line(line).map_err(|problem| (index + 1, problem))?;
            if credentials
                .secret_hashes
                .insert(name.into(), hash)
                .is_some()
            {
                return Err((index + 1, LineProblem::Twice(name.into())));
            }
        }
        Ok(credentials)
    }
}

/// Names only: not even hashes belong in a log.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.secret_hashes.keys()).finish()
    }
}

/// A credential made for a name that had none.
pub struct NewCredential {
    /// The secret, in hexadecimal; it is kept nowhere.
    pub secret: String,
    /// The line for the credentials file.
    pub line: String,
}

impl NewCredential {
    /// A random secret of 256 bits for `name`.
    ///
    /// # Errors
    /// The name cannot stand in a credential.
    ///
    /// # Panics
    /// If the kernel gives no random bytes, which leaves nothing safe to do.
    pub fn generate(name: &str) -> Result<NewCredential, NameError> {
        check_name(name)?;
        let mut random = [0; SECRET_BYTES];
        getrandom::fill(&mut random).expect("the kernel gives random bytes");
        let secret = hex(&random);
        let line = format!("{name} {}", hex(&Sha256::digest(&secret)));
        Ok(NewCredential { secret, line })
    }
}

/// Whether `name` can stand before the colon of a credential and in the file.
///
/// # Errors
/// It cannot.
pub fn check_name(name: &str) -> Result<(), NameError> {
    let bad = |c: char| c == ':' || c.is_whitespace() || c.is_control();
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.starts_with('#') || name.contains(bad)
    {
        return Err(NameError);
    }
    Ok(())
}

fn parse_line(line: &str) -> Result<(&str, [u8; HASH_BYTES]), LineProblem> {
    let mut words = line.split_whitespace();
    let (Some(name), Some(hash), None) = (words.next(), words.next(), words.next()) else {
        return Err(LineProblem::Form);
    };
    check_name(name)?;
    Ok((name, parse_hash(hash).ok_or(LineProblem::Hash)?))
}

fn parse_hash(text: &str) -> Option<[u8; HASH_BYTES]> {
    if text.len() != 2 * HASH_BYTES || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let mut hash = [0; HASH_BYTES];
    for (at, byte) in hash.iter_mut().enumerate() {
        *byte = u8::from_str_radix(&text[2 * at..2 * at + 2], 16).ok()?;
    }
    Some(hash)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    // printf %s SECRET | sha256sum
    const SHA256_OF_ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    const SHA256_OF_NOTHING: &str =
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    pub(crate) fn parse(text: &str) -> Credentials {
        Credentials::parse(text).expect("good lines")
    }

    #[test]
    fn the_right_secret_of_a_known_name_is_let_in() {
        let credentials = parse(&format!(
            "# who\n\n  worker {SHA256_OF_ABC}\r\nempty\t{}\n",
            SHA256_OF_NOTHING.to_uppercase()
        ));
        for (credential, expected) in [
            (&b"worker:abc"[..], true),
            (b"empty:", true),
            (b"worker:abC", false),
            (b"worker:abc ", false),
            (b"worker:ab", false),
            (b"worker:", false),
            (b"worker", false),
            (b"empty", false),
            (b"", false),
            (b":", false),
            (b":abc", false),
            (b"nobody:abc", false),
            (b"nobody:", false),
            (b"Worker:abc", false),
            (b"worker:abc:abc", false),
            (b"empty:abc", false),
            (b"wor\xffker:abc", false),
            (b"worker:\xff\x00", false),
        ] {
            assert_eq!(credentials.check(credential), expected, "{credential:?}");
        }
    }

    #[test]
    fn a_secret_may_hold_colons_and_any_byte() {
        // printf 'a:b\0\377' | sha256sum
        let credentials =
            parse("n e829f1d9550564cf17febb0a0e4244b9a9f43c611d6052dc8a6c99d9b2d9e0b2");
        assert!(credentials.check(b"n:a:b\x00\xff"));
    }

    #[test]
    fn bad_lines_are_named() {
        let long = "n".repeat(MAX_NAME_BYTES + 1);
        let good = format!("worker {SHA256_OF_ABC}");
        for (text, line, problem) in [
            ("worker".to_string(), 1, LineProblem::Form),
            (format!("# x\n\n{good} x"), 3, LineProblem::Form),
            (
                format!("{good}\nwork:er {SHA256_OF_ABC}"),
                2,
                NameError.into(),
            ),
            (format!("{long} {SHA256_OF_ABC}"), 1, NameError.into()),
            ("worker abc".to_string(), 1, LineProblem::Hash),
            (format!("worker {SHA256_OF_ABC}0"), 1, LineProblem::Hash),
            (
                format!("worker +{}", &SHA256_OF_ABC[1..]),
                1,
                LineProblem::Hash,
            ),
            (format!("worker {}", "é".repeat(32)), 1, LineProblem::Hash),
            (
                format!("{good}\nother {SHA256_OF_ABC}\n{good}\n"),
                3,
                LineProblem::Twice("worker".into()),
            ),
        ] {
            assert_eq!(
                Credentials::parse(&text).err(),
                Some((line, problem)),
                "{text:?}"
            );
        }
    }

    #[test]
    fn errors_name_the_file_in_one_line() {
        let missing = Credentials::read(Path::new("/nonexistent/credentials"))
            .expect_err("there is no such file")
            .to_string();
        assert!(
            missing.starts_with("/nonexistent/credentials: "),
            "{missing}"
        );
        let bad = CredentialsError::Line {
            path: "/etc/c".into(),
            line: 3,
            problem: LineProblem::Hash,
        };
        assert_eq!(
            bad.to_string(),
            "/etc/c:3: the hash must be 64 hexadecimal digits"
        );
        let nothing = Credentials::read(Path::new("/dev/null")).expect_err("nothing in it");
        assert_eq!(nothing.to_string(), "/dev/null: no credential in it");
    }

    #[test]
    fn a_generated_credential_is_let_in_and_is_random() {
        let first = NewCredential::generate("worker-1").expect("a good name");
        let second = NewCredential::generate("worker-1").expect("a good name");
        assert_ne!(first.secret, second.secret);
        assert_eq!(first.secret.len(), 64);
        let credentials = parse(&first.line);
        assert!(credentials.check(format!("worker-1:{}", first.secret).as_bytes()));
        assert!(!credentials.check(format!("worker-1:{}", second.secret).as_bytes()));
    }

    #[test]
    fn names() {
        let longest = "n".repeat(MAX_NAME_BYTES);
        for (name, good) in [
            ("worker", true),
            ("a", true),
            ("é#-_./@", true),
            (longest.as_str(), true),
            ("", false),
            ("a:b", false),
            ("a b", false),
            ("a\tb", false),
            ("a\n", false),
            ("a\0", false),
            ("#a", false),
        ] {
            assert_eq!(check_name(name).is_ok(), good, "{name:?}");
            assert_eq!(NewCredential::generate(name).is_ok(), good, "{name:?}");
        }
    }

    #[test]
    fn debug_output_has_no_hashes() {
        let shown = format!("{:?}", parse(&format!("worker {SHA256_OF_ABC}")));
        assert_eq!(shown, "{\"worker\"}");
    }
}
