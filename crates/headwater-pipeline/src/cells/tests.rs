//! Blobs by example, by property, and with bytes that no program wrote.

use std::ops::ControlFlow;

use proptest::prelude::*;

use super::*;
use crate::error::ErrorCode;

fn cell(flat_index: u64, molecule_type: u32, molecule_value: i64, owner_id: u64, marker: u32) -> Cell {
    Cell { flat_index, molecule_type, molecule_value, owner_id, marker }
}

fn codecs() -> [Compression; 3] {
    [Compression::NONE, Compression::default(), Compression::zstd(19).expect("a level")]
}

/// Half of a world of 100 x 100, as a simulation fills it.
fn tick() -> Vec<Cell> {
    (0..10_000_u64)
        .filter(|index| index * 7_919 % 13 < 7)
        .map(|index| {
            let value = (index * 31 % 201).cast_signed() - 100;
            cell(index, u32::try_from(index % 5 + 1).expect("small"), value, index / 100, 0)
        })
        .collect()
}

fn refused(blob: &[u8]) -> String {
    let error = decode(blob).expect_err("refused");
    assert_eq!(error.code(), ErrorCode::DecodeFailed);
    assert!(!error.is_transient());
    error.to_string()
}

#[test]
fn cells_round_trip_in_every_codec() {
    let cells = [
        cell(0, 1, -1, 0, 0),
        cell(1, 0, 0, 0, 7),
        cell(1 << 40, u32::MAX, i64::MIN, u64::MAX, u32::MAX),
        cell(u64::MAX, 0, i64::MAX, 0, 0),
    ];
    for compression in codecs() {
        let (blob, count) = encode_counted(&cells, compression);
        assert_eq!(count, 4);
        assert_eq!(decode(&blob).unwrap(), cells, "{compression}");
        assert_eq!(decode(&encode(&tick(), compression)).unwrap(), tick(), "{compression}");
    }
}

#[test]
fn no_cells_are_no_bytes() {
    for compression in codecs() {
        assert_eq!(encode_counted(&[], compression), (Bytes::new(), 0));
        assert_eq!(encode_counted(&[cell(5, 0, 0, 0, 0)], compression), (Bytes::new(), 0));
    }
    assert_eq!(decode(&[]).unwrap(), []);
    assert_eq!(find(&[], 0, RAW_BYTES_MAX).unwrap(), None);
    assert_eq!((raw_bytes(&[]).unwrap(), codec_name(&[]).unwrap()), (0, None));
}

#[test]
fn sparse_only() {
    let mixed = [
        cell(9, 1, 0, 0, 0),
        cell(4, 0, 0, 0, 0),
        cell(2, 0, -5, 0, 0),
        cell(9, 2, 0, 0, 0),
        cell(3, 0, 0, 0, 1),
    ];
    let (blob, count) = encode_counted(&mixed, Compression::NONE);
    let expected = [cell(2, 0, -5, 0, 0), cell(3, 0, 0, 0, 1), cell(9, 1, 0, 0, 0)];
    assert_eq!(
        (decode(&blob).unwrap(), count),
        (expected.to_vec(), 3),
        "sorted, the first of equal ones, no empty one"
    );
    assert_eq!(encode(&expected, Compression::NONE), blob, "the same cells are the same bytes");
}

#[test]
fn the_format_of_version_1_is_these_bytes() {
    // A blob of an older program must stay readable: this one is never to be changed.
    let cells = [cell(2, 1, -1, 300, 0), cell(3, 2, -1, 300, 0), cell(9, 3, -1, 301, 0)];
    let written = [
        1, 0, 25, // version, codec none, 25 bytes
        3,  // cells
        4, 2, 2, 0, 5, // the first flat index, then empty cells before each other one, a byte each
        4, 2, 1, 2, 3, // types, a byte each
        2, 0, 1, // one value for all, zigzag
        7, 3, 44, 44, 45, 1, 1, 1, // owners 300, 300 and 301 as low and high bytes
        2, 0, 0, // no marker
    ];
    assert_eq!(encode(&cells, Compression::NONE)[..], written);
    assert_eq!(decode(&written).unwrap(), cells);
}

