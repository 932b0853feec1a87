//! Random operations: the doctor finds nothing after any of them, and what is recorded and removed agrees with a
//! plain check of every offset.

use std::collections::BTreeSet;

use super::*;
use crate::store::rng::Rng;

struct Play {
    scene: Scene,
    dice: Rng,
    groups: Vec<Subscription>,
    acts: Vec<String>,
}

#[tokio::test]
async fn records_and_retention_follow_from_the_delivery_state() {
    for seed in 1..=12 {
        let settings =
            "message_retention_ms = 5000, max_retention_ms = 60000, zero_subscription_retention_ms = 2000";
        let scene = Scene::new(settings).await;
        let mut play = Play { scene, dice: Rng::new(seed), groups: Vec::new(), acts: Vec::new() };
        for _ in 0..120 {
            play.act().await;
            let findings = play.scene.store.doctor().await.unwrap();
            assert_eq!(findings, [], "seed {seed}: {:#?}", play.acts);
        }
        play.settle_down(seed).await;
    }
}

impl Play {
    async fn act(&mut self) {
        let roll = self.dice.below(100);
        let small = u32::try_from(1 + self.dice.below(9)).unwrap();
        let topic_id = self.scene.topic;
        let description = match roll {
            0..20 => {
                self.scene.publish(small as usize).await;
                format!("publish {small}")
            }
            20..28 if self.groups.len() < 6 => {
                let end = self.scene.number("SELECT last_offset + 1 FROM headwater_topic").unwrap();
                let starts = [Start::Beginning, Start::Now, Start::Offset(Offset(end.min(7)))];
                let start = starts[self.dice.below(3) as usize];
                let name = format!("g{}", self.groups.len());
                self.groups.push(self.scene.group(&name, start).await);
                format!("subscribe {name} {start:?}")
            }
            28..50 if !self.groups.is_empty() => self.consume(small).await,
            50..60 if !self.groups.is_empty() => self.change_state().await,
            60..65 if !self.groups.is_empty() => self.seek().await,
            65..80 => format!("track {:?}", self.scene.store.track(topic_id, small).await.unwrap()),
            80..85 => format!("{:?}", self.scene.store.step_backfill(&worker("w"), small).await.unwrap()),
            85..92 => self.clean(small).await,
            92..97 => {
                let by = Duration::from_millis(500 + self.dice.below(4_000));
                self.scene.clock.advance(by);
                format!("advance {by:?}")
            }
            _ => {
                let target =
                    [Tracking::ReferenceCounting, Tracking::OffsetWatermark][self.dice.below(2) as usize];
                format!(
                    "change {target:?} {:?}",
                    self.scene.change(target).await.map_err(|error| error.kind())
                )
            }
        };
        self.acts.push(description);
    }

    fn status(&self, group: &Subscription) -> String {
        let sql = "SELECT state FROM headwater_subscription WHERE subscription_id = ?1";
        let connection = self.scene.place.connect();
        connection.query_row(sql, [group.subscription_id.0], |row| row.get(0)).unwrap()
    }

    fn any(&mut self) -> Subscription {
        let at = self.dice.below(self.groups.len() as u64) as usize;
        self.groups[at].clone()
    }

    async fn consume(&mut self, small: u32) -> String {
        let group = self.any();
        if self.status(&group) != "active" {
            return "nothing".into();
        }
        let claimed = self.scene.store.claim(&request(&group, small)).await.unwrap();
        let mut description = format!("{} claims", group.group);
        for lease in claimed.leases {
            let first = OffsetRange::one(lease.range.first);
            let retry = Outcome::Retry { after: Duration::from_secs(1), error: "x".into(), key: None };
            let settlement = match self.dice.below(4) {
                0 => None,
                1 => Some(Settlement::each(&lease, vec![(first, retry)])),
                2 => Some(Settlement::each(&lease, vec![(first, Outcome::Ack)])),
                _ => Some(Settlement::ack_all(&lease)),
            };
            description += &format!(" {:?} {settlement:?}", lease.range);
            if let Some(settlement) = settlement {
                self.scene.store.settle(&[settlement]).await.unwrap().remove(0).unwrap();
            }
        }
        description
    }

