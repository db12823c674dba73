//! `evenkeel exec`: runs one command under a CPU limit, weight or cpuset, and accounts for its time.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use evenkeel_agent::governor::{Auto, Governed, Purpose};
use evenkeel_base::text::count;
use evenkeel_base::{CpuClaim, CpuQuota, CpuSet, CpuShares, CpuWeight};
use evenkeel_console as console;
use evenkeel_exec::{Account, Bounds, CpuLimit, Leftover, Spec};
use evenkeel_linux::sys::usable_cpus;

use super::{Format, Global, Outcome};

/// Run one command under a CPU limit, weight or set of CPUs, and account for its time.
///
/// The command keeps its standard input and output, directory and environment; signals sent to evenkeel are passed
/// on. The account goes to stderr (with -o json or csv as one document, its last line) or to --account FILE. Percent
/// is of ONE CPU. Without a bound the command runs where it would anyway, and is only accounted for.
///
/// Exit status: the command's; 128 + n when signal n killed it; 127 not found, 126 not executable, 125 anything else
/// that kept it from running as asked.
///
/// Example: evenkeel exec --cpu-limit 25% -- make -j4
#[derive(Debug, clap::Args)]
#[allow(clippy::doc_markdown)]
pub struct Args {
    /// At most so much CPU: 25% of one CPU, 150%, or in CPUs: 0.25, 1.5. `auto` finds the limit under which least is
    /// stolen by the hypervisor, and sets none where none helps.
    #[arg(long, value_name = "LIMIT")]
    cpu_limit: Option<LimitArg>,
    /// With `--cpu-limit auto`: the instance type, such as t1.micro, where the firmware does not name it.
    #[arg(long, value_name = "TYPE", requires = "cpu_limit")]
    instance: Option<String>,
    /// Period of the limit, 1 ms to 1 s.
    #[arg(long, value_name = "TIME", value_parser = super::duration, default_value = "100ms", requires = "cpu_limit")]
    period: Duration,
    /// Unused time of earlier periods that may be saved up, at most a period's share.
    #[arg(long, value_name = "TIME", value_parser = super::duration, default_value = "0ms", requires = "cpu_limit")]
    burst: Duration,
    /// Weight against others, 1 to 10000 (the default is 100).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    weight: Option<u64>,
    /// The same as v1 shares, 2 to 262144 (the default is 1024).
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(2..=262_144), conflicts_with = "weight")]
    shares: Option<u64>,
    /// CPUs it may use, such as 0-1,4.
    #[arg(long, value_name = "LIST")]
    cpus: Option<CpuSet>,
    /// Nice value, -20 to 19.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i32).range(-20..=19), allow_negative_numbers = true)]
    nice: Option<i32>,
    /// Slice of its own, 0.1 ms to 100 ms (Linux 6.12 and later): longer means fewer interruptions.
    #[arg(long, value_name = "TIME", value_parser = slice)]
    slice: Option<Duration>,
    /// What happens to processes that outlive the command.
    #[arg(long, value_enum, default_value_t = Leftover::Leave)]
    outliving: Leftover,
    /// Write the account as JSON to this file, nothing to stderr.
    #[arg(long, value_name = "FILE")]
    account: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// A limit, or the wish that one be found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum LimitArg {
    Auto,
    At(CpuLimit),
}

impl std::str::FromStr for LimitArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.trim() {
            "auto" => Ok(Self::Auto),
            text => text.parse().map(Self::At).map_err(|error: String| format!("{error}, or auto")),
        }
    }
}

pub(super) fn slice(text: &str) -> Result<Duration, String> {
    let time = super::duration(text)?;
    if (Duration::from_micros(100)..=Duration::from_millis(100)).contains(&time) {
        Ok(time)
    } else {
        Err("a slice is between 100us and 100ms".into())
    }
}

/// Status of whatever kept the command from running as asked.
pub const NOT_RUN: u8 = 125;

impl Args {
    /// Whether the command is given a bound; without one it is only accounted for.
    pub fn changes(&self) -> bool {
        self.cpu_limit.is_some()
            || self.weight.is_some()
            || self.shares.is_some()
            || self.cpus.is_some()
            || self.nice.is_some()
            || self.slice.is_some()
    }
}

pub fn run(global: &Global, args: Args) -> Outcome {
    match go(global, &args) {
        Ok(status) => Ok(status),
        Err((status, error)) => {
            say!("evenkeel: {}", super::in_words(&error));
            Ok(status)
        }
    }
}

/// The command as the governor sees it.
struct Guest<'a>(&'a evenkeel_exec::Running<'a>);

impl Governed for Guest<'_> {
    fn cpu_ns(&self) -> Option<u64> {
        self.0.cpu_ns()
    }

    fn processes(&self) -> Vec<u32> {
        self.0.processes()
    }

    fn set_quota(&mut self, quota: &CpuQuota) -> Result<(), String> {
        self.0.set_quota(quota).map_err(|error| error.to_string())
    }
}

