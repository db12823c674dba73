//! Work with much time in the kernel, next to a burner of CPU, by its share of the machine. The source describes what came
//! out and left its tables empty: no figure can be held against one of its own, so its three claims are tested, each
//! against a bound of ours.
//!
//! | the source's claim | what is tested |
//! |---|---|
//! | separate files: all three ways scale well | real time falls as share^-0.8 or faster, under each |
//! | same file: cpuset best, shares acceptable, quota worst | real time of the same work under one way over that under another, at the same shares |
//! | system time rises with the share | it grows by 2 % or more as the share doubles |
//!
//! The reader is held against itself doing the same work, by its real and its CPU time: never by events of unlike loads.

use super::limits::Held;
use super::words::{of, three};
use crate::decide::{Claim, Decision, Draft, Figure, Mean, Said, by};
use crate::record::Record;
use crate::study::Study;
use crate::study::reading::Reads;

mod rows;

use rows::{Row, Work, at, real, works};

/// Real time that falls at least as fast as share^-0.8 scales.
const SCALES: f64 = -0.8;
/// One way is worse than another where the same work takes so many times as long.
const WORSE: f64 = 1.05;
/// Shares are acceptable up to so many times the time under a cpuset.
const ACCEPTABLE: f64 = 1.2;
/// System time rises where it grows by this factor as the share doubles.
const RISES: f64 = 1.02;
/// Threads contend where the same work takes so many times the CPU time. A lock that no one else wants costs less.
const CONTENDS: f64 = 1.1;
/// The three ways of limiting.
const WAYS: [Held; 3] = [Held::Cpuset, Held::Shares, Held::Quota];

/// The ways of reading that stand for the source's two cases: files apart, and one that threads meet at.
#[derive(Debug, Clone, Copy)]
struct Cases {
    separate: Reads,
    contended: Reads,
    /// Name of the verdict on all three claims.
    id: &'static str,
    /// The cases as the source's claims name them.
    named: [&'static str; 2],
}

const CASES: [Cases; 2] = [
    Cases {
        separate: Reads::Own,
        contended: Reads::Same,
        id: "source-claims",
        named: ["separate files", "same file"],
    },
    Cases {
        separate: Reads::OwnPread,
        contended: Reads::OneDescriptor,
        id: "source-claims-one-descriptor",
        named: ["separate files by pread", "one descriptor for all threads"],
    },
];

pub(super) fn add<'a>(record: &'a Record, study: &'a Study, all: &mut Vec<Draft<'a>>) {
    let works = works(record, study);
    let cpus = study.host.cpus.unwrap_or(u32::MAX);
    for work in &works {
        let about = if works.len() > 1 { work.about() } else { String::new() };
        for cases in CASES {
            all.extend(claims(work, cases, cpus, &about).into_iter().map(Draft::question));
        }
        for reads in [Reads::SamePread, Reads::OneDescriptorPread] {
            all.extend(
                scaling(work, reads, cpus).parts.into_iter().map(|part| part.draft(&about).question()),
            );
        }
    }
}

/// What is said of one figure.
struct Part {
    id: String,
    /// In a list of what holds and what does not.
    name: &'static str,
    statistic: (&'static str, &'static str),
    figure: Figure,
    claim: Claim,
    said: Box<dyn Fn(&Decision) -> String>,
}

impl Part {
    fn draft<'a>(self, about: &str) -> Draft<'a> {
        let said = self.said;
        Draft::new(&self.id, about, self.statistic, self.figure, self.claim, move |d| said(&d[0]))
    }
}

/// One of the source's claims, as far as the record has figures for it: it holds when all of its parts do.
struct Sourced {
    parts: Vec<Part>,
    /// What is not there that the claim is about, and what would show it.
    lacking: Option<String>,
}

/// The same without the sentences of its parts.
struct Outline {
    names: Vec<&'static str>,
    claims: Vec<(Figure, Claim)>,
    lacking: Option<String>,
}

impl Sourced {
    fn outline(&self) -> Outline {
        Outline {
            names: self.parts.iter().map(|part| part.name).collect(),
            claims: self.parts.iter().map(|part| (part.figure.clone(), part.claim)).collect(),
            lacking: self.lacking.clone(),
        }
    }
}

