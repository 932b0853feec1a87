// Keeps the page current: one stream of server-sent events has the parts of this page that changed, about once a second.

import { morph } from './morph.js';

/** A page in the background needs no updates; it gets all of them when it is seen again. */
let source = null;
let stopped = false;
/** Parts that came while they were selected: the server sends a part again only when it changes. */
const held = new Map();

export function start() {
  if (!document.querySelector('[data-live]')) return;
  document.addEventListener('visibilitychange', () => (document.hidden ? close() : open()));
  // A page that is left keeps its connection until the next one is there; browsers allow only few at a time.
  addEventListener('pagehide', close);
  addEventListener('pageshow', (event) => event.persisted && open());
  document.addEventListener('click', (event) => {
    const button = event.target.closest?.('[data-live-toggle]');
    if (!button) return;
    stopped = !stopped;
    if (stopped) close();
    else open();
  });
  document.addEventListener('selectionchange', () => {
    for (const [id, html] of [...held]) replace(id, html);
  });
  if (!document.hidden) open();
}

function open() {
  if (source || stopped) return;
  const page = location.pathname + location.search;
  source = new EventSource('/live?page=' + encodeURIComponent(page));
  tell('wait');
  source.addEventListener('open', () => tell('live'));
  source.addEventListener('error', () => tell('off'));
  source.addEventListener('fragments', (event) => {
    tell('live');
    const fragments = JSON.parse(event.data);
    for (const [id, html] of Object.entries(fragments)) replace(id, html);
  });
  // The session ended, or what the page shows is gone: the server says so once, and reconnecting would not help.
  source.addEventListener('end', () => {
    stopped = true;
    close();
    tell('end');
  });
}

function close() {
  source?.close();
  source = null;
  tell(stopped ? 'stopped' : 'wait');
}

function replace(id, html) {
  held.delete(id);
  for (const there of document.querySelectorAll('[data-live="' + CSS.escape(id) + '"]')) {
    // What is in a selection would be lost: the part is replaced when the selection ends.
    if (isSelected(there)) {
      held.set(id, html);
      continue;
    }
    const template = document.createElement('template');
    template.innerHTML = html;
    const wanted = there.cloneNode(false);
    wanted.append(template.content);
    morph(there, wanted);
  }
  document.dispatchEvent(new CustomEvent('headwater:updated'));
}

function isSelected(element) {
  const selection = getSelection();
  return Boolean(selection && !selection.isCollapsed && selection.rangeCount && selection.containsNode(element, true)
    && element.contains(selection.anchorNode) && element.contains(selection.focusNode));
}

const WORDS = { live: 'Live', wait: 'Connecting', off: 'Reconnecting', stopped: 'Updates paused', end: 'Ended: reload the page' };

function tell(state) {
  for (const place of document.querySelectorAll('[data-live-state]')) {
    if (place.dataset.state === state) continue;
    place.dataset.state = state === 'end' ? 'off' : state;
    place.textContent = WORDS[state];
  }
  for (const button of document.querySelectorAll('[data-live-toggle]')) {
    button.hidden = false;
    button.setAttribute('aria-pressed', String(stopped));
    button.textContent = stopped ? 'Resume' : 'Pause';
  }
}
