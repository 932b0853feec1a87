-- Purpose: advance every topic's head, hand out late rows, close gaps.
-- Parameters: rows at most per topic, gaps at most.
-- Index: head_pkey, message primary key.
SELECT late, closed FROM {schema}.advance(ARRAY(SELECT topic_id FROM {schema}.topic), $1, $2)
