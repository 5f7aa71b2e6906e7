//! Replies that wait until what they tell of is durable, and what is asked of the store.
//!
//! A grant or an extension takes effect at once; only its reply waits, and only if it
//! tells of a lease that a restart would not wait for, or that is recorded by itself. If
//! that cannot be made durable, the reply is an error and the grant is given up.

use std::collections::{HashSet, VecDeque};

use super::Worker;
use super::dlm::Carried;
use crate::dlm::{DlmReply, Status};
use crate::durability::{self, Ask, Durable, LeaseRecord, MIN_D_MS, Needs, News};
use crate::engine::extended_reply;
use crate::engine::time::Time;
use crate::ids::{GrantRef, SessionId};
use crate::limits::TOKEN_END;
use crate::mesh::DlmAnswer;
use crate::protocol::{ErrorCode, Reply};

/// How long a mark that could not be written is let be, in milliseconds.
const RESERVE_AGAIN_MS: u64 = 1_000;

/// A loop's side of durability: how far it may go at once, and what waits for more.
#[derive(Debug)]
pub(super) struct HeldReplies {
    /// D as far as this loop may use it: leases up to this are told of at once.
    limit_ms: u64,
    /// The D below that: uses of longer leases are noted.
    long_ms: u64,
    /// When a lease longer than `long_ms` last began or waited to be told of.
    last_long: Time,
    cap_ms: u64,
    /// The raise that is under way, 0 for none.
    raising_to_ms: u64,
    /// Changes of records up to this number are durable.
    recorded_up_to: u64,
    mark: u64,
    token_block: u64,
    is_reserving: bool,
    reserve_again_at: Time,
    max_waiting: usize,
    waiting: Vec<Held>,
    /// What waits no longer: to be sent (`true`) or refused.
    settled: VecDeque<(HeldReply, bool)>,
    asks: VecDeque<Ask>,
}

#[derive(Debug)]
struct Held {
    needs: Needs,
    reply: HeldReply,
}

/// What is not sent yet.
#[derive(Debug)]
pub(super) enum HeldReply {
    /// A native grant.
    Granted {
        session: SessionId,
        owner: u64,
        grant: GrantRef,
        waited_ms: u32,
    },
    /// An extend's success; the lease ends at `deadline`.
    Extended {
        session: SessionId,
        owner: u64,
        deadline: Time,
    },
    /// The answer to a DLM request that tells of a lock.
    DlmLocked {
        session: SessionId,
        reply: Box<DlmReply<'static>>,
        /// What is answered if it fails.
        otherwise: Status,
        /// The grant to give up if it fails.
        granted: Option<GrantRef>,
    },
    /// The answer to an Unlock. There is no status for its failure: it waits for as long
    /// as that takes.
    DlmUnlocked {
        session: SessionId,
        reply: Box<DlmReply<'static>>,
    },
    /// The end of a session to which replies are held: it is over when they are sent.
    SessionEnd(SessionId),
}

impl HeldReply {
    fn session(&self) -> SessionId {
        match *self {
            HeldReply::Granted { session, .. }
            | HeldReply::Extended { session, .. }
            | HeldReply::DlmLocked { session, .. }
            | HeldReply::DlmUnlocked { session, .. }
            | HeldReply::SessionEnd(session) => session,
        }
    }

    fn can_fail(&self) -> bool {
        !matches!(
            self,
            HeldReply::DlmUnlocked { .. } | HeldReply::SessionEnd(_)
        )
    }
}

