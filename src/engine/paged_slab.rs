//! A slab in pages of one fixed size: what is in it never moves, growth copies
//! nothing, and a page that has emptied goes back to the allocator.

use std::ops::{Index, IndexMut};

/// The index that names nothing.
pub(super) const NONE: u32 = u32::MAX;

/// Indices stay below this, so that two bits are left over for a tag.
pub(super) const MAX_INDICES: u32 = 1 << 30;

const PAGE_SHIFT: u32 = 12;
const PAGE_SLOTS: u32 = 1 << PAGE_SHIFT;

/// Items under small stable indices, each of which is reused after its removal.
///
/// One empty page is kept, so that a load that swings around a page's edge does
/// not allocate and free on every swing.
#[derive(Debug)]
pub(super) struct PagedSlab<T> {
    pages: Vec<Option<Page<T>>>,
    /// A bit for each allocated page with a free slot.
    with_room: Vec<u64>,
    /// No word of `with_room` before this one has a bit.
    first_room_word: usize,
    allocated_pages: u32,
    /// The one allocated page without items, or [`NONE`].
    spare_page: u32,
    len: u32,
}

#[derive(Debug)]
struct Page<T> {
    slots: Vec<Slot<T>>,
    first_free: u32,
    used: u32,
}

#[derive(Debug)]
enum Slot<T> {
    Used(T),
    Free { next: u32 },
}

impl<T> PagedSlab<T> {
    /// Bytes one item takes: its own, if it has values it never takes for the mark
    /// of a free slot to hide in.
    pub(super) const SLOT_BYTES: usize = size_of::<Slot<T>>();

    const PAGE_BYTES: u64 = PAGE_SLOTS as u64 * Self::SLOT_BYTES as u64;

    /// An empty slab; it allocates with the first insertion.
    pub(super) fn new() -> PagedSlab<T> {
        PagedSlab {
            pages: Vec::new(),
            with_room: Vec::new(),
            first_room_word: 0,
            allocated_pages: 0,
            spare_page: NONE,
            len: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    /// Stores `value` in the lowest page with room and returns its index.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let page_index = match self.lowest_page_with_room() {
            Some(page_index) => page_index,
            None => self.allocate_page(),
        };
        if self.spare_page == page_index {
            self.spare_page = NONE;
        }
        let page = self.pages[page_index as usize]
            .as_mut()
            .expect("a page with room is allocated");
        let slot = page.insert(value);
        if page.used == PAGE_SLOTS {
            self.clear_room(page_index);
        }
        self.len += 1;
        page_index << PAGE_SHIFT | slot
    }

    /// Takes the item out; its index may be handed out again from now on.
    pub(super) fn remove(&mut self, index: u32) -> T {
        let page_index = index >> PAGE_SHIFT;
        let page = self.pages[page_index as usize]
            .as_mut()
            .expect("an index in use lies in an allocated page");
        let value = page.remove(index & (PAGE_SLOTS - 1));
        let emptied = page.used == 0;
        self.set_room(page_index);
        self.len -= 1;
        if emptied {
            self.keep_or_free(page_index);
        }
        value
    }

