//! Small pictures drawn by hand: no script, no external reference, tooltips by `<title>`.
//!
//! Colours are CSS classes with a light and a dark variant ([`STYLE`]), after Okabe and Ito's palette, which people
//! with colour-vision deficiencies can tell apart. Every picture names its axes and units. A picture is a whole
//! `<svg>` element: put [`STYLE`] once into the page, or use [`standalone`] to get a file of its own.

mod canvas;
mod convergence;
mod cores;
mod lines;
mod summary;
mod tasks;
mod timeline;

pub(crate) use canvas::{Anchor, Canvas, Scale, ink_on, short_within, tick_label, ticks};
pub use canvas::{WIDTH, escape, role_class, short};
pub use convergence::{Trial, convergence, importance};
pub use cores::core_map;
pub use lines::{Across, Line, LineChart, line_chart};
pub use summary::{Mark, SummaryRow, summary};
pub use tasks::{TaskBars, task_bars};
pub use timeline::{Band, Timeline, timeline};

/// Classes the pictures use.
pub const STYLE: &str = "
:root{--ink:#1b1f24;--dim:#57606a;--line:#d0d7de;--grid:#e7ebef;--bg:#fff;--card:#f6f8fa;
--default:#7a828a;--recipe:#d98200;--trial:#9ccbe8;--final:#0072b2;--ceiling:#b5578f;--good:#00795a;--bad:#b8430b;
--heat-l:96%;--heat-d:-58%}
@media(prefers-color-scheme:dark){:root{--ink:#e6edf3;--dim:#9aa4af;--line:#3b434c;--grid:#262c33;--bg:#0f1317;
--card:#171c22;--default:#9aa4af;--recipe:#f0a63a;--trial:#35617f;--final:#58b0e6;--ceiling:#dc8cbc;--good:#3fbf95;
--bad:#f0803c;--heat-l:14%;--heat-d:58%}}
svg.ek{display:block;width:100%;height:auto;font:12px system-ui,-apple-system,'Segoe UI',Roboto,'DejaVu Sans',sans-serif}
.ek text{fill:var(--ink)}.ek .dim{fill:var(--dim)}.ek .small{font-size:11px}.ek .tiny{font-size:9.5px}
.ek .head{font-weight:600}.ek .num{font-variant-numeric:tabular-nums}
.ek .grid{stroke:var(--grid);stroke-width:1}.ek .axis{stroke:var(--dim);stroke-width:1}
.ek .wanted{stroke:var(--ink);stroke-width:1.2;stroke-dasharray:5 4;fill:none}
.ek .area{fill:var(--final);fill-opacity:.2}.ek .curve{fill:none;stroke:var(--final);stroke-width:1.6;stroke-linejoin:round}
.ek .frame{fill:none;stroke:var(--line)}.ek .unknown{fill:var(--grid)}
.ek .clear{fill:transparent}.ek .trough{fill:var(--grid)}
.ek .f-default{fill:var(--default)}.ek .f-recipe{fill:var(--recipe)}.ek .f-trial{fill:var(--trial)}
.ek .f-final{fill:var(--final)}.ek .f-ceiling{fill:var(--ceiling)}
.ek .s-default{stroke:var(--default)}.ek .s-recipe{stroke:var(--recipe)}.ek .s-trial{stroke:var(--trial)}
.ek .s-final{stroke:var(--final)}.ek .s-ceiling{stroke:var(--ceiling)}
.ek .band{opacity:.2}.ek .halo{paint-order:stroke;stroke:var(--bg);stroke-width:4px;stroke-linejoin:round}.ek .bar{stroke-width:2.5;stroke-linecap:round}
.ek .cell{fill:hsl(205 75% calc(var(--heat-l) + var(--heat-d)*var(--v)))}
.ek text.on{fill:#fff}.ek text.over,.ek text.low{fill:#000}
@media(prefers-color-scheme:dark){.ek text.on{fill:#000}.ek text.low{fill:#fff}}
";

/// A picture as a file of its own.
pub fn standalone(svg: &str) -> String {
    let style = format!("<style>{STYLE}svg.ek{{background:var(--bg)}}</style>");
    match svg.find('>') {
        Some(end) => format!("{}{style}{}", &svg[..=end], &svg[end + 1..]),
        None => svg.to_owned(),
    }
}
