//! The sources' tables next to what was measured here and what the model expects. Absolute rates do not travel from
//! host to host, so what is compared are ratios and times beyond what was asked for.

use std::collections::HashMap;

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{bias_pct, mean};
use evenkeel_base::text::count;

use super::stats::{difference, estimate, ratio};
use super::verdict::{advisor, three_digits};
use super::{PointStudy, SourceComparison, SourceRow, Study, TenantStudy};
use crate::record::Record;
use crate::sources::{SourceTable, table};

type Row = HashMap<String, String>;

/// The tables a record names, as far as its points have anything to put alongside.
pub(super) fn beside(record: &Record, study: &Study) -> Vec<SourceComparison> {
    let mut all = Vec::new();
    for name in &record.sources {
        let Some(table) = table(name) else { continue };
        let rows = parse(table);
        let made = match table.name {
            "iox_one_container" => one_container(&rows, study),
            "iox_20_containers_64_units" | "iox_20_containers_1155_units" => twenty(&rows, study),
            "iox_wait_by_container_count" => waits(&rows, study),
            name if name.starts_with("iox_mixed") => mixed(&rows, study),
            "iox_priority_10_containers" => priority(&rows, study),
            "iox_balance_4_patterns" => balance(&rows, record, study),
            "cgroup_prime_sieve" => sieve(&rows, study),
            "ec2_build_by_cpu_limit" => builds(&rows, record, study),
            advisor::STAGES => stages(&rows, record, study),
            advisor::PROMISES => promises(&rows, study),
            _ => None,
        };
        let Some((quantity, rows)) = made else { continue };
        if rows.iter().any(|row| row.measured.is_some()) {
            all.push(SourceComparison {
                name: table.name.into(),
                title: table.title.into(),
                quantity: quantity.into(),
                rows,
            });
        }
    }
    all
}

/// Rows by column name; quoted fields may hold commas.
fn parse(table: &SourceTable) -> Vec<Row> {
    let mut lines = table.csv.lines().filter(|line| !line.trim().is_empty());
    let Some(header) = lines.next() else { return Vec::new() };
    let header = fields(header);
    lines.map(|line| header.iter().cloned().zip(fields(line)).collect()).collect()
}

fn fields(line: &str) -> Vec<String> {
    let (mut fields, mut field, mut quoted) = (Vec::new(), String::new(), false);
    for c in line.trim_end().chars() {
        match c {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(std::mem::take(&mut field)),
            c => field.push(c),
        }
    }
    fields.push(field);
    fields
}

fn number(row: &Row, column: &str) -> Option<f64> {
    row.get(column)?.trim().parse().ok()
}

fn scale(e: Estimate, by: f64) -> Estimate {
    Estimate { value: e.value * by, low: e.low * by, high: e.high * by }
}

/// Times like `186m59.721s`.
fn minutes(text: &str) -> Option<f64> {
    let (minutes, seconds) = text.trim().strip_suffix('s')?.split_once('m')?;
    Some(minutes.parse::<f64>().ok()? * 60.0 + seconds.parse::<f64>().ok()?)
}

fn label(row: &Row) -> String {
    number(row, "cpu_units").map_or_else(|| "? units".into(), |units| count(units as usize, "unit"))
}

fn units(point: &PointStudy) -> Option<Vec<u64>> {
    let mut units: Vec<u64> = point.tenants.iter().map(|t| t.units).collect::<Option<_>>()?;
    units.sort_unstable();
    Some(units)
}

/// From its first start to its last end; a bound is no figure to compare.
fn took(tenant: &TenantStudy) -> Option<Estimate> {
    tenant.elapsed_s.filter(|_| !tenant.cut_off)
}

