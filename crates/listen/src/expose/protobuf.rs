//! Prometheus' protobuf format, the only one in which it takes native histograms: `io.prometheus.client.MetricFamily` of
//! <https://github.com/prometheus/client_model>, each with its length in front.

use prost::Message;

use super::{Distribution, Family as Samples, Kind, Labels, NATIVE_SCHEMA, Page, Value};
use proto::{Bucket, BucketSpan, Counter, Gauge, Histogram, LabelPair, Metric, MetricFamily, MetricType};

#[allow(clippy::all)]
mod proto {
    include!(concat!(env!("OUT_DIR"), "/io.prometheus.client.rs"));
}

pub(super) const TYPE: &str =
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited";

/// Below this a native bucket would count as zero, seconds: Prometheus' own default. With 0 an empty histogram would pass for
/// one that is not native.
const ZERO: f64 = 2.938_735_877_055_719e-39;

pub(super) fn page(page: &Page) -> Vec<u8> {
    page.families().flat_map(|family| message(family).encode_length_delimited_to_vec()).collect()
}

fn message(family: &Samples) -> MetricFamily {
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let metric = family.samples.iter().map(|(labels, value)| metric(family.kind, labels, value)).collect();
    let (name, help) = (family.name.to_owned(), family.help.to_owned());
    MetricFamily { name: Some(name), help: Some(help), r#type: Some(kind.into()), metric }
}

fn metric(kind: Kind, labels: &Labels, value: &Value) -> Metric {
    let label = |(name, value): &(&str, String)| LabelPair {
        name: Some((*name).to_owned()),
        value: Some(value.clone()),
    };
    let mut metric = Metric { label: labels.iter().map(label).collect(), ..Metric::default() };
    match (kind, value) {
        (_, Value::Distribution(counts)) => metric.histogram = Some(histogram(counts)),
        (Kind::Counter, Value::Number(value)) => metric.counter = Some(Counter { value: Some(*value) }),
        (_, Value::Number(value)) => metric.gauge = Some(Gauge { value: Some(*value) }),
    }
    metric
}

fn histogram(counts: &Distribution) -> Histogram {
    let infinite = (f64::INFINITY, counts.all);
    let bucket =
        |(bound, count): &(f64, u64)| Bucket { cumulative_count: Some(*count), upper_bound: Some(*bound) };
    let mut histogram = Histogram {
        sample_count: Some(counts.all),
        // Left out it would read as 0.
        sample_sum: Some(counts.sum.unwrap_or(f64::NAN)),
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
                histogram.positive_span.push(BucketSpan { offset, length: Some(1) });
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
        let names: Vec<_> =
            families.iter().map(|f| (f.name.as_deref().unwrap(), f.r#type.unwrap())).collect();
        assert_eq!(names, [("a_total", 0), ("c", 1), ("h", 4)]);
        assert_eq!(families[0].metric[0].counter.as_ref().unwrap().value, Some(1.5));
        assert_eq!(families[1].metric[0].label[0].value.as_deref(), Some("q\"\n\u{fffd}"));
        let histogram = families[2].metric[0].histogram.as_ref().unwrap();
        assert_eq!(
            (histogram.sample_count, histogram.sample_sum, histogram.schema),
            (Some(3), Some(7.0), Some(2))
        );
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
        assert!(message.sample_sum.unwrap().is_nan(), "unknown is not zero");
        let empty = histogram(&Distribution { native: Some(Vec::new()), ..classic });
        assert!(empty.schema == Some(2) && empty.zero_threshold.unwrap() > 0.0, "{empty:?}");
    }
}
