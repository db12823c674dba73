//! `evenkeel why` on this kernel: faults of known size are put in, and must come out. Needs root.

mod program;

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_linux::testing::{TestCgroup, TestProcess, comm, schedstat, turn, until};
use program::{Ended, end, evenkeel};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A group of the cpu controller, removed with its guard.
struct Group(TestCgroup);

impl Group {
    fn new(name: &str) -> Self {
        Self(TestCgroup::new(&format!("why-{name}")).unwrap())
    }

    fn child(&self, name: &str) -> Self {
        Self(self.0.child(name).unwrap())
    }

    fn path(&self) -> &str {
        self.0.path()
    }

    fn quota(&self, quota_usec: u64, period_usec: u64) {
        let quota_usec = Limit::Value(quota_usec);
        self.0.set_quota(&CpuQuota { quota_usec, period_usec, burst_usec: 0 }).unwrap();
    }

    /// 1024 is the default.
    fn weight(&self, weight: u64) {
        self.0.set(("cpu.shares", weight), ("cpu.weight", weight * 25 / 256)).unwrap();
    }

    /// Starts a built-in load in it, on one CPU.
    fn load(&self, name: &str, args: &[&str]) -> TestProcess {
        let mut command = self.0.command();
        command.args(["taskset", "-c", "0", env!("CARGO_BIN_EXE_evenkeel"), "load"]);
        command.args(args).args(["--seconds", "300", "--name", name]);
        started(command, name)
    }
}

/// Starts a program, which is there when it has its name.
fn started(command: Command, name: &str) -> TestProcess {
    let process = TestProcess::spawn(command);
    until("it has its name", || comm(process.pid()) == name);
    process
}

fn sleeping() -> TestProcess {
    let mut command = Command::new("sleep");
    command.arg("300");
    started(command, "sleep")
}

fn signal(process: &TestProcess, signal: Signal) {
    kill_process(Pid::from_raw(process.pid() as i32).unwrap(), signal).unwrap();
}

fn ran_ns(process: &TestProcess) -> f64 {
    schedstat(process.pid())[0] as f64
}

/// Looks at a target for two seconds (EVENKEEL_WHY_SECONDS: longer).
#[track_caller]
fn why(target: &str) -> Value {
    let seconds = std::env::var("EVENKEEL_WHY_SECONDS").unwrap_or_else(|_| "2".to_owned());
    let time = format!("{seconds}s");
    let document =
        end(&mut evenkeel(["why", target, "--for", &time, "-o", "json", "--source", "bpf"])).json();
    assert_eq!(document["schema"], "evenkeel.why/v1");
    assert_eq!((&document["source"], &document["lost"]), (&Value::from("bpf"), &Value::from(0)));
    let share = |name: &str| document["shares"][name].as_f64().unwrap();
    println!(
        "{target}: ran {:.1} waited {:.1} throttled {:.1} stolen {:.1} slept {:.1}; blame {} by {}",
        share("ran"),
        share("waited"),
        share("throttled"),
        share("stolen"),
        share("slept"),
        document["blame"][0]["name"],
        document["throttled_by"][0]["cgroup"]
    );
    let sum: f64 = ["ran", "waited", "throttled", "stolen", "slept"].iter().map(|name| share(name)).sum();
    assert!((sum - 100.0).abs() < 0.01, "{sum}");
    document
}

/// `why` at work in the background: it returns when the programs are in place.
struct Looking(Command, Child);

impl Looking {
    fn at(target: &str, time: &str) -> Self {
        let mut command = evenkeel(["why", target, "--for", time, "-o", "json", "--source", "bpf"]);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let fds = format!("/proc/{}/fd", child.id());
        let links = || {
            let entries = fs::read_dir(&fds).map(|dir| dir.flatten().collect::<Vec<_>>()).unwrap_or_default();
            let targets = entries.iter().filter_map(|entry| fs::read_link(entry.path()).ok());
            targets.filter(|target| target.to_string_lossy().contains("bpf_link")).count()
        };
        until("the programs are attached", || links() >= 10);
        std::thread::sleep(Duration::from_millis(300));
        Self(command, child)
    }