type Made = Option<(&'static str, Vec<SourceRow>)>;

fn one_container(rows: &[Row], study: &Study) -> Made {
    let ours: Vec<(u64, &TenantStudy)> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() == 1)
        .filter_map(|p| Some((p.tenants[0].units?, &p.tenants[0])))
        .collect();
    let source_mean = mean(&rows.iter().filter_map(|r| number(r, "eps")).collect::<Vec<_>>())?;
    let own_mean = mean(&ours.iter().filter_map(|(_, t)| Some(t.events_per_s?.mean)).collect::<Vec<_>>())?;
    let predicted_mean = mean(&ours.iter().filter_map(|(_, t)| t.predicted_per_s).collect::<Vec<_>>());
    let rows = rows
        .iter()
        .filter_map(|row| {
            let units = number(row, "cpu_units")? as u64;
            let own = ours.iter().find(|(u, _)| *u == units).map(|(_, t)| *t);
            Some(SourceRow {
                label: count(units as usize, "unit"),
                source: number(row, "eps").map(|eps| 100.0 * eps / source_mean),
                predicted: own.and_then(|t| Some(100.0 * t.predicted_per_s? / predicted_mean?)),
                measured: own.and_then(|t| Some(scale(t.events_per_s?.estimate(), 100.0 / own_mean))),
            })
        })
        .collect();
    Some(("events a second, percent of the mean over all numbers of units", rows))
}

fn twenty(rows: &[Row], study: &Study) -> Made {
    let wanted = number(rows.first()?, "cpu_units")? as u64;
    let point = study
        .points
        .iter()
        .filter(|p| units(p).is_some_and(|u| u.len() > 1 && u.iter().all(|u| *u == wanted)))
        .max_by_key(|p| p.tenants.len())?;
    let eps: Vec<f64> = rows.iter().filter_map(|r| number(r, "eps")).collect();
    let elapsed: Vec<f64> = rows.iter().filter_map(|r| number(r, "elapsed_s")).collect();
    let spread = |v: &[f64]| bias_pct(v);
    let own: Option<Vec<f64>> = point.tenants.iter().map(|t| Some(t.events_per_s?.mean)).collect();
    let own_elapsed: Option<Vec<f64>> = point.tenants.iter().map(|t| Some(took(t)?.value)).collect();
    let predicted: Option<Vec<f64>> = point.tenants.iter().map(|t| t.predicted_per_s).collect();
    let predicted_elapsed: Option<Vec<f64>> = point.tenants.iter().map(|t| t.predicted_elapsed_s).collect();
    let plain = |v: f64| Estimate { value: v, low: v, high: v };
    let row = |label: &str, source: Option<f64>, predicted: Option<f64>, measured: Option<f64>| SourceRow {
        label: label.into(),
        source,
        predicted,
        measured: measured.map(plain),
    };
    // The router's rate alone is that of its table of one container.
    const ROUTER_ALONE: f64 = 1156.0;
    let alone = study.host.primes_per_s;
    let of_alone = |v: Option<Vec<f64>>| Some(100.0 * mean(&v?)? / alone?);
    Some((
        "percent",
        vec![
            row(
                &format!(
                    "events a second of each of {} (source: {}), of the rate alone",
                    point.tenants.len(),
                    rows.len()
                ),
                mean(&eps).map(|m| 100.0 * m / ROUTER_ALONE),
                of_alone(predicted.clone()),
                of_alone(own.clone()),
            ),
            row(
                "spread of events a second, (max - min) / mean",
                spread(&eps),
                predicted.and_then(|v| spread(&v)),
                own.and_then(|v| spread(&v)),
            ),
            row(
                "spread of elapsed time, (max - min) / mean",
                spread(&elapsed),
                predicted_elapsed.and_then(|v| spread(&v)),
                own_elapsed.and_then(|v| spread(&v)),
            ),
        ],
    ))
}

fn waits(rows: &[Row], study: &Study) -> Made {
    let alone = study.overhead.as_ref()?.alone_s;
    let at = |count: usize| study.points.iter().find(|p| p.tenants.len() == count);
    let predicted_alone = at(1).and_then(|p| p.tenants[0].predicted_run_s);
    let rows = rows
        .iter()
        .filter_map(|row| {
            let count = number(row, "containers")? as usize;
            let point = at(count);
            let predicted = point.and_then(|p| {
                let runs: Option<Vec<f64>> = p.tenants.iter().map(|t| t.predicted_run_s).collect();
                Some(1e3 * (mean(&runs?)? - predicted_alone?))
            });
            Some(SourceRow {
                label: evenkeel_base::text::count(count, "container"),
                source: number(row, "mean_wait_s").map(|s| 1e3 * s),
                predicted,
                measured: point
                    .and_then(|p| Some(scale(difference(p.together.run_s?.estimate(), alone), 1e3))),
            })
        })
        .collect();
    Some(("wait of a run, milliseconds (mean run less mean run alone)", rows))
}

