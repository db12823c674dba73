//! The figures of verdicts, reckoned again from the raw record.

use evenkeel_experiment::record::{Cell, Record, RunRecord, TenantRecord};

use super::readers;
use crate::printed::{Printed, average, by_three_digits, near, number_after, slack};

pub fn of_point<'a>(record: &'a Record, label: &str) -> Vec<&'a Cell> {
    record.cells.iter().filter(|c| c.point.label == label && !c.tenants.is_empty()).collect()
}

/// Mean shares by CPU time over real time, or by events of like loads; by hand.
fn shares(cells: &[&Cell]) -> Option<Vec<f64>> {
    let each: Option<Vec<Vec<f64>>> = cells
        .iter()
        .map(|cell| {
            let from = cell.tenants.iter().map(|t| t.runs[0].start_s).fold(0.0, f64::max);
            let to = cell.tenants.iter().map(|t| t.runs.last().unwrap().end_s).fold(f64::INFINITY, f64::min);
            let kind = |t: &TenantRecord| {
                t.workload.split(" --seconds").next().unwrap().split(" --events").next().unwrap().to_owned()
            };
            let counted = |t: &TenantRecord| t.runs.iter().all(|r| r.events.is_some());
            let alike = cell.tenants.iter().all(|t| kind(t) == kind(&cell.tenants[0]) && counted(t));
            let work = |r: &RunRecord| {
                if alike {
                    r.events.unwrap() as f64
                } else {
                    r.account.user_s.unwrap() + r.account.sys_s.unwrap()
                }
            };
            let rate = |t: &TenantRecord| {
                let whole: Vec<&RunRecord> =
                    t.runs.iter().filter(|r| r.start_s >= from - 1e-9 && r.end_s <= to + 1e-9).collect();
                if whole.len() >= 2 {
                    return whole.iter().map(|r| work(r)).sum::<f64>()
                        / (whole.last().unwrap().end_s - whole[0].start_s);
                }
                t.runs
                    .iter()
                    .map(|r| {
                        let part = (r.end_s.min(to) - r.start_s.max(from)).max(0.0);
                        work(r) * part / (r.end_s - r.start_s)
                    })
                    .sum::<f64>()
                    / (to - from)
            };
            let rates: Vec<f64> = cell.tenants.iter().map(rate).collect();
            let sum: f64 = rates.iter().sum();
            (sum > 0.0).then(|| rates.iter().map(|r| r / sum).collect())
        })
        .collect();
    let each = each?;
    let n = each.first()?.len();
    Some((0..n).map(|i| average(&each.iter().map(|s| s[i]).collect::<Vec<_>>())).collect())
}

