//! Clients against answers that no server may give.

use super::*;
use crate::check::{SharedLedger, TokenTable};
use crate::record::Recorder;
use crate::target::NativeCodec;
use crate::workload::{Close, Hold};
use leasehold::protocol::Request;
use std::sync::Arc;

const MS: u64 = 1_000_000;
const LEASE_MS: u32 = 100;

/// Two clients, each on a connection of its own, and the requests that they send.
struct World {
    clients: Clients,
    lines: [Line<NativeCodec>; 2],
    now_ns: u64,
}

/// A request as a server reads it: what, and its tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sent {
    Acquire(Tag),
    Release(Tag, u64),
}

impl World {
    fn new(kind: Kind, hold_ms: u64) -> World {
        let activity = Activity {
            kind,
            weight: 1,
            keys: if kind.has_private_keys() { 2 } else { 1 },
            zipf: None,
            wait_ms: 1_000,
            lease_ms: LEASE_MS,
            hold: Hold {
                mean_ns: hold_ms * MS,
                is_random: false,
            },
            data_bytes: 0,
            close: Close::Fin,
        };
        let ledger = match kind.has_private_keys() {
            true => Ledger::Private(TokenTable::new(2)),
            false => Ledger::Shared(Arc::new(SharedLedger::new(1))),
        };
        let rules = Rules {
            streams: Streams::new(1, 2, std::slice::from_ref(&activity)),
            activities: vec![activity],
            held_lease_ms: 1_000,
            key_bytes: 16,
            checks: true,
            is_bare: false,
        };
        let mut recorder = Recorder::new(false, std::sync::mpsc::channel().0);
        recorder.measure(0, u64::MAX);
        let mut clients = Clients::new(rules, vec![ledger], recorder);
        for number in 0..2 {
            clients
                .add(number, number, None)
                .expect("no place is wanted");
        }
        let line = || Line {
            codec: NativeCodec::silent(),
            out: Vec::new(),
            is_up: true,
            is_down: false,
            renew: false,
        };
        World {
            clients,
            lines: [line(), line()],
            now_ns: 1_000 * MS,
        }
    }

    fn begin(&mut self, client: u32) -> Sent {
        let line = &mut self.lines[client as usize];
        self.clients.begin(client, self.now_ns, line);
        self.sent(client)
    }

    /// The one request that the client has sent since the last look.
    fn sent(&mut self, client: u32) -> Sent {
        let out = std::mem::take(&mut self.lines[client as usize].out);
        let (request, length) = Request::decode(&out, 1_024)
            .expect("a request")
            .expect("complete");
        assert_eq!(length, out.len(), "one request");
        match request {
            Request::Acquire { owner, .. } => Sent::Acquire(owner),
            Request::Release { owner, token, .. } => Sent::Release(owner, token),
            other => panic!("{other:?}"),
        }
    }

    fn answer(&mut self, client: u32, tag: Tag, answer: Answer) -> Result<(), Violation> {
        self.now_ns += MS;
        self.clients.look_up_tokens();
        let line = &mut self.lines[client as usize];
        self.clients
            .answered(client, tag, answer, self.now_ns, line)
    }

    fn grant(&mut self, client: u32, sent: Sent, token: u64) -> Result<(), Violation> {
        let Sent::Acquire(tag) = sent else {
            panic!("{sent:?}");
        };
        let waited_ms = 0;
        self.answer(client, tag, Answer::Granted { token, waited_ms })
    }

    fn due(&mut self, after_ms: u64) {
        self.now_ns += after_ms * MS;
        while let Some(due) = self.clients.poll_due(self.now_ns) {
            let line = &mut self.lines[due.lane as usize];
            self.clients.handle_due(due, self.now_ns, line);
        }
    }
}

fn faults(result: Result<(), Violation>) -> String {
    result.expect_err("it is a violation").what
}

#[test]
fn a_pair_is_an_acquire_and_the_release_of_its_token() {
    let mut world = World::new(Kind::Pairs, 0);
    let acquire = world.begin(0);
    assert_eq!(world.grant(0, acquire, 7), Ok(()));
    let Sent::Release(tag, 7) = world.sent(0) else {
        panic!("no release");
    };
    assert_eq!(world.answer(0, tag, Answer::Released), Ok(()));
    assert!(matches!(world.sent(0), Sent::Acquire(_)), "the next pair");
}

#[test]
fn two_holders_at_once_are_noticed_and_told_with_their_history() {
    let mut world = World::new(Kind::Contended, 50);
    let (one, other) = (world.begin(0), world.begin(1));
    assert_eq!(world.grant(0, one, 7), Ok(()));
    let violation = world.grant(1, other, 8).expect_err("two holders");
    assert!(violation.what.starts_with("two holders"), "{violation:?}");
    let events = world.clients.history.of(violation.key.expect("a key"));
    let grants = events
        .iter()
        .filter(|event| event.kind == EventKind::Granted);
    assert_eq!(grants.map(|event| event.value).collect::<Vec<_>>(), [7, 8]);
}

#[test]
fn a_key_handed_over_after_its_release_or_its_lease_is_in_order() {
    let mut world = World::new(Kind::Contended, 50);
    let (one, other) = (world.begin(0), world.begin(1));
    assert_eq!(world.grant(0, one, 7), Ok(()));
    world.due(50);
    assert!(matches!(world.sent(0), Sent::Release(_, 7)));
    assert_eq!(world.grant(1, other, 8), Ok(()));

    let mut world = World::new(Kind::Expiry, 0);
    let (one, other) = (world.begin(0), world.begin(1));
    assert_eq!(world.grant(0, one, 7), Ok(()));
    world.now_ns += u64::from(LEASE_MS) * MS;
    assert_eq!(world.grant(1, other, 8), Ok(()));
}

