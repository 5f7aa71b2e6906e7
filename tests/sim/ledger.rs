//! Who holds which key, as clients may believe it by the protocol's lease bound, and
//! for how long the server may at most keep a key for somebody.
//!
//! A reply counts as told when the worker has handed it to its driver: no client can
//! know of it earlier, and the server may take nothing back from then on.

use leasehold::engine::time::Time;

use crate::clocks::{Clock, Span};
use crate::covered::Covered;

/// What the server let somebody know of one grant.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) who: Who,
    /// When the acquire was begun to be sent.
    sent_at: Time,
    /// The server has seen the acquire by then.
    seen_by: Time,
    told_at: Time,
    /// The holder may believe in the grant for as long; it began no later than `told_at`.
    good_until: Time,
    /// The same as clients know it, each by a clock of its own.
    spans: Vec<Span>,
    /// The end of the bound before each extend that was told, and when that was.
    good_before: Vec<(Time, Time)>,
    /// The server may keep it for so long at most.
    kept_until: Time,
    /// Somebody has begun to send a release: nobody believes in it any more.
    given_back: bool,
    /// Its session has ended its side and had asked to have its grants released then.
    closed_with_session: bool,
    /// When the server has told that it is over.
    over_at: Option<Time>,
    released: bool,
    extended_by_another: bool,
    another_may_have_extended: bool,
    /// Requests to release it that have been sent.
    releases: Vec<(usize, usize)>,
}

/// Whose a grant is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Native { token: u64, link: usize },
    Dlm { id: String },
}

/// A native grant, as its client learns of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    pub(crate) key: usize,
    pub(crate) token: u64,
    pub(crate) link: usize,
    pub(crate) sent_at: Time,
    pub(crate) waited_ms: u32,
    pub(crate) lease_ms: u32,
    /// Of the client that is told.
    pub(crate) clock: Clock,
    /// Its session's end releases it, and has begun.
    pub(crate) closed_with_session: bool,
}

/// An extend that is or may be judged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extension {
    pub(crate) key: usize,
    pub(crate) token: u64,
    pub(crate) link: usize,
    pub(crate) sent_at: Time,
    pub(crate) lease_ms: u32,
    /// Of the client that asks.
    pub(crate) clock: Clock,
}

/// A DLM Lock that may take effect late, or have done so unnoticed.
#[derive(Clone, Debug)]
pub(crate) struct DlmLease {
    pub(crate) key: usize,
    pub(crate) id: String,
    pub(crate) ttl_ms: u64,
}

/// All grants by key.
#[derive(Debug)]
pub(crate) struct Ledger {
    holds: Vec<Vec<Hold>>,
    expiry_grace_ms: u64,
    /// What ended sessions had asked and were not answered: it may still be under way.
    open_extensions: Vec<Extension>,
    open_dlm: Vec<DlmLease>,
    /// Acquires of broken sessions, of whose answers the kernel took a part.
    cut_off: Vec<(usize, u32)>,
    pub(crate) grants_told: u64,
    pub(crate) covered: Covered,
    /// By loop, when it was last at a limit that all clients share, or near one.
    tight_at: Vec<Option<Time>>,
    /// The loops drain, or begin to.
    pub(crate) drains: bool,
    /// All of them have begun to: nobody is granted any more.
    pub(crate) drained_since: Option<Time>,
}

impl Hold {
    /// Whether its holder may act on it.
    fn is_believed(&self, now: Time) -> bool {
        self.over_at.is_none()
            && !self.given_back
            && !self.closed_with_session
            && self.told_at <= now
            && self.is_good(now)
    }

    /// Whether anybody counts on it: by a true clock up to the very end of the bound, by
    /// a clock of another rate up to the margin before.
    fn is_good(&self, now: Time) -> bool {
        now < self.good_until || self.spans.iter().any(|span| span.is_believed(now))
    }

    /// It is served to a request that was sent at `sent_at`.
    fn check_not_over(&self, sent_at: Time) {
        assert!(
            self.over_at.is_none_or(|over_at| over_at >= sent_at),
            "served after its end was told: {self:?}"
        );
    }

    fn token(&self) -> Option<u64> {
        match self.who {
            Who::Native { token, .. } => Some(token),
            Who::Dlm { .. } => None,
        }
    }
}

impl Ledger {
    pub(crate) fn new(keys: usize, loops: u16, expiry_grace_ms: u32) -> Ledger {
        Ledger {
            holds: vec![Vec::new(); keys],
            expiry_grace_ms: expiry_grace_ms.into(),
            open_extensions: Vec::new(),
            open_dlm: Vec::new(),
            cut_off: Vec::new(),
            grants_told: 0,
            covered: Covered::default(),
            tight_at: vec![None; loops.into()],
            drains: false,
            drained_since: None,
        }
    }

