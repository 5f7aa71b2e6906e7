//! The directory: taken by one server at a time, with the files of the state and of the
//! records in it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::net::SocketAddr;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::backends::FileBackend;
use rustix::fs::FlockOperation;

use super::StoreError;
use super::copies::{COPIES, Media};
use super::format::STATE_BYTES;
use super::records::Place;

const LOCK: &str = "lock";
const STATE: [&str; COPIES] = ["state-1", "state-2"];
const LEASES: &str = "leases.redb";

/// What the environment says about where state belongs.
#[derive(Clone, Copy, Debug, Default)]
pub struct Environment<'a> {
    /// `STATE_DIRECTORY`, which systemd sets.
    pub state_directory: Option<&'a OsStr>,
    /// Whether the server runs as root.
    pub is_root: bool,
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<&'a OsStr>,
    /// `HOME`.
    pub home: Option<&'a OsStr>,
}

/// Where the server listens, which tells servers of one host apart.
#[derive(Clone, Copy, Debug, Default)]
pub struct Listens<'a> {
    /// The first TCP address of the native protocol.
    pub tcp: Option<SocketAddr>,
    /// The first Unix socket of the native protocol.
    pub unix: Option<&'a Path>,
    /// The address of the JackrabbitDLM protocol.
    pub dlm: Option<SocketAddr>,
}

/// Where the state is if no directory was given; `None` if the environment names no
/// place for it, or the server listens nowhere.
pub fn default_directory(environment: &Environment, listens: &Listens) -> Option<PathBuf> {
    let name = match (listens.tcp, listens.unix, listens.dlm) {
        (Some(address), _, _) | (None, None, Some(address)) => address.to_string().into(),
        (None, Some(path), _) => one_name(path),
        (None, None, None) => return None,
    };
    Some(base_directory(environment)?.join(name))
}

fn base_directory(environment: &Environment) -> Option<PathBuf> {
    // The specifications of both say what a relative path is: to be ignored.
    let absolute = |value: Option<&OsStr>| value.map(PathBuf::from).filter(|it| it.is_absolute());
    let first = environment.state_directory.and_then(|list| {
        let first = list.as_bytes().split(|&byte| byte == b':').next();
        absolute(first.map(OsStr::from_bytes))
    });
    if first.is_some() {
        return first;
    }
    if environment.is_root {
        return Some("/var/lib/leasehold".into());
    }
    let home = || Some(absolute(environment.home)?.join(".local/state"));
    let state_home = absolute(environment.xdg_state_home).or_else(home)?;
    Some(state_home.join("leasehold"))
}

/// A path as the name of one file, no two paths as the same.
fn one_name(path: &Path) -> OsString {
    let mut name = Vec::new();
    for &byte in path.as_os_str().as_bytes() {
        match byte {
            b'/' => name.extend(b"%2F"),
            b'%' => name.extend(b"%25"),
            _ => name.push(byte),
        }
    }
    OsString::from_vec(name)
}

/// A directory that no other server uses while this lives.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    /// For syncs of the directory itself.
    handle: File,
    _lock: File,
}

impl Directory {
    /// Makes the directory if it is missing, and takes it.
    ///
    /// # Errors
    /// It cannot be made, or another server has it.
    pub fn take(path: &Path) -> Result<Arc<Directory>, StoreError> {
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(path)
            .map_err(|error| StoreError::io("create", path, error))?;
        let handle = File::open(path).map_err(|error| StoreError::io("open", path, error))?;
        let lock_path = path.join(LOCK);
        let lock = private()
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(|error| StoreError::io("open", &lock_path, error))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StoreError::InUse(path.into())),
            Err(error) => return Err(StoreError::io("lock", &lock_path, error.into())),
        }
        Ok(Arc::new(Directory {
            path: path.into(),
            handle,
            _lock: lock,
        }))
    }

    /// Makes durable that there is this directory, and all above it.
    ///
    /// # Errors
    /// That of the directory itself and the one that it is in; whoever made those further
    /// up may keep them from being opened.
    pub fn sync_path(&self) -> Result<(), StoreError> {
        let sync = |path: &Path| File::open(path)?.sync_all();
        let path = fs::canonicalize(&self.path)
            .map_err(|error| StoreError::io("resolve", &self.path, error))?;
        for (height, directory) in path.ancestors().enumerate() {
            if let Err(error) = sync(directory)
                && height < 2
                && error.kind() != io::ErrorKind::PermissionDenied
            {
                return Err(StoreError::io("sync", directory, error));
            }
        }
        Ok(())
    }

    /// Makes or replaces a file in the directory as a whole, and gives it open for
    /// writing.
    fn replace(&self, path: &Path, bytes: &[u8]) -> io::Result<File> {
        let draft = path.with_added_extension("new");
        let mut file = private().create(true).truncate(true).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(draft, path)?;
        self.handle.sync_all()?;
        Ok(file)
    }
}

