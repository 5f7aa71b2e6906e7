//! Plain counters of one loop, read and merged by whoever reports them.

/// What an engine has done since it started.
///
/// At any moment `accepted` is the sum of `granted`, `timed_out`, `busy`,
/// `cancelled`, `gone`, `refused` and the acquires that are waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Native acquires judged.
    pub accepted: u64,
    /// Acquires granted.
    pub granted: u64,
    /// Acquires answered `T` because their wait was over, or 0 on a held key.
    pub timed_out: u64,
    /// Acquires answered `B`.
    pub busy: u64,
    /// Queued acquires answered `T` because of a Cancel.
    pub cancelled: u64,
    /// Queued acquires that left with their session.
    pub gone: u64,
    /// Acquires answered `E`.
    pub refused: u64,
    /// Grants ended by a Release.
    pub released: u64,
    /// Extends answered `X`.
    pub extended: u64,
    /// Releases and extends answered `N`.
    pub not_held: u64,
    /// Leases that ran out, DLM ones included.
    pub expired: u64,
    /// Grants released because their session closed in order.
    pub released_on_close: u64,
    /// Grants taken back because their session was gone before the reply left.
    pub lost_grants: u64,
    /// Grants given up because what their reply told could not be made durable.
    pub given_up: u64,
    /// DLM locks granted.
    pub dlm_granted: u64,
    /// DLM locks renewed by their holder.
    pub dlm_renewed: u64,
    /// DLM locks ended by an Unlock.
    pub dlm_released: u64,
}

/// What happened to one loop's sessions since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SessionCounters {
    /// Sessions opened.
    pub opened: u64,
    /// Connections closed without a byte, over `--max-connections`.
    pub refused: u64,
    /// Ended by the client in order (FIN).
    pub ended_by_client: u64,
    /// Ended by a reset or another fault of the connection.
    pub broken: u64,
    /// Ended by the server with an error reply.
    pub closed_on_error: u64,
    /// Ended because nothing that was owed could be sent for `--peer-timeout`.
    pub stalled: u64,
    /// Ended because more than `--output-hard-limit` was owed.
    pub over_output_limit: u64,
    /// DLM connections that did not deliver their request in time.
    pub requests_too_slow: u64,
    /// Native requests decoded.
    pub requests: u64,
    /// Sessions that came from another loop.
    pub moved_here: u64,
}

/// What one loop's io_uring went through since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingCounters {
    /// System calls, sleeps included.
    pub enters: u64,
    /// System calls that the kernel had no room for; what they asked was asked again.
    pub refused_enters: u64,
    /// Completions looked at.
    pub completions: u64,
    /// Looks at the completion queue that found the kernel holding more of them back.
    pub overflows: u64,
    /// Operations that had to wait for room in the submission queue.
    pub queue_full: u64,
    /// Receives that found no buffer; each began again.
    pub buffers_exhausted: u64,
    /// Receives that the kernel ended by itself; each began again.
    pub receives_rearmed: u64,
    /// Receives that were cancelled because a session's input was not wanted.
    pub receives_paused: u64,
    /// Sends of which the kernel took only a part, or nothing, at a time.
    pub short_sends: u64,
    /// Operations that a close had to cancel.
    pub cancelled: u64,
    /// Cancels that found nothing to cancel, or came at the wrong moment; each was
    /// tried again as long as it was needed.
    pub not_cancelled: u64,
    /// Accepts that the kernel ended; each began again.
    pub accepts_rearmed: u64,
    /// Connections turned away, every slot being taken.
    pub turned_away: u64,
    /// Pauses of accepting, the kernel having no room.
    pub accept_rests: u64,
}
