//! One request, one answer: the 78-letter code and a connection that speaks it.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};

use crate::common::configuration::Configuration;
use crate::common::server::{HANG_GUARD, Server, serve_command};

const ALPHABET: &str =
    "1aA2bB3cC4dD5eE6fF7gG8hH9iI0jJ!kK@lL#mM$nN%oO^pP&qQ*rR(sS)tT/uU?vV=wW+xX;yY:zZ";

/// Every status of the reference. Clients ask again for ever when told another.
const STATUSES: [&str; 11] = [
    "Locked",
    "Unlocked",
    "Done",
    "NotOwner",
    "NotFound",
    "NoData",
    "BadPayload",
    "BadAction",
    "NO",
    "Corruption",
    "Version",
];

/// Starts a server that serves both protocols on free loopback ports.
pub fn start(configuration: Configuration, flags: &[&str]) -> Server {
    let mut command = serve_command();
    command
        .args(["--listen", "127.0.0.1:0", "--dlm-listen", "127.0.0.1:0"])
        .args(configuration.flags())
        .args(flags);
    Server::launch(command).unwrap_or_else(|ended| panic!("the server did not start: {ended:?}"))
}

fn dlm_address(server: &Server) -> &str {
    let mut words = server.ready_line().split(' ');
    words.find_map(|word| word.strip_prefix("dlm=")).unwrap()
}

/// The code of some bytes, without a newline.
pub fn encode(bytes: &[u8]) -> Vec<u8> {
    let letters = ALPHABET.as_bytes();
    let pair = |byte: &u8| {
        let byte = usize::from(*byte);
        [letters[byte / 78], letters[byte % 78]]
    };
    bytes.iter().flat_map(pair).collect()
}

/// What some code stands for.
///
/// # Panics
/// It is no code.
pub fn decode(code: &[u8]) -> Vec<u8> {
    assert!(code.len().is_multiple_of(2), "half a pair at the end");
    let position = |letter: u8| {
        let found = ALPHABET.bytes().position(|it| it == letter);
        found.unwrap_or_else(|| panic!("{letter:#04x} is no letter of the code"))
    };
    let byte = |pair: &[u8]| u8::try_from(position(pair[0]) * 78 + position(pair[1]));
    code.chunks(2)
        .map(|pair| byte(pair).expect("a pair stands for a byte"))
        .collect()
}

/// The line that asks for something.
pub fn line(request: &Value) -> Vec<u8> {
    [&encode(request.to_string().as_bytes())[..], b"\n"].concat()
}

/// A request with the four fields that every one has.
pub fn request(action: &str, id: &str, file_name: &str, expire: &str) -> Value {
    json!({"ID": id, "FileName": file_name, "Action": action, "Expire": expire})
}

pub fn lock(id: &str, file_name: &str, expire: &str) -> Value {
    request("Lock", id, file_name, expire)
}

pub fn unlock(id: &str, file_name: &str) -> Value {
    request("Unlock", id, file_name, "0")
}

pub fn test_lock(id: &str, file_name: &str) -> Value {
    request("TestLock", id, file_name, "0")
}

pub fn put(id: &str, file_name: &str, expire: &str, data: &str) -> Value {
    with(request("Put", id, file_name, expire), "DataStore", data)
}

pub fn get(id: &str, file_name: &str) -> Value {
    request("Get", id, file_name, "0")
}

pub fn erase(id: &str, file_name: &str) -> Value {
    request("Erase", id, file_name, "0")
}

/// The request with one field set.
pub fn with(mut request: Value, field: &str, value: impl Into<Value>) -> Value {
    request[field] = value.into();
    request
}

/// The request without one field.
pub fn without(mut request: Value, field: &str) -> Value {
    request.as_object_mut().unwrap().remove(field);
    request
}

/// An answer of that status alone.
pub fn bare(status: &str) -> Value {
    json!({"Status": status})
}

/// An answer of status and ID.
pub fn own(status: &str, id: &str) -> Value {
    json!({"Status": status, "ID": id})
}

/// The answer of a Get that found something.
pub fn data(id: &str, content: &str) -> Value {
    json!({"Status": "Done", "ID": id, "DataStore": content})
}

