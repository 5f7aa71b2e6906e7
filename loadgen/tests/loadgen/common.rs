//! The programs under test, and servers made up for a test.

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;

use leasehold::protocol::{Reply, Request, VERSION, Welcome};

/// The server's binary, beside this package's own: `cargo test --workspace` has built it,
/// a test of this package alone may have to.
fn server_binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    let find = || {
        let binary = PathBuf::from(env!("CARGO_BIN_EXE_loadgen")).with_file_name("leasehold");
        if !binary.exists() {
            let built = Command::new(env!("CARGO"))
                .args(["build", "--package", "leasehold", "--bin", "leasehold"])
                .args((!cfg!(debug_assertions)).then_some("--release"))
                .status();
            assert!(
                built.is_ok_and(|status| status.success()),
                "the server builds"
            );
        }
        binary
    };
    BINARY.get_or_init(find).clone()
}

/// A running server, killed when it goes out of scope.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    /// Its native address.
    pub(crate) address: String,
    /// Its JackrabbitDLM address.
    pub(crate) dlm: String,
}

impl Server {
    /// Starts a server of two loops on free ports, or on `listen`.
    pub(crate) fn start(listen: &str) -> Server {
        let mut command = Command::new(server_binary());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("LEASEHOLD_") {
                command.env_remove(name);
            }
        }
        command
            .args(["serve", "--listen", listen, "--dlm-listen", "127.0.0.1:0"])
            .args(["--shards", "2", "--io", "epoll"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut child = command.spawn().expect("the server's binary can be run");
        let mut line = String::new();
        let stdout = child.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("UTF-8");
        let word = |name: &str| {
            let found = line.split(' ').find_map(|word| word.strip_prefix(name));
            found
                .unwrap_or_else(|| panic!("no ready line: {line:?}"))
                .to_owned()
        };
        Server {
            address: word("listen="),
            dlm: word("dlm="),
            child,
        }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// `loadgen` with these words, and nothing in its environment that tells it more.
pub(crate) fn loadgen(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_loadgen"));
    command
        .env_remove("LEASEHOLD_CREDENTIAL")
        .args(arguments.split_whitespace());
    command
}

/// Runs it to its end.
pub(crate) fn output(arguments: &str) -> Output {
    loadgen(arguments).output().expect("the binary runs")
}

/// What a run that must succeed says as JSON.
#[track_caller]
pub(crate) fn measured(arguments: &str) -> Value {
    let output = output(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(0), "{arguments}: {errors}");
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

/// The one line on standard error of a run that could not measure.
#[track_caller]
pub(crate) fn refusal(arguments: &str) -> String {
    let output = output(arguments);
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{arguments}: {error}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "", "{arguments}");
    error
}

/// A native server that answers every request as `answer` says, over all connections,
/// for as long as the test runs. A Hello is welcomed.
pub(crate) fn fake_server(
    answer: impl Fn(Request<'_>) -> Vec<Reply> + Clone + Send + 'static,
) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let answer = answer.clone();
            std::thread::spawn(move || talk(stream, answer));
        }
    });
    address
}

/// Until the client goes away.
fn talk(mut stream: TcpStream, answer: impl Fn(Request<'_>) -> Vec<Reply>) {
    let mut received = Vec::new();
    let mut chunk = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut chunk) {
        received.extend_from_slice(&chunk[..count]);
        let mut replies = Vec::new();
        while let Some((request, length)) = Request::decode(&received, 1_024).expect("a frame") {
            let said = match request {
                Request::Hello { owner, .. } => vec![welcome(owner)],
                other => answer(other),
            };
            for reply in said {
                reply.encode(&mut replies);
            }
            received.drain(..length);
        }
        if stream.write_all(&replies).is_err() {
            return;
        }
    }
}

fn welcome(owner: u64) -> Reply {
    Reply::Welcome(Welcome {
        owner,
        version: VERSION,
        flags: 0,
        loops: 1,
        loop_index: 0,
        routing_seed: 0,
        max_key_bytes: 1_024,
        max_lease_ms: 255_000,
    })
}
