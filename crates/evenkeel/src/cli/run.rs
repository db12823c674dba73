//! `evenkeel run`: the closed loop.

use std::io::IsTerminal;
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use evenkeel_actuate::{Item, Recovery, TurnGuard};
use evenkeel_agent::governor::check_instance;
use evenkeel_agent::{Agent, AutoLimit, Event, Watcher, restore_left};
use evenkeel_linux::Root;
use evenkeel_listen::Server;
use evenkeel_listen::notify::Notifier;
use evenkeel_listen::webhook::Webhook;
use evenkeel_observe::{Endpoints, Observer, ObserverOptions, Sampling};
use evenkeel_report::run::{self, DocumentKind};
use evenkeel_report::table;
use serde::Serialize;

use super::flight::{RecordArgs, Socket};
use super::serve::PagesArgs;
use super::settings::{Blaming, LoopArgs, blaming, config, holdout_share, open, otlp, scrapes, webhook};
use super::show;
use super::sink::ConsoleSink;
use super::{Failure, Format, Global, Outcome, loop_failed, stop};

/// Even out a scope's CPU sharing: try the levers of this kernel against the present state in interleaved windows,
/// keep what measurably helps and hurts no one, watch on, restore everything at the end.
///
/// A scope that is the whole host (`all`, the root cgroup, or whatever matches more than 90 % of the tasks) is only
/// planned for unless --apply is given. Exit status: 0 done (leaving everything as it is counts); 1 if a promised share was
/// broken or refused at the end, or not every value could be restored; 3 without the right or the kernel features to act.
///
/// Example: evenkeel run --scope container:web --scope container:batch --for 10m
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    scope: LoopArgs,
    /// Write nothing; show what would be tried.
    #[arg(long)]
    dry_run: bool,
    /// Really act on a scope that is the whole host.
    #[arg(long)]
    apply: bool,
    /// `auto`: watch the scope's cgroup for CPU stolen by the hypervisor, and keep the quota under which least is stolen;
    /// none where none helps.
    #[arg(long, value_name = "LIMIT", value_parser = ["auto"])]
    cpu_limit: Option<String>,
    /// With `--cpu-limit auto`: the instance type, such as t1.micro, where the firmware does not name it.
    #[arg(long, value_name = "TYPE")]
    instance: Option<String>,
    /// Keep the promised shares of the configuration (and of labels), and the limit of --cpu-limit, only; try nothing
    /// else.
    #[arg(long, conflicts_with_all = ["once", "dry_run"])]
    guarantees_only: bool,
    /// Share of the time in which a change in force is taken back, to measure its effect: 0 (never) to 0.2.
    #[arg(long, value_name = "SHARE")]
    holdout: Option<f64>,
    /// Restore what a killed run left before anything else, instead of continuing with what it had proved.
    #[arg(long)]
    fresh: bool,
    /// End after this time; without it, on SIGTERM or Ctrl-C.
    #[arg(long = "for", value_name = "DURATION", value_parser = super::duration)]
    time: Option<Duration>,
    /// Serve what is seen and decided meanwhile, as `serve` does: a dashboard, /metrics for Prometheus, /status as JSON.
    /// An address that other hosts can reach needs a token and a certificate. Of the options below all but --webhook and --once need --listen.
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "dry_run")]
    listen: Option<std::net::SocketAddr>,
    #[command(flatten)]
    pages: PagesArgs,
    /// End after the first decision (its settings are restored, as always at the end).
    #[arg(long)]
    once: bool,
}

/// Begins to record. The agent's own observer is not to be had for it: this one looks at CPUs and cgroups' mounts alone.
fn record(record: &RecordArgs, server: &Server, global: &Global) -> Result<Option<Socket>, Failure> {
    if record.record.is_none() {
        return Ok(None);
    }
    let options =
        ObserverOptions { sampling: Sampling::Proc, runtimes: Endpoints::none(), ..Default::default() };
    let observer = Observer::new(&Root::host(), options).map_err(|error| Failure::Cannot(error.into()))?;
    record.start(&observer, server, &global.state_dir)
}

/// A trial's windows and a look in a quiet time are shorter.
const FRESH: Duration = Duration::from_secs(120);

