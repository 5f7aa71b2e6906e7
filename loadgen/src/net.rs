//! Addresses and sockets.

use crate::workload::Close;
use mio::event::Source;
use mio::{Interest, Registry, Token};
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, ToSocketAddrs, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

/// Where the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// TCP, resolved.
    Tcp(SocketAddr),
    /// A Unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// Reads `HOST:PORT` or `unix:PATH`.
    ///
    /// # Errors
    /// The text names no server, or its name cannot be resolved.
    pub(crate) fn resolve(text: &str) -> Result<Address, String> {
        if let Some(path) = text.strip_prefix("unix:") {
            return match path {
                "" => Err("unix: wants a path".into()),
                path => Ok(Address::Unix(path.into())),
            };
        }
        if !text.contains(':') {
            return Err(format!("{text:?} is neither HOST:PORT nor unix:PATH"));
        }
        let mut found = text
            .to_socket_addrs()
            .map_err(|error| format!("{text}: {error}"))?;
        let address = found
            .next()
            .ok_or_else(|| format!("{text}: no such host"))?;
        match address.port() {
            0 => Err(format!("{text}: port 0 is nobody's")),
            _ => Ok(Address::Tcp(address)),
        }
    }

    /// Whether the server is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        match self {
            Address::Tcp(address) => {
                address.ip().is_loopback() || UdpSocket::bind((address.ip(), 0)).is_ok()
            }
            Address::Unix(_) => true,
        }
    }

    /// Connects and waits for it.
    ///
    /// # Errors
    /// As connect(2), or nobody answered for `patience`.
    pub(crate) fn connect_blocking(&self, patience: Duration) -> io::Result<Blocking> {
        let stream: Box<dyn ReadWrite> = match self {
            Address::Tcp(address) => {
                let stream = std::net::TcpStream::connect_timeout(address, patience)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
            Address::Unix(path) => {
                let stream = std::os::unix::net::UnixStream::connect(path)?;
                stream.set_read_timeout(Some(patience))?;
                stream.set_write_timeout(Some(patience))?;
                Box::new(stream)
            }
        };
        Ok(Blocking(stream))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Tcp(address) => address.fmt(f),
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// A connection that is waited for.
pub(crate) struct Blocking(Box<dyn ReadWrite>);

impl Read for Blocking {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl Write for Blocking {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A connection that never waits.
#[derive(Debug)]
pub(crate) enum Stream {
    /// TCP.
    Tcp(mio::net::TcpStream),
    /// Unix.
    Unix(mio::net::UnixStream),
}

impl Stream {
    /// Begins to connect.
    ///
    /// # Errors
    /// As socket(2) and connect(2).
    pub(crate) fn connect(address: &Address) -> io::Result<Stream> {
        Ok(match address {
            Address::Tcp(address) => Stream::Tcp(mio::net::TcpStream::connect(*address)?),
            Address::Unix(path) => Stream::Unix(mio::net::UnixStream::connect(path)?),
        })
    }

    /// Has epoll tell of it, at each change.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub(crate) fn register(&mut self, registry: &Registry, token: Token) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        match self {
            Stream::Tcp(stream) => stream.register(registry, token, interest),
            Stream::Unix(stream) => stream.register(registry, token, interest),
        }
    }

    /// Whether the connection has come about.
    ///
    /// # Errors
    /// It never will.
    pub(crate) fn is_connected(&self) -> io::Result<bool> {
        let (error, peer) = match self {
            Stream::Tcp(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
            Stream::Unix(stream) => (stream.take_error()?, stream.peer_addr().map(|_| ())),
        };
        match (error, peer) {
            (Some(error), _) => Err(error),
            (None, Ok(())) => Ok(true),
            (None, Err(error)) if error.kind() == io::ErrorKind::NotConnected => Ok(false),
            (None, Err(error)) => Err(error),
        }
    }

    /// Small writes go out at once.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Stream::Tcp(stream) => stream.set_nodelay(true),
            Stream::Unix(_) => Ok(()),
        }
    }

    /// Ends the connection.
    pub(crate) fn close(self, how: Close) {
        if let (Close::Reset, Stream::Tcp(stream)) = (how, &self) {
            // If it fails the connection ends in order, which does no harm.
            let _ = socket2::SockRef::from(stream).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.read(buffer),
            Stream::Unix(stream) => stream.read(buffer),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Tcp(stream) => stream.write(bytes),
            Stream::Unix(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_and_shown() {
        for text in ["127.0.0.1:5327", "[::1]:80", "unix:/run/x.sock"] {
            assert_eq!(Address::resolve(text).expect(text).to_string(), text);
        }
        for text in [
            "",
            "localhost",
            "127.0.0.1",
            "127.0.0.1:0",
            "unix:",
            "1.2.3.4:99999",
        ] {
            let error = Address::resolve(text).expect_err(text);
            assert_eq!(error.lines().count(), 1);
        }
    }

    #[test]
    fn local_is_what_this_machine_answers_to() {
        let local = |text| Address::resolve(text).expect(text).is_local();
        assert!(local("127.0.0.1:1") && local("unix:x"));
        assert!(!local("192.0.2.1:1"));
    }
}
