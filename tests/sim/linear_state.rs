//! The lock as [`crate::linear`] imagines it, and what each request comes to that
//! touches no queue.

use leasehold::dlm::Status;
use leasehold::engine::time::Time;

use crate::linear::{Answer, Call, Op};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Who {
    Native {
        token: u64,
    },
    Dlm {
        id: u32,
    },
    /// A grant that no client was told of.
    Untold,
    /// The grace after a lease.
    Nobody,
}

/// When a lease is over: between these.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Deadline {
    pub(crate) earliest: Time,
    pub(crate) latest: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    pub(crate) who: Who,
    pub(crate) deadline: Deadline,
    /// From then on it may be released without a request.
    pub(crate) ends_from: Time,
    pub(crate) session: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Queued {
    pub(crate) session: usize,
    pub(crate) op: usize,
    pub(crate) since: Time,
    /// From then on it may have left, if it is not known to have been granted.
    pub(crate) leaves_from: Time,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Data {
    pub(crate) id: u32,
    pub(crate) value: usize,
    pub(crate) deadline: Deadline,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// By session, how many of its requests were judged.
    pub(crate) judged: Vec<u16>,
    pub(crate) queue: Vec<Queued>,
    pub(crate) holder: Option<Holder>,
    pub(crate) data: Option<Data>,
    /// The last event was not before this.
    pub(crate) now: Time,
    pub(crate) last_token: u64,
    /// Sessions and requests that were refused in their twin's place.
    pub(crate) refused: Vec<(usize, usize)>,
}

/// The moment of one event: not before, not after.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Moment {
    pub(crate) earliest: Time,
    pub(crate) latest: Time,
}

impl Moment {
    pub(crate) fn plus_millis(self, ms: u64) -> Deadline {
        Deadline {
            earliest: self.earliest.plus_millis(ms),
            latest: self.latest.plus_millis(ms),
        }
    }
}

impl Deadline {
    pub(crate) fn max(self, other: Deadline) -> Deadline {
        Deadline {
            earliest: self.earliest.max(other.earliest),
            latest: self.latest.max(other.latest),
        }
    }

    /// Both are known of it; `None` if they contradict each other.
    pub(crate) fn and(self, other: Deadline) -> Option<Deadline> {
        let both = Deadline {
            earliest: self.earliest.max(other.earliest),
            latest: self.latest.min(other.latest),
        };
        (both.earliest <= both.latest).then_some(both)
    }
}

impl State {
    pub(crate) fn differs_only_in_judged(&self, other: &State) -> bool {
        self.now == other.now
            && self.queue == other.queue
            && self.holder == other.holder
            && self.data == other.data
            && self.last_token == other.last_token
            && self.refused == other.refused
    }

    pub(crate) fn has_token(&self, token: u64) -> bool {
        self.holder
            .is_some_and(|holder| holder.who == Who::Native { token })
    }

    pub(crate) fn is_held_by(&self, token: u64, moment: Moment) -> bool {
        self.has_token(token) && self.is_unexpired(moment)
    }

    pub(crate) fn is_dlm_held_by(&self, id: u32, moment: Moment) -> bool {
        let is_own = |holder: Holder| holder.who == (Who::Dlm { id });
        self.holder.is_some_and(is_own) && self.is_unexpired(moment)
    }

    pub(crate) fn is_unexpired(&self, moment: Moment) -> bool {
        self.holder
            .is_some_and(|holder| moment.earliest < holder.deadline.latest)
    }
}

pub(crate) fn status_of(answer: Answer) -> Status {
    match answer {
        Answer::Dlm { status, .. } => status,
        _ => Status::BadPayload,
    }
}

pub(crate) fn extend(
    mut state: State,
    (session, op): (usize, &Op),
    (token, lease_ms): (u64, u32),
    moment: Moment,
) -> Option<State> {
    if matches!(op.answer, Some(Answer::NotHeld) | None) && !state.has_token(token) {
        return Some(state);
    }
    if op.answer == Some(Answer::NotHeld) || !state.is_held_by(token, moment) {
        return None;
    }
    let holder = state.holder.as_mut()?;
    holder.deadline = holder.deadline.max(moment.plus_millis(lease_ms.into()));
    if holder.session != session {
        holder.ends_from = Time::MAX;
    }
    if let Some(Answer::Extended { remaining_ms }) = op.answer {
        let told = moment.plus_millis(remaining_ms.into());
        holder.deadline = holder.deadline.and(Deadline {
            earliest: told.earliest,
            latest: told.latest.plus_millis(1),
        })?;
    }
    Some(state)
}

