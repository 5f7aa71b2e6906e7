//! A blocking client of the JackrabbitDLM protocol: one connection for each request.
//!
//! ```no_run
//! use leasehold::client::dlm::{GetOutcome, LockOutcome, Locker};
//! use std::time::Duration;
//!
//! let seconds = Duration::from_secs;
//! let gate = Locker::builder("myResource").id("worker-gate").retry(5).build();
//! let data = Locker::builder("myResource").id("worker-data").retry(5).build();
//!
//! if let LockOutcome::Locked { .. } = gate.lock(seconds(10)) {
//!     if let GetOutcome::Done(count) = data.get() {
//!         let count: u64 = count.parse()?;
//!         let _ = data.put(seconds(300), &(count + 1).to_string());
//!     }
//!     let _ = gate.unlock();
//! }
//! # Ok::<(), std::num::ParseIntError>(())
//! ```
//!
//! | Python's `Locker` | here |
//! |---|---|
//! | `Lock` | [`Locker::lock`], or [`Locker::guard`] to unlock on drop |
//! | `IsLocked` | [`Locker::try_lock`] |
//! | `IsLocked(acquire=False)` | [`Locker::test_lock`] |
//! | `Unlock` | [`Locker::unlock`] |
//! | `Put`, `Get`, `Erase` | [`Locker::put`], [`Locker::get`], [`Locker::erase`] |
//! | `Version`, `IsDLM` | [`Locker::version`], [`Locker::is_dlm`] |
//!
//! A request without an answer is sent again on a new connection: for one ID, every
//! one of them may be done twice. What no client of this protocol can prevent: an
//! unlock that is delayed on its way frees a newer lock of the same ID. A lock whose
//! answer was lost ends with its time.

use super::ServerAddress;
use super::socket::{Received, Socket};
use crate::clock::{self, Time};
use crate::dlm::{
    self, BadReply, Claim, Decoder, DlmReply, DlmRequest, Operation, Progress, Status,
};
use crate::limits::DLM_PORT;
use std::fmt;
use std::io;
use std::time::Duration;

/// One ID's view of one name's lock and data. It may be used by many threads at
/// once; to the server they are one holder.
pub struct Locker {
    id: String,
    file_name: String,
    claim: Option<Claim<'static>>,
    server: ServerAddress,
    retry: u32,
    retry_sleep: Duration,
    timeout: Duration,
    codec: Box<dyn DataCodec>,
}

/// Settings of a [`Locker`], each with a default.
#[must_use]
pub struct LockerBuilder {
    id: Option<String>,
    file_name: String,
    claim: Option<Claim<'static>>,
    host: String,
    port: u16,
    retry: u32,
    retry_sleep: Duration,
    timeout: Duration,
    codec: Box<dyn DataCodec>,
}

/// How data is written in `DataStore`. All who share data use the same.
pub trait DataCodec: Send + Sync {
    /// What is stored for `data`: printable text.
    fn encode(&self, data: &str) -> String;

    /// The data that is stored as `stored`; `None` where it stands for none.
    fn decode(&self, stored: &str) -> Option<String>;
}

/// The default: the code of the wire, as Python's `Locker` stores data too.
#[derive(Clone, Copy, Debug, Default)]
pub struct WireCodec;

/// What came of a lock.
#[derive(Debug)]
#[must_use]
pub enum LockOutcome {
    /// It is held.
    Locked {
        /// When the time that was asked for is over, counted from before the request was sent.
        until: Time,
    },
    /// Another holds it.
    NotOwner,
    /// Not known to be held.
    Failed(Failure),
}

/// What a look at the lock found.
#[derive(Debug)]
#[must_use]
pub enum TestOutcome {
    /// This ID holds it.
    Locked,
    /// Nobody holds it.
    Unlocked,
    /// Another holds it.
    NotOwner,
    /// No answer.
    Failed(Failure),
}

/// What came of an unlock.
#[derive(Debug)]
#[must_use]
pub enum UnlockOutcome {
    /// This ID does not hold it any more.
    Unlocked,
    /// Another holds it.
    NotOwner,
    /// No answer.
    Failed(Failure),
}

