//! Steal inside a virtual machine, explained from outside.
//!
//! What a guest's `top` calls steal is the time its vCPU threads were runnable on the host and did not run: KVM hands the
//! guest the threads' `run_delay` (`record_steal_time` in arch/x86/kvm/x86.c, `kvm_update_stolen_time` on arm64), which
//! includes the time a quota held them back.

use serde::Serialize;

/// What a machine's guest sees of the host's scheduling, over the time looked at.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Machine {
    /// vCPU threads.
    pub vcpus: usize,
    /// Other threads of the machine: the emulator's and those for I/O.
    pub other_threads: usize,
    /// Time the vCPU threads ran, seconds, summed over them.
    pub vcpus_ran_s: f64,
    /// Steal the guest sees, or would with a steal clock: the vCPU threads' wait in the host's run queues, throttled time
    /// included, seconds, summed over them. `None` where the kernel does not count it, or a vCPU came or went.
    pub steal_inside_s: Option<f64>,
    /// The same in percent of the vCPUs' time, as tools inside show it.
    pub steal_inside_pct: Option<f64>,
    /// Whether the guest can see it: under KVM, where the guest uses its steal clock, not when it is emulated. `None`:
    /// not known.
    pub steal_clock: Option<bool>,
}

impl Machine {
    pub fn words(&self) -> String {
        let Some((seconds, pct)) = self.steal_inside_s.zip(self.steal_inside_pct) else {
            return format!(
                "steal inside: not known; no complete count of the waits of its {} vCPU threads",
                self.vcpus
            );
        };
        let sees = match self.steal_clock {
            Some(true) => "the guest sees",
            Some(false) => "the guest is emulated and has no steal clock; under KVM it would see",
            None => "a guest with a steal clock sees",
        };
        let threads = if self.vcpus == 1 {
            "the vCPU thread's wait".to_owned()
        } else {
            format!("the {} vCPU threads' waits", self.vcpus)
        };
        format!(
            "steal inside: {sees} {seconds:.3} s of steal, {pct:.1} % of its CPU time: {threads} in this host's run \
             queues, throttled time included"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_is_said() {
        let known = Machine {
            vcpus: 2,
            steal_inside_s: Some(1.0),
            steal_inside_pct: Some(25.0),
            steal_clock: Some(true),
            ..Machine::default()
        };
        assert!(known.words().contains("sees 1.000 s of steal, 25.0 %"), "{}", known.words());
        let emulated = Machine { steal_clock: Some(false), ..known.clone() };
        assert!(emulated.words().contains("would see"), "{}", emulated.words());
        assert!(Machine { steal_inside_s: None, ..known }.words().contains("not known"));
    }
}
