//! Shapes, indexes and regions, by example and by property.

use proptest::prelude::*;

use super::*;
use crate::contracts::{Dimension, Environment, SimulationMetadata};

fn metadata(sizes: &[u64], topology: &str) -> SimulationMetadata {
    let dimensions = sizes.iter().map(|&size| Dimension { size }).collect();
    let environment = Environment { dimensions, topology: topology.into() };
    SimulationMetadata {
        run_id: "run_1".into(),
        environment: Some(environment),
        ..SimulationMetadata::default()
    }
}

fn refused(sizes: &[u64], topology: &str) -> String {
    let error = World::from_metadata(&metadata(sizes, topology)).expect_err("refused");
    assert_eq!(error.code(), crate::ErrorCode::InvalidConfiguration);
    assert!(!error.is_transient());
    error.to_string()
}

#[test]
fn properties_2d_torus() {
    let world = World::from_metadata(&metadata(&[100, 200], "torus")).unwrap();
    assert_eq!((world.sizes(), world.dimensions(), world.cells()), ([100, 200].as_slice(), 2, 20_000));
    assert_eq!(world.topology(), Topology::Torus);
    assert_eq!(world.flat_index(&[1, 0]).unwrap(), 200, "the last axis is the fastest");
    assert_eq!(world.flat_index(&[0, 1]).unwrap(), 1);
    assert_eq!(world.to_string(), "100x200 TORUS");
    assert_eq!(World::from_environment(&world.to_environment()).unwrap(), world);
}

#[test]
fn properties_3d_bounded() {
    let world = World::from_metadata(&metadata(&[10, 20, 30], "Bounded")).unwrap();
    assert_eq!((world.dimensions(), world.cells(), world.topology()), (3, 6_000, Topology::Bounded));
    assert_eq!(world.flat_index(&[1, 0, 0]).unwrap(), 600);
    assert_eq!(world.flat_index(&[0, 1, 0]).unwrap(), 30);
    assert_eq!(*world.coordinates(5_999).unwrap(), [9, 19, 29]);
}

#[test]
fn dimensions_1_to_4_of_ten() {
    for dimensions in 1..=4 {
        let world = World::new(&vec![10; dimensions], Topology::Torus).unwrap();
        assert_eq!(world.cells(), 10_u64.pow(u32::try_from(dimensions).unwrap()));
        // With ten cells to an axis the digits of the index are the coordinates.
        let index = 1_234 % world.cells();
        let digits: Vec<u64> =
            format!("{index:0dimensions$}").bytes().map(|digit| u64::from(digit - b'0')).collect();
        assert_eq!(*world.coordinates(index).unwrap(), digits[..]);
        assert_eq!(world.flat_index(&digits).unwrap(), index);
    }
}

#[test]
fn coordinates_round_trip() {
    for (sizes, topology) in
        [(vec![7], Topology::Torus), (vec![3, 4, 5], Topology::Bounded), (vec![2; 8], Topology::Torus)]
    {
        let world = World::new(&sizes, topology).unwrap();
        for index in 0..world.cells() {
            let coordinates = world.coordinates(index).unwrap();
            assert_eq!(world.flat_index(&coordinates).unwrap(), index, "{coordinates:?} of {world}");
        }
    }
}

#[test]
fn first_last_negative_out_of_range() {
    let torus = World::new(&[10, 20], Topology::Torus).unwrap();
    let bounded = World::new(&[10, 20], Topology::Bounded).unwrap();
    assert_eq!(*torus.coordinates(0).unwrap(), [0, 0]);
    assert_eq!(*torus.coordinates(199).unwrap(), [9, 19]);
    for world in [&torus, &bounded] {
        let error = world.coordinates(200).unwrap_err().to_string();
        assert_eq!(error, "flat index 200: a world of 10x20 has 0 to 199");
        // What a negative number becomes as an unsigned one.
        assert!(world.coordinates((-1_i64).cast_unsigned()).is_err());
        assert_eq!(
            world.flat_index(&[3, 20]).unwrap_err().to_string(),
            "coordinate 20 of axis 1: 0 to 19 are allowed"
        );
        for wrong in [&[][..], &[1], &[1, 2, 3]] {
            assert!(world.flat_index(wrong).unwrap_err().to_string().contains("2 dimensions"));
        }
    }
    assert_eq!(*torus.wrap(&[-1, -21]).unwrap(), [9, 19]);
    assert_eq!(*torus.wrap(&[i64::MIN, i64::MAX]).unwrap(), [2, 7]);
    assert_eq!(bounded.wrap(&[-1, 0]), None);
    assert_eq!(bounded.wrap(&[0, 20]), None);
    assert_eq!(*bounded.wrap(&[9, 19]).unwrap(), [9, 19]);
}

