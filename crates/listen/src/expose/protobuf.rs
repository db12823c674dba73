//! Prometheus' protobuf format, the only one in which it takes native histograms: `io.prometheus.client.MetricFamily` of
//! <https://github.com/prometheus/client_model>, each with its length in front. Only the fields that are used are declared.

use prost::Message;

use super::{Distribution, Family as Samples, Kind, Labels, NATIVE_SCHEMA, Page, Value};

pub(super) const TYPE: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// Below this a native bucket would count as zero, seconds: Prometheus' own default. With 0 an empty histogram would pass for
/// one that is not native.
const ZERO: f64 = 2.938_735_877_055_719e-39;

#[derive(Clone, PartialEq, Message)]
struct MetricFamily {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    help: Option<String>,
    /// 0 a counter, 1 a gauge, 4 a histogram.
    #[prost(int32, optional, tag = "3")]
    kind: Option<i32>,
    #[prost(message, repeated, tag = "4")]
    metric: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, repeated, tag = "1")]
    label: Vec<Label>,
    #[prost(message, optional, tag = "2")]
    gauge: Option<Number>,
    #[prost(message, optional, tag = "3")]
    counter: Option<Number>,
    #[prost(message, optional, tag = "7")]
    histogram: Option<Histogram>,
}

#[derive(Clone, PartialEq, Message)]
struct Label {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(string, optional, tag = "2")]
    value: Option<String>,
}

#[derive(Clone, PartialEq, Message)]
struct Number {
    #[prost(double, optional, tag = "1")]
    value: Option<f64>,
}

#[derive(Clone, PartialEq, Message)]
struct Histogram {
    #[prost(uint64, optional, tag = "1")]
    count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    sum: Option<f64>,
    #[prost(message, repeated, tag = "3")]
    bucket: Vec<Bucket>,
    #[prost(sint32, optional, tag = "5")]
    schema: Option<i32>,
    #[prost(double, optional, tag = "6")]
    zero_threshold: Option<f64>,
    #[prost(uint64, optional, tag = "7")]
    zero_count: Option<u64>,
    #[prost(message, repeated, tag = "12")]
    positive_span: Vec<Span>,
    /// Each count less the one before.
    #[prost(sint64, repeated, packed = "false", tag = "13")]
    positive_delta: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Bucket {
    #[prost(uint64, optional, tag = "1")]
    cumulative_count: Option<u64>,
    #[prost(double, optional, tag = "2")]
    upper_bound: Option<f64>,
}

/// Buckets in a row.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
struct Span {
    /// Of the first one its number, of others how many are empty before it.
    #[prost(sint32, optional, tag = "1")]
    offset: Option<i32>,
    #[prost(uint32, optional, tag = "2")]
    length: Option<u32>,
}

pub(super) fn page(page: &Page) -> Vec<u8> {
    page.families().flat_map(|family| message(family).encode_length_delimited_to_vec()).collect()
}

fn message(family: &Samples) -> MetricFamily {
    let kind = match family.kind {
        Kind::Counter => 0,
        Kind::Gauge => 1,
        Kind::Histogram => 4,
    };
    let metric = family.samples.iter().map(|(labels, value)| metric(family.kind, labels, value)).collect();
    let (name, help) = (family.name.to_owned(), family.help.to_owned());
    MetricFamily { name: Some(name), help: Some(help), kind: Some(kind), metric }
}

fn metric(kind: Kind, labels: &Labels, value: &Value) -> Metric {
    let label =
        |(name, value): &(&str, String)| Label { name: Some((*name).to_owned()), value: Some(value.clone()) };
    let mut metric = Metric { label: labels.iter().map(label).collect(), ..Metric::default() };
    match (kind, value) {
        (_, Value::Distribution(counts)) => metric.histogram = Some(histogram(counts)),
        (Kind::Counter, Value::Number(value)) => metric.counter = Some(Number { value: Some(*value) }),
        (_, Value::Number(value)) => metric.gauge = Some(Number { value: Some(*value) }),
    }
    metric
}

fn histogram(counts: &Distribution) -> Histogram {
    let infinite = (f64::INFINITY, counts.all);
    let bucket =
        |(bound, count): &(f64, u64)| Bucket { cumulative_count: Some(*count), upper_bound: Some(*bound) };
    let mut histogram = Histogram {
        count: Some(counts.all),
        // Left out it would read as 0.
        sum: Some(counts.sum.unwrap_or(f64::NAN)),
        bucket: counts.upto.iter().chain([&infinite]).map(bucket).collect(),
        ..Histogram::default()
    };
    let Some(native) = &counts.native else { return histogram };
    histogram.schema = Some(NATIVE_SCHEMA);
    (histogram.zero_threshold, histogram.zero_count) = (Some(ZERO), Some(0));
    let (mut after, mut before) = (None, 0);
    for (at, count) in native {
        match (after, histogram.positive_span.last_mut()) {
            (Some(after), Some(span)) if after == *at => span.length = span.length.map(|length| length + 1),
            (after, _) => {
                let offset = Some(at - after.unwrap_or(0));
                histogram.positive_span.push(Span { offset, length: Some(1) });
            }
        }
        let count = i64::try_from(*count).unwrap_or(i64::MAX);
        histogram.positive_delta.push(count - before);
        (after, before) = (Some(at + 1), count);
    }
    histogram
}

#[cfg(test)]
mod tests {
    use super::super::example;
    use super::*;

