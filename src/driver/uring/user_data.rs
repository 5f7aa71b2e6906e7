//! What an operation is and whose, in the 64 bits that its completion brings back.

use crate::ids::SessionId;

/// An operation under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    /// Accepting on the listener of that index.
    Accept(usize),
    Receive(SessionId),
    Send(SessionId),
    Shutdown(SessionId),
    Close(SessionId),
    /// Closing a socket that is no session's.
    Discard,
    /// Making the socket of that departure a descriptor of the process.
    Install(usize),
    /// Giving a session's socket a slot of the ring's table.
    Adopt(SessionId),
    /// Cancelling one of a session's operations.
    Cancel(SessionId),
    Wake,
    /// Nobody waits for it.
    Ignored,
}

/// The kind takes the place of a session's loop, which is the ring's.
const KIND_SHIFT: u32 = SessionId::SLOT_BITS + SessionId::GENERATION_BITS;
const REST: u64 = (1 << KIND_SHIFT) - 1;

impl Op {
    pub(super) fn to_user_data(self) -> u64 {
        let (kind, rest) = match self {
            Op::Accept(listener) => (0, listener as u64),
            Op::Receive(id) => (1, id.to_bits()),
            Op::Send(id) => (2, id.to_bits()),
            Op::Shutdown(id) => (3, id.to_bits()),
            Op::Close(id) => (4, id.to_bits()),
            Op::Discard => (5, 0),
            Op::Cancel(id) => (6, id.to_bits()),
            Op::Wake => (7, 0),
            Op::Ignored => (8, 0),
            Op::Install(key) => (9, key as u64),
            Op::Adopt(id) => (10, id.to_bits()),
        };
        kind << KIND_SHIFT | rest & REST
    }

    pub(super) fn from_user_data(user_data: u64, loop_index: u16) -> Op {
        let rest = user_data & REST;
        let id = || SessionId::from_bits(u64::from(loop_index) << KIND_SHIFT | rest);
        match user_data >> KIND_SHIFT {
            0 => Op::Accept(rest as usize),
            1 => Op::Receive(id()),
            2 => Op::Send(id()),
            3 => Op::Shutdown(id()),
            4 => Op::Close(id()),
            5 => Op::Discard,
            6 => Op::Cancel(id()),
            7 => Op::Wake,
            9 => Op::Install(rest as usize),
            10 => Op::Adopt(id()),
            _ => Op::Ignored,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_comes_back_as_it_went() {
        for loop_index in [0, 1, (1 << SessionId::LOOP_BITS) - 1] {
            for generation in [0, (1 << SessionId::GENERATION_BITS) - 1] {
                for slot in [0, (1 << SessionId::SLOT_BITS) - 1] {
                    let id = SessionId::new(loop_index, generation, slot);
                    for op in [
                        Op::Accept(0),
                        Op::Accept(1_023),
                        Op::Receive(id),
                        Op::Send(id),
                        Op::Shutdown(id),
                        Op::Close(id),
                        Op::Discard,
                        Op::Cancel(id),
                        Op::Wake,
                        Op::Ignored,
                        Op::Install(0),
                        Op::Install(1_023),
                        Op::Adopt(id),
                    ] {
                        assert_eq!(Op::from_user_data(op.to_user_data(), loop_index), op);
                    }
                }
            }
        }
    }
}
