//! Where a target's time went: the document (`evenkeel.why/v1`), its text, its pictures, and what it advises.

mod advice;
mod machine;
mod page;
mod picture;
mod text;

use evenkeel_base::is_at_or_below;
use serde::Serialize;

pub use advice::{Advice, Facts, advise};
pub use machine::Machine;
pub use page::{host_page, target_page};
pub use picture::{host_picture, target_picture};
pub use text::{MatrixRow, blame_table, host_text, matrix_rows, matrix_table, target_text};

/// Where the time of a target's threads went. Seconds are summed over threads.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Split {
    /// On a CPU, stolen time left out.
    pub ran_s: f64,
    /// Runnable but not running, throttled time left out where it is known.
    pub waited_s: f64,
    /// Runnable but held back by a quota; `None` when not known.
    pub throttled_s: Option<f64>,
    /// On a CPU that the hypervisor had given to others; `None` when not known.
    pub stolen_s: Option<f64>,
    /// Not runnable: asleep or stopped.
    pub slept_s: f64,
}

/// A [`Split`] in percent of the threads' time; together 100.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Shares {
    /// See [`Split::ran_s`].
    pub ran: f64,
    /// See [`Split::waited_s`].
    pub waited: f64,
    /// See [`Split::throttled_s`].
    pub throttled: Option<f64>,
    /// See [`Split::stolen_s`].
    pub stolen: Option<f64>,
    /// See [`Split::slept_s`].
    pub slept: f64,
}

impl Split {
    /// The threads' time, seconds.
    pub fn total_s(&self) -> f64 {
        self.wanted_s() + self.slept_s
    }

    /// The time in which they could use a CPU, seconds.
    pub fn wanted_s(&self) -> f64 {
        self.ran_s + self.waited_s + self.throttled_s.unwrap_or(0.0) + self.stolen_s.unwrap_or(0.0)
    }

    /// In percent; `None` when no time was seen.
    pub fn shares(&self) -> Option<Shares> {
        self.shares_of(self.total_s())
    }

    /// In percent of another whole, such as [`Split::wanted_s`].
    pub fn shares_of(&self, whole_s: f64) -> Option<Shares> {
        let pct = |s: f64| 100.0 * s / whole_s;
        (whole_s > 0.0).then(|| Shares {
            ran: pct(self.ran_s),
            waited: pct(self.waited_s),
            throttled: self.throttled_s.map(pct),
            stolen: self.stolen_s.map(pct),
            slept: pct(self.slept_s),
        })
    }

    /// Adds another's time; what one of them does not know, the sum does not.
    pub fn add(&mut self, other: &Self) {
        self.ran_s += other.ran_s;
        self.waited_s += other.waited_s;
        self.slept_s += other.slept_s;
        self.throttled_s = self.throttled_s.zip(other.throttled_s).map(|(a, b)| a + b);
        self.stolen_s = self.stolen_s.zip(other.stolen_s).map(|(a, b)| a + b);
    }
}

/// Waits in the run queue by length, throttled time left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Waits {
    pub count: u64,
    /// Half of them were no longer, microseconds; `None` without any.
    pub p50_usec: Option<f64>,
    /// 99 % of them were no longer, microseconds.
    pub p99_usec: Option<f64>,
    /// The longest, microseconds.
    pub max_usec: Option<f64>,
    /// Counts by powers of two.
    pub buckets: Vec<Bucket>,
}

/// One bar of a histogram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// Microseconds, included.
    pub from: u64,
    /// Microseconds, excluded.
    pub to: u64,
    /// Waits of this length.
    pub count: u64,
}

evenkeel_base::named! {
/// Kind of somebody who had the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    Task = "task",
    /// A container (or another group of tasks) as a whole.
    Container = "container",
    KernelThread = "kernel-thread",
    Irq = "irq",
    /// Deferred work of interrupts.
    Softirq = "softirq",
    /// Nobody: the CPU was on its way out of idling.
    #[default]
    Idle = "idle",
}
}

