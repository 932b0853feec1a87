// The client.

import { Attempts, Endpoints, RETRY, type RetryPolicy } from "./endpoints.js";
import { type Consumer, PollConsumer, RECONNECT_MS, StreamConsumer } from "./consume.js";
import { HeadwaterError, InvalidAnswer, problem, Problem } from "./errors.js";
import { Keeper } from "./keeper.js";
import type { Claim, Extended, Message, Outgoing, Page, Payload, Published, Raw, Settled, Settlement } from "./models.js";
import * as operations from "./operations.js";
import type { BrowseOptions, Position, Request } from "./operations.js";
import { DeadLetters, Groups, Topics } from "./resources.js";
import { EventParser } from "./sse.js";
import * as wire from "./wire.js";

/** The server sends comments on a stream without events; a longer silence is a broken connection. */
const SILENCE_MS = 60_000;

export interface ClientOptions {
  readonly token?: string;
  /** How long requests are repeated; what is not given is `RETRY`. */
  readonly retry?: Partial<RetryPolicy>;
  /**
   * A publish carries a key of its own (`Idempotency-Key`), so that a repetition stores nothing twice; that costs the
   * server an entry in the topic's dedup window. True unless said otherwise.
   */
  readonly idempotent?: boolean;
  /** Called for what recovers by itself, such as a failed extension of a lease. `console.warn` unless said otherwise. */
  readonly onWarning?: (message: string, error?: unknown) => void;
  /** For tests and instrumentation. */
  readonly fetch?: typeof fetch;
}

export type PublishOptions = Omit<Outgoing, "payload"> & { readonly traceparent?: string };

/**
 * Talks to one Headwater server, or to several that serve the same store: another is asked when one does not answer.
 * Requests are repeated for `retry.totalMs` when the network fails or a server restarts.
 */
export class Client implements AsyncDisposable {
  readonly topics: Topics;
  readonly groups: Groups;
  readonly deadLetters: DeadLetters;
  /** Extends leases in hand. */
  readonly keeper: Keeper;
  readonly retryPolicy: RetryPolicy;
  readonly #endpoints: Endpoints;
  readonly #options: ClientOptions;
  readonly #idempotent: boolean;
  readonly #fetch: typeof fetch;
  /** What ends requests and pauses that are under way. Not an AbortSignal: one that lives long collects its listeners. */
  readonly #enders = new Set<() => void>();
  #closed = false;

  constructor(urls: string | readonly string[], options: ClientOptions = {}) {
    this.#endpoints = new Endpoints(typeof urls === "string" ? [urls] : urls);
    this.#options = options;
    this.#idempotent = options.idempotent ?? true;
    this.#fetch = options.fetch ?? fetch;
    this.retryPolicy = { ...RETRY, ...options.retry };
    this.keeper = new Keeper(this);
    this.topics = new Topics(this);
    this.groups = new Groups(this);
    this.deadLetters = new DeadLetters(this);
  }

