//! Promised shares on the real kernel: kept against neighbours, refused when they do not fit, and everything back.
//!
//! Judged by ratios between tasks of one run only: other work may share the CPU.

mod scene;

use std::path::Path;
use std::time::Duration;

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_linux::sys::sched_getattr;
use evenkeel_linux::testing::{comm, schedstat};
use scene::{Agent, Group, Process, begin, begin_together, configured, run, snapshot, turn, until};
use serde_json::Value;

/// A load that wants all of CPU 0.
fn spinner(group: &Group) -> Process {
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let process = group
        .start("taskset", &["-c", "0", program, "load", "spin", "--seconds", "600", "--name", "spinner"]);
    until("the load runs", || comm(process.pid()) == "spinner");
    process
}

/// CPU time so far, nanoseconds.
fn ran(process: &Process) -> u64 {
    schedstat(process.pid())[0]
}

/// What each got in these seconds, as parts of what all got.
fn shares(processes: &[&Process], seconds: u64) -> Vec<f64> {
    let before: Vec<u64> = processes.iter().map(|p| ran(p)).collect();
    std::thread::sleep(Duration::from_secs(seconds));
    let got: Vec<f64> = processes.iter().zip(before).map(|(p, before)| (ran(p) - before) as f64).collect();
    let sum: f64 = got.iter().sum();
    got.into_iter().map(|got| got / sum).collect()
}

/// Nice value of a process's first thread.
fn nice(pid: u32) -> i32 {
    sched_getattr(pid).unwrap().nice
}

fn config(dir: &Path, promises: &[(String, &str)]) -> String {
    let tables =
        promises.iter().map(|(scope, cpu)| format!("[[guarantee]]\nscope = \"{scope}\"\ncpu = \"{cpu}\"\n"));
    configured(dir, &tables.collect::<String>())
}

fn guarantee<'a>(document: &'a Value, name: &str) -> &'a Value {
    let all = document["guarantees"].as_array().unwrap();
    all.iter().find(|g| g["name"] == name).unwrap_or_else(|| panic!("no {name} in {document:#}"))
}

