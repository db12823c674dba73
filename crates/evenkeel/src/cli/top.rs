//! `evenkeel top`: `ps`, live.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow};
use evenkeel_base::Observation;
use evenkeel_linux::Root;
use evenkeel_observe::{Detail, Observer, ObserverOptions, Sampling, Select};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::Paragraph;
use ratatui::{DefaultTerminal, Frame};

use super::ps::{By, MIN_INTERVAL, frame};
use super::{Failure, Global, Outcome};

/// Show who uses the CPU and who waits for it, live.
///
/// Keys: b or Tab another grouping (process, container, pod, vm, cpu, task), a idle ones too, arrows and Page keys scroll,
/// + and - the interval, space stops and goes on, q ends. Percent is of ONE CPU; `?` is unknown.
///
/// Example: evenkeel top --by container --interval 2s
#[derive(Debug, clap::Args)]
pub struct Args {
    /// What a line is.
    #[arg(long, value_enum, default_value_t = By::Process)]
    by: By,
    /// Time between two looks.
    #[arg(long, default_value = "1s", value_parser = super::duration)]
    interval: Duration,
}

/// Longest interval that `+` sets.
const MAX_INTERVAL: Duration = Duration::from_secs(60);
const KEYS: &str = " q end  b grouping  a idle too  +/- interval  space pause  arrows scroll ";

pub fn run(global: &Global, args: Args) -> Outcome {
    if args.interval < MIN_INTERVAL {
        return Err(Failure::Usage(anyhow!("--interval {:?}: at least {MIN_INTERVAL:?}", args.interval)));
    }
    if global.root.is_some() {
        return Err(Failure::Usage(anyhow!(
            "top shows this host as it runs; `evenkeel ps --root` shows a tree"
        )));
    }
    if !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        return Err(Failure::Usage(anyhow!(
            "top needs a terminal; `evenkeel ps` prints one shot, also as JSON"
        )));
    }
    let mut top =
        Top::new(args, global.sampling.unwrap_or_default()).map_err(|error| Failure::Cannot(error.into()))?;
    // Puts the terminal back on a panic, too.
    let mut terminal = ratatui::try_init().context("cannot take over the terminal")?;
    let ended = top.show(&mut terminal);
    // A terminal that was closed cannot be put back, and needs not be.
    let _ = ratatui::try_restore();
    ended.map_err(Failure::Cannot).map(|()| 0)
}

/// What the screen shows and how.
struct Top {
    observer: Observer,
    before: evenkeel_base::Sample,
    observation: Option<Observation>,
    by: By,
    all: bool,
    paused: bool,
    interval: Duration,
    scroll: u16,
    lines: u16,
}

impl Top {
    fn new(args: Args, sampling: Sampling) -> Result<Self, evenkeel_observe::ObserveError> {
        let options = ObserverOptions { sampling, switches: Select::All, ..ObserverOptions::default() };
        let mut observer = Observer::new(&Root::host(), options)?;
        let before = observer.sample()?;
        Ok(Self {
            observer,
            before,
            observation: None,
            by: args.by,
            all: false,
            paused: false,
            interval: args.interval,
            scroll: 0,
            lines: 0,
        })
    }

    fn show(&mut self, terminal: &mut DefaultTerminal) -> anyhow::Result<()> {
        // The first look comes soon: nobody likes an empty screen.
        let mut next = Instant::now() + self.interval.min(Duration::from_millis(300));
        loop {
            terminal.draw(|frame| self.draw(frame)).context("cannot draw")?;
            let wait = next.saturating_duration_since(Instant::now());
            if event::poll(wait).context("cannot read the terminal")? {
                let event = event::read().context("cannot read the terminal")?;
                if let Event::Key(key) = event
                    && key.kind != KeyEventKind::Release
                    && self.key(key)
                {
                    return Ok(());
                }
            }
            if Instant::now() >= next {
                if !self.paused {
                    self.look()?;
                }
                next = Instant::now() + self.interval;
            }
        }
    }

    fn look(&mut self) -> Result<(), evenkeel_observe::ObserveError> {
        let after = self.observer.sample()?;
        self.observation = Some(self.observer.observe(&self.before, &after, &Detail::All)?);
        self.before = after;
        Ok(())
    }

    /// Takes a key; `true` ends.
    fn key(&mut self, key: KeyEvent) -> bool {
        let page = 10;
        match key.code {
            KeyCode::Char('q') | KeyCode::Esc => return true,
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
            KeyCode::Char('b') | KeyCode::Tab => {
                self.by = self.by.next();
                self.scroll = 0;
            }
            KeyCode::Char('a') => self.all = !self.all,
            KeyCode::Char(' ') => self.paused = !self.paused,
            KeyCode::Char('+') => self.interval = (self.interval * 2).min(MAX_INTERVAL),
            KeyCode::Char('-') => self.interval = (self.interval / 2).max(MIN_INTERVAL),
            KeyCode::Down | KeyCode::Char('j') => self.scroll = self.scroll.saturating_add(1),
            KeyCode::Up | KeyCode::Char('k') => self.scroll = self.scroll.saturating_sub(1),
            KeyCode::PageDown => self.scroll = self.scroll.saturating_add(page),
            KeyCode::PageUp => self.scroll = self.scroll.saturating_sub(page),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        self.scroll = self.scroll.min(self.lines.saturating_sub(1));
        false
    }

    fn draw(&mut self, screen: &mut Frame<'_>) {
        let [title, body, keys] =
            Layout::vertical([Constraint::Length(1), Constraint::Min(1), Constraint::Length(1)])
                .areas(screen.area());
        let reverse = Style::new().add_modifier(Modifier::REVERSED);
        let paused = if self.paused { ", stopped" } else { "" };
        let name = clap::ValueEnum::to_possible_value(&self.by);
        let name = name.as_ref().map_or("", |name| name.get_name());
        let heading = format!(" evenkeel top: by {name}, every {:?}{paused} ", self.interval);
        screen.render_widget(Paragraph::new(Line::styled(heading, reverse)), title);
        let text = match &self.observation {
            Some(observation) => frame(observation, &self.observer, self.by, self.all),
            None => "looking …".to_owned(),
        };
        self.lines = u16::try_from(text.lines().count()).unwrap_or(u16::MAX);
        screen.render_widget(Paragraph::new(Text::raw(text)).scroll((self.scroll, 0)), body);
        screen.render_widget(Paragraph::new(Line::styled(KEYS, reverse)), keys);
    }
}