/// The copies of the state as files.
#[derive(Debug)]
pub struct StateFiles {
    directory: Arc<Directory>,
    /// Those that were replaced, and may be written over.
    files: [Option<File>; COPIES],
}

impl StateFiles {
    /// Those in a directory.
    pub fn new(directory: Arc<Directory>) -> StateFiles {
        StateFiles {
            directory,
            files: [None, None],
        }
    }

    fn path(&self, copy: usize) -> PathBuf {
        self.directory.path.join(STATE[copy])
    }

    fn replaced(&self, copy: usize) -> io::Result<&File> {
        let file = self.files[copy].as_ref();
        file.ok_or_else(|| io::Error::other("written over before it was replaced"))
    }
}

impl Media for StateFiles {
    fn read(&mut self, copy: usize) -> io::Result<Option<Vec<u8>>> {
        let file = match File::open(self.path(copy)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened?,
        };
        let mut bytes = Vec::new();
        // One byte more than there should be shows that there is more.
        let most = STATE_BYTES as u64 + 1;
        file.take(most).read_to_end(&mut bytes)?;
        Ok(Some(bytes))
    }

    fn replace(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()> {
        self.files[copy] = Some(self.directory.replace(&self.path(copy), bytes)?);
        Ok(())
    }

    fn write(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()> {
        self.replaced(copy)?.write_all_at(bytes, 0)
    }

    fn sync(&mut self, copy: usize) -> io::Result<()> {
        self.replaced(copy)?.sync_data()
    }

    fn name(&self, copy: usize) -> String {
        self.path(copy).display().to_string()
    }
}

/// The file of the records.
#[derive(Debug)]
pub struct LeasesFile {
    directory: Arc<Directory>,
}

impl LeasesFile {
    /// The one in a directory.
    pub fn new(directory: Arc<Directory>) -> LeasesFile {
        LeasesFile { directory }
    }
}

impl Place for LeasesFile {
    type Backend = FileBackend;

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.directory.replace(&self.path(), bytes).map(drop)
    }

    fn open(&mut self) -> io::Result<FileBackend> {
        let file = private().read(true).open(self.path())?;
        FileBackend::new(file).map_err(|error| io::Error::other(error.to_string()))
    }

    fn remove(&mut self) -> io::Result<()> {
        fs::remove_file(self.path())
    }

    fn path(&self) -> PathBuf {
        self.directory.path.join(LEASES)
    }
}

/// Opens for writing what only the server's user may read.
fn private() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).mode(0o600);
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listens<'a>(tcp: &str, unix: &'a str, dlm: &str) -> Listens<'a> {
        Listens {
            tcp: tcp.parse().ok(),
            unix: (!unix.is_empty()).then_some(Path::new(unix)),
            dlm: dlm.parse().ok(),
        }
    }

    #[test]
    fn the_environment_names_the_place() {
        let os = |value: &'static str| (!value.is_empty()).then_some(OsStr::new(value));
        for (state_directory, is_root, xdg_state_home, home, expected) in [
            ("/s:/t", true, "/x", "/h", "/s/127.0.0.1:5327"),
            ("/s", false, "", "", "/s/127.0.0.1:5327"),
            ("", true, "/x", "/h", "/var/lib/leasehold/127.0.0.1:5327"),
            ("", false, "/x", "/h", "/x/leasehold/127.0.0.1:5327"),
            (
                "",
                false,
                "x",
                "/h",
                "/h/.local/state/leasehold/127.0.0.1:5327",
            ),
            (
                "",
                false,
                "",
                "/h",
                "/h/.local/state/leasehold/127.0.0.1:5327",
            ),
            ("", false, "", "h", ""),
            ("", false, "", "", ""),
        ] {
            let environment = Environment {
                state_directory: os(state_directory),
                is_root,
                xdg_state_home: os(xdg_state_home),
                home: os(home),
            };
            let directory = default_directory(&environment, &listens("127.0.0.1:5327", "", ""));
            let expected = (!expected.is_empty()).then(|| PathBuf::from(expected));
            assert_eq!(directory, expected);
        }
    }

    #[test]
    fn what_is_listened_on_names_the_directory() {
        let environment = Environment {
            is_root: true,
            ..Environment::default()
        };
        for (tcp, unix, dlm, name) in [
            ("[::1]:1", "/run/a", "0.0.0.0:2", "[::1]:1"),
            ("", "/run/a", "0.0.0.0:2", "%2Frun%2Fa"),
            ("", "/run/%2Fa", "", "%2Frun%2F%252Fa"),
            ("", "", "0.0.0.0:2", "0.0.0.0:2"),
        ] {
            let directory = default_directory(&environment, &listens(tcp, unix, dlm));
            let expected = Path::new("/var/lib/leasehold").join(name);
            assert_eq!(directory, Some(expected));
        }
        assert_eq!(default_directory(&environment, &listens("", "", "")), None);
    }
}
