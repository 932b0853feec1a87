//! Every statement of the hot path finds its rows through an index, whatever the backlog.

use super::*;

/// The statements of claims, settlements, publishes and fetches.
const HOT: &[(&str, &str)] = &[
    ("publish/log", sql!(publish.log)),
    ("publish/dedup_find", sql!(publish.dedup_find)),
    ("publish/head", sql!(publish.head)),
    ("maintenance/promote_due", sql!(maintenance.promote_due)),
    ("log/append_scheduled", sql!(log.append_scheduled)),
    ("maintenance/promote_remove", sql!(maintenance.promote_remove)),
    ("maintenance/promote_dedup", sql!(maintenance.promote_dedup)),
    ("claim/state", sql!(claim.state)),
    ("claim/token", sql!(claim.token)),
    ("claim/advance", sql!(claim.advance)),
    ("claim/touch", sql!(claim.touch)),
    ("claim/range_delete", sql!(claim.range_delete)),
    ("claim/suspect", sql!(claim.suspect)),
    ("claim/expired", sql!(claim.expired)),
    ("claim/waiting", sql!(claim.waiting)),
    ("claim/holds", sql!(claim.holds)),
    ("claim/bucket", sql!(claim.bucket)),
    ("claim/bucket_store", sql!(claim.bucket_store)),
    ("claim/more", sql!(claim.more)),
    ("claim/next_due", sql!(claim.next_due)),
    ("claim/lane_ranges", sql!(claim.lane_ranges)),
    ("arm/topic_seen", sql!(arm.topic_seen)),
    ("log/fetch", sql!(log.fetch)),
    ("settle/ack_all", sql!(settle.ack_all)),
    ("settle/held", sql!(settle.held)),
    ("settle/remove", sql!(settle.remove)),
    ("settle/topic", sql!(settle.topic)),
    ("settle/wake", sql!(settle.wake)),
    ("settle/ack_log", sql!(settle.ack_log)),
    ("log/keys", sql!(log.keys)),
    ("log/bury", sql!(log.bury)),
    ("transaction/enter", sql!(transaction.enter)),
    ("outbox/insert", sql!(outbox.insert)),
    ("outbox/claim", sql!(outbox.claim)),
    ("outbox/published", sql!(outbox.published)),
    ("outbox/failed", sql!(outbox.failed)),
    ("outbox/reschedule", sql!(outbox.reschedule)),
    ("outbox/known", sql!(outbox.known)),
    ("outbox/some_published", sql!(outbox.some_published)),
    ("outbox/forget", sql!(outbox.forget)),
    ("state/some_dead_letters", sql!(state.some_dead_letters)),
    ("topic/some_scheduled", sql!(topic.some_scheduled)),
    ("inbox/insert", sql!(inbox.insert)),
    ("bridge/advance", sql!(bridge.advance)),
    ("settle/extend", sql!(settle.extend)),
    ("heartbeat/seen", sql!(heartbeat.seen)),
    ("heartbeat/serve_no_more", sql!(heartbeat.serve_no_more)),
    ("heartbeat/state", sql!(heartbeat.state)),
    ("heartbeat/activity", sql!(heartbeat.activity)),
    ("heartbeat/fold_activity", sql!(heartbeat.fold_activity)),
    ("heartbeat/silent", sql!(heartbeat.silent)),
    ("heartbeat/depart", sql!(heartbeat.depart)),
    ("subscribe/next", sql!(subscribe.next)),
    ("log/first", sql!(log.first)),
    ("dead_letter/purge", sql!(dead_letter.purge)),
    ("cron/last", sql!(cron.last)),
    ("cron/fire", sql!(cron.fire)),
    ("dead_letter/newest", sql!(dead_letter.newest)),
    ("topic/topic_range", sql!(topic.topic_range)),
    ("outstanding/leased", sql!(outstanding.leased)),
    ("outstanding/waiting", sql!(outstanding.waiting)),
    ("outstanding/lowest", sql!(outstanding.lowest)),
    ("outstanding/crowd", sql!(outstanding.crowd)),
    ("tracking/applied_crowd", sql!(tracking.applied_crowd)),
    ("tracking/touched", sql!(tracking.touched)),
    ("clean/forget_range", sql!(clean.forget_range)),
    ("log/record", sql!(log.record)),
    ("tracking/apply", sql!(tracking.apply)),
    ("tracking/release", sql!(tracking.release)),
    ("tracking/records", sql!(tracking.records)),
    ("log/stored", sql!(log.stored)),
    ("tracking/applied", sql!(tracking.applied)),
    ("tracking/any", sql!(tracking.any)),
    ("tracking/backfill_set", sql!(tracking.backfill_set)),
    ("log/ages", sql!(log.ages)),
    ("log/remove", sql!(log.remove)),
    ("tracking/forget_messages", sql!(tracking.forget_messages)),
    ("clean/raise_first", sql!(clean.raise_first)),
    ("resurrect/advance", sql!(resurrect.advance)),
    ("clean/watermark_newest", sql!(clean.watermark_newest)),
    ("clean/watermark_since", sql!(clean.watermark_since)),
    ("clean/watermark_prune", sql!(clean.watermark_prune)),
    ("clean/forget_acks", sql!(clean.forget_acks)),
    ("maintenance/elect", sql!(maintenance.elect)),
    ("process/insert", sql!(process.insert)),
    ("process/change", sql!(process.change)),
    ("process/change_events", sql!(process.change_events)),
    ("process/load", sql!(process.load)),
    ("process/find_by_id", sql!(process.find_by_id)),
    ("process/find_by_status", sql!(process.find_by_status)),
    ("process/find_by_type_and_status", sql!(process.find_by_type_and_status)),
    ("process/find_by_business_key", sql!(process.find_by_business_key)),
    ("process/find_parked", sql!(process.find_parked)),
    ("process/log", sql!(process.log)),
    ("process/cancel_timer", sql!(process.cancel_timer)),
    ("process/forget_events", sql!(process.forget_events)),
];

