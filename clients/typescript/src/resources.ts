// Topics, groups and dead letters: what operators do.

import type { Client } from "./client.js";
import type { DeadLetter, Group, Page, Payload, Raw, Topic } from "./models.js";
import * as operations from "./operations.js";
import type { DeadLetterListOptions, GroupListOptions, ListOptions, Position } from "./operations.js";
import { given } from "./wire.js";

/** `client.topics`. */
export class Topics {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** A page of topics, by name. */
  list(options: ListOptions = {}): Promise<Page<Topic>> {
    return this.#client.send(operations.listTopics(options));
  }

  /** Every topic, page by page. */
  all(options: { readonly search?: string } = {}): AsyncGenerator<Topic> {
    return all((page) => this.list({ ...options, ...page }));
  }

  /** A topic with its settings and status. */
  get(topic: string): Promise<Topic> {
    return this.#client.send(operations.getTopic(topic));
  }

  /** Creates a topic; settings have the names of the HTTP API, such as `max_retention_ms`. */
  create(name: string, options: { readonly preset?: string; readonly settings?: Raw } = {}): Promise<Topic> {
    return this.#client.send(operations.createTopic(name, options.preset, options.settings));
  }

  /** Changes the settings that are given. */
  update(topic: string, settings: Raw): Promise<Topic> {
    return this.#client.send(operations.updateTopic(topic, settings));
  }

  /** Removes a topic with its messages and groups; returns what that is, or would be. */
  delete(topic: string, options: { readonly dryRun?: boolean } = {}): Promise<Raw> {
    return this.#client.send(operations.remove(operations.topicPath(topic), options.dryRun === true));
  }
}

/** `client.groups`. */
export class Groups {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** A page of groups, of one topic or all. */
  list(options: GroupListOptions = {}): Promise<Page<Group>> {
    return this.#client.send(operations.listGroups(options));
  }

  /** Every group, page by page. */
  all(options: Omit<GroupListOptions, "limit" | "cursor"> = {}): AsyncGenerator<Group> {
    return all((page) => this.list({ ...options, ...page }));
  }

  /** A group with its health and position. */
  get(topic: string, group: string): Promise<Group> {
    return this.#client.send(operations.getGroup(topic, group));
  }

  /** Creates a group, or changes its policy; `start` says from where a new one begins. */
  put(topic: string, group: string, settings: Raw = {}): Promise<Group> {
    return this.#client.send(operations.putGroup(topic, group, settings));
  }

  /** Removes a group; returns what that is, or would be. */
  delete(topic: string, group: string, options: { readonly dryRun?: boolean } = {}): Promise<Raw> {
    return this.#client.send(operations.remove(operations.groupPath(topic, group), options.dryRun === true));
  }

  /** Nothing is handed out until it is resumed. */
  pause(topic: string, group: string, options: { readonly reason?: string } = {}): Promise<Raw> {
    return this.#client.send(operations.actOnGroup(topic, group, "pause", { ...options }));
  }

  /** Ends a pause. */
  resume(topic: string, group: string): Promise<Raw> {
    return this.#client.send(operations.actOnGroup(topic, group, "resume", {}));
  }

  /** Ends the subscription for good. */
  cancel(topic: string, group: string): Promise<Raw> {
    return this.#client.send(operations.actOnGroup(topic, group, "cancel", {}));
  }

  /** Revives a dead subscription. */
  resurrect(topic: string, group: string, options: { readonly behindMax?: number } = {}): Promise<Raw> {
    const body = given({ behind_max: options.behindMax });
    return this.#client.send(operations.actOnGroup(topic, group, "resurrect", body));
  }

  /** Moves the position: to an offset, a time, `start` or `end`. */
  seek(topic: string, group: string, to: Position, options: { readonly dryRun?: boolean } = {}): Promise<Raw> {
    const body = { to: operations.position(to), dry_run: options.dryRun === true };
    return this.#client.send(operations.actOnGroup(topic, group, "seek", body));
  }
}

/** `client.deadLetters`, whatever their source. */
export class DeadLetters {
  readonly #client: Client;

  constructor(client: Client) {
    this.#client = client;
  }

  /** A page of dead letters. */
  list(options: DeadLetterListOptions = {}): Promise<Page<DeadLetter>> {
    return this.#client.send(operations.listDeadLetters(options));
  }

  /** Every dead letter, page by page. */
  all(options: Omit<DeadLetterListOptions, "limit" | "cursor"> = {}): AsyncGenerator<DeadLetter> {
    return all((page) => this.list({ ...options, ...page }));
  }

  /** One dead letter with its payload. */
  get(id: string): Promise<DeadLetter> {
    return this.#client.send(operations.getDeadLetter(id));
  }

  /** Hands messages out again: those with these ids, or all that a selection names (`topic`, `group`, …). */
  redrive(those: { readonly ids: readonly string[] } | { readonly selection: Raw }): Promise<Raw> {
    return this.#client.send(operations.redrive({ ...those }));
  }

  /** Hands one message out again, with another payload. */
  redriveEdited(id: string, payload: Payload): Promise<Raw> {
    return this.#client.send(operations.redrive({ ids: [id] }, { payload }));
  }

  /** Removes dead letters for good. */
  purge(ids: readonly string[], options: { readonly dryRun?: boolean } = {}): Promise<Raw> {
    return this.#client.send(operations.purge(ids, options.dryRun === true));
  }
}

async function* all<T>(read: (page: { limit: number; cursor?: string }) => Promise<Page<T>>): AsyncGenerator<T> {
  let page = await read({ limit: 1000 });
  yield* page.items;
  while (page.nextCursor !== undefined) {
    page = await read({ limit: 1000, cursor: page.nextCursor });
    yield* page.items;
  }
}
