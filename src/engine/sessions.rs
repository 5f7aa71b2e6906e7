//! What the engine keeps of a session, and only while there is something: its
//! queued acquires, and the grants to release when it closes.

use super::list::{Links, List, SlabLinks};
use super::lock_table::Side;
use super::paged_slab::{NONE, PagedSlab};
use super::time::Time;
use crate::ids::SessionId;

const PAGE_CLIENTS: usize = 512;

/// The sessions of every loop, found by their slot.
#[derive(Debug)]
pub(super) struct Sessions {
    /// By loop, by slot / [`PAGE_CLIENTS`].
    loops: Vec<Vec<Option<Box<ClientPage>>>>,
    pages: u32,
    /// Allocated pages without a session in them; one at most, kept so that a
    /// session that comes and goes alone does not allocate every time.
    idle_pages: u32,
    pub(super) groups: PagedSlab<GrantGroup>,
    /// Groups whose grants are to be released, the earliest close first.
    closing: List,
}

#[derive(Debug)]
struct ClientPage {
    clients: [Client; PAGE_CLIENTS],
    used: u32,
}

/// One session that has something here.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    /// `None` while the slot's session has nothing here.
    session: Option<SessionId>,
    pub(super) waiters: List,
    pub(super) waiter_count: u32,
    /// The group its grants join, [`NONE`] if it did not set `RELEASE_ON_CLOSE`.
    pub(super) group: u32,
}

/// The grants of one session that set `RELEASE_ON_CLOSE`, except those that
/// another session has extended. It outlives the session until they have ended.
#[derive(Debug)]
pub(super) struct GrantGroup {
    pub(super) session: SessionId,
    pub(super) state: GroupState,
    grants: List,
    count: u32,
    closing_links: Links,
}

/// What becomes of a group's grants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GroupState {
    /// The session lives.
    Live,
    /// It ended in order at this time: grants whose lease was not over by then are
    /// released, step by step, or sooner when their key is touched.
    Closing(Time),
    /// It ended otherwise: the grants run to the end of their leases.
    Abandoned,
}

impl Client {
    const UNUSED: Client = Client {
        session: None,
        waiters: List::EMPTY,
        waiter_count: 0,
        group: NONE,
    };
}

impl Sessions {
    pub(super) fn new() -> Sessions {
        Sessions {
            loops: Vec::new(),
            pages: 0,
            idle_pages: 0,
            groups: PagedSlab::new(),
            closing: List::EMPTY,
        }
    }

    /// The session's record, `None` while it has nothing here.
    pub(super) fn get(&self, session: SessionId) -> Option<&Client> {
        let (page, place) = locate(session);
        let page = self
            .loops
            .get(usize::from(session.loop_index()))?
            .get(page)?
            .as_ref()?;
        let client = &page.clients[place];
        (client.session == Some(session)).then_some(client)
    }

    /// The session's record, which must be there.
    pub(super) fn get_mut(&mut self, session: SessionId) -> &mut Client {
        let (page, place) = locate(session);
        let client = self.loops[usize::from(session.loop_index())][page]
            .as_mut()
            .map(|page| &mut page.clients[place])
            .expect("a session in use lies in an allocated page");
        assert_eq!(client.session, Some(session), "the session is in use");
        client
    }

    /// The session's record; makes one, with a group if it releases on close.
    pub(super) fn get_or_new(&mut self, session: SessionId, release_on_close: bool) -> &mut Client {
        if self.get(session).is_none() {
            self.insert(session, release_on_close);
        }
        self.get_mut(session)
    }

    fn insert(&mut self, session: SessionId, release_on_close: bool) {
        let group = if release_on_close {
            self.groups.insert(GrantGroup {
                session,
                state: GroupState::Live,
                grants: List::EMPTY,
                count: 0,
                closing_links: Links::UNLINKED,
            })
        } else {
            NONE
        };
        let (page_index, place) = locate(session);
        let loop_index = usize::from(session.loop_index());
        if loop_index >= self.loops.len() {
            self.loops.resize_with(loop_index + 1, Vec::new);
        }
        let pages = &mut self.loops[loop_index];
        if page_index >= pages.len() {
            pages.resize_with(page_index + 1, || None);
        }
        let page = pages[page_index].get_or_insert_with(|| {
            self.pages += 1;
            self.idle_pages += 1;
            Box::new(ClientPage {
                clients: [Client::UNUSED; PAGE_CLIENTS],
                used: 0,
            })
        });
        let client = &mut page.clients[place];
        assert_eq!(
            client.session, None,
            "a slot's former session was ended before its next one came"
        );
        *client = Client {
            session: Some(session),
            group,
            ..Client::UNUSED
        };
        if page.used == 0 {
            self.idle_pages -= 1;
        }
        page.used += 1;
    }

    /// Forgets the session if it has nothing here any more.
    pub(super) fn drop_idle(&mut self, session: SessionId) {
        let client = self.get_mut(session);
        let (waiter_count, group) = (client.waiter_count, client.group);
        if waiter_count > 0 || (group != NONE && self.groups[group].count > 0) {
            return;
        }
        if group != NONE {
            self.groups.remove(group);
        }
        self.remove(session);
    }

    /// The session, which has no waiters any more, has ended: its grants are to be
    /// released (`Some(now)`) or left to their leases.
    pub(super) fn end(&mut self, session: SessionId, release_at: Option<Time>) {
        let group = self.get_mut(session).group;
        self.remove(session);
        if group == NONE {
            return;
        }
        if self.groups[group].count == 0 {
            self.groups.remove(group);
        } else if let Some(now) = release_at {
            self.groups[group].state = GroupState::Closing(now);
            let mut links = closing_links(&mut self.groups);
            self.closing.push_back(&mut links, group);
        } else {
            self.groups[group].state = GroupState::Abandoned;
        }
    }

