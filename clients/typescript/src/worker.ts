// Runs a handler.

import type { Client } from "./client.js";
import { type BuryOn, outcomeOfError, release } from "./consume.js";
import { isRefusal, Outcome, Release } from "./errors.js";
import { Held, KeyOrder, leasedSince } from "./leases.js";
import type { Claimed, Settlement } from "./models.js";
import * as operations from "./operations.js";

/** Outcomes in one request. */
const SETTLE_MAX = 500;
/** The pause after a claim that failed although it was repeated. */
const CLAIM_PAUSE_MS = 1_000;
/** For how long a claim is repeated before that is reported. */
const CLAIM_TOTAL_MS = 5_000;

export interface WorkerOptions {
  /** How many messages are handled at once; 16 unless said otherwise. */
  readonly concurrency?: number;
  /** How many are claimed and not settled; four times that unless said otherwise. */
  readonly inHand?: number;
  readonly leaseMs?: number;
  readonly waitMs?: number;
  /** True for errors after which no attempt can succeed. */
  readonly buryOn?: BuryOn;
  /** How long running handlers may take after `stop`. */
  readonly shutdownMs?: number;
  /** Called with what a handler threw, unless that is an outcome; the client's warnings unless said otherwise. */
  readonly onError?: (error: unknown, message: Claimed) => void;
}

/** What a worker did since it was created. */
export interface WorkerStats {
  handled: number;
  failed: number;
  released: number;
  /** Handled, but the lease had ended or no outcome could be sent: delivered again. */
  lost: number;
}

/**
 * Claims messages and calls `handler` with each, several at once; messages of one key one after the other.
 *
 * A message is acked when the handler returns, and retried when it throws; `Bury`, `Retry` and `Release` decide
 * otherwise, and so does `buryOn`. While handlers run, leases are extended. After `stop`, SIGINT or SIGTERM no message
 * is claimed any more, running handlers end, and messages that were not started are released for other workers.
 */
export class Worker {
  readonly stats: WorkerStats = { handled: 0, failed: 0, released: 0, lost: 0 };
  readonly #client: Client;
  readonly #topic: string;
  readonly #group: string;
  readonly #handler: (message: Claimed) => unknown;
  readonly #options: Required<Omit<WorkerOptions, "onError">>;
  readonly #onError: (error: unknown, message: Claimed) => void;
  readonly #order = new KeyOrder<Held>();
  readonly #inHand = new Set<Held>();
  readonly #stopping = new AbortController();
  #todo: Held[] = [];
  #running = new Set<Held>();
  #outcomes: { readonly held: Held; readonly outcome: Settlement }[] = [];
  #settling: Promise<void> | undefined;
  #waiting: (() => void)[] = [];

