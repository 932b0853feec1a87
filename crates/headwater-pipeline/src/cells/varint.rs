//! Numbers of 1 to 10 bytes, 7 bits each, lowest first; a set highest bit means that more follow.

/// Longest number in bytes.
pub(super) const BYTES_MAX: usize = 10;

/// Appends a number.
#[inline]
pub(super) fn put(buffer: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        #[allow(clippy::cast_possible_truncation, reason = "the lowest 7 bits are meant")]
        buffer.push(value as u8 | 0x80);
        value >>= 7;
    }
    #[allow(clippy::cast_possible_truncation, reason = "it is below 128")]
    buffer.push(value as u8);
}

/// How many bytes a number has.
pub(super) fn len(value: u64) -> usize {
    // Zero has one as well.
    let bits = 64 - (value | 1).leading_zeros() as usize;
    bits.div_ceil(7)
}

/// Takes a number from the front; `None` if the bytes end early or the number has more than 64 bits.
#[inline]
pub(super) fn take(bytes: &mut &[u8]) -> Option<u64> {
    match **bytes {
        [only, ..] if only < 0x80 => {
            *bytes = &bytes[1..];
            Some(u64::from(only))
        }
        _ => take_longer(bytes),
    }
}

fn take_longer(bytes: &mut &[u8]) -> Option<u64> {
    let mut value: u64 = 0;
    for (at, &byte) in bytes.iter().enumerate().take(BYTES_MAX) {
        // The tenth byte has room for the highest bit alone.
        if at == BYTES_MAX - 1 && byte > 1 {
            return None;
        }
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte < 0x80 {
            *bytes = &bytes[at + 1..];
            return Some(value);
        }
    }
    None
}

/// Signed numbers near zero as small unsigned ones.
#[inline]
pub(super) fn zigzag(value: i64) -> u64 {
    (value << 1 ^ value >> 63).cast_unsigned()
}

/// The reverse of [`zigzag`].
#[inline]
pub(super) fn unzigzag(value: u64) -> i64 {
    (value >> 1).cast_signed() ^ -(value & 1).cast_signed()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(value: u64) -> u64 {
        let mut buffer = vec![];
        put(&mut buffer, value);
        assert_eq!(buffer.len(), len(value), "{value}");
        buffer.push(0xff);
        let mut rest = &buffer[..];
        let taken = take(&mut rest).expect("a whole number");
        assert_eq!(rest, [0xff], "{value}");
        taken
    }

    #[test]
    fn limits_of_each_length_round_trip() {
        for bits in 0..64 {
            for value in [(1 << bits) - 1, 1 << bits, (1 << bits) + 1] {
                assert_eq!(round_trip(value), value);
            }
        }
        assert_eq!(round_trip(u64::MAX), u64::MAX);
        assert_eq!([0, 1, -1, i64::MAX, i64::MIN].map(zigzag), [0, 2, 1, u64::MAX - 1, u64::MAX]);
    }

    #[test]
    fn early_ends_and_oversized_numbers_are_refused() {
        for bad in [&[][..], &[0x80], &[0xff; 9], &[0xff; 10], &[0xff; 11]] {
            assert_eq!(take(&mut &*bad), None, "{bad:?}");
        }
        let mut above = [0xff; 10];
        above[9] = 2;
        assert_eq!(take(&mut &above[..]), None);
        above[9] = 1;
        assert_eq!(take(&mut &above[..]), Some(u64::MAX));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_number_round_trips(value in any::<u64>(), signed in any::<i64>(), shift in 0..64_u32) {
            prop_assert_eq!(round_trip(value >> shift), value >> shift);
            prop_assert_eq!(unzigzag(zigzag(signed >> shift)), signed >> shift);
        }
    }
}
