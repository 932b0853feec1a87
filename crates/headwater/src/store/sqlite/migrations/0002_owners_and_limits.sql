-- Owners that say they are alive. One that beats is known to be dead once it falls silent, long before its leases run
-- out; whoever beats next ends them. Owners that never beat have no row here. Claims and settlements do not look here.
-- "proof" names the file, beside this one, that the owner's process keeps locked while it lives.
CREATE TABLE headwater_owner (
    owner TEXT PRIMARY KEY NOT NULL,
    seen_at_ms INTEGER NOT NULL,
    proof TEXT
) STRICT, WITHOUT ROWID;
CREATE INDEX headwater_owner_seen ON headwater_owner (seen_at_ms);

-- Token buckets of groups whose claims name a rate, from their first use on.
CREATE TABLE headwater_group_rate (
    subscription_id INTEGER PRIMARY KEY,
    tokens REAL NOT NULL,
    filled_at_ms INTEGER NOT NULL
) STRICT;
