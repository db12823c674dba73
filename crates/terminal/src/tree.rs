//! The tree of owners, processes and threads: what lines are, which are folded, found by a search, and in which order.

use std::cmp::Ordering;
use std::collections::HashSet;

use evenkeel_base::NetworkRate;
use evenkeel_report::ps::transferred;

use crate::census::{Census, Item, Key};

evenkeel_base::named! {
/// What the lines at the left edge are, in the order in which a key goes through them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Grouping {
    /// Everybody who owns processes: pods, containers, machines, services, the kernel.
    #[default]
    Owner = "owner",
    Process = "process",
    /// Containers and what is in them.
    Container = "container",
    Pod = "pod",
    /// Virtual machines and their threads.
    Vm = "vm",
    /// CPUs and the threads that ran there last.
    Cpu = "cpu",
    Task = "task",
}
}

impl Grouping {
    /// What it is, in a sentence.
    pub fn about(self) -> &'static str {
        match self {
            Self::Owner => {
                "Pods, containers, virtual machines and services, with their processes and threads"
            }
            Self::Task => "Threads",
            Self::Process => "Processes and their threads",
            Self::Container => "Containers and what is in them",
            Self::Pod => "Pods, their containers and what is in them",
            Self::Vm => "Virtual machines and their threads",
            Self::Cpu => "CPUs and the threads that ran there last",
        }
    }

    /// The next one, in a circle.
    pub fn next(self) -> Self {
        let at = Self::ALL.iter().position(|one| *one == self).unwrap_or(0);
        Self::ALL[(at + 1) % Self::ALL.len()]
    }

    /// Whether a line says whose it is because no line above does.
    pub fn is_flat(self) -> bool {
        matches!(self, Self::Task | Self::Process | Self::Cpu)
    }

    /// What is reported when there is nothing to show.
    pub fn nothing(self) -> &'static str {
        match self {
            Self::Container => "no containers found",
            Self::Pod => "no pods found",
            Self::Vm => "no virtual machines found",
            _ => "nothing ran or waited (a shows what was idle, too)",
        }
    }

    fn is_root(self, item: &Item) -> bool {
        match self {
            Self::Owner => item.parent.is_none() && !matches!(item.key, Key::Cpu(_)),
            Self::Task => matches!(item.key, Key::Task(_)),
            Self::Process => matches!(item.key, Key::Process(..)),
            Self::Container => matches!(item.key, Key::Container(_)),
            Self::Pod => matches!(item.key, Key::Pod(_)),
            Self::Vm => matches!(item.key, Key::Vm(_)),
            Self::Cpu => matches!(item.key, Key::Cpu(_)),
        }
    }
}

evenkeel_base::named! {
/// What lines can be sorted by: the columns, by their headings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Column {
    Name = "NAME",
    /// Last CPU.
    Core = "CORE",
    #[default]
    Cpu = "CPU%",
    Wait = "WAIT%",
    Throttled = "THR%",
    Voluntary = "VOL/s",
    Involuntary = "INV/s",
    Class = "CLASS",
    Network = "NET IN/OUT",
    /// Weight, quota, CPUs.
    Limits = "LIMITS",
    Owner = "WHOSE",
}
}

impl Column {
    /// Its value for people; `?` for what is not known.
    pub fn text(self, item: &Item) -> String {
        let number = |value: Option<f64>, places: usize| match value {
            // All digits before the point have to find room.
            Some(value) if value.is_finite() => {
                format!("{value:.*}", if value < 9999.95 { places } else { 0 })
            }
            _ => "?".to_owned(),
        };
        let leaf = matches!(item.key, Key::Process(..) | Key::Task(_));
        match self {
            Self::Name => item.name.clone(),
            Self::Core if leaf => item.core.map_or_else(|| "?".to_owned(), |core| core.to_string()),
            Self::Core => String::new(),
            Self::Cpu => number(Some(item.numbers.cpu), 1),
            Self::Wait => number(item.numbers.wait, 1),
            Self::Throttled if item.numbers.throttled.is_none() && matches!(item.key, Key::Cpu(_)) => {
                String::new()
            }
            Self::Throttled => number(item.numbers.throttled, 1),
            Self::Voluntary if leaf => number(item.numbers.voluntary, 0),
            Self::Involuntary if leaf => number(item.numbers.involuntary, 0),
            Self::Voluntary | Self::Involuntary => String::new(),
            Self::Class => item.class.clone(),
            // Who has no network of its own has no number.
            Self::Network => item.numbers.network.map_or_else(String::new, transferred),
            Self::Limits => item.limits.clone(),
            Self::Owner => item.owner.clone(),
        }
    }

