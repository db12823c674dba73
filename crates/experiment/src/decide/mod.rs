//! One place decides what may be said. Pure.
//!
//! A [`Figure`] is an estimate that knows its error at any level of confidence; a [`Claim`] holds it against a bound.
//! [`decide`] answers *holds*, *does not hold* or *undecided*: a claim is decided only when the whole interval lies on one
//! side of the bound. A [`Draft`] is what a page wants to say; [`page`] decides all drafts of one page together, so that
//! the chance that *any* of its answers is wrong is at most 5 % (Bonferroni: each claim gets its part of the 5 %).
//!
//! ```text
//! claim: <= 10          interval         answer
//!                  |--x--|      10       holds, margin 10 - high
//!                           |--x-10---|  undecided; more repetitions narrow the interval
//!                               10 |-x-| does not hold, margin low - 10
//! ```

use evenkeel_base::text::{bracketed, significant, without_zeros};
use serde::{Deserialize, Serialize};

mod figure;
mod quantile;

pub use figure::{Figure, Mean};
pub use quantile::{Quantile, Sample};

/// Chance that any answer of a page is wrong.
pub const PAGE_ALPHA: f64 = 0.05;
/// Beyond this an end of an interval tells nothing but its order.
const FAR: f64 = 1e7;
/// Two values are equal where their ratio is this near 1.
const EQUAL: f64 = 0.005;
/// More repetitions than this are not recommended.
const MOST: usize = 10_000;

/// What is held against a bound.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Claim {
    AtMost(f64),
    AtLeast(f64),
}

impl Claim {
    pub fn bound(self) -> f64 {
        match self {
            Self::AtMost(bound) | Self::AtLeast(bound) => bound,
        }
    }
}

impl std::fmt::Display for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if matches!(self, Self::AtMost(_)) { "<=" } else { ">=" };
        write!(f, "{sign} {}", short(self.bound()))
    }
}

/// A number without trailing zeros, four significant digits.
pub fn short(value: f64) -> String {
    if value.abs() >= FAR {
        return format!("{value:.1e}");
    }
    without_zeros(&significant(value, 4, 9)).to_owned()
}

/// One of three wordings, by the answer.
pub fn by<'a>(holds: Option<bool>, yes: &'a str, no: &'a str, open: &'a str) -> &'a str {
    match holds {
        Some(true) => yes,
        Some(false) => no,
        None => open,
    }
}

/// The answer to one claim.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Decision {
    /// Whether the claim holds; `None`: undecided.
    pub holds: Option<bool>,
    pub value: Option<f64>,
    /// Its interval at the level the decision was made at; ends may be infinite. `None` for what was seen in full.
    pub interval: Option<[f64; 2]>,
    /// What it was held against.
    pub claim: Claim,
    /// From the bound to the nearer end of the interval; negative: so far the interval reaches beyond the bound.
    pub margin: Option<f64>,
    /// Repetitions that would settle an undecided claim, if the estimate and the spread stay what they are. `None`: none
    /// below 10,000, or more repetitions do not help.
    pub needs: Option<usize>,
    /// Values each part of the figure comes from, the fewest.
    pub n: Option<usize>,
    /// They are the runs of one repetition, and so are those it `needs`.
    pub of_runs: bool,
    /// Something was cut off: an end of the interval that is open is really a bound.
    pub cut_off: bool,
}

impl Decision {
    /// Whether the claim holds beyond its interval.
    pub fn yes(&self) -> bool {
        self.holds == Some(true)
    }

    /// Whether it does not, beyond its interval.
    pub fn no(&self) -> bool {
        self.holds == Some(false)
    }

    /// Whether the claim holds of a ratio held against 1, and what to say where it is as good as 1: of two that are equal
    /// neither is more, however narrow the interval.
    pub fn unless_equal(&self) -> (Option<bool>, &'static str) {
        let equal = self.holds.is_some() && self.value.is_none_or(|value| (value - 1.0).abs() < EQUAL);
        if equal { (None, " Undecided: the two are equal to half a percent.") } else { (self.holds, "") }
    }

    /// `1.02 [0.98, 1.07]`; an end that is not known is named.
    pub fn words(&self, decimals: usize) -> String {
        let value = self.value.map_or_else(|| "?".to_owned(), |v| format!("{v:.decimals$}"));
        match self.interval {
            Some([low, high]) if low.is_finite() && high.is_finite() && low < high => {
                let end = |v: f64| if v.abs() < FAR { format!("{v:.decimals$}") } else { short(v) };
                format!("{value} {}", bracketed(end(low), end(high)))
            }
            Some([low, high]) if low.is_finite() && high.is_finite() => value,
            Some([low, _]) if low.is_finite() && self.cut_off => format!("at least {low:.decimals$}"),
            Some([_, high]) if high.is_finite() && self.cut_off => format!("at most {high:.decimals$}"),
            // One end decides: it is shown.
            Some([low, high]) if self.holds.is_some() => {
                let end = |v: f64| if v.is_finite() { format!("{v:.decimals$}") } else { "?".into() };
                format!("{value} {}", bracketed(end(low), end(high)))
            }
            Some(_) => format!("{value} [no interval]"),
            None => value,
        }
    }

