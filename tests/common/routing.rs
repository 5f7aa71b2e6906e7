//! Which loop owns which key, as a client learns it from Welcome.

use leasehold::partition;

use super::wire::Welcome;

/// How one server shares its keys out.
#[derive(Clone, Copy, Debug)]
pub struct Routing {
    /// How many loops there are.
    pub loops: u16,
    seed: u64,
}

impl Routing {
    /// What Welcome told.
    pub fn of(welcome: &Welcome) -> Routing {
        Routing {
            loops: welcome.loops,
            seed: welcome.routing_seed,
        }
    }

    /// The loop that owns a key.
    pub fn loop_of(&self, key: impl AsRef<[u8]>) -> u16 {
        partition::loop_of(key.as_ref(), self.seed, self.loops)
    }

    /// Different keys that this loop owns, without end.
    pub fn keys(&self, loop_index: u16, prefix: &str) -> impl Iterator<Item = String> {
        (0..)
            .map(move |number| format!("{prefix}-{number}"))
            .filter(move |key| self.loop_of(key) == loop_index)
    }

    /// The first few of [`Routing::keys`].
    pub fn some_keys<const N: usize>(&self, loop_index: u16, prefix: &str) -> [String; N] {
        let mut keys = self.keys(loop_index, prefix);
        std::array::from_fn(|_| keys.next().expect("they have no end"))
    }

    /// One key of this loop.
    pub fn key(&self, loop_index: u16, prefix: &str) -> String {
        let [key] = self.some_keys(loop_index, prefix);
        key
    }

    /// The loop after this one, which is another one if there are several.
    pub fn next_loop(&self, loop_index: u16) -> u16 {
        (loop_index + 1) % self.loops
    }
}
