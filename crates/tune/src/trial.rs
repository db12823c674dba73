//! One trial: start the service with some settings, wait until it is up, measure, end it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::search::Point;
use evenkeel_base::{CpuSet, excerpt};
use evenkeel_fetch::http;
use evenkeel_fetch::prometheus::Metrics;
use evenkeel_linux::sys;

use super::error::TuneError;
use super::expand::Settings;
use super::file::{Lever, ServiceSpec, Tune};
use super::process::{Order, Output, Process, Runner, how};
use super::reading::Measured;

/// Without a sign of readiness: up when still there after this time.
const SETTLED: Duration = Duration::from_millis(500);
/// How often readiness is asked for.
const KNOCK: Duration = Duration::from_millis(20);

/// What came of a trial.
#[derive(Debug, Clone, PartialEq)]
pub enum TrialEnd {
    /// Values of the readings, in their order.
    Measured(Vec<f64>),
    /// Nothing to compare; why.
    Failed(String),
    Stopped,
}

/// Refuses to start when somebody else serves at the address already: that one would be measured.
pub(super) fn address_is_free(tune: &Tune) -> Result<(), TuneError> {
    let Some(ready) = tune.file.service.as_ref().and_then(|s| s.ready.as_deref()) else { return Ok(()) };
    // A port that depends on the settings is asked for with them.
    if ready.contains('{') || !answers(ready) {
        return Ok(());
    }
    Err(TuneError::Taken(ready.to_owned()))
}

fn answers(address: &str) -> bool {
    let within = Duration::from_millis(500);
    match address.strip_prefix("tcp://") {
        Some(host) => http::connect(host, within).is_ok(),
        None => http::get(address, within).is_ok(),
    }
}

/// Runs a trial in a directory of its own.
pub(super) fn run(tune: &Tune, runner: &Runner, dir: &Path, point: &Point, stop: &AtomicBool) -> TrialEnd {
    match attempt(tune, runner, dir, point, stop) {
        Ok(values) => TrialEnd::Measured(values),
        Err(_) if stop.load(Ordering::Relaxed) => TrialEnd::Stopped,
        Err(what) => TrialEnd::Failed(what),
    }
}

fn attempt(
    tune: &Tune,
    runner: &Runner,
    dir: &Path,
    point: &Point,
    stop: &AtomicBool,
) -> Result<Vec<f64>, String> {
    let _ = fs::remove_dir_all(dir);
    fs::create_dir_all(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
    let settings = tune.settings(point).in_dir(&dir.display().to_string());
    let bounds = bounds(tune, point)?;
    let mut service = match &tune.file.service {
        None => None,
        Some(spec) => Some(start_service(tune, spec, runner, dir, &settings, &bounds, stop)?),
    };
    sleep(Duration::from_secs_f64(tune.file.measure.warmup_s), stop)?;
    let mut before = Vec::new();
    for url in tune.readings.iter().filter_map(|r| r.before()) {
        if before.iter().all(|(u, _): &(String, Metrics)| u != url) {
            let page = http::get(url, Duration::from_secs(5)).map_err(|e| format!("{url}: {e}"))?;
            before.push((url.to_owned(), Metrics::parse(&page)));
        }
    }
    let cpu_before = service.as_mut().and_then(Process::cpu_s);
    let started = Instant::now();
    let mut measured = Measured { before, ..Measured::default() };
    match &tune.file.measure.command {
        Some(command) => {
            let order = Order {
                command: command.iter().map(|w| settings.fill(w)).collect(),
                env: tune.file.measure.env.iter().map(|(k, v)| (k.clone(), settings.fill(v))).collect(),
                dir: tune.dir.clone(),
                bounds: if service.is_some() { Vec::new() } else { bounds },
                prefix: dir.join("measure"),
            };
            let within = Duration::from_secs_f64(tune.file.measure.timeout_s.unwrap_or(300.0));
            let mut process = runner
                .start(&order, Duration::from_secs(2))
                .map_err(|e| format!("{}: {e}", runner.binary.display()))?;
            let Some(status) = process.wait(within, stop) else {
                process.end();
                return Err(format!(
                    "{} did not end within {} s; it wrote {:?}",
                    order.command[0],
                    within.as_secs_f64(),
                    excerpt(&process.output().all())
                ));
            };
            measured.real_s = started.elapsed().as_secs_f64();
            Output { stdout: measured.stdout, stderr: measured.stderr } = process.output();
            if !status.success() {
                let text =
                    if measured.stderr.trim().is_empty() { &measured.stdout } else { &measured.stderr };
                return Err(format!("{} {}: {:?}", order.command[0], how(status), excerpt(text)));
            }
            if service.is_none() {
                measured.cpu_s = process.cpu_s();
            }
        }
        None => {
            sleep(Duration::from_secs_f64(tune.file.measure.seconds.unwrap_or(10.0)), stop)?;
            measured.real_s = started.elapsed().as_secs_f64();
        }
    }
    if let Some(service) = &mut service {
        if let Some(status) = service.ended() {
            return Err(format!(
                "the service {} while it was measured: {:?}",
                how(status),
                excerpt(&service.output().all())
            ));
        }
        measured.cpu_s = service.cpu_s().zip(cpu_before).map(|(after, before)| after - before);
    }
    let read = |r: &super::Reading| r.read(&measured).map_err(|what| format!("{}: {what}", r.name));
    let values = tune.readings.iter().map(read).collect();
    if let Some(mut service) = service {
        service.end();
    }
    values
}

fn sleep(time: Duration, stop: &AtomicBool) -> Result<(), String> {
    let until = Instant::now() + time;
    while Instant::now() < until {
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".into());
        }
        std::thread::sleep(until.saturating_duration_since(Instant::now()).min(KNOCK));
    }
    Ok(())
}

