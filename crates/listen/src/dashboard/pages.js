'use strict';
// Parts of pages that `dashboard.js` puts together. Names are data here, too: set as text, never as markup.

/// A title with container ids cut to the twelve characters that tools show; "/" alone says little.
const brief = title => title === '/' ? '/ (root cgroup)' : title.replace(/\b([0-9a-f]{12})[0-9a-f]{52}\b/g, '$1');
const ofTitle = title => {
  const owner = live.owners.find(one => one.title === title);
  return owner ? ownerLink(owner) : brief(title);
};

/// Victims by culprits, the greatest first; the stronger the colour, the longer.
function matrix(blame, most = 10) {
  const sums = at => {
    const by = new Map();
    for (const row of blame) by.set(row[at], (by.get(row[at]) || 0) + row[2]);
    return [...by].sort((a, b) => b[1] - a[1]).map(([name]) => name).slice(0, most);
  };
  const culprits = sums(1), cells = new Map(blame.map(([victim, culprit, seconds]) => [victim + '\n' + culprit, seconds]));
  const victims = sums(0).filter(victim => culprits.some(culprit => cells.has(victim + '\n' + culprit)));
  const top = Math.max(.001, ...blame.map(row => row[2]));
  const box = h('div', { class: 'wide', tabindex: '0', role: 'region', 'aria-label': 'Matrix of victims and culprits, seconds' }, h('table', { class: 'matrix' },
    h('thead', {}, h('tr', {}, h('th', { scope: 'col' }, 'Victim \\ culprit'), culprits.map(culprit => h('th', { scope: 'col', class: 'n' }, brief(culprit))))),
    h('tbody', {}, victims.length ? victims.map(victim => h('tr', {}, h('th', { scope: 'row' }, ofTitle(victim)), culprits.map(culprit => {
      const seconds = cells.get(victim + '\n' + culprit), one = h('td', { class: 'cell' }, seconds === undefined ? '' : number(seconds, seconds < 10 ? 2 : 0));
      if (seconds !== undefined) one.style.setProperty('background', `color-mix(in srgb, var(--wait) ${Math.round(8 + 42 * Math.sqrt(seconds / top))}%, transparent)`);
      return one;
    }))) : h('tr', {}, h('td', { class: 'unknown', colspan: '2' }, 'none')))));
  return [box, h('p', { class: 'sub' }, 'Seconds that the one waited while the other had its CPU, since the server began.')];
}

const usecs = usec => usec >= 1e6 ? number(usec / 1048576, 0) + ' s' : usec >= 1000 ? number(usec / 1024, 0) + ' ms' : usec + ' µs';

/// Lengths of waits over time: a column a slot, a line an octave; the stronger the colour, the larger its part of the slot's waits.
function lengthsOverTime(lengths, title = 'Lengths of its waits over time') {
  if (!lengths || lengths.slots.length < 2) return null;
  const slots = lengths.slots, starts = [...new Set(slots.flatMap(([, octaves]) => octaves.map(one => one[0])))].sort((a, b) => b - a);
  if (!starts.length) return null;
  const first = slots[0][0], columns = Math.max(2, Math.round((slots.at(-1)[0] - first) / lengths.slot_ms) + 1), tall = 14;
  const worst = slots.map(([, octaves]) => Math.max(0, ...octaves.map(one => one[0])));
  const picture = h('canvas', { width: columns * 8, height: starts.length * tall, role: 'img',
    'aria-label': `Lengths of waits from ${date(first)} to ${date(slots.at(-1)[0])}. The longest of each quarter minute began at ${usecs(Math.min(...worst))} to ${usecs(Math.max(...worst))}; those of the last at ${usecs(worst.at(-1))}.` });
  const paint = picture.getContext('2d');
  paint.fillStyle = getComputedStyle(document.documentElement).getPropertyValue('--wait').trim();
  for (const [at, octaves] of slots) {
    const all = octaves.reduce((sum, one) => sum + one[1], 0), column = Math.round((at - first) / lengths.slot_ms);
    for (const [from, count] of octaves) {
      paint.globalAlpha = Math.min(1, .12 + .88 * Math.sqrt(count / all));
      paint.fillRect(column * 8, starts.indexOf(from) * tall, 7, tall - 1);
    }
  }
  picture.style.setProperty('height', starts.length * tall + 'px');
  const scale = h('div', { class: 'scale', 'aria-hidden': 'true' }, starts.map(from => h('span', {}, usecs(from))));
  return [h('h2', {}, title), h('div', { class: 'lengths' }, scale, picture),
    h('p', { class: 'sub' }, `${time(first)} to ${time(slots.at(-1)[0] + lengths.slot_ms)}, a column for each ${lengths.slot_ms / 1000} s, longest waits on top; the stronger the colour, the more of the waits.`)];
}

