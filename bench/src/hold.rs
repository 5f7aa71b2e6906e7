//! Taking very many locks and keeping them.

use std::io::{self, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::keys::key;
use crate::targets::{Target, push_redis_set};
use crate::wire;

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
                Target::Echo => return Err(io::Error::other("an echo server holds no locks")),
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
        Target::Native | Target::Echo => (b'A', wire::ACQUIRED_BYTES),
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
