//! `evenkeel check` on a captured host with two NUMA nodes and isolated CPUs, as files: what is wrong there is found,
//! with the exact fix; what cannot be read is unknown; a bad policy file is refused.

mod program;

use std::fs;

use program::{Ended, end, evenkeel};
use serde_json::Value;
use tempfile::TempDir;

/// A task of the made-up host: ran that many milliseconds of the second between the samples.
struct Task {
    pid: u32,
    comm: &'static str,
    cpu: u32,
    affinity: &'static str,
    ran_ms: u64,
    cgroup: &'static str,
    memory: &'static str,
}

const TASKS: [Task; 4] = [
    Task { pid: 1, comm: "systemd", cpu: 0, affinity: "0-5", ran_ms: 0, cgroup: "/init.scope", memory: "" },
    Task {
        pid: 100,
        comm: "postgres",
        cpu: 1,
        affinity: "0-5",
        ran_ms: 900,
        cgroup: "/system.slice/postgres.service",
        // 128 MiB on node 0, 512 MiB on node 1.
        memory: "7f00 default anon=1 N0=32768 N1=131072 kernelpagesize_kB=4\n",
    },
    Task {
        pid: 200,
        comm: "dpdk-poll",
        cpu: 6,
        affinity: "6",
        ran_ms: 1000,
        cgroup: "/system.slice/dpdk.service",
        memory: "",
    },
    Task {
        pid: 300,
        comm: "stray",
        cpu: 7,
        affinity: "0-7",
        ran_ms: 250,
        cgroup: "/system.slice/docker-DEADBEEF.scope",
        memory: "",
    },
];

/// 64 hexadecimal digits, as Docker names its scopes.
const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

struct Host(TempDir);

impl Host {
    /// Two nodes of four CPUs, CPUs 6 and 7 isolated, cgroup v2.
    fn new() -> Self {
        let host = Self(tempfile::tempdir().unwrap());
        for sample in 0..2 {
            host.sample(sample);
        }
        for cpu in 0..8 {
            let dir = format!("1/sys/devices/system/cpu/cpu{cpu}");
            host.write(&format!("{dir}/topology/core_cpus_list"), &format!("{cpu}\n"));
            host.write(&format!("{dir}/topology/physical_package_id"), &format!("{}\n", cpu / 4));
            host.write(&format!("{dir}/cpufreq/scaling_governor"), "powersave\n");
            host.write(&format!("{dir}/cpufreq/scaling_driver"), "acpi-cpufreq\n");
        }
        for (file, text) in [
            ("sys/devices/system/cpu/online", "0-7\n"),
            ("sys/devices/system/cpu/present", "0-7\n"),
            ("sys/devices/system/cpu/possible", "0-7\n"),
            ("sys/devices/system/cpu/isolated", "6-7\n"),
            ("sys/devices/system/cpu/nohz_full", "6-7\n"),
            ("sys/devices/system/cpu/smt/active", "0\n"),
            ("sys/devices/system/node/node0/cpulist", "0-3\n"),
            ("sys/devices/system/node/node0/distance", "10 21\n"),
            ("sys/devices/system/node/node0/meminfo", "Node 0 MemTotal: 8388608 kB\n"),
            ("sys/devices/system/node/node1/cpulist", "4-7\n"),
            ("sys/devices/system/node/node1/distance", "21 10\n"),
            ("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 8388608 kB\n"),
            ("proc/cmdline", "quiet isolcpus=6-7 nohz_full=6-7 rcu_nocbs=6-7\n"),
            ("proc/sys/kernel/osrelease", "6.12.9-amd64\n"),
            ("proc/sys/kernel/sched_autogroup_enabled", "0\n"),
            ("proc/sys/kernel/numa_balancing", "0\n"),
            ("proc/sys/kernel/sched_rt_runtime_us", "950000\n"),
            ("proc/pressure/cpu", "some avg10=0.50 avg60=0.40 avg300=0.10 total=1\n"),
            (
                "proc/interrupts",
                "   CPU0 CPU1 CPU2 CPU3 CPU4 CPU5 CPU6 CPU7\n \
                 34:  0 0 0 0 0 0 81234 0  PCI-MSIX-0000:01:00.0   1-edge      nvme0q1\n \
                 35:  7 0 0 0 0 0 0 0  PCI-MSIX-0000:01:00.0   2-edge      eth0-rx\n",
            ),
            ("proc/irq/34/smp_affinity_list", "0-7\n"),
            ("proc/irq/34/effective_affinity_list", "6\n"),
            ("proc/irq/35/smp_affinity_list", "0-5\n"),
            ("proc/irq/35/effective_affinity_list", "0\n"),
            ("sys/fs/cgroup/system.slice/postgres.service/cpuset.cpus", "0-3\n"),
            ("sys/fs/cgroup/system.slice/postgres.service/cpuset.cpus.effective", "0-3\n"),
            ("sys/fs/cgroup/system.slice/postgres.service/cpuset.mems", "1\n"),
            ("sys/fs/cgroup/system.slice/postgres.service/cpuset.mems.effective", "1\n"),
        ] {
            host.write(&format!("1/{file}"), text);
        }
        host
    }

