//! Style sheets and scripts: compiled in, and served under a hash of their content, so that browsers keep them until they change.

use std::sync::LazyLock;

use axum::extract::Path;
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use crate::problem::Problem;

const CSS: &str = "text/css; charset=utf-8";
const JS: &str = "text/javascript; charset=utf-8";

/// All of them: name, type, content.
const ALL: [(&str, &str, &str); 12] = [
    ("tokens.css", CSS, include_str!("../../assets/tokens.css")),
    ("base.css", CSS, include_str!("../../assets/base.css")),
    ("shell.css", CSS, include_str!("../../assets/shell.css")),
    ("components.css", CSS, include_str!("../../assets/components.css")),
    ("pages.css", CSS, include_str!("../../assets/pages.css")),
    ("theme.js", JS, include_str!("../../assets/theme.js")),
    ("app.js", JS, include_str!("../../assets/app.js")),
    ("chart.js", JS, include_str!("../../assets/chart.js")),
    ("dialog.js", JS, include_str!("../../assets/dialog.js")),
    ("keys.js", JS, include_str!("../../assets/keys.js")),
    ("live.js", JS, include_str!("../../assets/live.js")),
    ("morph.js", JS, include_str!("../../assets/morph.js")),
];

/// Of all of them together: scripts import each other by name, beside them.
static HASH: LazyLock<String> = LazyLock::new(|| {
    let mut hash = Sha256::new();
    for (name, _, content) in ALL {
        hash.update(name);
        hash.update([0]);
        hash.update(content);
    }
    hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect()
});

/// The address of an asset.
pub(crate) fn url(name: &str) -> String {
    format!("/assets/{}/{name}", *HASH)
}

/// The style sheets of every page, in order.
pub(crate) fn style_sheets() -> impl Iterator<Item = String> {
    ALL.iter().filter(|(_, kind, _)| *kind == CSS).map(|(name, ..)| url(name))
}

/// `GET /assets/{hash}/{name}`
pub(crate) async fn serve(Path((hash, name)): Path<(String, String)>) -> Result<Response, Problem> {
    let Some((_, kind, content)) = ALL.iter().find(|(known, ..)| *known == name) else {
        return Err(Problem::not_found(format!("no asset {name:?}")));
    };
    // A page of an older version asks for an older hash: it gets what there is, and keeps it for no time.
    let keep = if hash == *HASH { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(keep)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    Ok((headers, *content).into_response())
}

/// `GET /favicon.svg`
pub(crate) async fn icon() -> Response {
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("image/svg+xml")),
        (header::CACHE_CONTROL, HeaderValue::from_static("public, max-age=86400")),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    ];
    (headers, include_str!("../../assets/icon.svg")).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The contrast of two colours, by WCAG 2.
    fn contrast(a: &str, b: &str) -> f64 {
        let luminance = |colour: &str| {
            let channel = |at: usize| {
                let value = f64::from(u8::from_str_radix(&colour[at..at + 2], 16).unwrap()) / 255.0;
                if value <= 0.04045 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
            };
            0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5)
        };
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// The light and the dark value of a colour.
    fn colour(name: &str) -> [&'static str; 2] {
        let start = format!("--{name}: light-dark(");
        let (_, rest) = ALL[0].2.split_once(&start).unwrap_or_else(|| panic!("no colour {name}"));
        let (values, _) = rest.split_once(')').unwrap();
        let (light, dark) = values.split_once(", ").unwrap();
        [light, dark]
    }

    fn check(text: &str, ground: &str, least: f64) {
        for (theme, (a, b)) in ["light", "dark"].iter().zip(colour(text).iter().zip(colour(ground))) {
            let contrast = contrast(a, b);
            assert!(contrast >= least, "{text} on {ground}, {theme}: {contrast:.2} is below {least}");
        }
    }

    #[test]
    fn text_has_enough_contrast_in_both_themes() {
        for text in ["ink", "ink-soft", "ink-faint", "accent", "accent-strong", "good", "warn", "bad"] {
            for ground in ["ground", "surface", "raised", "sunken", "hover", "side"] {
                check(text, ground, 4.5);
            }
        }
        for state in ["accent", "good", "warn", "bad", "calm"] {
            check(state, &format!("{state}-wash"), 4.5);
            check("ink", &format!("{state}-wash"), 4.5);
            check("ink-soft", &format!("{state}-wash"), 4.5);
        }
        check("accent-strong", "accent-wash", 4.5);
        check("on-accent", "accent", 4.5);
        check("on-accent", "accent-strong", 4.5);
        check("on-bad", "bad-fill", 4.5);
        check("on-production", "production", 4.5);
        check("production-ink", "production-wash", 4.5);
    }

    #[test]
    fn borders_of_inputs_lines_of_charts_and_focus_are_seen() {
        for line in ["line-input", "series-1", "series-2", "series-3", "focus"] {
            check(line, "surface", 3.0);
            check(line, "raised", 3.0);
        }
    }

    #[test]
    fn assets_ask_for_nothing_from_elsewhere() {
        for (name, _, content) in ALL {
            for elsewhere in
                ["http://", "https://", "@import", "url(", "eval(", "document.write", "outerHTML"]
            {
                assert!(!content.contains(elsewhere), "{name} contains {elsewhere}");
            }
            assert!(content.lines().count() <= 500, "{name} is too long");
        }
        let parsed: Vec<_> = ALL.iter().filter(|(.., content)| content.contains("innerHTML")).collect();
        assert_eq!(
            parsed.len(),
            1,
            "only live.js turns text into elements, and only that of this server's pages"
        );
    }

    #[test]
    fn scripts_import_what_exists() {
        for (name, _, content) in ALL {
            for line in content.lines().filter(|line| line.starts_with("import ")) {
                let from = line.rsplit('\'').nth(1).unwrap().trim_start_matches("./");
                assert!(ALL.iter().any(|(known, ..)| *known == from), "{name} imports {from}");
            }
        }
    }
}
