//! `lab report` of the experiment `neighbour`, from a result folder that an earlier version wrote: the record stays readable, and
//! every sentence says what follows from it.

mod program;

use std::path::Path;

use serde_json::Value;

/// `lab run neighbour --service wakeup --load 200 --arm default,cpu-idle,weight,nice,evenkeel` of three repetitions, on a host
/// of two CPUs that others kept busy.
const RECORD: &str = include_str!("neighbour/record.json");

/// What it printed on stdout when it ended well.
#[track_caller]
fn said(args: &[&str], dir: &Path) -> String {
    program::end_in(dir, args).ok()
}

fn folder() -> tempfile::TempDir {
    program::folder("a/record.json", RECORD)
}

/// A value of an arm by repetition, from the raw record.
fn raw(arm: &str, of: impl Fn(&Value) -> f64) -> Vec<f64> {
    let record: Value = serde_json::from_str(RECORD).unwrap();
    let point = record["points"].as_array().unwrap().iter().position(|p| p["arm"] == arm).unwrap();
    let cells = record["cells"].as_array().unwrap().iter().filter(|cell| cell["point"] == point);
    let mut found: Vec<(u64, f64)> = cells.map(|c| (c["repetition"].as_u64().unwrap(), of(c))).collect();
    found.sort_by_key(|(repetition, _)| *repetition);
    found.into_iter().map(|(_, value)| value).collect()
}

fn p99(cell: &Value) -> f64 {
    cell["measured"]["latency"]["p99_usec"].as_f64().unwrap()
}

/// The geometric mean of the ratios of the same repetition.
fn times(over: &[f64], under: &[f64]) -> f64 {
    let logs: f64 = over.iter().zip(under).map(|(a, b)| (a / b).ln()).sum();
    (logs / over.len() as f64).exp()
}

#[test]
fn every_sentence_says_what_follows_from_the_record() {
    let dir = folder();
    let text = said(&["lab", "report", "a"], dir.path());
    let sentence = |begin: &str| {
        let found = text.lines().find(|line| line.starts_with(&format!("* {begin}")));
        found.unwrap_or_else(|| panic!("no {begin:?}: {text}"))
    };
    let (alone, default) = (raw("alone", p99), raw("default", p99));
    let is = |line: &str, value: f64| {
        let part = format!("99th percentile is {value:.2} [");
        assert!(line.contains(&part), "{part} is not in {line}");
    };
    is(
        sentence("Whether wakeup next to loops of 200 % keeps its latency under the kernel's default"),
        times(&default, &alone),
    );
    is(sentence("Whether nice 19 helps wakeup"), times(&raw("nice", p99), &default));
    is(
        sentence("Whether evenkeel, after 30 s (in force: kernel default in 3 of 3), helps"),
        times(&raw("evenkeel", p99), &default),
    );
    let first = raw("evenkeel", |cell| cell["from_start"]["latency"]["p99_usec"].as_f64().unwrap());
    is(sentence("Whether evenkeel, in its first 30 s, trial included, helps"), times(&first, &default));
    // The best lever is the one of the shortest latency.
    let best = raw("weight", p99);
    assert!(times(&best, &raw("cpu-idle", p99)) < 1.0 && times(&best, &raw("nice", p99)) < 1.0);
    let line = sentence("For wakeup next to loops of 200 % it is open whether evenkeel");
    assert!(line.contains("(least weight)"), "{line}");
    is(line, times(&raw("evenkeel", p99), &best));
    // What others took is said, and that the host was not quiet.
    assert!(
        text.contains("Other programs used 126 % of a CPU meanwhile")
            && text.contains("! quiet-host: not met"),
        "{text}"
    );
}

#[test]
fn the_folder_gets_documents_a_page_and_a_picture() {
    let dir = folder();
    said(&["lab", "report", "a"], dir.path());
    let read = |name: &str| std::fs::read_to_string(dir.path().join("a").join(name)).unwrap();
    let study: Value = serde_json::from_str(&read("study.json")).unwrap();
    assert_eq!(study["schema"], "evenkeel.lab-neighbour-study/v1");
    // The service alone, four arms, and evenkeel twice.
    assert_eq!(study["rows"].as_array().unwrap().len(), 7);
    let page = read("report.html");
    for part in
        ["<svg", "What does a service feel of batch work next to it?", "cpu.idle", "Evenkeel&#39;s choice"]
    {
        assert!(page.contains(part) || page.contains(&part.replace("&#39;", "'")), "{part}");
    }
    assert!(
        read("report.md").contains("| wakeup next to loops of 200 %, least weight | 3 |"),
        "{}",
        read("report.md")
    );
    assert!(read("picture.svg").starts_with("<svg") && read("picture.svg").contains("evenkeel, after 30 s"));
    assert_eq!(
        said(&["lab", "report", "a", "--dry-run", "-o", "svg"], dir.path()).trim(),
        read("picture.svg").trim()
    );
    let csv = said(&["lab", "report", "a", "--dry-run", "-o", "csv"], dir.path());
    assert_eq!(csv, read("points.csv"));
    assert!(csv.starts_with("service,batch,load_pct,arm,repetitions,") && csv.lines().count() == 8, "{csv}");
    let json: Value =
        serde_json::from_str(&said(&["lab", "report", "a", "--dry-run", "-o", "json"], dir.path())).unwrap();
    assert_eq!(json, study);
}
