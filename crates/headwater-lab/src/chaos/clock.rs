//! The machine's clock jumps forward and back by an hour and by 31 days under running processes, while the monotonic
//! clock continues. After each jump a process is killed that holds messages.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::crew::{Crew, GROUPS, TOPIC, stored};
use super::tools::libfaketime;
use super::{Place, Setting};
use crate::check::{Floor, Judged, Unit, eventually, soundness};
use crate::soak::history::now_us;

/// A group that reads nothing until the end.
const ASLEEP: &str = "asleep";
const PAUSE_MS: u64 = 20;
const STEPS: [(&str, i64); 4] = [("+1 h", 3_600), ("-1 h", 0), ("+31 d", 31 * 24 * 3_600), ("-31 d", 0)];
/// Longer than the check.
const HOLDS_MS: u64 = 600_000;
/// Messages are delivered again within this time after a jump.
const FLOWS_WITHIN: Duration = Duration::from_secs(20);
/// Messages of a killed process are redelivered within this time: fifteen seconds without its heartbeat, a heartbeat of
/// another process, and the work.
const BACK_WITHIN: Duration = Duration::from_secs(25);

pub(super) async fn run(place: &Place<'_>, setting: &Setting) -> Result<Vec<Judged>> {
    let library = libfaketime()?;
    let directory = tempfile::Builder::new().prefix("clock").tempdir_in(&setting.work)?;
    let hands = directory.path().join("hands");
    set(&hands, 0)?;
    let headwater = place.open().await?;
    Crew::create_topic(&headwater, &[GROUPS[0], GROUPS[1], ASLEEP]).await?;
    headwater.close().await?;
    let text = |path: &Path| path.display().to_string();
    let env = [
        ("LD_PRELOAD", text(&library)),
        ("FAKETIME_TIMESTAMP_FILE", text(&hands)),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ("DONT_FAKE_MONOTONIC", "1".into()),
    ];
    let mut crew = Crew::new(place, env.map(|(name, value)| (name.to_owned(), value)).to_vec());
    crew.start_all(PAUSE_MS).await?;
    crew.acknowledged_since(0, 50).await?;
    let (mut judged, mut killed) = (vec![], vec![]);
    for (number, (step, seconds)) in STEPS.into_iter().enumerate() {
        set(&hands, seconds)?;
        judged.extend(after_step(&mut crew, step, GROUPS[number % 2], &mut killed).await?);
    }
    crew.stop_publishers().await?;
    let all = crew.with(|heard| heard.since(0));
    let missing = crew.unhandled(&all, Duration::from_secs(20)).await;
    let headwater = place.open().await?;
    let log = stored(&headwater).await?;
    crew.kill_all().await?;
    let removed = all.iter().filter(|n| !log.contains(n)).count();
    let asleep = read_all(&headwater).await?;
    let sound = soundness(&headwater).await?;
    headwater.close().await?;
    let at_once: u64 =
        crew.with(|heard| heard.handled.values().map(|record| record.overlapping(&killed)).sum());
    judged.extend([
        Judged::none_of("acknowledged messages removed unread", removed as u64)
            .note(format!("of {}", all.len())),
        Judged::none_of("messages that the idle group did not get", all.difference(&asleep).count() as u64),
        Judged::none_of("messages handled twice at once", at_once),
        sound,
    ]);
    for (group, count) in missing {
        judged.push(Judged::none_of(&format!("messages unhandled by {group}"), count));
    }
    Ok(judged)
}

/// Sets the clocks of all processes this many seconds ahead of this one's, atomically: they read it while they run.
fn set(hands: &Path, seconds: i64) -> Result<()> {
    let new = hands.with_extension("new");
    std::fs::write(&new, format!("+{seconds}"))?;
    Ok(std::fs::rename(new, hands)?)
}

/// How long it takes after a jump until messages flow again, and until those of a killed process are handled.
async fn after_step(
    crew: &mut Crew,
    step: &str,
    victim: &'static str,
    killed: &mut Vec<usize>,
) -> Result<Vec<Judged>> {
    eprintln!("· {step}");
    let (start, step_us) = (Instant::now(), now_us());
    let flows = eventually("messages flow", FLOWS_WITHIN, async || {
        Ok(crew.with(|heard| {
            let sent = heard.since(step_us);
            GROUPS.iter().all(|group| {
                let of_group = heard.handled.get(group);
                sent.iter().any(|n| of_group.is_some_and(|record| record.is_finished(*n)))
            })
        }))
    });
    let flows = flows.await.map(|()| start.elapsed());
    // A process whose handlers never end: its messages are redelivered to the others once it is killed.
    crew.consume(victim, 2, HOLDS_MS)?;
    let (_, number, process) = crew.consumers.pop().context("it was just started")?;
    let holds = eventually("a process holds messages", Duration::from_secs(20), async || {
        Ok(crew.with(|heard| {
            heard.handled.get(victim).is_some_and(|record| record.shares().contains_key(&number))
        }))
    });
    holds.await?;
    process.kill().await?;
    killed.push(number);
    let (start, owed) = (Instant::now(), crew.with(|heard| heard.since(0)));
    let missing: u64 = crew.unhandled(&owed, BACK_WITHIN).await.iter().map(|(_, count)| count).sum();
    let back = start.elapsed();
    // Long enough for a run of every maintenance job by the new clock.
    tokio::time::sleep(Duration::from_secs(12).saturating_sub(back)).await;
    let seconds = |time: Duration| {
        Judged::new(
            &format!("{step}: messages flow again"),
            time.as_secs_f64() * 1_000.0,
            Unit::Milliseconds,
            Floor::AtMost(FLOWS_WITHIN.as_secs_f64() * 1_000.0),
        )
    };
    Ok(vec![
        flows.map_or_else(
            |error| Judged::none_of(&format!("{step}: flows that stopped"), 1).note(format!("{error:#}")),
            seconds,
        ),
        Judged::none_of(&format!("{step}: messages not back {BACK_WITHIN:?} after a kill"), missing)
            .note(format!("after {:.1} s", back.as_secs_f64())),
    ])
}

/// The messages that the idle group can still read.
async fn read_all(headwater: &headwater::Headwater) -> Result<BTreeSet<u64>> {
    let mut consumer = headwater.consumer(TOPIC, ASLEEP).batch(1_000).open().await?;
    let mut numbers = BTreeSet::new();
    while let Some(batch) = consumer.next(Duration::from_millis(200)).await? {
        for message in batch.messages() {
            numbers.insert(serde_json::from_slice(&message.payload)?);
        }
        batch.ack().await?;
    }
    consumer.close().await?;
    Ok(numbers)
}
