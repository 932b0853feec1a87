// The page: the run, the tick, and what is shown beside the canvas.

const LEGEND_MAX = 14;
const ORGANISMS_MAX = 300;
const HISTORY_TICKS = 10000;
/** Organisms that are further behind are not waited for. */
const ORGANISMS_BEHIND_MAX = 1000;

const state = {
  runs: [],
  run: null,
  metadata: null,
  tick: null,
  playing: false,
  /** Ends the requests for a tick that is no longer wanted. */
  loading: null,
  organism: null,
};

const view = new WorldView(byId('world'), {
  hover: showHover,
  click: (place) => inspect(place && place.at >= 0 ? view.cells.owner_id[place.at] : 0),
  uncovered: () => { clearTimeout(state.reload); state.reload = setTimeout(() => show(state.tick), 150); },
});

// ---------------------------------------------------------------------------------------------------------------- runs

async function loadRuns() {
  const { runs } = await request('/runs', { limit: 200 });
  const names = (list) => list.map((run) => run.run_id + run.state).join();
  if (names(runs) !== names(state.runs)) {
    byId('run').replaceChildren(...runs.map((run) => element('option', { value: run.run_id }, run.run_id)));
    if (state.run) byId('run').value = state.run.run_id;
  }
  state.runs = runs;
  if (!state.run && runs.length) {
    const asked = new URLSearchParams(location.hash.slice(1));
    const wanted = runs.find((run) => run.run_id === asked.get('run')) || runs[0];
    await openRun(wanted, asked.has('tick') && wanted.run_id === asked.get('run') ? Number(asked.get('tick')) : null);
  }
  if (!runs.length) notice('There are no runs yet.');
}

async function openRun(run, tick = null) {
  Object.assign(state, { run, metadata: null, tick: null, organism: null });
  pause();
  view.clear();
  byId('run').value = run.run_id;
  byId('live').checked = tick === null && !isOver(run);
  showRun();
  closeInspector();
  showHover(null);
  try {
    state.metadata = await request(pathOf(run.run_id) + '/metadata');
  } catch (problem) {
    return notice(problem.status === 404 ? 'The metadata of this run is not indexed yet.' : problem.message);
  }
  if (state.run !== run) return;
  const { dimensions, topology } = state.metadata.environment;
  const sizes = dimensions.map((dimension) => dimension.size);
  view.shape(sizes);
  byId('shape').textContent = `${sizes.join(' × ')} ${topology.toLowerCase()}`;
  showSlices(sizes);
  if (run.indexed) await show(tick ?? (byId('live').checked ? newest(run) : run.indexed.first_tick));
  else notice(run.problem || 'No tick is indexed yet.');
}

/** The newest tick of which everything is indexed: organisms have an indexer of their own. */
function newest(run) {
  const cells = run.indexed.last_tick, organisms = run.organisms_indexed?.last_tick;
  return organisms < cells && organisms >= cells - ORGANISMS_BEHIND_MAX * interval() ? organisms : cells;
}

const isOver = (run) => run.state === 'ENDED' || run.state === 'FAILED';

function showRun() {
  const { run } = state;
  const badge = byId('state');
  badge.textContent = run.state.toLowerCase();
  badge.className = 'badge ' + run.state.toLowerCase();
  badge.title = run.reason || '';
  if (!run.indexed) return;
  const timeline = byId('timeline');
  timeline.min = run.indexed.first_tick;
  timeline.max = run.indexed.last_tick;
  timeline.step = interval();
  if (state.tick !== null) timeline.value = state.tick;
}

/** Follows the run while it continues. A run that is over may still be indexed, so it is asked less often but not never. */
async function follow() {
  for (let round = 0; ; round++) {
    await wait(1000);
    if (document.hidden || !state.run || (isOver(state.run) && round % 5)) continue;
    try {
      const asked = state.run.run_id;
      const run = await request(pathOf(asked));
      if (state.run.run_id !== asked) continue;
      state.run = run;
      showRun();
      if (!state.metadata) await openRun(run);
      else if (run.indexed && state.tick === null) await show(run.indexed.first_tick);
      else if (byId('live').checked && run.indexed && newest(run) !== state.tick) await show(newest(run));
      if (round % 5 === 0) await loadRuns();
    } catch (problem) {
      message(problem.message, true);
    }
  }
}

// ---------------------------------------------------------------------------------------------------------------- ticks

const interval = () => Math.max(1, state.metadata ? state.metadata.sampling_interval : 1);

