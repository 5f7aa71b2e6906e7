//! Lengths of the native frames, and the one that is sent, by hand from the protocol's tables.

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_acquire_has_the_documented_bytes() {
        let mut out = Vec::new();
        push_acquire(&mut out, 0x0102_0304_0506_070a, 10, b"0123456789abcdef");
        assert_eq!(
            out,
            b"A\x00\x0a\x01\x02\x03\x04\x05\x06\x07\x0a0123456789abcdef\n"
        );
    }
}
