//! What each key does.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use crate::census::Key;
use crate::draw;
use crate::errand::Errand;
use crate::list::List;
use crate::model::{MAX_INTERVAL, MIN_INTERVAL, Model, Over, Screen, Why};
use crate::tree::{Column, Grouping};

/// Characters of a search.
const LONGEST_SEARCH: usize = 100;

/// How far a key moves a cursor.
fn steps(key: KeyCode, page: usize) -> Option<isize> {
    let page = page.max(1) as isize;
    match key {
        KeyCode::Down | KeyCode::Char('j') => Some(1),
        KeyCode::Up | KeyCode::Char('k') => Some(-1),
        KeyCode::PageDown => Some(page),
        KeyCode::PageUp => Some(-page),
        // Further than any list is long.
        KeyCode::Home | KeyCode::Char('g') => Some(-(1 << 30)),
        KeyCode::End | KeyCode::Char('G') => Some(1 << 30),
        _ => None,
    }
}

impl Model {
    pub(crate) fn key(&mut self, key: KeyEvent) -> Vec<Errand> {
        if key.kind == KeyEventKind::Release {
            return Vec::new();
        }
        self.note = None;
        let control = key.modifiers.contains(KeyModifiers::CONTROL);
        if control && matches!(key.code, KeyCode::Char('c')) {
            return vec![Errand::Quit];
        }
        if control {
            return Vec::new();
        }
        if key.modifiers.contains(KeyModifiers::ALT) {
            // Esc and a letter soon after are the same bytes as that letter with Alt, which means nothing here.
            if !matches!(key.code, KeyCode::Char(_)) {
                return Vec::new();
            }
            let pressed = |code| KeyEvent::new(code, KeyModifiers::NONE);
            let mut errands = self.key(pressed(KeyCode::Esc));
            errands.extend(self.key(pressed(key.code)));
            return errands;
        }
        if self.typing.is_some() {
            self.type_key(key.code);
            return Vec::new();
        }
        if self.over.is_some() {
            return self.over_key(key.code);
        }
        match key.code {
            KeyCode::Char('q') => return vec![Errand::Quit],
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.over = Some(Over::Help(List::default())),
            KeyCode::Char(digit @ '1'..='5') => self.screen = Screen::ALL[digit as usize - '1' as usize],
            KeyCode::Tab => self.turn(1),
            KeyCode::BackTab => self.turn(Screen::ALL.len() - 1),
            KeyCode::Char(' ') => {
                self.paused = !self.paused;
                return vec![Errand::Pause(self.paused)];
            }
            KeyCode::Char('w') => return self.ask(),
            KeyCode::Char('+' | '=') if self.screen != Screen::Past => {
                return self.set_interval(self.interval * 2);
            }
            KeyCode::Char('-') if self.screen != Screen::Past => return self.set_interval(self.interval / 2),
            code => match self.screen {
                Screen::Tree => self.tree_key(code),
                Screen::Heat => self.heat_key(code),
                Screen::Cores => self.cores_key(code),
                Screen::Loop => {
                    if let Some(by) = steps(code, self.height()) {
                        self.running_list.scroll(by, self.running_lines.len(), self.height());
                    }
                    self.back(code);
                }
                Screen::Past => self.past_key(code),
            },
        }
        Vec::new()
    }

    fn turn(&mut self, by: usize) {
        let at = Screen::ALL.iter().position(|screen| *screen == self.screen).unwrap_or(0);
        self.screen = Screen::ALL[(at + by) % Screen::ALL.len()];
    }

    /// Esc leads back to the tree.
    fn back(&mut self, key: KeyCode) {
        if key == KeyCode::Esc {
            self.screen = Screen::Tree;
        }
    }

    fn set_interval(&mut self, interval: std::time::Duration) -> Vec<Errand> {
        self.interval = interval.clamp(MIN_INTERVAL, MAX_INTERVAL);
        vec![Errand::Interval(self.interval)]
    }

    fn type_key(&mut self, key: KeyCode) {
        let Some(text) = &mut self.typing else { return };
        match key {
            KeyCode::Char(c) if !c.is_control() && text.chars().count() < LONGEST_SEARCH => text.push(c),
            KeyCode::Backspace => {
                text.pop();
            }
            KeyCode::Enter => {
                self.typing = None;
                return;
            }
            KeyCode::Esc => {
                self.typing = None;
                self.order.search.clear();
                return;
            }
            _ => return,
        }
        self.order.search.clone_from(text);
        // What is found is looked at from its beginning.
        (self.follow, self.tree) = (None, List::default());
    }

    fn over_key(&mut self, key: KeyCode) -> Vec<Errand> {
        let height = self.height();
        match (&mut self.over, key) {
            (Some(Over::Why(why)), KeyCode::Char('w')) if why.answer.is_some() => {
                let target = why.target.clone();
                return self.ask_about(target);
            }
            (over, KeyCode::Esc | KeyCode::Char('q') | KeyCode::Enter | KeyCode::Char('?')) => {
                let asked = matches!(over, Some(Over::Why(why)) if why.answer.is_none());
                self.over = None;
                return if asked { vec![Errand::StopWhy] } else { Vec::new() };
            }
            (Some(Over::Help(list)), key) => {
                if let Some(by) = steps(key, height) {
                    list.scroll(by, draw::help::LINES.len(), height);
                }
            }
            (Some(Over::Why(why)), key) => {
                if let Some(by) = steps(key, height) {
                    why.list.scroll(by, why.lines.len(), height);
                }
            }
            (None, _) => {}
        }
        Vec::new()
    }

