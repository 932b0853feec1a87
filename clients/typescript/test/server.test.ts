// The client against the real server, on both stores.

import assert from "node:assert/strict";

import { Bury, type Claimed, Client, Conflict, Forbidden, InvalidRequest, NotFound, Unauthorized, Worker } from "../src/index.js";
import { onBothStores, Proxy, RealServer, waitUntil } from "./real.js";

/** Long enough for a slow machine, short enough for a test that fails. */
const DEADLINE_MS = 20_000;
const TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

async function prepare(client: Client, topic = "orders"): Promise<void> {
  await client.topics.create(topic);
  await client.groups.put(topic, "billing", { start: "start" });
}

onBothStores("a message comes back as it was published", async (context, store) => {
  const { client } = await store.serve(context);
  await prepare(client);
  const payload = { id: 1, text: "ä\u2028" };
  const options = { key: "k", type: "order.placed", headers: { a: "b" }, traceparent: TRACE };
  const published = await client.publish("orders", payload, options);
  await client.publish("orders", new Uint8Array([255, 0, 1]));
  const claim = await client.claim("orders", "billing", { max: 10, waitMs: 5_000 });
  const [first, second] = claim.messages as [Claimed, Claimed];
  assert.deepEqual([first.offset, first.id, first.payload], [published.offset, published.id, payload]);
  assert.deepEqual([first.key, first.type, first.attempt], ["k", "order.placed", 1]);
  assert.deepEqual([first.headers["a"], first.headers["traceparent"]], ["b", TRACE]);
  assert.deepEqual(second.payload, new Uint8Array([255, 0, 1]));
  assert.ok(Math.abs(Number(first.publishedAt) - Date.now()) < 300_000);
  assert.ok(Number(claim.leaseUntil) > 0);
  const receipts = claim.messages.map(({ receipt }) => receipt);
  const extended = await client.extend("orders", "billing", receipts);
  assert.deepEqual(extended.map((each) => each.lost), [false, false]);
  const results = await client.settle("orders", "billing", receipts.map((receipt) => ({ receipt, outcome: "ack" as const })));
  assert.deepEqual(results.map((each) => each.lost), [false, false]);
  assert.equal((await client.groups.get("orders", "billing")).lag, 0);
});

onBothStores("a batch is atomic, and dedup keys are stored once", async (context, store) => {
  const { client } = await store.serve(context);
  await client.topics.create("orders");
  await client.publishBatch("orders", [0, 1, 2].map((at) => ({ payload: at, key: `k${at}`, dedupKey: `d${at}` })));
  const again = await client.publishBatch("orders", [{ payload: 2, dedupKey: "d2" }, { payload: 3, dedupKey: "d3" }]);
  assert.deepEqual(again.map((each) => each.duplicate), [true, false]);
  const wrong = client.publishBatch("orders", [{ payload: 4 }, { payload: 5, key: "k".repeat(100_000) }]);
  await assert.rejects(wrong, InvalidRequest);
  const page = await client.browse("orders", { from: "start" });
  assert.deepEqual(page.items.map((message) => message.payload), [0, 1, 2, 3]);
});

onBothStores("groups are paused, resumed and moved; dead letters redriven, edited and purged", async (context, store) => {
  const { client } = await store.serve(context);
  await prepare(client);
  await client.publishBatch("orders", [0, 1, 2, 3].map((at) => ({ payload: { at } })));
  await client.groups.pause("orders", "billing", { reason: "maintenance" });
  assert.equal((await client.groups.get("orders", "billing")).state, "paused");
  assert.deepEqual((await client.claim("orders", "billing")).messages, []);
  await client.groups.resume("orders", "billing");
  let buried = 0;
  for await (const delivery of client.consume("orders", "billing", { untilIdleMs: DEADLINE_MS })) {
    await delivery.handle(({ payload }) => {
      throw new Bury(`poison ${(payload as { at: number }).at}`);
    });
    buried += 1;
    if (buried === 4) {
      break;
    }
  }
  const dead = new Map<number, string>();
  for await (const { id } of client.deadLetters.all({ topic: "orders", group: "billing" })) {
    const each = await client.deadLetters.get(id);
    dead.set((each.payload as { at: number }).at, each.id);
    assert.equal(each.error, `poison ${(each.payload as { at: number }).at}`);
  }
  const [first, second, third] = [0, 1, 2].map((at) => dead.get(at)) as [string, string, string];
  await client.deadLetters.redrive({ ids: [first] });
  await client.deadLetters.redriveEdited(second, { at: 100 });
  await client.deadLetters.purge([third], { dryRun: true });
  assert.deepEqual((await client.deadLetters.get(third)).payload, { at: 2 });
  await client.deadLetters.purge([third]);
  await assert.rejects(client.deadLetters.get(third), NotFound);
  const seen: number[] = [];
  for await (const delivery of client.consume("orders", "billing", { untilIdleMs: DEADLINE_MS })) {
    await delivery.handle(({ payload }) => seen.push((payload as { at: number }).at));
    if (seen.length === 2) {
      break;
    }
  }
  assert.deepEqual(seen.sort((a, b) => a - b), [0, 100]);
  await client.groups.seek("orders", "billing", "start");
  const again = await client.claim("orders", "billing", { max: 100, waitMs: 5_000 });
  assert.ok(again.messages.length >= 4);
  await client.groups.cancel("orders", "billing");
  await assert.rejects(client.groups.resume("orders", "billing"), Conflict);
});

