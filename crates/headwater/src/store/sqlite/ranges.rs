//! Sets of offsets as ranges: what a subscription has done, what is removed, and which groups each offset concerns.

use std::ops::BitXor;

/// A set of offsets: closed ranges in rising order, none adjacent to the next, so that equal sets are equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ranges(Vec<(i64, i64)>);

impl Ranges {
    /// One range; empty if `first` is above `last`.
    pub(crate) fn of(first: i64, last: i64) -> Self {
        if first > last { Ranges::default() } else { Ranges(vec![(first, last)]) }
    }

    /// The union of the ranges, in any order, overlapping or not.
    pub(crate) fn covering(ranges: impl IntoIterator<Item = (i64, i64)>) -> Self {
        let mut ranges: Vec<(i64, i64)> = ranges.into_iter().filter(|(first, last)| first <= last).collect();
        ranges.sort_unstable();
        let mut merged: Vec<(i64, i64)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Ranges(merged)
    }

    /// The ranges, in rising order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i64, i64)> + '_ {
        self.0.iter().copied()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest offset.
    pub(crate) fn first(&self) -> Option<i64> {
        self.0.first().map(|(first, _)| *first)
    }

    /// The highest offset.
    pub(crate) fn last(&self) -> Option<i64> {
        self.0.last().map(|(_, last)| *last)
    }

    /// The number of offsets.
    pub(crate) fn count(&self) -> u64 {
        self.iter().map(|(first, last)| last.abs_diff(first) + 1).sum()
    }

    pub(crate) fn contains(&self, offset: i64) -> bool {
        let at = self.0.partition_point(|(_, last)| *last < offset);
        self.0.get(at).is_some_and(|(first, _)| *first <= offset)
    }

    /// The offsets in either set.
    pub(crate) fn union(&self, other: &Ranges) -> Ranges {
        Ranges::covering(self.iter().chain(other.iter()))
    }

    /// The offsets in both sets.
    pub(crate) fn intersection(&self, other: &Ranges) -> Ranges {
        let mut common = Vec::new();
        let (mut mine, mut theirs) = (self.iter().peekable(), other.iter().peekable());
        while let (Some(a), Some(b)) = (mine.peek(), theirs.peek()) {
            let (first, last) = (a.0.max(b.0), a.1.min(b.1));
            if first <= last {
                common.push((first, last));
            }
            if a.1 < b.1 {
                mine.next()
            } else {
                theirs.next()
            };
        }
        Ranges(common)
    }

    /// The offsets in this set and not in the other.
    pub(crate) fn without(&self, other: &Ranges) -> Ranges {
        let mut left = Vec::new();
        let mut holes = other.iter().peekable();
        for (first, last) in self.iter() {
            let mut from = first;
            while from <= last {
                while holes.next_if(|hole| hole.1 < from).is_some() {}
                let Some(hole) = holes.peek().filter(|hole| hole.0 <= last) else {
                    left.push((from, last));
                    break;
                };
                if from < hole.0 {
                    left.push((from, hole.0 - 1));
                }
                if hole.1 >= last {
                    break;
                }
                from = hole.1 + 1;
            }
        }
        Ranges(left)
    }

    /// The offsets from `first` to `last`.
    pub(crate) fn within(&self, first: i64, last: i64) -> Ranges {
        self.intersection(&Ranges::of(first, last))
    }
}

/// Two sets of groups, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Masks {
    pub(crate) one: u64,
    pub(crate) two: u64,
}

impl BitXor for Masks {
    type Output = Masks;

    fn bitxor(self, other: Masks) -> Masks {
        Masks { one: self.one ^ other.one, two: self.two ^ other.two }
    }
}

/// Offsets that concern the same groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) first: i64,
    pub(crate) last: i64,
    pub(crate) masks: Masks,
}

