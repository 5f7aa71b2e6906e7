//! The matrix that every test over sockets runs in: driver and number of loops.

use super::server::Server;

/// How the server under test does its I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// `--io`.
    pub io: &'static str,
    /// `--shards`.
    pub loops: u16,
}

/// Every configuration that is tested.
pub const CONFIGURATIONS: &[Configuration] =
    &[epoll(1), epoll(2), epoll(4), uring(1), uring(2), uring(4)];

const fn epoll(loops: u16) -> Configuration {
    Configuration { io: "epoll", loops }
}

const fn uring(loops: u16) -> Configuration {
    Configuration { io: "uring", loops }
}

/// Runs a test in every configuration that this machine offers, and prints how
/// many that were.
///
/// # Panics
/// The test failed in one of them.
pub fn in_every_configuration(test: impl Fn(Configuration)) {
    let mut ran = 0;
    for &configuration in CONFIGURATIONS {
        match configuration.missing() {
            None => {
                println!("{configuration:?}");
                test(configuration);
                ran += 1;
            }
            Some(why) => println!("{configuration:?} skipped: {why}"),
        }
    }
    let skipped = CONFIGURATIONS.len() - ran;
    println!("{ran} configurations ran, {skipped} skipped");
    assert!(ran > 0, "no configuration could run");
}

impl Configuration {
    /// The flags that ask for it.
    pub fn flags(self) -> [String; 4] {
        [
            "--io".to_owned(),
            self.io.to_owned(),
            "--shards".to_owned(),
            self.loops.to_string(),
        ]
    }

    /// Why this machine cannot run it. epoll is everywhere.
    fn missing(self) -> Option<String> {
        if self.io == "epoll" {
            return None;
        }
        let refused = Server::try_start(self, &[]).err()?;
        (refused.code == Some(1) && refused.stderr.contains("--io")).then_some(refused.stderr)
    }
}
