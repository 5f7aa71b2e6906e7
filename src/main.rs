//! The `leasehold` command: the server, and what a person or a script does to it.

use clap::error::ErrorKind;
use clap::{Args, Parser, Subcommand};
use leasehold::client::{
    self, Attempt, ClientError, Connection, Credential, Key, KeyState, Outcome, ReleaseOutcome,
    ServerAddress,
};
use leasehold::config::parse::{BareUnit, time_ms};
use leasehold::config::{Config, IdentityDirectory, ServeArgs};
use leasehold::credentials::{Credentials, NewCredential};
use leasehold::driver::{self, CreateIdentityError};
use leasehold::limits::{MAX_LEASE_MS, TOKEN_END};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Anything that went wrong and has no status of its own.
const EXIT_FAILURE: u8 = 1;
/// A flag or an argument that cannot be meant.
const EXIT_USAGE: u8 = 2;
/// The server cannot be reached (EX_UNAVAILABLE of sysexits.h).
const EXIT_UNREACHABLE: u8 = 69;
/// Timed out or busy: come again (EX_TEMPFAIL).
const EXIT_NOT_ACQUIRED: u8 = 75;
/// Not known whether it took effect (EX_PROTOCOL).
const EXIT_INDETERMINATE: u8 = 76;

/// How long `unlock` and `status` try to connect, in seconds.
const CONNECT_SECONDS: u64 = 5;
/// Environment variable with a client's NAME:SECRET.
const CREDENTIAL_VARIABLE: &str = "LEASEHOLD_CREDENTIAL";
/// Descriptors that a server needs beside those of its connections.
const OTHER_DESCRIPTORS: u64 = 64;

/// A lock server for latency-critical Linux hosts.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    ///
    /// Each flag can also be given in the environment, as LEASEHOLD_ and its name
    /// in capitals with underscores; a flag wins. Times are 5, 5s, 250ms or 3m; a
    /// bare number is seconds, or the unit at the end of the flag's name.
    #[command(allow_negative_numbers = true)]
    Serve(Box<ServeArgs>),
    /// Acquire a lock and print its token; it is held until unlocked, or until its
    /// lease ends
    ///
    /// Exits 0 with the lock, 75 when timed out or busy, 69 when the server cannot be
    /// reached, 76 when it is not known whether the lock is held (then it is not to
    /// be relied on, and ends with its lease).
    Lock(LockArgs),
    /// Release a lock
    ///
    /// Exits 0 when released, 1 when that token does not hold it.
    Unlock(UnlockArgs),
    /// Show a lock's state
    Status(StatusArgs),
    /// Make a random secret for a client's name
    ///
    /// Prints the secret, which is kept nowhere, and the line for the file that
    /// serve --credentials-file reads.
    Credential(CredentialArgs),
    /// Make an identity for users of the JackrabbitDLM protocol
    ///
    /// Creates NAME.cfg with a random secret, readable by its owner alone, and prints
    /// its path. Nothing is ever overwritten: exits 1 if there is such a file. Requests
    /// that carry NAME and the secret may exceed the limits of anonymous ones. A server
    /// that runs takes the new file up by itself.
    #[command(allow_negative_numbers = true)]
    Identity(IdentityArgs),
}

#[derive(Debug, Args)]
struct LockArgs {
    /// The lock's name
    #[arg(value_parser = Key::new)]
    key: Key,

    /// How long to wait for it; 0: one immediate attempt
    #[arg(
        long = "wait",
        value_name = "TIME",
        default_value = "10s",
        value_parser = |text: &str| time_ms(text, BareUnit::Seconds, 0..=MAX_LEASE_MS)
    )]
    wait_ms: u32,

    /// How long to hold it, from the moment it is granted
    #[arg(
        long = "lease",
        value_name = "TIME",
        default_value = "30s",
        value_parser = |text: &str| time_ms(text, BareUnit::Seconds, 1..=MAX_LEASE_MS)
    )]
    lease_ms: u32,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct UnlockArgs {
    /// The lock's name
    #[arg(value_parser = Key::new)]
    key: Key,

    /// The token, a number, that lock printed
    #[arg(value_parser = clap::value_parser!(u64).range(1..TOKEN_END))]
    token: u64,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct StatusArgs {
    /// The lock's name
    #[arg(value_parser = Key::new)]
    key: Key,

    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct CredentialArgs {
    /// The client's name
    name: String,
}

#[derive(Debug, Args)]
struct IdentityArgs {
    /// The identity's name
    name: String,

    /// Longest DataStore it may send, in characters [default: 16384]
    #[arg(long, value_name = "COUNT")]
    max_size: Option<u64>,

    #[command(flatten)]
    identities: IdentityDirectory,
}

/// Which server, and as whom.
#[derive(Debug, Args)]
struct ServerArgs {
    /// Address of the server: HOST:PORT or unix:PATH
    #[arg(
        long,
        env = "LEASEHOLD_SERVER",
        value_name = "ADDRESS",
        default_value = "127.0.0.1:5327"
    )]
    server: ServerAddress,

    /// File with this client's NAME:SECRET [default: what LEASEHOLD_CREDENTIAL
    /// holds, if it is set]
    #[arg(long, value_name = "FILE")]
    credential_file: Option<PathBuf>,
}

