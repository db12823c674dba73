//! The kernels that evenkeel is for, from the oldest to the newest that Debian has: what it sees and does on each, in
//! emulated machines of two kinds. `docs/kernels.md` is made from what they hand back.
//!
//! `make test` runs 6.12 on one CPU, and its other guests boot 6.1; the rest carries `#[ignore]` and runs by `make test-vm`.
//! A kernel that cannot be fetched fails its tests.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use super::{Results, scenario_on, scripts};

/// What is expected of one series of kernels.
struct Kernel {
    series: &'static str,
    scheduler: &'static str,
    /// Whether `run` changes anything there; read-only otherwise.
    changes: bool,
    /// Whether a task can have its own slice.
    task_slice: bool,
    /// Whether the kernel loads the BPF program that samples tasks (`ps`).
    sampling: bool,
    /// Whether the kernel loads the BPF programs of `why`.
    blame: bool,
    /// What other kernels of the matrix have.
    missing: &'static [&'static str],
}

const V5_10: Kernel = Kernel {
    series: "5.10",
    scheduler: "cfs",
    changes: false,
    task_slice: false,
    sampling: false,
    blame: false,
    missing: &["cpu.idle", "cpu.max.burst", "sched_ext"],
};
const V6_1: Kernel = Kernel {
    series: "6.1",
    scheduler: "cfs",
    changes: true,
    task_slice: false,
    sampling: true,
    blame: true,
    missing: &["sched_ext"],
};
const V6_12: Kernel = Kernel { series: "6.12", scheduler: "eevdf", task_slice: true, ..V6_1 };
const V6_19: Kernel = Kernel { series: "6.19", missing: &[], ..V6_12 };
const V7: Kernel = Kernel { series: "7", ..V6_19 };

/// Knobs that a kernel may lack; the scenario looks for them.
const KNOBS: [&str; 5] = ["cpu.idle", "cpu.max.burst", "cpu.pressure", "cpuset.cpus.partition", "sched_ext"];

impl Kernel {
    /// Debian's newest cloud kernel of the series, from the cache or the mirror.
    fn fetch(&self) -> PathBuf {
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vm-kernels");
        let mut command = Command::new(scripts().join("kernel.sh"));
        let output = command.arg(self.series).arg(cache).stdin(Stdio::null()).output().unwrap();
        let path = String::from_utf8(output.stdout).unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        PathBuf::from(path.trim())
    }

    fn scenario(&self, name: &str) -> Results {
        let results = scenario_on(name, || self.fetch(), &format!("{name}-{}", self.series));
        let release = results.text("release");
        assert!(release.starts_with(&format!("{}.", self.series)), "{release} is not {}", self.series);
        results
    }

    /// One CPU: boot, look, change, restore.
    fn on_one_cpu(&self) {
        let results = self.scenario("kernel");
        self.expect_observation(&results);
        // That the state is as found after `run`, and after `kill -9` and `restore`, the scenario itself compares.
        if self.changes {
            expect_change_and_restore(&results);
        } else {
            assert_eq!((results.text("run_status"), results.text("changed")), ("3", "no"));
            let words = results.text("run_words");
            assert!(words.contains(results.text("release")) && words.contains("older than 5.15"), "{words}");
        }
        self.expect_refusals(&results);
        expect_row(self.series, &self.row(&results));
    }

    /// Every command that changes the host is refused in the same words on a kernel that is too old, before it looks at
    /// anything else; no command is elsewhere.
    fn expect_refusals(&self, results: &Results) {
        let old = format!("Linux {} is older than 5.15", results.text("release"));
        for (name, elsewhere, refused) in
            [("exec", "0", "125"), ("lab", "2", "3"), ("tune", "2", "3"), ("net", "2", "3")]
        {
            let words = results.text(&format!("{name}_words"));
            let expected = if self.changes { (elsewhere, false) } else { (refused, true) };
            let seen = (results.text(&format!("{name}_status")), words.contains(&old));
            assert_eq!(seen, expected, "{name}: {words}");
        }
        assert_eq!([results.text("account_status"), results.text("nothing_left_status")], ["0", "0"]);
    }

