-- Purpose: forget inbox entries past their retention.
-- Parameters: retention in ms, at most, injected time.
-- Index: inbox_handled.
SELECT {schema}.forget_inbox($1::bigint, $2, $3::timestamptz) AS forgotten
