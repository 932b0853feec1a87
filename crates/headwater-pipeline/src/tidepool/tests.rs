//! The course of a world: lively, the same for every number of threads, and the same after a restart.

use super::*;
use crate::cells::Cell;
use crate::error::ErrorCode;
use crate::world::Topology;

fn tidepool(config: &Config) -> Tidepool {
    Tidepool::new(config.clone()).expect("a valid configuration")
}

fn steps(tidepool: &mut Tidepool, count: u64) {
    for _ in 0..count {
        tidepool.step();
    }
}

/// Everything that a tick shows, with the cells decoded.
fn shown(tidepool: &Tidepool) -> (TickData, Vec<Cell>) {
    let tick = tidepool.capture("run", 0);
    let cells = cells::decode(&tick.cells).expect("cells");
    (tick, cells)
}

fn small(sizes: &[u64], topology: Topology) -> Config {
    let cells: u64 = sizes.iter().product();
    Config {
        dimensions: sizes.to_vec(),
        topology,
        organisms: 3,
        organisms_max: cells.min(50),
        food_rate: 0.005,
        ..Config::default()
    }
}

#[test]
fn the_default_world_is_lively() {
    let mut world = tidepool(&Config::default());
    let occupied_at_start = shown(&world).0.cell_count;
    let mut populations = Vec::new();
    for _ in 0..30 {
        steps(&mut world, 100);
        populations.push(world.population());
    }
    let figures = world.figures();
    assert!(figures.births > 100 && figures.deaths > 100 && figures.contended > 0, "{figures:?}");
    assert!(figures.mutations > 0, "{figures:?}");
    let occupied = shown(&world).0.cell_count;
    assert!(occupied > 2 * occupied_at_start, "{occupied_at_start} cells became {occupied}");
    assert!(populations.iter().all(|count| (5..900).contains(count)), "{populations:?}");
    assert_eq!(20 + figures.births - figures.deaths, world.population() as u64);
}

#[test]
fn same_seed_same_world_and_another_seed_another() {
    let config = small(&[30, 30], Topology::Torus);
    let [mut one, mut two] = [tidepool(&config), tidepool(&config)];
    let mut other = tidepool(&Config { seed: 2, ..config });
    for _ in 0..20 {
        for world in [&mut one, &mut two, &mut other] {
            steps(world, 20);
        }
        assert_eq!(shown(&one), shown(&two));
        assert_ne!(shown(&one).1, shown(&other).1);
    }
    assert!(one.figures().births > 0);
}

#[test]
fn number_of_threads_changes_nothing() {
    let with = |threads| Config {
        // So dense that they compete for room and food.
        dimensions: vec![200, 200],
        organisms: 1_600,
        organisms_max: 2_000,
        threads,
        ..Config::default()
    };
    let mut one = tidepool(&with(1));
    let mut others = [2, 3].map(|threads| tidepool(&with(threads)));
    for _ in 0..2 {
        steps(&mut one, 15);
        for other in &mut others {
            steps(other, 15);
            // Enough for a thread each.
            assert!(other.population() >= 3 * ORGANISMS_PER_THREAD_MIN);
            assert_eq!(shown(&one), shown(other));
        }
    }
    assert!(one.figures().births > 0 && one.figures().contended > 0, "{:?}", one.figures());
}

#[test]
fn resumed_equals_uninterrupted() {
    // Between captures too: the dead since the last captured tick are part of the state.
    let config = Config { sampling_interval: 7, age_max: 150, ..small(&[40, 40], Topology::Torus) };
    let mut whole = tidepool(&config);
    let mut resumed = tidepool(&config);
    for part in [1, 99, 250, 3] {
        steps(&mut whole, part);
        steps(&mut resumed, part);
        let checkpoint = resumed.checkpoint("run");
        // The number of threads and the compression may change.
        let changed = Config { threads: 3, compression: cells::Compression::NONE, ..config.clone() };
        resumed = Tidepool::restore(changed, &checkpoint).expect("restored");
        assert_eq!(resumed.resolved_config, whole.resolved_config);
        let again = resumed.checkpoint("run");
        assert_eq!(TidepoolState::new(&again), TidepoolState::new(&checkpoint));
        assert_eq!((resumed.tick(), resumed.figures()), (whole.tick(), whole.figures()));
    }
    for _ in 0..100 {
        steps(&mut whole, 1);
        steps(&mut resumed, 1);
        let ([whole, resumed], captures) = ([&whole, &resumed].map(shown), whole.is_sampled());
        assert_eq!(whole.1, resumed.1);
        assert_eq!(
            (whole.0.organisms, whole.0.counters),
            (resumed.0.organisms, resumed.0.counters),
            "{captures}"
        );
    }
    assert!(whole.figures().deaths > 0);
}

/// A checkpoint without the bytes that depend on the compression.
#[derive(Debug, PartialEq)]
struct TidepoolState(crate::contracts::TidepoolCheckpoint, Vec<Cell>);

impl TidepoolState {
    fn new(checkpoint: &crate::contracts::TidepoolCheckpoint) -> Self {
        let cells = cells::decode(&checkpoint.cells).expect("cells");
        TidepoolState(
            crate::contracts::TidepoolCheckpoint { cells: Default::default(), ..checkpoint.clone() },
            cells,
        )
    }
}

