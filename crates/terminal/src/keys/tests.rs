use super::*;
use crate::errand::{Period, Running};
use crate::model::Event;
use crate::past::Recorded;
use crate::skin::Skin;
use crate::testing::look;
use std::time::Duration;

fn model() -> Model {
    let skin = Skin { ascii: false, colour: true };
    let mut model = Model::new(skin, Duration::from_secs(1), Grouping::Owner);
    model.update(Event::Looked(Ok(Box::new(look()))));
    model
}

fn press(model: &mut Model, keys: &[KeyCode]) -> Vec<Errand> {
    let key = |code: &KeyCode| Event::Key(KeyEvent::new(*code, KeyModifiers::NONE));
    keys.iter().flat_map(|code| model.update(key(code))).collect()
}

fn typed(model: &mut Model, text: &str) {
    text.chars().for_each(|c| assert!(press(model, &[KeyCode::Char(c)]).is_empty()));
}

fn chosen(model: &Model) -> String {
    model.chosen().and_then(|key| model.census.get(key)).map_or_else(String::new, |item| item.name.clone())
}

#[test]
fn folding_and_going_up() {
    let mut model = model();
    press(&mut model, &[KeyCode::Down, KeyCode::Down]);
    assert_eq!(chosen(&model), "100 nginx (2 threads)");
    press(&mut model, &[KeyCode::Right, KeyCode::Down]);
    assert_eq!(chosen(&model), "101 worker");
    press(&mut model, &[KeyCode::Left, KeyCode::Left, KeyCode::Left, KeyCode::Left]);
    assert_eq!(chosen(&model), "web (docker)");
    assert_eq!(model.lines.iter().filter(|line| line.depth > 1).count(), 0);
    press(&mut model, &[KeyCode::Char('z')]);
    assert_eq!(model.lines.len(), 3, "owners alone");
}

#[test]
fn the_cursor_stays_on_whom_it_was_put() {
    let mut model = model();
    press(&mut model, &[KeyCode::End]);
    assert_eq!(chosen(&model), "300 cron");
    let mut busier = look();
    busier.observation.tasks[4].cpu_pct = 95.0;
    model.update(Event::Looked(Ok(Box::new(busier))));
    assert_eq!((chosen(&model).as_str(), model.tree.at), ("300 cron", 1));
}

#[test]
fn a_search_is_typed_kept_and_cleared() {
    let mut model = model();
    typed(&mut model, "/cron");
    press(&mut model, &[KeyCode::Enter]);
    assert_eq!((model.lines.len(), model.typing.is_none()), (2, true));
    // A q within a search is a letter.
    typed(&mut model, "/q");
    press(&mut model, &[KeyCode::Esc]);
    assert_eq!(model.lines.len(), 7);
}

#[test]
fn escape_and_a_key_soon_after_are_two_keys() {
    let mut model = model();
    press(&mut model, &[KeyCode::Char('3'), KeyCode::Char('?')]);
    let alt = |c| Event::Key(KeyEvent::new(KeyCode::Char(c), KeyModifiers::ALT));
    assert!(model.update(alt('1')).is_empty());
    assert_eq!((model.over.is_none(), model.screen), (true, Screen::Tree));
    press(&mut model, &[KeyCode::Char('w')]);
    assert_eq!(model.update(alt('q')), [Errand::StopWhy, Errand::Quit]);
}

#[test]
fn a_question_is_asked_once_and_its_answer_kept_apart_from_older_ones() {
    let mut model = model();
    assert_eq!(press(&mut model, &[KeyCode::Char('w')]), [Errand::Why(1, "pod:shop/front".into())]);
    assert_eq!(press(&mut model, &[KeyCode::Esc]), [Errand::StopWhy]);
    press(&mut model, &[KeyCode::Down, KeyCode::Char('w')]);
    model.update(Event::Why(1, Ok("old".into())));
    assert!(matches!(&model.over, Some(Over::Why(why)) if why.answer.is_none()));
    model.update(Event::Why(2, Err("needs root".into())));
    assert!(matches!(&model.over, Some(Over::Why(why)) if why.answer == Some(Err("needs root".into()))));
    assert!(press(&mut model, &[KeyCode::Esc]).is_empty() && model.over.is_none());
}

