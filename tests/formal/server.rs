//! What the server does: the steps of an engine and of the loops around it.

use super::state::*;
use super::world::{Fault, LONG, SHORT, World};

/// Why a lease began, for the reply that tells of it.
struct Begun {
    client: Client,
    id: u8,
    arrival: Tick,
    lease: Tick,
}

impl State {
    pub(crate) fn key(&mut self, key: Key) -> &mut KeyState {
        &mut self.keys[usize::from(key)]
    }

    pub(crate) fn client(&mut self, client: Client) -> &mut ClientState {
        &mut self.clients[usize::from(client)]
    }

    /// `Engine::handle_request`.
    pub(crate) fn judge(&mut self, world: &World, request: Request) {
        let now = match world.has(Fault::StaleClock) {
            true => self.now.saturating_sub(1),
            false => self.now,
        };
        let Request {
            client,
            id,
            key,
            ask,
        } = request;
        self.settle(world, key, now);
        match ask {
            Ask::Acquire { wait, lease } => {
                let begun = Begun {
                    client,
                    id,
                    arrival: now,
                    lease,
                };
                if self.key(key).holder.is_none() {
                    self.grant(world, key, now, &begun);
                } else if wait == 0 {
                    self.tell(world, key, client, id, Answer::TimedOut);
                } else {
                    self.enqueue(key, &begun, now + wait);
                }
            }
            Ask::Release { token } => {
                let fits = self.is_held_by(key, token)
                    || world.has(Fault::AnyTokenReleases) && self.key(key).holder.is_some();
                if fits {
                    self.tell(world, key, client, id, Answer::Released);
                    self.hand_over(world, key, now);
                } else {
                    self.tell(world, key, client, id, Answer::NotHeld);
                }
            }
            Ask::Extend { token, lease } if self.is_held_by(key, token) => {
                self.extend(world, key, now + lease);
                let needs_d = self.note_lease(lease);
                self.tell(world, key, client, id, Answer::Extended { needs_d });
            }
            Ask::Extend { .. } => self.tell(world, key, client, id, Answer::NotHeld),
            Ask::Cancel { target } => {
                self.cancel(world, key, client, target);
                self.tell(world, key, client, id, Answer::CancelDone);
            }
        }
    }

    fn enqueue(&mut self, key: Key, begun: &Begun, deadline: Tick) {
        let queue = &mut self.key(key).queue;
        let place = queue.last().map_or(0, |waiter| waiter.place + 1);
        queue.push(Waiter {
            client: begun.client,
            id: begun.id,
            arrival: begun.arrival,
            deadline,
            lease: begun.lease,
            place,
        });
    }

    fn extend(&mut self, world: &World, key: Key, deadline: Tick) {
        let Some(holder) = &mut self.key(key).holder else {
            return;
        };
        if deadline > holder.deadline || world.has(Fault::ExtendShortens) {
            holder.deadline = deadline;
            holder.timer = match world.has(Fault::ExtendLosesTimer) {
                true => NEVER,
                false => deadline,
            };
        }
    }

    fn cancel(&mut self, world: &World, key: Key, client: Client, target: u8) {
        let queue = &mut self.key(key).queue;
        let is_meant = |waiter: &Waiter| (waiter.client, waiter.id) == (client, target);
        let Some(place) = queue.iter().position(is_meant) else {
            return;
        };
        if !world.has(Fault::CancelLeavesWaiter) {
            queue.remove(place);
        }
        if !world.has(Fault::CancelAnswersNobody) {
            self.tell(world, key, client, target, Answer::TimedOut);
        }
    }

    /// `Engine::settle`: what time or a closed session has decided happens first.
    fn settle(&mut self, world: &World, key: Key, now: Tick) {
        let Some(holder) = self.key(key).holder else {
            return;
        };
        let closed_at = holder.grant.and_then(|grant| grant.closed_at);
        if closed_at.is_some_and(|closed_at| closed_at < holder.deadline) {
            self.hand_over(world, key, now);
        } else if now >= holder.deadline {
            let grace_end = holder.deadline + world.expiry_grace;
            if holder.grant.is_some() && now < grace_end {
                self.key(key).holder = Some(Holder::nobody(grace_end));
            } else {
                self.hand_over(world, key, now);
            }
        }
    }

    /// `Engine::hand_over`.
    fn hand_over(&mut self, world: &World, key: Key, now: Tick) {
        self.key(key).holder = None;
        if world.has(Fault::FreeWithWaiters) {
            return;
        }
        while !self.key(key).queue.is_empty() {
            let queue = &mut self.key(key).queue;
            let next = match world.has(Fault::LastInFirstOut) {
                true => queue.len() - 1,
                false => 0,
            };
            let waiter = queue.remove(next);
            let is_overtaker = queue.iter().any(|other| other.place < waiter.place);
            if now >= waiter.deadline && !world.has(Fault::GrantAfterWait) {
                self.tell(world, key, waiter.client, waiter.id, Answer::TimedOut);
                continue;
            }
            if is_overtaker {
                self.broken = Some(Broken::FirstInFirstOut);
            }
            if self.now >= waiter.deadline {
                self.broken = Some(Broken::GrantedAfterItsWait);
            }
            let begun = Begun {
                client: waiter.client,
                id: waiter.id,
                arrival: waiter.arrival,
                lease: waiter.lease,
            };
            return self.grant(world, key, now, &begun);
        }
    }

