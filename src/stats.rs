//! Plain per-loop counters, merged on request. Nobody locks them: each loop
//! counts for itself.

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
    /// Requests decoded.
    pub requests: u64,
}
