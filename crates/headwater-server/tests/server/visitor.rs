//! A browser without scripts: keeps cookies, follows links, sends the forms of pages.

use std::collections::BTreeMap;
use std::sync::Mutex;

use futures_util::StreamExt;
use reqwest::{Client, Method, Response, StatusCode, header};

use crate::place::{DEADLINE, Running, client};

/// Who visits the dashboard of a server.
pub(crate) struct Visitor {
    base: String,
    client: Client,
    cookies: Mutex<BTreeMap<String, String>>,
}

impl Visitor {
    pub(crate) fn new(server: &Running) -> Self {
        let client = client().redirect(reqwest::redirect::Policy::none()).build().expect("a client");
        Visitor { base: server.base.clone(), client, cookies: Mutex::default() }
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        let cookies = self.cookies.lock().expect("no panic while held");
        let pairs: Vec<_> = cookies.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let mut request =
            self.client.request(method, format!("{}{path}", self.base)).header(header::ACCEPT, "text/html");
        if !pairs.is_empty() {
            request = request.header(header::COOKIE, pairs.join("; "));
        }
        request
    }

    async fn send(&self, request: reqwest::RequestBuilder) -> Response {
        let response = request.send().await.expect("an answer");
        let mut cookies = self.cookies.lock().expect("no panic while held");
        for cookie in response.headers().get_all(header::SET_COOKIE) {
            let text = cookie.to_str().expect("a cookie");
            let (pair, _) = text.split_once(';').expect("attributes");
            let (name, value) = pair.split_once('=').expect("a value");
            match text.contains("Max-Age=0") {
                true => cookies.remove(name),
                false => cookies.insert(name.to_owned(), value.to_owned()),
            };
        }
        drop(cookies);
        response
    }

    /// An answer as it is: redirects are not followed.
    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send(self.request(Method::GET, path)).await
    }

    /// A page that must be there.
    pub(crate) async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        let status = response.status();
        let text = response.text().await.expect("a page");
        assert_eq!(status, StatusCode::OK, "{path}:\n{text}");
        text
    }

    /// A form without anything that was not given.
    pub(crate) async fn post_plain(&self, path: &str, fields: &[(&str, &str)]) -> Response {
        let body = form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        let request = self
            .request(Method::POST, path)
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
        self.send(request.body(body)).await
    }

    /// A form of a page, with the CSRF token that is on it.
    pub(crate) async fn post(&self, path: &str, page: &str, fields: &[(&str, &str)]) -> Response {
        let csrf = self.csrf(page).await;
        let fields: Vec<_> = fields.iter().copied().chain([("csrf", csrf.as_str())]).collect();
        self.post_plain(path, &fields).await
    }

    pub(crate) async fn csrf(&self, page: &str) -> String {
        let page = self.page(page).await;
        let (_, rest) = page.split_once("name=\"csrf\" value=\"").expect("a form");
        rest.split('"').next().expect("its end").to_owned()
    }

    /// Sends the form of a page to an address and follows it: what the next page says about it, and whether that is good.
    pub(crate) async fn act(&self, page: &str, path: &str, fields: &[(&str, &str)]) -> (bool, String) {
        let response = self.post(path, page, fields).await;
        let status = response.status();
        let location =
            response.headers().get(header::LOCATION).map(|value| value.to_str().expect("text").to_owned());
        let text = response.text().await.expect("a body");
        assert_eq!(status, StatusCode::SEE_OTHER, "{path}:\n{text}");
        let next = self.page(&location.expect("a location")).await;
        let (_, flash) =
            next.split_once("<div class=\"flash ").unwrap_or_else(|| panic!("{path} says nothing:\n{next}"));
        let (_, said) = flash.split_once("<span>").expect("a text");
        (flash.starts_with("is-good"), said.split("</span>").next().expect("its end").to_owned())
    }

    /// The same for an action that must succeed with these words.
    pub(crate) async fn does(&self, page: &str, path: &str, fields: &[(&str, &str)], words: &str) {
        let (is_good, said) = self.act(page, path, fields).await;
        assert!(is_good && said.contains(words), "{path}: {said}");
    }

    /// The same for an action that the store must refuse with these words.
    pub(crate) async fn is_refused(&self, page: &str, path: &str, fields: &[(&str, &str)], words: &str) {
        let (is_good, said) = self.act(page, path, fields).await;
        assert!(!is_good && said.contains(words), "{path}: {said}");
    }

    pub(crate) async fn log_in(&mut self, token: &str) {
        let response = self.post_plain("/login", &[("token", token)]).await;
        assert_eq!(response.status(), StatusCode::SEE_OTHER);
    }

    /// Where the link with this text leads, on a list.
    pub(crate) async fn link(&self, page: &str, text: &str) -> String {
        let html = self.page(page).await;
        let escaped =
            text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;");
        let found = html.split("<a href=\"").skip(1).find_map(|rest| {
            let (address, rest) = rest.split_once("\">")?;
            (rest.split("</a>").next()? == escaped).then(|| address.replace("&amp;", "&"))
        });
        found.unwrap_or_else(|| panic!("{page} has no link {text:?}:\n{html}"))
    }

    /// The stream of live updates of a page.
    pub(crate) async fn live(&self, page: &str) -> Live {
        let page: String = form_urlencoded::byte_serialize(page.as_bytes()).collect();
        let response = self.get(&format!("/live?page={page}")).await;
        assert_eq!(response.status(), StatusCode::OK);
        Live { stream: Box::pin(response.bytes_stream()), read: String::new() }
    }
}

type Bytes = Result<bytes::Bytes, reqwest::Error>;

/// Server-sent events.
pub(crate) struct Live {
    stream: std::pin::Pin<Box<dyn futures_util::Stream<Item = Bytes> + Send>>,
    read: String,
}

impl Live {
    /// The next event that is no comment.
    pub(crate) async fn event(&mut self) -> String {
        loop {
            if let Some((event, rest)) = self.read.split_once("\n\n") {
                let (event, rest) = (event.to_owned(), rest.to_owned());
                self.read = rest;
                if !event.starts_with(':') {
                    return event;
                }
                continue;
            }
            let more = tokio::time::timeout(DEADLINE, self.stream.next()).await.expect("an event in time");
            let more = more.expect("the stream continues").expect("bytes");
            self.read.push_str(std::str::from_utf8(&more).expect("text"));
        }
    }
}
