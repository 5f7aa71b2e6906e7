//! The client against a scripted peer on loopback, byte by byte as docs/protocol.md
//! has them.

use super::*;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::JoinHandle;

const SECOND: Duration = Duration::from_secs(1);
const MAX_KEY_BYTES: u16 = 64;

/// A listener that plays `script` on its first connection.
struct FakeServer {
    address: ServerAddress,
    thread: JoinHandle<()>,
}

impl FakeServer {
    fn start(script: impl FnOnce(&mut Peer<TcpStream>) + Send + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = ServerAddress::Tcp(listener.local_addr().expect("bound").to_string());
        let thread = std::thread::spawn(move || {
            let (stream, _) = listener.accept().expect("a client");
            script(&mut Peer { stream });
        });
        FakeServer { address, thread }
    }

    fn connect(&self) -> Connection {
        Connection::connect(&self.address, None, 10 * SECOND).expect("connected")
    }

    /// Waits for the script's end; its assertions are the test's.
    fn finish(self) {
        self.thread.join().expect("the script went as written");
    }
}

/// The server's end of the connection.
struct Peer<S> {
    stream: S,
}

/// An `A` or `a` frame.
struct AcquireFrame {
    wait_ms: u32,
    lease_ms: u32,
    owner: u64,
    key: Vec<u8>,
}

impl<S: Read + Write> Peer<S> {
    fn read<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.stream.read_exact(&mut bytes).expect("more bytes");
        bytes
    }

    fn read_op(&mut self, expected: u8) {
        assert_eq!(self.read::<1>()[0] as char, expected as char);
    }

    fn read_u64(&mut self) -> u64 {
        u64::from_be_bytes(self.read())
    }

    fn read_u32(&mut self) -> u32 {
        u32::from_be_bytes(self.read())
    }

    /// The key or credential, its newline taken off.
    fn read_line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        loop {
            match self.read::<1>() {
                [b'\n'] => return line,
                [byte] => line.push(byte),
            }
        }
    }

    fn read_hello(&mut self) -> (u64, Vec<u8>) {
        self.read_op(b'H');
        // Version 1, no flags, any loop.
        assert_eq!(self.read(), [1, 0, 0xFF, 0xFF]);
        (self.read_u64(), self.read_line())
    }

    fn read_acquire(&mut self) -> AcquireFrame {
        let (wait_ms, lease_ms) = match self.read() {
            [b'A'] => {
                let [wait, lease] = self.read();
                (u32::from(wait) * 1_000, u32::from(lease) * 1_000)
            }
            [b'a'] => (self.read_u32(), self.read_u32()),
            [other] => panic!("no acquire: {other:#04x}"),
        };
        AcquireFrame {
            wait_ms,
            lease_ms,
            owner: self.read_u64(),
            key: self.read_line(),
        }
    }

    /// `C`: its owner and its target.
    fn read_cancel(&mut self) -> (u64, u64) {
        self.read_op(b'C');
        let owners = (self.read_u64(), self.read_u64());
        assert_eq!(self.read_line(), b"k");
        owners
    }

    /// `R`: its owner and its token.
    fn read_release(&mut self) -> (u64, u64) {
        self.read_op(b'R');
        let owner_and_token = (self.read_u64(), self.read_u64());
        assert_eq!(self.read_line(), b"k");
        owner_and_token
    }

    /// `X`, in whole seconds: its owner, its lease and its token.
    fn read_extend(&mut self) -> (u64, u8, u64) {
        self.read_op(b'X');
        let [lease] = self.read();
        let owner_and_token = (self.read_u64(), self.read_u64());
        assert_eq!(self.read_line(), b"k");
        (owner_and_token.0, lease, owner_and_token.1)
    }

    fn read_query(&mut self) -> u64 {
        self.read_op(b'Q');
        let owner = self.read_u64();
        assert_eq!(self.read_line(), b"k");
        owner
    }

    fn welcome(&mut self) {
        let (owner, credential) = self.read_hello();
        assert_eq!(credential, b"");
        self.reply(
            b'H',
            owner,
            &[
                &[1, 0][..],
                &1u16.to_be_bytes(),
                &0u16.to_be_bytes(),
                &7u64.to_be_bytes(),
                &MAX_KEY_BYTES.to_be_bytes(),
                &255_000u32.to_be_bytes(),
            ]
            .concat(),
        );
    }

    /// A reply: op, owner, what else the op has, newline.
    fn reply(&mut self, op: u8, owner: u64, fields: &[u8]) {
        let frame = [&[op][..], &owner.to_be_bytes(), fields, b"\n"].concat();
        self.stream.write_all(&frame).expect("the client reads");
    }

    fn acquired(&mut self, owner: u64, token: u64, waited_ms: u32) {
        let fields = [&token.to_be_bytes()[..], &waited_ms.to_be_bytes()].concat();
        self.reply(b'A', owner, &fields);
    }

    fn state_free(&mut self, owner: u64) {
        self.reply(b'Q', owner, &[0; 9]);
    }

    /// The client sends nothing more and ends the session, in order or not.
    fn read_end(&mut self) {
        let mut rest = Vec::new();
        // An unread reply of the script's turns the client's close into a reset.
        let _ = self.stream.read_to_end(&mut rest);
        assert_eq!(rest, b"");
    }
}

