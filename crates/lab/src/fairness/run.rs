//! How tenants are made and measured in a cell; the loop around the cells is [`crate::runner::bench`].

use std::path::Path;
use std::sync::atomic::AtomicBool;

use evenkeel_base::{CpuSet, CpuTimes, Topology};
use evenkeel_experiment::record::{Host, Requirement};
use evenkeel_linux::sys::usable_cpus;
use evenkeel_linux::{Root, proc_stat};

use super::plan::{Kind, Options, Point, Which};
use super::record::{Cell, CpuMeasured, TenantCpu, TenantsMeasured, TenantsRecord};
use crate::launch::group::weight_of;
use crate::net::measure::{Measured, Timing, cpu_ns, host_between, until};
use crate::net::scene::NamespaceScene;
use crate::net::tool_scene::ToolScene;
use crate::net::wiring::Nic;
use crate::runner::{Bench, Passes, Run, RunError, facts};
use crate::tenant::{Layout, Starter};
use crate::vm::VmError;
use crate::vm::machine::{Accel, VmThread};
use crate::vm::nic::{VmNic, free_functions};
use crate::vm::scene::{CpuScene, Stock, VmScene};
use evenkeel_workload::Kind as Load;
use evenkeel_workload::burn::{duration_ns, monotonic_ns};
use evenkeel_workload::load::LoadSpec;
use evenkeel_workload::spin::Spin;

/// What tenants are measured with.
pub struct Tools<'a> {
    /// Runs `load ..` and, in guests, `guest ..`: normally the running program.
    pub binary: &'a Path,
    /// Where guests' kernels are kept.
    pub cache: &'a Path,
    /// The host's topology, for the record.
    pub topology: Option<Topology>,
    /// Makes the host's table of sockets' flows (`net.core.rps_sock_flow_entries`), which RFS needs, large enough, or puts it
    /// back; through the journal of whoever runs the experiment. Why not, in words.
    pub flow_table: &'a mut dyn FnMut(bool) -> Result<(), String>,
}

/// Runs what is missing of an experiment; the record is complete unless it was stopped.
///
/// # Errors
/// See [`RunError`]. A cell that fails is recorded with its reason, and the others go on.
pub fn run(options: &Options, tools: Tools<'_>, run: &mut Run<'_>) -> Result<TenantsRecord, RunError> {
    let points = options.points().map_err(RunError::Usage)?;
    if let Some(tool) = options.traffic.tool() {
        tool.find().map_err(|error| RunError::Missing(error.to_string()))?;
    }
    crate::launch::sweep_stale();
    let passes = Passes::shuffled(&points, options.repetitions);
    let stop = run.stop;
    run.cells(&passes, &mut Tenants { options, points, tools, stop, cpus: usable_cpus(), stock: None })
}

struct Tenants<'a, 't> {
    options: &'a Options,
    points: Vec<Point>,
    tools: Tools<'t>,
    stop: &'a AtomicBool,
    /// CPUs tenants may use.
    cpus: CpuSet,
    /// What machines share, made when the first is needed.
    stock: Option<Result<Stock, String>>,
}

impl Bench for Tenants<'_, '_> {
    type Record = TenantsRecord;

    fn is_same(&self, record: &TenantsRecord) -> bool {
        record.options == *self.options
    }

    fn host(&self) -> Host {
        facts(self.tools.topology.as_ref())
    }

    fn begin(&mut self) -> TenantsRecord {
        let mut requirements = Vec::from_iter(vhost(self.options, &self.points));
        if self.points.iter().any(|point| point.rps) {
            let set = (self.tools.flow_table)(true);
            let set = set.and((self.tools.flow_table)(false));
            requirements.push(Requirement::new(
                "rfs-table",
                Some(set.is_ok()),
                match set {
                    Ok(()) => "net.core.rps_sock_flow_entries can be set, and was restored".into(),
                    Err(why) => format!("net.core.rps_sock_flow_entries: {why}"),
                },
                "without it RPS spreads flows by hash, not to the CPU of their reader (RFS)",
            ));
        }
        let host = self.host();
        TenantsRecord::begin(
            self.options.which.name(),
            host,
            self.options.clone(),
            requirements,
            self.points.clone(),
        )
    }

