// Which server is asked, and whether and when a request is repeated: pure decisions.

import { ConnectionFailed, HeadwaterError, type Problem } from "./errors.js";

/** A gateway or a server that ends answers these; a repeated request may reach another one. */
const RETRIED_STATUS = new Set([429, 502, 503, 504]);
/** With these the server says that it did not carry the request out. */
const REFUSED_STATUS = new Set([429, 503]);
/** Except with this kind: the connection to the database broke during a commit. */
const UNKNOWN_KIND = "commit-unknown";
/** The connection was never made. */
const NEVER_SENT = new Set([
  "ECONNREFUSED",
  "EAI_AGAIN",
  "EHOSTUNREACH",
  "ENETUNREACH",
  "ENOTFOUND",
  "UND_ERR_CONNECT_TIMEOUT",
]);
const DOWN_FOR_MS = 1_000;
const DOWN_FOR_MAX_MS = 15_000;

/** How long and how often a request is repeated when a server does not answer. */
export interface RetryPolicy {
  /** From the first attempt until no further one is made. */
  readonly totalMs: number;
  /** The pause after every server was tried once; it doubles, and half of it is random. */
  readonly pauseMs: number;
  readonly pauseMaxMs: number;
  /** How long a server may take to answer, beside a wait that was asked for. */
  readonly answerMs: number;
}

export const RETRY: RetryPolicy = { totalMs: 30_000, pauseMs: 50, pauseMaxMs: 2_000, answerMs: 10_000 };

export type Clock = () => number;
const monotonic: Clock = () => performance.now();

/** The base URLs. The one that answered last is asked first; one that failed is left out for a while. */
export class Endpoints {
  readonly #urls: readonly string[];
  readonly #clock: Clock;
  readonly #downUntil: number[];
  readonly #failures: number[];
  #current = 0;

  constructor(urls: readonly string[], clock: Clock = monotonic) {
    if (urls.length === 0) {
      throw new TypeError("a client needs at least one base URL");
    }
    this.#urls = urls.map((url) => {
      if (!/^https?:$/.test(new URL(url).protocol)) {
        throw new TypeError(`base URL has to begin with http:// or https://: ${url}`);
      }
      return url.replace(/\/+$/, "");
    });
    this.#clock = clock;
    this.#downUntil = urls.map(() => 0);
    this.#failures = urls.map(() => 0);
  }

  get size(): number {
    return this.#urls.length;
  }

  /** The URL for the next attempt: the current one, or the next that is not known to be down. */
  pick(): string {
    const now = this.#clock();
    const order = this.#urls.map((_, step) => (this.#current + step) % this.#urls.length);
    const down = (index: number) => this.#downUntil[index] ?? 0;
    // All are down: the one that is due first.
    const first = order.reduce((best, index) => (down(index) < down(best) ? index : best));
    this.#current = order.find((index) => down(index) <= now) ?? first;
    return this.#urls[this.#current] as string;
  }

  /** The server did not answer, or answered that it cannot. */
  failed(url: string): void {
    const index = this.#urls.indexOf(url);
    const failures = (this.#failures[index] ?? 0) + 1;
    this.#failures[index] = failures;
    this.#downUntil[index] = this.#clock() + Math.min(DOWN_FOR_MAX_MS, DOWN_FOR_MS * 2 ** Math.min(failures - 1, 8));
  }

  /** The server answered. */
  succeeded(url: string): void {
    const index = this.#urls.indexOf(url);
    this.#failures[index] = 0;
    this.#downUntil[index] = 0;
  }
}

/** What decides about the attempts of one request. */
export interface AttemptsOptions {
  readonly policy: RetryPolicy;
  readonly endpoints: Endpoints;
  /** A repetition changes nothing more than one attempt does. */
  readonly repeatable: boolean;
  /** For how long the request asks the server to wait: not counted as time for retries. */
  readonly waitMs?: number;
  readonly clock?: Clock;
  readonly chance?: () => number;
}

/** The attempts of one request. */
export class Attempts {
  readonly #options: AttemptsOptions;
  readonly #clock: Clock;
  readonly #begun: number;
  readonly #causes: string[] = [];
  #sent = false;

  constructor(options: AttemptsOptions) {
    this.#options = options;
    this.#clock = options.clock ?? monotonic;
    this.#begun = this.#clock();
  }

  /** Whether an earlier attempt may have been carried out. */
  get sentBefore(): boolean {
    return this.#sent;
  }

  /** How long to wait before the next attempt after the network failed; throws if there is none. */
  broken(url: string, error: unknown): number {
    this.#options.endpoints.failed(url);
    const neverSent = NEVER_SENT.has(codeOf(error));
    this.#sent ||= !neverSent;
    return this.#next(`${url}: ${describe(error)}`, undefined, neverSent || this.#options.repeatable, error);
  }

  /** The same after an answer that is an error; one that no repetition changes is thrown. */
  answered(url: string, error: Problem): number {
    const { endpoints, repeatable } = this.#options;
    if (!RETRIED_STATUS.has(error.status)) {
      endpoints.succeeded(url);
      throw error;
    }
    if (error.status !== 429) {
      endpoints.failed(url);
    }
    const refused = REFUSED_STATUS.has(error.status) && error.kind !== UNKNOWN_KIND;
    this.#sent ||= !refused;
    return this.#next(`${url}: ${error.message}`, error.retryAfterMs, refused || repeatable, error);
  }

  #next(cause: string, askedForMs: number | undefined, mayRepeat: boolean, error: unknown): number {
    const { policy, endpoints, waitMs = 0, chance = Math.random } = this.#options;
    this.#causes.push(cause);
    const failed = this.#causes.length;
    // The other servers are tried at once; then all of them after a pause.
    const round = failed / endpoints.size;
    const longest = Math.min(policy.pauseMaxMs, policy.pauseMs * 2 ** Math.min(round - 1, 16));
    const pause = Math.max(Number.isInteger(round) ? longest * (0.5 + chance() / 2) : 0, askedForMs ?? 0);
    if (mayRepeat && this.#clock() - this.#begun + pause < policy.totalMs + waitMs) {
      return pause;
    }
    if (error instanceof HeadwaterError) {
      throw error;
    }
    const listed = [...new Set(this.#causes.slice(-3))].join("; ");
    const outcome = this.#sent ? ", whether it was carried out is unknown" : "";
    throw new ConnectionFailed(`no server answered in ${failed} attempts${outcome}: ${listed}`, failed, this.#sent, {
      cause: error,
    });
  }
}

function codeOf(error: unknown): string {
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  // Several addresses of one name were tried: all of them failed.
  const inner = cause instanceof AggregateError ? (cause.errors[0] as unknown) : cause;
  return String((inner as { code?: unknown } | undefined)?.code ?? "");
}

function describe(error: unknown): string {
  const code = codeOf(error);
  const cause = error instanceof Error ? (error.cause ?? error) : error;
  const message = cause instanceof Error ? cause.message : String(cause);
  return message.includes(code) ? message : `${code}: ${message}`;
}
