// Actions on topics, groups, messages, dead letters and scheduled messages do what they say; the API is asked whether they did.

import assert from 'node:assert/strict';
import { test } from 'node:test';

import { inWindow } from './browser.mjs';
import { groupPage, topicPage, topicPath } from './server.mjs';

export function define(context) {
  const on = (name, body) => test(name, () => inWindow(context.browser, context.server, {}, (window, page) => body(window, page, context.server)));

  on('a topic is created, changed, emptied and deleted', async (window, page, server) => {
    await window.goto('/topics');
    await window.submit(page.getByRole('link', { name: 'New topic' }).first());
    await page.getByLabel('Name', { exact: true }).fill('made.here');
    await page.getByLabel(/^Standard/).check();
    await window.submit(page.getByRole('button', { name: 'Create topic' }));
    await window.said(/made\.here created/);
    assert.equal((await server.api('GET', topicPath('made.here'))).name, 'made.here');

    await window.goto(`${topicPage('made.here')}/settings`);
    await page.locator('[name="max_attempts"]').fill('3');
    await window.submit(page.getByRole('button', { name: 'Show what would change' }));
    assert.match(await page.locator('.callout[role="status"]').innerText(), /→ 3/);
    await page.locator('[name="max_attempts"]').fill('0');
    await window.submit(page.getByRole('button', { name: 'Show what would change' }));
    assert.match(await page.locator('.callout[role="alert"]').innerText(), /refused/);
    await page.locator('[name="max_attempts"]').fill('3');
    await window.submit(page.getByRole('button', { name: 'Save settings' }));
    await window.said(/Changed\..*3/);
    assert.match(JSON.stringify(await server.api('GET', topicPath('made.here'))), /"max_attempts":3/);

    await server.publish('made.here', { payload: 1 }, { payload: 2 });
    await window.goto(`${topicPage('made.here')}/settings`);
    await window.confirm('Remove all messages', 'Remove messages', { "Type the topic's name to confirm": 'wrong' });
    await window.said(/not typed as it is/, false);
    assert.equal((await server.messages('made.here')).length, 2);
    await window.confirm('Remove all messages', 'Remove messages', { "Type the topic's name to confirm": 'made.here' });
    await window.said(/2 messages removed/);
    assert.deepEqual(await server.messages('made.here'), []);

    await window.confirm('Delete topic', 'Delete topic', { "Type the topic's name to confirm": 'made.here' });
    await window.said(/made\.here deleted/);
    assert.equal((await fetch(server.url + topicPath('made.here'))).status, 404);
  });

  on('a message is published with everything that was filled in', async (window, page, server) => {
    await server.topic('form', ['reader']);
    await window.goto(`${topicPage('form')}/publish`);
    await page.getByLabel('Payload', { exact: true }).fill('{"order": 17,\n "text": "<b>ä</b>"}');
    await page.getByLabel('Key', { exact: true }).fill('customer-7');
    await page.getByLabel('Type', { exact: true }).fill('order.placed');
    await page.getByLabel('Dedup key', { exact: true }).fill('order-17');
    await page.getByLabel('Headers', { exact: true }).fill('region: eu\ntrace: a:b');
    await window.submit(page.getByRole('button', { name: 'Publish', exact: true }));
    await window.said(/Published at offset 1/);
    const [message] = await server.messages('form');
    assert.deepEqual([message.payload, message.key, message.type], [{ order: 17, text: '<b>ä</b>' }, 'customer-7', 'order.placed']);
    assert.deepEqual([message.headers.region, message.headers.trace], ['eu', 'a:b']);
    assert.match(await page.locator('details.message').first().innerText(), /customer-7/);

    await window.goto(`${topicPage('form')}/publish`);
    await page.getByLabel('Payload', { exact: true }).fill('again');
    await page.getByLabel('Dedup key', { exact: true }).fill('order-17');
    await window.submit(page.getByRole('button', { name: 'Publish', exact: true }));
    await window.said(/Not stored: offset 1/);
    await window.goto(`${topicPage('form')}/publish`);
    await page.getByLabel('Payload', { exact: true }).fill('x');
    await page.getByLabel('Delay', { exact: true }).fill('soon');
    await window.submit(page.getByRole('button', { name: 'Publish', exact: true }));
    await window.said(/delay/, false);
    assert.equal((await server.messages('form')).length, 1);
  });

  on('messages are found by offset, time, key and id', async (window, page, server) => {
    await server.topic('search');
    await server.publish('search', ...Array.from({ length: 60 }, (_, at) => ({ payload: { at }, key: `key-${at % 20}` })));
    const stored = await server.messages('search');
    const find = async (by, value) => {
      await window.goto(topicPage('search'));
      await page.getByLabel('Search by').selectOption(by);
      await page.locator('main input[type="search"]').fill(value);
      await window.submit(page.getByRole('button', { name: 'Find' }));
      return page.locator('details.message .offset').allInnerTexts();
    };
    assert.equal((await find('offset', '41'))[0], '41');
    assert.deepEqual(await find('key', 'key-7'), ['48', '28', '8']);
    assert.deepEqual(await find('id', stored[9].id), ['10']);
    assert.equal((await find('time', stored[0].published_at))[0], '1');
    assert.deepEqual(await find('key', 'no such key'), []);
    await window.goto(topicPage('search'));
    assert.equal(await page.locator('details.message').count(), 50);
    await window.submit(page.getByRole('link', { name: 'Older' }));
    assert.equal(await page.locator('details.message').count(), 10);
  });

  on('a group is subscribed, paused, resumed, moved, cancelled and removed', async (window, page, server) => {
    await server.topic('life');
    await server.publish('life', ...[1, 2, 3, 4].map((payload) => ({ payload })));
    await window.goto(`${topicPage('life')}/groups`);
    const subscribe = await window.ask('Subscribe a group');
    await subscribe.getByLabel('Name of the group').fill('reader');
    await window.submit(subscribe.getByRole('button', { name: 'Subscribe' }));
    await window.said(/reader is subscribed/);
    assert.equal((await server.group('life', 'reader')).lag, 4);

    await window.goto(groupPage('life', 'reader'));
    const closed = await window.ask('Pause');
    await closed.getByRole('link', { name: 'Cancel' }).click();
    await page.locator('dialog[open]').waitFor({ state: 'detached' }).catch(() => page.locator('dialog[open]').waitFor({ state: 'hidden' }));
    assert.equal((await server.group('life', 'reader')).state, 'active', 'a question that is not answered changes nothing');
    assert.equal(await page.evaluate(() => document.activeElement.textContent), 'Pause', 'focus returns');
    await window.ask('Pause');
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('dialog[open]').count(), 0);
    await window.confirm('Pause', 'Pause', { Reason: 'the <bank> is down' });
    await window.said(/reader is paused/);
    assert.equal((await server.group('life', 'reader')).state, 'paused');
    assert.match(await page.locator('.callout').first().innerText(), /the <bank> is down/);
    await window.confirm('Resume');
    await window.said(/active again/);
    assert.equal((await server.group('life', 'reader')).state, 'active');

    await server.settle('life', 'reader', (await server.claim('life', 'reader', 3)).map(({ receipt }) => ({ receipt, outcome: 'ack' })));
    await window.goto(groupPage('life', 'reader'));
    const seek = await window.ask('Seek');
    await seek.getByLabel('To', { exact: true }).selectOption('offset');
    await seek.getByLabel('Offset, time or number').fill('2');
    await seek.getByRole('button', { name: 'Show the effect' }).click();
    await page.locator('dialog .callout[role="status"]').waitFor();
    assert.match(await page.locator('dialog .callout').innerText(), /2 messages are handed out again/);
    assert.equal((await server.group('life', 'reader')).lag, 1, 'showing the effect changes nothing');
    await window.submit(page.locator('dialog').getByRole('button', { name: 'Seek', exact: true }));
    await window.said(/at offset 2/);
    assert.equal((await server.group('life', 'reader')).lag, 3);

    const delivery = await window.ask('Change');
    await delivery.getByLabel('Attempts').fill('2');
    await window.submit(delivery.getByRole('button'));
    await window.said(/Delivery of group reader is changed/);
    await window.confirm('Cancel');
    await window.said(/is cancelled/);
    await window.confirm('Remove');
    await window.said(/is removed/);
    assert.equal((await fetch(`${server.url}${topicPath('life')}/groups/reader`)).status, 404);
  });

  on('messages in flight are released, retried, skipped and buried', async (window, page, server) => {
    await server.topic('flight', ['reader']);
    await server.publish('flight', ...['leased', 'waiting', 'skipped', 'buried'].map((payload) => ({ payload })));
    const [first, second] = await server.claim('flight', 'reader', 2);
    await server.settle('flight', 'reader', [{ receipt: second.receipt, outcome: 'retry', delay_ms: 3_600_000, reason: 'the <shop> is closed' }]);
    await window.goto(groupPage('flight', 'reader'));
    assert.match(await page.locator('main').innerText(), /the <shop> is closed/);
    await window.submit(page.getByRole('button', { name: 'Release' }));
    await window.said(/lease is ended/);
    const late = await server.settle('flight', 'reader', [{ receipt: first.receipt, outcome: 'ack' }]);
    assert.equal(late.results[0].result, 'lost');
    await window.submit(page.locator('tr', { hasText: 'the <shop> is closed' }).getByRole('button', { name: 'Retry now' }));
    await window.said(/Retrying offset 2/);
    await window.goto(`${topicPage('flight')}/messages/3`);
    await window.submit(page.getByRole('button', { name: 'Skip' }));
    await window.said(/Skipped offset 3/);
    await window.goto(`${topicPage('flight')}/messages/4`);
    await window.submit(page.getByRole('button', { name: 'Bury' }));
    await window.said(/Buried offset 4/);
    const again = await server.claim('flight', 'reader', 10);
    assert.deepEqual(again.map((message) => message.payload).sort(), ['leased', 'waiting']);
    assert.deepEqual((await server.deadLetters('flight')).map((dead) => dead.payload), ['buried']);
  });

  on('dead letters are redriven, edited and purged, alone and together', async (window, page, server) => {
    await server.topic('dead', ['reader']);
    await server.publish('dead', ...[0, 1, 2, 3, 4, 5].map((at) => ({ payload: { at }, key: `k${at}` })));
    await server.bury('dead', 'reader', 6, 'cannot "parse" <it>');
    const open = async (at) => {
      const dead = (await server.deadLetters('dead')).find((each) => each.payload.at === at);
      await window.goto(`/dead-letters/${dead.id}`);
    };
    await open(0);
    assert.match(await page.locator('main').innerText(), /cannot "parse" <it>/);
    await window.confirm('Redrive');
    await window.said(/1 dead letter redriven/);
    await open(1);
    await window.confirm('Purge');
    await window.said(/1 dead letter purged/);
    await open(2);
    await page.getByLabel('Payload', { exact: true }).fill('{"at": 200}');
    await window.submit(page.getByRole('button', { name: 'Publish the edited copy' }));
    await window.said(/Edited copy published to dead/);
    await window.goto('/dead-letters?topic=dead');
    assert.equal(await page.locator('input[name="id"]').count(), 3);
    await window.submit(page.getByRole('button', { name: 'Purge selected' }));
    await window.said(/nothing is selected/, false);
    await page.locator('input[name="id"]').first().check();
    await window.submit(page.getByRole('button', { name: 'Purge selected' }));
    await window.submit(page.getByRole('button', { name: 'Purge', exact: true }));
    await window.said(/1 dead letter purged/);
    await page.locator('[data-all="id"]').check();
    assert.match(await page.locator('[data-chosen]').innerText(), /2 selected/);
    await window.submit(page.getByRole('button', { name: 'Redrive selected' }));
    await window.submit(page.getByRole('button', { name: 'Redrive', exact: true }));
    await window.said(/2 dead letters redriven/);
    assert.deepEqual(await server.deadLetters('dead'), []);
    const again = (await server.claim('dead', 'reader', 10)).map((message) => message.payload.at);
    assert.deepEqual(again.sort((a, b) => a - b), [0, 4, 5, 200], 'those that were redriven and the edited one, not the purged ones');
  });

  on('scheduled messages are moved and cancelled', async (window, page, server) => {
    await server.topic('later', ['reader']);
    await server.publish('later', { payload: 'moved', delay_ms: 3_600_000, key: 'a' }, { payload: 'cancelled', delay_ms: 3_700_000, key: 'b' });
    await window.goto('/scheduled?topic=later');
    const row = (key) => page.locator('tr', { has: page.locator('td[data-label="Key"]', { hasText: key }) });
    const cancel = await window.ask('Cancel', row('b'));
    await window.submit(cancel.getByRole('button', { name: 'Cancel message' }));
    await window.said(/cancelled/);
    await window.goto('/scheduled?topic=later');
    const move = await window.ask('Move', row('a'));
    await move.getByLabel('From now').fill('1s');
    await window.submit(move.getByRole('button', { name: 'Move message' }));
    await window.said(/moved/);
    assert.deepEqual((await server.claim('later', 'reader', 10)).map((message) => message.payload), ['moved']);
    assert.deepEqual((await server.api('GET', `${topicPath('later')}/scheduled`)).items, []);
  });

  test('actions work without scripts', async () => {
    const { server, browser } = context;
    await server.topic('plain', ['reader']);
    await inWindow(browser, server, { scripts: false }, async (window, page) => {
      await window.goto(groupPage('plain', 'reader'));
      await window.submit(page.locator('main').getByRole('link', { name: 'Pause', exact: true }));
      await page.getByLabel('Reason').fill('by hand');
      await window.submit(page.getByRole('button', { name: 'Pause' }));
      await window.said(/is paused/);
      assert.equal((await server.group('plain', 'reader')).state, 'paused');
      await window.goto(`${topicPage('plain')}/publish`);
      await page.getByLabel('Payload', { exact: true }).fill('by form');
      await window.submit(page.getByRole('button', { name: 'Publish', exact: true }));
      await window.said(/Published/);
    });
  });
}
