//! The state of the screens: events in, errands out. Nothing here reads or writes.

use std::time::Duration;

use ratatui::crossterm::event::KeyEvent;

use crate::census::{Census, Key};
use crate::cores::{Core, cores};
use crate::draw::{self, running, why};
use crate::errand::{Errand, Look, Running};
use crate::heat::{self, Heat, Map};
use crate::list::List;
use crate::past::{Past, Recorded};
use crate::skin::Skin;
use crate::tree::{Grouping, Line, Order};
use crate::trend::Trends;

/// Shortest time between two looks.
pub const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// Longest that a key sets.
pub const MAX_INTERVAL: Duration = Duration::from_secs(60);
/// How long `why` looks.
pub const WHY_TIME: Duration = Duration::from_secs(5);
/// How often a loop's record is read while it is shown.
const RUNNING_AGE: Duration = Duration::from_secs(2);
/// How often the history is read while it is shown and no one looks back.
const PAST_AGE: Duration = Duration::from_secs(5);
/// Larger terminals are drawn as far as this.
const LARGEST: u16 = 2000;

/// Something that happened.
#[derive(Debug)]
pub enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The terminal has this many columns and lines.
    Size(u16, u16),
    /// The host was looked at, or why it could not be.
    Looked(Result<Box<Look>, String>),
    /// The answer to [`Errand::Why`].
    Why(u64, Result<String, String>),
    /// The answer to [`Errand::ReadRunning`].
    Running(Result<Running, String>),
    /// The answer to [`Errand::ReadPast`].
    Past(Result<Option<Recorded>, String>),
    /// The terminal can no longer be read.
    Closed,
    /// Time since the start.
    Tick(Duration),
}

/// A screen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Screen {
    /// Who is there.
    #[default]
    Tree,
    /// Cores × tasks.
    Heat,
    /// The CPUs.
    Cores,
    /// What the loop does.
    Loop,
    /// The history.
    Past,
}

impl Screen {
    /// In the order of their keys.
    pub const ALL: [Self; 5] = [Self::Tree, Self::Heat, Self::Cores, Self::Loop, Self::Past];

    /// For the title.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tree => "tree",
            Self::Heat => "heat",
            Self::Cores => "cores",
            Self::Loop => "loop",
            Self::Past => "history",
        }
    }
}

/// What lies over a screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Over {
    /// The keys.
    Help(List),
    /// Why somebody waits.
    Why(Why),
}

/// A question and its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    /// Number of the question.
    pub number: u64,
    /// Whom it is about: as `why` has it.
    pub target: String,
    /// When it was asked.
    pub asked: Duration,
    /// What came of it.
    pub answer: Option<Result<String, String>>,
    /// The answer in lines.
    pub lines: Vec<String>,
    /// What is shown of them.
    pub list: List,
}

/// Everything.
#[derive(Debug)]
pub struct Model {
    /// What the terminal can show.
    pub skin: Skin,
    /// Time between two looks.
    pub interval: Duration,
    /// No one looks.
    pub paused: bool,
    /// Columns and lines.
    pub size: (u16, u16),
    /// What is shown.
    pub screen: Screen,
    /// What lies over it.
    pub over: Option<Over>,
    /// What was seen last.
    pub look: Option<Box<Look>>,
    /// Why nothing is seen any more.
    pub failed: Option<String>,
    /// What was asked for and cannot be, until the next key.
    pub note: Option<String>,
    /// A search that is being typed.
    pub typing: Option<String>,
    /// Who is there.
    pub census: Census,
    /// The last minute of everybody.
    pub trends: Trends,
    /// How the tree is ordered.
    pub order: Order,
    /// The tree's lines.
    pub lines: Vec<Line>,
    /// Where one is in it.
    pub tree: List,
    /// Who is chosen: the cursor goes where he goes.
    pub follow: Option<Key>,
    /// Who ran where.
    pub heat: Heat,
    /// What the heat map's lines are.
    pub heat_lines: heat::Lines,
    /// The heat map.
    pub map: Map,
    /// Where one is in it.
    pub heat_list: List,
    /// The first CPU shown.
    pub heat_left: usize,
    /// The CPUs.
    pub cores: Vec<Core>,
    /// Where one is among them.
    pub core_list: List,
    /// What the loop does.
    pub running: Option<Result<Running, String>>,
    /// The same in lines.
    pub running_lines: Vec<String>,
    /// What is shown of them.
    pub running_list: List,
    /// The history.
    pub past: Past,
    /// Time since the start.
    pub now: Duration,
    /// When the loop's record was asked for; `None`: it is to be.
    running_asked: Option<Duration>,
    /// Whether its answer is still to come.
    running_awaited: bool,
    /// When the history was asked for.
    past_asked: Option<Duration>,
    /// Whether its answer is still to come.
    past_awaited: bool,
    /// Questions asked so far.
    pub(crate) questions: u64,
}

impl Model {
    /// A first state.
    pub fn new(skin: Skin, interval: Duration, grouping: Grouping) -> Self {
        Self {
            skin,
            interval,
            paused: false,
            size: (80, 24),
            screen: Screen::default(),
            over: None,
            look: None,
            failed: None,
            note: None,
            typing: None,
            census: Census::default(),
            trends: Trends::default(),
            order: Order { grouping, ..Order::default() },
            lines: Vec::new(),
            tree: List::default(),
            follow: None,
            heat: Heat::default(),
            heat_lines: heat::Lines::default(),
            map: Map::default(),
            heat_list: List::default(),
            heat_left: 0,
            cores: Vec::new(),
            core_list: List::default(),
            running: None,
            running_lines: Vec::new(),
            running_list: List::default(),
            past: Past::default(),
            now: Duration::ZERO,
            running_asked: None,
            running_awaited: false,
            past_asked: None,
            past_awaited: false,
            questions: 0,
        }
    }

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
            Event::Past(recorded) => {
                self.past_awaited = false;
                // Another time may have been chosen meanwhile: its answer comes.
                let span = |recorded: &Recorded| recorded.to_ns.saturating_sub(recorded.from_ns);
                if !matches!(&recorded, Ok(Some(recorded)) if span(recorded) != self.past.span_ns()) {
                    self.past.take(recorded);
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
                if self.past_asked.is_none()
                    || (self.past.follows()
                        && !(self.paused || self.past_awaited)
                        && due(self.past_asked, PAST_AGE)) =>
            {
                (self.past_asked, self.past_awaited) = (Some(self.now), true);
                Some(self.past.errand())
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

    /// Who is chosen.
    pub fn chosen(&self) -> Option<&Key> {
        match self.screen {
            Screen::Tree => {
                let line = self.lines.get(self.tree.at)?;
                self.census.items.get(line.at).map(|item| &item.key)
            }
            Screen::Heat => self.map.rows.get(self.heat_list.at).map(|row| &row.key),
            _ => None,
        }
    }
}
