// The values of a chart under the pointer, or by arrow keys. The lines themselves are drawn by the server.
//
// A chart has `data-chart`: {"step": seconds between values, "series": [{"name", "unit", "values": […]}]}, oldest value first, null where nothing
// was read.

const number = new Intl.NumberFormat('en', { maximumFractionDigits: 1 });

/** The value that is shown of each chart, by its id: it stays while the lines move. */
const shown = new Map();

export function start() {
  document.addEventListener('pointermove', (event) => {
    const plot = event.target.closest?.('[data-chart]');
    if (!plot) return hideAll();
    const box = plot.getBoundingClientRect();
    show(plot, (event.clientX - box.left) / Math.max(box.width, 1));
  });
  document.addEventListener('pointerleave', hideAll);
  document.addEventListener('focusout', (event) => event.target.matches?.('[data-chart]') && hide(event.target));
  document.addEventListener('keydown', (event) => {
    const plot = event.target.matches?.('[data-chart]') ? event.target : null;
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (!plot || by === undefined) return;
    event.preventDefault();
    const last = lengthOf(plot) - 1;
    const now = shown.get(plot.id) ?? 1;
    show(plot, Math.min(1, Math.max(0, now + by / Math.max(last, 1))));
  });
  document.addEventListener('headwater:updated', () => {
    for (const [id, at] of shown) {
      const plot = document.getElementById(id);
      if (plot) show(plot, at);
    }
  });
}

const dataOf = (plot) => JSON.parse(plot.dataset.chart);
const lengthOf = (plot) => dataOf(plot).series[0]?.values.length ?? 0;

function show(plot, at) {
  const { step, series } = dataOf(plot);
  const last = (series[0]?.values.length ?? 0) - 1;
  if (last < 1) return;
  shown.set(plot.id, at);
  const index = Math.round(at * last);
  const cursor = part(plot, 'chart-cursor');
  cursor.style.left = (index / last) * 100 + '%';
  const tip = part(plot, 'chart-tip');
  const lines = series.map(({ name, unit, values }) => {
    const value = values[index];
    return name + ' ' + (value === null ? 'not read' : number.format(value) + unit);
  });
  tip.replaceChildren(line(ago((last - index) * step)), ...lines.map(line));
  const isRight = index > last / 2;
  tip.style.left = isRight ? 'auto' : 'calc(' + (index / last) * 100 + '% + 8px)';
  tip.style.right = isRight ? 'calc(' + (1 - index / last) * 100 + '% + 8px)' : 'auto';
}

function part(plot, name) {
  let there = plot.querySelector('.' + name);
  if (!there) {
    there = document.createElement('div');
    there.className = name;
    there.setAttribute('data-local', '');
    there.setAttribute('role', name === 'chart-tip' ? 'status' : 'presentation');
    plot.append(there);
  }
  return there;
}

function line(text) {
  const made = document.createElement('span');
  made.textContent = text;
  return made;
}

function ago(seconds) {
  if (seconds < 1) return 'now';
  if (seconds < 120) return Math.round(seconds) + ' s ago';
  return Math.round(seconds / 60) + ' min ago';
}

function hide(plot) {
  shown.delete(plot.id);
  for (const local of plot.querySelectorAll('[data-local]')) local.remove();
}

function hideAll() {
  for (const id of [...shown.keys()]) {
    const plot = document.getElementById(id);
    if (!plot) shown.delete(id);
    else if (plot !== document.activeElement) hide(plot);
  }
}