    fn expect_observation(&self, results: &Results) {
        assert!(results.text("version").starts_with("evenkeel "));
        let topology = results.json("topology");
        assert_eq!(topology["online"], "0");
        assert_eq!(topology["kernel"]["scheduler"], self.scheduler);
        assert_eq!(topology["kernel"]["features"]["task_slice"], self.task_slice);
        let check = results.json("check");
        assert_eq!(check["schema"], "evenkeel.check/v1");
        assert_eq!(check["summary"]["unknown"], 0, "{check:#}");
        let status = if self.task_slice { "pass" } else { "fail" };
        assert_eq!(super::subjects(&check, "kernel-features", status).len(), 1, "{check:#}");
        let ps = results.json("ps");
        let tasks = ps["tasks"].as_array().unwrap();
        let pod =
            tasks.iter().filter(|task| task["cgroup"] == "/pod" && task["cpu_pct"].as_f64().unwrap() > 0.0);
        assert_eq!(pod.count(), 4, "{ps:#}");

        // Refused or not, never silently: where a program is not loaded, the reason is said.
        let expected = if self.sampling { ("0", "") } else { ("3", "cannot be sampled by BPF") };
        let words = results.text("bpf_words");
        assert!(results.text("bpf_status") == expected.0 && words.contains(expected.1), "{words}");
        let words = results.text("why_words");
        assert_eq!(results.text("why_status"), "0", "{words}");
        assert_eq!(words.contains("from /proc"), !self.blame, "{words}");
        assert_eq!(missing(results), self.missing);
    }

    /// The kernel's line of `docs/kernels.md`, of what was seen.
    fn row(&self, results: &Results) -> String {
        let kernel = &results.json("topology")["kernel"];
        let yes = |yes: bool| if yes { "yes" } else { "no" };
        let levers = levers(&results.json("plan"));
        format!(
            "| {} | {} | {} | {} | {} | {} | {} |",
            self.series,
            kernel["scheduler"].as_str().unwrap().to_uppercase(),
            if results.text("run_status") == "0" { &*levers } else { "none: read-only" },
            yes(kernel["features"]["task_slice"] == true),
            if results.text("bpf_status") == "0" { "by BPF" } else { "from /proc" },
            if results.text("why_words").contains("from /proc") {
                "from /proc: no culprits"
            } else {
                "by BPF"
            },
            match &*missing(results) {
                [] => "nothing".to_owned(),
                names => names.join(", "),
            },
        )
    }

    /// A service and background work: the work's group is made idle where the kernel has such groups. Whether it stays so after
    /// the trial, emulation does not tell.
    fn tiers(&self) {
        let results = self.scenario("tiers");
        let run = results.json("run");
        assert_eq!(results.text("run_status"), "0", "{run:#}");
        let has_idle = !self.missing.contains(&"cpu.idle");
        assert_eq!(results.text("idle") == "yes", has_idle, "{run:#}\n{}", results.text("run_words"));
        assert!(results.text("killed").contains("work/cpu.idle: 1"), "{}", results.text("killed"));
        super::expect_restored(&results);
    }

