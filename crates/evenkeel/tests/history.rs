//! `history` and `status` on histories made here, and real samples of this host through the store.

#[path = "history/killed.rs"]
mod killed;
mod program;
#[path = "history/spans.rs"]
mod spans;
#[path = "history/tables.rs"]
mod tables;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use evenkeel_base::run::{ChangeRecord, Estimate, RunRecord, SelfCost, Stage};
use evenkeel_base::{CpuTimes, Histogram, Sample, TaskId, TaskSample};
use evenkeel_linux::Root;
use evenkeel_linux::sys::wall_ns as now_ns;
use evenkeel_observe::{Endpoints, Observer, ObserverOptions};
use evenkeel_store::{Limits, Store, TaskInfo, TrialWindow};
use program::{Ended, end};
use serde_json::Value;

const S: u64 = 1_000_000_000;

#[track_caller]
fn evenkeel(state: &Path, args: &[&str]) -> Ended {
    end(program::evenkeel(args).env("EVENKEEL_STATE_DIR", state))
}

#[track_caller]
fn ok(state: &Path, args: &[&str]) -> String {
    let ended = evenkeel(state, args);
    assert!(ended.stderr.is_empty(), "{ended}");
    ended.ok()
}

#[track_caller]
fn document(state: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&ok(state, &[args, &["-o", "json"]].concat())).unwrap()
}

fn stage(name: &str, started_ns: u64, fulfilment: f64, kept: Option<bool>) -> Stage {
    let near = |value: f64| Some(Estimate { value, low: value - 0.01, high: value + 0.01 });
    Stage {
        name: name.into(),
        started_ns,
        seconds: 20.0,
        cpu_pct: near(150.0 * fulfilment),
        wait_per_ran: near(0.2),
        fulfilment: near(fulfilment),
        fulfilment_estimated: true,
        kept,
        why: "measured".into(),
        predicted: None,
    }
}

