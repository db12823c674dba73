//! A change in force with a clock and a kernel of its own: what is measured is what the kernel has in force.

use std::panic::{AssertUnwindSafe, catch_unwind};

use evenkeel_actuate::fake::{Event, FakeKernel, FakeMedium, World};
use evenkeel_actuate::{Actuator, Options, restore_on};
use evenkeel_base::{Change, Nice, SchedAttr, Setting, Target};
use evenkeel_policy::monitor::Victim;
use evenkeel_policy::requests::RequestTarget;
use evenkeel_policy::window::Rates;
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg32;

use super::*;
use crate::proposals::default_plan;

/// What the change does to each of four tasks' CPU, a factor.
type Truth = [f64; 4];

/// Four tasks that get 40 % of a CPU each.
struct Host {
    world: World,
    tasks: Vec<TaskId>,
    plan: Plan,
    actuator: Actuator<FakeKernel>,
    random: Pcg32,
    truth: Truth,
    now_s: f64,
    /// When windows under the baseline began, and how many under the change there were.
    baselines: Vec<f64>,
    changes: usize,
    /// Of 100 requests in each window, so many are slow: under the baseline, and under the change.
    slow_pct: Option<(f64, f64)>,
}

impl Host {
    fn new(truth: Truth, seed: u64) -> Self {
        let world = World::new(2);
        let tasks: Vec<TaskId> = (10..14).map(|tid| world.add_task(tid, 1)).collect();
        let to = Setting::Sched(SchedAttr { nice: Nice::new(-3), ..SchedAttr::DEFAULT });
        let change = |id: &TaskId| Change { target: Target::Task(*id), to: to.clone(), why: String::new() };
        let plan =
            Plan { name: "nice".into(), changes: tasks.iter().map(change).collect(), ..Plan::default() };
        let medium = Box::new(FakeMedium(world.clone()));
        let actuator = Actuator::open_on(FakeKernel(world.clone()), medium, Options::default()).unwrap().0;
        let random = Pcg32::seed_from_u64(seed);
        Self {
            world,
            tasks,
            plan,
            actuator,
            random,
            truth,
            now_s: 0.0,
            baselines: vec![],
            changes: 0,
            slow_pct: None,
        }
    }

    fn now(&self) -> Now {
        Now { s: self.now_s, wall_ns: 1_000_000_007 + (self.now_s * 1e9) as u64 }
    }

    fn keep(&mut self, decided: Decided) -> KeptChange {
        self.actuator.set(&self.plan.clone(), &|_| true);
        let rules = rules(MonitorRules::default(), &TrialRules::default());
        let now = Now { wall_ns: self.random.random(), ..self.now() };
        KeptChange::new(self.plan.clone(), rules, decided, Objective::new(0.1, false), now)
    }

    fn changed(&self) -> bool {
        let nice = |id: &TaskId| self.world.sched(*id) != Some(Setting::Sched(SchedAttr::DEFAULT));
        let changed = self.tasks.iter().filter(|id| nice(id)).count();
        assert!(changed == 0 || changed == self.tasks.len(), "half of a change is in force");
        changed > 0
    }

    /// A window under what the kernel has in force.
    fn window(&mut self, seconds: f64) -> Summary {
        let changed = self.changed();
        let rates = |(id, factor): (&TaskId, &f64)| {
            let got = 40.0 * if changed { *factor } else { 1.0 } * self.random.random_range(0.97..1.03);
            let rates =
                Rates { got_pct: got, waited_pct: Some(got / 4.0), waits: None, in_scope: true, owner: None };
            (*id, rates)
        };
        Summary::of(seconds, self.tasks.iter().zip(&self.truth).map(rates).collect())
    }

    /// What a service counts in a step's window becomes known in the next one.
    fn requests(&mut self, kept: &mut KeptChange, turn: Turn) {
        let Some((before, under)) = self.slow_pct else { return };
        let service = LatencyTarget {
            name: "web".into(),
            requests: Some(RequestTarget { slow_share: 0.01, bound_s: 0.05 }),
            ..LatencyTarget::default()
        };
        let known = |(from, to): Span| {
            let slow = to.duration_since(from).as_secs_f64();
            Some(vec![Some(Requests { all: 100.0, slow })])
        };
        kept.take_requests(&[service], known);
        if turn.step.measure && !turn.settles {
            let slow = if self.changed() { under } else { before };
            let from = std::time::Instant::now();
            kept.await_requests((from, from + Duration::from_secs_f64(slow)));
        }
    }

