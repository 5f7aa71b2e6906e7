//! Which boot this is: deadlines on the boottime clock can be compared only within one,
//! and within one time namespace, which may shift that clock (time_namespaces(7)).

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
const TIME_NAMESPACE: &str = "/proc/self/ns/time";

/// What two processes have in common if they can compare deadlines, and no others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot(String);

impl Boot {
    /// This process' boot.
    ///
    /// # Errors
    /// The file that cannot be read, and why.
    pub fn current() -> Result<Boot, (PathBuf, io::Error)> {
        let id = fs::read_to_string(BOOT_ID).map_err(|error| (BOOT_ID.into(), error))?;
        // A kernel without time namespaces has no such file.
        let namespace = fs::metadata(TIME_NAMESPACE).map_or(0, |metadata| metadata.ino());
        Ok(Boot(format!("{}/{namespace}", id.trim())))
    }

    /// The boot that goes by that name; for tests and for what was stored.
    pub fn named(name: &str) -> Boot {
        Boot(name.to_owned())
    }

    /// What it is stored as.
    pub fn name(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_boot_is_the_same_when_asked_again_and_names_itself() {
        let boot = Boot::current().expect("Linux tells");
        assert_eq!(boot, Boot::current().expect("Linux tells"));
        assert!(boot.name().len() > "/".len());
        assert_eq!(Boot::named(boot.name()), boot);
    }
}