    fn grant(&mut self, world: &World, key: Key, now: Tick, begun: &Begun) {
        let &Begun {
            client,
            id,
            arrival,
            lease,
        } = begun;
        let tokens = &mut self.tokens[usize::from(world.owner(key))];
        let token = tokens.next;
        tokens.next += 1;
        // Reserved in blocks, before a token of them is sent.
        tokens.mark = tokens.mark.max(token.next_multiple_of(2) + 1);
        if token <= self.key(key).last_token {
            self.broken = Some(Broken::TokensGrow);
        }
        let start = match world.has(Fault::WaitingCostsLease) {
            true => arrival,
            false => now,
        };
        let deadline = start + lease;
        let found = self.key(key);
        found.last_token = token;
        found.holder = Some(Holder {
            grant: Some(Grant {
                client,
                token,
                ends_with_session: world.clients[usize::from(client)].release_on_close,
                closed_at: None,
                submitted: false,
            }),
            deadline,
            timer: deadline,
        });
        let needs_d = self.note_lease(lease);
        let waited = now.saturating_sub(arrival) + Tick::from(world.has(Fault::WaitedRoundedUp));
        let answer = Answer::Acquired {
            key,
            token,
            waited,
            needs_d,
        };
        self.tell(world, key, client, id, answer);
    }

    /// A lease was granted or lengthened. Says which D its reply has to wait for.
    fn note_lease(&mut self, lease: Tick) -> Tick {
        if lease <= SHORT {
            return 0;
        }
        let durable = &mut self.durable;
        durable.wanted = LONG;
        durable.last_long = self.now;
        if durable.d < LONG { LONG } else { 0 }
    }

    fn is_held_by(&self, key: Key, token: u8) -> bool {
        let holder = self.keys[usize::from(key)].holder;
        holder
            .and_then(|holder| holder.grant)
            .is_some_and(|grant| grant.token == token)
    }

    /// A reply of the key's loop: to a session there, or across the ring.
    fn tell(&mut self, world: &World, key: Key, client: Client, id: u8, answer: Answer) {
        let reply = Reply { id, answer };
        let at = world.clients[usize::from(client)].at;
        if at == world.owner(key) {
            self.append(world, client, reply);
        } else {
            self.rings[usize::from(at)].push(Message::Reply { client, reply });
        }
    }

    /// `SessionOutbox`: the session's output, or, for a grant that finds it gone, back.
    fn append(&mut self, world: &World, client: Client, reply: Reply) {
        if self.client(client).session != Session::Gone {
            self.client(client).output.push(reply);
        } else if let Answer::Acquired { key, token, .. } = reply.answer
            && !world.has(Fault::SkipLostGrant)
        {
            self.give_back(world, client, key, token);
        }
    }

    fn give_back(&mut self, world: &World, client: Client, key: Key, token: u8) {
        let owner = world.owner(key);
        if world.clients[usize::from(client)].at == owner {
            self.take_back(world, key, token);
        } else {
            self.rings[usize::from(owner)].push(Message::LostGrant { key, token });
        }
    }

    /// `Engine::handle_lost_grant`.
    fn take_back(&mut self, world: &World, key: Key, token: u8) {
        if self.is_held_by(key, token) {
            self.settle(world, key, self.now);
            if self.is_held_by(key, token) {
                self.hand_over(world, key, self.now);
            }
        }
    }

    /// `Engine::handle_session_end`, for the keys of one loop.
    fn end_session(&mut self, world: &World, at: Loop, client: Client, orderly: bool) {
        for key in 0..world.owners.len() as Key {
            if world.owner(key) != at {
                continue;
            }
            if !world.has(Fault::EndLeavesWaiters) {
                let is_of_client = |waiter: &Waiter| waiter.client == client;
                let queue = &mut self.key(key).queue;
                let gone: Vec<Waiter> = queue.iter().copied().filter(is_of_client).collect();
                queue.retain(|waiter| !is_of_client(waiter));
                for waiter in gone {
                    if orderly && !world.has(Fault::EndAnswersNobody) {
                        self.tell(world, key, client, waiter.id, Answer::TimedOut);
                    }
                }
            }
            let now = self.now;
            if let Some(holder) = &mut self.key(key).holder
                && let Some(grant) = &mut holder.grant
                && grant.client == client
                && grant.ends_with_session
            {
                if orderly || world.has(Fault::ResetReleases) {
                    grant.closed_at = Some(now);
                } else {
                    grant.ends_with_session = false;
                }
            }
        }
    }

