//! Scrapes in their order, and what they say of a time: pure, with the clock given.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use evenkeel_policy::requests::Requests;

use super::page::Point;

pub(crate) type Span = (Instant, Instant);

/// A scrape sent so long before an instant is of that instant, too.
pub(crate) const SLACK: Duration = Duration::from_millis(30);
/// Share of a window by which an answer may come late: what was counted meanwhile is another window's.
const LATE: f64 = 0.25;
const LEAST_LATE: Duration = Duration::from_millis(50);
const REMEMBERED: usize = 512;
/// How long nobody waits for the answer that ends a window.
const PATIENCE: Duration = Duration::from_secs(3);

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Scrape {
    pub sent: Instant,
    pub got: Instant,
    /// What it says, or why it says nothing.
    pub point: Result<Point, String>,
}

/// The last scrapes.
#[derive(Debug, Default)]
pub(crate) struct Log {
    scrapes: VecDeque<Scrape>,
    count: u64,
}

impl Log {
    pub fn add(&mut self, scrape: Scrape) {
        self.count += 1;
        self.scrapes.push_back(scrape);
        while self.scrapes.len() > REMEMBERED {
            self.scrapes.pop_front();
        }
    }

    /// Those after so many, and how many there are now.
    pub fn after(&self, count: u64) -> (Vec<Scrape>, u64) {
        let new = usize::try_from(self.count.saturating_sub(count)).unwrap_or(usize::MAX);
        let skip = self.scrapes.len().saturating_sub(new);
        (self.scrapes.iter().skip(skip).cloned().collect(), self.count)
    }

    /// Requests of a window that ended; `None` until that is known, `Some(None)` where it never will be.
    pub fn between(&self, (from, to): Span, now: Instant) -> Option<Option<Requests>> {
        let at = |instant: Instant| self.scrapes.iter().find(|scrape| scrape.sent + SLACK >= instant);
        let Some(last) = at(to) else {
            return (now > to + PATIENCE).then_some(None);
        };
        let most_late = to.saturating_duration_since(from).mul_f64(LATE).max(LEAST_LATE);
        let in_time = |scrape: &Scrape, instant: Instant| scrape.got <= instant + most_late;
        let first =
            at(from).filter(|first| in_time(first, from) && in_time(last, to) && first.sent < last.sent);
        Some(first.and_then(|first| difference(first, last)))
    }

    /// Requests from scrape to scrape since an instant, but for the times that do not count.
    pub fn since(&self, since: Instant, but: &[Span]) -> Vec<Requests> {
        let pairs =
            self.scrapes.iter().zip(self.scrapes.iter().skip(1)).filter(|(first, _)| first.sent >= since);
        let counts = |first: &Scrape, last: &Scrape| {
            !but.iter().any(|(from, to)| first.sent < *to && last.got > *from)
        };
        pairs
            .filter(|(first, last)| counts(first, last))
            .filter_map(|(first, last)| difference(first, last))
            .collect()
    }
}

/// Requests between two scrapes; `None` where one says nothing, or counts started again between them.
fn difference(first: &Scrape, last: &Scrape) -> Option<Requests> {
    let (Ok(first), Ok(last)) = (&first.point, &last.point) else { return None };
    let same = first.epoch == last.epoch && first.edge_s == last.edge_s;
    same.then(|| Requests { all: last.all - first.all, slow: (last.slow - first.slow).max(0.0) })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// Sent, answered after, and requests with the slow ones.
    type Said = (u64, u64, Option<(f64, f64)>);

    /// Scrapes; an epoch of its own for each that starts again.
    fn log(zero: Instant, scrapes: &[Said]) -> Log {
        let (mut log, mut epoch, mut before) = (Log::default(), 0, 0.0);
        for (sent, after, counts) in scrapes {
            let point = counts.ok_or("gone".to_owned()).map(|(all, slow)| {
                epoch += u64::from(all < before);
                before = all;
                Point { epoch, all, slow, edge_s: 0.05 }
            });
            log.add(Scrape { sent: zero + MS(*sent), got: zero + MS(sent + after), point });
        }
        log
    }

    #[test]
    fn a_window_is_what_lies_between_the_scrapes_at_its_ends() {
        let zero = Instant::now() + Duration::from_secs(10);
        let log = log(
            zero,
            &[(0, 5, Some((100.0, 1.0))), (400, 5, Some((140.0, 3.0))), (990, 5, Some((200.0, 3.0)))],
        );
        let between = |from, to, now| log.between((zero + MS(from), zero + MS(to)), zero + MS(now));
        assert_eq!(between(0, 400, 500), Some(Some(Requests { all: 40.0, slow: 2.0 })));
        assert_eq!(between(410, 1000, 1010), Some(Some(Requests { all: 60.0, slow: 0.0 })));
        assert_eq!(between(400, 1100, 1200), None, "not yet asked");
        assert_eq!(between(400, 1100, 5000), Some(None), "and never");
        assert_eq!(between(200, 400, 500), Some(None), "nobody asked at its beginning");
    }

    #[test]
    fn late_answers_gaps_and_counts_that_began_anew_say_nothing_of_a_window() {
        let zero = Instant::now() + Duration::from_secs(10);
        let scrapes = [
            (0, 5, Some((100.0, 1.0))),
            (1000, 400, Some((200.0, 1.0))),
            (2000, 5, None),
            (3000, 5, Some((300.0, 1.0))),
            (4000, 5, Some((7.0, 0.0))),
            (5000, 5, Some((17.0, 2.0))),
        ];
        let log = log(zero, &scrapes);
        let between = |from, to| log.between((zero + MS(from), zero + MS(to)), zero + MS(6000));
        assert_eq!(between(0, 1000), Some(None), "answered 0.4 s late");
        assert_eq!(between(1000, 2000), Some(None));
        assert_eq!(
            between(0, 3000),
            Some(Some(Requests { all: 200.0, slow: 0.0 })),
            "a gap within is none at the ends"
        );
        assert_eq!(between(3000, 4000), Some(None), "counts went down");
        assert_eq!(between(4000, 5000), Some(Some(Requests { all: 10.0, slow: 2.0 })));
        let since =
            |from, but: &[Span]| log.since(zero + MS(from), but).iter().map(|r| r.all).collect::<Vec<_>>();
        assert_eq!(since(0, &[]), [100.0, 10.0]);
        assert_eq!(since(500, &[]), [10.0]);
        assert_eq!(since(0, &[(zero + MS(300), zero + MS(400))]), [10.0]);
    }
}
