//! Figures from a record alone: means over repetitions with their intervals, bias, Jain's index, verdicts in words.

use evenkeel_base::run::Estimate;
use serde::{Deserialize, Serialize};

use super::plan::{Kind, Point, Which};
use super::record::{Cell, TenantsRecord};
use crate::net::figures::spread;
use crate::record::{Host, Requirement};
use crate::study::stats::{bias_pct, jain, mean};

/// Value of [`Study::schema`].
pub const SCHEMA: &str = "evenkeel.lab-tenants-study/v1";

/// What a record says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// [`SCHEMA`].
    pub schema: String,
    /// `tenants-net` or `tenants-cpu`.
    pub name: String,
    /// When the experiment was begun.
    pub began: String,
    /// Whether all cells are there.
    pub complete: bool,
    /// The host.
    pub host: Host,
    /// What was needed and whether it was there.
    pub requirements: Vec<Requirement>,
    /// One row a point that has a result.
    pub rows: Vec<Row>,
    /// Points without a result, and why.
    pub failed: Vec<(String, String)>,
    /// What it means, in words.
    pub verdicts: Vec<String>,
    /// How softirq time was charged to tenants; empty where it was not.
    pub softirq_method: String,
}

/// Figures of a point: means over repetitions with 95 % intervals (Student's t); unbounded for a single one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The point.
    pub point: Point,
    /// Line of the chart it is on.
    pub series: String,
    /// Repetitions with a result.
    pub repetitions: usize,
    /// Transactions a second.
    pub transactions_per_s: Option<Estimate>,
    /// Payload received of streams, Mbit/s.
    #[serde(default)]
    pub mbit_per_s: Option<Estimate>,
    /// Mean latency, microseconds.
    pub latency_mean_usec: Option<Estimate>,
    /// Median latency, microseconds.
    pub latency_p50_usec: Option<Estimate>,
    /// 99 % of transactions took at most this, microseconds.
    pub latency_p99_usec: Option<Estimate>,
    /// Load of the host, percent of ONE CPU.
    pub cpu_pct: Option<Estimate>,
    /// Over how many CPUs it is spread.
    pub spread: Option<Estimate>,
    /// Interrupt time of the host, percent of ONE CPU.
    pub softirq_pct: Option<Estimate>,
    /// Bias between tenants of throughput (transactions, or Mbit/s of streams), percent.
    pub bias_transactions_pct: Option<Estimate>,
    /// Bias between tenants of mean latency, percent.
    pub bias_latency_pct: Option<Estimate>,
    /// Bias between tenants of CPU time, percent.
    pub bias_cpu_pct: Option<Estimate>,
    /// Bias between tenants of softirq time charged to them, percent.
    pub bias_softirq_pct: Option<Estimate>,
    /// Jain's index of transactions (`tenants-net`) or of CPU time over weight (`tenants-cpu`).
    pub jain: Option<Estimate>,
    /// Largest deviation of a tenant's share from its weight's, percent of the latter (`tenants-cpu`).
    pub weight_error_pct: Option<Estimate>,
    /// Shares of CPU time, one a tenant, mean over repetitions, percent of all tenants' (`tenants-cpu`).
    pub shares_pct: Vec<f64>,
    /// Transactions a second of bare metal at the same RPS setting that this is, percent.
    pub of_bare_metal_pct: Option<f64>,
}

/// Studies a record.
pub fn study(record: &TenantsRecord) -> Study {
    let mut rows = Vec::new();
    let mut failed = Vec::new();
    for (index, point) in record.points.iter().enumerate() {
        let cells: Vec<&Cell> = record.cells.iter().filter(|cell| cell.point == index).collect();
        let good: Vec<&Cell> = cells.iter().copied().filter(|cell| cell.failed.is_none()).collect();
        if let Some(why) = cells.iter().find_map(|cell| cell.failed.clone()) {
            failed.push((point.to_string(), why));
        }
        if !good.is_empty() {
            rows.push(row(point, &good));
        }
    }
    compare_with_bare_metal(&mut rows);
    let softirq_method = record
        .cells
        .iter()
        .filter_map(|cell| cell.net.as_ref())
        .map(|net| net.host.softirq_method.clone())
        .next()
        .unwrap_or_default();
    let verdicts = match record.options.which {
        Which::TenantsNet => net_verdicts(&rows, record),
        Which::TenantsCpu => cpu_verdicts(&rows),
    };
    Study {
        schema: SCHEMA.into(),
        name: record.name.clone(),
        began: record.began.clone(),
        complete: record.is_complete(),
        host: record.host.clone(),
        requirements: record.requirements.clone(),
        rows,
        failed,
        verdicts,
        softirq_method,
    }
}

