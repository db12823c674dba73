//! The pages that show who waited for whom: the matrix, a pod, a virtual machine, a process; and a change's effect on the loop's.
//! With `EVENKEEL_PAGES=DIR` their pictures are kept there.

use std::path::Path;
use std::process::{Command, Stdio};

use evenkeel_linux::testing::{TestCgroup, TestChild};
use serde_json::json;

use super::agent::Serve;
use super::chrome::Chrome;

/// A shell that wants all of CPU 0, under a name and in a cgroup.
fn spinner(group: &TestCgroup, name: &str, args: &[&str]) -> TestChild {
    let program = "while :; do :; done";
    let mut command = Command::new("taskset");
    command.args(["-c", "0", name, "-c", program]).args(args).stdout(Stdio::null());
    let spinner = TestChild(command.spawn().expect("taskset is needed (util-linux)"));
    group.add(spinner.0.id()).unwrap();
    spinner
}

/// A container in a pod as cgroups alone tell it: the uid, and the groups with the innermost first. `digit` tells it
/// from others.
pub fn pod(name: &str, digit: char) -> (String, Vec<TestCgroup>) {
    let outer = TestCgroup::new(name).unwrap();
    let uid = format!("5f3c2a1{digit}-9b1e-4c57-8d34-{:012x}", std::process::id());
    let pod = outer.child(&format!("pod{uid}")).unwrap();
    let container = pod.child(&digit.to_string().repeat(64)).unwrap();
    (uid, vec![container, pod, outer])
}

/// A pod's container, and an emulator that runs no machine: its command line says `guest=`.
struct Rivals {
    _spinners: [TestChild; 2],
    _groups: Vec<TestCgroup>,
    machine: String,
    pod: String,
}

impl Rivals {
    fn start(dir: &Path) -> Self {
        let qemu = dir.join("qemu-system-x86_64");
        std::os::unix::fs::symlink("/bin/bash", &qemu).unwrap();
        let machine = format!("vm-{} <img src=x>", std::process::id());
        let (pod, mut groups) = pod("culprits", '4');
        let machine_group = TestCgroup::new("culprits-vm").unwrap();
        let guest = format!("guest={machine},debug-threads=on");
        let spinners = [
            spinner(&machine_group, qemu.to_str().unwrap(), &["-name", &guest]),
            spinner(&groups[0], "/bin/bash", &[]),
        ];
        groups.push(machine_group);
        Self { _spinners: spinners, _groups: groups, machine, pod }
    }
}

/// Whether something is painted on the canvas, in JavaScript.
const PAINTED: &str = "(canvas => { const all = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data; \
                       const column = x => { for (let y = 0; y < canvas.height; y++) if (all[4 * (y * canvas.width + x) + 3]) \
                       return true; return false; }; return column(0) && column(canvas.width - 8); })";

