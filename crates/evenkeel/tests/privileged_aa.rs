//! `prove --aa` on the real kernel: decisions about settings that change nothing, with real writes. Needs root.

mod scene;

use scene::{Agent, evenkeel, run, text, turn, until};

/// Cgroups and directories that a process of this number made for itself.
fn left_by(pid: u32) -> Vec<String> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    let mounts = mounts.lines().filter(|line| line.contains(" - cgroup"));
    let mounts = mounts.map(|line| line.split(' ').nth(4).unwrap());
    let names = mounts.chain(["/tmp"]).flat_map(|at| std::fs::read_dir(at).into_iter().flatten().flatten());
    let names = names.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("evenkeel-lab-{pid}-"))).collect()
}

#[test]
fn two_decisions_about_nothing_are_written_confirmed_and_judged_by_their_count() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let output = run(dir.path(), &["prove", "--aa", "2", "-o", "json"]);
    let words = text(&output.stderr);
    let document: serde_json::Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {words}"));
    assert_eq!(document["schema"], "evenkeel.prove-aa/v1");
    let decisions = document["decisions"].as_array().unwrap();
    assert_eq!(decisions.len(), 2, "{document:#}");
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    for decision in decisions {
        // A load of which each reaches its confirmation, however the first look turned out.
        assert_eq!(decision["confirmed"], true, "{document:#}\n{words}");
        let (turns, candidates) = (2 * number(&decision["pairs"]), number(&decision["candidates"]));
        assert!(turns > 0 && candidates > 1, "{document:#}");
        // Each window of a candidate follows a write of all its values; five loads a CPU have one each at least.
        let loads = 5 * std::thread::available_parallelism().unwrap().get() as u64;
        assert!(number(&decision["writes"]) >= turns / 2 * loads / 2, "{document:#}");
        let kept = decision["kept"].as_str();
        assert!(kept.is_none_or(|name| name.ends_with("(as found)")), "{document:#}");
    }
    let kept = decisions.iter().filter(|decision| !decision["kept"].is_null()).count() as u64;
    assert_eq!((number(&document["confirmed"]), number(&document["kept"])), (2, kept), "{document:#}");
    // One of two may be chance, both would be one chance in four hundred.
    assert_eq!((kept < 2, &document["verdict"]), (true, &"not refuted".into()), "{document:#}");
    assert_eq!(output.status.code(), Some(0), "{words}");
}

#[test]
fn a_signal_ends_it_with_everything_back_and_nothing_proved() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let mut prove = Agent::start(evenkeel(dir.path(), &["prove", "--aa", "2"]), dir.path());
    let pid = prove.pid();
    until("a trial is held", || prove.words().contains("trial of"));
    assert!(!left_by(pid).is_empty());
    prove.signal(rustix::process::Signal::INT);
    let output = prove.end();
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("0 of 2 decisions"), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("Nothing is proved"), "{}", text(&output.stdout));
    assert_eq!(left_by(pid), Vec::<String>::new());
}