    fn cell(
        &mut self,
        record: &mut TenantsRecord,
        index: usize,
        repetition: u32,
        _: &mut dyn FnMut(f64),
    ) -> Result<Option<Cell>, RunError> {
        let point = self.points[index].clone();
        let cell = Cell::measure(index, repetition, self.stop, |measured| self.measure(&point, measured));
        if let Some(stock) = self.stock.as_ref().filter(|_| record.requirements.iter().all(|r| r.name != KVM))
        {
            let stock = stock.as_ref().map(|stock| (stock.accel, stock.why.as_str(), stock.kernel()));
            record.requirements.push(kvm(stock.map_err(String::as_str)));
        }
        Ok(cell)
    }
}

/// Name of the requirement of machines that do not emulate the processor.
const KVM: &str = "kvm";

/// The source's machines had vhost-net: where it is missing, qemu itself moves the packets. Nothing where none has any.
fn vhost(options: &Options, points: &[Point]) -> Option<Requirement> {
    let machines = points.iter().any(|point| point.kind.vm_nic().is_some());
    let there = Path::new("/dev/vhost-net").exists();
    (machines && options.which == Which::TenantsNet).then(|| {
        Requirement::new(
            "vhost-net",
            Some(there),
            format!("/dev/vhost-net is {}there", if there { "" } else { "not " }),
            "packets of virtual machines pass through qemu: machines are slower than with vhost-net",
        )
    })
}

/// Of what machines share: what runs them, why it is not KVM where that was tried, and their kernel.
fn kvm(stock: Result<(Accel, &str, &str), &str>) -> Requirement {
    let (met, evidence) = match stock {
        Ok((accel, why, kernel)) => {
            let tried = if why.is_empty() { String::new() } else { format!(": {why}") };
            (Some(accel == Accel::Kvm), format!("{}{tried}; guests run Linux {kernel}", accel.describe()))
        }
        Err(why) => (None, why.to_owned()),
    };
    Requirement::new(
        KVM,
        met,
        evidence,
        "guests' transactions cost many times more CPU than on real machines; ratios between equal machines still tell \
         whether they are treated equally",
    )
}

impl Tenants<'_, '_> {
    fn measure(&mut self, point: &Point, measured: &mut TenantsMeasured) -> Result<(), String> {
        if point.kind == Kind::VmVf {
            // Before an image is made, perhaps a kernel fetched, for nothing.
            free_functions(Path::new("/sys"), point.tenants + 1)?;
        }
        if point.kind.vm_nic().is_some() && self.stock.is_none() {
            let stock = Stock::prepare(self.tools.cache, self.tools.binary, self.options.accel);
            self.stock = Some(stock.map_err(|error| error.to_string()));
        }
        match self.options.which {
            Which::TenantsNet => {
                // Unset afterwards whatever happens; that it cannot be set was noted at the start.
                let set = point.rps && (self.tools.flow_table)(true).is_ok();
                let result = self.net(point, &mut measured.threads);
                if set && let Err(why) = (self.tools.flow_table)(false) {
                    tracing::warn!("net.core.rps_sock_flow_entries could not be restored: {why}");
                }
                measured.net = Some(result?);
            }
            Which::TenantsCpu => measured.cpu = Some(self.cpu(point, &mut measured.threads)?),
        }
        Ok(())
    }

    fn stock(&self) -> Result<&Stock, String> {
        match &self.stock {
            Some(stock) => stock.as_ref().map_err(Clone::clone),
            None => Err("no virtual machine was asked for".to_owned()),
        }
    }