    /// Why it is undecided, and what would settle it; empty where it is decided.
    pub fn undecided(&self, unit: &str) -> String {
        if self.holds.is_some() {
            return String::new();
        }
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        match self.interval {
            Some([low, high]) if low.is_finite() && high.is_finite() => {
                let what = if self.of_runs { "runs of one repetition" } else { "repetitions" };
                let more = match self.needs {
                    Some(n) => format!("about {n} {what} would settle it if the estimate stays"),
                    None => format!("more than {MOST} {what} would be needed"),
                };
                format!(
                    "Undecided: the bound of {}{unit} lies within {} to {}; {more}.",
                    short(self.claim.bound()),
                    short(low),
                    short(high)
                )
            }
            _ if self.n.is_none_or(|n| n < 2) => {
                "Undecided: one repetition shows no interval; at least 3 are needed.".into()
            }
            _ if self.cut_off => "Undecided: runs were cut off, so that only a bound is known.".into(),
            _ => "Undecided: there are too few runs for an interval at this confidence.".into(),
        }
    }
}

/// Decides a claim with an error of at most `alpha`.
pub fn decide(figure: &Figure, claim: Claim, alpha: f64) -> Decision {
    let (value, ends) = (figure.value().filter(|v| v.is_finite()), figure.interval(alpha));
    let n = figure.n();
    let mut decision = Decision {
        holds: None,
        value,
        interval: ends.filter(|_| figure.parts() > 0),
        claim,
        margin: None,
        needs: None,
        n,
        of_runs: figure.is_of_runs(),
        cut_off: figure.is_bound(),
    };
    let (Some(_), Some(ends)) = (value, ends) else { return decision };
    // How far an interval is within the bound, and beyond it.
    let sides = |[low, high]: [f64; 2]| match claim {
        Claim::AtMost(bound) => (bound - high, low - bound),
        Claim::AtLeast(bound) => (low - bound, bound - high),
    };
    let answer = |(inside, outside): (f64, f64)| match inside >= 0.0 {
        true => Some(true),
        false => (outside > 0.0).then_some(false),
    };
    let (inside, outside) = sides(ends);
    decision.holds = answer((inside, outside));
    decision.margin = Some(if inside >= 0.0 { inside } else { outside }).filter(|m| m.is_finite());
    if decision.holds.is_none() && !figure.is_bound() {
        let settled = |times| figure.grown(times).interval(alpha).is_some_and(|e| answer(sides(e)).is_some());
        decision.needs = n.filter(|n| *n > 1).and_then(|n| needed(n, settled));
    }
    decision
}

/// Repetitions that settle it, told by how many times as many as the `n` there are.
fn needed(n: usize, settled: impl Fn(f64) -> bool) -> Option<usize> {
    let settled = |m: usize| settled(m as f64 / n as f64);
    if n >= MOST || !settled(MOST) {
        return None;
    }
    let (mut low, mut high) = (n, MOST);
    while low + 1 < high {
        let middle = low.midpoint(high);
        if settled(middle) { high = middle } else { low = middle }
    }
    Some(high)
}

/// What a statement is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kind {
    /// A check, which may fail.
    #[default]
    Check,
    /// A question, of which "no" is as good an answer as "yes".
    Question,
    /// Of the measurement itself: no answer to what was asked.
    Measuring,
}

/// One statement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Name, such as `weights-hold`; unique in a study together with `about`.
    pub id: String,
    /// What it is about: a point, a tenant; empty for the whole.
    pub about: String,
    pub text: String,
    /// Whether the test is passed; `None` where the data do not decide.
    pub holds: Option<bool>,
    pub test: Test,
    /// What it is for. Documents leave it out: pages are made of fresh studies.
    #[serde(skip)]
    pub kind: Kind,
}

/// What decides a verdict.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Test {
    pub statistic: String,
    pub value: Option<f64>,
    /// Its interval at `level_pct`; `None` where it has none (seen in full, or a single repetition), an end that is not
    /// known is `null`.
    pub interval: Option<[Option<f64>; 2]>,
    /// Its unit, such as `%`.
    pub unit: String,
    /// What it is held against, such as `<= 2`.
    pub bound: String,
    /// Confidence of the interval, percent: all answers of a page hold together at 95 %.
    #[serde(default)]
    pub level_pct: Option<f64>,
    /// From the bound to the nearer end of the interval; negative: the interval reaches so far beyond it.
    #[serde(default)]
    pub margin: Option<f64>,
    /// Repetitions that would settle an undecided one.
    #[serde(default)]
    pub needs_repetitions: Option<usize>,
}

/// What is said once the claims are decided.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    pub holds: Option<bool>,
    /// In words; why it is undecided is added.
    pub text: String,
    /// The claim whose figure is shown; `None` where the answer is not that of one claim.
    pub shown: Option<usize>,
}

/// Writes the sentence from the decisions; `None`: nothing is to be said.
type Words<'a> = Box<dyn Fn(&[Decision]) -> Option<Said> + 'a>;

