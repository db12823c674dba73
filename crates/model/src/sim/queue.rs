//! The event queue: a binary heap by time, then by order of insertion. Events are cancelled by generation: whoever
//! asks for an event remembers its ticket, and an event whose ticket is no longer the remembered one is skipped.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Event {
    /// The running task of a CPU reaches something: the end of its work, a tick that matters, its quota.
    Cpu(u32),
    /// A task's sleep ends.
    Wake(u32),
    /// A CPU looks for work elsewhere (periodic balancing).
    Balance(u32),
    /// A busy CPU's tick asks idle ones to help.
    Kick,
    /// A group's bandwidth period begins.
    Period(u32),
    /// The hypervisor looks at its rule.
    Steal,
    /// An entry of the scenario's changes.
    Change(u32),
    Measure,
}

/// Events by time, and what the present one leaves to be done before the next.
#[derive(Debug, Default)]
pub(super) struct Queue {
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    tickets: u64,
    /// Events that were not cancelled.
    pub handled: u64,
    /// CPUs that choose again, or whose next event is computed again.
    pub resched: Vec<u32>,
    /// Groups whose pool has something for their throttled queues.
    pub distribution: Vec<u32>,
}

impl Queue {
    /// Adds an event and returns its ticket.
    pub fn push(&mut self, at_ns: u64, event: Event) -> u64 {
        self.tickets += 1;
        self.heap.push(Reverse((at_ns, self.tickets, event)));
        self.tickets
    }

    /// The earliest event: time, ticket, event.
    pub fn pop(&mut self) -> Option<(u64, u64, Event)> {
        self.heap.pop().map(|Reverse(entry)| entry)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earliest_first_and_ties_in_order() {
        let mut queue = Queue::default();
        queue.push(5, Event::Kick);
        let a = queue.push(3, Event::Wake(9));
        let b = queue.push(3, Event::Cpu(0));
        assert_eq!(queue.pop(), Some((3, a, Event::Wake(9))));
        assert_eq!(queue.pop(), Some((3, b, Event::Cpu(0))));
        assert_eq!(queue.pop().map(|e| e.0), Some(5));
        assert_eq!(queue.pop(), None);
    }
}
