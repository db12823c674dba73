//! The simulator against this kernel: runs random mixes, appends what every task got to a record, simulates the same mixes, and
//! prints measured next to simulated. `make validate` does all of it.
//!
//! ```text
//! validate measure --record FILE [--set validation] [--seconds 55]   measures what FILE lacks, for so long; resumes
//! validate compare --record FILE [--set validation] [-v]             simulates what FILE holds
//! validate show "mix 1003"                                           prints a mix as an experiment file
//! ```
//!
//! Measuring needs root (cgroups, policies) and a quiet machine; runs in which others used the CPUs are thrown away. It ends
//! with status 75 while runs are left to do.

use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Parser;
use evenkeel_actuate::{Kernel as _, Linux};
use evenkeel_base::{GroupRef, SchedAttr, Setting, Target};
use evenkeel_experiment::file::{Experiment, GroupSpec, TaskSpec};
use evenkeel_experiment::validation::{self, Comparison, RUNS, Record};
use evenkeel_lab::launch::PREFIX;
use evenkeel_lab::launch::group::LabGroup;
use evenkeel_lab::mounts::CgroupMounts;
use evenkeel_lab::runner::parse_load;
use evenkeel_lab::tenant::{Layout, Member, Starter};
use evenkeel_workload::Kind as LoadKind;
use evenkeel_workload::load::{Common, Known, LoadSampler, LoadSpec, run, stop_flag_on_signals};

/// CPU others may use before a run is thrown away, percent of one CPU.
const OTHERS_PCT: f64 = 4.0;
/// Exit status while runs are left.
const LEFT: i32 = 75;

#[derive(Parser)]
enum Cli {
    /// Measures mixes and appends them to the record.
    Measure {
        #[command(flatten)]
        which: Which,
        /// Stop after so many seconds (the run at hand is finished).
        #[arg(long, default_value_t = f64::INFINITY)]
        seconds: f64,
        /// Throw runs away in which others used more than this, percent of one CPU.
        #[arg(long, default_value_t = OTHERS_PCT)]
        others: f64,
    },
    /// Simulates the mixes of a record and prints measured next to simulated.
    Compare {
        #[command(flatten)]
        which: Which,
        /// CPUs of the machine that was measured; unless given, this one's.
        #[arg(long)]
        cpus: Option<u32>,
        /// Its kernel, such as 6.18; unless given, this one.
        #[arg(long)]
        kernel: Option<String>,
        /// Seeds simulated.
        #[arg(long, default_value_t = 9)]
        seeds: u32,
        /// Every task, too.
        #[arg(short)]
        verbose: bool,
    },
    /// Prints a mix as an experiment file, for `evenkeel sim`.
    Show {
        /// Its name.
        mix: String,
        /// Which mixes.
        #[arg(long, default_value = "validation")]
        set: String,
    },
    /// What the mixes' loads are started with.
    #[command(hide = true)]
    Load {
        #[command(subcommand)]
        kind: LoadKind,
        #[command(flatten)]
        common: Common,
    },
}

#[derive(clap::Args)]
struct Which {
    /// File of measured runs, JSON lines.
    #[arg(long)]
    record: PathBuf,
    /// Which mixes: validation, training or short.
    #[arg(long, default_value = "validation")]
    set: String,
    /// Runs of each mix: so many are measured, mixes with fewer are not compared.
    #[arg(long, default_value_t = RUNS)]
    runs: u32,
}

impl Which {
    fn mixes(&self, cpus: u32, kernel: &str) -> anyhow::Result<Vec<Experiment>> {
        validation::set(&self.set, cpus, kernel).context("--set is validation, training or short")
    }
}