/// What came of a put.
#[derive(Debug)]
#[must_use]
pub enum PutOutcome {
    /// The data is stored.
    Done,
    /// The data of that name is another's.
    NotOwner,
    /// Not known to be stored.
    Failed(Failure),
}

/// What came of a get.
#[derive(Debug)]
#[must_use]
pub enum GetOutcome {
    /// The data.
    Done(String),
    /// This ID holds the lock, and there is no data.
    NoData,
    /// There is no data.
    NotFound,
    /// The data of that name is another's.
    NotOwner,
    /// No answer.
    Failed(Failure),
}

/// What came of an erase.
#[derive(Debug)]
#[must_use]
pub enum EraseOutcome {
    /// The data is gone.
    Done,
    /// There was none.
    NotFound,
    /// The data of that name is another's.
    NotOwner,
    /// Not known to be gone.
    Failed(Failure),
}

/// Why a request has no usable answer.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// No connection.
    #[error("{server}: {source}")]
    Unreachable {
        /// Which server.
        server: ServerAddress,
        /// Why.
        source: io::Error,
    },
    /// The connection ended, or time was over, before the answer: the request may
    /// have been carried out.
    #[error("no answer: {0}")]
    NoAnswer(#[source] io::Error),
    /// The answer cannot be understood.
    #[error(transparent)]
    BadReply(#[from] BadReply),
    /// The lock was granted, but its time was over when that arrived.
    #[error("the lock's time was over before its answer arrived")]
    TooLate,
    /// What is stored is not in this codec.
    #[error("the stored data is not in this locker's code")]
    BadData,
    /// The server refused.
    #[error("the server answered {}", .0.as_str())]
    Answered(Status),
}

/// A lock that is released when this is dropped, unless its time is over.
#[derive(Debug)]
#[must_use]
pub struct LockGuard<'l> {
    locker: &'l Locker,
    until: Time,
    released: bool,
}

/// Why there is no [`LockGuard`].
#[derive(Debug, thiserror::Error)]
pub enum NotLocked {
    /// Another holds the lock.
    #[error("another holds the lock")]
    NotOwner,
    /// It is not known to be held.
    #[error(transparent)]
    Failed(#[from] Failure),
}

/// Most bytes of an answer that are taken: what the longest stored text comes to,
/// each of its characters escaped.
const MAX_ANSWER_BYTES: usize = 128 * 1024 * 1024;

/// Bytes of randomness in a generated ID.
const ID_BYTES: usize = 32;

/// What the server said, and when it was asked.
struct Answer {
    status: Status,
    id: Option<String>,
    data_store: Option<String>,
    sent_at: Time,
}

impl Locker {
    /// A locker of `file_name` with every setting at its default: a server on this
    /// machine, a random ID.
    ///
    /// # Panics
    /// If the kernel gives no random bytes.
    pub fn new(file_name: &str) -> Locker {
        Locker::builder(file_name).build()
    }

    /// The settings of a locker of `file_name`.
    pub fn builder(file_name: &str) -> LockerBuilder {
        LockerBuilder {
            id: None,
            file_name: file_name.into(),
            claim: None,
            host: "127.0.0.1".into(),
            port: DLM_PORT,
            retry: 7,
            retry_sleep: Duration::from_secs(1),
            timeout: Duration::from_secs(300),
            codec: Box::new(WireCodec),
        }
    }

    /// The ID that requests carry.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Takes or renews the lock for `ttl`, rounded up to a millisecond. Tries again
    /// while another holds it, or where no answer comes.
    pub fn lock(&self, ttl: Duration) -> LockOutcome {
        let ttl_ms = whole_ms(ttl);
        lock_outcome(
            ttl_ms,
            self.ask(&Operation::Lock { ttl_ms }, |answer| {
                answer.status == Status::NotOwner
            }),
        )
    }

    /// Like [`Locker::lock`], once.
    pub fn try_lock(&self, ttl: Duration) -> LockOutcome {
        let ttl_ms = whole_ms(ttl);
        lock_outcome(ttl_ms, self.ask_once(&Operation::Lock { ttl_ms }))
    }

