//! Tells systemd how the service is: ready, alive, what it does, ending (sd_notify(3)). Without `NOTIFY_SOCKET`, as on a
//! terminal, nothing happens. No message waits: a manager that does not read costs the message, not the work.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use evenkeel_agent::{Event, Watcher};

/// Least time between two messages about what the service does.
const STATUS_EVERY: Duration = Duration::from_secs(5);
/// Longest status sent, characters.
const LONGEST_STATUS: usize = 200;

/// The service manager, if one asked to be told.
#[derive(Debug, Default)]
pub struct Notifier {
    link: Option<Link>,
}

#[derive(Debug)]
struct Link {
    socket: UnixDatagram,
    address: SocketAddr,
    /// Time between two signs of life.
    watchdog: Option<Duration>,
    last: Mutex<Last>,
}

#[derive(Debug, Default)]
struct Last {
    alive: Option<Instant>,
    status: Option<Instant>,
}

impl Notifier {
    /// As the environment says: `NOTIFY_SOCKET`, `WATCHDOG_USEC`, `WATCHDOG_PID`.
    pub fn from_env() -> Self {
        let variable = |name: &str| std::env::var_os(name);
        match Link::open(variable, std::process::id()) {
            Ok(link) => Self { link },
            Err(error) => {
                tracing::warn!("systemd is not told how evenkeel is: NOTIFY_SOCKET cannot be used: {error}");
                Self::default()
            }
        }
    }

    /// Recovery is done and the work begins.
    pub fn ready(&self, status: &str) {
        self.send(&format!("READY=1\nSTATUS={}\n", line(status)));
    }

    /// Alive; sent four times in the time that the manager allows, however often this is called.
    pub fn alive(&self) {
        let Some(link) = &self.link else { return };
        let Some(every) = link.watchdog else { return };
        if due(&mut link.last().alive, every) {
            self.send("WATCHDOG=1\n");
        }
    }

    /// What is being done, for `systemctl status`; at most every five seconds.
    pub fn status(&self, text: impl FnOnce() -> String) {
        let Some(link) = &self.link else { return };
        if due(&mut link.last().status, STATUS_EVERY) {
            self.send(&format!("STATUS={}\n", line(&text())));
        }
    }

    /// The end began.
    pub fn stopping(&self, status: &str) {
        self.send(&format!("STOPPING=1\nSTATUS={}\n", line(status)));
    }

    /// A watcher that tells the manager, too.
    pub fn beside<'a>(&'a self, inner: &'a mut dyn Watcher) -> Beside<'a> {
        Beside { inner, notifier: self }
    }

    fn send(&self, text: &str) {
        let Some(link) = &self.link else { return };
        if let Err(error) = link.socket.send_to_addr(text.as_bytes(), &link.address) {
            tracing::debug!("systemd did not take {text:?}: {error}");
        }
    }
}

impl Link {
    fn open(variable: impl Fn(&str) -> Option<OsString>, pid: u32) -> io::Result<Option<Self>> {
        let Some(name) = variable("NOTIFY_SOCKET").filter(|name| !name.is_empty()) else { return Ok(None) };
        let address = address(&name)?;
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        let number = |name: &str| variable(name)?.to_str()?.parse::<u64>().ok();
        // Meant for another process, such as the one that started this one.
        let ours = number("WATCHDOG_PID").is_none_or(|meant| meant == u64::from(pid));
        let watchdog = number("WATCHDOG_USEC").filter(|usec| ours && *usec > 0);
        let watchdog = watchdog.map(|usec| Duration::from_micros(usec / 4));
        Ok(Some(Self { socket, address, watchdog, last: Mutex::default() }))
    }

