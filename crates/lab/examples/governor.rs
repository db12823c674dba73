//! `exec --cpu-limit auto` under the steal emulator, next to no limit and fixed ones.
//!
//!     governor BINARY RULE [--scale 40] [--limits 15,18,20,22,25] [--rounds 1] [--within 55] [--apart 0.7] -- COMMAND..
//!
//! RULE: none, window (100 s, 20 %, 97 %, `--scale` times faster), shared (45 %), credits (`--credit-s` CPU seconds saved
//! up, 10 % earned). In each round all victims run the COMMAND side by side, `--apart` seconds after each other, in turning
//! order, so that all meet the same machine. Told is how long each took (means of the rounds), relative to the best fixed
//! limit and to no limit; one that was not done `--within` seconds after the start counts as having taken at least so
//! long.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use evenkeel_lab::mounts::CgroupMounts;
use evenkeel_lab::private::PrivateDir;
use evenkeel_lab::steal::{TICK, Victim, VictimCommand};
use evenkeel_model::credit::Rule;

/// Names of the two that are always there.
const AUTO: &str = "auto";
const NONE: &str = "no limit";

fn option<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    arguments.iter().position(|a| a == name).and_then(|i| arguments.get(i + 1)).map(String::as_str)
}

struct Job {
    binary: PathBuf,
    rule: Rule,
    /// Name and `--cpu-limit`.
    limits: Vec<(String, Option<String>)>,
    rounds: usize,
    within: Duration,
    apart: Duration,
    command: Vec<String>,
}

fn job() -> Result<Job, String> {
    let all: Vec<String> = std::env::args().skip(1).collect();
    let Some(at) = all.iter().position(|a| a == "--") else {
        return Err("usage: governor BINARY RULE [options] -- COMMAND..".into());
    };
    let (arguments, command) = (&all[..at], all[at + 1..].to_vec());
    let ([binary, name, ..], false) = (arguments, command.is_empty()) else {
        return Err("usage: governor BINARY RULE [options] -- COMMAND..".into());
    };
    let number = |name: &str, or: f64| match option(arguments, name) {
        Some(text) => text.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0),
        None => Some(or),
    };
    let number = |name: &str, or: f64| number(name, or).ok_or_else(|| format!("{name}: not a number from 0"));
    let rule = match name.as_str() {
        "none" => Rule::None,
        "window" => Rule::Window {
            window_s: 100.0 / number("--scale", 40.0)?.max(1.0),
            above: 0.20,
            below: 0.20,
            stolen: 0.97,
            counts_stolen: true,
        },
        "shared" => Rule::Constant { stolen: 0.45 },
        // A credit is a CPU minute.
        "credits" => Rule::Credits { start: number("--credit-s", 2.0)? / 60.0, per_hour: 6.0, cap: 10.0 },
        other => return Err(format!("no rule {other:?}: none, window, shared or credits")),
    };
    let mut limits = vec![(AUTO.to_owned(), Some("auto".to_owned())), (NONE.to_owned(), None)];
    for limit in option(arguments, "--limits").unwrap_or("").split(',').filter(|l| !l.is_empty()) {
        limits.push((format!("{limit} %"), Some(format!("{limit}%"))));
    }
    Ok(Job {
        binary: binary.into(),
        rule,
        limits,
        rounds: number("--rounds", 1.0)?.max(1.0) as usize,
        within: Duration::from_secs_f64(number("--within", 55.0)?),
        apart: Duration::from_secs_f64(number("--apart", 0.7)?),
        command,
    })
}

/// What came of one round.
struct Round {
    /// In the order of the limits: seconds, and whether it was done.
    times: Vec<(f64, bool)>,
    /// What the governed one noted.
    notes: Vec<String>,
}

fn round(job: &Job, number: usize, state: &Path, mounts: &CgroupMounts) -> Result<Round, String> {
    // The first of one round is the last of the next.
    let mut order: Vec<usize> = (0..job.limits.len()).collect();
    if number % 2 == 1 {
        order.reverse();
    }
    let mut victims: Vec<(usize, Victim)> = Vec::new();
    let began = Instant::now();
    loop {
        let step = Instant::now();
        if let Some(&next) = order.get(victims.len())
            && began.elapsed() >= job.apart * victims.len() as u32
        {
            let (name, limit) = &job.limits[next];
            let order = VictimCommand {
                binary: &job.binary,
                name,
                limit: limit.as_deref(),
                command: &job.command,
                dir: None,
                state,
            };
            victims.push((next, Victim::start(&order, job.rule, mounts).map_err(|e| e.to_string())?));
        }
        victims.iter_mut().for_each(|(_, victim)| victim.tick());
        let done = victims.len() == job.limits.len() && victims.iter().all(|(_, g)| g.took().is_some());
        if done || began.elapsed() > job.within {
            break;
        }
        std::thread::sleep(TICK.saturating_sub(step.elapsed()));
    }
    victims.sort_by_key(|(index, _)| *index);
    let times = victims.iter().map(|(_, g)| (g.age().as_secs_f64(), g.took().is_some())).collect();
    let mut notes = Vec::new();
    for (_, victim) in &mut victims {
        let noted = victim.finish();
        if victim.name() == AUTO {
            notes = noted;
        }
    }
    Ok(Round { times, notes })
}

fn go() -> Result<(), String> {
    let job = job()?;
    let mounts = CgroupMounts::find().map_err(|e| e.to_string())?;
    let state = PrivateDir::temporary().map_err(|e| format!("a directory for journals: {e}"))?;
    let rounds: Result<Vec<_>, String> =
        (0..job.rounds).map(|number| round(&job, number, state.path(), &mounts)).collect();
    let rounds = rounds?;
    // Each limit's mean time and whether it was done in every round.
    let of = |index: usize| {
        let all: Vec<(f64, bool)> =
            rounds.iter().filter_map(|round| round.times.get(index).copied()).collect();
        let mean = all.iter().map(|(time, _)| time).sum::<f64>() / all.len().max(1) as f64;
        (mean, all.iter().all(|(_, done)| *done))
    };
    let fixed = (1..job.limits.len()).map(of).filter(|(_, done)| *done).map(|(t, _)| t);
    let (best, (none, _)) = (fixed.fold(f64::INFINITY, f64::min), of(1));
    println!("{:>10} {:>10} {:>14} {:>12}", "LIMIT", "TIME s", "TO BEST FIXED", "TO NO LIMIT");
    for (index, (name, _)) in job.limits.iter().enumerate() {
        let (time, done) = of(index);
        let least = if done { "" } else { ">" };
        let ratio = |to: f64| if to.is_finite() { format!("{least}{:.3}", time / to) } else { "?".into() };
        println!("{name:>10} {:>10} {:>14} {:>12}", format!("{least}{time:.2}"), ratio(best), ratio(none));
    }
    rounds.iter().flat_map(|round| &round.notes).for_each(|note| println!("{note}"));
    let _ = std::io::stdout().flush();
    Ok(())
}

fn main() -> ExitCode {
    match go() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
