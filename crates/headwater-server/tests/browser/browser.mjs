// Debian's Chromium, and windows that watch what pages do: no error, no request to another server, no dialog of a script.

import assert from 'node:assert/strict';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';

const FLAGS = [
  '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking', '--disable-component-update', '--disable-sync',
];
const SCREENSHOTS = process.env.HEADWATER_TEST_SCREENSHOTS;
/** Longer than anything takes on a busy machine. */
const DEADLINE_MS = 20_000;

/** A browser with an empty profile, until `close`. */
export async function launch() {
  const folder = process.env.HEADWATER_TEST_PLAYWRIGHT;
  assert.ok(folder, 'HEADWATER_TEST_PLAYWRIGHT names the folder of playwright-core; `cargo xtask test` sets it');
  const { chromium } = await import(pathToFileURL(join(folder, 'index.mjs')).href);
  return chromium.launch({ executablePath: process.env.HEADWATER_TEST_CHROMIUM, headless: true, args: FLAGS });
}

/** A window on a server. Cookies are those of its `context`, which windows can share. */
export async function open(browser, server, { width = 1280, dark = false, scripts = true, context } = {}) {
  const options = { viewport: { width, height: 800 }, colorScheme: dark ? 'dark' : 'light', javaScriptEnabled: scripts, baseURL: server.url };
  const own = context ?? (await browser.newContext(options));
  own.setDefaultTimeout(DEADLINE_MS);
  const page = await own.newPage();
  if (context) await page.setViewportSize({ width, height: 800 });
  return new Window(page, server, !context);
}

/** A page and everything it must not do. */
class Window {
  #problems = [];
  #allowed = [];
  #ownsContext;

  constructor(page, server, ownsContext) {
    this.page = page;
    this.server = server;
    this.#ownsContext = ownsContext;
    const origin = new URL(server.url).origin;
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) this.#note(`console ${message.type()}: ${message.text()}`);
    });
    page.on('pageerror', (error) => this.#note(`exception: ${error.message}`));
    page.on('dialog', (dialog) => {
      this.#note(`dialog of a script: ${dialog.message()}`);
      void dialog.dismiss();
    });
    page.on('request', (request) => {
      const url = request.url();
      if (!url.startsWith('data:') && !url.startsWith('blob:') && new URL(url).origin !== origin) this.#note(`request to another server: ${url}`);
    });
    page.on('response', (response) => {
      if (response.status() >= 400) this.#note(`status ${response.status()}: ${response.url()}`);
    });
  }

  #note(problem) {
    if (!this.#allowed.some((pattern) => pattern.test(problem))) this.#problems.push(`${problem} (on ${this.page.url()})`);
  }

  /** Problems that a test causes on purpose. */
  allow(...patterns) {
    this.#allowed.push(...patterns);
  }

  /** Fails if a page did what it must not. */
  check() {
    assert.deepEqual(this.#problems, []);
  }

  async goto(path) {
    const response = await this.page.goto(path, { waitUntil: 'load' });
    assert.equal(response.status(), 200, `${path}: ${response.status()}`);
    return response;
  }

  /** Follows a link or sends a form, and waits for the page that it leads to. */
  async submit(locator) {
    await Promise.all([this.page.waitForEvent('load'), locator.click()]);
  }

  /** What the page says was done. */
  async said(pattern, isGood = true) {
    const flash = this.page.locator(isGood ? '.flash.is-good' : '.flash.is-bad');
    await flash.first().waitFor();
    assert.match(await flash.first().innerText(), pattern);
  }

  /** Opens the question of an action in a dialog. */
  async ask(name, within = this.page.locator('main')) {
    await within.getByRole('link', { name, exact: true }).first().click();
    const dialog = this.page.locator('dialog[open]');
    await dialog.waitFor();
    return dialog;
  }

  /** The same, and answers it with the button of this name. */
  async confirm(name, button = name, fill = {}) {
    const dialog = await this.ask(name);
    for (const [label, value] of Object.entries(fill)) await dialog.getByLabel(label, { exact: true }).fill(value);
    await this.submit(dialog.getByRole('button', { name: button, exact: true }));
  }

  async screenshot(name) {
    if (!SCREENSHOTS) return;
    await mkdir(SCREENSHOTS, { recursive: true });
    await this.page.screenshot({ path: join(SCREENSHOTS, `${name}.png`), fullPage: true });
  }

  async close() {
    await this.page.close();
    if (this.#ownsContext) await this.page.context().close();
    this.check();
  }
}

/** Runs `body` with a window, and checks what its pages did, also after a failure. */
export async function inWindow(browser, server, options, body) {
  const window = await open(browser, server, options);
  try {
    await body(window, window.page);
  } catch (error) {
    await window.screenshot(`failed-${Date.now()}`);
    try { window.check(); } catch (also) { error.message += `\nThe page also: ${also.message}`; }
    await window.page.context().close();
    throw error;
  }
  await window.close();
}
