//! What a loop waits for from its peers, and for how long.

use std::collections::VecDeque;

use crate::engine::time::Time;
use crate::ids::SessionId;
use crate::session::Sessions;

/// Deadlines that all lie equally far ahead when they are set, so that a queue
/// keeps them in order. One that its session has replaced or dropped stays as
/// chaff until it comes up or chaff prevails.
#[derive(Debug)]
pub(super) struct Deadlines {
    after_ms: u64,
    queue: VecDeque<(Time, SessionId)>,
}

impl Deadlines {
    pub(super) fn new(after_ms: u64) -> Deadlines {
        Deadlines {
            after_ms,
            queue: VecDeque::new(),
        }
    }

    /// Sets a deadline from `now`; the caller notes it in the session.
    pub(super) fn arm(&mut self, id: SessionId, now: Time, sessions: &Sessions) -> Time {
        if self.queue.len() > 64 + 2 * sessions.len() {
            self.queue.retain(|&(at, id)| is_live(at, id, sessions));
        }
        let at = now.plus_millis(self.after_ms);
        self.queue.push_back((at, id));
        at
    }

    pub(super) fn pop_due(&mut self, now: Time, sessions: &Sessions) -> Option<SessionId> {
        while let Some(&(at, id)) = self.queue.front() {
            let live = is_live(at, id, sessions);
            if live && at > now {
                return None;
            }
            self.queue.pop_front();
            if live {
                return Some(id);
            }
        }
        None
    }

    pub(super) fn next(&self) -> Option<Time> {
        self.queue.front().map(|&(at, _)| at)
    }
}

fn is_live(at: Time, id: SessionId, sessions: &Sessions) -> bool {
    sessions
        .get(id)
        .is_some_and(|session| session.give_up_at == Some(at))
}
