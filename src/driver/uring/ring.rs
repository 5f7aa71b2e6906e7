//! One io_uring behind a safe surface: what a loop asks of the kernel, and what
//! comes back. Every byte that the kernel may touch is owned here until its
//! completion is there, whatever the loop does.
//!
//! Connections are direct descriptors, slots of the ring's own table: they cost no
//! descriptor of the process and no reference count per operation.

use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::io;
use std::mem;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::time::Duration;

use io_uring::types::{CancelBuilder, Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode, squeue};
use log::warn;
use rustix::io::Errno;

use super::buffers::{self, Buffers, Chunk};
use super::setup::{self, RingOptions, Way};
use super::user_data::Op;
use crate::ids::SessionId;
use crate::stats::RingCounters;

/// An accepted connection: a slot of the ring's table. Goes back by [`Ring::close`].
#[derive(Debug)]
#[must_use = "a slot that is not closed is lost"]
pub(super) struct DirectFd(u32);

/// What the kernel has done.
#[derive(Debug)]
pub(super) enum Completion {
    /// A listener has a connection, or could not accept one.
    Accepted {
        listener: usize,
        outcome: Accepted,
        /// It goes on accepting.
        armed: bool,
    },
    /// Something was received.
    Received {
        id: SessionId,
        outcome: Received,
        /// It goes on receiving.
        armed: bool,
    },
    /// Bytes of a send were taken: not always all of them.
    Sent {
        id: SessionId,
        outcome: Result<usize, Errno>,
    },
    /// The sending side is shut down.
    ShutDown {
        id: SessionId,
        outcome: Result<(), Errno>,
    },
    /// A socket has left the ring's table and is a descriptor of the process.
    Installed {
        key: usize,
        outcome: Result<OwnedFd, Errno>,
    },
    /// A session's socket has got its slot in the ring's table.
    Adopted {
        id: SessionId,
        outcome: Result<DirectFd, Errno>,
    },
    /// An operation to cancel was not found, or is just running.
    NotCancelled { id: SessionId },
    /// The socket is gone.
    Closed { id: SessionId },
    /// The watched descriptor was written to.
    Woken {
        /// It goes on being watched.
        armed: bool,
    },
}

/// What accepting brought.
#[derive(Debug)]
pub(super) enum Accepted {
    /// A connection.
    Connection(DirectFd),
    /// A connection that the kernel has closed: every slot was taken.
    NoSlot,
    /// No connection.
    Failed(Errno),
}

/// What a receive brought.
#[derive(Debug)]
pub(super) enum Received {
    /// Bytes; give the chunk back after reading them.
    Bytes(Chunk),
    /// The client's side has ended.
    End,
    /// Every buffer was in use; what was to be received is still there.
    NoBuffer,
    /// It was cancelled; nothing was lost.
    Cancelled,
    /// The connection is broken.
    Failed(Errno),
}

/// A session's bytes on their way.
#[derive(Debug)]
struct Outgoing {
    id: SessionId,
    bytes: Vec<u8>,
    /// The kernel has taken that many.
    sent: usize,
    /// It was asked to take that many more.
    asked: usize,
    state: SendState,
}

