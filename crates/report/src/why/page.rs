//! Pages of their own: one file each, readable offline.

use maud::{Markup, html};

use super::text::{blame_table, host_text, target_text};
use super::{Host, Target, host_picture, target_picture};
use crate::html::{figure, page};

fn plain(summary: &str, text: &str) -> Markup {
    html! { details { summary { (summary) } pre.wide { (text) } } }
}

pub fn target_page(target: &Target) -> String {
    let title = format!("Where the time of {} went", target.target);
    let body = html! {
        h1 { (title) }
        p.sub {
            @if let Some(started) = &target.started { (started) ", " }
            (format!("{:.1} s", target.wall_s))
            @if target.gone { ", gone before the end" }
        }
        @for advice in &target.advice { p.answer { (advice.text) } }
        @for note in &target.notes { p.note { (note) } }
        (figure("Time of its threads, lengths of their waits, and who ran meanwhile. Point at a bar for figures.",
            &target_picture(target)))
        (plain("The same as text", &target_text(target, None)))
        @if let Some(blame) = &target.blame { (plain("The whole list as CSV", &blame_table().csv(blame))) }
    };
    page(&title, &body)
}

pub fn host_page(host: &Host) -> String {
    let title = "Who waited for the CPU, and who ran meanwhile";
    let body = html! {
        h1 { (title) }
        p.sub {
            @if let Some(started) = &host.started { (started) ", " }
            (format!("{:.1} s, {} CPUs", host.wall_s, host.cpus))
        }
        @if host.at_least {
            p.note { (host.lost) " events were lost: times are lower bounds" }
        }
        (figure("Containers, and groups of tasks that belong to none. Point at a bar or a cell for figures.",
            &host_picture(host)))
        (plain("The same as text", &host_text(host, None)))
    };
    page(title, &body)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{host, target};
    use super::*;

    #[test]
    fn pages_stand_alone() {
        for page in [target_page(&target()), host_page(&host())] {
            assert!(page.starts_with("<!DOCTYPE html>") && page.contains("<svg"));
            for outside in ["src=\"http", "href=\"http", "<script"] {
                assert!(!page.contains(outside), "{outside}");
            }
        }
    }
}
