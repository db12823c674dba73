//! Which time past is meant.

use std::time::Duration;

use anyhow::anyhow;
use jiff::civil::{DateTime, Time};
use jiff::tz::TimeZone;
use jiff::{Timestamp, ToSpan};

/// An instant as options take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum When {
    At(Timestamp),
    /// Whenever clocks show this, UTC.
    Clock(Time),
    Ago(Duration),
}

/// A time past, wall clock, nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Span {
    pub from_ns: u64,
    /// After the begin.
    pub to_ns: u64,
}

/// Reads an instant: `14:00`, `2026-11-22 14:00`, `2026-11-22T14:00:00+01:00`, UTC where it does not say; or `30s` for so long ago.
pub(super) fn parse(text: &str) -> Result<When, String> {
    if let Ok(at) = text.parse::<Timestamp>() {
        return Ok(When::At(at));
    }
    if let Ok(ago) = super::duration(text) {
        return Ok(When::Ago(ago));
    }
    // Of a date with a time the parser would take the time, and of a number the hour.
    if text.contains(':')
        && !text.contains('-')
        && let Ok(time) = text.parse::<Time>()
    {
        return Ok(When::Clock(time));
    }
    let civil = text.parse::<DateTime>().ok().and_then(|civil| civil.to_zoned(TimeZone::UTC).ok());
    civil.map(|at| When::At(at.timestamp())).ok_or_else(|| {
        "a time such as 14:00, \"2026-11-22 14:00\" or 2026-11-22T14:00:00+01:00, UTC where no other is given, or how long ago, \
         such as 30s"
            .to_owned()
    })
}

/// The first instant not before this one at which clocks show that time.
fn first_from(from: Timestamp, time: Time) -> Option<Timestamp> {
    let day = from.to_zoned(TimeZone::UTC).datetime();
    let at =
        |day: DateTime| Some(day.with().time(time).build().ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp());
    let today = at(day)?;
    if today >= from { Some(today) } else { at(day.checked_add(1.day()).ok()?) }
}

fn ns(at: Timestamp) -> u64 {
    u64::try_from(at.as_nanosecond()).unwrap_or(0)
}

/// The last time that has passed at which clocks showed that.
fn last(now: Timestamp, when: When) -> Option<Timestamp> {
    let time = match when {
        When::At(at) => return Some(at),
        When::Ago(ago) => return Some(now.checked_sub(ago).unwrap_or(Timestamp::UNIX_EPOCH)),
        When::Clock(time) => time,
    };
    let day_ago = now.checked_sub(24.hours()).ok()?;
    let first = first_from(day_ago, time)?;
    // A day ago to the moment: that is now, too.
    Some(if first == day_ago { now } else { first })
}

/// One moment past, wall clock, nanoseconds since 1970.
pub(super) fn moment(now: Timestamp, when: When) -> anyhow::Result<u64> {
    last(now, when).map(ns).ok_or_else(|| anyhow!("there is no such time"))
}