    /// Asks why the one that is chosen waits.
    fn ask(&mut self) -> Vec<Errand> {
        let Some(item) = self.chosen().and_then(|key| self.census.get(key)) else {
            self.note = Some("w asks about a line of the tree or the heat map".to_owned());
            return Vec::new();
        };
        match item.target.clone() {
            Some(target) => self.ask_about(target),
            None => {
                self.note = Some("why looks at no kernel threads and no CPUs".to_owned());
                Vec::new()
            }
        }
    }

    fn ask_about(&mut self, target: String) -> Vec<Errand> {
        self.questions += 1;
        let why = Why {
            number: self.questions,
            target: target.clone(),
            asked: self.now,
            answer: None,
            lines: Vec::new(),
            list: List::default(),
        };
        self.over = Some(Over::Why(why));
        vec![Errand::Why(self.questions, target)]
    }

    fn tree_key(&mut self, key: KeyCode) {
        if let Some(by) = steps(key, self.height()) {
            self.tree.go(by, self.lines.len());
            // The first line is nobody's: whoever comes there is shown.
            self.follow = if self.tree.at == 0 { None } else { self.chosen().cloned() };
            return;
        }
        match key {
            KeyCode::Esc => self.order.search.clear(),
            KeyCode::Char('/') => self.typing = Some(self.order.search.clone()),
            KeyCode::Char('a') => self.order.all = !self.order.all,
            KeyCode::Char('b') => {
                self.order.grouping = self.order.grouping.next();
                (self.follow, self.tree) = (None, List::default());
            }
            KeyCode::Char('r') => self.order.reversed = !self.order.reversed,
            KeyCode::Char('<') => self.sort(COLUMNS.len() - 1),
            KeyCode::Char('>' | 's') => self.sort(1),
            KeyCode::Char('z') => {
                self.order.folded = !self.order.folded;
                self.order.turned.clear();
            }
            KeyCode::Enter | KeyCode::Right | KeyCode::Left => self.fold(key),
            _ => {}
        }
    }

    fn sort(&mut self, by: usize) {
        let at = COLUMNS.iter().position(|column| *column == self.order.column).unwrap_or(0);
        self.order.column = COLUMNS[(at + by) % COLUMNS.len()];
        self.order.reversed = false;
    }

    fn fold(&mut self, how: KeyCode) {
        let Some(line) = self.lines.get(self.tree.at).cloned() else { return };
        let Some(item) = self.census.items.get(line.at) else { return };
        let turn = match how {
            KeyCode::Enter => line.open.is_some(),
            KeyCode::Right => line.open == Some(false),
            _ => line.open == Some(true),
        };
        if turn {
            // Those who are gone are not kept for ever.
            let census = &self.census;
            self.order.turned.retain(|key| census.by_key.contains_key(key));
            if !self.order.turned.remove(&item.key) {
                self.order.turned.insert(item.key.clone());
            }
            self.follow = Some(item.key.clone());
        } else if how == KeyCode::Left {
            // To what it is in.
            let above = self.lines[..self.tree.at].iter().rposition(|above| above.depth < line.depth);
            if let Some(above) = above {
                self.tree.at = above;
                self.follow = self.chosen().cloned();
            }
        }
    }

    fn heat_key(&mut self, key: KeyCode) {
        if let Some(by) = steps(key, self.height()) {
            self.heat_list.go(by, self.map.rows.len());
            return;
        }
        match key {
            KeyCode::Char('b') => {
                self.heat_lines = self.heat_lines.next();
                self.heat_list = List::default();
            }
            KeyCode::Right => self.heat_left += 1,
            KeyCode::Left => self.heat_left = self.heat_left.saturating_sub(1),
            _ => self.back(key),
        }
    }

    fn cores_key(&mut self, key: KeyCode) {
        if let Some(by) = steps(key, draw::cores::height(self)) {
            self.core_list.go(by, self.cores.len());
            return;
        }
        if key == KeyCode::Enter
            && let Some(core) = self.cores.get(self.core_list.at)
        {
            // Who is there: the tree by CPU.
            let key = Key::Cpu(core.cpu);
            if !self.order.is_open(&key) && !self.order.turned.remove(&key) {
                self.order.turned.insert(key.clone());
            }
            self.follow = Some(key);
            (self.screen, self.order.grouping) = (Screen::Tree, Grouping::Cpu);
            self.order.search.clear();
        }
        self.back(key);
    }

    fn past_key(&mut self, key: KeyCode) {
        let slots = draw::past::slots(self.size.0);
        let again = match key {
            KeyCode::Left => self.past.go(-1, slots),
            KeyCode::Right => self.past.go(1, slots),
            KeyCode::PageUp => self.past.go(-(slots as i64 / 4).max(1), slots),
            KeyCode::PageDown => self.past.go((slots as i64 / 4).max(1), slots),
            KeyCode::Char('+' | '=') => self.past.zoom(true),
            KeyCode::Char('-') => self.past.zoom(false),
            KeyCode::End => {
                self.past.now();
                true
            }
            _ => {
                self.back(key);
                false
            }
        };
        if again {
            self.read_past();
        }
    }
}

/// Columns in the order in which keys go through them.
pub(crate) const COLUMNS: [Column; 11] = [
    Column::Name,
    Column::Core,
    Column::Cpu,
    Column::Wait,
    Column::Throttled,
    Column::Voluntary,
    Column::Involuntary,
    Column::Class,
    Column::Network,
    Column::Limits,
    Column::Owner,
];

#[cfg(test)]
mod tests {
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
        model
            .chosen()
            .and_then(|key| model.census.get(key))
            .map_or_else(String::new, |item| item.name.clone())
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
}
