//! What happens in the demo, act by act, and the claims that are checked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use headwater::store::{DeadLetter, SubscriptionStatus};
use headwater::{Headwater, Offset, SubscriptionState};
use serde_json::json;

use super::cast::Cast;
use super::ledger::{self, Account};
use super::publish::{Published, Publishing};
use super::stage::Stage;
use super::worker::PICKY;
use super::{TOPIC, Tempo};
use crate::args::Output;
use crate::human;
use crate::output::{Rows, print_objects};

/// The groups that exist from the beginning; the first is the one that dies.
const GROUPS: [&str; 3] = ["shipping", "email", PICKY];
const MORTAL: &str = GROUPS[0];
const STEADY: &str = GROUPS[1];
const LATE: &str = "analytics";
/// How long a step may take before the demo fails.
const PATIENCE: Duration = Duration::from_secs(60);
const CHECK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Story<'a> {
    headwater: &'a Headwater,
    stage: &'a Arc<Stage>,
    cast: &'a mut Cast,
    tempo: Tempo,
    claims: Vec<Claim>,
    caught_up: Vec<CaughtUp>,
    published: Option<Published>,
}

/// A printed claim, and whether the store confirms it.
struct Claim {
    text: String,
    holds: bool,
}

/// How fast a group that was behind caught up.
struct CaughtUp {
    group: &'static str,
    messages: u64,
    took: Duration,
}

impl CaughtUp {
    fn rate(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let messages = self.messages as f64;
        messages / self.took.as_secs_f64().max(0.001)
    }
}

impl<'a> Story<'a> {
    pub(super) fn new(
        headwater: &'a Headwater,
        stage: &'a Arc<Stage>,
        cast: &'a mut Cast,
        tempo: Tempo,
    ) -> Self {
        let (claims, caught_up) = (Vec::new(), Vec::new());
        Story { headwater, stage, cast, tempo, claims, caught_up, published: None }
    }

    pub(super) async fn play(&mut self) -> Result<()> {
        let publishing = self.three_groups().await?;
        self.a_death(&publishing).await?;
        self.a_poison_message(&publishing).await?;
        self.a_late_joiner().await?;
        self.the_end(publishing).await
    }

    async fn three_groups(&mut self) -> Result<Publishing> {
        self.stage.act("Three groups, each in a process of its own; every group gets every order");
        for group in GROUPS {
            let id = self.cast.start(group, false)?;
            self.stage.event(&format!("{group} is served by process {id}"));
        }
        for group in GROUPS {
            // A group that never had a heartbeat is never declared dead.
            self.until(group, "its first heartbeat", |status| status.heartbeat_at.is_some()).await?;
        }
        let publishing = Publishing::start(self.headwater, self.tempo.per_second);
        self.stage.event(&format!("publishing {}", human::rate(f64::from(self.tempo.per_second))));
        tokio::time::sleep(self.tempo.calm).await;
        for group in GROUPS {
            let done = self.until(group, "its first message", |status| status.floor > Offset(0)).await?.floor;
            self.claim(true, format!("{group} keeps up: done up to offset {done}"));
        }
        Ok(publishing)
    }

    async fn a_death(&mut self, publishing: &Publishing) -> Result<()> {
        self.stage.act("A process is killed with SIGKILL; its group dies, and returns with a new process");
        let others = self.status(STEADY).await?.floor;
        publishing.burst(self.tempo.burst).await?;
        self.stage
            .event(&format!("{} orders are published at once", human::count(u64::from(self.tempo.burst))));
        // With messages in flight, if the process can be caught in time.
        self.until(MORTAL, "its work", |status| status.in_flight > 0 || status.lag == 0).await?;
        self.cast.kill(MORTAL).await?;
        let killed = Instant::now();
        let held = human::count(self.status(MORTAL).await?.in_flight);
        self.stage.event(&format!("the process of {MORTAL} is killed with {held} messages in flight"));
        let dead = self.until(MORTAL, "its death", |status| status.state == SubscriptionState::Dead).await?;
        let (after, silence) = (killed.elapsed().as_secs_f64(), dead.heartbeat_age.unwrap_or_default());
        self.claim(
            silence >= dead.heartbeat_timeout,
            format!(
                "{MORTAL} is declared dead {after:.1}s after it was killed, {:.1}s after its last heartbeat",
                silence.as_secs_f64()
            ),
        );
        tokio::time::sleep(self.tempo.dead_for).await;
        let dead = self.status(MORTAL).await?;
        self.stage.event(&format!("meanwhile {} messages wait for {MORTAL}", human::count(dead.lag)));
        let on = self.status(STEADY).await?.floor.0 - others.0;
        self.claim(on > 0, format!("{STEADY} continued meanwhile: {on} messages done"));

        let id = self.cast.start(MORTAL, false)?;
        self.stage.event(&format!("process {id} serves {MORTAL} again"));
        let back =
            self.until(MORTAL, "its return", |status| status.state == SubscriptionState::Active).await?;
        self.claim(
            back.next >= dead.next && back.missed.count == 0,
            format!("{MORTAL} continues at its cursor, offset {}, and missed nothing", dead.next),
        );
        self.catch_up(MORTAL).await
    }

