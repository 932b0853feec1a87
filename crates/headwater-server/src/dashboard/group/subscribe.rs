//! `/topics/{topic}/subscribe`: a group before its first process.

use axum::extract::{Path, State};
use axum::response::Response;
use maud::html;
use serde::Deserialize;

use crate::app::App;
use crate::auth::Scope;
use crate::auth::session::Submitted;
use crate::dashboard::act::{Leads, change};
use crate::dashboard::components::{Confirm, Head, select, text_field};
use crate::dashboard::input;
use crate::dashboard::layout::Section;
use crate::dashboard::url::{self, Name};
use crate::dashboard::view::{Failure, View};

/// `GET /topics/{topic}/subscribe`
pub(crate) async fn ask(Path(Name(topic)): Path<Name>, view: View) -> Result<Response, Failure> {
    view.visitor.caller.may(Scope::Admin, Some(&topic))?;
    view.app.headwater.topics().get(&topic).await?;
    let back = format!("{}/groups", url::topic(&topic));
    let positions = [
        ("beginning", "At the oldest message stored"),
        ("now", "With what is published from now on"),
        ("offset", "At an offset"),
        ("time", "At a time"),
        ("back", "So many messages back"),
    ];
    let confirm = Confirm {
        title: "Subscribe a group",
        text: html! { p { "The group gets messages from its start on, as soon as a process serves it. Retention waits for it." } },
        fields: html! {
            (text_field("group", "Name of the group", "", ""))
            div.fields { (select("to", "Starts", &positions, "")) (text_field("value", "Offset, time or number", "", "")) }
        },
        act: "Subscribe",
        is_dangerous: false,
        dry_run: None,
        action: back.clone(),
        back,
    };
    let crumbs = [("Topics", "/topics".to_owned()), (topic.as_str(), url::topic(&topic))];
    let content = html! { (Head::new("Subscribe a group").under(&crumbs)) (confirm.render(&view)) };
    Ok(view.page(Section::Topics, "Subscribe a group", content).await)
}

/// A new group.
#[derive(Debug, Deserialize)]
pub(crate) struct NewGroup {
    group: String,
    to: String,
    #[serde(default)]
    value: String,
}

/// `POST /topics/{topic}/groups`
pub(crate) async fn subscribe(
    State(app): State<App>,
    Path(Name(topic)): Path<Name>,
    Submitted { visitor, form }: Submitted<NewGroup>,
) -> Response {
    let group = form.group.trim();
    let leads =
        Leads { done: &url::group(&topic, group), refused: &format!("{}/groups", url::topic(&topic)) };
    let subscribes = async {
        let start = input::position(&form.to, Some(&form.value))?;
        let is_new = app.acting(&visitor.caller).groups(&topic).subscribe(group, start).await?;
        Ok(if is_new {
            format!("Group {group} is subscribed.")
        } else {
            format!("Group {group} existed: it keeps its position.")
        })
    };
    change(&app, &visitor, (Scope::Admin, Some(&topic)), leads, subscribes).await
}
