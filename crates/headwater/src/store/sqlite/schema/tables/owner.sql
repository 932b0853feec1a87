-- Owners: processes that send heartbeats, and what each reports of its groups.

-- An owner that stops sending heartbeats is known to be dead long before its leases run out; the next heartbeat of any other
-- owner ends them. One that is not judged has its leases until their deadlines. Owners that never send a heartbeat have no row here.
-- Claims and settlements do not read this table.
-- "proof" names the file, beside this one, that the owner's process keeps locked while it lives.
CREATE TABLE headwater_owner (
    owner TEXT PRIMARY KEY NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    judged INTEGER NOT NULL,
    proof TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_owner_seen ON headwater_owner (seen_at_ms) WHERE judged = 1;

-- Which owner serves which subscription, and what it reported. While it serves it, each heartbeat of the owner is one for the
-- subscription; told_at_ms is a time when it did, because a heartbeat writes here only what changed. The row without an owner is the
-- sum of those that left.
CREATE TABLE headwater_activity (
    subscription_id INTEGER NOT NULL,
    owner TEXT NOT NULL,
    processed INTEGER NOT NULL,
    failed INTEGER NOT NULL,
    filtered INTEGER NOT NULL,
    rate REAL NOT NULL,
    handling_mean_us INTEGER NOT NULL,
    handling_p95_us INTEGER NOT NULL,
    serving INTEGER NOT NULL,
    told_at_ms INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_activity_owner ON headwater_activity (owner);
