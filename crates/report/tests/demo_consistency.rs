//! No sentence of a demonstration contradicts its blocks: made-up blocks go through the real comparison, text and page,
//! and what is *printed* is read back and reckoned again from the blocks, by code that shares nothing with the tested one.
//!
//! `EVENKEEL_CONSISTENCY_RECORDS` sets the number of records (short by default).

use evenkeel_report::demo::{Arm, DemoReport, DemoRun, Kind, Role, Scene, medians, text_table};
use evenkeel_report::html;

#[path = "demo_consistency/made.rs"]
mod made;
#[path = "demo_consistency/reckon.rs"]
mod reckon;
#[path = "consistency/shared.rs"]
mod shared;
#[path = "consistency/textbook.rs"]
mod textbook;

use made::World;
use reckon::{Reckoned, median, of_blocks};
use shared::{Random, Tally, count, one_line, text_of};

/// A run's figures, and its gain at the level at which all runs hold together.
type Own = (Reckoned, Option<(f64, [f64; 2])>);

fn plain(html: &str) -> String {
    one_line(&text_of(html, " "))
}

fn between<'a>(text: &'a str, from: &str, to: &str) -> &'a str {
    text.split_once(from).and_then(|(_, rest)| rest.split_once(to)).map_or("", |(part, _)| part)
}

/// Rows of cells, with their tags.
fn rows(table: &str) -> Vec<Vec<&str>> {
    table
        .split("<tr>")
        .skip(1)
        .map(|row| {
            row.split("<td").skip(1).map(|cell| cell.split_once('>').map_or("", |(_, rest)| rest)).collect()
        })
        .filter(|cells: &Vec<&str>| !cells.is_empty())
        .collect()
}

/// A printed value with the ends next to it, `0.300 [0.206, 0.395]`.
fn value(cell: &str) -> Option<(f64, Option<[f64; 2]>)> {
    let words = plain(cell);
    let numbers: Vec<f64> = words.split([' ', '[', ',', ']']).filter_map(|w| w.parse().ok()).collect();
    match *numbers.as_slice() {
        [value] => Some((value, None)),
        [value, low, high] => Some((value, Some([low, high]))),
        _ => None,
    }
}

/// Printed with three digits after the point.
fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 6e-4 + 2e-3 * (a.abs() + b.abs()) * f64::from(u8::from(a.abs() > 2.0))
}

fn same(own: Option<(f64, [f64; 2])>, cell: &str) -> bool {
    match (own, value(cell)) {
        (None, None) => plain(cell) == "?",
        (Some((own, ends)), Some((printed, Some(shown)))) => {
            near(own, printed) && near(ends[0], shown[0]) && near(ends[1], shown[1])
        }
        _ => false,
    }
}

fn check(report: &DemoReport, blocks: &[Vec<Arm>], t: &mut Tally) {
    let (text, page) = (text_table(report), html::demo(report));
    let compared = |arms: &[Arm]| {
        let figures = of_blocks(arms, 0.05);
        figures.default.is_some() && figures.chosen.is_some()
    };
    let joint = 0.05 / blocks.iter().filter(|arms| compared(arms)).count().max(1) as f64;
    let own: Vec<Own> =
        blocks.iter().map(|arms| (of_blocks(arms, 0.05), of_blocks(arms, joint).gain)).collect();
    let gains = before_after(report, &own, &page, t);
    terminal(report, &own, &text, t);
    answer(&own, &gains, &text, &page, t);
    for (number, run) in report.runs.iter().enumerate() {
        of_run(number, run, &page, &text, t);
    }
    put_back(report, &text, &page, t);
    let lengths = report.runs.iter().flat_map(|run| run.stages.iter().skip(1).map(|s| s.seconds));
    let said = between(&page, "took turns in blocks of about ", " seconds").parse::<f64>().ok();
    t.hold(said.is_none_or(|s| lengths.clone().all(|l| near(l, s))), || format!("blocks of {said:?} s"));
    t.hold(said.is_some() == lengths.clone().next().is_some(), || "no length of blocks".into());
    again(report, t);
}

