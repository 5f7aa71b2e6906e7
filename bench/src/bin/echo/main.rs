//! The ceiling: a bare event loop that answers frames of the lengths that
//! acquire and release have, without looking at one of them. What a lock server
//! reaches is told as a share of this.

mod epoll;
mod uring;

use std::error::Error;
use std::net::{SocketAddr, TcpListener};

use clap::{Parser, ValueEnum};
use leasehold_bench::wire::{ACQUIRE_BYTES, ACQUIRED_BYTES, RELEASE_BYTES, RELEASED_BYTES};

/// Answers 22 bytes to each 28-byte frame and 10 to each 34-byte one, in turn.
#[derive(Debug, Parser)]
struct Flags {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// How to talk to the kernel.
    #[arg(long, value_enum, default_value_t = Io::Epoll)]
    io: Io,
    /// Answer one line with one line on each connection, then close it; with epoll alone.
    #[arg(long)]
    close: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Io {
    Epoll,
    Uring,
}

/// What a server that serves for ever returns.
enum Never {}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    if flags.close && flags.io == Io::Uring {
        return Err("--close goes with --io epoll alone".into());
    }
    let listener = TcpListener::bind(flags.listen)?;
    println!("ready listen={}", listener.local_addr()?);
    let never = match flags.io {
        Io::Epoll => epoll::serve(listener, flags.close)?,
        Io::Uring => uring::serve(&listener)?,
    };
    match never {}
}

const PAIR_BYTES: usize = ACQUIRE_BYTES + RELEASE_BYTES;
const PAIR_REPLY_BYTES: usize = ACQUIRED_BYTES + RELEASED_BYTES;

/// Most reply bytes that are sent at a time.
const REPLIES_BYTES: usize = 256 * 1024;

/// Replies of both kinds in turn, to be cut out at any offset.
fn replies() -> Vec<u8> {
    let mut pair = [0; PAIR_REPLY_BYTES];
    pair[0] = b'A';
    pair[ACQUIRED_BYTES - 1] = b'\n';
    pair[ACQUIRED_BYTES] = b'R';
    pair[PAIR_REPLY_BYTES - 1] = b'\n';
    pair.repeat(REPLIES_BYTES / PAIR_REPLY_BYTES)
}

/// What a connection has received and is owed, in bytes alone.
#[derive(Debug, Default)]
struct Account {
    /// Bytes received of the pair under way.
    pair_received: usize,
    /// Bytes sent of the pair of replies under way.
    pair_sent: usize,
    /// Reply bytes that are owed.
    owed: usize,
}

impl Account {
    fn received(&mut self, count: usize) {
        let owed_in = |bytes: usize| {
            let acquired = usize::from(bytes % PAIR_BYTES >= ACQUIRE_BYTES) * ACQUIRED_BYTES;
            bytes / PAIR_BYTES * PAIR_REPLY_BYTES + acquired
        };
        let total = self.pair_received + count;
        self.owed += owed_in(total) - owed_in(self.pair_received);
        self.pair_received = total % PAIR_BYTES;
    }

    /// What to send next.
    fn next<'a>(&self, replies: &'a [u8]) -> &'a [u8] {
        let end = replies.len().min(self.pair_sent + self.owed);
        &replies[self.pair_sent..end]
    }

    fn sent(&mut self, count: usize) {
        self.owed -= count;
        self.pair_sent = (self.pair_sent + count) % PAIR_REPLY_BYTES;
    }
}
