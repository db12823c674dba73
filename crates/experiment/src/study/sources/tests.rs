use super::*;
use crate::record::Ended;
use crate::study::study;
use crate::study::testing::{cell, record, steady, tenant};

#[test]
fn quoted_fields_and_minutes() {
    assert_eq!(fields("a,\"8,16\",c"), ["a", "8,16", "c"]);
    assert!((minutes("186m59.721s").unwrap() - 11_219.721).abs() < 1e-9);
    assert_eq!(minutes("x"), None);
}

#[test]
fn a_mixed_list_stands_beside_its_source() {
    let units = [16u64, 16, 32, 64, 128];
    let tenants = units.iter().map(|&u| steady("t", u, 4, u as f64)).collect();
    let mut record = record(vec![("5", cell(tenants))]);
    record.sources =
        vec!["iox_mixed_5_containers".into(), "iox_priority_10_containers".into(), "unknown".into()];
    let study = study(&record);
    assert_eq!(study.sources.len(), 1);
    let rows = &study.sources[0].rows;
    assert_eq!(rows.len(), 5);
    // 1030.06 of 2060.84 in the source, 128 of 256 here.
    assert!((rows[4].source.unwrap() - 49.98).abs() < 0.01, "{:?}", rows[4]);
    assert!((rows[4].measured.unwrap().value - 50.0).abs() < 1e-9);
    assert_eq!(rows[4].predicted, None);
}

#[test]
fn waits_stand_beside_the_sources() {
    let run = |length: f64| tenant("a", Some(64), &[(0.0, length, 1.0), (length, 2.0 * length, 1.0)]);
    let mut record = record(vec![("1", cell(vec![run(10.0)])), ("2", cell(vec![run(10.1), run(10.1)]))]);
    record.sources = vec!["iox_wait_by_container_count".into()];
    let study = study(&record);
    let rows = &study.sources[0].rows;
    assert!((rows[1].measured.unwrap().value - 100.0).abs() < 1e-6 && rows[1].source.is_some());
    assert_eq!(rows[2].measured, None);
}

#[test]
fn a_bound_is_no_figure_to_stand_beside_a_source() {
    let job = |limit: Option<f64>, seconds: f64, ended: Ended| {
        let mut job = tenant("job", None, &[(0.0, seconds, 1000.0)]);
        (job.limits.quota_pct, job.ended) = (limit, ended);
        cell(vec![job])
    };
    let of = |limited: Ended| {
        let cells = vec![("none", job(None, 10.0, Ended::Done)), ("25 %", job(Some(25.0), 5.0, limited))];
        let mut record = record(cells);
        record.sources = vec!["ec2_build_by_cpu_limit".into()];
        let study = study(&record);
        let row = study.sources[0].rows.iter().find(|row| row.label == "limit 25 %").unwrap();
        row.measured.map(|m| m.value)
    };
    assert_eq!((of(Ended::Done), of(Ended::TimeLimit("5 s".into()))), (Some(0.5), None));
}
