// Login by token, what a session may do, and pages of other sites that try to use it. Last: the store has tokens afterwards.

import assert from 'node:assert/strict';
import { createServer } from 'node:http';
import { test } from 'node:test';

import { inWindow, open } from './browser.mjs';
import { groupPage, serve, topicPage } from './server.mjs';

export function define(context) {
  test('tokens are made, used to log in, rotated and revoked', async () => {
    const server = await serve();
    try {
      await server.topic('shop.orders', ['billing']);
      await server.publish('shop.orders', { payload: 'secret of the shop', key: 'hidden-key' });
      await inWindow(context.browser, server, {}, (window, page) => tokens(window, page, server, context.browser));
    } finally {
      await server.stop();
    }
  });

  test('pages of other sites can neither act nor show the dashboard', async () => {
    const server = await serve();
    try {
      await server.topic('target', ['reader']);
      const created = JSON.parse(await server.command('token', 'create', 'admin', ...['admin', 'read', 'publish', 'consume'].flatMap((scope) => ['--scope', scope])));
      server.token = Object.values(created).find((value) => String(value).startsWith('hw_'));
      await inWindow(context.browser, server, {}, (window, page) => otherSites(window, page, server));
    } finally {
      await server.stop();
    }
  });
}

/** Makes a token by the dialog; its secret. */
async function create(window, page, name, scopes, topics = '') {
  await window.goto('/settings');
  const dialog = await window.ask('New token');
  await dialog.getByLabel('Name', { exact: true }).fill(name);
  for (const scope of scopes) await dialog.locator(`input[name="scope"][value="${scope}"]`).check();
  await dialog.getByLabel('Topics', { exact: true }).fill(topics);
  await window.submit(dialog.getByRole('button', { name: 'Create token' }));
  const secret = await page.locator('#secret').textContent();
  assert.match(secret, /^hw_/);
  return secret;
}

async function logIn(window, page, secret, path = '/') {
  await page.goto(`/login?next=${encodeURIComponent(path)}`);
  await page.getByLabel('API token').fill(secret);
  await window.submit(page.getByRole('button', { name: 'Log in' }));
}

async function tokens(window, page, server, browser) {
  const admin = await create(window, page, 'root', ['admin', 'read', 'publish', 'consume']);
  await refusedSoon(server);
  await page.goto('/topics');
  await page.waitForURL('**/login**');

  window.allow(/status 401/, /401 \(Unauthorized\)/);
  await logIn(window, page, `${admin}x`);
  assert.match(await page.locator('main').innerText(), /not valid/);
  await logIn(window, page, admin, '/topics');
  assert.equal(new URL(page.url()).pathname, '/topics');
  const cookies = await page.context().cookies();
  for (const cookie of cookies.filter(({ value }) => value.length > 20)) {
    assert.ok(cookie.httpOnly && ['Strict', 'Lax'].includes(cookie.sameSite), `cookie ${cookie.name}: ${JSON.stringify(cookie)}`);
    assert.ok(!cookie.value.includes(admin), 'the secret is not in a cookie');
  }
  await logIn(window, page, admin, '//elsewhere.example/');
  assert.equal(new URL(page.url()).origin, new URL(server.url).origin, 'no redirect to another site');

  const reader = await create(window, page, 'reader', ['read'], 'shop.*');
  const publisher = await create(window, page, 'publisher', ['publish'], 'shop.*');
  assert.ok(!(await (await window.goto('/settings')).text()).includes(reader), 'a secret is shown once');

  await asReader(browser, server, reader);
  await asPublisher(browser, server, publisher);

  await window.goto('/settings');
  const row = page.locator('tr', { hasText: 'reader' });
  const rotate = await window.ask('Rotate', row);
  await rotate.getByLabel('The old secret is accepted for').fill('0s');
  await window.submit(rotate.getByRole('button', { name: 'Rotate' }));
  const rotated = await page.locator('#secret').textContent();
  assert.notEqual(rotated, reader);
  await window.goto('/settings');
  const revoke = await window.ask('Revoke', page.locator('tr', { hasText: 'publisher' }));
  await window.submit(revoke.getByRole('button', { name: 'Revoke' }));
  await window.said(/revoked/);
  await refusedSoon(server, publisher);
  await refusedSoon(server, reader);
  assert.equal((await fetch(`${server.url}/v1/topics`, { headers: { authorization: `Bearer ${rotated}` } })).status, 200);

  await window.submit(page.locator('.side').getByRole('button', { name: 'Log out' }));
  await page.waitForURL('**/login**');
  await page.goto('/topics');
  await page.waitForURL('**/login**');
  assert.ok(!server.log.includes(admin) && !server.log.includes(reader), 'no secret is in the log');
}