    async fn a_poison_message(&mut self, publishing: &Publishing) -> Result<()> {
        self.stage
            .act("A message that one group cannot handle is buried, and redriven once the group is fixed");
        let poison = publishing.poison().await?;
        self.stage.event(&format!("order p-1 at offset {poison} has the amount \"twelve\""));
        self.until(PICKY, "the burial", |status| status.dead_letters > 0).await?;
        let letters = self.headwater.dead_letters().of(TOPIC, PICKY);
        let buried = letters.list(2).await?;
        let [DeadLetter { offset, error, attempts, .. }] = &buried[..] else {
            bail!("{} dead letters instead of one", buried.len());
        };
        self.stage.event(&format!("{PICKY} failed: {error}"));
        self.claim(*offset == poison, format!("{PICKY} buried offset {offset} after {attempts} attempts"));
        let (file, steady) = (self.cast.file(), poison);
        until("the other groups", async || {
            let others = [MORTAL, STEADY].map(|group| ledger::has(&file, group, steady));
            Ok(others.into_iter().all(|has| has.unwrap_or(false)).then_some(()))
        })
        .await?;
        self.claim(
            true,
            format!("{MORTAL} and {STEADY} have handled it, and {PICKY} continues with the other orders"),
        );

        self.cast.retire(PICKY).await;
        let id = self.cast.start(PICKY, true)?;
        self.stage.event(&format!("a fixed {PICKY} is deployed: process {id}"));
        let redriven = letters.redrive(|all| all.error_contains("no number")).await?.redriven;
        self.stage.event(&format!("{redriven} dead letter redriven, to {PICKY} only"));
        until("the redriven message", async || Ok(ledger::has(&file, PICKY, poison)?.then_some(()))).await?;
        let left = letters.count().await?;
        self.claim(redriven == 1 && left == 0, format!("{PICKY} has now handled offset {poison}"));
        Ok(())
    }

    async fn a_late_joiner(&mut self) -> Result<()> {
        self.stage.act("A group joins late and replays everything from the beginning");
        tokio::time::sleep(self.tempo.calm / 2).await;
        let id = self.cast.start(LATE, false)?;
        self.stage.event(&format!("process {id} serves {LATE}, a new group"));
        let joined = self.until(LATE, "its subscription", |_| true).await?;
        self.claim(joined.state == SubscriptionState::Active, format!("{LATE} exists and is active"));
        self.catch_up(LATE).await
    }

    async fn the_end(&mut self, publishing: Publishing) -> Result<()> {
        self.stage.act("The shop closes; everything is checked once more");
        let published = publishing.stop().await?;
        let total = published.messages;
        for group in GROUPS.into_iter().chain([LATE]) {
            self.until(group, "its last message", |status| {
                status.lag == 0 && u64::try_from(status.floor.0).is_ok_and(|floor| floor == total)
            })
            .await?;
        }
        let stored = self.headwater.published(TOPIC).await?.len() as u64;
        self.claim(stored == total, format!("{} orders were published and are stored", human::count(stored)));
        for group in GROUPS.into_iter().chain([LATE]) {
            let account = ledger::account(self.cast.file(), group)?;
            let every =
                account.messages == total && u64::try_from(account.last).is_ok_and(|last| last == total);
            let once = account.lines == account.messages;
            let text = format!("{group} has handled {} of them, each once", human::count(account.messages));
            self.claim(every && once, text);
        }
        let findings = self.headwater.doctor().await?;
        self.claim(findings.is_empty(), format!("doctor has {} findings", findings.len()));
        self.published = Some(published);
        self.stage.end_act();
        Ok(())
    }

