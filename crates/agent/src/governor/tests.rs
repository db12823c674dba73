use super::*;

/// Share of what is wanted that seems stolen from one thread on CPU 0 that always wants to run, next to others that take these
/// shares of CPUs 0 and 1, while so much is really stolen. The host's counters have steps, and are read late.
fn seems_stolen(others: [f64; 2], stolen: f64) -> f64 {
    let mut auto = Auto::new((2.0, None), Duration::from_millis(100), None, Purpose::default()).unwrap();
    let ran = 1.0 - others[0] - stolen;
    let at = |look: u32| 0.103 * f64::from(look) + 0.001 * f64::from(look * 37 % 11);
    let counted = |look: u32| {
        let read_s = at(look) + 0.002 * f64::from(look * 29 % 13);
        let steps = |share: f64| (100.0 * share * read_s + 0.3).floor() / 100.0;
        let busy_s = BTreeMap::from([(0, steps(others[0] + ran)), (1, steps(others[1]))]);
        HostTimes { busy_s, steal_s: None }
    };
    let mut sum = (0.0, 0.0);
    for look in 0..200 {
        let (host, seconds) = ((counted(look), counted(look + 1)), at(look + 1) - at(look));
        let on = BTreeMap::from([(0, OnCpu { ran_s: seconds * ran, wanted_s: seconds })]);
        let sample =
            auto.weigh((seconds, 2.0 * seconds), seconds * ran, &on, Some((&host.0, &host.1)), (0.0, 0.0));
        sum = (sum.0 + sample.got_s, sum.1 + sample.wanted_s);
    }
    1.0 - sum.0 / sum.1
}

#[test]
fn what_others_use_is_not_stolen_however_little_it_is() {
    for others in [[0.0, 0.0], [0.045, 0.045], [0.09, 0.0], [0.15, 0.0], [0.09, 0.5], [0.74, 1.0]] {
        let stolen = seems_stolen(others, 0.0);
        assert!(stolen < 0.02, "{others:?}: {stolen}");
    }
    // And what is stolen is not others'.
    for others in [[0.0, 0.0], [0.05, 0.0], [0.0, 0.9]] {
        let stolen = seems_stolen(others, 0.4);
        assert!((0.36..0.46).contains(&stolen), "{others:?}: {stolen}");
    }
    // Next to others on the same CPU, by whose waits is not known: what nobody used is.
    let stolen = seems_stolen([0.5, 0.0], 0.4);
    assert!((0.75..0.85).contains(&stolen), "{stolen}");
    // A hundredth that nobody used is as much as the thread got, and nothing to speak of.
    let stolen = seems_stolen([0.98, 0.0], 0.01);
    assert!(stolen < 0.02, "{stolen}");
}

#[test]
fn steal_of_cpus_that_the_governed_do_not_use_and_of_before_is_not_theirs() {
    let cpus = Some(CpuSet::first_n(2));
    let mut auto = Auto::new((2.0, cpus), Duration::from_millis(100), None, Purpose::default()).unwrap();
    let host = |busy: f64, steal: &[f64]| HostTimes {
        busy_s: [(0, busy), (1, 0.0)].into(),
        steal_s: Some((0..).zip(steal.iter().copied()).collect()),
    };
    let on = BTreeMap::from([(0, OnCpu { ran_s: 0.1, wanted_s: 0.1 })]);
    let mut wanted = |then: &[f64], now: &[f64]| {
        let (then, now) = (host(5.0, then), host(5.1, now));
        auto.weigh((0.1, 0.2), 0.1, &on, Some((&then, &now)), (0.0, 0.0)).wanted_s
    };
    assert!(wanted(&[1.0, 1.0], &[1.05, 1.0]) > 0.14, "theirs");
    assert_eq!(wanted(&[1.0, 1.0, 1.0, 1.0], &[1.0, 1.0, 1.09, 1.09]), 0.1);
    assert_eq!(wanted(&[1.0], &[1.0, 900.0]), 0.1, "CPU 1 is back");
    assert_eq!(wanted(&[1.0, 900.0], &[1.0]), 0.1);
}

#[test]
fn nothing_is_stolen_while_this_loop_was_stopped() {
    let period = Duration::from_millis(100);
    let mut auto = Auto::new((2.0, None), period, None, Purpose::default()).unwrap();
    // It ran half of ten minutes, and is ready at both ends.
    let on = BTreeMap::from([(0, OnCpu { ran_s: 300.0, wanted_s: 600.0 })]);
    let host = |busy: f64| HostTimes { busy_s: [(0, busy)].into(), steal_s: None };
    let hosts = (host(5.0), host(305.0));
    let look = auto.weigh((600.0, 1200.0), 300.0, &on, Some((&hosts.0, &hosts.1)), (1.0, 0.0));
    assert_eq!((look.got_s, look.wanted_s), (300.0, 300.0));
    let on = BTreeMap::from([(0, OnCpu { ran_s: 5.0, wanted_s: 5.0 })]);
    assert!(auto.weigh((5.0, 10.0), 5.0, &on, None, (0.9, 0.0)).got_s < 1.0, "a gap in time");
}

#[test]
fn a_busy_sibling_steals_nothing_and_a_hypervisor_that_hides_does() {
    let mut auto = Auto::new((1.0, None), Duration::from_millis(100), None, Purpose::default()).unwrap();
    let on = BTreeMap::from([(0, OnCpu { ran_s: 0.1, wanted_s: 0.1 })]);
    let mut got = |slow: f64| auto.weigh((0.1, 1.0), 0.1, &on, None, (0.0, slow)).got_s;
    assert_eq!((got(0.0), got(0.45)), (0.1, 0.1));
    assert!((got(0.97) - 0.003).abs() < 1e-9);
}
