//! Courses of what services get, wait for and are held back from, with the truth of what was done to them. A third are real
//! seconds put together again (`recorded.rs`), the others are made up.
//!
//! The model, a second at a time. A service has `threads` that want to run on `cpus` CPUs for a part of the time. While they
//! want to, its quota holds them back for a part `held` of it, and of the rest they get a part `share` of their CPUs: others
//! have the remainder. With `span = min(threads, cpus)`:
//!
//! ```text
//! slowdown  = 1 / ((1 - held) * share)            against being alone and without a quota
//! active    = min(1, wants * slowdown)            what is not done is still to be done
//! cpu       = active * span / slowdown            CPU seconds a second
//! throttled = active * span * held                summed over CPUs, as the kernel has it
//! wait      = active * (threads * held + (1 - held) * (threads - span * share))   summed over threads
//! ```
//!
//! The last line is as a kernel counts: throttled threads wait, too, and threads of one service wait for each other. All of
//! it goes up and down with the seconds.

use std::collections::BTreeSet;

use rand::Rng;
use rand_pcg::Pcg64;

use super::recorded;

/// Seconds before and after a scene, in which nothing is wrong.
const CALM: usize = 480;
/// Seconds of an episode.
pub const LENGTH: usize = 1920;

/// Slowdown from which on a quota is harmful.
pub const HARMFUL_QUOTA: f64 = 1.5;
/// Slowdown from which on others are.
pub const STARVED: f64 = 2.0;
/// Least that is lost, CPU seconds a second, to a quota and to others.
const LOST: (f64, f64) = (0.1, 0.2);

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scene {
    HarmlessThrottling,
    HarmfulThrottling,
    Neighbour,
    Steal,
    Overload,
    Idle,
}

const SCENES: [Scene; 6] = [
    Scene::HarmlessThrottling,
    Scene::HarmfulThrottling,
    Scene::Neighbour,
    Scene::Steal,
    Scene::Overload,
    Scene::Idle,
];

/// What is wrong with whom: a kind of notice, and the service; `None` for the host.
pub type Fault = (&'static str, Option<usize>);

/// What a service did in a second: CPU seconds, thread seconds, CPU seconds.
#[derive(Debug, Clone, Copy, Default)]
pub struct Second {
    pub cpu: f64,
    pub wait: f64,
    pub throttled: f64,
}

/// Some minutes of a host.
#[derive(Debug, Clone)]
pub struct Episode {
    pub scene: Scene,
    pub faults: BTreeSet<Fault>,
    pub cpus: u32,
    pub services: Vec<Vec<Second>>,
    /// CPU seconds a second, of all CPUs.
    pub busy: Vec<f64>,
    pub stolen: Vec<f64>,
}

/// See the model.
#[derive(Debug, Clone, Copy)]
struct Service {
    threads: f64,
    cpus: f64,
    wants: f64,
    held: f64,
    share: f64,
}

impl Service {
    fn active(&self) -> f64 {
        (self.wants / ((1.0 - self.held) * self.share)).min(1.0)
    }

    fn second(&self) -> Second {
        let (active, span) = (self.active(), self.threads.min(self.cpus));
        Second {
            cpu: active * span * (1.0 - self.held) * self.share,
            wait: active
                * (self.threads * self.held + (1.0 - self.held) * (self.threads - span * self.share)),
            throttled: active * span * self.held,
        }
    }

    /// What is wrong with it, by the definition.
    fn fault(&self) -> Option<&'static str> {
        let active_span = self.active() * self.threads.min(self.cpus);
        let by_quota = 1.0 / (1.0 - self.held) >= HARMFUL_QUOTA && active_span * self.held >= LOST.0;
        let by_others = 1.0 / self.share >= STARVED && active_span * (1.0 - self.share) >= LOST.1;
        if by_quota { Some("throttled") } else { by_others.then_some("starved") }
    }

    /// The same with the unevenness of a second.
    fn uneven(&self, rng: &mut Pcg64) -> Self {
        Self {
            wants: (self.wants * lognormal(rng, 0.25)).min(1.0),
            held: (self.held * lognormal(rng, 0.2)).min(0.97),
            share: self.share.powf(lognormal(rng, 0.2)),
            ..*self
        }
    }
}

/// About normal on a logarithmic scale.
fn lognormal(rng: &mut Pcg64, sigma: f64) -> f64 {
    let sum: f64 = (0..6).map(|_| rng.random_range(-1.0..1.0)).sum();
    (sum * sigma / 2.0_f64.sqrt()).exp()
}

fn log_between(rng: &mut Pcg64, least: f64, most: f64) -> f64 {
    (rng.random_range(least.ln()..most.ln())).exp()
}

/// A service with which nothing is wrong: it may run everywhere, and seldom wants to with more threads than there are CPUs.
fn healthy(rng: &mut Pcg64, cpus: u32) -> Service {
    Service {
        threads: f64::from(rng.random_range(1..=cpus + cpus / 2)),
        cpus: f64::from(cpus),
        wants: log_between(rng, 0.03, 0.5),
        held: 0.0,
        share: rng.random_range(0.85..1.0),
    }
}

