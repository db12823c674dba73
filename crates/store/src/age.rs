//! The clock by which the history grows old: the wall clock, but for leaps. Somebody may set it a month ahead, and back.

use rusqlite::OptionalExtension;

use crate::db::{Store, StoreError};

/// Made when a history is opened for writing; there is one row. A process that begins while the clock is wrong must not believe it.
pub(crate) const TABLE: &str = "
CREATE TABLE IF NOT EXISTS clock (
    id INTEGER PRIMARY KEY,
    believed_ns INTEGER NOT NULL,
    away_ns INTEGER NOT NULL         -- for how long somebody was there and the wall clock said something else
)";

/// A leap is more than this from what the monotonic clock says, ...
const LEAP_NS: u64 = 3_600_000_000_000;
/// ... and is believed once the wall clock has stayed there for so long, of the time in which somebody recorded. A host that was off,
/// or slept, waits for it as well: one that is off each night for some days.
const BELIEVED_NS: u64 = 86_400_000_000_000;

/// What is believed of the wall clock.
#[derive(Debug, Default)]
pub(crate) struct Age {
    now_ns: u64,
    monotonic_ns: Option<u64>,
    /// How long the wall clock has been away.
    away_ns: u64,
}

impl Age {
    /// What it is now: never more than what the wall clock says.
    fn advance(&mut self, wall_ns: u64, monotonic_ns: Option<u64>) -> u64 {
        let passed =
            self.monotonic_ns.zip(monotonic_ns).map_or(0, |(before, now)| now.saturating_sub(before));
        self.monotonic_ns = monotonic_ns.or(self.monotonic_ns);
        let steady = self.now_ns.saturating_add(passed);
        let away = wall_ns.abs_diff(steady) > LEAP_NS;
        self.away_ns = if away { self.away_ns.saturating_add(passed) } else { 0 };
        self.now_ns = if away && self.away_ns < BELIEVED_NS { steady } else { wall_ns };
        self.now_ns.min(wall_ns)
    }
}

impl Store {
    /// Takes up what was believed last; of a new history the wall clock.
    pub(crate) fn read_age(&mut self, wall_ns: u64) -> Result<(), StoreError> {
        let ns = |row: &rusqlite::Row<'_>, at: usize| row.get::<_, i64>(at).map(|ns| ns.max(0) as u64);
        let kept = self
            .db
            .query_row("SELECT believed_ns, away_ns FROM clock", [], |row| Ok((ns(row, 0)?, ns(row, 1)?)));
        let kept = kept.optional().map_err(self.wrap())?;
        (self.age.now_ns, self.age.away_ns) = kept.unwrap_or((wall_ns, 0));
        Ok(())
    }

    /// The time from which ages count back. That it could not be kept, as on a full disk, is no matter: so it is the next time.
    pub(crate) fn advance_age(&mut self, wall_ns: u64, monotonic_ns: Option<u64>) -> u64 {
        let now_ns = self.age.advance(wall_ns, monotonic_ns);
        let kept = [self.age.now_ns, self.age.away_ns].map(|ns| ns.min(i64::MAX as u64) as i64);
        let _ = self
            .db
            .prepare_cached("INSERT OR REPLACE INTO clock (id, believed_ns, away_ns) VALUES (0, ?1, ?2)")
            .and_then(|mut statement| statement.execute(kept));
        now_ns
    }

    /// A minute (since 1970) of the wall clock, or the one that is believed where that is earlier.
    pub(crate) fn believed_minute(&self, minute: u64) -> u64 {
        minute.min(self.age.now_ns / 60_000_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn a_leap_is_believed_after_a_day_there() {
        let mut age = Age { now_ns: 1000 * HOUR, ..Age::default() };
        assert_eq!(age.advance(1000 * HOUR, None), 1000 * HOUR);
        assert_eq!(age.advance(1000 * HOUR, Some(HOUR)), 1000 * HOUR);
        assert_eq!(age.advance(1010 * HOUR, Some(11 * HOUR)), 1010 * HOUR, "no leap: both clocks went on");
        // Ahead, and back: nothing is older for it.
        assert_eq!(age.advance(1731 * HOUR, Some(12 * HOUR)), 1011 * HOUR);
        assert_eq!(age.advance(1743 * HOUR, Some(24 * HOUR)), 1023 * HOUR);
        assert_eq!(age.advance(1024 * HOUR, Some(25 * HOUR)), 1024 * HOUR);
        // Ahead for good.
        let ahead: Vec<u64> =
            (0..=25).map(|hour| age.advance((1744 + hour) * HOUR, Some((25 + hour) * HOUR)) / HOUR).collect();
        assert_eq!((ahead[0], ahead[23], ahead[24], ahead[25]), (1024, 1047, 1768, 1769));
        // Back: nothing is older than the clock says, then either.
        assert_eq!(age.advance(1000 * HOUR, Some(51 * HOUR)), 1000 * HOUR);
        assert_eq!(age.advance(1770 * HOUR, Some(51 * HOUR)), 1770 * HOUR, "as before: no leap");
    }

    #[test]
    fn a_host_that_is_off_each_night_is_believed_after_some_days() {
        let mut age = Age { now_ns: 1000 * HOUR, ..Age::default() };
        let mut evenings = Vec::new();
        for morning in [1000, 1024, 1048, 1072] {
            // Another process, which knows what the file keeps of the one before.
            age.monotonic_ns = None;
            age.advance(morning * HOUR, Some(HOUR));
            evenings.push(age.advance((morning + 9) * HOUR, Some(10 * HOUR)) / HOUR);
        }
        assert_eq!(evenings, [1009, 1018, 1027, 1081]);
    }

    #[test]
    fn for_how_long_the_clock_was_away_is_kept_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let open = || Store::open(&dir.path().join("history.db"), crate::Limits::default()).unwrap();
        let mut store = open();
        let now_ns = crate::db::now_ns();
        store.advance_age(now_ns, Some(HOUR));
        // Half a day in which it said a month more.
        store.advance_age(now_ns + 720 * HOUR, Some(13 * HOUR));
        drop(store);
        assert_eq!(open().age.away_ns, 12 * HOUR);
    }
}
