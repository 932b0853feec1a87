// Every request of the HTTP API: what is sent, and how the answer is read.

import { randomUUID } from "node:crypto";

import type { Claim, DeadLetter, Extended, Group, Message, Outgoing, Page, Payload, Published, Raw, Settled, Settlement, Topic } from "./models.js";
import * as wire from "./wire.js";

/** Where to begin: `start`, `last:N`, an offset, or a time. */
export type Position = string | number | Date;

export interface Request<T> {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  readonly path: string;
  readonly read: (body: unknown) => T;
  /** Reads the answer instead of `read` where an earlier attempt may have been carried out. */
  readonly readRepeated?: (body: unknown) => T;
  readonly body?: unknown;
  readonly query?: Record<string, string | number>;
  readonly headers?: Record<string, string>;
  /** Repeating it changes nothing more than sending it once; true unless said otherwise. */
  readonly repeatable?: boolean;
  /** For how long the server is asked to wait. */
  readonly waitMs?: number;
}

/** With a key made here, so that a repetition after a lost answer stores nothing twice. */
export function publish(topic: string, message: Outgoing, traceparent: string | undefined, idempotent: boolean): Request<Published> {
  const own = idempotent && message.dedupKey === undefined;
  return {
    method: "POST",
    path: `${topicPath(topic)}/messages`,
    read: (body) => publishedBy(own, body),
    body: wire.outgoing(message),
    headers: publishHeaders(own, traceparent),
    repeatable: idempotent || message.dedupKey !== undefined,
  };
}

/** All or none are stored. */
export function publishBatch(
  topic: string,
  messages: readonly Outgoing[],
  traceparent: string | undefined,
  idempotent: boolean,
): Request<readonly Published[]> {
  const own = messages.map((message) => idempotent && message.dedupKey === undefined);
  return {
    method: "POST",
    path: `${topicPath(topic)}/batches`,
    read: (body) => wire.list(wire.object(body), "published").map((entry, at) => publishedBy(own[at] === true, entry)),
    body: { messages: messages.map(wire.outgoing) },
    headers: publishHeaders(own.includes(true), traceparent),
    repeatable: idempotent || messages.every((message) => message.dedupKey !== undefined),
  };
}

/** A repetition may leave messages leased that no answer brought; they are handed out again after their lease. */
export function claim(topic: string, group: string, max: number, waitMs: number, leaseMs: number): Request<Claim> {
  return {
    method: "POST",
    path: `${groupPath(topic, group)}/claim`,
    read: (body) => wire.claim(topic, group, body),
    body: { max, wait_ms: Math.ceil(waitMs), lease_ms: Math.ceil(leaseMs) },
    waitMs,
  };
}

export function settle(topic: string, group: string, settlements: readonly Settlement[]): Request<readonly Settled[]> {
  const results = (body: unknown) => wire.list(wire.object(body), "results").map(wire.settled);
  return {
    method: "POST",
    path: `${groupPath(topic, group)}/settle`,
    read: results,
    // A receipt is valid for one settlement: the attempt whose answer was lost has settled it.
    readRepeated: (body) => results(body).map(({ receipt }) => ({ receipt, lost: false })),
    body: { settlements: settlements.map(wire.settlement) },
  };
}

export function extend(topic: string, group: string, receipts: readonly string[], leaseMs: number): Request<readonly Extended[]> {
  return {
    method: "POST",
    path: `${groupPath(topic, group)}/extend`,
    read: (body) => wire.list(wire.object(body), "results").map(wire.extended),
    body: { receipts, lease_ms: Math.ceil(leaseMs) },
  };
}

export function streamPath(topic: string, group: string): string {
  return `${groupPath(topic, group)}/stream`;
}

export function tailPath(topic: string): string {
  return `${topicPath(topic)}/tail`;
}

export interface BrowseOptions {
  readonly from?: Position;
  readonly key?: string;
  readonly limit?: number;
  readonly cursor?: string;
}

export function browse(topic: string, options: BrowseOptions): Request<Page<Message>> {
  const { from, ...rest } = options;
  return {
    method: "GET",
    path: `${topicPath(topic)}/messages`,
    // A cursor has the place already.
    query: wire.given({ ...rest, from: rest.cursor === undefined ? position(from) : undefined }),
    read: (body) => wire.page(body, (entry) => wire.message(topic, entry)),
  };
}

export function message(topic: string, offset: number): Request<Message> {
  return { method: "GET", path: `${topicPath(topic)}/messages/${offset}`, read: (body) => wire.message(topic, body) };
}

