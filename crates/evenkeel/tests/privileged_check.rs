//! `evenkeel check` on the real kernel: a throttled group and nice values that cannot act are found, with the right
//! numbers, and the fixes it prints put them right.

mod program;

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_linux::testing::{TestCgroup, TestChild, awaited};
use program::{end, evenkeel};
use serde_json::Value;

/// A process that only burns CPU, ended at the end.
struct Spinner(TestChild);

impl Spinner {
    /// With a nice value, on one CPU, in a group, or as the first of a session (an autogroup) of its own.
    fn start(nice: i32, cpu: u32, group: Option<&TestCgroup>) -> Self {
        let mut command = Command::new("taskset");
        command.args([
            "-c",
            &cpu.to_string(),
            "nice",
            "-n",
            &nice.to_string(),
            "sh",
            "-c",
            "while :; do :; done",
        ]);
        command.stdin(Stdio::null());
        // SAFETY: setsid is async-signal-safe and touches only the child.
        unsafe {
            command.pre_exec(|| rustix::process::setsid().map(drop).map_err(Into::into));
        }
        let child = Self(TestChild(command.spawn().unwrap()));
        if let Some(group) = group {
            group.add(child.0.id()).unwrap();
        }
        child
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

fn check() -> Value {
    end(&mut evenkeel(["check", "--interval", "1s", "-o", "json"])).document()
}

/// Looks until the finding is there; other tests may take the CPUs for a while.
fn find(rule: &str, about: impl Fn(&Value) -> bool) -> Value {
    awaited(30, || {
        let document = check();
        let findings = document["findings"].as_array().unwrap();
        let found = findings.iter().find(|f| f["rule"] == rule && f["status"] == "fail" && about(f));
        found.cloned().ok_or_else(|| format!("no such finding of {rule} in {findings:#?}"))
    })
}

/// Runs the commands of a fix, as the reader would.
fn apply(finding: &Value, first_line_only: bool) {
    let fix = finding["fix"].as_str().unwrap();
    let commands = if first_line_only { fix.lines().next().unwrap() } else { fix };
    let output = Command::new("sh").args(["-ec", commands]).output().unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_throttled_group_is_found_and_its_fix_ends_it() {
    let group = TestCgroup::new("check-quota").unwrap();
    let tenth = CpuQuota { quota_usec: Limit::Value(10_000), period_usec: 100_000, burst_usec: 0 };
    group.set_quota(&tenth).unwrap();
    let _spinner = Spinner::start(0, 0, Some(&group));
    let subject = format!("cgroup {}", group.path());
    let found = find("quota-throttled", |f| f["subject"] == subject.as_str());
    assert_eq!(found["severity"], "warning");
    let evidence = found["evidence"].as_str().unwrap();
    assert!(evidence.contains("quota 10.0 % of one CPU (10000 us each 100000 us)"), "{evidence}");
    // It spins, so it is stopped in every period it runs in.
    let (throttled, rest) = evidence.strip_prefix("throttled in ").unwrap().split_once(" of ").unwrap();
    let periods: u64 = rest.split_once(' ').unwrap().0.parse().unwrap();
    let throttled: u64 = throttled.parse().unwrap();
    assert!(periods > 0 && throttled * 2 > periods, "{evidence}");
    let used: f64 = evidence.split_once("used ").unwrap().1.split_once(' ').unwrap().0.parse().unwrap();
    assert!(used > 0.0 && used < 30.0, "{evidence}");

    find("quota-threads", |f| f["subject"] == subject.as_str());
    apply(&found, false);
    let document = check();
    let findings = document["findings"].as_array().unwrap();
    let still = findings.iter().find(|f| {
        f["rule"] == "quota-throttled" && f["subject"] == subject.as_str() && f["severity"] == "warning"
    });
    assert!(still.is_none(), "the fix did not help: {still:#?}");
}

#[test]
fn nice_in_a_cgroup_of_its_own_is_found_and_the_weight_of_the_fix_is_taken() {
    let (niced, other) = (TestCgroup::new("check-nice").unwrap(), TestCgroup::new("check-other").unwrap());
    let spinner = Spinner::start(10, 0, Some(&niced));
    let _rival = Spinner::start(0, 0, Some(&other));
    let about = format!("task {} ", spinner.pid());
    let found = find("nice-ineffective", |f| f["subject"].as_str().unwrap().starts_with(&about));
    let evidence = found["evidence"].as_str().unwrap();
    assert!(evidence.starts_with("nice 10, waits "), "{evidence}");
    assert!(evidence.contains(&format!("no task in cgroup {} that wants CPU", niced.path())), "{evidence}");
    assert!(evidence.contains(&format!("in cgroup {}", other.path())), "{evidence}");
    apply(&found, false);
    // Nice 10 weighs 110 of 1024.
    let (file, weight) = if niced.is_v2() { ("cpu.weight", "11") } else { ("cpu.shares", "110") };
    assert_eq!(fs::read_to_string(niced.dir().join(file)).unwrap().trim(), weight);
}

/// Turns autogroups on for a test, and back.
struct Autogroups(String);

const AUTOGROUP: &str = "/proc/sys/kernel/sched_autogroup_enabled";

impl Autogroups {
    fn on() -> Self {
        let before = fs::read_to_string(AUTOGROUP).expect("a kernel with CONFIG_SCHED_AUTOGROUP");
        fs::write(AUTOGROUP, "1").unwrap();
        Self(before)
    }
}

impl Drop for Autogroups {
    fn drop(&mut self) {
        let _ = fs::write(AUTOGROUP, &self.0);
    }
}

#[test]
fn nice_in_an_autogroup_of_its_own_is_found_and_the_fix_is_taken() {
    let _on = Autogroups::on();
    let cgroup = fs::read_to_string("/proc/self/cgroup").unwrap();
    assert!(
        cgroup
            .lines()
            .any(|line| line.ends_with("cpu:/") || line.contains(":cpu,cpuacct:/\n") || line == "0::/"),
        "run this test in the root cgroup of the cpu controller: autogroups act only there\n{cgroup}"
    );
    let spinner = Spinner::start(7, 0, None);
    let rival = Spinner::start(0, 0, None);
    let about = format!("task {} ", spinner.pid());
    let found = find("nice-ineffective", |f| f["subject"].as_str().unwrap().starts_with(&about));
    let evidence = found["evidence"].as_str().unwrap();
    assert!(evidence.contains("no task in autogroup "), "{evidence}");
    assert!(evidence.contains(&format!("{} (sh) in autogroup ", rival.pid())), "{evidence}");
    apply(&found, true);
    let autogroup = fs::read_to_string(format!("/proc/{}/autogroup", spinner.pid())).unwrap();
    assert!(autogroup.trim().ends_with(" nice 7"), "{autogroup}");
}
