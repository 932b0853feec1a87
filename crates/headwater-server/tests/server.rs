//! The server as its clients see it, over real connections, on both stores.

#[path = "server/auth.rs"]
mod auth;
#[path = "server/browsing.rs"]
mod browsing;
#[path = "server/child.rs"]
mod child;
#[path = "server/claiming.rs"]
mod claiming;
#[path = "server/dashboard.rs"]
mod dashboard;
#[path = "server/dashboard_actions.rs"]
mod dashboard_actions;
#[path = "server/dashboard_refusals.rs"]
mod dashboard_refusals;
#[path = "server/dead_letters.rs"]
mod dead_letters;
#[path = "server/document.rs"]
mod document;
#[path = "server/groups.rs"]
mod groups;
#[path = "server/limits.rs"]
mod limits;
#[path = "server/operating.rs"]
mod operating;
#[path = "server/place.rs"]
mod place;
#[path = "server/publishing.rs"]
mod publishing;
#[path = "server/secrets.rs"]
mod secrets;
#[path = "server/streaming.rs"]
mod streaming;
#[path = "server/tls.rs"]
mod tls;
#[path = "server/topics.rs"]
mod topics;
#[path = "server/two_servers.rs"]
mod two_servers;
#[path = "server/visitor.rs"]
mod visitor;

/// A test for each of these cases on each store: `sqlite::case`, `postgres::case`.
macro_rules! on_both_stores {
    ($($case:ident),* $(,)?) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let place = crate::place::Place::sqlite().await;
                super::$case(&place).await;
                place.end().await;
            })*
        }
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                let Some(place) = crate::place::Place::postgres().await else { return };
                super::$case(&place).await;
                place.end().await;
            })*
        }
    };
}
pub(crate) use on_both_stores;
