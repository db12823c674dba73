//! The limit of background work that shares with services what a hypervisor gives: services are not limited, background work gets
//! what they leave of what all of them together may use.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use evenkeel_base::{CpuQuota, Limit};
use evenkeel_policy::follow::{Window, hungriest_period};
use evenkeel_policy::levers::NEED;

use super::demand::Demand;
use super::place::Counted;

/// What services need is what they used in the hungriest stretch as long as this, microseconds, ...
const STRETCH_USEC: u64 = 1_000_000;
/// ... of so many looks, a tenth of a second apart.
const LOOKS: usize = 50;
/// Limits are powers of this: the journal remembers every value written.
const STEP: f64 = 1.1;
/// Least time before background work gets more again.
const REST: Duration = Duration::from_secs(5);
/// Period of the quotas set, microseconds, ...
const PERIOD_USEC: f64 = 100_000.0;
/// ... and the longest, for those too small for it.
const LONGEST_USEC: f64 = CpuQuota::LONGEST_USEC as f64;

/// Who shares with background work, and what they use.
#[derive(Debug)]
pub(super) struct Beside {
    /// The innermost cgroup that holds services and background work.
    region: Counted,
    path: String,
    /// Processes of services, as last observed.
    services: Vec<u32>,
    /// What all together may use, CPUs.
    total: Option<f64>,
    used: VecDeque<Window>,
    threads: Demand,
    /// When, and CPU time of the region and of background work then, nanoseconds, where it is counted.
    last: Option<(Instant, Option<(u64, u64)>)>,
    written: Option<Instant>,
}

impl Beside {
    pub fn new(region: Counted, path: String) -> Self {
        Self {
            region,
            path,
            services: Vec::new(),
            total: None,
            used: VecDeque::new(),
            threads: Demand::new(),
            last: None,
            written: None,
        }
    }

    pub fn observe(&mut self, services: Vec<u32>) {
        self.services = services;
    }

    pub fn path(&self) -> &str {
        &self.path
    }

    pub fn services(&self) -> Vec<u32> {
        self.services.clone()
    }

    /// All together may use so much from now on, CPUs.
    pub fn allow(&mut self, total: Option<f64>) {
        self.total = total;
    }

    /// Sees what others than background work used since the last look.
    pub fn look(&mut self, background: &Counted) {
        let now = Instant::now();
        let counted = self.region.cpu_ns().zip(background.cpu_ns());
        let Some((then, before)) = self.last.replace((now, counted)) else { return };
        let took = now.duration_since(then);
        let others_ns = match counted.zip(before) {
            Some(((region, own), (region_then, own_then))) => {
                u128::from(region.saturating_sub(region_then).saturating_sub(own.saturating_sub(own_then)))
            }
            // Some cgroup has no CPU time of its own: what services use is that of their threads.
            None => {
                let on = self.threads.look(self.services.iter().copied(), took.as_secs_f64());
                (1e9 * on.values().map(|on| on.ran_s).sum::<f64>()) as u128
            }
        };
        let usec = |ns: u128| u32::try_from(ns / 1000).unwrap_or(u32::MAX);
        self.used.push_back(Window { took_us: usec(took.as_nanos()), used_us: usec(others_ns) });
        if self.used.len() > LOOKS {
            self.used.pop_front();
        }
    }

    /// What others than background work need, CPUs; `None` while that is not known.
    pub fn need(&self) -> Option<f64> {
        let windows: Vec<Window> = self.used.iter().copied().collect();
        let seen: u64 = windows.iter().map(|window| u64::from(window.took_us)).sum();
        (seen >= STRETCH_USEC).then(|| NEED * hungriest_period(&windows, STRETCH_USEC) / 1000.0)
    }

