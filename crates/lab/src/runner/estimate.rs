//! How long an experiment will take, before anything is run: what its tenants were asked for, the fair share each gets
//! while all of them run, and what a cell costs around them.

use evenkeel_experiment::file::{Experiment, Place, Tenant};
use evenkeel_experiment::record::Host;
use evenkeel_experiment::study::point::{machine, shares};
use evenkeel_model::credit;
use evenkeel_model::fair::FairGroup;

use super::order::Work;
use super::work;
use crate::cost;
use evenkeel_workload::Kind;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::sieve::ReadMode;

/// Before the first cell and after the last: what the host does alone is measured twice, the host is looked at for a
/// moment, and the report is made. Measured: 2.9 s.
const AROUND_S: f64 = 3.5;
/// A cell's groups and processes: made, come up, released, noticed to have ended, removed. Measured: 0.2 s and less.
const CELL_S: f64 = 0.25;
/// The same for each tenant more, in a group; measured: 4 ms.
const TENANT_S: f64 = 0.01;
/// A read() of a file in memory takes some hundred nanoseconds.
const READ_S: f64 = 300e-9;
/// The same through a descriptor that all threads share, of which one reads at a time.
const SHARED_READ_S: f64 = 500e-9;
/// The same as [`TENANT_S`] for each tenant in a container or a pod.
const CONTAINER_S: f64 = 1.5;

/// Seconds all cells take, set-up and report included; `None` where a tenant runs a command or a load whose length is
/// known only when it has run. `host` says how fast it is; an upper bound rather than a mean.
pub fn planned_s(experiment: &Experiment, host: &Host) -> Option<f64> {
    let points = experiment.points().ok()?;
    let there = points.iter().filter(|planned| planned.point.unavailable.is_none());
    all_s(there.map(|planned| cell_s(&planned.experiment, host)), experiment.repetitions)
}

/// Seconds of all repetitions of a pass over cells, and of what is around them.
pub(crate) fn all_s(pass: impl Iterator<Item = Option<f64>>, repetitions: u32) -> Option<f64> {
    Some(AROUND_S + pass.sum::<Option<f64>>()? * f64::from(repetitions))
}

fn cell_s(experiment: &Experiment, host: &Host) -> Option<f64> {
    let tenants = experiment.tenants();
    let got = got(experiment, host, &tenants)?;
    let specs = || tenants.iter().map(|tenant| &experiment.tenants[tenant.spec]);
    // Until then at least one of those whose runs are so many seconds long competes.
    let asked_s = specs()
        .filter(|spec| !spec.background)
        .filter_map(|spec| Some(spec.start_s + spec.run_s? * f64::from(spec.runs)))
        .fold(0.0, f64::max);
    let mut longest: f64 = 0.0;
    let mut set_up = CELL_S;
    for ((tenant, spec), got) in tenants.iter().zip(specs()).zip(got) {
        set_up += match spec.place {
            Place::Cgroup | Place::Process => TENANT_S,
            Place::Docker | Place::Pod => CONTAINER_S,
        };
        if !spec.background {
            longest = longest.max(spec.start_s + runs_s(experiment, host, tenant, got, asked_s)?);
        }
    }
    Some(set_up + longest.min(work::time_limit_s(experiment)))
}

/// All runs of a tenant that gets so many CPUs while others compete.
fn runs_s(experiment: &Experiment, host: &Host, tenant: &Tenant, got: f64, asked_s: f64) -> Option<f64> {
    let spec = &experiment.tenants[tenant.spec];
    let runs = f64::from(spec.runs);
    let Work::Load(load) = work::work(tenant, spec, 1).ok()? else { return None };
    if let Some(seconds) = load.common.seconds {
        let Kind::Primes(primes) = &load.kind else { return Some(runs * seconds) };
        // A run ends with the event that was begun before its time was over.
        let event_s = pass_s(primes.max_prime, host.primes_per_s?);
        let late_s = event_s / (got / f64::from(spec.threads.max(1))).clamp(1e-6, 1.0);
        let competing = runs * (seconds + late_s);
        // One with a small share is held up only as long as the others are there.
        let done = asked_s / (seconds + late_s);
        return Some(if competing <= asked_s || done >= runs {
            competing
        } else {
            asked_s + (runs - done) * (seconds + event_s)
        });
    }
    let cpu_s = need_s(&load, host)?;
    match &experiment.enforcer {
        Some(enforcer) => {
            let job = credit::Job { cpu_s: cpu_s * enforcer.time_scale, busy: 1.0 };
            let outcome = credit::run(&enforcer.rule, job, spec.quota_pct.map(|pct| pct / 100.0));
            Some(runs * outcome.real_s? / enforcer.time_scale)
        }
        None => {
            // Threads that share a position do not run next to each other.
            let alone = matches!(&load.kind, Kind::Sieve(sieve) if sieve.shares_position());
            let got = if alone { got.min(1.0) } else { got };
            (got > 0.0).then(|| runs * cpu_s / got)
        }
    }
}

