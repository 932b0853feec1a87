//! What an action did, shown once on the page it leads to: kept in a cookie until then, so that it works without scripts.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};

use super::format::cut;
use super::url;
use super::view::Failure;

const COOKIE: &str = "headwater_flash";
/// The longest message: cookies are small.
const CHARACTERS_MAX: usize = 400;

/// A message about what was done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flash {
    pub(crate) is_good: bool,
    pub(crate) text: String,
}

/// The message of a request, if it has one.
pub(crate) fn take(headers: &HeaderMap) -> Option<Flash> {
    let cookies = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut values =
        cookies.flat_map(|cookies| cookies.split(';')).filter_map(|one| one.trim().split_once('='));
    let (_, value) = values.find(|(name, _)| *name == COOKIE)?;
    let is_good = match value.get(..1)? {
        "+" => true,
        "-" => false,
        _ => return None,
    };
    let text = decoded(value.get(1..)?)?;
    (!text.is_empty()).then(|| Flash { is_good, text: cut(&text, CHARACTERS_MAX) })
}

fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || char::from(rest.next()?).to_digit(16);
                u8::try_from(digit()? * 16 + digit()?).ok()?
            }
            byte => byte,
        };
        bytes.push(byte);
    }
    String::from_utf8(bytes).ok()
}

/// Forgets the message: the value of `Set-Cookie`.
pub(crate) fn forget() -> HeaderValue {
    HeaderValue::from_static("headwater_flash=; Path=/; Max-Age=0; HttpOnly; SameSite=Strict")
}

/// The answer to an action: leads to a page, which shows the message.
fn leading_to(page: &str, sign: char, text: &str) -> Response {
    let text = url::encoded(&cut(text, CHARACTERS_MAX));
    let cookie = format!("{COOKIE}={sign}{text}; Path=/; Max-Age=30; HttpOnly; SameSite=Strict");
    let mut response = StatusCode::SEE_OTHER.into_response();
    let headers = response.headers_mut();
    headers.insert(header::LOCATION, HeaderValue::from_str(page).unwrap_or(HeaderValue::from_static("/")));
    if let Ok(cookie) = HeaderValue::from_str(&cookie) {
        headers.append(header::SET_COOKIE, cookie);
    }
    response
}

/// An action was done.
pub(crate) fn done(page: &str, text: &str) -> Response {
    leading_to(page, '+', text)
}

/// An action was refused by the store: nothing was changed, and the page says why.
pub(crate) fn refused(page: &str, why: &Failure) -> Response {
    leading_to(page, '-', why.detail())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(text: &str) -> Option<Flash> {
        let response = done("/topics", text);
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
        assert_eq!(response.headers()[header::LOCATION], "/topics");
        let cookie =
            response.headers()[header::SET_COOKIE].to_str().unwrap().split(';').next().unwrap().to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::from_str(&format!("a=b; {cookie}")).unwrap());
        take(&headers)
    }

    #[test]
    fn a_message_survives_the_redirect_whatever_is_in_it() {
        for text in ["paused email", "größe; Path=/; x=\"<b>\"\r\n", "100 %"] {
            assert_eq!(through(text), Some(Flash { is_good: true, text: text.into() }));
        }
        assert_eq!(through(&"x".repeat(1_000)).unwrap().text.chars().count(), CHARACTERS_MAX + 1);
    }

    #[test]
    fn a_cookie_from_elsewhere_is_ignored() {
        for cookie in [
            "headwater_flash=",
            "headwater_flash=?x",
            "headwater_flash=+%zz",
            "headwater_flash=+%ff",
            "other=+x",
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::COOKIE, HeaderValue::from_static(cookie));
            assert_eq!(take(&headers), None, "{cookie}");
        }
    }
}
