//! A blocking client of the native protocol: one connection, one request at a time.
//! (That of the JackrabbitDLM protocol is [`dlm::Locker`].)
//!
//! ```no_run
//! use leasehold::client::{Connection, Key, Outcome};
//! use std::time::Duration;
//!
//! let server = "127.0.0.1:5327".parse()?;
//! let mut connection = Connection::connect(&server, None, Duration::from_secs(5))?;
//! let (wait, lease) = (Duration::from_secs(10), Duration::from_secs(30));
//! match connection.acquire(Key::new("invoices")?, wait, lease)? {
//!     Outcome::Acquired(ticket) => {
//!         // Work while ticket.is_valid(), and show ticket.token() to the resource.
//!         connection.release(ticket.key(), ticket.token())?;
//!     }
//!     Outcome::TimedOut | Outcome::Busy => { /* definitely not held: come again */ }
//!     Outcome::Indeterminate => { /* not known: stay out, it ends with its lease */ }
//!     Outcome::Rejected(code) => eprintln!("refused: {code:?}"),
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! What is safe to believe decides every outcome. An `Err` always means that
//! nothing of the request was sent. Once a byte may have been sent, a request is
//! never sent again: without its reply the outcome is *indeterminate*, and the
//! session is closed.

mod address;
mod attempt;
mod dlm_locker;
mod session;
mod socket;
#[cfg(test)]
mod tests;
mod ticket;
mod values;

pub use address::{AddressError, ServerAddress};
pub use attempt::{
    Attempt, IMMEDIATE_DEADLINE_MS, InFlight, Overdue, REPLY_GRACE_MS, TimeError, Verdict,
};
pub use ticket::Ticket;
pub use values::{Credential, CredentialError, Key, KeyError};

/// The client of the JackrabbitDLM protocol: [`Locker`](dlm::Locker).
pub mod dlm {
    pub use super::dlm_locker::{
        DataCodec, EraseOutcome, Failure, GetOutcome, LockGuard, LockOutcome, Locker,
        LockerBuilder, NotLocked, PutOutcome, TestOutcome, UnlockOutcome, WireCodec,
    };
}

use crate::clock::{self, Time};
use crate::protocol::{self, ErrorCode, Reply, Request, Welcome};
use session::{Fault, Session, no_reply, nonsense};
use std::io;
use std::time::Duration;

/// How long a release, an extend or a query may take, in milliseconds.
const REQUEST_DEADLINE_MS: u64 = 5_000;

/// How an acquire ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The lock is held.
    Acquired(Ticket),
    /// Definitely not held: the wait is over.
    TimedOut,
    /// Definitely not held: too many wait already.
    Busy,
    /// Not known, or granted too late and given back: the caller must not rely on
    /// holding it. A grant that nobody saw ends with its lease.
    Indeterminate,
    /// Definitely not held: the server refused the request.
    Rejected(ErrorCode),
}

/// How a release ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The lock was held by that token, and is not any more.
    Released,
    /// That token does not hold it: expired, released, or never granted.
    NotHeld,
    /// Not known; it ends with its lease at the latest.
    Indeterminate,
    /// The server refused the request.
    Rejected(ErrorCode),
}

/// How an extend ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtendOutcome {
    /// The ticket's lease ends at the later of before and the new end.
    Extended,
    /// The ticket is lost: its token does not hold the lock any more.
    NotHeld,
    /// Not known: the ticket's lease ends as before.
    Indeterminate,
    /// The server refused the request: the ticket's lease ends as before.
    Rejected(ErrorCode),
}

/// A key's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// Whether anybody holds it.
    pub held: bool,
    /// Milliseconds until the lease ends, rounded up; `u32::MAX` if more.
    pub remaining_ms: u32,
    /// How many acquires are queued.
    pub waiters: u32,
}

/// Why an operation did not take place: nothing of its request was sent. (For a
/// query, which changes nothing: or its reply was lost.)
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No connection, or it failed before the request.
    #[error("{server}: {source}")]
    Unreachable {
        /// Which server.
        server: ServerAddress,
        /// Why.
        source: io::Error,
    },
    /// The server let this client not in.
    #[error("{server}: refused: {}", explain(*.code))]
    Refused {
        /// Which server.
        server: ServerAddress,
        /// Why.
        code: ErrorCode,
    },
    /// The session was closed by an earlier failure.
    #[error("the session is closed")]
    Closed,
    /// The session belongs to the process that this one was forked from.
    #[error("a session cannot be used in a forked process")]
    Forked,
    /// The key is none for this server.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The times are none for any server.
    #[error(transparent)]
    Time(#[from] TimeError),
}

