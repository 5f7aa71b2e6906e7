//! Files that a test needs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory of one test's own, removed at its end.
#[derive(Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// A new, empty one.
    pub fn new(name: &str) -> Directory {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let process = std::process::id();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let unique = format!("leasehold-test-{process}-{number}-{name}");
        let path = std::env::temp_dir().join(unique);
        std::fs::create_dir(&path).expect("the name is nobody else's");
        Directory(path)
    }

    /// The path of the directory itself.
    pub fn path(&self) -> &str {
        self.0.to_str().expect("the name above is UTF-8")
    }

    /// The path of a file in it.
    pub fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        // Left behind, it does no harm.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
