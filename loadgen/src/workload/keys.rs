//! Key numbers and the texts that go over the wire.

use super::random::mix;

/// Length of the part of a key that tells it from all others.
pub(crate) const DISTINCT_BYTES: usize = 16;

/// The space of the keys that `--held` takes; those of activities count from 0.
pub(crate) const HELD_SPACE: u8 = u8::MAX;

/// A key of the run: which activity's it is, and its number there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct KeyId(u64);

impl KeyId {
    const NUMBER_BITS: u32 = 56;
    /// Numbers stay below this.
    pub(crate) const NUMBER_END: u64 = 1 << Self::NUMBER_BITS;

    /// Key `number` of `space`.
    #[inline]
    pub(crate) fn new(space: u8, number: u64) -> KeyId {
        debug_assert!(number < Self::NUMBER_END);
        KeyId(u64::from(space) << Self::NUMBER_BITS | number)
    }

    /// The number within its space.
    #[inline]
    pub(crate) fn number(self) -> u64 {
        self.0 & (Self::NUMBER_END - 1)
    }

    /// 16 hexadecimal digits; neighbouring numbers give unrelated ones.
    #[inline]
    pub(crate) fn digits(self) -> [u8; DISTINCT_BYTES] {
        hex(mix(self.0))
    }
}

/// Room for one key's text, of the length that the run's keys have.
#[derive(Clone, Debug)]
pub(crate) struct KeyText(Vec<u8>);

impl KeyText {
    /// Texts of `key_bytes`, at least [`DISTINCT_BYTES`].
    pub(crate) fn new(key_bytes: usize) -> KeyText {
        KeyText(vec![b'k'; key_bytes.max(DISTINCT_BYTES)])
    }

    /// The text of this key.
    #[inline]
    pub(crate) fn of(&mut self, key: KeyId) -> &[u8] {
        if let Some(front) = self.0.first_chunk_mut() {
            *front = key.digits();
        }
        &self.0
    }

    /// The text of this key, to be shown.
    pub(crate) fn shown(&mut self, key: KeyId) -> String {
        String::from_utf8_lossy(self.of(key)).into_owned()
    }
}

/// The hexadecimal digits of a number, eight at a time instead of one.
#[inline]
pub(crate) fn hex(number: u64) -> [u8; 16] {
    let mut text = [0; 16];
    text[..8].copy_from_slice(&digits((number >> 32) as u32).to_be_bytes());
    text[8..].copy_from_slice(&digits(number as u32).to_be_bytes());
    text
}

#[inline]
fn digits(half: u32) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    let mut nibbles = u64::from(half);
    nibbles = (nibbles | nibbles << 16) & 0x0000_ffff_0000_ffff;
    nibbles = (nibbles | nibbles << 8) & 0x00ff_00ff_00ff_00ff;
    nibbles = (nibbles | nibbles << 4) & 0x0f0f_0f0f_0f0f_0f0f;
    let is_letter = ((nibbles + 6 * ONES) >> 4) & ONES;
    nibbles + u64::from(b'0') * ONES + is_letter * u64::from(b'a' - b'9' - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 1, 0x0123_4567_89ab_cdef, u64::MAX, 0xa9_f0_90_9a] {
            assert_eq!(hex(number), format!("{number:016x}").as_bytes());
        }
    }

    #[test]
    fn keys_of_all_spaces_are_distinct_texts_of_the_wanted_length() {
        let mut texts = std::collections::HashSet::new();
        let mut text = KeyText::new(40);
        for space in [0, 1, HELD_SPACE] {
            for number in 0..5_000 {
                let key = KeyId::new(space, number);
                assert_eq!(key.number(), number);
                assert!(texts.insert(text.of(key).to_vec()));
            }
        }
        assert!(texts.iter().all(|text| text.len() == 40));
        assert!(texts.iter().flatten().all(u8::is_ascii_alphanumeric));
    }
}
