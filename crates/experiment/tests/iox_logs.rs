//! The CPU-units source's own raw logs: all are read, and what they give is what the source printed, where that is right.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use evenkeel_base::stats::{mean, median, quantile};
use evenkeel_experiment::import::{Options, import, parse};
use evenkeel_experiment::record::Record;
use evenkeel_experiment::sources::table;
use evenkeel_experiment::study::compare::{DistributionRow, Side};
use evenkeel_experiment::study::{compare, platforms, study};

/// The logs, unpacked once.
fn logs() -> &'static Path {
    static DIR: OnceLock<tempfile::TempDir> = OnceLock::new();
    DIR.get_or_init(|| {
        let dir = tempfile::tempdir().unwrap();
        let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/iox-logs/logs.tar.gz");
        let done = Command::new("tar").arg("-xzf").arg(&packed).arg("-C").arg(dir.path()).status().unwrap();
        assert!(done.success(), "tar cannot unpack {}", packed.display());
        dir
    })
    .path()
}

fn folders(under: &Path, out: &mut Vec<PathBuf>) {
    if !files(under).is_empty() {
        out.push(under.to_owned());
    }
    for entry in std::fs::read_dir(under).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            folders(&path, out);
        }
    }
}

/// Log files of a folder, in the order of their containers (`..x7.log`).
fn files(folder: &Path) -> Vec<PathBuf> {
    let all = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut all: Vec<PathBuf> = all.filter(|p| p.extension().is_some_and(|e| e == "log")).collect();
    let number = |p: &PathBuf| {
        p.file_stem().and_then(|s| s.to_str()?.rsplit_once('x')?.1.parse::<u32>().ok()).unwrap_or(0)
    };
    all.sort_by_key(|p| (number(p), p.clone()));
    all
}

fn read(name: &str) -> Record {
    import(&files(&logs().join("log").join(name)), &Options { cpus: Some(2), ..Options::default() }).unwrap()
}

/// A column of one of the source's tables.
fn printed(name: &str, column: &str) -> Vec<f64> {
    let csv = table(name).unwrap().csv;
    let mut lines = csv.lines();
    let at = lines.next().unwrap().split(',').position(|c| c == column).unwrap();
    lines.map(|line| line.split(',').nth(at).unwrap().parse().unwrap()).collect()
}

#[test]
fn all_38_folders_with_293_logs_are_read() {
    let mut count = 0;
    let all: Vec<PathBuf> =
        std::fs::read_dir(logs().join("log")).unwrap().map(|e| e.unwrap().path()).collect();
    for folder in &all {
        // One of them has a folder of its own for eight more.
        let mut inner = Vec::new();
        folders(folder, &mut inner);
        for folder in &inner {
            let files = files(folder);
            count += files.len();
            let record = import(&files, &Options::default()).unwrap_or_else(|e| panic!("{e}"));
            let tenants = &record.cells[0].tenants;
            assert_eq!(tenants.len(), files.len(), "{}", folder.display());
            assert!(tenants.iter().flat_map(|t| &t.runs).all(|r| r.events_per_s.is_some()));
        }
    }
    assert_eq!((all.len(), count), (38, 293));
}

#[test]
fn events_a_second_are_those_the_source_printed() {
    for (folder, name) in [
        ("16x2to128", "iox_mixed_5_containers"),
        ("16x2to256", "iox_mixed_6_containers"),
        ("16x2to512", "iox_mixed_7_containers"),
        ("1to512", "iox_priority_10_containers"),
        ("64x20", "iox_20_containers_64_units"),
    ] {
        let study = study(&read(folder));
        let ours: Vec<f64> = study.points[0].tenants.iter().map(|t| t.events_per_s.unwrap().mean).collect();
        let theirs = printed(name, "eps");
        assert_eq!(ours.len(), theirs.len());
        for (a, b) in ours.iter().zip(&theirs) {
            // The source prints two decimals.
            assert!((a - b).abs() < 0.0101, "{folder}: {a} for {b}");
        }
    }
    // One container alone, by its units.
    let single: HashMap<u64, f64> = study(&read("single")).points[0]
        .tenants
        .iter()
        .map(|t| (t.units.unwrap(), t.events_per_s.unwrap().mean))
        .collect();
    let units = printed("iox_one_container", "cpu_units");
    for (units, eps) in units.iter().zip(printed("iox_one_container", "eps")) {
        let ours = single[&(*units as u64)];
        assert!((ours - eps).abs() < 0.0101, "{units}: {ours} for {eps}");
    }
}