    /// Like [`Locker::lock`]; the lock is released when the guard is dropped, which
    /// takes as long as an unlock.
    ///
    /// # Errors
    /// See [`NotLocked`].
    pub fn guard(&self, ttl: Duration) -> Result<LockGuard<'_>, NotLocked> {
        match self.lock(ttl) {
            LockOutcome::Locked { until } => Ok(LockGuard {
                locker: self,
                until,
                released: false,
            }),
            LockOutcome::NotOwner => Err(NotLocked::NotOwner),
            LockOutcome::Failed(failure) => Err(failure.into()),
        }
    }

    /// Looks who holds the lock, once. Changes nothing.
    pub fn test_lock(&self) -> TestOutcome {
        match self.ask_once(&Operation::TestLock) {
            Ok(answer) => match answer.status {
                Status::Locked => TestOutcome::Locked,
                Status::Unlocked => TestOutcome::Unlocked,
                Status::NotOwner => TestOutcome::NotOwner,
                other => TestOutcome::Failed(Failure::Answered(other)),
            },
            Err(failure) => TestOutcome::Failed(failure),
        }
    }

    /// Releases the lock. Tries again where no answer comes.
    pub fn unlock(&self) -> UnlockOutcome {
        match self.ask(&Operation::Unlock, |_| false) {
            Ok(answer) => match answer.status {
                Status::Unlocked => UnlockOutcome::Unlocked,
                Status::NotOwner => UnlockOutcome::NotOwner,
                other => UnlockOutcome::Failed(Failure::Answered(other)),
            },
            Err(failure) => UnlockOutcome::Failed(failure),
        }
    }

    /// Stores `data` for `ttl`, rounded up to a millisecond. Tries again where no
    /// answer comes.
    pub fn put(&self, ttl: Duration, data: &str) -> PutOutcome {
        let operation = Operation::Put {
            ttl_ms: whole_ms(ttl),
            data_store: self.codec.encode(data).into(),
        };
        match self.ask(&operation, |_| false) {
            Ok(answer) => match answer.status {
                Status::Done => PutOutcome::Done,
                Status::NotOwner => PutOutcome::NotOwner,
                other => PutOutcome::Failed(Failure::Answered(other)),
            },
            Err(failure) => PutOutcome::Failed(failure),
        }
    }

    /// Reads the data. Tries again where no answer comes.
    pub fn get(&self) -> GetOutcome {
        match self.ask(&Operation::Get, |_| false) {
            Ok(answer) => match answer.status {
                Status::Done => self.stored_data(answer.data_store),
                Status::NoData => GetOutcome::NoData,
                Status::NotFound => GetOutcome::NotFound,
                Status::NotOwner => GetOutcome::NotOwner,
                other => GetOutcome::Failed(Failure::Answered(other)),
            },
            Err(failure) => GetOutcome::Failed(failure),
        }
    }

    /// Erases the data. Tries again where no answer comes.
    pub fn erase(&self) -> EraseOutcome {
        match self.ask(&Operation::Erase, |_| false) {
            Ok(answer) => match answer.status {
                Status::Done => EraseOutcome::Done,
                Status::NotFound => EraseOutcome::NotFound,
                Status::NotOwner => EraseOutcome::NotOwner,
                other => EraseOutcome::Failed(Failure::Answered(other)),
            },
            Err(failure) => EraseOutcome::Failed(failure),
        }
    }

    /// The server's name and version. Tries again where no answer comes.
    ///
    /// # Errors
    /// No answer, or not that of such a server.
    pub fn version(&self) -> Result<String, Failure> {
        let answer = self.ask(&Operation::Version, |_| false)?;
        match (answer.status, answer.id) {
            (Status::Version, Some(version)) => Ok(version),
            (Status::Version, None) => Err(BadReply.into()),
            (other, _) => Err(Failure::Answered(other)),
        }
    }

    /// Whether a server of this protocol answers.
    pub fn is_dlm(&self) -> bool {
        self.version()
            .is_ok_and(|version| version.contains("JackrabbitDLM"))
    }

