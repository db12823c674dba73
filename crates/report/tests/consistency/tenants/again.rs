//! The figures of sentences on tenants, reckoned again from the raw record.

use evenkeel_lab::fairness::plan::Point;
use evenkeel_lab::fairness::record::{Cell, TenantsRecord};

use super::document::{About, Statement, half_digit};
use crate::own::{bias, max_min};
use crate::printed::{near, number_after};
use crate::textbook::{Sample, sample};

/// Repetitions of a point that have a result.
pub fn cells<'a>(record: &'a TenantsRecord, label: &str) -> Vec<&'a Cell> {
    let index = record.points.iter().position(|p| p.to_string() == label);
    record.cells.iter().filter(|c| Some(c.point) == index && c.failed.is_none()).collect()
}

pub fn point<'a>(record: &'a TenantsRecord, label: &str) -> &'a Point {
    record.points.iter().find(|p| p.to_string() == label).unwrap()
}

/// A quantity over a point's repetitions, where each knows it.
pub fn over(record: &TenantsRecord, label: &str, of: impl Fn(&Cell) -> Option<f64>) -> Option<Sample> {
    sample(&cells(record, label).into_iter().map(of).collect::<Option<Vec<f64>>>()?)
}

pub fn rate(cell: &Cell) -> Option<f64> {
    let net = cell.measured.net.as_ref()?;
    net.transactions_per_s.or(net.mbit_per_s)
}

/// A quantity of each tenant of flows, by the words of a sentence.
pub fn each(cell: &Cell, what: &str) -> Option<Vec<f64>> {
    let tenants = cell.measured.net.as_ref()?.tenants.iter();
    tenants
        .map(|t| match what {
            "throughput" => t.transactions_per_s.or(t.mbit_per_s),
            "latency" => t.latency.map(|l| l.mean_usec).or(t.latency_mean_usec),
            "softirq" => t.softirq_pct,
            _ => t.cpu_pct,
        })
        .collect()
}

/// Shares of all tenants' CPU time, percent.
pub fn shares(cell: &Cell) -> Option<Vec<f64>> {
    let got: Vec<f64> =
        cell.measured.cpu.as_ref()?.tenants.iter().map(|t| t.cpu_pct).collect::<Option<_>>()?;
    let all: f64 = got.iter().sum();
    (all > 0.0).then(|| got.iter().map(|g| 100.0 * g / all).collect())
}

fn percent(of: &[f64]) -> Vec<f64> {
    let all: f64 = of.iter().sum();
    of.iter().map(|v| 100.0 * v / all).collect()
}

pub fn due(point: &Point) -> Vec<f64> {
    percent(&point.weights.iter().map(|w| *w as f64).collect::<Vec<_>>())
}

/// CPUs of a point, and what each tenant can have of them.
fn feasible_cpus(record: &TenantsRecord, point: &Point) -> (f64, Vec<f64>) {
    let cpus = if point.one_cpu { 1.0 } else { f64::from(record.host.cpus.unwrap()) };
    let most = f64::from(point.vcpus.unwrap_or(1)).min(cpus);
    let weights: Vec<f64> = point.weights.iter().map(|w| *w as f64).collect();
    (cpus, max_min(cpus, &weights, &vec![most; weights.len()]))
}

pub fn feasible(record: &TenantsRecord, point: &Point) -> Vec<f64> {
    percent(&feasible_cpus(record, point).1)
}

pub type Figure = (f64, [f64; 2]);

/// The largest distance of a mean share from what is due, percent of the latter, with so many times as many repetitions.
pub fn deviation(record: &TenantsRecord, label: &str, due: &[f64], alpha: f64, times: f64) -> Option<Figure> {
    let off =
        |i: usize| Some(over(record, label, |c| Some(100.0 * (shares(c)?[i] / due[i] - 1.0)))?.grown(times));
    let mut all: Vec<Sample> = (0..due.len()).map(off).collect::<Option<_>>()?;
    // What one of two has too much the other lacks.
    if all.len() == 2 && (all[0].mean + all[1].mean).abs() < 1e-9 * all[0].mean.abs().max(1.0) {
        all.truncate(1);
    }
    let ends: Vec<[f64; 2]> = all.iter().map(|s| s.interval(alpha / all.len() as f64)).collect();
    Some((
        all.iter().map(|s| s.mean.abs()).fold(0.0, f64::max),
        [
            ends.iter().map(|[l, h]| l.max(-h).max(0.0)).fold(0.0, f64::max),
            ends.iter().map(|[l, h]| l.abs().max(h.abs())).fold(0.0, f64::max),
        ],
    ))
}

