//! Every step the world can take, and what must hold whatever steps it took.

use super::state::*;
use super::world::{Fault, LONG, SHORT, World};
use stateright::{Model, Property};

/// One step; each is atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    // What clients do, or do not.
    Acquire {
        client: Client,
        key: Key,
        wait: Tick,
        lease: Tick,
    },
    Release(Client),
    Extend(Client),
    Cancel(Client),
    /// The client ends its side: FIN.
    Finish(Client),
    /// The connection is reset; its loop has not seen it yet.
    Reset(Client),
    /// The server dies and starts again.
    Crash,
    /// D falls.
    LowerD,
    // What happens sooner or later.
    /// A frame on a session is judged by its own loop.
    Judge(Client),
    /// A message between the loops is judged by this one.
    HandleMessage(Loop),
    /// The oldest reply of a session goes to its kernel, and to the client.
    Submit(Client),
    /// A loop learns that a session's peer is gone.
    NoticeEnd(Client),
    Fire {
        key: Key,
        wait_first: bool,
    },
    RaiseD,
    Tick,
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let tokens = Tokens { next: 1, mark: 1 };
        let client = |setup: &super::world::Setup| ClientState {
            asks_left: setup.asks,
            acquire: None,
            other: None,
            ticket: None,
            side: Side::Open,
            session: Session::Open,
            input: Vec::new(),
            output: Vec::new(),
        };
        let key = KeyState {
            holder: None,
            queue: Vec::new(),
            last_token: 0,
        };
        vec![State {
            now: 0,
            clients: self.clients.iter().map(client).collect(),
            keys: vec![key; self.owners.len()],
            rings: Default::default(),
            tokens: [tokens.clone(), tokens],
            durable: Durable {
                d: SHORT,
                wanted: SHORT,
                last_long: 0,
            },
            crashes_left: self.crashes,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.broken.is_none() {
            self.free_steps(state, steps);
            self.due_steps(state, steps);
            if self.may_tick(state) {
                steps.push(Step::Tick);
            }
        }
    }

    fn next_state(&self, last: &State, step: Step) -> Option<State> {
        let mut state = last.clone();
        match step {
            Step::Acquire {
                client,
                key,
                wait,
                lease,
            } => {
                let ask = Ask::Acquire { wait, lease };
                let sent = state.send(self, client, key, ask, lease);
                state.client(client).acquire = Some(sent);
            }
            Step::Release(client) => {
                let ticket = state.client(client).ticket.take()?;
                let ask = Ask::Release {
                    token: ticket.token,
                };
                let sent = state.send(self, client, ticket.key, ask, 0);
                state.client(client).other = Some(sent);
            }
            Step::Extend(client) => {
                let Ticket { key, token, .. } = state.client(client).ticket?;
                let lease = self.extend?;
                let ask = Ask::Extend { token, lease };
                let sent = state.send(self, client, key, ask, lease);
                state.client(client).other = Some(sent);
            }
            Step::Cancel(client) => {
                let Sent { id, key, .. } = state.client(client).acquire?;
                let sent = state.send(self, client, key, Ask::Cancel { target: id }, 0);
                state.client(client).other = Some(sent);
            }
            Step::Finish(client) => {
                let gives_up = self.clients[usize::from(client)].release_on_close;
                let client = state.client(client);
                client.side = Side::Finished;
                if gives_up {
                    client.ticket = None;
                }
            }
            // The client may not know: its ticket stays.
            Step::Reset(client) => {
                let client = state.client(client);
                client.side = Side::Reset;
                client.acquire = None;
                client.other = None;
            }
            Step::Crash => state.restart(self),
            Step::LowerD => {
                state.durable.d = SHORT;
                state.durable.wanted = SHORT;
            }
            Step::Judge(client) => {
                let request = state.client(client).input.remove(0);
                state.judge(self, request);
            }
            Step::HandleMessage(at) => state.handle_message(self, at),
            Step::Submit(client) => state.submit(self, client),
            Step::NoticeEnd(client) => state.notice_end(self, client),
            Step::Fire { key, wait_first } => state.fire(self, key, wait_first),
            Step::RaiseD => state.raise_d(),
            Step::Tick => state.tick(),
        }
        state.close_finished();
        Some(state)
    }

    fn properties(&self) -> Vec<Property<World>> {
        let mut properties = vec![
            Property::always(ONE_BELIEVES, |_, state: &State| {
                (0..state.keys.len() as Key).all(|key| state.believers(key) <= 1)
            }),
            Property::always(FREE_IS_EMPTY, |_, state: &State| {
                let is_in_order = |key: &KeyState| key.holder.is_some() || key.queue.is_empty();
                state.keys.iter().all(is_in_order)
            }),
            Property::always(NOTHING_OWED, |world: &World, state: &State| {
                world.is_under_way(state) || state.owes_nothing()
            }),
            Property::always(LOST_GRANTS_RETURN, |world: &World, state: &State| {
                let mut due = Vec::new();
                world.due_steps(state, &mut due);
                !due.is_empty() || !state.keeps_lost_grant()
            }),
            Property::always(STEPS_IN_ORDER, |_, state: &State| state.broken.is_none()),
        ];
        // That the instance is worth looking at.
        if self.clients.len() > 1 {
            properties.push(Property::sometimes(SOMEBODY_WAITS, |_, state: &State| {
                state.keys.iter().any(|key| !key.queue.is_empty())
            }));
        }
        if self.crashes > 0 {
            properties.push(Property::sometimes(
                BELIEF_OUTLIVES_CRASH,
                |_, state: &State| {
                    state.keys.iter().enumerate().any(|(key, found)| {
                        let nobody = found.holder.is_some_and(|holder| holder.grant.is_none());
                        nobody && state.believers(key as Key) == 1
                    })
                },
            ));
        }
        properties
    }
}

