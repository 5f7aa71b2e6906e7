//! The DLM side of a loop: one request, one answer, whatever becomes of the
//! connection and whenever an identity's file is read.

use super::*;
use crate::dlm::{self, Claim, DlmReply, DlmRequest, Identity, Operation, Status};

const TTL_MS: u64 = 60_000;

pub(super) fn line(
    id: &str,
    file_name: &str,
    operation: Operation<'_>,
    name: Option<&str>,
) -> Vec<u8> {
    let request = DlmRequest {
        id: id.into(),
        file_name: file_name.into(),
        claim: name.map(|name| Claim {
            name: name.into(),
            identity: secret().into(),
        }),
        operation,
    };
    let mut line = Vec::new();
    request.encode(&mut line);
    line
}

fn lock(id: &str, file_name: &str) -> Vec<u8> {
    line(id, file_name, Operation::Lock { ttl_ms: TTL_MS }, None)
}

fn put(id: &str, file_name: &str, data: &str) -> Vec<u8> {
    let operation = Operation::Put {
        ttl_ms: TTL_MS,
        data_store: data.into(),
    };
    line(id, file_name, operation, None)
}

fn lock_as(name: &str, file_name: &str) -> Vec<u8> {
    let operation = Operation::Lock { ttl_ms: TTL_MS };
    line("A", file_name, operation, Some(name))
}

fn secret() -> String {
    "s".repeat(1023)
}

fn identity(secret: &str) -> Option<Identity> {
    let file = format!("{{\"Identity\": \"{secret}\", \"MaxSize\": 1000000}}");
    Some(Identity::parse(file.as_bytes()).unwrap())
}

impl World {
    pub(super) fn connect_dlm(&mut self) -> SessionId {
        self.connect_to(Protocol::Dlm)
    }

    /// The status of the one answer that was sent to `id` since last asked.
    pub(super) fn status(&mut self, id: SessionId) -> Option<Status> {
        let sent = self.take_sent(id);
        let code = sent.strip_suffix(b"\n");
        assert!(code.is_some() || sent.is_empty(), "an answer in part");
        code.map(|code| {
            let text = dlm::decode(code).unwrap();
            DlmReply::decode(&text).unwrap().status
        })
    }

    /// Asks on a connection of its own.
    fn ask_dlm(&mut self, line: &[u8]) -> Option<Status> {
        let id = self.connect_dlm();
        self.receive(id, line);
        self.turns_until_idle();
        let status = self.status(id);
        self.end(id, PeerEnd::Fin);
        status
    }

    pub(super) fn end(&mut self, id: SessionId, how: PeerEnd) {
        self.worker.handle_end(id, how, self.now);
        self.worker.invariants();
        self.turns_until_idle();
    }

    fn identity_read(&mut self, name: &str, identity: Option<Identity>) {
        self.worker.handle_identity_read(name, identity, self.now);
        self.worker.invariants();
        self.turns_until_idle();
    }

    /// Whether a native client is told that the key is held.
    pub(super) fn is_held(&mut self, key: &[u8]) -> bool {
        let watcher = self.connect();
        self.ask(watcher, &[query(1, key)]);
        self.turns_until_idle();
        let held = held(&self.replies(watcher));
        self.end(watcher, PeerEnd::Fin);
        held
    }
}

/// Scenario 26, for this protocol.
#[test]
fn every_split_gives_the_same_answer() {
    let line = lock("A", "k");
    for cut in 1..line.len() {
        let mut world = World::new(config());
        let id = world.connect_dlm();
        world.receive(id, &line[..cut]);
        world.turn();
        assert_eq!(world.status(id), None, "cut at {cut}");
        world.receive(id, &line[cut..]);
        world.turns_until_idle();
        assert_eq!(world.status(id), Some(Status::Locked), "cut at {cut}");
    }
    let mut world = World::new(config());
    let id = world.connect_dlm();
    for byte in &line {
        world.receive(id, std::slice::from_ref(byte));
    }
    world.turns_until_idle();
    assert_eq!(world.status(id), Some(Status::Locked));
}

