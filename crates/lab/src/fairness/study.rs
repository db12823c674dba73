//! Figures from a record alone: means over repetitions with their intervals, bias, Jain's index, verdicts in words.

use evenkeel_base::run::Estimate;
use evenkeel_base::stats::{bias_pct, jain, mean};
use evenkeel_experiment::decide::{Figure, Mean};
use evenkeel_experiment::record::Host;
use evenkeel_experiment::study::point::{machine, shares};
use evenkeel_experiment::study::sample;
use evenkeel_model::fair::FairGroup;
use serde::{Deserialize, Serialize};

use super::plan::{Kind, Point};
use super::record::{Cell, Results, TenantCpu, TenantsRecord};
use crate::net::figures::spread;
use crate::net::measure::{Measured, TenantMeasured};
use crate::runner::grid::GridStudy;

pub const SCHEMA: &str = "evenkeel.lab-tenants-study/v1";

/// What a record says.
pub type Study = GridStudy<Row, Softirq>;

/// How softirq time was charged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Softirq {
    /// How it was charged to tenants; empty where it was not.
    pub softirq_method: String,
}

/// Figures of a point: means over repetitions with 95 % intervals (Student's t); unbounded for a single one.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub point: Point,
    /// Line of the chart it is on.
    pub series: String,
    /// Repetitions with a result.
    pub repetitions: usize,
    pub transactions_per_s: Option<Estimate>,
    /// Payload received of streams, Mbit/s.
    #[serde(default)]
    pub mbit_per_s: Option<Estimate>,
    pub latency_mean_usec: Option<Estimate>,
    /// Median latency, microseconds.
    pub latency_p50_usec: Option<Estimate>,
    /// 99 % of transactions took at most this, microseconds.
    pub latency_p99_usec: Option<Estimate>,
    /// Load of the host, percent of ONE CPU.
    pub cpu_pct: Option<Estimate>,
    /// Used by all others on the tenants' CPUs, percent of ONE CPU (`tenants-cpu`).
    #[serde(default)]
    pub others_pct: Option<Estimate>,
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
    /// Shares that weights, threads and CPUs allow (exact weighted max-min), percent of all tenants' (`tenants-cpu`).
    #[serde(default)]
    pub feasible_pct: Vec<f64>,
    /// Largest deviation of a tenant's share from the feasible one, percent of the latter (`tenants-cpu`).
    #[serde(default)]
    pub feasible_error_pct: Option<Estimate>,
    /// Transactions a second of bare metal at the same RPS setting that this is, percent.
    pub of_bare_metal_pct: Option<f64>,
}

pub fn study(record: &TenantsRecord) -> Study {
    let mut rows = Vec::new();
    for (index, point) in record.points.iter().enumerate() {
        let results = Results::of(record, index);
        if !results.0.is_empty() {
            rows.push(row(&record.host, point, &results));
        }
    }
    compare_with_bare_metal(&mut rows);
    let method =
        record.cells.iter().find_map(|cell| Some(cell.measured.net.as_ref()?.host.softirq_method.clone()));
    let answers = super::verdict::verdicts(record, &rows);
    GridStudy::of(SCHEMA, record, rows, answers, Softirq { softirq_method: method.unwrap_or_default() })
}

