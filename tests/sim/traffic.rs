//! What clients do, by chance: all that the protocols allow and some that they forbid.

use fastrand::Rng;
use leasehold::dlm::Operation;
use leasehold::protocol::{ANY_LOOP, ErrorCode, Request};
use leasehold::worker::PeerEnd;

use crate::clocks::{Clock, Rates};
use crate::dlm_talk::DlmTalk;
use crate::link::{Conversation, Server};
use crate::options::{MAX_KEY_BYTES, MAX_LEASE_MS, pick};
use crate::talk::Ask;
use crate::world::World;

/// No server here comes to give this out, nor any later one.
pub(crate) const FIRST_WRONG_TOKEN: u64 = 1 << 40;

/// Whoever uses one connection after the other.
#[derive(Debug)]
pub(crate) struct Client {
    /// Chance of its own: what it does does not depend on what others do.
    rng: Rng,
    clock: Clock,
    /// It does nothing at all.
    is_left_out: bool,
    /// Connections it has made or left out.
    connections: u32,
    link: Option<usize>,
    /// It does not read on this connection.
    is_stalled: bool,
    /// Its DLM identifier, and the key that this is for.
    dlm: Option<(String, usize)>,
    /// It has asked for that one's Unlock.
    has_unlocked: bool,
    dlm_ids: u64,
    /// Its last DLM connection.
    last_dlm: Option<usize>,
}

impl Client {
    pub(crate) fn new(mut rng: Rng, rates: Rates, is_left_out: bool) -> Client {
        Client {
            clock: rates.clock(&mut rng),
            rng,
            is_left_out,
            connections: 0,
            link: None,
            is_stalled: false,
            dlm: None,
            has_unlocked: false,
            dlm_ids: 0,
            last_dlm: None,
        }
    }
}

impl World {
    /// One client does something.
    pub(crate) fn act(&mut self) {
        let who = self.env.rng.usize(..self.clients.len());
        if self.clients[who].is_left_out {
            return;
        }
        std::mem::swap(&mut self.env.rng, &mut self.clients[who].rng);
        self.act_as(who);
        std::mem::swap(&mut self.env.rng, &mut self.clients[who].rng);
    }

    fn act_as(&mut self, who: usize) {
        let Some(link) = self.clients[who].link else {
            if self.env.rng.u8(..4) == 0 {
                self.connect_client(who);
            }
            return;
        };
        match self.env.links[link].server {
            Server::Closed => self.clients[who].link = None,
            Server::ShutDown if self.env.rng.u8(..8) == 0 => self.end(link, true),
            Server::Open | Server::ShutDown => self.act_on(who, link),
        }
    }

    fn act_on(&mut self, who: usize, link: usize) {
        if !self.clients[who].is_stalled && self.env.links[link].room < self.options.send_room {
            let count = self.env.rng.usize(..=self.options.send_room);
            self.env.links[link].make_room(count);
        }
        if self.env.links[link].end.is_some() {
            // Closed its side, and may yet break off.
            if self.env.rng.u8(..100) == 0 && !self.env.links[link].is_reset() {
                self.end(link, false);
            }
            return;
        }
        if let Conversation::Native(talk) = &self.env.links[link].conversation
            && talk.unsent() < 300
            && self.env.rng.u8(..3) == 0
        {
            for _ in 0..self.env.rng.usize(1..5) {
                self.compose(link);
            }
        }
        let unsent = self.env.links[link].unsent();
        if unsent > 0 {
            let count = match self.env.rng.u8(..5) {
                0 => 1,
                1 => self.env.rng.usize(1..=unsent.min(30)),
                2 => self.env.rng.usize(1..=unsent),
                _ => unsent,
            };
            let now = self.env.now;
            self.env.links[link].send(count, now, &mut self.env.ledger);
            if count == unsent && !self.is_dlm(link) && self.env.rng.u8(..12) == 0 {
                // Some end their side right behind what they ask.
                return self.end(link, true);
            }
        }
        match self.env.rng.u16(..400) {
            0..8 => self.end(link, true),
            8..12 => self.end(link, false),
            12..30 if self.is_dlm(link) => self.end(link, true),
            _ => {}
        }
    }