/// Somebody who ran while the target was runnable on the same CPU.
#[derive(Debug, Clone, PartialEq, Default, Serialize)]
pub struct Blame {
    pub kind: Kind,
    /// Name of the task, the interrupt, ...
    pub name: String,
    /// Process; `None` for what is none.
    pub tgid: Option<u32>,
    pub tid: Option<u32>,
    pub container: Option<String>,
    /// Its pod, `NAMESPACE/NAME`.
    pub pod: Option<String>,
    /// Its group of the cpu controller.
    pub cgroup: Option<String>,
    /// Belongs to the target itself.
    pub own: bool,
    /// For how long, seconds, summed over the target's waiting threads.
    pub seconds: f64,
    /// Percent of the time the target waited.
    pub share_pct: f64,
}

impl Blame {
    /// Its container, told from those of other pods that have the same name.
    pub fn place(&self) -> Option<String> {
        self.container.as_deref().map(|container| place(container, self.pod.as_deref()))
    }
}

/// A container's name, after its pod's where it is in one: many pods have a container of the same name.
pub fn place(container: &str, pod: Option<&str>) -> String {
    pod.map_or_else(|| container.to_owned(), |pod| format!("{pod}/{container}"))
}

/// The list with tasks of one name in one place together, their number in the name; most first.
pub fn by_name(blame: &[Blame]) -> Vec<Blame> {
    let mut merged: Vec<(Blame, usize)> = Vec::new();
    for row in blame {
        let same = |(other, _): &&mut (Blame, usize)| {
            row.kind == Kind::Task
                && (other.kind, other.own) == (row.kind, row.own)
                && (&other.name, &other.cgroup) == (&row.name, &row.cgroup)
        };
        match merged.iter_mut().find(same) {
            Some((sum, count)) => {
                sum.seconds += row.seconds;
                sum.share_pct += row.share_pct;
                (sum.tid, sum.tgid) = (None, sum.tgid.filter(|tgid| row.tgid == Some(*tgid)));
                *count += 1;
            }
            None => merged.push((row.clone(), 1)),
        }
    }
    let named = |(row, count): (Blame, usize)| match count {
        1 => row,
        _ => Blame { name: format!("{} ({count} threads)", row.name), ..row },
    };
    let mut list: Vec<Blame> = merged.into_iter().map(named).collect();
    list.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    list
}

/// The other task that had the CPU for longest, tasks of one name in one place taken together: whom advice names, and whose weight it
/// compares.
pub fn rival(blame: &[Blame]) -> Option<Blame> {
    by_name(blame).into_iter().find(|row| !row.own && row.kind == Kind::Task)
}

/// A quota that held the target back.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ThrottledBy {
    /// The group whose quota it is: the target's own or an ancestor. `None` when not seen.
    pub cgroup: Option<String>,
    /// For how long, seconds, summed over threads; `None` when not known.
    pub seconds: Option<f64>,
    /// Quota in a period, microseconds.
    pub quota_usec: Option<u64>,
    pub period_usec: Option<u64>,
    /// Periods in which the group was throttled, and periods in which it had work.
    pub periods: Option<[u64; 2]>,
}

/// `evenkeel.why/v1`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Target {
    pub schema: &'static str,
    pub target: String,
    /// `bpf`, or `proc` where that is not to be had.
    pub source: &'static str,
    /// When it began, RFC 3339.
    pub started: Option<String>,
    /// How long was looked, seconds.
    pub wall_s: f64,
    /// Threads of the target at the end.
    pub threads: usize,
    #[serde(flatten)]
    pub split: Split,
    /// In percent, together 100.
    pub shares: Option<Shares>,
    /// Time in which the target could use a CPU, seconds.
    pub wanted_s: f64,
    /// Part of the sleep that could not be interrupted (disk, locks).
    pub blocked_s: Option<f64>,
    /// Part of the sleep in which it was stopped by a signal or a tracer.
    pub stopped_s: Option<f64>,
    /// Part of the run in which interrupts were served.
    pub interrupted_s: Option<f64>,
    /// Times a thread was moved to another CPU.
    pub migrations: Option<u64>,
    /// Times a thread had to leave a CPU though it wanted on.
    pub preemptions: Option<u64>,
    /// Times a thread left a CPU by itself.
    pub voluntary: Option<u64>,
    pub wait_histogram_usec: Option<Waits>,
    /// Who ran while the target waited, most first.
    pub blame: Option<Vec<Blame>>,
    pub throttled_by: Vec<ThrottledBy>,
    /// Events were lost: times are at least what is reported.
    pub at_least: bool,
    pub lost: u64,
    /// The target was gone before the time was over.
    pub gone: bool,
    /// What its guest sees of this, for a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vm: Option<Machine>,
    pub advice: Vec<Advice>,
    pub notes: Vec<String>,
}