/// Three that want everything get a third each; with a promise of 60 % the first gets three times what the others do.
fn promised_beats_the_others(groups: &[&Group], lever: &str) {
    let dir = tempfile::tempdir().unwrap();
    let loads: Vec<Process> = (0..3).map(|i| spinner(groups[i % groups.len()])).collect();
    let loads: Vec<&Process> = loads.iter().collect();
    let before = snapshot(groups);
    let scope = loads[0].scope();
    let config = config(dir.path(), &[(scope.clone(), "60%")]);
    let args = ["--config", &config, "run", "--guarantees-only", "--for", "60s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &args);
    until("something is set", || snapshot(groups) != before);
    std::thread::sleep(Duration::from_secs(3));
    let with = shares(&loads, 4);
    let output = agent.end_by(rustix::process::Signal::INT);
    let document = output.document();
    assert_eq!(snapshot(groups), before, "everything is as found");
    assert_eq!(document["restored"]["failed"], 0, "{document:#}");
    let promise = guarantee(&document, &scope);
    assert!(promise["lever"].as_str().unwrap().contains(lever), "{promise:#}");
    assert!(
        promise["got_pct"].as_f64().is_some() && promise["while_runnable_pct"].as_f64().is_some(),
        "{promise:#}"
    );
    assert!(
        document["changes"].as_array().unwrap().iter().any(|c| c["why"] == "promised share"),
        "{document:#}"
    );
    let without = shares(&loads, 3);
    assert!(with[0] > 0.52 && with[0] > 1.3 * without[0], "{with:?} with the promise, {without:?} without");
}

#[test]
fn in_one_cgroup_a_promise_is_kept_by_nice() {
    let _turn = turn();
    promised_beats_the_others(&[&Group::new("one")], "nice of");
}

#[test]
fn between_cgroups_a_promise_is_kept_by_weights() {
    let _turn = turn();
    let groups = ["a", "b", "c"].map(|name| Group::new(&format!("each-{name}")));
    promised_beats_the_others(&[&groups[0], &groups[1], &groups[2]], "weight of");
}

/// One that is over before it looks at its settings again.
#[test]
fn a_short_run_shows_what_it_had_set() {
    let (_turn, dir) = begin();
    let groups = ["a", "b"].map(|name| Group::new(&format!("short-{name}")));
    let loads = [spinner(&groups[0]), spinner(&groups[1])];
    let config = config(dir.path(), &[(loads[0].scope(), "70%")]);
    let output =
        run(dir.path(), &["--config", &config, "run", "--guarantees-only", "--for", "3s", "-o", "json"]);
    // On a crowded host the promise may be broken at this moment.
    let document = output.document();
    assert_eq!(document["restored"]["put_back"], 1, "{document:#}");
    assert_eq!(document["changes"][0]["why"], "promised share", "{document:#}");
}

/// Killed and started again, the loop takes the weights from where they are to what it solves: they are never as found meanwhile.
#[test]
fn a_restart_keeps_promises_without_a_gap() {
    let (_turn, dir) = begin_together();
    let groups = ["a", "b"].map(|name| Group::new(&format!("again-{name}")));
    let loads = [spinner(&groups[0]), spinner(&groups[1])];
    let found = groups[0].files();
    let config = config(dir.path(), &[(loads[0].scope(), "70%")]);
    let args = ["--config", &config, "run", "--guarantees-only", "--for", "60s", "-o", "json"];
    let mut first = Agent::run(dir.path(), &args);
    until("the weight is set", || groups[0].files() != found);
    first.kill();
    let mut second = Agent::run(dir.path(), &args);
    let words = format!("promises of the run before (pid {}) are kept without a gap", first.pid());
    until("it says so", || {
        assert_ne!(groups[0].files(), found, "as found: {}", second.words());
        second.words().contains(&words)
    });
    let began = std::time::Instant::now();
    while began.elapsed() < Duration::from_millis(1500) {
        assert_ne!(groups[0].files(), found, "as found: {}", second.words());
        std::thread::sleep(Duration::from_millis(2));
    }
    let document = second.end_by(rustix::process::Signal::INT).document();
    assert_eq!(document["restored"]["failed"], 0, "{document:#}");
    assert_eq!(groups[0].files(), found);
}

#[test]
fn what_does_not_fit_is_refused_and_who_is_not_there_is_waited_for() {
    let (_turn, dir) = begin_together();
    let group = Group::new("refused");
    let (a, b) = (spinner(&group), spinner(&group));
    let absent = "container:nobody-has-this-name".to_owned();
    let config = config(dir.path(), &[(a.scope(), "80%"), (b.scope(), "40%"), (absent.clone(), "1%")]);
    let output =
        run(dir.path(), &["--config", &config, "run", "--guarantees-only", "--for", "4s", "-o", "json"])
            .with(1);
    let words = &output.stderr;
    assert!(
        words.contains(&format!("guarantee {}: refused: it does not fit: asked 120, available ", b.scope())),
        "{words}"
    );
    assert!(words.contains("no task matches its scope"), "{words}");
    let document = output.document();
    assert_eq!(guarantee(&document, &b.scope())["state"], "refused");
    assert_eq!(guarantee(&document, &absent)["state"], "waiting");
    assert_ne!(guarantee(&document, &a.scope())["state"], "refused");
}

#[test]
fn the_loop_leaves_itself_alone_where_it_is_told_to_or_nothing_is_promised() {
    let (_turn, dir) = begin_together();
    let group = Group::new("own");
    let load = spinner(&group);
    let own = nice(std::process::id());
    let promise = format!("[[guarantee]]\nscope = \"{}\"\ncpu = \"30%\"\n", load.scope());
    for (name, text) in [
        ("told", format!("{promise}[run]\nown_nice = 0\n")),
        ("nothing", "[run]\nlabels = false\n".to_owned()),
    ] {
        let config = configured(dir.path(), &text);
        let scope = load.scope();
        let args = ["--config", &config, "run", "--scope", &scope, "--guarantees-only", "--for", "20s"];
        let mut agent = Agent::run(dir.path(), &args);
        // The status is written when everything was looked at.
        until("the agent has looked", || {
            run(dir.path(), &["status", "-o", "json"]).json()["pid"].as_u64() == Some(u64::from(agent.pid()))
        });
        std::thread::sleep(Duration::from_millis(1500));
        assert_eq!(nice(agent.pid()), own, "{name}: {}", agent.words());
        agent.end_by(rustix::process::Signal::TERM);
    }
}

#[test]
fn check_tells_a_broken_promise_without_an_agent() {
    let (_turn, dir) = begin_together();
    let group = Group::new("broken");
    let loads: Vec<Process> = (0..4).map(|_| spinner(&group)).collect();
    let config = config(dir.path(), &[(loads[0].scope(), "60%")]);
    let output = run(dir.path(), &["--config", &config, "check", "-o", "json"]).with(1);
    let document = output.document();
    let finding = document["findings"].as_array().unwrap().iter().find(|f| f["rule"] == "guarantee").unwrap();
    assert_eq!((&finding["status"], &finding["severity"]), (&"fail".into(), &"error".into()), "{finding:#}");
    assert!(finding["evidence"].as_str().unwrap().contains("broken"), "{finding:#}");
}

#[test]
fn status_tells_the_promises_of_a_running_agent() {
    let (_turn, dir) = begin();
    let group = Group::new("status");
    let loads = [spinner(&group), spinner(&group)];
    let config = config(dir.path(), &[(loads[0].scope(), "30%")]);
    let args = ["--config", &config, "run", "--guarantees-only", "--for", "30s", "-o", "json"];
    let mut agent = Agent::run(dir.path(), &args);
    let mut status = Value::Null;
    until("the promise is in the status", || {
        status = run(dir.path(), &["status", "-o", "json"]).json();
        status["guarantees"]
            .as_array()
            .is_some_and(|all| !all.is_empty() && all[0]["got_pct"].as_f64().is_some())
    });
    assert_eq!(guarantee(&status, &loads[0].scope())["promise"], "30%", "{status:#}");
    // It would come late otherwise where many others are busy. In its first seconds it is more urgent than any nice value.
    until("it is raised", || nice(agent.pid()) == -10);
    agent.end_by(rustix::process::Signal::TERM);
}

/// Waited so far, nanoseconds, and times it was given a CPU.
fn waited(process: &Process) -> (u64, u64) {
    let [_, waited_ns, turns] = schedstat(process.pid());
    (waited_ns, turns)
}

#[test]
fn promised_waits_are_counted_one_by_one() {
    let (_turn, dir) = begin();
    let group = Group::new("waits");
    let _neighbour = spinner(&group);
    let program = env!("CARGO_BIN_EXE_evenkeel");
    let load = ["load", "duty", "--percent", "20", "--kind", "wall", "--period", "10ms", "--seconds", "600"];
    let patient = group.start("taskset", &[&["-c", "0", program], &load[..]].concat());
    let promise = format!("[[guarantee]]\nscope = \"{}\"\nwait_p99 = \"900ms\"\n", patient.scope());
    let config = configured(dir.path(), &promise);
    let args = ["--config", &config, "run", "--guarantees-only", "--for", "9s", "-o", "json"];
    let before = waited(&patient);
    let mut agent = Agent::run(dir.path(), &args);
    let output = agent.end();
    let after = waited(&patient);
    let document = output.json();
    let promise = guarantee(&document, &patient.scope());
    let words = agent.words();
    assert_eq!(promise["wait_p99_estimated"], false, "{promise:#}; {words}");
    assert_eq!(promise["state"], "kept", "{promise:#}; {words}");
    let mean_ms = (after.0 - before.0) as f64 / (after.1 - before.1) as f64 / 1e6;
    let p99_ms = promise["wait_p99_ms"].as_f64().unwrap();
    assert!((0.9 * mean_ms..900.0).contains(&p99_ms), "p99 {p99_ms} ms, mean {mean_ms} ms: {promise:#}");
}

/// A wait under way is not cut when it is looked at: one of several seconds breaks a bound of more than a second, in promises as in
/// services. Without a turn: its loads take a thousandth of a CPU, and wait by their own quota whatever others do. By its name
/// among the first, for it takes longest.
#[test]
fn a_wait_longer_than_a_look_breaks_a_bound_that_is_longer_too() {
    let dir = tempfile::tempdir().unwrap();
    let group = Group::new("long-waits");
    let _loads = [spinner(&group), spinner(&group), spinner(&group)];
    // What runs at all overdraws it: each of the three waits for seconds.
    group.set_quota(&CpuQuota { quota_usec: Limit::Value(1_000), period_usec: 1_000_000, burst_usec: 0 });
    let scope = group.scope();
    let bound = format!("scope = \"{scope}\"\nwait_p99 = \"1500ms\"\n");
    let config = configured(dir.path(), &format!("[[guarantee]]\n{bound}[[service]]\n{bound}"));
    let args = ["--config", &config, "run", "--guarantees-only", "--for", "15s", "-o", "json"];
    let output = Agent::run(dir.path(), &args).end();
    let document = output.document();
    let promise = guarantee(&document, &scope);
    assert_eq!(promise["state"], "broken", "{promise:#}; {}", output.stderr);
    let service = &document["protected"][0];
    assert_eq!(service["state"], "broken", "{service:#}");
    for p99 in [&promise["wait_p99_ms"], &service["p99_ms"]] {
        assert!(p99.as_f64().is_some_and(|ms| ms > 1500.0), "{document:#}");
    }
}

#[test]
fn a_plan_names_the_cgroups_above_that_hold_others_too() {
    let (_turn, dir) = begin_together();
    let (group, neighbour) = (Group::new("above"), Group::new("beside"));
    let (load, _mate) = (spinner(&group), spinner(&group));
    let _others: Vec<Process> = (0..3).map(|_| spinner(&neighbour)).collect();
    let found = group.files();
    let config = config(dir.path(), &[(load.scope(), "60%")]);
    let scope = load.scope();
    let plan = |format| run(dir.path(), &["--config", &config, "plan", "--scope", &scope, "-o", format]);
    let document = plan("json").json();
    let above = document["ancestors"].as_array().unwrap();
    let above = above.iter().find(|one| one["group"] == group.path());
    assert_eq!(above.unwrap_or_else(|| panic!("{document:#}"))["changed"], true);
    let cost = document["outside"].as_array().unwrap();
    let after = |one: &Value| one["after_pct"].as_f64().unwrap() < one["before_pct"].as_f64().unwrap();
    assert!(!cost.is_empty() && cost.iter().all(after), "{document:#}");
    let words = plan("text").stdout;
    assert!(words.contains(&format!("    {}: weight changed", group.path())), "{words}");
    assert!(words.contains("What promises cost those outside the scope"), "{words}");
    assert_eq!(group.files(), found, "a plan writes nothing");
}
