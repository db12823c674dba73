//! The loop around the screens: keys, and threads that look at the host, ask why, read the history.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use evenkeel_base::Observation;
use evenkeel_linux::Root;
use evenkeel_linux::sys::wall_ns;
use evenkeel_observe::{Detail, NetworkCounters, ObserveError, Observer, ObserverOptions, Sampling, Select};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event;

use crate::draw::draw;
use crate::errand::{Errand, Host, Look, read_past};
use crate::model::{Event, Model, Over, WHY_TIME};
use crate::skin::Skin;
use crate::tree::Grouping;

/// How often it is looked whether a signal came or the terminal has another size.
const TICK: Duration = Duration::from_millis(100);
/// The first look comes soon: nobody likes an empty screen.
const FIRST: Duration = Duration::from_millis(300);
/// What is taken before the screen is drawn again.
const AT_ONCE: usize = 200;

#[derive(Debug, Clone)]
pub struct Options {
    /// Time between two looks.
    pub interval: Duration,
    pub grouping: Grouping,
    pub sampling: Sampling,
    /// Where the history is.
    pub state_dir: PathBuf,
    /// What the terminal can show.
    pub skin: Skin,
    /// Ends it when set: a signal came.
    pub stop: &'static AtomicBool,
}

/// Why there is nothing to see.
#[derive(Debug, thiserror::Error)]
pub enum TerminalError {
    #[error("the terminal: {0}")]
    Terminal(#[from] std::io::Error),
    /// The host cannot be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    #[error("no thread can be started: {0}")]
    Thread(std::io::Error),
}

/// Shows the screens until the user ends them.
pub fn run(options: Options, host: Arc<dyn Host>) -> Result<(), TerminalError> {
    let observing =
        ObserverOptions { sampling: options.sampling, switches: Select::All, ..ObserverOptions::default() };
    let observer = Observer::new(&Root::host(), observing)?;
    let (events, answers) = channel();
    let (orders, ordered) = channel();
    let looks = events.clone();
    let interval = options.interval;
    spawn("look", move || watch(observer, interval, &ordered, &looks))?;
    let mut app = App {
        model: Model::new(options.skin, options.interval, options.grouping),
        began: Instant::now(),
        options,
        host,
        events,
        answers,
        orders,
        asked: None,
    };
    // Puts the terminal back on a panic, too.
    let mut terminal = ratatui::try_init()?;
    // In a thread of its own: reading a terminal that was closed may never return.
    let keys = app.events.clone();
    spawn("keys", move || read_keys(&keys))?;
    let ended = app.show(&mut terminal);
    // A terminal that was closed cannot be put back, and needs not be.
    let _ = ratatui::try_restore();
    app.stop_asking();
    ended
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), TerminalError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(work);
    spawned.map(drop).map_err(TerminalError::Thread)
}

struct App {
    model: Model,
    began: Instant,
    options: Options,
    host: Arc<dyn Host>,
    events: Sender<Event>,
    answers: Receiver<Event>,
    orders: Sender<Order>,
    /// Ends the question that is being looked into.
    asked: Option<Arc<AtomicBool>>,
}

/// For the thread that looks.
enum Order {
    Interval(Duration),
    Pause(bool),
}

impl App {
    fn show(&mut self, terminal: &mut DefaultTerminal) -> Result<(), TerminalError> {
        let mut stale = true;
        while !self.options.stop.load(Ordering::Relaxed) {
            let size = terminal.size()?;
            if (size.width, size.height) != self.model.size {
                stale = true;
                if self.take(Event::Size(size.width, size.height))? {
                    return Ok(());
                }
            }
            if stale {
                terminal.draw(|frame| draw(&self.model, frame.buffer_mut()))?;
            }
            // A question that goes on shows how far it is.
            stale = matches!(&self.model.over, Some(Over::Why(why)) if why.answer.is_none());
            let mut patience = TICK;
            for _ in 0..AT_ONCE {
                let Ok(event) = self.answers.recv_timeout(patience) else { break };
                patience = Duration::ZERO;
                stale = true;
                if self.take(event)? {
                    return Ok(());
                }
            }
            self.take(Event::Tick(self.began.elapsed()))?;
        }
        Ok(())
    }

