//! Whole stores in real directories.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{self, Receiver};

use super::super::thread;
use crate::clock;
use crate::durability::{Ask, Durable, LeaseRecord, News, RecordChange, TOKEN_BLOCK};
use crate::engine::time::Time;
use crate::store::boot::Boot;
use crate::store::copies::{Copies, Media};
use crate::store::core::StoreCore;
use crate::store::records::{Place, Records};
use crate::store::writer::Writer;
use crate::store::{Opened, PreviousEnd, Store, StoreConfig, StoreError, StoreHandle, StorePort};

/// A directory of one test's own, removed at its end.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Temporary {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("leasehold-store-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the name is nobody else's");
        Temporary(path)
    }

    fn config(&self) -> StoreConfig {
        StoreConfig {
            directory: self.0.join("parent/state"),
            loops: 2,
            cap_ms: 300_000,
            expiry_grace_ms: 0,
            skip_grace: false,
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.config().directory.join(name)
    }

    fn open(&self) -> Result<(Opened, Store), StoreError> {
        Store::open(&self.config())
    }

    fn served(&self) -> (Opened, Served) {
        let (opened, store) = self.open().expect("the directory is fine");
        (opened, Served::new(|wake| store.start(wake)))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        // Left behind, it does no harm.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A store with two loops.
struct Served {
    ports: Vec<StorePort>,
    handle: StoreHandle,
    woken: Receiver<u16>,
}

type Wake = Box<dyn Fn(u16) + Send>;

impl Served {
    fn new(start: impl FnOnce(Wake) -> io::Result<(Vec<StorePort>, StoreHandle)>) -> Served {
        let (wake, woken) = mpsc::channel();
        let wake = move |index| wake.send(index).expect("the test still listens");
        let (ports, handle) = start(Box::new(wake)).expect("a thread can be started");
        Served {
            ports,
            handle,
            woken,
        }
    }

    fn ask(&self, index: u16, ask: Ask) {
        self.ports[usize::from(index)].ask(ask);
    }

    /// Waits until a loop is woken.
    fn news(&self) -> (u16, Vec<News>) {
        let index = self.woken.recv().expect("the thread lives");
        (index, self.ports[usize::from(index)].take_news())
    }
}

fn lease(key: &str) -> LeaseRecord {
    LeaseRecord {
        key: key.as_bytes().into(),
        id: "id".into(),
        name: Some("name".into()),
        deadline: clock::now().plus_millis(1_000_000),
        length_ms: 1_000_000,
    }
}

fn set(number: u64, lease: &LeaseRecord) -> Ask {
    let change = RecordChange::Set(lease.clone());
    Ask::Record { number, change }
}

#[test]
fn a_directory_is_made_for_its_owner_alone() {
    let temporary = Temporary::new();
    let (_, served) = temporary.served();
    served.ask(0, set(1, &lease("a")));
    served.news();
    let mode = |path: &Path| {
        fs::metadata(path)
            .expect("it is there")
            .permissions()
            .mode()
            & 0o777
    };
    assert_eq!(mode(&temporary.config().directory), 0o700);
    for name in ["lock", "state-1", "state-2", "leases.redb"] {
        assert_eq!(mode(&temporary.file(name)), 0o600, "{name}");
    }
}

#[test]
fn what_was_told_is_there_after_an_unclean_end() {
    let temporary = Temporary::new();
    let (opened, served) = temporary.served();
    assert_eq!(opened.previous, PreviousEnd::None);
    assert_eq!((opened.wait_ms, opened.durable.d_ms), (0, 0));
    assert_eq!(opened.durable.mark, opened.first_token + TOKEN_BLOCK);

    served.ask(0, Ask::Raise { to_ms: 8192 });
    assert_eq!(served.news(), (0, vec![News::Raised]));
    let mark = opened.durable.mark + TOKEN_BLOCK;
    served.ask(1, Ask::Reserve { mark });
    assert_eq!(served.news(), (1, vec![News::Reserved { mark }]));
    let (first, second) = (lease("a"), lease("b"));
    served.ask(1, set(1, &first));
    assert_eq!(served.news(), (1, vec![News::Recorded { up_to: 1 }]));
    served.ask(1, set(2, &second));
    assert_eq!(served.news(), (1, vec![News::Recorded { up_to: 2 }]));
    assert_eq!(served.ports[1].take_news(), []);
    drop(served);

    // One loop more, and a clock that stands where no clock stood since.
    let config = StoreConfig {
        loops: 3,
        ..temporary.config()
    };
    let now = clock::now();
    let (opened, _store) = Store::open_at(&config, || now, || 5).expect("it is there");
    assert_eq!(opened.previous, PreviousEnd::Unclean { d_ms: 8192 });
    assert_eq!(opened.wait_ms, 8192);
    assert_eq!(opened.durable.grace_end, now.plus_millis(8192));
    assert_eq!(opened.durable.d_ms, 8192);
    assert_eq!(opened.first_token, mark);
    assert_eq!(opened.durable.mark, mark + TOKEN_BLOCK);
    assert_eq!(opened.records, [first, second]);
}

#[test]
fn a_clean_end_says_how_long_to_wait() {
    for left_ms in [0, 700] {
        let temporary = Temporary::new();
        let (_, served) = temporary.served();
        served.ask(0, Ask::Raise { to_ms: 8192 });
        served.news();
        served.handle.finish(left_ms).expect("the disk works");
        let (opened, _) = temporary.open().expect("it is there");
        assert_eq!(opened.previous, PreviousEnd::Clean { left_ms });
        assert_eq!(opened.wait_ms, left_ms);
        assert_eq!(opened.durable.d_ms, 8192, "D stays");
    }
}

#[test]
fn a_clean_end_writes_what_is_still_to_be_written() {
    let temporary = Temporary::new();
    let (_, served) = temporary.served();
    let lease = lease("a");
    served.ask(0, set(1, &lease));
    served.handle.finish(0).expect("the disk works");
    let (opened, _) = temporary.open().expect("it is there");
    assert_eq!(opened.records, [lease]);
}

#[test]
fn a_store_that_never_served_leaves_the_wait_as_it_was() {
    let temporary = Temporary::new();
    let (_, served) = temporary.served();
    served.handle.finish(0).expect("the disk works");
    for _ in 0..2 {
        let (opened, _) = temporary.open().expect("it is there");
        assert_eq!(opened.previous, PreviousEnd::Clean { left_ms: 0 });
    }

    let (_, served) = temporary.served();
    served.ask(0, Ask::Raise { to_ms: 262_144 });
    served.news();
    drop(served);
    let started_at = clock::now();
    drop(temporary.open().expect("it is there"));
    let (opened, _) = temporary.open().expect("it is there");
    let passed_ms = clock::now().millis_since_ceil(started_at);
    assert!((262_144 - passed_ms..=262_144).contains(&opened.wait_ms));
}

#[test]
fn skipping_the_grace_leaves_nothing_to_wait_for() {
    let temporary = Temporary::new();
    let (_, served) = temporary.served();
    served.ask(0, Ask::Raise { to_ms: 8192 });
    served.news();
    drop(served);
    let config = StoreConfig {
        skip_grace: true,
        ..temporary.config()
    };
    let (opened, _store) = Store::open(&config).expect("it is there");
    assert_eq!((opened.wait_ms, opened.durable.grace_end), (0, Time::ZERO));
    assert_eq!(opened.previous, PreviousEnd::Unclean { d_ms: 8192 });
}

#[test]
fn one_server_has_the_directory_at_a_time() {
    let temporary = Temporary::new();
    let (_, served) = temporary.served();
    let error = temporary.open().expect_err("it is taken");
    let directory = temporary.config().directory;
    let expected = format!("{} is in use by another server", directory.display());
    assert_eq!(error.to_string(), expected);
    drop(served);
    temporary.open().expect("it is free");
}

#[test]
fn a_directory_that_cannot_be_written_is_named() {
    let temporary = Temporary::new();
    let file = temporary.0.join("parent");
    fs::write(&file, "").expect("the directory is the test's own");
    let error = temporary.open().expect_err("it is no directory");
    let directory = temporary.config().directory;
    let expected = format!("cannot create {}", directory.display());
    assert!(error.to_string().starts_with(&expected), "{error}");

    let config = StoreConfig {
        // Nobody may make files there, not even root.
        directory: "/proc/self".into(),
        ..temporary.config()
    };
    let error = Store::open(&config).expect_err("no file can be made there");
    let expected = "cannot open /proc/self/lock";
    assert!(error.to_string().starts_with(expected), "{error}");
}

fn temporary_after_a_crash() -> Temporary {
    let temporary = Temporary::new();
    let (_, served) = temporary.served();
    served.ask(0, Ask::Raise { to_ms: 8192 });
    served.news();
    served.ask(0, set(1, &lease("a")));
    served.news();
    drop(served);
    temporary
}

#[test]
fn one_copy_is_enough_and_is_soon_two_again() {
    for name in ["state-1", "state-2"] {
        for contents in [None, Some("garbage")] {
            let temporary = temporary_after_a_crash();
            let path = temporary.file(name);
            match contents {
                None => fs::remove_file(&path),
                Some(contents) => fs::write(&path, contents),
            }
            .expect("the directory is the test's own");
            let (opened, _) = temporary.open().expect("the other is whole");
            assert_eq!(opened.wait_ms, 8192);
            let whole = fs::read(&path).expect("it was mended");
            assert_eq!(whole.len(), crate::store::format::STATE_BYTES);
        }
    }
}

#[test]
fn nothing_is_granted_when_it_is_not_known_what_is_held() {
    let remove: fn(&Path) -> io::Result<()> = |path| fs::remove_file(path);
    let garble: fn(&Path) -> io::Result<()> = |path| fs::write(path, "garbage");
    let empty: fn(&Path) -> io::Result<()> = |path| fs::write(path, "");
    for (damage, named) in [
        (&[("state-1", garble), ("state-2", garble)][..], "state-1"),
        (&[("state-1", remove), ("state-2", garble)], "state-2"),
        (&[("state-1", remove), ("state-2", remove)], "leases.redb"),
        (&[("leases.redb", garble)], "leases.redb"),
        (&[("leases.redb", empty)], "leases.redb"),
    ] {
        let temporary = temporary_after_a_crash();
        for (name, damage) in damage {
            damage(&temporary.file(name)).expect("the directory is the test's own");
        }
        let before = fs::read(temporary.file("leases.redb")).expect("it is there");
        for _ in 0..2 {
            let error = temporary.open().expect_err("not all is known").to_string();
            assert!(error.contains(&*temporary.file(named).to_string_lossy()));
            assert!(error.contains("docs/operations.md"), "{error}");
        }
        let after = fs::read(temporary.file("leases.redb")).expect("it is there");
        assert_eq!(before, after, "nothing is changed");
    }
}

/// A disk that is full from time to time.
#[derive(Clone, Debug, Default)]
struct Full {
    is_full: Arc<AtomicBool>,
}

impl Full {
    fn outcome(&self) -> io::Result<()> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::StorageFull.into()),
            false => Ok(()),
        }
    }

    fn served(&self) -> Served {
        let durable = Durable {
            token_block: TOKEN_BLOCK,
            d_ms: 1024,
            cap_ms: 300_000,
            mark: 1,
            started_at: Time::ZERO,
            grace_end: Time::ZERO,
        };
        let (copies, _) = Copies::load(self.clone()).expect("it is empty");
        let boot = Boot::named("boot");
        let (records, _) = Records::open(self.clone(), boot, Time::ZERO, 0).expect("it is empty");
        let writer = Writer::new(StoreCore::new(2, &durable), copies, records);
        Served::new(|wake| thread::start(writer, 2, wake))
    }
}

