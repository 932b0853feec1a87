-- Purpose: forget inbox entries past their retention.
-- Parameters: retention in ms, at most, injected time.
-- Index: inbox_handled.
SELECT {schema}.forget_inbox($1, $2, $3) AS forgotten
