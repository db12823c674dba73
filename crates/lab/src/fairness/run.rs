//! Running the experiments, cell by cell; what was done is on disk after each, and is not done again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use evenkeel_base::CpuSet;
use evenkeel_experiment::record::{Host, RecordError, Requirement};
use evenkeel_kernfs::{Root, proc_stat};

use super::plan::{Kind, Options, Point, Which, order};
use super::record::{Cell, CpuMeasured, SCHEMA, TenantCpu, TenantsRecord};
use crate::burn::{duration_ns, monotonic_ns, sleep_until};
use crate::load::LoadSpec;
use crate::net::measure::{Timing, cpu_ns};
use crate::net::scene::NamespaceScene;
use crate::net::tool_scene::ToolScene;
use crate::net::wiring::Nic;
use crate::tenant::cgroup::weight_of;
use crate::tenant::{Place, Starter};
use crate::vm::VmError;
use crate::vm::nic::{VmNic, free_functions};
use crate::vm::scene::{CpuScene, Stock, VmScene};
use crate::workload::Kind as Load;
use crate::workload::spin::Spin;

/// Why an experiment could not be run or gone on with.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The options make no sense.
    #[error("{0}")]
    Options(String),
    /// This host lacks what was asked for; the message says how to get it.
    #[error("{0}")]
    Missing(String),
    /// The result folder.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// The folder holds results of something else.
    #[error("{folder}: holds results of {found}; name another folder")]
    Other {
        /// The folder.
        folder: PathBuf,
        /// What is there.
        found: String,
    },
}

/// The host's table of sockets' flows (`net.core.rps_sock_flow_entries`), which RFS needs: set through the journal by
/// whoever runs the experiment.
pub trait FlowTable {
    /// Makes it large enough, or puts it back.
    ///
    /// # Errors
    /// Why not, in words.
    fn set(&mut self, on: bool) -> Result<(), String>;
}

/// Leaves the table as it is.
#[derive(Debug, Default)]
pub struct NoFlowTable;

impl FlowTable for NoFlowTable {
    fn set(&mut self, _: bool) -> Result<(), String> {
        Err("not set in this run".into())
    }
}

/// What an experiment runs with.
pub struct Bench<'a> {
    /// Runs `load ..` and, in guests, `guest ..`: normally the running program.
    pub binary: &'a Path,
    /// Where guests' kernels are kept.
    pub cache: &'a Path,
    /// Online CPUs.
    pub cpus: CpuSet,
    /// The host, for the record.
    pub host: Host,
    /// Set to end after the present cell.
    pub stop: &'a AtomicBool,
    /// The host's table of flows.
    pub table: &'a mut dyn FlowTable,
    /// Told before each cell: cells done, cells in all, what comes.
    pub progress: &'a mut dyn FnMut(usize, usize, &Point),
}

/// Runs what is missing of an experiment into a folder and returns the record; complete unless it was stopped.
///
/// # Errors
/// See [`RunError`]. A cell that fails is recorded with its reason, and the others go on.
pub fn run(options: &Options, folder: &Path, bench: &mut Bench<'_>) -> Result<TenantsRecord, RunError> {
    let points = options.points().map_err(RunError::Options)?;
    if let Some(tool) = options.traffic.tool() {
        tool.find().map_err(|error| RunError::Missing(error.to_string()))?;
    }
    let mut record = open(options, &points, folder, bench)?;
    let all = points.len() * options.repetitions as usize;
    let mut stock = None;
    for repetition in 0..options.repetitions {
        for index in order(points.len(), repetition) {
            if record.has(index, repetition) {
                continue;
            }
            if bench.stop.load(Ordering::Relaxed) {
                return Ok(record);
            }
            let point = &points[index];
            (bench.progress)(record.cells.len(), all, point);
            let cell = one(options, point, index, repetition, bench, &mut stock);
            if bench.stop.load(Ordering::Relaxed) && cell.failed.is_some() {
                // What was interrupted is not a result.
                return Ok(record);
            }
            record.cells.push(cell);
            note_requirements(&mut record, &stock);
            record.save(folder)?;
        }
    }
    record.finished = Some(now());
    record.save(folder)?;
    Ok(record)
}

fn now() -> String {
    jiff::Timestamp::now().to_string()
}

