//! The schema of the file: tables, which are migrated by version, and code (views and triggers), which is replaced as
//! a whole.
//!
//! Why programs of different versions can have one file open. The code of a file is that of the newest program that
//! opened it; an older program with the same version of the tables works with it and does not replace it. A later
//! version of the tables refuses older programs: when they open the file, and at their next write if they have it
//! open already. That check is part of the write transaction, and a migration is one too: no program writes to tables
//! of a version that it does not support.

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::connection::Location;
use super::decode;
use super::fault::{Attempt, sqlite_error};
use super::patience;
use super::work::Work;
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::SqlitePath;
use crate::store::schema;

/// The schema that one program installs and works with.
#[derive(Clone, Copy)]
pub(super) struct Schema {
    /// The tables of a new file: complete, at the newest version.
    pub(super) tables: &'static [&'static str],
    /// By version, from 2 on: the SQL that migrates the tables from the version before. Append only: files of any
    /// released version exist.
    pub(super) steps: &'static [(i64, &'static str)],
    /// Views and triggers. An edit must still serve older programs with the same version of the tables; if it cannot,
    /// it is a migration.
    pub(super) code: &'static [&'static str],
    /// The version of the program.
    pub(super) program: &'static str,
}

macro_rules! files {
    ($($file:literal),* $(,)?) => { &[$(include_str!(concat!("schema/", $file)),)*] };
}

/// The schema of this program.
pub(super) const SCHEMA: Schema = Schema {
    tables: files![
        "tables/meta.sql",
        "tables/topic.sql",
        "tables/log.sql",
        "tables/publish.sql",
        "tables/outbox.sql",
        "tables/token.sql",
        "tables/subscription.sql",
        "tables/dead_letter.sql",
        "tables/owner.sql",
        "tables/tracking.sql",
        "tables/retention.sql",
        "tables/maintenance.sql",
        "tables/process.sql",
    ],
    steps: &[],
    code: files!["triggers.sql", "views.sql", "publish_trigger.sql", "outbox_trigger.sql", "process.sql"],
    program: env!("CARGO_PKG_VERSION"),
};

/// The version of the tables that this program works with.
pub fn newest() -> i64 {
    SCHEMA.version()
}

/// The version of the tables in a file, without touching it; `None` if the file does not exist or has no tables of
/// Headwater.
pub fn version_of(path: &SqlitePath) -> Result<Option<i64>> {
    let location = Location::new(path)?;
    let Some(path) = location.path.as_ref().filter(|path| path.exists()) else { return Ok(None) };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| sqlite_error(&location.name, error);
    let log = path.with_file_name([path.file_name().unwrap_or_default(), "-wal".as_ref()].join("".as_ref()));
    let connection = match path.to_str() {
        // No process has it open and all content is in the file: it is opened as immutable, because even a reader
        // would leave a log beside it.
        Some(name) if !log.exists() => {
            let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let flags = flags | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(format!("file:{name}?immutable=1"), flags).map_err(failed)?
        }
        _ => Connection::open_with_flags(path, flags).map_err(failed)?,
    };
    patience::install(&connection).map_err(failed)?;
    let Some(found) = Found::read(&connection, &location.name)? else { return Ok(None) };
    // Later tables are the caller's to report; those of another build are no version at all.
    if found.version <= newest() {
        SCHEMA.check_tables(&found, &location.name)?;
    }
    Ok(Some(found.version))
}

/// Refuses to read without migrating a file whose tables have another version, or whose views are those of an older program: reads
/// name columns that these may lack. Views of a newer program serve an older one.
pub(super) fn check_readable(connection: &Connection, location: &str) -> Result<()> {
    let found = current(connection, location)?;
    if SCHEMA.is_current(&found) {
        return Ok(());
    }
    let text = format!(
        "the store has the views of another build ({}), open it once for writing: {location}",
        found.program
    );
    Err(Error::new(ErrorKind::SchemaOutdated, text))
}

/// The schema of a file; refused if its tables have another version.
fn current(connection: &Connection, location: &str) -> Result<Found> {
    let Some(found) = Found::read(connection, location)? else {
        let text = format!("the store cannot be read: {location}: it has no tables of Headwater");
        return Err(Error::new(ErrorKind::NotAStore, text));
    };
    SCHEMA.check_tables(&found, location)?;
    if found.version == newest() {
        return Ok(found);
    }
    let text = format!(
        "schema version {} is older than this program's {}, open the store once for writing: {location}",
        found.version,
        newest()
    );
    Err(Error::new(ErrorKind::SchemaOutdated, text))
}

