//! Steal inside a virtual machine, explained from outside: a vCPU that has to share its CPU. Needs root and qemu.

mod scene;

use std::fs;
use std::process::{Command, Stdio};

use evenkeel_linux::testing::{TestChild, awaited, schedstat};
use serde_json::Value;

/// An emulated machine on CPU 0 whose firmware is one jump to itself: its vCPU wants all it can get.
fn machine(name: &str, firmware: &std::path::Path) -> TestChild {
    let arm = cfg!(target_arch = "aarch64");
    scene::spinning_firmware(firmware);
    let (qemu, board) = if arm {
        ("qemu-system-aarch64", &["-machine", "virt", "-cpu", "cortex-a57"][..])
    } else {
        ("qemu-system-x86_64", &["-machine", "pc"][..])
    };
    let child = Command::new("taskset")
        .args(["-c", "0", qemu, "-name", &format!("guest={name},debug-threads=on")])
        .args(board)
        .args(["-accel", "tcg", "-m", "64M", "-nodefaults", "-no-user-config", "-display", "none", "-bios"])
        .arg(firmware)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .spawn()
        .expect("qemu is needed");
    TestChild(child)
}

/// The vCPU's thread id and how long it waited so far, seconds.
fn vcpu(pid: u32) -> (u32, f64) {
    let is_vcpu = |entry: &fs::DirEntry| {
        fs::read_to_string(entry.path().join("comm")).is_ok_and(|comm| comm.starts_with("CPU 0/"))
    };
    let thread = awaited(30, || {
        let mut threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        threads.find(is_vcpu).ok_or_else(|| "the machine has no vCPU thread".to_owned())
    });
    let tid = thread.file_name().to_str().unwrap().parse().unwrap();
    (tid, schedstat(tid)[1] as f64 / 1e9)
}

#[test]
fn a_guests_steal_is_its_vcpus_wait_on_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let name = format!("ek-steal-{}", std::process::id());
    let machine = machine(&name, &dir.path().join("firmware"));
    let pid = machine.0.id();
    vcpu(pid);
    let _rival = TestChild(
        Command::new("taskset")
            .args(["-c", "0", env!("CARGO_BIN_EXE_evenkeel"), "load", "spin", "--seconds", "120"])
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    let evenkeel = |args: &[&str]| scene::run(dir.path(), args).ok();
    let target = format!("vm:{name}");
    for source in ["bpf", "proc"] {
        let (_, before) = vcpu(pid);
        let document = evenkeel(&["why", &target, "--for", "2s", "-o", "json", "--source", source]);
        let (_, after) = vcpu(pid);
        let document: Value = serde_json::from_str(&document).unwrap();
        let vm = &document["vm"];
        assert_eq!((&vm["vcpus"], &vm["steal_clock"]), (&Value::from(1), &Value::from(false)), "{vm:#}");
        assert!(vm["other_threads"].as_u64().unwrap() >= 1, "{vm:#}");
        let number = |value: &Value| value.as_f64().unwrap();
        let steal = number(&vm["steal_inside_s"]);
        // The kernel's own count of the thread, read before and after, bounds it; the rival makes it large.
        assert!(steal > 0.1 && steal <= after - before + 0.001, "{steal} of {}", after - before);
        // It is what the report calls waiting and throttled, the emulator's other threads having next to none. Compared as
        // parts of the time wanted: BPF and the counters look at slightly different stretches of time.
        let waited = number(&document["waited_s"]) + document["throttled_s"].as_f64().unwrap_or(0.0);
        let part = waited / (waited + number(&document["ran_s"]));
        let inside = steal / (steal + number(&vm["vcpus_ran_s"]));
        assert!((inside - part).abs() < 0.1, "{source}: {inside} inside, {part} outside: {document:#}");
        if source == "proc" {
            let pct = number(&vm["steal_inside_pct"]);
            assert!((pct / 100.0 - steal / number(&document["wall_s"])).abs() < 0.001, "{vm:#}");
        }
    }
    let text = evenkeel(&["why", &target, "--for", "300ms"]);
    assert!(text.contains("steal inside:"), "{text}");
    // The machine's other threads are listed as the machine's, and the vCPU by its name.
    let ps = evenkeel(&["ps", "--by", "vm", "--all", "--interval", "200ms", "-n", "1000"]);
    let (tid, _) = vcpu(pid);
    assert!(ps.contains(&name) && ps.contains(&format!("{tid} CPU 0/TCG")), "{ps}");
    let document: Value =
        serde_json::from_str(&evenkeel(&["ps", "-o", "json", "--interval", "200ms"])).unwrap();
    let tasks: Vec<&Value> =
        document["tasks"].as_array().unwrap().iter().filter(|task| task["tgid"] == pid).collect();
    assert!(tasks.len() >= 2 && tasks.iter().all(|task| task["vm"] == name.as_str()), "{tasks:#?}");
    // No machine: nothing is said about one.
    let own = evenkeel(&["why", &format!("pid:{pid}"), "--for", "200ms", "-o", "json", "--source", "proc"]);
    assert!(!own.contains("steal_inside_s"), "{own}");
}
