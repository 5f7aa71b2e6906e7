//! Acquire + release pairs as each kind of server wants them: always two
//! requests per pair, always `depth` requests under way on a connection.

use std::collections::VecDeque;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};

use crate::keys::{Key, Random, key};
use crate::load::{Session, Turn};
use crate::wire;

/// What listens at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Target {
    /// leasehold's native protocol.
    Native,
    /// The echo server: the same bytes, no locks.
    Echo,
    /// Redis: `SET key token NX PX` and a compare-and-delete script.
    Redis,
}

/// Lease that the load asks for: longer than any of its pairs takes.
const LEASE_S: u8 = 10;
const LEASE_MS: &str = "10000";

/// The keys one lane may use. Lanes never share a key, so that no acquire of the
/// load finds its key held.
#[derive(Clone, Debug)]
pub struct LaneKeys {
    random: Random,
    lane: u64,
    lanes: u64,
    per_lane: u64,
    route: Option<Route>,
}

/// Which keys a session asks for, of those of its lanes.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The session's loop, and where keys belong.
    pub routing: wire::Routing,
    /// Keys of the session's own loop, or of the others.
    pub local: bool,
}

impl Route {
    fn takes(&self, key: &Key) -> bool {
        (self.routing.owner_of(key) == self.routing.loop_index) == self.local
    }
}

impl LaneKeys {
    /// The keys of lane number `lane` of `lanes`, out of `total_keys` (at least one each).
    /// All of them, or those that `route` takes: about one in as many as there are loops.
    pub fn new(
        seed: u64,
        lane: u64,
        lanes: u64,
        total_keys: u64,
        route: Option<Route>,
    ) -> LaneKeys {
        LaneKeys {
            random: Random::new(seed ^ lane.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            lane,
            lanes,
            per_lane: (total_keys / lanes).max(1),
            route,
        }
    }

    fn next_key(&mut self) -> Key {
        loop {
            let key = key(self.lane + self.lanes * self.random.below(self.per_lane));
            if self.route.is_none_or(|route| route.takes(&key)) {
                return key;
            }
        }
    }
}

/// One of a session's `depth` pairs: it has one request under way at any time.
#[derive(Debug)]
struct Lane {
    keys: LaneKeys,
    key: Key,
    owner: u64,
    sent_ns: u64,
    holds: bool,
}

impl Lane {
    fn new(keys: LaneKeys) -> Lane {
        Lane {
            keys,
            key: [0; 16],
            owner: 0,
            sent_ns: 0,
            holds: false,
        }
    }
}

/// A session with a leasehold server.
#[derive(Debug)]
pub struct NativeSession {
    lanes: Vec<Lane>,
    wanted_loop: Option<u16>,
    outstanding: usize,
}

impl NativeSession {
    /// A session with one lane per element, on that loop of the server if one is wanted.
    pub fn new(lanes: Vec<LaneKeys>, wanted_loop: Option<u16>) -> NativeSession {
        NativeSession {
            lanes: lanes.into_iter().map(Lane::new).collect(),
            wanted_loop,
            outstanding: 0,
        }
    }

    fn acquire(&mut self, index: usize, now_ns: u64, out: &mut Vec<u8>) {
        let lane_count = self.lanes.len() as u64;
        let lane = &mut self.lanes[index];
        // Fresh for every call, never 0, and its remainder finds the lane again.
        lane.owner = match lane.owner {
            0 => lane_count + index as u64,
            owner => owner + lane_count,
        };
        lane.key = lane.keys.next_key();
        lane.holds = false;
        lane.sent_ns = now_ns;
        self.outstanding += 1;
        wire::push_acquire(out, lane.owner, LEASE_S, &lane.key);
    }
}

/// Owner of a session's Hello; the lanes' are small numbers.
const HELLO_OWNER: u64 = u64::MAX;

impl Session for NativeSession {
    fn start(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        if let Some(wanted_loop) = self.wanted_loop {
            wire::push_hello(out, HELLO_OWNER, wanted_loop);
            self.outstanding += 1;
        }
        for index in 0..self.lanes.len() {
            self.acquire(index, now_ns, out);
        }
    }

