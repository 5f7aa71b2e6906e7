//! Packs and unpacks the fixed part of a frame, for every row of the op tables.

/// The fixed part of a frame: the op and the big-endian fields after it.
pub(super) trait Header: Sized {
    /// The frame's first byte.
    const OP: u8;
    /// Length in bytes, op included.
    const BYTES: usize;
    /// `BYTES` bytes and a newline: a whole frame where no key comes between.
    type Frame: AsRef<[u8]>;

    /// Takes the fields off the front of `frame`, by count alone, and gives what
    /// follows; `None` if `frame` is shorter. The caller has matched the op.
    fn unpack(frame: &[u8]) -> Option<(Self, &[u8])>;

    /// The bytes of this header, and a newline.
    fn pack(self) -> Self::Frame;

    /// The owner that a reply to (or by) this frame carries.
    fn owner(&self) -> u64;
}

/// Declares one [`Header`] for each row of an op table, and `ROWS`: every row's
/// op and [`Header::BYTES`].
macro_rules! op_table {
    ($($op:literal $name:ident { $($field:ident: $type:ty),* })*) => {
        use $crate::protocol::layout::Header;

        pub(in $crate::protocol) const ROWS: &[(u8, usize)] = &[$(($name::OP, $name::BYTES)),*];

        $(
            pub(in $crate::protocol) struct $name {
                $(pub(in $crate::protocol) $field: $type),*
            }

            impl Header for $name {
                const OP: u8 = $op;
                const BYTES: usize = 1 $(+ size_of::<$type>())*;
                type Frame = [u8; Self::BYTES + 1];

                #[inline]
                fn unpack(frame: &[u8]) -> Option<(Self, &[u8])> {
                    // The one length check: what comes after it the compiler can see.
                    let (header, tail) = frame.split_first_chunk::<{ Self::BYTES }>()?;
                    let fields = &header[1..];
                    $(
                        let (bytes, fields) = fields.split_first_chunk()?;
                        let $field = <$type>::from_be_bytes(*bytes);
                    )*
                    debug_assert!(fields.is_empty());
                    Some((Self { $($field),* }, tail))
                }

                #[inline]
                fn pack(self) -> Self::Frame {
                    let mut frame = [b'\n'; Self::BYTES + 1];
                    frame[0] = Self::OP;
                    let mut at = 1;
                    $(
                        let bytes = self.$field.to_be_bytes();
                        frame[at..at + bytes.len()].copy_from_slice(&bytes);
                        at += bytes.len();
                    )*
                    debug_assert_eq!(at, Self::BYTES);
                    frame
                }

                #[inline]
                fn owner(&self) -> u64 {
                    self.owner
                }
            }
        )*
    };
}

pub(super) use op_table;
