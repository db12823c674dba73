use super::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;

/// A host in memory that may refuse writes.
#[derive(Debug, Default, Clone)]
struct Fake {
    values: Arc<Mutex<HashMap<HostKnob, String>>>,
    fail_after: Arc<Mutex<Option<u32>>>,
}

impl Host for Fake {
    fn read(&mut self, knob: &HostKnob) -> Result<String, HostError> {
        self.values.lock().unwrap().get(knob).cloned().ok_or_else(|| HostError::Gone(knob.to_string()))
    }
    fn write(&mut self, knob: &HostKnob, value: &str) -> Result<(), HostError> {
        if let Some(left) = self.fail_after.lock().unwrap().as_mut() {
            if *left == 0 {
                return Err(HostError::Denied(knob.to_string()));
            }
            *left -= 1;
        }
        self.values.lock().unwrap().insert(knob.clone(), value.to_owned());
        Ok(())
    }
    fn identity(&mut self, _: &HostKnob) -> Result<u64, HostError> {
        Ok(7)
    }
    fn boot(&mut self) -> String {
        "boot".into()
    }
}

/// A journal in memory that outlives its actuator.
#[derive(Debug, Default, Clone)]
struct Memory(Arc<Mutex<Option<Vec<u8>>>>);

impl Medium for Memory {
    fn load(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        Ok(self.0.lock().unwrap().clone())
    }
    fn replace(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        *self.0.lock().unwrap() = Some(bytes.to_vec());
        Ok(())
    }
    fn append(&mut self, _: &[u8]) -> std::io::Result<()> {
        unreachable!("not used")
    }
    fn set_aside(&mut self) -> std::io::Result<PathBuf> {
        unreachable!("not used")
    }
    fn remove(&mut self) -> std::io::Result<()> {
        *self.0.lock().unwrap() = None;
        Ok(())
    }
    fn name(&self) -> PathBuf {
        "memory".into()
    }
}

fn rps(queue: u32) -> HostKnob {
    HostKnob::RpsCpus { link: "eth0".into(), queue }
}

fn host(queues: u32) -> Fake {
    let fake = Fake::default();
    for queue in 0..queues {
        fake.values.lock().unwrap().insert(rps(queue), String::new());
    }
    fake
}

fn actuator(fake: &Fake, memory: &Memory) -> HostActuator<Fake> {
    HostActuator::on(fake.clone(), Box::new(memory.clone())).unwrap()
}

#[test]
fn a_killed_process_is_cleaned_up_after_and_a_users_setting_stays() {
    let (fake, memory) = (host(2), Memory::default());
    actuator(&fake, &memory).set(rps(0), "0-1").unwrap();
    // Dropped, not closed: as after a kill. The next one knows, and changes it further.
    let mut next = actuator(&fake, &memory);
    next.set(rps(0), "1").unwrap();
    assert_eq!(next.touched().collect::<Vec<_>>(), [(&rps(0), "", "1")]);
    drop(next);
    let report = actuator(&fake, &memory).restore_all();
    assert_eq!(report.items[0].outcome, HostOutcome::PutBack);
    assert_eq!(fake.values.lock().unwrap()[&rps(0)], "");
    assert!(memory.0.lock().unwrap().is_none(), "the journal is removed");
}

#[test]
fn somebody_elses_value_is_left_alone() {
    let (fake, memory) = (host(1), Memory::default());
    let mut a = actuator(&fake, &memory);
    a.set(rps(0), "0").unwrap();
    fake.values.lock().unwrap().insert(rps(0), "5".into());
    assert!(matches!(a.set(rps(0), "1"), Err(HostError::Refused(_))));
    let report = a.close();
    assert_eq!(report.items[0].outcome, HostOutcome::Conflict);
    assert!(!report.is_clean() && report.problems().next().unwrap().contains("somebody else made it 5"));
    assert_eq!(fake.values.lock().unwrap()[&rps(0)], "5");
}

#[test]
fn a_refused_write_leaves_nothing_to_undo_and_a_refused_undo_is_kept() {
    let (fake, memory) = (host(1), Memory::default());
    *fake.fail_after.lock().unwrap() = Some(0);
    let mut a = actuator(&fake, &memory);
    assert!(matches!(a.set(rps(0), "0"), Err(HostError::Denied(_))));
    assert_eq!(a.touched().count(), 0);
    *fake.fail_after.lock().unwrap() = Some(1);
    a.set(rps(0), "0").unwrap();
    assert_eq!(a.restore_all().items[0].outcome, HostOutcome::Failed);
    drop(a);
    *fake.fail_after.lock().unwrap() = None;
    assert!(actuator(&fake, &memory).close().is_clean());
    assert_eq!(fake.values.lock().unwrap()[&rps(0)], "");
}

#[test]
fn values_are_brought_to_one_form_or_refused() {
    assert_eq!(rps(0).normal(" 0-1,3\n").unwrap(), "0-1,3");
    assert_eq!(HostKnob::SockFlowEntries.normal("30000").unwrap(), "32768");
    assert_eq!(HostKnob::SockFlowEntries.normal("0").unwrap(), "0");
    assert!(HostKnob::SockFlowEntries.normal("-1").is_err());
    assert!(HostKnob::IrqAffinity { irq: 1 }.normal("").is_err());
    let qdisc = |link: &str| HostKnob::RootQdisc { link: link.into() };
    assert!(qdisc("eth0").normal("htb ee01:").is_ok() && qdisc("eth0").normal("htb 1:").is_err());
    assert!(qdisc("../x").normal("default").is_err());
    assert!(qdisc("eth0").cannot_be_put_back("htb 1:").unwrap().contains("left alone"));
}

#[test]
fn files_are_read_and_written_in_the_kernels_form() {
    let dir = tempfile::tempdir().unwrap();
    let queue = dir.path().join("sys/class/net/eth0/queues/rx-0");
    std::fs::create_dir_all(&queue).unwrap();
    std::fs::write(queue.join("rps_cpus"), "00000000,00000003\n").unwrap();
    std::fs::write(dir.path().join("sys/class/net/eth0/ifindex"), "2\n").unwrap();
    let mut files = Files::at(dir.path());
    assert_eq!(files.read(&rps(0)).unwrap(), "0-1");
    files.write(&rps(0), "33").unwrap();
    assert_eq!(std::fs::read_to_string(queue.join("rps_cpus")).unwrap().lines().next(), Some("2,00000000"));
    assert_eq!(files.identity(&rps(0)), Ok(2));
    assert_eq!(files.queues("eth0").unwrap(), (vec![0], vec![]));
    let none = HostKnob::RpsCpus { link: "eth9".into(), queue: 0 };
    assert!(matches!(files.identity(&none), Err(HostError::Gone(_))));
    assert!(matches!(files.queues("eth9"), Err(HostError::Gone(_))));
    assert_eq!(files.links(), ["eth0"]);
}

proptest! {
    /// Whatever is set in whatever order, with a process dying in between: everything is as found afterwards.
    #[test]
    fn everything_goes_back(sets in proptest::collection::vec((0u32..4, 0u32..3, any::<bool>()), 0..20)) {
        let (fake, memory) = (host(4), Memory::default());
        let before = fake.values.lock().unwrap().clone();
        let mut a = actuator(&fake, &memory);
        for (queue, cpu, dies) in sets {
            a.set(rps(queue), &cpu.to_string()).unwrap();
            if dies {
                a = actuator(&fake, &memory);
            }
        }
        prop_assert!(a.close().is_clean());
        prop_assert_eq!(&*fake.values.lock().unwrap(), &before);
    }
}
