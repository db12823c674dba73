//! A change in force is held out on the real kernel: its knobs go back to the baseline for some seconds and come again, and
//! `status` shows what that says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod scene;

use std::time::{Duration, Instant};

use evenkeel_actuate::Linux;
use scene::{Agent, Group, assert_all_back, crowd, evenkeel, json, run, snapshot, turn};

#[test]
fn a_change_in_force_is_held_out_for_seconds_and_status_shows_its_effect() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let group = Group::new("holdout");
    let _loads = crowd(&group);
    let mut kernel = Linux::new().unwrap();
    let before = snapshot(&mut kernel, &[&group]);
    let file = dir.path().join("evenkeel.toml");
    std::fs::write(&file, "[run]\ninterval = \"200ms\"\nholdout = 0.1\n").unwrap();
    let config = ["--config", file.to_str().unwrap()];
    let mut command = evenkeel(dir.path(), &config);
    command.args(["run", "--scope", &group.scope(), "--for", "240s", "-o", "json"]);
    let mut agent = Agent::start(command, dir.path());

    // Once something is kept, status has an effect; a block then ends with the change in force again.
    let status = || json(&run(dir.path(), &["status", "-o", "json"]));
    let deadline = Instant::now() + Duration::from_secs(230);
    let (mut kept, mut held, mut back, mut blocks) = (false, None, Duration::ZERO, 0);
    while Instant::now() < deadline && blocks == 0 {
        let changed = snapshot(&mut kernel, &[&group]) != before;
        if !kept {
            kept = changed && status()["effect_now"].is_object();
        } else if changed {
            if let Some(since) = held.take() {
                back = back.max(Instant::elapsed(&since));
                blocks = status()["effect_now"]["blocks"].as_u64().unwrap_or(0);
            }
        } else {
            held.get_or_insert_with(Instant::now);
        }
        if kept && back > Duration::ZERO && blocks == 0 {
            blocks = status()["effect_now"]["blocks"].as_u64().unwrap_or(0);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(kept, "nothing was kept: {:#}", status());
    let shown = status();
    assert!(back > Duration::from_secs(1), "the baseline was in force for {back:?} only: {shown:#}");
    assert!(blocks > 0, "{shown:#}");
    let effect = &shown["effect_now"];
    assert_eq!(effect["measured"], "holdout", "{shown:#}");
    for field in ["cpu_pct", "holdout_share"] {
        assert!(effect[field]["value"].is_number(), "{field}: {shown:#}");
        assert!(effect[field]["interval"].is_array() && effect[field]["since"].is_string(), "{shown:#}");
    }
    assert!(effect["holdout_share"]["value"].as_f64().is_some_and(|share| share > 0.0), "{shown:#}");
    agent.signal(rustix::process::Signal::INT);
    let document = json(&agent.end());
    assert_all_back(&document);
    assert_eq!(snapshot(&mut kernel, &[&group]), before);
}