    fn is_dlm(&self, link: usize) -> bool {
        matches!(self.env.links[link].conversation, Conversation::Dlm(_))
    }

    /// The client ends its side, in order or not.
    pub(crate) fn end(&mut self, link: usize, in_order: bool) {
        let how = if in_order {
            PeerEnd::Fin
        } else {
            PeerEnd::Broken
        };
        let on_the_way = self.env.links[link].to_server.len();
        let kept = self.env.rng.usize(..=on_the_way);
        if self.env.links[link].end.is_none() || !in_order {
            self.env.links[link].end_seen = false;
            self.env.links[link].ended_at.get_or_insert(self.env.now);
            self.env.links[link].finish(how, kept, &mut self.env.ledger);
        }
    }

    fn connect_client(&mut self, who: usize) {
        let number = self.clients[who].connections;
        self.clients[who].connections += 1;
        if self.options.left_out.links.contains(&(who, number)) {
            return;
        }
        let to = self.env.rng.u16(..self.options.loops);
        // Who has begun with the one protocol goes on with it more often than not.
        let goes_on = self.clients[who].dlm.is_some() && self.env.rng.u8(..4) > 0;
        let link = if goes_on || self.env.rng.u8(..16) < self.options.dlm_share {
            self.connect_dlm(who, to)
        } else {
            self.connect_native(to)
        };
        self.clients[who].link = Some(link);
        self.env.links[link].made_by = Some((who, number));
        self.env.links[link].set_clock(self.clients[who].clock);
        self.clients[who].is_stalled = self.options.stalls && self.env.rng.u8(..6) == 0;
    }

    fn connect_dlm(&mut self, who: usize, to: u16) -> usize {
        let client = &mut self.clients[who];
        let (id, key) = match client.dlm.clone() {
            Some(dlm) => dlm,
            None => {
                client.dlm_ids += 1;
                let id = format!("{who}/{}", client.dlm_ids);
                let key = self.env.rng.usize(..self.keys.len());
                client.dlm = Some((id.clone(), key));
                (id, key)
            }
        };
        let operation = self.a_dlm_operation(who, &id);
        let is_garbled = self.env.rng.u8(..40) == 0;
        let client = &mut self.clients[who];
        if client.has_unlocked {
            // Its lock is given up, and so is its identifier.
            client.has_unlocked = false;
            client.dlm = None;
            self.env.ledger.covered.note("DLM looks after an Unlock");
        } else if operation == Operation::Unlock && !is_garbled {
            client.has_unlocked = true;
            for link in &mut self.env.links {
                if let Conversation::Dlm(talk) = &mut link.conversation {
                    talk.given_back |= talk.is_lock_by(&id);
                }
            }
        }
        let talk = DlmTalk::new(operation, (key, &self.keys[key]), id, is_garbled);
        self.clients[who].last_dlm = Some(self.env.links.len());
        self.connect(Conversation::Dlm(Box::new(talk)), to)
    }

