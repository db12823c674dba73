//! How a command talks with whoever started it: every byte that the program writes to its standard streams goes through here
//! (clippy's `print_stdout` and `print_stderr` are denied in the crates that use it), why a command failed ([`Failure`]), and whether
//! it is to end ([`stop`]).
//!
//! * Results go to stdout ([`results`], [`out!`], [`outln!`]). A reader that went away ends the output quietly; any
//!   other error is the command's, which then does not end with status 0.
//! * Messages go to stderr ([`say!`], [`passing`]). They never fail, and they never hold the loop up: a terminal that
//!   was closed, a full disk, a pipe no one reads cost the message, not what the program was doing. A message that
//!   finds the stream blocked waits in a small queue; what does not fit is counted and the count is reported. Control
//!   characters in them, which names of tasks, cgroups and keys may hold, do not reach the terminal. Where stderr is the
//!   systemd journal, each line begins with its level (sd-daemon(3)).

#![deny(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod failure;
pub mod stop;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use evenkeel_base::printable;
use indicatif::{ProgressDrawTarget, TermLike};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

#[doc(hidden)]
pub use anyhow::anyhow;
pub use failure::{Failure, Outcome, in_words};

/// A pipe that is ready takes this much without blocking (PIPE_BUF, pipe(7)).
const CHUNK: usize = 4096;
/// Messages that wait for a blocked stderr, bytes.
const QUEUE: usize = 256 << 10;
/// How long a message may hold its writer up.
const PATIENCE: Duration = Duration::from_millis(50);
/// How long the last messages wait for their reader at the end.
const LAST_PATIENCE: Duration = Duration::from_secs(2);
/// How long results wait for their reader once somebody asked the program to end.
const RESULTS_AFTER_STOP: Duration = Duration::from_secs(3);

/// Clears a passing line.
const CLEAR: &str = "\r\x1b[K";

/// Writes to stdout; the error is the command's failure.
#[macro_export]
macro_rules! out {
    ($($words:tt)*) => { $crate::print(format_args!($($words)*)) };
}
/// As [`out!`], with a line's end.
#[macro_export]
macro_rules! outln {
    () => { $crate::print(format_args!("\n")) };
    ($($words:tt)*) => { $crate::print(format_args!("{}\n", format_args!($($words)*))) };
}
/// A line on stderr; cannot fail.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => { $crate::message(&format!("{}\n", format_args!($($words)*))) };
}
/// A [`Failure::Usage`] with this message.
#[macro_export]
macro_rules! usage {
    ($($words:tt)*) => { $crate::Failure::Usage($crate::anyhow!($($words)*)) };
}
/// A [`Failure::Cannot`] with this message.
#[macro_export]
macro_rules! cannot {
    ($($words:tt)*) => { $crate::Failure::Cannot($crate::anyhow!($($words)*)) };
}
/// A [`Failure::No`] with this message.
#[macro_export]
macro_rules! refused {
    ($($words:tt)*) => { $crate::Failure::No($crate::anyhow!($($words)*)) };
}
/// Stdout lost its reader.
static READER_GONE: AtomicBool = AtomicBool::new(false);

/// How much a message matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    Error,
    /// Somebody should look.
    Warning,
    Info,
}

impl Level {
    /// The prefix of a line in the journal (sd-daemon(3), syslog(3)).
    fn prefix(self) -> &'static str {
        match self {
            Self::Error => "<3>",
            Self::Warning => "<4>",
            Self::Info => "<6>",
        }
    }
}

/// Whether stderr is the journal: it says which stream it gave (`JOURNAL_STREAM`, systemd.exec(5)), and a child's stderr may
/// have been turned elsewhere since.
fn is_journal() -> bool {
    static IS: OnceLock<bool> = OnceLock::new();
    *IS.get_or_init(|| {
        let Ok(stream) = std::env::var("JOURNAL_STREAM") else { return false };
        rustix::fs::fstat(io::stderr()).is_ok_and(|stat| stream == format!("{}:{}", stat.st_dev, stat.st_ino))
    })
}