/// The page's table; gives each run's gain as it is printed there.
fn before_after(report: &DemoReport, own: &[Own], page: &str, t: &mut Tally) -> Vec<Option<[f64; 2]>> {
    let table = rows(between(page, "id=\"before-after\"", "</table>"));
    t.hold(table.len() == report.runs.len(), || {
        format!("{} rows for {} runs", table.len(), report.runs.len())
    });
    let mut gains = Vec::new();
    for ((run, cells), (figures, gain)) in report.runs.iter().zip(&table).zip(own) {
        let title = format!("{}, {} loads", plain(cells[0]), plain(cells[1]));
        t.hold(title == run.title() && plain(cells[10]) == run.choice, || {
            format!("{title} for {}", run.title())
        });
        for (column, own) in
            [(3, figures.default), (4, figures.recipe), (5, figures.chosen), (7, figures.ceiling)]
        {
            t.hold(same(own, cells[column]), || {
                format!("{title}, column {column}: {own:?}, printed {}", plain(cells[column]))
            });
        }
        t.hold(same(*gain, cells[6]), || format!("{title}: gain {gain:?}, printed {}", plain(cells[6])));
        let printed = value(cells[6]).and_then(|(value, ends)| Some((value, ends?)));
        if let (Some((gain, _)), Some((before, _)), Some((after, _))) =
            (printed, value(cells[3]), value(cells[5]))
        {
            t.hold((after - before - gain).abs() <= 2.1e-3, || {
                format!("{title}: {after} - {before} is not {gain}")
            });
        }
        let [low, high] = printed.map_or([f64::NEG_INFINITY, f64::INFINITY], |(_, ends)| ends);
        let right = match (cells[6].contains("class=\"good\""), cells[6].contains("class=\"bad\"")) {
            (true, false) => low >= 0.0,
            (false, true) => high <= 0.0,
            _ => low <= 0.0 && high >= 0.0,
        };
        t.hold(right, || format!("{title}: coloured against its own interval {low} to {high}"));
        gains.push(printed.map(|(_, ends)| ends));
        gap(&title, figures, plain(cells[8]).replace('–', "-").trim(), [cells[3], cells[5], cells[7]], t);
    }
    gains
}

/// The gap closed against the blocks, and against the three numbers next to it.
fn gap(title: &str, figures: &Reckoned, printed: &str, cells: [&str; 3], t: &mut Tally) {
    let Some((own, half)) = figures.closed else {
        return t.hold(printed == "-", || format!("{title}: a gap closed by {printed} where none was seen"));
    };
    let numbers = printed.trim_end_matches(" %").split_once('±');
    let read =
        numbers.and_then(|(value, half)| Some((value.parse::<f64>().ok()?, half.parse::<f64>().ok()?)));
    let Some((closed, margin)) = read else {
        return t.hold(false, || format!("{title}: {own} is printed as {printed}"));
    };
    let near = |a: f64, b: f64| (100.0 * a - b).abs() <= 0.51 + 2e-3 * b.abs();
    t.hold(near(own, closed) && near(half, margin), || format!("{title}: {own} ± {half}, printed {printed}"));
    let beside: Option<Vec<f64>> = cells.iter().map(|cell| value(cell).map(|(v, _)| v)).collect();
    if let Some([default, now, ceiling]) = beside.as_deref().and_then(|v| <[f64; 3]>::try_from(v).ok()) {
        let gap = ceiling - default;
        let ratio = (now - default) / gap;
        // Each of the three is rounded to a thousandth.
        let rounding = 0.0011 * (1.0 + ratio.abs()) / gap;
        t.hold(gap <= 0.0015 || (ratio - closed / 100.0).abs() <= 0.006 + 1.5 * rounding, || {
            format!("{title}: ({now} - {default}) / ({ceiling} - {default}) is not {printed}")
        });
    }
}

