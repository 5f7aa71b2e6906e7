//! What histories came through, to be sure that they come through all of it.

use std::collections::BTreeMap;
use std::fmt;

use leasehold::dlm::Status;
use leasehold::protocol::{ErrorCode, Reply};

use crate::history::Explained;
use crate::world::World;

/// How often something occurred, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Covered(BTreeMap<&'static str, u64>);

/// Every kind of reply, and every error's code.
const REPLIES: [&str; 19] = [
    "A", "T", "B", "R", "X", "N", "Q", "C", "P", "H", "E 1", "E 2", "E 3", "E 4", "E 5", "E 6",
    "E 7", "E 8", "E 9",
];

/// How a reply is called here.
pub(crate) fn name_of(reply: &Reply) -> &'static str {
    match reply {
        Reply::Acquired { .. } => "A",
        Reply::TimedOut { .. } => "T",
        Reply::Busy { .. } => "B",
        Reply::Released { .. } => "R",
        Reply::Extended { .. } => "X",
        Reply::NotHeld { .. } => "N",
        Reply::State { .. } => "Q",
        Reply::CancelDone { .. } => "C",
        Reply::Pong { .. } => "P",
        Reply::Welcome(_) => "H",
        Reply::Error { code, .. } => match code {
            ErrorCode::UnknownOp => "E 1",
            ErrorCode::BadFrame => "E 2",
            ErrorCode::BadKey => "E 3",
            ErrorCode::BadTime => "E 4",
            ErrorCode::Unauthenticated => "E 5",
            ErrorCode::Overloaded => "E 6",
            ErrorCode::Unsupported => "E 7",
            ErrorCode::ShuttingDown => "E 8",
            ErrorCode::TooManyQueued => "E 9",
        },
    }
}

impl Covered {
    pub(crate) fn note(&mut self, name: &'static str) {
        self.add_to(name, 1);
    }

    fn add_to(&mut self, name: &'static str, count: u64) {
        *self.0.entry(name).or_default() += count;
    }

    /// What a history that is over came through.
    pub(crate) fn by(world: &World, explained: Explained) -> Covered {
        let mut sum = Covered::default();
        let statuses = Status::ALL.map(Status::as_str);
        let never = [Status::BadAction, Status::Corruption, Status::Version].map(Status::as_str);
        for name in REPLIES.into_iter().chain(statuses) {
            if !never.contains(&name) {
                sum.add_to(name, 0);
            }
        }
        sum.add_to("steps", world.steps);
        sum.add_to("connections", world.env.links.len() as u64);
        sum.add_to("moves", world.env.moves);
        sum.add_to("drains", world.options.drains.into());
        let closes = world.options.drains && world.options.closes_early;
        sum.add_to("early closes", closes.into());
        sum.add_to("DLM tries again", 0);
        sum.add_to("DLM looks after an Unlock", 0);
        sum.add_to("keys explained", explained.keys);
        sum.add_to("keys undecided", explained.undecided);
        for host in &world.hosts {
            let engine = host.worker.engine().counters();
            let sessions = host.worker.session_counters();
            let mesh = host.worker.mesh_counters();
            for (name, count) in [
                ("sleeps", host.sleeps),
                ("granted", engine.granted),
                ("timed out", engine.timed_out),
                ("busy", engine.busy),
                ("cancelled", engine.cancelled),
                ("gone", engine.gone),
                ("refused", engine.refused),
                ("extended", engine.extended),
                ("expired", engine.expired),
                ("released on close", engine.released_on_close),
                ("lost grants", engine.lost_grants),
                ("DLM granted", engine.dlm_granted),
                ("DLM renewed", engine.dlm_renewed),
                ("mesh refused", mesh.refused),
                ("mesh spilled", mesh.spilled),
                ("wakes", mesh.wakes),
                ("stalled", sessions.stalled),
                ("over output limit", sessions.over_output_limit),
                ("closed on error", sessions.closed_on_error),
                ("requests too slow", sessions.requests_too_slow),
            ] {
                sum.add_to(name, count);
            }
        }
        sum.add(&world.env.ledger.covered);
        sum
    }

    pub(crate) fn add(&mut self, other: &Covered) {
        for (name, count) in &other.0 {
            self.add_to(name, *count);
        }
    }

    /// All of it was tried.
    pub(crate) fn check(&self) {
        let never = self.0.iter().filter(|(_, count)| **count == 0);
        let never: Vec<&str> = never.map(|(name, _)| *name).collect();
        assert!(never.is_empty(), "never tried: {never:?} of {self}");
    }
}

impl fmt::Display for Covered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = self.0.iter().map(|(name, count)| format!("{name} {count}"));
        f.write_str(&shown.collect::<Vec<_>>().join(", "))
    }
}
