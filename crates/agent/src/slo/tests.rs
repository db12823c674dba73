//! Endpoints that answer, hang, lie, send without an end, go away and come back; and what is concluded from scrapes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use std::collections::BTreeMap;

use super::log::Scrape;
use super::page::Point;
use super::*;

/// What an endpoint does with whoever asks.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Mode {
    Honest,
    Hangs,
    Endless,
    GoesAway,
    NoHistogram,
    NotANumber,
    Negative,
    NotAscending,
    CountsDown,
}

/// A small server on a port of its own, which ends with this.
pub(super) struct Endpoint {
    pub port: u16,
    mode: Arc<Mutex<Mode>>,
    ended: Arc<AtomicBool>,
    /// Bytes taken by whoever asked for an answer without an end.
    taken: Arc<AtomicU64>,
}

impl Endpoint {
    pub fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = Self {
            port,
            mode: Arc::new(Mutex::new(Mode::Honest)),
            ended: Arc::default(),
            taken: Arc::default(),
        };
        let (mode, ended, taken) = (endpoint.mode.clone(), endpoint.ended.clone(), endpoint.taken.clone());
        std::thread::spawn(move || {
            let (mut count, mut held) = (0.0, Vec::new());
            for stream in listener.incoming() {
                if ended.load(Ordering::Relaxed) {
                    break;
                }
                count += 100.0;
                let mode = *mode.lock().unwrap();
                let mut stream = stream.unwrap();
                match mode {
                    Mode::Hangs => held.push(stream),
                    Mode::GoesAway => drop(stream),
                    Mode::Endless => endless(&mut stream, &taken),
                    _ => answer(&mut stream, mode, count),
                }
            }
        });
        endpoint
    }

    pub fn set(&self, mode: Mode) {
        *self.mode.lock().unwrap() = mode;
    }
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

/// A page with 100 requests more each time, of which two are slow.
fn answer(stream: &mut TcpStream, mode: Mode, count: f64) {
    let (mut quick, mut all) = ((0.98 * count).to_string(), count.to_string());
    match mode {
        Mode::NotANumber => quick = "NaN".into(),
        Mode::Negative => quick = "-5".into(),
        Mode::NotAscending => all = (0.5 * count).to_string(),
        Mode::CountsDown => {
            (quick, all) = ((0.98 * (1e6 - count)).to_string(), (1e6 - count).to_string());
        }
        _ => {}
    }
    let name = if mode == Mode::NoHistogram { "other" } else { "t_seconds" };
    let page = format!("{name}_bucket{{le=\"0.05\"}} {quick}\n{name}_bucket{{le=\"+Inf\"}} {all}\n");
    let _ = stream.read(&mut [0; 1024]);
    let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\n{page}").as_bytes());
}

fn endless(stream: &mut TcpStream, taken: &AtomicU64) {
    let _ = stream.read(&mut [0; 1024]);
    let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n");
    let part = vec![b'#'; 1 << 20];
    while stream.write_all(&part).is_ok() {
        taken.fetch_add(part.len() as u64, Ordering::Relaxed);
    }
}

fn slo(port: u16) -> RequestSlo {
    RequestSlo {
        endpoint: format!("http://127.0.0.1:{port}/metrics"),
        histogram: "t_seconds".into(),
        labels: BTreeMap::new(),
        unit_s: 1.0,
        quantile: 0.95,
        bound_s: 0.05,
    }
}

/// Asks on and on until something holds, and returns what was said meanwhile.
#[track_caller]
fn ask_until(reader: &mut SloReader, what: &str, holds: impl Fn(&SloReader) -> bool) -> Vec<String> {
    let (began, mut notes) = (Instant::now(), Vec::new());
    while !holds(reader) {
        assert!(
            began.elapsed() < Duration::from_secs(60),
            "waited a minute in vain until {what}: {notes:?} {reader:?}"
        );
        reader.poke();
        std::thread::sleep(Duration::from_millis(5));
        notes.extend(reader.update("web"));
    }
    notes
}

