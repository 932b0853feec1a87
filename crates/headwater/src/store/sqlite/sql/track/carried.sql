-- Purpose:    The bits in each record of a topic.
-- Parameters: ?1 row_key from, ?2 row_key to
-- Index:      the primary key, over all records of the topic
SELECT required | completed
FROM headwater_record
WHERE row_key BETWEEN ?1 AND ?2
