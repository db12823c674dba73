//! Text from elsewhere, made safe to show; numbers as text.

use std::fmt::Display;

/// For a terminal or a log: names of tasks, cgroups, containers and keys of files are chosen by others, and may hold escape
/// sequences. Control characters, and those that turn the direction of writing, become a replacement character; ends of
/// lines stay.
pub fn printable(text: &str) -> String {
    let turns = |c: char| matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars().map(|c| if (c.is_control() && c != '\n') || turns(c) { '\u{fffd}' } else { c }).collect()
}

/// Text cut to a number of characters, with an ellipsis.
pub fn cut(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        None => text.to_owned(),
        Some(_) => {
            let mut short: String = text.chars().take(most.saturating_sub(1)).collect();
            short.push('…');
            short
        }
    }
}

/// A number and what it counts: `1 conflict`, `2 conflicts`.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The ends of an interval as they stand behind its value: `[640, 1030]`.
pub fn bracketed(low: impl Display, high: impl Display) -> String {
    format!("[{low}, {high}]")
}

/// A number with so many significant digits, but with no more decimals than `most` and without an exponent.
pub fn significant(value: f64, digits: i32, most: i32) -> String {
    let power = if value == 0.0 || !value.is_finite() { 0 } else { value.abs().log10().floor() as i32 };
    format!("{value:.*}", (digits - 1 - power).clamp(0, most) as usize)
}

/// A number as text without zeros at the end of its decimals.
pub fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

/// Why a regex cannot be read, in a line: above it, a caret points into the regex, which it cannot do within a line.
pub fn regex_fault(error: &impl Display) -> String {
    let text = error.to_string();
    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
}

/// `*` matches any text, everything else itself. Linear in the product of the lengths at worst.
pub fn glob(pattern: &str, text: &str) -> bool {
    let mut parts = pattern.split('*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let parts: Vec<&str> = parts.collect();
    let Some((last, middle)) = parts.split_last() else { return rest.is_empty() };
    for part in middle {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

/// Whether a name is the one that is wanted, or begins with it where that ends with `*`.
pub fn is_or_begins(name: &str, wanted: &str) -> bool {
    wanted.strip_suffix('*').map_or(name == wanted, |front| name.starts_with(front))
}

/// The end of a text, where the reason usually is.
pub fn excerpt(text: &str) -> String {
    let text = text.trim();
    let count = text.chars().count();
    let tail: String =
        text.chars().skip(count.saturating_sub(160)).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if count > 160 { format!("..{tail}") } else { tail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_as_in_a_shell() {
        for (pattern, text, matches) in [
            ("cpu 3", "cpu 3", true),
            ("cpu 3", "cpu 31", false),
            ("cpu *", "cpu 31", true),
            ("*31", "cpu 31", true),
            ("*u*3*", "cpu 31", true),
            ("*x*", "cpu 31", false),
            ("a*a", "a", false),
            ("*", "", true),
        ] {
            assert_eq!(glob(pattern, text), matches, "{pattern} {text}");
        }
    }

    #[test]
    fn one_thing_has_no_plural() {
        assert_eq!([0, 1, 2].map(|number| count(number, "host")), ["0 hosts", "1 host", "2 hosts"]);
    }

    #[test]
    fn numbers_have_their_digits_and_no_zeros_that_say_nothing() {
        for (value, text, short) in [
            (0.0, "0.000", "0"),
            (1234.56, "1235", "1235"),
            (100.0, "100.0", "100"),
            (-1.5, "-1.500", "-1.5"),
            (0.012_345, "0.01235", "0.01235"),
            (1e-9, "0.000000", "0"),
            (f64::NAN, "NaN", "NaN"),
            (f64::INFINITY, "inf", "inf"),
        ] {
            let shown = significant(value, 4, 6);
            assert_eq!((shown.as_str(), without_zeros(&shown)), (text, short));
        }
        assert_eq!(without_zeros("250"), "250");
    }

    #[test]
    fn a_regex_fault_is_one_line_without_a_caret() {
        let said = "regex parse error:\n    (web\n    ^\nerror: unclosed group";
        assert_eq!(regex_fault(&said), "unclosed group");
        assert_eq!(regex_fault(&"Compiled regex exceeds size limit"), "Compiled regex exceeds size limit");
    }

    #[test]
    fn what_is_cut_says_so() {
        assert_eq!((cut("héllo", 5).as_str(), cut("héllo!", 5).as_str()), ("héllo", "héll…"));
    }

    #[test]
    fn the_end_of_a_long_text_is_shown_on_one_line() {
        assert_eq!(excerpt(" no\nway "), "no way");
        assert_eq!(excerpt(&format!("{}end", "x".repeat(200))), format!("..{}end", "x".repeat(157)));
    }

    #[test]
    fn nothing_moves_the_cursor_or_turns_the_line() {
        assert_eq!(
            printable("a\u{1b}[2Jb\r\u{9b}c\u{202e}d\u{7f}"),
            "a\u{fffd}[2Jb\u{fffd}\u{fffd}c\u{fffd}d\u{fffd}"
        );
        assert_eq!(printable("a\u{61c}b\u{200f}"), "a\u{fffd}b\u{fffd}");
        assert_eq!(printable("Größe\n日本"), "Größe\n日本");
    }
}