fn with_units<'a>(rows: &[Row], study: &'a Study) -> Option<&'a PointStudy> {
    let mut wanted: Vec<u64> = rows.iter().filter_map(|r| number(r, "cpu_units").map(|u| u as u64)).collect();
    wanted.sort_unstable();
    study.points.iter().find(|p| units(p).is_some_and(|u| u == wanted))
}

/// Rows with the tenants of the same units, in order.
fn paired<'a>(rows: &'a [Row], point: &'a PointStudy) -> Vec<(&'a Row, Option<&'a TenantStudy>)> {
    let mut free: Vec<&TenantStudy> = point.tenants.iter().collect();
    rows.iter()
        .map(|row| {
            let units = number(row, "cpu_units").map(|u| u as u64);
            let at = free.iter().position(|t| t.units == units);
            (row, at.map(|at| free.remove(at)))
        })
        .collect()
}

fn mixed(rows: &[Row], study: &Study) -> Made {
    let point = with_units(rows, study)?;
    let all: f64 = rows.iter().filter_map(|r| number(r, "eps")).sum();
    let predicted: f64 = point.tenants.iter().filter_map(|t| t.predicted_per_s).sum();
    let rows = paired(rows, point)
        .into_iter()
        .map(|(row, tenant)| SourceRow {
            label: label(row),
            source: number(row, "eps").map(|eps| 100.0 * eps / all),
            predicted: tenant.and_then(|t| t.predicted_per_s).map(|p| 100.0 * p / predicted),
            measured: tenant.and_then(|t| t.share_pct),
        })
        .collect();
    Some(("share of all events a second, percent", rows))
}

fn priority(rows: &[Row], study: &Study) -> Made {
    let point = with_units(rows, study)?;
    let first = |values: Vec<f64>| values.into_iter().min_by(f64::total_cmp);
    let source = first(rows.iter().filter_map(|r| number(r, "elapsed_s")).collect())?;
    let own = first(point.tenants.iter().filter_map(|t| Some(took(t)?.value)).collect());
    let predicted = first(point.tenants.iter().filter_map(|t| t.predicted_elapsed_s).collect());
    let rows = paired(rows, point)
        .into_iter()
        .map(|(row, tenant)| SourceRow {
            label: label(row),
            source: number(row, "elapsed_s").map(|s| s / source),
            predicted: tenant.and_then(|t| Some(t.predicted_elapsed_s? / predicted?)),
            measured: tenant.and_then(|t| Some(scale(took(t)?, 1.0 / own?))),
        })
        .collect();
    Some(("time until all runs are done, in units of the first one's", rows))
}

