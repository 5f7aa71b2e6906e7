//! The ceiling on io_uring: multishot accept into direct descriptors, multishot
//! receive into a ring of buffers, sends that say nothing unless they fail.
#![allow(unsafe_code, reason = "the io-uring crate's queues are unsafe to fill")]

use std::collections::VecDeque;
use std::io;
use std::mem;
use std::net::TcpListener;
use std::os::fd::AsRawFd as _;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::types::{BufRingEntry, Fd, Fixed};
use io_uring::{IoUring, cqueue, opcode, squeue};
use rustix::net::sockopt::set_tcp_nodelay;
use slab::Slab;

use crate::{Account, Never, replies};

const SUBMISSIONS: u32 = 1024;
const COMPLETIONS: u32 = 4096;
const FILES: u32 = 4096;
const BUFFERS: u16 = 512;
const BUFFER_BYTES: usize = 4096;

/// An operation's kind, in the upper half of its user data; its connection's index
/// is in the lower half.
const ACCEPT: u64 = 0;
const RECEIVE: u64 = 1;
const SEND: u64 = 2;
const CLOSE: u64 = 3;

/// Serves on one ring.
///
/// # Errors
/// The kernel offers no such ring, or the ring failed.
pub(crate) fn serve(listener: &TcpListener) -> io::Result<Never> {
    // Accepted sockets have the options of their listener.
    set_tcp_nodelay(listener, true)?;
    let mut server = Server::new(Ring::new()?);
    loop {
        if !mem::replace(&mut server.accepting, true) {
            let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd()))
                .allocate_file_index(true)
                .build();
            server.ring.push(accept, ACCEPT, 0);
        }
        server.turn()?;
    }
}

struct Connection {
    file: Fixed,
    account: Account,
    sending: Sending,
    /// The socket was full: the next send waits for room.
    full: bool,
    receiving: bool,
    /// Listed in [`Server::dirty`].
    dirty: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sending {
    Nothing,
    /// So many bytes, done once submitted unless a completion says otherwise.
    Quick(usize),
    /// A completion will tell.
    Waiting,
}

struct Server {
    ring: Ring,
    accepting: bool,
    connections: Slab<Connection>,
    /// Those that may be owed something.
    dirty: VecDeque<usize>,
    /// Those with a quick send.
    quick: Vec<usize>,
    completions: Vec<cqueue::Entry>,
    /// Sent from where they are; never touched.
    replies: Vec<u8>,
}

impl Server {
    fn new(ring: Ring) -> Server {
        Server {
            ring,
            accepting: false,
            connections: Slab::new(),
            dirty: VecDeque::new(),
            quick: Vec::new(),
            completions: Vec::new(),
            replies: replies(),
        }
    }

    fn turn(&mut self) -> io::Result<()> {
        self.ring.submit_and_wait(!self.awaits_quick_send())?;
        let mut completions = mem::take(&mut self.completions);
        completions.extend(self.ring.io.completion());
        for completion in &completions {
            self.complete(completion);
        }
        completions.clear();
        self.completions = completions;
        // All were submitted, so that a quick send that has not failed is done.
        let mut quick = mem::take(&mut self.quick);
        for index in quick.drain(..) {
            let connection = &mut self.connections[index];
            if let Sending::Quick(count) = connection.sending {
                connection.sending = Sending::Nothing;
                connection.account.sent(count);
                self.mark_dirty(index);
            }
        }
        self.quick = quick;
        while let Some(index) = self.dirty.pop_front() {
            self.connections[index].dirty = false;
            self.flush(index);
        }
        Ok(())
    }

    /// A connection sends on, or closes, once a send is done that says nothing when it
    /// is: nobody would end the sleep for it.
    fn awaits_quick_send(&self) -> bool {
        self.quick.iter().any(|&index| {
            let connection = &self.connections[index];
            let sends_on =
                matches!(connection.sending, Sending::Quick(count) if count < connection.account.owed);
            sends_on || !connection.receiving
        })
    }

    fn complete(&mut self, completion: &cqueue::Entry) {
        let index = completion.user_data() as u32 as usize;
        let goes_on = cqueue::more(completion.flags());
        match completion.user_data() >> 32 {
            ACCEPT => {
                self.accepting = goes_on;
                if let Ok(file) = u32::try_from(completion.result()) {
                    let index = self.connections.insert(Connection {
                        file: Fixed(file),
                        account: Account::default(),
                        sending: Sending::Nothing,
                        full: false,
                        receiving: true,
                        dirty: false,
                    });
                    self.ring.receive(Fixed(file), index);
                }
            }
            RECEIVE => {
                if let Some(buffer) = cqueue::buffer_select(completion.flags()) {
                    self.ring.offer(buffer);
                }
                let connection = &mut self.connections[index];
                match completion.result() {
                    count @ 1.. => {
                        connection.account.received(count as usize);
                        if !goes_on {
                            self.ring.receive(connection.file, index);
                        }
                    }
                    error if error == -libc::ENOBUFS => {
                        self.ring.receive(connection.file, index);
                    }
                    _ => connection.receiving = false,
                }
                self.mark_dirty(index);
            }
            SEND => {
                let connection = &mut self.connections[index];
                connection.full = connection.sending != Sending::Waiting;
                connection.sending = Sending::Nothing;
                match completion.result() {
                    count @ 0.. => connection.account.sent(count as usize),
                    error if error == -libc::EAGAIN => {}
                    // The client is gone, as its receive will tell too.
                    _ => connection.account.owed = 0,
                }
                self.mark_dirty(index);
            }
            _ => {
                self.connections.remove(index);
            }
        }
    }

