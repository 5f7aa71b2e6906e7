//! A small instance: who is there, what may happen, and which fault the server has.

use super::state::{Key, Loop, Tick};

/// The shorter of the two D that the server knows, and the one it begins with.
pub(crate) const SHORT: Tick = 1;
/// The longer: what covers every lease of every instance.
pub(crate) const LONG: Tick = 2;

#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) clients: Vec<Setup>,
    /// By key: the loop that owns it.
    pub(crate) owners: Vec<Loop>,
    /// Wait and lease of the acquires that clients send.
    pub(crate) acquires: Vec<(Tick, Tick)>,
    /// Lease of the extends that they send; `None`: they send none.
    pub(crate) extend: Option<Tick>,
    pub(crate) cancels: bool,
    /// Until when clients ask, and time passes though nothing waits for it.
    pub(crate) busy_until: Tick,
    pub(crate) expiry_grace: Tick,
    pub(crate) crashes: u8,
    pub(crate) fault: Option<Fault>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    pub(crate) at: Loop,
    /// How many acquires, extends and cancels it sends; a release is free.
    pub(crate) asks: u8,
    pub(crate) release_on_close: bool,
    pub(crate) may_finish: bool,
    pub(crate) may_reset: bool,
}

impl World {
    /// A world whose clients send one acquire each, and nothing else happens.
    pub(crate) fn new(clients: Vec<Setup>, owners: Vec<Loop>) -> World {
        World {
            clients,
            owners,
            acquires: vec![(2, 1)],
            extend: None,
            cancels: false,
            busy_until: 2,
            expiry_grace: 0,
            crashes: 0,
            fault: None,
        }
    }

    pub(crate) fn with(&self, fault: Fault) -> World {
        World {
            fault: Some(fault),
            ..self.clone()
        }
    }

    pub(crate) fn has(&self, fault: Fault) -> bool {
        self.fault == Some(fault)
    }

    pub(crate) fn owner(&self, key: Key) -> Loop {
        self.owners[usize::from(key)]
    }
}

impl Setup {
    pub(crate) const fn at(at: Loop, asks: u8) -> Setup {
        Setup {
            at,
            asks,
            release_on_close: false,
            may_finish: false,
            may_reset: false,
        }
    }
}

/// A server that does one thing wrong: the properties have to reject it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// After a crash keys are free at once.
    GrantDuringGrace,
    /// After a crash tokens begin anew.
    TokensBeginAnew,
    /// A reply tells of a lease that D does not cover yet.
    ReplyBeforeDurable,
    /// D falls while a lease that it covers may be believed.
    DFallsAtOnce,
    /// A grant that finds its session gone is dropped.
    SkipLostGrant,
    /// A reset session's grants are given back though their replies were submitted.
    TakeBackToldGrant,
    /// An extend may shorten the lease.
    ExtendShortens,
    /// An extend disarms the lease's timer for good.
    ExtendLosesTimer,
    /// A release fits whatever its token.
    AnyTokenReleases,
    /// The queue's end is granted first.
    LastInFirstOut,
    /// A waiter is granted though its wait is over.
    GrantAfterWait,
    /// The lease counts from the acquire's arrival.
    WaitingCostsLease,
    /// `waited` is rounded up.
    WaitedRoundedUp,
    /// A request is judged at a clock read before it came.
    StaleClock,
    /// A key is freed and its queue stays.
    FreeWithWaiters,
    /// An acquire that a session's orderly end takes out of the queue is not answered.
    EndAnswersNobody,
    /// A session's end leaves its acquires in the queue.
    EndLeavesWaiters,
    /// A reset is taken for an orderly end.
    ResetReleases,
    /// A cancel takes the acquire out of the queue and does not answer it.
    CancelAnswersNobody,
    /// A cancelled acquire stays in the queue.
    CancelLeavesWaiter,
}
