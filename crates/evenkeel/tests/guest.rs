//! The binary inside an emulated machine: cgroup v2, NUMA nodes, isolated CPUs, whatever this host lacks.
//!
//! A scenario is a shell script in `scripts/guest/scenarios/`, which also says what machine it wants; it hands named
//! results back, and the `#[test]` here judges them. `scripts/guest/run.sh NAME` runs one by hand. The processor is
//! emulated, so nothing here judges how long something took.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Mutex;

/// What a scenario handed back.
struct Results {
    named: BTreeMap<String, String>,
}

impl Results {
    /// A result as text, without the blank at its end.
    fn text(&self, name: &str) -> &str {
        self.named.get(name).unwrap_or_else(|| panic!("the scenario gave no result {name:?}")).trim_end()
    }

    /// A result as one JSON document.
    fn json(&self, name: &str) -> serde_json::Value {
        let text = self.text(name);
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{name} is not JSON: {error}\n{text}"))
    }
}

/// Guests share two emulated-on processors badly: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Boots a guest, runs `scripts/guest/scenarios/NAME.sh` in it and returns its results. Panics, with the console's
/// last lines, when the guest does not get to the end or the scenario fails.
fn scenario(name: &str) -> Results {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guest").join(name);
    let output = Command::new(root.join("scripts/guest/run.sh"))
        .args([name, env!("CARGO_BIN_EXE_evenkeel")])
        .arg(&out)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stdout = String::from_utf8_lossy(&output.stdout);
    let stderr = String::from_utf8_lossy(&output.stderr);
    if let Some(reason) = stdout.lines().find_map(|line| line.strip_prefix("@@fail ")) {
        panic!("scenario {name}: {reason}\n{stderr}");
    }
    assert!(output.status.success(), "scenario {name}: {}\n{stdout}\n{stderr}", output.status);
    Results { named: parse(&stdout) }
}

/// Reads what stands between `@@begin NAME` and `@@end NAME`.
fn parse(text: &str) -> BTreeMap<String, String> {
    let mut named = BTreeMap::new();
    let mut open: Option<(&str, String)> = None;
    for line in text.lines() {
        let line = line.trim_end_matches('\r');
        if let Some(name) = line.strip_prefix("@@begin ") {
            open = Some((name, String::new()));
        } else if line.starts_with("@@end ") {
            named.extend(open.take().map(|(name, body)| (name.to_owned(), body)));
        } else if let Some((_, body)) = &mut open {
            body.push_str(line);
            body.push('\n');
        }
    }
    named
}

#[test]
fn the_machine_is_what_the_scenario_asked_for() {
    let machine = scenario("machine");
    assert_eq!(machine.text("online"), "0-3");
    assert_eq!(machine.text("nodes"), "0-1");
    assert_eq!(machine.text("isolated"), "3");
    assert_eq!(machine.text("own_group"), "0::/one");
    assert!(machine.text("controllers").split(' ').any(|controller| controller == "cpu"));
    assert_eq!(machine.text("wrong_usage"), "2");
    assert!(machine.text("version").starts_with("evenkeel "));
    let load = machine.json("load");
    assert_eq!(load["schema"], "evenkeel.load/v1");
    assert_eq!(load["wanted_pct"], 10.0);
}

/// Subjects of the findings of a rule that have a status.
fn subjects<'a>(check: &'a serde_json::Value, rule: &str, status: &str) -> Vec<&'a str> {
    let findings = check["findings"].as_array().unwrap().iter();
    findings
        .filter(|f| f["rule"] == rule && f["status"] == status)
        .map(|f| f["subject"].as_str().unwrap())
        .collect()
}

#[test]
fn check_names_what_is_wrong_and_falls_silent_when_it_is_mended() {
    let results = scenario("check");
    let wrong = results.json("wrong");
    assert_eq!(results.text("wrong_status"), "1");
    let rogue = results.text("rogue");
    let found = subjects(&wrong, "isolated-task", "fail");
    assert!(found.iter().any(|subject| subject.contains(rogue)), "task {rogue} on CPU 3: {wrong:#}");
    assert_eq!(subjects(&wrong, "quota-throttled", "fail"), ["cgroup /tight"], "{wrong:#}");
    assert_eq!(subjects(&wrong, "quota-threads", "fail"), ["cgroup /tight"], "{wrong:#}");
    for finding in wrong["findings"].as_array().unwrap().iter().filter(|f| f["status"] == "fail") {
        assert!(finding["evidence"].is_string() && finding["fix"].is_string(), "{finding:#}");
    }

    // Without a policy nothing is expected of the isolated CPUs; with one, they have to be those.
    assert_eq!(subjects(&wrong, "isolated-as-expected", "fail"), Vec::<&str>::new());
    assert_eq!(subjects(&results.json("expected"), "isolated-as-expected", "fail").len(), 1);
    assert_eq!(results.text("bad_policy"), "2");

    let mended = results.json("mended");
    for rule in ["isolated-task", "quota-throttled", "quota-threads"] {
        assert_eq!(subjects(&mended, rule, "fail"), Vec::<&str>::new(), "{rule}: {mended:#}");
        assert_ne!(subjects(&mended, rule, "pass"), Vec::<&str>::new(), "{rule}: {mended:#}");
    }
}