    /// Order of two lines: words rise, numbers fall, unknown comes last.
    fn compare(self, a: &Item, b: &Item) -> Ordering {
        let falling = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => b.total_cmp(&a),
            (a, b) => b.is_some().cmp(&a.is_some()),
        };
        let words = |a: &str, b: &str| a.is_empty().cmp(&b.is_empty()).then_with(|| a.cmp(b));
        let (m, n) = (&a.numbers, &b.numbers);
        match self {
            Self::Name => by_name(&a.name, &b.name),
            Self::Core => a.core.is_none().cmp(&b.core.is_none()).then(a.core.cmp(&b.core)),
            Self::Cpu => falling(Some(m.cpu), Some(n.cpu)),
            Self::Wait => falling(m.wait, n.wait),
            Self::Throttled => falling(m.throttled, n.throttled),
            Self::Voluntary => falling(m.voluntary, n.voluntary),
            Self::Involuntary => falling(m.involuntary, n.involuntary),
            Self::Network => {
                let sum = |rate: NetworkRate| rate.received_per_s + rate.sent_per_s;
                falling(m.network.map(sum), n.network.map(sum))
            }
            Self::Class => words(&a.class, &b.class),
            Self::Limits => words(&a.limits, &b.limits),
            Self::Owner => words(&a.owner, &b.owner),
        }
    }

    /// Whether words or numbers rise from top to bottom.
    pub fn rises(self, reversed: bool) -> bool {
        let words = matches!(self, Self::Name | Self::Core | Self::Class | Self::Limits | Self::Owner);
        words != reversed
    }
}

/// Numbers in front of names as numbers.
fn by_name(a: &str, b: &str) -> Ordering {
    let number = |name: &str| {
        let digits = name.trim_start_matches("CPU ");
        digits.split(|c: char| !c.is_ascii_digit()).next().and_then(|digits| digits.parse::<u64>().ok())
    };
    match (number(a), number(b)) {
        (Some(a), Some(b)) if a != b => a.cmp(&b),
        _ => a.cmp(b),
    }
}

/// How lines are chosen and ordered.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Order {
    pub grouping: Grouping,
    pub column: Column,
    pub reversed: bool,
    /// Also who did nothing.
    pub all: bool,
    /// Only who has this in the name or the owner, what is in them, and what they are in.
    pub search: String,
    /// Those folded or unfolded by hand, see [`Order::is_open`].
    pub turned: HashSet<Key>,
    /// Whether owners are folded unless turned.
    pub folded: bool,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// Index in the census.
    pub at: usize,
    pub depth: usize,
    /// Whether what is inside is shown; `None` where nothing is inside.
    pub open: Option<bool>,
}

impl Order {
    /// Whether what is inside is shown. Owners are open; processes and the kernel are folded: their threads are many.
    pub fn is_open(&self, key: &Key) -> bool {
        let open = match key {
            Key::Process(..) | Key::Kernel => false,
            _ => !self.folded,
        };
        open != self.turned.contains(key)
    }

    /// The lines of a census, folded ones left out.
    pub fn lines(&self, census: &Census) -> Vec<Line> {
        let mut inside: Vec<Vec<usize>> = vec![Vec::new(); census.items.len()];
        for (at, item) in census.items.iter().enumerate() {
            let above = match (self.grouping, &item.key) {
                (Grouping::Cpu, Key::Task(_)) => {
                    item.core.and_then(|cpu| census.by_key.get(&Key::Cpu(cpu))).copied()
                }
                (Grouping::Cpu | Grouping::Task, _) => None,
                _ => item.parent,
            };
            if let Some(above) = above {
                inside[above].push(at);
            }
        }
        // The only thread of a process says nothing that the process does not.
        for (at, item) in census.items.iter().enumerate() {
            if matches!(item.key, Key::Process(..)) && inside[at].len() < 2 {
                inside[at].clear();
            }
        }
        let found = self.found(census, &inside);
        let mut lines = Vec::new();
        let roots = (0..census.items.len()).filter(|at| self.grouping.is_root(&census.items[*at])).collect();
        self.add(census, &inside, found.as_deref(), roots, 0, &mut lines);
        lines
    }

    /// For each item whether a search finds it, something in it, or something that it is in; `None` without a search.
    fn found(&self, census: &Census, inside: &[Vec<usize>]) -> Option<Vec<bool>> {
        let wanted = self.search.trim().to_lowercase();
        if wanted.is_empty() {
            return None;
        }
        let has = |item: &Item| {
            item.name.to_lowercase().contains(&wanted) || item.owner.to_lowercase().contains(&wanted)
        };
        let hit: Vec<bool> = census.items.iter().map(has).collect();
        let mut found = hit.clone();
        // What is inside comes after what it is in, but for CPUs.
        let mut order: Vec<usize> = (0..inside.len()).collect();
        order.sort_by_key(|at| !matches!(census.items[*at].key, Key::Cpu(_)));
        for at in order.iter().rev() {
            found[*at] |= inside[*at].iter().any(|inner| found[*inner]);
        }
        let mut below = hit;
        for at in &order {
            if below[*at] {
                for inner in &inside[*at] {
                    (below[*inner], found[*inner]) = (true, true);
                }
            }
        }
        Some(found)
    }

