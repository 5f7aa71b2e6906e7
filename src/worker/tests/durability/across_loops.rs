//! Replies that wait at the loop that owns the key, for sessions of another loop. Each
//! loop asks for what its own keys need.

use super::super::mesh::{Pair, remote_key};
use super::*;
use crate::dlm::{self, DlmReply};
use crate::partition;

/// Two loops with a D of 1,024 ms; what the first asks for goes to keys of the second.
fn pair() -> Pair {
    Pair::new(&config_with(durable(1_024)))
}

/// A name of the owning loop, that a DLM client can say.
fn remote_name() -> String {
    String::from_utf8(remote_key()).unwrap()
}

/// A key of the asking loop itself.
fn own_key() -> Vec<u8> {
    (0..)
        .map(|number| format!("own{number}").into_bytes())
        .find(|key| partition::loop_of(key, config().routing_seed, 2) == 0)
        .unwrap()
}

impl Pair {
    fn ask(&mut self, id: SessionId, requests: &[Request<'_>]) {
        self.receive(id, &frames(requests));
    }

    fn receive(&mut self, id: SessionId, bytes: &[u8]) {
        self.asking.handle_received(id, bytes, self.now);
        self.turns();
    }

    fn end(&mut self, id: SessionId, how: PeerEnd) {
        self.asking.handle_end(id, how, self.now);
        self.turns();
    }

    /// A request's way there and its answer's way back, with a release on the way.
    fn turns(&mut self) {
        for _ in 0..4 {
            self.turn();
        }
    }

    fn pass(&mut self, ms: u64) {
        self.now = self.now.plus_millis(ms);
        self.turns();
    }

    fn owning_news(&mut self, news: News) {
        self.owning.handle_news(news, self.now);
        self.turns();
    }

    /// What is asked of the store, by the asking loop and the owning one.
    fn asks(&mut self) -> [Vec<Ask>; 2] {
        let now = self.now;
        [&mut self.asking, &mut self.owning]
            .map(|worker| std::iter::from_fn(|| worker.poll_ask(now)).collect())
    }

    fn replies(&mut self, id: SessionId) -> Vec<Reply> {
        decoded(&self.take_sent(id))
    }

    fn status(&mut self, id: SessionId) -> Option<Status> {
        let sent = self.take_sent(id);
        let code = sent.strip_suffix(b"\n")?;
        let text = dlm::decode(code).unwrap();
        Some(DlmReply::decode(&text).unwrap().status)
    }

    fn take_sent(&mut self, id: SessionId) -> Vec<u8> {
        let sent = self.sent.iter_mut().find(|(of, _)| *of == id).unwrap();
        std::mem::take(&mut sent.1)
    }

    fn begin_dlm(&mut self, line: &[u8]) -> SessionId {
        let id = self.connect(Protocol::Dlm);
        self.receive(id, line);
        id
    }
}

/// The tokens of two loops share the numbers: the owning one has the odd ones.
const FIRST_TOKEN: u64 = 101;

#[test]
fn the_owning_loop_asks_and_tells() {
    let (mut pair, key) = (pair(), remote_key());
    let id = pair.connect(Protocol::Native);
    pair.ask(id, &[acquire_for(1, 0, 5_000, &key)]);
    assert_eq!(pair.asks(), [vec![], vec![Ask::Raise { to_ms: 8_192 }]]);
    // What it may tell at once is not behind it.
    let own_key = own_key();
    pair.ask(id, &[acquire_for(2, 0, 1_000, &own_key), ping(3)]);
    assert_eq!(
        pair.replies(id),
        [acquired(2, 100, 0), Reply::Pong { owner: 3 }]
    );
    pair.owning_news(News::Raised);
    assert_eq!(pair.replies(id), [acquired(1, FIRST_TOKEN, 0)]);
    // Each loop goes as far as it has asked for itself.
    let extend = Request::Extend {
        owner: 4,
        lease_ms: 5_000,
        token: 100,
        key: &own_key,
    };
    pair.ask(id, &[extend]);
    assert_eq!(pair.replies(id), []);
    assert_eq!(pair.asks(), [vec![Ask::Raise { to_ms: 8_192 }], vec![]]);
}

#[test]
fn a_failure_crosses_and_the_next_waiter_is_granted() {
    let (mut pair, key) = (pair(), remote_key());
    let (id, other) = (
        pair.connect(Protocol::Native),
        pair.connect(Protocol::Native),
    );
    pair.ask(id, &[acquire_for(1, 0, 5_000, &key)]);
    pair.ask(other, &[acquire_for(2, 9_000, 6_000, &key)]);
    pair.ask(id, &[acquire_for(3, 9_000, 1_000, &key)]);
    pair.asks();
    pair.pass(100);
    pair.owning_news(News::NotRaised);
    assert_eq!(pair.replies(id), [error(1, OVERLOADED)]);
    assert_eq!(pair.replies(other), []);
    assert_eq!(pair.asks()[1], [Ask::Raise { to_ms: 8_192 }]);
    pair.owning_news(News::NotRaised);
    assert_eq!(pair.replies(other), [error(2, OVERLOADED)]);
    assert_eq!(pair.replies(id), [acquired(3, FIRST_TOKEN + 4, 100)]);
}

#[test]
fn an_extension_tells_what_is_left_when_it_leaves_the_owning_loop() {
    let (mut pair, key) = (pair(), remote_key());
    let id = pair.connect(Protocol::Native);
    pair.ask(id, &[acquire_for(1, 0, 1_000, &key)]);
    assert_eq!(pair.replies(id), [acquired(1, FIRST_TOKEN, 0)]);
    let extend = Request::Extend {
        owner: 2,
        lease_ms: 60_000,
        token: FIRST_TOKEN,
        key: &key,
    };
    pair.ask(id, &[extend]);
    pair.asks();
    pair.pass(3_000);
    assert_eq!(pair.replies(id), []);
    pair.owning_news(News::Raised);
    let reply = Reply::Extended {
        owner: 2,
        remaining_ms: 57_000,
    };
    assert_eq!(pair.replies(id), [reply]);
}

/// The owning loop says that it has nothing more for a session behind what it held.
#[test]
fn a_session_that_ends_in_order_gets_its_replies_before_the_end() {
    for (news, reply) in [
        (News::Raised, acquired(1, FIRST_TOKEN, 0)),
        (News::NotRaised, error(1, OVERLOADED)),
    ] {
        let (mut pair, key) = (pair(), remote_key());
        let id = pair.connect(Protocol::Native);
        let requests = [
            acquire_for(1, 0, 5_000, &key),
            acquire_for(2, 9_000, 1_000, &key),
        ];
        pair.ask(id, &requests);
        pair.asks();
        pair.end(id, PeerEnd::Fin);
        assert_eq!(pair.replies(id), [Reply::TimedOut { owner: 2 }]);
        assert_eq!(pair.closed, []);
        pair.owning_news(news);
        assert_eq!(pair.replies(id), [reply]);
        assert_eq!(pair.closed, [id]);
        assert_eq!(pair.asking.session_count(), 0);
    }
}

/// What is held at home and what is held elsewhere are both before the end.
#[test]
fn a_session_waits_for_the_other_loop_and_its_own() {
    for own_first in [true, false] {
        let (mut pair, key, own_key) = (pair(), remote_key(), own_key());
        let id = pair.connect(Protocol::Native);
        let requests = [
            acquire_for(1, 0, 5_000, &key),
            acquire_for(2, 0, 5_000, &own_key),
        ];
        pair.ask(id, &requests);
        pair.asks();
        pair.end(id, PeerEnd::Fin);
        let mut sent = Vec::new();
        for at_home in [own_first, !own_first] {
            assert_eq!(pair.closed, []);
            if at_home {
                pair.asking.handle_news(News::Raised, pair.now);
                pair.turns();
            } else {
                pair.owning_news(News::Raised);
            }
            sent.extend(pair.replies(id));
        }
        let mut replies = [acquired(2, 100, 0), acquired(1, FIRST_TOKEN, 0)];
        if !own_first {
            replies.reverse();
        }
        assert_eq!(sent, replies);
        assert_eq!(pair.closed, [id]);
    }
}

#[test]
fn a_session_that_breaks_gives_its_grant_back_once_it_is_decided() {
    for raised in [true, false] {
        let (mut pair, key) = (pair(), remote_key());
        let (id, other) = (
            pair.connect(Protocol::Native),
            pair.connect(Protocol::Native),
        );
        pair.ask(id, &[acquire_for(1, 0, 5_000, &key)]);
        pair.ask(other, &[acquire_for(2, 9_000, 1_000, &key)]);
        pair.asks();
        pair.end(id, PeerEnd::Broken);
        assert_eq!(pair.closed, [id]);
        assert_eq!(pair.replies(other), []);
        pair.owning_news(if raised {
            News::Raised
        } else {
            News::NotRaised
        });
        assert_eq!(pair.replies(other), [acquired(2, FIRST_TOKEN + 2, 0)]);
        let counters = pair.owning.engine().counters();
        let counts = (counters.lost_grants, counters.given_up);
        assert_eq!(counts, if raised { (1, 0) } else { (0, 1) });
    }
}

#[test]
fn dlm_answers_wait_and_fail_across_loops() {
    let name = remote_name();
    for (news, locked, done) in [
        (News::Raised, Status::Locked, Status::Done),
        (News::NotRaised, Status::No, Status::No),
    ] {
        let mut pair = pair();
        let lock = pair.begin_dlm(&lock_for("A", 5_000, &name));
        let put = pair.begin_dlm(&put_for("A", 5_000, &name));
        let test = pair.begin_dlm(&line("B", &name, Operation::TestLock, None));
        assert_eq!(pair.asks(), [vec![], vec![Ask::Raise { to_ms: 8_192 }]]);
        assert_eq!((pair.status(lock), pair.status(put)), (None, None));
        assert_eq!(pair.status(test), Some(Status::NotOwner));
        pair.owning_news(news);
        assert_eq!(pair.status(lock), Some(locked));
        assert_eq!(pair.status(put), Some(done));
    }
}

#[test]
fn records_are_the_owning_loop_s() {
    let (mut pair, name) = (pair(), remote_name());
    let lock = pair.begin_dlm(&lock_for("A", CAP_MS + 1, &name));
    let [own, asked] = pair.asks();
    assert_eq!(own, []);
    assert!(matches!(asked[..], [Ask::Record { number: 1, .. }]));
    assert_eq!(pair.status(lock), None);
    pair.owning_news(News::Recorded { up_to: 1 });
    assert_eq!(pair.status(lock), Some(Status::Locked));
    let unlocked = pair.begin_dlm(&unlock("A", &name));
    pair.asks();
    pair.owning_news(News::NotRecorded { up_to: 2 });
    assert_eq!(pair.status(unlocked), None);
    pair.owning_news(News::Recorded { up_to: 2 });
    assert_eq!(pair.status(unlocked), Some(Status::Unlocked));
}
