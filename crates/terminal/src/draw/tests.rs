//! Screens as they are seen, and whatever is thrown at them.

use std::time::Duration;

use evenkeel_base::run::{ChangeRecord, RunRecord};
use evenkeel_store::moments::{Kind, Moment};
use proptest::prelude::*;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::*;
use crate::errand::{Look, Running};
use crate::model::Event;
use crate::past::Recorded;
use crate::skin::Skin;
use crate::testing::{look, task};
use crate::tree::Grouping;

const PLAIN: Skin = Skin { ascii: false, colour: false };

fn model(skin: Skin) -> Model {
    let mut model = Model::new(skin, Duration::from_secs(1), Grouping::Owner);
    model.update(Event::Size(80, 24));
    model.update(Event::Looked(Ok(Box::new(look()))));
    model
}

fn press(model: &mut Model, code: KeyCode) {
    model.update(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
}

/// The screen as lines of text.
fn screen(model: &Model, size: (u16, u16)) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(size.0, size.1)).unwrap();
    terminal.draw(|frame| draw(model, frame.buffer_mut())).unwrap();
    let buffer = terminal.backend().buffer();
    let rows = buffer.content.chunks(usize::from(size.0.max(1)));
    rows.map(|row| row.iter().map(ratatui::buffer::Cell::symbol).collect::<String>()).collect()
}

fn sized(mut model: Model, size: (u16, u16)) -> Vec<String> {
    model.update(Event::Size(size.0, size.1));
    screen(&model, size)
}

#[test]
fn the_tree_at_80_by_24() {
    let model = model(PLAIN);
    let screen = screen(&model, (80, 24));
    let want = [
        " [1 tree] 2 heat  3 cores  4 loop  5 history   by owner, every 1s",
        " 2 CPUs  busy 115.0 of 200 %  steal 3.0 %  waiting 0.8 tasks  top itself 0.4 %",
        " NAME                            CORE  CPU%▼  WAIT% 60 s  now    THR% 60 s  now",
        ">▾ shop/front (pod)                     70.0   81.0          ▇   25.0          ▆",
        "   ▾ web (docker)                       70.0   81.0          ▇   25.0          ▆",
        "     ▸ 100 nginx (2 threads)        0   70.0   81.0          ▇    0.0          ▁",
        " ▾ db (VM, pid 200)                     40.0    0.5          ▂    0.0          ▁",
    ];
    for (line, want) in screen.iter().zip(want) {
        assert_eq!(line.trim_end(), want, "\n{}", screen.join("\n"));
    }
    assert!(screen[23].contains("? help") && screen[23].contains("q end"));
}

#[test]
fn a_wide_tree_has_what_networks_transfer() {
    let mut model = model(PLAIN);
    // It fits after what a usual terminal has.
    let lines = sized(model, (170, 24));
    assert!(lines[1].trim_end().ends_with("net in/out 1.2M/30k/s"), "{}", lines[1]);
    let at = lines[2].find("NET IN/OUT").expect("a column");
    for (line, wanted) in [(3, "1.2M/30k"), (4, "1.2M/30k"), (5, ""), (6, "")] {
        let chars: Vec<char> = lines[line].chars().collect();
        let at = lines[2][..at].chars().count();
        let cell: String = chars[at - 1..at + 10].iter().collect();
        assert_eq!(cell.trim(), wanted, "{}", lines.join("\n"));
    }
    model = self::model(PLAIN);
    assert!(!sized(model, (80, 24)).iter().any(|line| line.contains("net in/out")));
}

#[test]
fn the_heat_map_says_the_same_with_and_without_colour() {
    let mut plain = model(PLAIN);
    let mut coloured = model(Skin { colour: true, ..PLAIN });
    for model in [&mut plain, &mut coloured] {
        press(model, KeyCode::Char('2'));
    }
    let lines = screen(&plain, (80, 24));
    assert_eq!(lines, screen(&coloured, (80, 24)));
    let worker = lines.iter().find(|line| line.contains("101 worker")).unwrap();
    assert!(worker.contains("60.0") && worker.contains("▓▓ 60"), "{worker}");
    assert!(lines.iter().any(|line| line.contains("1*")), "isolated CPUs are starred");
    press(&mut plain, KeyCode::Char('b'));
    assert!(screen(&plain, (80, 24))[0].contains("processes"));
}

