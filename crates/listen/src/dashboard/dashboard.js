'use strict';
// Names are whatever somebody gave a container or a process: they are only ever set as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';
const main = document.getElementById('main');
let live = null;
let paused = false;
let series = [];
let marks = [];
const open = new Set(['kindPods', 'kindContainers', 'kindVirtual machines', 'kindServices (cgroups)']);
const lately = new Map();
let flat = false;
let past = { hours: 1, from: '', data: null, error: null };
let findings = { data: null, error: null, at: 0 };
let detail = { key: '', data: null };

/// An element with attributes, listeners (`onclick`) and children; strings become text.
function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}
function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}
function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (name.startsWith('on')) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat(9).filter(child => child !== null && child !== undefined && child !== false));
  return element;
}

const number = (value, digits = 1) => value === null || value === undefined ? '?' : value.toFixed(digits);
const cell = (value, digits = 1) => h('td', { class: value === null || value === undefined ? 'n unknown' : 'n' }, number(value, digits));
// Not `hour12: false`: some languages would write midnight as 24:00.
const bytes = count => count === null ? '?' : count < 10 * 2 ** 30 ? number(count / 2 ** 20, 0) + ' MiB' : number(count / 2 ** 30, 0) + ' GiB';
const time = ms => new Date(ms).toLocaleTimeString([], { hourCycle: 'h23' });
const date = ms => new Date(ms).toLocaleString([], { hourCycle: 'h23' });
/// How the ends of a time are written: over days the clock alone does not say which day.
const clockOf = (from, to) => to - from > 86400000 ? date : time;

function table(caption, heads, rows) {
  return h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': caption }, h('table', {},
    h('thead', {}, h('tr', {}, heads.map(([title, kind]) => h('th', { scope: 'col', class: kind || null }, title)))),
    h('tbody', {}, rows.length ? rows : h('tr', {}, h('td', { colspan: heads.length, class: 'unknown' }, 'none')))));
}
const tile = (value, what, kind) => h('div', { class: 'tile' }, h('b', { class: kind || null }, value), h('span', {}, what));
const link = (href, text) => h('a', { href, 'data-key': href }, text);
const ownerOf = number => live.owners.find(owner => owner.number === number);
const ownerLink = owner => owner ? link('#/owner/' + owner.number, brief(owner.title)) : h('span', { class: 'unknown' }, '-');
const taskLink = task => link('#/task/' + task.tid, task.comm + ' ' + task.tid);
const legend = (parts, unit) => h('div', { class: 'legend' }, parts.map(([name, kind]) => h('span', { class: kind }, h('i', {}), name)), h('span', { class: 'unknown' }, unit));