#[test]
fn an_answer_is_followed_by_the_end_of_the_server_s_side_and_nothing_else() {
    let mut world = World::new(config());
    let id = world.connect_dlm();
    world.receive(id, &[lock("A", "k"), lock("A", "l")].concat());
    world.turns_until_idle();
    assert_eq!(world.status(id), Some(Status::Locked));
    assert_eq!(
        (&world.shut_down[..], &world.closed[..]),
        (&[id][..], &[][..])
    );
    world.receive(id, &lock("A", "m"));
    world.turns_until_idle();
    assert_eq!(world.status(id), None);
    world.end(id, PeerEnd::Fin);
    assert_eq!(world.closed, [id]);
    assert!(!world.is_held(b"l") && !world.is_held(b"m"));
}

#[test]
fn a_client_that_has_ended_gets_its_answer_and_is_not_lingered_for() {
    let mut world = World::new(config());
    let id = world.connect_dlm();
    world.receive(id, &lock("A", "k"));
    world.end(id, PeerEnd::Fin);
    assert_eq!(world.status(id), Some(Status::Locked));
    assert_eq!(
        (&world.shut_down[..], &world.closed[..]),
        (&[][..], &[id][..])
    );
}

#[test]
fn an_unfinished_request_ends_without_an_answer() {
    let line = lock("A", "k");
    for how in [PeerEnd::Fin, PeerEnd::Broken] {
        for length in [0, 1, line.len() - 1] {
            let mut world = World::new(config());
            let id = world.connect_dlm();
            world.receive(id, &line[..length]);
            world.end(id, how);
            assert_eq!(world.status(id), None);
            assert_eq!(world.closed, [id]);
            assert!(!world.is_held(b"k"));
        }
    }
}

/// Whatever the kernel took of the answer: a DLM lock is told of again by asking
/// again, so it is never taken back.
#[test]
fn a_lock_stays_though_its_answer_was_lost() {
    let whole = lock("A", "k").len();
    for room in [0, 1, whole] {
        let mut world = World::new(config());
        let id = world.connect_dlm();
        world.room.push((id, room));
        world.receive(id, &lock("A", "k"));
        world.turns_until_idle();
        world.end(id, PeerEnd::Broken);
        assert_eq!(world.closed, [id]);
        assert!(world.is_held(b"k"), "room for {room}");
        assert_eq!(world.worker.engine().counters().lost_grants, 0);
        assert_eq!(world.ask_dlm(&lock("B", "k")), Some(Status::NotOwner));
        assert_eq!(world.ask_dlm(&lock("A", "k")), Some(Status::Locked));
    }
}

#[test]
fn a_request_has_its_time_from_the_connection_on_and_bytes_do_not_renew_it() {
    let mut world = World::new(config());
    let silent = world.connect_dlm();
    let slow = world.connect_dlm();
    let late = world.connect_dlm();
    let line = lock("A", "k");
    for byte in &line[..29] {
        world.pass(SECOND_MS);
        world.receive(slow, std::slice::from_ref(byte));
    }
    world.receive(late, &line);
    world.pass(SECOND_MS - 1);
    assert_eq!(world.closed, [], "one turn before the time");
    assert_eq!(world.worker.poll_timeout(), Some(world.now.plus_millis(1)));
    world.pass(1);
    assert_eq!(world.closed, [silent, slow]);
    world.pass(SECOND_MS);
    assert_eq!(world.closed, [silent, slow, late]);
    assert_eq!(world.worker.session_counters().requests_too_slow, 2);
    assert_eq!(world.status(late), Some(Status::Locked));
    assert_eq!((world.status(silent), world.status(slow)), (None, None));
    assert_eq!(world.worker.session_count(), 0);
}

#[test]
fn an_answered_request_is_lingered_for_and_not_called_slow() {
    let mut world = World::new(config());
    let id = world.connect_dlm();
    world.pass(29 * SECOND_MS + 500);
    world.receive(id, &lock("A", "k"));
    world.turns_until_idle();
    // Its time would be over before the linger is.
    world.pass(SECOND_MS - 1);
    assert_eq!(world.closed, []);
    world.pass(1);
    assert_eq!(world.closed, [id]);
    assert_eq!(world.worker.session_counters().requests_too_slow, 0);
}

