//! The mesh against plain queues: any traffic between any loops, one step at a time.

use super::*;
use std::collections::VecDeque;

/// All that one loop has sent another and that was not received yet.
#[derive(Default)]
struct Line {
    queue: VecDeque<Message>,
    /// How many of them, from the front, are in the ring.
    in_ring: usize,
    /// A request was refused, and room not told of since.
    refused: bool,
    /// What the sender did for the receiver since the sender's turn last ended.
    news: Option<News>,
}

impl Line {
    fn spilled(&self) -> usize {
        self.queue.len() - self.in_ring
    }
}

struct Model {
    ports: Vec<MeshPort>,
    capacity: usize,
    /// By sender, then receiver.
    lines: Vec<Vec<Line>>,
    /// What each loop sleeps for.
    sleeping: Vec<Option<Until>>,
    next_owner: u64,
}

/// One step: who does it, to whom (where it matters), what, and how much.
#[derive(Clone, Copy, Debug)]
struct Step {
    actor: usize,
    other: usize,
    kind: Kind,
    amount: usize,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Request,
    DlmRequest,
    Send,
    Take,
    Room,
    EndTurn,
}

fn any_step() -> impl Strategy<Value = Step> {
    let kind = prop_oneof![
        4 => Just(Kind::Request),
        1 => Just(Kind::DlmRequest),
        4 => Just(Kind::Send),
        4 => Just(Kind::Take),
        1 => Just(Kind::Room),
        4 => Just(Kind::EndTurn),
    ];
    (0..4_usize, 0..4_usize, kind, 0..8_usize).prop_map(|(actor, other, kind, amount)| Step {
        actor,
        other,
        kind,
        amount,
    })
}

proptest! {
    #[test]
    fn loops_exchange_what_plain_queues_would(
        loops in 2..=4_u16,
        capacity in 1..=4_usize,
        steps in proptest::collection::vec(any_step(), 0..200),
    ) {
        let mut model = Model::new(loops, capacity);
        for step in steps {
            model.play(step);
            model.ports.iter().for_each(MeshPort::invariants);
        }
        model.settle();
    }
}

impl Model {
    fn new(loops: u16, capacity: usize) -> Model {
        let count = usize::from(loops);
        let line_row = || (0..count).map(|_| Line::default()).collect();
        Model {
            ports: build(loops, capacity),
            capacity,
            lines: (0..count).map(|_| line_row()).collect(),
            sleeping: vec![None; count],
            next_owner: 0,
        }
    }

    fn play(&mut self, step: Step) {
        let count = self.ports.len();
        let actor = step.actor % count;
        let other = (actor + 1 + step.other % (count - 1)) % count;
        // It may have been sleeping: then its own kernel woke it.
        self.ports[actor].handle_awake();
        self.sleeping[actor] = None;
        match step.kind {
            Kind::Request => self.request(actor, other, step.amount),
            Kind::DlmRequest => self.dlm_request(actor, other),
            Kind::Send => self.send(actor, other, step.amount),
            Kind::Take => self.take(actor, step.amount),
            Kind::Room => self.take_room(actor),
            Kind::EndTurn => self.end_turn(actor),
        }
    }

    fn owner(&mut self) -> u64 {
        self.next_owner += 1;
        self.next_owner
    }

    fn request(&mut self, from: usize, to: usize, amount: usize) {
        let owner = self.owner();
        let request = Request::Release {
            owner,
            token: !owner,
            key: &KEY_BYTES[..amount * 20],
        };
        let session = session(from as u16, amount as u32);
        let result = self.ports[from]
            .outbound
            .try_request(to as u16, session, true, &request);
        self.admitted(from, to, result.is_ok(), || {
            let mut slot = None;
            Message::write_request(&mut slot, session, true, &request);
            slot.expect("it was written")
        });
    }

    fn dlm_request(&mut self, from: usize, to: usize) {
        let id: Box<str> = self.owner().to_string().into();
        let call = || {
            Box::new(DlmCall {
                session: session(from as u16, 0),
                file_name: "name".into(),
                id: id.clone(),
                name: Some("proved".into()),
                operation: Operation::Get,
            })
        };
        let result = self.ports[from].outbound.try_dlm_request(to as u16, call());
        self.admitted(from, to, result.is_ok(), || Message::DlmRequest(call()));
    }

    /// Requests are refused exactly while the ring is full or either side spills.
    fn admitted(&mut self, from: usize, to: usize, admitted: bool, sent: impl Fn() -> Message) {
        assert_eq!(admitted, self.takes_requests(from, to), "{from} to {to}");
        if admitted {
            self.sent(from, to, sent());
        } else {
            self.lines[from][to].refused = true;
        }
    }

    fn takes_requests(&self, from: usize, to: usize) -> bool {
        let line = &self.lines[from][to];
        line.spilled() == 0 && line.in_ring < self.capacity && self.lines[to][from].spilled() == 0
    }