    /// Tells the model and does what it asks for; `true` ends.
    fn take(&mut self, event: Event) -> Result<bool, TerminalError> {
        for errand in self.model.update(event) {
            match errand {
                Errand::Quit => return Ok(true),
                Errand::Interval(interval) => self.order(Order::Interval(interval)),
                Errand::Pause(paused) => self.order(Order::Pause(paused)),
                Errand::Why(number, target) => self.ask(number, target)?,
                Errand::StopWhy => self.stop_asking(),
                Errand::ReadRunning => {
                    let (host, events) = (self.host.clone(), self.events.clone());
                    spawn("status", move || {
                        let _ = events.send(Event::Running(host.running()));
                    })?;
                }
                Errand::ReadPast(period) => {
                    let (events, dir) = (self.events.clone(), self.options.state_dir.clone());
                    spawn("history", move || {
                        let read = read_past(&dir, period.span_ns, period.to_ns.unwrap_or_else(wall_ns));
                        let _ = events.send(Event::Past(period, read.map_err(|error| error.to_string())));
                    })?;
                }
            }
        }
        Ok(false)
    }

    fn order(&self, order: Order) {
        // A thread that is gone has said why.
        let _ = self.orders.send(order);
    }

    fn ask(&mut self, number: u64, target: String) -> Result<(), TerminalError> {
        self.stop_asking();
        let stop = Arc::new(AtomicBool::new(false));
        self.asked = Some(stop.clone());
        let (host, events, width) = (self.host.clone(), self.events.clone(), self.model.size.0);
        spawn("why", move || {
            let answer = host.why(&target, WHY_TIME, width, &stop);
            let _ = events.send(Event::Why(number, answer));
        })
    }

    fn stop_asking(&mut self) {
        if let Some(asked) = self.asked.take() {
            asked.store(true, Ordering::Relaxed);
        }
    }
}

/// Passes keys on, until the terminal is closed.
fn read_keys(keys: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(event::Event::Key(key)) => Event::Key(key),
            Ok(_) => continue,
            Err(_) => Event::Closed,
        };
        let closed = matches!(event, Event::Closed);
        if keys.send(event).is_err() || closed {
            return;
        }
    }
}

/// Looks at the host, again and again.
fn watch(mut observer: Observer, mut interval: Duration, orders: &Receiver<Order>, looks: &Sender<Event>) {
    let mut paused = false;
    let mut before = None;
    let mut next = Instant::now();
    loop {
        let wait =
            if paused { Duration::from_secs(3600) } else { next.saturating_duration_since(Instant::now()) };
        match orders.recv_timeout(wait) {
            Ok(Order::Interval(new)) => {
                interval = new;
                next = next.min(Instant::now() + interval);
                continue;
            }
            Ok(Order::Pause(stop)) => {
                paused = stop;
                next = Instant::now();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if paused => continue,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let looked = look(&mut observer, &mut before);
        let first = matches!(looked, Ok(None));
        let event = match looked {
            Ok(None) => None,
            Ok(Some(look)) => Some(Ok(Box::new(look))),
            Err(error) => Some(Err(error.to_string())),
        };
        if let Some(event) = event
            && looks.send(Event::Looked(event)).is_err()
        {
            return;
        }
        next = Instant::now() + if first { interval.min(FIRST) } else { interval };
    }
}

/// What happened since the last look; `None` at the first.
fn look(
    observer: &mut Observer,
    before: &mut Option<(evenkeel_base::Sample, NetworkCounters)>,
) -> Result<Option<Look>, ObserveError> {
    let after = observer.sample()?;
    let read = |observation: &Observation| NetworkCounters::read(&Root::host(), observation);
    let Some((last, networks)) = before.take() else {
        let begin = observer.observe(&after, &after, &Detail::None)?;
        *before = Some((after, read(&begin)));
        return Ok(None);
    };
    let observation = observer.observe(&last, &after, &Detail::All)?;
    let counters = read(&observation);
    let networks = counters.since(&networks);
    *before = Some((after, counters));
    let own = std::process::id();
    let ours = observation.tasks.iter().filter(|task| task.id.tgid == own);
    let own_pct = ours.map(|task| task.cpu_pct).reduce(|a, b| a + b);
    Ok(Some(Look { observation, networks, own_pct }))
}
