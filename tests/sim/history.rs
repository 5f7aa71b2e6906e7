//! What clients know of each key when a history is over, for [`crate::linear`].

use std::collections::HashMap;

use leasehold::dlm::Operation;
use leasehold::engine::time::Time;
use leasehold::protocol::{ErrorCode, Reply};

use crate::dlm_talk::DlmTalk;
use crate::linear::{Answer, Call, History, Op, Session, Verdict, check};
use crate::link::{Conversation, Link};
use crate::talk::{Ask, Frame, Talk};
use crate::traffic::FIRST_WRONG_TOKEN;
use crate::world::World;

/// States that are looked at for one key before it is given up: a few histories have
/// very many requests under way at once.
const MOST_STATES: usize = 4_000;

/// How many keys' histories were explained, and how many were too much.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Explained {
    pub(crate) keys: u64,
    pub(crate) undecided: u64,
}

impl World {
    /// Each key's history so far is one of a lock that does one thing at a time.
    pub(crate) fn check_linear(&self) -> Explained {
        let mut explained = Explained::default();
        for key in 0..self.keys.len() {
            match check(&self.history_of(key), MOST_STATES) {
                Verdict::Explained => explained.keys += 1,
                Verdict::Undecided => explained.undecided += 1,
                Verdict::Unexplained(furthest) => {
                    panic!("no order of what key {key} did explains what was told: {furthest}")
                }
            }
        }
        explained
    }

    fn history_of(&self, key: usize) -> History {
        let mut ids = HashMap::new();
        let mut sessions = Vec::new();
        for link in &self.env.links {
            let ops = match &link.conversation {
                Conversation::Native(talk) => native_ops(talk, key, link),
                Conversation::Dlm(talk) => dlm_op(talk, key, link, &mut ids).into_iter().collect(),
            };
            if !ops.is_empty() {
                sessions.push(Session {
                    ops,
                    ends_from: ends_from(link),
                    releases_on_close: match &link.conversation {
                        Conversation::Native(talk) => talk.releases_on_close(),
                        Conversation::Dlm(_) => false,
                    },
                });
            }
        }
        History {
            sessions,
            expiry_grace_ms: self.options.expiry_grace_ms.into(),
        }
    }
}

fn ends_from(link: &Link) -> Time {
    let refused_from = match &link.conversation {
        Conversation::Native(talk) => talk.refused_from(),
        Conversation::Dlm(_) => None,
    };
    let given_up_from = link.blocked_at.filter(|_| link.may_be_ended);
    [link.ended_at, refused_from, given_up_from]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(Time::MAX)
}

fn native_ops(talk: &Talk, key: usize, link: &Link) -> Vec<Op> {
    // Tokens that nobody was told fit nothing, at any time.
    let is_idle = |frame: &Frame| match frame.ask {
        Ask::Release { token } | Ask::Extend { token, .. } => {
            token >= FIRST_WRONG_TOKEN && matches!(answer_of(frame), None | Some(Answer::NotHeld))
        }
        _ => false,
    };
    let frames = talk.frames_of(key).filter(|frame| !is_idle(frame));
    let complete = frames.filter_map(|frame| {
        let from = frame.completed_at?;
        let answered_at = frame.answer.map(|(_, at)| at);
        let op = Op {
            call: call_of(frame)?,
            from,
            answer: answer_of(frame),
            upto: answered_at.or(link.settled_at).unwrap_or(Time::MAX),
            twin: None,
        };
        Some(op)
    });
    let mut ops: Vec<Op> = complete.collect();
    let is_refused = |op: &Op| matches!(op.answer, Some(Answer::Busy | Answer::Refused));
    for index in 0..ops.len() {
        let is_twin = |other: &Op| {
            matches!(other.call, Call::Acquire { .. })
                && other.call == ops[index].call
                && !is_refused(other)
        };
        if matches!(ops[index].call, Call::Acquire { .. }) && is_refused(&ops[index]) {
            let twin = ops[index + 1..].iter().position(is_twin);
            ops[index].twin = twin.map(|after| index + 1 + after);
        }
    }
    let changes_nothing = |op: &Op| op.answer.is_none() && op.call == Call::Query;
    while ops.last().is_some_and(changes_nothing) {
        ops.pop();
    }
    ops
}

fn call_of(frame: &Frame) -> Option<Call> {
    Some(match frame.ask {
        Ask::Acquire { wait_ms, lease_ms } => Call::Acquire {
            owner: frame.owner,
            wait_ms,
            lease_ms,
        },
        Ask::Release { token } => Call::Release { token },
        Ask::Extend { lease_ms, token } => Call::Extend { token, lease_ms },
        Ask::Cancel { target } => Call::Cancel { target },
        Ask::Query => Call::Query,
        Ask::Ping | Ask::Hello { .. } | Ask::Refused(_) | Ask::Fatal(_) => return None,
    })
}

fn answer_of(frame: &Frame) -> Option<Answer> {
    let (reply, _) = frame.answer?;
    Some(match reply {
        Reply::Acquired {
            token, waited_ms, ..
        } => Answer::Granted { token, waited_ms },
        Reply::TimedOut { .. } => Answer::TimedOut,
        Reply::Busy { .. } => Answer::Busy,
        Reply::Error {
            code: ErrorCode::TooManyQueued,
            ..
        } => Answer::Busy,
        Reply::Released { .. } => Answer::Released,
        Reply::NotHeld { .. } => Answer::NotHeld,
        Reply::Extended { remaining_ms, .. } => Answer::Extended { remaining_ms },
        Reply::State {
            held,
            remaining_ms,
            waiters,
            ..
        } => Answer::State {
            is_held: held,
            remaining_ms,
            waiters: waiters as usize,
        },
        Reply::CancelDone { cancelled, .. } => Answer::Cancelled(cancelled),
        Reply::Pong { .. } | Reply::Welcome(_) | Reply::Error { .. } => Answer::Refused,
    })
}

fn dlm_op(talk: &DlmTalk, key: usize, link: &Link, ids: &mut HashMap<String, u32>) -> Option<Op> {
    let count = ids.len() as u32;
    let from = talk.completed_at.filter(|_| talk.key() == key)?;
    let id = *ids.entry(talk.id().to_owned()).or_insert(count);
    let call = match talk.operation() {
        &Operation::Lock { ttl_ms } => Call::Lock { id, ttl_ms },
        Operation::Unlock => Call::Unlock { id },
        Operation::TestLock => Call::Test { id },
        Operation::Put { ttl_ms, data_store } => Call::Put {
            id,
            ttl_ms: *ttl_ms,
            value: data_store.len(),
        },
        Operation::Get => Call::Get { id },
        Operation::Erase => Call::Erase { id },
        Operation::Version => return None,
    };
    let settled_at = link.settled_at.unwrap_or(Time::MAX);
    let told = talk.told.as_ref();
    Some(Op {
        call,
        from,
        answer: told.map(|&(status, value, _)| Answer::Dlm { status, value }),
        upto: told.map_or(settled_at, |&(_, _, at)| at),
        twin: None,
    })
}
