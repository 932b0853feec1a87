//! Two indexes of the same run, row by row and byte by byte.

use anyhow::Result;
use headwater_pipeline::index::Index;
use headwater_pipeline::index::database::{Query, Row};
use headwater_pipeline::resource::MetadataRead;

/// Ticks that are compared at a time.
const PAGE: i64 = 500;
const CELLS: &str = "SELECT tick, cells FROM @environment_ticks WHERE tick BETWEEN $1 AND $2 ORDER BY tick";
/// Tables with organisms, each read by tick or, where it has none, by id.
const ORGANISMS: [&str; 3] = [
    "SELECT tick, id, state FROM @organism_states WHERE tick BETWEEN $1 AND $2 ORDER BY tick, id",
    "SELECT tick, organisms FROM @organism_ticks WHERE tick BETWEEN $1 AND $2 ORDER BY tick",
    "SELECT id, parent_id, birth_tick FROM @organisms WHERE birth_tick BETWEEN $1 AND $2 ORDER BY id",
];

/// What two indexes have in common.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compared {
    /// Ticks in the one, and in the other.
    pub(super) expected: u64,
    pub(super) found: u64,
    /// Ticks that only one of them has, or with other bytes.
    pub(super) differing: u64,
    /// The same for organisms.
    pub(super) organism_rows: u64,
    pub(super) organism_differing: u64,
    pub(super) metadata_differs: bool,
}

/// Compares everything from the first tick on, also what is behind the last one that is expected.
pub(super) async fn compare(expected: &Index, found: &Index, ticks: u64) -> Result<Compared> {
    let mut compared = Compared::default();
    let last = i64::try_from(ticks)?;
    let mut first = 0;
    loop {
        let page = if first < last { (first, first + PAGE - 1) } else { (first, i64::MAX) };
        let (ours, theirs) = (read(expected, CELLS, page).await?, read(found, CELLS, page).await?);
        compared.expected += ours.len() as u64;
        compared.found += theirs.len() as u64;
        compared.differing += differing(&ours, &theirs);
        for sql in ORGANISMS {
            let (ours, theirs) = (read(expected, sql, page).await?, read(found, sql, page).await?);
            compared.organism_rows += ours.len() as u64;
            compared.organism_differing += differing(&ours, &theirs);
        }
        if page.1 == i64::MAX {
            break;
        }
        first = page.1 + 1;
    }
    let run_id = expected.run_id();
    compared.metadata_differs = expected.metadata(run_id).await? != found.metadata(run_id).await?;
    Ok(compared)
}

async fn read(index: &Index, sql: &'static str, (first, last): (i64, i64)) -> Result<Vec<Row>> {
    Ok(index.database().query(Query::new(sql).bind(first).bind(last)).await?)
}

/// Rows that only one side has. Both are in the same order.
fn differing(ours: &[Row], theirs: &[Row]) -> u64 {
    if ours == theirs {
        return 0;
    }
    let only = |one: &[Row], other: &[Row]| one.iter().filter(|row| !other.contains(row)).count() as u64;
    // A row with other bytes is missing on both sides and counts once; one that is there twice is too many.
    let longer = ours.len().abs_diff(theirs.len()) as u64;
    only(ours, theirs).max(only(theirs, ours)).max(longer)
}

#[cfg(test)]
mod tests {
    use headwater_pipeline::cells::{self, Cell, Compression};
    use headwater_pipeline::contracts::TickData;
    use headwater_pipeline::index::IndexOptions;
    use headwater_pipeline::resource::EnvironmentWrite;
    use headwater_pipeline::world::{Topology, World};

    use super::*;

    const RUN: &str = "run_compared";

    async fn index(directory: &std::path::Path, name: &str, ticks: &[(i64, u64)]) -> Index {
        let url = format!("sqlite:{}", directory.join(name).display());
        let index = Index::open(&url, RUN, &IndexOptions::default()).unwrap();
        let world = World::new(&[10, 10], Topology::Torus).unwrap();
        EnvironmentWrite::create_schema(&index, &world).await.unwrap();
        let tick = |&(tick_number, flat_index): &(i64, u64)| TickData {
            run_id: RUN.into(),
            tick_number,
            cells: cells::encode(
                &[Cell { flat_index, molecule_type: 1, ..Cell::default() }],
                Compression::NONE,
            ),
            cell_count: 1,
            ..TickData::default()
        };
        index.write_ticks(&ticks.iter().map(tick).collect::<Vec<_>>()).await.unwrap();
        index
    }

    #[tokio::test]
    async fn each_difference_counts_once() {
        let directory = tempfile::tempdir().unwrap();
        let expected = index(directory.path(), "a", &[(0, 1), (1, 2), (2, 3), (600, 4)]).await;
        for (name, ticks, found, differs) in [
            ("same", vec![(0, 1), (1, 2), (2, 3), (600, 4)], 4, 0),
            ("missing", vec![(0, 1), (2, 3), (600, 4)], 3, 1),
            ("other bytes", vec![(0, 1), (1, 7), (2, 3), (600, 4)], 4, 1),
            ("too many", vec![(0, 1), (1, 2), (2, 3), (600, 4), (999_999, 4)], 5, 1),
        ] {
            let other = index(directory.path(), name, &ticks).await;
            let compared = compare(&expected, &other, 601).await.unwrap();
            assert_eq!(
                (compared.expected, compared.found, compared.differing),
                (4, found, differs),
                "{name}"
            );
            assert!(!compared.metadata_differs);
        }
    }
}
