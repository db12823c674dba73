//! What pictures are drawn with: text, lines, scales, cells.

use std::fmt::{Display, Write};

use crate::demo::Role;

/// Width all pictures are drawn for, pixels; they scale with the page.
pub const WIDTH: f64 = 1120.0;

/// CSS name of a role's colour.
pub fn role_class(role: Role) -> &'static str {
    match role {
        Role::Default => "default",
        Role::Recipe => "recipe",
        Role::Trial => "trial",
        Role::Final => "final",
        Role::Ceiling => "ceiling",
    }
}

/// Text for element content and quoted attributes. Characters XML forbids are replaced.
pub fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// At most `chars` characters, the rest as an ellipsis.
pub fn short(text: &str, chars: usize) -> String {
    if text.chars().count() <= chars {
        return text.to_owned();
    }
    let mut out: String = text.chars().take(chars.saturating_sub(1)).collect();
    out.push('…');
    out
}

/// At most `chars` characters, cut in the middle: what tells names apart is often their end.
pub(crate) fn short_within(text: &str, chars: usize) -> String {
    let count = text.chars().count();
    if count <= chars || chars < 3 {
        return short(text, chars);
    }
    let end = (chars - 1) / 2;
    let begin: String = text.chars().take(chars - 1 - end).collect();
    begin + "…" + &text.chars().skip(count - end).collect::<String>()
}

/// An element tree being written. Coordinates are written with one decimal; what is not finite becomes 0.
#[derive(Debug, Default)]
pub(crate) struct Canvas {
    body: String,
}

fn n(value: f64) -> String {
    if !value.is_finite() {
        return "0".to_owned();
    }
    let text = format!("{value:.1}");
    text.strip_suffix(".0").map_or(text.clone(), str::to_owned)
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

impl Canvas {
    pub fn raw(&mut self, text: impl Display) {
        let _ = write!(self.body, "{text}");
    }

    pub fn rect(&mut self, class: &str, [x, y, w, h]: [f64; 4], title: Option<&str>) {
        let (x, y, w, h) = (n(x), n(y), n(w.max(0.0)), n(h.max(0.0)));
        let open = format!("<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{w}\" height=\"{h}\"");
        match title {
            Some(title) => self.raw(format_args!("{open}><title>{}</title></rect>", escape(title))),
            None => self.raw(format_args!("{open}/>")),
        }
    }

    pub fn line(&mut self, class: &str, [x1, y1, x2, y2]: [f64; 4]) {
        let (x1, y1, x2, y2) = (n(x1), n(y1), n(x2), n(y2));
        self.raw(format_args!("<line class=\"{class}\" x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\"/>"));
    }

    pub fn path(&mut self, class: &str, points: &[(f64, f64)], close: bool) {
        if points.is_empty() {
            return;
        }
        let mut d = String::new();
        for (index, (x, y)) in points.iter().enumerate() {
            let _ = write!(d, "{}{} {}", if index == 0 { "M" } else { "L" }, n(*x), n(*y));
        }
        self.raw(format_args!("<path class=\"{class}\" d=\"{d}{}\"/>", if close { "Z" } else { "" }));
    }

    pub fn circle(&mut self, class: &str, (x, y): (f64, f64), r: f64, title: Option<&str>) {
        let open = format!("<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\"", n(x), n(y), n(r));
        match title {
            Some(title) => self.raw(format_args!("{open}><title>{}</title></circle>", escape(title))),
            None => self.raw(format_args!("{open}/>")),
        }
    }

    /// A point of the `shape`-th form, so that colours are not all that tells points apart: circle, square, diamond, triangle.
    pub fn mark(&mut self, shape: usize, class: &str, (x, y): (f64, f64), r: f64, title: Option<&str>) {
        let title = title.map_or(String::new(), |title| format!("<title>{}</title>", escape(title)));
        let path = match shape % 4 {
            0 => {
                return self.raw(format_args!(
                    "<circle class=\"{class}\" cx=\"{}\" cy=\"{}\" r=\"{}\">{title}</circle>",
                    n(x),
                    n(y),
                    n(r)
                ));
            }
            1 => format!("M{} {}h{r}v{r}h-{r}Z", n(x - r * 0.9), n(y - r * 0.9), r = n(r * 1.8)),
            2 => format!("M{} {}l{r} {r}l-{r} {r}l-{r} -{r}Z", n(x), n(y - r * 1.3), r = n(r * 1.3)),
            _ => format!("M{} {}l{r} {d}h-{d}Z", n(x), n(y - r * 1.2), r = n(r * 1.1), d = n(r * 2.2)),
        };
        self.raw(format_args!("<path class=\"{class}\" d=\"{path}\">{title}</path>"));
    }

    pub fn text(&mut self, class: &str, (x, y): (f64, f64), anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => " text-anchor=\"middle\"",
            Anchor::End => " text-anchor=\"end\"",
        };
        self.raw(format_args!(
            "<text class=\"{class}\" x=\"{}\" y=\"{}\"{anchor}>{}</text>",
            n(x),
            n(y),
            escape(text)
        ));
    }

    /// Lines of the grid from `top` to `bottom` at round values of `x`, and the values below.
    pub fn ticks_below(&mut self, x: &Scale, (low, high): (f64, f64), (top, bottom): (f64, f64)) {
        let marks = ticks(low, high, 8);
        for mark in &marks {
            let at = x.at(*mark);
            self.line("grid", [at, top, at, bottom]);
            self.text("dim small num", (at, bottom + 16.0), Anchor::Middle, &tick_label(*mark, &marks));
        }
    }

    /// Lines of the grid from `left` to `right` at round values of `y`, and the values beside them.
    pub fn ticks_beside(&mut self, y: &Scale, marks: &[f64], (left, right): (f64, f64)) {
        for mark in marks {
            let at = y.at(*mark);
            self.line("grid", [left, at, right, at]);
            self.text("dim small num", (left - 8.0, at + 4.0), Anchor::End, &tick_label(*mark, marks));
        }
    }

    /// The whole picture.
    pub fn finish(self, height: f64, label: &str) -> String {
        format!(
            "<svg class=\"ek\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" role=\"img\" \
             aria-label=\"{}\">{}</svg>",
            n(WIDTH),
            n(height),
            escape(label),
            self.body
        )
    }
}

