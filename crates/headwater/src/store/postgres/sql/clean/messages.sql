-- Purpose: remove messages of a topic that retention allows; who missed some of them.
-- Parameters: topic id, messages at most, injected time.
-- Index: primary key of the topic's table, record_pkey, mark_pkey.
SELECT topic, removed, missed_groups, missed, more FROM {schema}.clean($1, $2, $3)
