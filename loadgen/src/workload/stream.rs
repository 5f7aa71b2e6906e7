//! Each client's stream of activities and keys: a function of the seed and the
//! client's number alone, whatever the server and the other clients do.

use super::{Activity, KeyId, KeyText, Random, zipf::Zipf};
use leasehold::partition::loop_of;

/// What all streams of a run share.
#[derive(Clone, Debug)]
pub(crate) struct Streams {
    seed: u64,
    clients: u64,
    total_weight: u64,
    choices: Vec<Choice>,
}

#[derive(Clone, Debug)]
struct Choice {
    weight: u64,
    /// Keys that a client chooses among.
    span: u64,
    is_private: bool,
    zipf: Option<Zipf>,
    hold_ns: f64,
    hold_is_random: bool,
}

/// Which loop's keys a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// How many loops the server has.
    pub(crate) loops: u16,
    /// Seed of the routing hash.
    pub(crate) seed: u64,
    /// The loop of the client's session.
    pub(crate) loop_index: u16,
    /// Keys of all loops but that one.
    pub(crate) is_remote: bool,
}

/// One client's stream.
#[derive(Clone, Debug)]
pub(crate) struct Stream {
    random: Random,
    client: u64,
}

/// One round: what to do, and with which key.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Draw {
    /// Index of the activity.
    pub(crate) activity: usize,
    /// The key.
    pub(crate) key: KeyId,
    /// The key's rank among those that the client chose from.
    pub(crate) rank: u64,
    /// How long to hold it, in nanoseconds.
    pub(crate) hold_ns: u64,
}

impl Streams {
    /// Streams for `clients` clients.
    pub(crate) fn new(seed: u64, clients: u64, activities: &[Activity]) -> Streams {
        let choices: Vec<Choice> = activities
            .iter()
            .map(|activity| {
                let is_private = activity.kind.has_private_keys();
                let span = match is_private {
                    true => (activity.keys / clients).max(1),
                    false => activity.keys,
                };
                Choice {
                    weight: activity.weight.into(),
                    span,
                    is_private,
                    zipf: activity.zipf.map(|exponent| Zipf::new(span, exponent)),
                    hold_ns: activity.hold.mean_ns as f64,
                    hold_is_random: activity.hold.is_random,
                }
            })
            .collect();
        Streams {
            seed,
            clients,
            total_weight: choices.iter().map(|choice| choice.weight).sum(),
            choices,
        }
    }

    /// The stream of client number `client`.
    pub(crate) fn of(&self, client: u64) -> Stream {
        Stream {
            random: Random::new(self.seed, client),
            client,
        }
    }

    /// How many keys a client of this activity chooses among.
    pub(crate) fn span(&self, activity: usize) -> u64 {
        self.choices[activity].span
    }

    /// The key with this rank, of those that the client chooses among.
    #[inline]
    pub(crate) fn key(&self, activity: usize, client: u64, rank: u64) -> KeyId {
        let number = match self.choices[activity].is_private {
            true => client + self.clients * rank,
            false => rank,
        };
        KeyId::new(activity as u8, number)
    }

    /// Whether a client at that place has any key of the activity to ask for.
    pub(crate) fn has_key(
        &self,
        activity: usize,
        client: u64,
        place: Place,
        text: &mut KeyText,
    ) -> bool {
        (0..self.span(activity)).any(|rank| place.takes(text.of(self.key(activity, client, rank))))
    }

    /// The next round of a client's stream. With a `place`, some key must be there.
    #[inline]
    pub(crate) fn draw(
        &self,
        stream: &mut Stream,
        place: Option<Place>,
        text: &mut KeyText,
    ) -> Draw {
        let random = &mut stream.random;
        let activity = match self.choices.len() {
            1 => 0,
            _ => self.choose(random),
        };
        let choice = &self.choices[activity];
        let (rank, key) = loop {
            let rank = match &choice.zipf {
                None => random.below(choice.span),
                Some(zipf) => zipf.draw(random),
            };
            let key = self.key(activity, stream.client, rank);
            if place.is_none_or(|place| place.takes(text.of(key))) {
                break (rank, key);
            }
        };
        let factor = match choice.hold_is_random {
            true => random.exponential(),
            false => 1.0,
        };
        Draw {
            activity,
            key,
            rank,
            hold_ns: (choice.hold_ns * factor) as u64,
        }
    }

