//! The store without its disk: what is to be written for what the loops ask, and what
//! they are told once that is durable, or cannot be.
//!
//! Whoever drives it hands in asks, takes a [`Job`], writes it, says whether it is
//! durable, and passes the news on. There is one job at a time; what is asked meanwhile
//! goes into the next, all of it.

use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::sync::Arc;

use super::format::{End, State};
use crate::durability::{Ask, Durable, News, RecordChange};
use crate::engine::time::Time;
use crate::limits::TOKEN_END;

/// How long after a failure the same is tried again, in milliseconds.
pub const RETRY_MS: u64 = 1000;

/// What the store is to write now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Job {
    /// To both copies of the state file.
    State(State),
    /// In one transaction: all of them or none.
    Records(Arc<[RecordChange]>),
}

/// What is written last of all.
#[derive(Debug)]
pub struct LastWrites {
    /// Changes of records that are not durable yet.
    pub records: Vec<RecordChange>,
    /// A clean end; to be written once the records are durable, and not otherwise.
    pub state: State,
}

/// What the loops have asked for, what is durable, and what is being written.
#[derive(Debug)]
pub struct StoreCore {
    loops: Vec<OfLoop>,
    durable: Assured,
    writing: Option<Job>,
    /// Changes that are in no job, by their keys: of one key the last one counts.
    changes: BTreeMap<Box<[u8]>, RecordChange>,
    news: VecDeque<(u16, News)>,
    /// When a copy of the state that may be damaged is written again.
    mend_at: Option<Time>,
    /// When changes that could not be written are tried again.
    records_at: Option<Time>,
    /// So that neither the state nor the records starve where both always want writing.
    wrote_state_last: bool,
}

/// What a crash leaves at least, whatever became of failed writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Assured {
    mark: u64,
    d_ms: u64,
}

#[derive(Clone, Debug)]
struct OfLoop {
    /// What D has to be for this loop, a raise under way included.
    vote_ms: u64,
    raise: Option<Raise>,
    reserve: Option<Reserve>,
    /// The number of the last change that came, that is being written, and that is
    /// durable.
    last_change: u64,
    writing_up_to: u64,
    recorded_up_to: u64,
}

#[derive(Clone, Copy, Debug)]
struct Raise {
    /// The vote that is in force again if D cannot be written.
    otherwise_ms: u64,
    is_being_written: bool,
}

#[derive(Clone, Copy, Debug)]
struct Reserve {
    mark: u64,
    is_being_written: bool,
}

impl StoreCore {
    /// For so many loops, which start with `durable`.
    pub fn new(loops: u16, durable: &Durable) -> StoreCore {
        let of_loop = OfLoop {
            vote_ms: durable.d_ms,
            raise: None,
            reserve: None,
            last_change: 0,
            writing_up_to: 0,
            recorded_up_to: 0,
        };
        StoreCore {
            loops: vec![of_loop; loops.into()],
            durable: Assured {
                mark: durable.mark,
                d_ms: durable.d_ms,
            },
            writing: None,
            changes: BTreeMap::new(),
            news: VecDeque::new(),
            mend_at: None,
            records_at: None,
            wrote_state_last: false,
        }
    }

    /// Takes what a loop asks. [`StoreCore::poll_job`] and [`StoreCore::poll_news`] may
    /// have something then.
    pub fn handle_ask(&mut self, loop_index: u16, ask: Ask) {
        let assured = self.assured();
        let of_loop = &mut self.loops[usize::from(loop_index)];
        let news = match ask {
            Ask::Raise { to_ms } => of_loop.raise(to_ms, assured.d_ms),
            Ask::Lower { to_ms } => {
                of_loop.lower(to_ms);
                None
            }
            Ask::Reserve { mark } => of_loop.reserve(mark, assured.mark),
            Ask::Record { number, change } => {
                of_loop.last_change = number;
                self.changes.insert(change.key().into(), change);
                None
            }
        };
        self.news.extend(news.map(|news| (loop_index, news)));
    }

