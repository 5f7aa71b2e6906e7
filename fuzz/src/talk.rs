//! A loop that is alone, one session of it, and the kernel that it would have.

use crate::source::Source;
use leasehold::dlm::{DlmLimits, Identity};
use leasehold::engine::EngineLimits;
use leasehold::engine::time::Time;
use leasehold::ids::SessionId;
use leasehold::protocol::RequestLimits;
use leasehold::worker::{Action, DlmConfig, PeerEnd, Protocol, Worker, WorkerConfig};

/// What DLM requests may ask.
pub(crate) const DLM_LIMITS: DlmLimits = DlmLimits {
    max_key_bytes: 64,
    max_ttl_ms: 86_400_000,
    anonymous_allowed: true,
    anonymous_max_ttl_ms: 3_543_000,
    anonymous_max_data_chars: 64,
};

/// What came of a session.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Outcome {
    pub(crate) sent: Vec<u8>,
    /// Keys that are held, acquires that are queued, data slots.
    left: (u32, u32, u32),
}

struct Talk {
    worker: Worker,
    now: Time,
    id: SessionId,
    sent: Vec<u8>,
    is_closed: bool,
}

/// Has a session receive `bytes` in the pieces that `cuts` decides (an empty one: all
/// at once), then its client's end, and runs until the session is closed.
pub(crate) fn talk(
    protocol: Protocol,
    soft_limit_bytes: usize,
    bytes: &[u8],
    mut cuts: Source<'_>,
) -> Outcome {
    let mut talk = Talk::new(protocol, soft_limit_bytes);
    let mut rest = bytes;
    while !rest.is_empty() && !talk.is_closed {
        let length = match cuts.is_empty() {
            true => rest.len(),
            false => cuts.byte().clamp(1, 64).into(),
        };
        let (piece, behind) = rest.split_at(length.min(rest.len()));
        rest = behind;
        talk.worker.handle_received(talk.id, piece, talk.now);
        // Also while no input is wanted: some may have been under way.
        if cuts.byte().is_multiple_of(2) {
            talk.turns();
        }
    }
    talk.worker.handle_end(talk.id, PeerEnd::Fin, talk.now);
    talk.turns();
    assert!(talk.is_closed, "the client's end is the session's");
    assert_eq!(talk.worker.session_count(), 0);
    let engine = talk.worker.engine();
    Outcome {
        left: (engine.held(), engine.waiting(), engine.data_slots()),
        sent: talk.sent,
    }
}

impl Talk {
    fn new(protocol: Protocol, soft_limit_bytes: usize) -> Talk {
        let port = leasehold::mesh::build(1, 1).remove(0);
        let mut worker = Worker::new(config(soft_limit_bytes), port);
        let now = Time::from_millis(5_000);
        let id = worker.handle_accepted(protocol, now).expect("room for one");
        Talk {
            worker,
            now,
            id,
            sent: Vec::new(),
            is_closed: false,
        }
    }

    /// Turns, until nothing is left to do but wait.
    fn turns(&mut self) {
        loop {
            self.worker.handle_backlog(self.now);
            self.worker.handle_large_request(self.now);
            while let Some(name) = self.worker.poll_identity_read() {
                let identity = identity(&name);
                self.worker.handle_identity_read(&name, identity, self.now);
            }
            self.worker.handle_timeouts(self.now);
            while let Some(id) = self.worker.poll_dirty() {
                assert_eq!(id, self.id);
                self.serve();
            }
            self.worker.invariants();
            if !self.worker.has_work() {
                return;
            }
        }
    }

    fn serve(&mut self) {
        loop {
            match self.worker.poll_action(self.id, self.now) {
                Action::Write(bytes) => {
                    let count = bytes.len();
                    self.sent.extend_from_slice(bytes);
                    self.worker.handle_submitted(self.id, count);
                }
                Action::ShutdownWrite => {}
                Action::Close => {
                    self.worker.handle_closed(self.id);
                    self.is_closed = true;
                    return;
                }
                Action::Wait => return,
                Action::Move(_) => unreachable!("there is one loop"),
            }
        }
    }
}

/// One identity exists; its secret is the shortest that there is.
fn identity(name: &str) -> Option<Identity> {
    let secret = "s".repeat(1023);
    let file = format!("{{\"Identity\": \"{secret}\", \"MaxSize\": 100}}");
    (name == "n").then(|| Identity::parse(file.as_bytes()).expect("a good file"))
}

fn config(soft_limit_bytes: usize) -> WorkerConfig {
    WorkerConfig {
        requests: RequestLimits {
            max_key_bytes: 64,
            max_lease_ms: 255_000,
            max_wait_ms: 255_000,
        },
        engine: EngineLimits {
            max_keys: 50,
            max_memory_bytes: 1 << 30,
            max_waiters_per_key: 5,
            max_waiters: 20,
            max_session_waiters: 10,
            expiry_grace_ms: 0,
        },
        credentials: None,
        max_connections: 2,
        output_soft_limit_bytes: soft_limit_bytes,
        output_hard_limit_bytes: soft_limit_bytes + 10_000,
        peer_timeout_ms: 1_000,
        linger_ms: 1_000,
        linger_bytes: 1 << 20,
        dlm: DlmConfig {
            requests: DLM_LIMITS,
            max_connections: 2,
            max_payload_bytes: 4_000,
            max_buffered_bytes: 1 << 20,
            request_timeout_ms: 1_000,
        },
        loops: 1,
        loop_index: 0,
        routing_seed: 7,
        hash_seed: 9,
        first_token: 100,
        durable: None,
    }
}