pub(crate) fn lock(
    mut state: State,
    op: &Op,
    (id, ttl_ms): (u32, u64),
    moment: Moment,
) -> Option<State> {
    let status = op.answer.map(status_of);
    let is_own = state.is_dlm_held_by(id, moment);
    let asked = moment.plus_millis(ttl_ms);
    match (status, &mut state.holder) {
        (Some(Status::No), _) => {}
        (Some(Status::Locked) | None, Some(holder)) if is_own => {
            holder.deadline = holder.deadline.max(asked);
        }
        (Some(Status::Locked) | None, None) => {
            state.holder = Some(Holder {
                who: Who::Dlm { id },
                deadline: asked,
                ends_from: Time::MAX,
                session: usize::MAX,
            });
        }
        (Some(Status::NotOwner) | None, Some(holder)) if holder.who != (Who::Dlm { id }) => {}
        _ => return None,
    }
    Some(state)
}

pub(crate) fn test(state: State, op: &Op, id: u32, moment: Moment) -> Option<State> {
    let is_own = state.is_dlm_held_by(id, moment);
    let fits = match (op.answer.map(status_of), state.holder) {
        (None, _) | (Some(Status::Unlocked), None) => true,
        (Some(Status::Locked), Some(_)) => is_own,
        (Some(Status::NotOwner), Some(holder)) => holder.who != (Who::Dlm { id }),
        _ => false,
    };
    fits.then_some(state)
}

/// Put, Get and Erase: the data slot's own state, and what a Put does to the lock.
pub(crate) fn use_data(mut state: State, op: &Op, moment: Moment) -> Option<State> {
    let status = op.answer.map(status_of);
    let is_live = |data: &Data| moment.earliest < data.deadline.latest;
    match op.call {
        Call::Put { id, ttl_ms, value } => match status {
            Some(Status::No) => {}
            Some(Status::NotOwner) => {
                let is_anothers = state.data.filter(is_live).is_some_and(|it| it.id != id);
                return is_anothers.then_some(state);
            }
            Some(Status::Done) | None => {
                if state.data.is_some_and(|data| data.id != id) {
                    return status.is_none().then_some(state);
                }
                let deadline = moment.plus_millis(ttl_ms);
                state.data = Some(Data {
                    id,
                    value,
                    deadline,
                });
                if state.is_dlm_held_by(id, moment)
                    && let Some(holder) = &mut state.holder
                {
                    holder.deadline = holder.deadline.max(deadline);
                }
            }
            Some(_) => return None,
        },
        Call::Get { id } => {
            let told = match op.answer {
                Some(Answer::Dlm { value, .. }) => value,
                _ => None,
            };
            let fits = match (status, state.data) {
                (None, _) => true,
                (Some(Status::Done), Some(data)) => {
                    is_live(&data) && data.id == id && told == Some(data.value)
                }
                (Some(Status::NotOwner), Some(data)) => is_live(&data) && data.id != id,
                (Some(Status::NoData), None) => state.is_dlm_held_by(id, moment),
                (Some(Status::NotFound), None) => {
                    let who = state.holder.map(|holder| holder.who);
                    who != Some(Who::Dlm { id })
                }
                _ => false,
            };
            return fits.then_some(state);
        }
        Call::Erase { id } => {
            let is_own = state.data.filter(is_live).is_some_and(|data| data.id == id);
            let fits = match (status, state.data) {
                (None, _) | (Some(Status::NotFound), None) => true,
                (Some(Status::Done), Some(_)) => is_own,
                (Some(Status::NotOwner), Some(data)) => is_live(&data) && data.id != id,
                _ => false,
            };
            if fits && is_own {
                state.data = None;
            }
            return fits.then_some(state);
        }
        _ => return None,
    }
    Some(state)
}