    fn handle_replies(
        &mut self,
        bytes: &[u8],
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let lane_count = self.lanes.len() as u64;
        let mut taken = 0;
        while let Some((answer, length)) = wire::read_answer(&bytes[taken..])? {
            taken += length;
            if answer.op == b'H' && answer.owner == HELLO_OWNER {
                self.outstanding -= 1;
                continue;
            }
            let index = (answer.owner % lane_count) as usize;
            let lane = &mut self.lanes[index];
            if answer.owner != lane.owner {
                return Err(format!("a reply names owner {} out of turn", answer.owner));
            }
            self.outstanding -= 1;
            match (answer.op, lane.holds) {
                (b'A', false) => {
                    turn.tally.answered(turn.now_ns - lane.sent_ns);
                    lane.owner += lane_count;
                    lane.holds = true;
                    lane.sent_ns = turn.now_ns;
                    self.outstanding += 1;
                    wire::push_release(out, lane.owner, answer.value, &lane.key);
                    continue;
                }
                (b'R', true) => turn.tally.answered(turn.now_ns - lane.sent_ns),
                (b'E', _) => turn.tally.failed(format!("E {}", answer.value)),
                (op, _) => turn.tally.failed((op as char).to_string()),
            }
            if !turn.stopping {
                self.acquire(index, turn.now_ns, out);
            }
        }
        Ok(taken)
    }

    fn outstanding(&self) -> usize {
        self.outstanding
    }
}

/// A session with the echo server, which counts bytes and looks at none: frames
/// of the two lengths alternate, and replies come in their order.
#[derive(Debug)]
pub struct EchoSession {
    lanes: Vec<LaneKeys>,
    sent: u64,
    answered: u64,
    sent_ns: VecDeque<u64>,
}

impl EchoSession {
    /// A session with as many requests under way as there are lanes.
    pub fn new(lanes: Vec<LaneKeys>) -> EchoSession {
        EchoSession {
            sent: 0,
            answered: 0,
            sent_ns: VecDeque::with_capacity(lanes.len()),
            lanes,
        }
    }

    fn send(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        let index = self.sent % self.lanes.len() as u64;
        let key = self.lanes[index as usize].next_key();
        if self.sent.is_multiple_of(2) {
            wire::push_acquire(out, self.sent, LEASE_S, &key);
        } else {
            wire::push_release(out, self.sent, self.sent, &key);
        }
        self.sent += 1;
        self.sent_ns.push_back(now_ns);
    }
}

impl Session for EchoSession {
    fn start(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        for _ in 0..self.lanes.len() {
            self.send(now_ns, out);
        }
    }

    fn handle_replies(
        &mut self,
        bytes: &[u8],
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let mut taken = 0;
        while let Some((answer, length)) = wire::read_answer(&bytes[taken..])? {
            taken += length;
            let expected = if self.answered.is_multiple_of(2) {
                b'A'
            } else {
                b'R'
            };
            self.answered += 1;
            let sent_ns = self.sent_ns.pop_front().ok_or("a reply to no request")?;
            if answer.op == expected {
                turn.tally.answered(turn.now_ns - sent_ns);
            } else {
                turn.tally.failed((answer.op as char).to_string());
            }
            if !turn.stopping {
                self.send(turn.now_ns, out);
            }
        }
        Ok(taken)
    }

    fn outstanding(&self) -> usize {
        self.sent_ns.len()
    }
}

/// Deletes the key if it holds the caller's token.
const REDIS_RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) else return 0 end";

/// Loads the release script and returns its hash.
///
/// # Errors
/// The server cannot be reached or refuses the script.
pub fn load_redis_release(server: SocketAddr) -> io::Result<String> {
    let mut stream = TcpStream::connect(server)?;
    let length = REDIS_RELEASE.len();
    write!(
        stream,
        "*3\r\n$6\r\nSCRIPT\r\n$4\r\nLOAD\r\n${length}\r\n{REDIS_RELEASE}\r\n"
    )?;
    let mut lines = BufReader::new(stream).lines();
    let header = lines.next().transpose()?.unwrap_or_default();
    let hash = lines.next().transpose()?.unwrap_or_default();
    if header != "$40" || hash.len() != 40 {
        return Err(io::Error::other(format!(
            "Redis refused the script: {header}"
        )));
    }
    Ok(hash)
}

/// A session with a Redis server; replies come in the order of the requests.
#[derive(Debug)]
pub struct RedisSession {
    lanes: Vec<Lane>,
    /// Lanes in the order of their requests.
    order: VecDeque<usize>,
    release_hash: String,
}

