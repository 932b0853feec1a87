// The client against a server that fails on request.

import assert from "node:assert/strict";
import { once } from "node:events";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Bury, type Claimed, Client, type ClientOptions, ConnectionFailed, NotFound, Release, Retry, Worker } from "../src/index.js";
import { Fake } from "./fake.js";

const RETRY = { totalMs: 10_000, pauseMs: 10, pauseMaxMs: 100 };
const DEADLINE_MS = 20_000;

async function setup(context: TestContext, options: ClientOptions = {}): Promise<{ fake: Fake; client: Client; warnings: string[] }> {
  const fake = await Fake.start();
  const warnings: string[] = [];
  const client = new Client(fake.url, { retry: RETRY, onWarning: (message) => warnings.push(message), ...options });
  context.after(async () => {
    client.close();
    await fake.close();
  });
  return { fake, client, warnings };
}

async function until(condition: () => boolean): Promise<void> {
  const deadline = performance.now() + DEADLINE_MS;
  while (!condition()) {
    assert.ok(performance.now() < deadline, "the expected state is not reached");
    await sleep(5);
  }
}

test("a publish whose answer is lost is stored once", async (context) => {
  const { fake, client } = await setup(context);
  fake.faults.push({ path: "/messages", how: "after", times: 3 }, { path: "/batches", how: "after" });
  const published = await client.publish("orders", { id: 1 });
  assert.deepEqual([published.offset, published.duplicate], [1, false]);
  assert.equal(new Set(fake.requests.map((each) => each.headers["idempotency-key"])).size, 1);
  const batch = await client.publishBatch("orders", [{ payload: 2 }, { payload: 3, dedupKey: "three" }]);
  assert.deepEqual(batch.map((each) => each.duplicate), [false, true], "a key of the caller's is reported");
  await client.publish("orders", { id: 1 });
  assert.equal(fake.stored("orders").length, 4, "each publish has a key of its own");
});

test("a publish that is not idempotent is not repeated", async (context) => {
  const { fake, client } = await setup(context, { idempotent: false });
  fake.faults.push({ path: "/messages", how: "after" });
  await assert.rejects(client.publish("orders", 1), (error: ConnectionFailed) => error.sent);
  assert.equal((await client.publish("orders", 2, { dedupKey: "2" })).offset, 2);
});

test("a second server is used when the first is down, and a busy one is asked again", async (context) => {
  const { fake } = await setup(context);
  const gone = await Fake.start();
  const down = gone.url;
  await gone.close();
  const client = new Client([down, fake.url], { retry: RETRY });
  context.after(() => client.close());
  fake.faults.push({ path: "/messages", how: "status", headers: { "retry-after": "1" } });
  const begun = performance.now();
  assert.equal((await client.publish("orders", 1)).offset, 1);
  assert.ok(performance.now() - begun >= 999);
  const alone = new Client(down, { retry: { totalMs: 200, pauseMs: 10 } });
  await assert.rejects(alone.publish("orders", 1), (error: ConnectionFailed) => !error.sent && error.attempts > 1);
});

test("a settlement whose answer is lost is settled", async (context) => {
  const { fake, client } = await setup(context);
  await client.publish("orders", 1);
  fake.faults.push({ path: "/settle", how: "after" });
  for await (const delivery of client.consume("orders", "billing")) {
    assert.equal(await delivery.ack(), true);
    break;
  }
  assert.deepEqual(fake.outcomes("orders"), ["ack"]);
});

test("a message is settled by how its handler ends", async (context) => {
  const { fake, client } = await setup(context);
  await client.publishBatch("orders", ["ack", "bury", "retry", "release"].map((payload) => ({ payload })));
  const released: number[] = [];
  for await (const delivery of client.consume("orders", "billing", { untilIdleMs: DEADLINE_MS })) {
    await delivery.handle((message) => {
      if (message.payload === "bury") {
        throw new Bury("broken");
      }
      if (message.payload === "retry" && message.attempt === 1) {
        throw new Retry("later", 10);
      }
      if (message.payload === "release" && released.push(message.offset) === 1) {
        throw new Release();
      }
    });
    if (!fake.outcomes("orders").includes(undefined)) {
      break;
    }
  }
  assert.deepEqual(fake.outcomes("orders"), ["ack", "bury", "ack", "ack"]);
  assert.deepEqual(fake.stored("orders").map((each) => each.attempt), [1, 1, 2, 1]);
});

