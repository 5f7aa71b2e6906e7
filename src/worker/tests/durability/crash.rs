//! A crash at any moment: random requests to one loop, and a store that answers late, in
//! order, and not always well. After every step, what is durable covers every lease that
//! any client believes in.

use super::*;
use crate::durability::{LeaseRecord, RecordChange};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};

const KEYS: [&str; 3] = ["k", "l", "m"];
const IDS: [&str; 2] = ["A", "B"];
const SESSIONS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        session: usize,
        key: usize,
        wait_ms: u32,
        lease_ms: u32,
    },
    /// Of a lease that its client believes in, if there is one of that key.
    Extend {
        session: usize,
        key: usize,
        lease_ms: u32,
    },
    Release {
        session: usize,
        key: usize,
    },
    Query {
        session: usize,
        key: usize,
    },
    Lock {
        id: usize,
        key: usize,
        ttl_ms: u64,
    },
    Put {
        id: usize,
        key: usize,
        ttl_ms: u64,
    },
    Unlock {
        id: usize,
        key: usize,
    },
    /// The session ends, and another comes in its place.
    End {
        session: usize,
        how: PeerEnd,
    },
    /// A DLM connection that waits for its answer breaks.
    BreakDlm,
    Pass {
        ms: u64,
    },
    /// The store does the next thing that it was asked, or fails to.
    Store {
        succeeds: bool,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let session = || 0..SESSIONS;
    let key = || prop_oneof![2 => Just(0), 1 => 0..KEYS.len()];
    let id = || 0..IDS.len();
    let lease_ms = || prop::sample::select(vec![1, 500, 1_024, 1_500, 3_000, 5_000, 60_000]);
    let ttl_ms = || prop::sample::select(vec![800, 1_024, 3_000, CAP_MS, CAP_MS + 1, 400_000]);
    let wait_ms = prop::sample::select(vec![0, 300, 2_000, 100_000]);
    let how = prop_oneof![Just(PeerEnd::Fin), Just(PeerEnd::Broken)];
    let ms = prop_oneof![
        4 => 0..50_u64,
        3 => 0..3_000_u64,
        2 => prop::sample::select(vec![1_023, 1_024, 2_048, 4_096, 8_191, 8_192]),
        1 => 0..400_000_u64,
    ];
    prop_oneof![
        8 => (session(), key(), wait_ms, lease_ms()).prop_map(
            |(session, key, wait_ms, lease_ms)| Step::Acquire { session, key, wait_ms, lease_ms }),
        5 => (session(), key(), lease_ms()).prop_map(
            |(session, key, lease_ms)| Step::Extend { session, key, lease_ms }),
        2 => (session(), key()).prop_map(|(session, key)| Step::Release { session, key }),
        1 => (session(), key()).prop_map(|(session, key)| Step::Query { session, key }),
        4 => (id(), key(), ttl_ms()).prop_map(|(id, key, ttl_ms)| Step::Lock { id, key, ttl_ms }),
        2 => (id(), key(), ttl_ms()).prop_map(|(id, key, ttl_ms)| Step::Put { id, key, ttl_ms }),
        3 => (id(), key()).prop_map(|(id, key)| Step::Unlock { id, key }),
        1 => (session(), how).prop_map(|(session, how)| Step::End { session, how }),
        1 => Just(Step::BreakDlm),
        6 => ms.prop_map(|ms| Step::Pass { ms }),
        12 => prop::bool::weighted(0.75).prop_map(|succeeds| Step::Store { succeeds }),
    ]
}

fn start() -> impl Strategy<Value = WorkerConfig> {
    let d_ms = prop::sample::select(vec![0, 1_024, 8_192, 262_144, 600_000]);
    let token_block = prop::sample::select(vec![4, 16, 1 << 36]);
    let max_held = prop::sample::select(vec![2, 1_000]);
    let expiry_grace_ms = prop::sample::select(vec![0, 0, 700]);
    (d_ms, token_block, max_held, expiry_grace_ms).prop_map(
        |(d_ms, token_block, max_held, expiry_grace_ms)| {
            let mut config = config_with(Durable {
                mark: config().first_token + token_block,
                token_block,
                ..durable(d_ms)
            });
            config.engine.max_waiters = max_held;
            config.engine.expiry_grace_ms = expiry_grace_ms;
            config
        },
    )
}

/// What is on disk, and what was asked and is not done.
struct Store {
    d_ms: u64,
    /// What D may be, as far as the loop says.
    vote_ms: u64,
    mark: u64,
    records: BTreeMap<Box<[u8]>, LeaseRecord>,
    /// Changes that could not be written yet, all of them: they are tried again first.
    unwritten: VecDeque<(u64, RecordChange)>,
    asked: VecDeque<Ask>,
    last_number: u64,
}

