// Servers of the real program, which tests start, kill and start again; and a proxy that loses answers.
//
// `cargo xtask test` names the program in HEADWATER_TEST_BINARY and a PostgreSQL server in HEADWATER_TEST_POSTGRES.

import assert from "node:assert/strict";
import { type ChildProcess, execFile, spawn } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { createServer, request } from "node:http";
import { type AddressInfo, createServer as createListener } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { test, type TestContext } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { promisify } from "node:util";

import { Client, type ClientOptions } from "../src/index.js";

const run = promisify(execFile);

/**
 * Below the range from which the system takes the ports of outgoing connections: a client that tries again and again
 * while a server is down could otherwise be given that port, and connect to itself.
 */
let nextPort = 30_000 + ((process.pid * 37) % 2_000);

export type Engine = "sqlite" | "postgres";

/** Defines a test for each store; without what it needs it is skipped, or fails where nothing may be skipped. */
export function onBothStores(name: string, body: (context: TestContext, store: Store) => Promise<void>): void {
  for (const engine of ["sqlite", "postgres"] as const) {
    const variables = ["HEADWATER_TEST_BINARY", ...(engine === "postgres" ? ["HEADWATER_TEST_POSTGRES"] : [])];
    const missing = variables.find((variable) => !process.env[variable]);
    const skip = missing !== undefined && !process.env["HEADWATER_TEST_REQUIRE_ALL"] ? `${missing} is not set` : false;
    test(`${name} (${engine})`, { skip, timeout: 180_000 }, async (context) => {
      assert.equal(missing, undefined, `${missing} is not set`);
      const store = await Store.create(engine);
      context.after(() => store.remove());
      await body(context, store);
    });
  }
}

/** A store of its own for a test: a file, or a namespace of the PostgreSQL server. */
export class Store {
  readonly binary = process.env["HEADWATER_TEST_BINARY"] as string;

  private constructor(
    readonly engine: Engine,
    readonly options: readonly string[],
    readonly remove: () => Promise<void>,
  ) {}

  static async create(engine: Engine): Promise<Store> {
    if (engine === "sqlite") {
      const folder = await mkdtemp(join(tmpdir(), "headwater-client-"));
      const remove = () => rm(folder, { recursive: true });
      return new Store(engine, ["--store", `sqlite:${join(folder, "test.db")}`], remove);
    }
    const url = process.env["HEADWATER_TEST_POSTGRES"] as string;
    const namespace = `client_${randomUUID().replaceAll("-", "")}`;
    const drop = `DROP SCHEMA IF EXISTS "${namespace}" CASCADE`;
    const remove = async () => {
      for (let left = 9; ; left -= 1) {
        try {
          await run("psql", ["-q", "-v", "VERBOSITY=verbose", url, "-c", drop]);
          return;
        } catch (error) {
          // A deadlock with what a killed server left behind.
          if (left === 0 || !String(error).includes("40P01")) {
            throw error;
          }
        }
      }
    };
    return new Store(engine, ["--store", url, "--namespace", namespace], remove);
  }

  /** Runs a command of the program on the store; returns what it prints. */
  async command(...parameters: string[]): Promise<string> {
    return (await run(this.binary, [...this.options, "--output", "json", ...parameters], { timeout: 60_000 })).stdout;
  }

  /** A server that ends with the test, and a client of it. */
  async serve(context: TestContext, options: ClientOptions = {}): Promise<{ server: RealServer; client: Client }> {
    const server = await RealServer.start(this, context);
    const client = new Client(server.url, options);
    context.after(() => client.close());
    return { server, client };
  }
}

/** One server process, on one port for all its lives. */
export class RealServer {
  readonly kills: number[] = [];
  #process: ChildProcess | undefined;

  private constructor(
    private readonly store: Store,
    private readonly port: number,
  ) {}

  static async start(store: Store, context: TestContext): Promise<RealServer> {
    const server = new RealServer(store, await freePort());
    context.after(() => server.stop());
    await server.start();
    return server;
  }

  get url(): string {
    return `http://127.0.0.1:${this.port}`;
  }

  async start(): Promise<void> {
    const listen = ["--output", "json", "serve", "--listen", `127.0.0.1:${this.port}`];
    const process = spawn(this.store.binary, [...this.store.options, ...listen], { stdio: ["ignore", "pipe", "ignore"] });
    this.#process = process;
    // The address is printed once it is listened on.
    const lines = createInterface({ input: process.stdout });
    const [line] = (await once(lines, "line", { signal: AbortSignal.timeout(30_000) })) as [string];
    assert.equal((JSON.parse(line) as { url: string }).url, `${this.url}/`);
  }

  /** Without a chance to end in order. */
  async kill(): Promise<void> {
    this.kills.push(performance.now());
    await this.#end("SIGKILL");
  }

  async stop(): Promise<void> {
    const code = await this.#end("SIGTERM");
    assert.ok(code === undefined || code === 0, `the server ended with ${code}`);
  }

  async #end(signal: NodeJS.Signals): Promise<number | null | undefined> {
    const process = this.#process;
    this.#process = undefined;
    if (process === undefined) {
      return undefined;
    }
    const ended = once(process, "exit", { signal: AbortSignal.timeout(15_000) });
    process.kill(signal);
    const [code] = (await ended.catch((error: unknown) => {
      process.kill("SIGKILL");
      throw error;
    })) as [number | null];
    return code;
  }
}

/** Passes requests on. The answer to one whose path contains a lost one is lost: its connection is closed instead. */
export class Proxy {
  readonly losing = new Map<string, number>();
  lost = 0;
  readonly #server;

  private constructor(target: string) {
    this.#server = createServer((incoming, answer) => {
      const upstream = request(target + (incoming.url ?? ""), { method: incoming.method, headers: incoming.headers, agent: false });
      upstream.on("error", () => answer.destroy());
      upstream.on("response", (response) => {
        if (this.#loses(incoming.url ?? "")) {
          response.resume();
          response.on("end", () => answer.destroy());
        } else {
          answer.writeHead(response.statusCode ?? 500, response.headers);
          response.pipe(answer);
        }
      });
      incoming.pipe(upstream);
    });
  }

  static async start(target: string, context: TestContext): Promise<Proxy> {
    const proxy = new Proxy(target);
    await new Promise<void>((resolve) => proxy.#server.listen(0, "127.0.0.1", resolve));
    context.after(async () => {
      proxy.#server.closeAllConnections();
      await new Promise((resolve) => proxy.#server.close(resolve));
    });
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  #loses(path: string): boolean {
    for (const [part, times] of this.losing) {
      if (path.includes(part) && times > 0) {
        this.losing.set(part, times - 1);
        this.lost += 1;
        return true;
      }
    }
    return false;
  }
}

/** Polls: the state is in another process. */
export async function waitUntil(condition: () => boolean | Promise<boolean>, what: string, ms = 20_000): Promise<void> {
  const deadline = performance.now() + ms;
  while (!(await condition())) {
    assert.ok(performance.now() < deadline, `not reached: ${what}`);
    await sleep(10);
  }
}

async function freePort(): Promise<number> {
  for (; nextPort < 32_600; ) {
    const port = nextPort++;
    const listener = createListener();
    const free = await new Promise<boolean>((resolve) => {
      listener.once("error", () => resolve(false));
      listener.listen(port, "127.0.0.1", () => listener.close(() => resolve(true)));
    });
    if (free) {
      return port;
    }
  }
  throw new Error("no free port");
}
