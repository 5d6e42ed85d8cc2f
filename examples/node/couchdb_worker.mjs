#!/usr/bin/env node
// npm install pouchdb-core pouchdb-adapter-http
// palisade-lease run couchdb/reports --leases etcd://127.0.0.1:2379 -- node examples/node/couchdb_worker.mjs http://127.0.0.1:8080/reports nightly
//
// A worker with PouchDB as CouchDB's client: its option `fetch` is where the token comes in, so that every request has it.
// Makes each line of its input the text of one document, on whatever revision that has.
// Exit codes: 0 all written, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.

import { createInterface } from "node:readline";
import PouchCore from "pouchdb-core";
import http from "pouchdb-adapter-http";
import { fencedFetch, Refused } from "./fenced.mjs";

const [url, id] = process.argv.slice(2);
const token = process.env.FENCE_TOKEN;
if (!id || !token) {
  console.error("usage, under palisade-lease run: couchdb_worker.mjs URL-OF-DATABASE DOCUMENT");
  process.exit(64);
}

// PouchDB wraps what goes wrong in errors of its own: the refusal is kept here.
let refusal;
const fenced = fencedFetch(token);
const database = new (PouchCore.plugin(http))(url, {
  fetch: (url, options) => fenced(url, options).catch((error) => { refusal = error; throw error; }),
});

console.log(`worker: process ${process.pid} has the lease, token ${token}`);
for await (const text of createInterface({ input: process.stdin })) {
  try {
    const old = await database.get(id).catch((error) => {
      if (error.status === 404) return { _id: id };
      throw error;
    });
    const { rev } = await database.put({ ...old, text });
    console.log(`revision ${rev}\nworker: answered 201`);
  } catch (error) {
    if (refusal instanceof Refused) {
      console.log(`${await refusal.answer.text()}\nworker: answered ${refusal.answer.status}`);
      console.error(refusal.message);
      process.exit(refusal.exit);
    }
    // 409 is the datastore's own: somebody who holds no lease has written. Somebody must look.
    console.log(`${error}\nworker: answered ${error.status}`);
    process.exit(1);
  }
}
