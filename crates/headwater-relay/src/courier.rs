//! Delivers loads of records to a sink, in waves where the sink does not keep the order of keys itself.
//!
//! # Why the order of a key is kept
//! A source hands in the records of a key in order, and hands in no later record of a key before the load with the earlier ones is done.
//! Inside a load: a sink that keeps the order gets all records in one call, and lets none behind a failed one of its key be
//! delivered. Any other sink gets one record of each key per call, in waves; once one has failed its key is in no later wave. What was
//! not sent because of that, or was reported behind a failure of its key, has no result, and its source hands it in again after the
//! failed one. A refused record becomes a dead letter and holds nothing back, as in a group.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::breaker::Breaker;
use crate::meter::Meter;
use crate::sink::{Delivery, Record, Sink, SinkError};

pub(crate) struct Courier {
    pub(crate) sink: Arc<dyn Sink>,
    pub(crate) breaker: Breaker,
    pub(crate) meter: Arc<Meter>,
    pub(crate) key_order: bool,
    /// How long a call may take.
    pub(crate) timeout: Duration,
}

impl Courier {
    /// Delivers a load, however often the sink is unavailable meanwhile.
    pub(crate) async fn deliver(&self, mut load: Load) -> Vec<Option<Delivery>> {
        loop {
            self.breaker.closed().await;
            match load.advance(self).await {
                Ok(()) => return load.into_results(self.key_order),
                Err(error) => self.breaker.trip(error),
            }
        }
    }

    pub(crate) fn load(&self, records: Vec<Record>) -> Load {
        Load::new(records, self.key_order && !self.sink.keeps_order())
    }

    /// One call of the sink, in a task of its own: a panic fails these records and ends no relay.
    async fn call(&self, records: Arc<Vec<Record>>) -> Result<Vec<Delivery>, SinkError> {
        let (sink, count, started) = (Arc::clone(&self.sink), records.len(), Instant::now());
        let call = AbortOnDrop(tokio::spawn(async move { sink.deliver(&records).await }));
        let limit = self.timeout;
        let deliveries = match tokio::time::timeout(limit, call.joined()).await {
            Ok(Ok(answer)) => answer?,
            Ok(Err(panic)) => {
                let (relay, sink) = (self.meter.relay(), self.sink.kind());
                tracing::error!(relay, sink, %panic, "sink panicked");
                vec![
                    Delivery::Failed { reason: format!("the sink panicked: {panic}"), retry_after: None };
                    count
                ]
            }
            Err(_) => return Err(SinkError::Unavailable(format!("no answer within {limit:?}"))),
        };
        if deliveries.len() != count {
            let results = deliveries.len();
            let text =
                format!("the sink returned {results} results for {count} records: a defect of the sink");
            return Err(SinkError::Misconfigured(text));
        }
        self.breaker.answered();
        self.meter.call(started.elapsed(), &deliveries);
        Ok(deliveries)
    }
}

/// A call that ends when its caller stops waiting.
pub(crate) struct AbortOnDrop<T>(pub(crate) tokio::task::JoinHandle<T>);

impl<T> AbortOnDrop<T> {
    pub(crate) async fn joined(mut self) -> Result<T, tokio::task::JoinError> {
        (&mut self.0).await
    }
}

impl<T> Drop for AbortOnDrop<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// What records of one order share.
type Lane = (String, String);

fn lane_of(record: &Record) -> Option<Lane> {
    Some((record.destination.clone(), record.key.clone()?))
}

/// Records on their way, and the results so far.
pub(crate) struct Load {
    records: Arc<Vec<Record>>,
    results: Vec<Option<Delivery>>,
    /// The indexes of each call to come.
    waves: Vec<Vec<usize>>,
    next: usize,
    failed: HashSet<Lane>,
}

impl Load {
    fn new(records: Vec<Record>, in_waves: bool) -> Self {
        let waves = if in_waves { waves(&records) } else { vec![(0..records.len()).collect()] };
        let results = vec![None; records.len()];
        Load { records: Arc::new(records), results, waves, next: 0, failed: HashSet::new() }
    }

