//! Readers of files by their share of the machine: a row each, of the same work.

use crate::decide::Mean;
use crate::record::{Account, Ended, Record};
use crate::study::point::total;
use crate::study::reading::{Reads, share};
use crate::study::sample::{self, each};
use crate::study::verdict::Held;
use crate::study::verdict::limits::{At, slope, tenants};
use crate::study::{Study, asked_s};

/// Shares closer than this are the same: weights are whole numbers.
const SAME_SHARE: f64 = 0.005;

/// A reader at one share under one kind of limit: natural logarithms of seconds.
pub(super) struct Row {
    pub reads: Reads,
    pub held: Held,
    pub share: f64,
    pub real: Mean,
    pub sys: Option<Mean>,
    pub cpu: Option<Mean>,
}

/// What must be the same for readers to be compared: the load but for how it reads, its threads, its neighbours.
type Key<'a> = (Vec<&'a str>, u32, Vec<(&'a str, u32)>);

/// The same work at several shares.
pub(super) struct Work<'a> {
    key: Key<'a>,
    pub rows: Vec<Row>,
}

/// The words of a load but for those that say how it reads.
fn without_reading(workload: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut all = workload.split_ascii_whitespace();
    while let Some(word) = all.next() {
        match word {
            "--read" => {
                all.next();
            }
            "--shared-fd" | "--pread" => {}
            _ if word.starts_with("--read=") => {}
            _ => words.push(word),
        }
    }
    words
}

/// Readers of files by the work they do.
pub(super) fn works<'a>(record: &'a Record, study: &'a Study) -> Vec<Work<'a>> {
    let mut works: Vec<Work<'a>> = Vec::new();
    for at in tenants(record, study) {
        let Some(row) = row(record, study, &at) else { continue };
        let key = (without_reading(&at.tenant.workload), at.tenant.threads, at.neighbours());
        match works.iter_mut().find(|work| work.key == key) {
            Some(work) => work.rows.push(row),
            None => works.push(Work { key, rows: vec![row] }),
        }
    }
    works
}

fn row(record: &Record, study: &Study, at: &At<'_>) -> Option<Row> {
    let reads = Reads::of(&at.tenant.workload)?;
    // A run of a given length is not a given work; under a rule that steals the share is not what it seems.
    let timed = asked_s(record, &at.tenant.workload).is_some();
    let ruled = sample::cells(record, at.point).iter().any(|cell| cell.enforcer.is_some());
    if timed || ruled || at.is_background() {
        return None;
    }
    let (held, share) = share(study, at.point, at.tenant)?;
    let all = at.tenants();
    // What died did not do the work; what was cut off took longer, with more CPU time than is known.
    if all.iter().any(|tenant| matches!(tenant.ended, Ended::Died(_) | Ended::Interrupted)) {
        return None;
    }
    let whole = all.iter().all(|tenant| tenant.ended == Ended::Done);
    let seconds =
        |of: fn(&Account) -> Option<f64>| each(&all, |tenant| total(tenant, of))?.ln().filter(|_| whole);
    let (sys, cpu) = (seconds(|account| account.sys_s), seconds(Account::cpu_s));
    let real = sample::elapsed(record, at.point, at.index)?.ln()?;
    Some(Row { reads, held, share, real, sys, cpu })
}

pub(super) fn real(row: &Row) -> Option<Mean> {
    Some(row.real)
}

impl Work<'_> {
    /// What tells it from other work of the same record.
    pub fn about(&self) -> String {
        let (load, threads, neighbours) = &self.key;
        let beside: Vec<String> =
            neighbours.iter().map(|(load, threads)| format!("{load} ({threads} threads)")).collect();
        format!("{} ({threads} threads) next to {}", load.join(" "), beside.join(", "))
    }

    /// Rows of one way of reading under one way of limiting.
    pub fn rows(&self, reads: Reads, held: Held) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.reads == reads && row.held == held)
    }

    /// Slope of the logarithm of a quantity against that of the share.
    pub fn line(&self, reads: Reads, held: Held, of: fn(&Row) -> Option<Mean>) -> Option<Mean> {
        let points = self.rows(reads, held).filter_map(|row| Some((row.share.ln(), of(row)?)));
        slope(&points.collect::<Vec<_>>())
    }

    /// Logarithm of how many times as much the rows chosen take as those they are held against at the same share, the
    /// mean over these shares, which follow.
    pub fn times(
        &self,
        over: impl Fn(&Row) -> bool,
        under: impl Fn(&Row, &Row) -> bool,
        of: fn(&Row) -> Option<Mean>,
    ) -> Option<(Mean, Vec<f64>)> {
        let near = |a: &Row, b: &Row| (a.share - b.share).abs() < SAME_SHARE;
        let pairs: Vec<(f64, Mean, Mean)> = self
            .rows
            .iter()
            .filter(|row| over(row))
            .filter_map(|row| {
                let other = self.rows.iter().find(|other| near(row, other) && under(row, other))?;
                Some((row.share, of(row)?, of(other)?))
            })
            .collect();
        let part = 1.0 / pairs.len() as f64;
        let terms: Vec<(f64, Mean)> = pairs.iter().flat_map(|(_, a, b)| [(part, *a), (-part, *b)]).collect();
        Some((Mean::sum(&terms)?, pairs.iter().map(|(share, ..)| *share).collect()))
    }

    /// The same of real time under one way over that under another.
    pub fn longer(&self, reads: Reads, over: Held, under: Held) -> Option<(Mean, Vec<f64>)> {
        self.times(
            |row| row.reads == reads && row.held == over,
            |_, other| other.reads == reads && other.held == under,
            real,
        )
    }
}

/// `at 50 % of the machine`, `9 rows at 10 to 90 % of the machine`.
pub(super) fn at(shares: &[f64]) -> String {
    let mut pct: Vec<f64> = shares.iter().map(|share| 100.0 * share).collect();
    pct.sort_by(f64::total_cmp);
    match pct.as_slice() {
        [] => "nowhere".into(),
        [one] => format!("at {one:.0} % of the machine"),
        [first, .., last] => {
            format!("{} rows at {first:.0} to {last:.0} % of the machine", pct.len())
        }
    }
}
