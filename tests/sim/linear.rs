//! Whether what clients saw of one key can be explained by a lock that does one thing
//! at a time. The search is Wing and Gong's, with Lowe's memory of what led nowhere.
//!
//! Every request takes effect at one moment between its last byte's sending and its
//! answer; requests of one session in the order sent. Of moments only bounds are known,
//! so each is taken as early as may be where something must not come too early, and as
//! late as may be where something must not come too late: a history is never refused
//! for want of a better choice.
//!
//! By themselves happen: a lease ends, at its deadline or later, but before anybody
//! looks; a wait ends; a session's end takes its queued acquires away, and grants that
//! it was not told of. Whatever frees a key grants the head of its queue in the same step.
//!
//! When exactly a queued acquire left that was not granted is not searched for: from the
//! time at which it may have, it counts as there or not, whichever fits.

use std::collections::HashSet;

use leasehold::dlm::Status;
use leasehold::engine::time::{NANOS_PER_MS, Time};

use crate::linear_state::{
    Deadline, Holder, Moment, Queued, State, Who, extend, lock, status_of, test, use_data,
};

/// What one request asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Call {
    Acquire {
        owner: u64,
        wait_ms: u32,
        lease_ms: u32,
    },
    Release {
        token: u64,
    },
    Extend {
        token: u64,
        lease_ms: u32,
    },
    Cancel {
        target: u64,
    },
    Query,
    /// A DLM holder's Lock.
    Lock {
        id: u32,
        ttl_ms: u64,
    },
    Unlock {
        id: u32,
    },
    Test {
        id: u32,
    },
    /// Of a value, known by its length.
    Put {
        id: u32,
        ttl_ms: u64,
        value: usize,
    },
    Get {
        id: u32,
    },
    Erase {
        id: u32,
    },
}

/// What it was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Granted {
        token: u64,
        waited_ms: u32,
    },
    TimedOut,
    /// Refused for what others do: the key is held.
    Busy,
    /// Refused, whatever the key's state.
    Refused,
    Released,
    NotHeld,
    Extended {
        remaining_ms: u32,
    },
    State {
        is_held: bool,
        remaining_ms: u32,
        waiters: usize,
    },
    Cancelled(bool),
    Dlm {
        status: Status,
        value: Option<usize>,
    },
}

/// One request as its client knows it.
#[derive(Clone, Debug)]
pub(crate) struct Op {
    pub(crate) call: Call,
    /// When its last byte was sent.
    pub(crate) from: Time,
    /// `None`: it may have taken effect or not.
    pub(crate) answer: Option<Answer>,
    /// When it was answered, or when at the latest it can have taken effect.
    pub(crate) upto: Time,
    /// It was refused, or else the session's later request with this number was: the
    /// two are the same, and the answers do not tell.
    pub(crate) twin: Option<usize>,
}

/// The requests of one session for the key, in the order sent.
#[derive(Clone, Debug)]
pub(crate) struct Session {
    pub(crate) ops: Vec<Op>,
    /// Its end may be seen from then on; [`Time::MAX`] if it lives.
    pub(crate) ends_from: Time,
    /// Its end in order releases its grants.
    pub(crate) releases_on_close: bool,
}

/// All that clients know of one key.
#[derive(Clone, Debug)]
pub(crate) struct History {
    pub(crate) sessions: Vec<Session>,
    pub(crate) expiry_grace_ms: u64,
}

/// What the search comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Explained,
    /// No order explains it; the furthest that one came.
    Unexplained(String),
    /// There are more states than were to be looked at.
    Undecided,
}

