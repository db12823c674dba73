use super::*;

#[test]
fn as_many_challengers_as_a_trial_has_time_for() {
    let pace = Pace::new(0.9, 0.1);
    let challengers = |besides, seconds| challengers(pace, besides, Duration::from_secs(seconds));
    assert_eq!(challengers(0, 78), MOST);
    let (less, more) = (Trial::usual_s(3, pace), Trial::usual_s(4, pace));
    assert!(less < more && more < 60.0, "{less} {more}");
    assert_eq!((challengers(2, 65), challengers(0, less.ceil() as u64)), (MOST, 3));
    assert_eq!((challengers(1, 1), challengers(9, 0)), (1, 1), "there is always one");
}

#[test]
fn windows_hold_some_cycles_of_the_tasks_that_count() {
    use evenkeel_base::{SchedAttr, TaskView};
    let pace = |background: bool, tasks: &[(f64, Option<f64>)]| {
        let of = |(pid, &(cpu_pct, voluntary_per_s)): (u32, &(f64, Option<f64>))| TaskView {
            cpu_pct,
            voluntary_per_s,
            sched: Some(SchedAttr::DEFAULT),
            ..crate::testing::task(pid, "job", 1)
        };
        let mut seen = crate::testing::observation(&[("/", None), ("/work", Some(0))]);
        seen.tasks = (10..).zip(tasks).map(of).collect();
        let features = evenkeel_policy::levers::Features { background, ..Default::default() };
        let pace = pace_of(&Scene::new(&seen, features, |_| true));
        (pace.window_s, pace.settle_s, pace.services)
    };
    let plain = |tasks: &[(f64, Option<f64>)]| pace(false, tasks);
    // Cycles of a tenth of a second where nothing is known, and of those that hardly ever sleep.
    assert_eq!([plain(&[]), plain(&[(50.0, None)]), plain(&[(50.0, Some(0.1))])], [(0.8, 0.1, false); 3]);
    assert_eq!(plain(&[(50.0, Some(5.0))]), (1.6, 0.2, false));
    assert_eq!(plain(&[(50.0, Some(100.0))]), (0.6, 0.05, false));
    assert_eq!(plain(&[(50.0, Some(0.5))]), (2.0, 0.3, false));
    let (window_s, settle_s, _) = plain(&[(10.0, Some(0.5)), (90.0, Some(100.0))]);
    assert!(
        (window_s - 0.872).abs() < 1e-9 && (settle_s - 0.109).abs() < 1e-9,
        "a second at most: {window_s}"
    );
    let (window_s, settle_s, _) = plain(&[(30.0, Some(5.0)), (10.0, Some(10.0))]);
    assert!(
        (window_s - 1.4).abs() < 1e-9 && (settle_s - 0.175).abs() < 1e-9,
        "by load: {window_s} {settle_s}"
    );
    assert_eq!(pace(true, &[(50.0, Some(5.0))]), (0.4, 0.2, true));
}

#[test]
fn each_decision_of_a_run_has_its_level_of_one_budget() {
    let rules = TrialRules::default();
    let mut control = OnlineControl::new(2.0 * rules.alpha);
    let alpha = |control: &OnlineControl| next_rules(&rules, control, 1).alpha;
    assert!((alpha(&control) - rules.alpha).abs() < 1e-12, "the first has what one decision has");
    let decision = |winner, confirmed| Decision {
        winner,
        verdicts: vec![],
        confirmed,
        pairs: vec![],
        objective: evenkeel_policy::trial::Objective::new(0.1, false),
    };
    feed_back(&mut control, &decision(0, false), true);
    assert!((alpha(&control) - rules.alpha).abs() < 1e-12, "screening alone spends nothing");
    feed_back(&mut control, &decision(0, true), true);
    let poor = alpha(&control);
    assert!(poor < rules.alpha / 10.0, "{poor}");
    let (mut kept, mut given_up) = (control.clone(), control);
    feed_back(&mut kept, &decision(1, true), false);
    feed_back(&mut given_up, &decision(1, true), true);
    assert!(alpha(&kept) > poor && alpha(&given_up) < poor, "what is found pays for what comes");
    assert_ne!(next_rules(&rules, &kept, 1).seed, next_rules(&rules, &kept, 2).seed);
}

/// `run --for` ends in time, also where something was decided again shortly before.
#[test]
fn what_is_decided_again_does_not_outlast_the_run() {
    use crate::events::Quiet;
    let mut agent = crate::testing::agent("comm:^none$", |_| {});
    agent.decisions.ends = Some(Instant::now());
    let host = crate::testing::observation(&[("/", None)]);
    let candidates = [default_plan(), Plan { name: "nice".into(), ..Plan::default() }];
    let seen = (Summary { seconds: 1.0, ..Summary::default() }, Vec::new(), None);
    let until = (Instant::now(), Instant::now() + Duration::from_secs(2));
    let pace = Pace::new(0.6, 0.0);
    let decision = agent.hold_trial(&candidates, pace, until, seen, &host, &mut Quiet).unwrap();
    let windows: Vec<usize> = decision.verdicts.iter().map(|verdict| verdict.windows).collect();
    assert_eq!((windows, decision.winner), (vec![1, 0], 0), "that before the trial, and none in it");
}

/// A trial that finds nothing better says nothing of what is in force.
#[test]
fn what_stays_in_force_keeps_the_effect_that_it_was_kept_for() {
    let effect = |winner| {
        let verdicts = ["kept: nothing tried is shown to be better", "kept: at least +3.0 points of CPU"];
        let of = |why: &str| evenkeel_policy::trial::Verdict { why: why.to_owned(), ..Default::default() };
        let objective = evenkeel_policy::trial::Objective::new(0.1, false);
        let verdicts = verdicts.map(of).to_vec();
        effect(&Decision { winner, verdicts, confirmed: true, pairs: vec![], objective }, &[None, None])
    };
    assert_eq!([0, 1].map(effect), [None, Some("kept: at least +3.0 points of CPU".to_owned())]);
}