    /// What a DLM client asks next: by chance, but mostly what follows from the last.
    fn a_dlm_operation(&mut self, who: usize, id: &str) -> Operation<'static> {
        let last =
            self.clients[who]
                .last_dlm
                .and_then(|link| match &self.env.links[link].conversation {
                    Conversation::Dlm(talk) if talk.id() == id => Some(talk),
                    _ => None,
                });
        let lost = last.and_then(|talk| talk.lost_lock());
        let last = last.map(|talk| talk.operation().clone());
        let follows = self.env.rng.u8(..4) > 0;
        if self.clients[who].has_unlocked {
            // Nothing of its own may be left but what another one put there.
            return match self.env.rng.u8(..4) {
                0 => Operation::Erase,
                1 => Operation::TestLock,
                _ => Operation::Get,
            };
        }
        match (lost, last) {
            (Some(lost), _) if follows => {
                self.env.ledger.covered.note("DLM tries again");
                return lost;
            }
            (None, Some(Operation::Lock { .. })) if follows => return self.a_put(),
            (None, Some(Operation::Put { .. })) if follows => return Operation::Unlock,
            _ => {}
        }
        match self.env.rng.u8(..12) {
            0..5 => Operation::Lock {
                ttl_ms: self.a_ttl(),
            },
            5..8 => Operation::Unlock,
            8 => Operation::TestLock,
            9 => self.a_put(),
            10 => Operation::Get,
            _ => Operation::Erase,
        }
    }

    fn a_ttl(&mut self) -> u64 {
        match self.env.rng.u8(..3) {
            0 => self.env.rng.u64(1..200),
            1 => self.env.rng.u64(1..6_000),
            _ => self.env.rng.u64(1..30_000),
        }
    }

    fn a_put(&mut self) -> Operation<'static> {
        Operation::Put {
            ttl_ms: self.a_ttl(),
            // Now and then so much that it gets a turn of its own.
            data_store: match self.env.rng.u8(..8) {
                0 => "data".repeat(18_000),
                count => "data".repeat(count.into()),
            }
            .into(),
        }
    }

    /// Composes one request of a native session.
    fn compose(&mut self, link: usize) {
        let owner = self.fresh_owner();
        let key = self.env.rng.usize(..self.keys.len());
        let is_begun = self.talk(link).is_begun();
        if !is_begun && self.options.asks_credentials && self.env.rng.u8(..6) == 0 {
            return self.compose_unauthenticated(link, owner, key);
        }
        if !is_begun && (self.options.asks_credentials || self.env.rng.bool()) {
            return self.compose_hello(link, owner);
        }
        match self.env.rng.u16(..1_000) {
            0..420 => {
                let (wait_ms, lease_ms) = (self.a_wait(), self.a_lease());
                self.ask(link, Ask::Acquire { wait_ms, lease_ms }, owner, key);
                if self.env.rng.u8(..12) == 0 {
                    // The same again is a new attempt like any other.
                    self.ask(link, Ask::Acquire { wait_ms, lease_ms }, owner, key);
                }
            }
            420..650 => {
                let token = self.a_token(key);
                self.ask(link, Ask::Release { token }, owner, key);
            }
            650..740 => {
                let token = self.a_token(key);
                let lease_ms = self.a_lease();
                self.ask(link, Ask::Extend { lease_ms, token }, owner, key);
                if self.env.rng.u8(..3) == 0 {
                    // Repeated, or for less.
                    let lease_ms = self.env.rng.u32(1..=lease_ms);
                    let owner = self.fresh_owner();
                    self.ask(link, Ask::Extend { lease_ms, token }, owner, key);
                }
            }
            740..840 => {
                let queued: Vec<(u64, usize)> = self.talk(link).queued().collect();
                let (target, key) = match queued.len() {
                    0 => (owner - 1, key),
                    count => queued[self.env.rng.usize(..count)],
                };
                // On another key it is nobody's acquire.
                let key = if owner.is_multiple_of(6) {
                    (key + 1) % self.keys.len()
                } else {
                    key
                };
                self.ask(link, Ask::Cancel { target }, owner, key);
            }
            840..910 => self.ask(link, Ask::Query, owner, key),
            910..960 => self.talk(link).ask(Ask::Ping, owner, None),
            960..990 => self.compose_refused(link, owner, key),
            990..995 => self.compose_fatal(link, owner),
            _ => {}
        }
    }

    /// Composes a request for a key.
    pub(crate) fn ask(&mut self, link: usize, ask: Ask, owner: u64, key: usize) {
        let name = self.keys[key].clone();
        self.talk(link).ask(ask, owner, Some((key, &name)));
    }

    fn compose_hello(&mut self, link: usize, owner: u64) {
        let loops = self.options.loops;
        let wanted_loop = match self.env.rng.u8(..3) {
            0 => ANY_LOOP,
            _ => self.env.rng.u16(..loops),
        };
        let flags = pick(&mut self.env.rng, &[0, 1, 1, 3]);
        let hello = Ask::Hello { flags, wanted_loop };
        self.talk(link).ask(hello, owner, None);
    }

    /// A first frame that carries no credential, or a wrong one.
    fn compose_unauthenticated(&mut self, link: usize, owner: u64, key: usize) {
        let name = self.keys[key].clone();
        let credential = pick(
            &mut self.env.rng,
            &[&b""[..], b"sim:", b"sim", b"sim:a secre"],
        );
        let request = match self.env.rng.u8(..3) {
            0 => Request::Query { owner, key: &name },
            1 => Request::Acquire {
                owner,
                wait_ms: 0,
                lease_ms: 5_000,
                key: &name,
            },
            _ => Request::Hello {
                owner,
                version: 1,
                flags: 1,
                wanted_loop: ANY_LOOP,
                credential,
            },
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        let refused = Ask::Fatal(ErrorCode::Unauthenticated);
        self.talk(link).compose(refused, owner, None, &bytes);
    }

    fn compose_refused(&mut self, link: usize, owner: u64, key: usize) {
        let name = self.keys[key].clone();
        let (request, code, key) = match self.env.rng.u8(..3) {
            0 => (
                Request::Query {
                    owner,
                    key: b"\xFF",
                },
                ErrorCode::BadKey,
                None,
            ),
            1 => (
                Request::Acquire {
                    owner,
                    wait_ms: 5,
                    lease_ms: 0,
                    key: &name,
                },
                ErrorCode::BadTime,
                None,
            ),
            _ => (
                Request::Extend {
                    owner,
                    lease_ms: MAX_LEASE_MS + 1,
                    token: 5,
                    key: &name,
                },
                ErrorCode::BadTime,
                None,
            ),
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.talk(link)
            .compose(Ask::Refused(code), owner, key, &bytes);
    }

    fn compose_fatal(&mut self, link: usize, owner: u64) {
        let mut bytes = Vec::new();
        let (owner, code) = match self.env.rng.u8(..3) {
            0 => {
                bytes.push(b'?');
                (0, ErrorCode::UnknownOp)
            }
            1 => {
                let key = [b'x'; MAX_KEY_BYTES + 1];
                Request::Query { owner, key: &key }.encode(&mut bytes);
                bytes.pop();
                (owner, ErrorCode::BadFrame)
            }
            _ => {
                Request::Hello {
                    owner,
                    version: 9,
                    flags: 0,
                    wanted_loop: ANY_LOOP,
                    credential: self.options.credential(),
                }
                .encode(&mut bytes);
                (owner, ErrorCode::Unsupported)
            }
        };
        self.talk(link)
            .compose(Ask::Fatal(code), owner, None, &bytes);
    }

    fn a_wait(&mut self) -> u32 {
        match self.env.rng.u8(..8) {
            0..3 => 0,
            3 => self.env.rng.u32(1..20),
            4..7 => self.env.rng.u32(1..3_000),
            _ => 1_000 * self.env.rng.u32(1..40),
        }
    }

    fn a_lease(&mut self) -> u32 {
        match self.env.rng.u8(..8) {
            0..3 => self.env.rng.u32(1..60),
            3..7 => self.env.rng.u32(1..3_000),
            _ => 1_000 * self.env.rng.u32(1..30),
        }
    }

    /// A token that somebody was told for the key, or one that nobody was.
    fn a_token(&mut self, key: usize) -> u64 {
        let wrong = FIRST_WRONG_TOKEN + self.env.rng.u64(..1_000);
        let latest = match self.env.rng.u8(..16) {
            0 => return wrong,
            1..4 => self.env.rng.usize(..4),
            _ => 0,
        };
        self.env.ledger.token_of(key, latest).unwrap_or(wrong)
    }
}
