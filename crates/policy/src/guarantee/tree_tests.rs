use super::*;
use evenkeel_base::{GroupView, SchedAttr, TaskId, Topology};
use proptest::prelude::*;

fn group(path: &str, parent: Option<u32>, cpu_pct: f64) -> GroupView {
    GroupView {
        load_weight: Some(1024),
        raw_weight: parent.map(|_| 1024),
        cpu_pct: Some(cpu_pct),
        ..GroupView::of(path, parent, false)
    }
}

fn task(tid: u32, group: u32, cpu_pct: f64) -> TaskView {
    TaskView {
        sched: Some(SchedAttr::DEFAULT),
        group: Some(group),
        cpu_pct,
        wait_pct: Some(0.0),
        ..TaskView::of(TaskId { tgid: tid, tid, start_time: 1 }, "t")
    }
}

fn world(groups: Vec<GroupView>, tasks: Vec<TaskView>) -> Observation {
    Observation { tasks, groups, ..Observation::of(Topology::synthetic(1, 1, 2, 1)) }
}

/// `/` -> `/docker` -> a, b, c; `/system` next to it; a task in the root.
fn docker() -> Observation {
    world(
        vec![
            group("/", None, 200.0),
            group("/docker", Some(0), 150.0),
            group("/docker/a", Some(1), 50.0),
            group("/docker/b", Some(1), 50.0),
            group("/docker/c", Some(1), 50.0),
            group("/system", Some(0), 50.0),
        ],
        vec![
            task(1, 0, 0.0),
            task(2, 2, 25.0),
            task(3, 2, 25.0),
            task(4, 3, 50.0),
            task(5, 4, 50.0),
            task(6, 5, 50.0),
        ],
    )
}

fn found_weight(observation: &Observation, entity: SchedEntity) -> f64 {
    match entity {
        SchedEntity::Group(group) => observation.groups[group as usize].load_weight.unwrap() as f64,
        SchedEntity::Task(task) => weight_of(&observation.tasks[task]),
    }
}

/// Contests in which everything may be changed and nobody lends.
fn in_scope_alone(observation: &Observation, carriers: &[EntityShare]) -> Vec<Siblings> {
    let ground = Ground {
        found: &|entity| found_weight(observation, entity),
        reach: &|_| Reach::Own,
        raises: &|_| true,
        lends: &|_| false,
    };
    contests(observation, carriers, &ground)
}

fn capacity_of(siblings: &Siblings, carriers: &[EntityShare], cpus: &[CpuSet], supply: &[(u32, f64)]) -> f64 {
    let points: f64 = siblings.children.iter().map(|child| child.points).sum();
    points + slack_pct(siblings, carriers, cpus, supply)
}

/// A promise to /docker/a on two CPUs.
fn solved_for(host: &Observation, promised: f64, lends: &dyn Fn(u32) -> bool) -> Vec<Solved> {
    let found = carriers(host, &[None, Some(0), Some(0), None, None, None], &demand(host), &[promised]);
    let ground = Ground {
        found: &|entity| found_weight(host, entity),
        reach: &|_| Reach::Own,
        raises: &|_| true,
        lends,
    };
    let contests = contests(host, &found, &ground);
    solve(&|b| heaviest(host, b), &contests, &found, &|_| 200.0, &[1.0], &mut |_, s| s)
}

fn demand(observation: &Observation) -> impl Fn(usize) -> f64 {
    let pct: Vec<f64> = observation.tasks.iter().map(|t| t.cpu_pct).collect();
    move |i| pct[i]
}

#[test]
fn a_container_of_its_own_is_carried_by_its_group() {
    let host = docker();
    let owner = [None, Some(0), Some(0), Some(1), None, None];
    let found = carriers(&host, &owner, &demand(&host), &[40.0, 50.0]);
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].entity, found[0].points, &found[0].tasks),
        (SchedEntity::Group(2), 40.0, &vec![1, 2])
    );
    let contests = in_scope_alone(&host, &found);
    assert_eq!(contests.len(), 2);
    let (root, docker) = (&contests[0], &contests[1]);
    assert_eq!(
        (root.node, root.children[0].entity, root.children[0].points),
        (Some(0), SchedEntity::Group(1), 90.0)
    );
    // /system and one for newcomers; the root's task sleeps.
    assert_eq!((root.competitors, docker.competitors), (2048.0, 2048.0));
    // On one CPU 10 points are left: half of them for c.
    let cpus = vec![CpuSet::single(0); 2];
    let capacity = |siblings: &Siblings| capacity_of(siblings, &found, &cpus, &[(0, 100.0), (1, 100.0)]);
    let solved = solve(&|b| heaviest(&host, b), &contests, &found, &capacity, &[1.0, 1.0], &mut |_, s| s);
    let docker_gets = solved[0].weights[0].1 / (solved[0].weights[0].1 + 2048.0);
    assert!((docker_gets - 0.95).abs() < 1e-9);
    let [a, b] = [solved[1].weights[0].1, solved[1].weights[1].1];
    assert!((docker_gets * a / (a + b + 2048.0) - 0.40).abs() < 1e-9);
    assert!((docker_gets * b / (a + b + 2048.0) - 0.50).abs() < 1e-9);
}