    fn sample(&self, sample: u64) {
        let at = |file: &str| format!("{sample}/{file}");
        self.write(
            &at("evenkeel/instant"),
            &format!("{} {}\n", (100 + sample) * 1_000_000_000, 1_700_000_000),
        );
        self.write(&at("proc/self/mountinfo"), "41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
        self.write(&at("proc/self/schedstat"), "1 1 1\n");
        self.write(&at("sys/fs/cgroup/cgroup.controllers"), "cpuset cpu\n");
        let mut stat = String::from("cpu  0 0 0 0 0 0 0 0 0 0\n");
        for cpu in 0..8 {
            let busy: u64 = TASKS.iter().filter(|t| t.cpu == cpu).map(|t| t.ran_ms / 10).sum();
            let (busy, idle) = (busy * sample, (100 - busy.min(100)) * sample);
            stat.push_str(&format!("cpu{cpu} {busy} 0 0 {idle} 0 0 0 0 0 0\n"));
        }
        stat.push_str("ctxt 1\nbtime 1700000000\nprocesses 300\n");
        self.write(&at("proc/stat"), &stat);
        for group in ["", "/system.slice", "/init.scope"] {
            self.write(&at(&format!("sys/fs/cgroup{group}/cpu.stat")), "usage_usec 0\n");
            self.write(&at(&format!("sys/fs/cgroup{group}/cpuset.cpus.effective")), "0-7\n");
            if !group.is_empty() {
                self.write(&at(&format!("sys/fs/cgroup{group}/cpu.weight")), "100\n");
                self.write(&at(&format!("sys/fs/cgroup{group}/cpu.max")), "max 100000\n");
            }
        }
        for task in &TASKS {
            let Task { pid, comm, cpu, affinity, ran_ms, memory, .. } = task;
            let cgroup = task.cgroup.replace("DEADBEEF", ID);
            let dir = format!("sys/fs/cgroup{cgroup}");
            let weight = if cgroup.contains("docker") { 39 } else { 100 };
            self.write(&at(&format!("{dir}/cpu.weight")), &format!("{weight}\n"));
            self.write(&at(&format!("{dir}/cpu.max")), "max 100000\n");
            self.write(&at(&format!("{dir}/cpu.stat")), &format!("usage_usec {}\n", ran_ms * 1000 * sample));
            // Fields 10 to 17 are zero, 22 is the start time, 23 to 37 are zero, 39 is the CPU.
            let stat = format!(
                "{pid} ({comm}) S 1 {pid} {pid} 0 -1 4194304 {}20 0 1 0 5 {}17 {cpu} 0 0 0 0 0\n",
                "0 ".repeat(8),
                "0 ".repeat(15)
            );
            for dir in [format!("proc/{pid}"), format!("proc/{pid}/task/{pid}")] {
                self.write(&at(&format!("{dir}/stat")), &stat);
                self.write(&at(&format!("{dir}/status")), &format!("Name:\t{comm}\nCpus_allowed_list:\t{affinity}\nvoluntary_ctxt_switches:\t1\nnonvoluntary_ctxt_switches:\t1\n"));
                self.write(&at(&format!("{dir}/cgroup")), &format!("0::{cgroup}\n"));
                self.write(
                    &at(&format!("{dir}/schedstat")),
                    &format!("{} 0 {}\n", ran_ms * 1_000_000 * sample + 1, 1 + sample),
                );
                self.write(&at(&format!("{dir}/evenkeel.sched")), "0 0 0 0 2800000\n");
            }
            self.write(&at(&format!("proc/{pid}/numa_maps")), memory);
        }
    }

    fn write(&self, file: &str, text: &str) {
        evenkeel_linux::testing::lay(self.0.path(), &[(file, text)]);
    }

    fn remove(&self, file: &str) {
        fs::remove_file(self.0.path().join(file)).unwrap();
    }

    fn check(&self, args: &[&str]) -> Ended {
        end(evenkeel(["check", "--root"]).arg(self.0.path()).args(args))
    }

    fn findings(&self, args: &[&str]) -> (i32, Value) {
        let ended = self.check(&[args, &["-o", "json"]].concat());
        (ended.status.unwrap(), ended.document())
    }
}

/// The findings of a rule.
fn of<'a>(document: &'a Value, rule: &str) -> Vec<&'a Value> {
    document["findings"].as_array().unwrap().iter().filter(|f| f["rule"] == rule).collect()
}