/// An endpoint that answers, then does this, then answers again: it is trusted, it is not, it is, and each is reported once.
fn falls_back_and_comes_back(mode: Mode, why: &str) -> Endpoint {
    let endpoint = Endpoint::start();
    let mut reader = SloReader::start(slo(endpoint.port));
    let tells = |reader: &SloReader| reader.status(1.5).kept == Some(true);
    assert_eq!(ask_until(&mut reader, "its requests tell", tells), Vec::<String>::new());
    let status = reader.status(1.5);
    assert!(status.slow_share.is_some_and(|share| (share - 0.02).abs() < 1e-9), "{status:?}");
    assert!(status.why.is_empty() && status.answered_ns.is_some(), "{status:?}");

    endpoint.set(mode);
    let notes = ask_until(&mut reader, "it is not trusted", |reader| reader.trusted == Some(false));
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("web is judged by its waits") && notes[0].contains(why), "{notes:?}");
    let status = reader.status(1.5);
    assert!(status.kept.is_none() && status.why.contains(why), "{status:?}");
    assert_eq!(reader.shown_broken(1.5, 20.0), None);
    // It goes on, and nothing more is reported.
    let seen = reader.seen;
    assert_eq!(
        ask_until(&mut reader, "it was asked again", |reader| reader.seen > seen + 1),
        Vec::<String>::new()
    );

    endpoint.set(Mode::Honest);
    let notes = ask_until(&mut reader, "its requests tell again", tells);
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].starts_with("web is judged by its requests again"), "{notes:?}");
    endpoint
}

#[test]
fn an_endpoint_that_hangs() {
    falls_back_and_comes_back(Mode::Hangs, "does not answer within");
}

#[test]
fn an_endpoint_that_sends_without_an_end() {
    let endpoint = falls_back_and_comes_back(Mode::Endless, "answers more than");
    // What is on its way counts as taken; it is asked a few times.
    assert!(endpoint.taken.load(Ordering::Relaxed) < 1 << 28, "{:?}", endpoint.taken);
}

#[test]
fn an_endpoint_that_goes_away() {
    falls_back_and_comes_back(Mode::GoesAway, "");
}

#[test]
fn an_endpoint_without_the_histogram() {
    falls_back_and_comes_back(Mode::NoHistogram, "no metric t_seconds_bucket");
}

#[test]
fn a_count_that_is_no_number() {
    falls_back_and_comes_back(Mode::NotANumber, "NaN");
}

#[test]
fn a_negative_count() {
    falls_back_and_comes_back(Mode::Negative, "-5");
}

#[test]
fn buckets_that_do_not_ascend() {
    falls_back_and_comes_back(Mode::NotAscending, "counts less up to +Inf");
}

#[test]
fn counts_that_go_down() {
    falls_back_and_comes_back(Mode::CountsDown, "went down");
}

#[test]
fn an_endpoint_that_was_never_there() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut reader = SloReader::start(slo(port));
    let status = reader.status(1.5);
    assert!((status.kept, status.requests, status.answered_ns) == (None, None, None), "{status:?}");
    let notes = ask_until(&mut reader, "that is said", |reader| reader.trusted == Some(false));
    assert!(notes.len() == 1 && notes[0].contains("refused"), "{notes:?}");
}

/// As while no server of names answers: the thread waits for the resolver, and nothing comes, not even a failure.
#[test]
fn an_endpoint_of_which_nothing_is_heard() {
    let mut reader = reader_of(&[(100.0, 1.0); 10], 0.05);
    let asked = |reader: &SloReader, seconds| {
        reader.scraper.ask_at(Instant::now().checked_sub(Duration::from_secs(seconds)));
    };
    asked(&reader, 1);
    assert_eq!(reader.update("web"), Vec::<String>::new());
    assert_eq!(reader.status(1.5).kept, Some(true));
    asked(&reader, 4);
    let notes = reader.update("web");
    assert!(notes.len() == 1 && notes[0].starts_with("web is judged by its waits"), "{notes:?}");
    assert_eq!(reader.update("web"), Vec::<String>::new(), "once");
    let status = reader.status(1.5);
    assert!(status.kept.is_none() && status.why.contains("is its name resolved"), "{status:?}");
    reader.scraper.ask_at(None);
    let now = Instant::now();
    for more in 0..4 {
        let point = Point { epoch: 0, all: 2000.0 + f64::from(more), slow: 20.0, edge_s: 0.05 };
        reader.scraper.add(Scrape { sent: now, got: now, point: Ok(point) });
    }
    let notes = reader.update("web");
    assert!(notes.len() == 1 && notes[0].starts_with("web is judged by its requests again"), "{notes:?}");
}