    /// Sends what was not sent yet. After an error the same call is repeated by the next one, without records that have a result.
    pub(crate) async fn advance(&mut self, courier: &Courier) -> Result<(), SinkError> {
        while let Some(wave) = self.waves.get(self.next) {
            let is_free = |at: &usize| {
                self.results[*at].is_none()
                    && (self.failed.is_empty()
                        || lane_of(&self.records[*at]).is_none_or(|lane| !self.failed.contains(&lane)))
            };
            let wave: Vec<usize> = wave.iter().copied().filter(is_free).collect();
            if !wave.is_empty() {
                let records = match wave.len() == self.records.len() {
                    true => Arc::clone(&self.records),
                    false => Arc::new(wave.iter().map(|at| self.records[*at].clone()).collect()),
                };
                let deliveries = courier.call(records).await?;
                let mut lost = None;
                for (at, delivery) in wave.into_iter().zip(deliveries) {
                    match delivery {
                        // Without a result it is in the next call, behind no later record of its key: the sink delivered none.
                        Delivery::Unconfirmed { reason } => lost = Some(reason),
                        delivery => {
                            if courier.key_order && matches!(delivery, Delivery::Failed { .. }) {
                                self.failed.extend(lane_of(&self.records[at]));
                            }
                            self.results[at] = Some(delivery);
                        }
                    }
                }
                if let Some(reason) = lost {
                    return Err(SinkError::Unavailable(reason));
                }
            }
            self.next += 1;
        }
        Ok(())
    }

    /// The result of each record; `None` for those that are to be handed in again.
    pub(crate) fn into_results(mut self, key_order: bool) -> Vec<Option<Delivery>> {
        if key_order && !self.failed.is_empty() {
            let mut held: HashSet<Lane> = HashSet::new();
            for (record, result) in self.records.iter().zip(&mut self.results) {
                let Some(lane) = lane_of(record).filter(|lane| self.failed.contains(lane)) else { continue };
                if held.contains(&lane) {
                    *result = None;
                } else if matches!(result, Some(Delivery::Failed { .. })) {
                    held.insert(lane);
                }
            }
        }
        self.results
    }

    /// The records that have no result yet, by index.
    pub(crate) fn unsent(&self) -> impl Iterator<Item = usize> + '_ {
        self.results.iter().enumerate().filter(|(_, result)| result.is_none()).map(|(at, _)| at)
    }
}

/// Calls with one record of each key: the first of each key, then the second ones, and so on.
fn waves(records: &[Record]) -> Vec<Vec<usize>> {
    let mut waves: Vec<Vec<usize>> = vec![Vec::new()];
    let mut counts: HashMap<(&str, &str), usize> = HashMap::new();
    for (at, record) in records.iter().enumerate() {
        let wave = match &record.key {
            None => 0,
            Some(key) => {
                let count = counts.entry((&record.destination, key)).or_default();
                *count += 1;
                *count - 1
            }
        };
        if waves.len() == wave {
            waves.push(Vec::new());
        }
        waves[wave].push(at);
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::record;

    #[test]
    fn a_wave_has_one_record_of_each_key_and_all_without_one() {
        let records: Vec<Record> = [Some("a"), None, Some("b"), Some("a"), None, Some("a"), Some("b")]
            .into_iter()
            .enumerate()
            .map(|(at, key)| record(at, key))
            .collect();
        assert_eq!(waves(&records), [vec![0, 1, 2, 4], vec![3, 6], vec![5]]);
        assert_eq!(waves(&records[1..2]), [[0]]);
    }

    #[test]
    fn what_was_reported_behind_a_failure_of_its_key_is_handed_in_again() {
        let records: Vec<Record> = [Some("a"), Some("b"), Some("a"), Some("a")]
            .into_iter()
            .enumerate()
            .map(|(at, key)| record(at, key))
            .collect();
        let failed = || Some(Delivery::Failed { reason: "busy".into(), retry_after: None });
        let mut load = Load::new(records, false);
        load.results = vec![Some(Delivery::Delivered), failed(), failed(), Some(Delivery::Delivered)];
        load.failed = [("orders".to_owned(), "a".to_owned()), ("orders".to_owned(), "b".to_owned())].into();
        assert_eq!(load.into_results(true), [Some(Delivery::Delivered), failed(), failed(), None]);
    }
}
