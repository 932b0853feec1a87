-- Ticks of periodic jobs: each fires once, whichever process comes first. last_tick_ms is the last tick fired, or the time
-- from which on ticks count.

CREATE TABLE headwater_cron (
    job TEXT PRIMARY KEY NOT NULL,
    last_tick_ms INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
