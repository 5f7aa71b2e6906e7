//! What has happened lately, kept so that a violation can be told with what led to it.

use crate::outcome::Outcome;
use crate::workload::KeyId;

/// Something that a client did or saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Event {
    /// When, on the boottime clock, in nanoseconds.
    pub(crate) at_ns: u64,
    /// With which key.
    pub(crate) key: KeyId,
    /// A token or a time, as the kind says.
    pub(crate) value: u64,
    /// Number of the client.
    pub(crate) client: u32,
    /// What.
    pub(crate) kind: EventKind,
}

/// Kinds of event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum EventKind {
    /// Nothing yet.
    #[default]
    None,
    /// An acquire was sent.
    AcquireSent,
    /// A grant with this token was received.
    Granted,
    /// The client believes until this time.
    Believes,
    /// A release with this token was sent.
    ReleaseSent,
    /// It was answered as it should be.
    Released,
    /// A request was refused, for the reason with this number.
    Refused,
    /// The connection broke while a request was under way.
    Lost,
}

/// The latest events of a thread.
#[derive(Debug)]
pub(crate) struct History {
    events: Vec<Event>,
    next: usize,
}

/// Events kept by each thread: a power of two, small enough to stay in a core's cache.
const KEPT: usize = 4096;

impl History {
    /// Nothing has happened.
    pub(crate) fn new() -> History {
        History {
            events: vec![Event::default(); KEPT],
            next: 0,
        }
    }

    /// Something happens.
    #[inline]
    pub(crate) fn push(&mut self, event: Event) {
        self.events[self.next % KEPT] = event;
        self.next += 1;
    }

    /// What is kept of one key, oldest first.
    pub(crate) fn of(&self, key: KeyId) -> Vec<Event> {
        let (newer, older) = self.events.split_at(self.next % KEPT);
        let all = older.iter().chain(newer);
        all.filter(|event| event.key == key && event.kind != EventKind::None)
            .copied()
            .collect()
    }
}

/// Lines that tell the events of all threads in order, their times in milliseconds
/// before the last one.
pub(crate) fn shown_history(mut events: Vec<Event>) -> Vec<String> {
    events.sort_by_key(|event| event.at_ns);
    let end_ns = events.last().map_or(0, |event| event.at_ns);
    let millis = |at_ns: u64| (at_ns as f64 - end_ns as f64) / 1e6;
    events
        .iter()
        .map(|event| {
            let what = match event.kind {
                EventKind::None => String::new(),
                EventKind::AcquireSent => "sends an acquire".into(),
                EventKind::Granted => format!("is granted the key, token {}", event.value),
                EventKind::Believes => {
                    format!(
                        "may believe in its lease until {:+.3} ms",
                        millis(event.value)
                    )
                }
                EventKind::ReleaseSent => format!("sends the release of token {}", event.value),
                EventKind::Released => "is told: released".into(),
                EventKind::Refused => {
                    format!("is refused: {}", Outcome::name_of(event.value as usize))
                }
                EventKind::Lost => "loses its connection before the answer".into(),
            };
            format!(
                "{:+12.3} ms  client {:<6} {what}",
                millis(event.at_ns),
                event.client
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(at_ns: u64, number: u64, kind: EventKind) -> Event {
        Event {
            at_ns,
            key: KeyId::new(0, number),
            value: 7,
            client: 3,
            kind,
        }
    }

    #[test]
    fn the_latest_events_of_a_key_are_kept_in_order() {
        let mut history = History::new();
        for at_ns in 0..3 * KEPT as u64 {
            history.push(event(at_ns, at_ns % 2, EventKind::AcquireSent));
        }
        let kept = history.of(KeyId::new(0, 1));
        assert_eq!(kept.len(), KEPT / 2);
        assert!(
            kept.windows(2)
                .all(|pair| pair[0].at_ns + 2 == pair[1].at_ns)
        );
        assert_eq!(
            kept.last().map(|event| event.at_ns),
            Some(3 * KEPT as u64 - 1)
        );
    }

    #[test]
    fn lines_are_sorted_over_threads_and_count_back_from_the_last() {
        let lines = shown_history(vec![
            event(5_000_000, 0, EventKind::Granted),
            event(3_000_000, 0, EventKind::AcquireSent),
        ]);
        assert_eq!(lines.len(), 2);
        assert!(lines[0].contains("-2.000 ms") && lines[0].contains("sends an acquire"));
        assert!(lines[1].contains("client 3") && lines[1].contains("token 7"));
    }
}