fn go(global: &Global, args: &Args) -> Result<u8, (u8, anyhow::Error)> {
    let spec = spec(global, args).map_err(|error| (125, anyhow!(error)))?;
    let mut auto = match args.cpu_limit {
        Some(LimitArg::Auto) => {
            let cpus = args.cpus.clone().unwrap_or_else(usable_cpus).len().max(1) as f64;
            let auto = Auto::new(
                (cpus, args.cpus.clone()),
                args.period,
                args.instance.as_deref(),
                Purpose::default(),
            );
            Some(auto.map_err(|error| (125, anyhow!(error)))?)
        }
        _ => None,
    };
    let mut ticked = Instant::now();
    let mut tick = |running: &evenkeel_exec::Running<'_>| {
        if let Some(auto) = &mut auto {
            // Nothing else is done in between: what lasts longer than the ticks are apart was slept.
            auto.tick(&mut Guest(running), ticked.elapsed().saturating_sub(evenkeel_exec::TICK));
        }
        ticked = Instant::now();
    };
    let mut account = evenkeel_exec::run(&spec, &mut tick).map_err(|error| (error.status(), error.into()))?;
    account.notes.extend(auto.iter().flat_map(Auto::notes));
    account.notes.extend(void(args.cpu_limit, super::settings::host_cpus()));
    // The command has run: what it said counts, even if its account cannot be written.
    match &args.account {
        Some(path) => {
            let written = serde_json::to_string_pretty(&account)
                .map_err(std::io::Error::other)
                .and_then(|text| std::fs::write(path, text + "\n"));
            if let Err(error) = written {
                say!("evenkeel: {}: {error}", path.display());
            }
        }
        None => console::message(&shown(&account, global.output)),
    }
    Ok(account.exit_status)
}

/// Why a limit held nothing back: 25 are CPUs, and not percent.
fn void(limit: Option<LimitArg>, cpus: u32) -> Option<String> {
    let Some(LimitArg::At(limit)) = limit.filter(|_| cpus > 0) else { return None };
    (limit.pct() > 100.0 * f64::from(cpus)).then(|| {
        let all = count(cpus as usize, "CPU");
        format!("{limit} is more than this host's {all}, so it limits nothing; 25% is a quarter of one, 25 are CPUs")
    })
}

fn spec(global: &Global, args: &Args) -> Result<Spec, String> {
    let quota = match args.cpu_limit {
        // Begins without a limit; the quota is there to be changed.
        Some(LimitArg::Auto) => Some(evenkeel_exec::quota(None, args.period, args.burst)?),
        Some(LimitArg::At(limit)) => Some(evenkeel_exec::quota(Some(limit), args.period, args.burst)?),
        None => None,
    };
    let auto = args.cpu_limit == Some(LimitArg::Auto);
    if args.instance.is_some() && !auto {
        return Err("--instance goes with --cpu-limit auto".into());
    }
    if auto && !args.burst.is_zero() {
        return Err("--burst goes with a limit that is given, not with --cpu-limit auto".into());
    }
    let claim = match (args.weight, args.shares) {
        (Some(weight), _) => Some(CpuClaim::Weight(CpuWeight::new(weight))),
        (None, Some(shares)) => Some(CpuClaim::Shares(CpuShares::new(shares))),
        (None, None) => None,
    };
    if args.cpus.as_ref().is_some_and(CpuSet::is_empty) {
        return Err("--cpus names no CPU".into());
    }
    Ok(Spec {
        command: args.command.clone(),
        bounds: Bounds {
            quota,
            claim,
            cpus: args.cpus.clone(),
            nice: args.nice,
            slice_ns: args.slice.map(|slice| slice.as_nanos() as u64),
        },
        leftover: args.outliving,
        records: global.state_dir.join("exec"),
    })
}

fn shown(account: &Account, format: Format) -> String {
    match format {
        // One line, so that it can be told from what the command wrote to the same place.
        Format::Json => serde_json::to_string(account).unwrap_or_default() + "\n",
        Format::Csv => csv(account),
        Format::Text | Format::Svg => account.text(),
    }
}

fn csv(account: &Account) -> String {
    let number = |value: Option<f64>| value.map_or_else(String::new, |v| format!("{v:.6}"));
    format!(
        "real_s,user_s,sys_s,waited_s,throttled_s,stolen_s,exit_status\n{:.6},{:.6},{:.6},{},{},{},{}\n",
        account.real_s,
        account.user_s,
        account.sys_s,
        number(account.waited_s),
        number(account.throttled_s),
        number(account.stolen_s),
        account.exit_status
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_meant_in_percent_is_told() {
        let told = |text: &str| void(Some(text.parse().unwrap()), 2);
        assert!(told("25").is_some_and(|note| note.starts_with("2500 % is more than this host's 2 CPUs")));
        assert_eq!((told("25%"), told("200%"), told("auto"), void(None, 2)), (None, None, None, None));
    }
}
