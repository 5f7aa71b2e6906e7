//! A hierarchical timer wheel of millisecond ticks: arm, re-arm and cancel in
//! O(1), empty time skipped, never early. Small and pure: the timers' links lie
//! in the caller's slabs, and the tick that it is comes in as a number.
//!
//! Level 0 has a slot for each of the 64 ticks of the block that `elapsed` is in;
//! each level above has slots 64 times as long. A timer lies at the level of the
//! highest base-64 digit in which its tick differs from `elapsed`, in the slot of
//! that digit. When `elapsed` reaches the start of a higher slot, its timers move
//! down (a cascade), one step each, until they lie at level 0, where they fire.

use super::list::{LinkStore, Links, List};
use super::paged_slab::MAX_INDICES;
use super::time::Time;

/// Slots of one level, as bits of its occupancy word.
const SLOTS: usize = 64;
const SLOT_BITS: u32 = SLOTS.trailing_zeros();
/// Enough for every tick a [`Time`] has, so that no deadline is cut.
const LEVELS: usize = 8;

const _: () = assert!(Time::MAX.tick_ceil() < 1 << (SLOT_BITS * LEVELS as u32));

/// What a timer ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TimerKind {
    /// A lease, or the grace after it: the index is a lock entry's.
    Lease,
    /// A wait: the index is a waiter's.
    Wait,
    /// A data slot's life: the index is a data record's.
    Data,
}

/// A kind and an index in that kind's slab, packed into the link width.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct TimerId(u32);

/// What a timed item holds for the wheel.
#[derive(Clone, Copy, Debug)]
pub(super) struct TimerLinks {
    links: Links,
    slot: u16,
    armed: bool,
}

/// The caller's slabs.
pub(super) trait TimerStore {
    fn timer(&self, timer: TimerId) -> &TimerLinks;
    fn timer_mut(&mut self, timer: TimerId) -> &mut TimerLinks;
    /// The tick at which an armed timer is due. It changes only through
    /// [`TimerWheel::cancel`] and [`TimerWheel::arm`].
    fn due_tick(&self, timer: TimerId) -> u64;
}

/// All timers of one engine.
#[derive(Debug)]
pub(super) struct TimerWheel {
    /// No armed timer is due before this tick, but those already late when armed.
    elapsed: u64,
    /// Per level, a bit for each slot that holds a timer.
    occupied: [u64; LEVELS],
    slots: Box<[List]>,
    /// A slot above level 0 whose cascade has begun: its start is `elapsed`, and
    /// it comes first until it is empty.
    cascading: Option<u16>,
    armed: u32,
}

/// A slot and the first tick of the time it covers.
struct DueSlot {
    slot: u16,
    start: u64,
}

impl TimerKind {
    const ALL: [TimerKind; 3] = [TimerKind::Lease, TimerKind::Wait, TimerKind::Data];
}

impl TimerId {
    const INDEX_BITS: u32 = MAX_INDICES.trailing_zeros();

    pub(super) fn new(kind: TimerKind, index: u32) -> TimerId {
        TimerId((kind as u32) << Self::INDEX_BITS | index)
    }

    pub(super) fn kind(self) -> TimerKind {
        TimerKind::ALL[(self.0 >> Self::INDEX_BITS) as usize]
    }

    pub(super) fn index(self) -> u32 {
        self.0 & (MAX_INDICES - 1)
    }
}

impl std::fmt::Debug for TimerId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} timer {}", self.kind(), self.index())
    }
}

impl TimerLinks {
    /// What a new item starts with.
    pub(super) const UNARMED: TimerLinks = TimerLinks {
        links: Links::UNLINKED,
        slot: 0,
        armed: false,
    };
}

impl TimerWheel {
    pub(super) fn new() -> TimerWheel {
        TimerWheel {
            elapsed: 0,
            occupied: [0; LEVELS],
            slots: vec![List::EMPTY; LEVELS * SLOTS].into(),
            cascading: None,
            armed: 0,
        }
    }

    /// Number of armed timers.
    pub(super) fn len(&self) -> u32 {
        self.armed
    }

    /// Arms an unarmed timer for `tick`, which `store` has to tell, too.
    pub(super) fn arm(&mut self, store: &mut impl TimerStore, timer: TimerId, tick: u64) {
        self.link(store, timer, tick);
        self.armed += 1;
    }

    /// Disarms a timer; does nothing if it is not armed.
    pub(super) fn cancel(&mut self, store: &mut impl TimerStore, timer: TimerId) {
        let &TimerLinks { armed, slot, .. } = store.timer(timer);
        if armed {
            self.unlink(store, timer, slot);
            self.armed -= 1;
        }
    }

    /// The next timer that is due at `now_tick`, disarmed; `None` when there is
    /// none or `budget` is used up. Each timer that fires or moves down costs one
    /// step of it.
    pub(super) fn poll(
        &mut self,
        store: &mut impl TimerStore,
        now_tick: u64,
        budget: &mut u32,
    ) -> Option<TimerId> {
        while let Some(due) = self.next_slot() {
            if due.start > now_tick {
                break;
            }
            if *budget == 0 {
                return None;
            }
            *budget -= 1;
            self.elapsed = due.start;
            let timer = TimerId(self.slots[usize::from(due.slot)].head);
            self.unlink(store, timer, due.slot);
            if usize::from(due.slot) < SLOTS {
                self.armed -= 1;
                return Some(timer);
            }
            if self.is_occupied(due.slot) {
                self.cascading = Some(due.slot);
            }
            let tick = store.due_tick(timer);
            self.link(store, timer, tick);
        }
        self.elapsed = self.elapsed.max(now_tick);
        None
    }

