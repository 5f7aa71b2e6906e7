//! Whether this kernel offers what the driver needs: not asked but tried, by one
//! connection's whole life on a ring.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

use super::ring::{Accepted, Completion, DirectFd, Received, Ring};
use super::setup::{RingOptions, Way};
use crate::clock;
use crate::ids::SessionId;

/// How long the whole trial may take; it takes about a millisecond.
const PATIENCE_MS: u64 = 2_000;

/// A submitted operation wakes its waiter; this only bounds a wait in vain.
const PAUSE: Duration = Duration::from_millis(10);

/// More than a socket holds.
const LARGE_BYTES: usize = 16 * 1024 * 1024;

/// Tries everything the driver relies on: a ring with its tables, multishot accept
/// into a direct descriptor, multishot receive into a pool of buffers, both kinds of
/// sends, cancelling, leaving the table and coming back, closing; and room for a loop's ring.
///
/// # Errors
/// What this kernel lacks or forbids.
pub(in super::super) fn probe() -> Result<(), String> {
    // On a thread of its own: a ring that is taken down interrupts, some time later,
    // a system call of the thread that used it.
    let trial = thread::Builder::new()
        .name("probe".into())
        .spawn(try_everything)
        .map_err(|error| format!("there is no thread to try io_uring on: {error}"))?;
    match trial.join() {
        Ok(outcome) => outcome,
        Err(_) => unreachable!("a panic ends the process"),
    }
}

fn try_everything() -> Result<(), String> {
    let options = RingOptions {
        submissions: 8,
        completions: 16,
        buffers: 2,
        buffer_bytes: 64,
        files: 2,
        way: Way::Deferred,
    };
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::PermissionDenied => {
            format!("io_uring is forbidden here (kernel.io_uring_disabled, seccomp): {error}")
        }
        _ => format!("no io_uring with what is needed: {error}"),
    };
    let ring = Ring::new(options, 0).map_err(refused)?;
    let mut trial = Trial {
        ring,
        done: Vec::new(),
    };
    trial.run().map_err(|error| error.to_string())?;
    // One as large as a loop's: that there is room for it is known now, while another
    // driver can be chosen.
    Ring::new(RingOptions::new(0), 0).map_err(refused).map(drop)
}

struct Trial {
    ring: Ring,
    done: Vec<Completion>,
}

impl Trial {
    fn run(&mut self) -> io::Result<()> {
        let id = SessionId::new(0, 0, 0);
        self.ring.enable()?;
        let (listener, address) = listen()?;
        self.ring.accept(listener.as_fd(), 0);
        let mut client = UnixStream::connect_addr(&address)?;
        client.set_read_timeout(Some(Duration::from_millis(PATIENCE_MS)))?;
        let fd = self.accept()?;

        self.ring.receive(&fd, id);
        for message in [b"one", b"two", b"six"] {
            client.write_all(message)?;
            self.receive(message)?;
        }

        self.ring.send(&fd, id, b"answer".to_vec());
        self.sent(id, |sent, left| sent == 6 && left == 0)?;
        let mut answer = [0; 6];
        client.read_exact(&mut answer)?;

        // What a full socket does not take must be told, waited for, and cancelled.
        self.ring.send(&fd, id, vec![0; LARGE_BYTES]);
        self.sent(id, |sent, left| sent > 0 && sent + left == LARGE_BYTES)?;
        self.ring.send_rest(&fd, id);
        self.ring.submit_and_wait(Some(Duration::ZERO))?;
        self.ring.cancel_send(id);
        match self.next("cancel")? {
            Completion::Sent {
                outcome: Err(Errno::CANCELED),
                ..
            } => self.ring.take_back(id),
            other => return Err(wrong("cancel", &other)),
        };
        self.ring.cancel_receive(id);
        match self.next("cancel")? {
            Completion::Received {
                outcome: Received::Cancelled,
                armed: false,
                ..
            } => {}
            other => return Err(wrong("cancel", &other)),
        }

        self.ring.install(fd, 0);
        let socket = match self.next("FIXED_FD_INSTALL")? {
            Completion::Installed {
                outcome: Ok(socket),
                ..
            } => socket,
            other => return Err(wrong("FIXED_FD_INSTALL", &other)),
        };
        self.ring.adopt(socket, id);
        let fd = match self.next("FILES_UPDATE")? {
            Completion::Adopted {
                outcome: Ok(fd), ..
            } => fd,
            other => return Err(wrong("FILES_UPDATE", &other)),
        };

        self.ring.close(fd, id);
        match self.next("close")? {
            Completion::Closed { .. } => {}
            other => return Err(wrong("close", &other)),
        }
        let end = client.read_to_end(&mut Vec::new())?;
        if end == 0 {
            return Err(wrong("send", &"nothing of what it said was sent"));
        }
        Ok(())
    }

    fn accept(&mut self) -> io::Result<DirectFd> {
        match self.next("multishot accept")? {
            Completion::Accepted {
                outcome: Accepted::Connection(fd),
                armed: true,
                ..
            } => Ok(fd),
            other => Err(wrong("multishot accept", &other)),
        }
    }

    fn receive(&mut self, expected: &[u8]) -> io::Result<()> {
        match self.next("multishot receive")? {
            Completion::Received {
                outcome: Received::Bytes(chunk),
                armed: true,
                ..
            } if self.ring.bytes(&chunk) == expected => {
                self.ring.give_back(chunk);
                Ok(())
            }
            other => Err(wrong("multishot receive", &other)),
        }
    }

    /// Takes a send's first completion; `right` is asked about the bytes sent and left.
    fn sent(&mut self, id: SessionId, right: fn(usize, usize) -> bool) -> io::Result<()> {
        match self.next("send")? {
            Completion::Sent {
                outcome: Ok(count), ..
            } if right(count, self.ring.unsent_bytes(id)) => {
                if self.ring.unsent_bytes(id) == 0 {
                    self.ring.take_back(id);
                }
                Ok(())
            }
            other => Err(wrong("send", &other)),
        }
    }

    /// The one completion that is expected next.
    fn next(&mut self, step: &str) -> io::Result<Completion> {
        let give_up_at = clock::now().plus_millis(PATIENCE_MS);
        while self.done.is_empty() {
            if clock::now() >= give_up_at {
                return Err(wrong(step, &"it never ends"));
            }
            self.ring.submit_and_wait(Some(PAUSE))?;
            self.ring.reap(&mut self.done);
        }
        Ok(self.done.remove(0))
    }
}

fn wrong(step: &str, got: &dyn fmt::Debug) -> io::Error {
    io::Error::other(format!(
        "io_uring's {step} does not do what is needed: {got:?}"
    ))
}

/// A listener that needs neither a file nor a network.
fn listen() -> io::Result<(UnixListener, SocketAddr)> {
    static TRIALS: AtomicU32 = AtomicU32::new(0);
    let trial = TRIALS.fetch_add(1, Ordering::Relaxed);
    let name = format!("leasehold/probe/{}/{trial}", std::process::id());
    let address = SocketAddr::from_abstract_name(name)?;
    Ok((UnixListener::bind_addr(&address)?, address))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_kernel_is_found_fit_or_says_why_not() {
        match probe() {
            Ok(()) => {}
            Err(why) => assert!(why.contains("io_uring"), "{why}"),
        }
    }
}