#[test]
fn times_are_those_the_source_printed_from_the_start_of_a_container_to_its_end() {
    for (folder, name, column) in [
        ("16x2to128", "iox_mixed_5_containers", "elapsed_s_20_runs"),
        ("64x20", "iox_20_containers_64_units", "elapsed_s"),
    ] {
        for (path, theirs) in files(&logs().join("log").join(folder)).iter().zip(printed(name, column)) {
            let log = parse(&std::fs::read_to_string(path).unwrap()).unwrap();
            let whole = log.end.unwrap().duration_since(log.start.unwrap()).as_secs_f64();
            assert!((whole - theirs).abs() < 0.05, "{}: {whole} for {theirs}", path.display());
        }
    }
}

#[test]
fn what_the_source_calls_median_is_a_mean_over_containers() {
    let paths = files(&logs().join("log/N1000-16to256"));
    let each: Vec<f64> = paths
        .iter()
        .map(|path| {
            let log = parse(&std::fs::read_to_string(path).unwrap()).unwrap();
            let first = log.runs.first().unwrap().start.unwrap();
            log.runs.last().unwrap().end.unwrap().duration_since(first).as_secs_f64() / log.runs.len() as f64
        })
        .collect();
    // Pattern 2 of the table: 16 32 64 128 256; its numbers have quoted commas.
    let row = table("iox_balance_4_patterns").unwrap().csv.lines().find(|l| l.starts_with("2,")).unwrap();
    let last: Vec<f64> = row.rsplit(',').take(3).map(|v| v.parse().unwrap()).collect();
    let [min, max, called_median] = last.as_slice() else { panic!("{row}") };
    let most = |a: f64, b: f64| a.max(b);
    assert!((mean(&each).unwrap() - called_median).abs() < 1e-3, "{each:?} {called_median}");
    assert!((each.iter().copied().fold(0.0, most) - max).abs() < 1e-3, "{each:?} {max}");
    assert!((each.iter().copied().fold(f64::INFINITY, f64::min) - min).abs() < 1e-3, "{each:?} {min}");
    // The runs themselves.
    let record = read("N1000-16to256");
    let runs: Vec<f64> = record.cells[0]
        .tenants
        .iter()
        .flat_map(|t| t.runs.iter().map(|r| 1e3 * (r.end_s - r.start_s - 10.0)))
        .collect();
    let beyond =
        (mean(&runs).unwrap(), median(runs.iter().copied()).unwrap(), runs.iter().copied().fold(0.0, most));
    assert!((beyond.0 - 62.8).abs() < 0.1 && (beyond.1 - 35.6).abs() < 0.1, "{beyond:?}");
    assert!((beyond.2 - 372.5).abs() < 0.5, "{beyond:?}");
}

#[test]
fn openssls_verifications_are_read_and_hosts_without_units_too() {
    let study_of = study(&read("openssl"));
    for tenant in &study_of.points[0].tenants {
        let (sign, verify) = (tenant.events_per_s.unwrap().mean, tenant.verify_per_s.unwrap().mean);
        assert!(verify > 20.0 * sign, "{}: {sign} {verify}", tenant.name);
    }
    for host in ["mbp", "rpi1", "rpi3"] {
        assert!(read(host).cells[0].tenants.iter().all(|t| t.units.is_none()), "{host}");
    }
}