pub fn run(global: &Global, args: Args) -> Outcome {
    let pages = &args.pages;
    let of_listen = [
        (pages.access.is_given(), "--token-file, --tls-cert and --tls-key go"),
        (pages.record.record.is_some(), "--record goes"),
        (pages.reports.is_given(), "--reports goes"),
        (pages.otlp.is_given(), "--otlp goes"),
        (pages.blame.is_given(), "--blame and --blame-budget go"),
        (pages.scrape.is_given(), "--scrape-services goes"),
    ];
    if let Some((_, what)) = of_listen.iter().find(|(given, _)| *given && args.listen.is_none()) {
        return Err(usage!("{what} with --listen"));
    }
    pages.record.check()?;
    // Where cgroups lose their turn, evenkeel's own may be lost before it can do anything about that.
    let _turn = (!args.dry_run).then(TurnGuard::of_this_thread).and_then(|guard| {
        guard.inspect_err(|error| tracing::debug!("evenkeel itself may lose its turn: {error}")).ok()
    });
    let mut config = config(global, &args.scope)?;
    config.guarantees.only = args.guarantees_only;
    if let Some(share) = args.holdout {
        let checked = holdout_share(share).map_err(|why| anyhow!("--holdout {share}: {why}"));
        config.monitor.holdout.share = checked.map_err(Failure::Usage)?;
    }
    if args.cpu_limit.is_some() {
        config.limit.get_or_insert_default();
    }
    match (&mut config.limit, args.instance) {
        (Some(limit), Some(instance)) => limit.instance = Some(instance),
        (None, Some(_)) => return Err(usage!("--instance goes with --cpu-limit auto")),
        (_, None) => {}
    }
    if let Some(AutoLimit { instance: Some(instance) }) = &config.limit {
        check_instance(instance).map_err(|error| usage!(error))?;
    }
    if args.dry_run {
        return super::plan::propose(global, config);
    }
    if !args.apply
        && let Some(why) = super::settings::whole_host(&config.scope)?
    {
        match restore_left(&config) {
            Ok(left) => left.iter().for_each(|left| say!("evenkeel: {}", recovered(left))),
            Err(error) => say!("evenkeel: what a run before left is not restored: {error}"),
        }
        say!("evenkeel: {why}, so nothing is written; --apply acts on it");
        return super::plan::propose(global, config);
    }
    config.once = args.once;
    // One decision is asked for, not what an earlier one came to.
    config.takeover &= !(args.fresh || args.once);
    let mut sink = ConsoleSink::new()?;
    let entrance = args.listen.map(|address| open(global, address, &pages.access)).transpose()?;
    // Pushed is what is served: without that no one asks for the files of its token and its authorities.
    let target = args.listen.map(|_| otlp(global, &pages.otlp)).transpose()?.flatten();
    let blaming = blaming(global, &pages.blame)?;
    let scrapes = scrapes(global, &pages.scrape)?;
    let webhook = webhook(global, &pages.webhook)?.map(Webhook::start).transpose()?.map(Arc::new);
    let server = entrance
        .map(|entrance| Server::start(entrance, pages.served(global, FRESH), webhook.clone()))
        .transpose()?;
    server.iter().try_for_each(|server| server.push(target.clone()))?;
    let notifier = Notifier::from_env();
    // Read once for all who load programs.
    let types = (server.is_some() && blaming != Blaming::Off).then(evenkeel_bpf::load::kernel_types);
    let mut agent = Agent::new(config, &mut sink).map_err(loop_failed)?;
    server.iter().try_for_each(|server| super::blame::start(server.tally(), blaming))?;
    server.iter().try_for_each(|server| super::scrape::start(server.tally(), scrapes))?;
    let _recorder = server.as_ref().map(|server| record(&pages.record, server, global)).transpose()?;
    drop(types);
    server.iter().for_each(Server::ready);
    notifier.ready("observing");
    let ran = match (&server, &webhook) {
        (Some(server), _) => agent.run(args.time, &mut notifier.beside(&mut server.beside(&mut sink))),
        (None, Some(webhook)) => agent.run(args.time, &mut notifier.beside(&mut webhook.beside(&mut sink))),
        (None, None) => agent.run(args.time, &mut notifier.beside(&mut sink)),
    };
    notifier.stopping("restoring");
    let outcome = match &ran {
        Ok(()) if sink.stopping() => "stopped".to_owned(),
        Ok(()) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    if stop::panicked() {
        // What is in memory may be half-way: dropped, the agent restores by its journal. What went wrong is told at the end.
        drop(agent);
        return Err(cannot!("ended by an internal error"));
    }
    // What is shown is what was in force before it goes back.
    let record = agent.record().clone();
    let back = agent.close(&outcome);
    server.iter().for_each(Server::finish);
    webhook.iter().for_each(|webhook| webhook.finish());
    if let Err(error) = ran {
        // What is left matters more than why the loop ended: both are said.
        return Err(match loop_failed(error) {
            Failure::Cannot(error) if !back.is_clean() => Failure::Cannot(error.context(left(&back))),
            other => other,
        });
    }
    match global.output {
        Format::Json => {
            let of_run = run::Document::of(&record, DocumentKind::Run);
            let document = serde_json::json!(Document { of_run, restored: Restored::of(&back) });
            outln!("{document:#}")?;
        }
        Format::Csv => {
            out!("{}", run::stage_table().csv(&record.stages))?;
        }
        Format::Text | Format::Svg => {
            let width = table::width(std::io::stdout().is_terminal());
            out!("{}", run::text(&record, false, width))?;
            outln!("{}", show::back_sentence(&back))?;
        }
    }
    if back.is_clean() {
        // Settings are gone, but the answer to "was everything promised kept?" stays.
        return Ok(u8::from(record.guarantees.iter().any(|g| g.state.is_no())));
    }
    if back.is_finished() {
        say!("evenkeel: {}", left(&back));
        return Ok(1);
    }
    Err(refused!(left(&back)))
}

/// `evenkeel.run/v1`.
#[derive(Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    of_run: run::Document<'a>,
    restored: Restored<'a>,
}

