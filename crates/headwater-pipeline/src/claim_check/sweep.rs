//! Removes files whose message is gone.
//!
//! A file is removed only if it is older than the grace time and no message names it: not in the schedule, not in the log, not among
//! the dead letters. Messages are found by the key that they hold and not by their id: an edited copy of a dead letter, or one that a
//! handler passed to another topic, has an id of its own and names the same file.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use headwater::{ErrorKind, Headwater, Message, Offset, Start};
use jiff::Timestamp;

use super::{CLAIM_CHECK_TYPE, ClaimChecks, HEADER_CLAIM_CHECK, key_of};
use crate::error::{Error, ErrorCode, Result};
use crate::service::Stop;

/// How far the clock of the storage and that of the database may differ. A message is published after its file was written, so the log
/// before that time need not be read.
const CLOCK_DIFFERENCE_MAX: Duration = Duration::from_secs(24 * 3_600);

/// The result of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Files that are younger than the grace time.
    pub young: u64,
    /// Files whose message is there.
    pub held: u64,
    /// Files that were removed.
    pub removed: u64,
}

/// Removes the files of a namespace's claim checks after their messages. Any number may run at once.
#[derive(Debug)]
pub struct Sweeper {
    headwater: Headwater,
    checks: ClaimChecks,
    /// Where messages that name a file were found, by its key. Checked again at each sweep; it saves reading the log from the oldest file on.
    places: HashMap<String, Vec<(String, Offset)>>,
}

/// Files that may be removed, by key, with the time when they were written.
type Candidates = BTreeMap<String, Timestamp>;

impl Sweeper {
    /// A sweeper of the files whose messages are in this namespace.
    pub fn new(headwater: Headwater, checks: ClaimChecks) -> Self {
        Sweeper { headwater, checks, places: HashMap::new() }
    }

    /// Sweeps each time this much has passed, until it is stopped. An error is logged, and the next sweep tries again.
    pub async fn run(mut self, every: Duration, mut stop: Stop) {
        loop {
            // May be dropped at any moment: what was removed had no message.
            tokio::select! {
                () = stop.requested() => return,
                swept = self.sweep(Timestamp::now()) => match swept {
                    Ok(Swept { young, held, removed }) => {
                        tracing::debug!(young, held, removed, "claim checks swept");
                    }
                    Err(error) => tracing::warn!(%error, "claim checks not swept"),
                },
            }
            tokio::select! {
                () = stop.requested() => return,
                () = tokio::time::sleep(every) => {}
            }
        }
    }

    /// Removes the files that are without a message at this time, by the clock of the storage.
    pub async fn sweep(&mut self, now: Timestamp) -> Result<Swept> {
        let files = self.checks.files().await?;
        let mut swept = Swept::default();
        let mut candidates = Candidates::new();
        let old = now.checked_sub(self.checks.settings.grace).unwrap_or(Timestamp::MIN);
        for file in &files {
            if file.modified_at < old {
                candidates.insert(file.key.clone(), file.modified_at);
            } else {
                swept.young += 1;
            }
        }
        self.places.retain(|key, _| candidates.contains_key(key));
        let count = candidates.len() as u64;
        // Twice, because messages move while they are searched. Scheduled ones become part of the log, and those of the log dead letters: each
        // is searched in this order, so such a message is met. An edited copy moves the other way, from the dead letters to the log, and
        // is met by the second search.
        for _ in 0..2 {
            if !candidates.is_empty() {
                self.leave_held(&mut candidates).await?;
            }
        }
        self.leave_renewed(&mut candidates).await?;
        swept.removed = candidates.len() as u64;
        swept.held = count - swept.removed;
        if !candidates.is_empty() {
            self.checks.delete(candidates.into_keys().collect()).await?;
        }
        Ok(swept)
    }

    /// Takes those from the candidates that a message names.
    async fn leave_held(&mut self, candidates: &mut Candidates) -> Result<()> {
        self.leave_where_known(candidates).await?;
        let Some(oldest) = candidates.values().min().copied() else { return Ok(()) };
        let topics = self.headwater.topics().list().await.map_err(failed)?;
        let topics: Vec<String> = topics.into_iter().map(|status| status.topic.name.to_string()).collect();
        for topic in &topics {
            self.leave_scheduled(topic, candidates).await?;
            self.leave_logged(topic, oldest, candidates).await?;
        }
        let dead = self.headwater.dead_letters();
        for found in dead.list(u32::MAX, |all| all.name(CLAIM_CHECK_TYPE)).await.map_err(failed)? {
            if let Some(key) = key_of(found.name.as_deref(), &found.headers, &found.payload) {
                candidates.remove(&key);
            }
        }
        Ok(())
    }