#[test]
fn many_cpus_get_a_column_each_and_those_that_do_not_fit_are_told() {
    let mut wide = look();
    let cpu = wide.observation.host.per_cpu[0];
    wide.observation.host.per_cpu =
        (0..300).map(|n| evenkeel_base::observation::CpuView { cpu: n, ..cpu }).collect();
    let mut model = model(PLAIN);
    model.update(Event::Looked(Ok(Box::new(wide))));
    press(&mut model, KeyCode::Char('2'));
    assert!(screen(&model, (80, 24)).iter().any(|line| line.contains("CPUs more: right")));
    (0..500).for_each(|_| press(&mut model, KeyCode::Right));
    assert!(!screen(&model, (80, 24)).iter().any(|line| line.contains("CPUs more")));
    assert!(model.heat_left > 200);
    press(&mut model, KeyCode::Char('3'));
    let lines = screen(&model, (80, 24));
    assert!(
        lines.iter().any(|line| line.contains("QUEUE")) && lines.iter().any(|line| line.starts_with(">0")),
        "{lines:?}"
    );
}

#[test]
fn the_core_map_stars_what_is_isolated() {
    let mut model = model(PLAIN);
    press(&mut model, KeyCode::Char('3'));
    let lines = screen(&model, (80, 24));
    assert!(lines[2].starts_with(" node 0   ▓ ▓*"), "{}", lines[2]);
    let starred = lines.iter().find(|line| line.starts_with(" 1*")).unwrap();
    for part in ["50.0", "1.5", "2.5", "0.01", "200 qemu"] {
        assert!(starred.contains(part), "{part}: {starred}");
    }
}

#[test]
fn help_lists_every_key_and_fits_the_width() {
    let mut model = model(PLAIN);
    press(&mut model, KeyCode::Char('?'));
    assert!(help::LINES.iter().all(|line| line.chars().count() <= 79));
    let lines = screen(&model, (80, 24));
    assert!(lines[2].contains("KEYS") && lines[22].trim() != "");
    press(&mut model, KeyCode::End);
    assert!(screen(&model, (80, 24))[22].contains("K kept"));
    press(&mut model, KeyCode::Esc);
    assert!(model.over.is_none());
}

#[test]
fn the_loop_and_the_history_say_when_there_is_none() {
    let mut model = model(PLAIN);
    press(&mut model, KeyCode::Char('4'));
    assert!(screen(&model, (80, 24))[2].contains("reading"));
    model.update(Event::Running(Ok(Running { headline: "No agent is running.\n".into(), record: None })));
    assert!(screen(&model, (80, 24))[2].contains("No agent is running"));
    press(&mut model, KeyCode::Char('5'));
    model.update(Event::Past(model.past.period(), Ok(None)));
    assert!(screen(&model, (80, 24))[2].contains("No history on this host"));
    model.update(Event::Past(model.past.period(), Err("history.db: permission denied".into())));
    assert!(screen(&model, (80, 24))[2].contains("permission denied"));
}

fn recorded(text: &str) -> Recorded {
    let second = 1_000_000_000;
    let start = 1_790_000_000 * second;
    let moment = |at: u64, kind: Kind| Moment {
        at_ns: start + at * second,
        kind,
        settings: "kernel default".into(),
        seconds: Some(60.0),
        cpu_pct: Some(150.0),
        per_cpu_pct: vec![(0, 100.0), (1, 50.0)],
        steal_pct: Some(0.0),
        wait_pct: Some(40.0),
        busiest: vec![(text.into(), 90.0, Some(5.0)), ("other".into(), 60.0, None)],
        text: text.into(),
    };
    let moments = vec![moment(600, Kind::Rates), moment(660, Kind::Rates), moment(661, Kind::Kept)];
    let (from_ns, to_ns) = (start, start + 3600 * second);
    Recorded { from_ns, to_ns, moments, damaged: 1, kept_ns: Some((from_ns, start + 660 * second)) }
}

