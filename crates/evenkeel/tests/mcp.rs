//! `evenkeel mcp`, driven as an assistant's client would.

use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use evenkeel_base::run::RunRecord;
use evenkeel_linux::testing::{TestChild, awaited, until};
use evenkeel_store::{Limits, Store};
use serde_json::{Value, json};

struct Client {
    child: TestChild,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
    state: tempfile::TempDir,
}

impl Client {
    fn start(args: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut child = Command::new(env!("CARGO_BIN_EXE_evenkeel"))
            .arg("mcp")
            .args(args)
            .env("EVENKEEL_STATE_DIR", state.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        let mut client = Self { child: TestChild(child), input, output, state };
        let hello =
            client.ask(0, "initialize", json!({ "protocolVersion": "2025-06-18", "capabilities": {} }));
        assert_eq!(hello["result"]["protocolVersion"], "2025-06-18");
        assert_eq!(hello["result"]["serverInfo"]["name"], "evenkeel");
        client.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/initialized\"}");
        client
    }

    fn send(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    fn read(&mut self) -> Value {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
    }

    fn ask(&mut self, id: u64, method: &str, params: Value) -> Value {
        self.send(&json!({ "jsonrpc": "2.0", "id": id, "method": method, "params": params }).to_string());
        let answer = self.read();
        assert_eq!(answer["id"], id, "{answer}");
        answer
    }

    fn call(&mut self, id: u64, name: &str, arguments: Value) -> Value {
        self.ask(id, "tools/call", json!({ "name": name, "arguments": arguments }))
    }

    /// Ends standard input, as a client does; the exit status.
    fn end(&mut self) -> Option<i32> {
        drop(self.input.take());
        let ended =
            || self.child.try_wait().unwrap().ok_or("it did not end with its standard input".to_owned());
        awaited(60, ended).code()
    }
}

/// Whether the document of an answer is one of those that the tool says it answers with.
fn is_promised(tool: &Value, result: &Value) -> bool {
    let schemas = tool["outputSchema"]["properties"]["schema"]["enum"].as_array().unwrap();
    schemas.contains(&result["structuredContent"]["schema"])
}

#[test]
fn one_run_of_the_history_is_a_document_that_the_tool_promised() {
    let mut client = Client::start(&[]);
    let path = client.state.path().join(evenkeel_store::FILE_NAME);
    let mut store = Store::open(&path, Limits::default()).unwrap();
    store.begin_run(&RunRecord::default()).unwrap();
    drop(store);
    let listed = client.ask(1, "tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap();
    let tool = tools.iter().find(|tool| tool["name"] == "history").unwrap();
    for (id, arguments) in [(2, json!({})), (3, json!({ "run": "last" })), (4, json!({ "since": "1m" }))] {
        let answer = client.call(id, "history", arguments);
        assert!(is_promised(tool, &answer["result"]), "{answer}");
    }
    assert_eq!(client.end(), Some(0));
}

#[test]
fn tools_are_listed_and_answer_with_documents_of_their_schema() {
    let mut client = Client::start(&[]);
    let listed = client.ask(1, "tools/list", json!({}));
    let tools = listed["result"]["tools"].as_array().unwrap().clone();
    let names: Vec<&str> = tools.iter().map(|tool| tool["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["ps", "why", "check", "history", "plan"]);
    let arguments = |name: &str| match name {
        "ps" => json!({ "interval": "200ms", "by": "container" }),
        "why" => json!({ "target": "cgroup:/", "for": "1s" }),
        "check" => json!({ "interval": "200ms" }),
        "plan" => json!({ "scope": ["comm:no-such-task"] }),
        _ => json!({}),
    };
    for (id, tool) in (2..).zip(&tools) {
        let name = tool["name"].as_str().unwrap();
        let answer = client.call(id, name, arguments(name));
        let result = &answer["result"];
        assert_eq!(result["isError"], false, "{name}: {answer}");
        assert!(is_promised(tool, result), "{name}: {answer}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, result["structuredContent"], "{name}");
    }
    // Nothing was written: these only read.
    assert_eq!(std::fs::read_dir(client.state.path()).unwrap().count(), 0);
    assert_eq!(client.end(), Some(0));
}

#[test]
fn a_version_that_is_not_spoken_is_answered_with_the_one_before_it() {
    let mut client = Client::start(&[]);
    for (id, (wanted, spoken)) in (1..).zip([
        ("2024-11-05", "2024-11-05"),
        // It has batches, which are refused.
        ("2025-03-26", "2024-11-05"),
        ("2025-11-25", "2025-06-18"),
        ("2024-10-07", "2025-06-18"),
    ]) {
        let hello = client.ask(id, "initialize", json!({ "protocolVersion": wanted }));
        assert_eq!(hello["result"]["protocolVersion"], spoken, "{wanted}");
    }
    assert_eq!(client.end(), Some(0));
}

#[test]
fn malformed_input_is_answered_and_survived() {
    let mut client = Client::start(&[]);
    let errors = [
        ("no json", -32700),
        ("[]", -32600),
        // No version that is spoken has batches: one refusal for all of it.
        ("[{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"ping\"}]", -32600),
        ("{\"id\":1}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":{},\"method\":\"ping\"}", -32600),
        ("{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"no/such\"}", -32601),
        ("{\"jsonrpc\":\"2.0\",\"id\":3,\"method\":\"tools/call\",\"params\":{\"name\":\"rm\"}}", -32602),
        ("{\"jsonrpc\":\"2.0\",\"id\":4,\"method\":\"tools/call\",\"params\":{\"name\":\"run\"}}", -32602),
        (
            "{\"jsonrpc\":\"2.0\",\"id\":5,\"method\":\"tools/call\",\"params\":{\"name\":\"ps\",\"arguments\":{\"root\":\"/\"}}}",
            -32602,
        ),
    ];
    for (line, code) in errors {
        client.send(line);
        let answer = client.read();
        assert_eq!(answer["error"]["code"], code, "{line}: {answer}");
    }
    let long = format!("{{\"jsonrpc\":\"2.0\",\"id\":6,\"method\":\"{}\"}}", "x".repeat(3 << 20));
    client.send(&long);
    assert_eq!(client.read()["error"]["code"], -32700);
    // A value that the command refuses is the tool's error, not the protocol's.
    let refused = client.call(7, "ps", json!({ "interval": "soon" }));
    assert_eq!(refused["result"]["isError"], true);
    assert!(refused["result"]["content"][0]["text"].as_str().unwrap().contains("exit status 2"), "{refused}");
    assert_eq!(client.ask(8, "ping", json!({}))["result"], json!({}));
    assert_eq!(client.end(), Some(0));
}

#[test]
fn a_call_ends_when_it_is_cancelled_and_when_standard_input_ends() {
    let mut client = Client::start(&[]);
    let long = |id: u64| {
        let params = json!({ "name": "ps", "arguments": { "interval": "10m" } });
        json!({ "jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params }).to_string()
    };
    client.send(&long(1));
    client.send(&json!({ "jsonrpc": "2.0", "id": 1, "method": "ping" }).to_string());
    assert_eq!(client.read()["id"], 1);
    let children = |parent: u32| {
        let list = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
        let threads = std::fs::read_dir(format!("/proc/{parent}/task")).unwrap();
        let all: String = threads
            .flatten()
            .filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok())
            .collect();
        list.unwrap_or_default() + &all
    };
    let pid = client.child.id();
    until("the call is started", || !children(pid).trim().is_empty());
    client.send("{\"jsonrpc\":\"2.0\",\"method\":\"notifications/cancelled\",\"params\":{\"requestId\":1}}");
    until("the cancelled call is at work no more", || children(pid).trim().is_empty());
    client.send(&long(2));
    let began = Instant::now();
    assert_eq!(client.end(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(50));
}

#[test]
fn a_call_that_finds_no_thread_is_refused_and_the_session_goes_on() {
    let mut client = Client::start(&[]);
    let pid = rustix::process::Pid::from_raw(client.child.id() as i32);
    let limited = |limit| rustix::process::prlimit(pid, rustix::process::Resource::As, limit).unwrap();
    // No room for a thread's stack; it binds root, too.
    let before = limited(rustix::process::Rlimit { current: Some(0), maximum: None });
    let refused = client.call(1, "ps", json!({ "interval": "200ms" }));
    assert_eq!(refused["error"]["code"], -32603, "{refused}");
    limited(before);
    assert_eq!(client.call(2, "ps", json!({ "interval": "200ms" }))["result"]["isError"], false);
    assert_eq!(client.end(), Some(0));
}

#[test]
fn what_acts_is_offered_where_it_is_asked_for() {
    let mut client = Client::start(&["--apply"]);
    let listed = client.ask(1, "tools/list", json!({}));
    let acts: Vec<&str> = listed["result"]["tools"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|tool| tool["annotations"]["readOnlyHint"] == false)
        .map(|tool| tool["name"].as_str().unwrap())
        .collect();
    assert_eq!(acts, ["run", "tune"]);
    let lacking = client.call(2, "run", json!({ "scope": ["pid:1"] }));
    assert!(lacking["error"]["message"].as_str().unwrap().contains("for is needed"), "{lacking}");
    let tuned = client.call(3, "tune", json!({ "file": "/no/such/file.toml" }));
    assert_eq!(tuned["result"]["isError"], true, "{tuned}");
    assert_eq!(client.end(), Some(0));
}
