//! What each fuzz target does with its bytes; `tests/model` does the same with the
//! seeds and what it makes of them, without a fuzzer. The timer wheel, which is not
//! public, has its target in `src/engine/timer_wheel/fuzz.rs`.

mod chunks;
mod dlm;
mod engine;
mod requests;
mod source;
mod talk;

// The model names them as if it stood in the library.
use leasehold::{ids, protocol};

/// See [`requests::run`].
pub fn requests(data: &[u8]) {
    requests::run(data);
}

/// See [`chunks::run`].
pub fn chunks(data: &[u8]) {
    chunks::run(data);
}

/// See [`engine::run`].
pub fn engine(data: &[u8]) {
    engine::run(data);
}

/// See [`dlm::run`].
pub fn dlm(data: &[u8]) {
    dlm::run(data);
}