/// Looks for an order that explains the history, through so many states at most.
pub(crate) fn check(history: &History, most_states: usize) -> Verdict {
    let search = Search::new(history);
    let start = State {
        judged: vec![0; history.sessions.len()],
        queue: Vec::new(),
        holder: None,
        data: None,
        now: Time::ZERO,
        last_token: 0,
        refused: Vec::new(),
    };
    let mut seen = HashSet::new();
    let mut open = vec![start];
    let mut furthest: Option<State> = None;
    while let Some(state) = open.pop() {
        if search.is_complete(&state) {
            return Verdict::Explained;
        }
        if !seen.insert(state.clone()) {
            continue;
        }
        if seen.len() > most_states {
            return Verdict::Undecided;
        }
        let count = |state: &State| state.judged.iter().map(|&it| u64::from(it)).sum::<u64>();
        if furthest.as_ref().is_none_or(|it| count(it) < count(&state)) {
            furthest = Some(state.clone());
        }
        search.push_next(&state, &mut open);
    }
    Verdict::Unexplained(search.describe(&furthest.expect("the first state was looked at")))
}

impl Op {
    /// Whether it was answered, and so that it changes nothing, now or later. (A DLM Lock
    /// that renews nothing now could take the key later.)
    fn only_looks(&self) -> bool {
        match self.answer {
            None => false,
            Some(Answer::Dlm { status, .. }) => match self.call {
                Call::Lock { .. } => status != Status::Locked,
                Call::Unlock { .. } => status != Status::Unlocked,
                Call::Put { .. } => status != Status::Done,
                _ => true,
            },
            Some(answer) => !matches!(answer, Answer::Extended { .. }),
        }
    }
}

struct Search<'a> {
    history: &'a History,
    /// By session, for each of its requests: when the first of it and later ones was
    /// judged at the latest.
    judged_by: Vec<Vec<Time>>,
}