/// CPU seconds of one run of a load that ends by itself.
fn need_s(load: &LoadSpec, host: &Host) -> Option<f64> {
    let primes_per_s = host.primes_per_s?;
    match (&load.kind, load.common.events) {
        (Kind::Primes(primes), Some(events)) => Some(events as f64 * pass_s(primes.max_prime, primes_per_s)),
        (Kind::Sieve(sieve), None) => {
            let read_s = match sieve.read {
                ReadMode::None => 0.0,
                ReadMode::Own | ReadMode::Same if sieve.shares_position() => SHARED_READ_S,
                ReadMode::Own | ReadMode::Same => READ_S,
            };
            let divisions: f64 = cost::of_range(sieve.from, sieve.to)?.into_iter().map(f64::from).sum();
            Some(divisions * (cost::division_s(primes_per_s) + read_s))
        }
        _ => None,
    }
}

/// CPU seconds of one event of `primes`: a pass to n is about n^1.5 divisions.
fn pass_s(max_prime: u64, primes_per_s: f64) -> f64 {
    (max_prime as f64 / 10_000.0).powf(1.5) / primes_per_s
}

/// CPUs each tenant gets while all of them run.
fn got(experiment: &Experiment, host: &Host, tenants: &[Tenant]) -> Option<Vec<f64>> {
    let v2 = host.tenants_v2.unwrap_or(true);
    let factor = experiment.unit_factor(v2).ok()?;
    let competitor = |tenant: &Tenant| {
        let spec = &experiment.tenants[tenant.spec];
        let group = FairGroup {
            parent: None,
            weight: work::load_weight(work::wanted(tenant, spec, factor, v2).weight, v2),
            quota_cpus: spec.quota_pct.map(|pct| pct / 100.0),
            cpus: spec.cpus.clone().or_else(|| experiment.cpus.clone()),
        };
        (group, f64::INFINITY, spec.threads.max(1))
    };
    shares(&machine(host)?, tenants.iter().map(competitor))
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_experiment::file::TenantSpec;

    fn host() -> Host {
        Host { cpus: Some(2), primes_per_s: Some(1000.0), ..Host::default() }
    }

    fn work_s(tenants: Vec<TenantSpec>) -> Option<f64> {
        let experiment = Experiment { tenants, ..Experiment::new("x", "") };
        let count = experiment.tenants().len() as f64;
        Some(planned_s(&experiment, &host())? - AROUND_S - CELL_S - count * TENANT_S)
    }

    #[test]
    fn what_was_asked_for_is_counted() {
        let primes = TenantSpec { load: Some("primes".into()), ..TenantSpec::new("a") };
        let near = |got: Option<f64>, s: f64| assert!((got.unwrap() - s).abs() < 0.01, "{got:?} {s}");
        // Three runs of 2 s, each with the millisecond of its last event.
        near(work_s(vec![TenantSpec { run_s: Some(2.0), runs: 3, ..primes.clone() }]), 6.003);
        // 3000 events under a quota of half a CPU: 6 s.
        let events = TenantSpec { events: Some(3000), ..primes.clone() };
        near(work_s(vec![TenantSpec { quota_pct: Some(50.0), ..events.clone() }]), 6.0);
        // Four of them on two CPUs: half a CPU each.
        near(work_s(vec![TenantSpec { count: 4, ..events.clone() }]), 6.0);
        // A small share (1 of 1001) ends a run's last event a second late, while the other is there.
        let list = |text: &str| TenantSpec {
            units: text.parse().ok(),
            run_s: Some(1.0),
            runs: 4,
            threads: 2,
            ..primes.clone()
        };
        near(work_s(vec![list("1 1000")]), 4.0 + (4.0 - 4.0 / 2.001) * 1.001);
        // A neighbour in the background takes its part, and is not waited for.
        let spin =
            TenantSpec { load: Some("spin".into()), threads: 2, background: true, ..TenantSpec::new("s") };
        near(work_s(vec![TenantSpec { threads: 2, ..events.clone() }, spin]), 3.0);
        // Who reads through one descriptor waits for the other thread, whatever CPUs there are; by pread it does not.
        let reader = |read: &str| {
            let load = Some(format!("sieve --from 10001 --to 12000 --read {read}"));
            work_s(vec![TenantSpec { load, threads: 2, ..TenantSpec::new("r") }]).unwrap()
        };
        let (own, by_pread) = (reader("own"), reader("same --shared-fd --pread"));
        assert!(
            reader("same --shared-fd") > 2.0 * own && (own / by_pread - 1.0).abs() < 1e-9,
            "{own} {by_pread}"
        );
        let command = TenantSpec { command: Some(vec!["make".into()]), ..TenantSpec::new("c") };
        assert_eq!(work_s(vec![command]), None);
    }
}