fn row(host: &Host, point: &Point, results: &Results<'_>) -> Row {
    let estimate = |mean: Option<Mean>| Figure::Mean(mean?).estimate(0.05);
    let over = |of: &dyn Fn(&Cell) -> Option<f64>| estimate(results.mean(of));
    let net = |of: &dyn Fn(&Measured) -> Option<f64>| estimate(results.net(of));
    let bias = |of: &dyn Fn(&TenantMeasured) -> Option<f64>| net(&|m| bias_pct(&m.each(of)?));
    let cells = &results.0;
    let is_cpu = cells.iter().any(|cell| cell.measured.cpu.is_some());
    let shares: Vec<Vec<f64>> = cells.iter().filter_map(|cell| cpu_shares(cell)).collect();
    let feasible_pct = cells.first().and_then(|cell| feasible(host, point, cell)).unwrap_or_default();
    // One repetition shows no interval: that a deviation is not below 0 is no news.
    let open = |e: Estimate| if e.high.is_finite() { e } else { Estimate { low: f64::NEG_INFINITY, ..e } };
    let off = |due: &[f64]| deviation(results, due)?.estimate(0.05).map(open);
    Row {
        point: point.clone(),
        series: point.series(),
        repetitions: cells.len(),
        transactions_per_s: net(&|m| m.transactions_per_s),
        mbit_per_s: net(&|m| m.mbit_per_s),
        latency_mean_usec: net(&Measured::mean_usec),
        latency_p50_usec: net(&|m| Some(m.latency?.p50_usec)),
        latency_p99_usec: net(&|m| Some(m.latency?.p99_usec)),
        cpu_pct: over(&|cell| match (&cell.measured.net, &cell.measured.cpu) {
            (Some(net), _) => net.host.cpu_pct,
            (None, Some(cpu)) => (!cpu.per_cpu_pct.is_empty()).then(|| cpu.per_cpu_pct.iter().sum()),
            _ => None,
        }),
        others_pct: over(&|cell| cell.measured.cpu.as_ref()?.others_pct),
        spread: over(&|cell| match (&cell.measured.net, &cell.measured.cpu) {
            (Some(net), _) => net.host.spread,
            (None, Some(cpu)) => spread(&cpu.per_cpu_pct),
            _ => None,
        }),
        softirq_pct: net(&|m| m.host.softirq_pct),
        bias_transactions_pct: bias(&TenantMeasured::throughput),
        bias_latency_pct: bias(&TenantMeasured::mean_usec),
        bias_cpu_pct: if is_cpu {
            over(&|cell| bias_pct(&shares_per_weight(cell)?))
        } else {
            bias(&|t| t.cpu_pct)
        },
        bias_softirq_pct: bias(&|t| t.softirq_pct),
        // No index is above 1.
        jain: if is_cpu {
            over(&|cell| jain(&shares_per_weight(cell)?))
        } else {
            net(&|m| jain(&m.each(TenantMeasured::throughput)?))
        }
        .map(|e| Estimate { high: if e.low.is_finite() { e.high.min(1.0) } else { e.high }, ..e }),
        weight_error_pct: off(&due(results)),
        shares_pct: (0..point.tenants)
            .filter_map(|tenant| {
                mean(&shares.iter().filter_map(|s| s.get(tenant).copied()).collect::<Vec<_>>())
            })
            .collect(),
        feasible_error_pct: off(&feasible_pct),
        feasible_pct,
        of_bare_metal_pct: None,
    }
}

/// The shares that weights, threads and CPUs allow, percent; `None` where the host's CPUs are not known.
fn feasible(host: &Host, point: &Point, cell: &Cell) -> Option<Vec<f64>> {
    let cpu = cell.measured.cpu.as_ref()?;
    let group = |weight| FairGroup { parent: None, weight, quota_cpus: None, cpus: cpu.cpus.clone() };
    let greedy = |t: &TenantCpu| (group(t.weight as f64), f64::INFINITY, point.vcpus.unwrap_or(1));
    let got = shares(&machine(host)?, cpu.tenants.iter().map(greedy))?;
    let sum: f64 = got.iter().sum();
    (sum > 0.0).then(|| got.iter().map(|cpus| 100.0 * cpus / sum).collect())
}

/// The shares that weights promise, percent: those that the kernel was told, which an engine of containers makes of those asked
/// for in its own way.
pub(super) fn due(results: &Results<'_>) -> Vec<f64> {
    let told = results.0.iter().find_map(|cell| cell.measured.cpu.as_ref());
    let weights: Vec<f64> = told.iter().flat_map(|cpu| &cpu.tenants).map(|t| t.weight as f64).collect();
    let sum: f64 = weights.iter().sum();
    weights.iter().map(|weight| 100.0 * weight / sum).collect()
}

/// How far tenants' mean shares are from those due, percent of the latter: the largest.
pub(super) fn deviation(results: &Results<'_>, due: &[f64]) -> Option<Figure> {
    let off = |tenant: usize| {
        results.mean(|cell| Some(100.0 * (cpu_shares(cell)?.get(tenant)? / due.get(tenant)? - 1.0)))
    };
    let all = (0..due.len()).map(off).collect::<Option<Vec<Mean>>>()?;
    (!all.is_empty()).then(|| sample::deviation(all))
}

/// Each tenant's part of the CPU time all of them got, percent.
pub(super) fn cpu_shares(cell: &Cell) -> Option<Vec<f64>> {
    let got: Vec<f64> =
        cell.measured.cpu.as_ref()?.tenants.iter().map(|t| t.cpu_pct).collect::<Option<_>>()?;
    let sum: f64 = got.iter().sum();
    (sum > 0.0).then(|| got.iter().map(|pct| pct / sum * 100.0).collect())
}

