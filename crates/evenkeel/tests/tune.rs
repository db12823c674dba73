//! `evenkeel tune` on programs whose best settings are known, and on everything that can go wrong.

mod program;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use evenkeel_linux::testing::until;
use program::{Ended, end, evenkeel};
use serde_json::Value;

/// A directory with a tune file.
struct Bench {
    dir: tempfile::TempDir,
}

impl Bench {
    fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("t.toml"), text).unwrap();
        Self { dir }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = evenkeel(["tune", "t.toml", "--dir", "out", "--state-dir", "state"]);
        command.args(arguments).current_dir(self.path());
        command
    }

    #[track_caller]
    fn run(&self, arguments: &[&str]) -> Ended {
        end(&mut self.command(arguments))
    }

    fn out(&self) -> PathBuf {
        self.path().join("out")
    }

    fn trials(&self) -> usize {
        std::fs::read_to_string(self.out().join("trials.jsonl"))
            .map_or(0, |t| t.lines().count().saturating_sub(1))
    }

    /// Processes whose command line names this directory.
    fn left_running(&self) -> Vec<String> {
        let name = self.path().display().to_string();
        let lines = std::fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
            let line = std::fs::read(entry.path().join("cmdline")).ok()?;
            Some(String::from_utf8_lossy(&line).replace('\0', " "))
        });
        lines.filter(|line| line.contains(&name)).collect()
    }
}

/// Smallest at x = 30: its own program computes (x - 30)^2.
const PARABOLA: &str = r#"
[[parameter]]
name = "x"
kind = "integer"
low = 0
high = 100
present = 90
[measure]
command = ["sh", "-c", "echo \"{\\\"y\\\": $((({x} - 30) * ({x} - 30)))}\""]
[objective]
name = "y"
goal = "min"
json = "/y"
[budget]
trials = 30
"#;

#[test]
fn the_best_settings_are_found_and_told_in_every_form() {
    let bench = Bench::new(PARABOLA);
    let checked = bench.run(&["--check", "-o", "json"]).json();
    assert_eq!((&checked["schema"], &checked["points"]), (&"evenkeel.tune-check/v1".into(), &101.into()));
    bench.run(&["--check", "-o", "csv"]).says(2, "no table");
    let result = bench.run(&["-o", "json"]).json();
    assert_eq!(result["schema"], "evenkeel.tune/v1");
    assert!(result["best"]["value"].as_f64().unwrap() <= 16.0, "{}", result["best"]);
    assert_eq!(result["present"]["value"], 3600.0);
    assert_eq!(result["trials"], 30);
    assert_eq!(result["values"].as_array().unwrap().len(), 30);
    let csv = std::fs::read_to_string(bench.out().join("trials.csv")).unwrap();
    assert_eq!(csv.lines().count(), 31);
    assert!(csv.starts_with("trial,reason,x,y,worth,kept,seconds,error\n1,new,90,3600,"), "{csv}");
    let page = std::fs::read_to_string(bench.out().join("report.html")).unwrap();
    assert!(page.contains("</svg>") && page.contains("Best y"));
    // Everything is known: the same command only tells it again.
    assert!(bench.run(&[]).ok().contains("30 trials"));
    // It is shown on another host, too, but not gone on with.
    let path = bench.out().join("trials.jsonl");
    let record = std::fs::read_to_string(&path).unwrap();
    let (head, trials) = record.split_once('\n').unwrap();
    let mut other: Value = serde_json::from_str(head).unwrap();
    other["host"]["kernel"] = "2.6.32".into();
    std::fs::write(&path, format!("{other}\n{trials}")).unwrap();
    bench.run(&[]).ok();
    bench.run(&["--trials", "33"]).says(2, "and not \"2.6.32\"");
    std::fs::write(&path, record).unwrap();
    // A larger budget goes on from there.
    bench.run(&["--trials", "33"]).ok();
    // The last of them compare the best with the present settings, in pairs: one may be left over.
    assert!((32..=33).contains(&bench.trials()), "{}", bench.trials());
}