/// A reader of scrapes a second apart, the last one just now, each with so many requests of which so many are slow.
pub(crate) fn reader_of(counts: &[(f64, f64)], edge_s: f64) -> SloReader {
    let scraper = Scraper::idle();
    let zero = Instant::now() - Duration::from_secs(counts.len() as u64);
    let (mut all, mut slow) = (0.0, 0.0);
    for (second, more) in (0..).zip(std::iter::once(&(0.0, 0.0)).chain(counts)) {
        (all, slow) = (all + more.0, slow + more.1);
        let at = zero + Duration::from_secs(second);
        scraper.add(Scrape { sent: at, got: at, point: Ok(Point { epoch: 0, all, slow, edge_s }) });
    }
    let mut reader = SloReader::start(slo(1));
    (reader.scraper, reader.since, reader.seen) = (scraper, zero, 0);
    reader
}

#[test]
fn the_edge_that_stands_for_a_bound_is_said_once() {
    let mut reader = reader_of(&[(100.0, 1.0); 3], 0.025);
    let notes = reader.update("web");
    assert!(
        notes.len() == 1 && notes[0].contains("ends at 50 ms: requests beyond 25 ms count as slow"),
        "{notes:?}"
    );
    assert_eq!(reader.update("web"), Vec::<String>::new());
    assert_eq!(reader.target().bound_words(), "25 ms");
    assert!(reader.status(1.5).why.contains("25 ms"));
}

#[test]
fn few_requests_do_not_tell() {
    let mut reader = reader_of(&[(9.0, 0.0); 10], 0.05);
    reader.update("web");
    let status = reader.status(1.5);
    assert!(status.kept.is_none() && status.why.starts_with("90 requests"), "{status:?}");
    let mut reader = reader_of(&[(10.0, 0.0); 10], 0.05);
    reader.update("web");
    assert_eq!(reader.status(1.5).kept, Some(true), "five slow ones of a hundred are expected");
}

#[test]
fn settings_are_held_against_what_is_promised_or_what_was_found() {
    let broken = |counts: &[(f64, f64)], default: &[(f64, f64)]| {
        let mut reader = reader_of(counts, 0.05);
        reader.update("web");
        let since = reader.since;
        reader.decided(default.iter().map(|(all, slow)| Requests { all: *all, slow: *slow }).collect());
        reader.since = since;
        reader.shown_broken(1.5, 20.0)
    };
    assert_eq!(broken(&[(100.0, 5.0); 20], &[]), None);
    assert_eq!(broken(&[(100.0, 6.0); 3], &[]), None, "more than that, and not shown");
    let shown = broken(&[(100.0, 12.0); 20], &[]);
    assert!(shown.is_some_and(|shown| shown.share == 0.12 && (shown.limit - 0.05).abs() < 1e-9), "{shown:?}");
    // What the baseline breaks may stay as broken.
    assert_eq!(broken(&[(100.0, 12.0); 20], &[(100.0, 10.0); 20]), None);
    assert!(broken(&[(100.0, 40.0); 20], &[(100.0, 10.0); 20]).is_some());
}

#[test]
fn windows_wait_for_their_answers() {
    let now = Instant::now();
    let mut pending = Pending::default();
    (0..3).for_each(|at| pending.add((now, now), at));
    let mut known = pending.known(|_| None::<u32>);
    assert!(known.is_empty());
    let answered = std::cell::Cell::new(0);
    known = pending.known(|_| (answered.replace(answered.get() + 1) != 1).then_some(7));
    assert_eq!(known, [(0, 7), (2, 7)]);
    assert_eq!(pending.known(|_| Some(8)), [(1, 8)]);
    assert_eq!(pending.known(|_| Some(8)), []);
}
