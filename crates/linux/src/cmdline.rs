//! `/proc/PID/cmdline`: arguments ended by NUL; empty for kernel threads and zombies.

/// The arguments. A process may overwrite them with anything (`setproctitle`), so nothing is an error here.
pub fn parse(text: &str) -> Vec<String> {
    let text = text.strip_suffix('\0').unwrap_or(text);
    if text.is_empty() { Vec::new() } else { text.split('\0').map(str::to_owned).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_arguments_are_kept() {
        assert_eq!(parse("a\0\0b\0"), ["a", "", "b"]);
        assert!(parse("").is_empty());
        assert_eq!(parse("nginx: worker"), ["nginx: worker"]);
    }
}
