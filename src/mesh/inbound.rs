//! The receiving half of a port.

use rtrb::Consumer;

use super::message::{Message, Slot};

/// What other loops send to this one.
///
/// It stands apart from [`super::Outbound`] so that a message can be judged where it
/// lies while its answer is sent. The default one receives nothing: it may stand in
/// for this one meanwhile.
#[derive(Debug, Default)]
pub struct Inbound {
    /// All other loops, by number.
    sources: Vec<Source>,
    /// Position of the source that comes first in this batch.
    first: usize,
    /// Positions of sources that got room, each once, since last asked.
    relieved: Vec<usize>,
    pub(super) received: u64,
}

#[derive(Debug)]
struct Source {
    ring: Consumer<Slot>,
    /// How many of the messages that have arrived belong to this batch.
    gathered: usize,
    relieved: bool,
}

impl Inbound {
    pub(super) fn push_source(&mut self, ring: Consumer<Slot>) {
        self.sources.push(Source {
            ring,
            gathered: 0,
            relieved: false,
        });
    }

    /// Begins a batch; see [`super::MeshPort::gather`].
    pub(super) fn gather(&mut self, budget: usize) -> usize {
        let count = self.sources.len();
        self.first = next_position(self.first, count);
        let mut position = self.first;
        let mut left = budget;
        for still_to_come in (1..=count).rev() {
            let source = &mut self.sources[position];
            let share = left.div_ceil(still_to_come);
            source.gathered = source.ring.slots().min(share);
            left -= source.gathered;
            position = next_position(position, count);
        }
        budget - left
    }

    /// Hands every message of this batch to `judge`, those of one source in the order
    /// they were sent, and lets go of them.
    #[inline]
    pub fn drain(&mut self, mut judge: impl FnMut(&mut Message)) {
        let count = self.sources.len();
        let mut position = self.first;
        for _ in 0..count {
            let source = &mut self.sources[position];
            let gathered = std::mem::take(&mut source.gathered);
            if gathered > 0
                && let Ok(mut chunk) = source.ring.read_chunk(gathered)
            {
                let (front, back) = chunk.as_mut_slices();
                front.iter_mut().chain(back).flatten().for_each(&mut judge);
                chunk.commit_all();
                self.received += gathered as u64;
                if !source.relieved {
                    source.relieved = true;
                    self.relieved.push(position);
                }
            }
            position = next_position(position, count);
        }
    }

    /// Position of a source that got room, each once.
    pub(super) fn take_relieved(&mut self) -> Option<usize> {
        let position = self.relieved.pop()?;
        self.sources[position].relieved = false;
        Some(position)
    }

    pub(super) fn has_relieved(&self) -> bool {
        !self.relieved.is_empty()
    }

    pub(super) fn source_count(&self) -> usize {
        self.sources.len()
    }

    /// Whether nothing has arrived.
    pub(super) fn is_empty(&self) -> bool {
        self.sources.iter().all(|source| source.ring.is_empty())
    }

    /// Checks what must hold between any two calls.
    pub(super) fn invariants(&self) {
        for (position, source) in self.sources.iter().enumerate() {
            assert!(source.gathered <= source.ring.slots());
            let listed = self.relieved.iter().filter(|&&it| it == position).count();
            assert_eq!(listed, usize::from(source.relieved));
        }
    }
}

/// The position after this one, round and round.
#[inline]
fn next_position(position: usize, count: usize) -> usize {
    if position + 1 < count {
        position + 1
    } else {
        0
    }
}
