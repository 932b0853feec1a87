-- name: clock
-- Purpose: read the clock for the elapsed time.
-- Parameters: injected time.
-- Index: clock_pkey.
SELECT {schema}.elapse($1::timestamptz) AS elapsed_ms

-- name: forget
-- Purpose: forget what vanished processes told, and expired dedup keys.
-- Parameters: rows at most of each, injected time.
-- Index: dedup_expiry.
SELECT {schema}.forget_old($1, $2::timestamptz) AS forgotten

-- name: messages
-- Purpose: remove messages of a topic that retention allows; who missed some of them.
-- Parameters: topic id, messages at most, injected time.
-- Index: primary key of the topic's table, record_pkey, mark_pkey, age_pkey.
SELECT topic, removed, missed_groups, missed, missed_first, missed_last, more FROM {schema}.clean($1, $2, $3::timestamptz)

-- name: partitions
-- Purpose: create partitions of a dedicated topic ahead, drop those behind.
-- Parameters: topic id, how long to wait for a lock in ms, injected time.
-- Index: partition_pkey, primary keys of the partitions.
SELECT topic, created, dropped, removed, ahead, locked, missed_groups, missed, missed_first, missed_last
FROM {schema}.keep_partitions($1, $2, $3::timestamptz)

-- name: subscriptions
-- Purpose: one step over the next subscription past its time: a zombie gives up what is removed, an old one is deleted.
-- Parameters: beyond this subscription, older than in ms, injected time.
-- Index: subscription_pkey, primary key of the topic's table, dead_letter_subscription.
SELECT subscription_id, topic, group_name, moved, deleted FROM {schema}.clean_subscription($1, $2::bigint, $3::timestamptz)

-- name: worn
-- Purpose: which of some tables are full of dead rows: more than so many, and more than a tenth of the living.
-- Parameters: tables; dead rows.
-- Index: none; the counters of a handful of tables.
SELECT t.name AS table_name
FROM (SELECT n AS name, to_regclass('{schema}.' || n) AS id FROM unnest($1::text[]) n) t
WHERE pg_stat_get_dead_tuples(t.id) > $2 AND pg_stat_get_dead_tuples(t.id) > pg_stat_get_live_tuples(t.id) / 10
