//! The tenant itself: waits at the gate, does its runs back to back, and tells about each.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_base::{Nice, SchedAttr, SchedPolicy};
use evenkeel_experiment::record::{Account, RunRecord};
use evenkeel_linux::cgroupfs::{self, CpuStat};
use evenkeel_linux::schedstat;
use evenkeel_linux::sys::{self, RawSchedAttr, Usage};

use super::command;
use super::order::{Answer, Order, Work};
use evenkeel_workload::burn::{monotonic_ns, no_timer_slack, sleep_until, steps_per_ns};
use evenkeel_workload::load::{LoadSpec, run as run_load, stop_flag_on_signals};
use evenkeel_workload::page::{Page, Progress};

/// Runs the tenant whose order is in a file; gives its exit status.
pub fn run(order: &Path) -> u8 {
    let order: Order = match std::fs::read_to_string(order).map(|text| serde_json::from_str(&text)) {
        Ok(Ok(order)) => order,
        Ok(Err(error)) => {
            tracing::error!("{}: {error}", order.display());
            return 2;
        }
        Err(error) => {
            tracing::error!("{}: {error}", order.display());
            return 3;
        }
    };
    let mut answers = match OpenOptions::new().append(true).create(true).open(&order.answers) {
        Ok(file) => Answers(file),
        Err(error) => {
            tracing::error!("{}: {error}", order.answers.display());
            return 3;
        }
    };
    match Tenant::new(&order).and_then(|tenant| tenant.run(&mut answers)) {
        Ok(()) => 0,
        Err(what) => {
            answers.tell(&Answer::Failed(what));
            1
        }
    }
}

/// The file answers are appended to; what cannot be written is lost, and the starter sees that it is missing.
pub(super) struct Answers(File);

impl Answers {
    pub fn tell(&mut self, answer: &Answer) {
        if let Ok(mut line) = serde_json::to_vec(answer) {
            line.push(b'\n');
            let _ = self.0.write_all(&line);
        }
    }
}

struct Tenant<'a> {
    order: &'a Order,
    page: Page,
    stop: &'static AtomicBool,
    progress: Progress,
    cpu_stat: Option<&'a Path>,
}

/// Counters of this process and of the children it has reaped.
#[derive(Clone, Copy)]
struct Counters {
    at_ns: u64,
    usage: Usage,
    throttled: Option<CpuStat>,
}

fn usage() -> Usage {
    let (own, children) = (sys::usage(libc::RUSAGE_SELF), sys::usage(libc::RUSAGE_CHILDREN));
    Usage {
        user_s: own.user_s + children.user_s,
        sys_s: own.sys_s + children.sys_s,
        voluntary: own.voluntary + children.voluntary,
        involuntary: own.involuntary + children.involuntary,
        ..own
    }
}

impl Counters {
    fn now(cpu_stat: Option<&Path>) -> Self {
        let throttled = cpu_stat.and_then(|path| std::fs::read_to_string(path).ok());
        let throttled = throttled.and_then(|text| cgroupfs::parse_cpu_stat(&text).ok());
        Self { at_ns: monotonic_ns(), usage: usage(), throttled }
    }

    fn account_since(&self, before: &Self) -> Account {
        let (now, then) = (&self.usage, &before.usage);
        let throttle = |f: fn(&CpuStat) -> Option<u64>| {
            Some(f(self.throttled.as_ref()?)?.saturating_sub(f(before.throttled.as_ref()?)?))
        };
        Account {
            real_s: self.at_ns.saturating_sub(before.at_ns) as f64 / 1e9,
            user_s: Some((now.user_s - then.user_s).max(0.0)),
            sys_s: Some((now.sys_s - then.sys_s).max(0.0)),
            throttled_s: throttle(|s| s.throttled_ns).map(|ns| ns as f64 / 1e9),
            throttled_count: throttle(|s| s.nr_throttled),
            voluntary: Some(now.voluntary.saturating_sub(then.voluntary)),
            involuntary: Some(now.involuntary.saturating_sub(then.involuntary)),
            ..Account::default()
        }
    }
}

impl<'a> Tenant<'a> {
    fn new(order: &'a Order) -> Result<Self, String> {
        let page = Page::open(&order.page).map_err(|e| e.to_string())?;
        let stop = stop_flag_on_signals();
        set_attributes(order)?;
        no_timer_slack();
        if matches!(order.work, Work::Load(_)) {
            // Measured once a process: before the gate, where it disturbs nobody.
            steps_per_ns();
        }
        let progress = Progress {
            pid: std::process::id(),
            tid: rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs(),
            ..Progress::default()
        };
        let cpu_stat = order.cpu_stat.iter().map(std::path::PathBuf::as_path).find(|path| path.is_file());
        Ok(Self { order, page, stop, progress, cpu_stat })
    }

