//! What one native session has asked, and what it may be answered: every complete
//! request gets one reply, on each key in the order asked except where a queued
//! acquire is answered later, an error that ends the session last.

use leasehold::engine::time::Time;
use leasehold::protocol::{ErrorCode, Reply, Request};

use crate::clocks::Clock;
use crate::covered::name_of;
use crate::ledger::{Extension, Ledger, Told};

/// What one frame asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ask {
    Acquire {
        wait_ms: u32,
        lease_ms: u32,
    },
    Release {
        token: u64,
    },
    Extend {
        lease_ms: u32,
        token: u64,
    },
    Cancel {
        target: u64,
    },
    Query,
    Ping,
    Hello {
        flags: u8,
        wanted_loop: u16,
    },
    /// It is refused with this error, and the session stays open.
    Refused(ErrorCode),
    /// It is answered with this error, and the session is closed.
    Fatal(ErrorCode),
}

/// One frame and what became of it.
#[derive(Clone, Debug)]
pub(crate) struct Frame {
    pub(crate) ask: Ask,
    pub(crate) owner: u64,
    /// Index of the key, where there is one.
    pub(crate) key: Option<usize>,
    start: usize,
    end: usize,
    /// When its first byte was handed to the kernel.
    pub(crate) sent_at: Option<Time>,
    /// When its last byte was.
    pub(crate) completed_at: Option<Time>,
    /// The reply, and when it was told.
    pub(crate) answer: Option<(Reply, Time)>,
    /// The session has asked with this owner before.
    is_repeated: bool,
}

/// The last state that a query was told, and for which key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    pub(crate) key: usize,
    pub(crate) is_held: bool,
    pub(crate) remaining_ms: u32,
    pub(crate) waiters: u32,
}

/// A native session's side of its conversation.
#[derive(Debug)]
pub(crate) struct Talk {
    link: usize,
    /// What it says Hello with.
    credential: &'static [u8],
    /// Its client's.
    pub(crate) clock: Clock,
    loops: u16,
    frames: Vec<Frame>,
    stream: Vec<u8>,
    handed: usize,
    /// Indices of frames that are not answered.
    open: Vec<usize>,
    /// The first frame that ends the session.
    fatal: Option<usize>,
    /// The beginning of a reply.
    partial: Vec<u8>,
    /// By key, and one more for what has no key: the last frame answered at once.
    answered_upto: Vec<Option<usize>>,
    pub(crate) is_refused: bool,
    /// The client has ended its side in order.
    pub(crate) has_ended: bool,
    asked_release_on_close: bool,
    pub(crate) states: Vec<Seen>,
    /// All replies, in the order told.
    pub(crate) heard: Vec<Reply>,
}

impl Talk {
    pub(crate) fn new(link: usize, loops: u16, keys: usize, credential: &'static [u8]) -> Talk {
        Talk {
            link,
            credential,
            clock: Clock::TRUE,
            loops,
            frames: Vec::new(),
            stream: Vec::new(),
            handed: 0,
            open: Vec::new(),
            fatal: None,
            partial: Vec::new(),
            answered_upto: vec![None; keys + 1],
            is_refused: false,
            has_ended: false,
            asked_release_on_close: false,
            states: Vec::new(),
            heard: Vec::new(),
        }
    }

    /// Which connection this is.
    pub(crate) fn link(&self) -> usize {
        self.link
    }

    /// Whether a frame was composed.
    pub(crate) fn is_begun(&self) -> bool {
        !self.frames.is_empty()
    }

    /// Bytes composed and not handed to the kernel.
    pub(crate) fn unsent(&self) -> usize {
        self.stream.len() - self.handed
    }