/// Asks on a connection of its own and returns the answer.
#[track_caller]
pub fn ask(server: &Server, request: &Value) -> Value {
    ask_line(server, &line(request))
}

/// Like [`ask`], with the request's line as it is sent.
#[track_caller]
pub fn ask_line(server: &Server, line: &[u8]) -> Value {
    let mut connection = Connection::open(server);
    connection.send(line);
    connection.answer()
}

/// Asks, and holds the answer against `expected`.
#[track_caller]
pub fn expect(server: &Server, request: &Value, expected: &Value) {
    assert_eq!(ask(server, request), *expected, "to {request}");
}

/// Asks again and again until the answer is as wanted.
#[track_caller]
pub fn await_answer(server: &Server, request: &Value, wanted: &Value) {
    let guard = Instant::now() + HANG_GUARD;
    loop {
        let answer = ask(server, request);
        if answer == *wanted {
            return;
        }
        assert!(Instant::now() < guard, "{request} stays at {answer}");
        std::thread::yield_now();
    }
}

/// One connection, and so one request.
#[derive(Debug)]
pub struct Connection {
    stream: TcpStream,
}

impl Connection {
    pub fn open(server: &Server) -> Connection {
        let stream = TcpStream::connect(dlm_address(server)).expect("the server accepts");
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(HANG_GUARD)).unwrap();
        stream.set_write_timeout(Some(HANG_GUARD)).unwrap();
        Connection { stream }
    }

    #[track_caller]
    pub fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("the server takes what is sent");
    }

    /// Sends, where the server may end the connection before all is sent.
    pub fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Ends this side in order.
    pub fn finish(&mut self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Ends the connection with a reset.
    pub fn reset(self) {
        rustix::net::connect_unspec(&self.stream).unwrap();
    }

    /// The answer: one line that decodes to an object with a known status; after it
    /// the server ends the connection in order.
    #[track_caller]
    pub fn answer(&mut self) -> Value {
        let received = self.read_to_end().expect("an end in order");
        read_answer(&received)
    }

    /// The answer, after which the connection may be reset: it still can be read.
    #[track_caller]
    pub fn answer_before_any_end(&mut self) -> Value {
        let mut received = Vec::new();
        while !received.ends_with(b"\n") {
            let mut buffer = [0; 4096];
            match self.stream.read(&mut buffer) {
                Ok(0) => panic!("the end, where an answer was due: {received:?}"),
                Ok(count) => received.extend_from_slice(&buffer[..count]),
                Err(error) => panic!("{error}, where an answer was due: {received:?}"),
            }
        }
        read_answer(&received)
    }

    /// The server ends the connection in order, without an answer.
    #[track_caller]
    pub fn expect_silent_end(&mut self) {
        let received = self.read_to_end().expect("an end in order");
        assert_eq!(received, b"", "where no answer was due");
    }

    /// Whether the server has said or ended anything.
    pub fn has_news(&self) -> bool {
        self.stream.set_nonblocking(true).unwrap();
        let peeked = self.stream.peek(&mut [0]);
        self.stream.set_nonblocking(false).unwrap();
        !matches!(peeked, Err(error) if error.kind() == ErrorKind::WouldBlock)
    }

    pub fn read_to_end(&mut self) -> io::Result<Vec<u8>> {
        let mut received = Vec::new();
        self.stream.read_to_end(&mut received)?;
        Ok(received)
    }
}

#[track_caller]
fn read_answer(received: &[u8]) -> Value {
    let (newline, code) = received.split_last().expect("an answer");
    assert_eq!(*newline, b'\n', "the answer's end");
    let answer: Value = serde_json::from_slice(&decode(code)).expect("JSON");
    let status = answer["Status"].as_str().expect("a status");
    assert!(STATUSES.contains(&status), "{status} is unknown to clients");
    answer
}

// Spelled out by hand: `{` is byte 123, 123 / 78 = 1 is `a` and 123 % 78 = 45 is `^`.
#[test]
fn the_code_is_the_documented_one() {
    assert_eq!(ALPHABET.len(), 78);
    assert_eq!(encode(b"{}"), *b"a^aP");
    assert_eq!(encode(&[0, 77, 78, 255]), *b"111Za128");
    let all: Vec<u8> = (0..=255).collect();
    assert_eq!(decode(&encode(&all)), all);
}
