//! All verbs at once: publishers, members of groups, operators, maintenance and cron jobs, for a long time.

mod actors;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use headwater::store::Store;
use headwater::topic::{Ordering as KeyOrdering, Tracking};
use headwater::{ErrorKind, Headwater, OpenOptions, TopicName, TopicSettings};
use rand::SeedableRng;
use rand::rngs::StdRng;

use super::{Place, Setting};
use crate::check::{Floor, Judged, Unit, progress, soundness};
use crate::server::connect;

/// How many actors of each kind run at once.
const PUBLISHERS: u64 = 3;
const MEMBERS: u64 = 6;
const OPERATORS: u64 = 3;
const MAINTAINERS: u64 = 2;
const CRONS: u64 = 2;
const CONNECTIONS: usize = 24;
/// Sessions report deadlocks to the statistics at their end at the latest, and that takes a moment.
const STATISTICS: Duration = Duration::from_secs(2);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let held = setting.hold(600, 30);
    let before = deadlocks(place).await?;
    let options = OpenOptions::default().connections_max(CONNECTIONS);
    let headwater = Headwater::open_with(&place.url, options).await?;
    for (topic, settings) in topics() {
        headwater.store().create_topic(&TopicName::new(topic)?, &settings).await?;
    }
    progress(&format!("all verbs for {held:?}"));
    let storm = Arc::new(Storm {
        store: Arc::clone(headwater.store()),
        headwater: headwater.clone(),
        until: Instant::now() + held,
        calls: AtomicU64::new(0),
        errors: Mutex::default(),
    });
    let random = |number| StdRng::seed_from_u64(setting.seed ^ number);
    let mut actors = tokio::task::JoinSet::new();
    for number in 0..PUBLISHERS {
        actors.spawn(actors::publisher(Arc::clone(&storm), random(number)));
    }
    for number in 0..MEMBERS {
        actors.spawn(actors::member(Arc::clone(&storm), number, random(100 + number)));
    }
    for number in 0..OPERATORS {
        actors.spawn(actors::operator(Arc::clone(&storm), random(200 + number)));
    }
    for number in 0..MAINTAINERS {
        actors.spawn(actors::maintainer(Arc::clone(&storm), number, random(300 + number)));
    }
    for _ in 0..CRONS {
        actors.spawn(actors::cron(Arc::clone(&storm)));
    }
    while let Some(ended) = actors.join_next().await {
        ended.context("an actor of the storm panicked")??;
    }
    headwater.close().await?;
    tokio::time::sleep(STATISTICS).await;
    let deadlocks = deadlocks(place).await? - before;
    let headwater = place.open().await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let errors = storm.errors.lock().expect("no panic while held");
    let mut judged = judge(deadlocks, &errors, storm.calls.load(Ordering::Relaxed));
    judged.push(sound);
    Ok(judged)
}

/// Errors by kind: how many, and the first.
type Errors = BTreeMap<String, (u64, String)>;

fn judge(deadlocks: i64, errors: &Errors, calls: u64) -> Vec<Judged> {
    let all: Vec<String> = errors.iter().map(|(kind, (count, _))| format!("{kind} {count}")).collect();
    let unexpected =
        errors.iter().filter(|(kind, _)| !EXPECTED.iter().any(|one| format!("{one:?}") == **kind));
    let (mut count, mut first) = (0, String::new());
    for (_, (errors, text)) in unexpected {
        count += errors;
        first.clone_from(text);
    }
    vec![
        Judged::none_of("deadlocks", u64::try_from(deadlocks).unwrap_or(u64::MAX)),
        Judged::none_of("errors that a storm does not explain", count).note(first),
        Judged::new("calls", calls as f64, Unit::Count, Floor::AtLeast(1_000.0)).note(all.join(", ")),
    ]
}

/// Errors that are expected when callers conflict.
const EXPECTED: [ErrorKind; 6] = [
    ErrorKind::LeaseLost,
    ErrorKind::InvalidTransition,
    ErrorKind::NoSuchSubscription,
    ErrorKind::Conflict,
    ErrorKind::NoSubscriptions,
    ErrorKind::Busy,
];

/// Deadlocks that the server has found in the database.
async fn deadlocks(place: &Place<'_>) -> Result<i64> {
    let client = connect(&place.url).await?;
    let sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// One topic of each kind. Times are short, so that everything happens within the storm.
fn topics() -> [(&'static str, TopicSettings); 4] {
    let short = TopicSettings {
        lease: Duration::from_secs(2),
        max_attempts: 3,
        backoff_initial: Duration::from_millis(50),
        backoff_max: Duration::from_millis(500),
        message_retention: Some(Duration::from_secs(3)),
        heartbeat_interval: Duration::from_secs(1),
        heartbeat_timeout: Duration::from_secs(4),
        ..TopicSettings::pub_sub()
    };
    let counted = TopicSettings { tracking: Tracking::ReferenceCounting, ..short.clone() };
    let ordered = TopicSettings { ordering: KeyOrdering::Key, lanes: 4, ..counted.clone() };
    let queue = TopicSettings { semantics: headwater::topic::Semantics::Queue, ..short.clone() };
    [("plain", short), ("counted", counted), ("ordered", ordered), ("queue", queue)]
}

/// State shared by all actors.
struct Storm {
    headwater: Headwater,
    store: Arc<dyn Store>,
    until: Instant,
    calls: AtomicU64,
    errors: Mutex<Errors>,
}

impl Storm {
    fn is_on(&self) -> bool {
        Instant::now() < self.until
    }

    /// Counts a call, and its error if it failed.
    fn note<T>(&self, outcome: headwater::Result<T>) -> Option<T> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        outcome
            .map_err(|error| {
                let mut errors = self.errors.lock().expect("no panic while held");
                let kind = format!("{:?}", error.kind());
                errors.entry(kind).or_insert_with(|| (0, error.to_string())).0 += 1;
            })
            .ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadlock_a_strange_error_and_a_calm_are_missed() {
        let is_met = |deadlocks, kinds: &[&str], calls| {
            let errors: Errors =
                kinds.iter().map(|kind| ((*kind).to_owned(), (1, "it failed".to_owned()))).collect();
            judge(deadlocks, &errors, calls).iter().all(Judged::is_met)
        };
        assert!(is_met(0, &["LeaseLost", "Busy"], 5_000));
        assert!(!is_met(1, &[], 5_000) && !is_met(0, &["Database"], 5_000) && !is_met(0, &[], 10));
        assert!(!is_met(-1, &[], 5_000), "statistics that were reset prove nothing");
    }
}
