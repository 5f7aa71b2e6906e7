//! One connection as the two kernels have it: bytes on their way, how much fits, how
//! each side ended it.

use std::collections::VecDeque;

use leasehold::engine::time::Time;
use leasehold::worker::{PeerEnd, Protocol};

use crate::clocks::Clock;
use crate::dlm_talk::DlmTalk;
use crate::ledger::Ledger;
use crate::talk::Talk;

/// How far the server's side has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Server {
    /// It sends and receives, or has not accepted yet.
    Open,
    /// It has shut down its sending side.
    ShutDown,
    /// The connection is closed.
    Closed,
}

/// What is said on a connection.
#[derive(Debug)]
pub(crate) enum Conversation {
    Native(Box<Talk>),
    Dlm(Box<DlmTalk>),
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) conversation: Conversation,
    /// What the server has not read.
    pub(crate) to_server: VecDeque<u8>,
    /// How the client has ended its side, behind those bytes.
    pub(crate) end: Option<PeerEnd>,
    /// The server was told of that.
    pub(crate) end_seen: bool,
    /// Bytes that the kernel takes from the server until the client reads.
    pub(crate) room: usize,
    /// There is something to read that the driver was not told of.
    pub(crate) read_edge: bool,
    /// There is room again that it was not told of.
    pub(crate) room_edge: bool,
    pub(crate) server: Server,
    /// When the worker was first told that its output is stuck.
    pub(crate) blocked_at: Option<Time>,
    /// Since when it is stuck, nothing of it having been taken meanwhile.
    pub(crate) stuck_since: Option<Time>,
    /// When the server shut down its sending side.
    pub(crate) shut_down_at: Option<Time>,
    /// When the client ended its side, or the server began to close all.
    pub(crate) ended_at: Option<Time>,
    /// It is closed, and whatever it had asked has been judged by then.
    pub(crate) settled_at: Option<Time>,
    /// The server may have ended it for a limit that it kept over.
    pub(crate) may_be_ended: bool,
    /// The server closes all.
    pub(crate) is_sent_away: bool,
    /// Bytes that the driver took and the kernel has not.
    pub(crate) in_flight: usize,
    /// The client whose connection it is, and which of its connections.
    pub(crate) made_by: Option<(usize, u32)>,
}

impl Link {
    pub(crate) fn new(conversation: Conversation, room: usize) -> Link {
        Link {
            conversation,
            to_server: VecDeque::new(),
            end: None,
            end_seen: false,
            room,
            read_edge: false,
            room_edge: false,
            server: Server::Open,
            blocked_at: None,
            stuck_since: None,
            shut_down_at: None,
            ended_at: None,
            settled_at: None,
            may_be_ended: false,
            is_sent_away: false,
            in_flight: 0,
            made_by: None,
        }
    }

    pub(crate) fn protocol(&self) -> Protocol {
        match self.conversation {
            Conversation::Native(_) => Protocol::Native,
            Conversation::Dlm(_) => Protocol::Dlm,
        }
    }

    /// Its client looks at this clock.
    pub(crate) fn set_clock(&mut self, clock: Clock) {
        match &mut self.conversation {
            Conversation::Native(talk) => talk.clock = clock,
            Conversation::Dlm(talk) => talk.clock = clock,
        }
    }

    pub(crate) fn is_reset(&self) -> bool {
        self.end == Some(PeerEnd::Broken)
    }

    /// Whether the server finds something when it reads.
    pub(crate) fn has_input(&self) -> bool {
        !self.to_server.is_empty() || (self.end.is_some() && !self.end_seen)
    }

    /// Bytes that the client has composed and may send.
    pub(crate) fn unsent(&self) -> usize {
        match &self.conversation {
            _ if self.end.is_some() || self.server == Server::Closed => 0,
            Conversation::Native(talk) => talk.unsent(),
            Conversation::Dlm(talk) => talk.unsent(),
        }
    }

    /// Whether it is a DLM connection whose request has not come as a whole.
    pub(crate) fn is_asking(&self) -> bool {
        match &self.conversation {
            Conversation::Native(_) => false,
            Conversation::Dlm(talk) => !talk.is_complete(),
        }
    }

    /// The client sends the next `count` bytes.
    pub(crate) fn send(&mut self, count: usize, now: Time, ledger: &mut Ledger) {
        let bytes = match &mut self.conversation {
            Conversation::Native(talk) => talk.hand(count, now, ledger),
            Conversation::Dlm(talk) => talk.hand(count, now, ledger),
        };
        self.to_server.extend(bytes);
        self.read_edge = true;
    }

    /// The client ends its side. At a reset, `kept` bytes still reach the server.
    pub(crate) fn finish(&mut self, how: PeerEnd, kept: usize, ledger: &mut Ledger) {
        self.end = Some(how);
        self.read_edge = true;
        if how == PeerEnd::Broken {
            self.to_server.truncate(kept);
            // Whatever is sent now vanishes.
            self.make_room(1 << 40);
        } else if let Conversation::Native(talk) = &mut self.conversation {
            talk.end(ledger);
        }
    }

    /// The client makes room for `count` bytes, having read some.
    pub(crate) fn make_room(&mut self, count: usize) {
        self.room += count;
        self.room_edge = true;
    }

    /// The worker has let these bytes go.
    pub(crate) fn hear(&mut self, bytes: &[u8], now: Time, ledger: &mut Ledger) {
        assert_eq!(self.server, Server::Open, "told after the end");
        match &mut self.conversation {
            Conversation::Native(talk) => talk.hear(bytes, now, ledger),
            Conversation::Dlm(talk) => talk.hear(bytes, now, ledger),
        }
    }

    /// The server has closed the connection.
    pub(crate) fn closed(&mut self, now: Time, ledger: &mut Ledger) {
        assert_ne!(self.server, Server::Closed, "closed twice");
        let is_undisturbed = !self.is_reset() && !self.may_be_ended;
        if is_undisturbed {
            assert_eq!(self.in_flight, 0, "closed with bytes under way");
            match &mut self.conversation {
                Conversation::Native(talk) => {
                    assert!(
                        talk.has_ended || talk.is_refused || self.is_sent_away,
                        "closed for no reason: {talk:?}"
                    );
                    if !self.is_sent_away {
                        talk.check_all_answered();
                    }
                }
                Conversation::Dlm(talk) => {
                    assert!(
                        talk.is_answered || !talk.is_complete() || self.is_sent_away,
                        "closed without an answer: {talk:?}"
                    );
                }
            }
        }
        match &mut self.conversation {
            Conversation::Native(talk) => {
                if is_undisturbed
                    && !self.is_sent_away
                    && !talk.is_refused
                    && talk.releases_on_close()
                {
                    ledger.closing_session_closed(talk.link(), now);
                }
                talk.abandon(ledger);
            }
            Conversation::Dlm(talk) => talk.abandon(ledger),
        }
        self.server = Server::Closed;
    }
}
