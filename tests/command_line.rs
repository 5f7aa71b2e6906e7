//! The binary as scripts see it: exit statuses, what goes to which stream, and
//! how flags, environment and defaults go together.

use leasehold::credentials::Credentials;
use leasehold::dlm::Identity;
use leasehold::protocol::{ErrorCode, Reply, Request, VERSION, Welcome};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::JoinHandle;

const MAX_KEY_BYTES: usize = 1024;

/// The binary with nothing in its environment that a test did not put there.
fn leasehold(arguments: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_leasehold"));
    command.env_clear().args(arguments.split_whitespace());
    command
}

fn output(command: &mut Command) -> Output {
    command.output().expect("the binary runs")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("UTF-8")
}

/// The one line on standard error of a command that failed with `status`.
fn error_line(command: &mut Command, status: i32) -> String {
    let output = output(command);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{command:?}: {error}");
    assert_eq!(text(&output.stdout), "", "{command:?}");
    assert_eq!(error.lines().count(), 1, "{command:?}: {error}");
    error.trim_end().to_string()
}

/// A peer that answers each request as `answer` says; no `answer`: it hangs up.
struct FakeServer {
    address: String,
    thread: JoinHandle<()>,
}

impl FakeServer {
    fn start(answer: impl Fn(Request<'_>) -> Option<Reply> + Send + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound").to_string();
        let thread = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut received = Vec::new();
            let mut chunk = [0; 1024];
            loop {
                while let Some((request, length)) =
                    Request::decode(&received, MAX_KEY_BYTES).expect("a frame")
                {
                    let Some(reply) = answer(request) else {
                        return;
                    };
                    let mut frame = Vec::new();
                    reply.encode(&mut frame);
                    stream.write_all(&frame).expect("the client reads");
                    received.drain(..length);
                }
                match stream.read(&mut chunk).expect("the client ends in order") {
                    0 => return,
                    length => received.extend_from_slice(&chunk[..length]),
                }
            }
        });
        FakeServer { address, thread }
    }

    /// One that lets everybody in and answers the other requests.
    fn welcoming(answer: impl Fn(Request<'_>) -> Option<Reply> + Send + 'static) -> FakeServer {
        FakeServer::start(move |request| match request {
            Request::Hello { owner, .. } => Some(welcome(owner)),
            other => answer(other),
        })
    }

    fn finish(self) {
        self.thread.join().expect("the server saw what it expected");
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
        max_key_bytes: MAX_KEY_BYTES as u16,
        max_lease_ms: 255_000,
    })
}