/// Statements whose few rows are sorted or made distinct after an index found them.
const SORTED: &[(&str, &str)] = &[
    ("claim/lanes", sql!(claim.lanes)),
    ("claim/in_flight", sql!(claim.in_flight)),
    ("claim/lanes_held", sql!(claim.lanes_held)),
    ("maintenance/forget_dedup", sql!(maintenance.forget_dedup)),
    ("inbox/forget", sql!(inbox.forget)),
    ("process/forget", sql!(process.forget)),
    ("subscribe/all_progress", sql!(subscribe.all_progress)),
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
            // A list that is a parameter is read as a whole.
            let bounded = step.contains("SCAN CONSTANT ROW") || step.contains("SCAN json_each");
            assert!(!step.contains("SCAN ") || bounded, "{name}: {plan:#?}");
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
        (sql!(claim.suspect), "headwater_outstanding_suspect (subscription_id=?)"),
        (sql!(claim.expired), "headwater_outstanding_leased (subscription_id=? AND due_at_ms<?)"),
        (sql!(claim.waiting), "headwater_outstanding_waiting (subscription_id=? AND due_at_ms<?)"),
        (sql!(claim.holds), "headwater_outstanding_leased (subscription_id=? AND due_at_ms>?)"),
        (sql!(claim.lane_ranges), "headwater_outstanding_lane (subscription_id=? AND lane=?)"),
        (sql!(dead_letter.list), "headwater_dead_letter_of (subscription_id=?)"),
        (
            sql!(dead_letter.page),
            "headwater_dead_letter_of (subscription_id=? AND dead_letter_key>? AND dead_letter_key<?)",
        ),
        (
            sql!(outstanding.waiting),
            "headwater_outstanding_place (subscription_id=? AND first_offset>? AND first_offset<?)",
        ),
        (sql!(outstanding.waiting), "headwater_outstanding_place (subscription_id=? AND first_offset<?)"),
        (
            sql!(outstanding.waiting),
            "headwater_outstanding_lane (subscription_id=? AND lane=? AND first_offset<?)",
        ),
        (sql!(topic.list), "headwater_outstanding_place (subscription_id=?)"),
        (sql!(claim.lanes_held), "headwater_outstanding_leased (subscription_id=? AND due_at_ms>?)"),
        (sql!(publish.log), "headwater_subscription_group (topic_id=?)"),
        (sql!(settle.any_ack_log), "headwater_topic_ack_log"),
        (sql!(subscribe.held), "headwater_outstanding_leased (subscription_id=?)"),
        (sql!(subscribe.held), "headwater_outstanding_place (subscription_id=?)"),
        (sql!(subscribe.group), "headwater_subscription_group (topic_id=? AND group_name=?)"),
        (sql!(subscribe.group), "headwater_subscription_cancelled (topic_id=? AND group_name=?)"),
        (sql!(subscribe.of_topic), "headwater_subscription_group (topic_id=?)"),
        (sql!(subscribe.of_topic), "headwater_subscription_cancelled (topic_id=?)"),
        (sql!(audit.acks), "headwater_ack_log_offsets (topic_id=? AND last_offset>?)"),
        (sql!(outstanding), "headwater_outstanding_leased (subscription_id=?)"),
        (sql!(outstanding), "headwater_outstanding_waiting (subscription_id=?)"),
        (sql!(outbox.sweep), "headwater_outbox_new"),
        (sql!(outbox.sweep), "headwater_outbox_next (next_at_ms>? AND next_at_ms<?)"),
        (sql!(outbox.sweep), "headwater_outbox_claimed (claimed_at_ms<?)"),
        (sql!(outbox.sweep), "headwater_outbox_of_key (topic=? AND key=? AND id<?)"),
        (sql!(outbox.recover), "headwater_outbox_claimed (claimed_at_ms<?)"),
        (sql!(outbox.list), "headwater_outbox_parked"),
    ] {
        let plan = plan_of(&connection, sql);
        assert!(plan.iter().any(|step| step.contains(index)), "{index}: {plan:#?}");
    }
    // Once per topic: a scan would read all groups as often as there are topics.
    let plan = plan_of(&connection, sql!(topic.list));
    assert!(!plan.iter().any(|step| step.contains("SCAN subscription")), "{plan:#?}");
    let plan = plan_of(&connection, sql!(claim.state));
    for index in [
        "headwater_outstanding_leased",
        "headwater_outstanding_waiting",
        "headwater_schedule_due",
        "headwater_outstanding_suspect",
    ] {
        assert!(plan.iter().any(|step| step.contains(index)), "{index}: {plan:#?}");
    }
}
