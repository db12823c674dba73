//! `evenkeel top` on terminals of its own (`script` of util-linux, tmux), and without one.

mod program;

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::process::{Command, Stdio};

use evenkeel_linux::testing::{TestChild, awaited, until};

const BINARY: &str = env!("CARGO_BIN_EXE_evenkeel");

#[test]
fn without_a_terminal_it_says_what_there_is_instead() {
    program::end(&mut program::evenkeel(["top"])).refused(2, "evenkeel ps");
}

#[test]
fn keys_change_what_is_shown_and_q_ends() {
    let dir = tempfile::tempdir().unwrap();
    let log = dir.path().join("typescript");
    let mut child = Command::new("script")
        .args(["-qfec", &format!("stty rows 24 cols 100; exec {BINARY} top --by process --interval 100ms")])
        .arg(&log)
        .env("TERM", "xterm")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut keys = child.stdin.take().unwrap();
    let shown = |what: &str| {
        until(&format!("{what} is shown"), || {
            std::fs::read(&log).is_ok_and(|bytes| String::from_utf8_lossy(&bytes).contains(what))
        });
    };
    shown("by process");
    shown("busy");
    keys.write_all(b"b").unwrap();
    // The terminal gets only the cells that changed: "process" becomes "container" in its place.
    shown("container");
    keys.write_all(b"q").unwrap();
    drop(keys);
    let status = child.wait().unwrap();
    assert!(status.success(), "{status:?}");
    let text = std::fs::read(&log).unwrap();
    // The terminal is left as it was found: the alternate screen is closed.
    assert!(String::from_utf8_lossy(&text).contains("\u{1b}[?1049l"));
}

/// A screen of tmux, which is a terminal as users have it: 80 columns and 24 lines.
struct Screen {
    dir: tempfile::TempDir,
}

impl Screen {
    fn start(arguments: &str, environment: &[(&str, &str)]) -> Self {
        let screen = Self { dir: tempfile::tempdir().unwrap() };
        let set: String = environment.iter().map(|(name, value)| format!("{name}={value} ")).collect();
        // It stays when the program ends, so that its last words can be read.
        let command =
            format!("env {set} {BINARY} top --interval 100ms {arguments}; echo status $?; sleep 600");
        screen.tmux(&["new-session", "-d", "-x", "80", "-y", "24", &command]);
        screen
    }

    fn tmux(&self, arguments: &[&str]) -> String {
        let socket = self.dir.path().join("tmux");
        let mut command = Command::new("tmux");
        // A server of its own, which reads nobody's configuration.
        command.args(["-f", "/dev/null", "-u", "-S"]).arg(socket).args(arguments);
        let out = command.env_remove("TMUX").env("TERM", "xterm").output().unwrap();
        String::from_utf8_lossy(&out.stdout).into_owned()
    }

    fn keys(&self, keys: &str) {
        self.tmux(&["send-keys", keys]);
    }

    /// Waits until something is shown; returns the screen.
    fn shows(&self, what: &str) -> String {
        awaited(60, || {
            let text = self.tmux(&["capture-pane", "-p"]);
            if text.contains(what) { Ok(text) } else { Err(format!("no {what:?} on\n{text}")) }
        })
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.tmux(&["kill-server"]);
    }
}

/// A process whose name is chosen to do harm; gone with the test.
fn hostile(dir: &std::path::Path) -> TestChild {
    // As `comm` has it: the file's name, at most 15 bytes, any but / and NUL.
    let path = dir.join(std::ffi::OsStr::from_bytes(b"e\x1b[2Jvil\x07\xff\r\n"));
    std::os::unix::fs::symlink("/bin/sh", &path).unwrap();
    let child = Command::new(&path).args(["-c", "while :; do sleep 0.01; done"]).spawn().unwrap();
    TestChild(child)
}

#[test]
fn each_screen_is_shown_on_a_terminal_as_users_have_it() {
    let state = tempfile::tempdir().unwrap();
    let screen = Screen::start(&format!("--state-dir {}", state.path().display()), &[]);
    screen.shows("[1 tree]");
    screen.shows("WAIT%");
    screen.keys("2");
    screen.shows("% CPU");
    screen.keys("3");
    screen.shows("QUEUE");
    screen.keys("4");
    screen.shows("No agent is running.");
    screen.keys("5");
    screen.shows("No history on this host");
    screen.keys("?");
    screen.shows("KEYS");
    screen.keys("Escape");
    screen.keys("1");
    screen.tmux(&["resize-window", "-x", "40", "-y", "10"]);
    let narrow = screen.shows("[1 tree]");
    assert!(!narrow.contains("2 heat"), "{narrow}");
    screen.keys("q");
    screen.shows("status 0");
}

#[test]
fn hostile_names_are_shown_and_move_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let _hostile = hostile(dir.path());
    let screen = Screen::start("--by process", &[("NO_COLOR", "1"), ("LC_ALL", "C")]);
    screen.shows("by process");
    screen.keys("/");
    screen.keys("vil");
    screen.keys("Enter");
    // The escape sequence did not clear the screen: it is text, and what it began with is a question mark.
    let text = screen.shows("e?[2Jvil");
    assert!(text.contains("[1 tree]") && text.is_ascii(), "{text}");
    screen.keys("w");
    screen.shows("watching pid:");
    screen.keys("Escape");
    screen.shows("only: vil");
    screen.keys("q");
    screen.shows("status 0");
}

#[test]
fn it_ends_with_its_terminal() {
    let state = tempfile::tempdir().unwrap();
    let screen = Screen::start(&format!("--state-dir {}", state.path().display()), &[]);
    screen.shows("WAIT%");
    let mine = || {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let here = state.path().as_os_str().as_bytes().to_vec();
        lines
            .filter(|line| line.starts_with(BINARY.as_bytes()))
            .any(|line| line.windows(here.len()).any(|part| part == here))
    };
    assert!(mine());
    // The connection breaks: nobody is left to press q.
    screen.tmux(&["kill-server"]);
    until("it ends without a terminal", || !mine());
}

#[test]
fn a_terminal_that_cannot_move_its_cursor_is_told_what_there_is_instead() {
    let screen = Screen::start("", &[("TERM", "dumb")]);
    screen.shows("TERM is dumb");
    screen.shows("status 2");
}