pub(crate) const ONE_BELIEVES: &str = "at most one client believes that it holds a key";
pub(crate) const FREE_IS_EMPTY: &str = "a free key has no waiter";
pub(crate) const NOTHING_OWED: &str = "what only clients could move owes nothing";
pub(crate) const LOST_GRANTS_RETURN: &str = "a grant nobody can have seen is given back at once";
pub(crate) const STEPS_IN_ORDER: &str = "no step breaks a rule";
const SOMEBODY_WAITS: &str = "somebody waits";
const BELIEF_OUTLIVES_CRASH: &str = "a lease is believed after the crash";

impl World {
    /// What may happen and need not.
    fn free_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (client, (setup, it)) in (0..).zip(self.clients.iter().zip(&state.clients)) {
            if it.side != Side::Open || it.session != Session::Open {
                continue;
            }
            if setup.may_finish {
                steps.push(Step::Finish(client));
            }
            if setup.may_reset {
                steps.push(Step::Reset(client));
            }
            if it.other.is_some() {
                continue;
            }
            if it.ticket.is_some() {
                steps.push(Step::Release(client));
            }
            if it.asks_left == 0 || state.now > self.busy_until {
                continue;
            }
            if it.ticket.is_some() && self.extend.is_some() {
                steps.push(Step::Extend(client));
            }
            if it.acquire.is_some() && self.cancels {
                steps.push(Step::Cancel(client));
            }
            if it.acquire.is_none() && it.ticket.is_none_or(|ticket| ticket.until == 0) {
                for key in 0..self.owners.len() as Key {
                    let acquires = self.acquires.iter();
                    steps.extend(acquires.map(|&(wait, lease)| Step::Acquire {
                        client,
                        key,
                        wait,
                        lease,
                    }));
                }
            }
        }
        if state.crashes_left > 0 {
            steps.push(Step::Crash);
        }
        if state.may_lower_d(self) {
            steps.push(Step::LowerD);
        }
    }

    /// What happens sooner or later without any time passing.
    fn due_steps(&self, state: &State, steps: &mut Vec<Step>) {
        for (client, it) in (0..).zip(&state.clients) {
            if it.session == Session::Gone {
                continue;
            }
            if !it.input.is_empty() {
                steps.push(Step::Judge(client));
            }
            if it.output.first().is_some_and(|reply| self.may_send(reply)) {
                steps.push(Step::Submit(client));
            }
            let is_all_read = it.input.is_empty() || it.side == Side::Reset;
            if it.side != Side::Open && it.session == Session::Open && is_all_read {
                steps.push(Step::NoticeEnd(client));
            }
        }
        for (at, ring) in (0..).zip(&state.rings) {
            if !ring.is_empty() {
                steps.push(Step::HandleMessage(at));
            }
        }
        for key in 0..self.owners.len() as Key {
            if state.is_due(key) {
                let is_over = |waiter: &Waiter| waiter.deadline <= state.now;
                let found = &state.keys[usize::from(key)];
                steps.push(Step::Fire {
                    key,
                    wait_first: false,
                });
                if found.queue.iter().any(is_over) {
                    steps.push(Step::Fire {
                        key,
                        wait_first: true,
                    });
                }
            }
        }
        if state.durable.wanted > state.durable.d {
            steps.push(Step::RaiseD);
        }
    }

    /// The reply that tells of a lease waits until D covers it.
    fn may_send(&self, reply: &Reply) -> bool {
        match reply.answer {
            Answer::Acquired { needs_d, .. } | Answer::Extended { needs_d } => {
                needs_d == 0 || self.has(Fault::ReplyBeforeDurable)
            }
            _ => true,
        }
    }

    /// Time passes while clients are busy, and while something waits for it.
    fn may_tick(&self, state: &State) -> bool {
        state.now < self.busy_until || state.awaits_time()
    }

    /// Whether the world moves on though no client does anything.
    fn is_under_way(&self, state: &State) -> bool {
        let mut due = Vec::new();
        self.due_steps(state, &mut due);
        !due.is_empty() || state.awaits_time()
    }
}

