//! The commands of a fix: through the interface of whoever owns the group (systemd, Docker, Kubernetes), else the
//! kernel's file.

use evenkeel_base::{CpuSet, Observation, unit_of_path};

use super::Input;

/// Periods of a quota that need no correction, microseconds: runtime is handed to CPUs in slices of 5 ms
/// (`kernel.sched_cfs_bandwidth_slice_us`) and counted at the tick, 1 to 10 ms apart, so shorter ones are kept badly;
/// after its quota a group stands still until the period ends, so longer ones are felt.
pub const SENSIBLE_PERIODS_USEC: std::ops::RangeInclusive<u64> = 10_000..=500_000;

/// `word`, quoted for a POSIX shell where it has to be.
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// Who changes a group's limits.
enum Owner {
    Docker(String),
    Podman(String),
    Pod { namespace: String, pod: String, container: String },
    Unit(String),
    File { directory: String, v2: bool },
}

/// The beginning of the command that sets a property of the unit a path is, asked of the manager that has it: units below
/// `user@UID.service` are a user's, and the system's manager knows none of that name, or another one.
fn set_property(path: &str) -> Option<String> {
    let found = unit_of_path(path)?;
    let unit = quote(found.unit);
    Some(match found.user {
        Some(uid) => {
            format!("systemctl --user --machine={} set-property {unit}", quote(&format!("{uid}@.host")))
        }
        None => format!("systemctl set-property {unit}"),
    })
}

fn owner(input: &Input<'_>, group: u32) -> Owner {
    let observation = input.observation;
    if let Some(container) = observation.containers.iter().find(|c| c.group == Some(group) && !c.is_sandbox())
    {
        if let Some(pod) = container.pod.and_then(|i| observation.pods.get(i as usize)) {
            if let Some(namespace) = &pod.namespace {
                return Owner::Pod {
                    namespace: quote(namespace),
                    pod: quote(&pod.name),
                    container: container.name.clone(),
                };
            }
        } else if container.runtime == "docker" {
            return Owner::Docker(quote(&container.name));
        } else if container.runtime == "podman" {
            return Owner::Podman(quote(&container.name));
        }
    }
    // A scope's or slice's unit name is the directory's; systemd escapes it the same way.
    let path = observation.groups.get(group as usize).map_or("/", |view| &*view.path);
    if let Some(command) = set_property(path) {
        return Owner::Unit(command);
    }
    let (directory, v2) = directory(input, group);
    Owner::File { directory, v2 }
}

/// A group's directory in the hierarchy of the cpu controller, and whether that is v2.
fn directory(input: &Input<'_>, group: u32) -> (String, bool) {
    let (path, v2) =
        input.observation.groups.get(group as usize).map_or(("/", true), |view| (&*view.path, view.v2));
    let mount = match &input.facts.mounts.cpu {
        Some(mount) => mount.path.trim_end_matches('/'),
        None if v2 => "/sys/fs/cgroup",
        None => "/sys/fs/cgroup/cpu",
    };
    (format!("{mount}{}", path.trim_end_matches('/')), v2)
}

/// Limits a group to `pct` percent of one CPU. The period stays as it is if it is a sensible one, else it becomes
/// 100 ms. Ancestors limited to less are raised first: v1 refuses a child above its parent, v2 ignores it.
pub fn set_quota(input: &Input<'_>, group: u32, pct: f64) -> String {
    let groups = &input.observation.groups;
    let mut commands: Vec<String> = super::view::ancestors(groups, group)
        .skip(1)
        .filter(|&above| {
            let quota = groups.get(above as usize).and_then(|view| view.quota);
            quota.and_then(|quota| quota.pct()).is_some_and(|limit| limit < pct)
        })
        .map(|above| set_own_quota(input, above, pct))
        .collect();
    commands.reverse();
    commands.push(set_own_quota(input, group, pct));
    commands.join("\n")
}

