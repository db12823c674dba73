//! `prove --aa` on the real kernel: decisions about settings that change nothing, with real writes. Needs root.

mod scene;

use std::path::PathBuf;

use evenkeel_linux::testing::made_by;
use scene::{Agent, begin, run, until};

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
    assert!(!made_by("lab", pid).is_empty());
    let counts = prove.end_by(rustix::process::Signal::INT).with(1).stdout;
    assert!(counts.contains("0 of 2 decisions") && counts.contains("Nothing is proved"), "{counts}");
    assert_eq!(made_by("lab", pid), Vec::<PathBuf>::new());
}
