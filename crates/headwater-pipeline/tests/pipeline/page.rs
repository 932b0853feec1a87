//! The page's script where it only computes, run by Node.

use std::process::Command;

const API: &str = include_str!("../../src/query/page/api.js");
const WORLD: &str = include_str!("../../src/query/page/world.js");

/// As much of a browser as the scripts need: a canvas that has a size and draws nothing.
const BROWSER: &str = r"
globalThis.location = { pathname: '/' };
globalThis.devicePixelRatio = 1;
globalThis.ResizeObserver = class { observe() {} };
globalThis.matchMedia = () => ({ matches: false, addEventListener() {} });
globalThis.getComputedStyle = () => ({ getPropertyValue: () => '#000' });
const nothing = new Proxy(() => nothing, { get: (_, key) => (key === Symbol.toPrimitive ? () => 0 : nothing), set: () => true });
const canvas = () => ({ width: 300, height: 150, clientWidth: 800, clientHeight: 600, addEventListener() {}, getContext: () => nothing });
globalThis.document = { createElement: canvas, documentElement: {} };
";

/// What an expression is, with the scripts loaded; `None` where Node is not installed, and a failure where nothing may be skipped.
fn evaluate(expression: &str) -> Option<String> {
    let script = format!("{BROWSER}\n{API}\n{WORLD}\nconsole.log(JSON.stringify({expression}));");
    let output = match Command::new("node").args(["-e", &script]).output() {
        Ok(output) => output,
        Err(error) => {
            let required = ["HEADWATER_TEST_REQUIRE_ALL", "CI"];
            assert!(!required.iter().any(|name| std::env::var_os(name).is_some()), "node: {error}");
            println!("skipped: node: {error}");
            return None;
        }
    };
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[test]
fn types_are_shown_by_name() {
    let metadata = r#"{ molecule_types: { "1": "code", "3": "food" } }"#;
    let names = format!(
        "[typeName({metadata}, 3), typeLabel({metadata}, 1), typeName({metadata}, 9), typeLabel(null, 9), typeLabel({{}}, 2)]"
    );
    if let Some(found) = evaluate(&names) {
        assert_eq!(found, r#"["food","code (1)","9","9","2"]"#);
    }
}

#[test]
fn world_is_shown_whole_in_a_window_of_another_size_until_it_is_zoomed() {
    let scales = r"(() => {
        const shown = canvas(), scales = [];
        const view = new WorldView(shown, { hover() {}, click() {}, uncovered() {} });
        view.shape([100, 100]);
        const resize = (width, height) => {
            Object.assign(shown, { clientWidth: width, clientHeight: height });
            view.resize();
            scales.push(Number(view.view.scale.toFixed(2)));
        };
        resize(800, 600);
        resize(400, 900);
        view.zoom(2);
        resize(1000, 1000);
        view.fit();
        resize(500, 500);
        return scales;
    })()";
    if let Some(found) = evaluate(scales) {
        assert_eq!(found, "[5.76,3.84,7.68,4.8]");
    }
}
