//! `evenkeel fleet` against made-up agents: honest, hanging, lying, without end; and ten thousand of them.

mod program;

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use program::{Ended, end, evenkeel};
use serde_json::Value;

/// Answers each request by its path and its head, in threads that end with the test.
fn server(answer: impl Fn(&str, &str, &mut TcpStream) + Send + Clone + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for _ in 0..8 {
        let (listener, answer) = (listener.try_clone().unwrap(), answer.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { break };
                let mut head = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while reader.read_line(&mut head).is_ok_and(|n| n > 2) {}
                let path = head.split(' ').nth(1).unwrap_or_default().to_owned();
                answer(&path, &head, &mut stream);
            }
        });
    }
    address
}

#[track_caller]
fn fleet(args: &[&str]) -> Ended {
    end(evenkeel(["fleet"]).args(args))
}

#[track_caller]
fn document(args: &[&str], status: i32) -> Value {
    let document = fleet(&[args, &["-o", "json"]].concat()).with(status).document();
    assert_eq!(document["schema"], "evenkeel.fleet/v1");
    document
}

fn send(stream: &mut TcpStream, status: &str, body: &str) {
    let _ = write!(stream, "HTTP/1.1 {status}\r\nContent-Type: text/plain\r\n\r\n{body}");
}

const STARVED: &str = "evenkeel_host_busy_percent 190\nevenkeel_host_steal_percent 0\n\
    evenkeel_cpu_percent{kind=\"container\",name=\"web\",pod=\"prod/web\"} 30\n\
    evenkeel_wait_percent{kind=\"container\",name=\"web\",pod=\"prod/web\"} 60\n\
    evenkeel_effect_cpu_percent 4.5\n";

#[test]
fn one_bad_endpoint_costs_its_own_answer_only() {
    let address = server(|path, head, stream| match path {
        "/good" if head.contains("Authorization: Bearer secret-token\r\n") => send(stream, "200 OK", STARVED),
        "/good" => send(stream, "401 Unauthorized", ""),
        "/hangs" => std::thread::sleep(Duration::from_secs(30)),
        "/endless" => {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
            let line = "evenkeel_cpu_percent{kind=\"vm\",name=\"x\"} 1\n".repeat(1000);
            while stream.write_all(line.as_bytes()).is_ok() {}
        }
        "/lies" => send(
            stream,
            "200 OK",
            "evenkeel_host_busy_percent NaN\nevenkeel_trials_total -1\n\
            evenkeel_guarantee_kept{name=\"\u{1b}[31mred\"} 0\n",
        ),
        "/other" => send(stream, "200 OK", "up 1\n"),
        _ => send(stream, "404 Not Found", ""),
    });
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "secret-token\n").unwrap();
    let list = dir.path().join("list");
    let paths = ["good", "hangs", "endless", "lies", "other", "none"];
    let lines: Vec<String> = paths.iter().map(|path| format!("http://{address}/{path}  # {path}")).collect();
    std::fs::write(&list, lines.join("\n")).unwrap();
    let args = [
        "--targets-file",
        list.to_str().unwrap(),
        "--token-file",
        token.to_str().unwrap(),
        "--timeout",
        "2s",
    ];
    let began = Instant::now();
    let fleet_document = document(&args, 1);
    assert!(began.elapsed() < Duration::from_secs(25), "a hanging endpoint held everybody up");
    let summary = &fleet_document["summary"];
    assert_eq!((&summary["hosts"], &summary["read"]), (&6.into(), &2.into()), "{summary}");
    assert_eq!((&summary["starved"], &summary["promises_broken"]), (&1.into(), &1.into()), "{summary}");
    assert_eq!(summary["effect_cpu_pct"], 4.5);
    let host = |path: &str| {
        let hosts = fleet_document["hosts"].as_array().unwrap();
        hosts.iter().find(|host| host["target"].as_str().unwrap().ends_with(path)).unwrap().clone()
    };
    assert!(host("/endless")["error"].as_str().unwrap().contains("more than"), "{}", host("/endless"));
    assert!(host("/none")["error"].as_str().unwrap().contains("404"));
    assert!(host("/other")["error"].as_str().unwrap().contains("no metric of evenkeel"));
    assert!(host("/hangs")["error"].is_string() && host("/good")["error"].is_null());
    assert_eq!((&host("/lies")["odd_values"], &host("/lies")["busy_pct"]), (&2.into(), &Value::Null));
    assert!(fleet_document["self"]["rss_bytes"].as_u64().unwrap() < 200 << 20, "{}", fleet_document["self"]);
    let text = fleet(&args).stdout;
    assert!(text.contains("starved") && text.contains("prod/web") && text.contains("Not read:"), "{text}");
    assert!(!text.contains('\u{1b}'), "{text}");
    let csv = fleet(&[&args[..], &["-o", "csv"]].concat()).stdout;
    assert!(csv.starts_with("host,rule,kind,name,pod,cpu_pct,wait_pct"), "{csv}");
    // Without the token nothing but the reason comes back, and it is not in it.
    fleet(&[&format!("http://{address}/good")]).says(3, "401");
    // A Prometheus of another host is asked by https, too, where its address does not say how.
    fleet(&["--prometheus", "0.0.0.0:1", "--token-file", token.to_str().unwrap()])
        .says(3, "https://0.0.0.0:1 cannot be asked");
}

