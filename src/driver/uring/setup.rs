//! How a ring is made: its sizes, which of the kernel's ways it takes, and what to
//! say when the kernel refuses.

use std::io;

use io_uring::IoUring;
use rustix::process::{Resource, getrlimit};

/// Sizes of a ring and its tables.
#[derive(Clone, Copy, Debug)]
pub(in super::super) struct RingOptions {
    /// Operations handed over at a time.
    pub(super) submissions: u32,
    /// Completions that wait to be looked at; more of them are held by the kernel.
    pub(super) completions: u32,
    /// Receive buffers, a power of two.
    pub(super) buffers: u16,
    /// Size of each of them.
    pub(super) buffer_bytes: u32,
    /// Most connections that are open at a time.
    pub(super) files: u32,
    /// The best way to try.
    pub(super) way: Way,
}

/// Slots for connections that are being turned away, beside those of `--max-connections`.
const SPARE_FILES: u32 = 64;
/// The kernel allows no more (IORING_MAX_FIXED_FILES, io_uring/rsrc.c).
const MAX_FILES: u32 = 1 << 20;

impl RingOptions {
    /// What a loop needs for that many connections, as far as RLIMIT_NOFILE, which
    /// counts for a ring's table too, allows.
    pub(in super::super) fn new(max_connections: u32) -> RingOptions {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = u32::try_from(limit.unwrap_or(u64::MAX)).unwrap_or(u32::MAX);
        RingOptions {
            submissions: 1024,
            completions: 4096,
            buffers: 512,
            buffer_bytes: 4096,
            files: max_connections
                .saturating_add(SPARE_FILES)
                .min(limit)
                .min(MAX_FILES),
            way: Way::Deferred,
        }
    }
}

/// How completions come about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Run only when the loop asks for them (Linux 6.1): 16 to 28 % cheaper when
    /// requests are pipelined.
    Deferred,
    /// Run whenever the thread enters the kernel; the kernel knows that this thread
    /// alone uses the ring (Linux 6.0).
    OneIssuer,
    /// The kernel knows nothing.
    Plain,
}

impl Way {
    /// The next best.
    fn next(self) -> Option<Way> {
        match self {
            Way::Deferred => Some(Way::OneIssuer),
            Way::OneIssuer => Some(Way::Plain),
            Way::Plain => None,
        }
    }

    /// For the log.
    pub(super) fn describe(self) -> &'static str {
        match self {
            Way::Deferred => "with DEFER_TASKRUN",
            Way::OneIssuer => "without DEFER_TASKRUN",
            Way::Plain => "without DEFER_TASKRUN and SINGLE_ISSUER",
        }
    }
}

/// A ring that takes nothing before it is enabled, and the way that it goes.
///
/// # Errors
/// The kernel refused every way.
pub(super) fn build(options: RingOptions) -> io::Result<(IoUring, Way)> {
    first_known(options.way, |way| {
        let mut builder = IoUring::builder();
        builder
            .setup_clamp()
            .setup_cqsize(options.completions)
            .setup_submit_all()
            .setup_coop_taskrun()
            // The loop's thread enables it, and becomes its one issuer.
            .setup_r_disabled();
        if way != Way::Plain {
            builder.setup_single_issuer();
        }
        if way == Way::Deferred {
            builder.setup_defer_taskrun();
        }
        builder.build(options.submissions)
    })
}

/// Goes from `best` down to what the kernel knows: flags that it does not know are
/// invalid to it, and any other error is no matter of flags.
fn first_known<T>(best: Way, mut build: impl FnMut(Way) -> io::Result<T>) -> io::Result<(T, Way)> {
    let mut way = best;
    loop {
        match (build(way), way.next()) {
            (Err(error), Some(next)) if error.kind() == io::ErrorKind::InvalidInput => way = next,
            (built, _) => return built.map(|built| (built, way)),
        }
    }
}

/// Names the limit that is behind the kernel's refusal of a ring, if one is.
pub(super) fn name_the_limit(error: io::Error) -> io::Error {
    let (resource, name) = match error.raw_os_error() {
        Some(libc::ENOMEM) => (Resource::Memlock, "RLIMIT_MEMLOCK"),
        Some(libc::EMFILE) => (Resource::Nofile, "RLIMIT_NOFILE"),
        _ => return error,
    };
    let limit = match getrlimit(resource).current {
        Some(limit) => limit.to_string(),
        None => "unlimited".to_owned(),
    };
    let message = format!("no room for an io_uring: {error}; {name} is {limit}");
    io::Error::new(error.kind(), message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn refusal(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    /// What a kernel that knows only `known` leads to, and what was tried.
    fn choice(known: &[Way]) -> (io::Result<Way>, Vec<Way>) {
        let mut tried = Vec::new();
        let chosen = first_known(Way::Deferred, |way| {
            tried.push(way);
            match known.contains(&way) {
                true => Ok(()),
                false => Err(refusal(libc::EINVAL)),
            }
        });
        (chosen.map(|((), way)| way), tried)
    }

    #[test]
    fn the_best_way_that_the_kernel_knows_is_taken() {
        use Way::{Deferred, OneIssuer, Plain};
        for (known, way) in [
            (&[Deferred, OneIssuer, Plain][..], Deferred),
            (&[OneIssuer, Plain], OneIssuer),
            (&[Plain], Plain),
        ] {
            let (chosen, tried) = choice(known);
            assert_eq!(chosen.unwrap(), way);
            assert_eq!(tried.last(), Some(&way), "and nothing after it");
        }
        let (chosen, tried) = choice(&[]);
        assert_eq!(chosen.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert_eq!(tried, [Deferred, OneIssuer, Plain]);
    }

    #[test]
    fn a_refusal_that_is_no_matter_of_flags_is_final() {
        for number in [libc::ENOMEM, libc::EPERM, libc::ENOSYS, libc::EMFILE] {
            let mut tries = 0;
            let outcome = first_known(Way::Deferred, |_| -> io::Result<()> {
                tries += 1;
                Err(refusal(number))
            });
            assert_eq!(outcome.unwrap_err().raw_os_error(), Some(number));
            assert_eq!(tries, 1);
        }
    }

    #[test]
    fn a_refusal_names_the_limit_behind_it() {
        let message = |number| name_the_limit(refusal(number)).to_string();
        assert!(message(libc::ENOMEM).contains("RLIMIT_MEMLOCK is "));
        assert!(message(libc::EMFILE).contains("RLIMIT_NOFILE is "));
        assert!(!message(libc::EPERM).contains("RLIMIT"));
    }
}
