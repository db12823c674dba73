//! What a terminal can show: characters for shares, colours.

use ratatui::style::{Color, Modifier, Style};

/// What may be used on this terminal.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Skin {
    pub ascii: bool,
    /// Colours, next to what says the same without.
    pub colour: bool,
}

/// Why a terminal cannot be used.
pub const DUMB: &str = "TERM is dumb: this terminal cannot move its cursor";

/// Shades of a heat map from nothing to all.
const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];
const ASCII_SHADES: [&str; 5] = [" ", ".", ":", "+", "#"];
/// Percent from which on a shade is used.
const SHADE_FROM: [f64; 5] = [f64::NEG_INFINITY, 0.5, 10.0, 40.0, 75.0];

/// Heights of a sparkline.
const BARS: [&str; 8] = ["▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"];
const ASCII_BARS: [&str; 8] = ["_", ".", ":", "-", "=", "+", "*", "#"];
/// Percent from which on a height is used: the same steps on every line, so that lines can be compared.
pub const BAR_FROM: [f64; 8] = [f64::NEG_INFINITY, 0.5, 2.0, 5.0, 10.0, 25.0, 50.0, 100.0];

/// The highest step that a value reaches.
fn step(value: f64, from: &[f64]) -> usize {
    from.iter().rposition(|from| value >= *from).unwrap_or(0)
}

impl Skin {
    /// By the environment: `NO_COLOR`, `TERM`, and the character set in `LC_ALL`, `LC_CTYPE` or `LANG` where one of them is
    /// set.
    pub fn from_environment(variable: impl Fn(&str) -> Option<String>) -> Result<Self, &'static str> {
        let set = |name: &str| variable(name).filter(|value| !value.is_empty());
        let term = set("TERM").unwrap_or_default();
        if term == "dumb" {
            return Err(DUMB);
        }
        let charset = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(set);
        let utf8 = charset.is_none_or(|name| {
            let name = name.to_ascii_lowercase();
            name.contains("utf-8") || name.contains("utf8")
        });
        // The kernel's console has 256 or 512 glyphs, and vt100 and its like have no colours.
        let ascii = !utf8 || term == "linux" || term.starts_with("vt");
        Ok(Self { ascii, colour: set("NO_COLOR").is_none() && !term.starts_with("vt") })
    }

    /// A share of 100 as a shade.
    pub fn shade(self, pct: f64) -> &'static str {
        let step = step(pct, &SHADE_FROM);
        if self.ascii { ASCII_SHADES[step] } else { SHADES[step] }
    }

    /// A share of time as a bar's height; a blank where it is not known.
    pub fn bar(self, pct: Option<f64>) -> &'static str {
        let Some(pct) = pct else { return " " };
        let step = step(pct, &BAR_FROM);
        if self.ascii { ASCII_BARS[step] } else { BARS[step] }
    }

    /// A part of a whole as a bar's height, linear; the least there is for what is more than nothing.
    pub fn height(self, part: f64) -> &'static str {
        let step = ((part * 8.0).floor().clamp(0.0, 7.0)) as usize;
        if self.ascii { ASCII_BARS[step] } else { BARS[step] }
    }

    /// A line of `width` cells filled to a share of 100.
    pub fn gauge(self, pct: f64, width: usize) -> String {
        let full = ((pct / 100.0 * width as f64).round().clamp(0.0, width as f64)) as usize;
        let (on, off) = if self.ascii { ("#", ".") } else { ("█", "░") };
        on.repeat(full) + &off.repeat(width - full)
    }

    /// Which way a column is sorted.
    pub fn arrow(self, rising: bool) -> &'static str {
        match (self.ascii, rising) {
            (true, true) => "^",
            (true, false) => "v",
            (false, true) => "▲",
            (false, false) => "▼",
        }
    }

    /// Whether what is inside a line is shown.
    pub fn fold(self, open: Option<bool>) -> &'static str {
        match (open, self.ascii) {
            (None, _) => " ",
            (Some(true), true) => "-",
            (Some(false), true) => "+",
            (Some(true), false) => "▾",
            (Some(false), false) => "▸",
        }
    }

    /// How loud a time lost is: nothing to say, a tenth of the time, half of it.
    pub fn lost(self, pct: Option<f64>) -> Style {
        match pct {
            Some(pct) if self.colour && pct >= 50.0 => Style::new().fg(Color::Red),
            Some(pct) if self.colour && pct >= 10.0 => Style::new().fg(Color::Yellow),
            _ => Style::new(),
        }
    }

    /// A cell of a heat map.
    pub fn heat(self, pct: f64) -> Style {
        match pct {
            _ if !self.colour => Style::new(),
            pct if pct >= 75.0 => Style::new().fg(Color::Red),
            pct if pct >= 40.0 => Style::new().fg(Color::Yellow),
            pct if pct >= 10.0 => Style::new().fg(Color::Green),
            _ => Style::new(),
        }
    }

    /// Of the first and the last line, and of the line that is chosen (which is marked in its first column, too).
    pub fn reverse(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    pub fn heading(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn skin(variables: &[(&str, &str)]) -> Result<Skin, &'static str> {
        Skin::from_environment(|name| {
            variables.iter().find(|(one, _)| *one == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn the_environment_says_what_the_terminal_can_show() {
        let plain = Skin { ascii: false, colour: true };
        assert_eq!(skin(&[]), Ok(plain));
        assert_eq!(skin(&[("TERM", "xterm-256color"), ("LANG", "de_DE.UTF-8")]), Ok(plain));
        assert_eq!(skin(&[("NO_COLOR", "")]), Ok(plain));
        assert_eq!(skin(&[("NO_COLOR", "1")]), Ok(Skin { colour: false, ..plain }));
        assert_eq!(skin(&[("TERM", "linux")]), Ok(Skin { ascii: true, ..plain }));
        assert_eq!(skin(&[("TERM", "vt100")]), Ok(Skin { ascii: true, colour: false }));
        assert_eq!(skin(&[("LANG", "C")]), Ok(Skin { ascii: true, ..plain }));
        assert_eq!(skin(&[("LANG", "C"), ("LC_ALL", "C.utf8")]), Ok(plain));
        assert_eq!(skin(&[("TERM", "dumb")]), Err(DUMB));
    }

    #[test]
    fn more_is_never_drawn_as_less() {
        for ascii in [false, true] {
            let skin = Skin { ascii, colour: false };
            let shades = if ascii { ASCII_SHADES } else { SHADES };
            let drawn: Vec<usize> = (0..=1000)
                .map(|n| {
                    shades.iter().position(|shade| *shade == skin.shade(f64::from(n) / 10.0)).unwrap_or(9)
                })
                .collect();
            assert!(drawn.is_sorted() && drawn[0] == 0 && drawn[1000] == 4);
            assert_eq!((skin.bar(None), skin.shade(f64::NAN)), (" ", " "));
        }
        assert_eq!(Skin { ascii: true, colour: false }.gauge(50.0, 4), "##..");
    }
}
