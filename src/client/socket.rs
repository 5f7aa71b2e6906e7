//! One stream socket whose every wait ends at a point of the boottime clock.
//!
//! The kernel's own socket time-outs stand still while the machine is suspended.
//! So the descriptor never blocks, and a wait is cut into slices between which
//! the clock is read.

use super::ServerAddress;
use crate::clock::{self, Time};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, sockopt,
};
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::os::fd::OwnedFd;

/// Longest sleep without a look at the clock, in milliseconds.
const WAIT_SLICE_MS: u64 = 100;
/// Pause before a Unix socket with a full backlog is tried again, in milliseconds.
const BACKLOG_RETRY_MS: u64 = 10;
const NANOS_PER_MS: u64 = 1_000_000;

/// A connected, non-blocking stream socket.
#[derive(Debug)]
pub(super) struct Socket {
    fd: OwnedFd,
}

/// What [`Socket::receive`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    /// More bytes.
    Bytes,
    /// Nothing yet.
    Nothing,
    /// The server has ended its side.
    End,
}

impl Socket {
    /// Connects, trying each of the host's addresses in turn until `deadline`.
    /// (How long it takes to look a host name up is the system's to say; an IP
    /// address needs no looking up.)
    pub(super) fn connect(address: &ServerAddress, deadline: Time) -> io::Result<Socket> {
        match address {
            ServerAddress::Unix(path) => connect_unix(&SocketAddrUnix::new(path)?, deadline),
            ServerAddress::Tcp(host_port) => {
                let addresses: Vec<SocketAddr> = host_port.to_socket_addrs()?.collect();
                connect_any(&addresses, deadline)
            }
        }
    }

    /// Hands bytes to the kernel: how many it took, 0 when it takes none now.
    pub(super) fn send(&self, bytes: &[u8]) -> io::Result<usize> {
        match rustix::net::send(&self.fd, bytes, SendFlags::NOSIGNAL) {
            Ok(sent) => Ok(sent),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    /// Appends what has arrived to `input`.
    pub(super) fn receive(&self, input: &mut Vec<u8>) -> io::Result<Received> {
        let mut chunk = [0; 4096];
        match rustix::net::recv(&self.fd, &mut chunk, RecvFlags::empty()) {
            Ok((0, _)) => Ok(Received::End),
            Ok((length, _)) => {
                input.extend_from_slice(&chunk[..length]);
                Ok(Received::Bytes)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Received::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    /// Sleeps until there is something to receive, `until`, or a while.
    pub(super) fn wait_readable(&self, until: Time) -> io::Result<()> {
        self.wait(PollFlags::IN, until)
    }

    /// Sleeps until something can be sent, `until`, or a while.
    pub(super) fn wait_writable(&self, until: Time) -> io::Result<()> {
        self.wait(PollFlags::OUT, until)
    }

    /// Ends this side; the server still gets what was sent.
    pub(super) fn shutdown(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.fd, Shutdown::Write)?)
    }

    fn wait(&self, events: PollFlags, until: Time) -> io::Result<()> {
        sleep(&mut [PollFd::new(&self.fd, events)], until, WAIT_SLICE_MS)
    }
}

fn connect_any(addresses: &[SocketAddr], deadline: Time) -> io::Result<Socket> {
    let mut last_error = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for (index, address) in addresses.iter().enumerate() {
        let now = clock::now();
        let left_nanos = deadline.as_nanos().saturating_sub(now.as_nanos());
        // A silent address leaves the others their share.
        let share_nanos = left_nanos / (addresses.len() - index) as u64;
        match connect_tcp(*address, Time::from_nanos(now.as_nanos() + share_nanos)) {
            Ok(socket) => return Ok(socket),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

fn connect_tcp(address: SocketAddr, deadline: Time) -> io::Result<Socket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let socket = new_socket(family)?;
    sockopt::set_tcp_nodelay(&socket.fd, true)?;
    match rustix::net::connect(&socket.fd, &address) {
        Ok(()) => return Ok(socket),
        // connect(2): it goes on, and being writable tells its end.
        Err(Errno::INPROGRESS | Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    loop {
        let mut fds = [PollFd::new(&socket.fd, PollFlags::OUT)];
        sleep(&mut fds, deadline, WAIT_SLICE_MS)?;
        if !fds[0].revents().is_empty() {
            sockopt::socket_error(&socket.fd)??;
            return Ok(socket);
        }
        check_time(deadline)?;
    }
}

fn connect_unix(address: &SocketAddrUnix, deadline: Time) -> io::Result<Socket> {
    let socket = new_socket(AddressFamily::UNIX)?;
    loop {
        match rustix::net::connect(&socket.fd, address) {
            Ok(()) => return Ok(socket),
            // connect(2): the listener's backlog is full, nothing is under way.
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        check_time(deadline)?;
        sleep(&mut [], deadline, BACKLOG_RETRY_MS)?;
    }
}

fn new_socket(family: AddressFamily) -> io::Result<Socket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    Ok(Socket { fd })
}

fn check_time(deadline: Time) -> io::Result<()> {
    if clock::now() >= deadline {
        return Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "no connection in time",
        ));
    }
    Ok(())
}

/// Sleeps for an event of `fds`, until `until`, or for `at_most_ms`.
fn sleep(fds: &mut [PollFd<'_>], until: Time, at_most_ms: u64) -> io::Result<()> {
    let left_nanos = until.as_nanos().saturating_sub(clock::now().as_nanos());
    let nanos = left_nanos.min(at_most_ms * NANOS_PER_MS);
    let timeout = Timespec {
        tv_sec: 0,
        // Below a second by WAIT_SLICE_MS.
        tv_nsec: nanos as _,
    };
    match poll(fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
