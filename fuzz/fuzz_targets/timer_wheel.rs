#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| leasehold::engine::fuzz_timer_wheel(data));