impl Media for Full {
    fn read(&mut self, _: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn replace(&mut self, _: usize, _: &[u8]) -> io::Result<()> {
        self.outcome()
    }

    fn write(&mut self, _: usize, _: &[u8]) -> io::Result<()> {
        self.outcome()
    }

    fn sync(&mut self, _: usize) -> io::Result<()> {
        self.outcome()
    }

    fn name(&self, copy: usize) -> String {
        format!("copy {copy}")
    }
}

impl Place for Full {
    type Backend = redb::backends::InMemoryBackend;

    fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        Ok(None)
    }

    fn replace(&mut self, _: &[u8]) -> io::Result<()> {
        self.outcome()
    }

    fn open(&mut self) -> io::Result<Self::Backend> {
        self.outcome()?;
        Ok(redb::backends::InMemoryBackend::new())
    }

    fn remove(&mut self) -> io::Result<()> {
        self.outcome()
    }

    fn path(&self) -> PathBuf {
        "a-file".into()
    }
}

#[test]
fn a_full_disk_refuses_what_needs_it_until_there_is_room() {
    let disk = Full::default();
    let served = disk.served();
    disk.is_full.store(true, Ordering::Relaxed);
    served.ask(0, Ask::Raise { to_ms: 8192 });
    assert_eq!(served.news(), (0, vec![News::NotRaised]));
    served.ask(1, Ask::Reserve { mark: 9 });
    assert_eq!(served.news(), (1, vec![News::NotReserved]));
    served.ask(0, set(1, &lease("a")));
    let failed = (0, vec![News::NotRecorded { up_to: 1 }]);
    assert_eq!(served.news(), failed);
    assert_eq!(served.news(), failed, "it is tried again by itself");

    disk.is_full.store(false, Ordering::Relaxed);
    served.ask(1, Ask::Raise { to_ms: 8192 });
    let mut awaited = vec![(0, News::Recorded { up_to: 1 }), (1, News::Raised)];
    while !awaited.is_empty() {
        let (index, told) = served.news();
        awaited.retain(|(of, news)| *of != index || !told.contains(news));
    }
}

#[test]
fn an_end_that_cannot_be_written_is_told() {
    let disk = Full::default();
    let served = disk.served();
    disk.is_full.store(true, Ordering::Relaxed);
    let error = served.handle.finish(0).expect_err("the disk is full");
    assert!(error.to_string().starts_with("cannot write copy 0"));

    let disk = Full::default();
    let served = disk.served();
    disk.is_full.store(true, Ordering::Relaxed);
    served.ask(0, set(1, &lease("a")));
    let error = served.handle.finish(0).expect_err("the disk is full");
    assert!(error.to_string().starts_with("a-file cannot be used"));
}
