//! The pages in a real browser, and the demonstration's table on a terminal.

use evenkeel_report::demo::{DemoReport, text_table};
use evenkeel_report::html;

mod browse;
mod fixture;

use browse::browse;

/// Everything a browser could fetch: attributes and styles that name another place.
fn external_references(page: &str) -> Vec<&str> {
    let names = ["src=\"", "href=\"", "url(", "@import", "action=\""];
    names
        .iter()
        .flat_map(|name| page.match_indices(name).map(move |(at, _)| &page[at + name.len()..]))
        .map(|rest| &rest[..rest.len().min(40)])
        .filter(|rest| !rest.starts_with('#') && !rest.starts_with("data:"))
        .collect()
}

#[test]
fn the_demonstrations_page_stands_alone_and_shows_everything() {
    for cpus in [2, 64] {
        let report = fixture::report(cpus);
        let text = html::demo(&report);
        assert!(text.len() < 5 << 20, "{} bytes with {cpus} CPUs", text.len());
        assert_eq!(external_references(&text), Vec::<&str>::new());
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("report.html");
        std::fs::write(&file, &text).unwrap();
        let (dom, console) = browse(&file);
        assert_eq!(console, "");
        for wanted in [
            "id=\"answer\"",
            "id=\"before-after\"",
            "id=\"run-6\"",
            "id=\"changes\"",
            "id=\"method\"",
            "</html>",
        ] {
            assert!(dom.contains(wanted), "{wanted} is missing with {cpus} CPUs");
        }
        // One summary, and three pictures a run; all as SVG, not as text.
        assert_eq!(dom.matches("<svg class=\"ek\"").count(), 1 + 3 * 6);
        assert!(dom.contains("All 214 changes were restored"));
        assert!(!dom.contains("NaN"));
    }
}

#[test]
fn hostile_names_do_not_become_markup() {
    let mut report = fixture::report(2);
    let evil = "</title><script>console.error('in')</script><img src=x onerror=console.error(1)>";
    report.runs[0].tasks[0].name = evil.into();
    report.runs[0].stages[0].name = evil.into();
    report.runs[0].choice = evil.into();
    report.host.kernel = evil.into();
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("report.html");
    std::fs::write(&file, html::demo(&report)).unwrap();
    let (dom, console) = browse(&file);
    assert_eq!(console, "");
    assert!(!dom.contains("<script") && !dom.contains("<img"));
}

#[test]
fn an_empty_report_is_a_page_too() {
    let text = html::demo(&DemoReport::new());
    assert!(text.contains("No run was completed"));
    let run = html::run(&html::RunPage::default());
    assert!(run.contains("Fulfilment is not known") && run.contains("</html>"));
}

#[test]
fn the_table_fits_a_terminal() {
    let mut report = fixture::report(64);
    report.runs[0].default_fulfilment = None;
    let text = text_table(&report);
    for line in text.lines() {
        assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
    }
    assert!(text.contains("0.998 ±") && text.contains("?"));
    assert_eq!(
        text.lines().filter(|line| line.contains(" closed ") || line.contains(" wall ")).count(),
        6 + 1
    );
}

#[test]
fn the_document_has_the_promised_fields_and_reads_back() {
    let report = fixture::report(2);
    let document = report.json();
    assert_eq!(document["schema"], "evenkeel.demo/v1");
    let run = &document["runs"][2];
    assert_eq!((&run["scene"], &run["kind"]), (&"one-cgroup-jittered".into(), &"closed".into()));
    for field in [
        "wanted_pct",
        "default_fulfilment",
        "published_recipe_fulfilment",
        "final_fulfilment",
        "realtime_ceiling",
        "gap_closed",
        "seconds_to_settle",
    ] {
        assert!(run[field].is_number(), "{field}");
    }
    for field in ["name", "seconds", "fulfilment", "cpu_pct"] {
        assert!(!run["stages"][0][field].is_null(), "{field}");
    }
    assert!(document.get("report").is_some() && document["cpus"] == 2);
    let back: DemoReport = serde_json::from_value(document).unwrap();
    assert_eq!(back, report);
}

/// Writes pages to look at: `EVENKEEL_PAGES=DIR cargo test -p evenkeel-report --test browser pages`.
#[test]
fn pages_can_be_written_to_look_at() {
    let dir = tempfile::tempdir().unwrap();
    let target = std::env::var_os("EVENKEEL_PAGES").map_or_else(|| dir.path().to_path_buf(), Into::into);
    for cpus in [2, 8, 64] {
        let file = target.join(format!("demo-{cpus}.html"));
        std::fs::write(&file, html::demo(&fixture::report(cpus))).unwrap();
        assert!(std::fs::metadata(&file).unwrap().len() > 50_000);
    }
}
