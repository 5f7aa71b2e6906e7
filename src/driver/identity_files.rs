//! Reads identity files on a thread of its own: a slow disk or a hung network
//! mount makes the requests of that identity wait, never a loop. And creates them,
//! for the command that does.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use log::warn;
use rustix::fs::{Mode, OFlags};

use super::loops::Loops;
use crate::clock;
use crate::dlm::{Identity, generate_identity_file, identity_file_name};
use crate::engine::time::Time;
use crate::limits::{DLM_MAX_IDENTITY_FILE_BYTES, DLM_MAX_NAME_BYTES};
use crate::worker::Worker;

/// Files that cannot be used are logged at most once in this time.
const LOG_PAUSE_MS: u64 = 1_000;

/// What was read: the identity's name and what its file holds.
type Outcome = (String, Option<Identity>);

/// One loop's line to the reading thread. What is under way is bounded by the
/// loop's identity cache.
#[derive(Debug)]
pub(super) struct IdentityPort {
    asks: Sender<Ask>,
    mailbox: Arc<Mailbox>,
}

#[derive(Debug)]
struct Mailbox {
    outcomes: Mutex<Vec<Outcome>>,
    /// Set after an outcome was put there.
    is_full: AtomicBool,
    loops: Arc<Loops>,
    loop_index: u16,
}

struct Ask {
    name: String,
    mailbox: Arc<Mailbox>,
}

/// Why an identity was not created.
#[derive(Debug, thiserror::Error)]
pub enum CreateIdentityError {
    /// The name cannot be one.
    #[error(
        "an identity's name is a plain file name of at most {DLM_MAX_NAME_BYTES} bytes: \
         no /, no NUL, no dot at its start"
    )]
    BadName,
    /// There is something of that name already; it stays as it is.
    #[error("{} exists already, and is never overwritten", .0.display())]
    Exists(PathBuf),
    /// No random secret could be drawn.
    #[error("cannot draw a random secret: {0}")]
    Random(getrandom::Error),
    /// The directory does not let a file be created.
    #[error("cannot create {path}: {1}", path = .0.display())]
    Io(PathBuf, io::Error),
}

/// Creates the file of a new identity `name`, readable by its owner alone, and
/// returns its path. Whoever looks sees no file or the whole of it, and so does
/// whoever starts after a crash.
///
/// # Errors
/// See [`CreateIdentityError`]; then nothing was created.
pub fn create_identity_file(
    directory: &Path,
    name: &str,
    max_data_chars: Option<u64>,
) -> Result<PathBuf, CreateIdentityError> {
    let path = directory.join(identity_file_name(name).ok_or(CreateIdentityError::BadName)?);
    let contents = generate_identity_file(max_data_chars, getrandom::fill)
        .map_err(CreateIdentityError::Random)?;
    // A leading dot: no identity has that file.
    let unique = getrandom::u64().map_err(CreateIdentityError::Random)?;
    let draft = directory.join(format!(".new-identity-{unique:016x}"));
    let result = write_private_file(&draft, &contents)
        .map_err(|error| CreateIdentityError::Io(path.clone(), error))
        // Unlike a rename, a link does not replace what is there.
        .and_then(|()| match fs::hard_link(&draft, &path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(CreateIdentityError::Exists(path.clone()))
            }
            Err(error) => Err(CreateIdentityError::Io(path.clone(), error)),
            Ok(()) => Ok(()),
        });
    match fs::remove_file(&draft) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!("{} is left behind: {error}", draft.display());
        }
        _ => {}
    }
    result?;
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| CreateIdentityError::Io(path.clone(), error))?;
    Ok(path)
}

fn write_private_file(path: &Path, contents: &str) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true).mode(0o600);
    let mut file = options.open(path)?;
    file.write_all(contents.as_bytes())?;
    file.sync_all()
}

/// Starts the thread that reads identity files in `directory` for `loops`, and
/// returns the ports of the first `count` of them. It ends with the last port.
///
/// # Errors
/// The thread cannot be started.
pub(super) fn start(
    directory: PathBuf,
    loops: &Arc<Loops>,
    count: u16,
) -> io::Result<Vec<IdentityPort>> {
    let (asks, to_read) = mpsc::channel();
    thread::Builder::new()
        .name("identities".into())
        .spawn(move || read_all(&directory, &to_read))?;
    let port = |loop_index| IdentityPort {
        asks: asks.clone(),
        mailbox: Arc::new(Mailbox {
            outcomes: Mutex::new(Vec::new()),
            is_full: AtomicBool::new(false),
            loops: Arc::clone(loops),
            loop_index,
        }),
    };
    Ok((0..count).map(port).collect())
}

impl IdentityPort {
    /// Hands the worker what was read, and has read what it asks for; the loop is
    /// woken when that was done. Costs two loads while there is nothing.
    pub(super) fn exchange(&self, worker: &mut Worker) {
        for (name, identity) in self.take_outcomes() {
            worker.handle_identity_read(&name, identity, clock::now());
        }
        while let Some(name) = worker.poll_identity_read() {
            let mailbox = Arc::clone(&self.mailbox);
            if self.asks.send(Ask { name, mailbox }).is_err() {
                unreachable!("the thread lives as long as a port does");
            }
        }
    }

    fn take_outcomes(&self) -> Vec<Outcome> {
        let flag = &self.mailbox.is_full;
        if !flag.load(Ordering::Relaxed) || !flag.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        std::mem::take(&mut self.mailbox.lock())
    }
}

impl Mailbox {
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn read_all(directory: &Path, to_read: &Receiver<Ask>) {
    let mut log_again_at = Time::ZERO;
    while let Ok(Ask { name, mailbox }) = to_read.recv() {
        let identity = match read_identity(directory, &name) {
            Ok(identity) => Some(identity),
            Err(problem) => {
                // The client is told nothing; the operator is.
                let now = clock::now();
                if now >= log_again_at {
                    log_again_at = now.plus_millis(LOG_PAUSE_MS);
                    warn!("DLM identity {name:?} is refused: {problem}");
                }
                None
            }
        };
        mailbox.lock().push((name, identity));
        mailbox.is_full.store(true, Ordering::Release);
        mailbox.loops.wake(mailbox.loop_index);
    }
}

fn read_identity(directory: &Path, name: &str) -> Result<Identity, String> {
    let file_name = identity_file_name(name).ok_or("not a plain file name")?;
    let path = directory.join(file_name);
    let contents = read_regular_file(&path).map_err(|e| format!("{}: {e}", path.display()))?;
    Identity::parse(&contents).map_err(|e| format!("{}: {e}", path.display()))
}

/// Reads a file that must be an ordinary one: opening a FIFO must not block, and a
/// device must not be read.
fn read_regular_file(path: &Path) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut contents = Vec::new();
    // One byte more than allowed shows that there is more than allowed.
    file.take(DLM_MAX_IDENTITY_FILE_BYTES as u64 + 1)
        .read_to_end(&mut contents)?;
    Ok(contents)
}