    /// One step as the loop takes it.
    fn step(&mut self, kept: &mut KeptChange) -> Option<Leave> {
        let wanted = kept.wanted().cloned().unwrap_or_else(default_plan);
        self.actuator.set(&wanted, &|_| true);
        let turn = kept.turn(self.now());
        let window = (turn.step.measure && !turn.settles).then(|| self.window(turn.left.as_secs_f64()));
        match (&window, self.changed()) {
            (Some(_), true) => self.changes += 1,
            (Some(_), false) => self.baselines.push(self.now_s),
            (None, _) => {}
        }
        assert_eq!(self.changed(), turn.step.arm == Arm::Change, "what is in force is whose turn it is");
        self.now_s = turn.step.until_s;
        self.requests(kept, turn);
        kept.end_step(self.now(), window.as_ref().map(|summary| (summary, [].as_slice())))
    }

    fn until(&mut self, kept: &mut KeptChange, seconds: f64) -> Option<Leave> {
        while self.now_s < seconds {
            if let Some(leave) = self.step(kept) {
                return Some(leave);
            }
        }
        None
    }
}

#[test]
fn blocks_are_at_random_times_and_their_difference_is_the_effect() {
    let mut begins = Vec::new();
    for seed in 0..2 {
        let mut host = Host::new([1.1; 4], seed);
        let wait_p99_ms = Some((-3.0, f64::NEG_INFINITY, f64::INFINITY));
        let mut kept = host.keep(Decided { wait_p99_ms, ..Decided::default() });
        assert_eq!(kept.effect(host.now()).wait_p99_ms.map(|wait| wait.value), Some(-3.0));
        assert_eq!(host.until(&mut kept, 3600.0), None);
        assert!(host.changes >= 4 * (host.baselines.len() - 1), "{} {}", host.changes, host.baselines.len());
        let effect = kept.effect(host.now());
        assert!(effect.held_out && effect.blocks > 5, "{effect:?}");
        assert_eq!(effect.wait_p99_ms, None, "no block has shown it");
        let cpu = effect.cpu_pct.unwrap();
        // However long the machine was suspended, or the clock set, meanwhile.
        assert_eq!(cpu.since_ns, kept.since(host.now()).0);
        assert!(
            cpu.low.unwrap() < 16.0 && cpu.high.unwrap() > 16.0 && (cpu.value - 16.0).abs() < 2.0,
            "{cpu:?}"
        );
        let share = effect.holdout_share.unwrap().value;
        assert!((0.01..0.06).contains(&share), "{share}");
        begins.push(host.baselines.clone());
    }
    assert_ne!(begins[0], begins[1], "two runs have the same blocks");
}

#[test]
fn a_block_that_is_interrupted_leaves_the_change_in_force_and_the_end_leaves_nothing() {
    for ends in [false, true] {
        let mut host = Host::new([1.1; 4], 3);
        let mut kept = host.keep(Decided::default());
        while kept.wanted().is_some() {
            assert_eq!(host.step(&mut kept), None);
        }
        let wanted = kept.wanted().cloned().unwrap_or_else(default_plan);
        host.actuator.set(&wanted, &|_| true);
        assert!(!host.changed());
        if !ends {
            kept.stop_block(host.now());
            assert_eq!(kept.wanted(), Some(&host.plan), "after an interruption the change is wanted");
            assert!(host.until(&mut kept, host.now_s + 600.0).is_none() && !host.baselines.is_empty());
        }
        assert!(host.actuator.close().is_clean());
        assert_eq!(host.world.journal(), None);
        assert!(
            host.tasks.iter().all(|id| host.world.sched(*id) == Some(Setting::Sched(SchedAttr::DEFAULT)))
        );
    }
}

#[test]
fn killed_at_any_operation_of_blocks_everything_goes_back() {
    for at in 20..120 {
        let mut host = Host::new([1.1; 4], 4);
        let mut kept = host.keep(Decided::default());
        host.world.at(at, Event::Crash);
        let world = host.world.clone();
        let tasks = host.tasks.clone();
        // The actuator ends with the unwinding, as a process does.
        drop(catch_unwind(AssertUnwindSafe(move || host.until(&mut kept, 600.0))));
        world.calm();
        let recovery = restore_on(&mut FakeKernel(world.clone()), &mut FakeMedium(world.clone())).unwrap();
        assert!(recovery.report.is_clean(), "{at}: {:?}", recovery.report);
        assert!(tasks.iter().all(|id| world.sched(*id) == Some(Setting::Sched(SchedAttr::DEFAULT))), "{at}");
    }
}

