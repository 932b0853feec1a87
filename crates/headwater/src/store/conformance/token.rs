//! API tokens and sessions.

use std::time::Duration;

use super::case::Case;
use crate::error::ErrorKind;
use crate::tokens::{IssuedToken, NewToken, PresentedToken, Scope, Tokens};

const MINUTE: Duration = Duration::from_secs(60);

/// Whether a store accepts the text of a token now.
async fn accepts(tokens: &Tokens, case: &Case, issued: &IssuedToken) -> bool {
    let presented: PresentedToken = issued.secret().parse().expect("a token");
    let record = tokens.find(presented.id()).await.expect("read");
    record.is_some_and(|record| record.accepts(&presented, case.now()))
}

/// A token is created once per name, found by another process with what it allows, listed without its hash, and revoked.
pub async fn tokens_are_created_found_listed_and_revoked(case: &Case) {
    let store = case.open().await;
    let tokens = Tokens::new(&store);
    assert!(!tokens.any().await.expect("read"));
    let new =
        NewToken::new("shop").scope(Scope::Publish).scope(Scope::Read).scope(Scope::Publish).topic("orders*");
    let issued = tokens.create(&new).await.expect("created");
    let entry = &store.audit(1).await.expect("read")[0];
    assert_eq!(entry.act, "create_token");
    assert!(entry.detail.contains("orders*") && entry.detail.contains(issued.id()), "{}", entry.detail);
    assert_eq!(tokens.create(&new).await.expect_err("it exists").kind(), ErrorKind::Conflict);

    let other = Tokens::new(&case.open().await);
    assert!(other.any().await.expect("read"));
    assert!(accepts(&other, case, &issued).await);
    let listed = other.list().await.expect("read");
    assert_eq!((listed.len(), listed[0].name.as_str(), listed[0].id.as_str()), (1, "shop", issued.id()));
    assert_eq!(listed[0].scopes, [Scope::Publish, Scope::Read]);
    assert_eq!((listed[0].created_at, listed[0].expires_at), (case.now(), None));
    assert!(
        listed[0].allows(Scope::Publish, Some("orders.eu"))
            && !listed[0].allows(Scope::Publish, Some("bills"))
    );

    assert!(tokens.revoke(issued.id()).await.expect("revoked"));
    assert!(!tokens.revoke(issued.id()).await.expect("answered"), "there is none");
    assert!(!accepts(&other, case, &issued).await);
    assert_eq!(store.audit(1).await.expect("read")[0].act, "revoke_token");
}

/// No entry of the audit has a secret or its hash.
pub async fn the_audit_has_no_secret_of_a_token(case: &Case) {
    let store = case.open().await;
    let tokens = Tokens::new(&store);
    let issued = tokens.create(&NewToken::new("a").scope(Scope::Admin)).await.expect("created");
    let rotated = tokens.rotate(issued.id(), MINUTE).await.expect("rotated");
    let session = tokens.start_session(issued.id(), MINUTE).await.expect("started");
    let audit = format!("{:?}", store.audit(10).await.expect("read"));
    for token in [&issued, &rotated, &session] {
        let secret = token.secret().rsplit('_').next().expect("a secret");
        assert!(!audit.contains(secret));
    }
    assert_eq!(store.audit(10).await.expect("read").len(), 3);
}