    fn choose(&self, random: &mut Random) -> usize {
        let mut left = random.below(self.total_weight);
        for (index, choice) in self.choices.iter().enumerate() {
            if left < choice.weight {
                return index;
            }
            left -= choice.weight;
        }
        self.choices.len() - 1
    }
}

impl Place {
    #[inline]
    fn takes(self, key: &[u8]) -> bool {
        (loop_of(key, self.seed, self.loops) == self.loop_index) != self.is_remote
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Close, Hold, Kind};
    use std::collections::HashSet;

    fn activity(kind: Kind, keys: u64) -> Activity {
        Activity {
            kind,
            weight: 1,
            keys,
            zipf: None,
            wait_ms: 0,
            lease_ms: 1_000,
            hold: Hold::default(),
            data_bytes: 0,
            close: Close::Fin,
        }
    }

    fn draws(streams: &Streams, client: u64, count: usize) -> Vec<Draw> {
        let mut stream = streams.of(client);
        let mut text = KeyText::new(16);
        (0..count)
            .map(|_| streams.draw(&mut stream, None, &mut text))
            .collect()
    }

    #[test]
    fn the_same_seed_gives_the_same_stream_and_another_another() {
        let mut activities = vec![activity(Kind::Pairs, 1_000), activity(Kind::Contended, 5)];
        activities[0].zipf = Some(0.9);
        activities[1].hold = Hold {
            mean_ns: 1_000,
            is_random: true,
        };
        let one = Streams::new(3, 10, &activities);
        let again = Streams::new(3, 10, &activities);
        let other = Streams::new(4, 10, &activities);
        for client in 0..10 {
            let stream = draws(&one, client, 200);
            assert_eq!(stream, draws(&again, client, 200));
            assert_ne!(stream, draws(&other, client, 200));
        }
        assert_ne!(draws(&one, 0, 200), draws(&one, 1, 200));
    }

    #[test]
    fn private_keys_are_nobody_else_s_and_shared_ones_everybody_s() {
        let activities = [activity(Kind::Pairs, 30), activity(Kind::Try, 4)];
        let streams = Streams::new(1, 3, &activities);
        let of = |client, wanted| -> HashSet<KeyId> {
            let all = draws(&streams, client, 1_000).into_iter();
            let chosen = all.filter(|draw| draw.activity == wanted);
            chosen.map(|draw| draw.key).collect()
        };
        let private = [of(0, 0), of(1, 0), of(2, 0)];
        assert!(private.iter().all(|keys| keys.len() == 10));
        assert!(private[0].is_disjoint(&private[1]) && private[1].is_disjoint(&private[2]));
        assert_eq!(of(0, 1), of(2, 1));
        assert_eq!(of(0, 1).len(), 4);
    }

    #[test]
    fn weights_decide_how_often_an_activity_is_chosen() {
        let mut activities = [activity(Kind::Pairs, 30), activity(Kind::Try, 4)];
        activities[0].weight = 9;
        let streams = Streams::new(1, 1, &activities);
        let tries = draws(&streams, 0, 10_000);
        let tries = tries.iter().filter(|draw| draw.activity == 1).count();
        assert!((900..1_100).contains(&tries), "{tries}");
    }

    #[test]
    fn a_place_filters_the_keys() {
        let streams = Streams::new(1, 1, &[activity(Kind::Pairs, 1_000)]);
        let mut text = KeyText::new(16);
        for is_remote in [false, true] {
            let place = Place {
                loops: 4,
                seed: 9,
                loop_index: 2,
                is_remote,
            };
            assert!(streams.has_key(0, 0, place, &mut text));
            let mut stream = streams.of(0);
            for _ in 0..500 {
                let key = streams.draw(&mut stream, Some(place), &mut text).key;
                assert_eq!(loop_of(text.of(key), 9, 4) != 2, is_remote);
            }
        }
        let nowhere = Place {
            loops: 1,
            seed: 9,
            loop_index: 0,
            is_remote: true,
        };
        assert!(!streams.has_key(0, 0, nowhere, &mut text));
    }
}