#[test]
fn every_form_of_a_column_and_every_length_of_a_block_round_trips() {
    for count in [1, 7, 8, 127, 128, 129, 255, 256, 300] {
        for value in [0, 1, 0x7f, 0x80, 0xff, 0x100, 0xffff, 0x1_0000, u64::from(u32::MAX)] {
            let owner = |index: u64| match index % 3 {
                0 => value,
                1 => value / 2,
                _ => 1,
            };
            let cells: Vec<Cell> =
                (0..count).map(|index| cell(index * (value / 7 + 1), 1, 0, owner(index), 0)).collect();
            let blob = encode(&cells, Compression::NONE);
            assert_eq!(decode(&blob).unwrap(), cells, "{count} cells, values up to {value}");
        }
    }
}

#[test]
fn unknown_versions_and_codecs_are_refused_by_number() {
    let blob = encode(&tick(), Compression::default()).to_vec();
    let with = |at: usize, byte: u8| {
        let mut changed = blob.clone();
        changed[at] = byte;
        changed
    };
    assert_eq!(refused(&with(0, 2)), "cells of version 2: this program knows version 1");
    assert_eq!(refused(&with(0, 0)), "cells of version 0: this program knows version 1");
    assert_eq!(refused(&with(1, 9)), "cells of codec 9: this program knows 0 (none) and 1 (zstd)");
    assert!(refused(&[1]).contains("1 bytes are too few"));
}

#[test]
fn cut_lengthened_and_changed_blobs_are_refused_without_a_panic() {
    for compression in codecs() {
        let blob = encode(&tick()[..100], compression).to_vec();
        for length in 1..blob.len() {
            assert!(decode(&blob[..length]).is_err(), "{compression}, cut to {length}");
        }
        let longer = [&blob[..], &[0]].concat();
        assert!(decode(&longer).is_err(), "{compression}, with another byte");
    }
    let ends = [2, 0, 0, 2, 0, 0, 2, 0, 0];
    for begin in [
        &[1, 3, 2, 2, 1, 2, 0, 1][..],                     // two indexes of one cell
        &[2, 2, 2, 2, 2, 0, 1],                            // one index of two cells
        &[1, 2, 2, 2, 3, 2, 1, 1],                         // two types of one cell
        &[2, 3, 2, 2, 0, 2, 2, 1],                         // one type of two cells
        &[1, 2, 2, 2, 4, 3, 1, 1, 1],                      // an odd number of bytes as pairs
        &[2, 3, 2, 2, 0, 3, 3, 1, 1],                      // one pair of two cells
        &[0, 1, 2, 2, 0, 1],                               // no cells, which are no bytes
        &[1, 2, 0, 2, 2, 0, 1],                            // one index for all
        &[200, 200, 1, 2, 0, 2, 2, 0, 1],                  // many of them
        &[1, 2, 2, 2, 2, 5, 1],                            // a form that is not known
        &[1, 2, 2, 2, 3, 0, 1, 1],                         // two values as one
        &[1, 2, 2, 2, 3, 1, 1, 1],                         // two varints of one cell
        &[1, 2, 2, 2, 2, 1, 0x80],                         // a varint that does not end
        &[1, 2, 2, 2, 6, 0, 0xff, 0xff, 0xff, 0xff, 0x1f], // a type of 33 bits
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 2, 2, 2, 2, 0, 1], // more cells than bytes
        &[1, 0, 2, 0, 1],                                  // a column without a form
        // The cell after the one with the largest number.
        &[2, 12, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1, 0, 2, 0, 1],
    ] {
        let raw = [begin, &ends].concat();
        let header = [1, 0, u8::try_from(raw.len()).expect("short")];
        assert!(refused(&[&header[..], &raw].concat()).starts_with("damaged cells: "), "{begin:?}");
    }
}

#[test]
fn decompression_is_bounded_before_memory_is_taken() {
    let blob = encode(&tick(), Compression::default());
    let bytes = raw_bytes(&blob).unwrap();
    assert!(bytes > blob.len() as u64);
    assert_eq!(decode_within(&blob, bytes).unwrap(), tick());
    let error = decode_within(&blob, bytes - 1).unwrap_err().to_string();
    assert_eq!(error, format!("cells of {bytes} bytes: at most {} are decoded", bytes - 1));
    // The header lies: it says 2^63 bytes, and then a length that is allowed and not there.
    let content = &blob[2 + varint::len(bytes)..];
    let huge = [&[1, 1, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1][..], content].concat();
    assert!(refused(&huge).contains("at most"), "{}", refused(&huge));
    let other = [&[1, 1, 0x80, 0x80, 0x80, 0x7f][..], content].concat();
    assert!(refused(&other).contains("zstd"), "{}", refused(&other));
}