    /// What is to be written now; [`StoreCore::handle_written`] has to follow. Ask after
    /// each of the `handle_*`, and at [`StoreCore::poll_timeout`].
    pub fn poll_job(&mut self, now: Time) -> Option<Job> {
        if self.writing.is_some() {
            return None;
        }
        let is_due = |at: Option<Time>| at.is_none_or(|at| at <= now);
        let has_records = !self.changes.is_empty() && is_due(self.records_at);
        let has_mending = self.mend_at.is_some() && is_due(self.mend_at);
        let has_state = self.wanted() != self.durable || has_mending;
        let job = match (has_state, has_records) {
            (true, true) if self.wrote_state_last => self.begin_records(),
            (true, _) => self.begin_state(),
            (false, true) => self.begin_records(),
            (false, false) => return None,
        };
        self.writing = Some(job.clone());
        self.wrote_state_last = matches!(job, Job::State(_));
        Some(job)
    }

    /// The job is done: durable, or nobody knows how much of it.
    /// [`StoreCore::poll_job`] and [`StoreCore::poll_news`] may have something then.
    pub fn handle_written(&mut self, is_durable: bool, now: Time) {
        let retry_at = now.plus_millis(RETRY_MS);
        match self.writing.take() {
            None => {}
            Some(Job::State(state)) => {
                self.mend_at = (!is_durable).then_some(retry_at);
                self.handle_state_written(state, is_durable);
            }
            Some(Job::Records(changes)) => {
                self.records_at = (!is_durable).then_some(retry_at);
                self.handle_records_written(&changes, is_durable);
            }
        }
    }

    /// The next thing to tell a loop, and which.
    pub fn poll_news(&mut self) -> Option<(u16, News)> {
        self.news.pop_front()
    }

    /// When to ask [`StoreCore::poll_job`] again without anything having happened.
    pub fn poll_timeout(&self) -> Option<Time> {
        if self.writing.is_some() {
            return None;
        }
        let records_at = self.records_at.filter(|_| !self.changes.is_empty());
        [self.mend_at, records_at].into_iter().flatten().min()
    }

    /// What is to be written at a clean end: no job is being written, the loops have
    /// stopped, and `left_ms` is what the longest lease that is not recorded has left.
    pub fn into_last_writes(self, left_ms: u64) -> LastWrites {
        let wanted = self.wanted();
        LastWrites {
            records: self.changes.into_values().collect(),
            state: State {
                mark: wanted.mark,
                d_ms: wanted.d_ms,
                end: End::Clean { left_ms },
            },
        }
    }

    /// What must hold between any two calls: what a loop was told is what a crash
    /// leaves.
    ///
    /// # Panics
    /// It is not so.
    pub fn invariants(&self) {
        let assured = self.assured();
        for of_loop in &self.loops {
            let told_ms = match of_loop.raise {
                Some(raise) => raise.otherwise_ms,
                None => of_loop.vote_ms,
            };
            assert!(told_ms <= assured.d_ms, "D covers {of_loop:?}");
            assert!(of_loop.recorded_up_to <= of_loop.writing_up_to);
            assert!(of_loop.writing_up_to <= of_loop.last_change);
        }
        assert!(assured.mark <= TOKEN_END);
    }

    /// What a crash leaves at least, if it comes before the job is done.
    fn assured(&self) -> Assured {
        match self.writing {
            Some(Job::State(state)) => self.durable.or(state),
            _ => self.durable,
        }
    }

    /// What would be durable if all could be written.
    fn wanted(&self) -> Assured {
        let votes = self.loops.iter().map(|of_loop| of_loop.vote_ms);
        let vote_ms = votes.max().unwrap_or(0);
        // D falls last of all: a lease may have become a record that is not written yet.
        let least_ms = match self.changes.is_empty() {
            true => 0,
            false => self.durable.d_ms,
        };
        let reserves = self.loops.iter().filter_map(|of_loop| of_loop.reserve);
        let mark = reserves.map(|reserve| reserve.mark).max().unwrap_or(0);
        Assured {
            mark: mark.max(self.durable.mark),
            d_ms: vote_ms.max(least_ms),
        }
    }