fn set_own_quota(input: &Input<'_>, group: u32, pct: f64) -> String {
    const DEFAULT_PERIOD_USEC: u64 = 100_000;
    let pct = pct.clamp(1.0, 1e7).ceil();
    let now = input.observation.groups.get(group as usize).and_then(|view| view.quota);
    let kept = now.map(|quota| quota.period_usec).filter(|period| SENSIBLE_PERIODS_USEC.contains(period));
    let period = kept.unwrap_or(DEFAULT_PERIOD_USEC);
    let usec = (pct / 100.0 * period as f64).round() as u64;
    match owner(input, group) {
        // Which of the two it was made with is in Docker's record only, and Docker refuses the other.
        Owner::Docker(name) => format!(
            "docker update --cpu-period {period} --cpu-quota {usec} {name}   # made with --cpus: docker update --cpus {} {name}",
            pct / 100.0
        ),
        Owner::Podman(name) => format!("podman update --cpu-period {period} --cpu-quota {usec} {name}"),
        Owner::Pod { namespace, pod, container } => pod_resize(
            &namespace,
            &pod,
            &format!(
                r#"{{"spec":{{"containers":[{{"name":"{container}","resources":{{"limits":{{"cpu":"{}m"}}}}}}]}}}}"#,
                (pct * 10.0) as u64
            ),
        ),
        Owner::Unit(unit) => {
            format!("{unit} CPUQuota={pct}% CPUQuotaPeriodSec={}ms", period / 1000)
        }
        Owner::File { directory, v2: true } => {
            format!("echo '{usec} {period}' > {}", quote(&format!("{directory}/cpu.max")))
        }
        Owner::File { directory, v2: false } => {
            let quota = quote(&format!("{directory}/cpu.cfs_quota_us"));
            if kept.is_some() {
                return format!("echo {usec} > {quota}");
            }
            // The quota is lifted first: with the old quota and the new period the group could be above its parent
            // for a moment, which the kernel refuses.
            let file = quote(&format!("{directory}/cpu.cfs_period_us"));
            format!("echo -1 > {quota}; echo {period} > {file}; echo {usec} > {quota}")
        }
    }
}

/// Lets a group save up to one quota of unused time for a burst (Linux 5.14 and later).
pub fn set_burst(input: &Input<'_>, group: u32, usec: u64) -> String {
    let (directory, v2) = directory(input, group);
    let note = match owner(input, group) {
        Owner::File { .. } => "",
        _ => "   # its manager has no setting for this",
    };
    let file = if v2 { "cpu.max.burst" } else { "cpu.cfs_burst_us" };
    format!("echo {usec} > {}{note}", quote(&format!("{directory}/{file}")))
}

/// Gives a group a weight: `load_weight` is the scheduler's (1024 the default).
pub fn set_weight(input: &Input<'_>, group: u32, load_weight: f64) -> String {
    let shares = load_weight.round().clamp(2.0, 262_144.0) as u64;
    let weight = (load_weight * 100.0 / 1024.0).round().clamp(1.0, 10_000.0) as u64;
    match owner(input, group) {
        Owner::Docker(name) => format!("docker update --cpu-shares {shares} {name}"),
        Owner::Podman(name) => format!("podman update --cpu-shares {shares} {name}"),
        Owner::Pod { namespace, pod, container } => pod_resize(
            &namespace,
            &pod,
            &format!(
                r#"{{"spec":{{"containers":[{{"name":"{container}","resources":{{"requests":{{"cpu":"{}m"}}}}}}]}}}}"#,
                (load_weight * 1000.0 / 1024.0).round().max(1.0) as u64
            ),
        ),
        Owner::Unit(unit) => format!("{unit} CPUWeight={weight}"),
        Owner::File { directory, v2: true } => {
            format!("echo {weight} > {}", quote(&format!("{directory}/cpu.weight")))
        }
        Owner::File { directory, v2: false } => {
            format!("echo {shares} > {}", quote(&format!("{directory}/cpu.shares")))
        }
    }
}

fn pod_resize(namespace: &str, pod: &str, patch: &str) -> String {
    format!(
        "# lasting: in the pod's template; at once (Kubernetes 1.33 and later):\n\
         kubectl -n {namespace} patch pod {pod} --subresource resize --patch {}",
        quote(patch)
    )
}

/// Gives the cpuset group at `path` other CPUs.
pub fn set_cpuset(input: &Input<'_>, path: &str, cpus: &CpuSet) -> String {
    set_cpuset_file(input, path, "cpuset.cpus", "AllowedCPUs", "--cpuset-cpus", cpus)
}

/// Gives the cpuset group at `path` other memory nodes.
pub fn set_mems(input: &Input<'_>, path: &str, nodes: &CpuSet) -> String {
    set_cpuset_file(input, path, "cpuset.mems", "AllowedMemoryNodes", "--cpuset-mems", nodes)
}

