//! The lock service once more, as plainly as it can be said: maps, vectors and
//! linear scans, written from the matrix and its rules. Slow and obvious.

use super::super::time::Time;
use super::super::{
    DlmErase, DlmGet, DlmLock, DlmPut, DlmTest, DlmUnlock, EngineLimits, SessionEnd,
};
use super::{Event, granted, refused, told};
use crate::ids::SessionId;
use crate::protocol::{ErrorCode, Reply};
use std::collections::BTreeMap;

pub(super) struct Model {
    pub(super) limits: EngineLimits,
    /// The keys that are not free.
    pub(super) keys: BTreeMap<&'static str, Key>,
    /// The data slots that are not empty.
    pub(super) data: BTreeMap<&'static str, Data>,
    next_token: u64,
    draining: bool,
    /// Until when keys that are not in `keys` count as held by nobody known.
    pub(super) grace_end: Time,
    /// Longer DLM leases are recorded.
    record_cap_ms: u64,
    /// Orders what happened: sessions' ends, grants, the setting of deadlines.
    sequence: u64,
    pub(super) events: Vec<Event>,
}

pub(super) struct Key {
    pub(super) holder: Holder,
    pub(super) deadline: Time,
    deadline_set_at: u64,
    pub(super) queue: Vec<Waiter>,
}

/// An ID and the identity proved with it.
pub(super) type DlmId = (&'static str, Option<&'static str>);

pub(super) struct Data {
    owner: DlmId,
    value: &'static str,
    pub(super) deadline: Time,
}

#[derive(Clone, Debug)]
pub(super) enum Holder {
    /// The grace after an expired lease.
    Nobody {
        /// What the record says, which that lease has left.
        recorded: Option<(DlmId, Time)>,
    },
    /// Not known after a restart, in its grace; here only while somebody waits.
    Unknown,
    Native {
        token: u64,
        granted_at: u64,
        /// The session whose orderly end releases the grant.
        ends_with: Option<SessionId>,
        /// When and as which event that end came.
        closed: Option<(Time, u64)>,
    },
    Dlm {
        id: &'static str,
        name: Option<&'static str>,
        is_recorded: bool,
    },
}

pub(super) struct Waiter {
    pub(super) session: SessionId,
    release_on_close: bool,
    owner: u64,
    arrival: Time,
    pub(super) deadline: Time,
    lease_ms: u32,
    queued_at: u64,
}

/// What an acquire brings.
pub(super) struct Acquire {
    pub(super) session: SessionId,
    pub(super) release_on_close: bool,
    pub(super) owner: u64,
    pub(super) wait_ms: u32,
    pub(super) lease_ms: u32,
}

impl Waiter {
    fn is_over(&self, now: Time) -> bool {
        now >= self.deadline
    }
}

impl Model {
    pub(super) fn new(limits: EngineLimits, first_token: u64) -> Model {
        Model {
            limits,
            keys: BTreeMap::new(),
            data: BTreeMap::new(),
            next_token: first_token,
            draining: false,
            grace_end: Time::ZERO,
            record_cap_ms: u64::MAX,
            sequence: 0,
            events: Vec::new(),
        }
    }

    /// The same after a restart: its grace lasts until `grace_end`, and DLM leases longer
    /// than `record_cap_ms` are recorded.
    pub(super) fn restarted(self, grace_end: Time, record_cap_ms: u64) -> Model {
        Model {
            grace_end,
            record_cap_ms,
            ..self
        }
    }

    /// A record says that the key is held.
    pub(super) fn restore(&mut self, key: &'static str, (id, name): DlmId, deadline: Time) {
        self.next_token += 1;
        let deadline_set_at = self.next_in_sequence();
        self.keys.insert(
            key,
            Key {
                holder: Holder::Dlm {
                    id,
                    name,
                    is_recorded: true,
                },
                deadline,
                deadline_set_at,
                queue: Vec::new(),
            },
        );
    }