fn row(point: &Point, cells: &[&Cell]) -> Row {
    let over = |of: &dyn Fn(&Cell) -> Option<f64>| -> Option<Estimate> {
        let values: Option<Vec<f64>> = cells.iter().map(|cell| of(cell)).collect();
        estimate(&values?)
    };
    let net =
        |of: &dyn Fn(&crate::net::measure::Measured) -> Option<f64>| over(&|cell| of(cell.net.as_ref()?));
    let tenants = |of: &dyn Fn(&crate::net::measure::TenantMeasured) -> Option<f64>| {
        net(&|measured| bias_pct(&measured.tenants.iter().map(of).collect::<Option<Vec<_>>>()?))
    };
    let throughput = |t: &crate::net::measure::TenantMeasured| t.transactions_per_s.or(t.mbit_per_s);
    let latency =
        |of: &dyn Fn(&crate::net::flow::LatencySummary) -> f64| net(&|m| m.latency.as_ref().map(of));
    let is_cpu = cells.iter().any(|cell| cell.cpu.is_some());
    let per_weight = |cell: &Cell| shares_per_weight(cell);
    let shares: Vec<Vec<f64>> = cells.iter().filter_map(|cell| cpu_shares(cell)).collect();
    Row {
        point: point.clone(),
        series: point.series(),
        repetitions: cells.len(),
        transactions_per_s: net(&|m| m.transactions_per_s),
        mbit_per_s: net(&|m| m.mbit_per_s),
        latency_mean_usec: net(&|m| m.latency.map(|l| l.mean_usec).or(m.latency_mean_usec)),
        latency_p50_usec: latency(&|l| l.p50_usec),
        latency_p99_usec: latency(&|l| l.p99_usec),
        cpu_pct: over(&|cell| match (&cell.net, &cell.cpu) {
            (Some(net), _) => net.host.cpu_pct,
            (None, Some(cpu)) => (!cpu.per_cpu_pct.is_empty()).then(|| cpu.per_cpu_pct.iter().sum()),
            _ => None,
        }),
        spread: over(&|cell| match (&cell.net, &cell.cpu) {
            (Some(net), _) => net.host.spread,
            (None, Some(cpu)) => spread(&cpu.per_cpu_pct),
            _ => None,
        }),
        softirq_pct: net(&|m| m.host.softirq_pct),
        bias_transactions_pct: tenants(&throughput),
        bias_latency_pct: tenants(&|t| t.latency.map(|l| l.mean_usec).or(t.latency_mean_usec)),
        bias_cpu_pct: if is_cpu {
            over(&|cell| bias_pct(&per_weight(cell)?))
        } else {
            tenants(&|t| t.cpu_pct)
        },
        bias_softirq_pct: tenants(&|t| t.softirq_pct),
        jain: if is_cpu {
            over(&|cell| jain(&per_weight(cell)?))
        } else {
            net(&|m| jain(&m.tenants.iter().map(throughput).collect::<Option<Vec<_>>>()?))
        },
        weight_error_pct: over(&weight_error),
        shares_pct: (0..point.tenants)
            .filter_map(|tenant| {
                mean(&shares.iter().filter_map(|s| s.get(tenant).copied()).collect::<Vec<_>>())
            })
            .collect(),
        of_bare_metal_pct: None,
    }
}

/// Each tenant's part of the CPU time all of them got, percent.
fn cpu_shares(cell: &Cell) -> Option<Vec<f64>> {
    let got: Vec<f64> = cell.cpu.as_ref()?.tenants.iter().map(|t| t.cpu_pct).collect::<Option<_>>()?;
    let sum: f64 = got.iter().sum();
    (sum > 0.0).then(|| got.iter().map(|pct| pct / sum * 100.0).collect())
}

/// CPU time per weight, 1 on average: equal when weights hold.
fn shares_per_weight(cell: &Cell) -> Option<Vec<f64>> {
    let cpu = cell.cpu.as_ref()?;
    let weights: u64 = cpu.tenants.iter().map(|t| t.weight).sum();
    let shares = cpu_shares(cell)?;
    Some(
        shares
            .iter()
            .zip(&cpu.tenants)
            .map(|(share, t)| share / 100.0 * weights as f64 / t.weight.max(1) as f64)
            .collect(),
    )
}