/// A minute of one run: two CPUs, three threads of two processes, one of them in a container.
fn recorded(state: &Path) -> u64 {
    let start = now_ns() - 70 * S;
    let mut store = Store::open(&state.join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    let ids = [(10, 10), (10, 11), (20, 20)].map(|(tgid, tid)| TaskId { tgid, tid, start_time: 5 });
    let tasks = [("make", None), ("worker", None), ("redis", Some("cache"))];
    for (id, (comm, container)) in ids.into_iter().zip(tasks) {
        let container = container.map(str::to_owned);
        store.name_task(id, TaskInfo { comm: comm.into(), container, ..TaskInfo::default() });
    }
    let record = RunRecord {
        scope: vec!["container:cache".into()],
        pid: u32::MAX,
        started_ns: start,
        settings: "kernel default".into(),
        ..RunRecord::default()
    };
    let run = store.begin_run(&record).unwrap();
    for at in 0..=60 {
        let task = |id, ms: u64| TaskSample {
            id,
            cpu: Some(0),
            ran_ns: at * ms * 1_000_000,
            waited_ns: Some(at * 10_000_000),
            timeslices: Some(at),
            voluntary: None,
            involuntary: Some(at * 5),
        };
        let cpu = |cpu| CpuTimes { cpu, busy_ns: at * 600_000_000, idle_ns: 0, irq_ns: 0, steal_ns: Some(0) };
        let sample = Sample {
            monotonic_ns: 1000 * S + at * S,
            wall_ns: start + at * S,
            cpus: vec![cpu(0), cpu(1)],
            tasks: vec![task(ids[0], 100), task(ids[1], 300), task(ids[2], 250)],
            groups: Vec::new(),
            exited: Vec::new(),
        };
        store.add_sample(&sample).unwrap();
    }
    store.flush().unwrap();
    store.add_stage(run, &stage("kernel default", start, 0.93, None)).unwrap();
    store.add_stage(run, &stage("trial batch", start + 20 * S, 0.99, Some(true))).unwrap();
    let change = ChangeRecord {
        task: Some(ids[2]),
        comm: Some("redis".into()),
        group: None,
        knob: "sched".into(),
        from: "other nice 0".into(),
        to: "batch nice 0".into(),
        why: "fewer switches".into(),
        effect: Some("+0.06".into()),
        at_ns: start + 20 * S,
    };
    store.set_changes(run, &[change]).unwrap();
    let record = RunRecord {
        settings: "batch".into(),
        baseline: Some(Estimate { value: 0.93, low: 0.92, high: 0.94 }),
        now: Some(Estimate { value: 0.99, low: 0.98, high: 1.0 }),
        own_cost: SelfCost { cpu_pct: Some(0.5), rss_bytes: Some(12 << 20) },
        ..record
    };
    store.update_run(run, &record).unwrap();
    start
}

#[test]
fn without_history_both_say_so() {
    let state = tempfile::tempdir().unwrap();
    for since in [&["history"][..], &["history", "--since", "1h"], &["replay"]] {
        let words = ok(state.path(), since);
        assert!(words.contains("nothing recorded there: neither `evenkeel run` nor `serve`"), "{words}");
    }
    let columns = |asked: &[&str]| {
        let csv = ok(state.path(), &[&["history", "-o", "csv"], asked].concat());
        csv.lines().next().unwrap_or_default().to_owned()
    };
    let tables: [&[&str]; 3] =
        [&["--since", "1h", "--by", "container"], &["--since", "1h", "--of", "pid:1"], &[]];
    let without = tables.map(columns);
    assert!(columns(&["--run", "last"]).starts_with("started,name,"), "those of stages");
    drop(Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap());
    assert_eq!(tables.map(columns), without, "the same columns with a history and without");
    assert!(ok(state.path(), &["replay"]).contains("nothing recorded of any run in this file"));
    assert_eq!(document(state.path(), &["history"])["runs"], Value::Array(Vec::new()));
    assert!(ok(state.path(), &["status"]).contains("No agent is running"));
    let status = document(state.path(), &["status"]);
    assert_eq!((&status["schema"], &status["agent"]), (&"evenkeel.status/v1".into(), &Value::Null));
    assert_eq!(status["state"], "none");
    // A state directory that was never made is the same.
    assert!(ok(&state.path().join("none"), &["status"]).contains("Nothing recorded"));
    evenkeel(state.path(), &["history", "--run", "3"]).with(2);
}

#[test]
fn runs_are_listed_and_shown() {
    let state = tempfile::tempdir().unwrap();
    recorded(state.path());
    let list = ok(state.path(), &["history"]);
    for part in ["container:cache", "0.990", "61 at full rate"] {
        assert!(list.contains(part), "{list}");
    }
    let csv = ok(state.path(), &["history", "-o", "csv"]);
    assert_eq!((csv.lines().count(), csv.starts_with("run,started,")), (2, true));
    let run = document(state.path(), &["history", "--run", "last"]);
    assert_eq!(run["schema"], "evenkeel.run/v1");
    assert_eq!(run["fulfilment"]["now"], 0.99);
    assert_eq!(run["stages"].as_array().unwrap().len(), 2);
    assert_eq!(run["stages"][1]["kept"], true);
    assert_eq!(run["changes"][0]["tgid"], 20);
    assert_eq!(run["changes"][0]["undone"], Value::Null);
    assert_eq!(document(state.path(), &["history", "--run", "1"]), run);
    let text = ok(state.path(), &["history", "--run", "1"]);
    // It was killed: what became of its changes is not in its record.
    assert!(text.contains("Changes in force when it was seen last:") && text.contains("20 redis"), "{text}");
    let stages = ok(state.path(), &["history", "--run", "1", "-o", "csv"]);
    assert_eq!(stages.lines().count(), 3);
    let changes = ok(state.path(), &["history", "--run", "1", "--changes", "-o", "csv"]);
    assert_eq!(changes.lines().count(), 2);
    evenkeel(state.path(), &["history", "--run", "99"]).refused(2, "no run 99");
}

#[test]
fn a_table_is_as_wide_as_its_terminal() {
    let state = tempfile::tempdir().unwrap();
    recorded(state.path());
    let command = format!("stty cols 96; exec {} history --run last", env!("CARGO_BIN_EXE_evenkeel"));
    let output = Command::new("script")
        .args(["-qec", &command, "/dev/null"])
        .env("EVENKEEL_STATE_DIR", state.path())
        .env_remove("COLUMNS")
        .output()
        .expect("script is needed (Debian: apt-get install bsdutils)");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.contains("STAGE"), "{text}");
    // What stands above the tables is prose in lines of its own.
    let tables = text.lines().skip_while(|line| !line.starts_with("STAGE"));
    let widest = tables.map(|line| line.trim_end().chars().count()).max();
    assert!(widest <= Some(96), "{widest:?}: {text}");
}

