//! The outbox in plain SQL: the operations of the library, by the same rules.

use super::super::case::Case;
use super::{ids_of, show, swept};
use crate::dead_letter::{AnyDeadLetterSelection, DeadLetters};
use crate::outbox::Outbox;
use crate::outbox::OutboxStatus::{self, Claimed, Failed, New, Parked, Published};

/// Runs a statement of SQLite, or a call of a function of PostgreSQL's schema.
async fn run(case: &Case, sqlite: &str, postgres: &str) -> Result<u64, String> {
    case.harness().sql(sqlite, &format!("SELECT {{schema}}.{postgres}")).await
}

/// An INSERT into a view, or the call of a function: both succeed.
async fn act(case: &Case, view: &str, function: &str) {
    run(case, &format!("INSERT INTO headwater_{view}"), function).await.expect("it is done");
}

async fn statuses(outbox: &Outbox, ids: &[i64]) -> Vec<OutboxStatus> {
    let mut statuses = Vec::new();
    for id in ids {
        statuses.push(show(outbox, *id).await.status);
    }
    statuses
}

/// Insert, claim, sweep, mark, reschedule, recover. Plain SQL has the time of the machine.
pub async fn plain_sql_does_the_same(case: &Case) {
    let store = case.open_with(case.real_time_options()).await.unwrap();
    let outbox = Outbox::new(&store);
    for _ in 0..4 {
        act(
            case,
            "outbox (category, topic, key, type, payload, headers)
             VALUES ('event', 'orders', 'k', 'OrderCreated', '{\"n\":1}', '{\"a\":\"b\"}')",
            "insert_returning_id('event', 'orders', 'k', 'OrderCreated', '{\"n\":1}', '{\"a\":\"b\"}')",
        )
        .await;
    }
    let entries = outbox.list(10, |all| all).await.unwrap();
    let ids = ids_of(&entries);
    assert_eq!((ids.len(), entries[0].status, entries[0].headers["a"].as_str()), (4, New, "b"));
    assert_eq!((entries[0].payload.as_ref(), entries[0].key.as_deref()), (&b"{\"n\":1}"[..], Some("k")));
    let [first, second, third] = [ids[0], ids[1], ids[2]];
    let (view, function) = ("claim_if_new (id, claimer) VALUES", "claim_if_new");
    act(case, &format!("{view} ({first}, 'sql')"), &format!("{function}({first}, 'sql')")).await;
    act(case, "sweep_batch (max, claimer) VALUES (2, 'sql')", "sweep_batch(2, 'sql')").await;
    assert_eq!(statuses(&outbox, &ids).await, [Claimed, Claimed, Claimed, New]);
    let one = |id: i64| format!("ARRAY[{id}]::bigint[], 'sql'");
    act(
        case,
        &format!("mark_published (id, claimer) VALUES ({first}, 'sql')"),
        &format!("mark_published({})", one(first)),
    )
    .await;
    act(
        case,
        &format!("mark_failed (id, claimer, error, delay_s) VALUES ({second}, 'sql', 'no', 60)"),
        &format!("mark_failed({}, 'no', delay_s => 60)", one(second)),
    )
    .await;
    act(
        case,
        &format!("reschedule (id, claimer, backoff_ms, error) VALUES ({third}, 'sql', 60000, 'later')"),
        &format!("reschedule({}, 60000, 'later')", one(third)),
    )
    .await;
    assert_eq!(statuses(&outbox, &ids).await, [Published, Failed, Claimed, New]);
    assert_eq!(swept(&outbox, 10, "library").await, ids[3..]);
    act(case, "recover_stuck (older_than_ms) VALUES (0)", "recover_stuck(0)").await;
    assert_eq!(statuses(&outbox, &ids).await, [Published, Failed, New, New]);
    act(
        case,
        &format!("mark_failed (id, claimer, error, max_attempts) VALUES ({second}, 'sql', 'no', 2)"),
        &format!("mark_failed({}, 'no', max_attempts => 2)", one(second)),
    )
    .await;
    assert_eq!(statuses(&outbox, &ids).await[1], Parked);
    let parked = DeadLetters::new(&store).list(10, AnyDeadLetterSelection::of_outbox).await.unwrap();
    assert_eq!(parked.len(), 1);
}

/// What the library refuses is refused in plain SQL, with the field and the rule, and nothing is written.
pub async fn plain_sql_keeps_the_rules_of_the_outbox(case: &Case) {
    let outbox = super::open(case).await;
    for (sqlite, postgres, says) in [
        ("('x', 't', 'T', '')", "'x', 't', NULL, 'T', ''", "invalid category"),
        ("(NULL, 't', 'T', '')", "NULL, 't', NULL, 'T', ''", "invalid category"),
        ("('event', '', 'T', '')", "'event', '', NULL, 'T', ''", "invalid topic"),
        ("('event', 't', '', '')", "'event', 't', NULL, '', ''", "invalid type"),
        ("('event', 't', 'T', NULL)", "'event', 't', NULL, 'T', NULL", "invalid entry"),
        (
            "('event', 't', 'T', zeroblob(1048577))",
            "'event', 't', NULL, 'T', decode(repeat('00', 1048577), 'hex')",
            "too large",
        ),
    ] {
        let sqlite = format!("INSERT INTO headwater_outbox (category, topic, type, payload) VALUES {sqlite}");
        let refused = run(case, &sqlite, &format!("insert_returning_id({postgres})")).await.unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
    for (sqlite, postgres, says) in [
        ("sweep_batch (max, claimer) VALUES (0, 'a')", "sweep_batch(0, 'a')", "invalid max"),
        ("sweep_batch (max, claimer) VALUES (1, NULL)", "sweep_batch(1, NULL)", "invalid claimer"),
        ("claim_if_new (id, claimer) VALUES (1, '')", "claim_if_new(1, '')", "invalid claimer"),
        ("mark_published (id, claimer) VALUES (1, NULL)", "mark_published('{1}', NULL)", "invalid claimer"),
        (
            "mark_failed (id, claimer) VALUES (1, char(10))",
            "mark_failed('{1}', E'\\n', 'no', delay_s => 1)",
            "invalid claimer",
        ),
        ("reschedule (id, claimer) VALUES (1, '')", "reschedule('{1}', '', 0)", "invalid claimer"),
    ] {
        let refused = run(case, &format!("INSERT INTO headwater_{sqlite}"), postgres).await.unwrap_err();
        assert!(refused.contains(says), "{refused}");
    }
    assert_eq!(outbox.list(10, |all| all).await.unwrap(), []);
}