    /// A token on this key that somebody knows, the `pick`th latest.
    pub(crate) fn token_of(&self, key: usize, pick: usize) -> Option<u64> {
        let native = self.holds[key].iter().rev().filter_map(Hold::token);
        native.clone().nth(pick).or_else(|| native.clone().next())
    }

    /// A loop is at a limit, or near one.
    pub(crate) fn note_tight(&mut self, loop_index: u16, now: Time) {
        self.tight_at[usize::from(loop_index)] = Some(now);
    }

    /// What was asked for the key at `since` and answered now was refused for a limit.
    pub(crate) fn check_refusal(&self, key: usize, since: Time) {
        // Keys are shared out in turn.
        let tight_at = self.tight_at[key % self.tight_at.len()];
        assert!(
            tight_at.is_some_and(|at| at >= since),
            "refused for a limit that was reached at {tight_at:?}, since {since:?}: key {key}"
        );
    }

    /// An `A` was told.
    pub(crate) fn granted(&mut self, told: Told, now: Time) {
        self.grants_told += 1;
        assert!(
            self.drained_since
                .is_none_or(|since| told.sent_at.plus_millis(told.waited_ms.into()) <= since),
            "granted while it drains: {told:?}"
        );
        let bound_ms = u64::from(told.waited_ms) + u64::from(told.lease_ms);
        let hold = Hold {
            who: Who::Native {
                token: told.token,
                link: told.link,
            },
            sent_at: told.sent_at,
            seen_by: minus_millis(now, told.waited_ms.into()),
            told_at: now,
            good_until: told.sent_at.plus_millis(bound_ms),
            spans: vec![Span::new(told.sent_at, bound_ms, told.clock)],
            kept_until: now.plus_millis(told.lease_ms.into()),
            good_before: Vec::new(),
            given_back: false,
            closed_with_session: told.closed_with_session,
            over_at: None,
            released: false,
            extended_by_another: false,
            another_may_have_extended: false,
            releases: Vec::new(),
        };
        assert!(
            hold.sent_at <= hold.seen_by,
            "it waited longer than it can have been there: {told:?} at {now:?}"
        );
        for other in &self.holds[told.key] {
            let Some(token) = other.token() else {
                continue;
            };
            assert_ne!(token, told.token, "a token twice: {told:?} and {other:?}");
            if other.seen_by < hold.sent_at {
                assert!(
                    token < told.token,
                    "first come, first served, by growing tokens: {other:?} then {told:?}"
                );
            }
            if hold.seen_by < other.sent_at {
                assert!(
                    told.token < token,
                    "first come, first served, by growing tokens: {told:?} then {other:?}"
                );
            }
            let told_late = told.token < token;
            assert!(
                !told_late || hold.closed_with_session || !hold.is_good(other.told_at),
                "granted on while its holder may believe in it: {hold:?} then {other:?}"
            );
        }
        self.check_alone(told.key, &hold, now);
        self.holds[told.key].push(hold);
    }

    /// No other holder may believe in what `hold` has now been told of, unless that
    /// one was granted after this was over.
    fn check_alone(&self, key: usize, hold: &Hold, now: Time) {
        // Ended early, it may have been over when the other was granted.
        let ended_early = hold.given_back || hold.closed_with_session;
        for other in self.holds[key].iter().filter(|it| it.who != hold.who) {
            let known_earlier = match (other.token(), hold.token()) {
                (Some(other), Some(token)) => other < token,
                _ => false,
            };
            assert!(
                !other.is_believed(now)
                    || !(known_earlier || (!ended_early && hold.is_good(other.told_at))),
                "two hold key {key} at {now:?}:\n{hold:?}\n{other:?}"
            );
        }
    }

    /// A release's first byte was sent: request `request`, of whichever session.
    pub(crate) fn release_sent(&mut self, key: usize, token: u64, request: (usize, usize)) {
        if let Some(hold) = self.find(key, token) {
            hold.given_back = true;
            hold.releases.push(request);
        }
    }

    /// An extend's first byte was sent.
    pub(crate) fn extend_sent(&mut self, extension: Extension) {
        if let Some(hold) = self.find(extension.key, extension.token) {
            let is_own = matches!(hold.who, Who::Native { link, .. } if link == extension.link);
            hold.another_may_have_extended |= !is_own;
        }
    }

    /// An `R` was told, for a release sent at `sent_at`.
    pub(crate) fn released(&mut self, key: usize, token: u64, sent_at: Time, now: Time) {
        let Some(hold) = self.find(key, token) else {
            panic!("released key {key} by token {token}, which nobody was told");
        };
        assert!(!hold.released, "released twice: {hold:?}");
        hold.check_not_over(sent_at);
        hold.released = true;
        hold.over_at.get_or_insert(now);
        let who = hold.who.clone();
        self.check_was_free_of_others(key, &who, sent_at, now);
    }

