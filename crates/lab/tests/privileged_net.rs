//! Tenants' networks on the real kernel. One test at a time: the dumps compared are the host's.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::binary;
use evenkeel_base::CpuSet;
use evenkeel_base::stats;
use evenkeel_lab::net::iproute;
use evenkeel_lab::net::measure::{Measured, Timing};
use evenkeel_lab::net::namespace::Namespace;
use evenkeel_lab::net::scene::NamespaceScene;
use evenkeel_lab::net::tool_scene::ToolScene;
use evenkeel_lab::net::tools::Tool;
use evenkeel_lab::net::wiring::{Nic, UPLINK, Wiring};
use evenkeel_linux::testing::{made_by, turn, until};

fn short() -> Timing {
    Timing { warmup: Duration::from_millis(100), window: Duration::from_millis(150), windows: 2 }
}

/// Links, queueing disciplines, named namespaces of the host, and the namespaces any process is in.
fn dump() -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (program, arguments) in
        [("ip", &["-o", "link"][..]), ("tc", &["qdisc"]), ("ip", &["netns"]), ("ip", &["-o", "address"])]
    {
        let output = Command::new(program).args(arguments).output().unwrap();
        assert!(output.status.success());
        lines.extend(String::from_utf8(output.stdout).unwrap().lines().map(|l| format!("{program} {l}")));
    }
    for process in fs::read_dir("/proc").unwrap().flatten() {
        if let Ok(namespace) = fs::read_link(process.path().join("ns/net")) {
            lines.insert(namespace.display().to_string());
        }
    }
    lines
}

#[test]
fn flows_are_answered_by_every_tenant_over_every_link() {
    let _turn = turn();
    let before = dump();
    let cpus = CpuSet::first_n(2);
    for (nic, tenants, steered) in
        [(Nic::Veth, 4, None), (Nic::Veth, 2, Some(&cpus)), (Nic::Macvlan, 4, None), (Nic::None, 1, None)]
    {
        let scene = NamespaceScene::build(&binary(), nic, tenants, 8, steered).unwrap();
        // On a busy machine a flow may get nothing for a while: then for longer.
        let try_for = |windows| scene.measure(Timing { windows, ..short() }).unwrap();
        let all_moved = |m: &Measured| m.flows.iter().all(|flow| flow.transactions > Some(0));
        let measured = [2, 10].into_iter().map(try_for).find(all_moved).unwrap_or_else(|| try_for(60));
        assert_eq!(measured.tenants.len(), tenants, "{nic:?}");
        assert_eq!(measured.flows.len(), 8);
        assert!(
            measured.flows.iter().all(|f| f.transactions > Some(0) && f.broken.is_none()),
            "{nic:?} {measured:#?}"
        );
        let transactions: u64 = measured.flows.iter().filter_map(|f| f.transactions).sum();
        let per_tenant: f64 = measured.tenants.iter().filter_map(|t| t.transactions_per_s).sum();
        assert!((per_tenant * measured.seconds / transactions as f64 - 1.0).abs() < 1e-6);
        for tenant in &measured.tenants {
            assert_eq!(tenant.flows as usize, 8 / tenants);
            assert!(tenant.windows.len() >= 2);
            let latency = tenant.latency.unwrap();
            assert!(latency.p50_usec <= latency.p99_usec && latency.mean_usec > 0.0);
            assert!(tenant.cpu_pct.unwrap() > 0.0);
            // A request and an answer, at least, for each transaction; an acknowledgement may travel alone.
            if nic != Nic::None {
                let transactions = tenant.transactions_per_s.unwrap() * measured.seconds;
                let packets = tenant.packets.unwrap() as f64;
                assert!(packets >= 1.5 * transactions, "{packets} packets, {transactions} transactions");
            }
        }
        let host = &measured.host;
        assert!(
            host.cpu_pct.unwrap() > 0.0 && host.spread.unwrap() >= 1.0 && host.sender_cpu_pct.unwrap() > 0.0
        );
        if nic != Nic::None {
            let charged: f64 = measured.tenants.iter().map(|t| t.softirq_pct.unwrap()).sum();
            assert!((charged - host.softirq_pct.unwrap()).abs() < 1e-6);
        }
        let shares: Vec<f64> = measured.tenants.iter().map(|t| t.transactions_per_s.unwrap()).collect();
        assert!(stats::jain(&shares).unwrap() > 0.3, "{shares:?}");
    }
    until("the host is as before", || dump().is_subset(&before));
}