#[test]
fn what_is_enough_as_found_is_left_as_it_is() {
    let host = docker();
    // On two CPUs /docker has a third of 200, and each container a quarter of that at least: 15 need no help.
    let solved = solved_for(&host, 15.0, &|_| false);
    assert!(solved.iter().all(|s| s.weights.iter().all(|(_, weight)| *weight == 1024.0)), "{solved:?}");
    assert!(solved.iter().all(|s| s.outside_pct.0 == s.outside_pct.1));
    // 40 have room in /docker's 67: only a's own weight grows, and /system does not notice.
    let solved = solved_for(&host, 40.0, &|_| false);
    assert_eq!(solved[0].weights, [(SchedEntity::Group(1), 1024.0)]);
    assert!(solved[1].weights[0].1 > 1024.0 && solved[0].outside_pct.0 == solved[0].outside_pct.1);
    // 90 have not: /docker's weight grows, by what it takes to win 90 and a tenth, and it is reported what is left.
    let solved = solved_for(&host, 90.0, &|_| false);
    let won = 200.0 * solved[0].weights[0].1 / (solved[0].weights[0].1 + 2048.0);
    assert!((won - 99.0).abs() < 1e-6, "{won}");
    let (before, after) = solved[0].outside_pct;
    assert!((before - 400.0 / 3.0).abs() < 1e-6 && (after - 101.0).abs() < 1e-6, "{before} {after}");
}

#[test]
fn siblings_of_the_scope_give_way_before_anybody_else_does() {
    let host = docker();
    // b and c are the scope's: a is given from what they had, and whoever comes next in /docker loses nothing.
    let solved = solved_for(&host, 30.0, &|group| group == 3 || group == 4);
    let weights: f64 = solved[1].weights.iter().map(|(_, weight)| weight).sum();
    assert!((weights - 3.0 * 1024.0).abs() < 1e-6, "{solved:?}");
    assert_eq!(solved[1].outside_pct.0, solved[1].outside_pct.1);
    assert!(solved[1].weights[1].1 < 1024.0 && solved[1].weights[1].1 == solved[1].weights[2].1);
    // More than that they keep.
    let solved = solved_for(&host, 60.0, &|group| group == 3 || group == 4);
    assert_eq!(solved[1].weights[1].1, 256.0);
    assert!(solved[1].outside_pct.0 > solved[1].outside_pct.1);
}

#[test]
fn what_is_outside_is_left_alone_and_an_ancestor_moves_for_the_configuration_only() {
    let host = docker();
    let found = carriers(&host, &[None, Some(0), Some(0), None, None, None], &demand(&host), &[90.0]);
    let solved = |reach: Reach, raises: bool| {
        let ground = Ground {
            found: &|entity| found_weight(&host, entity),
            reach: &|group| if group == 2 { Reach::Own } else { reach },
            raises: &|_| raises,
            lends: &|_| false,
        };
        let contests = contests(&host, &found, &ground);
        let solved = solve(&|b| heaviest(&host, b), &contests, &found, &|_| 200.0, &[1.3], &mut |_, s| s);
        solved[0].weights[0].1
    };
    assert_eq!(solved(Reach::Outside, true), 1024.0);
    assert_eq!(solved(Reach::Ancestor, false), 1024.0, "a label");
    assert!(solved(Reach::Ancestor, true) > 1024.0);
}

#[test]
fn all_of_a_pod_is_carried_by_the_pod_and_a_mixed_group_by_its_tasks() {
    let host = docker();
    let all = carriers(&host, &[None, Some(0), Some(0), Some(0), Some(0), None], &demand(&host), &[90.0]);
    assert_eq!(all.iter().map(|c| c.entity).collect::<Vec<_>>(), [SchedEntity::Group(1)]);
    let mixed = carriers(&host, &[None, Some(0), None, None, None, None], &demand(&host), &[90.0]);
    assert_eq!(mixed[0].entity, SchedEntity::Task(1));
    let nodes: Vec<_> = in_scope_alone(&host, &mixed).iter().map(|c| c.node).collect();
    assert_eq!(nodes, [Some(0), Some(1), Some(2)], "its group has to win along the whole path");
}

