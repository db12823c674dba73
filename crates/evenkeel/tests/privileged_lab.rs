//! `evenkeel lab run` from outside: statuses, interruption, `kill -9`, and what is left.

mod program;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use evenkeel_base::SchedPolicy;
use evenkeel_experiment::record::{CellRecord, Record};
use evenkeel_lab::neighbour::plan::Arm;
use evenkeel_lab::neighbour::record::NeighbourRecord;
use evenkeel_linux::sys::sched_getattr;
use evenkeel_linux::testing::{TestChild, made_by, until};
use program::{Ended, end};

fn evenkeel(args: &[&str]) -> Command {
    let mut command = program::evenkeel(args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[track_caller]
fn output(args: &[&str]) -> Ended {
    end(&mut evenkeel(args))
}

fn signal(child: &Child, signal: i32) {
    // SAFETY: a child of ours that was not waited for.
    unsafe { libc::kill(child.id() as i32, signal) };
}

/// An experiment of four short cells; the commands in it leave a descendant behind.
fn file(dir: &Path) -> String {
    let path = dir.join("x.toml");
    fs::write(
        &path,
        "name = 'interrupted'\norder = 'written'\n[[tenant]]\nname = 'a'\nunits = '1 2'\nload = 'spin'\nrun_s = 1\n\
         [[tenant]]\nname = 'b'\ncommand = ['sh', '-c', 'sleep 987 & sleep 0.5']\n\
         [[sweep]]\nfield = 'tenant.a.runs'\nvalues = [1, 2, 3, 1]\n",
    )
    .unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn interrupted_and_killed_it_goes_on_where_it_was_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let file = file(dir.path());
    let out = dir.path().join("results");
    let args = ["lab", "run", &file, "--out", out.to_str().unwrap()];
    let cells = || Record::load(&out).map_or(0, |record| record.cells.len());

    // Ctrl-C in the second cell: cleaned up before it ends, status 1, the first cell kept.
    let mut first = TestChild(evenkeel(&args).spawn().unwrap());
    until("a first cell", || cells() == 1);
    until("a second one", || !made_by("lab", first.0.id()).is_empty());
    signal(&first.0, libc::SIGINT);
    let status = first.0.wait().unwrap();
    assert_eq!(status.code(), Some(1));
    assert_eq!(made_by("lab", first.0.id()), Vec::<PathBuf>::new());
    assert_eq!(cells(), 1);

    // kill -9 in the next: the next start cleans up, and finishes.
    let mut second = TestChild(evenkeel(&args).spawn().unwrap());
    let killed = second.0.id();
    until("tenants", || made_by("lab", killed).len() > 1);
    std::thread::sleep(Duration::from_millis(600));
    signal(&second.0, libc::SIGKILL);
    second.0.wait().unwrap();
    let before = Record::load(&out).unwrap();
    let last = output(&args).with(0);
    assert_eq!(made_by("lab", killed), Vec::<PathBuf>::new());
    let after = Record::load(&out).unwrap();
    assert!(after.is_complete() && after.cells.len() == 4);
    let stamps = |r: &Record| r.cells.iter().map(|cell| cell.released_at.clone()).collect::<Vec<_>>();
    assert_eq!(stamps(&after)[..before.cells.len()], stamps(&before)[..]);
    assert!(last.stdout.contains("4 of 4 cells"), "{last}");
    // No terminal: a line for each cell that was missing, and nothing that moves a cursor.
    let told = (1..=4).filter(|n| last.stderr.contains(&format!("evenkeel: {n} of 4 cells done, ")));
    assert_eq!(told.collect::<Vec<_>>(), (before.cells.len() + 1..=4).collect::<Vec<_>>(), "{last}");
    assert!(!last.stderr.contains(['\x1b', '\r']), "{last}");
    // Nobody's descendants are left, either.
    let sleeping = fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let cmdline = fs::read_to_string(entry.path().join("cmdline")).unwrap_or_default();
        cmdline == "sleep\u{0}987\u{0}"
    });
    assert!(!sleeping, "a command's descendant outlived its cell");
}

