// A small server in memory that speaks the HTTP API and fails on request, for tests of what a real server rarely does.

import { randomUUID } from "node:crypto";
import { createServer, type IncomingMessage, type Server, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { setTimeout as sleep } from "node:timers/promises";

export interface Fault {
  /** Happens to the next request whose path contains it. */
  readonly path: string;
  /** before: closed without an effect; after: carried out, closed without an answer; status: refused; break: a stream ends. */
  readonly how: "before" | "after" | "status" | "break";
  times?: number;
  readonly status?: number;
  readonly kind?: string;
  readonly headers?: Record<string, string>;
}

export interface Stored {
  readonly offset: number;
  readonly id: string;
  readonly body: Record<string, unknown>;
  attempt: number;
  receipt: string | undefined;
  deadline: number;
  outcome: string | undefined;
  reason: string | undefined;
}

type Body = Record<string, any>;
type Answer = readonly [status: number, body: unknown];

/** One topic per name, one group for all of them. */
export class Fake {
  readonly requests: { method: string; path: string; headers: IncomingMessage["headers"]; body: Body }[] = [];
  readonly faults: Fault[] = [];
  extensions = 0;
  refuseExtensions = false;
  /** How much longer than asked for leases last: with it a machine that stalls loses none. */
  graceMs = 0;
  readonly #topics = new Map<string, Stored[]>();
  readonly #keys = new Map<string, Stored>();
  readonly #server: Server;
  #closed = false;

  private constructor() {
    this.#server = createServer((request, response) => {
      void this.#serve(request, response).catch(() => response.destroy());
    });
  }

  static async start(): Promise<Fake> {
    const fake = new Fake();
    await new Promise<void>((resolve) => fake.#server.listen(0, "127.0.0.1", resolve));
    return fake;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  stored(topic: string): Stored[] {
    return this.#topics.get(topic) ?? [];
  }

  outcomes(topic: string): (string | undefined)[] {
    return this.stored(topic).map((message) => message.outcome);
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const pieces: Buffer[] = [];
    for await (const piece of request) {
      pieces.push(piece as Buffer);
    }
    const path = request.url ?? "";
    const text = Buffer.concat(pieces).toString();
    const body = (text === "" ? {} : JSON.parse(text)) as Body;
    const fault = this.#fault(path);
    if (fault?.how === "before") {
      response.destroy();
      return;
    }
    this.requests.push({ method: request.method ?? "", path, headers: request.headers, body });
    if (path.includes("/stream?") && !path.includes("/missing/")) {
      await this.#stream(path, response);
      return;
    }
    const refused = fault?.how === "status";
    const [status, answer] = refused
      ? problem(fault.status ?? 503, fault.kind ?? "busy")
      : await this.#handle(path, request.headers, body);
    if (fault?.how === "after") {
      response.destroy();
      return;
    }
    response.writeHead(status, { "content-type": "application/json", ...fault?.headers });
    response.end(JSON.stringify(answer));
  }

  #fault(path: string): Fault | undefined {
    const fault = this.faults.find((each) => (each.times ?? 1) > 0 && path.includes(each.path));
    if (fault !== undefined) {
      fault.times = (fault.times ?? 1) - 1;
    }
    return fault;
  }

  async #handle(path: string, headers: IncomingMessage["headers"], body: Body): Promise<Answer> {
    const published = /^\/v1\/topics\/([^/]+)\/(messages|batches)$/.exec(path);
    if (published !== null) {
      const [, topic, what] = published as unknown as [string, string, string];
      const messages = (what === "batches" ? body["messages"] : [body]) as Body[];
      const prefix = headers["idempotency-key"];
      const results = messages.map((message, at) => this.#store(topic, message, prefix && `${String(prefix)}/${at}`));
      return [201, what === "batches" ? { published: results } : results[0]];
    }
    const leased = /^\/v1\/topics\/([^/]+)\/groups\/[^/]+\/(claim|settle|extend|stream)/.exec(path);
    if (leased !== null) {
      const [, topic, verb] = leased as unknown as [string, string, string];
      if (topic === "missing") {
        return problem(404, "no-such-topic");
      }
      return verb === "claim" ? this.#claim(topic, body) : verb === "settle" ? this.#settle(topic, body) : this.#extend(topic, body);
    }
    return problem(404, "not-found");
  }

  #store(topic: string, message: Body, own: string | undefined): unknown {
    const key = (message["dedup_key"] as string | undefined) ?? own;
    const known = key === undefined ? undefined : this.#keys.get(`${topic}/${key}`);
    if (known !== undefined) {
      return { offset: known.offset, id: known.id, duplicate: true };
    }
    const log = this.stored(topic);
    const fresh = { attempt: 0, receipt: undefined, deadline: 0, outcome: undefined, reason: undefined };
    const stored: Stored = { offset: log.length + 1, id: randomUUID(), body: message, ...fresh };
    this.#topics.set(topic, [...log, stored]);
    if (key !== undefined) {
      this.#keys.set(`${topic}/${key}`, stored);
    }
    return { offset: stored.offset, id: stored.id, duplicate: false };
  }

  async #claim(topic: string, body: Body): Promise<Answer> {
    const until = performance.now() + (body["wait_ms"] as number);
    let messages = this.#take(topic, body["max"] as number, body["lease_ms"] as number);
    while (messages.length === 0 && performance.now() < until && !this.#closed) {
      await sleep(5);
      messages = this.#take(topic, body["max"] as number, body["lease_ms"] as number);
    }
    return [200, { messages, lease_until: "2030-01-01T00:00:00.123456789Z" }];
  }

  #take(topic: string, max: number, leaseMs: number): Body[] {
    const now = performance.now();
    const free = this.stored(topic).filter((each) => each.outcome === undefined && each.deadline <= now);
    return free.slice(0, Math.max(0, max)).map((message) => {
      message.attempt += 1;
      message.receipt = randomUUID();
      message.deadline = now + leaseMs + this.graceMs;
      const { offset, id, attempt, receipt, body } = message;
      return { ...body, offset, id, attempt, receipt, published_at: "2025-11-17T15:45:00Z" };
    });
  }

  #settle(topic: string, body: Body): Answer {
    const results = (body["settlements"] as Body[]).map((entry) => {
      const message = this.#held(topic, entry["receipt"] as string);
      if (message !== undefined) {
        message.receipt = undefined;
        message.deadline = entry["outcome"] === "retry" ? performance.now() + ((entry["delay_ms"] as number) ?? 0) : 0;
        message.reason = entry["reason"] as string | undefined;
        message.attempt -= entry["outcome"] === "release" ? 1 : 0;
        message.outcome = ["ack", "bury"].includes(entry["outcome"] as string) ? (entry["outcome"] as string) : undefined;
      }
      return { receipt: entry["receipt"] as string, result: message === undefined ? "lost" : "settled" };
    });
    return [200, { results }];
  }

  #extend(topic: string, body: Body): Answer {
    const results = (body["receipts"] as string[]).map((receipt) => {
      const message = this.#held(topic, receipt);
      if (message !== undefined && this.refuseExtensions) {
        message.receipt = undefined;
        message.deadline = 0;
      } else if (message !== undefined) {
        message.deadline = performance.now() + (body["lease_ms"] as number) + this.graceMs;
        this.extensions += 1;
        return { receipt, result: "extended" };
      }
      return { receipt, result: "lost" };
    });
    return [200, { results }];
  }

  #held(topic: string, receipt: string): Stored | undefined {
    const now = performance.now();
    return this.stored(topic).find((each) => each.receipt === receipt && each.deadline > now);
  }

  async #stream(path: string, response: ServerResponse): Promise<void> {
    const url = new URL(path, "http://fake");
    const topic = url.pathname.split("/")[3] ?? "";
    const [credit, leaseMs] = ["credit", "lease_ms"].map((name) => Number(url.searchParams.get(name))) as [number, number];
    response.writeHead(200, { "content-type": "text/event-stream" });
    const sent = new Set<string>();
    while (!this.#closed && !response.destroyed) {
      if (sent.size > 0 && this.#fault("/stream-break") !== undefined) {
        response.destroy();
        return;
      }
      const open = this.stored(topic).filter((each) => each.receipt !== undefined && sent.has(each.receipt)).length;
      for (const message of this.#take(topic, credit - open, leaseMs)) {
        sent.add(message["receipt"] as string);
        response.write(`event: message\ndata: ${JSON.stringify(message)}\n\n`);
      }
      response.write(": open\n\n");
      await sleep(5);
    }
  }
}

function problem(status: number, kind: string): Answer {
  return [status, { type: `urn:headwater:problem:${kind}`, title: kind.replaceAll("-", " "), status, detail: "as asked for" }];
}
