//! `evenkeel topology`: the CPU map.

mod picture;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use evenkeel_base::text::count;
use evenkeel_base::{Cpu, CpuSet, Node, Topology};
use evenkeel_observe::{KernelFacts, Scheduler, read_kernel, read_topology};
use evenkeel_report::{Field, Table, Value};
use serde::Serialize;
use serde_json::{Value as Json, json};

use super::{Failure, Format, Global, Outcome, show};

/// Show the CPU map: sockets, NUMA nodes, caches, cores with their logical CPUs, isolated ones starred.
///
/// Example: evenkeel topology -o svg > machine.svg
#[derive(Debug, clap::Args)]
pub struct Args {}

pub fn run(global: &Global, _args: Args) -> Outcome {
    let root = show::root(global)?;
    let topology = read_topology(&root).map_err(anyhow::Error::from)?;
    let kernel = read_kernel(&root);
    match global.output {
        Format::Text => out!("{}", text(&topology, &kernel))?,
        Format::Json => outln!("{:#}", document(&topology, &kernel))?,
        Format::Csv => out!("{}", table().csv(&topology.cpus))?,
        Format::Svg => out!("{}", picture::draw(&topology, &kernel))?,
    }
    Ok::<u8, Failure>(0)
}

fn table() -> Table<Cpu> {
    let known = |number: Option<u32>| number.map_or(Value::Unknown, |n| Value::Integer(n.into()));
    Table::new(vec![
        Field::new("cpu", "CPU", |cpu: &Cpu| Value::Integer(cpu.cpu.into())),
        Field::new("online", "ONLINE", |cpu: &Cpu| Value::Bool(cpu.online)),
        Field::new("isolated", "ISOLATED", |cpu: &Cpu| Value::Bool(cpu.isolated)),
        Field::new("nohz_full", "NOHZ_FULL", |cpu: &Cpu| Value::Bool(cpu.nohz_full)),
        Field::new("socket", "SOCKET", move |cpu: &Cpu| known(cpu.socket)),
        Field::new("die", "DIE", move |cpu: &Cpu| known(cpu.die)),
        Field::new("node", "NODE", move |cpu: &Cpu| known(cpu.node)),
        Field::new("core", "CORE", move |cpu: &Cpu| known(cpu.core)),
        Field::new("llc", "LLC", move |cpu: &Cpu| known(cpu.llc)),
        Field::new("siblings", "SIBLINGS", |cpu: &Cpu| Value::Json(numbers(&cpu.siblings))),
        Field::new("capacity", "CAPACITY", move |cpu: &Cpu| known(cpu.capacity)),
    ])
}

fn numbers(cpus: &CpuSet) -> Json {
    json!(cpus.iter().collect::<Vec<_>>())
}

/// `evenkeel.topology/v1`.
#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    cpus: Vec<Json>,
    nodes: Vec<NodeDocument>,
    possible: &'a CpuSet,
    present: &'a CpuSet,
    online: &'a CpuSet,
    isolated: &'a CpuSet,
    nohz_full: &'a CpuSet,
    rcu_nocbs: &'a CpuSet,
    allowed: &'a CpuSet,
    kernel: &'a KernelFacts,
}

#[derive(Serialize)]
struct NodeDocument {
    node: u32,
    cpus: Json,
    memory_bytes: Option<u64>,
    distances: Vec<u32>,
}

fn document(topology: &Topology, kernel: &KernelFacts) -> Json {
    let node = |node: &Node| NodeDocument {
        node: node.node,
        cpus: numbers(&node.cpus),
        memory_bytes: node.memory_bytes,
        distances: node.distances.clone(),
    };
    json!(Document {
        schema: "evenkeel.topology/v1",
        cpus: table().json(&topology.cpus),
        nodes: topology.nodes.iter().map(node).collect(),
        possible: &topology.possible,
        present: &topology.present,
        online: &topology.online,
        isolated: &topology.isolated,
        nohz_full: &topology.nohz_full,
        rcu_nocbs: &topology.rcu_nocbs,
        allowed: &topology.allowed,
        kernel,
    })
}

/// Cores with their logical CPUs, grouped by socket, node and last-level cache; `None` is unknown.
type Map<'a> =
    BTreeMap<Option<u32>, BTreeMap<Option<u32>, BTreeMap<Option<u32>, BTreeMap<u32, Vec<&'a Cpu>>>>>;

/// Offline CPUs have no place; they are told apart.
fn map(topology: &Topology) -> Map<'_> {
    let mut map = Map::new();
    for cpu in topology.cpus.iter().filter(|cpu| cpu.online) {
        let core = cpu.core.unwrap_or(cpu.cpu);
        let node = map.entry(cpu.socket).or_default().entry(cpu.node).or_default();
        node.entry(cpu.llc).or_default().entry(core).or_default().push(cpu);
    }
    map
}

fn or_unknown(number: Option<u32>) -> String {
    number.map_or_else(|| "?".to_owned(), |number| number.to_string())
}

/// One line on the machine: `24 of 48 CPUs online, 12 cores, 2 sockets, 2 NUMA nodes`.
fn summary(topology: &Topology) -> String {
    let sockets: std::collections::BTreeSet<_> = topology.cpus.iter().filter_map(|cpu| cpu.socket).collect();
    // A host without /sys does not say.
    let known = |number: usize, what: &str| match number {
        0 => format!("{what}s unknown"),
        number => count(number, what),
    };
    format!(
        "{} of {} online, {}, {}, {}",
        topology.online.len(),
        count(topology.present.len(), "CPU"),
        known(topology.cores(), "core"),
        known(sockets.len(), "socket"),
        count(topology.nodes.len(), "NUMA node"),
    )
}

