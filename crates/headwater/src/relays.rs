//! Relays that are registered in the store: what is relayed where, so that a process that runs relays needs nothing but the store.

use std::sync::Arc;

use jiff::Timestamp;

use crate::error::{Error, ErrorKind, Result};
use crate::name::check_name;
use crate::outbox::{time_of, unreadable};
use crate::repository::{Repository, check_id_within};
use crate::store::Store;
use crate::store::repository::Verb;
use crate::transaction::Row;

/// The longest URL of a target.
const TARGET_BYTES_MAX: usize = 2_048;
/// The longest settings, as JSON.
const SETTINGS_BYTES_MAX: usize = 16_384;

/// The registered relays of a store; from [`Headwater::relays`](crate::Headwater::relays). The crate `headwater-relay` runs them.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> headwater::Result<()> {
/// use headwater::Headwater;
///
/// let headwater = Headwater::in_memory().await?;
/// headwater.relays().add("orders-kafka", "orders", "kafka://broker:9092/orders", "{}").await?;
/// assert_eq!(headwater.relays().list().await?[0].source, "orders");
/// assert!(headwater.relays().remove("orders-kafka").await?);
/// # headwater.close().await }
/// ```
#[derive(Clone, Debug)]
pub struct Relays {
    repository: Repository,
}

/// A registered relay.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RegisteredRelay {
    /// Its name.
    pub name: String,
    /// Where its records come from: a topic, or `outbox`.
    pub source: String,
    /// The URL of its sink. Passwords are in the environment of the process that runs it: `${NAME}` stands for one.
    pub target: String,
    /// How it delivers, as JSON.
    pub settings: String,
    /// When it was added.
    pub created_at: Timestamp,
}

impl Relays {
    pub(crate) fn new(store: &Arc<dyn Store>) -> Self {
        Relays { repository: Repository::new(store) }
    }

    /// Adds a relay; `Conflict` if there is one of this name. The caller has checked that the target has no password.
    pub async fn add(&self, name: &str, source: &str, target: &str, settings: &str) -> Result<()> {
        check_name("relay", name)?;
        check_name("source", source)?;
        check_id_within("target", target, TARGET_BYTES_MAX)?;
        check_id_within("settings", settings, SETTINGS_BYTES_MAX)?;
        if !serde_json::from_str::<serde_json::Value>(settings).is_ok_and(|value| value.is_object()) {
            return Err(Error::invalid("settings", "must be a JSON object"));
        }
        let params = vec![name.into(), source.into(), target.into(), settings.into()];
        if self.count(Verb::RelayAdd, params, "added").await? == 0 {
            let text = format!("relay {name} exists; choose another name, or remove it first");
            return Err(Error::new(ErrorKind::Conflict, text));
        }
        Ok(())
    }

    /// All relays, by name.
    pub async fn list(&self) -> Result<Vec<RegisteredRelay>> {
        let rows = self.repository.run(Verb::RelayList, Vec::new()).await?;
        rows.iter().map(RegisteredRelay::from_row).collect()
    }

    /// Removes a relay; false if there is none of this name. Its group stays, and with it what waits there.
    pub async fn remove(&self, name: &str) -> Result<bool> {
        check_name("relay", name)?;
        Ok(self.count(Verb::RelayRemove, vec![name.into()], "removed").await? == 1)
    }

    async fn count(&self, verb: Verb, params: Vec<crate::transaction::Value>, column: &str) -> Result<u64> {
        let rows = self.repository.run(verb, params).await?;
        rows.iter().map(|row| row.get::<u64>(column)).sum()
    }
}

impl RegisteredRelay {
    fn from_row(row: &Row) -> Result<Self> {
        Ok(RegisteredRelay {
            name: row.get("name")?,
            source: row.get("source")?,
            target: row.get("target")?,
            settings: row.get("settings")?,
            created_at: time_of(row, "created_at_us")?.ok_or_else(|| unreadable("created_at", "NULL"))?,
        })
    }
}