/// Reckons a printed figure again from the raw record; `None` where this test has no second way.
pub fn again(record: &Record, p: &Printed) -> Option<Result<(), String>> {
    let say = |ours: f64, printed: f64| {
        if near(ours, printed) { Ok(()) } else { Err(format!("{ours} reckoned, {printed} printed: {p:?}")) }
    };
    // `label: ..`, perhaps after a summary of many points.
    let sentence = p.text.split_once("the worst: ").map_or(p.text.as_str(), |(_, rest)| rest);
    let labels: Vec<&str> = record.cells.iter().map(|c| c.point.label.as_str()).collect();
    let label =
        labels.iter().copied().filter(|l| sentence.starts_with(&format!("{l}: "))).max_by_key(|l| l.len());
    if p.test.starts_with("(max - min) / mean of the shares") {
        let s = shares(&of_point(record, label?))?;
        let bias = 100.0
            * (s.iter().copied().fold(0.0, f64::max) - s.iter().copied().fold(1.0, f64::min))
            * s.len() as f64;
        return Some(say(bias, p.value?));
    }
    if p.test.starts_with("largest deviation of a share from its weight's") {
        let cells = of_point(record, label?);
        let weights: Vec<f64> = cells[0]
            .tenants
            .iter()
            .map(|t| {
                t.limits
                    .shares
                    .map_or_else(|| t.limits.weight.map_or(1024.0, |w| w as f64 * 10.24), |s| s as f64)
            })
            .collect();
        let sum: f64 = weights.iter().sum();
        let s = shares(&cells)?;
        let off =
            s.iter().zip(&weights).map(|(s, w)| 100.0 * (s / (w / sum) - 1.0).abs()).fold(0.0, f64::max);
        return Some(say(off, p.value?));
    }
    if p.test.starts_with("(max - min) / mean of the rate alone") {
        let mut rates = Vec::new();
        let mut done: Vec<&str> = Vec::new();
        for label in labels {
            if done.contains(&label) {
                continue;
            }
            done.push(label);
            let cells = of_point(record, label);
            if cells.is_empty() || cells[0].tenants.len() != 1 {
                continue;
            }
            let each = cells.iter().map(|c| {
                average(&c.tenants[0].runs.iter().map(|r| r.events_per_s.unwrap()).collect::<Vec<_>>())
            });
            rates.push(average(&each.collect::<Vec<_>>()));
        }
        let (low, high) = rates.iter().fold((f64::INFINITY, 0.0f64), |(a, b), r| (a.min(*r), b.max(*r)));
        return Some(say(100.0 * (high - low) / average(&rates), p.value?));
    }
    if p.test.starts_with("time without a limit over time under") {
        // Both times must be of one rule, and their ratio what is printed.
        let (none, best) = (
            number_after(&p.text, "without a limit it takes")?,
            number_after(&p.text, "under the best one tried")?,
        );
        let limit = best;
        let best = number_after(p.text.split_once("under the best one tried")?.1, "%) ")?;
        let mut rules: Vec<Vec<&Cell>> = Vec::new();
        for cell in record.cells.iter().filter(|c| c.tenants.len() == 1) {
            let rule = format!("{:?}", cell.enforcer.as_ref().map(|e| e.rule));
            match rules.iter_mut().find(|r| format!("{:?}", r[0].enforcer.as_ref().map(|e| e.rule)) == rule) {
                Some(cells) => cells.push(cell),
                None => rules.push(vec![cell]),
            }
        }
        let time = |cells: &[&Cell], quota: Option<f64>| {
            let of: Vec<f64> = cells
                .iter()
                .filter(|c| c.tenants[0].limits.quota_pct == quota)
                .map(|c| {
                    if c.tenants[0].runs.is_empty() {
                        c.seconds
                    } else {
                        c.tenants[0].runs.last().unwrap().end_s - c.tenants[0].runs[0].start_s
                    }
                })
                .collect();
            (!of.is_empty()).then(|| average(&of))
        };
        // "isolation" has more than one point without a limit: any of them.
        let fits = rules.iter().any(|cells| {
            let without = cells.iter().filter(|c| c.tenants[0].limits.quota_pct.is_none());
            let without: Vec<&str> = without.map(|c| c.point.label.as_str()).collect();
            let right = without.iter().any(|l| {
                let own: Vec<&Cell> = cells.iter().copied().filter(|c| c.point.label == *l).collect();
                time(&own, None).is_some_and(|s| near(s, none))
            });
            right && time(cells, Some(limit)).is_some_and(|s| near(s, best))
        });
        if !fits {
            return Some(Err(format!("{none} s and {best} s are not of one rule: {p:?}")));
        }
        return Some(if by_three_digits(none / best, p.value?) {
            Ok(())
        } else {
            Err(format!("{none} / {best}: {p:?}"))
        });
    }
    let used = |t: &TenantRecord| (t.total.user_s.unwrap() + t.total.sys_s.unwrap()) / t.total.real_s;
    if p.test.starts_with("CPU time that the mix got") {
        let (mix, rest) = p.text.split_once(": with ")?;
        let (one, rest) = rest.split_once(" the mix gets ")?;
        let other = rest.split_once("that it gets with ")?.1.split(": ").next()?;
        let all = |stage: &str| {
            let cells = of_point(record, &format!("{mix}: {stage}"));
            average(&cells.iter().map(|c| c.tenants.iter().map(used).sum()).collect::<Vec<f64>>())
        };
        return Some(say(all(one) / all(other), p.value?));
    }
    if p.test.starts_with("CPU got less CPU due") {
        let cells = of_point(record, label?);
        let weight = |t: &TenantRecord| t.limits.weight.unwrap() as f64;
        let weights: f64 = cells[0].tenants.iter().map(weight).sum();
        let over = |n: usize| {
            let tenant = &cells[0].tenants[n];
            let wanted = tenant
                .workload
                .split_once("--percent ")
                .map_or(0.0, |(_, rest)| rest.split(' ').next().unwrap().parse().unwrap());
            let due = f64::min(100.0 * weight(tenant) / weights, wanted);
            100.0 * average(&cells.iter().map(|c| used(&c.tenants[n])).collect::<Vec<_>>()) - due
        };
        return Some(say((0..cells[0].tenants.len()).map(over).fold(f64::INFINITY, f64::min), p.value?));
    }
    if p.test.starts_with("CPU time an event") {
        let (_, figures) = p.text.rsplit_once('(')?;
        let dear = number_after(figures, "")?;
        let base = number_after(figures, "against")?;
        return Some(if by_three_digits(dear / base, p.value?) {
            Ok(())
        } else {
            Err(format!("{dear} / {base}: {p:?}"))
        });
    }
    if p.test.starts_with("largest |CPU got - quota|") {
        let (had, got) = (number_after(&p.text, " had")?, number_after(&p.text, "and got")?);
        return Some(if (had - got).abs() <= p.value? + 0.02 + slack(had) * 2.0 {
            Ok(())
        } else {
            Err(format!("{had} {got}: {p:?}"))
        });
    }
    readers::again(record, p)
}