    /// When [`TimerWheel::poll`] has something to do next: a timer's tick, or the
    /// earlier one at which a higher slot moves down.
    pub(super) fn next_tick(&self) -> Option<u64> {
        self.next_slot().map(|due| due.start)
    }

    /// Bytes allocated.
    pub(super) fn memory_bytes(&self) -> u64 {
        size_of_val(&*self.slots) as u64
    }

    fn next_slot(&self) -> Option<DueSlot> {
        if let Some(slot) = self.cascading {
            return Some(DueSlot {
                slot,
                start: self.elapsed,
            });
        }
        // Every slot of a level starts before any occupied slot of the level above.
        let level = self.occupied.iter().position(|&slots| slots != 0)?;
        let shift = SLOT_BITS * level as u32;
        let digit = self.occupied[level].trailing_zeros();
        let block = self.elapsed >> (shift + SLOT_BITS) << (shift + SLOT_BITS);
        Some(DueSlot {
            slot: (level * SLOTS) as u16 + digit as u16,
            start: block | u64::from(digit) << shift,
        })
    }

    /// Puts a timer where its tick belongs as seen from `elapsed`; one that is
    /// late already, where the tick that is now belongs.
    fn link(&mut self, store: &mut impl TimerStore, timer: TimerId, tick: u64) {
        let tick = tick.max(self.elapsed);
        let level = match tick ^ self.elapsed {
            0 => 0,
            differing => differing.ilog2() / SLOT_BITS,
        };
        let digit = tick >> (SLOT_BITS * level) & (SLOTS as u64 - 1);
        let slot = (level as usize * SLOTS) as u16 + digit as u16;
        self.slots[usize::from(slot)].push_back(&mut SlotLinks { store, slot }, timer.0);
        self.occupied[level as usize] |= 1 << digit;
    }

    fn unlink(&mut self, store: &mut impl TimerStore, timer: TimerId, slot: u16) {
        let list = &mut self.slots[usize::from(slot)];
        list.remove(&mut SlotLinks { store, slot }, timer.0);
        if list.is_empty() {
            self.occupied[usize::from(slot) / SLOTS] &= !(1 << (usize::from(slot) % SLOTS));
            if self.cascading == Some(slot) {
                self.cascading = None;
            }
        }
    }

    fn is_occupied(&self, slot: u16) -> bool {
        !self.slots[usize::from(slot)].is_empty()
    }

    /// Panics if the bookkeeping contradicts itself.
    pub(super) fn invariants(&self, store: &impl TimerStore) {
        let mut armed = 0;
        for (slot, list) in self.slots.iter().enumerate() {
            let (level, digit) = (slot / SLOTS, slot % SLOTS);
            let occupied = self.occupied[level] & 1 << digit != 0;
            assert_eq!(occupied, !list.is_empty());
            if !occupied {
                continue;
            }
            let shift = SLOT_BITS * level as u32;
            let own_digit = (self.elapsed >> shift) as usize % SLOTS;
            let is_cascading = self.cascading == Some(slot as u16);
            assert!(
                digit > own_digit || digit == own_digit && (level == 0 || is_cascading),
                "level {level} slot {digit} is behind the wheel's time"
            );
            let start = self.elapsed >> (shift + SLOT_BITS) << (shift + SLOT_BITS)
                | (digit as u64) << shift;
            for timer in list.check(|timer| store.timer(TimerId(timer)).links) {
                let state = store.timer(TimerId(timer));
                assert!(state.armed);
                assert_eq!(usize::from(state.slot), slot);
                // One that was late already fires in the slot it was armed at.
                let due_tick = store.due_tick(TimerId(timer));
                assert!(due_tick >> shift <= start >> shift, "due after its slot");
                assert!(level == 0 || due_tick >= start, "due before its slot");
                armed += 1;
            }
        }
        assert_eq!(self.armed, armed);
        if let Some(slot) = self.cascading {
            assert!(self.is_occupied(slot));
        }
    }
}

/// The timers' links as the list of one slot sees them.
struct SlotLinks<'a, S> {
    store: &'a mut S,
    slot: u16,
}

impl<S: TimerStore> LinkStore for SlotLinks<'_, S> {
    fn links_mut(&mut self, item: u32) -> &mut Links {
        &mut self.store.timer_mut(TimerId(item)).links
    }

    fn join(&mut self, item: u32, links: Links) {
        *self.store.timer_mut(TimerId(item)) = TimerLinks {
            links,
            slot: self.slot,
            armed: true,
        };
    }

    fn leave(&mut self, item: u32) -> Links {
        let timer = self.store.timer_mut(TimerId(item));
        std::mem::replace(timer, TimerLinks::UNARMED).links
    }
}

#[cfg(any(test, fuzzing))]
pub(super) mod fuzz;
#[cfg(test)]
mod tests;