    /// Messages that an earlier search has met and that are still there.
    async fn leave_where_known(&mut self, candidates: &mut Candidates) -> Result<()> {
        for (key, places) in &mut self.places {
            if !candidates.contains_key(key) {
                continue;
            }
            let mut still = Vec::new();
            for (topic, offset) in places.drain(..) {
                match self.headwater.groups(&topic).message(offset).await {
                    // Another topic may have the name by now.
                    Ok(found) if key_in(&found.message).as_ref() == Some(key) => still.push((topic, offset)),
                    Ok(_) => {}
                    // No message at this offset any more.
                    Err(error) if is_gone(&error) => {}
                    Err(error) => return Err(failed(error)),
                }
            }
            if !still.is_empty() {
                candidates.remove(key);
            }
            *places = still;
        }
        Ok(())
    }

    async fn leave_scheduled(&self, topic: &str, candidates: &mut Candidates) -> Result<()> {
        match self.headwater.scheduled(topic).list(u32::MAX).await {
            Ok(scheduled) => {
                for key in scheduled.iter().filter_map(|message| message.headers.get(HEADER_CLAIM_CHECK)) {
                    candidates.remove(key);
                }
                Ok(())
            }
            Err(error) if is_gone(&error) => Ok(()),
            Err(error) => Err(failed(error)),
        }
    }

    /// Reads a log from the time of the oldest candidate on.
    async fn leave_logged(
        &mut self,
        topic: &str,
        oldest: Timestamp,
        candidates: &mut Candidates,
    ) -> Result<()> {
        let since = oldest.checked_sub(CLOCK_DIFFERENCE_MAX).unwrap_or(Timestamp::MIN);
        let mut tail = match self.headwater.tail(topic, Start::Timestamp(since)).await {
            Ok(tail) => tail,
            Err(error) if is_gone(&error) => return Ok(()),
            Err(error) => return Err(failed(error)),
        };
        while !candidates.is_empty() {
            let messages = match tail.next(Duration::ZERO).await {
                Ok(messages) => messages,
                Err(error) if is_gone(&error) => return Ok(()),
                Err(error) => return Err(failed(error)),
            };
            if messages.is_empty() {
                break;
            }
            for message in &messages {
                let Some(key) = key_in(message) else { continue };
                if candidates.remove(&key).is_some() {
                    self.places.entry(key).or_default().push((topic.to_owned(), message.offset));
                }
            }
        }
        Ok(())
    }

    /// Takes those from the candidates that were written again since they were listed: their message is about to be published.
    async fn leave_renewed(&self, candidates: &mut Candidates) -> Result<()> {
        if candidates.is_empty() {
            return Ok(());
        }
        let now: HashMap<String, Timestamp> =
            self.checks.files().await?.into_iter().map(|file| (file.key, file.modified_at)).collect();
        candidates.retain(|key, modified_at| now.get(key) == Some(modified_at));
        Ok(())
    }
}

fn key_in(message: &Message) -> Option<String> {
    key_of(message.message_type.as_deref(), &message.headers, &message.payload)
}

/// The topic was deleted, or has no message at the offset any more.
fn is_gone(error: &headwater::Error) -> bool {
    matches!(error.kind(), ErrorKind::NoSuchTopic | ErrorKind::InvalidInput)
}

#[allow(clippy::needless_pass_by_value, reason = "for map_err")]
fn failed(error: headwater::Error) -> Error {
    Error::from_store(ErrorCode::ReadFailed, &error)
}

#[cfg(test)]
mod tests {
    use headwater::NewMessage;

    use super::*;
    use crate::claim_check::ClaimCheckSettings;
    use crate::storage::FileStorage;

    #[tokio::test]
    async fn a_file_that_was_written_again_since_it_was_listed_is_left() {
        let settings = ClaimCheckSettings { claim_check_bytes: 10, ..ClaimCheckSettings::default() };
        let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).unwrap();
        checks.store(NewMessage::new(vec![7; 20])).await.unwrap();
        let file = checks.files().await.unwrap().remove(0);
        let sweeper = Sweeper::new(Headwater::in_memory().await.unwrap(), checks);

        let mut candidates = Candidates::from([(file.key.clone(), file.modified_at)]);
        sweeper.leave_renewed(&mut candidates).await.unwrap();
        assert_eq!(candidates.len(), 1);
        let before = file.modified_at - Duration::from_secs(1);
        candidates.insert(file.key, before);
        sweeper.leave_renewed(&mut candidates).await.unwrap();
        assert_eq!(candidates.len(), 0);
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_read_removes_nothing() {
        let settings = ClaimCheckSettings { claim_check_bytes: 10, ..ClaimCheckSettings::default() };
        let checks = ClaimChecks::new(FileStorage::in_memory(), "run_1", settings).unwrap();
        checks.store(NewMessage::new(vec![7; 20])).await.unwrap();
        let headwater = Headwater::in_memory().await.unwrap();
        headwater.close().await.unwrap();
        let mut sweeper = Sweeper::new(headwater, checks.clone());
        let later = Timestamp::now() + Duration::from_secs(100_000);
        assert_eq!(sweeper.sweep(later).await.unwrap_err().code(), ErrorCode::ReadFailed);
        assert_eq!(checks.files().await.unwrap().len(), 1);
    }
}