const podKey = owner => (owner.namespace ? owner.namespace + '/' : '') + owner.pod;
const ofPod = key => live.owners.filter(owner => owner.kind === 'container' && owner.pod && podKey(owner) === key);

/// What is known of each container of a pod; a page of more than these is of no use.
async function askPod(key) {
  return Promise.all(ofPod(key).slice(0, 12).map(owner => ask('api/owner?number=' + owner.number)));
}
function podPage(parts) {
  const known = parts.filter(part => part.owner), { arg } = route();
  if (!known.length) return [h('h1', {}, 'Gone'), h('p', {}, 'No pod has this name any more.')];
  const now = ofPod(arg), owners = now.length ? now : known.map(part => part.owner);
  const sum = pick => owners.reduce((all, owner) => owner.now[pick] === null ? all : (all ?? 0) + owner.now[pick], null);
  const add = (one, other) => one === null ? other : other === null ? one : one + other, moments = new Map(), waits = new Map(), blame = new Map();
  for (const part of known) {
    for (const row of part.moments) moments.set(row[0], (moments.get(row[0]) || [row[0], null, null, null]).map((value, at) => at ? add(value, row[at]) : value));
    for (const [from, to, count] of part.waits || []) waits.set(from, [from, to, (waits.get(from)?.[2] || 0) + count]);
    for (const [victim, culprit, seconds] of part.blame || []) blame.set(victim + '\n' + culprit, [victim, culprit, seconds]);
  }
  const rss = known.reduce((all, part) => add(all, part.beside.rss_bytes ?? null), null);
  return [h('h1', {}, 'Pod ' + arg),
    h('div', { class: 'tiles' }, tile(number(sum('cpu')) + ' %', 'CPU', 'cpu'), tile(number(sum('wait')) + ' %', 'waited', 'wait'), tile(number(sum('throttled')) + ' %', 'throttled', 'hold'),
      tile(number(sum('stolen')) + ' %', 'stolen (estimate)', 'steal'), tile(bytes(rss), 'memory'), tile(String(owners.length), 'containers')),
    chart([...moments.values()].sort((a, b) => a[0] - b[0]), [[1, 'CPU', 'cpu'], [2, 'waited', 'wait'], [3, 'throttled', 'hold']], 'percent of one CPU'),
    owners.length > known.length ? h('p', { class: 'sub' }, `The curves, memory and waits are those of ${known.length} of its containers.`) : null,
    h('h2', {}, 'Containers'), ownerTable(owners, 500, 'Containers'),
    h('h2', {}, 'Lengths of their waits'), waits.size ? [partly(), waitsTable([...waits.values()].sort((a, b) => a[0] - b[0]))] : h('p', { class: 'sub' }, 'None was counted yet.'),
    blame.size ? [h('h2', {}, 'Victim of, culprit for'), blameTable([...blame.values()])] : null,
    h('h2', {}, 'Tasks'), taskTable(known.flatMap(part => part.tasks))];
}

function waitsTable(waits, since = 'All since the server began.') {
  const most = Math.max(1, ...waits.map(one => one[2]));
  return [since ? h('p', { class: 'sub' }, since) : null, table('Lengths of waits', [['From', 'n'], ['To', 'n'], ['Waits', 'n'], ['Picture']], waits.map(([from, to, count]) => {
    const bar = s('svg', { height: 12, viewBox: '0 0 100 10', preserveAspectRatio: 'none', 'aria-hidden': 'true', class: 'wait' }, s('rect', { width: 100 * count / most, height: 10, fill: 'currentColor' }));
    return h('tr', {}, h('td', { class: 'n' }, usecs(from)), h('td', { class: 'n' }, usecs(to)), cell(count, 0), h('td', { class: 'name' }, bar));
  }))];
}

function reportsPage(data) {
  if (!data) return [h('h1', {}, 'Lab reports'), h('p', {}, 'Looking …')];
  return [h('h1', {}, 'Lab reports'), data.reports.length ? table('Lab reports', [['Report'], ['Written'], ['KiB', 'n']], data.reports.map(one => h('tr', {},
    h('td', { class: 'name' }, link('reports/' + encodeURIComponent(one.name), one.name)), h('td', {}, one.written_ms === null ? '?' : date(one.written_ms)), cell(one.bytes / 1024, 0))))
    : h('p', {}, 'None there yet.'), data.more ? h('p', { class: 'sub' }, 'The newest 200.') : null,
    h('p', { class: 'sub' }, `Folders with a report.html in ${data.directory}: "evenkeel lab run EXPERIMENT --out DIR" writes one. Links are not followed, and scripts of a report do not run.`)];
}

