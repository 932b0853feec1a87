// Confirmations in a dialog. Each is a page of its own, which works without this: here the page is fetched and its card shown on top.

let dialog = null;
let opener = null;

export function start() {
  document.addEventListener('click', (event) => {
    if (event.target.closest?.('[data-close]') && dialog?.open) {
      event.preventDefault();
      dialog.close();
      return;
    }
    const link = event.target.closest?.('a[data-dialog]');
    if (!link || event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    opener = link;
    open(link.href);
  });
  // A dry run is a form by GET: its answer replaces the content of the dialog.
  document.addEventListener('submit', (event) => {
    const form = event.target;
    const by = event.submitter;
    const method = (by?.getAttribute('formmethod') || form.getAttribute('method') || 'get').toLowerCase();
    if (method !== 'get' || !form.closest('dialog')) return;
    event.preventDefault();
    const fields = new URLSearchParams(new FormData(form, by ?? undefined));
    fields.delete('csrf');
    const action = new URL(by?.getAttribute('formaction') || form.getAttribute('action'), location.href);
    action.search = fields.toString();
    open(action.href);
  });
}

async function open(href) {
  let card = null;
  try {
    const response = await fetch(href, { headers: { accept: 'text/html' } });
    const page = new DOMParser().parseFromString(await response.text(), 'text/html');
    card = page.querySelector('[data-confirm]');
  } catch { /* The page says what is wrong. */ }
  if (!card) {
    location.assign(href);
    return;
  }
  if (!dialog) {
    dialog = document.createElement('dialog');
    dialog.addEventListener('close', () => opener?.focus());
    // A click beside the card closes it.
    dialog.addEventListener('click', (event) => event.target === dialog && dialog.close());
    document.body.append(dialog);
  }
  const heading = card.querySelector('h2');
  if (heading) {
    heading.id = 'dialog-heading';
    dialog.setAttribute('aria-labelledby', heading.id);
  }
  dialog.replaceChildren(document.adoptNode(card));
  if (!dialog.open) dialog.showModal();
  dialog.querySelector('[autofocus], input:not([type="hidden"]), textarea, select, button')?.focus();
}
