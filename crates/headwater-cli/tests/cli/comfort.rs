//! Options of every command, colours, words for times, names that were mistyped.

use super::*;

#[test]
fn short_options_are_the_long_ones() {
    let place = Place::sqlite();
    let short = ["topic", "create", "orders", "-s", "sqlite:x.db", "-n", "shop", "-o", "json"];
    let made: serde_json::Value = serde_json::from_str(&place.out(&short)).unwrap();
    assert_eq!(made["topic"], "orders");
    assert!(place.folder.path().join("x.shop.db").exists());
    let help = place.out(&["topic", "list", "--help"]);
    let (own, global) = help.split_once("Global options:").expect("a heading of their own");
    assert!(own.contains("--wide") && !own.contains("--store") && global.contains("-s, --store"), "{help}");
}

#[test]
fn quiet_prints_results_and_errors_only() {
    let place = Place::sqlite();
    let loud = place.with_input(&["publish", "orders"], "1\n");
    assert!(refusal(&loud, 0).contains("published 1 message"), "{loud:?}");
    place.out(&["group", "subscribe", "orders", "mail"]);
    let again = ["group", "subscribe", "orders", "mail"];
    assert!(refusal(&place.run(&again), 0).contains("exists already"));
    assert_eq!(refusal(&place.run(&[&again[..], &["-q"]].concat()), 0), "");
    assert!(refusal(&place.run(&["group", "show", "orders", "x", "-q"]), 1).contains("no such subscription"));
}

/// A log has colours on a terminal only; here stderr is a pipe.
#[test]
fn logs_in_a_file_have_no_colours_on_postgres() {
    for (name, args, level) in
        [("verbose", &["-v"][..], ""), ("filter", &[], "info"), ("quiet", &["-q"], "info")]
    {
        let Some(place) = Place::postgres(name) else { return };
        let mut command = place.command(&[&["publish", "orders", "1"], args].concat());
        let log = refusal(&command.env("HEADWATER_LOG", level).output().unwrap(), 0);
        assert_eq!(
            log.contains("INFO") && log.contains("schema migrated"),
            name != "quiet",
            "{name}: {log:?}"
        );
        assert!(!log.contains('\x1b'), "{name}: {log:?}");
    }
}

#[test]
fn a_wrong_log_filter_is_refused() {
    let place = Place::sqlite();
    for wrong in ["bogus=x=y", "debg"] {
        let output = place.command(&["publish", "orders", "1"]).env("HEADWATER_LOG", wrong).output().unwrap();
        let refused = refusal(&output, 2);
        assert!(
            refused.contains("invalid HEADWATER_LOG") && refused.contains("headwater=debug"),
            "{refused}"
        );
    }
    assert_eq!(std::fs::read_dir(place.folder.path()).unwrap().count(), 0, "before anything is done");
}

fn mistyped_names(place: &Place) {
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    place.out(&["group", "subscribe", "orders", "email"]);
    for command in [
        &["topic", "show", "oders"][..],
        &["topic", "alter", "ordres", "--lease", "1m"],
        &["group", "list", "order"],
        &["group", "subscribe", "oders", "x"],
        &["publish", "oders", "x", "--no-create"],
    ] {
        let refused = refusal(&place.run(command), 1);
        assert!(refused.ends_with("did you mean orders?\n"), "{command:?}: {refused}");
        assert!(
            refused.contains("no such topic") && !refused.contains("auto_create"),
            "{command:?}: {refused}"
        );
    }
    for command in [&["group", "show", "orders", "emial"][..], &["group", "pause", "orders", "mail"]] {
        let refused = refusal(&place.run(command), 1);
        assert!(refused.ends_with("did you mean email?\n"), "{command:?}: {refused}");
    }
    let other = refusal(&place.run(&["topic", "show", "payments"]), 1);
    assert!(!other.contains("did you mean"), "{other}");
}