impl State {
    /// Writes a request; it is on its way.
    fn send(&mut self, world: &World, client: Client, key: Key, ask: Ask, lease: Tick) -> Sent {
        let now = self.now;
        let at = world.clients[usize::from(client)].at;
        let sender = self.client(client);
        // A release is free: it comes at most once for each grant.
        if !matches!(ask, Ask::Release { .. }) {
            sender.asks_left -= 1;
        }
        // What a session has outstanding of one kind differs in this.
        let id = sender.asks_left;
        let request = Request {
            client,
            id,
            key,
            ask,
        };
        let owner = world.owner(key);
        if at == owner {
            sender.input.push(request);
        } else {
            self.rings[usize::from(owner)].push(Message::Request(request));
        }
        Sent {
            id,
            key,
            at: now,
            lease,
        }
    }

    fn submit(&mut self, world: &World, client: Client) {
        let reply = self.client(client).output.remove(0);
        if let Answer::Acquired { key, token, .. } = reply.answer
            && let Some(holder) = &mut self.key(key).holder
            && let Some(grant) = &mut holder.grant
            && grant.token == token
        {
            grant.submitted = true;
        }
        if self.client(client).side != Side::Reset {
            self.receive(world, client, reply);
        }
    }

    /// The client reads a reply.
    fn receive(&mut self, world: &World, client: Client, Reply { id, answer }: Reply) {
        let now = self.now;
        let gives_up = world.clients[usize::from(client)].release_on_close;
        let it = self.client(client);
        let asked = match answer {
            Answer::Acquired { .. } | Answer::TimedOut => &mut it.acquire,
            _ => &mut it.other,
        };
        let Some(sent) = asked.take_if(|sent| sent.id == id) else {
            self.broken = Some(Broken::AnsweredTwice);
            return;
        };
        // The lease bound.
        match answer {
            Answer::Acquired { token, waited, .. } if it.side == Side::Open || !gives_up => {
                it.ticket = Some(Ticket {
                    key: sent.key,
                    token,
                    until: over(sent.at + waited + sent.lease, now),
                });
            }
            Answer::Extended { .. } => {
                if let Some(ticket) = &mut it.ticket {
                    ticket.until = ticket.until.max(over(sent.at + sent.lease, now));
                }
            }
            _ => {}
        }
    }

    fn tick(&mut self) {
        self.now += 1;
        for client in &mut self.clients {
            if let Some(ticket) = &mut client.ticket {
                ticket.until = over(ticket.until, self.now);
            }
        }
    }

    /// A session whose FIN was seen is closed once it owes nothing.
    fn close_finished(&mut self) {
        for client in &mut self.clients {
            let is_done = Session::Finishing {
                awaits_other_loop: false,
            };
            if client.session == is_done && client.output.is_empty() {
                client.session = Session::Gone;
            }
        }
    }

    /// How many clients go by a lease of the key now.
    fn believers(&self, key: Key) -> usize {
        let tickets = self.clients.iter().filter_map(|it| it.ticket);
        tickets
            .filter(|ticket| ticket.key == key && ticket.until > self.now)
            .count()
    }

    /// Whether a deadline of the server or of a client is ahead.
    fn awaits_time(&self) -> bool {
        let is_ahead = |tick: Tick| tick > self.now && tick != NEVER;
        let of_keys = self.keys.iter().any(|key| {
            key.holder.is_some_and(|holder| is_ahead(holder.timer))
                || key.queue.iter().any(|waiter| is_ahead(waiter.deadline))
        });
        let of_clients = self.clients.iter().filter_map(|it| it.ticket);
        of_keys || of_clients.into_iter().any(|ticket| is_ahead(ticket.until))
    }

    fn owes_nothing(&self) -> bool {
        let is_answered = |it: &ClientState| {
            it.acquire.is_none()
                && it.other.is_none()
                && it.output.is_empty()
                && (it.side == Side::Open || it.session == Session::Gone)
        };
        self.clients.iter().all(is_answered)
            && self
                .keys
                .iter()
                .all(|key| key.holder.is_none() && key.queue.is_empty())
    }

    /// A session that broke off can never see a grant that was not submitted.
    fn keeps_lost_grant(&self) -> bool {
        let grants = self.keys.iter().filter_map(|key| key.holder?.grant);
        grants.into_iter().any(|grant| {
            let client = &self.clients[usize::from(grant.client)];
            !grant.submitted && client.session == Session::Gone && client.output.is_empty()
        })
    }
}

/// The tick, or 0 if it is over: what is over does not tell states apart.
fn over(until: Tick, now: Tick) -> Tick {
    if until > now { until } else { 0 }
}

const _: () = assert!(SHORT < LONG);
