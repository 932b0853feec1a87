//! Positions of bridges: how far a bridge has read a source of another broker.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::error::{Error, Result};
use crate::limits::BRIDGE_SOURCE_BYTES_MAX;
use crate::repository::{Repository, check_id, check_id_within};
use crate::store::Store;
use crate::store::repository::Verb;
use crate::transaction::Transaction;

/// The positions of bridges; from [`Headwater::bridge_positions`](crate::Headwater::bridge_positions).
///
/// A bridge that reads a log (such as a partition of Kafka) stores the position after the last message it has read in the
/// transaction that publishes what it read: either both happen or neither does. The next run starts at the stored position, so each message is
/// published once, whatever was killed.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
///
/// let headwater = Headwater::in_memory().await?;
/// let positions = headwater.bridge_positions();
/// assert!(positions.advance("orders-in", "orders/0", None, 10).await?); // the first position
/// assert!(positions.advance("orders-in", "orders/0", Some(10), 12).await?);
/// assert!(!positions.advance("orders-in", "orders/0", Some(10), 11).await?); // another process has advanced it
/// assert_eq!(positions.of("orders-in").await?["orders/0"], 12);
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct BridgePositions {
    repository: Repository,
}

/// A stored position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BridgePosition {
    /// The name of the bridge.
    pub bridge: String,
    /// What it reads, by its own naming.
    pub source: String,
    /// The next position to read.
    pub position: i64,
    /// When it was stored, by the database's clock.
    pub updated_at: Timestamp,
}

impl BridgePositions {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        BridgePositions { repository: Repository::new(store) }
    }

    /// The same in a transaction: a position is committed or rolled back with it, and reads see it.
    #[must_use]
    pub fn within(&self, transaction: &Transaction) -> Self {
        BridgePositions { repository: self.repository.within(transaction) }
    }

    /// The positions of a bridge by source.
    pub async fn of(&self, bridge: &str) -> Result<BTreeMap<String, i64>> {
        check_id("bridge", bridge)?;
        let stored = self.read(Some(bridge)).await?;
        Ok(stored.into_iter().map(|stored| (stored.source, stored.position)).collect())
    }

    /// The positions of all bridges, by bridge and source.
    pub async fn list(&self) -> Result<Vec<BridgePosition>> {
        self.read(None).await
    }

    async fn read(&self, bridge: Option<&str>) -> Result<Vec<BridgePosition>> {
        let rows = self.repository.run(Verb::BridgeList, vec![bridge.map(str::to_owned).into()]).await?;
        let stored = rows.iter().map(|row| {
            let at = Timestamp::from_microsecond(row.get("updated_at_us")?);
            let invalid = |error| Error::invalid("updated_at", format!("out of range: {error}"));
            Ok(BridgePosition {
                bridge: row.get("bridge")?,
                source: row.get("source")?,
                position: row.get("position")?,
                updated_at: at.map_err(invalid)?,
            })
        });
        stored.collect()
    }

    /// Moves a position from where the caller knows it to be; `None` for the first one. False, and nothing is changed, if it is
    /// elsewhere: another process with the same bridge has moved it, or an earlier commit of the caller happened after all. Of two that
    /// move it at the same time, the second waits for the end of the first one's transaction, and then knows.
    pub async fn advance(&self, bridge: &str, source: &str, from: Option<i64>, to: i64) -> Result<bool> {
        check_id("bridge", bridge)?;
        check_id_within("source", source, BRIDGE_SOURCE_BYTES_MAX)?;
        if to < from.unwrap_or(0) {
            let from = from.unwrap_or(0);
            return Err(Error::invalid("position", format!("{to} is before {from}; it only rises, from 0")));
        }
        let params = vec![bridge.into(), source.into(), from.into(), to.into()];
        let rows = self.repository.run(Verb::BridgeAdvance, params).await?;
        let advanced: Result<u64> = rows.iter().map(|row| row.get::<u64>("advanced")).sum();
        Ok(advanced? == 1)
    }
}
