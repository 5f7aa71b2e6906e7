//! The state file: one of fixed size, whose every bit is under a checksum.
//!
//! | bytes | |
//! |---|---|
//! | 0–7 | magic |
//! | 8–11 | format version |
//! | 12–15 | zero |
//! | 16–23 | checksum of bytes 0–15 |
//! | 24–31 | sequence number |
//! | 32–39 | token mark |
//! | 40–47 | D, in milliseconds |
//! | 48–55 | end: 1 unclean, 2 clean |
//! | 56–63 | what was left at a clean end, in milliseconds |
//! | 64–71 | checksum of bytes 0–63 |
//!
//! Numbers are little-endian, checksums XXH3. The first 24 bytes stay so in every
//! version: a newer server's file is told from a corrupted one.

use xxhash_rust::xxh3::xxh3_64;

const MAGIC: [u8; 8] = *b"LHstate\n";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 24;

/// How long a state file is, in bytes.
pub const STATE_BYTES: usize = 72;

/// What the state file holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct State {
    /// The first token that is not reserved.
    pub mark: u64,
    /// At least as long as every lease that is not recorded, in milliseconds.
    pub d_ms: u64,
    /// How the server ended.
    pub end: End,
}

/// How a server ended, as it stands in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// It runs, or did not end by itself.
    Unclean,
    /// It drained.
    Clean {
        /// What its longest lease, of those that are not recorded, had left, in
        /// milliseconds.
        left_ms: u64,
    },
}

/// Why bytes are no state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// They are no state file, or not as they were written.
    Corrupted,
    /// A server wrote them whose format is another.
    UnknownVersion(u32),
}

/// The file's bytes for `state`. Of two copies, the one with the higher sequence number
/// is the newer.
pub fn encode(sequence: u64, state: &State) -> [u8; STATE_BYTES] {
    let mut bytes = [0; STATE_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    let header_checksum = xxh3_64(&bytes[..16]);
    let (end, left_ms) = match state.end {
        End::Unclean => (1, 0),
        End::Clean { left_ms } => (2, left_ms),
    };
    let numbers = [
        header_checksum,
        sequence,
        state.mark,
        state.d_ms,
        end,
        left_ms,
    ];
    for (place, number) in bytes[16..].chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let checksum = xxh3_64(&bytes[..64]);
    bytes[64..].copy_from_slice(&checksum.to_le_bytes());
    bytes
}

/// The sequence number and the state that the bytes of a file say.
///
/// # Errors
/// See [`Unreadable`].
pub fn decode(bytes: &[u8]) -> Result<(u64, State), Unreadable> {
    let header = bytes.get(..HEADER_BYTES).ok_or(Unreadable::Corrupted)?;
    if header[..8] != MAGIC || number(header, 16) != xxh3_64(&header[..16]) {
        return Err(Unreadable::Corrupted);
    }
    // Its upper half is the zero, which no version is written over.
    let version = number(header, 8);
    if version != u64::from(VERSION) {
        let version = u32::try_from(version).unwrap_or(u32::MAX);
        return Err(Unreadable::UnknownVersion(version));
    }
    if bytes.len() != STATE_BYTES || number(bytes, 64) != xxh3_64(&bytes[..64]) {
        return Err(Unreadable::Corrupted);
    }
    let end = match (number(bytes, 48), number(bytes, 56)) {
        (1, 0) => End::Unclean,
        (2, left_ms) => End::Clean { left_ms },
        _ => return Err(Unreadable::Corrupted),
    };
    let state = State {
        mark: number(bytes, 32),
        d_ms: number(bytes, 40),
        end,
    };
    Ok((number(bytes, 24), state))
}

/// The number at `at`, which the caller knows to be there.
fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<(u64, State)> {
        let ends = [
            End::Unclean,
            End::Clean { left_ms: 0 },
            End::Clean { left_ms: u64::MAX },
        ];
        let numbers = [0, 1, 1 << 36, u64::MAX];
        let mut states = Vec::new();
        for end in ends {
            for (at, mark) in numbers.into_iter().enumerate() {
                let d_ms = numbers[3 - at];
                states.push((numbers[at], State { mark, d_ms, end }));
            }
        }
        states
    }

    #[test]
    fn what_is_written_is_read() {
        for (sequence, state) in states() {
            assert_eq!(decode(&encode(sequence, &state)), Ok((sequence, state)));
        }
    }

    /// So that no later change of the code makes files unreadable unnoticed.
    #[test]
    fn the_layout_is_as_written_down() {
        let state = State {
            mark: 0x0102_0304_0506_0708,
            d_ms: 8192,
            end: End::Clean { left_ms: 5 },
        };
        let bytes = encode(3, &state);
        assert_eq!(&bytes[..8], b"LHstate\n");
        assert_eq!(bytes[8..16], [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[16..24], xxh3_64(&bytes[..16]).to_le_bytes());
        assert_eq!(bytes[24..32], [3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[32..40], [8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(bytes[40..48], [0, 32, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[48..56], [2, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[56..64], [5, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[64..], xxh3_64(&bytes[..64]).to_le_bytes());
    }

    #[test]
    fn no_flipped_bit_no_lost_and_no_added_byte_goes_unnoticed() {
        for (sequence, state) in states() {
            let bytes = encode(sequence, &state);
            for bit in 0..STATE_BYTES * 8 {
                let mut flipped = bytes;
                flipped[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&flipped), Err(Unreadable::Corrupted), "bit {bit}");
            }
            for length in 0..STATE_BYTES {
                assert_eq!(decode(&bytes[..length]), Err(Unreadable::Corrupted));
            }
            let longer = [&bytes[..], &[0]].concat();
            assert_eq!(decode(&longer), Err(Unreadable::Corrupted));
        }
    }

    #[test]
    fn another_version_is_told_from_corruption() {
        let state = states()[0].1;
        let mut bytes = encode(1, &state).to_vec();
        bytes[8..12].copy_from_slice(&7_u32.to_le_bytes());
        let checksum = xxh3_64(&bytes[..16]);
        bytes[16..24].copy_from_slice(&checksum.to_le_bytes());
        for length in [HEADER_BYTES, STATE_BYTES] {
            let newer = &bytes[..length];
            assert_eq!(decode(newer), Err(Unreadable::UnknownVersion(7)));
        }
        bytes.extend([9; 1000]);
        assert_eq!(decode(&bytes), Err(Unreadable::UnknownVersion(7)));
    }

    #[test]
    fn an_end_that_there_is_none_of_is_corruption_whatever_the_checksum() {
        let state = states()[0].1;
        for (end, left_ms) in [(0_u64, 0_u64), (3, 0), (1, 1)] {
            let mut bytes = encode(1, &state);
            bytes[48..56].copy_from_slice(&end.to_le_bytes());
            bytes[56..64].copy_from_slice(&left_ms.to_le_bytes());
            let checksum = xxh3_64(&bytes[..64]);
            bytes[64..].copy_from_slice(&checksum.to_le_bytes());
            assert_eq!(decode(&bytes), Err(Unreadable::Corrupted));
        }
    }
}