fn weight_error(cell: &Cell) -> Option<f64> {
    let per_weight = shares_per_weight(cell)?;
    per_weight.iter().map(|ratio| (ratio - 1.0).abs() * 100.0).reduce(f64::max)
}

/// Transactions a second, or Mbit/s of streams.
fn throughput(row: &Row) -> Option<Estimate> {
    row.transactions_per_s.or(row.mbit_per_s)
}

fn compare_with_bare_metal(rows: &mut [Row]) {
    for rps in [false, true] {
        let bare = rows
            .iter()
            .find(|row| row.point.kind == Kind::BareMetal && row.point.rps == rps)
            .and_then(throughput)
            .map(|e| e.value);
        for row in rows.iter_mut().filter(|row| row.point.rps == rps && row.point.kind != Kind::BareMetal) {
            row.of_bare_metal_pct =
                throughput(row).zip(bare).filter(|(_, b)| *b > 0.0).map(|(e, b)| e.value / b * 100.0);
        }
    }
}

/// Two-sided 95 % points of Student's t for 1 to 10 degrees of freedom.
const T95: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];

/// Mean with its 95 % interval; unbounded for a single value, `None` of none.
pub fn estimate(values: &[f64]) -> Option<Estimate> {
    let value = mean(values)?;
    if values.len() < 2 {
        return Some(Estimate { value, low: f64::NEG_INFINITY, high: f64::INFINITY });
    }
    let n = values.len() as f64;
    let variance = values.iter().map(|v| (v - value).powi(2)).sum::<f64>() / (n - 1.0);
    // Beyond 10 degrees of freedom within 3 % of 2.228 - .. 1.96: the larger is the careful one.
    let t = T95.get(values.len() - 2).copied().unwrap_or(T95[9]);
    let margin = t * (variance / n).sqrt();
    Some(Estimate { value, low: value - margin, high: value + margin })
}

/// Whether two estimates of the same thing agree: their intervals meet.
pub fn agree(a: &Estimate, b: &Estimate) -> bool {
    a.low <= b.high && b.low <= a.high
}

fn net_verdicts(rows: &[Row], record: &TenantsRecord) -> Vec<String> {
    let mut verdicts = Vec::new();
    let worst = |of: &dyn Fn(&Row) -> Option<Estimate>| -> Option<(String, Estimate)> {
        rows.iter()
            .filter(|row| row.point.tenants > 1)
            .filter_map(|row| Some((row.point.to_string(), of(row)?)))
            .max_by(|a, b| a.1.value.total_cmp(&b.1.value))
    };
    for (what, limit, found) in [
        ("throughput", 10.0, worst(&|row| row.bias_transactions_pct)),
        ("latency", 10.0, worst(&|row| row.bias_latency_pct)),
        ("CPU load", 10.0, worst(&|row| row.bias_cpu_pct)),
    ] {
        let Some((point, bias)) = found else { continue };
        let holds = if bias.value <= limit { "holds here" } else { "does not hold here" };
        verdicts.push(format!(
            "Bias of {what} between tenants is at most {} (at {point}); the source's \"below {limit:.0} %\" for default \
             machines {holds}.",
            with_interval(&bias, " %"),
        ));
    }
    for series in series(rows) {
        let line: Vec<&Row> =
            rows.iter().filter(|row| row.series == series && row.point.tenants > 0).collect();
        let best = line.iter().filter_map(|row| Some((row.point.tenants, throughput(row)?.value)));
        if let (Some((tenants, rate)), true) = (best.max_by(|a, b| a.1.total_cmp(&b.1)), line.len() > 1) {
            let unit = if line[0].transactions_per_s.is_some() { "/s" } else { " Mbit/s" };
            let cpus = record.host.cpus.map_or_else(String::new, |n| format!(" (the host has {n} CPUs)"));
            verdicts.push(format!("{series}: throughput peaks at {tenants} tenants, {rate:.0}{unit}{cpus}."));
        }
    }
    for row in rows.iter().filter(|row| row.point.rps) {
        let same = |other: &&Row| {
            !other.point.rps
                && (other.point.kind, other.point.tenants, other.point.vcpus)
                    == (row.point.kind, row.point.tenants, row.point.vcpus)
        };
        let pair = rows.iter().find(same).and_then(|off| throughput(off).zip(throughput(row)));
        if let Some((off, on)) = pair
            && off.value > 0.0
            && !agree(&off, &on)
        {
            let change = (on.value / off.value - 1.0) * 100.0;
            verdicts.push(format!(
                "RPS changes throughput of {} by {change:+.1} %, beyond both intervals.",
                row.point
            ));
        }
    }
    verdicts
}

