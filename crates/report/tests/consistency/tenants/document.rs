//! The printed document on tenants and the terminal's text, read back.

use crate::printed::{number_after, plain};

/// What is printed, without markup.
pub struct Document {
    pub statements: Vec<Statement>,
    /// Headings of the table's columns, and its rows.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Points, or repetitions of them, without a result.
    pub failed: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum About {
    Bias,
    Standstill,
    Peak,
    Steering,
    Weights,
    Infeasible,
}

/// A sentence, with what can be read from it alone.
#[derive(Debug)]
pub struct Statement {
    pub about: About,
    pub text: String,
    /// `None`: undecided.
    pub answer: Option<bool>,
    pub value: f64,
    /// As printed; `None` where the words say that there is none, both ends the value where nothing is said.
    pub interval: Option<[f64; 2]>,
    pub digits: i32,
    /// What the value is held against: at most, or (steering, peak) at least.
    pub bound: f64,
}

pub fn read(markdown: &str) -> Result<Document, String> {
    let mut document =
        Document { statements: Vec::new(), columns: Vec::new(), rows: Vec::new(), failed: Vec::new() };
    for line in markdown.lines() {
        if let Some(said) = line.strip_prefix("- ").filter(|said| !said.starts_with("Requirement: ")) {
            document.statements.push(statement(&plain(said))?);
        } else if let Some(failed) = line.strip_prefix("Without a result: ") {
            document.failed.push(plain(failed));
        } else if line.starts_with("| ") && !line.starts_with("| ---") {
            let cells = line.trim_matches('|').split(" | ").map(plain).collect();
            if document.columns.is_empty() { document.columns = cells } else { document.rows.push(cells) }
        }
    }
    Ok(document)
}

/// Words of an answer: yes, no, open.
const ANSWERS: [(About, [&str; 3]); 5] = [
    (
        About::Bias,
        ["machines holds here", "machines does not hold here", "machines may or may not hold here"],
    ),
    (About::Peak, [": throughput peaks at", "NEVER", ": no number of tenants is ahead"]),
    (
        About::Steering,
        [
            "Packet steering (RPS) helps",
            "Packet steering (RPS) costs",
            "Whether packet steering (RPS) helps is open",
        ],
    ),
    (About::Weights, ["they hold within", "they do not hold within", "they may or may not hold within"]),
    (About::Infeasible, [" %, within ", " %, beyond ", " %, which may or may not be within "]),
];

fn statement(text: &str) -> Result<Statement, String> {
    let fail = |why: &str| format!("{why}: {text}");
    let (about, mark, bound) = if text.starts_with("Bias of ") {
        (About::Bias, "tenants is at most ", "published \"below ")
    } else if text.contains("did not get one answer in") {
        (About::Standstill, "did not get one answer in ", "")
    } else if text.contains(": throughput peaks at") {
        (About::Peak, " tenants, ", "")
    } else if text.contains(": no number of tenants is ahead") {
        (About::Peak, "the highest mean is that of ", "")
    } else if text.contains("acket steering (RPS)") {
        (About::Steering, " is ", "")
    } else if text.contains("the largest deviation from the weights is") {
        (About::Weights, "the largest deviation from the weights is ", "hold within ")
    } else if text.contains("the largest deviation from those is") {
        (About::Infeasible, "the largest deviation from those is ", "")
    } else {
        return Err(fail("a sentence that this test cannot read"));
    };
    // Of steering " is " comes twice where the answer is open.
    let after = match about {
        About::Steering => text.split_once(": throughput of ").and_then(|(_, rest)| rest.split_once(mark)),
        _ => text.split_once(mark),
    };
    let (_, figures) = after.ok_or_else(|| fail("no figure"))?;
    let number: String = figures.chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
    let value: f64 = number.trim_end_matches('.').parse().map_err(|_| fail("no number"))?;
    let digits = number.split_once('.').map_or(0, |(_, d)| d.len() as i32);
    let interval = match figures[number.len()..].strip_prefix(" [") {
        None => Some([value; 2]),
        Some(rest) if rest.starts_with("no interval]") => None,
        Some(rest) => {
            let ends =
                rest.split(']').next().unwrap_or("").split_once(", ").ok_or_else(|| fail("interval"))?;
            let end = |text: &str, open: f64| if text == "?" { Ok(open) } else { text.parse() };
            let low = end(ends.0, f64::NEG_INFINITY).map_err(|_| fail("low end"))?;
            Some([low, end(ends.1, f64::INFINITY).map_err(|_| fail("high end"))?])
        }
    };
    let answer = match ANSWERS.iter().find(|(of, _)| *of == about) {
        None => Some(false),
        Some((_, words)) => {
            let said: Vec<usize> = (0..3).filter(|i| text.contains(words[*i])).collect();
            match said.as_slice() {
                [0] => Some(true),
                [1] => Some(false),
                [2] => None,
                _ => return Err(fail("no answer, or more than one")),
            }
        }
    };
    let bound = match (about, bound) {
        (About::Steering | About::Peak, _) => 1.0,
        (About::Infeasible, _) => {
            let rest = text.split_once(mark).map_or("", |(_, rest)| rest);
            let bound = number_after(rest, "beyond ").or_else(|| number_after(rest, "within "));
            bound.ok_or_else(|| fail("no bound"))?
        }
        (_, "") => 0.0,
        (_, mark) => number_after(text, mark).ok_or_else(|| fail("no bound"))?,
    };
    Ok(Statement { about, text: text.to_owned(), answer, value, interval, digits, bound })
}

/// Half of the last digit printed, and a little.
pub fn half_digit(digits: i32) -> f64 {
    0.51 * 10f64.powi(-digits)
}

/// Whether the answer follows from the figures of the same sentence.
pub fn follows(s: &Statement) -> Result<(), String> {
    let fail = |why: &str| Err(format!("{why}: {s:?}"));
    // Others on the CPUs may be why: said, and then nothing is decided.
    let others = s.text.contains("what they took may be why");
    if s.about == About::Standstill {
        return if s.value >= 1.0 { Ok(()) } else { fail("no window stood still") };
    }
    if s.text.contains("Undecided:") != (s.answer.is_none() || others) {
        return fail("undecided or not");
    }
    if s.about == About::Peak {
        return Ok(());
    }
    let t = half_digit(s.digits);
    let Some([low, high]) = s.interval else {
        return if s.answer.is_none() { Ok(()) } else { fail("an answer without an interval") };
    };
    if s.value < low - 2.0 * t || s.value > high + 2.0 * t {
        return fail("the value is not in its interval");
    }
    if low.is_finite() && low < -t {
        return fail("less than nothing");
    }
    let (inside, outside) = match s.about {
        About::Steering => (low >= s.bound - t, high <= s.bound + t),
        _ => (high <= s.bound + t, low >= s.bound - t),
    };
    if s.about == About::Steering && s.answer.is_some() && (s.value - s.bound).abs() < 0.0049 {
        return fail("equal, and yet an effect");
    }
    let right = match s.answer {
        Some(true) => inside,
        Some(false) => outside,
        // What others took makes "no" open, and nothing else.
        None if others => outside,
        None => low <= s.bound + t && high >= s.bound - t,
    };
    if right { Ok(()) } else { fail("the interval says otherwise") }
}

/// The terminal's sentences, and the numbers of its table's rows.
pub fn terminal(text: &str, numbers: usize) -> (Vec<String>, Vec<Vec<String>>) {
    let said = text.lines().filter_map(|l| l.strip_prefix("* ")).map(str::to_owned).collect();
    let table = text.split("\n\n").nth(1).unwrap_or("");
    let rows = table.lines().skip(1).take_while(|l| !["* ", "! ", "x "].iter().any(|m| l.starts_with(m)));
    let last = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words[words.len().saturating_sub(numbers)..].iter().map(|w| (*w).to_owned()).collect()
    };
    (said, rows.filter(|l| !l.is_empty()).map(last).collect())
}
