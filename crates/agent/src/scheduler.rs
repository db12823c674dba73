//! Which BPF schedulers (sched_ext) may be tried on this host, and what none may do.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use evenkeel_base::{Observation, Plan};
use evenkeel_linux::Root;
use evenkeel_policy::levers::SCHEDULERS;

/// By its place in [`SCHEDULERS`], whether one may be tried; why none may be, where the user allowed them.
pub(crate) type Offer = Result<[bool; SCHEDULERS.len()], String>;

/// What can be started here, for a scope that is the whole host or is not.
pub(crate) fn offered(root: &Root, whole_host: bool) -> Offer {
    let read = |file: &str| root.read_optional(file).ok().flatten().map(|text| text.trim().to_owned());
    let state = read("sys/kernel/sched_ext/state");
    let loaded = state
        .as_deref()
        .filter(|state| *state != "disabled")
        .map(|_| read("sys/kernel/sched_ext/root/ops").unwrap_or_else(|| "of an unknown name".to_owned()));
    judge(state.is_some(), loaded.as_deref(), whole_host, SCHEDULERS.map(is_installed))
}

fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| is_program(&dir.join(program)))
}

fn is_program(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn judge(
    has_sched_ext: bool,
    loaded: Option<&str>,
    whole_host: bool,
    installed: [bool; SCHEDULERS.len()],
) -> Offer {
    let why = if !has_sched_ext {
        "this kernel has no sched_ext (Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT)".to_owned()
    } else if let Some(name) = loaded {
        format!("another program has loaded {name}, which stays in charge")
    } else if !whole_host {
        "it would decide for the whole host, which has to be the scope (all), with nothing left out but services".to_owned()
    } else if !installed.contains(&true) {
        format!("none of {} is installed (in PATH)", SCHEDULERS.join(", "))
    } else {
        return Ok(installed);
    };
    Err(format!("no BPF scheduler is tried: {why}"))
}

/// Why the scheduler that a plan has started has to go: a limit that somebody set does nothing under it.
pub(crate) fn void_limit(plan: &Plan, observation: &Observation) -> Option<String> {
    plan.scheduler()?;
    let void = observation.void_quotas().next()?;
    let path = &observation.groups.get(void.group as usize)?.path;
    Some(format!(
        "the limit of {path} does nothing under it: {:.0} % of one CPU used at a quota of {:.0} %",
        void.used_pct, void.quota_pct
    ))
}

#[cfg(test)]
mod tests {
    use evenkeel_base::{Change, CpuQuota, HostScheduler, Limit, Setting, Target};

    use super::*;
    use crate::testing;

    #[test]
    fn a_scheduler_is_offered_where_it_can_be_loaded_and_everybody_is_meant() {
        let installed = [true, false, true, false];
        assert_eq!(judge(true, None, true, installed), Ok(installed));
        for (offer, why) in [
            (judge(false, None, true, installed), "no sched_ext"),
            (judge(true, Some("lavd_1.0.2"), true, installed), "another program has loaded lavd_1.0.2"),
            (judge(true, None, false, installed), "the whole host"),
            (judge(true, None, true, [false; 4]), "none of scx_bpfland, scx_lavd"),
        ] {
            let said = offer.unwrap_err();
            assert!(said.starts_with("no BPF scheduler is tried: ") && said.contains(why), "{said}");
        }
    }

    #[test]
    fn a_limit_that_does_nothing_is_held_against_a_scheduler_and_nothing_else() {
        let mut host = testing::observation(&[("/", None), ("/limited", Some(0))]);
        host.interval_s = 0.8;
        host.groups[1].quota =
            Some(CpuQuota { quota_usec: Limit::Value(20_000), period_usec: 100_000, burst_usec: 0 });
        host.groups[1].cpu_pct = Some(90.0);
        let to = Setting::Scheduler(HostScheduler::Program("scx_lavd".into()));
        let change = Change { target: Target::Host, to, why: String::new() };
        let plan = Plan { changes: vec![change], ..Plan::default() };
        let why = void_limit(&plan, &host).unwrap();
        assert!(why.starts_with("the limit of /limited does nothing") && why.contains("90 %"), "{why}");
        assert_eq!(void_limit(&Plan::default(), &host), None);
        host.groups[1].cpu_pct = Some(25.0);
        assert_eq!(void_limit(&plan, &host), None);
    }

    #[test]
    fn what_is_loaded_is_read_from_the_kernel() {
        let dir = tempfile::tempdir().unwrap();
        let files = dir.path().join("sys/kernel/sched_ext");
        let offer = || offered(&Root::at(dir.path()), true).unwrap_err();
        assert!(offer().contains("no sched_ext"));
        evenkeel_linux::testing::lay(&files, &[("root/ops", "rusty_1.0\n")]);
        for state in ["enabled\n", "enabling\n"] {
            std::fs::write(files.join("state"), state).unwrap();
            assert!(offer().contains("has loaded rusty_1.0"), "{state}");
        }
    }
}