    /// Composes a frame of these bytes.
    pub(crate) fn compose(&mut self, ask: Ask, owner: u64, key: Option<usize>, bytes: &[u8]) {
        let start = self.stream.len();
        self.stream.extend_from_slice(bytes);
        let index = self.frames.len();
        if let Ask::Fatal(_) = ask {
            self.fatal.get_or_insert(index);
        }
        if let Ask::Hello { flags, .. } = ask
            && flags & 1 != 0
        {
            self.asked_release_on_close = true;
        }
        let is_repeated = self.frames.iter().any(|frame| frame.owner == owner);
        self.frames.push(Frame {
            ask,
            owner,
            key,
            start,
            end: self.stream.len(),
            sent_at: None,
            completed_at: None,
            answer: None,
            is_repeated,
        });
        self.open.push(index);
    }

    /// Composes a request.
    pub(crate) fn ask(&mut self, ask: Ask, owner: u64, key: Option<(usize, &[u8])>) {
        let (index, name) = match key {
            Some((index, name)) => (Some(index), name),
            None => (None, &b""[..]),
        };
        let request = match ask {
            Ask::Acquire { wait_ms, lease_ms } => Request::Acquire {
                owner,
                wait_ms,
                lease_ms,
                key: name,
            },
            Ask::Release { token } => Request::Release {
                owner,
                token,
                key: name,
            },
            Ask::Extend { lease_ms, token } => Request::Extend {
                owner,
                lease_ms,
                token,
                key: name,
            },
            Ask::Cancel { target } => Request::Cancel {
                owner,
                target,
                key: name,
            },
            Ask::Query => Request::Query { owner, key: name },
            Ask::Ping => Request::Ping { owner, key: b"" },
            Ask::Hello { flags, wanted_loop } => Request::Hello {
                owner,
                version: 1,
                flags,
                wanted_loop,
                credential: self.credential,
            },
            Ask::Refused(_) | Ask::Fatal(_) => unreachable!("composed byte by byte"),
        };
        let mut bytes = Vec::new();
        request.encode(&mut bytes);
        self.compose(ask, owner, index, &bytes);
    }

    /// The client hands the next `count` bytes to its kernel.
    pub(crate) fn hand(&mut self, count: usize, now: Time, ledger: &mut Ledger) -> Vec<u8> {
        let upto = (self.handed + count).min(self.stream.len());
        let bytes = self.stream[self.handed..upto].to_vec();
        for &index in &self.open {
            let frame = &mut self.frames[index];
            if frame.start < upto && frame.sent_at.is_none() {
                frame.sent_at = Some(now);
                match (&frame.ask, frame.key) {
                    (Ask::Release { token }, Some(key)) => {
                        ledger.release_sent(key, *token, (self.link, index));
                    }
                    (&Ask::Extend { token, lease_ms }, Some(key)) => {
                        ledger.extend_sent(Extension {
                            key,
                            token,
                            link: self.link,
                            sent_at: now,
                            lease_ms,
                            clock: self.clock,
                        });
                    }
                    _ => {}
                }
            }
            if frame.end <= upto {
                frame.completed_at.get_or_insert(now);
            }
        }
        self.handed = upto;
        bytes
    }

    /// The client ends its side in order.
    pub(crate) fn end(&mut self, ledger: &mut Ledger) {
        self.has_ended = true;
        if self.asked_release_on_close {
            ledger.closing_session_ended(self.link);
        }
    }

    /// The worker has handed these bytes to its driver.
    pub(crate) fn hear(&mut self, bytes: &[u8], now: Time, ledger: &mut Ledger) {
        self.partial.extend_from_slice(bytes);
        let mut heard = 0;
        while let Some((reply, length)) =
            Reply::decode(&self.partial[heard..]).expect("replies are well formed")
        {
            heard += length;
            self.hear_reply(&reply, now, ledger);
        }
        self.partial.drain(..heard);
    }

