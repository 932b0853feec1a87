//! The id of a run: when it started, and 12 random digits. It is also the run's namespace and the folder of its files.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::error::{Error, Result};

/// The id of a run: `run_20251014_143025_550e8400e29b`. Ids of later seconds sort behind earlier ones.
///
/// It is a namespace as it is: it begins with a letter, has lower case, digits and `_` alone, and its 32 bytes are below the limit of 48, under
/// which a whole UUID behind the date would not fit.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RunId(String);

/// Random bits of an id.
const RANDOM_BITS: u32 = 48;
const FORM: &str = "run_YYYYMMDD_HHMMSS_ and 12 hexadecimal digits in lower case";

impl RunId {
    /// The id of a run that starts at this time, with these random bits, of which 48 are used.
    pub fn new(start: Timestamp, random: u64) -> Result<Self> {
        let start = start.to_zoned(TimeZone::UTC).datetime();
        if start.year() < 0 {
            return Err(Error::invalid(format!("start time {start}: the year 0 or later is expected")));
        }
        let random = random & ((1 << RANDOM_BITS) - 1);
        Ok(RunId(format!("run_{}_{random:012x}", start.strftime("%Y%m%d_%H%M%S"))))
    }

    /// The id of a run that starts now.
    pub fn generate() -> Self {
        RunId::new(Timestamp::now(), rand::random()).expect("the year is not negative")
    }

    /// Checks the form of an id, and that its date and time exist.
    pub fn parse(text: &str) -> Result<Self> {
        let refused = || Error::invalid(format!("run id {text:?}: {FORM} are expected"));
        started_at(text).ok_or_else(refused)?;
        Ok(RunId(text.to_owned()))
    }

    /// The id as text, which is also the namespace.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// When the run started, to the second.
    pub fn started_at(&self) -> Timestamp {
        started_at(&self.0).expect("checked when the id was made")
    }
}

/// The time in an id; `None` if the text is none.
fn started_at(text: &str) -> Option<Timestamp> {
    let rest = text.strip_prefix("run_")?;
    let (time, random) = rest.split_at_checked(15)?;
    let random = random.strip_prefix('_')?;
    let is_hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_time = |(at, byte): (usize, u8)| if at == 8 { byte == b'_' } else { byte.is_ascii_digit() };
    if random.len() != 12 || !random.bytes().all(is_hex) || !time.bytes().enumerate().all(is_time) {
        return None;
    }
    let number = |from: usize, to: usize| time[from..to].parse::<i16>().ok();
    let small = |from: usize, to: usize| time[from..to].parse::<i8>().ok();
    let time = DateTime::new(
        number(0, 4)?,
        small(4, 6)?,
        small(6, 8)?,
        small(9, 11)?,
        small(11, 13)?,
        small(13, 15)?,
        0,
    );
    time.ok()?.to_zoned(TimeZone::UTC).ok().map(|zoned| zoned.timestamp())
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RunId {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        RunId::parse(text)
    }
}

#[cfg(test)]
mod tests {
    use headwater::store::Namespace;

    use super::*;

    #[test]
    fn an_id_has_the_time_and_twelve_digits_and_is_a_namespace() {
        let start: Timestamp = "2025-10-14T14:30:25.987Z".parse().unwrap();
        let id = RunId::new(start, 0xffff_550e_8400_e29b).unwrap();
        assert_eq!(id.as_str(), "run_20251014_143025_550e8400e29b");
        assert_eq!(id.started_at(), "2025-10-14T14:30:25Z".parse().unwrap());
        assert_eq!(RunId::parse(id.as_str()).unwrap(), id);
        assert_eq!(RunId::new(start, 1).unwrap().as_str(), "run_20251014_143025_000000000001");
        for id in [id, RunId::generate(), RunId::new(Timestamp::MAX, u64::MAX).unwrap()] {
            assert_eq!(Namespace::new(id.as_str()).unwrap().as_str(), id.as_str(), "unchanged");
        }
    }

    #[test]
    fn two_runs_of_one_second_differ_and_later_ones_sort_behind() {
        let (first, second) = (RunId::generate(), RunId::generate());
        assert_ne!(first, second);
        let at = |second: i64| RunId::new(Timestamp::from_second(second).unwrap(), rand::random()).unwrap();
        assert!(at(1_000) < at(1_001) && at(1_001) < at(4_000_000_000));
    }

    #[test]
    fn other_text_is_refused_with_the_form() {
        for bad in [
            "",
            "run_",
            "run_1",
            "run_20251014_143025_550e8400e29",
            "run_20251014_143025_550e8400e29bb",
            "run_20251014_143025_550E8400E29B",
            "run_20251014_143025-550e8400e29b",
            "run_20251314_143025_550e8400e29b",
            "run_20251014_243025_550e8400e29b",
            "run_20250229_143025_550e8400e29b",
            "run_2025+014_143025_550e8400e29b",
            "run_2025101\u{e9}143025_550e8400e29b",
            "RUN_20251014_143025_550e8400e29b",
            " run_20251014_143025_550e8400e29b",
        ] {
            let error = RunId::parse(bad).unwrap_err().to_string();
            assert_eq!(error, format!("run id {bad:?}: {FORM} are expected"));
        }
        assert!(RunId::new(Timestamp::MIN, 1).unwrap_err().to_string().contains("year 0"));
    }
}
