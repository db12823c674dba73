//! Records that the simulator makes: of built-in experiments and of files drawn at random. Next to what is printed of them,
//! truths that hold of any scheduler are reckoned from the files.

use std::fmt::Write as _;

use evenkeel_base::{CpuSet, Topology};
use evenkeel_experiment::file::Experiment;
use evenkeel_experiment::record::{Cell, Host, Record, TenantRecord};
use evenkeel_lab::builtin::{BUILTINS, Plan};
use evenkeel_lab::runner::{About, simulate};
use evenkeel_model::credit::Rule;

use crate::lab::Tally;
use crate::own::max_min;
use crate::shared::{Random, count};

/// Events of `primes` a second of one thread.
const RATE: f64 = 1000.0;
/// Shares of greedy tenants with a thread for every CPU may be off the fair ones by this, percent of all: on one CPU, and on
/// several.
const OFF_PCT: [f64; 2] = [1.0, 6.0];

fn host(cpus: u32, random: &mut Random) -> Host {
    Host {
        name: Some("simulated".into()),
        cpus: Some(cpus),
        cores: Some(cpus),
        threads_per_core: Some(1),
        kernel: Some(random.pick(&["5.15.0", "6.1.0", "6.12.0"]).into()),
        tenants_v2: Some(random.uniform() < 0.7),
        primes_per_s: Some(RATE),
        primes_per_s_all: Some(RATE * f64::from(cpus)),
        ..Host::default()
    }
}

/// What a file is about.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Shape {
    /// Tenants of unlike weights that want all they can get.
    Greedy,
    /// So much work, with and without a quota.
    Work,
    /// One job under a rule that steals, with and without limits.
    Stolen,
    /// Unlike loads next to each other.
    Mixed,
}

fn file(shape: Shape, cpus: u32, random: &mut Random) -> String {
    let mut text = format!("name = 'drawn'\nrepetitions = {}\n", random.pick(&[1, 2, 3]));
    let weights = [50, 100, 200, 400];
    let limits = random.pick(&["['none', 25, 50]", "['none', 60]", "['none', 20, 40, 80]"]);
    let _ = match shape {
        Shape::Greedy => {
            let threads = random.pick(&[1, cpus]);
            (0..random.pick(&[2, 3, 5])).try_for_each(|i| {
                writeln!(
                    text,
                    "[[tenant]]\nname = 't{i}'\nload = 'primes'\nrun_s = 3\nthreads = {threads}\nweight = {}",
                    random.pick(&weights)
                )
            })
        }
        Shape::Work => writeln!(
            text,
            "[[tenant]]\nname = 'a'\nload = 'primes'\nevents = {}\nthreads = {}\nruns = {}\n[[sweep]]\nfield = \
             'tenant.a.quota_pct'\nvalues = {limits}",
            random.pick(&[500, 1500]),
            random.pick(&[1, 2]),
            random.pick(&[1, 3]),
        ),
        Shape::Stolen => {
            let rules = [
                "{ rule = 'none' }",
                "{ rule = 'constant', stolen = 0.45 }",
                "{ rule = 'window', window_s = 100.0, above = 0.33, below = 0.3, stolen = 0.97, counts_stolen = true }",
                "{ rule = 'penalty', free = 0.33, burst_s = 10.0, stolen = 0.97, penalty_s = 167.0 }",
                "{ rule = 'credits', start = 2.0, per_hour = 6.0, cap = 144.0 }",
                "{ rule = 'credits', start = 0.0, per_hour = 24.0, cap = 0.0 }",
            ];
            let (a, b) = (random.pick(&rules), random.pick(&rules));
            writeln!(
                text,
                "[enforcer]\nrule = {a}\ntime_scale = {}\n[[tenant]]\nname = 'job'\nload = 'primes'\nevents = {}\n[[sweep]]\nname \
                 = 'rule'\n[[sweep.point]]\nlabel = 'first'\n[[sweep.point]]\nlabel = 'second'\nset = {{ 'enforcer.rule' = {b} }}\n\
                 [[sweep]]\nfield = 'tenant.job.quota_pct'\nvalues = {limits}",
                random.pick(&[10, 50]),
                random.pick(&[800, 5000]),
            )
        }
        Shape::Mixed => writeln!(
            text,
            "[[tenant]]\nname = 'noise'\nload = 'spin'\nbackground = true\nweight = {}\n[[tenant]]\nname = 'a'\nload = \
             'primes'\nevents = 800\nruns = 2\nweight = {}\n[[tenant]]\nname = 'b'\nload = 'duty --percent 30'\nrun_s = 2\n\
             [[sweep]]\nfield = 'tenant.a.quota_pct'\nvalues = {limits}",
            random.pick(&weights),
            random.pick(&weights),
        ),
    };
    text
}

