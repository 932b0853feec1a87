// What goes to a server and what comes back: plain values.

/** What a message carries: bytes are stored as they are, every other value as its JSON. */
export type Payload = unknown;

/** A message to publish. */
export interface Outgoing {
  readonly payload: Payload;
  readonly key?: string;
  readonly type?: string;
  readonly headers?: Readonly<Record<string, string>>;
  readonly dedupKey?: string;
  /** Delivered that much later; or at a time, by `deliverAt`. */
  readonly delayMs?: number;
  readonly deliverAt?: Date;
  /** Not delivered any more after that time. */
  readonly expiresInMs?: number;
  /** The media type of the payload; `application/json` for JSON unless said otherwise. */
  readonly contentType?: string;
  /** Links messages of one conversation. */
  readonly correlationId?: string;
}

/** Where a message was stored. */
export interface Published {
  /** Undefined while it is scheduled. */
  readonly offset: number | undefined;
  readonly id: string;
  /** An earlier message has the same dedup key; this is its place. */
  readonly duplicate: boolean;
}

/** The answer as the server gave it. */
export type Raw = Readonly<Record<string, unknown>>;

/** A stored message. */
export interface Message {
  readonly topic: string;
  readonly offset: number;
  readonly id: string;
  /** The JSON value, or bytes (`Uint8Array`) if what is stored is not JSON. */
  readonly payload: Payload;
  readonly key: string | undefined;
  readonly type: string | undefined;
  readonly headers: Readonly<Record<string, string>>;
  readonly contentType: string | undefined;
  readonly correlationId: string | undefined;
  readonly publishedAt: Date | undefined;
  readonly raw: Raw;
}

/** A message leased to a consumer. */
export interface Claimed extends Message {
  readonly group: string;
  /** Names the lease in `settle` and `extend`. */
  readonly receipt: string;
  /** From 1. */
  readonly attempt: number;
}

/** The answer to a claim; empty if no message came in time. */
export interface Claim {
  readonly messages: readonly Claimed[];
  readonly leaseUntil: Date | undefined;
}

/** What becomes of a claimed message. */
export interface Settlement {
  readonly receipt: string;
  readonly outcome: "ack" | "retry" | "bury" | "release";
  /** For `retry`: the pause before the next attempt. */
  readonly delayMs?: number | undefined;
  /** For `retry` and `bury`: the error. */
  readonly reason?: string | undefined;
}

/** The result for one receipt: settled, or lost because its lease had ended. */
export interface Settled {
  readonly receipt: string;
  readonly lost: boolean;
}

/** The result for one receipt: extended, or lost. */
export interface Extended extends Settled {
  readonly leaseUntil: Date | undefined;
}

/** A part of a list; `nextCursor` begins the following one. */
export interface Page<T> {
  readonly items: readonly T[];
  readonly nextCursor: string | undefined;
}

/** A topic: its settings and status are in `raw`, by the names of the HTTP API. */
export interface Topic {
  readonly name: string;
  readonly raw: Raw;
}

/** A group on one topic; what else the server says of it is in `raw`. */
export interface Group {
  readonly topic: string;
  readonly group: string;
  /** active, paused, dead or cancelled. */
  readonly state: string;
  /** Messages that it has not done. */
  readonly lag: number;
  readonly raw: Raw;
}

/** A message that a group gave up on, or another dead letter; what else the server says of it is in `raw`. */
export interface DeadLetter {
  readonly id: string;
  /** Where it comes from: a group, the outbox, a process. */
  readonly source: string;
  readonly topic: string | undefined;
  readonly group: string | undefined;
  readonly offset: number | undefined;
  readonly error: string;
  readonly attempts: number;
  /** Undefined in lists: `deadLetters.get` has it. */
  readonly payload: Payload;
  readonly raw: Raw;
}
