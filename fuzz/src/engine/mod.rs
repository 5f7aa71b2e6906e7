//! The engine against the model of its own tests, reply for reply.

mod pair;

use crate::source::Source;
use pair::Pair;

// The model names them as if it stood in the engine.
use leasehold::engine::{
    DlmErase, DlmGet, DlmLock, DlmPut, DlmTest, DlmUnlock, EngineLimits, SessionEnd, time,
};

/// The first bytes choose the limits and what a restart left; the others are what happens.
pub(crate) fn run(data: &[u8]) {
    let mut source = Source::new(data);
    let limits = pair::limits(&mut source);
    let mut pair = Pair::new(limits, &mut source);
    while !source.is_empty() {
        pair.step(&mut source);
    }
    pair.query_all();
}
