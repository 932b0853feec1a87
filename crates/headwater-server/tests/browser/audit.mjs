// What holds for every page: it has a heading, nothing sticks out, everything has a name, text can be read. Run inside the page.

import assert from 'node:assert/strict';

/** Fails with a list of what is wrong with the page. */
export async function audit(page, what) {
  const found = await page.evaluate(examine);
  assert.deepEqual(found, [], `${what}: ${found.join('\n')}`);
}

/** In the browser. Returns what is wrong, in words. */
function examine() {
  const wrong = [];
  const root = document.documentElement;
  const isSeen = (element) => element.checkVisibility({ checkOpacity: true, checkVisibilityCSS: true });
  const name = (element) => {
    const labelled = element.getAttribute('aria-labelledby')?.split(' ').map((id) => document.getElementById(id)?.textContent).join(' ');
    const own = element.getAttribute('aria-label') || labelled || element.textContent || element.getAttribute('title');
    return (own || [...(element.labels ?? [])].map((label) => label.textContent).join(' ')).trim();
  };
  const shortly = (element) => element.outerHTML.slice(0, 120);

  const headings = [...document.querySelectorAll('h1')].filter(isSeen);
  const isPage = document.querySelector('.page-head') !== null;
  if (isPage && headings.length !== 1) wrong.push(`${headings.length} headings of the first level`);
  if (headings.some((heading) => heading.textContent.trim() === '')) wrong.push('an empty heading');
  if (document.title.trim() === '') wrong.push('no title');
  if (!root.lang) wrong.push('no language');
  if (root.scrollWidth > root.clientWidth) {
    const wide = [...document.body.querySelectorAll('*')].find((element) => element.getBoundingClientRect().right > root.clientWidth + 1 && isSeen(element));
    wrong.push(`scrolls sideways: ${root.scrollWidth} of ${root.clientWidth} pixels, by ${wide ? shortly(wide) : 'nothing visible'}`);
  }
  for (const element of document.querySelectorAll('a[href], button, input:not([type="hidden"]), select, textarea, summary, iframe')) {
    if (isSeen(element) && name(element) === '' && !element.getAttribute('placeholder')) wrong.push(`without a name: ${shortly(element)}`);
    if (element.tabIndex > 0) wrong.push(`out of the order of the tab key: ${shortly(element)}`);
  }
  for (const image of document.querySelectorAll('img')) if (!image.hasAttribute('alt')) wrong.push(`picture without a text: ${shortly(image)}`);
  const ids = [...document.querySelectorAll('[id]')].map((element) => element.id);
  for (const id of new Set(ids.filter((id, at) => ids.indexOf(id) !== at))) wrong.push(`two elements have the id ${id}`);
  for (const element of document.querySelectorAll('[style], script:not([src])')) {
    if (!element.closest('[data-local]') && !element.hasAttribute('data-local')) wrong.push(`inline style or script: ${shortly(element)}`);
  }

  // Contrast of text, as WCAG 2 computes it: 4.5 to 1, or 3 to 1 for large text.
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const colour = (text) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = text;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const background = (element) => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== 'none') return null;
      const layer = colour(style.backgroundColor);
      layers.push(layer);
      if (layer[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), colour(getComputedStyle(root).colorScheme.includes('dark') && matchMedia('(prefers-color-scheme: dark)').matches ? 'black' : 'white'));
  };
  const light = (value) => (value / 255 <= 0.04045 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * light(r) + 0.7152 * light(g) + 0.0722 * light(b);
  const faint = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (node.textContent.trim() === '' || !isSeen(element) || element.closest('svg, script, style, [disabled], .unseen, .skip')) continue;
    const style = getComputedStyle(element);
    const behind = background(element);
    if (!behind) continue;
    const [a, b] = [luminance(over(colour(style.color), behind)), luminance(behind)].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    const pixels = parseFloat(style.fontSize);
    const isLarge = pixels >= 24 || (pixels >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? 3 : 4.5) - 0.01) faint.set(element.className || element.tagName, `contrast ${ratio.toFixed(2)}: ${node.textContent.trim().slice(0, 40)} (${shortly(element)})`);
  }
  wrong.push(...faint.values());
  return wrong;
}
