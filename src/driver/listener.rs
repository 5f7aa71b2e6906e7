//! Listening sockets: the guard against a second server on the same address,
//! accepting at the descriptor limit, the options of an accepted socket.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use log::warn;
use mio::event::Source;
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, SocketFlags};
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::clock;
use crate::engine::time::Time;

/// Name, in the abstract socket namespace, of the lock that serialises starts. It
/// is per network namespace, as ports are.
const START_LOCK_NAME: &str = "leasehold/start";

/// How long a start waits for another one to finish binding.
const START_LOCK_WAIT_MS: u64 = 5_000;

/// How long "address in use" is retried: the kernel lets go of a dead process's
/// sockets a moment late when io_uring held them.
const BIND_RETRY_MS: u64 = 300;

/// Pause between two tries of either.
const RETRY_PAUSE: Duration = Duration::from_millis(10);

/// Failing accepts are logged at most once in this time.
const ACCEPT_LOG_PAUSE_MS: u64 = 1_000;

/// How long accepting rests after the kernel has refused a descriptor and there is
/// no reserve to turn the peer away with.
pub(super) const ACCEPT_REST_MS: u64 = 10;

/// Why an address could not be listened on.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another start has held the start lock too long.
    #[error(
        "another leasehold server is starting and does not finish (abstract socket @{START_LOCK_NAME} is held)"
    )]
    StartLock,
    /// The start lock could not be taken for another reason.
    #[error("cannot take the start lock (abstract socket @{START_LOCK_NAME}): {0}")]
    StartLockIo(io::Error),
    /// Somebody, perhaps another leasehold server, listens there already.
    #[error("cannot listen on {0}: the address is in use, perhaps by another leasehold server")]
    InUse(SocketAddr),
    /// The kernel refused for another reason.
    #[error("cannot listen on {0}: {1}")]
    Io(SocketAddr, io::Error),
    /// A server answers at that path.
    #[error("cannot listen on unix:{}: a server is running there", .0.display())]
    UnixInUse(PathBuf),
    /// Something that is no socket stands there.
    #[error("cannot listen on unix:{}: it exists and is no socket", .0.display())]
    NoSocket(PathBuf),
    /// The kernel refused for another reason.
    #[error("cannot listen on unix:{path}: {1}", path = .0.display())]
    UnixIo(PathBuf, io::Error),
}

/// Held while a server binds its addresses. SO_REUSEPORT would let a second server
/// share an address and grant the same keys; so each address is first bound without
/// it, and no other start comes between that proof and the real bind.
#[derive(Debug)]
pub(super) struct StartLock {
    // Closing the socket frees the name, a crash included.
    _held: UnixListener,
}

