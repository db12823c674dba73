//! Stolen CPU: does a limit help, which is best, and which of three rules is it? Told apart from what the victim sees
//! alone: how long its work took under each limit, and what was stolen from it.
//!
//! | rule | stolen | fastest |
//! |---|---|---|
//! | throttled burst (window) | much without a limit, little under the right one | some limit |
//! | credits | nothing while credits last; then more the less it is limited | no limit |
//! | shared core (constant) | the same part of what is wanted under every limit | no limit |

use evenkeel_model::credit::Rule;
use serde::{Deserialize, Serialize};

use super::words::three;
use crate::decide::{Claim, Decision, Draft, Figure, Mean, Said, by};
use crate::record::{Cell, Limits, Record, TenantRecord};
use crate::study::point::total;
use crate::study::sample;
use crate::study::{PointStudy, Study, prefix};

/// Below this part nothing worth speaking of is stolen.
const SOME: f64 = 0.03;
/// A limit helps when it is faster than none by this factor.
const HELPS: f64 = 1.1;

/// Which rule steals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stealing {
    Nothing,
    /// Bursts above a threshold are throttled.
    #[serde(rename = "punished-burst")]
    ThrottledBurst,
    /// A balance of credits is spent.
    Credits,
    /// The core is shared all the time.
    SharedCore,
}

impl Stealing {
    fn words(self) -> &'static str {
        match self {
            Self::Nothing => "nothing worth speaking of is stolen",
            Self::ThrottledBurst => "bursts are throttled",
            Self::Credits => "it is a balance of credits",
            Self::SharedCore => "the core is shared all the time",
        }
    }

    /// What the enforcer really did.
    fn of(rule: &Rule) -> Self {
        match rule {
            Rule::None => Self::Nothing,
            Rule::Constant { .. } => Self::SharedCore,
            Rule::Window { .. } | Rule::Penalty { .. } => Self::ThrottledBurst,
            Rule::Credits { .. } => Self::Credits,
        }
    }
}

/// One limit as the victim saw it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Tried {
    /// Percent of one CPU; `None` without a limit.
    limit_pct: Option<f64>,
    /// How long the work took, seconds.
    real_s: Mean,
    /// Part of the CPU time wanted that was stolen, 0 to 1.
    stolen: Mean,
}

/// The claims by which rules are told apart, in this order: a limit is faster than none by [`HELPS`]; no limit is faster
/// than none at all; something is stolen without a limit; nothing worth speaking of is stolen anywhere; under every
/// limit at least half as large a part is stolen as without; less is stolen under the best limit.
struct Claims {
    all: Vec<(Figure, Claim)>,
    best: Tried,
    none: Tried,
}

/// Which of the claims each number is.
const GAIN: usize = 0;
const NOT_SLOWER: usize = 1;
const STOLEN: usize = 2;
const LITTLE: usize = 3;
const ALWAYS: usize = 4;
const CAUSE: usize = 5;

fn claims(tried: &[Tried]) -> Option<Claims> {
    let none = *tried.iter().find(|t| t.limit_pct.is_none())?;
    let limited: Vec<Tried> = tried.iter().copied().filter(|t| t.limit_pct.is_some()).collect();
    let best = *limited.iter().min_by(|a, b| a.real_s.value.total_cmp(&b.real_s.value))?;
    let gains: Vec<Figure> = limited.iter().map(|t| none.real_s.over(t.real_s)).collect::<Option<_>>()?;
    let stolen = tried.iter().map(|t| Figure::Mean(t.stolen)).collect();
    let over_half: Vec<Figure> = limited
        .iter()
        .map(|t| Mean::sum(&[(1.0, t.stolen), (-0.5, none.stolen)]).map(Figure::Mean))
        .collect::<Option<_>>()?;
    let all = vec![
        (Figure::Largest(gains.clone()), Claim::AtLeast(HELPS)),
        (Figure::Largest(gains), Claim::AtMost(1.0)),
        (Figure::Mean(none.stolen), Claim::AtLeast(SOME)),
        (Figure::Largest(stolen), Claim::AtMost(SOME)),
        (Figure::Smallest(over_half), Claim::AtLeast(0.0)),
        (Figure::Mean(none.stolen.less(best.stolen)?), Claim::AtLeast(SOME)),
    ];
    Some(Claims { all, best, none })
}

