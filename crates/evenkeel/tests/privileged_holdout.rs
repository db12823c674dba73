//! A change in force is held out on the real kernel: its knobs go back to the baseline for some seconds and come again, and
//! `status` and the history show what that says. Needs root.

mod scene;

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuSet, Setting, TaskId};
use evenkeel_linux::testing::looked_for;
use scene::{Agent, Facts, Group, Process, assert_all_back, begin, configured, run, snapshot, until};
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

type Snapshot = (BTreeMap<TaskId, Facts>, Vec<BTreeMap<String, String>>);

fn status(dir: &Path) -> Value {
    run(dir, &["status", "-o", "json"]).json()
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

/// Looks until something is there.
#[track_caller]
fn wait_for<T>(what: &str, within: Duration, every: Duration, mut look: impl FnMut() -> Option<T>) -> T {
    looked_for(every, within, || look().ok_or_else(|| format!("waited in vain for {what}")))
}

fn started(dir: &Path, config: &str, group: &Group, more: &[&str]) -> Agent {
    let args = ["--config", config, "run", "--scope", &group.scope(), "--for", "600s", "-o", "json"];
    Agent::run(dir, &[&args, more].concat())
}

/// A run that is killed while its change is in force.
struct Killed<'a> {
    dir: &'a Path,
    config: &'a str,
    group: &'a Group,
    before: &'a Snapshot,
}

impl Killed<'_> {
    fn start(&self, more: &[&str]) -> Agent {
        started(self.dir, self.config, self.group, more)
    }

    fn is_changed(&self) -> bool {
        snapshot(&[self.group]) != *self.before
    }

    /// Kills it with its change in force, not in a block under the baseline.
    fn kill(&self, agent: &mut Agent) {
        wait_for("the change", Duration::from_secs(60), Duration::from_millis(5), || {
            self.is_changed().then_some(())
        });
        agent.kill();
    }

    /// Until it says so; what is in force is looked at all the while.
    fn says(&self, agent: &Agent, words: &str, mut seen: impl FnMut(Snapshot)) {
        wait_for(words, Duration::from_secs(60), Duration::from_millis(5), || {
            seen(snapshot(&[self.group]));
            let told = agent.words();
            assert!(!told.contains("panicked"), "{told}");
            told.contains(words).then_some(())
        });
    }

    /// Started again after a kill it goes on; of another configuration, or where a fresh start is asked for, everything goes
    /// back first. Returns one that has taken over.
    fn goes_on_until_it_is_restored(&self, mut agent: Agent, proved_by: u32) -> Agent {
        self.kill(&mut agent);
        let in_force = snapshot(&[self.group]);
        assert_ne!(in_force, *self.before, "killed in the instant in which a block began");
        let mut agent = self.start(&[]);
        let took_over = format!("by the run before (pid {proved_by})");
        self.says(&agent, &took_over, |now| assert_eq!(now, in_force, "the value left"));
        assert!(agent.words().contains("took over 4 settings (short first) proved at"), "{}", agent.words());
        let shown = wait_for("status", Duration::from_secs(30), Duration::from_millis(200), || {
            Some(status(self.dir)).filter(|shown| shown["taken_over"].is_object())
        });
        assert_eq!(
            (&shown["settings"], &shown["taken_over"]["pid"]),
            (&"short first".into(), &proved_by.into())
        );
        assert_eq!(shown["changes"].as_array().map(Vec::len), Some(4), "{shown:#}");
        assert!(shown["changes"][0]["effect"].as_str().unwrap().contains(&took_over), "{shown:#}");
        assert_eq!(shown["effect_now"]["measured"], "decision", "{shown:#}");

        self.kill(&mut agent);
        let left: Vec<(&str, Vec<u8>)> =
            ["journal", "decision"].map(|name| (name, std::fs::read(self.dir.join(name)).unwrap())).to_vec();
        for (more, why) in [
            (
                ["--holdout", "0.05"].as_slice(),
                "is not taken over: the configuration is another one (holdout)",
            ),
            (&["--fresh"], "had not restored everything. Restored"),
        ] {
            // As it was left, the first time; later the values are as in a block under the baseline, which the journal knows.
            let mut agent = self.start(&[]);
            self.says(&agent, &took_over, |_| {});
            self.kill(&mut agent);
            let mut agent = self.start(more);
            self.says(&agent, why, |_| {});
            assert!(!self.is_changed(), "{more:?}: {}", agent.words());
            assert!(!agent.words().contains("took over"), "{}", agent.words());
            agent.end_by(rustix::process::Signal::INT);
            assert!(!self.is_changed() && !self.dir.join("decision").exists());
            for (name, bytes) in &left {
                std::fs::write(self.dir.join(name), bytes).unwrap();
                let own = std::os::unix::fs::PermissionsExt::from_mode(0o600);
                std::fs::set_permissions(self.dir.join(name), own).unwrap();
            }
        }
        let agent = self.start(&[]);
        self.says(&agent, &took_over, |_| {});
        agent
    }
}

#[test]
fn a_change_in_force_is_held_out_for_seconds_and_status_shows_its_effect() {
    let (_turn, dir) = begin();
    let group = Group::new("holdout");
    let _loads = short_among_loops(&group);
    // `taskset` pins itself before it becomes the load.
    until("the loads run where they belong", || {
        let pinned = Setting::Affinity(CpuSet::single(0));
        let found = snapshot(&[&group]).0;
        found.len() == 4 && found.values().all(|(_, affinity)| *affinity == pinned)
    });
    let before = snapshot(&[&group]);
    let config = configured(dir.path(), CONFIG);
    let agent = started(dir.path(), &config, &group, &[]);

    // Asked seldom: what asks runs next to the loads.
    let seldom = Duration::from_secs(3);
    wait_for("a change that is kept", Duration::from_secs(400), seldom, || {
        Some(status(dir.path())).filter(|shown| shown["effect_now"].is_object())
    });
    // A window under the baseline, then the change again.
    let often = Duration::from_millis(50);
    let is_changed = || snapshot(&[&group]) != before;
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

    let proved_by = agent.pid();
    let killed = Killed { dir: dir.path(), config: &config, group: &group, before: &before };
    let mut agent = killed.goes_on_until_it_is_restored(agent, proved_by);
    let document = agent.end_by(rustix::process::Signal::INT).json();
    assert_all_back(&document);
    assert_eq!(document["taken_over"]["pid"], proved_by, "{document:#}");
    assert_eq!(snapshot(&[&group]), before);
    let history = run(dir.path(), &["history", "--run", "1", "-o", "json"]).json();
    assert!(history["effect_now"]["blocks"].as_u64() > Some(0), "{history:#}");
}
