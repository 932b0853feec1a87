//! Figures over time in bounded memory: the last minutes finely, the last hour coarsely.
//!
//! A series that never changed has no memory of its own: in a store with thousands of groups most are idle.

/// Seconds of a coarse slot, and how many there are: an hour.
pub(crate) const COARSE_STEP_S: u64 = 30;
const COARSE_SLOTS: usize = 120;
/// A reading fills this many slots before it at most; a longer pause is a hole in the series.
const FILLED_S_MAX: u64 = 60;

/// How finely the last five minutes are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fineness {
    /// A value per second.
    Second,
    /// A value per two seconds: for what there may be many thousands of.
    TwoSeconds,
}

impl Fineness {
    pub(crate) fn step_s(self) -> u64 {
        match self {
            Fineness::Second => 1,
            Fineness::TwoSeconds => 2,
        }
    }

    fn slots(self) -> usize {
        match self {
            Fineness::Second => 300,
            Fineness::TwoSeconds => 150,
        }
    }
}

/// One figure over time.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    fine: Ring,
    coarse: Ring,
}

impl Series {
    pub(crate) fn new(fineness: Fineness) -> Self {
        Series {
            fine: Ring::new(fineness.step_s(), fineness.slots()),
            coarse: Ring::new(COARSE_STEP_S, COARSE_SLOTS),
        }
    }

    /// Adds a reading. `second` counts from any fixed time and never falls.
    pub(crate) fn push(&mut self, second: u64, value: f32) {
        self.fine.push(second, value);
        self.coarse.push(second, value);
    }

    /// The last five minutes until `second`, oldest first; not a number where nothing was read.
    pub(crate) fn minutes(&self, second: u64) -> Readings {
        self.fine.readings(second)
    }

    /// The last hour, in the same way.
    pub(crate) fn hour(&self, second: u64) -> Readings {
        self.coarse.readings(second)
    }
}

/// Values at even steps, oldest first.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Readings {
    pub(crate) step_s: u64,
    pub(crate) values: Vec<f32>,
}

#[derive(Clone, Debug)]
struct Ring {
    step_s: u64,
    len: usize,
    /// The values by slot number modulo length; empty as long as all values were the same.
    values: Vec<f32>,
    /// The first slot that was ever filled, the last one, and how many readings its value is the mean of.
    first: u64,
    last: u64,
    count: f32,
    /// The value of the last slot.
    value: f32,
}

impl Ring {
    fn new(step_s: u64, len: usize) -> Self {
        Ring { step_s, len, values: Vec::new(), first: 0, last: 0, count: 0.0, value: f32::NAN }
    }

    fn push(&mut self, second: u64, value: f32) {
        let slot = second / self.step_s;
        if self.count == 0.0 {
            (self.first, self.last, self.count, self.value) = (slot, slot, 1.0, value);
            return;
        }
        let slot = slot.max(self.last);
        let is_hole = (slot - self.last) * self.step_s > FILLED_S_MAX;
        if self.values.is_empty() && (is_hole || value.to_bits() != self.value.to_bits()) {
            self.values = vec![f32::NAN; self.len];
            for earlier in self.first.max(self.last.saturating_sub(self.len as u64 - 1))..=self.last {
                self.set(earlier, self.value);
            }
        }
        if slot == self.last {
            let mean = (self.value * self.count + value) / (self.count + 1.0);
            (self.value, self.count) = (mean, self.count + 1.0);
        } else {
            // What was read now holds for the time since the reading before.
            for between in (self.last + 1).max(slot.saturating_sub(self.len as u64))..slot {
                self.set(between, if is_hole { f32::NAN } else { value });
            }
            (self.last, self.value, self.count) = (slot, value, 1.0);
        }
        self.set(slot, self.value);
    }

    fn set(&mut self, slot: u64, value: f32) {
        if !self.values.is_empty() {
            let at = self.at(slot);
            self.values[at] = value;
        }
    }

    fn at(&self, slot: u64) -> usize {
        usize::try_from(slot % self.len as u64).unwrap_or(0)
    }

    fn readings(&self, second: u64) -> Readings {
        let now = (second / self.step_s).max(self.last);
        let from = (now + 1).saturating_sub(self.len as u64);
        let value_at = |slot: u64| match () {
            () if self.count == 0.0 || slot < self.first || slot > self.last => f32::NAN,
            () if self.values.is_empty() => self.value,
            () => self.values[self.at(slot)],
        };
        let missing = self.len - usize::try_from(now + 1 - from).unwrap_or(self.len);
        let mut values = vec![f32::NAN; missing];
        values.extend((from..=now).map(value_at));
        // The slot that is just being filled repeats the last reading instead of falling to nothing.
        if now == self.last + 1
            && let Some(end) = values.last_mut()
        {
            *end = self.value;
        }
        Readings { step_s: self.step_s, values }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(series: &Series, second: u64) -> Vec<f32> {
        series.minutes(second).values.into_iter().filter(|value| !value.is_nan()).collect()
    }

    #[test]
    fn a_series_that_does_not_change_has_no_memory_of_its_own() {
        let mut series = Series::new(Fineness::Second);
        for second in 0..1_000 {
            series.push(second, 0.0);
        }
        assert_eq!((series.fine.values.capacity(), series.coarse.values.capacity()), (0, 0));
        assert_eq!(minutes(&series, 999), vec![0.0; 300]);
        series.push(1_000, 5.0);
        let values = minutes(&series, 1_000);
        assert_eq!((values.len(), values[298], values[299]), (300, 0.0, 5.0));
    }

    #[test]
    fn slower_readings_fill_the_time_between_and_a_long_pause_is_a_hole() {
        let mut series = Series::new(Fineness::Second);
        series.push(10, 1.0);
        series.push(15, 2.0);
        assert_eq!(minutes(&series, 15), [1.0, 2.0, 2.0, 2.0, 2.0, 2.0]);
        series.push(15 + FILLED_S_MAX + 1, 3.0);
        assert_eq!(minutes(&series, 76), [1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 3.0]);
    }

    #[test]
    fn only_the_last_slots_are_kept_however_long_it_runs() {
        let mut series = Series::new(Fineness::TwoSeconds);
        for second in 0..10_000_u16 {
            series.push(second.into(), f32::from(second));
        }
        let values = series.minutes(9_999).values;
        assert_eq!((values.len(), values[0], values[149]), (150, 9_700.5, 9_998.5));
        assert_eq!(series.hour(9_999).values.len(), COARSE_SLOTS);
    }

    #[test]
    fn readings_of_one_slot_are_averaged() {
        let mut series = Series::new(Fineness::Second);
        for (second, value) in [(0, 10.0), (10, 20.0), (20, 30.0)] {
            series.push(second, value);
        }
        let hour = series.hour(20).values;
        assert_eq!(hour.last(), Some(&20.0));
    }

    #[test]
    fn any_rhythm_keeps_the_length() {
        let mut series = Series::new(Fineness::Second);
        for second in [0, 0, 1, 50, 400, 401, 5_000, 5_001] {
            series.push(second, 1.0 + f32::from(u16::try_from(second % 7).unwrap()));
            assert_eq!(series.minutes(second).values.len(), 300);
            assert_eq!(series.minutes(second + 3).values.len(), 300);
        }
    }
}
