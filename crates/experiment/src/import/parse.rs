//! The lines of a log.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Log {
    /// `cpu_units:`.
    pub units: Option<u64>,
    /// `nb_threads:`, or sysbench's `Number of threads:`.
    pub threads: Option<u32>,
    /// `target:`.
    pub target: Option<String>,
    /// `## Start:`.
    pub start: Option<Timestamp>,
    /// `## End  :`.
    pub end: Option<Timestamp>,
    /// Runs in the order found.
    pub runs: Vec<LogRun>,
    /// What sysbench asked for, where every run's total time says so: whole seconds.
    asked: Option<f64>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct LogRun {
    /// `Start test N:`.
    pub start: Option<Timestamp>,
    /// `End   test N:`.
    pub end: Option<Timestamp>,
    /// sysbench's `events per second:`; openssl's RSA 2048 signatures a second.
    pub events_per_s: Option<f64>,
    /// openssl's RSA 2048 verifications a second.
    pub verify_per_s: Option<f64>,
    /// sysbench's `total number of events:`.
    pub events: Option<u64>,
    /// sysbench's `total time:`, seconds.
    pub total_s: Option<f64>,
}

impl Log {
    /// What ran, with the length asked for where the log tells.
    pub fn workload(&self) -> String {
        let target = self.target.clone().unwrap_or_else(|| "sysbench".into());
        match self.asked {
            Some(seconds) => format!("{target} --time={seconds}"),
            None => target,
        }
    }
}

/// An instant: ISO 8601, with or without an offset (then UTC is assumed: only differences count), `T` or a blank between
/// date and time, a comma or a point before the fraction.
pub fn stamp(text: &str) -> Result<Timestamp, String> {
    let tidy = text.trim().replace(',', ".");
    let bad = || format!("{:?} is no time stamp such as 2026-01-31T12:00:00.000000", text.trim());
    if let Ok(instant) = tidy.parse::<Timestamp>() {
        return Ok(instant);
    }
    let local: DateTime = tidy.replacen(' ', "T", 1).parse().map_err(|_| bad())?;
    local.to_zoned(TimeZone::UTC).map(|zoned| zoned.timestamp()).map_err(|_| bad())
}

/// Reads a log.
pub fn parse(text: &str) -> Result<Log, (usize, String)> {
    let mut log = Log::default();
    // The run that was begun, by its number and line.
    let mut open: Option<(u64, usize)> = None;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        one(line.trim(), number, &mut log, &mut open).map_err(|what| (number, what))?;
    }
    if let Some((n, line)) = open {
        // The last run of an interrupted log never ended: it is left out, unless it is all there is.
        if log.runs.len() == 1 {
            return Err((line, format!("test {n} starts here and never ends")));
        }
        log.runs.pop();
    }
    let totals: Vec<f64> = log.runs.iter().filter_map(|run| run.total_s).collect();
    let whole = totals.first().map(|t| t.floor()).filter(|t| *t >= 1.0);
    log.asked = whole.filter(|whole| totals.iter().all(|t| t - whole < 0.5 && t >= whole));
    Ok(log)
}

/// What follows `name`, blanks, and a colon.
fn after<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    Some(line.strip_prefix(name)?.trim_start().strip_prefix(':')?.trim())
}

fn value<T: std::str::FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is no {what}"))
}

/// A number that a log can hold: finite and not negative.
fn amount(text: &str, what: &str) -> Result<f64, String> {
    let number: f64 = value(text, what)?;
    if number.is_finite() && number >= 0.0 { Ok(number) } else { Err(format!("{text:?} is no {what}")) }
}

/// What follows `rsa 2048 bits`, whose number newer versions of openssl set wider apart.
fn rsa(line: &str) -> Option<Vec<&str>> {
    let mut words = line.split_ascii_whitespace();
    ["rsa", "2048", "bits"].into_iter().all(|word| words.next() == Some(word)).then(|| words.collect())
}

/// `test 3: STAMP` after `Start` or `End`.
fn test<'a>(line: &'a str, word: &str) -> Option<Result<(u64, &'a str), String>> {
    let rest = line.strip_prefix(word)?.trim_start().strip_prefix("test")?;
    Some(match rest.split_once(':') {
        Some((number, stamp)) => value(number.trim(), "number of a test").map(|n| (n, stamp.trim())),
        None => Err(format!("{line:?} has no `:` and time stamp")),
    })
}

