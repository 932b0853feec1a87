// The programs of the README run, one after the other, and print what it says.

import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { once } from "node:events";
import { readFile } from "node:fs/promises";
import { fileURLToPath } from "node:url";

import { onBothStores } from "./real.js";

const PACKAGE = new URL("../../", import.meta.url);

onBothStores("programs of the README print what it says", async (context, store) => {
  const { server } = await store.serve(context);
  const readme = await readFile(new URL("README.md", PACKAGE), "utf8");
  const programs = [...readme.matchAll(/```js\n(.*?)```\n```text\n(.*?)```/gs)];
  assert.equal(programs.length, 4);
  assert.equal(readme.split("```js\n").length - 1, 4, "each program has its output");
  for (const [, program, expected] of programs as unknown as [string, string, string][]) {
    assert.equal(await run(program.replaceAll("http://127.0.0.1:7411", server.url), expected), expected);
  }
});

/** Runs a program to its end; one that runs until it is stopped gets a signal once it has printed what is expected. */
async function run(program: string, expected: string): Promise<string> {
  // In the package's folder, where `headwater` means the package itself.
  const parameters = ["--input-type=module", "--eval", program];
  const child = spawn(process.execPath, parameters, { cwd: fileURLToPath(PACKAGE), stdio: ["ignore", "pipe", "pipe"], timeout: 60_000 });
  let [printed, errors] = ["", ""];
  child.stderr.on("data", (text: Buffer) => (errors += text.toString()));
  child.stdout.on("data", (text: Buffer) => {
    printed += text.toString();
    if (printed === expected && program.includes(".run()")) {
      child.kill("SIGTERM");
    }
  });
  const [code] = (await once(child, "close")) as [number | null];
  assert.equal(code, 0, errors);
  return printed;
}
