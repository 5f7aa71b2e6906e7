//! The native protocol's side of a worker: batches of frames, Hello, who is
//! refused before a key's state is looked at.

use super::outbox::mark_dirty;
use super::{SESSION_STEPS_PER_TURN, Worker, list_backlogged};
use crate::engine::Caller;
use crate::engine::time::Time;
use crate::ids::SessionId;
use crate::protocol::{self, ErrorCode, Reply, Request, Welcome, flags};
use crate::session::{Greeting, Phase};

/// What came of one request.
enum Judged {
    /// It is answered, queued or on its way to its key's loop.
    Done,
    /// It waits for room on the way to this loop, and everything after it.
    NoRoom(u16),
    /// It is a Hello that another loop will answer, and judge everything after it.
    Moves,
}

impl Worker {
    /// Judges what waits in the session's own buffer.
    pub(super) fn judge_input(&mut self, id: SessionId, now: Time) {
        let Some(session) = self.sessions.get_mut(id) else {
            return;
        };
        let mut input = std::mem::take(&mut session.input);
        let judged = self.judge_batch(id, &input, now);
        match self.sessions.get_mut(id) {
            Some(session) if session.backlogged || session.is_moving() => {
                input.drain(..judged);
                session.input = input;
            }
            _ => {
                self.keep_rest(id, &input[judged..]);
                self.buffers.give(input);
            }
        }
    }

    /// Keeps an unfinished frame, or frames over the turn's budget, for later.
    pub(super) fn keep_rest(&mut self, id: SessionId, rest: &[u8]) {
        if rest.is_empty() {
            return;
        }
        if let Some(session) = self.sessions.get_mut(id)
            && (session.phase == Phase::Open || session.is_moving())
        {
            // An unfinished frame may stay for as long as its peer likes: it gets the
            // bytes it has and no more. Frames to be judged are soon gone.
            if session.backlogged {
                session.input = self.buffers.take();
            }
            session.input.extend_from_slice(rest);
        }
    }

    /// Judges the complete frames of `bytes` in order, within the turn's budget.
    /// Returns how many bytes that took.
    pub(super) fn judge_batch(&mut self, id: SessionId, bytes: &[u8], now: Time) -> usize {
        let mut judged = 0;
        let mut steps = 0;
        loop {
            let Some(session) = self.sessions.get_mut(id) else {
                return judged;
            };
            if session.phase != Phase::Open {
                return judged;
            }
            let held_back = session.output.len() > self.config.output_soft_limit_bytes;
            if held_back || steps >= SESSION_STEPS_PER_TURN {
                session.backlogged = judged < bytes.len();
                // Held back, it is listed when its output is taken.
                if !held_back {
                    list_backlogged(session, &mut self.backlog);
                }
                return judged;
            }
            match Request::decode(&bytes[judged..], self.config.requests.max_key_bytes) {
                Ok(Some((request, length))) => {
                    match self.judge(id, &request, now) {
                        Judged::Done => judged += length,
                        Judged::NoRoom(owner) => {
                            self.wait_with_input(owner, id);
                            return judged;
                        }
                        Judged::Moves => return judged,
                    }
                    steps += self.note_work();
                }
                Ok(None) => return judged,
                Err(error) => {
                    self.close_on_error(id, error.owner, error.code, now);
                    return judged;
                }
            }
        }
    }

    /// Judges one request, in the protocol's order of precedence.
    fn judge(&mut self, id: SessionId, request: &Request<'_>, now: Time) -> Judged {
        let Some(session) = self.sessions.get_mut(id) else {
            return Judged::Done;
        };
        let greeting = session.greeting;
        let owner = request.owner();

        if let Request::Hello { wanted_loop, .. } = *request {
            match self.greet(greeting, request) {
                Ok(_)
                    if wanted_loop != protocol::ANY_LOOP
                        && wanted_loop != self.config.loop_index =>
                {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.phase = Phase::Moving(wanted_loop);
                        mark_dirty(session, &mut self.dirty);
                    }
                    return Judged::Moves;
                }
                Ok((greeting, welcome)) => {
                    if let Some(session) = self.sessions.get_mut(id) {
                        session.greeting = greeting;
                    }
                    self.reply(id, Reply::Welcome(welcome));
                }
                Err(code) => self.close_on_error(id, owner, code, now),
            }
            self.counters.requests += 1;
            return Judged::Done;
        }
        session.greeting.over = true;
        if self.config.credentials.is_some() && !greeting.authenticated {
            self.close_on_error(id, owner, ErrorCode::Unauthenticated, now);
        } else if let Err(code) = request.check(&self.config.requests) {
            self.reply(id, Reply::Error { owner, code });
        } else if let Request::Ping { .. } = request {
            self.reply(id, Reply::Pong { owner });
        } else {
            let key_owner = self.owner_of(request.key());
            if key_owner != self.config.loop_index {
                let release_on_close = greeting.release_on_close;
                if !self.try_forward(id, key_owner, release_on_close, request) {
                    return Judged::NoRoom(key_owner);
                }
            } else {
                let caller = Caller {
                    session: id,
                    release_on_close: greeting.release_on_close,
                };
                let (engine, mut out) = self.engine_and_outbox();
                engine.handle_request(now, caller, request, &mut out);
            }
        }
        self.counters.requests += 1;
        Judged::Done
    }

    /// What Hello settles, or the code of its refusal.
    fn greet(
        &self,
        before: Greeting,
        hello: &Request<'_>,
    ) -> Result<(Greeting, Welcome), ErrorCode> {
        let &Request::Hello {
            owner,
            version,
            flags: asked,
            wanted_loop,
            credential,
        } = hello
        else {
            return Err(ErrorCode::Unsupported);
        };
        if let Some(credentials) = &self.config.credentials
            && !credentials.check(credential)
        {
            return Err(ErrorCode::Unauthenticated);
        }
        let unknown_required = asked & flags::REQUIRED & !flags::KNOWN;
        if before.over
            || version != protocol::VERSION
            || unknown_required != 0
            || (wanted_loop != protocol::ANY_LOOP && wanted_loop >= self.config.loops)
        {
            return Err(ErrorCode::Unsupported);
        }
        let in_force = asked & flags::KNOWN;
        let greeting = Greeting {
            over: true,
            authenticated: true,
            release_on_close: in_force & flags::RELEASE_ON_CLOSE != 0,
        };
        let welcome = Welcome {
            owner,
            version: protocol::VERSION,
            flags: in_force,
            loops: self.config.loops,
            loop_index: self.config.loop_index,
            routing_seed: self.config.routing_seed,
            max_key_bytes: u16::try_from(self.config.requests.max_key_bytes).unwrap_or(u16::MAX),
            max_lease_ms: self.config.requests.max_lease_ms,
        };
        Ok((greeting, welcome))
    }
}