/// The series of a sentence on a peak.
fn series(text: &str) -> Option<&str> {
    Some(text.split_once(": throughput peaks at").or_else(|| text.split_once(": no number of tenants"))?.0)
}

/// Numbers of tenants on a line, with the throughput of each.
fn line(record: &TenantsRecord, series: &str) -> Vec<(usize, Sample)> {
    let own = record.points.iter().filter(|p| p.to_string() == format!("{} x {series}", p.tenants));
    own.filter_map(|p| Some((p.tenants, over(record, &p.to_string(), rate)?))).collect()
}

/// The error that each claim of a page may have: 5 % for all together.
pub fn alpha(record: &TenantsRecord, all: &[Statement]) -> f64 {
    let claims = |s: &Statement| match s.about {
        About::Standstill => usize::from(s.text.contains("waited for a CPU")),
        About::Peak => {
            (line(record, series(&s.text).unwrap()).len() - 1).min(1)
                * line(record, series(&s.text).unwrap()).len()
        }
        _ => 1,
    };
    0.05 / all.iter().map(claims).sum::<usize>().max(1) as f64
}

/// Reckons a sentence's figures again.
pub fn again(record: &TenantsRecord, s: &Statement, alpha: f64) -> Result<(), String> {
    match s.about {
        About::Bias => {
            let what = s.text["Bias of ".len()..].split(" between").next().unwrap();
            let of = |label: &str| over(record, label, |c| bias(&each(c, what)?));
            let labels = record.points.iter().filter(|p| p.tenants > 1).map(ToString::to_string);
            let all: Vec<(String, Sample)> = labels.filter_map(|l| of(&l).map(|s| (l, s))).collect();
            let end = |i: usize, times: f64| all[i].1.grown(times).interval(alpha / all.len() as f64);
            let most = |of: &dyn Fn(usize) -> f64| (0..all.len()).map(of).fold(0.0, f64::max);
            let value = most(&|i| all[i].1.mean);
            let at =
                s.text.split_once("(at ").and_then(|(_, r)| r.split_once("); ")).map_or("", |(at, _)| at);
            if !all.iter().any(|(label, s)| label == at && near(s.mean, value)) {
                return Err(format!("{at} is not where it is largest: {s:?}"));
            }
            check(
                s,
                &|times| (value, [most(&|i| end(i, times)[0]), most(&|i| end(i, times)[1])]),
                alpha,
                n(record, all.iter().map(|a| &a.0)),
            )
        }
        About::Steering => {
            let label = s.text.split_once(": throughput of ").unwrap().1.split(" is ").next().unwrap();
            let on = over(record, &format!("{label}, RPS"), rate).ok_or("no RPS")?;
            let off = over(record, label, rate).ok_or("no such point")?;
            on.over(&off, alpha).ok_or("nothing to compare")?;
            let ratio = |times| on.grown(times).over(&off.grown(times), alpha).unwrap();
            check(s, &ratio, alpha, n(record, [label.to_owned(), format!("{label}, RPS")].iter()))
        }
        About::Weights | About::Infeasible => weights(record, s, alpha),
        About::Peak => peak(record, s, alpha),
        About::Standstill => standstill(record, s, alpha),
    }
}

/// Fewest repetitions of several points.
fn n<'a>(record: &TenantsRecord, labels: impl Iterator<Item = &'a String>) -> usize {
    labels.map(|l| cells(record, l).len()).min().unwrap_or(0)
}