fn main() -> anyhow::Result<()> {
    match Cli::parse() {
        Cli::Measure { which, seconds, others } => measure(&which, seconds, others),
        Cli::Compare { which, cpus, kernel, seeds, verbose } => {
            let (cpus, kernel) = (cpus.map_or_else(self::cpus, Ok)?, kernel.map_or_else(release, Ok)?);
            let mixes = which.mixes(cpus, &kernel)?;
            let records = read(&which.record)?;
            if records.is_empty() {
                bail!("{} holds no runs: measure first", which.record.display());
            }
            print(&validation::compare(&mixes, &records, which.runs as usize, seeds)?, verbose);
            Ok(())
        }
        Cli::Show { mix, set } => {
            let mixes = validation::set(&set, cpus()?, &release()?).context("no such set of mixes")?;
            let mix = mixes.iter().find(|m| m.name == mix).context("no mix of this name")?;
            println!("{}", toml::to_string(mix)?);
            Ok(())
        }
        Cli::Load { kind, common } => {
            let report = run(&LoadSpec { kind, common }, stop_flag_on_signals())?;
            println!("{}", serde_json::to_string(&report)?);
            Ok(())
        }
    }
}

fn cpus() -> anyhow::Result<u32> {
    Ok(u32::try_from(evenkeel_linux::sys::usable_cpus().len())?)
}

/// `major.minor` of this kernel.
fn release() -> anyhow::Result<String> {
    let text = fs::read_to_string("/proc/sys/kernel/osrelease")?;
    Ok(text.split(['.', '-']).take(2).collect::<Vec<_>>().join("."))
}

/// The runs of a record. A line that was being written when the measuring was killed is not one.
fn read(path: &Path) -> anyhow::Result<Vec<Record>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().enumerate();
    lines
        .map(|(n, line)| serde_json::from_str(line).with_context(|| format!("{}:{}", path.display(), n + 1)))
        .collect()
}

/// Opens a record to append to it, without the torn line at its end, if there is one.
fn open(path: &Path) -> anyhow::Result<fs::File> {
    let why = || format!("cannot write {}", path.display());
    let file = OpenOptions::new().create(true).append(true).open(path).with_context(why)?;
    let text = fs::read(path).with_context(why)?;
    let whole = text.iter().rposition(|&b| b == b'\n').map_or(0, |end| end + 1);
    if whole < text.len() {
        file.set_len(whole as u64).with_context(why)?;
    }
    Ok(file)
}

fn measure(which: &Which, seconds: f64, others: f64) -> anyhow::Result<()> {
    let began = Instant::now();
    let mixes = which.mixes(cpus()?, &release()?)?;
    let done = read(&which.record)?;
    let mut file = open(&which.record)?;
    let mut left = 0;
    let mut measured = 0;
    // Round by round, so that every mix is measured at several times; all rounds of the first mixes before the others, so
    // that a record that is never finished holds whole mixes.
    for part in mixes.chunks(44) {
        for (repetition, mix) in (0..which.runs).flat_map(|r| part.iter().map(move |m| (r, m))) {
            if done.iter().any(|r| r.mix == mix.name && r.repetition == repetition) {
                continue;
            }
            let took = mix.warmup_s + mix.duration_s + 0.7;
            if began.elapsed().as_secs_f64() + took > seconds {
                left += 1;
                continue;
            }
            let record = run_once(mix, repetition)?;
            if record.others_pct > others {
                eprintln!(
                    "{} run {repetition}: others used {:.1} %: again later",
                    mix.name, record.others_pct
                );
                left += 1;
                continue;
            }
            file.write_all(format!("{}\n", serde_json::to_string(&record)?).as_bytes())?;
            measured += 1;
        }
    }
    eprintln!("{measured} runs measured, {left} left");
    if left > 0 {
        std::process::exit(LEFT);
    }
    Ok(())
}

/// Groups of a mix; removed on drop, children first, after the loads in them.
struct Groups(Vec<LabGroup>);