impl Target {
    /// The quota that held it back for longest.
    pub fn worst_quota(&self) -> Option<&ThrottledBy> {
        self.throttled_by.iter().max_by(|a, b| a.seconds.unwrap_or(0.0).total_cmp(&b.seconds.unwrap_or(0.0)))
    }

    /// For how long its quotas held it back, seconds: at least, and at most. Where one cgroup is in another that has a quota, too,
    /// both may have held it back at once: at least for as long as one of them did, the outer or all those in it together. Outer
    /// cgroups come before those in them.
    pub fn held_back_s(&self) -> (f64, f64) {
        let rows = &self.throttled_by;
        let seconds = |row: &ThrottledBy| row.seconds.unwrap_or(0.0);
        let path =
            |row: &ThrottledBy| row.cgroup.clone().unwrap_or_default().trim_end_matches('/').to_owned();
        let mut inside = vec![0.0; rows.len()];
        let mut least = 0.0;
        for (at, row) in rows.iter().enumerate().rev() {
            let held = seconds(row).max(inside[at]);
            let outer = rows[..at].iter().rposition(|outer| is_at_or_below(&path(row), &path(outer)));
            match outer {
                Some(outer) => inside[outer] += held,
                None => least += held,
            }
        }
        (least, rows.iter().map(seconds).sum())
    }
}

/// A row of the host-wide view: a container, or what belongs to none.
#[derive(Debug, Clone, Serialize)]
pub struct Group {
    /// Name of the container, after its pod's where it is in one, or of the cgroup.
    pub name: String,
    /// Its pod, `NAMESPACE/NAME`.
    pub pod: Option<String>,
    /// `container`, or `group` for what belongs to none.
    pub kind: &'static str,
    #[serde(flatten)]
    pub split: Split,
    /// In percent of the time its threads could use a CPU; together 100 without the sleep.
    pub shares_of_wanted: Option<Shares>,
    pub wait_histogram_usec: Waits,
}

/// One cell of the matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Cell {
    /// Who waited: index into [`Host::groups`].
    pub victim: usize,
    /// Who ran: index into [`Host::culprits`].
    pub culprit: usize,
    /// For how long, seconds, summed over waiting threads.
    pub seconds: f64,
    /// Percent of the victim's waiting.
    pub share_pct: f64,
}

/// A column of the matrix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Column {
    pub kind: Kind,
    pub name: String,
    /// Index into [`Host::groups`] where it is one of them.
    pub group: Option<usize>,
    /// Sum over its victims, seconds.
    pub seconds: f64,
}

/// `evenkeel.why-all/v1`.
#[derive(Debug, Clone, Serialize)]
pub struct Host {
    pub schema: &'static str,
    /// When it began, RFC 3339.
    pub started: Option<String>,
    /// How long was looked, seconds.
    pub wall_s: f64,
    /// Online CPUs.
    pub cpus: u32,
    /// Who wanted CPU, most waiting first.
    pub groups: Vec<Group>,
    /// Who ran meanwhile, most first.
    pub culprits: Vec<Column>,
    /// Who waited while who ran.
    pub matrix: Vec<Cell>,
    /// Events were lost: times are at least what is reported.
    pub at_least: bool,
    pub lost: u64,
}

/// A time for people: `12 us`, `4.1 ms`, `1.25 s`.
pub fn span(usec: f64) -> String {
    match usec {
        usec if !usec.is_finite() => "?".to_owned(),
        usec if usec < 10.0 => format!("{usec:.1} us"),
        usec if usec < 999.5 => format!("{usec:.0} us"),
        usec if usec < 9_995.0 => format!("{:.1} ms", usec / 1e3),
        usec if usec < 999_500.0 => format!("{:.0} ms", usec / 1e3),
        usec => format!("{:.2} s", usec / 1e6),
    }
}

#[cfg(test)]
pub(crate) mod tests;
