//! An OpenTelemetry collector that takes what a real `serve` pushes, and reads it by the published definitions.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use evenkeel_linux::testing::posted;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::number_data_point::Value;
use prost::Message;
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// Takes pushes as long as it is there.
pub struct Collector {
    pub url: String,
    pushes: Receiver<ExportMetricsServiceRequest>,
}

impl Collector {
    /// Over https.
    pub fn start(config: Arc<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let (send, pushes) = channel();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let tls = ServerConnection::new(config.clone()).unwrap();
                let mut stream = StreamOwned::new(tls, stream.unwrap());
                let (head, body) = posted(&mut stream);
                assert!(head.starts_with("POST /v1/metrics HTTP/1.1\r\n"), "{head}");
                let message = ExportMetricsServiceRequest::decode(body.as_slice()).unwrap();
                stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
                if send.send(message).is_err() {
                    return;
                }
            }
        });
        Self { url, pushes }
    }

    /// Each series that a page has is in a push of that time, and counts what the page counts.
    pub fn has_what_the_page_has(&self, page: &dyn Fn() -> String) {
        let wait = Duration::from_secs(90);
        let before = series(&page());
        // What was on its way was drawn before that page.
        while self.pushes.try_recv().is_ok() {}
        let _ = self.pushes.recv_timeout(wait).unwrap();
        let message = self.pushes.recv_timeout(wait).unwrap();
        let after = series(&page());
        let pushed = pushed(&message);
        let (mut counters, mut buckets) = (0, 0);
        for (name, (kind, first)) in &before {
            // Who went meanwhile is in neither.
            let Some((_, last)) = after.get(name) else { continue };
            let (pushed_kind, value) = pushed.get(name).unwrap_or_else(|| panic!("{name} was not pushed"));
            assert_eq!(kind, pushed_kind, "{name}");
            if kind != "gauge" {
                assert!(first <= value && value <= last, "{name}: {value} is none of {first} to {last}");
                counters += 1;
                buckets += usize::from(name.contains("_bucket{"));
            }
        }
        assert!(counters > 20 && buckets > 20, "{counters} counters, {buckets} buckets");
        let strange: Vec<_> =
            pushed.keys().filter(|name| !before.contains_key(*name) && !after.contains_key(*name)).collect();
        assert!(strange.len() * 20 < pushed.len(), "pushed, but on no page: {strange:?}");
    }
}

/// Series of a page: kind and value.
fn series(page: &str) -> BTreeMap<String, (String, f64)> {
    let mut kinds = BTreeMap::new();
    let mut series = BTreeMap::new();
    for line in page.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            kinds.insert(name.to_owned(), kind.to_owned());
        } else if !line.starts_with('#') {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let bare = name.split('{').next().unwrap();
            let of_histogram = ["_bucket", "_sum", "_count"].iter().find_map(|end| bare.strip_suffix(end));
            let kind = kinds.get(bare).or_else(|| kinds.get(of_histogram?)).unwrap();
            series.insert(name.to_owned(), (kind.clone(), value.parse().unwrap()));
        }
    }
    series
}

/// What was pushed, as a page would have it.
fn pushed(message: &ExportMetricsServiceRequest) -> BTreeMap<String, (String, f64)> {
    let resource = format!("{:?}", message.resource_metrics[0].resource);
    assert!(resource.contains("host.name") && resource.contains("\"evenkeel\""), "{resource}");
    let mut series = BTreeMap::new();
    for metric in &message.resource_metrics[0].scope_metrics[0].metrics {
        let mut add = |suffix: &str, labels: String, kind: &str, value: f64| {
            let labels = if labels.is_empty() { labels } else { format!("{{{labels}}}") };
            let name = format!("{}{suffix}{labels}", metric.name);
            assert!(series.insert(name.clone(), (kind.to_owned(), value)).is_none(), "{name} twice");
        };
        let (kind, points) = match metric.data.as_ref().unwrap() {
            Data::Gauge(gauge) => ("gauge", &gauge.data_points),
            Data::Sum(sum) => ("counter", &sum.data_points),
            Data::Histogram(histogram) => {
                for point in &histogram.data_points {
                    let (labels, mut upto) = (labels(&point.attributes), 0);
                    let bounds = point.explicit_bounds.iter().map(f64::to_string).chain(["+Inf".to_owned()]);
                    for (bound, count) in bounds.zip(&point.bucket_counts) {
                        upto += count;
                        add("_bucket", format!("{labels},le=\"{bound}\""), "histogram", upto as f64);
                    }
                    add("_sum", labels.clone(), "histogram", point.sum.unwrap());
                    add("_count", labels, "histogram", point.count as f64);
                    assert!(
                        0 < point.start_time_unix_nano && point.start_time_unix_nano <= point.time_unix_nano
                    );
                }
                continue;
            }
            other => panic!("{other:?}"),
        };
        for point in points {
            let Some(Value::AsDouble(value)) = point.value else { panic!("{point:?}") };
            add("", labels(&point.attributes), kind, value);
            assert!(kind == "gauge" || 0 < point.start_time_unix_nano);
        }
    }
    series
}

fn labels(attributes: &[KeyValue]) -> String {
    let label = |label: &KeyValue| {
        let Some(any_value::Value::StringValue(value)) = &label.value.as_ref().unwrap().value else {
            panic!("{label:?}")
        };
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{}=\"{value}\"", label.key)
    };
    attributes.iter().map(label).collect::<Vec<_>>().join(",")
}