export interface ListOptions {
  readonly search?: string;
  readonly limit?: number;
  readonly cursor?: string;
}

export function listTopics(options: ListOptions): Request<Page<Topic>> {
  return { method: "GET", path: "/v1/topics", query: wire.given({ ...options }), read: (body) => wire.page(body, wire.topic) };
}

export function getTopic(topic: string): Request<Topic> {
  return { method: "GET", path: topicPath(topic), read: wire.topic };
}

export function createTopic(name: string, preset: string | undefined, settings: Raw | undefined): Request<Topic> {
  return {
    method: "POST",
    path: "/v1/topics",
    read: wire.topic,
    // One that exists with these settings is returned.
    body: { name, ...wire.given({ preset, settings }) },
  };
}

export function updateTopic(topic: string, settings: Raw): Request<Topic> {
  return { method: "PATCH", path: topicPath(topic), read: wire.topic, body: settings };
}

export function remove(path: string, dryRun: boolean): Request<Raw> {
  return { method: "DELETE", path, read: optionalObject, query: dryRun ? { dry_run: "true" } : {}, repeatable: dryRun };
}

export interface GroupListOptions extends ListOptions {
  readonly topic?: string;
  readonly state?: string;
}

export function listGroups(options: GroupListOptions): Request<Page<Group>> {
  return { method: "GET", path: "/v1/groups", query: wire.given({ ...options }), read: (body) => wire.page(body, wire.group) };
}

export function getGroup(topic: string, group: string): Request<Group> {
  return { method: "GET", path: groupPath(topic, group), read: wire.group };
}

export function putGroup(topic: string, group: string, settings: Raw): Request<Group> {
  return { method: "PUT", path: groupPath(topic, group), read: wire.group, body: settings };
}

/** pause, resume, cancel, resurrect and seek. */
export function actOnGroup(topic: string, group: string, action: string, body: Raw): Request<Raw> {
  return { method: "POST", path: `${groupPath(topic, group)}/${action}`, read: optionalObject, body };
}

export interface DeadLetterListOptions extends ListOptions {
  readonly source?: string;
  readonly topic?: string;
  readonly group?: string;
}

export function listDeadLetters(options: DeadLetterListOptions): Request<Page<DeadLetter>> {
  return {
    method: "GET",
    path: "/v1/dead-letters",
    query: wire.given({ ...options }),
    read: (body) => wire.page(body, wire.deadLetter),
  };
}

export function getDeadLetter(id: string): Request<DeadLetter> {
  return { method: "GET", path: `/v1/dead-letters/${segment(id)}`, read: wire.deadLetter };
}

/** Each is redriven once, even if the request is repeated; an edited one is not found again. */
export function redrive(body: Raw, edit?: { readonly payload: Payload }): Request<Raw> {
  return {
    method: "POST",
    path: "/v1/dead-letters/redrive",
    read: optionalObject,
    body: edit === undefined ? body : { ...body, edit: wire.payloadFields(edit.payload) },
    repeatable: edit === undefined,
  };
}

export function purge(ids: readonly string[], dryRun: boolean): Request<Raw> {
  return {
    method: "POST",
    path: "/v1/dead-letters/purge",
    read: optionalObject,
    body: { ids, dry_run: dryRun },
  };
}

/** An answer without a type of its own, such as `/v1/stats`. */
export function getObject(path: string): Request<Raw> {
  return { method: "GET", path, read: wire.object };
}

export function position(from: Position | undefined): string | number | undefined {
  return from instanceof Date ? from.toISOString() : from;
}

export function topicPath(topic: string): string {
  return `/v1/topics/${segment(topic)}`;
}

export function groupPath(topic: string, group: string): string {
  return `${topicPath(topic)}/groups/${segment(group)}`;
}

/** A name inside a path. `.` and `..` would be removed on the way, whether they are escaped or not. */
function segment(text: string): string {
  if (text === "" || text === "." || text === "..") {
    throw new TypeError(`not a name that a path can have: ${JSON.stringify(text)}`);
  }
  return encodeURIComponent(text);
}

function publishHeaders(ownKey: boolean, traceparent: string | undefined): Record<string, string> {
  return wire.given({ "idempotency-key": ownKey ? randomUUID().replaceAll("-", "") : undefined, traceparent });
}

function publishedBy(ownKey: boolean, body: unknown): Published {
  const result = wire.published(body);
  // With a key that only this call knows, the earlier message is its own, stored by an attempt whose answer was lost.
  return ownKey ? { ...result, duplicate: false } : result;
}

function optionalObject(body: unknown): Raw {
  return body === undefined ? {} : wire.object(body);
}