impl Store {
    /// Does the next thing. `None`: there is nothing to do, or nothing to tell of it.
    fn act(&mut self, succeeds: bool) -> Option<News> {
        let ask = self.asked.pop_front();
        match ask {
            Some(Ask::Raise { to_ms }) if succeeds => {
                self.vote_ms = to_ms;
                self.d_ms = to_ms;
                Some(News::Raised)
            }
            Some(Ask::Raise { .. }) => Some(News::NotRaised),
            Some(Ask::Lower { to_ms }) => {
                assert!(to_ms < self.vote_ms);
                self.vote_ms = to_ms;
                if succeeds {
                    self.d_ms = to_ms;
                }
                None
            }
            Some(Ask::Reserve { mark }) if succeeds => {
                self.mark = self.mark.max(mark);
                Some(News::Reserved { mark: self.mark })
            }
            Some(Ask::Reserve { .. }) => Some(News::NotReserved),
            Some(Ask::Record { number, change }) => {
                assert_eq!(number, self.last_number + 1, "without gaps");
                self.last_number = number;
                self.unwritten.push_back((number, change));
                self.write(succeeds)
            }
            None if self.unwritten.is_empty() => None,
            None => self.write(succeeds),
        }
    }

    fn write(&mut self, succeeds: bool) -> Option<News> {
        // A failure may be one of the second half only.
        let count = match succeeds {
            true => self.unwritten.len(),
            false => self.unwritten.len() / 2,
        };
        for (_, change) in self.unwritten.iter().take(count) {
            match change.clone() {
                RecordChange::Set(record) => {
                    self.records.insert(record.key.clone(), record);
                }
                RecordChange::Remove { key } => {
                    self.records.remove(&key);
                }
            }
        }
        let up_to = self.last_number;
        if succeeds {
            self.unwritten.clear();
            return Some(News::Recorded { up_to });
        }
        Some(News::NotRecorded { up_to })
    }
}

/// Who holds a key, as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Client {
    /// Whoever was told this token.
    Native(u64),
    /// This ID.
    Dlm(&'static str),
}

/// A lease that a client was told of, and when it is over by what it was told.
#[derive(Clone, Copy, Debug)]
struct Belief {
    client: Client,
    until: Time,
}

/// A native request that is not answered.
#[derive(Clone, Copy, Debug)]
struct Asked {
    session: SessionId,
    key: &'static str,
    at: Time,
    lease_ms: u64,
    /// Of an extend.
    token: u64,
}

/// A DLM request that is not answered.
#[derive(Clone, Copy, Debug)]
struct Called {
    connection: SessionId,
    key: &'static str,
    id: &'static str,
    at: Time,
    ttl_ms: u64,
    number: u64,
    /// Its client believed that it held the lock.
    was_holder: bool,
}

/// When an ID last asked for a lock, and last gave it up, by the numbers of requests.
#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    lock: u64,
    unlock: u64,
}

struct Crash {
    world: World,
    store: Store,
    sessions: Vec<SessionId>,
    beliefs: BTreeMap<&'static str, Vec<Belief>>,
    asked: HashMap<u64, Asked>,
    called: Vec<Called>,
    latest: HashMap<(&'static str, &'static str), Latest>,
    tokens: HashSet<u64>,
    /// Numbers requests; owners, where they have one.
    last_number: u64,
}

