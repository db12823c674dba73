//! What the models say a cell's tenants would do, to stand next to what was measured: the cell simulated as [`super::simulate`]
//! does it, from the experiment and from what one thread does on this host undisturbed.

use evenkeel_experiment::file::Experiment;
use evenkeel_experiment::record::{Ended, Host, Predicted, TenantRecord};
use evenkeel_model::credit;

use super::simulate;

/// CPU seconds of work above which a prediction is not worth the wait.
const MOST_CPU_S: f64 = 3000.0;

/// One prediction a tenant, in their order; where the models have no say its fields are empty and it says why. What a
/// command needs is not known beforehand: the study predicts it from its run alone ([`evenkeel_experiment::study::alone`]).
pub(super) fn predict(experiment: &Experiment, host: &Host, repetition: u32) -> Vec<Predicted> {
    known(experiment, host, repetition).unwrap_or_else(|why| {
        let unknown = Predicted { unknown: Some(why), ..Predicted::default() };
        vec![unknown; experiment.tenants().len()]
    })
}

fn known(experiment: &Experiment, host: &Host, repetition: u32) -> Result<Vec<Predicted>, String> {
    let tenants = simulate::cell(experiment, host, repetition, MOST_CPU_S)?;
    let by = if experiment.enforcer.is_some() { "credits" } else { "simulator" };
    Ok(tenants.iter().map(|tenant| predicted(experiment, tenant, by)).collect())
}

fn predicted(experiment: &Experiment, tenant: &TenantRecord, by: &str) -> Predicted {
    let mean = |of: &dyn Fn(&evenkeel_experiment::record::RunRecord) -> Option<f64>| {
        let values: Vec<f64> = tenant.runs.iter().filter_map(of).collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    };
    let elapsed_s = (tenant.ended == Ended::Done && tenant.runs_planned > 0).then_some(tenant.total.real_s);
    let stolen_s = tenant.total.stolen_s;
    Predicted {
        by: by.to_owned(),
        events_per_s: mean(&|run| run.events_per_s),
        elapsed_s,
        run_s: mean(&|run| Some(run.end_s - run.start_s)),
        got_pct: tenant
            .total
            .cpu_s()
            .filter(|_| tenant.total.real_s > 0.0)
            .map(|s| 100.0 * s / tenant.total.real_s),
        waited_s: tenant.total.waited_s,
        stolen_s,
        credits: credits_left(experiment, tenant),
        unknown: None,
    }
}

/// Credits left, where the enforcer's rule knows any.
fn credits_left(experiment: &Experiment, tenant: &TenantRecord) -> Option<f64> {
    let enforcer = experiment.enforcer.as_ref()?;
    let cpu_s = tenant.total.cpu_s()? * enforcer.time_scale;
    let limit = tenant.limits.quota_pct.map(|pct| pct / 100.0);
    credit::run(&enforcer.rule, credit::Job { cpu_s, busy: 1.0 }, limit).credits
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_experiment::file::{StealSpec, TenantSpec};

    fn host() -> Host {
        Host {
            cpus: Some(2),
            kernel: Some("6.12.0".into()),
            tenants_v2: Some(true),
            primes_per_s: Some(1000.0),
            primes_per_s_all: Some(2000.0),
            ..Host::default()
        }
    }

    fn primes(name: &str) -> TenantSpec {
        TenantSpec { load: Some("primes".into()), run_s: Some(2.0), runs: 3, ..TenantSpec::new(name) }
    }

    #[test]
    fn shares_are_predicted_by_the_simulator() {
        let mut experiment = Experiment::new("x", "");
        experiment.cpus = Some(evenkeel_base::CpuSet::first_n(1));
        experiment.tenants = vec![
            TenantSpec { weight: Some(100), ..primes("a") },
            TenantSpec { weight: Some(300), ..primes("b") },
        ];
        let all = predict(&experiment, &host(), 0);
        let (a, b) = (all[0].events_per_s.unwrap(), all[1].events_per_s.unwrap());
        assert!((b / a - 3.0).abs() < 0.2 && (a + b - 1000.0).abs() < 40.0, "{a} {b}");
        assert!(all[0].elapsed_s.unwrap() >= 6.0);
        experiment.tenants[0].load = None;
        experiment.tenants[0].command = Some(vec!["make".into()]);
        let why = predict(&experiment, &host(), 0)[1].unknown.clone().unwrap();
        assert!(why.contains("tenant a") && why.contains("make"), "{why}");
    }

    #[test]
    fn a_job_under_a_rule_is_predicted_by_the_credit_model() {
        let mut experiment = Experiment::new("x", "");
        experiment.enforcer = Some(StealSpec {
            rule: credit::Rule::Constant { stolen: 0.5 },
            instance: None,
            time_scale: 10.0,
        });
        experiment.tenants = vec![TenantSpec { run_s: None, events: Some(2000), runs: 1, ..primes("a") }];
        let all = predict(&experiment, &host(), 0);
        assert!((all[0].elapsed_s.unwrap() - 4.0).abs() < 0.05, "{all:?}");
        assert!((all[0].stolen_s.unwrap() - 2.0).abs() < 0.05, "{all:?}");
    }
}