    #[test]
    fn each_family_is_a_message_with_its_length_and_native_buckets_are_spans_and_differences() {
        let bytes = page(&example());
        let (mut rest, mut families) = (bytes.as_slice(), Vec::new());
        while !rest.is_empty() {
            families.push(MetricFamily::decode_length_delimited(&mut rest).unwrap());
        }
        let names: Vec<_> = families.iter().map(|f| (f.name.as_deref().unwrap(), f.kind.unwrap())).collect();
        assert_eq!(names, [("a_total", 0), ("c", 1), ("h", 4)]);
        assert_eq!(families[0].metric[0].counter.as_ref().unwrap().value, Some(1.5));
        assert_eq!(families[1].metric[0].label[0].value.as_deref(), Some("q\"\n\u{fffd}"));
        let histogram = families[2].metric[0].histogram.as_ref().unwrap();
        assert_eq!((histogram.count, histogram.sum, histogram.schema), (Some(3), Some(7.0), Some(2)));
        let classic: Vec<_> = histogram.bucket.iter().map(|b| (b.upper_bound, b.cumulative_count)).collect();
        assert_eq!(classic, [(Some(0.5), Some(1)), (Some(1.0), Some(2)), (Some(f64::INFINITY), Some(3))]);
        let spans: Vec<_> = histogram.positive_span.iter().map(|s| (s.offset, s.length)).collect();
        // Buckets -3, -1 and 2.
        assert_eq!(spans, [(Some(-3), Some(1)), (Some(1), Some(1)), (Some(2), Some(1))]);
        assert_eq!(histogram.positive_delta, [1, 0, 0]);
    }

    #[test]
    fn buckets_in_a_row_are_one_span() {
        let native = Some(vec![(-90, 5), (-89, 7), (-88, 1), (4, 1)]);
        let histogram = histogram(&Distribution { upto: Vec::new(), all: 14, sum: Some(1.0), native });
        let spans: Vec<_> = histogram.positive_span.iter().map(|s| (s.offset, s.length)).collect();
        assert_eq!(spans, [(Some(-90), Some(3)), (Some(91), Some(1))]);
        assert_eq!(histogram.positive_delta, [5, 2, -6, 0]);
    }

    #[test]
    fn a_histogram_that_is_not_native_does_not_pass_for_an_empty_one_that_is() {
        let classic = Distribution { upto: vec![(1.0, 0)], all: 0, sum: None, native: None };
        let message = histogram(&classic);
        assert_eq!((message.schema, message.zero_threshold, message.bucket.len()), (None, None, 2));
        assert!(message.sum.unwrap().is_nan(), "unknown is not zero");
        let empty = histogram(&Distribution { native: Some(Vec::new()), ..classic });
        assert!(empty.schema == Some(2) && empty.zero_threshold.unwrap() > 0.0, "{empty:?}");
    }
}
