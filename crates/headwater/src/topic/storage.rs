//! Where a topic's messages are stored, and its text form: `shared`, `dedicated`, `dedicated by rows:1000`, `dedicated
//! by day`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Where a topic's messages are stored (PostgreSQL). SQLite keeps the messages of each topic together anyway and
/// removes them by range, so the setting changes nothing there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Storage {
    /// With other topics, in one table. Old messages are deleted by row.
    #[default]
    Shared,
    /// In tables of its own, partitioned as given. Old messages are dropped with their partition.
    Dedicated(Partition),
}

/// How dedicated storage is partitioned. Partitions are ranges of offsets, so that an offset determines its partition.
/// Those by time are sized by the topic's publish rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Partition {
    /// One table.
    #[default]
    None,
    /// A table per this many offsets.
    Rows(u64),
    /// About one table per hour.
    Hour,
    /// About one table per day.
    Day,
    /// About one table per month.
    Month,
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Storage::Shared => f.write_str("shared"),
            Storage::Dedicated(Partition::None) => f.write_str("dedicated"),
            Storage::Dedicated(partition) => write!(f, "dedicated by {partition}"),
        }
    }
}

impl FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match (text, text.strip_prefix("dedicated by ")) {
            ("shared", _) => Ok(Storage::Shared),
            ("dedicated", _) => Ok(Storage::Dedicated(Partition::None)),
            (_, Some(partition)) => Ok(Storage::Dedicated(partition.parse()?)),
            (_, None) => Err(Error::invalid("storage", format!("{text:?} is neither shared nor dedicated"))),
        }
    }
}

impl From<Storage> for String {
    fn from(storage: Storage) -> Self {
        storage.to_string()
    }
}

impl TryFrom<String> for Storage {
    type Error = Error;

    fn try_from(text: String) -> Result<Self> {
        text.parse()
    }
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Partition::None => f.write_str("none"),
            Partition::Rows(rows) => write!(f, "rows:{rows}"),
            Partition::Hour => f.write_str("hour"),
            Partition::Day => f.write_str("day"),
            Partition::Month => f.write_str("month"),
        }
    }
}

impl FromStr for Partition {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let refused = |rule: String| Error::invalid("partition", rule);
        match (text, text.strip_prefix("rows:")) {
            ("none", _) => Ok(Partition::None),
            ("hour", _) => Ok(Partition::Hour),
            ("day", _) => Ok(Partition::Day),
            ("month", _) => Ok(Partition::Month),
            (_, Some(rows)) => match rows.parse() {
                Ok(rows) => Ok(Partition::Rows(rows)),
                Err(_) => Err(refused(format!("{rows:?} is not a number of rows"))),
            },
            _ => Err(refused("must be none, rows:N, hour, day or month".into())),
        }
    }
}
