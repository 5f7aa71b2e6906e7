//! Requests out, replies in, on one socket; knows owners, not what they mean.

use super::ServerAddress;
use super::socket::{Received, Socket};
use crate::clock::{self, Time};
use crate::protocol::{Reply, Request};
use std::io;

/// An open session. It must be dropped, which closes it, after any failure.
#[derive(Debug)]
pub(super) struct Session {
    socket: Socket,
    /// Received and not decoded yet.
    input: Vec<u8>,
    /// Owners of requests whose reply is still to come and concerns nobody.
    abandoned: Vec<u64>,
}

/// Why a request has no reply.
#[derive(Debug)]
pub(super) enum Fault {
    /// Not one byte of it was handed to the kernel.
    Unsent(io::Error),
    /// It may have taken effect.
    Unknown(io::Error),
}

impl Session {
    pub(super) fn connect(server: &ServerAddress, deadline: Time) -> io::Result<Session> {
        Ok(Session {
            socket: Socket::connect(server, deadline)?,
            input: Vec::new(),
            abandoned: Vec::new(),
        })
    }

    /// Sends the request that `request_at` makes of the time right before its first
    /// byte is handed over, and tells that time. `None` when it makes none any more:
    /// then nothing was sent.
    pub(super) fn send<'a>(
        &mut self,
        until: Time,
        request_at: impl Fn(Time) -> Option<Request<'a>>,
    ) -> Result<Option<Time>, Fault> {
        let mut frame = Vec::new();
        loop {
            // A session that the server has ended would swallow the request.
            self.receive_idle().map_err(Fault::Unsent)?;
            let now = clock::now();
            let Some(request) = request_at(now) else {
                return Ok(None);
            };
            frame.clear();
            request.encode(&mut frame);
            match self.socket.send(&frame).map_err(Fault::Unsent)? {
                0 => self.socket.wait_writable(until).map_err(Fault::Unsent)?,
                sent => {
                    self.send_rest(&frame[sent..], until)
                        .map_err(Fault::Unknown)?;
                    return Ok(Some(now));
                }
            }
        }
    }

    /// Sends a request whose reply nobody waits for.
    pub(super) fn send_abandoned(&mut self, request: &Request<'_>, until: Time) -> io::Result<()> {
        let mut frame = Vec::new();
        request.encode(&mut frame);
        self.abandoned.push(request.owner());
        self.send_rest(&frame, until)
    }

    /// The reply with this owner, `None` if it has not come until then.
    pub(super) fn read_reply(&mut self, owner: u64, until: Time) -> io::Result<Option<Reply>> {
        loop {
            while let Some(reply) = self.decode()? {
                if reply.owner() == owner {
                    return Ok(Some(reply));
                }
                self.settle(&reply)?;
            }
            match self.socket.receive(&mut self.input)? {
                Received::Bytes => continue,
                Received::End => return Err(ended()),
                Received::Nothing => {}
            }
            // Looked at after the socket: what is there already was in time.
            if clock::now() >= until {
                return Ok(None);
            }
            self.socket.wait_readable(until)?;
        }
    }

    /// Ends the session in order: what was sent still takes effect, and what the
    /// server still sends is read until `until`, so that no reset overtakes it.
    pub(super) fn close(mut self, until: Time) -> io::Result<()> {
        self.socket.shutdown()?;
        loop {
            self.input.clear();
            match self.socket.receive(&mut self.input)? {
                Received::Bytes => {}
                Received::End => return Ok(()),
                Received::Nothing if clock::now() >= until => return Ok(()),
                Received::Nothing => self.socket.wait_readable(until)?,
            }
        }
    }

    fn send_rest(&mut self, mut rest: &[u8], until: Time) -> io::Result<()> {
        while !rest.is_empty() {
            match self.socket.send(rest)? {
                0 if clock::now() >= until => return Err(no_reply()),
                0 => self.socket.wait_writable(until)?,
                sent => rest = &rest[sent..],
            }
        }
        Ok(())
    }

    /// Takes what has arrived while nothing was asked.
    fn receive_idle(&mut self) -> io::Result<()> {
        loop {
            match self.socket.receive(&mut self.input)? {
                Received::Bytes => {}
                Received::End => return Err(ended()),
                Received::Nothing => break,
            }
        }
        while let Some(reply) = self.decode()? {
            self.settle(&reply)?;
        }
        Ok(())
    }

    fn decode(&mut self) -> io::Result<Option<Reply>> {
        let decoded = Reply::decode(&self.input)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        Ok(decoded.map(|(reply, length)| {
            self.input.drain(..length);
            reply
        }))
    }

    /// The reply answers a request that nobody waits for; anything else is a fault.
    fn settle(&mut self, reply: &Reply) -> io::Result<()> {
        let at = self
            .abandoned
            .iter()
            .position(|owner| *owner == reply.owner())
            .ok_or_else(|| nonsense(reply))?;
        self.abandoned.swap_remove(at);
        Ok(())
    }
}

/// The server said nothing in time.
pub(super) fn no_reply() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no reply in time")
}

/// The server said what does not answer the request.
pub(super) fn nonsense(reply: &Reply) -> io::Error {
    let message = format!("unexpected reply {reply:?}");
    io::Error::new(io::ErrorKind::InvalidData, message)
}

fn ended() -> io::Error {
    io::Error::new(
        io::ErrorKind::UnexpectedEof,
        "the server closed the session",
    )
}