/// A socket on its way into the ring's table.
#[derive(Debug)]
struct Adoption {
    /// The descriptor for the kernel to read, then the slot that it wrote.
    slot: Vec<i32>,
    /// Closed when the slot holds the socket too.
    _socket: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendState {
    /// Done in full when the kernel has seen it and says nothing.
    Quick,
    /// Waits for room.
    Waiting,
    /// Not in the kernel's hands.
    Idle,
}

/// "Any free slot" (IORING_FILE_INDEX_ALLOC).
const FILE_INDEX_ALLOC: i32 = -1;

/// Most bytes in one operation: more than any kernel takes at once.
const MAX_SEND_BYTES: usize = 1 << 30;

/// An io_uring, its receive buffers and the bytes it is sending.
pub(super) struct Ring {
    io: IoUring,
    buffers: Buffers,
    /// By session slot; at most one per session.
    sends: Vec<Option<Outgoing>>,
    /// Sends that no completion may tell of.
    quick: Vec<SessionId>,
    /// Sockets that are to get a slot, and where the kernel writes which.
    adoptions: HashMap<SessionId, Adoption>,
    /// Slots that become free once what lies in them is installed.
    installs: HashMap<usize, DirectFd>,
    /// Operations that the submission queue had no room for.
    unqueued: VecDeque<squeue::Entry>,
    /// Kept for their allocations.
    reaped: Vec<cqueue::Entry>,
    not_sends: Vec<Completion>,
    loop_index: u16,
    way: Way,
    files: u32,
    /// Slots of the table that are taken.
    pub(super) open_files: u32,
    enters: u64,
    refused_enters: u64,
    overflows: u64,
    queue_full: u64,
    enabled: bool,
}

impl Ring {
    /// A ring for the loop `loop_index`. It takes nothing before [`Ring::enable`].
    ///
    /// # Errors
    /// The kernel has no io_uring, forbids it, or lacks one of its features.
    pub(super) fn new(options: RingOptions, loop_index: u16) -> io::Result<Ring> {
        Ring::build(options, loop_index).map_err(setup::name_the_limit)
    }

    fn build(options: RingOptions, loop_index: u16) -> io::Result<Ring> {
        let (io, way) = setup::build(options)?;
        let params = io.params();
        if !(params.is_feature_nodrop()
            && params.is_feature_ext_arg()
            && params.is_feature_skip_cqe_on_success())
        {
            return Err(io::ErrorKind::Unsupported.into());
        }
        io.submitter().register_files_sparse(options.files)?;
        let buffers = Buffers::register(&io, options.buffers, options.buffer_bytes)?;
        Ok(Ring {
            io,
            buffers,
            sends: Vec::new(),
            quick: Vec::new(),
            adoptions: HashMap::new(),
            installs: HashMap::new(),
            unqueued: VecDeque::new(),
            reaped: Vec::new(),
            not_sends: Vec::new(),
            loop_index,
            way,
            files: options.files,
            open_files: 0,
            enters: 0,
            refused_enters: 0,
            overflows: 0,
            queue_full: 0,
            enabled: false,
        })
    }

    /// Binds the ring to the calling thread, which alone may use it from now on.
    ///
    /// # Errors
    /// As io_uring_register(2).
    pub(super) fn enable(&mut self) -> io::Result<()> {
        self.io.submitter().register_enable_rings()?;
        self.enabled = true;
        Ok(())
    }

    /// Accepts connections of a listener until told otherwise.
    pub(super) fn accept(&mut self, listener: BorrowedFd<'_>, index: usize) {
        let accept = opcode::AcceptMulti::new(Fd(listener.as_raw_fd()))
            .allocate_file_index(true)
            .build();
        self.push(accept, Op::Accept(index));
    }

    /// Ends [`Ring::accept`].
    pub(super) fn cancel_accept(&mut self, index: usize) {
        let target = CancelBuilder::user_data(Op::Accept(index).to_user_data());
        let cancel = opcode::AsyncCancel2::new(target).build();
        self.push(cancel, Op::Ignored);
    }

    /// Receives whatever comes until told otherwise.
    pub(super) fn receive(&mut self, fd: &DirectFd, id: SessionId) {
        let receive = opcode::RecvMulti::new(Fixed(fd.0), buffers::GROUP).build();
        self.push(receive, Op::Receive(id));
    }

    /// Ends [`Ring::receive`]; its last completion says so.
    pub(super) fn cancel_receive(&mut self, id: SessionId) {
        self.cancel(id, Op::Receive(id));
    }

    /// Sends bytes. One send per session at a time: until [`Ring::take_back`].
    pub(super) fn send(&mut self, fd: &DirectFd, id: SessionId, bytes: Vec<u8>) {
        let slot = id.slot() as usize;
        if self.sends.len() <= slot {
            self.sends.resize_with(slot + 1, || None);
        }
        assert!(self.sends[slot].is_none(), "one send per session at a time");
        self.sends[slot] = Some(Outgoing {
            id,
            bytes,
            sent: 0,
            asked: 0,
            state: SendState::Idle,
        });
        self.push_send(fd, id, SendState::Quick);
        self.quick.push(id);
    }