#[test]
fn rates_come_from_stored_counters() {
    let state = tempfile::tempdir().unwrap();
    recorded(state.path());
    let rows = |by: &str| {
        let document = document(state.path(), &["history", "--since", "10m", "--by", by]);
        assert_eq!(
            (&document["rates"]["covered_s"], &document["rates"]["samples"]),
            (&60.0.into(), &61.into())
        );
        document["rates"]["rows"].as_array().unwrap().clone()
    };
    let processes = rows("process");
    assert_eq!(processes.len(), 2);
    // make: 100 ms and 300 ms of each second; its name is the main thread's.
    assert_eq!((&processes[0]["comm"], &processes[0]["tgid"]), (&"make".into(), &10.into()));
    assert!((processes[0]["cpu_pct"].as_f64().unwrap() - 40.0).abs() < 1e-6);
    assert!((processes[0]["wait_pct"].as_f64().unwrap() - 2.0).abs() < 1e-6);
    assert_eq!(processes[0]["voluntary_per_s"], Value::Null, "not counted is not zero");
    assert_eq!(rows("thread").len(), 3);
    let containers = rows("container");
    assert_eq!((containers.len(), &containers[0]["container"]), (1, &"cache".into()));
    let cpus = rows("cpu");
    assert_eq!((cpus.len(), &cpus[0]["cpu_pct"], &cpus[0]["steal_pct"]), (2, &60.0.into(), &0.0.into()));
    // Who is not shown is not forgotten.
    let busiest = ["history", "--since", "10m", "--by", "thread", "--limit", "1"];
    assert_eq!(document(state.path(), &busiest)["rates"]["left_out"], 2);
    assert!(ok(state.path(), &busiest).ends_with("\n... and 2 more (--limit 0 shows all)\n"));
    // Older than asked for: nothing.
    let document = document(state.path(), &["history", "--since", "5s"]);
    assert_eq!(document["rates"], Value::Null);
}

#[test]
fn lengths_of_waits_are_shown_by_container() {
    let state = tempfile::tempdir().unwrap();
    let start = recorded(state.path());
    let row = || {
        let document = document(state.path(), &["history", "--since", "10m", "--by", "container"]);
        document["rates"]["rows"][0].clone()
    };
    assert_eq!((&row()["wait_p99_ms"], &row()["waits"]), (&Value::Null, &Value::Null));
    assert!(!ok(state.path(), &["history", "--since", "10m", "--by", "container"]).contains("P99"));
    let waits = Histogram::of(&[(500_000, 950), (8_000_000, 50)]);
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    let names = ["cache", "gone"].map(|name| (name.to_owned(), waits.clone()));
    store.add_waits(start / (60 * S), &names.into()).unwrap();
    let row = row();
    let ms = |field: &str| row[field].as_f64().unwrap();
    assert!((0.4..0.65).contains(&ms("wait_p50_ms")), "{row}");
    assert!((6.0..10.5).contains(&ms("wait_p99_ms")) && ms("wait_max_ms") >= ms("wait_p99_ms"), "{row}");
    assert_eq!(row["waits"], 1000);
    let text = ok(state.path(), &["history", "--since", "10m", "--by", "container"]);
    assert!(text.contains("P99 MS") && text.contains("cache") && !text.contains("gone"), "{text}");
}

