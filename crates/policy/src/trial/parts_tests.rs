//! What comes in a trial, in which order, and how long it takes.

use super::confirm::UNPROVED;
use super::tests::{PACE, summary};
use super::*;

fn service() -> LatencyTarget {
    LatencyTarget { name: "cgroup:/api".to_owned(), wait_p99_ns: Some(1_000_000), ..LatencyTarget::default() }
}

/// Candidates of the windows asked for until the trial is no longer in the part that it begins with.
fn lead_of(mut trial: Trial, left_s: f64) -> Vec<usize> {
    let mut turns = Vec::new();
    while let Some(turn) = trial.next(left_s).filter(|_| trial.part() == Part::Baseline) {
        turns.push(turn.candidate);
        trial.record(summary(100.0, 10.0), vec![Some(Histogram::default())]);
    }
    turns
}

/// A signal is no lack of time, and what it left open is no verdict.
#[test]
fn a_trial_that_is_stopped_says_so() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    // The baseline, and one window of a candidate.
    while trial.entries[1..].iter().all(|entry| entry.windows.is_empty()) {
        trial.next(1e3).unwrap();
        trial.record(summary(100.0, 10.0), Vec::new()).unwrap();
    }
    let mut why = |stops: bool| {
        if stops {
            trial.stop();
        }
        let decision = trial.decide();
        let mut why: Vec<String> = decision.verdicts.into_iter().map(|verdict| verdict.why).collect();
        why.sort();
        (decision.winner, why.join("; "))
    };
    let in_time = "kept: nothing tried is shown to be better; not tried: no time was left; taken back: no time was left to confirm it";
    assert_eq!(why(false), (0, in_time.to_owned()));
    let stopped = "kept: the run was stopped before anything was shown to be better; not tried: the run was stopped; \
                   taken back: the run was stopped before it was confirmed";
    assert_eq!(why(true), (0, stopped.to_owned()));
}

#[test]
fn the_usual_time_is_that_of_all_parts() {
    // A turn takes 2.5 s. 8 windows before, 14 pairs, and 10 s in force.
    let (pace, before, confirmation) = (Pace::new(2.0, 0.5), 8.0 * 2.0, 28.0 * 2.5 + 10.0);
    for (challengers, screening) in [(1, 2.5), (2, 4.0 * 2.5), (3, 6.0 * 2.5)] {
        assert_eq!(Trial::usual_s(challengers, pace), before + screening + confirmation, "{challengers}");
    }
}

#[test]
fn the_host_as_found_is_measured_first_where_protections_are_held_against_it() {
    let trial = || Trial::new(2, TrialRules::default(), PACE);
    assert_eq!(lead_of(trial(), 1e3), [0; 8]);
    assert_eq!(lead_of(trial().protecting(vec![service()], 0), 1e3), [0; 8]);
    assert_eq!(lead_of(trial().protecting(Vec::new(), 2), 1e3), [0; 8], "nothing is held against it");
    assert_eq!(lead_of(trial().protecting(vec![service()], 2), 1e3), [[0; 8], [2; 8]].concat());
    // Little time goes to the challengers.
    let short_s = Trial::usual_s(2, PACE) - 1.0;
    assert_eq!(lead_of(trial().protecting(vec![service()], 2), short_s), [0, 2]);
    assert_eq!(lead_of(trial(), short_s), [0]);
    assert_eq!(lead_of(trial(), Trial::usual_s(2, PACE)).len(), 8);
}

#[test]
fn windows_seen_before_a_trial_save_those_at_its_beginning() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE).protecting(vec![service()], 2);
    for window in 0..5 {
        let seen = trial.seen(summary(100.0, 10.0), vec![Some(Histogram::default())]);
        assert_eq!(seen, Some(Recorded { candidate: 0, window }));
    }
    assert_eq!(trial.before().len(), 5, "nothing was changed before them");
    // Those of the host as found are measured all the same.
    assert_eq!(lead_of(trial, 1e3), [&[0; 3][..], &[2; 8]].concat());
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    let all: Vec<_> = (0..9).map(|_| trial.seen(summary(100.0, 10.0), Vec::new()).is_some()).collect();
    assert_eq!(all, [[true; 8].as_slice(), &[false]].concat(), "more than are needed are not taken");
    assert!(trial.next(1e3).is_some_and(|turn| turn.candidate != 0) && trial.part() == Part::Screening);
    assert_eq!(trial.seen(summary(100.0, 10.0), Vec::new()), None, "too late");
}

#[test]
fn a_window_seen_before_without_the_waits_of_services_saves_none() {
    let mut trial = Trial::new(1, TrialRules::default(), PACE.for_services()).protecting(vec![service()], 0);
    assert_eq!(trial.seen(summary(100.0, 10.0), vec![None]), None);
    assert!(trial.seen(summary(100.0, 10.0), vec![Some(Histogram::default())]).is_some());
    assert_eq!(lead_of(trial, 1e3), [0; 4]);
}

