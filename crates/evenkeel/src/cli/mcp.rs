//! `evenkeel mcp`: the reading commands as tools for assistants, over stdio (Model Context Protocol: JSON-RPC 2.0, one message
//! a line). A tool is a command of this program, started with `-o json`: what it answers is the command's own document.

mod call;
mod tools;

use std::collections::HashMap;
use std::io::{BufRead, Read};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::Duration;

use evenkeel_console as console;
use serde_json::{Value, json};

use self::call::{Answer, Call};
use super::{Failure, Global, Outcome, stop};

/// Serve `ps`, `why`, `check`, `history` and `plan` as tools for an assistant, over standard input and output (Model Context
/// Protocol).
///
/// These read and change nothing. With --apply there are `run` and `tune`, too, which change the host; they restore it
/// when they end, when the assistant cancels them, and when standard input ends. Each answer is the document that the
/// command itself prints with `-o json`. It ends with standard input, with status 0.
///
/// Example: evenkeel mcp
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Offer `run` and `tune`, which change the host.
    #[arg(long)]
    apply: bool,
}

/// Versions of the protocol that are spoken, newest first. 2025-03-26 is not: it alone asks servers to take batches.
const VERSIONS: [&str; 2] = ["2025-06-18", "2024-11-05"];
/// Longest message, bytes.
const LONGEST: u64 = 1 << 20;
/// Calls at a time.
const CALLS: usize = 8;
/// How soon a signal is seen.
const PATIENCE: Duration = Duration::from_millis(200);

/// JSON-RPC's own error numbers.
const PARSE: i64 = -32700;
const INVALID: i64 = -32600;
const NO_METHOD: i64 = -32601;
const PARAMS: i64 = -32602;
const INTERNAL: i64 = -32603;

/// What the main thread waits for.
enum Event {
    Line(Vec<u8>),
    TooLong,
    End,
    Done(Value, Answer),
}

pub fn run(global: &Global, args: Args) -> Outcome {
    global.no_tree("mcp serves this host; leave out --root")?;
    stop::on_signals()?;
    let (send, receive) = mpsc::channel();
    let reader = send.clone();
    std::thread::Builder::new()
        .name("stdin".to_owned())
        .spawn(move || read(&reader))
        .map_err(|error| Failure::Cannot(anyhow::Error::from(error).context("cannot read standard input")))?;
    let mut session = Session { global: global.clone(), apply: args.apply, running: HashMap::new(), send };
    let mut ending = false;
    loop {
        if !ending && (stop::requested() || console::reader_gone()) {
            ending = true;
            session.cancel_all();
        }
        if ending && session.running.is_empty() {
            return Ok(0);
        }
        match receive.recv_timeout(PATIENCE) {
            Ok(Event::Line(line)) if !ending => {
                if let Some(answer) = session.take(&line) {
                    outln!("{answer}")?;
                }
            }
            Ok(Event::TooLong) if !ending => {
                outln!("{}", error(&Value::Null, PARSE, &format!("a message has at most {LONGEST} bytes")))?;
            }
            Ok(Event::Done(id, answer)) => {
                session.running.remove(&id.to_string());
                // Who cancelled does not wait for an answer.
                if let (Some(result), false) = (answer.into_result(), ending) {
                    outln!("{}", json!({ "jsonrpc": "2.0", "id": id, "result": result }))?;
                }
            }
            Ok(Event::End) => {
                ending = true;
                session.cancel_all();
            }
            Ok(_) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(0),
        }
    }
}

/// Lines of standard input; what is longer than a message may be is passed over to its end.
fn read(send: &Sender<Event>) {
    let mut input = std::io::stdin().lock();
    loop {
        let mut line = Vec::new();
        let event = match input.by_ref().take(LONGEST + 1).read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => Event::End,
            Ok(_) if line.last() != Some(&b'\n') && line.len() as u64 > LONGEST => {
                match input.skip_until(b'\n') {
                    Ok(_) => Event::TooLong,
                    Err(_) => Event::End,
                }
            }
            Ok(_) => Event::Line(line),
        };
        let end = matches!(event, Event::End);
        if send.send(event).is_err() || end {
            return;
        }
    }
}

struct Session {
    global: Global,
    apply: bool,
    /// By the request's id as it was written.
    running: HashMap<String, Call>,
    send: Sender<Event>,
}

