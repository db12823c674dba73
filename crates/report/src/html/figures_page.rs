//! The page of an experiment with figures by point (tenants, neighbours): verdicts first, then a picture a figure, then every number; and the same as a document, without pictures.

use maud::{Markup, html};

use super::{figure, page};
use crate::lab::markdown::{cell, table};
use crate::svg::{LineChart, line_chart};

#[derive(Debug, Clone, Default)]
pub struct FiguresPage {
    pub title: String,
    /// When, where: one line.
    pub sub: String,
    pub verdicts: Vec<String>,
    /// What was missing on this host, with its consequence.
    pub missed: Vec<String>,
    /// Facts of the host and the run.
    pub facts: Vec<(String, String)>,
    pub charts: Vec<(String, LineChart)>,
    /// Columns of the table of all numbers; the first is text.
    pub columns: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Points without a result, and why.
    pub failed: Vec<(String, String)>,
    /// How figures were made, a paragraph each.
    pub method: Vec<String>,
}

impl FiguresPage {
    pub fn html(&self) -> String {
        page(&self.title, &body(self))
    }

    /// As a document with GitHub tables.
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n{}\n\n", cell(&self.title), cell(&self.sub));
        self.verdicts.iter().for_each(|verdict| out += &format!("- {}\n", cell(verdict)));
        self.missed.iter().for_each(|missed| out += &format!("- Requirement: {}\n", cell(missed)));
        let columns: Vec<&str> = self.columns.iter().map(String::as_str).collect();
        out += &format!("\n{}", table(&columns, 1, self.rows.iter().cloned()));
        for (point, why) in &self.failed {
            let why = why.lines().next().unwrap_or("");
            out += &format!("\nWithout a result: {}: {}\n", cell(point), cell(why));
        }
        self.method.iter().for_each(|paragraph| out += &format!("\n{}\n", cell(paragraph)));
        out
    }
}

fn body(content: &FiguresPage) -> Markup {
    html! {
        h1 { (content.title) }
        p.sub { (content.sub) }
        @if !content.verdicts.is_empty() {
            div.answer { ul { @for verdict in &content.verdicts { li { (verdict) } } } }
        }
        @for missed in &content.missed { p.note { (missed) } }
        @for (caption, chart) in &content.charts {
            @let svg = line_chart(chart);
            @if !svg.is_empty() { (figure(caption, &svg)) }
        }
        h2 { "Every number" }
        div.wide { table {
            thead { tr { @for (index, column) in content.columns.iter().enumerate() {
                @if index == 0 { th { (column) } } @else { th.r { (column) } }
            } } }
            tbody { @for row in &content.rows { tr {
                @for (index, cell) in row.iter().enumerate() {
                    @if index == 0 { td.k { (cell) } } @else { td.r { (cell) } }
                }
            } } }
        } }
        @if !content.failed.is_empty() {
            h2 { "Without a result" }
            dl { @for (point, why) in &content.failed { dt { (point) } dd { (why) } } }
        }
        h2 { "How it was measured" }
        dl { @for (name, value) in &content.facts { dt { (name) } dd { (value) } } }
        @for paragraph in &content.method { p { (paragraph) } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_unknown_or_hostile_does_not_break_the_page() {
        let content = FiguresPage {
            title: "a <b>".into(),
            failed: vec![("vm".into(), "no <qemu>".into())],
            columns: vec!["point".into(), "1/s".into()],
            rows: vec![vec!["1 x veth".into(), "?".into()]],
            ..FiguresPage::default()
        };
        let html = content.html();
        assert!(html.contains("a &lt;b&gt;") && html.contains("no &lt;qemu&gt;") && !html.contains("<svg"));
        assert!(!html.contains("http://") && !html.contains("https://"), "the page must not load anything");
        let text = content.markdown();
        assert!(text.contains("| 1 x veth | ? |") && text.contains("vm: no &lt;qemu&gt;"), "{text}");
    }
}
