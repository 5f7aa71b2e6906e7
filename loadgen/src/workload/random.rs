//! A small random number generator, the same on every machine and for ever: a seed
//! names a stream of operations.

/// splitmix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream number `stream` of this seed.
    pub(crate) fn new(seed: u64, stream: u64) -> Random {
        Random(mix(seed).wrapping_add(mix(stream.wrapping_add(GOLDEN))))
    }

    /// The next 64 random bits.
    #[inline]
    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix(self.0)
    }

    /// A number below `bound`, which must not be 0.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(bound)) >> 64) as u64
    }

    /// A number over 0, at most 1.
    #[inline]
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1_u64 << 53) as f64
    }

    /// A draw from the exponential distribution with mean 1.
    #[inline]
    pub(crate) fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }
}

const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A bijection of the 64-bit numbers whose values look unrelated.
#[inline]
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_stream_name_their_numbers() {
        let draw = |seed, stream| {
            let mut random = Random::new(seed, stream);
            (0..100).map(|_| random.next_u64()).collect::<Vec<_>>()
        };
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3), draw(7, 4));
        assert_ne!(draw(7, 3), draw(8, 3));
        assert_ne!(draw(7, 8), draw(8, 7));
    }

    #[test]
    fn numbers_stay_in_their_ranges_and_reach_all_of_them() {
        let mut random = Random::new(1, 1);
        let mut seen = [false; 5];
        let mut sum = 0.0;
        for _ in 0..10_000 {
            seen[random.below(5) as usize] = true;
            let unit = random.unit();
            assert!(unit > 0.0 && unit <= 1.0);
            sum += random.exponential();
        }
        assert_eq!(seen, [true; 5]);
        assert!((sum / 10_000.0 - 1.0).abs() < 0.05, "{sum}");
    }
}
