//! A short form of `make truth`: few trials of a few rows, refuted only beyond what chance explains.

#[path = "truth/arguments.rs"]
mod arguments;
#[path = "truth/host.rs"]
mod host;
#[path = "truth/rows.rs"]
#[allow(dead_code)]
mod rows;

use evenkeel_base::stats::binomial;
use host::{Tally, decide};
use rows::{Goal, rows};

/// Chance of a false alarm of one row.
const ALARM: f64 = 1e-4;

fn check(part: &str, trials: u64) {
    let rows: Vec<_> = rows().into_iter().filter(|row| row.name.contains(part)).collect();
    assert!(!rows.is_empty(), "no row is called {part:?}");
    for row in rows {
        let tally = Tally::of(&row.scene, trials, 1);
        match row.goal {
            Goal::AtMost(most) => {
                let low = binomial::lower(tally.kept(), trials, ALARM);
                assert!(low <= most, "{}: {} of {trials} kept", row.name, tally.kept());
            }
            Goal::AtLeast(least, within_s) => {
                let high = binomial::upper(tally.kept_right(), trials, ALARM);
                assert!(high >= least, "{}: {} of {trials} kept", row.name, tally.kept_right());
                let in_force_s = tally.median_s().2.unwrap();
                assert!(in_force_s <= within_s, "{}: in force after {in_force_s} s", row.name);
            }
            Goal::Shown => {}
        }
    }
}

#[test]
fn what_does_not_help_is_hardly_ever_kept() {
    check("equal: 4 candidates", 150);
    check("equal: 6 candidates", 100);
    check("equal: noise 1 %", 100);
    check("a busy loop", 60);
    check("an outside program ends", 100);
}

#[test]
fn what_fades_is_hardly_ever_kept() {
    check("effect of 8 % that fades: 1 s, noise 1 %", 60);
    check("backlog of 8 % that fades: 3 s, noise 1 %", 60);
}

#[test]
fn who_is_hurt_forbids_a_change() {
    check("one of 10 tasks", 60);
    check("one of 200 loses 40 %: in force", 25);
    check("one task loses 20 %", 60);
    check("a container outside loses 5 %", 60);
    check("5 times as many long waits", 40);
}

#[test]
fn what_helps_is_found_in_time() {
    check("power: one of 4 gains 8 %, guard off", 60);
    check("power: the same, guard on, 10 tasks", 60);
}

#[test]
fn services_are_served_by_proof_alone() {
    check("services", 60);
}

#[test]
fn the_host_goes_on_from_where_the_decision_left_it() {
    let row = rows().into_iter().find(|row| row.name.starts_with("power")).unwrap();
    let mut outcome = decide(&row.scene, 1);
    let turn = evenkeel_policy::trial::Turn { candidate: 0, settle_s: 0.1, window_s: 1.0 };
    let before = outcome.host.clock_s;
    let window = outcome.host.measure(&turn);
    assert!(
        window.got_pct > 50.0 && outcome.host.clock_s > before + 1.0 && outcome.in_force_s <= outcome.seconds
    );
}

#[test]
fn the_tables_refuse_what_they_do_not_take() {
    let read = |args: &[&str]| arguments::read(args.iter().map(|&arg| arg.to_owned()));
    assert_eq!(read(&["100", "null", "1"]), Ok((100, "null".to_owned(), 1)));
    assert!(matches!(read(&[]), Ok((2000, part, 1..)) if part.is_empty()));
    for args in [&["--help"][..], &["0"], &["-1"], &["10", "null", "x"], &["10", "null", "1", "2"]] {
        assert!(read(args).is_err_and(|error| error.ends_with(arguments::USAGE)), "{args:?}");
    }
}
