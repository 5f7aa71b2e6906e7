//! Which loop owns a key.
//!
//! Clients may compute the same (`docs/protocol.md`, "Hello"), so this hash only
//! routes: the tables use another one, whose seed never leaves the process.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The loop that owns `key`, of `loops` (at least one) in a server whose routing
/// seed is `routing_seed`.
#[inline]
pub fn loop_of(key: &[u8], routing_seed: u64, loops: u16) -> u16 {
    if loops == 1 {
        return 0;
    }
    share_of(xxh3_64_with_seed(key, routing_seed), loops)
}

/// Cuts the range of the hash's upper half into `loops` equal shares.
#[inline]
fn share_of(hash: u64, loops: u16) -> u16 {
    (((hash >> 32) * u64::from(loops)) >> 32) as u16
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DOCUMENT: &str = include_str!("../docs/protocol.md");

    /// One row of the document's table of routing vectors.
    struct Vector {
        key: Vec<u8>,
        seed: u64,
        loops: u16,
        hash: u64,
        loop_index: u16,
    }

    fn vectors() -> Vec<Vector> {
        DOCUMENT
            .lines()
            .skip_while(|line| *line != "### Routing vectors")
            .skip(1)
            .take_while(|line| !line.starts_with('#'))
            .filter_map(|line| line.strip_prefix("| `"))
            .map(parse_vector)
            .collect()
    }

    fn parse_vector(row: &str) -> Vector {
        let (key, rest) = row.split_once("` | ").expect("the key's end");
        let [repeats, seed, loops, hash, loop_index] = rest
            .trim_end_matches(" |")
            .split(" | ")
            .collect::<Vec<_>>()
            .try_into()
            .expect("five cells after the key");
        let text: String = serde_json::from_str(key).expect("a JSON string");
        let hex = |cell| u64::from_str_radix(cell, 16).expect("16 hexadecimal digits");
        let decimal = |cell: &str| cell.parse::<u16>().expect("a decimal number");
        Vector {
            key: text.repeat(decimal(repeats).into()).into_bytes(),
            seed: hex(seed),
            loops: decimal(loops),
            hash: hex(hash),
            loop_index: decimal(loop_index),
        }
    }

    #[test]
    fn routes_as_the_document_says() {
        let vectors = vectors();
        assert!(vectors.len() >= 40, "{} rows found", vectors.len());
        for vector in vectors {
            let Vector { key, seed, .. } = &vector;
            assert_eq!(xxh3_64_with_seed(key, *seed), vector.hash);
            let loop_index = loop_of(key, *seed, vector.loops);
            assert_eq!(loop_index, vector.loop_index, "{key:?} of {}", vector.loops);
        }
    }

    /// XXH3 takes another way for each range of lengths.
    #[test]
    fn the_document_has_keys_of_every_length_class() {
        let lengths: Vec<usize> = vectors().iter().map(|vector| vector.key.len()).collect();
        for class in [
            1..=3,
            4..=8,
            9..=16,
            17..=128,
            129..=240,
            241..=1024,
            1025..=16384,
        ] {
            assert!(
                lengths.iter().any(|length| class.contains(length)),
                "{class:?}"
            );
        }
    }

    #[test]
    fn shares_are_cut_at_their_exact_borders() {
        for loops in [1, 2, 3, 4, 7, 64, 1024, u16::MAX] {
            assert_eq!(share_of(0, loops), 0);
            assert_eq!(share_of(u64::MAX, loops), loops - 1);
            for index in 1..u64::from(loops) {
                // The first hash whose upper half is at least index / loops of the range.
                let border = (index << 32).div_ceil(u64::from(loops)) << 32;
                assert_eq!(u64::from(share_of(border, loops)), index);
                assert_eq!(u64::from(share_of(border - 1, loops)), index - 1);
            }
        }
    }

    proptest! {
        #[test]
        fn a_loop_that_exists_owns_every_key(key: Vec<u8>, seed: u64, loops in 1..=1024_u16) {
            prop_assert!(loop_of(&key, seed, loops) < loops);
        }
    }
}
