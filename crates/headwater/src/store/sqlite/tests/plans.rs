//! Every statement of the hot path finds its rows through an index, whatever the backlog.

use super::*;

/// What claims, settlements, publishes and fetches run.
const HOT: &[(&str, &str)] = &[
    ("publish/log", sql!("publish/log.sql")),
    ("publish/dedup_find", sql!("publish/dedup_find.sql")),
    ("publish/head", sql!("publish/head.sql")),
    ("maintain/promote_due", sql!("maintain/promote_due.sql")),
    ("maintain/promote_append", sql!("maintain/promote_append.sql")),
    ("maintain/promote_remove", sql!("maintain/promote_remove.sql")),
    ("maintain/promote_dedup", sql!("maintain/promote_dedup.sql")),
    ("claim/state", sql!("claim/state.sql")),
    ("claim/token", sql!("claim/token.sql")),
    ("claim/advance", sql!("claim/advance.sql")),
    ("claim/touch", sql!("claim/touch.sql")),
    ("claim/range_delete", sql!("claim/range_delete.sql")),
    ("claim/suspect", sql!("claim/suspect.sql")),
    ("claim/expired", sql!("claim/expired.sql")),
    ("claim/waiting", sql!("claim/waiting.sql")),
    ("claim/holds", sql!("claim/holds.sql")),
    ("claim/bucket", sql!("claim/bucket.sql")),
    ("claim/bucket_store", sql!("claim/bucket_store.sql")),
    ("claim/more", sql!("claim/more.sql")),
    ("claim/next_due", sql!("claim/next_due.sql")),
    ("claim/lane_ranges", sql!("claim/lane_ranges.sql")),
    ("arm/topic_seen", sql!("arm/topic_seen.sql")),
    ("fetch", sql!("fetch.sql")),
    ("settle/ack_all", sql!("settle/ack_all.sql")),
    ("settle/held", sql!("settle/held.sql")),
    ("settle/remove", sql!("settle/remove.sql")),
    ("settle/topic", sql!("settle/topic.sql")),
    ("settle/stir", sql!("settle/stir.sql")),
    ("settle/ack_log", sql!("settle/ack_log.sql")),
    ("settle/buried", sql!("settle/buried.sql")),
    ("settle/bury", sql!("settle/bury.sql")),
    ("transaction/enter", sql!("transaction/enter.sql")),
    ("extend", sql!("extend.sql")),
    ("heartbeat/beat", sql!("heartbeat/beat.sql")),
    ("heartbeat/silent", sql!("heartbeat/silent.sql")),
    ("depart", sql!("depart.sql")),
    ("beat/state", sql!("beat/state.sql")),
    ("beat/stamp", sql!("beat/stamp.sql")),
    ("beat/activity", sql!("beat/activity.sql")),
    ("subscribe/next", sql!("subscribe/next.sql")),
    ("subscribe/bounds", sql!("subscribe/bounds.sql")),
    ("subscribe/time_at", sql!("subscribe/time_at.sql")),
    ("purge", sql!("purge.sql")),
    ("cron/last", sql!("cron/last.sql")),
    ("cron/fire", sql!("cron/fire.sql")),
    ("redrive/newest", sql!("redrive/newest.sql")),
    ("track/extent", sql!("track/extent.sql")),
    ("track/leased", sql!("track/leased.sql")),
    ("track/waiting", sql!("track/waiting.sql")),
    ("track/lowest", sql!("track/lowest.sql")),
    ("track/crowd", sql!("track/crowd.sql")),
    ("track/applied_crowd", sql!("track/applied_crowd.sql")),
    ("track/touched", sql!("track/touched.sql")),
    ("clean/forget_ranges", sql!("clean/forget_ranges.sql")),
    ("track/record", sql!("track/record.sql")),
    ("track/apply", sql!("track/apply.sql")),
    ("track/release", sql!("track/release.sql")),
    ("track/records", sql!("track/records.sql")),
    ("track/stored", sql!("track/stored.sql")),
    ("track/applied", sql!("track/applied.sql")),
    ("track/any", sql!("track/any.sql")),
    ("backfill/set", sql!("backfill/set.sql")),
    ("clean/look", sql!("clean/look.sql")),
    ("clean/remove", sql!("clean/remove.sql")),
    ("clean/remove_records", sql!("clean/remove_records.sql")),
    ("clean/raise_first", sql!("clean/raise_first.sql")),
    ("resurrect/advance", sql!("resurrect/advance.sql")),
    ("clean/mark_newest", sql!("clean/mark_newest.sql")),
    ("clean/mark_since", sql!("clean/mark_since.sql")),
    ("clean/mark_prune", sql!("clean/mark_prune.sql")),
    ("clean/forget_acks", sql!("clean/forget_acks.sql")),
    ("election/elect", sql!("election/elect.sql")),
];

