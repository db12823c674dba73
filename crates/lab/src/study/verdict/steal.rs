//! Stolen CPU: does a limit help, which is best, and which of three rules is it? Told apart from what the victim sees
//! alone: how long its work took under each limit, and what was stolen from it.
//!
//! | rule | stolen | fastest |
//! |---|---|---|
//! | punished burst (window) | much without a limit, little under the right one | some limit |
//! | credits | nothing while credits last; then more the less it is limited | no limit |
//! | shared core (constant) | the same part of what is wanted under every limit | no limit |

use evenkeel_base::run::Estimate;
use evenkeel_model::credit::Rule;
use serde::{Deserialize, Serialize};

use super::{Test, Verdict, three, verdict};
use crate::record::Record;
use crate::study::stats::ratio;
use crate::study::{PointStudy, Study};

/// Below this part nothing worth speaking of is stolen.
const SOME: f64 = 0.03;
/// A limit helps when it is faster than none by this factor.
const HELPS: f64 = 1.1;

/// Which rule steals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stealing {
    /// Nothing is stolen.
    Nothing,
    /// Bursts above a threshold are punished.
    PunishedBurst,
    /// A balance of credits is spent.
    Credits,
    /// The core is shared all the time.
    SharedCore,
}

impl Stealing {
    fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing worth speaking of is stolen",
            Self::PunishedBurst => "bursts are punished",
            Self::Credits => "it is a balance of credits",
            Self::SharedCore => "the core is shared all the time",
        }
    }

    /// What the enforcer really did.
    fn of(rule: &Rule) -> Self {
        match rule {
            Rule::None => Self::Nothing,
            Rule::Constant { .. } => Self::SharedCore,
            Rule::Window { .. } | Rule::Penalty { .. } => Self::PunishedBurst,
            Rule::Credits { .. } => Self::Credits,
        }
    }
}

/// One limit as the victim saw it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tried {
    /// Percent of one CPU; `None` without a limit.
    pub limit_pct: Option<f64>,
    /// How long the work took, seconds.
    pub real_s: f64,
    /// Part of the CPU time wanted that was stolen, 0 to 1.
    pub stolen: f64,
}

/// Tells the rules apart; `None` unless there is a try without a limit and one with.
pub fn classify(tried: &[Tried]) -> Option<Stealing> {
    let none = tried.iter().find(|t| t.limit_pct.is_none())?;
    let limited: Vec<&Tried> = tried.iter().filter(|t| t.limit_pct.is_some()).collect();
    let best = limited.iter().min_by(|a, b| a.real_s.total_cmp(&b.real_s))?;
    let most = tried.iter().map(|t| t.stolen).fold(0.0, f64::max);
    let least = limited.iter().map(|t| t.stolen).fold(f64::INFINITY, f64::min);
    Some(if best.real_s * HELPS < none.real_s && none.stolen > SOME {
        Stealing::PunishedBurst
    } else if most <= SOME {
        Stealing::Nothing
    } else if least > most / 2.0 {
        Stealing::SharedCore
    } else {
        Stealing::Credits
    })
}

/// Points under one rule.
struct Sweep<'a> {
    rule: Option<Rule>,
    name: String,
    points: Vec<&'a PointStudy>,
}

/// Sweeps of a limit, by the rule of the enforcer; without one, all points are one sweep.
fn sweeps<'a>(record: &Record, study: &'a Study) -> Vec<Sweep<'a>> {
    let mut sweeps: Vec<Sweep<'a>> = Vec::new();
    for point in &study.points {
        if point.tenants.is_empty() || point.tenants.len() > 2 {
            continue;
        }
        let rule = record
            .cells
            .iter()
            .find(|cell| cell.point.index == point.index)
            .and_then(|cell| cell.enforcer.as_ref())
            .map(|e| e.rule);
        // Runs of so many seconds end when they are told to, whatever is stolen.
        if rule.is_none() && crate::study::asked_s(record, &point.tenants[0].workload).is_some() {
            continue;
        }
        match sweeps.iter_mut().find(|sweep| sweep.rule == rule) {
            Some(sweep) => sweep.points.push(point),
            None => sweeps.push(Sweep {
                rule,
                name: rule.map(|r| name(&r)).unwrap_or_default(),
                points: vec![point],
            }),
        }
    }
    sweeps.retain(|sweep| {
        let limits = sweep.points.iter().map(|p| p.tenants[0].limits.quota_pct);
        limits.clone().any(|l| l.is_none()) && limits.clone().any(|l| l.is_some())
    });
    sweeps
}

fn name(rule: &Rule) -> String {
    match rule {
        Rule::None => "no rule",
        Rule::Constant { .. } => "shared core",
        Rule::Window { .. } => "window rule",
        Rule::Penalty { .. } => "penalty rule",
        Rule::Credits { .. } => "credit rule",
    }
    .to_owned()
}

fn label(limit: Option<f64>) -> String {
    limit.map_or_else(|| "no limit".to_owned(), |pct| format!("{} %", three(pct)))
}