#[test]
fn unsound_shapes_are_refused_by_field_value_and_rule() {
    assert_eq!(refused(&[], "TORUS"), "environment.dimensions has 0 entries: 1 to 8 are allowed");
    assert!(refused(&[2; 9], "TORUS").contains("9 entries"));
    assert_eq!(refused(&[5, 0], "TORUS"), "environment.dimensions[1].size 0: at least 1 is expected");
    assert!(
        refused(&[1 << 32, 1 << 31], "TORUS").contains("4294967296x2147483648: the product must be at most")
    );
    assert!(refused(&[u64::MAX], "TORUS").contains("at most 9223372036854775807"));
    assert!(refused(&[u64::MAX, 3, u64::MAX], "TORUS").contains("product"));
    assert_eq!(refused(&[3], "SPHERE"), "environment.topology \"SPHERE\": TORUS or BOUNDED is expected");
    assert_eq!(refused(&[3], ""), "environment.topology \"\": TORUS or BOUNDED is expected");
    let none = World::from_metadata(&SimulationMetadata { run_id: "run_7".into(), ..Default::default() });
    assert_eq!(
        none.unwrap_err().to_string(),
        "metadata of run \"run_7\" has no environment: one is expected"
    );
    // The largest world.
    let largest = World::new(&[i64::MAX.cast_unsigned()], Topology::Bounded).unwrap();
    assert_eq!(*largest.coordinates(i64::MAX.cast_unsigned() - 1).unwrap(), [i64::MAX.cast_unsigned() - 1]);
}

#[test]
fn a_region_of_a_torus_wraps_around_and_one_of_a_bounded_world_does_not() {
    let torus = World::new(&[100, 200], Topology::Torus).unwrap();
    let corner = torus.region(&[(90, 9), (5, 5)]).unwrap();
    assert_eq!((corner.extent(0), corner.extent(1), corner.cells()), (20, 1, 20));
    for (coordinates, inside) in [
        ([90, 5], true),
        ([99, 5], true),
        ([0, 5], true),
        ([9, 5], true),
        ([10, 5], false),
        ([89, 5], false),
        ([95, 6], false),
    ] {
        assert_eq!(corner.contains(&coordinates), inside, "{coordinates:?}");
        let index = torus.flat_index(&coordinates).unwrap();
        assert_eq!(torus.region_has(&corner, index).unwrap(), inside);
    }
    assert_eq!(corner.spans(0).collect::<Vec<_>>(), [(0, 9), (90, 99)]);
    assert_eq!(corner.spans(1).collect::<Vec<_>>(), [(5, 5)]);
    assert!(!corner.contains(&[90]));
    assert!(torus.region_has(&corner, 20_000).is_err());

    let bounded = World::new(&[100, 200], Topology::Bounded).unwrap();
    let error = bounded.region(&[(90, 9), (5, 5)]).unwrap_err().to_string();
    assert!(error.starts_with("bounds 90 to 9 of axis 0: the lower bound must not be above"), "{error}");
    assert!(bounded.region(&[(0, 100), (0, 0)]).unwrap_err().to_string().contains("axis 0"));
    assert!(bounded.region(&[(0, 1)]).is_err());
    assert_eq!(bounded.whole().cells(), bounded.cells());
    assert_eq!(bounded.whole(), bounded.region(&[(0, 99), (0, 199)]).unwrap());
}

/// Any small world.
fn any_world() -> impl Strategy<Value = World> {
    let topology = prop_oneof![Just(Topology::Torus), Just(Topology::Bounded)];
    (prop::collection::vec(1..6_u64, 1..=5), topology)
        .prop_map(|(sizes, topology)| World::new(&sizes, topology).expect("a small world"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_index_has_coordinates_of_its_own(world in any_world()) {
        let mut seen = std::collections::HashSet::new();
        for index in 0..world.cells() {
            let coordinates = world.coordinates(index).unwrap();
            prop_assert!(coordinates.iter().zip(world.sizes()).all(|(value, size)| value < size));
            prop_assert_eq!(world.flat_index(&coordinates).unwrap(), index);
            let signed: Vec<i64> = coordinates.iter().map(|value| value.cast_signed()).collect();
            prop_assert_eq!(world.wrap(&signed), Some(coordinates));
            prop_assert!(seen.insert(coordinates));
        }
        prop_assert!(world.coordinates(world.cells()).is_err());
    }

    #[test]
    fn wrapping_moves_by_whole_turns(world in any_world(), turns in prop::collection::vec(-3..4_i64, 5), at in any::<u64>()) {
        let inside = world.coordinates(at % world.cells()).unwrap();
        let moved: Vec<i64> = inside
            .iter()
            .zip(world.sizes())
            .zip(&turns)
            .map(|((value, size), turn)| value.cast_signed() + turn * size.cast_signed())
            .collect();
        let is_inside = turns[..inside.len()].iter().all(|turn| *turn == 0);
        let expected = (world.topology() == Topology::Torus || is_inside).then_some(inside);
        prop_assert_eq!(world.wrap(&moved), expected);
    }

    #[test]
    fn a_region_has_as_many_cells_as_it_contains(world in any_world(), ends in prop::collection::vec(any::<(u64, u64)>(), 5)) {
        let bounds: Vec<(u64, u64)> = world
            .sizes()
            .iter()
            .zip(&ends)
            .map(|(size, (a, b))| (a % size, b % size))
            .collect();
        let is_rising = bounds.iter().all(|(lower, upper)| lower <= upper);
        match world.region(&bounds) {
            Ok(region) => {
                prop_assert!(is_rising || world.topology() == Topology::Torus);
                let inside = (0..world.cells()).filter(|index| world.region_has(&region, *index).unwrap());
                prop_assert_eq!(inside.count() as u64, region.cells());
                for axis in 0..world.dimensions() {
                    let along: u64 = region.spans(axis).map(|(lower, upper)| upper - lower + 1).sum();
                    prop_assert_eq!(along, region.extent(axis));
                }
            }
            Err(_) => prop_assert!(!is_rising && world.topology() == Topology::Bounded),
        }
    }
}
