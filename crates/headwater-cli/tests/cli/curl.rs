//! The README's lines with curl, as a person runs them, against a server of their own.

use super::serve::Serving;
use super::*;

/// The block of the README that uses curl.
fn block() -> String {
    let readme = include_str!("../../../../README.md");
    let blocks = readme.split("```sh\n").skip(1).filter_map(|rest| Some(rest.split_once("```")?.0));
    blocks.into_iter().find(|block| block.contains("curl ")).expect("the README uses curl").to_owned()
}

/// Whether there is curl; a failure where nothing may be skipped.
fn has_curl() -> bool {
    if Command::new("curl").arg("--version").output().is_ok_and(|output| output.status.success()) {
        return true;
    }
    assert!(std::env::var_os("HEADWATER_TEST_REQUIRE_ALL").is_none(), "curl is missing");
    println!("skipped: curl is missing");
    false
}

/// What a person does with curl, each line with its answer. Whatever is refused fails.
fn lines_of_the_readme(place: &Place) {
    if !has_curl() {
        return;
    }
    let serving = Serving::of(place, &[]);
    let script =
        block().replace("127.0.0.1:7411", &serving.address).replace("-sS", "-sS --fail-with-body -w '\\n'");
    let script =
        script.replace("claimed=$(curl -sS --fail-with-body -w '\\n'", "claimed=$(curl -sS --fail-with-body");
    let shell = Command::new("bash").args(["-eu", "-o", "pipefail", "-c", &script]).output().unwrap();
    let printed = String::from_utf8_lossy(&shell.stdout).into_owned();
    assert!(shell.status.success(), "{printed}{}", String::from_utf8_lossy(&shell.stderr));
    let answers: Vec<Value> = printed
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let find = |field: &str| {
        answers
            .iter()
            .find(|answer| answer.get(field).is_some())
            .unwrap_or_else(|| panic!("no {field}: {printed}"))
    };
    assert_eq!(find("offset")["offset"], 1, "published");
    let results: Vec<&Value> = answers.iter().filter_map(|answer| answer.get("results")?.get(0)).collect();
    let results: Vec<&Value> = results.iter().map(|result| &result["result"]).collect();
    assert_eq!(json!(results), json!(["extended", "settled"]));
    let browsed = &find("items")["items"][0];
    assert_eq!(json!([browsed["key"], browsed["payload"]["order"]]), json!(["o-1", 1]));
    assert_eq!(find("redriven")["redriven"], 1);
    // Redriven: its group gets it again.
    assert_eq!(place.out(&["consume", "orders", "--group", "email", "--max", "1"]), "{\"order\":1}\n");
    let states: Vec<&Value> = answers.iter().filter_map(|answer| answer.get("state")).collect();
    assert!(states.contains(&&json!("paused")), "{printed}");
    assert_eq!(serving.stop().0, Some(0));
}

#[test]
fn lines_of_the_readme_with_curl_on_sqlite() {
    lines_of_the_readme(&Place::sqlite());
}

#[test]
fn lines_of_the_readme_with_curl_on_postgres() {
    if let Some(place) = Place::postgres("curl") {
        lines_of_the_readme(&place);
    }
}
