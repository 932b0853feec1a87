// Changes one part of the document into another by touching only what differs: focus, selection, scroll position, open details and
// half-filled forms stay as they are.

/** Attributes that the person at the page changes, not the server. */
const OWN = { DETAILS: ['open'], DIALOG: ['open'], INPUT: ['value', 'checked'], OPTION: ['selected'], TEXTAREA: [] };

const keyOf = (node) => (node.nodeType === 1 ? node.id || node.getAttribute('data-key') : null);

/** Nodes that scripts added are not in what the server sends. */
const isLocal = (node) => node.nodeType === 1 && node.hasAttribute('data-local');

const fits = (a, b) => a.nodeType === b.nodeType && a.nodeName === b.nodeName && keyOf(a) === keyOf(b);

/** Makes the element `from` like `to`. */
export function morph(from, to) {
  morphAttributes(from, to);
  // What is being typed is not replaced.
  if (from.nodeName === 'TEXTAREA' || from.isEqualNode(to)) return;
  morphChildren(from, to);
}

function morphAttributes(from, to) {
  const own = OWN[from.nodeName] ?? [];
  for (const { name, value } of to.attributes) {
    if (!own.includes(name) && from.getAttribute(name) !== value) from.setAttribute(name, value);
  }
  for (const { name } of [...from.attributes]) {
    if (!own.includes(name) && !to.hasAttribute(name) && !name.startsWith('data-local')) from.removeAttribute(name);
  }
}

/** With more than this at once, marking what arrived would mark everything. */
const ARRIVING_MAX = 10;

function morphChildren(from, to) {
  const keyed = new Map();
  for (const child of from.childNodes) {
    const key = keyOf(child);
    if (key) keyed.set(key, child);
  }
  const arrived = [];
  let at = next(from.firstChild);
  for (const wanted of [...to.childNodes]) {
    const key = keyOf(wanted);
    const known = key ? keyed.get(key) : null;
    if (known && known.nodeName === wanted.nodeName) {
      if (known === at) at = next(at.nextSibling);
      else from.insertBefore(known, at);
      keyed.delete(key);
      change(known, wanted);
    } else if (!key && at && fits(at, wanted)) {
      const same = at;
      at = next(at.nextSibling);
      change(same, wanted);
    } else {
      const added = document.importNode(wanted, true);
      from.insertBefore(added, at);
      if (key && added.dataset?.arrives !== undefined) arrived.push(added);
    }
  }
  if (arrived.length <= ARRIVING_MAX) arrived.forEach((added) => added.classList.add('is-new'));
  while (at) {
    const gone = at;
    at = next(at.nextSibling);
    gone.remove();
  }
}

/** The first of these siblings that the server knows. */
function next(node) {
  let at = node;
  while (at && isLocal(at)) at = at.nextSibling;
  return at;
}

function change(from, to) {
  if (from.nodeType === 1) morph(from, to);
  else if (from.nodeValue !== to.nodeValue) from.nodeValue = to.nodeValue;
}