    fn begin_state(&mut self) -> Job {
        let Assured { mark, d_ms } = self.wanted();
        for of_loop in &mut self.loops {
            if let Some(raise) = &mut of_loop.raise {
                raise.is_being_written = true;
            }
            if let Some(reserve) = &mut of_loop.reserve {
                reserve.is_being_written = true;
            }
        }
        Job::State(State {
            mark,
            d_ms,
            end: End::Unclean,
        })
    }

    fn begin_records(&mut self) -> Job {
        for of_loop in &mut self.loops {
            of_loop.writing_up_to = of_loop.last_change;
        }
        Job::Records(mem::take(&mut self.changes).into_values().collect())
    }

    fn handle_state_written(&mut self, state: State, is_durable: bool) {
        self.durable = match is_durable {
            true => Assured {
                mark: state.mark,
                d_ms: state.d_ms,
            },
            // One copy may have it.
            false => self.durable.or(state),
        };
        for (loop_index, of_loop) in (0..).zip(&mut self.loops) {
            let news = match is_durable {
                true => of_loop.handle_assured(self.durable),
                false => of_loop.handle_state_failed(),
            };
            let news = news.into_iter().flatten();
            self.news.extend(news.map(|news| (loop_index, news)));
        }
    }

    fn handle_records_written(&mut self, changes: &[RecordChange], is_durable: bool) {
        if !is_durable {
            for change in changes {
                let key = change.key().into();
                self.changes.entry(key).or_insert_with(|| change.clone());
            }
        }
        for (loop_index, of_loop) in (0..).zip(&mut self.loops) {
            let up_to = of_loop.writing_up_to;
            if up_to == of_loop.recorded_up_to {
                continue;
            }
            let news = match is_durable {
                true => {
                    of_loop.recorded_up_to = up_to;
                    News::Recorded { up_to }
                }
                false => News::NotRecorded { up_to },
            };
            self.news.push_back((loop_index, news));
        }
    }
}

impl Assured {
    /// What a crash leaves at least if it may leave either.
    fn or(self, state: State) -> Assured {
        Assured {
            mark: self.mark.min(state.mark),
            d_ms: self.d_ms.min(state.d_ms),
        }
    }
}

impl OfLoop {
    fn raise(&mut self, to_ms: u64, assured_ms: u64) -> Option<News> {
        let otherwise_ms = match self.raise {
            Some(raise) => raise.otherwise_ms,
            None => self.vote_ms,
        };
        self.vote_ms = self.vote_ms.max(to_ms);
        self.raise = (self.vote_ms > assured_ms).then_some(Raise {
            otherwise_ms,
            is_being_written: false,
        });
        self.raise.is_none().then_some(News::Raised)
    }

    /// A raise under way stays: the loop is told that what it asked for is durable.
    fn lower(&mut self, to_ms: u64) {
        let vote_ms = match &mut self.raise {
            Some(raise) => &mut raise.otherwise_ms,
            None => &mut self.vote_ms,
        };
        *vote_ms = to_ms.min(*vote_ms);
    }

    fn reserve(&mut self, mark: u64, assured: u64) -> Option<News> {
        if mark > TOKEN_END {
            return Some(News::NotReserved);
        }
        self.reserve = (mark > assured).then_some(Reserve {
            mark,
            is_being_written: false,
        });
        let is_reserved = self.reserve.is_none();
        is_reserved.then_some(News::Reserved { mark: assured })
    }

    fn handle_assured(&mut self, assured: Assured) -> [Option<News>; 2] {
        let raise = self.raise.take_if(|_| self.vote_ms <= assured.d_ms);
        let reserve = self.reserve.take_if(|reserve| reserve.mark <= assured.mark);
        [
            raise.map(|_| News::Raised),
            reserve.map(|_| News::Reserved { mark: assured.mark }),
        ]
    }

    fn handle_state_failed(&mut self) -> [Option<News>; 2] {
        let raise = self.raise.take_if(|raise| raise.is_being_written);
        let reserve = self.reserve.take_if(|reserve| reserve.is_being_written);
        if let Some(raise) = raise {
            self.vote_ms = raise.otherwise_ms;
        }
        [
            raise.map(|_| News::NotRaised),
            reserve.map(|_| News::NotReserved),
        ]
    }
}
