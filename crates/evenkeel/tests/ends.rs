//! How commands end when their output has nowhere to go, and what their children inherit. No privilege needed.

mod program;

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use program::{end, evenkeel};

fn full() -> File {
    File::options().write(true).open("/dev/full").unwrap()
}

const READING: [&[&str]; 9] = [
    &["topology"],
    &["ps", "--interval", "100ms"],
    &["lab", "list"],
    &["load", "spin", "--seconds", "0.05"],
    &["completions", "bash"],
    &["sim", "--fleet", "2"],
    &["price", "--cpu-minutes", "1"],
    &["--help"],
    &["--version"],
];

#[test]
fn results_on_a_full_disk_are_a_failure_with_a_reason() {
    for args in READING {
        end(evenkeel(args).stdout(full())).refused(3, "cannot write to stdout");
        // Nobody can be told; the status still is not that of success.
        end(evenkeel(args).stdout(full()).stderr(full())).with(3);
    }
}

#[test]
fn a_reader_that_went_away_is_no_error() {
    for args in READING {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ended = end(evenkeel(args).stdout(writer)).with(0);
        assert!(ended.stderr.is_empty(), "{ended}");
    }
}

#[test]
fn a_command_keeps_its_status_whatever_becomes_of_its_account() {
    let dir = tempfile::tempdir().unwrap();
    let run = |stderr: Stdio| {
        let state = dir.path().to_str().unwrap();
        let args = ["--state-dir", state, "exec", "--", "sh", "-c", "sleep 0.1; exit 7"];
        evenkeel(args).stderr(stderr).status().unwrap().code()
    };
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert_eq!(run(full().into()), Some(7));
    assert_eq!(run(writer.into()), Some(7));
}

/// Signals a child of `exec` ignores and blocks.
fn inherited(prepare: impl FnMut() -> std::io::Result<()> + Send + Sync + 'static) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let mut command = evenkeel(["--state-dir", state, "exec", "--", "cat", "/proc/self/status"]);
    // SAFETY: only async-signal-safe calls.
    unsafe { command.pre_exec(prepare) };
    let out = end(&mut command).stdout;
    let mask = |name: &str| {
        let line = out.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap()
    };
    // The two signals that the C library keeps to itself cannot be set by a program.
    let ours = !(0b11 << 31);
    (mask("SigIgn:") & ours, mask("SigBlk:") & ours)
}

#[test]
fn a_command_starts_with_default_signals_but_what_nohup_ignores() {
    let ignore = |signals: &'static [i32]| {
        move || {
            // Whoever runs the tests may ignore some: a shell's background jobs ignore SIGINT and SIGQUIT.
            for signal in 1..libc::SIGSYS {
                // SAFETY: takes numbers only.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
            for &signal in signals {
                // SAFETY: takes numbers only.
                unsafe { libc::signal(signal, libc::SIG_IGN) };
            }
            // SAFETY: a zeroed set is valid and changed through its functions.
            unsafe {
                let mut set: libc::sigset_t = std::mem::zeroed();
                libc::sigaddset(&raw mut set, libc::SIGUSR2);
                libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            }
            Ok(())
        }
    };
    assert_eq!(inherited(ignore(&[libc::SIGPIPE, libc::SIGUSR1, libc::SIGXFSZ])), (0, 0));
    assert_eq!(inherited(ignore(&[libc::SIGHUP])), (1 << (libc::SIGHUP - 1), 0));
}

#[test]
fn a_command_whose_reader_goes_ends_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().to_str().unwrap();
    let mut command = evenkeel(["--state-dir", state, "exec", "--", "yes"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut first = [0; 2];
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut first).unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(128 + libc::SIGPIPE));
}

#[test]
fn what_is_out_of_bounds_is_a_wrong_usage() {
    let usage: [(&[&str], i32); 8] = [
        (&["run", "--scope", "pid:1", "--for", "500000000000y"], 2),
        (&["why", "all", "--for", "500000000000y"], 2),
        (&["restore", "--wait", "500000000000y"], 2),
        (&["tenants", "cpu", "--tenants", "4294967295"], 2),
        (&["tenants", "cpu", "a", "--out", "b"], 2),
        (&["exec", "--no-such-option", "--", "true"], 125),
        (&["--state-dir", "/tmp", "exec"], 125),
        (&["-o", "svg", "exec", "--", "true"], 125),
    ];
    for (args, status) in usage {
        end(&mut evenkeel(args)).with(status);
    }
}

#[test]
fn messages_in_a_pipe_have_no_colours() {
    // Without privileges tasks are sampled from /proc, of which it warns.
    let mut warned = evenkeel(["ps", "--interval", "100ms"]);
    if rustix::process::geteuid().is_root() {
        warned.uid(65534);
    }
    for words in [end(&mut warned).stderr, end(&mut evenkeel(["ps", "--nonsense"])).stderr] {
        assert!(!words.is_empty() && !words.contains('\x1b'), "{words:?}");
    }
}

#[test]
fn pid_1_is_not_said_to_be_missing() {
    let why = end(&mut evenkeel(["why", "pid:1", "--for", "100ms", "--source", "proc"]));
    let words = why.refused(2, "pid 1");
    assert!(!words.contains("no such process"), "{words}");
}