    fn add(
        &self,
        census: &Census,
        inside: &[Vec<usize>],
        found: Option<&[bool]>,
        mut siblings: Vec<usize>,
        depth: usize,
        lines: &mut Vec<Line>,
    ) {
        siblings.retain(|at| match found {
            Some(found) => found[*at],
            None => self.all || census.items[*at].busy,
        });
        siblings.sort_by(|a, b| {
            let (a, b) = (&census.items[*a], &census.items[*b]);
            let order = self.column.compare(a, b);
            let order = if self.reversed { order.reverse() } else { order };
            order.then_with(|| b.numbers.cpu.total_cmp(&a.numbers.cpu)).then_with(|| a.key.cmp(&b.key))
        });
        for at in siblings {
            let inner = &inside[at];
            // Threads have nothing inside: the depth ends at four.
            let open = (!inner.is_empty()).then(|| self.is_open(&census.items[at].key));
            lines.push(Line { at, depth, open });
            if open == Some(true) {
                self.add(census, inside, found, inner.clone(), depth + 1, lines);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::host;

    fn names(order: &Order) -> Vec<String> {
        let census = host();
        let lines = order.lines(&census);
        lines.iter().map(|line| format!("{}{}", ">".repeat(line.depth), census.items[line.at].name)).collect()
    }

    fn by(grouping: Grouping) -> Order {
        Order { grouping, ..Order::default() }
    }

    #[test]
    fn owners_are_open_and_processes_folded() {
        let order = Order::default();
        assert_eq!(
            names(&order),
            [
                "shop/front (pod)",
                ">web (docker)",
                ">>100 nginx (2 threads)",
                "db (VM, pid 200)",
                ">200 qemu",
                "/system.slice/cron.service",
                ">300 cron",
            ]
        );
        let mut turned = order;
        turned.turned.insert(Key::Process(100, 7));
        turned.turned.insert(Key::Vm(200));
        let names = names(&turned);
        assert!(names.contains(&">>>101 worker".to_owned()) && !names.contains(&">200 qemu".to_owned()));
    }

    #[test]
    fn idle_ones_are_shown_when_asked_for() {
        let order = Order { all: true, ..Order::default() };
        assert!(names(&order).contains(&"kernel threads".to_owned()));
        assert!(!names(&Order::default()).contains(&"kernel threads".to_owned()));
    }

    #[test]
    fn each_grouping_has_its_lines() {
        assert_eq!(names(&by(Grouping::Process)), ["100 nginx (2 threads)", "200 qemu", "300 cron"]);
        assert_eq!(names(&by(Grouping::Task)), ["101 worker", "200 qemu", "100 nginx", "300 cron"]);
        assert_eq!(names(&by(Grouping::Vm)), ["db (VM, pid 200)", ">200 qemu"]);
        assert_eq!(names(&by(Grouping::Container))[0], "web (docker)");
        let cpus = names(&by(Grouping::Cpu));
        assert_eq!(cpus, ["CPU 0", ">101 worker", ">300 cron", "CPU 1*", ">200 qemu", ">100 nginx"]);
    }

    #[test]
    fn any_column_sorts_and_what_is_unknown_comes_last() {
        let order = |column, reversed| Order { column, reversed, ..by(Grouping::Task) };
        assert_eq!(names(&order(Column::Wait, false))[0], "101 worker");
        assert_eq!(names(&order(Column::Name, false)), ["100 nginx", "101 worker", "200 qemu", "300 cron"]);
        assert_eq!(names(&order(Column::Name, true))[0], "300 cron");
        assert_eq!(names(&order(Column::Voluntary, false)).last().map(String::as_str), Some("200 qemu"));
        assert_eq!(names(&order(Column::Owner, false))[0], "300 cron");
    }

    #[test]
    fn a_search_shows_what_it_finds_with_what_that_is_in() {
        let search = |text: &str, grouping| names(&Order { search: text.to_owned(), ..by(grouping) });
        assert_eq!(
            search("NGINX", Grouping::Owner),
            ["shop/front (pod)", ">web (docker)", ">>100 nginx (2 threads)"]
        );
        // Also who is idle.
        assert_eq!(search("kthread", Grouping::Owner), ["kernel threads"]);
        // All of what is found.
        assert_eq!(search("docker", Grouping::Owner), search("nginx", Grouping::Owner));
        assert_eq!(search("cron", Grouping::Cpu), ["CPU 0", ">300 cron"]);
        assert_eq!(search("CPU 1", Grouping::Cpu)[..2], ["CPU 1*".to_owned(), ">200 qemu".to_owned()]);
        assert!(search("no name matches", Grouping::Process).is_empty());
    }
}
