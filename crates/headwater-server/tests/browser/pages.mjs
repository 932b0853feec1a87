// Every page renders with real data, wide and narrow, light and dark.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { audit } from './audit.mjs';
import { inWindow } from './browser.mjs';

const THEMES = [
  { width: 1280, dark: false, name: 'wide-light' },
  { width: 1280, dark: true, name: 'wide-dark' },
  { width: 400, dark: false, name: 'narrow-light' },
  { width: 400, dark: true, name: 'narrow-dark' },
];

/** The pages of the demo, with what each has to show. */
const PAGES = [
  ['overview', '/', [/Messages per second/, /Busiest topics/, /orders/, /Groups furthest behind/]],
  ['topics', '/topics', [/orders/, /payments/, /reminders/]],
  ['topics-found', '/topics?q=pay&sort=rate', [/payments/]],
  ['new-topic', '/new-topic', [/Create topic/]],
  ['topic', '/topics/orders', [/Published per second/, /Messages/]],
  ['topic-groups', '/topics/orders/groups', [/active/]],
  ['topic-publish', '/topics/orders/publish', [/Payload/]],
  ['topic-settings', '/topics/orders/settings', [/Save settings/]],
  ['subscribe', '/topics/orders/subscribe', [/Name of the group/]],
  ['groups', '/groups', [/tax/, /paused/]],
  ['groups-paused', '/groups?state=paused', [/tax/]],
  ['group', '/topics/payments/groups/tax', [/paused/, /new tax rates/, /Position in the log/]],
  ['group-hour', '/topics/payments/groups/tax?span=hour', [/1 hour/]],
  ['group-question', '/topics/payments/groups/tax/resume', [/Delivery starts again/]],
  ['dead-letters', '/dead-letters', [/Dead letters/]],
  ['scheduled', '/scheduled', [/Cron jobs/]],
  ['processes', '/processes', [/order/]],
  ['outbox', '/outbox', [/Outbox/]],
  ['pipeline', '/pipeline', [/World/, /Services/, /Runs/]],
  ['maintenance', '/maintenance', [/Jobs/, /heads/]],
  ['doctor', '/maintenance/doctor', [/The store was checked/]],
  ['audit', '/audit', [/pause/]],
  ['settings', '/settings', [/API tokens/, /This server/]],
  ['new-token', '/settings/new-token', [/Create token/]],
  ['login', '/login', [/API token/]],
];

export function define(context) {
  for (const theme of THEMES) {
    test(`pages render with real data, ${theme.name}`, async () => {
      await inWindow(context.browser, context.demo, theme, async (window, page) => {
        for (const [name, path, texts] of [...PAGES, ...(await found(context.demo))]) {
          await window.goto(path);
          const text = await page.locator('main').innerText();
          for (const pattern of texts) assert.match(text, pattern, `${path} (${theme.name})`);
          await audit(page, `${path} (${theme.name})`);
          await window.screenshot(`${name}-${theme.name}`);
        }
      });
    });
  }

  test('pages of what does not exist say so', async () => {
    await inWindow(context.browser, context.demo, {}, async (window, page) => {
      window.allow(/status 404/, /404 \(Not Found\)/);
      for (const path of ['/topics/no-such-topic', '/topics/orders/groups/none', '/dead-letters/00000000-0000-7000-8000-000000000000', '/no-such-page']) {
        const response = await page.goto(path);
        assert.equal(response.status(), 404, path);
      }
      await page.goto('/topics/no-such-topic');
      assert.match(await page.locator('main').innerText(), /no-such-topic/);
      await audit(page, 'not found');
    });
  });

  test('keys, menu and theme work', async () => {
    await inWindow(context.browser, context.demo, {}, async (window, page) => {
      await window.goto('/');
      await page.keyboard.press('Tab');
      assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Skip to content');
      await page.keyboard.press('g');
      await Promise.all([page.waitForURL('**/topics'), page.keyboard.press('t')]);
      await page.keyboard.press('/');
      assert.equal(await page.evaluate(() => document.activeElement.type), 'search');
      await page.locator('.side [data-theme-toggle]').click();
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark');
      await window.goto('/groups');
      assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), 'dark', 'the choice is kept');
      await page.setViewportSize({ width: 400, height: 800 });
      await page.locator('.menu summary').click();
      await Promise.all([page.waitForURL('**/dead-letters'), page.locator('.menu').getByRole('link', { name: /Dead letters/ }).click()]);
    });
  });
}

/** Pages whose address is known only from the data: a message, a dead letter, a process, an entry of the outbox. */
async function found(demo) {
  const pages = [];
  const [message] = (await demo.api('GET', '/v1/topics/orders/messages?from=last:1')).items;
  pages.push(['message', `/topics/orders/messages/${message.offset}`, [/State in each group/]]);
  pages.push(['messages-by-key', `/topics/orders?by=offset&value=${message.offset}`, [/Newest/]]);
  const dead = (await demo.api('GET', '/v1/dead-letters?limit=1')).items[0];
  assert.ok(dead, 'the demo has a dead letter');
  pages.push(['dead-letter', `/dead-letters/${dead.id}`, [/Why it was given up/]]);
  pages.push(['dead-letter-question', `/dead-letters/${dead.id}/redrive`, [/handed to group|becomes new|is published/]]);
  const process = (await demo.api('GET', '/v1/processes?limit=1')).items[0];
  assert.ok(process, 'the demo has a process');
  pages.push(['process', `/processes/${process.id}`, [/Timeline/, /Events/]]);
  const entry = (await demo.api('GET', '/v1/outbox?status=PUBLISHED&limit=1')).items[0];
  assert.ok(entry, 'the demo has entries of the outbox');
  pages.push(['outbox-entry', `/outbox/${entry.id}`, [/Payload/]]);
  return pages;
}