/// Turns of a trial of one challenger whose windows are the mean of what is due now and what was due in the window before.
fn turns_where_windows_show(share_of_before: f64) -> Vec<Turn> {
    let mut trial = Trial::new(1, TrialRules::default(), PACE);
    let (mut turns, mut before, mut at) = (Vec::new(), 0.0, 0.0);
    while let Some(turn) = trial.next(200.0 - at).filter(|_| turns.len() < 120) {
        let due = [100.0, 110.0][turn.candidate];
        let got = share_of_before * before + (1.0 - share_of_before) * due;
        // A little noise, without which nothing is known of the error.
        let noise = [0.3, -0.2, -0.4, 0.1, 0.2][turns.len() % 5];
        trial.record(Summary { seconds: turn.window_s, ..summary(got + noise, 10.0) }, Vec::new());
        (before, at) = (due, at + turn.settle_s + turn.window_s);
        turns.push(turn);
    }
    turns
}

#[test]
fn settings_are_given_time_to_take_hold_only_where_they_changed() {
    let turns = turns_where_windows_show(0.0);
    assert_eq!(turns[0].settle_s, 0.0, "the present state is in force");
    for two in turns.windows(2) {
        let settle_s = if two[0].candidate == two[1].candidate { 0.0 } else { PACE.settle_s };
        assert_eq!(two[1].settle_s, settle_s, "{two:?}");
    }
    assert!(turns.iter().all(|turn| turn.window_s >= 0.8 && turn.window_s < 1.25), "{turns:?}");
}

#[test]
fn where_the_settings_before_show_in_windows_these_become_longer() {
    let turns = turns_where_windows_show(0.5);
    assert!(turns[..9].iter().all(|turn| turn.window_s < 1.25 * PACE.window_s), "{turns:?}");
    let longer: Vec<&Turn> = turns.iter().filter(|turn| turn.window_s > 1.25 * PACE.window_s).collect();
    assert!(longer.len() > 5, "{turns:?}");
    let settled = longer.iter().filter(|turn| turn.settle_s > 0.0).collect::<Vec<_>>();
    assert!(!settled.is_empty() && settled.iter().all(|turn| turn.settle_s >= 0.5), "{settled:?}");
}

#[test]
fn who_is_withdrawn_is_not_asked_for_again() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    assert!(trial.is_worth_more_time());
    let turn = loop {
        let turn = trial.next(1e3).unwrap();
        if turn.candidate != 0 {
            break turn;
        }
        trial.record(summary(100.0, 10.0), Vec::new());
    };
    let other = 3 - turn.candidate;
    trial.withdraw(0, "the present state cannot be".to_owned());
    trial.withdraw(3, "there is none such".to_owned());
    assert_eq!((trial.next(1e3), trial.alive()), (Some(turn), vec![0, 1, 2]), "nobody was withdrawn");
    // Another one leaves the turn that is under way.
    trial.withdraw(other, "not permitted".to_owned());
    assert_eq!((trial.next(1e3), trial.alive()), (Some(turn), vec![0, turn.candidate]));
    trial.withdraw(turn.candidate, "not permitted".to_owned());
    assert_eq!(trial.next(1e3), None);
    assert!(!trial.is_worth_more_time() && trial.part() == Part::Over);
}

#[test]
fn a_window_for_which_there_is_just_the_time_is_measured() {
    let trial = || Trial::new(1, TrialRules::default(), PACE);
    let turn = trial().next(1e3).unwrap();
    assert_eq!(trial().next(turn.window_s), Some(turn));
    assert_eq!(trial().next(turn.window_s.next_down()), None);
}

#[test]
fn of_windows_that_stand_alone_it_is_not_known_how_much_they_differ() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    assert_eq!(trial.scale(), None);
    trial.entries.iter_mut().for_each(|entry| entry.windows.push(summary(100.0, 10.0)));
    assert_eq!(trial.scale(), None);
    trial.entries[2].windows.push(summary(102.0, 10.0));
    assert_eq!(trial.scale(), Some(2f64.sqrt()));
}

#[test]
fn what_few_waits_show_of_a_service_is_a_doubt_only_where_more_are_long() {
    let doubts_of = |services: bool, all: u64, before: u64, after: u64| {
        let pace = if services { PACE.for_services() } else { PACE };
        let target = LatencyTarget { wait_p99_ns: None, ..service() };
        let mut trial = Trial::new(1, TrialRules::default(), pace).protecting(vec![target], 0);
        for (entry, long) in trial.entries.iter_mut().zip([before, after]) {
            entry.protected = vec![vec![Histogram::of(&[(1_000_000, all - long), (50_000_000, long)])]];
        }
        assert!(trial.breaches(1, 0).iter().all(|doubt| !doubt.proved));
        (trial.breaches(1, 0).len(), trial.broken(1).is_some())
    };
    let doubts = |services: bool, before: u64, after: u64| doubts_of(services, 100, before, after);
    assert_eq!((doubts(false, 3, 2), doubts(true, 3, 2)), ((1, false), (0, false)));
    assert_eq!((doubts(false, 3, 3), doubts(true, 3, 3)), ((1, false), (0, false)), "not more");
    assert_eq!(
        (doubts_of(false, 200, 1, 5), doubts_of(false, 200, 1, 6)),
        ((1, false), (1, true)),
        "1 in 40"
    );
    assert_eq!((doubts(false, 3, 6), doubts(true, 3, 6)), ((1, true), (1, true)));
    assert_eq!(doubts(false, 1, 2), (1, false), "within what is allowed");
}