    fn over(&mut self) -> bool {
        self.1.try_wait().unwrap().is_some()
    }

    #[track_caller]
    fn document(self) -> Value {
        Ended::of(&self.0, self.1.wait_with_output().unwrap()).json()
    }
}

fn share(document: &Value, name: &str) -> f64 {
    document["shares"][name].as_f64().unwrap()
}

#[track_caller]
fn near(what: &str, found: f64, injected: f64) {
    assert!((found - injected).abs() <= 3.0, "{what}: found {found:.2}, injected {injected:.2}");
}

#[test]
fn a_quota_throttles_as_much_as_it_says_and_is_named() {
    let _turn = turn();
    for percent in [25, 60] {
        let group = Group::new("quota");
        group.weight(65_536);
        group.quota(percent * 500, 50_000);
        let _load = group.load("throttled", &["spin"]);
        let document = why(&format!("cgroup:{}", group.path()));
        near("ran", share(&document, "ran"), percent as f64);
        // On a busy machine it waits for others, too, while it has quota left.
        let held = share(&document, "throttled") + share(&document, "waited");
        near("throttled and waited", held, 100.0 - percent as f64);
        assert!(share(&document, "throttled") > 20.0, "{document}");
        assert_eq!(document["throttled_by"][0]["cgroup"], group.path());
        assert_eq!(document["throttled_by"][0]["quota_usec"], percent * 500);
        assert!(document["advice"].to_string().contains("quota"), "{}", document["advice"]);
    }
}

#[test]
fn an_ancestors_quota_is_the_ancestors() {
    let _turn = turn();
    let parent = Group::new("ancestor");
    parent.weight(65_536);
    parent.quota(20_000, 100_000);
    let child = parent.child("child");
    let load = child.load("below", &["spin"]);
    let document = why(&load.scope());
    near("ran", share(&document, "ran"), 20.0);
    assert!(share(&document, "throttled") > 50.0);
    assert_eq!(document["throttled_by"][0]["cgroup"], parent.path());
    drop(load);
}

#[test]
fn hogs_beside_it_take_what_their_weights_say_and_are_blamed() {
    let _turn = turn();
    for hogs in [1u64, 2, 4] {
        let (target, rivals) = (Group::new("target"), Group::new("hogs"));
        // Heavy, both, so that others on this machine hardly count.
        target.weight(16_384);
        rivals.weight(32_768);
        let load = target.load("target", &["spin"]);
        let others: Vec<_> = (0..hogs).map(|n| rivals.load(&format!("hog{n}"), &["spin"])).collect();
        let before: Vec<f64> = others.iter().chain([&load]).map(ran_ns).collect();
        let document = why(&format!("cgroup:{}", target.path()));
        let ran: Vec<f64> =
            others.iter().chain([&load]).zip(before).map(|(p, old)| ran_ns(p) - old).collect();
        let (mine, all) = (ran[ran.len() - 1], ran.iter().sum::<f64>());
        near("share between them by the weights", 100.0 * mine / all, 100.0 / 3.0);
        let first = document["blame"][0]["name"].as_str().unwrap();
        assert!(first.starts_with("hog"), "{first} took most");
        let blamed: f64 = document["blame"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|b| b["name"].as_str().is_some_and(|name| name.starts_with("hog")))
            .map(|b| b["seconds"].as_f64().unwrap())
            .sum();
        // It always wants to run: its run and the hogs' are as the weights.
        let ran_s = document["ran_s"].as_f64().unwrap();
        near("blame of the hogs by the weights", 100.0 * blamed / (blamed + ran_s), 200.0 / 3.0);
        assert_eq!(document["blame"][0]["cgroup"], rivals.path());
        assert!(document["advice"].to_string().contains("16384 (target) to 32768"), "{}", document["advice"]);
    }
}

