//! The seeds that randomised cases run.

pub use crate::store::rng::Rng;

/// The seeds a randomised case runs: one if `HEADWATER_SEED` names it, else the regressions and the first `count`,
/// or as many as `HEADWATER_SEEDS` sets.
pub fn seeds(regressions: &[u64], count: u64) -> Vec<u64> {
    if let Some(seed) = number("HEADWATER_SEED") {
        return vec![seed];
    }
    let count = seeds_requested().unwrap_or(count);
    let others = (1..=count).filter(|seed| !regressions.contains(seed));
    regressions.iter().copied().chain(others).collect()
}

/// How many seeds the environment requests.
pub(super) fn seeds_requested() -> Option<u64> {
    number("HEADWATER_SEEDS")
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse::<u64>().unwrap_or_else(|_| panic!("{name} must be a number, and is {text:?}")))
}