fn words_for_times(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub"]);
    place.out(&["publish", "events", "1"]);
    for (at, next) in
        [("-1h", 1), ("2020-01-01", 1), ("2020-01-01T00:00:00Z", 1), ("beginning", 1), ("now", 2)]
    {
        let group = format!("from{}", at.replace(|c: char| !c.is_ascii_alphanumeric(), ""));
        let made = place.one(&["group", "subscribe", "events", &group, "--from", at]);
        assert_eq!(made["next"], next, "{at}");
        assert_eq!(place.one(&["group", "seek", "events", &group, "--to", at, "--yes"])["to"], next, "{at}");
    }
    let refused = refusal(&place.run(&["group", "subscribe", "events", "x", "--from", "-1"]), 2);
    assert!(refused.contains("-1h"), "{refused}");
    let negative = refusal(&place.run(&["audit", "--max", "-1"]), 2);
    assert!(negative.contains("'-1' for '--max") && !negative.contains("-- -1"), "{negative}");
}

fn repeats_and_changes(place: &Place) {
    place.out(&["topic", "create", "events", "--pub-sub"]);
    place.out(&["group", "subscribe", "events", "mail"]);
    for (act, state) in [("pause", "paused"), ("resume", "active")] {
        assert_eq!(place.one(&["group", act, "events", "mail"])["state"], state);
        let again = place.run(&["group", act, "events", "mail"]);
        assert!(
            refusal(&again, 0).contains(&format!("is {state} already; nothing was changed")),
            "{again:?}"
        );
        assert!(String::from_utf8_lossy(&again.stdout).contains(state));
    }
    let alter = ["topic", "alter", "events", "--max-attempts", "5", "--lease", "2m"];
    let changed = place.out(&alter);
    assert!(changed.contains("max_attempts") && changed.contains("lease"), "{changed}");
    assert!(changed.contains("10") && changed.contains("2m") && !changed.contains("retention"), "{changed}");
    assert!(refusal(&place.run(&alter), 0).contains("nothing was changed"));
    let told = place.one(&["topic", "alter", "events", "--max-attempts", "6"]);
    assert_eq!((&told["changed"], &told["max_attempts"]), (&serde_json::json!(["max_attempts"]), &6.into()));
    let shown = place.out(&["group", "show", "events", "mail"]);
    assert!(shown.lines().any(|line| line.starts_with("health ") && line.ends_with("  healthy")), "{shown}");
    assert!(!shown.contains("healthy   ") && !shown.contains("health_issues"), "{shown}");
}

/// Lists fit into 80 columns with names of usual length.
fn lists_fit(place: &Place) {
    place.out(&["topic", "create", "order.created", "--pub-sub"]);
    for group in ["email", "shipping", "accounting"] {
        place.out(&["group", "subscribe", "order.created", group]);
    }
    place.out(&["publish", "order.created", "1"]);
    for list in [&["topic", "list"][..], &["group", "list"], &["group", "list", "order.created"]] {
        let printed = place.out(list);
        let widest = printed.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= 80, "{list:?} is {widest} wide:\n{printed}");
        assert_eq!(printed.matches("──\n").count(), 1, "one rule:\n{printed}");
        assert!(place.out(&[list, &["--wide"]].concat()).lines().next().unwrap().len() > widest, "{list:?}");
    }
}

type Case = (&'static str, fn(&Place));

const CASES: [Case; 4] = [
    ("mistyped", mistyped_names),
    ("times", words_for_times),
    ("repeats", repeats_and_changes),
    ("fitting", lists_fit),
];

#[test]
fn comforts_on_sqlite() {
    for (_, case) in CASES {
        case(&Place::sqlite());
    }
}

#[test]
fn comforts_on_postgres() {
    for (name, case) in CASES {
        if let Some(place) = Place::postgres(name) {
            case(&place);
        }
    }
}

#[test]
fn the_demo_refuses_a_store_it_would_ignore() {
    let place = Place::sqlite();
    let refused = refusal(&place.run(&["demo", "--fast", "--store", "sqlite:mine.db"]), 2);
    assert!(refused.contains("a store of its own") && refused.contains("--store"), "{refused}");
}
