//! The binary inside an emulated machine: cgroup v2, NUMA nodes, isolated CPUs, whatever this host lacks.
//!
//! A scenario is a shell script in `scripts/guest/scenarios/`, which also says what machine it wants; it hands named
//! results back, and the `#[test]` here judges them. What the machine boots is made here, as the laboratory makes it;
//! `scripts/guest/run.sh` starts it. The processor is emulated, so nothing here judges how long something took.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use evenkeel_lab::vm::image;

/// By its name among the first, for the longest test of `make test` is there.
#[path = "guest/kernels.rs"]
mod all_kernels;

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

/// Guests at a time: booting and looking keep one CPU busy, whatever number of them a guest has, and scenarios wait now and then.
const AT_A_TIME: usize = 3;

/// How many there are.
static GUESTS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

/// Room for one guest, as long as this is held.
struct Turn;

impl Turn {
    fn take() -> Self {
        let mut guests = Self::guests();
        while *guests >= AT_A_TIME {
            guests = GUESTS.1.wait(guests).unwrap_or_else(PoisonError::into_inner);
        }
        *guests += 1;
        Self
    }

    fn guests() -> MutexGuard<'static, usize> {
        GUESTS.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *Self::guests() -= 1;
        GUESTS.1.notify_one();
    }
}

fn scripts() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../scripts/guest")
}

/// The kernel of the scenarios that want no particular one, fetched by the first who asks.
fn usual_kernel() -> PathBuf {
    static FETCHING: Mutex<()> = Mutex::new(());
    let _alone = FETCHING.lock().unwrap_or_else(PoisonError::into_inner);
    image::kernel(&PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vm-kernel")).unwrap()
}

/// Makes what a guest boots that runs `scripts/guest/scenarios/NAME.sh`: the command that boots it with results in a directory.
fn guest(name: &str, kernel: &Path, out: &Path) -> Vec<String> {
    let scripts = scripts();
    let scenario = scripts.join("scenarios").join(name).with_extension("sh");
    std::fs::create_dir_all(out).unwrap();
    let initramfs = out.join("initramfs");
    let busybox = ["/bin/busybox", "/usr/bin/busybox"].map(Path::new).into_iter().find(|path| path.exists());
    let evenkeel = Path::new(env!("CARGO_BIN_EXE_evenkeel"));
    let (init, functions) = (scripts.join("init"), scripts.join("guest.sh"));
    let mut files = vec![
        ("init", &*init),
        ("guest.sh", &*functions),
        ("scenario", &*scenario),
        ("bin/busybox", busybox.expect("busybox is not installed: scripts/packages.sh test")),
        ("bin/evenkeel", evenkeel),
    ];
    // A program of `crates/*/examples`, built along with the tests.
    let text = std::fs::read_to_string(&scenario).unwrap();
    let example = text
        .lines()
        .find_map(|line| line.strip_prefix("# example: "))
        .map(|name| (format!("bin/{name}"), evenkeel.with_file_name("examples").join(name)));
    files.extend(example.as_ref().map(|(name, file)| (name.as_str(), file.as_path())));
    image::pack(&initramfs, &files).unwrap();
    let run = scripts.join("run.sh");
    [&*run, &*scenario, kernel, &*initramfs, out].map(|path| path.display().to_string()).into()
}

/// As [`scenario_on`], on the usual kernel.
fn scenario(name: &str) -> Results {
    scenario_on(name, usual_kernel, name)
}

/// Boots a guest on a kernel, runs `scripts/guest/scenarios/NAME.sh` in it and returns its results, which `dir` keeps. Panics,
/// with the console's last lines, when the guest does not get to the end or the scenario fails.
fn scenario_on(name: &str, kernel: impl FnOnce() -> PathBuf, dir: &str) -> Results {
    let _turn = Turn::take();
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("guest").join(dir);
    let command = guest(name, &kernel(), &out);
    // The longest of `make test` has a CPU of its own. Of several such, other guests would starve until their kernels give up.
    let nice = if dir == "kernel-6.12" { "-10" } else { "0" };
    let output =
        Command::new("nice").args(["-n", nice]).args(&command).stdin(Stdio::null()).output().unwrap();
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

/// Subjects of the findings of a rule that have a status.
fn subjects<'a>(check: &'a serde_json::Value, rule: &str, status: &str) -> Vec<&'a str> {
    let findings = check["findings"].as_array().unwrap().iter();
    findings
        .filter(|f| f["rule"] == rule && f["status"] == status)
        .map(|f| f["subject"].as_str().unwrap())
        .collect()
}

