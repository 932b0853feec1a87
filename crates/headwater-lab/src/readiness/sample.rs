//! Samples taken once a second under load: tables, the write-ahead log, how much is stored.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use headwater::{Headwater, TopicName};
use tokio_postgres::Client;

use crate::check::Place;

/// Tables below this size are not judged by their share of dead rows: a few pages that are overwritten all the time.
pub(super) const SMALL_TABLE_BYTES: i64 = 4 << 20;

/// One sample.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// Offsets between the first stored one and the head.
    pub(super) stored: u64,
    /// Bytes of the write-ahead log so far.
    pub(super) wal_bytes: f64,
    /// By table: share of dead rows in percent, and its size.
    pub(super) dead: BTreeMap<String, (f64, i64)>,
    pub(super) database_bytes: f64,
}

/// Takes samples of a store on a connection of its own.
pub(super) struct Sampler {
    client: Client,
    headwater: Headwater,
    topic: TopicName,
}

impl Sampler {
    pub(super) async fn new(place: &Place<'_>, headwater: &Headwater, topic: &str) -> Result<Self> {
        let client = crate::server::connect(&place.url).await?;
        Ok(Sampler { client, headwater: headwater.clone(), topic: TopicName::new(topic)? })
    }

    pub(super) async fn sample(&self) -> Result<Sample> {
        let topics = self.headwater.store().topics().await?;
        let status =
            topics.iter().find(|status| status.topic.name == self.topic).context("the topic is gone")?;
        let row = self
            .client
            .query_one(
                "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8, pg_database_size(current_database())::float8",
                &[],
            )
            .await?;
        let tables = self
            .client
            .query(
                "SELECT relname::text, n_live_tup, n_dead_tup, pg_relation_size(relid) FROM pg_stat_user_tables \
                 WHERE schemaname = 'headwater'",
                &[],
            )
            .await?;
        let dead = tables.iter().map(|row| {
            let (live, dead): (i64, i64) = (row.get(1), row.get(2));
            let percent = dead as f64 * 100.0 / ((live + dead) as f64).max(1.0);
            (row.get(0), (percent, row.get(3)))
        });
        Ok(Sample {
            stored: u64::try_from(status.head.0 - status.first.0 + 1).unwrap_or(0),
            wal_bytes: row.get(0),
            database_bytes: row.get(1),
            dead: dead.collect(),
        })
    }
}

/// The table with the highest share of dead rows over several samples: its mean share, its name and its size.
pub(super) fn worst_table(samples: &[Sample], small: bool) -> Option<(f64, String, i64)> {
    let mut sums: BTreeMap<&str, (f64, u32, i64)> = BTreeMap::new();
    for (name, (percent, bytes)) in samples.iter().flat_map(|sample| &sample.dead) {
        let sum = sums.entry(name).or_default();
        *sum = (sum.0 + percent, sum.1 + 1, sum.2.max(*bytes));
    }
    sums.into_iter()
        .filter(|(_, (_, _, bytes))| (*bytes < SMALL_TABLE_BYTES) == small)
        .map(|(name, (sum, count, bytes))| (sum / f64::from(count), name.to_owned(), bytes))
        .max_by(|a, b| a.0.total_cmp(&b.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_table_is_judged_by_its_mean_and_small_ones_apart() {
        let sample = |large: f64, small: f64| Sample {
            dead: BTreeMap::from([("log".into(), (large, 1 << 30)), ("cursor".into(), (small, 8192))]),
            ..Sample::default()
        };
        let samples = [sample(10.0, 90.0), sample(20.0, 80.0)];
        assert_eq!(worst_table(&samples, false), Some((15.0, "log".into(), 1 << 30)));
        assert_eq!(worst_table(&samples, true), Some((85.0, "cursor".into(), 8192)));
        assert_eq!(worst_table(&[], true), None);
    }
}