    fn remove(&mut self, session: SessionId) {
        let (page_index, place) = locate(session);
        let slot = &mut self.loops[usize::from(session.loop_index())][page_index];
        if let Some(page) = slot {
            page.clients[place] = Client::UNUSED;
            page.used -= 1;
            if page.used > 0 {
                return;
            }
            if self.idle_pages == 0 {
                self.idle_pages = 1;
            } else {
                *slot = None;
                self.pages -= 1;
            }
        }
    }

    /// Adds the grant with this side record to its session's group.
    pub(super) fn join_group(&mut self, sides: &mut PagedSlab<Side>, side: u32, group: u32) {
        sides[side].group = group;
        let group = &mut self.groups[group];
        group.grants.push_back(&mut grant_links(sides), side);
        group.count += 1;
    }

    /// Takes the grant with this side record out of its group, if it is in one.
    pub(super) fn leave_group(&mut self, sides: &mut PagedSlab<Side>, side: u32) {
        let index = std::mem::replace(&mut sides[side].group, NONE);
        if index == NONE {
            return;
        }
        let group = &mut self.groups[index];
        group.grants.remove(&mut grant_links(sides), side);
        group.count -= 1;
        if group.count > 0 {
            return;
        }
        let session = group.session;
        match group.state {
            GroupState::Live => self.drop_idle(session),
            GroupState::Closing(_) => {
                let mut links = closing_links(&mut self.groups);
                self.closing.remove(&mut links, index);
                self.groups.remove(index);
            }
            GroupState::Abandoned => {
                self.groups.remove(index);
            }
        }
    }

    /// The side record of the next grant to release because its session closed.
    pub(super) fn next_closing_grant(&self) -> Option<u32> {
        match self.closing.head {
            NONE => None,
            group => Some(self.groups[group].grants.head),
        }
    }

    /// About the bytes that a new record for this session would allocate.
    pub(super) fn growth_bytes(&self, session: SessionId, release_on_close: bool) -> u64 {
        if self.get(session).is_some() {
            return 0;
        }
        let (page_index, _) = locate(session);
        let has_page = self
            .loops
            .get(usize::from(session.loop_index()))
            .and_then(|pages| pages.get(page_index))
            .is_some_and(Option::is_some);
        let page_bytes = if has_page { 0 } else { size_of::<ClientPage>() };
        let group_bytes = if release_on_close {
            self.groups.growth_bytes()
        } else {
            0
        };
        page_bytes as u64 + group_bytes
    }

    /// Bytes allocated.
    pub(super) fn memory_bytes(&self) -> u64 {
        let directory: usize = self
            .loops
            .iter()
            .map(|pages| pages.capacity() * size_of::<Option<Box<ClientPage>>>())
            .sum();
        directory as u64
            + u64::from(self.pages) * size_of::<ClientPage>() as u64
            + self.groups.memory_bytes()
    }

    /// Panics if the bookkeeping contradicts itself. Walks everything.
    pub(super) fn invariants(&self, sides: &PagedSlab<Side>) {
        self.groups.invariants();
        let mut pages = 0;
        let mut idle_pages = 0;
        let mut live_groups = 0;
        for page in self.loops.iter().flatten().flatten() {
            pages += 1;
            let used = page.clients.iter().filter(|c| c.session.is_some()).count();
            assert_eq!(page.used as usize, used);
            idle_pages += u32::from(used == 0);
            for client in page.clients.iter().filter(|c| c.session.is_some()) {
                if client.group != NONE {
                    live_groups += 1;
                    let group = &self.groups[client.group];
                    assert_eq!(Some(group.session), client.session);
                    assert_eq!(group.state, GroupState::Live);
                }
            }
        }
        assert_eq!((self.pages, self.idle_pages), (pages, idle_pages));
        assert!(idle_pages <= 1);
        let closing = self.closing.check(|group| self.groups[group].closing_links);
        let mut grants = 0;
        for (index, group) in self.groups.iter() {
            let members = group.grants.check(|side| sides[side].group_links);
            assert_eq!(members.len(), group.count as usize);
            assert!(members.iter().all(|&side| sides[side].group == index));
            grants += members.len();
            match group.state {
                GroupState::Live => live_groups -= 1,
                GroupState::Closing(_) => assert!(group.count > 0 && closing.contains(&index)),
                GroupState::Abandoned => assert!(group.count > 0),
            }
        }
        assert_eq!(live_groups, 0, "each live group is its session's");
        let grouped = sides.iter().filter(|(_, side)| side.group != NONE).count();
        assert_eq!(grants, grouped);
    }

    /// All sessions with something here. Walks every page.
    pub(super) fn iter(&self) -> impl Iterator<Item = (SessionId, &Client)> {
        self.loops
            .iter()
            .flatten()
            .flatten()
            .flat_map(|page| page.clients.iter())
            .filter_map(|client| Some((client.session?, client)))
    }
}

fn locate(session: SessionId) -> (usize, usize) {
    let slot = session.slot() as usize;
    (slot / PAGE_CLIENTS, slot % PAGE_CLIENTS)
}

fn grant_links(sides: &mut PagedSlab<Side>) -> SlabLinks<'_, Side> {
    SlabLinks {
        slab: sides,
        field: |side| &mut side.group_links,
    }
}

fn closing_links(groups: &mut PagedSlab<GrantGroup>) -> SlabLinks<'_, GrantGroup> {
    SlabLinks {
        slab: groups,
        field: |group| &mut group.closing_links,
    }
}