#[test]
fn pairs_are_those_of_the_candidate_that_is_confirmed() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    let mut noise = 1.0;
    // Two that cannot be told apart: the second one waits for its turn.
    while let Some(turn) = trial.next(1e3) {
        noise = -noise;
        trial.record(summary([100.0, 104.0, 104.1][turn.candidate] + noise, 0.0), Vec::new());
        let pairs: Vec<usize> = trial.decide().verdicts.iter().map(|verdict| verdict.pairs).collect();
        if pairs.iter().any(|pairs| *pairs > 2) {
            assert_eq!(pairs.iter().filter(|pairs| **pairs == 0).count(), 2, "{pairs:?}");
            return;
        }
    }
    panic!("nobody was confirmed");
}

#[test]
fn a_window_asked_for_before_is_not_begun_without_the_time_for_it() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    let turn = trial.next(1e3).unwrap();
    // The present state cannot be taken out: it is asked for again.
    trial.withdraw(0, "it could not be set".to_owned());
    assert_eq!(trial.next(turn.window_s), Some(turn));
    assert_eq!(trial.next(turn.window_s.next_down()), None);
    assert_eq!(trial.next(0.0), None);
}

#[test]
fn what_a_decision_gains_is_a_share_of_the_cpu_got_in_its_pairs() {
    let mut trial = Trial::new(1, TrialRules::default(), PACE);
    assert_eq!(trial.decide().gain(), 0.0);
    let mut noise = 0.5;
    while let Some(turn) = trial.next(1e3) {
        noise = -noise;
        trial.record(summary([100.0, 110.0][turn.candidate] + noise, 0.0), Vec::new());
    }
    let decision = trial.decide();
    assert!(decision.winner == 1 && decision.pairs.len() > 3, "{decision:?}");
    assert!((decision.gain() - 10.0 / 105.0).abs() < 0.015, "{}", decision.gain());
}

#[test]
fn the_age_of_settings_is_the_time_since_they_took_hold() {
    let mut trial = Trial::new(1, TrialRules::default(), PACE);
    let mut noise = 1.0;
    let (mut held, mut measured_s) = (Vec::new(), 0.0);
    while let Some(turn) = trial.next(1e3) {
        noise = -noise;
        measured_s += turn.window_s;
        let part = trial.part();
        trial.record(
            Summary { seconds: turn.window_s, ..summary([100.0, 110.0][turn.candidate] + noise, 0.0) },
            Vec::new(),
        );
        if part == Part::Hold {
            held.push((turn.settle_s, turn.window_s, trial.in_force.1));
        }
    }
    let (_, window_s, age_s) = held[0];
    assert!(held.len() >= 6 && age_s >= window_s + PACE.settle_s && age_s < 5.0, "{held:?}");
    for two in held.windows(2) {
        assert_eq!(two[1].0, 0.0, "it is in force");
        assert!((two[1].2 - two[0].2 - two[1].1).abs() < 1e-9, "{two:?}");
    }
    let told_s: f64 = trial.decide().verdicts.iter().map(|verdict| verdict.seconds).sum();
    assert!((told_s - measured_s).abs() < 1e-9, "{told_s} {measured_s}");
}

#[test]
fn who_does_not_look_good_when_time_is_up_makes_room_for_the_next() {
    let mut trial = Trial::new(2, TrialRules::default(), PACE);
    let mut noise = [4.0; 3];
    let mut differences = [9.0, -9.0, 9.0, -9.0, -1.0].into_iter().cycle();
    let mut confirmed: Vec<usize> = Vec::new();
    while let Some(turn) = trial.next(1e3) {
        noise[turn.candidate] *= -1.0;
        let got = match trial.part() {
            // Two that cannot be told apart, and neither of which helps.
            Part::Confirmation if turn.candidate == 0 => 100.0,
            Part::Confirmation => 100.0 + differences.next().unwrap(),
            _ => [100.0, 104.0, 104.1][turn.candidate] + noise[turn.candidate],
        };
        trial.record(summary(got, 0.0), Vec::new());
        let verdicts = trial.decide().verdicts;
        let Some(at) = (1..3).find(|c| verdicts[*c].pairs == 5 && !confirmed.contains(c)) else { continue };
        confirmed.push(at);
        assert_eq!(trial.is_worth_more_time(), confirmed.len() == 1, "{verdicts:?}");
        if confirmed.len() == 2 {
            let given_up =
                |c: &usize| trial.decide().verdicts[*c].why.starts_with(&format!("taken back: {UNPROVED}"));
            assert!(confirmed.iter().all(given_up), "{:?}", trial.decide());
            return;
        }
    }
    panic!("one alone was confirmed: {confirmed:?}");
}