fn key() -> Key {
    Key::new("k").expect("a good key")
}

fn is_free(connection: &mut Connection) -> bool {
    !connection.query(&key()).expect("a state").held
}

fn granted(outcome: Outcome) -> Ticket {
    match outcome {
        Outcome::Acquired(ticket) => ticket,
        other => panic!("not granted: {other:?}"),
    }
}

#[test]
fn acquire_and_release_say_what_they_must() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let acquire = peer.read_acquire();
        assert!(
            (1..=10_000).contains(&acquire.wait_ms),
            "{}",
            acquire.wait_ms
        );
        assert_eq!(acquire.lease_ms, 30_000);
        assert_eq!(acquire.key, b"k");
        assert_ne!(acquire.owner, 0);
        peer.acquired(acquire.owner, 42, 0);
        let (owner, token) = peer.read_release();
        assert_eq!(token, 42);
        assert_ne!(owner, acquire.owner, "owners are fresh");
        peer.reply(b'R', owner, &[]);
        peer.read_end();
    });
    let mut connection = server.connect();
    let before = clock::now();
    let ticket = granted(
        connection
            .acquire(key(), 10 * SECOND, 30 * SECOND)
            .expect("sent"),
    );
    assert_eq!((ticket.key(), ticket.token()), (&key(), 42));
    assert!(ticket.is_valid());
    assert!(ticket.lease_ends() >= before.plus_millis(30_000 - 30));
    assert!(ticket.lease_ends() <= clock::now().plus_millis(30_000 - 30));
    assert_eq!(
        connection
            .release(ticket.key(), ticket.token())
            .expect("sent"),
        ReleaseOutcome::Released
    );
    connection.close();
    server.finish();
}

#[test]
fn refusals_are_definitive_and_leave_the_session_open() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_acquire().owner;
        peer.reply(b'T', owner, &[]);
        let owner = peer.read_acquire().owner;
        peer.reply(b'B', owner, &[]);
        let owner = peer.read_acquire().owner;
        peer.reply(b'E', owner, &[9]);
        let owner = peer.read_query();
        peer.state_free(owner);
    });
    let mut connection = server.connect();
    for expected in [
        Outcome::TimedOut,
        Outcome::Busy,
        Outcome::Rejected(ErrorCode::TooManyQueued),
    ] {
        let outcome = connection
            .acquire(key(), 10 * SECOND, SECOND)
            .expect("sent");
        assert_eq!(outcome, expected);
    }
    assert!(is_free(&mut connection));
    server.finish();
}

#[test]
fn an_error_that_closes_the_session_closes_it_here_too() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_acquire().owner;
        peer.reply(b'E', owner, &[2]);
    });
    let mut connection = server.connect();
    assert_eq!(
        connection.acquire(key(), SECOND, SECOND).expect("sent"),
        Outcome::Rejected(ErrorCode::BadFrame)
    );
    let next = connection.acquire(key(), SECOND, SECOND);
    assert!(matches!(next, Err(ClientError::Closed)), "{next:?}");
    server.finish();
}