#[test]
fn a_built_in_one_is_resumed_with_the_work_it_was_begun_with() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    // Its job is sized by how fast the host was found to be, which is never twice the same.
    let args = ["lab", "run", "limit-sweep", "--quick", "--out", out.to_str().unwrap()];
    let cells = || Record::load(&out).map_or(0, |record| record.cells.len());
    let mut first = TestChild(evenkeel(&args).spawn().unwrap());
    until("a first cell", || cells() > 0);
    signal(&first.0, libc::SIGINT);
    assert_eq!(first.0.wait().unwrap().code(), Some(1));
    let before = Record::load(&out).unwrap();
    assert!(!before.is_complete());
    output(&args).with(0);
    let after = Record::load(&out).unwrap();
    assert!(after.is_complete());
    assert_eq!(after.cells[..before.cells.len()], before.cells[..]);
    assert_eq!(after.experiment, before.experiment);
    // With other settings it is another experiment.
    output(&[&args[..], &["--repetitions", "2"]].concat()).says(2, "--again");
}

#[test]
fn what_makes_no_sense_is_refused_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    let out = out.to_str().unwrap();
    let bad = dir.path().join("bad.toml");
    for (text, part) in [
        ("name = 'x'\n[[tenant]]\nload = 'primez'\nrun_s = 1\n", "workloads are"),
        (
            "name = 'x'\n[[tenant]]\nlaod = 'primes'\nrun_s = 1\n",
            "line 3: unknown key `laod`, did you mean `load`?",
        ),
        ("name = 'x'\n[[tenant]]\nload = 'primes'\nunits = '64y2'\nrun_s = 1\n", "64y2"),
    ] {
        fs::write(&bad, text).unwrap();
        output(&["lab", "run", bad.to_str().unwrap(), "--out", out]).says(2, part);
    }
    for (args, status, part) in [
        (&["lab", "run", "cpu-units-equall"][..], 2, "cpu-units-equal"),
        (&["lab", "run", "/no/such/file.toml"], 2, "/no/such/file.toml"),
        (
            &["lab", "run", "cpu-units-equal", "--units", "1255"],
            2,
            "not enough cpu: asked 1255, available 1155",
        ),
        (&["lab", "run", "cpu-units-equal", "--units", "64q"], 2, "64q"),
        (
            &["lab", "run", "cpu-units-equal", "--quick", "--out", out, "--", "no-such-command"],
            3,
            "command not found",
        ),
        (&["lab", "run", "cpu-units-equal", "--place", "moon"], 2, "cgroup, process, docker"),
        (
            &["lab", "run", "cpu-units-equal", "--service", "redis"],
            2,
            "--service is for the experiment neighbour",
        ),
        (&["lab", "run", "neighbour", "--units", "64"], 2, "--units is for experiments with tenants"),
        (&["lab", "run", "tenants-net", "--runs", "9"], 2, "--runs is for experiments with tenants"),
        (
            &["lab", "run", "tenants-cpu", "--service", "redis"],
            2,
            "--service is for the experiment neighbour",
        ),
        (&["lab", "run", "neighbour", "--load", "0"], 2, "nothing runs next to the service"),
        (&["lab", "run", "neighbour", "--load", "50", "--batch", "stream"], 2, "take whole CPUs"),
        (&["lab", "run", "neighbour", "--seconds", "0"], 2, "--seconds 0"),
        (&["lab", "run", "neighbour", "--arm", "alone"], 2, "invalid value 'alone'"),
    ] {
        let ended = output(args).with(status);
        assert!(ended.stderr.contains(part), "{ended}");
    }
}

/// What is set for batch work in the cgroups of an experiment at this instant.
fn levers(pid: u32) -> BTreeSet<&'static str> {
    let mut seen = BTreeSet::new();
    for group in made_by("lab", pid).iter().filter(|path| path.starts_with("/sys/fs/cgroup")) {
        let read = |file: &str| fs::read_to_string(group.join(file)).unwrap_or_default().trim().to_owned();
        let mut add = |what, is_so: bool| is_so.then(|| seen.insert(what));
        add("cpu.idle", read("cpu.idle") == "1");
        // An idle group of v1 shows the weight of an idle one.
        add("weight", read("cpu.shares") == "2" || read("cpu.weight") == "1");
        for pid in read("cgroup.procs").lines() {
            let Ok(attr) = sched_getattr(pid.parse().unwrap()) else { continue };
            add("nice", attr.nice == 19);
            add("SCHED_IDLE", attr.policy == SchedPolicy::Idle.raw());
        }
    }
    seen
}