/// Cells of a heat map, many of them: one path a shade keeps a page of tens of thousands of cells small.
#[derive(Debug)]
pub(crate) struct Cells {
    paths: [String; Self::SHADES + 1],
}

impl Cells {
    const SHADES: usize = 20;

    pub fn new() -> Self {
        Self { paths: std::array::from_fn(|_| String::new()) }
    }

    /// The shade of a share of 0 to 1.
    pub fn shade(v: f64) -> usize {
        (v.clamp(0.0, 1.0) * Self::SHADES as f64).round() as usize
    }

    /// The share that the shade of a share stands for.
    pub fn shown(v: f64) -> f64 {
        Self::shade(v) as f64 / Self::SHADES as f64
    }

    pub fn add(&mut self, v: f64, [x, y, w, h]: [f64; 4]) {
        if let Some(path) = self.paths.get_mut(Self::shade(v)) {
            let _ = write!(path, "M{} {}h{}v{}h{}z", n(x), n(y), n(w), n(h), n(-w));
        }
    }

    pub fn draw(&self, canvas: &mut Canvas) {
        for (shade, path) in self.paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            let v = shade as f64 / Self::SHADES as f64;
            canvas.raw(format_args!("<path class=\"cell\" style=\"--v:{v}\" d=\"{path}\"/>"));
        }
    }
}

/// The class of a text that can be read on a cell of this share, on a light page and on a dark one.
pub(crate) fn ink_on(share: f64) -> &'static str {
    match share {
        share if share < 0.5 => "low",
        share if share < 0.92 => "over",
        _ => "on",
    }
}

/// A linear map from values to pixels.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Scale {
    from: (f64, f64),
    to: (f64, f64),
}

impl Scale {
    pub fn new(from: (f64, f64), to: (f64, f64)) -> Self {
        Self { from, to }
    }

    pub fn at(&self, value: f64) -> f64 {
        let span = self.from.1 - self.from.0;
        let share = if span.abs() < 1e-12 { 0.0 } else { (value - self.from.0) / span };
        self.to.0 + share.clamp(-0.02, 1.02) * (self.to.1 - self.to.0)
    }
}

