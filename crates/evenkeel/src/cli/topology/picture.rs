//! The machine as a drawing: sockets hold nodes, nodes hold caches, caches hold cores, cores hold logical CPUs.

use std::fmt::Write as _;

use evenkeel_base::Topology;
use evenkeel_observe::KernelFacts;

use super::{kernel_line, label, map, or_unknown, shared, summary};

const THREAD: f64 = 44.0;
const THREAD_HEIGHT: f64 = 30.0;
const GAP: f64 = 10.0;
const TITLE: f64 = 22.0;
/// Widest row of cores before they wrap, pixels.
const ROW: f64 = 980.0;

const STYLE: &str = "
text{font-family:system-ui,'DejaVu Sans',sans-serif;fill:#1d2733}
.title{font-size:18px;font-weight:600}.sub{font-size:12px;fill:#56616e}.box{font-size:12px}.cpu{font-size:13px;text-anchor:middle}
.socket{fill:#f4f6f8;stroke:#8a96a3}.node{fill:#ffffff;stroke:#b4bec8}.llc{fill:#eef4fb;stroke:#a9c3de}.core{fill:#ffffff;stroke:#7d93aa}
.on{fill:#cfe3f7;stroke:#5a87b5}.isolated{fill:#f9d9a8;stroke:#c07a12}.full{fill:#f9d9a8;stroke:#c07a12;stroke-dasharray:4 2}.off{fill:#e3e6e9;stroke:#a5adb5}
@media (prefers-color-scheme:dark){svg{background:#14181d}text{fill:#dde4ea}.sub{fill:#9aa7b4}.socket{fill:#1c2229}.node{fill:#14181d}.llc{fill:#1b2733}.core{fill:#14181d}.on{fill:#21476d}.isolated,.full{fill:#70480c}.off{fill:#33393f}}
";

/// A rectangle laid out, drawn when its place is known.
struct Block {
    width: f64,
    height: f64,
    /// SVG with its upper left corner at 0,0.
    svg: String,
}

/// Draws the machine; a self-contained SVG document.
pub fn draw(topology: &Topology, kernel: &KernelFacts) -> String {
    let mut sockets = Vec::new();
    for (socket, nodes) in map(topology) {
        let mut in_socket = Vec::new();
        for (node, caches) in nodes {
            let mut in_node = Vec::new();
            for (llc, cores) in caches {
                let blocks = cores.iter().map(|(core, cpus)| {
                    let threads = cpus.iter().map(|cpu| {
                        let class = match (cpu.isolated, cpu.nohz_full) {
                            (true, _) => "isolated",
                            (false, true) => "full",
                            (false, false) => "on",
                        };
                        thread(&label(cpu), class)
                    });
                    container(&format!("core {core}"), "core", flow(threads.collect(), f64::MAX))
                });
                let cores = flow(blocks.collect(), ROW);
                in_node.push(match llc {
                    Some(llc) => {
                        let title = format!("last-level cache of CPUs {}", shared(topology, llc));
                        container(&title, "llc", cores)
                    }
                    None => cores,
                });
            }
            let memory = topology.nodes.iter().find(|n| Some(n.node) == node).and_then(|n| n.memory_bytes);
            let memory = memory
                .map_or(String::new(), |bytes| format!(" · {:.1} GiB", bytes as f64 / f64::from(1 << 30)));
            let title = format!("NUMA node {}{memory}", or_unknown(node));
            in_socket.push(container(&title, "node", flow(in_node, ROW)));
        }
        sockets.push(container(&format!("socket {}", or_unknown(socket)), "socket", flow(in_socket, ROW)));
    }
    let offline = topology.present.difference(&topology.online);
    if !offline.is_empty() {
        let threads = offline.iter().map(|cpu| thread(&cpu.to_string(), "off")).collect();
        sockets.push(container("offline", "node", flow(threads, ROW)));
    }
    let machine = flow(sockets, ROW * 1.15);
    let legend = legend(topology);
    let width = machine.width.max(legend.width).max(560.0) + 2.0 * GAP;
    let top = 62.0;
    let height = top + machine.height + GAP + legend.height + 2.0 * GAP;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" role=\"img\" aria-label=\"CPU map\">\n<style>{STYLE}</style>\n"
    );
    let _ = writeln!(svg, "<text class=\"title\" x=\"{GAP}\" y=\"26\">{}</text>", escape(&summary(topology)));
    let _ = writeln!(svg, "<text class=\"sub\" x=\"{GAP}\" y=\"46\">{}</text>", escape(&kernel_line(kernel)));
    place(&mut svg, &machine, GAP, top);
    place(&mut svg, &legend, GAP, top + machine.height + GAP);
    svg.push_str("</svg>\n");
    svg
}

fn legend(topology: &Topology) -> Block {
    let entries = [
        ("0", "on", "balanced by the scheduler".to_owned(), true),
        ("0*", "isolated", format!("isolated: {}", topology.isolated), !topology.isolated.is_empty()),
        ("0", "full", format!("no periodic tick: {}", topology.nohz_full), !topology.nohz_full.is_empty()),
        ("0", "off", "offline".to_owned(), topology.online != topology.present),
    ];
    let blocks = entries.into_iter().filter(|(.., there)| *there).map(|(label, class, text, _)| {
        let swatch = thread(label, class);
        let width = swatch.width + 12.0 + 7.0 * text.chars().count() as f64;
        let svg = format!(
            "{}<text class=\"box\" x=\"{}\" y=\"20\">{}</text>",
            swatch.svg,
            swatch.width + 8.0,
            escape(&text)
        );
        Block { width, height: swatch.height, svg }
    });
    flow(blocks.collect(), ROW)
}

fn thread(label: &str, class: &str) -> Block {
    let svg = format!(
        "<rect class=\"{class}\" width=\"{THREAD}\" height=\"{THREAD_HEIGHT}\" rx=\"4\"/>\
         <text class=\"cpu\" x=\"{}\" y=\"20\">{label}</text>",
        THREAD / 2.0
    );
    Block { width: THREAD, height: THREAD_HEIGHT, svg }
}

/// Blocks side by side, wrapped at a width.
fn flow(blocks: Vec<Block>, most: f64) -> Block {
    let mut all = Block { width: 0.0, height: 0.0, svg: String::new() };
    let (mut x, mut y, mut row) = (0.0, 0.0, 0.0f64);
    for block in blocks {
        if x > 0.0 && x + block.width > most {
            (x, y, row) = (0.0, y + row + GAP, 0.0);
        }
        place(&mut all.svg, &block, x, y);
        row = row.max(block.height);
        all.width = all.width.max(x + block.width);
        all.height = all.height.max(y + row);
        x += block.width + GAP;
    }
    all
}

/// A titled box around a block.
fn container(title: &str, class: &str, inner: Block) -> Block {
    let width = (inner.width + 2.0 * GAP).max(7.0 * title.chars().count() as f64 + 2.0 * GAP);
    let height = inner.height + TITLE + GAP;
    let mut svg = format!(
        "<rect class=\"{class}\" width=\"{width:.0}\" height=\"{height:.0}\" rx=\"6\"/>\
         <text class=\"box\" x=\"{GAP}\" y=\"16\">{}</text>",
        escape(title)
    );
    place(&mut svg, &inner, GAP, TITLE);
    Block { width, height, svg }
}

fn place(svg: &mut String, block: &Block, x: f64, y: f64) {
    let _ = writeln!(svg, "<g transform=\"translate({x:.0},{y:.0})\">{}</g>", block.svg);
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cpu_is_drawn_once_and_isolated_ones_marked() {
        let mut topology = Topology::synthetic(2, 1, 2, 2);
        topology.cpus[2].isolated = true;
        topology.isolated.insert(2);
        topology.cpus[7].online = false;
        topology.online.remove(7);
        let kernel = KernelFacts {
            release: Some("6 <x>".into()),
            scheduler: None,
            cgroup: None,
            features: Default::default(),
        };
        let svg = draw(&topology, &kernel);
        let drawn = svg.split("<g transform").count();
        assert!(drawn > 8, "{svg}");
        for cpu in ["0", "1", "2*", "3", "4", "5", "6"] {
            assert!(svg.contains(&format!(">{cpu}</text>")), "CPU {cpu} is missing");
        }
        assert!(svg.contains("class=\"isolated\"") && svg.contains("class=\"off\""));
        assert!(svg.contains("6 &lt;x&gt;") && !svg.contains("<x>"));
        assert_eq!(svg.matches("<g ").count(), svg.matches("</g>").count());
    }
}
