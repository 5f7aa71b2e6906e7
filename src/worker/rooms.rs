//! Requests that wait for room on their way to another loop. The mesh refuses what
//! has no room; nobody is blocked by that but the session that asked.

use std::collections::VecDeque;

use crate::ids::SessionId;
use crate::mesh::DlmCall;
use crate::session::Session;

/// Most requests that a session may send to a loop, once it is its turn, while others
/// wait for that loop too: a session that floods gets little more than one that asks once.
const MOST_REQUESTS_PER_TURN: usize = 32;

/// Sessions that go on per target and turn.
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

/// Who waits, for each loop in the order they came. While anybody does, nobody else's
/// requests go there: what comes later must not take the room.
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
    /// Native sessions that may go on and have not yet.
    resumed: usize,
}

impl Rooms {
    pub(super) fn new(loops: u16) -> Rooms {
        Rooms {
            targets: (0..loops).map(|_| Room::default()).collect(),
            open: 0,
        }
    }

    /// Whether requests to `target` have to wait for those of others.
    #[inline]
    pub(super) fn is_waited_for(&self, target: u16) -> bool {
        let room = &self.targets[usize::from(target)];
        !room.waiting.is_empty() || room.resumed > 0
    }

    /// A request to `target` waits now. Each session waits once, behind the others,
    /// unless it was its turn and there was no room. `is_live` tells those that are
    /// over, which are forgotten when they prevail among `sessions` living ones.
    pub(super) fn wait(
        &mut self,
        target: u16,
        waiting: Waiting,
        was_its_turn: bool,
        sessions: usize,
        is_live: impl Fn(SessionId) -> bool,
    ) {
        let room = &mut self.targets[usize::from(target)];
        if room.waiting.len() > 64 + 2 * sessions {
            room.waiting.retain(|other| is_live(other.session()));
        }
        if was_its_turn {
            room.waiting.push_front(waiting);
        } else {
            room.waiting.push_back(waiting);
        }
        self.shut(target);
    }

    /// `target` has room again.
    pub(super) fn open(&mut self, target: u16) {
        let room = &mut self.targets[usize::from(target)];
        if !room.is_open && !room.waiting.is_empty() {
            room.is_open = true;
            self.open += 1;
        }
    }

    /// `target` has no room, as far as is known.
    pub(super) fn shut(&mut self, target: u16) {
        if std::mem::take(&mut self.targets[usize::from(target)].is_open) {
            self.open -= 1;
        }
    }

    /// Whether somebody who waits may find room now.
    pub(super) fn any_open(&self) -> bool {
        self.open > 0
    }

    /// Whether somebody who waits for `target` may find room now.
    pub(super) fn is_open(&self, target: u16) -> bool {
        self.targets[usize::from(target)].is_open
    }

    /// Takes those who may go on in this turn, where `target` has room for `room_for`
    /// requests (at least one), and returns how many each of them may send: all of them
    /// find room.
    pub(super) fn take_resumable(
        &mut self,
        target: u16,
        room_for: usize,
        resumed: &mut Vec<Waiting>,
    ) -> u16 {
        let room = &mut self.targets[usize::from(target)];
        let count = room.waiting.len().min(RESUMED_PER_TURN).min(room_for);
        resumed.extend(room.waiting.drain(..count));
        if room.waiting.is_empty() {
            self.shut(target);
        }
        let share = (room_for / count.max(1)).clamp(1, MOST_REQUESTS_PER_TURN);
        share as u16
    }

    /// A native session may go on.
    pub(super) fn begin_turn(&mut self, target: u16) {
        self.targets[usize::from(target)].resumed += 1;
    }

    /// A native session that might go on has done so, or is over.
    pub(super) fn end_turn(&mut self, target: u16) {
        self.targets[usize::from(target)].resumed -= 1;
    }

    /// How often a session is listed. Walks everything.
    pub(super) fn count_of(&self, id: SessionId) -> usize {
        let all = self.targets.iter().flat_map(|room| &room.waiting);
        all.filter(|waiting| waiting.session() == id).count()
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants<'a>(&self, sessions: impl Iterator<Item = &'a Session>) {
        let mut resumed = vec![0; self.targets.len()];
        for session in sessions {
            if let Some(share) = &session.share {
                resumed[usize::from(share.target)] += 1;
            }
        }
        let counted: Vec<usize> = self.targets.iter().map(|room| room.resumed).collect();
        assert_eq!(counted, resumed);
        let open = self.targets.iter().filter(|room| room.is_open).count();
        assert_eq!(self.open, open);
        for room in &self.targets {
            assert!(!room.is_open || !room.waiting.is_empty());
        }
    }
}
