//! What a run leaves to its successor next to the journal: which of its changes belong to which decision, what that decision
//! knew, and how much of the error budget is spent.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_actuate::journal::{seal, unseal};
use evenkeel_base::{BootId, CpuSet, Plan};
use evenkeel_policy::monitor::{Decided, OnlineControl, Seen};
use evenkeel_policy::requests::Requests;
use evenkeel_policy::trial::{Decision, Objective};
use serde::{Deserialize, Serialize};

use crate::config::Config;

const VERSION: u32 = 1;

/// What a run leaves to its successor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    version: u32,
    boot: BootId,
    pid: u32,
    /// The one that wrote what this goes on from.
    #[serde(skip)]
    pub before: Option<u32>,
    /// Everything that changes what may be decided, by name.
    configuration: BTreeMap<String, String>,
    pub control: OnlineControl,
    pub trials: u32,
    /// A decision has come as far as fresh pairs: should it never fall, its budget is spent all the same.
    pub confirming: bool,
    pub barred: BTreeSet<String>,
    pub kept: Option<Proved>,
}

/// A change that was kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Proved {
    pub plan: Plan,
    /// Process of the run that decided.
    pub pid: u32,
    /// When, wall clock, nanoseconds since 1970.
    pub at_ns: u64,
    /// The decision in words, with the estimate and what is claimed.
    pub why: String,
    gain: f64,
    cpu_pct: Option<Bounded>,
    wait_p99_ms: Option<Bounded>,
    protects: bool,
    /// Windows of the proof, under the change and under the baseline.
    pairs: Vec<(Window, Window)>,
    pub objective: Objective,
    /// Waits under the baseline, of each service: 99th percentile, nanoseconds.
    pub protected_ns: Vec<Option<u64>>,
    pub requests: Vec<Vec<Requests>>,
    /// CPU of the scope and the CPUs online, for which it was chosen.
    pub basis: Option<(f64, CpuSet)>,
}

/// An estimate whose ends may not be known: JSON knows no infinity.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Bounded {
    value: f64,
    low: Option<f64>,
    high: Option<f64>,
}

/// A window without who was in it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
struct Window {
    seconds: f64,
    score: f64,
    cpu_pct: f64,
}

impl Bounded {
    fn of((value, low, high): (f64, f64, f64)) -> Option<Self> {
        let finite = |end: f64| end.is_finite().then_some(end);
        Some(Self { value: finite(value)?, low: finite(low), high: finite(high) })
    }

    fn ends(self) -> (f64, f64, f64) {
        (self.value, self.low.unwrap_or(f64::NEG_INFINITY), self.high.unwrap_or(f64::INFINITY))
    }
}

impl Window {
    fn of(seen: &Seen) -> Option<Self> {
        let is_known = [seen.seconds, seen.score, seen.cpu_pct].iter().all(|value| value.is_finite());
        is_known.then_some(Self { seconds: seen.seconds, score: seen.score, cpu_pct: seen.cpu_pct })
    }

    fn seen(self) -> Seen {
        Seen { seconds: self.seconds, score: self.score, cpu_pct: self.cpu_pct, ..Seen::default() }
    }
}

impl Proved {
    /// What is to be known of a decision's winner; `default` is the candidate that was the baseline.
    pub fn new(plan: &Plan, decision: &Decision, default: usize, decided: &Decided, at_ns: u64) -> Self {
        let pairs = decided.pairs.iter().filter_map(|(new, old)| Some((Window::of(new)?, Window::of(old)?)));
        let baseline = decision.verdicts.get(default);
        Self {
            plan: plan.clone(),
            pid: std::process::id(),
            at_ns,
            why: decision
                .verdicts
                .get(decision.winner)
                .map_or_else(String::new, |verdict| verdict.why.clone()),
            gain: if decided.gain.is_finite() { decided.gain } else { 0.0 },
            cpu_pct: decided.cpu_pct.and_then(Bounded::of),
            wait_p99_ms: decided.wait_p99_ms.and_then(Bounded::of),
            protects: decided.protects,
            pairs: pairs.collect(),
            objective: decision.objective.clone(),
            protected_ns: baseline.map_or_else(Vec::new, |verdict| verdict.protected_ns.clone()),
            requests: baseline.map_or_else(Vec::new, |verdict| verdict.requests.clone()),
            basis: None,
        }
    }