    fn stored_data(&self, stored: Option<String>) -> GetOutcome {
        let Some(stored) = stored else {
            return GetOutcome::Failed(BadReply.into());
        };
        match self.codec.decode(&stored) {
            Some(data) => GetOutcome::Done(data),
            None => GetOutcome::Failed(Failure::BadData),
        }
    }

    /// Asks until there is an answer that `again` does not hold for, or all
    /// retries are used up; sleeps between two attempts only.
    fn ask(
        &self,
        operation: &Operation<'_>,
        again: impl Fn(&Answer) -> bool,
    ) -> Result<Answer, Failure> {
        let mut retries = 0..self.retry;
        loop {
            let answer = self.ask_once(operation);
            let is_final = answer.as_ref().is_ok_and(|answer| !again(answer));
            if is_final || retries.next().is_none() {
                return answer;
            }
            std::thread::sleep(self.retry_sleep);
        }
    }

    fn ask_once(&self, operation: &Operation<'_>) -> Result<Answer, Failure> {
        let mut line = Vec::new();
        DlmRequest {
            id: self.id.as_str().into(),
            file_name: self.file_name.as_str().into(),
            claim: self.claim.clone(),
            operation: operation.clone(),
        }
        .encode(&mut line);
        let deadline = clock::now().plus_millis(whole_ms(self.timeout));
        let socket =
            Socket::connect(&self.server, deadline).map_err(|source| Failure::Unreachable {
                server: self.server.clone(),
                source,
            })?;
        let sent_at = clock::now();
        let decoder = exchange(&socket, &line, deadline).map_err(Failure::NoAnswer)?;
        let reply = DlmReply::decode(decoder.text())?;
        let answer = Answer {
            status: reply.status,
            id: reply.id.map(Into::into),
            data_store: reply.data_store.map(Into::into),
            sent_at,
        };
        match operation {
            Operation::Lock { ttl_ms } if answer.grants_too_late(*ttl_ms) => Err(Failure::TooLate),
            _ => Ok(answer),
        }
    }
}

impl LockerBuilder {
    /// The ID; a random one by default.
    pub fn id(mut self, id: &str) -> LockerBuilder {
        self.id = Some(id.into());
        self
    }

    /// The server's host name or IP address; 127.0.0.1 by default.
    pub fn host(mut self, host: &str) -> LockerBuilder {
        self.host = host.into();
        self
    }

    /// The server's port; [`DLM_PORT`] by default.
    pub fn port(mut self, port: u16) -> LockerBuilder {
        self.port = port;
        self
    }

    /// How often a request is tried again; 7 times by default.
    pub fn retry(mut self, retry: u32) -> LockerBuilder {
        self.retry = retry;
        self
    }

    /// The sleep before a request is tried again; a second by default.
    pub fn retry_sleep(mut self, retry_sleep: Duration) -> LockerBuilder {
        self.retry_sleep = retry_sleep;
        self
    }

    /// How long one attempt may take, from connecting to the answer's end; 300
    /// seconds by default. Resolving a host name is not counted.
    pub fn timeout(mut self, timeout: Duration) -> LockerBuilder {
        self.timeout = timeout;
        self
    }

    /// The name and the secret of an identity that the server knows.
    pub fn identity(mut self, name: &str, identity: &str) -> LockerBuilder {
        self.claim = Some(Claim {
            name: name.to_owned().into(),
            identity: identity.to_owned().into(),
        });
        self
    }

    /// How data is stored; [`WireCodec`] by default.
    pub fn codec(mut self, codec: impl DataCodec + 'static) -> LockerBuilder {
        self.codec = Box::new(codec);
        self
    }

    /// The locker.
    ///
    /// # Panics
    /// If no ID was given and the kernel gives no random bytes.
    pub fn build(self) -> Locker {
        let is_bare_ipv6 = self.host.contains(':') && !self.host.starts_with('[');
        let server = match is_bare_ipv6 {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        };
        Locker {
            id: self.id.unwrap_or_else(random_id),
            file_name: self.file_name,
            claim: self.claim,
            server: ServerAddress::Tcp(server),
            retry: self.retry,
            retry_sleep: self.retry_sleep,
            timeout: self.timeout,
            codec: self.codec,
        }
    }
}

