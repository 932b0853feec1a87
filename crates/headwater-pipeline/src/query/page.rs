//! The page: one document with its style and its script, which requests nothing from elsewhere.

use axum::http::{HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};

use super::problem::Answer;

const HTML: &str = include_str!("page/page.html");
const CSS: &str = include_str!("page/page.css");
const JS: &str =
    concat!(include_str!("page/api.js"), include_str!("page/world.js"), include_str!("page/page.js"));

/// `/` and `/world`
///
/// Style and script run by a number that is new each time: text that got into the page by mistake would not run.
pub(super) async fn page() -> Answer<Response> {
    let nonce = format!("{:032x}", rand::random::<u128>());
    let policy = format!(
        "default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; connect-src 'self'; \
         img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
    );
    let headers: [(HeaderName, HeaderValue); 4] = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
        (
            header::CONTENT_SECURITY_POLICY,
            HeaderValue::from_str(&policy).expect("hexadecimal digits and fixed text"),
        ),
    ];
    Ok((headers, document(&nonce)).into_response())
}

fn document(nonce: &str) -> String {
    HTML.replace("{{nonce}}", nonce).replace("{{css}}", CSS).replace("{{js}}", JS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_one_document() {
        let document = document("abc");
        assert!(document.contains("<style nonce=\"abc\">") && document.contains("<script nonce=\"abc\">"));
        assert!(!document.contains("{{"), "every part is filled in");
        for elsewhere in ["src=", "href=\"http", "@import", "url("] {
            assert!(!document.contains(elsewhere), "{elsewhere}");
        }
    }

    #[test]
    fn names_and_payloads_are_text() {
        for html in ["innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("] {
            assert!(!JS.contains(html), "{html} would take text for HTML");
        }
    }
}