impl Drop for Groups {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

impl Groups {
    fn make(mix: &Experiment, kernel: &mut Linux) -> anyhow::Result<Self> {
        let mounts = CgroupMounts::find()?;
        let mut groups = Self(Vec::new());
        let mut names: Vec<String> = Vec::new();
        for (index, spec) in mix.groups.iter().enumerate() {
            let parent = spec.parent.as_ref().and_then(|p| mix.groups.iter().position(|g| &g.name == p));
            let name = match parent {
                Some(parent) => {
                    if mounts.is_v2() {
                        let control = groups.0[parent].cpu().dir().join("cgroup.subtree_control");
                        fs::write(control, "+cpu")?;
                    }
                    format!("{}/{}", names[parent], spec.name)
                }
                None => format!("{PREFIX}{}-9{index}", std::process::id()),
            };
            let group = LabGroup::make(&mounts, &name)?;
            let target = group.group_ref();
            groups.0.push(group);
            names.push(name);
            set_group(kernel, target, spec)?;
        }
        Ok(groups)
    }
}

fn set_group(kernel: &mut Linux, group: GroupRef, spec: &GroupSpec) -> anyhow::Result<()> {
    let v2 = group.v2;
    let target = Target::Group(group);
    if let Some(shares) = spec.shares {
        // Load weights are 1024 at shares 1024 and at weight 100.
        let raw = if v2 { (shares * 100).div_ceil(1024).clamp(1, 10_000) } else { shares };
        kernel.write(&target, &Setting::Weight(raw)).map_err(|e| anyhow::anyhow!("weight: {e:?}"))?;
    }
    if spec.quota_pct.is_some() {
        kernel.write(&target, &Setting::Quota(spec.quota())).map_err(|e| anyhow::anyhow!("quota: {e:?}"))?;
    }
    Ok(())
}

fn load(task: &TaskSpec, seed: u64) -> anyhow::Result<LoadSpec> {
    let mut spec = task.load().and_then(|load| parse_load(&load)).map_err(anyhow::Error::msg)?;
    if let LoadKind::Duty(duty) = &mut spec.kind {
        duty.seed = seed;
    }
    Ok(spec.named(task.name.clone().unwrap_or_default()))
}

fn set_task(kernel: &mut Linux, member: &Member, spec: &TaskSpec) -> anyhow::Result<()> {
    let target = Target::Task(member.id());
    let attr = spec.attr();
    let failed = |e| anyhow::anyhow!("{}: {e:?}", member.name);
    if attr != SchedAttr::DEFAULT {
        kernel.write(&target, &Setting::Sched(attr)).map_err(failed)?;
    }
    if let Some(cpus) = &spec.cpus {
        kernel.write(&target, &Setting::Affinity(cpus.clone())).map_err(failed)?;
    }
    Ok(())
}

fn run_once(mix: &Experiment, repetition: u32) -> anyhow::Result<Record> {
    let mut kernel = Linux::new().map_err(|e| anyhow::anyhow!("{e:?}"))?;
    let groups = Groups::make(mix, &mut kernel)?;
    let root = CgroupMounts::find()?.cpu_mount().join("cgroup.procs");
    let seed = mix.seed.wrapping_mul(1000).wrapping_add(u64::from(repetition) * 100);
    let specs: Vec<LoadSpec> =
        (0u64..).zip(&mix.tasks).map(|(n, t)| load(t, seed + n)).collect::<Result<_, _>>()?;
    let tenants = Starter::new(std::env::current_exe()?, Layout::Process).hold(&specs)?;
    for member in &tenants.members {
        let spec = &mix.tasks[member.spec];
        let group = spec.group.as_ref().and_then(|name| mix.groups.iter().position(|g| &g.name == name));
        let home = group.map_or(root.clone(), |g| groups.0[g].cpu().dir().join("cgroup.procs"));
        fs::write(&home, member.pid.to_string()).with_context(|| home.display().to_string())?;
        set_task(&mut kernel, member, spec)?;
    }
    let known = |m: &Member| Known { pid: m.pid, tid: m.tid, wanted_pct: 1.0 };
    let gauge = LoadSampler::new(tenants.members.iter().map(known));
    tenants.release();
    std::thread::sleep(Duration::from_secs_f64(mix.warmup_s));
    let (host, from) = (Host::read()?, gauge.read());
    std::thread::sleep(Duration::from_secs_f64(mix.duration_s));
    let (now, to) = (Host::read()?, gauge.read());
    let window = gauge.window(&from, &to);
    drop(tenants);
    drop(groups);
    if window.len() != mix.tasks.len() {
        bail!("{}: {} of {} loads lived through the run", mix.name, window.len(), mix.tasks.len());
    }
    let got_pct: Vec<f64> = window.iter().map(|w| w.got_pct).collect();
    let (busy, steal) = host.until(&now);
    let others_pct = busy - got_pct.iter().sum::<f64>();
    Ok(Record { mix: mix.name.clone(), repetition, got_pct, others_pct, steal_pct: steal })
}

/// The first line of `/proc/stat` at an instant.
struct Host {
    at: Instant,
    ticks: Vec<u64>,
}

impl Host {
    fn read() -> anyhow::Result<Self> {
        let text = fs::read_to_string("/proc/stat")?;
        let words = text.lines().next().unwrap_or("").split_ascii_whitespace().skip(1);
        Ok(Self { at: Instant::now(), ticks: words.map(str::parse).collect::<Result<_, _>>()? })
    }

