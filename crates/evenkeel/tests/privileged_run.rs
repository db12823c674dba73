//! `evenkeel run` on the real kernel: what it says, what it touches, and that everything is as found afterwards.
//!
//! Every test compares class, nice, slice and affinity of all its tasks and the files of its cgroups before and after.

mod scene;

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use evenkeel_actuate::{Kernel, Linux};
use evenkeel_base::{CpuSet, Setting, Target};
use evenkeel_linux::testing::comm;
use scene::{
    Agent, Ended, Group, Process, VISIBLE, assert_all_back, begin, begin_together, crowd, end, evenkeel,
    facts, hurried, run, snapshot, until, with_crowd,
};
use serde_json::Value;

fn sleeper() -> Process {
    let mut command = Command::new("sleep");
    command.arg("600");
    Process::spawn(command)
}

/// Fails unless the document has what the contract promises of `run`.
#[track_caller]
fn assert_run_document(document: &Value) {
    assert_eq!(document["schema"], "evenkeel.run/v1");
    for field in ["scope", "pid", "started", "settings", "fulfilment", "stages", "changes", "self"] {
        assert!(document.get(field).is_some(), "no {field} in {document:#}");
    }
    for field in ["baseline", "now", "interval"] {
        assert!(document["fulfilment"].get(field).is_some(), "no {field} in {document:#}");
    }
    for stage in document["stages"].as_array().unwrap() {
        for field in ["name", "started", "seconds", "fulfilment", "kept", "why"] {
            assert!(stage.get(field).is_some(), "no {field} in {stage:#}");
        }
    }
    for change in document["changes"].as_array().unwrap() {
        for field in ["tgid", "tid", "start_time", "knob", "from", "to", "why", "effect"] {
            assert!(change.get(field).is_some(), "no {field} in {change:#}");
        }
    }
    assert!(document["self"]["cpu_pct"].as_f64().is_some_and(|pct| pct > 0.0), "{document:#}");
    assert!(document["self"]["rss_bytes"].as_u64().is_some_and(|bytes| bytes > 0), "{document:#}");
}