#[test]
fn what_is_not_shown_is_not_read() {
    let mut model = model();
    assert_eq!(press(&mut model, &[KeyCode::Char('4')]), [Errand::ReadRunning]);
    assert!(model.update(Event::Tick(Duration::from_secs(1))).is_empty());
    let running = Running { headline: "No agent is running.".into(), record: None };
    model.update(Event::Running(Ok(running)));
    assert_eq!(model.update(Event::Tick(Duration::from_secs(3))), [Errand::ReadRunning]);
    let read = press(&mut model, &[KeyCode::Tab]);
    assert!(matches!(read[..], [Errand::ReadPast(Period { to_ns: None, .. })]), "{read:?}");
    assert!(press(&mut model, &[KeyCode::Char('1')]).is_empty());
    assert!(model.update(Event::Tick(Duration::from_secs(30))).is_empty());
}

#[test]
fn the_history_is_asked_for_once_at_a_time_and_only_what_is_wanted_is_shown() {
    const HOUR: u64 = 3_600_000_000_000;
    let answer = |period: Period| {
        let to_ns = period.to_ns.unwrap_or(1000 * HOUR);
        let (from_ns, moments) = (to_ns - period.span_ns, Vec::new());
        Event::Past(period, Ok(Some(Recorded { from_ns, to_ns, moments, damaged: 0, kept_ns: None })))
    };
    let asked = |errands: &[Errand]| match errands {
        [Errand::ReadPast(period)] => *period,
        other => panic!("{other:?}"),
    };
    let shown = |model: &Model| model.past.known().map(|known| (known.from_ns, known.to_ns)).unwrap();
    let mut model = model();
    let now = asked(&press(&mut model, &[KeyCode::Char('5')]));
    model.update(answer(now));
    // Beyond the edge, and further before the answer has come.
    let first = asked(&press(&mut model, &[KeyCode::PageUp; 9]));
    let last = asked(&model.update(answer(first)));
    assert!(last.to_ns < first.to_ns);
    assert_eq!(shown(&model).1, 1000 * HOUR);
    assert!(model.update(answer(last)).is_empty());
    assert_eq!(Some(shown(&model).1), last.to_ns);
    // Back to now while an older time is read.
    let older = asked(&press(&mut model, &[KeyCode::PageUp; 9]));
    assert!(press(&mut model, &[KeyCode::End]).is_empty());
    assert_eq!(asked(&model.update(answer(older))), now);
    model.update(answer(now));
    assert_eq!(shown(&model).1, 1000 * HOUR);
    // A longer time, and the cursor moves before it has come.
    let longer = asked(&press(&mut model, &[KeyCode::Char('+'), KeyCode::Left]));
    let chosen = asked(&model.update(answer(longer)));
    assert!(model.update(answer(chosen)).is_empty());
    let (from_ns, to_ns) = shown(&model);
    assert_eq!(to_ns - from_ns, 6 * HOUR);
    assert!((from_ns..=to_ns).contains(&model.past.cursor().unwrap()));
}

#[test]
fn a_core_leads_to_who_is_there() {
    let mut model = model();
    // Owners are folded, CPUs with them.
    press(&mut model, &[KeyCode::Char('z')]);
    press(&mut model, &[KeyCode::Char('3'), KeyCode::Down, KeyCode::Enter]);
    assert_eq!((model.screen, chosen(&model).as_str()), (Screen::Tree, "CPU 1*"));
    assert_eq!(model.lines[model.tree.at].open, Some(true));
    press(&mut model, &[KeyCode::Char('w')]);
    assert!(model.note.is_some_and(|note| note.contains("no CPUs")));
}

#[test]
fn the_interval_has_bounds_and_space_stops() {
    let mut model = model();
    for _ in 0..20 {
        press(&mut model, &[KeyCode::Char('+')]);
    }
    assert_eq!(model.interval, MAX_INTERVAL);
    for _ in 0..20 {
        press(&mut model, &[KeyCode::Char('-')]);
    }
    assert_eq!(press(&mut model, &[KeyCode::Char('-')]), [Errand::Interval(MIN_INTERVAL)]);
    assert_eq!(press(&mut model, &[KeyCode::Char(' ')]), [Errand::Pause(true)]);
    assert_eq!(press(&mut model, &[KeyCode::Char('q')]), [Errand::Quit]);
}

#[test]
fn each_column_is_reached() {
    let mut model = model();
    let mut seen = Vec::new();
    for _ in COLUMNS {
        press(&mut model, &[KeyCode::Char('>')]);
        seen.push(model.order.column);
    }
    assert!(COLUMNS.iter().all(|column| seen.contains(column)));
    let before = model.lines.clone();
    press(&mut model, &[KeyCode::Char('r')]);
    assert_ne!(model.lines, before);
}