/// The time meant: since so long ago, or from one instant to another; until now where no end is given.
pub(super) fn span(
    now: Timestamp,
    since: Option<Duration>,
    from: Option<When>,
    to: Option<When>,
) -> anyhow::Result<Span> {
    let impossible = || anyhow!("there is no such time");
    let begin = match (since, from) {
        (Some(since), _) => now.checked_sub(since).unwrap_or(Timestamp::UNIX_EPOCH),
        (None, Some(from)) => last(now, from).ok_or_else(impossible)?,
        (None, None) => return Err(anyhow!("say which time: --since DURATION, or --from TIME")),
    };
    let end = match to {
        None => now,
        Some(to @ (When::At(_) | When::Ago(_))) => last(now, to).ok_or_else(impossible)?.min(now),
        Some(When::Clock(time)) => {
            let after = begin.checked_add(1.nanosecond()).map_err(|_| impossible())?;
            first_from(after, time).ok_or_else(impossible)?.min(now)
        }
    };
    let span = Span { from_ns: ns(begin), to_ns: ns(end) };
    if span.from_ns >= span.to_ns {
        return Err(anyhow!(
            "from {begin} to {end}: the end is not after the beginning, or it has not come yet"
        ));
    }
    Ok(span)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    fn told(since: Option<u64>, from: Option<&str>, to: Option<&str>) -> Result<(String, String), String> {
        let now = at("2026-11-25T14:30:00Z");
        let when = |text: Option<&str>| text.map(|text| parse(text).unwrap());
        let span =
            span(now, since.map(Duration::from_secs), when(from), when(to)).map_err(|e| e.to_string())?;
        let text = |ns: u64| Timestamp::from_nanosecond(i128::from(ns)).unwrap().to_string();
        Ok((text(span.from_ns), text(span.to_ns)))
    }

    fn both(from: &str, to: &str) -> Result<(String, String), String> {
        Ok((from.to_owned(), to.to_owned()))
    }

    #[test]
    fn clocks_mean_the_last_time_and_then_the_next() {
        for (from, to, begin, end) in [
            ("14:00", "15:00", "2026-11-25T14:00:00Z", "2026-11-25T14:30:00Z"),
            ("13:00", "14:00", "2026-11-25T13:00:00Z", "2026-11-25T14:00:00Z"),
            ("15:00", "16:00", "2026-11-24T15:00:00Z", "2026-11-24T16:00:00Z"),
            ("23:30", "00:10", "2026-11-24T23:30:00Z", "2026-11-25T00:10:00Z"),
            ("14:00", "14:00", "2026-11-25T14:00:00Z", "2026-11-25T14:30:00Z"),
        ] {
            assert_eq!(told(None, Some(from), Some(to)), both(begin, end), "from {from} to {to}");
        }
        assert_eq!(told(Some(600), None, None), both("2026-11-25T14:20:00Z", "2026-11-25T14:30:00Z"));
    }

    #[test]
    fn whole_instants_are_themselves() {
        assert_eq!(
            told(None, Some("2026-11-22 14:00"), Some("2026-11-22T16:00:00+01:00")),
            both("2026-11-22T14:00:00Z", "2026-11-22T15:00:00Z")
        );
        assert_eq!(
            told(None, Some("2026-11-22"), None),
            both("2026-11-22T00:00:00Z", "2026-11-25T14:30:00Z")
        );
        assert_eq!(told(None, Some("20m"), Some("5m")), both("2026-11-25T14:10:00Z", "2026-11-25T14:25:00Z"));
    }

    #[test]
    fn a_moment_has_passed() {
        let now = at("2026-11-25T14:30:00Z");
        let told = |text: &str| moment(now, parse(text).unwrap()).unwrap();
        let ns = |text: &str| at(text).as_nanosecond() as u64;
        assert_eq!(told("30s"), ns("2026-11-25T14:29:30Z"));
        assert_eq!(told("14:29:59"), ns("2026-11-25T14:29:59Z"));
        assert_eq!(told("14:31"), ns("2026-11-24T14:31:00Z"));
        assert_eq!(told("2026-11-25T14:10:00.5Z"), ns("2026-11-25T14:10:00.5Z"));
    }

    #[test]
    fn what_is_no_time_is_refused() {
        for text in ["", "now", "25:00", "14", "2026-13-01", "\u{1b}[2J"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(told(None, Some("2026-11-22 14:00"), Some("2026-11-22 13:00")).is_err());
        assert!(told(None, Some("2027-01-01"), None).is_err());
        assert!(told(None, None, Some("14:00")).is_err());
        // The ends of what a clock can hold.
        for text in ["-009998-01-02", "9999-12-30"] {
            let when = parse(text).unwrap();
            let _ = span(at("2026-11-25T14:30:00Z"), None, Some(when), Some(When::Clock(Time::MAX)));
        }
    }
}