/// Tells the rules apart by decided claims alone; `None` where they are not decided.
fn classify(d: &[Decision]) -> Option<Stealing> {
    let is = |n: usize| d.get(n).is_some_and(Decision::yes);
    let is_not = |n: usize| d.get(n).is_some_and(Decision::no);
    if is(GAIN) {
        return is(STOLEN).then_some(Stealing::ThrottledBurst);
    }
    if is(LITTLE) {
        return Some(Stealing::Nothing);
    }
    if is_not(GAIN) && is(STOLEN) {
        return match d.get(ALWAYS)?.holds? {
            true => Some(Stealing::SharedCore),
            false => Some(Stealing::Credits),
        };
    }
    None
}

/// Points that differ in nothing but the limit of the one tenant that is judged.
struct Sweep<'a> {
    key: Key<'a>,
    rule: Option<Rule>,
    name: String,
    points: Vec<(&'a PointStudy, usize)>,
}

/// What points of one series have in common: everything else that was set, the rule, the judged tenant without its
/// limit, and its neighbours.
type Key<'a> = (Vec<(&'a str, String)>, Option<Rule>, Of<'a>, Vec<Of<'a>>);
/// Load, threads and limits of a tenant.
type Of<'a> = (&'a str, u32, Limits);

fn key<'a>(cell: &'a Cell, point: &'a PointStudy) -> Option<(Key<'a>, usize)> {
    let judged: Vec<usize> = (0..cell.tenants.len()).filter(|i| cell.tenants[*i].runs_planned > 0).collect();
    // A neighbour is no subject: with several that run to an end it is not known who is meant.
    let [judged] = judged.as_slice() else { return None };
    let of = |t: &'a TenantRecord| (t.workload.as_str(), t.threads, t.limits.clone());
    let mut own = of(&cell.tenants[*judged]);
    (own.2.quota_pct, own.2.period_usec, own.2.burst_usec) = (None, None, None);
    let name = &cell.tenants[*judged].name;
    let others = cell.tenants.iter().enumerate().filter(|(i, _)| i != judged).map(|(_, t)| of(t)).collect();
    let is_limit = |field: &str| {
        let limit =
            field.rsplit('.').next().is_some_and(|f| matches!(f, "quota_pct" | "period_usec" | "burst_usec"));
        // Of a neighbour it is another set-up.
        limit && field.split('.').nth(1).is_none_or(|of| of == name)
    };
    let settings = point.settings.iter().filter(|(field, value)| !is_limit(field) && !value.is_null());
    let settings = settings.map(|(field, value)| (field.as_str(), value.to_string())).collect();
    Some(((settings, cell.enforcer.as_ref().map(|e| e.rule), own, others), *judged))
}