/// That `run` has restored all, that a killed one left something in force, and that `restore` found it. That the state is as
/// found after either, the scenarios themselves compare.
fn expect_restored(results: &Results) {
    let run = results.json("run");
    assert_eq!([&run["restored"]["failed"], &run["restored"]["conflicts"]], [0, 0], "{run:#}");
    assert_ne!(
        results.text("killed"),
        results.text("found"),
        "nothing was in force when the agent was killed"
    );
    let restored = results.json("restore");
    assert_eq!(restored["schema"], "evenkeel.restore/v1");
    assert!(!restored["items"].as_array().unwrap().is_empty(), "{restored:#}");
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
    for finding in wrong["findings"].as_array().unwrap().iter().filter(|f| f["status"] == "fail") {
        assert!(finding["evidence"].is_string() && finding["fix"].is_string(), "{finding:#}");
    }

    // Without a policy nothing is expected of the isolated CPUs; with one, they have to be those.
    assert_eq!(subjects(&wrong, "isolated-as-expected", "fail"), Vec::<&str>::new());
    assert_eq!(subjects(&results.json("expected"), "isolated-as-expected", "fail").len(), 1);
    assert_eq!(results.text("bad_policy"), "2");

    let mended = results.json("mended");
    for rule in ["isolated-task", "quota-throttled"] {
        assert_eq!(subjects(&mended, rule, "fail"), Vec::<&str>::new(), "{rule}: {mended:#}");
        assert_ne!(subjects(&mended, rule, "pass"), Vec::<&str>::new(), "{rule}: {mended:#}");
    }
}