/// The text with its level at the beginning of each line.
fn levelled(level: Level, text: &str) -> String {
    text.split_inclusive('\n').map(|line| format!("{}{line}", level.prefix())).collect()
}

static MESSAGES: Mutex<Messages> =
    Mutex::new(Messages { queue: VecDeque::new(), blocked: false, lost: 0, passing: false });

struct Messages {
    /// Bytes that stderr has not taken yet.
    queue: VecDeque<u8>,
    /// It did not take them in time: the next message does not wait for it.
    blocked: bool,
    lost: u64,
    /// The terminal's last line is a passing one.
    passing: bool,
}

fn messages() -> MutexGuard<'static, Messages> {
    MESSAGES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// See [`out!`].
pub fn print(words: fmt::Arguments<'_>) -> Result<(), Failure> {
    results()
        .write_fmt(words)
        .map_err(|error| Failure::Cannot(anyhow::Error::from(error).context("cannot write to stdout")))
}

/// Stdout, for results.
pub fn results() -> Results {
    messages().clear_passing();
    Results
}

/// Whether no one reads the results any more, so that a command that goes on printing may end.
pub fn reader_gone() -> bool {
    READER_GONE.load(Ordering::Relaxed)
}

/// See [`say!`].
pub fn message(text: &str) {
    message_at(Level::Info, text);
}

/// As [`message`], with a level for the journal.
pub fn message_at(level: Level, text: &str) {
    let text = printable(text);
    let text = if is_journal() { levelled(level, &text) } else { text };
    let mut messages = messages();
    messages.clear_passing();
    messages.send(text.as_bytes(), PATIENCE);
}

/// Gives the last messages some time; at the very end.
pub fn finish() {
    messages().flush(LAST_PATIENCE);
}

/// See [`results`]. A reader that went away is no error here.
#[derive(Debug, Clone, Copy)]
pub struct Results;

impl Results {
    pub fn is_terminal(self) -> bool {
        io::stdout().is_terminal()
    }
}

impl Write for Results {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let stdout = io::stdout();
        let mut stopping: Option<Instant> = None;
        loop {
            if bytes.is_empty() || reader_gone() {
                return Ok(bytes.len());
            }
            if !ready(stdout.as_fd(), Duration::from_millis(200)) {
                // No one reads, and somebody wants us to end.
                if stop::requested()
                    && stopping.get_or_insert_with(Instant::now).elapsed() > RESULTS_AFTER_STOP
                {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, "its reader does not read"));
                }
                continue;
            }
            match rustix::io::write(&stdout, &bytes[..bytes.len().min(CHUNK)]) {
                Ok(written) => return Ok(written),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => std::thread::sleep(Duration::from_millis(5)),
                Err(Errno::PIPE) => READER_GONE.store(true, Ordering::Relaxed),
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// In one piece: a document's `Display` writes it by the word.
    fn write_fmt(&mut self, words: fmt::Arguments<'_>) -> io::Result<()> {
        self.write_all(words.to_string().as_bytes())
    }
}

/// Whether a write would not block. Errors count as ready: the write tells them.
fn ready(fd: BorrowedFd<'_>, patience: Duration) -> bool {
    let until = Instant::now() + patience;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        match poll(&mut [PollFd::new(&fd, PollFlags::OUT)], Timespec::try_from(left).ok().as_ref()) {
            Ok(0) => return false,
            Err(Errno::INTR) if !left.is_zero() => {}
            _ => return true,
        }
    }
}

impl Messages {
    fn clear_passing(&mut self) {
        if std::mem::take(&mut self.passing) {
            self.send(CLEAR.as_bytes(), PATIENCE);
        }
    }

    fn send(&mut self, bytes: &[u8], patience: Duration) {
        if self.queue.len() + bytes.len() > QUEUE {
            self.lost += 1;
        } else {
            self.queue.extend(bytes);
        }
        self.flush(if self.blocked { Duration::ZERO } else { patience });
    }