/// Why the command did not do what it was asked to: one line, and the exit status.
#[derive(Debug)]
struct Failure {
    status: u8,
    message: String,
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return explain_usage(&error),
    };
    let log_level = env_logger::Env::default().default_filter_or("info");
    env_logger::Builder::from_env(log_level).init();
    let result = match cli.command {
        Command::Serve(args) => serve(*args),
        Command::Lock(args) => lock(args),
        Command::Unlock(args) => unlock(&args),
        Command::Status(args) => status(&args),
        Command::Credential(args) => credential(&args),
        Command::Identity(args) => identity(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            ExitCode::from(failure.status)
        }
    }
}

fn serve(args: ServeArgs) -> Result<(), Failure> {
    let config = args
        .into_config()
        .map_err(|error| Failure::new(EXIT_USAGE, error))?;
    let credentials =
        match &config.access.credentials_file {
            Some(path) => Some(Credentials::read(path).map_err(|error| {
                Failure::new(EXIT_FAILURE, format!("--credentials-file: {error}"))
            })?),
            None => None,
        };
    warn_of_few_descriptors(&config, raise_nofile());
    driver::serve(&config, credentials).map_err(|error| Failure::new(EXIT_FAILURE, error))
}

fn lock(args: LockArgs) -> Result<(), Failure> {
    let wait = Duration::from_millis(args.wait_ms.into());
    let lease = Duration::from_millis(args.lease_ms.into());
    // Started before anything else: connecting is part of the wait.
    let attempt =
        Attempt::new(args.key, wait, lease).map_err(|error| Failure::new(EXIT_USAGE, error))?;
    let credential = args.server.credential()?;
    let mut connection =
        Connection::connect_until(&args.server.server, credential.as_ref(), attempt.deadline())?;
    let outcome = connection.run(&attempt)?;
    let key = shown(attempt.key());
    let result = match outcome {
        Outcome::Acquired(ticket) => {
            eprintln!(
                "locked {key}, sure for {:.1} s, with token {}",
                ticket.remaining().as_secs_f64(),
                ticket.token()
            );
            print_line(&ticket.token().to_string()).inspect_err(|_| {
                // Nobody has learned the token: nobody else could release it.
                let _ = connection.release(ticket.key(), ticket.token());
            })
        }
        Outcome::TimedOut => Err(Failure::new(EXIT_NOT_ACQUIRED, format!("{key}: timed out"))),
        Outcome::Busy => Err(Failure::new(
            EXIT_NOT_ACQUIRED,
            format!("{key}: busy, too many wait already"),
        )),
        Outcome::Indeterminate => Err(Failure::new(
            EXIT_INDETERMINATE,
            format!("{key}: indeterminate: if it was granted, it ends with its lease"),
        )),
        Outcome::Rejected(code) => Err(Failure::rejected(&key, code)),
    };
    connection.close();
    result
}

fn unlock(args: &UnlockArgs) -> Result<(), Failure> {
    let mut connection = args.server.connect()?;
    let outcome = connection.release(&args.key, args.token)?;
    connection.close();
    let key = shown(&args.key);
    match outcome {
        ReleaseOutcome::Released => Ok(()),
        ReleaseOutcome::NotHeld => Err(Failure::new(
            EXIT_FAILURE,
            format!("{key}: not held by that token"),
        )),
        ReleaseOutcome::Indeterminate => Err(Failure::new(
            EXIT_INDETERMINATE,
            format!("{key}: indeterminate: it ends with its lease at the latest"),
        )),
        ReleaseOutcome::Rejected(code) => Err(Failure::rejected(&key, code)),
    }
}

fn status(args: &StatusArgs) -> Result<(), Failure> {
    let mut connection = args.server.connect()?;
    let state = connection.query(&args.key)?;
    connection.close();
    print_line(&format!("{}: {}", shown(&args.key), describe(state)))
}