#[test]
fn the_machine_is_what_was_asked_for_and_topology_shows_it() {
    let results = scenario("topology");
    assert_eq!(results.text("online"), "0-3");
    assert_eq!(results.text("nodes"), "0-1");
    assert_eq!(results.text("isolated"), "3");
    assert_eq!(results.text("own_group"), "0::/one");
    assert!(results.text("controllers").split(' ').any(|controller| controller == "cpu"));
    assert_eq!(results.text("wrong_usage"), "2");
    assert!(results.text("version").starts_with("evenkeel "));
    let load = results.json("load");
    assert_eq!(load["schema"], "evenkeel.load/v1");
    assert_eq!(load["wanted_pct"], 10.0);

    let topology = results.json("json");
    assert_eq!(topology["schema"], "evenkeel.topology/v1");
    let cpus = topology["cpus"].as_array().unwrap();
    let of = |field: &str| cpus.iter().map(|cpu| cpu[field].clone()).collect::<Vec<_>>();
    assert_eq!(of("socket"), [0, 0, 1, 1]);
    assert_eq!(of("node"), [0, 0, 1, 1]);
    assert_eq!(of("isolated"), [false, false, false, true]);
    assert_eq!(of("nohz_full"), [false, false, false, true]);
    assert_eq!(topology["nodes"][1]["distances"], serde_json::json!([20, 10]));
    assert_eq!(topology["kernel"]["cgroup"], "v2");
    assert_eq!(topology["kernel"]["scheduler"], "cfs");
    assert_eq!(topology["kernel"]["features"]["task_slice"], false);

    let text = results.text("text");
    assert!(
        text.contains("3*") && !text.contains("2*"),
        "the isolated CPU is starred, and only that:\n{text}"
    );
    let svg = results.text("svg");
    assert!(svg.contains("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
}

/// On 6.1; on 6.12 `all_kernels` does the same, for every run.
#[test]
#[ignore = "make test-vm runs it: minutes"]
fn the_loop_changes_things_and_everything_is_put_back() {
    // That the state is as found after `run`, and after `kill -9` and `restore`, the scenario itself compares.
    let results = scenario("loop");
    let run = results.json("run");
    assert_eq!(run["schema"], "evenkeel.run/v1");
    let stages = run["stages"].as_array().unwrap();
    assert!(stages.iter().any(|stage| stage["kept"] == true), "nothing was decided: {run:#}");
    expect_restored(&results);
}

#[test]
fn bpf_and_proc_see_the_same_on_an_older_kernel() {
    let results = scenario("bpf");
    let [by_bpf, by_proc] = ["by_bpf", "by_proc"].map(|name| results.json(name));
    let spinning: u64 = results.text("spinning").trim().parse().unwrap();
    // Whatever does not depend on when it was read.
    let fixed = |ps: &serde_json::Value, pid: u64| {
        let tasks = ps["tasks"].as_array().unwrap();
        let task = tasks.iter().find(|task| task["tid"] == pid).unwrap_or_else(|| panic!("{pid} in {ps}"));
        ["tgid", "start_time", "comm", "policy", "nice", "slice_usec", "cgroup", "affinity", "kernel_thread"]
            .map(|field| task[field].clone())
    };
    for pid in [1, 2, spinning] {
        assert_eq!(fixed(&by_bpf, pid), fixed(&by_proc, pid));
    }
    assert_eq!(fixed(&by_bpf, spinning)[6], "/spinning");
    let spins = |ps: &serde_json::Value| {
        let tasks = ps["tasks"].as_array().unwrap();
        tasks.iter().find(|task| task["tid"] == spinning).and_then(|task| task["cpu_pct"].as_f64()).unwrap()
    };
    assert!(spins(&by_bpf) > 10.0 && spins(&by_proc) > 10.0, "{} {}", spins(&by_bpf), spins(&by_proc));
    let ended = by_bpf["exited"].as_array().unwrap();
    let forking = ended.iter().find(|exited| exited["cgroup"] == "/forking").expect("short-lived tasks");
    assert!(forking["tasks_per_s"].as_f64().unwrap() > 1.0 && forking["cpu_pct"].as_f64().unwrap() > 0.0);
    assert_eq!(by_proc["exited"], serde_json::json!([]));
}

#[test]
fn bounds_and_experiments_hold_on_cgroup_v2_and_leave_nothing() {
    // That no group is left, the scenario itself looks.
    let results = scenario("lab");
    let seen: Vec<&str> = results.text("exec_seen").lines().collect();
    // Next to the caller's group, which has members and so can have no such children.
    assert!(seen[0].starts_with("/sys/fs/cgroup/evenkeel-exec-"), "{seen:?}");
    assert_eq!(seen[1..], ["50000 100000", "300", "1"]);
    assert_eq!(results.text("exec_status"), "7");
    let account = results.json("exec_account");
    assert_eq!(account["exit_status"], 7);
    assert!(account["throttled_s"].as_f64().unwrap() > 0.0, "{account:#}");
    assert!(account["waited_s"].as_f64().unwrap() > 0.0, "{account:#}");
    assert!(account["notes"].to_string().contains("/svc"), "that its own limit does not hold: {account:#}");
    assert_eq!(results.text("outlives"), "20000 100000");
    assert_eq!(results.text("next"), "0");

    let cpu_s = |tenant: &serde_json::Value| {
        tenant["total"]["user_s"].as_f64().unwrap() + tenant["total"]["sys_s"].as_f64().unwrap()
    };
    let record = results.json("weights_record");
    assert_eq!(record["host"]["tenants_v2"], true);
    let [a, b] = [0, 1].map(|n| record["cells"][0]["tenants"][n].clone());
    assert_eq!((&a["limits"]["weight"], &a["limits"]["cpus"]), (&300.into(), &"0".into()));
    let ratio = cpu_s(&a) / cpu_s(&b);
    assert!((2.0..4.5).contains(&ratio), "{ratio}: {a} {b}");
    let record = results.json("enforced_record");
    let victim = &record["cells"][0]["tenants"][0];
    let share = cpu_s(victim) / victim["total"]["real_s"].as_f64().unwrap();
    assert!(share > 0.0 && share < 0.75, "half of it is to be stolen: {share}");
    assert!(record["cells"][0]["enforcer"]["stolen_s"].as_f64().unwrap() > 0.0);
    assert_eq!(results.text("handed_out"), results.text("handed_out_after"));
}

#[test]
fn a_machine_cannot_see_the_quota_that_plays_its_hypervisor() {
    let _turn = Turn::take();
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let command = guest("stolen", &usual_kernel(), &dir.path().join("guest"));
    let binary = env!("CARGO_BIN_EXE_evenkeel");
    let file = at("stolen.toml");
    // The tenant is a whole machine; the rule is played on its processes, outside of what it can see.
    let text = format!(
        "name = 'stolen'\ntime_limit_s = 280\nenforcer = {{ rule = {{ rule = 'constant', stolen = 0.4 }} }}\n\
         [[tenant]]\nname = 'machine'\ncommand = {command:?}\n"
    );
    std::fs::write(&file, text).unwrap();
    let output = Command::new(binary)
        .args(["lab", "run", &file, "--out", &at("results"), "-o", "json"])
        .current_dir(&root)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let console = std::fs::read_to_string(dir.path().join("guest/console")).unwrap_or_default();
    assert!(output.status.success(), "{stderr}\n{console}");
    let record = std::fs::read_to_string(dir.path().join("results/record.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    let cell = &record["cells"][0];
    assert_eq!(cell["tenants"][0]["runs"][0]["exit_status"], 0, "{}\n{console}", cell["notes"]);
    let enforcer = &cell["enforcer"];
    let [stolen, given] = ["stolen_s", "given_s"].map(|field| enforcer[field].as_f64().unwrap());
    assert!(stolen > 0.5 && given > 0.5, "{stolen} {given}");

    let seen = std::fs::read_to_string(dir.path().join("guest/results")).unwrap();
    let results = Results { named: parse(&seen) };
    // Its own clocks tell it nothing, and there is no quota to be read.
    assert!(results.json("load")["got_pct"].as_f64().unwrap() > 70.0, "{seen}");
    assert_eq!((results.text("limit"), results.text("throttled")), ("max 100000", "0"));
}
