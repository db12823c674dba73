//! `serve` on the real kernel: what a scraper, a browser and an operator see, and what it may do.

#[path = "serve/agent.rs"]
mod agent;
#[path = "serve/chrome.rs"]
mod chrome;
#[path = "serve/counting.rs"]
mod counting;
#[path = "serve/culprits.rs"]
mod culprits;
#[path = "serve/endpoint.rs"]
mod endpoint;
#[path = "serve/looping.rs"]
mod looping;
#[path = "serve/network.rs"]
mod network;
#[path = "serve/otlp.rs"]
mod otlp;
#[path = "serve/pki.rs"]
mod pki;
mod program;
#[path = "serve/prometheus.rs"]
mod prometheus;
#[path = "serve/scraped.rs"]
mod scraped;
#[path = "serve/shown.rs"]
mod shown;
#[path = "serve/tls.rs"]
mod tls;
#[path = "serve/twice.rs"]
mod twice;
#[path = "serve/webhook.rs"]
mod webhook;

use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use agent::{BINARY, Serve, load, until_well};
use chrome::Chrome;
use evenkeel_linux::testing::{TestCgroup, TestChild, awaited, until};
use program::{end, evenkeel};

/// A load in a cgroup of its own; the load ends first, or the cgroup could not go.
struct Busy {
    _load: TestChild,
    group: TestCgroup,
}

fn busy(group: &str, program: &Path) -> Busy {
    let group = TestCgroup::new(group).unwrap();
    let load = load(program, 20);
    group.add(load.0.id()).unwrap();
    Busy { _load: load, group }
}

fn promtool(page: &str) {
    let mut check = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool must be installed for this test (Debian: apt-get install prometheus)");
    check.stdin.take().unwrap().write_all(page.as_bytes()).unwrap();
    let out = check.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success() && said.is_empty(), "{said}\n{page}");
}

#[test]
fn metrics_are_clean_and_grow_and_nothing_but_reading_is_allowed() {
    let hostile = "serve \"\\<img src=x>";
    let busy = busy(hostile, Path::new(BINARY));
    let mut serve = Serve::start(&[]);
    let id = busy.group.path()[1..].replace('\\', "\\\\").replace('"', "\\\"");
    let label = format!("id=\"/{id}\"");
    let page = serve.metrics_with(&label);
    promtool(&page);
    let cpu = |page: &str| -> f64 {
        let line = page
            .lines()
            .find(|l| l.starts_with("evenkeel_cpu_seconds_total{") && l.contains(&label))
            .unwrap();
        line.rsplit(' ').next().unwrap().parse().unwrap()
    };
    let first = cpu(&page);
    until("the counter grows", || cpu(&serve.metrics()) > first);
    let (head, open) = serve.get("/metrics", "Accept: application/openmetrics-text; version=1.0.0\r\n");
    assert!(head.contains("openmetrics-text") && open.ends_with("# EOF\n"), "{head}");
    // Every thread has no more than it needs, and nothing it starts could have.
    for thread in std::fs::read_dir(format!("/proc/{}/task", serve.process.0.id())).unwrap() {
        let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
        for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
            let line = status.lines().find(|line| line.starts_with(set)).unwrap();
            let held = u64::from_str_radix(line.rsplit('\t').next().unwrap(), 16).unwrap();
            // DAC_READ_SEARCH, PERFMON, BPF
            assert_eq!(held & !(1 << 2 | 1 << 38 | 1 << 39), 0, "{line}");
        }
        assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    }
    let (head, _) = serve.get("/healthz", "");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let pid = serve.process.0.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    assert_eq!(serve.process.0.wait().unwrap().code(), Some(0));
    // What it saw is kept, and no journal was ever made.
    let files: Vec<_> =
        std::fs::read_dir(serve.state.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert!(files.iter().all(|file| file.to_string_lossy().starts_with("history.db")), "{files:?}");
    let history = ["-o", "json", "history", "--since", "10m", "--by", "cgroup"];
    end(evenkeel(["--state-dir"]).arg(serve.state.path()).args(history)).says(0, "evenkeel-serve");
}