fn weights(record: &TenantsRecord, s: &Statement, alpha: f64) -> Result<(), String> {
    let fail = |why: String| Err(format!("{why}: {s:?}"));
    let (label, rest) = s.text.split_once(": shares ").unwrap();
    let point = point(record, label);
    let numbers = |list: &str| list.split(" : ").map(|n| n.parse().unwrap()).collect::<Vec<f64>>();
    let same = |list: &str, ours: &[f64]| {
        let printed = numbers(list);
        printed.len() == ours.len() && printed.iter().zip(ours).all(|(a, b)| (a - b).abs() <= half_digit(1))
    };
    let of = |i: usize| over(record, label, |c| Some(shares(c)?[i])).map(|s| s.mean);
    let means: Vec<f64> = (0..point.tenants).map(of).collect::<Option<_>>().unwrap();
    if !same(rest.split(" %").next().unwrap(), &means) {
        return fail(format!("shares {means:?}"));
    }
    let (due, possible) = (due(point), feasible(record, point));
    let infeasible = due.iter().zip(&possible).any(|(due, possible)| *possible < 0.99 * due);
    if infeasible != (s.about == About::Infeasible) {
        return fail(format!("due {due:?}, possible {possible:?}"));
    }
    if infeasible {
        let (cpus, each) = feasible_cpus(record, point);
        let tenant = number_after(rest, "proportion: tenant ").unwrap() as usize - 1;
        let threads = number_after(rest, " can use no more than ").unwrap();
        let told = number_after(rest, "which is ").unwrap();
        let of = number_after(rest, &format!("which is {told:.2} of ")).unwrap();
        let asked = number_after(rest, " has ").unwrap();
        if (asked - due[tenant]).abs() > half_digit(1)
            || (told - cpus * due[tenant] / 100.0).abs() > half_digit(2)
            || (threads - each[tenant]).abs() > half_digit(2)
            || threads > f64::from(point.vcpus.unwrap_or(1))
            || of != cpus
            || told <= threads
        {
            return fail(format!("{cpus} CPUs, {each:?} possible, due {due:?}"));
        }
        if !same(rest.split_once("Feasible are ").unwrap().1.split(" %").next().unwrap(), &possible) {
            return fail(format!("possible {possible:?}"));
        }
    }
    let others = over(record, label, |c| c.measured.cpu.as_ref()?.others_pct).map_or(0.0, |s| s.mean);
    let told = number_after(&s.text, "Others used ");
    if told.is_some() != (others > 5.0) || told.is_some_and(|told| (told - others).abs() > half_digit(1)) {
        return fail(format!("others {others}"));
    }
    if s.bound != if point.one_cpu { 2.0 } else { 8.0 } {
        return fail("the bound".into());
    }
    let due = if infeasible { &possible } else { &due };
    let figure = |times| deviation(record, label, due, alpha, times).unwrap();
    check(s, &figure, alpha, cells(record, label).len())
}

fn peak(record: &TenantsRecord, s: &Statement, alpha: f64) -> Result<(), String> {
    let fail = |why: String| Err(format!("{why}: {s:?}"));
    let series = series(&s.text).unwrap();
    let line = line(record, series);
    let mark = if s.answer.is_some() { "throughput peaks at " } else { "the highest mean is that of " };
    let tenants = number_after(&s.text, mark).unwrap() as usize;
    let rest = s.text.split_once(mark).unwrap().1;
    let told = number_after(rest, ", ").unwrap();
    let best = line.iter().find(|(n, _)| *n == tenants).unwrap().1;
    if (told - best.mean).abs() > half_digit(0) || line.iter().any(|(_, o)| o.mean > best.mean * (1.0 + 1e-9))
    {
        return fail(format!("{line:?}"));
    }
    let others: Vec<&Sample> = line.iter().filter(|(n, _)| *n != tenants).map(|(_, s)| s).collect();
    let each = alpha / others.len() as f64;
    let least = |times: f64| {
        let ratios = others.iter().filter_map(|o| best.grown(times).over(&o.grown(times), each));
        let far = (f64::INFINITY, [f64::INFINITY; 2]);
        ratios.fold(far, |a, b| (a.0.min(b.0), [a.1[0].min(b.1[0]), a.1[1].min(b.1[1])]))
    };
    let figure = least(1.0);
    let ahead = figure.1[0] - 1.0;
    if ahead.abs() > 1e-9 && (ahead > 0.0) != s.answer.is_some() || figure.0 <= 1.0 && s.answer.is_some() {
        return fail(format!("the next best {figure:?}"));
    }
    let labels: Vec<String> = line.iter().map(|(n, _)| format!("{n} x {series}")).collect();
    undecided(s, &least, alpha, n(record, labels.iter()))
}

