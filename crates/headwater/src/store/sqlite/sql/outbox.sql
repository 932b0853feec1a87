-- name: claim
-- Purpose:    Claims an entry that is NEW.
-- Parameters: $1 id, $2 claimer, $3 now_ms
-- Index:      the primary key
UPDATE headwater_outbox_entry
SET status = 'CLAIMED', claimed_by = $2, claimed_at_ms = $3, next_at_ms = NULL
WHERE id = $1 AND status = 'NEW'
RETURNING id, category, topic, key, type, payload, headers, status, attempts, next_at_ms * 1000 AS next_at_us, claimed_by,
    claimed_at_ms * 1000 AS claimed_at_us, created_at_ms * 1000 AS created_at_us, published_at_ms * 1000 AS published_at_us, last_error

-- name: drop_parked
-- Purpose:    Deletes a parked entry, whose dead letter was deleted for good.
-- Parameters: ?1 id
-- Index:      the primary key
DELETE FROM headwater_outbox_entry
WHERE id = ?1 AND status = 'PARKED'

-- name: failed
-- Purpose:    Marks entries of a claimer as failed. One without an attempt left becomes PARKED, and a trigger stores its dead letter.
-- Parameters: $1 failures as a JSON array of objects (id, error, delay_ms or next_at_ms), $2 claimer, $3 most attempts, $4 now_ms
-- Index:      the primary key
UPDATE headwater_outbox_entry
SET status = iif(attempts + 1 >= $3, 'PARKED', 'FAILED'),
    attempts = attempts + 1,
    last_error = failure.error,
    next_at_ms = iif(attempts + 1 >= $3, NULL, failure.next_at_ms),
    parked_at_ms = iif(attempts + 1 >= $3, $4, NULL)
FROM (
    SELECT value ->> 'id' AS id, value ->> 'error' AS error,
        coalesce($4 + (value ->> 'delay_ms'), value ->> 'next_at_ms', $4) AS next_at_ms
    FROM json_each($1)
) AS failure
WHERE headwater_outbox_entry.id = failure.id AND status IN ('CLAIMED', 'FAILED') AND claimed_by = $2
RETURNING id, lower(status) AS outcome

-- name: forget
-- Purpose:    Deletes one entry.
-- Parameters: ?1 id
-- Index:      the primary key
DELETE FROM headwater_outbox_entry
WHERE id = ?1

-- name: insert
-- Purpose:    Adds an entry. The caller has checked its payload against the limit.
-- Parameters: $1 category, $2 topic, $3 key, $4 type, $5 payload, $6 headers, $7 most bytes of a payload, $8 now_ms
-- Index:      the primary key, at its end
INSERT INTO headwater_outbox_entry (category, topic, key, type, payload, headers, created_at_ms)
SELECT $1, $2, $3, $4, $5, $6, $8
WHERE length($5) <= $7
RETURNING id

-- name: known
-- Purpose:    Those of some ids that are entries.
-- Parameters: $1 ids as a JSON array
-- Index:      the primary key
SELECT entry.id
FROM json_each($1)
JOIN headwater_outbox_entry AS entry ON entry.id = json_each.value

-- name: list
-- Purpose:    Entries by status, category, topic and key, oldest first, without those that are published unless these are asked for.
-- Parameters: $1 status, $2 category, $3 topic, $4 key (each NULL for any), $5 after this id, $6 at most, $7 whether with payloads
-- Index:      a partial index for each status, whatever else the table has; what it finds is sorted
SELECT id, category, topic, key, type, iif($7, payload, x'') AS payload, headers, status, attempts, next_at_ms * 1000 AS next_at_us, claimed_by,
    claimed_at_ms * 1000 AS claimed_at_us, created_at_ms * 1000 AS created_at_us, published_at_ms * 1000 AS published_at_us, last_error
