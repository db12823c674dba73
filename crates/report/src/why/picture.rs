//! Pictures: bars of where the time went, lengths of the waits, and the matrix of who took whose time.

use super::text::culprit_name;
use super::{Host, Split, Target, Waits, by_name, span};
use crate::svg::{Anchor, Canvas, Scale, WIDTH, ink_on, short, short_within};

/// Parts of a bar: name and colour class, in the order drawn.
const PARTS: [(&str, &str); 5] = [
    ("ran", "f-final"),
    ("waited for others", "f-recipe"),
    ("throttled by quota", "f-ceiling"),
    ("stolen by the hypervisor", "f-default"),
    ("slept", "trough"),
];
/// Rows and columns of the matrix, and rows of blame.
const MATRIX: usize = 24;
const BLAME: usize = 12;

fn parts(split: &Split) -> [f64; 5] {
    [
        split.ran_s,
        split.waited_s,
        split.throttled_s.unwrap_or(0.0),
        split.stolen_s.unwrap_or(0.0),
        split.slept_s,
    ]
}

/// What the parts of this are called: what is not known is not in its bar, and is no 0.
fn names(split: &Split) -> [String; 5] {
    let known = [true, true, split.throttled_s.is_some(), split.stolen_s.is_some(), true];
    let mut names = PARTS.map(|(name, _)| name.to_owned());
    names.iter_mut().zip(known).filter(|(_, known)| !known).for_each(|(name, _)| name.push_str(": ?"));
    names
}

fn legend(canvas: &mut Canvas, x: f64, y: f64, names: &[String]) {
    let mut at = x;
    for (name, (_, class)) in names.iter().zip(PARTS) {
        canvas.rect(class, [at, y - 9.0, 12.0, 12.0], None);
        canvas.text("small", (at + 18.0, y + 1.0), Anchor::Start, name);
        at += 40.0 + 6.6 * name.len() as f64;
    }
}

/// One stacked bar; shares wide enough are written into it.
fn stacked(canvas: &mut Canvas, [x, y, width, height]: [f64; 4], values: &[f64], whole: f64, name: &str) {
    let mut at = x;
    for (value, (part, class)) in values.iter().zip(PARTS) {
        let w = if whole > 0.0 { width * value / whole } else { 0.0 };
        if w <= 0.0 {
            continue;
        }
        let pct = 100.0 * value / whole;
        let title = format!("{name}: {part} {value:.3} s, {pct:.1} %");
        canvas.rect(class, [at, y, w, height], Some(&title));
        if w > 40.0 {
            let class = match class {
                "trough" => "small num",
                "f-final" => "small num on head",
                _ => "small num over head",
            };
            canvas.text(
                class,
                (at + w / 2.0, y + height / 2.0 + 4.0),
                Anchor::Middle,
                &format!("{pct:.0} %"),
            );
        }
        at += w;
    }
}

/// A target: its bar, its waits by length, and who ran meanwhile.
pub fn target_picture(target: &Target) -> String {
    let mut canvas = Canvas::default();
    let title = format!("{}: {:.1} s, threads: {}", target.target, target.wall_s, target.threads);
    canvas.text("head", (20.0, 20.0), Anchor::Start, &short(&title, 120));
    legend(&mut canvas, 20.0, 46.0, &names(&target.split));
    let whole = target.split.total_s();
    stacked(&mut canvas, [20.0, 58.0, WIDTH - 40.0, 34.0], &parts(&target.split), whole, &target.target);
    let mut bottom = 110.0;
    if let Some(waits) = target.wait_histogram_usec.as_ref().filter(|waits| waits.count > 0) {
        bottom = histogram(&mut canvas, waits, bottom + 14.0);
    }
    let blame = by_name(target.blame.as_deref().unwrap_or_default());
    if !blame.is_empty() && target.split.waited_s > 0.0 {
        bottom += 24.0;
        canvas.text(
            "head",
            (20.0, bottom),
            Anchor::Start,
            "Who ran on the CPU while it was runnable there (percent of its waiting)",
        );
        bottom += 12.0;
        let left = 330.0;
        let x = Scale::new((0.0, 100.0), (left, WIDTH - 80.0));
        let rows = blame.len().min(BLAME) as f64;
        canvas.ticks_below(&x, (0.0, 100.0), (bottom, bottom + 22.0 * rows));
        for row in blame.iter().take(BLAME) {
            let place = row.place().map_or(String::new(), |name| format!(" ({name})"));
            let own = if row.own { "own " } else { "" };
            let label = format!("{own}{} {}{place}", row.kind.name(), row.name);
            canvas.text("small", (left - 10.0, bottom + 15.0), Anchor::End, &short(&label, 48));
            let w = x.at(row.share_pct) - left;
            let title = format!("{label}: {:.3} s", row.seconds);
            canvas.rect(
                if row.own { "f-trial" } else { "f-recipe" },
                [left, bottom + 4.0, w, 15.0],
                Some(&title),
            );
            canvas.text(
                "small num",
                (left + w + 6.0, bottom + 15.0),
                Anchor::Start,
                &format!("{:.1} %", row.share_pct),
            );
            bottom += 22.0;
        }
        bottom += 20.0;
    }
    canvas.finish(bottom + 10.0, &format!("Where the time of {} went", target.target))
}

