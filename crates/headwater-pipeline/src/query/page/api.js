// Requests to the query API, and small helpers for the document. Text of answers is only ever inserted as text.
'use strict';

// The page is served at `…/` or `…/world`, beside `…/runs`.
const base = location.pathname.replace(/\/(world)?$/, '');

class Problem extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

async function request(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  const response = await fetch(base + path + (query ? '?' + query : ''), { signal, headers: { accept: 'application/json' } });
  if (response.ok) return response.json();
  const problem = await response.json().catch(() => ({}));
  throw new Problem(response.status, problem.detail || response.statusText);
}

const pathOf = (run) => '/runs/' + encodeURIComponent(run);
const byId = (id) => document.getElementById(id);
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** An element with attributes and children; strings become text. */
function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith('on')) made.addEventListener(key.slice(2), value);
    else if (value !== null) made.setAttribute(key, value);
  }
  made.append(...children.map((child) => (child instanceof Node ? child : String(child))));
  return made;
}

/** The source's name of a molecule type, or its number. */
function typeName(metadata, type) {
  return metadata?.molecule_types?.[type] || String(type);
}

/** The same with its number, which filters of the API need. */
function typeLabel(metadata, type) {
  const name = typeName(metadata, type);
  return name === String(type) ? name : `${name} (${type})`;
}

const number = new Intl.NumberFormat('en');

/** The hues of the first numbers, which differ for colour-blind eyes too. */
const HUES = [208, 32, 152, 330, 52, 188, 268, 4];

/** Later hues are in steps of the golden angle, far from those of neighbouring numbers. */
function hueOf(n) {
  return n <= HUES.length ? HUES[n - 1] : (n * 137.508) % 360;
}

/** Hue, saturation and lightness to red, green and blue, each 0 to 255. */
function rgb(hue, saturation, lightness) {
  const channel = (n) => {
    const k = (n + hue / 30) % 12;
    return Math.round(255 * (lightness - saturation * Math.min(lightness, 1 - lightness) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}