onBothStores("refusals have their types, and tokens limit what a client may do", async (context, store) => {
  const create = async (...parameters: string[]) => {
    const made = JSON.parse(await store.command("token", "create", ...parameters)) as Record<string, unknown>;
    return Object.values(made).find((value): value is string => typeof value === "string" && value.startsWith("hw_"));
  };
  const scopes = ["admin", "publish", "consume", "read"].flatMap((scope) => ["--scope", scope]);
  const admin = (await create("admin", ...scopes)) as string;
  const limited = (await create("shop", "--scope", "publish", "--topic", "shop.*")) as string;
  const { server, client } = await store.serve(context, { token: admin });
  await client.topics.create("shop.orders");
  await client.topics.create("orders");
  await assert.rejects(client.groups.get("orders", "missing"), NotFound);
  await assert.rejects(client.topics.create("x", { settings: { no_such_setting: 1 } }), InvalidRequest);
  const shop = new Client(server.url, { token: limited });
  await shop.publish("shop.orders", 1);
  await assert.rejects(shop.publish("orders", 1), Forbidden);
  await assert.rejects(new Client(server.url).publish("orders", 1), Unauthorized);
  await assert.rejects(new Client(server.url, { token: `${limited}x` }).publish("shop.orders", 1), Unauthorized);
});

onBothStores("names with special characters work", async (context, store) => {
  const { client } = await store.serve(context);
  for (const name of ["a b", "ü/ö", "<script>", "100%", "a?b#c", "x%2Fy", "a+b;c=d"]) {
    await client.topics.create(name);
    await client.groups.put(name, name, { start: "start" });
    await client.publish(name, name);
    const { messages } = await client.claim(name, name, { waitMs: 5_000 });
    assert.deepEqual(messages.map((message) => message.payload), [name]);
  }
});

onBothStores("stream and tail bring messages as they come", async (context, store) => {
  const { client } = await store.serve(context);
  await prepare(client);
  for (let at = 0; at < 50; at += 1) {
    await client.publish("orders", at, { key: String(at % 3) });
  }
  const seen: unknown[] = [];
  for await (const delivery of client.stream("orders", "billing", { credit: 10 })) {
    await delivery.handle((message) => seen.push(message.payload));
    if (seen.length === 50) {
      break;
    }
  }
  const all = Array.from({ length: 50 }, (_, at) => at);
  assert.deepEqual((seen as number[]).sort((a, b) => a - b), all);
  const tailed: unknown[] = [];
  for await (const message of client.tail("orders", { from: "start" })) {
    if (tailed.push(message.payload) === 50) {
      break;
    }
  }
  assert.deepEqual(tailed, all);
});

onBothStores("lost answers store nothing twice and lose nothing", async (context, store) => {
  const { server, client: direct } = await store.serve(context);
  const proxy = await Proxy.start(server.url, context);
  const client = new Client(proxy.url, { retry: { pauseMs: 10 } });
  context.after(() => client.close());
  await prepare(direct);
  proxy.losing.set("/messages", 3).set("/batches", 1);
  const published = await client.publish("orders", 0, { key: "k" });
  const batch = await client.publishBatch("orders", [{ payload: 1 }, { payload: 2 }]);
  assert.deepEqual([published, ...batch].map((each) => each.duplicate), [false, false, false]);
  const { items } = await direct.browse("orders", { from: "start" });
  assert.deepEqual(items.map((message) => message.payload), [0, 1, 2]);
  proxy.losing.set("/claim", 1).set("/settle", 2);
  const settled = new Set<unknown>();
  for await (const delivery of client.consume("orders", "billing", { leaseMs: 2_000, untilIdleMs: DEADLINE_MS })) {
    // On a machine that stalls, its lease may have ended: then it comes again.
    if (await delivery.ack()) {
      settled.add(delivery.payload);
    }
    if (settled.size === 3) {
      break;
    }
  }
  assert.deepEqual([...settled].toSorted(), [0, 1, 2], "those of the lost answer came again after their leases");
  assert.equal((await direct.groups.get("orders", "billing")).lag, 0);
  assert.equal(proxy.lost, 7);
});

onBothStores("a worker handles many messages in order per key", async (context, store) => {
  const { client } = await store.serve(context);
  await prepare(client);
  const count = 2_000;
  for (let at = 0; at < count; at += 500) {
    await client.publishBatch("orders", Array.from({ length: 500 }, (_, each) => ({ payload: at + each, key: String(each % 17) })));
  }
  const seen: Claimed[] = [];
  const worker = new Worker(client, "orders", "billing", (message) => seen.push(message), { inHand: 200, waitMs: 1_000 });
  const ended = worker.run({ handleSignals: false });
  await waitUntil(() => seen.length >= count, "all messages handled", 60_000);
  worker.stop();
  await ended;
  assert.equal(new Set(seen.map((message) => message.payload)).size, count);
  assert.equal(seen.length, count);
  for (const key of new Set(seen.map((message) => message.key))) {
    const own = seen.filter((message) => message.key === key).map((message) => message.offset);
    assert.deepEqual(own, own.toSorted((a, b) => a - b), `order of key ${key}`);
  }
  assert.equal((await client.groups.get("orders", "billing")).lag, 0);
});

onBothStores("a message claimed at one server is settled at the other", async (context, store) => {
  const { server, client: first } = await store.serve(context);
  const other = await RealServer.start(store, context);
  const second = new Client(other.url);
  context.after(() => second.close());
  await prepare(first);
  await first.publish("orders", 1);
  const { messages } = await first.claim("orders", "billing", { waitMs: 5_000, leaseMs: 30_000 });
  await server.kill();
  assert.deepEqual((await second.claim("orders", "billing", { waitMs: 1_000 })).messages, [], "the lease outlives its server");
  const settlements = messages.map(({ receipt }) => ({ receipt, outcome: "ack" as const }));
  assert.deepEqual((await second.settle("orders", "billing", settlements)).map((each) => each.lost), [false]);
  assert.equal((await second.groups.get("orders", "billing")).lag, 0);
});