impl Crash {
    fn new(config: WorkerConfig) -> Crash {
        let start = config.durable.unwrap();
        let mut world = World::new(config);
        Crash {
            store: Store {
                d_ms: start.d_ms,
                vote_ms: start.d_ms,
                mark: start.mark,
                records: BTreeMap::new(),
                unwritten: VecDeque::new(),
                asked: VecDeque::new(),
                last_number: 0,
            },
            sessions: (0..SESSIONS).map(|_| world.connect()).collect(),
            world,
            beliefs: BTreeMap::new(),
            asked: HashMap::new(),
            called: Vec::new(),
            latest: HashMap::new(),
            tokens: HashSet::new(),
            last_number: 0,
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Acquire {
                session,
                key,
                wait_ms,
                lease_ms,
            } => {
                let owner = self.note(session, KEYS[key], lease_ms, 0);
                let key = KEYS[key].as_bytes();
                self.ask(session, &acquire_for(owner, wait_ms, lease_ms, key));
            }
            Step::Extend {
                session,
                key,
                lease_ms,
            } => {
                if let Some(token) = self.believed_token(KEYS[key]) {
                    let owner = self.note(session, KEYS[key], lease_ms, token);
                    let key = KEYS[key].as_bytes();
                    let extend = Request::Extend {
                        owner,
                        lease_ms,
                        token,
                        key,
                    };
                    self.ask(session, &extend);
                }
            }
            Step::Release { session, key } => {
                if let Some(token) = self.believed_token(KEYS[key]) {
                    self.stop_believing(KEYS[key], Client::Native(token));
                    let owner = self.note(session, KEYS[key], 0, token);
                    let key = KEYS[key].as_bytes();
                    self.ask(session, &Request::Release { owner, token, key });
                }
            }
            Step::Query { session, key } => {
                let owner = self.note(session, KEYS[key], 0, 0);
                self.ask(session, &query(owner, KEYS[key].as_bytes()));
            }
            Step::Lock { id, key, ttl_ms } => {
                let number = self.last_number + 1;
                self.latest_of(KEYS[key], IDS[id]).lock = number;
                self.call(id, key, ttl_ms, &lock_for(IDS[id], ttl_ms, KEYS[key]));
            }
            Step::Put { id, key, ttl_ms } => {
                self.call(id, key, ttl_ms, &put_for(IDS[id], ttl_ms, KEYS[key]));
            }
            Step::Unlock { id, key } => {
                let number = self.last_number + 1;
                self.latest_of(KEYS[key], IDS[id]).unlock = number;
                self.stop_believing(KEYS[key], Client::Dlm(IDS[id]));
                self.call(id, key, 0, &unlock(IDS[id], KEYS[key]));
            }
            Step::End { session, how } => {
                let id = self.sessions[session];
                self.world.end(id, how);
                if how == PeerEnd::Broken {
                    self.asked.retain(|_, asked| asked.session != id);
                }
                self.sessions[session] = self.world.connect();
            }
            Step::BreakDlm => {
                if let Some(called) = self.called.pop() {
                    self.world.end(called.connection, PeerEnd::Broken);
                }
            }
            Step::Pass { ms } => self.world.pass(ms),
            Step::Store { succeeds } => {
                if let Some(news) = self.store.act(succeeds) {
                    self.world.news(news);
                }
            }
        }
        self.go_on();
    }

    /// The turn ends, clients read, and then the server might crash.
    fn go_on(&mut self) {
        self.world.turns_until_idle();
        self.store.asked.extend(self.world.asks());
        for id in self
            .world
            .sent
            .iter()
            .map(|(id, _)| *id)
            .collect::<Vec<_>>()
        {
            if !self.called.iter().any(|called| called.connection == id) {
                for reply in self.world.replies(id) {
                    self.believe(reply);
                }
            }
        }
        for called in std::mem::take(&mut self.called) {
            match self.world.status(called.connection) {
                Some(status) => {
                    self.believe_dlm(&called, status);
                    self.world.end(called.connection, PeerEnd::Fin);
                }
                None => self.called.push(called),
            }
        }
        self.check();
    }

    fn check(&mut self) {
        let now = self.world.now;
        let covered = now.plus_millis(self.store.d_ms);
        for (key, beliefs) in &mut self.beliefs {
            beliefs.retain(|belief| belief.until > now);
            assert!(beliefs.len() <= 1, "{key} is held twice: {beliefs:?}");
            let Some(belief) = beliefs.first() else {
                continue;
            };
            let record = self.store.records.get(key.as_bytes());
            let holder = record.map(|record| Client::Dlm(id_of(&record.id)));
            assert!(
                holder.is_none_or(|holder| holder == belief.client),
                "a restart gives {key} to {holder:?}, and {belief:?}"
            );
            assert!(
                covered >= belief.until || record.is_some_and(|it| it.deadline >= belief.until),
                "a restart grants {key} at {covered:?}, and {belief:?}"
            );
        }
    }

    fn believe(&mut self, reply: Reply) {
        let owner = owner_of(&reply);
        let asked = self.asked.remove(&owner);
        let asked = asked.unwrap_or_else(|| panic!("{reply:?} answers nothing, or again"));
        match reply {
            Reply::Acquired {
                token, waited_ms, ..
            } => {
                assert!(token < self.store.mark, "a restart gives {token} out again");
                assert!(self.tokens.insert(token), "{token} was given out before");
                let bound = asked.at.plus_millis(u64::from(waited_ms) + asked.lease_ms);
                let beliefs = self.beliefs.entry(asked.key).or_default();
                beliefs.push(Belief {
                    client: Client::Native(token),
                    until: bound,
                });
            }
            Reply::Extended { remaining_ms, .. } => {
                let bound = asked.at.plus_millis(asked.lease_ms);
                let told = self.world.now.plus_millis(remaining_ms.into());
                self.lengthen(asked.key, Client::Native(asked.token), bound.max(told));
            }
            _ => {}
        }
    }

