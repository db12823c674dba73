//! Instants and lengths of time, for people and documents.

/// RFC 3339 in UTC with milliseconds, of nanoseconds since 1970; `None` when out of range.
pub fn rfc3339(ns: u64) -> Option<String> {
    let instant = jiff::Timestamp::from_nanosecond(i128::from(ns)).ok()?;
    Some(format!("{instant:.3}"))
}

/// As [`rfc3339`], or `?`.
pub fn instant(ns: u64) -> String {
    rfc3339(ns).unwrap_or_else(|| "?".to_owned())
}

/// Date and time for people, UTC, to the second: `2026-11-21 21:04:05`.
pub fn short(ns: u64) -> String {
    jiff::Timestamp::from_nanosecond(i128::from(ns))
        .map_or_else(|_| "?".to_owned(), |instant| format!("{instant:.0}").replace('T', " ").replace('Z', ""))
}

/// `2026-11-21T22:14:00.179Z` for people: `2026-11-21 22:14:00 UTC`.
pub fn to_the_second(rfc3339: &str) -> String {
    match rfc3339.strip_suffix('Z') {
        Some(utc) => format!("{} UTC", utc.split('.').next().unwrap_or(utc).replace('T', " ")),
        None => rfc3339.to_owned(),
    }
}

/// A length of time for people: `0.4 s`, `12 s`, `3 min 5 s`, `2 h 4 min`, `3 d 1 h`.
pub fn length(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "?".to_owned();
    }
    if seconds < 9.95 {
        return format!("{seconds:.1} s");
    }
    let whole = seconds.round() as u64;
    match whole {
        0..60 => format!("{whole} s"),
        60..3600 => format!("{} min {} s", whole / 60, whole % 60),
        3600..86_400 => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3600),
    }
}

/// Bytes for people, binary units.
pub fn bytes(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", UNITS[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_well() {
        assert_eq!(rfc3339(1_763_759_045_123_456_789).as_deref(), Some("2025-11-21T21:04:05.123Z"));
        assert_eq!(short(1_763_759_045_123_456_789), "2025-11-21 21:04:05");
        assert_eq!(to_the_second("2026-11-21T22:14:00.179Z"), "2026-11-21 22:14:00 UTC");
        assert_eq!(to_the_second("yesterday"), "yesterday");
        assert_eq!(length(0.42), "0.4 s");
        assert_eq!(length(185.0), "3 min 5 s");
        assert_eq!(length(90_000.0), "1 d 1 h");
        assert_eq!(length(f64::NAN), "?");
        assert_eq!(bytes(200 << 20), "200.0 MiB");
        assert_eq!(bytes(12), "12 B");
    }
}