fn start_service(
    tune: &Tune,
    spec: &ServiceSpec,
    runner: &Runner,
    dir: &Path,
    settings: &Settings,
    bounds: &[String],
    stop: &AtomicBool,
) -> Result<Process, String> {
    for file in &spec.files {
        let text = match (&file.text, &file.from) {
            (Some(text), _) => text.clone(),
            (None, Some(from)) => {
                let path = tune.dir.join(from);
                fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?
            }
            (None, None) => String::new(),
        };
        let to = tune.dir.join(settings.fill(&file.to));
        fs::write(&to, settings.fill(&text)).map_err(|e| format!("{}: {e}", to.display()))?;
    }
    let order = Order {
        command: spec.command.iter().map(|w| settings.fill(w)).collect(),
        env: spec.env.iter().map(|(k, v)| (k.clone(), settings.fill(v))).collect(),
        dir: spec.dir.as_ref().map_or_else(|| tune.dir.clone(), |d| tune.dir.join(d)),
        bounds: bounds.to_vec(),
        prefix: dir.join("service"),
    };
    let patience = Duration::from_secs_f64(spec.stop_within_s);
    let mut process =
        runner.start(&order, patience).map_err(|e| format!("{}: {e}", runner.binary.display()))?;
    let within = Duration::from_secs_f64(spec.ready_within_s);
    let ready = spec.ready.as_ref().map(|r| settings.fill(r));
    let started = Instant::now();
    loop {
        if stop.load(Ordering::Relaxed) {
            return Err("stopped".into());
        }
        if let Some(status) = process.ended() {
            return Err(format!(
                "the service did not come up: it {}: {:?}",
                how(status),
                excerpt(&process.output().all())
            ));
        }
        match &ready {
            Some(address) if answers(address) => return Ok(process),
            None if started.elapsed() >= SETTLED => return Ok(process),
            _ => {}
        }
        if ready.is_some() && started.elapsed() >= within {
            return Err(format!(
                "the service did not come up: {} does not answer after {} s; it wrote {:?}",
                ready.unwrap_or_default(),
                within.as_secs_f64(),
                excerpt(&process.output().all())
            ));
        }
        std::thread::sleep(KNOCK);
    }
}

/// The point's settings of evenkeel's own, as arguments of `exec`.
fn bounds(tune: &Tune, point: &Point) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    let lever = |l| tune.lever(l, point);
    if let Some(pct) = lever(Lever::Quota) {
        out.push(format!("--cpu-limit={pct}%"));
        let period = lever(Lever::PeriodMs).map(|ms| format!("--period={}us", (1000.0 * ms).round()));
        out.extend(period);
    }
    out.extend(lever(Lever::Weight).map(|w| format!("--weight={w}")));
    out.extend(lever(Lever::SliceMs).map(|ms| format!("--slice={}us", (1000.0 * ms).round())));
    out.extend(lever(Lever::Nice).map(|n| format!("--nice={n}")));
    if let Some(count) = lever(Lever::Cpus) {
        let all = sys::getaffinity(0).map_err(|e| format!("sched_getaffinity: {e}"))?;
        let some: CpuSet = all.iter().take(count as usize).collect();
        if some.len() < count as usize {
            return Err(format!("{count} CPUs are asked for, {} may be used here", some.len()));
        }
        out.push(format!("--cpus={some}"));
    }
    Ok(out)
}

/// Where trials put their files.
pub(super) fn trial_dir(results: &Path) -> PathBuf {
    results.join("trial")
}
