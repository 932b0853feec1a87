-- Purpose:    A line in the audit, in the transaction of what it tells.
-- Parameters: ?1 now_ms, ?2 actor, ?3 act, ?4 topic, ?5 group, ?6 detail as JSON
-- Index:      the primary key
INSERT INTO headwater_audit (acted_at_ms, actor, act, topic, group_name, detail)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
