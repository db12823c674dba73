//! The built-in `rr` against a minimal C ping-pong in the same namespaces: is it within 5 %?
//!
//! `cargo run --release -p evenkeel-lab --example rr_reference -- --flows 1 --pin same` as root. Pairs of runs, one of
//! each program, one straight after the other, the first of a pair in turns; both ends on the same CPUs in both. Prints a
//! line a pair and the median of the pairs' ratios with its 95 % interval (order statistics, no distribution assumed).
//! Needs `cc`, or netperf with `--against netperf`.

use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use clap::{Parser, ValueEnum};
use evenkeel_base::CpuSet;
use evenkeel_base::stats::median_with_interval;
use evenkeel_lab::net::namespace::{Namespace, enter};
use evenkeel_lab::net::tools::Tool;
use evenkeel_lab::net::wiring::{Nic, Wiring, tenant_address};
use evenkeel_lab::private::PrivateDir;
use evenkeel_workload::Kind;
use evenkeel_workload::load::{LoadSpec, run};
use evenkeel_workload::rr::{Role, Rr};

type Failed = Box<dyn std::error::Error>;

#[derive(Parser)]
struct Args {
    /// Flows, a process or thread each.
    #[arg(long, default_value_t = 1)]
    flows: u32,
    /// Length of a run.
    #[arg(long, default_value_t = 1)]
    seconds: u32,
    /// Pairs of runs.
    #[arg(long, default_value_t = 11)]
    pairs: u32,
    /// Where both ends run.
    #[arg(long, value_enum, default_value_t = Pin::Same)]
    pin: Pin,
    /// What `rr` is compared with.
    #[arg(long, value_enum, default_value_t = Against::C)]
    against: Against,
    /// Least ratio that is good enough: below, the status is 1.
    #[arg(long, default_value_t = 0.0)]
    least: f64,
    /// Largest ratio that is good enough.
    #[arg(long, default_value_t = f64::INFINITY)]
    most: f64,
    /// (internal) One end of a run.
    #[arg(long, num_args = 2, value_names = ["ROLE", "ADDRESS"], hide = true)]
    end: Option<Vec<String>>,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Pin {
    /// Both on the last CPU.
    Same,
    /// Client on the first, server on the last.
    Apart,
    /// Wherever the kernel puts them.
    Free,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Against {
    /// The minimal C program next to this file.
    C,
    /// netperf's TCP_RR.
    Netperf,
}

fn main() -> Result<(), Failed> {
    let args = Args::parse();
    if let Some(end) = &args.end {
        return one_end(&args, end);
    }
    if args.against == Against::Netperf {
        Tool::Netperf.find()?;
    }
    let wiring = Wiring::build(Nic::Veth, 1)?;
    let dir = PrivateDir::temporary()?;
    let c = if args.against == Against::C { Some(compile(&dir)?) } else { None };
    let name = if args.against == Against::C { "C" } else { "netperf" };
    let own = std::env::current_exe()?;
    let mut ratios = Vec::new();
    for pair in 0..args.pairs {
        let mut rates = [0.0; 2];
        let order = if pair % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let port = 9000 + (pair * 2 + which) as u16;
            let address = SocketAddr::new(tenant_address(0).into(), port);
            rates[which as usize] = match (which, &c) {
                (0, _) => with_own(&args, &wiring, &own, address)?,
                (_, Some(c)) => with_c(&args, &wiring, c, address)?,
                _ => with_netperf(&args, &wiring, address)?,
            };
        }
        let ratio = rates[0] / rates[1];
        ratios.push(ratio);
        println!("pair {}: rr {:.0}/s, {name} {:.0}/s, ratio {ratio:.3}", pair + 1, rates[0], rates[1]);
    }
    let pin = args.pin.to_possible_value().map(|v| v.get_name().to_owned()).unwrap_or_default();
    let Some(median) = median_with_interval(&ratios) else { return Err("no pair".into()) };
    println!(
        "{} flow(s), CPUs {pin}: rr / {name} = {}, median of {} pairs of {} s",
        args.flows,
        median.in_words(3),
        args.pairs,
        args.seconds
    );
    if !(args.least..=args.most).contains(&median.value) {
        std::process::exit(1);
    }
    Ok(())
}

fn with_own(args: &Args, wiring: &Wiring, own: &Path, address: SocketAddr) -> Result<f64, Failed> {
    let end = |role: &str| {
        let mut words = vec!["--end".to_owned(), role.to_owned(), address.to_string()];
        words.extend(["--flows".to_owned(), args.flows.to_string()]);
        words.extend(["--seconds".to_owned(), args.seconds.to_string()]);
        words
    };
    let _server = Ends(vec![start(args, &wiring.tenants[0], own, &end("server"), true)?]);
    rate(start(args, &wiring.sender, own, &end("client"), false)?)
}

fn with_c(args: &Args, wiring: &Wiring, c: &Path, address: SocketAddr) -> Result<f64, Failed> {
    let end = |role: &str| {
        let words = [role.to_owned(), address.ip().to_string(), address.port().to_string()];
        words.into_iter().chain([args.flows.to_string(), args.seconds.to_string()]).collect::<Vec<_>>()
    };
    let _server = Ends(vec![start(args, &wiring.tenants[0], c, &end("server"), true)?]);
    rate(start(args, &wiring.sender, c, &end("client"), false)?)
}

fn with_netperf(args: &Args, wiring: &Wiring, address: SocketAddr) -> Result<f64, Failed> {
    let tool = Tool::Netperf;
    let (program, words) = tool.server(address);
    let _server = Ends(vec![start(args, &wiring.tenants[0], Path::new(program), &words, true)?]);
    // netserver has no word for being ready.
    std::thread::sleep(std::time::Duration::from_millis(200));
    let (program, words) = tool.client(address, 1, args.seconds);
    let clients = (0..args.flows)
        .map(|_| start(args, &wiring.sender, Path::new(program), &words, false))
        .collect::<Result<Vec<_>, _>>()?;
    let mut sum = 0.0;
    for client in clients {
        let said = tool.parse(&String::from_utf8(client.wait_with_output()?.stdout)?)?;
        sum += said.transactions_per_s.ok_or("netperf told no rate")?;
    }
    Ok(sum)
}

/// `--end server|client ADDRESS`, in a process of its own as the C program is.
fn one_end(args: &Args, end: &[String]) -> Result<(), Failed> {
    let role = if end[0] == "server" { Role::Server } else { Role::Client };
    let mut spec = LoadSpec::new(Kind::Rr(Rr::new(role, end[1].parse()?, args.flows)));
    spec.common.threads = Some(args.flows);
    spec.common.seconds = (role == Role::Client).then_some(f64::from(args.seconds));
    let report = run(&spec, &AtomicBool::new(false))?;
    println!("{:.1}", report.events as f64 / report.real_s);
    Ok(())
}

/// Killed on drop.
struct Ends(Vec<Child>);

impl Drop for Ends {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn rate(client: Child) -> Result<f64, Failed> {
    Ok(String::from_utf8(client.wait_with_output()?.stdout)?.trim().parse()?)
}

fn start(
    args: &Args,
    namespace: &Namespace,
    program: &Path,
    words: &[String],
    server: bool,
) -> io::Result<Child> {
    let handle = namespace.fd().try_clone_to_owned()?;
    let last = evenkeel_linux::sys::usable_cpus().len() as u32 - 1;
    let cpu = match args.pin {
        Pin::Free => None,
        Pin::Apart if !server => Some(0),
        Pin::Same | Pin::Apart => Some(last),
    };
    let mask = cpu.map(|cpu| CpuSet::single(cpu).words().to_vec());
    let mut command = Command::new(program);
    command.args(words).stdout(Stdio::piped()).stdin(Stdio::null());
    let parent = std::process::id();
    // SAFETY: async-signal-safe system calls on a descriptor and memory the closure owns.
    unsafe {
        command.pre_exec(move || {
            evenkeel_linux::children::signal_at_end_of(parent, libc::SIGKILL)?;
            if let Some(mask) = &mask
                && libc::sched_setaffinity(0, mask.len() * 8, mask.as_ptr().cast()) < 0
            {
                return Err(io::Error::last_os_error());
            }
            enter(handle.as_fd())
        })
    };
    command.spawn()
}

/// The program, in a directory that goes with it.
fn compile(dir: &PrivateDir) -> Result<PathBuf, Failed> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pingpong.c");
    let program = dir.path().join("pingpong");
    let status = Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(&program).arg(source).status()?;
    if !status.success() {
        return Err("cc failed".into());
    }
    Ok(program)
}
