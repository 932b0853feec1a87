// Servers of the real program, each with a store of its own, and requests to their API.

import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';

const run = promisify(execFile);
const BINARY = process.env.HEADWATER_TEST_BINARY;

/** A server, until `stop`. With `demo` it has live traffic of its own. */
export async function serve({ demo = false, parameters = [] } = {}) {
  assert.ok(BINARY, 'HEADWATER_TEST_BINARY names the program; `cargo xtask test` sets it');
  const folder = await mkdtemp(join(tmpdir(), 'headwater-browser-'));
  const store = demo ? [] : ['--store', `sqlite:${join(folder, 'shop.db')}`];
  const server = new Server(folder, store, demo ? ['--demo', ...parameters] : parameters);
  await server.start('127.0.0.1:0');
  return server;
}

class Server {
  #process;
  #log = '';

  constructor(folder, store, parameters) {
    this.folder = folder;
    this.store = store;
    this.parameters = parameters;
    this.token = undefined;
  }

  async start(listen) {
    const parameters = [...this.store, '--output', 'json', 'serve', '--listen', listen, ...this.parameters];
    this.#process = spawn(BINARY, parameters, { stdio: ['ignore', 'pipe', 'pipe'] });
    this.#process.stderr.on('data', (text) => { this.#log = (this.#log + text).slice(-20_000); });
    const lines = createInterface({ input: this.#process.stdout });
    const line = await Promise.race([once(lines, 'line'), once(this.#process, 'exit')]);
    assert.equal(typeof line[0], 'string', `the server ended: ${this.#log}`);
    this.url = JSON.parse(line[0]).url.replace(/\/$/, '');
  }

  /** What it wrote to stderr. */
  get log() {
    return this.#log;
  }

  async kill() {
    const ended = once(this.#process, 'exit');
    this.#process.kill('SIGKILL');
    await ended;
  }

  /** On the same port. */
  async restart() {
    await this.start(new URL(this.url).host);
  }

  async stop() {
    const ended = once(this.#process, 'exit');
    this.#process.kill('SIGTERM');
    const [code] = await ended;
    await rm(this.folder, { recursive: true });
    assert.equal(code, 0, `the server ended with ${code}: ${this.#log}`);
  }

  /** A command of the program on the same store. */
  async command(...parameters) {
    return (await run(BINARY, [...this.store, '--output', 'json', ...parameters])).stdout;
  }

  /** A request to the API; its answer, which has to be a success. */
  async api(method, path, body) {
    const headers = { 'content-type': 'application/json' };
    if (this.token) headers.authorization = `Bearer ${this.token}`;
    const response = await fetch(this.url + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
    const text = await response.text();
    assert.ok(response.ok, `${method} ${path}: ${response.status} ${text}`);
    return text === '' ? undefined : JSON.parse(text);
  }

  /** A topic with groups that begin at its start. */
  async topic(name, groups = []) {
    await this.api('POST', '/v1/topics', { name, preset: 'standard' });
    for (const group of groups) {
      await this.api('PUT', `${topicPath(name)}/groups/${encodeURIComponent(group)}`, { start: 'start' });
    }
  }

  publish(topic, ...messages) {
    return this.api('POST', `${topicPath(topic)}/batches`, { messages });
  }

  async claim(topic, group, max = 1, lease_ms = 60_000) {
    const path = `${topicPath(topic)}/groups/${encodeURIComponent(group)}/claim`;
    return (await this.api('POST', path, { max, lease_ms, wait_ms: 5_000 })).messages;
  }

  settle(topic, group, settlements) {
    return this.api('POST', `${topicPath(topic)}/groups/${encodeURIComponent(group)}/settle`, { settlements });
  }

  group(topic, group) {
    return this.api('GET', `${topicPath(topic)}/groups/${encodeURIComponent(group)}`);
  }

  async messages(topic) {
    return (await this.api('GET', `${topicPath(topic)}/messages?limit=1000`)).items;
  }

  async deadLetters(topic) {
    const { items } = await this.api('GET', `/v1/dead-letters?limit=1000&topic=${encodeURIComponent(topic)}`);
    return Promise.all(items.map(({ id }) => this.api('GET', `/v1/dead-letters/${id}`)));
  }

  /** Claims as many messages and buries them. */
  async bury(topic, group, count, reason = 'no such customer') {
    const claimed = await this.claim(topic, group, count);
    assert.equal(claimed.length, count);
    await this.settle(topic, group, claimed.map(({ receipt }) => ({ receipt, outcome: 'bury', reason })));
  }
}

export const topicPath = (topic) => `/v1/topics/${encodeURIComponent(topic)}`;
/** The address of a topic's page. */
export const topicPage = (topic) => `/topics/${encodeURIComponent(topic)}`;
/** The address of a group's page. */
export const groupPage = (topic, group) => `${topicPage(topic)}/groups/${encodeURIComponent(group)}`;