  constructor(
    client: Client,
    topic: string,
    group: string,
    handler: (message: Claimed) => unknown,
    options: WorkerOptions = {},
  ) {
    const { concurrency = 16, inHand = concurrency * 4 } = options;
    if (concurrency < 1) {
      throw new TypeError("a worker handles at least one message at once");
    }
    this.#client = client;
    this.#topic = topic;
    this.#group = group;
    this.#handler = handler;
    this.#options = {
      concurrency,
      inHand: Math.max(concurrency, inHand),
      leaseMs: options.leaseMs ?? 30_000,
      waitMs: options.waitMs ?? 5_000,
      buryOn: options.buryOn ?? (() => false),
      shutdownMs: options.shutdownMs ?? 30_000,
    };
    this.#onError = options.onError ?? ((error, { topic, offset }) => client.warn(`handler failed: topic ${topic}, offset ${offset}`, error));
  }

  /** Ends `run`, in order. */
  stop(): void {
    this.#stopping.abort();
    this.#changed();
  }

  /**
   * Works until it is stopped. Throws if the server refuses the claim, because of a missing topic or right for example.
   * SIGINT and SIGTERM stop it, unless `handleSignals` is false.
   */
  async run(options: { readonly handleSignals?: boolean } = {}): Promise<void> {
    const onSignal = () => this.stop();
    const signals: NodeJS.Signals[] = options.handleSignals === false ? [] : ["SIGINT", "SIGTERM"];
    signals.forEach((name) => process.on(name, onSignal));
    try {
      await this.#claim();
    } finally {
      await this.#finish();
      signals.forEach((name) => process.off(name, onSignal));
    }
  }

  get #isStopping(): boolean {
    return this.#stopping.signal.aborted;
  }

  async #claim(): Promise<void> {
    const { inHand, waitMs, leaseMs } = this.#options;
    const retry = { totalMs: Math.min(CLAIM_TOTAL_MS, this.#client.retryPolicy.totalMs) };
    while (!this.#isStopping) {
      const free = inHand - this.#inHand.size;
      // In larger pieces than one: a claim costs about the same for several.
      if (free < Math.max(1, Math.floor(inHand / 4))) {
        await new Promise<void>((resolve) => this.#waiting.push(resolve));
        continue;
      }
      const askedAt = performance.now();
      try {
        const request = operations.claim(this.#topic, this.#group, free, waitMs, leaseMs);
        const { messages } = await this.#client.send(request, { retry });
        this.#take(messages, leasedSince(askedAt, performance.now()));
      } catch (error) {
        if (isRefusal(error) || this.#client.isClosed) {
          throw error;
        }
        this.#client.warn(`claim failed: topic ${this.#topic}, group ${this.#group}`, error);
        await this.#client.pause(CLAIM_PAUSE_MS, this.#stopping.signal);
      }
    }
  }

  #take(messages: readonly Claimed[], since: number): void {
    const held = messages.map((message) => new Held(message, this.#options.leaseMs, since));
    this.#client.keeper.add(held);
    for (const each of held) {
      this.#inHand.add(each);
      if (this.#order.admit(each.message.key, each)) {
        this.#todo.push(each);
      }
    }
    this.#begin();
  }

  /** Starts as many handlers as may run. */
  #begin(): void {
    while (this.#running.size < this.#options.concurrency) {
      const held = this.#todo.shift();
      if (held === undefined) {
        return;
      }
      if (this.#isStopping || held.lost) {
        this.#handled(held, { thrown: new Release() });
      } else {
        this.#running.add(held);
        void this.#handle(held);
      }
    }
  }

  async #handle(held: Held): Promise<void> {
    let failure: { readonly thrown: unknown } | undefined;
    try {
      await this.#handler(held.message);
    } catch (thrown) {
      failure = { thrown };
      if (!(thrown instanceof Outcome)) {
        this.#onError(thrown, held.message);
      }
    }
    this.#running.delete(held);
    this.#handled(held, failure);
    this.#begin();
    this.#changed();
  }

  #handled(held: Held, failure: { readonly thrown: unknown } | undefined): void {
    const { key, receipt } = held.message;
    if (failure === undefined) {
      this.#decide(held, { receipt, outcome: "ack" });
      const follower = this.#order.finished(key);
      if (follower !== undefined) {
        this.#todo.push(follower);
      }
      return;
    }
    this.#decide(held, outcomeOfError(held.message, failure.thrown, this.#options.buryOn));
    // After the failed one, or they would overtake it.
    for (const behind of this.#order.failed(key)) {
      this.#decide(behind, { receipt: behind.message.receipt, outcome: "release" });
    }
  }

  #decide(held: Held, outcome: Settlement): void {
    const counted = { ack: "handled", release: "released", retry: "failed", bury: "failed" } as const;
    this.stats[counted[outcome.outcome]] += 1;
    this.#outcomes.push({ held, outcome });
    this.#settling ??= this.#settle();
  }

  /** Sends outcomes: those that came while a request was under way go together in the next. */
  async #settle(): Promise<void> {
    // Not at once: handlers that end together are settled together.
    await Promise.resolve();
    while (this.#outcomes.length > 0) {
      const batch = this.#outcomes.splice(0, SETTLE_MAX);
      const held = batch.map((each) => each.held);
      held.forEach((each) => (each.done = true));
      try {
        const outcomes = batch.map((each) => each.outcome);
        const results = await this.#client.settle(this.#topic, this.#group, outcomes);
        // One that was to be released is so anyway, also behind a failed one of its key.
        const released = new Set(outcomes.filter(({ outcome }) => outcome === "release").map(({ receipt }) => receipt));
        const lost = results.filter((result) => result.lost && !released.has(result.receipt)).length;
        this.stats.lost += lost;
        if (lost > 0) {
          this.#client.warn(`leases lost before ${lost} messages of topic ${this.#topic} were settled`);
        }
      } catch (error) {
        this.stats.lost += batch.length;
        const what = `${batch.length} messages of topic ${this.#topic} not settled, they are delivered again`;
        this.#client.warn(what, error);
      }
      this.#client.keeper.remove(held);
      held.forEach((each) => this.#inHand.delete(each));
      this.#changed();
    }
    this.#settling = undefined;
  }

  async #finish(): Promise<void> {
    this.#stopping.abort();
    this.#begin();
    const deadline = performance.now() + this.#options.shutdownMs;
    while (this.#running.size > 0 && performance.now() < deadline) {
      await this.#wait(deadline - performance.now());
    }
    const running = [...this.#running];
    if (running.length > 0) {
      this.#client.warn(`${running.length} handlers did not end in time; their messages are delivered again`);
      this.#client.keeper.remove(running);
    }
    await this.#settling;
    const left = [...this.#inHand].filter((held) => !this.#running.has(held));
    await release(this.#client, left);
  }

  #changed(): void {
    const waiting = this.#waiting;
    this.#waiting = [];
    waiting.forEach((wake) => wake());
  }

  #wait(atMostMs: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, atMostMs);
      this.#waiting.push(() => {
        clearTimeout(timer);
        resolve();
      });
    });
  }
}