#[test]
fn the_busy_carrier_of_a_promise_gets_nearly_all_of_it() {
    let host = docker();
    // a and c, with b of somebody else between.
    let found = carriers(
        &host,
        &[None, Some(0), Some(0), None, Some(0), None],
        &|i| if i == 4 { 50.0 } else { 0.0 },
        &[40.0],
    );
    let points: Vec<f64> = found.iter().map(|c| c.points).collect();
    assert!((points.iter().sum::<f64>() - 40.0).abs() < 1e-9);
    assert!(points[0] == 1.0 && points[1] == 39.0, "{points:?}");
}

#[test]
fn what_exceeds_the_largest_weight_keeps_its_proportions() {
    let host = docker();
    let found =
        carriers(&host, &[None, Some(0), Some(0), Some(1), None, None], &demand(&host), &[40.0, 80.0]);
    let solved = solve(
        &|b| heaviest(&host, b),
        &in_scope_alone(&host, &found),
        &found,
        &|_| 122.0,
        &[1.0, 1.0],
        &mut |_, _| 1e6,
    );
    let given = &solved[1].weights;
    assert!(solved[1].scaled_down.is_some());
    assert_eq!(given[1].1, 262_144.0);
    assert!((given[1].1 / given[0].1 - 2.0).abs() < 1e-9);
    assert_eq!(raw_weight(&host.groups[2], given[1].1), 262_144);
    let v2 = GroupView { v2: true, ..host.groups[2].clone() };
    assert_eq!(
        (raw_weight(&v2, 1024.0), raw_weight(&v2, 1e12), raw_weight(&v2, f64::NAN)),
        (100, 10_000, 100)
    );
}

proptest! {
    /// On one CPU, with everybody wanting everything, each carrier gets its points through the whole tree, unless the
    /// largest weight stands in the way.
    #[test]
    fn promises_hold_against_everybody_on_every_level(
        parents in proptest::collection::vec(0usize..6, 1..12),
        owners in proptest::collection::vec(proptest::option::weighted(0.5, 0usize..3), 1..20),
        places in proptest::collection::vec(0usize..12, 20),
        promised in proptest::collection::vec(1.0f64..30.0, 3),
    ) {
        let mut groups = vec![group("/", None, 100.0)];
        for (n, parent) in parents.iter().enumerate() {
            groups.push(group(&format!("/{n}"), Some((*parent % (n + 1)) as u32), 50.0));
        }
        let tasks: Vec<TaskView> = (0..owners.len())
            .map(|n| task(n as u32 + 2, (places[n] % groups.len()) as u32, 10.0))
            .collect();
        let host = world(groups, tasks);
        let found = carriers(&host, &owners, &demand(&host), &promised);
        let cpus = vec![CpuSet::single(0); found.len()];
        let supply = [(0, 100.0)];
        let gain = vec![1.0; found.len()];
        let contests = in_scope_alone(&host, &found);
        let capacity = |siblings: &Siblings| capacity_of(siblings, &found, &cpus, &supply);
        let solved = solve(&|b| heaviest(&host, b), &contests, &found, &capacity, &gain, &mut |_, s| s);
        // Walk down: what each entity gets of the CPU.
        let mut got: BTreeMap<SchedEntity, f64> = BTreeMap::new();
        let (mut limited, mut tight) = (false, false);
        for (siblings, solved) in contests.iter().zip(&solved) {
            let sum: f64 = solved.weights.iter().map(|(_, w)| w).sum::<f64>() + siblings.competitors;
            limited |= solved.scaled_down.is_some();
            tight |= siblings.competitors <= 1.001 * LEAST_REST * sum;
            let of = siblings.node.and_then(|node| got.get(&SchedEntity::Group(node)).copied()).unwrap_or(100.0);
            for (entity, weight) in &solved.weights {
                got.insert(*entity, of * weight / sum);
            }
        }
        for carrier in &found {
            // Where next to nothing is left for others, a level may fall short by what is reckoned with for them.
            let part = if tight { (1.0 - LEAST_REST).powi(host.groups.len() as i32) } else { 1.0 };
            let least = carrier.points * part - 1e-6;
            prop_assert!(limited || got[&carrier.entity] >= least, "{carrier:?} {got:?}");
        }
    }
}
