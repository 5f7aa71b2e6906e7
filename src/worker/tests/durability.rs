//! What a loop does so that no restart grants twice, with a store that says what the test
//! says.

mod across_loops;
mod crash;
mod replies;
mod reserves;
mod sessions;

use super::dlm::line;
use super::*;
use crate::dlm::{Operation, Status};
use crate::durability::{Ask, News, TOKEN_BLOCK};

/// Leases up to this are durable in most tests.
const D_MS: u64 = 1_024;

/// DLM leases longer than this are recorded one by one.
const CAP_MS: u64 = 300_000;

/// Code 6.
const OVERLOADED: ErrorCode = ErrorCode::Overloaded;

/// A start at the world's start that found this D, and no lease that may be alive.
fn durable(d_ms: u64) -> Durable {
    Durable {
        d_ms,
        cap_ms: CAP_MS,
        mark: config().first_token + TOKEN_BLOCK,
        token_block: TOKEN_BLOCK,
        started_at: Time::from_millis(5_000),
        grace_end: Time::ZERO,
    }
}

fn config_with(durable: Durable) -> WorkerConfig {
    WorkerConfig {
        durable: Some(durable),
        ..config()
    }
}

fn world() -> World {
    World::new(config_with(durable(D_MS)))
}

fn acquire_for(owner: u64, wait_ms: u32, lease_ms: u32, key: &[u8]) -> Request<'_> {
    Request::Acquire {
        owner,
        wait_ms,
        lease_ms,
        key,
    }
}

/// One immediate attempt.
fn ask_for(owner: u64, lease_ms: u32, key: &[u8]) -> Request<'_> {
    acquire_for(owner, 0, lease_ms, key)
}

fn extend(owner: u64, token: u64, lease_ms: u32, key: &[u8]) -> Request<'_> {
    Request::Extend {
        owner,
        lease_ms,
        token,
        key,
    }
}

fn release(owner: u64, token: u64, key: &[u8]) -> Request<'_> {
    Request::Release { owner, token, key }
}

fn acquired(owner: u64, token: u64, waited_ms: u32) -> Reply {
    Reply::Acquired {
        owner,
        token,
        waited_ms,
    }
}

fn error(owner: u64, code: ErrorCode) -> Reply {
    Reply::Error { owner, code }
}

fn extended(owner: u64, remaining_ms: u32) -> Reply {
    Reply::Extended {
        owner,
        remaining_ms,
    }
}

fn pong(owner: u64) -> Reply {
    Reply::Pong { owner }
}

fn lock_for(id: &str, ttl_ms: u64, key: &str) -> Vec<u8> {
    line(id, key, Operation::Lock { ttl_ms }, None)
}

fn put_for(id: &str, ttl_ms: u64, key: &str) -> Vec<u8> {
    let data_store = "value".into();
    line(id, key, Operation::Put { ttl_ms, data_store }, None)
}

fn unlock(id: &str, key: &str) -> Vec<u8> {
    line(id, key, Operation::Unlock, None)
}

fn raise(to_ms: u64) -> Ask {
    Ask::Raise { to_ms }
}

fn lower(to_ms: u64) -> Ask {
    Ask::Lower { to_ms }
}

impl World {
    /// All that is asked of the store now.
    fn asks(&mut self) -> Vec<Ask> {
        let asks = std::iter::from_fn(|| self.worker.poll_ask(self.now)).collect();
        self.worker.invariants();
        asks
    }

    fn news(&mut self, news: News) {
        self.worker.handle_news(news, self.now);
        self.worker.invariants();
        self.turns_until_idle();
    }

    fn ask_and_turn(&mut self, id: SessionId, requests: &[Request<'_>]) -> Vec<Reply> {
        self.ask(id, requests);
        self.turns_until_idle();
        self.replies(id)
    }

    /// Asks on a DLM connection of its own; what it is answered is seen by `status`.
    fn begin_dlm(&mut self, line: &[u8]) -> SessionId {
        let id = self.connect_dlm();
        self.receive(id, line);
        self.turns_until_idle();
        id
    }

    fn remaining_ms(&mut self, key: &[u8]) -> u32 {
        let watcher = self.connect();
        let replies = self.ask_and_turn(watcher, &[query(1, key)]);
        let [Reply::State { remaining_ms, .. }] = replies[..] else {
            panic!("not one state: {replies:?}");
        };
        self.end(watcher, PeerEnd::Fin);
        remaining_ms
    }
}