    fn run(mut self, answers: &mut Answers) -> Result<(), String> {
        self.page.write(self.order.slot, &self.progress);
        let Some(instant) = self.wait_gate()? else { return Ok(()) };
        let start = instant + self.order.offset_ns;
        let before = run_delay_ns();
        while !self.stopped() && monotonic_ns() < start && !sleep_until(start) {}
        let first = monotonic_ns();
        let waited = before.zip(run_delay_ns()).map(|(before, after)| after.saturating_sub(before));
        let first_late_ns = first.saturating_sub(start);
        let woken_late_ns = waited.map(|waited| first_late_ns.saturating_sub(waited));
        self.progress.started_ns = first;
        self.progress.late_ns = first_late_ns;
        self.page.write(self.order.slot, &self.progress);
        let begin = Counters::now(self.cpu_stat);
        answers.tell(&Answer::Released { woken_late_ns, first_late_ns });
        let mut waited_s = Some(0.0);
        let mut migrations = Some(0);
        let mut number = 0;
        while (self.order.background || number < self.order.runs) && !self.stopped() {
            let run = self.one_run(number, instant, answers)?;
            waited_s = waited_s.zip(run.account.waited_s).map(|(a, b)| a + b);
            migrations = migrations.zip(run.account.migrations).map(|(a, b)| a + b);
            answers.tell(&Answer::Run(run));
            number += 1;
            self.progress.cycles = u64::from(number);
            self.page.write(self.order.slot, &self.progress);
        }
        let mut total = Counters::now(self.cpu_stat).account_since(&begin);
        total.waited_s = waited_s;
        total.migrations = migrations;
        answers.tell(&Answer::Total(total));
        Ok(())
    }

    fn one_run(&self, number: u32, instant: u64, answers: &mut Answers) -> Result<RunRecord, String> {
        let before = Counters::now(self.cpu_stat);
        let mut run = match &self.order.work {
            Work::Load(spec) => run_once(spec, self.stop)?,
            Work::Command(words) => {
                let (run, note) = command::run_once(words, self.stop)?;
                if let Some(note) = note {
                    answers.tell(&Answer::Note(format!("run {}: {note}", number + 1)));
                }
                run
            }
        };
        let after = Counters::now(self.cpu_stat);
        let (waited_s, migrations) = (run.account.waited_s, run.account.migrations);
        run.account = after.account_since(&before);
        run.account.waited_s = waited_s;
        run.account.migrations = migrations;
        run.number = number;
        run.cut_off = self.stopped();
        run.start_s = before.at_ns.saturating_sub(instant) as f64 / 1e9;
        run.end_s = after.at_ns.saturating_sub(instant) as f64 / 1e9;
        Ok(run)
    }

    fn wait_gate(&self) -> Result<Option<u64>, String> {
        loop {
            if let Some(start) = self.page.wait_gate(Duration::from_millis(500)) {
                return Ok(Some(start));
            }
            if self.stopped() {
                return Ok(None);
            }
            if self.order.owned && self.page.owner_is_gone() {
                return Err("the process that started this tenant is gone".into());
            }
        }
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// One call of a built-in load.
fn run_once(spec: &LoadSpec, stop: &AtomicBool) -> Result<RunRecord, String> {
    let report = run_load(spec, stop).map_err(|e| e.to_string())?;
    Ok(RunRecord {
        events: Some(report.events),
        events_per_s: report.events_per_s,
        account: Account { waited_s: report.waited_s, migrations: report.migrations, ..Account::default() },
        cpus: Some(report.cpus).filter(|cpus| !cpus.is_empty()),
        ..RunRecord::default()
    })
}

fn set_attributes(order: &Order) -> Result<(), String> {
    if let Some(cpus) = &order.cpus {
        sys::setaffinity(0, cpus).map_err(|e| format!("cannot be confined to the CPUs {cpus}: {e}"))?;
    }
    let attr = SchedAttr {
        policy: SchedPolicy::from_raw(order.policy).unwrap_or(SchedPolicy::Other),
        nice: Nice::new(order.nice),
        slice_ns: order.slice_ns,
        ..SchedAttr::DEFAULT
    };
    if attr != SchedAttr::DEFAULT {
        sys::sched_setattr(0, &RawSchedAttr::encode(&attr))
            .map_err(|e| format!("cannot become {attr}: {e}"))?;
    }
    Ok(())
}

/// Time the calling thread has waited for a CPU so far; `None` without schedstat.
fn run_delay_ns() -> Option<u64> {
    Some(schedstat::of_this_thread()?.waited_ns)
}