fn open(
    options: &Options,
    points: &[Point],
    folder: &Path,
    bench: &mut Bench<'_>,
) -> Result<TenantsRecord, RunError> {
    fs::create_dir_all(folder).map_err(|error| RecordError::Io { path: folder.to_owned(), error })?;
    if folder.join(evenkeel_experiment::record::FILE).exists() {
        let other = |found: String| RunError::Other { folder: folder.to_owned(), found };
        let record = TenantsRecord::load(folder).map_err(|error| other(error.to_string()))?;
        if record.options != *options {
            return Err(other(format!("{} with other options", record.name)));
        }
        return Ok(record);
    }
    let mut record = TenantsRecord {
        schema: SCHEMA.into(),
        name: options.which.name().into(),
        version: env!("CARGO_PKG_VERSION").into(),
        began: now(),
        finished: None,
        host: bench.host.clone(),
        options: options.clone(),
        requirements: Vec::new(),
        points: points.to_vec(),
        cells: Vec::new(),
    };
    record.requirements.push(vhost());
    if points.iter().any(|point| point.rps) {
        let set = bench.table.set(true);
        let _ = bench.table.set(false);
        record.requirements.push(Requirement {
            name: "rfs-table".into(),
            met: Some(set.is_ok()),
            evidence: match set {
                Ok(()) => "net.core.rps_sock_flow_entries can be set, and was put back".into(),
                Err(why) => format!("net.core.rps_sock_flow_entries: {why}"),
            },
            consequence: "without it RPS spreads flows by hash, not to the CPU of their reader (RFS)".into(),
        });
    }
    record.save(folder)?;
    Ok(record)
}

/// The source's machines had vhost-net: where it is missing, qemu itself moves the packets.
fn vhost() -> Requirement {
    let there = Path::new("/dev/vhost-net").exists();
    Requirement {
        name: "vhost-net".into(),
        met: Some(there),
        evidence: format!("/dev/vhost-net is {}there", if there { "" } else { "not " }),
        consequence: "packets of virtual machines pass through qemu: machines are slower than with vhost-net"
            .into(),
    }
}

fn note_requirements(record: &mut TenantsRecord, stock: &Option<Result<Stock, String>>) {
    let Some(stock) = stock else { return };
    if record.requirements.iter().any(|r| r.name == "kvm") {
        return;
    }
    let (met, evidence) = match stock {
        Ok(stock) if stock.why.is_empty() => (Some(true), stock.accel.describe().to_owned()),
        Ok(stock) => (Some(false), format!("{}: {}", stock.accel.describe(), stock.why)),
        Err(why) => (None, why.clone()),
    };
    let evidence = match stock {
        Ok(stock) => format!("{evidence}; guests run Linux {}", stock.kernel()),
        Err(_) => evidence,
    };
    record.requirements.push(Requirement {
        name: "kvm".into(),
        met,
        evidence,
        consequence:
            "guests' transactions cost many times more CPU than on real machines; ratios between equal \
                      machines still tell whether they are treated equally"
                .into(),
    });
}

fn one(
    options: &Options,
    point: &Point,
    index: usize,
    repetition: u32,
    bench: &mut Bench<'_>,
    stock: &mut Option<Result<Stock, String>>,
) -> Cell {
    let began = Instant::now();
    let mut cell = Cell {
        point: index,
        repetition,
        began: now(),
        took_s: 0.0,
        net: None,
        cpu: None,
        threads: Vec::new(),
        failed: None,
    };
    if point.kind == Kind::VmVf
        && let Err(why) = free_functions(Path::new("/sys"), point.tenants + 1)
    {
        // Before an image is made, perhaps a kernel fetched, for nothing.
        cell.failed = Some(why);
        return cell;
    }
    if point.kind.vm_nic().is_some() && stock.is_none() {
        let prepared = Stock::prepare(bench.cache, bench.binary, options.accel).map_err(|e| e.to_string());
        *stock = Some(prepared);
    }
    let stock = match stock {
        Some(Ok(stock)) => Ok(&*stock),
        Some(Err(why)) => Err(why.clone()),
        None => Err("no virtual machine was asked for".to_owned()),
    };
    let result = match options.which {
        Which::TenantsNet => {
            // Unset afterwards whatever happens; that it cannot be set was noted at the start.
            let set = point.rps && bench.table.set(true).is_ok();
            let result = net(options, point, bench, stock, &mut cell);
            if set && let Err(why) = bench.table.set(false) {
                tracing::warn!("net.core.rps_sock_flow_entries could not be put back: {why}");
            }
            result
        }
        Which::TenantsCpu => cpu(options, point, bench, stock, &mut cell),
    };
    cell.failed = result.err();
    cell.took_s = began.elapsed().as_secs_f64();
    cell
}

fn net(
    options: &Options,
    point: &Point,
    bench: &Bench<'_>,
    stock: Result<&Stock, String>,
    cell: &mut Cell,
) -> Result<(), String> {
    let steered = point.rps.then_some(&bench.cpus);
    let nic = match point.kind {
        Kind::BareMetal => Nic::None,
        Kind::Veth => Nic::Veth,
        Kind::Macvlan => Nic::Macvlan,
        Kind::Cgroup | Kind::Container => return Err("a cgroup has no network of its own".into()),
        Kind::Vm | Kind::VmMacvtap | Kind::VmVf => {
            let nic = point.kind.vm_nic().unwrap_or(VmNic::Virtio);
            let vcpus = point.vcpus.unwrap_or(1);
            let built = VmScene::build(stock?, nic, point.tenants, vcpus, options.flows, steered);
            let scene = built.map_err(|e| e.to_string())?;
            cell.threads = scene.machines().iter().map(|machine| machine.threads()).collect();
            cell.net = Some(scene.measure(options.timing).map_err(|e| e.to_string())?);
            return Ok(());
        }
    };
    if let Some(tool) = options.traffic.tool() {
        let scene = ToolScene::build(tool, nic, point.tenants, options.flows, steered);
        let measured = scene.and_then(|scene| scene.measure(options.timing)).map_err(|e| e.to_string())?;
        cell.net = Some(measured);
        return Ok(());
    }
    let scene = NamespaceScene::build(bench.binary, nic, point.tenants, options.flows, steered);
    let measured = scene.and_then(|scene| scene.measure(options.timing)).map_err(|e| e.to_string())?;
    cell.net = Some(measured);
    Ok(())
}

