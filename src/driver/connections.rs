//! A loop's connections, found by their sessions.

use crate::ids::SessionId;

/// What a driver keeps for each session, by the session's slot. A handle that
/// outlived its session finds nothing.
#[derive(Debug)]
pub(super) struct Connections<C> {
    slots: Vec<Option<(SessionId, C)>>,
}

impl<C> Default for Connections<C> {
    fn default() -> Connections<C> {
        Connections { slots: Vec::new() }
    }
}

impl<C> Connections<C> {
    /// Notes a new session's connection.
    pub(super) fn insert(&mut self, id: SessionId, connection: C) {
        let slot = id.slot() as usize;
        if self.slots.len() <= slot {
            self.slots.resize_with(slot + 1, || None);
        }
        self.slots[slot] = Some((id, connection));
    }

    /// A session's connection.
    #[inline]
    pub(super) fn get_mut(&mut self, id: SessionId) -> Option<&mut C> {
        match self.slots.get_mut(id.slot() as usize) {
            Some(Some((of, connection))) if *of == id => Some(connection),
            _ => None,
        }
    }

    /// Forgets a session's connection.
    pub(super) fn remove(&mut self, id: SessionId) -> Option<C> {
        let slot = self.slots.get_mut(id.slot() as usize)?;
        let (_, connection) = slot.take_if(|(of, _)| *of == id)?;
        Some(connection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_that_outlived_its_session_finds_nothing() {
        let mut connections = Connections::default();
        let (old, new) = (SessionId::new(0, 1, 5), SessionId::new(0, 2, 5));
        connections.insert(old, 'a');
        assert_eq!(connections.get_mut(new), None);
        assert_eq!(connections.remove(new), None);
        assert_eq!(connections.remove(old), Some('a'));
        connections.insert(new, 'b');
        assert_eq!(connections.get_mut(old), None);
        assert_eq!(connections.remove(old), None);
        assert_eq!(connections.get_mut(new), Some(&mut 'b'));
        assert_eq!(connections.get_mut(SessionId::new(0, 2, 6)), None);
    }
}