    /// What is to be set where this is in force; `None`: that stays.
    pub fn due(&mut self, in_force: Option<&CpuQuota>) -> Option<CpuQuota> {
        let now = in_force.and_then(CpuQuota::pct);
        let Some(total) = self.total else { return now.map(|_| CpuQuota::UNLIMITED) };
        let to = quota(total - self.need()?);
        let rests = self.written.is_some_and(|then| then.elapsed() < REST);
        let is_due = match (now, to.pct()) {
            (Some(now), Some(to)) => to < 0.95 * now || (to > 1.05 * now && !rests),
            _ => true,
        };
        is_due.then_some(to)
    }

    /// What was due is in force.
    pub fn is_set(&mut self) {
        self.written = Some(Instant::now());
    }

    pub fn words(&self) -> String {
        let pct =
            |cpus: Option<f64>| cpus.map_or_else(|| "?".to_owned(), |cpus| format!("{:.1} %", 100.0 * cpus));
        let total = self.total.map_or_else(|| "no limit".to_owned(), |total| pct(Some(total)));
        let need = self.need();
        format!(
            "all of {} may use {total} of one CPU, {} of it is left to services and others",
            self.path,
            pct(need)
        )
    }
}

/// A quota of about so many CPUs.
fn quota(cpus: f64) -> CpuQuota {
    let least = CpuQuota::LEAST_USEC as f64;
    let cpus = STEP.powf((cpus.max(0.0).log(STEP) + 1e-9).floor()).max(least / LONGEST_USEC);
    let period = (least / cpus).clamp(PERIOD_USEC, LONGEST_USEC);
    let quota_usec = Limit::Value((cpus * period).round().max(least) as u64);
    CpuQuota { quota_usec, period_usec: period.round() as u64, burst_usec: 0 }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    fn counted(dir: &Path, name: &str, used_ms: u64) -> Counted {
        let dir = dir.join(name);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("cpu.stat"), format!("usage_usec {}\n", 1000 * used_ms)).unwrap();
        Counted { dir, usage: None }
    }

    /// Services that used so much of a CPU for two seconds, next to background work that used as much again.
    fn beside(share: f64) -> Beside {
        let mut beside = Beside::new(Counted::default(), "/".into());
        let window = Window { took_us: 100_000, used_us: (1e5 * share) as u32 };
        beside.used.extend([window; 20]);
        beside
    }

    fn due_pct(beside: &mut Beside, in_force: Option<&CpuQuota>) -> Option<f64> {
        beside.due(in_force).map(|quota| quota.pct().unwrap_or(f64::INFINITY))
    }

    #[test]
    fn background_work_gets_what_services_leave_of_what_all_may_use() {
        let mut beside = beside(0.2);
        beside.allow(Some(0.5));
        // 50 less 1.25 times 20, rounded down to a power of 1.1.
        let pct = due_pct(&mut beside, None).unwrap();
        assert!((22.7..=25.0).contains(&pct), "{pct}");
    }

    #[test]
    fn what_is_left_may_be_nothing_and_then_the_kernels_least_is_set() {
        let mut beside = beside(0.6);
        beside.allow(Some(0.5));
        let quota = beside.due(None).unwrap();
        assert_eq!((quota.quota_usec, quota.period_usec), (Limit::Value(1000), 1_000_000));
        // Less than a thousandth of a second in a usual period takes a longer one.
        let small = super::quota(0.005);
        assert_eq!(small.quota_usec, Limit::Value(1000));
        assert!((0.45..=0.5).contains(&small.pct().unwrap()), "{small:?}");
        // A power stays what it is.
        for power in [-1, -5, -9] {
            let share = STEP.powi(power);
            assert!((super::quota(share).pct().unwrap() - 100.0 * share).abs() < 0.001, "{power}");
        }
    }

    #[test]
    fn less_is_set_at_once_and_more_after_a_rest() {
        let mut beside = beside(0.2);
        beside.allow(Some(0.5));
        let first = beside.due(None).unwrap();
        beside.is_set();
        assert_eq!(beside.due(Some(&first)), None, "it is in force");
        beside.allow(Some(0.9));
        assert_eq!(beside.due(Some(&first)), None, "it rests");
        beside.allow(Some(0.3));
        let less = beside.due(Some(&first)).unwrap();
        assert!(less.pct() < first.pct());
        beside.written = Instant::now().checked_sub(REST);
        beside.allow(Some(0.9));
        assert!(beside.due(Some(&less)).unwrap().pct() > first.pct());
    }

    #[test]
    fn a_limit_that_is_about_right_stays_whoever_rounded_it() {
        let mut beside = beside(0.2);
        beside.allow(Some(0.9));
        let right = beside.due(None).unwrap().pct().unwrap();
        assert!((60.0..65.0).contains(&right), "{right}");
        for (off, is_due) in [(1.0, false), (0.97, false), (1.03, false), (0.94, true), (1.06, true)] {
            let quota_usec = Limit::Value((off * right * 1000.0) as u64);
            let in_force = CpuQuota { quota_usec, ..CpuQuota::UNLIMITED };
            assert_eq!(beside.due(Some(&in_force)).is_some(), is_due, "{off} of {right}");
        }
    }

    #[test]
    fn without_a_total_no_limit_is_set_and_one_in_force_goes() {
        let mut beside = beside(0.2);
        assert_eq!(beside.due(None), None);
        assert_eq!(beside.due(Some(&quota(0.2))), Some(CpuQuota::UNLIMITED));
    }

    #[test]
    fn use_that_is_not_known_is_not_zero() {
        let mut beside = beside(0.2);
        beside.allow(Some(0.5));
        beside.used.truncate(10);
        assert!(beside.need().is_some_and(|need| (need - 0.25).abs() < 1e-9), "{:?}", beside.need());
        assert!(
            beside
                .words()
                .ends_with("all of / may use 50.0 % of one CPU, 25.0 % of it is left to services and others")
        );
        beside.used.truncate(9);
        assert_eq!((beside.need(), beside.due(None)), (None, None));
        assert!(beside.words().ends_with("50.0 % of one CPU, ? of it is left to services and others"));
    }

    #[test]
    fn what_is_not_background_work_is_what_others_use() {
        let root = tempfile::tempdir().unwrap();
        let region = counted(root.path(), "region", 1000);
        let mut beside = Beside::new(region, "/region".into());
        beside.look(&counted(root.path(), "background", 400));
        std::thread::sleep(Duration::from_millis(20));
        counted(root.path(), "region", 1070);
        beside.look(&counted(root.path(), "background", 450));
        assert_eq!(beside.used.iter().map(|window| window.used_us).collect::<Vec<_>>(), [20_000]);
    }

    #[test]
    fn so_many_looks_are_remembered() {
        let mut beside = Beside::new(Counted::default(), "/region".into());
        beside.observe(vec![7, 9]);
        assert_eq!((beside.path(), beside.services()), ("/region", vec![7, 9]));
        beside.observe(Vec::new());
        (0..LOOKS).for_each(|_| beside.look(&Counted::default()));
        assert_eq!(beside.used.len(), LOOKS - 1, "the first look has none before it");
        (0..2).for_each(|_| beside.look(&Counted::default()));
        assert_eq!(beside.used.len(), LOOKS);
    }

    #[test]
    fn where_a_cgroup_is_not_counted_the_threads_of_services_are() {
        let mut beside = Beside::new(Counted::default(), "/region".into());
        beside.observe(vec![std::process::id()]);
        beside.look(&Counted::default());
        let used = |beside: &Beside| beside.used.back().map_or(0, |window| window.used_us);
        // On a busy host it may not get its turn at once.
        for _ in 0..50 {
            if used(&beside) > 5_000 {
                break;
            }
            let began = Instant::now();
            let mut work = 0u64;
            while began.elapsed() < Duration::from_millis(60) {
                work = std::hint::black_box(work + 1);
            }
            beside.look(&Counted::default());
        }
        assert!((5_000..900_000).contains(&used(&beside)), "{:?}", beside.used);
    }
}
