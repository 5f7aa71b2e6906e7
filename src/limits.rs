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

/// TCP port of the JackrabbitDLM protocol.
pub const DLM_PORT: u16 = 37373;
/// Default of the most encoded bytes that one DLM request may have.
pub const DEFAULT_DLM_MAX_PAYLOAD_BYTES: usize = 10 * 1024 * 1024;
/// Default of the longest `DataStore` of an anonymous DLM request, and of an
/// identity whose file names no `MaxSize`, in characters.
pub const DEFAULT_DLM_DATA_CHARS: u64 = 16 * 1024;
/// Default of the longest `Expire` of an anonymous DLM request, in milliseconds.
pub const DEFAULT_DLM_ANONYMOUS_TTL_MS: u64 = 3_543_000;
/// Longest DLM `ID`, in bytes.
pub const DLM_MAX_ID_BYTES: usize = 1024;
/// Longest `Name` of a DLM identity, in bytes: with `.cfg` it still is a file name.
pub const DLM_MAX_NAME_BYTES: usize = 255 - ".cfg".len();
/// Shortest secret that a DLM identity file may hold, in characters.
pub const DLM_MIN_IDENTITY_CHARS: usize = 1023;
/// Longest secret that is generated for a DLM identity, in characters.
pub const DLM_MAX_GENERATED_IDENTITY_CHARS: usize = 2047;
/// Longest DLM identity file that is read, in bytes.
pub const DLM_MAX_IDENTITY_FILE_BYTES: usize = 1024 * 1024;

/// Default of `--max-lease` and `--max-wait`, in milliseconds: what a u8 of seconds holds.
pub const DEFAULT_MAX_LEASE_MS: u32 = 255_000;
/// The most `--max-lease` and `--max-wait` may be, in milliseconds: 30 days.
pub const MAX_LEASE_MS: u32 = 30 * 24 * 60 * 60 * 1000;

/// Default of `--max-waiters-per-key`.
pub const DEFAULT_MAX_WAITERS_PER_KEY: u32 = 1024;
/// Default of `--max-session-waiters`.
pub const DEFAULT_MAX_SESSION_WAITERS: u32 = 1024;

/// Length of an `A` reply, the longest that a queued acquire can be answered.
pub const ACQUIRED_REPLY_BYTES: usize = 1 + 8 + 8 + 4 + 1;

/// Default of `--max-keys`.
pub const DEFAULT_MAX_KEYS: u32 = 16 * 1024 * 1024;
/// The most `--max-keys` may be: entries are named by a u32, with room above for marks.
pub const MAX_KEYS: u32 = u32::MAX / 2;
/// The least `--max-memory` may be, in bytes: the empty tables must fit.
pub const MIN_MEMORY_BYTES: u64 = 64 * 1024;
/// Default of `--max-waiters`.
pub const DEFAULT_MAX_WAITERS: u32 = 1_000_000;
/// The most any of the waiter limits may be: waiters are named by a u32.
pub const MAX_WAITERS: u32 = u32::MAX / 2;
/// Default of `--max-connections`.
pub const DEFAULT_MAX_CONNECTIONS: u32 = 65_536;
/// The most `--max-connections` may be: as many as a session's number has slots.
pub const MAX_CONNECTIONS: u32 = 1 << 24;
/// The most `--shards` may be: session handles name no more loops.
pub const MAX_LOOPS: u16 = 1 << 10;

/// Default of `--output-soft-limit`, in bytes.
pub const DEFAULT_OUTPUT_SOFT_LIMIT_BYTES: usize = 64 * 1024;
/// Default of `--output-hard-limit`, in bytes.
pub const DEFAULT_OUTPUT_HARD_LIMIT_BYTES: usize = 1024 * 1024;

/// Default of `--max-dlm-ttl`, in milliseconds: 30 days.
pub const DEFAULT_MAX_DLM_TTL_MS: u64 = 30 * 24 * 60 * 60 * 1000;
/// The most `--max-dlm-ttl` may be, in milliseconds: ten years of 365 days.
pub const MAX_DLM_TTL_MS: u64 = 10 * 365 * 24 * 60 * 60 * 1000;

/// First token that is never given out: tokens stay below 2^63.
pub const TOKEN_END: u64 = 1 << 63;

/// The least `--output-hard-limit` that goes with a soft limit: one reply may
/// cross the soft limit.
pub const fn least_output_hard_limit_bytes(soft_limit_bytes: usize) -> usize {
    soft_limit_bytes + MAX_REPLY_BYTES
}

/// The `--output-hard-limit` that no session reaches: one reply crosses the soft
/// limit, then each acquire that is queued is granted while nothing is taken.
const fn unreachable_output_bytes(soft_limit_bytes: usize, session_waiters: u32) -> usize {
    least_output_hard_limit_bytes(soft_limit_bytes)
        + session_waiters as usize * ACQUIRED_REPLY_BYTES
}

const _: () = assert!(MAX_KEY_BYTES <= u16::MAX as usize);
const _: () = assert!(DEFAULT_MAX_KEY_BYTES <= MAX_KEY_BYTES);
const _: () = assert!(MAX_CREDENTIAL_BYTES <= MAX_KEY_BYTES);
const _: () = assert!(DEFAULT_MAX_LEASE_MS <= MAX_LEASE_MS);
const _: () = assert!(ACQUIRED_REPLY_BYTES <= MAX_REPLY_BYTES);
const _: () = assert!(DEFAULT_MAX_KEYS <= MAX_KEYS);
const _: () = assert!(DEFAULT_MAX_WAITERS <= MAX_WAITERS);
const _: () = assert!(DEFAULT_MAX_CONNECTIONS <= MAX_CONNECTIONS);
const _: () = assert!(MAX_REPLY_BYTES <= DEFAULT_OUTPUT_SOFT_LIMIT_BYTES);
const _: () = assert!(
    unreachable_output_bytes(DEFAULT_OUTPUT_SOFT_LIMIT_BYTES, DEFAULT_MAX_SESSION_WAITERS)
        <= DEFAULT_OUTPUT_HARD_LIMIT_BYTES
);
const _: () = assert!(DEFAULT_MAX_DLM_TTL_MS <= MAX_DLM_TTL_MS);
const _: () = assert!(DLM_MIN_IDENTITY_CHARS <= DLM_MAX_GENERATED_IDENTITY_CHARS);
const _: () = assert!(DLM_MAX_GENERATED_IDENTITY_CHARS < DLM_MAX_IDENTITY_FILE_BYTES);