impl StartLock {
    /// Waits for other starts to finish, within a bound.
    ///
    /// # Errors
    /// [`BindError::StartLock`] when another start does not finish in time.
    pub(super) fn take() -> Result<StartLock, BindError> {
        let name = std::os::unix::net::SocketAddr::from_abstract_name(START_LOCK_NAME)
            .map_err(BindError::StartLockIo)?;
        let give_up_at = clock::now().plus_millis(START_LOCK_WAIT_MS);
        loop {
            match UnixListener::bind_addr(&name) {
                Ok(held) => return Ok(StartLock { _held: held }),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    return Err(BindError::StartLockIo(error));
                }
                Err(_) if clock::now() >= give_up_at => return Err(BindError::StartLock),
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }

    /// Binds and listens on `address` once for each loop, among which the kernel shares
    /// connections out; accepted sockets have `options`.
    ///
    /// # Errors
    /// [`BindError::InUse`] if anybody listens there.
    pub(super) fn listen(
        &self,
        address: SocketAddr,
        loops: u16,
        backlog: u32,
        options: &SocketOptions,
    ) -> Result<Vec<TcpListener>, BindError> {
        let address = self.prove_free(address)?;
        let listen = |_| {
            let socket = stream_socket(address)?;
            socket.set_reuse_port(true)?;
            socket.bind(&address.into())?;
            options.apply(&socket)?;
            socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
            socket.set_nonblocking(true)?;
            Ok(TcpListener::from(socket))
        };
        (0..loops)
            .map(listen)
            .collect::<io::Result<Vec<TcpListener>>>()
            .map_err(|error| BindError::Io(address, error))
    }

    /// Binds and listens on a Unix socket that gets the permissions `mode`. A file
    /// left by a dead server is replaced: nothing answers there.
    ///
    /// # Errors
    /// [`BindError::UnixInUse`] if a server answers there, [`BindError::NoSocket`]
    /// if the path is something else.
    pub(super) fn listen_unix(
        &self,
        path: &Path,
        mode: u32,
        backlog: u32,
    ) -> Result<(UnixListener, SocketFile), BindError> {
        let failed = |error| BindError::UnixIo(path.into(), error);
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(found) if !found.file_type().is_socket() => {
                return Err(BindError::NoSocket(path.into()));
            }
            Ok(_) => match connect_unix(path) {
                Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                    fs::remove_file(path).map_err(failed)?;
                }
                // WouldBlock: it listens, and its backlog is full.
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => {
                    return Err(failed(error));
                }
                _ => return Err(BindError::UnixInUse(path.into())),
            },
        }
        let bind = || {
            let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
            // The file must never be more open than asked for, not even for a moment;
            // no other thread makes files while a server starts.
            let umask = rustix::process::umask(Mode::from_raw_mode(!mode & 0o777));
            let bound = socket.bind(&socket2::SockAddr::unix(path)?);
            rustix::process::umask(umask);
            bound?;
            socket.listen(i32::try_from(backlog).unwrap_or(i32::MAX))?;
            socket.set_nonblocking(true)?;
            let file = SocketFile {
                path: path.into(),
                inode: fs::symlink_metadata(path)?.ino(),
            };
            Ok((UnixListener::from(socket), file))
        };
        bind().map_err(failed)
    }

    /// Binds without SO_REUSEPORT, which fails if anybody listens there, and lets go
    /// again. Returns the address with its port chosen.
    fn prove_free(&self, address: SocketAddr) -> Result<SocketAddr, BindError> {
        let give_up_at = clock::now().plus_millis(BIND_RETRY_MS);
        loop {
            let bound = stream_socket(address).and_then(|socket| {
                socket.bind(&address.into())?;
                socket.local_addr()
            });
            match bound {
                Ok(local) => return Ok(local.as_socket().unwrap_or(address)),
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    return Err(BindError::Io(address, error));
                }
                Err(_) if clock::now() >= give_up_at => return Err(BindError::InUse(address)),
                Err(_) => std::thread::sleep(RETRY_PAUSE),
            }
        }
    }
}

/// A bound Unix socket's file; removed when dropped, unless another server has
/// put its own there.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|found| found.ino() == self.inode);
        if ours && let Err(error) = fs::remove_file(&self.path) {
            warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Connects without waiting: a server that accepts nobody must not hold up a start.
fn connect_unix(path: &Path) -> io::Result<()> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    socket.set_nonblocking(true)?;
    socket.connect(&socket2::SockAddr::unix(path)?)
}

/// A TCP socket that may bind beside connections in TIME_WAIT, never beside a listener.
fn stream_socket(address: SocketAddr) -> io::Result<Socket> {
    let socket = Socket::new(
        Domain::for_address(address),
        Type::STREAM,
        Some(Protocol::TCP),
    )?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        // `[::]` means IPv6 alone, so that `--listen 0.0.0.0:P --listen [::]:P` works.
        socket.set_only_v6(true)?;
    }
    Ok(socket)
}

/// Options of every accepted TCP socket; each from a flag. They are set on the
/// listening socket, from which Linux copies them: accepting costs no call for them.
#[derive(Clone, Copy, Debug)]
pub(super) struct SocketOptions {
    /// `--keepalive-idle`: silence after which the peer is probed.
    pub keepalive_idle: Duration,
    /// `--keepalive-interval`: time between probes.
    pub keepalive_interval: Duration,
    /// `--keepalive-count`: unanswered probes that end the connection.
    pub keepalive_count: u32,
    /// `--peer-timeout`: how long sent data may stay unacknowledged (TCP_USER_TIMEOUT).
    pub peer_timeout: Duration,
    /// `--busy-poll-us` in microseconds; 0: as the host has it (SO_BUSY_POLL).
    pub busy_poll_us: u32,
}

