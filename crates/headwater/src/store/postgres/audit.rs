//! Audit entries.

use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::PostgresStore;
use super::time::stored;
use crate::error::Result;
use crate::store::AuditEntry;

pub(super) async fn list(store: &PostgresStore, before: i64, limit: u32) -> Result<Vec<AuditEntry>> {
    let rows = store
        .connections
        .query("reading the audit", &store.statements.audit_list, &[&before, &i64::from(limit)])
        .await?;
    let entry = |row: &Row| {
        Ok(AuditEntry {
            audit_id: stored(row, "audit_id")?,
            at: stored(row, "acted_at")?,
            actor: stored(row, "actor")?,
            act: stored(row, "act")?,
            topic: stored(row, "topic")?,
            group: stored(row, "group_name")?,
            detail: stored(row, "detail")?,
        })
    };
    rows.iter().map(entry).collect()
}

/// Adds an entry for an act that has none of its own.
pub(super) async fn note(
    store: &PostgresStore,
    act: &str,
    topic: Option<&str>,
    group: Option<&str>,
    detail: &serde_json::Value,
) -> Result<()> {
    let (actor, now) = (store.actor.now(), store.clock.injected());
    let params: [&(dyn ToSql + Sync); 6] = [&&*actor, &act, &topic, &group, &detail, &now];
    let doing = format!("adding an audit entry: {act}");
    store.connections.query(&doing, &store.statements.audit_note, &params).await.map(drop)
}