/// The only finding of a rule; fails showing what there is.
#[track_caller]
fn only<'a>(document: &'a Value, rule: &str, status: &str) -> &'a Value {
    let found = of(document, rule);
    assert_eq!(found.len(), 1, "{rule}: {found:#?}");
    assert_eq!(found[0]["status"], status, "{:#}", found[0]);
    found[0]
}

#[test]
fn what_is_wrong_is_found_with_the_exact_fix() {
    let (status, found) = Host::new().findings(&[]);
    assert_eq!(status, 1);
    assert_eq!(found["schema"], "evenkeel.check/v1");
    let fix = |rule: &str| only(&found, rule, "fail")["fix"].as_str().unwrap().to_owned();

    let irq = only(&found, "isolated-irq", "fail");
    assert_eq!(
        (irq["subject"].as_str(), irq["severity"].as_str()),
        (Some("irq 34 (nvme0q1)"), Some("warning"))
    );
    assert!(irq["evidence"].as_str().unwrap().contains("81234 served"), "{irq:#}");
    assert!(fix("isolated-irq").starts_with("echo 0-5 > /proc/irq/34/smp_affinity_list\n"));

    let stray = only(&found, "isolated-task", "fail");
    assert_eq!(stray["subject"], "task 300 (stray)");
    assert!(fix("isolated-task").starts_with("taskset -apc 0-5 300"));

    // 512 of 640 MiB are on the node it does not run on.
    assert!(
        only(&found, "numa-task", "fail")["evidence"]
            .as_str()
            .unwrap()
            .contains(" 80 % of its accesses are remote")
    );
    assert!(fix("numa-task").starts_with("taskset -apc 0-3 100 && migratepages 100 1 0"));
    assert_eq!(fix("cpuset-mems"), "systemctl set-property postgres.service AllowedMemoryNodes=0");
    assert!(
        only(&found, "shares-conversion", "fail")["evidence"].as_str().unwrap().starts_with("cpu.weight 39")
    );
    assert_eq!(only(&found, "governor", "fail")["subject"], "cpus 0-7");
    for rule in
        ["nohz-rcu", "isolcpus-housekeeping", "cpuset-offline", "steal", "pressure", "kernel-features"]
    {
        only(&found, rule, "pass");
    }
}