impl Outline {
    /// One part that fails refutes it; nothing less than all parts confirms it.
    fn answer(&self, d: &[Decision]) -> Option<bool> {
        if d.iter().any(Decision::no) {
            return Some(false);
        }
        (self.lacking.is_none() && !d.is_empty() && d.iter().all(Decision::yes)).then_some(true)
    }

    fn words(&self, d: &[Decision]) -> String {
        let named = |of: fn(&Decision) -> bool| {
            self.names.iter().zip(d).filter(move |(_, d)| of(d)).map(|(name, _)| (*name).to_owned())
        };
        match self.answer(d) {
            Some(true) => "holds".into(),
            Some(false) => {
                format!("does not hold (not so: {})", named(Decision::no).collect::<Vec<_>>().join(", "))
            }
            None => {
                let open = named(|d| d.holds.is_none()).chain(self.lacking.clone());
                format!("open ({})", open.collect::<Vec<_>>().join("; "))
            }
        }
    }
}

/// Everything about one pair of cases.
fn claims<'a>(work: &Work<'_>, cases: Cases, cpus: u32, about: &str) -> Vec<Draft<'a>> {
    let Cases { separate, contended, .. } = cases;
    if !work.rows.iter().any(|row| row.reads == separate || row.reads == contended) {
        return Vec::new();
    }
    let scaling_apart = scaling(work, separate, cpus);
    let order = order(work, contended, cpus);
    let sys = rising(work, cases);
    let outlines = [scaling_apart.outline(), order.outline(), sys.outline()];
    let mut drafts = vec![summary(outlines, cases, about)];
    drafts.push(all_scale(scaling_apart.outline(), separate, about));
    let both = scaling(work, contended, cpus);
    let parts = contention(work, cases).into_iter().chain(order.parts).chain(sys.parts);
    let parts = parts.chain(scaling_apart.parts).chain(both.parts);
    drafts.extend(parts.map(|part| part.draft(about)));
    drafts
}

/// Which of the three claims this record decides.
fn summary<'a>(outlines: [Outline; 3], cases: Cases, about: &str) -> Draft<'a> {
    let claims = outlines.iter().flat_map(|outline| outline.claims.clone()).collect();
    let [separate, contended] = cases.named;
    let said = [
        format!("{separate}, all three ways scale well"),
        format!("{contended}, cpuset best, shares acceptable, quota worst"),
        "system time rises with the share".to_owned(),
    ];
    Draft::with(cases.id, about, ("the published claims that are decided", ""), claims, move |d| {
        let mut rest = d;
        let mut decided = 0;
        let mut sentences = Vec::new();
        for (outline, said) in outlines.iter().zip(&said) {
            let (own, others) = rest.split_at_checked(outline.claims.len())?;
            rest = others;
            decided += usize::from(outline.answer(own).is_some());
            sentences.push(format!("({}) {said}: {}", sentences.len() + 1, outline.words(own)));
        }
        let text = format!(
            "The source left its tables empty: no figure can be compared, only its claims tested. {decided} of 3 are \
             decided here. {}.",
            sentences.join("; ")
        );
        Some(Said { holds: (decided == 3).then_some(true), text, shown: None })
    })
    .decided_already()
}

/// The first claim: real time falls with the share, under each way.
fn scaling(work: &Work<'_>, reads: Reads, cpus: u32) -> Sourced {
    let (mut parts, mut few) = (Vec::new(), Vec::new());
    for held in WAYS {
        let count = work.rows(reads, held).count();
        let Some(line) = work.line(reads, held, real) else {
            few.push(format!("{} under {}", if count == 0 { "no row" } else { "one share" }, held.name()));
            continue;
        };
        let growth = work.line(reads, held, |row| row.sys).map_or_else(String::new, |line| {
            format!(
                "; system time changes by a factor of {:.2} as the share doubles",
                (line.value * std::f64::consts::LN_2).exp()
            )
        });
        parts.push(Part {
            id: format!("{}-{}", reads.id(), held.name()),
            name: held.name(),
            statistic: ("slope of log real time against log share", ""),
            figure: Figure::Mean(line),
            claim: Claim::AtMost(SCALES),
            said: Box::new(move |d| {
                format!(
                    "Reading {} under {}: {} ({count} points; real time changes as share^{}){growth}.",
                    reads.words(),
                    held.name(),
                    by(
                        d.holds,
                        "scales with the share of the machine",
                        "does not scale with the share of the machine",
                        "whether it scales with the share of the machine is open"
                    ),
                    of(d),
                )
            }),
        });
    }
    let lacking = (!few.is_empty())
        .then(|| format!("{}, and a slope needs two: {} has them", few.join(", "), more_rows(cpus)));
    Sourced { parts, lacking }
}

