#![allow(clippy::unwrap_used)]

mod dlm;
mod durability;
mod mesh;

use super::*;
use crate::protocol::{self, Request, flags};

const SECOND_MS: u64 = 1_000;

fn config() -> WorkerConfig {
    WorkerConfig {
        requests: RequestLimits {
            max_key_bytes: 64,
            max_lease_ms: 255_000,
            max_wait_ms: 255_000,
        },
        engine: EngineLimits {
            max_keys: 1_000,
            max_memory_bytes: 1 << 30,
            max_waiters_per_key: 100,
            max_waiters: 1_000,
            max_session_waiters: 100,
            expiry_grace_ms: 0,
        },
        credentials: None,
        max_connections: 100,
        output_soft_limit_bytes: 4 * 1024,
        output_hard_limit_bytes: 16 * 1024,
        peer_timeout_ms: 20 * SECOND_MS,
        linger_ms: SECOND_MS,
        linger_bytes: 1_000,
        dlm: DlmConfig {
            requests: crate::dlm::DlmLimits {
                max_key_bytes: 64,
                max_ttl_ms: 86_400_000,
                anonymous_allowed: true,
                anonymous_max_ttl_ms: 3_543_000,
                anonymous_max_data_chars: 16 * 1024,
            },
            max_connections: 50,
            max_payload_bytes: 1 << 20,
            max_buffered_bytes: 1 << 20,
            request_timeout_ms: 30 * SECOND_MS,
        },
        loops: 1,
        loop_index: 0,
        routing_seed: 7,
        hash_seed: 9,
        first_token: 100,
        durable: None,
    }
}

/// The port of a loop that is alone.
fn alone() -> crate::mesh::MeshPort {
    crate::mesh::build(1, 1).remove(0)
}

/// A worker and the kernel it would have: what each session was sent, which are
/// closed, and the clock.
struct World {
    worker: Worker,
    now: Time,
    sent: Vec<(SessionId, Vec<u8>)>,
    shut_down: Vec<SessionId>,
    closed: Vec<SessionId>,
    /// Bytes the kernel takes for each session before it blocks.
    room: Vec<(SessionId, usize)>,
}

impl World {
    fn new(config: WorkerConfig) -> World {
        World {
            worker: Worker::new(config, alone()),
            now: Time::from_millis(5_000),
            sent: Vec::new(),
            shut_down: Vec::new(),
            closed: Vec::new(),
            room: Vec::new(),
        }
    }

    fn connect(&mut self) -> SessionId {
        self.connect_to(Protocol::Native)
    }

    fn connect_to(&mut self, protocol: Protocol) -> SessionId {
        let id = self.worker.handle_accepted(protocol, self.now).unwrap();
        self.sent.push((id, Vec::new()));
        id
    }

    fn receive(&mut self, id: SessionId, bytes: &[u8]) {
        self.worker.handle_received(id, bytes, self.now);
        self.worker.invariants();
    }