#[test]
fn the_policy_adds_expectations_and_ignores() {
    let host = Host::new();
    let policy = host.0.path().join("policy.toml");
    fs::write(
        &policy,
        "isolated = '5-7'\n[[given]]\ncpus = '6-7'\nto = ['comm:^dpdk']\n[[numa]]\nname = 'db'\nservices = ['comm:^postgres']\n\
         [[ignore]]\nrule = 'governor'\nreason = 'a test'\n[[ignore]]\nrule = 'steal'\nreason = 'long gone'\n",
    )
    .unwrap();
    let args = ["--policy", policy.to_str().unwrap()];
    let (status, found) = host.findings(&args);
    assert_eq!(status, 1);
    let expected = only(&found, "isolated-as-expected", "fail");
    assert!(
        expected["evidence"].as_str().unwrap().contains("expected 5-7, isolated are 6-7"),
        "{expected:#}"
    );
    assert_eq!(only(&found, "isolated-task", "fail")["severity"], "error");
    assert!(
        only(&found, "numa-services", "fail")["fix"].as_str().unwrap().starts_with("taskset -apc 0-3 100\n")
    );
    assert_eq!(only(&found, "governor", "fail")["ignored"], "a test");
    assert_eq!(found["summary"]["ignored"], 1);
    let stderr = host.check(&args).stderr;
    assert!(stderr.contains("steal (long gone) matches no finding"), "{stderr}");
}

#[test]
fn what_cannot_be_read_is_unknown_and_does_not_fail_the_check() {
    let host = Host::new();
    host.remove("1/proc/interrupts");
    host.remove("1/proc/pressure/cpu");
    host.remove("1/proc/100/numa_maps");
    let (_, found) = host.findings(&[]);
    for (rule, file) in [
        ("isolated-irq", "proc/interrupts"),
        ("pressure", "proc/pressure/cpu"),
        ("numa-task", "proc/100/numa_maps"),
    ] {
        let evidence = only(&found, rule, "unknown")["evidence"].as_str().unwrap();
        assert!(evidence.contains(file), "{rule}: {evidence}");
    }
    let ignore_all: String = of_failed(&found)
        .into_iter()
        .map(|rule| format!("[[ignore]]\nrule = '{rule}'\nreason = 'a test'\n"))
        .collect();
    let policy = host.0.path().join("policy.toml");
    fs::write(&policy, ignore_all).unwrap();
    let (status, found) = host.findings(&["--policy", policy.to_str().unwrap()]);
    assert_eq!(status, 0, "unknowns and ignored findings do not count");
    assert!(found["summary"]["unknown"].as_u64().unwrap() >= 3);
}

fn of_failed(found: &Value) -> std::collections::BTreeSet<String> {
    let all = found["findings"].as_array().unwrap().iter();
    all.filter(|f| f["status"] == "fail").map(|f| f["rule"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn text_is_for_people_and_csv_has_one_row_a_finding() {
    let host = Host::new();
    let text = host.check(&["--all"]).stdout;
    assert!(!text.contains('\x1b'), "no colours in a pipe");
    for part in
        ["WARNING  irq 34 (nvme0q1)  [isolated-irq]", "  evidence     ", "  consequence  ", "\npassed\n"]
    {
        assert!(text.contains(part), "{part:?} is missing in\n{text}");
    }
    let csv = host.check(&["-o", "csv"]).stdout;
    let (_, found) = host.findings(&[]);
    const STATUSES: [&str; 3] = [",pass,", ",fail,", ",unknown,"];
    assert!(csv.starts_with("rule,status,severity,subject,evidence,consequence,fix,ignored\n"));
    let rows = csv.lines().filter(|line| STATUSES.iter().any(|status| line.contains(status))).count();
    assert_eq!(rows, found["findings"].as_array().unwrap().len());
}

#[test]
fn bad_policies_and_hosts_are_refused() {
    let host = Host::new();
    let policy = host.0.path().join("policy.toml");
    fs::write(&policy, "# mine\nisolatd = '2'\n").unwrap();
    for (args, reason) in [
        (
            ["--policy", policy.to_str().unwrap()],
            "policy.toml:2: unknown key `isolatd`, did you mean `isolated`?",
        ),
        (["--policy", "/nonexistent/policy.toml"], "/nonexistent/policy.toml"),
        (["--interval", "5ms"], "at least 100ms"),
        (["-o", "svg"], ""),
    ] {
        host.check(&args).refused(2, reason);
    }
    let empty = tempfile::tempdir().unwrap();
    end(evenkeel(["check", "--root"]).arg(empty.path())).refused(2, "holds neither proc nor sys");
}
