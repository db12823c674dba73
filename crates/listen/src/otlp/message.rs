//! The message: `ExportMetricsServiceRequest` of <https://github.com/open-telemetry/opentelemetry-proto>. Only the fields that
//! are used are declared; the tests read it with the published definitions.

use prost::{Message, Oneof};

use super::super::expose::{Distribution, Family, Kind, Labels, Page, Value};
use super::Starts;

/// Values go on from the start of their series.
const CUMULATIVE: i32 = 2;

#[derive(Clone, PartialEq, Message)]
struct Request {
    #[prost(message, repeated, tag = "1")]
    resource_metrics: Vec<ResourceMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceMetrics {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_metrics: Vec<ScopeMetrics>,
}

#[derive(Clone, PartialEq, Message)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<Text>,
}

#[derive(Clone, PartialEq, Message)]
struct Text {
    /// One of several kinds in the definition; an empty one is not a missing one.
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct ScopeMetrics {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, tag = "3")]
    unit: String,
    #[prost(oneof = "Data", tags = "5, 7, 9")]
    data: Option<Data>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Data {
    #[prost(message, tag = "5")]
    Gauge(Gauge),
    #[prost(message, tag = "7")]
    Sum(Sum),
    #[prost(message, tag = "9")]
    Histogram(Histogram),
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Number>,
}

#[derive(Clone, PartialEq, Message)]
struct Sum {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Number>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
    #[prost(bool, tag = "3")]
    is_monotonic: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    /// One of two kinds in the definition.
    #[prost(double, optional, tag = "4")]
    as_double: Option<f64>,
    #[prost(message, repeated, tag = "7")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(message, repeated, tag = "1")]
    data_points: Vec<Counts>,
    #[prost(int32, tag = "2")]
    aggregation_temporality: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Counts {
    #[prost(fixed64, tag = "2")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "3")]
    time_unix_nano: u64,
    #[prost(fixed64, tag = "4")]
    count: u64,
    #[prost(double, optional, tag = "5")]
    sum: Option<f64>,
    /// Of each bucket alone; one more than bounds.
    #[prost(fixed64, repeated, tag = "6")]
    bucket_counts: Vec<u64>,
    #[prost(double, repeated, tag = "7")]
    explicit_bounds: Vec<f64>,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<Attribute>,
}

/// `ExportMetricsServiceResponse`.
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, optional, tag = "1")]
    partial_success: Option<Partial>,
}

#[derive(Clone, PartialEq, Message)]
struct Partial {
    #[prost(int64, tag = "1")]
    rejected_data_points: i64,
}

pub(super) fn of_page(page: &Page, instance: &str, starts: &mut Starts, now: u64) -> Vec<u8> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let version = env!("CARGO_PKG_VERSION");
    let attributes = [
        ("service.name", "evenkeel".to_owned()),
        ("service.version", version.to_owned()),
        ("service.instance.id", format!("{host}/{instance}")),
        ("host.name", host),
    ];
    let resource = Resource { attributes: attributes.map(attribute).into() };
    let metrics = page.families().map(|family| metric(family, starts, now)).collect();
    starts.drawn(now);
    let scope = Some(Scope { name: "evenkeel".to_owned(), version: version.to_owned() });
    let scope_metrics = vec![ScopeMetrics { scope, metrics }];
    Request { resource_metrics: vec![ResourceMetrics { resource: Some(resource), scope_metrics }] }
        .encode_to_vec()
}

/// Data points that were refused of a message that was taken; what cannot be read says nothing of that.
pub(super) fn rejected(answer: &[u8]) -> u64 {
    let partial = Response::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.and_then(|partial| u64::try_from(partial.rejected_data_points).ok()).unwrap_or(0)
}

fn attribute((key, value): (&str, String)) -> Attribute {
    Attribute { key: key.to_owned(), value: Some(Text { string: Some(value) }) }
}

fn attributes(labels: &Labels) -> Vec<Attribute> {
    labels.iter().cloned().map(attribute).collect()
}

fn metric(family: &Family, starts: &mut Starts, now: u64) -> Metric {
    let (mut numbers, mut counts) = (Vec::new(), Vec::new());
    for (labels, value) in &family.samples {
        let attributes = attributes(labels);
        let start = match family.kind {
            Kind::Gauge => 0,
            // A clock that was set back does not make a series begin after now.
            Kind::Counter | Kind::Histogram => starts.of(family.name, labels, value).min(now),
        };
        match value {
            Value::Number(value) => numbers.push(Number {
                start_time_unix_nano: start,
                time_unix_nano: now,
                as_double: Some(*value),
                attributes,
            }),
            Value::Distribution(value) => counts.push(of_counts(value, (start, now), attributes)),
        }
    }
    let data = match family.kind {
        Kind::Gauge => Data::Gauge(Gauge { data_points: numbers }),
        Kind::Counter => {
            Data::Sum(Sum { data_points: numbers, aggregation_temporality: CUMULATIVE, is_monotonic: true })
        }
        Kind::Histogram => {
            Data::Histogram(Histogram { data_points: counts, aggregation_temporality: CUMULATIVE })
        }
    };
    let (name, description) = (family.name.to_owned(), family.help.to_owned());
    Metric { name, description, unit: unit(family.name).to_owned(), data: Some(data) }
}

fn of_counts(counts: &Distribution, (start, now): (u64, u64), attributes: Vec<Attribute>) -> Counts {
    let upto = counts.upto.iter().map(|(_, count)| *count);
    let ends = upto.clone().chain([counts.all]);
    let begins = [0].into_iter().chain(upto);
    Counts {
        start_time_unix_nano: start,
        time_unix_nano: now,
        count: counts.all,
        sum: counts.sum,
        bucket_counts: ends.zip(begins).map(|(end, begin)| end.saturating_sub(begin)).collect(),
        explicit_bounds: counts.upto.iter().map(|(bound, _)| *bound).collect(),
        attributes,
    }
}

/// The unit that a name ends with (UCUM); none is told where there is none.
fn unit(name: &str) -> &'static str {
    let name = name.trim_end_matches("_total").trim_end_matches("_low").trim_end_matches("_high");
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        Some("percent") => "%",
        Some("ratio") => "1",
        _ => "",
    }
}
