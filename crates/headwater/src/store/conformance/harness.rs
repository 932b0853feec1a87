//! What the suite needs of an engine's test bench: a place of its own, and ways to act beside the store.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::Result;
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::store::{OpenOptions, Store};

/// One case's place in one engine. Nothing in it is shared with another case.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The URL of this case's place.
    fn url(&self) -> String;

    /// The URL of another namespace beside it, also this case's alone.
    fn url_beside(&self, name: &str) -> String;

    /// Opens a URL of this engine, behind [`crate::store::Checked`]. An engine that [`crate::store::open`] does not know
    /// overrides this.
    async fn open_at(&self, url: &str, options: OpenOptions) -> Result<Arc<dyn Store>> {
        crate::store::open(url, options).await
    }

    /// Opens this case's place. Two opens are two processes in effect; close and open is a restart.
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        self.open_at(&self.url(), options).await
    }

    /// Publishes inside a transaction of the caller's own, on a connection of its own, and ends it.
    async fn publish_in_transaction(
        &self,
        topic: &TopicName,
        messages: &[NewMessage],
        commit: bool,
    ) -> Result<Vec<Published>>;

    /// Publishes JSON text with nothing but SQL, inside a transaction, and ends it. An error is what the database said.
    async fn publish_by_sql(
        &self,
        topic: &TopicName,
        payload: &str,
        key: Option<&str>,
        commit: bool,
    ) -> std::result::Result<(), String>;

    /// Whether a transaction that rolled back leaves offsets that no message ever gets.
    fn rollbacks_skip_offsets(&self) -> bool {
        false
    }

    /// A command that runs [`processes::work`](super::processes::work) in another process, or `None` where this
    /// engine cannot be shared by processes.
    fn worker(&self) -> Option<Command>;

    /// Places that exist and are not a store, made for this case.
    async fn foreign_places(&self) -> Vec<ForeignPlace>;

    /// Everything there is to see of a foreign place, byte for byte.
    async fn fingerprint(&self, place: &ForeignPlace) -> Vec<u8>;

    /// The URL of a database that cannot be reached.
    fn unreachable_url(&self) -> String;

    /// Makes this case's place read-only, while no store has it open, and gives the URL that is read-only.
    async fn make_read_only(&self) -> Option<String> {
        None
    }

    /// Undoes [`Harness::make_read_only`].
    async fn make_writable(&self) {}

    /// A place with room for a few hundred kilobytes, or `None` where that cannot be arranged.
    async fn cramped_url(&self) -> Option<String> {
        None
    }

    /// Gives the cramped place room, while it is open.
    async fn make_room(&self) {}

    /// Takes a lock that stops every writer of this case's place until the answer is dropped.
    async fn lock(&self) -> Option<Box<dyn Send>> {
        None
    }

    /// Cuts every connection that stores have to this case's place. False where there are none to cut.
    async fn cut_connections(&self) -> bool {
        false
    }

    /// Removes the message of this offset from the log of this case's only topic, behind the store's back.
    async fn remove_message(&self, offset: i64);

    /// Breaks something that the doctor must find, behind the store's back, where `orders` has a group and messages.
    async fn damage(&self);

    /// Runs a statement beside the store, in the words of its engine (`{schema}` is this case's), and gives how many rows it
    /// changed. An error is what the database said.
    async fn sql(&self, sqlite: &str, postgres: &str) -> std::result::Result<u64, String>;

    /// Reads one number beside the store, in the words of its engine.
    async fn number(&self, sqlite: &str, postgres: &str) -> i64;

    /// Takes a copy of this case's place.
    async fn copy(&self);

    /// Puts the copy in place of what is there, under stores that are open: what was committed since is gone, as after a
    /// failover to a standby that never had it.
    async fn restore(&self);

    /// Removes everything this case made.
    async fn cleanup(&self);
}

/// Somewhere that exists and is not a store.
#[derive(Clone, Debug)]
pub struct ForeignPlace {
    /// What it is, for the message of a failing case.
    pub what: &'static str,
    /// The URL that names it.
    pub url: String,
}
