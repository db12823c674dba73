//! How late a look came because time stood still. Where the looking thread waited for a CPU itself, others had it, and the hypervisor took
//! nothing.

use std::time::Duration;

use evenkeel_linux::schedstat;

#[derive(Debug, Default)]
pub(super) struct Late {
    /// How long this thread has waited for a CPU, nanoseconds.
    waited_ns: Option<u64>,
}

impl Late {
    /// Of the time that the calling thread overslept, that in which it did not wait for a CPU.
    pub fn look(&mut self, overslept: Duration) -> Duration {
        self.note(overslept, schedstat::of_this_thread().map(|own| own.waited_ns))
    }

    fn note(&mut self, overslept: Duration, now_ns: Option<u64>) -> Duration {
        let before_ns = std::mem::replace(&mut self.waited_ns, now_ns);
        let waited_ns = now_ns.zip(before_ns).map_or(0, |(now, before)| now.saturating_sub(before));
        overslept.saturating_sub(Duration::from_nanos(waited_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waited_for_a_cpu_was_not_late_for_that_long() {
        let ms = Duration::from_millis;
        let mut late = Late::default();
        let mut note =
            |overslept, waited: Option<u64>| late.note(ms(overslept), waited.map(|ms| 1_000_000 * ms));
        assert_eq!(note(80, Some(70)), ms(80), "how much of it was since the last look is not known");
        assert_eq!((note(80, Some(140)), note(80, Some(140)), note(80, Some(300))), (ms(10), ms(80), ms(0)));
        assert_eq!((note(80, None), note(80, Some(400))), (ms(80), ms(80)));
    }

    #[test]
    fn what_this_thread_waited_is_read() {
        let mut late = Late::default();
        late.look(Duration::ZERO);
        assert!(late.waited_ns.is_some());
    }
}