impl SocketOptions {
    fn apply(&self, socket: &Socket) -> io::Result<()> {
        // A reply must not wait for the acknowledgement of the one before it.
        socket.set_tcp_nodelay(true)?;
        let keepalive = TcpKeepalive::new()
            .with_time(self.keepalive_idle)
            .with_interval(self.keepalive_interval)
            .with_retries(self.keepalive_count);
        socket.set_tcp_keepalive(&keepalive)?;
        if self.busy_poll_us > 0 {
            socket.set_busy_poll(self.busy_poll_us).map_err(|error| {
                io::Error::new(error.kind(), format!("--busy-poll-us: {error}"))
            })?;
        }
        // Also bounds a peer that acknowledges probes of a closed window for ever.
        socket.set_tcp_user_timeout(Some(self.peer_timeout))
    }
}

/// What one try to accept brought.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A connection.
    Stream(Stream),
    /// A peer that had to be turned away or was gone already: go on accepting.
    Lost,
    /// Nobody waits.
    Nobody,
    /// The kernel has no room; try again at this time.
    RestUntil(Time),
}

/// A listener with a descriptor in reserve: at the descriptor limit it is given up
/// to accept and close one connection, so that the peer hears a close instead of
/// silence and the listener does not report the same connection for ever.
#[derive(Debug)]
pub(super) struct Acceptor {
    /// `None` once closed.
    listener: Option<Listener>,
    reserve: Option<File>,
    log: AcceptLog,
}

impl Acceptor {
    /// Takes a listener that is already non-blocking.
    pub(super) fn new(listener: Listener) -> Acceptor {
        Acceptor {
            listener: Some(listener),
            reserve: open_reserve(),
            log: AcceptLog::default(),
        }
    }

    /// The listener, to register; `None` once closed.
    pub(super) fn source(&mut self) -> Option<&mut dyn Source> {
        match self.listener.as_mut()? {
            Listener::Tcp(listener) => Some(listener),
            Listener::Unix(listener) => Some(listener),
        }
    }

    /// Accepts nobody any more.
    pub(super) fn close(&mut self) {
        self.listener = None;
        self.reserve = None;
    }

    fn accept_one(&self) -> io::Result<Stream> {
        match &self.listener {
            Some(listener) => listener.accept(),
            None => Err(ErrorKind::WouldBlock.into()),
        }
    }

    /// Tries to accept one connection.
    pub(super) fn accept(&mut self, now: Time) -> Accepted {
        let error = match self.accept_one() {
            Ok(stream) => return Accepted::Stream(stream),
            Err(error) => error,
        };
        if error.kind() == ErrorKind::WouldBlock {
            return Accepted::Nobody;
        }
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => {
                self.log.turned_away(now, &error);
                self.turn_one_away(now)
            }
            Some(error) if is_of_one_connection(error) => Accepted::Lost,
            // No memory, or what nobody foresaw: the connection is still there, and
            // trying it without a pause would spin.
            _ => {
                self.log.rested(now, &error);
                Accepted::RestUntil(now.plus_millis(ACCEPT_REST_MS))
            }
        }
    }

    fn turn_one_away(&mut self, now: Time) -> Accepted {
        if self.reserve.take().is_none() {
            self.reserve = open_reserve();
            return Accepted::RestUntil(now.plus_millis(ACCEPT_REST_MS));
        }
        let accepted = self.accept_one();
        let nobody = matches!(&accepted, Err(e) if e.kind() == io::ErrorKind::WouldBlock);
        drop(accepted);
        self.reserve = open_reserve();
        if nobody {
            Accepted::Nobody
        } else {
            Accepted::Lost
        }
    }
}

/// Whether accepting failed because of the connection that was to be accepted: the
/// listener is well, and goes on with the next (accept(2)).
pub(super) fn is_of_one_connection(error: Errno) -> bool {
    matches!(
        error,
        Errno::CONNABORTED
            | Errno::INTR
            | Errno::PERM
            | Errno::PROTO
            | Errno::NETDOWN
            | Errno::NOPROTOOPT
            | Errno::HOSTDOWN
            | Errno::NONET
            | Errno::HOSTUNREACH
            | Errno::OPNOTSUPP
            | Errno::NETUNREACH
    )
}