    fn hear_reply(&mut self, reply: &Reply, now: Time, ledger: &mut Ledger) {
        self.heard.push(*reply);
        ledger.covered.note(name_of(reply));
        assert!(!self.is_refused, "after the last error: {reply:?}");
        let found = self.open.iter().position(|&index| {
            let frame = &self.frames[index];
            frame.owner == reply.owner() && frame.is_complete() && answers(reply, &frame.ask)
        });
        let Some(position) = found else {
            panic!(
                "session {} was told {reply:?} unasked, with these open: {:?}",
                self.link,
                self.open_frames().collect::<Vec<_>>()
            );
        };
        let index = self.open.remove(position);
        if let Some(fatal) = self.fatal {
            assert!(index <= fatal, "served after a fatal frame: {reply:?}");
        }
        let frame = self.frames[index].clone();
        self.frames[index].answer = Some((*reply, now));
        let sent_at = frame.sent_at.expect("it is complete");
        if let Reply::Error { code, .. } = reply {
            assert!(
                *code != ErrorCode::ShuttingDown || ledger.drains,
                "refused without a drain: {reply:?}"
            );
            if *code == ErrorCode::Overloaded {
                let key = frame.key.expect("only acquires are answered so");
                ledger.check_refusal(key, frame.completed_at.unwrap_or(sent_at));
            }
        }
        self.check_order(index, &frame, reply);
        match (reply, frame.ask, frame.key) {
            (
                &Reply::Acquired {
                    token, waited_ms, ..
                },
                Ask::Acquire { wait_ms, lease_ms },
                Some(key),
            ) => {
                assert!(
                    waited_ms == 0 || waited_ms < wait_ms,
                    "granted after its wait of {wait_ms} ms: {reply:?}"
                );
                let told = Told {
                    key,
                    token,
                    link: self.link,
                    sent_at: self.first_sent(frame.owner).unwrap_or(sent_at),
                    waited_ms,
                    lease_ms,
                    clock: self.clock,
                    closed_with_session: self.has_ended && self.asked_release_on_close,
                };
                ledger.granted(told, now);
            }
            (Reply::TimedOut { owner }, Ask::Acquire { wait_ms, .. }, key) => {
                let first_sent = self.first_sent(*owner).unwrap_or(sent_at);
                assert!(
                    wait_ms == 0
                        || now >= first_sent.plus_millis(wait_ms.into())
                        || self.has_ended
                        || self.may_be_cancelled(*owner, key),
                    "timed out at {now:?}, sent {sent_at:?} with {wait_ms} ms"
                );
            }
            (Reply::Released { .. }, Ask::Release { token }, Some(key)) => {
                ledger.released(key, token, sent_at, now);
            }
            (
                Reply::NotHeld { .. },
                Ask::Release { token } | Ask::Extend { token, .. },
                Some(key),
            ) => ledger.not_held(key, token, (self.link, index), now),
            (&Reply::Extended { remaining_ms, .. }, Ask::Extend { lease_ms, token }, Some(key)) => {
                let extension = Extension {
                    key,
                    token,
                    link: self.link,
                    sent_at,
                    lease_ms,
                    clock: self.clock,
                };
                ledger.extended(extension, remaining_ms, now);
            }
            (
                &Reply::State {
                    held,
                    remaining_ms,
                    waiters,
                    ..
                },
                Ask::Query,
                Some(key),
            ) => {
                assert!(held || (waiters == 0 && remaining_ms == 0), "{reply:?}");
                assert!(!held || remaining_ms > 0, "{reply:?}");
                ledger.state(key, sent_at, (held, remaining_ms), now);
                self.states.push(Seen {
                    key,
                    is_held: held,
                    remaining_ms,
                    waiters,
                });
            }
            (&Reply::CancelDone { cancelled, .. }, Ask::Cancel { target }, Some(key)) => {
                let of_target = |frame: &Frame| {
                    frame.owner == target
                        && frame.key == Some(key)
                        && matches!(frame.ask, Ask::Acquire { .. })
                };
                let before = &self.frames[..index];
                if cancelled {
                    let answered = before.iter().any(|it| of_target(it) && it.answer.is_some());
                    assert!(answered, "cancelled and not told so: {target}");
                } else {
                    let waits = before.iter().any(|it| of_target(it) && it.answer.is_none());
                    assert!(!waits, "{target} waits on and was not cancelled");
                }
            }
            (Reply::Welcome(welcome), Ask::Hello { flags, wanted_loop }, _) => {
                assert_eq!(welcome.flags, flags & 1);
                assert_eq!(welcome.loops, self.loops);
                assert!(wanted_loop == 0xFFFF || welcome.loop_index == wanted_loop);
                assert_eq!(self.heard.len(), 1, "Welcome is the first reply");
            }
            (Reply::Error { code, .. }, _, _) if code.closes_session() => {
                self.is_refused = true;
                for &earlier in self.open.iter().filter(|&&earlier| earlier < index) {
                    let frame = &self.frames[earlier];
                    assert!(
                        frame.is_queued_kind(),
                        "the error came before the reply to {frame:?}"
                    );
                }
                self.open.clear();
            }
            _ => {}
        }
    }