impl HeldReplies {
    /// `None`: nothing survives a restart, and nothing is held. At most `max_waiting`
    /// replies wait, and the ends of sessions.
    pub(super) fn new(durable: Option<&Durable>, max_waiting: usize) -> HeldReplies {
        let limit_ms = durable.map_or(u64::MAX, |durable| durable.d_ms);
        HeldReplies {
            limit_ms,
            long_ms: durability::lower_d(limit_ms),
            last_long: durable.map_or(Time::ZERO, |durable| durable.started_at),
            cap_ms: durable.map_or(u64::MAX, |durable| durable.cap_ms),
            raising_to_ms: 0,
            recorded_up_to: 0,
            mark: durable.map_or(TOKEN_END, |durable| durable.mark),
            token_block: durable.map_or(0, |durable| durable.token_block),
            is_reserving: false,
            reserve_again_at: Time::ZERO,
            max_waiting,
            waiting: Vec::new(),
            settled: VecDeque::new(),
            asks: VecDeque::new(),
        }
    }

    /// Whether a reply with these needs may be sent at once.
    #[inline]
    pub(super) fn are_met(&mut self, needs: Needs, now: Time) -> bool {
        (needs.lease_ms <= self.long_ms && needs.change == 0) || self.are_long_met(needs, now)
    }

    fn are_long_met(&mut self, needs: Needs, now: Time) -> bool {
        if needs.lease_ms > self.long_ms {
            self.last_long = self.last_long.max(now);
        }
        needs.lease_ms <= self.limit_ms && needs.change <= self.recorded_up_to
    }

    /// Has a session's end told behind the replies that are held.
    fn hold_end(&mut self, session: SessionId) {
        let reply = HeldReply::SessionEnd(session);
        // Something else waits with it, whose news set both free.
        if self.waiting.is_empty() {
            self.settled.push_back((reply, true));
        } else {
            let needs = Needs::default();
            self.waiting.push(Held { needs, reply });
        }
    }

    /// Keeps a reply whose needs are not met. Too many, and it is refused soon.
    #[cold]
    pub(super) fn hold(&mut self, needs: Needs, reply: HeldReply) {
        if self.waiting.len() >= self.max_waiting && reply.can_fail() {
            self.settled.push_back((reply, false));
            return;
        }
        self.waiting.push(Held { needs, reply });
        // For what waits already, a raise is under way or none would help.
        if needs.lease_ms > self.limit_ms {
            self.raise_if_needed();
        }
    }

    /// Whether replies are held, to whomever.
    #[inline]
    pub(super) fn any_held(&self) -> bool {
        !self.waiting.is_empty() || !self.settled.is_empty()
    }

    /// Whether a session's end has to wait for replies that are held. Walks all of them,
    /// which as a rule are none.
    #[inline]
    pub(super) fn holds_for(&self, session: SessionId) -> bool {
        let is_waiting = |held: &Held| held.reply.session() == session;
        self.any_held()
            && (self.waiting.iter().any(is_waiting)
                || self
                    .settled
                    .iter()
                    .any(|(reply, _)| reply.session() == session))
    }

    /// Whether something is to be sent or refused that waits no longer.
    pub(super) fn has_settled(&self) -> bool {
        !self.settled.is_empty()
    }

    /// When a lower D may be in order; `None` while that is for others to bring about.
    pub(super) fn poll_timeout(&self) -> Option<Time> {
        let may_fall = self.limit_ms > MIN_D_MS && self.limit_ms < u64::MAX;
        (may_fall && !self.any_held() && self.raising_to_ms == 0)
            .then(|| self.last_long.plus_millis(self.limit_ms))
    }

    fn handle_news(&mut self, news: News, now: Time) {
        match news {
            News::Raised => {
                self.limit_ms = self.limit_ms.max(self.raising_to_ms);
                self.long_ms = durability::lower_d(self.limit_ms);
                self.raising_to_ms = 0;
                self.settle(|_| false);
                self.raise_if_needed();
            }
            News::NotRaised => {
                self.raising_to_ms = 0;
                let limit_ms = self.limit_ms;
                self.settle(|needs| needs.lease_ms > limit_ms);
            }
            News::Reserved { mark } => {
                self.mark = self.mark.max(mark);
                self.is_reserving = false;
            }
            News::NotReserved => {
                self.is_reserving = false;
                self.reserve_again_at = now.plus_millis(RESERVE_AGAIN_MS);
            }
            News::Recorded { up_to } => {
                self.recorded_up_to = self.recorded_up_to.max(up_to);
                self.settle(|_| false);
            }
            News::NotRecorded { up_to } => {
                let recorded_up_to = self.recorded_up_to;
                let failed = recorded_up_to + 1..=up_to;
                self.settle(|needs| failed.contains(&needs.change));
            }
        }
    }

