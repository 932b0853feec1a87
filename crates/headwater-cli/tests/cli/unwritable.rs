//! A store that cannot be written can still be inspected.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use super::*;

/// A user that file permissions apply to; they do not apply to root.
const OTHER_USER: u32 = 65_534;

fn as_nobody(place: &Place, args: &[&str]) -> Output {
    let mut command = place.command(args);
    if rustix::process::getuid().is_root() {
        command.uid(OTHER_USER).gid(OTHER_USER);
    }
    command.stdin(Stdio::null()).output().unwrap()
}

fn permit(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Whether another user may run the command at all: it may lack the right to enter its folders.
fn can_run(place: &Place) -> bool {
    let mut command = place.command(&["--version"]);
    if rustix::process::getuid().is_root() {
        command.uid(OTHER_USER).gid(OTHER_USER);
    }
    command.output().is_ok_and(|output| output.status.success())
}

#[test]
fn a_store_in_a_folder_that_cannot_be_written_is_listed_and_checked() {
    let place = Place::sqlite();
    permit(place.folder.path(), 0o755);
    if !can_run(&place) {
        println!("skipped: another user may not run the command here");
        return;
    }
    place.out(&["topic", "create", "orders"]);
    text(place.with_input(&["publish", "orders"], "one\ntwo\n"));
    let file = place.folder.path().join("headwater.db");
    for (folder_mode, file_mode) in [(0o555, 0o644), (0o555, 0o444), (0o777, 0o444)] {
        permit(&file, file_mode);
        permit(place.folder.path(), folder_mode);
        let listed = text(as_nobody(&place, &["topic", "list", "--output", "json"]));
        assert!(
            listed.contains("\"orders\"") && listed.contains("2"),
            "{folder_mode:o} {file_mode:o}: {listed}"
        );
        text(as_nobody(&place, &["group", "list", "orders"]));
        text(as_nobody(&place, &["doctor"]));
        let refused = refusal(&as_nobody(&place, &["publish", "orders", "three"]), 1);
        assert!(refused.contains("cannot be written"), "{folder_mode:o} {file_mode:o}: {refused}");
        let refused = refusal(&as_nobody(&place, &["group", "subscribe", "orders", "late"]), 1);
        assert!(refused.contains("read-only"), "{folder_mode:o} {file_mode:o}: {refused}");
        permit(place.folder.path(), 0o755);
        permit(&file, 0o644);
        for suffix in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(place.folder.path().join(format!("headwater.db{suffix}")));
        }
    }
    assert_eq!(place.one(&["topic", "show", "orders"])["head"], 2, "nothing was written");
}

/// The content of the write-ahead log would be missing in every answer.
#[test]
fn a_store_whose_log_cannot_be_read_is_refused_with_what_to_do() {
    let place = Place::sqlite();
    permit(place.folder.path(), 0o755);
    if !can_run(&place) {
        println!("skipped: another user may not run the command here");
        return;
    }
    place.out(&["topic", "create", "orders"]);
    std::fs::write(place.folder.path().join("headwater.db-wal"), [0; 4096]).unwrap();
    permit(place.folder.path(), 0o555);
    let refused = refusal(&as_nobody(&place, &["topic", "list"]), 1);
    permit(place.folder.path(), 0o755);
    assert!(refused.contains("copy the file and its `-wal`"), "{refused}");
}

/// There is no file to read instead: the refusal of the server is the whole answer.
#[test]
fn a_server_that_refuses_is_not_tried_read_only() {
    let Some(mut place) = Place::postgres("refused") else { return };
    let (url, _) = place.store.as_mut().unwrap();
    let at = url.find("://").unwrap() + 3;
    let host = url[at..].find('@').map_or(at, |user| at + user + 1);
    url.replace_range(at..host, "headwater_nobody@");
    let refused = refusal(&place.command(&["topic", "list"]).output().unwrap(), 1);
    assert!(refused.contains("headwater_nobody") && !refused.contains("read-only"), "{refused}");
}