#[test]
fn a_prometheus_is_asked_for_what_matters_and_believed_only_as_one() {
    let address = server(|path, _, stream| {
        let body = if path.starts_with("/liar/") {
            "{\"status\":\"success\",\"data\":7}".to_owned()
        } else if path.starts_with("/no/") {
            "{\"status\":\"error\",\"error\":\"too many samples\"}".to_owned()
        } else {
            let sample = |labels: &str, value: &str| {
                format!("{{\"metric\":{{\"instance\":\"node1:9190\",{labels}}},\"value\":[1,\"{value}\"]}}")
            };
            let web = "\"kind\":\"container\",\"name\":\"web\",\"pod\":\"\"";
            let result = match path {
                p if p.contains("query=evenkeel_wait_percent%20and") => sample(web, "60"),
                p if p.contains("query=evenkeel_cpu_percent%20and") => sample(web, "30"),
                p if p.contains("query=count%20by%20%28instance%29") => sample("\"x\":\"\"", "200"),
                p if p.ends_with("query=evenkeel_host_busy_percent") => sample("\"job\":\"x\"", "150"),
                p if p.contains("%28%28up%20") => sample("\"x\":\"\"", "1").replace("node1", "vanished"),
                _ => String::new(),
            };
            format!("{{\"status\":\"success\",\"data\":{{\"resultType\":\"vector\",\"result\":[{result}]}}}}")
        };
        send(stream, "200 OK", &body);
    });
    let found = document(&["--prometheus", &address], 1);
    assert_eq!((&found["summary"]["hosts"], &found["summary"]["read"]), (&2.into(), &1.into()));
    assert_eq!((&found["summary"]["starved"], &found["hosts"][0]["busy_pct"]), (&1.into(), &150.0.into()));
    assert!(found["hosts"][1]["error"].as_str().unwrap().contains("cannot read it"), "{found:#}");
    assert_eq!(found["findings"][0]["host"], "node1:9190");
    assert_eq!(found["hosts"][0]["owners"], 200, "not those alone that wait");
    for (path, words) in [("liar", "as a Prometheus does"), ("no", "too many samples")] {
        fleet(&["--prometheus", &format!("http://{address}/{path}")]).says(3, words);
    }
}

#[test]
fn ten_thousand_hosts_are_read_in_little_memory() {
    // 20 containers a host; every tenth host has one that is starved.
    let page = |starved: bool| {
        let mut page = String::from("evenkeel_host_busy_percent 100\nevenkeel_host_steal_percent 0\n");
        for at in 0..20 {
            let wait = if starved && at == 7 { 80 } else { 1 };
            page += &format!(
                "evenkeel_cpu_percent{{kind=\"container\",name=\"c{at}\",pod=\"ns/p{at}\"}} 20\n\
                 evenkeel_wait_percent{{kind=\"container\",name=\"c{at}\",pod=\"ns/p{at}\"}} {wait}\n"
            );
        }
        page
    };
    let pages = [page(false), page(true)];
    let address =
        server(move |path, _, stream| send(stream, "200 OK", &pages[usize::from(path.ends_with('0'))]));
    let dir = tempfile::tempdir().unwrap();
    let list = dir.path().join("list");
    let lines: Vec<String> = (0..10_000).map(|at| format!("http://{address}/{at}")).collect();
    std::fs::write(&list, lines.join("\n")).unwrap();
    let found =
        document(&["--targets-file", list.to_str().unwrap(), "--within", "5m", "--timeout", "60s"], 0);
    assert_eq!((&found["summary"]["read"], &found["summary"]["starved"]), (&10_000.into(), &1000.into()));
    let own = &found["self"];
    println!("10,000 hosts: {own}");
    assert!(own["rss_bytes"].as_u64().unwrap() < 128 << 20, "{own}");
}

#[test]
fn wrong_targets_are_wrong_usage() {
    for args in [&[][..], &["ftp://x"], &["--targets-file", "/no/such/file"], &["a b"]] {
        fleet(args).with(2);
    }
}
