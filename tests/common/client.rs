//! A session as a test sees it: bytes out, replies in, and how the connection ends.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::time::Instant;

use socket2::{Domain, SockAddr, Socket, Type};

use super::server::HANG_GUARD;
use super::wire::{Reply, Welcome, acquire, ping, query};

/// One connection.
#[derive(Debug)]
pub struct Client {
    socket: Socket,
    received: Vec<u8>,
    /// How many bytes of `received` have been handed out.
    taken: usize,
    received_at: Instant,
    pings: u64,
}

/// What `A` told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    pub token: u64,
    pub waited_ms: u32,
}

/// What [`Client::poll`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    Reply(Reply),
    Nothing,
    Cut,
}

/// What `Q` told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    pub held: bool,
    pub remaining_ms: u32,
    pub waiters: u32,
}

impl Client {
    /// Connects to `IP:PORT` or `unix:PATH`, as the ready line names them.
    pub fn connect(address: &str) -> io::Result<Client> {
        Self::connect_with(address, |_| Ok(()))
    }

    /// Connects with a receive buffer of about that many bytes.
    pub fn connect_small(address: &str, receive_bytes: usize) -> io::Result<Client> {
        Self::connect_with(address, |socket| socket.set_recv_buffer_size(receive_bytes))
    }

    fn connect_with(
        address: &str,
        prepare: impl Fn(&Socket) -> io::Result<()>,
    ) -> io::Result<Client> {
        let (domain, address) = match address.strip_prefix("unix:") {
            Some(path) => (Domain::UNIX, SockAddr::unix(path)?),
            None => {
                let address: SocketAddr = address.parse().map_err(io::Error::other)?;
                (Domain::for_address(address), address.into())
            }
        };
        let socket = Socket::new(domain, Type::STREAM, None)?;
        prepare(&socket)?;
        socket.connect(&address)?;
        if domain != Domain::UNIX {
            socket.set_tcp_nodelay(true)?;
        }
        socket.set_read_timeout(Some(HANG_GUARD))?;
        socket.set_write_timeout(Some(HANG_GUARD))?;
        Ok(Client {
            socket,
            received: Vec::new(),
            taken: 0,
            received_at: Instant::now(),
            pings: 0,
        })
    }

    /// The same connection once more, to send from another thread.
    pub fn another_handle(&self) -> Client {
        Client {
            socket: self.socket.try_clone().expect("a descriptor is left"),
            received: Vec::new(),
            taken: 0,
            received_at: self.received_at,
            pings: 0,
        }
    }

