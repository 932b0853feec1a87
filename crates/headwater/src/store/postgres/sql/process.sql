-- name: find
-- Purpose: the newest processes of a status and a selection.
-- Parameters: status, process type, part of the type, business key or step in any case (each null for any), before this time in
-- microseconds and id (null for the first ones), whether with data, at most.
-- Index: process_status, from its end.
SELECT process_id, process_type, business_key, status, paused_in, current_step, CASE WHEN $6::boolean THEN data END AS data, retries, version,
       (extract(epoch FROM created_at) * 1000000)::bigint AS created_at_us,
       (extract(epoch FROM updated_at) * 1000000)::bigint AS updated_at_us
FROM {schema}.process
WHERE status = $1 AND ($2::text IS NULL OR process_type = $2)
  AND ($3::text IS NULL OR strpos(lower(concat_ws(E'\n', process_type, business_key, current_step)), lower($3)) > 0)
  AND ($4::bigint IS NULL OR (created_at, process_id) < ('epoch'::timestamptz + $4 * interval '1 microsecond', $5::uuid))
ORDER BY created_at DESC, process_id DESC LIMIT $7
