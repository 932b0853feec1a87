// Pure rules: which server is asked, when a request is repeated, when a lease is extended, the order of keys, events and JSON.

import assert from "node:assert/strict";
import { test } from "node:test";

import { Attempts, Endpoints } from "../src/endpoints.js";
import { ConnectionFailed, NotFound, problem, ServerFailure } from "../src/errors.js";
import { Held, KeyOrder, Leases } from "../src/leases.js";
import type { Claimed } from "../src/models.js";
import { EventParser } from "../src/sse.js";
import * as wire from "../src/wire.js";

const REFUSED = new TypeError("fetch failed", { cause: Object.assign(new Error("connect"), { code: "ECONNREFUSED" }) });
const RESET = new TypeError("fetch failed", { cause: Object.assign(new Error("other side closed"), { code: "UND_ERR_SOCKET" }) });

class Clock {
  now = 100_000;
  readonly read = () => this.now;
}

function attempts(clock: Clock, urls: string[], repeatable = true): { tried: Attempts; endpoints: Endpoints } {
  const endpoints = new Endpoints(urls, clock.read);
  const policy = { totalMs: 10_000, pauseMs: 1_000, pauseMaxMs: 4_000, answerMs: 1_000 };
  return { tried: new Attempts({ policy, endpoints, repeatable, clock: clock.read, chance: () => 1 }), endpoints };
}

test("another server is asked at once, and all of them after a pause", () => {
  const { tried, endpoints } = attempts(new Clock(), ["http://a", "http://b/"]);
  assert.equal(endpoints.pick(), "http://a");
  assert.equal(tried.broken("http://a", REFUSED), 0);
  assert.equal(tried.sentBefore, false);
  assert.equal(endpoints.pick(), "http://b");
  assert.equal(tried.broken("http://b", RESET), 1_000);
  assert.equal(tried.sentBefore, true);
});

test("a server that failed is left out until its time is over", () => {
  const clock = new Clock();
  const endpoints = new Endpoints(["http://a", "http://b"], clock.read);
  endpoints.failed("http://a");
  assert.equal(endpoints.pick(), "http://b");
  clock.now += 5_000;
  assert.equal(endpoints.pick(), "http://b", "the one that answers stays the first");
  endpoints.failed("http://b");
  assert.equal(endpoints.pick(), "http://a");
});

test("a request that may have been carried out is repeated only if that is harmless", () => {
  const { tried } = attempts(new Clock(), ["http://a"], false);
  assert.throws(() => tried.broken("http://a", RESET), (error: ConnectionFailed) => error.sent);
  assert.ok(attempts(new Clock(), ["http://a"], false).tried.broken("http://a", REFUSED) > 0);
});

test("a refused request is repeated whatever it does, but not one with an unknown commit", () => {
  const busy = problem(503, { type: "urn:headwater:problem:busy" }, 3_000);
  assert.equal(attempts(new Clock(), ["http://a"], false).tried.answered("http://a", busy), 3_000);
  const unknown = problem(503, { type: "urn:headwater:problem:commit-unknown" });
  const { tried } = attempts(new Clock(), ["http://a"], false);
  assert.throws(() => tried.answered("http://a", unknown), ServerFailure);
});

test("attempts end with the last cause, and a wrong request is not repeated", () => {
  const clock = new Clock();
  const { tried } = attempts(clock, ["http://a"]);
  assert.throws(() => {
    for (;;) {
      clock.now += tried.broken("http://a", REFUSED);
    }
  }, /ECONNREFUSED/);
  assert.ok(clock.now < 110_000);
  const missing = problem(404, { type: "urn:headwater:problem:no-such-topic" });
  assert.throws(() => attempts(new Clock(), ["http://a"]).tried.answered("http://a", missing), NotFound);
});

function claimed(receipt = "r"): Claimed {
  const message = { topic: "orders", offset: 1, id: "id", payload: null, key: undefined, type: undefined };
  return { ...message, headers: {}, contentType: undefined, correlationId: undefined, publishedAt: undefined, raw: {}, group: "billing", receipt, attempt: 1 };
}

test("a lease is extended at a third of its time, and lost after all of it", () => {
  const held = new Held(claimed(), 30_000, 100_000);
  const leases = new Leases();
  leases.add([held]);
  assert.equal(leases.nextDue(), 110_000);
  assert.deepEqual(leases.due(109_999), []);
  assert.deepEqual(leases.due(110_000), [[held]]);
  held.extended(110_000);
  held.notExtended(121_000);
  assert.equal(held.lost, false);
  held.notExtended(140_000);
  assert.equal(held.lost, true);
  const done = new Held(claimed(), 30_000, 100_000);
  done.done = true;
  done.refused();
  assert.equal(done.lost, false, "it is being settled");
});

test("leases that are due soon are extended along", () => {
  const leases = new Leases();
  leases.add(Array.from({ length: 5 }, (_, at) => new Held(claimed(String(at)), 30_000, 100_000 + at * 1_000)));
  assert.deepEqual(leases.due(110_000).map((held) => held.length), [4]);
});

test("messages of a key wait for each other", () => {
  const order = new KeyOrder<number>();
  assert.deepEqual([order.admit("a", 1), order.admit("a", 2), order.admit("a", 3)], [true, false, false]);
  assert.deepEqual([order.admit("b", 4), order.admit(undefined, 5), order.admit(undefined, 6)], [true, true, true]);
  assert.equal(order.finished("a"), 2);
  assert.deepEqual(order.failed("a"), [3]);
  assert.equal(order.admit("a", 7), true, "the key is free again");
  assert.equal(order.finished("a"), undefined);
});

test("events are read whatever the pieces are", () => {
  const text = ': open\r\n\r\nevent: message\ndata: {"a":\ndata: "\u2028\x85\x0b"}\nid: 7\n\ndata: b\r\rdata: lost';
  for (const size of [1, 2, 3, 7, 1000]) {
    const parser = new EventParser();
    const pieces = Array.from({ length: Math.ceil(text.length / size) }, (_, at) => text.slice(at * size, (at + 1) * size));
    assert.deepEqual(pieces.flatMap((piece) => parser.feed(piece)), [
      { name: "message", data: '{"a":\n"\u2028\x85\x0b"}' },
      { name: "message", data: "b" },
    ]);
  }
});

test("bytes stay bytes and values become JSON", () => {
  assert.deepEqual(wire.outgoing({ payload: new Uint8Array([255, 0]) }), { payload_base64: "/wA=" });
  assert.deepEqual(wire.outgoing({ payload: null, key: "k", delayMs: 5 }), { payload: null, key: "k", delay_ms: 5 });
  assert.throws(() => wire.outgoing({ payload: undefined }), TypeError);
  const bytes = wire.message("orders", { offset: 1, id: "x", payload_base64: "/wA=" }).payload;
  assert.deepEqual(bytes, new Uint8Array([255, 0]));
});
