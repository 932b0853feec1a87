//! The claims of groups that clients use: one for each group, shared by all requests. Those that wait cost no query each.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use headwater::consumer::Claims;
use tokio::time::Instant;

use crate::app::App;
use crate::problem::Problem;

/// How long claims are kept that are not used.
const IDLE: Duration = Duration::from_secs(300);

/// The claims in use, by topic and group.
#[derive(Default)]
pub(crate) struct SharedClaims(Mutex<HashMap<(String, String), (Claims, Instant)>>);

impl SharedClaims {
    /// The claims of a group; 404 if it does not exist.
    pub(crate) async fn get(&self, app: &App, topic: &str, group: &str) -> Result<Claims, Problem> {
        let names = (topic.to_owned(), group.to_owned());
        if let Some(known) = self.known(&names) {
            return Ok(known);
        }
        let opened = app.headwater.claims(topic, group).await?;
        let mut kept = self.lock();
        // Another request may have opened them meanwhile: one is kept.
        let (claims, _) = match kept.entry(names) {
            std::collections::hash_map::Entry::Occupied(mut other) if other.get().0.is_over() => {
                other.insert((opened.clone(), Instant::now()));
                other.into_mut()
            }
            other => other.or_insert((opened.clone(), Instant::now())),
        };
        Ok(claims.clone())
    }

    fn known(&self, names: &(String, String)) -> Option<Claims> {
        let mut kept = self.lock();
        let (claims, used_at) = kept.get_mut(names)?;
        if claims.is_over() {
            // The group was cancelled or removed; one of the same name has another subscription.
            kept.remove(names);
            return None;
        }
        *used_at = Instant::now();
        Some(claims.clone())
    }

    /// Drops those that no request uses, and whose leases are over: until then heartbeats name their groups.
    pub(crate) fn sweep(&self) {
        self.lock().retain(|_, (claims, used_at)| claims.is_used() || used_at.elapsed() < IDLE);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<(String, String), (Claims, Instant)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
