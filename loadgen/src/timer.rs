//! A timer that epoll sees: exact to microseconds, where epoll's own wait is not.

use mio::unix::SourceFd;
use mio::{Interest, Registry, Token};
use rustix::fd::{AsRawFd as _, OwnedFd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};
use std::io;

/// One timer on the boottime clock.
#[derive(Debug)]
pub(crate) struct Timer {
    fd: OwnedFd,
    armed_for_ns: u64,
}

const NANOS_PER_S: u64 = 1_000_000_000;

impl Timer {
    /// A timer whose end epoll tells as `token`, once each time.
    ///
    /// # Errors
    /// As timerfd_create(2) and epoll_ctl(2).
    pub(crate) fn new(registry: &Registry, token: Token) -> io::Result<Timer> {
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let fd = timerfd_create(TimerfdClockId::Boottime, flags)?;
        registry.register(&mut SourceFd(&fd.as_raw_fd()), token, Interest::READABLE)?;
        Ok(Timer {
            fd,
            armed_for_ns: 0,
        })
    }

    /// Sets its end, if that changes it.
    ///
    /// # Errors
    /// As timerfd_settime(2).
    pub(crate) fn arm(&mut self, at_ns: u64) -> io::Result<()> {
        // 0 would turn it off.
        let at_ns = at_ns.max(1);
        if self.armed_for_ns == at_ns {
            return Ok(());
        }
        self.armed_for_ns = at_ns;
        let end = Itimerspec {
            it_interval: Timespec {
                tv_sec: 0,
                tv_nsec: 0,
            },
            it_value: Timespec {
                tv_sec: (at_ns / NANOS_PER_S) as i64,
                tv_nsec: (at_ns % NANOS_PER_S) as _,
            },
        };
        timerfd_settime(&self.fd, TimerfdTimerFlags::ABSTIME, &end)?;
        Ok(())
    }
}
