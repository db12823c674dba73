//! Is the right culprit named? Antagonists of every kind are put in a victim's way, and the matrix of `serve --blame` must
//! name them, and nobody else. Needs root.
//!
//! The short form injects each kind once. `make antagonists` sets `EVENKEEL_ANTAGONISTS=100`: that many, of random kinds at
//! random times, each named within ten seconds, and quiet between them.

#[path = "serve/agent.rs"]
#[allow(dead_code)]
mod agent;
#[path = "antagonists/inject.rs"]
mod inject;
#[path = "antagonists/judge.rs"]
mod judge;
#[path = "antagonists/long.rs"]
mod long;

use std::time::{Duration, Instant};

use agent::Serve;
use evenkeel_linux::testing::until;
use inject::{Kind, Scene, now_s};
use judge::Readings;
use rand::SeedableRng;

fn watching() -> Serve {
    let serve = Serve::start(&["--no-history", "--blame"]);
    until("the programs are loaded", || !serve.get("/api/live", "").1.contains("\"blame\":null"));
    serve
}

#[test]
fn whoever_takes_a_victims_time_is_named() {
    if let Some(count) = std::env::var("EVENKEEL_ANTAGONISTS").ok().and_then(|count| count.parse().ok()) {
        return long::run(count);
    }
    let mut scene = Scene::start();
    let serve = watching();
    let mut rng = rand_pcg::Pcg64::seed_from_u64(17);
    // Who used up a quota is who ran most since the last reading, so that one takes longest.
    let length = |kind: Kind| match kind {
        Kind::OwnQuota | Kind::Steal => 700,
        Kind::SiblingsQuota => 3500,
        _ => 1800,
    };
    let mut injected = Vec::new();
    let mut missing = Kind::ALL.to_vec();
    let until = Instant::now() + Duration::from_secs(90);
    for round in 1.. {
        for kind in &missing {
            injected.push(scene.inject(*kind, Duration::from_millis(round * length(*kind)), &mut rng));
        }
        // The counters are read every five seconds.
        let read = Instant::now() + Duration::from_secs(8);
        let taken = loop {
            let mut readings = Readings::default();
            readings.take(&serve, &scene.victim());
            let taken = readings.grown(0.0, now_s());
            let is_named =
                |kind: &Kind| injected.iter().any(|one| one.kind == *kind && taken.contains_key(&one.name));
            missing.retain(|kind| !is_named(kind));
            if missing.is_empty() {
                return;
            }
            if Instant::now() > read {
                break taken;
            }
            std::thread::sleep(Duration::from_millis(200));
        };
        // A host that has no time for them lets them take too little to be named: once more, and longer.
        assert!(Instant::now() < until, "{missing:?} of {injected:#?} are not in {taken:#?}");
    }
}