fn set_cpuset_file(
    input: &Input<'_>,
    path: &str,
    file: &str,
    property: &str,
    option: &str,
    set: &CpuSet,
) -> String {
    let observation = input.observation;
    if let Some(name) = docker_name(observation, path) {
        return format!("docker update {option}={set} {}", quote(name));
    }
    // systemd manages cpusets on v2 only.
    let v2 = input.facts.mounts.cpuset.as_ref().is_none_or(|mount| mount.v2);
    if let Some(command) = set_property(path).filter(|_| v2) {
        return format!("{command} {property}={set}");
    }
    let mount =
        input.facts.mounts.cpuset.as_ref().map_or("/sys/fs/cgroup/cpuset", |mount| mount.path.as_str());
    let file = format!("{}{}/{file}", mount.trim_end_matches('/'), path.trim_end_matches('/'));
    format!("echo {set} > {}", quote(&file))
}

/// The container whose own group this is. What is in it, another container perhaps, has limits of its own.
fn docker_name<'a>(observation: &'a Observation, path: &str) -> Option<&'a str> {
    let own = path.rsplit('/').next()?;
    let container = observation
        .containers
        .iter()
        .find(|c| c.runtime == "docker" && c.pod.is_none() && c.id.len() >= 12 && own.contains(&c.id));
    container.map(|c| c.name.as_str())
}

/// Isolates these CPUs, and only these, from the next boot on; `more` stands after it, such as ` nohz_full=2-3`.
///
/// In front of what is there: of two different `isolcpus=` or `nohz_full=` the kernel takes the first and refuses the second
/// (`housekeeping_setup` in its `kernel/sched/isolation.c`). grubby replaces what has the same name.
pub fn boot_isolated(cpus: &CpuSet, more: &str) -> String {
    if cpus.is_empty() {
        return boot_without_isolation();
    }
    let parameters = format!("isolcpus=managed_irq,domain,{cpus}{more}");
    format!(
        "# Debian, Ubuntu:\n\
         echo 'GRUB_CMDLINE_LINUX=\"{parameters} $GRUB_CMDLINE_LINUX\"' > /etc/default/grub.d/zz-cpu.cfg && update-grub && reboot\n\
         # Fedora, RHEL, SUSE:\n\
         grubby --update-kernel=ALL --args='{parameters}' && reboot"
    )
}

/// Isolates no CPU from the next boot on.
pub fn boot_without_isolation() -> String {
    "# Debian, Ubuntu: take isolcpus= out of /etc/default/grub and /etc/default/grub.d, then\n\
     update-grub && reboot\n\
     # Fedora, RHEL, SUSE:\n\
     grubby --update-kernel=ALL --remove-args=isolcpus && reboot"
        .to_owned()
}

#[cfg(test)]
mod tests {
    use evenkeel_base::Observation;

    use super::{docker_name, quote, set_property, set_quota};
    use crate::testing::World;

    #[test]
    fn a_limit_of_either_kind_is_one_docker_takes() {
        let mut world = World::v2(4);
        let group = world.group("/docker/web", 100);
        world.container("web", "docker", group);
        let fix = set_quota(&world.input(), group, 150.0);
        assert_eq!(
            fix,
            "docker update --cpu-period 100000 --cpu-quota 150000 web   # made with --cpus: docker update --cpus 1.5 web"
        );
    }

    #[test]
    fn what_is_in_a_container_is_not_the_container() {
        let mut world = World::v2(4);
        let group = world.group("/docker/web", 100);
        world.container("web", "docker", group);
        let observation: &Observation = &world.observation;
        let own = format!("/docker/{}", observation.containers[0].id);
        assert_eq!(docker_name(observation, &own), Some("web"));
        assert_eq!(docker_name(observation, &format!("{own}/init")), None);
    }

    #[test]
    fn a_users_unit_is_asked_of_its_own_manager() {
        let command = |path| set_property(path).unwrap_or_default();
        assert_eq!(command("/system.slice/web.service"), "systemctl set-property web.service");
        let user = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(command(user), "systemctl set-property user@1000.service");
        assert_eq!(
            command(&format!("{user}/app.slice/web.service")),
            "systemctl --user --machine=1000@.host set-property web.service"
        );
        assert_eq!((set_property("/docker/web"), set_property("/")), (None, None));
        // The host may have a unit of that name, too.
        assert_eq!(set_property("/lxc.payload.web/system.slice/nginx.service"), None);
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quote("/sys/fs/cgroup/a-b.slice/cpu.max"), "/sys/fs/cgroup/a-b.slice/cpu.max");
        assert_eq!(quote("a b"), "'a b'");
        assert_eq!(quote("it's"), r"'it'\''s'");
        assert_eq!(quote(r"dev-disk\x2d1.device"), r"'dev-disk\x2d1.device'");
        assert_eq!(quote(""), "''");
    }
}