/// The services of a scene, and the share of all CPUs that is stolen.
fn draw(rng: &mut Pcg64, scene: Scene, cpus: u32) -> (Vec<Service>, f64) {
    let others = rng.random_range(0..=2);
    let mut services: Vec<Service> = (0..=others).map(|_| healthy(rng, cpus)).collect();
    let mut stolen = 0.0;
    let all = f64::from(cpus);
    let first = &mut services[0];
    match scene {
        Scene::Idle => {
            for service in &mut services {
                service.wants = log_between(rng, 0.001, 0.03);
                service.share = rng.random_range(0.5..1.0);
            }
        }
        Scene::HarmlessThrottling => {
            first.wants = rng.random_range(0.1..0.7);
            first.held = 1.0 - 1.0 / rng.random_range(1.02..1.45);
        }
        Scene::HarmfulThrottling => {
            first.threads = f64::from(rng.random_range(1..=3 * cpus));
            first.held = 1.0 - 1.0 / log_between(rng, 1.55, 6.0);
            first.wants = rng.random_range(0.3..0.9);
        }
        Scene::Neighbour => {
            let slow =
                if rng.random_bool(0.7) { log_between(rng, 2.1, 8.0) } else { rng.random_range(1.05..1.9) };
            first.share = 1.0 / slow;
            first.wants = rng.random_range(0.3..0.9);
            // Whoever has the rest, on the same CPUs.
            let rest = (1.0 - first.share).max(0.05);
            let neighbour = Service { threads: first.cpus, wants: 1.0, share: rest.max(0.55), ..*first };
            services.push(neighbour);
        }
        Scene::Steal => {
            stolen = if rng.random_bool(0.7) {
                log_between(rng, 0.07, 0.4)
            } else {
                log_between(rng, 0.001, 0.035)
            };
        }
        Scene::Overload => {
            if rng.random_bool(0.25) {
                // One that fills the host with its own threads: nobody else is at fault.
                services.truncate(1);
                let threads = all * f64::from(rng.random_range(2..=4_u32));
                services[0] =
                    Service { threads, cpus: all, wants: 1.0, held: 0.0, share: rng.random_range(0.9..1.0) };
            } else {
                // Three and more that want everything, or two that nearly get what they want.
                let harmful = rng.random_bool(0.7);
                let count = if harmful { rng.random_range(3..=5) } else { 2 };
                services = vec![healthy(rng, cpus); count];
                for service in &mut services {
                    let slow = if harmful {
                        count as f64 * rng.random_range(0.85..1.2)
                    } else {
                        rng.random_range(1.05..1.6)
                    };
                    service.threads = f64::from(rng.random_range(1..=3_u32)) * all;
                    (service.wants, service.share) = (if harmful { 0.9 } else { 0.45 }, 1.0 / slow);
                }
            }
        }
    }
    (services, stolen)
}

impl Episode {
    /// Draws a scene and what it looks like; a third of them are real ones.
    pub fn draw(rng: &mut Pcg64) -> Self {
        let end = CALM + rng.random_range(720..=960);
        if rng.random_bool(1.0 / 3.0) {
            return recorded::replay(rng, CALM..end);
        }
        let scene = SCENES[rng.random_range(0..SCENES.len())];
        let cpus = [2, 4, 8][rng.random_range(0..3)];
        let (services, stolen_share) = draw(rng, scene, cpus);
        let mut faults: BTreeSet<Fault> = BTreeSet::new();
        faults.extend(services.iter().enumerate().filter_map(|(at, one)| Some((one.fault()?, Some(at)))));
        faults.extend((stolen_share >= 0.05).then_some(("steal", None)));
        // Where nothing lasts, something may pass.
        let burst = (faults.is_empty() && rng.random_bool(0.3)).then(|| {
            let begin = rng.random_range(CALM..end - 60);
            begin..begin + rng.random_range(20..40)
        });
        let calm = |one: &Service| Service {
            threads: one.threads.min(f64::from(cpus)),
            held: 0.0,
            share: one.share.max(0.9),
            wants: one.wants.min(0.3),
            ..*one
        };
        let calm: Vec<Service> = services.iter().map(calm).collect();
        let period = rng.random_range(60.0..600.0);
        let mut episode =
            Self { scene, faults, cpus, services: Vec::new(), busy: Vec::new(), stolen: Vec::new() };
        episode.services = vec![Vec::with_capacity(LENGTH); services.len()];
        for second in 0..LENGTH {
            let at_work = (CALM..end).contains(&second);
            let wave = 1.0 + 0.25 * (second as f64 / period * std::f64::consts::TAU).sin();
            let mut busy = 0.02 * f64::from(cpus);
            for (at, seconds) in episode.services.iter_mut().enumerate() {
                let mut now = if at_work { services[at] } else { calm[at] };
                now.wants = (now.wants * wave).min(1.0);
                if burst.as_ref().is_some_and(|burst| burst.contains(&second)) {
                    now.share /= 4.0;
                }
                let did = now.uneven(rng).second();
                busy += did.cpu;
                seconds.push(did);
            }
            let stolen = if at_work { stolen_share } else { 0.0 } * f64::from(cpus) * lognormal(rng, 0.4);
            episode.stolen.push(stolen.min(f64::from(cpus)));
            episode.busy.push(busy.min(f64::from(cpus)));
        }
        episode
    }
}
