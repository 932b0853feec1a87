//! Compares the files of a run with what was announced.

use std::collections::BTreeMap;
use std::fmt;

use super::{FileStorage, StoredBatch, blocking, file, keys};
use crate::contracts::{BatchInfo, TickDataBatch};
use crate::error::{ErrorCode, Result};

/// Something about a file that an operator may want to know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file.
    pub key: String,
    /// What it is.
    pub problem: Problem,
}

/// What is with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No message names it: the service that wrote it was killed, or is about to announce it. Harmless: its ticks are written again.
    Unannounced,
    /// A message names it, and it is not there.
    Missing,
    /// It is not what was announced, or no batch file at all.
    Damaged(String),
    /// It has ticks that another file has too. Harmless: repeats change nothing.
    Overlapping {
        /// The other file.
        with: String,
        /// How many ticks they share.
        ticks: u64,
    },
    /// A temporary file: a service that was killed left it, or is writing it. Harmless.
    Temporary,
}

impl Problem {
    /// Whether ticks may be lost.
    pub fn is_harmful(&self) -> bool {
        matches!(self, Problem::Missing | Problem::Damaged(_))
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = &self.key;
        match &self.problem {
            Problem::Unannounced => write!(f, "{key}: not announced"),
            Problem::Missing => write!(f, "{key}: announced and missing"),
            Problem::Damaged(how) => f.write_str(how),
            Problem::Overlapping { with, ticks } => write!(f, "{key}: shares {ticks} ticks with {with}"),
            Problem::Temporary => write!(f, "{key}: temporary file"),
        }
    }
}

impl FileStorage {
    /// Reads all batch files of a run and compares them with the announcements of its topic. Sound files are not listed; ranges that overlap
    /// without a common tick are normal where several services write.
    pub async fn check(&self, run_id: &str, announced: &[BatchInfo]) -> Result<Vec<Finding>> {
        let files = self.list_batches(run_id).await?;
        let mut by_key: BTreeMap<&str, Vec<&BatchInfo>> = BTreeMap::new();
        for info in announced {
            by_key.entry(&info.storage_key).or_default().push(info);
        }
        let mut findings = Vec::new();
        let is_there = |key: &str| files.binary_search_by(|file| file.key.as_str().cmp(key)).is_ok();
        for key in by_key.keys().filter(|key| !is_there(key)) {
            findings.push(Finding { key: (*key).to_owned(), problem: Problem::Missing });
        }
        // Files come by their first tick, so only those that reach it can share ticks with a file.
        let mut reaching: Vec<(StoredBatch, Vec<i64>)> = Vec::new();
        for file in files {
            let infos = by_key.get(file.key.as_str()).map_or(&[][..], Vec::as_slice);
            if infos.is_empty() {
                findings.push(Finding { key: file.key.clone(), problem: Problem::Unannounced });
            }
            let ticks = match self.ticks_of(&file, infos).await? {
                Ok(ticks) => ticks,
                Err(how) => {
                    findings.push(Finding { key: file.key, problem: Problem::Damaged(how) });
                    continue;
                }
            };
            reaching.retain(|(earlier, _)| earlier.last_tick >= file.first_tick);
            for (earlier, others) in &reaching {
                let shared = common(others, &ticks);
                if shared > 0 {
                    let problem = Problem::Overlapping { with: earlier.key.clone(), ticks: shared };
                    findings.push(Finding { key: file.key.clone(), problem });
                }
            }
            reaching.push((file, ticks));
        }
        let temporary = self.objects.temporary(&keys::batches(run_id)).await?;
        findings.extend(temporary.into_iter().map(|key| Finding { key, problem: Problem::Temporary }));
        Ok(findings)
    }

    /// The tick numbers of a file, or how it is damaged: measured by each announcement, or by itself without one.
    async fn ticks_of(
        &self,
        file: &StoredBatch,
        infos: &[&BatchInfo],
    ) -> Result<std::result::Result<Vec<i64>, String>> {
        let Some(object) = self.objects.get(&file.key).await? else {
            // Deleted since the files were listed.
            return Ok(Err(format!("{}: deleted while it was checked", file.key)));
        };
        let bytes = object.bytes().await?;
        let infos: Vec<BatchInfo> = infos.iter().map(|info| (*info).clone()).collect();
        let (key, file_bytes_max) = (file.key.clone(), self.settings.file_bytes_max);
        let checked = blocking(ErrorCode::ReadFailed, move || {
            let numbers =
                |batch: TickDataBatch| batch.ticks.iter().map(|tick| tick.tick_number).collect::<Vec<i64>>();
            let mut ticks = None;
            for info in &infos {
                ticks = Some(numbers(file::unpack_batch(bytes.clone(), info, file_bytes_max)?));
            }
            match ticks {
                Some(ticks) => Ok(ticks),
                None => file::parse_batch(bytes, &key, file_bytes_max).map(numbers),
            }
        })
        .await;
        match checked {
            Ok(ticks) => Ok(Ok(ticks)),
            Err(error) if error.code() == ErrorCode::DamagedFile => Ok(Err(error.to_string())),
            Err(error) => Err(error),
        }
    }
}

/// How many numbers two rising lists share.
fn common(a: &[i64], b: &[i64]) -> u64 {
    b.iter().filter(|number| a.binary_search(number).is_ok()).count() as u64
}