#[test]
fn a_service_is_measured_beside_batch_work_under_each_arm_and_nothing_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("results");
    // A process for a whole CPU, and one for the half.
    let args = ["lab", "run", "neighbour", "--service", "wakeup,redis", "--load", "150", "--seconds", "0.5"];
    let more = ["--decide-seconds", "1", "--repetitions", "1", "--out", out.to_str().unwrap()];
    let args = [&args[..], &more].concat();
    let mut running = TestChild(evenkeel(&args).spawn().unwrap());
    let pid = running.0.id();
    let mut seen = BTreeSet::new();
    while running.0.try_wait().unwrap().is_none() {
        seen.append(&mut levers(pid));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(running.0.wait().unwrap().code(), Some(0));
    assert_eq!(made_by("lab", pid), Vec::<PathBuf>::new());
    assert_eq!(seen, BTreeSet::from(["SCHED_IDLE", "cpu.idle", "nice", "weight"]));
    let record = NeighbourRecord::load(&out).unwrap();
    // Two services, each alone and under six arms.
    assert!(record.is_complete() && record.cells.len() == 14, "{}", record.cells.len());
    for cell in &record.cells {
        let point = record.points[cell.point];
        assert_eq!(cell.failed, None, "{point}");
        let evenkeel = point.arm == Arm::Evenkeel;
        assert_eq!(
            (cell.measured.from_start.is_some(), cell.measured.evenkeel.is_some()),
            (evenkeel, evenkeel),
            "{point}"
        );
        assert!(cell.measured.evenkeel.as_ref().is_none_or(|chosen| chosen.not_restored == 0), "{cell:?}");
        for measured in cell.measured.from_start.iter().chain(&cell.measured.in_force) {
            assert!(measured.answered > 0 && measured.answered <= measured.asked, "{point}: {measured:?}");
            let latency = measured.latency.unwrap();
            assert!(latency.p50_usec <= latency.p99_usec && Some(latency.p99_usec) <= latency.p999_usec);
            assert!(measured.service_pct.unwrap() > 0.0, "{point}: {measured:?}");
            assert_eq!(measured.batch_pct.is_some(), point.batch.is_some(), "{point}");
        }
        let batch = cell.measured.in_force.as_ref().unwrap().batch_pct;
        assert!(point.arm != Arm::Default || batch.unwrap() > 0.0, "{point}: {batch:?}");
    }
    // Complete: nothing is run again. With other settings it is another experiment.
    output(&args).with(0);
    assert_eq!(NeighbourRecord::load(&out).unwrap(), record);
    output(&[&args[..], &["--arm", "default"]].concat()).says(2, "--again");
}

#[test]
fn the_experiments_are_listed() {
    let text = output(&["lab", "list"]).stdout;
    let json = output(&["lab", "list", "-o", "json"]).document();
    let names: Vec<&str> =
        json["experiments"].as_array().unwrap().iter().filter_map(|e| e["name"].as_str()).collect();
    for name in [
        "cpu-units-alone",
        "cpu-units-balance",
        "isolation",
        "isolation-sys",
        "isolation-fd",
        "limit-sweep",
        "platforms",
        "neighbour",
    ] {
        assert!(text.contains(name) && names.contains(&name), "{name}");
    }
    // With how long each takes here.
    for experiment in json["experiments"].as_array().unwrap() {
        let [quick, full] = ["quick_s", "full_s"].map(|field| experiment[field].as_f64().unwrap());
        assert!(quick > 1.0 && quick <= 60.0 && full > quick, "{experiment}");
    }
}

#[test]
fn shards_measured_under_two_names_become_one_record_that_names_both() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("x.toml");
    let text = "name = 'parts'\nrepetitions = 2\n[[tenant]]\nname = 'a'\nload = 'spin'\nrun_s = 0.2\n\
                [[sweep]]\nfield = 'tenant.a.quota_pct'\nvalues = [25, 'none']\n";
    fs::write(&file, text).unwrap();
    let (file, at) =
        (file.to_str().unwrap(), |name: &str| dir.path().join(name).to_str().unwrap().to_owned());
    for (index, node) in [(0, "node-a"), (1, "node-b")] {
        let (shard, out) = (format!("{index}/2"), at(node));
        output(&["lab", "run", file, "--shard", &shard, "--host-name", node, "--out", &out]).with(0);
    }
    let text = output(&["lab", "merge", &at("node-a"), &at("node-b"), "--out", &at("merged")]).ok();
    assert!(text.contains("node-a, node-b"), "{text}");
    let record = Record::load(&dir.path().join("merged")).unwrap();
    let cells: Vec<_> =
        record.cells.iter().map(|cell| (cell.repetition, cell.node.as_deref().unwrap())).collect();
    assert_eq!(cells, [(0, "node-a"), (0, "node-a"), (1, "node-b"), (1, "node-b")]);
    assert!(record.is_complete() && record.cells.iter().all(|cell| !cell.tenants.is_empty()));
}