/** Shows a tick; returns whether it could. */
async function show(tick) {
  const { run } = state;
  if (tick === null || !run || !state.metadata) return false;
  state.loading?.abort();
  const loading = (state.loading = new AbortController());
  const part = view.part();
  const path = `${pathOf(run.run_id)}/ticks/${tick}`;
  try {
    const [cells, organisms] = await Promise.all([
      request(path + '/cells', { layout: 'columns', region: view.region(part) }, loading.signal),
      // They may be indexed later than the cells, or not at all.
      request(path + '/organisms', { limit: 10000 }, loading.signal).catch((problem) => {
        if (problem.name === 'AbortError') throw problem;
        return { organisms: null };
      }),
    ]);
    if (state.loading !== loading) return false;
    state.tick = tick;
    view.organisms = organisms.organisms || [];
    view.show(cells, part);
    notice('');
    message(view.isPart(part) ? `a part of ${part.right - part.left + 1} × ${part.bottom - part.top + 1} cells is shown: zoom in` : '');
    showTick(organisms.organisms);
    return true;
  } catch (problem) {
    if (problem.name !== 'AbortError') {
      message(problem.message, problem.status !== 404);
      if (state.tick === null) notice(problem.message);
    }
    return false;
  }
}

function showTick(organisms) {
  byId('tick').textContent = 'tick ' + number.format(state.tick);
  byId('timeline').value = state.tick;
  showLegend();
  showOrganisms(organisms);
  if (state.organism) showOrganism();
  history.replaceState(null, '', '#' + new URLSearchParams({ run: state.run.run_id, tick: state.tick }));
}

/** Moves by so many captured ticks, within those that are indexed. */
function step(count) {
  const { run, tick } = state;
  if (!run?.indexed || tick === null) return false;
  const wanted = Math.max(run.indexed.first_tick, Math.min(run.indexed.last_tick, tick + count * interval()));
  return wanted === tick ? false : show(wanted);
}

function seek(tick) {
  byId('live').checked = false;
  return show(tick);
}

async function play() {
  byId('live').checked = false;
  state.playing = true;
  showPlaying();
  while (state.playing) {
    const begun = performance.now();
    const moved = await step(1);
    // At the end of what is indexed it waits for more, as long as the run continues.
    if (!moved && state.run && isOver(state.run) && state.tick >= state.run.indexed?.last_tick) pause();
    const pace = moved ? 1000 / Number(byId('speed').value) : 500;
    await wait(Math.max(0, pace - (performance.now() - begun)));
  }
}

function pause() {
  state.playing = false;
  showPlaying();
}

function showPlaying() {
  const button = byId('play');
  button.classList.toggle('playing', state.playing);
  button.setAttribute('aria-label', state.playing ? 'Pause' : 'Play');
}

// ---------------------------------------------------------------------------------------------------------------- beside the canvas

function message(text, isBad = false) {
  const place = byId('message');
  place.textContent = text;
  place.classList.toggle('bad', isBad);
}

/** In the middle of an empty canvas. */
function notice(text) {
  byId('empty').textContent = text;
  byId('empty').hidden = !text;
}

function swatch(key) {
  const made = element('span', { class: 'swatch' });
  made.style.background = `rgb(${view.colourOf(key).join()})`;
  return made;
}

function nameOf(key) {
  if (view.colourBy === 'type') return typeName(state.metadata, key);
  return key === 0 ? 'none' : String(key);
}

function showLegend() {
  const counts = view.counts();
  const entries = counts.slice(0, LEGEND_MAX).map(([key, count]) => {
    const choose = () => { view.highlight = view.highlight === key ? null : key; view.paint(); showLegend(); };
    return element('li', {}, element('button', { onclick: choose, 'aria-pressed': String(view.highlight === key), title: 'Highlight' },
      swatch(key), nameOf(key), element('span', { class: 'count' }, number.format(count))));
  });
  if (counts.length > LEGEND_MAX) entries.push(element('li', { class: 'quiet' }, `and ${number.format(counts.length - LEGEND_MAX)} more`));
  if (!counts.length) entries.push(element('li', { class: 'quiet' }, 'no cells here'));
  byId('legend').replaceChildren(...entries);
}