#[test]
fn an_immediate_attempt_has_no_wait_on_the_wire() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let acquire = peer.read_acquire();
        assert_eq!(acquire.wait_ms, 0);
        peer.reply(b'T', acquire.owner, &[]);
    });
    let outcome = server.connect().acquire(key(), Duration::ZERO, SECOND);
    assert_eq!(outcome.expect("sent"), Outcome::TimedOut);
    server.finish();
}

#[test]
fn the_credential_is_shown_and_a_refusal_is_told() {
    let server = FakeServer::start(|peer| {
        let (owner, credential) = peer.read_hello();
        assert_eq!(credential, b"worker:secret");
        peer.reply(b'E', owner, &[5]);
        peer.read_end();
    });
    let credential = Credential::new("worker:secret").expect("good");
    let refused = Connection::connect(&server.address, Some(&credential), 10 * SECOND);
    assert!(
        matches!(
            refused,
            Err(ClientError::Refused {
                code: ErrorCode::Unauthenticated,
                ..
            })
        ),
        "{refused:?}"
    );
    server.finish();
}

#[test]
fn a_session_lost_after_sending_is_indeterminate_and_nothing_is_sent_again() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        peer.read_acquire();
        // The end of the script ends the session.
    });
    let mut connection = server.connect();
    assert_eq!(
        connection
            .acquire(key(), 10 * SECOND, SECOND)
            .expect("sent"),
        Outcome::Indeterminate
    );
    let next = connection.acquire(key(), 10 * SECOND, SECOND);
    assert!(matches!(next, Err(ClientError::Closed)), "{next:?}");
    server.finish();
}

#[test]
fn a_session_lost_before_sending_is_an_error_so_that_another_may_be_tried() {
    let server = FakeServer::start(Peer::welcome);
    let mut connection = server.connect();
    let attempt = Attempt::new(key(), 10 * SECOND, SECOND).expect("good times");
    server.finish();
    let unsent = connection.run(&attempt);
    assert!(
        matches!(unsent, Err(ClientError::Unreachable { .. })),
        "{unsent:?}"
    );

    let owner = attempt.owner();
    let other = FakeServer::start(move |peer| {
        peer.welcome();
        let acquire = peer.read_acquire();
        assert_eq!(acquire.owner, owner, "the same operation");
        peer.reply(b'B', acquire.owner, &[]);
    });
    assert_eq!(other.connect().run(&attempt).expect("sent"), Outcome::Busy);
    other.finish();
}

#[test]
fn an_attempt_whose_deadline_has_passed_is_not_sent() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_query();
        peer.state_free(owner);
    });
    let mut connection = server.connect();
    for wait in [SECOND, Duration::ZERO] {
        let attempt = Attempt::start(Time::ZERO, 1, key(), wait, SECOND).expect("good times");
        assert_eq!(
            connection.run(&attempt).expect("no error"),
            Outcome::TimedOut
        );
    }
    assert!(is_free(&mut connection));
    server.finish();
}

#[test]
fn at_the_deadline_it_cancels_and_the_answer_is_definitive() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let acquire = peer.read_acquire();
        let (owner, target) = peer.read_cancel();
        assert_eq!(target, acquire.owner);
        assert_ne!(owner, acquire.owner);
        peer.reply(b'T', acquire.owner, &[]);
        peer.reply(b'C', owner, &[1]);
        // The session is still good, and the cancel's reply disturbs nobody.
        let owner = peer.read_query();
        peer.state_free(owner);
    });
    let mut connection = server.connect();
    let wait = Duration::from_millis(50);
    assert_eq!(
        connection.acquire(key(), wait, SECOND).expect("sent"),
        Outcome::TimedOut
    );
    assert!(is_free(&mut connection));
    server.finish();
}

#[test]
fn silence_after_the_cancel_is_indeterminate_and_closes_the_session() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        peer.read_acquire();
        peer.read_cancel();
        peer.read_end();
    });
    let mut connection = server.connect();
    let wait = Duration::from_millis(1);
    assert_eq!(
        connection.acquire(key(), wait, SECOND).expect("sent"),
        Outcome::Indeterminate
    );
    server.finish();
}

