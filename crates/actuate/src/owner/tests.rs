use std::sync::{Arc, Mutex};

use super::*;
use evenkeel_base::{CpuQuota, CpuSet};

type Calls = Arc<Mutex<Vec<String>>>;

struct Recorder {
    calls: Calls,
    fail: bool,
}

impl Run for Recorder {
    fn has(&self, _program: &str) -> bool {
        true
    }

    fn run(&self, program: &str, args: &[String]) -> Result<(), String> {
        self.calls.lock().unwrap().push(format!("{program} {}", args.join(" ")));
        if self.fail { Err("no such container".to_owned()) } else { Ok(()) }
    }

    fn keeps(&self, unit: &str, property: &str) -> bool {
        unit.starts_with("kept") && property != "AllowedCPUs"
    }
}

fn owners(fail: bool) -> (Owners, Calls) {
    let calls = Calls::default();
    (Owners::find(Box::new(Recorder { calls: calls.clone(), fail })), calls)
}

fn group(path: &str, v2: bool) -> GroupRef {
    GroupRef { path: path.into(), v2 }
}

#[test]
fn each_owner_is_asked_in_its_own_words() {
    let id = "0123456789abcdef".repeat(4);
    let (plain, scope) = (format!("/docker/{id}"), format!("/system.slice/docker-{id}.scope"));
    let quota =
        Setting::Quota(CpuQuota { quota_usec: Limit::Value(12_345), period_usec: 50_000, burst_usec: 0 });
    let cases = [
        (&plain, false, Setting::Weight(512), format!("docker update --cpu-shares 512 {id}")),
        (&scope, true, quota.clone(), format!("docker update --cpu-period 50000 --cpu-quota 12345 {id}")),
        (
            &plain,
            false,
            Setting::Quota(CpuQuota::UNLIMITED),
            format!("docker update --cpu-period 100000 --cpu-quota -1 {id}"),
        ),
        (
            &plain,
            true,
            Setting::Cpuset("0,2".parse().unwrap()),
            format!("docker update --cpuset-cpus 0,2 {id}"),
        ),
    ];
    for (path, v2, to, expected) in cases {
        let (owners, calls) = owners(false);
        assert_eq!(owners.write(&group(path, v2), &to), Some(Ok(())));
        assert_eq!(*calls.lock().unwrap(), [expected]);
    }
    let unit = "/system.slice/web.service";
    let cases = [
        (true, Setting::Weight(50), "CPUWeight=50"),
        (true, Setting::Weight(100), "CPUWeight="),
        (false, Setting::Weight(1024), "CPUShares="),
        (true, quota, "CPUQuota=24.69% CPUQuotaPeriodSec=50000us"),
        (true, Setting::Quota(CpuQuota::UNLIMITED), "CPUQuota= CPUQuotaPeriodSec="),
        (true, Setting::GroupIdle(true), "CPUWeight=idle"),
    ];
    for (v2, to, expected) in cases {
        let (owners, calls) = owners(false);
        assert_eq!(owners.write(&group(unit, v2), &to), Some(Ok(())));
        let expected = format!("systemctl set-property --runtime -- web.service {expected}");
        assert_eq!(*calls.lock().unwrap(), [expected]);
    }
}

#[test]
fn libvirt_is_asked_for_its_machines_before_systemd() {
    let (owners, calls) = owners(false);
    let machine = group("/machine.slice/machine-qemu\\x2d3\\x2dweb.scope", true);
    assert_eq!(owners.write(&machine, &Setting::Weight(200)), Some(Ok(())));
    // What libvirt has no word for is its scope's.
    assert_eq!(owners.write(&machine, &Setting::Quota(CpuQuota::UNLIMITED)), Some(Ok(())));
    let cpu = "1".parse().unwrap();
    assert_eq!(owners.pin("/machine/qemu-3-web.libvirt-qemu/vcpu0", &cpu), Some(Ok(())));
    assert_eq!(owners.pin("/machine/qemu-3-web.libvirt-qemu/emulator", &cpu), None);
    let scope = "machine-qemu\\x2d3\\x2dweb.scope";
    assert_eq!(
        *calls.lock().unwrap(),
        [
            "virsh schedinfo 3 --live --set cpu_shares=200".to_owned(),
            format!("systemctl set-property --runtime -- {scope} CPUQuota= CPUQuotaPeriodSec="),
            "virsh vcpupin 3 --vcpu 0 --cpulist 1 --live".to_owned(),
        ]
    );
}

#[test]
fn libvirt_is_asked_on_this_host_alone() {
    for uri in ["qemu:///system", "qemu+unix:///system?socket=/run/x"] {
        assert!(is_of_this_host(uri), "{uri}");
    }
    for uri in
        ["qemu+ssh://root@other/system", "qemu://other/system", "test:///default", "qemu:///session", ""]
    {
        assert!(!is_of_this_host(uri), "{uri}");
    }
}

#[test]
fn what_nobody_owns_or_can_express_is_left_to_the_files() {
    let (owners, calls) = owners(false);
    let id = "0123456789abcdef".repeat(4);
    let of_user = format!("/user.slice/user@1000.service/user.slice/docker-{id}.scope");
    assert_eq!(owners.write(&group(&of_user, true), &Setting::Quota(CpuQuota::UNLIMITED)), None);
    for path in
        ["/a", "/docker/short", "/user.slice/user@1000.service/app.slice", "/docker", "/x.slice/-.slice"]
    {
        assert_eq!(owners.write(&group(path, true), &Setting::Weight(5)), None, "{path}");
    }
    assert_eq!(owners.write(&group(&format!("/docker/{id}"), true), &Setting::Weight(5)), None);
    // A container's own systemd has it; this host's may have another of that name.
    let inner = format!("/docker/{id}/system.slice/nginx.service");
    assert_eq!(owners.write(&group(&inner, true), &Setting::Weight(5)), None);
    assert_eq!(owners.write(&group("/a.service", false), &Setting::RtRuntime(5)), None);
    assert!(calls.lock().unwrap().is_empty());
    assert!(owners.remembers(&group(&format!("/docker/{id}"), true), Knob::Quota));
    assert!(!owners.remembers(&group("/a.service", true), Knob::Quota));
}