/// After a rotation the old secret is accepted for its grace and not longer; a second rotation ends it at once.
pub async fn a_rotated_token_has_a_grace(case: &Case) {
    let tokens = Tokens::new(&case.open().await);
    let first = tokens.create(&NewToken::new("a").scope(Scope::Read)).await.expect("created");
    let second = tokens.rotate(first.id(), MINUTE).await.expect("rotated");
    assert_eq!(second.id(), first.id());
    assert!(accepts(&tokens, case, &first).await && accepts(&tokens, case, &second).await);
    case.advance(MINUTE);
    assert!(!accepts(&tokens, case, &first).await && accepts(&tokens, case, &second).await);
    let third = tokens.rotate(first.id(), MINUTE).await.expect("rotated");
    let fourth = tokens.rotate(first.id(), Duration::ZERO).await.expect("rotated");
    for old in [&first, &second, &third] {
        assert!(!accepts(&tokens, case, old).await);
    }
    assert!(accepts(&tokens, case, &fourth).await);
    let error = tokens.rotate("0000000000000000", MINUTE).await.expect_err("unknown");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// A token is accepted until it expires.
pub async fn a_token_expires(case: &Case) {
    let tokens = Tokens::new(&case.open().await);
    let new = NewToken::new("a").scope(Scope::Read).expires_in(MINUTE);
    let issued = tokens.create(&new).await.expect("created");
    case.advance(MINUTE - Duration::from_millis(1));
    assert!(accepts(&tokens, case, &issued).await);
    case.advance(Duration::from_millis(1));
    assert!(!accepts(&tokens, case, &issued).await);
}

/// A session has the rights of its token, is in no list, and ends by itself, by hand, and with its token's rotation, expiry or revocation.
pub async fn a_session_ends_with_its_token(case: &Case) {
    let tokens = Tokens::new(&case.open().await);
    let new = NewToken::new("a").scope(Scope::Read).topic("orders").expires_in(MINUTE * 10);
    let token = tokens.create(&new).await.expect("created");
    let start = async |lasts| tokens.start_session(token.id(), lasts).await.expect("started");

    let (short, long) = (start(MINUTE).await, start(MINUTE * 60).await);
    let record = tokens.find(long.id()).await.expect("read").expect("found");
    assert_eq!(record.session_of.as_deref(), Some(token.id()));
    assert!(
        record.token.allows(Scope::Read, Some("orders")) && !record.token.allows(Scope::Read, Some("bills"))
    );
    assert_eq!(tokens.list().await.expect("read").len(), 1);
    assert!(!tokens.revoke(long.id()).await.expect("answered"), "a session is no token");
    case.advance(MINUTE);
    assert!(!accepts(&tokens, case, &short).await && accepts(&tokens, case, &long).await);
    case.advance(MINUTE * 9);
    assert!(!accepts(&tokens, case, &long).await, "its token has expired");

    let other = tokens.create(&NewToken::new("b").scope(Scope::Read)).await.expect("created");
    let session = tokens.start_session(other.id(), MINUTE).await.expect("started");
    assert!(tokens.end_session(session.id()).await.expect("ended"));
    assert!(!accepts(&tokens, case, &session).await);
    let session = tokens.start_session(other.id(), MINUTE).await.expect("started");
    tokens.rotate(other.id(), MINUTE).await.expect("rotated");
    assert!(!accepts(&tokens, case, &session).await);
    let session = tokens.start_session(other.id(), MINUTE).await.expect("started");
    tokens.revoke(other.id()).await.expect("revoked");
    assert!(!accepts(&tokens, case, &session).await);
    let error = tokens.start_session(other.id(), MINUTE).await.expect_err("no token");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

/// A token outside the rules is refused, and nothing is stored.
pub async fn tokens_outside_their_rules_are_refused(case: &Case) {
    let store = case.open().await;
    let tokens = Tokens::new(&store);
    let named = |name: &str| NewToken::new(name).scope(Scope::Read);
    let many = (0..65).fold(named("a"), |new, at| new.topic(format!("t{at}")));
    for bad in [
        named(""),
        named("a\nb"),
        NewToken::new("a"),
        named("a").topic(""),
        many,
        named("a").expires_in(Duration::ZERO),
        named("a").expires_in(Duration::MAX),
    ] {
        assert_eq!(
            tokens.create(&bad).await.expect_err("refused").kind(),
            ErrorKind::InvalidInput,
            "{bad:?}"
        );
    }
    assert!(!tokens.any().await.expect("read"));
    assert_eq!(store.audit(1).await.expect("read"), []);
}
