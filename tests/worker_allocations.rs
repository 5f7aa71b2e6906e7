//! A request takes no memory of its own on its whole way but the sockets': neither for
//! a key of the session's loop nor for one of another loop, whichever way a driver sends.
//!
//! One test, since the allocations of all threads count.

use std::alloc::System;

use leasehold::dlm::DlmLimits;
use leasehold::engine::EngineLimits;
use leasehold::engine::time::Time;
use leasehold::ids::SessionId;
use leasehold::mesh;
use leasehold::partition;
use leasehold::protocol::{Reply, Request, RequestLimits};
use leasehold::worker::{Action, DlmConfig, Protocol, Worker, WorkerConfig};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: usize = 100;
const DEPTH: u64 = 16;
const ROUTING_SEED: u64 = 7;

/// How a driver hands output to the kernel.
#[derive(Clone, Copy, Debug)]
enum Sends {
    Copies,
    Owns,
}

fn config(loop_index: u16) -> WorkerConfig {
    WorkerConfig {
        requests: RequestLimits {
            max_key_bytes: 64,
            max_lease_ms: 60_000,
            max_wait_ms: 60_000,
        },
        engine: EngineLimits {
            max_keys: 1_000,
            max_memory_bytes: 1 << 30,
            max_waiters_per_key: 10,
            max_waiters: 1_000,
            max_session_waiters: 100,
            expiry_grace_ms: 0,
        },
        credentials: None,
        max_connections: 10,
        output_soft_limit_bytes: 1 << 16,
        output_hard_limit_bytes: 1 << 20,
        peer_timeout_ms: 20_000,
        linger_ms: 1_000,
        linger_bytes: 1_000,
        dlm: DlmConfig {
            requests: DlmLimits {
                max_key_bytes: 64,
                max_ttl_ms: 1_000,
                anonymous_allowed: true,
                anonymous_max_ttl_ms: 1_000,
                anonymous_max_data_chars: 10,
            },
            max_connections: 10,
            max_payload_bytes: 1_000,
            max_buffered_bytes: 1_000,
            request_timeout_ms: 1_000,
        },
        loops: 2,
        loop_index,
        routing_seed: ROUTING_SEED,
        hash_seed: 9,
        first_token: 1,
        durable: None,
    }
}

/// What a worker has for its sessions is sent, and kept in `sent`.
fn flush(worker: &mut Worker, sends: Sends, now: Time, sent: &mut Vec<u8>) {
    while let Some(id) = worker.poll_dirty() {
        while let Action::Write(bytes) = worker.poll_action(id, now) {
            let count = bytes.len();
            match sends {
                Sends::Copies => {
                    sent.extend_from_slice(bytes);
                    worker.handle_submitted(id, count);
                }
                Sends::Owns => {
                    let bytes = worker.take_output(id);
                    sent.extend_from_slice(&bytes);
                    worker.handle_sent(id, count);
                    worker.return_buffer(bytes);
                }
            }
        }
    }
}

/// Allocations of pairs of acquire and release for keys that `owner` has, asked of loop 0.
fn allocations(owner: u16, sends: Sends) -> usize {
    let mut workers: Vec<Worker> = (0..)
        .zip(mesh::build(2, 64))
        .map(|(loop_index, port)| Worker::new(config(loop_index), port))
        .collect();
    let keys: Vec<Vec<u8>> = (0_u64..)
        .map(|number| format!("{number:016}").into_bytes())
        .filter(|key| partition::loop_of(key, ROUTING_SEED, 2) == owner)
        .take(DEPTH as usize)
        .collect();
    let now = Time::from_millis(5_000);
    let session: SessionId = workers[0]
        .handle_accepted(Protocol::Native, now)
        .expect("there is room");
    let mut sent = Vec::with_capacity(1 << 16);
    let mut requests = Vec::with_capacity(1 << 16);
    let mut tokens = Vec::with_capacity(DEPTH as usize);
    let mut round = || {
        for releases in [false, true] {
            requests.clear();
            for (index, key) in keys.iter().enumerate() {
                let owner = index as u64 + 1;
                let request = match releases {
                    false => Request::Acquire {
                        owner,
                        wait_ms: 0,
                        lease_ms: 10_000,
                        key,
                    },
                    true => Request::Release {
                        owner,
                        token: tokens[index],
                        key,
                    },
                };
                request.encode(&mut requests);
            }
            sent.clear();
            workers[0].handle_received(session, &requests, now);
            // There, and back if it went anywhere.
            for index in [0, 1, 0] {
                let worker = &mut workers[index];
                worker.handle_awake();
                while worker.gather_messages() > 0 {
                    worker.handle_messages(now);
                }
                worker.handle_room();
                worker.handle_timeouts(now);
                flush(worker, sends, now, &mut sent);
                worker.poll_wakes().for_each(drop);
            }
            tokens.clear();
            let mut rest = &sent[..];
            let mut answers = 0;
            while let Ok(Some((reply, length))) = Reply::decode(rest) {
                rest = &rest[length..];
                answers += 1;
                match reply {
                    Reply::Acquired { token, .. } => tokens.push(token),
                    Reply::Released { .. } => {}
                    other => panic!("not asked for: {other:?}"),
                }
            }
            assert_eq!(answers, DEPTH);
        }
    };
    // Tables and buffers are as large as they will get after a few.
    let growing = Region::new(ALLOCATOR);
    (0..ROUNDS).for_each(|_| round());
    assert!(growing.change().allocations > 0, "nothing is counted");
    let region = Region::new(ALLOCATOR);
    (0..ROUNDS).for_each(|_| round());
    region.change().allocations
}

#[test]
fn a_request_allocates_nothing_on_either_way() {
    for owner in [0, 1] {
        for sends in [Sends::Copies, Sends::Owns] {
            assert_eq!(allocations(owner, sends), 0, "keys of {owner}, {sends:?}");
        }
    }
}
