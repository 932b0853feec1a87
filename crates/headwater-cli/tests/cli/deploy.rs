//! What `deploy/` and the guide of the server tell people to run is what the command accepts.

use super::*;

fn file(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The command line with `--help` at its end: refused if an option before it is.
fn assert_accepted(place: &Place, line: &str) {
    let line = line.split('#').next().unwrap_or_default().trim();
    let script = format!("exec {} {line} --help", env!("CARGO_BIN_EXE_headwater"));
    let shell = Command::new("sh").arg("-c").arg(script).current_dir(place.folder.path()).output().unwrap();
    assert!(shell.status.success(), "headwater {line}: {}", String::from_utf8_lossy(&shell.stderr));
}

/// Those of JSON arrays after a word, as `CMD ["serve"]`.
fn arrays_after<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = String> + 'a {
    text.lines().filter_map(move |line| {
        let array: Vec<String> = serde_json::from_str(line.trim().strip_prefix(word)?.trim()).ok()?;
        Some(array.join(" "))
    })
}

#[test]
fn deployments_use_options_that_exist() {
    let place = Place::sqlite();
    let (image, compose, unit) =
        (file("deploy/Dockerfile"), file("deploy/compose.yaml"), file("deploy/headwater.service"));
    let mut lines: Vec<String> = arrays_after(&image, "CMD ").collect();
    lines.extend(arrays_after(&compose, "command: "));
    let started = unit.lines().filter_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/headwater "));
    lines.extend(started.map(str::to_owned));
    assert_eq!(lines.len(), 4, "the image, two servers and the unit: {lines:?}");
    assert!(lines.iter().all(|line| line.starts_with("serve --listen ")), "{lines:?}");
    // The shell line that sets up a database.
    let setup = compose.lines().find(|line| line.contains("headwater migrate")).expect("a set-up");
    let setup: Vec<&str> = setup.split(['&', '|', ';', '{', '}', '-']).collect();
    assert!(setup.iter().any(|part| part.trim() == "headwater migrate"), "{setup:?}");
    for line in &lines {
        assert_accepted(&place, line);
    }
    assert_accepted(&place, "token create admin --scope publish,consume,read,admin");
    assert!(compose.contains("headwater token create admin --scope publish,consume,read,admin"));
}

#[test]
fn guide_of_the_server_shows_commands_that_exist() {
    let place = Place::sqlite();
    let (guide, mut count, mut is_shell) = (file("docs/server.md"), 0, false);
    for line in guide.lines() {
        if let Some(language) = line.strip_prefix("```") {
            is_shell = language == "sh";
        }
        if let (true, Some(command)) = (is_shell, line.trim().strip_prefix("headwater ")) {
            assert_accepted(&place, command);
            count += 1;
        }
    }
    assert!(count >= 8, "{count} commands were found");
}