/// One session with a server.
#[derive(Debug)]
pub struct Connection {
    server: ServerAddress,
    /// `None` once a failure has closed it.
    session: Option<Session>,
    max_key_bytes: usize,
    process: u32,
}

/// How a request ended that is not an acquire.
enum Answer<T> {
    Understood(T),
    Rejected(ErrorCode),
    /// No reply, or one that makes no sense: the session has been closed.
    Lost(io::Error),
}

impl Connection {
    /// Connects and says hello within `timeout`.
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] or [`ClientError::Refused`].
    pub fn connect(
        server: &ServerAddress,
        credential: Option<&Credential>,
        timeout: Duration,
    ) -> Result<Connection, ClientError> {
        let timeout_ms = attempt::whole_ms(timeout)?;
        let deadline = clock::now().plus_millis(u64::from(timeout_ms));
        Connection::connect_until(server, credential, deadline)
    }

    /// Connects and says hello until `deadline`, that of an [`Attempt`].
    ///
    /// # Errors
    /// [`ClientError::Unreachable`] or [`ClientError::Refused`].
    pub fn connect_until(
        server: &ServerAddress,
        credential: Option<&Credential>,
        deadline: Time,
    ) -> Result<Connection, ClientError> {
        let session =
            Session::connect(server, deadline).map_err(|source| unreachable(server, source))?;
        let mut connection = Connection {
            server: server.clone(),
            session: Some(session),
            max_key_bytes: 0,
            process: std::process::id(),
        };
        let welcome = connection.hello(credential, deadline)?;
        connection.max_key_bytes = welcome.max_key_bytes.into();
        Ok(connection)
    }

    /// Waits at most `wait` for the lock, to hold it for `lease`; `wait` 0 is an
    /// immediate attempt.
    ///
    /// # Errors
    /// Nothing was sent: the session had failed, or key or times are impossible.
    pub fn acquire(
        &mut self,
        key: Key,
        wait: Duration,
        lease: Duration,
    ) -> Result<Outcome, ClientError> {
        self.run(&Attempt::new(key, wait, lease)?)
    }

    /// Runs an attempt that was started before, so that connecting is part of its wait.
    ///
    /// # Errors
    /// Nothing was sent: the attempt may run on another connection.
    pub fn run(&mut self, attempt: &Attempt) -> Result<Outcome, ClientError> {
        let session = self.usable_session(attempt.key())?;
        let sent_at = match session.send(attempt.deadline(), |now| attempt.request(now)) {
            Ok(Some(sent_at)) => sent_at,
            Ok(None) => return Ok(Outcome::TimedOut),
            Err(Fault::Unsent(error)) => return Err(self.fail(error)),
            Err(Fault::Unknown(error)) => return Ok(self.indeterminate(&error)),
        };
        let mut in_flight = attempt.handle_sent(sent_at);
        loop {
            match session.read_reply(attempt.owner(), in_flight.poll_timeout()) {
                Ok(Some(reply)) => return Ok(self.conclude(&in_flight, reply)),
                Ok(None) => {}
                Err(error) => return Ok(self.indeterminate(&error)),
            }
            match in_flight.handle_timeout(fresh_owner()) {
                Overdue::GiveUp => return Ok(self.indeterminate(&no_reply())),
                Overdue::Cancel(cancel) => {
                    // If it cannot be sent, the session is broken, which reading
                    // tells after whatever has arrived before.
                    let unsent = session.send_abandoned(&cancel, in_flight.poll_timeout());
                    log_failure("cancel", unsent);
                }
            }
        }
    }

    /// Gives the grant with this token back.
    ///
    /// # Errors
    /// Nothing was sent.
    pub fn release(&mut self, key: &Key, token: u64) -> Result<ReleaseOutcome, ClientError> {
        self.usable_session(key)?;
        let request = Request::Release {
            owner: fresh_owner(),
            token,
            key: key.as_bytes(),
        };
        let answer = self.exchange(&request, request_deadline(), |_, reply| match reply {
            Reply::Released { .. } => Some(ReleaseOutcome::Released),
            Reply::NotHeld { .. } => Some(ReleaseOutcome::NotHeld),
            _ => None,
        })?;
        Ok(match answer {
            Answer::Understood(outcome) => outcome,
            Answer::Rejected(code) => ReleaseOutcome::Rejected(code),
            Answer::Lost(_) => ReleaseOutcome::Indeterminate,
        })
    }

    /// Lets the ticket's lease end `lease` from now, if that is later than it ends
    /// anyway. Waits for the answer no longer than the ticket is valid.
    ///
    /// # Errors
    /// Nothing was sent; the ticket is as before.
    pub fn extend(
        &mut self,
        ticket: &mut Ticket,
        lease: Duration,
    ) -> Result<ExtendOutcome, ClientError> {
        let lease_ms = attempt::lease_ms(lease)?;
        self.usable_session(ticket.key())?;
        let until = match ticket.is_valid() {
            true => ticket.lease_ends().min(request_deadline()),
            false => request_deadline(),
        };
        let request = Request::Extend {
            owner: fresh_owner(),
            lease_ms,
            token: ticket.token(),
            key: ticket.key().as_bytes(),
        };
        let answer = self.exchange(&request, until, |sent_at, reply| match reply {
            Reply::Extended { .. } => Some(Some(sent_at)),
            Reply::NotHeld { .. } => Some(None),
            _ => None,
        })?;
        Ok(match answer {
            Answer::Understood(Some(sent_at)) => {
                ticket.handle_extended(sent_at, lease_ms);
                ExtendOutcome::Extended
            }
            Answer::Understood(None) => ExtendOutcome::NotHeld,
            Answer::Rejected(code) => ExtendOutcome::Rejected(code),
            Answer::Lost(_) => ExtendOutcome::Indeterminate,
        })
    }

    /// Asks for the key's state.
    ///
    /// # Errors
    /// There is no answer, or the server refused to give one.
    pub fn query(&mut self, key: &Key) -> Result<KeyState, ClientError> {
        self.usable_session(key)?;
        let request = Request::Query {
            owner: fresh_owner(),
            key: key.as_bytes(),
        };
        let answer = self.exchange(&request, request_deadline(), |_, reply| match *reply {
            Reply::State {
                held,
                remaining_ms,
                waiters,
                ..
            } => Some(KeyState {
                held,
                remaining_ms,
                waiters,
            }),
            _ => None,
        })?;
        self.needed(answer)
    }

    /// Ends the session in order, within a second: the server first takes all that
    /// was sent. Dropping a connection closes it at once.
    pub fn close(mut self) {
        // A forked child's copy must not end the parent's session.
        if self.process != std::process::id() {
            return;
        }
        if let Some(session) = self.session.take() {
            let closed = session.close(clock::now().plus_millis(REPLY_GRACE_MS));
            log_failure("closing", closed);
        }
    }

    fn hello(
        &mut self,
        credential: Option<&Credential>,
        deadline: Time,
    ) -> Result<Welcome, ClientError> {
        let request = Request::Hello {
            owner: fresh_owner(),
            version: protocol::VERSION,
            flags: 0,
            wanted_loop: protocol::ANY_LOOP,
            credential: credential.map_or(&b""[..], Credential::as_bytes),
        };
        let answer = self.exchange(&request, deadline, |_, reply| match reply {
            Reply::Welcome(welcome) if welcome.version == protocol::VERSION => Some(*welcome),
            _ => None,
        })?;
        self.needed(answer)
    }

    fn usable_session(&mut self, key: &Key) -> Result<&mut Session, ClientError> {
        if self.process != std::process::id() {
            return Err(ClientError::Forked);
        }
        key.check_length(self.max_key_bytes)?;
        self.session.as_mut().ok_or(ClientError::Closed)
    }

    /// Sends a request once and reads its reply, which `understand` turns, with the
    /// time of sending, into what it means: `None` if it answers no such request.
    fn exchange<T>(
        &mut self,
        request: &Request<'_>,
        until: Time,
        understand: impl FnOnce(Time, &Reply) -> Option<T>,
    ) -> Result<Answer<T>, ClientError> {
        let session = self.session.as_mut().ok_or(ClientError::Closed)?;
        let sent = session.send(until, |now| (now < until).then_some(*request));
        let sent_at = match sent {
            Ok(Some(sent_at)) => sent_at,
            Ok(None) => return Err(self.fail(no_reply())),
            Err(Fault::Unsent(error)) => return Err(self.fail(error)),
            Err(Fault::Unknown(error)) => return Ok(self.lost(error)),
        };
        let reply = match session.read_reply(request.owner(), until) {
            Ok(Some(reply)) => reply,
            Ok(None) => return Ok(self.lost(no_reply())),
            Err(error) => return Ok(self.lost(error)),
        };
        if let Reply::Error { code, .. } = reply {
            return Ok(Answer::Rejected(self.rejected(code)));
        }
        Ok(match understand(sent_at, &reply) {
            Some(meaning) => Answer::Understood(meaning),
            None => self.lost(nonsense(&reply)),
        })
    }

    /// What an acquire's reply means for its caller.
    fn conclude(&mut self, in_flight: &InFlight<'_>, reply: Reply) -> Outcome {
        match in_flight.handle_reply(clock::now(), reply) {
            Verdict::Done(Outcome::Rejected(code)) => Outcome::Rejected(self.rejected(code)),
            Verdict::Done(outcome) => outcome,
            Verdict::TooLate(token) => {
                self.compensate(in_flight.key(), token);
                Outcome::Indeterminate
            }
            Verdict::Nonsense => self.indeterminate(&nonsense(&reply)),
        }
    }

    /// Gives a grant back that came too late. The session stays open for others.
    fn compensate(&mut self, key: &Key, token: u64) {
        let request = Request::Release {
            owner: fresh_owner(),
            token,
            key: key.as_bytes(),
        };
        let until = clock::now().plus_millis(REPLY_GRACE_MS);
        if let Some(session) = &mut self.session
            && let Err(error) = session.send_abandoned(&request, until)
        {
            self.fail(error);
        }
    }

    fn indeterminate(&mut self, error: &io::Error) -> Outcome {
        log::debug!("{}: indeterminate: {error}", self.server);
        self.session = None;
        Outcome::Indeterminate
    }

    fn lost<T>(&mut self, error: io::Error) -> Answer<T> {
        log::debug!("{}: reply lost: {error}", self.server);
        self.session = None;
        Answer::Lost(error)
    }

    /// Closes the session because of `error`.
    fn fail(&mut self, error: io::Error) -> ClientError {
        self.session = None;
        unreachable(&self.server, error)
    }

    fn rejected(&mut self, code: ErrorCode) -> ErrorCode {
        if code.closes_session() {
            self.session = None;
        }
        code
    }

    /// An answer without which there is no result.
    fn needed<T>(&self, answer: Answer<T>) -> Result<T, ClientError> {
        match answer {
            Answer::Understood(meaning) => Ok(meaning),
            Answer::Rejected(code) => Err(ClientError::Refused {
                server: self.server.clone(),
                code,
            }),
            Answer::Lost(error) => Err(unreachable(&self.server, error)),
        }
    }
}