/** A secret that is not valid any more is refused within seconds, as is its absence: servers cache tokens for a moment. */
async function refusedSoon(server, secret) {
  const headers = secret === undefined ? {} : { authorization: `Bearer ${secret}` };
  for (const deadline = Date.now() + 20_000; ; await new Promise((resolve) => setTimeout(resolve, 200))) {
    const { status } = await fetch(`${server.url}/v1/topics`, { headers });
    if (status === 401) return;
    assert.ok(Date.now() < deadline, `still accepted: ${status}`);
  }
}

/** Sees everything of its topics and changes nothing. */
async function asReader(browser, server, secret) {
  await inWindow(browser, server, {}, async (window, page) => {
    window.allow(/status 403/, /403 \(Forbidden\)/);
    await logIn(window, page, secret, topicPage('shop.orders'));
    assert.match(await page.locator('main').innerText(), /secret of the shop/);
    await window.goto(groupPage('shop.orders', 'billing'));
    assert.equal(await page.getByRole('link', { name: 'Pause', exact: true }).count(), 0, 'no action that it may not do');
    assert.equal((await page.goto(`${groupPage('shop.orders', 'billing')}/pause`)).status(), 403);
    assert.equal((await page.goto('/audit')).status(), 403);
    await window.goto('/settings');
    assert.match(await page.locator('main').innerText(), /Tokens are shown to callers with the scope/);
  });
}

/** Payloads and keys are hidden from it. */
async function asPublisher(browser, server, secret) {
  await inWindow(browser, server, {}, async (window, page) => {
    await logIn(window, page, secret, topicPage('shop.orders'));
    const text = await page.content();
    assert.ok(!text.includes('secret of the shop') && !text.includes('hidden-key'), 'payloads are hidden without the scope read');
    await window.goto(`${topicPage('shop.orders')}/publish`);
    await page.getByLabel('Payload', { exact: true }).fill('by the publisher');
    await window.submit(page.getByRole('button', { name: 'Publish', exact: true }));
    await window.said(/Published/);
  });
}

/** A page of another origin with the visitor's cookies: a form that sends itself, and a frame. */
async function otherSites(window, page, server) {
  await logIn(window, page, server.token);
  const target = `${server.url}${groupPage('target', 'reader')}/pause`;
  const form = `<form method="post" action="${target}"><input name="reason" value="forged"></form><script>document.forms[0].submit()</script>`;
  const frame = `<iframe src="${server.url}/topics"></iframe>`;
  const elsewhere = createServer((request, response) => {
    response.setHeader('content-type', 'text/html');
    response.end(request.url === '/frame' ? frame : form);
  });
  await new Promise((resolve) => elsewhere.listen(0, '127.0.0.1', resolve));
  const other = `http://127.0.0.1:${elsewhere.address().port}`;
  try {
    const forged = await open(undefined, server, { context: page.context() });
    forged.allow(/./);
    await forged.page.goto(`${other}/form`);
    await forged.page.waitForURL((url) => url.origin !== other);
    assert.equal((await server.group('target', 'reader')).state, 'active', 'a form of another site has no effect');
    await forged.page.goto(`${other}/frame`);
    const inner = forged.page.frames().find((each) => each.parentFrame());
    assert.ok(!(await inner.content()).includes('shop') && !inner.url().startsWith(server.url), 'the dashboard is not shown in a frame');
    await forged.page.close();

    await window.goto('/topics');
    window.allow(/status 403/, /403 \(Forbidden\)/);
    const status = await page.evaluate(async (path) => (await fetch(path, { method: 'POST', body: new URLSearchParams({ reason: 'no token' }) })).status, `${groupPage('target', 'reader')}/pause`);
    assert.equal(status, 403, 'a form without its CSRF token is refused');
    assert.equal((await server.group('target', 'reader')).state, 'active');
  } finally {
    elsewhere.close();
  }
}
