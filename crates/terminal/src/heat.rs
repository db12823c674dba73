//! Cores × tasks: who ran on which CPU over the last minute.

use std::collections::{BTreeMap, HashMap, VecDeque};

use crate::census::{Census, Key};

/// How far back, seconds.
const SPAN_S: f64 = 60.0;
/// Looks are added up until they are this long, seconds.
const PART_S: f64 = 3.0;
/// Tasks kept of one look: those that ran most.
const TASKS: usize = 500;

evenkeel_base::named! {
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Lines {
    #[default]
    Tasks = "threads",
    Processes = "processes",
    /// Containers, pods, machines, services.
    Owners = "owners",
}
}

impl Lines {
    /// The next one, in a circle.
    pub fn next(self) -> Self {
        match self {
            Self::Tasks => Self::Processes,
            Self::Processes => Self::Owners,
            Self::Owners => Self::Tasks,
        }
    }
}

/// What ran in a part of the minute. Sums are percent times seconds.
#[derive(Debug, Clone, Default, PartialEq)]
struct Ran {
    seconds: f64,
    /// By task and CPU.
    tasks: HashMap<(Key, u32), f64>,
    cpus: BTreeMap<u32, f64>,
}

/// The last minute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Heat {
    parts: VecDeque<Ran>,
}

/// A line of the map.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub key: Key,
    /// For people; safe to show.
    pub name: String,
    pub owner: String,
    /// All of it, percent of one CPU.
    pub total: f64,
    /// By CPU, in the order of [`Map::cpus`], percent of that CPU.
    pub cells: Vec<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Map {
    /// CPUs, ascending.
    pub cpus: Vec<u32>,
    /// Busiest first.
    pub rows: Vec<Row>,
    /// Busy percent of each CPU.
    pub busy: Vec<f64>,
    /// Time it is about, seconds.
    pub seconds: f64,
}

impl Heat {
    /// Adds an interval: what each task ran counts for the CPU it was on at its end.
    pub fn observe(&mut self, census: &Census, busy: impl Iterator<Item = (u32, f64)>, interval_s: f64) {
        let tasks = census.items.iter().filter_map(|item| match item.key {
            Key::Task(_) if item.numbers.cpu >= 0.05 => {
                Some(((item.key.clone(), item.core?), item.numbers.cpu))
            }
            _ => None,
        });
        let mut tasks: Vec<_> = tasks.collect();
        tasks.sort_by(|a, b| b.1.total_cmp(&a.1));
        tasks.truncate(TASKS);
        let seconds = if interval_s.is_finite() { interval_s.clamp(0.0, 86_400.0) } else { 0.0 };
        let mut part = match self.parts.pop_back() {
            Some(part) if part.seconds + seconds <= PART_S => part,
            Some(full) => {
                self.parts.push_back(full);
                Ran::default()
            }
            None => Ran::default(),
        };
        part.seconds += seconds;
        for (who, pct) in tasks {
            *part.tasks.entry(who).or_default() += pct * seconds;
        }
        for (cpu, pct) in busy {
            *part.cpus.entry(cpu).or_default() += pct * seconds;
        }
        self.parts.push_back(part);
        let mut span: f64 = self.parts.iter().map(|part| part.seconds).sum();
        while self.parts.len() > 1 && span > SPAN_S {
            span -= self.parts.pop_front().map_or(0.0, |part| part.seconds);
        }
    }