/// The rest of a request that was answered before its end is on its way: it is
/// read, so that it cannot reset the answer.
#[test]
fn after_an_answer_a_whole_request_more_is_read() {
    let mut config = config();
    config.dlm.max_payload_bytes = 5_000;
    let mut world = World::new(config);
    let id = world.connect_dlm();
    world.receive(id, &[b'?'; 5_001]);
    world.turns_until_idle();
    assert_eq!(world.status(id), Some(Status::BadPayload));
    assert!(world.worker.wants_input(id));
    world.receive(id, &[b'?'; 5_000]);
    world.turns_until_idle();
    assert_eq!(world.closed, []);
    world.receive(id, b"?");
    world.turns_until_idle();
    assert_eq!(world.closed, [id]);
}

/// An answer may be longer than what a native session may owe; a peer that does
/// not take it is given up on in time.
#[test]
fn a_long_answer_is_sent_in_pieces_or_given_up_on() {
    let data = "x".repeat(20_000);
    for takes_all in [true, false] {
        let mut config = config();
        config.dlm.requests.anonymous_max_data_chars = 20_000;
        let mut world = World::new(config);
        assert_eq!(world.ask_dlm(&put("A", "k", &data)), Some(Status::Done));
        world.closed.clear();
        let id = world.connect_dlm();
        world.room.push((id, 1_000));
        world.receive(id, &line("A", "k", Operation::Get, None));
        world.turns_until_idle();
        world.pass(19 * SECOND_MS);
        assert_eq!(world.closed, []);
        if takes_all {
            world.room[0].1 = usize::MAX;
            world.worker.mark_dirty(id);
            world.turns_until_idle();
            let sent = world.take_sent(id);
            let text = dlm::decode(&sent[..sent.len() - 1]).unwrap();
            let reply = DlmReply::decode(&text).unwrap();
            assert_eq!(reply, DlmReply::with_data("A", data.as_str()));
        } else {
            world.pass(SECOND_MS);
            assert_eq!(world.closed, [id]);
            assert_eq!(world.worker.session_counters().stalled, 1);
        }
        assert_eq!(world.worker.session_counters().over_output_limit, 0);
    }
}

#[test]
fn connections_are_limited_apart_from_native_ones() {
    let mut config = config();
    config.dlm.max_connections = 2;
    config.max_connections = 1;
    let mut world = World::new(config);
    world.connect();
    let first = world.connect_dlm();
    world.connect_dlm();
    for protocol in [Protocol::Native, Protocol::Dlm] {
        assert_eq!(world.worker.handle_accepted(protocol, world.now), None);
    }
    assert_eq!(world.worker.session_counters().refused, 2);
    world.end(first, PeerEnd::Fin);
    world.connect_dlm();
    world.worker.invariants();
}

/// One that is too long for what is left gets `NO`; short ones never do; whatever
/// way a request ends, its memory can be had again.
#[test]
fn memory_of_unfinished_requests_is_limited_and_given_back() {
    let mut config = config();
    config.dlm.max_buffered_bytes = 200_000;
    let mut world = World::new(config);
    // With doubling, this takes between 90,000 and 180,000 bytes.
    let large = put("A", "large", &"x".repeat(90_000));
    let unfinished = &large[..large.len() - 1];
    type End = fn(&mut World, SessionId);
    let ends: [(&str, End); 5] = [
        ("judged", |world, id| world.receive(id, b"\n")),
        ("refused", |world, id| world.receive(id, b"??\n")),
        ("left", |world, id| world.end(id, PeerEnd::Fin)),
        ("broken", |world, id| world.end(id, PeerEnd::Broken)),
        ("too slow", |world, _| world.pass(30 * SECOND_MS)),
    ];
    for (name, end) in ends {
        let first = world.connect_dlm();
        world.receive(first, unfinished);
        let second = world.connect_dlm();
        for piece in unfinished.chunks(10_000) {
            world.receive(second, piece);
        }
        world.turns_until_idle();
        assert_eq!(world.status(second), Some(Status::No), "{name}");
        assert_eq!(world.status(first), None, "{name}");
        assert_eq!(world.ask_dlm(&lock("A", "small")), Some(Status::Locked));
        let kilobytes = put("A", "small", &"x".repeat(7_000));
        assert_eq!(world.ask_dlm(&kilobytes), Some(Status::Done));
        end(&mut world, first);
        world.turns_until_idle();
        world.pass(SECOND_MS);
        assert_eq!(world.worker.session_count(), 0, "{name}");
        world.worker.invariants();
    }
}