FROM headwater_outbox_entry
WHERE id IN (
    SELECT found.id FROM (
        SELECT id FROM headwater_outbox_entry INDEXED BY headwater_outbox_new
        WHERE status = 'NEW' AND next_at_ms IS NULL AND ($1 IS NULL OR $1 = 'NEW')
            AND id > $5 AND ($2 IS NULL OR category = $2) AND ($3 IS NULL OR topic = $3) AND ($4 IS NULL OR key = $4)
        UNION ALL
        SELECT id FROM headwater_outbox_entry INDEXED BY headwater_outbox_next
        WHERE next_at_ms IS NOT NULL AND ($1 IS NULL OR status = $1)
            AND id > $5 AND ($2 IS NULL OR category = $2) AND ($3 IS NULL OR topic = $3) AND ($4 IS NULL OR key = $4)
        UNION ALL
        SELECT id FROM headwater_outbox_entry INDEXED BY headwater_outbox_claimed
        WHERE status = 'CLAIMED' AND next_at_ms IS NULL AND ($1 IS NULL OR $1 = 'CLAIMED')
            AND id > $5 AND ($2 IS NULL OR category = $2) AND ($3 IS NULL OR topic = $3) AND ($4 IS NULL OR key = $4)
        UNION ALL
        SELECT id FROM headwater_outbox_entry INDEXED BY headwater_outbox_parked
        WHERE status = 'PARKED' AND ($1 IS NULL OR $1 = 'PARKED')
            AND id > $5 AND ($2 IS NULL OR category = $2) AND ($3 IS NULL OR topic = $3) AND ($4 IS NULL OR key = $4)
        UNION ALL
        SELECT id FROM headwater_outbox_entry INDEXED BY headwater_outbox_published
        WHERE status = 'PUBLISHED' AND $1 = 'PUBLISHED'
            AND id > $5 AND ($2 IS NULL OR category = $2) AND ($3 IS NULL OR topic = $3) AND ($4 IS NULL OR key = $4)
    ) AS found
    ORDER BY found.id
    LIMIT $6
)
ORDER BY id

-- name: published
-- Purpose:    Marks entries of a claimer as published.
-- Parameters: $1 ids as a JSON array, $2 claimer, $3 now_ms
-- Index:      the primary key
UPDATE headwater_outbox_entry
SET status = 'PUBLISHED', published_at_ms = $3, next_at_ms = NULL
WHERE id IN (SELECT value FROM json_each($1)) AND status IN ('CLAIMED', 'FAILED') AND claimed_by = $2
RETURNING id, 'published' AS outcome

-- name: recover
-- Purpose:    Makes entries NEW again that were claimed long ago. A row for each.
-- Parameters: $1 age in ms, $2 now_ms
-- Index:      headwater_outbox_claimed, headwater_outbox_next
UPDATE headwater_outbox_entry
SET status = 'NEW', next_at_ms = NULL, claimed_by = NULL, claimed_at_ms = NULL
WHERE id IN (
    SELECT id FROM headwater_outbox_entry
    WHERE status = 'CLAIMED' AND next_at_ms IS NULL AND claimed_at_ms <= $2 - $1
    UNION ALL
    SELECT id FROM headwater_outbox_entry
    WHERE next_at_ms IS NOT NULL AND status = 'CLAIMED' AND claimed_at_ms <= $2 - $1
)
RETURNING 1 AS recovered

-- name: requeue
-- Purpose:    Makes an entry that failed or is parked NEW again, with no attempts. A trigger deletes its dead letter.
-- Parameters: ?1 id
-- Index:      the primary key
UPDATE headwater_outbox_entry
SET status = 'NEW', attempts = 0, next_at_ms = NULL, claimed_by = NULL, claimed_at_ms = NULL, parked_at_ms = NULL
WHERE id = ?1 AND status IN ('FAILED', 'PARKED')

-- name: reschedule
-- Purpose:    Gives entries of a claimer back, to be due again after a back-off. The status stays.
-- Parameters: $1 ids as a JSON array, $2 claimer, $3 back-off in ms, $4 error, $5 now_ms
-- Index:      the primary key
UPDATE headwater_outbox_entry
SET next_at_ms = $5 + $3, last_error = coalesce($4, last_error)
WHERE id IN (SELECT value FROM json_each($1)) AND status IN ('CLAIMED', 'FAILED') AND claimed_by = $2
RETURNING id, 'rescheduled' AS outcome

-- name: show
-- Purpose:    An entry.
-- Parameters: $1 id
-- Index:      the primary key
SELECT id, category, topic, key, type, payload, headers, status, attempts, next_at_ms * 1000 AS next_at_us, claimed_by,
    claimed_at_ms * 1000 AS claimed_at_us, created_at_ms * 1000 AS created_at_us, published_at_ms * 1000 AS published_at_us, last_error
FROM headwater_outbox_entry
WHERE id = $1