/// The least round number that is not below: an axis that ends there does not move with each value.
function roundUp(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return power * [1, 2, 4, 6, 8, 10].find(step => step * power >= value * .999999);
}
/// The time between two rows from which on nothing was recorded between them, ms.
const gapOf = rows => Math.max(15000, 4 * rows.slice(1).map((row, at) => row[0] - rows[at][0]).sort((a, b) => a - b)[rows.length - 2 >> 1]);
/// Lines over time. `rows`: arrays whose first item is ms; `lines`: [index, title, class].
function chart(rows, lines, unit, height = 190) {
  const width = Math.max(300, main.clientWidth - 24), left = 46, bottom = height - 20;
  if (rows.length < 2) return h('p', { class: 'unknown' }, 'Not enough samples yet.');
  const from = rows[0][0], to = rows[rows.length - 1][0];
  let highest = 0;
  for (const row of rows) for (const [at] of lines) if (row[at] > highest) highest = row[at];
  const top = roundUp(Math.max(1, highest));
  const x = ms => left + (width - left - 4) * (ms - from) / Math.max(1, to - from);
  const y = value => bottom - (bottom - 8) * value / top;
  const last = rows[rows.length - 1];
  const words = lines.map(([at, title]) => title + ' ' + number(last[at])).join(', ');
  const picture = s('svg', { viewBox: `0 0 ${width} ${height}`, height, role: 'img',
    'aria-label': `From ${date(from)} to ${date(to)}, ${unit}. Last: ${words}. Highest: ${number(highest)}.` });
  for (const part of [0, .5, 1]) {
    picture.append(s('line', { class: 'grid', x1: left, x2: width, y1: y(top * part), y2: y(top * part) }),
      s('text', { x: left - 5, y: y(top * part) + 4, 'text-anchor': 'end' }, number(top * part, top < 10 ? 1 : 0)));
  }
  const clock = clockOf(from, to);
  picture.append(s('text', { x: left, y: height - 4 }, clock(from)), s('text', { x: width - 2, y: height - 4, 'text-anchor': 'end' }, clock(to)));
  for (const [at, kind] of marks.filter(mark => mark[0] >= from && mark[0] <= to)) {
    picture.append(s('line', { class: 'mark', x1: x(at), x2: x(at), y1: 8, y2: bottom }, s('title', {}, time(at) + ' ' + kind)));
  }
  const gap = gapOf(rows);
  for (const [at, , kind] of lines) {
    let path = '', down = true, before = null;
    for (const row of rows) {
      // A gap in time or in knowledge is a gap in the line.
      if (row[at] === null || row[at] === undefined) { down = true; continue; }
      if (before !== null && row[0] - before > gap) down = true;
      // One alone is a dot.
      path += (down ? 'M' : 'L') + x(row[0]).toFixed(1) + ' ' + y(row[at]).toFixed(1) + (down ? 'h0' : '');
      down = false;
      before = row[0];
    }
    picture.append(s('path', { d: path, class: kind, fill: 'none', stroke: 'currentColor', 'stroke-width': 1.6, 'stroke-linecap': 'round' }));
  }
  return h('div', {}, legend(lines.map(([, title, kind]) => [title, kind]), unit), picture);
}

/// CPUs by time as shades. `rows`: [ms, [busy of each CPU by its number, null where it is offline]].
function shades(rows) {
  if (rows.length < 2) return null;
  const last = rows.at(-1), seen = new Set();
  for (const row of rows) row[1]?.forEach((busy, cpu) => { if (busy !== null) seen.add(cpu); });
  const cpus = [...seen].sort((a, b) => a - b);
  const columns = Math.min(rows.length, 240), tall = Math.max(3, Math.min(18, 640 / cpus.length));
  const picture = h('canvas', { width: columns * 4, height: Math.ceil(cpus.length * tall), role: 'img',
    'aria-label': 'CPU use by CPU over time. Last: ' + cpus.map(cpu => `CPU ${cpu} ${number(last[1]?.[cpu], 0)} %`).join(', ') });
  picture.style.setProperty('height', Math.ceil(cpus.length * tall) + 'px');
  const paint = picture.getContext('2d');
  paint.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--cpu').trim();
  const from = rows[0][0], step = (last[0] - from) / columns, gap = gapOf(rows), clock = clockOf(from, last[0]);
  for (let column = 0, at = 0; column < columns; column++) {
    while (at + 1 < rows.length && rows[at + 1][0] <= from + step * (column + 1)) at++;
    // What was not recorded has no shade.
    if (from + step * column - rows[at][0] > gap) continue;
    cpus.forEach((cpu, line) => {
      const busy = rows[at][1]?.[cpu] ?? null;
      if (busy === null) return;
      paint.globalAlpha = Math.min(1, .04 + busy / 100);
      paint.fillRect(column * 4, line * tall, 4, Math.max(1, tall - 1));
    });
  }
  // Names fit next to lines of some height only.
  const named = tall >= 14;
  const scale = h('div', { class: 'scale', 'aria-hidden': 'true' }, cpus.map(cpu => h('span', {}, `CPU ${cpu}`)));
  scale.style.setProperty('--line', tall + 'px');
  const lines = named ? 'A line for each CPU' : `A line for each CPU (${cpus.slice(0, 16).join(', ')} …)`;
  return h('div', {}, named ? h('div', { class: 'lengths' }, scale, picture) : picture,
    h('p', { class: 'sub' }, `${lines}, from ${clock(from)} to ${clock(last[0])}; the stronger the colour, the busier.`));
}

const USE = [['CPU %', 'n'], ['Waited %', 'n'], ['Throttled %', 'n']];
const use = now => [cell(now.cpu), cell(now.wait), cell(now.throttled)];
const cpuNames = () => live.cpus.map(cpu => cpu.cpu);

