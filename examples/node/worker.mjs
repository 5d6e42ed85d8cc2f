#!/usr/bin/env node
// palisade-lease run nightly/report --leases etcd://127.0.0.1:2379 -- node examples/node/worker.mjs http://127.0.0.1:8080/report.txt
//
// A worker in Node (18 or later) without packages: fetch, and one header. PUTs each line of its input.
// Exit codes: 0 all written, 1 another one has the lease now, or somebody must look.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

const url = process.argv[2];
const token = process.env.FENCE_TOKEN;
if (!url || !token) {
  console.error("usage, under palisade-lease run: worker.mjs URL");
  process.exit(64);
}

/** PUTs once, and again only what was refused for now: it was never sent to the datastore. */
async function write(body) {
  for (;;) {
    const answer = await fetch(url, { method: "PUT", headers: { "X-Fence-Token": token }, body });
    const refused = answer.headers.get("X-Fence-Outcome") === "refused";
    const later = answer.headers.get("Retry-After");
    if (!(refused && answer.status === 503 && later)) return answer;
    await answer.arrayBuffer();
    await sleep(Number(later) * 1000);
  }
}

console.log(`worker: process ${process.pid} has the lease, token ${token}`);
for await (const line of createInterface({ input: process.stdin })) {
  const answer = await write(`${line}\n`);
  console.log(`HTTP/1.1 ${answer.status} ${answer.statusText}`);
  answer.headers.forEach((value, name) => console.log(`${name}: ${value}`));
  console.log(`\n${await answer.text()}\nworker: answered ${answer.status}`);
  // 412: the lease is another's. The token in X-Fence-Highest is theirs, and never to be sent.
  if (!answer.ok) process.exit(1);
}