/// On a host whose `/proc` shows other users' processes to a group alone.
#[test]
fn hidden_processes_are_seen() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let dir = tempfile::tempdir().unwrap();
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    let shell = dir.path().join("keel-hidden");
    std::fs::copy("/bin/sh", &shell).unwrap();
    let _loop = TestChild(
        Command::new(shell).args(["-c", "while :; do :; done"]).uid(1234).gid(1234).spawn().unwrap(),
    );
    let mut hiding = Command::new("unshare");
    hiding.args([
        "--mount",
        "sh",
        "-c",
        "mount -t proc -o hidepid=2,gid=4242 proc /proc && exec \"$0\" \"$@\"",
        BINARY,
    ]);
    let options =
        ["serve", "--listen", "127.0.0.1:0", "--no-history", "--sampling", "proc", "--blame", "off"];
    let serve = Serve::spawned(hiding, &options, &[]);
    until("it sees a process of another user", || serve.get("/api/live", "").1.contains("keel-hidden"));
    assert!(!serve.said().contains("hidepid"), "{}", serve.said());
}

/// What others may write to, links too, is not written to as root.
#[test]
fn no_history_is_kept_in_a_directory_of_others() {
    let precious = tempfile::NamedTempFile::new().unwrap();
    let mut shared = Command::new("sh");
    let open = "chmod 777 \"$2\" && ln -s \"$PRECIOUS\" \"$2/history.db\" && exec \"$0\" \"$@\"";
    shared.args(["-c", open, BINARY]).env("PRECIOUS", precious.path());
    let serve = Serve::spawned(shared, &["serve", "--listen", "127.0.0.1:0", "--blame", "off"], &[]);
    serve.metrics_with("evenkeel_observed_timestamp_seconds ");
    assert!(
        serve.said().contains("no history is kept") && serve.said().contains("by others"),
        "{}",
        serve.said()
    );
    assert_eq!(std::fs::metadata(precious.path()).unwrap().len(), 0);
}

#[test]
fn only_the_token_opens() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("token");
    std::fs::write(&file, "0123456789abcdefghij\n").unwrap();
    let serve = Serve::start(&["--no-history", "--token-file", file.to_str().unwrap()]);
    let status = |path: &str, headers: &str| serve.get(path, headers).0[9..12].to_owned();
    for path in ["/", "/metrics", "/status", "/api/live", "/dashboard.js", "/nonsense"] {
        assert_eq!(status(path, ""), "401", "{path}");
        assert_eq!(status(path, "Authorization: Bearer 0123456789abcdefghik\r\n"), "401", "{path}");
    }
    until_well(|| status("/healthz", ""));
    assert_eq!(status("/metrics", "Authorization: Bearer 0123456789abcdefghij\r\n"), "200");
    assert_eq!(status("/nonsense", "Authorization: Bearer 0123456789abcdefghij\r\n"), "404");
    let mut stream = std::net::TcpStream::connect(&serve.address).unwrap();
    let listen =
        "GET /api/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer 0123456789abcdefghij\r\n\r\n";
    stream.write_all(listen.as_bytes()).unwrap();
    let mut begun = [0; 12];
    stream.read_exact(&mut begun).unwrap();
    assert_eq!(&begun, b"HTTP/1.1 200");
    // Whoever renews it does not restart the server, and the old one opens nothing any more.
    std::fs::write(&file, "abcdefghij0123456789\n").unwrap();
    until_well(|| status("/metrics", "Authorization: Bearer abcdefghij0123456789\r\n"));
    assert_eq!(status("/metrics", "Authorization: Bearer 0123456789abcdefghij\r\n"), "401");
    // Nor does what it opened go on: a stream has no end of its own.
    let (began, mut told) = (Instant::now(), [0; 4096]);
    while stream.read(&mut told).unwrap() > 0 {
        assert!(began.elapsed() < Duration::from_secs(20), "the stream goes on");
    }
    let said = serve.said();
    assert!(said.contains("the new token of") && !said.contains("abcdefghij"), "{said}");
    let ended = |options: &[&str]| end(evenkeel(["--state-dir"]).arg(dir.path()).args(options));
    std::fs::write(&file, "secret\n").unwrap();
    let listen = ["serve", "--listen", "127.0.0.1:0", "--token-file", file.to_str().unwrap()];
    let said = ended(&listen).refused(2, "holds no token");
    assert!(!said.contains("secret"), "{said}");
    ended(&["serve", "--listen", &serve.address]).refused(3, &serve.address);
}