function taskTable(tasks, most = 200) {
  return table('Tasks', [['Task'], ['PID', 'n'], ['CPU', 'n'], ['CPU %', 'n'], ['Waited %', 'n'], ['Belongs to']],
    tasks.slice(0, most).map(task => h('tr', {}, h('td', { class: 'name' }, taskLink(task)), h('td', { class: 'n' }, String(task.tgid)),
      h('td', { class: 'n' }, task.cpu === null ? '?' : String(task.cpu)), cell(task.cpu_pct), cell(task.wait_pct), h('td', { class: 'name' }, task.kernel ? 'kernel' : ownerLink(ownerOf(task.owner))))));
}
function ownerTable(owners, most = 500, caption = 'Owners') {
  return table(caption, [['Who'], ['Kind'], ['Tasks', 'n'], ...USE, ['Stolen %', 'n'], ['p99 ms of all waits', 'n']],
    owners.slice(0, most).map(owner => h('tr', {}, h('td', { class: 'name' }, ownerLink(owner)), h('td', {}, owner.kind), h('td', { class: 'n' }, String(owner.tasks)),
      use(owner.now), cell(owner.now.stolen), cell(owner.wait_p99_ms, 3))));
}
/// Those that wait; the others would push the matrix off the screen.
function waiters() {
  const list = live.owners.filter(owner => owner.now.wait !== 0), others = live.owners.length - list.length;
  return [ownerTable(list.sort(waiting), 50), others ? h('p', { class: 'sub' }, `${others} more did not wait.`) : null];
}
const waiting = (a, b) => (b.now.wait ?? -1) - (a.now.wait ?? -1);