impl Session {
    /// The answer to a message; none to a notification, or where it comes later.
    fn take(&mut self, line: &[u8]) -> Option<Value> {
        if line.iter().all(u8::is_ascii_whitespace) {
            return None;
        }
        let message: Value = match serde_json::from_slice(line) {
            Ok(message) => message,
            Err(why) => return Some(error(&Value::Null, PARSE, &format!("this is no JSON: {why}"))),
        };
        let id = message.get("id").cloned();
        let Some(method) = message.get("method").and_then(Value::as_str) else {
            // An answer to nothing that was asked is passed over.
            let is_answer = message.get("result").is_some() || message.get("error").is_some();
            let why = "a request has \"jsonrpc\": \"2.0\", a method and an id";
            return (!is_answer).then(|| error(&id.unwrap_or(Value::Null), INVALID, why));
        };
        let params = message.get("params").cloned().unwrap_or_else(|| json!({}));
        let Some(id) = id else {
            if method == "notifications/cancelled"
                && let Some(call) = params.get("requestId").and_then(|id| self.running.get(&id.to_string()))
            {
                call.cancel();
            }
            return None;
        };
        if !(id.is_string() || id.is_number()) || message.get("jsonrpc") != Some(&json!("2.0")) {
            return Some(error(
                &Value::Null,
                INVALID,
                "\"jsonrpc\" is \"2.0\", an id is a string or a number",
            ));
        }
        match method {
            "initialize" => Some(result(&id, initialized(&params))),
            "ping" => Some(result(&id, json!({}))),
            "tools/list" => Some(result(&id, json!({ "tools": tools::list(self.apply) }))),
            "tools/call" => self.call(&id, &params).err().map(|(code, why)| error(&id, code, &why)),
            other => Some(error(&id, NO_METHOD, &format!("there is no method {other:?}"))),
        }
    }

    fn call(&mut self, id: &Value, params: &Value) -> Result<(), (i64, String)> {
        let (tool, words) = command(params, self.apply)?;
        if self.running.contains_key(&id.to_string()) {
            return Err((INVALID, format!("the request {id} is still at work")));
        }
        if self.running.len() >= CALLS {
            return Err((INVALID, format!("{CALLS} calls are at work; wait for one of them, or cancel it")));
        }
        let (send, asked) = (self.send.clone(), id.clone());
        let done = move |answer| drop(send.send(Event::Done(asked, answer)));
        let call = Call::start(&self.global, tool.name, words, tool.acts, done)
            .map_err(|why| (INTERNAL, format!("{} cannot be started: {why}", tool.name)))?;
        self.running.insert(id.to_string(), call);
        Ok(())
    }

    fn cancel_all(&self) {
        self.running.values().for_each(Call::cancel);
    }
}

/// The tool that is called, with the words of its command line.
fn command(params: &Value, apply: bool) -> Result<(&'static tools::Tool, Vec<String>), (i64, String)> {
    let name = params.get("name").and_then(Value::as_str).unwrap_or_default();
    let tool = tools::find(name, apply).ok_or_else(|| {
        let acts = !apply && tools::find(name, true).is_some();
        let hint = if acts { "; it changes the host: start `evenkeel mcp --apply`" } else { "" };
        (PARAMS, format!("there is no tool {name:?}{hint}"))
    })?;
    let empty = json!({});
    let arguments = params.get("arguments").unwrap_or(&empty);
    let words = tools::words(tool, arguments).map_err(|why| (PARAMS, format!("{name}: {why}")))?;
    Ok((tool, words))
}

/// The words of the command line that a message's call becomes; nothing is started.
pub(super) fn words_of_call(line: &[u8]) -> Option<Vec<String>> {
    let message: Value = serde_json::from_slice(line).ok()?;
    command(message.get("params")?, true).ok().map(|(_, words)| words)
}

/// The answer to a message with which nothing is started: any but a call of a tool.
pub(super) fn answer_at_once(global: &Global, line: &[u8]) -> Option<Value> {
    let (send, _receive) = mpsc::channel();
    let mut session = Session { global: global.clone(), apply: true, running: HashMap::new(), send };
    session.take(line)
}

fn initialized(params: &Value) -> Value {
    let wanted = params.get("protocolVersion").and_then(Value::as_str).unwrap_or_default();
    // Who speaks one that is not spoken here is likelier to speak the one before it than the one after.
    let version = VERSIONS.iter().find(|version| **version <= wanted).unwrap_or(&VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": { "tools": { "listChanged": false } },
        "serverInfo": { "name": "evenkeel", "version": env!("CARGO_PKG_VERSION") },
        "instructions": "Who gets the CPU of this Linux host and who waits for it. Percent is of one CPU; unknown values are null.",
    })
}

fn result(id: &Value, result: Value) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": result })
}

fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": { "code": code, "message": message } })
}
