//! What the suite needs of an engine's test environment: a store of its own, and ways to act beside the store.

use std::process::Command;
use std::sync::Arc;

use async_trait::async_trait;

use crate::error::Result;
use crate::message::{NewMessage, Published};
use crate::name::TopicName;
use crate::store::{OpenOptions, Store};

/// One case's environment on one engine. Nothing in it is shared with another case.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// The URL of this case's store.
    fn url(&self) -> String;

    /// The URL of another namespace beside it, which also belongs to this case alone.
    fn url_beside(&self, name: &str) -> String;

    /// Opens a URL of this engine, behind [`crate::store::Checked`]. An engine that [`crate::store::open`] does not
    /// support overrides this.
    async fn open_at(&self, url: &str, options: OpenOptions) -> Result<Arc<dyn Store>> {
        crate::store::open(url, options).await
    }

    /// Opens this case's store. Two opens act like two processes; close and open is a restart.
    async fn open(&self, options: OpenOptions) -> Result<Arc<dyn Store>> {
        self.open_at(&self.url(), options).await
    }

    /// Publishes inside a transaction of the caller, on a separate connection, and ends the transaction.
    async fn publish_in_transaction(
        &self,
        topic: &TopicName,
        messages: &[NewMessage],
        commit: bool,
    ) -> Result<Vec<Published>>;

    /// Publishes JSON text with plain SQL, inside a transaction, and ends it. An error is the database's message.
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

    /// Databases and files that exist and are not a store, made for this case.
    async fn foreign_databases(&self) -> Vec<ForeignDatabase>;

    /// The complete observable content of such a database or file, byte for byte.
    async fn fingerprint(&self, place: &ForeignDatabase) -> Vec<u8>;

    /// The URL of a database that cannot be reached.
    fn unreachable_url(&self) -> String;

    /// Makes this case's store read-only, while it is not open, and returns the URL that is read-only.
    async fn make_read_only(&self) -> Option<String> {
        None
    }

    /// Undoes [`Harness::make_read_only`].
    async fn make_writable(&self) {}

    /// The URL of a store with space for a few hundred kilobytes, or `None` where that cannot be arranged.
    async fn cramped_url(&self) -> Option<String> {
        None
    }

    /// Gives that store more space, while it is open.
    async fn make_room(&self) {}

    /// Takes a lock that stops every writer of this case's store until the returned value is dropped.
    async fn lock(&self) -> Option<Box<dyn Send>> {
        None
    }

    /// Cuts every connection to this case's store. Returns false where there are none to cut.
    async fn cut_connections(&self) -> bool {
        false
    }

    /// Removes the message of this offset from the log of this case's only topic, bypassing the store.
    async fn remove_message(&self, offset: i64);

    /// Damages something that the doctor must find, bypassing the store, where `orders` has a group and messages.
    async fn damage(&self);

    /// Runs a statement beside the store, in the SQL of its engine (`{schema}` is this case's schema), and returns how
    /// many rows it changed. An error is the database's message.
    async fn sql(&self, sqlite: &str, postgres: &str) -> std::result::Result<u64, String>;

    /// Reads one number beside the store, in the SQL of its engine.
    async fn number(&self, sqlite: &str, postgres: &str) -> i64;

    /// Takes a copy of this case's store.
    async fn copy(&self);

    /// Replaces the store's content with the copy, under stores that are open: what was committed since is lost, as
    /// after a failover to a standby that never received it.
    async fn restore(&self);

    /// Removes everything this case created.
    async fn cleanup(&self);
}

/// A database or file that exists and is not a store.
#[derive(Clone, Debug)]
pub struct ForeignDatabase {
    /// What it is, for the message of a failing case.
    pub what: &'static str,
    /// The URL that names it.
    pub url: String,
}