fn standstill(record: &TenantsRecord, s: &Statement, alpha: f64) -> Result<(), String> {
    let fail = |why: String| Err(format!("{why}: {s:?}"));
    let (label, rest) = s.text.split_once(": tenant ").unwrap();
    let cells = cells(record, label);
    let windows = |tenant: usize| {
        let all = cells.iter().flat_map(|c| &c.measured.net.as_ref().unwrap().tenants[tenant].windows);
        let all: Vec<u64> = all.copied().collect();
        (all.iter().filter(|n| **n == 0).count(), all.len())
    };
    let tenant = number_after(rest, "").unwrap() as usize - 1;
    let (zero, of) = windows(tenant);
    let told = number_after(rest, "one answer in ").unwrap() as usize;
    let all = number_after(rest, &format!("one answer in {told} of ")).unwrap() as usize;
    let tenants = point(record, label).tenants;
    if (told, all) != (zero, of) || (0..tenants).any(|t| windows(t).0 > zero) {
        return fail(format!("{zero} of {of}"));
    }
    let waited = |tenant: usize| {
        sample(
            &cells
                .iter()
                .filter_map(|c| c.measured.net.as_ref()?.tenants[tenant].wait_pct)
                .collect::<Vec<_>>(),
        )
    };
    let others: Vec<Sample> = (0..tenants).filter(|t| *t != tenant).filter_map(waited).collect();
    let known = waited(tenant).filter(|_| !others.is_empty());
    let Some((ours, own)) = known.zip(number_after(&s.text, "waited for a CPU ")) else {
        let told = s.text.contains("waited for a CPU");
        return if told == known.is_some() { Ok(()) } else { fail("waits".into()) };
    };
    let least = number_after(&s.text, "least of the others' ").unwrap();
    let fewest = others.iter().map(|o| o.mean).fold(f64::INFINITY, f64::min);
    if (ours.mean - own).abs() > half_digit(0) || (fewest - least).abs() > half_digit(0) {
        return fail(format!("waited {ours:?}, others {fewest}"));
    }
    // A cause is named only where its own figure differs beyond its interval.
    let longer = others.iter().map(|o| ours.less(o, alpha / others.len() as f64).1[0]);
    let longer = longer.fold(f64::NEG_INFINITY, f64::max);
    if s.text.contains("Groups that lose their turn") != (longer > 0.0) && longer.abs() > 1e-6 {
        return fail(format!("a cause that its figure contradicts: longer by at least {longer}"));
    }
    Ok(())
}

/// Whether the printed figure, interval and reason are those reckoned.
fn check(s: &Statement, figure: &dyn Fn(f64) -> Figure, alpha: f64, n: usize) -> Result<(), String> {
    let t = half_digit(s.digits);
    let same = |a: f64, b: f64| a == b || (a - b).abs() <= t + 2e-4 * b.abs() || far(a, b);
    let (value, [low, high]) = figure(1.0);
    let exact = high - low <= 2.0 * t;
    let right = match s.interval {
        Some([a, b]) => same(a, low) && same(b, high) || exact && a == b,
        // Nothing is known of one end at least.
        None => !(low.is_finite() && high.is_finite() && low < high) || n < 2,
    };
    if !same(s.value, value) || !right {
        return Err(format!("{value} [{low}, {high}] at {alpha}: {s:?}"));
    }
    undecided(s, figure, alpha, n)
}

/// Very large numbers are printed with two digits.
fn far(printed: f64, ours: f64) -> bool {
    printed >= 1e7 && (printed / ours - 1.0).abs() < 0.06
}

/// Whether the reason why it is open follows from the figure, which is that of so many times as many repetitions.
fn undecided(s: &Statement, figure: &dyn Fn(f64) -> Figure, alpha: f64, n: usize) -> Result<(), String> {
    let (value, [low, high]) = figure(1.0);
    let fail = |why: &str| Err(format!("{why}; {value} [{low}, {high}] at {alpha}: {s:?}"));
    if s.text.contains("Undecided: the two are equal") && (value - 1.0).abs() > 0.006 {
        return fail("they are not");
    }
    if let Some((_, rest)) = s.text.split_once("Undecided: the bound of ") {
        let bound = number_after(rest, "").unwrap();
        let (from, to) = rest.split_once("lies within ").unwrap().1.split_once(" to ").unwrap();
        let to = to.split(';').next().unwrap();
        let (from, to): (f64, f64) = (from.parse().unwrap(), to.parse().unwrap());
        if bound != s.bound
            || !near(from, low) && (from - low).abs() > 1e-4
            || !near(to, high) && !far(to, high)
        {
            return fail("the reason");
        }
        let settled = |repetitions: f64| {
            let (_, [low, high]) = figure(repetitions / n as f64);
            high <= bound || low >= bound
        };
        let right = match number_after(rest, "; about ") {
            Some(m) => settled(1.02 * m) && (m as usize <= n + 1 || !settled(0.98 * (m - 1.0))),
            None => !settled(9_800.0) || (bound - value).abs() < 1e-9,
        };
        // Ends that differ by rounding alone settle nothing.
        let right = right || high - low < 1e-9;
        return if right { Ok(()) } else { fail("repetitions that would settle it") };
    }
    if s.text.contains("one repetition shows no interval") && n > 1 {
        return fail("there is more than one repetition");
    }
    Ok(())
}