/// A file that is gone after the test.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str, content: &str) -> TemporaryFile {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::write(&path, content).expect("written");
        TemporaryFile(path)
    }

    fn path(&self) -> &str {
        self.0.to_str().expect("UTF-8")
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[test]
fn a_bad_flag_is_one_line_that_names_it_and_status_2() {
    for (arguments, name) in [
        ("serve --shards 1025", "--shards"),
        ("serve --shards 0", "--shards"),
        ("serve --io magic", "--io"),
        ("serve --pin 1,1", "--pin"),
        ("serve --max-lease 0", "--max-lease"),
        ("serve --max-keys=-1", "--max-keys"),
        ("serve --max-keys", "--max-keys"),
        ("serve --listen nonsense", "--listen"),
        ("serve --listen off --dlm-listen off", "--listen"),
        ("serve --output-hard-limit 64KiB", "--output-hard-limit"),
        ("serve --max-memory 1 --max-memory 2", "--max-memory"),
        ("serve --no-such-flag", "--no-such-flag"),
        ("serve stray", "stray"),
        ("lock", "<KEY>"),
        ("lock k --wait never", "--wait"),
        ("lock k --lease 0", "--lease"),
        ("lock k --server nowhere", "--server"),
        ("unlock k 0", "<TOKEN>"),
        ("unlock k 9223372036854775808", "<TOKEN>"),
        ("unlock k", "<TOKEN>"),
        ("credential a:b", "NAME"),
        ("identity a/b", "NAME"),
        ("identity ..", "NAME"),
        ("identity", "<NAME>"),
        ("identity n --max-size -1", "--max-size"),
        ("identity n --max-size 16KiB", "--max-size"),
        ("nonsense", "nonsense"),
    ] {
        let line = error_line(&mut leasehold(arguments), 2);
        assert!(line.starts_with("error: "), "{arguments}: {line}");
        assert!(line.contains(name), "{arguments}: {line}");
    }
    let mut newline = leasehold("lock");
    let line = error_line(newline.arg("a\nb"), 2);
    assert!(line.contains("<KEY>") && line.contains("newline"), "{line}");
}

/// Which settings took effect is read off an error that tells them: the limits'
/// relation to each other, which is checked last.
fn limits_in_force(flags: &str, environment: &[(&str, &str)]) -> String {
    let arguments = format!("serve {flags}");
    error_line(leasehold(&arguments).envs(environment.iter().copied()), 2)
}

#[test]
fn a_flag_wins_over_the_environment_and_that_over_the_default() {
    let hard = "LEASEHOLD_OUTPUT_HARD_LIMIT";
    let soft = "LEASEHOLD_OUTPUT_SOFT_LIMIT";
    for (flags, environment, expected) in [
        (
            "--output-hard-limit 1KiB",
            &[][..],
            ["--output-hard-limit: 1KiB", "--output-soft-limit 64KiB"],
        ),
        (
            "",
            &[(hard, "2KiB")],
            ["--output-hard-limit: 2KiB", "--output-soft-limit 64KiB"],
        ),
        (
            "--output-hard-limit 1KiB",
            &[(hard, "2KiB"), (soft, "3KiB")],
            ["--output-hard-limit: 1KiB", "--output-soft-limit 3KiB"],
        ),
        (
            "--output-hard-limit 1KiB --output-soft-limit 4KiB",
            &[(soft, "3KiB")],
            ["--output-hard-limit: 1KiB", "--output-soft-limit 4KiB"],
        ),
    ] {
        let line = limits_in_force(flags, environment);
        for part in expected {
            assert!(line.contains(part), "{flags} {environment:?}: {line}");
        }
    }
}

#[test]
fn bad_environment_is_refused_with_the_flag_s_name_unless_a_flag_replaces_it() {
    let line = limits_in_force("", &[("LEASEHOLD_SHARDS", "0")]);
    assert!(line.contains("--shards"), "{line}");
    let line = limits_in_force(
        "--shards 1 --output-hard-limit 1KiB",
        &[("LEASEHOLD_SHARDS", "0")],
    );
    assert!(line.contains("--output-hard-limit"), "{line}");
    let line = limits_in_force("", &[("LEASEHOLD_LISTEN", "127.0.0.1:1,nonsense")]);
    assert!(line.contains("--listen"), "{line}");
    let line = limits_in_force(
        "",
        &[("LEASEHOLD_LISTEN", "off"), ("LEASEHOLD_DLM_LISTEN", "off")],
    );
    assert!(line.contains("both off"), "{line}");
}

#[test]
fn credentials_that_cannot_be_read_are_status_1_with_file_and_line() {
    let line = error_line(
        &mut leasehold("serve --credentials-file /nonexistent/credentials"),
        1,
    );
    assert!(line.contains("/nonexistent/credentials"), "{line}");
    let file = TemporaryFile::new("bad-credentials", "# who\nworker not-a-hash\n");
    let line = error_line(leasehold("serve --credentials-file").arg(file.path()), 1);
    assert!(line.contains(&format!("{}:2: ", file.path())), "{line}");
}

#[test]
fn a_made_credential_is_one_that_the_server_takes() {
    let made = output(&mut leasehold("credential worker"));
    assert!(made.status.success());
    let lines: Vec<_> = text(&made.stdout).lines().collect();
    let [secret, line] = lines[..] else {
        panic!("not two lines: {lines:?}");
    };
    let file = TemporaryFile::new("made-credential", line);
    let credentials = Credentials::read(Path::new(file.path())).expect("a good line");
    assert!(credentials.check(format!("worker:{secret}").as_bytes()));
    assert!(
        !text(&made.stderr).contains(secret),
        "the secret is shown once"
    );
}

/// A directory that is gone after the test.
struct TemporaryDirectory(PathBuf);

impl TemporaryDirectory {
    fn new(name: &str) -> TemporaryDirectory {
        let path =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a name of its own");
        TemporaryDirectory(path)
    }

    fn file_names(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.0).expect("a directory");
        let name = |entry: std::io::Result<std::fs::DirEntry>| {
            let name = entry.expect("an entry").file_name();
            name.into_string().expect("UTF-8")
        };
        entries.map(name).collect()
    }
}