fn credential(args: &CredentialArgs) -> Result<(), Failure> {
    let made = NewCredential::generate(&args.name)
        .map_err(|error| Failure::new(EXIT_USAGE, format!("NAME: {error}")))?;
    print_line(&made.secret)?;
    print_line(&made.line)?;
    eprintln!(
        "The first line is the secret of {}, shown only now: the client's {CREDENTIAL_VARIABLE} \
         is NAME:SECRET. The second belongs in the file of serve --credentials-file.",
        args.name
    );
    Ok(())
}

fn identity(args: &IdentityArgs) -> Result<(), Failure> {
    let directory = &args.identities.directory;
    let path =
        driver::create_identity_file(directory, &args.name, args.max_size).map_err(|error| {
            match error {
                CreateIdentityError::BadName => Failure::new(EXIT_USAGE, format!("NAME: {error}")),
                other => Failure::new(EXIT_FAILURE, other),
            }
        })?;
    print_line(&path.display().to_string())?;
    eprintln!(
        "Its Identity is the secret that clients send with the Name {}. The server must be able \
         to read the file, nobody else.",
        args.name
    );
    Ok(())
}

impl ServerArgs {
    fn connect(&self) -> Result<Connection, Failure> {
        let credential = self.credential()?;
        let timeout = Duration::from_secs(CONNECT_SECONDS);
        Ok(Connection::connect(
            &self.server,
            credential.as_ref(),
            timeout,
        )?)
    }

    /// The flag's file before the environment.
    fn credential(&self) -> Result<Option<Credential>, Failure> {
        let (origin, text) = match &self.credential_file {
            Some(path) => (
                format!("--credential-file {}", path.display()),
                read_text(path)?,
            ),
            None => match std::env::var(CREDENTIAL_VARIABLE) {
                Ok(text) => (CREDENTIAL_VARIABLE.to_string(), text),
                Err(std::env::VarError::NotPresent) => return Ok(None),
                Err(error) => {
                    let message = format!("{CREDENTIAL_VARIABLE}: {error}");
                    return Err(Failure::new(EXIT_USAGE, message));
                }
            },
        };
        Credential::new(text.trim_end())
            .map(Some)
            .map_err(|error| Failure::new(EXIT_USAGE, format!("{origin}: {error}")))
    }
}

impl Failure {
    fn new(status: u8, message: impl ToString) -> Failure {
        Failure {
            status,
            message: message.to_string(),
        }
    }

    fn rejected(key: &str, code: leasehold::protocol::ErrorCode) -> Failure {
        let message = format!("{key}: refused: {}", client::explain(code));
        Failure::new(EXIT_FAILURE, message)
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Failure {
        let status = match error {
            ClientError::Unreachable { .. } => EXIT_UNREACHABLE,
            _ => EXIT_FAILURE,
        };
        Failure::new(status, error)
    }
}

/// Raises the limit of open descriptors as far as this process may, and tells it.
fn raise_nofile() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    // `None` stands for no limit.
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => limit.maximum.unwrap_or(u64::MAX),
        Err(error) => {
            log::warn!("RLIMIT_NOFILE stays as it is: {error}");
            limit.current.unwrap_or(u64::MAX)
        }
    }
}

fn warn_of_few_descriptors(config: &Config, descriptors: u64) {
    let (native, dlm) = (config.limits.max_connections, config.dlm.max_connections);
    let wanted = u64::from(native) + u64::from(dlm) + OTHER_DESCRIPTORS;
    if descriptors < wanted {
        log::warn!(
            "RLIMIT_NOFILE is {descriptors}: fewer connections than --max-connections {native} \
             and --max-dlm-connections {dlm} can be open"
        );
    }
}

fn describe(state: KeyState) -> String {
    if !state.held {
        return "free".into();
    }
    let remaining = match state.remaining_ms {
        u32::MAX => "more than 49 days".into(),
        ms => format!("{}.{:03} s", ms / 1_000, ms % 1_000),
    };
    format!(
        "held, its lease ends in {remaining}, {} waiting",
        state.waiters
    )
}

/// A key as a terminal can take it.
fn shown(key: &Key) -> String {
    key.as_str().escape_debug().to_string()
}

fn read_text(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|error| Failure::new(EXIT_FAILURE, format!("{}: {error}", path.display())))
}

fn print_line(line: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::new(EXIT_FAILURE, format!("standard output: {error}")))
}

/// Help goes to standard output; a mistake becomes one line on standard error.
fn explain_usage(error: &clap::Error) -> ExitCode {
    let text = error.to_string();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{text}");
            ExitCode::from(EXIT_USAGE)
        }
        _ => {
            // What follows the first blank line is the usage and hints.
            let lines = text.lines().take_while(|line| !line.trim().is_empty());
            let words: Vec<_> = lines.map(str::trim).collect();
            eprintln!("{}", words.join(" "));
            ExitCode::from(EXIT_USAGE)
        }
    }
}
