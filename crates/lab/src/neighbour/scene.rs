//! What a cell consists of: cgroups of service, clients and batch work, their processes, and what is read of them. All of it
//! goes when it is dropped.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_base::{CpuClaim, CpuShares, Nice, SchedAttr, SchedPolicy};
use evenkeel_linux::children::Children;
use evenkeel_linux::sys::RawSchedAttr;
use evenkeel_linux::{Root, proc_stat};
use evenkeel_workload::burn::{monotonic_ns, realtime_ns};
use evenkeel_workload::load::{LoadReport, LoadSpec, StartAt};

use super::evenkeel::Evenkeel;
use super::plan::{Arm, Point};
use super::record::Measured;
use super::service::{Server, probe};
use crate::launch::group::LabGroup;
use crate::launch::names::fresh_name;
use crate::launch::{Launch, null, start};
use crate::mounts::CgroupMounts;
use crate::net::measure::host_between;
use crate::private::PrivateDir;
use crate::runner::RunError;

/// How long whoever asks takes to come up.
const COMES_UP: Duration = Duration::from_millis(300);
/// How long it may take, once its time is up, to say what it measured.
const TELLS_WITHIN: Duration = Duration::from_secs(10);

/// The cgroups and processes of a cell.
pub(super) struct Scene<'a> {
    binary: &'a Path,
    server: Option<Server>,
    /// Dropped before the groups they are in.
    processes: Vec<Children>,
    service: LabGroup,
    /// Who asks; the built-in service asks itself.
    clients: Option<LabGroup>,
    batch: LabGroup,
    dir: PrivateDir,
    threads: u32,
}

/// Who asks over a time that is to come.
pub(super) struct Asking {
    process: Children,
    output: PathBuf,
    /// When it begins and ends, `CLOCK_MONOTONIC`.
    pub begins_ns: u64,
    pub ends_ns: u64,
}

/// Counters at an instant.
pub(super) struct Counters {
    at_ns: u64,
    service_ns: Option<u64>,
    clients_ns: Option<u64>,
    batch_ns: Option<u64>,
    host: Option<Vec<evenkeel_base::CpuTimes>>,
}

impl<'a> Scene<'a> {
    /// Makes the groups, starts service and batch work, and waits until the service answers.
    pub fn build(binary: &'a Path, point: &Point, threads: u32) -> Result<Self, RunError> {
        let mounts = CgroupMounts::find()?;
        let dir = PrivateDir::in_memory().map_err(|e| RunError::system("a directory for a cell", e))?;
        let group = || LabGroup::make(&mounts, &fresh_name());
        let files = |e| RunError::system(dir.path().display().to_string(), e);
        let server = Server::of(point.service, dir.path()).map_err(files)?;
        let (launch, server) = server.unzip();
        let clients = server.is_some().then(group).transpose()?;
        let (service, batch) = (group()?, group()?);
        let mut scene = Self { binary, server, processes: Vec::new(), service, clients, batch, dir, threads };
        if let Some(launch) = launch {
            let inside = scene.service.entrances()?;
            scene.processes.push(start(vec![Launch { messages: Some(null()?), ..launch.inside(inside) }])?);
        }
        if let Some(server) = &scene.server {
            server.until_ready().map_err(RunError::Missing)?;
        }
        scene.start_batch(point)?;
        Ok(scene)
    }

    fn start_batch(&mut self, point: &Point) -> Result<(), RunError> {
        let Some(batch) = point.batch else { return Ok(()) };
        let group = self.batch.cpu();
        match point.arm {
            Arm::CpuIdle => group.write("cpu.idle", "1")?,
            // The least that the kernel takes.
            Arm::Weight => group.set_claim(CpuClaim::Shares(CpuShares::new(0)))?,
            Arm::Alone | Arm::Default | Arm::SchedIdle | Arm::Nice | Arm::Evenkeel => {}
        }
        let fair = SchedAttr::DEFAULT;
        let sched = match point.arm {
            Arm::SchedIdle => Some(SchedAttr { policy: SchedPolicy::Idle, ..fair }),
            Arm::Nice => Some(SchedAttr { nice: Nice::new(19), ..fair }),
            _ => None,
        };
        let sched = sched.map(|attr| RawSchedAttr::encode(&attr));
        let files = |e| RunError::system(self.dir.path().display().to_string(), e);
        let launches =
            super::batch::launches(batch, point.load_pct, self.binary, self.dir.path()).map_err(files)?;
        let inside = |launch: Launch| {
            let inside = self.batch.entrances()?;
            Ok(Launch { sched, messages: Some(null()?), ..launch.inside(inside) })
        };
        let launches = launches.into_iter().map(inside).collect::<Result<Vec<_>, RunError>>()?;
        self.processes.push(start(launches)?);
        Ok(())
    }

