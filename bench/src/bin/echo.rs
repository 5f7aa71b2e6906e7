//! The ceiling: a bare epoll loop that answers frames of the lengths that
//! acquire and release have, without looking at one of them. What a lock server
//! reaches is told as a share of this.

use std::error::Error;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr};

use clap::Parser;
use leasehold_bench::wire::{ACQUIRE_BYTES, ACQUIRED_BYTES, RELEASE_BYTES, RELEASED_BYTES};
use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

/// Answers 22 bytes to each 28-byte frame and 10 to each 34-byte one, in turn.
#[derive(Debug, Parser)]
struct Flags {
    /// Address to listen on.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Answer one line with one line on each connection, then close it.
    #[arg(long)]
    close: bool,
}

fn main() -> Result<(), Box<dyn Error>> {
    let flags = Flags::parse();
    let mut listener = TcpListener::bind(flags.listen)?;
    let poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    println!("ready listen={}", listener.local_addr()?);
    let never = if flags.close {
        Server::<OneShot>::new(poll, listener).serve()?
    } else {
        Server::<Stream>::new(poll, listener).serve()?
    };
    match never {}
}

const LISTENER: Token = Token(usize::MAX);
const BUFFER_BYTES: usize = 256 * 1024;

const PAIR_BYTES: usize = ACQUIRE_BYTES + RELEASE_BYTES;
const PAIR_REPLY_BYTES: usize = ACQUIRED_BYTES + RELEASED_BYTES;

/// One connection's part in the loop.
trait Connection: Sized {
    fn new(stream: TcpStream) -> Self;
    fn stream(&mut self) -> &mut TcpStream;
    /// Does what the socket allows now; false when the connection is over.
    fn handle_ready(&mut self, buffer: &mut [u8], replies: &[u8], read_closed: bool) -> bool;
}

struct Server<C> {
    poll: Poll,
    listener: TcpListener,
    connections: Slab<C>,
    /// Every connection reads into this one buffer.
    buffer: Vec<u8>,
    /// Replies of both kinds in turn, to be cut out at any offset.
    replies: Vec<u8>,
}

enum Never {}

impl<C: Connection> Server<C> {
    fn new(poll: Poll, listener: TcpListener) -> Server<C> {
        let mut pair = [0; PAIR_REPLY_BYTES];
        pair[0] = b'A';
        pair[ACQUIRED_BYTES - 1] = b'\n';
        pair[ACQUIRED_BYTES] = b'R';
        pair[PAIR_REPLY_BYTES - 1] = b'\n';
        Server {
            poll,
            listener,
            connections: Slab::new(),
            buffer: vec![0; BUFFER_BYTES],
            replies: pair.repeat(BUFFER_BYTES / PAIR_REPLY_BYTES),
        }
    }

    fn serve(mut self) -> io::Result<Never> {
        let mut events = Events::with_capacity(1024);
        loop {
            match self.poll.poll(&mut events, None) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                other => other?,
            }
            for event in &events {
                if event.token() == LISTENER {
                    self.accept()?;
                    continue;
                }
                let index = event.token().0;
                let Some(connection) = self.connections.get_mut(index) else {
                    continue;
                };
                if !connection.handle_ready(&mut self.buffer, &self.replies, event.is_read_closed())
                {
                    self.connections.remove(index);
                }
            }
        }
    }

    fn accept(&mut self) -> io::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            stream.set_nodelay(true)?;
            let mut connection = C::new(stream);
            // The request is often there already; then a one-shot needs no registration.
            if !connection.handle_ready(&mut self.buffer, &self.replies, false) {
                continue;
            }
            let entry = self.connections.vacant_entry();
            self.poll.registry().register(
                connection.stream(),
                Token(entry.key()),
                Interest::READABLE | Interest::WRITABLE,
            )?;
            entry.insert(connection);
        }
    }
}

/// Frames in, replies out, for as long as the client likes.
struct Stream {
    stream: TcpStream,
    /// Bytes received of the pair under way.
    pair_received: usize,
    /// Bytes sent of the pair of replies under way.
    pair_sent: usize,
    /// Reply bytes that are owed.
    owed: usize,
}

impl Connection for Stream {
    fn new(stream: TcpStream) -> Stream {
        Stream {
            stream,
            pair_received: 0,
            pair_sent: 0,
            owed: 0,
        }
    }

    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn handle_ready(&mut self, buffer: &mut [u8], replies: &[u8], read_closed: bool) -> bool {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => {
                    self.flush(replies);
                    return false;
                }
                Ok(count) => {
                    self.count(count);
                    // A short read has emptied the socket (epoll(7)), unless the end follows.
                    if count < buffer.len() && !read_closed {
                        break;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(_) => return false,
            }
        }
        self.flush(replies)
    }
}

impl Stream {
    fn count(&mut self, received: usize) {
        let owed_in = |bytes: usize| {
            let acquired = usize::from(bytes % PAIR_BYTES >= ACQUIRE_BYTES) * ACQUIRED_BYTES;
            bytes / PAIR_BYTES * PAIR_REPLY_BYTES + acquired
        };
        let total = self.pair_received + received;
        self.owed += owed_in(total) - owed_in(self.pair_received);
        self.pair_received = total % PAIR_BYTES;
    }

    /// Writes what is owed as far as the kernel takes it; false when it cannot be.
    fn flush(&mut self, replies: &[u8]) -> bool {
        while self.owed > 0 {
            let end = replies.len().min(self.pair_sent + self.owed);
            match self.stream.write(&replies[self.pair_sent..end]) {
                Ok(count) => {
                    self.owed -= count;
                    self.pair_sent = (self.pair_sent + count) % PAIR_REPLY_BYTES;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                Err(_) => return false,
            }
        }
        true
    }
}

/// One line in, one line out, closed.
struct OneShot {
    stream: TcpStream,
}

/// About as long as an encoded answer to a lock request.
const ANSWER: &[u8; 101] = &{
    let mut line = [b'1'; 101];
    line[100] = b'\n';
    line
};

impl Connection for OneShot {
    fn new(stream: TcpStream) -> OneShot {
        OneShot { stream }
    }

    fn stream(&mut self) -> &mut TcpStream {
        &mut self.stream
    }

    fn handle_ready(&mut self, buffer: &mut [u8], _replies: &[u8], _read_closed: bool) -> bool {
        loop {
            match self.stream.read(buffer) {
                Ok(0) => return false,
                Ok(count) if buffer[..count].ends_with(b"\n") => {
                    // A client that is gone already is no concern of a ceiling.
                    let _ = self.stream.write(ANSWER);
                    let _ = self.stream.shutdown(Shutdown::Write);
                    return false;
                }
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}