impl LockGuard<'_> {
    /// When the lock's time is over.
    pub fn until(&self) -> Time {
        self.until
    }

    /// Whether the lock's time is not over yet.
    pub fn is_valid(&self) -> bool {
        clock::now() < self.until
    }

    /// Renews the lock for `ttl` from now, if that ends later than it ends anyway.
    pub fn renew(&mut self, ttl: Duration) -> LockOutcome {
        let outcome = self.locker.lock(ttl);
        if let LockOutcome::Locked { until } = outcome {
            self.until = self.until.max(until);
        }
        outcome
    }

    /// Releases the lock and tells what came of it.
    pub fn unlock(mut self) -> UnlockOutcome {
        self.released = true;
        self.locker.unlock()
    }
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        // A lock that is over may be a newer one of this ID by now.
        if !self.released
            && self.is_valid()
            && let UnlockOutcome::Failed(failure) = self.locker.unlock()
        {
            log::debug!("{}: unlock: {failure}", self.locker.server);
        }
    }
}

impl DataCodec for WireCodec {
    fn encode(&self, data: &str) -> String {
        let mut coded = Vec::new();
        dlm::encode(data.as_bytes(), &mut coded);
        // The code's letters are ASCII, each a character of its own.
        coded.into_iter().map(char::from).collect()
    }

    fn decode(&self, stored: &str) -> Option<String> {
        String::from_utf8(dlm::decode(stored.as_bytes())?).ok()
    }
}

impl Answer {
    fn grants_too_late(&self, ttl_ms: u64) -> bool {
        self.status == Status::Locked && clock::now() >= self.sent_at.plus_millis(ttl_ms)
    }
}

impl fmt::Debug for Locker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Locker")
            .field("id", &self.id)
            .field("file_name", &self.file_name)
            .field("server", &self.server)
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for LockerBuilder {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("LockerBuilder")
            .field("id", &self.id)
            .field("file_name", &self.file_name)
            .field("host", &self.host)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

fn lock_outcome(ttl_ms: u64, answer: Result<Answer, Failure>) -> LockOutcome {
    match answer {
        Ok(answer) => match answer.status {
            Status::Locked => LockOutcome::Locked {
                until: answer.sent_at.plus_millis(ttl_ms),
            },
            Status::NotOwner => LockOutcome::NotOwner,
            other => LockOutcome::Failed(Failure::Answered(other)),
        },
        Err(failure) => LockOutcome::Failed(failure),
    }
}

/// Sends `line` and reads the answer's line until `deadline`. The answer may come,
/// and end the connection, while there still is something to send.
fn exchange(socket: &Socket, line: &[u8], deadline: Time) -> io::Result<Decoder> {
    let mut decoder = Decoder::new(MAX_ANSWER_BYTES);
    let mut received = Vec::new();
    let mut rest = line;
    let mut send_error = None;
    loop {
        if !rest.is_empty() {
            match socket.send(rest) {
                Ok(sent) => rest = &rest[sent..],
                Err(error) => {
                    rest = &[];
                    send_error = Some(error);
                }
            }
        }
        received.clear();
        let found = match socket.receive(&mut received) {
            Ok(Received::End) => return Err(send_error.unwrap_or_else(ended)),
            Ok(found) => found,
            Err(error) => return Err(send_error.unwrap_or(error)),
        };
        if decoder.push(&received) != Progress::Pending {
            return Ok(decoder);
        }
        if clock::now() >= deadline {
            return Err(io::ErrorKind::TimedOut.into());
        }
        match (found, rest) {
            (Received::Nothing, []) => socket.wait_readable(deadline)?,
            (Received::Nothing, _) => socket.wait_writable(deadline)?,
            _ => {}
        }
    }
}

fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server ended the connection",
    )
}

/// Rounded up; what does not fit is for ever.
fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

fn random_id() -> String {
    let mut random = [0; ID_BYTES];
    getrandom::fill(&mut random).expect("the kernel gives random bytes");
    random.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