    /// The map of those who still are there; CPUs are those of the last interval.
    pub fn map(&self, census: &Census, lines: Lines) -> Map {
        let Some(last) = self.parts.back() else { return Map::default() };
        let cpus: Vec<u32> = last.cpus.keys().copied().collect();
        let seconds: f64 = self.parts.iter().map(|part| part.seconds).sum();
        let share = |sum: f64| if seconds > 0.0 { sum / seconds } else { 0.0 };
        let column = |cpu: u32| cpus.binary_search(&cpu).ok();
        let mut busy = vec![0.0; cpus.len()];
        let mut sums: HashMap<usize, (f64, Vec<f64>)> = HashMap::new();
        for part in &self.parts {
            for (cpu, sum) in &part.cpus {
                if let Some(at) = column(*cpu) {
                    busy[at] += share(*sum);
                }
            }
            for ((key, cpu), sum) in &part.tasks {
                let Some(task) = census.by_key.get(key) else { continue };
                let who = match lines {
                    Lines::Tasks => Some(*task),
                    Lines::Processes => census.items[*task].parent,
                    Lines::Owners => census.owner_of(*task),
                };
                let Some(who) = who else { continue };
                let (total, cells) = sums.entry(who).or_insert_with(|| (0.0, vec![0.0; cpus.len()]));
                let pct = share(*sum);
                *total += pct;
                if let Some(at) = column(*cpu) {
                    cells[at] += pct;
                }
            }
        }
        let mut rows: Vec<Row> = sums
            .into_iter()
            .map(|(who, (total, cells))| {
                let item = &census.items[who];
                Row {
                    key: item.key.clone(),
                    name: item.name.clone(),
                    owner: item.owner.clone(),
                    total,
                    cells,
                }
            })
            .collect();
        // What would be shown as 0.0.
        rows.retain(|row| row.total >= 0.05);
        rows.sort_by(|a, b| b.total.total_cmp(&a.total).then(a.key.cmp(&b.key)));
        Map { cpus, rows, busy, seconds }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::host;
    use evenkeel_base::TaskId;

    fn moved(to: u32, cpu_pct: f64) -> Census {
        let mut census = host();
        let key = Key::Task(TaskId { tgid: 100, tid: 101, start_time: 7 });
        let at = census.by_key[&key];
        census.items[at].core = Some(to);
        census.items[at].numbers.cpu = cpu_pct;
        census
    }

    #[test]
    fn a_task_that_moved_is_in_two_columns() {
        let mut heat = Heat::default();
        let busy = || [(1, 50.0), (0, 90.0)].into_iter();
        heat.observe(&moved(0, 90.0), busy(), 1.0);
        heat.observe(&moved(1, 60.0), busy(), 2.0);
        let map = heat.map(&moved(1, 0.0), Lines::Tasks);
        assert_eq!(map.cpus, [0, 1]);
        assert!((map.busy[0] - 90.0).abs() < 1e-3 && (map.busy[1] - 50.0).abs() < 1e-3);
        assert_eq!(
            (map.rows[0].name.as_str(), map.rows[0].cells.iter().map(|pct| pct.round()).collect::<Vec<_>>()),
            ("101 worker", vec![30.0, 40.0])
        );
        assert!((map.rows[0].total - 70.0).abs() < 1e-3);
        let owners = heat.map(&moved(1, 0.0), Lines::Owners);
        assert_eq!(owners.rows[0].name, "web (docker)");
    }

    #[test]
    fn it_is_the_last_minute_of_those_who_are_there() {
        let mut heat = Heat::default();
        heat.observe(&moved(0, 90.0), [(0, 90.0)].into_iter(), 1.0);
        (0..609).for_each(|_| heat.observe(&moved(1, 10.0), [(0, 5.0), (1, 10.0)].into_iter(), 0.1));
        assert!(heat.parts.len() <= 21, "{}", heat.parts.len());
        let map = heat.map(&moved(1, 0.0), Lines::Tasks);
        let row = map.rows.iter().find(|row| row.name == "101 worker");
        assert!(row.is_some_and(|row| row.cells[0] == 0.0 && (row.cells[1] - 10.0).abs() < 0.01));
        assert!(heat.map(&Census::default(), Lines::Tasks).rows.is_empty());
        assert_eq!(Heat::default().map(&Census::default(), Lines::Owners), Map::default());
    }
}
