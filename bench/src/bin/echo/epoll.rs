//! The ceiling on epoll.

use std::io::{self, Read, Write};
use std::net::Shutdown;

use mio::net::{TcpListener, TcpStream};
use mio::{Events, Interest, Poll, Token};
use slab::Slab;

use crate::{Account, Never, replies};

const LISTENER: Token = Token(usize::MAX);
const BUFFER_BYTES: usize = 256 * 1024;

/// Serves on one epoll loop; `close`: one line in, one line out, closed.
///
/// # Errors
/// epoll or the listener failed.
pub(crate) fn serve(listener: std::net::TcpListener, close: bool) -> io::Result<Never> {
    listener.set_nonblocking(true)?;
    let mut listener = TcpListener::from_std(listener);
    let poll = Poll::new()?;
    poll.registry()
        .register(&mut listener, LISTENER, Interest::READABLE)?;
    if close {
        Server::<OneShot>::new(poll, listener).serve()
    } else {
        Server::<Stream>::new(poll, listener).serve()
    }
}

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
    replies: Vec<u8>,
}

impl<C: Connection> Server<C> {
    fn new(poll: Poll, listener: TcpListener) -> Server<C> {
        Server {
            poll,
            listener,
            connections: Slab::new(),
            buffer: vec![0; BUFFER_BYTES],
            replies: replies(),
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
    account: Account,
}

impl Connection for Stream {
    fn new(stream: TcpStream) -> Stream {
        Stream {
            stream,
            account: Account::default(),
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
                    self.account.received(count);
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
    /// Writes what is owed as far as the kernel takes it; false when it cannot be.
    fn flush(&mut self, replies: &[u8]) -> bool {
        while self.account.owed > 0 {
            match self.stream.write(self.account.next(replies)) {
                Ok(count) => self.account.sent(count),
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
