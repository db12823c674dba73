//! `evenkeel why`: where a target's CPU time went, and who took it.

mod document;
mod fallback;
mod host;
mod names;
mod past;
mod target;
mod vm;

use std::io::IsTerminal;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use evenkeel_agent::Scope;
use evenkeel_base::{Observation, Sample};
use evenkeel_bpf::BpfError;
use evenkeel_bpf::why::{Probe, Seen, Watch, WatchOptions};
use evenkeel_linux::Root;
use evenkeel_observe::beside::{IoStalled, read_io_stalled};
use evenkeel_observe::{Detail, Observer, ObserverOptions, RUNTIMES_WAIT};
use evenkeel_report::{svg, table, why};

use super::show::pretty;
use super::{Failure, Format, Global, Outcome};
use target::Aim;

pub(super) use document::waits;
pub(super) use names::Names;

/// Show where the CPU time of a target went, and who ran on the CPU while it was runnable there.
///
/// TARGET is a scope: pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME or vm:NAME. Its threads' time is split
/// into run, waited in the run queue, throttled by a quota (whose), stolen by the hypervisor, and slept. It also shows a
/// histogram of the waits, and who had the CPU meanwhile. Needs BPF; without it the split comes from /proc, without
/// histogram and culprits.
///
/// Example: evenkeel why container:web --for 10s
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Whose time: pid:N, comm:REGEX, cgroup:/PATH, container:NAME, pod:NS/NAME or vm:NAME.
    #[arg(value_name = "TARGET", required_unless_present = "all")]
    target: Option<String>,
    /// All containers (and what belongs to none): who took whose time.
    #[arg(long, conflicts_with = "target")]
    all: bool,
    /// How long to watch.
    #[arg(long = "for", value_name = "DURATION", default_value = "10s", value_parser = super::duration)]
    duration: Duration,
    /// Write a page with pictures to this file, too.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Where the figures come from; `proc` gives the split only.
    #[arg(long, value_enum, default_value_t = Source::Auto)]
    source: Source,
    #[command(flatten)]
    past: past::Past,
}

/// Where figures come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Source {
    /// BPF, or /proc where BPF is not available.
    Auto,
    /// BPF; without it status 3.
    Bpf,
    /// The counters in /proc and of the cgroups.
    Proc,
}

/// Shortest look that shows anything.
const MIN_TIME: Duration = Duration::from_millis(100);
/// How often it is looked whether the target is still there.
const LOOK: Duration = Duration::from_millis(100);
/// How often new processes of a target told by name are looked for.
const REFRESH: Duration = Duration::from_millis(500);

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("a captured tree does not run; leave out --root")?;
    if args.duration < MIN_TIME {
        return Err(usage!("--for {:?}: at least 100ms", args.duration));
    }
    let text = args.target.as_deref().unwrap_or("all");
    if text.starts_with('!') {
        return Err(usage!("{text:?} leaves out; name what to look at"));
    }
    if args.past.is_meant() {
        let document = past::document(global, &args.past, text, args.duration)?;
        return print(global.output, &args, &document);
    }
    let begins = || {
        if std::io::stderr().is_terminal() && std::io::stdout().is_terminal() {
            say!("watching {text} for {} ...", humantime::format_duration(args.duration));
        }
        evenkeel_workload::load::stop_flag_on_signals()
    };
    let looked = look(text, args.source, args.duration, begins)?;
    looked.note.iter().for_each(|note| say!("evenkeel: {note}"));
    let (out, page) = if looked.all {
        let Some(seen) = &looked.seen else {
            return Err(cannot!("who took whose time is known from BPF only; leave out --source proc"));
        };
        let document = host::document(&looked.window(), seen);
        let out = match global.output {
            Format::Text => why::host_text(&document, table::width(std::io::stdout().is_terminal())),
            Format::Json => pretty(&document)?,
            Format::Csv => host::csv(&document),
            Format::Svg => svg::standalone(&why::host_picture(&document)),
        };
        (out, why::host_page(&document))
    } else {
        return print(global.output, &args, &looked.document(text));
    };
    finish(&args, &out, &page)
}

fn print(form: Format, args: &Args, document: &why::Target) -> Outcome {
    let out = match form {
        Format::Text => why::target_text(document, table::width(std::io::stdout().is_terminal())),
        Format::Json => pretty(document)?,
        Format::Csv => why::blame_table().csv(document.blame.iter().flatten()),
        Format::Svg => svg::standalone(&why::target_picture(document)),
    };
    finish(args, &out, &why::target_page(document))
}

fn finish(args: &Args, out: &str, page: &str) -> Outcome {
    if let Some(file) = &args.report {
        std::fs::write(file, page).with_context(|| format!("cannot write {}", file.display()))?;
    }
    out!("{out}")?;
    Ok(0)
}

/// What was seen over a time.
struct Looked {
    root: Root,
    observer: Observer,
    before: Sample,
    after: Sample,
    observation: Observation,
    aim: Aim,
    /// Whether everybody was looked at.
    all: bool,
    /// From BPF; `None` where /proc has to do.
    seen: Option<Seen>,
    /// The target was gone before the end.
    gone: bool,
    /// Why it is not from BPF.
    note: Option<String>,
    io_stalled: Option<IoStalled>,
}

impl Looked {
    fn window(&self) -> document::Window<'_> {
        document::Window {
            root: &self.root,
            observer: &self.observer,
            before: &self.before,
            after: &self.after,
            observation: &self.observation,
            io_stalled: self.io_stalled,
        }
    }

    fn document(&self, text: &str) -> why::Target {
        document::document(&self.window(), &self.aim, text, self.seen.as_ref(), self.gone)
    }
}

