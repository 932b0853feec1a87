-- name: needs_vacuum
-- Purpose: which of some tables are full of dead rows: more than so many, and more than a tenth of the living.
-- Parameters: tables; dead rows.
-- Index: none; the counters of a handful of tables.
SELECT t.name AS table_name
FROM (SELECT n AS name, to_regclass('{schema}.' || n) AS id FROM unnest($1::text[]) n) t
WHERE pg_stat_get_dead_tuples(t.id) > $2 AND pg_stat_get_dead_tuples(t.id) > pg_stat_get_live_tuples(t.id) / 10
