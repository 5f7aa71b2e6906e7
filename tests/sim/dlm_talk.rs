//! One DLM connection's conversation: one request, one answer.

use leasehold::dlm::{DlmReply, DlmRequest, Operation, Status, decode};
use leasehold::engine::time::Time;

use crate::clocks::Clock;
use crate::ledger::{DlmLease, Ledger};

/// One connection's request and what is known of its answer.
#[derive(Debug)]
pub(crate) struct DlmTalk {
    operation: Operation<'static>,
    key: usize,
    id: String,
    /// Its client's.
    pub(crate) clock: Clock,
    line: Vec<u8>,
    handed: usize,
    sent_at: Option<Time>,
    /// When its last byte was sent.
    pub(crate) completed_at: Option<Time>,
    /// The answer's status, the length of its data, and when it was told.
    pub(crate) told: Option<(Status, Option<usize>, Time)>,
    /// The holder has begun to send an Unlock, here or elsewhere.
    pub(crate) given_back: bool,
    answer: Vec<u8>,
    pub(crate) is_answered: bool,
}

impl DlmTalk {
    pub(crate) fn new(
        operation: Operation<'static>,
        (key, name): (usize, &[u8]),
        id: String,
        is_garbled: bool,
    ) -> DlmTalk {
        let request = DlmRequest {
            id: id.as_str().into(),
            file_name: String::from_utf8_lossy(name),
            claim: None,
            operation: operation.clone(),
        };
        let mut line = Vec::new();
        request.encode(&mut line);
        let operation = if is_garbled {
            line[0] = b'!';
            Operation::Version
        } else {
            operation
        };
        DlmTalk {
            operation,
            key,
            id,
            clock: Clock::TRUE,
            line,
            handed: 0,
            sent_at: None,
            completed_at: None,
            told: None,
            given_back: false,
            answer: Vec::new(),
            is_answered: false,
        }
    }

    pub(crate) fn operation(&self) -> &Operation<'static> {
        &self.operation
    }

    pub(crate) fn key(&self) -> usize {
        self.key
    }

    pub(crate) fn id(&self) -> &str {
        &self.id
    }

    pub(crate) fn unsent(&self) -> usize {
        self.line.len() - self.handed
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.unsent() == 0
    }

    /// The client hands the next `count` bytes to its kernel.
    pub(crate) fn hand(&mut self, count: usize, now: Time, ledger: &mut Ledger) -> Vec<u8> {
        let upto = (self.handed + count).min(self.line.len());
        let bytes = self.line[self.handed..upto].to_vec();
        if self.sent_at.is_none() && upto > 0 {
            self.sent_at = Some(now);
            if self.operation == Operation::Unlock {
                ledger.dlm_unlock_sent(self.key, &self.id);
            }
        }
        self.handed = upto;
        if self.is_complete() {
            self.completed_at.get_or_insert(now);
        }
        bytes
    }

    /// The worker has handed these bytes to its driver.
    pub(crate) fn hear(&mut self, bytes: &[u8], now: Time, ledger: &mut Ledger) {
        assert!(!self.is_answered, "a second answer to {:?}", self.operation);
        self.answer.extend_from_slice(bytes);
        let Some(code) = self.answer.strip_suffix(b"\n") else {
            return;
        };
        self.is_answered = true;
        let text = decode(code).expect("answers are well coded");
        let reply = DlmReply::decode(&text).expect("answers are well formed");
        let value_len = reply.data_store.as_ref().map(|value| value.len());
        self.told = Some((reply.status, value_len, now));
        let fits: &[Status] = match self.operation {
            Operation::Lock { .. } => &[Status::Locked, Status::NotOwner, Status::No],
            Operation::Unlock => &[Status::Unlocked, Status::NotOwner],
            Operation::TestLock => &[Status::Unlocked, Status::Locked, Status::NotOwner],
            Operation::Put { .. } => &[Status::Done, Status::NotOwner, Status::No],
            Operation::Get => &[
                Status::Done,
                Status::NoData,
                Status::NotFound,
                Status::NotOwner,
            ],
            Operation::Erase => &[Status::Done, Status::NotFound, Status::NotOwner],
            Operation::Version => &[Status::BadPayload],
        };
        assert!(
            fits.contains(&reply.status),
            "{:?} was answered {reply:?}",
            self.operation
        );
        ledger.covered.note(reply.status.as_str());
        if reply.status == Status::No {
            ledger.check_refusal(self.key, self.completed_at.expect("it is answered"));
        }
        if let Some(lease) = self.lease()
            && reply.status == Status::Locked
        {
            let sent_at = self.sent_at.expect("it is answered");
            ledger.dlm_locked(&lease, (sent_at, self.clock), self.given_back, now);
        }
        if let Some(lease) = self.renewal()
            && reply.status == Status::Done
        {
            ledger.dlm_may_be_kept_for(&lease, now);
        }
    }

    /// The connection is over.
    pub(crate) fn abandon(&mut self, ledger: &mut Ledger) {
        if !self.is_answered
            && self.is_complete()
            && let Some(lease) = self.may_hold()
        {
            ledger.dlm_lock_unanswered(lease);
        }
    }

    /// What its connection's request may come to hold, or hold for longer.
    pub(crate) fn may_hold(&self) -> Option<DlmLease> {
        self.lease().or_else(|| self.renewal())
    }

    /// What a Lock that was sent may come to hold.
    fn lease(&self) -> Option<DlmLease> {
        match self.operation {
            Operation::Lock { ttl_ms } => Some(self.lease_of(ttl_ms)),
            _ => None,
        }
    }

    /// A Put renews its holder's lock, if there is one.
    fn renewal(&self) -> Option<DlmLease> {
        match self.operation {
            Operation::Put { ttl_ms, .. } => Some(self.lease_of(ttl_ms)),
            _ => None,
        }
    }

    fn lease_of(&self, ttl_ms: u64) -> DlmLease {
        DlmLease {
            key: self.key,
            id: self.id.clone(),
            ttl_ms,
        }
    }

    /// The same Lock again, if it is one that was broken off before its answer.
    pub(crate) fn lost_lock(&self) -> Option<Operation<'static>> {
        let is_lost = matches!(self.operation, Operation::Lock { .. }) && !self.is_answered;
        is_lost.then(|| self.operation.clone())
    }

    /// Whether it is a Lock by this holder.
    pub(crate) fn is_lock_by(&self, id: &str) -> bool {
        matches!(self.operation, Operation::Lock { .. }) && self.id == id
    }
}