/** One input per axis that is not shown. */
function showSlices(sizes) {
  const place = byId('slices');
  place.hidden = sizes.length < 3;
  const inputs = sizes.slice(0, -2).map((size, axis) => {
    const input = element('input', { type: 'range', min: 0, max: size - 1, value: 0, 'aria-label': `Slice of axis ${axis}` });
    const output = element('output', {}, '0');
    input.addEventListener('input', () => {
      view.fixed[axis] = Number(input.value);
      output.textContent = input.value;
      show(state.tick);
    });
    return element('label', {}, `axis ${axis}`, input, output);
  });
  place.replaceChildren(...inputs);
}

function showHover(place, event) {
  const box = byId('hover');
  box.hidden = !place;
  if (!place) return;
  const lines = [`(${place.coordinates.join(', ')})`];
  if (place.at >= 0) {
    const of = (name) => view.cells[name][place.at];
    lines.push(`type   ${typeLabel(state.metadata, of('molecule_type'))}`, `value  ${of('molecule_value')}`, `owner  ${of('owner_id') || 'none'}`, `marker ${of('marker')}`);
  } else if (view.cells) lines.push('empty');
  box.textContent = lines.join('\n');
  const stage = box.parentElement.getBoundingClientRect();
  const x = event.clientX - stage.left, y = event.clientY - stage.top;
  // On the side of the pointer that has room.
  box.style.left = (x + 16 + box.offsetWidth > stage.width ? x - 12 - box.offsetWidth : x + 16) + 'px';
  box.style.top = Math.max(0, Math.min(y + 16, stage.height - box.offsetHeight - 4)) + 'px';
}

// ---------------------------------------------------------------------------------------------------------------- organisms

function showOrganisms(organisms) {
  byId('organism-count').textContent = organisms ? number.format(organisms.filter((one) => one.alive).length) + ' alive' : 'not indexed';
  const shown = (organisms || []).slice().sort((a, b) => b.alive - a.alive || b.energy - a.energy).slice(0, ORGANISMS_MAX);
  byId('organisms').replaceChildren(...shown.map((one) => {
    const button = element('button', { onclick: () => inspect(one.id), 'data-id': one.id, class: one.alive ? null : 'dead' });
    const dot = element('span', { class: 'swatch' });
    dot.style.background = `rgb(${view.colourOf(one.id).join()})`;
    button.append(dot, String(one.id), element('span', { class: 'energy-of' }, number.format(one.energy)));
    return element('li', {}, button);
  }));
  markOrganism();
}

/** Marks the organism that is inspected in the list, also before the next tick. */
function markOrganism() {
  for (const button of document.querySelectorAll('#organisms button')) {
    button.setAttribute('aria-current', String(Number(button.dataset.id) === state.organism));
  }
}

async function inspect(id) {
  if (!id) return closeInspector();
  state.organism = id;
  view.selected = id;
  view.draw();
  markOrganism();
  const path = `${pathOf(state.run.run_id)}/organisms/${id}`;
  try {
    // Of a long life, what is around this tick.
    const from = Math.max(0, state.tick - HISTORY_TICKS / 2 * interval());
    const [past, lineage] = await Promise.all([
      request(path + '/history', { from, limit: HISTORY_TICKS }), request(path + '/lineage', { limit: 100 }),
    ]);
    if (state.organism !== id) return;
    state.past = past;
    state.lineage = lineage;
    byId('inspector').hidden = false;
    showOrganism();
    showLineage();
  } catch (problem) {
    message(problem.message, problem.status !== 404);
  }
}

function closeInspector() {
  state.organism = null;
  view.selected = null;
  byId('inspector').hidden = true;
  view.draw();
  markOrganism();
}

function showOrganism() {
  if (!state.past || state.past.organism.id !== state.organism) return;
  const { organism, history: past } = state.past;
  byId('organism-id').textContent = organism.id;
  // What was indexed since the history was requested continues it.
  const present = view.organisms.find((one) => one.id === organism.id);
  if (present && !(past.at(-1)?.tick >= state.tick)) past.push({ tick: state.tick, ...present });
  const now = past.findLast((entry) => entry.tick <= state.tick);
  const fields = { parent: organism.parent_id || 'none', born: 'tick ' + number.format(organism.birth_tick) };
  if (now) {
    Object.assign(fields, {
      alive: now.alive && now.tick === state.tick ? 'yes' : 'no, last seen at tick ' + number.format(now.tick),
      energy: number.format(now.energy), position: now.position.join(', '), direction: now.direction.join(', '),
      registers: now.registers.join(', ') || 'none',
    });
  }
  byId('organism-fields').replaceChildren(...Object.entries(fields).flatMap(([name, value]) => [element('dt', {}, name), element('dd', {}, value)]));
  drawEnergy(past);
}