/// Round steps for an axis: about `count` of them within `low..=high`.
pub(crate) fn ticks(low: f64, high: f64, count: usize) -> Vec<f64> {
    let span = high - low;
    if !(span.is_finite() && span > 0.0) {
        return vec![low];
    }
    let rough = span / count.max(1) as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 2.5, 5.0, 10.0].iter().map(|m| m * power).find(|s| *s >= rough * 0.999).unwrap_or(power);
    let first = (low / step - 1e-9).ceil();
    (0..1000)
        .map(|i| (first + f64::from(i)) * step)
        .take_while(|tick| *tick <= high + step * 1e-6)
        .map(|tick| if tick.abs() < step * 1e-9 { 0.0 } else { tick })
        .collect()
}

/// A tick's label with as many decimals as its step needs.
pub(crate) fn tick_label(value: f64, ticks: &[f64]) -> String {
    let step = ticks.windows(2).map(|pair| pair[1] - pair[0]).fold(f64::INFINITY, f64::min);
    let whole = |d: &i32| {
        let scaled = step * 10f64.powi(*d);
        scaled.round() >= 1.0 && (scaled - scaled.round()).abs() < 1e-3
    };
    let decimals = (0..10).find(whole).unwrap_or(3) as usize;
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ticks_are_round() {
        assert_eq!(ticks(0.0, 200.0, 4), [0.0, 50.0, 100.0, 150.0, 200.0]);
        assert_eq!(ticks(0.7, 1.0, 4), [0.7000000000000001, 0.8, 0.9, 1.0]);
        assert_eq!(ticks(3.0, 3.0, 4), [3.0]);
        assert_eq!(tick_label(0.8, &ticks(0.7, 1.0, 4)), "0.8");
        assert_eq!(tick_label(7.5, &ticks(5.0, 10.0, 2)), "7.5");
    }

    #[test]
    fn hostile_names_stay_text() {
        assert_eq!(escape("<b a=\"'&\u{1}"), "&lt;b a=&quot;&#39;&amp;\u{fffd}");
        assert_eq!(short("abcdef", 4), "abc…");
        assert_eq!(
            [6, 5, 4, 2].map(|chars| short_within("abcdef", chars)),
            ["abcdef", "ab…ef", "ab…f", "a…"]
        );
    }

    /// WCAG's contrast ratio of two luminances.
    fn contrast(a: f64, b: f64) -> f64 {
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    /// Luminance of `hsl(205 75% lightness)`.
    fn luminance(lightness: f64) -> f64 {
        let chroma = (1.0 - (2.0 * lightness - 1.0).abs()) * 0.75;
        let least = lightness - chroma / 2.0;
        // Between cyan (180 degrees) and blue (240): no red, all of blue, some green.
        let channels = [least, least + chroma * (4.0 - 205.0 / 60.0), least + chroma];
        let linear =
            channels.map(|c| if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055f64).powf(2.4) });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }

    #[test]
    fn numbers_can_be_read_on_every_shade() {
        let numbers = |name: &str| {
            let values = crate::svg::STYLE.split(name).skip(1);
            values.map(|text| text[..text.find('%').unwrap()].parse::<f64>().unwrap()).collect::<Vec<_>>()
        };
        let (from, by) = (numbers("--heat-l:"), numbers("--heat-d:"));
        assert_eq!((from.len(), by.len()), (2, 2));
        for (scheme, (from, by)) in ["light", "dark"].iter().zip(from.iter().zip(by)) {
            for percent in 0..=100 {
                let share = f64::from(percent) / 100.0;
                let ink = match (ink_on(share), *scheme) {
                    ("low", "dark") | ("on", "light") => 1.0,
                    _ => 0.0,
                };
                let contrast = contrast(luminance((from + by * share) / 100.0), ink);
                assert!(contrast >= 4.5, "{contrast:.2} at {percent} % on a {scheme} page");
            }
        }
    }

    proptest! {
        #[test]
        fn ticks_lie_within(low in -1e6f64..1e6, span in 1e-3f64..1e6, count in 1usize..12) {
            let ticks = ticks(low, low + span, count);
            prop_assert!(ticks.len() <= 3 * count + 2);
            let mut labels: Vec<_> = ticks.iter().map(|tick| tick_label(*tick, &ticks)).collect();
            labels.dedup();
            prop_assert_eq!(labels.len(), ticks.len(), "{:?}", labels);
            prop_assert!(ticks.iter().all(|t| *t >= low - span * 1e-6 && *t <= low + span * (1.0 + 1e-6)));
        }
    }
}
