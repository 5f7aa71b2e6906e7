//! A key's bytes as the tables keep them.

const INLINE_BYTES: usize = 22;

/// Exact bytes; short ones lie in the entry itself.
#[derive(Debug)]
pub(super) enum Key {
    Inline { len: u8, bytes: [u8; INLINE_BYTES] },
    Boxed(Box<[u8]>),
}

const _: () = assert!(size_of::<Key>() == 24);

impl Key {
    pub(super) fn new(key: &[u8]) -> Key {
        if key.len() > INLINE_BYTES {
            return Key::Boxed(key.into());
        }
        let mut bytes = [0; INLINE_BYTES];
        bytes[..key.len()].copy_from_slice(key);
        Key::Inline {
            len: key.len() as u8,
            bytes,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Key::Inline { len, bytes } => &bytes[..usize::from(*len)],
            Key::Boxed(bytes) => bytes,
        }
    }

    /// Bytes that a key of `len` bytes takes outside its entry.
    pub(super) fn boxed_bytes(len: usize) -> u64 {
        if len > INLINE_BYTES { len as u64 } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_back_whatever_their_number() {
        for len in [0, 1, INLINE_BYTES - 1, INLINE_BYTES, INLINE_BYTES + 1, 1024] {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let key = Key::new(&bytes);
            assert_eq!(key.as_bytes(), bytes);
            assert_eq!(
                matches!(key, Key::Boxed(_)),
                Key::boxed_bytes(len) == len as u64 && len > 0
            );
        }
    }
}
