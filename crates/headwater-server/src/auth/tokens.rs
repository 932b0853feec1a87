//! The tokens of the store as a server knows them: read when they are presented, and cached for a few seconds, so that a rotation or a revocation counts
//! without a restart.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use headwater::Headwater;
use headwater::tokens::{PresentedToken, Token, TokenRecord};
use tokio::time::Instant;

use super::Caller;
use crate::problem::Problem;

/// How long a record is used without reading it again.
const CACHED_FOR: Duration = Duration::from_secs(2);
/// Records cached at most; beyond it those that are out of date are dropped, or all.
const CACHED_MAX: usize = 10_000;

/// The tokens of a store.
pub(crate) struct Tokens {
    store: headwater::tokens::Tokens,
    /// Whether the server is open while the store has no token.
    may_be_open: bool,
    records: Mutex<HashMap<String, Cached>>,
    any: Mutex<Option<(Instant, bool)>>,
}

/// When a token was read, and what was found.
type Cached = (Instant, Option<Arc<Known>>);

/// A record, and its token for callers to share.
struct Known {
    record: TokenRecord,
    token: Arc<Token>,
}

impl Tokens {
    pub(crate) fn new(headwater: &Headwater, may_be_open: bool) -> Self {
        Tokens { store: headwater.tokens(), may_be_open, records: Mutex::default(), any: Mutex::default() }
    }

    /// The tokens in the store.
    pub(crate) fn store(&self) -> &headwater::tokens::Tokens {
        &self.store
    }

    /// The caller of a presented token; 401 if it is not valid. The answer does not say why: unknown, expired and wrong have the same answer.
    pub(crate) async fn caller(&self, presented: &PresentedToken) -> Result<Caller, Problem> {
        let known = self.known(presented.id()).await?;
        match known.filter(|known| known.record.accepts(presented, self.store.now())) {
            Some(known) => Ok(Caller::with_token(Arc::clone(&known.token))),
            None => {
                Err(Problem::unauthorized("the token is not valid: unknown, expired, rotated or revoked"))
            }
        }
    }

    /// Whether every caller is an administrator: the store has no token, and the server may be open.
    pub(crate) async fn is_open(&self) -> Result<bool, headwater::Error> {
        if !self.may_be_open {
            return Ok(false);
        }
        let cached = *self.any.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, any)) = cached.filter(|(read_at, _)| read_at.elapsed() < CACHED_FOR) {
            return Ok(!any);
        }
        let any = self.store.any().await?;
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = Some((Instant::now(), any));
        Ok(!any)
    }

    /// Forgets what was read: after a change through this server it counts at once here, and within seconds in others.
    pub(crate) fn forget(&self) {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.any.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    async fn known(&self, id: &str) -> Result<Option<Arc<Known>>, headwater::Error> {
        let cached = self.records.lock().unwrap_or_else(PoisonError::into_inner).get(id).cloned();
        if let Some((_, known)) = cached.filter(|(read_at, _)| read_at.elapsed() < CACHED_FOR) {
            return Ok(known);
        }
        let read_at = Instant::now();
        let known = self.store.find(id).await?.map(|record| {
            let token = Arc::new(record.token.clone());
            Arc::new(Known { record, token })
        });
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if records.len() >= CACHED_MAX {
            records.retain(|_, (read_at, _)| read_at.elapsed() < CACHED_FOR);
        }
        if records.len() < CACHED_MAX {
            records.insert(id.to_owned(), (read_at, known.clone()));
        }
        Ok(known)
    }
}
