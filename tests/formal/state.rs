//! What a state of the model is made of. All times are ticks of one clock.

/// A client, and the session it has.
pub(crate) type Client = u8;
/// Index of a loop, of a key.
pub(crate) type Loop = u8;
pub(crate) type Key = u8;
/// A tick of the clock.
pub(crate) type Tick = u8;

/// No timer.
pub(crate) const NEVER: Tick = Tick::MAX;

/// The whole world at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) now: Tick,
    pub(crate) clients: Vec<ClientState>,
    pub(crate) keys: Vec<KeyState>,
    /// By receiving loop: the ring from the other one, oldest message first.
    pub(crate) rings: [Vec<Message>; 2],
    /// By loop: the next token, which is what a crash takes, and the first one that is
    /// not reserved, which it leaves.
    pub(crate) tokens: [Tokens; 2],
    pub(crate) durable: Durable,
    pub(crate) crashes_left: u8,
    /// What a step found broken as it was taken.
    pub(crate) broken: Option<Broken>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tokens {
    pub(crate) next: u8,
    pub(crate) mark: u8,
}

/// D, and what decides when it may fall.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Durable {
    pub(crate) d: Tick,
    /// What the longest lease that was granted asks it to be.
    pub(crate) wanted: Tick,
    /// When the last lease longer than [`super::world::SHORT`] began, or the server.
    pub(crate) last_long: Tick,
}

/// A rule that is seen to be broken at the step that breaks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Broken {
    TokensGrow,
    FirstInFirstOut,
    GrantedAfterItsWait,
    AnsweredTwice,
}

/// A client and, with its output, the session that its loop has of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ClientState {
    pub(crate) asks_left: u8,
    /// The acquire that is not answered.
    pub(crate) acquire: Option<Sent>,
    /// The release, extend or cancel that is not answered.
    pub(crate) other: Option<Sent>,
    pub(crate) ticket: Option<Ticket>,
    pub(crate) side: Side,
    pub(crate) session: Session,
    /// Frames on the way to its loop; only those for keys of that loop.
    pub(crate) input: Vec<Request>,
    /// Replies that its loop has not handed to the kernel.
    pub(crate) output: Vec<Reply>,
}

/// A request as its sender remembers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Sent {
    pub(crate) id: u8,
    pub(crate) key: Key,
    pub(crate) at: Tick,
    pub(crate) lease: Tick,
}

/// A lease as its client sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Ticket {
    pub(crate) key: Key,
    pub(crate) token: u8,
    /// The lease bound; 0 once it is over.
    pub(crate) until: Tick,
}

/// The client's side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Side {
    Open,
    /// It sent FIN and still reads.
    Finished,
    /// It is reset: nothing reaches it any more.
    Reset,
}

/// The loop's side of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Session {
    Open,
    /// Its client's FIN was seen; the other loop has more to say, or not.
    Finishing {
        awaits_other_loop: bool,
    },
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct KeyState {
    pub(crate) holder: Option<Holder>,
    pub(crate) queue: Vec<Waiter>,
    /// The token of its last grant, for the check that they grow.
    pub(crate) last_token: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Holder {
    /// Whom the grant was made to and its token; `None`: nobody known (a grace).
    pub(crate) grant: Option<Grant>,
    pub(crate) deadline: Tick,
    /// When the wheel fires.
    pub(crate) timer: Tick,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Grant {
    pub(crate) client: Client,
    pub(crate) token: u8,
    /// Whether the session's orderly end releases it.
    pub(crate) ends_with_session: bool,
    /// When that end came.
    pub(crate) closed_at: Option<Tick>,
    /// Whether its reply was handed to the kernel, for the check of lost grants.
    pub(crate) submitted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Waiter {
    pub(crate) client: Client,
    pub(crate) id: u8,
    pub(crate) arrival: Tick,
    pub(crate) deadline: Tick,
    pub(crate) lease: Tick,
    /// Its place among all that ever queued, for the check of first in, first out.
    pub(crate) place: u8,
}

/// A request on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Request {
    pub(crate) client: Client,
    pub(crate) id: u8,
    pub(crate) key: Key,
    pub(crate) ask: Ask,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Ask {
    Acquire { wait: Tick, lease: Tick },
    Release { token: u8 },
    Extend { token: u8, lease: Tick },
    Cancel { target: u8 },
}

/// A reply on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Reply {
    pub(crate) id: u8,
    pub(crate) answer: Answer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    /// `needs_d` is the D that this reply waits for; 0: none.
    Acquired {
        key: Key,
        token: u8,
        waited: Tick,
        needs_d: Tick,
    },
    TimedOut,
    Released,
    Extended {
        needs_d: Tick,
    },
    NotHeld,
    CancelDone,
}

/// What crosses between the two loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Message {
    Request(Request),
    Reply { client: Client, reply: Reply },
    SessionEnd { client: Client, orderly: bool },
    SessionEnded { client: Client },
    LostGrant { key: Key, token: u8 },
}
