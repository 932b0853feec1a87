-- Owners, the clock they share, and the epochs of the namespace.

-- Owners that send heartbeats: see functions/heartbeat.sql.
CREATE TABLE {schema}.owner (
    owner   text COLLATE "C" PRIMARY KEY,
    seen_at timestamptz NOT NULL,
    -- Whether missing heartbeats end its leases; otherwise only their deadlines do.
    judged  boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX owner_seen ON {schema}.owner (seen_at) WHERE judged;

-- The proof that an owner's process lives: a session of its own holds the advisory lock of this key. The server releases the lock
-- when the process ends, because its kernel closes the connection. An owner without a row is judged only by its heartbeats.
--
-- A proof ends with the server session: a crash or a failover empties the table, and "server_at" shows a restart. So it does not
-- matter how soon clients reconnect.
--
-- The key is random. Any role can read it in pg_locks and wait for the lock: then the end of the process is detected by missing
-- heartbeats, as without a proof. No role can release a lock of another session, so none can make a living process seem ended.
CREATE UNLOGGED TABLE {schema}.proof (
    owner     text COLLATE "C" PRIMARY KEY REFERENCES {schema}.owner ON DELETE CASCADE,
    key       bigint NOT NULL,
    server_at timestamptz NOT NULL
);

-- The epoch: it identifies the history of the namespace. The table is unlogged, so it is empty after a crash, a promotion of a
-- standby and a restore of a base backup: exactly these may have lost commits that clients have seen. A dump contains the row,
-- but not the transaction that wrote it: "made_by" is the row's own xmin, and a row with another xmin was copied.
CREATE UNLOGGED TABLE {schema}.epoch (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch   bigint NOT NULL,
    made_by xid
);

-- All epochs, and why each began: created, crash (nothing acknowledged is lost), failover (a new timeline: messages that the
-- standby did not have are lost), restore (a dump: messages published after it are lost).
CREATE TABLE {schema}.epoch_history (
    epoch    bigint PRIMARY KEY,
    began_at timestamptz NOT NULL,
    cause    text NOT NULL CHECK (cause IN ('created', 'crash', 'failover', 'restore')),
    timeline text NOT NULL
);

-- Its value is the timeline of the server's write-ahead log on which offsets continue: see "pass_lost_offsets".
CREATE SEQUENCE {schema}.offsets_timeline;

-- The database's clock as processes read it: the latest time, the latest time read by a process that had run for a while, and by
-- how much deadlines were moved because the clock stepped. See clock/guard.rs.
CREATE TABLE {schema}.clock (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    latest_at timestamptz,
    steady_at timestamptz,
    moved_ms  bigint NOT NULL DEFAULT 0,
    -- The range of clients: every process reads this row before it does anything that depends on deadlines.
    CONSTRAINT clock_latest_at_readable CHECK (latest_at >= '0001-01-01 00:00:00Z' AND latest_at < '9999-12-30 00:00:00Z'),
    CONSTRAINT clock_steady_at_readable CHECK (steady_at >= '0001-01-01 00:00:00Z' AND steady_at < '9999-12-30 00:00:00Z')
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

INSERT INTO {schema}.clock DEFAULT VALUES;