test("another error is passed on, the message retried, and what was not handed out released", async (context) => {
  const { fake, client } = await setup(context);
  await client.publishBatch("orders", [1, 2, 3].map((payload) => ({ payload })));
  const consume = async () => {
    for await (const delivery of client.consume("orders", "billing")) {
      await delivery.handle(() => {
        throw new RangeError("too far");
      });
    }
  };
  await assert.rejects(consume, RangeError);
  assert.equal(fake.stored("orders")[0]?.reason, "RangeError: too far");
  assert.deepEqual(fake.stored("orders").map((each) => [each.attempt, each.receipt]), [[1, undefined], [0, undefined], [0, undefined]]);
});

test("a lease is extended while a message is handled, and a lost one reported", async (context) => {
  const { fake, client, warnings } = await setup(context);
  await client.publishBatch("orders", [{ payload: 1 }, { payload: 2 }]);
  fake.graceMs = DEADLINE_MS;
  for await (const delivery of client.consume("orders", "billing", { leaseMs: 1_500 })) {
    if (delivery.payload === 1) {
      await delivery.handle(() => until(() => fake.extensions >= 3));
      assert.equal(delivery.lost, false);
      continue;
    }
    fake.refuseExtensions = true;
    await until(() => delivery.lost);
    assert.equal(await delivery.ack(), false);
    break;
  }
  assert.deepEqual(fake.outcomes("orders"), ["ack", undefined]);
  assert.ok(warnings.some((warning) => warning.startsWith("lease lost: topic orders, offset 2")));
});

test("a stream continues after a break and settles", async (context) => {
  const { fake, client } = await setup(context);
  await client.publishBatch("orders", Array.from({ length: 20 }, (_, at) => ({ payload: { at, text: "\u2028\x85" } })));
  fake.faults.push({ path: "/stream-break", how: "break", times: 3 });
  const seen: number[] = [];
  for await (const delivery of client.stream("orders", "billing", { credit: 4, untilIdleMs: DEADLINE_MS })) {
    await delivery.handle((message) => seen.push((message.payload as { at: number }).at));
    if (!fake.outcomes("orders").includes(undefined)) {
      break;
    }
  }
  assert.deepEqual(seen.sort((a, b) => a - b), Array.from({ length: 20 }, (_, at) => at));
  assert.deepEqual(fake.outcomes("orders"), Array.from({ length: 20 }, () => "ack"));
  assert.equal(fake.requests.filter((each) => each.path.includes("/stream")).length, 4);
});

test("leases of streamed messages are extended", async (context) => {
  const { fake, client } = await setup(context);
  await client.publishBatch("orders", [1, 2, 3].map((payload) => ({ payload })));
  fake.graceMs = DEADLINE_MS;
  for await (const delivery of client.stream("orders", "billing", { credit: 3, leaseMs: 1_500 })) {
    const before = fake.extensions;
    await delivery.handle(() => until(() => fake.extensions >= before + 2));
    if (delivery.payload === 3) {
      break;
    }
  }
  assert.deepEqual(fake.stored("orders").map((each) => each.attempt), [1, 1, 1]);
});

test("a refused claim, stream and worker throw", async (context) => {
  const { client } = await setup(context);
  await assert.rejects(client.consume("missing", "billing").next(), (error: NotFound) => error.kind === "no-such-topic");
  const stream = client.stream("missing", "billing");
  await assert.rejects(stream.next(), NotFound);
  await stream.close();
  await assert.rejects(new Worker(client, "missing", "billing", () => {}).run(), NotFound);
});