fn kernel_line(kernel: &KernelFacts) -> String {
    let scheduler = match kernel.scheduler {
        Some(Scheduler::Cfs) => "CFS",
        Some(Scheduler::Eevdf) => "EEVDF",
        Some(Scheduler::Scx) => "sched_ext",
        None => "unknown",
    };
    let unknown = || "unknown".to_owned();
    format!(
        "Linux {}, scheduler {scheduler}, cgroup {}",
        kernel.release.clone().unwrap_or_else(unknown),
        kernel.cgroup.clone().unwrap_or_else(unknown)
    )
}

fn text(topology: &Topology, kernel: &KernelFacts) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        out.push_str(&text);
        out.push('\n');
    };
    line(summary(topology));
    line(kernel_line(kernel));
    let features = [
        ("task slice", kernel.features.task_slice),
        ("BPF", kernel.features.bpf),
        ("PSI", kernel.features.psi),
        ("schedstat", kernel.features.schedstat),
        ("steal clock", kernel.features.steal_clock),
    ]
    .map(|(name, there)| {
        format!("{name} {}", there.map_or("unknown", |there| if there { "yes" } else { "no" }))
    });
    line(format!("features: {}", features.join(", ")));
    for (socket, nodes) in map(topology) {
        line(String::new());
        line(format!("socket {}", or_unknown(socket)));
        for (node, caches) in nodes {
            let memory = topology.nodes.iter().find(|n| Some(n.node) == node).and_then(|n| n.memory_bytes);
            let memory = memory
                .map_or(String::new(), |bytes| format!("  {:.1} GiB", bytes as f64 / f64::from(1 << 30)));
            line(format!("  node {}{memory}", or_unknown(node)));
            for (llc, cores) in caches {
                if let Some(llc) = llc {
                    line(format!("    cache shared by CPUs {}", shared(topology, llc)));
                }
                let cells: Vec<String> = cores
                    .iter()
                    .map(|(core, cpus)| {
                        let cpus: Vec<String> = cpus.iter().map(|cpu| label(cpu)).collect();
                        format!("core {core}: {}", cpus.join(" "))
                    })
                    .collect();
                columns(&cells, 94, &mut |row| line(format!("      {row}")));
            }
        }
    }
    line(String::new());
    let offline = topology.present.difference(&topology.online);
    let lists = [
        ("isolated (*)", &topology.isolated),
        ("nohz_full", &topology.nohz_full),
        ("rcu_nocbs", &topology.rcu_nocbs),
        ("offline", &offline),
        ("usable by this process", &topology.allowed),
    ];
    for (name, cpus) in lists {
        line(format!("{name}: {}", if cpus.is_empty() { "none".to_owned() } else { cpus.to_string() }));
    }
    if topology.nodes.len() > 1 {
        line("distances between nodes (10 is local):".to_owned());
        for node in &topology.nodes {
            let mut row = format!("  node {:>3}:", node.node);
            for distance in &node.distances {
                let _ = write!(row, " {distance:>3}");
            }
            line(row);
        }
    }
    out
}

/// CPUs that share a last-level cache.
fn shared(topology: &Topology, llc: u32) -> CpuSet {
    topology.cpus.iter().filter(|cpu| cpu.llc == Some(llc)).map(|cpu| cpu.cpu).collect()
}

fn label(cpu: &Cpu) -> String {
    format!("{}{}", cpu.cpu, if cpu.isolated { "*" } else { "" })
}

/// Lays cells out in columns of equal width.
fn columns(cells: &[String], width: usize, line: &mut dyn FnMut(String)) {
    let widest = cells.iter().map(|cell| cell.chars().count()).max().unwrap_or(0) + 3;
    for row in cells.chunks((width / widest).max(1)) {
        let row: String = row.iter().map(|cell| format!("{cell:<widest$}")).collect();
        line(row.trim_end().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> KernelFacts {
        KernelFacts {
            release: Some("6.1".into()),
            scheduler: Some(Scheduler::Cfs),
            cgroup: Some("v2".into()),
            features: Default::default(),
        }
    }

    #[test]
    fn isolated_cpus_are_starred_and_offline_ones_told_apart() {
        let mut topology = Topology::synthetic(2, 1, 2, 2);
        for cpu in [1usize, 5] {
            topology.cpus[cpu].isolated = true;
            topology.isolated.insert(cpu as u32);
        }
        topology.cpus[7].online = false;
        topology.online.remove(7);
        let text = text(&topology, &kernel());
        assert!(text.contains("core 1: 1* 5*"), "{text}");
        assert!(text.contains("core 3: 3\n") && text.contains("offline: 7"), "{text}");
        assert!(text.starts_with("7 of 8 CPUs online, 4 cores, 2 sockets, 2 NUMA nodes\n"), "{text}");
        assert!(text.contains("  node   1:  20  10"), "{text}");
        let document = document(&topology, &kernel());
        assert_eq!(document["cpus"][1]["siblings"], json!([1, 5]));
        assert_eq!(document["kernel"]["features"]["task_slice"], Json::Null);
        assert_eq!(document["kernel"]["scheduler"], "cfs");
    }

    #[test]
    fn what_the_host_does_not_say_is_no_number() {
        let mut topology = Topology::synthetic(1, 1, 2, 1);
        topology.cpus.iter_mut().for_each(|cpu| (cpu.core, cpu.socket) = (None, None));
        let text = text(&topology, &kernel());
        assert!(
            text.starts_with("2 of 2 CPUs online, cores unknown, sockets unknown, 1 NUMA node\n"),
            "{text}"
        );
    }

    #[test]
    fn no_line_is_wider_than_100_columns() {
        let topology = Topology::synthetic(4, 2, 16, 2);
        for line in text(&topology, &kernel()).lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
    }
}