    fn net(&self, point: &Point, threads: &mut Vec<Vec<VmThread>>) -> Result<Measured, String> {
        let Options { flows, timing, .. } = *self.options;
        let steered = point.rps.then_some(&self.cpus);
        let nic = match point.kind {
            Kind::BareMetal => Nic::None,
            Kind::Veth => Nic::Veth,
            Kind::Macvlan => Nic::Macvlan,
            Kind::Cgroup | Kind::Container => return Err("a cgroup has no network of its own".into()),
            Kind::Vm | Kind::VmMacvtap | Kind::VmVf => {
                let nic = point.kind.vm_nic().unwrap_or(VmNic::Virtio);
                let vcpus = point.vcpus.unwrap_or(1);
                let built = VmScene::build(self.stock()?, nic, point.tenants, vcpus, flows, steered);
                let scene = built.map_err(|e| e.to_string())?;
                *threads = scene.machines().iter().map(|machine| machine.threads()).collect();
                return scene.measure(timing).map_err(|e| e.to_string());
            }
        };
        let measured = match self.options.traffic.tool() {
            Some(tool) => ToolScene::build(tool, nic, point.tenants, flows, steered)
                .and_then(|scene| scene.measure(timing)),
            None => NamespaceScene::build(self.tools.binary, nic, point.tenants, flows, steered)
                .and_then(|scene| scene.measure(timing)),
        };
        measured.map_err(|e| e.to_string())
    }

    fn cpu(&self, point: &Point, vm_threads: &mut Vec<Vec<VmThread>>) -> Result<CpuMeasured, String> {
        let timing = self.options.timing;
        let threads = point.vcpus.unwrap_or(1);
        // Not the first: interrupts tend to be served there.
        let one = point.one_cpu.then(|| self.cpus.iter().last().map(CpuSet::single)).flatten();
        if point.kind.vm_nic().is_some() {
            let scene = CpuScene::build(self.stock()?, &point.weights, threads, one.as_ref())
                .map_err(|e: VmError| e.to_string())?;
            *vm_threads = scene.machines.iter().map(|machine| machine.threads()).collect();
            let tenants: Vec<_> = scene
                .machines
                .iter()
                .zip(&point.weights)
                .map(|(machine, weight)| (machine.name().to_owned(), *weight, machine.pid()))
                .collect();
            return Ok(computing(&tenants, timing, one));
        }
        let specs: Vec<LoadSpec> = (0..point.tenants)
            .map(|tenant| {
                let mut spec = LoadSpec::new(Load::Spin(Spin {})).named(format!("tenant-{tenant}"));
                spec.common.threads = Some(threads);
                spec
            })
            .collect();
        let container = point.kind == Kind::Container;
        let place = if container { Layout::ContainerEach } else { Layout::CgroupEach };
        let mut starter = Starter::new(self.tools.binary, place).weighted(point.weights.clone());
        if let Some(cpus) = &one {
            starter = starter.on_cpus(cpus.clone());
        }
        let held = starter.hold(&specs).map_err(|e| e.to_string())?;
        held.release();
        let tenants: Vec<_> = specs
            .iter()
            .enumerate()
            .filter_map(|(index, spec)| {
                let member = held.members.iter().find(|member| member.spec == index)?;
                let name = spec.common.name.clone().unwrap_or_default();
                // What the kernel was told: an engine converts weights in its own way.
                let told = member.cgroup.as_ref().and_then(weight_of).filter(|_| container);
                Some((name, told.unwrap_or(*point.weights.get(index)?), member.pid))
            })
            .collect();
        Ok(computing(&tenants, timing, one))
    }
}