    fn last(&self) -> std::sync::MutexGuard<'_, Last> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A path, or a name in the abstract namespace, which begins with `@`.
fn address(name: &OsStr) -> io::Result<SocketAddr> {
    match name.as_bytes().split_first() {
        Some((b'@', rest)) => SocketAddr::from_abstract_name(rest),
        Some((b'/', _)) => SocketAddr::from_pathname(name),
        _ => {
            Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{name:?} is neither a path nor @NAME")))
        }
    }
}

/// Whether the time is over; if so, it begins again.
fn due(last: &mut Option<Instant>, every: Duration) -> bool {
    let due = last.is_none_or(|at| at.elapsed() >= every);
    if due {
        *last = Some(Instant::now());
    }
    due
}

/// In one line: what follows a line's end would be another message.
fn line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(LONGEST_STATUS).collect()
}

/// See [`Notifier::beside`].
pub struct Beside<'a> {
    inner: &'a mut dyn Watcher,
    notifier: &'a Notifier,
}

impl Watcher for Beside<'_> {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Observed { observation, settings, .. } => self.notifier.status(|| {
                format!(
                    "{settings} in force; host {:.0} % busy of {} %",
                    observation.host.busy_pct,
                    observation.host.cpus * 100
                )
            }),
            Event::TrialBegins { candidates, .. } => self.notifier.status(|| {
                let names: Vec<&str> = candidates.iter().map(|plan| plan.name.as_str()).collect();
                format!("trial of {}", names.join(" | "))
            }),
            _ => {}
        }
        self.inner.event(event);
    }

    /// The loop asks this several times a second while it waits: as long as it does, it is alive.
    fn stopping(&self) -> bool {
        self.notifier.alive();
        self.inner.stopping()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn receive(socket: &UnixDatagram) -> String {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut bytes = [0; 1000];
        let count = socket.recv(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes[..count]).into_owned()
    }

    fn notifier(name: &OsStr, watchdog: Option<&str>, pid: &str) -> Notifier {
        let variable = |asked: &str| match asked {
            "NOTIFY_SOCKET" => Some(name.to_owned()),
            "WATCHDOG_USEC" => watchdog.map(OsString::from),
            "WATCHDOG_PID" => Some(pid.into()),
            _ => None,
        };
        Notifier { link: Link::open(variable, 7).unwrap() }
    }

    #[test]
    fn a_path_and_an_abstract_name_are_told() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let abstract_name = format!("evenkeel-notify-{}", std::process::id());
        let bound = SocketAddr::from_abstract_name(&abstract_name).unwrap();
        for (name, socket) in [
            (path.clone().into_os_string(), UnixDatagram::bind(&path).unwrap()),
            (format!("@{abstract_name}").into(), UnixDatagram::bind_addr(&bound).unwrap()),
        ] {
            let notifier = notifier(&name, Some("1000"), "7");
            notifier.ready("one\nREADY=0");
            assert_eq!(receive(&socket), "READY=1\nSTATUS=one READY=0\n");
            notifier.alive();
            assert_eq!(receive(&socket), "WATCHDOG=1\n");
            notifier.status(|| "at work".to_owned());
            notifier.status(|| "too soon".to_owned());
            notifier.stopping("restoring");
            assert_eq!(receive(&socket), "STATUS=at work\n");
            assert_eq!(receive(&socket), "STOPPING=1\nSTATUS=restoring\n");
        }
    }

    #[test]
    fn signs_of_life_are_few_and_only_where_they_are_asked_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        // An hour allowed; none allowed; another process is meant.
        for (watchdog, pid, expected) in
            [(Some("3600000000"), "7", 1), (None, "7", 0), (Some("1000"), "8", 0)]
        {
            let notifier = notifier(path.as_os_str(), watchdog, pid);
            (0..10).for_each(|_| notifier.alive());
            notifier.stopping("restoring");
            (0..expected).for_each(|_| assert_eq!(receive(&socket), "WATCHDOG=1\n"));
            assert!(receive(&socket).starts_with("STOPPING=1\n"));
        }
    }

    #[test]
    fn a_manager_that_is_gone_costs_nothing() {
        let dir = tempfile::tempdir().unwrap();
        notifier(dir.path().join("gone").as_os_str(), Some("1"), "7").ready("x");
        assert!(Link::open(|_| Some("relative".into()), 7).is_err());
        assert!(Link::open(|_| None, 7).unwrap().is_none());
    }
}