    /// What the records have to say, all of their changes made.
    pub(super) fn records(&self) -> BTreeMap<&'static str, (DlmId, Time)> {
        self.keys
            .iter()
            .filter_map(|(&key, found)| match found.holder {
                Holder::Dlm {
                    id,
                    name,
                    is_recorded: true,
                } => Some((key, ((id, name), found.deadline))),
                Holder::Nobody { recorded } => Some((key, recorded?)),
                _ => None,
            })
            .collect()
    }

    pub(super) fn acquire(&mut self, now: Time, key: &'static str, acquire: &Acquire) {
        let (session, owner) = (acquire.session, acquire.owner);
        if self.draining {
            self.events
                .push(refused(session, owner, ErrorCode::ShuttingDown));
            return;
        }
        self.touch(now, key);
        if !self.keys.contains_key(key) && !self.is_in_grace(now) {
            self.acquire_free(now, key, acquire);
        } else if acquire.wait_ms == 0 {
            self.tell(session, Reply::TimedOut { owner });
        } else {
            self.enqueue(now, key, acquire);
        }
    }

    fn acquire_free(&mut self, now: Time, key: &'static str, acquire: &Acquire) {
        if !self.has_room(now) {
            let code = ErrorCode::Overloaded;
            self.events
                .push(refused(acquire.session, acquire.owner, code));
            return;
        }
        let token = self.grant(
            now,
            key,
            acquire.release_on_close.then_some(acquire.session),
            acquire.lease_ms,
        );
        self.events
            .push(granted(acquire.session, acquire.owner, token, 0));
    }

    fn enqueue(&mut self, now: Time, key: &'static str, acquire: &Acquire) {
        self.try_enqueue(now, key, acquire);
        self.forget_unknown(None);
    }

    fn try_enqueue(&mut self, now: Time, key: &'static str, acquire: &Acquire) {
        let (session, owner) = (acquire.session, acquire.owner);
        if self.is_session_full(session) || self.is_server_full() {
            self.run_timers(now);
        }
        if self.is_session_full(session) {
            self.drop_overdue_of(now, session);
            self.forget_unknown(Some(key));
        }
        if self.is_session_full(session) {
            self.events
                .push(refused(session, owner, ErrorCode::TooManyQueued));
            return;
        }
        if self.is_queue_full(key) || self.is_server_full() {
            self.drop_overdue(now, key);
        }
        if self.is_queue_full(key) || self.is_server_full() {
            self.tell(session, Reply::Busy { owner });
            return;
        }
        if !self.keys.contains_key(key) {
            if !self.has_room(now) {
                let code = ErrorCode::Overloaded;
                self.events.push(refused(session, owner, code));
                return;
            }
            let (deadline, deadline_set_at) = (self.grace_end, self.next_in_sequence());
            self.keys.insert(
                key,
                Key {
                    holder: Holder::Unknown,
                    deadline,
                    deadline_set_at,
                    queue: Vec::new(),
                },
            );
        }
        let queued_at = self.next_in_sequence();
        self.key(key).queue.push(Waiter {
            session,
            release_on_close: acquire.release_on_close,
            owner,
            arrival: now,
            deadline: now.plus_millis(u64::from(acquire.wait_ms)),
            lease_ms: acquire.lease_ms,
            queued_at,
        });
    }

    pub(super) fn release(
        &mut self,
        now: Time,
        session: SessionId,
        owner: u64,
        key: &'static str,
        token: u64,
    ) {
        self.touch(now, key);
        if self.token_of(key) == Some(token) {
            self.tell(session, Reply::Released { owner });
            self.pass_on(now, key);
        } else {
            self.tell(session, Reply::NotHeld { owner });
        }
    }

    pub(super) fn extend(
        &mut self,
        now: Time,
        session: SessionId,
        owner: u64,
        key: &'static str,
        token: u64,
        lease_ms: u32,
    ) {
        self.touch(now, key);
        if self.token_of(key) != Some(token) {
            self.tell(session, Reply::NotHeld { owner });
            return;
        }
        self.lengthen(now, key, u64::from(lease_ms));
        let found = self.key(key);
        let remaining_ms = found.deadline.millis_since_floor(now) as u32;
        if let Holder::Native { ends_with, .. } = &mut found.holder
            && *ends_with != Some(session)
        {
            *ends_with = None;
        }
        self.tell(
            session,
            Reply::Extended {
                owner,
                remaining_ms,
            },
        );
    }

    pub(super) fn cancel(
        &mut self,
        now: Time,
        session: SessionId,
        owner: u64,
        key: &'static str,
        target: u64,
    ) {
        self.touch(now, key);
        let mut cancelled = false;
        while let Some(found) = self.keys.get_mut(key)
            && let Some(place) = found
                .queue
                .iter()
                .position(|waiter| waiter.session == session && waiter.owner == target)
            && !cancelled
        {
            let waiter = found.queue.remove(place);
            cancelled = !waiter.is_over(now);
            self.tell(session, Reply::TimedOut { owner: target });
        }
        self.forget_unknown(None);
        self.tell(session, Reply::CancelDone { owner, cancelled });
    }

    pub(super) fn query(&mut self, now: Time, session: SessionId, owner: u64, key: &'static str) {
        self.touch(now, key);
        self.drop_overdue(now, key);
        let (held, remaining_ms, waiters) = match self.keys.get(key) {
            None if self.is_in_grace(now) => {
                let left_ms = self.grace_end.millis_since_ceil(now);
                (true, u32::try_from(left_ms).unwrap_or(u32::MAX), 0)
            }
            None => (false, 0, 0),
            Some(found) => {
                let remaining_ms = found.deadline.millis_since_ceil(now);
                let remaining_ms = u32::try_from(remaining_ms).unwrap_or(u32::MAX);
                (true, remaining_ms, found.queue.len() as u32)
            }
        };
        self.tell(
            session,
            Reply::State {
                owner,
                held,
                remaining_ms,
                waiters,
            },
        );
        self.forget_unknown(None);
    }

    pub(super) fn end_session(&mut self, now: Time, session: SessionId, end: SessionEnd) {
        let mut gone = Vec::new();
        for found in self.keys.values_mut() {
            let of_session = |waiter: &Waiter| waiter.session == session;
            gone.extend(
                found
                    .queue
                    .iter()
                    .filter(|waiter| of_session(waiter))
                    .map(|waiter| (waiter.queued_at, waiter.owner)),
            );
            found.queue.retain(|waiter| !of_session(waiter));
        }
        self.forget_unknown(None);
        gone.sort();
        if end == SessionEnd::Orderly {
            for (_, owner) in gone {
                self.tell(session, Reply::TimedOut { owner });
            }
        }
        let event = self.next_in_sequence();
        for found in self.keys.values_mut() {
            if let Holder::Native {
                ends_with, closed, ..
            } = &mut found.holder
                && *ends_with == Some(session)
                && closed.is_none()
            {
                match end {
                    SessionEnd::Orderly => *closed = Some((now, event)),
                    SessionEnd::Broken => *ends_with = None,
                }
            }
        }
    }

    pub(super) fn lost_grant(&mut self, now: Time, key: &'static str, token: u64) {
        if self.token_of(key) != Some(token) {
            return;
        }
        self.touch(now, key);
        if self.token_of(key) == Some(token) {
            self.pass_on(now, key);
        }
    }

    pub(super) fn timeouts(&mut self, now: Time) {
        let mut closed: Vec<((u64, u64), &'static str)> = self
            .keys
            .iter()
            .filter_map(|(&key, found)| match found.holder {
                Holder::Native {
                    granted_at,
                    closed: Some((_, closed_at)),
                    ..
                } => Some(((closed_at, granted_at), key)),
                _ => None,
            })
            .collect();
        closed.sort();
        for (_, key) in closed {
            self.touch(now, key);
        }
        self.run_timers(now);
        if self.draining {
            for key in self.keys.keys().copied().collect::<Vec<_>>() {
                self.empty_drained_queue(now, key);
            }
        }
    }

    pub(super) fn drain(&mut self) {
        self.draining = true;
    }

    pub(super) fn dlm_lock(
        &mut self,
        now: Time,
        key: &'static str,
        (id, name): DlmId,
        lease_ms: u64,
    ) -> DlmLock {
        self.touch(now, key);
        if self.is_dlm_holder(key, (id, name)) {
            self.lengthen(now, key, lease_ms);
            return DlmLock::Locked;
        }
        if self.keys.contains_key(key) || self.draining || self.is_in_grace(now) {
            return DlmLock::NotOwner;
        }
        if !self.has_room(now) {
            return DlmLock::Overloaded;
        }
        self.next_token += 1;
        let deadline_set_at = self.next_in_sequence();
        self.keys.insert(
            key,
            Key {
                holder: Holder::Dlm {
                    id,
                    name,
                    is_recorded: lease_ms > self.record_cap_ms,
                },
                deadline: now.plus_millis(lease_ms),
                deadline_set_at,
                queue: Vec::new(),
            },
        );
        DlmLock::Locked
    }

    pub(super) fn dlm_unlock(&mut self, now: Time, key: &'static str, holder: DlmId) -> DlmUnlock {
        self.touch(now, key);
        if self.is_dlm_holder(key, holder) {
            self.pass_on(now, key);
            self.dlm_erase(now, key, holder);
            DlmUnlock::Unlocked
        } else if self.keys.contains_key(key) && !self.is_unknown(key) {
            DlmUnlock::NotOwner
        } else {
            DlmUnlock::Absent
        }
    }

    pub(super) fn dlm_test(&mut self, now: Time, key: &'static str, holder: DlmId) -> DlmTest {
        self.touch(now, key);
        if self.is_dlm_holder(key, holder) {
            DlmTest::Own
        } else if self.keys.contains_key(key) || self.is_in_grace(now) {
            DlmTest::NotOwner
        } else {
            DlmTest::Free
        }
    }

    pub(super) fn dlm_put(
        &mut self,
        now: Time,
        key: &'static str,
        owner: DlmId,
        lease_ms: u64,
        value: &'static str,
    ) -> DlmPut {
        self.touch_data(now, key);
        if self.data.get(key).is_some_and(|data| data.owner != owner) {
            return DlmPut::NotOwner;
        }
        let deadline = now.plus_millis(lease_ms);
        let data = Data {
            owner,
            value,
            deadline,
        };
        self.data.insert(key, data);
        self.touch(now, key);
        if self.is_dlm_holder(key, owner) {
            self.lengthen(now, key, lease_ms);
        }
        DlmPut::Done
    }

    pub(super) fn dlm_get(
        &mut self,
        now: Time,
        key: &'static str,
        asker: DlmId,
    ) -> DlmGet<'static> {
        self.touch_data(now, key);
        if let Some(data) = self.data.get(key) {
            if data.owner == asker {
                return DlmGet::Done(data.value);
            }
            return DlmGet::NotOwner;
        }
        self.touch(now, key);
        if self.is_dlm_holder(key, asker) {
            DlmGet::NoData
        } else {
            DlmGet::NotFound
        }
    }

    pub(super) fn dlm_erase(&mut self, now: Time, key: &'static str, asker: DlmId) -> DlmErase {
        self.touch_data(now, key);
        match self.data.get(key) {
            None => DlmErase::NotFound,
            Some(data) if data.owner != asker => DlmErase::NotOwner,
            Some(_) => {
                self.data.remove(key);
                DlmErase::Done
            }
        }
    }

    fn touch_data(&mut self, now: Time, key: &'static str) {
        if self.data.get(key).is_some_and(|data| now >= data.deadline) {
            self.data.remove(key);
        }
    }

    pub(super) fn waiting(&self) -> usize {
        self.keys.values().map(|found| found.queue.len()).sum()
    }

    pub(super) fn held(&self) -> usize {
        self.keys
            .values()
            .filter(|found| !matches!(found.holder, Holder::Nobody { .. } | Holder::Unknown))
            .count()
    }

    pub(super) fn token_of(&self, key: &str) -> Option<u64> {
        match self.keys.get(key)?.holder {
            Holder::Native { token, .. } => Some(token),
            _ => None,
        }
    }

    /// Rule 3: whatever time or a closed session has decided about a key happens
    /// before the key is looked at.
    fn touch(&mut self, now: Time, key: &'static str) {
        self.empty_drained_queue(now, key);
        let Some(found) = self.keys.get_mut(key) else {
            return;
        };
        if let Holder::Native {
            closed: Some((closed_at, _)),
            ..
        } = found.holder
            && closed_at < found.deadline
        {
            self.pass_on(now, key);
            return;
        }
        if now < found.deadline {
            return;
        }
        if !matches!(found.holder, Holder::Nobody { .. } | Holder::Unknown) {
            let grace_end = found
                .deadline
                .plus_millis(u64::from(self.limits.expiry_grace_ms));
            if now < grace_end {
                let recorded = match found.holder {
                    Holder::Dlm {
                        id,
                        name,
                        is_recorded: true,
                    } => Some(((id, name), found.deadline)),
                    _ => None,
                };
                found.holder = Holder::Nobody { recorded };
                found.deadline = grace_end;
                found.deadline_set_at = self.sequence;
                self.sequence += 1;
                return;
            }
        }
        self.pass_on(now, key);
    }

    /// The grant has ended: the oldest waiter whose wait is not over is next.
    fn pass_on(&mut self, now: Time, key: &'static str) {
        let mut ended = self.keys.remove(key).expect("an ended grant was there");
        while !ended.queue.is_empty() {
            let waiter = ended.queue.remove(0);
            let owner = waiter.owner;
            if waiter.is_over(now) {
                self.tell(waiter.session, Reply::TimedOut { owner });
                continue;
            }
            let closes = waiter.release_on_close.then_some(waiter.session);
            let token = self.grant(now, key, closes, waiter.lease_ms);
            self.key(key).queue = ended.queue;
            let waited_ms = now.millis_since_floor(waiter.arrival) as u32;
            self.events
                .push(granted(waiter.session, owner, token, waited_ms));
            return;
        }
    }

    fn grant(
        &mut self,
        now: Time,
        key: &'static str,
        ends_with: Option<SessionId>,
        lease_ms: u32,
    ) -> u64 {
        let token = self.next_token;
        self.next_token += 1;
        let granted_at = self.next_in_sequence();
        self.keys.insert(
            key,
            Key {
                holder: Holder::Native {
                    token,
                    granted_at,
                    ends_with,
                    closed: None,
                },
                deadline: now.plus_millis(u64::from(lease_ms)),
                deadline_set_at: granted_at,
                queue: Vec::new(),
            },
        );
        token
    }

    fn lengthen(&mut self, now: Time, key: &'static str, lease_ms: u64) {
        let deadline = now.plus_millis(lease_ms);
        let event = self.next_in_sequence();
        let record_cap_ms = self.record_cap_ms;
        let found = self.key(key);
        if deadline > found.deadline {
            found.deadline = deadline;
            found.deadline_set_at = event;
        }
        if let Holder::Dlm { is_recorded, .. } = &mut found.holder {
            *is_recorded |= lease_ms > record_cap_ms;
        }
    }

    /// Everything whose tick has come, in the order of ticks, then of arming.
    fn run_timers(&mut self, now: Time) {
        self.data
            .retain(|_, data| data.deadline.tick_ceil() > now.tick_floor());
        while let Some(key) = self.next_due(now) {
            let found = self.key(key);
            let due_waiter = found
                .queue
                .iter()
                .enumerate()
                .min_by_key(|(_, waiter)| (waiter.deadline.tick_ceil(), waiter.queued_at));
            let lease = (found.deadline.tick_ceil(), found.deadline_set_at);
            match due_waiter {
                Some((place, waiter))
                    if (waiter.deadline.tick_ceil(), waiter.queued_at) < lease =>
                {
                    let waiter = found.queue.remove(place);
                    let owner = waiter.owner;
                    self.tell(waiter.session, Reply::TimedOut { owner });
                    self.forget_unknown(None);
                }
                _ => self.touch(now, key),
            }
        }
    }

    fn next_due(&self, now: Time) -> Option<&'static str> {
        let first_of = |found: &Key| {
            let lease = (found.deadline.tick_ceil(), found.deadline_set_at);
            let waits = found
                .queue
                .iter()
                .map(|waiter| (waiter.deadline.tick_ceil(), waiter.queued_at));
            waits.chain([lease]).min().expect("there is the lease")
        };
        self.keys
            .iter()
            .map(|(&key, found)| (first_of(found), key))
            .filter(|((tick, _), _)| *tick <= now.tick_floor())
            .min()
            .map(|(_, key)| key)
    }

    fn drop_overdue(&mut self, now: Time, key: &'static str) {
        let Some(found) = self.keys.get_mut(key) else {
            return;
        };
        let queue = std::mem::take(&mut found.queue);
        let (over, rest) = queue.into_iter().partition(|waiter| waiter.is_over(now));
        found.queue = rest;
        let over: Vec<Waiter> = over;
        for waiter in over {
            let owner = waiter.owner;
            self.tell(waiter.session, Reply::TimedOut { owner });
        }
    }

    /// Oldest first, whatever the keys.
    fn drop_overdue_of(&mut self, now: Time, session: SessionId) {
        let mut over = Vec::new();
        for found in self.keys.values_mut() {
            for waiter in std::mem::take(&mut found.queue) {
                if waiter.session == session && waiter.is_over(now) {
                    over.push((waiter.queued_at, waiter.owner));
                } else {
                    found.queue.push(waiter);
                }
            }
        }
        over.sort_unstable();
        for (_, owner) in over {
            self.tell(session, Reply::TimedOut { owner });
        }
    }

    fn empty_drained_queue(&mut self, now: Time, key: &'static str) {
        if !self.draining {
            return;
        }
        let Some(found) = self.keys.get_mut(key) else {
            return;
        };
        for waiter in std::mem::take(&mut found.queue) {
            let owner = waiter.owner;
            if waiter.is_over(now) {
                self.tell(waiter.session, Reply::TimedOut { owner });
            } else {
                let code = ErrorCode::ShuttingDown;
                self.events.push(refused(waiter.session, owner, code));
            }
        }
        self.forget_unknown(None);
    }

    /// A key of which nothing is known is kept only for those who wait for it, or who are
    /// about to.
    fn forget_unknown(&mut self, kept: Option<&str>) {
        self.keys.retain(|&key, found| {
            let is_unknown = matches!(found.holder, Holder::Unknown);
            !is_unknown || !found.queue.is_empty() || kept == Some(key)
        });
    }

    fn is_unknown(&self, key: &str) -> bool {
        matches!(self.keys[key].holder, Holder::Unknown)
    }

    fn is_in_grace(&self, now: Time) -> bool {
        now < self.grace_end
    }

    fn has_room(&mut self, now: Time) -> bool {
        let is_room = |model: &Model| model.keys.len() < model.limits.max_keys as usize;
        if !is_room(self) {
            self.run_timers(now);
        }
        is_room(self)
    }

    fn is_queue_full(&self, key: &str) -> bool {
        let queued = self.keys.get(key).map_or(0, |found| found.queue.len());
        queued >= self.limits.max_waiters_per_key as usize
    }

    fn is_server_full(&self) -> bool {
        self.waiting() >= self.limits.max_waiters as usize
    }

    fn is_session_full(&self, session: SessionId) -> bool {
        let queued = self
            .keys
            .values()
            .flat_map(|found| &found.queue)
            .filter(|waiter| waiter.session == session)
            .count();
        queued >= self.limits.max_session_waiters as usize
    }

    pub(super) fn is_dlm_holder(&self, key: &str, holder: DlmId) -> bool {
        match self.keys.get(key).map(|found| &found.holder) {
            Some(&Holder::Dlm { id, name, .. }) => (id, name) == holder,
            _ => false,
        }
    }

    fn key(&mut self, key: &str) -> &mut Key {
        self.keys.get_mut(key).expect("the key is not free")
    }

    fn next_in_sequence(&mut self) -> u64 {
        self.sequence += 1;
        self.sequence
    }

    fn tell(&mut self, to: SessionId, reply: Reply) {
        self.events.push(told(to, reply));
    }
}
