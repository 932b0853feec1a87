// Extends the leases in hand of a client, by a timer.

import type { Client } from "./client.js";
import { Held, Leases } from "./leases.js";
import * as operations from "./operations.js";

/** The timer runs while there are leases in hand. */
export class Keeper {
  readonly #client: Client;
  readonly #leases = new Leases();
  #timer: NodeJS.Timeout | undefined;
  #extending = false;
  #closed = false;

  constructor(client: Client) {
    this.#client = client;
  }

  add(held: readonly Held[]): void {
    this.#leases.add(held);
    this.#arm();
  }

  remove(held: readonly Held[]): void {
    this.#leases.remove(held);
    this.#arm();
  }

  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
  }

  #arm(): void {
    clearTimeout(this.#timer);
    const due = this.#leases.nextDue();
    if (due === undefined || this.#closed || this.#extending) {
      return;
    }
    this.#timer = setTimeout(() => void this.#extendDue(), Math.max(0, due - performance.now()));
  }

  async #extendDue(): Promise<void> {
    this.#extending = true;
    await Promise.all(this.#leases.due(performance.now()).map((held) => this.#extend(held)));
    this.#extending = false;
    this.#arm();
  }

  async #extend(held: readonly Held[]): Promise<void> {
    const first = held[0] as Held;
    const askedAt = performance.now();
    // No longer than the first of them lasts: past that another consumer may have the messages.
    const left = Math.max(100, Math.min(...held.map((each) => each.expiresAt)) - askedAt);
    const receipts = held.map((each) => each.message.receipt);
    const request = operations.extend(first.message.topic, first.message.group, receipts, first.leaseMs);
    const { totalMs, answerMs } = this.#client.retryPolicy;
    const retry = { totalMs: Math.min(totalMs, left), answerMs: Math.min(answerMs, left) };
    try {
      const results = await this.#client.send(request, { retry });
      const extended = new Set(results.filter((result) => !result.lost).map((result) => result.receipt));
      for (const each of held) {
        extended.has(each.message.receipt) ? each.extended(askedAt) : each.refused();
      }
    } catch (error) {
      if (!this.#closed) {
        this.#client.warn("lease extension failed", error);
      }
      held.forEach((each) => each.notExtended(performance.now()));
    }
    const gone = held.filter((each) => each.lost || each.done);
    for (const { message, lost } of gone) {
      if (lost) {
        this.#client.warn(`lease lost: topic ${message.topic}, offset ${message.offset}`);
      }
    }
    this.#leases.remove(gone);
  }
}