#[test]
fn a_request_with_a_name_waits_for_its_file_and_no_other_does() {
    let mut world = World::new(config());
    let first = world.connect_dlm();
    let second = world.connect_dlm();
    let other = world.connect_dlm();
    world.receive(first, &lock_as("n", "first"));
    world.receive(second, &lock_as("n", "second"));
    world.receive(other, &lock_as("m", "other"));
    world.turns_until_idle();
    for id in [first, second, other] {
        assert_eq!(world.status(id), None);
        assert!(
            !world.worker.wants_input(id),
            "its bytes stay in the kernel"
        );
    }
    assert_eq!(world.ask_dlm(&lock("A", "anonymous")), Some(Status::Locked));
    // Each file is asked for once.
    assert_eq!(world.worker.poll_identity_read().as_deref(), Some("n"));
    assert_eq!(world.worker.poll_identity_read().as_deref(), Some("m"));
    assert_eq!(world.worker.poll_identity_read(), None);

    world.identity_read("n", identity(&secret()));
    assert_eq!(world.status(first), Some(Status::Locked));
    assert_eq!(world.status(second), Some(Status::Locked));
    assert_eq!(world.status(other), None);
    world.identity_read("m", identity(&"other".repeat(300)));
    assert_eq!(world.status(other), Some(Status::BadPayload));
    // What is known is not waited for.
    assert_eq!(world.ask_dlm(&lock_as("n", "third")), Some(Status::Locked));
    assert_eq!(
        world.ask_dlm(&lock_as("m", "third")),
        Some(Status::BadPayload)
    );
    assert_eq!(world.worker.poll_identity_read(), None);
}

#[test]
fn a_missing_file_is_a_refusal() {
    let mut world = World::new(config());
    let id = world.connect_dlm();
    world.receive(id, &lock_as("n", "k"));
    assert_eq!(world.worker.poll_identity_read().as_deref(), Some("n"));
    world.identity_read("n", None);
    assert_eq!(world.status(id), Some(Status::BadPayload));
    assert!(!world.is_held(b"k"));
}

#[test]
fn a_client_may_end_its_side_while_its_file_is_read() {
    let mut world = World::new(config());
    let id = world.connect_dlm();
    world.receive(id, &lock_as("n", "k"));
    world.end(id, PeerEnd::Fin);
    assert_eq!(world.closed, [], "its request is complete");
    world.identity_read("n", identity(&secret()));
    assert_eq!(world.status(id), Some(Status::Locked));
    assert_eq!(
        (&world.shut_down[..], &world.closed[..]),
        (&[][..], &[id][..])
    );
}

/// A session that is gone when the file was read is not judged, and neither is
/// another one in its slot.
#[test]
fn what_was_read_for_a_session_that_is_gone_reaches_nobody() {
    type End = fn(&mut World, SessionId);
    let ends: [(&str, End); 2] = [
        ("broken", |world, id| world.end(id, PeerEnd::Broken)),
        ("given up", |world, id| {
            world.pass(30 * SECOND_MS);
            assert_eq!(world.status(id), Some(Status::BadPayload));
            world.end(id, PeerEnd::Fin);
        }),
    ];
    for (name, end) in ends {
        let mut world = World::new(config());
        let gone = world.connect_dlm();
        world.receive(gone, &lock_as("n", "k"));
        end(&mut world, gone);
        assert_eq!(world.closed, [gone], "{name}");
        let next = world.connect_dlm();
        assert_eq!(gone.slot(), next.slot());
        world.identity_read("n", identity(&secret()));
        assert_eq!(
            (world.status(gone), world.status(next)),
            (None, None),
            "{name}"
        );
        assert!(!world.is_held(b"k"), "{name}");
        world.receive(next, &lock("A", "k"));
        world.turns_until_idle();
        assert_eq!(world.status(next), Some(Status::Locked), "{name}");
    }
}

/// What a drain finds complete is answered, however long its turn or its file takes.
#[test]
fn a_drain_answers_every_request_that_is_complete() {
    let mut world = World::new(config());
    let [large, named, unfinished] = [(); 3].map(|()| world.connect_dlm());
    world.receive(named, &lock_as("n", "k"));
    world.receive(unfinished, &lock("A", "k")[..20]);
    world.receive(large, &put("A", "k", &"y".repeat(70_000)));
    world.worker.close_all(world.now);
    world.worker.invariants();
    world.turns_until_idle();
    // More than it may store without a name.
    assert_eq!(world.status(large), Some(Status::BadPayload));
    assert_eq!(world.status(unfinished), None);
    assert_eq!(world.status(named), None);
    world.identity_read("n", identity(&secret()));
    assert_eq!(world.status(named), Some(Status::Locked));
    for id in [large, named, unfinished] {
        world.end(id, PeerEnd::Fin);
        assert!(world.closed.contains(&id));
    }
}

