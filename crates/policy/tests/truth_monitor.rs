//! The short form of `truth_monitor` (crates/policy/examples): a limit that these few trials refute does not hold.

#[allow(dead_code)]
#[path = "truth/host.rs"]
mod decision;
#[path = "../examples/truth_monitor/host.rs"]
mod host;
#[path = "../examples/truth_monitor/rows.rs"]
mod rows;

fn hold(trials: u64, only: &str) {
    let mut asked = 0;
    rows::run(trials, 1, only, |row| {
        asked += 1;
        assert!(!row.refuted(), "{} of {}, at most {:.3}: {row:?}", row.wrong, row.trials, row.upper());
    });
    assert!(asked > 0, "no row is called {only:?}");
}

#[test]
fn a_harmless_change_stays() {
    hold(30, "harmless, 10 tasks");
    hold(15, "harmless, worst corner: ");
}

#[test]
fn a_task_that_wants_less_by_itself_is_no_victim() {
    hold(20, "own demand halves, 10");
}

#[test]
fn who_loses_is_found_within_two_minutes() {
    hold(30, "one of 10, CPU -40 %: ");
    hold(30, "one of 10, CPU -20 %: ");
    hold(15, "one of 50, waits x6: ");
}

#[test]
fn a_gain_that_vanishes_is_gone_and_one_that_stays_is_not() {
    hold(12, "gain 8 % vanishes, noise 4 %");
    hold(3, "gain 5 % stays: ");
}

#[test]
fn intervals_hold_the_truth_and_blocks_cost_what_they_take() {
    hold(10, "truth outside the interval in 8 h");
    hold(60, "holdout's cost > 1.3 x its share, fades 1 s");
}

#[test]
fn a_day_of_decisions_keeps_few_that_do_nothing() {
    hold(100, "300 decisions");
}
