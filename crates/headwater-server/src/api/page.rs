//! Lists page by page: `limit` and an opaque `cursor`, which is the place of the last item of the page before.
//!
//! A cursor names a place in the order of its list and no number of a row: items that come or go meanwhile do not shift the pages behind them.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde::de::DeserializeOwned;
use utoipa::ToSchema;

use crate::problem::Problem;

/// Items of a page at most, and by default.
const LIMIT_MAX: u32 = 1_000;
const LIMIT_DEFAULT: u32 = 100;
/// How often a page is read on because the caller may not see what was found.
const ROUNDS_MAX: usize = 20;

/// A page of a list.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct Page<T> {
    /// The items.
    pub(crate) items: Vec<T>,
    /// Continues after the last item; null at the end of the list.
    pub(crate) next_cursor: Option<String>,
}

impl<T> Page<T> {
    /// A page of what was read: one item more than the limit, if there is one.
    pub(crate) fn of<I, C: Serialize>(
        mut found: Vec<I>,
        limit: u32,
        place: impl Fn(&I) -> C,
        shown: impl Fn(I) -> T,
    ) -> Self {
        let has_more = found.len() > limit as usize;
        found.truncate(limit as usize);
        let next_cursor = found.last().filter(|_| has_more).map(|last| encode(&place(last)));
        Page { items: found.into_iter().map(shown).collect(), next_cursor }
    }

    /// A page of a list that is short enough to be read whole, in the order of its keys.
    pub(crate) fn of_whole<I>(
        mut all: Vec<I>,
        limit: u32,
        cursor: Option<&str>,
        key: impl Fn(&I) -> String,
        shown: impl Fn(I) -> T,
    ) -> Result<Self, Problem> {
        all.sort_by_cached_key(&key);
        if let Some(after) = decode::<String>(cursor)? {
            all.retain(|item| key(item) > after);
        }
        Ok(Page::of(all, limit, key, shown))
    }
}

/// Reads until a page is full of what the caller may see. `read` gets the place to continue after and how many to read at most.
pub(crate) async fn seen<I, C, R>(
    limit: u32,
    cursor: Option<C>,
    read: impl Fn(Option<C>, u32) -> R,
    place: impl Fn(&I) -> C,
    sees: impl Fn(&I) -> bool,
) -> Result<Page<I>, Problem>
where
    C: Serialize + Clone,
    R: Future<Output = Result<Vec<I>, Problem>>,
{
    let mut after = cursor;
    let mut items: Vec<I> = Vec::new();
    for _ in 0..ROUNDS_MAX {
        let found = read(after.clone(), limit + 1).await?;
        let is_end = found.len() <= limit as usize;
        for item in found.into_iter().take(limit as usize) {
            if items.len() == limit as usize {
                return Ok(Page { next_cursor: after.map(|place| encode(&place)), items });
            }
            after = Some(place(&item));
            if sees(&item) {
                items.push(item);
            }
        }
        if is_end {
            return Ok(Page { items, next_cursor: None });
        }
        if items.len() == limit as usize {
            break;
        }
    }
    Ok(Page { next_cursor: after.map(|place| encode(&place)), items })
}

impl<I> Page<I> {
    /// The same page with its items as they are shown.
    pub(crate) fn map<T>(self, shown: impl Fn(I) -> T) -> Page<T> {
        Page { items: self.items.into_iter().map(shown).collect(), next_cursor: self.next_cursor }
    }
}

/// The limit of a request.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Problem> {
    let limit = asked.unwrap_or(LIMIT_DEFAULT);
    if !(1..=LIMIT_MAX).contains(&limit) {
        return Err(Problem::invalid("limit", format!("{limit}, from 1 to {LIMIT_MAX} are allowed")));
    }
    Ok(limit)
}

/// A text to search for: an empty one is none.
pub(crate) fn search(asked: Option<String>) -> Option<String> {
    asked.filter(|text| !text.is_empty())
}

fn encode(place: &impl Serialize) -> String {
    // Places are numbers and strings.
    URL_SAFE_NO_PAD.encode(serde_json::to_vec(place).unwrap_or_default())
}

/// The place that a cursor names; `None` without one.
pub(crate) fn decode<C: DeserializeOwned>(cursor: Option<&str>) -> Result<Option<C>, Problem> {
    let Some(cursor) = cursor else { return Ok(None) };
    let place = URL_SAFE_NO_PAD.decode(cursor).ok().and_then(|json| serde_json::from_slice(&json).ok());
    let rule = "not one that this list returned; leave it out to begin at the first page";
    place.map(Some).ok_or_else(|| Problem::invalid("cursor", rule))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn page(limit: u32, cursor: Option<u32>, sees: fn(&u32) -> bool) -> Page<u32> {
        let read = |after: Option<u32>, limit: u32| async move {
            Ok((after.map_or(0, |after| after + 1)..10).take(limit as usize).collect())
        };
        seen(limit, cursor, read, |item| *item, sees).await.expect("a page")
    }

    #[tokio::test]
    async fn pages_follow_each_other_without_a_gap_whatever_is_hidden() {
        let of_kind: [fn(&u32) -> bool; 4] = [|_| true, |n| n % 3 == 0, |n| *n > 7, |_| false];
        for (limit, sees) in [1, 2, 3, 9, 10, 11].into_iter().flat_map(|n| of_kind.map(|sees| (n, sees))) {
            let (mut all, mut cursor) = (Vec::new(), None);
            loop {
                let page = page(limit, cursor, sees).await;
                assert!(page.items.len() <= limit as usize);
                all.extend(page.items);
                cursor = decode(page.next_cursor.as_deref()).expect("a cursor of this list");
                if cursor.is_none() {
                    break;
                }
            }
            assert_eq!(all, (0..10).filter(sees).collect::<Vec<_>>(), "limit {limit}");
        }
    }

    #[test]
    fn a_cursor_of_another_list_is_refused() {
        for wrong in ["", "x", "?", &encode(&("a", 1))] {
            let problem = decode::<u32>(Some(wrong)).expect_err("refused");
            assert_eq!((problem.field(), problem.status().as_u16()), (Some("cursor"), 400), "{wrong}");
        }
    }

    #[test]
    fn a_short_list_is_cut_at_its_keys() {
        let page = |cursor: Option<&str>| {
            Page::of_whole(vec!["b", "a", "c"], 2, cursor, |name| (*name).to_owned(), |name| name)
                .expect("a page")
        };
        let first = page(None);
        assert_eq!(first.items, ["a", "b"]);
        let last = page(first.next_cursor.as_deref());
        assert_eq!((last.items, last.next_cursor), (vec!["c"], None));
    }
}