    /// On one key, and among what has none, replies come in the order asked, except
    /// those to acquires that may have queued; a later acquire is not granted before
    /// an earlier one is answered.
    fn check_order(&mut self, index: usize, frame: &Frame, reply: &Reply) {
        let is_grant = matches!(reply, Reply::Acquired { .. });
        if is_grant && !frame.is_repeated {
            let overtaken = self.open.iter().find(|&&earlier| {
                let earlier_frame = &self.frames[earlier];
                earlier < index
                    && earlier_frame.key == frame.key
                    && matches!(earlier_frame.ask, Ask::Acquire { .. })
                    && !earlier_frame.is_repeated
            });
            assert_eq!(
                overtaken.map(|&earlier| &self.frames[earlier]),
                None,
                "overtaken by {frame:?}"
            );
        }
        if frame.is_queued_kind() || frame.is_repeated || self.is_owner_repeated(frame.owner) {
            return;
        }
        let place = frame.key.unwrap_or(self.answered_upto.len() - 1);
        let upto = &mut self.answered_upto[place];
        assert!(
            upto.is_none_or(|upto| upto < index),
            "answered after a later request on the same key: {frame:?}"
        );
        *upto = Some(index);
        // What is answered at once was judged after everything before it on the key.
        let skipped = self.open.iter().find(|&&earlier| {
            let earlier_frame = &self.frames[earlier];
            earlier < index && earlier_frame.key == frame.key && !earlier_frame.is_queued_kind()
        });
        assert_eq!(
            skipped.map(|&earlier| &self.frames[earlier]),
            None,
            "skipped before {frame:?}"
        );
    }

    /// Complete frames that are not answered and whose answer is due.
    pub(crate) fn open_frames(&self) -> impl Iterator<Item = &Frame> {
        let fatal = self.fatal.unwrap_or(usize::MAX);
        self.open
            .iter()
            .filter(move |&&index| index <= fatal)
            .map(|&index| &self.frames[index])
            .filter(|frame| frame.is_complete())
    }

    /// Whether the server is to end the session by an error.
    pub(crate) fn awaits_refusal(&self) -> bool {
        !self.is_refused
            && self
                .fatal
                .is_some_and(|fatal| self.frames[fatal].is_complete())
    }

    /// What an ended session had asked and may have been done.
    pub(crate) fn abandon(&mut self, ledger: &mut Ledger) {
        for index in std::mem::take(&mut self.open) {
            let frame = &self.frames[index];
            let (Some(key), Some(sent_at)) = (frame.key, frame.sent_at) else {
                continue;
            };
            match frame.ask {
                Ask::Extend { token, lease_ms } => ledger.extend_unanswered(Extension {
                    key,
                    token,
                    link: self.link,
                    sent_at,
                    lease_ms,
                    clock: self.clock,
                }),
                Ask::Acquire { lease_ms, .. } if self.partial.first() == Some(&b'A') => {
                    ledger.grant_cut_off(key, lease_ms);
                }
                _ => {}
            }
        }
    }

