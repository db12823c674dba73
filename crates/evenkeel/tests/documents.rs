//! The JSON documents' minimum fields, as scripts rely on them.

mod program;

use serde_json::Value;

/// Runs a command with `-o json` and returns its document.
#[track_caller]
fn document(args: &[&str], kind: &str) -> Value {
    let state = tempfile::tempdir().unwrap();
    let mut command = program::evenkeel(args);
    let document =
        program::end(command.args(["-o", "json"]).env("EVENKEEL_STATE_DIR", state.path())).document();
    assert_eq!(document["schema"], format!("evenkeel.{kind}/v1"), "{args:?}");
    document
}

/// Fails unless every field is there; its value may be `null` where the host does not tell.
#[track_caller]
fn has(value: &Value, fields: &[&str]) {
    for field in fields {
        assert!(value.get(field).is_some(), "no field {field:?} in {value:#}");
    }
}

/// A number that must be known.
#[track_caller]
fn number(value: &Value, field: &str) -> f64 {
    value[field].as_f64().unwrap_or_else(|| panic!("{field} is not a number in {value:#}"))
}

#[test]
fn load_tells_what_was_wanted_and_got() {
    let load = document(&["load", "duty", "--percent", "10", "--seconds", "1"], "load");
    has(
        &load,
        &["wanted_pct", "got_pct", "real_s", "cpu_s", "events", "events_per_s", "voluntary", "involuntary"],
    );
    assert!((number(&load, "wanted_pct") - 10.0).abs() < 1e-9);
    // What the document says has to agree with itself; how much the load got is the host's affair.
    let got = 100.0 * number(&load, "cpu_s") / number(&load, "real_s");
    assert!((number(&load, "got_pct") - got).abs() < 0.5, "{load:#}");
}

#[test]
fn check_has_evidence_and_a_fix_for_each_failure() {
    let check = document(&["check"], "check");
    let findings = check["findings"].as_array().unwrap();
    assert!(!findings.is_empty());
    for finding in findings {
        has(finding, &["rule", "status", "severity", "subject", "evidence", "fix"]);
        assert!(["pass", "fail", "unknown"].contains(&finding["status"].as_str().unwrap()), "{finding:#}");
        assert!(["info", "warning", "error"].contains(&finding["severity"].as_str().unwrap()), "{finding:#}");
        if finding["status"] == "fail" {
            assert!(finding["evidence"].is_string() && finding["fix"].is_string(), "{finding:#}");
        }
    }
    for status in ["pass", "fail", "unknown"] {
        let count = findings.iter().filter(|f| f["status"] == status).count();
        assert_eq!(number(&check["summary"], status) as usize, count, "{status}: {:#}", check["summary"]);
    }
}

#[test]
fn topology_knows_every_online_cpu() {
    let topology = document(&["topology"], "topology");
    let cpus = topology["cpus"].as_array().unwrap();
    for cpu in cpus {
        has(cpu, &["cpu", "online", "isolated", "nohz_full", "socket", "node", "core", "llc", "siblings"]);
    }
    let online = cpus.iter().filter(|cpu| cpu["online"] == true).count();
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    let counted = stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")).count();
    assert_eq!(online, counted);
    for node in topology["nodes"].as_array().unwrap() {
        has(node, &["node", "cpus", "memory_bytes", "distances"]);
    }
    has(&topology["kernel"], &["release", "scheduler", "cgroup"]);
    has(&topology["kernel"]["features"], &["task_slice", "bpf", "psi", "schedstat", "steal_clock"]);
}

#[test]
fn ps_accounts_for_itself() {
    let ps = document(&["ps", "--by", "process", "--interval", "500ms"], "ps");
    has(&ps, &["interval_ms", "host", "cpus", "tasks", "containers", "pods", "vms"]);
    has(&ps["host"], &["cpus", "busy_pct", "steal_pct"]);
    for cpu in ps["cpus"].as_array().unwrap() {
        has(cpu, &["cpu", "busy_pct", "steal_pct", "tasks"]);
    }
    assert!(number(&ps, "interval_ms") >= 500.0, "{}", ps["interval_ms"]);
    let tasks = ps["tasks"].as_array().unwrap();
    for task in tasks {
        has(task, &["tgid", "tid", "start_time", "comm", "cpu", "affinity", "policy", "nice", "slice_usec"]);
        has(task, &["cgroup", "container", "pod", "vm", "cpu_pct", "wait_pct", "throttled_pct"]);
        has(task, &["voluntary_per_s", "involuntary_per_s"]);
    }
    assert!(
        tasks.iter().any(|task| task["tgid"] == std::process::id()),
        "the test itself is not among the tasks"
    );
}

#[test]
fn ps_shows_a_scope_alone() {
    let me = std::process::id();
    let ps = |scope: &[&str]| {
        let scopes = scope.iter().flat_map(|scope| ["--scope", scope]);
        document(&["ps", "--interval", "200ms"].into_iter().chain(scopes).collect::<Vec<_>>(), "ps")
    };
    let tgids = |document: &Value| -> Vec<Value> {
        document["tasks"].as_array().unwrap().iter().map(|task| task["tgid"].clone()).collect()
    };
    let own = ps(&[&format!("pid:{me}")]);
    assert!(!tgids(&own).is_empty() && tgids(&own).iter().all(|tgid| *tgid == me), "{own:#}");
    assert!(own["containers"].as_array().unwrap().len() <= 1, "{own:#}");
    // Everybody but: exclusions are taken from the whole host, a container or not.
    let others = tgids(&ps(&[&format!("!pid:{me}")]));
    assert!(!others.is_empty() && others.iter().all(|tgid| *tgid != me));
    assert!(tgids(&ps(&[&format!("pid:{me}"), "!all"])).is_empty());
    assert!(tgids(&ps(&["pid:2147483647"])).is_empty());
}