impl Drop for TemporaryDirectory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

#[test]
fn a_made_identity_is_a_private_file_that_the_server_takes() {
    let directory = TemporaryDirectory::new("identities");
    for (name, flags, rest) in [
        ("myWorker", "", "}"),
        ("large", " --max-size 500000", ", \"MaxSize\": 500000}"),
    ] {
        let mut command = leasehold(&format!("identity {name}{flags}"));
        let made = output(command.arg("--dlm-config-dir").arg(&directory.0));
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
        let path = directory.0.join(format!("{name}.cfg"));
        assert_eq!(text(&made.stdout), format!("{}\n", path.display()));
        let mode = std::fs::metadata(&path).expect("it exists").permissions();
        assert_eq!(mode.mode() & 0o7777, 0o600);

        let content = std::fs::read_to_string(&path).expect("it can be read");
        Identity::parse(content.as_bytes()).expect("an identity file");
        let (secret, end) = content
            .strip_prefix("{\"Identity\": \"")
            .and_then(|text| text.split_once('"'))
            .expect("as documented");
        assert_eq!(end.trim_end(), rest);
        assert!((1023..=2047).contains(&secret.chars().count()));
        let told = [text(&made.stdout), text(&made.stderr)].concat();
        assert!(!told.contains(secret), "the secret is in the file alone");
    }
    let mut names = directory.file_names();
    names.sort();
    assert_eq!(names, ["large.cfg", "myWorker.cfg"]);
}

#[test]
fn two_made_identities_have_different_secrets() {
    let directory = TemporaryDirectory::new("different-identities");
    let content = |name: &str| {
        let mut command = leasehold(&format!("identity {name}"));
        let made = output(command.env("LEASEHOLD_DLM_CONFIG_DIR", &directory.0));
        assert!(made.status.success(), "{}", text(&made.stderr));
        std::fs::read_to_string(directory.0.join(format!("{name}.cfg"))).expect("it exists")
    };
    assert_ne!(content("a")[..100], content("b")[..100]);
}

#[test]
fn an_identity_never_replaces_what_is_there() {
    let directory = TemporaryDirectory::new("existing-identities");
    let is = |name: &str| directory.0.join(name);
    std::fs::write(is("file.cfg"), "mine").expect("written");
    std::fs::create_dir(is("directory.cfg")).expect("created");
    std::os::unix::fs::symlink("elsewhere", is("dangling.cfg")).expect("created");
    for name in ["file", "directory", "dangling"] {
        let mut command = leasehold(&format!("identity {name}"));
        let line = error_line(command.arg("--dlm-config-dir").arg(&directory.0), 1);
        let path = is(&format!("{name}.cfg")).display().to_string();
        assert!(line.contains(&path) && line.contains("exists"), "{line}");
    }
    assert_eq!(std::fs::read(is("file.cfg")).expect("still there"), b"mine");
    assert_eq!(directory.file_names().len(), 3, "nothing is left behind");

    let missing = is("missing").display().to_string();
    let line = error_line(
        leasehold("identity n").args(["--dlm-config-dir", &missing]),
        1,
    );
    assert!(line.contains(&missing), "{line}");
}

