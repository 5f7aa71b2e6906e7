//! Doubly linked lists whose links lie in the items themselves, so that an item
//! joins and leaves in O(1) and a list costs no memory of its own.

use super::paged_slab::{NONE, PagedSlab};

/// First and last of a list; all further links lie in the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct List {
    pub(super) head: u32,
    pub(super) tail: u32,
}

/// One item's neighbours in one list; [`NONE`] at the ends.
#[derive(Clone, Copy, Debug)]
pub(super) struct Links {
    pub(super) prev: u32,
    pub(super) next: u32,
}

/// Where the links of a list's items are.
pub(super) trait LinkStore {
    fn links_mut(&mut self, item: u32) -> &mut Links;

    /// `item` joins a list between these neighbours.
    fn join(&mut self, item: u32, links: Links) {
        *self.links_mut(item) = links;
    }

    /// `item` leaves its list; its neighbours there are returned.
    fn leave(&mut self, item: u32) -> Links {
        std::mem::replace(self.links_mut(item), Links::UNLINKED)
    }
}

impl Links {
    /// Links of an item that is in no list.
    pub(super) const UNLINKED: Links = Links {
        prev: NONE,
        next: NONE,
    };
}

impl List {
    pub(super) const EMPTY: List = List {
        head: NONE,
        tail: NONE,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.head == NONE
    }

    /// Appends `item`, which is in no such list.
    pub(super) fn push_back(&mut self, store: &mut impl LinkStore, item: u32) {
        let links = Links {
            prev: self.tail,
            next: NONE,
        };
        store.join(item, links);
        match self.tail {
            NONE => self.head = item,
            tail => store.links_mut(tail).next = item,
        }
        self.tail = item;
    }

    /// Takes `item`, which is in this list, out of it.
    pub(super) fn remove(&mut self, store: &mut impl LinkStore, item: u32) {
        let Links { prev, next } = store.leave(item);
        match prev {
            NONE => self.head = next,
            prev => store.links_mut(prev).next = next,
        }
        match next {
            NONE => self.tail = prev,
            next => store.links_mut(next).prev = prev,
        }
    }

    /// The items from first to last; panics where the links contradict each other.
    pub(super) fn check(&self, links: impl Fn(u32) -> Links) -> Vec<u32> {
        let mut items = Vec::new();
        let mut prev = NONE;
        let mut item = self.head;
        while item != NONE {
            assert_eq!(links(item).prev, prev, "the way back is the way there");
            items.push(item);
            prev = item;
            item = links(item).next;
        }
        assert_eq!(self.tail, prev, "the list ends at its tail");
        items
    }
}

/// The links of a slab's items, reached through `field`.
pub(super) struct SlabLinks<'a, T> {
    pub(super) slab: &'a mut PagedSlab<T>,
    pub(super) field: fn(&mut T) -> &mut Links,
}

impl<T> LinkStore for SlabLinks<'_, T> {
    fn links_mut(&mut self, item: u32) -> &mut Links {
        (self.field)(&mut self.slab[item])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Store(Vec<Links>);

    impl LinkStore for Store {
        fn links_mut(&mut self, item: u32) -> &mut Links {
            &mut self.0[item as usize]
        }
    }

    #[test]
    fn order_survives_removals_at_either_end_and_between() {
        let mut store = Store(vec![Links::UNLINKED; 5]);
        let mut list = List::EMPTY;
        for item in 0..5 {
            list.push_back(&mut store, item);
        }
        for (removed, rest) in [
            (2, vec![0, 1, 3, 4]),
            (0, vec![1, 3, 4]),
            (4, vec![1, 3]),
            (3, vec![1]),
            (1, vec![]),
        ] {
            list.remove(&mut store, removed);
            assert_eq!(list.check(|item| store.0[item as usize]), rest);
        }
        assert_eq!(list, List::EMPTY);
        list.push_back(&mut store, 2);
        assert_eq!(list.check(|item| store.0[item as usize]), [2]);
    }
}