/// Who has rows that are lacking: mostly of cpusets, which hold whole CPUs.
fn more_rows(cpus: u32) -> &'static str {
    if cpus < 3 { "a host of 3 CPUs or more" } else { "the experiment in full" }
}

/// All ways together, of separate files.
fn all_scale<'a>(outline: Outline, reads: Reads, about: &str) -> Draft<'a> {
    let id = format!("{}-all-scale", reads.id());
    let statistic = ("slope of log real time against log share, the least steep", "");
    Draft::with(&id, about, statistic, outline.claims.clone(), move |d| {
        let holds = outline.answer(d);
        let figures: Vec<String> = outline
            .names
            .iter()
            .zip(d)
            .map(|(name, d)| format!("share^{} under {name}", d.words(2)))
            .collect();
        let lacking = outline.lacking.as_ref().map_or_else(String::new, |what| format!("; {what}"));
        let text = format!(
            "The source: reading {}, all three ways scale well. {}: real time changes as {}{lacking}.",
            reads.words(),
            answered(holds),
            figures.join(", "),
        );
        // The least steep of those that give the answer; none where rows are lacking and nothing else.
        let value = |i: &usize| d[*i].value.unwrap_or(f64::NEG_INFINITY);
        let shown =
            (0..d.len()).filter(|i| d[*i].holds == holds).max_by(|a, b| value(a).total_cmp(&value(b)));
        Some(Said { holds, text, shown })
    })
    .decided_already()
}

/// Whether a claim of the source holds.
fn answered(holds: Option<bool>) -> &'static str {
    by(holds, "The claim holds here", "The claim does not hold here", "Whether it holds is open here")
}

/// The second claim: an order of the three ways.
fn order(work: &Work<'_>, reads: Reads, cpus: u32) -> Sourced {
    let shares = work.longer(reads, Held::Shares, Held::Cpuset);
    let quota = work.longer(reads, Held::Quota, Held::Cpuset);
    let quota_over_shares = work.longer(reads, Held::Quota, Held::Shares);
    let smallest = |logs: &[&(Mean, Vec<f64>)]| {
        Figure::Smallest(logs.iter().map(|(log, _)| Figure::Ratio(*log)).collect())
    };
    let part = |id: &str, name, statistic, figure, claim, words: &'static str, rows: String| Part {
        id: format!("{}-{id}", reads.id()),
        name,
        statistic: (statistic, ""),
        figure,
        claim,
        said: Box::new(move |d| {
            format!(
                "The source: reading {}, {name}. {}: it takes {} times as long {words} ({rows}).",
                reads.words(),
                answered(d.holds),
                d.words(2)
            )
        }),
    };
    let mut parts = Vec::new();
    if let (Some(shares), Some(quota)) = (&shares, &quota) {
        parts.push(part(
            "cpuset-best",
            "a cpuset is best",
            "real time under the faster of shares and quota over that under a cpuset",
            smallest(&[shares, quota]),
            Claim::AtLeast(WORSE),
            "under the faster of the other two as under a cpuset",
            at(&shares.1),
        ));
    }
    if let Some(shares) = &shares {
        parts.push(part(
            "shares-acceptable",
            "shares are acceptable",
            "real time under shares over that under a cpuset",
            Figure::Ratio(shares.0),
            Claim::AtMost(ACCEPTABLE),
            "under shares as under a cpuset; the published study gives no figure, 1.2 is taken for acceptable",
            at(&shares.1),
        ));
    }
    if let Some(over_shares) = &quota_over_shares {
        let logs: Vec<_> = std::iter::once(over_shares).chain(&quota).collect();
        let cpuset = quota.as_ref().map_or_else(String::new, |(_, rows)| format!("; cpuset: {}", at(rows)));
        parts.push(part(
            "quota-worst",
            "a quota is worst",
            "real time under a quota over that under the slower of shares and cpuset",
            smallest(&logs),
            Claim::AtLeast(WORSE),
            "under a quota as under the slower of the other two",
            format!("shares: {}{cpuset}", at(&over_shares.1)),
        ));
    }
    let lacking = [
        (shares.is_none(), "shares and a cpuset"),
        (quota.is_none(), "a quota and a cpuset"),
        (quota_over_shares.is_none(), "a quota and shares"),
    ];
    let lacking: Vec<&str> = lacking.into_iter().filter(|(none, _)| *none).map(|(_, what)| what).collect();
    let lacking = (!lacking.is_empty())
        .then(|| format!("no row has both {}: {} has", lacking.join(", or "), more_rows(cpus)));
    Sourced { parts, lacking }
}

