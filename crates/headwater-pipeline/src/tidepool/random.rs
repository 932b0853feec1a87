//! Random numbers that depend on what they are for and not on when they are drawn: each tick and each organism has a sequence of its own,
//! so neither the number of threads nor a restart changes them, and a checkpoint has no generator to store.

/// The odd number of `SplitMix64`: its multiples visit all 64-bit values.
const STRIDE: u64 = 0x9E37_79B9_7F4A_7C15;

/// A sequence of random numbers.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    /// The sequence of one stream (an organism, or a purpose) in one tick.
    pub(super) fn new(seed: u64, tick: u64, stream: u64) -> Self {
        Random(mix(mix(mix(seed) ^ tick) ^ stream))
    }

    /// Any 64 bits.
    pub(super) fn next(&mut self) -> u64 {
        let value = mix(self.0);
        self.0 = self.0.wrapping_add(STRIDE);
        value
    }

    /// In `0..bound`; 0 if the bound is 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// True with this probability.
    pub(super) fn chance(&mut self, probability: f64) -> bool {
        // 53 bits: each is exact in a double, so every machine decides in the same way.
        ((self.next() >> 11) as f64) * (1.0 / 9_007_199_254_740_992.0) < probability
    }

    /// A whole number whose mean is `expected`.
    pub(super) fn round(&mut self, expected: f64) -> u64 {
        expected as u64 + u64::from(self.chance(expected.fract()))
    }
}

/// The step function of `SplitMix64`: each bit of the input changes half of the bits of the result.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(STRIDE);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

#[cfg(test)]
mod tests {
    use super::Random;

    #[test]
    fn sequences_depend_on_seed_tick_and_stream_alone() {
        let first = |seed, tick, stream| Random::new(seed, tick, stream).next();
        assert_eq!(first(1, 2, 3), first(1, 2, 3));
        let others = [first(1, 2, 3), first(2, 2, 3), first(1, 3, 3), first(1, 2, 4), first(1, 3, 2)];
        for (at, one) in others.iter().enumerate() {
            assert!(!others[..at].contains(one), "{others:?}");
        }
    }

    #[test]
    fn numbers_are_spread_evenly() {
        let mut random = Random::new(7, 0, 0);
        let mut counts = [0_u32; 10];
        for _ in 0..10_000 {
            counts[random.below(10) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        let hits = (0..10_000).filter(|_| random.chance(0.25)).count();
        assert!((2_300..2_700).contains(&hits), "{hits}");
        let sum: u64 = (0..10_000).map(|_| random.round(2.5)).sum();
        assert!((24_000..26_000).contains(&sum), "{sum}");
        assert_eq!((random.below(0), random.chance(0.0), random.chance(1.0)), (0, false, true));
    }
}
