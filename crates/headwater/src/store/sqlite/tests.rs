//! Tests of what only this engine has; the guarantees of every engine are tested in `store::conformance`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::*;
use crate::Start;
use crate::lease::Want;
use crate::name::Owner;
use crate::settle::Outcome;
use crate::store::{DeadLetterSelection, Maintenance};

mod disk;
mod doctor;
mod epoch;
mod handling;
mod life;
mod maintenance;
mod open;
mod plans;
mod process;
mod sql;
mod take_over;
mod versions;
mod views;
mod waking;
mod writing;

/// A file for one test.
struct Place {
    directory: tempfile::TempDir,
}

impl Place {
    fn new() -> Self {
        Place { directory: tempfile::tempdir().unwrap() }
    }

    fn path(&self) -> PathBuf {
        self.directory.path().join("store.db")
    }

    async fn open(&self) -> SqliteStore {
        self.try_open(OpenOptions::default()).await.unwrap()
    }

    async fn try_open(&self, options: OpenOptions) -> Result<SqliteStore> {
        open_at(&self.path(), options).await
    }

    /// A plain connection that the test owns.
    fn connect(&self) -> Connection {
        let connection = Connection::open(self.path()).unwrap();
        connection.busy_timeout(Duration::from_secs(5)).unwrap();
        connection
    }
}

async fn open_at(path: &Path, options: OpenOptions) -> Result<SqliteStore> {
    SqliteStore::open(SqlitePath::File(path.to_owned()), options).await
}

fn topic(name: &str) -> TopicName {
    TopicName::new(name).unwrap()
}

fn messages(count: usize) -> Vec<NewMessage> {
    (0..count).map(|n| NewMessage::new(format!("message {n}"))).collect()
}

async fn subscribed(store: &SqliteStore, name: &str) -> Subscription {
    store.create_topic(&topic(name), &TopicSettings::default()).await.unwrap();
    store.subscribe(&topic(name), &GroupName::new("workers").unwrap(), Start::Beginning).await.unwrap()
}

fn request(subscription: &Subscription, messages_max: u32) -> ClaimRequest {
    let want = Want::new(subscription.subscription_id, messages_max);
    ClaimRequest { owner: Owner::new("me").unwrap(), wants: vec![want] }
}

/// Claims and settles until nothing is left. Returns the payloads as text.
async fn drain(store: &SqliteStore, subscription: &Subscription) -> Vec<String> {
    let mut payloads = Vec::new();
    loop {
        let claimed = store.claim(&request(subscription, 100)).await.unwrap();
        if claimed.leases.is_empty() {
            return payloads;
        }
        for lease in claimed.leases {
            for message in store.fetch(lease.topic_id, lease.range).await.unwrap() {
                payloads.push(String::from_utf8(message.payload.to_vec()).unwrap());
            }
            store.settle(&[Settlement::ack_all(&lease)]).await.unwrap().remove(0).unwrap();
        }
    }
}
