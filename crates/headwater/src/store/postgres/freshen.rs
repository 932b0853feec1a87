//! Vacuuming what upkeep and deliveries leave, without waiting for the server's own round.

use super::PostgresStore;
use super::fault::translate;
use crate::error::Result;

/// Vacuums those of these tables that have more than so many dead rows. The server does it too, but looks only once a minute,
/// and by then a busy topic has left more dead rows than living ones. Whoever may not vacuum, or finds the table
/// in use, leaves it to the server. The names are the schema's own, never a caller's.
pub(super) async fn freshen(store: &PostgresStore, tables: &[&str], dead_rows: i64) {
    if let Err(error) = vacuum(store, tables, dead_rows).await {
        tracing::debug!(%error, "vacuuming is left to the server");
    }
}

async fn vacuum(store: &PostgresStore, tables: &[&str], dead_rows: i64) -> Result<()> {
    let worn = store
        .connections
        .query("looking for worn tables", &store.statements.clean_worn, &[&tables, &dead_rows])
        .await?;
    for row in worn {
        let table: &str = row.get("table_name");
        let vacuum = format!("VACUUM (SKIP_LOCKED, TRUNCATE false) {}.{table}", store.namespace.quoted());
        let client = store.connections.get().await?;
        client.batch_execute(&vacuum).await.map_err(|error| translate("vacuuming", error))?;
    }
    Ok(())
}