#[test]
fn checkpoints_of_other_worlds_and_damaged_ones_are_refused() {
    let config = small(&[20, 20], Topology::Torus);
    let good = tidepool(&config).checkpoint("run_x");
    let refused = |change: &dyn Fn(&mut crate::contracts::TidepoolCheckpoint), config: &Config| {
        let mut checkpoint = good.clone();
        change(&mut checkpoint);
        let error = Tidepool::restore(config.clone(), &checkpoint).expect_err("refused");
        assert!(error.to_string().contains("run_x"), "{error}");
        error.code()
    };
    assert_eq!(refused(&|_| (), &Config { seed: 9, ..config.clone() }), ErrorCode::InvalidConfiguration);
    assert_eq!(refused(&|c| c.format_version = 2, &config), ErrorCode::DamagedFile);
    assert_eq!(refused(&|c| c.resolved_config.push_str("x = 1"), &config), ErrorCode::DamagedFile);
    assert_eq!(refused(&|c| c.cells = c.cells.slice(..9), &config), ErrorCode::DamagedFile);
    assert_eq!(refused(&|c| c.organisms[0].head = 400, &config), ErrorCode::DamagedFile);
    assert_eq!(refused(&|c| c.organisms[0].direction = 4, &config), ErrorCode::DamagedFile);
    assert_eq!(refused(&|c| c.organisms.reverse(), &config), ErrorCode::DamagedFile);
    assert_eq!(refused(&|c| c.next_organism_id = 3, &config), ErrorCode::DamagedFile);
}

#[test]
fn torus_and_bounded_in_1_to_4_dimensions() {
    for dimensions in 1..=4 {
        for topology in [Topology::Torus, Topology::Bounded] {
            let sizes = vec![[400, 20, 8, 5][dimensions - 1]; dimensions];
            let config = Config {
                organisms: 5,
                age_max: 200,
                fork_energy: 150,
                food_at_start: 0.4,
                ..small(&sizes, topology)
            };
            let mut world = tidepool(&config);
            let cells = world.world().cells();
            let mut heads = std::collections::BTreeSet::new();
            for _ in 0..20 {
                steps(&mut world, 20);
                let (tick, shown) = shown(&world);
                assert_eq!(tick.cell_count, shown.len() as u64);
                // Sparse: no empty cell is captured.
                assert!(shown.iter().all(|cell| !cell.is_empty() && cell.flat_index < cells));
                for organism in &tick.organisms {
                    world.world().flat_index(&organism.position).expect("inside");
                    heads.insert(organism.position.clone());
                    assert_eq!(organism.direction.iter().map(|step| step.abs()).sum::<i32>(), 1);
                }
            }
            let figures = world.figures();
            assert!(figures.births > 0 && figures.deaths > 0, "{sizes:?} {topology}: {figures:?}");
            assert!(heads.len() > 20, "{sizes:?} {topology}: {} places", heads.len());
        }
    }
}

#[test]
fn the_dead_are_shown_once() {
    let config = Config { age_max: 60, sampling_interval: 10, ..small(&[30, 30], Topology::Torus) };
    let mut world = tidepool(&config);
    let mut dead = Vec::new();
    for _ in 0..200 {
        if world.is_sampled() {
            let tick = world.capture("run", 0);
            assert_eq!(tick, world.capture("run", 0));
            dead.extend(tick.organisms.iter().filter(|organism| !organism.alive).map(|organism| organism.id));
        }
        world.step();
    }
    let count = dead.len();
    dead.sort_unstable();
    dead.dedup();
    assert!(count > 0 && dead.len() == count, "{dead:?}");
}

#[test]
fn of_two_that_want_a_cell_the_one_with_more_energy_gets_it() {
    let config =
        Config { organisms: 2, food_at_start: 0.0, food_rate: 0.0, ..small(&[100], Topology::Torus) };
    let mut world = tidepool(&config);
    for molecule in 0..100 {
        world.grid.set(molecule, Molecule::default());
    }
    // Both eat cell 50, one from each side. Operation 3 is eat; programs have one instruction.
    world.grid.set(50, Molecule { kind: ENERGY, marker: 0, value: 40, owner: 0 });
    for (index, (head, origin, energy)) in [(49, 0, 100), (51, 10, 200)].into_iter().enumerate() {
        let organism = &mut world.organisms[index];
        (organism.head, organism.origin, organism.energy, organism.length) = (head, origin, energy, 1);
        organism.direction = index as u8;
        world.grid.set(origin, Molecule { kind: CODE, marker: 0, value: 3, owner: organism.id });
    }
    world.step();
    let energies: Vec<i64> = world.organisms.iter().map(|organism| organism.energy).collect();
    assert_eq!((energies.as_slice(), world.figures().contended), ([99, 239].as_slice(), 1));
    assert_eq!(world.grid.get(50), Molecule::default());
    // With equal energy the older one.
    world.grid.set(50, Molecule { kind: ENERGY, marker: 0, value: 40, owner: 0 });
    world.organisms[1].energy = 99;
    world.step();
    let energies: Vec<i64> = world.organisms.iter().map(|organism| organism.energy).collect();
    assert_eq!(energies, [138, 98]);
    // What a living organism owns is not for others.
    world.grid.set(50, Molecule { kind: DATA, marker: 0, value: 1, owner: world.organisms[1].id });
    world.step();
    assert_eq!(world.grid.get(50).kind, DATA);
}

#[test]
fn metadata_describe_the_world() {
    let config = small(&[20, 30], Topology::Bounded);
    let world = tidepool(&config);
    let metadata = world.metadata("run", 77);
    assert_eq!(World::from_metadata(&metadata).expect("a world"), *world.world());
    assert_eq!((metadata.seed, metadata.start_time_ms, metadata.sampling_interval), (1, 77, 1));
    assert_eq!(toml::from_str::<Config>(&metadata.resolved_config).expect("TOML"), config);
}