#[test]
fn every_method_runs_and_keeps_to_the_constraints() {
    let text = PARABOLA.replace("[budget]", "[[quantity]]\nname = 'z'\njson = '/y'\n[budget]");
    let bench = Bench::new(&format!("constraints = ['z > 99']\n{text}"));
    for method in ["exhaustive", "random", "coordinate", "gradient", "bayesian"] {
        let result = bench.run(&["--method", method, "--fresh", "--trials", "14", "-o", "json"]).json();
        assert!(result["best"]["value"].as_f64().unwrap() > 99.0, "{method}: {}", result["best"]);
    }
    let bench = Bench::new(&format!("constraints = ['z < -1']\n{text}"));
    bench.run(&["--trials", "5"]).says(1, "no settings keep the constraints");
}

/// A service that leaves a child behind and takes its time; measured for as long as it is asked to.
fn slow(bench_dir: &str) -> String {
    format!(
        r#"
[[parameter]]
name = "x"
kind = "integer"
low = 0
high = 100
[service]
command = ["sh", "-c", "(while :; do sleep 1; done) & while :; do sleep 1; done # {{x}} {bench_dir}"]
[measure]
command = ["sh", "-c", "echo y={{x}}; sleep 0.2"]
[objective]
name = "y"
goal = "min"
regex = "y=([0-9]+)"
[budget]
trials = 6
[search]
finalists = 0
repeats = 1
"#
    )
}

#[test]
fn killed_or_interrupted_it_leaves_nothing_and_goes_on() {
    let bench = Bench::new("");
    let text = slow(&bench.path().display().to_string());
    std::fs::write(bench.path().join("t.toml"), text).unwrap();
    let start = || bench.command(&[]).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut killed = start();
    until("two trials", || bench.trials() >= 2);
    killed.kill().unwrap();
    killed.wait().unwrap();
    until("its processes end", || bench.left_running().is_empty());
    let had = bench.trials();
    let mut interrupted = start();
    until("another trial", || bench.trials() > had);
    // SAFETY: our own child, not yet waited for.
    unsafe { libc::kill(interrupted.id() as i32, libc::SIGINT) };
    let status = interrupted.wait().unwrap();
    let mut said = String::new();
    interrupted.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("the same command goes on"), "{said}");
    // The page goes round by itself.
    let page = std::fs::read_to_string(bench.out().join("report.html")).unwrap();
    assert!(page.contains("interrupted after"), "{page}");
    assert!(bench.left_running().is_empty(), "{:?}", bench.left_running());
    bench.run(&[]).ok();
    assert_eq!(bench.trials(), 6);
    let record = std::fs::read_to_string(bench.out().join("trials.jsonl")).unwrap();
    let numbers: Vec<Value> =
        record.lines().skip(1).map(|l| serde_json::from_str::<Value>(l).unwrap()["number"].clone()).collect();
    assert_eq!(numbers, (1..=6).map(Value::from).collect::<Vec<_>>());
    assert!(bench.left_running().is_empty());
}

#[test]
fn what_cannot_work_says_why() {
    let json = r#"echo \"{\\\"y\\\": $((({x} - 30) * ({x} - 30)))}\""#;
    for (from, to, status, part) in [
        ("high = 100", "high = -1", 2, "t.toml:2: parameter \"x\": its range is reversed"),
        ("high = 100", "hihg = 100", 2, "t.toml:6: unknown key `hihg`, did you mean `high`?"),
        (json, "echo nonsense {x}", 1, "no JSON in the output"),
        (json, "echo {x} >&2; exit 3", 1, "ended with status 3: \"90\""),
        ("\"sh\", ", "\"/nonexistent/program\", ", 1, "no such command"),
        (
            "[measure]",
            "[service]\ncommand = ['sh', '-c', 'echo port in use; exit 1']\n[measure]",
            1,
            "port in use",
        ),
        (
            "[measure]",
            "[service]\ncommand = ['sleep', '9']\nready = 'tcp://127.0.0.1:9'\nready_within_s = 0.3\n[measure]",
            1,
            "tcp://127.0.0.1:9 does not answer after 0.3 s",
        ),
    ] {
        let text = PARABOLA.replace(from, to);
        assert_ne!(text, PARABOLA, "{from}");
        let ended = Bench::new(&text).run(&[]).with(status);
        assert!(ended.stderr.contains(part), "{to}: {ended}");
    }
    let bench = Bench::new(PARABOLA);
    bench.run(&["--trials", "2"]).ok();
    std::fs::write(bench.path().join("t.toml"), PARABOLA.replace("- 30", "- 31")).unwrap();
    bench.run(&[]).says(2, "--fresh");
}