    /// Busy and stolen time since, percent of one CPU (USER_HZ is 100).
    fn until(&self, later: &Self) -> (f64, f64) {
        let wall = later.at.duration_since(self.at).as_secs_f64();
        let of = |n: usize| {
            let (then, now) = (self.ticks.get(n).copied(), later.ticks.get(n).copied());
            now.zip(then).map_or(0.0, |(now, then)| now.saturating_sub(then) as f64)
        };
        // What was not idle (3), waiting for a disk (4) or stolen (7): idle time is exact, the others are sampled by ticks
        // and so biased for loads that are in step with them.
        let all = 100.0 * evenkeel_linux::sys::usable_cpus().len() as f64;
        (all - [3, 4, 7].into_iter().map(of).sum::<f64>() / wall, of(7) / wall)
    }
}

fn print(comparison: &Comparison, verbose: bool) {
    if comparison.lines.is_empty() {
        println!("0 mixes have been measured often enough; --runs says how often that is");
        return;
    }
    println!(
        "{:28} {:>22} {:>9} {:>7} {:>7}  settings",
        "mix", "fulfilment measured", "simulated", "median", "worst"
    );
    for line in &comparison.lines {
        let mut errors: Vec<f64> = line.errors().collect();
        errors.sort_by(f64::total_cmp);
        let [low, middle, high] = line.measured;
        println!(
            "{:28} {low:7.3} {middle:.3} {high:7.3} {:9.3} {:7.2} {:7.2}  {}",
            line.mix,
            line.simulated,
            errors.get(errors.len() / 2).copied().unwrap_or(f64::NAN),
            errors.last().copied().unwrap_or(f64::NAN),
            line.settings
        );
        if verbose {
            for (index, (measured, simulated)) in line.tasks.iter().enumerate() {
                println!("      {index:3} {measured:7.2} {simulated:7.2} {:+7.2}", simulated - measured);
            }
        }
    }
    for pair in comparison.pairs.iter().filter(|p| !p.right) {
        println!("ranked wrongly: {} is better than {}", pair.better, pair.worse);
    }
    let errors = comparison.errors();
    let quantile = |share| comparison.error_quantile(share).unwrap_or(f64::NAN);
    println!(
        "{} mixes, {} tasks: error of a task's CPU median {:.2}, 90th percentile {:.2}, 95th {:.2}, worst {:.2} points \
         of a CPU (goal 1.5 and 4)",
        comparison.lines.len(),
        errors.len(),
        quantile(0.5),
        quantile(0.9),
        quantile(0.95),
        quantile(1.0)
    );
    let right = comparison.pairs.iter().filter(|p| p.right).count();
    println!(
        "levers: {right} of {} pairs whose measured intervals do not overlap ranked rightly{} (goal 90 %)",
        comparison.pairs.len(),
        comparison.ranked_right().map_or(String::new(), |share| format!(" ({:.0} %)", 100.0 * share))
    );
}
