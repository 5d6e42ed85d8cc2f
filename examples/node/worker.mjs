#!/usr/bin/env node
// palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- node examples/node/worker.mjs http://127.0.0.1:8080/report.txt
//
// A worker in Node (18 or later) without packages: fetch, and one header. PUTs each line of its input.
// Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.

import { createInterface } from "node:readline";
import { fencedFetch, Refused } from "./fenced.mjs";

const url = process.argv[2];
const token = process.env.FENCE_TOKEN;
if (!url || !token) {
  console.error("usage, under palisade-lease run: worker.mjs URL");
  process.exit(64);
}

async function show(answer) {
  console.log(`HTTP/1.1 ${answer.status} ${answer.statusText}`);
  answer.headers.forEach((value, name) => console.log(`${name}: ${value}`));
  console.log(`\n${await answer.text()}\nworker: answered ${answer.status}`);
}

const write = fencedFetch(token);
console.log(`worker: process ${process.pid} has the lease, token ${token}`);
for await (const line of createInterface({ input: process.stdin })) {
  try {
    const answer = await write(url, { method: "PUT", body: `${line}\n` });
    await show(answer);
    if (!answer.ok) process.exit(1);
  } catch (error) {
    if (error instanceof Refused) await show(error.answer);
    console.error(error instanceof Refused ? error.message : `nobody knows whether this was written: ${error}`);
    process.exit(error.exit ?? 1);
  }
}
