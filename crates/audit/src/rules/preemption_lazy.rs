//! Databases that spin in user space keep their throughput under lazy preemption (Linux 7.0).

use evenkeel_base::facts::Unknown;

use crate::{Finding, Input, Rule, Severity};

pub(super) const RULE: Rule = Rule {
    name: "preemption-lazy",
    severity: Severity::Info,
    about: "no database with spinlocks and small pages runs under lazy preemption",
    check,
};

/// First names of programs known to hold spinlocks in user space over page faults.
const SPINS: [&str; 1] = ["postgres"];
/// From so many CPUs on the loss was seen (96 CPUs: half the throughput; few: none).
const MANY_CPUS: u32 = 16;

fn check(rule: &Rule, input: &Input<'_>) -> Result<Vec<Finding>, Unknown> {
    let tasks = &input.observation.tasks;
    let Some(task) = tasks.iter().find(|task| SPINS.iter().any(|name| task.comm.starts_with(name))) else {
        return Ok(vec![rule.pass("host", "no database known for it is here")]);
    };
    let cpus = input.observation.host.cpus;
    if cpus < MANY_CPUS {
        return Ok(vec![rule.pass("host", format!("{cpus} CPUs: too few for it to matter"))]);
    }
    let preemption = input.facts.preemption.get()?;
    if preemption != "lazy" {
        return Ok(vec![rule.pass("host", format!("{} runs, preemption is {preemption}", task.comm))]);
    }
    if *input.facts.huge_pages.get()? > 0 {
        return Ok(vec![
            rule.pass("host", format!("{} runs under lazy preemption, huge pages are there", task.comm)),
        ]);
    }
    Ok(vec![rule.fail(
        "host",
        format!("{} runs on {cpus} CPUs, preemption is lazy, vm.nr_hugepages is 0", task.comm),
        "a process may lose its CPU in a page fault while it holds a spinlock, and all others spin: half the throughput was \
         reported on 96 CPUs",
        "sysctl vm.nr_hugepages=N   # shared_buffers / 2 MB; and huge_pages = on in postgresql.conf, which fails where they lack",
    )])
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Known;

    use crate::Status;
    use crate::testing::World;

    fn world(cpus: u32, comm: &str, preemption: &str, huge_pages: u64) -> World {
        let mut world = World::new(cpus);
        world.task(comm, 20.0);
        world.facts.preemption = Known::Value(preemption.into());
        world.facts.huge_pages = Known::Value(huge_pages);
        world
    }

    #[test]
    fn a_large_database_on_small_pages_under_lazy_preemption_is_named() {
        let finding = world(32, "postgres", "lazy", 0).only("preemption-lazy");
        assert_eq!(finding.status, Status::Fail);
        assert!(finding.evidence.contains("postgres runs on 32 CPUs"), "{}", finding.evidence);
    }

    #[test]
    fn each_of_the_four_makes_it_pass() {
        for (cpus, comm, preemption, pages) in [
            (4, "postgres", "lazy", 0),
            (32, "nginx", "lazy", 0),
            (32, "postgres", "full", 0),
            (32, "postgres", "lazy", 9),
        ] {
            let status = world(cpus, comm, preemption, pages).only("preemption-lazy").status;
            assert_eq!(status, Status::Pass, "{cpus} {comm} {preemption} {pages}");
        }
    }

    #[test]
    fn an_unread_model_is_unknown() {
        let mut world = world(32, "postgres", "lazy", 0);
        world.facts.preemption = World::denied("/sys/kernel/debug/sched/preempt");
        assert_eq!(world.only("preemption-lazy").status, Status::Unknown);
    }
}
