use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use evenkeel_linux::testing::posted;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value as Point;
use opentelemetry_proto::tonic::metrics::v1::{AggregationTemporality, Metric};
use prost::Message;

use super::super::expose::{Kind, example};
use super::*;

const TICK: Duration = Duration::from_millis(5);
/// Bounds with no time in them, but for pauses that are none.
const QUICK: Rules = Rules { within: Duration::from_secs(3600), pauses: &[TICK, TICK], ..RULES };

fn listener() -> (TcpListener, Receiver) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/secret", listener.local_addr().unwrap());
    (listener, Receiver::parse(&url, "").unwrap().with_token(Some("a-token".to_owned())))
}

/// Takes one push: what is left to answer on, its head and its message.
fn take(listener: &TcpListener) -> (TcpStream, String, ExportMetricsServiceRequest) {
    let (mut stream, _) = listener.accept().unwrap();
    let (head, body) = posted(&mut stream);
    (stream, head, ExportMetricsServiceRequest::decode(body.as_slice()).unwrap())
}

fn answer(mut stream: TcpStream, status: &str, body: &[u8]) {
    write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len()).unwrap();
    stream.write_all(body).unwrap();
}

fn start(receiver: Receiver, interval: Duration, rules: Rules) -> (Otlp, mpsc::Receiver<String>) {
    let (send, said) = mpsc::channel();
    let say = move |text: &str| drop(send.send(text.to_owned()));
    let target = Target { receiver, interval };
    (Otlp::with(target, rules, "x:1".to_owned(), (|| Some(example()), say)).unwrap(), said)
}

fn count(of: &AtomicU64) -> u64 {
    of.load(Ordering::Relaxed)
}

fn metrics(message: &ExportMetricsServiceRequest) -> &[Metric] {
    &message.resource_metrics[0].scope_metrics[0].metrics
}

#[test]
fn the_message_says_what_the_page_says() {
    let mut starts = Starts::new(1000);
    let message = |starts: &mut Starts, page: &Page, now| {
        ExportMetricsServiceRequest::decode(message::of_page(page, "x:1", starts, now).as_slice()).unwrap()
    };
    let first = message(&mut starts, &example(), 2000);
    let resource = first.resource_metrics[0].resource.as_ref().unwrap();
    let attributes = format!("{:?}", resource.attributes);
    for name in ["service.name", "evenkeel", "host.name", "service.instance.id"] {
        assert!(attributes.contains(&format!("{name:?}")), "{attributes}");
    }
    let [a, c, h] = metrics(&first) else { panic!("{first:?}") };
    let Some(Data::Sum(sum)) = &a.data else { panic!("{a:?}") };
    assert_eq!((a.name.as_str(), sum.is_monotonic), ("a_total", true));
    assert_eq!(sum.aggregation_temporality, AggregationTemporality::Cumulative as i32);
    let point = &sum.data_points[0];
    assert_eq!(
        (point.value, point.start_time_unix_nano, point.time_unix_nano),
        (Some(Point::AsDouble(1.5)), 1000, 2000)
    );
    let Some(Data::Gauge(gauge)) = &c.data else { panic!("{c:?}") };
    assert_eq!((gauge.data_points.len(), gauge.data_points[0].value), (1, Some(Point::AsDouble(1.0))));
    assert!(format!("{:?}", gauge.data_points[0].attributes).contains("q\\\"\\n\u{fffd}"));
    let Some(Data::Histogram(histogram)) = &h.data else { panic!("{h:?}") };
    let point = &histogram.data_points[0];
    assert_eq!((point.count, point.sum), (3, Some(7.0)));
    assert_eq!((&point.explicit_bounds[..], &point.bucket_counts[..]), (&[0.5, 1.0][..], &[1, 1, 1][..]));
    // Who comes later, or begins again, counts from the push before.
    let page = |values: &[(&str, f64)]| {
        let mut page = Page::default();
        let mut family = page.family("b_total", Kind::Counter, "B");
        values.iter().for_each(|(who, value)| family.value(&[("who", who)], Some(*value)));
        page
    };
    let begins = |starts: &mut Starts, values: &[(&str, f64)], now| -> Vec<u64> {
        let message = message(starts, &page(values), now);
        let Some(Data::Sum(sum)) = &metrics(&message)[0].data else { panic!("{message:?}") };
        sum.data_points.iter().map(|point| point.start_time_unix_nano).collect()
    };
    let mut starts = Starts::new(1000);
    assert_eq!(begins(&mut starts, &[("x", 5.0)], 2000), [1000]);
    assert_eq!(begins(&mut starts, &[("x", 6.0), ("y", 1.0)], 3000), [1000, 2000]);
    assert_eq!(begins(&mut starts, &[("x", 2.0), ("y", 1.0)], 4000), [3000, 2000]);
    assert_eq!(begins(&mut starts, &[("x", 3.0)], 5000), [3000]);
    assert_eq!(begins(&mut starts, &[("x", 3.0), ("y", 9.0)], 6000), [3000, 5000]);
    // A clock that was set back.
    assert_eq!(begins(&mut starts, &[("x", 4.0)], 500), [500]);
}