fn histogram(canvas: &mut Canvas, waits: &Waits, top: f64) -> f64 {
    let known = |usec: Option<f64>| usec.map_or_else(|| "?".to_owned(), span);
    let title = format!(
        "Waits in the run queue: {} (p50 {}, p99 {}, longest {})",
        waits.count,
        known(waits.p50_usec),
        known(waits.p99_usec),
        known(waits.max_usec)
    );
    canvas.text("head", (20.0, top + 6.0), Anchor::Start, &title);
    let (left, right) = (70.0, WIDTH - 20.0);
    let (high, low) = (top + 24.0, top + 144.0);
    let most = waits.buckets.iter().map(|bucket| bucket.count).max().unwrap_or(1).max(1) as f64;
    let y = Scale::new((0.0, most), (low, high));
    for (value, at) in [(0.0, low), (most, high)] {
        canvas.line("grid", [left, at, right, at]);
        canvas.text("dim small num", (left - 8.0, at + 4.0), Anchor::End, &format!("{value:.0}"));
    }
    let width = ((right - left) / waits.buckets.len().max(1) as f64).min(64.0);
    for (index, bucket) in waits.buckets.iter().enumerate() {
        let x = left + width * index as f64;
        let range = format!("{} to {}", span(bucket.from as f64), span(bucket.to as f64));
        let at = y.at(bucket.count as f64);
        // Even a single wait among millions is seen.
        let at = if bucket.count > 0 { at.min(low - 1.5) } else { at };
        canvas.rect(
            "f-recipe",
            [x + 2.0, at, width - 4.0, low - at],
            Some(&format!("{range}: {}", bucket.count)),
        );
        canvas.text("dim tiny num", (x, low + 13.0), Anchor::Middle, &span(bucket.from as f64));
    }
    canvas.line("axis", [left, low, right, low]);
    canvas.text(
        "dim small",
        (left, low + 30.0),
        Anchor::Start,
        "length of the wait (powers of two); height: how many",
    );
    low + 40.0
}

/// The host: a bar a group, and the matrix of who took whose time.
pub fn host_picture(host: &Host) -> String {
    let mut canvas = Canvas::default();
    let title = format!("Who waited, and who ran meanwhile: {:.1} s, {} CPUs", host.wall_s, host.cpus);
    canvas.text("head", (20.0, 20.0), Anchor::Start, &title);
    legend(&mut canvas, 20.0, 46.0, &PARTS.map(|(name, _)| name.to_owned())[..4]);
    let left = 230.0;
    let groups: Vec<_> = host.groups.iter().take(MATRIX).collect();
    let pct = |seconds: f64| 100.0 * seconds / host.wall_s.max(1e-9);
    let most = groups.iter().map(|group| pct(group.split.wanted_s())).fold(1.0, f64::max);
    let x = Scale::new((0.0, most), (left, WIDTH - 140.0));
    let mut y = 62.0;
    let bottom = y + 24.0 * groups.len() as f64;
    canvas.ticks_below(&x, (0.0, most), (y, bottom));
    canvas.text("dim small", (WIDTH - 130.0, y - 4.0), Anchor::Start, "p99 of its waits");
    for group in &groups {
        canvas.text("small", (left - 10.0, y + 16.0), Anchor::End, &short_within(&group.name, 34));
        let values = parts(&group.split);
        let whole = group.split.wanted_s();
        let w = x.at(pct(whole)) - left;
        stacked(&mut canvas, [left, y + 3.0, w, 18.0], &values[..4], whole, &group.name);
        let p99 = group.wait_histogram_usec.p99_usec.map_or_else(|| "-".to_owned(), span);
        canvas.text("small num", (WIDTH - 130.0, y + 16.0), Anchor::Start, &p99);
        y += 24.0;
    }
    canvas.line("axis", [left, y, WIDTH - 140.0, y]);
    canvas.text(
        "dim small",
        (left, y + 34.0),
        Anchor::Start,
        "time its threads could use a CPU, percent of one CPU",
    );
    let bottom = matrix(&mut canvas, host, y + 66.0);
    canvas.finish(bottom, "Who waited and who ran meanwhile")
}