fn one(line: &str, number: usize, log: &mut Log, open: &mut Option<(u64, usize)>) -> Result<(), String> {
    if let Some(text) = after(line, "cpu_units") {
        // A host without limits has none.
        log.units = if text.is_empty() { None } else { Some(value(text, "number of units")?) };
    } else if let Some(text) = after(line, "nb_threads").or_else(|| after(line, "Number of threads")) {
        log.threads = Some(value(text, "number of threads")?);
    } else if let Some(text) = after(line, "target") {
        log.target = Some(text.to_owned());
    } else if let Some(text) = after(line, "## Start") {
        log.start = Some(stamp(text)?);
    } else if let Some(text) = after(line, "## End") {
        log.end = Some(stamp(text)?);
    } else if let Some(found) = test(line, "Start") {
        let (n, text) = found?;
        if let Some((other, line)) = open {
            return Err(format!("test {n} starts, but test {other} of line {line} has not ended"));
        }
        log.runs.push(LogRun { start: Some(stamp(text)?), ..LogRun::default() });
        *open = Some((n, number));
    } else if let Some(found) = test(line, "End") {
        let (n, text) = found?;
        let end = stamp(text)?;
        match (open.take(), log.runs.last_mut()) {
            (Some((other, _)), Some(run)) if other == n => {
                if run.start.is_some_and(|start| end < start) {
                    return Err(format!("test {n} ends before it starts"));
                }
                run.end = Some(end);
            }
            (Some((other, line)), _) => {
                return Err(format!("test {n} ends, but test {other} of line {line} is the one that runs"));
            }
            (None, _) => return Err(format!("test {n} ends and never started")),
        }
    } else if let Some(text) = after(line, "events per second") {
        run(log, open, |r| r.events_per_s.is_some()).events_per_s = Some(amount(text, "rate")?);
    } else if let Some(text) = after(line, "total number of events") {
        run(log, open, |r| r.events.is_some()).events = Some(value(text, "number of events")?);
    } else if let Some(text) = after(line, "total time") {
        let seconds =
            text.strip_suffix('s').ok_or_else(|| format!("{text:?} is no time such as 10.0002s"))?;
        run(log, open, |r| r.total_s.is_some()).total_s = Some(amount(seconds, "time")?);
    } else if let Some(words) = rsa(line) {
        // Seconds a signature and a verification, then as many a second; since 3.2 of encryption and decryption, too.
        let ([_, _, sign, verify] | [_, _, _, _, sign, verify, _, _]) = words.as_slice() else {
            return Err("openssl's line has four figures: sign, verify, sign/s, verify/s (or eight)".into());
        };
        let run = run(log, open, |r| r.events_per_s.is_some());
        run.events_per_s = Some(amount(sign, "rate")?);
        run.verify_per_s = Some(amount(verify, "rate")?);
    }
    Ok(())
}

/// The run a figure belongs to: the one that is open; in plain output a new one begins with the first figure that the
/// last one has already.
fn run<'a>(log: &'a mut Log, open: &Option<(u64, usize)>, has: impl Fn(&LogRun) -> bool) -> &'a mut LogRun {
    let stamped = log.runs.last().is_some_and(|run| run.start.is_some());
    let fresh = match log.runs.last() {
        None => true,
        // Figures after `End test` still belong to that test.
        Some(_) if open.is_some() || stamped => false,
        Some(run) => has(run),
    };
    if fresh {
        log.runs.push(LogRun::default());
    }
    let last = log.runs.len() - 1;
    &mut log.runs[last]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn plain_sysbench_output_as_often_as_it_ran() {
        let one = "Number of threads: 2\nCPU speed:\n    events per second:  2039.83\n\nGeneral statistics:\n    \
                   total time:                          1.0002s\n    total number of events:              2042\n";
        let log = parse(&one.repeat(3)).unwrap();
        assert_eq!((log.runs.len(), log.threads), (3, Some(2)));
        let run = &log.runs[2];
        assert_eq!((run.events_per_s, run.events, run.total_s), (Some(2039.83), Some(2042), Some(1.0002)));
        assert_eq!(log.workload(), "sysbench --time=1");
    }

    #[test]
    fn openssl_lines_are_signatures_a_second() {
        let log = parse("Start test 1: 2026-01-01 10:00:00,5\nrsa 2048 bits 0.000232s 0.000015s   4302.7  67442.3\nEnd   test 1: 2026-01-01T10:00:01.5Z\n").unwrap();
        let run = &log.runs[0];
        assert_eq!((run.events_per_s, run.verify_per_s), (Some(4302.7), Some(67442.3)));
        // As OpenSSL 3.2 and later print it.
        let newer =
            "rsa  2048 bits 0.000471s 0.000014s 0.000015s 0.000495s   2121.6  73048.6  64826.6   2021.2\n";
        let runs = parse(newer).unwrap().runs;
        assert_eq!((runs[0].events_per_s, runs[0].verify_per_s), (Some(2121.6), Some(73048.6)));
        assert_eq!(run.end.unwrap().duration_since(run.start.unwrap()).as_secs_f64(), 1.0);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let t = "2026-01-01T10:00:00";
        for (text, line, part) in [
            ("cpu_units: many".into(), 1, "many"),
            (format!("\nStart test 1: {t}\nStart test 2: {t}"), 3, "has not ended"),
            (format!("Start test 1: {t}\nEnd   test 2: {t}"), 2, "is the one that runs"),
            (format!("End   test 1: {t}"), 1, "never started"),
            (format!("Start test 1: {t}\nEnd   test 1: 2025-01-01T10:00:00"), 2, "before it starts"),
            ("events per second: fast".into(), 1, "fast"),
            ("events per second: -1".into(), 1, "-1"),
            ("total time: 10".into(), 1, "10.0002s"),
            ("rsa 2048 bits 0.1s".into(), 1, "four figures"),
            (format!("Start test 1: {t}"), 1, "never ends"),
            ("Start test x: now".into(), 1, "number of a test"),
        ] {
            let (at, what) = parse(&text).unwrap_err();
            assert!(at == line && what.contains(part), "{text:?}: {at}: {what}");
        }
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(runs in proptest::collection::vec((0i64..1000, 1i64..100, 1.0f64..1e5), 1..10)) {
            let mut text = String::from("cpu_units: 8\n");
            let stamp = |usec: i64| Timestamp::from_microsecond(1_700_000_000_000_000 + usec).unwrap();
            for (n, (gap, length, eps)) in runs.iter().enumerate() {
                let start = n as i64 * 2000 + gap;
                text += &format!("Start test {n}: {}\nevents per second: {eps}\nEnd   test {n}: {}\n", stamp(start), stamp(start + length));
            }
            let log = parse(&text).unwrap();
            prop_assert_eq!(log.runs.len(), runs.len());
            for (read, (_, length, eps)) in log.runs.iter().zip(&runs) {
                prop_assert_eq!(read.events_per_s, Some(*eps));
                prop_assert_eq!(read.end.unwrap().duration_since(read.start.unwrap()).as_micros(), i128::from(*length));
            }
        }
    }
}
