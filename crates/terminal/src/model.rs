//! The state of the screens. What events do to it: [`crate::update`]; what keys do: [`crate::keys`].

use std::time::Duration;

use ratatui::crossterm::event::KeyEvent;

use crate::census::{Census, Key};
use crate::cores::Core;
use crate::errand::{Look, Period, Running};
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

#[derive(Debug)]
pub enum Event {
    Key(KeyEvent),
    /// The terminal has this many columns and lines.
    Size(u16, u16),
    /// The host was looked at, or why it could not be.
    Looked(Result<Box<Look>, String>),
    Why(u64, Result<String, String>),
    Running(Result<Running, String>),
    Past(Period, Result<Option<Recorded>, String>),
    /// The terminal can no longer be read.
    Closed,
    /// Time since the start.
    Tick(Duration),
}

evenkeel_base::named! {
/// In the order of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Screen {
    #[default]
    Tree = "tree",
    Heat = "heat",
    Cores = "cores",
    Loop = "loop",
    Past = "history",
}
}

/// What lies over a screen.
#[derive(Debug, Clone, PartialEq)]
pub enum Over {
    Help(List),
    Why(Why),
}

/// A question and its answer.
#[derive(Debug, Clone, PartialEq)]
pub struct Why {
    pub number: u64,
    /// Whom it is about: as `why` has it.
    pub target: String,
    /// When it was asked.
    pub asked: Duration,
    pub answer: Option<Result<String, String>>,
    pub lines: Vec<String>,
    pub list: List,
}

#[derive(Debug, Default)]
pub struct Model {
    /// What the terminal can show.
    pub skin: Skin,
    /// Time between two looks.
    pub interval: Duration,
    pub paused: bool,
    /// Columns and lines.
    pub size: (u16, u16),
    pub screen: Screen,
    pub over: Option<Over>,
    pub look: Option<Box<Look>>,
    /// Why nothing is seen any more.
    pub failed: Option<String>,
    /// What was asked for and cannot be, until the next key.
    pub note: Option<String>,
    /// A search that is being typed.
    pub typing: Option<String>,
    pub census: Census,
    /// The last minute of everybody.
    pub trends: Trends,
    pub order: Order,
    pub lines: Vec<Line>,
    /// Where one is in it.
    pub tree: List,
    /// Who is chosen: the cursor goes where he goes.
    pub follow: Option<Key>,
    pub heat: Heat,
    /// What the heat map's lines are.
    pub heat_lines: heat::Lines,
    pub map: Map,
    /// Where one is in it.
    pub heat_list: List,
    /// The first CPU shown.
    pub heat_left: usize,
    pub cores: Vec<Core>,
    /// Where one is among them.
    pub core_list: List,
    pub running: Option<Result<Running, String>>,
    pub running_lines: Vec<String>,
    pub running_list: List,
    pub past: Past,
    /// Time since the start.
    pub now: Duration,
    /// When the loop's record was asked for; `None`: it is to be.
    pub(crate) running_asked: Option<Duration>,
    /// Whether its answer is still to come.
    pub(crate) running_awaited: bool,
    /// When the history was asked for.
    pub(crate) past_asked: Option<Duration>,
    /// Whether its answer is still to come.
    pub(crate) past_awaited: bool,
    pub(crate) questions: u64,
}

impl Model {
    pub fn new(skin: Skin, interval: Duration, grouping: Grouping) -> Self {
        let order = Order { grouping, ..Order::default() };
        Self { skin, interval, size: (80, 24), order, ..Self::default() }
    }

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