    fn mark_dirty(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if !mem::replace(&mut connection.dirty, true) {
            self.dirty.push_back(index);
        }
    }

    /// Sends what is owed, or closes a connection that is owed nothing more.
    fn flush(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.sending != Sending::Nothing {
            return;
        }
        if connection.account.owed > 0 {
            let bytes = connection.account.next(&self.replies);
            let send = opcode::Send::new(connection.file, bytes.as_ptr(), bytes.len() as u32);
            let send = if mem::take(&mut connection.full) {
                connection.sending = Sending::Waiting;
                send.flags(libc::MSG_NOSIGNAL).build()
            } else {
                connection.sending = Sending::Quick(bytes.len());
                self.quick.push(index);
                send.flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL)
                    .build()
                    .flags(squeue::Flags::SKIP_SUCCESS)
            };
            self.ring.push(send, SEND, index);
        } else if !connection.receiving {
            let close = opcode::Close::new(connection.file).build();
            self.ring.push(close, CLOSE, index);
        }
    }
}

/// The ring and the buffers it receives into; all live as long as the process.
struct Ring {
    io: IoUring,
    buffers: *mut BufRingEntry,
    memory: *mut u8,
    tail: u16,
}

/// What the kernel wants the ring of buffers aligned to.
#[repr(C, align(4096))]
struct BufferRing([mem::MaybeUninit<BufRingEntry>; BUFFERS as usize]);

impl Ring {
    fn new() -> io::Result<Ring> {
        let io = IoUring::builder()
            .setup_cqsize(COMPLETIONS)
            .setup_submit_all()
            .setup_coop_taskrun()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(SUBMISSIONS)?;
        io.submitter().register_files_sparse(FILES)?;
        let entries = BufferRing([const { mem::MaybeUninit::zeroed() }; BUFFERS as usize]);
        let buffers = Box::leak(Box::new(entries)).0.as_mut_ptr().cast();
        let memory = vec![1; usize::from(BUFFERS) * BUFFER_BYTES].leak();
        let mut ring = Ring {
            io,
            buffers,
            memory: memory.as_mut_ptr(),
            tail: 0,
        };
        (0..BUFFERS).for_each(|buffer| ring.offer(buffer));
        // SAFETY: aligned, of that length, and never freed.
        unsafe {
            ring.io
                .submitter()
                .register_buf_ring_with_flags(buffers as u64, BUFFERS, 0, 0)?;
        }
        Ok(ring)
    }

    /// Gives a buffer to the kernel, again.
    fn offer(&mut self, buffer: u16) {
        let index = usize::from(self.tail % BUFFERS);
        // SAFETY: both indices are below the number of buffers; the kernel reads no
        // entry at or behind the tail that it sees, and writes none.
        unsafe {
            let entry = &mut *self.buffers.add(index);
            entry.set_addr(self.memory.add(usize::from(buffer) * BUFFER_BYTES) as u64);
            entry.set_len(BUFFER_BYTES as u32);
            entry.set_bid(buffer);
            self.tail = self.tail.wrapping_add(1);
            let tail = AtomicU16::from_ptr(BufRingEntry::tail(self.buffers).cast_mut());
            tail.store(self.tail, Ordering::Release);
        }
    }

    fn receive(&mut self, file: Fixed, index: usize) {
        self.push(opcode::RecvMulti::new(file, 0).build(), RECEIVE, index);
    }

    /// Asks for an operation; the memory it names is never freed.
    fn push(&mut self, entry: squeue::Entry, kind: u64, index: usize) {
        let entry = entry.user_data(kind << 32 | index as u64);
        // SAFETY: as said above.
        while unsafe { self.io.submission().push(&entry) }.is_err() {
            // A full queue is emptied by submitting; whatever fails shows there again.
            let _ = self.io.submit();
        }
    }

    fn submit_and_wait(&self, wait: bool) -> io::Result<()> {
        match self.io.submit_and_wait(usize::from(wait)) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
            other => other.map(drop),
        }
    }
}