fn terminal(report: &DemoReport, own: &[Own], text: &str, t: &mut Tally) {
    let table = text.split("\n\n").next().unwrap();
    let lines: Vec<&str> = table.lines().skip(2).collect();
    t.hold(lines.len() == report.runs.len(), || format!("{} lines", lines.len()));
    for ((line, run), (figures, _)) in lines.iter().zip(&report.runs).zip(own) {
        let scene = match run.scene {
            Scene::OneCgroupFixed => "one cgroup, fixed",
            Scene::OneCgroupJittered => "one cgroup, jitter",
            Scene::CgroupEach => "a cgroup each",
        };
        let kind = if run.kind == Kind::Closed { "closed" } else { "wall" };
        let head = one_line(line).starts_with(&format!("{scene} {kind} 150 "));
        let mut words = line.split_whitespace().skip(scene.split(' ').count() + 2).peekable();
        let mut right = head;
        for own in [
            figures.default,
            figures.recipe,
            figures.chosen,
            figures.ceiling.map(|(v, _)| (v, [f64::NAN; 2])),
        ] {
            let value = words.next().unwrap_or("");
            let margin = words.next_if(|w| w.starts_with('±')).map(|w| w[3 - 1..].to_owned());
            right &= match own {
                None => value == "?",
                Some((own, [_, high])) => {
                    let half = margin.as_deref().and_then(|m| format!("0{m}").parse::<f64>().ok());
                    value.parse().is_ok_and(|v: f64| near(v, own))
                        && (high.is_nan() || half.is_some_and(|h| near(h, high - own)))
                }
            };
        }
        right &= words.next().is_some_and(|w| match figures.closed {
            None => w == "-",
            Some((closed, _)) => {
                let value = w.split('±').next().unwrap().parse::<f64>();
                value.is_ok_and(|v| (v - 100.0 * closed).abs() <= 0.51 + 2e-3 * v.abs())
            }
        });
        let settled = run.seconds_to_settle.map_or_else(|| "?".to_owned(), |s| format!("{s:.0} s"));
        right &= line.ends_with(&settled);
        t.hold(right, || format!("terminal: {line:?} for {figures:?}"));
    }
}

/// The headline, on the terminal and on the page.
fn answer(own: &[Own], gains: &[Option<[f64; 2]>], text: &str, page: &str, t: &mut Tally) {
    t.seen("answer");
    let shown = plain(between(page, "id=\"answer\">", "</p>"));
    let runs: Vec<_> = own
        .iter()
        .zip(gains)
        .filter_map(|((f, gain), shown)| {
            Some((f.default?.0, f.chosen?.0, f.recipe.map(|r| r.0), (*gain)?.1, (*shown)?))
        })
        .collect();
    if runs.is_empty() {
        let right = shown.starts_with("No run was completed.") && text.contains("No run was completed.");
        return t.hold(right, || shown.clone());
    }
    let sentence = format!("With evenkeel{})", between(&shown, "With evenkeel", ")"));
    t.hold(one_line(text).contains(&sentence), || format!("not on the terminal: {sentence}"));
    let number = |after: &str| {
        let rest = sentence.split_once(after)?.1;
        rest.split([' ', ';', ')']).next()?.parse::<f64>().ok()
    };
    let all = runs.len();
    let now = number("the loads got ");
    let default = number("the kernel's default ");
    let recipe = number("the published recipe gave ");
    t.hold(now.is_some_and(|v| near(v, median(runs.iter().map(|r| r.1)))), || sentence.clone());
    t.hold(default.is_some_and(|v| near(v, median(runs.iter().map(|r| r.0)))), || sentence.clone());
    let recipes: Vec<f64> = runs.iter().filter_map(|r| r.2).collect();
    let right = match recipe {
        Some(v) => recipes.len() == all && near(v, median(recipes.into_iter())),
        None => recipes.len() < all,
    };
    t.hold(right, || format!("the recipe, of other runs than the rest: {sentence}"));
    let (mut better, mut worse) = (0, 0);
    for (.., own, shown) in &runs {
        (better, worse) = (better + usize::from(own[0] > 0.0), worse + usize::from(own[1] < 0.0));
        // What is said must be seen in the table of the page, too.
        t.hold(!(own[0] > 1e-4 && shown[0] < 0.0 || own[1] < -1e-4 && shown[1] > 0.0), || {
            format!("{own:?} {shown:?}")
        });
    }
    let of = if all == 1 { "(one run; ".to_owned() } else { format!("(medians of {all} runs; ") };
    let (kind, said) = match (better, all - better - worse, worse) {
        (_, 0, 0) if all == 1 => ("better", "better beyond the interval".to_owned()),
        (_, 0, 0) => ("better", "better in every run".to_owned()),
        (0, 0, _) if all == 1 => ("worse", "worse beyond the interval".to_owned()),
        (0, _, 0) => {
            ("undecided", format!("no difference beyond the interval{}", if all == 1 { "" } else { "s" }))
        }
        (b, u, w) => ("mixed", format!("better in {b} of {all} runs, unclear in {u}, worse in {w}")),
    };
    t.seen(kind);
    t.hold(sentence.ends_with(&format!("{of}{said})")), || {
        format!("{better} better, {worse} worse of {all}: {sentence}")
    });
}

