-- Purpose: tables that cleanup has left with many dead rows.
-- Parameters: the tables in question.
-- Index: none; statistics of a handful of tables.
SELECT s.relname::text AS table_name
FROM pg_stat_user_tables s
WHERE s.schemaname = '{name}' AND s.relname = ANY ($1::text[])
  AND s.n_dead_tup > 5000 AND s.n_dead_tup > s.n_live_tup / 10