#[test]
fn the_course_of_one_is_shown_by_minute_and_what_was_not_recorded_is_unknown() {
    let state = tempfile::tempdir().unwrap();
    let start = recorded(state.path());
    let minute = |at: u64| (start / (60 * S) + at) * 60 * S;
    let at = |ns: u64| {
        let seconds = ns / S;
        // As `date -u +%H:%M` has it.
        format!("{:02}:{:02}", seconds / 3600 % 24, seconds / 60 % 60)
    };
    let waits = Histogram::of(&[(8_000_000, 100)]);
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    store.add_waits(minute(0) / (60 * S), &[("cache".to_owned(), waits)].into()).unwrap();
    drop(store);
    // An hour before it until now.
    let from = at(minute(0) - 3600 * S);
    let args = ["history", "--of", "container:cache", "--from", &from];
    let whole = document(state.path(), &args);
    let series = &whole["series"];
    assert_eq!((&whole["schema"], &series["of"]), (&"evenkeel.history/v1".into(), &"container:cache".into()));
    let rows = series["rows"].as_array().unwrap();
    assert!(rows.len() >= 61, "{}", rows.len());
    let covered: f64 = rows.iter().map(|row| row["covered_s"].as_f64().unwrap()).sum();
    assert!((covered - 60.0).abs() < 1e-6, "{series:#}");
    for row in &rows[..60] {
        for field in
            ["cpu_pct", "wait_pct", "throttled_pct", "wait_p50_ms", "wait_p99_ms", "wait_max_ms", "waits"]
        {
            assert_eq!(row[field], Value::Null, "not recorded is not zero: {row}");
        }
    }
    let row = &rows[60];
    assert!((row["cpu_pct"].as_f64().unwrap() - 25.0).abs() < 1e-6, "{row}");
    assert!((row["wait_pct"].as_f64().unwrap() - 1.0).abs() < 1e-6, "{row}");
    assert!((6.0..10.5).contains(&row["wait_p99_ms"].as_f64().unwrap()), "{row}");
    assert_eq!((&row["waits"], &row["throttled_pct"]), (&100.into(), &Value::Null));
    let csv = ok(state.path(), &[&args[..], &["-o", "csv"]].concat());
    assert!(csv.starts_with("from,covered_s,cpu_pct,"), "{csv}");
    assert_eq!(csv.lines().count(), rows.len() + 1);
    let text = ok(state.path(), &args);
    assert!(text.contains("P99 MS") && text.contains(&format!(" of {} lines known", rows.len())), "{text}");
    assert!(text.lines().filter(|line| line.contains('?')).count() >= 60, "{text}");
    // Longer lines, and until a given time.
    let until = at(minute(0) + 60 * S);
    let longer = document(state.path(), &[&args[..], &["--to", &until, "--every", "1h"]].concat());
    let rows = longer["series"]["rows"].as_array().unwrap();
    assert!(rows.len() <= 2, "{longer:#}");
    // Between two times also who got the CPU.
    let rates = document(state.path(), &["history", "--from", &from, "--to", &until, "--by", "container"]);
    let whole = rates["rates"]["covered_s"].as_f64().unwrap_or(0.0);
    assert!(whole <= 60.0, "{rates:#}");
    // A name is data, also on a terminal.
    let text = ok(state.path(), &["history", "--of", "container:\u{1b}[2J'--", "--since", "5m"]);
    assert!(!text.contains('\u{1b}') && text.contains(" 0 of "), "{text}");
    assert!(text.contains("Nothing of that name was seen"), "{text}");
}

