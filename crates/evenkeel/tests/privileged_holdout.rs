//! A change in force is held out on the real kernel: its knobs go back to the baseline for some seconds and come again, and
//! `status` and the history show what that says. Needs root.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_actuate::Linux;
use evenkeel_base::{CpuSet, Setting};
use scene::{Agent, Group, Process, assert_all_back, evenkeel, json, run, snapshot, turn, until};
use serde_json::Value;

/// What is tested comes after the decision: only a gain must be proved, for which there is time on a busy host, too.
const CONFIG: &str = r#"
[run]
interval = "500ms"
closer_look = "150s"
levers = ["short first"]
holdout = 0.1
[guard]
cpu_loss = 0.9
outside_cpu_loss = 0.9
wait_factor = 50
tail_share = 0.9
"#;

fn status(dir: &Path) -> Value {
    json(&run(dir, &["status", "-o", "json"]))
}

/// Short work that sleeps, and busy loops behind which every burst of it waits, on one CPU of which they get most: a short
/// slice is a gain beyond doubt, whatever else runs on this host.
fn short_among_loops(group: &Group) -> Vec<Process> {
    group.set_weight(65_536, 10_000);
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let duty = "load duty --percent 25 --period 10ms --kind closed --seconds 900";
    let short = || [&["-c", "0", program], duty.split(' ').collect::<Vec<_>>().as_slice()].concat();
    let endless = ["-c", "0", "sh", "-c", "while :; do :; done"];
    (0..2)
        .map(|_| group.start("taskset", &short()))
        .chain((0..2).map(|_| group.start("taskset", &endless)))
        .collect()
}

/// Looks again and again until something is there; nothing within the time is an error that tells what there was.
#[track_caller]
fn wait_for<T>(what: &str, within: Duration, every: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < within, "waited {within:?} in vain for {what}");
        std::thread::sleep(every);
    }
}

#[test]
fn a_change_in_force_is_held_out_for_seconds_and_status_shows_its_effect() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let group = Group::new("holdout");
    let _loads = short_among_loops(&group);
    let mut kernel = Linux::new().unwrap();
    // `taskset` pins itself before it becomes the load.
    until("the loads run where they belong", || {
        let pinned = Setting::Affinity(CpuSet::single(0));
        let found = snapshot(&mut kernel, &[&group]).0;
        found.len() == 4 && found.values().all(|(_, affinity)| *affinity == pinned)
    });
    let before = snapshot(&mut kernel, &[&group]);
    let file = dir.path().join("evenkeel.toml");
    std::fs::write(&file, CONFIG).unwrap();
    let mut command = evenkeel(dir.path(), &["--config", file.to_str().unwrap()]);
    command.args(["run", "--scope", &group.scope(), "--for", "600s", "-o", "json"]);
    let mut agent = Agent::start(command, dir.path());

    // Asked seldom: what asks runs beside the loads.
    let seldom = Duration::from_secs(3);
    wait_for("a change that is kept", Duration::from_secs(400), seldom, || {
        Some(status(dir.path())).filter(|shown| shown["effect_now"].is_object())
    });
    // A window under the baseline, then the change again.
    let often = Duration::from_millis(50);
    let mut is_changed = || snapshot(&mut kernel, &[&group]) != before;
    let block = Duration::from_secs(120);
    wait_for("a block under the baseline", block, often, || (!is_changed()).then_some(()));
    let held = Instant::now();
    wait_for("the change after it", Duration::from_secs(30), often, || is_changed().then_some(()));
    let held = held.elapsed();
    assert!(held > Duration::from_secs(2), "the baseline was in force for {held:?} only");
    let shown = wait_for("a block that counts", block, seldom, || {
        Some(status(dir.path())).filter(|shown| shown["effect_now"]["blocks"].as_u64() > Some(0))
    });
    let effect = &shown["effect_now"];
    assert_eq!(effect["measured"], "holdout", "{shown:#}");
    for field in ["cpu_pct", "holdout_share"] {
        assert!(effect[field]["value"].is_number(), "{field}: {shown:#}");
        assert!(effect[field]["interval"].is_array() && effect[field]["since"].is_string(), "{shown:#}");
    }
    assert!(effect["holdout_share"]["value"].as_f64() > Some(0.0), "{shown:#}");

    agent.signal(rustix::process::Signal::INT);
    let document = json(&agent.end());
    assert_all_back(&document);
    assert!(document["effect_now"]["blocks"].as_u64() > Some(0), "{document:#}");
    assert_eq!(snapshot(&mut kernel, &[&group]), before);
    let history = json(&run(dir.path(), &["history", "--run", "1", "-o", "json"]));
    assert!(history["effect_now"]["blocks"].as_u64() > Some(0), "{history:#}");
}
