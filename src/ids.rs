//! Handles that name a session or a grant across modules and, later, across loops.
//!
//! Both are plain numbers with a generation or a token inside, so that a handle
//! that outlived what it named is recognised instead of reaching a newcomer.

/// One connection, named so that a late message can never reach a newer session
/// that reuses its slot: 10 bits of loop, 30 bits of generation, 24 bits of slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(u64);

impl SessionId {
    /// Bits of the slot; a loop holds at most `1 << SLOT_BITS` sessions.
    pub const SLOT_BITS: u32 = 24;
    /// Bits of the generation; it wraps after that many reuses of one slot.
    pub const GENERATION_BITS: u32 = 30;
    /// Bits of the loop number.
    pub const LOOP_BITS: u32 = 64 - Self::SLOT_BITS - Self::GENERATION_BITS;

    /// Packs the three parts; each is cut to its width.
    pub const fn new(loop_index: u16, generation: u32, slot: u32) -> Self {
        let loop_part = loop_index as u64 & ((1 << Self::LOOP_BITS) - 1);
        let generation_part = generation as u64 & ((1 << Self::GENERATION_BITS) - 1);
        let slot_part = slot as u64 & ((1 << Self::SLOT_BITS) - 1);
        SessionId(
            loop_part << (Self::GENERATION_BITS + Self::SLOT_BITS)
                | generation_part << Self::SLOT_BITS
                | slot_part,
        )
    }

    /// The number that [`SessionId::from_bits`] turns back into this handle.
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// The handle that [`SessionId::to_bits`] made this number of.
    pub const fn from_bits(bits: u64) -> Self {
        SessionId(bits)
    }

    /// The loop that owns the connection.
    pub const fn loop_index(self) -> u16 {
        (self.0 >> (Self::GENERATION_BITS + Self::SLOT_BITS)) as u16
    }

    /// How often the slot had been used before.
    pub const fn generation(self) -> u32 {
        ((self.0 >> Self::SLOT_BITS) & ((1 << Self::GENERATION_BITS) - 1)) as u32
    }

    /// Index of the session in its loop's table.
    pub const fn slot(self) -> u32 {
        (self.0 & ((1 << Self::SLOT_BITS) - 1)) as u32
    }
}

impl std::fmt::Debug for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "session {}.{}#{}",
            self.loop_index(),
            self.slot(),
            self.generation()
        )
    }
}

const _: () = assert!(crate::limits::MAX_CONNECTIONS == 1 << SessionId::SLOT_BITS);
const _: () = assert!(crate::limits::MAX_LOOPS == 1 << SessionId::LOOP_BITS);

/// One native grant, named by where it lies in the lock table and by its token.
///
/// The token decides: once the grant has ended, the handle matches nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantRef {
    /// Index of the key's entry in its loop's lock table.
    pub entry: u32,
    /// The grant's fencing token.
    pub token: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_at_their_limits() {
        for loop_index in [0, 1, (1 << SessionId::LOOP_BITS) - 1] {
            for generation in [0, 1, (1 << SessionId::GENERATION_BITS) - 1] {
                for slot in [0, 1, (1 << SessionId::SLOT_BITS) - 1] {
                    let id = SessionId::new(loop_index, generation, slot);
                    assert_eq!(
                        (id.loop_index(), id.generation(), id.slot()),
                        (loop_index, generation, slot)
                    );
                }
            }
        }
    }
}
