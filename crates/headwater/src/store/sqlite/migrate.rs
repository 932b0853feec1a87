//! The schema and its versions: one list, run in order, in one transaction.

use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior};

use super::connection::Location;
use super::fault::sqlite_error;
use super::patience;
use crate::error::{Error, ErrorKind, Result};
use crate::namespace::SqlitePath;

/// Every migration ever released, by version. Append only: files of any earlier version are out there.
pub(super) const MIGRATIONS: &[(i64, &str)] = &[
    (1, include_str!("migrations/0001_initial.sql")),
    (2, include_str!("migrations/0002_owners_and_limits.sql")),
    (3, include_str!("migrations/0003_inbox.sql")),
    (4, include_str!("migrations/0004_cron.sql")),
    (5, include_str!("migrations/0005_life_cycle.sql")),
    (6, include_str!("migrations/0006_bits_used.sql")),
];

/// The version this program writes.
pub fn newest() -> i64 {
    MIGRATIONS.last().expect("there is a first migration").0
}

/// The version a file is at, without touching it; `None` if it is not there, or holds nothing of Headwater's.
pub fn version_of(path: &SqlitePath) -> Result<Option<i64>> {
    let location = Location::new(path)?;
    let Some(path) = location.path.as_ref().filter(|path| path.exists()) else { return Ok(None) };
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let failed = |error| sqlite_error(&location.name, error);
    let log = path.with_file_name([path.file_name().unwrap_or_default(), "-wal".as_ref()].join("".as_ref()));
    let connection = match path.to_str() {
        // Nobody has it open and all of it is in the file: read as it lies, or even a reader leaves a log beside it.
        Some(name) if !log.exists() => {
            let name = name.replace('%', "%25").replace('?', "%3f").replace('#', "%23");
            let flags = flags | OpenFlags::SQLITE_OPEN_URI;
            Connection::open_with_flags(format!("file:{name}?immutable=1"), flags).map_err(failed)?
        }
        _ => Connection::open_with_flags(path, flags).map_err(failed)?,
    };
    patience::install(&connection).map_err(failed)?;
    version(&connection, &location.name)
}

/// Refuses a file that is not at the newest version: where it cannot be written it cannot be brought there.
pub(super) fn check_current(connection: &Connection, location: &str) -> Result<()> {
    let found = match version(connection, location)? {
        Some(version) if version == newest() => return Ok(()),
        Some(version) => format!("its version is {version}, this program reads {}", newest()),
        None => "it holds nothing of Headwater".into(),
    };
    Err(Error::new(ErrorKind::NotAStore, format!("the store cannot be read: {location}: {found}")))
}

/// Brings the file to the newest version.
///
/// Safe when many processes open at once: `BEGIN IMMEDIATE` lets one in at a time, and whoever comes second finds
/// nothing left to do. All of it is one transaction, so a crash leaves the file as it was.
pub(super) fn migrate(connection: &mut Connection, location: &str, adopt: bool) -> Result<()> {
    if version(connection, location)? == Some(newest()) {
        return Ok(());
    }
    run(connection, location, adopt, MIGRATIONS)
}

fn run(connection: &mut Connection, location: &str, adopt: bool, migrations: &[(i64, &str)]) -> Result<()> {
    let failed = |error| sqlite_error(location, error);
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let found = version(&transaction, location)?;
    match found {
        Some(found) => check_not_newer(found, location)?,
        None => check_may_install(&transaction, location, adopt)?,
    }
    let found = found.unwrap_or(0);
    for (version, sql) in migrations.iter().filter(|(version, _)| *version > found) {
        transaction.execute_batch(sql).map_err(failed)?;
        transaction
            .execute(
                "INSERT INTO headwater_meta (key, value) VALUES ('schema_version', ?1) \
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [version.to_string()],
            )
            .map_err(failed)?;
        tracing::info!(location, version, "schema migrated");
    }
    transaction.commit().map_err(failed)
}

/// The version of the schema in the file; `None` if there is none.
pub(super) fn version(connection: &Connection, location: &str) -> Result<Option<i64>> {
    let failed = |error| sqlite_error(location, error);
    let there: Option<i64> = connection
        .query_row(
            "SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'headwater_meta'",
            [],
            |row| row.get(0),
        )
        .optional()
        .map_err(failed)?;
    if there.is_none() {
        return Ok(None);
    }
    let value: Option<String> = connection
        .query_row("SELECT value FROM headwater_meta WHERE key = 'schema_version'", [], |row| row.get(0))
        .optional()
        .map_err(failed)?;
    let version = value.as_deref().and_then(|value| value.parse().ok());
    version.map(Some).ok_or_else(|| {
        let text = format!("not a store of Headwater: headwater_meta has no schema_version: {location}");
        Error::new(ErrorKind::NotAStore, text)
    })
}

/// Refuses a schema from the future.
pub(super) fn check_not_newer(found: i64, location: &str) -> Result<()> {
    let newest = newest();
    if found <= newest {
        return Ok(());
    }
    let text =
        format!("schema version {found} is newer than this program's {newest}, upgrade it: {location}");
    Err(Error::new(ErrorKind::SchemaTooNew, text))
}

/// Refuses a database that belongs to another application, unless it invited Headwater in.
pub(super) fn check_may_install(connection: &Connection, location: &str, adopt: bool) -> Result<()> {
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
         open it with OpenOptions::adopt",
        others.join(", ")
    );
    Err(Error::new(ErrorKind::NotAStore, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_migration_is_appended_and_runs_once() {
        let mut connection = Connection::open_in_memory().unwrap();
        migrate(&mut connection, "x", false).unwrap();
        let newer = newest() + 1;
        let later = [MIGRATIONS, &[(newer, "CREATE TABLE headwater_later (n INTEGER) STRICT")]].concat();
        // A newer program's list, whose newest this program does not know: the runner takes any list.
        run(&mut connection, "x", false, &later).unwrap();
        assert_eq!(version(&connection, "x").unwrap(), Some(newer));
        assert_eq!(migrate(&mut connection, "x", false).unwrap_err().kind(), ErrorKind::SchemaTooNew);
    }

    #[test]
    fn every_earlier_version_is_migrated() {
        for count in 1..MIGRATIONS.len() {
            let mut connection = Connection::open_in_memory().unwrap();
            run(&mut connection, "x", false, &MIGRATIONS[..count]).unwrap();
            assert_eq!(version(&connection, "x").unwrap(), Some(MIGRATIONS[count - 1].0));
            migrate(&mut connection, "x", false).unwrap();
            assert_eq!(version(&connection, "x").unwrap(), Some(newest()));
        }
    }

    #[test]
    fn a_failing_migration_leaves_nothing_behind() {
        let mut connection = Connection::open_in_memory().unwrap();
        let broken = (newest() + 1, "CREATE TABLE headwater_later (n INTEGER); SELECT nonsense FROM nowhere");
        run(&mut connection, "x", false, &[MIGRATIONS, &[broken]].concat()).unwrap_err();
        assert_eq!(version(&connection, "x").unwrap(), None);
        migrate(&mut connection, "x", false).unwrap();
    }
}
