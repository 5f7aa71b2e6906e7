//! The server as a process: started, waited for by its ready line, never by time,
//! killed when it goes out of scope.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::client::Client;
use super::configuration::Configuration;
use super::routing::Routing;
use super::wire::{ANY_LOOP, Reply, Welcome, acquire, hello};

/// Longer than anything takes that works. Only a hang meets it.
pub const HANG_GUARD: Duration = Duration::from_secs(20);

/// The key that [`Server::drain`] holds.
pub const DRAIN_KEEPER: &str = "drain-keeper";

/// A running server.
#[derive(Debug)]
pub struct Server {
    child: Child,
    ready_line: String,
    listen: Vec<String>,
    /// Locked only so that threads can share the server.
    stdout_lines: Mutex<Receiver<String>>,
    stderr: Option<JoinHandle<String>>,
    placement: Option<Placement>,
}

/// Where the sessions of a test are, seen from the keys that it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placement {
    /// On the loop that owns this key.
    WithOwnerOf(&'static str),
    /// On another loop than the one that owns this key.
    AwayFromOwnerOf(&'static str),
}

/// How a process that should not serve, or serves no more, ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code, `None` if a signal ended it.
    pub code: Option<i32>,
    /// Everything it logged.
    pub stderr: String,
}

impl Server {
    /// Starts `leasehold serve` on a free loopback port, without the other
    /// protocols, and waits until it serves. `flags` may add listeners.
    pub fn start(configuration: Configuration, flags: &[&str]) -> Server {
        Self::try_start(configuration, flags)
            .unwrap_or_else(|ended| panic!("the server did not start: {ended:?}"))
    }

    /// Like [`Server::start`], for a server that may refuse to start.
    pub fn try_start(configuration: Configuration, flags: &[&str]) -> Result<Server, Ended> {
        let mut command = serve_command();
        command
            .args(["--listen", "127.0.0.1:0", "--dlm-listen", "off"])
            .args(configuration.flags())
            .args(flags);
        Self::launch(command)
    }

