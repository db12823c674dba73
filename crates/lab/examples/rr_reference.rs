//! The built-in `rr` against a minimal C ping-pong in the same namespaces, in turns: is it within 5 %?
//!
//! `cargo run --release -p evenkeel-lab --example rr_reference -- [FLOWS [SECONDS [ROUNDS]]]` as root. Prints one line a
//! round and the ratio of the means. Needs `cc`. netperf, where installed, is measured as well.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicBool;

use evenkeel_lab::load::{LoadSpec, run};
use evenkeel_lab::net::namespace::{Namespace, enter};
use evenkeel_lab::net::wiring::{Nic, Wiring, tenant_address};
use evenkeel_lab::workload::Kind;
use evenkeel_lab::workload::rr::{Role, Rr};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|a| a == "rr") {
        return serve_or_ask(&arguments);
    }
    let number = |i: usize, default: f64| arguments.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (flows, seconds, rounds) = (number(0, 1.0) as u32, number(1, 3.0), number(2, 5.0) as u32);
    let wiring = Wiring::build(Nic::Veth, 1)?;
    let c = compile()?;
    let own = std::env::current_exe()?;
    let address = tenant_address(0).to_string();
    let text = |n: f64| n.to_string();
    let mut sums = [0.0; 2];
    for round in 1..=rounds {
        let mut rates = [0.0; 2];
        // Who goes first changes, so that drift of the host does not favour one.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let port = (9000 + round * 2 + which as u32).to_string();
            let (program, first): (&Path, &[&str]) = if which == 0 { (&own, &["rr"]) } else { (&c, &[]) };
            let arguments = |role: &str| {
                let mut all: Vec<String> = first.iter().map(|a| (*a).to_owned()).collect();
                all.extend([
                    role.to_owned(),
                    address.clone(),
                    port.clone(),
                    flows.to_string(),
                    text(seconds),
                ]);
                all
            };
            let mut server = start(&wiring.tenants[0], program, &arguments("server"))?;
            let client = start(&wiring.sender, program, &arguments("client"))?.wait_with_output()?;
            let _ = server.kill();
            let _ = server.wait();
            rates[which] = String::from_utf8(client.stdout)?.trim().parse()?;
            sums[which] += rates[which];
        }
        println!(
            "round {round}: rr {:.0}/s, C {:.0}/s, ratio {:.3}",
            rates[0],
            rates[1],
            rates[0] / rates[1]
        );
    }
    println!("{flows} flows: rr / C = {:.3} over {rounds} rounds of {seconds} s", sums[0] / sums[1]);
    Ok(())
}

/// `rr server|client ADDRESS PORT FLOWS SECONDS`, in a process of its own as the C program is.
fn serve_or_ask(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let role = if arguments[1] == "server" { Role::Server } else { Role::Client };
    let flows: u32 = arguments[4].parse()?;
    let address = format!("{}:{}", arguments[2], arguments[3]).parse()?;
    let mut spec = LoadSpec::new(Kind::Rr(Rr::new(role, address, flows)));
    spec.common.threads = Some(flows);
    spec.common.seconds = (role == Role::Client).then(|| arguments[5].parse()).transpose()?;
    let report = run(&spec, &AtomicBool::new(false))?;
    println!("{:.1}", report.events as f64 / report.real_s);
    Ok(())
}

fn start(namespace: &Namespace, program: &Path, arguments: &[String]) -> io::Result<Child> {
    let handle = namespace.fd().try_clone_to_owned()?;
    let mut command = Command::new(program);
    command.args(arguments).stdout(Stdio::piped());
    // SAFETY: async-signal-safe system calls on a descriptor the closure owns.
    unsafe {
        command.pre_exec(move || {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0);
            enter(handle.as_fd())
        })
    };
    command.spawn()
}

fn compile() -> Result<PathBuf, Box<dyn std::error::Error>> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/pingpong.c");
    let program = std::env::temp_dir().join(format!("evenkeel-pingpong-{}", std::process::id()));
    let status = Command::new("cc").args(["-O2", "-Wall", "-o"]).arg(&program).arg(source).status()?;
    if !status.success() {
        return Err("cc failed".into());
    }
    Ok(program)
}
