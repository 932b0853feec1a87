//! `/topics/{topic}/publish`: a message written by hand.

use axum::extract::{Path, State};
use axum::response::Response;
use headwater::NewMessage;
use maud::html;
use serde::Deserialize;

use super::{Tab, find, head};
use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::dashboard::act::{Leads, change};
use crate::dashboard::components::{field, text_field};
use crate::dashboard::format;
use crate::dashboard::icons::Icon;
use crate::dashboard::input::{self, given};
use crate::dashboard::layout::Section;
use crate::dashboard::url::{self, Name};
use crate::dashboard::view::{Failure, View};
use crate::problem::Problem;

/// `GET /topics/{topic}/publish`
pub(crate) async fn page(Path(Name(name)): Path<Name>, view: View) -> Result<Response, Failure> {
    let status = &find(&view, &name).await?;
    let settings = &status.topic.settings;
    let limit =
        format!("Up to {}. JSON is sent as it is written.", format::bytes(settings.payload_bytes_max as u64));
    let may = view.visitor.caller.can(Scope::Publish, Some(&name));
    let content = html! {
        (head(&view, status, Tab::Publish))
        @if may {
            section.card {
                div.card-head { h2 { "Publish a message" } }
                form.form.card-body method="post" action={ (url::topic(&name)) "/publish" } {
                    (view.csrf())
                    (field("payload", "Payload", &limit, html! {
                        textarea id="payload" name="payload" rows="8" spellcheck="false" placeholder="{\"order\": 17}" aria-describedby="payload-hint" {}
                    }))
                    div.fields {
                        (text_field("key", "Key", "Orders and routes messages", ""))
                        (text_field("type", "Type", "", ""))
                        (text_field("content_type", "Content type", "application/json if it is JSON", ""))
                        (text_field("delay", "Delay", "Delivered later: 30s, 5m, 2h, 1d", ""))
                        (text_field("expires", "Expires in", "Skipped if no handler gets it in time", ""))
                        (text_field("dedup_key", "Dedup key", &format!("A repeat within {} is not stored", format::duration(settings.dedup_window)), ""))
                    }
                    (field("headers", "Headers", "One a line, as name: value", html! {
                        textarea id="headers" name="headers" rows="3" spellcheck="false" aria-describedby="headers-hint" {}
                    }))
                    div.form-acts { button.btn.is-primary { (Icon::Publish) "Publish" } }
                }
            }
        } @else {
            div.callout.is-warn { strong { "You may not publish here" } "Your token does not have the scope “publish” for this topic." }
        }
    };
    Ok(view.page(Section::Topics, &format!("Publish to {name}"), content).await)
}

/// A message.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Written {
    payload: String,
    key: String,
    #[serde(rename = "type")]
    message_type: String,
    content_type: String,
    delay: String,
    expires: String,
    dedup_key: String,
    headers: String,
}

impl Written {
    fn message(&self) -> Result<NewMessage, Failure> {
        // Forms send line breaks as two characters.
        let payload = self.payload.replace("\r\n", "\n");
        let is_json = serde_json::from_str::<serde::de::IgnoredAny>(&payload).is_ok();
        let mut message = NewMessage::new(payload);
        let text = |text: &str| given(Some(text)).map(str::to_owned);
        message.key = text(&self.key);
        message.message_type = text(&self.message_type);
        message.content_type =
            text(&self.content_type).or_else(|| is_json.then(|| "application/json".into()));
        message.dedup_key = text(&self.dedup_key);
        message.delay = given(Some(&self.delay)).map(|text| input::duration("delay", text)).transpose()?;
        if let Some(within) = given(Some(&self.expires)) {
            message = message.expires_in(input::duration("expires", within)?);
        }
        for line in self.headers.lines().filter(|line| !line.trim().is_empty()) {
            let wrong = || Problem::invalid("headers", format!("{line:?} is not name: value"));
            let (name, value) = line.split_once(':').ok_or_else(wrong)?;
            message = message.header(name.trim(), value.trim());
        }
        Ok(message)
    }
}

/// `POST /topics/{topic}/publish`
pub(crate) async fn publish(
    State(app): State<App>,
    Path(Name(name)): Path<Name>,
    Submitted { visitor, form }: Submitted<Written>,
) -> Response {
    let leads = Leads { done: &url::topic(&name), refused: &format!("{}/publish", url::topic(&name)) };
    let publishes = async {
        let message = form.message()?;
        // A typing error in an address must not create a topic.
        app.acting(&visitor.caller).topics().get(&name).await?;
        let published = app.acting(&visitor.caller).producer(&name).send(message).await?;
        Ok(match (published.offset, published.duplicate) {
            (Some(offset), false) => {
                format!("Published at offset {}.", format::count(offset.0.unsigned_abs()))
            }
            (Some(offset), true) => {
                format!("Not stored: offset {} has this dedup key.", format::count(offset.0.unsigned_abs()))
            }
            (None, false) => "Scheduled.".to_owned(),
            (None, true) => "Not stored: a scheduled message has this dedup key.".to_owned(),
        })
    };
    change(&app, &visitor, (Scope::Publish, Some(&name)), leads, publishes).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_message_has_what_was_filled_in_and_nothing_else() {
        let written = Written {
            payload: "{\"a\":\r\n1}".into(),
            key: " o-1 ".into(),
            headers: "trace: x:y\n\nregion: eu".into(),
            delay: "5m".into(),
            ..Written::default()
        };
        let message = written.message().unwrap();
        assert_eq!((&message.payload[..], message.key.as_deref()), (&b"{\"a\":\n1}"[..], Some("o-1")));
        assert_eq!(message.content_type.as_deref(), Some("application/json"));
        assert_eq!((message.headers["trace"].as_str(), message.headers.len()), ("x:y", 2));
        assert_eq!((message.dedup_key, message.delay.unwrap().as_secs()), (None, 300));
        let wrong = Written { headers: "no colon".into(), ..Written::default() };
        assert!(wrong.message().unwrap_err().detail().contains("name: value"));
    }
}
