//! Made-up demonstrations: blocks of a world that is known, in the document as the program fills it in.

use evenkeel_report::demo::{
    Arm, DemoChange, DemoReport, DemoRun, DemoStage, DemoTask, Kind, PutBack, Role, Scene,
};

use crate::shared::Random;

/// What the blocks of one run come from.
#[derive(Debug, Clone, Copy)]
pub struct World {
    pub rounds: usize,
    pub default: f64,
    pub win: f64,
    pub ceiling: f64,
    pub noise: f64,
    /// What others take in a round, from all arms alike.
    pub drift: f64,
    pub cut_short: f64,
    pub recipe: bool,
    pub changed: bool,
}

pub fn world(r: &mut Random) -> World {
    let default = 0.5 + 0.49 * r.uniform();
    World {
        rounds: r.pick(&[0, 1, 2, 3, 4, 5, 6, 6]),
        default,
        win: r.pick(&[0.0, 0.0, 0.002, 0.01, 0.05, 0.2, -0.05]),
        ceiling: r.pick(&[0.0, 0.001, 0.02, 0.2]),
        noise: r.pick(&[0.0, 0.001, 0.005, 0.02, 0.1]),
        drift: r.pick(&[0.0, 0.0, 0.3]),
        cut_short: r.pick(&[0.0, 0.0, 0.1, 0.5]),
        recipe: r.uniform() < 0.8,
        changed: r.uniform() < 0.8,
    }
}

/// Blocks of one run: a row an arm.
pub fn blocks(world: &World, r: &mut Random) -> Vec<Arm> {
    let mut arms = vec![(Role::Default, world.default)];
    if world.recipe {
        arms.push((Role::Recipe, world.default - 0.01));
    }
    if world.changed {
        arms.push((Role::Final, world.default + world.win));
    }
    arms.push((Role::Ceiling, world.default + world.ceiling));
    let mut out: Vec<Arm> = arms.iter().map(|(role, _)| Arm { role: *role, blocks: Vec::new() }).collect();
    for _ in 0..world.rounds {
        let drift = world.drift * r.uniform();
        for (arm, (_, mean)) in out.iter_mut().zip(&arms) {
            let value = mean - drift + world.noise * r.normal();
            arm.blocks.push((r.uniform() >= world.cut_short).then_some(value));
        }
    }
    out
}

fn stages(arms: &[Arm], changed: Option<bool>, length: f64, r: &mut Random) -> Vec<DemoStage> {
    let mut out = vec![DemoStage {
        name: "trial".into(),
        role: Role::Trial,
        start_s: 3.0,
        seconds: 18.0,
        kept: changed,
        note: "made up".into(),
        ..DemoStage::default()
    }];
    for round in 0..arms[0].blocks.len() {
        for arm in arms {
            let fulfilment = arm.blocks[round];
            out.push(DemoStage {
                name: arm.role.name().into(),
                role: arm.role,
                start_s: 20.0 + out.len() as f64,
                seconds: length,
                fulfilment,
                fulfilment_interval: fulfilment.map(|f| [f - 0.01, f + 0.01]),
                cpu_pct: fulfilment.map(|f| 150.0 * f + r.uniform()),
                ..DemoStage::default()
            });
        }
    }
    out
}

/// A demonstration with the blocks of each run.
pub fn report(r: &mut Random) -> (DemoReport, Vec<Vec<Arm>>) {
    let scenes = [Scene::OneCgroupFixed, Scene::OneCgroupJittered, Scene::CgroupEach];
    let length = r.pick(&[1.6, 1.6, 3.2]);
    let (mut runs, mut all, mut changes) = (Vec::new(), Vec::new(), 0);
    for number in 0..r.pick(&[0usize, 1, 2, 6, 6, 12]) {
        let world = world(r);
        let arms = blocks(&world, r);
        let tried = world.changed || r.uniform() < 0.7;
        let mut run = DemoRun {
            scene: scenes[number / 2 % 3],
            kind: [Kind::Closed, Kind::Wall][number % 2],
            wanted_pct: 150.0,
            seconds_to_settle: (r.uniform() < 0.9).then(|| 10.0 + 30.0 * r.uniform()),
            choice: if world.changed { format!("choice {number}") } else { "kernel default".into() },
            why: format!("reason {number}"),
            stages: stages(&arms, tried.then_some(world.changed), length, r),
            tasks: vec![DemoTask { name: "a".into(), wanted_pct: 15.0, got_pct: vec![] }],
            ..DemoRun::default()
        };
        if world.changed {
            let one = |n: usize| DemoChange {
                target: format!("task {n}"),
                knob: "nice".into(),
                ..DemoChange::default()
            };
            run.changes = (0..1 + number % 4).map(one).collect();
        }
        changes += run.changes.len() as u64;
        if r.uniform() < 0.3 {
            run.missed.push(format!("the hypervisor stole up to {number} % of a CPU during this run"));
        }
        run.compare(&arms);
        runs.push(run);
        all.push(arms);
    }
    let left = r.pick(&[0usize, 0, 0, 1, 2]);
    let put_back = PutBack {
        changes,
        verified: changes.saturating_sub(left as u64 + u64::from(r.uniform() < 0.2)),
        left: (0..left).map(|n| format!("Task {n} nice: gone")).collect(),
    };
    (DemoReport { cpus: 2, runs, put_back, ..DemoReport::new() }, all)
}