/// Delivered in time is in time: a file that does not come is waited for as long as
/// a request is, and then it is a refusal like every other.
#[test]
fn a_file_that_does_not_come_is_a_refusal_in_time() {
    let mut world = World::new(config());
    let id = world.connect_dlm();
    world.pass(29 * SECOND_MS);
    world.receive(id, &lock_as("n", "k"));
    world.pass(30 * SECOND_MS - 1);
    assert_eq!(world.status(id), None);
    world.pass(1);
    assert_eq!(world.status(id), Some(Status::BadPayload));
    assert_eq!(world.shut_down, [id]);
    assert_eq!(world.worker.session_counters().requests_too_slow, 0);
    world.identity_read("n", identity(&secret()));
    assert_eq!(world.status(id), None);
    assert!(!world.is_held(b"k"));
}

/// The JSON of megabytes takes milliseconds: such requests are judged one a turn,
/// after all that came in it, and however late that is.
#[test]
fn large_requests_have_a_turn_each() {
    let mut config = config();
    config.dlm.requests.anonymous_max_data_chars = 100_000;
    let mut world = World::new(config);
    let large = put("A", "large", &"x".repeat(70_000));
    let first = world.connect_dlm();
    let second = world.connect_dlm();
    let gone = world.connect_dlm();
    let third = world.connect_dlm();
    let small = world.connect_dlm();
    world.pass(30 * SECOND_MS - 1);
    for id in [first, second, gone, third] {
        world.receive(id, &large);
        assert!(!world.worker.wants_input(id));
    }
    world.receive(small, &lock("A", "small"));
    world.worker.handle_end(gone, PeerEnd::Broken, world.now);
    world.worker.handle_end(second, PeerEnd::Fin, world.now);
    world.now = world.now.plus_millis(1);
    let done =
        |world: &mut World| [first, second, third].map(|id| world.status(id) == Some(Status::Done));
    world.turn();
    assert_eq!(done(&mut world), [true, false, false]);
    assert_eq!(world.status(small), Some(Status::Locked));
    assert!(world.worker.has_work());
    world.turn();
    assert_eq!(done(&mut world), [false, true, false]);
    world.turns_until_idle();
    assert_eq!(done(&mut world), [false, false, true]);
    assert_eq!(world.status(gone), None);
    assert_eq!(world.worker.session_counters().requests_too_slow, 0);
}

/// Answers that nobody takes are kept up to a limit, all of them together; those
/// that are taken at once count for nothing.
/// A driver may hand over bytes that were under way when reading was to stop.
#[test]
fn what_follows_a_complete_request_means_nothing_while_it_waits() {
    let operation = Operation::Put {
        ttl_ms: TTL_MS,
        data_store: "y".repeat(70_000).into(),
    };
    // This one has to wait for a turn of its own first.
    let large = line("A", "k", operation, Some("worker"));
    let small = lock_as("worker", "k");
    for (request, expected) in [(large, Status::Done), (small, Status::Locked)] {
        for junk in [&b"x"[..], b"\n", b"??\n", &lock("B", "other")] {
            let mut world = World::new(config());
            let id = world.connect_dlm();
            world.receive(id, &request);
            world.receive(id, junk);
            world.receive(id, junk);
            world.turns_until_idle();
            let read = world.worker.poll_identity_read();
            assert_eq!(read.as_deref(), Some("worker"));
            world.receive(id, junk);
            world.identity_read("worker", identity(&secret()));
            world.turns_until_idle();
            assert_eq!(world.status(id), Some(expected));
            assert!(!world.is_held(b"other"));
        }
    }
}

