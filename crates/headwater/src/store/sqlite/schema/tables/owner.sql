-- Owners that send heartbeats, and the activity each reports for its groups.

-- An owner that stops sending heartbeats counts as dead long before its leases expire; the next heartbeat of any other owner
-- ends them. An owner that is not "judged" keeps its leases until their deadlines. Owners that never send a heartbeat have no
-- row here. Claims and settlements do not read this table.
-- "proof" names the file, beside this one, that the owner's process keeps locked while it lives.
CREATE TABLE headwater_owner (
    owner TEXT PRIMARY KEY NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    judged INTEGER NOT NULL,
    proof TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_owner_seen ON headwater_owner (seen_at_ms) WHERE judged = 1;

-- Which owner serves which subscription, and the activity it reported. While "serving" is set, each heartbeat of the owner counts
-- for the subscription; served_at_ms is a time at which it did, because a heartbeat writes this row only if something changed. The
-- row with an empty owner is the sum of owners that left.
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
    served_at_ms INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, owner)
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_activity_owner ON headwater_activity (owner);
