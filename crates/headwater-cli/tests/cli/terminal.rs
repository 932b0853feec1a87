//! The command with a person in front of it: what cannot be taken back is shown first and asked for.

use std::fs::File;

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};

use super::*;

/// Runs the command on a terminal of its own and answers what it asks; what it printed as data, and how it ended.
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
    // Everything is there already, and nobody writes to it any more: one read has it.
    let mut said = vec![0; 16 * 1024];
    let length = controller.read(&mut said).unwrap();
    (printed, String::from_utf8_lossy(&said[..length]).into_owned(), code)
}

#[test]
fn moving_a_cursor_is_shown_and_asked_for() {
    let place = Place::sqlite();
    place.out(&["topic", "create", "orders", "--pub-sub"]);
    text(place.with_input(&["publish", "orders"], "1\n2\n3\n"));
    let consume = ["consume", "orders", "--group", "mail", "--wait", "0s"];
    assert_eq!(place.out(&consume), "1\n2\n3\n");
    let seek = ["group", "seek", "orders", "mail", "--to", "offset:2", "--output", "json"];

    for no in ["n\n", "\n"] {
        let (printed, said, code) = answer(&place, &seek, no);
        assert_eq!(code, Some(1), "{said}");
        assert!(printed.contains("\"dry_run\":true") && printed.contains("\"replayed\":2"), "{printed}");
        assert!(
            said.contains("move group mail on topic orders?") && said.contains("nothing was changed"),
            "{said}"
        );
        assert_eq!(place.out(&consume), "");
    }
    let (printed, said, code) = answer(&place, &seek, "y\n");
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(printed.lines().count(), 2, "what would be, and what was done: {printed}");
    assert_eq!(place.out(&consume), "2\n3\n");
}
