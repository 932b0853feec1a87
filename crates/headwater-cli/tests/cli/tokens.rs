//! `headwater token`: created, used, rotated and revoked, with a server that is not restarted.

use super::serve::Serving;
use super::*;

/// How soon servers notice a change: they may remember a token for a few seconds.
const NOTICED_WITHIN: Duration = Duration::from_secs(30);

/// The answer to a request with a secret.
fn status(serving: &Serving, secret: &str) -> u16 {
    let header = format!("authorization: Bearer {secret}");
    serving.ask("GET", "/v1/topics", &[&header], None).0
}

/// Asks until the answer is this.
fn until(serving: &Serving, secret: &str, wanted: u16) {
    let begun = std::time::Instant::now();
    while status(serving, secret) != wanted {
        assert!(begun.elapsed() < NOTICED_WITHIN, "{} instead of {wanted}", status(serving, secret));
    }
}

fn secret_of(made: &Value) -> String {
    made["secret"].as_str().unwrap().to_owned()
}

fn life_of_a_token(place: &Place) {
    let made = place.one(&["token", "create", "ann", "--scope", "read,publish", "--expires", "90d"]);
    let first = secret_of(&made);
    assert!(first.starts_with(&format!("hw_{}_", made["id"].as_str().unwrap())), "{made}");
    assert_eq!(
        json!(fields(&made, ["name", "scopes", "topics"])),
        json!(["ann", ["publish", "read"], ["*"]])
    );
    place.out(&["token", "create", "shop", "--scope", "publish", "--topic", "orders*", "--topic", "news"]);
    let exists = refusal(&place.run(&["token", "create", "ann", "--scope", "read"]), 1);
    assert!(exists.contains("token ann exists"), "{exists}");

    let listed = place.out(&["token", "list"]);
    assert!(listed.contains("ann") && listed.contains("orders*") && !listed.contains("hw_"), "{listed}");
    let listed = place.json(&["token", "list"]);
    assert!(listed.iter().all(|token| token.get("secret").is_none()) && listed.len() == 2, "{listed:?}");

    let serving = Serving::of(place, &[]);
    assert_eq!(status(&serving, &first), 200);
    assert_eq!(status(&serving, "hw_0000000000000000_00"), 401);
    // Both secrets are valid for a while; with no grace only the new one is.
    let second = secret_of(&place.one(&["token", "rotate", "ann", "--grace", "1h"]));
    until(&serving, &second, 200);
    assert_eq!(status(&serving, &first), 200);
    let id = made["id"].as_str().unwrap();
    let third = secret_of(&place.one(&["token", "rotate", id, "--grace", "0s"]));
    until(&serving, &third, 200);
    until(&serving, &second, 401);
    assert_eq!(status(&serving, &first), 401);

    assert!(refusal(&place.run(&["token", "revoke", "ann"]), 2).contains("--yes"));
    assert_eq!(place.one(&["token", "revoke", "ann", "--dry-run"])["name"], "ann");
    assert_eq!(place.one(&["token", "revoke", "ann", "--yes"])["revoked"], "ann");
    until(&serving, &third, 401);
    let unknown = refusal(&place.run(&["token", "rotate", "shp"]), 1);
    assert!(unknown.contains("no such token: shp") && unknown.contains("did you mean shop?"), "{unknown}");

    let (code, notes) = serving.stop();
    assert_eq!(code, Some(0), "{notes}");
    let audit = place.out(&["audit", "--output", "json"]);
    assert!(audit.contains("ann"), "{audit}");
    for secret in [&first, &second, &third] {
        assert!(!notes.contains(secret.as_str()) && !audit.contains(secret.as_str()), "no secret is logged");
    }
}

#[test]
fn life_of_a_token_on_sqlite() {
    life_of_a_token(&Place::sqlite());
}

#[test]
fn life_of_a_token_on_postgres() {
    if let Some(place) = Place::postgres("tokens") {
        life_of_a_token(&place);
    }
}

#[test]
fn a_wrong_token_is_not_made() {
    let place = Place::sqlite();
    let refused = |args: &[&str]| refusal(&place.run(&[&["token", "create", "ann"], args].concat()), 2);
    assert!(refused(&[]).contains("--scope"));
    assert!(refused(&["--scope", "everything"]).contains("consume"));
    assert!(refused(&["--scope", "read", "--expires", "0s"]).contains("expires"));
    assert_eq!(refusal(&place.run(&["token", "list"]), 1).lines().count(), 1, "no store was made");
}
