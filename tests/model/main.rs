//! The fuzz targets without a fuzzer: their seeds, and what chance makes of them. The
//! timer wheel's runs with the library's own tests.

#[path = "../../fuzz/src/chunks.rs"]
mod chunks;
#[path = "../../fuzz/src/dlm.rs"]
mod dlm;
#[path = "../../fuzz/src/engine/mod.rs"]
mod engine;
#[path = "../../fuzz/src/plain.rs"]
mod plain;
#[path = "../../fuzz/src/requests.rs"]
mod requests;
#[path = "../../fuzz/src/source.rs"]
mod source;
#[path = "../../fuzz/src/talk.rs"]
mod talk;

// The model names them as if it stood in the library.
use leasehold::{ids, protocol};

#[test]
fn requests_decode_as_the_table_has_them() {
    plain::run("requests", requests::run, 100_000);
}

#[test]
fn a_session_may_be_cut_anywhere() {
    plain::run("chunks", chunks::run, 4_000);
}

#[test]
fn the_engine_does_what_the_model_does() {
    plain::run("engine", engine::run, 10_000);
}

#[test]
fn dlm_payloads_are_judged_alike_however_they_come() {
    plain::run("dlm", dlm::run, 4_000);
}