fn balance(rows: &[Row], record: &Record, study: &Study) -> Made {
    let mut out = Vec::new();
    for row in rows {
        let mut wanted: Vec<u64> =
            row.get("cpu_units")?.split(',').filter_map(|u| u.trim().parse().ok()).collect();
        wanted.sort_unstable();
        let point = study.points.iter().find(|p| units(p).is_some_and(|u| u == wanted));
        let run = point.and_then(|p| p.together.run_s);
        let asked = point.and_then(|p| super::asked_s(record, &p.tenants[0].workload));
        let beyond = |seconds: f64| Some(100.0 * (seconds / asked? - 1.0));
        let name = row.get("cpu_units")?.replace(',', " ");
        let predicted = point.and_then(|p| {
            let runs: Option<Vec<f64>> = p.tenants.iter().map(|t| t.predicted_run_s).collect();
            beyond(mean(&runs?)?)
        });
        let source = |column| number(row, column).map(|s| 100.0 * (s / 10.0 - 1.0));
        out.push(SourceRow {
            label: format!("{name}: mean of runs (as printed)"),
            source: source("mean_run_s"),
            predicted,
            measured: run.and_then(|r| {
                let e = r.estimate();
                Some(Estimate { value: beyond(e.value)?, low: beyond(e.low)?, high: beyond(e.high)? })
            }),
        });
        // What the source prints as median, max and min are figures of containers, not of runs: each one's time from its
        // start to its end over its runs, pauses included; their mean, the slowest and the fastest. Its raw logs show it.
        let each: Option<Vec<f64>> = point.and_then(|p| {
            let runs = |t: &TenantStudy| t.runs as f64 / p.repetitions.max(1) as f64;
            p.tenants.iter().map(|t| Some(took(t)?.value / runs(t)).filter(|v| v.is_finite())).collect()
        });
        let of = |pick: fn(&[f64]) -> Option<f64>| each.as_deref().and_then(pick);
        let slowest = |v: &[f64]| v.iter().copied().max_by(f64::total_cmp);
        let fastest = |v: &[f64]| v.iter().copied().min_by(f64::total_cmp);
        for (what, column, own) in [
            ("mean of containers, with pauses (its \"median\")", "median_s", of(mean)),
            ("slowest container, with pauses (its \"max\")", "max_s", of(slowest)),
            ("fastest container, with pauses (its \"min\")", "min_s", of(fastest)),
        ] {
            let own = own.and_then(beyond);
            out.push(SourceRow {
                label: format!("{name}: {what}"),
                source: source(column),
                predicted: None,
                measured: own.map(|v| Estimate { value: v, low: v, high: v }),
            });
        }
    }
    Some(("length of a run beyond what was asked for, percent", out))
}

fn sieve(rows: &[Row], study: &Study) -> Made {
    use super::verdict::{Held, held};
    let cost = |row: &Row| Some(number(row, "user_s")? + number(row, "sys_s")?);
    let reference =
        rows.iter().find(|r| r.get("case").is_some_and(|c| c == "cpuset one socket with siblings"))?;
    let reference_cost = cost(reference)?;
    let of = |kind: Held, many: bool| {
        study
            .points
            .iter()
            .filter(move |p| (p.tenants.len() > 1) == many)
            .flat_map(|p| p.tenants.iter().map(move |t| (p, t)))
            .find(move |(p, t)| {
                held(study, p, &t.limits) == kind
                    && t.cpu_ms_per_event.is_some()
                    && matches!(super::option(&t.workload, "--read"), None | Some("none"))
            })
            .map(|(_, t)| t)
    };
    let reference_here = of(Held::Cpuset, false)?;
    let own = reference_here.cpu_ms_per_event?;
    let pairs = [
        ("cpuset one socket with siblings", of(Held::Cpuset, false)),
        ("quota half of 40 cpus", of(Held::Quota, false)),
        ("shares equal A", of(Held::Shares, true)),
        ("shares alone", of(Held::Nothing, false)),
    ];
    let rows = pairs
        .into_iter()
        .map(|(case, tenant)| SourceRow {
            label: case
                .replace("one socket with siblings", "half of the CPUs")
                .replace("half of 40 cpus", "half of the CPUs"),
            source: rows
                .iter()
                .find(|r| r.get("case").is_some_and(|c| c == case))
                .and_then(cost)
                .map(|c| c / reference_cost),
            // Every tenant does the same work.
            predicted: tenant.and_then(|t| Some(t.predicted_cpu_s? / reference_here.predicted_cpu_s?)),
            measured: tenant.and_then(|t| ratio(t.cpu_ms_per_event?, own)),
        })
        .collect();
    Some(("CPU time for the same work, in units of the cpuset's", rows))
}

