//! Virtual machines as tenants, on the real kernel. Emulated (no KVM needed), so that nothing here judges speed. They
//! share few CPUs badly: one test at a time.

mod common;

use std::fs;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

use common::binary;
use evenkeel_lab::net::measure::{Timing, cpu_ns};
use evenkeel_lab::vm::machine::{Accel, Machine, Role, Spec};
use evenkeel_lab::vm::nic::VmNic;
use evenkeel_lab::vm::scene::{CpuScene, Stock, VmScene};
use evenkeel_linux::testing::turn;

fn stock() -> &'static Stock {
    static STOCK: OnceLock<Stock> = OnceLock::new();
    STOCK.get_or_init(|| {
        let cache = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("vm-kernel");
        Stock::prepare(&cache, &binary(), Some(Accel::Tcg)).unwrap()
    })
}

#[test]
fn machines_serve_flows_and_are_gone_afterwards() {
    let _turn = turn();
    let scene = VmScene::build(stock(), VmNic::Virtio, 2, 1, 4, None).unwrap();
    let pids: Vec<u32> = scene.machines().iter().map(|m| m.pid()).collect();
    for machine in scene.machines() {
        let threads = machine.threads();
        let vcpus: Vec<_> = threads.iter().filter(|t| t.role == Role::Vcpu).collect();
        assert_eq!(vcpus.len(), 1, "{threads:?}");
        assert_eq!(vcpus[0].name, "CPU 0/TCG");
        assert!(threads.iter().any(|t| t.role == Role::Emulator), "{threads:?}");
    }
    let timing = Timing { warmup: Duration::from_millis(500), window: Duration::from_secs(1), windows: 2 };
    let measured = scene.measure(timing).unwrap();
    assert_eq!(measured.tenants.len(), 2);
    for tenant in &measured.tenants {
        assert!(tenant.transactions_per_s.unwrap() > 0.0 && tenant.cpu_pct.unwrap() > 0.0, "{measured:#?}");
        assert!(tenant.packets.unwrap() > 0 && tenant.flows == 2);
    }
    drop(scene);
    assert!(pids.iter().all(|pid| !fs::exists(format!("/proc/{pid}")).unwrap()));
}

/// macvtap takes only what is sent to its own address; no bridge is between.
#[test]
fn machines_serve_flows_by_macvtap_and_virtual_functions_are_looked_for() {
    let _turn = turn();
    let devices = || fs::read_dir("/dev").unwrap().flatten().map(|e| e.file_name()).collect::<Vec<_>>();
    let scene = VmScene::build(stock(), VmNic::Macvtap, 2, 1, 4, None).unwrap();
    let timing = Timing { warmup: Duration::from_millis(500), window: Duration::from_secs(1), windows: 2 };
    let measured = scene.measure(timing).unwrap();
    assert_eq!(measured.tenants.len(), 2);
    for tenant in &measured.tenants {
        assert!(tenant.transactions_per_s.unwrap() > 0.0, "{measured:#?}");
        assert!(tenant.packets.unwrap() > 0 && tenant.flows == 2);
    }
    drop(scene);
    let ours = format!("evenkeel-lab-{}", std::process::id());
    assert!(!devices().iter().any(|name| name.to_string_lossy().starts_with(&ours)));
    // Where there is no card with SR-IOV, it is refused in words; where there is one, machines serve by it.
    match VmScene::build(stock(), VmNic::Vf, 1, 1, 1, None) {
        Ok(scene) => assert!(scene.measure(timing).unwrap().transactions_per_s > Some(0.0)),
        Err(error) => {
            let error = error.to_string();
            assert!(error.contains("SR-IOV") || error.contains("virtual functions"), "{error}");
        }
    }
}

#[test]
fn weights_act_on_machines_and_a_guest_that_fails_shows_its_console() {
    let _turn = turn();
    let cpu = evenkeel_base::CpuSet::single(0);
    let scene = CpuScene::build(stock(), &[100, 400], 1, Some(&cpu)).unwrap();
    let read = || scene.pids().iter().map(|pid| cpu_ns(*pid).unwrap()).collect::<Vec<_>>();
    std::thread::sleep(Duration::from_millis(300));
    let from = read();
    std::thread::sleep(Duration::from_secs(3));
    let got: Vec<f64> = read().iter().zip(&from).map(|(b, a)| (b - a) as f64).collect();
    let ratio = got[1] / got[0];
    // Far from 1, near 4: what others on this CPU take, both lose.
    assert!((2.5..6.0).contains(&ratio), "{got:?}");
    drop(scene);

    // Too little memory for its initramfs: it never gets to the load.
    let spec = Spec {
        name: "ek-lab-test-vm".into(),
        vcpus: 1,
        memory_mib: 48,
        accel: Accel::Tcg,
        tap: None,
        load: vec!["spin".into()],
        cpus: None,
    };
    let mut machine = Machine::start(stock().image(), spec).unwrap();
    let error = machine.wait_up(Duration::from_secs(20)).unwrap_err().to_string();
    assert!(error.contains("ek-lab-test-vm did not come up") && error.contains("last lines:\n"), "{error}");
    println!("{error}");
}
