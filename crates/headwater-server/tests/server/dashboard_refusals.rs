//! Actions of the dashboard that must not happen: without the CSRF token of the session, or without the scope.

use headwater::SubscriptionState;
use headwater::tokens::Scope;
use reqwest::StatusCode;

use crate::dashboard::fill;
use crate::place::Place;
use crate::visitor::Visitor;

crate::on_both_stores!(
    forms_without_their_csrf_token_change_nothing,
    callers_without_the_scope_change_nothing,
);

const ORDERS: &str = "/topics/orders";
const EMAIL: &str = "/topics/orders/groups/email";

/// Every address that changes something.
fn forms(process: &str, dead_letter: &str, entry: i64) -> Vec<String> {
    let group = [
        "pause",
        "resume",
        "resurrect",
        "seek",
        "cancel",
        "remove",
        "policy",
        "release",
        "backfill-cancel",
        "backfill-resume",
    ];
    let mut forms: Vec<String> = group.iter().map(|act| format!("{EMAIL}/{act}")).collect();
    forms.extend(["groups", "publish", "settings", "purge", "delete"].map(|act| format!("{ORDERS}/{act}")));
    forms.extend(["skip", "bury", "retry"].map(|act| format!("{ORDERS}/messages/2/{act}")));
    forms.extend(["pause", "resume", "retry", "fail"].map(|act| format!("/processes/{process}/{act}")));
    forms.extend(["redrive", "purge", "edit"].map(|act| format!("/dead-letters/{dead_letter}/{act}")));
    forms.extend(
        ["/topics", "/dead-letters/act", "/maintenance/run", "/settings/tokens", "/logout"].map(String::from),
    );
    forms.extend([
        format!("/outbox/{entry}/requeue"),
        "/settings/tokens/x/rotate".into(),
        "/settings/tokens/x/revoke".into(),
    ]);
    forms.push(format!("{ORDERS}/scheduled/00000000-0000-7000-8000-000000000000/cancel"));
    forms
}

/// Fields that would do something, with any of the forms.
const FIELDS: [(&str, &str); 12] = [
    ("name", "made"),
    ("preset", "queue"),
    ("group", "email"),
    ("to", "now"),
    ("payload", "forged"),
    ("typed", "orders"),
    ("force", "yes"),
    ("job", "all"),
    ("scope", "admin"),
    ("act", "purge"),
    ("token", "1"),
    ("reason", "forged"),
];

async fn forms_without_their_csrf_token_change_nothing(place: &Place) {
    let filled = fill(place).await;
    let server = place.serve().await;
    let visitor = Visitor::new(&server);
    let before = place.audit().await.iter().filter(|entry| entry.act != "denied").count();
    for path in forms(&filled.process, &filled.dead_letter, filled.entry) {
        for csrf in [None, Some(""), Some("0000")] {
            let fields: Vec<_> = FIELDS.into_iter().chain(csrf.map(|csrf| ("csrf", csrf))).collect();
            let response = visitor.post_plain(&path, &fields).await;
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path}");
        }
        // A link changes nothing either: it asks, or is no page.
        visitor.get(&path).await;
    }
    let after = place.audit().await.iter().filter(|entry| !entry.act.starts_with("den")).count();
    assert_eq!(before, after, "nothing was changed");
    assert_eq!(
        place.headwater.groups("orders").get("email").await.expect("there").status.state,
        SubscriptionState::Active
    );
    server.end().await;
}

async fn callers_without_the_scope_change_nothing(place: &Place) {
    let filled = fill(place).await;
    let reader = place.token("reader", &[Scope::Read, Scope::Consume], &[]).await;
    let elsewhere = place.token("elsewhere", &[Scope::Admin, Scope::Publish, Scope::Read], &["news"]).await;
    let server = place.serve().await;
    for token in [reader, elsewhere] {
        let mut visitor = Visitor::new(&server);
        visitor.log_in(&token).await;
        let csrf = visitor.csrf("/settings").await;
        for path in
            forms(&filled.process, &filled.dead_letter, filled.entry).iter().filter(|path| *path != "/logout")
        {
            let fields: Vec<_> = FIELDS.into_iter().chain([("csrf", csrf.as_str())]).collect();
            let response = visitor.post_plain(path, &fields).await;
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{path}");
        }
    }
    let topics = place.headwater.topics().list().await.expect("listed");
    assert!(topics.iter().all(|status| status.topic.name.as_str() != "made"));
    assert_eq!(place.headwater.published("orders").await.expect("read").len(), 3);
    server.end().await;
}