    async fn change_state(&mut self) -> String {
        let group = self.any();
        let status = self.status(&group);
        let to = match (status.as_str(), self.dice.below(6)) {
            ("active", 0) => "cancelled",
            ("active", _) => "dead",
            ("dead", _) => "active",
            _ => return "nothing".into(),
        };
        self.scene.set_state(&group, to).await;
        format!("{} is {to}", group.group)
    }

    /// Removes everything outstanding and moves the cursor, as the life cycle does.
    async fn seek(&mut self) -> String {
        let group = self.any();
        if self.status(&group) == "cancelled" {
            return "nothing".into();
        }
        let head = self.scene.number("SELECT last_offset FROM headwater_topic").unwrap();
        let to = 1 + self.dice.below(head as u64 + 1);
        self.scene.sql(&format!(
            "DELETE FROM headwater_outstanding WHERE subscription_id = {id};
             UPDATE headwater_cursor SET next_offset = {to} WHERE subscription_id = {id}",
            id = group.subscription_id.0
        ));
        format!("{} seeks {to}", group.group)
    }

    /// Cleans once, and checks that no message was removed that a counting group needs and that is not too old.
    async fn clean(&mut self, small: u32) -> String {
        let needed = self.needed();
        let step = self.scene.store.clean(self.scene.topic, small).await.unwrap();
        let stored: BTreeSet<i64> = self.scene.stored().await.into_iter().collect();
        assert!(needed.is_subset(&stored), "{needed:?} {stored:?} {:#?}", self.acts);
        format!("clean {step:?}")
    }

    /// Stored messages younger than max retention that a counting group has not done: one offset at a time, in plain
    /// SQL.
    fn needed(&self) -> BTreeSet<i64> {
        let young = self.scene.clock.now().as_millisecond() - 60_000;
        let sql = format!(
            "SELECT message.row_key & {OFFSET_MAX} FROM headwater_message AS message
             WHERE message.created_at_ms > {young} AND EXISTS (
                 SELECT 1 FROM headwater_subscription AS s WHERE s.state IN ('active', 'paused') AND NOT ({DONE}))"
        );
        let connection = self.scene.place.connect();
        let mut statement = connection.prepare(&sql).unwrap();
        statement.query_map([], |row| row.get(0)).unwrap().collect::<rusqlite::Result<_>>().unwrap()
    }

    /// Brings everything up to date in reference counting, and compares each pending completion record with each
    /// group's state.
    async fn settle_down(&mut self, seed: u64) {
        self.scene.track().await;
        self.scene.change(Tracking::ReferenceCounting).await.unwrap();
        self.scene.track().await;
        while self.scene.store.step_backfill(&worker("w"), 3).await.unwrap().is_some() {}
        self.scene.assert_sound().await;
        let wrong = format!(
            "SELECT count(*) FROM headwater_completion_record AS message
             JOIN headwater_subscription AS s ON s.state IN ('active', 'paused')
             WHERE message.completed_at_ms IS NULL AND (message.required >> s.bit) & 1
                 AND (message.completed >> s.bit) & 1 <> ({DONE})"
        );
        assert_eq!(self.scene.number(&wrong), Some(0), "seed {seed}: {:#?}", self.acts);
        let stuck =
            "SELECT count(*) FROM headwater_completion_record AS message WHERE completed_at_ms IS NULL AND NOT EXISTS (
            SELECT 1 FROM headwater_subscription AS s WHERE s.state IN ('active', 'paused')
                AND ((message.required & ~message.completed) >> s.bit) & 1)";
        assert_eq!(self.scene.number(stuck), Some(0), "seed {seed}: {:#?}", self.acts);
    }
}

/// Whether subscription `s` has done the message of `message.row_key`.
const DONE: &str = "message.row_key & 8796093022207 <
        (SELECT min(next_offset) FROM headwater_cursor WHERE subscription_id = s.subscription_id)
    AND NOT EXISTS (SELECT 1 FROM headwater_outstanding AS r WHERE r.subscription_id = s.subscription_id
        AND message.row_key & 8796093022207 BETWEEN r.first_offset AND r.last_offset)";