/// What a page wants to say: claims, and the sentence that follows from how they are decided.
pub struct Draft<'a> {
    id: String,
    about: String,
    statistic: String,
    unit: String,
    kind: Kind,
    claims: Vec<(Figure, Claim)>,
    /// How many were looked at before these were picked.
    tries: usize,
    words: Words<'a>,
}

impl<'a> Draft<'a> {
    /// A statement whose answer is that of its first claim.
    pub fn new(
        id: &str,
        about: &str,
        (statistic, unit): (&str, &str),
        figure: Figure,
        claim: Claim,
        text: impl Fn(&[Decision]) -> String + 'a,
    ) -> Self {
        Self::with(id, about, (statistic, unit), vec![(figure, claim)], move |decisions| {
            Some(Said { holds: decisions.first()?.holds, text: text(decisions), shown: Some(0) })
        })
    }

    /// A statement on several claims.
    pub fn with(
        id: &str,
        about: &str,
        (statistic, unit): (&str, &str),
        claims: Vec<(Figure, Claim)>,
        words: impl Fn(&[Decision]) -> Option<Said> + 'a,
    ) -> Self {
        Self {
            id: id.into(),
            about: about.into(),
            statistic: statistic.into(),
            unit: unit.into(),
            kind: Kind::default(),
            claims,
            tries: 1,
            words: Box::new(words),
        }
    }

    #[must_use]
    pub fn question(self) -> Self {
        Self { kind: Kind::Question, ..self }
    }

    /// It is about the measurement itself.
    #[must_use]
    pub fn of_measuring(self) -> Self {
        Self { kind: Kind::Measuring, ..self }
    }

    /// One more claim, such as a cause: decided with the others, and counted.
    #[must_use]
    pub fn and(mut self, figure: Figure, claim: Claim) -> Self {
        self.claims.push((figure, claim));
        self
    }

    /// It was picked from so many.
    #[must_use]
    pub fn picked_from(mut self, tries: usize) -> Self {
        self.tries = tries.max(1);
        self
    }

    /// Its claims are those of another draft of the page: they are decided once, and counted there.
    #[must_use]
    pub fn decided_already(mut self) -> Self {
        self.tries = 0;
        self
    }

    fn weight(&self) -> usize {
        self.claims.iter().filter(|(figure, _)| figure.parts() > 0).count() * self.tries
    }
}

/// Decides everything a page wants to say, so that the chance of any wrong answer is at most [`PAGE_ALPHA`].
pub fn page(drafts: Vec<Draft<'_>>) -> Vec<Verdict> {
    page_beside(drafts, 0)
}

/// The same on a page that decides so many `claims` more in its tables, each at [`each`] of all claims.
pub fn page_beside(drafts: Vec<Draft<'_>>, claims: usize) -> Vec<Verdict> {
    let alpha = each(claims + drafts.iter().map(Draft::weight).sum::<usize>());
    drafts.into_iter().filter_map(|draft| verdict(&draft, alpha)).collect()
}

/// The error that each of so many claims of a page may have.
pub fn each(claims: usize) -> f64 {
    PAGE_ALPHA / claims.max(1) as f64
}

fn verdict(draft: &Draft<'_>, alpha: f64) -> Option<Verdict> {
    let decisions: Vec<Decision> =
        draft.claims.iter().map(|(figure, claim)| decide(figure, *claim, alpha)).collect();
    let said = (draft.words)(&decisions)?;
    let shown = decisions.get(said.shown.unwrap_or(0))?;
    let mut text = said.text;
    if said.holds.is_none() {
        // The claim that keeps it open says why.
        let open = decisions.iter().find(|d| d.holds.is_none()).unwrap_or(shown);
        let unit = if std::ptr::eq(open, shown) { draft.unit.as_str() } else { "" };
        let why = open.undecided(unit);
        if !why.is_empty() {
            text = format!("{} {why}", text.trim_end());
        }
    }
    let finite = |v: f64| Some(v).filter(|v| v.is_finite());
    // Of one repetition there is none, even where a deviation cannot be below 0; where one end decides, it is shown.
    let known = |[a, b]: [f64; 2]| shown.cut_off || shown.holds.is_some() || (a.is_finite() && b.is_finite());
    let interval = shown.interval.filter(|i| known(*i)).map(|[a, b]| [finite(a), finite(b)]);
    let one = said.shown.is_some();
    Some(Verdict {
        id: draft.id.clone(),
        about: draft.about.clone(),
        text,
        holds: said.holds,
        kind: draft.kind,
        test: Test {
            statistic: draft.statistic.clone(),
            value: shown.value.filter(|_| one),
            interval: interval.filter(|_| one),
            unit: draft.unit.clone(),
            bound: if one { shown.claim.to_string() } else { String::new() },
            level_pct: interval.filter(|_| one).map(|_| 100.0 * (1.0 - alpha)),
            margin: shown.margin.filter(|_| one),
            needs_repetitions: shown.needs.filter(|_| one && said.holds.is_none() && !shown.of_runs),
        },
    })
}

#[cfg(test)]
mod tests;