#[test]
fn a_course_that_cannot_be_is_refused_with_the_reason() {
    let state = tempfile::tempdir().unwrap();
    recorded(state.path());
    for (args, why) in [
        (&["--of", "web", "--since", "1h"][..], "container:NAME"),
        (&["--of", "vm:web", "--since", "1h"], "the history has no virtual machines"),
        (&["--of", "container:web"], "--since"),
        (&["--of", "container:web", "--since", "1h", "--every", "30s"], "whole minutes"),
        (&["--of", "container:web", "--since", "1h", "--every", "0s"], "whole minutes"),
        (&["--of", "container:web", "--since", "1h", "--by", "cpu"], "--by"),
        (&["--of", "container:web", "--since", "100days"], "a longer --every"),
        (&["--from", "tomorrow"], "a time such as 14:00"),
        (&["--from", "2026-01-02", "--to", "2026-01-01"], "not after the beginning"),
        (&["--to", "14:00"], "--from"),
        (&["--from", "14:00", "--since", "1h"], "--since"),
    ] {
        evenkeel(state.path(), &[&["history"], args].concat()).refused(2, why);
    }
    // Nothing recorded is nothing known.
    let empty = tempfile::tempdir().unwrap();
    let document = document(empty.path(), &["history", "--of", "container:web", "--since", "1h"]);
    assert_eq!(document["series"], Value::Null);
}

#[test]
fn a_run_is_replayed_in_order() {
    let state = tempfile::tempdir().unwrap();
    let start = recorded(state.path());
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    let run = store.last_run().unwrap().unwrap();
    for at in [21, 25] {
        let window = TrialWindow {
            trial: 1,
            settings: "batch".into(),
            started_ns: start + at * S,
            seconds: 2.0,
            cpu_pct: 140.0,
            wait_per_ran: Some(0.2),
            ..TrialWindow::default()
        };
        store.add_trial(run.id, &window).unwrap();
    }
    store.set_changes(run.id, &[]).unwrap();
    store.finish_run(run.id, &RunRecord { changes: Vec::new(), ..run.record }, "done").unwrap();
    drop(store);
    let replay = document(state.path(), &["replay", "--step", "10s", "-n", "1"]);
    assert_eq!((&replay["schema"], &replay["runs"]), (&"evenkeel.replay/v1".into(), &vec![1].into()));
    let moments = replay["moments"].as_array().unwrap();
    let kinds: Vec<&str> = moments.iter().map(|moment| moment["kind"].as_str().unwrap()).collect();
    // The change was written before its trial's end, as the record says.
    let expected = [
        "begins", "rates", "set", "rates", "window", "window", "kept", "rates", "rates", "rates", "rates",
        "put back", "ends",
    ];
    assert_eq!(kinds, expected, "{replay:#}");
    let rates: Vec<&Value> = moments.iter().filter(|moment| moment["kind"] == "rates").collect();
    assert_eq!((&rates[0]["settings"], &rates[2]["settings"]), (&"kernel default".into(), &"batch".into()));
    assert_eq!((&rates[0]["cpu_pct"], &rates[0]["cpus"]), (&120.0.into(), &vec![60.0, 60.0].into()));
    assert_eq!(rates[0]["busiest"].as_array().unwrap().len(), 1);
    assert_eq!(rates[0]["busiest"][0]["name"], "make");
    let mut last = String::new();
    for moment in moments {
        let at = moment["at"].as_str().unwrap().to_owned();
        assert!(at >= last, "{at} after {last}");
        last = at;
    }
    let text = ok(state.path(), &["replay"]);
    assert!(
        text.contains("kept       batch: measured") && text.contains("window     batch: 140.0 % CPU"),
        "{text}"
    );
    assert!(text.lines().filter(|line| line.contains("  rates ")).count() == 60, "{text}");
    assert!(text.contains("redis 25") && text.contains("set        20 redis sched"), "{text}");
    assert_eq!(ok(state.path(), &["replay", "-o", "csv", "--step", "10s"]).lines().count(), 14);
    // At a speed it takes its time: the last 20 s of it.
    let began = std::time::Instant::now();
    ok(state.path(), &["replay", "--since", "40s", "--step", "10s", "--speed", "30"]);
    assert!(began.elapsed() >= Duration::from_millis(600), "{:?}", began.elapsed());
}

