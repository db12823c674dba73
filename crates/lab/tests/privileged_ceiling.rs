//! The ceiling on the real kernel: real-time for a while, then everything as before.

mod common;

use std::fs;
use std::time::Duration;

use common::binary;
use evenkeel_base::SchedPolicy;
use evenkeel_lab::ceiling::Ceiling;
use evenkeel_lab::tenant::{Layout, Member, Tenants};
use evenkeel_linux::sys::{RawSchedAttr, sched_getattr};
use evenkeel_workload::Kind;
use evenkeel_workload::duty::{Duty, DutyKind};
use evenkeel_workload::load::LoadSpec;

/// What must be as before: cgroups, and how it is scheduled.
fn state(member: &Member) -> (String, RawSchedAttr) {
    let groups = fs::read_to_string(format!("/proc/{}/task/{}/cgroup", member.pid, member.tid)).unwrap();
    (groups, sched_getattr(member.tid).unwrap())
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
        assert_eq!((before[0].1.nice, before[0].1.policy), (5, SchedPolicy::Other.raw()));
        let mut members = tenants.members.clone();
        members.push(Member { pid: 1, tid: 1, start_time: 1, ..members[0].clone() });
        let ceiling = Ceiling::raise(&members).unwrap();
        assert_eq!(ceiling.len(), 2, "a stranger with a member's pid was raised");
        for member in &tenants.members {
            let (_, sched) = state(member);
            assert_eq!((sched.priority, sched.policy), (1, SchedPolicy::Fifo.raw()), "{place:?}");
        }
        drop(ceiling);
        assert_eq!(tenants.members.iter().map(state).collect::<Vec<_>>(), before, "{place:?}");
    }
}
