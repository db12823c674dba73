//! Which CPU a task gets when it wakes or is new: `select_task_rq_fair`, `select_idle_sibling`, `sched_balance_find_dst_cpu`.

use evenkeel_base::CpuSet;

use super::engine::Sim;
use super::state::NONE;

/// Half of `imbalance_pct` of siblings: a new process goes elsewhere only for more than this.
const FORK_MARGIN: f64 = 1.05;

impl Sim<'_> {
    pub(super) fn set_allowed(&mut self, task: u32, cpus: &CpuSet) {
        let all = cpus.len() == self.cpus.len();
        let mut words = vec![0u64; self.cpus.len().div_ceil(64)];
        for cpu in cpus.iter() {
            if let Some(index) = self.scenario_cpu(cpu) {
                words[index / 64] |= 1 << (index % 64);
            }
        }
        let t = &mut self.tasks[task as usize];
        t.allowed_count = words.iter().map(|w| w.count_ones()).sum();
        t.allowed = if all { Vec::new() } else { words };
    }

    /// CPU for a waking task.
    pub(super) fn select_cpu(&mut self, task: u32, initial: bool) -> u32 {
        let t = &self.tasks[task as usize];
        let previous = t.cpu;
        if initial {
            return self.least_loaded(task);
        }
        if !t.policy.is_fair() {
            return self.select_rt(task);
        }
        if !t.may_run_on(previous) {
            return self.least_loaded(task);
        }
        let recent = std::mem::replace(&mut self.tasks[task as usize].used_cpu, previous);
        let t = &self.tasks[task as usize];
        if t.allowed_count == 1 || self.takes(previous) {
            return previous;
        }
        let smt = !self.cpus[previous as usize].spans[0].is_empty();
        let ring = &self.cpus[previous as usize].spans[1];
        if recent != NONE
            && recent != previous
            && ring.contains(&recent)
            && t.may_run_on(recent)
            && self.takes(recent)
        {
            return recent;
        }
        let scan = self.cpus[previous as usize].scan as usize;
        if smt {
            for &cpu in ring.iter().take(scan) {
                if t.may_run_on(cpu) && self.core_idle(cpu) {
                    return cpu;
                }
            }
            for &cpu in &self.cpus[previous as usize].spans[0] {
                if t.may_run_on(cpu) && self.takes(cpu) {
                    return cpu;
                }
            }
        }
        let mut others = ring.iter().copied().take(scan);
        others.find(|&cpu| t.may_run_on(cpu) && self.takes(cpu)).unwrap_or(previous)
    }

    /// Whether a waking task finds a CPU free: idle, or running SCHED_IDLE tasks alone (`sched_idle_cpu`).
    fn takes(&self, cpu: u32) -> bool {
        let c = &self.cpus[cpu as usize];
        let tasks = self.queues[cpu as usize].tasks;
        self.available(cpu) || (tasks > 0 && c.idle_tasks == tasks && c.rt.is_empty())
    }

    /// The allowed CPU with the fewest tasks; idle cores first (`sched_balance_find_dst_cpu`).
    fn least_loaded(&self, task: u32) -> u32 {
        let t = &self.tasks[task as usize];
        let count = self.cpus.len() as u32;
        let start = t.cpu % count.max(1);
        let mut best = (u64::MAX, start);
        for step in 0..count {
            let cpu = (start + step) % count;
            if !t.may_run_on(cpu) {
                continue;
            }
            let c = &self.cpus[cpu as usize];
            let own = u64::from(self.queues[cpu as usize].tasks) + c.rt.len() as u64;
            let siblings: u64 = c.spans[0].iter().map(|&s| u64::from(self.queues[s as usize].tasks)).sum();
            let load = own * 1024 + siblings;
            if load < best.0 {
                best = (load, cpu);
            }
        }
        best.1
    }

    /// CPU for a run, which is a new process: an idle one, or the one of least load unless the present one is about as good
    /// (`sched_balance_find_dst_cpu`, called at fork and exec).
    pub(super) fn select_for_fork(&mut self, task: u32) -> u32 {
        let now = self.now;
        let home = self.tasks[task as usize].cpu;
        let mut best = (f64::INFINITY, home);
        let mut own = f64::INFINITY;
        for cpu in 0..self.cpus.len() as u32 {
            if !self.tasks[task as usize].may_run_on(cpu) {
                continue;
            }
            let load = if self.available(cpu) {
                0.0
            } else {
                let q = &mut self.queues[cpu as usize];
                q.load.read(now).max(q.weight)
            };
            if cpu == home {
                own = load;
            }
            if load < best.0 {
                best = (load, cpu);
            }
        }
        if own <= FORK_MARGIN * best.0 { home } else { best.1 }
    }
}
