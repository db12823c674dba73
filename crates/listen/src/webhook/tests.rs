use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use evenkeel_linux::testing::posted;
use serde_json::Value;

use super::*;

const S: u64 = 1_000_000_000;

fn notice(what: &str, over: bool) -> Notice {
    let words = "waits 90 % and runs 10 % of one CPU".to_owned();
    Notice { kind: "starved", what: what.to_owned(), words, over, since_ns: 60 * S, at_ns: 120 * S }
}

/// Bounds with no time in them: nothing here depends on how busy the machine is.
fn rules(pauses: &'static [Duration], queue: usize) -> (Rules, usize) {
    (Rules { within: Duration::from_secs(3600), pauses, ..RULES }, queue)
}

const TWICE: &[Duration] = &[Duration::from_millis(1), Duration::from_millis(1)];

/// A webhook with what it says.
fn start(address: &str, token: Option<&str>, rules: (Rules, usize)) -> (Webhook, mpsc::Receiver<String>) {
    let (send, said) = mpsc::channel();
    let receiver = Receiver::parse(address, "").unwrap().with_token(token.map(str::to_owned));
    let say = move |text: &str| send.send(text.to_owned()).unwrap();
    (Webhook::with(receiver, rules, say).unwrap(), said)
}

fn listener() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/notices", listener.local_addr().unwrap());
    (listener, url)
}

/// Takes one request; its head, and its body.
fn take(listener: &TcpListener) -> (TcpStream, String, Value) {
    let (mut stream, _) = listener.accept().unwrap();
    let (head, body) = posted(&mut stream);
    (stream, head, serde_json::from_slice(&body).unwrap())
}

fn answer(mut stream: TcpStream, status: u16) {
    write!(stream, "HTTP/1.1 {status} x\r\nContent-Length: 0\r\n\r\n").unwrap();
}

fn wait(counts: &Counts, delivered: u64, dropped: u64) {
    while (counts.delivered.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed))
        != (delivered, dropped)
    {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_document_says_who_what_since_and_its_names_stay_data() {
    let (listener, url) = listener();
    let (webhook, _said) = start(&url, Some("a-token"), rules(&[], 8));
    let hostile = "x\"}\n{\u{1b}[2J\r\nHost: evil";
    webhook.tell(&notice(hostile, false));
    let (stream, head, body) = take(&listener);
    answer(stream, 204);
    assert!(head.contains("\r\nAuthorization: Bearer a-token"), "{head}");
    assert!(head.contains("\r\nContent-Type: application/json"), "{head}");
    assert!(!head.contains("evil"), "{head}");
    let mut names = ["schema", "host", "kind", "what", "text", "state", "since", "at"];
    names.sort_unstable();
    assert!(body.as_object().unwrap().keys().eq(names), "{body}");
    assert_eq!((&body["schema"], &body["kind"]), (&"evenkeel.notice/v1".into(), &"starved".into()));
    assert_eq!((&body["what"], &body["state"]), (&hostile.into(), &"begun".into()));
    assert_eq!(
        (&body["since"], &body["at"]),
        (&"1970-01-01T00:01:00.000Z".into(), &"1970-01-01T00:02:00.000Z".into())
    );
    webhook.tell(&notice(&"n".repeat(1 << 20), true));
    let (stream, _, body) = take(&listener);
    answer(stream, 200);
    assert_eq!(body["state"], "over");
    assert!(body.to_string().len() < 8 * TEXT, "a name of a megabyte is cut");
    wait(&webhook.counts(), 2, 0);
}

#[test]
fn what_fails_is_tried_again_and_told_once() {
    let (listener, url) = listener();
    let (webhook, said) = start(&url, None, rules(TWICE, 8));
    webhook.tell(&notice("a", false));
    for status in [500, 503, 200] {
        let (stream, _, body) = take(&listener);
        assert_eq!(body["what"], "a");
        answer(stream, status);
    }
    wait(&webhook.counts(), 1, 0);
    // The next one is the next notice, not the same again.
    webhook.tell(&notice("b", false));
    let (stream, _, body) = take(&listener);
    answer(stream, 200);
    assert_eq!(body["what"], "b");
    wait(&webhook.counts(), 2, 0);
    assert!(said.try_recv().is_err());
}

#[test]
fn what_is_refused_is_lost_and_said_once_and_so_is_the_end_of_it() {
    let (listener, url) = listener();
    let (webhook, said) = start(&url, Some("a-token"), rules(TWICE, 8));
    for (at, status) in [404, 404, 401, 200, 200].into_iter().enumerate() {
        webhook.tell(&notice(&at.to_string(), false));
        let (stream, _, body) = take(&listener);
        // No second try of what was refused.
        assert_eq!(body["what"], at.to_string());
        answer(stream, status);
    }
    wait(&webhook.counts(), 2, 3);
    drop(webhook);
    let said: Vec<String> = said.iter().collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("answered 404") && said[1].contains("lost meanwhile: 3"), "{said:?}");
    assert!(said.iter().all(|text| !text.contains("a-token") && !text.contains("/notices")), "{said:?}");
}

#[test]
fn a_receiver_that_hangs_holds_nobody_up() {
    let (listener, url) = listener();
    let (webhook, said) = start(&url, None, rules(&[], 4));
    webhook.tell(&notice("first", false));
    let (stream, _, _) = take(&listener);
    // It never answers, within an hour: whoever waited for it would not come to the end of this loop.
    (0..1000).for_each(|_| webhook.tell(&notice("more", false)));
    wait(&webhook.counts(), 0, 996);
    drop(stream);
    for _ in 0..4 {
        let (stream, _, _) = take(&listener);
        answer(stream, 200);
    }
    wait(&webhook.counts(), 4, 997);
    drop(webhook);
    let said: Vec<String> = said.iter().collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("lost notices: 997") && said[1].contains("lost meanwhile: 997"), "{said:?}");
}

#[test]
fn a_receiver_that_is_gone_or_answers_without_end_costs_the_notice() {
    let (listener, url) = listener();
    let (webhook, said) = start(&url, None, rules(TWICE, 8));
    webhook.tell(&notice("a", false));
    for _ in 0..3 {
        let (mut stream, _, _) = take(&listener);
        // Ends when the other side has had enough.
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    }
    wait(&webhook.counts(), 0, 1);
    drop(listener);
    webhook.tell(&notice("b", false));
    wait(&webhook.counts(), 0, 2);
    drop(webhook);
    assert_eq!(said.iter().count(), 1);
}

#[test]
fn at_the_end_what_waits_is_given_up_without_pauses() {
    let (listener, url) = listener();
    const HOUR: &[Duration] = &[Duration::from_secs(3600)];
    let (webhook, _said) = start(&url, None, rules(HOUR, 8));
    webhook.tell(&notice("a", false));
    webhook.tell(&notice("b", false));
    let (stream, _, _) = take(&listener);
    answer(stream, 500);
    let counts = webhook.counts();
    let end = std::thread::spawn(move || webhook.finish());
    // `a` is given up instead of waiting an hour, and `b` has its try.
    let (stream, _, body) = take(&listener);
    answer(stream, 200);
    assert_eq!(body["what"], "b");
    end.join().unwrap();
    wait(&counts, 1, 1);
}
