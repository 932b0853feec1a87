//! The command on a terminal: irreversible actions are shown first and need a confirmation.

use std::fs::File;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;

/// Runs the command on a terminal of its own and answers its question; returns stdout, stderr and the exit code.
fn answer(place: &Place, args: &[&str], answer: &str) -> (String, String, Option<i32>) {
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let path = ptsname(&controller, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
    let mut child = place
        .command(args)
        .stdin(terminal.try_clone().unwrap())
        .stderr(terminal)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut controller = File::from(controller);
    controller.write_all(answer.as_bytes()).unwrap();
    let mut printed = String::new();
    child.stdout.take().unwrap().read_to_string(&mut printed).unwrap();
    let code = child.wait().unwrap().code();
    // No process has the terminal open any more: once everything is read, reading fails.
    let mut stderr = Vec::new();
    let ended = controller.read_to_end(&mut stderr);
    assert!(ended.is_ok() || !stderr.is_empty(), "{ended:?}");
    (printed, String::from_utf8_lossy(&stderr).into_owned(), code)
}

#[test]
fn moving_a_cursor_is_shown_and_asked_for() {
    let place = Place::sqlite();
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n"));
    let consume = ["consume", "orders", "--group", "mail", "--create", "--wait", "0s"];
    assert_eq!(place.out(&consume), "1\n2\n3\n");
    let seek = ["group", "seek", "orders", "mail", "--to", "offset:2", "--output", "json"];

    for no in ["n\n", "\n"] {
        let (printed, stderr, code) = answer(&place, &seek, no);
        assert_eq!(code, Some(1), "{stderr}");
        assert!(printed.contains("\"dry_run\":true") && printed.contains("\"replayed\":2"), "{printed}");
        assert!(
            stderr.contains("move group mail on topic orders?") && stderr.contains("nothing was changed"),
            "{stderr}"
        );
        assert_eq!(place.out(&consume), "");
    }
    let (printed, stderr, code) = answer(&place, &seek, "y\n");
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(printed.lines().count(), 2, "the dry run, and what was done: {printed}");
    assert_eq!(place.out(&consume), "2\n3\n");
}

#[test]
fn what_goes_with_a_group_is_shown_and_asked_for() {
    let place = Place::sqlite();
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n"));
    place.out(&["consume", "orders", "--group", "mail", "--create", "--max", "1"]);
    for (verb, asked) in [("cancel", "cancel group mail"), ("remove", "remove group mail")] {
        let act = ["group", verb, "orders", "mail", "--output", "json"];
        let (printed, stderr, code) = answer(&place, &act, "n\n");
        assert_eq!(code, Some(1), "{stderr}");
        assert!(printed.contains("\"dry_run\":true") && printed.contains("\"lag\":2"), "{printed}");
        assert!(stderr.contains(asked) && stderr.contains("nothing was changed"), "{stderr}");
        assert_eq!(place.one(&["group", "show", "orders", "mail"])["state"], "active");
    }
    let (printed, stderr, code) = answer(&place, &["group", "remove", "orders", "mail"], "y\n");
    assert_eq!((code, printed.contains("removed")), (Some(0), true), "{stderr}");
}

/// Work that takes longer than a second shows its count, and only on a terminal.
#[test]
fn long_work_shows_its_progress() {
    let place = Place::sqlite();
    let controller = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&controller).unwrap();
    unlockpt(&controller).unwrap();
    let path = ptsname(&controller, Vec::new()).unwrap();
    let terminal = File::options().read(true).write(true).open(path.to_str().unwrap()).unwrap();
    let mut child = place
        .command(&["publish", "orders"])
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(terminal)
        .spawn()
        .unwrap();
    // It publishes one line after the other until its count is shown.
    let (seen, shown) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let (mut controller, mut text, mut part) = (File::from(controller), Vec::new(), [0; 1024]);
        // Reading fails once no process has the terminal open.
        while let Ok(read) = controller.read(&mut part) {
            text.extend(&part[..read]);
            if String::from_utf8_lossy(&text).contains("/s") {
                let _ = seen.send(());
            }
        }
        String::from_utf8_lossy(&text).into_owned()
    });
    let mut stdin = child.stdin.take().unwrap();
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    while shown.try_recv().is_err() {
        assert!(std::time::Instant::now() < deadline, "no progress");
        stdin.write_all(b"x\n").unwrap();
    }
    drop(stdin);
    assert!(child.wait().unwrap().success());
    let text = reader.join().unwrap();
    assert!(text.contains("published ") && text.contains("/s"), "{text}");
    assert!(text.trim_end().ends_with("messages to orders"), "{text}");
}
