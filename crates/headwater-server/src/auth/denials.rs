//! Denials in the audit: the first of a kind at once, its repetitions within a minute as one entry with their number. So every denial is in the audit, and a
//! flood of them does not fill it.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use axum::http::Method;
use headwater::Headwater;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::metrics;
use crate::problem::Denied;

/// Denials that wait to be written; beyond it they are only counted.
const QUEUE_MAX: usize = 1_024;
/// Kinds of denials that are kept separate at most; the others are one kind.
const KINDS_MAX: usize = 256;
/// How long repetitions are collected.
const COLLECTED_FOR: Duration = Duration::from_secs(60);
/// How often collected ones are checked.
const EVERY: Duration = Duration::from_secs(1);
/// The longest path in an entry.
const PATH_MAX: usize = 200;

/// What makes two denials different.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Kind {
    denied: Denied,
    peer: Option<IpAddr>,
    method: Method,
    path: String,
}

/// Where handlers report denials.
#[derive(Clone)]
pub(crate) struct Denials(mpsc::Sender<Kind>);

/// The other end, for [`note_denials`].
pub(crate) struct Reported(mpsc::Receiver<Kind>);

impl Denials {
    pub(crate) fn new() -> (Self, Reported) {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        (Denials(sender), Reported(receiver))
    }

    /// Reports a denial; never waits.
    pub(crate) fn note(&self, denied: Denied, peer: Option<IpAddr>, method: &Method, path: &str) {
        let path = shown(path);
        tracing::debug!(kind = denied.kind, caller = denied.caller, ?peer, %method, path = path.as_str(), "request denied");
        metrics::denied(&denied.kind);
        let kind = Kind { denied, peer, method: method.clone(), path };
        if self.0.try_send(kind).is_err() {
            metrics::unaudited();
        }
    }
}

/// A path as it may be shown: not too long, and without what may be a token.
fn shown(path: &str) -> String {
    let end = (0..=PATH_MAX.min(path.len())).rev().find(|end| path.is_char_boundary(*end)).unwrap_or(0);
    let cut = path[..end].find("hw_").map_or(end, |at| at + 3);
    path[..cut].to_owned()
}

/// Repetitions of a kind.
struct Collected {
    since: Instant,
    count: u64,
}

/// Writes denials to the audit until the last [`Denials`] is dropped.
pub(crate) async fn note_denials(headwater: Headwater, mut reported: Reported) {
    let mut collected: HashMap<Option<Kind>, Collected> = HashMap::new();
    let mut due = tokio::time::interval(EVERY);
    loop {
        tokio::select! {
            kind = reported.0.recv() => {
                let Some(kind) = kind else { break };
                let is_new = !collected.contains_key(&Some(kind.clone()));
                let key = if is_new && collected.len() >= KINDS_MAX { None } else { Some(kind) };
                if let Some(known) = collected.get_mut(&key) {
                    known.count += 1;
                    continue;
                }
                write(&headwater, key.as_ref(), 1).await;
                collected.insert(key, Collected { since: Instant::now(), count: 0 });
            }
            _ = due.tick() => {
                let over: Vec<_> = collected.extract_if(|_, known| known.since.elapsed() >= COLLECTED_FOR).collect();
                for (kind, known) in over {
                    write(&headwater, kind.as_ref(), known.count).await;
                }
            }
        }
    }
    for (kind, known) in collected {
        write(&headwater, kind.as_ref(), known.count).await;
    }
}

async fn write(headwater: &Headwater, kind: Option<&Kind>, count: u64) {
    if count == 0 {
        return;
    }
    let actor = kind.and_then(|kind| kind.denied.caller.as_deref()).unwrap_or("unknown caller");
    let detail = match kind {
        Some(kind) => serde_json::json!({
            "kind": kind.denied.kind,
            "scope": kind.denied.scope,
            "peer": kind.peer,
            "method": kind.method.as_str(),
            "path": kind.path,
            "count": count,
        }),
        None => serde_json::json!({ "kind": "others", "count": count }),
    };
    let topic = kind.and_then(|kind| kind.denied.topic.as_deref());
    if let Err(error) = headwater.acting_as(actor).note_act("deny", topic, None, &detail).await {
        tracing::warn!(%error, count, "denials not audited");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_cut_and_has_no_token() {
        assert_eq!(shown("/v1/topics"), "/v1/topics");
        assert_eq!(shown("/v1/tokens/hw_00_11"), "/v1/tokens/hw_");
        assert_eq!(shown(&"ä".repeat(500)).len(), 200);
    }
}
