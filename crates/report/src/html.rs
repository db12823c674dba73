//! Pages: one self-contained file each, readable offline, in light and dark.

mod demo_page;
mod figures_page;
mod run_page;
mod tune_page;

use evenkeel_base::text::bracketed;
use maud::{DOCTYPE, Markup, PreEscaped, html};

pub use demo_page::demo;
pub use figures_page::FiguresPage;
pub use run_page::{RunPage, run};
pub use tune_page::{SettingRow, TunePage, tune};

use crate::svg;

const STYLE: &str = "
*{box-sizing:border-box}html{color-scheme:light dark}
body{margin:0 auto;max-width:1200px;padding:28px 24px 60px;background:var(--bg);color:var(--ink);
font:15px/1.55 system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
h1{font-size:25px;line-height:1.3;margin:0 0 4px}h2{font-size:20px;margin:46px 0 6px;padding-top:14px;border-top:1px solid var(--line)}
h3{font-size:15.5px;margin:24px 0 4px}p{margin:6px 0;max-width:86ch}.sub{color:var(--dim);max-width:none}
.answer{font-size:17.5px;line-height:1.5;background:var(--card);border-left:4px solid var(--final);padding:14px 18px;margin:18px 0;max-width:none}
figure{margin:10px 0 22px}figcaption{color:var(--dim);font-size:13.5px;max-width:100ch;margin-bottom:4px}
.wide{overflow-x:auto}
table{border-collapse:collapse;font-size:13.5px;margin:10px 0;width:100%}
th{text-align:left;font-weight:600;color:var(--dim);border-bottom:1.5px solid var(--line);padding:5px 10px 5px 0;vertical-align:bottom}
td{border-bottom:1px solid var(--grid);padding:5px 10px 5px 0;vertical-align:top;overflow-wrap:anywhere;min-width:6em}
.r{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap;min-width:0}th.r{white-space:normal}
.k{min-width:15em}
.r+th:not(.r),.r+td:not(.r){padding-left:12px}
.iv{color:var(--dim);font-size:12px;display:block}.good{color:var(--good);font-weight:600}.bad{color:var(--bad);font-weight:600}
.dot{display:inline-block;width:9px;height:9px;border-radius:50%;margin-right:7px}
.d-default{background:var(--default)}.d-recipe{background:var(--recipe)}.d-trial{background:var(--trial)}
.d-final{background:var(--final)}.d-ceiling{background:var(--ceiling)}
dl{display:grid;grid-template-columns:max-content 1fr;gap:3px 22px;font-size:14px}dt{color:var(--dim)}dd{margin:0}
details{margin:10px 0}summary{cursor:pointer;color:var(--dim)}nav{font-size:13.5px;margin:12px 0}nav a{color:var(--final);margin-right:16px}
.note{border-left:4px solid var(--recipe);background:var(--card);padding:8px 14px;margin:10px 0}
code{font-size:.93em}
@media(max-width:760px){body{padding:16px 12px 40px}h1{font-size:21px}.wide svg.ek{min-width:760px}.wide table{min-width:640px}dl{grid-template-columns:1fr}dd{margin-bottom:6px}}
@media print{body{max-width:none}h2{break-after:avoid}figure{break-inside:avoid}}
";

/// A page with its head; `body` is what it says.
pub(crate) fn page(title: &str, body: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                title { (title) }
                // An inline, empty icon: without it a browser would ask the server for one.
                link rel="icon" href="data:,";
                style { (PreEscaped(svg::STYLE)) (PreEscaped(STYLE)) }
            }
            body { (body) }
        }
    }
    .into_string()
}

pub(crate) fn figure(caption: &str, svg: &str) -> Markup {
    html! { figure { figcaption { (caption) } div.wide { (PreEscaped(svg)) } } }
}

/// A value with its interval below it.
pub(crate) fn measured(value: Option<f64>, interval: Option<[f64; 2]>) -> Markup {
    html! {
        @match value {
            Some(value) => { (format!("{value:.3}")) }
            None => { "?" }
        }
        @if let Some([low, high]) = interval { span.iv { (bracketed(format_args!("{low:.3}"), format_args!("{high:.3}"))) } }
    }
}
