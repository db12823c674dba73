//! `prove --aa` on the real kernel: decisions about settings that change nothing, with real writes. Needs root.

mod scene;

use scene::{Agent, begin, run, until};

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
    let (_turn, dir) = begin();
    let output = run(dir.path(), &["prove", "--aa", "2", "-o", "json"]);
    let words = &output.stderr;
    let document = output.document();
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
        let loads = 5 * evenkeel_linux::sys::usable_cpus().len() as u64;
        assert!(number(&decision["writes"]) >= turns / 2 * loads / 2, "{document:#}");
        let kept = decision["kept"].as_str();
        assert!(kept.is_none_or(|name| name.ends_with("(as found)")), "{document:#}");
    }
    let kept = decisions.iter().filter(|decision| !decision["kept"].is_null()).count() as u64;
    assert_eq!((number(&document["confirmed"]), number(&document["kept"])), (2, kept), "{document:#}");
    // One of two may be chance, both would be one chance in four hundred.
    assert_eq!((kept < 2, &document["verdict"]), (true, &"not refuted".into()), "{document:#}");
    assert_eq!(output.status, Some(0), "{words}");
}

#[test]
fn a_signal_ends_it_with_everything_back_and_nothing_proved() {
    let (_turn, dir) = begin();
    let mut prove = Agent::run(dir.path(), &["prove", "--aa", "2"]);
    let pid = prove.pid();
    until("a trial is held", || prove.words().contains("trial of"));
    assert!(!left_by(pid).is_empty());
    let counts = prove.end_by(rustix::process::Signal::INT).with(1).stdout;
    assert!(counts.contains("0 of 2 decisions") && counts.contains("Nothing is proved"), "{counts}");
    assert_eq!(left_by(pid), Vec::<String>::new());
}