#[test]
fn one_cell_is_found_and_a_visit_ends_where_it_is_ended() {
    let cells = tick();
    for compression in codecs() {
        let blob = encode(&cells, compression);
        assert_eq!(find(&blob, cells[700].flat_index, RAW_BYTES_MAX).unwrap(), Some(cells[700]));
        let empty = (0..10_000).find(|index| cells.iter().all(|cell| cell.flat_index != *index)).unwrap();
        assert_eq!(find(&blob, empty, RAW_BYTES_MAX).unwrap(), None);
        assert_eq!(find(&blob, u64::MAX, RAW_BYTES_MAX).unwrap(), None);
        let mut seen = vec![];
        let visited = visit(&blob, RAW_BYTES_MAX, |cell| {
            seen.push(cell);
            if seen.len() == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        visited.unwrap();
        assert_eq!(seen, cells[..3]);
    }
}

#[test]
fn codec_changes_without_a_change_of_cells() {
    let none = encode(&tick(), Compression::NONE);
    let zstd = recode(&none, Compression::default(), RAW_BYTES_MAX).unwrap();
    assert_eq!((codec_name(&none).unwrap(), codec_name(&zstd).unwrap()), (Some("none"), Some("zstd")));
    assert!(zstd.len() * 2 < none.len(), "{} of {} bytes", zstd.len(), none.len());
    assert_eq!(decode(&zstd).unwrap(), tick());
    assert_eq!(recode(&zstd, Compression::NONE, RAW_BYTES_MAX).unwrap(), none);
    let same = recode(&zstd, Compression::zstd(22).unwrap(), RAW_BYTES_MAX).unwrap();
    assert_eq!(same.as_ptr(), zstd.as_ptr(), "not copied");
    assert!(recode(&zstd, Compression::NONE, 10).is_err());
    assert_eq!(recode(&Bytes::new(), Compression::NONE, 10).unwrap(), Bytes::new());
}

fn any_cell() -> impl Strategy<Value = Cell> {
    let index = prop_oneof![0..200_u64, any::<u64>()];
    let value = prop_oneof![-3..4_i64, any::<i64>()];
    let small = || prop_oneof![Just(0), 0..300_u32, any::<u32>()];
    (index, small(), value, prop_oneof![Just(0), any::<u64>()], small())
        .prop_map(|(index, kind, value, owner, marker)| cell(index, kind, value, owner, marker))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_cells_round_trip(cells in prop::collection::vec(any_cell(), 0..60), codec in 0..3_usize) {
        let mut expected: std::collections::BTreeMap<u64, Cell> = Default::default();
        for cell in cells.iter().filter(|cell| !cell.is_empty()) {
            expected.entry(cell.flat_index).or_insert(*cell);
        }
        let (blob, count) = encode_counted(&cells, codecs()[codec]);
        prop_assert_eq!(count, expected.len() as u64);
        prop_assert_eq!(decode(&blob).unwrap(), expected.into_values().collect::<Vec<_>>());
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), codec in 0..2_u8) {
        let _ = decode(&bytes);
        // With a header that is right, more of the code is reached.
        let length = u8::try_from(bytes.len()).expect("short");
        let mut blob = vec![1, codec];
        varint::put(&mut blob, u64::from(length));
        blob.extend_from_slice(&bytes);
        let _ = decode(&blob);
        let _ = find(&blob, 7, RAW_BYTES_MAX);
        let _ = recode(&blob.into(), Compression::NONE, RAW_BYTES_MAX);
    }

    #[test]
    fn a_changed_byte_never_panics_and_keeps_cells_rising(at in any::<prop::sample::Index>(), byte in any::<u8>(), codec in 0..3_usize) {
        let mut blob = encode(&tick()[..300], codecs()[codec]).to_vec();
        let at = at.index(blob.len());
        blob[at] = byte;
        if let Ok(cells) = decode(&blob) {
            prop_assert!(cells.is_sorted_by(|a, b| a.flat_index < b.flat_index));
        }
    }
}
