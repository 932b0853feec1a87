//! Limits for a whole group across all processes, and the token bucket of the rate limit.

use crate::error::{Error, Result};

/// Limits on what one subscription hands out, across all owners and processes. None unless set.
///
/// They are part of the claim: every consumer of the group should set the same ones. The unit is an offset of a lease.
/// A lease of an ordered subscription counts one in `lanes` of its offsets, rounded up, since about that many belong to
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct GroupLimits {
    /// Most messages leased at any time.
    pub in_flight_max: Option<u32>,
    /// How fast messages are handed out, including redeliveries.
    pub rate: Option<RateLimit>,
}

/// A token bucket: `burst` messages at once, then `per_second`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    /// Messages per second in the long run; above zero and finite.
    pub per_second: f64,
    /// Messages at once after a pause; at least 1.
    pub burst: u32,
}

/// Slower than one message in thirty years and faster than any store: bounds that keep the arithmetic finite.
const PER_SECOND: (f64, f64) = (1e-9, 1e9);

/// A token this close to whole counts as whole: 100 ms at ten per second must be one message despite binary fractions.
#[cfg(feature = "sqlite")]
const NEARLY: f64 = 1e-9;

impl GroupLimits {
    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.in_flight_max.is_none() && self.rate.is_none()
    }

    /// Checks every field against its rule.
    pub(crate) fn validate(&self) -> Result<()> {
        if self.in_flight_max == Some(0) {
            return Err(Error::invalid("in_flight_max", "must be at least 1"));
        }
        let Some(rate) = self.rate else { return Ok(()) };
        if !rate.per_second.is_finite() || rate.per_second <= 0.0 {
            return Err(Error::invalid("per_second", "must be above zero and finite"));
        }
        if rate.burst == 0 {
            return Err(Error::invalid("burst", "must be at least 1"));
        }
        Ok(())
    }
}

impl RateLimit {
    /// The rate, clamped so that no arithmetic overflows.
    pub(crate) fn bounded_per_second(self) -> f64 {
        self.per_second.clamp(PER_SECOND.0, PER_SECOND.1)
    }
}

/// The state of a token bucket.
#[cfg(feature = "sqlite")]
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bucket {
    /// Tokens, including a fraction.
    pub(crate) tokens: f64,
    /// The time of this state.
    pub(crate) filled_at_ms: i64,
}

#[cfg(feature = "sqlite")]
impl Bucket {
    /// The bucket at `now_ms`: full if it was never used. A clock that stepped back neither adds nor removes tokens,
    /// and refilling continues from the new time.
    pub(crate) fn refilled(stored: Option<Bucket>, rate: RateLimit, now_ms: i64) -> Bucket {
        let burst = f64::from(rate.burst);
        let tokens = stored.map_or(burst, |bucket| {
            let passed_ms = now_ms.saturating_sub(bucket.filled_at_ms).max(0);
            burst.min(bucket.tokens + passed_ms as f64 / 1000.0 * rate.bounded_per_second())
        });
        Bucket { tokens, filled_at_ms: now_ms }
    }

    /// How many messages it allows.
    pub(crate) fn whole(self) -> u64 {
        (self.tokens + NEARLY).floor().max(0.0) as u64
    }

    /// When it next allows one, in milliseconds from its own time; 0 if it does now.
    pub(crate) fn next_after_ms(self, rate: RateLimit) -> i64 {
        if self.whole() > 0 {
            return 0;
        }
        let after_ms = (1.0 - self.tokens) / rate.bounded_per_second() * 1000.0;
        ((after_ms - 1e-6).ceil() as i64).max(1)
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_bucket_starts_full_and_drips() {
        let rate = RateLimit { per_second: 10.0, burst: 3 };
        let full = Bucket::refilled(None, rate, 1_000);
        assert_eq!((full.whole(), full.next_after_ms(rate)), (3, 0));
        let empty = Bucket { tokens: 0.0, ..full };
        assert_eq!(empty.next_after_ms(rate), 100);
        let nearly = Bucket::refilled(Some(empty), rate, 1_099);
        assert_eq!((nearly.whole(), nearly.next_after_ms(rate)), (0, 1));
        assert_eq!(Bucket::refilled(Some(empty), rate, 1_100).whole(), 1);
        assert_eq!(Bucket::refilled(Some(empty), rate, 1_000_000).whole(), 3);
    }

    #[test]
    fn a_clock_that_jumps_back_neither_fills_nor_stops_it() {
        let rate = RateLimit { per_second: 10.0, burst: 3 };
        let empty = Bucket { tokens: 0.5, filled_at_ms: 1_000_000 };
        let back = Bucket::refilled(Some(empty), rate, 1_000);
        assert_eq!(back, Bucket { tokens: 0.5, filled_at_ms: 1_000 });
        assert_eq!(Bucket::refilled(Some(back), rate, 1_050).whole(), 1);
    }

    proptest! {
        /// However often it is refilled, it gives no more tokens than the time allows.
        #[test]
        fn claiming_often_gives_no_more(per_second in 0.001f64..2_000.0, steps in prop::collection::vec(0i64..700, 1..200)) {
            let rate = RateLimit { per_second, burst: 50 };
            let mut bucket = Bucket { tokens: 0.0, filled_at_ms: 0 };
            let (mut now_ms, mut taken) = (0, 0);
            for step in steps {
                now_ms += step;
                bucket = Bucket::refilled(Some(bucket), rate, now_ms);
                let whole = bucket.whole();
                bucket.tokens -= whole as f64;
                taken += whole;
            }
            prop_assert!(taken as f64 <= now_ms as f64 / 1000.0 * per_second + 1e-6);
        }

        /// It gives a token at the returned time, and not before.
        #[test]
        fn the_next_token_comes_when_it_says(per_second in 0.001f64..2_000.0, tokens in 0.0f64..1.0) {
            let rate = RateLimit { per_second, burst: 50 };
            let bucket = Bucket { tokens, filled_at_ms: 0 };
            let after_ms = bucket.next_after_ms(rate);
            prop_assert!(Bucket::refilled(Some(bucket), rate, after_ms).whole() >= 1);
            prop_assert!(after_ms <= 1 || Bucket::refilled(Some(bucket), rate, after_ms - 1).whole() == 0);
        }
    }
}