    /// Sends all of `bytes`; the time is before the first of them left.
    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) -> Instant {
        let before = Instant::now();
        self.socket
            .write_all(bytes)
            .expect("the server takes what is sent");
        before
    }

    /// Sends what the kernel takes without waiting.
    pub fn send_some(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_nonblocking(true)?;
        let result = self.socket.write(bytes);
        self.socket.set_nonblocking(false)?;
        match result {
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(0),
            other => other,
        }
    }

    /// The next reply.
    ///
    /// # Panics
    /// The connection ended, or nothing came for very long.
    #[track_caller]
    pub fn reply(&mut self) -> Reply {
        match self.reply_or_end() {
            Some(reply) => reply,
            None => panic!("the connection ended where a reply was expected"),
        }
    }

    /// The next reply, `None` at the connection's end.
    #[track_caller]
    pub fn reply_or_end(&mut self) -> Option<Reply> {
        loop {
            if let Some(reply) = self.buffered_reply() {
                return Some(reply);
            }
            if self.read_more() == 0 {
                let rest = &self.received[self.taken..];
                assert!(rest.is_empty(), "ended within a reply: {rest:02x?}");
                return None;
            }
        }
    }

    /// When the bytes of the last reply had been read: never before the server sent it.
    pub fn received_at(&self) -> Instant {
        self.received_at
    }

    /// The next reply is this one.
    #[track_caller]
    pub fn expect(&mut self, expected: Reply) {
        assert_eq!(self.reply(), expected);
    }

    /// The next reply is `E` with this code.
    #[track_caller]
    pub fn expect_error(&mut self, owner: u64, code: u8) {
        self.expect(Reply::Error { owner, code });
    }

    /// The next reply is a grant to `owner`.
    #[track_caller]
    pub fn granted(&mut self, owner: u64) -> Grant {
        match self.reply() {
            Reply::Acquired {
                owner: answered,
                token,
                waited_ms,
            } if answered == owner => {
                assert!(
                    (1..1 << 63).contains(&token),
                    "token {token} is out of range"
                );
                Grant { token, waited_ms }
            }
            other => panic!("{other:?} where a grant to {owner} was expected"),
        }
    }

    /// The next reply is Welcome.
    #[track_caller]
    pub fn welcome(&mut self) -> Welcome {
        match self.reply() {
            Reply::Welcome(welcome) => welcome,
            other => panic!("{other:?} where Welcome was expected"),
        }
    }

    /// The next `count` replies by their owner, which is how those to requests on
    /// different keys are told apart; those to one owner in the order they came.
    #[track_caller]
    pub fn replies_by_owner(&mut self, count: usize) -> Vec<Reply> {
        let mut replies: Vec<Reply> = (0..count).map(|_| self.reply()).collect();
        replies.sort_by_key(Reply::owner);
        replies
    }

    /// Every reply up to the orderly end, by owner.
    #[track_caller]
    pub fn rest_by_owner(&mut self) -> Vec<Reply> {
        let mut replies: Vec<Reply> = std::iter::from_fn(|| self.reply_or_end()).collect();
        replies.sort_by_key(Reply::owner);
        replies
    }

    /// Takes every key, all at once, and returns their tokens.
    #[track_caller]
    pub fn hold_all(&mut self, keys: &[String], lease_s: u8) -> Vec<u64> {
        let requests = (1..).zip(keys);
        let requests = requests.map(|(owner, key)| acquire(owner, 0, lease_s, key));
        self.send(&requests.collect::<Vec<_>>().concat());
        let mut tokens = vec![0; keys.len()];
        for _ in keys {
            match self.reply() {
                Reply::Acquired { owner, token, .. } => tokens[owner as usize - 1] = token,
                other => panic!("{other:?} where a grant was expected"),
            }
        }
        assert!(tokens.iter().all(|token| *token > 0), "one grant each");
        tokens
    }

    /// Asks for a key's state and reads the answer, which must be the next reply.
    #[track_caller]
    pub fn state(&mut self, key: impl AsRef<[u8]>) -> KeyState {
        self.send(&query(77, key));
        match self.reply() {
            Reply::State {
                owner: 77,
                held,
                remaining_ms,
                waiters,
            } => {
                assert_eq!(remaining_ms > 0, held, "remaining goes with held");
                KeyState {
                    held,
                    remaining_ms,
                    waiters,
                }
            }
            other => panic!("{other:?} where a key's state was expected"),
        }
    }

    /// Asks for a key's state again and again until it is as wanted.
    #[track_caller]
    pub fn await_state(&mut self, key: impl AsRef<[u8]>, wanted: impl Fn(KeyState) -> bool) {
        let guard = Instant::now() + HANG_GUARD;
        loop {
            let state = self.state(&key);
            if wanted(state) {
                return;
            }
            assert!(Instant::now() < guard, "the key stays {state:?}");
        }
    }

    /// The session is open, and owes nothing but what was read: a ping is
    /// answered next.
    #[track_caller]
    pub fn expect_quiet(&mut self) {
        self.pings += 1;
        let owner = 0x5000_0000_0000_0000 + self.pings;
        self.send(&ping(owner));
        self.expect(Reply::Pong(owner));
    }

    /// What has come so far, without waiting.
    pub fn poll(&mut self) -> Polled {
        if let Some(reply) = self.buffered_reply() {
            return Polled::Reply(reply);
        }
        self.socket.set_nonblocking(true).expect("it is a socket");
        let result = self.try_read();
        self.socket.set_nonblocking(false).expect("it is a socket");
        match result {
            Ok(0) => Polled::Cut,
            Ok(_) => self.buffered_reply().map_or(Polled::Nothing, Polled::Reply),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Polled::Nothing,
            Err(_) => Polled::Cut,
        }
    }

    /// Reads until at least `count` bytes have come, or the connection was cut.
    #[track_caller]
    pub fn read_bytes(&mut self, count: usize) {
        while self.received.len() < count {
            match self.try_read() {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no reply came"),
                Err(_) => return,
            }
        }
    }

    /// Whether a ping is answered; no if the server has cut the connection.
    #[track_caller]
    pub fn answers_ping(&mut self) -> bool {
        // A cut may show already here; then reading tells it too.
        let _ = self.socket.write_all(&ping(88));
        loop {
            if let Some(reply) = self.buffered_reply() {
                assert_eq!(reply, Reply::Pong(88));
                return true;
            }
            match self.try_read() {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no reply came"),
                Err(_) => return false,
            }
        }
    }

    /// Ends this side in order (FIN).
    pub fn finish(&mut self) {
        self.socket
            .shutdown(Shutdown::Write)
            .expect("the connection stands");
    }

    /// Ends the connection with a reset, now. Closing with SO_LINGER 0 would wait
    /// for a child that another test is starting to let go of its copy.
    pub fn reset(self) {
        rustix::net::connect_unspec(&self.socket).expect("a TCP socket disconnects");
    }

    /// The server ends its side in order, without a byte more.
    #[track_caller]
    pub fn expect_end(&mut self) {
        if let Some(reply) = self.reply_or_end() {
            panic!("{reply:?} where the connection's end was expected");
        }
    }

    /// The connection ends, in order or not, without a whole reply more.
    #[track_caller]
    pub fn expect_cut(&mut self) {
        assert_eq!(self.replies_until_cut(), [], "where the end was due");
    }

    /// Whole replies up to the connection's end, which may come in order or not.
    #[track_caller]
    pub fn replies_until_cut(&mut self) -> Vec<Reply> {
        let mut replies = Vec::new();
        loop {
            replies.extend(std::iter::from_fn(|| self.buffered_reply()));
            match self.try_read() {
                Ok(0) => return replies,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no end came"),
                Err(_) => return replies,
            }
        }
    }

    fn buffered_reply(&mut self) -> Option<Reply> {
        let (reply, length) = Reply::read(&self.received[self.taken..])?;
        self.taken += length;
        Some(reply)
    }

    #[track_caller]
    fn read_more(&mut self) -> usize {
        match self.try_read() {
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => panic!("no reply came"),
            Err(error) => panic!("the connection failed: {error}"),
        }
    }

    fn try_read(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 64 * 1024];
        let count = self.socket.read(&mut buffer)?;
        self.received_at = Instant::now();
        self.received.drain(..self.taken);
        self.taken = 0;
        self.received.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}