    /// Starts those who ask, for times that follow each other, seconds each. All wait from now on, so that the service is
    /// never without a task.
    pub fn ask(&self, seconds: &[f64]) -> Result<Vec<Asking>, RunError> {
        let (now, wall) = (monotonic_ns(), realtime_ns());
        let mut from_ns = COMES_UP.as_nanos() as u64;
        let mut asking = Vec::new();
        for (index, seconds) in seconds.iter().enumerate() {
            let kind = self.server.as_ref().map_or_else(probe, Server::client);
            let mut spec = LoadSpec::new(kind).lasting(Duration::from_secs_f64(*seconds));
            spec.common.start_at = Some(StartAt(wall + from_ns));
            // A connection is enough for services; the built-in one has a thread a CPU.
            spec.common.threads = self.server.is_none().then_some(self.threads);
            let output = self.dir.path().join(format!("asked-{index}.json"));
            let file =
                File::create(&output).map_err(|e| RunError::system(output.display().to_string(), e))?;
            let arguments = ["-o", "json", "load"].map(str::to_owned).into_iter().chain(spec.arguments());
            let inside = self.clients.as_ref().unwrap_or(&self.service).entrances()?;
            let launch = Launch::new(self.binary, arguments.collect()).inside(inside);
            let process = start(vec![Launch { output: Some(file), ..launch }])?;
            let length_ns = (seconds * 1e9) as u64;
            asking.push(Asking {
                process,
                output,
                begins_ns: now + from_ns,
                ends_ns: now + from_ns + length_ns,
            });
            from_ns += length_ns;
        }
        Ok(asking)
    }

    /// Starts evenkeel for service and clients, next to the batch.
    pub fn evenkeel(&self) -> Result<Evenkeel, RunError> {
        let services: Vec<_> = [Some(&self.service), self.clients.as_ref()]
            .into_iter()
            .flatten()
            .map(LabGroup::group_ref)
            .collect();
        Evenkeel::start(self.binary, self.dir.path(), &services, &self.batch.group_ref())
    }

    pub fn counters(&self) -> Counters {
        Counters {
            at_ns: monotonic_ns(),
            service_ns: self.service.usage_ns(),
            clients_ns: self.clients.as_ref().and_then(LabGroup::usage_ns),
            batch_ns: self.batch.usage_ns(),
            host: proc_stat::read(&Root::host()).ok().map(|stat| stat.cpus),
        }
    }
}

/// Batch work may have children of its own, which outlive it; and who is killed needs CPU time to end, which an idle group may
/// not get for many seconds on a busy host.
impl Drop for Scene<'_> {
    fn drop(&mut self) {
        // Not there before Linux 5.15, where nothing was set either.
        let _ = self.batch.cpu().write("cpu.idle", "0");
        self.processes.clear();
        [&self.service, &self.batch]
            .into_iter()
            .chain(&self.clients)
            .for_each(|group| group.cpu().kill_members());
    }
}

impl Counters {
    /// What was used from then to now, without what the clients saw.
    pub fn to(&self, after: &Self) -> Measured {
        let wall_ns = after.at_ns.saturating_sub(self.at_ns).max(1) as f64;
        let pct = |from: Option<u64>, to: Option<u64>| Some(to?.checked_sub(from?)? as f64 / wall_ns * 100.0);
        let host = host_between(self.host.as_deref(), after.host.as_deref(), wall_ns);
        Measured {
            seconds: wall_ns / 1e9,
            service_pct: pct(self.service_ns, after.service_ns),
            clients_pct: pct(self.clients_ns, after.clients_ns),
            batch_pct: pct(self.batch_ns, after.batch_ns),
            host_pct: host.cpu_pct,
            steal_pct: host.steal_pct,
            ..Measured::default()
        }
    }
}

impl Asking {
    /// What those who asked saw, into what was used meanwhile.
    pub fn tell(mut self, into: &mut Measured) -> Result<(), String> {
        let until = std::time::Instant::now() + TELLS_WITHIN;
        while !self.process.finished() {
            if std::time::Instant::now() >= until {
                return Err("whoever asks the service did not end within 10 s after its time".into());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let status = self.process.ended(0).map_or_else(String::new, |status| status.to_string());
        let text = std::fs::read_to_string(&self.output).map_err(|e| e.to_string())?;
        let report: LoadReport = serde_json::from_str(&text)
            .map_err(|_| format!("whoever asks the service failed ({status}); its message is above"))?;
        let flows = report.flows.ok_or("whoever asks the service measured nothing")?;
        into.answered = flows.flows.iter().map(|flow| flow.transactions).sum();
        into.asked = into.answered + flows.unanswered();
        into.latency = flows.latency;
        Ok(())
    }
}