#[test]
fn a_run_tells_what_it_did_touches_nobody_else_and_leaves_nothing() {
    let (_turn, dir) = begin();
    let (group, other) = (Group::new("crowd"), Group::new("other"));
    group.set_weight(512, 50);
    let loads = crowd(&group);
    let outsiders = [other.duty(10, "wall"), sleeper()];
    let before = snapshot(&[&group, &other]);
    // One of the group is not meant.
    let spared = &loads[3];
    let untouched: Vec<u32> = outsiders.iter().chain([spared]).map(Process::pid).collect();
    let found: Vec<_> = untouched.iter().map(|&pid| facts(pid).unwrap()).collect();

    let (scope, exclude) = (group.scope(), format!("!{}", spared.scope()));
    let args = ["run", "--scope", &scope, "--scope", &exclude, "--for", "12s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &[&args[..], &VISIBLE].concat());
    let (mut changed, mut asked) = (0, false);
    while agent.process.try_wait().unwrap().is_none() {
        for (&pid, found) in untouched.iter().zip(&found) {
            assert_eq!(facts(pid).unwrap(), *found, "{pid} is none of its business");
        }
        let now = snapshot(&[&group, &other]);
        assert_eq!(now.1[1], before.1[1], "the other cgroup is none of its business");
        changed += usize::from(now != before);
        if changed > 0 && !asked {
            asked = true;
            let status = run(dir.path(), &["status", "-o", "json"]).json();
            assert_eq!(status["schema"], "evenkeel.status/v1");
            assert_eq!((&status["state"], &status["agent"]["pid"]), (&"running".into(), &agent.pid().into()));
            // A second one is refused, naming the first.
            let second = run(dir.path(), &["run", "--scope", &scope, "--for", "1s"]);
            second.refused(3, &agent.pid().to_string());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let output = agent.end();
    let document = output.json();
    assert!(changed > 0, "nothing was ever tried: {document:#}");
    assert_eq!(snapshot(&[&group, &other]), before);
    assert_run_document(&document);
    assert_all_back(&document);
    assert_eq!(document["scope"], serde_json::json!([scope, exclude]));
    assert_eq!(document["pid"], agent.pid());
    let stages = document["stages"].as_array().unwrap();
    assert!(stages.len() >= 2, "{document:#}");
    assert_eq!(stages.iter().filter(|stage| stage["kept"] == true).count(), 1, "{document:#}");
    assert!(document["fulfilment"]["baseline"].is_number(), "{document:#}");

    let status = run(dir.path(), &["status", "-o", "json"]).json();
    assert_eq!((&status["state"], &status["agent"]), (&"ended".into(), &Value::Null));
    assert_eq!(status["outcome"], "done");
    let history = run(dir.path(), &["history", "-o", "json"]).json();
    assert!(history.to_string().contains(&scope), "{history:#}");
    let kept = stages.iter().find(|stage| stage["kept"] == true).unwrap()["name"].as_str().unwrap();
    let detail = run(dir.path(), &["history", "--run", "1", "-o", "json"]);
    assert!(detail.stdout.contains(kept), "{detail}");
}

/// By its name the last: it needs a turn, and those that run together are not parted by who waits for one.
#[test]
fn work_that_waits_is_moved_and_every_task_keeps_its_affinity() {
    let (_turn, dir, group, loads) = with_crowd(begin(), "pull");
    let mut kernel = Linux::new().unwrap();
    // Somebody has confined one of them.
    let (confined, _) = facts(loads[0].pid()).unwrap();
    kernel.write(&Target::Task(confined), &Setting::Affinity(CpuSet::single(0))).unwrap();
    let before = snapshot(&[&group]);
    let args = ["run", "--scope", &group.scope(), "--lever", "pull", "--for", "10s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &args);
    let (mut looks, mut pinned) = (0, 0);
    while agent.process.try_wait().unwrap().is_none() {
        let now = snapshot(&[&group]);
        looks += now.0.len();
        pinned += now.0.iter().filter(|(id, facts)| before.0[id] != **facts).count();
        assert_eq!(now.0[&confined], before.0[&confined], "it is never moved");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let output = agent.end();
    let document = output.json();
    let words = &output.stderr;
    assert!(words.contains("waiting work was moved to an idle CPU"), "{words}");
    assert_eq!(snapshot(&[&group]), before);
    assert!(pinned * 20 < looks, "pinned in {pinned} of {looks} looks: for instants only");
    assert_all_back(&document);
    let stages = document["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["name"] == "trial pull"), "{document:#}");
}

#[test]
fn a_signal_in_a_trial_puts_everything_back() {
    let (_turn, dir, group, _loads) = with_crowd(begin_together(), "signal");
    let before = snapshot(&[&group]);
    let config = hurried(dir.path(), "20s");
    for signal in [rustix::process::Signal::TERM, rustix::process::Signal::INT] {
        let scope = group.scope();
        let args = ["--config", &config, "run", "--scope", &scope, "-o", "json"];
        let mut agent = Agent::run(dir.path(), &[&args[..], &VISIBLE].concat());
        until("something is tried", || snapshot(&[&group]) != before);
        agent.signal(signal);
        let document = agent.end().json();
        assert_eq!(snapshot(&[&group]), before);
        assert_all_back(&document);
        let status = run(dir.path(), &["status", "-o", "json"]).json();
        assert_eq!(status["outcome"], "stopped");
    }
    run(dir.path(), &["restore"]).with(0);
}

#[test]
fn what_is_only_planned_writes_nothing() {
    let (_turn, dir, group, _loads) = with_crowd(begin_together(), "dry");
    let state = dir.path().join("state");
    let before = snapshot(&[&group]);
    let scope = group.scope();
    let cases: [&[&str]; 3] = [
        &["run", "--dry-run", "--scope", &scope, "--for", "3s", "-o", "json"],
        &["run", "--scope", "all", "--for", "3s", "-o", "json"],
        &["plan", "--scope", &scope, "-o", "json"],
    ];
    for args in cases {
        let mut agent = Agent::start(evenkeel(&state, args), dir.path());
        while agent.process.try_wait().unwrap().is_none() {
            assert_eq!(snapshot(&[&group]), before, "{args:?}");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        let output = agent.end();
        let document = output.json();
        assert_eq!((&document["schema"], &document["dry_run"]), (&"evenkeel.plan/v1".into(), &true.into()));
        let changes = document["changes"].as_array().unwrap();
        assert!(!changes.is_empty(), "{args:?} proposes nothing: {document:#}");
        for change in changes {
            assert!(change["why"].as_str().is_some_and(|why| !why.is_empty()), "{change:#}");
        }
        if args.contains(&"all") {
            assert!(output.stderr.contains("--apply"), "{}", output.stderr);
        }
        assert!(!state.exists(), "{args:?} made a state directory");
    }
    // What a killed run left goes back all the same: nobody else would watch it.
    let mut agent = Agent::start(evenkeel(&state, &["run", "--scope", &scope]), dir.path());
    until("something is changed", || snapshot(&[&group]) != before);
    agent.kill();
    let output = run(&state, &["run", "--scope", "all"]).with(0);
    assert!(output.stderr.contains("had not restored everything"), "{}", output.stderr);
    assert_eq!(snapshot(&[&group]), before);
}

/// Runs the loop on a scope that offers nothing to do.
#[track_caller]
fn nothing_to_do(scope: &str) {
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["run", "--scope", scope, "--for", "1s", "-o", "json"]);
    let document = output.json();
    assert!(output.stderr.contains("nothing to do"), "{scope}: {}", output.stderr);
    assert_eq!(document["changes"], serde_json::json!([]), "{scope}");
    assert_eq!(document["settings"], "kernel default", "{scope}");
    assert_all_back(&document);
    let output = run(dir.path(), &["plan", "--scope", scope]).with(0);
    assert!(output.stdout.starts_with("Nothing to do"), "{scope}: {}", output.stdout);
}

/// Without a turn: nothing here takes CPU from others, or waits for any.
#[test]
fn an_empty_a_vanished_and_an_idle_scope_say_nothing_to_do() {
    let empty = Group::new("empty");
    nothing_to_do(&empty.scope());
    nothing_to_do("cgroup:/no/such/group");
    let gone = {
        let gone = sleeper();
        gone.pid()
    };
    nothing_to_do(&format!("pid:{gone}"));
    let idle = Group::new("idle");
    let _sleeping = [idle.start("sleep", &["600"]), idle.start("sleep", &["600"])];
    nothing_to_do(&idle.scope());
}

#[test]
fn a_calm_scope_is_left_alone() {
    let (_turn, dir) = begin();
    let group = Group::new("calm");
    let load = group.duty(5, "closed");
    until("the load runs", || group.processes().len() == 1);
    let found = facts(load.pid()).unwrap();
    let document = run(dir.path(), &["run", "--scope", &load.scope(), "--for", "4s", "-o", "json"]).json();
    assert_eq!(document["settings"], "kernel default", "{document:#}");
    assert_eq!(facts(load.pid()).unwrap(), found);
}

/// Runs the binary as somebody without rights.
fn as_nobody(state: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", env!("CARGO_BIN_EXE_evenkeel")]);
    end(command.arg("--state-dir").arg(state).args(args))
}

#[test]
fn without_rights_it_says_what_is_missing() {
    let (_turn, dir, group, _loads) = with_crowd(begin_together(), "rights");
    let before = snapshot(&[&group]);
    let scope = group.scope();
    let args = ["run", "--scope", &scope, "--for", "5s"];
    as_nobody(dir.path(), &args).refused(3, "root");
    as_nobody(dir.path(), &["prove"]).refused(3, "root");
    // With a directory of its own it may run, but cannot change tasks of root's: nothing is kept, nothing is changed.
    let own = dir.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(&own, Some(65534), Some(65534)).unwrap();
    let output = as_nobody(&own, &args);
    let words = &output.stderr;
    assert!(matches!(output.status, Some(0 | 3)), "{words}");
    assert!(words.contains("permitted") || words.contains("root"), "{words}");
    assert_eq!(snapshot(&[&group]), before);
}

/// Asks it to end once it has decided; whether it was asked, or has ended.
fn ends_when_decided(agent: &mut Agent) -> bool {
    if agent.process.try_wait().unwrap().is_some() {
        return true;
    }
    let decided = agent.words().contains("\n* ");
    if decided {
        agent.signal(rustix::process::Signal::INT);
    }
    decided
}

#[test]
fn tasks_may_come_and_go_during_a_trial() {
    let (_turn, dir, group, mut loads) = with_crowd(begin_together(), "mortal");
    let config = hurried(dir.path(), "10s");
    // Children are born and die all the time, some orphaned.
    let forking = "while :; do i=0; while [ $i -lt 2000 ]; do i=$((i+1)); done; sleep 0.3 & (sleep 0.3 &); sleep 0.02; done";
    let _forking = [group.start("sh", &["-c", forking]), group.start("sh", &["-c", forking])];
    let survivors: Vec<u32> = loads[..4].iter().map(Process::pid).collect();
    let before: Vec<_> = survivors.iter().map(|&pid| facts(pid).unwrap()).collect();
    let files = group.files();
    let scope = group.scope();
    let args = ["--config", &config, "run", "--scope", &scope, "--for", "60s", "-o", "json"];
    let lever = ["--lever", "batch+slice by burst+pull"];
    let mut agent = Agent::run(dir.path(), &[&args[..], &lever].concat());
    until("something is tried", || facts(survivors[0]).unwrap() != before[0]);
    while loads.len() > 4 {
        loads.pop();
        std::thread::sleep(std::time::Duration::from_millis(150));
    }
    let _newcomers = [group.duty(30, "wall"), group.duty(10, "closed")];
    while !ends_when_decided(&mut agent) {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let document = agent.end().json();
    assert_all_back(&document);
    let after: Vec<_> = survivors.iter().map(|&pid| facts(pid).unwrap()).collect();
    assert_eq!(after, before);
    assert_eq!(group.files(), files);
    // Those born of tuned parents, too.
    let usual = &before[0].1;
    for (id, facts) in snapshot(&[&group]).0 {
        assert_eq!(facts, *usual, "{id}");
    }
}

#[test]
fn tasks_confined_to_one_cpu_stay_there() {
    let (_turn, dir) = begin_together();
    let config = hurried(dir.path(), "10s");
    let group = Group::new("confined");
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let _loads: Vec<Process> = (0..6)
        .map(|_| {
            let load = "load duty --percent 25 --seconds 600 --name confined";
            let args: Vec<&str> = ["-c", "0", program].into_iter().chain(load.split(' ')).collect();
            group.start("taskset", &args)
        })
        .collect();
    until("the loads run", || {
        let pids = group.processes();
        pids.len() == 6 && pids.into_iter().all(|pid| comm(pid) == "confined")
    });
    let before = snapshot(&[&group]);
    let scope = group.scope();
    let args = ["--config", &config, "run", "--scope", &scope, "--for", "60s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &args);
    let mut changed = 0;
    while !ends_when_decided(&mut agent) {
        let now = snapshot(&[&group]);
        for (id, (_, affinity)) in &now.0 {
            assert_eq!(*affinity, Setting::Affinity(CpuSet::single(0)), "{id}");
        }
        changed += usize::from(now != before);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let document = agent.end().json();
    assert_all_back(&document);
    assert!(changed > 0, "nothing was ever tried: {document:#}");
    assert_eq!(snapshot(&[&group]), before);
}