    /// BPF schedulers, on a kernel that has sched_ext. That everything is as found after each part, the scenario itself looks.
    fn schedulers(&self) {
        let results = self.scenario("scx");
        let words = |name: &str, wanted: &str| {
            let words = results.text(name);
            assert!(words.contains(wanted), "{name}: {words}");
        };
        words("not_installed", "no BPF scheduler is tried: none of scx_bpfland, ");
        words("not_the_host", "no BPF scheduler is tried: it would decide for the whole host");
        words("another", "no BPF scheduler is tried: another program has loaded another");
        assert!(!results.text("not_allowed").contains("scx_"), "{}", results.text("not_allowed"));
        words("allowed", "scx_bpfland");
        words("allowed", "the kernel's scheduler");

        let why = |run: &serde_json::Value, name: &str| -> String {
            let mut stages = run["stages"].as_array().unwrap().iter();
            let stage = stages.rfind(|stage| stage["name"].as_str().unwrap().contains(name));
            stage.unwrap_or_else(|| panic!("{name} was not tried: {run:#}"))["why"]
                .as_str()
                .unwrap()
                .to_owned()
        };
        let run = results.json("run");
        assert_eq!((results.text("run_status"), results.text("ops")), ("0", "fifo"), "{run:#}");
        let refused = why(&run, "scx_rusty");
        assert!(
            refused
                .contains("scx_rusty does not load: Error: attaching the scheduler: Operation not permitted"),
            "{refused}"
        );
        assert!(!why(&run, "scx_bpfland").contains("not possible"), "{run:#}");
        assert_eq!([&run["restored"]["failed"], &run["restored"]["conflicts"]], [0, 0], "{run:#}");

        let voiding = results.json("voiding");
        let reason = why(&voiding, "scx_bpfland");
        assert!(reason.contains("the limit of /limited does nothing under it"), "{reason}");
        assert_eq!(results.text("voiding_status"), "0");

        let ejected = results.json("ejected");
        let reason = why(&ejected, "scx_bpfland");
        assert!(reason.contains("the kernel or another program has ended it"), "{reason}");
        assert_eq!((results.text("ejected_status"), &ejected["restored"]["failed"]), ("0", &0.into()));

        for name in ["restore", "restore_later"] {
            let items = results.json(name)["items"].as_array().unwrap().clone();
            let of_host: Vec<_> = items.iter().filter(|item| item["knob"] == "scheduler").collect();
            assert_eq!(of_host.len(), 1, "{name}: {items:?}");
            assert_eq!(
                (of_host[0]["outcome"].as_str(), of_host[0]["to"].as_str()),
                (Some("already back"), Some("the kernel's scheduler"))
            );
        }

        let void =
            |name: &str, status: &str| super::subjects(&results.json(name), "quota-void", status).len();
        assert_eq!(
            (void("enforced", "fail"), void("enforced", "pass")),
            (0, 1),
            "{}",
            results.text("enforced")
        );
        assert_eq!(super::subjects(&results.json("void"), "quota-void", "fail"), ["cgroup /limited"]);
    }

    /// Two sockets, two nodes, SMT, isolated CPUs; one CPU leaves and comes back.
    fn on_two_sockets(&self) {
        let results = self.scenario("machine");
        let topology = results.json("topology");
        let cpus = topology["cpus"].as_array().unwrap();
        let of = |field: &str| cpus.iter().map(|cpu| cpu[field].clone()).collect::<Vec<_>>();
        assert_eq!(of("socket"), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(of("node"), [0, 0, 0, 0, 1, 1, 1, 1]);
        for (cpu, there) in cpus.iter().enumerate() {
            assert_eq!(there["siblings"], serde_json::json!([cpu & !1, cpu | 1]), "{there}");
        }
        assert_eq!(
            [&topology["online"], &topology["isolated"], &topology["nohz_full"]],
            ["0-7", "6-7", "6-7"]
        );
        assert_eq!(topology["kernel"]["scheduler"], self.scheduler);
        let away = results.json("offline_topology");
        assert_eq!([&away["online"], &away["isolated"]], ["0-4,6-7", "6-7"], "{away:#}");
        assert_eq!(results.json("online_topology"), topology);

        let ps = results.json("ps");
        let spins = ps["tasks"].as_array().unwrap().iter().filter(|task| {
            ["/promised", "/other"].contains(&task["cgroup"].as_str().unwrap_or(""))
                && task["affinity"] == "4"
        });
        assert_eq!(spins.count(), 2, "{ps:#}");
        let offline = results.json("offline_check");
        assert_eq!(super::subjects(&offline, "cpuset-offline", "fail").len(), 1, "{offline:#}");
        let online = results.json("online_check");
        assert_eq!(super::subjects(&online, "cpuset-offline", "fail"), Vec::<&str>::new(), "{online:#}");

        // How well it is kept, emulation does not tell; that it is admitted and something was set for it, it does.
        let run = results.json("run");
        assert_ne!(run["guarantees"][0]["state"], "refused", "{run:#}");
        assert_ne!(results.text("kept"), results.text("found"), "nothing was set for the promise");
        super::expect_restored(&results);
    }
}

fn expect_change_and_restore(results: &Results) {
    let run = results.json("run");
    assert_eq!((results.text("run_status"), results.text("changed")), ("0", "yes"), "{run:#}");
    assert!(run["stages"].as_array().unwrap().iter().any(|stage| stage["kept"] == true), "{run:#}");
    super::expect_restored(results);
}

fn missing(results: &Results) -> Vec<&'static str> {
    KNOBS.into_iter().filter(|knob| results.text(knob) == "no").collect()
}

