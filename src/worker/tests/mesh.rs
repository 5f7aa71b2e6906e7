//! Two loops, joined by rings that hold little.

use super::*;
use crate::partition;

const RING: usize = 64;

/// Two joined loops, the first with all the sessions.
pub(super) struct Pair {
    pub(super) asking: Worker,
    pub(super) owning: Worker,
    pub(super) now: Time,
    pub(super) sent: Vec<(SessionId, Vec<u8>)>,
    pub(super) closed: Vec<SessionId>,
}

impl Pair {
    pub(super) fn new(config: &WorkerConfig) -> Pair {
        let mut ports = crate::mesh::build(2, RING);
        let worker = |loop_index, port| {
            let mut config = config.clone();
            (config.loops, config.loop_index) = (2, loop_index);
            config.max_connections = 10_000;
            Worker::new(config, port)
        };
        let owning = worker(1, ports.remove(1));
        let asking = worker(0, ports.remove(0));
        Pair {
            asking,
            owning,
            now: Time::from_millis(5_000),
            sent: Vec::new(),
            closed: Vec::new(),
        }
    }

    pub(super) fn connect(&mut self, protocol: Protocol) -> SessionId {
        let id = self.asking.handle_accepted(protocol, self.now);
        self.sent.push((id.unwrap(), Vec::new()));
        id.unwrap()
    }

    /// Both loops take a turn.
    pub(super) fn turn(&mut self) {
        for worker in [&mut self.asking, &mut self.owning] {
            worker.handle_awake();
            while worker.gather_messages() > 0 {
                worker.handle_messages(self.now);
            }
            worker.handle_room();
            worker.invariants();
            for _ in 0..worker.backlog_len() {
                worker.handle_backlog(self.now);
            }
            worker.handle_timeouts(self.now);
            while let Some(id) = worker.poll_dirty() {
                loop {
                    match worker.poll_action(id, self.now) {
                        Action::Write(bytes) => {
                            let sent = self.sent.iter_mut().find(|(of, _)| *of == id).unwrap();
                            let count = bytes.len();
                            sent.1.extend_from_slice(bytes);
                            worker.handle_submitted(id, count);
                        }
                        Action::ShutdownWrite => {}
                        Action::Close => {
                            self.closed.push(id);
                            worker.handle_closed(id);
                            break;
                        }
                        Action::Wait | Action::Move(_) => break,
                    }
                }
            }
            worker.poll_wakes().for_each(drop);
            worker.invariants();
        }
    }

    fn sent_bytes(&self, id: SessionId) -> usize {
        let sent = self.sent.iter().find(|(of, _)| *of == id);
        sent.unwrap().1.len()
    }
}

/// A key of the owning loop.
pub(super) fn remote_key() -> Vec<u8> {
    (0..)
        .map(|number| format!("k{number}").into_bytes())
        .find(|key| partition::loop_of(key, config().routing_seed, 2) == 1)
        .unwrap()
}

fn queries(count: u64, key: &[u8]) -> Vec<u8> {
    let ask = |owner| Request::Query { owner, key };
    frames(&(1..=count).map(ask).collect::<Vec<_>>())
}

/// Whoever floods a loop gets his share of the way to it, and a session that asks once
/// waits for no more than a share of each that came before it.
#[test]
fn a_session_that_asks_once_is_not_starved_by_those_that_flood() {
    const FLOODERS: usize = 20;
    const EACH: u64 = 2_000;
    let key = remote_key();
    let mut pair = Pair::new(&config());
    let flooders: Vec<SessionId> = (0..FLOODERS)
        .map(|_| pair.connect(Protocol::Native))
        .collect();
    let flood = queries(EACH, &key);
    for id in &flooders {
        pair.asking.handle_received(*id, &flood, pair.now);
    }
    pair.turn();
    let one = queries(1, &key);
    // Newcomers ask before those who wait are looked at, and must not overtake.
    let crowd = |pair: &mut Pair| {
        for _ in 0..RING {
            let newcomer = pair.connect(Protocol::Native);
            pair.asking.handle_received(newcomer, &one, pair.now);
        }
    };
    for round in 0..5 {
        crowd(&mut pair);
        let victim = pair.connect(Protocol::Native);
        pair.asking.handle_received(victim, &one, pair.now);
        let mut turns = 0;
        while pair.sent_bytes(victim) == 0 {
            crowd(&mut pair);
            pair.turn();
            turns += 1;
            // Each turn as many go on as the ring has room for.
            assert!(turns <= FLOODERS, "round {round}: it is starved");
        }
    }
    let mut reply = Vec::new();
    Reply::State {
        owner: 1,
        held: false,
        remaining_ms: 0,
        waiters: 0,
    }
    .encode(&mut reply);
    let whole = EACH as usize * reply.len();
    assert!(
        flooders.iter().all(|id| pair.sent_bytes(*id) < whole),
        "they flood on"
    );
    while flooders.iter().any(|id| pair.sent_bytes(*id) < whole) {
        pair.turn();
    }
    assert!(flooders.iter().all(|id| pair.sent_bytes(*id) == whole));
}
