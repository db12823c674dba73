//! `evenkeel load`: runs one of the built-in workloads in this process.

use evenkeel_base::text::count;
use evenkeel_workload::Kind;
use evenkeel_workload::load::{
    Common, LoadError, LoadReport, LoadSpec, run as run_load, stop_flag_on_signals,
};

use super::show::pretty;
use super::{Failure, Format, Global, Outcome};

/// Run a built-in workload: a known demand for CPU time, accounted for.
///
/// Ends after --seconds or --events, or at SIGINT or SIGTERM, and prints what it wanted and what it got.
///
/// Example: evenkeel load duty --percent 20 --period 100ms --kind wall --seconds 10 -o json
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(subcommand)]
    kind: Kind,
    #[command(flatten)]
    common: Common,
}

pub fn run(global: &Global, args: Args) -> Outcome {
    let stop = stop_flag_on_signals();
    let spec = LoadSpec { kind: args.kind, common: args.common };
    let report = run_load(&spec, stop).map_err(|error| match error {
        LoadError::Parameters(_) => Failure::Usage(error.into()),
        _ => Failure::Cannot(error.into()),
    })?;
    match global.output {
        Format::Json => out!("{}", pretty(&report)?)?,
        Format::Csv => print_csv(&report)?,
        Format::Text | Format::Svg => print_text(&report)?,
    }
    Ok(0)
}

fn number(value: Option<f64>) -> String {
    value.map_or_else(String::new, |v| format!("{v:.3}"))
}

fn print_csv(r: &LoadReport) -> Result<(), Failure> {
    outln!("kind,threads,wanted_pct,got_pct,real_s,cpu_s,events,events_per_s,voluntary,involuntary")?;
    outln!(
        "{},{},{},{},{:.6},{:.6},{},{},{},{}",
        r.load.name(),
        r.threads,
        number(r.wanted_pct),
        number(r.got_pct),
        r.real_s,
        r.cpu_s,
        r.events,
        number(r.events_per_s),
        r.voluntary,
        r.involuntary
    )
}

fn print_text(r: &LoadReport) -> Result<(), Failure> {
    let percent = |value: Option<f64>| value.map_or_else(|| "unknown".into(), |v| format!("{v:.2} %"));
    outln!("{} with {}, ended by {}", r.load.name(), count(r.threads as usize, "thread"), ended(r))?;
    match r.wanted_pct {
        Some(wanted) => outln!("  wanted       {wanted:.2} % of one CPU")?,
        None => outln!("  wanted       what it can get")?,
    }
    outln!("  got          {} of one CPU", percent(r.got_pct))?;
    outln!("  CPU time     {:.3} s in {:.3} s", r.cpu_s, r.real_s)?;
    match r.events_per_s {
        Some(rate) => outln!("  events       {} ({rate:.2} a second)", r.events)?,
        None => outln!("  events       {}", r.events)?,
    }
    if let Some((flows, latency)) = r.flows.as_ref().and_then(|flows| Some((flows, flows.latency?))) {
        let p999 = latency.p999_usec.map_or_else(String::new, |us| format!("p99.9 {us:.0} us, "));
        let (p50, p99, longest) = (latency.p50_usec, latency.p99_usec, latency.max_usec);
        outln!("  latency      p50 {p50:.0} us, p99 {p99:.0} us, {p999}longest {longest:.0} us")?;
        if flows.lost() > 0 {
            outln!(
                "  lost         {} of {} flows, which the server closed",
                flows.lost(),
                flows.flows.len()
            )?;
        }
        if flows.unanswered() > 0 {
            outln!("  not answered {} that were due before the end", flows.unanswered())?;
        }
    }
    outln!("  switches     {} voluntary, {} involuntary", r.voluntary, r.involuntary)?;
    if r.dropped_s > 0.0 {
        outln!("  dropped      {:.3} s of work, the backlog being at its bound", r.dropped_s)?;
    }
    if let Some(late) = r.start.first_instruction_late_usec {
        match r.start.woken_late_usec {
            Some(woken) => {
                outln!("  start        woken {woken:.0} us late, first instruction {late:.0} us late")?
            }
            None => outln!("  start        first instruction {late:.0} us late")?,
        }
    }
    Ok(())
}

fn ended(r: &LoadReport) -> &'static str {
    match r.ended_by {
        evenkeel_workload::load::EndedBy::Time => "time",
        evenkeel_workload::load::EndedBy::Events => "events",
        evenkeel_workload::load::EndedBy::Signal => "signal",
    }
}