#[test]
fn the_history_has_a_cursor_and_says_who_had_the_cpu_then() {
    let mut model = model(PLAIN);
    press(&mut model, KeyCode::Char('5'));
    model.update(Event::Past(model.past.period(), Ok(Some(recorded("web")))));
    let lines = screen(&model, (80, 24));
    let text = lines.join("\n");
    for part in ["busy", "wait", "150.0 %", "90.0    5.0  web", "kept", "1 damaged", "bars: busy to 150 %"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let cursor = |lines: &[String]| lines[6].find('^');
    let first = cursor(&lines);
    press(&mut model, KeyCode::Left);
    let moved = cursor(&screen(&model, (80, 24)));
    assert_eq!(first.map(|at| at - 1), moved, "{text}");
    (0..10).for_each(|_| press(&mut model, KeyCode::Right));
    assert!(screen(&model, (80, 24)).join("\n").contains("nothing was recorded at"));
}

#[test]
fn a_history_of_days_says_which_day_the_cursor_is_on() {
    let mut model = model(PLAIN);
    press(&mut model, KeyCode::Char('5'));
    (0..3).for_each(|_| press(&mut model, KeyCode::Char('+')));
    let mut recorded = recorded("web");
    recorded.from_ns -= 7 * 86_400_000_000_000 - 3_600_000_000_000;
    recorded.moments[2].at_ns += 86_400_000_000_000;
    model.update(Event::Past(model.past.period(), Ok(Some(recorded))));
    let lines = screen(&model, (80, 24));
    assert_eq!(
        lines[2].trim_end(),
        " cursor 2026-09-21 14:24:20 of 2026-09-14 15:13:20 to 15:13:20 UTC (7 days)"
    );
    // What the loop did a day later.
    let later = lines.iter().position(|line| line.trim() == "2026-09-22:");
    assert!(later.is_some_and(|at| lines[at + 1].contains("kept")), "{lines:?}");
}

#[test]
fn numbers_keep_the_digits_before_their_point() {
    let mut model = model(PLAIN);
    let mut crowded = look();
    crowded.observation.tasks[4].wait_pct = Some(123_456.7);
    model.update(Event::Looked(Ok(Box::new(crowded))));
    assert!(screen(&model, (80, 24)).join("\n").contains(" 123457 "));
}

#[test]
fn without_utf8_everything_is_ascii() {
    let mut hostile = look();
    hostile.observation.tasks[4].comm = "größe…日本".into();
    let mut model = model(Skin { ascii: true, colour: false });
    model.update(Event::Looked(Ok(Box::new(hostile))));
    for key in "12345?".chars() {
        press(&mut model, KeyCode::Char(key));
        let lines = screen(&model, (80, 24));
        assert!(lines.iter().all(|line| line.is_ascii()), "{key}: {lines:?}");
    }
}

#[test]
fn small_terminals_have_the_most_important() {
    let narrow = sized(model(PLAIN), (40, 10));
    assert!(narrow[0].contains("[1 tree]") && narrow[0].contains("by owner"), "{}", narrow[0]);
    assert!(narrow[2].contains("CPU%") && narrow[2].contains("WAIT%") && narrow[2].contains("THR%"));
    assert!(narrow[3].contains("shop/front"));
    assert_eq!(sized(model(PLAIN), (1, 1)), [">"]);
    assert!(sized(model(PLAIN), (200, 60))[2].contains("LIMITS"));
}

/// Names that somebody chose to do harm.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        Just("\u{1b}[2J\u{7}\u{9b}31m\r\n".to_owned()),
        Just("a\u{301}".repeat(2000)),
        Just(format!("e{}", "\u{301}".repeat(3000))),
        Just("日本語".repeat(1400)),
        Just("\u{202e}live\u{200b}\u{feff}\u{ad}".to_owned()),
        Just(String::from_utf8_lossy(&[0xff, 0xfe, b'x', 0x80]).into_owned()),
        Just("👩‍👩‍👧‍👧".repeat(50)),
    ]
}

fn number() -> impl Strategy<Value = f64> {
    prop_oneof![0.0..200.0, Just(f64::NAN), Just(f64::INFINITY), Just(-1.0), Just(1e300), Just(0.0)]
}