impl RedisSession {
    /// A session with one lane per element, releasing with the loaded script.
    pub fn new(lanes: Vec<LaneKeys>, release_hash: String) -> RedisSession {
        RedisSession {
            lanes: lanes.into_iter().map(Lane::new).collect(),
            order: VecDeque::new(),
            release_hash,
        }
    }

    fn acquire(&mut self, index: usize, now_ns: u64, out: &mut Vec<u8>) {
        let lane = &mut self.lanes[index];
        lane.owner += 1;
        lane.key = lane.keys.next_key();
        lane.holds = false;
        lane.sent_ns = now_ns;
        push_redis_set(out, &lane.key, &key(lane.owner), LEASE_MS);
        self.order.push_back(index);
    }

    fn release(&mut self, index: usize, now_ns: u64, out: &mut Vec<u8>) {
        let lane = &mut self.lanes[index];
        lane.holds = true;
        lane.sent_ns = now_ns;
        out.extend_from_slice(b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n");
        out.extend_from_slice(self.release_hash.as_bytes());
        out.extend_from_slice(b"\r\n$1\r\n1\r\n$16\r\n");
        out.extend_from_slice(&lane.key);
        out.extend_from_slice(b"\r\n$16\r\n");
        out.extend_from_slice(&key(lane.owner));
        out.extend_from_slice(b"\r\n");
        self.order.push_back(index);
    }
}

/// Appends `SET key token NX PX lease`; the lease is a decimal number of milliseconds.
pub fn push_redis_set(out: &mut Vec<u8>, key: &Key, token: &Key, lease_ms: &str) {
    debug_assert!(lease_ms.len() < 10);
    out.extend_from_slice(b"*6\r\n$3\r\nSET\r\n$16\r\n");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\r\n$16\r\n");
    out.extend_from_slice(token);
    out.extend_from_slice(b"\r\n$2\r\nNX\r\n$2\r\nPX\r\n$");
    out.push(b'0' + lease_ms.len() as u8);
    out.extend_from_slice(b"\r\n");
    out.extend_from_slice(lease_ms.as_bytes());
    out.extend_from_slice(b"\r\n");
}

impl Session for RedisSession {
    fn start(&mut self, now_ns: u64, out: &mut Vec<u8>) {
        for index in 0..self.lanes.len() {
            self.acquire(index, now_ns, out);
        }
    }

    fn handle_replies(
        &mut self,
        bytes: &[u8],
        turn: &mut Turn<'_>,
        out: &mut Vec<u8>,
    ) -> Result<usize, String> {
        let mut taken = 0;
        while let Some(end) = bytes[taken..].iter().position(|&byte| byte == b'\n') {
            let line = bytes[taken..taken + end].trim_ascii_end();
            taken += end + 1;
            let index = self.order.pop_front().ok_or("a reply to no request")?;
            let lane = &self.lanes[index];
            match (line, lane.holds) {
                (b"+OK", false) => {
                    turn.tally.answered(turn.now_ns - lane.sent_ns);
                    self.release(index, turn.now_ns, out);
                    continue;
                }
                (b":1", true) => turn.tally.answered(turn.now_ns - lane.sent_ns),
                (line, _) => turn
                    .tally
                    .failed(String::from_utf8_lossy(line).into_owned()),
            }
            if !turn.stopping {
                self.acquire(index, turn.now_ns, out);
            }
        }
        Ok(taken)
    }

    fn outstanding(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_never_share_a_key() {
        let draw = |lane| {
            let mut keys = LaneKeys::new(1, lane, 3, 30, None);
            (0..1_000).map(move |_| keys.next_key())
        };
        let lanes: Vec<std::collections::HashSet<Key>> =
            (0..3).map(|lane| draw(lane).collect()).collect();
        assert!(lanes.iter().all(|keys| keys.len() == 10));
        assert!(lanes[0].is_disjoint(&lanes[1]));
        assert!(lanes[1].is_disjoint(&lanes[2]));
        assert!(lanes[0].is_disjoint(&lanes[2]));
    }

    #[test]
    fn redis_set_is_one_well_formed_command() {
        let mut out = Vec::new();
        push_redis_set(&mut out, b"0123456789abcdef", b"fedcba9876543210", "10000");
        assert_eq!(
            String::from_utf8_lossy(&out),
            "*6\r\n$3\r\nSET\r\n$16\r\n0123456789abcdef\r\n$16\r\nfedcba9876543210\r\n\
             $2\r\nNX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"
        );
    }
}
