//! A first exchange with the server: is it there, is it what it should be, and what
//! does it say of itself.

use crate::net::{Address, Blocking};
use crate::plan::{Plan, Target};
use crate::target::{RELEASE_SCRIPT, hello};
use leasehold::dlm::{DlmReply, DlmRequest, Operation, Status, decode};
use leasehold::protocol::{ANY_LOOP, Reply, Request};
use std::borrow::Cow;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

/// What a server says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// Native: how many loops it has.
    pub(crate) loops: u16,
    /// Native: seed of the routing hash.
    pub(crate) routing_seed: u64,
    /// Native: longest key.
    pub(crate) max_key_bytes: usize,
    /// Native: longest lease.
    pub(crate) max_lease_ms: u32,
    /// Redis: hash of the release script.
    pub(crate) release_hash: Arc<str>,
}

const PATIENCE: Duration = Duration::from_secs(5);
const MAX_ANSWER_BYTES: usize = 64 * 1024;

/// Asks.
///
/// # Errors
/// One line: nobody is there, or somebody else.
pub(crate) fn probe(plan: &Plan) -> Result<Facts, String> {
    let server = &plan.server;
    let mut stream = server
        .connect_blocking(PATIENCE)
        .map_err(|error| format!("--server {server}: {error}"))?;
    let facts = match plan.target {
        Target::Native => native(&mut stream, &plan.credential),
        Target::Dlm => dlm(&mut stream),
        Target::Redis => redis(&mut stream),
        Target::Echo if plan.is_one_shot() => line(&mut stream),
        Target::Echo => echo(&mut stream),
    };
    facts.map_err(|what| named(server, plan.target, &what))
}

fn named(server: &Address, target: Target, what: &str) -> String {
    let speaks = match target {
        Target::Native => "a leasehold server",
        Target::Dlm => "a JackrabbitDLM server",
        Target::Redis => "a Redis server",
        Target::Echo => "the echo server",
    };
    format!("--server {server}: does not answer like {speaks}: {what}")
}

fn no_facts() -> Facts {
    Facts {
        loops: 1,
        routing_seed: 0,
        max_key_bytes: usize::MAX,
        max_lease_ms: u32::MAX,
        release_hash: "".into(),
    }
}

/// Reads until `complete` finds what it wants.
fn read_until<T>(
    stream: &mut Blocking,
    mut complete: impl FnMut(&[u8]) -> Result<Option<T>, String>,
) -> Result<T, String> {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    loop {
        if let Some(found) = complete(&received)? {
            return Ok(found);
        }
        if received.len() > MAX_ANSWER_BYTES {
            return Err("it says too much".into());
        }
        match stream.read(&mut chunk) {
            Ok(0) => return Err("it closed the connection".into()),
            Ok(count) => received.extend_from_slice(&chunk[..count]),
            Err(error) => return Err(in_words(&error)),
        }
    }
}

fn in_words(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "no answer within five seconds".into(),
        _ => error.to_string(),
    }
}

fn send(stream: &mut Blocking, bytes: &[u8]) -> Result<(), String> {
    stream.write_all(bytes).map_err(|error| in_words(&error))
}

fn native(stream: &mut Blocking, credential: &[u8]) -> Result<Facts, String> {
    send(stream, &hello(ANY_LOOP, credential))?;
    let reply = read_until(stream, |received| {
        let decoded = Reply::decode(received).map_err(|error| error.to_string())?;
        Ok(decoded.map(|(reply, _)| reply))
    })?;
    match reply {
        Reply::Welcome(welcome) => Ok(Facts {
            loops: welcome.loops.max(1),
            routing_seed: welcome.routing_seed,
            max_key_bytes: welcome.max_key_bytes.into(),
            max_lease_ms: welcome.max_lease_ms,
            ..no_facts()
        }),
        Reply::Error { code, .. } => Err(format!("it refused the session: {code:?}")),
        other => Err(format!("{other:?} to a Hello")),
    }
}

fn dlm(stream: &mut Blocking) -> Result<Facts, String> {
    let mut request = Vec::new();
    let version = DlmRequest {
        id: Cow::Borrowed("loadgen"),
        file_name: Cow::Borrowed("loadgen"),
        claim: None,
        operation: Operation::Version,
    };
    version.encode(&mut request);
    send(stream, &request)?;
    let line = read_until(stream, whole_line)?;
    let text = decode(line.trim_ascii()).ok_or("the answer is not in its code")?;
    let reply = DlmReply::decode(&text).map_err(|error| error.to_string())?;
    match reply.status {
        Status::Version => Ok(no_facts()),
        // Servers that let nobody in without an identity say this to Version too.
        Status::BadPayload => Ok(no_facts()),
        other => Err(format!("{other:?} to Version")),
    }
}

fn redis(stream: &mut Blocking) -> Result<Facts, String> {
    let length = RELEASE_SCRIPT.len();
    let load = format!("*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${length}\r\n{RELEASE_SCRIPT}\r\n");
    send(stream, load.as_bytes())?;
    const HASH_BYTES: usize = 40;
    let hash = read_until(stream, |received| {
        if let Some(line) = whole_line(received)? {
            if !line.starts_with(b"$40\r") {
                let line = String::from_utf8_lossy(line.trim_ascii()).into_owned();
                return Err(format!("{line:?} to SCRIPT LOAD"));
            }
            let hash = received.get(line.len()..line.len() + HASH_BYTES);
            return Ok(hash.map(<[u8]>::to_vec));
        }
        Ok(None)
    })?;
    let hash = String::from_utf8(hash).map_err(|error| error.to_string())?;
    Ok(Facts {
        release_hash: hash.into(),
        ..no_facts()
    })
}

fn echo(stream: &mut Blocking) -> Result<Facts, String> {
    let key = b"0123456789abcdef";
    let mut frames = Vec::new();
    let acquire = Request::Acquire {
        owner: 1,
        wait_ms: 0,
        lease_ms: 1_000,
        key,
    };
    acquire.encode(&mut frames);
    let release = Request::Release {
        owner: 2,
        token: 1,
        key,
    };
    release.encode(&mut frames);
    send(stream, &frames)?;
    const PAIR_BYTES: usize = 22 + 10;
    read_until(stream, |received| match received.len() {
        PAIR_BYTES if received[0] == b'A' && received[22] == b'R' => Ok(Some(no_facts())),
        0..PAIR_BYTES => Ok(None),
        _ => Err("other lengths than expected".into()),
    })
}

fn line(stream: &mut Blocking) -> Result<Facts, String> {
    send(stream, b"a line\n")?;
    read_until(stream, whole_line).map(|_| no_facts())
}

fn whole_line(received: &[u8]) -> Result<Option<Vec<u8>>, String> {
    let end = received.iter().position(|&byte| byte == b'\n');
    Ok(end.map(|end| received[..=end].to_vec()))
}
