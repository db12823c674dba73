//! `ip` and `tc` in batches, inside a namespace.
//!
//! iproute2 is on every host with containers or virtual machines, and one process sets up all links of a tenant set;
//! a netlink library would bring an async stack and still have no types for HTB. Keywords are written out in full
//! (`name`, `dev`): `ip` takes abbreviations, so that a link called `br` would be read as `broadcast`.

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use super::NetError;
use super::namespace::{Namespace, enter};

/// Runs `ip -batch` on these lines inside a namespace.
pub fn ip(namespace: &Namespace, lines: &str) -> Result<String, NetError> {
    batch("ip", &[], Some(namespace), lines)
}

/// Runs `tc -batch` on these lines, inside a namespace or in the host's own.
pub fn tc(namespace: Option<&Namespace>, lines: &str) -> Result<String, NetError> {
    batch("tc", &[], namespace, lines)
}

/// Runs `ip` or `tc` with options and lines of a batch; returns its stdout.
///
/// # Errors
/// [`NetError::Missing`] when the program is not installed; [`NetError::Refused`] with the line it refused and what it
/// said.
pub fn batch(
    program: &'static str,
    options: &[&str],
    namespace: Option<&Namespace>,
    lines: &str,
) -> Result<String, NetError> {
    let mut command = Command::new(program);
    command.args(options).args(["-batch", "-"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // Ctrl-C and `timeout` signal the whole group: what takes things down must not be hit half-way.
    command.process_group(0);
    if let Some(namespace) = namespace {
        let handle = namespace.handle()?;
        // SAFETY: one async-signal-safe system call on a descriptor the closure owns.
        unsafe { command.pre_exec(move || enter(std::os::fd::AsFd::as_fd(&handle))) };
    }
    let failed = |error: std::io::Error| match error.kind() {
        std::io::ErrorKind::NotFound => NetError::Missing(program),
        _ => NetError::system(format!("cannot run {program}"), error),
    };
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that ended early says why on its stderr.
        let _ = stdin.write_all(lines.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(refusal(program, lines, &said, namespace.map_or("this host", Namespace::name)))
}

/// What `ip` or `tc` said, with the line of the batch it was about (`Command failed -:3`).
fn refusal(program: &'static str, lines: &str, said: &str, place: &str) -> NetError {
    let number =
        said.lines().find_map(|line| line.strip_prefix("Command failed -:")?.trim().parse::<usize>().ok());
    let line = number.and_then(|n| lines.lines().nth(n.saturating_sub(1))).unwrap_or(lines.trim());
    let why: Vec<&str> =
        said.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with("Command failed")).collect();
    NetError::Refused {
        command: format!("{program} {line}"),
        place: place.to_owned(),
        why: if why.is_empty() { "no reason given".into() } else { why.join("; ") },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_line() {
        let said = "Error: Unknown device type.\nCommand failed -:2\n";
        let error = refusal("ip", "link set dev lo up\nlink add name x type nonsense\n", said, "tenant 3");
        let text = error.to_string();
        assert!(text.contains("ip link add name x type nonsense") && text.contains("tenant 3"), "{text}");
        assert!(text.contains("Unknown device type"), "{text}");
        assert!(refusal("tc", "qdisc show", "", "h").to_string().contains("no reason"));
    }
}