const pages = {
  '': ['Overview', () => {
    const sum = pick => live.owners.reduce((all, owner) => owner.now[pick] === null ? all : (all ?? 0) + owner.now[pick], null);
    return [h('h1', {}, 'Who has the CPU'),
      h('div', { class: 'tiles' }, tile(number(live.host.busy_pct, 0) + ' %', `busy of ${live.host.cpus * 100} % (${live.host.cpus} CPUs)`, 'cpu'),
        tile(number(sum('wait'), 0) + ' %', 'waited, summed over tasks', 'wait'), tile(number(sum('throttled'), 0) + ' %', 'throttled by quotas', 'hold'),
        tile(number(live.host.steal_pct, 1) + ' %', 'stolen by the hypervisor', 'steal'), tile(String(live.host.tasks), `tasks, ${live.host.active} active`), networkTiles(live.host.network)),
      chart(series, [[1, 'busy', 'cpu'], [2, 'stolen', 'steal']], 'percent of one CPU', 120),
      chart(series, [[3, 'waited, summed over tasks', 'wait']], 'percent of one CPU', 120),
      h('h2', {}, 'Most CPU'), ownerTable(live.owners.filter(owner => owner.now.cpu >= .05), 8, 'Most CPU'),
      h('h2', {}, 'Longest waits'), ownerTable([...live.owners].filter(owner => owner.now.wait > 0).sort(waiting), 5, 'Longest waits'),
      h('h2', {}, 'Tasks that used or wanted most CPU'), taskTable(live.tasks, 10),
      live.notes.length ? [h('h2', {}, 'Notes'), h('ul', {}, live.notes.map(note => h('li', {}, note)))] : null,
      h('p', { class: 'sub' }, 'Percent is of one CPU. Waited is time runnable without a CPU, throttled time included; all waits are those since the server began. "?" is unknown, not zero.')];
  }],
  cpus: ['CPUs', () => {
    const groups = new Map();
    for (const cpu of live.cpus) {
      const key = `Node ${cpu.node ?? '?'}, socket ${cpu.socket ?? '?'}`;
      groups.set(key, [...(groups.get(key) || []), cpu]);
    }
    return [h('h1', {}, 'CPU map'), [...groups].map(([name, cpus]) => [h('h2', {}, name), h('div', { class: 'cores', role: 'list' }, cpus.map(cpu => {
      const bar = h('i', { 'aria-hidden': 'true' });
      bar.style.setProperty('height', Math.min(100, cpu.busy_pct) + '%');
      return h('div', { class: 'core', role: 'listitem' }, bar, h('b', {}, `CPU ${cpu.cpu}${cpu.isolated ? ' *' : ''}`),
        h('span', {}, number(cpu.busy_pct, 0) + ' % busy'), cpu.steal_pct > 0 ? h('span', { class: 'steal' }, number(cpu.steal_pct) + ' % stolen') : null,
        h('span', { class: 'unknown' }, 'core ' + (cpu.core ?? '?')));
    }))]), h('p', { class: 'sub' }, 'CPUs of one core share it. * isolated: outside the scheduler\'s load balancing.'),
      h('h2', {}, 'The last quarter of an hour'), shades(series.map(row => [row[0], row[5]]))];
  }],
  map: ['Map', () => {
    const rows = [...lately.values()].sort((a, b) => b.ran - a.ran).slice(0, 40), cpus = cpuNames().slice(0, 64);
    return [h('h1', {}, 'Cores and tasks'),
      h('p', { class: 'sub' }, 'CPU of each task by the core it was seen on, percent of one CPU, over the samples since this page was opened (at most 60).'),
      table('Cores and tasks', [['Task'], ...cpus.map(cpu => ['CPU ' + cpu, 'n'])], rows.map(row => h('tr', {}, h('td', { class: 'name' }, taskLink(row)), cpus.map(cpu => {
        const share = (row.by.get(cpu) || 0) / row.looks, box = h('td', { class: 'cell' }, share >= .05 ? number(share) : '');
        box.style.setProperty('background', `color-mix(in srgb, var(--cpu) ${Math.min(50, Math.round(share / 2))}%, transparent)`);
        return box;
      }))))];
  }],
  tree: ['Tree', () => [h('h1', {}, 'Who is in what'),
    h('div', { class: 'choice' }, [['By pod and container', false], ['By core', true]].map(([text, way]) =>
      h('button', { type: 'button', 'aria-pressed': String(flat === way), 'data-key': 'way' + way, onclick: () => { flat = way; draw(); } }, text))),
    flat ? byCore() : byOwner()]],
  timeline: ['Timeline', () => [h('h1', {}, 'The last quarter of an hour'),
    chart(series, [[1, 'busy', 'cpu'], [2, 'stolen', 'steal']], 'percent of one CPU', 150),
    h('h2', {}, 'Waits'), chart(series, [[3, 'waited, summed over tasks', 'wait'], [4, 'throttled', 'hold']], 'percent of one CPU', 150),
    h('h2', {}, 'Fulfilment'), chart(series, [[6, 'CPU got of what was wanted (estimate)', 'good']], 'percent', 140),
    h('h2', {}, 'By CPU'), shades(series.map(row => [row[0], row[5]])),
    marks.length ? [h('h2', {}, 'What the loop did'), h('ul', {}, marks.slice(-30).reverse().map(mark => h('li', {}, time(mark[0]) + ' ' + mark[1])))] : null]],
  waits: ['Waits', () => [h('h1', {}, 'Who waits, and for whom'), waiters(),
    h('h2', {}, 'Victims and culprits'), live.blame === null
      ? h('p', { class: 'sub' }, 'Who ran while others waited is not counted: the overview says why, unless evenkeel was started with "--blame off". Ask "evenkeel why TARGET".') : [partly(), matrix(live.blame), h('h2', {}, 'Pairs'), blameTable(live.blame)]]],
  findings: ['Findings', () => findings.data === null ? [h('h1', {}, 'Findings'), h('p', {}, findings.error ?? 'Looking at the set-up …')] : findingsPage()],
  past: ['Past', () => pastPage()],
  loop: ['Loop', () => loopPage(detail.key === 'loop0' ? detail.data : null)],
  reports: ['Reports', () => reportsPage(detail.key === 'reports0' ? detail.data : null)],
};

