-- Every object of Headwater is named headwater_*: the file may be an application's own.
-- The schema needs no SQLite newer than 3.38, because the file is also opened with other tools: a sqlite3 shell, Python.
-- Times are integer milliseconds since 1970, identities 16-byte blobs, headers a JSON object of strings.

-- Properties of the file. Keys:
--   schema               version of the tables
--   schema_code          hash of the views and triggers
--   schema_program       version of the program that created them
--   auto_create          1 if a publish creates a missing topic, else 0
--   epoch_changed_at_ms  set once an older copy was restored into the file while it was open
CREATE TABLE headwater_meta (
    key TEXT PRIMARY KEY NOT NULL,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO headwater_meta (key, value) VALUES ('auto_create', '1');

-- The clock as processes read it: the latest time, and by how much deadlines were moved because it stepped.
CREATE TABLE headwater_clock (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    latest_ms INTEGER,
    moved_ms INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO headwater_clock (one) VALUES (1);
