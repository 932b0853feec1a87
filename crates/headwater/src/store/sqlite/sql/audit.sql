-- name: list
-- Purpose:    The audit entries, newest first.
-- Parameters: ?1 at most
-- Index:      the primary key, from its end
SELECT acted_at_ms, actor, act, topic, group_name, detail
FROM headwater_audit
ORDER BY audit_key DESC
LIMIT ?1

-- name: note
-- Purpose:    Adds an audit entry.
-- Parameters: ?1 now_ms, ?2 actor, ?3 act, ?4 topic, ?5 group, ?6 detail
-- Index:      the primary key, at its end
INSERT INTO headwater_audit (acted_at_ms, actor, act, topic, group_name, detail)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