    /// An `N` was told, to the release or extend `request` that was sent at `sent_at`.
    pub(crate) fn not_held(&mut self, key: usize, token: u64, request: (usize, usize), now: Time) {
        let blocks_on = self.expiry_grace_ms > 0;
        let Some(hold) = self.find(key, token) else {
            return;
        };
        let others_release = hold.releases.iter().any(|&it| it != request);
        assert!(
            hold.over_at.is_some()
                || others_release
                || hold.closed_with_session
                || !hold.is_good(now),
            "not held any more, says the server at {now:?}: {hold:?}"
        );
        if !blocks_on {
            hold.over_at.get_or_insert(now);
        }
    }

    /// An `X` was told.
    pub(crate) fn extended(&mut self, extension: Extension, remaining_ms: u32, now: Time) {
        let Extension {
            key,
            token,
            link,
            sent_at,
            lease_ms,
            clock,
        } = extension;
        assert!(
            remaining_ms >= lease_ms,
            "an extend to {lease_ms} leaves {remaining_ms}"
        );
        let Some(hold) = self.find(key, token) else {
            panic!("extended key {key} by token {token}, which nobody was told");
        };
        hold.check_not_over(sent_at);
        hold.good_before.push((hold.good_until, now));
        hold.good_until = hold.good_until.max(sent_at.plus_millis(lease_ms.into()));
        hold.spans.push(Span::new(sent_at, lease_ms.into(), clock));
        hold.kept_until = hold.kept_until.max(now.plus_millis(lease_ms.into()));
        if !matches!(hold.who, Who::Native { link: own, .. } if own == link) {
            // It was alive, and from now on its session's end does not touch it.
            hold.extended_by_another = true;
            hold.closed_with_session = false;
        }
        let hold = hold.clone();
        self.check_was_free_of_others(key, &hold.who, sent_at, now);
        if hold.is_believed(now) {
            self.check_alone(key, &hold, now);
        }
    }

    /// `who` held the key at some moment from `since` to `now`: then nobody else did
    /// throughout.
    fn check_was_free_of_others(&self, key: usize, who: &Who, since: Time, now: Time) {
        for other in self.holds[key].iter().filter(|it| it.who != *who) {
            assert!(
                !(other.told_at <= since && other.is_believed(now)),
                "{who:?} was served between {since:?} and {now:?} on key {key}, held by {other:?}"
            );
        }
    }

    /// A `Q` was told, to a query sent at `sent_at`.
    pub(crate) fn state(&self, key: usize, sent_at: Time, state: (bool, u32), now: Time) {
        let (is_held, remaining_ms) = state;
        for hold in &self.holds[key] {
            if hold.told_at <= sent_at && hold.is_believed(now) {
                assert!(is_held, "said to be free at {now:?}: key {key}, {hold:?}");
                let later = hold.good_before.iter().find(|(_, at)| *at > sent_at);
                let good_until = later.map_or(hold.good_until, |(before, _)| *before);
                assert!(
                    now.plus_millis(remaining_ms.into()) >= good_until,
                    "{remaining_ms} left at {now:?}, says the server: {hold:?}"
                );
            }
        }
    }

    /// A session ended its side in order, having asked to have its grants released then.
    pub(crate) fn closing_session_ended(&mut self, session: usize) {
        for hold in self.holds.iter_mut().flatten() {
            if matches!(hold.who, Who::Native { link, .. } if link == session)
                && !hold.extended_by_another
            {
                hold.closed_with_session = true;
            }
        }
    }

    /// The server has closed such a session, undisturbed: its grants are gone.
    pub(crate) fn closing_session_closed(&mut self, session: usize, now: Time) {
        if self.expiry_grace_ms > 0 {
            return;
        }
        for hold in self.holds.iter_mut().flatten() {
            if matches!(hold.who, Who::Native { link, .. } if link == session)
                && !hold.another_may_have_extended
            {
                hold.over_at.get_or_insert(now);
            }
        }
    }