/// The same check at the start of every write transaction: one row, read under the lock that a migration needs too.
pub(super) fn check_written(connection: &Connection, location: &str) -> Attempt<()> {
    const VERSION: &str = "SELECT CAST(value AS INTEGER) FROM headwater_meta WHERE key = 'schema'";
    let found: Option<i64> =
        connection.prepare_cached(VERSION)?.query_row([], |row| row.get(0)).optional()?;
    if found == Some(newest()) { Ok(()) } else { Ok(current(connection, location).map(drop)?) }
}

/// Refuses, before anything is touched, a file that [`migrate`] would refuse.
pub(super) fn check_may_open(connection: &Connection, location: &str, adopt: bool) -> Result<()> {
    match Found::read(connection, location)? {
        Some(found) => SCHEMA.check_tables(&found, location),
        None => check_may_install(connection, location, adopt),
    }
}

/// Migrates the file to this program's tables and code.
pub(super) fn migrate(connection: &mut Connection, location: &str, adopt: bool) -> Result<()> {
    SCHEMA.install(connection, location, adopt)
}

impl Schema {
    pub(super) fn version(&self) -> i64 {
        self.steps.last().map_or(1, |(version, _)| *version)
    }

    /// The code as it is run.
    pub(super) fn code(&self) -> Vec<String> {
        schema::with_settings(self.code)
    }

    /// Safe if many processes open at once: `BEGIN IMMEDIATE` admits one at a time, and the second finds nothing left
    /// to do. All of it is one transaction: a crash leaves the file as it was, and no other connection sees a file
    /// without code.
    pub(super) fn install(&self, connection: &mut Connection, location: &str, adopt: bool) -> Result<()> {
        if Found::read(connection, location)?.is_some_and(|found| self.is_current(&found)) {
            return Ok(());
        }
        let failed = |error| sqlite_error(location, error);
        let transaction =
            connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
        let found = Found::read(&transaction, location)?;
        match &found {
            Some(found) => self.check_tables(found, location)?,
            None => check_may_install(&transaction, location, adopt)?,
        }
        if found.as_ref().is_some_and(|found| self.is_current(found)) {
            return Ok(());
        }
        let before = found.map(|found| found.version);
        self.apply(&transaction, before).map_err(failed)?;
        transaction.commit().map_err(failed)?;
        let (from, to, program) = (before.unwrap_or(0), self.version(), self.program);
        tracing::info!(location, from, to, program, "schema migrated");
        Ok(())
    }

    /// Drops the code first: otherwise renaming or rebuilding a table would check every view and trigger that names
    /// it.
    fn apply(&self, connection: &Connection, before: Option<i64>) -> rusqlite::Result<()> {
        match before {
            None => self.tables.iter().try_for_each(|sql| connection.execute_batch(sql))?,
            Some(before) => {
                drop_ours(connection, &["trigger", "view"])?;
                let mut later = self.steps.iter().filter(|(version, _)| *version > before);
                later.try_for_each(|(_, sql)| connection.execute_batch(sql))?;
            }
        }
        let code = self.code();
        code.iter().try_for_each(|sql| connection.execute_batch(sql))?;
        let mut store = connection.prepare(
            "INSERT INTO headwater_meta (key, value) VALUES (?1, ?2) \
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
        )?;
        store.execute(["schema", &self.version().to_string()])?;
        store.execute(["schema_tables", &schema::definition(self.tables)])?;
        store.execute(["schema_code", &schema::hash(&code)])?;
        store.execute(["schema_program", self.program])?;
        Ok(())
    }

    /// Whether nothing is to be done: the tables have this program's version, and the code is from this or a newer
    /// program.
    fn is_current(&self, found: &Found) -> bool {
        found.version == self.version()
            && found.definition == schema::definition(self.tables)
            && (found.code == schema::hash(&self.code()) || schema::newer(&found.program, self.program))
    }