#[test]
fn other_hosts_are_answered_over_tls_alone_and_a_new_certificate_is_taken_up() {
    tls::other_hosts_are_answered_with_token_and_certificate();
}

/// With `EVENKEEL_PAGES=DIR` every page's picture is kept there: light, dark, and as wide as a telephone. With `EVENKEEL_AXE=FILE`
/// (axe-core's `axe.min.js`, see `make test-axe`) each page is also judged for screen readers.
#[test]
fn every_page_of_the_dashboard_is_drawn_without_a_complaint() {
    let dir = tempfile::tempdir().unwrap();
    let hostile = dir.path().join("<img src=x>");
    std::os::unix::fs::symlink(BINARY, &hostile).unwrap();
    let _busy = busy("evenkeel <script>alert(1)</script>".replace('/', "|").as_str(), &hostile);
    let report = dir.path().join("a report <img src=y>");
    std::fs::create_dir(&report).unwrap();
    std::fs::write(report.join("report.html"), "<h1>Report</h1><script>document.title = 'ran'</script>")
        .unwrap();
    let serve = Serve::start(&["--reports", dir.path().to_str().unwrap()]);
    serve.metrics_with("alert(1)");
    let listener = serve.listen();
    let mut chrome = Chrome::start();
    let pictures = std::env::var_os("EVENKEEL_PAGES");
    let axe = std::env::var_os("EVENKEEL_AXE").map(|file| std::fs::read_to_string(file).unwrap() + ";0");
    let origin = format!("http://{}/", serve.address);
    chrome.window(1200, "light");
    chrome.call("Page.navigate", serde_json::json!({"url": origin}));
    chrome.until("document.querySelectorAll('#main svg path').length >= 2");
    chrome.key("Tab", 9);
    assert_eq!(chrome.value("document.activeElement.className"), "skip", "the header comes first");
    let number = chrome.value("live.owners.find(owner => owner.title.includes('alert')).number");
    let tid = chrome.value("live.tasks.find(task => task.comm.includes('<img')).tid");
    let (owner, task) = (format!("owner/{number}"), format!("task/{tid}"));
    let pages = [
        ("", "Who has the CPU|all waits are those since the server began"),
        ("cpus", "CPU 0"),
        ("map", "<img src=x>"),
        ("tree", "Services (cgroups)"),
        ("timeline", "The last quarter"),
        ("waits", "alert(1)"),
        ("findings", "passed"),
        ("past", "Past hours"),
        ("loop", "only watches"),
        ("reports", "a report <img"),
        (owner.as_str(), "alert(1)|All since the server began."),
        (task.as_str(), "<img src=x>"),
    ];
    for (width, scheme) in [(1200, "light"), (1200, "dark"), (390, "light")] {
        chrome.window(width, scheme);
        for (page, what) in pages {
            chrome.value(&format!("location.hash = '#/{page}'"));
            chrome.until(&format!(
                "document.getElementById('main').dataset.page === '{}' && \
                 '{what}'.split('|').every(part => document.body.innerText.includes(part))",
                page.replace('/', "")
            ));
            assert_eq!(
                chrome.value("document.querySelectorAll('main img, main script').length"),
                0,
                "{page}"
            );
            // Nothing but a table in its own frame is wider than the window.
            let wide = chrome.value("document.documentElement.scrollWidth - innerWidth");
            assert!(wide.as_f64().unwrap() <= 0.0, "{page} at {width}: {wide} too wide");
            let unnamed = chrome.value(
                "[...document.querySelectorAll('a,button,input,summary,svg[role=img],canvas')].filter(e => \
                 !(e.textContent.trim() || e.getAttribute('aria-label') || e.labels?.length)).length",
            );
            assert_eq!(unnamed, 0, "{page}: something has no name");
            if let Some(axe) = &axe {
                chrome.value("paused = true");
                chrome.value(axe);
                let found = chrome.value(
                    "axe.run(document, {resultTypes: ['violations']}).then(all => { paused = false; \
                     return all.violations.map(one => one.id + ': ' + one.nodes[0].html).join('\\n'); })",
                );
                assert_eq!(found, "", "{page} at {width}, {scheme}");
            }
            if let Some(pictures) = &pictures {
                let name = if page.is_empty() { "overview" } else { page.split('/').next().unwrap() };
                chrome.picture(&Path::new(pictures).join(format!("{name}-{width}-{scheme}.png")));
            }
        }
    }
    // By keyboard alone: to a page's link, there, and the focus stays when the page is drawn again.
    chrome.value("location.hash = '#/'");
    chrome.until("document.getElementById('main').dataset.page === ''");
    chrome.value("document.querySelector('#nav a').focus()");
    for _ in 0..3 {
        chrome.key("Tab", 9);
    }
    chrome.key("Enter", 13);
    chrome.until("document.getElementById('main').dataset.page === 'tree'");
    chrome.until("document.querySelector('main details details') !== null");
    chrome.value("document.querySelector('main details details summary').focus()");
    chrome.key("Enter", 13);
    chrome.until("document.querySelector('main details details').open");
    let seen = chrome.value("live.at_ms");
    chrome.until(&format!("live.at_ms > {seen}"));
    chrome.until(
        "document.querySelector('main details details').open && document.activeElement.tagName === 'SUMMARY'",
    );
    // Text that is selected stays so, and what a click has begun on stays there until it ends.
    let next = |chrome: &mut Chrome| {
        let seen = chrome.value("live.at_ms");
        chrome.until(&format!("live.at_ms > {seen}"));
    };
    chrome.value("getSelection().selectAllChildren(document.querySelector('main h1')), 0");
    next(&mut chrome);
    assert_eq!(chrome.value("getSelection().toString()"), "Who is in what");
    chrome.value(
        "getSelection().removeAllRanges(), draw(), window.held = document.querySelector('main h1'), \
         dispatchEvent(new PointerEvent('pointerdown', {button: 0})), 0",
    );
    next(&mut chrome);
    assert_eq!(chrome.value("held.isConnected"), true);
    chrome.value("dispatchEvent(new PointerEvent('pointerup')), 0");
    chrome.until("!held.isConnected");
    // Axes end at round numbers and name their unit.
    assert_eq!(chrome.value("[187, 1000, 1.01].map(roundUp)"), serde_json::json!([200, 1000, 2]));
    assert_eq!(
        chrome.value("chart([[0, 1], [1, 2]], [[1, 'a', 'cpu']], 'parts').textContent.includes('parts')"),
        true
    );
    // Minutes that were not recorded are a gap, however few rows there are, in lines and in shades.
    let lines = "chart([[0, 1], [3e4, 1], [3e6, 1], [303e4, 1]], [[1, 'a', 'cpu']], 'parts').querySelector('path.cpu').getAttribute('d').match(/M/g).length";
    assert_eq!(chrome.value(lines), 2);
    let shaded = "(() => { const rows = [0, 3e4, 6e4, 3e6, 303e4, 306e4].map(at => [at, [100]]), canvas = shades(rows).querySelector('canvas'); \
                  return [0, 1, 2, 3, 4, 5].map(at => canvas.getContext('2d').getImageData(4 * at + 1, 1, 1, 1).data[3] > 0); })()";
    assert_eq!(chrome.value(shaded), serde_json::json!([true, false, false, false, false, true]));
    // A CPU keeps its line and its number while another is offline.
    let offline = "(() => { const shown = shades([[0, [9, 9, 100]], [1e3, [9, null, 100]]]), paint = shown.querySelector('canvas').getContext('2d'); \
                   return [[...shown.querySelectorAll('.scale span')].map(one => one.textContent), [1, 19, 37].map(y => paint.getImageData(5, y, 1, 1).data[3] > 0)]; })()";
    assert_eq!(chrome.value(offline), serde_json::json!([["CPU 0", "CPU 1", "CPU 2"], [true, false, true]]));
    let gaps = "withGaps([[3e4, 30, 1], [6e4, 30, 1], [18e4, 30, 1], [20e4, 10, 1]])";
    assert_eq!(
        chrome.value(gaps),
        serde_json::json!([[30000, 30, 1], [60000, 30, 1], [90000], [180000, 30, 1], [200000, 10, 1]])
    );
    // A task that runs in one of four looks has a quarter of what it had in that one.
    let share = "(() => { const kept = live; lately.clear(); \
                 for (let look = 1; look <= 4; look++) { live = {at_ms: 1000 * look, host: {active: 1}, tasks: look === 1 ? [{tid: 1, start: 1, comm: 'x', cpu: 0, cpu_pct: 80, wait_pct: 4}] : []}; remember(); } \
                 const row = lately.get('1 1'); live = kept; lately.clear(); return [row.by.get(0) / row.looks, row.points]; })()";
    let quarter = serde_json::json!([20, [[1000, 80, 4], [2000, 0, 0], [3000, 0, 0], [4000, 0, 0]]]);
    assert_eq!(chrome.value(share), quarter);
    // A server that answers and no longer looks at the host says so.
    let still = "(() => { looked.since -= 60000; take(live, {moments: [], marks: []}); return document.getElementById('trouble').textContent; })()";
    assert!(chrome.value(still).as_str().unwrap().starts_with("the host was not looked at since"));
    // After the clock was set back an hour the lines go on.
    let back = "(() => { const at = live.at_ms - 36e5; take({...live, at_ms: at}, {moments: [[at, 7]], marks: []}); return [series.at(-1)[0] - at, series.at(-1)[1]]; })()";
    assert_eq!(chrome.value(back), serde_json::json!([0, 7]));
    // What could not be told is not "nothing is wrong".
    let unknown = "(() => { const kept = findings; findings = {data: {findings: [], summary: {pass: 1, fail: 0, unknown: 3}, at_ms: 1}}; \
                   const text = h('div', {}, findingsPage()).textContent; findings = kept; return text.includes('Nothing is known to be wrong; 3') && !text.includes('Nothing is wrong'); })()";
    assert_eq!(chrome.value(unknown), true);
    shown::past_hours_are_those_chosen(&mut chrome);
    assert!(chrome.complaints.is_empty(), "{:?}", chrome.complaints);
    // All of that was told by the server: nothing was asked once an interval.
    let asked = |chrome: &Chrome, what: &str| chrome.asked.iter().filter(|url| url.contains(what)).count();
    let polled = ["/api/live", "/api/timeline", "/api/owner", "/api/task"].map(|what| asked(&chrome, what));
    assert_eq!((polled, asked(&chrome, "/api/events") > 0), ([0; 4], true), "{:?}", chrome.asked);
    // A stream lasts longer than other connections, and tells each look once.
    let told = listener.told(18);
    assert!(told.windows(2).all(|pair| pair[0] < pair[1]), "{told:?}");
    // Paused, nobody listens.
    chrome.value("document.getElementById('pause').click()");
    chrome.until("stream === null");
    let streams: Vec<_> = (1..16).map(|_| serve.listen()).collect();
    streams.iter().for_each(|stream| drop(stream.told(1)));
    // Where there is no room for another stream, the page asks instead.
    chrome.value("document.getElementById('pause').click()");
    let seen = chrome.value("live.at_ms");
    chrome.until(&format!("live.at_ms > {seen} && stream === null"));
    assert!(asked(&chrome, "/api/live") > 0, "{:?}", chrome.asked);
    // A report is shown as it is, and its script does not run, which the browser complains of.
    chrome.value("location.hash = '#/reports'");
    chrome.until("document.querySelector('main table a') !== null");
    let report = chrome.value("document.querySelector('main table a').href");
    chrome.call("Page.navigate", serde_json::json!({"url": report}));
    chrome.until("document.querySelector('h1')?.textContent === 'Report'");
    assert_ne!(chrome.value("document.title"), "ran");
    let strange: Vec<_> =
        chrome.asked.iter().filter(|url| !url.starts_with(&origin) && !url.starts_with("data:")).collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn of_two_on_one_directory_one_records() {
    twice::the_second_records_when_the_first_has_ended();
}

#[test]
fn pages_show_who_waited_for_whom() {
    culprits::victims_and_culprits_are_drawn();
}

#[test]
fn ps_shows_what_a_container_with_a_network_of_its_own_transfers() {
    network::a_network_of_its_own_has_rates_in_the_tree();
}

#[test]
fn dashboards_and_rules_find_their_data() {
    let _busy = busy("evenkeel-panels", Path::new(BINARY));
    prometheus::every_panel_has_data();
}

#[test]
fn waits_are_counted_in_turns_where_that_costs_too_much_and_sums_stay_right() {
    counting::a_small_budget_is_kept_and_sums_stay_right();
}

/// Takes over a minute: who starves for less is not told.
#[test]
fn a_starving_cgroup_is_told_once_to_a_receiver_that_fails_at_first_and_one_that_hangs_holds_nothing_up() {
    webhook::starving_is_told();
}

#[test]
fn systemd_is_told_that_it_is_ready_alive_and_ending() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    let socket = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    let process = Command::new(BINARY)
        .arg("--state-dir")
        .arg(dir.path())
        .args(["serve", "--listen", "127.0.0.1:0", "--no-history"])
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "800000")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let process = TestChild(process);
    let wait_for = |what: &str| {
        let mut buffer = [0; 512];
        loop {
            let length = socket.recv(&mut buffer).unwrap_or_else(|error| panic!("{what}: {error}"));
            if String::from_utf8_lossy(&buffer[..length]).lines().any(|line| line == what) {
                return;
            }
        }
    };
    for what in ["READY=1", "WATCHDOG=1", "WATCHDOG=1"] {
        wait_for(what);
    }
    let pid = rustix::process::Pid::from_raw(process.0.id() as i32).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    wait_for("STOPPING=1");
}

