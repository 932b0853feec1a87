//! `headwater demo`: its claims hold, and it leaves nothing behind.

use serde_json::Value;

use super::*;

/// With a directory for its temporary files, to check that they are removed afterwards.
fn demo(place: &Place, args: &[&str]) -> Command {
    let folder = place.folder.path().join("tmp");
    std::fs::create_dir_all(&folder).unwrap();
    let mut command = place.command(&[&["demo"], args].concat());
    command.env("TMPDIR", folder).stdin(Stdio::null());
    command
}

fn assert_clean(place: &Place) {
    let left: Vec<_> = std::fs::read_dir(place.folder.path().join("tmp")).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn the_demo_proves_its_claims_and_cleans_up() {
    let place = Place::sqlite();
    let output = demo(&place, &["--fast", "--output", "json"]).output().unwrap();
    let story = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{story}");
    let summary: Value = serde_json::from_slice(&output.stdout).unwrap();
    let claims = summary["claims"].as_array().unwrap();
    assert!(claims.len() >= 15 && claims.iter().all(|claim| claim["holds"] == true), "{claims:?}");
    let published = summary["published"].as_u64().unwrap();
    assert!(published > 500, "{summary}");
    let groups = summary["groups"].as_array().unwrap();
    assert_eq!(groups.len(), 4);
    for group in groups {
        assert_eq!((&group["handled"], &group["missed"]), (&published.into(), &0.into()), "{group}");
    }
    for act in ["1. ", "2. ", "3. ", "4. ", "5. "] {
        assert!(story.lines().any(|line| line.starts_with(act)), "{story}");
    }
    assert!(story.contains("is killed") && story.contains("dead letter redriven"), "{story}");
    assert_clean(&place);
}

#[test]
fn an_interrupted_demo_cleans_up() {
    let place = Place::sqlite();
    let mut child = demo(&place, &[]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut workers = Vec::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while workers.len() < 3 {
        let line = lines.next().expect("three processes are named").unwrap();
        let id = line.split_once("is served by process ").map(|(_, id)| id.trim().parse::<u32>().unwrap());
        workers.extend(id);
    }
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    // Read to the end, or it blocks on its output.
    lines.for_each(drop);
    assert_eq!(child.wait().unwrap().code(), Some(1));
    for id in workers {
        assert!(
            !Command::new("kill")
                .args(["-0", &id.to_string()])
                .stderr(Stdio::null())
                .status()
                .unwrap()
                .success()
        );
    }
    assert_clean(&place);
}
