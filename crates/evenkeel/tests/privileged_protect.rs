//! `[[protect]]` on this kernel: waits of the protected are measured in every window, its tasks are left alone, and what
//! was kept does not break it. Needs root.

mod scene;

use std::path::Path;
use std::time::Duration;

use scene::{Agent, Group, begin, crowd, end, facts, run, snapshot, with_crowd};
use serde_json::Value;

fn config(dir: &Path, protect: &str) -> String {
    scene::hurried_with(dir, "6s", protect)
}

fn p99(window: &Value) -> Option<f64> {
    window["protected_p99_ms"][0].as_f64()
}

/// The 99th percentile that a run's last trial measured for the first protection under some settings, each window's own.
fn windows<'a>(history: &'a Value, settings: &'a str) -> impl Iterator<Item = f64> + 'a {
    let of = move |window: &&Value| window["settings"] == settings;
    history["trials"].as_array().unwrap().iter().filter(of).filter_map(p99)
}

#[test]
fn the_protected_are_measured_and_left_alone() {
    let (_turn, dir, group, loads) = with_crowd(begin(), "protect");
    let precious = &loads[1];
    let protect = format!("[[protect]]\nscope = \"{}\"\n", precious.scope());
    let config = config(dir.path(), &protect);
    let before = snapshot(&[&group]);
    let found = facts(precious.pid()).unwrap();
    let args = ["--config", &config, "run", "--scope", &group.scope(), "--for", "14s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &args);
    let mut changed = 0;
    while agent.process.try_wait().unwrap().is_none() {
        assert_eq!(facts(precious.pid()).unwrap(), found, "the protected task was changed");
        changed += usize::from(snapshot(&[&group]) != before);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = agent.end();
    let document = output.json();
    assert!(changed > 0, "nothing was tried: {} {document:#}", output.stderr);
    assert_eq!(snapshot(&[&group]), before);

    let status = &document["protected"][0];
    assert_eq!((&status["name"], &status["tasks"]), (&precious.scope().into(), &1.into()), "{document:#}");
    assert_eq!(status["estimated"], false, "programs in the kernel count here: {}", output.stderr);
    let history = run(dir.path(), &["history", "--run", "last", "-o", "json"]).json();
    // On a crowded host a window may hold no wait that ended; of all windows some do.
    let all: Vec<f64> = history["trials"].as_array().unwrap().iter().filter_map(p99).collect();
    assert!(!all.is_empty() && all.iter().all(|ms| *ms > 0.0), "{history:#}");
    assert!(windows(&history, "kernel default").next().is_some(), "never under the default: {history:#}");
    let default_ms = status["default_p99_ms"].as_f64().unwrap();
    let limit = status["limit_ms"].as_f64().unwrap();
    assert!(limit >= 1.5 * default_ms - 1e-6, "{document:#}");
    // Whatever was kept, most of its windows are within the limit: the percentile over all of them is.
    let kept = document["stages"].as_array().unwrap().iter().find(|stage| stage["kept"] == true).unwrap();
    let kept = kept["name"].as_str().unwrap().strip_prefix("trial ").unwrap();
    let mut waits: Vec<f64> = windows(&history, kept).collect();
    waits.sort_by(f64::total_cmp);
    let first_trial_only = history["trials"].as_array().unwrap().iter().all(|window| window["trial"] == 1);
    if first_trial_only && !waits.is_empty() {
        assert!(waits[0] <= limit, "{kept}: {waits:?} beyond {limit}");
    }
}

#[test]
fn without_programs_in_the_kernel_means_are_taken_and_that_is_said() {
    let (_turn, dir, group, _loads) = with_crowd(begin(), "means");
    let protect = format!("[[protect]]\nscope = \"{}\"\nwait_p99 = \"500ms\"\n", group.scope());
    let config = config(dir.path(), &protect);
    // A kernel without BTF, as far as it can see.
    let hidden = "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"";
    let mut command = std::process::Command::new("unshare");
    command.args(["-m", "sh", "-c", hidden, "sh", env!("CARGO_BIN_EXE_evenkeel"), "--state-dir"]);
    command.arg(dir.path());
    command.args([
        "--config",
        &config,
        "run",
        "--scope",
        "cgroup:/no/such/group",
        "--for",
        "5s",
        "-o",
        "json",
    ]);
    let output = end(&mut command);
    let document = output.json();
    let status = &document["protected"][0];
    assert!(output.stderr.contains("means for each switch"), "{}", output.stderr);
    assert_eq!((&status["estimated"], &status["tasks"]), (&true.into(), &8.into()), "{document:#}");
    // Nothing was decided, so that the bound alone is known; eight loads on two CPUs wait. Means are less than a 99th percentile.
    assert_eq!((&status["limit_ms"], &status["state"]), (&500.0.into(), &"at risk".into()), "{document:#}");
    assert!(status["p99_ms"].as_f64().is_some_and(|ms| ms > 0.0 && ms < 500.0), "{document:#}");
    assert!(status["waits"].as_u64().is_some_and(|waits| waits > 50), "{document:#}");
}

/// Two names for one process: each of them waits.
#[test]
fn services_that_share_a_process_both_wait() {
    let (_turn, dir, group, loads) = with_crowd(begin(), "shared");
    let services: String = [group.scope(), loads[1].scope(), loads[2].scope()]
        .map(|scope| format!("[[service]]\nscope = \"{scope}\"\n"))
        .concat();
    let config = config(dir.path(), &services);
    let args = ["--config", &config, "run", "--scope", "cgroup:/no/such/group", "--for", "5s", "-o", "json"];
    let document = run(dir.path(), &args).json();
    let waits = |at: usize| document["protected"][at]["waits"].as_u64().unwrap();
    assert_eq!(document["protected"][0]["estimated"], false, "{document:#}");
    assert!(waits(1) > 0 && waits(2) > 0 && waits(0) >= waits(1) + waits(2), "{document:#}");
}

/// Waits by length of each owner, of the windows of a trial.
#[derive(Default)]
struct Windows {
    seen: Vec<(f64, std::collections::BTreeMap<String, u64>)>,
}

impl evenkeel_agent::Watcher for Windows {
    fn event(&mut self, event: &evenkeel_agent::Event<'_>) {
        if let evenkeel_agent::Event::Window { summary, .. } = event {
            let counts = summary.waits.iter().map(|(owner, waits)| (owner.to_string(), waits.total()));
            self.seen.push((summary.seconds, counts.collect()));
        }
    }
}

/// Who is outside the scope is judged by the lengths of his waits: in every window of a trial they must have been counted.
#[test]
fn waits_outside_the_scope_are_counted_in_every_window() {
    let (_turn, dir) = begin();
    let (mine, other) = (Group::new("mine"), Group::new("outside"));
    let often =
        ["load", "duty", "--percent", "10", "--period", "5ms", "--kind", "closed", "--seconds", "600"];
    let _loads = (crowd(&mine), other.start(env!("CARGO_BIN_EXE_evenkeel"), &often));
    let mut config =
        evenkeel_agent::Config::new(evenkeel_agent::Scope::parse(&[mine.scope()]).unwrap(), dir.path());
    (config.decide_within, config.closer_look) = (Duration::from_secs(10), Duration::ZERO);
    (config.as_found, config.rules.always_confirm) = (true, true);
    let mut agent = evenkeel_agent::Agent::new(config, &mut evenkeel_agent::Quiet).unwrap();
    let mut windows = Windows::default();
    agent.decide(&mut windows).unwrap().unwrap();
    assert!(agent.close("test").is_clean());
    assert!(windows.seen.len() > 1, "{:?}", windows.seen);
    for (seconds, counts) in &windows.seen {
        // It asks for a CPU 200 times a second at most, and less often the longer it waits.
        let waits = counts.get(other.path()).copied().unwrap_or_default() as f64;
        assert!(waits > 20.0 * seconds && waits < 400.0 * seconds, "{:?}", windows.seen);
        assert!(!counts.contains_key(mine.path()), "the scope is judged by the task: {counts:?}");
    }
}
