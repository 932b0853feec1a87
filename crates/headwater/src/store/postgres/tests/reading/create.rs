//! Topics and groups that plain SQL creates.

use super::*;

#[tokio::test]
async fn an_unknown_group_or_topic_is_refused_with_those_that_exist() {
    let Some(sql) = Reading::new().await else { return };
    sql.run("SELECT {schema}.create_group('orders', 'billing', 'now')").await;
    let (code, text) = sql.refused("SELECT * FROM {schema}.read('orders', 'biling')").await;
    assert_eq!(code, "HW005");
    assert!(
        text.contains("its groups are a, billing") && text.contains("create_group('orders', 'biling')"),
        "{text}"
    );
    assert_eq!(sql.refused("SELECT * FROM {schema}.read('order', 'a')").await.0, "HW001");
    assert_eq!(sql.number("SELECT count(*) FROM {schema}.subscription").await, 2, "none was created");
    for call in [
        "read('orders', 'a', 0)",
        "read('orders', 'a', 10001)",
        "read('orders', 'a', 1, 0)",
        "create_group('orders', 'x', 'soon')",
    ] {
        assert_eq!(sql.refused(&format!("SELECT {{schema}}.{call}")).await.0, "HW003", "{call}");
    }
    let again = sql.rows("SELECT {schema}.create_group('orders', 'a')").await;
    assert!(!again[0].get::<_, bool>(0), "it exists");
    sql.drop().await;
}

#[tokio::test]
async fn a_group_starts_where_it_is_created_to() {
    let Some(sql) = Reading::new().await else { return };
    sql.publish(3).await;
    for (group, start, first) in
        [("b", "beginning", Some(1)), ("n", "now", None), ("o", "3", Some(3)), ("t", "2001-01-01", Some(1))]
    {
        sql.run(&format!("SELECT {{schema}}.create_group('orders', '{group}', '{start}')")).await;
        let rows =
            sql.rows(&format!("SELECT message_offset FROM {{schema}}.read('orders', '{group}')")).await;
        assert_eq!(rows.first().map(|row| row.get::<_, i64>(0)), first, "{start}");
    }
    sql.drop().await;
}

/// A topic that plain SQL creates has the settings of one that the library creates.
#[tokio::test]
async fn a_topic_of_plain_sql_has_the_default_settings() {
    let Some(sql) = Reading::new().await else { return };
    for (name, semantics, settings) in
        [("queue", "", TopicSettings::default()), ("fan-out", ", 'pub_sub'", TopicSettings::pub_sub())]
    {
        let create = format!("SELECT {{schema}}.create_topic('{name}'{semantics})");
        assert!(sql.rows(&create).await[0].get::<_, bool>(0));
        assert!(!sql.rows(&create).await[0].get::<_, bool>(0), "it exists");
        let name = TopicName::new(name).unwrap();
        assert_eq!(sql.store.topic(&name).await.unwrap().settings, settings);
        // Also not more or fewer than the library stores.
        sql.store.create_topic(&TopicName::new("of the library").unwrap(), &settings).await.unwrap();
        let same = "SELECT count(DISTINCT (SELECT array_agg(k ORDER BY k) FROM jsonb_object_keys(settings) k)) FROM {schema}.topic";
        assert_eq!(sql.number(same).await, 1);
        sql.run("DELETE FROM {schema}.topic WHERE name = 'of the library'").await;
    }
    assert_eq!(sql.refused("SELECT {schema}.create_topic('x', 'stack')").await.0, "HW003");
    sql.drop().await;
}