/// CPU time of processes over the windows.
fn computing(tenants: &[(String, u64, u32)], timing: Timing, cpus: Option<CpuSet>) -> CpuMeasured {
    until(monotonic_ns() + duration_ns(timing.warmup));
    let host = || proc_stat::read(&Root::host()).ok().map(|stat| stat.cpus);
    let read = || (monotonic_ns(), tenants.iter().map(|(.., pid)| cpu_ns(*pid)).collect::<Vec<_>>());
    let before = host();
    let mut readings = vec![read()];
    let start = readings[0].0;
    for window in 1..=timing.windows.max(1) {
        until(start + duration_ns(timing.window) * u64::from(window));
        readings.push(read());
    }
    let after = host();
    let end = readings.last().map_or(start, |reading| reading.0);
    let pct = |from: &(u64, Vec<Option<u64>>), to: &(u64, Vec<Option<u64>>), tenant: usize| {
        let used = to.1[tenant]?.checked_sub(from.1[tenant]?)?;
        Some(used as f64 / (to.0 - from.0).max(1) as f64 * 100.0)
    };
    let wall = (end - start).max(1) as f64;
    let on_theirs = |times: &Option<Vec<CpuTimes>>| -> Option<Vec<CpuTimes>> {
        let theirs = |t: &&CpuTimes| cpus.as_ref().is_none_or(|cpus| cpus.contains(t.cpu));
        times.as_ref().map(|times| times.iter().filter(theirs).cloned().collect())
    };
    let used = host_between(on_theirs(&before).as_deref(), on_theirs(&after).as_deref(), wall).cpu_pct;
    let host = host_between(before.as_deref(), after.as_deref(), wall);
    let tenants: Vec<TenantCpu> = tenants
        .iter()
        .enumerate()
        .map(|(index, (name, weight, _))| TenantCpu {
            name: name.clone(),
            weight: *weight,
            cpu_pct: readings.last().and_then(|last| pct(&readings[0], last, index)),
            windows_pct: readings.windows(2).map(|w| pct(&w[0], &w[1], index)).collect(),
            events_per_s: None,
        })
        .collect();
    let got: Option<f64> = tenants.iter().map(|t| t.cpu_pct).sum();
    CpuMeasured {
        seconds: wall / 1e9,
        cpus,
        others_pct: used.zip(got).map(|(used, got)| (used - got).max(0.0)),
        tenants,
        per_cpu_pct: host.per_cpu_pct,
        steal_pct: host.steal_pct,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machines_that_were_to_be_emulated_do_not_have_kvm() {
        let met = |accel, why| kvm(Ok((accel, why, "6.12"))).met;
        assert_eq!(met(Accel::Kvm, ""), Some(true));
        assert_eq!((met(Accel::Tcg, "/dev/kvm: none"), met(Accel::Tcg, "")), (Some(false), Some(false)));
        assert_eq!(kvm(Err("no kernel")).met, None);
    }

    #[test]
    fn a_table_of_flows_that_could_not_be_restored_is_not_said_to_have_been() {
        let options = Options::defaults(Which::TenantsNet, true, 2);
        let points = options.points().unwrap();
        assert!(points.iter().any(|point| point.rps));
        let mut flow_table = |set| if set { Ok(()) } else { Err("read-only".to_owned()) };
        let (here, stop) = (Path::new("/"), AtomicBool::new(false));
        let tools = Tools { binary: here, cache: here, topology: None, flow_table: &mut flow_table };
        let options = &options;
        let mut bench = Tenants { options, points, tools, stop: &stop, cpus: usable_cpus(), stock: None };
        let record = bench.begin();
        let table = record.requirements.iter().find(|r| r.name == "rfs-table").unwrap();
        assert!(table.met == Some(false) && table.evidence.contains("read-only"), "{table:?}");
    }

    #[test]
    fn vhost_net_is_missed_by_machines_alone() {
        let of = |which, quick| {
            let options = Options::defaults(which, quick, 2);
            vhost(&options, &options.points().unwrap()).is_some()
        };
        // The short form has no machines; those that only compute send nothing.
        assert!(
            of(Which::TenantsNet, false) && !of(Which::TenantsNet, true) && !of(Which::TenantsCpu, false)
        );
    }
}
