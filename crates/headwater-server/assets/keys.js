// Keys and small conveniences: `/` searches, `g` and a letter goes to a page, copying; selecting all rows; filters that
// apply when they change; a menu that closes.

/** The pages by the key after `g`; the links of the navigation have them. */
const pages = () => new Map([...document.querySelectorAll('.side [data-go]')].map((link) => [link.dataset.go, link]));

let goes = 0;

const isTyping = (element) => element.matches?.('input, textarea, select, [contenteditable]');

export function start() {
  document.addEventListener('keydown', onKey);
  document.addEventListener('change', onChange);
  document.addEventListener('click', onClick);
  document.addEventListener('headwater:updated', count);
  for (const button of document.querySelectorAll('[data-copy], [data-needs-script]')) button.hidden = false;
  count();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target) || document.querySelector('dialog[open]')) return;
  if (event.key === '/') {
    const search = document.querySelector('main input[type="search"]');
    if (search) {
      event.preventDefault();
      search.focus();
      search.select();
    }
  } else if (event.key === 'g') {
    goes = Date.now();
  } else if (Date.now() - goes < 1_500 && pages().has(event.key)) {
    goes = 0;
    pages().get(event.key).click();
  }
}

function onChange(event) {
  const target = event.target;
  if (target.matches?.('[data-submits]')) target.form?.requestSubmit();
  if (target.matches?.('[data-all]')) {
    for (const box of document.querySelectorAll('input[name="' + CSS.escape(target.dataset.all) + '"]')) box.checked = target.checked;
  }
  count();
}

/** How many rows are chosen, beside the buttons that act on them. */
function count() {
  for (const place of document.querySelectorAll('[data-chosen]')) {
    const chosen = document.querySelectorAll('input[name="' + CSS.escape(place.dataset.chosen) + '"]:checked').length;
    place.textContent = chosen === 0 ? 'None selected' : chosen + ' selected';
  }
}

function onClick(event) {
  const copy = event.target.closest?.('[data-copy]');
  if (copy) {
    const from = document.getElementById(copy.dataset.copy);
    navigator.clipboard?.writeText(from?.textContent ?? '').then(() => say(copy), () => {});
    return;
  }
  // The menu of narrow windows closes when a page was chosen, or beside it.
  const menu = document.querySelector('.menu[open]');
  if (menu && !menu.contains(event.target)) menu.removeAttribute('open');
}

function say(button) {
  const before = button.textContent;
  button.textContent = 'Copied';
  setTimeout(() => { button.textContent = before; }, 1_500);
}