fn cpu_verdicts(rows: &[Row]) -> Vec<String> {
    rows.iter()
        .filter_map(|row| {
            let error = row.weight_error_pct?;
            let shares: Vec<String> = row.shares_pct.iter().map(|share| format!("{share:.1}")).collect();
            Some(format!(
                "{}: shares {} %; the largest deviation from the weights is {}.",
                row.point,
                shares.join(" : "),
                with_interval(&error, " %"),
            ))
        })
        .collect()
}

/// Names of the lines of a chart, in order of appearance.
pub fn series(rows: &[Row]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        if !names.contains(&row.series) {
            names.push(row.series.clone());
        }
    }
    names
}

/// `3.2 % (2.9 to 3.5)`; without the interval where it is unbounded.
pub fn with_interval(e: &Estimate, unit: &str) -> String {
    if e.low.is_finite() && e.high.is_finite() {
        format!("{:.1}{unit} ({:.1} to {:.1})", e.value, e.low.max(0.0), e.high)
    } else {
        format!("{:.1}{unit} (one repetition: no interval)", e.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fairness::plan::Options;
    use crate::fairness::record::{CpuMeasured, TenantCpu};

    #[test]
    fn intervals_are_students() {
        // Mean 2, standard deviation 1, n 3: 2 +- 4.303 / sqrt(3)
        let e = estimate(&[1.0, 2.0, 3.0]).unwrap();
        assert!((e.value, (e.high - 2.0 - 2.4843).abs() < 1e-3) == (2.0, true), "{e:?}");
        assert!(estimate(&[5.0]).unwrap().high.is_infinite() && estimate(&[]).is_none());
        let other = Estimate { value: 9.0, low: 4.0, high: 14.0 };
        assert!(agree(&e, &other) && !agree(&Estimate { low: 4.6, ..other }, &e));
    }

    fn record(got: &[(u64, f64)]) -> TenantsRecord {
        let options =
            Options { vms: vec![], tenants: vec![2], ..Options::defaults(Which::TenantsCpu, true, 1) };
        let points: Vec<Point> =
            options.points().unwrap().into_iter().filter(|p| p.weights == [100, 200] && p.one_cpu).collect();
        let tenants = got
            .iter()
            .map(|(weight, pct)| TenantCpu {
                name: "t".into(),
                weight: *weight,
                cpu_pct: Some(*pct),
                windows_pct: vec![],
                events_per_s: None,
            })
            .collect();
        let cpu =
            CpuMeasured { seconds: 1.0, cpus: None, tenants, per_cpu_pct: vec![100.0], steal_pct: None };
        let cell = Cell {
            point: 0,
            repetition: 0,
            began: String::new(),
            took_s: 1.0,
            net: None,
            cpu: Some(cpu),
            threads: vec![],
            failed: None,
        };
        TenantsRecord {
            schema: crate::fairness::record::SCHEMA.into(),
            name: "tenants-cpu".into(),
            version: "0".into(),
            began: "t".into(),
            finished: None,
            host: Host::default(),
            options,
            requirements: vec![],
            points,
            cells: vec![cell],
        }
    }

    #[test]
    fn weights_are_judged_by_the_largest_deviation() {
        // 30 of 90 with a third of the weight: exact. 36 of 96: 37.5 % instead of 33.3, 12.5 % too much.
        let exact = study(&record(&[(100, 30.0), (200, 60.0)]));
        assert!(exact.rows[0].weight_error_pct.unwrap().value < 1e-9);
        assert!((exact.rows[0].jain.unwrap().value - 1.0).abs() < 1e-12);
        let off = study(&record(&[(100, 36.0), (200, 60.0)]));
        assert!((off.rows[0].weight_error_pct.unwrap().value - 12.5).abs() < 1e-9);
        assert!(off.verdicts[0].contains("12.5 %"), "{:?}", off.verdicts);
    }

    #[test]
    fn a_record_and_its_study_survive_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let record = record(&[(100, 30.0), (200, 60.0)]);
        record.save(dir.path()).unwrap();
        assert_eq!(TenantsRecord::load(dir.path()).unwrap(), record);
        assert!(super::super::record::is_one(dir.path()));
        // A study of the same record is the same study.
        assert_eq!(study(&record), study(&TenantsRecord::load(dir.path()).unwrap()));
    }
}
