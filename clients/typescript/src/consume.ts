// Messages in hand: one delivery, and the iterators that bring them.

import type { Client } from "./client.js";
import { Bury, HeadwaterError, isRefusal, Outcome, Release, Retry } from "./errors.js";
import { Held, leasedSince } from "./leases.js";
import type { Claimed, Payload, Settlement } from "./models.js";
import * as operations from "./operations.js";
import * as wire from "./wire.js";

/** The pause before a stream that ended is opened again. */
export const RECONNECT_MS = 200;

/** Called with an error that a handler threw: true if no further attempt can succeed. */
export type BuryOn = (error: unknown) => boolean;

/** What becomes of a message whose handler threw this. */
export function outcomeOfError(message: Claimed, error: unknown, buryOn: BuryOn = () => false): Settlement {
  const receipt = message.receipt;
  if (error instanceof Bury) {
    return { receipt, outcome: "bury", reason: error.reason };
  }
  if (error instanceof Retry) {
    return { receipt, outcome: "retry", delayMs: error.delayMs, reason: error.reason };
  }
  if (error instanceof Release) {
    return { receipt, outcome: "release" };
  }
  return { receipt, outcome: buryOn(error) ? "bury" : "retry", reason: String(error) };
}

/** A message to handle. */
export class Delivery {
  readonly #consumer: Consumer;
  readonly #held: Held;
  #settled = false;

  constructor(consumer: Consumer, held: Held) {
    this.#consumer = consumer;
    this.#held = held;
  }

  get message(): Claimed {
    return this.#held.message;
  }

  get payload(): Payload {
    return this.#held.message.payload;
  }

  /** Its lease has ended: the server hands the message out again, and a settlement has no effect. */
  get lost(): boolean {
    return this.#held.lost;
  }

  /**
   * Acks the message when the handler returns, and retries it when the handler throws. `Retry`, `Bury` and `Release`
   * decide otherwise and end here; every other error is passed on.
   */
  async handle<T>(handler: (message: Claimed) => T | Promise<T>): Promise<T | undefined> {
    let result: T;
    try {
      result = await handler(this.message);
    } catch (error) {
      await this.#settle(outcomeOfError(this.message, error));
      if (error instanceof Outcome) {
        return undefined;
      }
      throw error;
    }
    await this.ack();
    return result;
  }

  /** Done. Like every outcome: false if the lease had ended, so that the message is handled again. */
  ack(): Promise<boolean> {
    return this.#settle({ receipt: this.message.receipt, outcome: "ack" });
  }

  /** Another attempt, after `delayMs` or as the group's policy says; the last one makes it a dead letter. */
  retry(reason?: string, delayMs?: number): Promise<boolean> {
    return this.#settle({ receipt: this.message.receipt, outcome: "retry", reason, delayMs });
  }

  /** Makes it a dead letter. */
  bury(reason?: string): Promise<boolean> {
    return this.#settle({ receipt: this.message.receipt, outcome: "bury", reason });
  }

  /** Hands it out again at once, without counting an attempt. */
  release(): Promise<boolean> {
    return this.#settle({ receipt: this.message.receipt, outcome: "release" });
  }

  async #settle(outcome: Settlement): Promise<boolean> {
    if (this.#settled) {
      throw new HeadwaterError(`settled before: topic ${this.message.topic}, offset ${this.message.offset}`);
    }
    this.#settled = true;
    return this.#consumer.settle(this.#held, outcome);
  }
}

export interface ConsumerOptions {
  /** At most as many messages are claimed and not settled. */
  readonly inHand: number;
  readonly leaseMs: number;
  /** Ends the iteration once nothing came for that long. */
  readonly untilIdleMs?: number | undefined;
}

/** An iterator of deliveries; see `Client.consume` and `Client.stream`. */
export abstract class Consumer implements AsyncIterableIterator<Delivery>, AsyncDisposable {
  /** Claimed and not handed out. */
  protected ready: Held[] = [];
  /** Handed out and not settled. */
  protected readonly out = new Set<Held>();
  protected closed = false;
  #waiting: (() => void)[] = [];