#[test]
fn a_token_that_does_not_grow_is_noticed() {
    for kind in [Kind::Pairs, Kind::Contended] {
        let mut world = World::new(kind, 0);
        let acquire = world.begin(0);
        assert_eq!(world.grant(0, acquire, 7), Ok(()));
        let Sent::Release(tag, _) = world.sent(0) else {
            panic!("no release");
        };
        assert_eq!(world.answer(0, tag, Answer::Released), Ok(()));
        let acquire = world.sent(0);
        assert_eq!(faults(world.grant(0, acquire, 7)), "token 7 after token 7");
    }
}

#[test]
fn an_answer_that_comes_twice_is_noticed() {
    let mut world = World::new(Kind::Pairs, 0);
    let acquire = world.begin(0);
    assert_eq!(world.grant(0, acquire, 7), Ok(()));
    assert!(faults(world.grant(0, acquire, 7)).contains("answered twice"));
}

#[test]
fn an_answer_to_nobody_or_to_another_connection_is_noticed() {
    let mut world = World::new(Kind::Pairs, 0);
    let Sent::Acquire(tag) = world.begin(0) else {
        panic!("no acquire");
    };
    for (connection, tag) in [(1, tag), (0, tag + 1), (0, tag + (1 << LANE_BITS)), (0, 0)] {
        let answer = Answer::Released;
        assert!(faults(world.answer(connection, tag, answer)).contains("never asked"));
    }
}

#[test]
fn an_answer_that_never_comes_is_noticed() {
    let mut world = World::new(Kind::Pairs, 0);
    assert_eq!(world.clients.check_all_answered(), Ok(()));
    let acquire = world.begin(0);
    world.clients.stop(world.now_ns);
    assert!(!world.clients.are_settled());
    assert!(faults(world.clients.check_all_answered()).contains("no answer to acquire"));
    // Stopped or not, what was granted is given back.
    assert_eq!(world.grant(0, acquire, 7), Ok(()));
    let Sent::Release(tag, _) = world.sent(0) else {
        panic!("no release");
    };
    assert_eq!(world.answer(0, tag, Answer::Released), Ok(()));
    assert!(world.clients.are_settled());
    assert_eq!(world.clients.check_all_answered(), Ok(()));
}

#[test]
fn answers_of_the_wrong_kind_are_noticed() {
    let mut world = World::new(Kind::Contended, 0);
    let Sent::Acquire(tag) = world.begin(0) else {
        panic!("no acquire");
    };
    assert!(faults(world.answer(0, tag, Answer::Released)).contains("answered by"));
    let not_held = Answer::Refused(Outcome::NotHeld);
    assert!(faults(world.answer(0, tag, not_held)).contains("like a release"));
}

#[test]
fn a_lease_that_ends_before_its_bound_is_noticed_unless_a_connection_has_broken() {
    let not_held = Answer::Refused(Outcome::NotHeld);
    for (waits_ms, breaks, is_fault) in [(0, false, true), (0, true, false), (150, false, false)] {
        let mut world = World::new(Kind::Contended, 50);
        let (one, _) = (world.begin(0), world.begin(1));
        assert_eq!(world.grant(0, one, 7), Ok(()));
        world.due(50);
        let Sent::Release(tag, _) = world.sent(0) else {
            panic!("no release");
        };
        if breaks {
            let line = &mut world.lines[1];
            line.is_up = false;
            world
                .clients
                .lost(1..2, Outcome::Indeterminate, world.now_ns, line);
        }
        world.now_ns += waits_ms * MS;
        let result = world.answer(0, tag, not_held);
        assert_eq!(result.is_err(), is_fault, "{waits_ms} {breaks}: {result:?}");
    }
}

#[test]
fn a_lost_acquire_is_nobody_s_and_its_key_is_not_asked_for_at_the_end() {
    let mut world = World::new(Kind::Pairs, 0);
    let Sent::Acquire(tag) = world.begin(0) else {
        panic!("no acquire");
    };
    let line = &mut world.lines[0];
    line.is_up = false;
    world
        .clients
        .lost(0..1, Outcome::Indeterminate, world.now_ns, line);
    assert_eq!(world.clients.unsure.len(), 1);
    let waited_ms = 0;
    let late = world.answer(
        0,
        tag,
        Answer::Granted {
            token: 7,
            waited_ms,
        },
    );
    assert!(faults(late).contains("no request that is under way"));
    // The next round waits for the connection.
    assert!(world.lines[0].out.is_empty());
    let line = &mut world.lines[0];
    line.is_up = true;
    world.clients.connected(0..1, world.now_ns, line);
    assert!(matches!(world.sent(0), Sent::Acquire(_)));
}

#[test]
fn a_schedule_is_served_in_its_order_and_what_is_left_of_it_is_counted() {
    let mut world = World::new(Kind::Pairs, 0);
    let start_ns = world.now_ns;
    world
        .clients
        .follow(Schedule::uniform(start_ns, 1_000.0, 0.0));
    world.due(0);
    world.due(2);
    assert!(matches!(world.sent(0), Sent::Acquire(_)));
    assert!(matches!(world.sent(1), Sent::Acquire(_)));
    // Both are busy: the arrivals at 2, 3 and 4 ms wait, the one at 5 ms is not due in time.
    world.now_ns += 3 * MS;
    world.clients.stop(world.now_ns);
    assert_eq!(world.clients.unsent, 3);
}