fn cpu_s(t: &TenantRecord) -> f64 {
    t.total.user_s.unwrap_or(0.0) + t.total.sys_s.unwrap_or(0.0)
}

/// What any scheduler and any hypervisor must keep to; how many truths were looked at.
fn truths(record: &Record, cpus: u32, shape: Option<Shape>) -> Result<usize, String> {
    let mut seen = 0;
    for cell in record.cells.iter().filter(|c| !c.tenants.is_empty()) {
        seen += of_cell(cell, f64::from(cpus), shape)
            .map_err(|why| format!("{why}: {} {:?} {:?}", cell.point.label, cell.enforcer, cell.tenants))?;
    }
    Ok(seen)
}

fn of_cell(cell: &Cell, cpus: f64, shape: Option<Shape>) -> Result<usize, String> {
    let mut truths: Vec<(String, bool)> = Vec::new();
    let longest = cell.tenants.iter().map(|t| t.total.real_s).fold(0.0, f64::max);
    let used: f64 = cell.tenants.iter().map(cpu_s).sum();
    truths.push((format!("{used} CPU s on {cpus} CPUs"), used <= cpus * longest * 1.001 + 0.001));
    for t in &cell.tenants {
        let (used, real) = (cpu_s(t), t.total.real_s);
        truths.push((
            format!("{used} CPU s of {} threads", t.threads),
            used <= f64::from(t.threads) * real * 1.001 + 0.001,
        ));
        if let Some(quota) = t.limits.quota_pct {
            let period = t.limits.period_usec.unwrap_or(100_000) as f64 / 1e6;
            let most = quota / 100.0 * (real + period) + 0.011 * f64::from(t.threads);
            truths.push((format!("{used} CPU s under {quota} %, at most {most}"), used <= most));
        }
        let events = t
            .workload
            .strip_prefix("primes --events ")
            .and_then(|n| n.split(' ').next()?.parse::<f64>().ok());
        if let (Some(events), true) = (events, t.runs.len() == t.runs_planned as usize) {
            let work = events * t.runs.len() as f64 / RATE;
            truths.push((format!("{work} CPU s of work took {used}"), (used / work - 1.0).abs() < 0.02));
        }
        if let (Some(enforcer), Some(stolen)) =
            (&cell.enforcer, t.total.stolen_s.filter(|_| !t.runs.is_empty()))
        {
            // Demand is what the quota lets through, given or stolen.
            let asked = t.limits.quota_pct.map_or(1.0, |q| (q / 100.0).min(1.0));
            let sum = format!("{used} given, {stolen} stolen of {asked} x {real}");
            truths.push((sum, ((used + stolen) / (asked * real) - 1.0).abs() < 0.01));
            let given = match enforcer.rule {
                Rule::None => Some(asked),
                Rule::Constant { stolen } => Some(asked * (1.0 - stolen)),
                Rule::Credits { cap, per_hour, start } if cap <= 0.0 && start <= 0.0 => {
                    Some(asked.min(per_hour / 60.0))
                }
                _ => None,
            };
            if let Some(given) = given {
                truths.push((format!("{given} given"), (used / given / real - 1.0).abs() < 0.02));
            }
        }
    }
    if shape == Some(Shape::Greedy) {
        let weights: Vec<f64> =
            cell.tenants.iter().map(|t| t.limits.weight.or(t.limits.shares).unwrap() as f64).collect();
        let threads: Vec<f64> = cell.tenants.iter().map(|t| f64::from(t.threads)).collect();
        let due = max_min(cpus, &weights, &threads);
        let all: f64 = due.iter().sum();
        // Single threads are on one CPU at a time: of five on four CPUs two share one, whatever the weights (docs/model.md).
        let divisible = threads.iter().all(|threads| *threads >= cpus);
        for (t, due) in cell.tenants.iter().zip(due).filter(|_| divisible) {
            let off = 100.0 * (cpu_s(t) / used - due / all);
            let most = OFF_PCT[usize::from(cpus > 1.0)];
            truths.push((format!("{} is {off} % of all off its fair share", t.name), off.abs() <= most));
        }
        let idle = 100.0 * (1.0 - used / all / longest);
        truths.push((format!("{idle} % idle"), idle.abs() < 1.0 + 2.0 * (cpus - 1.0)));
    }
    match truths.iter().find(|(_, right)| !right) {
        Some((why, _)) => Err(why.clone()),
        None => Ok(truths.len()),
    }
}

