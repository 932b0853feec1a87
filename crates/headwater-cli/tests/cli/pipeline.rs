//! `headwater pipeline`: a run from its first tick to its end, services that are controlled, and mistakes.

use super::*;

/// A run of a few ticks, in the directory that commands use without one.
fn make_run(place: &Place, ticks: &str) -> Value {
    place.one(&["pipeline", "run", "--ticks", ticks, "--quiet"])
}

#[test]
fn run_is_made_listed_read_and_dropped() {
    let place = Place::sqlite();
    let made = make_run(&place, "30");
    let run = made["run"].as_str().unwrap();
    let stages =
        ["made", "written", "indexed", "organisms_indexed"].map(|stage| made[stage]["ticks"].clone());
    assert_eq!(json!(stages), json!([30, 30, 30, 30]));
    assert!(made["cells"].as_u64().unwrap() > 0 && made["bytes_per_tick"].as_u64().unwrap() > 0, "{made}");
    assert!(made["files"]["files"].as_u64().unwrap() > 0, "{made}");

    let listed = place.one(&["pipeline", "runs"]);
    let names = ["run", "state", "first_tick", "last_tick"];
    assert_eq!(json!(fields(&listed, names)), json!([run, "ENDED", 0, 29]));
    assert!(place.out(&["pipeline", "runs"]).contains("ENDED"));

    let cells = place.json(&["pipeline", "cells", run, "29"]);
    let part = place.json(&["pipeline", "cells", "newest", "29", "--region", "0-49,0-99"]);
    assert!(!part.is_empty() && part.len() < cells.len(), "{} of {}", part.len(), cells.len());
    assert!(part.iter().all(|cell| cell["coordinates"][0].as_u64().unwrap() < 50));
    let missing = refusal(&place.run(&["pipeline", "cells", run, "30"]), 1);
    assert!(missing.contains(&format!("tick 30 of run {run} is not indexed")), "{missing}");
    let wrong = refusal(&place.run(&["pipeline", "cells", run, "1", "--region", "5"]), 2);
    assert!(wrong.contains("error: "), "{wrong}");

    assert_eq!(place.json(&["pipeline", "storage", "check", run]).len(), 0);
    assert_eq!(place.one(&["pipeline", "claims", "sweep"])["removed"], 0);

    let contents = place.json(&["pipeline", "drop", run, "--dry-run"]);
    let bytes = |what: &str| {
        contents.iter().filter(|row| row["what"] == what).filter_map(|row| row["bytes"].as_u64()).sum::<u64>()
    };
    assert!(bytes("topics") > 0 && bytes("index") > 0 && bytes("files") > 0, "{contents:?}");
    let refused = refusal(&place.run(&["pipeline", "drop", run]), 2);
    assert!(refused.contains("--yes"), "{refused}");
    place.out(&["pipeline", "drop", run, "--yes"]);
    assert_eq!(place.json(&["pipeline", "runs"]).len(), 0);
    let left: Vec<_> = std::fs::read_dir(place.folder.path().join("pipeline"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(run))
        .collect();
    assert_eq!(left, Vec::<String>::new(), "nothing of the run is left");
}

#[test]
fn damaged_file_is_found() {
    let place = Place::sqlite();
    let run = make_run(&place, "20")["run"].as_str().unwrap().to_owned();
    let folder = place.folder.path().join("pipeline/files").join(&run).join("raw");
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let checked = place.run(&["pipeline", "storage", "check", "newest", "--output", "json"]);
    assert_eq!(checked.status.code(), Some(1));
    let finding: Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert_eq!(finding["severity"], "error", "{finding}");
}

#[test]
fn services_of_a_running_pipeline_are_controlled() {
    let place = Place::sqlite();
    let mut child = place
        .command(&["pipeline", "run", "--output", "json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let said = |lines: &mut std::io::Lines<_>, words: &str| {
        lines.find_map(|line| line.unwrap().strip_prefix(words).map(str::to_owned)).unwrap()
    };
    said(&mut lines, "control API: ");
    let page = said(&mut lines, "page: ");
    assert!(page.starts_with("http://127.0.0.1:"), "{page}");
    // Its further notes are read, so that it never waits for this test.
    let rest = std::thread::spawn(move || lines.for_each(drop));

    let states = |listed: Vec<Value>| -> Vec<String> {
        listed.iter().map(|service| service["state"].as_str().unwrap().to_owned()).collect()
    };
    let listed = place.json(&["pipeline", "service", "list"]);
    assert_eq!(listed.len(), 7);
    assert!(states(listed).iter().all(|state| state == "RUNNING"));
    let paused = place.one(&["pipeline", "service", "pause", "persistence"]);
    assert_eq!((&paused["service"], &paused["state"]), (&json!("persistence"), &json!("PAUSED")));
    let refused = refusal(&place.run(&["pipeline", "service", "pause", "persistence"]), 2);
    assert!(refused.contains("service persistence is PAUSED; pause expects RUNNING"), "{refused}");
    assert_eq!(place.one(&["pipeline", "service", "resume", "persistence"])["state"], "RUNNING");
    assert!(place.out(&["pipeline", "service", "list"]).contains("environment-indexer"));
    let unknown = refusal(&place.run(&["pipeline", "service", "stop", "sauce"]), 2);
    assert!(unknown.contains("no service \"sauce\" in this process; it has query"), "{unknown}");
    let second = refusal(&place.run(&["pipeline", "run", "--ticks", "5"]), 2);
    let owner = format!("another process ({}) runs service source there", child.id());
    assert!(second.contains("is in use") && second.contains(&owner), "{second}");
    let used = refusal(&place.run(&["pipeline", "drop", "newest", "--yes"]), 2);
    assert!(used.contains("is used by 1 process"), "{used}");

    assert!(Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap().success());
    let mut summary = String::new();
    child.stdout.take().unwrap().read_to_string(&mut summary).unwrap();
    assert!(child.wait().unwrap().success());
    rest.join().unwrap();
    let summary: Value = serde_json::from_str(summary.trim()).unwrap();
    let run = summary["run"].as_str().unwrap();
    let gone = refusal(&place.run(&["pipeline", "service", "list"]), 2);
    assert!(gone.contains("no control address in"), "{gone}");
    // It was interrupted, so the next start continues it.
    let made = summary["made"]["ticks"].as_u64().unwrap();
    let continued = make_run(&place, &(made + 20).to_string());
    assert_eq!(continued["run"], run);
    assert!(continued["made"]["ticks"].as_u64().unwrap() < made + 20, "{continued}");
    assert_eq!(continued["run_ticks_indexed"], made + 20, "of the run, not of this process");
    assert_eq!(place.one(&["pipeline", "runs"])["state"], "ENDED");
}

#[test]
fn mistakes_are_explained() {
    let place = Place::sqlite();
    let refused = refusal(&place.run(&["pipeline", "runs", "--store", "sqlite:x.db"]), 2);
    assert!(refused.contains("the store of a pipeline is in its configuration"), "{refused}");
    let missing = refusal(&place.run(&["pipeline", "runs"]), 1);
    assert!(missing.contains("no store at"), "{missing}");
    assert!(!place.folder.path().join("pipeline/pipeline.db").exists(), "reading creates nothing");
    let text = headwater_pipeline::Config::embedded_text().replace("${DIRECTORY}", "tides");
    let write = |text: &str| std::fs::write(place.folder.path().join("tides.toml"), text).unwrap();
    write(&text.replace("?group=environment", ""));
    let refused = refusal(&place.run(&["pipeline", "run", "--config", "tides.toml"]), 2);
    assert!(
        refused.contains("tides.toml:") && refused.contains("expected topic-read:NAME?group=GROUP"),
        "{refused}"
    );
    assert!(!place.folder.path().join("tides").exists(), "nothing is half-started");
    write(&text);
    let run = |rest: &[&str]| {
        refusal(&place.run(&[&["pipeline", "run", "--config", "tides.toml"], rest].concat()), 2)
    };
    let unknown = run(&["--service", "sauce"]);
    assert!(unknown.contains("no service \"sauce\"; configured are query"), "{unknown}");
    assert!(run(&["--service", "persistence", "--ticks", "5"]).contains("leave out --ticks"));
    assert!(run(&["--service", "persistence", "--page", "0"]).contains("leave out --page"));
    let file = refusal(&place.run(&["pipeline", "run", "--config", "none.toml"]), 2);
    assert!(file.contains("none.toml: "), "{file}");
    let service = refusal(&place.run(&["pipeline", "service", "start"]), 2);
    assert!(service.contains("--all"), "{service}");
}

/// Services in two processes on PostgreSQL: the source and persistence in one, the indexers in the other.
#[test]
fn processes_share_a_run_on_postgres() {
    let Some(other) = Place::postgres("pipeline") else { return };
    let (url, namespace) = other.store.clone().unwrap();
    let place = Place::sqlite();
    let separator = if url.contains('?') { '&' } else { '?' };
    let text = headwater_pipeline::Config::embedded_text()
        .replace("sqlite:${DIRECTORY}/pipeline.db", &format!("{url}{separator}namespace={namespace}"))
        .replace("type = \"tidepool\"", "type = \"tidepool\"\ncheckpoint_directory = \"tides\"")
        .replace("${DIRECTORY}", "tides");
    std::fs::write(place.folder.path().join("tides.toml"), text).unwrap();
    let run = |rest: &[&'static str]| {
        [&["pipeline", "run", "--config", "tides.toml", "--output", "json", "--quiet"], rest].concat()
    };
    let indexers = [
        "--service",
        "metadata-indexer",
        "--service",
        "environment-indexer",
        "--service",
        "organism-indexer",
    ];
    let mut reading = place
        .command(&run(&indexers))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let writing = [
        "--service",
        "metadata-persistence",
        "--service",
        "persistence",
        "--service",
        "source",
        "--ticks",
        "30",
    ];
    let made: Value = serde_json::from_str(super::text(place.run(&run(&writing))).trim()).unwrap();
    let id = made["run"].as_str().unwrap();
    let begun = std::time::Instant::now();
    loop {
        let listed = place.one(&["pipeline", "runs", "--config", "tides.toml"]);
        if listed["last_tick"] == 29 {
            break;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "{listed}");
        std::thread::sleep(Duration::from_millis(100));
    }
    assert!(Command::new("kill").args(["-TERM", &reading.id().to_string()]).status().unwrap().success());
    assert!(reading.wait().unwrap().success());
    place.out(&["pipeline", "drop", id, "--config", "tides.toml", "--yes"]);
    assert_eq!(place.json(&["pipeline", "runs", "--config", "tides.toml"]).len(), 0);
}