/// The source's question: a router of 1255 published units does 1158 events/s, one of 732 does 228.
#[test]
fn published_units_do_not_carry_over_from_one_router_to_the_other() {
    let sides = [Side::of("ir1101", read("single-THn")), Side::of("ir809", read("ir8x9"))];
    let view = platforms(&sides, &[Some(1255.0), Some(732.0)]);
    let of = |rate: &str| view.promises.iter().find(|p| p.rate == rate).unwrap();
    let one = of("one-thread");
    // 1158.54 * 732 / 1255; the source says "about 750".
    assert!((one.promised_per_s.value - 675.74).abs() < 0.1, "{one:?}");
    assert!((one.measured_per_s.value - 228.6).abs() < 0.3, "{one:?}");
    assert!((one.ratio.value - 0.338).abs() < 0.001 && one.ratio.high < 0.5, "{one:?}");
    // Several threads do not help: two do 2027.65 on the one, 228.35 on the other.
    let several = of("threads");
    assert!((several.promised_per_s.value - 2027.65 * 732.0 / 1255.0).abs() < 0.1, "{several:?}");
    assert!((several.measured_per_s.value - 228.35).abs() < 0.1, "{several:?}");
    for verdict in &view.verdicts {
        assert_eq!((verdict.id.as_str(), verdict.holds), ("published-units-carry-over", Some(false)));
        assert!(verdict.text.contains("do not carry over from A to B"), "{}", verdict.text);
    }
    assert_eq!(view.verdicts.len(), 2);
    // The small router ran one container only: nothing is known of shares there.
    assert!(
        view.shape.is_empty() && view.missing.iter().any(|m| m.contains("is not shown")),
        "{:?}",
        view.missing
    );
    // The other way round, and from containers of all numbers of units, it is the same answer.
    let sides = [Side::of("ir809", read("ir8x9")), Side::of("ir1101", read("single"))];
    let back = platforms(&sides, &[Some(732.0), Some(1255.0)]);
    let one = &back.promises[0];
    assert!(
        (one.measured_per_s.value - 1156.5).abs() < 1.0 && (one.ratio.value - 2.95).abs() < 0.02,
        "{one:?}"
    );
    assert_eq!(back.verdicts[0].holds, Some(false));
}

/// Four and eight containers of 128 units, 100 runs each.
#[test]
fn four_and_eight_containers_of_equal_units_are_compared_by_units() {
    let sides = [Side::of("four", read("N100-128x4")), Side::of("eight", read("N100-128x8"))];
    let result = compare(&sides);
    let row = |quantity: &str| result.rows.iter().find(|r| r.quantity == quantity).unwrap();
    let rate = row("events_per_s");
    assert_eq!((rate.tenant.as_str(), rate.verdict.as_str()), ("128 units (4 and 8 tenants)", "worse"));
    assert!((rate.changes_pct[0].unwrap().value + 50.0).abs() < 3.0, "{rate:?}");
    assert!(
        result.matched[0].differs && result.matched[0].note.contains("25 % in A, 12.5 % in B"),
        "{:?}",
        result.matched
    );
    // Quantiles are those of all runs of all containers.
    for (feature, at) in [("p50", 0.5), ("p90", 0.9)] {
        let of = |r: &&DistributionRow| r.quantity == "run_s" && r.feature == feature;
        let found = result.distributions.iter().find(of).unwrap();
        for (side, value) in sides.iter().zip(&found.values) {
            let mut runs: Vec<f64> = side.record.cells[0]
                .tenants
                .iter()
                .flat_map(|t| t.runs.iter().map(|r| r.end_s - r.start_s))
                .collect();
            runs.sort_by(f64::total_cmp);
            let value = value.unwrap();
            assert!((value.value - quantile(&runs, at).unwrap()).abs() < 1e-9, "{feature}: {value:?}");
            assert!(value.low <= value.value && value.value <= value.high, "{feature}: {value:?}");
        }
    }
    // The same list twice: nothing changed, and the competition is the same.
    let same = compare(&[sides[0].clone(), sides[0].clone()]);
    assert!(
        same.matched[0].note.is_empty() && same.rows.iter().all(|r| r.verdict != "worse"),
        "{:?}",
        same.rows
    );
    // Nothing in common: 64 and 128 units.
    let none = compare(&[Side::of("a", read("N100-64x4")), sides[1].clone()]);
    assert!(none.rows.is_empty() && none.unmatched[0].contains("it has 128x8"), "{:?}", none.unmatched);
}
