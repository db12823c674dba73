//! The message: `ExportMetricsServiceRequest` of <https://github.com/open-telemetry/opentelemetry-proto>.

use prost::Message;

use super::super::expose::{Distribution, Family, Kind, Labels, Page, Value};
use super::Starts;
use proto::metric::Data;
use proto::{
    AggregationTemporality, AnyValue, ExportMetricsServiceRequest, ExportMetricsServiceResponse, Gauge,
    Histogram, HistogramDataPoint, InstrumentationScope, KeyValue, Metric, NumberDataPoint, Resource,
    ResourceMetrics, ScopeMetrics, Sum,
};

#[allow(clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/opentelemetry.proto.rs"));
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
    let scope = Some(InstrumentationScope { name: "evenkeel".to_owned(), version: version.to_owned() });
    let scope_metrics = vec![ScopeMetrics { scope, metrics }];
    let resource_metrics = vec![ResourceMetrics { resource: Some(resource), scope_metrics }];
    ExportMetricsServiceRequest { resource_metrics }.encode_to_vec()
}

/// Data points that were refused of a message that was taken; what cannot be read says nothing of that.
pub(super) fn rejected(answer: &[u8]) -> u64 {
    let partial = ExportMetricsServiceResponse::decode(answer).ok().and_then(|answer| answer.partial_success);
    partial.and_then(|partial| u64::try_from(partial.rejected_data_points).ok()).unwrap_or(0)
}

fn attribute((key, value): (&str, String)) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { string_value: Some(value) }) }
}

fn attributes(labels: &Labels) -> Vec<KeyValue> {
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
            Value::Number(value) => numbers.push(NumberDataPoint {
                start_time_unix_nano: start,
                time_unix_nano: now,
                as_double: Some(*value),
                attributes,
            }),
            Value::Distribution(value) => counts.push(of_counts(value, (start, now), attributes)),
        }
    }
    let aggregation_temporality = AggregationTemporality::Cumulative.into();
    let data = match family.kind {
        Kind::Gauge => Data::Gauge(Gauge { data_points: numbers }),
        Kind::Counter => Data::Sum(Sum { data_points: numbers, aggregation_temporality, is_monotonic: true }),
        Kind::Histogram => Data::Histogram(Histogram { data_points: counts, aggregation_temporality }),
    };
    let (name, description) = (family.name.to_owned(), family.help.to_owned());
    Metric { name, description, unit: unit(family.name).to_owned(), data: Some(data) }
}

fn of_counts(
    counts: &Distribution,
    (start, now): (u64, u64),
    attributes: Vec<KeyValue>,
) -> HistogramDataPoint {
    let upto = counts.upto.iter().map(|(_, count)| *count);
    let ends = upto.clone().chain([counts.all]);
    let begins = [0].into_iter().chain(upto);
    HistogramDataPoint {
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
