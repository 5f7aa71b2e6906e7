//! A disk of two copies that loses, tears and refuses.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use fastrand::Rng;

use crate::store::copies::{COPIES, Media};
use crate::store::format;

/// The disk, which outlives those who use it.
#[derive(Clone, Debug)]
pub(super) struct Disk(Rc<RefCell<Inner>>);

#[derive(Debug)]
struct Inner {
    copies: [Copy; COPIES],
    rng: Rng,
    /// Each operation fails with this chance, in a hundred.
    failures: u32,
    /// After so many steps nothing works any more.
    steps_left: Option<u32>,
    steps: u32,
}

#[derive(Clone, Debug, Default)]
struct Copy {
    /// What a power loss leaves but for what is `unsynced`.
    on_disk: Option<Vec<u8>>,
    /// What reads see.
    cached: Option<Vec<u8>>,
    unsynced: Unsynced,
    /// Since it was replaced.
    has_failed: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
enum Unsynced {
    #[default]
    Nothing,
    /// What is cached replaces what is on the disk, or not yet.
    Rename,
    /// Any of the bytes.
    Bytes,
}

impl Disk {
    pub(super) fn new(seed: u64) -> Disk {
        Disk(Rc::new(RefCell::new(Inner {
            copies: Default::default(),
            rng: Rng::with_seed(seed),
            failures: 0,
            steps_left: None,
            steps: 0,
        })))
    }

    /// From now on each operation fails with this chance, in a hundred.
    pub(super) fn set_failures(&self, failures: u32) {
        self.0.borrow_mut().failures = failures;
    }

    /// So many more steps work.
    pub(super) fn stop_after(&self, steps: Option<u32>) {
        self.0.borrow_mut().steps_left = steps;
    }

    /// How many steps there were.
    pub(super) fn steps(&self) -> u32 {
        self.0.borrow().steps
    }

    /// Whether nothing works any more.
    pub(super) fn is_stopped(&self) -> bool {
        self.0.borrow().steps_left == Some(0)
    }

    /// What is not on the disk is lost, or parts of it.
    pub(super) fn lose_power(&self) {
        let Inner { copies, rng, .. } = &mut *self.0.borrow_mut();
        for copy in copies {
            copy.on_disk = copy.may_be_left(rng);
            copy.cached = copy.on_disk.clone();
            copy.unsynced = Unsynced::Nothing;
        }
    }

    pub(super) fn contents(&self, copy: usize) -> Option<Vec<u8>> {
        self.0.borrow().copies[copy].cached.clone()
    }

    pub(super) fn put(&self, copy: usize, bytes: Option<Vec<u8>>) {
        self.0.borrow_mut().copies[copy] = Copy {
            on_disk: bytes.clone(),
            cached: bytes,
            unsynced: Unsynced::Nothing,
            has_failed: false,
        };
    }
}

impl Copy {
    fn may_be_left(&self, rng: &mut Rng) -> Option<Vec<u8>> {
        match self.unsynced {
            Unsynced::Nothing => self.on_disk.clone(),
            Unsynced::Rename if rng.bool() => self.on_disk.clone(),
            Unsynced::Rename => self.cached.clone(),
            Unsynced::Bytes => match rng.u8(..4) {
                0 => self.on_disk.clone(),
                1 => self.cached.clone(),
                _ => Some(self.torn(rng)),
            },
        }
    }

    fn torn(&self, rng: &mut Rng) -> Vec<u8> {
        let old = self.on_disk.as_deref().unwrap_or(&[]);
        let new = self.cached.as_deref().unwrap_or(&[]);
        let mut torn = new.to_vec();
        for (at, byte) in torn.iter_mut().enumerate() {
            match rng.u8(..8) {
                0 => *byte = rng.u8(..),
                1..4 => *byte = old.get(at).copied().unwrap_or(0),
                _ => {}
            }
        }
        torn
    }
}

impl Inner {
    /// Whether the step works; a stop comes for good, a failure for once.
    fn step(&mut self) -> io::Result<()> {
        self.steps += 1;
        match &mut self.steps_left {
            Some(0) => return Err(io::Error::other("stopped")),
            Some(left) => *left -= 1,
            None => {}
        }
        if self.steps_left == Some(0) || self.rng.u32(..100) < self.failures {
            return Err(io::Error::other("failed"));
        }
        Ok(())
    }
}

impl Media for Disk {
    fn read(&mut self, copy: usize) -> io::Result<Option<Vec<u8>>> {
        Ok(self.0.borrow().copies[copy].cached.clone())
    }

    fn replace(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()> {
        let inner = &mut *self.0.borrow_mut();
        // The new file is written aside and synced.
        inner.step()?;
        let at = &mut inner.copies[copy];
        at.on_disk = at.may_be_left(&mut inner.rng);
        at.cached = Some(bytes.to_vec());
        at.unsynced = Unsynced::Rename;
        // The directory is synced.
        inner.step()?;
        let at = &mut inner.copies[copy];
        at.on_disk = Some(bytes.to_vec());
        at.unsynced = Unsynced::Nothing;
        at.has_failed = false;
        Ok(())
    }

    fn write(&mut self, copy: usize, bytes: &[u8]) -> io::Result<()> {
        let inner = &mut *self.0.borrow_mut();
        let other = &inner.copies[1 - copy];
        let is_safe = other.unsynced == Unsynced::Nothing
            && format::decode(other.on_disk.as_deref().unwrap_or(&[])).is_ok();
        assert!(is_safe, "a write may leave no copy whole");
        let at = &mut inner.copies[copy];
        assert_ne!(at.unsynced, Unsynced::Rename, "this copy may not be there");
        assert!(!at.has_failed, "it is replaced, by sectors that work");
        at.unsynced = Unsynced::Bytes;
        let outcome = inner.step();
        let at = &mut inner.copies[copy];
        let mut written = bytes.to_vec();
        if outcome.is_err() {
            let old = at.cached.as_deref().unwrap_or(&[]);
            let from = inner.rng.usize(..=written.len());
            written[from..].copy_from_slice(&old[from..]);
        }
        at.cached = Some(written);
        at.has_failed = outcome.is_err();
        outcome
    }

    fn sync(&mut self, copy: usize) -> io::Result<()> {
        let inner = &mut *self.0.borrow_mut();
        let outcome = inner.step();
        let at = &mut inner.copies[copy];
        at.on_disk = match outcome {
            Ok(()) => at.cached.clone(),
            // Reads still see it, and the next sync does not try again.
            Err(_) => at.may_be_left(&mut inner.rng),
        };
        at.unsynced = Unsynced::Nothing;
        at.has_failed = outcome.is_err();
        outcome
    }

    fn name(&self, copy: usize) -> String {
        format!("copy {copy}")
    }
}