test("a worker handles all in order per key, several at once", async (context) => {
  const { fake, client } = await setup(context);
  const count = 200;
  await client.publishBatch("orders", Array.from({ length: count }, (_, at) => ({ payload: at, key: `k${at % 10}` })));
  const seen: Claimed[] = [];
  let [running, most] = [0, 0];
  const handle = async (message: Claimed) => {
    most = Math.max(most, ++running);
    await sleep(1);
    running -= 1;
    if (seen.push(message) === count) {
      worker.stop();
    }
  };
  const worker = new Worker(client, "orders", "billing", handle, { concurrency: 8, waitMs: 200 });
  await worker.run();
  assert.deepEqual(fake.outcomes("orders"), Array.from({ length: count }, () => "ack"));
  for (const key of new Set(seen.map((each) => each.key))) {
    const own = seen.filter((each) => each.key === key).map((each) => each.offset);
    assert.deepEqual(own, own.toSorted((a, b) => a - b));
  }
  assert.ok(most > 1 && most <= 8);
  assert.deepEqual(worker.stats, { handled: count, failed: 0, released: 0, lost: 0 });
  assert.ok(fake.requests.filter((each) => each.path.includes("/settle")).length < count, "outcomes go together");
});

test("a worker buries, retries and releases what is behind a failed key", async (context) => {
  const { fake, client } = await setup(context);
  const messages = [{ payload: "poison" }, { payload: "flaky", key: "k" }, { payload: "after", key: "k" }, { payload: "typed" }];
  await client.publishBatch("orders", messages);
  const order: unknown[] = [];
  const handle = ({ payload, attempt }: Claimed) => {
    order.push(payload);
    if (payload === "poison") {
      throw new Bury("cannot be read");
    }
    if (payload === "typed") {
      throw new SyntaxError("field");
    }
    if (payload === "flaky" && attempt === 1) {
      throw new Error("down");
    }
  };
  const buryOn = (error: unknown) => error instanceof SyntaxError;
  const worker = new Worker(client, "orders", "billing", handle, { waitMs: 200, buryOn });
  const ended = worker.run();
  await until(() => !fake.outcomes("orders").includes(undefined));
  worker.stop();
  await ended;
  assert.deepEqual(fake.outcomes("orders"), ["bury", "ack", "ack", "bury"]);
  assert.deepEqual(order.filter((each) => each === "flaky" || each === "after"), ["flaky", "flaky", "after"]);
  assert.equal(fake.stored("orders")[2]?.attempt, 1, "a release counts as no attempt");
});

test("a signal stops a worker, which releases what it did not start", { timeout: DEADLINE_MS }, async (context) => {
  const { fake, client } = await setup(context);
  await client.publishBatch("orders", Array.from({ length: 10 }, (_, payload) => ({ payload })));
  let started = 0;
  const signalled = once(process, "SIGTERM");
  const handle = async () => {
    if (++started === 2) {
      process.kill(process.pid, "SIGTERM");
    }
    await signalled;
  };
  const worker = new Worker(client, "orders", "billing", handle, { concurrency: 2, inHand: 10, waitMs: 200 });
  await worker.run();
  assert.deepEqual(fake.outcomes("orders").filter((outcome) => outcome === "ack").length, started);
  assert.equal(started, 2);
  assert.equal(fake.stored("orders").reduce((sum, each) => sum + each.attempt, 0), 2);
  assert.ok(fake.stored("orders").every((each) => each.receipt === undefined));
});

test("a handler that does not end keeps no lease, and failures of the server are survived", async (context) => {
  const { fake, client, warnings } = await setup(context);
  fake.faults.push({ path: "/claim", how: "before", times: 2 }, { path: "/claim", how: "status", times: 2 });
  await client.publish("orders", 1);
  const go = new AbortController();
  const options = { concurrency: 1, waitMs: 100, leaseMs: 300, shutdownMs: 100 };
  const handle = async () => {
    worker.stop();
    await sleep(DEADLINE_MS, undefined, { signal: go.signal }).catch(() => {});
  };
  const worker = new Worker(client, "orders", "billing", handle, options);
  await worker.run();
  assert.ok(warnings.some((warning) => warning.includes("did not end in time")));
  await until(() => (fake.stored("orders")[0]?.deadline ?? Infinity) < performance.now());
  go.abort();
});