fn cpu(
    options: &Options,
    point: &Point,
    bench: &Bench<'_>,
    stock: Result<&Stock, String>,
    cell: &mut Cell,
) -> Result<(), String> {
    let threads = point.vcpus.unwrap_or(1);
    // Not the first: interrupts tend to be served there.
    let one = point.one_cpu.then(|| bench.cpus.iter().last().map(CpuSet::single)).flatten();
    let text = |e: &dyn std::fmt::Display| e.to_string();
    if point.kind.vm_nic().is_some() {
        let scene =
            CpuScene::build(stock?, &point.weights, threads, one.as_ref()).map_err(|e: VmError| text(&e))?;
        cell.threads = scene.machines.iter().map(|machine| machine.threads()).collect();
        let tenants: Vec<_> = scene
            .machines
            .iter()
            .zip(&point.weights)
            .map(|(machine, weight)| (machine.name().to_owned(), *weight, machine.pid()))
            .collect();
        cell.cpu = Some(computing(&tenants, options.timing, one));
        return Ok(());
    }
    let specs: Vec<LoadSpec> = (0..point.tenants)
        .map(|tenant| {
            let mut spec = LoadSpec::new(Load::Spin(Spin {})).named(format!("tenant-{tenant}"));
            spec.common.threads = Some(threads);
            spec
        })
        .collect();
    let container = point.kind == Kind::Container;
    let place = if container { Place::ContainerEach } else { Place::CgroupEach };
    let mut starter = Starter::new(bench.binary, place).weighted(point.weights.clone());
    if let Some(cpus) = &one {
        starter = starter.on_cpus(cpus.clone());
    }
    let held = starter.hold(&specs).map_err(|e| text(&e))?;
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
    cell.cpu = Some(computing(&tenants, options.timing, one));
    Ok(())
}

/// CPU time of processes over the windows.
fn computing(tenants: &[(String, u64, u32)], timing: Timing, cpus: Option<CpuSet>) -> CpuMeasured {
    let wait = |at| while monotonic_ns() < at && !sleep_until(at) {};
    wait(monotonic_ns() + duration_ns(timing.warmup));
    let host = || proc_stat::read(&Root::host()).ok().map(|stat| stat.cpus);
    let read = || (monotonic_ns(), tenants.iter().map(|(.., pid)| cpu_ns(*pid)).collect::<Vec<_>>());
    let before = host();
    let mut readings = vec![read()];
    let start = readings[0].0;
    for window in 1..=timing.windows.max(1) {
        wait(start + duration_ns(timing.window) * u64::from(window));
        readings.push(read());
    }
    let after = host();
    let end = readings.last().map_or(start, |reading| reading.0);
    let pct = |from: &(u64, Vec<Option<u64>>), to: &(u64, Vec<Option<u64>>), tenant: usize| {
        let used = to.1[tenant]?.checked_sub(from.1[tenant]?)?;
        Some(used as f64 / (to.0 - from.0).max(1) as f64 * 100.0)
    };
    let wall = (end - start).max(1) as f64;
    let by_cpu: BTreeMap<u32, _> = before.unwrap_or_default().into_iter().map(|cpu| (cpu.cpu, cpu)).collect();
    let pairs: Vec<_> =
        after.unwrap_or_default().into_iter().filter_map(|b| by_cpu.get(&b.cpu).map(|a| (*a, b))).collect();
    let steal = pairs.iter().map(|(a, b)| b.steal_ns?.checked_sub(a.steal_ns?)).sum::<Option<u64>>();
    CpuMeasured {
        seconds: wall / 1e9,
        cpus,
        tenants: tenants
            .iter()
            .enumerate()
            .map(|(index, (name, weight, _))| TenantCpu {
                name: name.clone(),
                weight: *weight,
                cpu_pct: readings.last().and_then(|last| pct(&readings[0], last, index)),
                windows_pct: readings.windows(2).map(|w| pct(&w[0], &w[1], index)).collect(),
                events_per_s: None,
            })
            .collect(),
        per_cpu_pct: pairs
            .iter()
            .filter_map(|(a, b)| Some(b.busy_ns.checked_sub(a.busy_ns)? as f64 / wall * 100.0))
            .collect(),
        steal_pct: steal.filter(|_| !pairs.is_empty()).map(|ns| ns as f64 / wall * 100.0),
    }
}