    /// Refuses tables that this program cannot work with: later ones, and those of a build that was never released.
    fn check_tables(&self, found: &Found, location: &str) -> Result<()> {
        let (version, newest) = (found.version, self.version());
        if version > newest {
            let text = format!(
                "schema version {version} is newer than this program's {newest}, upgrade it: {location}"
            );
            return Err(Error::new(ErrorKind::SchemaTooNew, text));
        }
        let is_same = found.definition == schema::definition(self.tables);
        if version == newest && !is_same { Err(unreleased(location)) } else { Ok(()) }
    }
}

/// The schema that a file has.
#[derive(Debug, Default)]
struct Found {
    version: i64,
    /// What the files of its tables define; empty before it was stored.
    definition: String,
    code: String,
    program: String,
}

impl Found {
    /// `None` if the file has no schema.
    fn read(connection: &Connection, location: &str) -> Result<Option<Found>> {
        let failed = |error| sqlite_error(location, error);
        let exists: Option<i64> = connection
            .query_row(
                "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'headwater_meta'",
                [],
                |row| row.get(0),
            )
            .optional()
            .map_err(failed)?;
        if exists.is_none() {
            return Ok(None);
        }
        let mut found = Found::default();
        let mut version = None;
        let mut statement = connection
            .prepare("SELECT key, value FROM headwater_meta WHERE key LIKE 'schema%'")
            .map_err(failed)?;
        let rows: Vec<(String, String)> =
            decode::all(&mut statement, [], |row| Ok((row.get(0)?, row.get(1)?))).map_err(failed)?;
        for (key, value) in rows {
            match key.as_str() {
                "schema" => version = value.parse().ok(),
                "schema_tables" => found.definition = value,
                "schema_code" => found.code = value,
                "schema_program" => found.program = value,
                "schema_version" => return Err(unreleased(location)),
                _ => {}
            }
        }
        found.version = version.ok_or_else(|| {
            let text = format!("not a store of Headwater: headwater_meta has no schema version: {location}");
            Error::new(ErrorKind::NotAStore, text)
        })?;
        Ok(Some(found))
    }
}

fn unreleased(location: &str) -> Error {
    let text = format!(
        "made by a development version of Headwater before the first release, which this program does not read; nothing \
         was changed: {location}; to begin with an empty store use another file, or drop the headwater_* tables of this one; \
         what is in it can be read with the program that made it"
    );
    Error::new(ErrorKind::SchemaOutdated, text)
}

/// Removes every object of Headwater. Returns whether the database contains nothing else.
pub(super) fn drop_all(work: &mut Work<'_>) -> Attempt<bool> {
    let connection = work.connection;
    // Views and triggers first: dropping a table checks that nothing still names it.
    drop_ours(connection, &["trigger", "view", "table"])?;
    let others: i64 = connection.query_row(
        "SELECT count(*) FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
        [],
        |row| row.get(0),
    )?;
    Ok(others == 0)
}

/// Drops every object of Headwater of these kinds, in this order.
fn drop_ours(connection: &Connection, kinds: &[&str]) -> rusqlite::Result<()> {
    const OURS: &str =
        "SELECT name FROM sqlite_master WHERE type = ?1 AND name LIKE 'headwater\\_%' ESCAPE '\\'";
    for kind in kinds {
        let names: Vec<String> = decode::all(&mut connection.prepare(OURS)?, [kind], |row| row.get(0))?;
        for name in names {
            // Headwater's own names, from the database's catalogue, quoted.
            connection.execute_batch(&format!("DROP {kind} \"{}\"", name.replace('"', "\"\"")))?;
        }
    }
    Ok(())
}

/// Refuses a database of another application, unless the caller chose to adopt it.
fn check_may_install(connection: &Connection, location: &str, adopt: bool) -> Result<()> {
    let failed = |error| sqlite_error(location, error);
    let mut statement = connection
        .prepare("SELECT name FROM sqlite_master WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name LIMIT 4")
        .map_err(failed)?;
    let others: Vec<String> =
        statement.query_map([], |row| row.get(0)).and_then(|names| names.collect()).map_err(failed)?;
    if others.is_empty() || adopt {
        return Ok(());
    }
    let text = format!(
        "an SQLite database of another application (it holds {}): {location}; to keep messages beside its tables, \
         run `headwater migrate --adopt`",
        others.join(", ")
    );
    Err(Error::new(ErrorKind::NotAStore, text))
}