    /// The server has closed the session in order: it has said all it owed.
    pub(crate) fn check_all_answered(&self) {
        assert!(self.partial.is_empty(), "a reply was sent in part");
        assert!(
            !self.awaits_refusal(),
            "closed without the error: {:?}",
            self.frames
        );
        let first = self.open_frames().next();
        assert!(
            first.is_none(),
            "session {} was closed and is owed a reply to {first:?}",
            self.link
        );
    }

    /// Whether the session's end releases its grants.
    pub(crate) fn releases_on_close(&self) -> bool {
        self.asked_release_on_close
    }

    /// Owners of acquires that may be queued, with their keys.
    pub(crate) fn queued(&self) -> impl Iterator<Item = (u64, usize)> {
        self.open
            .iter()
            .map(|&index| &self.frames[index])
            .filter(|frame| frame.is_queued_kind())
            .filter_map(|frame| Some((frame.owner, frame.key?)))
    }

    fn first_sent(&self, owner: u64) -> Option<Time> {
        self.frames
            .iter()
            .find(|frame| frame.owner == owner)
            .and_then(|frame| frame.sent_at)
    }

    fn is_owner_repeated(&self, owner: u64) -> bool {
        self.frames
            .iter()
            .any(|frame| frame.owner == owner && frame.is_repeated)
    }

    /// All requests, in the order composed.
    pub(crate) fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// All requests for a key, in the order composed.
    pub(crate) fn frames_of(&self, key: usize) -> impl Iterator<Item = &Frame> {
        let of_key = move |frame: &&Frame| frame.key == Some(key);
        self.frames.iter().filter(of_key)
    }

    /// When the server may have seen what it ends the session for.
    pub(crate) fn refused_from(&self) -> Option<Time> {
        self.frames[self.fatal?].completed_at
    }

    fn may_be_cancelled(&self, owner: u64, key: Option<usize>) -> bool {
        self.frames.iter().any(|frame| {
            frame.is_complete()
                && frame.key == key
                && matches!(frame.ask, Ask::Cancel { target } if target == owner)
        })
    }
}

impl Frame {
    pub(crate) fn is_complete(&self) -> bool {
        self.completed_at.is_some()
    }

    /// Whether it may come to wait or be granted.
    pub(crate) fn is_acquire(&self) -> bool {
        matches!(self.ask, Ask::Acquire { .. })
    }

    /// Whether it may be answered long after later requests on its key.
    pub(crate) fn is_queued_kind(&self) -> bool {
        matches!(self.ask, Ask::Acquire { wait_ms, .. } if wait_ms > 0)
    }
}

impl PartialEq for Frame {
    fn eq(&self, other: &Frame) -> bool {
        self.start == other.start
    }
}

/// Whether a request may be answered so.
fn answers(reply: &Reply, ask: &Ask) -> bool {
    match reply {
        Reply::Acquired { .. } | Reply::TimedOut { .. } | Reply::Busy { .. } => {
            matches!(ask, Ask::Acquire { .. })
        }
        Reply::Released { .. } => matches!(ask, Ask::Release { .. }),
        Reply::Extended { .. } => matches!(ask, Ask::Extend { .. }),
        Reply::NotHeld { .. } => matches!(ask, Ask::Release { .. } | Ask::Extend { .. }),
        Reply::State { .. } => matches!(ask, Ask::Query),
        Reply::CancelDone { .. } => matches!(ask, Ask::Cancel { .. }),
        Reply::Pong { .. } => matches!(ask, Ask::Ping),
        Reply::Welcome(_) => matches!(ask, Ask::Hello { .. }),
        Reply::Error { code, .. } => match ask {
            Ask::Refused(expected) | Ask::Fatal(expected) => code == expected,
            Ask::Acquire { .. } => {
                matches!(
                    code,
                    ErrorCode::TooManyQueued | ErrorCode::ShuttingDown | ErrorCode::Overloaded
                )
            }
            _ => false,
        },
    }
}