pub(super) fn add(record: &Record, study: &Study, all: &mut Vec<Verdict>) {
    for sweep in sweeps(record, study) {
        // Without steal and without an enforcer this is a plain comparison of limits.
        all.extend(one(record, &sweep));
        all.extend(credits(record, &sweep));
    }
}

fn one(record: &Record, sweep: &Sweep<'_>) -> Vec<Verdict> {
    let times: Vec<(Option<f64>, Estimate, f64)> = sweep
        .points
        .iter()
        .filter_map(|point| {
            let tenant = &point.tenants[0];
            let elapsed = tenant.elapsed_s.or(point.together.seconds)?;
            let stolen = tenant.stolen_s.map_or(0.0, |s| s.value.max(0.0));
            let cpu = tenant.user_s.zip(tenant.sys_s).map(|(u, s)| u.value + s.value)?;
            Some((tenant.limits.quota_pct, elapsed, stolen / (stolen + cpu).max(1e-9)))
        })
        .collect();
    let tried: Vec<Tried> = times
        .iter()
        .map(|(limit_pct, real, stolen)| Tried { limit_pct: *limit_pct, real_s: real.value, stolen: *stolen })
        .collect();
    let (Some(mut found), Some(none)) = (classify(&tried), times.iter().find(|t| t.0.is_none())) else {
        return Vec::new();
    };
    // Nothing stolen so far, but an account that is shown falls: credits that have not run out.
    let spent = |cell: &crate::record::Cell| {
        cell.enforcer
            .as_ref()
            .is_some_and(|e| Some(e.rule) == sweep.rule && e.credits.is_some_and(|(a, b)| b < a))
    };
    if found == Stealing::Nothing && record.cells.iter().any(spent) {
        found = Stealing::Credits;
    }
    let Some(best) = times.iter().filter(|t| t.0.is_some()).min_by(|a, b| a.1.value.total_cmp(&b.1.value))
    else {
        return Vec::new();
    };
    let gain = ratio(none.1, best.1);
    let gain_words = gain.map_or_else(|| "?".into(), |g| super::with_interval(g, 2));
    let stolen_range =
        |f: fn(f64, f64) -> f64, start: f64| three(100.0 * tried.iter().map(|t| t.stolen).fold(start, f));
    let text = match found {
        Stealing::PunishedBurst => format!(
            "A limit helps: {} is done {gain_words} times as fast as without one, because bursts are punished ({} % of \
             the CPU time wanted is stolen without a limit, {} % under the best). Keep below the threshold.",
            label(best.0),
            three(100.0 * none.2),
            three(100.0 * best.2),
        ),
        Stealing::Credits => format!(
            "No limit is fastest ({} s; the best limit, {}, takes {} s): credits pay for bursts and nothing is punished. \
             A limit only saves credits.",
            three(none.1.value),
            label(best.0),
            three(best.1.value)
        ),
        Stealing::SharedCore => format!(
            "Limits are of no use: {} to {} % of the CPU time wanted is stolen whatever the limit, so the core is shared \
             with others all the time. The best limit ({}) takes {} s, none {} s; a larger instance helps, a limit does not.",
            stolen_range(f64::min, f64::INFINITY),
            stolen_range(f64::max, 0.0),
            label(best.0),
            three(best.1.value),
            three(none.1.value)
        ),
        Stealing::Nothing => format!(
            "Nothing worth speaking of is stolen here: no limit is fastest ({} s; {} takes {} s).",
            three(none.1.value),
            label(best.0),
            three(best.1.value)
        ),
    };
    let helps = found == Stealing::PunishedBurst;
    let mut test = Test::of(
        "time without a limit over time under the best limit",
        "",
        format!("> {HELPS} means a limit helps"),
    );
    if let Some(gain) = gain {
        test = test.estimate(gain);
    }
    let mut out = vec![verdict(
        "does-a-limit-help",
        &sweep.name,
        Some(helps),
        format!("{}{text}", crate::study::prefix(&sweep.name)),
        test,
    )];
    if let Some(rule) = &sweep.rule {
        let truth = Stealing::of(rule);
        let cells = record
            .cells
            .iter()
            .filter(|cell| cell.enforcer.as_ref().is_some_and(|e| e.rule == *rule))
            .count();
        out.push(verdict(
            "which-rule",
            &sweep.name,
            Some(found == truth),
            if found == truth {
                format!("{}From what the victim sees alone: {}. That is what the enforcer played.", crate::study::prefix(&sweep.name), found.words())
            } else {
                format!(
                    "{}From what the victim sees alone: {}. That is wrong, the enforcer played another rule: {}.",
                    crate::study::prefix(&sweep.name),
                    found.words(),
                    truth.words()
                )
            },
            Test::of(format!("rule by stolen parts and times under {} limits, {cells} cells", tried.len()), "", "the enforcer's rule"),
        ));
        if let (Rule::Window { above, .. } | Rule::Penalty { free: above, .. }, Some(limit), true) =
            (rule, best.0, helps)
        {
            let edge = 100.0 * above;
            out.push(verdict(
                "best-at-the-edge",
                &sweep.name,
                Some(limit <= edge * 1.001),
                format!(
                    "{}The best limit, {} %, is {} the edge of {} % at which stealing starts.",
                    crate::study::prefix(&sweep.name),
                    three(limit),
                    if limit <= edge * 1.001 { "at or under" } else { "above" },
                    three(edge)
                ),
                Test::of("best limit", "% of one CPU", format!("<= {}", three(edge))).value(limit),
            ));
        }
    }
    out
}

