//! A real browser, driven by its own protocol over a pipe.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};

use evenkeel_linux::testing::{TestChild, awaited};

/// Headless chromium with one page.
pub struct Chrome {
    _process: TestChild,
    _files: tempfile::TempDir,
    to: File,
    from: File,
    buffer: Vec<u8>,
    last: u64,
    session: Value,
    /// What the console said that is no remark, and every address asked for.
    pub complaints: Vec<String>,
    pub asked: Vec<String>,
}

impl Chrome {
    pub fn start() -> Self {
        let files = tempfile::tempdir().unwrap();
        let (input, output) = (files.path().join("in"), files.path().join("out"));
        assert!(Command::new("mkfifo").args([&input, &output]).status().unwrap().success());
        let options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
            "--disable-sync",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
        ];
        // The browser reads descriptor 3 and writes descriptor 4.
        let process = Command::new("sh")
            .args(["-c", "in=$1 out=$2; shift 2; exec chromium \"$@\" 3<\"$in\" 4>\"$out\"", "sh"])
            .args([&input, &output])
            .args(options)
            .arg(format!("--user-data-dir={}", files.path().join("profile").display()))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("chromium must be installed for this test (Debian: apt-get install chromium)");
        let process = TestChild(process);
        let to = File::options().write(true).open(&input).unwrap();
        let from = File::open(&output).unwrap();
        let mut chrome = Self {
            _process: process,
            _files: files,
            to,
            from,
            buffer: Vec::new(),
            last: 0,
            session: Value::Null,
            complaints: Vec::new(),
            asked: Vec::new(),
        };
        let target = chrome.call("Target.createTarget", json!({"url": "about:blank"}))["targetId"].clone();
        chrome.session =
            chrome.call("Target.attachToTarget", json!({"targetId": target, "flatten": true}))["sessionId"]
                .clone();
        for domain in ["Page", "Runtime", "Log", "Network"] {
            chrome.call(&format!("{domain}.enable"), json!({}));
        }
        chrome
    }

    /// Calls a method of the protocol.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.last += 1;
        let mut message = json!({"id": self.last, "method": method, "params": params});
        if !self.session.is_null() {
            message["sessionId"] = self.session.clone();
        }
        self.to.write_all(format!("{message}\0").as_bytes()).unwrap();
        loop {
            let answer = self.read();
            if answer["id"] == self.last {
                assert!(answer["error"].is_null(), "{method}: {}", answer["error"]);
                return answer["result"].clone();
            }
            self.event(&answer);
        }
    }

    fn read(&mut self) -> Value {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == 0) {
                let message: Vec<u8> = self.buffer.drain(..=end).collect();
                return serde_json::from_slice(&message[..end]).unwrap();
            }
            let mut part = [0; 65_536];
            let count = self.from.read(&mut part).unwrap();
            assert!(count > 0, "the browser has ended");
            self.buffer.extend_from_slice(&part[..count]);
        }
    }

    fn event(&mut self, event: &Value) {
        let params = &event["params"];
        match event["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.complaints.push(params.to_string()),
            "Runtime.consoleAPICalled" if params["type"] == "error" => {
                self.complaints.push(params.to_string())
            }
            "Log.entryAdded" if params["entry"]["level"] == "error" => {
                self.complaints.push(params.to_string())
            }
            "Network.requestWillBeSent" => {
                self.asked.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].clone()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        awaited(60, || match self.value(expression) == true {
            true => Ok(()),
            false => {
                let page = self.value("document.body.innerText");
                Err(format!("never {expression}: {:?} {page}", self.complaints))
            }
        });
    }

    pub fn key(&mut self, key: &str, code: u32) {
        for kind in ["keyDown", "keyUp"] {
            let params = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                "text": if key == "Enter" && kind == "keyDown" { "\r" } else { "" },
            });
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    pub fn window(&mut self, width: u32, scheme: &str) {
        let size = json!({"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let features = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", features);
    }

    /// Keeps a picture of the whole page, base64 as the browser gives it.
    pub fn picture(&mut self, file: &Path) {
        let tall = self.value("document.documentElement.scrollHeight");
        let clip = json!({"x": 0, "y": 0, "width": self.value("innerWidth"), "height": tall, "scale": 1});
        let options = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let picture = self.call("Page.captureScreenshot", options)["data"].clone();
        let mut decode = Command::new("base64")
            .arg("-d")
            .stdin(Stdio::piped())
            .stdout(File::create(file).unwrap())
            .spawn()
            .unwrap();
        decode.stdin.take().unwrap().write_all(picture.as_str().unwrap().as_bytes()).unwrap();
        assert!(decode.wait().unwrap().success());
    }
}