#[test]
fn of_two_who_make_one_identity_one_does() {
    let directory = TemporaryDirectory::new("raced-identities");
    for round in 0..10 {
        let make = || {
            let mut command = leasehold(&format!("identity n{round}"));
            let made = output(command.arg("--dlm-config-dir").arg(&directory.0));
            made.status.success()
        };
        let successes = std::thread::scope(|scope| {
            let makers: Vec<_> = (0..3).map(|_| scope.spawn(make)).collect();
            let made = makers.into_iter().map(|it| it.join().expect("it ran"));
            made.filter(|success| *success).count()
        });
        assert_eq!(successes, 1);
        let content = std::fs::read(directory.0.join(format!("n{round}.cfg"))).expect("made");
        Identity::parse(&content).expect("whole");
    }
}

#[test]
fn lock_prints_the_token_alone() {
    let server = FakeServer::welcoming(|request| match request {
        Request::Acquire {
            owner,
            wait_ms: 1..=7_000,
            lease_ms: 8_000,
            key: b"invoices",
        } => Some(Reply::Acquired {
            owner,
            token: 1234,
            waited_ms: 0,
        }),
        other => panic!("not the acquire: {other:?}"),
    });
    let arguments = format!(
        "lock invoices --wait 7 --lease 8 --server {}",
        server.address
    );
    let locked = output(&mut leasehold(&arguments));
    assert_eq!(locked.status.code(), Some(0));
    assert_eq!(text(&locked.stdout), "1234\n");
    assert!(text(&locked.stderr).contains("with token 1234"));
    server.finish();
}

#[test]
fn lock_s_status_tells_how_it_ended() {
    type Answer = fn(u64) -> Option<Reply>;
    for (answer, status, word) in [
        (
            (|owner| Some(Reply::TimedOut { owner })) as Answer,
            75,
            "timed out",
        ),
        (|owner| Some(Reply::Busy { owner }), 75, "busy"),
        (|_| None, 76, "indeterminate"),
        (
            |owner| {
                let code = ErrorCode::BadTime;
                Some(Reply::Error { owner, code })
            },
            1,
            "refused",
        ),
    ] {
        let server = FakeServer::welcoming(move |request| match request {
            Request::Acquire { owner, .. } => answer(owner),
            other => panic!("not the acquire: {other:?}"),
        });
        let arguments = format!("lock k --wait 0 --server {}", server.address);
        let line = error_line(&mut leasehold(&arguments), status);
        assert!(line.contains(word), "{line}");
        server.finish();
    }
}

#[test]
fn a_server_that_cannot_be_reached_is_status_69() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound").to_string();
    drop(listener);
    for arguments in ["lock k", "unlock k 1", "status k"] {
        let mut command = leasehold(arguments);
        let line = error_line(command.env("LEASEHOLD_SERVER", &address), 69);
        assert!(line.contains(&address), "{line}");
    }
}

#[test]
fn unlock_s_status_tells_whether_it_was_held() {
    type Answer = fn(u64) -> Option<Reply>;
    for (answer, status) in [
        ((|owner| Some(Reply::Released { owner })) as Answer, 0),
        (|owner| Some(Reply::NotHeld { owner }), 1),
        (|_| None, 76),
    ] {
        let server = FakeServer::welcoming(move |request| match request {
            Request::Release {
                owner,
                token: 42,
                key: b"k",
            } => answer(owner),
            other => panic!("not the release: {other:?}"),
        });
        let unlocked = output(&mut leasehold(&format!(
            "unlock k 42 --server {}",
            server.address
        )));
        assert_eq!(unlocked.status.code(), Some(status));
        assert_eq!(text(&unlocked.stdout), "");
        server.finish();
    }
}

#[test]
fn status_shows_the_state_in_a_line() {
    for (held, remaining_ms, waiters, expected) in [
        (false, 0, 0, "k: free\n"),
        (
            true,
            29_005,
            3,
            "k: held, its lease ends in 29.005 s, 3 waiting\n",
        ),
        (
            true,
            u32::MAX,
            0,
            "k: held, its lease ends in more than 49 days, 0 waiting\n",
        ),
    ] {
        let server = FakeServer::welcoming(move |request| {
            Some(Reply::State {
                owner: request.owner(),
                held,
                remaining_ms,
                waiters,
            })
        });
        let shown = output(&mut leasehold(&format!(
            "status k --server {}",
            server.address
        )));
        assert_eq!(shown.status.code(), Some(0));
        assert_eq!(text(&shown.stdout), expected);
        server.finish();
    }
}

