//! What systemd keeps of a unit is restored, or stays in the journal, whether systemd answers or not. Needs root.

use std::sync::{Arc, Mutex};

use evenkeel_actuate::owner::Run;
use evenkeel_actuate::{Actuator, Linux, Options, restore};
use evenkeel_base::{Change, GroupRef, Plan, Setting, Target};
use evenkeel_linux::Root;
use evenkeel_linux::group::Cgroup;
use evenkeel_linux::mountinfo::Hierarchies;

type Answer = Result<(), &'static str>;

const SILENT: Answer = Err("systemctl: Failed to set unit properties: Connection timed out (exit status: 1)");
const REFUSED: Answer = Err("systemctl: Failed to set unit properties: Unknown assignment (exit status: 1)");

/// A systemd that says this to everything, and keeps what it was told.
struct Systemd(Answer, Arc<Mutex<Vec<String>>>);

impl Run for Systemd {
    fn has(&self, program: &str) -> bool {
        program == "systemctl"
    }

    fn run(&self, _program: &str, args: &[String]) -> Result<(), String> {
        self.1.lock().unwrap().push(args.join(" "));
        self.0.map_err(str::to_owned)
    }

    fn keeps(&self, _unit: &str, _property: &str) -> bool {
        true
    }
}

/// The cgroup of a unit; an empty one, which goes with this.
struct Unit(Cgroup, GroupRef);

impl Unit {
    fn new() -> Self {
        let hierarchy = Hierarchies::read(&Root::host()).unwrap().cpu.unwrap();
        let top = Cgroup::new(&hierarchy.mount_point, hierarchy.v2);
        if hierarchy.v2 {
            top.enable(&["cpu"]).unwrap();
        }
        let name = format!("evenkeel-test-{}.service", std::process::id());
        let group = Cgroup::make(top.dir(), &name, hierarchy.v2).unwrap();
        Self(group, GroupRef { path: format!("/{name}"), v2: hierarchy.v2 })
    }

    fn weight(&self) -> u64 {
        self.0.number(if self.1.v2 { "cpu.weight" } else { "cpu.shares" }).unwrap()
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(self.0.dir());
    }
}

#[test]
fn what_systemd_could_not_be_told_stays_in_the_journal_until_it_can_be() {
    // The second: a run may also have written what it had found.
    for (is_running, again) in [(true, false), (true, true), (false, false)] {
        let (unit, dir, calls) =
            (Unit::new(), tempfile::tempdir().unwrap(), Arc::<Mutex<Vec<String>>>::default());
        let kernel = |answer| Linux::with_programs(Box::new(Systemd(answer, calls.clone()))).unwrap();
        let restored = |answer| restore(dir.path(), kernel(answer)).unwrap().report;
        let found = unit.weight();
        let set = || {
            let (mut actuator, _) = Actuator::open(kernel(Ok(())), dir.path(), Options::default()).unwrap();
            for weight in if again { vec![500, found, 500] } else { vec![500] } {
                let change = Change {
                    target: Target::Group(unit.1.clone()),
                    to: Setting::Weight(weight),
                    why: String::new(),
                };
                let plan = Plan { changes: vec![change], ..Plan::default() };
                assert_eq!(actuator.set(&plan, &|_| true).applied(), 1);
            }
        };
        set();
        if !is_running {
            std::fs::remove_dir(unit.0.dir()).unwrap();
        }
        let report = restored(SILENT);
        assert_eq!((report.failed.len(), report.gone.len()), (1, 0), "{report:?}");
        assert!(report.failed[0].note.as_deref().unwrap().starts_with("not told to systemd"), "{report:?}");
        assert!(dir.path().join("journal").exists());
        if is_running {
            assert_eq!(unit.weight(), found, "the file is written meanwhile");
        }
        let before = calls.lock().unwrap().len();
        let report = restored(Ok(()));
        assert_eq!((report.failed.len(), calls.lock().unwrap().len()), (0, before + 1), "{report:?}");
        assert!(!dir.path().join("journal").exists());

        // What systemd itself refuses it does not keep either.
        if is_running {
            set();
            let report = restored(REFUSED);
            assert_eq!((report.put_back.len(), unit.weight()), (1, found), "{report:?}");
        }
    }
}