    /// What the decision knew. Who was in its windows is not: victims are looked for in fresh ones.
    pub fn decided(&self) -> Decided {
        Decided {
            unit: self.objective.unit(),
            gain: self.gain,
            cpu_pct: self.cpu_pct.map(Bounded::ends),
            wait_p99_ms: self.wait_p99_ms.map(Bounded::ends),
            pairs: self.pairs.iter().map(|(new, old)| (new.seen(), old.seen())).collect(),
            protects: self.protects,
        }
    }
}

impl Remembered {
    pub fn new(boot: BootId, config: &Config) -> Self {
        Self {
            version: VERSION,
            boot,
            pid: std::process::id(),
            before: None,
            configuration: configuration(config),
            // Half of a run's budget is its first decision's.
            control: OnlineControl::new(2.0 * config.rules.alpha),
            trials: 0,
            confirming: false,
            barred: BTreeSet::new(),
            kept: None,
        }
    }

    /// As a line with a checksum.
    pub fn line(&self) -> Vec<u8> {
        seal(self)
    }

    /// Goes on with what the run before left. Neither its changes nor its budget count where this says why not.
    pub fn go_on_from(&mut self, line: &[u8]) -> Result<(), String> {
        let damaged = || "what it remembered of its decisions is damaged".to_owned();
        let line = line.strip_suffix(b"\n").ok_or_else(damaged)?;
        let Version { version } = unseal(line).ok_or_else(damaged)?;
        if version != VERSION {
            return Err(format!("its decisions have format {version}, this evenkeel knows {VERSION}"));
        }
        let before: Self = unseal(line).ok_or_else(damaged)?;
        if before.boot != self.boot {
            return Err("it was in an earlier boot".to_owned());
        }
        let other = self.differing(&before);
        if !other.is_empty() {
            return Err(format!("the configuration is another one ({})", other.join(", ")));
        }
        self.before = Some(before.pid);
        self.control = before.control;
        if before.confirming {
            self.control.decided(false);
        }
        (self.trials, self.barred, self.kept) = (before.trials, before.barred, before.kept);
        Ok(())
    }

    /// Names of what is configured in another way.
    fn differing(&self, other: &Self) -> Vec<&str> {
        let (ours, theirs) = (&self.configuration, &other.configuration);
        let names: BTreeSet<&str> = ours.keys().chain(theirs.keys()).map(String::as_str).collect();
        // Names of a file are shown to people: those that this evenkeel does not know are not.
        let shown = |name: &&str| ours.get(*name) != theirs.get(*name);
        let known = |name: &str| ours.get_key_value(name).map_or("what it knew", |(name, _)| name.as_str());
        names.into_iter().filter(shown).map(known).collect()
    }
}