    /// Sends what [`Completion::Sent`] left over, as soon as the kernel has room.
    pub(super) fn send_rest(&mut self, fd: &DirectFd, id: SessionId) {
        self.push_send(fd, id, SendState::Waiting);
    }

    /// Ends a send that waits for room; its completion says so.
    pub(super) fn cancel_send(&mut self, id: SessionId) {
        self.cancel(id, Op::Send(id));
    }

    /// Bytes that a send whose completion is there has left over.
    pub(super) fn unsent_bytes(&self, id: SessionId) -> usize {
        self.send_of(id)
            .map_or(0, |send| send.bytes.len() - send.sent)
    }

    /// Ends a send whose completion is there, and gives back its buffer.
    pub(super) fn take_back(&mut self, id: SessionId) -> Vec<u8> {
        let taken = self
            .sends
            .get_mut(id.slot() as usize)
            .and_then(|send| send.take_if(|send| send.id == id && send.state == SendState::Idle));
        taken.expect("a send that is done is taken back once").bytes
    }

    /// Tells the peer that nothing more comes.
    pub(super) fn shutdown_write(&mut self, fd: &DirectFd, id: SessionId) {
        let shutdown = opcode::Shutdown::new(Fixed(fd.0), libc::SHUT_WR).build();
        self.push(shutdown, Op::Shutdown(id));
    }

    /// Closes a session's socket; nothing of it may be under way any more.
    pub(super) fn close(&mut self, fd: DirectFd, id: SessionId) {
        self.push(opcode::Close::new(Fixed(fd.0)).build(), Op::Close(id));
    }

    /// Makes a socket, of which nothing may be under way any more, a descriptor of the
    /// process and frees its slot.
    pub(super) fn install(&mut self, fd: DirectFd, key: usize) {
        let install = opcode::FixedFdInstall::new(Fixed(fd.0), 0).build();
        self.installs.insert(key, fd);
        self.push(install, Op::Install(key));
    }

    /// Gives a session's socket, a descriptor of the process, a slot of the table.
    pub(super) fn adopt(&mut self, socket: OwnedFd, id: SessionId) {
        let mut slot = vec![socket.as_raw_fd()];
        let update = opcode::FilesUpdate::new(slot.as_mut_ptr().cast_const(), 1)
            .offset(FILE_INDEX_ALLOC)
            .build();
        let adoption = Adoption {
            slot,
            _socket: socket,
        };
        self.adoptions.insert(id, adoption);
        self.push(update, Op::Adopt(id));
    }

    /// Closes a socket that never became a session's.
    pub(super) fn discard(&mut self, fd: DirectFd) {
        self.push(opcode::Close::new(Fixed(fd.0)).build(), Op::Discard);
    }

    /// Watches a descriptor that is written to to wake this loop.
    pub(super) fn watch(&mut self, waker: BorrowedFd<'_>) {
        let poll = opcode::PollAdd::new(Fd(waker.as_raw_fd()), libc::POLLIN as u32)
            .multi(true)
            .build();
        self.push(poll, Op::Wake);
    }

    /// The bytes of a chunk.
    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        self.buffers.bytes(chunk)
    }

    /// Offers a chunk's buffer to the kernel again.
    pub(super) fn give_back(&mut self, chunk: Chunk) {
        self.buffers.give_back(chunk);
    }

    /// How many buffers there are.
    pub(super) fn buffer_count(&self) -> usize {
        self.buffers.count()
    }

    /// Sends that may end without a word: without a completion that ends a sleep.
    pub(super) fn quick_sends(&self) -> impl Iterator<Item = SessionId> {
        self.quick.iter().copied()
    }

    /// Fills in what the ring itself counts.
    pub(super) fn count(&self, counters: RingCounters) -> RingCounters {
        RingCounters {
            enters: self.enters,
            refused_enters: self.refused_enters,
            overflows: self.overflows,
            queue_full: self.queue_full,
            ..counters
        }
    }

