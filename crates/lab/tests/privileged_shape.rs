//! Outgoing bandwidth by group, on the real kernel, in namespaces of our own.

mod common;

use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use common::binary;
use evenkeel_actuate::host::HostError;
use evenkeel_actuate::host::shape::{Owner, Rate, counters, shape};
use evenkeel_lab::net::namespace::{Namespace, enter};
use evenkeel_lab::net::wiring::{Nic, Wiring, tenant_address};
use evenkeel_lab::net::{NetError, iproute};
use evenkeel_lab::tenant::{Layout, Starter};
use evenkeel_linux::Root;
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::testing::TestChild;
use evenkeel_workload::Kind;
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::stream::{PAYLOAD, Stream};

const HANDLE: u16 = 0xee01;

/// A cgroup v2 of ours; its members are killed and it is removed on drop.
struct Group(Cgroup);

impl Group {
    fn make(mount: &Path, name: &str) -> Self {
        let name = format!("evenkeel-test-shape-{}-{name}", std::process::id());
        Self(Cgroup::make(mount, &name, true).unwrap())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.0.clear() {
            eprintln!("{} could not be removed", self.0.dir().display());
        }
    }
}

/// A stream to a tenant, from the sender's namespace, by a process in a group.
fn sender(namespace: &Namespace, group: &Group, to: SocketAddr) -> TestChild {
    use std::os::unix::process::CommandExt;
    let handle = namespace.handle().unwrap();
    let (procs, parent) = (group.0.entrance().unwrap(), std::process::id());
    let mut command = Command::new(binary());
    command.args(["load", "stream", &format!("--connect={to}")]).stdout(Stdio::null());
    // SAFETY: async-signal-safe system calls on descriptors the closure owns.
    unsafe {
        command.pre_exec(move || {
            use std::io::Write;
            evenkeel_linux::children::signal_at_end_of(parent, libc::SIGKILL)?;
            (&procs).write_all(b"0")?;
            enter(handle.as_fd())
        })
    };
    TestChild(command.spawn().unwrap())
}

/// Does something on a thread in a namespace.
fn inside<T: Send>(
    namespace: &Namespace,
    work: impl FnOnce() -> Result<T, HostError> + Send,
) -> Result<T, HostError> {
    namespace.run(|| Ok(work())).unwrap()
}

fn make_root(namespace: &Namespace, link: &str) -> Result<String, NetError> {
    iproute::tc(Some(namespace), &format!("qdisc add dev {link} root handle {HANDLE:x}: htb default 0\n"))
}

fn unified() -> PathBuf {
    let found = Hierarchies::read(&Root::host()).unwrap().unified;
    found.expect("a cgroup v2 mount").mount_point.into()
}

#[test]
fn each_group_sends_at_its_rate_by_the_classes_own_counters() {
    let wiring = Wiring::build(Nic::Veth, 2).unwrap();
    let mount = unified();
    let groups = [Group::make(&mount, "a"), Group::make(&mount, "b")];
    let specs: Vec<LoadSpec> = (0..2)
        .map(|i| LoadSpec::new(Kind::Stream(Stream::at(SocketAddr::new(tenant_address(i).into(), 7421)))))
        .collect();
    let handles = wiring.tenants.iter().map(|t| t.handle().unwrap()).collect();
    let takers = Starter::new(binary(), Layout::Process).in_namespaces(handles).hold(&specs).unwrap();
    takers.release();

    let mbit = [24u64, 12];
    make_root(&wiring.sender, "eth0").unwrap();
    let rates: Vec<Rate> = groups
        .iter()
        .zip(mbit)
        .map(|(group, mbit)| Rate {
            owner: Owner::of_cgroup(&mount, group.0.dir()).unwrap(),
            bits_per_s: mbit * 1_000_000,
        })
        .collect();
    inside(&wiring.sender, || shape("eth0", HANDLE, &rates)).unwrap();
    let senders: Vec<TestChild> =
        groups.iter().enumerate().map(|(i, group)| sender(&wiring.sender, group, specs_address(i))).collect();
    std::thread::sleep(Duration::from_millis(700));
    let read = || {
        (
            Instant::now(),
            inside(&wiring.sender, || counters("eth0", HANDLE)).unwrap(),
            [0, 1].map(|i| takers.progress(i).unwrap().cycles),
        )
    };
    let from = read();
    std::thread::sleep(Duration::from_secs(4));
    let to = read();
    let seconds = to.0.duration_since(from.0).as_secs_f64();
    for (i, mbit) in mbit.iter().enumerate() {
        let sent = (to.1[i].bytes - from.1[i].bytes) as f64 * 8.0 / seconds / 1e6;
        let payload = ((to.2[i] - from.2[i]) * PAYLOAD as u64) as f64 * 8.0 / seconds / 1e6;
        println!("{mbit} Mbit/s: {sent:.2} by the class, {payload:.2} of payload");
        let off = (sent / *mbit as f64 - 1.0).abs();
        assert!(off < 0.5 / 24.0, "{mbit} Mbit/s was set, {sent:.2} measured");
        // Headers are part of the rate; a counter of payload is up to 64 KiB behind.
        assert!(payload < sent && payload > 0.85 * sent, "{payload} of {sent}");
    }
    drop(senders);
    iproute::tc(Some(&wiring.sender), "qdisc del dev eth0 root\n").unwrap();
    let left =
        iproute::batch("tc", &["-s"], Some(&wiring.sender), "qdisc show dev eth0\nfilter show dev eth0\n")
            .unwrap();
    assert!(!left.contains("htb") && !left.contains("bpf"), "{left}");
}

fn specs_address(tenant: usize) -> SocketAddr {
    SocketAddr::new(tenant_address(tenant).into(), 7421)
}

#[test]
fn what_cannot_be_shaped_is_said() {
    let namespace = Namespace::make("here").unwrap();
    let rates = [Rate { owner: Owner::ClassId(1), bits_per_s: 24_000_000 }];
    let shaped = |link: &str, rates: &[Rate]| inside(&namespace, || shape(link, HANDLE, rates));
    assert!(matches!(shaped("eth7", &rates), Err(HostError::Gone(_))));
    assert!(matches!(shaped("lo", &[]), Err(HostError::Refused(_))));
    // By class id the program loads and attaches as well.
    make_root(&namespace, "lo").unwrap();
    shaped("lo", &rates).unwrap();
    assert_eq!(inside(&namespace, || counters("lo", HANDLE)).unwrap().len(), 1);
    assert!(!fs::exists("/sys/fs/bpf/evenkeel-classifier").unwrap(), "the host sees the pinned program");
}