pub fn victims_and_culprits_are_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let rivals = Rivals::start(dir.path());
    let serve = Serve::start(&["--blame", "--no-history"]);
    let mut chrome = Chrome::start();
    let pictures = std::env::var_os("EVENKEEL_PAGES");
    let keep = |chrome: &mut Chrome, name: &str| {
        if let Some(dir) = &pictures {
            for (width, scheme) in [(1200, "light"), (1200, "dark"), (390, "light")] {
                chrome.window(width, scheme);
                let wide = chrome.value("draw(), document.documentElement.scrollWidth - innerWidth");
                assert!(wide.as_f64().unwrap() <= 0.0, "{name} at {width}: {wide} too wide");
                chrome.picture(&Path::new(dir).join(format!("{name}-{width}-{scheme}.png")));
            }
        }
        chrome.window(1200, "light");
    };
    chrome.window(1200, "light");
    chrome.call("Page.navigate", json!({"url": format!("http://{}/#/waits", serve.address)}));
    chrome.value(&format!("window.vm = {}, window.pod = {}, 0", json!(rivals.machine), json!(rivals.pod)));
    // The matrix: one waited for the other, each in its own row and column, with the seconds that the server tells.
    chrome.until("typeof live !== 'undefined' && live?.blame?.some(row => row[0] === vm && row[1].startsWith(pod)) === true");
    let found = chrome.value(
        "(() => { paused = true; hangUp(); draw(); const box = document.querySelector('table.matrix'); \
         const heads = [...box.querySelectorAll('thead th')].map(th => th.textContent); \
         const row = [...box.querySelectorAll('tbody tr')].find(tr => tr.querySelector('th').textContent === vm); \
         const at = heads.findIndex(text => text.startsWith(pod)), cell = row.children[at]; \
         const told = live.blame.find(one => one[0] === vm && one[1].startsWith(pod))[2]; \
         return [Math.abs(Number(cell.textContent) - told) < .51, cell.style.background !== '']; })()",
    );
    assert_eq!(found, json!([true, true]), "the cell of the matrix");
    keep(&mut chrome, "matrix");
    chrome.value("paused = false, rounds(), 0");
    // The virtual machine: what it got and waited, the lengths of its waits, and who took its time.
    let number = chrome.value("live.owners.find(owner => owner.kind === 'vm' && owner.title === vm).number");
    chrome.value(&format!("location.hash = '#/owner/{number}'"));
    chrome.until(
        "document.querySelector('h1')?.textContent === vm && document.querySelectorAll('main .tile').length >= 9 && \
         document.querySelectorAll('main svg path').length === 3 && \
         [...document.querySelectorAll('main h2')].some(head => head.textContent === 'Lengths of its waits') && \
         [...document.querySelectorAll('[aria-label=\"Lengths of waits\"] rect')].some(bar => Number(bar.getAttribute('width')) === 100) && \
         document.querySelector('[aria-label=\"Victims and culprits\"]')?.textContent.includes(pod) === true",
    );
    // Its waits over time: with a slot a quarter minute ago, for a second one would take as long.
    chrome.value(
        "paused = true, hangUp(), detail.data.lengths.slots.unshift([detail.data.lengths.slots[0][0] - 15000, [[4096, 5], [1024, 2]]]), \
         draw(), 0",
    );
    assert_eq!(
        chrome.value(&format!("{PAINTED}(document.querySelector('.lengths canvas'))")),
        true,
        "lengths over time"
    );
    assert_eq!(
        chrome.value(
            "[...document.querySelectorAll('.scale span')].some(octave => octave.textContent === '4 ms')"
        ),
        true
    );
    keep(&mut chrome, "vm");
    chrome.value("paused = false, rounds(), 0");
    // The pod: its container, the sums, and whom it took time from.
    chrome.value("location.hash = '#/pod/' + encodeURIComponent(pod)");
    chrome.until(
        "document.querySelector('h1')?.textContent === 'Pod ' + pod && \
         document.querySelectorAll('[aria-label=\"Containers\"] tbody a').length === 1 && \
         document.querySelectorAll('main svg path').length === 3 && \
         document.querySelectorAll('[aria-label=\"Lengths of waits\"] rect').length > 0 && \
         document.querySelector('[aria-label=\"Victims and culprits\"]')?.textContent.includes(vm) === true && \
         document.querySelector('[aria-label=\"Tasks\"]')?.textContent.includes('bash') === true",
    );
    keep(&mut chrome, "pod");
    // A process is watched when its page asks: the other one took its time.
    chrome.value("location.hash = '#/task/' + live.tasks.find(task => task.owner === live.owners.find(owner => owner.pod === pod).number).tid");
    chrome.until("document.querySelector('[data-key=watch]') !== null && document.body.innerText.includes('all of ' + pod)");
    chrome.value("document.querySelector('[data-key=watch]').click(), 0");
    chrome.until(
        "document.querySelector('[aria-label=Culprits]')?.textContent.includes('qemu-system') === true && \
         [...document.querySelectorAll('main h3')].some(head => /^Lengths of its [1-9]\\d* waits$/.test(head.textContent))",
    );
    keep(&mut chrome, "process");
    // What is known of a change's effect stands next to it, and no verdict says its word twice.
    chrome.value(
        "paused = true, hangUp(), live.loop = {settings: 'batch', trials: 1, kept: 1, reverted: 0, guarantees: [], services: [], \
         effect: {cpu_pct: {value: 3.1, low: 1, high: 5.2}}, effect_text: '+3.1 [+1.0, +5.2] % of one CPU: 4 blocks', changes: [{comm: 'web', knob: 'policy', from: 'other', \
         to: 'batch', why: 'long', effect: 'kept: at least +1.2 %'}, {group: '/job', knob: 'weight', from: '100', to: '50', why: 'promise', \
         effect: null}], last_decision: [{name: 'kernel default', kept: true, why: 'kept: nothing tried is shown to be better'}]}, \
         location.hash = '#/loop', 0",
    );
    chrome.until("document.getElementById('main').dataset.page === 'loop'");
    let cells = |row: u32| {
        format!(
            "[...document.querySelectorAll('[aria-label=Changes] tbody tr:nth-child({row}) td')].slice(-2).map(td => td.textContent)"
        )
    };
    assert_eq!(
        chrome.value(&cells(1)),
        json!(["kept: at least +1.2 %", "+3.1 [+1.0, +5.2] % of one CPU: 4 blocks"])
    );
    assert_eq!(chrome.value(&cells(2)), json!(["not measured", "not measured"]));
    assert_eq!(
        chrome.value("[...document.querySelectorAll('main .tile')].at(-1).textContent"),
        "3.1 [1.0, 5.2]CPU got more than under the baseline, percent of one CPU"
    );
    assert_eq!(
        chrome.value("document.querySelector('main ul').textContent"),
        "kernel default: kept: nothing tried is shown to be better"
    );
    keep(&mut chrome, "loop-effect");
    assert_eq!(chrome.value("document.querySelectorAll('main img, main script').length"), 0);
    assert!(chrome.complaints.is_empty(), "{:?}", chrome.complaints);
    // A server that has gone away is reported, and figures lose their colours; a clock does not disturb a screen reader.
    chrome.value("paused = false, rounds(), 0");
    chrome.until("stream !== null && document.getElementById('trouble').textContent === ''");
    drop(serve);
    chrome.until(
        "document.getElementById('trouble').textContent.startsWith('no answer since ') && \
         document.getElementById('main').classList.contains('stale')",
    );
    assert_eq!(
        chrome.value("[...document.querySelectorAll('header [role=status]')].map(box => box.id)"),
        json!(["trouble"])
    );
}
