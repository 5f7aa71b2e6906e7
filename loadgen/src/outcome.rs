//! Operations and how they end, numbered so that counting is an index.

use leasehold::protocol::ErrorCode;

/// What is measured by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Op {
    /// Acquire, Lock, SET NX.
    Acquire,
    /// Release, Unlock, compare-and-delete.
    Release,
    /// DLM Put.
    Put,
    /// DLM Get.
    Get,
    /// A frame or line to a server that looks at none.
    Echo,
    /// A connection; no request.
    Connect,
    /// From one holder's release, or the end of its lease, to the next one's grant; no request.
    HandOver,
}

impl Op {
    /// All of them, in the order of their numbers.
    pub(crate) const ALL: [Op; 7] = [
        Op::Acquire,
        Op::Release,
        Op::Put,
        Op::Get,
        Op::Echo,
        Op::Connect,
        Op::HandOver,
    ];

    /// Name in reports; JackrabbitDLM has its own for two of them.
    pub(crate) fn name(self, is_dlm: bool) -> &'static str {
        match self {
            Op::Acquire if is_dlm => "lock",
            Op::Release if is_dlm => "unlock",
            Op::Acquire => "acquire",
            Op::Release => "release",
            Op::Put => "put",
            Op::Get => "get",
            Op::Echo => "echo",
            Op::Connect => "connect",
            Op::HandOver => "hand_over",
        }
    }

    /// Whether it is counted as a request.
    pub(crate) fn is_request(self) -> bool {
        !matches!(self, Op::Connect | Op::HandOver)
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// As asked.
    Ok,
    /// `T`; on Redis, a key that was held.
    TimedOut,
    /// `B`.
    Busy,
    /// `N`.
    NotHeld,
    /// `E` and its code.
    Error(u8),
    /// DLM: held by another.
    NotOwner,
    /// DLM: NotFound or NoData.
    NotFound,
    /// DLM: BadPayload or BadAction.
    BadPayload,
    /// DLM: out of memory.
    No,
    /// DLM: Corruption.
    Corruption,
    /// DLM: Get gave other data than Put stored.
    WrongData,
    /// An error reply of Redis.
    Refused,
    /// No connection could be had.
    Unconnected,
    /// The connection broke before the answer came.
    Indeterminate,
}

/// Codes of `E` that are counted each by itself; 0 is for all others.
const ERROR_CODES: usize = 10;

impl Outcome {
    /// Number of different outcomes.
    pub(crate) const COUNT: usize = 13 + ERROR_CODES;

    /// The outcome with this error code.
    pub(crate) fn of_error(code: ErrorCode) -> Outcome {
        Outcome::Error(code as u8)
    }

    /// Whether a lock is refused by it because another holds the key.
    pub(crate) fn is_contention(self) -> bool {
        matches!(self, Outcome::TimedOut | Outcome::Busy | Outcome::NotOwner)
    }

    /// Its number.
    pub(crate) fn index(self) -> usize {
        match self {
            Outcome::Ok => 0,
            Outcome::TimedOut => 1,
            Outcome::Busy => 2,
            Outcome::NotHeld => 3,
            Outcome::NotOwner => 4,
            Outcome::NotFound => 5,
            Outcome::BadPayload => 6,
            Outcome::No => 7,
            Outcome::Corruption => 8,
            Outcome::WrongData => 9,
            Outcome::Refused => 10,
            Outcome::Unconnected => 11,
            Outcome::Indeterminate => 12,
            Outcome::Error(code) => {
                let code = usize::from(code);
                13 + if code < ERROR_CODES { code } else { 0 }
            }
        }
    }

    /// Name in reports of the outcome with this number.
    pub(crate) fn name_of(index: usize) -> &'static str {
        const NAMES: [&str; Outcome::COUNT] = [
            "ok",
            "timed_out",
            "busy",
            "not_held",
            "not_owner",
            "not_found",
            "bad_payload",
            "no",
            "corruption",
            "wrong_data",
            "refused",
            "unconnected",
            "indeterminate",
            "other_error",
            "unknown_op",
            "bad_frame",
            "bad_key",
            "bad_lease_or_wait",
            "unauthenticated",
            "overloaded",
            "unsupported",
            "shutting_down",
            "too_many_queued",
        ];
        NAMES[index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_places_in_the_tables() {
        for (number, op) in Op::ALL.into_iter().enumerate() {
            assert_eq!(op as usize, number);
        }
        let name = |outcome: Outcome| Outcome::name_of(outcome.index());
        assert_eq!(name(Outcome::Ok), "ok");
        assert_eq!(name(Outcome::Indeterminate), "indeterminate");
        assert_eq!(
            name(Outcome::of_error(ErrorCode::ShuttingDown)),
            "shutting_down"
        );
        assert_eq!(
            name(Outcome::of_error(ErrorCode::TooManyQueued)),
            "too_many_queued"
        );
        assert_eq!(name(Outcome::Error(77)), "other_error");
    }
}