/// Credits spent, against what the rule says of the CPU time given.
fn credits(record: &Record, sweep: &Sweep<'_>) -> Option<Verdict> {
    let Some(Rule::Credits { per_hour, cap, .. }) = sweep.rule else { return None };
    let mut worst: Option<(f64, f64, f64)> = None;
    for cell in
        record.cells.iter().filter(|c| c.enforcer.as_ref().is_some_and(|e| Some(e.rule) == sweep.rule))
    {
        let enforcer = cell.enforcer.as_ref()?;
        let (start, end) = enforcer.credits?;
        // A credit is a minute of a CPU, in the source's time.
        let used = enforcer.given_s * enforcer.time_scale / 60.0;
        let earned = per_hour * cell.seconds * enforcer.time_scale / 3600.0;
        // An empty or a full account loses what does not fit.
        if end <= 0.001 || end >= cap - 0.001 {
            continue;
        }
        let (spent, expected) = (start - end, used - earned);
        if worst.is_none_or(|(s, e, _)| (spent - expected).abs() > (s - e).abs()) {
            worst = Some((spent, expected, start));
        }
    }
    let (spent, expected, _) = worst?;
    let off = (spent - expected).abs();
    let bound = (0.05 * expected.abs()).max(0.3);
    Some(verdict(
        "credits-as-predicted",
        &sweep.name,
        Some(off <= bound),
        format!(
            "Credits spent are as predicted: {} spent, {} expected (CPU minutes given less earned).",
            three(spent),
            three(expected)
        ),
        Test::of("largest |credits spent - expected|", "credits", format!("<= {}", three(bound))).value(off),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tried(rows: &[(Option<f64>, f64, f64)]) -> Vec<Tried> {
        rows.iter().map(|&(limit_pct, real_s, stolen)| Tried { limit_pct, real_s, stolen }).collect()
    }

    #[test]
    fn the_sources_three_machines_are_told_apart() {
        // t1.micro: 187 min without a limit, most of it stolen; 90, 75 and 87 min under 25, 30 and 40 %.
        let micro = tried(&[
            (None, 187.0, 0.88),
            (Some(25.0), 90.1, 0.0),
            (Some(30.0), 75.1, 0.01),
            (Some(40.0), 87.4, 0.3),
        ]);
        assert_eq!(classify(&micro), Some(Stealing::PunishedBurst));
        // m3.medium: 40-50 % stolen all the time.
        let shared = tried(&[(None, 31.7, 0.45), (Some(50.0), 60.0, 0.44), (Some(25.0), 120.0, 0.46)]);
        assert_eq!(classify(&shared), Some(Stealing::SharedCore));
        // t2.micro: credits last, or run out in the middle.
        let credits = tried(&[(None, 14.8, 0.2), (Some(50.0), 20.0, 0.05), (Some(10.0), 96.0, 0.0)]);
        assert_eq!(classify(&credits), Some(Stealing::Credits));
        let nothing = tried(&[(None, 10.0, 0.0), (Some(50.0), 20.0, 0.0)]);
        assert_eq!(classify(&nothing), Some(Stealing::Nothing));
        assert_eq!(classify(&nothing[1..]), None);
        assert_eq!(classify(&[]), None);
    }

    proptest! {
        #[test]
        fn the_models_rules_are_told_apart(cpu_s in 600.0f64..3000.0, stolen in 0.2f64..0.7) {
            use evenkeel_model::credit::{Job, Rule, run};
            let limits = [None, Some(0.1), Some(0.2), Some(0.3), Some(0.4)];
            let see = |rule: &Rule| -> Vec<Tried> {
                limits.iter().map(|limit| {
                    let out = run(rule, Job { cpu_s, busy: 1.0 }, *limit);
                    Tried { limit_pct: limit.map(|l| 100.0 * l), real_s: out.real_s.unwrap(), stolen: out.stolen_s / (out.stolen_s + cpu_s) }
                }).collect()
            };
            prop_assert_eq!(classify(&see(&Rule::Constant { stolen })), Some(Stealing::SharedCore));
            prop_assert_eq!(classify(&see(&Rule::T1_MICRO_FITTED)), Some(Stealing::PunishedBurst));
            // Few enough credits that they run out without a limit.
            prop_assert_eq!(classify(&see(&Rule::Credits { start: 5.0, per_hour: 6.0, cap: 144.0 })), Some(Stealing::Credits));
            prop_assert_eq!(classify(&see(&Rule::None)), Some(Stealing::Nothing));
        }
    }
}
