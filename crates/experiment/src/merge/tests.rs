use super::*;
use crate::file::Experiment;
use crate::record::{Point, SCHEMA};
use crate::study::study;

const FILE: &str = "name = 'x'\nrepetitions = 4\n[[tenant]]\nname = 'a'\nload = 'primes'\nrun_s = 1\n\
    [[sweep]]\nfield = 'tenant.a.runs'\nvalues = [1, 2, 3]\n";

/// What a host measured of a shard.
fn part(index: u32, count: u32, host: &str) -> Part {
    let experiment = Experiment::parse(FILE).unwrap();
    let shard = Shard { index, count };
    let repetitions = (0..4).filter(|repetition| shard.has_repetition(4, *repetition));
    let cells: Vec<Cell> = repetitions
        .flat_map(|repetition| {
            [2, 0, 1].into_iter().enumerate().map(move |(at, index)| Cell {
                point: Point { index, ..Point::default() },
                repetition,
                released_at: Some(format!("2026-01-01T00:0{repetition}:0{at}Z")),
                ..Cell::default()
            })
        })
        .collect();
    let record = Record {
        schema: SCHEMA.into(),
        name: "x".into(),
        version: "1".into(),
        began: format!("2026-01-01T00:0{index}:00Z"),
        finished: Some(format!("2026-01-01T01:0{index}:00Z")),
        host: Host {
            name: Some(host.into()),
            cpus: Some(2),
            primes_per_s: Some(900.0 + f64::from(index)),
            ..Host::default()
        },
        experiment: Some(experiment),
        requirements: vec![Requirement::new(
            "quiet-host",
            Some(index != 1),
            format!("others used {index} %"),
            "too slow",
        )],
        shard: Some(shard),
        planned_cells: cells.len(),
        cells,
        ..Record::default()
    };
    Part { name: format!("results/{index}"), record }
}

fn places(record: &Record) -> Vec<(u32, usize)> {
    record.cells.iter().map(|cell| (cell.repetition, cell.point.index)).collect()
}

#[test]
fn shards_in_any_order_make_the_record_of_one_run_with_each_host_named() {
    let merged = merge(vec![part(1, 2, "node-b"), part(0, 2, "node-a")]).unwrap();
    assert!(merged.is_complete() && merged.shard.is_none());
    assert_eq!(places(&merged)[..4], [(0, 2), (0, 0), (0, 1), (1, 2)]);
    assert_eq!((merged.cells.len(), merged.planned_cells), (12, 12));
    let nodes: Vec<&str> = merged.cells.iter().filter_map(|cell| cell.node.as_deref()).collect();
    assert_eq!([nodes[0], nodes[5], nodes[6], nodes[11]], ["node-a", "node-a", "node-b", "node-b"]);
    assert_eq!(merged.host.name.as_deref(), Some("node-a, node-b"));
    assert_eq!(
        (merged.host.cpus, merged.host.primes_per_s),
        (Some(2), None),
        "what differs is not known of all"
    );
    assert_eq!(merged.merged[1].host.primes_per_s, Some(901.0));
    assert_eq!(
        (merged.began.as_str(), merged.finished.as_deref()),
        ("2026-01-01T00:00:00Z", Some("2026-01-01T01:01:00Z"))
    );
    assert_eq!(study(&merged).missed, ["quiet-host: not met (node-b: others used 1 %): too slow"]);
    // It survives the disk.
    let dir = tempfile::tempdir().unwrap();
    crate::record::CellRecord::save(&merged, dir.path()).unwrap();
    assert_eq!(<Record as crate::record::CellRecord>::load(dir.path()).unwrap(), merged);
}

#[test]
fn a_missing_shard_and_an_interrupted_one_are_unknown_and_named() {
    let mut cut = part(1, 4, "node-b");
    cut.record.cells.pop();
    cut.record.finished = None;
    let merged = merge(vec![part(0, 4, "node-a"), cut, part(3, 4, "node-d")]).unwrap();
    assert_eq!((merged.cells.len(), merged.planned_cells, &merged.finished), (8, 12, &None));
    let missed = study(&merged).missed;
    let of_shards = missed.iter().find(|line| line.starts_with("shards")).unwrap();
    assert!(
        of_shards.contains("no results of shard 2 of 4; 2 of 3 cells of shard 1/4 on node-b"),
        "{of_shards}"
    );
    assert!(!missed.iter().any(|line| line.contains("the same folder")), "{missed:?}");
}

#[test]
fn hosts_that_differ_are_named() {
    let mut other = part(1, 2, "node-b");
    other.record.host.cpus = Some(4);
    let merged = merge(vec![part(0, 2, "node-a"), other]).unwrap();
    assert_eq!(merged.host.cpus, None);
    let missed = study(&merged).missed.join("\n");
    assert!(missed.contains("node-a has cpus 2; node-b has cpus 4"), "{missed}");
}

#[test]
fn what_is_not_of_one_experiment_is_refused_with_what_differs() {
    let refused = |change: fn(&mut Part), words: &[&str]| {
        let mut other = part(1, 2, "node-b");
        change(&mut other);
        let error = merge(vec![part(0, 2, "node-a"), other]).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
    };
    fn with(part: &mut Part, to: impl FnOnce(&mut Experiment)) {
        to(part.record.experiment.as_mut().unwrap());
    }
    refused(
        |p| with(p, |e| e.repetitions = 5),
        &["experiment.repetitions is 4 in the first, 5", "results/0", "results/1"],
    );
    refused(|p| with(p, |e| e.tenants[0].nice = 3), &["experiment.tenant.1.nice is", "3 in the second"]);
    refused(|p| p.record.name = "y".into(), &["\"x\" in the first, \"y\" in the second"]);
    refused(
        |p| p.record.shard = Some(Shard { index: 1, count: 3 }),
        &["number of shards is 2 in the first, 3"],
    );
    refused(
        |p| p.record.shard = Some(Shard { index: 0, count: 2 }),
        &["shard 0/2 is there twice", "name one"],
    );
    refused(|p| p.record.shard = None, &["results/1", "a whole experiment", "lab compare"]);
    refused(|p| p.record.experiment = None, &["imported logs"]);
    refused(
        |p| p.record.merged = vec![about(Shard { index: 0, count: 2 }, &Record::default())],
        &["merged already"],
    );
    refused(|p| p.record.cells[0].repetition = 0, &["repetition 0 of point 2"]);
    refused(|p| p.record.cells[0].repetition = 9, &["repetition 9 of point 2"]);
    let simulated = Requirement::new(crate::record::MEASURED, Some(false), String::new(), "");
    let simulate = |mut part: Part, kernel: &str| {
        part.record.requirements = vec![simulated.clone()];
        part.record.host = Host { kernel: Some(kernel.into()), ..Host::default() };
        part
    };
    let error = |parts: Vec<Part>| merge(parts).unwrap_err().to_string();
    let mixed = error(vec![simulate(part(0, 2, ""), "6.1"), part(1, 2, "node-b")]);
    assert!(mixed.contains("is simulated in the first, measured in the second"), "{mixed}");
    let machines = error(vec![simulate(part(0, 2, ""), "6.1"), simulate(part(1, 2, ""), "6.12")]);
    assert!(machines.contains("kernel is \"6.1\" in the first, \"6.12\" in the second"), "{machines}");
    assert!(error(Vec::new()).contains("nothing to merge"));
}