/// Where waits are counted in turns.
function partly() {
  const share = live.blame_observed ?? 1;
  return share > .995 ? null : h('p', { class: 'sub' }, `Counted ${number(100 * share)} % of the last minute, which stands for all of it ("--blame always" counts without a break).`);
}
function blameTable(blame) {
  return table('Victims and culprits', [['Victim'], ['Culprit'], ['Seconds', 'n']],
    [...blame].sort((a, b) => b[2] - a[2]).slice(0, 100).map(([victim, culprit, seconds]) => h('tr', {}, h('td', { class: 'name' }, ofTitle(victim)), h('td', { class: 'name' }, ofTitle(culprit)), cell(seconds, 2))));
}
function fold(key, title, now, children) {
  const box = h('details', { open: open.has(key) ? '' : null, ontoggle: event => event.target.open ? open.add(key) : open.delete(key) },
    h('summary', { 'data-key': key }, title, h('span', { class: 'n' }, `${number(now.cpu)} % CPU, ${number(now.wait)} % waited`)));
  box.append(...children.flat(9).filter(Boolean));
  return box;
}
function total(parts) {
  return parts.reduce((all, part) => ({ cpu: all.cpu + part.cpu, wait: part.wait === null ? all.wait : (all.wait ?? 0) + part.wait }), { cpu: 0, wait: null });
}
const page = link => h('div', { class: 'leaf' }, 'Page: ', link);
const leaf = task => h('div', { class: 'leaf' }, taskLink(task), h('span', { class: 'n' }, `${number(task.cpu_pct)} % CPU, ${number(task.wait_pct)} % waited, CPU ${task.cpu ?? '?'}`));
function byOwner() {
  const groups = new Map();
  for (const owner of live.owners) {
    const way = owner.kind === 'container' ? (owner.pod ? ['Pods', (owner.namespace || '?') + '/' + owner.pod] : ['Containers', '']) : owner.kind === 'vm' ? ['Virtual machines', ''] : ['Services (cgroups)', ''];
    const kind = groups.get(way[0]) || groups.set(way[0], new Map()).get(way[0]);
    kind.set(way[1], [...(kind.get(way[1]) || []), owner]);
  }
  const one = owner => fold('owner' + owner.number, brief(owner.title), owner.now, [page(ownerLink(owner))].concat(live.tasks.filter(task => task.owner === owner.number).map(leaf)));
  return [...groups].map(([kind, pods]) => {
    const all = [...pods.values()].flat();
    return fold('kind' + kind, `${kind} (${all.length})`, total(all.map(owner => owner.now)),
      [...pods].map(([pod, owners]) => pod === '' ? owners.map(one) : fold('pod' + pod, pod, total(owners.map(owner => owner.now)), [page(link('#/pod/' + encodeURIComponent(podKey(owners[0])), pod))].concat(owners.map(one)))));
  }).concat(h('p', { class: 'sub' }, 'Open a line for what is in it: the busiest 200 tasks are listed.'));
}
function byCore() {
  return live.cpus.map(cpu => {
    const tasks = live.tasks.filter(task => task.cpu === cpu.cpu);
    const by = new Map();
    for (const task of tasks) by.set(task.owner, [...(by.get(task.owner) || []), task]);
    const use = list => total(list.map(task => ({ cpu: task.cpu_pct, wait: task.wait_pct })));
    return fold('cpu' + cpu.cpu, `CPU ${cpu.cpu}: ${number(cpu.busy_pct, 0)} % busy`, use(tasks),
      [...by].sort((a, b) => use(b[1]).cpu - use(a[1]).cpu).map(([owner, list]) => owner === null ? list.map(leaf)
        : fold(`cpu${cpu.cpu}owner${owner}`, brief(ownerOf(owner)?.title ?? '-'), use(list), [page(ownerLink(ownerOf(owner)))].concat(list.map(leaf)))));
  }).concat(h('p', { class: 'sub' }, 'A task counts on the core it was seen on last.'));
}