    fn flush(&mut self, patience: Duration) {
        let stderr = io::stderr();
        let until = Instant::now() + patience;
        loop {
            if self.queue.is_empty() {
                self.blocked = false;
                match std::mem::take(&mut self.lost) {
                    0 => return,
                    lost => {
                        let text = format!("evenkeel: {lost} messages were lost\n");
                        let text = if is_journal() { levelled(Level::Warning, &text) } else { text };
                        self.queue.extend(text.as_bytes());
                    }
                }
            }
            if !ready(stderr.as_fd(), until.saturating_duration_since(Instant::now())) {
                self.blocked = true;
                return;
            }
            let (head, _) = self.queue.as_slices();
            match rustix::io::write(&stderr, &head[..head.len().min(CHUNK)]) {
                Ok(written) => drop(self.queue.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    self.blocked = true;
                    return;
                }
                // Closed, full, gone: messages have nowhere to go, and the work goes on.
                Err(_) => {
                    self.queue.clear();
                    self.lost = 0;
                    return;
                }
            }
        }
    }
}

/// Whether messages go to a terminal, where somebody may be watching.
pub fn is_watched() -> bool {
    io::stderr().is_terminal()
}

/// A message that the next one replaces; only for a terminal ([`is_watched`]).
pub fn passing(text: &str) {
    let mut messages = messages();
    // One that waits already will do: progress is not worth a queue.
    if messages.queue.is_empty() {
        messages.send(format!("{CLEAR}{}", printable(text)).as_bytes(), PATIENCE);
        messages.passing = true;
    } else {
        messages.flush(Duration::ZERO);
    }
}

/// Where progress bars draw: one line of the terminal. It goes the way of all messages, so that a terminal that does not
/// read does not hold up what is measured.
pub fn progress_target() -> ProgressDrawTarget {
    if is_watched() {
        ProgressDrawTarget::term_like_with_hz(Box::new(ProgressLine), 5)
    } else {
        ProgressDrawTarget::hidden()
    }
}

#[derive(Debug)]
struct ProgressLine;

impl ProgressLine {
    fn send(text: &str) -> io::Result<()> {
        messages().send(text.as_bytes(), PATIENCE);
        Ok(())
    }
}

impl TermLike for ProgressLine {
    fn width(&self) -> u16 {
        evenkeel_report::table::width(true).unwrap_or(80)
    }

    fn move_cursor_up(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { Self::send(&format!("\x1b[{n}A")) }
    }

    fn move_cursor_down(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { Self::send(&format!("\x1b[{n}B")) }
    }

    fn move_cursor_right(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { Self::send(&format!("\x1b[{n}C")) }
    }

    fn move_cursor_left(&self, n: usize) -> io::Result<()> {
        if n == 0 { Ok(()) } else { Self::send(&format!("\x1b[{n}D")) }
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        Self::send(&format!("{text}\n"))
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        Self::send(text)
    }

    fn clear_line(&self) -> io::Result<()> {
        Self::send(CLEAR)
    }

    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Stderr as a writer, for what libraries and tracing report. Each message comes in one piece.
#[derive(Debug, Clone, Copy)]
pub struct MessageWriter(Level);

impl MessageWriter {
    pub fn at(level: &tracing::Level) -> Self {
        Self(match *level {
            tracing::Level::ERROR => Level::Error,
            tracing::Level::WARN => Level::Warning,
            _ => Level::Info,
        })
    }
}

/// Makes a writer for each message of tracing.
#[derive(Debug, Clone, Copy, Default)]
pub struct MessageWriters;

impl<'a> tracing_subscriber::fmt::MakeWriter<'a> for MessageWriters {
    type Writer = MessageWriter;

    fn make_writer(&'a self) -> MessageWriter {
        MessageWriter(Level::Info)
    }

    fn make_writer_for(&'a self, about: &tracing::Metadata<'_>) -> MessageWriter {
        MessageWriter::at(about.level())
    }
}

impl Write for MessageWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if is_journal() {
            let text = levelled(self.0, &String::from_utf8_lossy(bytes));
            messages().send(text.as_bytes(), PATIENCE);
        } else {
            messages().send(bytes, PATIENCE);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