impl Search<'_> {
    fn new(history: &History) -> Search<'_> {
        let judged_by = history.sessions.iter().map(|session| {
            let mut first = Time::MAX;
            let mut by: Vec<Time> = Vec::with_capacity(session.ops.len() + 1);
            by.push(first);
            for (index, op) in session.ops.iter().enumerate().rev() {
                if op.answer.is_some() {
                    let twin = session.ops.iter().find(|it| it.twin == Some(index));
                    let refused_by = twin.map_or(Time::ZERO, |it| it.upto);
                    first = first.min(judged_by(session, op).max(refused_by));
                }
                by.push(first);
            }
            by.reverse();
            by
        });
        Search {
            judged_by: judged_by.collect(),
            history,
        }
    }

    fn next_op(&self, state: &State, session: usize) -> &Op {
        &self.history.sessions[session].ops[usize::from(state.judged[session])]
    }

    fn op(&self, queued: Queued) -> &Op {
        &self.history.sessions[queued.session].ops[queued.op]
    }

    /// Whatever happens next happens by then.
    fn bound(&self, state: &State) -> Time {
        let unjudged = state
            .judged
            .iter()
            .zip(&self.judged_by)
            .map(|(&judged, by)| by[usize::from(judged)]);
        let queued = state.queue.iter().filter_map(|&queued| {
            let op = self.op(queued);
            let leaves = op.answer == Some(Answer::TimedOut) && queued.leaves_from <= op.upto;
            (op.answer.is_some() && !leaves).then_some(op.upto)
        });
        unjudged.chain(queued).min().unwrap_or(Time::MAX)
    }

    fn is_complete(&self, state: &State) -> bool {
        self.bound(state) == Time::MAX
    }

    /// Everything that may happen next, the likeliest last.
    fn push_next(&self, state: &State, open: &mut Vec<State>) {
        let bound = self.bound(state);
        let before = open.len();
        self.push_released(state, bound, open);
        self.push_expired(state, bound, open);
        let mut next: Vec<(Time, usize)> = Vec::new();
        for (session, &judged) in state.judged.iter().enumerate() {
            if let Some(op) = self.history.sessions[session].ops.get(usize::from(judged))
                && op.from <= bound
                && op.upto >= state.now
            {
                let judged_by = self.judged_by[session][usize::from(judged)];
                next.push((judged_by.min(op.upto), session));
            }
        }
        next.sort_unstable_by_key(|&(upto, session)| (std::cmp::Reverse(upto), session));
        for (_, session) in next {
            let others = open.len();
            self.push_judged(state, session, bound, open);
            if self.next_op(state, session).only_looks()
                && open.len() == others + 1
                && open[others].differs_only_in_judged(state)
            {
                // It changes nothing whenever it comes, so it may as well come first.
                open.drain(before..others);
                return;
            }
        }
    }

    /// A grant ends with its session.
    fn push_released(&self, state: &State, bound: Time, open: &mut Vec<State>) {
        if let Some(holder) = &state.holder
            && holder.ends_from.max(state.now) <= bound
        {
            let at = holder.ends_from.max(state.now);
            self.pass_on(state.clone(), at, bound, open);
        }
    }

    fn push_expired(&self, state: &State, bound: Time, open: &mut Vec<State>) {
        let Some(holder) = &state.holder else {
            return;
        };
        let at = holder.deadline.earliest.max(state.now);
        if at > bound {
            return;
        }
        let grace_ms = self.history.expiry_grace_ms;
        if grace_ms > 0 && holder.who != Who::Nobody {
            let mut state = state.clone();
            state.now = at;
            state.holder = Some(Holder {
                who: Who::Nobody,
                deadline: Deadline {
                    earliest: holder.deadline.earliest.plus_millis(grace_ms),
                    latest: holder.deadline.latest.plus_millis(grace_ms),
                },
                ends_from: Time::MAX,
                session: usize::MAX,
            });
            open.push(state);
        } else {
            self.pass_on(state.clone(), at, bound, open);
        }
    }

    /// The holder is gone: the head of the queue is granted, or the key is free.
    fn pass_on(&self, mut state: State, mut at: Time, bound: Time, open: &mut Vec<State>) {
        state.holder = None;
        while !state.queue.is_empty() {
            let head = state.queue.remove(0);
            let op = self.op(head);
            let waited_ms = match op.answer {
                Some(Answer::Granted { waited_ms, .. }) => Some(waited_ms),
                None => Some(0),
                Some(_) => None,
            };
            if let Some(waited_ms) = waited_ms {
                let earliest = at.max(head.since.plus_millis(waited_ms.into()));
                if earliest <= bound && earliest <= op.upto {
                    let mut state = state.clone();
                    state.now = earliest;
                    open.extend(self.grant(state, (head.session, head.op), bound));
                }
            }
            at = at.max(head.leaves_from);
            if matches!(op.answer, Some(Answer::Granted { .. })) || at > bound {
                return;
            }
        }
        state.now = at;
        open.push(state);
    }

    /// The acquire is granted, not before the state's time.
    fn grant(&self, mut state: State, (session, op): (usize, usize), bound: Time) -> Option<State> {
        let Session {
            ops,
            ends_from,
            releases_on_close,
        } = &self.history.sessions[session];
        let op = &ops[op];
        let Call::Acquire { lease_ms, .. } = op.call else {
            return None;
        };
        let moment = Moment {
            earliest: state.now,
            latest: bound.min(op.upto),
        };
        let (who, ends_from) = match op.answer {
            Some(Answer::Granted { token, .. }) => {
                if token <= state.last_token {
                    return None;
                }
                state.last_token = token;
                let ends_from = if *releases_on_close {
                    *ends_from
                } else {
                    Time::MAX
                };
                (Who::Native { token }, ends_from)
            }
            _ => (Who::Untold, *ends_from),
        };
        state.holder = Some(Holder {
            who,
            deadline: moment.plus_millis(lease_ms.into()),
            ends_from,
            session,
        });
        Some(state)
    }

    /// The session's next request is judged.
    fn push_judged(&self, state: &State, session: usize, bound: Time, open: &mut Vec<State>) {
        let index = usize::from(state.judged[session]);
        let op = &self.history.sessions[session].ops[index];
        let mut next = state.clone();
        next.judged[session] += 1;
        next.now = state.now.max(op.from);
        if next.now > bound {
            return;
        }
        self.let_leave(&mut next);
        let moment = Moment {
            earliest: next.now,
            latest: bound.min(op.upto),
        };
        let uses_data = matches!(
            op.call,
            Call::Put { .. } | Call::Get { .. } | Call::Erase { .. }
        );
        if !uses_data && next.holder.is_some() && !next.is_unexpired(moment) {
            // Whatever looks at the key finds the lease over first.
            return;
        }
        if let Some(place) = next.refused.iter().position(|&it| it == (session, index)) {
            next.refused.remove(place);
            open.push(next);
            return;
        }
        match op.call {
            Call::Acquire { wait_ms, .. } => {
                if let Some(twin) = op.twin {
                    let mut next = next.clone();
                    next.refused.push((session, twin));
                    open.extend(self.acquire(next, (session, twin), wait_ms, bound));
                }
                if op.answer.is_none() {
                    // It may have been refused.
                    open.push(next.clone());
                }
                open.extend(self.acquire(next, (session, index), wait_ms, bound));
            }
            Call::Release { token } => match (op.answer, next.is_held_by(token, moment)) {
                (Some(Answer::Released) | None, true) => {
                    self.pass_on(next, moment.earliest, bound, open);
                }
                (Some(Answer::NotHeld) | None, _) if !next.has_token(token) => open.push(next),
                _ => {}
            },
            Call::Extend { token, lease_ms } => {
                open.extend(extend(next, (session, op), (token, lease_ms), moment));
            }
            Call::Cancel { target } => {
                open.extend(self.cancel(next, (session, op), target, moment.latest));
            }
            Call::Query => open.extend(self.query(next, op, moment)),
            Call::Lock { id, ttl_ms } => open.extend(lock(next, op, (id, ttl_ms), moment)),
            Call::Unlock { id } => self.unlock(next, op, id, (moment, bound), open),
            Call::Test { id } => open.extend(test(next, op, id, moment)),
            Call::Put { .. } | Call::Get { .. } | Call::Erase { .. } => {
                if let Some(data) = next.data {
                    let mut over = next.clone();
                    over.data = None;
                    over.now = over.now.max(data.deadline.earliest);
                    let earliest = over.now;
                    if earliest <= moment.latest {
                        open.extend(use_data(over, op, Moment { earliest, ..moment }));
                    }
                }
                open.extend(use_data(next, op, moment));
            }
        }
    }

    /// Those who are known to have left are gone.
    fn let_leave(&self, state: &mut State) {
        let now = state.now;
        state.queue.retain(|&queued| now <= self.op(queued).upto);
    }

    fn acquire(
        &self,
        mut state: State,
        (session, index): (usize, usize),
        wait_ms: u32,
        bound: Time,
    ) -> Option<State> {
        let op = &self.history.sessions[session].ops[index];
        let is_held = state.holder.is_some();
        let waited_ms = match op.answer {
            Some(Answer::Granted { waited_ms, .. }) => waited_ms,
            Some(Answer::Refused) => return Some(state),
            Some(Answer::Busy) => return is_held.then_some(state),
            Some(Answer::TimedOut) | None => 0,
            Some(_) => return None,
        };
        if !is_held {
            let may_be_granted = op.answer != Some(Answer::TimedOut) && waited_ms == 0;
            return may_be_granted
                .then(|| self.grant(state, (session, index), bound))
                .flatten();
        }
        if wait_ms == 0 {
            let is_over = matches!(op.answer, None | Some(Answer::TimedOut));
            return is_over.then_some(state);
        }
        if op.answer.is_some() && state.now.plus_millis(waited_ms.into()) > op.upto {
            return None;
        }
        let over = state.now.plus_millis(wait_ms.into());
        let leaves_from = match op.answer {
            Some(Answer::Granted { .. }) => Time::MAX,
            _ => over.min(self.history.sessions[session].ends_from),
        };
        state.queue.push(Queued {
            session,
            op: index,
            since: state.now,
            leaves_from: leaves_from.max(state.now),
        });
        Some(state)
    }

    fn cancel(
        &self,
        mut state: State,
        (session, op): (usize, &Op),
        target: u64,
        latest: Time,
    ) -> Option<State> {
        let is_target = |queued: &Queued| {
            let call = &self.op(*queued).call;
            queued.session == session
                && matches!(call, Call::Acquire { owner, .. } if *owner == target)
        };
        let place = state.queue.iter().position(is_target);
        match (op.answer, place) {
            (Some(Answer::Cancelled(true)) | None, Some(place)) => {
                let queued = state.queue.remove(place);
                let answer = self.op(queued).answer;
                matches!(answer, None | Some(Answer::TimedOut)).then_some(state)
            }
            (Some(Answer::Cancelled(false)), _) => {
                let found = state.queue.iter().copied().filter(is_target);
                let left_at = found.map(|queued| queued.leaves_from).max();
                state.now = state.now.max(left_at.unwrap_or(Time::ZERO));
                state.queue.retain(|queued| !is_target(queued));
                (state.now <= latest).then_some(state)
            }
            (None, None) => Some(state),
            _ => None,
        }
    }

    fn query(&self, mut state: State, op: &Op, moment: Moment) -> Option<State> {
        let Some(Answer::State {
            is_held,
            remaining_ms,
            waiters,
        }) = op.answer
        else {
            return Some(state);
        };
        let may_have_left = |queued: &&Queued| queued.leaves_from <= moment.latest;
        let most = state.queue.len();
        let least = most - state.queue.iter().filter(may_have_left).count();
        if is_held != state.holder.is_some() || !(least..=most).contains(&waiters) {
            return None;
        }
        if is_held && remaining_ms < u32::MAX {
            if !state.is_unexpired(moment) {
                return None;
            }
            let holder = state.holder.as_mut()?;
            let told = moment.plus_millis(remaining_ms.into());
            let earliest = told.earliest.as_nanos() - NANOS_PER_MS;
            holder.deadline = holder.deadline.and(Deadline {
                earliest: Time::from_nanos(earliest),
                latest: told.latest,
            })?;
        }
        Some(state)
    }

    fn unlock(
        &self,
        mut state: State,
        op: &Op,
        id: u32,
        (moment, bound): (Moment, Time),
        open: &mut Vec<State>,
    ) {
        let status = op.answer.map(status_of);
        if state.is_dlm_held_by(id, moment) {
            if status.is_none_or(|status| status == Status::Unlocked) {
                state.data.take_if(|data| data.id == id);
                self.pass_on(state, moment.earliest, bound, open);
            }
            return;
        }
        let fits = match (status, state.holder) {
            (None, _) | (Some(Status::Unlocked), None) => true,
            (Some(Status::NotOwner), Some(holder)) => holder.who != (Who::Dlm { id }),
            _ => false,
        };
        if fits {
            open.push(state);
        }
    }

    fn describe(&self, state: &State) -> String {
        let mut text = format!(
            "after {:?}: {:?}, {:?}, last token {}\nqueue:\n",
            state.now, state.holder, state.data, state.last_token
        );
        for &queued in &state.queue {
            text += &format!("  session {} {:?}\n", queued.session, self.op(queued));
        }
        text += "to come:\n";
        for (session, &judged) in state.judged.iter().enumerate() {
            let left = self.history.sessions[session].ops.iter();
            for op in left.skip(judged.into()).take(3) {
                text += &format!("  session {session} {op:?}\n");
            }
        }
        text
    }
}

/// When an answered request was judged at the latest.
fn judged_by(session: &Session, op: &Op) -> Time {
    let Call::Acquire { wait_ms, owner, .. } = op.call else {
        return op.upto;
    };
    let is_target = |other: &Op| matches!(other.call, Call::Cancel { target } if target == owner);
    let waited_ms = match op.answer {
        Some(Answer::Granted { waited_ms, .. }) => waited_ms,
        Some(Answer::TimedOut) if op.upto < session.ends_from => {
            if session.ops.iter().any(is_target) {
                return op.upto;
            }
            wait_ms
        }
        _ => return op.upto,
    };
    let nanos = op.upto.as_nanos();
    let waited_nanos = u64::from(waited_ms) * NANOS_PER_MS;
    Time::from_nanos(nanos.saturating_sub(waited_nanos))
}
