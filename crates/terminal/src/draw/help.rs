//! The keys, and what the figures mean.

use ratatui::style::Style;

use super::{Canvas, Page};
use crate::list::List;

pub const LINES: &[&str] = &[
    "KEYS",
    "  1 2 3 4 5, Tab    tree, heat map, cores, loop, history",
    "  up down, j k      one line; PgUp PgDn a page; Home End, g G the ends",
    "  w                 why the chosen one waits: watches it for 5 s; Esc back",
    "  space             stop, and go on",
    "  + -               look less or more often; history: longer, shorter time",
    "  ? h               this page",
    "  Esc               back to the tree",
    "  q, Ctrl-C         end",
    "",
    "TREE",
    "  Enter right left  fold and unfold; left on a folded line: to what it is in",
    "  z                 fold all owners, unfold all",
    "  < > s             sort by another column; r the other way round",
    "  /                 search in names and owners; Enter keeps it, Esc ends it",
    "  b                 lines: owner, process, container, pod, vm, cpu, task",
    "  a                 also who neither ran nor waited",
    "",
    "HEAT MAP: who ran on which CPU over the last minute",
    "  b                 lines: threads, processes, owners",
    "  left right        other CPUs, where not all fit",
    "",
    "CORES",
    "  Enter             who is on the chosen CPU",
    "",
    "HISTORY",
    "  left right        the cursor; PgUp PgDn further; End: now",
    "",
    "FIGURES",
    "  Percent is of ONE CPU. ? is unknown, which is not 0.",
    "  CPU%     time on a CPU",
    "  WAIT%    time runnable but not running, throttling included; of several",
    "           threads together it can exceed 100",
    "  THR%     time throttled by a quota",
    "  60 s now the column to the left over the last minute: the steps of its bars",
    "           begin at 0, 0.5, 2, 5, 10, 25, 50 and 100 %",
    "  heat map shades begin at 0.5, 10, 40 and 75 % of a CPU",
    "  *        an isolated CPU: the scheduler's load balancing leaves it out",
    "  IRQ%     interrupts, part of busy; STEAL% taken by the hypervisor",
    "  QUEUE    tasks that waited, on average, of those that were there last",
    "  loop     marks: B begins, S set, K kept, R refused, P put back, E ends",
];

pub fn draw(list: &List, canvas: &mut Canvas<'_>, page: Page) {
    let shown = LINES.iter().skip(list.top).take(usize::from(page.height));
    for (y, line) in shown.enumerate() {
        canvas.put(1, page.top + y as u16, canvas.area.width.saturating_sub(1), line, Style::new());
    }
}