    /// The item at `index`, `None` if there is none.
    pub(super) fn get(&self, index: u32) -> Option<&T> {
        let page = self.pages.get((index >> PAGE_SHIFT) as usize)?.as_ref()?;
        match page.slots.get((index & (PAGE_SLOTS - 1)) as usize)? {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// One past the highest index that can be in use.
    pub(super) fn index_end(&self) -> u32 {
        (self.pages.len() as u32) << PAGE_SHIFT
    }

    /// All items with their indices, in index order. Walks every page.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        let pages = self.pages.iter().enumerate();
        pages.flat_map(|(page_index, page)| {
            let slots = page.iter().flat_map(|page| page.slots.iter().enumerate());
            slots.filter_map(move |(slot, item)| match item {
                Slot::Used(value) => Some(((page_index << PAGE_SHIFT | slot) as u32, value)),
                Slot::Free { .. } => None,
            })
        })
    }

    /// Bytes that the next insertion will allocate.
    pub(super) fn growth_bytes(&self) -> u64 {
        if self.len < self.allocated_pages << PAGE_SHIFT {
            0
        } else {
            Self::PAGE_BYTES
        }
    }

    /// Bytes allocated, whether in use or not; not what the items own elsewhere.
    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.allocated_pages) * Self::PAGE_BYTES
            + (self.pages.capacity() * size_of::<Option<Page<T>>>()
                + self.with_room.capacity() * size_of::<u64>()) as u64
    }

    fn lowest_page_with_room(&mut self) -> Option<u32> {
        while self.first_room_word < self.with_room.len() {
            let word = self.with_room[self.first_room_word];
            if word != 0 {
                return Some(self.first_room_word as u32 * 64 + word.trailing_zeros());
            }
            self.first_room_word += 1;
        }
        None
    }

    fn set_room(&mut self, page_index: u32) {
        let word = (page_index / 64) as usize;
        self.with_room[word] |= 1 << (page_index % 64);
        self.first_room_word = self.first_room_word.min(word);
    }

    fn clear_room(&mut self, page_index: u32) {
        self.with_room[(page_index / 64) as usize] &= !(1 << (page_index % 64));
    }

    fn allocate_page(&mut self) -> u32 {
        let page_index = match self.pages.iter().position(Option::is_none) {
            Some(hole) => hole,
            None => {
                self.pages.push(None);
                self.with_room.resize(self.pages.len().div_ceil(64), 0);
                self.pages.len() - 1
            }
        };
        assert!(
            page_index < (MAX_INDICES >> PAGE_SHIFT) as usize,
            "limits keep every slab below 2^30 items"
        );
        self.pages[page_index] = Some(Page::new());
        self.allocated_pages += 1;
        self.set_room(page_index as u32);
        page_index as u32
    }

    /// Of two empty pages the higher one is freed, so that the slab shrinks from its end.
    fn keep_or_free(&mut self, emptied: u32) {
        if self.spare_page == NONE {
            self.spare_page = emptied;
            return;
        }
        let freed = self.spare_page.max(emptied);
        self.spare_page = self.spare_page.min(emptied);
        self.pages[freed as usize] = None;
        self.allocated_pages -= 1;
        self.clear_room(freed);
        while matches!(self.pages.last(), Some(None)) {
            self.pages.pop();
        }
        self.with_room.truncate(self.pages.len().div_ceil(64));
        shrink_long_unused(&mut self.pages);
        shrink_long_unused(&mut self.with_room);
    }

    /// Panics if the bookkeeping contradicts itself.
    pub(super) fn invariants(&self) {
        let mut used = 0;
        let mut allocated = 0;
        let mut spare = NONE;
        for (page_index, page) in self.pages.iter().enumerate() {
            let has_room = self.with_room[page_index / 64] & 1 << (page_index % 64) != 0;
            let Some(page) = page else {
                assert!(!has_room, "no room in a page that is not there");
                continue;
            };
            allocated += 1;
            used += page.used;
            assert_eq!(has_room, page.used < PAGE_SLOTS);
            if has_room {
                assert!(self.first_room_word <= page_index / 64);
            }
            if page.used == 0 {
                assert_eq!(spare, NONE, "one empty page is kept at most");
                spare = page_index as u32;
            }
        }
        assert_eq!(self.len, used);
        assert_eq!(self.allocated_pages, allocated);
        assert_eq!(self.spare_page, spare);
    }
}

/// Gives a directory's memory back when a quarter of it is used, down to what a
/// vector allocates first.
fn shrink_long_unused<T>(directory: &mut Vec<T>) {
    if directory.len() * 4 <= directory.capacity() {
        directory.shrink_to((directory.len() * 2).max(4));
    }
}

impl<T> Page<T> {
    fn new() -> Page<T> {
        Page {
            slots: Vec::with_capacity(PAGE_SLOTS as usize),
            first_free: NONE,
            used: 0,
        }
    }

    fn insert(&mut self, value: T) -> u32 {
        self.used += 1;
        if self.first_free == NONE {
            self.slots.push(Slot::Used(value));
            return self.slots.len() as u32 - 1;
        }
        let slot = self.first_free;
        match std::mem::replace(&mut self.slots[slot as usize], Slot::Used(value)) {
            Slot::Free { next } => self.first_free = next,
            Slot::Used(_) => unreachable!("the free list holds free slots"),
        }
        slot
    }

