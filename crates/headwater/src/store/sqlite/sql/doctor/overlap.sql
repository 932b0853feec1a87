-- Purpose:    Outstanding ranges of one subscription (and lane) that share an offset.
-- Parameters: none
-- Index:      a window over all outstanding ranges, sorted once
SELECT subscription_id, lane, first_offset, last_offset, covered_to
FROM (
    SELECT subscription_id, lane, first_offset, last_offset,
        max(last_offset) OVER (
            PARTITION BY subscription_id, lane
            ORDER BY first_offset, last_offset, token
            ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ) AS covered_to
    FROM headwater_range
)
WHERE first_offset <= covered_to
