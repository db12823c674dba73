//! Two runs of the same experiment: do they agree, each figure within its interval?

use evenkeel_base::run::Estimate;
use evenkeel_lab::fairness::plan::{Options, Which};
use evenkeel_lab::fairness::study::{Row, Study, agree};
use evenkeel_report::{Field, Table};
use serde::Serialize;

use super::show::with_interval;

/// One figure at one point, in both runs.
#[derive(Debug, Serialize)]
pub struct Compared {
    point: String,
    figure: &'static str,
    first: Estimate,
    second: Estimate,
    /// `None` where one shows no interval.
    agree: Option<bool>,
}

type Figure = (&'static str, fn(&Row) -> Option<Estimate>);

/// Biases are what must agree; throughput is shown alongside.
const FIGURES: [Figure; 5] = [
    ("bias of throughput, %", |row| row.bias_transactions_pct),
    ("bias of latency, %", |row| row.bias_latency_pct),
    ("bias of CPU time, %", |row| row.bias_cpu_pct),
    ("off weight, %", |row| row.weight_error_pct),
    ("transactions/s", |row| row.transactions_per_s),
];

/// What two runs do not have in common that measured the same tenants under another load: their figures are of different things.
pub fn other_load(first: &Options, second: &Options) -> Option<String> {
    let load = |options: &Options| match options.which {
        Which::TenantsNet => format!("{} flows of {}", options.flows, options.traffic.name()),
        Which::TenantsCpu => "tenants that compute".to_owned(),
    };
    let (first, second) = (load(first), load(second));
    (first != second).then(|| format!("the two are not the same experiment: {first}, and {second}"))
}

/// Every figure both runs have, at every point both have; with one tenant there is no bias.
pub fn compare(first: &Study, second: &Study) -> Vec<Compared> {
    let mut all = Vec::new();
    for a in &first.rows {
        let Some(b) = second.rows.iter().find(|b| b.point == a.point) else { continue };
        for (figure, of) in FIGURES {
            let (Some(first), Some(second)) = (of(a), of(b)) else { continue };
            if a.point.tenants == 1 && figure.starts_with("bias") {
                continue;
            }
            let agree = agree(&first, &second);
            all.push(Compared { point: a.point.to_string(), figure, first, second, agree });
        }
    }
    all
}

pub fn text(compared: &[Compared]) -> String {
    let shown = |e: &Estimate| with_interval(e, 1);
    let table = Table::new(vec![
        Field::text("point", "POINT", |c: &Compared| c.point.clone()),
        Field::text("figure", "FIGURE", |c: &Compared| c.figure.to_owned()),
        Field::text("first", "FIRST", move |c: &Compared| shown(&c.first)),
        Field::text("second", "SECOND", move |c: &Compared| shown(&c.second)),
        Field::text("agree", "AGREE", |c: &Compared| match c.agree {
            Some(true) => "yes",
            Some(false) => "NO",
            None => "?",
        }),
    ]);
    let of = |agree: Option<bool>| compared.iter().filter(|c| c.agree == agree).count();
    let open = match of(None) {
        0 => String::new(),
        open => format!("; of {open} it is open: one repetition shows no interval"),
    };
    let (agreeing, all) = (of(Some(true)), compared.len());
    format!(
        "{}\n{agreeing} of {all} figures agree within their intervals{open}\n",
        table.text(compared, None)
    )
}

/// Whether every bias is shown to agree.
pub fn biases_agree(compared: &[Compared]) -> bool {
    compared.iter().filter(|c| c.figure != "transactions/s").all(|c| c.agree == Some(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_load_is_another_experiment() {
        let of = |which, flows| Options { flows, ..Options::defaults(which, true, 2) };
        let net = |flows| of(Which::TenantsNet, flows);
        assert_eq!(other_load(&net(32), &net(32)), None);
        assert!(other_load(&net(32), &net(128)).unwrap().contains("32 flows of rr, and 128 flows of rr"));
        // Nothing flows there.
        let cpu = |flows| of(Which::TenantsCpu, flows);
        assert_eq!((other_load(&cpu(32), &cpu(1)), other_load(&cpu(32), &net(32)).is_some()), (None, true));
    }
}
