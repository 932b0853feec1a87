//! Parameters of requests: each is parsed here, and a wrong one is refused with its name and its rule.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use super::problem::{Answer, Problem};
use crate::index::select::Selection;
use crate::world::{Region, World};

/// Entries of a list without `limit`, and at most.
const LIMIT_DEFAULT: u64 = 1_000;
const LIMIT_MAX: u64 = 10_000;

/// The query string of a request.
#[derive(Debug)]
pub(super) struct Params(BTreeMap<&'static str, String>);

impl Params {
    /// Parameters that the path does not know, and repeated ones, are refused: a misspelt filter must not return everything.
    pub(super) fn parse(query: Option<&str>, known: &[&'static str]) -> Answer<Self> {
        let mut params = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            let Some(known_name) = known.iter().find(|known| **known == name) else {
                let rule = match known {
                    [] => "this path has no parameters".to_owned(),
                    _ => format!("this path has {}", known.join(", ")),
                };
                return Err(Problem::refused("query", &name, rule));
            };
            if params.insert(*known_name, value.into_owned()).is_some() {
                return Err(Problem::refused(known_name, "", "it must not be given twice"));
            }
        }
        Ok(Params(params))
    }

    pub(super) fn text(&self, name: &'static str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// A number within a range.
    pub(super) fn number<T>(&self, name: &'static str, range: RangeInclusive<T>) -> Answer<Option<T>>
    where
        T: FromStr + PartialOrd + Display,
    {
        self.text(name).map(|value| number(name, value, range)).transpose()
    }

    /// A number that must be given.
    pub(super) fn needed_tick(&self, name: &'static str) -> Answer<i64> {
        let tick = self.number(name, 0..=i64::MAX)?;
        tick.ok_or_else(|| Problem::refused(name, "", "it must be given: a tick from 0 on"))
    }

    /// `from` and `to`, both inclusive; all ticks without them.
    pub(super) fn tick_range(&self) -> Answer<RangeInclusive<i64>> {
        let from = self.number("from", 0..=i64::MAX)?.unwrap_or(0);
        let to = self.number("to", 0..=i64::MAX)?.unwrap_or(i64::MAX);
        if from > to {
            return Err(Problem::refused(
                "from",
                &from.to_string(),
                format!("it must not be above to, {to}"),
            ));
        }
        Ok(from..=to)
    }

    pub(super) fn limit(&self) -> Answer<u64> {
        Ok(self.number("limit", 1..=LIMIT_MAX)?.unwrap_or(LIMIT_DEFAULT))
    }

    /// `region`, `type`, `owner`, `value_min` and `value_max`.
    pub(super) fn selection(&self, world: &World) -> Answer<Selection> {
        let values = match (
            self.number("value_min", i64::MIN..=i64::MAX)?,
            self.number("value_max", i64::MIN..=i64::MAX)?,
        ) {
            (None, None) => None,
            (least, most) => Some(least.unwrap_or(i64::MIN)..=most.unwrap_or(i64::MAX)),
        };
        if let Some(values) = values.as_ref().filter(|values| values.is_empty()) {
            let rule = format!("it must not be above value_max, {}", values.end());
            return Err(Problem::refused("value_min", &values.start().to_string(), rule));
        }
        Ok(Selection {
            area: self.text("region").map(|text| region(world, text)).transpose()?,
            molecule_type: self.number("type", 0..=u32::MAX)?,
            owner_id: self.number("owner", 0..=u64::MAX)?,
            values,
        })
    }
}

/// A number within a range.
pub(super) fn number<T>(name: &'static str, value: &str, range: RangeInclusive<T>) -> Answer<T>
where
    T: FromStr + PartialOrd + Display,
{
    match value.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => {
            let rule = format!("a whole number from {} to {} is expected", range.start(), range.end());
            Err(Problem::refused(name, value, rule))
        }
    }
}

/// The tick of a path.
pub(super) fn tick(value: &str) -> Answer<i64> {
    number("tick", value, 0..=i64::MAX)
}

/// The cell of a path: its flat index, or its coordinates with commas between them.
pub(super) fn cell(world: &World, value: &str) -> Answer<u64> {
    let refused = |rule: Cow<'_, str>| Problem::refused("cell", value, rule);
    let parts: Vec<u64> = value.split(',').map(str::parse).collect::<Result<_, _>>().map_err(|_| {
        let rule = "a flat index is expected, or one coordinate per axis with commas between them, as in 3,7";
        refused(rule.into())
    })?;
    let flat_index = match parts[..] {
        // In a world of one dimension both are the same.
        [flat_index] => world.check(flat_index).map(|()| flat_index),
        _ => world.flat_index(&parts),
    };
    flat_index.map_err(|error| refused(error.to_string().into()))
}

/// Bounds per axis, both inclusive, with commas between axes: `10..29,5..9`. One number is that number alone, `*` is the whole axis. On a
/// torus a lower bound above the upper one wraps around.
fn region(world: &World, text: &str) -> Answer<Region> {
    let refused = |rule: String| Problem::refused("region", text, rule);
    let axes: Vec<&str> = text.split(',').collect();
    if axes.len() != world.dimensions() {
        let rule = format!("bounds of {} axes are expected, as in 10..29,5..9", world.dimensions());
        return Err(refused(rule));
    }
    let mut bounds = Vec::with_capacity(axes.len());
    for (axis, size) in axes.iter().zip(world.sizes()) {
        let (lower, upper) = axis.split_once("..").unwrap_or((axis, axis));
        let bound = |text: &str| {
            let rule = || format!("axis {axis:?}: lower..upper, one number or * is expected");
            text.parse::<u64>().map_err(|_| refused(rule()))
        };
        bounds.push(if *axis == "*" { (0, size - 1) } else { (bound(lower)?, bound(upper)?) });
    }
    world.region(&bounds).map_err(|error| refused(error.to_string()))
}

#[cfg(test)]
mod tests {
    use axum::response::IntoResponse;

    use super::*;
    use crate::world::Topology;

    fn torus() -> World {
        World::new(&[100, 200], Topology::Torus).unwrap()
    }

    #[test]
    fn regions_have_bounds_per_axis() {
        let bounds = |text| region(&torus(), text).unwrap().bounds().collect::<Vec<_>>();
        assert_eq!(bounds("10..29,5..9"), [(10, 29), (5, 9)]);
        assert_eq!(bounds("90..9,*"), [(90, 9), (0, 199)]);
        assert_eq!(bounds("7,0..199"), [(7, 7), (0, 199)]);
        for wrong in ["", "1..2", "1..2,3..4,5..6", "1..2,x", "1..2,3..200", "1..2,-1..3", "1...2,3"] {
            let problem = region(&torus(), wrong).unwrap_err();
            assert_eq!(problem.into_response().status(), 400, "{wrong}");
        }
        let bounded = World::new(&[100, 200], Topology::Bounded).unwrap();
        assert!(region(&bounded, "90..9,*").is_err());
    }

    #[test]
    fn cells_are_named_by_flat_index_or_coordinates() {
        assert_eq!(cell(&torus(), "607").unwrap(), 607);
        assert_eq!(cell(&torus(), "3,7").unwrap(), 607);
        for wrong in ["", "20000", "3,7,1", "100,0", "-1", "a"] {
            assert!(cell(&torus(), wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn unknown_repeated_and_wrong_parameters_are_refused_by_name() {
        let known = ["from", "to", "limit", "value_min", "value_max"];
        let detail = |query: &str| match Params::parse(Some(query), &known) {
            Err(problem) => format!("{problem:?}"),
            Ok(params) => {
                let limit = params.limit().err().or(params.tick_range().err());
                format!("{:?}", limit.or(params.selection(&torus()).err()))
            }
        };
        for (query, says) in [
            ("form=1", "this path has from, to, limit"),
            ("from=1&from=2", "must not be given twice"),
            ("limit=0", "from 1 to 10000"),
            ("limit=x", "from 1 to 10000"),
            ("from=9&to=3", "must not be above to, 3"),
            ("from=-1", "from 0 to"),
            ("value_min=5&value_max=4", "must not be above value_max, 4"),
        ] {
            assert!(detail(query).contains(says), "{query}: {}", detail(query));
        }
        let params = Params::parse(Some("from=3&to=9"), &known).unwrap();
        assert_eq!((params.tick_range().unwrap(), params.limit().unwrap()), (3..=9, LIMIT_DEFAULT));
    }
}
