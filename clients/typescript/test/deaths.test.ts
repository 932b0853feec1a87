// Servers that are killed while clients work: nothing is lost, and only what was in flight may be handled twice.

import assert from "node:assert/strict";
import type { TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { type Claimed, Client, type Settled, type Settlement, Worker } from "../src/index.js";
import { onBothStores, RealServer, waitUntil } from "./real.js";

const COUNT = 1_500;
const BATCH = 25;
const KILLS = 4;
const OPTIONS = { retry: { pauseMs: 20, pauseMaxMs: 200 }, onWarning: () => {} };

/** What handlers did, and which of it was confirmed as settled. */
class Effects {
  readonly begun = new Map<number, number[]>();
  readonly #receipts = new Map<string, number>();
  readonly #confirmed = new Map<number, number>();

  readonly handle = async (message: Claimed) => {
    const payload = message.payload as number;
    this.begun.set(payload, [...(this.begun.get(payload) ?? []), performance.now()]);
    this.#receipts.set(message.receipt, payload);
    await sleep(1);
  };

  settled(results: readonly Settled[]): void {
    for (const { receipt, lost } of results) {
      const payload = this.#receipts.get(receipt);
      if (!lost && payload !== undefined && !this.#confirmed.has(payload)) {
        this.#confirmed.set(payload, performance.now());
      }
    }
  }

  check(kills: readonly number[]): void {
    assert.equal(this.begun.size, COUNT, "each message is handled at least once");
    for (const [payload, [first, ...more]] of this.begun) {
      // Handled before a server died, and not known to be settled by then.
      const confirmed = this.#confirmed.get(payload) ?? Infinity;
      const inFlight = kills.some((kill) => (first ?? 0) <= kill && kill <= confirmed);
      assert.ok(more.length === 0 || inFlight, `message ${payload} is handled again and was not in flight at a kill`);
    }
  }
}

/** Reports which settlements the server confirmed. */
class Recording extends Client {
  readonly effects = new Effects();

  override async settle(topic: string, group: string, settlements: readonly Settlement[]): Promise<readonly Settled[]> {
    const results = await super.settle(topic, group, settlements);
    this.effects.settled(results);
    return results;
  }
}

async function publishAll(client: Client): Promise<void> {
  for (let at = 0; at < COUNT; at += BATCH) {
    const messages = Array.from({ length: BATCH }, (_, each) => ({ payload: at + each, key: String((at + each) % 13) }));
    if (at % (BATCH * 4) === 0) {
      for (const { payload, key } of messages) {
        await client.publish("orders", payload, { key });
      }
    } else {
      await client.publishBatch("orders", messages);
    }
  }
}

async function stored(client: Client): Promise<unknown[]> {
  let page = await client.browse("orders", { from: "start", limit: 1_000 });
  const payloads = page.items.map((message) => message.payload);
  while (page.nextCursor !== undefined) {
    page = await client.browse("orders", { from: "start", limit: 1_000, cursor: page.nextCursor });
    payloads.push(...page.items.map((message) => message.payload));
  }
  return payloads;
}

/** Publishes and handles all messages while `kill` is called; then checks. */
async function workThrough(context: TestContext, servers: readonly RealServer[], kill: (at: number) => Promise<void>): Promise<void> {
  const urls = servers.map((server) => server.url);
  const [client, publisher] = [new Recording(urls, OPTIONS), new Client(urls, OPTIONS)];
  context.after(() => [client, publisher].forEach((each) => each.close()));
  const { effects } = client;
  await client.topics.create("orders");
  await client.groups.put("orders", "billing", { start: "start" });
  const worker = new Worker(client, "orders", "billing", effects.handle, { leaseMs: 10_000, waitMs: 1_000, inHand: 64 });
  const work = [worker.run({ handleSignals: false }), publishAll(publisher)];
  for (let at = 0; at < KILLS; at += 1) {
    // Spread over the work, and never before some of it is done.
    const goal = Math.floor(((at + 1) * COUNT) / (KILLS + 2));
    await waitUntil(() => effects.begun.size >= goal, `${goal} messages handled`, 60_000);
    await kill(at);
  }
  await waitUntil(() => effects.begun.size === COUNT, "all messages handled", 90_000);
  await waitUntil(async () => (await client.groups.get("orders", "billing")).lag === 0, "all messages settled", 60_000);
  worker.stop();
  await Promise.all(work);
  const payloads = (await stored(publisher)) as number[];
  assert.deepEqual(payloads.toSorted((a, b) => a - b), Array.from({ length: COUNT }, (_, at) => at), "each is stored once");
  effects.check(servers.flatMap((server) => server.kills));
}

onBothStores("a server is killed and restarted in the middle", async (context, store) => {
  const { server } = await store.serve(context);
  await workThrough(context, [server], async () => {
    await server.kill();
    await server.start();
  });
});

onBothStores("either of two servers is killed", async (context, store) => {
  const { server, client } = await store.serve(context, OPTIONS);
  const two = [server, await RealServer.start(store, context)] as const;
  await client.topics.create("alive");
  await workThrough(context, two, async (at) => {
    const [victim, other] = at % 2 === 0 ? two : [two[1], two[0]];
    await victim.kill();
    const alone = new Client(other.url, OPTIONS);
    await alone.publish("alive", at);
    alone.close();
    await victim.start();
  });
});