#[test]
fn what_an_owner_keeps_for_the_next_cgroup_of_a_name_is_known() {
    let id = "0123456789abcdef".repeat(4);
    let (owners, _) = owners(false);
    let quota = Setting::Quota(CpuQuota::UNLIMITED);
    let settings = [Setting::Weight(5), Setting::GroupIdle(true), quota, Setting::Cpuset(CpuSet::new())];
    for (path, v2, kept) in [
        (format!("/system.slice/docker-{id}.scope"), true, vec![Knob::Quota, Knob::Cpuset]),
        ("/kept.slice/kept.service".to_owned(), true, vec![Knob::Weight, Knob::GroupIdle, Knob::Quota]),
        ("/kept.slice".to_owned(), false, vec![Knob::Weight, Knob::Quota]),
        ("/kept.scope".to_owned(), true, vec![]),
        ("/other.service".to_owned(), true, vec![]),
        ("/user.slice/user@1000.service/kept.service".to_owned(), true, vec![]),
    ] {
        for setting in &settings {
            let knob = setting.knob();
            assert_eq!(owners.keeps(&group(&path, v2), knob), kept.contains(&knob), "{path}: {knob:?}");
            // A property is named for each word there is, and for no other.
            let says = unit_properties(setting, v2).is_some();
            assert_eq!(property(knob, v2).is_some(), says, "{knob:?}, v2: {v2}");
        }
    }
    assert!(!RunProgram.keeps("no-such-unit.service", "CPUWeight"));
}

#[test]
fn an_owner_that_hangs_is_not_waited_for_at_each_change() {
    let (mut owners, calls) = owners(true);
    let write = |owners: &Owners, path: &str| owners.write(&group(path, true), &Setting::Weight(5));
    // What answers in time is asked each time.
    assert!([0, 1].iter().all(|_| write(&owners, "/a.service").is_some()));
    assert_eq!(calls.lock().unwrap().len(), 2);
    owners.patience = Duration::ZERO;
    let said: Vec<_> = [0, 1, 2].iter().map(|_| write(&owners, "/a.service").unwrap()).collect();
    assert_eq!(calls.lock().unwrap().len(), 3, "{said:?}");
    assert!(said[2].as_ref().unwrap_err().contains("a moment ago"), "{said:?}");
    // Others are.
    assert!(write(&owners, "/machine.slice/machine-qemu\\x2d3\\x2dweb.scope").is_some());
    assert_eq!(calls.lock().unwrap().len(), 4);
    // Who hangs as well does not make it heard again.
    write(&owners, "/a.service");
    assert_eq!(calls.lock().unwrap().len(), 4);
    owners.silent.borrow_mut().values_mut().for_each(|since| *since -= SILENCE);
    write(&owners, "/a.service");
    assert_eq!(calls.lock().unwrap().len(), 5, "after a while it is asked again");
}

#[test]
fn an_owner_that_was_not_reached_has_not_refused() {
    for (why, is_answer) in [
        ("docker: Error response from daemon: No such container: feed (exit status: 1)", true),
        ("docker: Cannot connect to the Docker daemon (exit status: 1)", false),
        ("systemctl: Failed to set unit properties: Unit a.service not found. (exit status: 1)", true),
        ("systemctl: Failed to set unit properties: Connection timed out (exit status: 1)", false),
        ("systemctl: Failed to connect to bus: No such file or directory (exit status: 1)", false),
        ("systemctl: Failed to set unit properties: Connection reset by peer (exit status: 1)", false),
        ("systemctl: Failed to set unit properties: Remote peer disconnected (exit status: 1)", false),
        ("systemctl:  (signal: 9 (SIGKILL))", false),
        ("systemctl: Resource temporarily unavailable (os error 11)", false),
        ("systemctl: no answer within 10 s", false),
        ("systemctl: not asked, for it did not answer a moment ago", false),
    ] {
        assert_eq!(is_owners_answer(why), is_answer, "{why}");
    }
}

#[test]
fn an_owner_that_refuses_is_heard() {
    let (owners, _) = owners(true);
    let refused = owners.write(&group("/a.service", true), &Setting::Weight(5));
    assert_eq!(refused, Some(Err("no such container".to_owned())));
    let said = RunProgram.run("sh", &["-c".into(), "echo why >&2; exit 3".into()]).unwrap_err();
    assert!(said.contains("why") && said.contains('3'), "{said}");
    assert!(RunProgram.run("/nonexistent/program", &[]).is_err());
}

#[test]
fn neither_who_is_left_behind_nor_what_is_no_utf8_hides_why_a_program_failed() {
    let began = Instant::now();
    for script in ["sleep 8 & exit 3", "sleep 8 & echo why >&2; exit 3", r"printf 'why\377' >&2; exit 3"] {
        let said = RunProgram.run("sh", &["-c".into(), script.into()]).unwrap_err();
        assert!(said.contains("why") == script.contains("why") && said.contains('3'), "{script}: {said}");
    }
    assert!(began.elapsed() < Duration::from_secs(6), "{:?}", began.elapsed());
}
