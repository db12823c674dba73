//! The same episodes as counters, judged by Prometheus' own `promtool` with the rules that are shipped.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::process::Command;

use super::scene::{Episode, Fault, LENGTH};

/// Seconds between two scrapes.
const SCRAPE: usize = 15;
const RULES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../monitoring/prometheus/alerts.yaml");
const ALERTS: [(&str, &str); 3] = [
    ("EvenkeelStarved", "starved"),
    ("EvenkeelThrottledHarmfully", "throttled"),
    ("EvenkeelStealBegins", "steal"),
];

pub fn judge(episodes: &[Episode]) -> Vec<BTreeSet<Fault>> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("labelled.yaml");
    std::fs::write(&file, tests(episodes)).unwrap();
    let out = Command::new("promtool").args(["test", "rules"]).arg(&file).output();
    let out = out.expect("promtool must be installed for this test (Debian: apt-get install prometheus)");
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    let mut fired = vec![BTreeSet::new(); episodes.len()];
    let mut known = 0;
    // The test asks for a sample that cannot be: promtool answers with those that are there.
    let got = said.split("got:").nth(1).unwrap_or_else(|| panic!("{said}"));
    for sample in got.split('{').skip(1).filter_map(|part| part.split('}').next()) {
        let label = |name: &str| {
            let begin = format!("{name}=\"");
            sample.split(&begin).nth(1).and_then(|rest| rest.split('"').next())
        };
        let Some((_, kind)) = ALERTS.iter().find(|(alert, _)| Some(*alert) == label("alertname")) else {
            continue;
        };
        let episode: usize = label("instance").unwrap().parse().unwrap();
        let service = label("id").map(|id| id.trim_start_matches("/s").parse().unwrap());
        fired[episode].insert((*kind, service));
        known += 1;
    }
    assert!(known > 0, "{said}");
    fired
}

/// Numbers of a series: a counter that has reached so much.
fn counter(values: impl Iterator<Item = f64>) -> String {
    let mut sum = 0.0;
    let mut text = String::from("0");
    for (second, value) in values.enumerate() {
        sum += value;
        if (second + 1) % SCRAPE == 0 {
            let _ = write!(text, " {sum:.4}");
        }
    }
    text
}

fn tests(episodes: &[Episode]) -> String {
    let mut text = format!(
        "rule_files: ['{RULES}']\nevaluation_interval: {SCRAPE}s\ntests:\n- interval: {SCRAPE}s\n  input_series:\n"
    );
    let mut series = |name: &str, labels: &str, values: &str| {
        let _ = writeln!(text, "  - series: 'evenkeel_{name}{{{labels}}}'\n    values: '{values}'");
    };
    for (number, episode) in episodes.iter().enumerate() {
        let host = format!("instance=\"{number}\",job=\"evenkeel\"");
        let cpu = format!("{host},cpu=\"0\"");
        series("host_cpus", &host, &format!("{}x{}", episode.cpus, LENGTH / SCRAPE));
        series("host_cpu_busy_seconds_total", &cpu, &counter(episode.busy.iter().copied()));
        series("host_cpu_stolen_seconds_total", &cpu, &counter(episode.stolen.iter().copied()));
        for (service, seconds) in episode.services.iter().enumerate() {
            let labels = format!("{host},namespace=\"\",pod=\"\",container=\"\",id=\"/s{service}\"");
            series("cpu_seconds_total", &labels, &counter(seconds.iter().map(|one| one.cpu)));
            series("cpu_wait_seconds_total", &labels, &counter(seconds.iter().map(|one| one.wait)));
            series("cpu_throttled_seconds_total", &labels, &counter(seconds.iter().map(|one| one.throttled)));
        }
    }
    let _ = writeln!(
        text,
        "  promql_expr_test:\n  - expr: count by (alertname, instance, id) (count_over_time(ALERTS{{alertstate=\"firing\"}}[1h]))\n    \
         eval_time: {}s\n    exp_samples: [{{labels: '{{no=\"such\"}}', value: 1}}]",
        LENGTH
    );
    text
}
