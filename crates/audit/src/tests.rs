//! The audit as a whole: the list of rules, sums, ignores, and that nothing panics whatever the host looks like.

use std::collections::BTreeSet;

use evenkeel_base::facts::{CpusetGroup, KernelParams, TaskMemory};
use evenkeel_base::{CpuSet, Known, PodView, SchedPolicy, Topology, VmView};
use proptest::prelude::*;

use super::testing::{TaskExt, World};
use super::*;

#[test]
fn names_are_unique_and_in_kebab_case() {
    let names: BTreeSet<_> = RULES.iter().map(|rule| rule.name).collect();
    assert_eq!(names.len(), RULES.len());
    for rule in RULES {
        assert!(rule.name.chars().all(|c| c.is_ascii_lowercase() || c == '-'), "{}", rule.name);
        assert!(!rule.about.is_empty() && !rule.about.ends_with('.'), "{}", rule.name);
    }
}

#[test]
fn every_rule_is_documented() {
    let page = include_str!("../../../docs/check.md");
    for rule in RULES {
        assert!(page.contains(&format!("| `{}` |", rule.name)), "{} is missing in docs/check.md", rule.name);
    }
}

/// What a run at work has set is no finding: its fix would fight the run.
#[test]
fn what_a_run_of_evenkeel_set_is_ignored_with_its_reason() {
    let mut world = World::new(1);
    let (light, _) = (world.group("/batch", 2), world.group("/web", 1024));
    world.task("x", 1.0).wait(90.0).in_group(light);
    let found = |world: &World| {
        let report = audit(&world.input());
        let finding =
            report.findings.into_iter().find(|f| f.rule == "weights-spread" && f.status == Status::Fail);
        finding.unwrap().ignored
    };
    assert_eq!(found(&world), None);
    let set = |group: &str, knob: &str| ChangeRecord {
        group: Some(group.into()),
        knob: knob.into(),
        to: "weight 2".into(),
        why: "it yields".into(),
        ..ChangeRecord::default()
    };
    world.expectations.set_by_run = vec![set("/web", "weight"), set("/batch", "quota")];
    assert_eq!(found(&world), None, "another cgroup, another property");
    world.expectations.set_by_run.push(set("/batch", "weight"));
    assert_eq!(found(&world).unwrap(), "`evenkeel run` is at work and set weight 2: it yields");
}

#[test]
fn a_host_without_faults_passes_everything() {
    let mut world = World::new(4);
    world.task("web", 30.0);
    let report = audit(&world.input());
    assert_eq!(report.summary.fail + report.summary.unknown, 0, "{report:#?}");
    assert!(report.summary.pass >= RULES.len());
    assert!(!report.failed());
}

#[test]
fn each_of_many_subjects_can_be_ignored() {
    let many = |ignore: &str| {
        let mut world = World::v2(2);
        for n in 0..MAX_SUBJECTS as u32 + 3 {
            let group = world.group(&format!("/batch-{n:02}"), 100);
            world.quota(group, 500, 1000, Some((0, 9)));
        }
        audit(&world.expect(ignore).input())
    };
    assert!(many("").failed());
    let report = many("[[ignore]]\nrule = 'quota-period'\nsubject = 'cgroup /batch-*'\nreason = 'known'");
    assert!(!report.failed(), "{:#?}", report.summary);
    // One that is not, in a place beyond those that are shown.
    let ignores: String = (0..MAX_SUBJECTS + 2)
        .map(|n| {
            format!("[[ignore]]\nrule = 'quota-period'\nsubject = 'cgroup /batch-{n:02}'\nreason = 'known'\n")
        })
        .collect();
    let report = many(&ignores);
    let failed: Vec<_> = report.findings.iter().filter(|f| f.counts()).map(|f| f.subject.as_str()).collect();
    assert_eq!(failed, [format!("cgroup /batch-{}", MAX_SUBJECTS + 2)]);
    assert!(report.stale_ignores.is_empty(), "{:?}", report.stale_ignores);
}

#[test]
fn ignored_findings_do_not_count_and_stale_entries_are_named() {
    let mut world = World::new(4).isolated("2-3");
    world.irq(25, "eth0", "0-3", Some("3"), &[(3, 1)]);
    assert!(audit(&world.input()).failed());
    let world = world.expect(
        "[[ignore]]\nrule = 'isolated-irq'\nsubject = 'irq 25 *'\nreason = 'admin port'\n\
         [[ignore]]\nrule = 'steal'\nreason = 'old'",
    );
    let report = audit(&world.input());
    assert!(!report.failed());
    assert_eq!(report.summary.ignored, 1);
    assert_eq!(report.stale_ignores, ["steal (old)"]);
}