/// What an error code says to a person.
pub const fn explain(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::UnknownOp => "the server does not know this request",
        ErrorCode::BadFrame => "the key or credential is too long for the server",
        ErrorCode::BadKey => "the server takes no such key",
        ErrorCode::BadTime => "the lease or wait is longer than the server allows",
        ErrorCode::Unauthenticated => "a valid credential is needed",
        ErrorCode::Overloaded => "the server's table of keys or memory is full",
        ErrorCode::Unsupported => "the server does not speak this version of the protocol",
        ErrorCode::ShuttingDown => "the server is shutting down",
        ErrorCode::TooManyQueued => "too many acquires of this session are queued",
    }
}

fn unreachable(server: &ServerAddress, source: io::Error) -> ClientError {
    ClientError::Unreachable {
        server: server.clone(),
        source,
    }
}

fn request_deadline() -> Time {
    clock::now().plus_millis(REQUEST_DEADLINE_MS)
}

fn log_failure(what: &str, result: io::Result<()>) {
    if let Err(error) = result {
        log::debug!("{what}: {error}");
    }
}

/// A random owner: never 0, and no other request's.
///
/// # Panics
/// If the kernel gives no random bytes.
fn fresh_owner() -> u64 {
    loop {
        let owner = getrandom::u64().expect("the kernel gives random bytes");
        if owner != 0 {
            return owner;
        }
    }
}
