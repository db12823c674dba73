//! What Docker remembers of a container is restored, or kept in the journal, whether Docker answers or not. Needs root.

use std::path::Path;
use std::sync::{Arc, Mutex};

use evenkeel_actuate::journal::{Header, Origin, Record, VERSION, encode};
use evenkeel_actuate::owner::Run;
use evenkeel_actuate::{Actuator, Kernel, KernelError, Linux, Options, Recovery, restore};
use evenkeel_base::{Change, CpuQuota, GroupRef, Limit, Plan, Setting, Target};
use evenkeel_linux::Root;
use evenkeel_linux::mountinfo::Hierarchies;
use evenkeel_linux::testing::TestCgroup;

const DOWN: &str = "docker: Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?";
const NONE: &str = "docker: Error response from daemon: No such container: feed (exit status: 1)";

const HALF: CpuQuota = CpuQuota { quota_usec: Limit::Value(50_000), ..CpuQuota::UNLIMITED };

/// A Docker that says this to everything.
struct Docker(Result<(), &'static str>, Arc<Mutex<Vec<String>>>);

impl Run for Docker {
    fn has(&self, program: &str) -> bool {
        program == "docker"
    }

    fn run(&self, _program: &str, args: &[String]) -> Result<(), String> {
        self.1.lock().unwrap().push(args.join(" "));
        self.0.map_err(str::to_owned)
    }
}

/// A container that does not run.
fn container() -> Target {
    let v2 = Hierarchies::read(&Root::host()).unwrap().cpu.unwrap().v2;
    Target::Group(GroupRef { path: format!("/docker/{}", "feed".repeat(16)), v2 })
}

/// A journal of a quota that Docker was told for it; of this boot or of an earlier one.
fn left(dir: &Path, is_of_this_boot: bool) {
    let target = container();
    let mut kernel = Linux::new().unwrap();
    let mut boot = kernel.boot_id().unwrap();
    if !is_of_this_boot {
        boot.0.push('x');
    }
    let header = Header { version: VERSION, boot, pid: 7, since: 1, namespaces: kernel.namespaces() };
    let origin = Origin { identity: 7, ..Origin::default() };
    let records = [
        Record::Header(header),
        Record::Found { target: target.clone(), original: Setting::Quota(CpuQuota::UNLIMITED), origin },
        Record::Wrote { target, to: Setting::Quota(HALF) },
    ];
    let bytes: Vec<u8> = records.iter().flat_map(encode).collect();
    std::fs::write(dir.join("journal"), bytes).unwrap();
}

#[test]
fn what_docker_could_not_be_told_stays_in_the_journal_until_it_can_be() {
    for is_of_this_boot in [true, false] {
        let dir = tempfile::tempdir().unwrap();
        let calls = Arc::<Mutex<Vec<String>>>::default();
        let asked = |answer| -> Recovery {
            let docker = Docker(answer, calls.clone());
            restore(dir.path(), Linux::with_programs(Box::new(docker)).unwrap()).unwrap()
        };
        left(dir.path(), is_of_this_boot);
        let report = asked(Err(DOWN)).report;
        let [failed] = report.failed.as_slice() else { panic!("{report:?}") };
        assert!(failed.note.as_deref().is_some_and(|note| note.contains("Cannot connect")), "{failed:?}");
        assert!(dir.path().join("journal").exists());

        assert_eq!(asked(Ok(())).report.put_back.len(), 1);
        assert!(calls.lock().unwrap().last().unwrap().contains("--cpu-quota -1"), "{calls:?}");
        assert!(!dir.path().join("journal").exists());

        // One that Docker does not know any more has nothing to remember.
        left(dir.path(), is_of_this_boot);
        assert_eq!(asked(Err(NONE)).report.gone.len(), 1);
        assert!(!dir.path().join("journal").exists());
    }
}

/// A promise is kept while Docker does not run, by the cgroup's file.
#[test]
fn a_change_does_not_wait_for_docker() {
    let docker = Docker(Err(DOWN), Arc::default());
    let mut kernel = Linux::with_programs(Box::new(docker)).unwrap();
    let to = Setting::Quota(CpuQuota::UNLIMITED);
    assert_eq!(
        kernel.write(&container(), &to),
        Err(KernelError::Gone),
        "the file was written, were there one"
    );
    let error = kernel.write_back(&container(), &to).unwrap_err().to_string();
    assert!(error.starts_with("not told to Docker: docker: Cannot connect"), "{error}");
}

/// A container that runs has its original back at once, by the cgroup's file, and Docker is told as soon as it is reached.
#[test]
fn docker_is_told_later_what_a_running_container_has_already() {
    let dir = tempfile::tempdir().unwrap();
    let parent = TestCgroup::new("docker").unwrap();
    let group = parent.child(&format!("docker-{}.scope", "feed".repeat(16))).unwrap();
    let calls = Arc::<Mutex<Vec<String>>>::default();
    let kernel = |answer| Linux::with_programs(Box::new(Docker(answer, calls.clone()))).unwrap();
    let (mut actuator, _) = Actuator::open(kernel(Ok(())), dir.path(), Options::default()).unwrap();
    let target = Target::Group(GroupRef { path: group.path().to_owned(), v2: group.is_v2() });
    let change = Change { target, to: Setting::Quota(HALF), why: String::new() };
    let plan = Plan { changes: vec![change], ..Plan::default() };
    assert_eq!(actuator.set(&plan, &|_| true).applied(), 1);
    drop(actuator);

    let report = restore(dir.path(), kernel(Err(DOWN))).unwrap().report;
    assert_eq!((report.failed.len(), group.quota()), (1, Some(CpuQuota::UNLIMITED)), "{report:?}");
    let before = calls.lock().unwrap().len();
    let report = restore(dir.path(), kernel(Ok(()))).unwrap().report;
    assert_eq!((report.already.len(), calls.lock().unwrap().len()), (1, before + 1), "{report:?}");
    assert!(calls.lock().unwrap().last().unwrap().contains("--cpu-quota -1"), "{calls:?}");
    assert!(!dir.path().join("journal").exists());
}