/// Those whose few rows are sorted or made distinct after an index found them.
const SORTED: &[(&str, &str)] = &[
    ("claim/lanes", sql!("claim/lanes.sql")),
    ("claim/in_flight", sql!("claim/in_flight.sql")),
    ("claim/lanes_held", sql!("claim/lanes_held.sql")),
    ("maintain/forget_dedup", sql!("maintain/forget_dedup.sql")),
    ("maintain/forget_inbox", sql!("maintain/forget_inbox.sql")),
    ("track/subscriptions", sql!("track/subscriptions.sql")),
];

fn plan_of(connection: &Connection, sql: &str) -> Vec<String> {
    let mut statement = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let rows = statement.raw_query().mapped(|row| row.get(3)).collect::<rusqlite::Result<_>>();
    rows.unwrap()
}

#[test]
fn no_statement_of_the_hot_path_scans_or_sorts() {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate::migrate(&mut connection, "memory", false).unwrap();
    for (name, sql) in HOT {
        let plan = plan_of(&connection, sql);
        for step in &plan {
            assert!(!step.contains("SCAN ") || step.contains("SCAN CONSTANT ROW"), "{name}: {plan:#?}");
            assert!(!step.contains("TEMP B-TREE"), "{name}: {plan:#?}");
        }
    }
    for (name, sql) in SORTED {
        let plan = plan_of(&connection, sql);
        assert!(plan.iter().all(|step| !step.starts_with("SCAN")), "{name}: {plan:#?}");
    }
}

#[test]
fn due_ranges_are_found_through_the_partial_indexes() {
    let mut connection = Connection::open_in_memory().unwrap();
    migrate::migrate(&mut connection, "memory", false).unwrap();
    for (sql, index) in [
        (sql!("claim/suspect.sql"), "headwater_range_suspect (subscription_id=?)"),
        (sql!("claim/expired.sql"), "headwater_range_leased (subscription_id=? AND due_at_ms<?)"),
        (sql!("claim/waiting.sql"), "headwater_range_waiting (subscription_id=? AND due_at_ms<?)"),
        (sql!("claim/holds.sql"), "headwater_range_leased (subscription_id=? AND due_at_ms>?)"),
        (sql!("claim/lane_ranges.sql"), "headwater_range_lane (subscription_id=? AND lane=?)"),
        (sql!("dead_letters.sql"), "headwater_dead_letter_of (subscription_id=?)"),
        (
            sql!("redrive/page.sql"),
            "headwater_dead_letter_of (subscription_id=? AND dead_letter_key>? AND dead_letter_key<?)",
        ),
        (
            sql!("track/waiting.sql"),
            "headwater_range_place (subscription_id=? AND first_offset>? AND first_offset<?)",
        ),
        (sql!("track/waiting.sql"), "headwater_range_place (subscription_id=? AND first_offset<?)"),
        (sql!("track/waiting.sql"), "headwater_range_lane (subscription_id=? AND lane=? AND first_offset<?)"),
        (sql!("topic_list.sql"), "headwater_range_place (subscription_id=?)"),
        (sql!("claim/lanes_held.sql"), "headwater_range_leased (subscription_id=? AND due_at_ms>?)"),
        (sql!("publish/log.sql"), "headwater_subscription_group (topic_id=?)"),
        (sql!("settle/any_ack_log.sql"), "headwater_topic_ack_log"),
        (sql!("subscribe/held.sql"), "headwater_range_leased (subscription_id=?)"),
        (sql!("subscribe/held.sql"), "headwater_range_place (subscription_id=?)"),
        (sql!("subscribe/group.sql"), "headwater_subscription_group (topic_id=? AND group_name=?)"),
        (sql!("subscribe/group.sql"), "headwater_subscription_cancelled (topic_id=? AND group_name=?)"),
        (sql!("subscription_list.sql"), "headwater_subscription_group (topic_id=?)"),
        (sql!("subscription_list.sql"), "headwater_subscription_cancelled (topic_id=?)"),
        (sql!("acks.sql"), "headwater_ack_log_offsets (topic_id=? AND last_offset>?)"),
        (sql!("outstanding.sql"), "headwater_range_leased (subscription_id=?)"),
        (sql!("outstanding.sql"), "headwater_range_waiting (subscription_id=?)"),
    ] {
        let plan = plan_of(&connection, sql);
        assert!(plan.iter().any(|step| step.contains(index)), "{index}: {plan:#?}");
    }
    let plan = plan_of(&connection, sql!("claim/state.sql"));
    for index in [
        "headwater_range_leased",
        "headwater_range_waiting",
        "headwater_schedule_due",
        "headwater_range_suspect",
    ] {
        assert!(plan.iter().any(|step| step.contains(index)), "{index}: {plan:#?}");
    }
}
