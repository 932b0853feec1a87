-- Purpose:    What was done by operators, newest first.
-- Parameters: ?1 at most
-- Index:      the primary key, from its end
SELECT acted_at_ms, actor, act, topic, group_name, detail
FROM headwater_audit
ORDER BY audit_key DESC
LIMIT ?1
