// Actions on processes, the outbox and maintenance.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { inWindow } from './browser.mjs';

export function define(context) {
  test('a process is paused, resumed and ended', async () => {
    const { demo, browser } = context;
    await inWindow(browser, demo, {}, async (window, page) => {
      // The demo's processes end within seconds: one that is still open is taken, another if it ended meanwhile.
      const id = await open(window, page, demo);
      assert.equal((await demo.api('GET', `/v1/processes/${id}`)).status.toLowerCase(), 'paused');
      await page.locator('main .badge', { hasText: 'paused' }).first().waitFor();
      assert.match(await page.locator('main').innerText(), /Paused by/);
      await window.confirm('Resume', 'Resume process', { Reason: 'checked' });
      await window.said(/resumed/);
      assert.notEqual((await demo.api('GET', `/v1/processes/${id}`)).status.toLowerCase(), 'paused');
      const other = await open(window, page, demo);
      await window.confirm('End as failed', 'End process as failed', { Reason: 'not wanted any more' });
      await window.said(/ended as failed/);
      assert.equal((await demo.api('GET', `/v1/processes/${other}`)).status.toLowerCase(), 'failed');
    });
  });

  test('maintenance jobs and the doctor run', async () => {
    const { server, browser } = context;
    await inWindow(browser, server, {}, async (window, page) => {
      await window.goto('/maintenance');
      await window.submit(page.getByRole('button', { name: 'Run all now' }));
      await window.said(/jobs ran/);
      await window.submit(page.getByRole('button', { name: /^Run\s+heads/ }));
      await window.said(/Job heads ran/);
      await window.submit(page.getByRole('link', { name: 'Run the doctor' }));
      assert.match(await page.locator('main').innerText(), /The store was checked/);
    });
  });

  test('the audit names what was done in the dashboard', async () => {
    const { server, browser } = context;
    await server.topic('audited', ['reader']);
    await inWindow(browser, server, {}, async (window, page) => {
      await window.goto('/topics/audited/groups/reader');
      await window.confirm('Pause', 'Pause', { Reason: 'seen in the audit' });
      await window.goto('/audit?q=audited');
      const text = await page.locator('main tbody').innerText();
      assert.match(text, /pause/);
      assert.match(text, /audited/);
    });
  });
}

/** Pauses a process of the demo, by its page. */
async function open(window, page, demo) {
  for (let attempt = 0; attempt < 40; attempt += 1) {
    const { items } = await demo.api('GET', '/v1/processes?status=RUNNING&limit=1');
    if (items.length > 0) {
      await window.goto(`/processes/${items[0].id}`);
      if ((await page.locator('main').getByRole('link', { name: 'Pause', exact: true }).count()) > 0) {
        await window.confirm('Pause', 'Pause process', { Reason: 'to be checked' });
        if ((await page.locator('.flash.is-good').count()) > 0) {
          await window.said(/paused/);
          return items[0].id;
        }
      }
    }
    await new Promise((resolve) => setTimeout(resolve, 250));
  }
  assert.fail('the demo had no process that could be paused');
}