  constructor(
    protected readonly client: Client,
    protected readonly topic: string,
    protected readonly group: string,
    protected readonly options: ConsumerOptions,
  ) {
    if (options.inHand < 1) {
      throw new TypeError("a consumer has at least one message in hand");
    }
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<Delivery, undefined>> {
    const { untilIdleMs } = this.options;
    const idleAt = untilIdleMs === undefined ? Infinity : performance.now() + untilIdleMs;
    while (!this.closed) {
      for (let held = this.ready.shift(); held !== undefined; held = this.ready.shift()) {
        if (!held.lost) {
          this.out.add(held);
          return { done: false, value: new Delivery(this, held) };
        }
      }
      const left = idleAt - performance.now();
      if (left <= 0) {
        break;
      }
      await this.refill(left);
    }
    // `for await` calls `return` only if the loop is left before this.
    return this.return();
  }

  /** `for await` calls it when the loop is left. */
  async return(): Promise<IteratorResult<Delivery, undefined>> {
    await this.close();
    return { done: true, value: undefined };
  }

  /** Ends the iteration and releases what was not handed out. Deliveries in hand may still be settled. */
  async close(): Promise<void> {
    this.closed = true;
    await this.end();
    const left = this.ready;
    this.ready = [];
    this.changed();
    await release(this.client, left);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Sends an outcome; false if the lease was lost. */
  async settle(held: Held, outcome: Settlement): Promise<boolean> {
    held.done = true;
    let lost: boolean;
    try {
      const [result] = await this.client.settle(this.topic, this.group, [outcome]);
      lost = result?.lost === true;
    } finally {
      this.client.keeper.remove([held]);
      this.out.delete(held);
      this.changed();
    }
    if (lost) {
      held.lost = true;
      this.client.warn(`lease lost before ${outcome.outcome}: topic ${this.topic}, offset ${held.message.offset}`);
    }
    return !lost;
  }

  /** Waits until there may be another message, at most that long. */
  protected abstract refill(atMostMs: number): Promise<void>;

  /** Stops what brings messages. */
  protected async end(): Promise<void> {}

  protected hold(messages: readonly Claimed[], since: number): void {
    const held = messages.map((message) => new Held(message, this.options.leaseMs, since));
    this.client.keeper.add(held);
    this.ready.push(...held);
    this.changed();
  }

  protected changed(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    waiting.forEach((wake) => wake());
  }

  protected wait(atMostMs: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = atMostMs === Infinity ? undefined : setTimeout(resolve, atMostMs);
      this.#waiting.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}

/** Claims the next messages when those before are settled or in hand. */
export class PollConsumer extends Consumer {
  readonly #waitMs: number;

  constructor(client: Client, topic: string, group: string, options: ConsumerOptions & { readonly waitMs: number }) {
    super(client, topic, group, options);
    this.#waitMs = options.waitMs;
  }

  protected override async refill(atMostMs: number): Promise<void> {
    const max = this.options.inHand - this.out.size;
    if (max <= 0) {
      await this.wait(atMostMs);
      return;
    }
    const askedAt = performance.now();
    const waitMs = Math.min(this.#waitMs, atMostMs);
    const { leaseMs } = this.options;
    const { messages } = await this.client.claim(this.topic, this.group, { max, waitMs, leaseMs });
    this.hold(messages, leasedSince(askedAt, performance.now()));
    if (this.closed) {
      // Closed meanwhile: what came is for others.
      await this.close();
    }
  }
}

/** Reads the server's stream, so that leases of messages that arrived are extended while others are handled. */
export class StreamConsumer extends Consumer {
  readonly #abort = new AbortController();
  #reading: Promise<void> | undefined;
  #failure: unknown;

  protected override async refill(atMostMs: number): Promise<void> {
    this.#reading ??= this.#run();
    if (this.#failure !== undefined) {
      throw this.#failure;
    }
    await this.wait(atMostMs);
  }

  protected override async end(): Promise<void> {
    this.#abort.abort();
    await this.#reading;
  }

  async #run(): Promise<void> {
    while (!this.closed) {
      try {
        await this.#read();
      } catch (error) {
        if (isRefusal(error) || this.client.isClosed) {
          this.#failure = error;
          this.changed();
          return;
        }
        if (!this.closed) {
          this.client.warn(`stream of topic ${this.topic}, group ${this.group} failed`, error);
        }
      }
      await this.client.pause(RECONNECT_MS, this.#abort.signal);
    }
  }

  async #read(): Promise<void> {
    const credit = Math.max(1, this.options.inHand - this.out.size - this.ready.length);
    const query = { credit, lease_ms: Math.ceil(this.options.leaseMs) };
    const path = operations.streamPath(this.topic, this.group);
    for await (const event of this.client.events(path, query, this.#abort.signal)) {
      if (event.name === "message") {
        this.hold([wire.claimed(this.topic, this.group, event.body)], performance.now());
      }
    }
  }
}

/** Releases messages of one group that were not handled. Without an answer they are redelivered after their leases. */
export async function release(client: Client, held: readonly Held[]): Promise<void> {
  const [first] = held;
  if (first === undefined) {
    return;
  }
  const { topic, group } = first.message;
  held.forEach((each) => (each.done = true));
  try {
    const settlements = held.map((each) => ({ receipt: each.message.receipt, outcome: "release" as const }));
    await client.settle(topic, group, settlements);
  } catch (error) {
    client.warn(`${held.length} messages of topic ${topic} not released`, error);
  }
  client.keeper.remove(held);
}
