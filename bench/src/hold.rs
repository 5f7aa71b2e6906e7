//! Taking very many locks and keeping them.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::keys::{Key, key};
use crate::wire;

/// What listens at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// leasehold's native protocol.
    Native,
    /// Redis: `SET key token NX PX`.
    Redis,
}

/// Longest lease that the seconds form can ask for: the locks outlive any run.
const LEASE_S: u8 = 255;
const LEASE_MS: &str = "255000";
/// Acquires under way at once.
const BATCH: u64 = 512;
/// Number of the first key: far above those that the load draws.
const FIRST_KEY: u64 = 1 << 60;
const PATIENCE: Duration = Duration::from_secs(30);

/// Takes `count` locks on keys that the load never uses, and returns the
/// connection, for servers that end locks with it.
///
/// # Errors
/// The server cannot be reached, refuses a lock, or does not answer for half a minute.
pub fn hold_locks(server: SocketAddr, target: Target, count: u64) -> io::Result<TcpStream> {
    let mut stream = TcpStream::connect(server)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut replies = BufReader::new(stream.try_clone()?);
    let mut requests = Vec::new();
    let mut first = 0;
    while first < count {
        let last = (first + BATCH).min(count);
        requests.clear();
        for number in first..last {
            let key = key(FIRST_KEY + number);
            match target {
                Target::Native => wire::push_acquire(&mut requests, number + 1, LEASE_S, &key),
                Target::Redis => push_redis_set(&mut requests, &key, &key, LEASE_MS),
            }
        }
        stream.write_all(&requests)?;
        for _ in first..last {
            read_grant(&mut replies, target)?;
        }
        first = last;
    }
    Ok(stream)
}

fn read_grant(replies: &mut impl Read, target: Target) -> io::Result<()> {
    let (granted, length) = match target {
        Target::Redis => (b'+', b"+OK\r\n".len()),
        Target::Native => (b'A', wire::ACQUIRED_BYTES),
    };
    let mut reply = [0; wire::ACQUIRED_BYTES];
    // The op first: a refusal is shorter than a grant and would be waited for.
    replies.read_exact(&mut reply[..1])?;
    if reply[0] != granted {
        let op = reply[0] as char;
        return Err(io::Error::other(format!("a lock was refused: {op}")));
    }
    replies.read_exact(&mut reply[1..length])
}

/// Appends `SET key token NX PX lease`; the lease is a decimal number of milliseconds.
fn push_redis_set(out: &mut Vec<u8>, key: &Key, token: &Key, lease_ms: &str) {
    debug_assert!(lease_ms.len() < 10);
    out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n$16\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n$16\r\n");
    out.extend_from_slice(token);
    out.extend_from_slice(b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$");
    out.push(b'0' + lease_ms.len() as u8);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(lease_ms.as_bytes());
    out.extend_from_slice(b"\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redis_set_is_one_well_formed_command() {
        let mut out = Vec::new();
        push_redis_set(&mut out, b"0123456789abcdef", b"fedcba9876543210", "10000");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "*6\r\n$3\r\nSET\r\n$16\r\n0123456789abcdef\r\n$16\r\nfedcba9876543210\r\n\
             $2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
        );
    }
}