    /// A DLM Lock was answered Locked.
    pub(crate) fn dlm_locked(
        &mut self,
        lease: &DlmLease,
        (sent_at, clock): (Time, Clock),
        given_back: bool,
        now: Time,
    ) {
        let who = Who::Dlm {
            id: lease.id.clone(),
        };
        let good_until = sent_at.plus_millis(lease.ttl_ms);
        let span = Span::new(sent_at, lease.ttl_ms, clock);
        let kept_until = now.plus_millis(lease.ttl_ms);
        let holds = &mut self.holds[lease.key];
        let hold = match holds
            .iter_mut()
            .find(|hold| hold.who == who && hold.good_until > Time::ZERO)
        {
            Some(hold) => {
                if now >= hold.good_until {
                    // It may have been over, and others may have held the key since.
                    hold.told_at = now;
                }
                hold.good_before.push((hold.good_until, now));
                hold.good_until = hold.good_until.max(good_until);
                hold.spans.push(span);
                hold.kept_until = hold.kept_until.max(kept_until);
                hold.given_back |= given_back;
                hold.clone()
            }
            None => {
                let hold = Hold {
                    who,
                    sent_at,
                    seen_by: now,
                    told_at: now,
                    good_until,
                    spans: vec![span],
                    kept_until,
                    good_before: Vec::new(),
                    given_back,
                    closed_with_session: false,
                    over_at: None,
                    released: false,
                    extended_by_another: false,
                    another_may_have_extended: false,
                    releases: Vec::new(),
                };
                holds.push(hold.clone());
                hold
            }
        };
        if !given_back {
            self.check_alone(lease.key, &hold, now);
        }
    }

    /// An Unlock's first byte was sent.
    pub(crate) fn dlm_unlock_sent(&mut self, key: usize, id: &str) {
        for hold in &mut self.holds[key] {
            if matches!(&hold.who, Who::Dlm { id: holder } if holder == id) {
                hold.given_back = true;
            }
        }
    }

    /// An ended session's extend was not answered: it may have taken effect, or do so.
    pub(crate) fn extend_unanswered(&mut self, extension: Extension) {
        self.open_extensions.push(extension);
    }

    /// An ended connection's Lock was not answered.
    pub(crate) fn dlm_lock_unanswered(&mut self, lease: DlmLease) {
        self.open_dlm.push(lease);
    }

    /// A session was broken off within an `A`: which acquire's, nobody knows.
    pub(crate) fn grant_cut_off(&mut self, key: usize, lease_ms: u32) {
        self.cut_off.push((key, lease_ms));
    }

    /// All loops are quiet: whatever ended sessions asked has been judged.
    pub(crate) fn settle(&mut self, now: Time) {
        for Extension {
            key,
            token,
            lease_ms,
            ..
        } in std::mem::take(&mut self.open_extensions)
        {
            self.may_be_kept_for(key, token, lease_ms, now);
        }
        for lease in std::mem::take(&mut self.open_dlm) {
            self.dlm_may_be_kept_for(&lease, now);
        }
        for (key, lease_ms) in std::mem::take(&mut self.cut_off) {
            let id = String::new();
            let ttl_ms = lease_ms.into();
            self.dlm_may_be_kept_for(&DlmLease { key, id, ttl_ms }, now);
        }
    }

    /// The server may hold the key for somebody who does not know, or not that long.
    pub(crate) fn dlm_may_be_kept_for(&mut self, lease: &DlmLease, now: Time) {
        self.holds[lease.key].push(Hold {
            who: Who::Dlm {
                id: lease.id.clone(),
            },
            sent_at: now,
            seen_by: now,
            told_at: now,
            good_until: Time::ZERO,
            spans: Vec::new(),
            kept_until: now.plus_millis(lease.ttl_ms),
            good_before: Vec::new(),
            given_back: true,
            closed_with_session: false,
            over_at: None,
            released: false,
            extended_by_another: false,
            another_may_have_extended: false,
            releases: Vec::new(),
        });
    }

    /// An extend of a living session may have taken effect by now.
    pub(crate) fn may_be_kept_for(&mut self, key: usize, token: u64, lease_ms: u32, now: Time) {
        if let Some(hold) = self.find(key, token) {
            hold.kept_until = hold.kept_until.max(now.plus_millis(lease_ms.into()));
        }
    }

    /// Whether somebody who was told of it may still have the key at `since`.
    pub(crate) fn explains(&self, key: usize, since: Time) -> bool {
        self.holds[key].iter().any(|hold| {
            hold.over_at.is_none() && hold.kept_until.plus_millis(self.expiry_grace_ms) >= since
        })
    }

    /// When the last grant is over at the latest.
    pub(crate) fn all_over_at(&self) -> Time {
        let ends = self.holds.iter().flatten().map(|hold| hold.kept_until);
        ends.max()
            .unwrap_or(Time::ZERO)
            .plus_millis(self.expiry_grace_ms + 1)
    }

    fn find(&mut self, key: usize, token: u64) -> Option<&mut Hold> {
        self.holds[key]
            .iter_mut()
            .find(|hold| hold.token() == Some(token))
    }
}

fn minus_millis(time: Time, ms: u64) -> Time {
    Time::from_nanos(time.as_nanos().saturating_sub(ms * 1_000_000))
}

impl Ledger {
    /// What is known of one key.
    pub(crate) fn holds_of(&self, key: usize) -> &[Hold] {
        &self.holds[key]
    }
}