#[test]
fn a_victim_and_a_loss_end_the_change_and_chance_does_not() {
    let mut host = Host::new([1.2, 1.2, 1.2, 0.6], 5);
    let mut kept = host.keep(Decided { gain: 0.05, ..Decided::default() });
    let leave = host.until(&mut kept, 1200.0);
    let Some(Leave::Victims(victims)) = &leave else { panic!("{leave:?}") };
    assert_eq!(victims[0].subject, Subject::Task(host.tasks[3]), "{victims:?}");
    assert!(host.now_s < 300.0, "{}", host.now_s);
    let mut host = Host::new([0.95; 4], 6);
    let mut kept = host.keep(Decided { gain: 0.05, ..Decided::default() });
    let leave = host.until(&mut kept, 7200.0);
    assert!(matches!(leave, Some(Leave::Loss(_) | Leave::NoGain(_))), "{leave:?}");
    let mut host = Host::new([1.05; 4], 7);
    let mut kept = host.keep(Decided { gain: 0.05, ..Decided::default() });
    assert_eq!(host.until(&mut kept, 7200.0), None);
}

#[test]
fn a_change_under_which_more_requests_are_slow_goes_and_one_that_makes_none_slow_stays() {
    let run = |slow_pct| {
        let mut host = Host::new([1.1; 4], 8);
        host.slow_pct = Some(slow_pct);
        let mut kept = host.keep(Decided { gain: 0.05, ..Decided::default() });
        host.until(&mut kept, 7000.0)
    };
    let leave = run((0.5, 8.0));
    let Some(Leave::Victims(victims)) = &leave else { panic!("{leave:?}") };
    assert_eq!(victims[0].subject, Subject::Service("web".into()), "{victims:?}");
    let words = describe(&Leave::Victims(victims.clone()), Unit::CpuGot, |_| String::new());
    assert_eq!(words, "web has 8.0 times as many slow requests");
    for slow_pct in [(0.5, 0.5), (8.0, 0.5), (8.0, 8.0)] {
        assert_eq!(run(slow_pct), None);
    }
}

/// A verdict with these protected waits, ms, and this gain.
fn verdict(protected_ms: &[u64], gain: f64) -> Verdict {
    let gain = evenkeel_base::run::Estimate { value: gain, low: 1.0, high: f64::INFINITY };
    Verdict {
        windows: 8,
        seconds: 8.0,
        pairs: 8,
        evidence: 30.0,
        gain_pct: Some(gain),
        score_gain: Some(gain),
        protected_ns: protected_ms.iter().map(|ms| Some(ms * 1_000_000)).collect(),
        ..Verdict::default()
    }
}

fn decision(found: &[u64], change: &[u64]) -> Decision {
    let seen = |cpu_pct| Seen { seconds: 1.0, score: cpu_pct, cpu_pct, ..Seen::default() };
    Decision {
        winner: 1,
        verdicts: vec![verdict(found, 0.0), verdict(change, 10.0)],
        confirmed: true,
        pairs: vec![(seen(105.0), seen(95.0)); 4],
        objective: Objective::new(0.1, false),
    }
}

#[test]
fn what_protects_somebody_is_never_held_out_and_shows_what_the_decision_measured() {
    for (found, change, protects) in
        [([9, 2], [9, 1], true), ([2, 2], [2, 3], false), ([4, 4], [4, 4], false), ([12, 5], [11, 4], false)]
    {
        let decided = decided(&decision(&found, &change), 0);
        assert_eq!(decided.protects, protects, "{found:?} {change:?}");
        let mut host = Host::new([1.1; 4], 8);
        let kept = host.keep(decided);
        assert_eq!(kept.turn(host.now()).left == Duration::MAX, protects);
        let later = Now { s: 90.0, ..host.now() };
        let effect = kept.effect(later);
        assert!(!effect.held_out);
        assert_eq!(effect.cpu_pct.map(|e| (e.value, e.low, e.high)), Some((10.0, Some(1.0), None)));
    }
    assert!(!decided(&decision(&[], &[]), 0).protects);
    // One whose waits are not known under both is held against nobody's.
    let mut partly = decision(&[3, 5, 1], &[2, 9, 4]);
    let change = |decision: &Decision| decided(decision, 0).wait_p99_ms.map(|change| change.0);
    assert_eq!(change(&partly), Some(4.0));
    partly.verdicts[0].protected_ns[1] = None;
    assert_eq!(change(&partly), Some(1.0));
    (partly.verdicts[0].protected_ns[0], partly.verdicts[1].protected_ns[2]) = (None, None);
    assert_eq!(change(&partly), None);
    // What was decided for services protects them, whatever the 99th percentile of their waits happened to be.
    let services = Decision { objective: Objective::new(0.1, true), ..decision(&[2], &[3]) };
    let decided = decided(&services, 0);
    assert_eq!((decided.protects, decided.unit), (true, Unit::LogDelay));
}

