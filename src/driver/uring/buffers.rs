//! The buffers that the kernel fills: one pool per ring, offered to the kernel
//! through a ring of their own (io_uring_register_buf_ring(3)). A session owns none
//! while it is silent.

use std::alloc::{self, Layout};
use std::fmt;
use std::io;
use std::mem;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::IoUring;
use io_uring::types::BufRingEntry;

/// The pool's name in the ring; there is one.
pub(super) const GROUP: u16 = 0;

/// What the kernel wants the entries aligned to.
const PAGE_BYTES: usize = 4096;

/// A filled buffer, out of the kernel's hands until it is given back.
#[derive(Debug)]
#[must_use = "a buffer that is not given back is missing from the pool"]
pub(super) struct Chunk {
    buffer: u16,
    filled_bytes: usize,
}

/// Memory for received bytes and the ring that offers it to the kernel.
#[derive(Debug)]
pub(super) struct Buffers {
    entries: Region,
    memory: Region,
    count: u16,
    buffer_bytes: u32,
    /// Where the next buffer is offered; only ever counts up, and wraps.
    tail: u16,
}

impl Buffers {
    /// `count` buffers, a power of two, all of them offered to the kernel through `io`.
    ///
    /// # Errors
    /// The kernel has no buffer rings (before 5.19), or no room.
    pub(super) fn register(io: &IoUring, count: u16, buffer_bytes: u32) -> io::Result<Buffers> {
        assert!(count.is_power_of_two(), "the kernel masks its cursors");
        let entries_bytes = usize::from(count) * mem::size_of::<BufRingEntry>();
        let mut buffers = Buffers {
            entries: Region::new(entries_bytes),
            memory: Region::new(usize::from(count) * buffer_bytes as usize),
            count,
            buffer_bytes,
            tail: 0,
        };
        for buffer in 0..count {
            buffers.offer(buffer);
        }
        let address = buffers.entries.start.as_ptr() as u64;
        // SAFETY: the entries are page-aligned, `count` long, and live as long as
        // `buffers`, which `Ring` lets go of only when the kernel is done with it.
        #[allow(unsafe_code)]
        unsafe {
            io.submitter()
                .register_buf_ring_with_flags(address, count, GROUP, 0)?;
        }
        Ok(buffers)
    }

    /// How many buffers there are.
    pub(super) fn count(&self) -> usize {
        self.count.into()
    }

    /// What a completion says was received into `buffer`.
    pub(super) fn chunk(&self, buffer: u16, filled_bytes: usize) -> Chunk {
        assert!(buffer < self.count && filled_bytes <= self.buffer_bytes as usize);
        Chunk {
            buffer,
            filled_bytes,
        }
    }

    /// The bytes of a chunk.
    pub(super) fn bytes(&self, chunk: &Chunk) -> &[u8] {
        let start = self.buffer_start(chunk.buffer);
        // SAFETY: `Buffers::chunk` asserted that buffer and length lie within the
        // memory, which is initialised; while a chunk exists its buffer is not
        // offered, so that the kernel does not write to it.
        #[allow(unsafe_code)]
        unsafe {
            std::slice::from_raw_parts(start, chunk.filled_bytes)
        }
    }

    /// Offers a chunk's buffer to the kernel again.
    pub(super) fn give_back(&mut self, chunk: Chunk) {
        self.offer(chunk.buffer);
    }

    /// Leaves the memory to a kernel that may still write to it.
    pub(super) fn leak(&mut self) {
        self.entries.freed_on_drop = false;
        self.memory.freed_on_drop = false;
    }

    fn offer(&mut self, buffer: u16) {
        let address = self.buffer_start(buffer) as u64;
        let entries = self.entries.start.cast::<BufRingEntry>().as_ptr();
        let index = usize::from(self.tail & (self.count - 1));
        // SAFETY: `index` is below `count`, the number of entries. The kernel reads no
        // entry at or behind the tail it sees, and there are as many entries as
        // buffers, so that this one is not being read.
        #[allow(unsafe_code)]
        let entry = unsafe { &mut *entries.add(index) };
        entry.set_addr(address);
        entry.set_len(self.buffer_bytes);
        entry.set_bid(buffer);
        self.tail = self.tail.wrapping_add(1);
        // SAFETY: the tail lies within the first entry, in a field that no setter
        // touches; it is aligned, lives as long as the entries, and the kernel only
        // reads it.
        #[allow(unsafe_code)]
        let tail = unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries).cast_mut()) };
        tail.store(self.tail, Ordering::Release);
    }

    fn buffer_start(&self, buffer: u16) -> *mut u8 {
        let offset = usize::from(buffer) * self.buffer_bytes as usize;
        self.memory.start.as_ptr().wrapping_add(offset)
    }
}

impl fmt::Display for Buffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} buffers of {} bytes", self.count, self.buffer_bytes)
    }
}

/// Memory that the kernel may write to while nothing borrows it: whole pages, all
/// of them present from the start, so that no receive has to wait for one.
#[derive(Debug)]
struct Region {
    start: NonNull<u8>,
    layout: Layout,
    freed_on_drop: bool,
}

// SAFETY: a region owns its memory, which has nothing to do with any thread.
#[allow(unsafe_code)]
unsafe impl Send for Region {}

impl Region {
    fn new(bytes: usize) -> Region {
        let layout = Layout::from_size_align(bytes.next_multiple_of(PAGE_BYTES), PAGE_BYTES)
            .expect("sizes are far below isize::MAX");
        assert!(layout.size() > 0);
        // SAFETY: the size is not zero; `start` is valid for that many bytes once it
        // is known not to be null.
        #[allow(unsafe_code)]
        let start = unsafe {
            let start = alloc::alloc(layout);
            if start.is_null() {
                alloc::handle_alloc_error(layout);
            }
            start.write_bytes(0, layout.size());
            NonNull::new_unchecked(start)
        };
        Region {
            start,
            layout,
            freed_on_drop: true,
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if !self.freed_on_drop {
            return;
        }
        // SAFETY: allocated in `Region::new` with this layout; the kernel is done with
        // it, as `Buffers::register` demands.
        #[allow(unsafe_code)]
        unsafe {
            alloc::dealloc(self.start.as_ptr(), self.layout);
        }
    }
}