    fn believe_dlm(&mut self, called: &Called, status: Status) {
        let &Called {
            key, id, number, ..
        } = called;
        let latest = *self.latest_of(key, id);
        let bound = called.at.plus_millis(called.ttl_ms);
        let client = Client::Dlm(id);
        match status {
            Status::Locked if latest.unlock < number => {
                let beliefs = self.beliefs.entry(key).or_default();
                if !beliefs.iter().any(|belief| belief.client == client) {
                    let until = Time::ZERO;
                    beliefs.push(Belief { client, until });
                }
                self.lengthen(key, client, bound);
            }
            Status::Done if called.was_holder && latest.unlock < number => {
                self.lengthen(key, client, bound);
            }
            Status::Unlocked if latest.lock < number => {
                let record = self.store.records.get(key.as_bytes());
                assert!(
                    record.is_none_or(|record| &*record.id != id),
                    "a restart gives {key} to {id}, who has unlocked it"
                );
            }
            _ => {}
        }
    }

    fn lengthen(&mut self, key: &'static str, client: Client, until: Time) {
        let beliefs = self.beliefs.entry(key).or_default();
        if let Some(belief) = beliefs.iter_mut().find(|belief| belief.client == client) {
            belief.until = belief.until.max(until);
        }
    }

    fn stop_believing(&mut self, key: &'static str, client: Client) {
        let beliefs = self.beliefs.entry(key).or_default();
        beliefs.retain(|belief| belief.client != client);
    }

    fn believed_token(&self, key: &str) -> Option<u64> {
        self.beliefs
            .get(key)?
            .iter()
            .find_map(|belief| match belief.client {
                Client::Native(token) => Some(token),
                Client::Dlm(_) => None,
            })
    }

    fn note(&mut self, session: usize, key: &'static str, lease_ms: u32, token: u64) -> u64 {
        self.last_number += 1;
        let asked = Asked {
            session: self.sessions[session],
            key,
            at: self.world.now,
            lease_ms: lease_ms.into(),
            token,
        };
        self.asked.insert(self.last_number, asked);
        self.last_number
    }

    fn ask(&mut self, session: usize, request: &Request<'_>) {
        self.world
            .ask(self.sessions[session], std::slice::from_ref(request));
    }

    fn call(&mut self, id: usize, key: usize, ttl_ms: u64, line: &[u8]) {
        let (key, id) = (KEYS[key], IDS[id]);
        self.last_number += 1;
        let beliefs = self.beliefs.get(key).into_iter().flatten();
        let called = Called {
            connection: self.world.begin_dlm(line),
            key,
            id,
            at: self.world.now,
            ttl_ms,
            number: self.last_number,
            was_holder: beliefs.into_iter().any(|it| it.client == Client::Dlm(id)),
        };
        self.called.push(called);
    }

    fn latest_of(&mut self, key: &'static str, id: &'static str) -> &mut Latest {
        self.latest.entry((key, id)).or_default()
    }

    /// The store does all that it was asked.
    fn settle(&mut self) {
        while !self.store.asked.is_empty() || !self.store.unwritten.is_empty() {
            self.step(&Step::Store { succeeds: true });
        }
    }
}

fn id_of(id: &str) -> &'static str {
    IDS.into_iter().find(|known| *known == id).unwrap()
}

fn owner_of(reply: &Reply) -> u64 {
    match *reply {
        Reply::Acquired { owner, .. }
        | Reply::TimedOut { owner }
        | Reply::Busy { owner }
        | Reply::Released { owner }
        | Reply::Extended { owner, .. }
        | Reply::NotHeld { owner }
        | Reply::State { owner, .. }
        | Reply::Error { owner, .. } => owner,
        ref other => panic!("{other:?} answers nothing that was asked"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn at_any_moment_leaves_enough_on_disk(
        config in start(),
        steps in prop::collection::vec(step(), 1..80),
    ) {
        let mut crash = Crash::new(config);
        for step in &steps {
            crash.step(step);
        }
        // All ends well: everybody is answered, and nothing is left.
        for _ in 0..25 {
            crash.settle();
            crash.step(&Step::Pass { ms: 100_000 });
        }
        crash.settle();
        assert!(crash.asked.is_empty(), "unanswered: {:?}", crash.asked);
        assert!(crash.called.is_empty(), "unanswered: {:?}", crash.called);
        assert!(crash.store.records.is_empty());
        let vote_ms = crash.store.vote_ms;
        assert!(vote_ms <= 1_024, "D is kept up at {vote_ms} ms");
        let worker = &crash.world.worker;
        assert!(!worker.held.any_held());
        assert_eq!((worker.engine().keys(), worker.engine().waiting()), (0, 0));
        assert_eq!(worker.session_count(), SESSIONS, "those that have not ended");
    }
}
