//! What every part needs: the printed table of verdicts read back, and whether an answer follows from the figures next to it.

/// A printed verdict.
#[derive(Debug)]
pub struct Printed {
    pub holds: String,
    pub text: String,
    pub test: String,
    pub value: Option<f64>,
    pub interval: Option<[Option<f64>; 2]>,
    pub bound: String,
}

/// Text of a cell or line of markdown.
pub fn plain(cell: &str) -> String {
    let mut out = String::new();
    let mut escaped = false;
    for c in cell.trim().replace("&lt;", "<").replace("&gt;", ">").chars() {
        if c == '\\' && !escaped {
            escaped = true;
        } else {
            out.push(c);
            escaped = false;
        }
    }
    out
}

/// Reads the table of verdicts back from the markdown.
pub fn printed(markdown: &str) -> Vec<Printed> {
    let part = markdown.split("## Verdicts").nth(1).unwrap_or("").split("\n## ").next().unwrap_or("");
    part.lines()
        .filter(|l| ["| yes |", "| no |", "| ? |"].iter().any(|s| l.starts_with(s)))
        .map(|line| {
            let cells: Vec<String> = line.trim_matches('|').split(" | ").map(plain).collect();
            assert_eq!(cells.len(), 5, "{line}");
            let value = cells[3].split_whitespace().next().and_then(|v| v.parse().ok());
            let interval = cells[3].split_once('[').map(|(_, rest)| {
                let ends: Vec<&str> = rest.split(']').next().unwrap().split(", ").collect();
                [ends[0].parse().ok(), ends[1].parse().ok()]
            });
            let [holds, text, test, _, bound] = <[String; 5]>::try_from(cells).unwrap();
            Printed { holds, text, test, value, interval, bound }
        })
        .collect()
}

/// Four printed digits, of numbers of the size of `near`.
pub fn slack(near: f64) -> f64 {
    1e-3 * near.abs() + 1e-6
}

/// Whether the answer follows from what stands next to it.
pub fn follows(p: &Printed) -> Result<(), String> {
    let fail = |why: &str| Err(format!("{why}: {p:?}"));
    if (p.holds == "?") != p.text.contains("Undecided") && !(p.holds == "?" && p.bound.is_empty()) {
        return fail("undecided or not");
    }
    if let Some((sign, bound)) = p.bound.split_once(' ') {
        let bound: f64 = bound.parse().map_err(|_| format!("bound: {p:?}"))?;
        let seen_in_full = p.test.contains("of all");
        let [low, high] = match p.interval {
            Some([low, high]) => [low.unwrap_or(f64::NEG_INFINITY), high.unwrap_or(f64::INFINITY)],
            None if seen_in_full => [p.value.unwrap_or(f64::NAN); 2],
            None if p.holds == "?" => [f64::NEG_INFINITY, f64::INFINITY],
            None => return fail("an answer without an interval"),
        };
        let t = slack(bound);
        let at_most = sign == "<=";
        let inside = if at_most { high <= bound + t } else { low >= bound - t };
        let outside = if at_most { low >= bound - t } else { high <= bound + t };
        let across = low <= bound + t && high >= bound - t;
        let right = match p.holds.as_str() {
            "yes" => inside,
            "no" => outside,
            _ => across,
        };
        if !right {
            return fail("the interval says otherwise");
        }
        if let Some(value) = p.value.filter(|v| low > v + slack(*v) || high < v - slack(*v)) {
            return fail(&format!("{value} is not in its interval"));
        }
    }
    if p.text.contains("No limit is fastest") && p.value.is_some_and(|gain| gain >= 1.0) {
        return fail("not faster");
    }
    // Words that stand for an answer.
    for (words, needed) in [
        ("Weights hold within", "yes"),
        ("Weights do not hold", "no"),
        ("A limit helps", "yes"),
        ("No limit is fast", "no"),
        ("does not make it dearer", "no"),
        ("Quotas are kept by", "yes"),
        ("Quotas are not kept", "no"),
        ("the number of units does not matter", "yes"),
        ("the number of units seems to matter", "no"),
        ("is open", "?"),
        ("differ, too:", "yes"),
        ("because", "yes"),
        ("The claim holds here", "yes"),
        ("The claim does not hold here", "no"),
        ("3 of 3 are decided", "yes"),
        ("Threads contend when", "yes"),
        ("Threads do not contend", "no"),
    ] {
        let summed = p.text.starts_with("Of ") && p.text.contains(" points ");
        if p.text.contains(words) && p.holds != needed && !summed {
            return fail(&format!("{words:?} is said"));
        }
    }
    Ok(())
}

pub use crate::textbook::average;

pub fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 6e-3 * a.abs().max(b.abs()) + 1e-4
}

/// Whether a ratio of two numbers printed with three digits is what is printed.
pub fn by_three_digits(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.012 * a.abs().max(b.abs())
}

/// The first number after a text.
pub fn number_after(text: &str, mark: &str) -> Option<f64> {
    let rest = text.split_once(mark)?.1.trim_start_matches(|c: char| !c.is_ascii_digit());
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest[..end].trim_end_matches('.').parse().ok()
}