  /** Stores one message. Bytes (`Uint8Array`) are stored as they are, every other value as JSON. */
  publish(topic: string, payload: Payload, options: PublishOptions = {}): Promise<Published> {
    const { traceparent, ...rest } = options;
    return this.send(operations.publish(topic, { ...rest, payload }, traceparent, this.#idempotent));
  }

  /** Stores all messages, or none if one is refused. */
  publishBatch(
    topic: string,
    messages: readonly Outgoing[],
    options: { readonly traceparent?: string } = {},
  ): Promise<readonly Published[]> {
    return this.send(operations.publishBatch(topic, messages, options.traceparent, this.#idempotent));
  }

  /**
   * Leases messages to the caller, who settles them, and extends their leases if it takes longer. `consume` and
   * `Worker` do both; this is the request they are made of.
   */
  claim(
    topic: string,
    group: string,
    options: { readonly max?: number; readonly waitMs?: number; readonly leaseMs?: number } = {},
  ): Promise<Claim> {
    const { max = 1, waitMs = 0, leaseMs = 30_000 } = options;
    return this.send(operations.claim(topic, group, max, waitMs, leaseMs));
  }

  /** Acks, retries, buries or releases claimed messages. */
  settle(topic: string, group: string, settlements: readonly Settlement[]): Promise<readonly Settled[]> {
    return this.send(operations.settle(topic, group, settlements));
  }

  /** Lets leases last that long from now. */
  extend(topic: string, group: string, receipts: readonly string[], leaseMs = 30_000): Promise<readonly Extended[]> {
    return this.send(operations.extend(topic, group, receipts, leaseMs));
  }

  /**
   * An iterator over messages, whose leases are extended in the background until they are settled:
   *
   *     for await (const delivery of client.consume("orders", "billing")) {
   *       await delivery.handle((message) => charge(message.payload));
   *     }
   *
   * Leaving the loop releases what was not handed out.
   */
  consume(
    topic: string,
    group: string,
    options: {
      readonly inHand?: number;
      readonly waitMs?: number;
      readonly leaseMs?: number;
      readonly untilIdleMs?: number;
    } = {},
  ): Consumer {
    const { inHand = 32, waitMs = 20_000, leaseMs = 30_000, untilIdleMs } = options;
    return new PollConsumer(this, topic, group, { inHand, waitMs, leaseMs, untilIdleMs });
  }

  /**
   * As `consume`, but the server sends messages as they come, at most `credit` of them unsettled. A connection that
   * breaks is opened again; messages in hand stay leased meanwhile.
   */
  stream(
    topic: string,
    group: string,
    options: { readonly credit?: number; readonly leaseMs?: number; readonly untilIdleMs?: number } = {},
  ): Consumer {
    const { credit = 64, leaseMs = 30_000, untilIdleMs } = options;
    return new StreamConsumer(this, topic, group, { inHand: credit, leaseMs, untilIdleMs });
  }

  /**
   * Messages as they are published, without a group; from now on unless said otherwise. A connection that breaks is
   * opened again behind the last message. Ends when the signal is given.
   */
  async *tail(
    topic: string,
    options: { readonly from?: Position; readonly signal?: AbortSignal } = {},
  ): AsyncGenerator<Message> {
    const { signal } = options;
    let from = operations.position(options.from) ?? (await this.#behindLast(topic));
    let next = 0;
    while (signal?.aborted !== true) {
      for await (const event of this.events(operations.tailPath(topic), wire.given({ from }), signal)) {
        if (event.name === "message") {
          const message = wire.message(topic, event.body);
          if (message.offset >= next) {
            from = next = message.offset + 1;
            yield message;
          }
        }
      }
      await this.pause(RECONNECT_MS, signal);
    }
  }

  /** Behind the newest message: a connection that breaks before the first one could not say what was missed. */
  async #behindLast(topic: string): Promise<number | string> {
    const [last] = (await this.browse(topic, { from: "last:1" })).items;
    return last === undefined ? "start" : last.offset + 1;
  }

  /** Stored messages, without consuming them. */
  browse(topic: string, options: BrowseOptions = {}): Promise<Page<Message>> {
    return this.send(operations.browse(topic, options));
  }

  /** One stored message. */
  message(topic: string, offset: number): Promise<Message> {
    return this.send(operations.message(topic, offset));
  }

  /** Figures of the whole store. */
  stats(): Promise<Raw> {
    return this.send(operations.getObject("/v1/stats"));
  }

  /** Sends a request until a server answers it. */
  async send<T>(request: Request<T>, options: { readonly retry?: Partial<RetryPolicy> } = {}): Promise<T> {
    const policy = { ...this.retryPolicy, ...options.retry };
    const { repeatable = true, waitMs = 0 } = request;
    const attempts = new Attempts({ policy, endpoints: this.#endpoints, repeatable, waitMs });
    const body = request.body === undefined ? null : JSON.stringify(request.body);
    const headers = this.#headers("application/json", body !== null, request.headers);
    for (;;) {
      this.#checkOpen();
      const [url, repeated] = [this.#endpoints.pick(), attempts.sentBefore];
      const target = url + request.path + queryOf(request.query);
      let pause: number;
      try {
        const init = { method: request.method, headers, body };
        const { response, text } = await this.#exchange(target, init, policy.answerMs + waitMs);
        if (response.ok) {
          this.#endpoints.succeeded(url);
          return answer(request, text, repeated);
        }
        pause = attempts.answered(url, problemOf(response, text));
      } catch (error) {
        if (error instanceof HeadwaterError) {
          throw error;
        }
        this.#checkOpen();
        pause = attempts.broken(url, error);
      }
      await this.pause(pause);
    }
  }

  async #exchange(target: string, init: RequestInit, ms: number): Promise<{ response: Response; text: string }> {
    const abort = new AbortController();
    const end = () => abort.abort();
    const timer = setTimeout(() => abort.abort(new Error(`no answer in ${ms} ms`)), ms);
    this.#enders.add(end);
    try {
      const response = await this.#fetch(target, { ...init, signal: abort.signal });
      return { response, text: await response.text() };
    } finally {
      clearTimeout(timer);
      this.#enders.delete(end);
    }
  }

  /** The events of one connection, which is opened until a server answers; ends when the connection does. */
  async *events(
    path: string,
    query: Record<string, string | number>,
    signal?: AbortSignal,
  ): AsyncGenerator<{ readonly name: string; readonly body: unknown }> {
    const abort = new AbortController();
    const end = () => abort.abort();
    this.#enders.add(end);
    signal?.addEventListener("abort", end);
    try {
      signal?.throwIfAborted();
      const response = await this.#open(path + queryOf(query), abort.signal);
      const decoder = new TextDecoder();
      const parser = new EventParser();
      for await (const chunk of withDeadline(response, abort)) {
        for (const event of parser.feed(decoder.decode(chunk, { stream: true }))) {
          yield { name: event.name, body: eventBody(event.name, event.data) };
        }
      }
    } catch (error) {
      if (error instanceof HeadwaterError) {
        throw error;
      }
      // The server ended, the network failed or the reader wants no more: the reader may open another connection.
    } finally {
      this.#enders.delete(end);
      signal?.removeEventListener("abort", end);
      abort.abort();
    }
  }

  async #open(target: string, signal: AbortSignal): Promise<Response> {
    const attempts = new Attempts({ policy: this.retryPolicy, endpoints: this.#endpoints, repeatable: true });
    const headers = this.#headers("text/event-stream", false, {});
    for (;;) {
      this.#checkOpen();
      const url = this.#endpoints.pick();
      let pause: number;
      try {
        const response = await this.#fetch(url + target, { headers, signal });
        if (response.ok) {
          this.#endpoints.succeeded(url);
          return response;
        }
        pause = attempts.answered(url, problemOf(response, await response.text()));
      } catch (error) {
        if (error instanceof Problem || signal.aborted) {
          throw error;
        }
        pause = attempts.broken(url, error);
      }
      await this.pause(pause, signal);
    }
  }

  /** Waits, or until the client is closed or the signal is given. */
  pause(ms: number, signal?: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = () => {
        clearTimeout(timer);
        this.#enders.delete(done);
        signal?.removeEventListener("abort", done);
        resolve();
      };
      const timer = setTimeout(done, this.#closed || signal?.aborted === true ? 0 : ms);
      this.#enders.add(done);
      signal?.addEventListener("abort", done);
    });
  }

  /** Reports what recovers by itself. */
  warn(message: string, error?: unknown): void {
    if (this.#options.onWarning !== undefined) {
      this.#options.onWarning(message, error);
    } else {
      console.warn(error === undefined ? `headwater: ${message}` : `headwater: ${message}: ${String(error)}`);
    }
  }

  get isClosed(): boolean {
    return this.#closed;
  }

  /** Ends the extension of leases and open requests. Messages in hand are redelivered after their leases. */
  close(): void {
    this.#closed = true;
    this.keeper.close();
    [...this.#enders].forEach((end) => end());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  #headers(accept: string, hasBody: boolean, more: Record<string, string> = {}): Record<string, string> {
    const { token } = this.#options;
    return wire.given({
      ...more,
      accept,
      authorization: token === undefined ? undefined : `Bearer ${token}`,
      "content-type": hasBody ? "application/json" : undefined,
    });
  }

  #checkOpen(): void {
    if (this.#closed) {
      throw new HeadwaterError("client is closed");
    }
  }
}

function answer<T>(request: Request<T>, text: string, repeated: boolean): T {
  const read = repeated ? (request.readRepeated ?? request.read) : request.read;
  let body: unknown;
  try {
    body = text === "" ? undefined : JSON.parse(text);
  } catch (error) {
    throw new InvalidAnswer(`${request.method} ${request.path}: answer is not JSON`, { cause: error });
  }
  return read(body);
}

function problemOf(response: Response, text: string): Problem {
  let body: unknown;
  try {
    body = JSON.parse(text);
  } catch {
    body = undefined;
  }
  const seconds = response.headers.get("retry-after") ?? "";
  return problem(response.status, body, /^\d+$/.test(seconds) ? Number(seconds) * 1000 : undefined);
}

/** The JSON of an event; one that reports a problem is thrown. */
function eventBody(name: string, data: string): unknown {
  let body: unknown;
  try {
    body = JSON.parse(data);
  } catch (error) {
    throw new InvalidAnswer(`event ${name} is not JSON`, { cause: error });
  }
  if (name === "error") {
    const status = (body as { status?: unknown } | null)?.status;
    throw problem(typeof status === "number" ? status : 500, body);
  }
  return body;
}

/** Ends a connection on which nothing comes, not even a comment. */
async function* withDeadline(response: Response, abort: AbortController): AsyncGenerator<Uint8Array> {
  if (response.body === null) {
    return;
  }
  const timer = setTimeout(() => abort.abort(), SILENCE_MS);
  try {
    for await (const chunk of response.body) {
      timer.refresh();
      yield chunk as Uint8Array;
    }
  } finally {
    clearTimeout(timer);
  }
}

function queryOf(query: Record<string, string | number> | undefined): string {
  const pairs = Object.entries(query ?? {}).map(([name, value]): [string, string] => [name, String(value)]);
  return pairs.length === 0 ? "" : `?${new URLSearchParams(pairs).toString()}`;
}
