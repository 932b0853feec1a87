//! Every case is in a list: a case that is not listed never runs.

use std::collections::HashSet;

/// The files with cases.
const FILES: &[&str] = &[
    include_str!("backfill.rs"),
    include_str!("group_heartbeat.rs"),
    include_str!("bury.rs"),
    include_str!("claim.rs"),
    include_str!("clock.rs"),
    include_str!("create.rs"),
    include_str!("cron.rs"),
    include_str!("dead.rs"),
    include_str!("dead_letter.rs"),
    include_str!("dedup.rs"),
    include_str!("delay.rs"),
    include_str!("epoch.rs"),
    include_str!("expiry.rs"),
    include_str!("extend.rs"),
    include_str!("head.rs"),
    include_str!("heartbeat.rs"),
    include_str!("inbox.rs"),
    include_str!("input.rs"),
    include_str!("keeping.rs"),
    include_str!("limits.rs"),
    include_str!("listing.rs"),
    include_str!("order.rs"),
    include_str!("outbox.rs"),
    include_str!("outbox/plain_sql.rs"),
    include_str!("outbox/rules.rs"),
    include_str!("outstanding.rs"),
    include_str!("pitfalls.rs"),
    include_str!("availability.rs"),
    include_str!("postgres_life.rs"),
    include_str!("postgres_order.rs"),
    include_str!("postgres_start.rs"),
    include_str!("processes.rs"),
    include_str!("publish.rs"),
    include_str!("random_ops.rs"),
    include_str!("redrive.rs"),
    include_str!("removal.rs"),
    include_str!("restart.rs"),
    include_str!("retention.rs"),
    include_str!("retention_model.rs"),
    include_str!("schedule.rs"),
    include_str!("seek.rs"),
    include_str!("settings.rs"),
    include_str!("settle.rs"),
    include_str!("start.rs"),
    include_str!("state.rs"),
    include_str!("subscribe.rs"),
    include_str!("survey.rs"),
    include_str!("take_over.rs"),
    include_str!("tracking.rs"),
    include_str!("transaction.rs"),
    include_str!("maintenance.rs"),
    include_str!("message.rs"),
    include_str!("wake.rs"),
];

#[test]
fn every_case_is_listed() {
    let list = [
        include_str!("../conformance.rs"),
        include_str!("lives.rs"),
        include_str!("postgres_lists.rs"),
        include_str!("reliable.rs"),
    ]
    .concat();
    let listed: HashSet<&str> = list.split(|c: char| !c.is_alphanumeric() && c != '_').collect();
    let mut cases = 0;
    for file in FILES {
        for rest in file.split("\npub async fn ").skip(1) {
            let name = rest.split('(').next().expect("a function has a name");
            assert!(listed.contains(name), "{name} is in no list");
            cases += 1;
        }
    }
    assert!(cases > 300, "only {cases} cases were found");
}