/// A target's time as text of this width; `top` asks for it.
pub(super) fn text(
    target: &str,
    duration: Duration,
    width: u16,
    stop: &AtomicBool,
) -> Result<String, Failure> {
    let looked = look(target, Source::Auto, duration, || stop)?;
    let text = why::target_text(&looked.document(target), Some(width));
    Ok(looked.note.map_or_else(|| text.clone(), |note| format!("{note}\n\n{text}")))
}

/// Where a target's time goes over a time from now on; a page of the dashboard asks for it.
pub(super) fn ask(target: &str, duration: Duration) -> anyhow::Result<serde_json::Value> {
    static NEVER: AtomicBool = AtomicBool::new(false);
    let looked = look(target, Source::Auto, duration, || &NEVER).map_err(Failure::into_error)?;
    let mut document = looked.document(target);
    document.notes.extend(looked.note);
    Ok(serde_json::to_value(document)?)
}

/// Looks for a time; `begins` is called when all is prepared, and gives the flag that ends it early.
fn look<'a>(
    text: &str,
    source: Source,
    duration: Duration,
    begins: impl FnOnce() -> &'a AtomicBool,
) -> Result<Looked, Failure> {
    let scope = Scope::parse(&[text]).map_err(|error| Failure::Usage(error.into()))?;
    let all = scope.is_all();
    let root = Root::host();
    // Held while the observer and the programs here are loaded: the kernel's types are read once.
    let types = (source != Source::Proc).then(evenkeel_bpf::load::kernel_types);
    let mut observer = Observer::new(&root, ObserverOptions::default()).map_err(anyhow::Error::from)?;
    let named = all || text.starts_with("container:") || text.starts_with("pod:");
    if named {
        observer.wait_for_runtimes(RUNTIMES_WAIT);
    }
    // Only now: what started while the runtimes were asked is in it, too.
    let start_up = observer.sample().map_err(anyhow::Error::from)?;
    let patience = if named { RUNTIMES_WAIT } else { Duration::ZERO };
    let observation =
        observer.observe_named(&start_up, &start_up, &Detail::None, patience).map_err(anyhow::Error::from)?;
    let mut aim = if all { Aim::all() } else { Aim::find(&root, &observer, &observation, &scope, text)? };

    let stop = begins();
    let (probe, note) = start(source, &aim)?;
    drop(types);
    // Of several cgroups none speaks for the target.
    let group = aim.groups.first().filter(|_| aim.groups.len() == 1).cloned();
    let io_before = read_io_stalled(&root, observer.hierarchies(), group.as_deref());
    let before = observer.sample().map_err(anyhow::Error::from)?;
    let (seen, gone) = watch(probe, duration, &mut aim, &scope, &mut observer, stop)?;
    let after = observer.sample().map_err(anyhow::Error::from)?;
    let io_after = read_io_stalled(&root, observer.hierarchies(), group.as_deref());
    let io_stalled = io_before.zip(io_after).filter(|(before, after)| before.own == after.own);
    let io_stalled = io_stalled.and_then(|(before, after)| {
        let total_usec = after.total_usec.checked_sub(before.total_usec)?;
        Some(IoStalled { total_usec, ..after })
    });
    let observation =
        observer.observe_named(&before, &after, &Detail::None, RUNTIMES_WAIT).map_err(anyhow::Error::from)?;
    Ok(Looked { root, observer, before, after, observation, aim, all, seen, gone, note, io_stalled })
}

/// The programs at work, or why they cannot be where /proc will do.
fn start(source: Source, aim: &Aim) -> Result<(Option<Probe>, Option<String>), Failure> {
    if source == Source::Proc {
        return Ok((None, None));
    }
    let started = evenkeel_bpf::load::kernel_types()
        .and_then(|types| Probe::start(&types, &aim.watch, &WatchOptions::default()));
    match started {
        Ok(probe) => Ok((Some(probe), None)),
        Err(error) if source == Source::Auto && aim.watch != Watch::All => {
            Ok((None, Some(format!("from /proc, without lengths of waits and culprits: {error}"))))
        }
        Err(error) => Err(Failure::Cannot(
            anyhow::Error::from(error).context("BPF programs are needed, and cannot be loaded"),
        )),
    }
}

/// Waits for the end of the time, of the target, or of the user's patience. Returns what was seen, and whether the target
/// was gone. The aim has every process that belonged to it then.
fn watch(
    mut probe: Option<Probe>,
    duration: Duration,
    aim: &mut Aim,
    scope: &Scope,
    observer: &mut Observer,
    stop: &AtomicBool,
) -> Result<(Option<Seen>, bool), Failure> {
    let until = Instant::now() + duration;
    let mut known = aim.processes();
    let mut refreshed = Instant::now();
    let mut gone = false;
    while !stop.load(Ordering::Relaxed) {
        let Some(left) = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero()) else {
            break;
        };
        std::thread::sleep(left.min(LOOK));
        if aim.is_gone(&known) {
            gone = true;
            break;
        }
        if aim.grows && refreshed.elapsed() > REFRESH {
            refreshed = Instant::now();
            let sample = observer.sample().map_err(anyhow::Error::from)?;
            let now = observer.observe(&sample, &sample, &Detail::None).map_err(anyhow::Error::from)?;
            for (tgid, start) in target::processes(&now, scope) {
                if known.insert((tgid, start))
                    && let Some(probe) = &mut probe
                {
                    probe.add_process(tgid, start).map_err(lost)?;
                }
            }
        }
    }
    if let Watch::Processes(processes) = &mut aim.watch {
        *processes = known.into_iter().collect();
    }
    let seen = probe.map(Probe::finish).transpose().map_err(lost)?;
    Ok((seen, gone))
}

fn lost(error: BpfError) -> Failure {
    Failure::Cannot(anyhow::Error::from(error).context("the BPF programs"))
}