function findingsPage() {
  const rank = { error: 0, warning: 1, info: 2 };
  const list = findings.data.findings.filter(finding => finding.status === 'fail' && !finding.ignored).sort((a, b) => rank[a.severity] - rank[b.severity]);
  const sums = findings.data.summary;
  return [h('h1', {}, 'Findings on the set-up'),
    h('p', { class: 'sub' }, `${sums.pass} passed, ${sums.fail} failed, ${sums.unknown} unknown; looked at ${date(findings.data.at_ms)}. As "evenkeel check" says, with the rights of this server.`),
    list.length ? list.map(finding => h('section', { class: 'finding ' + finding.severity }, h('h2', {}, `${finding.severity}: ${finding.subject} `, h('span', { class: 'unknown' }, finding.rule)),
      h('p', {}, finding.evidence), finding.consequence ? h('p', {}, h('strong', {}, 'Consequence: '), finding.consequence) : null,
      finding.fix ? [h('p', {}, h('strong', {}, 'Fix:')), h('pre', { tabindex: '0' }, finding.fix)] : null)) : sums.unknown ? h('p', {}, `Nothing is known to be wrong; ${sums.unknown} could not be told: "evenkeel check" says why.`) : h('p', { class: 'good' }, 'Nothing is wrong with the set-up.')];
}

function networkTiles(network) {
  return network.net_received_bytes === null ? [] : [tile(`${bytes(network.net_received_bytes)} / ${bytes(network.net_sent_bytes)}`, 'network received / sent in all'),
    tile(network.tcp_retransmits === null ? '?' : number(network.tcp_retransmits, 0), 'TCP segments sent again in all')];
}

function ownerPage(data) {
  const owner = data.owner;
  if (!owner) return [h('h1', {}, 'Gone'), h('p', {}, 'No container, service or virtual machine has this number any more.')];
  return [h('h1', {}, brief(owner.title)), h('p', { class: 'sub' }, `${owner.kind}${owner.path ? ', cgroup ' + owner.path : ''}`),
    h('div', { class: 'tiles' }, tile(number(owner.now.cpu) + ' %', 'CPU', 'cpu'), tile(number(owner.now.wait) + ' %', 'waited', 'wait'), tile(number(owner.now.throttled) + ' %', 'throttled', 'hold'),
      tile(number(owner.now.stolen) + ' %', 'stolen (estimate)', 'steal'), tile(data.limits.limited ? number(data.limits.quota_pct) + ' %' : data.limits.limited === false ? 'none' : '?', 'limit of its own'),
      tile(data.limits.weight === null ? '?' : String(data.limits.weight), 'weight'), tile(data.limits.cpuset ?? '?', 'CPUs allowed'),
      tile(bytes(data.beside.rss_bytes), 'memory'),
      tile(number(data.beside.memory_pressure_pct) + ' %', 'stalled on memory, 10 s'), tile(number(data.beside.io_pressure_pct) + ' %', 'stalled on I/O, 10 s'), networkTiles(data.beside)),
    chart(data.moments, [[1, 'CPU', 'cpu'], [2, 'waited', 'wait'], [3, 'throttled', 'hold']], 'percent of one CPU'),
    h('h2', {}, 'Lengths of its waits'), data.waits === null ? h('p', { class: 'sub' }, 'None was counted yet.')
      : [partly(), waitsTable(data.waits)], lengthsOverTime(data.lengths),
    data.blame === null ? null : [h('h2', {}, 'Victim of, culprit for'), blameTable(data.blame)],
    h('h2', {}, 'Tasks'), taskTable(data.tasks)];
}
function plain(encoded) {
  try { return decodeURIComponent(encoded); } catch { return encoded; }
}
function route() {
  const [, name = '', arg = ''] = location.hash.split('/');
  return { name, arg: name === 'pod' ? plain(arg) : Number(arg) };
}