prop_compose! {
    fn any_look()(
        names in proptest::collection::vec((name(), 1u32..40, 0u32..4, number(), number(), 0u32..6), 0..25),
        owners in (name(), name(), name(), name()),
        cpus in proptest::collection::vec((number(), proptest::option::of(number())), 0..70),
        interval_s in number(),
    ) -> Look {
        let mut look = look();
        let observation = &mut look.observation;
        observation.containers[0].name = owners.0;
        observation.containers[0].runtime = owners.1.clone();
        observation.pods[0].name = owners.1;
        observation.vms[0].name = owners.2;
        observation.groups[4].path = owners.3;
        observation.interval_s = interval_s;
        observation.host.per_cpu = cpus
            .into_iter()
            .enumerate()
            .map(|(cpu, (busy_pct, steal_pct))| evenkeel_base::observation::CpuView {
                cpu: cpu as u32, busy_pct, steal_pct, irq_pct: steal_pct,
            })
            .collect();
        for (at, (name, tgid, group, cpu_pct, wait, cpu)) in names.into_iter().enumerate() {
            let tid = 1000 + at as u32;
            let mut task = task(tgid, tid, &name, group + 1, cpu, cpu_pct, wait);
            // Indices that the observation has.
            match group {
                0 | 1 => (task.container, task.pod) = ((group == 1).then_some(0), Some(0)),
                2 => task.vm = Some(0),
                _ => task.group = (cpu != 5).then_some(4),
            }
            task.kernel_thread = cpu == 4;
            if cpu == 3 {
                (task.wait_pct, task.cpu) = (None, None);
            }
            observation.tasks.push(task);
        }
        look
    }
}

fn key() -> impl Strategy<Value = KeyCode> {
    let special = [
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Backspace,
        KeyCode::Delete,
        KeyCode::F(1),
        KeyCode::Null,
    ];
    prop_oneof![
        proptest::sample::select(special.to_vec()),
        proptest::sample::select("12345?whabrsz<>/+- jkgGqx".chars().map(KeyCode::Char).collect::<Vec<_>>()),
        any::<char>().prop_map(KeyCode::Char),
    ]
}

#[derive(Debug, Clone)]
enum Thrown {
    Keys(Vec<KeyCode>),
    Look(Box<Look>),
    Size(u16, u16),
    Words(String),
}

fn thrown() -> impl Strategy<Value = Thrown> {
    let size = || prop_oneof![Just(1u16), 1u16..12, 1u16..250];
    prop_oneof![
        4 => proptest::collection::vec(key(), 1..12).prop_map(Thrown::Keys),
        3 => any_look().prop_map(|look| Thrown::Look(Box::new(look))),
        2 => (size(), size()).prop_map(|(x, y)| Thrown::Size(x, y)),
        1 => name().prop_map(Thrown::Words),
    ]
}

fn change(words: &str) -> ChangeRecord {
    let words = || words.to_owned();
    ChangeRecord {
        task: None,
        comm: None,
        group: Some(words()),
        knob: words(),
        from: words(),
        to: words(),
        why: words(),
        effect: Some(words()),
        at_ns: u64::MAX,
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn whatever_comes_is_drawn_without_control_characters(
        events in proptest::collection::vec(thrown(), 1..14), ascii: bool
    ) {
        let mut model = Model::new(Skin { ascii, colour: true }, Duration::from_secs(1), Grouping::Owner);
        let mut size = (80, 24);
        for event in events {
            match event {
                Thrown::Keys(keys) => keys.into_iter().for_each(|key| press(&mut model, key)),
                Thrown::Look(look) => drop(model.update(Event::Looked(Ok(look)))),
                Thrown::Size(x, y) => {
                    size = (x, y);
                    model.update(Event::Size(x, y));
                }
                Thrown::Words(words) => {
                    let record = RunRecord {
                        scope: vec![words.clone()], settings: words.clone(), changes: vec![change(&words)],
                        ..RunRecord::default()
                    };
                    model.update(Event::Why(model.questions, Ok(words.clone())));
                    model.update(Event::Running(Ok(Running { headline: words.clone(), record: Some(Box::new(record)) })));
                    model.update(Event::Past(model.past.period(), Ok(Some(recorded(&words)))));
                    model.update(Event::Looked(Err(words)));
                }
            }
            // What is drawn may be of another size than what the model was told.
            for size in [size, (1, 1), (17, 5)] {
                for line in screen(&model, size) {
                    prop_assert!(!line.contains(char::is_control), "{line:?}");
                    prop_assert!(!ascii || line.is_ascii(), "{line:?}");
                }
            }
        }
    }
}
