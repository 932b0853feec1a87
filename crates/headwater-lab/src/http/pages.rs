//! The time that pages of the dashboard take with 1,000 topics and 10,000 groups, while one page is open in a browser.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use http_body_util::BodyExt;

use super::filled::fill;
use super::serve::Served;
use crate::check::http::Client;
use crate::check::{Floor, Judged, Place, Unit, ms, percentile_ms, progress};

const REQUESTS: usize = 20;
/// Between two requests, so that they meet what the server does at intervals.
const PAUSE: Duration = Duration::from_millis(50);
const RENDERED_MS_MAX: f64 = 50.0;
/// Shown, not judged: it checks everything stored, which is asked for by a button.
const DOCTOR: &str = "/maintenance/doctor";

/// Name and path of each page, and a text that it must have: a page that shows nothing is rendered quickly.
const PAGES: [(&str, &str, &str); 20] = [
    ("overview", "/", "Busiest topics"),
    ("topics", "/topics", "topic-0001"),
    ("topics, tenth page", "/topics?page=10", "topic-0470"),
    ("topics, search", "/topics?q=c-07", "topic-0701"),
    ("a topic", "/topics/topic-0500", "key-3"),
    ("a topic's groups", "/topics/topic-0500/groups", "group-7"),
    ("a topic's settings", "/topics/topic-0500/settings", "Save settings"),
    ("groups", "/groups", "group-7"),
    ("groups, hundredth page", "/groups?page=100", "topic-0"),
    ("groups, search", "/groups?q=group-7", "group-7"),
    ("groups by lag", "/groups?sort=lag", "group-"),
    ("a group", "/topics/topic-0500/groups/group-7", "Position in the log"),
    ("dead letters", "/dead-letters", "recipient unknown"),
    ("scheduled", "/scheduled", "later-1"),
    ("processes", "/processes", "order-1"),
    ("outbox and relays", "/outbox", "ParcelSent"),
    ("maintenance", "/maintenance", "message cleanup"),
    ("doctor", DOCTOR, "The store is sound"),
    ("audit", "/audit", "tried"),
    ("settings", "/settings", "This store has no tokens"),
];

pub(super) async fn run(place: &Place<'_>) -> Result<Vec<Judged>> {
    progress("filling the store");
    fill(place).await?;
    let served = Served::start(place).await?;
    // An open page makes the server read all figures as often as it ever does.
    let mut browser = served.client().await?;
    let mut live = browser.stream("/live?page=%2Fgroups").await?;
    let watching = tokio::spawn(async move { while let Some(Ok(_)) = live.frame().await {} });
    let mut client = served.client().await?;
    let mut judged = Vec::with_capacity(PAGES.len());
    for (name, path, text) in PAGES {
        progress(name);
        let judged_by = if path == DOCTOR { Floor::None } else { Floor::AtMost(RENDERED_MS_MAX) };
        judged.push(Rendered::measure(&mut client, path, text).await?.judge(name, judged_by));
    }
    ensure!(!watching.is_finished(), "the live updates of a page ended");
    watching.abort();
    drop(browser);
    served.stop().await?;
    Ok(judged)
}

/// Times from a request to the last byte of the page.
#[derive(Debug)]
struct Rendered {
    /// The first one is shown only: a reading of all figures may be the first ever.
    first: Duration,
    times: Vec<Duration>,
    bytes: usize,
}

impl Rendered {
    async fn measure(client: &mut Client, path: &str, text: &str) -> Result<Self> {
        let (first, page) = timed(client, path).await?;
        let shown = std::str::from_utf8(&page).context("a page is text")?;
        ensure!(shown.contains(text), "{path} does not have {text:?}");
        let mut times = Vec::with_capacity(REQUESTS);
        for _ in 0..REQUESTS {
            tokio::time::sleep(PAUSE).await;
            times.push(timed(client, path).await?.0);
        }
        Ok(Rendered { first, times, bytes: page.len() })
    }

    fn judge(&self, name: &str, floor: Floor) -> Judged {
        let longest = self.times.iter().max().map_or(f64::NAN, |time| ms(*time));
        let median = if self.times.is_empty() { f64::NAN } else { percentile_ms(&self.times, 0.5) };
        let note = format!(
            "p50 {median:.2} ms, the first one {:.2} ms, {} requests, {} KB",
            ms(self.first),
            self.times.len(),
            self.bytes / 1_000
        );
        let what = format!("{name}, longest");
        Judged::new(&what, longest, Unit::Milliseconds, floor).note(note)
    }
}

async fn timed(client: &mut Client, path: &str) -> Result<(Duration, bytes::Bytes)> {
    let start = Instant::now();
    let page = client.get(path, "text/html").await?;
    Ok((start.elapsed(), page))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_page_and_one_without_times_are_missed() {
        let is_met = |times: &[u64]| {
            let times = times.iter().map(|time| Duration::from_millis(*time)).collect();
            let floor = Floor::AtMost(RENDERED_MS_MAX);
            Rendered { first: Duration::from_secs(9), times, bytes: 1 }.judge("it", floor).is_met()
        };
        assert!(is_met(&[1, 50, 2]) && !is_met(&[1, 51, 2]) && !is_met(&[]));
    }
}