/// CPU time per weight, 1 on average: equal when weights hold.
fn shares_per_weight(cell: &Cell) -> Option<Vec<f64>> {
    let cpu = cell.measured.cpu.as_ref()?;
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

/// Whether two estimates of the same thing agree: their intervals meet. `None` where one has none, which meets everything.
pub fn agree(a: &Estimate, b: &Estimate) -> Option<bool> {
    let meet = a.low <= b.high && b.low <= a.high;
    (!meet || a.is_bounded() && b.is_bounded()).then_some(meet)
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

#[cfg(test)]
mod tests {
    use evenkeel_experiment::record::CellRecord;

    use super::*;
    use crate::fairness::plan::{Options, Which};
    use crate::fairness::record::{CpuMeasured, TenantsMeasured};
    use crate::net::measure::FlowMeasured;

    #[test]
    fn estimates_agree_where_their_intervals_meet() {
        let of = |low, high| Estimate { value: (low + high) / 2.0, low, high };
        assert_eq!(agree(&of(1.0, 3.0), &of(3.0, 9.0)), Some(true));
        assert_eq!(agree(&of(1.0, 3.0), &of(3.1, 9.0)), Some(false));
        // A single repetition agrees with anything.
        assert_eq!(agree(&of(f64::NEG_INFINITY, f64::INFINITY), &of(3.0, 9.0)), None);
    }

    /// One thread each on two CPUs cannot be in proportion 1:2.
    #[test]
    fn weights_that_threads_cannot_use_are_called_infeasible() {
        let mut record = record(&[(100, 98.0), (200, 99.0)]);
        record.host.cpus = Some(2);
        for (point, cell) in record.points.iter_mut().zip(&mut record.cells) {
            (point.one_cpu, point.vcpus) = (false, Some(1));
            if let Some(cpu) = &mut cell.measured.cpu {
                cpu.cpus = None;
            }
        }
        repeat(&mut record, [98.5, 98.7]);
        let study = study(&record);
        assert!(study.rows[0].weight_error_pct.unwrap().value > 45.0);
        let v = &study.answers[0];
        assert!(
            v.text.contains("cannot be in proportion") && v.text.contains("1.33 of 2 CPUs"),
            "{}",
            v.text
        );
        assert!(v.text.contains("one thread") && v.text.contains("50.0 : 50.0"), "{}", v.text);
        assert_eq!((v.id.as_str(), v.holds), ("weights-infeasible", Some(true)), "{v:?}");
        assert!((study.rows[0].feasible_pct[1] - 50.0).abs() < 1e-9);
    }

    /// As runc makes 100 and 173 of shares of 1:2 (its curve of 2025).
    #[test]
    fn weights_are_those_that_the_kernel_was_told() {
        let mut record = record(&[(100, 36.6), (173, 63.4)]);
        record.host.cpus = Some(1);
        repeat(&mut record, [36.7, 36.5]);
        let study = study(&record);
        let v = &study.answers[0];
        assert_eq!((v.id.as_str(), v.holds), ("weights-hold", Some(true)), "{v:?}");
        assert!(study.rows[0].weight_error_pct.unwrap().value < 0.5, "{:?}", study.rows[0].weight_error_pct);
    }

    #[test]
    fn a_repetition_in_which_a_flow_broke_is_no_result() {
        let options = Options { tenants: vec![2], ..Options::defaults(Which::TenantsNet, true, 1) };
        let points = vec![options.points().unwrap().into_iter().find(|p| p.tenants == 2).unwrap()];
        let mut record = TenantsRecord::begin("tenants-net", Host::default(), options, vec![], points);
        let tenant = |rate: f64| TenantMeasured {
            name: "t".into(),
            flows: 1,
            transactions_per_s: Some(rate),
            ..TenantMeasured::default()
        };
        for (repetition, broken) in
            (0..).zip([None, None, None, Some("a flow ended early: reset".to_owned())])
        {
            let rate = if broken.is_some() { 1.0 } else { 100.0 };
            let flow = |broken: Option<String>| FlowMeasured { broken, ..FlowMeasured::default() };
            let net = Measured {
                seconds: 1.0,
                transactions_per_s: Some(100.0 + rate),
                tenants: vec![tenant(100.0), tenant(rate)],
                flows: vec![flow(None), flow(broken)],
                ..Measured::default()
            };
            let measured = TenantsMeasured { net: Some(net), ..TenantsMeasured::default() };
            record.cells.push(Cell { repetition, ..Cell::from(measured) });
        }
        let study = study(&record);
        assert_eq!((study.rows[0].repetitions, study.rows[0].bias_transactions_pct.unwrap().value), (3, 0.0));
        let [(point, why)] = study.failed.as_slice() else { panic!("{:?}", study.failed) };
        assert!(point.ends_with("(1 of 4 repetitions)") && why.contains("ended early"), "{point}: {why}");
    }

    #[test]
    fn a_bias_whose_interval_straddles_the_sources_bound_is_undecided() {
        let mut record = record(&[(100, 30.0), (200, 60.0)]);
        // 8.2 % off with an interval of many times that.
        repeat(&mut record, [30.0, 38.0]);
        let v = &study(&record).answers[0];
        assert!(v.holds.is_none() && v.text.contains("Undecided"), "{v:?}");
    }

    #[test]
    fn shares_that_others_may_have_put_out_of_proportion_do_not_speak_against_weights() {
        let others = |got: f64, others: f64| {
            let mut record = record(&[(100, got), (200, 60.0)]);
            repeat(&mut record, [got + 0.01, got - 0.01]);
            for cpu in record.cells.iter_mut().filter_map(|cell| cell.measured.cpu.as_mut()) {
                cpu.others_pct = Some(others);
            }
            study(&record).answers.remove(0)
        };
        let quiet = others(36.0, 4.0);
        assert!(quiet.holds == Some(false) && quiet.text.contains("they do not hold"), "{quiet:?}");
        let disturbed = others(36.0, 45.0);
        assert_eq!(disturbed.holds, None, "{disturbed:?}");
        assert!(disturbed.text.contains("they may or may not hold"), "{disturbed:?}");
        assert!(disturbed.text.contains("Others used 45.0 % of a CPU"), "{disturbed:?}");
        let held = others(30.0, 45.0);
        assert!(held.holds == Some(true) && held.text.contains("they hold"), "in spite of them: {held:?}");
    }

    /// Two more repetitions, in which the first tenant got so much.
    fn repeat(record: &mut TenantsRecord, got: [f64; 2]) {
        for (repetition, got) in (1..).zip(got) {
            let mut cell = Cell { repetition, ..record.cells[0].clone() };
            if let Some(cpu) = &mut cell.measured.cpu {
                cpu.tenants[0].cpu_pct = Some(got);
            }
            record.cells.push(cell);
        }
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
        let cpu = CpuMeasured {
            seconds: 1.0,
            cpus: None,
            tenants,
            per_cpu_pct: vec![100.0],
            steal_pct: None,
            others_pct: Some(0.5),
        };
        let cell = Cell::from(TenantsMeasured { cpu: Some(cpu), ..TenantsMeasured::default() });
        let mut record = TenantsRecord::begin("tenants-cpu", Host::default(), options, vec![], points);
        record.cells.push(cell);
        record
    }

    #[test]
    fn weights_are_judged_by_the_largest_deviation() {
        // 30 of 90 with a third of the weight: exact. 36 of 96: 37.5 % instead of 33.3, 12.5 % too much.
        let exact = study(&record(&[(100, 30.0), (200, 60.0)]));
        assert!(exact.rows[0].weight_error_pct.unwrap().value < 1e-9);
        assert!((exact.rows[0].jain.unwrap().value - 1.0).abs() < 1e-12);
        let off = study(&record(&[(100, 36.0), (200, 60.0)]));
        assert!((off.rows[0].weight_error_pct.unwrap().value - 12.5).abs() < 1e-9);
        assert!(off.verdicts[0].contains("12.5 [no interval] %"), "{:?}", off.verdicts);
        assert_eq!(off.answers[0].holds, None);
    }

    #[test]
    fn a_record_and_its_study_survive_the_disk() {
        let dir = tempfile::tempdir().unwrap();
        let record = record(&[(100, 30.0), (200, 60.0)]);
        record.save(dir.path()).unwrap();
        assert_eq!(TenantsRecord::load(dir.path()).unwrap(), record);
        assert!(TenantsRecord::is_one(dir.path()));
        // A study of the same record is the same study.
        assert_eq!(study(&record), study(&TenantsRecord::load(dir.path()).unwrap()));
    }
}
