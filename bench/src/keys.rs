//! Key texts, cheap enough not to show in a measurement.

/// Length of every key of the load.
pub const KEY_BYTES: usize = 16;
/// A key: 16 hexadecimal digits, so valid UTF-8 without a newline.
pub type Key = [u8; KEY_BYTES];

/// The key with this number. Different numbers give different keys, and
/// neighbouring numbers give unrelated ones.
pub fn key(number: u64) -> Key {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut key = [0; KEY_BYTES];
    for (pair, byte) in key.chunks_exact_mut(2).zip(mix(number).to_be_bytes()) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
    key
}

// A bijection of the 64-bit numbers: that is what keeps keys distinct.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_distinct_hexadecimal_texts() {
        let keys: std::collections::HashSet<Key> = (0..10_000).map(key).collect();
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().flatten().all(u8::is_ascii_hexdigit));
    }
}