#[test]
fn a_stopped_target_slept_and_was_stopped() {
    let _turn = turn();
    let group = Group::new("stop");
    let load = group.load("stopped", &["spin"]);
    group.weight(65_536);
    let mut looking = Looking::at(&load.scope(), "3s");
    // Over and over, so that it does not matter when the look begins.
    let (began, mut stopped) = (Instant::now(), Duration::ZERO);
    while !looking.over() {
        signal(&load, Signal::STOP);
        let at = Instant::now();
        std::thread::sleep(Duration::from_millis(120));
        signal(&load, Signal::CONT);
        stopped += at.elapsed();
        std::thread::sleep(Duration::from_millis(80));
    }
    // Of the time after the beginning and before the end, of which 0.3 s are without.
    let stopped = stopped.as_secs_f64() / (began.elapsed().as_secs_f64() + 0.3);
    let document = looking.document();
    let wall = document["wall_s"].as_f64().unwrap();
    let found = document["stopped_s"].as_f64().unwrap();
    println!("stopped {:.1} %, injected {:.1} %", 100.0 * found / wall, 100.0 * stopped);
    near("stopped", 100.0 * found / wall, 100.0 * stopped);
    near("slept", share(&document, "slept"), 100.0 * stopped);
}

#[test]
fn a_nap_is_nobodys_fault() {
    let _turn = turn();
    let group = Group::new("nap");
    let load = group.load("napper", &["idle"]);
    let document = why(&load.scope());
    near("slept", share(&document, "slept"), 100.0);
    assert_eq!(document["advice"][0]["lever"], "none");
    drop(load);
    // Spins until 40 ms of each 100 have gone by on the clock, then naps.
    group.weight(65_536);
    let nap = ["duty", "--percent", "40", "--period", "100ms", "--jitter", "0", "--kind", "wall"];
    let load = group.load("napper", &nap);
    let document = why(&load.scope());
    near("slept", share(&document, "slept"), 60.0);
}

#[test]
fn a_process_that_comes_later_is_the_targets_own() {
    let _turn = turn();
    let group = Group::new("later");
    group.weight(65_536);
    let first = group.load("whylater", &["spin"]);
    let looking = Looking::at("comm:^whylater", "4s");
    let second = group.load("whylater2", &["spin"]);
    let document = looking.document();
    let rows = document["blame"].as_array().unwrap();
    for process in [&first, &second] {
        let row =
            rows.iter().find(|row| row["tgid"] == process.pid()).unwrap_or_else(|| panic!("{document:#}"));
        assert_eq!(row["own"], true, "{row:#}");
    }
}

#[test]
fn a_target_that_goes_is_reported_up_to_then() {
    let _turn = turn();
    let load = sleeping();
    let began = Instant::now();
    let looking = Looking::at(&load.scope(), "60s");
    // Nobody waits for it: it stays as a zombie, which is gone, too.
    signal(&load, Signal::KILL);
    let document = looking.document();
    assert_eq!(document["gone"], true);
    assert!(began.elapsed() < Duration::from_secs(40) && document["wall_s"].as_f64().unwrap() < 30.0);
    assert!(share(&document, "slept") > 50.0, "{document}");
    assert!(document["notes"].to_string().contains("gone"));
}

#[test]
fn another_process_with_the_same_number_is_not_the_target() {
    let _turn = turn();
    for _ in 0..20 {
        let mut first = sleeping();
        let pid = first.pid();
        let looking = Looking::at(&first.scope(), "2s");
        first.0.kill().unwrap();
        first.0.wait().unwrap();
        // The next process gets the number after the last one given out.
        fs::write("/proc/sys/kernel/ns_last_pid", (pid - 1).to_string()).unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "while :; do :; done"]);
        let stranger = started(command, "sh");
        let reused = stranger.pid() == pid;
        let document = looking.document();
        if !reused {
            continue;
        }
        assert_eq!(document["gone"], true);
        assert!(document["ran_s"].as_f64().unwrap() < 0.2, "the stranger's time counts: {document}");
        return;
    }
    panic!("no process got a number a second time in 20 attempts");
}

