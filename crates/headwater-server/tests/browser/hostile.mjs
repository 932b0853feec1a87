// Names, keys, headers, errors and payloads that are made to break a page stay text on every page.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { inWindow } from './browser.mjs';
import { serve, topicPage } from './server.mjs';

const MARKS = ['<script>alert(1)</script>', '"><img src=x onerror=alert(1)>', "'-alert(1)-'", '</textarea></pre></script><svg onload=alert(1)>'];
const NAMES = [
  ...MARKS,
  '\u202Egnp.txet\u202C', // Right to left.
  '\u05D0\u05D1 & <b>\u05D2</b>',
  'a/b?c=d#e%20f',
  '%3Cscript%3E',
  '{{7*7}}${7*7}',
  'x'.repeat(250),
  '\u{1F4A3}\u0301\u0301\u0301',
];
const LARGE = `<i>${'<script>alert(1)</script>&"\u202E'.repeat(2_200)}`;
/** Pages that are visited at most, and those of one kind: a thousand topics have the same page. */
const PAGES_MAX = 150;

export function define(context) {
  test('hostile names and payloads stay text on every page', async () => {
    const server = await serve({ parameters: ['--label', MARKS[1]] });
    try {
      await fill(server);
      await inWindow(context.browser, server, {}, async (window, page) => {
        await context.browser.version();
        const seen = await crawl(window, page);
        assert.ok(seen.size > 60, `only ${seen.size} pages were reached`);
        await literally(window, page);
      });
      await inWindow(context.browser, server, { width: 400, dark: true }, async (window, page) => {
        for (const path of ['/', '/topics', '/groups', '/dead-letters', '/scheduled', '/audit', ...NAMES.map(topicPage)]) {
          await window.goto(path);
          const { scrollWidth, clientWidth } = await page.evaluate(() => ({ ...{ scrollWidth: document.documentElement.scrollWidth, clientWidth: document.documentElement.clientWidth } }));
          assert.ok(scrollWidth <= clientWidth, `${path} scrolls sideways: ${scrollWidth} of ${clientWidth}`);
        }
        await window.screenshot('hostile-narrow-dark');
      });
    } finally {
      await server.stop();
    }
  });
}

async function fill(server) {
  for (const name of NAMES) {
    await server.topic(name, [name]);
    await server.publish(
      name,
      { payload: { [name]: MARKS }, key: name, type: name, headers: { 'x-mark': MARKS[0], [name.slice(0, 50)]: MARKS[1] } },
      { payload: LARGE, key: MARKS[0] },
      { payload_base64: Buffer.from([0xff, 0xfe, 0x3c, 0x73, 0xc3, 0x28, 0x00, 0x3e, 0xed, 0xa0, 0x80]).toString('base64'), key: MARKS[1] },
      { payload_base64: Buffer.from(MARKS.join('\n')).toString('base64') },
      { payload: MARKS, delay_ms: 3_600_000, key: name },
    );
    const [first, second, third] = await server.claim(name, name, 3);
    await server.settle(name, name, [
      { receipt: first.receipt, outcome: 'bury', reason: name + MARKS.join(' ') },
      { receipt: second.receipt, outcome: 'retry', delay_ms: 3_600_000, reason: MARKS.join(' ') },
      { receipt: third.receipt, outcome: 'bury', reason: LARGE },
    ]);
  }
  await server.api('POST', `/v1/topics/${encodeURIComponent(NAMES[0])}/groups/${encodeURIComponent(NAMES[0])}/pause`, { reason: MARKS.join(' ') });
}

/** Follows every link of the dashboard, from page to page; the window fails on a dialog, an error or a request elsewhere. */
async function crawl(window, page) {
  const [seen, queue] = [new Set(), ['/', ...NAMES.map(topicPage)]];
  while (queue.length > 0 && seen.size < PAGES_MAX) {
    const path = queue.shift();
    if (seen.has(path)) continue;
    seen.add(path);
    await window.goto(path);
    const links = await page.evaluate(() => [...document.querySelectorAll('main a[href]')].map((link) => link.href));
    for (const link of links) {
      const url = new URL(link);
      if (url.origin === new URL(window.server.url).origin && !/^\/(v1|metrics|assets)/.test(url.pathname)) queue.push(url.pathname + url.search);
    }
  }
  return seen;
}

/** The names are there, as they are, where they have to be. */
async function literally(window, page) {
  await window.goto('/topics?q=script');
  const names = await page.locator('td.name a').allTextContents();
  for (const name of NAMES.filter((name) => name.includes('script'))) assert.ok(names.includes(name), `${name} is not among ${names.join(' | ')}`);
  for (const name of NAMES) {
    await window.goto(topicPage(name));
    assert.equal(await page.locator('h1').textContent(), name);
    assert.equal(await page.locator('main img, main script, main svg[onload], main i').count(), 0, 'no element was made of a text');
    const payloads = await page.locator('details.message pre.payload').allTextContents();
    assert.ok(payloads.some((text) => text.includes(MARKS[0])), 'the payload is shown as it is');
  }
}
