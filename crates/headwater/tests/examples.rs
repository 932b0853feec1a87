//! Runs every example as a newcomer would, and checks what it prints, and that it leaves nothing behind.
//!
//! The programs are in `target/<profile>/examples`, beside this test's own: cargo builds them with the tests unless
//! only some targets are selected.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

/// Longer than any example takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(120);
const POSTGRES: &str = "HEADWATER_TEST_POSTGRES";

/// Every example, where it runs, and the last line it prints on success.
macro_rules! examples {
    ($($(#[$if:meta])* $name:ident on $($engine:ident),+ => $promise:literal;)+) => {
        const NAMES: &[&str] = &[$(stringify!($name)),+];
        $($(#[$if])* mod $name {
            $(#[tokio::test]
            async fn $engine() {
                super::$engine(stringify!($name), $promise).await;
            })+
        })+
    };
}

examples! {
    batch on embedded, postgres => "2 lines buried, with the reason";
    cron on embedded, postgres => "two processes, every tick once";
    exactly_once on embedded, postgres => "every payment booked once";
    fan_out on embedded, postgres => "every group got every message it wanted, once";
    hello on embedded, postgres => "3 orders handled, each once";
    order_saga on embedded, postgres => "every order is whole, or undone";
    ordered on embedded, postgres => "every account in order";
    #[cfg(feature = "sqlx")]
    outbox_sqlx on postgres, nowhere => "1 row, 1 message: never one without the other";
    outbox_tokio_postgres on postgres, nowhere => "1 row, 1 message: never one without the other";
    shop on embedded, postgres => "the shop closed with nothing left to do";
}

#[test]
fn every_example_is_run() {
    let files = std::fs::read_dir(source("")).expect("the examples' folder");
    let found: BTreeSet<String> = files
        .map(|file| file.expect("a file of the folder").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| path.file_stem().expect("a name").to_string_lossy().into_owned())
        .collect();
    let listed: BTreeSet<String> = NAMES.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(found, listed, "examples/ and the list in this test name the same programs");
}

/// On the embedded store, without arguments.
async fn embedded(name: &str, promise: &str) {
    let ran = Ran::of(name, None).await;
    ran.kept(promise);
}

/// On the test server, if there is one.
async fn postgres(name: &str, promise: &str) {
    let Ok(server) = std::env::var(POSTGRES) else {
        let required = std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_some();
        assert!(!required, "{POSTGRES} is not set");
        println!("skipped: {POSTGRES} is not set");
        return;
    };
    let ran = Ran::of(name, Some(&server)).await;
    ran.kept(promise);
    let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let left = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE $1
                UNION ALL SELECT rolname::text FROM pg_roles WHERE rolname LIKE $1";
    let left = client.query(left, &[&format!(r"example\_{}\_%", ran.process)]).await.unwrap();
    let left: Vec<String> = left.iter().map(|row| row.get(0)).collect();
    assert_eq!(left, [""; 0], "{name} left objects on the server");
}

/// Without the server it needs, an example reports that and does not claim success.
async fn nowhere(name: &str, promise: &str) {
    let ran = Ran::of(name, None).await;
    let (printed, error) = ran.printed();
    assert!(
        !ran.output.status.success() && !printed.contains(promise),
        "{name} did nothing and reported success"
    );
    assert!(error.contains("needs PostgreSQL") && error.contains("postgres://"), "{name} printed: {error}");
}

/// A run of an example that has ended.
struct Ran {
    name: String,
    process: u32,
    output: Output,
}

impl Ran {
    async fn of(name: &str, store: Option<&str>) -> Ran {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let mut command = tokio::process::Command::new(program(name));
        command
            .args(store)
            .env_remove(POSTGRES)
            .env_remove("DATABASE_URL")
            // An error is for people: without a backtrace.
            .env("RUST_BACKTRACE", "0")
            .env("TMPDIR", temporary.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let child = command.spawn().unwrap_or_else(|error| panic!("{name} did not start: {error}"));
        let process = child.id().expect("the child was not waited for yet");
        let output = tokio::time::timeout(DEADLINE, child.wait_with_output())
            .await
            .unwrap_or_else(|_| panic!("{name} did not end within {DEADLINE:?}"))
            .expect("its output");
        let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().map(|file| file.unwrap()).collect();
        assert!(left.is_empty(), "{name} left files behind: {left:?}");
        Ran { name: name.to_owned(), process, output }
    }

    fn printed(&self) -> (String, String) {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&self.output.stdout), text(&self.output.stderr))
    }

    /// The example succeeded, printed the promise as its last line, and printed no error.
    fn kept(&self, promise: &str) {
        let (printed, error) = self.printed();
        let (name, status) = (&self.name, self.output.status);
        assert!(status.success(), "{name} failed with {status}: {error}\n{printed}");
        assert_eq!(printed.lines().last(), Some(promise), "{name} printed: {printed}");
        assert_eq!(error, "", "{name} printed errors");
    }
}

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

/// The built example, not older than its source.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("this test's own path");
    let profile = test.parent().and_then(Path::parent).expect("target/<profile>/deps/<test>");
    let program = profile.join("examples").join(name).with_extension(std::env::consts::EXE_EXTENSION);
    let changed = |path: &Path| std::fs::metadata(path).and_then(|file| file.modified());
    let source_changed = changed(&source(&format!("{name}.rs"))).expect("the example's source");
    // A test of only this target builds no examples: the existing one may be stale or missing.
    let fresh = changed(&program).is_ok_and(|built| built >= source_changed);
    assert!(fresh, "{name} is not built, or older than its source; run `cargo build --examples` first");
    program
}