/// Cuts the offsets from `first` to `last` wherever the masks change: each segment has the masks of all layers that
/// contain it. No two layers share a bit of a mask.
pub(crate) fn segments(layers: &[(Ranges, Masks)], first: i64, last: i64) -> Vec<Segment> {
    let mut edges: Vec<(i64, Masks)> = Vec::new();
    for (ranges, masks) in layers {
        for (from, to) in ranges.within(first, last).iter() {
            edges.push((from, *masks));
            edges.push((to.saturating_add(1), *masks));
        }
    }
    edges.sort_unstable_by_key(|(at, _)| *at);
    let mut cut = Vec::new();
    let (mut from, mut masks) = (first, Masks::default());
    for (at, changed) in edges {
        if from < at {
            cut.push(Segment { first: from, last: at - 1, masks });
            from = at;
        }
        // A layer's ranges are not adjacent, so its bits are set where a range begins and cleared where it ends.
        masks = masks ^ changed;
    }
    if from <= last {
        cut.push(Segment { first: from, last, masks });
    }
    cut
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// Small offsets, so that ranges overlap and are adjacent.
    fn some() -> impl Strategy<Value = Vec<(i64, i64)>> {
        vec((0i64..40, 0i64..6).prop_map(|(first, more)| (first, first + more)), 0..8)
    }

    fn offsets(ranges: &Ranges) -> BTreeSet<i64> {
        ranges.iter().flat_map(|(first, last)| first..=last).collect()
    }

    fn is_canonical(ranges: &Ranges) -> bool {
        ranges.0.iter().all(|(first, last)| first <= last)
            && ranges.0.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0)
    }

    proptest! {
        #[test]
        fn ranges_are_sets(a in some(), b in some(), first in 0i64..45, more in 0i64..20) {
            let plain = |ranges: &[(i64, i64)]| -> BTreeSet<i64> {
                ranges.iter().flat_map(|(first, last)| *first..=*last).collect()
            };
            let (ours, theirs) = (plain(&a), plain(&b));
            let (a, b) = (Ranges::covering(a), Ranges::covering(b));
            prop_assert_eq!(offsets(&a), ours.clone());
            for (result, expected) in [
                (a.union(&b), ours.union(&theirs).copied().collect::<BTreeSet<i64>>()),
                (a.intersection(&b), ours.intersection(&theirs).copied().collect()),
                (a.without(&b), ours.difference(&theirs).copied().collect()),
                (a.within(first, first + more), ours.range(first..=first + more).copied().collect()),
            ] {
                prop_assert!(is_canonical(&result), "{:?}", result);
                prop_assert_eq!(offsets(&result), expected);
            }
            prop_assert_eq!(a.count(), ours.len() as u64);
            prop_assert_eq!(a.first(), ours.first().copied());
            prop_assert_eq!(a.last(), ours.last().copied());
            prop_assert!((0..60).all(|offset| a.contains(offset) == ours.contains(&offset)));
        }

        #[test]
        fn segments_combine_whom_each_offset_concerns(
            layers in vec(some(), 0..5), first in 0i64..45, more in 0i64..20
        ) {
            let layers: Vec<(Ranges, Masks)> = layers
                .into_iter()
                .enumerate()
                // The highest bit is a sign bit where the masks are stored.
                .map(|(n, ranges)| (Ranges::covering(ranges), Masks { one: 1 << (63 - n), two: 1 << n }))
                .collect();
            let cut = segments(&layers, first, first + more);
            let dealt: Vec<i64> = cut.iter().flat_map(|segment| segment.first..=segment.last).collect();
            prop_assert_eq!(dealt, (first..=first + more).collect::<Vec<i64>>());
            for segment in cut {
                for offset in segment.first..=segment.last {
                    let inside = layers.iter().filter(|(ranges, _)| ranges.contains(offset));
                    let expected = inside.fold(Masks::default(), |masks, (_, more)| masks ^ *more);
                    prop_assert_eq!(segment.masks, expected);
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_numbers_are_no_obstacle() {
        let all = Ranges::of(0, i64::MAX);
        assert_eq!(all.without(&Ranges::of(5, i64::MAX)), Ranges::of(0, 4));
        assert_eq!(all.union(&Ranges::of(7, i64::MAX)), all);
        assert_eq!(all.count(), 1 << 63);
        assert!(Ranges::of(3, 2).is_empty());
    }
}
