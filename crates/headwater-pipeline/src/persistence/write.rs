//! Ticks in hand become files: written, announced, acked; or given back, retried and buried.
//!
//! An outage gives ticks back at no cost. A file that storage refuses for good holds a tick that it will never take: its ticks are given back
//! and come again in files of half the size, until a tick is alone in its file. That one costs an attempt each time and becomes a dead letter
//! with the reason; the others are written.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Mutex, PoisonError};

use tokio::time::Instant;

use super::announce;
use crate::contracts::{BatchInfo, TickData};
use crate::error::{Error, ErrorCode};
use crate::health::{Counter, Health};
use crate::resource::{BatchStorageWrite, TickClaims, TopicWriter, Verdict};
use crate::service::Stop;

/// Ticks of refused files that are remembered at most: another instance may have settled those that never come again.
const SUSPECTS_MAX: usize = 1_000_000;

/// Writes and announces the ticks of one run.
pub(super) struct Writer<'a> {
    service: &'a str,
    storage: &'a dyn BatchStorageWrite,
    topic: &'a dyn TopicWriter<BatchInfo>,
    batch_attempts: u32,
    health: &'a Health,
    suspects: Mutex<Suspects>,
}

/// Ticks that were in a refused file, by run and number: how many may be in their next file.
#[derive(Default)]
struct Suspects(HashMap<(String, i64), usize>);

/// Ticks of one file, with their places in the claim.
#[derive(Default)]
struct Group {
    places: Vec<usize>,
    ticks: Vec<TickData>,
}

/// What became of a file.
enum Written {
    /// Announced: its ticks may be acked.
    Yes,
    /// Refused for good.
    Refused(Error),
    /// Not now: everything is given back.
    NotNow,
}

impl<'a> Writer<'a> {
    pub(super) fn new(
        service: &'a str,
        storage: &'a dyn BatchStorageWrite,
        topic: &'a dyn TopicWriter<BatchInfo>,
        batch_attempts: u32,
        health: &'a Health,
    ) -> Self {
        Writer { service, storage, topic, batch_attempts, health, suspects: Mutex::default() }
    }

    /// Writes ticks, announces them and acks them. False if a pause should follow: they are given back.
    pub(super) async fn write(&self, claims: TickClaims, mut stop: Stop) -> bool {
        let TickClaims { ticks, attempts, claim } = claims;
        let mut others = Vec::new();
        // In a statement of its own: a guard in the loop's head would be held until its end.
        let groups = self.suspects().groups(ticks);
        for Group { places, ticks } in groups {
            let names: Vec<(String, i64)> =
                ticks.iter().map(|tick| (tick.run_id.clone(), tick.tick_number)).collect();
            match self.write_file(ticks, &mut stop).await {
                Written::Yes => self.suspects().clear(&names),
                Written::NotNow => return false,
                Written::Refused(error) => match (&places[..], &names[..]) {
                    ([place], [name]) => others.push((*place, self.refused(name, attempts[*place], &error))),
                    _ => {
                        self.suspects().halve(names);
                        others.extend(places.into_iter().map(|place| (place, Verdict::GiveBack)));
                    }
                },
            }
        }
        if let Err(error) = claim.settle(others).await {
            if error.code() == ErrorCode::LeaseLost {
                self.health.count(Counter::LeasesLost, 1);
            }
            self.health.record_error(&error, "ack of ticks");
            tracing::warn!(service = self.service, %error, "ticks not acked, they are written again");
        }
        true
    }

    async fn write_file(&self, ticks: Vec<TickData>, stop: &mut Stop) -> Written {
        let (begun, count) = (Instant::now(), ticks.len());
        let info = match self.storage.write_batch(ticks).await {
            Ok(info) => info,
            Err(error) => {
                self.health.count(Counter::WriteErrors, 1);
                self.health.record_error(&error, format_args!("batch file of {count} ticks"));
                let service = self.service;
                if error.is_transient() {
                    tracing::warn!(service, %error, "batch file not written, ticks given back");
                    return Written::NotNow;
                }
                tracing::warn!(service, ticks = count, %error, "batch file refused by storage");
                return Written::Refused(error);
            }
        };
        self.health.record_write(begun.elapsed());
        self.health.count(Counter::BatchesWritten, 1);
        self.health.count(Counter::BytesWritten, info.stored_bytes);
        if !announce(self.topic, &info, &info.storage_key, self.health, stop).await {
            return Written::NotNow;
        }
        self.health.count(Counter::TicksPersisted, info.tick_count);
        let (key, ticks) = (&info.storage_key, info.tick_count);
        tracing::debug!(service = self.service, run = info.run_id, key, ticks, "batch announced");
        Written::Yes
    }