#[test]
fn many_subjects_are_summed_up() {
    let mut world = World::new(4).isolated("2-3");
    for irq in 0..100 {
        world.irq(irq, "eth0", "0-3", Some("3"), &[(3, 1)]);
    }
    let findings = world.run("isolated-irq");
    assert_eq!(findings.len(), MAX_SUBJECTS + 1);
    assert_eq!(findings[MAX_SUBJECTS].subject, "90 more");
}

#[test]
fn a_failed_finding_has_evidence_consequence_and_fix() {
    let mut world = World::numa(2, 2).isolated("3").cmdline("nohz_full=1");
    world.topology().nohz_full = "1".parse().unwrap();
    world.irq(25, "eth0", "0-3", Some("3"), &[(3, 1)]);
    world.task("stray", 90.0).cpu(3).affinity("0-3");
    world.pressure(90.0, 90.0);
    let report = audit(&world.input());
    assert!(report.summary.fail >= 4);
    for finding in report.findings.iter().filter(|f| f.status == Status::Fail) {
        assert!(!finding.evidence.is_empty(), "{finding:?}");
        assert!(finding.consequence.as_ref().is_some_and(|text| !text.is_empty()), "{finding:?}");
        assert!(finding.fix.as_ref().is_some_and(|text| !text.is_empty()), "{finding:?}");
    }
}

prop_compose! {
    fn cpu_set()(bits in any::<u16>()) -> CpuSet {
        (0..16).filter(|bit| bits & (1 << bit) != 0).collect()
    }
}

fn percent() -> impl Strategy<Value = f64> {
    prop_oneof![Just(0.0), Just(f64::NAN), Just(f64::INFINITY), Just(-5.0), 0.0..120.0, Just(1e300)]
}

fn maybe<T: Clone + std::fmt::Debug + 'static>(value: T) -> impl Strategy<Value = Known<T>> {
    prop_oneof![Just(Known::Value(value)), Just(Known::Unknown("x: denied".to_owned()))]
}