/// Draws the page anew; the focus stays where it was.
function draw() {
  if (!live || live.at_ms === null) return;
  const { name, arg } = route(), focus = document.activeElement?.getAttribute('data-key');
  let body;
  const own = { owner: ownerPage, task: taskPage, pod: podPage }[name];
  if (own) {
    const shown = detail.key === name + arg && detail.data;
    body = !shown ? [h('p', {}, 'Looking …')] : own(detail.data);
  } else {
    body = (pages[name] || pages[''])[1]();
  }
  const scrolled = [...main.querySelectorAll('.wide')].map(box => box.scrollLeft), nodes = body.flat(9).filter(Boolean), boxes = [...main.children];
  // Who types in a field is not interrupted: of the same page only what is below the field is drawn, which may be of another choice.
  const typed = document.activeElement?.tagName === 'INPUT' && main.dataset.page === name + (arg || '') ? boxes.findIndex(box => box.contains(document.activeElement)) : -1;
  if (typed < 0) main.replaceChildren(...nodes);
  else {
    boxes.slice(typed + 1).forEach(box => box.remove());
    main.append(...nodes.slice(typed + 1));
  }
  main.querySelectorAll('.wide').forEach((box, at) => { box.scrollLeft = scrolled[at] || 0; });
  if (focus && typed < 0) main.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  document.title = (main.querySelector('h1')?.textContent ?? '') + ' · evenkeel';
  document.getElementById('host').textContent = `${live.host.name}, ${live.host.cpus} CPUs, Linux ${live.host.kernel}`;
  const shown = Object.entries(pages).filter(([key]) => key !== 'loop' || live.loop);
  document.getElementById('nav').replaceChildren(...shown.map(([key, [title]]) => h('a', { href: '#/' + key, 'data-key': 'nav' + key, 'aria-current': key === name ? 'page' : null }, title)));
  if (focus?.startsWith('nav')) document.querySelector(`[data-key="${CSS.escape(focus)}"]`)?.focus({ preventScroll: true });
  main.dataset.page = name + (arg || '');
}

async function ask(path) {
  const answer = await fetch(path, { cache: 'no-store' });
  if (!answer.ok) throw new Error((await answer.text()).trim() || 'status ' + answer.status);
  return answer.json();
}
async function askFindings() {
  if (Date.now() - findings.at < 60000) return;
  findings.at = Date.now();
  try { findings.data = await ask('api/findings'); findings.error = null; } catch (error) { findings.error = error.message; }
  draw();
}
async function askDetail() {
  const { name, arg } = route();
  const from = { owner: () => ask('api/owner?number=' + arg), task: () => ask('api/task?tid=' + arg), pod: live?.owners && (() => askPod(arg)),
    loop: () => ask('api/promises'), reports: () => ask('api/reports') }[name];
  if (from) detail = { key: name + arg, data: await from() };
}

/// Tasks as seen in the last looks, for the map and their lines.
function remember() {
  for (const task of live.tasks) {
    const key = task.tid + ' ' + task.start;
    const row = lately.get(key) || { tid: task.tid, start: task.start, by: new Map(), ran: 0, looks: 0, looked: 0, points: [] };
    if (row.at === live.at_ms) continue;
    Object.assign(row, { comm: task.comm, at: live.at_ms });
    row.points.push([live.at_ms, task.cpu_pct, task.wait_pct]);
    if (task.cpu !== null) row.by.set(task.cpu, (row.by.get(task.cpu) || 0) + task.cpu_pct);
    row.ran += task.cpu_pct;
    lately.set(key, row);
  }
  // Where all who want CPU are listed, who is not wants none: that is a look at it, too.
  const idle = live.host.active <= 200 ? 0 : null;
  for (const [key, row] of lately) {
    if (live.at_ms - row.at > 120000) lately.delete(key);
    if (row.looked === live.at_ms) continue;
    row.looked = live.at_ms;
    if (row.at !== live.at_ms) row.points.push([live.at_ms, idle, row.points.at(-1)[2] === null ? null : idle]);
    if (row.points.length > 900) row.points.shift();
    if (++row.looks < 60) continue;
    row.by.forEach((sum, cpu) => row.by.set(cpu, sum / 2));
    row.looks /= 2;
    row.ran /= 2;
  }
}

/// What is wrong, or nothing: a screen reader says it once, and figures that are no longer new lose their colours.
function trouble(text) {
  const box = document.getElementById('trouble');
  if (box.textContent !== text) box.textContent = text;
  main.classList.toggle('stale', text !== '');
}
const noAnswer = why => trouble((live?.at_ms ? `no answer since ${time(live.at_ms)}` : 'no answer') + (why ? ': ' + why : ''));

/// Drawn anew, a page loses a click that has begun and text that is selected. So it waits for their end.
let pressed = false;
addEventListener('pointerdown', event => { pressed = event.button === 0; });
for (const end of ['pointerup', 'pointercancel', 'blur']) addEventListener(end, () => { pressed = false; });
const isSelected = () => !getSelection().isCollapsed && main.contains(getSelection().anchorNode);

