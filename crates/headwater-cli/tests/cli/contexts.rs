//! `headwater context`, `completions`, `man` and `--watch`.

use super::*;

#[test]
fn a_context_replaces_a_url() {
    let place = Place::sqlite();
    place.out(&["context", "add", "dev", "sqlite:dev.db"]);
    place.out(&[
        "context",
        "add",
        "prod",
        "postgres://ann:s3cret@db/shop?password=s3cret",
        "--namespace",
        "orders",
    ]);
    let exists = refusal(&place.run(&["context", "add", "dev", "sqlite:other.db"]), 1);
    assert!(exists.contains("context dev exists"), "{exists}");
    assert!(refusal(&place.run(&["context", "add", "bad", "dev.db"]), 2).contains("sqlite:dev.db"));

    let listed = place.json(&["context", "list"]);
    let names = ["context", "in_use", "store", "namespace", "production"];
    assert_eq!(
        serde_json::json!(listed.iter().map(|context| fields(context, names)).collect::<Vec<_>>()),
        serde_json::json!([
            ["dev", false, "sqlite:dev.db", null, false],
            ["prod", false, "postgres://ann:***@db/shop?password=***", "orders", false]
        ])
    );

    place.out(&["publish", "orders", "1", "--context", "dev"]);
    assert!(place.folder.path().join("dev.db").exists());
    place.out(&["context", "use", "dev"]);
    assert_eq!(place.one(&["topic", "list"])["topic"], "orders", "the context in use");
    let elsewhere = place.run(&["topic", "list", "--store", "sqlite:none.db"]);
    assert!(refusal(&elsewhere, 1).contains("no store at"), "--store takes precedence");
    let environment =
        place.command(&["topic", "list"]).env("HEADWATER_STORE", "sqlite:none.db").output().unwrap();
    assert!(refusal(&environment, 1).contains("no store at"), "so does the environment");
    let named = place
        .command(&["topic", "list", "-o", "json", "--context", "dev"])
        .env("HEADWATER_STORE", "sqlite:none.db")
        .output()
        .unwrap();
    assert!(text(named).contains("orders"), "a context that is named takes precedence over the environment");
    let both = place.run(&["topic", "list", "--store", "sqlite:dev.db", "--context", "dev"]);
    assert!(refusal(&both, 2).contains("give one of them"));
    let unknown = refusal(&place.run(&["topic", "list", "--context", "prd"]), 2);
    assert!(
        unknown.contains("no such context: prd") && unknown.ends_with("did you mean prod?\n"),
        "{unknown}"
    );

    place.out(&["context", "remove", "dev"]);
    assert!(refusal(&place.run(&["topic", "list"]), 1).contains("headwater.db"), "none is in use any more");
    assert!(refusal(&place.run(&["context", "remove", "dev"]), 2).contains("no such context"));
}

/// Without a terminal to ask on, a change in production needs `--yes`.
#[test]
fn production_is_changed_only_when_confirmed() {
    let place = Place::sqlite();
    place.out(&["context", "add", "prod", "sqlite:prod.db", "--production"]);
    place.out(&["context", "use", "prod"]);
    let publish = ["publish", "orders", "1"];
    let refused = refusal(&place.run(&publish), 2);
    assert!(refused.contains("context prod is in production") && refused.contains("--yes"), "{refused}");
    assert!(!place.folder.path().join("prod.db").exists(), "nothing was changed");
    place.out(&[&publish[..], &["--yes"]].concat());
    for reading in ["topic list", "topic show orders", "group list", "audit", "maintain --status"] {
        text(place.run(&reading.split(' ').collect::<Vec<_>>()));
    }
    for changing in ["maintain", "topic alter orders --lease 1m", "group subscribe orders a", "migrate"] {
        let refused = refusal(&place.run(&changing.split(' ').collect::<Vec<_>>()), 2);
        assert!(refused.contains("in production"), "{changing}: {refused}");
    }
    place.out(&["group", "subscribe", "orders", "a", "--yes"]);
    place.out(&["group", "seek", "orders", "a", "--to", "now", "--dry-run"]);
}

#[test]
fn shells_and_man_know_every_command() {
    let place = Place::sqlite();
    for shell in ["bash", "zsh", "fish"] {
        let script = place.out(&["completions", shell]);
        for word in ["dead-letter", "force-complete", "completions"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
    let syntax = place.command(&["completions", "bash"]).output().unwrap();
    let mut bash = Command::new("bash").arg("-n").stdin(Stdio::piped()).spawn().unwrap();
    bash.stdin.take().unwrap().write_all(&syntax.stdout).unwrap();
    assert!(bash.wait().unwrap().success(), "bash accepts the script");
    place.out(&["man", "--dir", "pages/man1"]);
    let page =
        |name: &str| std::fs::read_to_string(place.folder.path().join("pages/man1").join(name)).unwrap();
    assert!(
        page("headwater.1").contains(".TH") && page("headwater-group-seek.1").contains("\\-\\-dry\\-run")
    );
}

#[test]
fn a_list_is_watched_until_stopped() {
    let place = Place::sqlite();
    place.out(&["topic", "create", "orders"]);
    let watch = &mut place.command(&["topic", "list", "--watch", "10ms", "--output", "json"]);
    let mut watching = watch.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watching.stdout.take().unwrap()).lines();
    for _ in 0..2 {
        assert!(lines.next().unwrap().unwrap().contains("\"topic\":\"orders\""));
    }
    place.out(&["topic", "create", "second"]);
    lines.find(|line| line.as_ref().unwrap().contains("second")).expect("it sees what is new").unwrap();
    assert!(Command::new("kill").args(["-TERM", &watching.id().to_string()]).status().unwrap().success());
    // Read to the end: a process that cannot write does not end.
    lines.for_each(drop);
    assert!(watching.wait().unwrap().success());
    let zero = refusal(&place.run(&["topic", "list", "--watch", "0s"]), 2);
    assert!(zero.contains("longer than 0s"), "{zero}");
}
