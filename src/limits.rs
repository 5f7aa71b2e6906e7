//! Every wire and capacity maximum, their relations asserted at compile time.
//!
//! Flags choose values below these; the wire cannot carry more.

/// TCP port of the native protocol.
pub const NATIVE_PORT: u16 = 5327;

/// Default of `--max-key-bytes`.
pub const DEFAULT_MAX_KEY_BYTES: usize = 1024;
/// The most `--max-key-bytes` may be: Welcome tells it in a u16, and one
/// unfinished frame of that size is kept per session.
pub const MAX_KEY_BYTES: usize = 16 * 1024;
/// Longest Hello credential, `name:secret`, in bytes.
pub const MAX_CREDENTIAL_BYTES: usize = 1024;

/// Longest fixed part of a request, op included (`x`: op, lease, owner, token).
pub const MAX_HEADER_BYTES: usize = 1 + 4 + 8 + 8;
/// Longest request frame that any flag allows: header, key, newline.
pub const MAX_REQUEST_BYTES: usize = MAX_HEADER_BYTES + MAX_KEY_BYTES + 1;
/// Longest reply frame (Welcome).
pub const MAX_REPLY_BYTES: usize = 1 + 8 + 1 + 1 + 2 + 2 + 8 + 2 + 4 + 1;

/// Default of `--max-lease` and `--max-wait`, in milliseconds: what a u8 of seconds holds.
pub const DEFAULT_MAX_LEASE_MS: u32 = 255_000;
/// The most `--max-lease` and `--max-wait` may be, in milliseconds: 30 days.
pub const MAX_LEASE_MS: u32 = 30 * 24 * 60 * 60 * 1000;

/// Default of `--max-waiters-per-key`.
pub const DEFAULT_MAX_WAITERS_PER_KEY: u32 = 1024;
/// Default of `--max-session-waiters`.
pub const DEFAULT_MAX_SESSION_WAITERS: u32 = 1024;

/// First token that is never given out: tokens stay below 2^63.
pub const TOKEN_END: u64 = 1 << 63;

const _: () = assert!(MAX_KEY_BYTES <= u16::MAX as usize);
const _: () = assert!(DEFAULT_MAX_KEY_BYTES <= MAX_KEY_BYTES);
const _: () = assert!(MAX_CREDENTIAL_BYTES <= MAX_KEY_BYTES);
const _: () = assert!(DEFAULT_MAX_LEASE_MS <= MAX_LEASE_MS);
