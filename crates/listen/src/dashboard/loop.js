'use strict';
// The page of the loop: promises, changes in force and what is known of their effect. Names are set as text, never as markup.

/// How promises stood, look by look.
function record(list, unit, states) {
  const kinds = { kept: 'good', 'at risk': 'wait', broken: 'steal', refused: 'steal' };
  // The worse, the taller: colours alone would not tell everybody.
  const heights = { kept: 4, 'at risk': 7, broken: 10, refused: 10 };
  return list.map(one => {
    const rows = one.moments, judged = rows.filter(row => ['kept', 'at risk', 'broken', 'refused'].includes(states[row[2]]));
    const part = state => judged.length ? number(100 * judged.filter(row => states[row[2]] === state).length / judged.length, 0) + ' %' : '?';
    const words = `kept ${part('kept')}, at risk ${part('at risk')}, broken ${part('broken')} of ${judged.length} samples that could be judged`;
    const strip = s('svg', { class: 'strip', height: 14, viewBox: `0 0 ${Math.max(1, rows.length)} 10`, preserveAspectRatio: 'none', role: 'img', 'aria-label': `${one.name}: ${words}` });
    let from = 0;
    rows.forEach((row, at) => {
      if (at + 1 < rows.length && rows[at + 1][2] === row[2]) return;
      strip.append(s('rect', { x: from, y: 10 - (heights[states[row[2]]] ?? 2), width: at + 1 - from, height: heights[states[row[2]]] ?? 2, class: kinds[states[row[2]]] || 'unknown', fill: 'currentColor' }, s('title', {}, `${time(rows[from][0])} to ${time(row[0])}: ${states[row[2]]}`)));
      from = at + 1;
    });
    return h('section', {}, h('h3', {}, `${one.kind === 'service' ? 'Service' : 'Guarantee'} ${brief(one.name)}`), h('p', { class: 'sub' }, words + '.'), strip, h('div', { class: 'legend blocks' }, Object.entries(kinds).map(([state, kind]) => h('span', { class: kind }, h('i', {}), state)), h('span', { class: 'unknown' }, 'grey: not judged; the worse, the taller')),
      chart(rows.map(row => [row[0], row[1], one.bound]), [[1, unit[0], 'cpu'], [2, unit[2], 'hold']], unit[1], 120));
  });
}

function promisesPart(loop, promises) {
  const none = value => value === null || value === undefined ? '?' : value;
  const guarantees = table('Guarantees', [['Who'], ['Promise'], ['State'], ['Got %', 'n'], ['Waited %', 'n'], ['Wait p99 ms', 'n'], ['Broken, min a day', 'n'], ['By'], ['Why']],
    loop.guarantees.map(one => h('tr', {}, h('td', { class: 'name' }, brief(one.name)), h('td', {}, none(one.promise)), h('td', { class: one.state === 'broken' ? 'steal' : null }, none(one.state)),
      cell(one.got_pct), cell(one.waited_pct), cell(one.wait_p99_ms, 3), cell(one.broken_min_day), h('td', {}, one.lever ?? '-'), h('td', { class: 'name' }, one.why ?? ''))));
  const services = loop.services.length ? [h('h2', {}, 'Services'), table('Services', [['Who'], ['State'], ['Wait p99 ms', 'n'], ['Bound ms', 'n'], ['Limit ms', 'n'], ['Baseline p99 ms', 'n'], ['Waits', 'n'], ['Tasks', 'n']],
    loop.services.map(one => h('tr', {}, h('td', { class: 'name' }, brief(one.name)), h('td', { class: one.state === 'broken' ? 'steal' : null }, none(one.state)), cell(one.p99_ms, 3),
      cell(one.bound_ms, 3), cell(one.limit_ms, 3), cell(one.default_p99_ms, 3), h('td', { class: 'n' }, String(none(one.waits))), h('td', { class: 'n' }, String(none(one.tasks))))))] : [];
  return [h('h2', {}, 'Guarantees'), guarantees, services, promises && (promises.guarantees.length || promises.services.length) ? [h('h2', {}, 'How they stood, the last quarter of an hour'),
    record(promises.guarantees, ['got', 'percent of one CPU', 'promised'], promises.states), record(promises.services, ['wait p99', 'ms', 'bound'], promises.states)] : []];
}

/// A value without the property's name, which has a column of its own.
const bare = (value, change) => value.startsWith(change.knob + ' ') ? value.slice(change.knob.length + 1) : value;

function loopPage(promises) {
  const loop = live.loop;
  if (!loop) return [h('h1', {}, 'The loop'), h('p', {}, 'This server only watches; "evenkeel run --listen" shows here what it tries and changes.')];
  const effect = loop.effect?.cpu_pct;
  return [h('h1', {}, 'The loop'), h('div', { class: 'tiles' }, tile(loop.settings, 'settings in force'), tile(String(loop.trials), 'trials'), tile(String(loop.kept), 'kept'), tile(String(loop.reverted), 'kept changes taken back'),
    effect ? tile(`${number(effect.value)} [${number(effect.low)}, ${number(effect.high)}]`, 'CPU got more than under the baseline, percent of one CPU') : null),
    promisesPart(loop, promises),
    h('h2', {}, 'Changes in force'), table('Changes', [['What'], ['Property'], ['From'], ['To'], ['Why'], ['At the decision'], ['Live']], loop.changes.map(one =>
      h('tr', {}, h('td', { class: 'name' }, one.comm ?? one.group ?? '?'), h('td', {}, one.knob), h('td', {}, bare(one.from, one)), h('td', {}, bare(one.to, one)), h('td', {}, one.why), h('td', { class: 'name' }, one.effect ?? 'not measured'),
        h('td', { class: 'name' }, one.effect ? loop.effect_text ?? '?' : 'not measured')))),
    loop.changes.length ? h('p', { class: 'sub' }, 'Live is CPU got more than under the baseline by all changes of these settings together, with its interval: what one of them does alone is not measured. What a guarantee or a bound asks for is in force at all times, so nothing tells its effect.') : null,
    h('h2', {}, 'Last decision'), h('ul', {}, loop.last_decision.map(one => h('li', {}, `${one.name}: ${one.why}`)))];
}
