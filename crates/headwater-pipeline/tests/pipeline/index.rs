//! The index on both databases, as indexers and queries use it.

use headwater_pipeline::Result;
use headwater_pipeline::cells::Cell;
use headwater_pipeline::index::{Index, IndexOptions};
use headwater_pipeline::resource::{EnvironmentWrite, IdempotencyTracker, MetadataWrite, OrganismWrite};
use headwater_pipeline::world::{Topology, World};

/// Cases that hold on both databases.
macro_rules! on_both {
    ($($case:ident)+) => {
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::Place::sqlite()).await;
            })+
        }

        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(place) = super::Place::postgres() {
                    super::$case(place).await;
                }
            })+
        }
    };
}

#[path = "index/place.rs"]
mod place;
#[path = "index/reading.rs"]
mod reading;
#[path = "index/strategies.rs"]
mod strategies;
#[path = "index/writing.rs"]
mod writing;

pub(crate) use place::Place;

pub(crate) fn plane() -> World {
    World::new(&[100, 100], Topology::Torus).unwrap()
}

pub(crate) fn with_strategy(strategy: &str) -> IndexOptions {
    IndexOptions { strategy: strategy.into(), ..IndexOptions::default() }
}

pub(crate) fn cell(flat_index: u64, molecule_value: i64) -> Cell {
    Cell { flat_index, molecule_type: 1, molecule_value, owner_id: 7, marker: 0 }
}

/// Everything that indexers prepare, at once.
pub(crate) async fn create_all(index: &Index, world: &World) -> Result<()> {
    EnvironmentWrite::create_schema(index, world).await?;
    MetadataWrite::create_schema(index).await?;
    OrganismWrite::create_schema(index).await?;
    IdempotencyTracker::create_schema(index).await
}