/// The last look, and when this page saw it first: a server answers while nothing looks at the host any more.
let looked = { at: 0, since: 0 };
function take(now, timeline, of) {
  live = now;
  const state = document.getElementById('state');
  if (looked.at !== live.at_ms) looked = { at: live.at_ms, since: Date.now() };
  trouble(live.at_ms !== null && Date.now() - looked.since > 5000 + 3000 * live.interval_s ? `the host was not looked at since ${time(live.at_ms)}` : '');
  if (live.at_ms === null) { state.textContent = 'starting'; return; }
  // A clock that was set back: what was known is of a time to come.
  if (series.length && series.at(-1)[0] > live.at_ms + 5000) { series = series.filter(moment => moment[0] <= live.at_ms); lately.clear(); }
  const since = series.length ? series.at(-1)[0] : 0;
  series = series.concat(timeline.moments.filter(moment => moment[0] > since)).slice(-900);
  marks = timeline.marks;
  remember();
  if (of) detail = of;
  state.textContent = time(live.at_ms) + (isSelected() ? ', held while text is selected' : '');
  if (!pressed && !isSelected()) draw();
}
async function update() {
  try {
    const since = series.length ? series.at(-1)[0] : 0;
    const [now, timeline] = await Promise.all([ask('api/live'), ask('api/timeline?since=' + since)]);
    await askDetail();
    take(now, timeline);
  } catch (error) {
    noAnswer(error.message);
  }
}

/// What the server tells by itself, and for which page.
let stream = null, streamKey = '';
/// When it told something last, and until when it is asked instead.
let heard = 0, askUntil = 0;
function hangUp() {
  stream?.close();
  stream = null;
}
/// Whether the server tells by itself; where not, it is asked for another minute.
function follow() {
  if (Date.now() < askUntil) return false;
  const { name, arg } = route(), key = name === 'owner' || name === 'task' ? name + arg : '';
  if (stream && streamKey !== key) hangUp();
  if (!stream) {
    const since = series.length ? series.at(-1)[0] : 0;
    const mine = new EventSource(`api/events?since=${since}${key ? `&${name}=${arg}` : ''}`);
    mine.onmessage = event => {
      if (mine !== stream) return;
      const told = JSON.parse(event.data);
      heard = Date.now();
      take(told.live, told.timeline, key ? { key, data: told.detail } : null);
    };
    // One that is refused; one that is lost is taken up again by the browser.
    mine.onerror = () => {
      if (mine !== stream) return;
      if (mine.readyState === EventSource.CLOSED) giveUp();
      else noAnswer('');
    };
    stream = mine;
    streamKey = key;
    heard = Date.now();
  }
  if (Date.now() - heard > 5000 + 3000 * (live?.interval_s ?? 1)) giveUp();
  return stream !== null;
}
function giveUp() {
  hangUp();
  askUntil = Date.now() + 60000;
}
/// Whether the stream has what this page shows in detail; the others ask for it.
function isTold() { return ['owner', 'task'].includes(route().name); }
async function askShown() {
  try { await askDetail(); } catch (error) { noAnswer(error.message); }
}
async function rounds() {
  if (paused || document.hidden) hangUp();
  else if (!follow()) await update();
  else if (!isTold()) await askShown();
  // The next question comes when this one is answered: a slow server is not asked more.
  setTimeout(rounds, Math.max(1000, (live?.interval_s ?? 1) * 1000));
}
/// `event`: that of the address; without one the page was just opened, where the header comes first for the keyboard.
async function turned(event) {
  const { name } = route();
  // Without a beginning it is the time up to now, which has moved on.
  if (name === 'past' && (!past.data || past.from === '')) askPast();
  if (name === 'findings') askFindings();
  if (event) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
  }
  if (paused || document.hidden || !follow() || !isTold()) await askShown();
  draw();
}
const pause = document.getElementById('pause');
pause.addEventListener('click', () => {
  paused = !paused;
  pause.setAttribute('aria-pressed', String(paused));
  pause.textContent = paused ? 'Go on' : 'Pause';
});
addEventListener('hashchange', turned);
addEventListener('resize', draw);
document.addEventListener('visibilitychange', () => { if (document.hidden) hangUp(); });
document.querySelector('.skip').addEventListener('click', event => { event.preventDefault(); main.focus(); });
rounds().then(() => turned());