    /// Like [`Server::start`], with at most `descriptors` open files.
    pub fn start_with_descriptors(
        configuration: Configuration,
        flags: &[&str],
        descriptors: u32,
    ) -> Server {
        let mut command = without_settings(Command::new("sh"));
        command
            .args(["-c", r#"ulimit -n "$0" && exec "$@""#])
            .arg(descriptors.to_string())
            .args([env!("CARGO_BIN_EXE_leasehold"), "serve"])
            .args(["--listen", "127.0.0.1:0", "--dlm-listen", "off"])
            .args(configuration.flags())
            .args(flags);
        Self::launch(command).unwrap_or_else(|ended| panic!("the server did not start: {ended:?}"))
    }

    /// Runs a `serve` command line as it is given.
    pub fn launch(mut command: Command) -> Result<Server, Ended> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the server's binary can be run");
        let stdout = child.stdout.take().expect("stdout is a pipe");
        let mut stderr_pipe = child.stderr.take().expect("stderr is a pipe");
        let (sender, stdout_lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines() {
                let line = line.expect("stdout is UTF-8");
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        let stderr = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            // An error ends the text early, no more.
            let _ = stderr_pipe.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        let mut server = Server {
            child,
            ready_line: String::new(),
            listen: Vec::new(),
            stdout_lines: Mutex::new(stdout_lines),
            stderr: Some(stderr),
            placement: None,
        };
        match server.next_line() {
            Ok(line) => {
                let addresses = line
                    .split(' ')
                    .find_map(|word| word.strip_prefix("listen="))
                    .unwrap_or_else(|| panic!("no ready line: {line:?}"));
                server.listen = addresses.split(',').map(str::to_owned).collect();
                server.ready_line = line;
                Ok(server)
            }
            Err(RecvTimeoutError::Disconnected) => Err(server.wait()),
            Err(RecvTimeoutError::Timeout) => panic!("the server neither serves nor exits"),
        }
    }

    /// The line that said it serves.
    pub fn ready_line(&self) -> &str {
        &self.ready_line
    }

    /// Its first TCP address, as the ready line has it.
    pub fn address(&self) -> &str {
        &self.listen[0]
    }

    /// All its addresses, as the ready line has them.
    pub fn addresses(&self) -> &[String] {
        &self.listen
    }

    /// How many loops it says it has.
    pub fn loops(&self) -> u16 {
        let (_, loops) = self
            .ready_line
            .rsplit_once("shards=")
            .expect("as documented");
        loops.parse().expect("a number of loops")
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// From now on [`Server::connect`] and [`Server::greet`] put sessions there.
    pub fn place_sessions(&mut self, placement: Placement) {
        self.placement = Some(placement);
    }

    /// A new session: without a Hello, unless sessions have their place.
    #[track_caller]
    pub fn connect(&self) -> Client {
        match self.placement {
            None => self.connect_silently(),
            Some(_) => self.greet(0),
        }
    }

    /// A new session with these flags of Hello in force, in its place if sessions have one.
    #[track_caller]
    pub fn greet(&self, flags: u8) -> Client {
        let wanted_loop = self.placement.map_or(ANY_LOOP, |placement| {
            let routing = self.routing();
            match placement {
                Placement::WithOwnerOf(key) => routing.loop_of(key),
                Placement::AwayFromOwnerOf(key) => routing.next_loop(routing.loop_of(key)),
            }
        });
        self.connect_on(wanted_loop, flags)
    }

    /// A new session on the wanted loop, with these flags of Hello in force.
    #[track_caller]
    pub fn connect_on(&self, wanted_loop: u16, flags: u8) -> Client {
        let mut client = self.connect_silently();
        client.send(&hello(flags, wanted_loop, 1, ""));
        let welcome = client.welcome();
        assert_eq!(welcome.flags, flags);
        assert!(wanted_loop == ANY_LOOP || welcome.loop_index == wanted_loop);
        client
    }

    /// A new session on each loop.
    #[track_caller]
    pub fn connect_everywhere(&self) -> Vec<Client> {
        let connect = |loop_index| self.connect_on(loop_index, 0);
        (0..self.loops()).map(connect).collect()
    }

    /// How keys are shared out over loops, asked by a session that is over then.
    #[track_caller]
    pub fn routing(&self) -> Routing {
        let mut client = self.connect_silently();
        client.send(&hello(0, ANY_LOOP, 1, ""));
        client.finish();
        let welcome: Welcome = client.welcome();
        client.expect_end();
        Routing::of(&welcome)
    }

    #[track_caller]
    fn connect_silently(&self) -> Client {
        Client::connect(self.address()).expect("the server accepts connections")
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, signal).expect("the server runs and is ours");
    }

    /// Begins a drain and waits until it is in force on every loop. The control session
    /// then holds [`DRAIN_KEEPER`] for 255 s, so that the drain does not end by itself.
    pub fn drain(&self) -> Client {
        let routing = self.routing();
        let mut control = self.connect();
        control.send(&acquire(1, 0, 255, DRAIN_KEEPER));
        control.granted(1);
        self.signal(Signal::TERM);
        let guard = Instant::now() + HANG_GUARD;
        for loop_index in 0..routing.loops {
            let key = routing.key(loop_index, "drain");
            loop {
                control.send(&acquire(2, 0, 1, &key));
                if control.reply() == (Reply::Error { owner: 2, code: 8 }) {
                    break;
                }
                assert!(Instant::now() < guard, "the drain does not begin");
            }
        }
        control
    }

    /// Waits for its end.
    pub fn wait(&mut self) -> Ended {
        match self.next_line() {
            Ok(line) => panic!("a second line on standard output: {line:?}"),
            Err(RecvTimeoutError::Timeout) => panic!("the server does not exit"),
            Err(RecvTimeoutError::Disconnected) => {}
        }
        self.reap()
    }

    fn next_line(&mut self) -> Result<String, RecvTimeoutError> {
        self.lines().recv_timeout(HANG_GUARD)
    }

    fn lines(&mut self) -> &mut Receiver<String> {
        let lines = self.stdout_lines.get_mut();
        lines.expect("nobody panics with it")
    }

    fn reap(&mut self) -> Ended {
        let status: ExitStatus = self.child.wait().expect("it is our child");
        let stderr = self.stderr.take().map(JoinHandle::join);
        Ended {
            code: status.code(),
            stderr: stderr.and_then(Result::ok).unwrap_or_default(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.stderr.is_none() {
            return;
        }
        // Fails only if it has ended, which is as good.
        let _ = self.child.kill();
        let ended = self.reap();
        if std::thread::panicking() {
            eprintln!("the server logged:\n{}", ended.stderr);
        } else {
            let rest: Vec<String> = self.lines().iter().collect();
            assert!(rest.is_empty(), "more on standard output: {rest:?}");
        }
    }
}

/// `leasehold serve` without any settings of this environment.
pub fn serve_command() -> Command {
    let mut command = without_settings(Command::new(env!("CARGO_BIN_EXE_leasehold")));
    command.arg("serve");
    command
}

fn without_settings(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LEASEHOLD_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").env_remove("STATE_DIRECTORY");
    command
}