fn of_run(number: usize, run: &DemoRun, page: &str, text: &str, t: &mut Tally) {
    let part = between(page, &format!("id=\"run-{}\"", number + 1), "<h2");
    let head = format!("{}. {}", number + 1, run.title());
    t.hold(plain(&format!("<h2{part}")).starts_with(&head), || format!("{head} is headed otherwise"));
    let chosen = format!("Chosen: {} : {}", run.choice, run.why);
    t.hold(plain(part).contains(&chosen), || format!("{head}: not chosen {chosen}"));
    for missed in &run.missed {
        t.seen("note");
        let title = run.title();
        let (first, rest) = title.split_at(1);
        let note = format!("Note on {}{rest}: {missed}", first.to_lowercase());
        t.hold(part.contains(missed) && one_line(text).contains(&note), || {
            format!("{head}: {note} is elsewhere")
        });
    }
    let stages = rows(between(part, "Stages of this run", "</table>"));
    t.hold(part.contains(&format!("Stages of this run ({})", stages.len())), || {
        format!("{head}: {} stages", stages.len())
    });
    t.hold(stages.len() == run.stages.len(), || format!("{head}: {} stages", stages.len()));
    for (cells, stage) in stages.iter().zip(&run.stages) {
        let printed = value(cells[3]).map(|v| v.0);
        let right = match stage.fulfilment {
            Some(own) => printed.is_some_and(|v| near(v, own)),
            None => plain(cells[3]) == "?",
        };
        let kept = match plain(cells[5]).as_str() {
            "kept" => run.choice != "kernel default" && !run.changes.is_empty(),
            "taken back" => run.choice == "kernel default" && stage.role == Role::Trial,
            _ => stage.kept.is_none(),
        };
        t.hold(right && kept, || format!("{head}: {cells:?} for {stage:?}"));
    }
    let changes = page.split_once("id=\"changes\"").unwrap().1;
    let said = format!("{head}: {} changes in force at the end", run.changes.len());
    let none = format!("{head}: nothing was changed in the end.");
    let right = if run.changes.is_empty() { changes.contains(&none) } else { changes.contains(&said) };
    t.hold(right, || format!("{head}: {} changes", run.changes.len()));
}

/// What is said of the host afterwards.
fn put_back(report: &DemoReport, text: &str, page: &str, t: &mut Tally) {
    let back = &report.put_back;
    let in_force: usize = report.runs.iter().map(|run| run.changes.len()).sum();
    let last = text.trim_end().rsplit("\n\n").next().unwrap();
    let shown = plain(between(page, "id=\"answer\">", "</p>"));
    let (kind, said) = match (in_force, back.left.len()) {
        (0, 0) => (
            "nothing left",
            "No change was in force at the end, and nothing is left of what was tried.".to_owned(),
        ),
        (n, 0) if back.verified as usize >= n => {
            ("put back", format!("All {n} changes were restored and verified by reading."))
        }
        (n, 0) => ("partly", format!("{} of {n} changes were verified as restored.", back.verified)),
        (_, 1) => ("left", format!("1 change could NOT be restored: {}.", back.left[0])),
        (_, n) => ("left", format!("{n} changes could NOT be restored: {}.", back.left.join("; "))),
    };
    t.seen(kind);
    t.hold(one_line(last).ends_with(&said) && shown.ends_with(&said), || {
        format!("{said:?} is not the end of {last:?}")
    });
}

/// Medians over repetitions.
fn again(report: &DemoReport, t: &mut Tally) {
    let text = medians(report);
    let mut title = String::new();
    for line in text.lines().skip(2) {
        if let Some((head, _)) =
            line.strip_prefix("  ").filter(|l| !l.starts_with(' ')).and_then(|l| l.rsplit_once(", "))
        {
            title = head.to_owned();
            let of = report.runs.iter().filter(|run| run.title() == title).count();
            t.hold(line.ends_with(&format!(", {of} runs")), || line.to_owned());
            continue;
        }
        let runs: Vec<&DemoRun> = report.runs.iter().filter(|run| run.title() == title).collect();
        let get = |run: &&DemoRun| match line.trim_start() {
            l if l.starts_with("kernel default") => run.default_fulfilment,
            l if l.starts_with("published recipe") => run.published_recipe_fulfilment,
            l if l.starts_with("evenkeel") => run.final_fulfilment,
            l if l.starts_with("real-time ceiling") => run.realtime_ceiling,
            l if l.starts_with("gap closed") => run.gap_closed,
            _ => run.seconds_to_settle,
        };
        let values: Vec<f64> = runs.iter().filter_map(get).collect();
        let numbers: Vec<f64> =
            line.split([' ', '(', ')']).filter(|w| w.contains('.')).filter_map(|w| w.parse().ok()).collect();
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let own = [median(values.iter().copied()), low, high];
        let of = format!(", {} of {} runs", values.len(), runs.len());
        let right = numbers.len() == 3 && own.iter().zip(&numbers).all(|(a, b)| near(*a, *b));
        t.seen("medians");
        t.hold(right && (values.len() < runs.len()) == line.ends_with(&of), || {
            format!("{title}: {line} for {own:?}")
        });
    }
}