prop_compose! {
    /// A host whose parts contradict each other freely: sets beyond the CPUs, indices beyond the lists, parents
    /// that are children, percentages that are no numbers.
    fn any_world()(
        (nodes, cores, threads) in (1u32..3, 1u32..4, 1u32..3),
        sets in prop::collection::vec(cpu_set(), 8),
        tasks in prop::collection::vec(
            (percent(), prop::option::of(percent()), prop::option::of(cpu_set()), prop::option::of(0u32..20),
             prop::option::of(0u32..12), 0u32..8, -20i32..20, any::<bool>()), 0..12),
        groups in prop::collection::vec(
            (prop::option::of(0u32..12), prop::option::of(any::<u64>()), prop::option::of(any::<u64>()),
             prop::option::of((any::<u64>(), any::<u64>())), prop::option::of((any::<u64>(), any::<u64>())),
             prop::option::of(percent()), prop::option::of(cpu_set()), any::<bool>()), 0..8),
        irqs in prop::collection::vec((any::<u32>(), cpu_set(), prop::option::of(cpu_set()), any::<u64>()), 0..4),
        owners in prop::collection::vec((0u32..12, prop::option::of(0u32..12)), 0..4),
        facts in (
            prop::collection::vec(0usize..5, 0..4), percent(), percent(), any::<bool>(), "\\PC{0,40}",
            prop::collection::vec((0u32..4, any::<u64>()), 0..4)),
        known in (maybe(true), maybe(Some(950_000u64)), maybe(Some("scx".to_owned())), 0u8..64),
        steal in prop::option::of(percent()),
        policy in 0usize..3,
    ) -> World {
        let mut world = World::with(Topology::synthetic(nodes, 1, cores, threads));
        let topology = world.topology();
        topology.isolated = sets[0].clone();
        topology.nohz_full = sets[1].clone();
        topology.rcu_nocbs = sets[2].clone();
        topology.online = sets[3].clone();
        topology.nodes[0].cpus = sets[4].clone();
        for (parent, load, raw, quota, periods, pct, cpuset, v2) in groups {
            let group = world.group("/g/any.slice", 100);
            let view = &mut world.observation.groups[group as usize];
            (view.parent, view.load_weight, view.raw_weight, view.v2) = (parent, load, raw, v2);
            (view.throttled_periods, view.cpu_pct, view.throttled_pct, view.cpuset) = (periods, pct, pct, cpuset);
            view.quota = quota.map(|(quota, period)| evenkeel_base::CpuQuota {
                quota_usec: evenkeel_base::Limit::Value(quota), period_usec: period, burst_usec: 0,
            });
        }
        for (pct, wait, affinity, cpu, group, policy, nice, kernel) in tasks {
            let task = world.task("any", pct).nice(nice);
            (task.wait_pct, task.affinity, task.cpu, task.group) = (wait, affinity, cpu, group);
            task.kernel_thread = kernel;
            (task.container, task.pod, task.vm) = (group, cpu, group);
            match SchedPolicy::from_raw(policy) {
                Some(SchedPolicy::Other) => {}
                Some(policy) => { task.policy(policy); }
                None => { task.no_sched(); }
            }
        }
        for (index, (group, pod)) in owners.into_iter().enumerate() {
            world.container("it's", if index % 2 == 0 { "docker" } else { "containerd" }, group);
            world.observation.containers[index].pod = pod;
            world.observation.pods.push(PodView {
                uid: String::new(), namespace: pod.map(|n| n.to_string()), name: "p".into(),
                annotations: vec![], group: pod,
            });
            world.observation.vms.push(VmView { name: "vm".into(), pid: 1, vcpus: vec![], group: pod });
        }
        for (irq, affinity, effective, count) in irqs {
            world.irq(irq, "", "", None, &[(1, count), (2, count)]);
            if let Known::Value(irqs) = &mut world.facts.irqs {
                let last = irqs.last_mut().unwrap();
                last.affinity = Known::Value(affinity);
                last.effective = effective.map_or_else(|| World::denied("x"), Known::Value);
            }
        }
        let (governors, avg10, avg60, autogroup, release, memory) = facts;
        let names: Vec<&str> =
            governors.iter().map(|&i| ["performance", "powersave", "schedutil", "", "other"][i]).collect();
        world.governors(&names, names.first().copied());
        world.pressure(avg10, avg60);
        world.facts.autogroup = Known::Value(autogroup);
        world.autogroup(100, 1).autogroup(101, 2);
        world.facts.release = Known::Value(release.clone());
        world.facts.cmdline = Known::Value(KernelParams {
            text: release.clone(), params: vec![("nohz_full".into(), None), (release, None)],
        });
        world.facts.memory = Known::Value(vec![
            TaskMemory { tgid: 100, bytes_by_node: Known::Value(memory) },
            TaskMemory { tgid: 101, bytes_by_node: World::denied("x") },
        ]);
        world.facts.cpusets = Known::Value(vec![CpusetGroup {
            path: "/a b".into(), cpus: sets[5].clone(), effective: Some(sets[6].clone()), mems: sets[7].clone(),
            effective_mems: None, memory_migrate: Some(autogroup), partition: None,
        }]);
        let (numa, rt, ext, hidden) = known;
        (world.facts.numa_balancing, world.facts.rt_runtime_usec, world.facts.sched_ext) = (numa, rt, ext);
        if hidden & 1 != 0 { world.facts.irqs = World::denied("x"); }
        if hidden & 2 != 0 { world.facts.cmdline = World::denied("x"); }
        if hidden & 4 != 0 { world.facts.mounts = Default::default(); }
        if hidden & 8 != 0 { world.facts.cpusets = World::denied("x"); }
        if hidden & 16 != 0 { world.facts.autogroups = World::denied("x"); }
        if hidden & 32 != 0 { world.observation.groups.clear(); }
        world.observation.host.steal_pct = steal;
        match policy {
            0 => world,
            1 => world.expect("isolated = '1,9'\nhousekeeping = 40\n[[numa]]\nname='x'\nservices=['comm:a','vm:vm']"),
            _ => world.expect("[[given]]\ncpus='0-5'\nto=['pod:1/p','container:it']\n[[numa]]\nname='x'\nnode=1\nservices=['cgroup:/g']"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn no_host_makes_a_rule_panic_and_every_rule_answers(world in any_world()) {
        let report = audit(&world.input());
        let answered: BTreeSet<_> = report.findings.iter().map(|f| f.rule.as_str()).collect();
        for rule in RULES {
            prop_assert!(answered.contains(rule.name), "{} said nothing", rule.name);
        }
        for finding in &report.findings {
            prop_assert_eq!(finding.fix.is_some(), finding.status == Status::Fail);
            prop_assert!(!finding.evidence.is_empty());
        }
        let s = report.summary;
        prop_assert_eq!(s.pass + s.fail + s.unknown + s.ignored, report.findings.len());
    }
}
