//! Plain SQL in groups ordered by key.

use super::*;
use crate::message::lane_of;
use crate::topic::Ordering;

/// The lane of a key is the same in the library and in SQL: consumers of both share a group.
#[tokio::test]
async fn lanes_are_the_same_as_in_the_library() {
    let Some(sql) = Reading::new().await else { return };
    let keys = (0..200).map(|n| "ö".repeat(n % 60) + &n.to_string()).map(Some).chain([None, None]);
    for key in keys {
        let id = Uuid::now_v7();
        for lanes in [1u16, 16, 255, 256] {
            let call = sql.scene.sql("SELECT {schema}.lane_of($1, $2, $3)");
            let row = sql.client.query_one(&call, &[&key, &id, &i32::from(lanes)]).await.unwrap();
            assert_eq!(
                row.get::<_, i32>(0),
                i32::from(lane_of(key.as_deref(), id, lanes)),
                "{key:?} {id} {lanes}"
            );
        }
    }
    sql.drop().await;
}

fn ordered() -> TopicSettings {
    TopicSettings { ordering: Ordering::Key, lanes: 4, max_attempts: 4, ..TopicSettings::pub_sub() }
}

/// Every message of a key is handed out only once all earlier ones of the key are done, also after failures.
#[tokio::test]
async fn an_ordered_group_keeps_the_order_of_each_key() {
    let Some(sql) = Reading::with(ordered()).await else { return };
    for n in 0..60 {
        sql.run(&format!("SELECT {{schema}}.publish('orders', '{n}', key => 'k{}')", n % 7)).await;
    }
    let mut handled: Vec<Vec<i64>> = vec![vec![]; 7];
    let (mut rounds, mut failures) = (0, 0);
    while handled.iter().map(Vec::len).sum::<usize>() < 60 {
        rounds += 1;
        assert!(rounds < 500, "{handled:?}");
        sql.run("UPDATE {schema}.outstanding SET due_at = '-infinity' WHERE owner IS NULL").await;
        let rows = sql
            .rows("SELECT token, message_offset, key, payload FROM {schema}.read('orders', 'a', 5, 60)")
            .await;
        assert!(rows.len() <= 5, "qty is a bound");
        let mut held_back: Vec<i64> = vec![];
        for row in &rows {
            let (token, offset): (i64, i64) = (row.get(0), row.get(1));
            if held_back.contains(&offset) {
                assert_eq!(
                    sql.refused(&format!("SELECT {{schema}}.ack({token}, ARRAY[{offset}])")).await.0[..4],
                    *"HW02"
                );
                continue;
            }
            let key: usize = row.get::<_, &str>(2)[1..].parse().unwrap();
            let n = row.get::<_, serde_json::Value>(3).as_i64().unwrap();
            // Each eleventh message fails once.
            if n % 11 == 0 && failures <= n / 11 {
                failures += 1;
                let rows = sql
                    .rows(&format!("SELECT held_back FROM {{schema}}.retry({token}, {offset}, 0, 'x')"))
                    .await;
                held_back.extend(rows[0].get::<_, Vec<i64>>(0));
                continue;
            }
            assert_eq!(handled[key].last().map_or(key as i64, |last| last + 7), n, "{handled:?}");
            handled[key].push(n);
            sql.run(&format!("SELECT {{schema}}.ack({token}, ARRAY[{offset}])")).await;
        }
    }
    assert!(failures > 3);
    assert_eq!(sql.outstanding().await, 0);
    assert_eq!(sql.read(5).await, []);
    sql.drop().await;
}

/// A message of an ordered group whose readers all end without a settlement is buried after its attempts, and no other is.
#[tokio::test]
async fn in_an_ordered_group_only_a_message_that_used_up_its_attempts_is_buried() {
    let Some(sql) = Reading::with(ordered()).await else { return };
    for n in 0..8 {
        sql.run(&format!("SELECT {{schema}}.publish('orders', '{n}', key => 'k{n}')")).await;
    }
    let mut rounds = 0;
    while sql.number("SELECT count(*) FROM {schema}.dead_letter").await == 0 {
        rounds += 1;
        assert!(rounds < 200, "never buried");
        for (token, offset) in sql.read(10).await {
            if offset != 5 {
                sql.run(&format!("SELECT {{schema}}.ack({token}, ARRAY[{offset}])")).await;
            }
        }
        sql.expire().await;
    }
    let letters = sql.rows("SELECT message_offset, attempts FROM {schema}.dead_letter").await;
    assert_eq!((letters.len(), letters[0].get::<_, i64>(0), letters[0].get::<_, i32>(1)), (1, 5, 4));
    sql.read(10).await;
    assert_eq!(sql.outstanding().await, 0);
    sql.drop().await;
}