#[test]
fn mistakes_and_missing_rights_have_their_statuses() {
    let _turn = turn();
    let fails = |args: &[&str], status: i32, words: &str| {
        let ended = end(&mut evenkeel(args)).with(status);
        assert!(ended.stderr.contains(words), "{ended}");
    };
    fails(&["why", "web"], 2, "expected pid:N");
    fails(&["why"], 2, "TARGET");
    fails(&["why", "pid:4194399"], 2, "no such process");
    fails(&["why", "container:nobody-has-this-name"], 2, "no task belongs to it");
    fails(&["why", "pid:2"], 2, "kernel threads");
    fails(&["why", "--all", "--for", "1ms"], 2, "at least 100ms");
    fails(&["why", "--all", "--source", "proc", "--for", "200ms"], 3, "BPF");

    let load = sleeping();
    let scope = load.scope();
    let binary = env!("CARGO_BIN_EXE_evenkeel");
    let as_one = |program: &str, before: &[&str], source: &str| {
        let mut command = Command::new(program);
        let args = [binary, "why", &scope, "--for", "300ms", "-o", "json", "--source", source];
        end(command.args(before).args(args).stdin(Stdio::null()))
    };
    let without_rights = ["--bounding-set", "-all", "--inh-caps", "-all"];
    as_one("setpriv", &without_rights, "bpf").says(3, "CAP_BPF");
    let fallen_back = as_one("setpriv", &without_rights, "auto");
    assert!(fallen_back.stderr.contains("from /proc"), "{fallen_back}");
    let document = fallen_back.json();
    assert_eq!((&document["source"], &document["blame"]), (&Value::from("proc"), &Value::Null));
    assert!(share(&document, "slept") > 90.0, "{document}");
    let hidden = ["-m", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"", "sh"];
    as_one("unshare", &hidden, "bpf").says(3, "BTF");
}

#[test]
fn proc_alone_tells_the_same_split() {
    let _turn = turn();
    let group = Group::new("proc");
    group.weight(65_536);
    group.quota(15_000, 50_000);
    let load = group.load("both", &["spin"]);
    let bpf = why(&load.scope());
    let proc =
        end(&mut evenkeel(["why", &load.scope(), "--for", "2s", "-o", "json", "--source", "proc"])).json();
    near("ran", share(&proc, "ran"), share(&bpf, "ran"));
    // cpu.stat counts throttled time low: only in sum with the waits it is exact.
    let held = |document: &Value| share(document, "throttled") + share(document, "waited");
    near("held", held(&proc), held(&bpf));
    assert_eq!(proc["throttled_by"][0]["cgroup"], group.path());
}

#[test]
fn the_whole_host_is_a_matrix_and_a_picture() {
    let _turn = turn();
    let (one, other) = (Group::new("victim"), Group::new("culprit"));
    let _loads = [one.load("victim", &["spin"]), other.load("culprit", &["spin"])];
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("why.html");
    let args = ["why", "--all", "--for", "1s", "-o", "json", "--report", page.to_str().unwrap()];
    let document = end(&mut evenkeel(args)).json();
    let html = fs::read_to_string(&page).unwrap();
    assert!(html.contains("<svg") && html.contains("culprit"), "no picture");
    assert_eq!(document["schema"], "evenkeel.why-all/v1");
    let at = |list: &str, name: &str| {
        let found = document[list].as_array().unwrap().iter().position(|row| row["name"] == name);
        found.unwrap_or_else(|| panic!("{name} is not in {list}: {document}"))
    };
    let (victim, culprit) = (at("groups", one.path()), at("culprits", other.path()));
    let cells = document["matrix"].as_array().unwrap();
    let cell = cells.iter().find(|cell| cell["victim"] == victim && cell["culprit"] == culprit).unwrap();
    assert!(cell["share_pct"].as_f64().unwrap() > 20.0, "{cell}");
    assert!(cell["seconds"].as_f64().unwrap() > 0.1, "{cell}");
    let svg = end(&mut evenkeel(["why", "--all", "--for", "200ms", "-o", "svg"])).ok();
    assert!(svg.starts_with("<svg") && svg.ends_with("</svg>"));
}