/// What became of the changes at the end: how many.
#[derive(Serialize)]
struct Restored<'a> {
    put_back: usize,
    already: usize,
    gone: usize,
    conflicts: usize,
    failed: usize,
    /// Could not be looked at.
    unseen: usize,
    notes: &'a [String],
}

impl<'a> Restored<'a> {
    fn of(back: &'a evenkeel_actuate::RestoreReport) -> Self {
        Self {
            put_back: back.put_back.len(),
            already: back.already.len(),
            gone: back.gone.len(),
            conflicts: back.conflicts.len(),
            failed: back.failed.len(),
            unseen: back.unseen.len(),
            notes: &back.notes,
        }
    }
}

/// What is not as it was found. Of what somebody else changed no journal is left, so `restore` has nothing to try.
pub(super) fn left(back: &evenkeel_actuate::RestoreReport) -> String {
    let (what, items, unseen) = match back.is_finished() {
        true => ("changed by somebody else and left as it is", &back.conflicts, 0),
        false => {
            let what = "not everything could be restored; `evenkeel restore` tries again";
            (what, &back.failed, back.unseen.len())
        }
    };
    let mut named: Vec<String> = items.iter().take(5).map(Item::in_words).collect();
    let more = items.len() - named.len();
    named.extend((more > 0).then(|| format!("{more} more")));
    named.extend((unseen > 0).then(|| format!("{unseen} could not be looked at")));
    format!("{what}: {}", named.join(", "))
}

fn recovered(recovery: &Recovery) -> String {
    let pid = recovery.pid.map_or_else(String::new, |pid| format!(" (pid {pid})"));
    format!("a predecessor{pid} had not restored everything. {}", show::back_sentence(&recovery.report))
}

impl Watcher for ConsoleSink {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Note(text) => self.lasting(&format!("evenkeel: {text}")),
            Event::Recovered(recovery) => self.lasting(&format!("evenkeel: {}", recovered(recovery))),
            Event::Observed { observation, settings, at_s, .. } => self.passing(&format!(
                "{at_s:5.0} s  {settings}: host {:.0} % busy of {} %",
                observation.host.busy_pct,
                observation.host.cpus * 100
            )),
            Event::TrialBegins { candidates, usual_s, most_s } => {
                let names: Vec<&str> = candidates.iter().map(|plan| plan.name.as_str()).collect();
                let time = if usual_s < most_s {
                    format!("about {usual_s:.0} s where one helps, up to {most_s:.0} s")
                } else {
                    format!("{most_s:.0} s, which are few: about {usual_s:.0} s are needed where one helps")
                };
                self.lasting(&format!("trial of {}: {time}", names.join(" | ")));
            }
            Event::Window { part, settings, summary, .. } => {
                let waits =
                    summary.wait_per_ran().map_or_else(|| "?".to_owned(), |wait| format!("{wait:.2}"));
                self.passing(&format!(
                    "{part}  {settings}: {:.1} % CPU, {waits} s waited per second of work",
                    summary.got_pct
                ));
            }
            Event::Decided { decision, candidates } => {
                for (plan, verdict) in candidates.iter().zip(&decision.verdicts) {
                    let mark = if verdict.kept { '*' } else { ' ' };
                    self.lasting(&format!("{mark} {:<24} {}", plan.name, verdict.why));
                }
            }
            // Some write it every minute.
            Event::Interference { target, what } => {
                self.once(format!("evenkeel: somebody else set {what} of {target}"));
            }
            Event::Stage(_) | Event::StatusChanged(_) => {}
        }
    }

    fn stopping(&self) -> bool {
        stop::requested()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whom_it_could_not_look_at_is_part_of_what_is_left() {
        let unseen = vec!["affinity of 7: denied".to_owned()];
        let back = evenkeel_actuate::RestoreReport { unseen, ..Default::default() };
        assert_eq!(serde_json::json!(Restored::of(&back))["unseen"], 1);
        assert!(left(&back).starts_with("not everything could be restored"), "{}", left(&back));
        assert!(left(&back).ends_with(": 1 could not be looked at"), "{}", left(&back));
    }
}
