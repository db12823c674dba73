//! Rates and owners as they are read from trees of two samples.

mod common;

use common::Tree;
use evenkeel_base::{ExitedSample, Observation, SchedPolicy};
use evenkeel_observe::capture::replay;
use evenkeel_observe::{Detail, Observer, ObserverOptions};

const UID: &str = "5f3c2a10-9b1e-4c57-8d34-0a1b2c3d4e5f";

fn observe(tree: &Tree) -> Observation {
    let (mut observer, before, after) = replay(&tree.root()).unwrap();
    observer.observe(&before, &after, &Detail::All).unwrap()
}

/// A pure v2 host with the systemd driver of Kubernetes, the runtime's answer captured along.
fn kubepods() -> Tree {
    let tree = Tree::fixture("v2-kubepods");
    let slice = format!("kubepods-burstable-pod{}.slice", UID.replace('-', "_"));
    let scope = format!("cri-containerd-{}.scope", "a".repeat(64));
    let cgroup = format!("0::/kubepods.slice/kubepods-burstable.slice/{slice}/{scope}/worker\n");
    tree.task(41, 41, "web", &cgroup, 200, 600).task(41, 43, "web io", &cgroup, 50, 100);
    tree.task(50, 50, "sshd", "0::/system.slice/ssh.service\n", 0, 0);
    tree
}

#[test]
fn a_pod_on_v2_with_names_limits_and_throttling() {
    let seen = observe(&kubepods());
    let task = &seen.tasks[0];
    assert_eq!((task.comm.as_str(), task.cpu_pct, task.wait_pct), ("web", 20.0, Some(60.0)));
    assert_eq!((task.voluntary_per_s, task.involuntary_per_s), (Some(1.0), Some(0.0)));
    let container = &seen.containers[task.container.unwrap() as usize];
    assert_eq!(
        (container.name.as_str(), container.runtime.as_str(), container.confirmed),
        ("web", "containerd", true)
    );
    assert_eq!(container.labels, [("app".to_owned(), "shop".to_owned())]);
    let pod = &seen.pods[task.pod.unwrap() as usize];
    assert_eq!((pod.namespace.as_deref(), pod.name.as_str()), (Some("shop"), "web-0"));
    assert_eq!(pod.annotations[0].1, "40");
    // The task's group has no cpu controller ("worker" has no cpu.weight): it competes in the container's.
    let group = seen.group_of(task).unwrap();
    assert!(group.path.ends_with(".scope"), "{}", group.path);
    assert_eq!((container.group, pod.group), (task.group, group.parent));
    assert_eq!((group.raw_weight, group.load_weight), (Some(10), Some(102)));
    assert_eq!(group.quota.unwrap().pct(), Some(25.0));
    assert_eq!((group.cpu_pct, group.throttled_pct), (Some(25.0), Some(70.0)));
    assert_eq!(group.throttled_periods, Some((9, 10)));
    assert_eq!(group.cpuset.as_ref().unwrap().to_string(), "0-1");
    let parents: Vec<&str> = seen.groups.iter().map(|group| group.path.as_str()).collect();
    assert_eq!((parents[0], parents[1]), ("/", "/kubepods.slice"));
    for group in &seen.groups {
        assert_eq!(group.parent.is_none(), group.path == "/");
    }
    // 0.5 s busy, 0.4 idle, 0.1 stolen on each CPU.
    assert_eq!((seen.host.cpus, seen.host.busy_pct, seen.host.steal_pct), (2, 100.0, Some(20.0)));
}

#[test]
fn without_an_answer_the_path_alone_names_pod_and_container() {
    let tree = kubepods();
    tree.remove("1/evenkeel/runtimes.json");
    let seen = observe(&tree);
    let (container, pod) = (&seen.containers[0], &seen.pods[0]);
    assert_eq!((container.name.as_str(), container.confirmed), ("a".repeat(64).as_str(), false));
    assert_eq!((pod.uid.as_str(), pod.name.as_str(), &pod.namespace), (UID, UID, &None));
}

