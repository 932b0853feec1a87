//! A producer whose large payloads become files.

use std::future::IntoFuture;
use std::pin::pin;

use headwater::codec::IntoMessage;
use headwater::{NewMessage, Producer, Published};
use tokio::time::{Instant, timeout};

use super::{Claim, ClaimChecks};
use crate::error::{Error, ErrorCode, Result};

/// Publishes to one topic. Cheap to clone.
#[derive(Clone, Debug)]
pub struct ClaimProducer {
    producer: Producer,
    checks: ClaimChecks,
}

impl ClaimProducer {
    /// Wraps a producer.
    pub fn new(producer: Producer, checks: ClaimChecks) -> Self {
        ClaimProducer { producer, checks }
    }

    /// Publishes a message; returns once it and its file are durable.
    pub async fn send(&self, message: impl IntoMessage) -> Result<Published> {
        let message = message.into_message().map_err(|error| failed(&error))?;
        match self.checks.claim(message) {
            Ok(claim) => {
                self.checks.put(&claim).await?;
                let claims = [claim];
                let published = self.keeping(&claims, self.producer.send(claims[0].message.clone())).await?;
                self.forget_duplicates(&claims, std::slice::from_ref(&published)).await;
                Ok(published)
            }
            Err(small) => self.producer.send(*small).await.map_err(|error| failed(&error)),
        }
    }

    /// Publishes all of a batch or nothing.
    pub async fn send_batch(&self, messages: Vec<NewMessage>) -> Result<Vec<Published>> {
        let (mut claims, mut ready) = (Vec::new(), Vec::with_capacity(messages.len()));
        for message in messages {
            match self.checks.claim(message) {
                Ok(claim) => {
                    self.checks.put(&claim).await?;
                    ready.push(claim.message.clone());
                    claims.push(claim);
                }
                Err(small) => ready.push(*small),
            }
        }
        let published = self.keeping(&claims, self.producer.send_batch(&ready)).await?;
        self.forget_duplicates(&claims, &published).await;
        Ok(published)
    }

    /// Waits for a publish, and meanwhile keeps its files younger than the grace time: otherwise the sweeper, which cannot see a message
    /// before it is committed, might remove the file of one that waits long for its database.
    ///
    /// Files stay after an error: the message may have been committed although its answer was lost.
    async fn keeping<T>(
        &self,
        claims: &[Claim],
        publish: impl IntoFuture<Output = headwater::Result<T>>,
    ) -> Result<T> {
        let grace = self.checks.settings.grace;
        let mut publish = pin!(publish.into_future());
        let mut written = Instant::now();
        let published = loop {
            match timeout(grace / 4, &mut publish).await {
                Ok(published) => break published.map_err(|error| failed(&error))?,
                Err(_) => match self.put_all(claims).await {
                    Ok(()) => written = Instant::now(),
                    Err(error) => tracing::warn!(%error, "files of a slow publish not renewed"),
                },
            }
        };
        // Storage was away, or this process stood still: the sweeper may have been faster.
        if written.elapsed() > grace / 2 {
            self.put_all(claims).await?;
        }
        Ok(published)
    }

    async fn put_all(&self, claims: &[Claim]) -> Result<()> {
        for claim in claims {
            self.checks.put(claim).await?;
        }
        Ok(())
    }

    /// A duplicate was not stored, so its file has no message. Left behind by an error, it is removed by the sweeper.
    async fn forget_duplicates(&self, claims: &[Claim], published: &[Published]) {
        // A duplicate has the id of the first message, which may be the same message, sent again.
        let is_stored =
            |claim: &&Claim| published.iter().any(|published| published.message_id == claim.message_id);
        let keys: Vec<String> =
            claims.iter().filter(|claim| !is_stored(claim)).map(|claim| claim.key.clone()).collect();
        if keys.is_empty() {
            return;
        }
        if let Err(error) = self.checks.delete(keys).await {
            tracing::debug!(%error, "files of duplicates not deleted");
        }
    }
}

fn failed(error: &headwater::Error) -> Error {
    Error::from_store(ErrorCode::WriteFailed, error)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use headwater::Headwater;

    use super::*;
    use crate::claim_check::ClaimCheckSettings;
    use crate::storage::FileStorage;

    #[tokio::test]
    async fn files_of_a_slow_publish_stay_young() {
        let headwater = Headwater::in_memory().await.unwrap();
        let settings = ClaimCheckSettings { claim_check_bytes: 10, grace: Duration::from_millis(40) };
        let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).unwrap();
        let producer = ClaimProducer::new(headwater.producer("texts"), checks.clone());
        let Ok(claim) = checks.claim(NewMessage::new(vec![7; 20])) else { panic!("20 bytes are too large") };
        checks.put(&claim).await.unwrap();
        let written = checks.files().await.unwrap()[0].modified_at;

        // A database that answers only after the file was written again.
        let publish = async {
            while checks.files().await.unwrap()[0].modified_at == written {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            Ok(7)
        };
        let kept = timeout(Duration::from_secs(30), producer.keeping(std::slice::from_ref(&claim), publish));
        assert_eq!(kept.await.expect("renewed").unwrap(), 7);
        assert_eq!(checks.files().await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_file_that_was_removed_during_a_publish_is_there_after_it() {
        let headwater = Headwater::in_memory().await.unwrap();
        let settings = ClaimCheckSettings { claim_check_bytes: 10, grace: Duration::from_millis(4) };
        let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).unwrap();
        let producer = ClaimProducer::new(headwater.producer("texts"), checks.clone());
        let Ok(claim) = checks.claim(NewMessage::new(vec![7; 20])) else { panic!("20 bytes are too large") };
        checks.put(&claim).await.unwrap();
        let publish = async {
            // The process stands still for longer than the grace time.
            std::thread::sleep(Duration::from_millis(8));
            checks.delete(vec![claim.key.clone()]).await.unwrap();
            Ok(())
        };
        producer.keeping(std::slice::from_ref(&claim), publish).await.unwrap();
        assert_eq!(checks.files().await.unwrap()[0].key, claim.key);
    }
}
