-- name: known
-- Purpose: those of some ids that are entries.
-- Parameters: ids as a JSON array.
-- Index: the primary key.
SELECT e.id FROM {schema}.outbox_entry e WHERE e.id IN (SELECT i::bigint FROM jsonb_array_elements_text($1::jsonb) i)

-- name: list
-- Purpose: entries by status, category, topic and key, oldest first, without those that are published unless these are asked for.
-- Parameters: status, category, topic, key (each null for any), after this id, at most, whether with payloads.
-- Index: a partial index for each status.
SELECT e.id, e.category, e.topic, e.key, e.type, CASE WHEN $7::boolean THEN e.payload ELSE ''::bytea END AS payload,
       e.headers::text AS headers, e.status, e.attempts,
       (extract(epoch FROM e.next_at) * 1000000)::bigint AS next_at_us, e.claimed_by,
       (extract(epoch FROM e.claimed_at) * 1000000)::bigint AS claimed_at_us, (extract(epoch FROM e.created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM e.published_at) * 1000000)::bigint AS published_at_us, e.last_error
FROM {schema}.outbox_entry e
WHERE e.id IN (
    SELECT f.id FROM (
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.status = 'NEW' AND e.next_at IS NULL AND ($1::text IS NULL OR $1 = 'NEW')
          AND e.id > $5 AND ($2::text IS NULL OR e.category = $2) AND ($3::text IS NULL OR e.topic = $3) AND ($4::text IS NULL OR e.key = $4)
        UNION ALL
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.next_at IS NOT NULL AND ($1::text IS NULL OR e.status = $1)
          AND e.id > $5 AND ($2::text IS NULL OR e.category = $2) AND ($3::text IS NULL OR e.topic = $3) AND ($4::text IS NULL OR e.key = $4)
        UNION ALL
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.status = 'CLAIMED' AND e.next_at IS NULL AND ($1::text IS NULL OR $1 = 'CLAIMED')
          AND e.id > $5 AND ($2::text IS NULL OR e.category = $2) AND ($3::text IS NULL OR e.topic = $3) AND ($4::text IS NULL OR e.key = $4)
        UNION ALL
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.status = 'PARKED' AND ($1::text IS NULL OR $1 = 'PARKED')
          AND e.id > $5 AND ($2::text IS NULL OR e.category = $2) AND ($3::text IS NULL OR e.topic = $3) AND ($4::text IS NULL OR e.key = $4)
        UNION ALL
        SELECT e.id FROM {schema}.outbox_entry e
        WHERE e.status = 'PUBLISHED' AND $1 = 'PUBLISHED'
          AND e.id > $5 AND ($2::text IS NULL OR e.category = $2) AND ($3::text IS NULL OR e.topic = $3) AND ($4::text IS NULL OR e.key = $4)
    ) f ORDER BY f.id LIMIT $6
)
ORDER BY e.id
