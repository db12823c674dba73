//! The ceiling on the real kernel: real-time for a while, then everything as before.

mod common;

use std::fs;
use std::time::Duration;

use common::binary;
use evenkeel_lab::ceiling::Ceiling;
use evenkeel_lab::tenant::{Layout, Member, Tenants};
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

/// What must be as before: cgroups, and of `sched`-related fields of stat: priority, nice, rt_priority, policy.
fn state(member: &Member) -> (String, Vec<String>) {
    let dir = format!("/proc/{}/task/{}", member.pid, member.tid);
    let groups = fs::read_to_string(format!("{dir}/cgroup")).unwrap();
    let stat = fs::read_to_string(format!("{dir}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (groups, [15, 16, 37, 38].map(|i| fields[i].to_owned()).to_vec())
}

#[test]
fn members_are_realtime_while_it_lasts_and_as_before_afterwards() {
    let duty =
        Duty { percent: 3.0, period: Duration::from_millis(20), jitter: 0.0, kind: DutyKind::Wall, seed: 1 };
    for place in [Layout::Process, Layout::OneCgroup, Layout::CgroupEach] {
        let specs = vec![LoadSpec::new(Kind::Duty(duty.clone())); 2];
        let tenants = Tenants::spawn(&binary(), &specs, place).unwrap();
        // A nice value of its own must survive.
        // SAFETY: takes numbers only.
        unsafe { libc::setpriority(libc::PRIO_PROCESS, tenants.members[0].tid, 5) };
        let before: Vec<_> = tenants.members.iter().map(state).collect();
        assert_eq!((before[0].1[1].as_str(), before[0].1[3].as_str()), ("5", "0"));
        let mut members = tenants.members.clone();
        members.push(Member { pid: 1, tid: 1, start_time: 1, ..members[0].clone() });
        let ceiling = Ceiling::raise(&members).unwrap();
        assert_eq!(ceiling.len(), 2, "a stranger with a member's pid was raised");
        for member in &tenants.members {
            let (_, sched) = state(member);
            assert_eq!((sched[2].as_str(), sched[3].as_str()), ("1", "1"), "{place:?}");
        }
        drop(ceiling);
        assert_eq!(tenants.members.iter().map(state).collect::<Vec<_>>(), before, "{place:?}");
    }
}