#[test]
fn somebody_elses_service_is_not_measured() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let service = format!("[service]\ncommand = ['sleep', '9']\nready = 'tcp://{address}'\n[measure]");
    Bench::new(&PARABOLA.replace("[measure]", &service)).run(&[]).says(3, "already");
}

#[test]
fn objectives_are_read_from_metrics_and_addresses() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    // Ends with the test's process.
    std::thread::spawn(move || {
        let mut count = 0;
        while let Ok((mut stream, _)) = listener.accept() {
            let mut request = [0; 500];
            let n = stream.read(&mut request).unwrap_or(0);
            count += 10;
            let body = if request[..n].starts_with(b"GET /metrics") {
                format!("requests_total{{code=\"200\"}} {count}\n")
            } else {
                "{\"latency\": {\"p99\": 7.5}}".into()
            };
            let _ = write!(stream, "HTTP/1.0 200 OK\r\n\r\n{body}");
        }
    });
    let text = format!(
        "[[parameter]]\nname = 'x'\nkind = 'integer'\nlow = 1\nhigh = 3\n[service]\ncommand = ['sleep', '9{{x}}']\n\
         [measure]\nseconds = 0.1\n[objective]\nname = 'rate'\ngoal = 'max'\nprometheus = 'http://{address}/metrics'\n\
         metric = 'requests_total'\nrate = true\n[[quantity]]\nname = 'p99'\nurl = 'http://{address}/stats'\n\
         json = '/latency/p99'\n[budget]\ntrials = 3\n[search]\nfinalists = 0\nrepeats = 1\n"
    );
    let result = Bench::new(&text).run(&["-o", "json"]).json();
    assert!(result["best"]["value"].as_f64().unwrap() > 0.0);
    assert_eq!(result["best"]["quantities"]["p99"], 7.5);
}

#[test]
fn a_services_cpu_time_has_that_of_workers_that_ended_meanwhile() {
    let text = "[[parameter]]\nname = 'x'\nkind = 'integer'\nlow = 5000\nhigh = 5001\n[service]\n\
         command = ['sh', '-c', 'while :; do sh -c \"i=0; while [ \\$i -lt {x} ]; do i=\\$((i+1)); done\"; done']\n\
         [measure]\nseconds = 1.5\n[objective]\nname = 'cpu'\ngoal = 'min'\naccount = 'cpu_s'\n\
         [budget]\ntrials = 1\n[search]\nfinalists = 0\nrepeats = 1\n";
    let result = Bench::new(text).run(&["-o", "json"]).json();
    // Each lives for about a hundredth of a second: all but one of them have ended.
    assert!(result["best"]["value"].as_f64().is_some_and(|cpu_s| cpu_s > 0.1), "{result:#}");
}

#[test]
fn the_simulator_shows_where_to_begin() {
    // The model: a spinner in a group whose quota is the parameter; more quota, more CPU.
    let text = r#"
[[parameter]]
name = "quota"
kind = "integer"
low = 10
high = 100
[measure]
command = ["sh", "-c", "echo y={quota}"]
[objective]
name = "y"
goal = "max"
regex = "y=([0-9]+)"
[budget]
trials = 3
[search]
finalists = 0
repeats = 1
[simulate]
quantity = "got_pct"
points = 12
experiment = """
name = 'm'
duration_s = 1
[machine]
cpus = 1
[[group]]
name = 'g'
quota_pct = {quota}
[[task]]
kind = 'spin'
group = 'g'
"""
"#;
    let result = Bench::new(text).run(&["-o", "json"]).json();
    let warm = result["warm"].as_array().unwrap();
    assert_eq!(warm.len(), 3);
    // The first trial is the point that is best in the model.
    assert_eq!(
        result["values"][0].to_string().trim_end_matches(".0"),
        warm[0]["settings"]["quota"].as_str().unwrap()
    );
    assert!(result["values"][0].as_f64().unwrap() >= 70.0, "{}", result["values"]);
}