fn builds(rows: &[Row], record: &Record, study: &Study) -> Made {
    use evenkeel_model::credit::Rule;
    // Points under a rule that throttles, or without an enforcer.
    let points: Vec<&PointStudy> = study
        .points
        .iter()
        .filter(|p| p.tenants.len() == 1)
        .filter(|p| {
            let cell = record.cells.iter().find(|c| c.point.index == p.index);
            cell.and_then(|c| c.enforcer.as_ref())
                .is_none_or(|e| matches!(e.rule, Rule::Window { .. } | Rule::Penalty { .. }))
        })
        .collect();
    let at = |limit: Option<f64>| {
        points.iter().map(|p| &p.tenants[0]).find(|t| match (t.limits.quota_pct, limit) {
            (None, None) => true,
            (Some(a), Some(b)) => (a - b).abs() < 0.5,
            _ => false,
        })
    };
    let none = took(at(None)?);
    let predicted_none = at(None)?.predicted_elapsed_s;
    let source_none = rows
        .iter()
        .find(|r| r.get("limit").is_some_and(|l| l == "none"))
        .and_then(|r| minutes(r.get("real")?))?;
    let rows = rows
        .iter()
        .filter_map(|row| {
            let text = row.get("limit")?;
            let limit = text.trim_end_matches('%').parse::<f64>().ok();
            let tenant = at(limit);
            Some(SourceRow {
                label: limit
                    .map_or_else(|| "no limit".to_owned(), |l| format!("limit {} %", three_digits(l))),
                source: minutes(row.get("real")?).map(|s| s / source_none),
                predicted: tenant.and_then(|t| Some(t.predicted_elapsed_s? / predicted_none?)),
                measured: tenant.and_then(|t| ratio(took(t)?, none?)),
            })
        })
        .collect();
    Some(("time the job takes, in units of the time without a limit", rows))
}

/// `68-69` is its middle, `>=75 (theory 75)` its bound.
fn range(text: &str) -> Option<f64> {
    let word = text.trim().trim_start_matches(">=").split_ascii_whitespace().next()?;
    match word.split_once('-') {
        Some((low, high)) => Some(f64::midpoint(low.parse().ok()?, high.parse().ok()?)),
        None => word.parse().ok(),
    }
}

/// The source's stages of the first mix. Its last one, process by process until every one gets what it wants, needs a loop:
/// `evenkeel run` and `demo`.
fn stages(rows: &[Row], record: &Record, study: &Study) -> Made {
    let mix = *advisor::mixes(study).first()?;
    let cpus = record.experiment.as_ref()?.cpus.as_ref()?.len() as f64;
    let ours = [Some(advisor::DEFAULT), Some(advisor::RECIPE), None];
    let rows = rows
        .iter()
        .zip(ours)
        .map(|(row, stage)| {
            let point = stage.and_then(|name| advisor::stage(study, mix, name));
            let used = point.and_then(|point| estimate(&advisor::used_each(record, point)?));
            let predicted = point.and_then(|point| {
                let of = |t: &TenantStudy| Some(t.predicted_cpu_s? / t.predicted_elapsed_s?);
                point.tenants.iter().map(of).sum::<Option<f64>>()
            });
            SourceRow {
                label: row.get("stage").cloned().unwrap_or_default(),
                source: row.get("mean_core_utilisation_pct").and_then(|text| range(text)),
                predicted: predicted.map(|all| 100.0 * all / cpus),
                measured: used.map(|used| scale(used, 100.0 / cpus)),
            }
        })
        .collect();
    Some(("mean use of a CPU by processes that together want 75 % of each, percent", rows))
}

/// Each task of the source's tests, as found and with the advisor.
fn promises(rows: &[Row], study: &Study) -> Made {
    let made = rows
        .iter()
        .flat_map(|row| [("os_pct", false), ("tuned_pct", true)].map(|(column, tuned)| (row, column, tuned)))
        .filter_map(|(row, column, tuned)| {
            let source = number(row, column)?;
            let task = number(row, "task")? as usize;
            // The first test has all three tasks, in the second the first is quiet.
            let wanted = if number(row, "test")? < 2.0 { "wanted 40, 50, 30" } else { "wanted -, 50, 80" };
            let point = study
                .points
                .iter()
                .find(|p| p.label.starts_with(advisor::PROMISED) == tuned && p.label.ends_with(wanted));
            let tenant = point.and_then(|p| p.tenants.get(task.checked_sub(1)?));
            Some(SourceRow {
                label: format!(
                    "{wanted}: task {task}{}",
                    if tuned { ", with its promise" } else { ", as found" }
                ),
                source: Some(source),
                predicted: tenant.and_then(|t| Some(100.0 * t.predicted_cpu_s? / t.predicted_elapsed_s?)),
                measured: tenant.and_then(|t| t.cpu_pct),
            })
        })
        .collect();
    Some(("CPU got, percent of one CPU", made))
}

#[cfg(test)]
mod build_times;

#[cfg(test)]
mod tests;
