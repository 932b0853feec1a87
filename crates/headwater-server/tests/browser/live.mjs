// Pages change by themselves, and what a person does on them stays: focus, selection, open details, chosen rows.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { inWindow } from './browser.mjs';
import { topicPage } from './server.mjs';

export function define(context) {
  test('a new message appears without a reload, and focus and selection stay', async () => {
    const { server, browser } = context;
    await server.topic('live', ['reader']);
    await server.publish('live', ...[1, 2, 3].map((at) => ({ payload: { at }, key: `k${at}` })));
    await inWindow(browser, server, {}, async (window, page) => {
      await window.goto(topicPage('live'));
      await page.evaluate(() => { window.isSame = true; });
      const rows = page.locator('details.message');
      assert.equal(await rows.count(), 3);
      await rows.last().locator('summary').click();
      const search = page.locator('main input[type="search"]');
      await search.fill('half-typed');
      await search.evaluate((input) => input.setSelectionRange(2, 6));
      await server.publish('live', { payload: { at: 4 } });
      await rows.nth(3).waitFor();
      assert.match(await rows.first().innerText(), /"at":4/);
      assert.equal(await page.evaluate(() => window.isSame), true, 'the page was not loaded again');
      const focus = await page.evaluate(() => {
        const { name, value, selectionStart, selectionEnd } = document.activeElement;
        return { name, value, selectionStart, selectionEnd };
      });
      assert.deepEqual(focus, { name: 'value', value: 'half-typed', selectionStart: 2, selectionEnd: 6 });
      assert.equal(await rows.last().getAttribute('open'), '', 'what was opened stays open');
      assert.match(await page.locator('.side [data-live-state]').innerText(), /Live/);
    });
  });

  test('a selected text stays selected while its page changes', async () => {
    const { server, browser } = context;
    await server.topic('selected');
    await server.publish('selected', { payload: 'to be copied' });
    await inWindow(browser, server, {}, async (window, page) => {
      await window.goto(topicPage('selected'));
      const preview = page.locator('details.message .preview').first();
      await preview.evaluate((element) => getSelection().selectAllChildren(element));
      const changed = page.evaluate(() => new Promise((resolve) => document.addEventListener('headwater:updated', () => resolve(true), { once: true })));
      await server.publish('selected', { payload: 'another' });
      await changed;
      assert.match(await page.evaluate(() => getSelection().toString()), /to be copied/);
      await page.evaluate(() => getSelection().removeAllRanges());
      await page.locator('details.message').nth(1).waitFor();
    });
  });

  test('chosen rows stay chosen while others arrive', async () => {
    const { server, browser } = context;
    await server.topic('chosen', ['reader']);
    await server.publish('chosen', ...[1, 2, 3].map((at) => ({ payload: { at } })));
    await server.bury('chosen', 'reader', 2, 'chosen one');
    await inWindow(browser, server, {}, async (window, page) => {
      await window.goto('/dead-letters?topic=chosen');
      const boxes = page.locator('input[name="id"]');
      await boxes.first().check();
      await server.bury('chosen', 'reader', 1, 'arrived later');
      await boxes.nth(2).waitFor();
      assert.deepEqual(await boxes.evaluateAll((all) => all.map((box) => box.checked)), [true, false, false]);
      assert.match(await page.locator('[data-chosen]').innerText(), /1 selected/);
    });
  });

  test('figures of the overview and a group move', async () => {
    const { server, browser } = context;
    await server.topic('moving', ['reader']);
    await inWindow(browser, server, {}, async (window, page) => {
      await window.goto('/topics/moving/groups/reader');
      const lag = page.locator('.tile', { hasText: 'Lag' }).locator('.tile-figure');
      assert.equal((await lag.innerText()).trim(), '0');
      await server.publish('moving', ...Array.from({ length: 7 }, (_, at) => ({ payload: at })));
      await page.waitForFunction(() => [...document.querySelectorAll('.tile')].some((tile) => /^Lag\s+7/.test(tile.innerText)));
    });
  });

  test('updates can be paused, and return after a restart of the server', async () => {
    const { server, browser } = context;
    await server.topic('restarted');
    await inWindow(browser, server, {}, async (window, page) => {
      window.allow(/ERR_CONNECTION_REFUSED/, /ERR_INCOMPLETE_CHUNKED_ENCODING/, /ERR_CONNECTION_RESET/, /ERR_EMPTY_RESPONSE/);
      await window.goto(topicPage('restarted'));
      const shown = page.locator('.side [data-live-state]');
      await page.waitForFunction(() => document.querySelector('.side [data-live-state]').textContent === 'Live');
      await page.locator('.side [data-live-toggle]').click();
      assert.equal(await shown.innerText(), 'Updates paused');
      await page.locator('.side [data-live-toggle]').click();
      await page.waitForFunction(() => document.querySelector('.side [data-live-state]').textContent === 'Live');
      await server.kill();
      await page.waitForFunction(() => document.querySelector('.side [data-live-state]').textContent === 'Reconnecting');
      await server.restart();
      await page.waitForFunction(() => document.querySelector('.side [data-live-state]').textContent === 'Live');
      await server.publish('restarted', { payload: 'after' });
      await page.locator('details.message').first().waitFor();
    });
  });

  test('a chart shows values under the pointer and by keys', async () => {
    await inWindow(context.browser, context.demo, {}, async (window, page) => {
      await window.goto('/');
      const plot = page.locator('[data-chart]').first();
      await page.waitForFunction(() => (JSON.parse(document.querySelector('[data-chart]')?.dataset.chart ?? '{"series":[]}').series[0]?.values.length ?? 0) > 1);
      await plot.hover();
      await page.locator('.chart-tip').first().waitFor();
      await page.mouse.move(0, 0);
      await plot.focus();
      await page.keyboard.press('ArrowLeft');
      assert.match(await page.locator('.chart-tip').first().innerText(), /\S/);
    });
  });
}
