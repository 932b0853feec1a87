-- Processes, the clock they share, and the history of the namespace.

-- Owners that send heartbeats: see functions/heartbeat.sql.
CREATE TABLE {schema}.owner (
    owner   text COLLATE "C" PRIMARY KEY,
    seen_at timestamptz NOT NULL,
    -- Whether silence ends its leases; else only their deadlines do.
    judged  boolean NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

CREATE INDEX owner_seen ON {schema}.owner (seen_at) WHERE judged;

-- What proves that an owner's process lives: a session of its own holds the advisory lock of this key. The server releases
-- the lock when the process ends, because its kernel closes the connection. An owner without a row is judged by silence alone.
--
-- A proof ends with the server that gave it: a crash or a failover empties the table, and "server_at" tells a restart. Clients that
-- connect again are not judged by how soon they do.
--
-- The key is random. Any role can read it in pg_locks and wait for the lock: then the end of the process is found by
-- silence, as without a proof. No role can release a lock of another session, so none makes a living process seem ended.
CREATE UNLOGGED TABLE {schema}.proof (
    owner     text COLLATE "C" PRIMARY KEY REFERENCES {schema}.owner ON DELETE CASCADE,
    key       bigint NOT NULL,
    server_at timestamptz NOT NULL
);

-- The epoch: which history of the namespace this is. The table is not logged, so a crash, a promoted standby and a restored
-- base backup all find it empty: exactly those may have taken back what clients have seen. A dump carries its row, but
-- not the transaction that wrote it: "made_by" is the row's own xmin, and a row whose xmin is another was copied.
CREATE UNLOGGED TABLE {schema}.epoch (
    one     boolean PRIMARY KEY DEFAULT true CHECK (one),
    epoch   bigint NOT NULL,
    made_by xid
);

-- Every epoch there was, and why it began: created, crash (nothing acknowledged is lost), failover (a new timeline:
-- messages that the standby never had are gone), restore (a dump: messages published after it are gone).
CREATE TABLE {schema}.epoch_history (
    epoch    bigint PRIMARY KEY,
    began_at timestamptz NOT NULL,
    cause    text NOT NULL CHECK (cause IN ('created', 'crash', 'failover', 'restore')),
    timeline text NOT NULL
);

-- Its value is the timeline of the server's log on which offsets continue: see "pass_lost_offsets".
CREATE SEQUENCE {schema}.offsets_timeline;

-- The database's clock as processes saw it: the latest time, the latest time a process saw that had been there for a while, and
-- by how much deadlines were moved because the clock stepped. See clock/guard.rs.
CREATE TABLE {schema}.clock (
    one       boolean PRIMARY KEY DEFAULT true CHECK (one),
    latest_at timestamptz,
    steady_at timestamptz,
    moved_ms  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 30, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000);

INSERT INTO {schema}.clock DEFAULT VALUES;
