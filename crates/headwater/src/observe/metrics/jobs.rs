//! The metrics of maintenance jobs in this process.

use std::sync::Mutex;

use metrics::{Counter, Gauge, Histogram, Unit};

use crate::maintenance::{Job, JobRun};

const RUNS: &str = "headwater_job_runs_total";
const FAILURES: &str = "headwater_job_failures_total";
const ROWS: &str = "headwater_job_rows_total";
const SECONDS: &str = "headwater_job_seconds";
const LAST_SECONDS: &str = "headwater_job_last_seconds";
const BACKLOG: &str = "headwater_job_backlog";
const BEHIND: &str = "headwater_cleanup_behind";
const ELECTED: &str = "headwater_maintenance_elected";

/// The series of all jobs.
#[derive(Debug)]
pub(crate) struct JobMetrics {
    jobs: Vec<(Job, Series)>,
    behind: Gauge,
    elected: Gauge,
    /// The value of `behind`, readable without an exporter.
    is_behind: Mutex<bool>,
}

#[derive(Debug)]
struct Series {
    runs: Counter,
    failures: Counter,
    rows: Counter,
    seconds: Histogram,
    last_seconds: Gauge,
    backlog: Gauge,
}

impl Default for JobMetrics {
    fn default() -> Self {
        describe();
        let series = |job: Job| {
            let label = [("job", job.as_str())];
            Series {
                runs: metrics::counter!(RUNS, &label),
                failures: metrics::counter!(FAILURES, &label),
                rows: metrics::counter!(ROWS, &label),
                seconds: metrics::histogram!(SECONDS, &label),
                last_seconds: metrics::gauge!(LAST_SECONDS, &label),
                backlog: metrics::gauge!(BACKLOG, &label),
            }
        };
        JobMetrics {
            jobs: Job::ALL.into_iter().map(|job| (job, series(job))).collect(),
            behind: metrics::gauge!(BEHIND),
            elected: metrics::gauge!(ELECTED),
            is_behind: Mutex::new(false),
        }
    }
}

impl JobMetrics {
    /// Counts a run.
    pub(crate) fn ran(&self, run: &JobRun) {
        let (_, series) =
            self.jobs.iter().find(|(job, _)| *job == run.job).expect("every job has its series");
        series.runs.increment(1);
        series.failures.increment(u64::from(run.error.is_some()));
        series.rows.increment(run.rows);
        series.seconds.record(run.duration.as_secs_f64());
        series.last_seconds.set(run.duration.as_secs_f64());
        // Exact up to 2^53 rows.
        series.backlog.set(run.backlog as f64);
    }

    /// Shows whether cleanup is slower than publishing; returns whether that changed.
    pub(crate) fn set_behind(&self, behind: bool) -> bool {
        self.behind.set(f64::from(u8::from(behind)));
        let mut shown = self.is_behind.lock().expect("no panic while held");
        std::mem::replace(&mut *shown, behind) != behind
    }

    /// Shows whether this process is elected for maintenance. The figures of an earlier term no longer apply: another
    /// process exports them now, and a stale value would raise alerts.
    pub(crate) fn set_elected(&self, elected: bool) {
        self.elected.set(f64::from(u8::from(elected)));
        if !elected {
            let of_jobs = self.jobs.iter().flat_map(|(_, series)| [&series.last_seconds, &series.backlog]);
            of_jobs.chain([&self.behind]).for_each(|gauge| gauge.set(f64::NAN));
        }
    }
}

fn describe() {
    for (name, text) in [
        (RUNS, "Runs of a maintenance job"),
        (FAILURES, "Runs of a maintenance job that failed"),
        (ROWS, "Rows a maintenance job removed, added or changed"),
    ] {
        metrics::describe_counter!(name, Unit::Count, text);
    }
    metrics::describe_histogram!(SECONDS, Unit::Seconds, "Time of a run of a maintenance job");
    for (name, text) in [
        (LAST_SECONDS, "Time of the last run of a maintenance job"),
        (BACKLOG, "Rows a maintenance job left for its next run"),
        (BEHIND, "1 while cleanup is slower than publishing"),
        (ELECTED, "1 while this process is elected for maintenance"),
    ] {
        metrics::describe_gauge!(name, Unit::Count, text);
    }
}
