// Leases in hand, and the order of messages with one key: pure rules, which the keeper and the worker apply.

import type { Claimed } from "./models.js";

/** A lease is extended after this part of its time, as the library does it. */
const EXTEND_AFTER = 1 / 3;
/** A failed extension is repeated after this part of it, at most a second. */
const REPEAT_AFTER = 1 / 20;
/** Receipts in one request. */
const EXTEND_MAX = 500;
/** How long the answer to a claim may be on its way. */
const ANSWER_MS = 1_000;

/** From when the leases of an answer count. They begin when messages are found, which may be long after the request. */
export function leasedSince(askedAt: number, now: number): number {
  return Math.max(askedAt, now - ANSWER_MS);
}

/** The lease of one message. */
export class Held {
  lost = false;
  /** Settled, or being settled: a refused extension means nothing any more. */
  done = false;
  dueAt: number;
  #since: number;

  constructor(
    readonly message: Claimed,
    readonly leaseMs: number,
    since: number,
  ) {
    this.#since = since;
    this.dueAt = since + leaseMs * EXTEND_AFTER;
  }

  get expiresAt(): number {
    return this.#since + this.leaseMs;
  }

  extended(askedAt: number): void {
    this.#since = askedAt;
    this.dueAt = askedAt + this.leaseMs * EXTEND_AFTER;
  }

  /** The request failed: repeated until the lease has ended. */
  notExtended(now: number): void {
    if (now >= this.expiresAt) {
      this.refused();
    }
    this.dueAt = now + Math.min(1_000, this.leaseMs * REPEAT_AFTER);
  }

  refused(): void {
    this.lost ||= !this.done;
  }
}

/** All leases in hand of a client. */
export class Leases {
  readonly #held = new Set<Held>();

  add(held: Iterable<Held>): void {
    for (const each of held) {
      this.#held.add(each);
    }
  }

  remove(held: Iterable<Held>): void {
    for (const each of held) {
      this.#held.delete(each);
    }
  }

  /** When the next extension is due. */
  nextDue(): number | undefined {
    let next: number | undefined;
    for (const held of this.#held) {
      next = next === undefined ? held.dueAt : Math.min(next, held.dueAt);
    }
    return next;
  }

  /** What to extend, a list per request. Leases of one group that are due soon go along with those that are due. */
  due(now: number): Held[][] {
    const groups = new Map<string, Held[]>();
    for (const held of this.#held) {
      const place = JSON.stringify([held.message.topic, held.message.group, held.leaseMs]);
      groups.set(place, [...(groups.get(place) ?? []), held]);
    }
    return [...groups.values()]
      .filter((all) => all.some((held) => held.dueAt <= now))
      .flatMap((all) => pieces(all.filter((held) => held.dueAt <= now + held.leaseMs / 10)));
  }
}

/** Messages of one key are handled one after the other; those without a key are independent. */
export class KeyOrder<T> {
  readonly #waiting = new Map<string, T[]>();

  /** True if it can be handled now; else `finished` returns it later. */
  admit(key: string | undefined, item: T): boolean {
    if (key === undefined) {
      return true;
    }
    const queue = this.#waiting.get(key);
    if (queue === undefined) {
      this.#waiting.set(key, []);
      return true;
    }
    queue.push(item);
    return false;
  }

  /** The next message of the key, which can be handled now. */
  finished(key: string | undefined): T | undefined {
    if (key === undefined) {
      return undefined;
    }
    const next = this.#waiting.get(key)?.shift();
    if (next === undefined) {
      this.#waiting.delete(key);
    }
    return next;
  }

  /** Those behind a message that failed: to be released, so that they are delivered after it. */
  failed(key: string | undefined): T[] {
    const behind = key === undefined ? undefined : this.#waiting.get(key);
    if (key !== undefined) {
      this.#waiting.delete(key);
    }
    return behind ?? [];
  }
}

function pieces(held: Held[]): Held[][] {
  const count = Math.ceil(held.length / EXTEND_MAX);
  return Array.from({ length: count }, (_, at) => held.slice(at * EXTEND_MAX, (at + 1) * EXTEND_MAX));
}
