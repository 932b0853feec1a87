//! The programs of docs/sql.md.

use super::super::{Database, drivers, python, run};
use headwater::Headwater;
use tokio::process::Command;

const DOCUMENT: &str = include_str!("../../../../docs/sql.md");

/// The only block of this kind.
fn block(kind: &str) -> &'static str {
    let mut blocks = DOCUMENT.split("```").filter_map(|block| block.strip_prefix(kind)?.strip_prefix('\n'));
    let found = blocks.next().unwrap_or_else(|| panic!("docs/sql.md has a block of kind {kind}"));
    assert!(blocks.next().is_none(), "one block of kind {kind}");
    found
}

/// Runs a program on a new database, and compares the last lines that it prints.
async fn prints(mut command: Command, lines: &[&str]) {
    let Some(database) = Database::new().await else { return };
    drop(database.open().await);
    command.env("DATABASE_URL", &database.url);
    let output = run(command).await;
    let (printed, errors) =
        (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{}: {errors}\n{printed}", output.status);
    assert_eq!(printed.lines().collect::<Vec<_>>(), lines, "{errors}");
    database.drop().await;
}

#[tokio::test]
async fn python_consumes_as_documented() {
    let Some(drivers) = drivers() else { return };
    let mut command = Command::new(python(&drivers));
    command.args(["-c", block("python psycopg")]);
    prints(command, &["10 invoices"]).await;
}

#[tokio::test]
async fn node_consumes_as_documented() {
    let Some(drivers) = drivers() else { return };
    let mut command = Command::new("node");
    command.args(["-e", block("js node")]).env("NODE_PATH", drivers.join("node/node_modules"));
    prints(command, &["mail to ada@example.com", "1 buried: no recipient"]).await;
}

#[tokio::test]
async fn a_shell_consumes_as_documented() {
    let mut command = Command::new("sh");
    command.args(["-c", block("sh psql")]);
    prints(command, &["handling a.txt", "handling b.txt"]).await;
}

#[tokio::test]
async fn python_publishes_to_the_embedded_file_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let headwater = Headwater::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", block("python sqlite")]).env("DATABASE_FILE", &file);
    let output = run(command).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    assert_eq!(String::from_utf8_lossy(&output.stdout), "offset 1 new\noffset 1 duplicate\n", "{errors}");
    drop(headwater);
}

#[tokio::test]
async fn python_uses_outbox_and_inbox_of_the_embedded_file_as_documented() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    let headwater = Headwater::open(&format!("sqlite:{}", file.display())).await.unwrap();
    let mut command = Command::new("python3");
    command.args(["-c", block("python outbox")]).env("DATABASE_FILE", &file);
    let output = run(command).await;
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let printed = "sending {\"id\":17} to orders\nprocess it\nprocessed before\n";
    assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{errors}");
    drop(headwater);
}

/// Every statement of the document that is not part of a program runs, in order.
#[tokio::test]
async fn the_statements_run_as_documented() {
    let Some(database) = Database::new().await else { return };
    drop(database.open().await);
    let client = database.client().await;
    client
        .batch_execute("CREATE TABLE shop_order (id bigint, total bigint); CREATE ROLE billing_service")
        .await
        .unwrap();
    let statements = DOCUMENT.split("```").filter_map(|block| block.strip_prefix("sql\n"));
    let mut count = 0;
    for statement in statements {
        client.batch_execute(statement).await.unwrap_or_else(|error| panic!("{statement}: {error:?}"));
        count += 1;
    }
    assert!(count >= 4, "{count} blocks");
    client.batch_execute("DROP OWNED BY billing_service; DROP ROLE billing_service").await.unwrap();
    database.drop().await;
}

/// Functions and views without the mark `internal` are those of the document, and everything has a comment.
#[tokio::test]
async fn everything_public_is_documented_and_the_rest_is_marked() {
    let Some(database) = Database::new().await else { return };
    drop(database.open().await);
    let sql = "SELECT p.proname::text, obj_description(p.oid, 'pg_proc'), '(' FROM pg_proc p WHERE p.pronamespace = 'headwater'::regnamespace
        UNION ALL SELECT c.relname::text, obj_description(c.oid, 'pg_class'), '`' FROM pg_class c
        WHERE c.relnamespace = 'headwater'::regnamespace AND c.relkind IN ('v', 'r', 'p') AND NOT c.relispartition";
    let mut public = 0;
    for row in database.client().await.query(sql, &[]).await.unwrap() {
        let (name, comment, end): (&str, Option<&str>, &str) = (row.get(0), row.get(1), row.get(2));
        let comment = comment.unwrap_or_else(|| panic!("{name} has no comment"));
        if !comment.starts_with("internal: ") {
            public += 1;
            assert!(DOCUMENT.contains(&format!("`{name}{end}")), "docs/sql.md does not describe {name}");
        }
    }
    assert_eq!(public, 29 + 16, "functions and views");
    database.drop().await;
}

/// The views of the document's table exist on both engines, with the same columns in the same order.
#[tokio::test]
async fn both_engines_have_the_same_views() {
    let Some(database) = Database::new().await else { return };
    drop(database.open().await);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("app.db");
    drop(Headwater::open(&format!("sqlite:{}", file.display())).await.unwrap());
    let embedded = rusqlite::Connection::open(&file).unwrap();
    let (_, table) = DOCUMENT.split_once("| view | a row for each |").unwrap();
    let views: Vec<&str> =
        table.lines().skip(2).map_while(|line| line.strip_prefix("| `")?.split('`').next()).collect();
    assert_eq!(views.len(), 16, "{views:?}");
    for view in views {
        let sql = "SELECT string_agg(column_name::text, ', ' ORDER BY ordinal_position) FROM information_schema.columns
                   WHERE table_schema = 'headwater' AND table_name = $1";
        let there: Option<String> = database.client().await.query_one(sql, &[&view]).await.unwrap().get(0);
        let sql = "SELECT group_concat(name, ', ') FROM pragma_table_info(?1)";
        let here: Option<String> =
            embedded.query_row(sql, [format!("headwater_{view}")], |row| row.get(0)).unwrap();
        assert!(here.is_some(), "{view}");
        // Whether a message has its completion record is stored on PostgreSQL only.
        assert_eq!(there.map(|columns| columns.replace(", recorded", "")), here, "{view}");
    }
    database.drop().await;
}
