-- name: epoch
-- Purpose: begin an epoch unless there is one.
-- Parameters: none.
-- Index: none, one row is read.
SELECT epoch, cause FROM {schema}.begin_epoch()