fn matrix(canvas: &mut Canvas, host: &Host, top: f64) -> f64 {
    canvas.text(
        "head",
        (20.0, top),
        Anchor::Start,
        "Row: who waited. Column: who had the CPU meanwhile. Number: seconds, shade: part of the row's waiting.",
    );
    let columns: Vec<_> = host.culprits.iter().take(MATRIX).collect();
    let rows = host.groups.len().min(MATRIX);
    let left = 230.0;
    let width = ((WIDTH - left - 90.0) / columns.len().max(1) as f64).min(88.0);
    // Names stand slanted above their columns.
    let head = top + 122.0;
    for (index, column) in columns.iter().enumerate() {
        let x = left + width * (index as f64 + 0.5);
        canvas.raw(format_args!("<g transform=\"rotate(-40 {x:.1} {head:.1})\">"));
        canvas.text("small", (x, head), Anchor::Start, &short_within(&culprit_name(column), 22));
        canvas.raw("</g>");
    }
    let row_height = 24.0;
    for row in 0..rows {
        let y = head + 8.0 + row_height * row as f64;
        let name = host.groups.get(row).map_or("", |group| group.name.as_str());
        canvas.text("small", (left - 10.0, y + 16.0), Anchor::End, &short_within(name, 34));
        for (index, column) in columns.iter().enumerate() {
            let x = left + width * index as f64;
            let cell = host.matrix.iter().find(|cell| cell.victim == row && cell.culprit == index);
            let share = cell.map_or(0.0, |cell| cell.share_pct / 100.0);
            let seconds = cell.map_or(0.0, |cell| cell.seconds);
            let title = format!(
                "{name} waited {seconds:.3} s ({:.1} % of its waiting) while {} ran",
                100.0 * share,
                culprit_name(column)
            );
            let own = if column.group == Some(row) { ", its own" } else { "" };
            canvas.raw(format_args!(
                "<rect class=\"cell\" style=\"--v:{:.2}\" x=\"{:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{:.1}\"><title>{}</title></rect>",
                share.clamp(0.0, 1.0),
                x + 1.0,
                (width - 2.0).max(1.0),
                row_height - 2.0,
                crate::svg::escape(&format!("{title}{own}"))
            ));
            if seconds >= 0.0005 && width >= 34.0 {
                let class = format!("tiny num {}", ink_on(share));
                canvas.text(&class, (x + width / 2.0, y + 15.0), Anchor::Middle, &short_seconds(seconds));
            }
        }
    }
    head + 20.0 + row_height * rows as f64
}

fn short_seconds(seconds: f64) -> String {
    if seconds < 10.0 { format!("{seconds:.3}") } else { format!("{seconds:.1}") }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{host, target};
    use super::*;
    use crate::svg::standalone;

    #[test]
    fn hostile_names_stay_text() {
        let mut target = target();
        target.target = "comm:<b>".into();
        let picture = target_picture(&target);
        assert!(!picture.contains("<b>") && !picture.contains("<script>"), "{picture}");
        assert!(picture.contains("hog&lt;script&gt;"));
    }

    #[test]
    fn nothing_seen_is_still_a_picture() {
        let mut target = target();
        target.split = Split::default();
        target.wait_histogram_usec = None;
        target.blame = None;
        assert!(standalone(&target_picture(&target)).ends_with("</svg>"));
        let mut host = host();
        host.groups.clear();
        host.culprits.clear();
        host.matrix.clear();
        assert!(host_picture(&host).ends_with("</svg>"));
    }

    #[test]
    fn what_is_not_known_is_said_and_not_left_out() {
        let mut target = target();
        let known = target_picture(&target);
        assert!(known.contains("stolen by the hypervisor<") && !known.contains(": ?"), "{known}");
        target.split.throttled_s = None;
        let unknown = target_picture(&target);
        assert!(unknown.contains("quota: ?<") && !unknown.contains("hypervisor: ?"), "{unknown}");
    }

    #[test]
    fn every_victim_and_culprit_has_its_cell() {
        let picture = host_picture(&host());
        assert_eq!(picture.matches("class=\"cell\"").count(), 4);
        assert!(picture.contains("web waited 0.900 s (90.0 % of its waiting) while batch ran"));
        assert!(picture.contains("while batch ran, its own"));
    }
}