/// Says why connections are not taken in, within reason: a storm of connections must not become
/// a storm of lines.
#[derive(Debug)]
pub(super) struct AcceptLog {
    again_at: Time,
}

impl Default for AcceptLog {
    fn default() -> AcceptLog {
        AcceptLog {
            again_at: Time::ZERO,
        }
    }
}

impl AcceptLog {
    /// A peer had to be turned away.
    pub(super) fn turned_away(&mut self, now: Time, why: &dyn std::fmt::Display) {
        self.warn(now, &format_args!("turning connections away: {why}"));
    }

    /// A connection was lost on its way to another loop.
    pub(super) fn lost(&mut self, now: Time, why: &dyn std::fmt::Display) {
        self.warn(
            now,
            &format_args!("losing connections on their way to another loop: {why}"),
        );
    }

    /// Accepting rests for a moment.
    pub(super) fn rested(&mut self, now: Time, why: &dyn std::fmt::Display) {
        self.warn(now, &format_args!("cannot accept for now: {why}"));
    }

    fn warn(&mut self, now: Time, message: &std::fmt::Arguments<'_>) {
        if now >= self.again_at {
            self.again_at = now.plus_millis(ACCEPT_LOG_PAUSE_MS);
            warn!("{message}");
        }
    }
}

/// A listening socket of either kind.
#[derive(Debug)]
pub(super) enum Listener {
    /// TCP.
    Tcp(mio::net::TcpListener),
    /// A Unix stream socket.
    Unix(mio::net::UnixListener),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(listener) => listener.as_fd(),
        }
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Ok(Stream(rustix::net::accept_with(self, flags)?))
    }
}

/// A connection, TCP or Unix.
#[derive(Debug)]
pub(super) struct Stream(OwnedFd);

impl From<OwnedFd> for Stream {
    /// Takes a socket that is already non-blocking.
    fn from(socket: OwnedFd) -> Stream {
        Stream(socket)
    }
}

impl From<Stream> for OwnedFd {
    fn from(stream: Stream) -> OwnedFd {
        stream.0
    }
}

impl AsRawFd for Stream {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl Stream {
    /// Reads what is there.
    ///
    /// # Errors
    /// As recv(2): `WouldBlock` when nothing is there yet.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let (count, _) = rustix::net::recv(&self.0, buffer, RecvFlags::empty())?;
        Ok(count)
    }

    /// Writes what fits.
    ///
    /// # Errors
    /// As send(2): `WouldBlock` when nothing fits now.
    pub(super) fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    /// Tells the peer that nothing more comes.
    ///
    /// # Errors
    /// As shutdown(2).
    pub(super) fn shutdown_write(&self) -> io::Result<()> {
        Ok(rustix::net::shutdown(&self.0, Shutdown::Write)?)
    }
}

fn open_reserve() -> Option<File> {
    File::open("/dev/null").ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use socket2::SockRef;
    use std::net::TcpStream;

    /// tcp(7) leaves the inheritance unsaid, so it is held here.
    #[test]
    fn accepted_sockets_have_the_options_of_their_listener() {
        let options = SocketOptions {
            keepalive_idle: Duration::from_secs(17),
            keepalive_interval: Duration::from_secs(7),
            keepalive_count: 4,
            peer_timeout: Duration::from_millis(12_345),
            busy_poll_us: 0,
        };
        let address = "127.0.0.1:0".parse().unwrap();
        let start = StartLock::take().unwrap();
        let listener = start.listen(address, 1, 16, &options).unwrap().remove(0);
        listener.set_nonblocking(false).unwrap();
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        let socket = SockRef::from(&accepted);
        assert!(socket.tcp_nodelay().unwrap());
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), options.keepalive_idle);
        assert_eq!(
            socket.tcp_keepalive_interval().unwrap(),
            options.keepalive_interval
        );
        assert_eq!(socket.tcp_keepalive_retries().unwrap(), 4);
        let timeout = socket.tcp_user_timeout().unwrap();
        assert_eq!(timeout, Some(options.peer_timeout));
    }
}