#[test]
fn what_fails_for_now_is_tried_again_and_what_is_refused_is_not() {
    let (listener, receiver) = listener();
    let (otlp, said) = start(receiver, Duration::from_secs(3600), QUICK);
    // The push that an end asks for, before anybody is in a hurry.
    otlp.end.send(()).unwrap();
    for status in ["503 x", "429 x", "200 x"] {
        let (stream, head, _) = take(&listener);
        assert!(head.starts_with("POST /secret HTTP/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nContent-Type: application/x-protobuf"), "{head}");
        assert!(head.contains("\r\nAuthorization: Bearer a-token"), "{head}");
        answer(stream, status, b"");
    }
    assert!(said.recv().is_err(), "nothing is said of what was taken");
    assert_eq!((count(&otlp.pushed.counts.delivered), count(&otlp.pushed.counts.dropped)), (1, 0));
}

#[test]
fn losses_are_counted_and_said_once_and_so_is_their_end() {
    let (listener, receiver) = listener();
    let (otlp, said) = start(receiver, Duration::from_millis(100), QUICK);
    let some = ExportMetricsPartialSuccess { rejected_data_points: 7, error_message: "a-token".into() };
    let partial = ExportMetricsServiceResponse { partial_success: Some(some) }.encode_to_vec();
    // None of these is tried again: each is another push.
    let answers: [(&str, &[u8]); 6] = [
        ("400 x", b"a-token"),
        ("500 x", b""),
        ("404 x", b""),
        ("200 x", b""),
        ("200 x", &partial),
        ("200 x", b"\xff\xff no message"),
    ];
    let mut before = 0;
    for (status, body) in answers {
        let (stream, _, message) = take(&listener);
        let Some(Data::Sum(sum)) = &metrics(&message)[0].data else { panic!("{message:?}") };
        assert!(sum.data_points[0].time_unix_nano > before);
        before = sum.data_points[0].time_unix_nano;
        answer(stream, status, body);
    }
    drop(listener);
    let texts: Vec<String> = said.iter().take(4).collect();
    assert!(texts[0].contains("lost pushes of metrics: 1 (answered 400)"), "{texts:?}");
    assert!(texts[1].contains("takes pushes of metrics again; lost meanwhile: 3"), "{texts:?}");
    assert!(texts[2].contains("refuses data points: 7"), "{texts:?}");
    assert!(texts[3].contains("lost pushes of metrics: 1"), "{texts:?}");
    assert!(texts.iter().all(|text| !text.contains("a-token") && !text.contains("secret")), "{texts:?}");
    assert_eq!(count(&otlp.pushed.rejected), 7);
    assert_eq!(count(&otlp.pushed.counts.delivered), 3);
    otlp.finish();
}

#[test]
fn a_receiver_that_wants_to_be_left_alone_is() {
    let (listener, receiver) = listener();
    let (otlp, said) = start(receiver, Duration::from_millis(300), QUICK);
    let (stream, ..) = take(&listener);
    // Longer than the interval: the pushes of that time are lost without a request.
    let asked = Instant::now();
    answer(stream, "503 x\r\nRetry-After: 2", b"");
    let (stream, ..) = take(&listener);
    assert!(asked.elapsed() >= Duration::from_secs(2), "{:?}", asked.elapsed());
    let lost = count(&otlp.pushed.counts.dropped);
    assert!(lost >= 2, "{lost}");
    answer(stream, "200 x", b"");
    assert!(said.recv().unwrap().contains("(answered 503)"));
    assert!(said.recv().unwrap().contains("again"));
}

#[test]
fn one_that_hangs_costs_a_push_and_one_that_answers_without_end_does_not() {
    let (listener, receiver) = listener();
    let rules = Rules { within: Duration::from_millis(300), pauses: &[], ..QUICK };
    let (otlp, said) = start(receiver, Duration::from_millis(100), rules);
    let (hanging, ..) = take(&listener);
    assert!(said.recv().unwrap().contains("no answer in time"));
    drop(hanging);
    while count(&otlp.pushed.counts.delivered) == 0 {
        let (mut stream, ..) = take(&listener);
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n");
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    }
    drop(listener);
    otlp.finish();
    assert!(otlp.ended.load(Ordering::Relaxed));
}