    fn ask(&mut self, id: SessionId, requests: &[Request<'_>]) {
        self.receive(id, &frames(requests));
    }

    /// The rest of a turn.
    fn turn(&mut self) {
        for _ in 0..self.worker.backlog_len() {
            self.worker.handle_backlog(self.now);
            self.worker.invariants();
        }
        self.worker.handle_large_request(self.now);
        self.worker.invariants();
        self.worker.handle_timeouts(self.now);
        self.worker.invariants();
        while let Some(id) = self.worker.poll_dirty() {
            self.serve(id);
        }
        self.worker.invariants();
    }

    fn serve(&mut self, id: SessionId) {
        loop {
            let room = self.room.iter_mut().find(|(of, _)| *of == id);
            match self.worker.poll_action(id, self.now) {
                Action::Write(bytes) => {
                    let count = room.map_or(bytes.len(), |(_, room)| {
                        let count = bytes.len().min(*room);
                        *room -= count;
                        count
                    });
                    if count == 0 {
                        self.worker.handle_blocked(id, self.now);
                        return;
                    }
                    let sent = self.sent.iter_mut().find(|(of, _)| *of == id).unwrap();
                    sent.1.extend_from_slice(&bytes[..count]);
                    self.worker.handle_submitted(id, count);
                }
                Action::ShutdownWrite => self.shut_down.push(id),
                Action::Close => {
                    self.closed.push(id);
                    self.worker.handle_closed(id);
                    return;
                }
                Action::Wait => return,
                Action::Move(_) => unreachable!("there is one loop"),
            }
        }
    }

    fn turns_until_idle(&mut self) {
        self.turn();
        while self.worker.has_work() {
            self.turn();
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_millis(ms);
        self.turns_until_idle();
    }

    fn take_sent(&mut self, id: SessionId) -> Vec<u8> {
        let sent = self.sent.iter_mut().find(|(of, _)| *of == id).unwrap();
        std::mem::take(&mut sent.1)
    }

    /// Takes the replies that were sent to `id` since last asked.
    fn replies(&mut self, id: SessionId) -> Vec<Reply> {
        decoded(&self.take_sent(id))
    }
}

fn decoded(bytes: &[u8]) -> Vec<Reply> {
    let mut rest = bytes;
    let mut replies = Vec::new();
    while let Some((reply, length)) = Reply::decode(rest).unwrap() {
        replies.push(reply);
        rest = &rest[length..];
    }
    assert!(rest.is_empty(), "a reply was sent in part");
    replies
}

fn frames(requests: &[Request<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        request.encode(&mut bytes);
    }
    bytes
}

fn acquire(owner: u64, wait_ms: u32, key: &[u8]) -> Request<'_> {
    Request::Acquire {
        owner,
        wait_ms,
        lease_ms: 10_000,
        key,
    }
}

fn query(owner: u64, key: &[u8]) -> Request<'_> {
    Request::Query { owner, key }
}

fn ping(owner: u64) -> Request<'static> {
    Request::Ping { owner, key: b"" }
}

fn hello(flags: u8) -> Request<'static> {
    Request::Hello {
        owner: 1,
        version: 1,
        flags,
        wanted_loop: protocol::ANY_LOOP,
        credential: b"",
    }
}

fn held(replies: &[Reply]) -> bool {
    match replies {
        [Reply::State { held, .. }] => *held,
        other => panic!("not one state: {other:?}"),
    }
}

/// Scenario 26: every cut of a stream into two parts, and byte by byte, gives the
/// replies of the stream in one piece.
#[test]
fn every_split_gives_the_same_replies() {
    let stream = frames(&[
        hello(0),
        acquire(0x0A0A_0A0A_0A0A_0A0A, 0, b"k"),
        acquire(2, 0, b"k"),
        query(3, b"\x00\r"),
        ping(4),
        acquire(5, 0, b""),
    ]);
    let whole = {
        let mut world = World::new(config());
        let id = world.connect();
        world.receive(id, &stream);
        world.turns_until_idle();
        world.replies(id)
    };
    assert_eq!(whole.len(), 6);
    for cut in 1..stream.len() {
        let mut world = World::new(config());
        let id = world.connect();
        world.receive(id, &stream[..cut]);
        world.turn();
        world.receive(id, &stream[cut..]);
        world.turns_until_idle();
        assert_eq!(world.replies(id), whole, "cut at {cut}");
    }
    let mut world = World::new(config());
    let id = world.connect();
    for byte in &stream {
        world.receive(id, std::slice::from_ref(byte));
    }
    world.turns_until_idle();
    assert_eq!(world.replies(id), whole);
}