/// Names of the levers that the loop has for the scenario's mix of loads.
fn levers(plan: &serde_json::Value) -> String {
    let plans = plan["plans"].as_array().unwrap().iter().map(|plan| plan["name"].as_str().unwrap());
    plans.collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>().join(", ")
}

const HEAD: &str = "# Kernels

<!-- Made from what the emulated machines hand back; after a change: EVENKEEL_WRITE_DOCS=1 make test-vm -->

What differs by kernel: Debian's newest cloud kernel of each series, on x86-64, as `make test-vm` sees it in an emulated machine.
Linux 5.15 is the oldest on which evenkeel changes anything. On older ones `run`, `lab run`, `tune`, `net set` and whatever else
changes something refuses with status 3, `exec` with bounds with 125; `restore` and what reads work.

On arm64, evenkeel ran in an emulated machine with Debian's kernels 6.1 and 6.12 (`scripts/guest/arm64.sh`), once each: BPF sampling, `why`, `check`,
`exec --nice`, a `run`, a `kill -9` while settings were changed, `restore`; on 6.1 also unit tests of two crates, `linux` and `actuate`. Each passed.
The table was not made there, and no real arm64 host was tried.

| Linux | scheduler | levers (for loads that want 30, 50, 70 and 90 % of one CPU) | task slice | sampling | `why` | knobs missing |
|---|---|---|---|---|---|---|
";

/// Compares a kernel's line of the page with what was seen now, or writes it.
fn expect_row(series: &str, row: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/kernels.md");
    let page = std::fs::read_to_string(&path).unwrap_or_default();
    let is_row = |line: &&str| ALL.iter().any(|kernel| line.starts_with(&format!("| {} |", kernel.series)));
    let start = format!("| {series} |");
    if std::env::var_os("EVENKEEL_WRITE_DOCS").is_some() {
        let others = page.lines().filter(is_row).filter(|line| !line.starts_with(&start));
        let mut rows: Vec<&str> = others.chain([row]).collect();
        let place =
            |line: &str| ALL.iter().position(|kernel| line.starts_with(&format!("| {} |", kernel.series)));
        rows.sort_by_key(|line| place(line));
        let page: String =
            std::iter::once(HEAD.to_owned()).chain(rows.iter().map(|row| format!("{row}\n"))).collect();
        std::fs::write(&path, page).unwrap();
        return;
    }
    let old = "docs/kernels.md is old: EVENKEEL_WRITE_DOCS=1 make test-vm";
    assert!(page.starts_with(HEAD), "{old}");
    assert_eq!(page.lines().find(|line| line.starts_with(&start)), Some(row), "{old}");
}

const ALL: [Kernel; 5] = [V5_10, V6_1, V6_12, V6_19, V7];

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_6_1_on_one_cpu() {
    V6_1.on_one_cpu();
}

#[test]
fn linux_6_12_on_one_cpu() {
    V6_12.on_one_cpu();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_5_10_on_one_cpu_is_only_read() {
    V5_10.on_one_cpu();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_6_19_on_one_cpu() {
    V6_19.on_one_cpu();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_7_on_one_cpu() {
    V7.on_one_cpu();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_6_1_on_two_sockets() {
    V6_1.on_two_sockets();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_6_12_on_two_sockets() {
    V6_12.on_two_sockets();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_7_on_two_sockets() {
    V7.on_two_sockets();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_6_1_makes_background_work_yield() {
    V6_1.tiers();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_6_12_makes_background_work_yield() {
    V6_12.tiers();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_7_makes_background_work_yield() {
    V7.tiers();
}

#[test]
#[ignore = "make test-vm runs it: minutes"]
fn linux_7_starts_ends_and_undoes_bpf_schedulers() {
    V7.schedulers();
}
