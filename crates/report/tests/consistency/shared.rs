//! What the tests of consistency share, those of other crates included: numbers that look random, what is counted.
//! Nothing of the tested code is used.

#![allow(dead_code)]

use std::collections::BTreeMap;

/// Numbers that look random, the same every time.
pub struct Random(pub u64);

impl Random {
    pub fn uniform(&mut self) -> f64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[((self.uniform() * of.len() as f64) as usize).min(of.len() - 1)]
    }

    pub fn normal(&mut self) -> f64 {
        let (u, v) = (self.uniform().max(1e-12), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
    }
}

/// A page's text, with something in place of each tag.
pub fn text_of(html: &str, tag: &str) -> String {
    let mut out = String::new();
    let mut inside = false;
    for c in html.chars() {
        match c {
            '<' => {
                inside = true;
                out += tag;
            }
            '>' => inside = false,
            c if !inside => out.push(c),
            _ => {}
        }
    }
    out.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

pub fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many records: what the environment says, else a few.
pub fn count(short: usize) -> usize {
    std::env::var("EVENKEEL_CONSISTENCY_RECORDS").ok().and_then(|n| n.parse().ok()).unwrap_or(short)
}

/// What is counted while a record is checked.
#[derive(Default)]
pub struct Tally {
    pub sentences: usize,
    pub reckoned: usize,
    pub kinds: BTreeMap<&'static str, usize>,
    pub wrong: Vec<String>,
}

impl Tally {
    pub fn hold(&mut self, right: bool, what: impl FnOnce() -> String) {
        self.reckoned += 1;
        if !right {
            self.wrong.push(what());
        }
    }

    pub fn seen(&mut self, kind: &'static str) {
        self.sentences += 1;
        *self.kinds.entry(kind).or_default() += 1;
    }
}
