//! The native frames that the load needs, written by hand from the protocol's tables.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::keys::{KEY_BYTES, Key};

/// Length of an acquire (`A`) with a 16-byte key: op, wait, lease, owner, key, newline.
pub const ACQUIRE_BYTES: usize = 1 + 1 + 1 + 8 + KEY_BYTES + 1;
/// Length of a release with a 16-byte key: op, owner, token, key, newline.
pub const RELEASE_BYTES: usize = 1 + 8 + 8 + KEY_BYTES + 1;
/// Length of Acquired: op, owner, token, waited, newline.
pub const ACQUIRED_BYTES: usize = 1 + 8 + 8 + 4 + 1;
/// Length of Released: op, owner, newline.
pub const RELEASED_BYTES: usize = 1 + 8 + 1;

const _: () = assert!(ACQUIRE_BYTES == 28 && RELEASE_BYTES == 34);
const _: () = assert!(ACQUIRED_BYTES == 22 && RELEASED_BYTES == 10);

/// Appends an acquire that does not wait.
pub fn push_acquire(out: &mut Vec<u8>, owner: u64, lease_s: u8, key: &Key) {
    let mut frame = [0; ACQUIRE_BYTES];
    frame[0] = b'A';
    frame[2] = lease_s;
    frame[3..11].copy_from_slice(&owner.to_be_bytes());
    frame[11..27].copy_from_slice(key);
    frame[27] = b'\n';
    out.extend_from_slice(&frame);
}

/// Appends a release.
pub fn push_release(out: &mut Vec<u8>, owner: u64, token: u64, key: &Key) {
    let mut frame = [0; RELEASE_BYTES];
    frame[0] = b'R';
    frame[1..9].copy_from_slice(&owner.to_be_bytes());
    frame[9..17].copy_from_slice(&token.to_be_bytes());
    frame[17..33].copy_from_slice(key);
    frame[33] = b'\n';
    out.extend_from_slice(&frame);
}

/// Length of Welcome: op, owner, version, flags, loops, loop, routing seed, longest key,
/// longest lease, newline.
pub const WELCOME_BYTES: usize = 1 + 8 + 1 + 1 + 2 + 2 + 8 + 2 + 4 + 1;

/// Any loop will do.
pub const ANY_LOOP: u16 = u16::MAX;

/// Appends a Hello without credential.
pub fn push_hello(out: &mut Vec<u8>, owner: u64, wanted_loop: u16) {
    out.extend_from_slice(&[b'H', 1, 0]);
    out.extend_from_slice(&wanted_loop.to_be_bytes());
    out.extend_from_slice(&owner.to_be_bytes());
    out.push(b'\n');
}

/// Where keys belong, as a Welcome says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Routing {
    /// How many loops the server has.
    pub loops: u16,
    /// The loop of the session that was welcomed.
    pub loop_index: u16,
    /// Seed of the routing hash.
    pub seed: u64,
}

impl Routing {
    /// Reads a Welcome.
    ///
    /// # Errors
    /// It is none.
    pub fn read(welcome: &[u8; WELCOME_BYTES]) -> Result<Routing, String> {
        if welcome[0] != b'H' || welcome[WELCOME_BYTES - 1] != b'\n' {
            return Err(format!("{welcome:?} is no Welcome"));
        }
        Ok(Routing {
            loops: u16::from_be_bytes([welcome[11], welcome[12]]),
            loop_index: u16::from_be_bytes([welcome[13], welcome[14]]),
            seed: u64_at(welcome, 15),
        })
    }

    /// The loop that owns a key.
    pub fn owner_of(&self, key: &[u8]) -> u16 {
        let upper_half = xxh3_64_with_seed(key, self.seed) >> 32;
        ((upper_half * u64::from(self.loops)) >> 32) as u16
    }
}

/// One reply, as far as a load client cares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The reply's op.
    pub op: u8,
    /// Owner of the request it answers.
    pub owner: u64,
    /// The token of `A`, the code of `E`, else 0.
    pub value: u64,
}

/// Reads the first reply of `bytes` and its length; `None` while it is incomplete.
///
/// # Errors
/// The bytes are no reply.
pub fn read_answer(bytes: &[u8]) -> Result<Option<(Answer, usize)>, String> {
    let Some(&op) = bytes.first() else {
        return Ok(None);
    };
    let length = match op {
        b'A' => ACQUIRED_BYTES,
        b'T' | b'B' | b'R' | b'N' => RELEASED_BYTES,
        b'E' => 1 + 8 + 1 + 1,
        b'H' => WELCOME_BYTES,
        _ => return Err(format!("unexpected reply op {op:#04x}")),
    };
    let Some(frame) = bytes.get(..length) else {
        return Ok(None);
    };
    if frame[length - 1] != b'\n' {
        return Err(format!("reply {:?} does not end in a newline", op as char));
    }
    let value = match op {
        b'A' => u64_at(frame, 9),
        b'E' => u64::from(frame[9]),
        _ => 0,
    };
    let owner = u64_at(frame, 1);
    Ok(Some((Answer { op, owner, value }, length)))
}

fn u64_at(frame: &[u8], offset: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&frame[offset..offset + 8]);
    u64::from_be_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &Key = b"0123456789abcdef";

    #[test]
    fn requests_have_the_documented_bytes() {
        let mut out = Vec::new();
        push_acquire(&mut out, 0x0102_0304_0506_070a, 10, KEY);
        push_release(&mut out, 2, 0x7fff_0000_0000_0001, KEY);
        assert_eq!(
            out,
            b"A\x00\x0a\x01\x02\x03\x04\x05\x06\x07\x0a0123456789abcdef\n\
              R\0\0\0\0\0\0\0\x02\x7f\xff\0\0\0\0\0\x010123456789abcdef\n"
        );
    }

    #[test]
    fn answers_are_read_only_when_complete() {
        let acquired = b"A\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\x01\x0a\0\0\0\0\n";
        for end in 0..acquired.len() {
            assert_eq!(read_answer(&acquired[..end]), Ok(None));
        }
        let answer = Answer {
            op: b'A',
            owner: 5,
            value: 0x010a,
        };
        assert_eq!(read_answer(acquired), Ok(Some((answer, 22))));
    }

    #[test]
    fn refusals_carry_their_code_and_strange_bytes_are_errors() {
        let refused = Answer {
            op: b'E',
            owner: 0,
            value: 6,
        };
        assert_eq!(
            read_answer(b"E\0\0\0\0\0\0\0\0\x06\nrest"),
            Ok(Some((refused, 11)))
        );
        assert!(read_answer(b"Z").is_err());
        assert!(read_answer(b"R\0\0\0\0\0\0\0\0!").is_err());
    }
}