    /// Hands over what was asked, and sleeps until something is done or the time is
    /// over. `None`: for as long as that takes.
    ///
    /// # Errors
    /// As io_uring_enter(2), as far as waiting does not help.
    pub(super) fn submit_and_wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        while !self.unqueued.is_empty() {
            while let Some(entry) = self.unqueued.front() {
                if !push_entry(&mut self.io, entry) {
                    break;
                }
                self.unqueued.pop_front();
            }
            if self.unqueued.is_empty() {
                break;
            }
            self.enter(Some(Duration::ZERO))?;
            if self.io.submission().is_full() {
                // The kernel wants its completions taken first.
                return Ok(());
            }
        }
        self.enter(timeout)
    }

    /// Takes all that the kernel has done, in order, but sends first.
    pub(super) fn reap(&mut self, done: &mut Vec<Completion>) {
        let mut reaped = mem::take(&mut self.reaped);
        reaped.extend(self.io.completion());
        for entry in reaped.drain(..) {
            match self.complete(&entry) {
                Some(sent @ Completion::Sent { .. }) => done.push(sent),
                Some(other) => self.not_sends.push(other),
                None => {}
            }
        }
        self.reaped = reaped;
        self.settle_quick_sends(done);
        done.append(&mut self.not_sends);
    }

    /// A quick send ends while it is submitted, and speaks up only if it fails
    /// (`push_send`): once everything was submitted and every completion looked at,
    /// silence means that it is done.
    fn settle_quick_sends(&mut self, done: &mut Vec<Completion>) {
        let submission = self.io.submission();
        if submission.cq_overflow() {
            self.overflows += 1;
            return;
        }
        if !(submission.is_empty() && self.unqueued.is_empty()) {
            return;
        }
        drop(submission);
        for id in self.quick.drain(..) {
            let send = self.sends.get_mut(id.slot() as usize);
            if let Some(Some(send)) = send
                && send.id == id
                && send.state == SendState::Quick
            {
                send.state = SendState::Idle;
                send.sent += send.asked;
                let outcome = Ok(send.asked);
                done.push(Completion::Sent { id, outcome });
            }
        }
    }

    fn complete(&mut self, entry: &cqueue::Entry) -> Option<Completion> {
        let armed = cqueue::more(entry.flags());
        let outcome = match u32::try_from(entry.result()) {
            Ok(value) => Ok(value),
            Err(_) => Err(Errno::from_raw_os_error(-entry.result())),
        };
        Some(
            match Op::from_user_data(entry.user_data(), self.loop_index) {
                Op::Accept(listener) => {
                    let outcome = self.accepted(outcome);
                    Completion::Accepted {
                        listener,
                        outcome,
                        armed,
                    }
                }
                Op::Receive(id) => Completion::Received {
                    id,
                    outcome: self.received(outcome, cqueue::buffer_select(entry.flags())),
                    armed,
                },
                Op::Send(id) => Completion::Sent {
                    id,
                    outcome: self.sent(id, outcome),
                },
                Op::Shutdown(id) => Completion::ShutDown {
                    id,
                    outcome: outcome.map(drop),
                },
                Op::Close(id) => {
                    self.closed(outcome);
                    Completion::Closed { id }
                }
                Op::Discard => {
                    self.closed(outcome);
                    return None;
                }
                Op::Install(key) => Completion::Installed {
                    key,
                    outcome: self.installed(key, outcome),
                },
                Op::Adopt(id) => Completion::Adopted {
                    id,
                    outcome: self.adopted(id, outcome),
                },
                Op::Cancel(id) => Completion::NotCancelled { id },
                Op::Wake => Completion::Woken { armed },
                Op::Ignored => return None,
            },
        )
    }

    fn accepted(&mut self, outcome: Result<u32, Errno>) -> Accepted {
        match outcome {
            Ok(slot) => {
                self.open_files += 1;
                Accepted::Connection(DirectFd(slot))
            }
            // Told apart here, in the completions' order: a slot that a later one of
            // this turn gives back was not free yet.
            Err(Errno::NFILE) if self.open_files >= self.files => Accepted::NoSlot,
            Err(error) => Accepted::Failed(error),
        }
    }

    fn closed(&mut self, outcome: Result<u32, Errno>) {
        match outcome {
            Ok(_) => self.open_files -= 1,
            // It stays taken.
            Err(error) => warn!("a connection's slot is lost, it cannot be closed: {error}"),
        }
    }

    fn received(&mut self, outcome: Result<u32, Errno>, buffer: Option<u16>) -> Received {
        let filled_bytes = outcome.unwrap_or(0) as usize;
        let chunk = buffer.map(|buffer| self.buffers.chunk(buffer, filled_bytes));
        match (outcome, chunk) {
            (Ok(1..), Some(chunk)) => return Received::Bytes(chunk),
            (_, Some(unfilled)) => self.buffers.give_back(unfilled),
            (_, None) => {}
        }
        match outcome {
            Ok(_) => Received::End,
            Err(Errno::NOBUFS) => Received::NoBuffer,
            Err(Errno::CANCELED) => Received::Cancelled,
            Err(error) => Received::Failed(error),
        }
    }

    fn sent(&mut self, id: SessionId, outcome: Result<u32, Errno>) -> Result<usize, Errno> {
        let slot = id.slot() as usize;
        let Some(Some(send)) = self.sends.get_mut(slot) else {
            unreachable!("a send is kept until its completion");
        };
        assert!(send.id == id && send.state != SendState::Idle);
        send.state = SendState::Idle;
        match outcome {
            Ok(count) => {
                send.sent += count as usize;
                Ok(count as usize)
            }
            // No room yet, or a signal came first.
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn installed(&mut self, key: usize, outcome: Result<u32, Errno>) -> Result<OwnedFd, Errno> {
        if let Some(fd) = self.installs.remove(&key) {
            self.discard(fd);
        }
        let descriptor = outcome?;
        // SAFETY: the kernel has just made this descriptor for this operation alone.
        #[allow(unsafe_code)]
        Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
    }

    fn adopted(&mut self, id: SessionId, outcome: Result<u32, Errno>) -> Result<DirectFd, Errno> {
        let Some(adoption) = self.adoptions.remove(&id) else {
            unreachable!("an adoption is kept until its completion");
        };
        outcome?;
        self.open_files += 1;
        Ok(DirectFd(adoption.slot[0] as u32))
    }

    fn send_of(&self, id: SessionId) -> Option<&Outgoing> {
        let send = self.sends.get(id.slot() as usize)?.as_ref();
        send.filter(|send| send.id == id)
    }

    /// The first try is quick: it ends at once (MSG_DONTWAIT), counts as failed
    /// unless the kernel takes everything (MSG_WAITALL), and only a failure makes a
    /// completion (IOSQE_CQE_SKIP_SUCCESS). So an ordinary reply costs no completion
    /// and does not end the sleep that begins with the same call.
    fn push_send(&mut self, fd: &DirectFd, id: SessionId, state: SendState) {
        let Some(Some(send)) = self.sends.get_mut(id.slot() as usize) else {
            unreachable!("only what `send` has noted is sent");
        };
        assert!(send.id == id && send.state == SendState::Idle);
        send.state = state;
        let unsent = &send.bytes[send.sent..];
        send.asked = unsent.len().min(MAX_SEND_BYTES);
        let operation = opcode::Send::new(Fixed(fd.0), unsent.as_ptr(), send.asked as u32);
        let entry = match state {
            SendState::Quick => operation
                .flags(libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_WAITALL)
                .build()
                .flags(squeue::Flags::SKIP_SUCCESS),
            SendState::Waiting | SendState::Idle => operation.flags(libc::MSG_NOSIGNAL).build(),
        };
        self.push(entry, Op::Send(id));
    }

    fn cancel(&mut self, id: SessionId, target: Op) {
        let target = CancelBuilder::user_data(target.to_user_data());
        let cancel = opcode::AsyncCancel2::new(target)
            .build()
            .flags(squeue::Flags::SKIP_SUCCESS);
        self.push(cancel, Op::Cancel(id));
    }

    /// Asks for an operation. Every entry comes from above: one that names memory
    /// names bytes of `sends` or a slot of `adoptions`, which stay where they are until
    /// its completion.
    fn push(&mut self, entry: squeue::Entry, op: Op) {
        let entry = entry.user_data(op.to_user_data());
        if !(self.unqueued.is_empty() && push_entry(&mut self.io, &entry)) {
            self.queue_full += 1;
            self.unqueued.push_back(entry);
        }
    }

    fn enter(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.enters += 1;
        let queued = self.io.submission().len() as u32;
        let submitter = self.io.submitter();
        let entered = match timeout {
            None => submitter.submit_and_wait(1),
            Some(Duration::ZERO) => self.run_completions(queued),
            Some(timeout) => {
                let timeout = Timespec::from(timeout);
                submitter.submit_with_args(1, &SubmitArgs::new().timespec(&timeout))
            }
        };
        let dropped = self.io.completion().overflow();
        self.refused_enters += u64::from(was_refused(entered, dropped)?);
        Ok(())
    }

    /// Submits so many of what is queued, and runs completions without waiting for any.
    fn run_completions(&self, to_submit: u32) -> io::Result<usize> {
        let flags = EnterFlags::GETEVENTS.bits();
        // SAFETY: submits only what `push` has queued, and passes no pointer.
        #[allow(unsafe_code)]
        unsafe {
            let submitter = self.io.submitter();
            submitter.enter::<libc::sigset_t>(to_submit, 0, flags, None)
        }
    }

    /// Ends whatever the kernel works on; nobody hears of it. What is cancelled ends
    /// when its completion is run.
    fn cancel_everything(&self) -> io::Result<()> {
        let patience = Timespec::from(Duration::from_secs(1));
        let all = CancelBuilder::any().all();
        let submitter = self.io.submitter();
        match submitter.register_sync_cancel(Some(patience), all) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => self.run_completions(0).map(drop),
        }
    }
}

