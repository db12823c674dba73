//! Seconds of real scenes, as `scripts/serve/record_scenes.py` read them from `/metrics`, put together again: where they begin and
//! how much is done differ from episode to episode.

use std::ops::Range;

use rand::Rng;
use rand_pcg::Pcg64;

use super::scene::{Episode, LENGTH, Scene, Second};

/// A second of the victim, and what all CPUs did.
type Seen = (Second, f64);

/// What was recorded of one scene.
#[derive(Debug, Clone)]
struct Recording {
    scene: Scene,
    wrong: Option<&'static str>,
    cpus: u32,
    seconds: Vec<Seen>,
}

fn recordings() -> Vec<(String, Recording)> {
    let mut all: Vec<(String, Recording)> = Vec::new();
    for line in include_str!("scenes.csv").lines().skip(1) {
        let fields: Vec<&str> = line.split(',').collect();
        let number = |at: usize| fields[at].parse::<f64>().unwrap();
        let name = fields[0];
        if all.last().is_none_or(|(last, _)| last != name) {
            let scene = match name.split('-').collect::<Vec<_>>()[..] {
                ["harmless", ..] => Scene::HarmlessThrottling,
                ["harmful", ..] => Scene::HarmfulThrottling,
                ["neighbour", ..] => Scene::Neighbour,
                ["idle"] => Scene::Idle,
                _ => Scene::Overload,
            };
            let wrong = match fields[1] {
                "throttled" => Some("throttled"),
                "starved" => Some("starved"),
                _ => None,
            };
            let recording = Recording { scene, wrong, cpus: number(2) as u32, seconds: Vec::new() };
            all.push((name.to_owned(), recording));
        }
        let second = Second { cpu: number(3), wait: number(4), throttled: number(5) };
        all.last_mut().unwrap().1.seconds.push((second, number(6)));
    }
    all
}

/// An episode of a scene drawn from the recordings; before and after it, the idle one.
pub fn replay(rng: &mut Pcg64, scene_at: Range<usize>) -> Episode {
    let all = recordings();
    let idle = all.iter().find(|(name, _)| name == "idle").map(|(_, idle)| idle.clone()).unwrap();
    let (_, recording) = &all[rng.random_range(0..all.len())];
    let much = rng.random_range(0.9..1.1);
    let (mut services, mut busy) = (Vec::with_capacity(LENGTH), Vec::with_capacity(LENGTH));
    let mut at = 0;
    for second in 0..LENGTH {
        let of = if scene_at.contains(&second) { recording } else { &idle };
        // Some seconds in a row, then others.
        at = if rng.random_bool(0.1) { rng.random_range(0..of.seconds.len()) } else { at + 1 };
        let (seen, all_cpus) = of.seconds[at % of.seconds.len()];
        services.push(Second {
            cpu: seen.cpu * much,
            wait: seen.wait * much,
            throttled: seen.throttled * much,
        });
        busy.push(all_cpus);
    }
    Episode {
        scene: recording.scene,
        faults: recording.wrong.map(|wrong| (wrong, Some(0))).into_iter().collect(),
        cpus: recording.cpus,
        services: vec![services],
        busy,
        stolen: vec![0.0; LENGTH],
    }
}