    /// Sorts out what needs to wait no longer, in order.
    fn settle(&mut self, has_failed: impl Fn(Needs) -> bool) {
        let mut still_owed = HashSet::new();
        for held in std::mem::take(&mut self.waiting) {
            let Held { needs, reply } = held;
            let is_met = needs.lease_ms <= self.limit_ms && needs.change <= self.recorded_up_to;
            if let HeldReply::SessionEnd(session) = reply {
                if still_owed.contains(&session) {
                    self.waiting.push(Held { needs, reply });
                } else {
                    self.settled.push_back((reply, true));
                }
            } else if is_met || (has_failed(needs) && reply.can_fail()) {
                self.settled.push_back((reply, is_met));
            } else {
                still_owed.insert(reply.session());
                self.waiting.push(Held { needs, reply });
            }
        }
    }

    fn raise_if_needed(&mut self) {
        if self.raising_to_ms > 0 {
            return;
        }
        let longest_ms = self.waiting.iter().map(|held| held.needs.lease_ms).max();
        if let Some(longest_ms) = longest_ms
            && longest_ms > self.limit_ms
        {
            self.raising_to_ms = durability::d_for(longest_ms, self.cap_ms);
            let to_ms = self.raising_to_ms;
            self.asks.push_back(Ask::Raise { to_ms });
        }
    }

    fn reserve_if_needed(&mut self, next_token: u64, now: Time) {
        let is_near = next_token > self.mark.saturating_sub(self.token_block / 2);
        if is_near && self.mark < TOKEN_END && !self.is_reserving && now >= self.reserve_again_at {
            self.is_reserving = true;
            let mark = next_token.saturating_add(self.token_block).min(TOKEN_END);
            self.asks.push_back(Ask::Reserve { mark });
        }
    }

    fn lower_if_due(&mut self, now: Time) {
        if self.poll_timeout().is_some_and(|due| due <= now) {
            // All that was longer is over by now, here. Of what is longer than the next
            // lower D nothing was noted so far.
            self.last_long = now;
            self.limit_ms = self.long_ms;
            self.long_ms = durability::lower_d(self.limit_ms);
            let to_ms = self.limit_ms;
            self.asks.push_back(Ask::Lower { to_ms });
        }
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        assert!(self.long_ms <= self.limit_ms);
        for Held { needs, reply } in &self.waiting {
            let is_met = needs.lease_ms <= self.limit_ms && needs.change <= self.recorded_up_to;
            let is_end = matches!(reply, HeldReply::SessionEnd(_));
            assert!(is_end || !is_met, "nothing will set {reply:?} free");
            if needs.lease_ms > self.limit_ms {
                assert!(self.raising_to_ms > 0, "nobody raises D for {reply:?}");
            }
        }
    }
}

impl Worker {
    /// A lease of the time before the start goes on. Before the first session is there.
    pub fn restore(&mut self, record: &LeaseRecord) {
        self.engine.restore(record);
    }

    /// The next thing that is asked of the store. Ask all of it at the end of each turn.
    pub fn poll_ask(&mut self, now: Time) -> Option<Ask> {
        let now = self.advance_clock(now);
        if let Some((number, change)) = self.engine.poll_record_change() {
            return Some(Ask::Record { number, change });
        }
        self.held.reserve_if_needed(self.engine.next_token(), now);
        self.held.lower_if_due(now);
        self.held.asks.pop_front()
    }

    /// The store has something to tell.
    pub fn handle_news(&mut self, news: News, now: Time) {
        let now = self.advance_clock(now);
        match news {
            News::Recorded { up_to } => self.engine.handle_recorded(up_to),
            News::NotRecorded { up_to } => self.engine.handle_not_recorded(up_to),
            News::Reserved { mark } => self.engine.handle_reserved(mark),
            News::Raised | News::NotRaised | News::NotReserved => {}
        }
        self.held.handle_news(news, now);
    }