#[test]
fn no_sentence_on_a_simulation_contradicts_its_figures() {
    let mut random = Random(41);
    let records = count(120).div_ceil(4);
    let (mut tally, mut seen) = (Tally::default(), 0);
    for n in 0..records {
        let cpus = random.pick(&[1, 2, 4]);
        let host = host(cpus, &mut random);
        let shape = [Shape::Greedy, Shape::Work, Shape::Stolen, Shape::Mixed][n % 4];
        let text = file(shape, cpus, &mut random);
        let experiment = Experiment::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let record = simulate(&experiment, &About::default(), &host, &mut |_| {}).unwrap();
        tally.judge(&format!("{shape:?} ({n}) on {cpus} CPUs"), &record);
        match truths(&record, cpus, Some(shape)) {
            Ok(n) => seen += n,
            Err(why) => {
                tally.wrong.push(format!("{shape:?} ({n}) on {cpus} CPUs, {:?}: {why}\n{text}", host.kernel))
            }
        }
    }
    tally.end(&format!("sim: {records} files, {seen} truths kept"));
    assert!(seen > 5 * records);
}

#[test]
fn no_sentence_on_a_simulated_builtin_contradicts_its_figures() {
    let mut random = Random(42);
    let (mut tally, mut seen, mut simulated) = (Tally::default(), 0, 0);
    // Most of a minute in the long form: the short one has one machine.
    let machines: &[u32] = if count(120) < 1000 { &[2] } else { &[1, 2, 4, 8] };
    for (builtin, cpus) in BUILTINS.iter().flat_map(|b| machines.iter().map(move |cpus| (b, *cpus))) {
        let host = host(cpus, &mut random);
        let plan = Plan {
            quick: true,
            cpus: CpuSet::first_n(cpus),
            topology: Some(Topology::synthetic(1, 1, cpus, 1)),
            primes_per_s: RATE,
        };
        let about = About { builtin: Some(builtin.name.into()), quick: true, ..About::default() };
        // Those that read files are not simulated.
        let Ok(record) = simulate(&builtin.experiment(&plan), &about, &host, &mut |_| {}) else { continue };
        simulated += 1;
        tally.judge(&format!("{} on {cpus} CPUs", builtin.name), &record);
        match truths(&record, cpus, None) {
            Ok(n) => seen += n,
            Err(why) => tally.wrong.push(format!("{} on {cpus} CPUs: {why}", builtin.name)),
        }
    }
    tally.end(&format!("sim: {simulated} simulated built-in experiments, {seen} truths kept"));
    assert!(simulated >= 10 * machines.len(), "{simulated}");
}
