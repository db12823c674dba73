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
                self.note = Some(match item.key {
                    Key::Service(_) => "cgroup:/ is the whole host: choose a process of this line".to_owned(),
                    _ => "why looks at no kernel threads and no CPUs".to_owned(),
                });
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
mod tests;
