//! One call: this program again, as the command, in a process of its own that ends with the call.

use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use evenkeel_base::printable;
use serde_json::{Value, json};

use super::super::{Global, stop};

/// Longest document, bytes.
const LONGEST: usize = 32 << 20;
/// Of its messages, bytes.
const MESSAGES: usize = 16 << 10;
/// Longest that a reading command may take.
const READING: Duration = Duration::from_secs(15 * 60);
/// How often it is looked whether the command has ended or is to end.
const LOOK: Duration = Duration::from_millis(20);
/// How long a reading command may take to end; what acts restores first, however long that takes.
const GRACE: Duration = Duration::from_secs(5);

/// A call at work.
#[derive(Debug)]
pub struct Call {
    cancelled: Arc<AtomicBool>,
}

/// How a call ended.
#[derive(Debug)]
pub enum Answer {
    /// Nobody waits for it any more.
    Cancelled,
    /// Exit status, document, messages.
    Ended(Option<i32>, Vec<u8>, String),
    /// It could not be started, or had to be ended.
    Failed(String),
}

impl Call {
    /// Starts the command; `done` is called once, from another thread.
    ///
    /// # Errors
    /// There is no thread to be had; `done` is never called.
    pub fn start(
        global: &Global,
        command: &'static str,
        words: Vec<String>,
        acts: bool,
        done: impl FnOnce(Answer) + Send + 'static,
    ) -> std::io::Result<Self> {
        let cancelled = Arc::new(AtomicBool::new(false));
        let (flag, global) = (cancelled.clone(), global.clone());
        // The thread that forks must live as long as the child, which ends with it (PR_SET_PDEATHSIG).
        std::thread::Builder::new()
            .name(command.to_owned())
            .spawn(move || done(answer(&global, command, &words, acts, &flag)))?;
        Ok(Self { cancelled })
    }

    /// Asks the command to end; what it changed it restores.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

fn answer(global: &Global, command: &str, words: &[String], acts: bool, cancelled: &AtomicBool) -> Answer {
    match start(global, command, words) {
        Ok(child) => watch(child, acts, cancelled),
        Err(error) => Answer::Failed(format!("{command} cannot be started: {error}")),
    }
}

fn start(global: &Global, name: &str, words: &[String]) -> std::io::Result<Child> {
    let mut command = Command::new("/proc/self/exe");
    command.arg("--output=json").arg("--state-dir").arg(&global.state_dir);
    if let Some(config) = &global.config {
        command.arg("--config").arg(config);
    }
    command.arg(name).args(words);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).process_group(0);
    evenkeel_linux::children::bind(&mut command, libc::SIGTERM);
    command.spawn()
}

fn watch(mut child: Child, acts: bool, cancelled: &AtomicBool) -> Answer {
    let text = child.stdout.take().map(|pipe| collect(pipe, LONGEST)).transpose();
    let messages = child.stderr.take().map(|pipe| collect(pipe, MESSAGES)).transpose();
    let unread = text.is_err() || messages.is_err();
    let began = Instant::now();
    let mut asked: Option<Instant> = None;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) => {}
            Err(error) => return Answer::Failed(format!("its end was not seen: {error}")),
        }
        let late = !acts && began.elapsed() > READING;
        if asked.is_none() && (late || unread || cancelled.load(Ordering::Relaxed) || stop::requested()) {
            asked = Some(Instant::now());
            let pid = rustix::process::Pid::from_child(&child);
            let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        }
        if !acts && asked.is_some_and(|at| at.elapsed() > GRACE) {
            let _ = child.kill();
        }
        std::thread::sleep(LOOK);
    };
    let (text, messages) = match (text, messages) {
        (Ok(text), Ok(messages)) => (text, messages),
        (Err(error), _) | (_, Err(error)) => {
            return Answer::Failed(format!("no thread to read its answer: {error}"));
        }
    };
    let bytes = |pipe: Option<mpsc::Receiver<Vec<u8>>>| {
        pipe.and_then(|pipe| pipe.recv_timeout(GRACE).ok()).unwrap_or_default()
    };
    let (text, messages) = (bytes(text), bytes(messages));
    if cancelled.load(Ordering::Relaxed) {
        return Answer::Cancelled;
    }
    if text.len() > LONGEST {
        return Answer::Failed(format!("its answer has more than {LONGEST} bytes; ask for less"));
    }
    Answer::Ended(status.code(), text, printable(&String::from_utf8_lossy(&messages)))
}

/// Reads to the end; what is beyond `most` is read and dropped, but for a byte that tells.
fn collect(mut pipe: impl Read + Send + 'static, most: usize) -> std::io::Result<mpsc::Receiver<Vec<u8>>> {
    let (send, receive) = mpsc::channel();
    std::thread::Builder::new().name("pipe".to_owned()).spawn(move || {
        let mut bytes = Vec::new();
        let _ = pipe.by_ref().take(most as u64 + 1).read_to_end(&mut bytes);
        let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        let _ = send.send(bytes);
    })?;
    Ok(receive)
}

impl Answer {
    /// The protocol's result; none where nobody waits.
    pub fn into_result(self) -> Option<Value> {
        let failed = |text: String| json!({ "content": [{ "type": "text", "text": text }], "isError": true });
        match self {
            Self::Cancelled => None,
            Self::Failed(why) => Some(failed(why)),
            Self::Ended(status, text, messages) => Some(match serde_json::from_slice::<Value>(&text) {
                // 1: the answer is no, which is an answer.
                Ok(document) if matches!(status, Some(0 | 1)) => json!({
                    "content": [{ "type": "text", "text": document.to_string() }],
                    "structuredContent": document,
                    "isError": false,
                    "_meta": { "evenkeel/exit_status": status },
                }),
                _ => failed(match status {
                    Some(status) => format!("{}\nexit status {status}", messages.trim_end()),
                    None => format!("{}\nended by a signal", messages.trim_end()),
                }),
            }),
        }
    }
}