#[test]
fn answers_that_are_not_taken_are_limited() {
    let mut config = config();
    config.dlm.requests.anonymous_max_data_chars = 10_000;
    config.dlm.max_buffered_bytes = 70_000;
    let mut world = World::new(config);
    let data = "x".repeat(10_000);
    assert_eq!(world.ask_dlm(&put("A", "k", &data)), Some(Status::Done));
    world.closed.clear();
    let get = line("A", "k", Operation::Get, None);
    for round in 0..10 {
        assert_eq!(world.ask_dlm(&get), Some(Status::Done), "{round}");
    }
    world.closed.clear();
    // Each owes 20,000 bytes and a little: three fit.
    let stuck: Vec<SessionId> = (0..3)
        .map(|_| {
            let id = world.connect_dlm();
            world.room.push((id, 0));
            world.receive(id, &get);
            world.turns_until_idle();
            id
        })
        .collect();
    assert_eq!(world.closed, []);
    let one_more = world.connect_dlm();
    world.room.push((one_more, 0));
    world.receive(one_more, &get);
    world.turns_until_idle();
    assert_eq!(world.closed, [one_more]);
    assert_eq!(world.worker.session_counters().over_output_limit, 1);
    // What others take is sent meanwhile, and the three may still take theirs.
    assert_eq!(world.ask_dlm(&get), Some(Status::Done));
    for (_, room) in &mut world.room {
        *room = usize::MAX;
    }
    for id in stuck {
        world.worker.mark_dirty(id);
        world.turns_until_idle();
        assert_eq!(world.status(id), Some(Status::Done));
    }
}

/// A read that nobody asked for, or that comes twice, changes nothing.
#[test]
fn a_stray_read_changes_nothing() {
    let mut world = World::new(config());
    world.identity_read("n", identity(&secret()));
    let id = world.connect_dlm();
    world.receive(id, &lock_as("n", "k"));
    world.turns_until_idle();
    assert_eq!(world.status(id), None, "it has not been read for it");
    world.identity_read("n", identity(&secret()));
    world.identity_read("n", None);
    assert_eq!(world.status(id), Some(Status::Locked));
    assert_eq!(world.ask_dlm(&lock_as("n", "k")), Some(Status::Locked));
}

/// Any order of what can happen to a few connections: the books are kept, and in
/// the end nothing is left.
#[test]
fn random_histories_leave_nothing_behind() {
    let lines = [
        lock("A", "k"),
        put("B", "k", &"x".repeat(9_000)),
        lock_as("n", "k"),
        lock_as("m", "k"),
        b"no code\n".to_vec(),
        put("A", "l", &"y".repeat(40_000)),
    ];
    for seed in 1..=300_u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % below as u64) as usize
        };
        let mut config = config();
        config.dlm.max_connections = 4;
        config.dlm.max_buffered_bytes = 60_000;
        let mut world = World::new(config);
        let mut open: Vec<(SessionId, Vec<u8>)> = Vec::new();
        for _ in 0..100 {
            let chosen = (!open.is_empty()).then(|| random(open.len()));
            match (random(8), chosen) {
                (0 | 1, _) | (_, None) => {
                    let accepted = world.worker.handle_accepted(Protocol::Dlm, world.now);
                    if let Some(id) = accepted {
                        world.sent.push((id, Vec::new()));
                        open.push((id, lines[random(lines.len())].clone()));
                    }
                }
                (2 | 3, Some(index)) => {
                    let (id, rest) = &mut open[index];
                    let count = random(rest.len() + 1).min(rest.len());
                    let piece: Vec<u8> = rest.drain(..count).collect();
                    let id = *id;
                    // Like the driver, which reads nobody else.
                    if world.worker.wants_input(id) {
                        world.receive(id, &piece);
                    }
                }
                (4, Some(index)) => {
                    let how = [PeerEnd::Fin, PeerEnd::Broken][random(2)];
                    world.worker.handle_end(open[index].0, how, world.now);
                }
                (5, _) => {
                    if let Some(name) = world.worker.poll_identity_read() {
                        let read = [identity(&secret()), None][random(2)];
                        world.worker.handle_identity_read(&name, read, world.now);
                    }
                }
                (6, _) => world.pass(random(700) as u64),
                _ => world.turn(),
            }
            world.worker.invariants();
        }
        world.turns_until_idle();
        world.pass(31 * SECOND_MS);
        world.pass(21 * SECOND_MS);
        assert_eq!(world.worker.session_count(), 0, "seed {seed}");
        world.worker.invariants();
    }
}
