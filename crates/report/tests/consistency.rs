//! No sentence contradicts its figures: records are generated for every built-in experiment (nulls, planted effects, one
//! repetition, missing cells, unlike loads, runs cut off), go through the real study and report, and what is *printed* is
//! read back and reckoned again from the raw record, by code that shares nothing with the study.
//!
//! `EVENKEEL_CONSISTENCY_RECORDS` sets the number of records (short by default).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use evenkeel_base::{CpuSet, Topology};
use evenkeel_experiment::record::{
    Account, Cell, Ended, Host, HostUse, Limits, Point, Record, Release, RunRecord, SCHEMA, StealRecord,
    TenantRecord,
};
use evenkeel_experiment::study::study;
use evenkeel_lab::builtin::{BUILTINS, Builtin, Plan};
use evenkeel_report::lab;

#[path = "consistency/readers.rs"]
mod readers;

/// Numbers that look random, the same every time.
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[((self.uniform() * of.len() as f64) as usize).min(of.len() - 1)]
    }

    fn normal(&mut self) -> f64 {
        let (u, v) = (self.uniform().max(1e-12), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

fn count(short: usize) -> usize {
    std::env::var("EVENKEEL_CONSISTENCY_RECORDS").ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

const CPUS: u32 = 2;

fn plan() -> Plan {
    Plan {
        quick: true,
        cpus: CpuSet::first_n(CPUS),
        topology: Some(Topology::synthetic(1, 1, CPUS, 1)),
        primes_per_s: 1000.0,
    }
}

/// What a made-up host does to tenants in one record.
struct World {
    repetitions: u32,
    noise: f64,
    /// CPU for the same work under a quota, over that without.
    quota_cost: f64,
    /// Shares are off the weights' by up to this part.
    unfair: f64,
    /// Time under each limit, over what its size makes of it; and what is stolen without one.
    stolen: f64,
    cut_off: bool,
    missing: f64,
}

fn world(random: &mut Random) -> World {
    World {
        repetitions: random.pick(&[1, 2, 3, 3, 5, 8]),
        noise: random.pick(&[0.0, 0.001, 0.01, 0.1, 0.5]),
        quota_cost: random.pick(&[1.0, 1.0, 1.04, 1.2, 1.5]),
        unfair: random.pick(&[0.0, 0.0, 0.01, 0.1, 0.4]),
        stolen: random.pick(&[0.0, 0.02, 0.4, 0.9]),
        cut_off: random.uniform() < 0.2,
        missing: random.pick(&[0.0, 0.0, 0.2]),
    }
}

fn generated(builtin: &Builtin, random: &mut Random) -> Record {
    let world = world(random);
    let experiment = builtin.experiment(&plan());
    let points = experiment.points().unwrap();
    let mut cells = Vec::new();
    for repetition in 0..world.repetitions {
        for planned in &points {
            if random.uniform() < world.missing {
                continue;
            }
            let mut cell = Cell {
                point: planned.point.clone(),
                repetition,
                host: HostUse { harness_cpu_pct: Some(0.1 + random.uniform()), ..HostUse::default() },
                ..Cell::default()
            };
            if planned.point.unavailable.is_none() {
                fill(&mut cell, &planned.experiment, &world, random);
            }
            cells.push(cell);
        }
    }
    Record {
        schema: SCHEMA.into(),
        name: builtin.name.into(),
        builtin: Some(builtin.name.into()),
        quick: true,
        sources: builtin.sources.iter().map(|s| (*s).to_owned()).collect(),
        version: "0".into(),
        began: "2026-01-01T00:00:00Z".into(),
        host: Host { cpus: Some(CPUS), cores: Some(CPUS), threads_per_core: Some(1), ..Host::default() },
        planned_cells: cells.len(),
        experiment: Some(experiment),
        cells,
        ..Record::default()
    }
}

fn fill(
    cell: &mut Cell,
    experiment: &evenkeel_experiment::file::Experiment,
    world: &World,
    random: &mut Random,
) {
    let tenants = experiment.tenants();
    let specs: Vec<_> = tenants.iter().map(|t| &experiment.tenants[t.spec]).collect();
    let weights: Vec<f64> = tenants
        .iter()
        .zip(&specs)
        .map(|(t, s)| {
            let set = s.shares.map(|v| v as f64).or(s.weight.map(|w| w as f64 * 10.24));
            set.unwrap_or_else(|| t.units.map_or(1024.0, |u| u as f64 * 16.0))
                * (1.0 + world.unfair * random.normal().clamp(-1.0, 1.0))
        })
        .collect();
    let all: f64 = weights.iter().sum();
    let mut longest: f64 = 0.0;
    for ((tenant, spec), weight) in tenants.iter().zip(&specs).zip(&weights) {
        let noise = |r: &mut Random| (world.noise * r.normal()).exp();
        let mut cpu = (weight / all * f64::from(CPUS)).min(f64::from(spec.threads.max(1)));
        cpu = spec.cpus.as_ref().map_or(cpu, |c| cpu.min(c.len() as f64));
        cpu = spec.quota_pct.map_or(cpu, |q| cpu.min(q / 100.0)).max(1e-4) * noise(random);
        let cost = if spec.quota_pct.is_some() { world.quota_cost } else { 1.0 } * noise(random);
        let stolen = if experiment.enforcer.is_some() {
            // The larger the limit the more is stolen, without one most.
            world.stolen * spec.quota_pct.map_or(1.0, |q| (q / 100.0).powi(2)) * noise(random).min(1.05)
        } else {
            0.0
        };
        let stolen = stolen.min(0.95);
        let per_cpu_s = 1000.0 / cost;
        let (mut runs, mut at) = (Vec::new(), 0.0);
        let load = spec.load.clone().unwrap_or_else(|| "primes".into());
        for number in 0..if spec.background { 1 } else { spec.runs.clamp(1, 2) } {
            let length = match spec.run_s {
                Some(asked) => asked + 0.01 * noise(random) / cpu.min(1.0),
                None => spec.events.map_or(1.0, |e| e as f64 / 1000.0) * cost / cpu / (1.0 - stolen),
            };
            let used = cpu * length * (1.0 - stolen);
            let events = (used * per_cpu_s).max(1.0);
            runs.push(RunRecord {
                number,
                start_s: at,
                end_s: at + length,
                events: Some(events as u64),
                events_per_s: Some(events / length),
                account: Account {
                    real_s: length,
                    user_s: Some(0.9 * used),
                    sys_s: Some(0.1 * used * noise(random)),
                    involuntary: Some((used * 100.0 * noise(random)) as u64 + 1),
                    ..Account::default()
                },
                ..RunRecord::default()
            });
            at += length + 0.001;
        }
        let sum = |of: fn(&Account) -> Option<f64>| runs.iter().map(|r| of(&r.account)).sum::<Option<f64>>();
        let used = sum(Account::cpu_s).unwrap();
        let total = Account {
            real_s: at,
            user_s: sum(|a| a.user_s),
            sys_s: sum(|a| a.sys_s),
            throttled_s: spec.quota_pct.map(|_| 0.1),
            stolen_s: Some(used * stolen / (1.0 - stolen)),
            involuntary: runs.iter().map(|r| r.account.involuntary).sum(),
            ..Account::default()
        };
        let cut =
            world.cut_off && !spec.background && spec.quota_pct.is_none() && experiment.enforcer.is_some();
        if cut {
            runs.clear();
        }
        longest = longest.max(at);
        cell.tenants.push(TenantRecord {
            name: tenant.name.clone(),
            units: tenant.units,
            place: "cgroup".into(),
            limits: Limits {
                shares: spec.shares.or(tenant.units.map(|u| u * 16)),
                weight: spec.weight,
                quota_pct: spec.quota_pct,
                period_usec: spec.quota_pct.map(|_| 100_000),
                cpus: spec.cpus.clone(),
                ..Limits::default()
            },
            workload: match (spec.run_s, spec.events) {
                (Some(s), _) => format!("{load} --seconds {s}"),
                (None, Some(e)) => format!("{load} --events {e}"),
                _ => load,
            },
            threads: spec.threads.max(1),
            runs_planned: if spec.background { 0 } else { spec.runs },
            release: Release { woken_late_usec: Some(2000.0 * random.uniform()), ..Release::default() },
            ended: if cut { Ended::TimeLimit("10 s".into()) } else { Ended::Done },
            total,
            runs,
        });
    }
    cell.seconds = longest;
    cell.activation = (0..cell.tenants.len()).collect();
    cell.enforcer = experiment.enforcer.as_ref().map(|e| StealRecord {
        rule: e.rule,
        time_scale: e.time_scale,
        demanded_s: 1.0,
        given_s: 1.0,
        stolen_s: 0.0,
        punished_s: 0.0,
        credits: None,
        trace: Vec::new(),
    });
}

/// A printed verdict.
#[derive(Debug)]
struct Printed {
    holds: String,
    text: String,
    test: String,
    value: Option<f64>,
    interval: Option<[Option<f64>; 2]>,
    bound: String,
}

/// Reads the table of verdicts back from the markdown.
fn printed(markdown: &str) -> Vec<Printed> {
    let plain = |cell: &str| {
        let mut out = String::new();
        let mut escaped = false;
        for c in cell.trim().replace("&lt;", "<").replace("&gt;", ">").chars() {
            if c == '\\' && !escaped {
                escaped = true;
            } else {
                out.push(c);
                escaped = false;
            }
        }
        out
    };
    let part = markdown.split("## Verdicts").nth(1).unwrap_or("").split("\n## ").next().unwrap_or("");
    part.lines()
        .filter(|l| ["| yes |", "| no |", "| ? |"].iter().any(|s| l.starts_with(s)))
        .map(|line| {
            let cells: Vec<String> = line.trim_matches('|').split(" | ").map(plain).collect();
            assert_eq!(cells.len(), 5, "{line}");
            let value = cells[3].split_whitespace().next().and_then(|v| v.parse().ok());
            let interval = cells[3].split_once('[').map(|(_, rest)| {
                let ends: Vec<&str> = rest.split(']').next().unwrap().split(", ").collect();
                [ends[0].parse().ok(), ends[1].parse().ok()]
            });
            let [holds, text, test, _, bound] = <[String; 5]>::try_from(cells).unwrap();
            Printed { holds, text, test, value, interval, bound }
        })
        .collect()
}

/// Four printed digits, of numbers of the size of `near`.
fn slack(near: f64) -> f64 {
    1e-3 * near.abs() + 1e-6
}

/// Whether the answer follows from what stands beside it.
fn follows(p: &Printed) -> Result<(), String> {
    let fail = |why: &str| Err(format!("{why}: {p:?}"));
    if (p.holds == "?") != p.text.contains("Undecided") && !(p.holds == "?" && p.bound.is_empty()) {
        return fail("undecided or not");
    }
    if let Some((sign, bound)) = p.bound.split_once(' ') {
        let bound: f64 = bound.parse().map_err(|_| format!("bound: {p:?}"))?;
        let seen_in_full = p.test.contains("of all");
        let [low, high] = match p.interval {
            Some([low, high]) => [low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY)],
            None if seen_in_full => [p.value.unwrap_or(f64::NAN); 2],
            None if p.holds == "?" => [f64::NEG_INFINITY, f64::INFINITY],
            None => return fail("an answer without an interval"),
        };
        let t = slack(bound);
        let at_most = sign == "<=";
        let inside = if at_most { high <= bound + t } else { low >= bound - t };
        let outside = if at_most { low >= bound - t } else { high <= bound + t };
        let across = low <= bound + t && high >= bound - t;
        let right = match p.holds.as_str() {
            "yes" => inside,
            "no" => outside,
            _ => across,
        };
        if !right {
            return fail("the interval says otherwise");
        }
        if let Some(value) = p.value.filter(|v| low > v + slack(*v) || high < v - slack(*v)) {
            return fail(&format!("{value} is not in its interval"));
        }
    }
    // Words that stand for an answer.
    for (words, needed) in [
        ("Weights hold within", "yes"),
        ("Weights do not hold", "no"),
        ("A limit helps", "yes"),
        ("No limit is fast", "no"),
        ("does not make it dearer", "no"),
        ("Quotas are kept by", "yes"),
        ("Quotas are not kept", "no"),
        ("the number of units does not matter", "yes"),
        ("the number of units seems to matter", "no"),
        ("is open", "?"),
        ("differ, too:", "yes"),
        ("because", "yes"),
        ("The claim holds here", "yes"),
        ("The claim does not hold here", "no"),
        ("3 of 3 are decided", "yes"),
        ("Threads contend when", "yes"),
        ("Threads do not contend", "no"),
    ] {
        let summed = p.text.starts_with("Of ") && p.text.contains(" points ");
        if p.text.contains(words) && p.holds != needed && !summed {
            return fail(&format!("{words:?} is said"));
        }
    }
    Ok(())
}

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 6e-3 * a.abs().max(b.abs()) + 1e-4
}

/// Whether a ratio of two numbers printed with three digits is what is printed.
fn by_three_digits(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.012 * a.abs().max(b.abs())
}

/// The first number after a text.
fn number_after(text: &str, mark: &str) -> Option<f64> {
    let rest = text.split_once(mark)?.1.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().ok()
}

fn of_point<'a>(record: &'a Record, label: &str) -> Vec<&'a Cell> {
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
            let alike = cell.tenants.iter().all(|t| kind(t) == kind(&cell.tenants[0]));
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
fn again(record: &Record, p: &Printed) -> Option<Result<(), String>> {
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

#[test]
fn no_sentence_contradicts_its_figures() {
    let mut random = Random(14);
    let records = count(120);
    let (mut sentences, mut reckoned, mut undecided) = (0, 0, 0);
    let mut wrong: Vec<String> = Vec::new();
    for n in 0..records {
        let builtin = &BUILTINS[n % BUILTINS.len()];
        let record = generated(builtin, &mut random);
        let study = study(&record);
        let table = printed(&lab::markdown(&study));
        assert_eq!(table.len(), study.verdicts.len(), "{}", builtin.name);
        let shown = lab::text(&study, Some(100)).split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(shown.contains("SYS s"), !study.readings.is_empty(), "{}", builtin.name);
        for p in &table {
            sentences += 1;
            undecided += usize::from(p.holds == "?");
            let start: String = p.text.split_whitespace().take(6).collect::<Vec<_>>().join(" ");
            if !shown.contains(&start) {
                wrong.push(format!("{}: not on the terminal: {p:?}", builtin.name));
            }
            wrong.extend(follows(p).err().map(|why| format!("{} ({n}): {why}", builtin.name)));
            if let Some(result) = again(&record, p) {
                reckoned += 1;
                wrong.extend(result.err().map(|why| format!("{} ({n}): {why}", builtin.name)));
            }
        }
    }
    println!(
        "{records} records, {sentences} sentences ({undecided} undecided), {reckoned} figures reckoned again, {} contradictions",
        wrong.len()
    );
    assert!(
        wrong.is_empty(),
        "{} contradictions, the first:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
    assert!(reckoned > sentences / 10 && undecided < sentences, "{reckoned} of {sentences}");
}

/// Two tenants of weights 1:2 on one CPU, or a job without and with a quota: the effect is `log` on a log scale.
fn pair(kind: &str, effect: f64, n: usize, noise: f64, random: &mut Random) -> Record {
    let builtin = BUILTINS.iter().find(|b| b.name == "isolation").unwrap();
    let mut record = generated(builtin, &mut Random(1));
    record.cells.clear();
    let tenant =
        |name: &str, shares: u64, quota: Option<f64>, seconds: f64, cpu: f64, events: f64| TenantRecord {
            name: name.into(),
            units: None,
            place: "cgroup".into(),
            limits: Limits {
                shares: Some(shares),
                cpus: "0".parse().ok(),
                quota_pct: quota,
                ..Limits::default()
            },
            workload: "primes --events 1000".into(),
            threads: 1,
            runs_planned: 1,
            release: Release::default(),
            ended: Ended::Done,
            total: Account {
                real_s: seconds,
                user_s: Some(cpu),
                sys_s: Some(0.0),
                stolen_s: Some(0.0),
                ..Account::default()
            },
            runs: vec![RunRecord {
                end_s: seconds,
                events: Some(events as u64),
                events_per_s: Some(events / seconds),
                account: Account {
                    real_s: seconds,
                    user_s: Some(cpu),
                    sys_s: Some(0.0),
                    ..Account::default()
                },
                ..RunRecord::default()
            }],
        };
    for repetition in 0..n as u32 {
        let mut add = |index: usize, label: &str, tenants: Vec<TenantRecord>| {
            record.cells.push(Cell {
                point: Point { index, label: label.into(), ..Point::default() },
                repetition,
                seconds: 1.0,
                activation: (0..tenants.len()).collect(),
                tenants,
                ..Cell::default()
            });
        };
        if kind == "weights" {
            let share = (1.0 + (effect + noise * random.normal())) / 3.0;
            add(
                0,
                "x",
                vec![
                    tenant("a", 1024, None, 1.0, share, 1e7 * share),
                    tenant("b", 2048, None, 1.0, 1.0 - share, 1e7 * (1.0 - share)),
                ],
            );
        } else {
            // Times without and with a limit; or CPU for the same work without and with a quota.
            let wobble = (effect + noise * random.normal()).exp();
            let other = (noise * random.normal()).exp();
            let (time, cpu) = if kind == "limit" { (wobble, 0.5) } else { (1.0, other) };
            add(0, "none", vec![tenant("a", 1024, None, 4.0 * time, cpu, 1000.0)]);
            let (time, cpu) = if kind == "limit" { (other, 0.5) } else { (1.0, wobble) };
            add(1, "quota", vec![tenant("a", 1024, Some(50.0), 4.0 * time, cpu, 1000.0)]);
        }
    }
    record
}

#[test]
fn planted_effects_are_found_and_nulls_are_not() {
    let mut random = Random(41);
    let rounds = (count(120) / 10).clamp(100, 400);
    for (kind, test, bound, planted_is) in [
        ("weights", "largest deviation of a share from its weight's", 0.02f64, "no"),
        ("quota", "CPU time an event", 1.05f64.ln(), "yes"),
        ("limit", "time without a limit over time under", 1.1f64.ln(), "yes"),
    ] {
        let n = 5;
        let noise = 0.004;
        let mut answer = |effect: f64| {
            let record = pair(kind, effect, n, noise, &mut random);
            let all = printed(&lab::markdown(&study(&record)));
            all.into_iter().find(|p| p.test.starts_with(test)).unwrap_or_else(|| panic!("{kind}: no verdict"))
        };
        // Half the width of the interval printed, in the unit of the effect.
        let half = average(
            &(0..60)
                .map(|_| {
                    let p = answer(bound);
                    let [low, high] = p.interval.unwrap().map(Option::unwrap);
                    if kind == "weights" { (high - low) / 200.0 } else { (high / low).ln() / 2.0 }
                })
                .collect::<Vec<_>>(),
        );
        let found = (0..rounds).filter(|_| answer(bound + 2.0 * half).holds == planted_is).count();
        let open = (0..rounds).filter(|_| answer(bound).holds == "?").count();
        let absent = (0..rounds).filter(|_| answer(0.0).holds != planted_is).count();
        println!(
            "{kind}: half width {half:.4}; planted found {found}, on the bound undecided {open}, null absent {absent}, of {rounds}"
        );
        for (what, n) in [("found", found), ("undecided", open), ("absent", absent)] {
            assert!(n * 100 >= 95 * rounds, "{kind}: {what} {n} of {rounds}");
        }
    }
}

#[test]
fn the_reader_sees_a_contradiction() {
    let row = |holds: &str, value: &str, text: &str| {
        let table = format!(
            "## Verdicts\n\n| holds | verdict | test | value | bound |\n| {holds} | {text} | x | {value} | &lt;= 10 |\n"
        );
        follows(&printed(&table)[0])
    };
    assert!(row("yes", "1.19 \\[0.15, 9.38\\]", "It holds.").is_ok());
    assert!(row("no", "94.4 \\[0, 1067\\] %", "It does not.").unwrap_err().contains("says otherwise"));
    assert!(row("yes", "3.7 \\[0, 17.4\\] %", "It holds.").is_err());
    assert!(row("yes", "3.7 %", "It holds.").unwrap_err().contains("without an interval"));
    assert!(row("?", "3.7 \\[0, 17.4\\] %", "Undecided: .").is_ok());
    assert!(row("?", "3.7 \\[0, 7\\] %", "Undecided: .").is_err());
}