    /// Prints the summary; returns whether every claim holds.
    pub(super) async fn curtain(&self, output: Output) -> Result<bool> {
        self.stage.clear();
        let published = self.published.context("the demo has run to its end")?;
        let seconds = published.took.as_secs_f64();
        #[expect(clippy::cast_precision_loss, reason = "for people")]
        let rate = published.messages as f64 / seconds;
        let held = self.claims.iter().filter(|claim| claim.holds).count();
        let groups = groups(self.headwater).await?;
        if output == Output::Json {
            let claims = self.claims.iter().map(|claim| json!({ "claim": claim.text, "holds": claim.holds }));
            let groups = groups.iter().map(|group| self.group_object(group)).collect::<Result<Vec<_>>>()?;
            print_objects([json!({ "published": published.messages, "rate": rate, "groups": groups,
                "claims": claims.collect::<Vec<_>>(), "took_ms": human::ms(self.stage.elapsed()) })])?;
        } else {
            let mut rows =
                Rows::new(&["group", "handled", "rate", "caught_up", "missed", "dead_letters", "reassigned"]);
            for group in &groups {
                let object = self.group_object(group)?;
                let rate_of = |name: &str| object[name].as_f64().map(human::rate);
                rows.push(vec![
                    object["group"].clone(),
                    object["handled"].clone(),
                    json!(rate_of("rate")),
                    json!(rate_of("catch_up_rate")),
                    object["missed"].clone(),
                    object["dead_letters"].clone(),
                    object["reassigned"].clone(),
                ]);
            }
            self.stage.say(&format!(
                "\n{} published, {}",
                human::count(published.messages),
                human::rate(rate)
            ));
            rows.print(output)?;
        }
        let took = human::duration(Duration::from_millis(100) * tenths(self.stage.elapsed()));
        self.stage.say(&format!("{held} of {} claims hold; it took {took}", self.claims.len()));
        Ok(held == self.claims.len())
    }

    fn group_object(&self, status: &SubscriptionStatus) -> Result<serde_json::Value> {
        let name = status.group.as_str();
        let Account { lines, rate, .. } = ledger::account(self.cast.file(), name)?;
        let caught_up = self.caught_up.iter().find(|caught_up| caught_up.group == name);
        Ok(json!({
            "group": name,
            "handled": lines,
            "rate": rate,
            "caught_up": caught_up.map(|caught_up| caught_up.messages),
            "catch_up_rate": caught_up.map(CaughtUp::rate),
            "missed": status.missed.count,
            "dead_letters": status.dead_letters,
            "reassigned": status.reassigned,
        }))
    }

    /// Waits until a group has done everything up to the current head, and records how fast it was.
    async fn catch_up(&mut self, group: &'static str) -> Result<()> {
        let (behind, began) = (self.status(group).await?, Instant::now());
        let end = self.head().await?;
        let done = self.until(group, "catching up", |status| status.floor >= end).await?;
        let messages = u64::try_from(done.floor.0 - behind.floor.0).unwrap_or(0);
        let caught_up = CaughtUp { group, messages, took: began.elapsed() };
        let rate = human::rate(caught_up.rate());
        let (count, took) = (human::count(messages), caught_up.took.as_secs_f64());
        self.claim(
            true,
            format!("{group} has caught up to offset {end}: {count} messages in {took:.1}s, {rate}"),
        );
        self.caught_up.push(caught_up);
        Ok(())
    }

    fn claim(&mut self, holds: bool, text: String) {
        self.stage.event(&format!("{} {text}", if holds { "✓" } else { "✗" }));
        self.claims.push(Claim { text, holds });
    }

    async fn head(&self) -> Result<Offset> {
        Ok(self.headwater.topics().status(TOPIC).await?.head)
    }

    async fn status(&self, group: &str) -> Result<SubscriptionStatus> {
        Ok(self.headwater.groups(TOPIC).get(group).await?.status)
    }

    /// Waits until a group is as described.
    async fn until(
        &self,
        group: &str,
        what: &str,
        is_so: impl Fn(&SubscriptionStatus) -> bool,
    ) -> Result<SubscriptionStatus> {
        until(&format!("{group}: {what}"), async || {
            let groups = groups(self.headwater).await?;
            Ok(groups.into_iter().find(|status| status.group.as_str() == group && is_so(status)))
        })
        .await
    }
}

/// Checks repeatedly until there is an answer, for at most [`PATIENCE`].
async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Result<Option<T>>) -> Result<T> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = check().await? {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            bail!("timed out after {} waiting for {what}", human::duration(PATIENCE));
        }
        tokio::time::sleep(CHECK_EVERY).await;
    }
}

/// The groups of the demo, as the store has them.
pub(super) async fn groups(headwater: &Headwater) -> Result<Vec<SubscriptionStatus>> {
    let groups = headwater.groups(TOPIC).list().await?;
    Ok(groups.into_iter().map(|group| group.status).collect())
}

fn tenths(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis() / 100).unwrap_or(u32::MAX)
}