#[test]
fn hybrid_takes_weight_usage_and_cpus_from_where_each_is() {
    let id = "b".repeat(64);
    let tree = Tree::new();
    tree.host(
        "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         34 31 0:31 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n\
         35 31 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n\
         41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );
    let cgroup =
        |cpuset: &str| format!("3:cpuset:{cpuset}\n2:cpuacct:/docker/{id}\n1:cpu:/docker/{id}\n0::/\n");
    tree.task(60, 60, "tenant", &cgroup(&format!("/docker/{id}")), 300, 0);
    for sample in [0u64, 1] {
        let v1 = format!("{sample}/sys/fs/cgroup");
        tree.file(&format!("{v1}/unified/cgroup.controllers"), "\n")
            .file(&format!("{v1}/cpu/docker/{id}/cpu.shares"), "512\n")
            .file(&format!("{v1}/cpu/docker/{id}/cpu.cfs_quota_us"), "-1\n")
            .file(&format!("{v1}/cpu/docker/{id}/cpu.cfs_period_us"), "100000\n")
            .file(
                &format!("{v1}/cpu/docker/{id}/cpu.stat"),
                "nr_periods 0\nnr_throttled 0\nthrottled_time 0\n",
            )
            .file(&format!("{v1}/cpuacct/docker/{id}/cpuacct.usage"), &format!("{}\n", sample * 310_000_000))
            .file(&format!("{v1}/cpuset/docker/{id}/cpuset.effective_cpus"), "1\n");
    }
    let seen = observe(&tree);
    let group = seen.group_of(&seen.tasks[0]).unwrap();
    assert_eq!(
        (group.path.as_str(), group.v2, group.load_weight),
        (&*format!("/docker/{id}"), false, Some(512))
    );
    assert_eq!((group.cpu_pct, group.quota.unwrap().pct()), (Some(31.0), None));
    assert_eq!(group.cpuset.as_ref().unwrap().to_string(), "1");
    assert_eq!((seen.containers[0].runtime.as_str(), seen.containers[0].confirmed), ("docker", false));
    // The root group of v1 has no counters here: unknown, not zero.
    assert_eq!((seen.groups[0].cpu_pct, seen.groups[0].throttled_pct), (None, None));
}

/// libvirt gives each vCPU a group below the machine's: what is the machine's is read there, and so are the CPUs that a vCPU may be
/// pinned to, for libvirt narrows the vCPU's group with each pin. systemd does not allow the name as it is.
#[test]
fn a_machine_of_libvirt_is_the_group_above_its_vcpus() {
    let tree = Tree::new();
    tree.host(
        "33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
         35 31 0:32 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n",
    );
    let own = "/machine/qemu-3-win10.libvirt-qemu";
    let cgroup = |part: &str| format!("3:cpuset:{own}/{part}\n1:cpu:{own}/{part}\n");
    tree.task(70, 70, "qemu-system-x86", &cgroup("emulator"), 10, 0);
    tree.task(70, 74, "CPU 0/KVM", &cgroup("vcpu0"), 900, 5);
    tree.file("1/proc/70/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=win_10,debug-threads=on\0");
    for sample in [0, 1] {
        for (part, cpus) in [("", "0-1"), ("/vcpu0", "1"), ("/emulator", "0-1")] {
            tree.file(&format!("{sample}/sys/fs/cgroup/cpuset{own}{part}/cpuset.effective_cpus"), cpus);
        }
    }
    let seen = observe(&tree);
    let [vm] = seen.vms.as_slice() else { panic!("{:?}", seen.vms) };
    assert_eq!((vm.name.as_str(), vm.vcpus.as_slice()), ("win_10", &[74][..]));
    assert_eq!(vm.group.map(|at| seen.groups[at as usize].path.as_str()), Some(own));
    let vcpu = seen.tasks.iter().find(|task| task.id.tid == 74).unwrap();
    let group = seen.group_of(vcpu).unwrap();
    assert_eq!(
        (group.path.as_str(), group.cpuset.as_ref().unwrap().to_string()),
        (&*format!("{own}/vcpu0"), "0-1".into())
    );
}

#[test]
fn a_virtual_machine_and_its_vcpus() {
    let tree = Tree::new();
    tree.host("24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    let cgroup = "0::/machine.slice/machine-qemu\\x2d1\\x2ddb.scope/libvirt/emulator\n";
    tree.task(70, 70, "qemu-system-x86", cgroup, 10, 0).task(70, 74, "CPU 0/KVM", cgroup, 900, 5);
    tree.file("1/proc/70/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=ignored\0");
    tree.task(80, 80, "qemu-system-arm", "0::/\n", 1, 0);
    tree.file("1/proc/80/cmdline", "qemu-system-arm\0-name\0pi,debug-threads=on\0");
    // A kernel thread that moves the machine's packets (vhost before Linux 6.4), and one that only looks like it.
    tree.task(95, 95, "vhost-70", "0::/\n", 3, 0).task(96, 96, "vhost-70", "0::/\n", 3, 0);
    for sample in [0, 1] {
        let path = format!("{sample}/proc/95/task/95/stat");
        let stat = std::fs::read_to_string(tree.path().join(&path)).unwrap();
        // PF_KTHREAD among the flags.
        tree.file(&path, &stat.replace(" 4194560 ", " 2129984 "));
    }
    tree.task(90, 90, "qemu-img", "0::/\n", 1, 0);
    tree.file("1/proc/90/cmdline", "qemu-img\0convert\0");
    let seen = observe(&tree);
    let names: Vec<_> = seen.vms.iter().map(|vm| (vm.name.as_str(), vm.pid, vm.vcpus.as_slice())).collect();
    assert_eq!(names, [("db", 70, &[74][..]), ("pi", 80, &[][..])]);
    let of_db = seen.tasks.iter().filter(|task| task.vm == Some(0)).map(|task| task.id.tid);
    assert_eq!(of_db.collect::<Vec<_>>(), [70, 74, 95]);
    assert!(seen.containers.is_empty());
}

/// Its weight, quota and CPU are those of the cgroup alone where nothing else is in that.
#[test]
fn a_machine_that_shares_a_cgroup_has_none_of_its_own() {
    let tree = Tree::new();
    tree.host("33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n");
    let machine = |pid: u32, name: &str, cgroup: &str| {
        tree.task(pid, pid, "qemu-system-x86", cgroup, 10, 0).task(pid, pid + 1, "CPU 0/TCG", cgroup, 900, 5);
        tree.file(&format!("1/proc/{pid}/cmdline"), &format!("qemu-system-x86_64\0-name\0guest={name}\0"));
    };
    machine(70, "alone", "1:cpu:/lab/one\n");
    machine(80, "beside", "1:cpu:/shell\n");
    machine(90, "above", "1:cpu:/tree\n");
    tree.task(60, 60, "bash", "1:cpu:/shell\n", 1, 0).task(61, 61, "sh", "1:cpu:/tree/below\n", 1, 0);
    let seen = observe(&tree);
    let path = |at: u32| seen.groups[at as usize].path.as_str();
    let groups: Vec<_> = seen.vms.iter().map(|vm| (vm.name.as_str(), vm.group.map(path))).collect();
    assert_eq!(groups, [("above", None), ("alone", Some("/lab/one")), ("beside", None)]);
}

/// On v1, where a manager makes no group for CPU, only another hierarchy tells that a task is in a container.
#[test]
fn a_container_that_shares_a_cgroup_has_none_of_its_own() {
    let tree = Tree::new();
    tree.host("33 31 0:30 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n");
    let container = |pid: u32, id: &str, cpu: &str| {
        let cgroup =
            format!("2:name=systemd:/system.slice/docker-{}.scope\n1:cpu,cpuacct:{cpu}\n", id.repeat(64));
        tree.task(pid, pid, "tenant", &cgroup, 50, 0);
    };
    container(60, "a", "/");
    container(61, "b", "/alone");
    tree.task(62, 62, "bash", "2:name=systemd:/user.slice\n1:cpu,cpuacct:/\n", 900, 0);
    let (mut observer, before, mut after) = replay(&tree.root()).unwrap();
    let ended = |path: &str| ExitedSample {
        path: Some(path.to_owned()),
        tasks: 9,
        ran_ns: 500_000_000,
        waited_ns: 0,
    };
    after.exited = vec![ended("/"), ended("/alone")];
    let seen = observer.observe(&before, &after, &Detail::All).unwrap();
    let path = |at: u32| seen.groups[at as usize].path.as_str();
    let groups: Vec<_> = seen.containers.iter().map(|one| one.group.map(path)).collect();
    assert_eq!(groups, [None, Some("/alone")]);
    // Nor has it what ended in the root group.
    let ended: Vec<_> = seen.exited.iter().map(|ended| (ended.group.map(path), ended.container)).collect();
    assert_eq!(ended, [(Some("/"), None), (Some("/alone"), Some(1))]);
}

#[test]
fn nobody_becomes_a_machine_by_its_name_alone_and_two_claimants_are_none() {
    let tree = Tree::new();
    tree.host("24 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
    let mine = |pid: u32, uid: u32, guest: &str| {
        tree.task(pid, pid, "qemu-system-x86", "0::/user.slice\n", 10, 0);
        let status = format!("Name:\tqemu\nTgid:\t{pid}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n");
        tree.file(&format!("1/proc/{pid}/task/{pid}/status"), &status);
        tree.file(&format!("1/proc/{pid}/cmdline"), &format!("qemu-system-x86_64\0-name\0guest={guest}\0"));
    };
    mine(70, 1000, "db");
    mine(71, 0, "web");
    mine(72, 0, "twice");
    mine(73, 0, "twice");
    let (mut observer, before, after) = replay(&tree.root()).unwrap();
    let seen = observer.observe(&before, &after, &Detail::None).unwrap();
    let names: Vec<_> = seen.vms.iter().map(|vm| (vm.name.as_str(), vm.pid)).collect();
    assert_eq!(names, [("web", 71)]);
    assert!(seen.tasks.iter().all(|task| task.vm.is_none() || task.id.tgid == 71));
    let note = observer.take_note().unwrap();
    assert!(note.contains("72 and 73") && note.contains("\"twice\""), "{note}");
    observer.observe(&before, &after, &Detail::None).unwrap();
    assert_eq!(observer.take_note(), None, "said once");
}

#[test]
fn a_number_used_again_is_a_new_task() {
    let tree = kubepods();
    // 50 ended and its number was given to another: another start time, smaller counters.
    let stat = std::fs::read_to_string(tree.path().join("1/proc/50/task/50/stat")).unwrap();
    tree.file("1/proc/50/task/50/stat", &stat.replace(" 1000 ", " 10050 "))
        .file("1/proc/50/task/50/schedstat", "2000000 0 1\n");
    let seen = observe(&tree);
    let task = seen.tasks.iter().find(|task| task.id.tgid == 50).unwrap();
    assert_eq!((task.id.start_time, task.cpu_pct), (10_050, 0.2));
}

#[test]
fn counters_that_ran_backwards_give_no_rate() {
    let tree = kubepods();
    tree.file("1/proc/50/task/50/schedstat", "2000000 0 1\n");
    let seen = observe(&tree);
    assert!(seen.tasks.iter().all(|task| task.id.tgid != 50));
}

#[test]
fn malformed_task_files_leave_the_task_out_and_nothing_else() {
    let tree = kubepods();
    for sample in [0, 1] {
        tree.file(&format!("{sample}/proc/50/task/50/stat"), "50 (sshd S 1\n");
    }
    tree.file("1/proc/41/task/43/schedstat", "much\n");
    let seen = observe(&tree);
    assert_eq!(seen.tasks.iter().map(|task| task.id.tid).collect::<Vec<_>>(), [41]);
    tree.file("1/proc/stat", "cpu0 x\n");
    let error = replay(&tree.root()).unwrap_err().to_string();
    assert!(error.contains("1/proc/stat:1:"), "{error}");
}

#[test]
fn a_kernel_whose_schedstat_does_not_count_gives_ticks_and_unknown_waits() {
    let tree = kubepods();
    for sample in [0, 1] {
        tree.file(&format!("{sample}/proc/self/schedstat"), "0 0 0\n");
        let path = format!("{sample}/proc/41/task/41/stat");
        let stat = std::fs::read_to_string(tree.path().join(&path)).unwrap();
        tree.file(
            &path,
            &stat.replace(" 1 0 0 0 0 0 0 0 20", &format!(" 1 0 0 0 {} 5 0 0 20", 7 + 10 * sample)),
        );
    }
    let seen = observe(&tree);
    assert_eq!((seen.tasks[0].cpu_pct, seen.tasks[0].wait_pct), (10.0, None));
}

#[test]
fn trees_that_are_no_hosts_are_refused() {
    let error = Observer::new(&Tree::new().root(), ObserverOptions::default()).unwrap_err().to_string();
    assert!(error.contains("evenkeel capture"), "{error}");
    let tree = Tree::new();
    tree.file("proc/stat", "cpu 1 1 1 1\n");
    let error = replay(&tree.root()).unwrap_err().to_string();
    assert!(error.contains("rates need two"), "{error}");
}

#[test]
fn a_host_captured_with_containers_is_seen_as_it_was() {
    let seen = observe(&Tree::fixture("this-host"));
    assert_eq!(seen.topology.online.to_string(), "0-1");
    assert_eq!(seen.host.steal_pct.map(|pct| pct >= 0.0), Some(true));
    let names: Vec<_> =
        seen.containers.iter().map(|c| (c.name.as_str(), c.runtime.as_str(), c.confirmed)).collect();
    assert_eq!(names, [("captured-tenant", "docker", true)]);
    let group = &seen.groups[seen.containers[0].group.unwrap() as usize];
    assert_eq!((group.raw_weight, group.quota.unwrap().pct()), (Some(300), Some(25.0)));
    assert!(group.throttled_pct.unwrap() > 10.0 && group.cpu_pct.unwrap() < 30.0, "{group:?}");
    let task = seen.tasks.iter().find(|task| task.container.is_some() && task.cpu_pct > 15.0).unwrap();
    let sched = task.sched.unwrap();
    assert_eq!(
        (sched.policy, sched.slice_ns, task.affinity.as_ref().unwrap().len()),
        (SchedPolicy::Other, None, 1)
    );
}
