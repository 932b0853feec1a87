// The JSON of the HTTP API: from values of this package, and to them.

import { InvalidAnswer } from "./errors.js";
import type { Claim, Claimed, DeadLetter, Extended, Group, Message, Outgoing, Page, Published, Raw, Settled, Settlement, Topic } from "./models.js";

/** The body of a publish. */
export function outgoing(message: Outgoing): Record<string, unknown> {
  return {
    ...payloadFields(message.payload),
    ...given({
      key: message.key,
      type: message.type,
      headers: message.headers,
      dedup_key: message.dedupKey,
      delay_ms: message.delayMs,
      deliver_at: message.deliverAt?.toISOString(),
      expires_in_ms: message.expiresInMs,
      content_type: message.contentType,
      correlation_id: message.correlationId,
    }),
  };
}

/** Bytes are stored as they are, every other value as JSON. */
export function payloadFields(payload: unknown): Record<string, unknown> {
  if (payload instanceof Uint8Array) {
    return { payload_base64: Buffer.from(payload.buffer, payload.byteOffset, payload.byteLength).toString("base64") };
  }
  if (JSON.stringify(payload) === undefined) {
    throw new TypeError(`a payload is bytes or has a JSON: ${typeof payload}`);
  }
  return { payload };
}

/** One entry of a settle request. */
export function settlement(value: Settlement): Record<string, unknown> {
  return { receipt: value.receipt, outcome: value.outcome, ...given({ delay_ms: value.delayMs, reason: value.reason }) };
}

export function published(body: unknown): Published {
  const fields = object(body);
  return { offset: optionalNumber(fields["offset"]), id: text(fields, "id"), duplicate: fields["duplicate"] === true };
}

export function message(topic: string, body: unknown): Message {
  const fields = object(body);
  return {
    topic,
    offset: number(fields, "offset"),
    id: text(fields, "id"),
    payload: payload(fields),
    key: optionalText(fields["key"]),
    type: optionalText(fields["type"]),
    headers: (fields["headers"] ?? {}) as Record<string, string>,
    contentType: optionalText(fields["content_type"]),
    correlationId: optionalText(fields["correlation_id"]),
    publishedAt: optionalTime(fields["published_at"]),
    raw: fields,
  };
}

export function claimed(topic: string, group: string, body: unknown): Claimed {
  const fields = object(body);
  return { ...message(topic, body), group, receipt: text(fields, "receipt"), attempt: number(fields, "attempt") };
}

export function claim(topic: string, group: string, body: unknown): Claim {
  const fields = object(body);
  const messages = list(fields, "messages").map((entry) => claimed(topic, group, entry));
  return { messages, leaseUntil: optionalTime(fields["lease_until"]) };
}

export function settled(body: unknown): Settled {
  const fields = object(body);
  return { receipt: text(fields, "receipt"), lost: text(fields, "result") === "lost" };
}

export function extended(body: unknown): Extended {
  return { ...settled(body), leaseUntil: optionalTime(object(body)["lease_until"]) };
}

export function topic(body: unknown): Topic {
  const raw = object(body);
  return { name: text(raw, "name"), raw };
}

export function group(body: unknown): Group {
  const raw = object(body);
  return { topic: text(raw, "topic"), group: text(raw, "group"), state: text(raw, "state"), lag: number(raw, "lag"), raw };
}

export function deadLetter(body: unknown): DeadLetter {
  const raw = object(body);
  return {
    id: text(raw, "id"),
    source: text(raw, "source"),
    topic: optionalText(raw["topic"]),
    group: optionalText(raw["group"]),
    offset: optionalNumber(raw["offset"]),
    error: optionalText(raw["error"]) ?? "",
    attempts: number(raw, "attempts"),
    payload: payload(raw),
    raw,
  };
}

export function page<T>(body: unknown, item: (entry: unknown) => T): Page<T> {
  const fields = object(body);
  return { items: list(fields, "items").map(item), nextCursor: optionalText(fields["next_cursor"]) };
}

export function object(body: unknown): Raw {
  if (typeof body !== "object" || body === null || Array.isArray(body)) {
    throw new InvalidAnswer("answer not understood: an object is expected");
  }
  return body as Raw;
}

export function list(fields: Raw, name: string): readonly unknown[] {
  const value = fields[name];
  if (!Array.isArray(value)) {
    throw new InvalidAnswer(`answer not understood: ${name} is not a list`);
  }
  return value;
}

/** Without those that are not given. */
export function given<T>(values: Record<string, T | undefined>): Record<string, T> {
  return Object.fromEntries(Object.entries(values).filter((entry): entry is [string, T] => entry[1] !== undefined));
}

function text(fields: Raw, name: string): string {
  const value = fields[name];
  if (typeof value !== "string") {
    throw new InvalidAnswer(`answer not understood: ${name} is not a text`);
  }
  return value;
}

function number(fields: Raw, name: string): number {
  const value = fields[name];
  if (typeof value !== "number") {
    throw new InvalidAnswer(`answer not understood: ${name} is not a number`);
  }
  return value;
}

function optionalNumber(value: unknown): number | undefined {
  return typeof value === "number" ? value : undefined;
}

function optionalText(value: unknown): string | undefined {
  return value === undefined || value === null ? undefined : String(value);
}

function optionalTime(value: unknown): Date | undefined {
  return typeof value === "string" ? new Date(value) : undefined;
}

function payload(fields: Raw): unknown {
  const encoded = fields["payload_base64"];
  return typeof encoded === "string" ? new Uint8Array(Buffer.from(encoded, "base64")) : fields["payload"];
}