/// The history of a `serve` that was killed is whole, and lacks no more than the last seconds of what its page told of.
#[test]
fn a_killed_serve_loses_only_the_last_seconds_of_its_history() {
    let mut serve = Serve::start(&[]);
    let observed = |page: &str| -> Option<f64> {
        let line = page.lines().find(|line| line.starts_with("evenkeel_observed_timestamp_seconds "))?;
        line.rsplit(' ').next()?.parse().ok()
    };
    let first = observed(&serve.metrics_with("evenkeel_observed_timestamp_seconds ")).unwrap();
    let last = awaited(120, || {
        let last = observed(&serve.metrics()).unwrap();
        // No multiple of the time within which it commits: it is killed with samples in memory.
        if last >= first + 7.0 { Ok(last) } else { Err(format!("observed at {last}, first at {first}")) }
    });
    serve.process.0.kill().unwrap();
    serve.process.0.wait().unwrap();
    let path = serve.state.path().join(evenkeel_store::FILE_NAME);
    let store = evenkeel_store::Store::open(&path, evenkeel_store::Limits::default()).unwrap();
    assert_eq!(store.note(), None, "it is not damaged");
    let samples: Vec<_> = store.samples(0, u64::MAX).unwrap().map(|sample| sample.unwrap().sample).collect();
    let kept = samples.last().unwrap().wall_ns as f64 / 1e9;
    assert!(last - kept <= 5.0, "{} s are lost", last - kept);
    assert!(samples.iter().all(|sample| !sample.tasks.is_empty()) && samples.len() >= 2);
}

/// The collector is for what is served: without `--listen`, a token that cannot be read is nobody's business.
#[test]
fn run_without_pages_does_not_read_the_collectors_token() {
    let (dir, group) = (tempfile::tempdir().unwrap(), TestCgroup::new("otlp-token").unwrap());
    let config = dir.path().join("config.toml");
    let text = "[serve]\notlp = \"http://127.0.0.1:1/\"\notlp_token_file = \"/nonexistent/token\"\n";
    std::fs::write(&config, text).unwrap();
    let scope = format!("cgroup:{}", group.path());
    let run = |more: &[&str]| {
        let mut command = Command::new(BINARY);
        command.arg("--state-dir").arg(dir.path()).arg("--config").arg(&config);
        command.args(["run", "--scope", &scope, "--for", "1s"]).args(more).output().unwrap()
    };
    let alone = run(&[]);
    assert!(alone.status.success(), "{alone:?}");
    let served = run(&["--listen", "127.0.0.1:0"]);
    let said = String::from_utf8_lossy(&served.stderr);
    assert!(served.status.code() == Some(2) && said.contains("/nonexistent/token"), "{said}");
}