/// Past moments (end in ms, seconds, figures), with a row that knows nothing where one does not begin at the end of the one before.
const withGaps = moments => moments.flatMap((row, at) => {
  const before = moments[at - 1], begin = row[0] - 1000 * row[1];
  return before && begin - before[0] > 15000 ? [[Math.min(begin, before[0] + 1000 * before[1])], row] : [row];
});

/// The hour before and after, beside the choice of a time.
function pastSteps(go) {
  const pad = value => String(value).padStart(2, '0');
  const local = at => `${at.getFullYear()}-${pad(at.getMonth() + 1)}-${pad(at.getDate())}T${pad(at.getHours())}:${pad(at.getMinutes())}`;
  const step = way => {
    const span = past.hours * 3600000, from = past.from ? new Date(past.from).getTime() : Date.now() - span;
    const next = from + way * span;
    past.from = next + span > Date.now() ? '' : local(new Date(next));
    go();
  };
  return [['Earlier', -1, false], ['Later', 1, past.from === '']].map(([text, way, off]) => h('button', { type: 'button', 'data-key': 'step' + way, disabled: off ? '' : null, onclick: () => step(way) }, text));
}

function pastPage() {
  const ask = () => { past.data = past.error = null; draw(); askPast(); };
  const hours = [[1, 'Hour'], [6, '6 hours'], [24, 'Day'], [168, 'Week']];
  const page = [h('h1', {}, 'Past hours'), h('div', { class: 'choice' },
    hours.map(([count, text]) => h('button', { type: 'button', 'aria-pressed': String(past.hours === count), 'data-key': 'hours' + count, onclick: () => { past.hours = count; ask(); } }, text)),
    pastSteps(ask), h('label', {}, 'beginning at ', h('input', { type: 'datetime-local', value: past.from, 'data-key': 'from', onchange: event => { past.from = event.target.value; ask(); } })))];
  if (past.error) return page.concat(h('p', {}, past.error));
  if (!past.data) return page.concat(h('p', {}, 'Reading the history …'));
  if (!past.data.moments.length) return page.concat(h('p', {}, 'Nothing was recorded in this time. What is seen now is written after some seconds.'));
  const rows = withGaps(past.data.moments);
  return page.concat(h('p', { class: 'sub' }, `${date(past.data.from_ms)} to ${date(past.data.to_ms)}: recorded are ${number(past.data.covered_s / 60, 0)} min of it. Times are this browser's (${Intl.DateTimeFormat().resolvedOptions().timeZone}); the commands write UTC.`),
    chart(rows, [[2, 'busy', 'cpu'], [3, 'stolen', 'steal']], 'percent of one CPU', 150),
    chart(rows, [[4, 'waited, summed over tasks', 'wait']], 'percent of one CPU', 150),
    shades(rows.map(row => [row[0], row[5]])),
    h('h2', {}, 'Who had the CPU'), table('Owners in this time', [['Who'], ['CPU %', 'n'], ['Waited %', 'n']],
      past.data.owners.map(owner => h('tr', {}, h('td', { class: 'name' }, brief(owner.name)), cell(owner.cpu_pct), cell(owner.wait_pct)))),
    past.data.waits.length ? [h('h2', {}, 'Lengths of waits'), table('Lengths of waits', [['Container'], ['Waits', 'n'], ['p50 ms', 'n'], ['p99 ms', 'n']],
      past.data.waits.map(one => h('tr', {}, h('td', { class: 'name' }, brief(one.name)), cell(one.count, 0), cell(one.p50_ms, 3), cell(one.p99_ms, 3))))] : []);
}
async function askPast() {
  const span = past.hours * 3600000, from = past.from ? new Date(past.from).getTime() : Date.now() - span;
  const mine = past.asked = {}, answer = { data: null, error: null };
  try { answer.data = await ask(`api/history?from=${Math.round(from)}&to=${Math.round(from + span)}`); } catch (error) { answer.error = error.message; }
  // Another time was asked for meanwhile: a week takes longer to read than an hour.
  if (past.asked !== mine) return;
  Object.assign(past, answer);
  draw();
}