    /// When the last lease ends that is not recorded by itself, or the grace of this
    /// start. Walks all keys: for when the loop is over.
    pub fn last_deadline(&self) -> Time {
        self.engine.last_deadline()
    }

    /// Sends or refuses replies that wait no longer, at most `budget` of them.
    pub(super) fn settle_held(&mut self, now: Time, budget: u32) {
        for _ in 0..budget {
            let Some((reply, is_met)) = self.held.settled.pop_front() else {
                return;
            };
            if is_met {
                self.tell_held(reply, now);
            } else {
                self.refuse_held(reply, now);
            }
        }
    }

    /// A session's part here is over, but for replies that are held: its end is told
    /// behind them.
    pub(super) fn hold_end(&mut self, session: SessionId) {
        self.held.hold_end(session);
    }

    fn tell_held(&mut self, reply: HeldReply, now: Time) {
        match reply {
            HeldReply::Granted {
                session,
                owner,
                grant,
                waited_ms,
            } => {
                let (engine, mut out) = self.engine_and_outbox();
                if !out.tell_grant(session, owner, grant, waited_ms) {
                    engine.handle_lost_grant(now, grant, &mut out);
                }
            }
            HeldReply::Extended {
                session,
                owner,
                deadline,
            } => {
                self.reply(session, extended_reply(owner, now, deadline));
            }
            HeldReply::DlmLocked { session, reply, .. }
            | HeldReply::DlmUnlocked { session, reply } => self.tell_dlm(session, *reply),
            HeldReply::SessionEnd(session) if session.loop_index() == self.config.loop_index => {
                self.end_told(session);
            }
            HeldReply::SessionEnd(session) => self.mesh.outbound.session_ended(session),
        }
    }

    fn refuse_held(&mut self, reply: HeldReply, now: Time) {
        let code = ErrorCode::Overloaded;
        let granted = match reply {
            HeldReply::Granted {
                session,
                owner,
                grant,
                ..
            } => {
                self.reply(session, Reply::Error { owner, code });
                Some(grant)
            }
            HeldReply::Extended { session, owner, .. } => {
                self.reply(session, Reply::Error { owner, code });
                None
            }
            HeldReply::DlmLocked {
                session,
                otherwise,
                granted,
                ..
            } => {
                self.tell_dlm(session, DlmReply::bare(otherwise));
                granted
            }
            HeldReply::DlmUnlocked { .. } | HeldReply::SessionEnd(_) => {
                unreachable!("these wait until they are met")
            }
        };
        if let Some(grant) = granted {
            let (engine, mut out) = self.engine_and_outbox();
            engine.handle_failed_grant(now, grant, &mut out);
        }
    }

    /// Whether what a DLM request came to may be told at once.
    pub(super) fn are_met(&mut self, carried: &Carried<'_>, now: Time) -> bool {
        self.held.are_met(carried.needs, now)
    }

    /// Keeps what a DLM request came to until it may be told.
    pub(super) fn hold_dlm(&mut self, session: SessionId, carried: Carried<'static>) {
        let reply = Box::new(carried.reply);
        let held = match carried.otherwise {
            None => HeldReply::DlmUnlocked { session, reply },
            Some(otherwise) => HeldReply::DlmLocked {
                session,
                reply,
                otherwise,
                granted: carried.granted,
            },
        };
        self.held.hold(carried.needs, held);
    }

    pub(super) fn tell_dlm(&mut self, session: SessionId, reply: DlmReply<'static>) {
        if session.loop_index() != self.config.loop_index {
            let answer = Box::new(DlmAnswer { session, reply });
            self.mesh.outbound.dlm_reply(answer);
        } else if self.awaits_answer(session) {
            self.answer(session, &reply);
        }
    }
}