    fn send(&mut self, from: usize, to: usize, amount: usize) {
        let owner = self.owner();
        let port = &mut self.ports[from].outbound;
        let (target, here) = (to as u16, from as u16);
        let (theirs, ours) = (session(target, amount as u32), session(here, amount as u32));
        let grant = GrantRef {
            entry: amount as u32,
            token: owner,
        };
        let message = match amount {
            0 => {
                port.session_end(target, ours, false);
                Message::SessionEnd {
                    session: ours,
                    orderly: false,
                }
            }
            1 => {
                port.lost_grant(target, grant);
                Message::LostGrant(grant)
            }
            2 => {
                port.granted(theirs, owner, grant, 17);
                Message::Granted {
                    session: theirs,
                    owner,
                    grant,
                    granted_by: here,
                    waited_ms: 17,
                }
            }
            3 => {
                let answer = || DlmAnswer {
                    session: theirs,
                    reply: DlmReply::with_id(Status::Locked, owner.to_string()),
                };
                port.dlm_reply(Box::new(answer()));
                Message::DlmReply(Box::new(answer()))
            }
            _ => {
                let reply = Reply::Error {
                    owner,
                    code: ErrorCode::ShuttingDown,
                };
                port.reply(theirs, reply);
                Message::Reply {
                    session: theirs,
                    reply,
                }
            }
        };
        self.sent(from, to, message);
    }

    fn sent(&mut self, from: usize, to: usize, message: Message) {
        let line = &mut self.lines[from][to];
        if line.spilled() == 0 && line.in_ring < self.capacity {
            line.in_ring += 1;
        }
        line.queue.push_back(message);
        line.news = Some(News::Message);
    }

    fn flush(&mut self, from: usize) {
        for line in &mut self.lines[from] {
            let moved = line.spilled().min(self.capacity - line.in_ring);
            line.in_ring += moved;
            if moved > 0 {
                line.news = Some(News::Message);
            }
        }
    }

    /// A batch, received to its end.
    fn take(&mut self, to: usize, budget: usize) {
        let count = self.ports[to].gather(budget);
        self.flush(to);
        let arrived: usize = self.lines.iter().map(|row| row[to].in_ring).sum();
        assert!(count <= budget.min(arrived));
        assert!(count > 0 || budget == 0 || arrived == 0, "it goes on");
        let lines = &mut self.lines;
        let mut drained = 0;
        self.ports[to].inbound.drain(|message| {
            drained += 1;
            // Every message sent here tells the sender in its own way or is unique.
            let from = lines
                .iter()
                .position(|row| row[to].queue.front() == Some(&*message))
                .expect("it is the first that somebody sent");
            let line = &mut lines[from][to];
            line.queue.pop_front();
            line.in_ring = line.in_ring.checked_sub(1).expect("it was in the ring");
            let news = &mut lines[to][from].news;
            *news = (*news).max(Some(News::Room));
        });
        assert_eq!(drained, count);
        self.ports[to]
            .inbound
            .drain(|message| panic!("again: {message:?}"));
    }

    fn take_room(&mut self, from: usize) {
        let expected: Vec<u16> = (0..self.ports.len())
            .filter(|&to| self.lines[from][to].refused && self.takes_requests(from, to))
            .map(|to| to as u16)
            .collect();
        let port = &mut self.ports[from].outbound;
        let told: Vec<u16> = std::iter::from_fn(|| port.poll_room()).collect();
        assert_eq!(told, expected);
        for to in told {
            self.lines[from][usize::from(to)].refused = false;
        }
    }

    fn end_turn(&mut self, actor: usize) {
        let woken = wakes(&mut self.ports[actor]);
        self.flush(actor);
        let expected: Vec<u16> = (0..self.ports.len())
            .filter(
                |&to| match (self.lines[actor][to].news, self.sleeping[to]) {
                    (Some(News::Message), Some(_)) => true,
                    (Some(News::Room), Some(until)) => until == Until::MessageOrRoom,
                    _ => false,
                },
            )
            .map(|to| to as u16)
            .collect();
        assert_eq!(woken, expected);
        for to in woken {
            self.sleeping[usize::from(to)] = None;
        }
        for line in &mut self.lines[actor] {
            line.news = None;
        }
        let (sleeps, has_work) = (self.ports[actor].try_sleep(), self.has_work(actor));
        assert_eq!(sleeps, !has_work);
        if sleeps {
            let wants_room = self.lines[actor]
                .iter()
                .any(|line| line.refused || line.spilled() > 0);
            self.sleeping[actor] = Some(if wants_room {
                Until::MessageOrRoom
            } else {
                Until::Message
            });
        }
    }

    fn has_work(&self, actor: usize) -> bool {
        (0..self.ports.len()).any(|other| {
            let outbound = &self.lines[actor][other];
            self.lines[other][actor].in_ring > 0
                || (outbound.spilled() > 0 && outbound.in_ring < self.capacity)
                || (outbound.refused && self.takes_requests(actor, other))
        })
    }

    /// From here on nobody sends, and who sleeps stays asleep until woken: everything
    /// arrives all the same.
    fn settle(&mut self) {
        while let Some(actor) = self.sleeping.iter().position(Option::is_none) {
            self.ports[actor].handle_awake();
            let before = self.unreceived();
            self.take(actor, 2);
            self.take_room(actor);
            self.end_turn(actor);
            let went_on = self.unreceived() < before || self.sleeping[actor].is_some();
            assert!(went_on, "loop {actor} is awake for nothing");
        }
        assert_eq!(self.unreceived(), 0, "everybody sleeps on it");
        let refused = self.lines.iter().flatten().any(|line| line.refused);
        assert!(!refused, "everybody sleeps on room that nobody was told of");
    }

    fn unreceived(&self) -> usize {
        self.lines
            .iter()
            .flatten()
            .map(|line| line.queue.len())
            .sum()
    }
}