-- name: sweep
-- Purpose:    Claims the oldest entries that are due: NEW; past next_at (failed, or given back); claimed longer ago than the claim timeout.
--             That counts as an attempt; an entry without an attempt left becomes PARKED, and a trigger stores its dead letter. In the
--             order of keys an entry is held back while an older one of its topic and key is unfinished. One process writes at a time:
--             two sweeps never share an entry.
-- Parameters: $1 at most, $2 claimer, $3 claim timeout in ms, $4 most attempts, $5 whether in the order of keys, $6 now_ms
-- Index:      headwater_outbox_new in its order; headwater_outbox_next, headwater_outbox_claimed: what is due is sorted;
--             headwater_outbox_of_key
UPDATE headwater_outbox_entry
SET status = iif(status = 'CLAIMED' AND next_at_ms IS NULL AND attempts + 1 >= $4, 'PARKED', 'CLAIMED'),
    attempts = attempts + (status = 'CLAIMED' AND next_at_ms IS NULL),
    last_error = iif(status = 'CLAIMED' AND next_at_ms IS NULL, 'claim by ' || claimed_by || ' timed out', last_error),
    parked_at_ms = iif(status = 'CLAIMED' AND next_at_ms IS NULL AND attempts + 1 >= $4, $6, NULL),
    next_at_ms = NULL, claimed_by = $2, claimed_at_ms = $6
WHERE id IN (
    SELECT due.id FROM (
        SELECT id, created_at_ms FROM (
            SELECT entry.id, entry.created_at_ms FROM headwater_outbox_entry AS entry
            WHERE entry.status = 'NEW' AND entry.next_at_ms IS NULL
                AND (NOT $5 OR entry.key IS NULL OR NOT EXISTS (
                    SELECT 1 FROM headwater_outbox_entry AS older
                    WHERE older.topic = entry.topic AND older.key = entry.key AND older.id < entry.id
                        AND older.key IS NOT NULL AND older.status IN ('NEW', 'CLAIMED', 'FAILED')))
            ORDER BY entry.created_at_ms, entry.id
            LIMIT $1
        )
        UNION ALL
        SELECT id, created_at_ms FROM (
            SELECT entry.id, entry.created_at_ms FROM headwater_outbox_entry AS entry
            WHERE entry.next_at_ms IS NOT NULL AND entry.next_at_ms <= $6
                AND (NOT $5 OR entry.key IS NULL OR NOT EXISTS (
                    SELECT 1 FROM headwater_outbox_entry AS older
                    WHERE older.topic = entry.topic AND older.key = entry.key AND older.id < entry.id
                        AND older.key IS NOT NULL AND older.status IN ('NEW', 'CLAIMED', 'FAILED')))
            ORDER BY entry.created_at_ms, entry.id
            LIMIT $1
        )
        UNION ALL
        SELECT id, created_at_ms FROM (
            SELECT entry.id, entry.created_at_ms FROM headwater_outbox_entry AS entry
            WHERE entry.status = 'CLAIMED' AND entry.next_at_ms IS NULL AND entry.claimed_at_ms <= $6 - $3
                AND (NOT $5 OR entry.key IS NULL OR NOT EXISTS (
                    SELECT 1 FROM headwater_outbox_entry AS older
                    WHERE older.topic = entry.topic AND older.key = entry.key AND older.id < entry.id
                        AND older.key IS NOT NULL AND older.status IN ('NEW', 'CLAIMED', 'FAILED')))
            ORDER BY entry.created_at_ms, entry.id
            LIMIT $1
        )
    ) AS due
    ORDER BY due.created_at_ms, due.id
    LIMIT $1
)
RETURNING id, category, topic, key, type, payload, headers, status, attempts, next_at_ms * 1000 AS next_at_us, claimed_by,
    claimed_at_ms * 1000 AS claimed_at_us, created_at_ms * 1000 AS created_at_us, published_at_ms * 1000 AS published_at_us, last_error

-- name: some_published
-- Purpose:    The first entries that were published before a time, and the lengths of their payloads.
-- Parameters: ?1 published at or before, ?2 at most
-- Index:      headwater_outbox_published
SELECT id, length(payload)
FROM headwater_outbox_entry
WHERE status = 'PUBLISHED' AND published_at_ms <= ?1
ORDER BY published_at_ms
LIMIT ?2