#[test]
fn the_credential_comes_from_the_file_or_else_the_environment() {
    let file = TemporaryFile::new("credential", "worker:from-file\n");
    let with_file = format!(" --credential-file {}", file.path());
    for (flag, variable, expected) in [
        ("", None, &b""[..]),
        (
            "",
            Some("worker:from-environment"),
            b"worker:from-environment",
        ),
        (with_file.as_str(), None, b"worker:from-file"),
        (with_file.as_str(), Some("worker:x"), b"worker:from-file"),
    ] {
        let server = FakeServer::start(move |request| {
            let Request::Hello {
                owner, credential, ..
            } = request
            else {
                panic!("not hello: {request:?}");
            };
            assert_eq!(credential, expected);
            let code = ErrorCode::Unauthenticated;
            Some(Reply::Error { owner, code })
        });
        let mut command = leasehold(&format!("status k --server {}{flag}", server.address));
        if let Some(credential) = variable {
            command.env("LEASEHOLD_CREDENTIAL", credential);
        }
        let line = error_line(&mut command, 1);
        assert!(line.contains("credential"), "{line}");
        server.finish();
    }
    let mut bad = leasehold("status k");
    let line = error_line(bad.env("LEASEHOLD_CREDENTIAL", "no colon"), 2);
    assert!(line.contains("LEASEHOLD_CREDENTIAL"), "{line}");
}

#[test]
fn readme_lists_every_flag_of_serve() {
    let readme = include_str!("../README.md");
    let help = output(&mut leasehold("serve --help"));
    let flags: Vec<_> = text(&help.stdout)
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("--"))
        .map(|line| line.split([' ', '\n']).next().unwrap_or(line))
        .collect();
    assert!(flags.len() >= 30, "the help lists flags: {flags:?}");
    for flag in flags {
        assert!(readme.contains(&format!("`--{flag}`")), "--{flag}");
    }
}

/// Whatever keeps a server from saying that it is ready is told like any other
/// fault: a supervisor that waits for the line must not wait for ever.
#[test]
fn a_ready_line_that_cannot_be_written_ends_the_start() {
    let full = std::fs::File::create("/dev/full").expect("Linux has it");
    let mut command = leasehold("serve --listen 127.0.0.1:0 --dlm-listen off");
    let output = output(command.env("RUST_LOG", "off").stdout(full));
    assert_eq!(output.status.code(), Some(1));
    let error = text(&output.stderr);
    assert_eq!(error.lines().count(), 1, "{error}");
    assert!(error.contains("ready line"), "{error}");
}

/// A server that is stopped and whose backlog is full still listens: a start on its
/// path says so at once, and holds up no other start.
#[test]
fn a_unix_socket_whose_backlog_is_full_is_in_use() {
    let directory = std::env::temp_dir().join(format!("leasehold-full-{}", std::process::id()));
    std::fs::create_dir(&directory).expect("a directory of its own");
    let path = directory.join("socket");
    let address = socket2::SockAddr::unix(&path).expect("short enough");
    let stream = || {
        let socket = socket2::Socket::new(socket2::Domain::UNIX, socket2::Type::STREAM, None)
            .expect("a socket");
        socket.set_nonblocking(true).expect("a flag");
        socket
    };
    let listener = stream();
    listener.bind(&address).expect("a free path");
    listener.listen(1).expect("a listener");
    let mut waiting = Vec::new();
    loop {
        let client = stream();
        match client.connect(&address) {
            Ok(()) => waiting.push(client),
            Err(error) => {
                assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
                break;
            }
        }
    }
    let arguments = format!("serve --listen unix:{} --dlm-listen off", path.display());
    let error = error_line(leasehold(&arguments).env("RUST_LOG", "off"), 1);
    assert!(error.contains(&path.display().to_string()), "{error}");
    std::fs::remove_dir_all(&directory).expect("it is ours");
}