#[test]
fn a_grant_after_the_deadline_is_given_back_and_the_session_stays_open() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let acquire = peer.read_acquire();
        let (cancel_owner, _) = peer.read_cancel();
        peer.acquired(acquire.owner, 42, 1);
        peer.reply(b'C', cancel_owner, &[0]);
        let (release_owner, token) = peer.read_release();
        assert_eq!(token, 42, "exactly the late grant");
        peer.reply(b'R', release_owner, &[]);
        let owner = peer.read_query();
        peer.state_free(owner);
    });
    let mut connection = server.connect();
    let wait = Duration::from_millis(50);
    assert_eq!(
        connection.acquire(key(), wait, 30 * SECOND).expect("sent"),
        Outcome::Indeterminate
    );
    assert!(is_free(&mut connection));
    server.finish();
}

#[test]
fn a_reply_may_come_byte_by_byte() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        peer.stream.set_nodelay(true).expect("a TCP socket");
        let owner = peer.read_acquire().owner;
        // A token with a newline in it: fields are counted, not searched.
        let token = 0x0A0A_0A0A_0A0A_0A0Au64;
        let frame = [
            &b"A"[..],
            &owner.to_be_bytes(),
            &token.to_be_bytes(),
            &[0; 4],
            b"\n",
        ];
        for byte in frame.concat() {
            peer.stream.write_all(&[byte]).expect("the client reads");
        }
        peer.read_end();
    });
    let mut connection = server.connect();
    let ticket = granted(
        connection
            .acquire(key(), 10 * SECOND, 30 * SECOND)
            .expect("sent"),
    );
    assert_eq!(ticket.token(), 0x0A0A_0A0A_0A0A_0A0A);
    drop(connection);
    server.finish();
}

#[test]
fn replies_that_make_no_sense_are_never_a_grant() {
    for nonsense in [
        // Another owner's grant, an answer to another request, no reply at all.
        |peer: &mut Peer<TcpStream>, owner: u64| peer.acquired(owner ^ 1, 42, 0),
        |peer: &mut Peer<TcpStream>, owner: u64| peer.reply(b'R', owner, &[]),
        |peer: &mut Peer<TcpStream>, _: u64| {
            let page = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
            peer.stream.write_all(page).expect("the client reads");
        },
    ] {
        let server = FakeServer::start(move |peer| {
            peer.welcome();
            let owner = peer.read_acquire().owner;
            nonsense(peer, owner);
            peer.read_end();
        });
        let mut connection = server.connect();
        assert_eq!(
            connection
                .acquire(key(), 10 * SECOND, SECOND)
                .expect("sent"),
            Outcome::Indeterminate
        );
        let next = connection.query(&key());
        assert!(matches!(next, Err(ClientError::Closed)), "{next:?}");
        server.finish();
    }
}

#[test]
fn something_else_on_the_port_is_no_server() {
    let server = FakeServer::start(|peer| {
        peer.read_hello();
        let page = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
        peer.stream.write_all(page).expect("the client reads");
        peer.read_end();
    });
    let refused = Connection::connect(&server.address, None, 10 * SECOND);
    assert!(
        matches!(refused, Err(ClientError::Unreachable { .. })),
        "{refused:?}"
    );
    server.finish();
}

#[test]
fn a_server_that_says_nothing_is_unreachable() {
    let server = FakeServer::start(|peer| {
        peer.read_hello();
        peer.read_end();
    });
    let silent = Connection::connect(&server.address, None, Duration::from_millis(50));
    assert!(
        matches!(&silent, Err(ClientError::Unreachable { source, .. })
            if source.kind() == io::ErrorKind::TimedOut),
        "{silent:?}"
    );
    server.finish();
}

#[test]
fn nobody_listening_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    for server in [&address, "unix:/nonexistent/leasehold.sock"] {
        let server = server.parse().expect("an address");
        let refused = Connection::connect(&server, None, SECOND);
        assert!(
            matches!(refused, Err(ClientError::Unreachable { .. })),
            "{refused:?}"
        );
    }
}

