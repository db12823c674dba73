//! Are notices and alerts right? Labelled minutes: 60 episodes on which the bounds were tuned, 40 others by which they are
//! judged. `make alerts` prints both figures; single ones of the 40 are not looked at.

mod recorded;
mod rules;
mod scene;

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_base::{GroupView, Observation, TaskId, TaskView, Topology};
use rand::SeedableRng;
use rand_pcg::Pcg64;

use super::super::owners::Owners;
use super::Notices;
use scene::{Episode, Fault, LENGTH, Scene};

/// Seed and number of those to tune on, and of those to judge by.
const TUNED_ON: (u64, usize) = (2061, 60);
const JUDGED: (u64, usize) = (91_725, 40);

/// The first of them only, unless `EVENKEEL_ALERTS=all`: in a debug build each takes a second.
const SHORT: usize = 8;

fn drawn((seed, count): (u64, usize)) -> Vec<Episode> {
    let all = std::env::var("EVENKEEL_ALERTS").is_ok_and(|which| which == "all");
    let mut rng = Pcg64::seed_from_u64(seed);
    (0..if all { count } else { SHORT }).map(|_| Episode::draw(&mut rng)).collect()
}

/// How often it was right.
#[derive(Debug, Default, PartialEq)]
struct Score {
    right: usize,
    false_alarms: usize,
    missed: usize,
}

impl Score {
    fn precision(&self) -> f64 {
        self.right as f64 / (self.right + self.false_alarms).max(1) as f64
    }

    fn recall(&self) -> f64 {
        self.right as f64 / (self.right + self.missed).max(1) as f64
    }
}

/// Compares what was told with the truth; prints what was wrong where it may be looked at.
fn score(name: &str, episodes: &[Episode], told: &[BTreeSet<Fault>], looks: bool) -> Score {
    let mut score = Score::default();
    let mut by_scene: BTreeMap<Scene, usize> = BTreeMap::new();
    for (at, (episode, told)) in episodes.iter().zip(told).enumerate() {
        *by_scene.entry(episode.scene).or_default() += 1;
        score.right += told.intersection(&episode.faults).count();
        let (falsely, missed): (Vec<_>, Vec<_>) =
            (told.difference(&episode.faults).collect(), episode.faults.difference(told).collect());
        score.false_alarms += falsely.len();
        score.missed += missed.len();
        if looks && !(falsely.is_empty() && missed.is_empty()) {
            println!("  {name} {at} {:?}: false {falsely:?}, missed {missed:?}", episode.scene);
            for service in &episode.services {
                let mean = |pick: fn(&scene::Second) -> f64| {
                    service[600..1200].iter().map(pick).sum::<f64>() / 600.0
                };
                println!(
                    "    cpu {:.2} wait {:.2} throttled {:.2}",
                    mean(|s| s.cpu),
                    mean(|s| s.wait),
                    mean(|s| s.throttled)
                );
            }
        }
    }
    println!(
        "{name}: {} right, {} false, {} missed: precision {:.1} %, recall {:.1} % ({by_scene:?})",
        score.right,
        score.false_alarms,
        score.missed,
        100.0 * score.precision(),
        100.0 * score.recall()
    );
    score
}

/// A host on which nobody is, seen at this time.
pub(crate) fn nobody(wall_ns: u64) -> Observation {
    Observation { wall_ns, ..host(1, 0) }
}

/// A host with so many services of a task each.
pub(crate) fn host(cpus: u32, services: usize) -> Observation {
    let task = |at: usize| {
        let id = TaskId { tgid: at as u32 + 1, tid: at as u32 + 1, start_time: 0 };
        TaskView { group: Some(at as u32), ..TaskView::of(id, "") }
    };
    Observation {
        tasks: (0..services).map(task).collect(),
        groups: (0..services).map(|at| GroupView::of(format!("/s{at}"), None, true)).collect(),
        ..Observation::of(Topology::synthetic(1, 1, cpus, 1))
    }
}

/// What is told of an episode, and how often more than once.
fn told(episode: &Episode) -> (BTreeSet<Fault>, usize) {
    let (mut owners, mut notices) = (Owners::default(), Notices::default());
    let mut seen = host(episode.cpus, episode.services.len());
    let (mut told, mut again) = (BTreeSet::new(), 0);
    for second in 0..LENGTH {
        seen.wall_ns += 1_000_000_000;
        seen.host.busy_pct = 100.0 * episode.busy[second];
        seen.host.steal_pct = Some(100.0 * episode.stolen[second]);
        for (at, service) in episode.services.iter().enumerate() {
            seen.tasks[at].cpu_pct = 100.0 * service[second].cpu;
            seen.tasks[at].wait_pct = Some(100.0 * service[second].wait);
            seen.groups[at].throttled_pct = Some(100.0 * service[second].throttled);
        }
        owners.observe(&seen);
        for notice in notices.judge(&seen, Some(&owners), &[]).into_iter().filter(|notice| !notice.over) {
            let service = notice.what.strip_prefix("/s").map(|number| number.parse().unwrap());
            again += usize::from(!told.insert((notice.kind, service)));
        }
    }
    (told, again)
}

fn good(score: &Score) -> bool {
    score.precision() >= 0.95 && score.recall() >= 0.9
}

#[test]
fn notices_are_right_on_labelled_minutes() {
    for (which, set, looks) in [("tuned on", TUNED_ON, true), ("judged", JUDGED, false)] {
        let episodes = drawn(set);
        let (all, again): (Vec<_>, Vec<_>) = episodes.iter().map(told).unzip();
        let score = score(&format!("notices, {which}"), &episodes, &all, looks);
        let again: usize = again.iter().sum();
        println!("  told once more in the same episode: {again}");
        assert!(good(&score) && again * 20 <= score.right, "{which}: {score:?}, {again} told again");
    }
}

#[test]
fn prometheus_rules_are_right_on_labelled_minutes() {
    for (which, set, looks) in [("tuned on", TUNED_ON, true), ("judged", JUDGED, false)] {
        let episodes = drawn(set);
        let score = score(&format!("rules, {which}"), &episodes, &rules::judge(&episodes), looks);
        assert!(good(&score), "{which}: {score:?}");
    }
}
