#!/usr/bin/env node
// npm install pouchdb-core pouchdb-adapter-http pouchdb-replication
// palisade-lease run couchdb/reports --leases etcd://127.0.0.1:2379 -- node examples/node/replicate.mjs http://127.0.0.1:8080/drafts http://127.0.0.1:8080/reports
//
// One replication with PouchDB under the lease of the target. What it remembers is kept in the target alone (checkpoint):
// a document in the source would be a write there, which needs the lease of the source.
// Exit codes: 0 replicated, 76 the lease is another's, 69 still refused for now when patience ran out, 1 somebody must look.

import PouchCore from "pouchdb-core";
import http from "pouchdb-adapter-http";
import replication from "pouchdb-replication";
import { fencedFetch, Refused } from "./fenced.mjs";

const [from, to] = process.argv.slice(2);
const token = process.env.FENCE_TOKEN;
if (!to || !token) {
  console.error("usage, under palisade-lease run: replicate.mjs SOURCE TARGET");
  process.exit(64);
}

let refusal;
const fenced = fencedFetch(token);
const PouchDB = PouchCore.plugin(http).plugin(replication);
const target = new PouchDB(to, {
  fetch: (url, options) => fenced(url, options).catch((error) => { refusal = error; throw error; }),
});

try {
  // A source that is only read needs no token.
  const { docs_written } = await PouchDB.replicate(new PouchDB(from), target, { checkpoint: "target" });
  console.log(`${docs_written} documents written`);
} catch (error) {
  console.error(refusal instanceof Refused ? refusal.message : error);
  process.exit(refusal instanceof Refused ? refusal.exit : 1);
}