/// Sweeps of a limit. Points of different rules, schedules or roles are never one series.
fn sweeps<'a>(record: &'a Record, study: &'a Study) -> Vec<Sweep<'a>> {
    let mut sweeps: Vec<Sweep<'a>> = Vec::new();
    for point in &study.points {
        let Some((key, judged)) = sample::cells(record, point).first().and_then(|cell| key(cell, point))
        else {
            continue;
        };
        let rule = key.1;
        // Runs of so many seconds end when they are told to, whatever is stolen.
        if crate::study::asked_s(record, &point.tenants[judged].workload).is_some() {
            continue;
        }
        match sweeps.iter_mut().find(|sweep| sweep.key == key) {
            Some(sweep) => sweep.points.push((point, judged)),
            None => sweeps.push(Sweep {
                rule,
                name: rule.map(|r| name(&r)).unwrap_or_default(),
                points: vec![(point, judged)],
                key,
            }),
        }
    }
    sweeps.retain(|sweep| {
        let limits = sweep.points.iter().map(|(p, judged)| p.tenants[*judged].limits.quota_pct);
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

pub(super) fn add<'a>(record: &'a Record, study: &'a Study, all: &mut Vec<Draft<'a>>) {
    for sweep in sweeps(record, study) {
        // Without steal and without an enforcer this is a plain comparison of limits.
        one(record, &sweep, all);
        all.extend(credits(record, &sweep));
    }
}

fn tried(record: &Record, sweep: &Sweep<'_>) -> Vec<Tried> {
    let one = |(point, judged): &(&PointStudy, usize)| {
        let stolen = sample::each(&sample::tenants(record, point, *judged), |t| {
            let stolen = total(t, |a| a.stolen_s)?.max(0.0);
            Some(stolen / (stolen + total(t, crate::record::Account::cpu_s)?).max(1e-9))
        })?;
        Some(Tried {
            limit_pct: point.tenants[*judged].limits.quota_pct,
            real_s: sample::elapsed(record, point, *judged)?,
            stolen,
        })
    };
    sweep.points.iter().filter_map(one).collect()
}

/// A time; of what was cut off a lower bound.
fn seconds(real: &Mean) -> String {
    format!("{}{} s", if real.at_least { "more than " } else { "" }, three(real.value))
}

fn one<'a>(record: &'a Record, sweep: &Sweep<'a>, all: &mut Vec<Draft<'a>>) {
    let tried = tried(record, sweep);
    let Some(Claims { all: claims, best, none }) = claims(&tried) else { return };
    // Nothing stolen so far, but an account that is shown falls: credits that have not run out.
    let spent = |cell: &Cell| {
        cell.enforcer
            .as_ref()
            .is_some_and(|e| Some(e.rule) == sweep.rule && e.credits.is_some_and(|(a, b)| b < a))
    };
    let credits_fell = record.cells.iter().any(spent);
    let found = move |d: &[Decision]| match classify(d) {
        Some(Stealing::Nothing) if credits_fell => Some(Stealing::Credits),
        found => found,
    };
    let about = sweep.name.clone();
    let pct = |m: &Mean| three(100.0 * m.value);
    let part =
        |f: fn(f64, f64) -> f64, from: f64| three(100.0 * tried.iter().map(|t| t.stolen.value).fold(from, f));
    let stolen_range = format!("{} to {}", part(f64::min, f64::INFINITY), part(f64::max, 0.0));
    let text = move |d: &[Decision]| {
        let times = format!(
            "without a limit it takes {}, under the best one tried ({}) {}",
            seconds(&none.real_s),
            label(best.limit_pct),
            seconds(&best.real_s)
        );
        // Of one run there is no interval; what was cut off would still have taken longer.
        let one_cut = none.real_s.n.min(best.real_s.n) < 2 && none.real_s.at_least && !best.real_s.at_least;
        let gain = match d[GAIN].value.filter(|_| one_cut) {
            Some(value) => format!("at least {value:.2}"),
            None => d[GAIN].words(2),
        };
        let head = match d[GAIN].holds {
            Some(true) => {
                let cause = if d[CAUSE].yes() { ", because bursts are throttled" } else { "" };
                format!(
                    "A limit helps: {} is done {gain} times as fast as without one{cause} ({times}; {} % of the CPU time \
                     wanted is stolen without a limit, {} % under it).",
                    label(best.limit_pct),
                    pct(&none.stolen),
                    pct(&best.stolen)
                )
            }
            // A difference that the figures show: two equal times have no fastest.
            Some(false) if d[NOT_SLOWER].yes() && d[GAIN].value.is_some_and(|gain| gain < 0.9995) => {
                format!("No limit is fastest: {times}.")
            }
            Some(false) => format!("No limit is faster than none by a tenth: {times}."),
            None => format!("Whether a limit helps is open: {times}, {gain} times as fast."),
        };
        let tail = match found(d) {
            Some(Stealing::ThrottledBurst) => " Keep below the threshold.".to_owned(),
            Some(Stealing::Credits) => " Credits pay for bursts: a limit only saves credits.".into(),
            Some(Stealing::SharedCore) => format!(
                " {stolen_range} % of the CPU time wanted is stolen whatever the limit, so the core is shared with others all \
                 the time: a larger instance helps, a limit does not."
            ),
            Some(Stealing::Nothing) => " Nothing worth speaking of is stolen here.".into(),
            None => String::new(),
        };
        let cut = if none.real_s.at_least || best.real_s.at_least {
            " Runs were cut off by the time limit, so that their times are lower bounds."
        } else {
            ""
        };
        format!("{head}{tail}{cut}")
    };
    let before = prefix(&about);
    let statistic = ("time without a limit over time under the best limit", "");
    let help = Draft::with("does-a-limit-help", &about, statistic, claims.clone(), move |d| {
        Some(Said { holds: d[GAIN].holds, text: format!("{before}{}", text(d)), shown: Some(GAIN) })
    });
    all.push(help.question());
    let Some(rule) = sweep.rule else { return };
    let truth = Stealing::of(&rule);
    let cells = record.cells.iter().filter(|c| c.enforcer.as_ref().is_some_and(|e| e.rule == rule)).count();
    let statistic = format!("rule by stolen parts and times under {} limits, {cells} cells", tried.len());
    let before = prefix(&about);
    all.push(
        Draft::with("which-rule", &about, (&statistic, ""), claims.clone(), move |d| {
            let found = found(d);
            let text = match found {
                Some(found) if found == truth => format!(
                    "{before}From what the victim sees alone: {}. That is what the steal emulator did.",
                    found.words()
                ),
                Some(found) => format!(
                    "{before}From what the victim sees alone: {}. That is wrong, the steal emulator followed another rule: {}.",
                    found.words(),
                    truth.words()
                ),
                None => format!("{before}What the victim sees alone does not tell the rule."),
            };
            Some(Said { holds: found.map(|f| f == truth), text, shown: None })
        })
        .decided_already()
        .of_measuring(),
    );
    if let Rule::Window { above, .. } | Rule::Penalty { free: above, .. } = rule {
        all.extend(edge(&tried, 100.0 * above, &about, claims));
    }
}

/// Whether the best limit is at or under the threshold: the best of those is held against all above it.
fn edge<'a>(tried: &[Tried], edge: f64, about: &str, claims: Vec<(Figure, Claim)>) -> Option<Draft<'a>> {
    let limited = || tried.iter().filter_map(|t| Some((t.limit_pct?, t.real_s)));
    let under: Vec<_> = limited().filter(|(limit, _)| *limit <= edge * 1.001).collect();
    let above: Vec<_> = limited().filter(|(limit, _)| *limit > edge * 1.001).collect();
    let (limit, time) = *under.iter().min_by(|a, b| a.1.value.total_cmp(&b.1.value))?;
    let slower: Vec<Figure> = above.iter().map(|(_, t)| t.over(time)).collect::<Option<_>>()?;
    if slower.is_empty() {
        return None;
    }
    let before = prefix(about);
    let count = under.len();
    let mut both = vec![(Figure::Smallest(slower), Claim::AtLeast(1.0))];
    both.extend(claims.into_iter().take(1));
    Some(
        Draft::with(
            "best-at-the-edge",
            about,
            ("least time under a limit above the threshold over the best at or under it", ""),
            both,
            move |d| {
                if !d[1].yes() {
                    return None;
                }
                let edge = three(edge);
                let text = match d[0].holds {
                    Some(true) => format!(
                        "{before}The best limit, {} %, is at or under the threshold of {edge} % at which stealing starts.",
                        three(limit)
                    ),
                    Some(false) => format!(
                        "{before}The best limit is above the threshold of {edge} % at which stealing starts."
                    ),
                    None => format!(
                        "{before}Whether the best limit is at or under the threshold of {edge} % is open; {} % did best of those.",
                        three(limit)
                    ),
                };
                Some(Said { holds: d[0].holds, text, shown: Some(0) })
            },
        )
        .picked_from(count),
    )
}

/// Credits spent, against what the rule says of the CPU time given: an account, seen in full.
fn credits<'a>(record: &Record, sweep: &Sweep<'_>) -> Option<Draft<'a>> {
    let Some(Rule::Credits { per_hour, cap, .. }) = sweep.rule else { return None };
    let of = |cell: &Cell| {
        let enforcer = cell.enforcer.as_ref().filter(|e| Some(e.rule) == sweep.rule)?;
        let (start, end) = enforcer.credits?;
        // A credit is a minute of a CPU, in the source's time.
        let used = enforcer.given_s * enforcer.time_scale / 60.0;
        let earned = per_hour * cell.seconds * enforcer.time_scale / 3600.0;
        let (spent, expected) = (start - end, used - earned);
        let bound = (0.05 * expected.abs()).max(0.3);
        // An empty or a full account loses what does not fit.
        (end > 0.001 && end < cap - 0.001).then_some((spent, expected, bound))
    };
    let worst = |c: &(f64, f64, f64)| (c.0 - c.1).abs() / c.2;
    let (spent, expected, bound) =
        record.cells.iter().filter_map(of).max_by(|a, b| worst(a).total_cmp(&worst(b)))?;
    Some(Draft::new(
        "credits-as-predicted",
        &sweep.name,
        ("|credits spent - expected|, of all cells the one farthest off", "credits"),
        Figure::Observed((spent - expected).abs()),
        Claim::AtMost(bound),
        move |d| {
            format!(
                "Credits spent are {}: {} spent, {} expected (CPU minutes given less earned).",
                by(d[0].holds, "as predicted", "not as predicted", "not known"),
                three(spent),
                three(expected)
            )
        },
    ))
}

#[cfg(test)]
mod tests;
