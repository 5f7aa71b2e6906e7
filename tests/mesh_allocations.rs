//! What crosses between loops on every request takes no memory of its own.
//!
//! One test, since the allocations of all threads count.

use std::alloc::System;

use leasehold::ids::{GrantRef, SessionId};
use leasehold::mesh::{self, INLINE_KEY_BYTES, Message};
use leasehold::protocol::{Reply, Request};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ROUNDS: u64 = 100;
const DEPTH: u64 = 16;

/// Allocations while acquires and releases of a key of this length cross, are
/// answered, and wake a loop each time.
fn allocations(key_bytes: usize) -> u64 {
    let mut ports = mesh::build(2, 64).into_iter();
    let (mut a, mut b) = (ports.next().expect("two"), ports.next().expect("two"));
    let key = vec![b'k'; key_bytes];
    let session = SessionId::new(0, 0, 0);
    let mut round = || {
        assert!(b.try_sleep());
        for owner in 0..DEPTH / 2 {
            let acquire = Request::Acquire {
                owner,
                wait_ms: 1,
                lease_ms: 1,
                key: &key,
            };
            let release = Request::Release {
                owner,
                token: 1,
                key: &key,
            };
            for request in [&acquire, &release] {
                let sent = a.outbound.try_request(1, session, false, request);
                assert_eq!(sent, Ok(()));
            }
        }
        assert_eq!(a.poll_wakes().count(), 1);
        b.handle_awake();
        b.gather(64);
        b.inbound.drain(|message| match message {
            Message::Request {
                session, request, ..
            } => match request.as_request() {
                Request::Acquire { owner, .. } => {
                    let grant = GrantRef { entry: 1, token: 1 };
                    b.outbound.granted(*session, owner, grant, 0);
                }
                other => {
                    let owner = other.owner();
                    b.outbound.reply(*session, Reply::Released { owner });
                }
            },
            other => panic!("not sent here: {other:?}"),
        });
        assert_eq!(b.poll_wakes().count(), 0);
        assert_eq!(a.gather(64) as u64, DEPTH);
        a.inbound.drain(|_| {});
    };
    // The lists of what a turn touched are as long as they will get after one.
    round();
    let region = Region::new(ALLOCATOR);
    (0..ROUNDS).for_each(|_| round());
    region.change().allocations as u64
}

#[test]
fn a_request_allocates_only_for_a_long_key() {
    assert_eq!(allocations(1), 0);
    assert_eq!(allocations(INLINE_KEY_BYTES), 0);
    assert_eq!(allocations(INLINE_KEY_BYTES + 1), ROUNDS * DEPTH);
}