/// Kept after 20 s, in force for 15, and then nothing was tried.
#[test]
fn what_was_taken_back_is_replayed_when_that_was() {
    let state = tempfile::tempdir().unwrap();
    let start = recorded(state.path());
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    let run = store.last_run().unwrap().unwrap().id;
    let watched = stage("watch batch", start + 21 * S, 0.99, Some(false));
    store.add_stage(run, &Stage { seconds: 15.5, ..watched }).unwrap();
    drop(store);
    let replay = document(state.path(), &["replay", "--step", "10s"]);
    let of = |moment: &Value, key: &str| moment[key].as_str().unwrap_or_default().to_owned();
    let told = replay["moments"].as_array().unwrap().iter();
    let told = told.map(|moment| of(moment, "kind") + " " + &of(moment, "settings"));
    let told: Vec<_> = told.filter(|told| !told.starts_with("begins") && !told.starts_with("set")).collect();
    let (default, batch) = ("rates kernel default", "rates batch");
    let expected = [default, "kept batch", batch, batch, "refused batch", default, default, default];
    assert_eq!(told, expected, "{replay:#}");
}

#[test]
fn what_was_not_recorded_is_not_replayed() {
    let state = tempfile::tempdir().unwrap();
    assert!(ok(state.path(), &["replay"]).contains("nothing recorded there"));
    assert_eq!(document(state.path(), &["replay"])["moments"], Value::Array(Vec::new()));
    evenkeel(state.path(), &["replay", "--run", "3"]).with(2);
    recorded(state.path());
    evenkeel(state.path(), &["replay", "--run", "99"]).with(2);
    evenkeel(state.path(), &["replay", "--speed", "-1"]).with(2);
    // The run is older than that, and it is not over.
    assert!(ok(state.path(), &["replay", "--since", "1s"]).contains("Nothing was recorded"));
}

#[test]
fn a_runs_page_stands_alone() {
    let state = tempfile::tempdir().unwrap();
    recorded(state.path());
    let file = state.path().join("run.html");
    let said = ok(state.path(), &["history", "--html", file.to_str().unwrap()]);
    assert_eq!(said.trim(), file.to_str().unwrap());
    let page = std::fs::read_to_string(&file).unwrap();
    assert!(page.contains("went from 0.930 [0.920, 0.940] to 0.990 [0.980, 1.000] with batch."));
    assert_eq!(page.matches("<svg class=\"ek\"").count(), 2);
    assert!(page.contains("20 redis") && !page.contains("http-equiv") && page.len() < 1 << 20);
    evenkeel(state.path(), &["history", "--html", "/no/such/dir/x.html"]).with(3);
}

#[test]
fn a_damaged_history_is_an_answer_not_a_panic() {
    let state = tempfile::tempdir().unwrap();
    std::fs::write(state.path().join(evenkeel_store::FILE_NAME), vec![b'x'; 8192]).unwrap();
    for command in ["history", "status"] {
        let stderr = evenkeel(state.path(), &[command]).refused(3, "damaged");
        assert!(stderr.contains("moves it aside"), "{stderr}");
    }
}

#[test]
fn real_samples_of_this_host_come_back_as_they_were() {
    let state = tempfile::tempdir().unwrap();
    let options = ObserverOptions { runtimes: Endpoints::none(), ..ObserverOptions::default() };
    let mut observer = Observer::new(&Root::host(), options).unwrap();
    let mut store = Store::open(&state.path().join(evenkeel_store::FILE_NAME), Limits::default()).unwrap();
    let mut taken = Vec::new();
    for _ in 0..5 {
        let sample = observer.sample().unwrap();
        store.add_sample(&sample).unwrap();
        // What ended between two samples is not kept: it is in its group's own count.
        taken.push(Sample { exited: Vec::new(), ..sample });
        std::thread::sleep(Duration::from_millis(100));
    }
    store.flush().unwrap();
    let kept: Vec<_> = store.samples(0, u64::MAX).unwrap().map(|s| s.unwrap().sample).collect();
    assert!(taken[0].tasks.len() > 5);
    assert_eq!(kept, taken);
    let rates = store.rates(0, u64::MAX).unwrap().unwrap();
    let busy: f64 = rates.cpus.iter().map(|cpu| cpu.busy_pct).sum();
    assert!(busy >= 0.0 && busy <= 101.0 * rates.cpus.len() as f64 + 30.0, "{busy}");
}