/// Delays are halved by the change, and later by nothing: what is held out must notice.
#[test]
fn a_change_for_services_is_held_out_where_that_is_allowed_and_judged_by_their_delays() {
    let services = Decision { objective: Objective::new(0.1, true), ..decision(&[2], &[1]) };
    let known = decided(&services, 0);
    for (share, gain, leaves) in [(0.0, 0.0, false), (0.2, 0.0, true), (0.2, 0.7, false)] {
        let rules = MonitorRules {
            protecting_share: share,
            ..rules(MonitorRules::default(), &TrialRules::default())
        };
        let now = Now { s: 0.0, wall_ns: 1 };
        let mut kept =
            KeptChange::new(Plan::default(), rules, known.clone(), services.objective.clone(), now);
        assert_eq!(kept.is_held_out(), share > 0.0);
        let mut at = now;
        let mut leave = None;
        for number in 0..2000_u64 {
            let step = kept.turn(at).step;
            if !step.until_s.is_finite() || leave.is_some() {
                break;
            }
            at.s = step.until_s;
            // Waits of 4 ms each; half as long with a change that helps. Their number varies by a tenth.
            let short = if step.arm == Arm::Change { f64::exp(-gain) } else { 1.0 };
            let mut waits = Histogram::default();
            for _ in 0..(200 + number * 7 % 20) {
                waits.add((4e6 * short) as u64);
            }
            let summary = Summary { seconds: 3.0, got_pct: 100.0, ..Summary::default() };
            leave = kept.end_step(at, step.measure.then_some((&summary, &[Some(waits)][..])));
        }
        assert_eq!(leave.is_some(), leaves, "{share} {gain}: {leave:?}");
        if let Some(leave) = leave {
            let words = describe(&leave, kept.unit(), |_| String::new());
            assert!(words.contains("requests to services are delayed"), "{words}");
        }
    }
}

#[test]
fn what_makes_fewer_requests_slow_protects_somebody_too() {
    let protects = |found: f64, change: f64| {
        let mut decision = decision(&[2], &[2]);
        for (verdict, slow) in decision.verdicts.iter_mut().zip([found, change]) {
            verdict.requests = vec![vec![Requests { all: 100.0, slow }]];
        }
        decided(&decision, 0).protects
    };
    assert_eq!([protects(8.0, 2.0), protects(2.0, 2.0), protects(2.0, 3.0)], [true, false, false]);
    assert!(!protects(2.2, 2.0), "chance alone");
}

#[test]
fn the_decisions_pairs_count_where_they_are_against_the_host_as_found() {
    let decision = decision(&[], &[]);
    let known = decided(&decision, 0);
    assert_eq!((known.pairs.len(), known.gain), (4, 0.1));
    let other = decided(&Decision { winner: 0, ..decision }, 1);
    assert_eq!((other.pairs.len(), other.cpu_pct), (0, None));
}

#[test]
fn a_reason_names_who_is_hurt_and_how() {
    let id = TaskId { tgid: 7, tid: 8, start_time: 1 };
    let victim = |subject, loss, ratio| Victim { subject, loss, ratio, evidence: 9000.0 };
    let victims = vec![victim(Subject::Task(id), Loss::Cpu, 0.6), victim(Subject::Outside, Loss::Wait, 2.5)];
    let words = describe(&Leave::Victims(victims), Unit::CpuGot, |id| format!("{} db", id.tid));
    assert_eq!(words, "8 db gets 40 % less CPU, everything outside the scope waits 2.5 times as long");
    assert!(
        describe(&Leave::NoGain(0.004), Unit::CpuGot, |_| String::new())
            .contains("0.4 % of the CPU got at most")
    );
    // The score has waits in it: CPU alone may be the same.
    let worse = describe(&Leave::Loss(25.0), Unit::CpuGot, |_| String::new());
    assert!(worse.contains("CPU and waits together get worse (evidence 25 to 1)"), "{worse}");
}

#[test]
fn few_waits_have_no_percentile() {
    let waits = Histogram::of(&[(1_000_000, ENOUGH - 1)]);
    assert_eq!(p99_ms(&[Some(waits.clone())]), None);
    assert!(p99_ms(&[Some(waits.clone()), Some(waits.clone())]).is_some_and(|ms| ms >= 1.0));
    assert_eq!(p99_ms(&[Some(waits), None]), None);
    assert_eq!(p99_ms(&[]), None);
}