/// Whether the kernel had no room for what was asked; the next turn asks again. A
/// call that ended because time was over or a signal came did what it could.
///
/// # Errors
/// The ring cannot go on.
fn was_refused(entered: io::Result<usize>, dropped_completions: u32) -> io::Result<bool> {
    let error_number = entered.as_ref().err().and_then(io::Error::raw_os_error);
    if dropped_completions > 0 || error_number == Some(libc::EBADR) {
        // Nobody can tell whose it was, or what has not happened because of it.
        return Err(io::Error::new(
            io::ErrorKind::OutOfMemory,
            "the kernel had no memory to keep a completion: one is lost",
        ));
    }
    match error_number {
        Some(libc::ETIME | libc::EINTR) => Ok(false),
        Some(libc::EAGAIN | libc::EBUSY) => Ok(true),
        _ => entered.map(|_| false),
    }
}

impl Drop for Ring {
    /// Closing a ring ends its operations only some time later, so they are ended
    /// first: until then, the kernel may touch the memory.
    fn drop(&mut self) {
        if self.enabled && self.cancel_everything().is_err() {
            self.buffers.leak();
            mem::forget(mem::take(&mut self.sends));
            mem::forget(mem::take(&mut self.adoptions));
        }
    }
}

impl fmt::Display for Ring {
    /// How it was set up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "io_uring {}, {} slots for connections, {}",
            self.way.describe(),
            self.files,
            self.buffers
        )
    }
}

/// Returns whether the queue had room.
fn push_entry(io: &mut IoUring, entry: &squeue::Entry) -> bool {
    // SAFETY: `Ring::push` says why what the entry names outlives the operation.
    #[allow(unsafe_code)]
    unsafe {
        io.submission().push(entry).is_ok()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn only_what_no_turn_can_mend_ends_the_loop() {
        let failed = |number| Err(io::Error::from_raw_os_error(number));
        assert!(!was_refused(Ok(3), 0).unwrap());
        for number in [libc::ETIME, libc::EINTR] {
            assert!(!was_refused(failed(number), 0).unwrap());
        }
        for number in [libc::EAGAIN, libc::EBUSY] {
            assert!(was_refused(failed(number), 0).unwrap());
        }
        for number in [libc::EBADF, libc::EEXIST, libc::EINVAL, libc::EFAULT] {
            let error = was_refused(failed(number), 0).unwrap_err();
            assert_eq!(error.raw_os_error(), Some(number));
        }
        for lost in [was_refused(failed(libc::EBADR), 0), was_refused(Ok(3), 1)] {
            assert!(lost.unwrap_err().to_string().contains("lost"));
        }
    }
}
