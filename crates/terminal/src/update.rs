//! What events do to the state of the screens: events in, errands out. Nothing here reads or writes.

use std::time::Duration;

use crate::census::Census;
use crate::cores::cores;
use crate::draw::{self, running, why};
use crate::errand::{Errand, Look};
use crate::model::{Event, Model, Over, Screen};
use crate::tree::Line;

/// How often a loop's record is read while it is shown.
const RUNNING_AGE: Duration = Duration::from_secs(2);
/// How often the history is read while it is shown and no one looks back.
const PAST_AGE: Duration = Duration::from_secs(5);
/// Larger terminals are drawn as far as this.
const LARGEST: u16 = 2000;

impl Model {
    /// Takes what happened; returns what is to be done.
    pub fn update(&mut self, event: Event) -> Vec<Errand> {
        let mut errands = Vec::new();
        let moves_nothing = matches!(event, Event::Tick(_));
        match event {
            Event::Key(key) => errands = self.key(key),
            Event::Size(columns, lines) => {
                self.size = (columns.min(LARGEST), lines.min(LARGEST));
                self.write_lines();
            }
            Event::Looked(Ok(look)) => self.see(look),
            Event::Looked(Err(why)) => self.failed = Some(why),
            Event::Why(number, answer) => {
                if let Some(Over::Why(why)) = &mut self.over
                    && why.number == number
                {
                    why.answer = Some(answer);
                }
                self.write_lines();
            }
            Event::Running(running) => {
                (self.running, self.running_awaited) = (Some(running), false);
                self.write_lines();
            }
            Event::Past(period, recorded) => {
                self.past_awaited = false;
                if period == self.past.period() {
                    self.past.take(recorded);
                } else {
                    // Another time was chosen meanwhile.
                    self.read_past();
                }
            }
            Event::Closed => errands.push(Errand::Quit),
            Event::Tick(now) => self.now = now,
        }
        if !moves_nothing {
            self.arrange();
        }
        errands.extend(self.wanted());
        errands
    }

    fn see(&mut self, look: Box<Look>) {
        let observation = &look.observation;
        self.census = Census::new(observation);
        self.census.add_networks(&look.networks);
        self.trends.observe(&self.census, observation.interval_s);
        let busy = observation.host.per_cpu.iter().map(|cpu| (cpu.cpu, cpu.busy_pct));
        self.heat.observe(&self.census, busy, observation.interval_s);
        self.cores = cores(observation, &self.census);
        (self.look, self.failed) = (Some(look), None);
    }

    /// What is read only while it is shown.
    fn wanted(&mut self) -> Option<Errand> {
        let due = |asked: Option<Duration>, age| asked.is_none_or(|asked| self.now >= asked + age);
        match self.screen {
            Screen::Loop if !self.running_awaited && due(self.running_asked, RUNNING_AGE) => {
                (self.running_asked, self.running_awaited) = (Some(self.now), true);
                Some(Errand::ReadRunning)
            }
            Screen::Past
                if !self.past_awaited
                    && (self.past_asked.is_none()
                        || (self.past.follows() && !self.paused && due(self.past_asked, PAST_AGE))) =>
            {
                (self.past_asked, self.past_awaited) = (Some(self.now), true);
                Some(Errand::ReadPast(self.past.period()))
            }
            _ => None,
        }
    }

    /// The history is to be read again.
    pub(crate) fn read_past(&mut self) {
        self.past_asked = None;
    }

    /// Texts are broken into lines for the width there is.
    fn write_lines(&mut self) {
        let width = usize::from(self.size.0);
        if let Some(Over::Why(why)) = &mut self.over {
            why.lines = why::lines(why, width);
        }
        self.running_lines = running::lines(self.running.as_ref(), width);
    }

    /// Lines in their order, and the cursors among them.
    pub(crate) fn arrange(&mut self) {
        if self.screen == Screen::Tree {
            self.lines = self.order.lines(&self.census);
            let keys = |line: &Line| self.census.items.get(line.at).map(|item| &item.key);
            if let Some(followed) = &self.follow
                && let Some(at) = self.lines.iter().position(|line| keys(line) == Some(followed))
            {
                self.tree.at = at;
            }
            self.tree.keep(self.lines.len(), self.height());
        }
        if self.screen == Screen::Heat {
            self.map = self.heat.map(&self.census, self.heat_lines);
            self.heat_list.keep(self.map.rows.len(), self.height());
            let shown = draw::heat::columns(self);
            self.heat_left = self.heat_left.min(self.map.cpus.len().saturating_sub(shown));
        }
        self.core_list.keep(self.cores.len(), draw::cores::height(self));
        let height = self.height();
        self.running_list.scroll(0, self.running_lines.len(), height);
        match &mut self.over {
            Some(Over::Help(list)) => list.scroll(0, draw::help::LINES.len(), height),
            Some(Over::Why(why)) => why.list.scroll(0, why.lines.len(), height),
            None => {}
        }
    }

    /// Lines of a list that the screen has room for.
    pub fn height(&self) -> usize {
        let page = draw::Page::of(self.size.1);
        let around = match (self.screen, &self.over) {
            (_, Some(_)) | (Screen::Loop | Screen::Past, None) => 0,
            (Screen::Tree | Screen::Cores, None) => 1,
            (Screen::Heat, None) => draw::heat::around(self),
        };
        usize::from(page.height).saturating_sub(around).max(1)
    }
}
