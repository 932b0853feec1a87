// The dashboard in a real browser, against servers of the real program: `cargo xtask test --only browser`.

import { after, before } from 'node:test';

import * as access from './access.mjs';
import * as actions from './actions.mjs';
import { inWindow, launch } from './browser.mjs';
import * as hostile from './hostile.mjs';
import * as live from './live.mjs';
import * as operate from './operate.mjs';
import * as pages from './pages.mjs';
import { serve } from './server.mjs';

/** A browser, a server with live traffic, and one with what tests put there. */
const context = {};

before(async () => {
  [context.browser, context.demo, context.server] = await Promise.all([launch(), serve({ demo: true }), serve()]);
  await busy(context);
});

after(async () => {
  await context.browser?.close();
  await Promise.all([context.demo?.stop(), context.server?.stop()]);
});

/** Waits until the demo has everything to show: rates on its overview, a dead letter, and entries that a relay sent. */
async function busy({ browser, demo }) {
  await inWindow(browser, demo, {}, async (window, page) => {
    await window.goto('/');
    await page.waitForFunction(() => /[1-9]/.test(document.querySelector('.tile-figure').textContent), undefined, { timeout: 60_000 });
  });
  for (const deadline = Date.now() + 60_000; Date.now() < deadline; await new Promise((resolve) => setTimeout(resolve, 250))) {
    const [dead, entries] = await Promise.all([demo.api('GET', '/v1/dead-letters?limit=1'), demo.api('GET', '/v1/outbox?status=PUBLISHED&limit=1')]);
    if (dead.items.length > 0 && entries.items.length > 0) return;
  }
  throw new Error('the demo has no dead letter, or no entry that was sent');
}

for (const part of [pages, actions, operate, live, hostile, access]) part.define(context);