    /// The loop learns that the client's side has ended: `Worker::handle_end`.
    pub(crate) fn notice_end(&mut self, world: &World, client: Client) {
        let at = world.clients[usize::from(client)].at;
        let orderly = self.client(client).side == Side::Finished;
        let spans_loops = world.owners.iter().any(|&owner| owner != at);
        if spans_loops {
            self.rings[usize::from(1 - at)].push(Message::SessionEnd { client, orderly });
        }
        self.client(client).session = match orderly {
            true => Session::Finishing {
                awaits_other_loop: spans_loops,
            },
            false => Session::Gone,
        };
        self.end_session(world, at, client, orderly);
        if !orderly {
            self.client(client).input.clear();
            self.abandon_output(world, client);
        }
    }

    fn abandon_output(&mut self, world: &World, client: Client) {
        for reply in std::mem::take(&mut self.client(client).output) {
            if let Answer::Acquired { key, token, .. } = reply.answer {
                self.give_back(world, client, key, token);
            }
        }
        if world.has(Fault::TakeBackToldGrant) {
            for key in 0..world.owners.len() as Key {
                if let Some(grant) = self.key(key).holder.and_then(|holder| holder.grant)
                    && grant.client == client
                {
                    self.give_back(world, client, key, grant.token);
                }
            }
        }
    }

    /// The next message of a ring is judged: `Worker::handle_message`.
    pub(crate) fn handle_message(&mut self, world: &World, at: Loop) {
        match self.rings[usize::from(at)].remove(0) {
            Message::Request(request) => self.judge(world, request),
            Message::Reply { client, reply } => self.append(world, client, reply),
            Message::SessionEnd { client, orderly } => {
                self.end_session(world, at, client, orderly);
                self.rings[usize::from(1 - at)].push(Message::SessionEnded { client });
            }
            Message::SessionEnded { client } => {
                if let Session::Finishing { awaits_other_loop } = &mut self.client(client).session {
                    *awaits_other_loop = false;
                }
            }
            Message::LostGrant { key, token } => self.take_back(world, key, token),
        }
    }

    /// Whether a timer of the key is due, or a closed session's grant waits.
    pub(crate) fn is_due(&self, key: Key) -> bool {
        let KeyState { holder, queue, .. } = &self.keys[usize::from(key)];
        let is_closed = |holder: &Holder| holder.grant.is_some_and(|it| it.closed_at.is_some());
        holder.is_some_and(|holder| holder.timer <= self.now || is_closed(&holder))
            || queue.iter().any(|waiter| waiter.deadline <= self.now)
    }

    /// `Engine::handle_timeouts`, one key of it: the lease first, or a wait first.
    pub(crate) fn fire(&mut self, world: &World, key: Key, wait_first: bool) {
        if !wait_first {
            self.settle(world, key, self.now);
        }
        let now = self.now;
        let queue = &mut self.key(key).queue;
        let (over, rest) = queue.iter().partition(|waiter| now >= waiter.deadline);
        *queue = rest;
        let over: Vec<Waiter> = over;
        for waiter in over {
            self.tell(world, key, waiter.client, waiter.id, Answer::TimedOut);
        }
    }

    /// The longer D is on disk: the replies that waited for it are free.
    pub(crate) fn raise_d(&mut self) {
        self.durable.d = self.durable.wanted;
        let outputs = self.clients.iter_mut().flat_map(|it| &mut it.output);
        let crossing = self.rings.iter_mut().flatten().filter_map(|it| match it {
            Message::Reply { reply, .. } => Some(reply),
            _ => None,
        });
        for reply in outputs.chain(crossing) {
            if let Answer::Acquired { needs_d, .. } | Answer::Extended { needs_d } =
                &mut reply.answer
            {
                *needs_d = 0;
            }
        }
    }

    /// Whether D may fall: as long as D has passed since it was needed last.
    pub(crate) fn may_lower_d(&self, world: &World) -> bool {
        let Durable { d, last_long, .. } = self.durable;
        d > SHORT && (self.now >= last_long + d || world.has(Fault::DFallsAtOnce))
    }

    /// The process dies, and another one starts in its place.
    pub(crate) fn restart(&mut self, world: &World) {
        self.crashes_left -= 1;
        self.rings = Default::default();
        for client in &mut self.clients {
            // Its session is broken: what was not answered is Indeterminate.
            client.acquire = None;
            client.other = None;
            client.input.clear();
            client.output.clear();
            client.session = match client.side {
                Side::Open => Session::Open,
                Side::Finished | Side::Reset => Session::Gone,
            };
        }
        let grace_end = self.now + self.durable.d + world.expiry_grace;
        for key in &mut self.keys {
            key.queue.clear();
            key.holder = match world.has(Fault::GrantDuringGrace) {
                true => None,
                false => Some(Holder::nobody(grace_end)),
            };
        }
        for tokens in &mut self.tokens {
            tokens.next = match world.has(Fault::TokensBeginAnew) {
                true => 1,
                false => tokens.mark,
            };
        }
        self.durable.wanted = self.durable.d;
        self.durable.last_long = self.now;
    }
}

impl Holder {
    fn nobody(until: Tick) -> Holder {
        Holder {
            grant: None,
            deadline: until,
            timer: until,
        }
    }
}