function drawEnergy(past) {
  const canvas = byId('energy');
  const context = canvas.getContext('2d');
  const style = getComputedStyle(document.documentElement);
  context.clearRect(0, 0, canvas.width, canvas.height);
  if (!past.length) return;
  const first = past[0].tick, span = Math.max(1, past[past.length - 1].tick - first);
  const most = Math.max(1, ...past.map((entry) => entry.energy));
  const x = (tick) => (tick - first) / span * (canvas.width - 2) + 1;
  const y = (energy) => canvas.height - 2 - Math.max(0, energy) / most * (canvas.height - 4);
  context.strokeStyle = style.getPropertyValue('--accent');
  context.lineWidth = 1.5;
  context.beginPath();
  past.forEach((entry, at) => (at ? context.lineTo(x(entry.tick), y(entry.energy)) : context.moveTo(x(entry.tick), y(entry.energy))));
  context.stroke();
  context.strokeStyle = style.getPropertyValue('--quiet');
  context.beginPath();
  context.moveTo(x(state.tick), 0);
  context.lineTo(x(state.tick), canvas.height);
  context.stroke();
}

function showLineage() {
  const { ancestors, children } = state.lineage;
  const link = (one) => element('button', { onclick: () => inspect(one.id), title: `born at tick ${one.birth_tick}` }, one.id);
  const parts = [element('span', { class: 'quiet' }, ancestors.length ? 'ancestors' : 'no ancestors')];
  parts.push(...ancestors.slice(0, 12).map(link));
  if (ancestors.length > 12) parts.push(element('span', { class: 'quiet' }, `and ${number.format(ancestors.length - 12)} more`));
  if (children.length) parts.push(element('span', { class: 'quiet' }, 'children'), ...children.slice(0, 24).map(link));
  if (children.length > 24) parts.push(element('span', { class: 'quiet' }, `and more`));
  byId('lineage').replaceChildren(...parts);
}

// ---------------------------------------------------------------------------------------------------------------- controls

byId('run').addEventListener('change', (event) => openRun(state.runs.find((run) => run.run_id === event.target.value)));
byId('timeline').addEventListener('input', (event) => { pause(); seek(Number(event.target.value)); });
byId('play').addEventListener('click', toggle);
byId('back').addEventListener('click', () => stepBy(-1));
byId('forward').addEventListener('click', () => stepBy(1));
byId('first').addEventListener('click', () => ends('first_tick'));
byId('last').addEventListener('click', () => ends('last_tick'));
byId('live').addEventListener('change', (event) => { if (event.target.checked) { pause(); ends('last_tick', true); } });
byId('zoom-in').addEventListener('click', () => view.zoom(1.5));
byId('zoom-out').addEventListener('click', () => view.zoom(1 / 1.5));
byId('fit').addEventListener('click', () => view.fit());
byId('organism-close').addEventListener('click', closeInspector);
document.querySelectorAll('input[name=colour]').forEach((choice) => choice.addEventListener('change', () => {
  Object.assign(view, { colourBy: choice.value, highlight: null });
  view.paint();
  showLegend();
}));

function toggle() {
  if (state.playing) pause(); else play();
}

function stepBy(count) {
  pause();
  byId('live').checked = false;
  step(count);
}

function ends(which, live = false) {
  if (!state.run?.indexed) return;
  byId('live').checked = live;
  show(live ? newest(state.run) : state.run.indexed[which]);
}

const KEYS = {
  ' ': toggle,
  ArrowLeft: (event) => stepBy(event.shiftKey ? -10 : -1),
  ArrowRight: (event) => stepBy(event.shiftKey ? 10 : 1),
  Home: () => ends('first_tick'),
  End: () => ends('last_tick'),
  '+': () => view.zoom(1.5),
  '-': () => view.zoom(1 / 1.5),
  '0': () => view.fit(),
  Escape: closeInspector,
};

document.addEventListener('keydown', (event) => {
  // Controls keep their own keys: space presses a button, arrows choose an option.
  const isControl = event.target.closest('select, input, button') && !['Escape'].includes(event.key);
  const act = KEYS[event.key];
  if (!act || isControl || event.ctrlKey || event.metaKey || event.altKey) return;
  event.preventDefault();
  act(event);
});

showPlaying();
loadRuns().catch((problem) => { notice(problem.message); message(problem.message, true); }).then(follow);
