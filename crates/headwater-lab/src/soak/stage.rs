//! The environment of a soak: an open store with a topic of its own, its groups, and the directory for histories.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use headwater::store::{OffsetRange, Store, SubscriptionStatus, TopicStatus};
use headwater::store::{OpenOptions, open};
use headwater::{GroupName, Offset, Start, TopicName, TopicSettings};

use super::children::Children;
use super::publish::id_of;
use super::{publish_postgres, publish_sqlite};
use crate::check::problems;

/// The groups of every soak.
pub(super) const GROUPS: [&str; 4] = ["g1", "g2", "g3", "g4"];

/// The publishers' target, by engine.
#[derive(Debug)]
enum Target {
    Postgres(publish_postgres::Target),
    Sqlite(publish_sqlite::Target),
}

/// An open store prepared for a soak.
#[derive(Debug)]
pub(super) struct Stage {
    pub(super) store: Arc<dyn Store>,
    pub(super) topic: TopicName,
    /// A second topic that gets the same messages.
    pub(super) second: Option<TopicName>,
    url: String,
    directory: PathBuf,
    seed: u64,
    target: Target,
}

impl Stage {
    /// Opens the store and creates a topic that no earlier soak used.
    pub(super) async fn set(
        work: &Path,
        url: &str,
        kind: &str,
        settings: &TopicSettings,
        groups: &[&str],
        seed: u64,
    ) -> Result<Self> {
        let name = format!("{kind}-{seed}-{}", super::history::now_us());
        let store = open(url, OpenOptions::default().connections_max(4)).await?;
        let topic = TopicName::new(name.as_str())?;
        create(&*store, &topic, settings, groups).await?;
        let directory = work.join(&name);
        std::fs::create_dir_all(&directory)?;
        let target = match store.engine() {
            "postgres" => Target::Postgres(publish_postgres::Target::parse(url, &name)?),
            _ => Target::Sqlite(publish_sqlite::Target::parse(url, &name)?),
        };
        Ok(Stage { store, topic, second: None, url: url.to_owned(), directory, seed, target })
    }

    /// Publishes every message to a second topic too, with groups of its own (PostgreSQL).
    pub(super) async fn add_topic(
        &mut self,
        kind: &str,
        settings: &TopicSettings,
        groups: &[&str],
    ) -> Result<String> {
        let name = format!("{}-{kind}", self.topic);
        let topic = TopicName::new(name.as_str())?;
        create(&*self.store, &topic, settings, groups).await?;
        match &mut self.target {
            Target::Postgres(target) => target.add_topic(&name),
            Target::Sqlite(_) => bail!("not a PostgreSQL store"),
        }
        self.second = Some(topic);
        Ok(name)
    }

    /// Members for this stage, none started yet.
    pub(super) fn children(&self) -> Children {
        Children::new(&self.url, self.topic.as_str(), &self.directory, self.seed)
    }

    /// The publishers' target, on PostgreSQL.
    pub(super) fn postgres(&self) -> Option<&publish_postgres::Target> {
        match &self.target {
            Target::Postgres(target) => Some(target),
            Target::Sqlite(_) => None,
        }
    }

    /// The publishers' target, on SQLite.
    pub(super) fn sqlite(&self) -> Result<&publish_sqlite::Target> {
        match &self.target {
            Target::Sqlite(target) => Ok(target),
            Target::Postgres(_) => bail!("not an SQLite store"),
        }
    }

    /// Waits until every group has settled everything published.
    pub(super) async fn drained(&self, children: &mut Children, at_most: Duration) -> Result<()> {
        let deadline = Instant::now() + at_most;
        let mut quiet = 0;
        // Twice in a row: the head may still have to advance over the last commits.
        while quiet < 2 {
            children.restart_aborted()?;
            tokio::time::sleep(Duration::from_millis(250)).await;
            self.store.advance_heads().await?;
            let status = self.status().await?;
            let done = status
                .iter()
                .all(|(topic, groups)| topic.gaps == 0 && groups.iter().all(|group| is_done(group, topic)));
            quiet = if done { quiet + 1 } else { 0 };
            ensure!(Instant::now() < deadline, "not drained within {at_most:?}: {status:?}");
        }
        Ok(())
    }

    /// Each topic with its groups.
    pub(super) async fn status(&self) -> Result<Vec<(TopicStatus, Vec<SubscriptionStatus>)>> {
        let topics = self.store.topics().await?;
        let mut status = vec![];
        for name in std::iter::once(&self.topic).chain(&self.second) {
            let topic = topics.iter().find(|status| status.topic.name == *name);
            let topic = topic.context("the topic is gone")?.clone();
            status.push((topic, self.store.subscriptions(name).await?));
        }
        Ok(status)
    }

    /// The identities of all messages that a topic stores.
    pub(super) async fn log(&self, topic: &TopicName) -> Result<HashSet<String>> {
        let status = self.status().await?;
        let found = status.iter().find(|(status, _)| status.topic.name == *topic);
        let (status, _) = found.context("the topic is gone")?;
        let mut log = HashSet::new();
        for first in (status.first.0.max(1)..=status.head.0).step_by(1_000) {
            let page = OffsetRange::new(Offset(first), Offset(status.head.0.min(first + 999)));
            for message in self.store.fetch(status.topic.topic_id, page).await? {
                log.insert(id_of(&message.payload)?);
            }
        }
        Ok(log)
    }

    /// The problems in the store after everything is settled.
    pub(super) async fn findings(&self) -> Result<Vec<String>> {
        let mut findings = problems(&*self.store).await?;
        for (topic, groups) in self.status().await? {
            for group in groups {
                if !is_done(&group, &topic) || group.dead_letters > 0 {
                    findings.push(format!("group {} is not clean: {group:?}", group.group));
                }
            }
        }
        Ok(findings)
    }

    /// Closes the store, and removes the histories unless they are needed to investigate a violation.
    pub(super) async fn clear(self, clean: bool) -> Result<()> {
        self.store.close().await?;
        if clean {
            std::fs::remove_dir_all(&self.directory)?;
        } else {
            println!("histories are kept in {}", self.directory.display());
        }
        Ok(())
    }
}

async fn create(
    store: &dyn Store,
    topic: &TopicName,
    settings: &TopicSettings,
    groups: &[&str],
) -> Result<()> {
    store.create_topic(topic, settings).await?;
    for group in groups {
        store.subscribe(topic, &GroupName::new(*group)?, Start::Beginning).await?;
    }
    Ok(())
}

fn is_done(group: &SubscriptionStatus, topic: &TopicStatus) -> bool {
    group.leased == 0 && group.waiting == 0 && group.floor >= topic.head
}