/// The matrix of who is refused with what before a key's state is looked at: the
/// first of 1, 2, 5, 7, 3, 4 is answered.
#[test]
fn errors_come_in_their_order_of_precedence() {
    let credentials = Credentials::parse(
        // printf secret | sha256sum
        "joe 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b",
    )
    .unwrap();
    let hello = |version, flags, wanted_loop, credential: &'static [u8]| Request::Hello {
        owner: 1,
        version,
        flags,
        wanted_loop,
        credential,
    };
    let good = b"joe:secret";
    let bad_key = acquire(1, 0, b"\xFF");
    let bad_time = Request::Acquire {
        owner: 1,
        wait_ms: 0,
        lease_ms: 0,
        key: b"k",
    };
    let bad_both = Request::Acquire {
        owner: 1,
        wait_ms: 0,
        lease_ms: 0,
        key: b"",
    };
    let cases: &[(&str, bool, &[Request<'_>], ErrorCode)] = &[
        ("no hello", true, &[bad_both], ErrorCode::Unauthenticated),
        ("ping", true, &[ping(1)], ErrorCode::Unauthenticated),
        (
            "bad secret and version",
            true,
            &[hello(9, 0xF0, 7, b"joe:wrong")],
            ErrorCode::Unauthenticated,
        ),
        (
            "bad second hello",
            true,
            &[hello(1, 0, 0, good), hello(1, 0, 0, b"")],
            ErrorCode::Unauthenticated,
        ),
        (
            "version",
            true,
            &[hello(2, 0, 0, good)],
            ErrorCode::Unsupported,
        ),
        (
            "version 0",
            false,
            &[hello(0, 0, 0, b"")],
            ErrorCode::Unsupported,
        ),
        (
            "flag",
            false,
            &[hello(1, 0x10, 0, b"")],
            ErrorCode::Unsupported,
        ),
        (
            "flag",
            false,
            &[hello(1, 0x81, 0, b"")],
            ErrorCode::Unsupported,
        ),
        (
            "loop",
            false,
            &[hello(1, 0, 1, b"")],
            ErrorCode::Unsupported,
        ),
        (
            "second hello",
            true,
            &[hello(1, 0, 0, good), hello(1, 0, 0, good)],
            ErrorCode::Unsupported,
        ),
        (
            "late hello",
            false,
            &[ping(1), hello(1, 0, 0, b"")],
            ErrorCode::Unsupported,
        ),
        (
            "hello after a refused request",
            false,
            &[bad_key, hello(1, 0, 0, b"")],
            ErrorCode::Unsupported,
        ),
        ("key first", false, &[bad_both], ErrorCode::BadKey),
        ("key", false, &[bad_key], ErrorCode::BadKey),
        ("lease", false, &[bad_time], ErrorCode::BadTime),
    ];
    for &(name, with_credentials, requests, code) in cases {
        let mut config = config();
        config.credentials = with_credentials.then(|| credentials.clone());
        let mut world = World::new(config);
        let id = world.connect();
        world.ask(id, requests);
        world.ask(id, &[ping(99)]);
        world.turns_until_idle();
        let replies = world.replies(id);
        let error = Reply::Error { owner: 1, code };
        if code.closes_session() {
            assert_eq!(replies.last(), Some(&error), "{name}");
            assert_eq!(world.shut_down, [id], "{name}");
        } else {
            assert_eq!(replies, [error, Reply::Pong { owner: 99 }], "{name}");
        }
    }
}

#[test]
fn lost_framing_is_answered_after_what_is_owed_and_closes() {
    for (bytes, owner, code) in [
        (&b"Z"[..], 0, ErrorCode::UnknownOp),
        (&b"\n"[..], 0, ErrorCode::UnknownOp),
        (
            &[&b"Q\0\0\0\0\0\0\0\x07"[..], &[b'k'; 65]].concat()[..],
            7,
            ErrorCode::BadFrame,
        ),
    ] {
        let mut world = World::new(config());
        let id = world.connect();
        world.receive(id, &[&frames(&[ping(1), ping(2)])[..], bytes].concat());
        world.turns_until_idle();
        assert_eq!(
            world.replies(id),
            [
                Reply::Pong { owner: 1 },
                Reply::Pong { owner: 2 },
                Reply::Error { owner, code }
            ]
        );
        assert_eq!((world.shut_down.len(), world.closed.len()), (1, 0));
        world.worker.handle_end(id, PeerEnd::Fin, world.now);
        world.turns_until_idle();
        assert_eq!(world.closed, [id]);
    }
}

#[test]
fn lingering_ends_with_time_and_with_bytes() {
    for by_bytes in [false, true] {
        let mut world = World::new(config());
        let id = world.connect();
        world.receive(id, b"Z");
        world.turns_until_idle();
        assert!(world.worker.wants_input(id));
        world.receive(id, &[b'x'; 1_000]);
        world.pass(SECOND_MS - 1);
        assert!(world.closed.is_empty());
        if by_bytes {
            world.receive(id, b"x");
            world.turns_until_idle();
        } else {
            assert_eq!(world.worker.poll_timeout(), Some(world.now.plus_millis(1)));
            world.pass(1);
        }
        assert_eq!(world.closed, [id], "by bytes: {by_bytes}");
        assert_eq!(world.worker.session_count(), 0);
    }
}

/// Scenario 25.
#[test]
fn an_ended_client_gets_what_it_is_owed() {
    let mut world = World::new(config());
    let holder = world.connect();
    world.ask(holder, &[acquire(1, 0, b"k")]);
    let id = world.connect();
    let mut bytes = frames(&[ping(1), acquire(2, 9_000, b"k"), acquire(3, 0, b"free")]);
    bytes.extend_from_slice(b"Q\0\0");
    world.receive(id, &bytes);
    world.worker.handle_end(id, PeerEnd::Fin, world.now);
    world.worker.invariants();
    world.turns_until_idle();
    let replies = world.replies(id);
    assert_eq!(replies.len(), 3);
    assert_eq!(replies[0], Reply::Pong { owner: 1 });
    assert!(matches!(replies[1], Reply::Acquired { owner: 3, .. }));
    assert_eq!(replies[2], Reply::TimedOut { owner: 2 });
    assert_eq!(world.closed, [id]);
}

/// Rule 6, and its limit: one byte handed to the kernel and the grant stays.
#[test]
fn a_grant_is_taken_back_only_while_no_byte_of_it_was_sent() {
    for room in [0, 1, 21, 22] {
        let mut world = World::new(config());
        let watcher = world.connect();
        let id = world.connect();
        world.room.push((id, room));
        world.ask(id, &[acquire(1, 0, b"k")]);
        world.turns_until_idle();
        world.worker.handle_end(id, PeerEnd::Broken, world.now);
        world.worker.invariants();
        world.turns_until_idle();
        assert_eq!(world.closed, [id]);
        world.ask(watcher, &[query(1, b"k")]);
        world.turns_until_idle();
        assert_eq!(held(&world.replies(watcher)), room > 0, "room for {room}");
    }
}

/// The same when the connection breaks in the very turn of the request, and when
/// the grant given back goes on to a waiter.
#[test]
fn a_grant_given_back_goes_to_the_next_in_line() {
    let mut world = World::new(config());
    let waiter = world.connect();
    let id = world.connect();
    world.ask(id, &[acquire(1, 0, b"k")]);
    world.ask(waiter, &[acquire(2, 9_000, b"k")]);
    world.worker.handle_end(id, PeerEnd::Broken, world.now);
    world.turns_until_idle();
    assert!(matches!(
        world.replies(waiter)[..],
        [Reply::Acquired { owner: 2, .. }]
    ));
}

#[test]
fn a_broken_session_leaves_no_waiter_behind() {
    let mut world = World::new(config());
    let holder = world.connect();
    let gone = world.connect();
    let id = world.connect();
    world.ask(holder, &[acquire(1, 0, b"k")]);
    world.ask(gone, &[acquire(2, 9_000, b"k"), acquire(3, 9_000, b"k")]);
    world.ask(id, &[acquire(4, 9_000, b"k")]);
    world.turns_until_idle();
    world.worker.handle_end(gone, PeerEnd::Broken, world.now);
    world.turns_until_idle();
    assert!(world.replies(gone).is_empty(), "left unanswered");
    let token = match world.replies(holder)[..] {
        [Reply::Acquired { token, .. }] => token,
        ref other => panic!("{other:?}"),
    };
    let key = b"k";
    let owner = 5;
    world.ask(holder, &[Request::Release { owner, token, key }]);
    world.turns_until_idle();
    assert!(matches!(
        world.replies(id)[..],
        [Reply::Acquired { owner: 4, .. }]
    ));
}

/// Scenario 23, first half: input is held back while too much is owed, nothing is
/// lost, and all is served once the peer reads.
#[test]
fn a_peer_that_does_not_read_is_not_read() {
    let mut world = World::new(config());
    let id = world.connect();
    world.room.push((id, 0));
    let pings: Vec<Request<'_>> = (1..=3_000).map(ping).collect();
    world.ask(id, &pings);
    world.turn();
    assert!(!world.worker.wants_input(id));
    // One more reply than the soft limit allows, and not two.
    let owed = 4 * 1024 / 10 + 1;
    world.room[0].1 = usize::MAX;
    world.worker.mark_dirty(id);
    world.worker.invariants();
    while let Some(id) = world.worker.poll_dirty() {
        world.serve(id);
    }
    assert_eq!(world.replies(id).len(), owed);
    world.turns_until_idle();
    assert_eq!(world.replies(id).len(), 3_000 - owed);
    assert!(world.worker.wants_input(id));
}

/// Scenario 23, second half: grants for queued acquires can pile up although input
/// is held back; at the hard limit the session ends.
#[test]
fn a_session_over_its_hard_limit_is_closed() {
    let mut config = config();
    config.output_soft_limit_bytes = 100;
    config.output_hard_limit_bytes = 300;
    let mut world = World::new(config);
    let id = world.connect();
    let other = world.connect();
    world.ask(other, &[acquire(1, 0, b"k")]);
    world.turns_until_idle();
    world.room.push((id, 0));
    let queued: Vec<Request<'_>> = (1..=40).map(|owner| acquire(owner, 1_000, b"k")).collect();
    world.ask(id, &queued);
    world.turns_until_idle();
    // All forty end unanswered in one tick: 400 bytes are owed.
    world.pass(1_001);
    assert_eq!(world.closed, [id]);
    assert_eq!(world.worker.session_counters().over_output_limit, 1);
    world.ask(other, &[ping(2)]);
    world.turns_until_idle();
    assert_eq!(world.replies(other).len(), 2);
}

/// The hard limit is for peers that do not read: one that does gets all it is owed,
/// however much of it falls due in one moment.
#[test]
fn a_reader_is_sent_more_than_the_hard_limit_in_one_go() {
    let mut config = config();
    config.output_soft_limit_bytes = 100;
    config.output_hard_limit_bytes = 300;
    let mut world = World::new(config);
    let holder = world.connect();
    world.ask(holder, &[acquire(1, 0, b"k")]);
    let id = world.connect();
    let queued: Vec<Request<'_>> = (1..=90).map(|owner| acquire(owner, 9_000, b"k")).collect();
    world.ask(id, &queued);
    world.turns_until_idle();
    world.worker.handle_end(id, PeerEnd::Fin, world.now);
    world.turns_until_idle();
    assert_eq!(world.replies(id).len(), 90);
    assert_eq!(world.closed, [id]);
    assert_eq!(world.worker.session_counters().over_output_limit, 0);
}

/// Scenario 30: what was once a large batch leaves no large buffer behind.
#[test]
fn an_unfinished_frame_keeps_the_bytes_it_has_and_no_more() {
    let mut world = World::new(config());
    let id = world.connect();
    let mut bytes = frames(&(1..=2_000).map(ping).collect::<Vec<_>>());
    bytes.extend_from_slice(b"Q\0\0");
    world.receive(id, &bytes[..7]);
    world.receive(id, &bytes[7..]);
    world.turns_until_idle();
    assert_eq!(world.replies(id).len(), 2_000);
    let session = world.worker.sessions.get(id).unwrap();
    assert_eq!(session.input, b"Q\0\0");
    assert!(session.input.capacity() < 64);
    assert_eq!(session.output.pending().len(), 0);
}

/// However busy a turn is, what is due gets as many steps of it as requests did.
#[test]
fn a_busy_turn_gives_timers_their_share() {
    let mut config = config();
    config.engine.max_keys = 100_000;
    config.output_soft_limit_bytes = 1 << 20;
    config.output_hard_limit_bytes = 1 << 21;
    let mut world = World::new(config);
    let ids: Vec<SessionId> = (0..20).map(|_| world.connect()).collect();
    for (number, &id) in ids.iter().enumerate() {
        let keys: Vec<String> = (0..500).map(|key| format!("{number}-{key}")).collect();
        let held: Vec<Request<'_>> = keys.iter().map(|k| acquire(1, 0, k.as_bytes())).collect();
        world.ask(id, &held);
    }
    world.turns_until_idle();
    assert_eq!(world.worker.engine().held(), 10_000);
    world.now = world.now.plus_millis(10_001);
    // A lease of ten seconds ends in three steps, two of them down the wheel.
    for _ in 0..3 {
        for &id in &ids {
            world.ask(id, &(1..=600).map(ping).collect::<Vec<_>>());
        }
        world.turn();
    }
    let held = world.worker.engine().held();
    assert_eq!(held, 0, "36,000 requests were judged");
}

#[test]
fn stuck_output_ends_a_session_in_time_and_progress_renews_it() {
    let mut world = World::new(config());
    let id = world.connect();
    world.room.push((id, 5));
    world.ask(id, &[ping(1)]);
    world.turns_until_idle();
    world.pass(19 * SECOND_MS);
    world.room[0].1 = 3;
    world.worker.mark_dirty(id);
    world.turns_until_idle();
    world.pass(20 * SECOND_MS - 1);
    assert!(world.closed.is_empty(), "it took three bytes in between");
    world.pass(1);
    assert_eq!(world.closed, [id]);
    assert_eq!(world.worker.session_counters().stalled, 1);
}

/// A batch over the turn's budget is judged to its end in later turns, in order,
/// and the client's end waits for it.
#[test]
fn a_large_batch_is_spread_over_turns_and_its_end_waits() {
    let mut config = config();
    config.output_soft_limit_bytes = 1 << 20;
    config.output_hard_limit_bytes = 1 << 21;
    let mut world = World::new(config);
    let id = world.connect();
    let pings: Vec<Request<'_>> = (1..=5_000).map(ping).collect();
    world.ask(id, &pings);
    world.worker.handle_end(id, PeerEnd::Fin, world.now);
    world.worker.invariants();
    world.turn();
    assert!(world.replies(id).len() < 5_000, "one turn has a bound");
    assert!(world.closed.is_empty());
    let mut turns = 1;
    while world.worker.has_work() {
        world.turn();
        turns += 1;
    }
    assert!(turns < 10);
    assert_eq!(world.closed, [id]);
}

#[test]
fn what_comes_too_late_for_a_session_reaches_nobody() {
    let mut world = World::new(config());
    let old = world.connect();
    world.worker.handle_end(old, PeerEnd::Broken, world.now);
    world.turns_until_idle();
    let new = world.connect();
    assert_eq!(old.slot(), new.slot());
    world.ask(old, &[ping(1)]);
    world.worker.handle_end(old, PeerEnd::Broken, world.now);
    world.worker.handle_submitted(old, 0);
    world.worker.handle_closed(old);
    world.turns_until_idle();
    assert!(world.replies(new).is_empty());
    world.ask(new, &[ping(2)]);
    world.turns_until_idle();
    assert_eq!(world.replies(new), [Reply::Pong { owner: 2 }]);
}

#[test]
fn connections_over_the_limit_are_refused() {
    let mut config = config();
    config.max_connections = 2;
    let mut world = World::new(config);
    let first = world.connect();
    world.connect();
    assert_eq!(
        world.worker.handle_accepted(Protocol::Native, world.now),
        None
    );
    world.worker.handle_end(first, PeerEnd::Broken, world.now);
    world.turns_until_idle();
    assert!(
        world
            .worker
            .handle_accepted(Protocol::Native, world.now)
            .is_some()
    );
}

/// Scenario 46: only the client's own orderly end releases.
#[test]
fn release_on_close_is_for_orderly_ends_only() {
    type End = fn(&mut World, SessionId);
    let ends: [(&str, bool, End); 4] = [
        ("fin", true, |world, id| {
            world.worker.handle_end(id, PeerEnd::Fin, world.now);
        }),
        ("reset", false, |world, id| {
            world.worker.handle_end(id, PeerEnd::Broken, world.now);
        }),
        ("error", false, |world, id| world.receive(id, b"Z")),
        ("drain", false, |world, _| world.worker.close_all(world.now)),
    ];
    for (name, released, end) in ends {
        let mut world = World::new(config());
        let id = world.connect();
        world.ask(id, &[hello(flags::RELEASE_ON_CLOSE), acquire(1, 0, b"k")]);
        world.turns_until_idle();
        end(&mut world, id);
        world.turns_until_idle();
        let watcher = world.connect();
        world.ask(watcher, &[query(1, b"k")]);
        world.turns_until_idle();
        assert_eq!(held(&world.replies(watcher)), !released, "{name}");
    }
}

/// Time never goes back, whoever passes it in.
#[test]
fn an_earlier_now_is_not_believed() {
    let mut world = World::new(config());
    let id = world.connect();
    world.ask(id, &[acquire(1, 0, b"k")]);
    world.turns_until_idle();
    world.replies(id);
    let late = world.now.plus_millis(10_000);
    world.worker.handle_timeouts(late);
    world.ask(id, &[query(2, b"k")]);
    world.turns_until_idle();
    assert!(!held(&world.replies(id)));
}

/// What a driver does whose sends own their bytes.
impl World {
    fn take_output(&mut self, id: SessionId) -> Vec<u8> {
        let offered = match self.worker.poll_action(id, self.now) {
            Action::Write(bytes) => bytes.to_vec(),
            other => panic!("nothing is offered: {other:?}"),
        };
        let bytes = self.worker.take_output(id);
        assert_eq!(bytes, offered);
        self.worker.invariants();
        assert_eq!(self.worker.poll_action(id, self.now), Action::Wait);
        bytes
    }

    fn sent(&mut self, id: SessionId, count: usize) {
        self.worker.handle_sent(id, count);
        self.worker.invariants();
    }
}

/// Rule 6 where sends own their bytes: what was taken counts as submitted.
#[test]
fn a_grant_in_flight_stays_and_a_later_one_is_taken_back() {
    let mut world = World::new(config());
    let watcher = world.connect();
    let id = world.connect();
    world.ask(id, &[acquire(1, 0, b"in flight")]);
    world.take_output(id);
    world.ask(id, &[acquire(2, 0, b"behind it")]);
    world.worker.handle_end(id, PeerEnd::Broken, world.now);
    world.turns_until_idle();
    assert_eq!(world.closed, [id]);
    for (key, expected) in [(b"in flight", true), (b"behind it", false)] {
        world.ask(watcher, &[query(1, key)]);
        world.turns_until_idle();
        assert_eq!(held(&world.replies(watcher)), expected, "{key:?}");
    }
}

#[test]
fn what_is_in_flight_is_still_owed() {
    let mut world = World::new(config());
    let id = world.connect();
    let pings: Vec<Request<'_>> = (1..=410).map(ping).collect();
    world.ask(id, &pings);
    let owed = world.take_output(id).len();
    assert_eq!(owed, 4 * 1024 + 4);
    assert!(!world.worker.wants_input(id), "over the soft limit");
    world.sent(id, 3);
    assert!(!world.worker.wants_input(id));
    world.sent(id, 1);
    assert!(world.worker.wants_input(id));
}

#[test]
fn what_is_in_flight_counts_for_the_hard_limit() {
    for in_flight in [5, 6] {
        let mut config = config();
        config.output_soft_limit_bytes = 100;
        config.output_hard_limit_bytes = 300;
        let mut world = World::new(config);
        let id = world.connect();
        let other = world.connect();
        world.ask(other, &[acquire(1, 0, b"k")]);
        let queued: Vec<Request<'_>> = (1..=25).map(|owner| acquire(owner, 1_000, b"k")).collect();
        world.ask(id, &queued);
        world.turns_until_idle();
        let pings: Vec<Request<'_>> = (1..=in_flight).map(ping).collect();
        world.ask(id, &pings);
        assert_eq!(world.take_output(id).len() as u64, 10 * in_flight);
        // 250 bytes join those in flight.
        world.pass(1_001);
        world.worker.handle_blocked(id, world.now);
        world.turns_until_idle();
        assert_eq!(world.closed.contains(&id), in_flight > 5, "{in_flight}");
    }
}

#[test]
fn an_orderly_end_waits_for_what_is_in_flight() {
    let mut world = World::new(config());
    let finished = world.connect();
    world.ask(finished, &[ping(1)]);
    world.take_output(finished);
    world.worker.handle_end(finished, PeerEnd::Fin, world.now);
    let refused = world.connect();
    world.receive(refused, b"Z");
    world.take_output(refused);
    world.turns_until_idle();
    world.sent(finished, 9);
    world.sent(refused, 10);
    world.turns_until_idle();
    assert!(world.closed.is_empty() && world.shut_down.is_empty());
    world.sent(finished, 1);
    world.sent(refused, 1);
    world.turns_until_idle();
    assert_eq!(world.closed, [finished]);
    assert_eq!(world.shut_down, [refused]);
}

#[test]
fn output_that_is_stuck_in_flight_ends_a_session_in_time() {
    let mut world = World::new(config());
    let id = world.connect();
    world.ask(id, &[ping(1)]);
    world.take_output(id);
    world.worker.handle_blocked(id, world.now);
    world.pass(19 * SECOND_MS);
    world.sent(id, 4);
    world.worker.handle_blocked(id, world.now);
    world.pass(20 * SECOND_MS - 1);
    assert!(world.closed.is_empty(), "it took four bytes in between");
    // The kernel may keep its bytes longer than the session lives.
    world.now = world.now.plus_millis(1);
    world.worker.handle_timeouts(world.now);
    assert_eq!(world.worker.poll_dirty(), Some(id));
    assert_eq!(world.worker.poll_action(id, world.now), Action::Close);
    world.sent(id, 6);
    assert_eq!(world.worker.poll_action(id, world.now), Action::Close);
    assert_eq!(world.worker.session_counters().stalled, 1);
}

#[test]
fn a_buffer_that_comes_back_is_used_again() {
    let mut world = World::new(config());
    let id = world.connect();
    world.ask(id, &[ping(1)]);
    let mut buffer = world.take_output(id);
    buffer.reserve(10_000);
    let capacity = buffer.capacity();
    world.sent(id, 10);
    world.worker.return_buffer(buffer);
    world.ask(id, &[ping(2)]);
    let again = world.take_output(id);
    assert_eq!((again.len(), again.capacity()), (10, capacity));
}
