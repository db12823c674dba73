'use strict';
// The page of a task: it can ask the server to watch its process for some seconds. Names are set as text, never as markup.

/// What a process answers that was watched because somebody asked.
let watched = { pid: 0, busy: false, data: null, error: null };
async function watchProcess(pid) {
  const mine = watched = { pid, busy: true, data: null, error: null };
  draw();
  try { Object.assign(mine, { data: await ask('api/why?pid=' + pid), at: Date.now() }); } catch (error) { mine.error = error.message; }
  mine.busy = false;
  draw();
}
function whyPart(data) {
  if (data.task.kernel) return null;
  const pid = data.task.tgid, own = watched.pid === pid ? watched : null;
  const button = h('button', { type: 'button', 'data-key': 'watch', disabled: watched.busy ? '' : null, onclick: () => watchProcess(pid) }, own?.data ? 'Watch it again' : 'Watch it for 3 seconds');
  return [h('h2', {}, 'Its waits, and who took its time'), h('p', {}, button, ' ', h('span', { role: 'status' }, own?.busy ? 'Watching …' : own?.error ?? '')),
    own?.data ? whyAnswer(own.data, own.at) : h('p', { class: 'sub' }, `Counts each wait of process ${pid} and who ran meanwhile, as "evenkeel why pid:${pid}" does; nothing is changed.`)];
}
/// `at`: when the answer came.
function whyAnswer(why, at) {
  const part = share => number(why.shares?.[share]) + ' %', waits = why.wait_histogram_usec;
  return [h('div', { class: 'tiles' }, tile(part('ran'), 'ran', 'cpu'), tile(part('waited'), 'waited', 'wait'), tile(part('throttled'), 'throttled', 'hold'), tile(part('stolen'), 'stolen', 'steal'), tile(part('slept'), 'slept')),
    h('p', { class: 'sub' }, `Of the time of ${why.threads} thread${why.threads === 1 ? '' : 's'} in ${number(why.wall_s)} s until ${date(at)}. ${why.notes.join('. ')}`),
    waits ? [h('h3', {}, `Lengths of its ${waits.count} waits`), waitsTable(waits.buckets.map(one => [one.from, one.to, one.count]), null)] : null,
    why.blame ? [h('h3', {}, 'Who had the CPU meanwhile'), table('Culprits', [['Who'], ['Kind'], ['Belongs to'], ['Seconds', 'n'], ['Share %', 'n']], why.blame.slice(0, 20).map(one =>
      h('tr', {}, h('td', { class: 'name' }, one.tid ? link('#/task/' + one.tid, `${one.name} ${one.tid}`) : one.name, one.own ? ' (its own thread)' : ''), h('td', {}, one.kind.replace('-', ' ')),
        h('td', { class: 'name' }, brief(one.container ?? one.cgroup ?? '-')), cell(one.seconds, 3), cell(one.share_pct))))] : null,
    why.throttled_by.length ? [h('h3', {}, 'Whose quota held it back'), table('Quotas', [['cgroup'], ['Seconds', 'n']], why.throttled_by.map(one => h('tr', {}, h('td', { class: 'name' }, brief(one.cgroup ?? '?')), cell(one.seconds, 3))))] : null];
}
/// Waits of whom it belongs to: they are counted by cgroup, not by task.
function ownersWaits(data) {
  if (!data.owner_waits) return null;
  const whose = brief(data.owner.title);
  return [h('h2', {}, 'Lengths of the waits of all of ' + whose), waitsTable(data.owner_waits), lengthsOverTime(data.owner_lengths, 'Lengths of the waits of all of ' + whose + ' over time')];
}
function taskPage(data) {
  if (!data.task) return [h('h1', {}, 'Gone'), h('p', {}, 'No task has this number any more.')];
  const seen = lately.get(data.task.tid + ' ' + data.task.start);
  return [h('h1', {}, `${data.task.comm} ${data.task.tid}`), h('p', { class: 'sub' }, `Process ${data.task.tgid}, parent ${data.ppid}, cgroup ${data.cgroup || '?'}`),
    h('div', { class: 'tiles' }, tile(number(data.task.cpu_pct) + ' %', 'CPU', 'cpu'), tile(number(data.task.wait_pct) + ' %', 'waited', 'wait'), tile(String(data.task.cpu ?? '?'), 'last on CPU'), tile(data.limits.cpuset ?? '?', 'CPUs allowed by its cgroup')),
    h('p', {}, 'Belongs to: ', data.task.kernel ? 'the kernel' : data.owner ? ownerLink(data.owner) : '?'),
    seen ? chart(seen.points, [[1, 'CPU', 'cpu'], [2, 'waited', 'wait']], 'percent of one CPU') : null,
    h('p', { class: 'sub' }, 'The line begins when this page was opened and the task was among the busiest 200.'),
    whyPart(data), ownersWaits(data),
    data.siblings.length ? [h('h2', {}, 'Other threads of the process'), taskTable(data.siblings)] : null];
}