#[test]
fn an_extend_lengthens_the_ticket_and_a_short_one_changes_nothing() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_acquire().owner;
        peer.acquired(owner, 42, 0);
        for lease_s in [60, 1] {
            let (owner, lease, token) = peer.read_extend();
            assert_eq!((lease, token), (lease_s, 42));
            peer.reply(b'X', owner, &59_999u32.to_be_bytes());
        }
        let (owner, ..) = peer.read_extend();
        peer.reply(b'N', owner, &[]);
        peer.read_extend();
    });
    let mut connection = server.connect();
    let mut ticket = granted(
        connection
            .acquire(key(), 10 * SECOND, 30 * SECOND)
            .expect("sent"),
    );
    let first_end = ticket.lease_ends();

    let before = clock::now();
    let extended = connection.extend(&mut ticket, 60 * SECOND).expect("sent");
    assert_eq!(extended, ExtendOutcome::Extended);
    assert!(ticket.lease_ends() >= before.plus_millis(60_000 - 60));
    assert!(ticket.lease_ends() > first_end);

    let end = ticket.lease_ends();
    let extended = connection.extend(&mut ticket, SECOND).expect("sent");
    assert_eq!(extended, ExtendOutcome::Extended);
    assert_eq!(ticket.lease_ends(), end);

    let lost = connection.extend(&mut ticket, 60 * SECOND).expect("sent");
    assert_eq!(lost, ExtendOutcome::NotHeld);
    let unknown = connection.extend(&mut ticket, 120 * SECOND).expect("sent");
    assert_eq!(unknown, ExtendOutcome::Indeterminate);
    assert_eq!(ticket.lease_ends(), end);
    server.finish();
}

#[test]
fn releases_end_in_each_of_their_ways() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let (owner, _) = peer.read_release();
        peer.reply(b'N', owner, &[]);
        let (owner, _) = peer.read_release();
        peer.reply(b'E', owner, &[3]);
        peer.read_release();
    });
    let mut connection = server.connect();
    for expected in [
        ReleaseOutcome::NotHeld,
        ReleaseOutcome::Rejected(ErrorCode::BadKey),
        ReleaseOutcome::Indeterminate,
    ] {
        assert_eq!(connection.release(&key(), 1).expect("sent"), expected);
    }
    server.finish();
}

#[test]
fn a_query_tells_the_state() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_query();
        let fields = [&[1][..], &29_000u32.to_be_bytes(), &3u32.to_be_bytes()].concat();
        peer.reply(b'Q', owner, &fields);
    });
    assert_eq!(
        server.connect().query(&key()).expect("a state"),
        KeyState {
            held: true,
            remaining_ms: 29_000,
            waiters: 3,
        }
    );
    server.finish();
}

#[test]
fn a_key_too_long_for_this_server_is_not_sent() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_query();
        peer.state_free(owner);
    });
    let mut connection = server.connect();
    let key = Key::new(&"k".repeat(usize::from(MAX_KEY_BYTES) + 1)).expect("good elsewhere");
    let refused = connection.acquire(key, SECOND, SECOND);
    assert!(
        matches!(refused, Err(ClientError::Key(KeyError::TooLong { .. }))),
        "{refused:?}"
    );
    assert!(is_free(&mut connection));
    server.finish();
}

#[test]
fn in_a_forked_child_the_session_is_dead_and_the_parent_s_goes_on() {
    let server = FakeServer::start(|peer| {
        peer.welcome();
        let owner = peer.read_query();
        peer.state_free(owner);
    });
    let mut connection = server.connect();
    let process = connection.process;
    connection.process = process + 1;
    let refused = connection.query(&key());
    assert!(matches!(refused, Err(ClientError::Forked)), "{refused:?}");
    connection.process = process;
    assert!(is_free(&mut connection));
    server.finish();
}

#[test]
fn a_unix_socket_serves_as_well() {
    let path = std::env::temp_dir().join(format!("leasehold-client-{}", std::process::id()));
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("a new path");
    let thread = std::thread::spawn(move || {
        let (stream, _) = listener.accept().expect("a client");
        let mut peer = Peer { stream };
        peer.welcome();
        let owner = peer.read_query();
        peer.state_free(owner);
        peer.read_end();
    });
    let mut connection = Connection::connect(&ServerAddress::Unix(path.clone()), None, 10 * SECOND)
        .expect("connected");
    std::fs::remove_file(&path).expect("bound there");
    assert!(is_free(&mut connection));
    connection.close();
    thread.join().expect("the script went as written");
}