/// The version alone, whatever else a form holds.
#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// Everything that changes what may be decided or kept, by name. How it is written does not matter, as long as equal things are
/// written alike.
fn configuration(config: &Config) -> BTreeMap<String, String> {
    let monitor = &config.monitor;
    let rules = evenkeel_policy::trial::TrialRules { seed: 0, ..config.rules };
    let parts = [
        ("scope", format!("{:?}", config.scope)),
        ("decide_within", format!("{:?} {:?}", config.decide_within, config.closer_look)),
        ("holdout", format!("{monitor:?}")),
        ("allow", format!("{} {} {}", config.realtime, config.deadline, config.scx)),
        ("levers", format!("{:?}", config.levers)),
        ("guard", format!("{rules:?}")),
        ("promises", format!("{:?}", config.guarantees)),
        ("services", format!("{:?}", config.protect)),
        ("background", format!("{:?}", config.background)),
        ("cpu_limit", format!("{:?}", config.limit)),
    ];
    parts.into_iter().map(|(name, text)| (name.to_owned(), text)).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use evenkeel_base::{Change, Setting};
    use evenkeel_policy::monitor::Unit;

    use super::*;
    use crate::scope::Scope;

    fn config(scope: &str) -> Config {
        Config::new(Scope::parse(&[scope]).unwrap(), "/nowhere")
    }

    fn boot() -> BootId {
        BootId("boot-1".into())
    }

    fn kept() -> Proved {
        let change = Change { why: "it helps".into(), ..crate::testing::change("/a", Setting::Weight(900)) };
        let plan = Plan { name: "weights".into(), changes: vec![change], ..Plan::default() };
        let seen = |score| Seen { seconds: 0.9, score, cpu_pct: 50.0, ..Seen::default() };
        let decided = Decided {
            unit: Unit::CpuGot,
            gain: 0.1,
            cpu_pct: Some((8.3, 6.6, f64::INFINITY)),
            wait_p99_ms: Some((-1.0, f64::NEG_INFINITY, f64::INFINITY)),
            pairs: vec![(seen(55.0), seen(50.0)), (seen(f64::NAN), seen(50.0))],
            protects: true,
        };
        let decision = Decision {
            winner: 1,
            verdicts: vec![],
            confirmed: true,
            pairs: vec![],
            objective: Objective::new(0.1, false),
        };
        Proved { basis: Some((140.0, CpuSet::first_n(2))), ..Proved::new(&plan, &decision, 0, &decided, 7) }
    }

    #[test]
    fn a_successor_knows_what_was_decided_and_what_is_spent() {
        let mut first = Remembered::new(boot(), &config("cgroup:/a"));
        first.control.decided(false);
        first.control.decided(true);
        first.barred.insert("nice".into());
        first.kept = Some(kept());
        let mut second = Remembered::new(boot(), &config("cgroup:/a"));
        second.go_on_from(&first.line()).unwrap();
        assert_eq!(second, Remembered { before: Some(std::process::id()), ..first });
        let decided = second.kept.unwrap().decided();
        assert_eq!(decided.cpu_pct, Some((8.3, 6.6, f64::INFINITY)));
        assert_eq!(decided.wait_p99_ms, Some((-1.0, f64::NEG_INFINITY, f64::INFINITY)));
        assert_eq!((decided.pairs.len(), decided.protects), (1, true), "what is not known is left out");
    }

    #[test]
    fn a_kill_in_the_midst_of_a_proof_spends_its_budget() {
        let mut first = Remembered::new(boot(), &config("cgroup:/a"));
        let fresh = first.control.alpha();
        first.confirming = true;
        let mut second = Remembered::new(boot(), &config("cgroup:/a"));
        second.go_on_from(&first.line()).unwrap();
        assert!(second.control.alpha() < fresh / 10.0 && !second.confirming, "{second:?}");
        // A restart buys nothing, however often.
        let mut third = Remembered::new(boot(), &config("cgroup:/a"));
        third.go_on_from(&second.line()).unwrap();
        assert_eq!(third.control, second.control);
    }

    #[test]
    fn another_configuration_or_boot_or_a_damaged_file_counts_for_nothing_and_says_so() {
        let mut first = Remembered::new(boot(), &config("cgroup:/a"));
        first.control.decided(false);
        first.kept = Some(kept());
        let why = |mut second: Remembered, line: &[u8]| {
            let before = second.clone();
            let why = second.go_on_from(line).unwrap_err();
            assert_eq!(second, before, "nothing of it counts");
            why
        };
        type Other = (&'static str, fn(&mut Config));
        let others: [Other; 10] = [
            ("levers", |config| config.levers.push("nice".into())),
            ("allow", |config| config.realtime = true),
            ("allow", |config| config.deadline = true),
            ("allow", |config| config.scx = true),
            ("guard", |config| config.rules.guard.cpu_loss = 0.2),
            ("holdout", |config| config.monitor.holdout.share = 0.1),
            ("decide_within", |config| config.closer_look = Duration::ZERO),
            ("background", |config| config.background = Some(Scope::parse(&["pid:7"]).unwrap())),
            ("cpu_limit", |config| config.limit = Some(Default::default())),
            ("promises", |config| config.guarantees.only = true),
        ];
        for (name, change) in others {
            let mut config = config("cgroup:/a");
            change(&mut config);
            let why = why(Remembered::new(boot(), &config), &first.line());
            assert_eq!(why, format!("the configuration is another one ({name})"));
        }
        let scope = why(Remembered::new(boot(), &config("cgroup:/b")), &first.line());
        assert_eq!(scope, "the configuration is another one (scope)");
        let same = || Remembered::new(boot(), &config("cgroup:/a"));
        let rebooted = why(Remembered::new(BootId("boot-2".into()), &config("cgroup:/a")), &first.line());
        assert!(rebooted.contains("earlier boot"));
        let newer = Remembered { version: 9, ..first.clone() };
        assert!(why(same(), &newer.line()).contains("format 9"));
        let line = first.line();
        for bytes in [&line[..line.len() - 1], &line[..line.len() / 2], b"", b"\n", b"garbage\n"] {
            assert!(why(same(), bytes).contains("damaged"), "{bytes:?}");
        }
        let mut seed = config("cgroup:/a");
        seed.rules.seed = 99;
        Remembered::new(boot(), &seed).go_on_from(&line).unwrap();
    }
}