/// A real program as the traffic (Debian's iperf3); netperf, which is not in Debian main, where it is installed.
#[test]
fn programs_that_are_not_ours_measure_the_same_tenants() {
    let _turn = turn();
    let before = dump();
    for (tool, nic, tenants) in
        [(Tool::Iperf3, Nic::Veth, 2), (Tool::Netperf, Nic::Macvlan, 2), (Tool::Netperf, Nic::None, 1)]
    {
        let scene = match (ToolScene::build(tool, nic, tenants, 4, None), tool.find()) {
            (Ok(scene), Ok(())) => scene,
            (Err(error), Err(missing)) if tool == Tool::Netperf => {
                assert!(error.to_string().contains("netperf is not installed"), "{error}");
                assert_eq!(error.to_string(), missing.to_string());
                continue;
            }
            (result, found) => panic!("{tool:?}: {result:?}, {found:?}"),
        };
        let measured = scene.measure(short()).unwrap();
        assert_eq!((measured.tenants.len(), measured.flows.len()), (tenants, 4), "{measured:#?}");
        for tenant in &measured.tenants {
            let rate = if tool == Tool::Iperf3 { tenant.mbit_per_s } else { tenant.transactions_per_s };
            assert!(rate.unwrap() > 0.0 && tenant.cpu_pct.unwrap() > 0.0, "{tenant:#?}");
            assert_eq!(tenant.flows as usize, 4 / tenants);
        }
        let sum: f64 = measured.tenants.iter().filter_map(|t| t.mbit_per_s.or(t.transactions_per_s)).sum();
        let all = measured.mbit_per_s.or(measured.transactions_per_s).unwrap();
        assert!((sum / all - 1.0).abs() < 0.02, "{sum} {all}");
    }
    let error = ToolScene::build(Tool::Iperf3, Nic::Veth, 1, 129, None).unwrap_err().to_string();
    assert!(error.contains("at most 128"), "{error}");
    until("the host is as before", || dump().is_subset(&before));
}

#[test]
fn steering_is_set_on_the_uplink_only_inside() {
    let wiring = Wiring::build(Nic::Veth, 1).unwrap();
    evenkeel_lab::net::steering::steer(&wiring.switch, UPLINK, &CpuSet::first_n(2)).unwrap();
    let read = |file: &str| {
        let path = format!("class/net/{UPLINK}/queues/rx-0/{file}");
        wiring.switch.run_with_sysfs(|sys| fs::read_to_string(sys.join(&path))).unwrap()
    };
    assert_eq!(CpuSet::parse_mask(&read("rps_cpus")).unwrap(), CpuSet::first_n(2));
    assert_eq!(read("rps_flow_cnt").trim(), "4096");
    assert!(!fs::exists(format!("/sys/class/net/{UPLINK}")).unwrap(), "the host sees the lab's link");
    let error =
        evenkeel_lab::net::steering::steer(&wiring.switch, "no-such-link", &CpuSet::first_n(1)).unwrap_err();
    assert!(error.to_string().contains("no-such-link"), "{error}");
}

#[test]
fn what_the_kernel_or_the_user_gets_wrong_is_said() {
    let namespace = Namespace::make("here").unwrap();
    let error = iproute::ip(&namespace, "link set dev nothing up\n").unwrap_err().to_string();
    assert!(
        error.contains("ip link set dev nothing up (in here)") && error.contains("Cannot find"),
        "{error}"
    );
    let error = NamespaceScene::build(&binary(), Nic::Veth, 3, 8, None).unwrap_err().to_string();
    assert!(error.contains("6 would"), "{error}");
}

#[test]
#[ignore = "the child of the test below, which runs it"]
fn child_that_is_killed() {
    let file = std::env::var_os("EK_NET_CHILD").unwrap();
    let scene = NamespaceScene::build(&binary(), Nic::Veth, 3, 6, None).unwrap();
    fs::write(file, "up\n").unwrap();
    let long = Timing { warmup: Duration::ZERO, window: Duration::from_secs(60), windows: 1 };
    scene.measure(long).unwrap();
}

#[test]
fn a_kill_leaves_no_link_and_no_namespace() {
    let _turn = turn();
    let dir = tempfile::tempdir().unwrap();
    let before = dump();
    let file = dir.path().join("up");
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_is_killed", "--nocapture", "--ignored"])
        .env("EK_NET_CHILD", &file)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    until("the scene is up", || fs::exists(&file).unwrap());
    assert!(!dump().is_subset(&before), "the tenants' namespaces are not seen: this test could not fail");
    child.kill().unwrap();
    child.wait().unwrap();
    until("the host is as before", || dump().is_subset(&before));
    until("no cgroup left", || {
        evenkeel_lab::launch::sweep_stale();
        made_by("lab", child.id()).is_empty()
    });
}