#[test]
fn no_sentence_contradicts_its_figures() {
    let mut random = Random(14);
    let (records, mut t) = (count(120), Tally::default());
    for n in 0..records {
        let (report, blocks) = made::report(&mut random);
        let before = t.wrong.len();
        check(&report, &blocks, &mut t);
        t.wrong[before..].iter_mut().for_each(|wrong| *wrong = format!("record {n}: {wrong}"));
    }
    let (said, wrong) = (t.sentences, t.wrong.len());
    println!(
        "{records} records, {said} sentences {:?}, {} figures reckoned again, {wrong} contradictions",
        t.kinds, t.reckoned
    );
    assert!(t.wrong.is_empty(), "{wrong} contradictions, the first:\n{}", t.wrong[..wrong.min(6)].join("\n"));
    assert!(t.reckoned > 2 * said, "{} of {said}", t.reckoned);
    for kind in ["better", "undecided", "mixed", "put back", "left", "nothing left", "note", "medians"] {
        assert!(
            t.kinds.get(kind).is_some_and(|n| n * 100 >= records),
            "{kind} is hardly ever said: {:?}",
            t.kinds
        );
    }
}

#[test]
fn planted_effects_are_found_and_nulls_are_not() {
    let mut random = Random(41);
    // Few would be too few to tell 95 % from the 97 % that are to be expected.
    for (runs, rounds) in [(1, 400), (6, (count(120) / 10).clamp(100, 400))] {
        let base = World {
            rounds: 6,
            default: 0.8,
            win: 0.0,
            ceiling: 0.1,
            noise: 0.01,
            drift: 0.2,
            cut_short: 0.0,
            recipe: true,
            changed: true,
        };
        let mut printed = |win: f64| {
            let mut report = DemoReport::new();
            for _ in 0..runs {
                let mut run = DemoRun::default();
                run.compare(&made::blocks(&World { win, ..base }, &mut random));
                report.runs.push(run);
            }
            let page = html::demo(&report);
            let cell = rows(between(&page, "id=\"before-after\"", "</table>"))[0][6].to_owned();
            (plain(between(&page, "id=\"answer\">", "</p>")), value(&cell).unwrap().1.unwrap())
        };
        let halves: Vec<f64> =
            (0..60).map(|_| printed(0.05).1).map(|[low, high]| (high - low) / 2.0).collect();
        let half = halves.iter().sum::<f64>() / 60.0;
        let all =
            |text: &str| text.contains("better in every run") || text.contains("better beyond the interval");
        // Of six runs each has to be found by itself.
        let found: usize = (0..rounds)
            .map(|_| printed(2.0 * half).0)
            .map(|text| match between(&text, "better in ", " of ").parse::<usize>() {
                Ok(found) => found,
                Err(_) => {
                    if all(&text) {
                        runs
                    } else {
                        0
                    }
                }
            })
            .sum();
        let absent = (0..rounds).filter(|_| printed(0.0).0.contains("no difference beyond")).count();
        println!(
            "{runs} runs: half width {half:.4}; planted found {found} of {}, null absent {absent} of {rounds}",
            rounds * runs
        );
        // A t test of six rounds finds 96 % of such effects, and a null is at 95 % by design: the counts are random about
        // that, and three of their standard deviations are allowed.
        let least = |of: usize| 0.95 * of as f64 - 3.0 * (0.05 * 0.95 * of as f64).sqrt();
        assert!(found as f64 >= least(rounds * runs), "{runs}: {found}");
        assert!(absent as f64 >= least(rounds), "{runs}: {absent} of {rounds}");
    }
}