/// The third claim: more share, more system time for the same work.
fn rising(work: &Work<'_>, cases: Cases) -> Sourced {
    let (mut parts, mut without) = (Vec::new(), Vec::new());
    for (reads, name) in [cases.separate, cases.contended].into_iter().zip(cases.named) {
        // As a factor for each doubling.
        let factors: Vec<(Held, Mean)> = WAYS
            .into_iter()
            .filter_map(|held| {
                Some((held, work.line(reads, held, |row| row.sys)?.times(std::f64::consts::LN_2)))
            })
            .collect();
        if factors.is_empty() {
            without.push(name);
            continue;
        }
        let each: Vec<String> =
            factors.iter().map(|(held, log)| format!("{} {}", held.name(), three(log.value.exp()))).collect();
        let each = each.join(", ");
        parts.push(Part {
            id: format!("{}-sys-rises", reads.id()),
            name,
            statistic: ("factor of system time as the share doubles, where it grows least", ""),
            figure: Figure::Smallest(factors.iter().map(|(_, log)| Figure::Ratio(*log)).collect()),
            claim: Claim::AtLeast(RISES),
            said: Box::new(move |d| {
                format!(
                    "The source: system time rises with the share, here of reading {}. {}: as the share doubles it \
                     changes by a factor of {} where it grows least ({each}).",
                    reads.words(),
                    answered(d.holds),
                    d.words(2)
                )
            }),
        });
    }
    let lacking =
        (!without.is_empty()).then(|| format!("no system time at two shares: {}", without.join(", ")));
    Sourced { parts, lacking }
}

/// Do threads meet in the kernel at all? CPU time of the same work, contended over apart.
fn contention(work: &Work<'_>, cases: Cases) -> Option<Part> {
    let Cases { separate, contended, .. } = cases;
    let over = |row: &Row| row.reads == contended;
    let under = |row: &Row, other: &Row| other.reads == separate && other.held == row.held;
    let (cpu, shares) = work.times(over, under, |row| row.cpu)?;
    let (longer, _) = work.times(over, under, real)?;
    let rows = at(&shares);
    // Where they do not, there is a way that makes them.
    let instead = match contended {
        Reads::Same => {
            " The source's order of the three ways is one of contention inside the kernel, which this does not show: \
             `lab run isolation-fd` makes threads contend."
        }
        _ => "",
    };
    Some(Part {
        id: format!("{}-contends", contended.id()),
        name: "threads contend",
        statistic: ("CPU time of the same work over that of reading apart", ""),
        figure: Figure::Ratio(cpu),
        claim: Claim::AtLeast(CONTENDS),
        said: Box::new(move |d| {
            format!(
                "{} when reading {}: the same work takes {} times the CPU time and {} times the real time of reading {} \
                 ({rows}).{}",
                by(d.holds, "Threads contend", "Threads do not contend", "Whether threads contend is open"),
                contended.words(),
                d.words(2),
                three(longer.value.exp()),
                separate.words(),
                if d.no() { instead } else { "" }
            )
        }),
    })
}

#[cfg(test)]
mod tests;