    fn remove(&mut self, slot: u32) -> T {
        let free = Slot::Free {
            next: self.first_free,
        };
        match std::mem::replace(&mut self.slots[slot as usize], free) {
            Slot::Used(value) => {
                self.first_free = slot;
                self.used -= 1;
                value
            }
            Slot::Free { .. } => panic!("slot {slot} of a page removed twice"),
        }
    }
}

impl<T> Index<u32> for PagedSlab<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        self.get(index).expect("the index is in use")
    }
}

impl<T> IndexMut<u32> for PagedSlab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        let page = self.pages[(index >> PAGE_SHIFT) as usize]
            .as_mut()
            .expect("an index in use lies in an allocated page");
        match &mut page.slots[(index & (PAGE_SLOTS - 1)) as usize] {
            Slot::Used(value) => value,
            Slot::Free { .. } => panic!("index {index} is not in use"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    type Item = Box<u32>;

    #[test]
    fn pages_come_and_go_with_their_items() {
        let mut slab: PagedSlab<Item> = PagedSlab::new();
        assert_eq!(slab.memory_bytes(), 0);
        let three_pages = 3 * PAGE_SLOTS;
        let indices: Vec<u32> = (0..three_pages).map(|n| slab.insert(Box::new(n))).collect();
        assert_eq!(indices, (0..three_pages).collect::<Vec<_>>());
        assert_eq!(slab.growth_bytes(), PagedSlab::<Item>::PAGE_BYTES);
        slab.invariants();
        for index in indices {
            assert_eq!(*slab.remove(index), index);
        }
        slab.invariants();
        assert_eq!(slab.allocated_pages, 1, "one page is kept");
        assert_eq!(slab.growth_bytes(), 0);
    }

    #[test]
    fn swinging_around_a_page_edge_allocates_once() {
        let mut slab: PagedSlab<Item> = PagedSlab::new();
        for n in 0..PAGE_SLOTS {
            slab.insert(Box::new(n));
        }
        let over_the_edge = slab.insert(Box::new(0));
        let memory_bytes = slab.memory_bytes();
        slab.remove(over_the_edge);
        assert_eq!(slab.memory_bytes(), memory_bytes);
        for _ in 0..10 {
            assert_eq!(slab.growth_bytes(), 0);
            let index = slab.insert(Box::new(0));
            slab.remove(index);
            slab.invariants();
        }
    }

    #[test]
    fn a_hole_left_by_a_freed_page_is_filled_again() {
        let mut slab: PagedSlab<Item> = PagedSlab::new();
        for n in 0..4 * PAGE_SLOTS {
            slab.insert(Box::new(n));
        }
        for index in (0..PAGE_SLOTS).chain(2 * PAGE_SLOTS..3 * PAGE_SLOTS) {
            slab.remove(index);
        }
        slab.invariants();
        assert_eq!(slab.allocated_pages, 3);
        for _ in 0..2 * PAGE_SLOTS {
            let index = slab.insert(Box::new(7));
            assert!(index < 4 * PAGE_SLOTS);
        }
        slab.invariants();
        assert_eq!(slab.len(), 4 * PAGE_SLOTS);
    }

    #[test]
    #[should_panic(expected = "the index is in use")]
    fn a_removed_index_is_not_read() {
        let mut slab: PagedSlab<Item> = PagedSlab::new();
        slab.insert(Box::new(1));
        let index = slab.insert(Box::new(2));
        slab.remove(index);
        let _ = &slab[index];
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn behaves_like_a_map(moves in prop::collection::vec((any::<bool>(), any::<prop::sample::Index>()), 1..400)) {
            let mut slab: PagedSlab<Item> = PagedSlab::new();
            let mut model = BTreeMap::new();
            for (number, (insert, which)) in moves.into_iter().enumerate() {
                let number = number as u32;
                if insert || model.is_empty() {
                    let index = slab.insert(Box::new(number));
                    prop_assert_eq!(model.insert(index, number), None);
                } else {
                    let index = *which.get(&model.keys().copied().collect::<Vec<_>>());
                    prop_assert_eq!(Some(*slab.remove(index)), model.remove(&index));
                }
                slab.invariants();
            }
            let found: BTreeMap<u32, u32> = slab.iter().map(|(index, item)| (index, **item)).collect();
            prop_assert_eq!(found, model);
        }
    }
}
