// Errors: what a server answers as problem+json, what the network does, and what a handler throws to decide an outcome.

const PROBLEM_PREFIX = "urn:headwater:problem:";

/** The base of every error that this package throws. */
export class HeadwaterError extends Error {
  override name = "HeadwaterError";
}

/** No server answered within the time for retries. Whether the request was carried out is unknown if `sent`. */
export class ConnectionFailed extends HeadwaterError {
  override name = "ConnectionFailed";

  constructor(
    message: string,
    readonly attempts: number,
    readonly sent: boolean,
    options?: ErrorOptions,
  ) {
    super(message, options);
  }
}

/** An answer that this package does not understand: not that of a Headwater server, or of another version. */
export class InvalidAnswer extends HeadwaterError {
  override name = "InvalidAnswer";
}

/** The fields of a problem. */
export interface ProblemFields {
  readonly status: number;
  readonly kind: string;
  readonly title: string;
  readonly detail?: string | undefined;
  readonly field?: string | undefined;
  readonly retryAfterMs?: number | undefined;
}

/**
 * A request that the server refused, as RFC 9457 describes. `kind` is the stable part of its `type`, such as
 * `no-such-topic`; programs compare that and not the texts.
 */
export class Problem extends HeadwaterError {
  override name = "Problem";
  readonly status: number;
  readonly kind: string;
  readonly title: string;
  readonly detail: string | undefined;
  /** The part of the request that is refused, if the server knows it. */
  readonly field: string | undefined;
  readonly retryAfterMs: number | undefined;

  constructor(fields: ProblemFields) {
    super(`${fields.detail ?? fields.title} (${fields.kind}, status ${fields.status})`);
    this.status = fields.status;
    this.kind = fields.kind;
    this.title = fields.title;
    this.detail = fields.detail;
    this.field = fields.field;
    this.retryAfterMs = fields.retryAfterMs;
  }
}

/** The request is wrong, or larger than a limit. */
export class InvalidRequest extends Problem {
  override name = "InvalidRequest";
}

/** The token is missing, unknown, expired or revoked. */
export class Unauthorized extends Problem {
  override name = "Unauthorized";
}

/** The token lacks the scope, or the topic does not match its patterns. */
export class Forbidden extends Problem {
  override name = "Forbidden";
}

/** The topic, group, message or other thing does not exist. */
export class NotFound extends Problem {
  override name = "NotFound";
}

/** The state of the thing does not allow the request. */
export class Conflict extends Problem {
  override name = "Conflict";
}

/** A limit of the server is reached; `retryAfterMs` says for how long. */
export class TooManyRequests extends Problem {
  override name = "TooManyRequests";
}

/** The server could not carry out the request. */
export class ServerFailure extends Problem {
  override name = "ServerFailure";
}

/** Thrown by a handler to decide what becomes of the message. */
export class Outcome extends Error {
  override name = "Outcome";
}

/** Handle the message again, after `delayMs` or as the group's policy says. */
export class Retry extends Outcome {
  override name = "Retry";

  constructor(
    readonly reason?: string,
    readonly delayMs?: number,
  ) {
    super(reason ?? "retry");
  }
}

/** Make the message a dead letter: no further attempt succeeds. */
export class Bury extends Outcome {
  override name = "Bury";

  constructor(readonly reason?: string) {
    super(reason ?? "bury");
  }
}

/** Hand the message out again at once, without counting an attempt. */
export class Release extends Outcome {
  override name = "Release";
}

/** The error for an answer with this status and body. */
export function problem(status: number, body: unknown, retryAfterMs?: number): Problem {
  const fields = typeof body === "object" && body !== null ? (body as Record<string, unknown>) : {};
  const type = text(fields["type"]) ?? "unknown";
  return new (classOf(status))({
    status,
    kind: type.startsWith(PROBLEM_PREFIX) ? type.slice(PROBLEM_PREFIX.length) : type,
    title: text(fields["title"]) ?? `status ${status}`,
    detail: text(fields["detail"]),
    field: text(fields["field"]),
    retryAfterMs,
  });
}

/** A refusal that no repetition changes: a missing topic or right for example. */
export function isRefusal(error: unknown): error is Problem {
  return error instanceof Problem && error.status < 500 && error.status !== 429;
}

function classOf(status: number): new (fields: ProblemFields) => Problem {
  switch (status) {
    case 401:
      return Unauthorized;
    case 403:
      return Forbidden;
    case 404:
      return NotFound;
    case 409:
    case 412:
      return Conflict;
    case 429:
      return TooManyRequests;
    default:
      return status >= 400 && status < 500 ? InvalidRequest : ServerFailure;
  }
}

function text(value: unknown): string | undefined {
  return value === undefined || value === null ? undefined : String(value);
}
