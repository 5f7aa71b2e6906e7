//! Requests that wait for room on their way to another loop. The mesh refuses what
//! has no room; nobody is blocked by that but the session that asked.

use std::collections::VecDeque;

use crate::ids::SessionId;
use crate::mesh::DlmCall;

/// Sessions that go on per target and turn, once there is room: few enough that a turn
/// stays short, and most would find the ring full again.
const RESUMED_PER_TURN: usize = 64;

/// What waits.
#[derive(Debug)]
pub(super) enum Waiting {
    /// A native session, whose next request is for a key of that loop.
    Native(SessionId),
    /// A DLM request for a name of that loop.
    Dlm(Box<DlmCall>),
}

impl Waiting {
    pub(super) fn session(&self) -> SessionId {
        match self {
            Waiting::Native(id) => *id,
            Waiting::Dlm(call) => call.session,
        }
    }
}

/// Who waits, for each loop in the order they came.
#[derive(Debug)]
pub(super) struct Rooms {
    targets: Vec<Room>,
    /// How many targets have room for somebody who waits.
    open: usize,
}

#[derive(Debug, Default)]
struct Room {
    waiting: VecDeque<Waiting>,
    /// There was room when last heard of, and somebody waits.
    is_open: bool,
}

impl Rooms {
    pub(super) fn new(loops: u16) -> Rooms {
        Rooms {
            targets: (0..loops).map(|_| Room::default()).collect(),
            open: 0,
        }
    }

    /// `target` has refused a request of this session's, which waits now. Each session
    /// waits once; `is_live` tells those that are over, which are forgotten when they
    /// prevail among `sessions` living ones.
    pub(super) fn wait(
        &mut self,
        target: u16,
        waiting: Waiting,
        sessions: usize,
        is_live: impl Fn(SessionId) -> bool,
    ) {
        let room = &mut self.targets[usize::from(target)];
        if room.waiting.len() > 64 + 2 * sessions {
            room.waiting.retain(|other| is_live(other.session()));
        }
        room.waiting.push_back(waiting);
        if std::mem::take(&mut room.is_open) {
            self.open -= 1;
        }
    }

    /// `target` has room again.
    pub(super) fn open(&mut self, target: u16) {
        let room = &mut self.targets[usize::from(target)];
        if !room.is_open && !room.waiting.is_empty() {
            room.is_open = true;
            self.open += 1;
        }
    }

    /// Whether somebody who waits may find room now.
    pub(super) fn any_open(&self) -> bool {
        self.open > 0
    }

    /// Takes those who may go on in this turn.
    pub(super) fn take_resumable(&mut self, resumed: &mut Vec<Waiting>) {
        if self.open == 0 {
            return;
        }
        for room in self.targets.iter_mut().filter(|room| room.is_open) {
            let count = room.waiting.len().min(RESUMED_PER_TURN);
            resumed.extend(room.waiting.drain(..count));
            if room.waiting.is_empty() {
                room.is_open = false;
                self.open -= 1;
            }
        }
    }

    /// How often a session is listed. Walks everything.
    pub(super) fn count_of(&self, id: SessionId) -> usize {
        let all = self.targets.iter().flat_map(|room| &room.waiting);
        all.filter(|waiting| waiting.session() == id).count()
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        let open = self.targets.iter().filter(|room| room.is_open).count();
        assert_eq!(self.open, open);
        for room in &self.targets {
            assert!(!room.is_open || !room.waiting.is_empty());
        }
    }
}
