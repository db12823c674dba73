//! How many requests failed, by the labels that services give the series of their histogram: pure.

use std::collections::BTreeMap;

/// Labels that say how a request ended, by their usual names.
const LABELS: [&str; 8] = [
    "code",
    "status",
    "status_code",
    "http_status_code",
    "http_response_status_code",
    "grpc_code",
    "grpc_status",
    "rpc_grpc_status_code",
];
/// Codes of gRPC that are the server's failure rather than the caller's, as OpenTelemetry's conventions have it: number, name.
const GRPC_FAILURES: [(&str, &str); 6] = [
    ("2", "unknown"),
    ("4", "deadlineexceeded"),
    ("12", "unimplemented"),
    ("13", "internal"),
    ("14", "unavailable"),
    ("15", "dataloss"),
];
const GRPC_OTHERS: [(&str, &str); 11] = [
    ("0", "ok"),
    ("1", "canceled"),
    ("3", "invalidargument"),
    ("5", "notfound"),
    ("6", "alreadyexists"),
    ("7", "permissiondenied"),
    ("8", "resourceexhausted"),
    ("9", "failedprecondition"),
    ("10", "aborted"),
    ("11", "outofrange"),
    ("16", "unauthenticated"),
];

/// Requests that failed, of series with their labels and counts. `None` where a series does not say how its requests ended, in words
/// that are known: then nobody knows how many failed.
pub(super) fn failed<'a>(series: impl Iterator<Item = (&'a BTreeMap<String, String>, f64)>) -> Option<f64> {
    let mut sum = None;
    for (labels, count) in series {
        let ended = LABELS.iter().find_map(|label| labels.get(*label))?;
        if !(count.is_finite() && count >= 0.0) {
            return None;
        }
        *sum.get_or_insert(0.0) += if is_failure(ended)? { count } else { 0.0 };
    }
    sum
}

/// Whether this says that the server failed; `None` for what is neither a status of HTTP (`503`, `5xx`) nor a code of gRPC
/// (`Unavailable`, `UNAVAILABLE`, `14`).
fn is_failure(ended: &str) -> Option<bool> {
    let name: String = ended.chars().filter(|c| *c != '_').collect::<String>().to_ascii_lowercase();
    let name = if name == "cancelled" { "canceled".to_owned() } else { name };
    let class = match name.as_bytes() {
        [class @ b'1'..=b'5', b'x', b'x'] => Some(*class),
        [class @ b'1'..=b'5', tens, ones] if tens.is_ascii_digit() && ones.is_ascii_digit() => Some(*class),
        _ => None,
    };
    let is_in = |codes: &[(&str, &str)]| codes.iter().any(|(number, code)| *number == name || *code == name);
    match class {
        Some(class) => Some(class == b'5'),
        None if is_in(&GRPC_FAILURES) => Some(true),
        None if is_in(&GRPC_OTHERS) => Some(false),
        None => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(series: &[(&str, &str, f64)]) -> Option<f64> {
        let labels: Vec<BTreeMap<String, String>> = series
            .iter()
            .map(|(label, value, _)| BTreeMap::from([((*label).to_owned(), (*value).to_owned())]))
            .collect();
        failed(labels.iter().zip(series).map(|(labels, (_, _, count))| (labels, *count)))
    }

    #[test]
    fn the_servers_failures_are_summed() {
        assert_eq!(
            of(&[("code", "200", 90.0), ("code", "404", 7.0), ("code", "503", 2.0), ("code", "500", 1.0)]),
            Some(3.0)
        );
        assert_eq!(of(&[("status", "2xx", 90.0), ("status", "5xx", 4.0)]), Some(4.0));
        assert_eq!(
            of(&[
                ("grpc_code", "OK", 9.0),
                ("grpc_code", "Unavailable", 2.0),
                ("grpc_code", "NotFound", 1.0)
            ]),
            Some(2.0)
        );
        assert_eq!(of(&[("rpc_grpc_status_code", "0", 9.0), ("rpc_grpc_status_code", "14", 5.0)]), Some(5.0));
        assert_eq!(
            of(&[("grpc_code", "DEADLINE_EXCEEDED", 3.0), ("grpc_code", "CANCELLED", 1.0)]),
            Some(3.0)
        );
        assert_eq!(of(&[("status_code", "200", 9.0)]), Some(0.0), "none failed, and that is known");
    }

    #[test]
    fn what_does_not_say_how_requests_ended_is_unknown_and_not_none_failed() {
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("path", "/", 9.0)]), None);
        assert_eq!(of(&[("code", "500", 9.0), ("path", "/", 9.0)]), None, "some of them do not say it");
        for strange in ["", "success", "600", "5x", "50", "2000", "é"] {
            assert_eq!(of(&[("code", strange, 9.0)]), None, "{strange}");
        }
        for lie in [f64::NAN, -1.0, f64::INFINITY] {
            assert_eq!(of(&[("code", "500", lie)]), None, "{lie}");
        }
    }
}