    /// What becomes of a tick that was refused alone.
    fn refused(&self, name: &(String, i64), attempt: u32, error: &Error) -> Verdict {
        let (run_id, tick) = name;
        let reason = format!("tick {tick} of run {run_id}: {}: {error}", error.code());
        if attempt < self.batch_attempts {
            return Verdict::Retry(reason);
        }
        self.suspects().clear(std::slice::from_ref(name));
        self.health.count(Counter::TicksBuried, 1);
        Verdict::Bury(reason)
    }

    fn suspects(&self) -> std::sync::MutexGuard<'_, Suspects> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Suspects {
    /// The files of ticks: each has those of one run, and no more than they allow.
    fn groups(&self, ticks: Vec<TickData>) -> Vec<Group> {
        let is_one = self.0.is_empty() && ticks.iter().all(|tick| tick.run_id == ticks[0].run_id);
        if is_one && !ticks.is_empty() {
            return vec![Group { places: (0..ticks.len()).collect(), ticks }];
        }
        let mut open = BTreeMap::<(String, usize), Group>::new();
        let mut groups = Vec::new();
        for (place, tick) in ticks.into_iter().enumerate() {
            let name = (tick.run_id.clone(), tick.tick_number);
            let most = self.0.get(&name).copied().unwrap_or(usize::MAX);
            let group = open.entry((name.0, most)).or_default();
            group.places.push(place);
            group.ticks.push(tick);
            if group.ticks.len() == most {
                groups.push(std::mem::take(group));
            }
        }
        groups.extend(open.into_values().filter(|group| !group.ticks.is_empty()));
        groups
    }

    /// A file with these was refused.
    fn halve(&mut self, names: Vec<(String, i64)>) {
        if self.0.len() > SUSPECTS_MAX {
            self.0.clear();
        }
        let most = (names.len() / 2).max(1);
        self.0.extend(names.into_iter().map(|name| (name, most)));
    }

    fn clear(&mut self, names: &[(String, i64)]) {
        for name in names {
            self.0.remove(name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tick(run_id: &str, tick_number: i64) -> TickData {
        TickData { run_id: run_id.into(), tick_number, ..TickData::default() }
    }

    fn numbers(suspects: &Suspects, ticks: Vec<TickData>) -> Vec<Vec<i64>> {
        let groups = suspects.groups(ticks);
        groups.iter().map(|group| group.ticks.iter().map(|tick| tick.tick_number).collect()).collect()
    }

    #[test]
    fn ticks_of_two_runs_are_not_mixed() {
        let none = Suspects::default();
        assert_eq!(numbers(&none, vec![tick("a", 1), tick("b", 2), tick("a", 3)]), [vec![1, 3], vec![2]]);
        assert_eq!(numbers(&none, vec![tick("a", 2), tick("a", 1)]), [[2, 1]]);
        assert!(numbers(&none, Vec::new()).is_empty());
    }

    #[test]
    fn ticks_of_a_refused_file_come_in_files_of_half_the_size() {
        let mut suspects = Suspects::default();
        suspects.halve((0..4).map(|number| ("a".to_owned(), number)).collect());
        let ticks = || (0..7).map(|number| tick("a", number)).collect();
        assert_eq!(numbers(&suspects, ticks()), [vec![0, 1], vec![2, 3], vec![4, 5, 6]]);
        suspects.halve(vec![("a".to_owned(), 2), ("a".to_owned(), 3)]);
        suspects.clear(&[("a".to_owned(), 0), ("a".to_owned(), 1)]);
        assert_eq!(numbers(&suspects, ticks()), [vec![2], vec![3], vec![0, 1, 4, 5, 6]]);
        let places: Vec<_> = suspects.groups(ticks()).into_iter().map(|group| group.places).collect();
        assert_eq!(places, [vec![2], vec![3], vec![0, 1, 4, 5, 6]]);
    }
}
